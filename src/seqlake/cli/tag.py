"""`seqlake tag`: names for versions."""

from __future__ import annotations

import click

from seqlake.cli import _options


@click.command()
@_options.source
@click.argument("name", required=False)
@click.option(
    "--version", metavar="V", callback=_options.as_version, help="Name this version instead of the newest one."
)
@click.option("--move", is_flag=True, help="Take the name from the version that has it.")
@click.option("--delete", is_flag=True, help="Take the name away.")
@_options.message
@_options.output_options
def command(
    source: str, name: str | None, *, version: int | str | None, move: bool, delete: bool, output: _options.Output
) -> None:
    """Give a version of DATASET a NAME, by which every command takes it; without NAME list those there are.

    A vacuum keeps a version for as long as it has a name.

    Example: seqlake tag data/arm v1 --version 3
    """
    dataset = _options.opened_dataset(source)
    if name is None:
        if delete or move or version is not None:
            raise click.UsageError("A NAME is missing.")
        rows = [{"tag": tag, "version": number} for tag, number in dataset.tags().items()]
        output.rows(rows, key="tag", columns=["tag", "version"])
    elif delete:
        if move or version is not None:
            raise click.UsageError("--delete takes a NAME away wherever it is; --version and --move do not go with it.")
        dataset.untag(name)
        output.document({"tag": name, "version": None}, text=f"{name} names no version any more.")
    else:
        named = dataset.tag(name, version, move=move)
        output.document(
            {"tag": name, "version": named.id}, text=f"{name} is version {named.id}: {named.rows} sequences."
        )
