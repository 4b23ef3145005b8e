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
@click.option("--from", "old", metavar="PLACE", help="What references begin with: a folder or URI.")
@click.option("--to", "new", metavar="PLACE", help="What they begin with from now on. Without it files are taken in.")
@click.option("--copy", "files", flag_value="copy", help="Copy the files there first.")
@click.option("--move", "files", flag_value="move", help="The same, and remove the old files after the commit.")
@click.option("--inline", metavar="COLUMN", help="Make the files that this column names bytes in its rows.")
@click.option("--extract", metavar="COLUMN", help="Make the bytes in the rows of this column files.")
@click.option("--allow-missing", is_flag=True, help="Also write references to files that are not there.")
@click.option("--allow-outside", is_flag=True, help="Also copy what links in the dataset's folder point at.")
@_options.commits
def command(
    source: str,
    *,
    old: str | None,
    new: str | None,
    files: Mode | None,
    inline: str | None,
    extract: str | None,
    allow_missing: bool,
    allow_outside: bool,
    dry_run: bool,
    output: Output,
) -> None:
    """Rewrite the references of DATASET that lie below one place to the same files below another, as a new version.

    Without --copy or --move the files must be at the new place already. With one of them and without --to they are
    taken into the dataset. A folder without a scheme is taken from the dataset's root.

    --inline and --extract are about one column: its files go into the rows as bytes, and out of them again.
    """
    from seqlake.dataset.changing.relocating import carry_out, plan_relocation

    if inline is not None or extract is not None:
        if (inline is not None and extract is not None) or any((old, new, files, allow_missing)):
            raise click.UsageError(
                "--inline COLUMN or --extract COLUMN stands alone; the other options are for --from."
            )
        _turned(source, inline, extract, allow_outside=allow_outside, dry_run=dry_run, output=output)
        return
    if old is None:
        raise click.UsageError("Say which references (--from), or a column (--inline, --extract).")
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


def _turned(
    source: str, inline: str | None, extract: str | None, *, allow_outside: bool, dry_run: bool, output: Output
) -> None:
    """Files of one column into its rows, or out of them."""
    from seqlake.dataset.changing.inlining import extract_files, inline_files, plan_inlining

    dataset = _options.opened_dataset(source, allow_outside=allow_outside)
    if not dry_run:
        open_for_changes(dataset)
    column = str(inline if inline is not None else extract)
    planned = plan_inlining(dataset, column, to="files" if inline is None else "inline")
    much = f"{planned.cells} files of {column!r}, {size(planned.nbytes)}"
    where = "bytes in the rows" if inline is not None else "files of the dataset"
    if dry_run:
        absent = [f"\n  not there: {one}" for one in planned.missing]
        absent += [f"\n  above 1 GiB: {one}" for one in planned.too_large]
        text = f"Would make {much} {where}.{''.join(absent[:20])}"
        output.document({**planned.to_json(), "dry_run": True}, text=text)
        return
    version = (extract_files if inline is None else inline_files)(dataset, column)
    output.document({**planned.to_json(), "version": version.id}, text=f"Version {version.id}: {much} are {where} now.")
