from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.spec.alignment import Clock, Observed, clock_of, exact, own_rate, sample_at, samples_of, steps_of_row
from seqlake.spec.column_types import Audio, Trajectory, Video
from seqlake.spec.schema import Column, Schema

RATES = st.fractions(Fraction(1, 10), 1000, max_denominator=1001)


@given(st.integers(-10_000, 10_000), RATES, RATES)
def test_the_sample_is_the_latest_at_or_before_the_step(step, clock, rate) -> None:
    sample = sample_at(step, clock=clock, rate=rate)
    assert Fraction(sample) / rate <= Fraction(step) / clock < Fraction(sample + 1) / rate


@given(st.integers(0, 2000), RATES, RATES)
def test_steps_share_out_all_samples(steps, clock, rate) -> None:
    parts = [samples_of(k, clock=clock, rate=rate) for k in range(3)]
    assert parts[0].start == 0
    assert all(a.stop == b.start for a, b in zip(parts, parts[1:], strict=False))
    part = samples_of(steps, clock=clock, rate=rate)
    assert all(Fraction(steps) / clock <= Fraction(s) / rate < Fraction(steps + 1) / clock for s in part)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (29.97, Fraction(30000, 1001)), (23.976, Fraction(24000, 1001)), (59.94, Fraction(60000, 1001)),
        (30, Fraction(30)), (15.0, Fraction(15)), (12.5, Fraction(25, 2)), (0.1, Fraction(1, 10)), (1000, Fraction(1000)),
    ],
)  # fmt: skip
def test_declared_rates_are_exact(written, meant) -> None:
    assert exact(written) == meant


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), True])
def test_no_rate(rate) -> None:
    with pytest.raises(ValueError, match="positive"):
        exact(rate)
    assert own_rate(Column("v", pa.string(), Video(fps=rate))) is None


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
