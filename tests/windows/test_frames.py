"""Which frame stands at a moment, against fractions counted out one by one."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.windows.edges import anchors, sequence_steps
from seqlake.windows.frames import Blank, Shown, by_time, find, framed, steps_shown
from seqlake.windows.sources import FileSpan, place_of
from seqlake.windows.tracks import Track

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

CLOCK = Fraction(30)
TIMES = st.lists(st.integers(1, 9), min_size=0, max_size=12)  # gaps between frames, in ticks
BASES = st.sampled_from([Fraction(1, 15), Fraction(1, 1000), Fraction(1, 90000), Fraction(1001, 30000), Fraction(1, 7)])
RATES = st.sampled_from([Fraction(15), Fraction(10), Fraction(25), Fraction(30000, 1001), Fraction(60)])


def video(offsets, denominator, rate):
    return Track(column="cam", offsets=tuple(offsets), denominator=denominator, ratio=rate / CLOCK, clock=CLOCK)


def slow_truth(track, anchor, steps, pts, base, rate):
    """Frame number and whether it is there: times as fractions of a second, to within half a tick or 1 ms."""
    found = []
    for offset in track.offsets:
        moment = anchor + Fraction(offset, track.denominator)
        time = moment / CLOCK + min(base / 2, Fraction(1, 1000))
        frame = sum(1 for one in pts if (one - pts[0]) * base <= time) - 1
        inside = len(pts) > 0 and 0 <= moment < steps and time < (pts[-1] - pts[0]) * base + 1 / rate
        found.append((frame, inside))
    return found


@pytest.mark.sampled
@settings(deadline=None, max_examples=300 if SOAK else 80)
@example(offsets=[13], denominator=1, gaps=[1] * 5, base=Fraction(1, 7), rate=Fraction(15), anchor=0, steps=14, start=0)
@given(
    offsets=st.lists(st.integers(-20, 20), min_size=1, max_size=4),
    denominator=st.integers(1, 6),
    gaps=TIMES,
    base=BASES,
    rate=RATES,
    anchor=st.integers(0, 40),
    steps=st.integers(0, 40),
    start=st.integers(0, 1000),
)
def test_at_another_rate_the_latest_frame_shown_by_then(offsets, denominator, gaps, base, rate, anchor, steps, start):
    track, scale = video(offsets, denominator, rate), ceil(1 / rate / base / 3)
    pts = start + np.cumsum(np.array(gaps, np.int64) * scale)
    shown = Shown.timed(pts, base, track)
    numbers, mask = find(track, np.array([anchor]), steps=np.array([steps]), frames=shown)
    truth = slow_truth(track, anchor, steps, pts.tolist(), base, rate)
    assert mask[0].tolist() == [there for _, there in truth]
    for number, (frame, there) in zip(numbers[0].tolist(), truth, strict=True):
        assert not there or number == frame
        assert 0 <= number < max(1, len(pts))
    if len(pts):
        moments = np.arange(0, 400)
        there = [slow_truth(video([m], denominator, rate), 0, 10**6, pts.tolist(), base, rate)[0][1] for m in moments]
        assert shown.moments(denominator) >= 400 or there == [bool(m < shown.moments(denominator)) for m in moments]


@settings(deadline=None, max_examples=150)
@given(
    offsets=st.lists(st.integers(-9, 9), min_size=1, max_size=3),
    gaps=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    rate=RATES,
    steps=st.integers(0, 40),
    stride=st.integers(1, 4),
)
def test_anchors_whose_frames_all_exist_are_counted_as_a_loop_would(offsets, gaps, rate, steps, stride):
    track, base = video(offsets, 1, rate), Fraction(1, 60)
    pts = np.cumsum(np.array(gaps))
    shown = Shown.timed(pts, base, track)
    expected = [
        anchor
        for anchor in range(0, steps, stride)
        if all(there for _, there in slow_truth(track, anchor, steps, pts.tolist(), base, rate))
    ]
    first, number = anchors(
        [track],
        steps=np.array([steps]),
        counts={"cam": np.array([len(pts)])},
        stride=stride,
        edges="drop",
        ends={"cam": np.array([shown.moments(1)])},
    )
    assert [first + k * stride for k in range(int(number[0]))] == expected


def test_a_frame_of_a_file_that_counts_in_frames_is_never_shown_early():
    track = Track(column="cam", offsets=(0,), ratio=Fraction(30, 20), clock=Fraction(20))
    numbers, _ = find(
        track, np.arange(20), steps=np.array([20] * 20), frames=Shown.timed(np.arange(30), Fraction(1, 30), track)
    )
    assert numbers[:, 0].tolist() == [k * 30 // 20 for k in range(20)]


def test_containers_that_round_their_times_lose_no_frame():
    track = video([0], 1, Fraction(15))
    pts = np.array([round(k * 1000 / 15) for k in range(20)])  # 0, 67, 133, 200, ... as Matroska writes them
    numbers, mask = find(
        track, np.arange(42), steps=np.full(42, 100), frames=Shown.timed(pts, Fraction(1, 1000), track)
    )
    assert numbers[:40, 0].tolist() == [k // 2 for k in range(40)]
    assert mask[:, 0].tolist() == [True] * 40 + [False] * 2
    assert steps_shown(track, Shown.timed(pts, Fraction(1, 1000), track)) == 40


def test_at_the_clocks_rate_frames_are_counted():
    track = Track(column="cam", offsets=(-1, 0, 1))
    numbers, mask = find(track, np.array([0, 4]), steps=np.array([6, 6]), frames=Shown(count=5))
    assert numbers.tolist() == [[0, 0, 1], [3, 4, 4]]
    assert mask.tolist() == [[False, True, True], [True, True, False]]
    assert steps_shown(track, Shown(count=5)) == 5


def test_an_image_that_is_missing_is_not_there():
    shown = Shown(count=3, present=np.array([True, False, True]))
    numbers, mask = find(Track(column="pic", offsets=(0, 1, 2, 3)), np.array([0]), steps=np.array([4]), frames=shown)
    assert mask.tolist() == [[True, False, True, False]]
    assert shown.there(numbers[0]).tolist() == [True, False, True, True]  # the last one moved to the nearest
    nothing = Shown(count=0, present=np.zeros(0, np.bool_))
    assert not nothing.there(np.array([0, 1])).any()


def test_time_stamps_of_another_column_decide_where_it_is_named():
    track = Track(column="cam", offsets=(0, 1, 2), timestamps="t", origin=("t",), clock=Fraction(10))
    stamps = np.array([5.0, 5.05, 5.2])
    numbers, mask = find(track, np.array([0]), steps=np.array([9]), frames=Shown(count=3), cell_of={"t": stamps}.get)
    assert numbers.tolist() == [[0, 1, 2]]
    assert mask.all()
    short, there = find(track, np.array([0]), steps=np.array([9]), frames=Shown(count=2), cell_of={"t": stamps}.get)
    assert there.tolist() == [[True, True, False]]
    assert short.tolist() == [[0, 1, 1]]


def test_frames_say_how_long_a_sequence_is_where_nothing_else_does():
    fast, slow = Track(column="a", offsets=(0,)), video([0], 1, Fraction(15))
    asked = []

    def shown(track, rows):
        asked.append((track.column, rows.tolist()))
        return np.where(rows == 2, -1, 10)

    counts = {"a": np.array([7, -1, -1, -1])}
    declared = np.array([-1, 8, -1, -1])
    steps = sequence_steps([fast], counts=counts, declared=declared, framed=[slow], steps_of=shown)
    assert steps.tolist() == [7, 8, 0, 10]
    assert asked == [("cam", [2, 3])]  # nothing is counted that is known
    assert sequence_steps([], counts={}, framed=[slow], steps_of=shown, rows=1).tolist() == [10]
    with pytest.raises(ValueError, match="no steps"):
        sequence_steps([], counts={})


def test_which_columns_have_frames():
    schema = Schema(
        {"a": Trajectory(dim=1), "cam": Video(fps=15), "pic": Image(frames="bytes", fps=15), "still": Image()}
    )
    assert [name for name in schema if framed(schema[name])] == ["cam", "pic"]
    assert by_time(video([0], 1, Fraction(15)), schema["cam"])
    assert not by_time(video([0], 1, CLOCK), schema["cam"])
    assert not by_time(video([0], 1, Fraction(15)), schema["pic"])


def test_what_a_cell_points_to():
    assert place_of(None) is None
    assert place_of({"url": None, "first_frame": 3}) is None
    assert place_of("a.mp4") == FileSpan("a.mp4", 0, None)
    assert place_of({"url": "a.mp4", "first_frame": None, "num_frames": None, "more": 1}) == FileSpan("a.mp4", 0, None)
    assert place_of({"url": "a.mp4", "first_frame": 3, "num_frames": 2}) == FileSpan("a.mp4", 3, 2)


def test_a_row_without_frames_has_the_shape_of_another():
    class Other:
        def decode(self, indices):
            return np.zeros((len(indices), 4, 6, 3), np.uint8)

    assert Blank(Other()).decode(np.zeros(0, np.int64)).shape == (0, 4, 6, 3)
    assert Blank(None).decode(np.zeros(0, np.int64)).shape == (0, 0, 0, 3)
    assert len(Blank(None)) == len(Blank(None).pts) == 0
