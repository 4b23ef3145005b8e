"""`seqlake convert`: turn any dataset that seqlake reads into another one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from seqlake.cli import _options


@click.command()
@click.argument("source", metavar="SRC", shell_complete=_options.complete_paths)
@click.argument("out", metavar="DST", shell_complete=_options.complete_paths)
@click.option("--to", metavar="FORMAT", help="What to write (default: a Mixtrain dataset).")
@click.option(
    "--images",
    type=click.Choice(["bytes", "video", "files"]),
    help="What becomes of images in rows, one a step: they stay, become H.264 videos, or a file each.",
)
@click.option("--fps", type=float, help="Steps per second for videos, where the source tells none.")
@click.option("--sequence-id", metavar="COLUMN", help="Of samples: names the sequence that each belongs to.")
@click.option("--steps", metavar="COLUMN", help="Of samples: orders those of a sequence.")
@click.option("--shards", type=click.Choice(["parquet", "lance", "vortex"]), help="Their format (default: as it is).")
@click.option("--workers", type=click.IntRange(min=1), help="Processes (default: one per core).")
@click.option("--work", type=click.Path(path_type=Path), help="Where receipts lie, to go on after an interruption.")
@click.option("--adopt", is_flag=True, help="Take shards over as they are where they can be, without rewriting.")
@_options.where
@_options.commits
def command(
    source: str,
    out: str,
    *,
    to: str | None,
    images: str | None,
    fps: float | None,
    sequence_id: str | None,
    steps: str | None,
    shards: str | None,
    adopt: bool,
    workers: int | None,
    work: Path | None,
    where: str | None,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Convert SRC into DST. `import` and `export` are the same command.

    Run again after an interruption with the same --work, it goes on where it was.
    """
    from seqlake.conversion.convert import convert
    from seqlake.versions.messages import message

    if to not in {None, "mixtrain"} and message() is not None:
        raise click.UsageError(f"A dataset of the format {to} has no versions, so none can carry a --message.")
    if fps is not None and images != "video" and to != "lerobot":
        raise click.UsageError("--fps is for --images video, and for --to lerobot.")
    selection = _options.opened(source, asks=False)
    if selection.schema.id is not None and (sequence_id is not None or steps is not None):
        raise click.UsageError("--sequence-id and --steps are for samples; the rows of this source are sequences.")
    if where:
        selection = selection.where(where)
    run = partial(
        convert,
        selection,
        out,
        to=to,
        images=images,
        fps=fps,
        sequence_id=sequence_id,
        steps=steps,
        shards=shards,
        adopt=adopt,
        workers=workers,
        work=work,
    )
    if dry_run:
        plan: Any = run(dry_run=True)
        output.document(plan.to_json(), text=str(plan))
        return
    written: Any = run(progress=output.progress)
    rows, unit = (
        (len(selection), "samples" if to != "lerobot" else "sequences")
        if written is None
        else (len(written), "sequences")
    )
    output.document({"rows": rows, "out": out}, text=f"{rows} {unit} at {out}.")
