"""Parquet, Lance and Vortex shards in one run on the same rows: bytes, writing, reading, windows, a bucket.

    python benchmarks/engines.py                everything; two minutes on two cores
    python benchmarks/engines.py --small        that it works, in a minute; its numbers mean little

How it is measured. Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32, each a walk in
hundredths, as sensors give them, so that there is something to compress. Every way is a dataset that seqlake writes and
reads, in six shards. Rounds alternate between the ways, on two threads, files in the page cache; medians count, and the
ratios are to Parquet in the layout `training` in the same rounds. *Write* is from Arrow batches to a commit. *Stream*
reads all rows as Arrow. *Rows* asks sequences by id, in random order, each with both signals. *Windows* are of 16 steps
out of the loader, batches of 256, shuffled by `sl.Shuffle()`; the beginning of the first epoch is not counted.

*A bucket* is a server on loopback that waits 20 ms before each answer: the seconds of two epochs of windows, the first
with nothing copied, copies in a folder.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from loading.remote import LATENCY
from loading.store import serving
from pages import conditions, save
from signals import BATCH, DIMS

import seqlake as sl

HERE = Path(__file__).parent
WAYS = [(engine, layout) for engine in ("parquet", "lance", "vortex") for layout in ("training", "archive")]
MEASURED = {
    "write": "write, MB/s",
    "stream": "stream, MB/s",
    "rows": "random rows/s",
    "windows": "random windows/s",
}
WIDTH = 16


def batches(sequences: int) -> list[pa.RecordBatch]:
    """Rows of signals that walk, in batches of a hundred."""
    random = np.random.default_rng(0)
    made = []
    for first in range(0, sequences, 100):
        lengths = random.integers(150, 451, min(100, sequences - first))
        columns: dict[str, Any] = {"sequence_id": [f"ep_{first + n:06d}" for n in range(len(lengths))]}
        for name, dim in DIMS.items():
            walk = np.round(random.standard_normal((int(lengths.sum()), dim)).cumsum(axis=0), 2).astype(np.float32)
            steps = pa.FixedSizeListArray.from_arrays(pa.array(walk.reshape(-1)), dim)
            columns[name] = pa.ListArray.from_arrays(
                pa.array(np.concatenate([[0], lengths.cumsum()]), pa.int32()), steps
            )
        made.append(pa.record_batch(columns))
    return made


def write(place: Path, rows: list[pa.RecordBatch], way: tuple[str, str], *, shards: int = 6) -> sl.Dataset:
    """A dataset of these rows."""
    shutil.rmtree(place, ignore_errors=True)
    schema = sl.Schema({name: sl.Trajectory(dim=dim) for name, dim in DIMS.items()})
    dataset = sl.create(place, schema, shards=way[0])
    count = sum(batch.num_rows for batch in rows)
    with dataset.writer(rows_per_shard=-(-count // shards), bytes_per_shard=1 << 40, layout=way[1]) as writer:
        for batch in rows:
            writer.add_batch(batch)
    return sl.open(place)


def windows_of(dataset: sl.Dataset, **options: Any) -> sl.Loader:
    """The loader that everybody is measured with."""
    return sl.Loader(
        dataset, window=dict.fromkeys(DIMS, range(WIDTH)), batch_size=BATCH, shuffle=sl.Shuffle(), **options
    )


class Way:
    """One kind of shards, and what is measured of it."""

    def __init__(self, name: tuple[str, str], place: Path, rows: list[pa.RecordBatch], seconds: float) -> None:
        self.name = name
        self.place = place
        self.rows = rows
        self.seconds = seconds
        self.nbytes = sum(batch.nbytes for batch in rows)
        self.dataset = write(place, rows, name)
        self.ids = pa.concat_arrays([batch.column("sequence_id") for batch in rows]).to_pylist()
        self.batches = iter(windows_of(self.dataset))
        next(self.batches)

    def write(self) -> float:
        start = time.perf_counter()
        write(self.place.with_name("again"), self.rows, self.name)
        return self.nbytes / (time.perf_counter() - start) / 1e6

    def stream(self) -> float:
        start = time.perf_counter()
        steps = sum(len(batch.column("action")) for batch in sl.open(self.place).to_arrow().to_batches())
        assert steps == len(self.ids)
        return self.nbytes / (time.perf_counter() - start) / 1e6

    def rows_by_id(self) -> float:
        dataset = sl.open(self.place)
        random = np.random.default_rng(1)
        dataset[self.ids[0]]["action"]
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < self.seconds or count < 64:
            view = dataset[self.ids[int(random.integers(len(self.ids)))]]
            count += len(view["action"]) > 0 and len(view["obs_state"]) > 0
        return count / spent

    def windows(self) -> float:
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < self.seconds:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(windows_of(self.dataset))
                batch = next(self.batches)
            count += len(batch["start"])
        return count / spent

    def measured(self) -> dict[str, float]:
        return {"write": self.write(), "stream": self.stream(), "rows": self.rows_by_id(), "windows": self.windows()}


def remote(place: Path, way: Way, store: Any) -> list[float]:
    """Seconds of two epochs of windows out of a bucket."""
    name = "-".join(way.name)
    store.put(way.place, name)
    copies = place / f"copies-{name}"
    shutil.rmtree(copies, ignore_errors=True)
    dataset = sl.open(store.uri(name), storage=store.storage)
    spent = []
    for _ in range(2):
        start = time.perf_counter()
        count = sum(len(batch["start"]) for batch in windows_of(dataset, cache=sl.Cache(copies)))
        assert count
        spent.append(time.perf_counter() - start)
    shutil.rmtree(copies)
    return spent


def page(report: dict[str, Any]) -> str:
    """The page."""
    where = f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before"
    lines = [
        "# Parquet, Lance and Vortex shards",
        "",
        f"{where}; {report['megabytes']:.0f} MB of signals, lance {report['lance']}, vortex {report['vortex']}.",
        "In brackets to Parquet, `training`, in the same rounds; more is better but for bytes and seconds.",
        "`benchmarks/engines.py` writes this page and says how it measures.",
        "",
        f"| shards | layout | bytes of the signals' | {' | '.join(MEASURED.values())} | a bucket, s | again |",
        f"|---|---|{'---|' * (len(MEASURED) + 3)}",
    ]
    base = report["ways"]["parquet training"]
    for name, found in report["ways"].items():
        figures = [f"{found[key]:,.0f} ({found[key] / base[key]:.2f})" for key in MEASURED]
        first, second = found["bucket"]
        figures.append(f"{first:.1f} ({first / base['bucket'][0]:.2f})")
        figures.append(f"{second:.1f} ({second / base['bucket'][1]:.2f})")
        size = found["bytes"] / report["megabytes"] / 1e6
        lines.append(f"| {name.replace(' ', ' | ')} | {size:.2f} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--sequences", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of rows and windows in each round")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engines.json")
    first, _ = parser.parse_known_args()
    if first.small:
        parser.set_defaults(sequences=200, rounds=1, seconds=0.2)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-engines-", dir=args.folder))
    report: dict[str, Any] = {**conditions(), "lance": version("pylance"), "vortex": version("vortex-data")}
    try:
        rows = batches(args.sequences)
        report["megabytes"] = sum(batch.nbytes for batch in rows) / 1e6
        ways = [Way(name, folder / "-".join(name), rows, args.seconds) for name in WAYS]
        rounds: list[list[dict[str, float]]] = [[way.measured() for way in ways] for _ in range(args.rounds)]
        report["ways"] = {}
        with serving(latency=LATENCY) as store:
            for number, way in enumerate(ways):
                data = sum(path.stat().st_size for path in (way.place / "data").iterdir())
                report["ways"][" ".join(way.name)] = {
                    "bytes": data,
                    **{key: statistics.median(one[number][key] for one in rounds) for key in MEASURED},
                    "bucket": remote(folder, way, store),
                }
                print(way.name, report["ways"][" ".join(way.name)], flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    save(args.out, report, page(report))


if __name__ == "__main__":
    main()
