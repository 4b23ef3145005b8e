"""`seqlake segment`: cut sequences into pieces, as a new dataset of one row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _cutting, _options
from seqlake.cli._overwriting import replacing

if TYPE_CHECKING:
    from seqlake.executors import Executor


@click.command()
@_options.source
@_options.out
@click.option(
    "--by",
    metavar="COLUMN",
    shell_complete=_options.complete_columns,
    help="Cut where this label of every step changes.",
)
@click.option("--length", type=click.IntRange(min=1), metavar="N", help="Cut into pieces of N steps.")
@click.option(
    "--at", metavar="STEP,...", callback=_cutting.moments, help="Cut before these steps, or at times: 1.5s,3s."
)
@click.option(
    "--min-length", type=click.IntRange(min=1), default=1, show_default=True, help="Leave out pieces of fewer steps."
)
@_options.choice
@_options.executor
@_options.writes
def command(
    source: str,
    out: str,
    *,
    by: str | None,
    length: int | None,
    at: list[_cutting.Moment] | None,
    min_length: int,
    choice: _options.Choice,
    on: Executor | None,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Write every sequence of DATASET as several at OUT: one row for each piece.

    Pieces are called ID/000, ID/001, ...; the columns source_id and source_start say what each was cut from. Files are
    cut as trim does it.
    """
    from seqlake.dataset.reshaping.trimming import segment

    if sum(one is not None for one in (by, length, at)) != 1:
        raise click.UsageError("Say how to cut: --by, --length or --at.")
    selection = choice.of(_options.opened(source, asks=False))
    timed = any(isinstance(one, float) for one in at or [])
    with replacing(out, overwrite=overwrite, sources=[source], dry_run=dry_run) as place:
        cuts = segment(
            selection,
            place,
            at=None if at is None or timed else [int(one) for one in at],
            seconds=[_cutting.seconds_of(one) for one in at or []] if timed else None,
            by=by,
            length=length,
            min_length=min_length,
            on=on,
        )
        _cutting.tell(cuts, out, output)
    if dry_run:
        output.plan(len(selection), out, verb="cut")
