"""`seqlake init`: make plain Parquet files, or a table of a lake, a Mixtrain dataset."""

from __future__ import annotations

import json

import click

from seqlake.cli import _options, _values


@click.command()
@click.argument("place")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE,...",
    help="A column type to declare, as in --type cam=video,fps=30, or as JSON. Repeatable.",
)
@_options.commits
def command(place: str, *, types: tuple[str, ...], dry_run: bool, output: _options.Output) -> None:
    """Look at the Parquet files in PLACE and write the mixtrain.json that makes them a dataset.

    PLACE may be a table of a lake, as delta:FOLDER: its property mixtrain is set, in one commit. Data files
    stay as they are.
    """
    from seqlake.dataset import opening
    from seqlake.dataset.init import init_there
    from seqlake.versions.messages import message

    if message() is not None and opening.lake_table(opening.place_of(place), None) is None:
        raise click.UsageError("A folder has no versions before its first change, so none can carry a --message.")
    declared = {name: kind for name, kind in _values.types("--type", types).items() if kind is not None}
    metadata, where = init_there(place, column_types=declared, dry_run=dry_run)
    text = metadata.to_json()
    verb = "Would write" if dry_run else "Wrote"
    output.document({"metadata": json.loads(text), "dry_run": dry_run}, text=f"{verb} {where}:\n{text}")
