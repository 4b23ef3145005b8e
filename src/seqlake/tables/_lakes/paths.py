"""Names below the root of a lake table: what is ours lies in `_seqlake/`, which no lake's cleanup enters.

Our data files lie where the lake wants them and are called `part-<T>-<n>.parquet`, so that everything of a
transaction T is known by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.files import locations
from seqlake.files.allowed import OUTSIDE
from seqlake.files.credentials import Storage
from seqlake.files.references import open_reference
from seqlake.files.stores import list_without_links
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.protocols import Blob, Store

FILES = f"{names.OURS}/{names.FILES}"
MERGED = f"{names.INDEX}/merged"
DERIVED = names.DERIVED
_KINDS = (".parquet", ".orc", ".avro", ".puffin")


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
    """The bytes of a data file, below the root or, where that is allowed, outside it.

    Raises:
        FileNotFoundError: It is gone.
        UnsafeReferenceError: It lies outside on this machine, and `allow_outside` was not given; or the lake names a
            host or a bucket that it may not.
    """
    if not is_outside(path):
        return store.blob(path)
    allowed = Storage(storage).allows(OUTSIDE)
    return open_reference(store.root, path, storage=storage, allow_outside=allowed)


def apart(listed: Iterable[str], /) -> tuple[str, ...]:
    """The folders, with a final slash, that are datasets of their own among these paths of a lake's folder."""
    folders = set()
    for path in listed:
        folder, inside, _ = path.partition(f"/{names.OURS}/")
        if not inside:
            folder, inside, name = path.rpartition("/")
            inside = inside if name == names.METADATA else ""
        if inside:
            folders.add(f"{folder}/")
    return tuple(folders)


def removable(store: Store, named: Iterable[str], /) -> dict[str, int]:
    """Which of the files that a lake's metadata name may be removed; whoever wrote the metadata may have named any.

    Those that lie below the root, reached without links, in none of the datasets in there, and are of a kind that
    lakes write; sorted, with their sizes.
    """
    listed = dict(list_without_links(store))
    others = apart(listed)
    return {
        path: listed[path]
        for path in sorted(listed.keys() & set(named))
        if path.endswith(_KINDS) and not path.startswith((*others, f"{names.OURS}/"))
    }


def relative_to(root: str, location: str, /) -> str:
    """A location as `TableFile.path` has it: relative where it lies below the root."""
    place = locations.absolute(location)
    start = locations.absolute(root).rstrip("/") + "/"
    return place.removeprefix(start)
