"""`seqlake merge`: join several datasets into a new one."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options
from seqlake.cli._overwriting import replacing


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="DATASET...")
@_options.out
@_options.overwrite
@_options.dry_run
@output_options
def command(sources: tuple[str, ...], out: str, *, overwrite: bool, dry_run: bool, output: Output) -> None:
    """Join the sequences of several DATASETs of one schema into a new dataset at OUT."""
    from seqlake.dataset.reshaping.merging import merge

    parts = [_options.opened(source, asks=False) for source in sources]
    rows = sum(len(part) for part in parts)
    if dry_run:
        output.document(
            {"rows": rows, "out": out, "dry_run": True},
            text=f"Would write {rows} sequences of {len(parts)} datasets to {out}.",
        )
        return
    with replacing(out, overwrite=overwrite, sources=sources) as place:
        merged = merge(parts, place)
        text = f"{len(merged)} sequences of {len(parts)} datasets at {out}."
        output.document({"rows": len(merged), "out": out}, text=text)
