"""`seqlake merge`: join several datasets into a new one."""

from __future__ import annotations

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="DATASET...")
@_options.out
@_options.dry_run
@output_options
def command(sources: tuple[str, ...], out: str, *, dry_run: bool, output: Output) -> None:
    """Join the sequences of several DATASETs of one schema into a new dataset at OUT."""
    from seqlake.dataset.reshaping import merge

    parts = [_options.opened(source) for source in sources]
    rows = sum(len(part) for part in parts)
    if dry_run:
        output.document(
            {"rows": rows, "out": out, "dry_run": True},
            text=f"Would write {rows} sequences of {len(parts)} datasets to {out}.",
        )
        return
    made = merge(parts, out)
    output.document({"rows": len(made), "out": out}, text=f"{len(made)} sequences of {len(parts)} datasets at {out}.")
