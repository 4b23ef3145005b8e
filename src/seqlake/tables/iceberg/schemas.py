"""The schema both ways: Mixtrain columns as an Iceberg schema and back, and what turns one version into the next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import comparable, is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType, NestedField

_FIELD_ID = b"PARQUET:field_id"
_LONGEST_INTEGER = 32


def to_iceberg(arrow: pa.Schema, /) -> IcebergSchema:
    """The Iceberg schema of a table with these columns; ids are given out anew.

    Args:
        arrow: The columns, in types that Iceberg has.

    Raises:
        SchemaMismatchError: A type that no Iceberg type holds.
    """
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    ids = iter(range(1, 1 << 30))
    numbers = [next(ids) for _ in arrow]  # as other clients number them: the columns first
    fields = [
        NestedField(
            field_id=number,
            name=field.name,
            field_type=iceberg_type(field.type, column=field.name, ids=ids),
            required=not field.nullable,
        )
        for number, field in zip(numbers, arrow, strict=True)
    ]
    return Schema(*fields)


def iceberg_type(kind: pa.DataType, /, *, column: str, ids: Iterator[int] | None = None) -> IcebergType:
    """The Iceberg type that holds an Arrow type.

    Args:
        kind: As our files store it.
        column: For messages.
        ids: Where nested fields take their ids from; without it they get placeholders.

    Raises:
        SchemaMismatchError: None does.
    """
    from pyiceberg import types

    number = iter(range(1, 1 << 30)) if ids is None else ids
    if is_list(kind):
        field_id = next(number)
        return types.ListType(
            element_id=field_id,
            element=iceberg_type(kind.value_type, column=column, ids=number),
            element_required=False,
        )
    if pa.types.is_struct(kind):
        fields = list(kind)
        own_ids = [next(number) for _ in fields]
        return types.StructType(
            *(
                types.NestedField(
                    field_id=field_id,
                    name=field.name,
                    field_type=iceberg_type(field.type, column=f"{column}.{field.name}", ids=number),
                    required=not field.nullable,
                )
                for field_id, field in zip(own_ids, fields, strict=True)
            )
        )
    if pa.types.is_map(kind):
        key, value = next(number), next(number)
        return types.MapType(
            key_id=key,
            key_type=iceberg_type(kind.key_type, column=column, ids=number),
            value_id=value,
            value_type=iceberg_type(kind.item_type, column=column, ids=number),
            value_required=False,
        )
    simple: IcebergType = _primitive(kind, column)
    return simple


def _primitive(kind: pa.DataType, column: str) -> Any:
    from pyiceberg import types

    is_ = pa.types
    if is_.is_dictionary(kind):
        return _primitive(kind.value_type, column)
    if is_.is_integer(kind):
        signed = kind.bit_width + (0 if is_.is_signed_integer(kind) else 1)
        if signed <= _LONGEST_INTEGER:
            return types.IntegerType()
        if signed <= 2 * _LONGEST_INTEGER:
            return types.LongType()
    if is_.is_timestamp(kind) and kind.tz in {None, "UTC", "Etc/UTC", "+00:00", "Z"} and kind.unit != "ns":
        return types.TimestampType() if kind.tz is None else types.TimestamptzType()
    if is_.is_decimal(kind) and kind.precision <= 38:
        return types.DecimalType(kind.precision, kind.scale)
    if is_.is_fixed_size_binary(kind):
        return types.FixedType(kind.byte_width)
    simple = (
        (is_.is_boolean, types.BooleanType), (is_.is_float16, types.FloatType), (is_.is_float32, types.FloatType),
        (is_.is_float64, types.DoubleType), (is_.is_string, types.StringType), (is_.is_large_string, types.StringType),
        (is_.is_string_view, types.StringType), (is_.is_binary, types.BinaryType),
        (is_.is_large_binary, types.BinaryType), (is_.is_binary_view, types.BinaryType),
        (is_.is_date, types.DateType), (is_.is_time, types.TimeType),
    )  # fmt: skip
    for test, primitive in simple:
        if test(kind):
            return primitive()
    raise SchemaMismatchError(
        f"Column {column!r}: no Iceberg type holds {kind}.",
        hint="Give it another type: int64 for uint64, timestamp[us] for timestamp[ns], string for null.",
    )


def arrow_schema(schema: IcebergSchema, /) -> pa.Schema:
    """The Arrow schema of an Iceberg schema in the types that this package uses everywhere."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return comparable(schema_to_pyarrow(schema, include_field_ids=False))


def renamed_property(text: str, now: IcebergSchema, then: IcebergSchema, /) -> str:
    """Today's property for the columns as an older schema calls them: the same field id is the same column."""
    document = json.loads(text)
    types = document.get("column_types", {})
    for field in then.fields:
        today = now.find_column_name(field.field_id)
        if today is not None and today != field.name and today in types:
            types[field.name] = types[today]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def names_of(schema: IcebergSchema, /) -> list[str]:
    """The columns; `column_names` would name what lies inside them, too."""
    return [field.name for field in schema.fields]


def field_ids(schema: IcebergSchema, /) -> dict[str, int]:
    """The id of every field by its dotted path, elements of lists as `element`."""
    numbers: dict[str, int] = {}
    for field in schema.fields:
        numbers.update(_ids_below(field, field.name))
    return numbers


def _ids_below(field: NestedField, path: str) -> Iterator[tuple[str, int]]:
    yield path, field.field_id
    kind: Any = field.field_type
    inner = []
    if kind.is_struct:
        inner = [(one, one.name) for one in kind.fields]
    elif hasattr(kind, "element_field"):
        inner = [(kind.element_field, "element")]
    elif hasattr(kind, "key_field"):
        inner = [(kind.key_field, "key"), (kind.value_field, "value")]
    for one, name in inner:
        yield from _ids_below(one, f"{path}.{name}")


def stored_id(field: pa.Field, /) -> int | None:
    """The field id that a Parquet file gives a column; None where it gives none."""
    text = (field.metadata or {}).get(_FIELD_ID)
    return None if text is None else int(text)


def evolve(update: UpdateSchema, old: IcebergSchema, new: pa.Schema, renamed: Mapping[str, str], /) -> None:
    """Say to pyiceberg how the columns of a table become those of another schema.

    Args:
        update: Of the table.
        old: Its columns.
        new: What they become.
        renamed: Columns that only change their name.

    Raises:
        SchemaMismatchError: A change that Iceberg cannot express.
    """
    back = {after: before for before, after in renamed.items()}
    other = replaced(old, new, renamed)
    kept = {before for name in new.names if (before := back.get(name, name)) in names_of(old) and name not in other}
    for field in old.fields:
        if field.name not in kept:
            update.delete_column((field.name,))
    for name in new.names:
        before, column = back.get(name, name), new.field(name)
        wanted = iceberg_type(column.type, column=name)
        if before not in kept:
            update.add_column((name,), wanted, required=not column.nullable)
            continue
        field = old.find_field(before)
        _change(update, (before,), field.field_type, wanted, column=name)
        if field.required and column.nullable:
            update.make_column_optional((before,))
        if before != name:
            update.rename_column((before,), name)


def replaced(old: IcebergSchema, new: pa.Schema, renamed: Mapping[str, str], /) -> list[str]:
    """Columns whose cells are something else now, as texts where there were bytes: a new column of the old name.

    No file of the old one can be read as it, so that a commit which has such a column replaces all files.
    """
    back = {after: before for before, after in renamed.items()}
    before = {field.name: field.field_type for field in old.fields}
    names = [name for name in new.names if back.get(name, name) in before]
    was = {name: _cells_of(before[back.get(name, name)]) for name in names}
    now = {name: _cells_of(iceberg_type(new.field(name).type, column=name)) for name in names}
    return [name for name in names if was[name] and now[name] and was[name] != now[name]]


def refuse_replaced(old: IcebergSchema, new: pa.Schema, renamed: Mapping[str, str], /) -> None:
    """Refuse columns that are `replaced`, where files stay; SchemaMismatchError."""
    back = {after: before for before, after in renamed.items()}
    for name in replaced(old, new, renamed):
        was = old.find_field(back.get(name, name)).field_type
        raise _cannot(name, was, iceberg_type(new.field(name).type, column=name))


def _cells_of(kind: Any) -> str:
    """Text, bytes or structs, in lists or not; empty for other types."""
    from pyiceberg import types

    while isinstance(kind, types.ListType):
        kind = kind.element_type
    tests = ((types.StringType, "text"), (types.BinaryType, "bytes"), (types.StructType, "structs"))
    return next((name for one, name in tests if isinstance(kind, one)), "")


def _change(update: UpdateSchema, path: tuple[str, ...], old: Any, new: Any, /, *, column: str) -> None:
    """Promote the numbers of a column, however deep they lie, and add or drop fields of structs."""
    from pyiceberg.exceptions import ValidationError

    if hasattr(old, "element_field") and hasattr(new, "element_field"):
        _change(update, (*path, "element"), old.element_type, new.element_type, column=column)
    elif old.is_struct and new.is_struct:
        before = {field.name: field.field_type for field in old.fields}
        after = {field.name: field.field_type for field in new.fields}
        for name in before.keys() - after.keys():
            update.delete_column((*path, name))
        for name, kind in after.items():
            if name in before:
                _change(update, (*path, name), before[name], kind, column=column)
            else:
                update.add_column((*path, name), kind)
    elif old.is_primitive and new.is_primitive:
        try:
            if old != new:
                update.update_column(path, field_type=new)
        except (ValidationError, ValueError):
            raise _cannot(column, old, new) from None
    elif type(old) is not type(new):
        raise _cannot(column, old, new)


def _cannot(column: str, old: object, new: object) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"Column {column!r}: an Iceberg table cannot make {new} of {old}.",
        hint="It widens int32 to int64 and float32 to float64; for others add a new column with add_column(sql=...).",
    )
