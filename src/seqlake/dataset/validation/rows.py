"""The rows of a dataset as they are stored, so that a cell which does not fit is found and not refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.dataset.reading.streaming import one_shard
from seqlake.errors import SchemaMismatchError, SeqlakeError
from seqlake.shards.columns import Columns
from seqlake.shards.rows import Rows
from seqlake.spec.findings import Finding
from seqlake.spec.rules import Batch, Gathered, Ids, References, check_references, check_rows, gather_constant
from seqlake.spec.schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from seqlake.dataset.validation.files import FileWalk
    from seqlake.dataset.validation.looking import Place
    from seqlake.protocols import Copied, Shard
    from seqlake.spec.alignment import Clock


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
    place: Place
    copied: Callable[[str], Mapping[str, Copied]]
    files: FileWalk | None
    ids: Ids = field(default_factory=Ids)
    references: References = field(default_factory=References)

    def shard(self, shard: Shard, location: str) -> Iterator[Finding]:
        """The findings of one shard's rows; those of their files may come with a later shard."""
        if location in self.reported:
            return
        names = list(self.schema.names)
        stored = as_stored(shard, self.schema)
        try:
            misfits = dict(_misfits(stored, names))
            for name, error in misfits.items():
                yield Finding(code="V701", severity="error", message=str(error), location=location, column=name)
            names = [name for name in names if name not in misfits]
            place = replace(self.place, copied={} if self.files is None else self.copied(shard.key))
            start = 0
            for batch in one_shard(stored, names):
                yield from self._rows(batch, location, start, place)
                start += batch.num_rows
        except (SeqlakeError, OSError, pa.ArrowException) as error:
            yield unreadable(error, location)

    def _rows(self, rows: pa.RecordBatch, location: str, start: int, place: Place) -> Iterator[Finding]:
        batch = Batch(rows=rows, schema=self.schema, location=location, start=start, clock=self.clock)
        yield from check_rows(batch, self.ids)
        yield from check_references(batch, self.references)
        gather_constant(batch, self.notes)
        if self.files is not None:
            yield from self.files.look(batch, place)


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
