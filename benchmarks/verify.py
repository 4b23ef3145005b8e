"""What `sl.open(..., verify="first")` costs: windows of the first and of the second epoch, with it and without.

2 000 sequences of 150 to 450 steps, `action` [T, 12] and `obs_state` [T, 48] in float32, in 3 shards. Prints a table
and writes `benchmarks/results/verify.json` and `verify.md`.

    python benchmarks/verify.py

How it is measured. Every measurement is a process of its own, since pages are compared once a process; with and without
alternate, and the median counts. Times are of the processor, on one thread, so that what else runs hardly counts. The
file is in the page cache. Ratios are of the time with it to the time without.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from pages import conditions, save
from signals import BATCH, DIMS, make_arrays, write_arm

HERE = Path(__file__).parent
CHILD = """
import json, sys, time
import torch
import seqlake as sl
torch.set_num_threads(1)
place, width, verify = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
ds = sl.open(place, verify=verify)
found = {}
if width:
    loader = sl.Loader(ds, window=sl.Window({dims}, edges="drop"), batch_size={batch})
    len(loader)
    for epoch in ("first", "second"):
        start = time.process_time()
        samples = sum(len(batch["start"]) for batch in loader)
        found[epoch] = (time.process_time() - start) / samples * 1e9
else:
    for epoch in ("first", "second"):
        start = time.process_time()
        steps = sum(len(batch.column("action").flatten()) for batch in ds.to_arrow().to_batches())
        found[epoch] = (time.process_time() - start) / steps * 1e9
print(json.dumps(found))
"""


def measure(place: Path, width: int, verify: str) -> dict[str, float]:
    """Nanoseconds a window (a step, of a stream) in the first and in the second epoch of a fresh process."""
    code = CHILD.replace("{dims}", f"dict.fromkeys({list(DIMS)}, range(width))").replace("{batch}", str(BATCH))
    command = [sys.executable, "-c", code, str(place), str(width), verify]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(place: Path, width: int, rounds: int) -> dict[str, Any]:
    """Medians and their ratios."""
    times: dict[str, dict[str, list[float]]] = {"": {"first": [], "second": []}, "first": {"first": [], "second": []}}
    for _ in range(rounds):
        for verify, epochs in times.items():
            for epoch, nanoseconds in measure(place, width, verify).items():
                epochs[epoch].append(nanoseconds)
    medians = {verify: {e: statistics.median(n) for e, n in epochs.items()} for verify, epochs in times.items()}
    ratios = {epoch: medians["first"][epoch] / medians[""][epoch] for epoch in ("first", "second")}
    return {"width": width, "off": medians[""], "on": medians["first"], "ratio": ratios}


def table(report: dict[str, Any]) -> str:
    """The page."""
    where = f"{report['when']}, {report['machine']}, {report['python']}, torch {report['torch']}"
    lines = [
        '# What verify="first" costs',
        "",
        f"{where}; {report['megabytes']:.0f} MB of signals.",
        "Processor time of one thread, in nanoseconds a window (of the stream: a step).",
        "`benchmarks/verify.py` writes this page and says how it measures.",
        "",
        '| read | epoch | off | `verify="first"` | ratio |',
        "|---|---|---|---|---|",
    ]
    for found in report["results"]:
        what = f"loader, W={found['width']}" if found["width"] else "`to_arrow`"
        for epoch in ("first", "second"):
            off, on, ratio = found["off"][epoch], found["on"][epoch], found["ratio"][epoch]
            lines.append(f"| {what} | {epoch} | {off:,.0f} | {on:,.0f} | {ratio:.2f} |")
    once = report["seconds_once"]
    lines += ["", f"Comparing every page once took {once:.2f} s: {report['megabytes'] / once:,.0f} MB/s on one thread."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2000)
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 16, 64, 0], help="0: as an Arrow stream")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "verify.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="seqlake-verify-", dir=args.folder))
    try:
        arrays = make_arrays(args.sequences)
        write_arm(folder / "arm", arrays, 3)
        report: dict[str, Any] = {**conditions(), "torch": torch.__version__}
        report["megabytes"] = sum(arrays[name].nbytes for name in DIMS) / 1e6
        report["results"] = [compare(folder / "arm", width, args.rounds) for width in args.widths]
        steps = int(arrays["lengths"].sum())
        streams = [found for found in report["results"] if not found["width"]]
        extra = [(found["on"]["first"] - found["off"]["first"]) * steps / 1e9 for found in streams]
        report["seconds_once"] = statistics.median(extra) if extra else float("nan")
    finally:
        shutil.rmtree(folder)
    save(args.out, report, table(report))


if __name__ == "__main__":
    main()
