"""Columns of small cells as a table of DuckDB's own, for the second question over them and every further one.

To put a stream of rows behind a view costs more than most questions over small columns do. So columns that were kept
in memory for one question become a table for the next. A version never changes, so its table does not either; each
question has a connection of its own to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from seqlake.files import sandbox
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import duckdb

    from seqlake.dataset.reading.access import Access
    from seqlake.dataset.reading.excerpt import Excerpt

NAME = "dataset"
ROW = "rowid"
"""What DuckDB calls the number of a row in a table, where no column has this name."""
_MOST = 8  # tables that a process keeps, each of at most `access.KEPT` bytes
_tables: WeakKeyDictionary[Access, AtHand] = WeakKeyDictionary()
_lock = Lock()


@dataclass(frozen=True, slots=True)
class AtHand:
    """The table of one version.

    Attributes:
        database: Holds the table `dataset`, the rows in their order.
        columns: Names that it has.
        settings: Of the database.
    """

    database: duckdb.DuckDBPyConnection
    columns: tuple[str, ...]
    settings: Mapping[str, Any]

    def knows(self, columns: Sequence[str], named: set[str]) -> bool:
        """Whether a question over these columns means the same here; `named` are all names in it, in small letters."""
        others = {name.casefold() for name in self.columns} | {ROW}
        return set(columns) <= set(self.columns) and not (named & others) - {name.casefold() for name in columns}


def table_of(shows: Excerpt, columns: Sequence[str], settings: Mapping[str, Any], /) -> AtHand | None:
    """A table that has at least these columns of all rows.

    Args:
        shows: What is asked about.
        columns: Names, all of small cells; no two of them equal but for case.
        settings: Of the database, as for `sandbox.connect`.

    Returns:
        None where the columns were not kept for a question before, or only some rows are shown.
    """
    if shows.rows is not None or not columns:
        return None
    with _lock:
        table = _tables.get(shows.access)
        if table is None or table.settings != settings or not set(columns) <= set(table.columns):
            before = () if table is None else table.columns
            table = _made(shows, tuple(dict.fromkeys((*before, *columns))), settings)
            if table is None:
                return None
            while len(_tables) >= _MOST and shows.access not in _tables:
                _tables.popitem()
            _tables[shows.access] = table
        return table


def _made(shows: Excerpt, names: Sequence[str], settings: Mapping[str, Any]) -> AtHand | None:
    folded = {name.casefold() for name in names}
    kept = shows.access.kept(names, read=False)
    if kept is None or len(folded) < len(names) or ROW in folded:
        return None
    schema = shows.source.schema.arrow
    kinds = [type_in_duckdb(schema.field(name).type) for name in names]
    cells = [held(kept[name], kind) for name, kind in zip(names, kinds, strict=True)]
    database = sandbox.connect(utc=True, **settings)
    database.register("_seqlake_kept", pa.table(cells, names=list(names)))
    database.execute(f"CREATE TABLE {NAME} AS SELECT * FROM _seqlake_kept")
    database.unregister("_seqlake_kept")
    return AtHand(database, tuple(names), settings)


@sandbox.on_end
def _forget() -> None:
    _tables.clear()  # not `close`: that would close what somebody still reads from


def type_in_duckdb(kind: pa.DataType, /) -> pa.DataType:
    """The type in which DuckDB can hold a column: half floats as floats, decimals of more than 38 digits as text."""
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal256(kind):
        return pa.string()
    inner = type_in_duckdb(kind.value_type) if is_list(kind) else None
    if inner is None or inner == kind.value_type:
        return kind
    return pa.list_(inner, kind.list_size) if pa.types.is_fixed_size_list(kind) else pa.list_(inner)


def held(cells: pa.Array, kind: pa.DataType, /) -> pa.Array:
    """The cells in the type in which DuckDB can hold them."""
    return cells if cells.type == kind else cells.cast(kind)
