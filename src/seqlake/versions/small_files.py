"""The small files of a table, each read or removed whole: records, markers, index files; what its store can do.

Derived bytes are kept by name: in the table, or in the user's cache where the table cannot be written.
"""

from __future__ import annotations

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from seqlake.abilities import ReadsWhole, ability
from seqlake.errors import ShardChangedError
from seqlake.files.locations import is_local, scheme
from seqlake.files.stores import list_without_links
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from seqlake.protocols import Store

PARALLEL = 16
_TRIES = 10
_DELETED = 1000  # names that S3 removes in one request
Item = TypeVar("Item")
Answer = TypeVar("Answer")


def on_disk(store: Store, /) -> bool:
    """Whether this is a folder of this machine, where names can be probed for next to nothing."""
    return is_local(store.root)


def can_list(store: Store, /) -> bool:
    """Whether folders can be listed; over HTTP they cannot."""
    return scheme(store.root) not in {"http", "https"}


def read(store: Store, path: str, /) -> bytes | None:
    """A small file, whole; None where there is none."""
    whole = ability(store, ReadsWhole)
    for _ in range(_TRIES):
        try:
            if whole is not None:
                return bytes(whole.read(path))
            blob = store.blob(path)
            size = blob.size
            if not size:
                return b""
            return bytes(blob.ranges(np.array([0], np.int64), np.array([size], np.int64))[0])
        except FileNotFoundError:
            return None
        except ShardChangedError:
            continue  # `mixtrain.json`, markers and the hint are replaced under a reader.
    raise ShardChangedError(f"{path} of {store.root} changed each time it was read.", path=store.root)


def read_many(store: Store, paths: Sequence[str], /) -> list[bytes | None]:
    """Several small files at once: in order locally, in parallel elsewhere."""
    return in_parallel(store, lambda path: read(store, path), paths)


def in_parallel(store: Store, act: Callable[[Item], Answer], items: Sequence[Item], /) -> list[Answer]:
    """Do the same with each: in order locally, many at a time elsewhere, where each waits for an answer.

    Raises:
        BaseException: The first failure; what was not begun by then is not begun.
    """
    if len(items) < 2 or on_disk(store):
        return [act(item) for item in items]
    with ThreadPoolExecutor(PARALLEL) as pool:
        try:
            return list(pool.map(act, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def names_in(store: Store, folder: str, /, *, after: str = "") -> list[str]:
    """The names of the files that lie directly in a folder, sorted."""
    start = len(folder) + 1
    listed = store.list(folder, after=f"{folder}/{after}" if after else "")
    return [path[start:] for path, _ in listed if "/" not in path[start:]]


class Removed(list[str]):
    """Paths that were removed, or would be, and how much that frees.

    Args:
        paths: What left.
        sizes: Of those that a listing showed.

    Attributes:
        nbytes: Of all of them.
    """

    def __init__(self, paths: Iterable[str], sizes: Mapping[str, int], /) -> None:
        super().__init__(paths)
        self.nbytes: int = sum(sizes.get(path, 0) for path in self)


def own_names(store: Store, folder: str, /) -> list[str]:
    """The names of the files that lie directly in a folder of the table's own, to move or remove them; sorted.

    Raises:
        UnsafeReferenceError: The folder is a link.
    """
    start = len(folder) + 1
    return [path[start:] for path in own_sizes(store, folder)]


def own_sizes(store: Store, folder: str, /) -> dict[str, int]:
    """As `own_names`, whole paths with their sizes."""
    start = len(folder) + 1
    return {path: size for path, size in list_without_links(store, folder) if "/" not in path[start:]}


def remove(store: Store, paths: Sequence[str], /) -> None:
    """Delete names, whether or not a rival was faster; the last of them last.

    Elsewhere than on disk in few requests, each of which removes its names in any order.
    """
    if not paths:
        return
    most = 1 if on_disk(store) else _DELETED
    before = [paths[at : min(at + most, len(paths) - 1)] for at in range(0, len(paths) - 1, most)]
    for some in (*before, paths[-1:]):
        try:
            store.delete(some)
        except FileNotFoundError:
            if len(some) > 1:  # which of them it was, and whether others were done, depends on the store
                for path in some:
                    remove(store, [path])


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def read_derived(store: Store, name: str, /) -> bytes | None:
    """What was kept under this name; None where nothing was."""
    data = read(store, f"{names.DERIVED}/{_checked(name)}")
    return data if data is not None else read(_cache(store.root), name)


def write_derived(store: Store, name: str, data: bytes, /, *, inside: bool = True) -> None:
    """Keep bytes that can be computed again.

    Args:
        store: The table's.
        name: A plain name.
        data: The bytes.
        inside: Whether the table may be written to; a plain folder is left as it is.
    """
    path = f"{names.DERIVED}/{_checked(name)}"
    if inside:
        try:
            store.put(path, data, temporary=names.temporary(names.new_transaction()))
        except OSError:
            pass  # read only: the user's own cache does as well
        else:
            return
    _cache(store.root).put(name, data, temporary=f"{names.new_transaction()}.tmp")


def _checked(name: str) -> str:
    if _NAME.fullmatch(name) is None or name.endswith(names.SUFFIX):
        raise ValueError(f"A derived file has a plain name without {names.SUFFIX}, found {name!r}.")
    return name


def _cache(root: str) -> Store:
    """A folder of the user's for this table."""
    from seqlake.files.stores import LocalStore

    top = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return LocalStore(Path(top) / "seqlake" / "derived" / hashlib.sha256(root.encode()).hexdigest()[:32])
