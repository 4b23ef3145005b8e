"""What batches hold, against slices taken by hand from the rows they come from."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqlake.errors import CacheTooSmallError, SchemaMismatchError
from seqlake.spec.column_types import Embedding, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.training import gather
from seqlake.training.cache import Cache
from seqlake.training.loader import Loader
from seqlake.windows.spec import Whole, Window, seconds

LENGTHS = [5, 0, 9, 1, -1, 14, 3, 30, 2, 7]
KINDS = ["flat", "parquet", "archive", "arrow"]


def by_hand(cell, offsets, anchor, edges, dim, dtype=np.float32):
    """One window, step by step, the slow and obvious way."""
    values, mask = [], []
    steps = 0 if cell is None else len(cell)
    for offset in offsets:
        index = anchor + offset
        there = 0 <= index < steps
        mask.append(there)
        if there:
            values.append(cell[index])
        elif edges == "clamp" and steps:
            values.append(cell[min(max(index, 0), steps - 1)])
        else:
            values.append(np.zeros(dim, dtype))
    return np.array(values, dtype).reshape(len(offsets), dim), np.array(mask)


def delivered(loader):
    """Every valid sample of a pass, one by one."""
    for batch in loader:
        valid = batch.get("valid", np.ones(len(batch["start"]), bool))
        for k in np.flatnonzero(valid):
            yield {name: values[k] for name, values in batch.items()}


OFFSETS = st.one_of(
    st.builds(lambda a, n: range(a, a + n), st.integers(-6, 6), st.integers(1, 6)),
    st.lists(st.integers(-7, 9), min_size=1, max_size=4),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=OFFSETS,
    second=OFFSETS,
    stride=st.integers(1, 5),
    edges=st.sampled_from(["pad", "drop", "clamp"]),
    batch=st.integers(1, 9),
    kind=st.sampled_from(["flat", "arrow"]),
    lengths=st.lists(st.integers(-1, 12), min_size=1, max_size=8),
)
def test_windows_equal_slices_by_hand(readable, arm, first, second, stride, edges, batch, kind, lengths):
    schema, rows = arm(lengths)
    window = Window({"action": first, "obs_state": second}, stride=stride, edges=edges)
    source = readable(schema, rows, shards=min(3, len(rows)), kind=kind)
    seen = Counter()
    for sample in delivered(Loader(source, window=window, batch_size=batch).tail("pad")):
        row, start = source.row(sample["sequence_id"]), int(sample["start"])
        seen[row["sequence_id"], start] += 1
        for name, offsets, dim in (("action", list(first), 3), ("obs_state", list(second), 5)):
            values, mask = by_hand(row[name], offsets, start, edges, dim)
            np.testing.assert_array_equal(sample[name], values)
            np.testing.assert_array_equal(sample[f"{name}_mask"], mask)
            assert sample[name].dtype == np.float32
    expected = Counter()
    reach = [*first, *second]
    for row in rows:
        steps = 0 if row["action"] is None else len(row["action"])
        for anchor in range(0, steps, stride):
            if edges != "drop" or (anchor + min(reach) >= 0 and anchor + max(reach) < steps):
                expected[row["sequence_id"], anchor] += 1
    assert seen == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("edges", ["pad", "clamp"])
def test_every_kind_of_shard_gives_the_same_batches(readable, arm, kind, edges):
    schema, rows = arm(LENGTHS)
    window = Window({"action": range(-3, 5), "obs_state": [-2, 0, 5], "task": None, "reward": None}, edges=edges)
    one = list(Loader(readable(schema, rows, kind="flat"), window=window, batch_size=4, seed=5))
    two = list(Loader(readable(schema, rows, kind=kind), window=window, batch_size=4, seed=5))
    assert len(one) == len(two) > 10
    for a, b in zip(one, two, strict=True):
        assert list(a) == list(b)
        for name in a:
            assert a[name].dtype == b[name].dtype
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("edges", ["pad", "drop", "clamp"])
def test_numpy_and_torch_gather_the_same_bits(readable, arm, monkeypatch, edges):
    schema, rows = arm(LENGTHS)
    source = readable(schema, rows)
    window = Window({"action": range(-2, 6), "obs_state": [0, 3]}, edges=edges)
    with_torch = list(Loader(source, window=window, batch_size=5))
    monkeypatch.setattr(gather, "torch", lambda: None)
    without = list(Loader(source, window=window, batch_size=5))
    assert len(with_torch) == len(without) > 3
    for a, b in zip(with_torch, without, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_a_batch_is_fresh_memory_and_reuse_is_asked_for(readable, arm):
    source = readable(*arm([40, 50]))
    loader = Loader(source, window={"action": range(4)}, batch_size=8)
    kept = list(loader)
    again = [
        {name: values.copy() for name, values in batch.items()}
        for batch in Loader(source, window={"action": range(4)}, batch_size=8)
    ]
    for a, b in zip(kept, again, strict=True):
        np.testing.assert_array_equal(a["action"], b["action"])
    ring = Loader(source, window={"action": range(4)}, batch_size=8).reuse_buffers()
    first = None
    for batch, expected in zip(ring, again, strict=True):
        np.testing.assert_array_equal(batch["action"], expected["action"])
        first = batch["action"] if first is None else first
        assert np.shares_memory(first, batch["action"])


@pytest.mark.parametrize(
    "value_type",
    [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.int64(), pa.float16(), pa.float64(), pa.bool_()],
)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_every_number_type_comes_out_as_itself(readable, value_type, kind):
    dtype = np.dtype(value_type.to_pandas_dtype())
    schema = Schema({"x": Trajectory(dim=2, dtype=value_type)})
    random = np.random.default_rng(1)
    rows = [{"sequence_id": str(k), "x": random.integers(0, 2, (6, 2)).astype(dtype)} for k in range(4)]
    source = readable(schema, rows, shards=2, kind=kind)
    for sample in delivered(Loader(source, window={"x": range(-1, 3)}, batch_size=3).tail("pad")):
        values, _ = by_hand(source.row(sample["sequence_id"])["x"], range(-1, 3), int(sample["start"]), "pad", 2, dtype)
        assert sample["x"].dtype == dtype
        np.testing.assert_array_equal(sample["x"], values)


def test_one_number_a_step_and_shaped_steps(readable):
    schema = Schema(
        {
            "speed": pa.field("speed", pa.list_(pa.float64())),
            "pose": Trajectory(dim=9, shape=(3, 3)),
        }
    )
    schema = schema.with_columns({"speed": _column("speed", pa.list_(pa.float64()), Trajectory())})
    rows = [
        {"sequence_id": "a", "speed": np.arange(5.0), "pose": np.arange(45, dtype=np.float32).reshape(5, 9)},
        {"sequence_id": "b", "speed": np.arange(7.0), "pose": np.arange(63, dtype=np.float32).reshape(7, 9)},
    ]
    for kind in ("parquet", "arrow"):
        loader = Loader(
            readable(schema, rows, shards=2, kind=kind),
            window={"speed": range(2), "pose": range(2)},
            batch_size=3,
            shuffle=False,
        )
        batch = next(iter(loader))
        assert batch["speed"].tolist() == [[0, 1], [1, 2], [2, 3]]
        assert batch["pose"].shape == (3, 2, 3, 3)
        np.testing.assert_array_equal(batch["pose"][1, 0], np.arange(9, 18).reshape(3, 3))


def _column(name, arrow, kind):
    from seqlake.spec.schema import Column

    return Column(name, arrow, kind)


def test_scalars_vectors_and_files_give_one_value_a_sample(readable):
    schema = Schema({
        "task": pa.string(), "count": pa.int32(), "done": pa.bool_(), "when": pa.timestamp("us"),
        "text": Embedding(dim=3), "cam": Video(fps=30), "action": Trajectory(dim=1),
    })  # fmt: skip
    rows = [
        {"sequence_id": "a", "task": "x", "count": 7, "done": True, "when": 5, "text": np.array([1, 2, 3], "f4"),
         "cam": "a.mp4", "action": np.zeros((1, 1), "f4")},
        {"sequence_id": "b", "action": np.zeros((1, 1), "f4")},
    ]  # fmt: skip
    window = {"action": range(1), **dict.fromkeys(["task", "count", "done", "when", "text", "cam"])}
    for kind in ("parquet", "arrow"):
        (batch,) = Loader(readable(schema, rows, shards=1, kind=kind), window=window, batch_size=2, shuffle=False)
        assert batch["sequence_id"].tolist() == ["a", "b"]
        assert batch["task"].tolist() == ["x", None]
        assert batch["cam"].tolist() == ["a.mp4", None]
        assert batch["count"].tolist() == [7, 0]
        assert batch["count"].dtype == np.int32
        assert batch["done"].tolist() == [True, False]
        assert batch["when"][0] == np.datetime64(5, "us")
        assert np.isnat(batch["when"][1])
        assert batch["text"].tolist() == [[1, 2, 3], [0, 0, 0]]
        for name in ("task", "count", "done", "when", "text", "cam"):
            assert batch[f"{name}_mask"].tolist() == [True, False]


def test_a_window_of_single_values_is_one_sample_a_row(readable, arm):
    schema, rows = arm([3, 4, 5])
    batches = list(Loader(readable(schema, rows), window={"task": None}, batch_size=2, shuffle=False))
    assert [b["task"].tolist() for b in batches] == [["task 0", "task 1"], ["task 2", "task 0"]]
    assert batches[1]["valid"].tolist() == [True, False]


def rated(**kinds):
    return Schema({name: Trajectory(dim=1, **kind) for name, kind in kinds.items()})


@pytest.mark.parametrize("kind", ["flat", "arrow"])
@pytest.mark.parametrize("edges", ["pad", "clamp", "drop"])
def test_columns_at_other_rates_give_the_latest_sample_at_or_before(readable, kind, edges):
    schema = rated(slow={"fps": 10}, mid={"fps": 20}, fast={"fps": 50}).select(["sequence_id", "mid", "slow", "fast"])
    rows = []
    for k, steps in enumerate([9, 4, 1]):
        seconds_long = steps / 20
        rows.append(
            {
                "sequence_id": str(k),
                "mid": np.arange(steps, dtype="f4")[:, None],
                "slow": np.arange(int(np.ceil(seconds_long * 10)), dtype="f4")[:, None],
                "fast": np.arange(int(seconds_long * 50), dtype="f4")[:, None],
            }
        )
    window = Window({"mid": range(-1, 2), "slow": [-2, 0, 1], "fast": range(-1, 3)}, edges=edges)
    source = readable(schema, rows, shards=2, kind=kind)
    count = 0
    for sample in delivered(Loader(source, window=window, batch_size=2).tail("pad")):
        count += 1
        row, start = source.row(sample["sequence_id"]), int(sample["start"])
        steps = len(row["mid"])
        for name, rate, offsets in (("mid", 20, range(-1, 2)), ("slow", 10, [-2, 0, 1]), ("fast", 50, range(-1, 3))):
            for j, offset in enumerate(offsets):
                step = start + offset
                index = step * rate // 20
                there = 0 <= step < steps and index < len(row[name])
                assert sample[f"{name}_mask"][j] == there
                if there:
                    assert sample[name][j, 0] == index
                elif edges == "pad":
                    assert sample[name][j, 0] == 0
                else:
                    assert edges == "clamp"
                    last = min(len(row[name]), -(-steps * rate // 20)) - 1
                    assert sample[name][j, 0] == min(max(index, 0), last)
    if edges != "drop":
        assert count == 9 + 4 + 1
    else:
        assert count > 0


def test_offsets_in_seconds_follow_the_clock_exactly(readable):
    schema = rated(a={"fps": 50}, b={"fps": 20})
    rows = [{"sequence_id": "x", "a": np.arange(100.0, dtype="f4")[:, None], "b": np.arange(40.0, dtype="f4")[:, None]}]
    window = Window({"a": seconds(-0.1, 0.0, every=0.02), "b": seconds(-0.1, 0.1, every=0.05)}, edges="drop")
    batches = list(Loader(readable(schema, rows, shards=1), window=window, batch_size=1, shuffle=False))
    for batch in batches:
        start = int(batch["start"][0])
        assert batch["a"][0, :, 0].tolist() == [start + k for k in range(-5, 0)]
        # sample j of b is taken at j / 20 s; asked for at start / 50 + t
        assert batch["b"][0, :, 0].tolist() == [(2 * start + 10 * t) // 5 for t in (-1, -0.5, 0, 0.5)]
    assert int(batches[0]["start"][0]) == 5


@pytest.mark.parametrize("unit", ["nanoseconds", "seconds"])
def test_time_stamps_decide_where_a_column_names_them(readable, unit):
    stamps = np.array([0, 40, 130, 150, 300]) * 1_000_000 + 10**15
    clocked = pa.int64() if unit == "nanoseconds" else pa.float64()
    schema = Schema(
        {
            "tick": Trajectory(dim=1, fps=20),
            "cell": Trajectory(dim=1, timestamps="when"),
            "when": _column("when", pa.list_(clocked), Trajectory()),
        }
    )
    when = stamps if unit == "nanoseconds" else (stamps - 10**15) / 1e9
    rows = [
        {"sequence_id": "x", "tick": np.zeros((7, 1), "f4"), "cell": np.arange(5, dtype="f4")[:, None], "when": when}
    ]
    for kind in ("flat", "arrow"):
        source = readable(schema, rows, shards=1, kind=kind)
        loader = Loader(source, window={"tick": [0], "cell": [-1, 0]}, batch_size=7, shuffle=False)
        (batch,) = loader
        times = [50 * k for k in range(7)]
        expected = [max(i for i, t in enumerate([0, 40, 130, 150, 300]) if t <= now) for now in times]
        assert batch["cell"][:, 1, 0].tolist() == expected
        assert batch["cell_mask"][:, 0].tolist() == [False] + [True] * 6


@pytest.mark.parametrize("kind", ["flat", "arrow"])
@pytest.mark.parametrize("edges", ["pad", "clamp"])
def test_a_column_longer_than_the_sequence_ends_with_it(readable, kind, edges):
    schema = rated(a={"fps": 10}, b={"fps": 10}, fast={"fps": 20})
    rows = [
        {name: np.arange(1, n + 1, dtype="f4")[:, None] for name, n in (("a", 3), ("b", 6), ("fast", 40))}
        | {"sequence_id": "x"}
    ]
    source = readable(schema, rows, shards=1, kind=kind)
    window = Window({"a": [0], "b": range(3), "fast": [0, 1]}, edges=edges)
    (batch,) = Loader(source, window=window, batch_size=3, shuffle=False)
    last = 3 if edges == "clamp" else 0
    assert batch["b"][..., 0].tolist() == [[1, 2, 3], [2, 3, last], [3, last, last]]
    assert batch["b_mask"].tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert batch["fast"][..., 0].tolist() == [[1, 3], [3, 5], [5, 6 if edges == "clamp" else 0]]


def test_without_time_stamps_there_is_no_sample(readable):
    schema = Schema(
        {
            "tick": Trajectory(dim=1, fps=20),
            "cell": Trajectory(dim=1, timestamps="when"),
            "when": _column("when", pa.list_(pa.int64()), Trajectory()),
        }
    )
    rows = [{"sequence_id": "x", "tick": np.zeros((2, 1), "f4"), "cell": np.ones((2, 1), "f4")}]
    source = readable(schema, rows, shards=1, kind="arrow")
    (batch,) = Loader(source, window={"tick": [0], "cell": [0]}, batch_size=2, shuffle=False)
    assert not batch["cell_mask"].any()
    assert not batch["cell"].any()


def test_without_a_clock_unlike_columns_are_refused(readable):
    schema = rated(a={}, b={})
    rows = [{"sequence_id": "x", "a": np.zeros((4, 1), "f4"), "b": np.zeros((8, 1), "f4")}]
    source = readable(schema, rows, shards=1)
    with pytest.raises(SchemaMismatchError, match="4 and 8 steps"):
        len(Loader(source, window={"a": range(2), "b": range(2)}, batch_size=1))
    assert len(Loader(source, window={"b": range(2)}, batch_size=1)) == 8
    with pytest.raises(ValueError, match="no clock"):
        len(Loader(source, window={"b": seconds(0, 1, every=0.5)}, batch_size=1))


def test_whole_sequences_padded_and_packed(readable, arm):
    schema, rows = arm([3, 0, 5, -1])
    for kind in ("flat", "arrow"):
        source = readable(schema, rows, shards=2, kind=kind)
        (padded,) = Loader(source, window=Whole(["action", "task"]), batch_size=4, shuffle=False)
        assert padded["action"].shape == (4, 5, 3)
        assert padded["action_length"].tolist() == [3, 0, 5, 0]
        assert padded["task"].tolist() == [row["task"] for row in rows]
        np.testing.assert_array_equal(padded["action"][0, :3], rows[0]["action"])
        assert not padded["action"][0, 3:].any()
        (packed,) = Loader(source, window=Whole(["action"], packed=True), batch_size=4, shuffle=False)
        assert packed["action_offsets"].tolist() == [0, 3, 3, 8, 8]
        np.testing.assert_array_equal(packed["action"], np.concatenate([rows[0]["action"], rows[2]["action"]]))


def test_samples_are_rows_and_their_lengths_are_not_asked_for(readable):
    schema = Schema({"tokens": Trajectory(dim=2), "label": pa.int64()}, id=None)
    rows = [{"tokens": np.full((4, 2), k, "f4"), "label": k} for k in range(6)]
    source = readable(schema, rows, shards=2)
    loader = Loader(source, window={"tokens": range(4), "label": None}, batch_size=3, seed=1)
    batches = list(loader)
    assert source.asked == []
    labels = [n for batch in batches for n in batch["label"].tolist()]
    assert sorted(labels) == list(range(6))
    for batch in batches:
        assert "sequence_id" not in batch
        np.testing.assert_array_equal(batch["tokens"][:, 0, 0], batch["label"])
        assert batch["tokens_mask"].all()


def test_shards_that_must_be_decoded_are_held_to_the_limit(readable, arm):
    schema, rows = arm([100] * 6)
    source = readable(schema, rows, kind="archive")
    need = 600 * 3 * 4
    window = {"action": range(2)}
    with pytest.raises(CacheTooSmallError, match="repack") as caught:
        list(Loader(source, window=window, batch_size=2, cache=Cache(limit=need - 1)))
    assert "8 kB" in str(caught.value)
    assert len(list(Loader(source, window=window, batch_size=2, cache=Cache(limit=need)))) == 300
    with pytest.raises(ValueError, match="Cache limit"):
        Loader(source, window=window, batch_size=2, cache=Cache("/nvme/cache", limit="much"))


def test_columns_that_cannot_be_windowed_are_refused_by_name(readable, arm):
    schema, rows = arm([4])
    source = readable(schema, rows, shards=1)
    with pytest.raises(SchemaMismatchError, match="Did you mean 'action'"):
        len(Loader(source, window={"actoin": range(2)}, batch_size=1))
    with pytest.raises(SchemaMismatchError, match="'task'"):
        len(Loader(source, window={"task": range(2)}, batch_size=1))
    with pytest.raises(SchemaMismatchError, match="'action'"):
        len(Loader(source, window={"action": None}, batch_size=1))


def test_ragged_steps_are_refused_with_the_column(readable):
    schema = Schema({"x": Trajectory()})
    rows = [{"sequence_id": "a", "x": [[1.0], [1.0, 2.0]]}]
    source = readable(schema, rows, shards=1, kind="arrow")
    with pytest.raises(SchemaMismatchError, match="'x'"):
        list(Loader(source, window={"x": range(1)}, batch_size=1))


def test_the_clock_of_length_and_duration_is_found_in_the_first_rows(readable):
    """No signal declares a rate; 60 steps in 2 seconds are 30 a second, whatever a slower camera declares."""
    schema = Schema(
        {
            "length": pa.int64(),
            "duration_seconds": pa.float64(),
            "cam": Video(fps=15),
            "a": Trajectory(dim=1),
        }
    )
    rows = [
        {"sequence_id": "x", "a": np.arange(50.0, dtype="f4")[:, None]},
        {"sequence_id": "y", "a": np.arange(60.0, dtype="f4")[:, None], "length": 60, "duration_seconds": 2.0},
    ]
    for kind in ("parquet", "arrow"):
        source = readable(schema, rows, shards=2, kind=kind)
        loader = Loader(source, window={"a": seconds(0, 1, every=0.5)}, batch_size=110, shuffle=False)
        assert "30 steps per second (length / duration" in str(loader.plan())
        (batch,) = loader
        assert batch["a"][50, :, 0].tolist() == [0, 15]
    given = Loader(source, window=Window({"a": seconds(0, 1, every=0.5)}, clock=10), batch_size=110, shuffle=False)
    assert next(iter(given))["a"][50, :, 0].tolist() == [0, 5]


def test_rows_without_a_column_at_the_clocks_rate_are_as_long_as_they_say(readable):
    schema = Schema({"length": pa.int64(), "a": Trajectory(dim=1, fps=30), "slow": Trajectory(dim=1, fps=10)})
    slow = np.arange(4.0, dtype="f4")[:, None]
    rows = [
        {"sequence_id": "own", "length": 99, "a": np.zeros((6, 1), "f4"), "slow": slow},
        {"sequence_id": "says", "length": 7, "slow": slow},
        {"sequence_id": "scaled", "slow": slow},
    ]
    loader = Loader(readable(schema, rows), window={"a": [0], "slow": [0]}, batch_size=100, shuffle=False)
    (batch,) = loader
    names = batch["sequence_id"][batch["valid"]].tolist()
    assert {name: names.count(name) for name in names} == {"own": 6, "says": 7, "scaled": 12}
