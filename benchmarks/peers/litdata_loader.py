"""LitData: a sample a window or sequence in its chunks and loader; `read_window` out of whole sequences for windows."""

from __future__ import annotations

import os
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _running import SHARD_BYTES, Epoch, Samples, Source, by_torch, main
from litdata import StreamingDataLoader, StreamingDataset, TemporalArrayLoader, optimize
from litdata.streaming import downloader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LitData:
    name = f"litdata {version('litdata')}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        tensors = partial(as_tensors, samples)
        optimize(
            fn=tensors, inputs=list(range(len(samples))), output_dir=str(folder), chunk_bytes=SHARD_BYTES, num_workers=1
        )
        tracks = folder.with_name("tracks")
        if not tracks.exists():
            whole = Samples(samples.folder, 0)
            optimize(
                fn=partial(as_tensors, whole),
                inputs=list(range(len(whole))),
                output_dir=str(tracks),
                chunk_bytes=SHARD_BYTES,
                num_workers=1,
                item_loader=TemporalArrayLoader([list(samples.arrays)]),
            )

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        found: dict[str, Callable[[], Epoch]] = {
            f"StreamingDataLoader, {n} workers": partial(opened, source, n) for n in source.workers
        }
        if source.local is not None and source.width:
            found |= {f"read_window, {n} workers": partial(by_window, source, n) for n in source.workers}
        return found


def as_tensors(samples: Samples, number: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in samples[number].items()}


def opened(source: Source, workers: int) -> Epoch:
    if source.local is not None:
        dataset = StreamingDataset(str(source.local), shuffle=True)
    else:
        downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # noqa: SLF001 - it gives no other way to plain HTTP
        options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        dataset = StreamingDataset(source.uri, cache_dir=str(source.cache), shuffle=True, storage_options=options)
    return by_torch(dataset, source, workers, loader=StreamingDataLoader)


class Windows(torch.utils.data.Dataset):
    """Every window of every sequence; a batch is read at a time."""

    def __init__(self, folder: Path, lengths: np.ndarray, width: int) -> None:
        self.dataset = StreamingDataset(str(folder), item_loader=TemporalArrayLoader())
        self.ends = np.cumsum(lengths - width + 1)
        self.width = width

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        rows = np.searchsorted(self.ends, numbers, side="right")
        starts = np.array(numbers) - np.where(rows > 0, self.ends[rows - 1], 0)
        return [
            self.dataset.read_window(row, start, self.width)
            for row, start in zip(rows.tolist(), starts.tolist(), strict=True)
        ]


def by_window(source: Source, workers: int) -> Epoch:
    lengths = np.load(source.arrays / "lengths.npy")
    windows = Windows(source.local.with_name("tracks"), lengths, source.width)
    return by_torch(windows, source, workers, shuffle=True)


if __name__ == "__main__":
    main(LitData())
