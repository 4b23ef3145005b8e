"""What a snapshot consists of: its data files in order of addition, each with the rows that deletes took from it."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SeqlakeError
from seqlake.tables._lakes import paths
from seqlake.tables.iceberg.files import IcebergFile, naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from seqlake.protocols import Ints

_REMEMBERED = 4096  # manifests
_FEW = 64  # lists of them


class Manifests:
    """The manifests of one table, each read once: they never change."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, list[ManifestEntry]] = OrderedDict()
        self._listed: OrderedDict[str, list[ManifestFile]] = OrderedDict()

    def of(self, io: FileIO, snapshot: Snapshot, /) -> list[ManifestFile]:
        """What a snapshot's list names."""
        if snapshot.manifest_list not in self._listed:
            self._listed[snapshot.manifest_list] = snapshot.manifests(io)
        return self._listed[snapshot.manifest_list]

    def entries(self, io: FileIO, snapshot: Snapshot | None, /) -> Iterator[ManifestEntry]:
        """Every live entry of a snapshot, data and deletes; unread manifests are read side by side."""
        from pyiceberg.utils.concurrent import ExecutorFactory

        if snapshot is None:
            return
        listed = self.of(io, snapshot)
        unread = [one for one in listed if one.manifest_path not in self._read]

        def read(manifest: ManifestFile) -> list[ManifestEntry]:
            return manifest.fetch_manifest_entry(io, discard_deleted=True)

        for manifest, entries in zip(unread, ExecutorFactory.get_or_create().map(read, unread), strict=True):
            self._read[manifest.manifest_path] = entries
        for manifest in listed:
            yield from self._read[manifest.manifest_path]
        while len(self._listed) > _FEW:
            self._listed.popitem(last=False)
        while len(self._read) > max(_REMEMBERED, len(listed)):
            self._read.popitem(last=False)


def live_files(
    manifests: Manifests, metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, schema: IcebergSchema, /
) -> list[IcebergFile]:
    """The data files of a snapshot, oldest first.

    Args:
        manifests: Of the table.
        metadata: Of the table.
        io: Reads manifests and delete files.
        snapshot: Which one; None for a table without any.
        schema: What the files are shown as.

    Raises:
        SeqlakeError: It has deletes of a kind that pyiceberg cannot apply.
    """
    from pyiceberg.manifest import DataFileContent
    from pyiceberg.table.delete_file_index import DeleteFileIndex

    deletes = DeleteFileIndex()
    data: list[tuple[int, DataFile]] = []
    for entry in manifests.entries(io, snapshot):
        file = entry.data_file
        if file.content == DataFileContent.DATA:
            data.append((entry.sequence_number or 0, file))
        elif file.content == DataFileContent.POSITION_DELETES:
            deletes.add_delete_file(entry, partition_key=file.partition)
        else:
            raise _equality(metadata, snapshot)
    # Names of one commit have one length, so that its shard 10 follows its shard 9.
    data.sort(key=lambda item: (item[0], len(item[1].file_path), item[1].file_path))
    applied, called = _Deletes(io), naming(metadata, schema)
    start, same = f"{metadata.location.rstrip('/')}/", _Constants(metadata, schema)
    return [
        IcebergFile(
            name=relative_to(start, file.file_path),
            rows=file.record_count,
            nbytes=file.file_size_in_bytes,
            constants=same.of(file),
            defaults=same.defaults,
            deleted=applied.rows(file, deletes.for_data_file(number, file, partition_key=file.partition)),
            statistics=IcebergBounds(file, schema),
            naming=called,
        )
        for number, file in data
    ]


def relative_to(table: str, location: str, /) -> str:
    """A location as `TableFile.path` has it: relative where it lies below the table's.

    Most begin with the table's as it is written; others are compared as places.
    """
    start = table if table.endswith("/") else f"{table}/"
    return location[len(start) :] if location.startswith(start) else paths.relative_to(start, location)


def _equality(metadata: TableMetadata, snapshot: Snapshot | None) -> SeqlakeError:
    number = snapshot.snapshot_id if snapshot else 0
    return SeqlakeError(
        f"{metadata.location}: snapshot {number} has equality deletes, which pyiceberg cannot apply.",
        path=metadata.location,
        hint="Compact the table with the engine that wrote them, as Flink and Spark can, and open it again.",
    )


class _Constants:
    """What is in every row of a file: its partition's values; and in those that lack a column: its first default."""

    def __init__(self, metadata: TableMetadata, schema: IcebergSchema) -> None:
        self.defaults = {one.name: one.initial_default for one in schema.fields if one.initial_default is not None}
        self._kept = {number: list(_identities(spec, schema)) for number, spec in metadata.specs().items()}

    def of(self, file: DataFile) -> Mapping[str, object]:
        """The constants of one file."""
        kept = self._kept.get(file.spec_id or 0, ())
        return {name: file.partition[position] for position, name in kept}


def _identities(spec: PartitionSpec, schema: IcebergSchema) -> Iterator[tuple[int, str]]:
    """The parts of a partition that are cells as they are: (position, column)."""
    from pyiceberg.transforms import IdentityTransform
    from pyiceberg.types import DateType, TimestampType, TimestamptzType, TimeType

    for position, part in enumerate(spec.fields):
        name = schema.find_column_name(part.source_id)
        if name is None or not isinstance(part.transform, IdentityTransform):
            continue
        if not isinstance(schema.find_type(part.source_id), DateType | TimeType | TimestampType | TimestamptzType):
            yield position, name


class IcebergBounds(Mapping[str, tuple[object, object, int]]):
    """Column -> (least, greatest, nulls) of a file, worked out when asked for; other columns are not in it."""

    def __init__(self, file: DataFile, schema: IcebergSchema, /) -> None:
        self._file = file
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)

    def __getitem__(self, column: str) -> tuple[object, object, int]:
        bounds = self._find(column)
        if bounds is None:
            raise KeyError(column)
        return bounds

    def __iter__(self) -> Iterator[str]:
        return (one.name for one in self._schema.fields if self._find(one.name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _find(self, column: str) -> tuple[object, object, int] | None:
        from pyiceberg.conversions import from_bytes

        field = next((one for one in self._schema.fields if one.name == column), None)
        if field is None or not field.field_type.is_primitive:
            return None
        number, file = field.field_id, self._file
        low, high = (file.lower_bounds or {}).get(number), (file.upper_bounds or {}).get(number)
        nulls = (file.null_value_counts or {}).get(number)
        if low is None or high is None or nulls is None:
            return None
        kind: Any = field.field_type
        try:
            return from_bytes(kind, low), from_bytes(kind, high), nulls
        except (ValueError, TypeError, ArithmeticError, struct.error):  # of a type that was widened since
            return None


class _Deletes:
    """Delete files, each read once, whichever data files they are about."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._read: dict[str, Mapping[str, NDArray[np.int64]]] = {}

    def rows(self, file: DataFile, deletes: Iterable[DataFile]) -> Ints | None:
        """The rows of a data file that these delete files name; None: none."""
        named = [self._positions(one).get(file.file_path) for one in deletes]
        gone = [positions for positions in named if positions is not None and len(positions)]
        return np.unique(np.concatenate(gone)) if gone else None

    def _positions(self, delete: DataFile) -> Mapping[str, NDArray[np.int64]]:
        if delete.file_path not in self._read:
            # Private, and the only reader of deletion vectors that pyiceberg has.
            from pyiceberg.io.pyarrow import _read_deletes

            self._read[delete.file_path] = {
                path: np.asarray(positions.combine_chunks(), np.int64)
                for path, positions in _read_deletes(self._io, delete).items()
            }
        return self._read[delete.file_path]


def reachable(io: FileIO, snapshots: Sequence[Snapshot], /) -> set[str]:
    """Every file that these snapshots name: manifest lists, manifests, data and delete files."""
    locations: set[str] = set()
    for snapshot in snapshots:
        locations.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path not in locations:
                locations.add(manifest.manifest_path)
                locations.update(e.data_file.file_path for e in manifest.fetch_manifest_entry(io, discard_deleted=True))
    return locations
