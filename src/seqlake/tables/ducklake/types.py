"""DuckLake's column types and Arrow's: a column is a tree of rows in the catalog, each with a field id of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import is_binary, is_list, is_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_ARROW = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "int128": pa.decimal128(38, 0),
    "uint128": pa.decimal128(38, 0),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "varchar": pa.string(),
    "json": pa.string(),
    "blob": pa.binary(),
    "uuid": pa.binary(16),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_NAMES = {str(kind): name for name, kind in reversed(_ARROW.items()) if name not in {"int128", "uint128", "uuid"}}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# The types of SQL that DuckDB's own casts understand, where DuckLake calls them otherwise.
_SQL = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "int128": "HUGEINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "uint128": "UHUGEINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "timestamp_us": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column, or a part of a nested one.

    Attributes:
        id: Its field id, kept through renames.
        name: Its name; `element` in lists.
        type: DuckLake's name of its type.
        nullable: Whether it may be null.
        order: Where it stands among its siblings.
        default: What rows of files without it read, as text; None is null.
        children: Its parts, in order.
    """

    id: int
    name: str
    type: str
    nullable: bool = True
    order: int = 0
    default: str | None = None
    children: tuple[Field, ...] = ()

    def walk(self) -> Iterator[Field]:
        """This field and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()

    def parts(self, above: str = "") -> dict[str, int]:
        """Path -> field id of everything below it; lists and maps add their own names."""
        numbers: dict[str, int] = {}
        for child in self.children:
            path = f"{above}.{child.name}"
            numbers |= {path: child.id, **child.parts(path)}
        return numbers

    @property
    def leaves(self) -> list[Field]:
        """The fields that hold values."""
        return [field for field in self.walk() if not field.children]

    @property
    def arrow(self) -> pa.DataType:
        """Its Arrow type.

        Raises:
            SchemaMismatchError: A type that is not known here.
        """
        if self.type == "list":
            return pa.list_(self.children[0].arrow)
        if self.type == "struct":
            # DuckDB notes parts that were added later as never null, though rows from before have none.
            return pa.struct([pa.field(child.name, child.arrow) for child in self.children])
        if self.type == "map":
            key, value = self.children
            return pa.map_(key.arrow, value.arrow)
        decimal = _DECIMAL.fullmatch(self.type)
        if decimal:
            return pa.decimal128(int(decimal[1]), int(decimal[2]))
        if self.type not in _ARROW:
            raise SchemaMismatchError(
                f"Column {self.name!r} has DuckLake's type {self.type}, which cannot be read here.",
                hint="Give it another type, or drop it, with DuckDB.",
            )
        return _ARROW[self.type]

    @property
    def sql(self) -> str:
        """Its type in DuckDB's SQL."""
        if self.type == "list":
            return f"{self.children[0].sql}[]"
        if self.type == "struct":
            return "STRUCT({})".format(", ".join(f'"{quoted(c.name)}" {c.sql}' for c in self.children))
        if self.type == "map":
            return "MAP({})".format(", ".join(child.sql for child in self.children))
        return _SQL.get(self.type, self.type.upper())


def quoted(name: str, /) -> str:
    """A name as it stands between double quotes in SQL."""
    return name.replace('"', '""')


def refuse_moved(now: Field, held: Mapping[str, int], /) -> None:
    """Refuse parts of a column that are called otherwise than where they are held.

    Args:
        now: The column.
        held: Path -> field id of its parts, as a file has them.

    Raises:
        SchemaMismatchError: A part has another name there, or another part its name.
    """
    parts = now.parts()
    there = {number: path for path, number in held.items()}
    for path, number in parts.items():
        if held.get(path, number) != number or there.get(number, path) != path:
            raise SchemaMismatchError(
                f"Column {now.name!r}: its part {path[1:]!r} was renamed, or replaced by another, after rows were "
                "written.",
                hint="Write the column anew with DuckDB, as in CREATE TABLE ... AS, or rename the part back.",
            )


def tree(rows: Iterable[Sequence[Any]], /) -> tuple[Field, ...]:
    """The columns of a table from the rows of `ducklake_column`.

    Args:
        rows: (column_id, column_order, column_name, column_type, initial_default, nulls_allowed, parent_column).
    """
    by_parent: dict[int | None, list[Sequence[Any]]] = {}
    for row in rows:
        by_parent.setdefault(row[6], []).append(row)

    def field(row: Sequence[Any]) -> Field:
        children = tuple(field(child) for child in sorted(by_parent.get(row[0], ()), key=lambda child: child[1]))
        return Field(
            id=row[0], name=row[2], type=row[3], nullable=bool(row[5]), order=row[1], default=row[4], children=children
        )

    return tuple(field(row) for row in sorted(by_parent.get(None, ()), key=lambda row: row[1]))


def field_of(name: str, kind: pa.DataType, /, *, first: int, nullable: bool = True) -> Field:
    """A new column of an Arrow type, with field ids from `first` on, in the order that DuckDB gives them.

    Raises:
        SchemaMismatchError: DuckLake has no such type.
    """
    counter = iter(range(first, first + (1 << 20)))

    def numbered(name: str, kind: pa.DataType, *, nullable: bool) -> Field:
        at = next(counter)
        children: list[tuple[str, pa.DataType, bool]] = []
        if is_list(kind):
            text, children = "list", [("element", kind.value_type, True)]
        elif pa.types.is_struct(kind):
            text = "struct"
            children = [(one.name, one.type, one.nullable) for one in (kind.field(i) for i in range(kind.num_fields))]
        elif pa.types.is_map(kind):
            text, children = "map", [("key", kind.key_type, False), ("value", kind.item_type, True)]
        else:
            text = _name_of(name, kind)
        made_children = tuple(numbered(child, of, nullable=null) for child, of, null in children)
        return Field(id=at, name=name, type=text, nullable=nullable, order=at, children=made_children)

    return numbered(name, kind, nullable=nullable)


def _name_of(name: str, kind: pa.DataType) -> str:
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _name_of(name, kind.value_type)
    if is_text(kind):
        return "varchar"
    if is_binary(kind) or is_.is_fixed_size_binary(kind):
        return "blob"
    if is_.is_date(kind):
        return "date"
    if is_.is_time(kind):
        return "time"
    if is_.is_timestamp(kind) and kind.tz is not None:
        return "timestamptz"
    if is_.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0:
        return f"decimal({kind.precision},{kind.scale})"
    if str(kind) in _NAMES:
        return _NAMES[str(kind)]
    raise SchemaMismatchError(
        f"Column {name!r}: DuckLake has no type for Arrow's {kind}.", hint="Store it as another type, as in float32."
    )
