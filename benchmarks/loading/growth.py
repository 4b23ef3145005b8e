"""Seconds to the first batch, and memory, of datasets of more and more windows; `torch.randperm` of as many beside it.

python benchmarks/loading/growth.py WARM DATASET      prints one line of JSON
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS, WIDTH = 1000, 16
WINDOWS = STEPS - WIDTH + 1  # of a sequence


def growth(folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """One row a size, each measured in a process of its own."""
    found = []
    warm = write(folder / "growth-warm", 10)
    for size in sizes:
        sequences = -(-size // WINDOWS)
        target = write(folder / f"growth-{size}", sequences)
        command = [sys.executable, __file__, warm, target]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
        found.append({"sequences": sequences, **json.loads(done.stdout.splitlines()[-1])})
        print(found[-1], flush=True)
    return found


def write(target: Path, sequences: int) -> Path:
    """Sequences of 1 000 steps of one number."""
    import numpy as np
    import pyarrow as pa

    import seqlake as sl

    dataset = sl.create(target, sl.Schema({"signal": sl.Trajectory(dim=1)}))
    with dataset.writer(bytes_per_shard=64 << 20) as writer:
        for first in range(0, sequences, 1000):
            count = min(1000, sequences - first)
            values = pa.array(np.tile(np.arange(STEPS, dtype=np.float32), count))
            offsets = pa.array(np.arange(0, count * STEPS + 1, STEPS), pa.int32())
            cells = pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(values, 1))
            names = pa.array([f"ep_{number:07d}" for number in range(first, first + count)])
            writer.add_batch(pa.record_batch({"sequence_id": names, "signal": cells}))
    return target


def first_batch(dataset: str) -> tuple[Any, float, float]:
    """The loader, seconds until it was there, and until its first batch was."""
    import seqlake as sl

    began = time.perf_counter()
    loader = sl.Loader(sl.open(dataset), window=sl.Window({"signal": range(WIDTH)}, edges="drop"), batch_size=256)
    opened = time.perf_counter() - began
    assert next(iter(loader))["signal"].shape == (256, WIDTH, 1)
    return loader, opened, time.perf_counter() - began


def main() -> None:
    import torch

    sys.path.insert(0, str(Path(__file__).parent.parent / "peers"))
    from _running import Memory

    first_batch(sys.argv[1])  # imports what is imported at the first use
    with Memory() as memory:
        loader, opened, first = first_batch(sys.argv[2])
        for _, batch in zip(range(100), loader, strict=False):
            assert (batch["signal"][:, 1, 0] == batch["signal"][:, 0, 0] + 1).all()
    samples = loader.plan().samples
    extra = (memory.peak - memory.before) / 1e6
    with Memory() as memory:
        began = time.perf_counter()
        torch.randperm(samples)
        permuted = time.perf_counter() - began
    found = {
        "windows": samples,
        "open_s": opened,
        "first_batch_s": first,
        "peak_mb": extra,
        "randperm_s": permuted,
        "randperm_mb": 8 * samples / 1e6,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
