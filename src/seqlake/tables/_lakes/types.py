"""Types of a dataset as lakes hold them, and types of a lake as a dataset shows them.

No lake keeps fixed-size lists, and a file whose `ARROW:schema` has them cannot be read by some of a lake's clients.
So files are written with plain lists, and `dim` in the metadata gives the width back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.errors import InvalidMetadataError, SchemaMismatchError
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROPERTY = "mixtrain"


def lake_type(kind: pa.DataType, /, *, column: str, wider: Mapping[pa.DataType, pa.DataType], lake: str) -> pa.DataType:
    """A type as a lake holds it: plain lists, plain text and bytes, numbers no narrower than they were.

    Args:
        kind: Of the dataset.
        column: Whose, for messages.
        wider: Types that the lake lacks -> those that hold every value of them.
        lake: Its name, for messages.

    Raises:
        SchemaMismatchError: The lake has nothing that holds every value.
    """
    of = {"column": column, "wider": wider, "lake": lake}
    is_ = pa.types
    if is_.is_dictionary(kind):
        return lake_type(kind.value_type, **of)  # type: ignore[arg-type]  # the same words again
    if is_list(kind):
        return pa.list_(lake_type(kind.value_type, **of))  # type: ignore[arg-type]  # the same words again
    if is_.is_struct(kind):
        return pa.struct([field.with_type(lake_type(field.type, **of)) for field in kind])  # type: ignore[arg-type]
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        return pa.binary()
    if is_.is_timestamp(kind) and kind.unit != "us":
        if kind.unit == "ns":
            raise _no_type(kind, column, lake, "Declare it as pa.timestamp('us', tz='UTC'); values are cut off then.")
        return pa.timestamp("us", tz=kind.tz)
    held = wider.get(kind, kind)
    if is_.is_null(held) or is_.is_duration(held) or is_.is_time(held) or is_.is_map(held) or held == pa.uint64():
        raise _no_type(kind, column, lake, "Declare another type, as int64 or string.")
    return held


def _no_type(kind: pa.DataType, column: str, lake: str, hint: str) -> SchemaMismatchError:
    return SchemaMismatchError(f"Column {column!r}: {lake} has no type that holds every {kind}.", hint=hint)


def lake_schema(schema: Schema, of: Callable[..., pa.DataType], /) -> pa.Schema:
    """The columns of a dataset in a lake's types; what a table is created with, and evolved to.

    Args:
        schema: Of the dataset.
        of: `LakeEngine.lake_type`.

    Raises:
        SchemaMismatchError: A type that the lake lacks.
    """
    return pa.schema([pa.field(c.name, of(c.stored(), column=c.name), nullable=c.nullable) for c in schema.values()])


def as_schema(arrow: pa.Schema, mixtrain: str, /, *, path: str) -> Schema:
    """What a dataset shows of a lake's columns under the property `mixtrain`.

    Raises:
        InvalidMetadataError: The property is no metadata of ours.
    """
    return Schema.from_arrow(arrow, metadata=metadata_of(mixtrain, path=path), id=ID if ID in arrow.names else None)


def metadata_of(mixtrain: str, /, *, path: str) -> Metadata:
    """The property as metadata; a table without it has none yet.

    Raises:
        InvalidMetadataError: It is something else.
    """
    try:
        return Metadata.parse(mixtrain) if mixtrain else Metadata()
    except InvalidMetadataError as error:
        raise InvalidMetadataError(
            f"{path}: the table property {PROPERTY!r} cannot be used: {error.message}",
            path=path,
            hint=f"Set the property {PROPERTY!r} to the JSON object that mixtrain.json would hold.",
        ) from error


def encode_metadata(schema: Schema, /) -> str:
    """The text of the property: the same JSON that `mixtrain.json` would hold, on one line."""
    return json.dumps(json.loads(schema.metadata.to_json()), ensure_ascii=False, separators=(",", ":"))


def in_lake_types(schema: Schema, arrow: pa.Schema, /) -> Schema:
    """The schema as it comes back from the lake, so that what is written and what is read agree.

    Args:
        schema: Of the dataset.
        arrow: What `LakeEngine.lake_schema` makes of it.
    """
    columns = {c.name: Column(c.name, arrow.field(c.name).type, c.type, nullable=c.nullable) for c in schema.values()}
    return Schema(columns, metadata=schema.metadata, id=schema.id)
