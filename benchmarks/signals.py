"""Signals of an arm that benchmarks read in windows, and what that is compared with: memcpy, an expert's memmap."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BATCH = 256
DIMS = {"action": 12, "obs_state": 48}
STEP_BYTES = 4 * sum(DIMS.values())
SECONDS = 0.6  # of each measurement in each round


def make_arrays(sequences: int) -> dict[str, np.ndarray]:
    """Sequences of 150 to 450 steps, end to end; the first number of an action is the number of its step."""
    random = np.random.default_rng(0)
    lengths = random.integers(150, 451, sequences)
    arrays = {name: random.standard_normal((int(lengths.sum()), dim), dtype=np.float32) for name, dim in DIMS.items()}
    arrays["action"][:, 0] = np.arange(len(arrays["action"]))
    return {"lengths": lengths, **arrays}


def save_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """One `.npy` each, for peers."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def write_arm(folder: Path, arrays: dict[str, np.ndarray], shards: int) -> Any:
    """A dataset of so many shards."""
    schema = sl.Schema({"task": pa.string(), **{name: sl.Trajectory(dim=dim) for name, dim in DIMS.items()}})
    dataset = sl.create(folder, schema)
    ends = np.cumsum(arrays["lengths"])
    rows = -(-len(ends) // shards)
    with dataset.writer(rows_per_shard=rows, bytes_per_shard=1 << 40) as writer:
        for number, (end, steps) in enumerate(zip(ends.tolist(), arrays["lengths"].tolist(), strict=True)):
            cells = {name: arrays[name][end - steps : end] for name in DIMS}
            writer.add(f"ep_{number:06d}", task="pick", **cells)
    dataset = sl.open(folder)
    assert len(dataset.shards()) == shards
    return dataset


def rate_of(step: Callable[[], int], seconds: float = SECONDS) -> float:
    """Windows per second of a function that returns how many it made."""
    step()
    count, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        count += step()
    return count / spent


def memcpy(arrays: dict[str, np.ndarray]) -> Callable[[], int]:
    """Copies the data set's bytes; counted in bytes."""
    sources = [torch.from_numpy(arrays[name]) for name in DIMS]
    targets = [torch.ones_like(source) for source in sources]

    def step() -> int:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)
        return sum(source.nbytes for source in sources)

    return step


def memcpy_batches(arrays: dict[str, np.ndarray], width: int) -> Callable[[], int]:
    """Copies as many consecutive bytes as a batch has into fresh memory; counted in bytes."""
    sources = [torch.from_numpy(arrays[name]).reshape(-1).view(torch.uint8) for name in DIMS]
    sizes = [BATCH * width * 4 * dim for dim in DIMS.values()]
    at = 0

    def step() -> int:
        nonlocal at
        at += 1
        for source, size in zip(sources, sizes, strict=True):
            first = at * size % (len(source) - size)
            torch.empty(size, dtype=torch.uint8).copy_(source[first : first + size])
        return sum(sizes)

    return step


def expert(folder: Path, arrays: dict[str, np.ndarray], width: int) -> Callable[[], int]:
    """What an expert writes by hand: one flat memmap a column, every valid start, randperm, index_select."""
    views = []
    for name, dim in DIMS.items():
        path = folder / f"{name}.f32"
        if not path.exists():
            arrays[name].tofile(path)
        flat = torch.from_numpy(np.memmap(path, np.float32, mode="r+").reshape(-1, dim))
        views.append(flat.as_strided((len(flat) - width + 1, width * dim), (dim, 1)))
    ends = np.cumsum(arrays["lengths"])
    spans = zip((ends - arrays["lengths"]).tolist(), ends.tolist(), strict=True)
    valid = torch.from_numpy(np.concatenate([np.arange(low, high - width + 1) for low, high in spans]))
    order, at = torch.empty(0, dtype=torch.int64), 0

    def step() -> int:
        nonlocal order, at
        if at + BATCH > len(order):
            order, at = torch.randperm(len(valid)), 0
        starts = valid[order[at : at + BATCH]]
        at += BATCH
        for view in views:
            torch.index_select(view, 0, starts)
        return BATCH

    return step
