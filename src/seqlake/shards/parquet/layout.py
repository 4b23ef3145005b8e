"""How our Parquet files are laid out: what every engine reads, and what makes windows cheap."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

LAYOUTS = ("training", "archive")
"""Of shards, whatever their format: windows without decoding, or fewer bytes."""

ROW_GROUP = 64 << 20  # decoded bytes of a row group
MOST_ROWS = 1 << 20  # rows of a row group, however small they are
LARGEST_CELL = 1 << 30  # bytes of one cell: a page cannot exceed 2 GiB, and writing takes several times its bytes

_ARCHIVE_PAGE = 64 << 10
_FALSE_POSITIVES = 0.01
# How the archive layout encodes signals. DuckDB 1.5 reads BYTE_STREAM_SPLIT of floats only.
_ARCHIVED = {
    "FLOAT": "BYTE_STREAM_SPLIT",
    "DOUBLE": "BYTE_STREAM_SPLIT",
    "INT32": "DELTA_BINARY_PACKED",
    "INT64": "DELTA_BINARY_PACKED",
}


def refuse_unknown(layout: str, /) -> None:
    """Raise `ValueError` unless it is one of `LAYOUTS`."""
    if layout not in LAYOUTS:
        raise ValueError(f"Expected layout {' or '.join(map(repr, LAYOUTS))}, found {layout!r}.")


def leaves(kind: pa.DataType, /) -> int:
    """How many Parquet columns an Arrow type becomes."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaves(kind.storage_type)
    if pa.types.is_struct(kind):
        return sum(leaves(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_map(kind):
        return leaves(kind.key_type) + leaves(kind.item_type)
    if is_list(kind):
        return leaves(kind.value_type)
    return 1


def parquet_schema(schema: pa.Schema, /) -> pq.ParquetSchema:
    """What `schema` becomes in Parquet, found by writing a file without rows."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).schema


def numbered(schema: pa.Schema, ids: Mapping[str, int], /) -> pa.Schema:
    """The schema with Parquet field ids, by dotted path; elements of lists are called `element`.

    Example:
        >>> numbered(pa.schema([("reward", pa.float32())]), {"reward": 4}).field("reward").metadata
        {b'PARQUET:field_id': b'4'}
    """
    return pa.schema([_numbered(field, field.name, ids) for field in schema]) if ids else schema


def _numbered(field: pa.Field, path: str, ids: Mapping[str, int]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_numbered(inner, f"{path}.{inner.name}", ids) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_numbered(kind.key_field, f"{path}.key", ids), _numbered(kind.item_field, f"{path}.value", ids))
    elif is_list(kind):
        inner = _numbered(kind.value_field, f"{path}.element", ids)
        kind = pa.list_(inner, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(inner)
    metadata = {"PARQUET:field_id": str(ids[path])} if path in ids else None
    return pa.field(field.name, kind, nullable=field.nullable, metadata=metadata)


def settings(
    schema: pa.Schema, /, *, layout: str, roles: Mapping[str, str], bloom: Collection[str] = (), rows: int = 0
) -> dict[str, Any]:
    """The arguments of `pyarrow.parquet.ParquetWriter` for a layout.

    Args:
        schema: The stored Arrow schema.
        layout: `training` or `archive`.
        roles: Column -> `steps` (zero-decode in the training layout), `media` (bytes that are compressed already)
            or `scalar`.
        bloom: Columns that get a Bloom filter.
        rows: About how many distinct values a row group's filter must hold.
    """
    stored = parquet_schema(schema)
    dictionary, compression, encoding, statistics = [], {}, {}, []
    leaf = 0
    for field in schema:
        for _ in range(leaves(field.type)):
            column = stored.column(leaf)
            role = roles.get(field.name, "scalar")
            compression[column.path] = "zstd"
            if role == "scalar":
                dictionary.append(column.path)
                if column.max_repetition_level == 0:
                    statistics.append(column.path)
            elif layout == "training" or role == "media":
                encoding[column.path] = "PLAIN"
                compression[column.path] = "none"
            else:
                encoding[column.path] = _ARCHIVED.get(column.physical_type, "PLAIN")
            leaf += 1
    return {
        "use_dictionary": dictionary,
        "compression": compression,
        "column_encoding": encoding or None,
        "write_statistics": statistics,
        "write_page_index": True,  # it also makes every page begin with a row
        "write_page_checksum": True,
        "data_page_size": _ARCHIVE_PAGE if layout == "archive" else None,
        "bloom_filter_options": {name: {"ndv": max(rows, 1), "fpp": _FALSE_POSITIVES} for name in bloom} or None,
    }
