"""Hugging Face datasets: a row a window or sequence, Arrow in a memory map or Parquet streamed, torch's DataLoader."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from _running import COLUMNS, SHARD_BYTES, Epoch, Samples, Source, by_torch, main
from datasets import Array2D, Dataset, Features, load_dataset, load_from_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BUFFER = 2000  # samples in the shuffle buffer


class HuggingFace:
    name = f"datasets {version('datasets')}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        shapes = {name: (samples.width or None, samples.arrays[name].shape[1]) for name in COLUMNS}
        features = Features({name: Array2D(shape, "float32") for name, shape in shapes.items()})

        def rows() -> Iterator[dict[str, Any]]:
            yield from (samples[number] for number in range(len(samples)))

        dataset = Dataset.from_generator(rows, features=features, cache_dir=str(folder.with_name("made")))
        dataset.save_to_disk(str(folder / "arrow"))
        size = sum(values.nbytes for values in samples[0].values())
        rows_of_shard = max(1, SHARD_BYTES // size)
        for number, first in enumerate(range(0, len(dataset), rows_of_shard)):
            part = dataset.select(range(first, min(first + rows_of_shard, len(dataset))))
            (folder / "parquet").mkdir(exist_ok=True)
            part.to_parquet(str(folder / "parquet" / f"{number:05d}.parquet"))

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        if source.local is None:
            found = {f"streaming, {n} workers": partial(streamed, source, n) for n in source.workers}
            return found | {f"downloaded, {n} workers": partial(downloaded, source, n) for n in source.workers}
        if source.memory:
            return {f"Parquet streamed, {n} workers": partial(compressed, source, n) for n in source.workers}
        mapped = {f"map-style, {n} workers": partial(in_place, source, n) for n in source.workers}
        return mapped | {f"iterable, {n} workers": partial(iterated, source, n) for n in source.workers}


def in_place(source: Source, workers: int) -> Epoch:
    dataset = load_from_disk(str(source.local / "arrow")).with_format("numpy")
    return by_torch(dataset, source, workers, shuffle=True)


def iterated(source: Source, workers: int) -> Epoch:
    dataset = load_from_disk(str(source.local / "arrow")).with_format("numpy")
    return shuffled(dataset.to_iterable_dataset(num_shards=16), source, workers)


def compressed(source: Source, workers: int) -> Epoch:
    """As `to_parquet` writes files; the buffer that is shuffled is all that is kept of them."""
    dataset = load_dataset("parquet", data_files=f"{source.local}/parquet/*.parquet", split="train", streaming=True)
    return shuffled(dataset.with_format("numpy"), source, workers)


def streamed(source: Source, workers: int) -> Epoch:
    dataset = load_dataset(
        "parquet",
        data_files=f"{source.uri}/parquet/*.parquet",
        split="train",
        streaming=True,
        storage_options=storage(),
    )
    return shuffled(dataset.with_format("numpy"), source, workers)


def downloaded(source: Source, workers: int) -> Epoch:
    dataset = load_dataset(
        "parquet",
        data_files=f"{source.uri}/parquet/*.parquet",
        split="train",
        storage_options=storage(),
        cache_dir=str(source.cache),
    )
    return by_torch(dataset.with_format("numpy"), source, workers, shuffle=True)


def shuffled(dataset: Any, source: Source, workers: int) -> Epoch:
    """Epochs in another order each."""
    dataset = dataset.shuffle(seed=0, buffer_size=BUFFER)
    loader, number = by_torch(dataset, source, workers)(), 0

    def epoch() -> Any:
        nonlocal number
        dataset.set_epoch(number)
        number += 1
        return loader

    return epoch


def storage() -> dict[str, Any]:
    return {"client_kwargs": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}


if __name__ == "__main__":
    main(HuggingFace())
