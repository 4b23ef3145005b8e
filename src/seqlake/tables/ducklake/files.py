"""The catalog's files as a lake's: which rows are deleted, where each column lies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError
from seqlake.shards import parquet
from seqlake.tables._lakes.paths import blob_at
from seqlake.tables.ducklake import types
from seqlake.tables.ducklake.texts import default_of
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Ints, Store
    from seqlake.tables.ducklake.reading import Facts, FileRow
    from seqlake.tables.ducklake.statistics import DuckLakeBounds

_Mapped: TypeAlias = "tuple[Mapping[str, str], frozenset[str], Mapping[str, object]]"
SNAPSHOT = "_ducklake_internal_snapshot_id"
_ID = b"PARQUET:field_id"


class DataFiles:
    """The data files of a lake, with what had to be read of them; each is read once.

    Args:
        store: Of the data path.
        storage: obstore's options, for files outside it.
    """

    def __init__(self, store: Store, /, *, storage: Mapping[str, str] | None) -> None:
        self._store = store
        self._storage = storage
        self._names: dict[str, dict[int, str]] = {}
        self._parts: dict[str, dict[int, dict[str, int]]] = {}
        self._marked: dict[str, tuple[Ints, Ints | None]] = {}
        self._begun: dict[str, Ints] = {}

    def lake_files(self, facts: Facts, /, *, bounds: DuckLakeBounds | None = None) -> list[TableFile]:
        """The files of a version, in order of addition."""
        shared: dict[int, _Mapped] = {}  # files of one name mapping, however many, lie alike
        files = []
        for file in facts.files:
            mapped = shared.get(file.mapping) if file.mapping is not None else None
            if mapped is None:
                mapped = self._mapped(facts, file)
                if file.mapping is not None:
                    shared[file.mapping] = mapped
            files.append(self._lake_file(facts, file, mapped, bounds))
        return files

    def deleted(self, file: FileRow, snapshot: int, /) -> Ints | None:
        """[deleted] row numbers in the file that a snapshot does not have, ascending; None for none."""
        parts: list[Ints] = []
        if file.delete is not None:
            rows, since = self._positions(file.delete.path, file.delete.format)
            # A file of deletes that several snapshots made says which row belongs to which.
            parts.append(rows if since is None else rows[since <= snapshot])
        if file.gone:
            parts.append(np.array(file.gone, np.int64))
        if file.partial_max is not None and file.partial_max > snapshot:
            parts.append(np.flatnonzero(self.begun(file) > snapshot))
        gone = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
        return gone.astype(np.int64) if len(gone) else None

    def deleted_since(self, path: str, form: str, /) -> Counter[int]:
        """Snapshot -> how many rows a file of deletes that several snapshots made has of it."""
        rows, since = self._positions(path, form)
        return Counter({0: len(rows)} if since is None else since.tolist())

    def begun(self, file: FileRow, /) -> Ints:
        """[rows] the snapshot that each row of a merged file belongs to."""
        if file.path not in self._begun:
            column = self._column(file.path, SNAPSHOT)
            self._begun[file.path] = np.full(file.rows, file.begin) if column is None else column
        return self._begun[file.path]

    def _lake_file(self, facts: Facts, file: FileRow, mapped: _Mapped, bounds: DuckLakeBounds | None) -> TableFile:
        columns, absent, constants = mapped
        return TableFile(
            name=file.path,
            rows=file.rows,
            nbytes=file.nbytes,
            columns=columns,
            absent=absent,
            constants=constants,
            deleted=self.deleted(file, facts.snapshot),
            statistics={} if bounds is None else bounds.of(file.id),
        )

    def _mapped(self, facts: Facts, file: FileRow) -> _Mapped:
        """Logical column -> its name in the file where it differs; those it lacks; those with one value."""
        if file.mapping is None and not facts.reshaped and not any(column.default for column in facts.columns):
            return {}, frozenset(), {}  # nothing was ever renamed or dropped, so names say it all
        names = self._physical(facts, file)
        columns: dict[str, str] = {}
        absent: set[str] = set()
        constants: dict[str, object] = {}
        for column in facts.columns:
            if column.id not in names:
                if column.default is not None:
                    constants[column.name] = default_of(column)
                else:
                    absent.add(column.name)
                continue
            if column.children:
                parts = self._parts[file.path] if file.mapping is None else facts.parts.get(file.mapping, {})
                types.refuse_moved(column, parts.get(column.id, {}))
            if names[column.id] != column.name:
                columns[column.name] = names[column.id]
        return columns, frozenset(absent), constants

    def _physical(self, facts: Facts, file: FileRow) -> dict[int, str]:
        """Field id -> what the column is called in the file."""
        if file.mapping is not None:
            return dict(facts.mappings.get(file.mapping, {}))
        if file.path not in self._names:
            reader = parquet.open(blob_at(self._store, file.path, storage=self._storage))
            self._names[file.path] = {
                int((one.metadata or {})[_ID]): one.name for one in reader.schema if _ID in (one.metadata or {})
            }
            self._parts[file.path] = {
                int((one.metadata or {})[_ID]): _parts(one.type) for one in reader.schema if _ID in (one.metadata or {})
            }
            reader.close()
        return self._names[file.path]

    def _positions(self, path: str, form: str) -> tuple[Ints, Ints | None]:
        if path not in self._marked:
            if form != "parquet":
                raise SeqlakeError(
                    f"{path}: deleted rows are kept as {form}, which DuckLake calls experimental and seqlake does "
                    "not read.",
                    hint="CALL ducklake_rewrite_data_files(...) in DuckDB writes the rows that are left anew.",
                )
            rows = self._column(path, "pos")
            if rows is None:
                raise SeqlakeError(f"Expected a file of deleted rows at {path}, found one without `pos`.")
            self._marked[path] = rows, self._column(path, SNAPSHOT)
        return self._marked[path]

    def _column(self, path: str, column: str) -> Ints | None:
        reader = parquet.open(blob_at(self._store, path, storage=self._storage))
        try:
            if column not in reader.schema.names:
                return None
            values = [batch.column(0).to_numpy(zero_copy_only=False) for batch in reader.batches([column])]
        finally:
            reader.close()
        return np.concatenate(values).astype(np.int64) if values else np.zeros(0, np.int64)


def _parts(kind: pa.DataType, above: str = "") -> dict[str, int]:
    """Path -> field id below a column of a file that carries field ids; only structs have parts that can move."""
    if pa.types.is_list(kind):
        return _parts(kind.value_type, f"{above}.element")
    parts: dict[str, int] = {}
    if pa.types.is_struct(kind):
        for at in range(kind.num_fields):
            field = kind.field(at)
            path = f"{above}.{field.name}"
            if _ID in (field.metadata or {}):
                parts[path] = int(field.metadata[_ID])
            parts |= _parts(field.type, path)
    return parts
