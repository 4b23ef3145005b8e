"""Folders that the official package wrote, edited and converted: in place, every value and frame is what it gives."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl

from . import by_hand
from .official import VARIABLE, python

FOLDERS = ("recorded", "small", "deleted", "merged", "older", "older_old")
ROUNDING = 3  # of 255: how far two converters of colours may be apart

pytestmark = pytest.mark.skipif(
    python() is None, reason=f"lerobot is not installed: benchmarks/peers/setup, or name its Python in {VARIABLE}"
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("official")
    by_hand.write(out / "older", by_hand.four(), "v2.1")
    interpreter = python()
    assert interpreter is not None
    script = Path(__file__).with_name("official.py")
    # Its converter of videos may end in a crash of another library when the interpreter ends: what counts is written.
    done = subprocess.run(
        [interpreter, str(script), str(out), str(out / "older")],
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HOME": str(out), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (out / "truth.pkl").exists(), done.stderr[-2000:]
    return out


@pytest.fixture(scope="module")
def truth(written: Path) -> dict[str, list[dict[str, Any]]]:
    truth: dict[str, list[dict[str, Any]]] = pickle.loads((written / "truth.pkl").read_bytes())
    return truth


@pytest.mark.parametrize("name", FOLDERS)
def test_every_step_is_what_the_package_gives(written: Path, truth: dict[str, Any], name: str) -> None:
    ds, items = sl.open(written / name), truth[name]
    assert int(np.sum(ds.lengths("action"))) == len(items) > 40
    at = 0
    for row in ds:
        steps = items[at : at + row["length"]]
        at += row["length"]
        assert {int(item["episode_index"]) for item in steps} == {row["episode_index"]}
        assert row["task"] == steps[0]["task"]
        for column in ds.schema.values():
            if column.category == "temporal":
                expected = np.stack([item[column.name] for item in steps])
                # The package's own items of float64 are of 32 bits.
                np.testing.assert_array_equal(row[column.name].reshape(expected.shape).astype(expected.dtype), expected)
            elif column.category in {"frames", "file"}:
                same_pictures(row[column.name][:], [item[column.name] for item in steps])
    assert at == len(items)


def same_pictures(ours: np.ndarray, theirs: list[np.ndarray]) -> None:
    expected = np.round(np.stack(theirs).transpose(0, 2, 3, 1) * 255)
    assert ours.shape == expected.shape
    assert np.abs(ours.astype(np.float64) - expected).max() <= ROUNDING


@pytest.mark.parametrize("name", FOLDERS)
def test_nothing_is_wrong_with_them(written: Path, name: str) -> None:
    report = sl.open(written / name).validate(depth="decode")
    assert not report.errors
    assert not report.warnings


def test_conversion_copies_packets_of_av1(written: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = sl.open(written / "recorded")
    after = sl.convert(before, tmp_path / "out", progress=False, workers=1)
    assert after is not None
    assert "encoded again" not in caplog.text
    for one, two in zip(before, after, strict=True):
        for name in ("observation.images.top", "observation.images.wrist"):
            assert len(two[name]) == two["length"]
            np.testing.assert_array_equal(one[name][:], two[name][:])
