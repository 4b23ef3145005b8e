"""`seqlake resample`: signals at another rate, as a new dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options
from seqlake.cli._overwriting import replacing

if TYPE_CHECKING:
    from seqlake.executors import Executor


@click.command()
@_options.source
@_options.out
@click.option("--fps", type=click.FloatRange(min=0, min_open=True), required=True, help="Samples per second.")
@_options.columns_option("Which signals (default: all).", name="--signals")
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="[COLUMN=]METHOD",
    help="linear, nearest or hold, of one column or all (default: linear for floating-point numbers, else hold).",
)
@_options.choice
@_options.executor
@_options.writes
def command(
    source: str,
    out: str,
    *,
    fps: float,
    signals: list[str] | None,
    methods: tuple[str, ...],
    choice: _options.Choice,
    on: Executor | None,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Write the signals of DATASET at --fps samples per second as a new dataset at OUT.

    Dimensions that their column type calls `angle` or `quaternion` are turned the short way. Videos stay as they are.
    """
    from seqlake.dataset.reshaping.resampling import resample

    by_column = dict(one.split("=", 1) for one in methods if "=" in one)
    for_all = [one for one in methods if "=" not in one]
    if len(for_all) > 1 or (for_all and by_column):
        raise click.UsageError("Expected one --method for all, or --method COLUMN=METHOD for each of some.")
    selection = choice.of(_options.opened(source, asks=False))
    with replacing(out, overwrite=overwrite, sources=[source], dry_run=dry_run) as place:
        method: Any = for_all[0] if for_all else by_column or None
        resampled = resample(selection, place, fps=fps, columns=signals, method=method, on=on)
        document = {"rows": len(resampled), "out": out, "fps": fps}
        output.document(document, text=f"{len(resampled)} sequences at {fps:g} per second at {out}.")
    if dry_run:
        output.plan(len(selection), out, what=f"sequences at {fps:g} per second")
