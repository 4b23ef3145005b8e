"""Where a store's files lie: a folder, a bucket or a zip archive, behind one small interface."""

from __future__ import annotations

import io
import struct
import zipfile
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.errors import CorruptFileError, DatasetNotFoundError
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.memory import MemoryBlob, bounded
from seqlake.files.reading import BlobFile
from seqlake.files.stores import open_blob, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Blob, Ints

ROOT = ".zgroup"
_LOCAL_HEADER = struct.Struct("<4s22sHH")


class Place(Protocol):
    """Files below one root, by name."""

    def blob(self, path: str, /) -> Blob:
        """FileNotFoundError."""

    def list(self, prefix: str = "", /) -> Iterator[tuple[str, int]]:
        """(path, bytes) of the files below a folder."""


def open_place(location: str, /, *, storage: Mapping[str, str] | None = None) -> Place:
    """The files of a store, wherever it lies.

    Args:
        location: A folder or URI, or a zip archive of one.
        storage: Options of the object store.

    Raises:
        DatasetNotFoundError: Nothing is there.
    """
    place = absolute(location)
    if place.lower().endswith(".zip") and not (is_local(place) and local_path(place).is_dir()):
        return Archive(place, storage=storage)
    return open_store(place, storage=storage)


class Archive:
    """A zip archive; the store is its root or its only folder. Members that are stored plainly are not copied.

    Args:
        location: The archive.
        storage: Options of the object store.
    """

    def __init__(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> None:
        self._location = location
        self._storage = storage

    @cached_property
    def _whole(self) -> Blob:
        try:
            return open_blob(self._location, storage=self._storage)
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"Nothing is at {self._location}.", path=self._location) from error

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(io.BufferedReader(BlobFile(self._whole), 1 << 16)) as archive:
                found = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        except zipfile.BadZipFile as error:
            raise CorruptFileError(f"{self._location} is no zip archive: {error}.", path=self._location) from error
        roots = sorted((name for name in found if name.rpartition("/")[2] == ROOT), key=lambda name: name.count("/"))
        prefix = roots[0].removesuffix(ROOT) if roots else ""
        return {name.removeprefix(prefix): info for name, info in found.items() if name.startswith(prefix)}

    def blob(self, path: str, /) -> Blob:
        """One member.

        Raises:
            FileNotFoundError: There is none of that name.
            CorruptFileError: The archive is damaged.
        """
        info = self._members.get(path)
        if info is None:
            raise FileNotFoundError(f"{self._location} holds no {path}")
        if info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1:
            start = self._start(info)
            return Part(self._whole, start, start + info.file_size, f"{self._location}/{path}")
        try:
            with zipfile.ZipFile(io.BufferedReader(BlobFile(self._whole), 1 << 16)) as archive:
                return MemoryBlob(archive.read(info), location=f"{self._location}/{path}")
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
            raise CorruptFileError(f"{self._location}: {path}: {error}.", path=self._location) from error

    def _start(self, info: zipfile.ZipInfo) -> int:
        """The first byte of a member: behind its own header, whose name and extra field may be of any length."""
        at = info.header_offset
        [head] = self._whole.ranges(np.array([at]), np.array([at + _LOCAL_HEADER.size]))
        magic, _, name, extra = _LOCAL_HEADER.unpack(head)
        if magic != b"PK\3\4":
            raise CorruptFileError(f"{self._location}: {info.filename} is not where it should be.", path=self._location)
        return int(at + _LOCAL_HEADER.size + name + extra)

    def list(self, prefix: str = "", /) -> Iterator[tuple[str, int]]:
        """(path, bytes) of the members below a folder."""
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        yield from ((name, info.file_size) for name, info in sorted(self._members.items()) if name.startswith(below))

    def __getstate__(self) -> dict[str, Any]:
        return {"_location": self._location, "_storage": self._storage}

    def __repr__(self) -> str:
        return f"Archive({self._location!r})"


class Part:
    """Bytes `start` to `stop` of another blob."""

    def __init__(self, whole: Blob, start: int, stop: int, location: str, /) -> None:
        self._whole = whole
        self._start = start
        self.size = stop - start
        self.location = location

    @property
    def token(self) -> str:
        """The whole's token with the place in it."""
        return f"{self._whole.token}-{self._start}-{self.size}"

    def view(self) -> memoryview | None:
        """All of it as memory, where the whole is."""
        view = self._whole.view()
        return None if view is None else view[self._start : self._start + self.size]

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it."""
        bounded(starts, stops, self.size, self.location)
        return self._whole.ranges(np.asarray(starts) + self._start, np.asarray(stops) + self._start)
