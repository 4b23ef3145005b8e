"""Index files: what a table knows of each shard without opening it: ids, offsets, copied-in files, references.

Each row holds a checksum of all that it says, compared when the row is first used: an index file may be large, and is
mapped. A row that is not as it was written is not used; what the shard says counts.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from threading import Lock
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.errors import DamagedTableError, ShardChangedError
from seqlake.files.arrow_ipc import decoded_bytes
from seqlake.files.checksums import crc32
from seqlake.files.locations import local_path
from seqlake.protocols import Copied
from seqlake.spec.findings import Finding
from seqlake.versions import names
from seqlake.versions.format import damaged
from seqlake.versions.small_files import on_disk, read, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from seqlake.protocols import Blob, Store, Written
    from seqlake.versions.state import FileList, TableFile

Standing: TypeAlias = Literal["sound", "unsealed", "damaged"]
"""Of a row: as it was written; without a checksum, as older releases wrote it; changed since."""

_FILE = pa.struct([("path", pa.string()), ("size", pa.int64()), ("sha256", pa.string())])
_REFERENCE = pa.struct([("path", pa.string()), ("size", pa.int64()), ("etag", pa.string())])
_COLUMNS = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("nbytes", pa.int64(), nullable=False),
        pa.field("ids", pa.binary(), nullable=False),
        pa.field("index", pa.binary(), nullable=False),
        pa.field("files", pa.list_(_FILE), nullable=False),
        pa.field("references", pa.list_(_REFERENCE), nullable=False),
    ]
)
_TEXTS = pa.field("texts", pa.binary(), nullable=False)  # optional: lakes keep the ids themselves, too
_CHECKSUM = pa.field("checksum", pa.uint32(), nullable=False)  # older releases wrote none
_HEAD = 8  # bytes before the messages of an Arrow file
_DAMAGE = (pa.ArrowException, KeyError, OSError, ValueError, TypeError, OverflowError, MemoryError)
_MEDIA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("stream", pa.int32(), nullable=False),
        pa.field("packets", pa.binary(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRow:
    """One shard's row.

    Attributes:
        shard: Its name.
        rows: Its rows.
        nbytes: Its size.
        ids: Sorted 64-bit hashes of its ids, then their 32-bit rows; empty where the table has no ids.
        index: The offset index, as in the shard; empty where it has none.
        files: Every copied-in file that its rows name, whichever transaction copied it.
        references: (path, size, ETag) of other files, as seen when it was written.
        texts: Its ids in row order, as `pack_texts` makes them; empty where they are read from the shard.
    """

    shard: str
    rows: int
    nbytes: int
    ids: bytes | memoryview = b""
    index: bytes | memoryview = b""
    files: tuple[Copied, ...] = ()
    references: tuple[tuple[str, int, str], ...] = ()
    texts: bytes | memoryview = b""

    @classmethod
    def of(
        cls, shard: str, written: Written, /, *, carried: Iterable[Copied] = (), texts: bytes | memoryview = b""
    ) -> IndexRow:
        """The row of a shard that was just written.

        Args:
            shard: Its name.
            written: What its writer says.
            carried: Files that its rows name and that earlier commits copied in.
            texts: Its ids, as `pack_texts` makes them.
        """
        files = {file.path: file for file in (*carried, *written.files)}
        return cls(
            shard=shard,
            rows=written.rows,
            nbytes=written.nbytes,
            ids=written.ids,
            index=written.index,
            files=tuple(files.values()),
            references=tuple(written.references),
            texts=texts,
        )


def pack_texts(ids: Iterable[str], /) -> bytes:
    """Ids in row order, compressed."""
    return zlib.compress(json.dumps(list(ids), ensure_ascii=False, separators=(",", ":")).encode(), 1)


def unpack_texts(packed: bytes | memoryview, /) -> list[str] | None:
    """The ids back; None where the bytes are none."""
    try:
        ids = json.loads(zlib.decompress(packed)) if len(packed) else None
    except (zlib.error, ValueError):
        return None
    return ids if isinstance(ids, list) else None


def encode(rows: Iterable[IndexRow], /) -> bytes:
    """The bytes of an index file, uncompressed so that it can be mapped."""
    listed = list(rows)
    cells = {name: list(map(attrgetter(name), listed)) for name in (*_COLUMNS.names, _TEXTS.name)}
    cells["files"] = [list(map(attrgetter("path", "size", "sha256"), files)) for files in cells["files"]]
    texts = cells.pop(_TEXTS.name)
    batch = pa.RecordBatch.from_pydict(cells, schema=_COLUMNS)
    if any(texts):
        batch = batch.append_column(_TEXTS, pa.array(texts, pa.binary()))
    return _to_file(_with_checksums(batch))


def encode_media(files: Iterable[Copied], /) -> bytes | None:
    """The packet indexes of a transaction's videos; None where there are none."""
    once = {file.path: file for file in files}  # shards may share a file
    rows = [(file.path, stream, one) for file in once.values() for stream, one in sorted(file.packets.items())]
    if not rows:
        return None
    paths, streams, packets = zip(*rows, strict=True)
    arrays = [pa.array(paths, pa.string()), pa.array(streams, pa.int32()), pa.array(packets, pa.binary())]
    return _to_file(_with_checksums(pa.record_batch(arrays, schema=_MEDIA)))


class _Rows:
    """The rows of an Arrow file whose columns are known, each looked at when it is first used."""

    def __init__(self, columns: Mapping[str, pa.Array], checksums: pa.Array | None) -> None:
        self._columns = columns
        self._checksums = checksums
        self._standing: dict[int, Standing] = {}

    @classmethod
    def read(cls, data: bytes | memoryview, schema: pa.Schema, /, *, optional: pa.Field | None = None) -> _Rows:
        """All rows; raises one of `_DAMAGE` where they are none."""
        if decoded_bytes(memoryview(data)[_HEAD:]) > len(data):
            raise ValueError("it is compressed, which nobody could map")
        with pa.ipc.open_stream(pa.py_buffer(data).slice(_HEAD)) as reader:  # the very messages that were looked at
            table = reader.read_all()
        if table.num_rows > len(data):
            raise ValueError(f"it says {table.num_rows} rows in {len(data)} bytes")
        for extra in (optional, _CHECKSUM):
            if extra is not None and extra.name in table.column_names:
                schema = schema.append(extra)
        if not table.schema.equals(schema):
            table = table.select(schema.names).cast(schema)
        table.validate(full=True)
        columns = {name: _one_chunk(table.column(name)) for name in schema.names}
        return cls(columns, columns.pop(_CHECKSUM.name, None))

    def __contains__(self, column: str) -> bool:
        return column in self._columns

    def __getitem__(self, column: str) -> pa.Array:
        return self._columns[column]

    def standing(self, at: int) -> Standing:
        """Whether a row is as it was written."""
        if at not in self._standing:
            try:
                checksum = _checksum(self._columns, at)
            except _DAMAGE:
                self._standing[at] = "damaged"
            else:
                written = None if self._checksums is None else self._checksums[at].as_py()
                self._standing[at] = "unsealed" if written is None else "sound" if checksum == written else "damaged"
        return self._standing[at]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _with_checksums(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    checksums = [_checksum(columns, at) for at in range(batch.num_rows)]
    return batch.append_column(_CHECKSUM, pa.array(checksums, pa.uint32()))


def _checksum(columns: Mapping[str, pa.Array], at: int) -> int:
    """CRC-32 of all that a row says, as `docs/reference/commits.md` lays it out.

    Raises:
        ValueError: It says null.
    """
    checksum = 0
    for array in columns.values():
        cell = array[at]
        if not cell.is_valid:
            raise ValueError("null where a value was expected")
        if pa.types.is_list(array.type):
            parts = _list_bytes(cell.values)
        elif pa.types.is_integer(array.type):
            parts = [cell.as_py().to_bytes(8, "little", signed=True)]
        else:
            data = cell.as_buffer()
            parts = [data.size.to_bytes(8, "little"), data]
        for part in parts:
            checksum = crc32(part, checksum)
    return checksum


def _list_bytes(values: pa.StructArray) -> list[bytes | pa.Buffer]:
    """How many structs, then field by field: numbers; or the lengths of texts, and all texts."""
    count = len(values)
    parts: list[bytes | pa.Buffer] = [count.to_bytes(8, "little")]
    for number in range(values.type.num_fields):
        array = values.field(number)
        if values.null_count or array.null_count:
            raise ValueError("null where a value was expected")
        if not count:
            continue
        _, first, *rest = array.buffers()
        if not rest:
            parts.append(first[array.offset * 8 : (array.offset + count) * 8])
            continue
        offsets = np.frombuffer(first, "<i4", count + 1, array.offset * 4)
        parts += [
            np.diff(offsets).astype("<i4").tobytes(),
            b"" if rest[0] is None else rest[0][offsets[0] : offsets[-1]],
        ]
    return parts


class MediaFile:
    """The packet indexes of one transaction's videos, in memory or mapped."""

    def __init__(self, rows: _Rows | None, at: dict[str, dict[int, int]]) -> None:
        self._rows = rows
        self._at = at

    @classmethod
    def decode(cls, data: bytes | memoryview, /, *, path: str) -> MediaFile:
        """What `encode_media` wrote.

        Raises:
            DamagedTableError: It is something else.
        """
        try:
            rows = _Rows.read(data, _MEDIA)
            places: dict[str, dict[int, int]] = {}
            named = zip(rows["path"].to_pylist(), rows["stream"].to_pylist(), strict=True)
            for row, (name, stream) in enumerate(named):
                places.setdefault(name, {})[stream] = row
        except _DAMAGE as error:
            raise damaged(path, f"it does not hold packet indexes ({error})") from error
        return cls(rows, places)

    @classmethod
    def empty(cls) -> MediaFile:
        """What stands for a file that is not there: a transaction without videos."""
        return cls(None, {})

    def packets(self, path: str, /) -> dict[int, bytes]:
        """The packet index of each video stream of a file; empty where none is kept as it was written."""
        return {
            stream: self._rows["packets"][row].as_py()
            for stream, row in self._at.get(path, {}).items()
            if self._rows is not None and self._rows.standing(row) != "damaged"
        }

    def damaged(self) -> list[str]:
        """The files whose packet indexes changed since they were written."""
        rows = self._rows
        if rows is None:
            return []
        return [
            str(path) for path, at in self._at.items() if any(rows.standing(row) == "damaged" for row in at.values())
        ]


def _to_file(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))


class IndexFile:
    """An index file in memory or mapped; rows are made when they are asked for."""

    def __init__(self, rows: _Rows, by_name: dict[str, int]) -> None:
        self._rows = rows
        self._by_name = by_name

    @classmethod
    def decode(cls, data: bytes | memoryview, /, *, path: str) -> IndexFile:
        """Read an index file.

        Raises:
            DamagedTableError: It is none.
        """
        try:
            rows = _Rows.read(data, _COLUMNS, optional=_TEXTS)
            by_name = {name: row for row, name in enumerate(rows["shard"].to_pylist()) if name is not None}
        except _DAMAGE as error:
            raise damaged(path, f"it is not an index file ({error})") from error
        return cls(rows, by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def standing(self, name: str, /) -> Standing:
        """Whether the row of a shard is as it was written; what a damaged one says means nothing."""
        return self._rows.standing(self._by_name[name])

    def knows(self, name: str, /, *, rows: int, nbytes: int, unsealed: bool = False) -> bool:
        """Whether the row of a shard may be believed: it is as it was written, and of the same shard.

        Args:
            name: The shard's.
            rows: Its rows, as the table says.
            nbytes: Its size.
            unsealed: Whether a row without a checksum will do.
        """
        if name not in self._by_name or self.standing(name) not in ({"sound", "unsealed"} if unsealed else {"sound"}):
            return False
        return self.counts(name) == (rows, nbytes)

    def ids(self, name: str, /) -> memoryview:
        """The packed id hashes of a shard, as a view of the file."""
        return self._buffer("ids", name)

    def offsets(self, name: str, /) -> memoryview:
        """The offset index of a shard, as a view of the file."""
        return self._buffer("index", name)

    def files(self, name: str, /) -> tuple[Copied, ...]:
        """The copied-in files that a shard's rows name; paths that leave the root are left out."""
        files = self._rows["files"][self._by_name[name]].as_py()
        return tuple(Copied(**item) for item in files if names.is_reference(item["path"]))

    def references(self, name: str, /) -> tuple[tuple[str, int, str], ...]:
        """The other files that a shard's rows name, as seen when it was written."""
        references = self._rows["references"][self._by_name[name]].as_py()
        return tuple((item["path"], item["size"], item["etag"]) for item in references)

    def texts(self, name: str, /) -> memoryview:
        """The ids of a shard as `pack_texts` made them; empty where they were not kept."""
        return self._buffer(_TEXTS.name, name) if _TEXTS.name in self._rows else memoryview(b"")

    def counts(self, name: str, /) -> tuple[int, int]:
        """The rows and bytes that a shard had when it was indexed."""
        at = self._by_name[name]
        return int(self._rows["rows"][at].as_py()), int(self._rows["nbytes"][at].as_py())

    def row(self, name: str, /) -> IndexRow:
        """All that the file says of a shard."""
        rows, nbytes = self.counts(name)
        return IndexRow(
            shard=name,
            rows=rows,
            nbytes=nbytes,
            ids=self.ids(name),
            index=self.offsets(name),
            files=self.files(name),
            references=self.references(name),
            texts=self.texts(name),
        )

    def _buffer(self, column: str, name: str) -> memoryview:
        return memoryview(self._rows[column][self._by_name[name]].as_buffer())


_MEDIA_FILES, _MEDIA_BYTES = 1024, 256 << 20  # kept at hand; bytes count where files cannot be mapped


class IndexFiles(Protocol):
    """The index files of one table, each read once."""

    def find(self, files: Iterable[TableFile], /, *, unsealed: bool = False) -> dict[str, IndexFile]:
        """The index file that knows each shard, by its name; shards that none knows as they are now are left out.

        Args:
            files: The shards.
            unsealed: Whether rows without a checksum will do, as older releases wrote them: for whoever only
                compares, or asks which files to keep.
        """


class ShardIndex:
    """The index files of one table: the newest checkpoint's and those of later transactions, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, IndexFile | None] = {}
        self._of: dict[str, list[IndexFile]] = {}
        self._believed: dict[tuple[str, int, int], IndexFile] = {}

    def find(self, files: Iterable[TableFile], /, *, unsealed: bool = False) -> dict[str, IndexFile]:
        """The index file that knows each shard; shards that none knows, or whose row changed, are left out.

        An index file may be removed at any time. One that a checkpoint merged has gone into it; what is gone
        altogether can be computed again from the shard.

        Args:
            files: The shards.
            unsealed: Whether rows without a checksum will do, as older releases wrote them: for whoever only
                compares, or asks which files to keep.
        """
        wanted = list(files)
        known = self._known(wanted, unsealed=unsealed)
        for turn in range(max((len(file.indexed_in) for file in wanted), default=0)):
            missing = [file for file in wanted if file.name not in known]
            if not missing:
                break
            self._load(sorted({file.indexed_in[turn] for file in missing if turn < len(file.indexed_in)}))
            known |= self._known(missing, unsealed=unsealed)
        return {file.name: known[file.name] for file in wanted if file.name in known}

    def rows(self, files: FileList, /) -> list[IndexRow]:
        """The rows of all shards that an index file knows, in the order of the shards."""
        return [rows.row(name) for name, rows in self.find(files).items()]

    def _known(self, files: Iterable[TableFile], *, unsealed: bool) -> dict[str, IndexFile]:
        by_name = {}
        for file in files:
            size = file.name, file.rows, file.nbytes
            known = self._believed.get(size)
            for rows in () if known is not None else self._of.get(file.name, ()):
                if rows.knows(file.name, rows=file.rows, nbytes=file.nbytes):
                    known = self._believed[size] = rows
                    break
                if unsealed and rows.knows(file.name, rows=file.rows, nbytes=file.nbytes, unsealed=True):
                    known = known or rows
            if known is not None:
                by_name[file.name] = known
        return by_name

    def _load(self, paths: list[str]) -> None:
        unread = [path for path in paths if path not in self._files]
        for path, data in zip(unread, _contents(self._store, unread), strict=True):
            if data is None:
                continue  # Not remembered: it may be written later.
            try:
                file = IndexFile.decode(data, path=path)
            except DamagedTableError:
                self._files[path] = None  # derived: `check` reports it
                continue
            self._files[path] = file
            for name in file:
                self._of.setdefault(name, []).append(file)


def _contents(store: Store, paths: list[str]) -> list[bytes | memoryview | None]:
    """Index files, mapped where they lie on this machine."""
    if not on_disk(store):
        return list(read_many(store, paths))
    root = local_path(store.root)
    contents: list[bytes | memoryview | None] = []
    for path in paths:
        try:
            with pa.memory_map(str(root / path)) as source:
                contents.append(memoryview(source.read_buffer()))
        except OSError:
            contents.append(None)
    return contents


class KeptPackets:
    """The packet indexes that a table keeps of its videos, found by the transaction in the name of each."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def find(self, reference: str, /) -> dict[int, bytes]:
        """Video stream -> packet index of a copied-in file; empty where none is kept."""
        owner = names.copied_owner(reference) if names.is_reference(reference) else None
        if owner is None:
            return {}
        if self._pid != os.getpid():
            self._begin_anew()  # a parent's thread may have held the lock
        with self._lock:  # many threads that need a large file read it once
            held = self._held.get(owner)
            if held is None or not held.is_valid():
                held = self._read(owner)
                self._make_room(held.copied)
                self._held[owner] = held
            self._held.move_to_end(owner)
        return held.file.packets(reference)

    def _make_room(self, copied: int) -> None:
        """Let go of what was used longest ago."""
        held = list(self._held.items())
        copied += sum(one.copied for _, one in held)
        for place, (owner, one) in enumerate(held):
            if len(held) - place < _MEDIA_FILES and copied <= _MEDIA_BYTES:
                break
            self._held.pop(owner, None)
            copied -= one.copied

    def _read(self, owner: str) -> _Held:
        path = names.media(owner)
        blob: Blob | None = None
        data: bytes | memoryview | None = None
        with suppress(FileNotFoundError):
            if on_disk(self._store):
                blob = self._store.blob(path)
                data = blob.view()
            else:
                data = read(self._store, path)
        if data is None:
            return _Held()  # for good: it is written before the commit that shows its files
        try:
            file = MediaFile.decode(data, path=path)
        except DamagedTableError:
            file = MediaFile.empty()  # derived: the video itself is indexed then, and `check` reports it
        return _Held(file=file, blob=blob, copied=0 if blob is not None else len(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A file of packet indexes: as memory, and if that is a map, what it maps."""

    file: MediaFile = field(default_factory=MediaFile.empty)
    blob: Blob | None = None
    copied: int = 0

    def is_valid(self) -> bool:
        """Whether the file is what was mapped: one that others cut off would kill this process."""
        try:
            if self.blob is not None:
                self.blob.view()
        except FileNotFoundError:
            return True  # a map outlives the name
        except ShardChangedError:
            return False
        return True


def unknown_shards(locations: Iterable[str], /) -> Iterator[Finding]:
    """T509: shards whose ids and lengths have to be read from the shard itself, since no index file knows them."""
    for location in locations:
        yield Finding(
            code="T509",
            severity="note",
            message="no index file knows this shard, so that opening it for writing reads its ids",
            location=location,
        )
