"""Which rows of which shards become which part."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqlake.conversion.convert import plan
from seqlake.spec.findings import Finding
from seqlake.spec.schema import Schema


@dataclass
class Described:
    key: str
    rows: int
    nbytes: int


def source(shards, **more):
    described = [Described(f"s{n}#0", rows, nbytes) for n, (rows, nbytes) in enumerate(shards)]
    schema = Schema({"a": pa.int64(), "b": pa.string()})
    return SimpleNamespace(schema=schema, root="/", fingerprint="f", shards=lambda: described, **more)


@given(
    shards=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5000)), max_size=12),
    limit=st.integers(1, 6000),
)
@settings(suppress_health_check=[HealthCheck.too_slow])  # of a machine that does other work
def test_every_row_once_in_order_and_parts_are_bounded(shards, limit):
    planned = plan(source(shards), bytes_per_part=limit)
    rows = [(p.shard.key, row) for task in planned.tasks for p in task.pieces for row in range(p.start, p.stop)]
    assert rows == [(f"s{n}#0", row) for n, (count, _) in enumerate(shards) for row in range(count)]
    assert [task.part for task in planned.tasks] == list(range(len(planned.tasks)))
    assert planned.rows == sum(count for count, _ in shards)
    for task in planned.tasks:
        nbytes = sum((p.stop - p.start) * max(p.shard.nbytes / p.shard.rows, 1) for p in task.pieces)
        assert task.rows == 1 or nbytes <= limit + 1e-6


def test_small_shards_are_joined_and_large_ones_cut():
    planned = plan(source([(2, 10), (2, 10), (10, 1000)]), bytes_per_part=300)
    assert [[(p.shard.key, p.start, p.stop) for p in task.pieces] for task in planned.tasks] == [
        [("s0#0", 0, 2), ("s1#0", 0, 2), ("s2#0", 0, 2)],
        [("s2#0", 2, 5)],
        [("s2#0", 5, 8)],
        [("s2#0", 8, 10)],
    ]


@pytest.mark.parametrize(
    ("shards", "count"),
    [
        ([(1000, 95_000)], 1),
        ([(1000, 315_000)], 4),
        ([(10, 64_000)] * 10, 8),
        ([(30, 9_000)] * 40, 4),
        ([(900, 9e6)], 16),
    ],
)
def test_parts_are_equal_and_as_many_as_workers_share_evenly(shards, count):
    planned = plan(source(shards), least=100_000)
    rows = [task.rows for task in planned.tasks]
    assert len(rows) == count
    assert max(rows) - min(rows) <= count  # each may have a row more than its share


def test_no_part_is_larger_than_the_most_that_one_worker_takes():
    planned = plan(source([(1000, 1 << 30)] * 4))
    assert [task.rows for task in planned.tasks] == [125] * 32


def test_a_plan_prints_itself_and_is_json():
    finding = Finding(code="x-missing", severity="warning", message="a split is not here")
    planned = plan(
        source([(3, 100)], check=lambda depth: [finding] if depth == "metadata" else []), dropped={"b": "why"}
    )
    text = str(planned)
    for words in ("3 sequences", "100 bytes", "1 parts", "a: int64", "Dropped: b (why)", "a split is not here"):
        assert words in text
    assert "b: string" not in text
    assert json.loads(json.dumps(planned.to_json()))["columns"] == {"sequence_id": "string", "a": "int64"}


def test_no_rows_no_parts():
    assert plan(source([])).tasks == []
    assert plan(source([(0, 10)])).tasks == []
    with pytest.raises(ValueError, match="at least 1"):
        plan(source([]), bytes_per_part=0)
