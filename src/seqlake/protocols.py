"""The contract of every plug, a few lines each; a plug is a module that offers the functions named here.

Describe, then open: `Shard`, `Change`, `Written`, `Source` and `Sink` are small picklable values that travel to
workers; `ShardReader` and `Decoder` are handles of one process. The contract suites in `seqlake.testing` test
the laws.

What stands here a plug must offer; what it may offer besides stands in `abilities.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from fractions import Fraction
    from pathlib import Path

    import pyarrow as pa
    import pyarrow.dataset

    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Schema

Ints: TypeAlias = NDArray[np.int64]
Depth = Literal["metadata", "rows", "files", "decode"]


# ---- files
class Blob(Protocol):
    """Bytes that never change, and how to reach them."""

    @property
    def location(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def token(self) -> str:
        """ETag, or size, mtime and inode: another token means other bytes."""

    def view(self) -> memoryview | None:
        """All of it as memory (mapped or held); None where only ranges can be had."""

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Many ranges in few requests; short or changed bytes raise."""


class Store(Protocol):
    """One root of a file system or bucket; paths are relative to it."""

    @property
    def root(self) -> str:
        """An absolute path or URI."""

    def blob(self, path: str, /) -> Blob:
        """The file of that name; FileNotFoundError."""

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """(path, size) in name order."""

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:
        """Whole, its bytes durable, or not there; FileExistsError if a rival was first. `temporary`: the
        name it has before (local). A Path that already lies at `path` is only synced.
        """

    def local(self, path: str, /) -> Path | None:
        """Where other code may write this name itself; None: write elsewhere, then `put`."""

    def copy(self, source: str, target: str, /) -> None:
        """A second name for the same bytes (hard link, server-side copy); FileExistsError."""

    def sync(self, *folders: str) -> None:
        """Names made, moved or removed in these folders are durable; nothing to do on object stores."""

    def move(self, source: str, target: str, /) -> None:
        """Repeatable, not synced; rename locally, copy and delete elsewhere."""

    def delete(self, paths: Iterable[str], /) -> None: ...


class StoreFormat(Protocol):
    """What a plug in the group `seqlake.stores` offers; its name is the scheme of the URIs that it opens."""

    def open(self, root: str, /, *, storage: Mapping[str, str] | None = None) -> Store:
        """Nothing is read yet; `storage`: what the user gave, never stored, never printed."""


# ---- reading
class Proof(Protocol):
    """Bytes of a `Flat` are compared with what was written before they are handed out (`verify="first"`)."""

    @property
    def done(self) -> bool:
        """Nothing is left to compare in this process."""

    def pages(self, places: Ints, /) -> Ints:
        """[n] number of the page that holds each byte."""

    def touch(self, places: Ints, /) -> None:
        """The pages of these bytes, in a blob that is memory, are what was written; CorruptFileError."""

    def fetch(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of a blob that is not: their pages are read whole and compared; CorruptFileError."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat:
    """A column whose steps lie at known bytes of one blob: all a random window needs."""

    blob: Blob
    start: Ints  # [rows] byte of step 0
    steps: Ints  # [rows] T; 0 empty, -1 null
    stride: int  # bytes from one step to the next
    stored: np.dtype[Any]  # as the bytes lie (Parquet keeps int16 in 4 bytes)
    dtype: np.dtype[Any]  # as handed out
    shape: tuple[int, ...]  # of one step: (D,), () for [T], (3, 3)
    proof: Proof | None = None  # what looks at pages first; None: nobody does


class ShardReader(Protocol):
    """One open shard; only what is named is read."""

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Logical Arrow types, bounded batches, rows in the order asked for."""

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding; None: use `batches`."""

    def close(self) -> None: ...


class Shard(Protocol):
    """A unit of rows: a picklable description that opens itself in any process."""

    @property
    def key(self) -> str:
        """`<name>#<hash>`, unique among all datasets; other bytes, deletes or column mapping, other key."""

    @property
    def rows(self) -> int:
        """Live rows, deletes applied."""

    @property
    def nbytes(self) -> int: ...
    def open(self) -> ShardReader: ...


@runtime_checkable
class Readable(Protocol):
    """Rows in a fixed order: a table at a version, a selection, somebody else's dataset."""

    @property
    def schema(self) -> Schema:
        """Arrow and column types; `schema.id` is None where rows are samples."""

    @property
    def root(self) -> str:
        """What relative file references resolve against."""

    @property
    def fingerprint(self) -> str:
        """Changes when any row, its order, schema or bytes may have."""

    def shards(self) -> Sequence[Shard]:
        """Always the same order; opens no data file."""

    def lengths(self, column: str, /) -> Ints:
        """[all rows] T in shard order, from an index where there is one; -1 null."""


@runtime_checkable
class _HasShards(Protocol):
    def shards(self) -> Sequence[Shard]: ...


def is_readable(thing: object, /) -> TypeGuard[Readable]:
    """Whether something is `Readable`, of which nothing is computed to find out.

    To see whether there is a member, Python before 3.12 takes its value, and a lazy frame resolves its whole plan where
    its schema is looked at.

    Example:
        >>> is_readable("data/arm")
        False
    """
    return isinstance(thing, _HasShards) and isinstance(thing, Readable)


@runtime_checkable
class Snapshot(Readable, Protocol):
    """A table at one version."""

    @property
    def version(self) -> Version: ...


# ---- writing
@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A file taken into the dataset."""

    path: str
    size: int
    sha256: str
    packets: Mapping[int, bytes] = field(default_factory=dict)  # video stream -> its packet index


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """Scalar columns added to a shard that stays; its rows in the shard's order."""

    location: str
    shard: str  # Shard.key
    columns: Sequence[str]
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A finished shard nobody sees yet; picklable. `location` is the path that was given, and its name says the
    format, if not Parquet's; the caller fills `partition`, `files` and `references`.
    """

    location: str
    rows: int
    nbytes: int
    partition: Mapping[str, object]
    statistics: Mapping[str, tuple[object, object, int]]  # scalar -> (min, max, nulls)
    ids: bytes  # sorted 64-bit id hashes, then their 32-bit rows
    index: bytes  # the offset index, as in the shard
    files: Sequence[Copied] = ()
    references: Sequence[tuple[str, int, str]] = ()  # path, size, ETag, as seen


class ShardWriter(Protocol):
    """One shard in the making."""

    @property
    def nbytes(self) -> int:
        """Bytes so far, about: of the file, and of the rows that wait for it in memory."""

    def write(self, batch: pa.RecordBatch, /) -> None: ...
    def close(self) -> Written:
        """Finish it; `partition`, `files` and `references` are the caller's."""

    def abort(self) -> None:
        """Give it up: no file is left."""


class ShardFormat(Protocol):
    """What `shards.parquet` offers, and a plug in the group `seqlake.shard_formats`, named as its files end.

    Who only reads leaves `create` out: what `Dataset` writes is Parquet. The readers of a plug have the ability
    `Physical`, which a plain folder is asked for.
    """

    def open(self, blob: Blob, /) -> ShardReader: ...
    def create(
        self,
        path: Path,
        schema: Schema,
        /,
        *,
        layout: str,
        fixed_size_inner: bool = False,
        ids: Mapping[str, int] | None = None,
    ) -> ShardWriter:
        """`ids`: numbers of columns by dotted path, for lakes that find them so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One commit of a table, as `Dataset.versions()` lists them; `time` is UTC, `rows` counts sequences.

    `message` is what its maker said it is for.

    Example:
        ```python
        [(v.id, v.operation, v.rows) for v in ds.versions()]  # [(0, "create", 0), (1, "append", 20)]
        before = sl.open(ds.location, version=ds.versions()[0])
        ```
    """

    id: int | str
    time: datetime
    operation: str
    rows: int
    message: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One commit under way; picklable, so that workers stage under its id."""

    id: str  # uuid7, 32 hex digits
    parent: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One commit: all of it or nothing."""

    operation: str  # append rewrite fold delete upsert evolve metadata adopt
    add: Sequence[Written] = ()
    side: Sequence[Side] = ()
    remove: Sequence[str] = ()  # Shard.key
    schema: Schema | None = None  # from now on, with the mixtrain metadata; None leaves it
    renamed: Mapping[str, str] = field(default_factory=dict)


class Table(Protocol):
    """A committed set of shards with metadata and versions."""

    @property
    def root(self) -> str:
        """An absolute path or URI: what relative references resolve against."""

    @property
    def kind(self) -> str:
        """What people call it: `standalone`, `delta`."""

    @property
    def store(self) -> Store:
        """The store of its root."""

    def versions(self) -> Sequence[Version]:
        """All versions, the oldest first."""

    def snapshot(self, version: Version | int | str | datetime | None = None, /) -> Snapshot:
        """Pinned: later commits do not change it."""

    def begin(self, parent: Version | None = None, /) -> Transaction:
        """Announce a commit and put right what earlier ones left; a plain folder is adopted."""

    def place(
        self,
        transaction: Transaction,
        partition: Mapping[str, object],
        /,
        *,
        n: str,
        format: str = "parquet",  # noqa: A002 - as users call it
    ) -> str:
        """Where the shard `n` of this transaction is written before the commit; ValueError: not in that format."""

    def stage(self, transaction: Transaction, written: Written, /) -> Written:
        """Make a finished shard durable where nobody reads it yet, from any process."""

    def files(self, transaction: Transaction, /) -> str:
        """Where its copied-in files are out of reach of this table's own cleanup."""

    def temporary(self, transaction: Transaction, n: str, /) -> str:
        """The name, below the root, that a file of it has before it is whole (local disks)."""

    def renew(self, transaction: Transaction, /) -> None:
        """It is alive; called at least hourly."""

    def commit(self, change: Change, /, *, transaction: Transaction) -> Version:
        """Atomic; CommitConflictError when what came after its parent touches it. A lake that cannot
        commit schema and rows at once may leave an additive schema behind.
        """

    def discard(self, transaction: Transaction, /) -> None:
        """Remove what it staged."""

    def rollback(self, version: Version | int | str, /) -> Version:
        """A new version with the rows of an old one (standalone: schema and metadata too)."""

    def adopt(self) -> Version:
        """Take in, or index, what others wrote there; the newest version where there is nothing to do."""

    def read_derived(self, name: str, /) -> bytes | None:
        """Statistics, learned lengths: what can be computed again, kept by fingerprint."""

    def write_derived(self, name: str, data: bytes, /) -> None:
        """In the table, or in the user's cache where it is read-only."""

    def vacuum(self, *, older_than: timedelta, dry_run: bool = False) -> Sequence[str]:
        """Remove what seqlake wrote and no retained version names."""


class TableFormat(Protocol):
    """What a module in tables/ offers."""

    def matches(self, location: object, /) -> bool: ...
    def open(self, location: object, /, *, storage: Mapping[str, str] | None = None) -> Table:
        """`storage`: obstore's option names; never stored, never printed."""

    def create(
        self,
        location: str,
        schema: Schema,
        /,
        *,
        partition_by: Sequence[str] = (),
        storage: Mapping[str, str] | None = None,
    ) -> Table: ...


class Sink(Protocol):
    """Where converted rows go; picklable. Parts are written anywhere, one commit shows them."""

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> object:
        """One part and its files; a picklable receipt; the same part again replaces itself."""

    def commit(self, receipts: Sequence[object], /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """What became of one thing of a source: a feature, a topic, a data set of an HDF5 file.

    `column` is None where it is left out, and then `how` says why; else how it is read, where that is not plain.
    """

    source: str
    column: str | None
    how: str = ""


class Format(Protocol):
    """What a module in formats/ offers."""

    def matches(self, location: str, /, *, storage: Mapping[str, str] | None = None) -> bool: ...
    def scan(self, location: str, /, **options: object) -> Readable: ...


# ---- media
@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a media cell points to: a file, bytes in the row, or part of a shared file."""

    blob: Blob | bytes
    column: ColumnType
    first: int = 0
    count: int | None = None
    index: Mapping[int, bytes] | bytes | None = None  # what `Media.index` made of it; bytes: of the stream asked for


class Decoder(Protocol):
    """One open file, one thread at a time: an index gives an array."""

    def __len__(self) -> int:
        """Presented frames (audio samples; 1 for a still or mesh), counted, never estimated."""

    @property
    def pts(self) -> Ints: ...
    @property
    def time_base(self) -> Fraction: ...
    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """[N, ...] in the order asked, repeats allowed; groups of pictures decoded once; `size`: (height, width)."""

    def close(self) -> None: ...


class Media(Protocol):
    """What a module in media/ offers; several may open one type, the first that can is used."""

    def types(self) -> Sequence[str]: ...
    def index(self, source: Source, /) -> Mapping[int, bytes]:
        """What makes opening cheap, made once (video stream -> packet index); empty: nothing."""

    def open(self, source: Source, /, *, threads: int = 1, device: str = "cpu") -> Decoder: ...
