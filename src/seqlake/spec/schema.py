"""The schema: columns with their Arrow types and column types, and the categories they fall into.

Specification: "Format Specification". A column is held in two forms: *stored*, as our Parquet files hold it, and
*logical*, as streams and tables show it (fixed-size inner lists where the dimension is declared).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, SchemaMismatchError, in_line
from seqlake.spec.column_types import FILE_TYPES, INLINE_TYPES, ColumnType
from seqlake.spec.metadata import Metadata

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable, ValuesView

    import numpy as np

Category = Literal["scalar", "temporal", "frames", "file", "vector", "other"]
ID = "sequence_id"
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_LARGEST_DIM = (1 << 31) - 1  # of a list in Arrow; a larger one is as good as none


def is_list(kind: pa.DataType, /) -> bool:
    """Whether an Arrow type is a list of any kind."""
    return isinstance(kind, _LISTS)


def has_list_views(kind: pa.DataType, /) -> bool:
    """Whether a list, or one inside it, is held as a view."""
    if not is_list(kind):
        return False
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)) or has_list_views(kind.value_type)


def without_extensions(kind: pa.DataType, /) -> pa.DataType:
    """The type with what stands behind extensions of Arrow (UUIDs, tensors, JSON): few engines know any of them.

    Example:
        >>> without_extensions(pa.list_(pa.uuid()))
        ListType(list<item: fixed_size_binary[16]>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return without_extensions(kind.storage_type)
    if not any(_has_extension(kind.field(number).type) for number in range(kind.num_fields)):
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_extensions(field.type)) for field in kind])
    if pa.types.is_map(kind):
        fields = (field.with_type(without_extensions(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(*fields, keys_sorted=kind.keys_sorted)
    return _plain_list(kind, kind.value_field.with_type(without_extensions(kind.value_type))) if is_list(kind) else kind


def _has_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    return any(_has_extension(kind.field(number).type) for number in range(kind.num_fields))


def without_views(kind: pa.DataType, /) -> pa.DataType:
    """The type with plain text, bytes and lists where it has views, which most of Arrow's functions do not take.

    Example:
        >>> without_views(pa.struct([("text", pa.list_(pa.string_view()))]))
        StructType(struct<text: list<item: string>>)
    """
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        plain = pa.struct([field.with_type(without_views(field.type)) for field in kind])
    elif pa.types.is_map(kind):
        fields = (field.with_type(without_views(field.type)) for field in (kind.key_field, kind.item_field))
        plain = pa.map_(*fields, keys_sorted=kind.keys_sorted)
    elif is_list(kind):
        plain = _plain_list(kind, kind.value_field.with_type(without_views(kind.value_type)))
    else:
        return kind
    return kind if plain == kind else plain  # with its names of fields


def _plain_list(kind: pa.DataType, value: pa.Field) -> pa.DataType:
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def list_levels(kind: pa.DataType, /) -> tuple[int, pa.DataType]:
    """How many lists stand in each other, and the Arrow type inside the innermost.

    Example:
        >>> list_levels(pa.list_(pa.list_(pa.float32())))
        (2, DataType(float))
    """
    levels = 0
    while is_list(kind):
        levels, kind = levels + 1, kind.value_type
    return levels, kind


def is_number(kind: pa.DataType, /) -> bool:
    """Whether an Arrow type is one a signal may hold: integers, floats, booleans."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def dtype_of(kind: pa.DataType, /) -> np.dtype[Any]:
    """The numpy type of a number or a time of Arrow; pyarrow before 26 knows it only where pandas is installed.

    Example:
        >>> dtype_of(pa.float16())
        dtype('float16')
    """
    import numpy as np

    if pa.types.is_floating(kind):
        return np.dtype(f"float{kind.bit_width}")
    if pa.types.is_integer(kind):
        return np.dtype(str(kind))
    if pa.types.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if pa.types.is_duration(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    return np.dtype(bool if pa.types.is_boolean(kind) else kind.to_pandas_dtype())


def innermost(kind: pa.DataType, /) -> pa.DataType:
    """What lists of any depth hold in the end; the type itself where it is no list."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def is_text(kind: pa.DataType, /) -> bool:
    """Whether an Arrow type is one of strings, however they are held."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def has_text(kind: pa.DataType, /) -> bool:
    """Whether an Arrow type is one of strings, or holds some at any depth."""
    if is_text(kind):
        return True
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return any(map(has_text, inner))


def is_binary(kind: pa.DataType, /) -> bool:
    """Whether an Arrow type is one of bytes of any length, however they are held."""
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def plain_type(kind: pa.DataType, /) -> pa.DataType:
    """The type that all engines share for the same cells: no dictionaries, no large or view types, no extensions.

    Example:
        >>> plain_type(pa.large_list(pa.dictionary(pa.int8(), pa.large_string())))
        ListType(list<item: string>)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if is_text(kind):
        return pa.string()
    if is_binary(kind):
        return pa.binary()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_type(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def comparable(schema: pa.Schema, /) -> pa.Schema:
    """An Arrow schema without what differs from reader to reader: child names, views, spellings of UTC."""
    return pa.schema([pa.field(f.name, _comparable(f.type), nullable=f.nullable) for f in schema])


def _comparable(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_list(kind):
        return pa.list_(_comparable(kind.value_type))
    if is_.is_struct(kind):
        return pa.struct([pa.field(f.name, _comparable(f.type), nullable=f.nullable) for f in kind])
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_binary_view(kind):
        return pa.binary()
    if is_.is_timestamp(kind) and kind.tz in {"Etc/UTC", "+00:00", "Z"}:
        return pa.timestamp(kind.unit, tz="UTC")
    return kind


def _is_scalar(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_scalar(kind.value_type)
    simple = (types.is_primitive, types.is_decimal, types.is_null, types.is_fixed_size_binary)
    return is_text(kind) or is_binary(kind) or any(test(kind) for test in simple)


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type as stored, and its column type where it has one.

    Attributes:
        name: Its name.
        arrow: The Arrow type of its cells.
        type: What it means beyond that; None for a plain column.
        nullable: Whether a cell may be null.

    Example:
        >>> from seqlake.spec.column_types import Trajectory
        >>> column = Schema({"action": Trajectory(dim=7)})["action"]
        >>> column.category, column.shape, column.dtype
        ('temporal', (7,), dtype('float32'))
    """

    name: str
    arrow: pa.DataType
    type: ColumnType | None = None
    nullable: bool = True

    @cached_property
    def category(self) -> Category:
        """What kind of column it is; the first that fits, in this order."""
        kind, declared = self.arrow, self.type.type if self.type is not None else None
        if self._is_temporal():
            return "temporal"
        if is_list(kind) and declared == "image" and (is_binary(kind.value_type) or is_text(kind.value_type)):
            return "frames"
        if is_list(kind) and declared == "4d" and (is_binary(kind.value_type) or is_text(kind.value_type)):
            return "frames"
        has_url = pa.types.is_struct(kind) and kind.get_field_index("url") >= 0
        if self._names_files() and (is_text(kind) or has_url):
            return "file"
        if is_list(kind) and declared == "embedding" and is_number(kind.value_type):
            return "vector"
        return "scalar" if _is_scalar(kind) else "other"

    @cached_property
    def inline(self) -> bool:
        """Whether a cell is a file's own bytes: `binary`, or `{bytes, path}`, declared as a type of `INLINE_TYPES`.

        Where `bytes` is null, `path` names the file; else it is no more than the name that the file once had.
        """
        if self.type is None or self.type.type not in INLINE_TYPES or self.raw:
            return False
        kind = self.arrow
        if not pa.types.is_struct(kind):
            return is_binary(kind)
        held, path = kind.get_field_index("bytes"), kind.get_field_index("path")
        if held < 0 or kind.get_field_index("url") >= 0 or not is_binary(kind.field(held).type):
            return False
        return path < 0 or is_text(kind.field(path).type)

    @cached_property
    def medium(self) -> str | None:
        """What a cell is one file of, named or inline: `video`, `image`, any type of files; None for other columns."""
        return self.type.type if self.type is not None and (self.category == "file" or self.inline) else None

    def _names_files(self) -> bool:
        return self.type is not None and (self.type.type in FILE_TYPES or self.type.get("file") is True)

    def _is_temporal(self) -> bool:
        if self.raw:
            return True
        levels, inner = list_levels(self.arrow)
        marked = self.type is not None and (self.type.type == "trajectory" or self.type.get("time") is True)
        return is_number(inner) and (levels > 1 or (levels == 1 and marked))

    @property
    def timestamps(self) -> str | None:
        """The column that its type names for the times of its samples; None where it names none."""
        return None if self.type is None else self.type.timestamps

    @cached_property
    def timeless(self) -> bool:
        """Whether the first axis of a temporal column is none of time: the points of one cloud, [N, 3]."""
        return self.type is not None and self.type.type == "3d" and list_levels(self.arrow)[0] == 2

    @cached_property
    def raw(self) -> bool:
        """Whether a cell is one binary value of little-endian numbers, and its type says how many and which."""
        if self.type is None or self.type.get("encoding") != "raw" or not is_binary(self.arrow):
            return False
        return (self._declared_dim() or self._declared_shape()) is not None and self._raw_type() is not None

    def _raw_type(self) -> pa.DataType | None:
        """The Arrow type that `dtype` names; None where that is no type of numbers."""
        try:
            kind = pa.type_for_alias(str(self.type.get("dtype", "float32") if self.type is not None else ""))
        except ValueError:
            return None
        return kind if is_number(kind) and not pa.types.is_boolean(kind) else None

    def _declared_dim(self) -> int | None:
        declared = self.type.get("dim") if self.type is not None else None
        if not isinstance(declared, int) or isinstance(declared, bool):
            return None
        return declared if 0 < declared <= _LARGEST_DIM else None

    @cached_property
    def dim(self) -> int | None:
        """Numbers per step (or of a vector), where that is declared."""
        if (declared := self._declared_dim()) is not None:
            return declared
        kind = self.arrow
        if is_list(kind) and pa.types.is_fixed_size_list(kind.value_type):
            return int(kind.value_type.list_size)
        if self.category == "vector" and pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        shape = self._declared_shape()
        return prod(shape) if shape is not None else None

    @cached_property
    def nested(self) -> bool:
        """Whether a step is a list of numbers ([T, D]) and not one number ([T])."""
        return self.raw or (is_list(self.arrow) and is_list(self.arrow.value_type))

    @cached_property
    def deep(self) -> bool:
        """Whether a step of a temporal column is lists in lists, as in [T, N, D], where N may differ."""
        return self.category == "temporal" and not self.raw and list_levels(self.arrow)[0] > 2

    @cached_property
    def value_type(self) -> pa.DataType | None:
        """The Arrow type of one number of a temporal or vector column; None for others."""
        if self.raw:
            return self._raw_type()
        if self.category not in {"temporal", "vector"}:
            return None
        return list_levels(self.arrow)[1]

    @cached_property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy type of one number of a temporal or vector column; None for others."""
        return None if self.value_type is None else dtype_of(self.value_type)

    @cached_property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one step: declared, or `(dim,)`, or `()` for [T]; None where it is not known."""
        if self.category == "temporal" and not self.nested:
            return ()
        declared = self._declared_shape()
        if self.deep:
            return declared if declared is not None and len(declared) == list_levels(self.arrow)[0] - 1 else None
        # A shape that does not hold `dim` numbers is a finding (M114); arrays must come out all the same.
        if declared is not None and prod(declared) == self.dim:
            return declared
        return None if self.dim is None else (self.dim,)

    def _declared_shape(self) -> tuple[int, ...] | None:
        declared = self.type.get("shape") if self.type is not None else None
        if not isinstance(declared, list) or not declared or not all(type(n) is int and n > 0 for n in declared):
            return None
        return tuple(declared) if prod(declared) <= _LARGEST_DIM else None

    @cached_property
    def logical(self) -> pa.DataType:
        """The Arrow type that streams and tables show."""
        if self.deep:
            return _lists(list_levels(self.arrow)[0], self.value_type)
        if self.category == "temporal" and self.nested:
            value = self.value_type
            return pa.list_(pa.list_(value, self.dim) if self.dim else pa.list_(value))
        if self.category in {"temporal", "vector"}:
            return pa.list_(self.value_type)
        return without_views(self.arrow)

    def stored(self, *, fixed_size_inner: bool = False) -> pa.DataType:
        """The Arrow type that our files hold.

        Example:
            >>> print(schema["action"].stored())
            list<item: list<item: float>>
        """
        if self.raw:
            return pa.binary()
        if self.category == "temporal" and self.nested and not self.deep:
            return self.logical if fixed_size_inner else pa.list_(pa.list_(self.value_type))
        return self.logical

    def to_json(self) -> dict[str, Any]:
        """The column as a JSON object.

        Example:
            >>> schema["reward"].to_json()
            {'name': 'reward', 'category': 'scalar', 'arrow': 'float', 'type': None}
        """
        declared = self.type.to_json() if self.type is not None else None
        return {"name": self.name, "category": self.category, "arrow": str(self.arrow), "type": declared}

    def __str__(self) -> str:
        if self.type is None:
            return in_line(f"{self.name}: {self.arrow}")
        size = "[T]" if self.category == "temporal" and not self.nested else ""
        if self.category == "temporal" and self.nested:
            size = f"[T, {self.dim or '?'}]"
        if self.deep:
            size = f"[T{', ?' * (list_levels(self.arrow)[0] - 1)}]"
        if self.category == "vector":
            size = f"[{self.dim or '?'}]"
        facts = " ".join(f"{k}={v}" for k, v in self.type.fields.items() if k != "dim")
        value = str(self.value_type) if self.value_type is not None else ""
        return in_line(" ".join(part for part in (f"{self.name}: {self.type.type}", size, value, facts) if part))


def _lists(levels: int, kind: pa.DataType | None) -> pa.DataType:
    return kind if levels == 0 else pa.list_(_lists(levels - 1, kind))


class Schema(Mapping[str, Column]):
    """The columns of a dataset, in order; a mapping from name to `Column`.

    Args:
        columns: For each name an Arrow type, an Arrow field, a column type, or a `Column`.
        metadata: What else `mixtrain.json` says; its column types are replaced by those of the columns.
        id: The column that names a row; put first as a string where it is missing. None: rows are samples.

    Raises:
        SchemaMismatchError: An id that is no string, or a column that is none of the above.

    Example:
        >>> from seqlake.spec.column_types import Trajectory
        >>> schema = Schema({"task": pa.string(), "action": Trajectory(dim=12)})
        >>> list(schema), schema["action"].category
        (['sequence_id', 'task', 'action'], 'temporal')
    """

    def __init__(
        self,
        columns: Mapping[str, pa.DataType | pa.Field | ColumnType | Column],
        /,
        *,
        metadata: Metadata | None = None,
        id: str | None = ID,  # noqa: A002 - the protocol's own word
    ) -> None:
        checked = {name: _column(name, value) for name, value in columns.items()}
        if id is not None and id not in checked:
            checked = {id: Column(id, pa.string(), None, nullable=False), **checked}
        if id is not None and not is_text(checked[id].arrow):
            raise SchemaMismatchError(f"{id!r} must be a string column, found {checked[id].arrow}.")
        self._columns = checked
        self.id = id
        types = {name: column.type for name, column in checked.items() if column.type is not None}
        given = metadata or Metadata()
        # Declared types without a column are kept: a later column may bring them back to use.
        kept = {name: kind for name, kind in given.column_types.items() if name not in checked}
        self.metadata: Metadata = replace(given, column_types={**types, **kept})

    @staticmethod
    def from_arrow(
        schema: pa.Schema,
        /,
        *,
        metadata: Metadata | None = None,
        id: str | None = ID,  # noqa: A002 - the protocol's own word
    ) -> Schema:
        """The schema of Arrow data, with column types from the metadata.

        Args:
            schema: Of a file, a table or a stream.
            metadata: What `mixtrain.json` says.
            id: The column that names a row; None where rows are samples.

        Raises:
            SchemaMismatchError: A column name that stands there twice, or no usable id column.

        Example:
            >>> Schema.from_arrow(pa.schema({"sequence_id": pa.string()})).id
            'sequence_id'
        """
        if len(set(schema.names)) < len(schema.names):
            twice = next(name for name in schema.names if schema.names.count(name) > 1)
            raise SchemaMismatchError(f"Column {twice!r} is there twice; rename one of them.")
        if id is not None and id not in schema.names:
            near = difflib.get_close_matches(id, schema.names, n=1)
            raise SchemaMismatchError(
                f"Expected a string column {id!r}, found {', '.join(schema.names) or 'no columns'}."
                + (f" Is {near[0]!r} meant?" if near else "")
            )
        types = metadata.column_types if metadata is not None else {}
        columns = {
            f.name: Column(f.name, without_extensions(f.type), types.get(f.name), nullable=f.nullable) for f in schema
        }
        return Schema(columns, metadata=metadata, id=id)

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return list(self._columns)

    def __getitem__(self, name: str, /) -> Column:
        try:
            return self._columns[name]
        except (KeyError, TypeError):  # what has no hash is no name
            raise no_column(name, self._columns) from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def values(self) -> ValuesView[Column]:
        """The columns, in order.

        Example:
            >>> [column.name for column in Schema({"task": pa.string()}).values()]
            ['sequence_id', 'task']
        """
        return self._columns.values()

    def items(self) -> ItemsView[str, Column]:
        """(name, column), in order.

        Example:
            >>> {name: str(column.arrow) for name, column in Schema({"reward": pa.float32()}).items()}
            {'sequence_id': 'string', 'reward': 'float'}
        """
        return self._columns.items()

    @cached_property
    def arrow(self) -> pa.Schema:
        """The logical Arrow schema: what streams and tables show."""
        return pa.schema([pa.field(c.name, c.logical, c.nullable) for c in self._columns.values()])

    @cached_property
    def stamp_columns(self) -> tuple[str, ...]:
        """The columns that hold the time stamps of others, in order."""
        named = {column.timestamps for column in self._columns.values()} & self._columns.keys()
        return tuple(name for name in self._columns if name in named) if named else ()

    def stored(self, *, fixed_size_inner: bool = False) -> pa.Schema:
        """The Arrow schema of our files.

        Example:
            >>> Schema({"a": pa.int32()}).stored().names
            ['sequence_id', 'a']
        """
        return pa.schema(
            [pa.field(c.name, c.stored(fixed_size_inner=fixed_size_inner), c.nullable) for c in self._columns.values()]
        )

    def select(self, names: Any, /) -> Schema:
        """Only these columns, in this order; rows without the id column are samples.

        Example:
            >>> list(Schema({"a": pa.string(), "b": pa.int32()}).select(["b"]))
            ['b']
        """
        wanted = list(names)
        keep = {name: self[name] for name in wanted}
        return Schema(keep, metadata=replace(self.metadata, column_types={}), id=self.id if self.id in keep else None)

    def with_columns(self, columns: Mapping[str, pa.DataType | pa.Field | ColumnType | Column], /) -> Schema:
        """These columns added at the end, or replaced where they stand.

        Example:
            >>> list(Schema({"a": pa.string()}).with_columns({"b": pa.int32()}))
            ['sequence_id', 'a', 'b']
        """
        return Schema({**self._columns, **columns}, metadata=self.metadata, id=self.id)

    def without(self, names: Any, /) -> Schema:
        """All but these columns.

        Example:
            >>> list(Schema({"a": pa.string(), "b": pa.int32()}).without(["b"]))
            ['sequence_id', 'a']
        """
        gone = {names} if isinstance(names, str) else set(names)
        keep = {n: c for n, c in self._columns.items() if n not in gone}
        types = {n: t for n, t in self.metadata.column_types.items() if n not in gone}
        metadata = replace(self.metadata, column_types=types)
        return Schema(keep, metadata=metadata, id=self.id if self.id in keep else None)

    def renamed(self, names: Mapping[str, str], /) -> Schema:
        """Columns under new names, where they stand.

        Example:
            >>> list(Schema({"a": pa.string()}).renamed({"a": "task"}))
            ['sequence_id', 'task']
        """
        columns = {names.get(n, n): replace(c, name=names.get(n, n)) for n, c in self._columns.items()}
        types = {names.get(n, n): t for n, t in self.metadata.column_types.items()}
        metadata = replace(self.metadata, column_types=types)
        return Schema(columns, metadata=metadata, id=None if self.id is None else names.get(self.id, self.id))

    def to_json(self) -> dict[str, Any]:
        """Columns and metadata as a JSON object.

        Example:
            >>> [column["name"] for column in Schema({"task": pa.string()}).to_json()["columns"]]
            ['sequence_id', 'task']
        """
        return {
            "id": self.id,
            "columns": [column.to_json() for column in self._columns.values()],
            "metadata": json.loads(self.metadata.to_json()),
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        mine, theirs = list(self._columns.values()), list(other._columns.values())
        return mine == theirs and self.id == other.id and self.metadata == other.metadata

    def __hash__(self) -> int:
        return hash((tuple(self._columns), self.id))  # names tell schemas apart; types would be written as JSON for it

    def __repr__(self) -> str:
        return "Schema\n" + "\n".join(f"  {column}" for column in self._columns.values())

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(in_line(c.name))}</td><td>{c.category}</td><td>{escape(in_line(str(c.arrow)))}</td>"
            f"<td>{escape(in_line(str(c.type or '')))}</td></tr>"
            for c in self._columns.values()
        )
        return f"<table><tr><th>column</th><th>category</th><th>Arrow</th><th>type</th></tr>{rows}</table>"


def no_column(name: object, names: Iterable[str], /) -> ColumnNotFoundError:
    """The error for a column that is not among these: says which there are, and the nearest."""
    there = list(names)
    near = difflib.get_close_matches(str(name), there, n=1)
    return ColumnNotFoundError(
        f"No column {name!r}; there are {', '.join(there) or 'none'}.",
        hint=f"Did you mean {near[0]!r}?" if near else None,
    )


def _column(name: str, value: Any) -> Column:
    if isinstance(value, Column):
        return replace(value, name=name, arrow=without_extensions(value.arrow))
    if isinstance(value, ColumnType):
        return Column(name, value.arrow, value)
    if isinstance(value, pa.Field):
        return Column(name, without_extensions(value.type), None, nullable=value.nullable)
    if isinstance(value, pa.DataType):
        return Column(name, without_extensions(value), None)
    raise SchemaMismatchError(
        f"Column {name!r}: expected an Arrow type such as pa.float32() or a column type such as sl.Trajectory(dim=7), "
        f"got {value!r}."
    )
