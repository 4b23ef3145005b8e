"""`seqlake versions`: list a dataset's versions."""

from __future__ import annotations

from dataclasses import asdict

import click

from seqlake.cli import _options


@click.command()
@_options.source
@_options.output_options
def command(source: str, *, output: _options.Output) -> None:
    """List the versions of DATASET, oldest first, with their tags and what their makers said they are for."""
    dataset = _options.opened_dataset(source)
    tags = dataset.tags()
    rows = [
        {
            **asdict(version),
            "time": version.time.isoformat(timespec="seconds"),
            "tags": ", ".join(name for name, number in tags.items() if number == version.id),
        }
        for version in dataset.versions()
    ]
    output.rows(rows, key="id", columns=["id", "time", "operation", "rows", "tags", "message"])
