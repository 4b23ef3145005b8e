"""Opens a store or a blob by its location: our own code for local disks and the web, obstore or a plug for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake import plugins
from seqlake.abilities import HasLinks, PinsLocations, ability
from seqlake.errors import CorruptFileError, ReadOnlyError
from seqlake.files import fence, locations
from seqlake.files.allowed import OUTSIDE, refuse_bucket, trusting
from seqlake.files.blobs import LocalBlob, MemoryBlob
from seqlake.files.credentials import Storage
from seqlake.files.limits import refuse_more_than_memory
from seqlake.files.local import LocalStore

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from seqlake.protocols import Blob, Store, StoreFormat

__all__ = [
    "LocalBlob",
    "LocalStore",
    "MemoryBlob",
    "exists",
    "list_without_links",
    "open_blob",
    "open_store",
    "pinned",
    "read_all",
    "refuse_links",
    "refuse_pinned",
]

_WEB = {"http", "https"}


def open_store(
    root: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None, named_by: str | None = None
) -> Store:
    """The store whose root is this location; nothing is read yet.

    Args:
        root: A path, or a URI with the scheme `s3`, `gs`, `az`, `http`, `https` or that of an installed plug.
        storage: Options of obstore, as in `{"region": "eu-west-1"}`; the usual environment counts as well. Never
            stored in a dataset and never printed. Ours: `mmap="false"` reads local files instead of mapping them,
            `allow_outside="true"` lets links lead what is read out of a local root, `allow_redirects="true"` lets a
            web server send us to another host; see also `files.allowed`.
        named_by: The root of the dataset whose own bytes name this one; None: somebody who may name any.

    Raises:
        ValueError: A scheme or an option that is not known.
        UnsafeReferenceError: A dataset names it that may not.

    Example:
        >>> open_store("/data/arm")
        LocalStore('/data/arm')
    """
    place = locations.absolute(root)
    kind = locations.scheme(place)
    if kind == "file":
        if storage is None:
            return LocalStore(place)
        options = Storage(storage)
        return LocalStore(place, mapped=_mapped(options), allow_outside=options.allows(OUTSIDE))
    if kind in _WEB:
        from seqlake.files.web import WebStore  # with urllib and ssl, which a dataset on this disk need not wait for

        return WebStore(place, storage=trusting(storage, place if named_by is None else named_by))
    if named_by is not None:
        refuse_bucket(place, storage, named_by=named_by)
    return _remote(place, storage)


def open_blob(
    location: str | os.PathLike[str], /, *, storage: Mapping[str, str] | None = None, named_by: str | None = None
) -> Blob:
    """The bytes at this location.

    Args:
        location: A path or a URI.
        storage: As for `open_store`.
        named_by: The same.

    Raises:
        FileNotFoundError: Nothing is there.
        UnsafeReferenceError: A dataset names it that may not.

    Example:
        >>> open_blob("/data/arm/mixtrain.json")  # doctest: +SKIP
        LocalBlob('/data/arm/mixtrain.json', 38 bytes)
    """
    place = locations.absolute(location)
    kind = locations.scheme(place)
    if kind == "file":
        return LocalBlob(place, mapped=_mapped(Storage(storage)))
    if kind in _WEB:
        from seqlake.files.web import WebBlob  # for the same reason

        return WebBlob(place, storage=trusting(storage, place if named_by is None else named_by))
    if named_by is not None:
        refuse_bucket(place, storage, named_by=named_by)
    root, name = locations.parent(place)
    return _remote(root, storage).blob(name)


def _remote(root: str, storage: Mapping[str, str] | None) -> Store:
    kind = locations.scheme(root)
    if kind not in locations.OBJECT_STORES and kind in plugins.names("stores"):
        plug: StoreFormat = plugins.load("stores", kind)
        return plug.open(root, storage=storage)
    from seqlake.files.remote import ObjectStore  # for the same reason

    return ObjectStore(root, storage=storage)


def pinned(location: str, /, *, storage: Mapping[str, str] | None = None) -> str:
    """A location as it means the same tomorrow, where its store knows revisions; any other as it is.

    Args:
        location: Absolute.
        storage: As for `open_store`.

    Raises:
        DatasetNotFoundError: The store knows nothing there.
    """
    plug = _pinning(location)
    return location if plug is None else plug.pinned(location, storage=storage)


def refuse_pinned(location: str, /) -> None:
    """Refuse to write into a store that has revisions, where files are not written one by one.

    Raises:
        ReadOnlyError: It is one.
    """
    if _pinning(location) is not None:
        raise ReadOnlyError(
            f"{locations.redacted(location)} is in a store of revisions, where files are not written one by one.",
            path=locations.redacted(location),
            hint="Write to a folder, then push it: sl.push(FOLDER, 'hf://datasets/owner/name'), `seqlake push`.",
        )


def _pinning(location: str) -> PinsLocations | None:
    kind = locations.scheme(location)
    if kind in {"file", *_WEB, *locations.OBJECT_STORES} or kind not in plugins.names("stores"):
        return None
    return ability(plugins.load("stores", kind), PinsLocations)


def _mapped(options: Storage) -> bool:
    return options.get("mmap", "true").lower() != "false"


def exists(store: Store, path: str, /) -> bool:
    """Whether a store holds a file of this name."""
    try:
        store.blob(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def refuse_links(store: Store, folders: Iterable[str], /) -> None:
    """Refuse folders of a store that are links, or are reached by one; those that are not there are fine.

    Raises:
        UnsafeReferenceError: Says which.
    """
    if ability(store, HasLinks) is not None:
        fence.refuse_links(store.root, *folders)


def list_without_links(store: Store, folder: str = "", /) -> Iterator[tuple[str, int]]:
    """(path, size) of the files below a folder of a store, to move or remove them: no link is followed to one.

    Raises:
        UnsafeReferenceError: The folder is a link, or is reached by one.
    """
    known = ability(store, HasLinks)
    return iter(store.list(folder)) if known is None else known.list_without_links(folder)


def read_all(blob: Blob, /, *, most: int | None = None) -> bytes:
    """All bytes of a blob.

    Args:
        blob: The blob.
        most: How many bytes it can have to be what it should be; None: what this machine can hold.

    Raises:
        CorruptFileError: It is larger; nothing was read.

    Example:
        >>> read_all(MemoryBlob(b"abc"))
        b'abc'
    """
    if most is not None and blob.size > most:
        raise CorruptFileError(
            f"{blob.location}: expected at most {most:,} bytes, found {blob.size:,}.", path=blob.location
        )
    refuse_more_than_memory(blob.size, blob.location)
    view = blob.view()
    if view is None:
        [view] = blob.ranges(np.array([0], np.int64), np.array([blob.size], np.int64))
    return bytes(view)
