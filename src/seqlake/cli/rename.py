"""`seqlake rename`: give a column another name."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@click.argument("old", shell_complete=_options.complete_columns)
@click.argument("new")
@_options.rewrite
@_options.commits
def command(source: str, old: str, new: str, *, rewrite: bool, dry_run: bool, output: _options.Output) -> None:
    """Call the column OLD of DATASET NEW, as one commit."""
    dataset = _options.opened_dataset(source)
    version = dataset.version
    with _options.rehearsed(dry_run):
        version = dataset.rename_column(old, new, rewrite=rewrite)
    if dry_run:
        output.document({"old": old, "new": new, "dry_run": True}, text=f"Would call the column {old} {new}.")
        return
    facts = {"old": old, "new": new, "dry_run": False, "version": version.id}
    output.document(facts, text=f"The column {old} is called {new}; version {version.id}.")
