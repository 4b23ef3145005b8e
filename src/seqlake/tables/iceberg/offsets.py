"""The sequence offset index of a table: Puffin files that its snapshots name, one small read for every sequence.

A commit writes one, and the same commit registers it as the statistics file of its snapshot. It holds a row for each
shard (ids, offsets, copied-in files) that came since a *ground* file, which holds all before; the ground is merged
anew when the rest has grown to a quarter of it. So an index is one file, or two.

pyiceberg reads Puffin files (blobs with a footer that says where each lies) and cannot write them. The table's metadata
name our file with an empty list of blobs: a blob type that pyiceberg does not know would make the whole table
unreadable for it, so blobs are found in the file's own footer. Specification: Apache Iceberg, "Puffin file format".
"""

from __future__ import annotations

import json
import struct
from copy import copy
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any

from seqlake.errors import CorruptFileError, DamagedTableError
from seqlake.files.stores import read_all
from seqlake.tables._lakes import paths
from seqlake.tables._lakes.sidecar import Sidecar
from seqlake.tables.iceberg.listing import relative_to
from seqlake.tables.iceberg.undoing import undone
from seqlake.versions import indexes, names
from seqlake.versions.small_files import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.statistics import StatisticsFile

    from seqlake.protocols import Store
    from seqlake.tables.iceberg.opening import OpenTable
    from seqlake.versions.indexes import IndexFile, IndexRow
    from seqlake.versions.state import TableFile

BLOB = "seqlake-offsets-v1"
GROUND = "ground"
SUFFIX = ".seqlake.puffin"
_FEW = 16  # shards that are not worth a ground of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinIndex:
    """One Puffin file of ours.

    Attributes:
        path: Where it lies, as the table's metadata say.
        file: Its rows.
        ground: The path of the file below it; empty where it has none.
    """

    path: str
    file: IndexFile
    ground: str = ""


class PuffinSidecar(Sidecar):
    """What is known of a table's shards, from the Puffin files of its snapshots.

    Args:
        store: The table's root.
        engine: The table, which says what is registered.
    """

    def __init__(self, store: Store, engine: OpenTable, /) -> None:
        super().__init__(store)
        self._engine = engine
        self._indexes: dict[str, PuffinIndex | None] = {}
        self._staged: dict[str, list[IndexRow]] = {}
        self._guard = RLock()

    # ---- finding
    def find(self, files: Iterable[TableFile], /, *, unsealed: bool = False) -> dict[str, IndexFile]:
        """The index file that knows each shard, by its path; what none knows, or knows otherwise, is left out."""
        wanted = list(files)
        with self._guard:
            if any(file.name not in self._of for file in wanted):
                self._look(wanted)
            return {file.name: self._of[file.name] for file in wanted if self._knows(file, unsealed=unsealed)}

    def _look(self, wanted: Sequence[TableFile]) -> None:
        """Read the newest index first; older ones only for shards that we wrote and that it does not have."""
        for number, statistics in enumerate(registered(self._engine.metadata())):
            missing = [file for file in wanted if file.name not in self._of]
            if number and not any(paths.owner(file.name) is not None for file in missing):
                return
            self._take_in(statistics.statistics_path)

    def _take_in(self, path: str) -> PuffinIndex | None:
        """An index and its ground, read once."""
        if path not in self._indexes:
            opened = self._indexes[path] = self._open(path)
            if opened is not None:
                for name in opened.file:
                    self._of.setdefault(name, opened.file)
                if opened.ground:
                    self._take_in(opened.ground)
        return self._indexes[path]

    def _open(self, path: str) -> PuffinIndex | None:
        ours = next((blob for blob in self._blobs(path) if blob.type == BLOB), None)
        if ours is None:
            return None
        try:
            file = indexes.IndexFile.decode(ours.data, path=path)
        except DamagedTableError:
            return None  # derived: it is computed again
        return PuffinIndex(path=path, file=file, ground=ours.properties.get(GROUND, ""))

    def _blobs(self, path: str) -> list[PuffinBlob]:
        """The blobs of a Puffin file, read in one request; none where it cannot be read."""
        place = relative_to(self._engine.metadata().location, path)
        try:
            if paths.is_outside(place):
                data: bytes | None = read_all(paths.blob_at(self._store, place, storage=self._engine.storage))
            else:
                data = read(self._store, place)
            return [] if data is None else decode(data, path=path)
        except (OSError, CorruptFileError):
            return []

    # ---- keeping
    def write(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Hold a transaction's rows until its commit registers them, and keep the packet indexes of its videos."""
        while len(self._staged) >= _FEW:
            self._staged.pop(next(iter(self._staged)))
        self._staged[transaction] = list(rows)
        media = indexes.encode_media(f for row in rows for f in row.files if names.copied_owner(f.path) == transaction)
        if media is not None:
            self._put(names.media(transaction), media, transaction)

    def is_due(self, files: Sequence[TableFile], /) -> bool:
        """Whether there are shards that no index knows: other clients', or those whose index is gone."""
        old = [file for file in files if paths.owner(file.name) not in self._staged]  # those of commits at hand are
        known = self.find(old)
        return any(file.name not in known for file in old)

    def grounded(self, files: Sequence[TableFile], /) -> frozenset[str]:
        """None: `next` puts the shards of a ground together."""
        del files
        return frozenset()

    def merge(self, transaction: str, rows: Sequence[IndexRow], /) -> None:
        """Register an index of all these shards for the newest snapshot; blobs of other writers stay in it."""
        table = self._engine.load()
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return
        number = snapshot.snapshot_id
        old = next((one for one in table.metadata.statistics if one.snapshot_id == number), None)
        strangers = [] if old is None else [b for b in self._blobs(old.statistics_path) if b.type != BLOB]
        sequence = snapshot.sequence_number or 0
        with undone(self._engine) as written:
            table = copy(table)
            table.io = written.noted_by(table.io)
            file = put(table, transaction, rows, "", snapshot=number, sequence=sequence, strangers=strangers)
            if old is not None and strangers:
                file = file.model_copy(update={"blob_metadata": old.blob_metadata})
            written.asked = True
            with table.update_statistics() as update:
                update.set_statistics(file)

    def ground_of(self, path: str, /) -> str:
        """The path of the file below an index; empty where there is none."""
        opened = self._take_in(path)
        return "" if opened is None else opened.ground

    def next(self, transaction: str, live: Sequence[TableFile], /) -> tuple[list[IndexRow], str]:
        """The rows of the index of the commit at hand, and the path of its ground.

        Args:
            transaction: Whose commit it is.
            live: The files of the version that it makes.
        """
        new = {row.shard: row for row in self._staged.get(transaction, ())}
        known = self.find([file for file in live if file.name not in new])
        top = next((self._take_in(one.statistics_path) for one in registered(self._engine.metadata())), None)
        ground = None if top is None or not top.ground else self._indexes.get(top.ground)
        grounded = set() if ground is None else set(ground.file)
        apart = [path for path in known if path not in grounded]
        if ground is not None and len(apart) + len(new) > max(_FEW, len(grounded) // 4):
            ground, apart = None, list(known)
        elif ground is None and top is not None and len(known) > _FEW and set(top.file) <= known.keys() | grounded:
            # What the newest index holds becomes the ground; nothing is written twice.
            ground, apart = top, [path for path in known if path not in top.file]
        rows = [known[path].row(path) for path in apart]
        return [*rows, *new.values()], "" if ground is None else ground.path


def registered(metadata: TableMetadata, /) -> list[StatisticsFile]:
    """The index files that snapshots name, that of the newest snapshot first, then its ancestors', then others'."""
    by_snapshot = {one.snapshot_id: one for one in metadata.statistics if one.statistics_path.endswith(SUFFIX)}
    snapshots = {one.snapshot_id: one for one in metadata.snapshots}
    order: dict[int, None] = {}
    at = metadata.current_snapshot()
    while at is not None and at.snapshot_id not in order:
        order[at.snapshot_id] = None
        at = None if at.parent_snapshot_id is None else snapshots.get(at.parent_snapshot_id)
    return [by_snapshot[number] for number in {**order, **dict.fromkeys(by_snapshot)} if number in by_snapshot]


def put(
    table: Table,
    transaction: str,
    rows: Sequence[IndexRow],
    ground: str,
    /,
    *,
    snapshot: int,
    sequence: int,
    strangers: Sequence[PuffinBlob] = (),
) -> StatisticsFile:
    """Write an index file, which nobody sees before a commit registers it.

    Args:
        table: Whose.
        transaction: The commit that registers it.
        rows: What it knows.
        ground: The path of the file below it; empty for none.
        snapshot: The snapshot that it is for.
        sequence: That snapshot's sequence number.
        strangers: Blobs of other writers that stay with the snapshot.

    Returns:
        What the table's metadata will say of it.
    """
    from pyiceberg.table.statistics import StatisticsFile

    ours = PuffinBlob(
        type=BLOB,
        data=indexes.encode(rows),
        snapshot=snapshot,
        sequence=sequence,
        properties={GROUND: ground} if ground else {},
    )
    data, footer = encode([*strangers, ours], properties={"created-by": "seqlake"})
    path = table.location_provider().new_metadata_location(f"{transaction}-{snapshot}-{len(rows)}{SUFFIX}")
    with table.io.new_output(path).create(overwrite=True) as file:
        file.write(data)
    # Never with the blob's type: pyiceberg could not read such a table again.
    fields: dict[str, Any] = {
        "snapshot-id": snapshot,
        "statistics-path": path,
        "file-size-in-bytes": len(data),
        "file-footer-size-in-bytes": footer,
        "blob-metadata": [],
    }
    return StatisticsFile(**fields)


MAGIC = b"PFA1"
_TAIL = 12  # length of the footer, flags, magic


@dataclass(frozen=True, slots=True, kw_only=True)
class PuffinBlob:
    """One blob.

    Attributes:
        type: What it holds.
        data: Its bytes as they lie, compressed if the metadata say so.
        snapshot: The snapshot it was made for.
        sequence: That snapshot's sequence number.
        fields: The columns it is about.
        codec: How it is compressed; empty: not at all.
        properties: Anything else.
    """

    type: str
    data: bytes
    snapshot: int
    sequence: int
    fields: tuple[int, ...] = ()
    codec: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


def encode(blobs: Iterable[PuffinBlob], /, *, properties: Mapping[str, str]) -> tuple[bytes, int]:
    """The bytes of a Puffin file, and how many of them are its footer."""
    out, listed = bytearray(MAGIC), []
    for blob in blobs:
        document: dict[str, Any] = {
            "type": blob.type,
            "fields": list(blob.fields),
            "snapshot-id": blob.snapshot,
            "sequence-number": blob.sequence,
            "offset": len(out),
            "length": len(blob.data),
            "properties": dict(blob.properties),
        }
        if blob.codec:
            document["compression-codec"] = blob.codec
        listed.append(document)
        out += blob.data
    footer = json.dumps({"blobs": listed, "properties": dict(properties)}).encode()
    start = len(out)
    out += MAGIC + footer + struct.pack("<i", len(footer)) + bytes(4) + MAGIC
    return bytes(out), len(out) - start


def decode(data: bytes | memoryview, /, *, path: str) -> list[PuffinBlob]:
    """The blobs of a Puffin file.

    Raises:
        CorruptFileError: It is none, or its footer is compressed.
    """
    whole = bytes(data)
    plain = len(whole) >= 2 * _TAIL and whole[:4] == MAGIC and whole[-4:] == MAGIC and whole[-8] == 0
    try:
        length = struct.unpack("<i", whole[-_TAIL : -_TAIL + 4])[0] if plain else -1
        listed = json.loads(whole[-_TAIL - length : -_TAIL] if length >= 0 else b"")["blobs"]
        return [
            PuffinBlob(
                type=one["type"],
                data=whole[one["offset"] : one["offset"] + one["length"]],
                snapshot=one["snapshot-id"],
                sequence=one["sequence-number"],
                fields=tuple(one.get("fields", ())),
                codec=one.get("compression-codec", ""),
                properties=one.get("properties", {}),
            )
            for one in listed
        ]
    except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
        raise CorruptFileError(f"Expected a Puffin file at {path}, found something else ({error}).") from None
