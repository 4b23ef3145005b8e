"""Statistics of signals: our passes over Parquet beside numpy over the same bytes in memory, in one run.

D = 48, 12 and 7 numbers a step in float32, 400 MB of each in three shards. Prints a table and writes
`benchmarks/results/statistics.json` and `statistics.md`.

    python benchmarks/stats.py

How it is measured. *Moments*: `statistics(ds, quantiles=())`, with count, range, mean, deviation, NaN and infinite
numbers, beside `np.mean(axis=0, dtype=float64)`, which finds one of them. *Quantiles*: what three exact quantiles add
to that, beside `np.quantile(axis=0)` of three. Ours read the files through the page cache, numpy an array that is in
memory. Rates are per second of CPU time with one thread, so that other work on the machine counts little; what a second
thread gains is wall time, stands in the JSON, and means something on a quiet machine only (`load_before`). Nothing is
kept between rounds. Rounds alternate; medians count.

(It is not called `statistics.py`: scripts beside it would import it in place of the standard library's module.)
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from pages import Checks, conditions, save, verdicts

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
DIMS = (48, 12, 7)
QUANTILES = (0.01, 0.5, 0.99)
STEPS = 300  # of a sequence


class Forgetful:
    """A dataset that keeps no statistics."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name in {"schema", "root", "fingerprint", "shards", "lengths"}:
            return getattr(self._dataset, name)
        raise AttributeError(name)


def write(folder: Path, array: np.ndarray) -> Any:
    dataset = sl.create(folder, sl.Schema({"signal": sl.Trajectory(dim=array.shape[1])}))
    count = len(array) // STEPS
    with dataset.writer(rows_per_shard=-(-count // 3), bytes_per_shard=1 << 40) as writer:
        for number in range(count):
            writer.add(f"ep_{number:06d}", signal=array[number * STEPS : (number + 1) * STEPS])
    return sl.open(folder)


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """CPU and wall time."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return time.process_time() - cpu, time.perf_counter() - began


def compare(folder: Path, dim: int, megabytes: int, rounds: int) -> dict[str, Any]:
    steps = megabytes * 1_000_000 // (4 * dim * STEPS) * STEPS
    array = np.random.default_rng(0).standard_normal((steps, dim), dtype=np.float32)
    source = Forgetful(write(folder, array))

    def ours(quantiles: tuple[float, ...], workers: int) -> Callable[[], object]:
        return lambda: sl.statistics(source, quantiles=quantiles, workers=workers, progress=False)

    work = {
        "np.mean": lambda: array.mean(axis=0, dtype=np.float64),
        "moments": ours((), 1),
        "np.quantile": lambda: np.quantile(array, QUANTILES, axis=0),
        "all": ours(QUANTILES, 1),
        "all, 2 threads": ours(QUANTILES, 2),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for name in ("np.mean", "moments"):
        work[name]()  # pages are in the cache, modules are imported
    for _ in range(rounds):
        for name, call in work.items():
            found[name].append(seconds(call))
    cpu = {name: median(one for one, _ in times) for name, times in found.items()}
    wall = {name: median(one for _, one in times) for name, times in found.items()}
    cpu["quantiles"] = cpu["all"] - cpu["moments"]
    stats = sl.statistics(source, quantiles=QUANTILES, progress=False)["signal"]
    assert np.allclose(stats.mean, array.mean(axis=0, dtype=np.float64), rtol=0, atol=1e-12)
    assert np.array_equal(stats.quantiles[0.5], np.quantile(array, 0.5, axis=0, method="inverted_cdf"))
    return {
        "dim": dim,
        "megabytes": array.nbytes / 1e6,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "gb_per_cpu_second": {name: array.nbytes / 1e9 / time for name, time in cpu.items()},
        "moments_of_mean": cpu["np.mean"] / cpu["moments"],
        "quantiles_of_quantile": cpu["np.quantile"] / cpu["quantiles"],
        "second_thread": wall["all"] / wall["all, 2 threads"],
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        "# Statistics",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, numpy {report['numpy']}. GB of float32 for each",
        "second of CPU time; in brackets as a part of numpy's. `benchmarks/stats.py` writes this page and says how it",
        "measures.",
        "",
        "| D | np.mean | moments | np.quantile | quantiles |",
        "|---|---|---|---|---|",
    ]
    for r in report["dims"]:
        rate = r["gb_per_cpu_second"]
        lines.append(
            f"| {r['dim']} | {rate['np.mean']:.2f} | {rate['moments']:.2f} ({r['moments_of_mean']:.2f}) | "
            f"{rate['np.quantile']:.2f} | {rate['quantiles']:.2f} ({r['quantiles_of_quantile']:.1f}) |"
        )
    return "\n".join([*lines, *verdicts(report["checks"])]) + "\n"


def conclusions(dims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    checks = Checks()
    for r in dims:
        checks.check(f"moments of np.mean, D={r['dim']}", r["moments_of_mean"], 0.5)
        checks.check(f"quantiles of np.quantile, D={r['dim']}", r["quantiles_of_quantile"], 1.0)
    return checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dims", type=int, nargs="*", default=list(DIMS))
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "statistics.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-stats-", dir=args.folder))
    try:
        head = conditions()
        dims = [compare(folder / str(dim), dim, args.megabytes, args.rounds) for dim in args.dims]
    finally:
        shutil.rmtree(folder)
    report = {
        **head,
        "numpy": np.__version__,
        "dims": dims,
        "checks": conclusions(dims),
    }
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
