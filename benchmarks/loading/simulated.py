"""Tables of any size by the product's own writers: real ones, and such whose log is there and whose shards are not.

A simulated table has the records, the checkpoint and the index file that so many commits leave, each made by the
product's code; of the shards there are only names, sizes and indexes, those of real shards that were written for it.
Whatever opens no shard cannot tell the difference.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import seqlake as sl
from seqlake.files.checksums import digest_of
from seqlake.files.stores import LocalStore
from seqlake.protocols import Change
from seqlake.tables import standalone
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.changes import encode_statistics
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.records import ShardEntry, VersionRecord
from seqlake.tables.standalone.state import fold
from seqlake.versions import indexes, names, shard_formats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Written

SCHEMA = sl.Schema({"action": sl.Trajectory(dim=2), "number": pa.int64(), "reward": pa.float64()})
_TEMPLATES = 32


def rows(first: int, steps: NDArray[np.int64], schema: sl.Schema) -> pa.RecordBatch:
    """Sequences of so many steps each, numbered from `first`."""
    count, total = len(steps), int(steps.sum())
    values = pa.array(np.arange(2 * total, dtype=np.float32))
    offsets = pa.array(np.concatenate([[0], np.cumsum(steps)]), pa.int32())
    cells = pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(values, 2))
    numbers = np.arange(first, first + count)
    columns = {
        "sequence_id": pa.array([f"ep_{number:010d}" for number in numbers]),
        "action": cells,
        "number": pa.array(numbers),
        "reward": pa.array(numbers / 7),
    }
    return pa.RecordBatch.from_arrays(
        [columns[field.name].cast(field.type) for field in schema.arrow], schema=schema.arrow
    )


def write_shard(path: Path, first: int, steps: NDArray[np.int64], schema: sl.Schema) -> Written:
    """One shard by the product's writer."""
    writer = shard_formats.plug("parquet").create(path, schema, layout="training")
    writer.write(rows(first, steps, schema))
    return writer.close()


def real(folder: Path, *, shards: int, per_shard: int, commits: int, steps: int = 10) -> Path:
    """A table with all its bytes."""
    table = standalone.create(str(folder), SCHEMA)
    schema = table.snapshot().schema
    for commit in range(commits):
        transaction, written = table.begin(), []
        for shard in range(commit * shards // commits, (commit + 1) * shards // commits):
            place = Path(table.place(transaction, {}, n=str(shard)))
            written.append(write_shard(place, shard * per_shard, np.full(per_shard, steps), schema))
        table.commit(Change(operation="append", add=written), transaction=transaction)
    return folder


def simulated(folder: Path, *, commits: int, per_shard: int, steps: int = 100) -> Path:
    """A table of so many commits, each of which added one shard that is not there."""
    standalone.create(str(folder), SCHEMA)
    log = Log(LocalStore(folder))
    state = log.newest()
    random = np.random.default_rng(0)
    templates = _written(random, per_shard, steps)
    begin = datetime.now(UTC) - timedelta(seconds=commits)
    last = commits - commits % checkpoints.EVERY_VERSIONS - (checkpoints.EVERY_VERSIONS if commits % 64 < 2 else 0)
    kept: list[indexes.IndexRow] = []
    waiting: list[VersionRecord] = []
    digest = state.digest
    for number in range(1, commits + 1):
        transaction = names.new_transaction()
        template = templates[number % len(templates)]
        name = f"part-{transaction}-0.parquet"
        first = (number - 1) * per_shard
        bounds = {"number": (first, first + per_shard - 1, 0), "reward": (first / 7, (first + per_shard - 1) / 7, 0)}
        entry = ShardEntry(
            name=name,
            transaction=transaction,
            rows=per_shard,
            nbytes=template.nbytes,
            statistics=encode_statistics(bounds),
        )
        record = VersionRecord(
            version=number,
            transaction=transaction,
            time=begin + timedelta(seconds=number),
            operation="append",
            writer="simulated",
            rows=number * per_shard,
            add=(entry,),
            previous=digest,
        )
        data = record.encode()
        digest = digest_of(data) or ""
        (folder / names.version(number)).write_bytes(data)
        waiting.append(replace(record, digest=digest))
        hashes = np.sort(random.integers(0, 1 << 63, per_shard, dtype=np.uint64))
        ids = hashes.tobytes() + random.permutation(per_shard).astype("<u4").tobytes()
        row = indexes.IndexRow(shard=name, rows=per_shard, nbytes=template.nbytes, ids=ids, index=template.index)
        if number > last:
            (folder / names.index(transaction)).write_bytes(indexes.encode([row]))
        else:
            kept.append(row)
        if number == last:
            state, waiting = fold(state, waiting), []
            _checkpoint(folder, state, kept)
            kept.clear()
    return folder


def _checkpoint(folder: Path, state, kept: list[indexes.IndexRow]) -> None:  # type: ignore[no-untyped-def]
    index = names.merged_index(state.version, names.new_transaction())
    (folder / names.INDEX).mkdir(exist_ok=True)
    (folder / names.INDEX / index).write_bytes(indexes.encode(kept))
    (folder / names.CHECKPOINTS).mkdir(exist_ok=True)
    (folder / names.checkpoint(state.version)).write_bytes(checkpoints.encode(state, index=index))
    (folder / names.LAST).write_text(str(state.version))


def _written(random: np.random.Generator, per_shard: int, steps: int) -> list[Written]:
    """Real shards, whose sizes and indexes all others have."""
    with tempfile.TemporaryDirectory() as place:
        table = standalone.create(place, SCHEMA)
        schema = table.snapshot().schema
        return [
            write_shard(
                Path(place, f"{number}.parquet"), 0, random.integers(steps // 2, steps * 3 // 2, per_shard), schema
            )
            for number in range(_TEMPLATES)
        ]
