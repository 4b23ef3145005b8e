"""A file on its way into a dataset: brought to this machine, hashed, its packets indexed."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from seqlake import media
from seqlake.dataset.writing.conforming import too_large
from seqlake.errors import ValidationError
from seqlake.files.blobs import LocalBlob
from seqlake.files.locations import is_local, local_path
from seqlake.files.stores import open_blob, read_all
from seqlake.protocols import Source
from seqlake.spec.rules.signals import LARGEST_CELL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from seqlake.protocols import Blob, Ints, Store
    from seqlake.spec.column_types import ColumnType

_CHUNK = 8 << 20
_LARGE = 16 << 20
Result = TypeVar("Result")


def slug(text: str) -> str:
    """A short name for people, safe on every file system; never what tells two files apart."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_]+", "-", plain).strip("-")[:40].lower() or "x"


@contextmanager
def on_this_machine(location: str, storage: Mapping[str, str] | None, blob: Blob | None = None) -> Iterator[Path]:
    """The file as a path of this machine; fetched in pieces where it is elsewhere, or lies in another one as `blob`."""
    if blob is None and is_local(location):
        yield local_path(location)
        return
    blob = open_blob(location, storage=storage) if blob is None else blob
    with tempfile.TemporaryDirectory(prefix="seqlake-") as folder:
        path = Path(folder) / Path(location.partition("?")[0]).name
        with path.open("wb") as file:
            for start in range(0, blob.size, _CHUNK):
                stop = min(start + _CHUNK, blob.size)
                file.write(blob.ranges(np.array([start]), np.array([stop]))[0])
        yield path


def digest(path: Path) -> tuple[int, str]:
    """Size and sha256, read in pieces."""
    with path.open("rb") as file:
        hashed = hashlib.file_digest(file, "sha256")
        return file.tell(), hashed.hexdigest()


def refuse_changed(location: str, before: os.stat_result, after: os.stat_result) -> None:
    """Hold a file that was read against what it was.

    Raises:
        ValidationError: It is another one.
    """
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValidationError(f"{location} changed while it was being copied; nothing was added.")


def whole_file(location: str, /, *, where: str) -> bytes:
    """A file's bytes, for a cell to hold; none is read before its size is known to fit.

    Args:
        location: An absolute path or URI.
        where: Sequence and column, for messages.

    Raises:
        ValidationError: It is above 1 GiB, is not there, or changed while it was being read.
        OSError: It cannot be read.
    """
    if not is_local(location):
        blob = open_blob(location)
        if blob.size > LARGEST_CELL:
            raise ValidationError(too_large(where, blob.size))
        return read_all(blob)
    path = local_path(location)
    if not path.is_file():
        raise ValidationError(f"{where}: expected a file to take the bytes of at {location!r}, found none.")
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        if before.st_size > LARGEST_CELL:
            raise ValidationError(too_large(where, before.st_size))
        data = file.read(before.st_size + 1)
        after = os.fstat(file.fileno())
    if len(data) != before.st_size or before.st_mtime_ns != after.st_mtime_ns:
        raise ValidationError(f"{where}: {location} changed while it was being read; nothing was added.")
    return data


def linked(source: Path, target: Path) -> bool:
    """Whether a file could be given a second name; of a link it is its file: what the link points at may move."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        return False  # another file system, or one without links
    return True


def put_file(store: Store, path: str, source: Path, /, *, link: bool) -> None:
    """Bring a file of this machine to a path below a store's root; `link`: as a hard link where that can be."""
    target = store.local(path) if link else None
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if linked(source, target):
            source = target
    store.put(path, source)


def packets_of(path: Path, column: ColumnType | None) -> Mapping[int, bytes]:
    """What makes opening a file of this column cheap: of a video the packet index of each of its streams.

    Empty where no index can be made of it: the file is taken in all the same, and `validate` says what is wrong.
    """
    if column is None or not media.opens(column.type):
        return {}
    try:
        return media.index(Source(blob=_ByRange(path), column=column))
    except Exception:  # noqa: BLE001 - whatever a demuxer makes of a damaged file, a take must not be lost by it
        return {}


def is_large(size: int) -> bool:
    """Whether a file is worth the threads of `Aside`."""
    return size >= _LARGE


class Aside:
    """Does work on a large file in other threads, while this one reads the next.

    Two threads copy: while the disk takes what one has written, the other writes. One makes packet indexes: two that do
    so hold the interpreter in turns, and take longer than one.
    """

    def __init__(self) -> None:
        self._copies = ThreadPoolExecutor(2, thread_name_prefix="seqlake-copy")
        self._indexes = ThreadPoolExecutor(1, thread_name_prefix="seqlake-index")

    def packets(self, path: Path, column: ColumnType | None, size: int) -> Callable[[], Mapping[int, bytes]]:
        """Begin `packets_of`; what is returned waits for it."""
        return _begun(self._indexes, size, partial(packets_of, path, column))

    def put(self, store: Store, path: str, source: Path, size: int, *, link: bool) -> Callable[[], None]:
        """Begin `put_file`; what is returned waits for it."""
        return _begun(self._copies, size, partial(put_file, store, path, source, link=link))


def _begun(pool: ThreadPoolExecutor, size: int, work: Callable[[], Result]) -> Callable[[], Result]:
    if is_large(size):
        return pool.submit(work).result
    result = work()
    return lambda: result


class _ByRange:
    """A file read in pieces: a map would keep the bytes of a temporary file after its end."""

    def __init__(self, path: Path) -> None:
        self._blob = LocalBlob(path)
        self.location, self.size, self.token = self._blob.location, self._blob.size, self._blob.token

    def view(self) -> None:
        return None

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        return self._blob.ranges(starts, stops)
