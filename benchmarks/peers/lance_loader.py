"""Lance: `take` of W consecutive steps for each window, `take` of rows that are samples, its torch `LanceDataset`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import lance
import numpy as np
import pyarrow as pa
import torch
from _running import COLUMNS, SHARD_BYTES, Batch, Epoch, Samples, Source, main, pad
from lance.sampler import ShardedBatchSampler, ShardedFragmentSampler
from lance.torch.data import LanceDataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DIMS = {"action": 12, "obs_state": 48}


class Lance:
    name = f"lance {lance.__version__}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        """Rows that are samples: a fixed list for a window, a list for a sequence."""

        def batches() -> Iterator[pa.RecordBatch]:
            for first in range(0, len(samples), 64):
                rows = [samples[number] for number in range(first, min(first + 64, len(samples)))]
                yield pa.record_batch({name: column([row[name] for row in rows], samples.width) for name in COLUMNS})

        schema = pa.schema([(name, column([samples[0][name]], samples.width).type) for name in COLUMNS])
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        lance.write_dataset(reader, str(folder), max_bytes_per_file=SHARD_BYTES)
        steps = folder.with_name("steps")
        if not steps.exists():
            table = {name: column(list(values[:]), 1) for name, values in samples.arrays.items()}
            lance.write_dataset(pa.table(table), str(steps))

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        if source.local is None:
            return {f"LanceDataset, cache={kept}": partial(streamed, source, cache=kept) for kept in (False, True)}
        if not source.width:
            return {"take": partial(rows, source)}
        if source.memory:
            return {"take of steps": partial(steps, source), "take of samples": partial(rows, source)}
        return {
            "take of steps": partial(steps, source),
            "take of samples": partial(rows, source),
            "LanceDataset, whole batches shuffled": partial(in_batches, source),
        }


def column(cells: list[np.ndarray], width: int) -> pa.Array:
    values = pa.array(np.concatenate([cell.ravel() for cell in cells]))
    if width:
        return pa.FixedSizeListArray.from_arrays(values, cells[0].size)
    offsets = np.cumsum([0, *(cell.size for cell in cells)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def steps(source: Source) -> Epoch:
    """Every window of every sequence: W consecutive rows of one step each."""
    dataset = lance.dataset(str(source.local.with_name("steps")))
    lengths = np.load(source.arrays / "lengths.npy")
    ends = np.cumsum(lengths)
    spans = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    firsts = torch.from_numpy(np.concatenate([np.arange(low, high - source.width + 1) for low, high in spans]))

    def epoch() -> Iterator[Batch]:
        for some in firsts[torch.randperm(len(firsts))].split(source.batch):
            wanted = (some.numpy()[:, None] + np.arange(source.width)).ravel()
            yield tensors(dataset.take(wanted, columns=list(COLUMNS)), source.width)

    return epoch


def rows(source: Source) -> Epoch:
    dataset = lance.dataset(str(source.local))
    count = dataset.count_rows()

    def epoch() -> Iterator[Batch]:
        for some in torch.randperm(count).split(source.batch):
            table = dataset.take(some.numpy(), columns=list(COLUMNS))
            yield tensors(table, source.width) if source.width else pad(cells(table))

    return epoch


def in_batches(source: Source) -> Epoch:
    dataset, number = lance.dataset(str(source.local)), 0

    def epoch() -> Iterator[Batch]:
        nonlocal number
        number += 1
        sampler = ShardedBatchSampler(0, 1, randomize=True, seed=number)
        yield from shaped(LanceDataset(dataset, source.batch, columns=list(COLUMNS), sampler=sampler), source)

    return epoch


def streamed(source: Source, *, cache: bool) -> Epoch:
    storage = {"aws_endpoint": os.environ["AWS_ENDPOINT_URL"], "allow_http": "true"}
    dataset = lance.dataset(source.uri, storage_options=storage)
    sampler = ShardedFragmentSampler(0, 1, randomize=True, seed=0)
    own = LanceDataset(dataset, source.batch, columns=list(COLUMNS), sampler=sampler, cache=cache)
    return lambda: shaped(own, source)


def shaped(batches: LanceDataset, source: Source) -> Iterator[Batch]:
    for batch in batches:
        yield {name: values.reshape(len(values), source.width, -1) for name, values in batch.items()}


def tensors(table: pa.Table, width: int) -> Batch:
    flat = {name: table.column(name).combine_chunks().flatten().to_numpy().copy() for name in COLUMNS}
    return {name: torch.from_numpy(values).reshape(-1, width, DIMS[name]) for name, values in flat.items()}


def cells(table: pa.Table) -> list[dict[str, np.ndarray]]:
    found = {}
    for name in COLUMNS:
        array = table.column(name).combine_chunks()
        values, ends = array.flatten().to_numpy(), np.cumsum(array.value_lengths().to_numpy())
        found[name] = [part.reshape(-1, DIMS[name]) for part in np.split(values, ends[:-1])]
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


main(Lance())
