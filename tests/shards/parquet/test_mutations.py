"""Datasets with changed bytes, read in every public way: the right answer, one that `validate` doubts, or our error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ... import counting  # noqa: TID252 - tests are no package that could be named

SCRIPT = Path(__file__).with_name("reading.py")
KINDS = ["shards", "archive", "resealed", "mixtrain.json", "foreign"]
WORST = ["bare", "wrong", "refused", "right", "other"]
# Its text is all that says what columns mean: another text is another, valid meaning.
CAUSES = {"mixtrain.json": "a name or a number in mixtrain.json became another valid one; it has no checksum"}


def read_changed(kind, seed, count, folder):
    """Runs in processes of their own: a crash is counted, and the next one goes on behind it."""
    counts, first = counting.Counts(reader=f"parquet, {kind}"), 0
    while first < count:
        command = [sys.executable, str(SCRIPT), kind, str(seed), str(first), str(count - first), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 * count)
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


def take(counts, line):
    counts.mutations += 1
    worst = min((how for how, _ in line["ends"].values()), key=WORST.index)
    worst = "right" if worst == "other" else worst
    setattr(counts, worst, getattr(counts, worst) + 1)
    counts.over_2_gb += line["peak_kb"] > 2_000_000
    for way, (how, told) in line["ends"].items():
        if how in {"bare", "wrong"}:
            counts.examples.append(f"{line['number']} {way}: {how} {told}")


@pytest.mark.mutations
@pytest.mark.parametrize("kind", KINDS)
def test_changed_datasets(kind, tmp_path):
    counts = read_changed(kind, 3, 8, tmp_path)
    allowed = {"wrong"} if kind in CAUSES else set()
    assert not set(counts.bad()) - allowed, counts.examples
    assert counts.refused + counts.right > 0


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_datasets(kind, tmp_path):
    counts = read_changed(kind, counting.seeded(4), counting.many(500), tmp_path)
    counts.cause = CAUSES.get(kind, "") if counts.wrong else ""
    counts.keep()
    print(counts)
    assert not set(counts.bad()) - ({"wrong"} if kind in CAUSES else set()), counts.examples
