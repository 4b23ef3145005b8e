"""One window of one row, and the arithmetic of anchors, rates and edges, against the obvious way."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.errors import DamagedTableError, SchemaMismatchError
from seqlake.spec.column_types import Embedding, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.windows.assemble import assemble
from seqlake.windows.edges import anchors, nearest, sequence_steps
from seqlake.windows.spec import Window, seconds
from seqlake.windows.timestamps import Stamps, nanoseconds
from seqlake.windows.tracks import Track

SCHEMA = Schema(
    {
        "task": pa.string(),
        "text": Embedding(dim=2),
        "action": Trajectory(dim=2, fps=30),
        "slow": Trajectory(dim=1, fps=10),
        "cam": Video(fps=30),
    }
)
ROW = {
    "task": "pick",
    "text": np.array([1, 2], "f4"),
    "action": np.arange(20, dtype="f4").reshape(10, 2),
    "slow": np.arange(4, dtype="f4")[:, None],
    "cam": "a.mp4",
}


def test_one_window():
    sample = assemble(
        ROW.get, SCHEMA, Window({"action": range(-1, 2), "slow": [0], "task": None, "text": None, "cam": None}), 0
    )
    assert list(sample) == [
        "action",
        "action_mask",
        "slow",
        "slow_mask",
        "task",
        "task_mask",
        "text",
        "text_mask",
        "cam",
        "cam_mask",
        "start",
    ]
    assert sample["action"].tolist() == [[0, 0], [0, 1], [2, 3]]
    assert sample["action_mask"].tolist() == [False, True, True]
    assert sample["action"].dtype == np.float32
    assert (sample["task"], sample["cam"], sample["start"]) == ("pick", "a.mp4", 0)
    assert sample["text"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("edges", "values", "mask"),
    [("pad", [7, 8, 9, 0, 0], [1, 1, 1, 0, 0]), ("clamp", [7, 8, 9, 9, 9], [1, 1, 1, 0, 0])],
)
def test_edges(edges, values, mask):
    sample = assemble(ROW.get, SCHEMA, Window({"action": range(-2, 3)}, edges=edges), 9)
    assert sample["action"][:, 0].tolist() == [2 * v for v in values]
    assert sample["action_mask"].tolist() == [bool(m) for m in mask]
    with pytest.raises(ValueError, match="no step 10 clock steps"):
        assemble(ROW.get, SCHEMA, Window({"action": range(-2, 3)}, edges="drop"), 9)


def test_slow_columns_give_the_latest_sample_and_end_with_the_sequence():
    starts = [assemble(ROW.get, SCHEMA, Window({"action": [0], "slow": [0]}), k)["slow"][0, 0] for k in range(10)]
    assert starts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    after = assemble(ROW.get, SCHEMA, Window({"action": [0], "slow": [1]}), 9)
    assert not after["slow_mask"].any()


def test_null_cells_give_zeros_of_the_declared_shape():
    for edges in ("pad", "clamp"):
        sample = assemble({}.get, SCHEMA, Window({"action": range(3), "task": None, "text": None}, edges=edges), 0)
        assert sample["action"].tolist() == [[0, 0]] * 3
        assert not sample["action_mask"].any()
        assert sample["task"] is None
        assert not sample["task_mask"]
        assert sample["text"].tolist() == [0, 0]


def test_the_length_column_decides_where_no_column_is_at_the_clocks_rate():
    schema = SCHEMA.with_columns({"length": pa.int64()})
    row = {**ROW, "length": 5, "action": None}
    sample = assemble(row.get, schema, Window({"slow": range(8)}), 0)
    assert sample["slow_mask"].tolist() == [True] * 5 + [False] * 3


def test_seconds_need_a_clock_and_names_need_to_be_right():
    bare = Schema({"a": Trajectory(dim=1)})
    with pytest.raises(ValueError, match="no clock"):
        assemble({"a": np.zeros((3, 1))}.get, bare, Window({"a": seconds(0, 1, every=0.5)}), 0)
    given = assemble({"a": np.arange(9.0)[:, None]}.get, bare, Window({"a": seconds(0, 1, every=0.5)}, clock=4), 1)
    assert given["a"][:, 0].tolist() == [1, 3]
    with pytest.raises(SchemaMismatchError, match="'task'"):
        assemble(ROW.get, SCHEMA, Window({"task": range(2)}), 0)
    with pytest.raises(SchemaMismatchError, match="Did you mean 'action'"):
        assemble(ROW.get, SCHEMA, Window({"acton": range(2)}), 0)


def slow_truth(track, anchor, steps, count):
    """Which sample stands at each moment, in fractions."""
    found = []
    for offset in track.offsets:
        moment = anchor + Fraction(offset, track.denominator)
        index = (moment * track.ratio).__floor__()
        found.append((index, 0 <= moment < steps and index < count))
    return found


TRACKS = st.builds(
    lambda offsets, denominator, up, down: Track(
        column="x", offsets=tuple(offsets), denominator=denominator, ratio=Fraction(up, down)
    ),
    st.lists(st.integers(-20, 20), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 7),
    st.integers(1, 7),
)


@settings(deadline=None, max_examples=200)
@given(track=TRACKS, anchor=st.integers(0, 30), steps=st.integers(0, 30), count=st.integers(-1, 60))
def test_tracks_equal_fractions(track, anchor, steps, count):
    at, n, t = np.array([anchor]), np.array([steps]), np.array([count])
    numbers = track.samples(at)
    mask = track.exists(at, numbers, steps=n, counts=t)
    assert list(zip(numbers[0].tolist(), mask[0].tolist(), strict=True)) == slow_truth(track, anchor, steps, count)
    last = track.available(steps=n, counts=t)[0] - 1
    assert all(index <= last for index, there in slow_truth(track, anchor, steps, count) if there)


@settings(deadline=None, max_examples=200)
@given(
    tracks=st.lists(TRACKS, min_size=1, max_size=2),
    steps=st.integers(0, 25),
    counts=st.lists(st.integers(-1, 60), min_size=2, max_size=2),
    stride=st.integers(1, 5),
    edges=st.sampled_from(["pad", "drop", "clamp"]),
)
def test_anchors_are_counted_as_a_loop_would(tracks, steps, counts, stride, edges):
    tracks = [
        Track(column=str(k), offsets=t.offsets, denominator=t.denominator, ratio=t.ratio) for k, t in enumerate(tracks)
    ]
    own = {str(k): np.array([count]) for k, count in enumerate(counts)}
    expected = [
        anchor
        for anchor in range(0, steps, stride)
        if edges != "drop"
        or all(there for k, t in enumerate(tracks) for _, there in slow_truth(t, anchor, steps, counts[k]))
    ]
    first, number = anchors(tracks, steps=np.array([steps]), counts=own, stride=stride, edges=edges)
    assert [first + k * stride for k in range(int(number[0]))] == expected


def test_nearest_stays_inside():
    got = nearest(np.array([[-3, 0, 4, 9], [5, 5, 5, 5]]), np.array([5, 0]))
    assert got.tolist() == [[0, 0, 4, 4], [0, 0, 0, 0]]


def test_steps_of_a_sequence():
    same, slow = Track.of("a", [0]), Track.of("b", [0], ratio=Fraction(1, 3))
    counts = {"a": np.array([7, -1, -1, -1]), "b": np.array([2, 2, 2, -1])}
    assert sequence_steps([same, slow], counts=counts).tolist() == [7, 6, 6, 0]
    assert sequence_steps([same, slow], counts=counts, declared=np.array([9, 5, -1, -1])).tolist() == [7, 5, 6, 0]
    stamped = Track.of("a", [0], timestamps="t", clock=Fraction(10))
    with pytest.raises(ValueError, match="time stamps"):
        sequence_steps([stamped], counts=counts)
    assert sequence_steps([stamped], counts=counts, declared=np.array([1, 2, 3, -1])).tolist() == [1, 2, 3, 0]


def test_times_are_exact_far_from_the_start():
    track = Track.of("x", seconds(-0.5, 0.5, every=0.25), timestamps="t", clock=Fraction(30000, 1001))
    for anchor in (0, 1, 10**9):
        expected = [
            -((-(Fraction(anchor) * Fraction(1001, 30000) + Fraction(k, 4)) * 10**9) // 1) for k in (-2, -1, 0, 1)
        ]
        assert track.nanoseconds(np.array([anchor]))[0].tolist() == expected


def test_time_stamps_of_every_kind():
    times = np.array([-1, 0, 5, 10, 99])
    assert Stamps.of(np.array([100, 105, 110]), column="t").latest(times, origin=100).tolist() == [-1, 0, 1, 2, 2]
    assert Stamps.of(np.array([100, 105, 110]), column="t").latest(times, origin=95).tolist() == [-1, -1, 0, 1, 2]
    assert Stamps.of(None, column="t").latest(times, origin=0).tolist() == [-1] * 5
    assert Stamps.of(np.array([]), column="t").latest(times, origin=0).tolist() == [-1] * 5
    assert nanoseconds(np.array([0.0, 0.1])).tolist() == [0, 100_000_000]
    assert nanoseconds(np.array([0, 3], "m8[ms]")).tolist() == [0, 3_000_000]
    assert nanoseconds(np.array(["2020-01-01"], "M8[s]"))[0] == 1_577_836_800_000_000_000


@pytest.mark.parametrize(
    ("stamps", "what"),
    [
        (np.array([1.7e9, 1.7e9 + 5, 1.7e9 + 10], "f4"), "float64"),
        (np.array([0.0, 1.0, 0.5]), "at or after"),
        (np.array([0.0, np.nan, 0.5]), "at or after"),
        (np.array([np.nan]), "no time"),
        (np.array([0.0, np.inf]), "no time"),
        (np.array([5, 2**63 - 1]), "no time"),
        (np.array([5, 2**63 + 9], np.uint64), "no time"),
        (np.array(["NaT"], "M8[ns]"), "no time"),
    ],
)
def test_stamps_that_say_no_time_are_refused(stamps, what):
    with pytest.raises(DamagedTableError, match=f"'when'.*{what}"):
        Stamps.of(stamps, column="when")


def test_seconds_in_floats_are_the_times_they_were_before_they_were_rounded():
    moments = np.arange(0, 20 * 10**9, 10**8)
    for start in (0, 1_700_000_000, 1_763_855_123):
        for kind in ("f4", "f8") if start == 0 else ("f8",):
            stamps = Stamps.of((start + np.arange(200) / 10).astype(kind), column="t")
            assert stamps.latest(moments, origin=start * 10**9).tolist() == list(range(200))
            assert stamps.latest(moments - 10**6, origin=start * 10**9).tolist() == list(range(-1, 199))
