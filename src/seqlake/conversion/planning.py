"""Which rows of a source become which part, and what of it becomes which column: known before anything is written."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.abilities import Checked, SaysMapping, ability
from seqlake.dataset.opening import format_of, lake_of
from seqlake.errors import in_line
from seqlake.files.locations import absolute
from seqlake.protocols import Mapped
from seqlake.shards.files import verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Readable, Shard
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema

BYTES_PER_PART = 128 << 20
LEAST_PER_PART, LEAST_ENCODED = 32 << 20, 2 << 20
PARTS = 16
_COUNTS = (1, 2, 4, 8)

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Some rows of one shard, from `start` to before `stop`."""

    shard: Shard
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTask:
    """One part: what one worker turns into one receipt; picklable.

    Attributes:
        part: Its number, from 0.
        pieces: In the order of the source.
        root: What file references of these rows resolve against.
    """

    part: int
    pieces: Sequence[RowRange]
    root: str

    @property
    def rows(self) -> int:
        """Rows of all its pieces."""
        return sum(piece.stop - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What a conversion would do.

    Attributes:
        schema: Of what will be written.
        tasks: One a part, in order.
        shards: Shards that are read.
        nbytes: Bytes of those shards.
        findings: What the source says of itself without reading its rows: missing files, splits, features left out.
        dropped: Columns of the source that the target will not hold, with the reason.
        fingerprint: Of the source.
        read: The same columns as the source has them: images may become videos.
        mapped: What became of each thing of the source, those that are left out among them.
    """

    schema: Schema
    tasks: Sequence[PartTask]
    shards: int
    nbytes: int
    findings: Sequence[Finding]
    dropped: Mapping[str, str]
    fingerprint: str
    read: Schema
    mapped: Sequence[Mapped] = ()

    @property
    def rows(self) -> int:
        """Sequences that will be written."""
        return sum(task.rows for task in self.tasks)

    def bytes_of(self, part: int | None, /) -> float:
        """Source bytes of a part, or of all, about."""
        tasks = self.tasks if part is None else self.tasks[part : part + 1]
        pieces = (piece for task in tasks for piece in task.pieces)
        return sum(p.shard.nbytes * (p.stop - p.start) / max(p.shard.rows, 1) for p in pieces)

    def to_json(self) -> dict[str, object]:
        """Plain values, for machines."""
        return {
            "rows": self.rows,
            "shards": self.shards,
            "bytes": self.nbytes,
            "parts": len(self.tasks),
            "columns": {name: str(self.schema.arrow.field(name).type) for name in self.schema.names},
            "mapped": [{"source": one.source, "column": one.column, "how": one.how} for one in self.mapped],
            "dropped": dict(self.dropped),
            "findings": [str(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        source = f"{self.rows} sequences, {self.nbytes:,} bytes in {self.shards} shards"
        lines = [f"{source}, would be written in {len(self.tasks)} parts.", *self.report()]
        return "\n".join(map(in_line, lines))

    def report(self) -> list[str]:
        """What is mapped to what, what is dropped and why, and what the source says of itself: a line each."""
        sources = {one.column: one for one in self.mapped}
        lines = []
        for name in self.schema.names:
            text = f"  {name}: {self.schema.arrow.field(name).type}"
            one = sources.get(name)
            where = "" if one is None or one.source == name else f" <- {one.source}"
            lines.append(f"{text}{where}{f' ({one.how})' if one is not None and one.how else ''}")
        lines += [f"Dropped: {name} ({reason})" for name, reason in self.dropped.items()]
        said = set(self.dropped.values())
        lines += [f"Left out: {o.source} ({o.how})" for o in self.mapped if o.column is None and o.how not in said]
        lines += [str(finding) for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"... and {len(self.findings) - _SHOWN} findings more.")
        return lines


def mapping_of(source: Readable, schema: Schema, dropped: Mapping[str, str], /) -> list[Mapped]:
    """What became of each thing of a source, with what a selection or the target leaves out.

    Args:
        source: Where its format says nothing, every column is itself.
        schema: The columns that are written.
        dropped: Columns that the target does not hold, with the reason.
    """
    known = ability(source, SaysMapping)
    said = [Mapped(source=name, column=name) for name in source.schema.names] if known is None else known.mapping()
    result = []
    for one in said:
        if one.column is None or one.column in schema:
            result.append(one)
        else:
            result.append(Mapped(source=one.source, column=None, how=dropped.get(one.column, "it is not selected")))
    named = {one.column for one in result}
    return [*result, *(Mapped(source=name, column=name) for name in schema.names if name not in named)]


def plan(
    source: Readable,
    /,
    *,
    bytes_per_part: int | None = None,
    least: int = LEAST_PER_PART,
    dropped: Mapping[str, str] | None = None,
) -> Plan:
    """Cut a source into parts of about equal bytes, in its order.

    Large shards are cut by rows, small ones are joined. Nothing of the machine goes in, so that a conversion that was
    interrupted finds the same parts again, on any number of workers.

    Args:
        source: Rows to convert; no data file is opened.
        bytes_per_part: Source bytes of one part; None: 1, 2, 4, 8 or 16 equal parts of at most `least`, 16 larger ones,
            or more of 128 MiB, so that some workers end at about the same time.
        least: Source bytes that are worth a part of their own; few where much is made of each, as videos of images
            or files of parts of videos.
        dropped: Columns of the source that will not be written, with the reason.

    Example:
        ```python
        print(plan(sl.scan("bridge_rlds/1.0.0")))
        ```
    """
    shards = [verified(shard) for shard in source.shards()]  # what is written anew gets new checksums
    checked = ability(source, Checked)
    dropped = dropped or {}
    schema = source.schema.without(list(dropped)) if dropped else source.schema
    return Plan(
        schema=schema,
        read=schema,
        tasks=parts(shards, source.root, bytes_per_part=bytes_per_part, least=least),
        shards=len(shards),
        nbytes=sum(shard.nbytes for shard in shards),
        findings=[] if checked is None else list(checked.check("metadata")),
        dropped=dropped,
        fingerprint=source.fingerprint,
        mapped=mapping_of(source, schema, dropped),
    )


def parts(
    shards: Sequence[Shard], root: str, /, *, bytes_per_part: int | None = None, least: int = LEAST_PER_PART
) -> list[PartTask]:
    """The rows of some shards, in their order, as parts of about equal bytes; for the rest see `plan`.

    Example:
        ```python
        excerpt = Excerpt.of(ds)
        parts(excerpt.shards(), excerpt.root)
        ```
    """
    if bytes_per_part is not None and bytes_per_part < 1:
        raise ValueError(f"bytes_per_part is at least 1, found {bytes_per_part}.")
    if bytes_per_part is None:
        nbytes = sum(shard.nbytes for shard in shards)
        # As many as most machines have cores, or several times so many: no worker is left with a part of its own.
        count = next((one for one in _COUNTS if one * least >= nbytes), PARTS)
        row = max((shard.nbytes / shard.rows for shard in shards if shard.rows), default=0)
        bytes_per_part = min(BYTES_PER_PART, -(-nbytes // count) + math.ceil(row))
    return list(_tasks(shards, root, bytes_per_part))


def _tasks(shards: Sequence[Shard], root: str, bytes_per_part: int) -> Iterator[PartTask]:
    part, pieces, held = 0, list[RowRange](), 0.0
    for shard in shards:
        if shard.rows == 0:
            continue
        per_row = max(shard.nbytes / shard.rows, 1.0)
        start = 0
        while start < shard.rows:
            if pieces and held + per_row > bytes_per_part:
                yield PartTask(part=part, pieces=tuple(pieces), root=root)
                part, pieces, held = part + 1, [], 0.0
            stop = min(shard.rows, start + max(1, int((bytes_per_part - held) / per_row)))
            pieces.append(RowRange(shard=shard, start=start, stop=stop))
            held += (stop - start) * per_row
            start = stop
    if pieces:
        yield PartTask(part=part, pieces=tuple(pieces), root=root)


def takes_rate(source: Any, storage: Mapping[str, str] | None, reading: Mapping[str, Any], /) -> bool:
    """Whether what reads a source has an option `fps`.

    Args:
        source: As for `convert`.
        storage: Options of its store.
        reading: Options that it is read with.
    """
    if reading.keys() & {"sequence_id", "steps"}:
        return True
    if not isinstance(source, str | os.PathLike) or lake_of(os.fspath(source)):
        return False
    known = reading.get("format") or format_of(absolute(os.fspath(source)), storage)
    return known in plugins.names("formats") and "fps" in plugins.options_of(plugins.load("formats", known).scan)


def stable_text(value: object, /) -> str:
    """A value as text that another process writes the same: no addresses, sets in order."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(_ordered(value)))


def _ordered(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return value
