"""Objects of the package `datasets`, as they are in memory or mapped; it is never imported here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, SeqlakeError
from seqlake.shards.memory import ArrowShard
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Shard

_SHARD_BYTES = 64 << 20
_KINDS = ("Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A table of an object.

    Attributes:
        shards: Its rows, in the order of the object.
        schema: Of its Arrow table, with the metadata that hold features.
        split: Its name; None where it has none.
    """

    shards: list[Shard]
    schema: pa.Schema
    split: str | None


def takes(source: object, /) -> bool:
    """Whether something is a dataset of the package `datasets`.

    Example:
        >>> takes({"a": [1]})
        False
    """
    module = sys.modules.get("datasets")  # nobody has such an object who has not imported it
    kinds = tuple(kind for name in _KINDS if isinstance(kind := getattr(module, name, None), type))
    return isinstance(source, kinds)


def tables_of(source: Any, /, *, split: str | None) -> list[Held]:
    """The tables of an object; nothing is copied or decoded.

    Args:
        source: A `Dataset`, or a `DatasetDict`.
        split: Only this one.

    Raises:
        SeqlakeError: It is read from the network as it goes, and has no rows yet.
        ColumnNotFoundError: No such split.
    """
    kinds = {one.__name__ for one in type(source).__mro__}
    if kinds & {"IterableDataset", "IterableDatasetDict"}:
        raise SeqlakeError(
            "An IterableDataset has no table of its rows: it makes them as it goes.",
            hint="Load it without streaming=True; or scan its files: sl.scan('hf://datasets/owner/name').",
        )
    parts = dict(source) if "DatasetDict" in kinds else {_split_of(source): source}
    if split is not None and split not in parts:
        raise ColumnNotFoundError(f"No split {split!r}; there are {', '.join(map(str, parts))}.")
    return [_table(part, name) for name, part in parts.items() if split in {None, name}]


def _split_of(source: Any) -> str | None:
    return None if source.split is None else str(source.split)


def _table(source: Any, split: str | None) -> Held:
    table: pa.Table = source.data.table
    name = f"{split or 'dataset'}-{source._fingerprint}"  # noqa: SLF001 - what names the state of its rows; nothing public does
    shards = [
        ArrowShard(part, key=f"{name}-{number:05d}#{source._fingerprint}-{number}")  # noqa: SLF001 - the same
        for number, part in enumerate(_parts(table))
    ]
    indices = source._indices  # noqa: SLF001 - the rows of a selection; `flatten_indices` would copy all of them
    if indices is None:
        return Held(shards=list(shards), schema=table.schema, split=split)
    kept = indices.column(0).to_numpy().astype(np.int64)
    return Held(shards=list(_kept(shards, kept)), schema=table.schema, split=split)


def _parts(table: pa.Table) -> Iterator[pa.Table]:
    """Whole record batches, as many as make a shard: a shard that goes to a worker takes no more along than it has."""
    batches: list[pa.RecordBatch] = []
    held = 0
    for batch in table.to_batches():
        if batches and held + batch.nbytes > _SHARD_BYTES:
            yield pa.Table.from_batches(batches)
            batches, held = [], 0
        batches.append(batch)
        held += batch.nbytes
    if batches or not table.num_rows:
        yield pa.Table.from_batches(batches, schema=table.schema)


def _kept(shards: list[ArrowShard], rows: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[Shard]:
    """Runs of rows that lie in one shard, in the order of the selection; where it jumps about, one table of all."""
    starts = np.concatenate([[0], np.cumsum([shard.rows for shard in shards])])
    owner = np.searchsorted(starts, rows, side="right") - 1
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(owner)) + 1, [len(rows)]]) if len(rows) else np.array([0, 0])
    if len(cuts) - 1 > 4 * len(shards):
        whole = pa.concat_tables([shard.table for shard in shards])
        yield Rows(ArrowShard(whole, key=f"{shards[0].key.rpartition('#')[0]}-all#{shards[0].key}"), rows)
        return
    for number, (start, stop) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
        shard = shards[int(owner[start])] if stop > start else shards[0]
        first = int(starts[int(owner[start])]) if stop > start else 0
        name, _, tail = shard.key.rpartition("#")
        yield Rows(ArrowShard(shard.table, key=f"{name}-run{number}#{tail}-{number}"), rows[start:stop] - first)
