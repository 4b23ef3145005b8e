"""Which rows of which shards become which part, and one part converted: read, checked, handed over.

The plan is pure, and the same however many workers there are; a part runs alike here, in another process and on a
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.abilities import Checked, ability
from seqlake.dataset.writing import conforming
from seqlake.errors import DecodeError, SchemaMismatchError, SeqlakeError, ValidationError, in_line
from seqlake.shards.files import verified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Readable, Shard, ShardReader, Sink
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Column, Schema

BYTES_PER_PART = 128 << 20
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
    """

    schema: Schema
    tasks: Sequence[PartTask]
    shards: int
    nbytes: int
    findings: Sequence[Finding]
    dropped: Mapping[str, str]
    fingerprint: str
    read: Schema

    @property
    def rows(self) -> int:
        """Sequences that will be written."""
        return sum(task.rows for task in self.tasks)

    def to_json(self) -> dict[str, object]:
        """Plain values, for machines."""
        return {
            "rows": self.rows,
            "shards": self.shards,
            "bytes": self.nbytes,
            "parts": len(self.tasks),
            "columns": {name: str(self.schema.arrow.field(name).type) for name in self.schema.names},
            "dropped": dict(self.dropped),
            "findings": [str(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        source = f"{self.rows} sequences, {self.nbytes:,} bytes in {self.shards} shards"
        lines = [f"{source}, would be written in {len(self.tasks)} parts."]
        lines += [f"  {name}: {self.schema.arrow.field(name).type}" for name in self.schema.names]
        lines += [f"Dropped: {name} ({reason})" for name, reason in self.dropped.items()]
        lines += [str(finding) for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"... and {len(self.findings) - _SHOWN} findings more.")
        return "\n".join(map(in_line, lines))


def plan(
    source: Readable,
    /,
    *,
    bytes_per_part: int = BYTES_PER_PART,
    dropped: Mapping[str, str] | None = None,
) -> Plan:
    """Cut a source into parts of about equal bytes, in its order.

    Large shards are cut by rows, small ones are joined. Nothing of the machine goes in, so that a conversion that was
    interrupted finds the same parts again, on any number of workers.

    Args:
        source: Rows to convert; no data file is opened.
        bytes_per_part: Source bytes of one part.
        dropped: Columns of the source that will not be written, with the reason.

    Example:
        ```python
        print(plan(sl.scan("bridge_rlds/1.0.0")))
        ```
    """
    if bytes_per_part < 1:
        raise ValueError(f"bytes_per_part is at least 1, found {bytes_per_part}.")
    shards = [verified(shard) for shard in source.shards()]  # what is written anew gets new checksums
    checked = ability(source, Checked)
    dropped = dropped or {}
    schema = source.schema.without(list(dropped)) if dropped else source.schema
    return Plan(
        schema=schema,
        read=schema,
        tasks=list(_tasks(shards, source.root, bytes_per_part)),
        shards=len(shards),
        nbytes=sum(shard.nbytes for shard in shards),
        findings=[] if checked is None else list(checked.check("metadata")),
        dropped=dropped,
        fingerprint=source.fingerprint,
    )


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


def convert_part(task: PartTask, /, *, sink: Sink, schema: Schema) -> object:
    """Convert one part; what an executor runs.

    Args:
        task: Which rows.
        sink: Where they go; a part that is run again replaces what it wrote.
        schema: What is handed to the sink; columns of the source that it lacks are not read.

    Returns:
        The sink's receipt.

    Raises:
        SeqlakeError: Whatever went wrong, in its own class where it is one of ours; the message names the shard.
    """
    place = _Place()
    try:
        return sink.write(task.part, _batches(task, schema, place), root=task.root)
    except SeqlakeError as error:
        error.message = f"{place.text(task)}: {error.message}"
        error.args = (error.message,)
        raise
    except Exception as error:
        raise SeqlakeError(f"{place.text(task)}: {type(error).__name__}: {error}") from error


class _Place:
    """Where the work is, for messages: a sink asks for batches while it writes."""

    def __init__(self) -> None:
        self.piece: RowRange | None = None

    def text(self, task: PartTask) -> str:
        piece = self.piece or task.pieces[0]
        return f"Part {task.part}, rows {piece.start} to {piece.stop - 1} of the source shard {piece.shard.key!r}"


def _batches(task: PartTask, schema: Schema, place: _Place) -> Iterator[pa.RecordBatch]:
    for piece in task.pieces:
        place.piece = piece
        whole = piece.start == 0 and piece.stop == piece.shard.rows
        reader = piece.shard.open()
        try:
            rows = None if whole else np.arange(piece.start, piece.stop, dtype=np.int64)
            for batch in reader.batches(list(schema.names), rows=rows):
                yield conformed(batch, schema)
        except (SchemaMismatchError, DecodeError) as error:
            _name_sequence(error, reader, piece, schema)
            raise
        finally:
            reader.close()


def _name_sequence(error: SeqlakeError, reader: ShardReader, piece: RowRange, schema: Schema) -> None:
    """Put the first sequence that cannot be read before the message: asked one by one, since it happens once."""
    if schema.id is None:
        return
    for row in range(piece.start, piece.stop):
        alone = np.array([row], np.int64)
        try:
            list(reader.batches(list(schema.names), rows=alone))
        except SeqlakeError:
            try:
                [batch] = reader.batches([schema.id], rows=alone)
            except SeqlakeError:
                return
            error.message = f"sequence {batch.column(0)[0].as_py()!r}: {error.message}"
            return


def conformed(batch: pa.RecordBatch, schema: Schema, /) -> pa.RecordBatch:
    """The batch in the schema's logical types.

    Raises:
        ValidationError: A cell that does not fit; the message names its column and its sequence.
    """
    arrays = []
    for name in schema.names:
        try:
            arrays.append(_fitted(batch.column(name), schema[name]))
        except ValidationError as error:
            raise _misfit(batch, schema[name], schema.id, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _fitted(array: pa.Array, column: Column) -> pa.Array:
    if not conforming.fits_column(array.type, column):
        raise SchemaMismatchError(f"Column {column.name!r}: expected {column.logical}, found {array.type}.")
    return conforming.conform_column(array, column, column.logical)


def _misfit(batch: pa.RecordBatch, column: Column, key: str | None, error: ValidationError) -> ValidationError:
    """Which row it was: asked one by one, since it happens once."""
    for row in range(batch.num_rows):
        try:
            _fitted(batch.column(column.name).slice(row, 1), column)
        except ValidationError as alone:
            name = f"sequence {batch.column(key)[row].as_py()!r}" if key in batch.schema.names else f"row {row}"
            return ValidationError(
                f"{name}: {alone.message}", hint="Mend it in the source, or leave the column out with select()."
            )
    return error
