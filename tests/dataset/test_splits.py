"""Splits: the same on every machine, groups together, shares as promised, no byte of a signal rewritten."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from seqlake.dataset import opening
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.reshaping.splits import assign_splits, plan_splits, split_names
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.testing import samples

EXPECTED = ["train", "train", "train", "val", "val", "train", "train", "train", "train", "train"]
SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    return samples.arm_dataset(tmp_path / "arm", count=30, rows_per_shard=10)


def rows(count: int, **columns: object) -> object:
    table = pa.table({"sequence_id": [f"ep_{n:05d}" for n in range(count)], **columns})
    return opening.scan(table)


def test_assigned_splits_are_a_column_beside_the_shards(ds: Dataset) -> None:
    before = sorted(Path(ds.location, "data").iterdir())
    version = assign_splits(ds, SHARES)
    assert version.operation == "evolve"
    assert sorted(Path(ds.location, "data").iterdir()) == before
    found = Counter(ds.select("split").to_arrow().column(0).to_pylist())
    assert {name: found[name] for name in SHARES} == plan_splits(ds, SHARES)
    assign_splits(ds, {"a": 0.5, "b": 0.5}, seed=3, stratify="task")
    assert set(ds.select("split").to_arrow().column(0).to_pylist()) == {"a", "b"}
    assert sorted(Path(ds.location, "data").iterdir()) == before


def test_the_assignment_is_written_down() -> None:
    """Another result here would move everybody's test set."""
    assert list(split_names(rows(10), SHARES).values()) == EXPECTED
    assert split_names(rows(10), SHARES) == split_names(rows(10), SHARES, seed=0)


def test_sequences_that_come_later_move_none() -> None:
    few, many = split_names(rows(100), SHARES), split_names(rows(1000), SHARES)
    assert few.items() <= many.items()
    assert split_names(rows(100), SHARES, seed=1) != few


def test_shares_hold_on_average_and_another_seed_is_independent() -> None:
    first, second = (split_names(rows(20_000), SHARES, seed=seed) for seed in (0, 1))
    for name, share in SHARES.items():
        count = list(first.values()).count(name)
        assert abs(count - share * 20_000) < 4 * (20_000 * share * (1 - share)) ** 0.5
    both = sum(first[one] == second[one] == "train" for one in first)
    assert abs(both - 0.64 * 20_000) < 4 * (20_000 * 0.64 * 0.36) ** 0.5


def test_groups_stay_together_and_null_is_a_group_of_one() -> None:
    robots = [None if n % 5 == 0 else f"robot {n % 7}" for n in range(2000)]
    named = split_names(rows(2000, robot=robots), {"a": 0.5, "b": 0.5}, group="robot")
    by_robot: dict[str, set[str]] = {}
    for robot, name in zip(robots, named.values(), strict=True):
        if robot is not None:
            by_robot.setdefault(robot, set()).add(name)
    assert all(len(names) == 1 for names in by_robot.values())
    alone = [name for robot, name in zip(robots, named.values(), strict=True) if robot is None]
    assert set(alone) == {"a", "b"}


@given(
    st.lists(st.sampled_from(["x", "y", "z", None]), min_size=1, max_size=60),
    st.sampled_from([SHARES, {"a": 0.5, "b": 0.5}, {"a": 1.0, "b": 0.0}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}]),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=60)
def test_stratified_shares_hold_within_one(strata: list[str | None], shares: dict[str, float], seed: int) -> None:
    named = split_names(rows(len(strata), stratum=pa.array(strata, pa.string())), shares, seed=seed, stratify="stratum")
    for stratum in set(strata):
        mine = [name for value, name in zip(strata, named.values(), strict=True) if value == stratum]
        for name, share in shares.items():
            assert abs(mine.count(name) - share * len(mine)) < 1 + 1e-9


def test_groups_and_strata_together() -> None:
    robots = [f"r{n // 4}" for n in range(400)]
    kinds = ["arm" if n < 200 else "leg" for n in range(400)]
    named = list(split_names(rows(400, robot=robots, kind=kinds), SHARES, group="robot", stratify="kind").values())
    for kind in (slice(0, 200), slice(200, 400)):
        assert Counter(named[kind]) == {"train": 160, "val": 20, "test": 20}
    assert all(len(set(named[n : n + 4])) == 1 for n in range(0, 400, 4))


def test_bad_shares_and_columns(ds: Dataset) -> None:
    for shares in ({}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": float("nan"), "b": 1}):
        with pytest.raises(ValidationError, match="[Ss]hare"):
            assign_splits(ds, shares)
    with pytest.raises(SchemaMismatchError, match="No column 'tusk'"):
        assign_splits(ds, SHARES, group="tusk")
    assert "split" not in opening.open(ds.location).schema
