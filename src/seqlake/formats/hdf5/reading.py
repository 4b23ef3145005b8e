"""Reads the episodes of one HDF5 file: flat where numbers lie raw, else by the steps that are asked for."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, in_line
from seqlake.formats.hdf5.columns import pixels, plain
from seqlake.formats.hdf5.nodes import Hdf5File, StoredArray
from seqlake.protocols import Flat
from seqlake.shards.scanned import ScannedReader
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.formats.hdf5.columns import Hdf5Column
    from seqlake.protocols import Blob, Ints

SPLIT = "split"
_MOST = (1 << 31) - 1  # bytes of the pictures of one cell, as Arrow counts them
_SLICE = 64 << 20  # bytes of pictures that are read together
_ENCODED = 64 << 10  # bytes of an encoded picture, as long as nobody has looked


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Episode:
    """One row.

    Attributes:
        id: Of its sequence.
        values: What it calls the names in paths: `{episode}`, `{stem}`, ...
        split: Its split; None where it has none.
        start, stop: Its steps, where data sets hold those of all episodes; `stop` is None where each has its own.
    """

    id: str
    values: Mapping[str, str] = field(default_factory=dict)
    split: str | None = None
    start: int = 0
    stop: int | None = None


class Hdf5Reader(ScannedReader):
    """Reads some episodes of one file: a `ShardReader`, `StepReader` and `HasLengths`.

    Args:
        types: The logical Arrow schema.
        blob: The file.
        name: Its path below the root.
        episodes: The rows.
        columns: All columns but the id and the split, by name.
        files: Paths of files beside that are there; None: not asked.
    """

    def __init__(
        self,
        types: pa.Schema,
        blob: Blob,
        name: str,
        episodes: Sequence[Hdf5Episode],
        columns: Mapping[str, Hdf5Column],
        files: frozenset[str] = frozenset(),
        /,
    ) -> None:
        super().__init__(types, len(episodes), location=blob.location)
        self._blob = blob
        self._name = name
        self._episodes = episodes
        self._columns = columns
        self._files = files
        self._opened: Hdf5File | None = None
        self._counted: dict[tuple[int, str], int] = {}

    @property
    def file(self) -> Hdf5File:
        """The file, opened when it is first asked for."""
        if self._opened is None:
            self._opened = Hdf5File(self._blob, self._name)
        return self._opened

    def close(self) -> None:
        """Close the file for good."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # ---- where steps lie

    def array(self, row: int, column: Hdf5Column, /) -> StoredArray | None:
        """The data set behind a cell, compared with the type of its column; None where the episode has none.

        Raises:
            CorruptFileError: It is of another type or shape than the column.
        """
        path = column.source.filled(self._episodes[row].values)
        array = None if path is None else self.file.array(path)
        if array is None:
            return None
        if column.role in {"signal", "pixels", "vector"}:
            dtype = np.dtype(column.dtype)
            fits = array.kind == "number" and array.dtype is not None and np.can_cast(array.dtype, dtype, "safe")
            shape = column.shape if column.role == "signal" else array.step
            if column.role == "pixels":
                fits = fits and array.dtype == dtype and pixels(array) is not None
            if not fits or array.step != shape:
                expected = f"{dtype} {['T', *column.shape]}".replace("'", "")
                raise self._misfit(row, column, f"is {array.dtype or array.kind} {list(array.shape)}, not {expected}")
        if column.stepped and not array.shape:
            raise self._misfit(row, column, "is one value, and has no steps")
        stop = self._episodes[row].stop
        if column.stepped and stop is not None and stop > array.shape[0]:
            raise self._misfit(row, column, f"has {array.shape[0]} steps, and its episodes end at {stop}")
        return array

    def _misfit(self, row: int, column: Hdf5Column, text: str) -> CorruptFileError:
        episode = self._episodes[row]
        return CorruptFileError(
            in_line(f"{self._name}: episode {episode.id!r}: {column.source.filled(episode.values)!r} {text}."),
            path=self._blob.location,
            hint=f"Mend or remove the file, or leave the column out: scan(..., without=[{str(column.source)!r}]).",
        )

    def _span(self, row: int, array: StoredArray) -> tuple[int, int]:
        episode = self._episodes[row]
        return (0, array.shape[0]) if episode.stop is None else (episode.start, episode.stop)

    def length(self, row: int, column: Hdf5Column, /) -> int:
        """Steps of a cell; -1 where it is null."""
        count = self._counted.get((row, column.name))
        if count is None:
            array = self.array(row, column)
            start, stop = (0, -1) if array is None else self._span(row, array)
            count = self._counted[row, column.name] = stop - start
        return count

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column with steps, as the data sets are shaped; None for others."""
        known = self._columns.get(column)
        if known is None or not known.stepped:
            return None
        return np.array([self.length(row, known) for row in range(self.count)], np.int64)

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding, where every episode's numbers lie raw and alike."""
        self.type_of(column)
        known = self._columns.get(column)
        if known is None or known.role != "signal" or known.dtype == "bool":
            return None
        starts, steps = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        stored: set[np.dtype[Any]] = set()
        for row in range(self.count):
            array = self.array(row, known)
            if array is None:
                steps[row] = -1
                continue
            start, stop = self._span(row, array)
            steps[row] = stop - start
            if stop > start:
                if array.offset is None or array.stored is None:
                    return None
                stored.add(array.stored)
                starts[row] = array.offset + start * int(np.prod(array.step, dtype=np.int64)) * array.stored.itemsize
        if len(stored) > 1:
            return None
        dtype = stored.pop() if stored else np.dtype(known.dtype)
        return Flat(
            blob=self._blob,
            start=starts,
            steps=steps,
            stride=int(np.prod(known.shape, dtype=np.int64)) * dtype.itemsize,
            stored=dtype,
            dtype=np.dtype(known.dtype),
            shape=known.shape,
        )

    # ---- steps

    def slice(self, column: str, row: int, start: int, stop: int, /) -> NDArray[Any]:
        """Some steps of one cell: [stop - start, ...] numbers, or encoded pictures and texts as objects.

        Raises:
            SchemaMismatchError: No such column, or one without steps.
            IndexError: Steps that the cell does not have.
            CorruptFileError: They cannot be read.
        """
        self.type_of(column)
        known = self._columns.get(column)
        array = None if known is None or not known.stepped else self.array(row, known)
        if known is None or array is None:
            raise IndexError(f"Expected a cell with steps, found none in row {row} of column {column!r}.")
        first, end = self._span(row, array)
        if not 0 <= start <= stop <= end - first:
            raise IndexError(f"Expected steps of 0 to {end - first}, found {start} to {stop}.")
        return self._read(known, array, first + start, first + stop)

    def _read(self, column: Hdf5Column, array: StoredArray, start: int, stop: int) -> NDArray[Any]:
        if column.role == "pixels":
            return as_objects([one.tobytes() for one in self._pictures(array, start, stop)])
        values = self.file.steps(array, start, stop)
        if column.role == "signal":
            return values.astype(column.dtype, copy=False)
        if array.kind == "number":  # each filled up with zeros, with which no picture's file ends
            return as_objects([one.tobytes().rstrip(b"\0") for one in values])
        if column.role == "texts":
            with self.file.reading(f"{array.path!r}"):
                return as_objects([bytes(one).decode() for one in values])
        return as_objects([bytes(one) for one in values])

    def _pictures(self, array: StoredArray, start: int, stop: int) -> NDArray[np.uint8]:
        """[n, bytes] raw pictures, each a head of PPM or PGM and its pixels."""
        size = pixels(array)
        assert size is not None
        assert array.dtype is not None
        height, width, channels = size
        head = (
            f"P{6 if channels == 3 else 5}\n{width} {height}\n{255 if array.dtype.itemsize == 1 else 65535}\n".encode()
        )
        data = np.empty((stop - start, len(head) + array.step_bytes), np.uint8)
        data[:, : len(head)] = np.frombuffer(head, np.uint8)
        at_once = max(1, _SLICE // max(1, data.shape[1]))
        for begin in range(start, stop, at_once):
            values = self.file.steps(array, begin, min(begin + at_once, stop))
            if len(array.shape) == 4 and array.step[2] != channels:
                values = values.transpose(0, 2, 3, 1)  # channels first
            big = np.ascontiguousarray(values.astype(array.dtype.newbyteorder(">"), copy=False))
            pieces = big.reshape(len(values), -1).view(np.uint8)
            data[begin - start : begin - start + len(values), len(head) :] = pieces
        return data

    # ---- cells

    def parts(self, rows: Ints, columns: Sequence[str], /) -> Iterator[Ints]:
        """Cuts rows into runs that make one batch each, by the bytes of the columns that are asked for."""
        sizes, asked = np.zeros(self.count, np.int64), np.unique(rows)
        for known in (self._columns[name] for name in columns if name in self._columns):
            if known.stepped:
                width = known.step_bytes if known.role != "encoded" else _ENCODED
                counts = [max(0, self.length(row, known)) for row in asked.tolist()]
                sizes[asked] += np.array(counts, np.int64) * width
        self.sizes = sizes
        return super().parts(rows, columns)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some episodes.

        Raises:
            CorruptFileError: They cannot be read, or are not what their columns say.
        """
        return [self._cells(one.name, one.type, rows) for one in schema]

    def _cells(self, name: str, kind: pa.DataType, rows: Ints) -> pa.Array:
        if name == ID:
            return pa.array([self._episodes[row].id for row in rows.tolist()], kind)
        if name == SPLIT and name not in self._columns:
            return pa.array([self._episodes[row].split for row in rows.tolist()], kind)
        column = self._columns[name]
        if not column.stepped:
            return self._values(column, kind, rows)
        return self._steps(column, kind, rows)

    def _steps(self, column: Hdf5Column, kind: pa.DataType, rows: Ints) -> pa.Array:
        lengths, parts = np.zeros(len(rows), np.int64), []
        for place, row in enumerate(rows.tolist()):
            array = self.array(row, column)
            if array is None:
                lengths[place] = -1
                continue
            start, stop = self._span(row, array)
            lengths[place] = stop - start
            if column.role == "pixels":
                if (stop - start) * (array.step_bytes + 32) > _MOST:
                    size = (stop - start) * array.step_bytes
                    raise self._misfit(row, column, f"holds {size:,} bytes of pictures, more than one cell can")
                parts.append(_binaries(self._pictures(array, start, stop)))
            else:
                read = self._read(column, array, start, stop)
                parts.append(_inner(read, kind.value_type))
        offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths, 0))])
        if offsets[-1] > _MOST:
            raise CorruptFileError(f"{self._name}: {offsets[-1]:,} steps are more than an Arrow list holds.")
        joined = pa.concat_arrays(parts) if len(parts) > 1 else parts[0] if parts else pa.array([], kind.value_type)
        mask = pa.array(lengths < 0) if (lengths < 0).any() else None
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), joined, type=kind, mask=mask)

    def _values(self, column: Hdf5Column, kind: pa.DataType, rows: Ints) -> pa.Array:
        values = [self.value(row, column) for row in rows.tolist()]
        with self.file.reading(f"{str(column.source)!r}") if column.role != "file" else nullcontext():
            return pa.array(values, kind)

    def value(self, row: int, column: Hdf5Column, /) -> Any:
        """A cell without steps; None where the episode has none."""
        source = column.source
        path = source.filled(self._episodes[row].values)
        if path is None:
            return None
        if source.file:
            return path if path in self._files else None
        if source.attribute:
            return keyed(plain(self.file.attribute(path, source.attribute)), source.key, self._name, str(source))
        array = self.array(row, column)
        if array is None:
            return None
        value = self.file.whole(array)
        if column.role == "list":
            with self.file.reading(f"{path!r}"):
                return [bytes(one).decode() for one in value]
        if array.kind == "bytes" and isinstance(value, np.ndarray):
            return value.tobytes()
        with self.file.reading(f"{path!r}"):
            value = plain(value)
        return value.astype(column.dtype) if isinstance(value, np.ndarray) else value


def as_objects(values: list[Any], /) -> NDArray[Any]:
    """[n] objects, whatever they are."""
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def keyed(value: Any, key: str, name: str, source: str, /) -> Any:
    """What a path of keys leads to in JSON; the value itself where there is none.

    Raises:
        CorruptFileError: It is no JSON.
    """
    if not key or value is None:
        return value
    try:
        held = json.loads(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptFileError(in_line(f"{name}: {source!r} is no JSON: {error}.")) from None
    for part in key.split("."):
        held = held.get(part) if isinstance(held, dict) else None
    if isinstance(held, list) and all(isinstance(one, str) for one in held):
        return "".join(held)  # LIBERO writes a text as a list of its parts
    return held if held is None or isinstance(held, (str, int, float, bool)) else json.dumps(held)


def _inner(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    if values.dtype.hasobject:
        return pa.array(values.tolist(), kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind.value_type), type=kind)
    return pa.array(values, kind)


def _binaries(data: NDArray[np.uint8]) -> pa.Array:
    """[n] values of equally many bytes each, out of the memory where they stand."""
    offsets = (np.arange(len(data) + 1, dtype=np.int64) * data.shape[1]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))])
