"""Files of Lance and Vortex with changed bytes: the right answer or our error, and a comparison that finds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import counting, numbered  # noqa: TID252 - tests are no package that could be named

SCRIPT = Path(__file__).with_name("changing.py")
PLACES = ["file", "archive", "trailer", "pointer", "end", "foreign"]
KINDS = [*(f"{engine} {place}" for engine in ("lance", "vortex") for place in PLACES), "lance values"]
QUICK = {"lance file", "lance end", "vortex file", "vortex end", "vortex trailer"}


def read(kind, seed, count):
    engine, _, place = kind.partition(" ")
    counts = numbered.read_changed(SCRIPT, f"{engine}, bytes of {place}", kind, seed, count)
    allowed = {"wrong", "crash"} if place == "foreign" else set()  # our own files never get to the engine unproven
    counts.cause = (
        f"files of {engine} have no checksums: a changed value is a value, and some end the process in its library"
        if allowed and counts.bad()
        else ""
    )
    return counts, set(counts.bad()) - allowed


@pytest.mark.sampled(every=4)
@pytest.mark.mutations
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in QUICK])
def test_changed_bytes(kind):
    counts, bad = read(kind, 11, 25)
    assert counts.mutations == 25
    assert not bad, counts.examples


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_bytes(kind):
    counts, bad = read(kind, counting.seeded(12), counting.many(3000))
    counts.keep()
    assert not bad, counts.examples
