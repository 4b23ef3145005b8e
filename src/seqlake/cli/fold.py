"""`seqlake fold`: labels, renames and drops are written into the shards."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@_options.commits
def command(source: str, *, dry_run: bool, output: _options.Output) -> None:
    """Write labels, renames and drops of DATASET into its shards; as one commit.

    Then data/*.parquet and mixtrain.json say all that the newest version says, to every reader. `seqlake info`
    says when that is due.
    """
    dataset = _options.opened_dataset(source)
    unfolded = dataset.unfolded
    shards = dataset.lagging()
    with _options.rehearsed(dry_run):
        dataset.fold()
    verb = "Would write" if dry_run else "Wrote"
    lines = [f"{verb} {len(shards)} of {len(dataset.source.shards())} shards anew.", *unfolded.lines()]
    facts = {
        "rewritten": len(shards),
        "version": dataset.version.id,
        "unfolded": unfolded.to_json(),
        "dry_run": dry_run,
    }
    output.document(facts, text="\n".join(lines))
