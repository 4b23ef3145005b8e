"""`seqlake delete`: remove sequences."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@_options.rows
@_options.commits
def command(source: str, *, choice: _options.Choice, dry_run: bool, output: _options.Output) -> None:
    """Remove the sequences of DATASET that --where or --ids choose, as one commit; older versions keep them.

    `seqlake rollback` brings them back until `seqlake vacuum` forgets the versions that have them.
    """
    if choice.everything:
        raise click.UsageError("Say which sequences: --where or --ids.")
    dataset = _options.opened_dataset(source)
    chosen = choice.of(dataset)
    names = chosen.select(chosen.schema.id).to_arrow().column(0).to_pylist()
    facts = {"deleted": len(names), "left": len(dataset) - len(names), "dry_run": dry_run}
    text = f"{len(names)} of {len(dataset)} sequences"
    version = dataset.version
    with _options.rehearsed(dry_run):
        version = dataset.delete(ids=names) if names else version
    if dry_run:
        output.document(facts, text=f"Would delete {text}.")
        return
    output.document({**facts, "version": version.id}, text=f"Deleted {text}; version {version.id}.")
