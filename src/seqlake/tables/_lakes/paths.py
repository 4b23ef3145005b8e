"""Names below the root of a lake table: what is ours lies in `_seqlake/`, which no lake's cleanup enters.

Our data files lie where the lake wants them and are called `part-<T>-<n>.parquet`, so that everything of a
transaction T is known by its name. The bytes of one are looked for when they are first asked for.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from seqlake.abilities import WholeFiles, ability
from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.files import locations
from seqlake.files.allowed import OUTSIDE
from seqlake.files.credentials import Storage
from seqlake.files.references import open_reference
from seqlake.files.stores import list_without_links
from seqlake.shards.memory import ArrowShard
from seqlake.versions import names, shard_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from seqlake.protocols import Blob, Ints, Shard, Store
    from seqlake.versions.state import TableFile

FILES = f"{names.OURS}/{names.FILES}"
MERGED = f"{names.INDEX}/merged"
DERIVED = names.DERIVED
_KINDS = (".parquet", ".orc", ".avro", ".puffin")
_Found = TypeVar("_Found")


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


class LakeBlob:
    """A data file by its path: looked for when its bytes are first asked for; picklable.

    Args:
        store: The table's root.
        path: As in `TableFile.path`.
        nbytes: Its size, which the bytes found must have.
        storage: Options of obstore, for a file outside the root.
    """

    def __init__(self, store: Store, path: str, nbytes: int, /, *, storage: Mapping[str, str] | None = None) -> None:
        self._store = store
        self._path = path
        self._nbytes = nbytes
        self._storage = storage
        self._found: Blob | None = None

    def __repr__(self) -> str:
        return f"LakeBlob({self.location!r}, nbytes={self._nbytes})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}  # a handle belongs to one process

    @property
    def location(self) -> str:
        """Its path or URI."""
        return self._path if "://" in self._path or self._path[:1] == "/" else f"{self._store.root}/{self._path}"

    @property
    def size(self) -> int:
        """Its size, as the lake says."""
        return self._nbytes

    @property
    def token(self) -> str:
        """The token of the bytes that were found."""
        token = self._on_bytes(lambda blob: blob.token)
        if not token:  # not looked at yet
            self._found = blob_at(self._store, self._path, storage=self._storage)
            token = self._found.token
        return token

    def view(self) -> memoryview | None:
        """All of it as memory, as the store's own blob gives it."""
        return self._on_bytes(lambda blob: blob.view())

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Many ranges in few requests."""
        return self._on_bytes(lambda blob: blob.ranges(starts, stops))

    def _on_bytes(self, read: Callable[[Blob], _Found]) -> _Found:
        try:
            if self._found is None:
                self._found = self._look()
            return read(self._found)
        except FileNotFoundError as error:
            raise DamagedTableError(
                f"{self.location} is gone: this version of the table names it, but its bytes were removed by a "
                "vacuum, an expiry or something else.",
                path=self.location,
                hint="Open a newer version; `ds.versions()` lists them.",
            ) from error
        except ShardChangedError:
            raise
        except OSError:
            self._refuse_another_size(blob_at(self._store, self._path, storage=self._storage).size)
            raise

    def _look(self) -> Blob:
        whole = None if is_outside(self._path) else ability(self._store, WholeFiles)
        if whole is not None:  # the first bytes tell whether it has this size
            return whole.known(self._path, self._nbytes)
        blob = blob_at(self._store, self._path, storage=self._storage)
        self._refuse_another_size(blob.size)
        return blob

    def _refuse_another_size(self, size: int) -> None:
        if size != self._nbytes:
            raise ShardChangedError(
                f"Expected {self._nbytes} bytes at {self.location}, as the table says, found {size}.",
                path=self.location,
            )


def lake_blob(
    store: Store, path: str, nbytes: int, rows: int, /, *, storage: Mapping[str, str] | None
) -> tuple[LakeBlob, str]:
    """A data file and its key; a path may occur in many tables, and where a table lies tells them apart."""
    origin = f"{store.root}\0{path}\0{nbytes}\0{rows}"
    key = f"{path}#{blake2b(origin.encode(), digest_size=8).hexdigest()}"
    return LakeBlob(store, path, nbytes, storage=storage), key


def bare_shard(store: Store, file: TableFile, /, *, storage: Mapping[str, str] | None, index: bytes | None) -> Shard:
    """A file with its own columns and all its rows; `index` is kept outside the file."""
    if file.held is not None:
        held = ArrowShard(file.held)
        return ArrowShard(file.held, key=f"{file.name}#{held.key.rpartition('#')[2]}")
    blob, key = lake_blob(store, file.name, file.nbytes, file.rows, storage=storage)
    return shard_formats.describe(file.name, blob, rows=file.rows, nbytes=file.nbytes, key=key, index=index)
