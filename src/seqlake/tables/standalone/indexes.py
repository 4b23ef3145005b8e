"""Index files: what a table knows of each shard without opening it: ids, offsets, copied-in files, references."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.protocols import Copied
from seqlake.tables.standalone import names
from seqlake.tables.standalone.records import damaged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


def pack_texts(ids: Iterable[str], /) -> bytes:
    """Ids in row order, compressed."""
    return zlib.compress(json.dumps(list(ids), ensure_ascii=False, separators=(",", ":")).encode(), 1)


def unpack_texts(packed: bytes | memoryview, /) -> list[str] | None:
    """The ids back; None where the bytes are none."""
    try:
        found = json.loads(zlib.decompress(packed)) if len(packed) else None
    except (zlib.error, ValueError):
        return None
    return found if isinstance(found, list) else None


def encode(rows: Iterable[IndexRow], /) -> bytes:
    """The bytes of an index file, uncompressed so that it can be mapped."""
    listed = list(rows)
    batch = pa.record_batch(
        [
            pa.array([row.shard for row in listed], pa.string()),
            pa.array([row.rows for row in listed], pa.int64()),
            pa.array([row.nbytes for row in listed], pa.int64()),
            pa.array([row.ids for row in listed], pa.binary()),
            pa.array([row.index for row in listed], pa.binary()),
            pa.array(
                [[{"path": f.path, "size": f.size, "sha256": f.sha256} for f in row.files] for row in listed],
                _COLUMNS.field("files").type,
            ),
            pa.array(
                [[{"path": p, "size": s, "etag": e} for p, s, e in row.references] for row in listed],
                _COLUMNS.field("references").type,
            ),
        ],
        schema=_COLUMNS,
    )
    if any(row.texts for row in listed):
        batch = batch.append_column(_TEXTS, pa.array([row.texts for row in listed], pa.binary()))
    return _to_file(batch)


def encode_media(files: Iterable[Copied], /) -> bytes | None:
    """The packet indexes of a transaction's videos; None where there are none."""
    once = {file.path: file for file in files}  # shards may share a file
    rows = [(file.path, stream, one) for file in once.values() for stream, one in sorted(file.packets.items())]
    if not rows:
        return None
    paths, streams, packets = zip(*rows, strict=True)
    arrays = [pa.array(paths, pa.string()), pa.array(streams, pa.int32()), pa.array(packets, pa.binary())]
    return _to_file(pa.record_batch(arrays, schema=_MEDIA))


class MediaFile:
    """The packet indexes of one transaction's videos, in memory or mapped."""

    def __init__(self, packets: pa.ChunkedArray, rows: dict[str, dict[int, int]]) -> None:
        self._packets = packets
        self._rows = rows

    @classmethod
    def decode(cls, data: bytes | memoryview, /, *, path: str) -> MediaFile:
        """What `encode_media` wrote.

        Raises:
            DamagedTableError: It is something else.
        """
        try:
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                table = reader.read_all().select(_MEDIA.names).cast(_MEDIA)
            table.validate(full=True)
            rows: dict[str, dict[int, int]] = {}
            named = zip(table.column("path").to_pylist(), table.column("stream").to_pylist(), strict=True)
            for row, (name, stream) in enumerate(named):
                rows.setdefault(name, {})[stream] = row
        except (pa.ArrowException, KeyError, OSError) as error:
            raise damaged(path, f"it does not hold packet indexes ({error})") from error
        return cls(table.column("packets"), rows)

    @classmethod
    def empty(cls) -> MediaFile:
        """What stands for a file that is not there: a transaction without videos."""
        return cls(pa.chunked_array([], pa.binary()), {})

    def packets(self, path: str, /) -> dict[int, bytes]:
        """The packet index of each video stream of a file; empty where none is kept."""
        return {stream: self._packets[row].as_py() for stream, row in self._rows.get(path, {}).items()}


def _to_file(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))


class IndexFile:
    """An index file in memory or mapped; rows are made when they are asked for."""

    def __init__(self, table: pa.Table, by_name: dict[str, int]) -> None:
        self._table = table
        self._by_name = by_name

    @classmethod
    def decode(cls, data: bytes | memoryview, /, *, path: str) -> IndexFile:
        """Read an index file.

        Raises:
            DamagedTableError: It is none.
        """
        try:
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                table = reader.read_all()
            texts = _TEXTS.name in table.column_names
            wanted = _COLUMNS.append(_TEXTS) if texts else _COLUMNS
            if not table.schema.equals(wanted):
                table = table.select(wanted.names).cast(wanted)
            table.validate(full=True)
            by_name = {name: row for row, name in enumerate(table.column("shard").to_pylist())}
        except (pa.ArrowException, KeyError, OSError) as error:
            raise damaged(path, f"it is not an index file ({error})") from error
        return cls(table, by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def ids(self, name: str, /) -> memoryview:
        """The packed id hashes of a shard, as a view of the file."""
        return self._buffer("ids", name)

    def offsets(self, name: str, /) -> memoryview:
        """The offset index of a shard, as a view of the file."""
        return self._buffer("index", name)

    def files(self, name: str, /) -> tuple[Copied, ...]:
        """The copied-in files that a shard's rows name; paths that leave the root are left out."""
        found = self._table.column("files")[self._by_name[name]].as_py()
        return tuple(Copied(**item) for item in found if names.is_reference(item["path"]))

    def references(self, name: str, /) -> tuple[tuple[str, int, str], ...]:
        """The other files that a shard's rows name, as seen when it was written."""
        found = self._table.column("references")[self._by_name[name]].as_py()
        return tuple((item["path"], item["size"], item["etag"]) for item in found)

    def texts(self, name: str, /) -> memoryview:
        """The ids of a shard as `pack_texts` made them; empty where they were not kept."""
        return self._buffer(_TEXTS.name, name) if _TEXTS.name in self._table.column_names else memoryview(b"")

    def counts(self, name: str, /) -> tuple[int, int]:
        """The rows and bytes that a shard had when it was indexed."""
        at = self._by_name[name]
        return int(self._table.column("rows")[at].as_py()), int(self._table.column("nbytes")[at].as_py())

    def row(self, name: str, /) -> IndexRow:
        """All that the file says of a shard."""
        at = self._by_name[name]
        return IndexRow(
            shard=name,
            rows=self._table.column("rows")[at].as_py(),
            nbytes=self._table.column("nbytes")[at].as_py(),
            ids=self.ids(name),
            index=self.offsets(name),
            files=self.files(name),
            references=self.references(name),
            texts=self.texts(name),
        )

    def all_files(self) -> set[str]:
        """The paths of all copied-in files that any of its shards names."""
        lists: Sequence[list[dict[str, str]]] = self._table.column("files").to_pylist()
        return {item["path"] for items in lists for item in items}

    def _buffer(self, column: str, name: str) -> memoryview:
        return memoryview(self._table.column(column)[self._by_name[name]].as_buffer())
