"""Bounds of the columns of data files, asked of the catalog when somebody wants to rule files out, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

from seqlake.tables._lakes.damage import as_damage
from seqlake.tables.ducklake.catalogs import catalog
from seqlake.tables.ducklake.statistics import FLOATS, WHOLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.tables.ducklake.address import DuckLakeAddress
    from seqlake.tables.ducklake.types import Field

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
