"""Random windows of video: seqlake beside PyAV by hand, torchcodec and LeRobot, in one run on the same files.

Episodes of two 640x480 cameras (a drawn arm before a textured ground, with sensor noise), 300 frames at 30 a second.
Prints a table and writes `benchmarks/results/video.json` and `video.md`.

    benchmarks/peers/setup                              once, before: the environment of torchcodec and LeRobot
    python benchmarks/video.py --folder DIR --prepare   encode, then stop: takes minutes
    python benchmarks/video.py --folder DIR             measure

How it is measured. Every reader runs in a process of its own that stays, with two threads, and reads windows of the
same files: H.264 by seqlake's training profile. Each delivers RGB in fresh memory, LeRobot its float32. *lerobot* is
its decoding function in two threads that share nothing, the best that can be made of it; *lerobot DataLoader* is the
same function as its users run it, in two worker processes of torch's DataLoader, and what targets are held to: the
bare function spends most of a short window in FFmpeg's decoder, as every reader must. One reader works at a time;
rounds alternate between all; ratios are taken within a round and the median counts. Before, each is held to frames that
were decoded in sequence. A second comparison reads each library's own encoding: AV1 with a keyframe every other frame,
as LeRobot writes, of the quality (SSIM of luma) that seqlake's has.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import av
import numpy as np
from films import prepare
from loading.runs import add_peers, python_of
from pages import Checks, conditions, save, verdicts

import seqlake as sl
from seqlake import media
from seqlake.files.stores import open_blob
from seqlake.protocols import Source

HERE = Path(__file__).parent
SECONDS = 0.5  # of each measurement in each round
OURS = ("seqlake", "seqlake Loader")
READERS = (*OURS, "pyav", "torchcodec", "torchcodec approximate", "lerobot", "lerobot DataLoader")
LONGEST = 120  # seconds that an answer may take
OWN_ENCODINGS = ("seqlake", "torchcodec approximate", "lerobot")
TASKS = {
    "random windows of 2": {"order": "random", "width": 2, "files": "h264"},
    "random windows of 16": {"order": "random", "width": 16, "files": "h264"},
    "sequential, 16 at a time": {"order": "sequential", "width": 16, "files": "h264"},
}


# ---- measuring
class Reader:
    """One way to read, in a process of its own; `label` is what it is called where the same way reads several files."""

    def __init__(self, way: str, plan: Path, environments: Path, *, label: str = "") -> None:
        self.way, self.name = way, label or way
        own = way.removesuffix(" samples") if way.endswith("samples") else "lerobot"
        self.python = python_of("seqlake" if way in {*OURS, "pyav", "memcpy"} else own, environments).absolute()
        self.missing = "" if self.python.exists() else "run benchmarks/peers/setup"
        if self.missing:
            return
        command = [self.python, HERE / "peers" / "video_readers.py", way, plan]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )  # fmt: skip

    def rate(self, task: dict[str, Any], seconds: float) -> dict[str, float] | None:
        """Frames per second and CPU time of one; None once it has failed."""
        if self.missing:
            return None
        assert self.process.stdin
        assert self.process.stdout
        try:
            self.process.stdin.write(json.dumps({**task, "seconds": seconds}) + "\n")
            self.process.stdin.flush()
            came, _, _ = select.select([self.process.stdout], [], [], LONGEST)
            answer = self.process.stdout.readline() if came else ""
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.process.kill()
            self.missing = f"failed, or took more than {LONGEST} s; see above"
            return None
        return dict(json.loads(answer))

    @property
    def is_slow_to_begin(self) -> bool:
        """Whether it starts worker processes anew each time: then it has every sixth round."""
        return self.way.endswith(("DataLoader", "samples"))

    def close(self) -> None:
        if hasattr(self, "process"):
            self.process.stdin.close()  # type: ignore[union-attr]
            self.process.wait(timeout=60)


def asked_of(readers: list[Reader]) -> list[tuple[str, dict[str, Any], Reader]]:
    """Every task by every reader that has it."""
    asked = [(name, task, reader) for name, task in TASKS.items() for reader in readers]
    for files, label in (("h264", "H.264, seqlake's"), ("av1", "AV1, LeRobot's")):
        task = {"order": "random", "width": 2, "files": files}
        asked += [(f"windows of 2 of {label}", task, one) for one in readers if one.name in OWN_ENCODINGS]
    return asked


def in_rounds(
    asked: list[tuple[str, dict[str, Any], Reader]], *, rounds: int, seconds: float, minutes: float, ours: str = OURS[0]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Tasks by readers, round after round; no round begins that would go beyond the minutes.

    Args:
        asked: Name of a task, the task, who does it.
        rounds: How many.
        seconds: Of each task in each round.
        minutes: Of all.
        ours: The reader whose ratio to each is given.
    """
    begin = time.monotonic()
    readers = list(dict.fromkeys(reader for _, _, reader in asked))
    found: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    try:
        for _, task, reader in asked:
            if not reader.is_slow_to_begin:
                reader.rate(task, 0.05)  # opens, checks, warms
        for number in range(rounds):
            started = time.monotonic()
            for name, task, reader in asked:
                if reader.is_slow_to_begin and number % 6:
                    continue
                rate = reader.rate(task, seconds)
                if rate is not None:
                    found.setdefault((name, reader.name), {})[number] = rate
            now = time.monotonic()
            print(f"round {number + 1} of {rounds}, {now - begin:.0f} s", flush=True)
            if now - begin + now - started > 60 * minutes:
                break
    finally:
        for reader in readers:
            reader.close()
    results = []
    for (name, reader), rates in found.items():
        own = found.get((name, ours), rates)
        results.append(
            {
                "task": name,
                "reader": reader,
                "rounds": len(rates),
                "frames_per_second": statistics.median(one["frames_per_second"] for one in rates.values()),
                "cpu_ms_per_frame": statistics.median(one["cpu_ms_per_frame"] for one in rates.values()),
                "seqlake_of_it": statistics.median(
                    own[number]["frames_per_second"] / one["frames_per_second"] for number, one in rates.items()
                ),
                "seqlake_of_it_by_cpu": statistics.median(
                    one["cpu_ms_per_frame"] / own[number]["cpu_ms_per_frame"] for number, one in rates.items()
                ),
            }
        )
    return results, {one.name: one.missing for one in readers if one.missing}


def indexing(path: Path) -> dict[str, float]:
    """The packet index of a ten-minute file."""
    source = Source(blob=open_blob(path), column=sl.Video())
    times, opens = [], []
    for _ in range(5):
        begin = time.perf_counter()
        kept = media.index(source)[0]
        times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        decoder = media.open(Source(blob=source.blob, column=source.column, index=kept))
        decoder.read(np.array([9000]))
        opens.append(time.perf_counter() - begin)
    return {
        "frames": len(decoder),
        "file_mb": path.stat().st_size / 1e6,
        "index_ms": 1e3 * statistics.median(times),
        "index_kb": len(kept) / 1e3,
        "bytes_per_packet": len(kept) / len(decoder),
        "first_frame_with_kept_index_ms": 1e3 * statistics.median(opens),
    }


# ---- what is said
def ratio(report: dict[str, Any], task: str, reader: str) -> float | None:
    found = [r for r in report["results"] if (r["task"], r["reader"]) == (task, reader)]
    return found[0]["seqlake_of_it"] if found else None


def conclusions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What was to be reached, and what was."""
    checks = Checks()
    check = checks.check
    for width, codec, lerobot in ((2, 1.0, 2.5), (16, 0.95, 4.0)):
        task = f"random windows of {width}"
        check(f"of PyAV by hand, {task}", ratio(report, task, "pyav"), 0.95)
        loader = ratio(report, task, "seqlake Loader")
        for name in ("torchcodec", "torchcodec approximate"):
            views = ratio(report, task, name)
            check(f"views of {name}, {task}", views, codec)
            check(f"Loader of {name}, {task}", views / loader if views and loader else None, codec)
        check(f"of LeRobot in its DataLoader, {task}", ratio(report, task, "lerobot DataLoader"), lerobot)
    files = report["files"]
    both = [r for r in report["results"] if r["reader"] == "seqlake" and r["task"].startswith("windows of 2 of ")]
    if len(both) == 2:
        ours, theirs = (one["frames_per_second"] for one in both)
        check("seqlake's encoding of LeRobot's at equal SSIM, windows of 2, both read by seqlake", ours / theirs, 1.6)
    check("its bytes of theirs", files["h264"]["bytes_per_frame"] / files["av1"]["bytes_per_frame"], 0.5, at_most=True)
    return checks


def cell(one: dict[str, Any]) -> str:
    by_cpu = f", {one['seqlake_of_it_by_cpu']:.2f}" if one["cpu_ms_per_frame"] else ""
    return f"{one['frames_per_second']:,.0f} ({one['seqlake_of_it']:.2f}{by_cpu})"


def table(report: dict[str, Any]) -> str:
    readers = [name for name in READERS if any(r["reader"] == name for r in report["results"])]
    rounds, load = max(r["rounds"] for r in report["results"]), report["load_before"]
    lines = [
        "# Random windows of video",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}, PyAV {report['pyav']}; load {load:.1f} before.",
        f"Medians of {rounds} rounds.",
        "RGB frames per second on two threads. In brackets `seqlake` of each in the same rounds, by frames per second",
        "and by CPU time for a frame, which other work on the machine disturbs less.",
        "`benchmarks/video.py` writes this page and says how it measures.",
        "",
        "| | " + " | ".join(readers) + " |",
        "|---" * (1 + len(readers)) + "|",
    ]
    for task in dict.fromkeys(r["task"] for r in report["results"]):
        by = {r["reader"]: r for r in report["results"] if r["task"] == task}
        cells = [cell(by[name]) if name in by else "" for name in readers]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    lines += [f"\n{name}: {why}." for name, why in report["missing"].items()]
    lines += ["", "| files | bytes a frame | SSIM of luma |", "|---|---|---|"]
    for name, made in report["files"].items():
        label = f"AV1, keyframe every 2, preset 12, crf {made['crf']}" if "crf" in made else "H.264, training profile"
        lines.append(f"| {name}: {label} | {made['bytes_per_frame']:,.0f} | {made['ssim']:.4f} |")
    one = report["index"]
    index = (
        f"Packet index of a ten-minute file ({one['frames']:,} frames, {one['file_mb']:.0f} MB): {one['index_ms']:.0f} "
        f"ms, {one['index_kb']:.0f} kB ({one['bytes_per_packet']:.1f} bytes a packet). With a kept index the file is "
        f"open and a frame of its middle decoded in {one['first_frame_with_kept_index_ms']:.1f} ms."
    )
    lines += ["", index, *verdicts(report["checks"])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement in each round")
    parser.add_argument("--minutes", type=float, default=10, help="no round begins that would go beyond")
    add_peers(parser)
    parser.add_argument("--folder", type=Path, help="where the videos are kept; a temporary folder by default")
    parser.add_argument("--prepare", action="store_true", help="make the videos, then stop")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "video.json")
    args = parser.parse_args()
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="seqlake-video-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        plan = prepare(folder)
        if args.prepare:
            return
        report: dict[str, Any] = {
            **conditions(),
            "pyav": av.__version__,
            "files": {
                name: {key: value for key, value in made.items() if key not in {"dataset", "videos"}}
                for name, made in plan["files"].items()
            },
        }
        asked = asked_of([Reader(name, folder / "plan.json", args.environments) for name in READERS])
        report["results"], report["missing"] = in_rounds(
            asked, rounds=args.rounds, seconds=args.seconds, minutes=args.minutes
        )
        report["index"] = indexing(folder / "ten-minutes.mp4")
        report["checks"] = conclusions(report)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
