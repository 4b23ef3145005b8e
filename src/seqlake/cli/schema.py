"""`seqlake schema`: columns, Arrow types and column types; types and metadata are set here, too."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options, _values
from seqlake.cli._output import Output, say


@click.command()
@_options.source
@_options.version
@click.option(
    "--set",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE,...",
    help="Say what a column means, as in --set cam=video,fps=30; --set cam= for a plain column. Repeatable.",
)
@click.option(
    "--set-metadata",
    "metadata",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a key of mixtrain.json, as in --set-metadata license=MIT; license= removes it. Repeatable.",
)
@click.option(
    "--depth",
    type=click.Choice(["metadata", "rows", "files", "decode"]),
    default="rows",
    show_default=True,
    help="How thoroughly the data are compared with types that are set.",
)
@_options.commits
def command(
    source: str,
    *,
    version: int | str | None,
    types: tuple[str, ...],
    metadata: tuple[str, ...],
    depth: Any,
    dry_run: bool,
    output: Output,
) -> None:
    """Show the columns of DATASET: category, Arrow type, column type with its fields.

    With --set and --set-metadata they are changed first, in one commit that writes no data file anew.
    """
    if types or metadata:
        if version is not None:
            raise click.UsageError("Only the newest version can be changed: leave --version out.")
        selection = _changed(source, types, metadata, depth=depth, dry_run=dry_run)
    else:
        selection = _options.opened(source, version=version)
    rows = []
    for name in selection.schema.names:
        column = selection.schema[name]
        declared = column.type.to_json() if column.type is not None else {}
        kind = declared.pop("type", "")
        rows.append(
            {
                "column": name,
                "category": column.category,
                "arrow": str(column.arrow),
                "type": kind,
                "fields": ", ".join(f"{k}={v}" for k, v in declared.items()),
            }
        )
    output.rows(rows, key="column", columns=["column", "category", "arrow", "type", "fields"])


def _changed(source: str, types: tuple[str, ...], metadata: tuple[str, ...], *, depth: Any, dry_run: bool) -> Any:
    kinds = _values.types("--set", types)
    values = _values.metadata("--set-metadata", metadata)
    dataset = _options.opened_dataset(source)
    before = dataset.version
    after = dataset.declare(types=kinds, metadata=values, depth=depth, dry_run=dry_run)
    if dry_run:
        say("Types and metadata fit the data; nothing was changed.", err=True)
    else:
        say(f"Version {after.id}." if after != before else "Nothing changes.", err=True)
    return dataset
