"""`seqlake stats`: what the numbers of a dataset are like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options, _remote
from seqlake.cli._output import Output, cell_text, output_options, plain, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.dataset.statistics import ColumnStatistics, Outlier
    from seqlake.executors import Executor

_WIDE = 32  # dimensions of a column that get a line each
_RANKED = ("sequence_id", "score", "peak", "jerk", "static", "length", "reason")


def _points(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in value.split(",") if part)
    except ValueError:
        raise click.BadParameter(f"expected numbers such as 0.01,0.5,0.99, found {value!r}.") from None


@click.command()
@_options.source
@_options.version
@_options.where
@_options.columns_option("Which columns to look at (default: all with numbers or pictures).")
@click.option(
    "--quantiles",
    metavar="Q,Q",
    default="0.01,0.5,0.99",
    show_default=True,
    callback=_points,
    help="From 0 to 1; '' for none.",
)
@click.option("--outliers", "top", type=click.IntRange(min=1), metavar="N", help="Also rank the N oddest sequences.")
@_options.executor
@output_options
def command(
    source: str,
    *,
    version: int | str | None,
    where: str | None,
    columns: list[str] | None,
    quantiles: tuple[float, ...],
    top: int | None,
    on: Executor | None,
    output: Output,
) -> None:
    """Show count, range, mean, standard deviation and quantiles of every column and dimension of DATASET.

    All steps are read and the quantiles are exact; of images and videos at most 1024 evenly spaced frames are, by
    channel and from 0 to 1. What was found is kept with the dataset until it changes. With --outliers the sequences
    that are least like the others follow, with the reason; -q then prints their ids only.
    """
    from seqlake.dataset.statistics import outliers, statistics

    selection = _options.opened(source, version=version, where=where)
    selection.select(*columns or ())  # a wrong name is told before anything is read
    _remote.permit_rows(source, selection)
    stats = statistics(selection, columns, quantiles=quantiles, on=on, progress=output.progress)
    unusual = outliers(selection, stats, top=top, on=_options.within(on, "outliers")) if top else []
    records = list(stats.records())
    if output.quiet or output.format not in {"table", "json"}:
        ranked = [_record(one) for one in unusual]
        wanted = list(_RANKED) if top else list(records[0] if records else ("column",))
        output.rows(ranked if top else records, key=wanted[0], columns=wanted)
        return
    document = {"rows": stats.rows, "columns": plain(stats.to_json())["columns"]}
    if top:
        document["outliers"] = [_record(one) for one in unusual]
    text = [f"{stats.rows} sequences"]
    if records:
        lines = [line for name in stats for line in _lines(name, stats[name], records, whole=not output.truncate)]
        cells = [[cell_text(line.get(key, "")) for key in records[0]] for line in lines]
        text.append(table(cells, head=list(records[0]), fit=output.truncate))
    if unusual:
        text += ["", *(f"{_called(one)}  score {one.score:.3g}: {one.reason}" for one in unusual)]
    output.document(document, text="\n".join(text))


def _lines(
    name: str, column: ColumnStatistics, records: Sequence[Mapping[str, Any]], *, whole: bool
) -> list[Mapping[str, Any]]:
    """A line for each dimension; of many one, about all of their numbers together."""
    import numpy as np

    mine = [one for one in records if one["column"] == name]
    if whole or len(mine) <= _WIDE:
        return mine
    count = column.count.ravel()
    weights = count / max(1, count.sum())
    mean, std = (np.nan_to_num(column[key].ravel()) for key in ("mean", "std"))
    middle = float((weights * mean).sum())
    together = {
        "column": name,
        "dim": f"[{','.join(map(str, column.shape))}]",
        "count": int(count.sum()),
        "min": np.nanmin(column.min).item(),
        "max": np.nanmax(column.max).item(),
        "mean": middle,
        "std": float(np.sqrt((weights * (std**2 + (mean - middle) ** 2)).sum())),
        "note": f"{len(mine)} dimensions together; --no-truncate lists each",
    }
    return [{key: together.get(key, "") for key in mine[0]}]


def _record(one: Outlier) -> dict[str, Any]:
    return {**one.to_json(), "sequence_id": _called(one)}


def _called(one: Outlier) -> str:
    return f"row {one.row}" if one.sequence_id is None else one.sequence_id
