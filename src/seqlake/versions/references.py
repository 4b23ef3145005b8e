"""Which files the rows of a shard may name: every text in its columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.spec.schema import is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Shard


def file_columns(shard: Shard, schema: bytes, /) -> set[str]:
    """Every text in the columns of a shard that may name files: strings, lists of them, structs with them."""
    told = pa.ipc.read_schema(pa.py_buffer(schema))
    reader = shard.open()
    found: set[str] = set()
    try:
        for field in told:
            if field.name != "sequence_id" and _holds_text(field.type):
                for batch in reader.batches([field.name]):
                    found.update(_texts(batch.column(0)))
    finally:
        reader.close()
    return found


def own_texts(shard: Shard, /) -> set[str]:
    """Every text in the columns that the file itself has, whatever a version calls them."""
    reader = shard.open()
    try:
        held: pa.Schema = reader.schema  # type: ignore[attr-defined]  # whatever lies in a table has one
        return file_columns(shard, bytes(held.serialize()))
    finally:
        reader.close()


def _holds_text(kind: pa.DataType) -> bool:
    if is_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _holds_text(kind.key_type) or _holds_text(kind.item_type)
    return is_text(kind)


def _texts(array: Any) -> Iterator[str]:
    if pa.types.is_struct(array.type):
        for at in range(array.type.num_fields):
            yield from _texts(array.field(at))
    elif is_list(array.type):
        yield from _texts(array.flatten())
    elif pa.types.is_map(array.type):
        yield from _texts(array.keys)
        yield from _texts(array.items)
    elif pa.types.is_dictionary(array.type):
        yield from _texts(array.dictionary)
    elif _holds_text(array.type):
        yield from (text for text in array.to_pylist() if text is not None)
