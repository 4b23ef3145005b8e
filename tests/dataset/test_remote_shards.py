"""Shards of a table in a bucket: asked for bytes, not about themselves, and found where a later version put them."""

from __future__ import annotations

import numpy as np
import pytest

import seqlake as sl

SCHEMA = sl.Schema({"action": sl.Trajectory(dim=2)})


def rows(first: int, count: int) -> list[dict]:
    return [{"sequence_id": f"ep_{n}", "action": np.full((20, 2), n, np.float32)} for n in range(first, first + count)]


@pytest.fixture
def arm(s3_bucket) -> tuple[str, dict[str, str]]:
    """A table of three shards."""
    uri, storage = f"{s3_bucket.uri}/arm", s3_bucket.storage
    dataset = sl.create(uri, SCHEMA, storage=storage)
    for first in (0, 4, 8):
        dataset.append(rows(first, 4))
    return uri, storage


def test_an_epoch_asks_for_each_shard_once(arm, asked, tmp_path) -> None:
    uri, storage = arm
    dataset = sl.open(uri, storage=storage)
    loader = sl.Loader(dataset, window={"action": range(4)}, batch_size=8, cache=sl.Cache(tmp_path / "cache"))
    asked.clear()
    assert sum(len(batch["start"]) for batch in loader) == 12 * 20
    of_shards = [(verb, path) for verb, path in asked if path.startswith("data/")]
    assert len(of_shards) == len(set(of_shards)) == 3
    assert {verb for verb, _ in of_shards} == {"get"}


def test_a_shard_that_a_later_version_replaced_is_still_found(arm, asked, tmp_path) -> None:
    uri, storage = arm
    old = sl.open(uri, storage=storage)
    held = old.sequence("ep_5")
    sl.open(uri, storage=storage).upsert([{"sequence_id": "ep_5", "action": np.zeros((3, 2), np.float32)}])
    asked.clear()
    assert np.array_equal(held["action"], np.full((20, 2), 5, np.float32))
    loader = sl.Loader(old, window=sl.Whole(["action"]), batch_size=12, shuffle=False, cache=sl.Cache(tmp_path / "c"))
    (batch,) = loader
    assert np.array_equal(batch["action"][:, :, 0], np.repeat(np.arange(12.0)[:, None], 20, 1))
    retired = [path for verb, path in asked if verb == "get" and "retired" in path]
    assert retired  # it was found where it is now
