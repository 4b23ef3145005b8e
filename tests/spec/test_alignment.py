from __future__ import annotations

import itertools
import struct
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.spec.alignment import Clock, Observed, clock_of, exact, own_rate, sample_at, samples_of, steps_of_row
from seqlake.spec.column_types import Audio, Trajectory, Video
from seqlake.spec.schema import Column, Schema

RATES = st.fractions(Fraction(1, 10), 1000, max_denominator=1001)


@settings(deadline=None)
@given(st.integers(-10_000, 10_000), RATES, RATES)
def test_the_sample_is_the_latest_at_or_before_the_step(step, clock, rate) -> None:
    sample = sample_at(step, clock=clock, rate=rate)
    assert Fraction(sample) / rate <= Fraction(step) / clock < Fraction(sample + 1) / rate


@settings(deadline=None)
@given(st.integers(0, 2000), RATES, RATES)
def test_steps_share_out_all_samples(steps, clock, rate) -> None:
    parts = [samples_of(k, clock=clock, rate=rate) for k in range(3)]
    assert parts[0].start == 0
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))
    part = samples_of(steps, clock=clock, rate=rate)
    assert all(Fraction(steps) / clock <= Fraction(s) / rate < Fraction(steps + 1) / clock for s in part)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (29.97, Fraction(30000, 1001)), (23.976, Fraction(24000, 1001)), (59.94, Fraction(60000, 1001)),
        (30, Fraction(30)), (15.0, Fraction(15)), (12.5, Fraction(25, 2)), (0.1, Fraction(1, 10)),
        (1000, Fraction(1000)), (0.0001, Fraction(1, 10_000)), (23.98, Fraction(24000, 1001)), (1 / 3, Fraction(1, 3)),
        (10**400, Fraction(10**400)),
    ],
)  # fmt: skip
def test_declared_rates_are_exact(written, meant) -> None:
    assert exact(written) == meant


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), True])
def test_no_rate(rate) -> None:
    with pytest.raises(ValueError, match="positive"):
        exact(rate)


@pytest.mark.parametrize("rate", [0, -1, -0.0, True, "30", [30], {"fps": 30}])
def test_a_declared_rate_that_is_none(rate) -> None:
    assert own_rate(Column("v", pa.string(), Video(fps=rate))) is None


@settings(deadline=None)
@given(st.floats(1e-6, 1e6))
def test_a_rate_is_never_nothing_and_never_far(rate) -> None:
    assert abs(exact(rate) / Fraction(rate) - 1) < Fraction(1, 1000)


def test_a_fraction_is_taken_at_its_word() -> None:
    assert exact(Fraction(2997, 100)) == Fraction(2997, 100)


def test_rates_are_the_columns_own() -> None:
    assert own_rate(Column("s", pa.string(), Audio(sample_rate=48_000, fps=30))) == 48_000
    assert own_rate(Column("a", pa.list_(pa.list_(pa.float32())), Trajectory(fps=20, timestamps="t"))) is None
    assert own_rate(Column("n", pa.string())) is None


def test_the_rule_in_its_order() -> None:
    fast, slow = Video(fps=30), Video(fps=15)
    assert clock_of(Schema({"a": Trajectory(fps=20), "v": fast})).rate == 20
    schema = Schema({"a": Trajectory(dim=2), "v": fast, "w": slow})
    counted = [Observed(steps={"a": 45}, frames={"v": 90, "w": 45})] * 3
    found = clock_of(schema, observed=counted)
    assert (found.rate, "'w'" in found.rule) == (Fraction(15), True)
    mixed = [*counted, Observed(steps={"a": 50}, frames={"v": 90, "w": 45}, length=50, duration_seconds=2.5)]
    assert clock_of(schema, observed=mixed).rate == 20
    assert clock_of(schema).rate == 30
    assert "highest" in clock_of(schema).rule
    assert clock_of(Schema({"a": Trajectory(), "s": Audio(sample_rate=48_000)})).rate is None
    assert clock_of(schema, given=12.5).rate == Fraction(25, 2)


def test_rows_that_say_nothing_about_the_clock() -> None:
    schema = Schema({"a": Trajectory(), "t": Trajectory(timestamps="x"), "v": Video(fps=30), "w": Video(fps=15)})
    empty = Observed(steps={"a": 0}, frames={"v": 0, "w": 5})
    null = Observed(steps={"a": -1, "t": 45}, frames={"v": 45, "w": 45})
    assert "highest" in clock_of(schema, observed=[empty, null]).rule
    # Only rows that have both count towards the first rows that are looked at.
    told = Observed(steps={"a": 45}, frames={"v": 90, "w": 45})
    assert clock_of(schema, observed=[*[empty] * 20, told]).rate == 15


@pytest.mark.parametrize(
    ("length", "seconds", "rate"),
    [(150, 5.0, 30), (7, 0.7, 10), (0, 5.0, None), (9, 0.0, None), (9, -1.0, None), (9, float("inf"), None),
     (9, float("nan"), None), (None, 5.0, None), (9, None, None), (1, 100_000.0, Fraction(1, 100_000))],
)  # fmt: skip
def test_the_clock_from_length_and_duration(length, seconds, rate) -> None:
    row = Observed(length=length, duration_seconds=seconds)
    assert clock_of(Schema({"a": Trajectory()}), observed=[row]).rate == rate


@settings(deadline=None)
@given(st.integers(2, 100_000))
def test_a_duration_of_32_bits_gives_a_broadcast_rate(length) -> None:
    [seconds] = struct.unpack("<f", struct.pack("<f", length * 1001 / 30000))
    found = clock_of(Schema({"a": Trajectory()}), observed=[Observed(length=length, duration_seconds=seconds)])
    assert found.rate == Fraction(30000, 1001)


def test_a_clock_says_how_it_was_found() -> None:
    assert str(clock_of(Schema({"a": Trajectory(fps=20)}))) == "20 steps per second (fps of column 'a')"
    assert str(clock_of(Schema({"a": Trajectory()}))) == "no rate is declared and no row shows one"


def test_sound_for_a_step() -> None:
    clock = exact(29.97)
    parts = [len(samples_of(k, clock=clock, rate=Fraction(48_000))) for k in range(5)]
    assert parts == [1602, 1602, 1601, 1602, 1601]
    assert sum(parts) == 8008


def test_broadcast_cameras_drift_by_no_frame_in_an_hour() -> None:
    clock, rate = exact(29.97), exact(59.94)
    assert [sample_at(k, clock=clock, rate=rate) for k in (0, 1, 107_892)] == [0, 2, 215_784]


def test_the_steps_of_a_row() -> None:
    schema = Schema({"slow": Trajectory(fps=10), "a": Trajectory(), "v": Video(fps=20)})
    clock = Clock(rate=Fraction(20), rule="test")
    row = Observed(steps={"slow": 30, "a": 61}, frames={"v": 59}, length=62)
    assert steps_of_row(row, schema, clock, ["slow", "a", "v"]) == 61
    assert steps_of_row(row, schema, clock, ["slow", "v"]) == 62
    without = Observed(steps=row.steps, frames=row.frames)
    assert steps_of_row(without, schema, clock, ["slow", "v"]) == 59
    assert steps_of_row(without, schema, clock, ["slow"]) == 60
    assert steps_of_row(Observed(), schema, clock, ["slow"]) is None
