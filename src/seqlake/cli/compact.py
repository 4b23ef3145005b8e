"""`seqlake compact`: small and foreign shards become few of our layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _options
from seqlake.dataset.writing.staging import SHARD_BYTES

if TYPE_CHECKING:
    from seqlake.executors import Executor


@click.command()
@_options.source
@click.option("--rows-per-shard", type=click.IntRange(min=1), metavar="N", help="Close a new shard at so many rows.")
@_options.executor
@_options.commits
def command(
    source: str, *, rows_per_shard: int | None, on: Executor | None, dry_run: bool, output: _options.Output
) -> None:
    """Write small shards of DATASET anew, and those of other engines or with deleted rows; as one commit."""
    from seqlake.dataset.reshaping.compacting import compact, wasteful

    dataset = _options.opened_dataset(source)
    shards = dataset.source.shards()
    chosen = wasteful(shards, nbytes=SHARD_BYTES, rows=rows_per_shard)
    before = len(shards)
    with _options.rehearsed(dry_run):
        compact(dataset, rows_per_shard=rows_per_shard, on=on)
    after = len(dataset.source.shards())
    text = (
        f"Would write {len(chosen)} of {before} shards anew."
        if dry_run
        else f"Wrote {len(chosen)} of {before} shards anew; there are {after} now."
    )
    output.document({"rewritten": len(chosen), "before": before, "after": after, "dry_run": dry_run}, text=text)
