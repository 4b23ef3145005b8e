"""Selections as pandas and Polars frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake.dataset.reading.cells import arrow_cell
from seqlake.dataset.reading.streaming import Stream
from seqlake.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from seqlake.dataset.selection import Selection


def polars_frame(selection: Selection, /) -> pl.DataFrame:
    """All of a selection as a Polars frame.

    Raises:
        MissingDependencyError: Polars is not installed.
    """
    try:
        import polars as pl
    except ImportError as error:
        raise MissingDependencyError("This needs Polars, which is not installed. Run: pip install polars") from error
    return pl.DataFrame(Stream(selection.schema.arrow, selection.to_arrow().to_batches))


def pandas_frame(selection: Selection, /, *, signals: str | None) -> pd.DataFrame:
    """All of a selection as a pandas frame; see `Selection.to_pandas`.

    Raises:
        MissingDependencyError: pandas is not installed.
        ValueError: `signals` is neither None nor `"numpy"`.
    """
    if signals not in {None, "numpy"}:
        raise ValueError(f"signals is None (leave signals out) or 'numpy' (one array a cell), not {signals!r}.")
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError("This needs pandas, which is not installed. Run: pip install pandas") from error
    schema = selection.schema
    steps = [name for name in schema.names if schema[name].category in {"temporal", "frames"}]
    plain = [name for name in schema.names if name not in steps]
    frame: pd.DataFrame = (
        selection.select(*plain).to_arrow().to_pandas() if plain else pd.DataFrame(index=range(len(selection)))
    )
    if signals is None:
        return frame
    for name in steps:
        cells: list[Any] = []
        for batch in selection.batches([name]):
            cells += (arrow_cell(batch.column(0), row, schema[name]) for row in range(batch.num_rows))
        frame[name] = pd.Series(cells, index=frame.index, dtype=object)
    return frame[list(schema.names)]
