"""`seqlake adopt`: take in what others put into a dataset's folder."""

from __future__ import annotations

import click

from seqlake.abilities import HasStrangers, ability
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
    folder = ability(dataset.table, HasStrangers)  # shards of others are in a lake's table already
    shards = [] if folder is None else list(folder.would_adopt())
    edited = folder is not None and folder.metadata_edited()
    if dry_run:
        text = f"Would take in {len(shards)} shards{' and mixtrain.json' if edited else ''}."
        if dataset.version.id == -1:
            moved = "; they move into data/" if any("/" not in path for path in shards) else ""
            text = f"Would make a plain folder a versioned dataset of {len(shards)} shards{moved}."
        output.document({"shards": shards, "metadata": edited, "dry_run": True}, text=text)
        return
    version = dataset.adopt()
    output.document(
        {"version": version.id, "rows": version.rows, "shards": shards},
        text=f"Version {version.id}: {version.rows} sequences; {len(shards)} shards taken in.",
    )
