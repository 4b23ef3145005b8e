"""The media that rows point to: a cell as a place in a file, and a file as what a decoder opens."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import HasStorage, HoldsFiles, KeepsFiles, OpensFiles, ability
from seqlake.errors import SeqlakeError
from seqlake.files.allowed import OUTSIDE
from seqlake.files.blobs import MemoryBlob, inline_location
from seqlake.files.credentials import Storage
from seqlake.files.references import missing, open_reference
from seqlake.protocols import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from seqlake.protocols import Blob, Ints, Readable, Shard
    from seqlake.spec.column_types import ColumnType


@dataclass(frozen=True, slots=True)
class FileSpan:
    """The frames of one row: all of a file, or part of one that several rows share.

    Attributes:
        reference: The file, as the row names it.
        first: The row's first frame in it.
        count: How many are the row's own; None means all that follow.
        data: The file's bytes, where the row holds them; then `reference` is a name, or empty.
    """

    reference: str
    first: int = 0
    count: int | None = None
    data: bytes | Blob | None = field(default=None, repr=False)


def place_of(cell: object, /) -> FileSpan | None:
    """What a cell says of a file: a reference, `{url, first_frame, num_frames}`, bytes, or `{bytes, path}`.

    None where there is no file.

    Example:
        >>> place_of({"url": "all.mp4", "first_frame": 40, "num_frames": 20})
        FileSpan(reference='all.mp4', first=40, count=20)
    """
    if cell is None or isinstance(cell, str):
        return None if cell is None else FileSpan(cell)
    if isinstance(cell, bytes):
        return FileSpan("", data=cell)
    assert isinstance(cell, Mapping)
    if "bytes" in cell and "url" not in cell:
        data, path = cell["bytes"], cell.get("path")
        return None if data is None and path is None else FileSpan(path or "", data=data)
    if cell.get("url") is None:
        return None
    count = cell.get("num_frames")
    return FileSpan(str(cell["url"]), int(cell.get("first_frame") or 0), None if count is None else int(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFiles:
    """How the files that a dataset's rows point to are opened; picklable as far as its dataset is.

    Attributes:
        root: What relative references resolve against.
        storage: Options of the store; never printed.
        allow_outside: References may lead out of the root.
        kept: Finds the packet indexes that a table keeps of a file; None where nothing keeps any.
        copied: Opens a file that was copied in through the table's own store, or lies in another file; gives None for
            any other.
    """

    root: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    allow_outside: bool = False
    kept: Callable[[str], Mapping[int, bytes]] | None = field(default=None, repr=False)
    copied: Callable[[str], Blob | None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, source: Readable, /) -> MediaFiles:
        """Of a dataset or selection, which know their storage and indexes, or of anything readable, which need not."""
        place, table = ability(source, HasStorage), ability(source, KeepsFiles)
        within = ability(source, OpensFiles)
        return cls(
            root=source.root,
            storage=None if place is None else place.storage,
            allow_outside=place is not None and place.allow_outside,
            kept=None if table is None else table.kept_packets,
            copied=table.copied_file if table is not None else None if within is None else within.file_within,
        )

    @classmethod
    def named(cls, root: str, storage: Mapping[str, str] | None, /) -> MediaFiles:
        """Of rows on their way elsewhere; the options say whether references may lead out of the root."""
        return cls(root=root, storage=storage, allow_outside=storage is not None and Storage(storage).allows(OUTSIDE))

    def source(self, reference: str, column: ColumnType, /, *, data: bytes | Blob | None = None) -> Source:
        """What a decoder opens: the whole file, whichever of its frames a row has.

        Args:
            reference: The file, as the row names it.
            column: What the file is.
            data: Its bytes, where the row holds them; then nothing is looked for at `reference`.

        Raises:
            UnsafeReferenceError: It leads out of the dataset.
            MissingFileError: It is not there.
        """
        if data is not None:
            return Source(blob=inline_blob(data, reference), column=column)
        index = (self.kept(reference) or None) if self.kept else None
        return Source(blob=self.blob(reference), column=column, index=index)

    def blob(self, reference: str, /) -> Blob:
        """The bytes of a file that a row names; for the errors see `source`."""
        try:
            blob = None if self.copied is None else self.copied(reference)
            if blob is not None:
                return blob
            return open_reference(self.root, reference, storage=self.storage, allow_outside=self.allow_outside)
        except FileNotFoundError as error:
            raise missing(error) from error


def inline_blob(data: bytes | Blob, name: str = "", /, *, token: str = "") -> Blob:
    """The bytes of a file that stand in a row, called by the name they once had; a blob of them is called so already.

    Args:
        data: The bytes.
        name: Of the file.
        token: What tells the cell from all others, where that is known; see `cell_token`.
    """
    return MemoryBlob(data, location=inline_location(name), token=token) if isinstance(data, bytes) else data


def cell_token(shard: Shard, column: str, row: int, /) -> str:
    """What tells the bytes of one cell from those of all others, without a look at them."""
    return f"{shard.key}/{column}/{row}"


def held_span(cell: object, token: str, /) -> FileSpan | None:
    """As `place_of`, the bytes named by a token, so that nobody hashes them."""
    place = place_of(cell)
    if place is None or place.data is None:
        return place
    return replace(place, data=inline_blob(place.data, place.reference, token=token))


def spans_of(source: Readable, name: str, rows: Ints, /) -> Iterator[list[FileSpan | None]]:
    """The files that stand in some cells: where they lie, else portion by portion; for the arguments see `parts_of`."""
    for shard, inside in _by_shard(source, rows):
        with closing(shard.open()) as reader:
            given = ability(reader, HoldsFiles)
            held = None if given is None else given.held(name, inside)
            if held is not None:
                yield [None if one is None else FileSpan(one[0], data=one[1]) for one in held]
                continue
            numbers = iter(inside.tolist())
            for batch in reader.batches([name], rows=inside):
                cells = zip(batch.column(0), islice(numbers, batch.num_rows), strict=True)
                yield [held_span(cell.as_py(), cell_token(shard, name, row)) for cell, row in cells]


def located(error: Exception, where: str, /) -> Exception:
    """The same error with the place it belongs to; a file that is not there as damage of the dataset.

    Args:
        error: What went wrong with a file.
        where: The sequence and the column, for the message.
    """
    if isinstance(error, SeqlakeError):
        return type(error)(f"{where}: {error.message}", path=error.path, hint=error.hint)
    if isinstance(error, FileNotFoundError):
        return missing(error, where)
    return error


def cells_of(source: Readable, name: str, rows: Ints, /) -> list[Any]:
    """The cells of one column in some rows, as Python values; for the arguments see `parts_of`."""
    return [cell for part in parts_of(source, name, rows) for cell in part.to_pylist()]


def parts_of(source: Readable, name: str, rows: Ints, /) -> Iterator[pa.Array]:
    """The cells of one column in some rows, batch by batch.

    Args:
        source: The dataset.
        name: The column.
        rows: [n] row numbers, ascending.
    """
    for shard, inside in _by_shard(source, rows):
        with closing(shard.open()) as reader:
            for batch in reader.batches([name], rows=inside):
                yield batch.column(0)


def _by_shard(source: Readable, rows: Ints) -> Iterator[tuple[Shard, Ints]]:
    """The shards with any of these rows, and which of their rows these are."""
    first = 0
    for shard in source.shards():
        inside = rows[(rows >= first) & (rows < first + shard.rows)] - first
        first += shard.rows
        if len(inside):
            yield shard, inside.astype(np.int64)
