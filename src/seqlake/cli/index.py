"""`seqlake index`: read windows of plain uncompressed Parquet without decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, table

if TYPE_CHECKING:
    from seqlake.executors import Executor


@click.command()
@_options.source
@_options.executor
@_options.commits
def command(source: str, *, on: Executor | None, dry_run: bool, output: Output) -> None:
    """Find out where the steps of each row lie in the shards of DATASET, and keep that in the dataset.

    For a folder with a mixtrain.json whose Parquet others wrote. The files themselves are not touched: the index lies
    beside them, and the folder becomes a versioned dataset. Only columns written PLAIN and uncompressed can be
    indexed, which few writers do by default; for the rest `seqlake repack` rewrites them.
    """
    from seqlake.dataset.changing.indexing import index

    with _options.rehearsed(dry_run):
        index(_options.opened_dataset(source), on=on)
    rows = _indexed(source, build=dry_run)
    mend = [row["column"] for row in rows if row["indexed"] < row["shards"]]
    text = table(
        [[row["column"], f"{row['indexed']} of {row['shards']} shards"] for row in rows], head=["column", "indexed"]
    )
    if mend:
        text += f"\n{', '.join(mend)}: the rest is encoded or compressed; `seqlake repack {source} OUT` rewrites it"
    output.document({"columns": rows, "dry_run": dry_run}, text=text)


def _indexed(source: str, *, build: bool) -> list[dict[str, Any]]:
    """How many shards of each signal are read without decoding, or with `build` could be."""
    from seqlake.shards.files import ParquetShard, innermost
    from seqlake.shards.parquet.building import flat_columns

    dataset = _options.opened_dataset(source)
    wanted = [name for name in dataset.schema if dataset.schema[name].category == "temporal"]
    counts = dict.fromkeys(wanted, 0)
    for shard in dataset.shards():
        reader, file = shard.open(), innermost(shard)
        try:
            could = flat_columns(file.blob, schema=dataset.schema) if build and isinstance(file, ParquetShard) else {}
            for name in wanted:
                counts[name] += name in could or reader.flat(name) is not None
        finally:
            reader.close()
    return [{"column": name, "indexed": count, "shards": len(dataset.shards())} for name, count in counts.items()]
