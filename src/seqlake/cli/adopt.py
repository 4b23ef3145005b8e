"""`seqlake adopt`: take in what others put into a dataset's folder."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options


@click.command()
@_options.source
@_options.commits
def command(source: str, *, dry_run: bool, output: _options.Output) -> None:
    """Check and commit shards that others put into DATASET's data/ and a mixtrain.json edited by hand.

    A plain folder with a mixtrain.json becomes a versioned dataset; nothing in data/ moves. Parquet
    files that lie directly in its root move into data/.
    """
    dataset = _options.opened_dataset(source)
    table: Any = dataset.table
    strangers = list(table.strangers())
    edited = table.metadata_edited()
    if dry_run:
        output.document(
            {"shards": strangers, "metadata": edited, "dry_run": True},
            text=f"Would take in {len(strangers)} shards{' and mixtrain.json' if edited else ''}.",
        )
        return
    version = dataset.adopt()
    output.document(
        {"version": version.id, "rows": version.rows, "shards": strangers},
        text=f"Version {version.id}: {version.rows} sequences; {len(strangers)} shards taken in.",
    )
