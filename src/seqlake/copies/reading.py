"""Finds sets of copies, and the copies in them, for whoever trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqlake.abilities import storage_of
from seqlake.copies.decoding import AGAIN, CopyDecoder, damaged
from seqlake.copies.records import CopyRecord, key_of
from seqlake.copies.settings import SETTINGS, SUFFIXES, CopySettings, folder_of
from seqlake.errors import CorruptFileError, MissingCopyError
from seqlake.files.stores import open_store, read_all
from seqlake.versions import names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from seqlake.copies.records import Originals
    from seqlake.protocols import Readable, Store

_RECORD = 1 << 28  # bytes of a record: an index of as many packets as a file may have
_DESCRIPTION = 1 << 16


@dataclass(frozen=True, kw_only=True)
class CopyFolder:
    """Where a dataset's copies lie; picklable.

    Attributes:
        root: The folder of the dataset, or another one.
        prefix: Below it.
        storage: Options of its store; never printed.
    """

    root: str
    prefix: str
    storage: Mapping[str, str] | None

    @classmethod
    def of(cls, source: Readable, folder: str | PathLike[str] | None = None, /) -> CopyFolder:
        """Beside the originals of a dataset, or in a folder of its own."""
        if folder is None:
            return cls(root=source.root, prefix=f"{names.COPIES}/", storage=storage_of(source))
        return cls(root=str(folder), prefix="", storage=None)

    @property
    def store(self) -> Store:
        """What the folder is reached by."""
        return open_store(self.root, storage=self.storage)

    @property
    def location(self) -> str:
        """What messages call it."""
        return f"{self.root}/{self.prefix}".rstrip("/")

    def settings(self, column: str, size: tuple[int, int], /) -> CopySettings | None:
        """The set of a column and size; None where there is none."""
        path = f"{self.prefix}{folder_of(column, size)}/{SETTINGS}"
        data = _small(self.store, path, _DESCRIPTION)
        return None if data is None else CopySettings.parse(data, where=f"{self.root}/{path}")

    def all(self) -> list[CopySettings]:
        """Every set that is there."""
        paths = [path for path, _ in self.store.list(self.prefix.rstrip("/")) if path.endswith(f"/{SETTINGS}")]
        return [
            CopySettings.parse(data, where=f"{self.root}/{path}")
            for path in paths
            if (data := _small(self.store, path, _DESCRIPTION)) is not None
        ]

    def expect(self, column: str, size: tuple[int, int], /) -> CopySettings:
        """The set of a column and size.

        Raises:
            MissingCopyError: There is none; says which there are.
        """
        settings = self.settings(column, size)
        if settings is None:
            others = [one.describe() for one in self.all()]
            there = f"there are {'; '.join(others)}" if others else "there are none"
            raise MissingCopyError(
                f"Expected training copies of column {column!r} at {size[0]}x{size[1]} (height x width) in "
                f"{self.location}: {there}.",
                path=self.location,
                hint=f"Make them: seqlake prepare DATASET --video {column}={size[0]}x{size[1]}",
            )
        return settings


@dataclass(frozen=True, kw_only=True)
class CopySet:
    """The copies of one column at one size.

    Attributes:
        place: Where they lie.
        settings: What they are.
        originals: What they were made from.
    """

    place: CopyFolder
    settings: CopySettings
    originals: Originals

    def path(self, reference: str, suffix: str = "", /) -> str:
        """Below the root: where a file's copy lies; its record with `.json`."""
        suffix = suffix or SUFFIXES[self.settings.codec]
        return f"{self.place.prefix}{self.settings.folder}/{key_of(reference)}{suffix}"

    def record(self, store: Store, reference: str, /) -> CopyRecord | None:
        """What is known of a file's copy; None where there is none.

        Raises:
            MissingCopyError: It is damaged.
        """
        path = self.path(reference, ".json")
        data = _small(store, path, _RECORD)
        try:
            return None if data is None else CopyRecord.parse(data)
        except ValueError as error:
            raise damaged(f"{self.place.root}/{path}", error) from error

    def find(self, reference: str, /) -> OpenCopy:
        """A file's copy.

        Raises:
            MissingCopyError: There is none, or it was made from other bytes than the file has now.
            CorruptFileError: The original was damaged when copies were made.
        """
        store = self.place.store
        record = self.record(store, reference)
        size = f"{self.settings.height}x{self.settings.width}"
        hint = f"Make it: seqlake prepare DATASET --video {self.settings.column}={size}"
        if record is None:
            message = f"there is no training copy of {reference} at {size} in {self.place.location}."
            raise MissingCopyError(message, path=self.place.location, hint=hint)
        if record.reference != reference or record.every != self.settings.every:
            raise damaged(f"{self.place.root}/{self.path(reference, '.json')}", f"it is of {record.reference}.")
        if not record.original.agrees(self.originals.fingerprint(reference)):
            message = f"the training copy of {reference} at {size} was made from other bytes than the file has now."
            raise MissingCopyError(message, path=self.place.location, hint=hint)
        if record.damage:
            raise CorruptFileError(record.damage, path=reference)
        return OpenCopy(self, record, self.path(reference))


@dataclass(frozen=True)
class OpenCopy:
    """A copy that belongs to its original as it is now.

    Attributes:
        group: Its set.
        record: What is known of it.
        path: Below the root.
    """

    group: CopySet
    record: CopyRecord
    path: str

    def decoder(self, *, device: str = "cpu") -> CopyDecoder:
        """Open it.

        Raises:
            MissingCopyError: It is gone or damaged.
        """
        location = f"{self.group.place.root}/{self.path}"
        try:
            blob = self.group.place.store.blob(self.path)
            size = blob.size
        except FileNotFoundError:
            raise MissingCopyError(f"the training copy {location} is gone.", path=location, hint=AGAIN) from None
        if size != self.record.nbytes:
            raise damaged(location, f"expected {self.record.nbytes} bytes, found {size}.")
        return CopyDecoder(self.record, self.group.settings, blob, device=device)


def _small(store: Store, path: str, most: int) -> bytes | None:
    try:
        return read_all(store.blob(path), most=most)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except CorruptFileError as error:  # it is larger: no damage of the data
        raise damaged(f"{store.root}/{path}", error) from error
