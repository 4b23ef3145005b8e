"""Windows as values: what they accept, what they refuse, and their stable digest."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from seqlake.windows.spec import Whole, Window, as_window, seconds


def test_equal_windows_are_equal_however_they_are_written():
    one = Window({"a": range(3), "b": [0, 2, 4], "c": None})
    two = Window({"a": [0, 1, 2], "b": range(0, 5, 2), "c": None})
    three = Window({"a": np.arange(3), "b": (0, 2, 4), "c": None})
    assert one == two == three
    assert one.digest == two.digest == three.digest
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    "other",
    [
        Window({"a": range(4)}),
        Window({"b": range(3)}),
        Window({"a": range(3)}, stride=2),
        Window({"a": range(3)}, edges="drop"),
        Window({"a": range(3)}, clock=30),
        Window({"a": range(3), "b": None}),
        Window({"a": seconds(0, 3, every=1)}),
        Whole(["a"]),
    ],
)
def test_other_windows_have_other_digests(other):
    assert other.digest != Window({"a": range(3)}).digest


def test_the_digest_is_the_same_for_ever_and_in_every_process():
    window = Window({"video": range(-1, 1), "action": range(16), "x": seconds(-0.1, 0, every=0.02)}, stride=4)
    code = (
        "from seqlake.windows.spec import *\n"
        "print(Window({'action': range(16), 'x': seconds(-0.1, 0, every=0.02), 'video': [-1, 0]}, stride=4).digest)"
    )
    for seed in ("1", "2"):
        out = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert out.stdout.strip() == window.digest == "96d829f5074509e5"
    assert Whole(["action"], packed=True).digest == "7cf055551d9f532d"


def test_seconds_are_the_decimals_that_were_written():
    offsets = seconds(-0.1, 0.1, every=0.05)
    assert offsets.times() == (Fraction(-1, 10), Fraction(-1, 20), Fraction(0), Fraction(1, 20))
    assert len(seconds(0, 1, every=0.3)) == 4
    assert repr(offsets) == "seconds(-0.1, 0.1, every=0.05)"
    for bad in ((0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 1, -1)):
        with pytest.raises(ValueError, match="names no step"):
            seconds(bad[0], bad[1], every=bad[2])


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Window({}), ValueError, "needs columns"),
        (lambda: Window({"a": 16}), TypeError, r"range\(16\)"),
        (lambda: Window({"a": []}), ValueError, "None"),
        (lambda: Window({"a": [0.5]}), TypeError, "seconds"),
        (lambda: Window({"a": "xy"}), TypeError, "range"),
        (lambda: Window({"a": range(2)}, stride=0), ValueError, "stride"),
        (lambda: Window({"a": range(2)}, edges="wrap"), ValueError, "pad, drop, clamp"),
        (lambda: Window({"a": range(2)}, clock=0), ValueError, "clock"),
        (lambda: Whole([]), ValueError, "distinct"),
        (lambda: Whole(["a", "a"]), ValueError, "distinct"),
        (lambda: as_window(16), TypeError, "mapping"),
    ],
)
def test_what_cannot_be_a_window_is_refused_with_advice(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_a_bare_mapping_is_a_window():
    assert as_window({"a": range(2)}) == Window({"a": range(2)})
    assert as_window(whole := Whole("a")) is whole
    assert (
        repr(Window({"a": range(2)}, clock=29.97))
        == "Window({'a': range(0, 2)}, stride=1, edges='pad', clock=2997/100)"
    )
