"""What a second process brings to `sl.convert`: MDS, RLDS, LeRobot and CSV, one process held to one thread, and two.

    python benchmarks/convert.py              the whole measurement; writes benchmarks/results/convert.json and .md
    python benchmarks/convert.py --small      that each part works; its numbers mean little, and nothing is written
    python benchmarks/convert.py --folder /dev/shm    so that what is written waits for no disk, which both share

Sources, made anew from fixed seeds: an MDS folder of samples with an array and a JPEG each, in zstd shards of 16 MiB;
an RLDS folder of episodes with a state, an action and a JPEG a step, in files of 40 episodes, whose images become
videos; a LeRobot folder (v2.1) of episodes with a state, an action and a JPEG a step; a CSV file of time steps of 40
signals in no order, put together by `sequence_id` and `steps`. Of the CSV file no ratio is asked: what its types are,
and which rows belong together, is learned by passes over it before workers begin.

How it is measured. A conversion is a process of its own that is bound to one core, or to two, with `OMP_NUM_THREADS=1`
and `ARROW_IO_THREADS=1` in its environment and Arrow's pool set to one thread, so that one process is one thread
whatever libraries would do; encoders have one thread in any case. Modules are compiled, as an installation has them.
One and two alternate, and the medians count. The time is that of the whole call of `sl.convert`: looking at the source,
starting workers, writing, the commit. Sources are in the page cache. The datasets that both make are compared. At least
1.7 times is what two processes have to bring, but for CSV.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pages import conditions, save
from PIL import Image

import seqlake as sl
from seqlake.formats.rlds.tfrecord import crc32c, masked

HERE = Path(__file__).parent
WANTED = 1.7
CHILD = """
import json, os, sys, time
import pyarrow as pa
import seqlake as sl

if __name__ == "__main__":
    source, out, workers, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    start = time.perf_counter()
    ds = sl.convert(source, out, workers=workers, progress=False, **options)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "rows": len(ds), "shards": len(ds.shards())}))
"""
SIZES = {"mds": 300_000, "rlds": 800, "lerobot": 3_000, "csv": 400_000}
SMALL = {"mds": 600, "rlds": 40, "lerobot": 20, "csv": 20_000}


def pictures(count: int) -> list[bytes]:
    """JPEGs of 96 by 96 pixels that differ."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(count):
        coarse = rng.integers(0, 255, (12, 12, 3), np.uint8)
        out = io.BytesIO()
        Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        made.append(out.getvalue())
    return made


def write_mds(folder: Path, count: int) -> dict[str, Any]:
    """Samples of 8 KiB of floats and a picture."""
    rng, jpegs = np.random.default_rng(2), pictures(64)
    columns = {"state": "ndarray:float32:2048", "cam": "bytes", "task": "str", "label": "int"}
    with sl.create(folder, columns, format="mds", size_limit=16 << 20, compression="zstd:3") as writer:
        for number in range(count):
            state = rng.normal(size=2048).astype(np.float32)
            writer.write({"state": state, "cam": jpegs[number % 64], "task": f"task {number % 9}", "label": number})
    return {"sequence_id": True}


def varint(value: int) -> bytes:
    """A number of protobuf."""
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def delimited(number: int, data: bytes) -> bytes:
    """A field of protobuf."""
    return varint(number * 8 + 2) + varint(len(data)) + data


def episode(arrays: dict[str, np.ndarray], texts: dict[str, list[bytes]]) -> bytes:
    """A record: a tf.train.Example, framed."""
    features = {n: delimited(2, delimited(1, array.astype("<f4").tobytes())) for n, array in arrays.items()}
    features |= {n: delimited(1, b"".join(delimited(1, one) for one in cells)) for n, cells in texts.items()}
    entries = [delimited(1, name.encode()) + delimited(2, body) for name, body in features.items()]
    data = delimited(1, b"".join(delimited(1, entry) for entry in entries))
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(crc32c(head))) + data + struct.pack("<I", masked(crc32c(data)))


def tensor(size: int) -> dict[str, Any]:
    """A feature of floats."""
    shape = {"dimensions": [str(size)]}
    return {"pythonClassName": "x.Tensor", "tensor": {"shape": shape, "dtype": "float32", "encoding": "none"}}


def write_rlds(folder: Path, count: int) -> dict[str, Any]:
    """Episodes of 40 steps, each with 60 floats and a picture."""
    rng, jpegs, per_file = np.random.default_rng(3), pictures(64), 40
    folder.mkdir(parents=True)
    image = {"shape": {"dimensions": ["96", "96", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    leaves = {
        "action": tensor(12),
        "state": tensor(48),
        "cam": {"pythonClassName": "x.Image", "image": image},
        "language_instruction": {"pythonClassName": "x.Text", "text": {}},
    }
    inner = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": leaves}}
    steps = {"pythonClassName": "x.Dataset", "sequence": {"feature": inner, "length": "-1"}}
    root = {"pythonClassName": "x.FeaturesDict", "featuresDict": {"features": {"steps": steps}}}
    (folder / "features.json").write_text(json.dumps(root))
    lengths, files = [], (count + per_file - 1) // per_file
    for number in range(files):
        records = []
        for first in range(number * per_file, min(count, (number + 1) * per_file)):
            cam = [jpegs[(first + step) % 64] for step in range(40)]
            floats = {"steps/action": rng.normal(size=480), "steps/state": rng.normal(size=1920)}
            texts = {"steps/cam": cam, "steps/language_instruction": [f"task {first % 9}".encode()] * 40}
            records.append(episode(floats, texts))
        (folder / f"bench-train.tfrecord-{number:05d}-of-{files:05d}").write_bytes(b"".join(records))
        lengths.append(str(len(records)))
    split = {
        "name": "train",
        "shardLengths": lengths,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
    }
    info = {"name": "bench", "version": "1.0.0", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return {"images": "video", "fps": 10}


def write_lerobot(folder: Path, count: int) -> dict[str, Any]:
    """Episodes of 100 steps, each with 60 floats and a picture, one Parquet file each."""
    rng, jpegs = np.random.default_rng(5), pictures(64)
    features = {
        "action": {"dtype": "float32", "shape": [12], "names": None},
        "observation.state": {"dtype": "float32", "shape": [48], "names": None},
        "picture": {"dtype": "image", "shape": [96, 96, 3], "names": ["height", "width", "channels"]},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **{
            name: {"dtype": "int64", "shape": [1], "names": None}
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
    }
    (folder / "data" / "chunk-000").mkdir(parents=True)
    (folder / "meta").mkdir()
    for number in range(count):
        steps = np.arange(100)
        floats = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=100 * size).astype("f4")), size)
            for name, size in (("action", 12), ("observation.state", 48))
        }
        cells = [{"bytes": jpegs[(number + step) % 64], "path": None} for step in range(100)]
        kept = {"timestamp": (steps / 10).astype("f4"), "frame_index": steps, "episode_index": np.full(100, number)}
        kept |= {"index": number * 100 + steps, "task_index": np.zeros(100, np.int64)}
        picture = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        table = pa.table({**floats, "picture": picture, **{name: pa.array(one) for name, one in kept.items()}})
        pq.write_table(table, folder / f"data/chunk-000/episode_{number:06d}.parquet")
    info = {
        "codebase_version": "v2.1",
        "robot_type": "bench",
        "total_episodes": count,
        "total_frames": count * 100,
        "total_tasks": 1,
        "chunks_size": 1_000_000,
        "fps": 10,
        "splits": {"train": f"0:{count}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": None,
        "features": features,
    }
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    (folder / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "go"}) + "\n")
    listed = [{"episode_index": number, "tasks": ["go"], "length": 100} for number in range(count)]
    (folder / "meta" / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in listed))
    return {}


def write_csv(place: Path, count: int) -> dict[str, Any]:
    """Steps of 300 a sequence, neighbours interleaved, each with 40 numbers and a text."""
    import pandas as pd

    rng = np.random.default_rng(4)
    place.parent.mkdir(parents=True, exist_ok=True)
    for first in range(0, count, 30_000):
        rows = np.arange(first, min(count, first + 30_000))
        rng.shuffle(rows)
        frame = pd.DataFrame(rng.normal(size=(len(rows), 40)).round(6), columns=[f"q_{n}" for n in range(40)])
        frame.insert(0, "t", rows % 300)
        frame.insert(0, "episode", [f"e{row // 300:06d}" for row in rows])
        frame["task"] = [f"task {row // 300 % 9}" for row in rows]
        frame.to_csv(place, index=False, mode="a", header=not first)
    return {"sequence_id": "episode", "steps": "t", "map": {"q": "q_0..q_39"}}


def convert(source: Path, out: Path, workers: int, options: dict[str, Any]) -> dict[str, Any]:
    """One conversion in a process of its own."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as script:
        script.write(CHILD)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, script.name, str(source), str(out), str(workers), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    Path(script.name).unlink()
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(name: str, source: Path, folder: Path, options: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Medians of both, and their ratio; both make the same dataset."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    rows = shards = 0
    for _ in range(rounds):
        for workers, times in seconds.items():
            measured = convert(source, folder / f"out-{workers}", workers, options)
            times.append(measured["seconds"])
            rows, shards = measured["rows"], measured["shards"]
    one, two = (sl.open(folder / f"out-{workers}") for workers in seconds)
    names = [column for column in one.schema if one.schema[column].category != "file"]  # whose names are never the same
    for first, second in zip(one.select(*names).batches(), two.select(*names).batches(), strict=True):
        assert first.equals(second), name
    medians = {workers: statistics.median(times) for workers, times in seconds.items()}
    paths = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    return {
        "source": name,
        "bytes": sum(path.stat().st_size for path in paths),
        "rows": rows,
        "shards": shards,
        "one": medians[1],
        "two": medians[2],
        "ratio": medians[1] / medians[2],
    }


def table(report: dict[str, Any]) -> str:
    """The page."""
    lines = [
        "# Conversion on two processes",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; files in {report['folder']}.",
        "Seconds of `sl.convert`, from the look at the source to the commit; one process is held to one thread.",
        "`benchmarks/convert.py` writes this page and says how it measures.",
        "",
        "| source | MB | sequences | one process, s | two processes, s | ratio | MB/s on two |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in report["sources"]:
        size = one["bytes"] / 1e6
        lines.append(
            f"| {one['source'].upper()} | {size:,.0f} | {one['rows']:,} | {one['one']:.2f} | {one['two']:.2f} "
            f"| {one['ratio']:.2f} | {size / one['two']:,.0f} |"
        )
    missed = [one["source"] for one in report["sources"] if one["source"] != "csv" and one["ratio"] < WANTED]
    verdict = f"missed by {', '.join(missed)}." if missed else "met by all."
    lines += ["", f"Wanted is at least {WANTED}, but for CSV, whose first passes are one process's: {verdict}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=list(SIZES))
    parser.add_argument("--scale", type=float, default=1.0, help="of the sizes of the whole measurement")
    parser.add_argument("--folder", type=Path, help="where to work, with 8 GB free; a temporary folder by default")
    args = parser.parse_args()
    sizes = SMALL if args.small else {name: int(size * args.scale) for name, size in SIZES.items()}
    makers = {"mds": write_mds, "rlds": write_rlds, "lerobot": write_lerobot, "csv": write_csv}
    folder = Path(tempfile.mkdtemp(prefix="seqlake-convert-", dir=args.folder))
    try:
        report: dict[str, Any] = {**conditions(), "folder": str(folder.parent), "sources": []}
        for name, maker in makers.items():
            if args.only in {None, name}:
                place = folder / ("steps.csv" if name == "csv" else name)
                options = maker(place, sizes[name])
                report["sources"].append(compare(name, place, folder, options, 1 if args.small else args.rounds))
                print(json.dumps(report["sources"][-1]), flush=True)
        if args.small or args.only is not None or args.scale != 1:
            print(table(report))
        else:
            save(HERE / "results" / "convert.json", report, table(report))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
