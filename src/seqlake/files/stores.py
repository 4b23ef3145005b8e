"""Opens a store or a blob by its location: our own code for local disks, obstore for everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.files import locations
from seqlake.files.local import LocalBlob, LocalStore
from seqlake.files.memory import MemoryBlob

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from seqlake.files.remote import ObjectBlob, ObjectStore

__all__ = ["LocalBlob", "LocalStore", "MemoryBlob", "open_blob", "open_store"]


def open_store(
    root: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None
) -> LocalStore | ObjectStore:
    """The store whose root is this location; nothing is read yet.

    Args:
        root: A path, or a URI with `s3`, `gs`, `az`, `http` or `https`.
        storage: Options of obstore, as in `{"region": "eu-west-1"}`; the usual environment counts as well. Never
            stored in a dataset and never printed.

    Example:
        >>> open_store("data/arm").blob("mixtrain.json")  # doctest: +SKIP
        LocalBlob('/home/me/data/arm/mixtrain.json', 38 bytes)
    """
    place = locations.absolute(root)
    if locations.is_local(place):
        return LocalStore(place)
    from seqlake.files.remote import ObjectStore

    return ObjectStore(place, storage=storage)


def open_blob(
    location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None
) -> LocalBlob | ObjectBlob:
    """The bytes at this location.

    Args:
        location: A path or a URI.
        storage: As for `open_store`.

    Raises:
        FileNotFoundError: Nothing is there.
    """
    place = locations.absolute(location)
    if locations.is_local(place):
        return LocalBlob(place)
    from seqlake.files.remote import ObjectStore

    root, _, name = place.rpartition("/")
    return ObjectStore(root, storage=storage).blob(name)
