"""`seqlake drop`: leave columns out from now on."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@click.argument("columns", nargs=-1, required=True, metavar="COLUMN...", shell_complete=_options.complete_columns)
@_options.rewrite
@_options.commits
def command(source: str, columns: tuple[str, ...], *, rewrite: bool, dry_run: bool, output: _options.Output) -> None:
    """Drop columns of DATASET, one commit each; older versions keep them until `seqlake vacuum`."""
    dataset = _options.opened_dataset(source)
    wanted = list(dict.fromkeys(columns))
    for name in wanted:
        dataset.schema[name]
    if dataset.schema.id in wanted:
        raise click.UsageError(f"{dataset.schema.id!r} is the id of the rows and stays.")
    facts = {"dropped": wanted, "dry_run": dry_run}
    for name in wanted:
        with _options.rehearsed(dry_run):
            dataset.drop_column(name, rewrite=rewrite)
    if dry_run:
        output.document(facts, text=f"Would drop {', '.join(wanted)}.")
        return
    version = dataset.version.id
    output.document({**facts, "version": version}, text=f"Dropped {', '.join(wanted)}; version {version}.")
