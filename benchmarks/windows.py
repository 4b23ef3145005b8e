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
import os
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
from pages import Checks, conditions, save, verdicts

import seqlake as sl
from seqlake.training.batches import Assembler
from seqlake.training.passes import Planner

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
BATCH = 256
DIMS = {"action": 12, "obs_state": 48}
STEP_BYTES = 4 * sum(DIMS.values())
SECONDS = 0.6  # of each measurement in each round


def make_arrays(sequences: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    lengths = random.integers(150, 451, sequences)
    arrays = {name: random.standard_normal((int(lengths.sum()), dim), dtype=np.float32) for name, dim in DIMS.items()}
    return {"lengths": lengths, **arrays}


def write(folder: Path, arrays: dict[str, np.ndarray], shards: int) -> Any:
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


def gather(dataset: Any, width: int) -> Callable[[], int]:
    """Batches of windows whose places are known: what is left when the order is computed."""
    loader = sl.Loader(dataset, window=sl.Window(dict.fromkeys(DIMS, range(width)), edges="drop"), batch_size=BATCH)
    prepared = loader._prepared  # noqa: SLF001 - the gather alone has no public name
    planner = Planner(prepared.survey, prepared.steps, shuffle=prepared.shuffle, seed=0)
    assembler = Assembler(prepared.survey, prepared.opened)
    chunk = assembler.prepare(planner.samples(0, 0, np.arange(len(loader))), size=BATCH)  # more than a cache holds
    steps = len(chunk.samples.rows) // BATCH
    at = 0

    def step() -> int:
        nonlocal at
        at = (at + 1) % steps
        assembler.batch(chunk, at)
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
        dataset = write(folder / f"arm-{shards}", arrays, shards)
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
    saved = folder / "arrays.npz"
    np.savez(saved, **arrays)
    found = []
    for name in ("lance", "lerobot"):
        python = HERE / f".venv-{name}" / "bin" / "python"
        if not python.exists():
            found.append({"peer": name, "missing": "run benchmarks/peers/setup"})
            continue
        for width in [width for width in args.widths if width > 1]:
            command = [python, HERE / "peers" / f"{name}_windows.py", saved, folder / name, "--width", str(width)]
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            if done.returncode:
                found.append({"peer": name, "width": width, "failed": done.stderr[-500:]})
                continue
            found.extend(json.loads(text) for text in done.stdout.splitlines() if text.startswith("{"))
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
        if "windows_per_second" in peer:
            same = [r["windows_per_second"]["gather"] for r in wide if r["width"] == peer["width"]]
            target = 1000 if "lerobot" in peer["peer"] else 50
            check(f"gather of {peer['peer']}, W={peer['width']}", max(same) / peer["windows_per_second"], target)
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
        rate = f"{peer['windows_per_second']:,.0f}" if "windows_per_second" in peer else peer.get("missing", "failed")
        lines.append(f"| {peer['peer']} | {peer.get('width', '')} | {rate} |")
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
