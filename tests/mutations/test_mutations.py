"""Whatever is changed in a file, reading it ends in the right answer or in an error of ours, and it ends.

The shards, logs, media and formats have such tests in their own rooms; here is what no room has alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named
from .mutating import CASES

SCRIPT = Path(__file__).with_name("mutating.py")
LONG = 1000
ENGINES = ("lance shards", "vortex shards", "lance dataset, manifests")
RARE = {one for one in CASES if one.startswith(("lance ", "vortex ")) and one not in ENGINES}  # like these, in the soak
# Files that others wrote have no checksums, and their engines' libraries end the process over some.
DECODED_UNPROVEN = {"lance shards of others", "vortex shards of others", "lance dataset of others"}
MOST_ENDS = 10  # crashes and hangs, after which no more are looked for
COUNTED = ("mutations", "right", "refused", "over_2_gb", "bare", "wrong")
FAST = {"user's cache", "receipts", "statistics", "mixtrain.json"}


def counted(reader: str, seed: int, count: int, folder: Path, *, patience: float) -> Counts:
    """In processes of their own: a crash and a hang are seen, counted, and gone on from with other changes."""
    found = Counts(reader=reader)
    while found.mutations < count and found.crash + found.hang < MOST_ENDS:
        ends = found.crash + found.hang
        place = folder / str(ends)
        place.mkdir()
        script = [sys.executable, "-W", "error::ResourceWarning", str(SCRIPT)]
        command = [*script, reader, str(seed + 7919 * ends), str(count - found.mutations), str(place)]
        crash = hang = 0
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
            said, told, crash = done.stdout, done.stderr, int(done.returncode != 0)
        except subprocess.TimeoutExpired as slow:
            said, told = (out.decode() if isinstance(out, bytes) else out or "" for out in (slow.stdout, slow.stderr))
            hang = 1
        part = json.loads((said.splitlines() or ["{}"])[-1])
        for name in COUNTED:
            setattr(found, name, getattr(found, name) + part.get(name, 0))
        found.cause = part.get("cause", found.cause)
        found.examples += part.get("examples", [])
        if not (crash or hang):
            break
        found.mutations, found.crash, found.hang = found.mutations + 1, found.crash + crash, found.hang + hang
        found.examples += told.splitlines()[-30:]
    return found


def check(found: Counts, reader: str) -> None:
    if not CASES[reader].cause:
        found.cause = ""
    found.keep()
    assert found.mutations
    allowed = {"wrong"} if CASES[reader].cause else set()
    if reader in DECODED_UNPROVEN:
        allowed.add("crash")
    assert not found.bad().keys() - allowed, (found.bad(), found.examples)


@pytest.mark.sampled(every=6)
@pytest.mark.mutations
@pytest.mark.parametrize("reader", [reader for reader in CASES if reader not in RARE])
def test_changed_files(reader, tmp_path) -> None:
    check(counted(reader, 7, 30 if reader in FAST else 3, tmp_path, patience=240), reader)


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("reader", CASES)
def test_many_changed_files(reader, tmp_path) -> None:
    check(counted(reader, seeded(8), many(LONG if reader in FAST else LONG // 5), tmp_path, patience=3600), reader)
