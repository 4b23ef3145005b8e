"""The data files of a version, as deltalake lists them."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa

from seqlake.errors import DamagedTableError
from seqlake.files.locations import is_local, local_path
from seqlake.tables._lakes.engine import LakeFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Ints


def files(table: Any, physical: Mapping[str, str], /, *, partition_by: Sequence[str]) -> list[LakeFile]:
    """Every data file of a version, sorted by when it came and by path.

    Args:
        table: deltalake's table at the version.
        physical: Logical column -> its name in the files, where column mapping has given it another.
        partition_by: The table's partition columns, whose values the log has and the files may lack.
    """
    found = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()  # pa.table loads pandas
    if not found.num_rows:
        return []
    deleted = deleted_rows(table)
    raw = found.column("path").to_pylist()
    paths = [unquote(path) for path in raw]
    keys = [_below(str(table.table_uri), path) if "://" in path else unquote(path) for path in raw]
    lost = sorted(deleted.keys() - set(keys))
    if lost:  # to go on would show rows that were deleted
        raise DamagedTableError(
            f"{table.table_uri}: a deletion vector belongs to {lost[0]}, which is none of the version's files.",
            path=str(table.table_uri),
            hint="Purge the deleted rows with the engine that wrote them (Spark: REORG TABLE ... APPLY (PURGE)).",
        )
    rows = found.column("num_records").to_pylist() if "num_records" in found.column_names else [None] * len(paths)
    sizes = found.column("size_bytes").to_pylist()
    times = found.column("modification_time").to_pylist()
    values = _values(found, partition_by, len(paths))
    bounds = _statistics(found, len(paths)) if not physical else [{} for _ in paths]
    listed = [
        LakeFile(
            path=path,
            rows=-1 if count is None else int(count),
            nbytes=int(size),
            constants=constants,
            columns=physical,
            deleted=deleted.get(key),
            statistics=known,
        )
        for path, key, count, size, constants, known in zip(paths, keys, rows, sizes, values, bounds, strict=True)
    ]
    order = sorted(range(len(listed)), key=lambda at: (times[at] or 0, paths[at]))
    return [listed[at] for at in order]


def raw_paths(table: Any, /) -> list[str]:
    """The paths of a version's files as the log writes them, encoded in their writers' ways."""
    found = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=False)).read_all()
    paths: list[str] = found.column("path").to_pylist() if found.num_rows else []
    return paths


def _values(found: pa.Table, partition_by: Sequence[str], count: int) -> list[dict[str, object]]:
    if not partition_by or "partition" not in found.column_names:
        return [{} for _ in range(count)]
    told = found.column("partition").to_pylist()
    return [{column: (one or {}).get(column) for column in partition_by} for one in told]


def _statistics(found: pa.Table, count: int) -> list[dict[str, tuple[object, object, int]]]:
    """Bounds of the columns whose bounds the log has exactly; those of times are cut off to milliseconds."""
    if "min" not in found.column_names or "max" not in found.column_names:
        return [{} for _ in range(count)]
    kinds = found.schema.field("min").type
    exact = [kinds.field(at).name for at in range(kinds.num_fields) if not pa.types.is_timestamp(kinds.field(at).type)]
    made: list[dict[str, tuple[object, object, int]]] = []
    for low, high in zip(found.column("min").to_pylist(), found.column("max").to_pylist(), strict=True):
        pairs = ((name, (low or {}).get(name), (high or {}).get(name)) for name in exact)
        made.append({n: (a, b, 0) for n, a, b in pairs if isinstance(a, int | float | str | date) and b is not None})
    return made


def counts(table: Any, /) -> dict[str, int]:
    """Path -> live rows of a version's files; -1 where the log does not say."""
    return {file.path: file.rows if file.rows < 0 else file.live for file in files(table, {}, partition_by=())}


def deleted_rows(table: Any, /) -> dict[str, Ints]:
    """Path -> the numbers of the rows that deletion vectors take away."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    root = str(table.table_uri)
    found: dict[str, Ints] = {}
    vectors = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()
    names = vectors.column(0).to_pylist()
    for at, name in enumerate(names):
        live = np.asarray(vectors.column(1)[at].values, bool)
        found[_below(root, name)] = np.flatnonzero(~live).astype(np.int64)
    return found


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
