"""`seqlake sql`: ask a dataset in SQL."""

from __future__ import annotations

from pathlib import Path

import click

from seqlake.cli import _options
from seqlake.dataset.reading import query as queries
from seqlake.dataset.reading.excerpt import Excerpt


@click.command()
@_options.source
@click.argument("query")
@_options.version
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the result as Parquet.")
@click.option("--explain", is_flag=True, help="Say which files and bytes the query would read, and run nothing.")
@_options.output_options
def command(
    source: str, query: str, *, version: int | str | None, out: Path | None, explain: bool, output: _options.Output
) -> None:
    """Run QUERY (DuckDB's SQL, read-only) over DATASET; the relation is called `dataset`.

    Example: seqlake sql data/arm "SELECT task, avg(reward) FROM dataset GROUP BY task"
    """
    selection = _options.opened(source, version=version)
    if explain:
        explained = selection.explain(query)
        output.document(explained.to_json(), text=str(explained))
        return
    result = queries.answers(Excerpt.of(selection), query)
    if out is not None and out.exists():
        raise click.UsageError(f"{out} exists; choose another name.")
    if out is not None or output.format == "parquet":
        output.arrow(result, out=out)
        return
    names = result.column_names
    output.rows(result.to_pylist(), key=names[0], columns=names)
