"""What pyiceberg reads and writes for a table is below the table's location: others may have written its metadata."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from seqlake.errors import UnsafeReferenceError
from seqlake.files.locations import inside, is_local, local_path
from seqlake.files.references import contained
from seqlake.tables.iceberg.addresses import place_of

if TYPE_CHECKING:
    from pyiceberg.io import InputFile, OutputFile

    from seqlake.tables.iceberg.addresses import Address


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
        made: InputFile = self._io.new_input(self._checked(location))
        return made

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        made: OutputFile = self._io.new_output(self._checked(location))
        return made

    def delete(self, location: Any) -> None:
        """Remove a file."""
        self._checked(location if isinstance(location, str) else location.location)
        self._io.delete(location)

    def _checked(self, location: str) -> str:
        contained(self._root, place_of(location))
        return location


def refuse_elsewhere(address: Address, root: str, /) -> None:
    """Refuse a table that a catalog in a local file places away from its warehouse: whoever made the file chose that.

    Raises:
        UnsafeReferenceError: It does.
    """
    uri = address.properties.get("uri", "")
    if not uri.startswith("sqlite:///") or not is_local(root):
        return
    beside = os.path.dirname(os.path.abspath(uri.removeprefix("sqlite:///").partition("?")[0]))  # noqa: PTH100, PTH120 - strings
    warehouse = address.properties.get("warehouse", "")
    known = [beside, *([str(local_path(warehouse))] if warehouse and is_local(warehouse) else [])]
    if not any(inside(place, root) for place in known):
        raise UnsafeReferenceError(
            f"{address.name} lies at {root}, away from the catalog's own folder {known[-1]}.",
            path=root,
            hint="If you trust the catalog, open it with allow_outside=True.",
        )
