"""`seqlake view`: look at a dataset in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, say


@click.command()
@_options.source
@click.argument("sequence_id", metavar="[ID]", required=False, shell_complete=_options.complete_ids)
@_options.version
@_options.where
@click.option("--host", default="127.0.0.1", help="What to bind to; others than loopback let other machines in.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0 for a free one.")
@click.option("--open/--no-open", "opens", default=True, help="Open the browser.")
@click.option("--no-token", is_flag=True, help="Ask for no secret; on loopback only.")
@click.option(
    "--allow-dir", "allow_dirs", multiple=True, metavar="FOLDER", help="Show files in there, outside the dataset, too."
)
@click.option("--export", "folder", metavar="FOLDER", help="Serve nothing: write a folder that opens without seqlake.")
@click.option("--max-mb", type=click.FloatRange(min=1), default=1024, help="Megabytes that an export may have.")
@click.option("--overwrite", is_flag=True, help="Replace an export that is there.")
@click.option("--dry-run", is_flag=True, help="Say how large an export would be, and write nothing.")
@output_options
def command(
    source: str,
    sequence_id: str | None,
    *,
    version: int | str | None,
    where: str | None,
    host: str,
    port: int,
    opens: bool,
    no_token: bool,
    allow_dirs: tuple[str, ...],
    folder: str | None,
    max_mb: float,
    overwrite: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Serve DATASET to a browser: filter it, see signals and films in step, find what is wrong, label.

    Nothing of the dataset changes until labels are committed. Ctrl-C ends it.

    With --export it serves nothing: the sequences that ID or --where choose become a folder of static files, for a
    colleague or a paper, which opens from a disk or any web server.
    """
    from seqlake.viewer.serving import view

    selection = _options.opened(source, version=version)
    if folder is not None:
        _exported(selection, sequence_id, where, Path(folder), max_mb, overwrite=overwrite, dry=dry_run, output=output)
        return
    if dry_run or overwrite:
        raise click.UsageError("--dry-run and --overwrite are for --export.")
    if where is not None:
        selection.where(where)
    try:
        link = view(
            selection, sequence_id, where=where, host=host, port=port, token=not no_token, allow_dirs=allow_dirs
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    output.document({"url": link.url}, text=link.url)
    if opens:
        import webbrowser

        webbrowser.open(link.url)
    try:
        link.wait()
    finally:
        link.close()


def _exported(
    selection: Any,
    sequence_id: str | None,
    where: str | None,
    folder: Path,
    max_mb: float,
    *,
    overwrite: bool,
    dry: bool,
    output: Output,
) -> None:
    """Say how large it will be, then write it."""
    from seqlake.viewer import exporting

    plan = exporting.plan(selection, sequence_id, where=where, most=int(max_mb * 1e6))
    if dry:
        facts = {"sequences": len(plan.items), "about_bytes": plan.nbytes, "dry_run": True}
        output.document({**facts, "folder": str(folder)}, text=f"Would write {plan} to {folder}.")
        return
    say(f"{plan}, to {folder}", err=True)
    done = exporting.write(plan, selection, folder, overwrite=overwrite)
    written = {"index": str(done.index), "sequences": done.sequences, "bytes": done.nbytes}
    output.document(written, text=str(done.index))
