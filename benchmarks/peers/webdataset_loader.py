"""WebDataset: a sample a window or sequence in tar files, shuffled by shard and by buffer, batched in the workers."""

from __future__ import annotations

import io
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import webdataset as wds
from _running import COLUMNS, SHARD_BYTES, Batch, Epoch, Samples, Source, main, pad, stack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUFFER = 2000  # samples in the shuffle buffer


class WebDataset:
    name = f"webdataset {version('webdataset')}"
    sequences = 0

    def write(self, samples: Samples, folder: Path) -> None:
        folder.mkdir()
        with wds.ShardWriter(str(folder / "%05d.tar"), maxsize=SHARD_BYTES, maxcount=1 << 30, verbose=0) as writer:
            for number in range(len(samples)):
                cells = {f"{name}.npy": values for name, values in samples[number].items()}
                writer.write({"__key__": f"{number:08d}", **cells})
        count = len(list(folder.glob("*.tar")))
        (folder / "count").write_text(str(count))

    def ways(self, source: Source) -> dict[str, Callable[[], Epoch]]:
        return {f"WebLoader, {n} workers": partial(opened, source, n) for n in source.workers}


def opened(source: Source, workers: int) -> Epoch:
    if source.local is not None:
        urls = sorted(map(str, source.local.glob("*.tar")))
        cache = None
    else:
        import urllib.request

        with urllib.request.urlopen(f"{source.web}/count") as answer:
            urls = [f"pipe:curl -s -f {source.web}/{number:05d}.tar" for number in range(int(answer.read()))]
        cache = str(source.cache)
    dataset = wds.WebDataset(urls, shardshuffle=100, cache_dir=cache, empty_check=False)
    dataset = dataset.shuffle(BUFFER).map(decoded).batched(source.batch, collation_fn=stack if source.width else pad)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    return lambda: loader


def decoded(sample: dict[str, bytes]) -> Batch:
    """What `.decode()` does of `.npy`, without looking at what else a sample might hold."""
    return {name: np.load(io.BytesIO(sample[f"{name}.npy"])) for name in COLUMNS}


main(WebDataset())
