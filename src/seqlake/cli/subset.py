"""`seqlake subset`: copy some sequences or columns into a new dataset."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options
from seqlake.cli._overwriting import replacing


@click.command()
@_options.source
@_options.out
@_options.choice
@click.option(
    "--files",
    type=click.Choice(["copy", "hardlink", "reference"]),
    default="copy",
    show_default=True,
    help="What happens to referenced files inside the dataset.",
)
@_options.writes
def command(
    source: str,
    out: str,
    *,
    choice: _options.Choice,
    files: Any,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Copy the sequences of DATASET that are chosen by --where or --ids into a new dataset at OUT."""
    from seqlake.dataset.reshaping.merging import subset

    if choice.everything:
        raise click.UsageError("Say what to keep: --where, --ids or --columns.")
    everything = _options.opened(source, asks=False)
    selection = choice.of(everything)
    with replacing(out, overwrite=overwrite, sources=[source], dry_run=dry_run) as place:
        part = subset(selection, place, files=files)
        output.document({"rows": len(part), "out": out}, text=f"{len(part)} of {len(everything)} sequences at {out}.")
    if dry_run:
        output.plan(len(selection), out, verb="copy", what=f"of {len(everything)} sequences")
