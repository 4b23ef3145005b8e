"""`seqlake subset`: copy some sequences or columns into a new dataset."""

from __future__ import annotations

from typing import IO, Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@_options.source
@_options.out
@_options.where
@click.option("--ids", type=click.File(), help="A file with one sequence_id a line; - for stdin.")
@click.option("--columns", metavar="A,B", shell_complete=_options.complete_columns, help="Only these columns.")
@click.option("--drop", is_flag=True, help="Leave the chosen sequences out instead.")
@click.option(
    "--files",
    type=click.Choice(["copy", "hardlink", "reference"]),
    default="copy",
    show_default=True,
    help="What happens to referenced files inside the dataset.",
)
@_options.dry_run
@output_options
def command(source: str, out: str, *, files: Any, dry_run: bool, output: Output, **choice: Any) -> None:
    """Copy the sequences of DATASET that are chosen by --where or --ids into a new dataset at OUT."""
    from seqlake.dataset.reshaping import subset

    everything = _options.opened(source)
    selection = _chosen(everything, **choice)
    if dry_run:
        output.document(
            {"rows": len(selection), "out": out, "dry_run": True},
            text=f"Would copy {len(selection)} of {len(everything)} sequences to {out}.",
        )
        return
    made = subset(selection, out, files=files)
    output.document({"rows": len(made), "out": out}, text=f"{len(made)} of {len(everything)} sequences at {out}.")


def _chosen(everything: Any, *, where: str | None, ids: IO[str] | None, columns: str | None, drop: bool) -> Any:
    """The rows and columns that the options name."""
    if where is None and ids is None and columns is None:
        raise click.UsageError("Say what to keep: --where, --ids or --columns.")
    key = everything.schema.id
    selection = everything.where(where) if where else everything
    if ids is not None:
        selection = selection.where(ids=[line.rstrip("\n") for line in ids if line.strip()])
    if drop:
        gone = set(selection.select(key).to_arrow().column(0).to_pylist())
        kept = everything.select(key).to_arrow().column(0).to_pylist()
        selection = everything.where(ids=[one for one in kept if one not in gone])
    if columns:
        selection = selection.select(key, *(c for c in columns.split(",") if c != key))
    return selection
