"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Any

import click

source = click.argument("source", metavar="DATASET")
out = click.argument("out", metavar="OUT")
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
where = click.option("--where", metavar="SQL", help="Only rows for which this holds.")


def version_of(text: str | None) -> int | str | None:
    """A version as given on the command line: a number where it is one."""
    if text is None:
        return None
    return int(text) if text.isdigit() else text


version = click.option(
    "--version",
    "version",
    metavar="V",
    callback=lambda _c, _p, v: version_of(v),
    help="Look at this version instead of the newest.",
)


def opened(location: str, **options: Any) -> Any:
    """The dataset at a location, or a foreign one as it is."""
    from seqlake.dataset.opening import open as open_dataset
    from seqlake.dataset.opening import scan
    from seqlake.errors import DatasetNotFoundError

    version = options.pop("version", None)
    try:
        return open_dataset(location, version=version, **options)
    except DatasetNotFoundError as missing:
        if version is not None:
            raise
        try:
            return scan(location, **options)
        except DatasetNotFoundError:
            raise missing from None
