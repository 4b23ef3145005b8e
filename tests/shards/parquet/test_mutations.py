"""Datasets with changed bytes, read in every public way: the right answer, one that `validate` doubts, or our error."""

from __future__ import annotations

from pathlib import Path

import pytest

from ... import counting, numbered  # noqa: TID252 - tests are no package that could be named

SCRIPT = Path(__file__).with_name("reading.py")
ENGINES = ["lance", "vortex"]
OF_ENGINES = [f"{engine} {how}" for engine in ENGINES for how in ("shards", "archive", "resealed", "foreign")]
KINDS = ["shards", "archive", "resealed", "mixtrain.json", "foreign", *OF_ENGINES]
QUICK = {"shards", "archive", "resealed", "mixtrain.json", "foreign", "lance resealed", "vortex resealed"}
# Its text is all that says what columns mean: another text is another, valid meaning.
CAUSES = {
    "mixtrain.json": "a name or a number in mixtrain.json became another valid one; it has no checksum",
    **{f"{engine} foreign": f"files of {engine} have no checksums: a changed value is a value" for engine in ENGINES},
}


def read(kind, seed, count, folder):
    engine, _, how = kind.partition(" ")
    reader = f"{engine} datasets, {how}" if engine in ENGINES else f"parquet, {kind}"
    return numbered.read_changed(SCRIPT, reader, kind, seed, count, folder)


@pytest.mark.sampled(every=4)
@pytest.mark.mutations
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in QUICK])
def test_changed_datasets(kind, tmp_path):
    counts = read(kind, 3, 4 if kind not in OF_ENGINES else 2, tmp_path)
    allowed = {"wrong"} if kind in CAUSES else set()
    assert not set(counts.bad()) - allowed, counts.examples
    assert counts.refused + counts.right > 0


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_datasets(kind, tmp_path):
    counts = read(kind, counting.seeded(4), counting.many(500), tmp_path)
    counts.cause = CAUSES.get(kind, "") if counts.wrong else ""
    counts.keep()
    print(counts)
    assert not set(counts.bad()) - ({"wrong"} if kind in CAUSES else set()), counts.examples
