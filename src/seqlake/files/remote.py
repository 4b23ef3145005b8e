"""A bucket, or a folder in one, as a store: S3, GCS, Azure, and HTTP for reading, through obstore."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import ForkedProcessError, ReadOnlyError, ShardChangedError
from seqlake.files import credentials, locations
from seqlake.files.memory import sliced
from seqlake.files.names import checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from seqlake.protocols import Ints

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https")
_GAP = 256 << 10
_LARGEST = 32 << 20
_PARALLEL = 12
_RETRIES = {"max_retries": 6, "retry_timeout": timedelta(seconds=90)}


class _Runtime:
    """obstore's threads do not survive a fork: a child that used them would hang for ever."""

    parent_of_fork = False
    used = False


if hasattr(os, "register_at_fork"):

    def _after_fork() -> None:
        _Runtime.parent_of_fork = _Runtime.parent_of_fork or _Runtime.used

    os.register_at_fork(after_in_child=_after_fork)


def _may_be_used() -> None:
    if _Runtime.parent_of_fork:
        raise ForkedProcessError(
            "This process was forked from one that had used a remote store, whose threads do not survive a fork. "
            'Start workers with multiprocessing_context="forkserver" (or "spawn"), or read a local copy.'
        )
    _Runtime.used = True


@contextmanager
def _translated(root: str, path: str) -> Iterator[None]:
    """Errors of obstore as Python's own; never with request details, which may hold credentials."""
    from obstore import exceptions

    place = f"{root}/{path}" if path else root
    try:
        yield
    except exceptions.AlreadyExistsError:
        raise FileExistsError(17, "already there", place) from None
    except exceptions.PreconditionError:
        raise ShardChangedError(f"{place} changed while it was open; open the dataset again.", path=place) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise ReadOnlyError(
            f"{place}: the store refused. Check the credentials, in the environment or in storage={{...}}.", path=place
        ) from None
    except exceptions.NotSupportedError as error:
        raise ReadOnlyError(f"{place}: this store cannot do that ({_first_line(error)}).", path=place) from None
    except FileNotFoundError:
        raise FileNotFoundError(2, "not there", place) from None
    except exceptions.BaseError as error:
        raise OSError(5, f"the store failed: {_first_line(error)}", place) from None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__


class ObjectBlob:
    """An object that does not change; parts of it are read in few requests.

    Every request names the ETag that was seen first, so that a changed object is an error.
    """

    __slots__ = ("_etag", "_path", "_store", "size")

    def __init__(self, store: ObjectStore, path: str, size: int, etag: str | None, /) -> None:
        self._store = store
        self._path = path
        self.size = size
        self._etag = etag

    @property
    def location(self) -> str:
        """The URI."""
        return f"{self._store.root}/{self._path}"

    @property
    def token(self) -> str:
        """The ETag, or the size where the store gives none."""
        return self._etag or f"size-{self.size}"

    def view(self) -> memoryview | None:
        """None: only ranges can be had."""
        return None

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it; neighbours are fetched together."""
        out: list[memoryview] = [memoryview(b"")] * len(starts)
        if len(starts) and (int(starts.min()) < 0 or int(stops.max()) > self.size or bool((stops < starts).any())):
            raise ShardChangedError(f"{self.location}: bytes past its end of {self.size} were asked for.")
        wanted = np.flatnonzero(stops > starts)
        runs = _coalesced(starts, stops, wanted)
        if len(runs) < 2:
            fetched = [self._fetch(*run[:2]) for run in runs]
        else:
            with ThreadPoolExecutor(min(_PARALLEL, len(runs))) as pool:
                fetched = list(pool.map(lambda run: self._fetch(*run[:2]), runs))
        for (first, _, rows), data in zip(runs, fetched, strict=True):
            parts = sliced(data, starts[rows] - first, stops[rows] - first, self.location)
            for row, part in zip(rows.tolist(), parts, strict=True):
                out[row] = part
        return out

    def _fetch(self, start: int, stop: int) -> memoryview:
        import obstore

        options: Any = {"range": (start, stop)}
        if self._etag:
            options["if_match"] = self._etag
        with _translated(self._store.root, self._path):
            got = obstore.get(self._store.handle(), self._path, options=options)
            data = memoryview(bytes(got.bytes()))
        if len(data) != stop - start:
            raise ShardChangedError(f"{self.location}: expected {stop - start} bytes, found {len(data)}.")
        return data

    def __repr__(self) -> str:
        return f"ObjectBlob({self.location!r}, {self.size} bytes)"

    def __getstate__(self) -> tuple[ObjectStore, str, int, str | None]:
        return (self._store, self._path, self.size, self._etag)

    def __setstate__(self, state: tuple[ObjectStore, str, int, str | None]) -> None:
        self._store, self._path, self.size, self._etag = state


def _coalesced(starts: Ints, stops: Ints, wanted: Ints) -> list[tuple[int, int, Ints]]:
    """Requests (first byte, end, the rows they serve): gaps below 256 KiB are read along."""
    runs: list[tuple[int, int, list[int]]] = []
    for row in wanted[np.argsort(starts[wanted], kind="stable")].tolist():
        start, stop = int(starts[row]), int(stops[row])
        if runs and start - runs[-1][1] <= _GAP and max(stop, runs[-1][1]) - runs[-1][0] <= _LARGEST:
            first, end, rows = runs[-1]
            rows.append(row)
            runs[-1] = (first, max(end, stop), rows)
        else:
            runs.append((start, stop, [row]))
    return [(first, end, np.array(rows, np.int64)) for first, end, rows in runs]


class ObjectStore:
    """A bucket, or a folder in one.

    Args:
        root: The URI, as in `s3://bucket/data`.
        storage: obstore's options; the usual environment counts as well.
    """

    def __init__(self, root: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        kind = locations.scheme(root)
        if kind not in SCHEMES:
            raise ValueError(f"{root}: expected one of {', '.join(SCHEMES)} as scheme, found {kind!r}.")
        self.root = root.rstrip("/")
        self._storage = dict(storage or {})
        self._handle: tuple[int, Any] | None = None

    def handle(self) -> Any:
        """The object of obstore, made once per process."""
        _may_be_used()
        if self._handle is None or self._handle[0] != os.getpid():
            import obstore.store

            with _translated(self.root, ""):
                open_url: Any = obstore.store.from_url
                made = open_url(self.root, retry_config=_RETRIES, **credentials.for_obstore(self._storage))
            self._handle = (os.getpid(), made)
        return self._handle[1]

    def blob(self, path: str, /) -> ObjectBlob:
        """The object of that name; asks for its size and ETag."""
        import obstore

        with _translated(self.root, path):
            found = obstore.head(self.handle(), checked(path))
        return ObjectBlob(self, path, int(found["size"]), found["e_tag"])

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """Objects at or below `prefix`, in the order of their names, those up to `after` left out."""
        import obstore

        if locations.scheme(self.root) in {"http", "https"}:
            raise ReadOnlyError(f"{self.root}: HTTP cannot list. Name the files, or use the store's own URI.")
        found: list[tuple[str, int]] = []
        with _translated(self.root, prefix):
            for part in obstore.list(self.handle(), prefix or None, offset=after or None, chunk_size=1000):
                found += [(meta["path"], int(meta["size"])) for meta in part]
        # Most stores list in order, and the contract promises it for all.
        yield from sorted(entry for entry in found if entry[0] > after)

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:  # noqa: ARG002 - a put is atomic here
        """Whole or not there; `FileExistsError` if a rival was first."""
        import obstore

        self._writable()
        with _translated(self.root, path):
            # One request where it must be conditional; large files go up in parts otherwise.
            obstore.put(
                self.handle(), checked(path), data, mode="create" if if_absent else "overwrite",
                use_multipart=False if if_absent else None,
            )  # fmt: skip

    def local(self, path: str, /) -> Path | None:  # noqa: ARG002 - the contract's argument
        """None: write elsewhere, then `put`."""
        return None

    def copy(self, source: str, target: str, /) -> None:
        """A second object with the same bytes, made by the store."""
        import obstore

        self._writable()
        with _translated(self.root, target):
            try:
                obstore.head(self.handle(), checked(target))
            except FileNotFoundError:
                obstore.copy(self.handle(), checked(source), target, overwrite=True)
                return
        raise FileExistsError(17, "already there", f"{self.root}/{target}")

    def sync(self, *folders: str) -> None:
        """Nothing to do: what a store acknowledged is durable."""

    def move(self, source: str, target: str, /) -> None:
        """Copy, then delete; again does nothing."""
        import obstore

        self._writable()
        with _translated(self.root, target):
            try:
                obstore.copy(self.handle(), checked(source), checked(target), overwrite=True)
            except FileNotFoundError:
                obstore.head(self.handle(), target)
                return
            obstore.delete(self.handle(), source)

    def delete(self, paths: Iterable[str], /) -> None:
        """Remove objects; those that are gone are fine."""
        import obstore

        self._writable()
        names = [checked(path) for path in paths]
        if not names:
            return
        with _translated(self.root, ""):
            try:
                obstore.delete(self.handle(), names)
            except FileNotFoundError:
                for name in names:
                    self._delete_one(name)

    def _delete_one(self, name: str) -> None:
        import obstore

        try:
            obstore.delete(self.handle(), name)
        except FileNotFoundError:
            return

    def _writable(self) -> None:
        if locations.scheme(self.root) in {"http", "https"}:
            raise ReadOnlyError(f"{self.root}: HTTP is read-only. Use the store's own URI, as in s3://bucket/...")

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "_storage": self._storage, "_handle": None}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"ObjectStore({self.root!r})"
