"""The bytes of a shard: found in its folder, compared with what the index says, decompressed where they must be."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from seqlake.abilities import HasParts, WholeFiles, ability
from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError
from seqlake.files import locations
from seqlake.files.blobs import MemoryBlob, state_of
from seqlake.files.stores import open_store, read_all
from seqlake.formats._streaming.compression import Compression, digest, strongest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.formats._streaming.index import IndexedFile
    from seqlake.protocols import Blob

_MOST_REMEMBERED = 1 << 16
_LARGEST = 1 << 32
SHARD_BYTES = 256 << 20  # of one file, decompressed
_DENSE = 100  # times what is stored
_ONE_REQUEST = 80 << 20  # a shard of the usual 64 MiB, and what compression may add to one
# Hashing a mapped shard reads all of it: once per process and state of the file is enough.
_seen: dict[tuple[str, str, str], None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFolder:
    """The folder of an index; picklable.

    Attributes:
        root: Absolute location.
        storage: Options of its store.
        verify: Whether hashes are compared where all bytes of a file are at hand.
        most: Bytes that a compressed file may make where less than a hundredth of them is stored.
        copy: A copy of the one file that is asked for, as it is read, somewhere else.
    """

    root: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    verify: bool = True
    most: int = SHARD_BYTES
    copy: Blob | None = None

    def open(self, raw: IndexedFile, zipped: IndexedFile | None, compression: str | None, /) -> Blob:
        """A file as the reader needs it: mapped or by range where it is stored so, else decompressed into memory.

        Raises:
            DatasetNotFoundError: It is not there.
            CorruptFileError: Its size or its hash is not what the index says.
            UnsafeReferenceError: A link that leaves the folder, and `allow_outside` was not given.
        """
        if self.copy is not None:
            return self.copy
        if compression is None or zipped is None:
            blob = self.packed(raw)
            self._check(blob, raw)
            return blob
        here = self._blob(raw) if self.is_local else None  # a cache of the official reader keeps the raw file
        if here is not None:
            self._check(here, raw)
            return here
        blob = self.packed(zipped)
        try:
            packed = read_whole(blob)
        except FileNotFoundError as error:
            raise self._missing(zipped) from error
        data = self.unpacked(packed, raw, zipped, compression, blob=blob)
        return MemoryBlob(data, location=blob.location)

    def packed(self, file: IndexedFile, /) -> Blob:
        """A file as it is stored.

        Raises:
            DatasetNotFoundError: It is not there.
            CorruptFileError: Its size is not what the index says.
        """
        blob = self._blob(file)
        if blob is None:
            raise self._missing(file)
        return blob

    def unpacked(
        self,
        packed: memoryview,
        raw: IndexedFile,
        zipped: IndexedFile | None,
        compression: str | None,
        /,
        *,
        blob: Blob | None = None,
    ) -> memoryview:
        """All bytes of a stored file, decompressed and compared with the hashes of the index.

        Args:
            packed: The bytes.
            raw: What the index says of the file as it is read.
            zipped: What it says of the file as it is stored, where that is compressed.
            compression: How.
            blob: Where the bytes are from, if that is known: then they are compared once.

        Raises:
            CorruptFileError: They are not what the index says.
            InvalidMetadataError: It says that a few bytes make more than the limit.
        """
        stored = raw if zipped is None else zipped
        location = self.location(stored)
        if self.verify:
            verify(packed, stored, blob or MemoryBlob(packed, location=location))
        if compression is None or zipped is None:
            return packed
        if raw.size > _LARGEST:
            raise CorruptFileError(f"{location} would have {raw.size} bytes; offsets end at 4 GiB.", path=location)
        if raw.size > self.most and raw.size > _DENSE * len(packed):
            raise InvalidMetadataError(
                f"{location} would make {raw.size} bytes of {len(packed)}; above {self.most} a hundredth is expected.",
                path=location,
                hint="If you trust it, raise the limit: scan(..., shard_bytes=...).",
            )
        try:
            data = memoryview(Compression.of(compression).decompress(packed, raw.size))
        except (CorruptFileError, ValueError) as error:
            raise CorruptFileError(
                f"{location} cannot be decompressed: {error}.", path=location, hint="Fetch it again."
            ) from error
        if self.verify and strongest(zipped.hashes) is None:
            verify(data, raw, MemoryBlob(data, location=location))
        return data

    def unverified(self, raw: IndexedFile, zipped: IndexedFile | None, compression: str | None, /) -> Blob:
        """As `open`, without a look at hashes."""
        return replace(self, verify=False).open(raw, zipped, compression)

    def stamp(self, file: IndexedFile, /) -> str:
        """What changes when a local file does; nothing is asked of other stores."""
        if not self.is_local:
            return ""
        try:
            return repr(state_of(os.stat(self.location(file))))  # noqa: PTH116 - a string, for every shard
        except OSError:
            return "missing"  # it is said when the shard is read

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.copy is not None or locations.is_local(self.root)

    def location(self, file: IndexedFile, /) -> str:
        """Where a file lies."""
        return locations.join(self.root, f"./{file.name}")

    def _blob(self, file: IndexedFile) -> Blob | None:
        store = open_store(self.root, storage=self.storage)
        whole = None if self.is_local else ability(store, WholeFiles)
        if whole is not None:
            return whole.known(file.name, file.size)
        try:
            blob = store.blob(file.name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if blob.size != file.size:
            raise CorruptFileError(
                f"{blob.location} has {blob.size} bytes; its index says {file.size}.",
                path=blob.location,
                hint="It was cut off, or is of another dataset: fetch it again.",
            )
        return blob

    def _check(self, blob: Blob, file: IndexedFile) -> None:
        """Compare the hash, where all bytes are at hand; a remote file that is read by range stays unchecked."""
        view = blob.view()
        if self.verify and view is not None:
            verify(view, file, blob)

    def _missing(self, file: IndexedFile) -> DatasetNotFoundError:
        return DatasetNotFoundError(
            f"{self.location(file)} is not there; the index names it.",
            path=self.root,
            hint="The dataset was not copied or written to its end.",
        )


def verify(data: bytes | memoryview, file: IndexedFile, blob: Blob, /) -> None:
    """Compare the strongest hash that the index has of a file; each state of a file once per process.

    Raises:
        CorruptFileError: Another hash.
    """
    algorithm = strongest(file.hashes)
    if algorithm is None:
        return
    expected = file.hashes[algorithm].lower()
    lasting = not isinstance(blob, MemoryBlob)
    key = (blob.location, blob.token, expected) if lasting else ("", "", "")
    if lasting and key in _seen:
        return
    actual = digest(data, algorithm)
    if actual != expected:
        raise CorruptFileError(
            f"{blob.location}: {algorithm} is {actual}, the index says {expected}.",
            path=blob.location,
            hint="The file is damaged: fetch it again.",
        )
    if lasting:
        if len(_seen) >= _MOST_REMEMBERED:
            _seen.clear()
        _seen[key] = None


def read_whole(blob: Blob, /) -> memoryview:
    """All bytes of a blob, whatever their size; of an object as large as shards are, in one request."""
    view = blob.view()
    parts = ability(blob, HasParts) if view is None else None
    if parts is not None and 0 < blob.size <= _ONE_REQUEST:
        return parts.part(0, blob.size)
    return memoryview(read_all(blob)) if view is None else view
