"""Arguments and options that several commands share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _within(seconds: float, work: Callable[[], list[str]]) -> list[str]:
    """What `work` finds in so much time, else nothing: a shell that waits is worse than one that does not know."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return list(found)


def _complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    def names(location: str) -> list[str]:
        try:
            selection = opened(location)
            if kind == "columns":
                return list(selection.schema)
            column: list[str] = selection.select(selection.schema.id).to_arrow().column(0).to_pylist()
        except Exception:  # noqa: BLE001 - whatever is wrong, completion is silent
            return []
        return column

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        location = ctx.params.get("source")
        before, comma, last = incomplete.rpartition(",") if kind == "columns" else ("", "", incomplete)
        found = _within(0.3, lambda: names(location)) if location else []
        return [f"{before}{comma}{name}" for name in found if name.startswith(last)][:200]

    return complete


complete_ids = _complete("ids")
complete_columns = _complete("columns")


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
