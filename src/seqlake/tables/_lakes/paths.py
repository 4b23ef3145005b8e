"""Names below the root of a lake table: what is ours lies in `_seqlake/`, which no lake's cleanup enters.

Our data files lie where the lake wants them and are called `part-<T>-<n>.parquet`, so that everything of a
transaction T is known by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.files import locations
from seqlake.files.stores import open_blob
from seqlake.tables.standalone import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob, Store

FILES = f"{names.OURS}/{names.FILES}"
MERGED = f"{names.INDEX}/merged"
DERIVED = names.DERIVED


def owner(path: str, /) -> str | None:
    """The transaction that wrote this data file; None where another client did."""
    return names.owner(path.rpartition("/")[2])


def staged(name: str, /) -> str:
    """Where a shard called `name` lies before its commit, on disk."""
    return names.staged(name)


def is_outside(path: str, /) -> bool:
    """Whether a lake names this file by an absolute path or URI: it is none of the table's own."""
    return "://" in path or path.startswith("/")


def blob_at(store: Store, path: str, /, *, storage: Mapping[str, str] | None) -> Blob:
    """The bytes of a data file, below the root or outside it.

    Raises:
        FileNotFoundError: It is gone.
        UnsafeReferenceError: The lake names a host or a bucket that it may not.
    """
    if not is_outside(path):
        return store.blob(path)
    return open_blob(path, storage=storage, named_by=str(getattr(store, "root", "")))


def below(root: str, location: str, /) -> str:
    """A location as `LakeFile.path` has it: relative where it lies below the root."""
    place = locations.absolute(location)
    start = locations.absolute(root).rstrip("/") + "/"
    return place.removeprefix(start)
