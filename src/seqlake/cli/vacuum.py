"""`seqlake vacuum`: remove what no kept version needs."""

from __future__ import annotations

from datetime import timedelta

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, size
from seqlake.versions.small_files import Removed


@click.command()
@_options.source
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    metavar="DAYS",
    help="Keep every version that was the newest within so many days.",
)
@_options.dry_run
@output_options
def command(source: str, *, days: float, dry_run: bool, output: Output) -> None:
    """Remove old versions' shards and files, and what dead writers left, from DATASET; versions with a tag stay."""
    dataset = _options.opened_dataset(source)
    removed = dataset.vacuum(older_than=timedelta(days=days), dry_run=dry_run)
    nbytes = removed.nbytes if isinstance(removed, Removed) else None  # of a plugged-in table nobody knows
    much = "" if nbytes is None else f", {size(nbytes)}"
    verb = "Would remove" if dry_run else "Removed"
    tags = dataset.tags()
    kept = f"\nKept by their tags: {', '.join(f'{tag} (version {n})' for tag, n in tags.items())}." if tags else ""
    names = "".join(f"\n  {name}" for name in removed[:20])
    more = f"\n  … and {len(removed) - 20} more" if len(removed) > 20 else ""
    output.document(
        {"removed": list(removed), "nbytes": nbytes, "dry_run": dry_run, "tags": dict(tags)},
        text=f"{verb} {len(removed)} files{much}.{names}{more}{kept}",
    )
