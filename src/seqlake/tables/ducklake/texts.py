"""Values that a catalog keeps as text: defaults, and whole rows that DuckDB put there instead of into a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.files import sandbox
from seqlake.tables.ducklake.types import refuse_moved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.tables.ducklake.reading import Inlined
    from seqlake.tables.ducklake.types import Field


def default_of(column: Field, /) -> object:
    """What rows of files without a column read."""
    return None if column.default is None else _cast([[column.default]], [column], [column])[0][0].as_py()


def table_of(inlined: Inlined, columns: Sequence[Field], /) -> pa.Table:
    """Inlined rows with the columns of a version.

    Args:
        inlined: As the catalog has them, with the columns of the time when they were put there.
        columns: Those of the version.
    """
    had = {column.id: at for at, column in enumerate(inlined.columns)}
    both = [column for column in columns if column.id in had]
    for column in both:
        refuse_moved(column, inlined.columns[had[column.id]].parts())
    cells = [[row[had[column.id]] for row in inlined.rows] for column in both]
    by_id = dict(zip((c.id for c in both), _cast(cells, [inlined.columns[had[c.id]] for c in both], both), strict=True))
    count = len(inlined.rows)
    arrays = [
        by_id[column.id] if column.id in by_id else pa.array([default_of(column)] * count, column.arrow)
        for column in columns
    ]
    schema = pa.schema([pa.field(column.name, column.arrow, column.nullable) for column in columns])
    return pa.Table.from_arrays(arrays, schema=schema)


def _cast(cells: Sequence[Sequence[object]], old: Sequence[Field], new: Sequence[Field]) -> list[pa.Array]:
    """DuckDB's own texts as values, of the type that they were written with and then of the one they have now."""
    import duckdb

    names = [f"c{at}" for at in range(len(cells))]
    texts = [
        pa.array([_text(cell, field) for cell in column], pa.string()) for column, field in zip(cells, old, strict=True)
    ]
    casts = [_expression(name, a, b) for name, a, b in zip(names, old, new, strict=True)]
    if not casts:
        return []
    connection = sandbox.connect(utc=True)
    try:
        connection.register("held", pa.Table.from_arrays(texts, names=names))
        table = connection.sql(f"SELECT {', '.join(casts)} FROM held").to_arrow_table()
    except duckdb.Error as error:
        raise SchemaMismatchError(f"Values in the DuckLake catalog cannot be read: {error}") from error
    finally:
        connection.close()
    return [column.combine_chunks().cast(field.arrow) for column, field in zip(table.columns, new, strict=True)]


def _expression(name: str, old: Field, new: Field) -> str:
    _ = old.arrow, new.arrow  # refuses what is no type: the catalog's words become SQL here
    if old.type in {"blob", "uuid"}:
        return f"unhex({name})"
    typed = f"CAST({name} AS {old.sql})"
    return typed if old.sql == new.sql else f"CAST({typed} AS {new.sql})"


def _text(cell: object, column: Field) -> str | None:
    if cell is None:
        return None
    if isinstance(cell, bytes | bytearray | memoryview):
        # PostgreSQL holds text as bytes, too: its own cannot have a NUL.
        return bytes(cell).hex() if column.type == "blob" else bytes(cell).decode()
    return str(cell).replace("-", "") if column.type == "uuid" else str(cell)
