"""Changes that a script makes and reads, one numbered line of JSON each, in processes of their own.

A script says `{"begun": 7}` before it reads the seventh change, and then
`{"number": 7, "ends": {way: [how, text]}, "peak_kb": 1}`, with `how` one of `WORST`: so a crash and a hang are counted,
and the next process goes on behind them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .counting import Counts

WORST = ["bare", "wrong", "refused", "right", "other"]
GB_2 = 2_000_000  # in kB


def read_changed(script: Path, reader: str, kind: str, seed: int, count: int, *folders: Path) -> Counts:
    """Counts of `count` changes of a kind."""
    counts, first = Counts(reader=reader), 0
    while first < count:
        command = [sys.executable, str(script), kind, str(seed), str(first), str(count - first), *map(str, folders)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 * max(count, 2))
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr[-3000:]
        for line in lines:
            if "ends" in line:
                take(counts, line)
        last = max(line.get("begun", -1) for line in lines)
        ended = max((line.get("number", -1) for line in lines), default=-1)
        if ended < last:
            counts.mutations += 1
            counts.hang += "Timeout" in done.stderr
            counts.crash += "Timeout" not in done.stderr
            counts.examples.append(f"{kind} {seed} {last}: {done.stderr[-300:]}")
        first = last + 1
    return counts


def take(counts: Counts, line: dict[str, Any]) -> None:
    """Count one change by the worst that any way of reading it came to."""
    counts.mutations += 1
    worst = min((how for how, _ in line["ends"].values()), key=WORST.index)
    worst = "right" if worst == "other" else worst
    setattr(counts, worst, getattr(counts, worst) + 1)
    counts.over_2_gb += line["peak_kb"] > GB_2
    for way, (how, told) in line["ends"].items():
        if how in {"bare", "wrong"}:
            counts.examples.append(f"{line['number']} {way}: {how} {told}")
