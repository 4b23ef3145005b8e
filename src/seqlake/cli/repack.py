"""`seqlake repack`: rewrite a dataset's shards into a new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _options
from seqlake.cli._overwriting import replacing

if TYPE_CHECKING:
    from seqlake.executors import Executor


@click.command()
@_options.source
@_options.out
@click.option("--layout", type=click.Choice(["training", "archive"]), default="training", show_default=True)
@click.option("--shards", type=click.Choice(["parquet", "lance", "vortex"]), help="Their format (default: as it is).")
@click.option("--rows-per-shard", type=click.IntRange(min=1), help="Close a shard at so many sequences.")
@click.option("--fixed-size-inner", is_flag=True, help="Store fixed-size inner lists.")
@_options.where
@_options.executor
@_options.writes
def command(
    source: str,
    out: str,
    *,
    where: str | None,
    on: Executor | None,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
    layout: str,
    shards: str | None,
    rows_per_shard: int | None,
    fixed_size_inner: bool,
) -> None:
    """Rewrite DATASET (of any kind and layout) into shards of ours at OUT, which must be new or empty."""
    from seqlake.dataset.reshaping.merging import repack

    selection = _options.opened(source, asks=False, where=where)
    with replacing(out, overwrite=overwrite, sources=[source], dry_run=dry_run) as place:
        repacked = repack(
            selection,
            place,
            layout=layout,
            shards=shards,
            rows_per_shard=rows_per_shard,
            fixed_size_inner=fixed_size_inner,
            on=on,
        )
        output.document(
            {"rows": len(repacked), "out": out, "layout": layout},
            text=f"{len(repacked)} sequences in {len(repacked.shards())} shards at {out}.",
        )
    if dry_run:
        output.plan(len(selection), out)
