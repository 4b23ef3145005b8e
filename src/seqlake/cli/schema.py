"""`seqlake schema`: columns, Arrow types and column types."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@_options.source
@_options.version
@output_options
def command(source: str, *, version: int | str | None, output: Output) -> None:
    """Show the columns of DATASET: category, Arrow type, column type with its fields."""
    selection = _options.opened(source, version=version)
    rows = []
    for name in selection.schema.names:
        column = selection.schema[name]
        declared = column.type.to_json() if column.type is not None else {}
        kind = declared.pop("type", "")
        rows.append(
            {
                "column": name,
                "category": column.category,
                "arrow": str(column.arrow),
                "type": kind,
                "fields": ", ".join(f"{k}={v}" for k, v in declared.items()),
            }
        )
    output.rows(rows, key="column", columns=["column", "category", "arrow", "type", "fields"])
