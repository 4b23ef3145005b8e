"""`seqlake files`: the files of a dataset, those that are missing, and those that no row names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options, say, size

if TYPE_CHECKING:
    from seqlake.dataset.reading.inventory import FileEntry

_COLUMNS = ("state", "size", "column", "rows", "reference")


@click.command()
@_options.source
@_options.version
@_options.where
@_options.columns_option("Only files of these columns.")
@click.option("--dangling", is_flag=True, help="Only references to nothing.")
@click.option("--orphans", is_flag=True, help="Only copied-in files that no kept version names.")
@click.option("--elsewhere", is_flag=True, help="Also ask other stores and web servers, one request for each file.")
@click.option("--allow-outside", is_flag=True, help="Also look for files that leave the dataset's folder.")
@output_options
def command(
    source: str,
    *,
    version: int | str | None,
    where: str | None,
    columns: list[str] | None,
    dangling: bool,
    orphans: bool,
    elsewhere: bool,
    allow_outside: bool,
    output: Output,
) -> None:
    """List the files of DATASET with the columns and sequences that name them.

    A file is present, missing (rows name it, nothing is there), outside (it leaves the dataset's folder and was not
    looked for) or elsewhere (on another store; see --elsewhere). Of files that were copied in and that no row names:
    kept (another version needs it), orphan (`seqlake vacuum` removes it) or stranger (put there by others).
    """
    from seqlake.dataset.reading.inventory import totals

    if allow_outside:
        selection: Any = _options.opened_dataset(source, version=version, allow_outside=True)
    else:
        selection = _options.opened(source, version=version)
    selection = selection.where(where) if where else selection
    selection = selection.select(*columns) if columns else selection
    entries = selection.files(elsewhere=elsewhere)
    wanted = {state for state, asked in (("missing", dangling), ("orphan", orphans)) if asked}
    listed = [one for one in entries if not wanted or one.state in wanted]
    if output.format == "json":
        output.document({"totals": totals(entries), "files": [one.to_json() for one in listed]}, text="")
        return
    for_people = output.format == "table"
    output.rows([_record(one, for_people=for_people) for one in listed], key="reference", columns=_COLUMNS)
    if for_people and not output.quiet:
        said = [f"{one['files']} {state} ({size(one['bytes'])})" for state, one in totals(entries).items()]
        say(", ".join(said) or "no files", err=True)


def _record(one: FileEntry, *, for_people: bool) -> dict[str, Any]:
    rows: Any = list(one.rows)
    if for_people:
        rows = rows[0] + (f" +{len(rows) - 1}" if len(rows) > 1 else "") if rows else None
    return {
        "state": one.state,
        "size": size(one.size) if for_people and one.size is not None else one.size,
        "column": ",".join(one.columns) or None,
        "rows": rows,
        "reference": one.reference,
    }
