"""Shards that no row of an answer can come from: partition values and bounds against the parts of a condition.

Only what certainly rules a shard out does so; everything else is read and asked DuckDB.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import BoundsEveryValue, HasBounds, ability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.protocols import Ints, Readable

Bounds = tuple[object, object]
"""The least and the most that a column has in a shard, nulls left out; (None, None): all null."""

_SIDES = {
    "COMPARE_EQUAL": "=", "COMPARE_LESSTHAN": "<", "COMPARE_LESSTHANOREQUALTO": "<=", "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}  # fmt: skip
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ULP = 2.0**-22  # of float32, twice: bounds of single precision against constants of double, integers against decimals
_LEAST = 2.0**-149  # that float32 has


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One part of a condition, all of which must be true: a column compared with constants.

    Attributes:
        column: The column's name, as the condition writes it.
        sign: `=`, `<`, `<=`, `>` or `>=`; `=` holds for any of the values.
        values: The constants.
    """

    column: str
    sign: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        values = ", ".join(map(repr, self.values))
        return f"{self.column} {self.sign} {values}" if len(self.values) == 1 else f"{self.column} in ({values})"


def narrowed(source: Readable, rows: Ints | None, parts: Callable[[], Sequence[Comparison]], /) -> Ints | None:
    """Of these rows those whose shards a condition does not rule out.

    Args:
        source: What is selected from.
        rows: Row numbers; None for all.
        parts: Gives the parts of the condition; asked only where the source knows bounds.
    """
    if ability(source, HasBounds) is None:
        return rows
    left = rows_left(source, rows, parts())
    return rows if left is None else left


def rows_left(source: Readable, rows: Ints | None, parts: Sequence[Comparison], /) -> Ints | None:
    """The rows of shards that the parts do not rule out; None where none is, so that all rows are asked.

    Args:
        source: What has bounds: a version of a table.
        rows: Row numbers to choose from; None for all.
        parts: Of the condition.
    """
    shards = source.shards()
    keep = left(source, parts)
    if keep is None or keep.all():
        return None
    starts = np.cumsum([0, *(shard.rows for shard in shards)], dtype=np.int64)
    if rows is not None:
        return rows[keep[np.searchsorted(starts, rows, side="right") - 1]]
    pieces = [np.arange(starts[at], starts[at + 1], dtype=np.int64) for at in np.flatnonzero(keep)]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def left(source: Readable, parts: Sequence[Comparison], /) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """[shards] whether rows of it may be in the answer; None where the source knows no bounds."""
    known = ability(source, HasBounds)
    if known is None or not parts:
        return None
    whole = ability(source, BoundsEveryValue)
    nan = whole is None or not whole.bounds_hold_nan
    keep = np.ones(len(source.shards()), bool)
    for part in parts:
        name = next((name for name in source.schema if name.casefold() == part.column.casefold()), None)
        if name is not None:
            keep &= [bounds is None or _may_hold(bounds, part, nan=nan) for bounds in known.bounds(name)]
    return keep


def parts_of(tree: object, /, *, table: str) -> list[Comparison]:
    """The parts of what a parsed statement asks of every row of a table.

    Args:
        tree: As DuckDB's `json_serialize_sql` gives a statement.
        table: The table's name; a statement that names it twice, or more than it, has no parts.
    """
    node = _only_scan(tree, table)
    return [] if node is None else [part for one in _conjuncts(node.get("where_clause")) for part in _comparisons(one)]


def condition_over(tree: object, columns: Sequence[str], /, *, table: str) -> dict[str, Any] | None:
    """A statement that selects, for each row, whether the parts of a condition over these columns alone are true.

    Args:
        tree: As for `parts_of`.
        columns: Those that the parts may name.
        table: As for `parts_of`.

    Returns:
        As `json_deserialize_sql` takes it; None where no part is such.
    """
    node = _only_scan(tree, table)
    if node is None:
        return None
    scanned = node["from_table"]
    names = {scanned.get("alias") or table}
    known = {name.casefold() for name in columns}
    parts = [part for part in _conjuncts(node.get("where_clause")) if _names_only(part, known, tables=names)]
    if not parts:
        return None
    whole = parts[0] if len(parts) == 1 else {**node["where_clause"], "type": "CONJUNCTION_AND", "children": parts}
    without: dict[str, Any] = {
        "modifiers": [],
        "cte_map": {"map": []},
        "group_expressions": [],
        "group_sets": [],
        "where_clause": None,
    }
    asked = {**node, **without, "where_clause": None, "having": None, "qualify": None, "select_list": [whole]}
    return {"error": False, "statements": [{"node": asked, "named_param_map": []}]}


def first_over(tree: object, columns: Sequence[str], /, *, table: str, row: str) -> dict[str, Any] | None:
    """A statement that gives the numbers of the rows that an order and a LIMIT leave of a statement.

    Args:
        tree: As for `parts_of`. Whether each row gives one is not looked at.
        columns: Those that its condition and its order may name.
        table: As for `parts_of`.
        row: The name of the row's number.

    Returns:
        As `json_deserialize_sql` takes it; None where the condition or the order needs other columns, rows are
        grouped, or nothing is left out.
    """
    node = _only_scan(tree, table)
    if node is None or not _is_plain(node):
        return None
    kinds = [one.get("type") for one in node.get("modifiers", ())]
    if kinds != ["ORDER_MODIFIER", "LIMIT_MODIFIER"]:
        return None
    order, limit = node["modifiers"]
    ordered = [one.get("expression") for one in order["orders"]]
    whole = limit.get("limit_type", "ROW_COUNT") == "ROW_COUNT" and limit.get("offset") is None
    if not whole or (limit.get("limit") or {}).get("class") != "CONSTANT":
        return None
    if any(not _references(one) for one in ordered):  # a number there is a place in the list of what is selected
        return None
    known = {name.casefold() for name in columns}
    known -= {str(one.get("alias", "")).casefold() for one in node["select_list"]}  # which an order means first
    names = {node["from_table"].get("alias") or table}
    if not _names_only([node.get("where_clause"), ordered], known, tables=names):
        return None
    number = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [row]}
    return {"error": False, "statements": [{"node": {**node, "select_list": [number]}, "named_param_map": []}]}


def _is_plain(node: dict[str, Any]) -> bool:
    """Whether a SELECT groups nothing and takes nothing from elsewhere."""
    grouped = any(node.get(name) for name in ("group_expressions", "group_sets", "having", "qualify"))
    return not grouped and not node["cte_map"]["map"] and node.get("aggregate_handling") == "STANDARD_HANDLING"


def _references(tree: Any) -> bool:
    return any(one.get("class") == "COLUMN_REF" for one in _nodes(tree))


def names_in(tree: object, /, *, table: str) -> set[str] | None:
    """All names of columns, in small letters, that a statement over a table alone may mean; None where others count.

    Args:
        tree: As for `parts_of`.
        table: As for `parts_of`.
    """
    node = _only_scan(tree, table)
    if node is None:
        return None
    itself = {table, str(node["from_table"].get("alias") or table).casefold()}
    names: set[str] = set()
    for inner in _nodes(node):
        if str(inner.get("class")) in _BEYOND_NAMES:
            return None
        parts = [str(part).casefold() for part in inner.get("column_names") or ()]
        if inner.get("class") == "COLUMN_REF" and parts[-1:] and parts[-1] in itself:
            return None  # a row as a whole
        names.update(parts)
    return names


_BEYOND_NAMES = {"STAR", "SUBQUERY", "POSITIONAL_REFERENCE", "PARAMETER"}


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _only_scan(tree: object, table: str) -> dict[str, Any] | None:
    """The one SELECT of a statement over this table alone; None where it is anything else."""
    nodes = [one.get("node") for one in tree.get("statements", ())] if isinstance(tree, dict) else []
    if len(nodes) != 1 or not isinstance(nodes[0], dict) or nodes[0].get("type") != "SELECT_NODE":
        return None
    node = nodes[0]
    scanned = node.get("from_table") or {}
    if scanned.get("type") != "BASE_TABLE" or scanned.get("table_name") != table or scanned.get("sample"):
        return None
    if scanned.get("column_name_alias"):
        return None  # `dataset AS d(x, y)`: the names are others than the table's
    text = json.dumps(node)
    if text.count('"BASE_TABLE"') != 1 or node.get("sample") or '"SUBQUERY"' in text:
        return None
    return node


def _names_only(tree: Any, columns: set[str], *, tables: set[str]) -> bool:
    """Whether all columns that an expression names are among these."""
    if isinstance(tree, list):
        return all(_names_only(one, columns, tables=tables) for one in tree)
    if not isinstance(tree, dict):
        return True
    if tree.get("class") == "COLUMN_REF":
        *before, name = tree.get("column_names") or [""]
        return name.casefold() in columns and (not before or (len(before) == 1 and before[0] in tables))
    return all(_names_only(one, columns, tables=tables) for one in tree.values())


def _conjuncts(node: Any) -> Iterator[dict[str, Any]]:
    """The parts of a condition, all of which must be true."""
    if not isinstance(node, dict):
        return
    if node.get("type") == "CONJUNCTION_AND":
        for child in node.get("children", ()):
            yield from _conjuncts(child)
    else:
        yield node


def _comparisons(node: dict[str, Any]) -> Iterator[Comparison]:
    kind = str(node.get("type"))
    if kind in _SIDES:
        yield from _comparison(node.get("left"), _SIDES[kind], node.get("right"))
    elif kind == "COMPARE_BETWEEN":
        yield from _comparison(node.get("input"), ">=", node.get("lower"))
        yield from _comparison(node.get("input"), "<=", node.get("upper"))
    elif kind == "COMPARE_IN":
        column, *others = node.get("children", [None])
        values = [_constant(one) for one in others]
        name = _column(column)
        if name is not None and values and None not in values:
            yield Comparison(column=name, sign="=", values=tuple(values))


def _comparison(left: Any, sign: str, right: Any) -> Iterator[Comparison]:
    for one, side, other in ((left, sign, right), (right, _TURNED[sign], left)):
        name, value = _column(one), _constant(other)
        if name is not None and value is not None:
            yield Comparison(column=name, sign=side, values=(value,))


def _column(node: Any) -> str | None:
    named = node.get("column_names") if isinstance(node, dict) and node.get("class") == "COLUMN_REF" else None
    return str(named[0]) if named and len(named) == 1 else None


def _constant(node: Any) -> Any:
    """A constant's value; None for what is none, or is of a type that is not compared here."""
    if not isinstance(node, dict):
        return None
    if node.get("class") == "CAST":
        inner, kind = _constant(node.get("child")), json.dumps(node.get("type_expr") or node.get("cast_type") or {})
        try:
            return date.fromisoformat(inner) if '"DATE"' in kind and isinstance(inner, str) else None
        except ValueError:
            return None
    if node.get("class") != "CONSTANT":
        return None
    literal = node.get("literal")
    if isinstance(literal, dict):  # DuckDB 2
        return _parsed(str(literal.get("kind")), literal.get("text"))
    value = node.get("value") or {}
    kind_node = value.get("type") or {}
    kind, constant = str(kind_node.get("id")), value.get("value")
    if value.get("is_null") or constant is None:
        return None
    if kind == "DECIMAL":
        return int(constant) / 10 ** int((kind_node.get("type_info") or {}).get("scale", 0))
    return constant if kind in {"VARCHAR", "INTEGER", "BIGINT", "DOUBLE", "FLOAT", "SMALLINT", "TINYINT"} else None


def _parsed(kind: str, text: Any) -> Any:
    try:
        if kind == "STRING":
            return str(text)
        if kind == "INTEGER":
            return int(text)
        return float(text) if kind == "NUMERIC" else None
    except (TypeError, ValueError):
        return None


def _may_hold(bounds: Bounds, part: Comparison, *, nan: bool) -> bool:
    """Whether a shard may have a value for which a part is true; `nan`: bounds may leave NaN out."""
    low, high = bounds
    if low is None or high is None:
        return False  # null in every row, and null is not true
    if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
        return True  # a NaN bounds nothing
    return any(_may(low, high, part.sign, value, nan=nan) for value in part.values)


def _may(low: Any, high: Any, sign: str, value: Any, *, nan: bool) -> bool:
    numbers = (int, float)
    if isinstance(value, numbers) and isinstance(low, numbers) and isinstance(high, numbers):
        if isinstance(low, bool) or isinstance(high, bool):
            return True
        floating = isinstance(low, float) or isinstance(high, float)
        if nan and floating and sign in {">", ">="}:
            return True  # NaN is above everything, and no bound tells of it
        if floating or isinstance(value, float):  # DuckDB may compare rounded numbers
            low, high = low - abs(low) * _ULP - _LEAST, high + abs(high) * _ULP + _LEAST
    elif type(value) is not type(low) or type(value) is not type(high):
        return True
    return bool({
        "=": low <= value <= high, "<": low < value, "<=": low <= value, ">": high > value, ">=": high >= value,
    }[sign])  # fmt: skip
