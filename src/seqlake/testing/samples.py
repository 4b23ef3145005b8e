"""Small sample datasets for tests and docs: episodes of a two-armed robot, the same on every machine.

```python
from seqlake.testing import samples

ds = samples.arm_dataset("data/arm", count=20)
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.dataset.opening import create
from seqlake.spec.column_types import Embedding, Trajectory
from seqlake.spec.schema import Schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from seqlake.dataset.dataset import Dataset

RATE = 50
"""Control steps per second."""

ACTION = 12
STATE = 48
TASKS = ("pick", "place", "pour", "wipe")
OPERATORS = ("ada", "grace", "linus")


def arm_schema(*, raw: bool = False) -> Schema:
    """The schema of the episodes.

    Args:
        raw: Keep the two trajectories as raw little-endian cells.

    Example:
        >>> list(arm_schema())[0]
        'sequence_id'
    """
    encoding = "raw" if raw else None
    return Schema(
        {
            "task": pa.string(),
            "operator": pa.string(),
            "reward": pa.float32(),
            "success": pa.bool_(),
            "length": pa.int64(),
            "action": Trajectory(dim=ACTION, units="rad", fps=RATE, encoding=encoding),
            "obs_state": Trajectory(dim=STATE, fps=RATE, encoding=encoding),
            "instruction_embedding": Embedding(dim=8, model="sample"),
        }
    )


def arm_episodes(
    count: int = 20, /, *, seed: int = 0, steps: tuple[int, int] = (20, 60), first: int = 0
) -> Iterator[dict[str, Any]]:
    """Episodes as dicts, as `Dataset.append` takes them.

    Args:
        count: How many.
        seed: Episode n of a seed is always the same, however many are made.
        steps: T lies in this range, its end excluded.
        first: The number of the first.

    Yields:
        `sequence_id`, `task`, `operator`, `reward`, `success`, `action` float32 [T, 12] in rad, `obs_state`
        float32 [T, 48] and `instruction_embedding` float32 [8]; `length` is left to the writer.

    Example:
        >>> next(arm_episodes(1))["action"].shape[1]
        12
    """
    for number in range(first, first + count):
        rng = np.random.default_rng([seed, number])
        length = int(rng.integers(*steps))
        seconds = np.arange(length)[:, None] / RATE
        joints = rng.uniform(-1, 1, ACTION) * np.sin(2 * np.pi * rng.uniform(0.2, 2.0, ACTION) * seconds)
        # A sensor sees the joints through a fixed mixing, with noise of its own.
        mixing = np.random.default_rng(seed).normal(size=(ACTION, STATE)) / ACTION
        state = joints @ mixing + rng.normal(0, 0.01, (length, STATE))
        reward = float(np.float32(50 - 40 * np.abs(joints).mean()))
        yield {
            "sequence_id": f"ep_{number:04d}",
            "task": TASKS[number % len(TASKS)],
            "operator": OPERATORS[number % len(OPERATORS)],
            "reward": reward,
            "success": reward > 36,
            "action": joints.astype(np.float32),
            "obs_state": state.astype(np.float32),
            "instruction_embedding": np.random.default_rng([seed, number % len(TASKS)]).normal(size=8).astype("f4"),
        }


def arm_dataset(
    location: str | os.PathLike[str], /, *, count: int = 20, seed: int = 0, raw: bool = False, **writing: Any
) -> Dataset:
    """A new dataset of `count` episodes in one commit.

    Args:
        location: A new folder.
        count: How many episodes.
        seed: Which.
        raw: Raw cells for the trajectories.
        **writing: What `Dataset.writer` takes: `layout`, `rows_per_shard`, ...

    Example:
        ```python
        ds = samples.arm_dataset("data/arm", count=64)
        ```
    """
    dataset = create(location, arm_schema(raw=raw))
    with dataset.writer(**writing) as writer:
        for episode in arm_episodes(count, seed=seed):
            writer.add(episode.pop("sequence_id"), **episode)
    return dataset
