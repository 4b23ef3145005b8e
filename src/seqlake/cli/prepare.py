"""`seqlake prepare`: training copies of videos."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, size

if TYPE_CHECKING:
    from seqlake.copies.preparing import Preparation
    from seqlake.copies.settings import Codec, Fit
    from seqlake.executors import Executor

_VIDEO = re.compile(r"(.+)=(\d{1,5})x(\d{1,5})", re.DOTALL)


@click.command()
@_options.source
@click.option("--video", "videos", multiple=True, metavar="COLUMN=HxW", help="A video, and height x width.")
@click.option("--fit", type=click.Choice(["stretch", "letterbox", "crop"]), default="stretch", show_default=True)
@click.option("--fps", type=click.FloatRange(min=0, min_open=True), help="Keep fewer frames; divides the video's rate.")
@click.option(
    "--codec",
    type=click.Choice(["auto", "h264", "mjpeg", "ffv1", "raw"]),
    default="auto",
    show_default=True,
    help="auto measures all and takes the fastest that fits the budget.",
)
@click.option("--budget", metavar="SIZE", help="For all copies, as in 50GB (default: what fits disk and memory).")
@click.option("--out", metavar="FOLDER", shell_complete=_options.complete_paths, help="Keep them there instead.")
@_options.executor
@click.option("--drop", is_flag=True, help="Remove copies instead: those of --video, or all.")
@_options.dry_run
@output_options
def command(
    source: str,
    *,
    videos: tuple[str, ...],
    fit: Fit,
    fps: float | None,
    codec: Codec | str,
    budget: str | None,
    out: str | None,
    on: Executor | None,
    drop: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Make training copies of videos of DATASET: scaled once, so that training decodes less.

    They lie in _seqlake/copies/ and are no part of any version. What is there already is passed by, so a run that was
    stopped goes on. `Loader.frames(size=, copies=True)` reads them.
    """
    from seqlake.copies.preparing import drop_copies, prepare
    from seqlake.dataset.progress import enabled

    sizes = _sizes(videos)
    dataset = _options.opened(source)
    if drop:
        gone = drop_copies(dataset, sizes or None, out=out, dry_run=dry_run)
        verb = "Would remove" if dry_run else "Removed"
        document = {"removed": list(gone), "nbytes": sum(gone.values()), "dry_run": dry_run}
        output.document(document, text=f"{verb} {len(gone)} files, {size(sum(gone.values()))}.")
        return
    if not sizes:
        raise click.UsageError("Say which videos and how large, height x width: --video cam=224x224.")
    with enabled(output.progress):
        done = prepare(
            dataset,
            sizes,
            fit=fit,
            fps=fps,
            codec=codec,
            budget=budget,
            out=out,
            on=on or "processes",
            dry_run=dry_run,
        )
    output.document(_document(done), text=str(done))


def _sizes(videos: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Column -> height and width."""
    sizes = {}
    for text in videos:
        match = _VIDEO.fullmatch(text)
        if match is None:
            raise click.UsageError(f"--video: expected COLUMN=HEIGHTxWIDTH as in cam=224x224, found {text!r}.")
        sizes[match[1]] = (int(match[2]), int(match[3]))
    return sizes


def _document(done: Preparation) -> dict[str, Any]:
    columns = []
    for one in done.columns:
        document = {**asdict(one), **asdict(one.settings)}
        del document["settings"]
        columns.append({**document, "damaged": dict(one.damaged), "why": list(one.why)})
    return {"copies": columns, "dry_run": done.planned}
