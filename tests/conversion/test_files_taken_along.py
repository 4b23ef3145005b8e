"""Formats that take files along find them in the source's own store, whose options the target does not have."""

from __future__ import annotations

import numpy as np
import pytest

import seqlake as sl
from seqlake import plugins
from seqlake.abilities import Creates, TakesFiles, ability

TAKING = [
    name
    for name in plugins.names("formats")
    if ability(plugins.load("formats", name), TakesFiles) and ability(plugins.load("formats", name), Creates)
]


def test_these_do() -> None:
    assert TAKING == ["huggingface", "lerobot", "mcap", "rerun", "rlds", "webdataset", "zarr_replay"]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("to", TAKING)
def test_films_in_a_bucket_are_taken_along(to, s3_bucket, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Video(fps=10), "action": sl.Trajectory(dim=2, fps=10)}))
    frames = np.random.default_rng(0).integers(0, 255, (5, 32, 32, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, action=np.zeros((5, 2)))
    there = sl.convert(ds, f"{s3_bucket.uri}/ds-{to}", storage=s3_bucket.storage)
    source = sl.open(there.location, storage=s3_bucket.storage)
    sl.convert(source, tmp_path / "out", to=to, workers=1)
    assert any(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
