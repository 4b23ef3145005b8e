"""Reads the files of samples by range, and decodes those whose endings say how."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import PartBlob
from seqlake.formats.webdataset.columns import head
from seqlake.shards.scanned import ScannedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.formats.webdataset.columns import TarColumn, TarColumns
    from seqlake.formats.webdataset.survey import TarShard
    from seqlake.protocols import Blob, Ints


class TarReader(ScannedReader):
    """The samples of one shard.

    Args:
        shard: What the survey learned of it; one that changed since is `ShardChangedError` when it is read.
        columns: All columns.
        types: The logical Arrow schema.
    """

    def __init__(self, shard: TarShard, columns: TarColumns, types: pa.Schema, /) -> None:
        super().__init__(types, len(shard.keys), location=shard.blob.location, sizes=shard.sizes)
        self._shard = shard
        self._columns = columns

    @cached_property
    def _blob(self) -> Blob:
        return self._shard.opened()

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some samples; CorruptFileError for a file that is not what its ending says."""
        return [self._cells(field, rows) for field in schema]

    def held(self, column: str, rows: Ints, /) -> list[tuple[str, Blob] | None] | None:
        """Files of media where they lie; None for columns of another kind."""
        self.type_of(column)
        one = self._columns.chosen[column]
        if one.role != "bytes":
            return None
        places = self._places(one.endings[0], rows)
        return [
            None
            if start < 0
            else (
                f"{self._shard.keys[row]}.{one.endings[0]}",
                PartBlob(self._blob, start, start + size, f"{self.location}/{self._shard.keys[row]}.{one.endings[0]}"),
            )
            for row, (start, size) in zip(rows.tolist(), places, strict=True)
        ]

    def verbatim(self, column: str, rows: Ints, /) -> list[memoryview] | None:
        """Bytes of files where they lie in memory; None where they do not, or a sample has none."""
        self.type_of(column)
        one, view = self._columns.chosen[column], self._blob.view()
        if one.role != "bytes" or view is None:
            return None
        places = self._places(one.endings[0], rows)
        return None if any(start < 0 for start, _ in places) else [view[at : at + size] for at, size in places]

    def _places(self, ending: str, rows: Ints) -> list[tuple[int, int]]:
        known = self._shard.files.get(ending)
        if known is None:
            return [(-1, -1)] * len(rows)
        return list(zip(known[0][rows].tolist(), known[1][rows].tolist(), strict=True))

    def _files(self, ending: str, rows: Ints) -> list[bytes | None]:
        places = self._places(ending, rows)
        spans = [(start, start + size) for start, size in places if start >= 0]
        edges = np.array(spans, np.int64).reshape(-1, 2)
        data = iter(self._blob.ranges(edges[:, 0], edges[:, 1]))
        return [None if start < 0 else bytes(next(data)) for start, _ in places]

    def _cells(self, field: pa.Field, rows: Ints) -> pa.Array:
        one, shard = self._columns.chosen[field.name], self._shard
        if one.role == "key":
            return pa.array([shard.keys[row] for row in rows.tolist()], pa.string())
        if one.role in {"url", "split"}:
            return pa.array([shard.name if one.role == "url" else shard.split] * len(rows), pa.string())
        if one.role == "part":
            return pa.array([self._part(shard.keys[row], one, field.type) for row in rows.tolist()], field.type)
        if one.role == "frames":
            cells: list[Any] = self._frames(one, rows)
        else:
            files = self._files(one.endings[0], rows)
            decode = self._decoder(one, field.type)
            cells = [
                None if data is None else self._decoded(decode, data, row, one)
                for row, data in zip(rows.tolist(), files, strict=True)
            ]
        if one.role == "array" and pa.types.is_list(field.type):
            return _listed(cells, field.type)
        try:
            array = pa.array(cells, field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise CorruptFileError(f"{self.location}: {field.name!r} cannot be {field.type}: {error}.") from error
        if isinstance(array, pa.ChunkedArray):
            raise CorruptFileError(f"{self.location}: a cell of {field.name!r} is above 2 GiB.", path=self.location)
        return array

    def _part(self, key: str, one: TarColumn, kind: pa.DataType) -> Any:
        assert self._columns.pattern is not None
        match = self._columns.pattern.fullmatch(key)
        text = None if match is None else match[one.path[0]]
        return int(text) if text is not None and pa.types.is_integer(kind) else text

    def _frames(self, one: TarColumn, rows: Ints) -> list[list[bytes | None] | None]:
        """Numbered pictures; a sample ends with its last one, and what lies before and is missing is null."""
        columns = [self._files(ending, rows) for ending in one.endings]
        cells: list[list[bytes | None] | None] = []
        for row in range(len(rows)):
            pictures = [column[row] for column in columns]
            while pictures and pictures[-1] is None:
                pictures.pop()
            cells.append(pictures or None)
        return cells

    def _decoder(self, one: TarColumn, kind: pa.DataType) -> Callable[[bytes], Any]:
        if one.role == "whole":
            return int
        if one.role == "json":
            return _json_text
        if one.role == "array":
            return lambda data: _array(data, kind)
        if one.role == "field":
            text = pa.types.is_string(kind)
            return lambda data: _field(data, one.path, text=text)
        return bytes if one.role == "bytes" else lambda data: str(data, "utf-8")

    def _decoded(self, decode: Callable[[bytes], Any], data: bytes, row: int, one: TarColumn) -> Any:
        try:
            return decode(data)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            name = f"{self._shard.keys[row]}.{one.endings[0]}"
            raise CorruptFileError(
                f"{self.location}: {name} is not what its ending says: {error!r:.200}.",
                path=self.location,
                hint=f"Leave such files out: without=[{one.endings[0]!r}].",
            ) from error


def _json_text(data: bytes) -> str:
    text = str(data, "utf-8")
    json.loads(text)
    return text


def field_of(data: bytes, path: Sequence[str], place: str, /) -> Any:
    """A field of a JSON object, or of objects in it; None where there is none.

    Raises:
        CorruptFileError: It is no JSON.
    """
    try:
        return _walked(data, path)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{place}: a file is no JSON: {error!r:.200}.") from error


def _walked(data: bytes, path: Sequence[str]) -> Any:
    value = json.loads(data)
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _field(data: bytes, path: Sequence[str], *, text: bool) -> Any:
    value = _walked(data, path)
    return json.dumps(value) if text and value is not None and not isinstance(value, str) else value


def _array(data: bytes, kind: pa.DataType) -> Any:
    """The values of a file of numpy, [n], with how many numbers a step has; pickles are never loaded."""
    known = head(data)
    if known is None:
        raise ValueError("it is no array of numbers in numpy's format")
    dtype, shape, turned, start = known
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if len(data) - start != count * dtype.itemsize:
        raise ValueError(f"{list(shape)} of {dtype} have {count * dtype.itemsize} bytes, found {len(data) - start}")
    values = np.frombuffer(data, dtype, count, start).reshape(shape, order="F" if turned else "C")
    values = values.astype(np.uint8 if dtype.kind == "b" else dtype.newbyteorder("="), copy=False)
    return values[()] if pa.types.is_primitive(kind) else values


def _listed(cells: list[Any], kind: pa.DataType) -> pa.Array:
    """Arrays as lists of steps."""
    lengths = np.array([0 if cell is None else len(cell) for cell in cells], np.int64)
    mask = pa.array([cell is None for cell in cells]) if any(cell is None for cell in cells) else None
    ends = np.concatenate([[0], np.cumsum(lengths)])
    nested = pa.types.is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type)
    number = kind.value_type.value_type if nested else kind.value_type
    flat = [np.ascontiguousarray(cell).reshape(-1) for cell in cells if cell is not None]
    values = pa.array(np.concatenate(flat), number) if flat else pa.array([], number)
    if nested:
        if len(values) != int(ends[-1]) * kind.value_type.list_size:
            raise CorruptFileError(
                f"{len(values)} numbers are not {int(ends[-1])} steps of {kind.value_type.list_size}."
            )
        values = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind, mask=mask)
