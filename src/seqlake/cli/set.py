"""`seqlake set`: change cells of one sequence."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options, _values


@click.command()
@_options.source
@click.argument("sequence_id", metavar="ID", shell_complete=_options.complete_ids)
@click.argument(
    "assignments", nargs=-1, required=True, metavar="COLUMN=VALUE...", shell_complete=_options.complete_cells
)
@_options.commits
def command(
    source: str, sequence_id: str, assignments: tuple[str, ...], *, dry_run: bool, output: _options.Output
) -> None:
    """Set cells of the sequence ID of DATASET, as one commit; `seqlake label` fills a column of many.

    VALUE is text as it is for columns of text, else JSON ([0.5, 1]) or what Arrow reads (2026-11-23); `null` is null,
    and @FILE takes a file into the dataset. Types of columns are set by `seqlake schema --set`.
    """
    dataset = _options.opened_dataset(source)
    with _options.sequences(dataset, [sequence_id]):
        view = dataset.sequence(sequence_id)
    cells: dict[str, Any] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"Expected COLUMN=VALUE, found {text!r}.")
        column = dataset.schema[name]
        if name == dataset.schema.id:
            raise click.UsageError(f"{name!r} names the sequence and cannot be set.")
        cells[name] = _values.cell_of(value, column)
    facts = {"sequence_id": view.id, "columns": list(cells), "dry_run": dry_run}
    version = dataset.version
    with _options.rehearsed(dry_run):
        version = dataset.upsert([{str(dataset.schema.id): view.id, **cells}])
    if dry_run:
        output.document(facts, text=f"Would set {', '.join(cells)} of {view.id}.")
        return
    text = f"Set {', '.join(cells)} of {view.id}; version {version.id}."
    output.document({**facts, "version": version.id}, text=text)
