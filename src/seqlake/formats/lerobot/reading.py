"""Cells of episodes out of data files that hold one row a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import CorruptFileError, MissingFileError, in_line
from seqlake.files.references import open_reference
from seqlake.files.stores import read_all
from seqlake.formats.lerobot.layout import BOOKKEEPING, SCALAR, episode_id
from seqlake.shards import parquet
from seqlake.shards.scanned import ScannedReader
from seqlake.spec.schema import is_list, list_levels, without_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.lerobot.lance import FrameRows, FrameRowsReader
    from seqlake.formats.lerobot.metadata import LeRobotFeature
    from seqlake.protocols import Blob, Ints
    from seqlake.shards.parquet.reader import ParquetReader

EPISODE = "episode_index"
_FRAME, _TIME = "frame_index", "timestamp"
_HALF = 0.5  # of a frame
_MOST_PICTURE = 1 << 30  # bytes of one image that a row names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFile:
    """One data file, and which rows of a shard are in it.

    Attributes:
        path: Below the root.
        blob: The file; None where it is not there, or `frames` stand for it.
        frames: Its rows where they lie in a table.
        rows: Rows of the shard, ascending.
        alone: It is one episode's own file, as in v2.x.
    """

    path: str
    blob: Blob | None
    rows: Ints
    alone: bool
    frames: FrameRows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of it, about."""
        return self.frames.nbytes if self.frames is not None else 0 if self.blob is None else self.blob.size

    @property
    def identity(self) -> object:
        """Other bytes, other value."""
        if self.frames is not None:
            return self.frames.start, self.frames.stop, self.frames.keys
        return self.blob and (self.blob.location, self.blob.size, self.blob.token)

    def open(self) -> ParquetReader | FrameRowsReader:
        """A reader of its rows.

        Raises:
            MissingFileError: It is not there.
        """
        if self.frames is not None:
            return self.frames.open()
        if self.blob is None:
            raise MissingFileError(
                f"The data file {self.path} is not there.",
                path=self.path,
                hint="The folder was copied in part: fetch it again, or leave out its episodes with where().",
            )
        return parquet.open(self.blob)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureFiles:
    """Where images lie that rows name and do not hold.

    Attributes:
        root: The dataset's.
        storage: Options of its store.
        allow_outside: They may lead out of the root.
    """

    root: str
    storage: Mapping[str, str] | None
    allow_outside: bool

    def read(self, path: str, /) -> bytes:
        """The bytes of one."""
        blob = open_reference(self.root, path, storage=self.storage, allow_outside=self.allow_outside)
        return read_all(blob, most=_MOST_PICTURE)


class EpisodeReader(ScannedReader):
    """Reads the episodes of some data files.

    Args:
        types: The logical Arrow schema.
        table: [rows] what is known of episodes without a look at their steps: columns as the schema has them.
        numbers: [rows] the number of each episode.
        lengths: [rows] its steps.
        files: The data files.
        columns: Columns of steps, and the feature of each.
        pictures: Where images lie that rows name.
        sizes: [rows] bytes of each, about.
    """

    def __init__(
        self,
        types: pa.Schema,
        table: pa.Table,
        numbers: Ints,
        lengths: Ints,
        files: Sequence[DataFile],
        columns: Mapping[str, LeRobotFeature],
        pictures: PictureFiles,
        sizes: Ints,
        /,
    ) -> None:
        super().__init__(types, len(numbers), location=files[0].path if files else "", sizes=sizes)
        self._table = table
        self._numbers = numbers
        self._lengths = lengths
        self._files = files
        self._columns = columns
        self._pictures = pictures
        self._file = np.zeros(len(numbers), np.int64)
        for number, file in enumerate(files):
            self._file[file.rows] = number
        self._open: tuple[int, ParquetReader | FrameRowsReader, dict[int, tuple[int, int]]] | None = None

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column of steps, as the list of episodes says; None for others."""
        return self._lengths if column in self._columns else None

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some episodes.

        Raises:
            CorruptFileError: A data file does not hold what the list of episodes and the features say.
            MissingFileError: It is not there.
        """
        wanted = [name for name in schema.names if name in self._columns]
        stepped = self._steps(wanted, schema, rows) if wanted else {}
        picked = pa.array(rows)
        return [
            stepped[field.name] if field.name in stepped else _one(self._table[field.name].take(picked), field.name)
            for field in schema
        ]

    def close(self) -> None:
        """Forget the file that was read last."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def check(self) -> Iterator[tuple[str, str]]:
        """(file, what is wrong with it) of files that do not hold what is meant."""
        for number, file in enumerate(self._files):
            try:
                reader, places = self._opened(number)
                strangers = sorted(places.keys() - set(self._numbers[file.rows].tolist()))
                if strangers:
                    yield file.path, f"holds steps of episode {strangers[0]}, which nothing lists there"
                missing = [f.name for f in self._columns.values() if f.name not in reader.schema.names]
                if missing:
                    yield file.path, f"has no column {missing[0]!r}"
                for row in file.rows.tolist():
                    self._place(file, places, row)
            except (CorruptFileError, MissingFileError) as error:
                yield file.path, error.message

    def off_the_clock(self, fps: float, /) -> Iterator[tuple[str, str, str, int, int]]:
        """What else would be read where frames are sought by `timestamp`, as the official package does.

        Steps count in the order of their rows here. Files that cannot be read are left to `check`.

        Args:
            fps: Of the dataset.

        Yields:
            (file, column, what is wrong, episode, step): `frame_index` does not count from 0 on, or `timestamp` is half
            a frame or more away from it.
        """
        for number, file in enumerate(self._files):
            try:
                reader, places = self._opened(number)
                spans = [(int(self._numbers[row]), *self._place(file, places, row)) for row in file.rows.tolist()]
                named = [name for name in (_FRAME, _TIME) if name in reader.schema.names]
                parts = (
                    [[_reals(column) for column in batch.columns] for batch in reader.batches(named)] if named else []
                )
            except (CorruptFileError, MissingFileError, pa.ArrowException):
                continue
            columns = {name: np.concatenate([part[at] for part in parts]) for at, name in enumerate(named) if parts}
            for episode, start, stop in spans:
                counted = np.arange(stop - start)
                for name, values in columns.items():
                    frames = values[start:stop] * (fps if name == _TIME else 1)
                    wrong = np.flatnonzero(~(np.abs(frames - counted) < _HALF))  # NaN is none either
                    if wrong.size:
                        step = int(wrong[0])
                        text = f"{wrong.size} steps of episode {episode} have another {name} than their place says"
                        yield file.path, name, f"{text}: {values[start + step]:g} at step {step}", episode, step

    def _opened(self, number: int) -> tuple[ParquetReader | FrameRowsReader, dict[int, tuple[int, int]]]:
        """A file, and where each episode lies in it: (first row, one behind the last)."""
        if self._open is None or self._open[0] != number:
            self.close()
            file = self._files[number]
            reader = file.open()
            self._open = (number, reader, self._runs(file, reader))
        return self._open[1], self._open[2]

    def _runs(self, file: DataFile, reader: ParquetReader | FrameRowsReader) -> dict[int, tuple[int, int]]:
        if EPISODE not in reader.schema.names:
            if file.alone:
                return {int(self._numbers[file.rows[0]]): (0, reader.rows)}
            raise _damaged(file, f"has no column {EPISODE!r}, which says whose steps its rows are")
        parts = [np.zeros(0, np.int64)]
        for batch in reader.batches([EPISODE]):
            column = batch.column(0)
            if column.null_count or not pa.types.is_integer(column.type):
                raise _damaged(file, f"{EPISODE!r} is not a whole number in each row")
            parts.append(column.to_numpy(zero_copy_only=False).astype(np.int64))
        numbers = np.concatenate(parts)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1]) if len(numbers) else np.zeros(0, np.int64)
        stops = np.append(starts[1:], len(numbers))
        runs: dict[int, tuple[int, int]] = {}
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            number = int(numbers[start])
            if number in runs:
                raise _damaged(file, f"the steps of episode {number} do not lie together")
            runs[number] = (start, stop)
        return runs

    def _place(self, file: DataFile, places: Mapping[int, tuple[int, int]], row: int) -> tuple[int, int]:
        number, expected = int(self._numbers[row]), int(self._lengths[row])
        start, stop = places.get(number, (0, 0))
        if stop - start != expected:
            raise _damaged(file, f"has {stop - start} steps of episode {number}, whose length is {expected}")
        return start, stop

    def _steps(self, wanted: list[str], schema: pa.Schema, rows: Ints) -> dict[str, pa.Array]:
        parts: dict[str, list[pa.Array]] = {name: [] for name in wanted}
        at = 0
        while at < len(rows):
            number = int(self._file[rows[at]])
            stop = at + 1
            while stop < len(rows) and self._file[rows[stop]] == number:
                stop += 1
            for name, values in self._of_file(number, wanted, schema, rows[at:stop]).items():
                parts[name].append(values)
            at = stop
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(self._lengths[rows], out=offsets[1:])
        if offsets[-1] >= 1 << 31:
            raise CorruptFileError(f"{self.location}: {offsets[-1]:,} steps are more than an Arrow list holds.")
        result = {}
        for name, values in parts.items():
            kind = schema.field(name).type
            joined = pa.concat_arrays(values) if values else pa.array([], kind.value_type)
            result[name] = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), joined, type=kind)
        return result

    def _of_file(self, number: int, wanted: list[str], schema: pa.Schema, rows: Ints) -> dict[str, pa.Array]:
        """The steps of some episodes of one file, end to end, by column."""
        file = self._files[number]
        reader, places = self._opened(number)
        missing = [self._columns[name].name for name in wanted if self._columns[name].name not in reader.schema.names]
        if missing:
            raise _damaged(file, f"has no column {missing[0]!r}, which meta/info.json declares", leave_out=missing[0])
        spans = [self._place(file, places, row) for row in rows.tolist()]
        whole = bool(spans) and spans[0][0] == 0 and spans[-1][1] == reader.rows
        in_order = all(one[1] == two[0] for one, two in pairwise(spans))
        frames = None if whole and in_order else np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in spans])
        features = [self._columns[name] for name in wanted]
        batches = list(reader.batches([feature.name for feature in features], rows=frames))
        count = sum(b - a for a, b in spans)
        values = {}
        for place, (name, feature) in enumerate(zip(wanted, features, strict=True)):
            chunks = [_plain(batch.column(place)) for batch in batches]
            kind = schema.field(name).type.value_type
            try:
                values[name] = _joined([self._cells(chunk, feature, kind) for chunk in chunks], kind, count)
            except (_MisfitError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                said = error.args[0] if error.args else type(error).__name__
                raise _damaged(file, f"{feature.name!r}: {said}", leave_out=feature.name) from None
        return values

    def _cells(self, cells: pa.Array, feature: LeRobotFeature, kind: pa.DataType) -> pa.Array:
        if feature.stored == "numbers":
            return _numbers(cells, feature, kind)
        if feature.stored == "image":
            return self._images(cells)
        return _told(cells, kind) if feature.stored == "language" else cells.cast(kind)

    def _images(self, cells: pa.Array) -> pa.Array:
        if not pa.types.is_struct(cells.type):
            return cells.cast(pa.binary())
        names = {field.name for field in cells.type}
        held = (
            pc.struct_field(cells, "bytes").cast(pa.binary()) if "bytes" in names else pa.nulls(len(cells), pa.binary())
        )
        if not held.null_count or "path" not in names:
            return held
        named = pc.struct_field(cells, "path").to_pylist()
        return pa.array(
            [
                data if data is not None or path is None else self._pictures.read(path)
                for data, path in zip(held.to_pylist(), named, strict=True)
            ],
            pa.binary(),
        )


def _reals(cells: pa.Array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """[steps] as floats; NaN for null."""
    return np.asarray(_plain(cells).cast(pa.float64()).to_numpy(zero_copy_only=False), np.float64)


class _MisfitError(ValueError):
    """Cells are not what the feature declares."""


def _damaged(file: DataFile, text: str, *, leave_out: str = "") -> CorruptFileError:
    hint = "Fetch the file again; `seqlake validate --depth rows` lists all that is wrong."
    if leave_out:
        hint = f"If the file cannot be mended, leave the feature out: scan(..., without=[{leave_out!r}])."
    return CorruptFileError(in_line(f"{file.path}: {text}."), path=file.path, hint=hint)


def _plain(cells: pa.Array) -> pa.Array:
    """Without types of other packages, which are there only where those are imported."""
    return cells.storage if isinstance(cells, pa.ExtensionArray) else cells


def _numbers(cells: pa.Array, feature: LeRobotFeature, kind: pa.DataType) -> pa.Array:
    """[steps] numbers, or lists of them, of the type that the feature declares."""
    levels, _ = list_levels(cells.type)
    shape = feature.shape if levels == len(feature.shape) else (feature.size,) if levels == 1 else ()
    if levels != len(shape) and (levels or feature.size != 1):
        raise _MisfitError(f"steps are {cells.type}, where the shape {list(feature.shape)} is declared")
    for size in shape if levels else ():
        if cells.null_count:
            raise _MisfitError(f"{cells.null_count} steps have no value")
        lengths = pc.min_max(pc.list_value_length(cells)).as_py()
        if len(cells) and {lengths["min"], lengths["max"]} != {size}:
            raise _MisfitError(f"steps have {lengths['min']} to {lengths['max']} numbers, where {size} are declared")
        cells = cells.flatten()
    if cells.null_count:
        raise _MisfitError(f"{cells.null_count} numbers are missing")
    number = kind.value_type if is_list(kind) else kind
    if cells.type != number:
        lossy = pa.types.is_floating(cells.type) and pa.types.is_floating(number)  # as the official reader casts
        cells = cells.cast(number, safe=not lossy)
    return cells if not is_list(kind) else pa.FixedSizeListArray.from_arrays(cells, type=kind)


def _told(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    """[steps] what is said of each: few and deep, so Arrow's own casts of such types are done without."""
    try:
        return pa.array(cells.to_pylist(), kind)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _MisfitError(f"steps are {cells.type}, where {kind} is expected: {error}") from None


def _joined(chunks: list[pa.Array], kind: pa.DataType, count: int) -> pa.Array:
    joined = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], kind)
    if len(joined) != count:
        raise _MisfitError(f"{len(joined)} steps were read of {count}")
    return joined


def _one(column: pa.ChunkedArray, name: str) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        raise CorruptFileError(f"Cells of column {name!r} are above 2 GiB, which Arrow does not hold.")
    return joined


def step_type(feature: LeRobotFeature, stored: pa.DataType | None, /) -> pa.DataType | None:
    """The Arrow type of one step of a feature; None where it cannot be read.

    Args:
        feature: The feature.
        stored: The type that the data files have; None where no file could be looked at.
    """
    if feature.stored == "numbers":
        number = pa.from_numpy_dtype(np.dtype(feature.dtype))
        scalar = feature.name in BOOKKEEPING or feature.info.get(SCALAR) is True
        return number if scalar and feature.size == 1 else pa.list_(number, feature.size)
    if feature.stored == "text":
        return pa.string()
    if feature.stored == "image":
        return pa.binary()
    if feature.stored == "language" and stored is not None:
        return _spoken(without_views(stored))
    return None


def _spoken(kind: pa.DataType, *, name: str = "") -> pa.DataType:
    """A type of language columns, with texts where a file that has none says nothing of their type."""
    if pa.types.is_null(kind):
        return pa.list_(pa.string()) if name == "tool_calls" else pa.string()
    if isinstance(kind, pa.BaseExtensionType):
        return _spoken(kind.storage_type)
    if is_list(kind):
        return pa.list_(_spoken(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _spoken(field.type, name=field.name)) for field in kind])
    return kind


def ids_of(numbers: Ints, /) -> pa.Array:
    """[rows] the ids of episodes."""
    return pa.array([episode_id(number) for number in numbers.tolist()], pa.string())
