"""Checks a dataset against the format and says everything there is to say, as findings.

What the metadata, the schema, the rows and the files must hold is `seqlake.spec.rules`; what only a table knows it
checks itself. Here everything is read that the rules are shown.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, get_args

import numpy as np
import pyarrow as pa

from seqlake.abilities import HasVersion, KeepsFiles, NamesShards, OpensFiles, ability
from seqlake.dataset import progress
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.validation.files import FileWalk, seen
from seqlake.dataset.validation.looking import FileContext
from seqlake.errors import SchemaMismatchError, SeqlakeError
from seqlake.protocols import Depth
from seqlake.shards.columns import Columns
from seqlake.shards.rows import Rows
from seqlake.shares import Finish, Share, begun, in_turn
from seqlake.spec.alignment import clock_of
from seqlake.spec.findings import Finding, Report
from seqlake.spec.rules import (
    Batch,
    Gathered,
    References,
    SeenIds,
    check_metadata,
    check_notes,
    check_references,
    check_rows,
    check_schema,
    gather_constant,
)
from seqlake.spec.schema import Column, Schema
from seqlake.windows.clock import dataset_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from seqlake.executors import Executor
    from seqlake.protocols import Blob, Copied, Readable, Shard
    from seqlake.spec.alignment import Clock
    from seqlake.spec.rules.facts import CellFacts


def unreadable(error: Exception, place: str, /) -> Finding:
    """V702: a shard, or a file, that cannot be read."""
    return Finding(code="V702", severity="error", message=f"cannot be read: {error}", location=place)


@dataclass(kw_only=True)
class RowWalk:
    """What is remembered from one shard to the next.

    Attributes:
        schema: Of the rows.
        clock: Of the dataset.
        reported: Locations that the table has found errors in: what is damaged is not judged again.
        notes: What is worth a note is gathered here.
        place: What references resolve against.
        copied: Gives what a table knows of the copied-in files of a shard.
        files: Looks at the files; None where they are not wanted.
    """

    schema: Schema
    clock: Clock
    reported: set[str]
    notes: Gathered
    place: FileContext
    copied: Callable[[str], Mapping[str, Copied]]
    files: FileWalk | None
    ids: SeenIds = field(default_factory=SeenIds)
    references: References = field(default_factory=References)

    def shard(
        self, shard: Shard, location: str, ahead: Iterator[Mapping[str, CellFacts]] | None = None
    ) -> Iterator[Finding]:
        """The findings of one shard's rows; the last ones may come with a later shard, as their files are seen."""
        if location in self.reported:
            return
        names = list(self.schema.names)
        stored = as_stored(shard, self.schema)
        try:
            misfits = dict(_misfits(stored, names))
            yield from self._after(
                Finding(code="V701", severity="error", message=str(error), location=location, column=name)
                for name, error in misfits.items()
            )
            names = [name for name in names if name not in misfits]
            place = replace(self.place, copied={} if self.files is None else self.copied(shard.key))
            start = 0
            for batch in one_shard(stored, names):
                yield from self._rows(batch, location, start, place, ahead)
                start += batch.num_rows
        except (SeqlakeError, OSError, pa.ArrowException) as error:
            yield from self._after([unreadable(error, location)])

    def _after(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """After what is found of the rows before."""
        return iter(findings) if self.files is None else self.files.after(findings)

    def _rows(
        self,
        rows: pa.RecordBatch,
        location: str,
        start: int,
        place: FileContext,
        ahead: Iterator[Mapping[str, CellFacts]] | None,
    ) -> Iterator[Finding]:
        batch = Batch(rows=rows, schema=self.schema, location=location, start=start, clock=self.clock)
        yield from self._after(chain(check_rows(batch, self.ids), check_references(batch, self.references)))
        gather_constant(batch, self.notes)
        if self.files is not None:
            yield from self.files.look(batch, place, ahead)


def as_stored(shard: Shard, schema: Schema) -> Shard:
    """A shard that shows cells as they are stored: lists of any length, raw bytes, nulls anywhere."""
    if isinstance(shard, Rows):
        return Rows(as_stored(shard.shard, schema), shard.keep)
    if not isinstance(shard, Columns):
        return shard
    bare = {name: Column(name, schema[name].stored()) for name in schema.names}
    return Columns(shard.shard, Schema(bare, id=schema.id), shard.mapping)


def _misfits(shard: Shard, names: list[str]) -> Iterator[tuple[str, SchemaMismatchError]]:
    """Columns whose stored cells cannot be of the schema's type; asked one by one only where one is."""
    try:
        for _ in one_shard(shard, names):
            break  # types differ in the first batch or in none
    except SchemaMismatchError:
        for name in names:
            try:
                for _ in one_shard(shard, [name]):
                    break
            except SchemaMismatchError as error:
                yield name, error


DEPTHS: tuple[Depth, ...] = get_args(Depth)


_ROWS_OF_TASK = 64  # at most, whose files one task of an executor looks at
_FEWEST_ROWS, _TASKS = 8, 64  # of fewer rows tasks are smaller, so that workers end at about the same time
_TASKS_AT_ONCE = 1024  # whose facts wait in memory


@dataclass(frozen=True, slots=True)
class _FileTask:
    """Some rows of a shard whose files are looked at elsewhere."""

    number: int  # of the shard
    shard: Shard
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class _FileLook:
    """Looks at the files of some rows: what an executor runs."""

    selection: Excerpt
    reported: frozenset[str]
    deep: bool

    def __call__(self, task: _FileTask, /) -> list[dict[str, CellFacts]]:
        """Row by row; fewer than there are where the shard cannot be read, which the walk itself meets."""
        schema, source = self.selection.schema, self.selection.source
        facts: list[dict[str, CellFacts]] = []
        of_files = [name for name, one in schema.items() if one.category in ("file", "frames") or one.inline]
        stored = as_stored(task.shard, schema)
        try:
            misfits = {name for name, _ in _misfits(stored, of_files)} if of_files else set()
            names = [name for name in of_files if name not in misfits]
            if not names:  # signals are the walk's, and may be large
                return [{} for _ in range(task.start, task.stop)]
            place = replace(file_context(self.selection, self.reported), copied=_copied(source, task.shard.key))
            rows = Rows(stored, np.arange(task.start, task.stop, dtype=np.int64))
            batches = (Batch(rows=batch, schema=schema) for batch in one_shard(rows, names))
            facts += seen(batches, place, deep=self.deep)
        except (SeqlakeError, OSError, pa.ArrowException):
            pass
        return facts


def report(selection: Readable, /, *, depth: Depth, executor: Executor | None = None) -> Report:
    """Check the rows of a selection against the format; see `validate`.

    Raises:
        ValueError: No such depth, or one that has nothing to divide among shares.
    """
    if depth not in DEPTHS:
        raise ValueError(f"A depth is one of {', '.join(DEPTHS)}; found {depth!r}.")
    if isinstance(executor, Share | Finish) and depth in ("metadata", "rows"):
        raise ValueError(f"Shares divide what is seen of files: the depth is 'files' or 'decode', found {depth!r}.")
    return Report(_findings(Excerpt.of(selection), depth, executor), subject=selection.root, depth=depth)


def _findings(selection: Excerpt, depth: Depth, executor: Executor | None) -> Iterator[Finding]:
    schema = selection.schema
    yield from check_metadata(schema.metadata.to_json())
    samples = schema.id is None and "source" in schema.metadata.extra  # of another format, whose rows need no id
    yield from (broken for broken in check_schema(schema) if not (samples and broken.code == "S201"))
    reported: set[str] = set()
    for finding in selection.check(depth):
        if finding.severity == "error":
            reported.add(finding.location)
        yield finding
    if depth != "metadata":
        yield from _rows(selection, depth, reported, executor)


def _rows(selection: Excerpt, depth: Depth, reported: set[str], executor: Executor | None) -> Iterator[Finding]:
    schema, notes, source = selection.schema, Gathered(), selection.source
    place = file_context(selection, frozenset(reported))
    with ExitStack() as stack:
        clock, files, shards = _clock(selection), None, selection.shards()
        if depth != "rows":
            done = stack.enter_context(progress.counting(sum(one.rows for one in shards), "validate", unit="sequences"))
            files = stack.enter_context(FileWalk(schema, clock=clock, deep=depth == "decode", notes=notes, done=done))
        known = partial(_copied, source)
        walk = RowWalk(
            schema=schema, clock=clock, reported=reported, notes=notes, place=place, copied=known, files=files
        )
        if files is None or executor is None:
            for shard in progress.over(shards, "validate") if files is None else shards:
                yield from walk.shard(shard, _location(shard, source))
        else:
            look = _FileLook(selection, frozenset(reported), depth == "decode")
            identity = {"source": lambda: selection.fingerprint, "depth": depth}
            behind = _Behind(shards, lambda shard, facts: walk.shard(shard, _location(shard, source), facts))
            run = stack.enter_context(begun(executor, "validate", identity))
            in_turn(run, look, _file_tasks(shards), at_once=_TASKS_AT_ONCE, done=behind.take)
            behind.walk(upto=len(shards))
            yield from behind.findings
        if files is not None:
            yield from files.finish()
    yield from check_notes(notes)


def _file_tasks(shards: Sequence[Shard]) -> list[_FileTask]:
    some = max(_FEWEST_ROWS, -(-sum(shard.rows for shard in shards) // _TASKS))
    size = min(_ROWS_OF_TASK, some)
    return [
        _FileTask(number, shard, start, min(start + size, shard.rows))
        for number, shard in enumerate(shards)
        for start in range(0, shard.rows, size)
    ]


class _Behind:
    """Walks each shard, in order, as soon as executors have seen its files, while they are at those of the next."""

    def __init__(
        self,
        shards: Sequence[Shard],
        walk: Callable[[Shard, Iterator[Mapping[str, CellFacts]]], Iterator[Finding]],
    ) -> None:
        self.findings: list[Finding] = []
        self._shards, self._walk = shards, walk
        self._walked = 0
        self._facts: list[Mapping[str, CellFacts]] = []  # of the next shard
        self._whole = True  # what follows a gap would stand at the wrong rows

    def take(self, task: _FileTask, facts: Sequence[Mapping[str, CellFacts]], /) -> None:
        """What was seen of some rows; tasks come in their order."""
        self.walk(upto=task.number)
        if self._whole:
            self._facts += facts
        self._whole = self._whole and len(facts) == task.stop - task.start
        if task.stop == task.shard.rows:
            self.walk(upto=task.number + 1)

    def walk(self, *, upto: int) -> None:
        """All shards before this one."""
        for shard in self._shards[self._walked : upto]:
            self._walked += 1
            facts, self._facts, self._whole = self._facts, [], True
            self.findings += self._walk(shard, iter(facts))


def file_context(selection: Excerpt, reported: frozenset[str], /) -> FileContext:
    """Where the files of a selection's rows are looked for."""
    return FileContext(
        root=selection.root,
        storage=selection.storage,
        allow_outside=selection.allow_outside,
        packets=selection.access.kept_packets,
        copied={},
        opened=_within(selection.source),
        reported=reported,
    )


def _copied(source: Readable, shard: str) -> Mapping[str, Copied]:
    known = ability(source, KeepsFiles)
    return {} if known is None else known.copied(shard)


def _within(source: Readable) -> Callable[[str], Blob | None]:
    known = ability(source, OpensFiles)
    return (lambda _: None) if known is None else known.file_within


def _clock(source: Readable) -> Clock:
    try:
        return dataset_clock(source)
    except (SeqlakeError, OSError, ValueError):
        # A shard that cannot be read is a finding of its own.
        return clock_of(source.schema)


def _location(shard: Shard, source: Readable) -> str:
    """The shard's path where it belongs to a table or was scanned, else its name."""
    known = ability(source, NamesShards)
    if known is not None:
        return known.name_of(shard)
    name = shard.key.rpartition("#")[0] or shard.key
    return name if "/" in name or ability(source, HasVersion) is None else f"data/{name}"
