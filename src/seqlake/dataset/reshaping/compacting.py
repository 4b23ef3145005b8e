"""Small shards, shards of other clients and shards with deleted rows become few of our layout, as one commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from seqlake.arguments import DATASET, takes
from seqlake.dataset.changing.folding import has_deletes
from seqlake.dataset.reading.streaming import several_for_writing
from seqlake.dataset.writing.parts import RowsPart, shard_parts, write_parts
from seqlake.dataset.writing.staging import SHARD_BYTES, ShardShape, Staging, open_for_changes, partition_of
from seqlake.executors import executor_if_asked
from seqlake.shards.columns import Columns
from seqlake.shares import RecordedRun, begun
from seqlake.versions import names
from seqlake.versions.messages import saying

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.dataset.dataset import Dataset
    from seqlake.executors import Executor
    from seqlake.protocols import Shard, Version

_SMALL = 2  # shards below this part of a full one are worth joining


@takes(dataset=DATASET)
def compact(
    dataset: Dataset,
    /,
    *,
    rows_per_shard: int | None = None,
    bytes_per_shard: int = SHARD_BYTES,
    layout: str = "training",
    message: str | None = None,
    on: str | Executor | None = None,
    workers: int | None = None,
) -> Version:
    """Write shards that cost time anew, in one commit: small ones, other clients', those with deleted rows.

    Rows, columns and ids stay as they are; rows that were written anew come last. Older versions keep the old shards
    until `vacuum`.

    Args:
        dataset: At any version; the newest is compacted.
        rows_per_shard: Close a new shard at so many rows.
        bytes_per_shard: Close it once it has so many bytes; shards of less than half of it are small.
        layout: `training` or `archive`.
        message: What the commit is for; `versions()` shows it.
        on: What writes: `"processes"`, `"ray"` or an `Executor`, each task at most about one shard; by default this
            process alone. `Resumable` and `Share` keep what is finished.
        workers: Tasks at a time of what `on` names.

    Returns:
        The new version; the current one where there was nothing to gain.

    Raises:
        CommitConflictError: A rival changed one of these shards meanwhile.
        ReadOnlyError: The dataset cannot be written.

    Example:
        ```python
        sl.compact(ds)
        ds.vacuum(older_than=timedelta(days=7))
        ```
    """
    open_for_changes(dataset)
    by = partition_of(dataset.table)
    chosen = wasteful(dataset.source.shards(), nbytes=bytes_per_shard, rows=rows_per_shard, by=by)
    if not chosen:
        return dataset.version
    schema = dataset.schema
    shape = ShardShape(rows=rows_per_shard, nbytes=bytes_per_shard, layout=layout)
    executor = executor_if_asked(on, workers=workers)
    version = dataset.version
    identity = {"dataset": dataset.location, "version": str(version.id), "shape": repr(shape)}
    with begun(executor, "compact", identity) as run:
        kept = run if isinstance(run, RecordedRun) else None
        transaction = None if kept is None else kept.agree("transaction", lambda: dataset.table.begin(version))
        staging = Staging(dataset.table, schema, shape=shape, transaction=transaction)
        try:
            staging.begin(version)
            if run is None:
                for batch in several_for_writing(chosen, schema.names, root=dataset.root):
                    staging.write(batch)
            else:
                ordered = sorted(chosen, key=lambda shard: _partition(shard, by)) if by else chosen
                parts = list(_parts(ordered, by, bytes_per_shard))
                write = _Rewriting(tuple(ordered), tuple(schema.names), dataset.root)
                write_parts(run, parts, write, staging=staging, table=dataset.table, schema=schema, what="compact")
        except BaseException:
            if kept is None:  # else what is finished serves the next process
                staging.discard()
            raise
        with saying(message):
            version = staging.commit("rewrite", remove=[shard.key for shard in chosen])
    dataset.refresh()
    return version


def _parts(shards: Sequence[Shard], by: Sequence[str], nbytes: int) -> Iterator[RowsPart]:
    """Neighbouring shards of one partition that fill a new one; rows are counted through all of them."""
    before = number = 0
    for _, some in groupby(shards, key=lambda shard: _partition(shard, by)):
        for part in shard_parts(list(some), nbytes=nbytes):
            yield replace(part, part=number, start=before + part.start, stop=(end := before + part.stop))
            number += 1
        before = end


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """Writes whole shards anew."""

    shards: tuple[Shard, ...]
    names: tuple[str, ...]
    root: str

    def __call__(self, part: RowsPart, staging: Staging, /) -> None:
        ends = np.cumsum([shard.rows for shard in self.shards])
        mine = [one for one, end in zip(self.shards, ends, strict=True) if part.start < end <= part.stop]
        for batch in several_for_writing(mine, self.names, root=self.root):
            staging.write(batch)


def wasteful(shards: Sequence[Shard], /, *, nbytes: int, rows: int | None, by: Sequence[str] = ()) -> list[Shard]:
    """The shards that are worth writing anew, in order; none is opened.

    Args:
        shards: Of one version.
        nbytes: What a full shard has.
        rows: The most rows that one may have.
        by: The columns that the table is partitioned by; only shards of one partition can be joined.
    """
    partitions: dict[str, list[Shard]] = {}
    for shard in shards:
        partitions.setdefault(_partition(shard, by), []).append(shard)
    full = nbytes // _SMALL
    chosen: set[int] = set()
    for mine in partitions.values():
        foreign = {id(shard) for shard in mine if not _is_ours(shard) or has_deletes(shard)}
        small = {id(s) for s in mine if s.nbytes < full and (rows is None or s.rows <= rows // _SMALL)}
        chosen |= foreign
        if len(small) > 1 or (small and foreign):
            chosen |= small
    return [shard for shard in shards if id(shard) in chosen]


def _partition(shard: Shard, by: Sequence[str]) -> str:
    """The partition values that all rows of a shard have, where the lake says so."""
    places = shard.mapping if isinstance(shard, Columns) else {}
    return repr([places.get(column) for column in by])


def _is_ours(shard: Shard) -> bool:
    """Whether our writer made the file: its name says so."""
    return names.owner(shard.key.rpartition("#")[0].rpartition("/")[2]) is not None
