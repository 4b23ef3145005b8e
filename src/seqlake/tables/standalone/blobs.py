"""The bytes of a shard, wherever it is: names move from `data/` to `retired/` under a reader's feet."""

from __future__ import annotations

import hashlib
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from seqlake.abilities import ReadsFirst, ability
from seqlake.errors import DamagedTableError, VersionNotFoundError
from seqlake.tables.standalone.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqlake.protocols import Blob, Ints, Store

_PASSES = 3
_Found = TypeVar("_Found")


class PlacedBlob:
    """A shard by its name: a `Blob` that looks in `data/`, `staged/`, `data/`, `retired/` until it is found.

    Args:
        store: The table's root.
        name: The shard's name.
        places: Where it may be, in the order that cannot miss it.
        nbytes: Its size, which the bytes found must have.
        version: The version that it is read for: says whether the version expired or the table is damaged.
    """

    def __init__(self, store: Store, name: str, *, places: tuple[str, ...], nbytes: int, version: int) -> None:
        self._store = store
        self._name = name
        self._places = places
        self._nbytes = nbytes
        self._version = version
        self._found: tuple[str, Blob] | None = None
        self._tried = ""  # where it was asked for last

    def __repr__(self) -> str:
        return f"PlacedBlob({self._store.root!r}, {self._name!r}, nbytes={self._nbytes})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": None}  # a handle belongs to one process

    @property
    def location(self) -> str:
        """Where it was found, or else asked for last."""
        if self._found is None and self._tried:
            return f"{self._store.root}/{self._tried}"  # a message about an answer that did not come
        return self._blob().location

    @property
    def size(self) -> int:
        """Its size, from the log."""
        return self._nbytes

    @property
    def token(self) -> str:
        """The token of the bytes that were found."""
        return self._on_bytes(lambda blob: blob.token)

    def view(self) -> memoryview | None:
        """All of it as memory, as the store's own blob gives it."""
        located = self._found
        if located is not None:
            try:
                return located[1].view()
            except FileNotFoundError:
                self.look_again()
        if ability(self._store, ReadsFirst) is not None:
            return None  # whatever it is asked first tells the rest
        return self._on_bytes(lambda blob: blob.view())

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Many ranges in few requests; of a shard that was not looked for yet, without looking first."""
        store = ability(self._store, ReadsFirst) if self._found is None else None
        if store is not None:
            parts = self._first_read(store, starts, stops)
            if parts is not None:
                return parts
        return self._on_bytes(lambda blob: blob.ranges(starts, stops))

    def _first_read(self, store: ReadsFirst, starts: Ints, stops: Ints) -> list[memoryview] | None:
        """What is asked for, from the first place that has it; None where it is to be looked for."""
        for place in self._places:
            self._tried = place
            try:
                answer = store.first_read(place, starts, stops, size=self._nbytes)
            except FileNotFoundError:
                continue
            if answer is not None:
                self._found = place, answer[0]
                return answer[1]
            break
        return None

    def opened(self, of: Callable[[str], _Found], /) -> _Found:
        """What a location is opened to, looked for again where the shard retires before it is open."""
        return self._on_bytes(lambda blob: of(blob.location))

    def _on_bytes(self, read: Callable[[Blob], _Found]) -> _Found:
        for _ in range(_PASSES):
            try:
                return read(self._blob())
            except FileNotFoundError as error:
                if isinstance(error, VersionNotFoundError):
                    raise
                self.look_again()  # It moved on between finding and reading.
        raise self._nowhere()

    @property
    def place(self) -> str:
        """Its path below the root at this moment."""
        self._blob()
        assert self._found is not None
        return self._found[0]

    def look_again(self) -> None:
        """It has moved on since it was found."""
        self._found = None

    def _blob(self) -> Blob:
        located = self._found  # another thread may look again meanwhile
        if located is None:
            located = self._found = self._find()
        return located[1]

    def _find(self) -> tuple[str, Blob]:
        other: Blob | None = None
        for place in self._places:
            try:
                blob = self._store.blob(place)
                size = blob.size
            except FileNotFoundError:
                continue
            if size == self._nbytes:
                return place, blob
            other = blob
        raise self._nowhere(other)

    def _nowhere(self, other: Blob | None = None) -> DamagedTableError | VersionNotFoundError:
        log = Log(self._store)
        newest = log.newest()
        where = "nowhere" if other is None else f"with {other.size} bytes at {other.location}"
        if self._version < 0:  # a folder without a log
            return DamagedTableError(
                f"{log.root}: when the folder was opened it held {self._name} of {self._nbytes} bytes, which was found "
                f"{where}.",
                path=log.root,
                hint="Open the folder again to see what it holds now, or restore the file.",
            )
        if not newest.is_readable(self._version):
            return log.not_found(self._version, newest)
        return DamagedTableError(
            f"{log.root}: version {self._version} needs the shard {self._name} of {self._nbytes} bytes; it was found "
            f"{where}. Something other than seqlake removed or overwrote it.",
            path=log.root,
            hint="Restore the file, or go back with `seqlake rollback` to a version without it.",
        )


class SealedBlob:
    """A small file that the log knows by its SHA-256: read whole and compared before any of it is used.

    Args:
        blob: Its bytes, wherever they are.
        sha256: What the log says.
    """

    def __init__(self, blob: Blob, sha256: str, /) -> None:
        self._blob = blob
        self._sha256 = sha256
        self._proved: weakref.ref[memoryview] | None = None  # what readers let go of is not kept here

    def __repr__(self) -> str:
        return f"SealedBlob({self._blob!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_proved": None}  # what others read is compared anew

    @property
    def location(self) -> str:
        """Where it was found."""
        return self._blob.location

    @property
    def size(self) -> int:
        """Its size, from the log."""
        return self._blob.size

    @property
    def token(self) -> str:
        """The token of the bytes that were found."""
        return self._blob.token

    def view(self) -> memoryview:
        """All of it.

        Raises:
            DamagedTableError: It has other bytes than were committed.
        """
        proved = None if self._proved is None else self._proved()
        data = self._blob.view() or proved
        if data is None:
            (data,) = self._blob.ranges(np.array([0], np.int64), np.array([self.size], np.int64))
        if data is not proved:
            if hashlib.sha256(data).hexdigest() != self._sha256:
                raise DamagedTableError(
                    f"{self.location} has other bytes than were committed.",
                    path=self.location,
                    hint="Restore the file from a copy, or go back with `seqlake rollback` to a version without it.",
                )
            self._proved = weakref.ref(data)
        return data

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Many ranges, cut out of the whole."""
        view = self.view()
        return [view[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
