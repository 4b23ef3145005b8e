"""One shard of samples: a description that travels, and the reader it opens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.formats._streaming.cells import CellError
from seqlake.formats._streaming.records import Records, SampleError, ranged
from seqlake.formats._streaming.restoring import restored
from seqlake.shards.reading import runs_of
from seqlake.shards.scanned import ScannedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.formats._streaming.cells import Options
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Blob, Flat, Ints
    from seqlake.spec.schema import Column

_PLUGS = {"mds": "mds", "csv": "xsv", "tsv": "xsv", "xsv": "xsv", "json": "jsonl"}


class SampleFormat(Protocol):
    """What the module of a format offers to the reader that all of them share."""

    def columns(self, config: Config, options: Options, /) -> dict[str, Column]:
        """The columns of shards of this kind."""

    def learn(self, shards: Iterable[SampleShard], options: Options, /) -> Options:
        """Options that know what only the first samples say."""

    def open_records(self, entry: IndexedShard, place: ShardFolder, options: Options, /) -> Records:
        """The samples of one shard, which is open from now on."""


def sample_format(kind: str, /) -> SampleFormat:
    """The module that reads shards of a format."""
    return cast("SampleFormat", import_module(f"seqlake.formats.{_PLUGS[kind]}"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleShard:
    """One shard of an index; picklable, if the user's encodings are.

    Attributes:
        entry: What the index says of it.
        place: The folder.
        options: How columns are read.
        key: `<file name>#<hash>`.
        types: The logical Arrow schema of the whole dataset; columns that this shard lacks are null.
        was: Columns that are made again what they were before the export.
    """

    entry: IndexedShard
    place: ShardFolder
    options: Options
    key: str
    types: pa.Schema
    was: Mapping[str, Column] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many samples it has."""
        return self.entry.samples

    @property
    def nbytes(self) -> int:
        """Bytes of its files, uncompressed."""
        meta = self.entry.raw_meta
        return self.entry.raw.size + (meta.size if meta is not None else 0)

    @property
    def in_place(self) -> bool:
        """Whether single samples are read where they are: from files of this machine that are not compressed."""
        return self.place.is_local and not self.memory

    @property
    def memory(self) -> int:
        """Bytes that an open reader holds: the decompressed files."""
        return self.nbytes if self.entry.config.compression is not None and self.place.copy is None else 0

    @property
    def one_file(self) -> bool:
        """Whether a copy of `unpacked` is all it takes to read the shard."""
        return self.entry.raw_meta is None

    def packed(self) -> Blob:
        """The file as it is stored."""
        return self.place.packed(self.entry.stored[0])

    def unpacked(self, data: memoryview, /) -> memoryview:
        """The file as it is read, from all of its stored bytes.

        Raises:
            CorruptFileError: They are not what the index says.
        """
        return self.place.unpacked(data, self.entry.raw, self.entry.zipped, self.entry.config.compression)

    def over(self, blob: Blob, /) -> SampleShard:
        """The same shard, read from a copy of `unpacked`."""
        return replace(self, place=replace(self.place, copy=blob))

    def open(self) -> SampleReader:
        """A reader for this process; files are opened, checked and decompressed when they are first needed."""
        return SampleReader(self)

    def damaged(self, error: SampleError, rows: Sequence[int] | Ints, /) -> DecodeError:
        """An error that says where: of damage, or of a sound sample that the column cannot hold."""
        column = f", column {error.column!r}" if error.column is not None else ""
        location = self.place.location(self.entry.stored[0])
        kind = DecodeError if error.unheld else CorruptFileError
        return kind(f"{location}, sample {int(rows[error.row])}{column}: {error.text}.", path=location)


class SampleReader(ScannedReader):
    """Reads samples of one shard."""

    def __init__(self, shard: SampleShard) -> None:
        super().__init__(shard.types, shard.rows, location=shard.place.root)
        self._shard = shard
        self._opened: Records | None = None

    @property
    def held(self) -> int:
        """Bytes of memory that go with this reader when it is closed."""
        return self._shard.memory

    @property
    def records(self) -> Records:
        """The samples of the open shard."""
        if self._opened is None:
            shard = self._shard
            self._opened = sample_format(shard.entry.config.format).open_records(
                shard.entry, shard.place, shard.options
            )
        return self._opened

    def sample(self, row: int, /) -> dict[str, Any]:
        """One sample as Python values: numbers, texts, bytes, numpy arrays over the shard's memory.

        Raises:
            IndexError: A row that is not there.
            CorruptFileError: It is not what the index says; names sample and column.
        """
        if not 0 <= row < self._shard.rows:
            raise IndexError(f"Rows are 0 to {self._shard.rows - 1}, found {row}.")
        records = self.records
        start, stop = records.bounds[row : row + 2].tolist()
        try:
            return records.value(ranged(records.blob, start, stop))
        except SampleError as error:
            raise self._shard.damaged(error, [row]) from error

    def one_by_one(self) -> Callable[[int], dict[str, Any]]:
        """The fastest function from a row to its sample; if it fails otherwise than `sample`, that one says why."""
        return self.records.one_by_one() or self.sample

    def look(self) -> None:
        """See that the shard's file is what it was.

        Raises:
            ShardChangedError: It changed.
        """
        if self._opened is not None:
            self._opened.blob.view()

    def cell(self, column: str, row: int = 0, /) -> memoryview:
        """The bytes of one cell, as they are stored."""
        try:
            return self.records.cell(column, row)
        except SampleError as error:
            raise self._shard.damaged(error, [row]) from error

    def verbatim(self, column: str, rows: Ints, /) -> list[memoryview] | None:
        """The cells of some rows where they lie; None where they are not in memory, or no bytes as they are stored.

        Raises:
            CorruptFileError: A sample is not what the index says.
        """
        records = self.records
        view = records.blob.view() if column not in self._shard.was else None
        if view is None or column not in self._shard.entry.config.names:
            return None
        bounds = records.bounds
        try:
            spans = records.spans(column, np.frombuffer(view, np.uint8), bounds[rows], bounds[rows + 1])
        except SampleError as error:
            raise self._shard.damaged(error, rows) from error
        if spans is None:
            return None
        return [view[start:stop] for start, stop in zip(spans[0].tolist(), spans[1].tolist(), strict=True)]

    def flat(self, column: str, /) -> Flat | None:
        """Where arrays lie in a shard that is not compressed: of a fixed shape, or exported signals."""
        self.type_of(column)
        if column not in self._shard.entry.config.names:
            return None
        try:
            was = self._shard.was.get(column)
            step = was.shape if was is not None and was.category == "temporal" and was.nested else None
            flat = self.records.flat(column, step=step)
        except SampleError as error:
            raise self._shard.damaged(error, range(self._shard.rows)) from error
        # A description that names another type than the bytes have is made true by a cast, which `batches` does.
        return None if flat is None or (was is not None and flat.dtype != was.dtype) else flat

    def close(self) -> None:
        """Let go of the shard's memory."""
        self._opened = None

    def _fetched(self, rows: Ints, bounds: Ints) -> tuple[NDArray[np.uint8], Ints, Ints]:
        """A buffer with these samples, and where they lie in it."""
        starts, stops = bounds[rows], bounds[rows + 1]
        view = self.records.blob.view()
        if view is not None:
            return np.frombuffer(view, np.uint8), starts, stops
        parts = self.records.blob.ranges(starts, stops)
        ends = np.cumsum(stops - starts)
        buffer = np.concatenate([np.frombuffer(part, np.uint8) for part in parts])
        return buffer, ends - (stops - starts), ends

    def parts(self, rows: Ints, _columns: Sequence[str], /) -> Iterator[Ints]:
        """Runs of samples that make a batch."""
        if not len(rows):
            return iter(())  # of which nothing need be there
        bounds = self.records.bounds
        return runs_of(rows, bounds[rows + 1] - bounds[rows], most_bytes=self.most_bytes, most_rows=self.most_rows)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some samples; CorruptFileError for one that is not what the index says."""
        buffer, starts, stops = self._fetched(rows, self.records.bounds)
        there = [name for name in schema.names if name in self._shard.entry.config.names]
        try:
            arrays = dict(zip(there, self.records.arrays(there, buffer, starts, stops), strict=True))
        except SampleError as error:
            raise self._shard.damaged(error, rows) from error
        for name in there:
            if name in self._shard.was:
                arrays[name] = self._restored(arrays[name], self._shard.was[name], rows)
        return [arrays[f.name] if f.name in arrays else pa.nulls(len(rows), f.type) for f in schema]

    def _restored(self, array: pa.Array, column: Column, rows: Ints) -> pa.Array:
        commas = self._shard.entry.config.format != "csv"
        try:
            return restored(array, column, commas=commas)
        except CellError as error:
            problem = SampleError(str(error), column=column.name)
            for row in range(len(array)):
                try:
                    restored(array.slice(row, 1), column, commas=commas)
                except CellError as alone:
                    problem = SampleError(str(alone), row=row, column=column.name)
                    break
            raise self._shard.damaged(problem, rows) from error
