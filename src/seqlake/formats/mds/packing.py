"""Writes MDS: columns of a dataset as values, samples and shards, byte for byte as the official writer does."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.formats._streaming.cells import CellError, absent
from seqlake.formats._streaming.exporting import Exported
from seqlake.formats._streaming.packing import WriterSettings, offsets
from seqlake.formats.mds.encodings import PICKLE, PICKLED, encoding, image_list
from seqlake.spec.schema import dtype_of, is_binary, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.formats._streaming.cells import CellEncoding
    from seqlake.formats._streaming.index import Config
    from seqlake.spec.schema import Column, Schema

_REFUSALS = (CellError, KeyError, ValueError, TypeError, OverflowError, AttributeError, struct.error)
_NUMBERS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> MdsPacker:
    """The packer of some columns."""
    return MdsPacker(WriterSettings.of("mds", settings).config("mds", columns), {})


def plan(schema: Schema, columns: Mapping[str, str], _settings: Mapping[str, Any], /) -> dict[str, Exported]:
    """How each column is written.

    Args:
        schema: The dataset's.
        columns: Encodings that the user chose.
        _settings: Not used: they are of shards alone.
    """
    return {name: _exported(schema[name], columns.get(name)) for name in schema.names}


def _exported(column: Column, chosen: str | None) -> Exported:
    kind = column.logical
    if chosen is not None:
        return Exported(encoding=chosen, values=_json if chosen == "json" and pa.types.is_nested(kind) else _python)
    if column.raw:
        return Exported(encoding="bytes", values=_python)
    if pa.types.is_boolean(kind):
        return Exported(encoding="uint8", values=_python)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Exported(encoding=_NUMBERS.get(str(kind), str(kind)), values=_python)
    if is_text(kind):
        return Exported(encoding="str", values=_python)
    if is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return Exported(encoding=_image(column) or "bytes", values=_python)
    if pa.types.is_decimal(kind):
        return Exported(encoding="str_decimal", values=_python)
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return Exported(encoding="str", values=_texts)
    if pa.types.is_duration(kind):
        return Exported(encoding="int64", values=lambda array: array.cast(pa.int64()).to_pylist())
    return _nested(column)


def _nested(column: Column) -> Exported:
    kind = column.logical
    if column.inline:
        return Exported(encoding=_image(column) or "bytes", values=_bytes_of, holds_files=True)
    if column.category == "frames" and is_binary(kind.value_type):
        return Exported(encoding=f"list[{_image(column) or 'jpeg'}]", values=_files)
    if column.category == "temporal" and column.nested and column.shape is not None:
        return Exported(encoding=f"ndarray:{column.dtype}", values=partial(_arrays, shape=column.shape))
    if is_list(kind) and is_number(kind.value_type) and not pa.types.is_boolean(kind.value_type):
        dtype = dtype_of(kind.value_type)
        dim = column.dim if column.category == "vector" else None
        shape = f":{dim}" if dim is not None else ""
        return Exported(encoding=f"ndarray:{dtype}{shape}", values=partial(_arrays, shape=()))
    return Exported(encoding="json", values=_json)


def _image(column: Column) -> str | None:
    if column.type is None or column.type.type != "image":
        return None
    return "png" if column.type.get("format") == "png" else "jpeg"


def _python(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def _bytes_of(array: pa.Array) -> list[Any]:
    """The bytes of cells `{bytes, path}`."""
    return [None if cell is None else cell["bytes"] for cell in array.to_pylist()]


def _texts(array: pa.Array) -> list[Any]:
    return list(array.cast(pa.string()).to_pylist())


def _json(array: pa.Array) -> list[Any]:
    """JSON as bytes, which are stored as they are."""
    try:
        return [None if value is None else json.dumps(value).encode() for value in array.to_pylist()]
    except TypeError as error:
        raise SchemaMismatchError(
            f"{array.type} cannot be JSON ({error}).", hint="Leave the column out with select()."
        ) from error


def _arrays(array: pa.Array, *, shape: tuple[int, ...]) -> list[Any]:
    """Numpy arrays [T, *shape]."""
    cells: list[Any] = []
    for cell in array:
        if not cell.is_valid:
            cells.append(None)
            continue
        values = cell.values
        steps = len(values)
        while is_list(values.type):
            values = values.flatten()
        if values.null_count:
            raise SchemaMismatchError("A cell has nulls among its numbers, which an array cannot hold.")
        cells.append(values.to_numpy(zero_copy_only=False).reshape(steps, *shape))
    return cells


def _files(array: pa.Array) -> list[Any]:
    """Lists of image files as the bytes of a cell: they stay what they are, undecoded."""
    return [None if cell is None else image_list(cell, reserved=True) for cell in array.to_pylist()]


class MdsPacker:
    """Packs samples; see `_streaming.packing.Packer`.

    Args:
        config: Columns and settings; sorted and with sizes afterwards.
        given: The encodings of the user, by name.

    Raises:
        InvalidMetadataError: An encoding that is not known.
        ValueError: One that cannot be written.
    """

    each = 4

    def __init__(self, config: Config, given: Mapping[str, CellEncoding], /) -> None:
        columns = tuple(sorted(config.columns))
        kinds = [given.get(name) or (PICKLED if name == PICKLE else encoding(name)) for _, name in columns]
        for (column, name), kind in zip(columns, kinds, strict=True):
            if kind.encode is None:
                raise ValueError(f"Column {column!r}: the encoding {name!r} has no `encode`.")
        self.config: Config = replace(config, columns=columns, sizes=tuple(kind.size for kind in kinds))
        self._header = self.config.header()
        self.base: int = 8 + len(self._header)
        self._plan: list[tuple[str, Any, int | None]] = [
            (column, kind.encode, kind.size) for (column, _), kind in zip(columns, kinds, strict=True)
        ]
        self._pack = struct.Struct(f"<{sum(kind.size is None for kind in kinds)}I").pack
        self.sample: Callable[[Mapping[str, Any]], bytes] = _unrolled(self._plan, self._pack, self._slowly)

    def _slowly(self, sample: Mapping[str, Any], /) -> bytes:
        """A sample that `sample` could not encode: this says why."""
        heads: list[int] = []
        parts: list[bytes] = [b""]
        column = ""
        try:
            for column, encode, size in self._plan:
                value = sample[column]
                cell: bytes = value if isinstance(value, bytes) else encode(value)
                if size is None:
                    heads.append(len(cell))
                elif size != len(cell):
                    raise CellError(f"{len(cell)} bytes are given where {size} are stored")
                parts.append(cell)
        except _REFUSALS as error:
            raise CellError(_told(sample, column, error)) from error
        parts[0] = self._pack(*heads)
        return b"".join(parts)

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, None]:
        """The files of a shard: its data, and the second file where there is one."""
        first = 4 * (len(samples) + 2) + len(self._header)
        return b"".join([offsets([len(one) for one in samples], first), self._header, *samples]), None


def _unrolled(
    plan: Sequence[tuple[str, Any, int | None]],
    pack: Callable[..., bytes],
    slowly: Callable[[Mapping[str, Any]], bytes],
) -> Callable[[Mapping[str, Any]], bytes]:
    """The loop over columns written out, as `dataclasses` writes out methods: a sample is a microsecond of Python.

    Nothing of a column's name becomes source: names, encoders and sizes are the function's globals.
    """
    known: dict[str, Any] = {"pack": pack, "join": b"".join, "slowly": slowly, "REFUSALS": _REFUSALS}
    lines = ["def sample(sample, /):", " try:"]
    for number, (column, encode, size) in enumerate(plan):
        known |= {f"name{number}": column, f"encode{number}": encode}
        cell = f"cell{number}"
        lines += [f"  {cell} = sample[name{number}]", f"  if not isinstance({cell}, bytes):"]
        lines += [f"   {cell} = encode{number}({cell})"]
        if size is not None:
            lines += [f"  if len({cell}) != {size}:", "   return slowly(sample)"]
    lengths = ", ".join(f"len(cell{number})" for number, (_, _, size) in enumerate(plan) if size is None)
    cells = ", ".join(f"cell{number}" for number in range(len(plan)))
    lines += [f"  return join((pack({lengths}), {cells}))", " except REFUSALS:", "  return slowly(sample)"]
    exec("\n".join(lines), known)  # noqa: S102 - made of numbers alone, see above
    function: Callable[[Mapping[str, Any]], bytes] = known["sample"]
    return function


def _told(sample: Mapping[str, Any], column: str, error: Exception) -> str:
    if column not in sample:
        return absent(column, sample)
    return f"column {column!r}: {error}"
