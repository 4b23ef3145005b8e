"""What pyiceberg reads and writes for a table is below the table's location: others may have written its metadata."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqlake.errors import UnsafeReferenceError
from seqlake.files.locations import absolute, inside, is_local, local_path
from seqlake.files.references import contained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.io import InputFile, OutputFile


class FencedIO:
    """A `FileIO` that refuses paths of this machine outside a table: manifests, files of deletes, what is removed.

    Args:
        io: pyiceberg's.
        root: Where the table lies.
    """

    def __init__(self, io: Any, root: str, /) -> None:
        self._io = io
        self._root = root
        self.properties = io.properties

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        file: InputFile = self._io.new_input(self._checked(location))
        return file

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        file: OutputFile = self._io.new_output(self._checked(location))
        return file

    def delete(self, location: Any) -> None:
        """Remove a file that may be touched."""
        self._checked(location if isinstance(location, str) else location.location)
        self._io.delete(location)

    def _checked(self, location: str) -> str:
        contained(self._root, place_of(location))
        return location


def place_of(location: str, /) -> str:
    """Where a table lies; nothing is escaped in the locations that pyiceberg writes, on this machine or elsewhere."""
    return location.removeprefix("file://").rstrip("/") if location.startswith("file:///") else absolute(location)


def refuse_elsewhere(properties: Mapping[str, str], name: str, place: str, /) -> None:
    """Refuse a place of this machine that a catalog in a local file names, away from its warehouse.

    Whoever made the file chose that. What it places in a bucket, `refuse_bucket` judges.

    Args:
        properties: Of the catalog.
        name: Of what lies there, for the message.
        place: Of a table, or of its metadata.

    Raises:
        UnsafeReferenceError: It is elsewhere.
    """
    uri = properties.get("uri", "")
    if not uri.startswith("sqlite:///") or not is_local(place):
        return
    beside = os.path.dirname(os.path.abspath(uri.removeprefix("sqlite:///").partition("?")[0]))  # noqa: PTH100, PTH120 - strings
    warehouse = properties.get("warehouse", "")
    known = [beside, *([str(local_path(warehouse))] if warehouse and is_local(warehouse) else [])]
    if not any(inside(one, place) for one in known):
        raise UnsafeReferenceError(
            f"{name} lies at {place}, away from the catalog's own folder {known[-1]}.",
            path=place,
            hint="If you trust the catalog, open it with allow_outside=True.",
        )
