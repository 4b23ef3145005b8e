"""A bucket, or a folder in one, as a store: S3, Google Cloud Storage and Azure, through obstore."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from seqlake.errors import ForkedProcessError, ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import credentials, locations
from seqlake.files.limits import refuse_more_than_memory
from seqlake.files.locations import checked, folder
from seqlake.files.ranges import fetched, hardly_more, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from seqlake.protocols import Ints

_RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=90)}
_user: list[int] = []  # the process that has used obstore first: a fork inherits the fact, a fresh process does not
_Answer = TypeVar("_Answer")
_WAITS = (0.1, 0.4, 1.6)  # seconds


def patiently(act: Callable[[], _Answer], /, *, is_done: Callable[[], bool] | None = None) -> _Answer | None:
    """Do something that may be done twice, again where its connection broke.

    obstore repeats a request that had no answer yet and is known to be harmless; not a listing whose body broke off,
    a put that refuses a name that is taken, a delete. What it gave up after retries of its own is not done again.

    Args:
        act: One or more requests.
        is_done: Whether an earlier try did it, whose answer was lost: asked where a later one finds the name taken.
            Of obstore's own tries nothing is known: whoever makes a name must look whose it is.
    """
    from obstore import exceptions

    taken = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
    for number, wait in enumerate((*_WAITS, None)):
        try:
            return act()
        except taken:
            if not number or is_done is None or not is_done():
                raise
            return None
        except exceptions.GenericError as error:
            text = str(error).partition("\n")[0]
            if wait is None or "HTTP error" not in text or " retries" in text:
                raise
            time.sleep(wait)
    raise AssertionError  # the last try returned or raised


def check_process() -> None:
    """Refuse obstore in a forked child of a process that has used it: its threads are gone, and it would hang.

    Raises:
        ForkedProcessError: This is such a child.
    """
    if not _user:
        _user.append(os.getpid())
    elif _user[0] != os.getpid():
        raise ForkedProcessError(
            "This process was forked from one that had used a remote store, whose threads do not survive a fork. "
            'Start workers with multiprocessing_context="forkserver" (or "spawn"), or read a local copy.'
        )


class ObjectBlob:
    """An object that does not change; parts of it are read in few requests.

    Every request names the ETag that was seen first, so that a changed object is an error.
    """

    __slots__ = ("_path", "_store", "size", "token")

    def __init__(self, store: ObjectStore, path: str, size: int, token: str, /) -> None:
        self._store = store
        self._path = path
        self.size: int = min(size, 1 << 62)  # what an index can name, whatever a server says
        self.token: str = token

    @property
    def location(self) -> str:
        """The URI of the object."""
        return f"{self._store.root}/{self._path}"

    def view(self) -> memoryview | None:
        """None: only ranges can be had."""
        return None

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it; neighbours are fetched together, up to 12 requests at once.

        Raises:
            ShardChangedError: The object changed, or does not reach that far.
        """
        check_process()
        requests = plan(starts, stops, self.size, self.location)
        if self.token or not requests.pieces:
            return fetched(requests, self.part)
        # The ETag of the first answer is the one that all others must have.
        first = requests.pieces[0]
        data = self.part(*first)
        return fetched(requests, lambda start, stop: data if (start, stop) == first else self.part(start, stop))

    def part(self, start: int, stop: int) -> memoryview:
        """One range in one request."""
        import obstore

        options: Any = {"range": (start, stop)}
        if self.token.startswith('"'):  # a weak tag (W/"...") matches nothing by the rules of HTTP
            options["if_match"] = self.token
        with self._store.translated(self._path):
            handle = self._store.handle()
            answer = obstore.get(handle, self._path, options=options)
            seen = _token(answer.meta)
            data = hardly_more(answer.stream(min_chunk_size=stop - start + 1), stop - start)
        if not self.token and int(answer.meta["size"]) == self.size:
            self.token = seen  # nobody looked before: from here on it stays what it is
        if seen != self.token or len(data) != stop - start:
            raise ShardChangedError(
                f"{self.location} changed while it was open: expected {self.size} bytes of ETag {self.token or 'any'}, "
                f"found {answer.meta['size']} of {seen}. Open the dataset again.",
                path=self.location,
            )
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectBlob) and (self.location, self.token) == (other.location, other.token)

    def __hash__(self) -> int:
        return hash((self.location, self.token))

    def __getstate__(self) -> tuple[ObjectStore, str, int, str]:
        return (self._store, self._path, self.size, self.token)

    def __setstate__(self, state: tuple[ObjectStore, str, int, str]) -> None:
        self._store, self._path, self.size, self.token = state

    def __repr__(self) -> str:
        return f"ObjectBlob({self.location!r}, {self.size} bytes)"


def _token(meta: Any) -> str:
    return str(meta["e_tag"] or f"{meta['size']}-{meta['last_modified'].isoformat()}")


class ObjectStore:
    """A bucket, or a folder in one.

    It pickles as a description, with its options; every process makes its own connection.

    Args:
        root: The URI, as in `s3://bucket/data`.
        storage: obstore's options; the usual environment counts as well.

    Raises:
        ValueError: A scheme that is not known, or no bucket.
    """

    def __init__(self, root: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        kind = locations.scheme(root)
        if kind not in locations.OBJECT_STORES:
            raise ValueError(
                f"{root}: expected one of {', '.join(locations.OBJECT_STORES)}, http or https, or the scheme of a plug "
                f"in the group 'seqlake.stores', found {kind!r}."
            )
        if not locations.has_bucket(root):
            raise ValueError(f"{root}: expected a bucket, as in {kind}://bucket/folder.")
        self.root: str = root.rstrip("/")
        self._storage = credentials.Storage(storage)
        self._handle: Any = None
        self._exclusive = False

    def handle(self) -> Any:
        """The object of obstore, made once per process.

        Raises:
            ForkedProcessError: In a forked child of a process that had used one.
        """
        check_process()
        if self._handle is None:
            self._handle = self._connect()
        return self._handle

    def _connect(self) -> Any:
        import obstore.exceptions
        import obstore.store as stores

        kind, _, rest = self.root.partition("://")
        options: Any = {"retry_config": _RETRIES, **credentials.for_obstore(self._storage, scheme=kind.lower())}
        # Not `from_url` where a name can be given as it is: a URL takes `%` and `?` for its own.
        makers: dict[str, Any] = {"s3": stores.S3Store, "s3a": stores.S3Store, "gs": stores.GCSStore}
        try:
            if kind.lower() not in makers:
                return stores.from_url(self.root, **options)
            bucket, _, prefix = rest.partition("/")
            return makers[kind.lower()](bucket, prefix=prefix or None, **options)
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ValueError(f"{self.root}: {self._told(error)}") from None

    def blob(self, path: str, /) -> ObjectBlob:
        """The object of that name; asks the store for its size and ETag.

        Raises:
            FileNotFoundError: There is none.
        """
        import obstore

        with self.translated(path):
            meta = obstore.head(self.handle(), checked(path))
        return ObjectBlob(self, path, int(meta["size"]), _token(meta))

    def known(self, path: str, size: int, /) -> ObjectBlob:
        """The object of that name, whose size somebody wrote down; asks nothing.

        Its ETag is that of the first answer. Not there, or of another size, is an error then.
        """
        return ObjectBlob(self, checked(path), size, "")

    def stamp(self, path: str, /) -> str:
        """ETag and time of the last change: equal bytes that were written again have another one.

        Raises:
            FileNotFoundError: There is no such object.
        """
        import obstore

        with self.translated(path):
            meta = obstore.head(self.handle(), checked(path))
        return f"{_token(meta)} {meta['last_modified'].isoformat()}"

    def first_read(
        self, path: str, starts: Ints, stops: Ints, /, *, size: int
    ) -> tuple[ObjectBlob, list[memoryview]] | None:
        """Parts of an object of known size, and the object: its ETag comes with the first answer, not before it.

        Args:
            path: Its name.
            starts: First bytes of what to read of it.
            stops: Their ends.
            size: Its bytes.

        Returns:
            The object, and its parts; None where it is not as large, or where no byte is asked for.

        Raises:
            FileNotFoundError: There is none.
        """
        blob = self.known(path, size)
        if not plan(starts, stops, size, blob.location).pieces:
            return None
        try:
            return blob, blob.ranges(starts, stops)
        except ShardChangedError:
            return None

    def read(self, path: str, /) -> bytes:
        """A small object, whole, in one request; `blob` takes two. `CorruptFileError` where memory cannot hold it."""
        import obstore

        with self.translated(path):
            answer = obstore.get(self.handle(), checked(path))
            refuse_more_than_memory(int(answer.meta["size"]), f"{self.root}/{path}")
            return bytes(answer.bytes())

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """(path, size) of the objects below a folder, in the order of their names, those up to `after` left out."""
        import obstore

        def listed() -> list[tuple[str, int]]:
            parts = obstore.list(self.handle(), folder(prefix) or None, offset=after or None, chunk_size=1000)
            return [(one["path"], int(one["size"])) for part in parts for one in part if one["path"] > after]

        with self.translated(prefix):
            return iter(sorted(patiently(listed) or ()))  # most stores list in order; the contract promises it for all

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:  # noqa: ARG002 - a put is atomic here
        """Whole or not there.

        Args:
            path: The name.
            data: The bytes, or a file to upload.
            if_absent: Refuse a name that is taken.
            temporary: Not needed here.

        Raises:
            FileExistsError: `if_absent`, and a rival was first (or this put itself, whose first answer was lost).
            ReadOnlyError: The store refuses, or cannot refuse a rival.
        """
        if not if_absent:
            self._put(path, data, mode="overwrite")
            return
        self._put(path, data, is_done=lambda: self.read(path) == data, mode="create", use_multipart=False)
        if not self._exclusive:
            self._prove_exclusive(path, data)

    def _put(self, path: str, data: bytes | Path, *, is_done: Callable[[], bool] | None = None, **options: Any) -> None:
        import obstore

        with self.translated(path, writing=True):
            patiently(lambda: obstore.put(self.handle(), checked(path), data, **options), is_done=is_done)

    def _prove_exclusive(self, path: str, data: bytes | Path) -> None:
        """Once per store: a server that ignores `If-None-Match` would let two commits take one number."""
        try:
            self._put(path, data, mode="create", use_multipart=False)
        except FileExistsError:
            self._exclusive = True
            return
        self.delete([path])
        raise ReadOnlyError(
            f"{self.root}: this store replaces an object where it was asked not to (If-None-Match), so two writers "
            "could overwrite each other. Write to a local folder and copy it, or use a newer server.",
            path=self.root,
        )

    def local(self, path: str, /) -> Path | None:  # noqa: ARG002 - the contract's argument
        """None: write elsewhere, then `put`."""
        return None

    def copy(self, source: str, target: str, /) -> None:
        """A second object with the same bytes, made by the store.

        Raises:
            FileExistsError: The name is taken (looked up before: targets are names that are used once).
            FileNotFoundError: There is no such source.
        """
        import obstore

        with self.translated(target, writing=True):
            try:
                obstore.head(self.handle(), checked(target))
            except FileNotFoundError:
                patiently(lambda: obstore.copy(self.handle(), checked(source), target, overwrite=True))
                return
        raise FileExistsError(17, "already there", f"{self.root}/{target}")

    def sync(self, *folders: str) -> None:
        """Nothing to do: what a store acknowledged is durable."""

    def move(self, source: str, target: str, /) -> None:
        """Copy, then delete; again does nothing.

        Raises:
            FileNotFoundError: It lies under neither name.
        """
        import obstore

        with self.translated(target, writing=True):
            try:
                patiently(lambda: obstore.copy(self.handle(), checked(source), checked(target), overwrite=True))
            except FileNotFoundError:
                obstore.head(self.handle(), target)
                return
            self._delete_one(source)

    def delete(self, paths: Iterable[str], /) -> None:
        """Remove objects; those that are gone are fine."""
        import obstore

        names = [checked(path) for path in paths]
        if not names:
            return
        with self.translated("", writing=True):
            try:
                patiently(lambda: obstore.delete(self.handle(), names))
            except FileNotFoundError:
                for name in names:
                    self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        import obstore

        try:
            patiently(lambda: obstore.delete(self.handle(), name))
        except FileNotFoundError:
            return

    @contextmanager
    def translated(self, path: str, /, *, writing: bool = False) -> Iterator[None]:  # noqa: C901 - a table of errors
        """Errors of obstore as Python's own, without their details, which may hold credentials."""
        from obstore import exceptions

        place = f"{self.root}/{path}" if path else self.root
        try:
            yield
        except exceptions.AlreadyExistsError:
            raise FileExistsError(17, "already there", place) from None
        except exceptions.PreconditionError:
            if writing:
                raise FileExistsError(17, "already there", place) from None
            raise ShardChangedError(f"{place} changed while it was open; open it again.", path=place) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            hint = "Check the credentials, in the environment or in storage={...}."
            if writing:
                raise ReadOnlyError(f"{place}: the store refused to be written.", path=place, hint=hint) from None
            raise PermissionError(13, f"the store refused. {hint}", place) from None
        except exceptions.NotSupportedError as error:
            raise ReadOnlyError(f"{place}: this store cannot do that ({self._told(error)}).", path=place) from None
        except FileNotFoundError:
            raise FileNotFoundError(2, "not there", place) from None
        except exceptions.BaseError as error:
            raise OSError(5, f"the store failed: {self._told(error)}", place) from None
        except ValueError as error:
            if "parse path" not in str(error):
                raise
            raise UnsafeReferenceError(f"{path!r} is no name that an object store takes.", path=place) from None

    def _told(self, error: BaseException) -> str:
        # Cut afterwards: half a secret would not be known as one.
        return self._storage.redacted(_first_line(error))[:300]

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_storage": self._storage, "_handle": None, "_exclusive": self._exclusive}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"ObjectStore({self.root!r})"


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
