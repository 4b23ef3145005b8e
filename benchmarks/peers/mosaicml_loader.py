"""MosaicML StreamingDataset: a sample a window or sequence in MDS shards, its own `StreamingDataLoader`."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

from _running import COLUMNS, SHARD_BYTES, Epoch, Samples, Source, by_torch, main
from official import streaming

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class MosaicML:
    name = f"mosaicml-streaming {version('mosaicml-streaming')}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        shapes = {name: ",".join(map(str, samples[0][name].shape)) for name in COLUMNS}
        columns = {name: f"ndarray:float32:{shapes[name]}" if samples.width else "ndarray:float32" for name in COLUMNS}
        with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=SHARD_BYTES) as writer:
            for number in range(len(samples)):
                writer.write(samples[number])

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        return {f"StreamingDataLoader, {n} workers": partial(opened, source, n) for n in source.workers}


def opened(source: Source, workers: int) -> Epoch:
    streaming.base.util.clean_stale_shared_memory()
    if source.local is not None:
        place = {"local": str(source.local)}
    else:
        place = {"remote": source.uri, "local": str(source.cache)}
    dataset = streaming.StreamingDataset(**place, shuffle=True, batch_size=source.batch)
    return by_torch(dataset, source, workers, loader=streaming.StreamingDataLoader)


main(MosaicML())
