"""`seqlake relocate`: references that lead to another place, with their files or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, size
from seqlake.dataset.writing.staging import open_for_changes

if TYPE_CHECKING:
    from seqlake.dataset.changing.relocating import Mode


@click.command()
@_options.source
@click.option("--from", "old", required=True, metavar="PLACE", help="What references begin with: a folder or URI.")
@click.option("--to", "new", metavar="PLACE", help="What they begin with from now on. Without it files are taken in.")
@click.option("--copy", "files", flag_value="copy", help="Copy the files there first.")
@click.option("--move", "files", flag_value="move", help="The same, and remove the old files after the commit.")
@click.option("--allow-missing", is_flag=True, help="Also write references to files that are not there.")
@click.option("--allow-outside", is_flag=True, help="Also copy what links in the dataset's folder point at.")
@_options.commits
def command(
    source: str,
    *,
    old: str,
    new: str | None,
    files: Mode | None,
    allow_missing: bool,
    allow_outside: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Rewrite the references of DATASET that lie below one place to the same files below another, as a new version.

    Without --copy or --move the files must be at the new place already. With one of them and without --to they are
    taken into the dataset. A folder without a scheme is taken from the dataset's root.
    """
    from seqlake.dataset.changing.relocating import carry_out, plan_relocation

    if new is None and files is None:
        raise click.UsageError("Say where references lead from now on (--to), or take the files in (--copy, --move).")
    dataset = _options.opened_dataset(source, allow_outside=allow_outside)
    with _options.rehearsed(dry_run):
        open_for_changes(dataset)
    relocation = plan_relocation(dataset, old, new, files=files or "leave")
    much = f"{len(relocation.references)} references in {relocation.cells} cells, {size(relocation.nbytes)} of files"
    if dry_run:
        absent = "".join(f"\n  not there: {one}" for one in relocation.missing[:20])
        absent += f"\n  … and {len(relocation.missing) - 20} more" if len(relocation.missing) > 20 else ""
        output.document({**relocation.to_json(), "dry_run": True}, text=f"Would change {much}.{absent}")
        return
    version = carry_out(dataset, relocation, allow_missing=allow_missing)
    output.document({**relocation.to_json(), "version": version.id}, text=f"Version {version.id}: {much}.")
