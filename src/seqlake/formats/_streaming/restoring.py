"""What the columns of a dataset were before it was exported: kept in the index under our own key, and made again."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import InvalidMetadataError, SchemaMismatchError
from seqlake.formats._streaming.cells import CellError
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Schema, is_binary, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.spec.schema import Column


def described(schema: Schema, /) -> dict[str, Any]:
    """The value of our key: Arrow types, metadata, and which column names a row."""
    stored = pa.schema([pa.field(c.name, c.arrow, c.nullable) for c in schema.values()])
    return {
        "arrow": base64.b64encode(stored.serialize().to_pybytes()).decode(),
        "metadata": json.loads(schema.metadata.to_json()),
        "id": schema.id,
    }


def declared(extension: Mapping[str, Any], /) -> Schema | None:
    """The schema that an index describes; None where it describes none.

    Raises:
        InvalidMetadataError: It is there and cannot be used.
    """
    if "arrow" not in extension:
        return None
    try:
        types = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(extension["arrow"], validate=True)))
        metadata = Metadata.parse(json.dumps(extension["metadata"]))
        return Schema.from_arrow(types, metadata=metadata, id=extension["id"])
    except (ValueError, TypeError, KeyError, pa.ArrowException, OSError, SchemaMismatchError) as error:
        raise InvalidMetadataError(f"The key 'x_seqlake' of index.json cannot be used: {error}.") from error


def restored(array: pa.Array, column: Column, /, *, commas: bool = True) -> pa.Array:
    """Cells as the column had them.

    Args:
        array: As the encoding gives them.
        column: What they were.
        commas: False where semicolons stand for the commas of JSON.

    Raises:
        CellError: They cannot be that.
    """
    kind = column.logical
    if array.type == kind:
        return array
    try:
        if is_list(kind) and is_list(array.type):
            return _lists(array, column)
        if column.inline and is_binary(array.type) and pa.types.is_struct(kind):
            return pa.array([{"bytes": cell} for cell in array.to_pylist()], kind)
        if is_text(array.type) and (is_list(kind) or pa.types.is_nested(kind)):
            texts = [text if commas else text.replace(";", ",") for text in array.to_pylist()]
            return pa.array([json.loads(text) for text in texts], kind)
        if pa.types.is_boolean(kind):
            return pc.not_equal(array, pa.scalar(0, array.type))
        return array.cast(kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise CellError(f"it cannot be {kind} again ({error})") from error


def _lists(array: pa.Array, column: Column) -> pa.Array:
    kind = column.logical
    if column.category != "temporal" or not column.nested or column.dim is None:
        return array.cast(kind)
    lengths = np.asarray(pc.list_value_length(array)).astype(np.int64)
    values = array
    while is_list(values.type):
        values = values.flatten()
    if len(values) != int(lengths.sum()) * column.dim:
        raise CellError(f"{len(values)} numbers are not {int(lengths.sum())} steps of {column.dim}")
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    inner = pa.FixedSizeListArray.from_arrays(values.cast(column.value_type), type=kind.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets), inner, type=kind)
