"""`seqlake ls`: list sequences."""

from __future__ import annotations

import sys

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, say

_ROWS = 50  # on a terminal


@click.command()
@_options.source
@_options.where
@_options.version
@_options.columns_option("Which columns to show (default: all scalars).")
@click.option(
    "--sort",
    metavar="COLUMN",
    shell_complete=_options.complete_columns,
    help="Order by this column; -COLUMN for descending.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    help=f"At most so many; 0: all. By default all, but {_ROWS} in a table on a terminal.",
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Leave out so many first.")
@output_options
def command(
    source: str,
    *,
    where: str | None,
    version: int | str | None,
    columns: list[str] | None,
    sort: str | None,
    limit: int | None,
    offset: int,
    output: Output,
) -> None:
    """List the sequences of DATASET as a table; -q prints ids only."""
    selection = _options.opened(source, version=version, where=where)
    schema = selection.schema
    key = schema.id or schema.names[0]
    names = columns or [n for n in schema.names if schema[n].category == "scalar"]
    if output.quiet or key not in names:
        names = [key, *(n for n in names if n != key)]
    order = [sort.removeprefix("-")] if sort and sort.removeprefix("-") not in names else []
    rows = selection.select(*names, *order).to_arrow()
    if sort:
        rows = rows.sort_by([(sort.removeprefix("-"), "descending" if sort.startswith("-") else "ascending")])
    if limit is None:
        limit = _ROWS if output.format == "table" and not output.quiet and sys.stdout.isatty() else 0
    rows = rows.slice(offset, limit or None)
    left = len(selection) - offset - rows.num_rows
    if output.format == "parquet":
        output.arrow(rows)
    else:
        output.rows(rows.to_pylist(), key=key, columns=names)
    if left > 0:
        say(f"{left} more; --limit 0 shows all.", err=True)
