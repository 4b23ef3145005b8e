"""`seqlake diff`: what differs between two versions or datasets."""

from __future__ import annotations

from typing import Any

import click

from seqlake.cli import _options


@click.command()
@_options.source
@click.argument("other", required=False, shell_complete=_options.complete_paths)
@click.option("--from", "before", metavar="V", callback=_options.as_version, help="The version that is compared with.")
@_options.version
@click.option("--exit-code", is_flag=True, help="End with 1 where something differs.")
@_options.output_options
def command(
    source: str,
    other: str | None,
    *,
    before: int | str | None,
    version: int | str | None,
    exit_code: bool,
    output: _options.Output,
) -> int:
    """Show what rows, cells, columns and types differ between two versions of DATASET, or between it and OTHER.

    Without OTHER the version --from (the one before, by default) is compared with --version (the newest). With -q only
    the ids of rows that were added, removed or changed.

    Example: seqlake diff data/arm --from 3
    """
    from seqlake.dataset.reading.difference import diff

    if other is not None:
        first = _options.opened(source, version=before)
        second = _options.opened(other, version=version)
    else:
        second = _options.opened_dataset(source, version=version)
        first = _options.opened_dataset(source, version=_before(second) if before is None else before)
    difference = diff(first, second)
    if output.quiet:
        for name in (*difference.added, *difference.removed, *difference.changed):
            click.echo(name, color=True)
    else:
        output.document(difference.to_json(), text=str(difference))
    return int(exit_code and bool(difference))


def _before(dataset: Any) -> int | str:
    listed = [version.id for version in dataset.versions()]
    place = listed.index(dataset.version.id)
    if place == 0:
        raise click.UsageError("There is no version before this one; name one with --from.")
    before: int | str = listed[place - 1]
    return before
