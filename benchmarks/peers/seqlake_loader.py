"""seqlake's own loader, run like its peers: windows that overlap, tensors, the order of each epoch computed anew."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import obstore.store  # noqa: F401 - what is imported at the first use is not timed
import pyarrow as pa
import pyarrow.parquet as pq
from _running import COLUMNS, SHARD_BYTES, Epoch, Samples, Source, main

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Seqlake:
    name = f"seqlake {version('seqlake')}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        """Sequences, whatever the windows will be."""
        dims = {name: values.shape[1] for name, values in samples.arrays.items()}
        schema = sl.Schema({"task": pa.string(), **{name: sl.Trajectory(dim=dim) for name, dim in dims.items()}})
        sequences = folder.with_name("sequences")
        if not sequences.exists():
            dataset = sl.create(sequences, schema)
            ends = samples.lengths.cumsum().tolist()
            whole = sum(values.nbytes for values in samples.arrays.values())
            rows = max(1, SHARD_BYTES * len(ends) // whole)  # a limit in bytes is looked at every few megabytes
            with dataset.writer(rows_per_shard=rows) as writer:
                for number, (end, steps) in enumerate(zip(ends, samples.lengths.tolist(), strict=True)):
                    cells = {name: values[end - steps : end] for name, values in samples.arrays.items()}
                    writer.add(f"ep_{number:06d}", task="pick", **cells)
        if folder != sequences:
            folder.symlink_to(sequences)

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        columns = list(COLUMNS)
        windows = int((np.load(source.arrays / "lengths.npy") // max(1, source.width)).sum())

        def open_it(cache: sl.Cache | None = None, *, lanes: int = 0) -> Epoch:
            if source.local is not None:
                dataset, stride = sl.open(source.local), 1
            else:
                storage = {"endpoint": os.environ["AWS_ENDPOINT_URL"], "allow_http": "true"}
                dataset, stride = sl.open(source.uri, storage=storage), source.width
            window = sl.Whole(columns)
            if source.width:
                window = sl.Window(dict.fromkeys(columns, range(source.width)), edges="drop", stride=stride)
            shuffle: bool | sl.Shuffle = True
            if lanes:  # as the page on object stores says: blocks of the windows of two shards
                shuffle = sl.Shuffle(lanes=lanes, block=2 * windows // len(dataset.shards()))
            loader = sl.Loader(dataset, window=window, batch_size=source.batch, shuffle=shuffle, cache=cache).tail(
                "pad"
            )
            batches = loader.torch()
            if source.width:
                return lambda: batches
            return lambda: ({**batch, "length": batch["action_length"]} for batch in batches)

        if source.memory:
            cache, folder = sl.Cache(limit=source.memory), sl.Cache(source.cache, limit=source.memory)
            return {
                "in memory": lambda: compressed(source, cache),
                "sl.Cache(folder)": lambda: compressed(source, folder),
            }
        if source.local is not None:
            return {"as it comes": open_it}
        return {
            "as it comes, kept in memory": open_it,
            "sl.Cache(folder)": lambda: open_it(sl.Cache(source.cache)),
            "sl.Shuffle(lanes=2, block=two shards), kept in memory": lambda: open_it(lanes=2),
        }


def compressed(source: Source, cache: sl.Cache) -> Epoch:
    """Every window of every sequence, out of Parquet as pyarrow writes it: compressed, with dictionaries, no index."""
    folder = source.local.with_name("plain")
    if not folder.exists():
        write_plain(Samples(source.arrays, 0), folder)
    dataset = sl.scan(folder)
    window = sl.Window(dict.fromkeys(COLUMNS, range(source.width)), edges="drop")
    shards = len(dataset.shards())
    windows = int((np.load(source.arrays / "lengths.npy") - source.width + 1).sum())
    shuffle = sl.Shuffle(lanes=2, block=3 * windows // shards)
    batches = sl.Loader(dataset, window=window, batch_size=source.batch, shuffle=shuffle, cache=cache).torch()
    return lambda: batches


def write_plain(samples: Samples, folder: Path) -> None:
    whole = sum(values.nbytes for values in samples.arrays.values())
    rows = max(1, min(len(samples) * SHARD_BYTES // 8 // whole, len(samples) // 60))  # 60 shards at least
    folder.mkdir()
    for first in range(0, len(samples), rows):
        some = [samples[number] for number in range(first, min(first + rows, len(samples)))]
        table = {"sequence_id": [f"ep_{first + number:06d}" for number in range(len(some))]}
        for name in COLUMNS:
            steps = np.concatenate([one[name] for one in some])
            ends = np.cumsum([0, *(len(one[name]) for one in some)])
            cells = pa.FixedSizeListArray.from_arrays(pa.array(steps.reshape(-1)), steps.shape[1])
            table[name] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), cells)
        pq.write_table(pa.table(table), folder / f"{first:06d}.parquet")


main(Seqlake())
