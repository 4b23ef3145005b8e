"""Lance's `take` of random windows: one row a step, fixed-size lists, W consecutive rows a window."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("arrays", type=Path, help="the .npz that benchmarks/windows.py wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    arrays = np.load(args.arrays)
    ends = np.cumsum(arrays["lengths"])
    if not args.folder.exists():
        columns = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(arrays[name].ravel()), arrays[name].shape[1])
            for name in ("action", "obs_state")
        }
        lance.write_dataset(pa.table(columns), str(args.folder))
    dataset = lance.dataset(str(args.folder))
    random = np.random.default_rng(0)
    starts = ends - arrays["lengths"]

    def batch() -> int:
        which = random.integers(0, len(ends), args.batch)
        first = starts[which] + (random.random(args.batch) * (arrays["lengths"][which] - args.width + 1)).astype(int)
        rows = (first[:, None] + np.arange(args.width)).ravel()
        table = dataset.take(rows, columns=["action", "obs_state"])
        values = table.column("action").combine_chunks().flatten().to_numpy()
        assert len(values) == args.batch * args.width * 12
        assert np.array_equal(values[:12], arrays["action"][first[0]])
        return args.batch

    batch()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < args.seconds:
        count += batch()
    rate = count / (time.perf_counter() - start)
    print(json.dumps({"peer": f"lance {lance.__version__} take", "width": args.width, "windows_per_second": rate}))


main()
