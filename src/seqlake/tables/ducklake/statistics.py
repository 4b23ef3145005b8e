"""Bounds of columns as DuckLake keeps them: text, per file and for the whole table; nothing where it is not known.

A bound that is missing prunes nothing; a wrong one would lose rows, so what cannot be compared surely is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqlake.tables._lakes.damage import as_damage
from seqlake.tables.ducklake.catalogs import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from seqlake.tables.ducklake.address import DuckLakeAddress
    from seqlake.tables.ducklake.catalogs import Session
    from seqlake.tables.ducklake.reading import CatalogTable
    from seqlake.tables.ducklake.types import Field

_UNKNOWN = (None, None, None, None)  # whether there are nulls, whether NaN; least and greatest
FLOATS = {"float32", "float64"}
WHOLE = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


def bound(value: object, column: Field, /) -> str | None:
    """A least or greatest value as DuckLake writes it; None where it has no sure form here."""
    kind = column.type
    if isinstance(value, bool):
        return str(value).lower() if kind == "boolean" else None
    if isinstance(value, int) and kind in WHOLE:
        return str(value)
    if isinstance(value, int | float) and kind in FLOATS:
        return repr(float(value))
    if isinstance(value, str) and kind == "varchar" and "\0" not in value:
        return value
    if isinstance(value, Decimal) and kind.startswith("decimal"):
        return f"{value:f}"
    if isinstance(value, datetime) and kind in {"timestamp", "timestamp_us", "timestamp_s", "timestamp_ms"}:
        return value.strftime("%Y-%m-%d %H:%M:%S.%f") if value.tzinfo is None else None
    if isinstance(value, datetime) and kind == "timestamptz" and value.tzinfo is not None:
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")
    if isinstance(value, date) and not isinstance(value, datetime) and kind == "date":
        return value.isoformat()
    return None


def text_of_value(value: object, column: Field, /) -> str | None:
    """A partition value as DuckDB's own text; None for null."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and column.type == "float32":
        return str(np.float32(value))
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "+00"
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        part = f"{moment:.%f}".rstrip("0").rstrip(".")
        return f"{moment:%Y-%m-%d %H:%M:%S}{part}{zone}"
    return str(value)


def file_rows(
    file: int, table: int, rows: int, columns: Sequence[Field], known: Mapping[str, tuple[object, object, int]], /
) -> list[tuple[Any, ...]]:
    """The rows of `ducklake_file_column_stats` for a file of ours."""
    table_rows: list[tuple[Any, ...]] = []
    for column in columns:
        if column.children or column.name not in known:
            table_rows += [(file, table, leaf.id, None, None, None, None, None, None, None) for leaf in column.leaves]
            continue
        low, high, nan = _bounds(column, known[column.name], rows)
        nulls = known[column.name][2]
        table_rows.append((file, table, column.id, None, rows - nulls, nulls, low, high, nan, None))
    return table_rows


def _bounds(column: Field, known: tuple[object, object, int], rows: int) -> tuple[str | None, str | None, bool | None]:
    """(least, greatest, whether NaN is among the values) of a scalar column."""
    low, high = bound(known[0], column), bound(known[1], column)
    if low is None or high is None:
        low = high = None
    nan = None
    if column.type in FLOATS:
        # Our statistics have no bounds where a NaN stands.
        nan = low is None and rows > known[2]
    return low, high, nan


def widen(
    session: Session,
    place: CatalogTable,
    columns: Sequence[Field],
    files: Iterable[tuple[int, Mapping[str, tuple[object, object, int]]]],
    /,
    *,
    fresh: bool,
) -> None:
    """Take files into the bounds that DuckLake keeps of the whole table.

    Args:
        session: A writing transaction.
        place: The table.
        columns: Its columns.
        files: Rows of each file, and what is known of its scalar columns.
        fresh: Whether it never had rows before: else nothing is known of a column that has no bounds yet, which
            older files read as null or as a default.
    """
    kept = {
        row[0]: row[1:]
        for row in session.rows(
            "SELECT column_id, contains_null, contains_nan, min_value, max_value FROM ducklake_table_column_stats "
            "WHERE table_id = ?",
            place.id,
        )
    }
    listed = list(files)
    for column in columns:
        for leaf in column.leaves:
            bounds = kept.get(leaf.id, None if fresh else _UNKNOWN)
            for rows, known in listed:
                new = known.get(column.name) if leaf is column else None
                bounds = _merged(leaf, bounds, rows, new)
            if bounds is None or bounds == kept.get(leaf.id):
                continue
            session.run(
                "DELETE FROM ducklake_table_column_stats WHERE table_id = ? AND column_id = ?", place.id, leaf.id
            )
            session.insert("ducklake_table_column_stats", [(place.id, leaf.id, *bounds, None)])


def _merged(
    leaf: Field, old: Sequence[Any] | None, rows: int, new: tuple[object, object, int] | None
) -> tuple[Any, ...]:
    if new is None:
        return _UNKNOWN
    low, high, nan = _bounds(leaf, new, rows)
    null: bool | None = new[2] > 0
    if old is None:
        return (null, nan, low, high)
    null_before, nan_before, low_before, high_before = old
    either_nan = None if leaf.type not in FLOATS or nan_before is None else bool(nan_before) or bool(nan)
    null = True if null else (None if null_before is None else bool(null_before))
    if rows == new[2]:  # nothing but nulls moves no bound
        return (null, either_nan, low_before, high_before)
    if low is None or low_before is None or high_before is None:
        return (null, either_nan, None, None)
    least = min(low, low_before, key=lambda text: _ordered(leaf, text))
    greatest = max(high or low, high_before, key=lambda text: _ordered(leaf, text))
    return (null, either_nan, least, greatest)


def _ordered(column: Field, text: str) -> Any:
    """What DuckLake's text of a value is ordered by."""
    if column.type in WHOLE:
        return int(text)
    if column.type in FLOATS:
        return float(text)
    if column.type.startswith("decimal"):
        try:
            return Decimal(text)
        except InvalidOperation:
            return Decimal(0)
    return text.encode() if column.type == "varchar" else text


_LONGEST = 128  # a longer text may be the beginning of one
ByColumn: TypeAlias = Mapping[str, tuple[object, object, int]]


class DuckLakeBounds:
    """The bounds of all files of a table; picklable.

    Args:
        address: Of the table.
        table: DuckLake's number of it.
        columns: The columns of the version.
    """

    def __init__(self, address: DuckLakeAddress, table: int, columns: Sequence[Field], /) -> None:
        self._address = address
        self._table = table
        self._columns = {column.id: column for column in columns if not column.children and _is_known(column)}
        self._found: dict[int, dict[str, tuple[object, object, int]]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}

    def of(self, file: int, /) -> FileBounds:
        """Those of one file; nothing is read yet."""
        return FileBounds(self, file)

    def of_file(self, file: int, /) -> ByColumn:
        """Column -> (least, greatest, nulls)."""
        if self._found is None:
            with as_damage(self._address.default_data_path or "the DuckLake"):
                self._found = self._read()
        return self._found.get(file, {})

    def _read(self) -> dict[int, dict[str, tuple[object, object, int]]]:
        by_file: dict[int, dict[str, tuple[object, object, int]]] = {}
        with catalog(self._address).reading() as session:
            rows = session.rows(
                "SELECT data_file_id, column_id, min_value, max_value, null_count FROM ducklake_file_column_stats "
                "WHERE table_id = ? AND min_value IS NOT NULL AND max_value IS NOT NULL",
                self._table,
            )
        for file, number, low, high, nulls in rows:
            column = self._columns.get(number)
            if column is not None and max(len(low), len(high)) <= _LONGEST:
                bounds = _value(column, low), _value(column, high)
                if None not in bounds:
                    by_file.setdefault(file, {})[column.name] = (*bounds, nulls or 0)
        return by_file


class FileBounds(Mapping[str, "tuple[object, object, int]"]):
    """The bounds of one file's columns, read with those of all others when first asked."""

    def __init__(self, bounds: DuckLakeBounds, file: int, /) -> None:
        self._bounds = bounds
        self._file = file

    def __getitem__(self, column: str, /) -> tuple[object, object, int]:
        return self._bounds.of_file(self._file)[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bounds.of_file(self._file))

    def __len__(self) -> int:
        return len(self._bounds.of_file(self._file))


def _is_known(column: Field) -> bool:
    return column.type in {*FLOATS, *WHOLE, "varchar", "date"}


def _value(column: Field, text: str) -> object:
    try:
        if column.type in WHOLE:
            return int(text)
        if column.type in FLOATS:
            return float(text)
        return date.fromisoformat(text) if column.type == "date" else text
    except ValueError:
        return None
