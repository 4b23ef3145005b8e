"""LeRobot folders in place: the drop-in class and `Loader` beside the official class, on the same files in one run.

    benchmarks/peers/setup                        once, before: the environment of LeRobot and torchcodec
    python benchmarks/lerobot.py --folder DIR     everything; takes half an hour
    python benchmarks/lerobot.py --small          that each part works, in minutes; its numbers mean little

Prints a table and writes `benchmarks/results/lerobot.json` and `lerobot.md`.

How it is measured. The official package writes all folders (v3.0, its default AV1 with a keyframe every other frame).
Each measurement is a process of its own: seconds from the folder to the first batch, imports not counted, then windows
a second, shuffled. The ways of one task take turns, round after round; a ratio is taken within a round, and the median
counts. All ways must agree on what one window holds. *official* and *drop-in* are in torch's DataLoader, with 0 and
with 2 workers where nothing is decoded (the better counts), else with 2; *uint8* is the drop-in's `return_uint8`,
which lerobot 0.6 has, too, and the package measured here has not. *torchcodec* is windows of the same videos by hand in
two threads, without signals, batches and order: what the decoder gives at most where windows come at random. *Four
together* is `VisitSampler(visits=4)` and `Shuffle(visits=4)`: four neighbouring windows come in one batch, and what
they share is decoded once. The first round finds the user's cache empty, later ones do not.

*Conversion*: a folder of 1 000 episodes with two cameras, which the package's own tool merged, beside `cp -r` of it and
`sync`; with the shared videos kept (`files="copy"`) and split by packets.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loading.runs import add_peers, python_of
from pages import Checks, conditions, save, verdicts
from peers.lerobot_folders import CAMERAS

import seqlake as sl

HERE = Path(__file__).parent
SRC = HERE.parent / "src"
LONGEST = 1800  # seconds that one process may take
FULL: dict[str, Any] = {
    "state": {"episodes": 100, "frames": 300},
    "films": {"episodes": 4, "frames": 300, "size": [480, 640]},
    "many": {"episodes": 10, "frames": 60, "size": [240, 320], "times": 100},
}
SMALL: dict[str, Any] = {
    "state": {"episodes": 8, "frames": 100},
    "films": {"episodes": 2, "frames": 60, "size": [240, 320]},
    "many": {"episodes": 2, "frames": 20, "size": [96, 96], "times": 4},
}
SIGNALS = ("observation.state", "action")
VISITS, TOGETHER = 4, "four together"


def tasks(small: bool) -> dict[str, dict[str, Any]]:
    """What is read, and by whom."""
    by_workers = [
        (f"{way}, {n} workers", {"way": way, "workers": n}) for way in ("official", "drop-in") for n in (0, 2)
    ]
    state = dict(by_workers) | {"Loader": {"way": "loader", "workers": 0}}
    films = {name: one for name, one in state.items() if one["workers"] or one["way"] == "loader"}
    uint8 = {"way": "drop-in", "workers": 2, "uint8": True}
    films |= {"drop-in uint8, 2 workers": uint8, "torchcodec": {"way": "torchcodec", "workers": 2}}
    together = {
        f"{TOGETHER}: {name}": {**films[name], "visits": VISITS}
        for name in films
        if name.startswith(("drop-in", "Loader"))
    }
    batches = {2: 16, 16: 8}
    asked: dict[str, dict[str, Any]] = {
        "windows of 16, signals": {
            "folder": "state", "width": 16, "batch": 64 if small else 256, "features": SIGNALS, "ways": state
        }
    }  # fmt: skip
    for width, batch in batches.items():
        ways = films | (together if width > VISITS else {})
        asked[f"windows of {width}, two cameras"] = {
            "folder": "films", "width": width, "batch": batch, "features": (*CAMERAS, *SIGNALS), "ways": ways
        }  # fmt: skip
    return asked


class Bench:
    """One run: where the folders are, and how processes are started."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.args = folder, args
        self.theirs = python_of("lerobot", args.environments).absolute()
        self.folders = SMALL if args.small else FULL

    def write(self) -> None:
        """The folders, by the official package."""
        self.run(self.theirs, "lerobot_folders.py", {"folder": str(self.folder), "folders": self.folders}, "write")

    def run(self, python: Path, script: str, said: dict[str, Any], *verb: str) -> dict[str, Any]:
        """What a process answers."""
        plan = self.folder / "task.json"
        plan.write_text(json.dumps(said))
        ours = python != self.theirs
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **({"PYTHONPATH": str(SRC)} if ours else {}),
        }
        done = subprocess.run(
            [python, HERE / "peers" / script, *verb, plan],
            capture_output=True, text=True, check=False, timeout=LONGEST, env=environment
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if verb != ("write",) and not lines:
            return {"failed": done.stderr[-500:]}
        if verb == ("write",) and not (self.folder / "many" / "meta" / "stats.json").exists():
            raise SystemExit(done.stderr[-2000:])
        return dict(json.loads(lines[-1])) if lines else {}

    def rounds(self) -> list[dict[str, Any]]:
        """Every way of every task, round after round."""
        found: list[dict[str, Any]] = []
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        for number in range(self.args.rounds):
            for name, task in tasks(self.args.small).items():
                for way, options in task["ways"].items():
                    said = {**task, **options, "root": str(self.folder / task["folder"])}
                    said |= {"seconds": self.args.seconds, "frames": self.folders["films"]["frames"], "ways": None}
                    codec = options["way"] == "torchcodec"
                    python = self.theirs if codec or options["way"] == "official" else Path(sys.executable)
                    script, verb = ("lerobot_codec.py", ()) if codec else ("lerobot_folders.py", ("read",))
                    one = {"task": name, "way": way, "round": number, **self.run(python, script, said, *verb)}
                    found.append(one)
                    print(one, flush=True)
        agree(found)
        return found

    def conversion(self) -> dict[str, float]:
        """Seconds to copy a folder and to convert it, the median of rounds that take turns."""
        source, spent = self.folder / "many", dict[str, list[float]]()
        for _ in range(self.args.rounds):
            for name in ("cp", "copy", "split"):
                target = self.folder / "converted"
                shutil.rmtree(target, ignore_errors=True)
                subprocess.run(["sync"], check=True)
                begin = time.perf_counter()
                if name == "cp":
                    subprocess.run(["cp", "-r", source, target], check=True)
                else:
                    sl.convert(source, target, files=name)
                subprocess.run(["sync"], check=True)
                spent.setdefault(name, []).append(time.perf_counter() - begin)
                print(name, spent[name][-1], flush=True)
        shutil.rmtree(self.folder / "converted", ignore_errors=True)
        nbytes = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
        return {**{name: statistics.median(each) for name, each in spent.items()}, "mb": nbytes / 1e6}


def agree(found: list[dict[str, Any]]) -> None:
    """Refuse a run whose ways do not read the same."""
    for task in dict.fromkeys(one["task"] for one in found):
        windows = [one["window"] for one in found if one["task"] == task and "window" in one]
        for name in windows[0] if windows else ():
            values = [window[name] for window in windows]
            close = 0.01 if name in CAMERAS else 1e-6
            assert max(values) - min(values) <= close, f"{task}, {name}: the ways read {values}."


def best(results: list[dict[str, Any]], task: str, way: str, number: int) -> float | None:
    """Windows a second of a round, of all settings of a way."""
    rates = [
        one["per_second"]
        for one in results
        if (one["task"], one["round"]) == (task, number) and one["way"].startswith(way) and "per_second" in one
    ]
    return max(rates, default=None)


def ratio(results: list[dict[str, Any]], task: str, way: str, other: str) -> float | None:
    """How many times as many windows one way reads as another."""
    pairs = [
        (best(results, task, way, number), best(results, task, other, number))
        for number in sorted({one["round"] for one in results})
    ]
    known = [one / two for one, two in pairs if one and two]
    return statistics.median(known) if known else None


def conclusions(report: dict[str, Any]) -> Checks:
    """What was to be reached, and what was."""
    checks, results = Checks(), report["results"]
    signals, short, long = tasks(small=False)
    checks.check("drop-in of official, signals", ratio(results, signals, "drop-in", "official"), 10)
    checks.check("Loader of official, signals", ratio(results, signals, "Loader", "official"), 500)
    for way in ("drop-in", "Loader"):
        checks.check(f"{way} of official, windows of 16", ratio(results, long, way, "official"), 5)
        together = ratio(results, long, f"{TOGETHER}: {way}", "official")
        checks.check(f"{way} of official, windows of 16, {TOGETHER}", together, 5)
    for name, task in (("windows of 2", short), ("windows of 16", long)):
        checks.check(f"Loader of torchcodec by hand, {name}", ratio(results, task, "Loader", "torchcodec"), 0.95)
    times = report["conversion"]
    checks.check("cp -r and sync of conversion, shared files kept", times["cp"] / times["copy"], 0.5)
    checks.check("cp -r and sync of conversion, split by packets", times["cp"] / times["split"], 0.15)
    return checks


def table(report: dict[str, Any]) -> str:
    """The page."""
    results = report["results"]
    lines = [
        "# LeRobot folders in place",
        "",
        f"{report['when']}, {report['machine']}, {report['python']}; load {report['load_before']:.1f} before.",
        f"Medians of {report['rounds']} rounds. `benchmarks/lerobot.py` writes this page and says how it measures.",
        *(["", "**A run of `--small`: its numbers mean little.**"] if report["small"] else []),
        "",
        "| | | windows a second | of official | first batch, s | again, s |",
        "|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(one["task"] for one in results):
        for way in dict.fromkeys(one["way"] for one in results if one["task"] == task):
            mine = [one for one in results if (one["task"], one["way"]) == (task, way)]
            rates = [one["per_second"] for one in mine if "per_second" in one]
            firsts = [one["first_batch_s"] for one in mine if "first_batch_s" in one]
            if not rates:
                lines.append(f"| {task} | {way} | failed | | | |")
                continue
            of = ratio(results, task, way, "official")
            first = f"{firsts[0]:.2f} | {statistics.median(firsts[1:] or firsts):.2f}" if firsts else " | "
            lines.append(f"| {task} | {way} | {statistics.median(rates):,.1f} | {of or 0:,.1f} | {first} |")
    times = report["conversion"]
    lines += [
        "",
        (
            f"A folder of {times['mb']:.0f} MB: `cp -r` and `sync` {times['cp']:.2f} s, converted with shared files "
            f"kept {times['copy']:.2f} s, split by packets {times['split']:.2f} s."
        ),
        *verdicts(report["checks"]),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=0, help="5, or 2 with --small")
    parser.add_argument("--seconds", type=float, default=0, help="of each measurement: 6, or 1 with --small")
    parser.add_argument("--small", action="store_true", help="little of everything")
    add_peers(parser)
    parser.add_argument("--folder", type=Path, help="where the folders are kept; a temporary one by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "lerobot.json")
    args = parser.parse_args()
    args.rounds = args.rounds or (2 if args.small else 5)
    args.seconds = args.seconds or (1 if args.small else 6)
    folder = (args.folder or Path(tempfile.mkdtemp(prefix="seqlake-lerobot-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        report: dict[str, Any] = {**conditions(), "small": args.small, "rounds": args.rounds}
        bench = Bench(folder, args)
        bench.write()
        report["results"] = bench.rounds()
        report["conversion"] = bench.conversion()
        report["checks"] = conclusions(report)
    finally:
        if args.folder is None:
            shutil.rmtree(folder)
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
