"""Reading all of something elsewhere: asked about at a terminal, else refused without `--allow-remote-scan`.

Footers, indexes and metadata are read always. All of a dataset is read by statistics and validation, and by a look at a
format that has no index.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

FREE = 64 << 20
"""Bytes that nobody is asked about."""

_ALLOWED = "seqlake.allow_remote_scan"


def _remember(context: click.Context, _parameter: click.Parameter, given: bool) -> None:
    context.meta[_ALLOWED] = given


option = click.option(
    "--allow-remote-scan",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Read all of a remote dataset where that is needed, without asking.",
)


def permit(location: str, nbytes: Callable[[], int], /) -> None:
    """Ask whether all of a remote dataset may be read; data of this machine, and small data, always may.

    Args:
        location: As given on the command line.
        nbytes: Says how much that is.

    Raises:
        UsageError: Nobody can be asked, and `--allow-remote-scan` was not given.
        Abort: The answer is no.
    """
    from seqlake.cli._output import size
    from seqlake.files import locations

    context = click.get_current_context(silent=True)
    if locations.is_local(location) or (context is not None and context.meta.get(_ALLOWED)):
        return
    amount = nbytes()
    if amount <= FREE:
        return
    text = f"This reads all of {locations.redacted(location)}: {size(amount)}"
    if context is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{text}. --allow-remote-scan does so without asking.")
    click.confirm(f"{text}. Go on?", abort=True, err=True)


def permit_format(location: str, /) -> None:
    """The same for a folder that is to be looked at as it is: Parquet says in its footers what it holds, others not."""
    from seqlake.errors import ReadOnlyError
    from seqlake.files import locations, stores

    if locations.is_local(location):
        return
    try:
        listed = list(stores.open_store(location).list())
    except ReadOnlyError:
        return  # a web server lists nothing
    if not any(path.endswith(".parquet") for path, _ in listed):
        permit(location, lambda: sum(nbytes for _, nbytes in listed))


def permit_rows(location: str, selection: Any, /) -> None:
    """The same for all rows of something opened."""
    permit(location, lambda: sum(shard.nbytes for shard in selection.shards()))
