"""What is at a place where no Mixtrain dataset is, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake import plugins
from seqlake.dataset.reading import plain
from seqlake.errors import DatasetNotFoundError, SeqlakeError
from seqlake.files import locations

if TYPE_CHECKING:
    from collections.abc import Mapping

METADATA = "mixtrain.json"


def format_of(place: str, storage: Mapping[str, str] | None, /) -> str | None:
    """The other format that a place is of; None where none knows it."""
    known = ((name, plugins.load("formats", name)) for name in plugins.names("formats"))
    return next((name for name, plug in known if plug.matches(place, storage=storage)), None)


def not_a_dataset(place: object, storage: Mapping[str, str] | None, /) -> DatasetNotFoundError:
    """The error that says what is there instead, and what to do about it."""
    if not isinstance(place, str):
        return DatasetNotFoundError(f"Expected a path, a URI or a table object, found {type(place).__name__}.")
    try:
        there, hint = _what_is_there(place, storage)
    except (OSError, SeqlakeError) as error:
        there, hint = f"and what is there cannot be listed ({str(error).partition(chr(10))[0]})", "Check the address."
    return DatasetNotFoundError(f"No Mixtrain dataset is at {place}: {there}.", path=place, hint=hint)


def _what_is_there(place: str, storage: Mapping[str, str] | None) -> tuple[str, str]:
    create_it = "Create one with sl.create(location, schema)."
    local = locations.local_path(place) if locations.is_local(place) else None
    if local is not None and not local.exists():
        return "nothing is there", f"Check the path, or: {create_it}"
    if local is not None and local.is_file():
        return "it is one file", f"Read a Parquet file with sl.scan({place!r})."
    name = format_of(place, storage)
    if name is not None:
        return (
            f"it is a dataset of the format {name!r}",
            f"Read it with sl.scan({place!r}), or convert it with sl.convert({place!r}, OUT).",
        )
    inner = sorted(path.parent.name for path in local.glob(f"*/{METADATA}")) if local is not None else []
    if inner:
        return f"it is a folder of datasets ({', '.join(inner[:5])})", "Open one of them."
    _, files = plain.parquet_paths(place, storage=storage)
    if files:
        return (
            f"it holds Parquet ({len(files)} files) but no {METADATA}",
            f"Read it with sl.scan({place!r}), or make it a dataset with: seqlake init {place}",
        )
    return f"it has neither {METADATA} nor Parquet files", create_it
