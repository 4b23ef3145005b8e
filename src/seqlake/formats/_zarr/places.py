"""Where a store's files lie: a folder, a bucket or a zip archive, behind one small interface.

What `.zarray` promises is compared with what is stored before memory is taken for it.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError, SeqlakeError
from seqlake.files.blobs import PartBlob, bounded
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.files.reading import BlobFile
from seqlake.files.stores import open_blob, open_store
from seqlake.formats._zarr.decoding import MEMBERS, member
from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Blob, Ints

ROOT = ".zgroup"
NODE = "zarr.json"
"""Of a group of format 2, and of a group or an array of format 3."""
_ENCRYPTED = 1
_READ = "deflate, bzip2 and LZMA are read"
_NO_ZIP = (zipfile.BadZipFile, struct.error, ValueError, LookupError, OverflowError, NotImplementedError, EOFError)
_MOST_REMEMBERED = 1 << 16
# Reading a mapped member reads all of it: once per process and state of the archive is enough.
_seen: dict[tuple[str, str, int], None] = {}
_LOCAL_HEADER = struct.Struct("<4s22sHH")
CHUNK_BYTES = 256 << 20  # of one chunk, decoded: a hundred times what l5kit writes
_CHUNK_COSTS = 1024  # bytes of memory, and as much time, that a chunk's file is worth
_DENSE = 1000  # times what is stored: more than any recording is compressed
_SLACK = 64 << 10  # bytes by which a codec may exceed what it cannot compress, beside as much again


def damaged(place: str, text: str, /) -> CorruptFileError:
    """The error for a chunk's file."""
    hint = "The file is cut off or damaged: fetch it again."
    return CorruptFileError(f"{place} cannot be decoded: {text}.", path=place, hint=hint)


class Promised(Protocol):
    """What the metadata of an array say of its sizes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, then the shape of one."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""

    @property
    def count(self) -> int:
        """Chunks of all rows."""

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a whole chunk, decoded."""

    @property
    def plain(self) -> bool:
        """Whether chunks are stored as they are."""


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Of one array.

    Attributes:
        place: The store's files.
        name: The array's folder in it.
        metadata: What its `.zarray` says.
        most: Bytes that one chunk may make, and all rows where next to nothing is stored of them.
    """

    place: StoreFiles
    name: str
    metadata: Promised
    most: int

    @cached_property
    def _stored(self) -> int | None:
        """Bytes of the array's files; None where files cannot be listed."""
        try:
            return sum(size for _, size in self.place.list(self.name))
        except (OSError, SeqlakeError):
            return None  # the web

    @property
    def _nbytes(self) -> int:
        return self.metadata.row_bytes * self.metadata.shape[0]

    def refuse_empty(self, *, each: int = 0) -> None:
        """See that something is stored of the rows that are promised; asks the store of large arrays alone, once.

        Args:
            each: Bytes of memory that a row costs beside its own.

        Raises:
            InvalidMetadataError: They are above the limit, and more than a thousand times what is stored.
        """
        rows = self.metadata.shape[0]
        promised = max(self._nbytes, self.metadata.count * _CHUNK_COSTS, rows * each)
        if promised > self.most and self._stored is not None and promised > _DENSE * self._stored:
            raise self._too_much(f"promises {rows} rows, {promised} bytes of memory; {self._stored} are stored")

    def kept(self, number: int, file: Blob | None, /) -> Blob | None:
        """The file of a chunk, whose size can be that of such a chunk; None where there is none.

        Raises:
            CorruptFileError: It is larger than any chunk, or of plain bytes and another size.
            InvalidMetadataError: Decoded, it would be above the limit.
        """
        if file is None:
            if self._nbytes > self.most and self._stored is None:
                raise self._too_much(f"promises {self._nbytes} bytes, and chunk {number} is not there")
            return None
        self.expect(file.location, file.size)
        return file

    def expect(self, location: str, size: int, /) -> None:
        """See that so many bytes can be a stored chunk; raises as `kept` does."""
        whole = self.metadata.chunk_bytes
        if self.metadata.plain:
            if size != whole:
                raise damaged(location, f"expected a chunk of {whole} bytes, found {size}")
        elif whole > self.most:
            raise self._too_much(f"has compressed chunks of {whole} bytes")
        elif size > 2 * whole + _SLACK:
            raise damaged(location, f"{size} bytes are too many for {whole} compressed ones")

    def _too_much(self, problem: str) -> InvalidMetadataError:
        hint = f"If you trust it, raise the limit of {self.most} bytes: chunk_bytes=... of sl.scan, or of open_store."
        return InvalidMetadataError(f"{self.name}/.zarray {problem}.", path=self.name, hint=hint)


class StoreFiles(Protocol):
    """Files below one root, by name."""

    def blob(self, path: str, /) -> Blob:
        """The file of that name; FileNotFoundError."""

    def list(self, prefix: str = "", /) -> Iterator[tuple[str, int]]:
        """(path, bytes) of the files below a folder."""


def open_place(location: str, /, *, storage: Mapping[str, str] | None = None, most: int = CHUNK_BYTES) -> StoreFiles:
    """The files of a store, wherever it lies.

    Args:
        location: A folder or URI, or a zip archive of one.
        storage: Options of the object store.
        most: Bytes that a compressed member of an archive may make.

    Raises:
        DatasetNotFoundError: Nothing is there.
    """
    place = absolute(location)
    if place.lower().endswith(".zip") and not (is_local(place) and local_path(place).is_dir()):
        return Archive(place, storage=storage, most=most)
    return open_store(place, storage=storage)


def oddities(files: StoreFiles, /) -> Iterator[Finding]:
    """What is strange about the names of a store's files: only archives can hold such."""
    if isinstance(files, Archive):
        yield from files.oddities()


class Archive:
    """A zip archive; the store is its root or its only folder. Members that are stored plainly are not copied.

    Args:
        location: The archive.
        storage: Options of the object store.
        most: Bytes that a compressed member may make.
    """

    def __init__(self, location: str, /, *, storage: Mapping[str, str] | None = None, most: int = CHUNK_BYTES) -> None:
        self._location = location
        self._storage = storage
        self._most = most

    @cached_property
    def _whole(self) -> Blob:
        try:
            return open_blob(self._location, storage=self._storage)
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"Nothing is at {self._location}.", path=self._location) from error

    @cached_property
    def _listed(self) -> list[zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(io.BufferedReader(BlobFile(self._whole), 1 << 16)) as archive:
                return [info for info in archive.infolist() if not info.is_dir()]
        except _NO_ZIP as error:
            raise CorruptFileError(f"{self._location} is no zip archive: {error}.", path=self._location) from error

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        """By name: of two of one name the last counts, as zarr reads it; one that leads elsewhere is left out."""
        members = {info.filename: info for info in self._listed if _is_plain(info.filename)}
        roots = [name for name in members if name.rpartition("/")[2] in {ROOT, NODE}]
        highest = min(roots, key=lambda name: (name.count("/"), name), default="")
        prefix = highest[: highest.rfind("/") + 1]
        return {name.removeprefix(prefix): info for name, info in members.items() if name.startswith(prefix)}

    def oddities(self) -> Iterator[Finding]:
        """Names of members that lead elsewhere, and those that are there more than once."""
        counts = Counter(info.filename for info in self._listed)
        strange = [name for name in counts if not _is_plain(name)]
        twice = [name for name, count in counts.items() if count > 1 and _is_plain(name)]
        for names, text in (
            (strange, "members have names that lead elsewhere, and are left out: the first is"),
            (twice, "members are there more than once, and the last counts: the first is"),
        ):
            if names:
                said = f"{len(names)} {text} {names[0]!r}"
                yield Finding(code="zarr-zip-names", severity="warning", message=said, location=self._location)

    def blob(self, path: str, /) -> Blob:
        """One member.

        Raises:
            FileNotFoundError: There is none of that name.
            CorruptFileError: The archive is damaged.
        """
        info = self._members.get(path)
        if info is None:
            raise FileNotFoundError(f"{self._location} holds no {path}")
        name = f"{self._location}/{path}"
        if info.flag_bits & _ENCRYPTED or info.compress_type not in {zipfile.ZIP_STORED, *MEMBERS}:
            raise self._damaged(info, f"it is encrypted, or compressed by method {info.compress_type}: {_READ}")
        start = self._start(info)
        stored = info.file_size if info.compress_type == zipfile.ZIP_STORED else info.compress_size
        if start + stored > self._whole.size:
            raise self._damaged(info, f"its {stored} bytes from {start} on do not lie in {self._whole.size}")
        part = ZipPart(self._whole, start, start + stored, name, crc=info.CRC)
        if info.compress_type == zipfile.ZIP_STORED:
            return part
        if info.file_size > self._most:
            raise InvalidMetadataError(
                f"{name} would make {info.file_size} bytes; the limit is {self._most}.",
                path=self._location,
                hint="If you trust it, raise the limit: chunk_bytes=... of sl.scan, or of open_store.",
            )
        return Member(part, info.file_size, info.compress_type)

    @property
    def token(self) -> str:
        """The archive's own: another one means that any member may have changed."""
        return self._whole.token

    def _start(self, info: zipfile.ZipInfo) -> int:
        """The first byte of a member: behind its own header, whose name and extra field may be of any length."""
        at = info.header_offset
        if not 0 <= at <= self._whole.size - _LOCAL_HEADER.size:
            raise self._damaged(info, "it is not where it should be")
        [head] = self._whole.ranges(np.array([at]), np.array([at + _LOCAL_HEADER.size]))
        magic, _, name, extra = _LOCAL_HEADER.unpack(head)
        if magic != b"PK\3\4":
            raise self._damaged(info, "it is not where it should be")
        return int(at + _LOCAL_HEADER.size + name + extra)

    def _damaged(self, info: zipfile.ZipInfo, text: str) -> CorruptFileError:
        return CorruptFileError(f"{self._location}: {info.filename}: {text}.", path=self._location)

    def list(self, prefix: str = "", /) -> Iterator[tuple[str, int]]:
        """(path, bytes) of the members below a folder."""
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        yield from ((name, info.file_size) for name, info in sorted(self._members.items()) if name.startswith(folder))

    def __getstate__(self) -> dict[str, Any]:
        return {"_location": self._location, "_storage": self._storage, "_most": self._most}

    def __repr__(self) -> str:
        return f"Archive({self._location!r})"


def _is_plain(name: str) -> bool:
    """Whether a member's name is a path below the root."""
    return "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


class ZipPart(PartBlob):
    """Bytes `start` to `stop` of an archive: one member, as it is stored.

    Its checksum is compared where all of its bytes are at hand: once per process and state of the archive where it is
    mapped, and where it is fetched in one piece. Ranges of an archive that is not on this machine are not.

    Args:
        whole: The archive.
        start: The member's first byte.
        stop: The byte after its last.
        location: What messages call it.
        crc: CRC-32 of what it makes.
    """

    def __init__(self, whole: Blob, start: int, stop: int, location: str, /, *, crc: int) -> None:
        super().__init__(whole, start, stop, location)
        self.crc = crc

    @property
    def token(self) -> str:
        """The whole's token with the place in it."""
        return f"{self.whole.token}-{self.start}-{self.size}"

    def stored(self) -> memoryview | None:
        """All of it as memory, where the whole is; its checksum was not compared."""
        return super().view()

    def view(self) -> memoryview | None:
        """The same, compared with its checksum.

        Raises:
            CorruptFileError: It has another.
        """
        view = self.stored()
        if view is None:
            return None
        key = (self.location, self.token, self.crc)
        if key not in _seen:
            self.compare(view)
            if len(_seen) >= _MOST_REMEMBERED:
                _seen.clear()
            _seen[key] = None
        return view

    def compare(self, data: memoryview | bytes, /) -> None:
        """Compare what it makes with its checksum.

        Raises:
            CorruptFileError: It has another.
        """
        actual = zlib.crc32(data)
        if actual != self.crc:
            raise CorruptFileError(
                f"{self.location}: its CRC-32 is {actual:08x}, the archive says {self.crc:08x}.",
                path=self.location,
                hint="The archive is damaged: fetch it again.",
            )

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, compared where they are all of it."""
        parts = super().ranges(starts, stops)
        if len(parts) == 1 and len(parts[0]) == self.size:
            self.compare(parts[0])
        return parts


class Member:
    """A compressed member: unpacked, and compared with its checksum, when its bytes are asked for.

    Args:
        part: Where it lies.
        size: Bytes that it makes.
        method: How it is compressed, by zipfile's number.
    """

    def __init__(self, part: ZipPart, size: int, method: int, /) -> None:
        self._part = part
        self.size = size
        self._method = method
        self.location = part.location

    @property
    def token(self) -> str:
        """The token of the archive's part."""
        return self._part.token

    @cached_property
    def _data(self) -> memoryview:
        packed = self._part.stored()
        if packed is None:
            edges = np.array([self._part.start]), np.array([self._part.start + self._part.size])
            [packed] = self._part.whole.ranges(*edges)
        try:
            unpacked = member(packed, self.size, self._method)
        except ValueError as error:
            raise CorruptFileError(
                f"{self.location} cannot be unpacked: {error}.", path=self.location, hint="The archive is damaged."
            ) from error
        self._part.compare(unpacked)
        return unpacked

    def view(self) -> memoryview:
        """All of it.

        Raises:
            CorruptFileError: It is damaged, or makes another number of bytes.
        """
        return self._data

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of what it makes, unpacked as a whole."""
        firsts, ends = bounded(starts, stops, self.size, self.location)
        return [self._data[first:end] for first, end in zip(firsts, ends, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_part", "size", "_method", "location")
        return {name: self.__dict__[name] for name in kept}
