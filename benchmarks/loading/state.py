"""The loader beside memcpy and an expert's memmap in alternating rounds, on some of the machine's cores.

    python benchmarks/loading/state.py PLAN.json      prints one line of JSON

In a process of its own: what runs on one core must be held to it before any thread begins.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan["cores"]])
    import numpy as np
    import torch
    from signals import DIMS, STEP_BYTES, expert, memcpy, rate_of

    torch.set_num_threads(plan["cores"])
    folder, width = Path(plan["arrays"]), plan["width"]
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("lengths", *DIMS)}
    copy = memcpy(arrays)
    measured = {
        "loader": delivered(plan["dataset"], width, plan["batch"]),
        "expert": expert(folder, arrays, width),
    }
    rates: dict[str, list[float]] = {name: [] for name in ("memcpy", *measured)}
    for _ in range(plan["rounds"]):
        before = rate_of(copy, plan["seconds"])
        for name, step in measured.items():
            rates[name].append(rate_of(step, plan["seconds"]))
        # memcpy before and after, so that a neighbour's load falls on both sides
        rates["memcpy"].append((before + rate_of(copy, plan["seconds"])) / 2)

    def against(one: str, other: str, factor: float = 1.0) -> float:
        return statistics.median(factor * a / b for a, b in zip(rates[one], rates[other], strict=True))

    result: dict[str, Any] = {
        **{name: plan[name] for name in ("shards", "width", "cores")},
        "memcpy_gb_s": statistics.median(rates["memcpy"]) / 1e9,
        "windows_per_second": statistics.median(rates["loader"]),
        "expert_windows_per_second": statistics.median(rates["expert"]),
        "of_memcpy": against("loader", "memcpy", width * STEP_BYTES),
        "of_expert": against("loader", "expert"),
        "expert_of_memcpy": against("expert", "memcpy", width * STEP_BYTES),
    }
    print(json.dumps(result))


def delivered(dataset: str, width: int, batch: int) -> Callable[[], int]:
    """The whole loader: the order of each epoch, windows, ids, tensors."""
    from signals import DIMS

    import seqlake as sl

    window = sl.Window(dict.fromkeys(DIMS, range(width)), edges="drop")
    loader = sl.Loader(sl.open(dataset), window=window, batch_size=batch).torch()
    batches = iter(loader)

    def step() -> int:
        nonlocal batches
        made = next(batches, None)
        if made is None:
            batches = iter(loader)
            made = next(batches)
        return len(made["action"])

    return step


if __name__ == "__main__":
    main()
