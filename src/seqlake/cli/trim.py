"""`seqlake trim`: cut sequences down to some of their steps, as a new dataset."""

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
    "--start", metavar="STEP|TIME", callback=_cutting.moment, help="First step, as in 40, or time, as in 1.5s."
)
@click.option(
    "--stop", metavar="STEP|TIME", callback=_cutting.moment, help="One past the last; -20 leaves out the last 20."
)
@_options.choice
@_options.executor
@_options.writes
def command(
    source: str,
    out: str,
    *,
    start: _cutting.Moment | None,
    stop: _cutting.Moment | None,
    choice: _options.Choice,
    on: Executor | None,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Write the steps from --start to --stop of every sequence of DATASET as a new dataset at OUT.

    Signals are cut exactly, videos without encoding them but for the frames between a cut and the next key frame
    (H.264; other codecs whole, where no key frame is at the cut). Sequences that have no such steps are left out.
    """
    from seqlake.dataset.reshaping.trimming import trim

    if start is None and stop is None:
        raise click.UsageError("Say what to keep: --start, --stop or both.")
    selection = choice.of(_options.opened(source, asks=False))
    with replacing(out, overwrite=overwrite, sources=[source], dry_run=dry_run) as place:
        if isinstance(start, float) or isinstance(stop, float):
            cuts = trim(selection, place, seconds=(_cutting.in_seconds(start), _cutting.in_seconds(stop)), on=on)
        else:
            cuts = trim(selection, place, start=start, stop=stop, on=on)
        _cutting.tell(cuts, out, output)
    if dry_run:
        output.plan(len(selection), out, verb="trim")
