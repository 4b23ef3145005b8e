"""`seqlake versions`: list a dataset's versions."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@_options.source
@output_options
def command(source: str, *, output: Output) -> None:
    """List the versions of DATASET, oldest first."""
    rows = [
        {"id": v.id, "time": v.time.isoformat(timespec="seconds"), "operation": v.operation, "rows": v.rows}
        for v in _options.opened_dataset(source).versions()
    ]
    output.rows(rows, key="id", columns=["id", "time", "operation", "rows"])
