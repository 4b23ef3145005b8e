"""A new schema as DuckLake has it: rows of columns that end and rows that begin; field ids outlive names and types."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import innermost, is_binary, is_text
from seqlake.tables.ducklake.types import Field, field_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(kw_only=True)
class Evolution:
    """What becomes of a table's columns.

    Attributes:
        columns: All of them, as they will be.
        ended: Field ids whose rows end.
        begun: (field, id of its parent) of rows that begin.
    """

    columns: list[Field] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    begun: list[tuple[Field, int | None]] = field(default_factory=list)


def evolve(
    old: Sequence[Field], schema: pa.Schema, /, *, renamed: Mapping[str, str], first: int, anew: bool = False
) -> Evolution:
    """What turns the columns of a table into those of a schema.

    Args:
        old: The columns now.
        schema: The columns wanted, in the lake's types.
        renamed: Old name -> new name.
        first: The first field id that was never used.
        anew: All files are replaced: a column of texts that is one of bytes now, or the other way, ends, and a new one
            of its name begins.

    Raises:
        SchemaMismatchError: A type that does not hold every value of the old one.
    """
    evolution = Evolution()
    before = {renamed.get(column.name, column.name): column for column in old if column.name not in renamed}
    before |= {renamed[column.name]: column for column in old if column.name in renamed}
    other = {f.name for f in schema if anew and f.name in before and _is_other(before[f.name], f, first)}
    for name in other:
        del before[name]
    for column in old:
        if renamed.get(column.name, column.name) not in before.keys() & set(schema.names):
            evolution.ended |= {one.id for one in column.walk()}
    order = max((column.order for column in old), default=0)
    for wanted in schema:
        was = before.get(wanted.name)
        if was is None:
            column = field_of(wanted.name, wanted.type, first=first, nullable=wanted.nullable)
            order = max(order + 1, column.id)
            column = replace(column, order=order)
            _begin(evolution, column, None)
        else:
            column = _changed(evolution, was, wanted, None, first)
        first = max([first, *(one.id + 1 for one in column.walk())])
        evolution.columns.append(column)
    return evolution


def _is_other(was: Field, wanted: pa.Field, first: int) -> bool:
    """Whether cells are text, bytes or structs, in lists or not, and are to be another of these."""
    kinds = []
    for kind in map(innermost, (was.arrow, field_of(wanted.name, wanted.type, first=first).arrow)):
        tests = (is_text, is_binary, pa.types.is_struct)
        kinds.append([test(kind) for test in tests])
    return all(map(any, kinds)) and kinds[0] != kinds[1]


def _changed(evolution: Evolution, was: Field, wanted: pa.Field, parent: int | None, first: int) -> Field:
    """A column, or a part of one, that stays: its row ends and begins anew where anything of it changed."""
    target = field_of(wanted.name, wanted.type, first=first, nullable=wanted.nullable)
    if was.type != target.type and (was.children or target.children or not _wider(was, target)):
        raise SchemaMismatchError(
            f"Column {was.name!r}: DuckLake cannot make {was.arrow} to {wanted.type}.",
            hint="Add a column of the new type, and drop the old one.",
        )
    children: tuple[Field, ...] = ()
    if was.type == "struct":
        children = _struct(evolution, was, wanted, first)
    elif was.children:
        parts = [(wanted.type.value_type, True)] if was.type == "list" else [
            (wanted.type.key_type, False), (wanted.type.item_type, True)
        ]  # fmt: skip
        children = tuple(
            _changed(evolution, child, pa.field(child.name, kind, nullable=child.nullable), was.id, first)
            for child, (kind, _) in zip(was.children, parts, strict=True)
        )
    now = replace(was, name=wanted.name, type=target.type, nullable=wanted.nullable, children=children)
    if (was.name, was.type, was.nullable) != (now.name, now.type, now.nullable):
        evolution.ended.add(was.id)
        evolution.begun.append((now, parent))
    return now


def _struct(evolution: Evolution, was: Field, wanted: pa.Field, first: int) -> tuple[Field, ...]:
    kept = {child.name: child for child in was.children}
    parts = [wanted.type.field(at) for at in range(wanted.type.num_fields)]
    for name, child in kept.items():
        if name not in {part.name for part in parts}:
            evolution.ended |= {one.id for one in child.walk()}
    children = []
    for part in parts:
        if part.name in kept:
            children.append(_changed(evolution, kept[part.name], part, was.id, first))
        else:
            child = field_of(part.name, part.type, first=first)
            _begin(evolution, child, was.id)
            children.append(child)
        first = max([first, *(one.id + 1 for one in children[-1].walk())])
    return tuple(children)


def _begin(evolution: Evolution, column: Field, parent: int | None) -> None:
    evolution.begun.append((column, parent))
    for child in column.children:
        _begin(evolution, child, column.id)


def _wider(was: Field, target: Field) -> bool:
    """Whether a type holds every value of another, so that files of the old one can be read as the new one."""
    old, new = was.arrow, target.arrow
    is_ = pa.types
    if is_.is_integer(old) and is_.is_integer(new):
        signed = is_.is_signed_integer(new) or is_.is_unsigned_integer(old)
        return bool(new.bit_width > old.bit_width and signed)
    if is_.is_floating(old) and is_.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if is_.is_integer(old) and is_.is_floating(new):
        return bool(old.bit_width <= {32: 16, 64: 32}[new.bit_width])
    return False


def column_rows(column: Field, parent: int | None, /, *, table: int, snapshot: int) -> tuple[Any, ...]:
    """The row of `ducklake_column` of one field, without those below it."""
    return (
        column.id,
        snapshot,
        None,
        table,
        column.order,
        column.name,
        column.type,
        column.default,
        "NULL" if column.default is None else column.default,
        column.nullable,
        parent,
        "" if column.children else "literal",
        "duckdb",
    )
