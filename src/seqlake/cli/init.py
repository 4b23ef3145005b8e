"""`seqlake init`: make a plain Parquet folder a Mixtrain dataset."""

from __future__ import annotations

import json

import click

from seqlake.cli import _options
from seqlake.cli._output import Output, output_options


@click.command()
@click.argument("folder")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=JSON",
    help='A column type to declare, as in --type \'cam={"type": "video", "fps": 30}\'.',
)
@_options.dry_run
@output_options
def command(folder: str, *, types: tuple[str, ...], dry_run: bool, output: Output) -> None:
    """Look at the Parquet files in FOLDER and write the mixtrain.json that makes them a dataset.

    Only mixtrain.json is written; data files stay as they are.
    """
    from seqlake.dataset.opening import init

    declared = {}
    for text in types:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"--type wants COLUMN=JSON, got {text!r}.")
        try:
            declared[name] = json.loads(value)
        except json.JSONDecodeError as error:
            raise click.UsageError(f"--type {name}: not JSON: {error}.") from error
    metadata = init(folder, column_types=declared, dry_run=dry_run)
    text = metadata.to_json()
    verb = "Would write" if dry_run else "Wrote"
    output.document({"metadata": json.loads(text), "dry_run": dry_run}, text=f"{verb} mixtrain.json:\n{text}")
