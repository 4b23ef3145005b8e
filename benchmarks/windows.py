"""Random windows of signals: seqlake beside memcpy, an expert's memmap, pyarrow, Lance and LeRobot, in one run.

2 000 sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32, written in 3 and in 200
shards. Prints a table and writes `benchmarks/results/windows.json` and `windows.md`.

    python benchmarks/windows.py                      all but what asks for gigabytes
    python benchmarks/windows.py --write-gb 10        also the memory used while writing so much
    benchmarks/peers/setup                            once, before: environments for Lance and LeRobot

How it is measured. Every rate is windows per second over both columns. Ratios are of bytes per second, to two kinds
of memcpy with as many threads in the same round: *stream*, the whole data set from one array to another that exists
already, which the targets refer to; and *batches*, as many consecutive bytes as a batch has into memory as fresh as a
gather's, a target that the processor's cache holds. Rounds alternate between all measurements; the median counts.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from loading.runs import MIXED, add_peers, run_peer
from pages import Checks, conditions, save, verdicts
from signals import (
    BATCH,
    DIMS,
    STEP_BYTES,
    expert,
    make_arrays,
    memcpy,
    memcpy_batches,
    rate_of,
    save_arrays,
    write_arm,
)

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent


def gather(dataset: Any, width: int) -> Callable[[], int]:
    """Batches of windows whose places are known: what is left when the order is computed."""
    loader = sl.Loader(dataset, window=sl.Window(dict.fromkeys(DIMS, range(width)), edges="drop"), batch_size=BATCH)
    engine = loader._engine  # noqa: SLF001 - the gather alone has no public name
    samples = engine.planner().samples(0, 0, np.arange(len(loader)))
    chunk = engine.assembler().prepare(samples, size=BATCH)  # more than a cache holds
    steps = len(chunk.samples.rows) // BATCH
    at = 0

    def step() -> int:
        nonlocal at
        at = (at + 1) % steps
        chunk.batch(at)
        return BATCH

    return step


def whole_loader(dataset: Any, width: int, *, edges: str) -> Callable[[], int]:
    """Everything: order, gather, masks, ids; epoch after epoch."""
    loader = sl.Loader(dataset, window=sl.Window(dict.fromkeys(DIMS, range(width)), edges=edges), batch_size=BATCH)
    batches = iter(loader)

    def step() -> int:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        return len(batch["start"])

    return step


def sequential(folder: Path, width: int) -> Callable[[], int]:
    """pyarrow decoding the same files from end to end, counted in windows' worth of bytes."""
    paths = sorted((folder / "data").glob("*.parquet"))
    at = 0

    def step() -> int:
        nonlocal at
        table = pq.ParquetFile(paths[at % len(paths)]).read(columns=list(DIMS), use_threads=False)
        at += 1
        values = sum(table.column(name).combine_chunks().flatten().flatten().nbytes for name in DIMS)
        return values // (width * STEP_BYTES)

    return step


def compare(args: argparse.Namespace, arrays: dict[str, np.ndarray], folder: Path) -> list[dict[str, Any]]:
    results = []
    for shards in args.shards:
        dataset = write_arm(folder / f"arm-{shards}", arrays, shards)
        for width in args.widths:
            measured = {
                "gather": gather(dataset, width),
                "loader (edges drop)": whole_loader(dataset, width, edges="drop"),
                "loader (edges pad)": whole_loader(dataset, width, edges="pad"),
                "expert memmap": expert(folder, arrays, width),
                "pyarrow sequential": sequential(folder / f"arm-{shards}", width),
            }
            for threads in args.threads:
                torch.set_num_threads(threads)
                results.append(
                    {"shards": shards, "width": width, "threads": threads}
                    | in_rounds(measured, memcpy(arrays), memcpy_batches(arrays, width), width, args.rounds)
                )
                print(line(results[-1]), flush=True)
    return results


def in_rounds(
    measured: dict[str, Callable[[], int]],
    copy: Callable[[], int],
    copy_batches: Callable[[], int],
    width: int,
    rounds: int,
) -> dict[str, Any]:
    rates: dict[str, list[float]] = {name: [] for name in measured}
    streams, batches = [], []
    for _ in range(rounds):
        # memcpy before and after, so that a neighbour's load falls on both sides
        before = rate_of(copy), rate_of(copy_batches)
        for name, step in measured.items():
            rates[name].append(rate_of(step))
        streams.append((before[0] + rate_of(copy)) / 2)
        batches.append((before[1] + rate_of(copy_batches)) / 2)
    nbytes = width * STEP_BYTES

    def against(speeds: list[float]) -> dict[str, float]:
        return {
            name: statistics.median(rate * nbytes / speed for rate, speed in zip(found, speeds, strict=True))
            for name, found in rates.items()
        }

    return {
        "memcpy_gb_s": statistics.median(streams) / 1e9,
        "memcpy_of_batches_gb_s": statistics.median(batches) / 1e9,
        "windows_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "of_memcpy": against(streams),
        "of_memcpy_of_batches": against(batches),
        "of_expert": {
            name: statistics.median(x / e for x, e in zip(found, rates["expert memmap"], strict=True))
            for name, found in rates.items()
        },
    }


def line(result: dict[str, Any]) -> str:
    parts = [
        f"{name} {result['windows_per_second'][name]:>11,.0f}/s ({ratio:.2f})"
        for name, ratio in result["of_memcpy"].items()
    ]
    head = f"{result['shards']:>3} shards, W={result['width']:<2}, {result['threads']} threads"
    return f"{head}, memcpy {result['memcpy_gb_s']:.1f} GB/s: " + ", ".join(parts)


def peers(args: argparse.Namespace, arrays: dict[str, np.ndarray], folder: Path) -> list[dict[str, Any]]:
    saved = save_arrays(folder / "arrays", arrays)
    widths = [width for width in args.widths if width > 1]
    tasks = [{"work": "windows", "width": width, "batch": BATCH, "seconds": 5.0} for width in widths]
    found = []
    for name in ("lance", "lerobot"):
        # in process: what is compared with is a gather, not worker processes
        found += run_peer(
            name, {"arrays": str(saved), "folder": str(folder / name), "workers": [0], "tasks": tasks}, args
        )
        print(found[-1], flush=True)
    return found


def sequence_reads(dataset: Any) -> dict[str, float]:
    """CPU microseconds of reading one column of one sequence by id, warm."""
    ids = dataset.select("sequence_id").to_arrow().column(0).to_pylist()[:1000]
    for name in ids:
        _ = dataset.sequence(name)["action"]
    times = []
    for _ in range(5):
        start = time.process_time()
        for name in ids:
            _ = dataset.sequence(name)["action"]
        times.append((time.process_time() - start) / len(ids) * 1e6)
    return {"cpu_us_per_sequence_column": statistics.median(times)}


def many_sequences(folder: Path, shards: int, sequences: int = 100_000) -> dict[str, Any]:
    """Seconds to open many short sequences, and to filter them by a scalar."""
    target = folder / f"many-{shards}"
    schema = sl.Schema({"reward": pa.float32(), "action": sl.Trajectory(dim=2)})
    dataset = sl.create(target, schema)
    random = np.random.default_rng(0)
    size = sequences // shards
    with dataset.writer(rows_per_shard=size, bytes_per_shard=1 << 40) as writer:
        for first in range(0, sequences, size):
            steps = random.integers(1, 6, size)
            offsets = pa.array(np.concatenate([[0], np.cumsum(steps)]), pa.int32())
            values = pa.array(random.standard_normal(2 * int(steps.sum()), dtype=np.float32))
            writer.add_batch(
                pa.record_batch(
                    {
                        "sequence_id": pa.array([f"ep_{first + k:07d}" for k in range(size)]),
                        "reward": pa.array(random.random(size, dtype=np.float32)),
                        "action": pa.ListArray.from_arrays(offsets, pa.FixedSizeListArray.from_arrays(values, 2)),
                    }
                )
            )
    code = (
        "import sys, time, seqlake as sl\n"
        "import numpy, pyarrow, pyarrow.parquet, duckdb\n"  # what is timed is opening, not importing
        "start = time.perf_counter()\n"
        f"ds = sl.open({str(target)!r}); n = len(ds); opened = time.perf_counter() - start\n"
        "loader = sl.Loader(ds, window={'action': range(2)}, batch_size=256)\n"
        "start = time.perf_counter(); len(loader); planned = time.perf_counter() - start\n"
        "times = []\n"
        "for k in range(3):\n"
        "    start = time.perf_counter()\n"
        "    len(ds.where(f'reward > 0.{k + 5}'))\n"
        "    times.append(time.perf_counter() - start)\n"
        "import json\n"
        "print(json.dumps({'rows': n, 'open_s': opened, 'loader_len_s': planned, 'where_s': max(times)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {"shards": shards, **json.loads(done.stdout)}


def writing_memory(folder: Path, gigabytes: float) -> dict[str, float]:
    """Peak memory of a process that writes so much; the target counts the row group and the largest cell."""
    target = folder / "large"
    code = (
        "import numpy as np, seqlake as sl\n"
        f"schema = sl.Schema({{'action': sl.Trajectory(dim=12), 'obs_state': sl.Trajectory(dim=48)}})\n"
        f"dataset = sl.create({str(target)!r}, schema)\n"
        "random = np.random.default_rng(0)\n"
        "a, b = (random.standard_normal((3000, d), dtype=np.float32) for d in (12, 48))\n"
        f"count = int({gigabytes} * 1e9 / (a.nbytes + b.nbytes))\n"
        "with dataset.writer() as writer:\n"
        "    for k in range(count):\n"
        "        writer.add(f'ep_{k:07d}', action=a, obs_state=b)\n"
        # Not ru_maxrss: a new process starts with its parent's.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) * 1024)\n"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    spent = time.perf_counter() - start
    shutil.rmtree(target)
    limit = 6 * 64 * 2**20 + 300 * 10**6
    return {"gigabytes": gigabytes, "seconds": spent, "peak_mb": int(done.stdout) / 1e6, "allowed_mb": limit / 1e6}


def conclusions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    checks = Checks()
    check = checks.check
    wide = [r for r in report["windows"] if r["width"] > 1]
    for r in wide:
        where = f"{r['shards']} shards, W={r['width']}, {r['threads']} threads"
        check(f"gather of memcpy, {where}", r["of_memcpy"]["gather"], 0.6)
        if r["threads"] == 2:
            check(f"loader of memcpy, {where}", r["of_memcpy"]["loader (edges drop)"], 0.5)
        rates = r["windows_per_second"]
        check(f"loader of expert, {where}", r["of_expert"]["loader (edges drop)"], 0.8)
        check(f"gather of pyarrow sequential, {where}", rates["gather"] / rates["pyarrow sequential"], 8)
    for peer in report.get("peers", []):
        # Windows that were cut out and written beforehand are other arrays, many times as large.
        if peer.get("mixture", 0) > MIXED and "samples" not in peer["settings"]:
            same = [r["windows_per_second"]["gather"] for r in wide if r["width"] == peer["width"]]
            target = 1000 if "lerobot" in peer["peer"] else 50
            where = f"{peer['peer']} {peer['settings']}, W={peer['width']}"
            check(f"gather of {where}", max(same) / peer["samples_per_second"], target)
    if "sequence" in report:
        check(
            "warm ds.sequence(id) of one column, CPU us",
            report["sequence"]["cpu_us_per_sequence_column"],
            50,
            at_most=True,
        )
    for many in report.get("many", []):
        check(f"open 100 000 sequences in {many['shards']} shards, s", many["open_s"], 1, at_most=True)
        check(f"scalar where on them in {many['shards']} shards, s", many["where_s"], 0.5, at_most=True)
    if "writing" in report:
        check(
            "peak memory while writing, MB", report["writing"]["peak_mb"], report["writing"]["allowed_mb"], at_most=True
        )
    return checks


def table(report: dict[str, Any]) -> str:
    names = list(report["windows"][0]["of_memcpy"]) if report["windows"] else []
    lines = [
        "# Random windows",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, torch {report['torch']}. 1 000 windows/s;",
        "in brackets bytes per second through memcpy of batches and through memcpy as a stream, with as many threads.",
        "`benchmarks/windows.py` writes this page and says how it measures.",
        "",
        "| shards | W | threads | memcpy GB/s | " + " | ".join(names) + " |",
        "|---" * (4 + len(names)) + "|",
    ]
    for r in report["windows"]:
        cells = [
            f"{r['windows_per_second'][n] / 1e3:,.0f} ({r['of_memcpy_of_batches'][n]:.2f}, {r['of_memcpy'][n]:.2f})"
            for n in names
        ]
        speeds = f"{r['memcpy_of_batches_gb_s']:.1f}, {r['memcpy_gb_s']:.1f}"
        lines.append(f"| {r['shards']} | {r['width']} | {r['threads']} | {speeds} | " + " | ".join(cells) + " |")
    lines += ["", "| peer | W | windows/s |", "|---|---|---|"]
    for peer in report.get("peers", []):
        rate = f"{peer['samples_per_second']:,.0f}" if "samples_per_second" in peer else peer["failed"]
        lines.append(f"| {peer['peer']} {peer.get('settings', '')} | {peer.get('width', '')} | {rate} |")
    lines += verdicts(report["checks"])
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--shards", type=int, nargs="*", default=[3, 200])
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 16, 64])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write-gb", type=float, default=0.0)
    parser.add_argument("--skip", nargs="*", default=[], choices=["peers", "sequence", "many"])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    add_peers(parser)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "windows.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-windows-", dir=args.folder))
    try:
        arrays = make_arrays(args.sequences)
        report: dict[str, Any] = {
            **conditions(),
            "torch": torch.__version__,
        }
        report["windows"] = compare(args, arrays, folder)
        if "sequence" not in args.skip and args.shards:
            report["sequence"] = sequence_reads(sl.open(folder / f"arm-{args.shards[0]}"))
            print(report["sequence"], flush=True)
        if "many" not in args.skip:
            report["many"] = [many_sequences(folder, shards) for shards in (4, 400)]
            print(report["many"], flush=True)
        if "peers" not in args.skip:
            report["peers"] = peers(args, arrays, folder)
        if args.write_gb:
            report["writing"] = writing_memory(folder, args.write_gb)
            print(report["writing"], flush=True)
        report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        report["checks"] = conclusions(report)
    finally:
        shutil.rmtree(folder)
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
