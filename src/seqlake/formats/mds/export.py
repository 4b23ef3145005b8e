"""How the columns of a dataset are written as MDS."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.formats._streaming.creating import Settings
from seqlake.formats._streaming.exporting import Exported
from seqlake.formats.mds.packing import Packer
from seqlake.spec.schema import is_binary, is_list, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Column, Schema

_NUMBERS = {"halffloat": "float16", "float": "float32", "double": "float64"}


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> Packer:
    """The packer of some columns."""
    return Packer(Settings.of("mds", settings).config("mds", columns), {})


def plan(schema: Schema, columns: Mapping[str, str], /) -> dict[str, Exported]:
    """How each column is written.

    Args:
        schema: The dataset's.
        columns: Encodings that the user chose.
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
    if column.category == "frames" and is_binary(kind.value_type):
        return Exported(encoding=f"list[{_image(column) or 'jpeg'}]", values=_files)
    if column.category == "temporal" and column.nested and column.shape is not None:
        return Exported(encoding=f"ndarray:{column.dtype}", values=partial(_arrays, shape=column.shape))
    if is_list(kind) and is_number(kind.value_type) and not pa.types.is_boolean(kind.value_type):
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
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
    made: list[Any] = []
    for cell in array:
        if not cell.is_valid:
            made.append(None)
            continue
        values = cell.values
        steps = len(values)
        while is_list(values.type):
            values = values.flatten()
        if values.null_count:
            raise SchemaMismatchError("A cell has nulls among its numbers, which an array cannot hold.")
        made.append(values.to_numpy(zero_copy_only=False).reshape(steps, *shape))
    return made


def _files(array: pa.Array) -> list[Any]:
    """Lists of image files as the bytes of a cell: they stay what they are, undecoded."""
    from seqlake.formats.mds.images import listed

    return [None if cell is None else listed(cell, reserved=True) for cell in array.to_pylist()]
