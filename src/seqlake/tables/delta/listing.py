"""The data files of a version, as deltalake lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import DamagedTableError
from seqlake.files.locations import is_local, local_path
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Ints


def files(table: Any, physical: Mapping[str, str], /, *, partition_by: Sequence[str]) -> list[TableFile]:
    """Every data file of a version, sorted by when it came and by path.

    Args:
        table: deltalake's table at the version.
        physical: Logical column -> its name in the files, where column mapping has given it another.
        partition_by: The table's partition columns, whose values the log has and the files may lack.
    """
    adds = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()  # pa.table loads pandas
    if not adds.num_rows:
        return []
    deleted = deleted_rows(table)
    raw = adds.column("path").to_pylist()
    paths = [unquote(path) if "%" in path else path for path in raw]
    root = str(table.table_uri)
    keys = [_below(root, path) if "://" in path else known for path, known in zip(raw, paths, strict=True)]
    lost = sorted(deleted.keys() - set(keys))
    if lost:  # to go on would show rows that were deleted
        raise DamagedTableError(
            f"{table.table_uri}: a deletion vector belongs to {lost[0]}, which is none of the version's files.",
            path=str(table.table_uri),
            hint="Purge the deleted rows with the engine that wrote them (Spark: REORG TABLE ... APPLY (PURGE)).",
        )
    rows = adds.column("num_records").to_pylist() if "num_records" in adds.column_names else [None] * len(paths)
    sizes = adds.column("size_bytes").to_pylist()
    times = adds.column("modification_time").to_pylist()
    values = _values(adds, partition_by, len(paths))
    statistics = None if physical else _Statistics.of(adds)
    none: Mapping[str, tuple[object, object, int]] = {}
    listed = [
        TableFile(
            name=path,
            rows=-1 if count is None else int(count),
            nbytes=int(size),
            constants=constants,
            columns=physical,
            deleted=deleted.get(key),
            statistics=none if statistics is None else DeltaBounds(statistics, at),
        )
        for at, (path, key, count, size, constants) in enumerate(zip(paths, keys, rows, sizes, values, strict=True))
    ]
    order = sorted(range(len(listed)), key=lambda at: (times[at] or 0, paths[at]))
    return [listed[at] for at in order]


def raw_paths(table: Any, /) -> list[str]:
    """The paths of a version's files as the log writes them, encoded in their writers' ways."""
    adds = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()
    paths: list[str] = adds.column("path").to_pylist() if adds.num_rows else []
    return paths


def _values(adds: pa.Table, partition_by: Sequence[str], count: int) -> list[dict[str, object]]:
    if not partition_by or "partition" not in adds.column_names:
        return [{}] * count
    partitions = adds.column("partition").to_pylist()
    return [{column: (one or {}).get(column) for column in partition_by} for one in partitions]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Statistics:
    """[files] bounds of the columns whose bounds the log has exactly; those of times are cut off to milliseconds."""

    low: Mapping[str, pa.Array]
    high: Mapping[str, pa.Array]

    @classmethod
    def of(cls, adds: pa.Table, /) -> _Statistics | None:
        """As deltalake lists them; None where it lists none."""
        if not {"min", "max"} <= set(adds.column_names):
            return None
        least, most = (adds.column(name).combine_chunks() for name in ("min", "max"))
        kinds = least.type
        shared = [one for one in kinds if most.type.get_field_index(one.name) >= 0]
        exact = [one.name for one in shared if not pa.types.is_timestamp(one.type)]
        return cls(low={n: pc.struct_field(least, n) for n in exact}, high={n: pc.struct_field(most, n) for n in exact})


class DeltaBounds(Mapping[str, tuple[object, object, int]]):
    """Column -> (least, greatest, 0) of a file, made when it is asked for: a table of many files opens without them."""

    __slots__ = ("_at", "_told")

    def __init__(self, statistics: _Statistics, at: int, /) -> None:
        self._told = statistics
        self._at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)

    def __getitem__(self, column: str) -> tuple[object, object, int]:
        low, high = self._told.low[column][self._at].as_py(), self._told.high[column][self._at].as_py()
        if high is None or not isinstance(low, int | float | str | date):
            raise KeyError(column)
        return low, high, 0

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._told.low if self.get(name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def counts(table: Any, /) -> dict[str, int]:
    """Path -> live rows of a version's files; -1 where the log does not say."""
    return {file.name: file.rows if file.rows < 0 else file.live for file in files(table, {}, partition_by=())}


def deleted_rows(table: Any, /) -> dict[str, Ints]:
    """Path -> the numbers of the rows that deletion vectors take away."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    root = str(table.table_uri)
    deleted: dict[str, Ints] = {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    names = vectors.column(0).to_pylist()
    for at, name in enumerate(names):
        live = np.asarray(vectors.column(1)[at].values, bool)
        deleted[_below(root, name)] = np.flatnonzero(~live).astype(np.int64)
    return deleted


def _below(root: str, name: str) -> str:
    """A file's path below the root, decoded, from whichever form the engine names it in; outside it its location."""
    if is_local(root) and name.startswith(("file:", "/")):
        place, start = str(local_path(name)), str(local_path(root)).rstrip("/") + "/"
        return place.removeprefix(start) if place.startswith(start) else unquote(name)
    start = root.rstrip("/") + "/"
    if name.startswith(start):
        return unquote(name.removeprefix(start))
    path, base = urlsplit(name).path, urlsplit(start).path
    return unquote(path.removeprefix(base)) if path.startswith(base) else unquote(name)
