"""The training loader beside its peers in one run on the same data: windows, cameras, sequences, a bucket, growth.

    benchmarks/peers/setup                     once, before: an environment for each peer
    python benchmarks/loader.py                everything; takes an hour
    python benchmarks/loader.py --small        that each part works, in minutes; its numbers mean little
    python benchmarks/loader.py --only windows remote

How it is measured. Sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32.

*Windows*: seqlake's loader, each epoch's order computed anew, as torch tensors in batches of 256, out of 3 and of 200
shards, beside memcpy of the whole data set (as a stream, with as many threads) and the memmap that an expert writes by
hand; one process, alternating rounds, the median of the rounds' ratios. On one core the process is held to that core.

*Peers*: each in its own environment and process, in every way that its documentation offers and with 0 and 2 worker
processes; rates are of tensors in the main process, after some batches. seqlake, LeRobot, LitData's `read_window` and
Lance's `take of steps` read every window of every sequence; the others are given windows that do not overlap, stored
as samples, which is the most that can be done for them. *Mixture* says how many distinct sequences a batch has,
of what windows drawn from all have; what has less than half is not compared with. CPU time and memory are those of the
process and its workers; memory is what came to it since the measurement began, without pages of files.

*Compressed*: windows of 16 out of local files that are compressed; decoded, all take three times the memory given.
seqlake reads Parquet as pyarrow writes it, with `sl.Cache(limit=)` in memory and in a folder, in two lanes of blocks of
three shards; `datasets` streams Parquet with its buffer; Lance takes rows of its own files, and keeps what it likes.

*Cameras*: as `benchmarks/video.py` measures, the loader's frames beside PyAV by hand and LeRobot on the same files;
LeRobot's function that decodes one window has neither order nor batches, so the peer is its dataset in a DataLoader. Of
the libraries that know no video a sample holds both files of an episode, and torchcodec decodes a window a visit.

*A bucket*: a server on loopback that counts. Everybody writes the same windows in shards of 14 MiB, and reads two
epochs, the first with nothing copied, opening included. Seconds are compared with plain parallel GETs of the same
objects before and after, whose bytes are forgotten, where seqlake keeps shards in memory, and of GETs that keep them in
files, where it keeps them in a folder; and once more from a server that answers as slowly as a store that is far away.
The server has all objects in its memory before. GETs and each way of ours run in fresh processes, ours after an epoch's
beginning from a local disk. *Two lanes* is the order that the page on object stores recommends for few shards.

*Growth*: a process a size; the first batch, opening included. `torch.randperm` is what shuffling by a table takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from loading.growth import growth
from loading.page import conclusions, table
from loading.remote import remote
from loading.runs import PEERS, add_peers, run_peer
from pages import conditions, save
from signals import BATCH, make_arrays, save_arrays, write_arm

HERE = Path(__file__).parent
PARTS = ("windows", "peers", "compressed", "cameras", "remote", "growth")
CAMERA_READERS = ("seqlake Loader", "pyav", "lerobot", "lerobot DataLoader")
IN_SAMPLES = ("mosaicml", "litdata", "webdataset", "datasets", "lance")  # they know no video
SMALL: dict[str, Any] = {
    "sequences": 60,
    "shards": [20],
    "widths": [16],
    "rounds": 1,
    "seconds": 0.2,
    "workers": [2],
    "episodes": 1,
    "frames": 60,
    "camera_peers": ["webdataset"],
    "camera_rounds": 1,
    "camera_widths": [2],
    "remote_sequences": 60,
    "remote_rounds": 1,
    "growth": [10_000, 100_000],
}


def windows(args: argparse.Namespace, arrays: Path, folder: Path) -> list[dict[str, Any]]:
    """The loader beside memcpy and an expert's memmap."""
    loaded = {path.stem: np.load(path) for path in arrays.glob("*.npy")}
    found = []
    for shards in args.shards:
        dataset = folder / f"arm-{shards}"
        write_arm(dataset, loaded, shards)
        for width in args.widths:
            for cores in args.cores:
                plan = {"arrays": str(arrays), "dataset": str(dataset), "shards": shards, "width": width}
                plan |= {"cores": cores, "batch": args.batch, "rounds": args.rounds, "seconds": args.seconds}
                (folder / "state.json").write_text(json.dumps(plan))
                command = [sys.executable, HERE / "loading" / "state.py", folder / "state.json"]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
                found.append(json.loads(done.stdout.splitlines()[-1]))
                print(found[-1], flush=True)
    return found


def peers(args: argparse.Namespace, arrays: Path, folder: Path) -> list[dict[str, Any]]:
    """Everybody's windows and sequences."""
    tasks = [
        {"work": "windows", "width": width, "batch": args.batch, "seconds": 5 * args.seconds} for width in args.widths
    ]
    tasks.append({"work": "sequences", "batch": 16, "seconds": 5 * args.seconds})
    found = []
    for name in ("seqlake", *args.peers):
        plan = {"arrays": str(arrays), "folder": str(folder / name), "workers": args.workers, "tasks": tasks}
        for one in run_peer(name, plan, args):
            found.append(one)
            print(one, flush=True)
    return found


def compressed(args: argparse.Namespace, arrays: Path, folder: Path) -> list[dict[str, Any]]:
    """Windows out of compressed local files that are larger than the memory given."""
    everything = sum(path.stat().st_size for path in arrays.glob("*.npy"))
    memory = everything * 9 // 10 if args.small else everything // 3  # in small files what frames the values is most
    task = {"work": "compressed", "width": 16, "batch": args.batch, "seconds": 5 * args.seconds, "memory": memory}
    found = []
    for name in ("seqlake", *(name for name in ("datasets", "lance") if name in args.peers)):
        plan = {"arrays": str(arrays), "folder": str(folder / name), "workers": args.workers, "tasks": [task]}
        for one in run_peer(name, plan, args):
            found.append({"memory_mb": memory / 1e6, **one})
            print(found[-1], flush=True)
    return found


def cameras(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Random windows of two cameras."""
    from films import prepare
    from video import Reader, in_rounds

    place = args.films or folder / "films"
    place.mkdir(parents=True, exist_ok=True)
    names = [*CAMERA_READERS, *(f"{name} samples" for name in args.camera_peers)]
    prepare(place, episodes=args.episodes, frames=args.frames, alike=False)
    readers = [Reader(name, place / "plan.json", args.environments) for name in names]
    tasks = {f"random windows of {n}": {"order": "random", "width": n, "files": "h264"} for n in args.camera_widths}
    asked = [(name, task, reader) for name, task in tasks.items() for reader in readers]
    results, missing = in_rounds(
        asked, rounds=args.camera_rounds, seconds=args.seconds, minutes=10, ours=CAMERA_READERS[0]
    )
    return {"results": results, "missing": missing}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="set sizes so that each part shows that it works")
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--shards", type=int, nargs="*", default=[3, 200])
    parser.add_argument("--widths", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--cores", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of each measurement in each round")
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2], help="worker processes of peers")
    parser.add_argument("--films", type=Path, help="where the videos are kept; a temporary folder by default")
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--camera-peers", nargs="*", default=list(IN_SAMPLES), choices=IN_SAMPLES)
    parser.add_argument("--camera-rounds", type=int, default=18)
    parser.add_argument("--camera-widths", type=int, nargs="*", default=[2, 16])
    parser.add_argument("--remote-sequences", type=int, default=6000)
    parser.add_argument("--remote-rounds", type=int, default=5)
    parser.add_argument("--growth", type=int, nargs="*", default=[10**4, 10**6, 10**8])
    add_peers(parser)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "loader.json")
    first, _ = parser.parse_known_args()
    if first.small:
        parser.set_defaults(**SMALL)
    return parser.parse_args()


def main() -> None:
    args = options()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-loader-", dir=args.folder))
    try:
        report: dict[str, Any] = {**conditions(), "sequences": args.sequences, "small": args.small}
        arrays = save_arrays(folder / "arrays", make_arrays(args.sequences))
        parts = {
            "windows": lambda: windows(args, arrays, folder),
            "peers": lambda: peers(args, arrays, folder),
            "compressed": lambda: compressed(args, arrays, folder),
            "cameras": lambda: cameras(args, folder),
            "remote": lambda: remote(args, folder / "remote"),
            "growth": lambda: growth(folder, args.growth),
        }
        for name in args.only:
            print(f"-- {name}", flush=True)
            report[name] = parts[name]()
        report["checks"] = conclusions(report)
    finally:
        shutil.rmtree(folder)
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
