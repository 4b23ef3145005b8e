"""Ctrl-C at a line of ours, any line: what writes a new dataset leaves nothing of it, or all of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.dataset import reshaping

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERBS: dict[str, Callable[[sl.Dataset, Path], Any]] = {
    "convert": lambda ds, out: sl.convert(ds, out, workers=1, progress=False),
    "mds": lambda ds, out: sl.convert(ds, out, to="mds", workers=1, progress=False),
    "repack": reshaping.repack,
}


@pytest.fixture
def source(tmp_path: Path) -> sl.Dataset:
    """Two sequences."""
    ds = sl.create(tmp_path / "source", sl.Schema({"action": sl.Trajectory(dim=2, fps=10)}))
    ds.append([{"sequence_id": name, "action": np.ones((5, 2))} for name in "ab"])
    return ds


def interrupted(work: Callable[[], object], line: int) -> tuple[int, bool]:
    """Do it, with a KeyboardInterrupt at the so-manieth line of ours: how many were reached, and whether it ended."""
    reached = 0

    def each(frame: Any, event: str, _: object) -> Any:
        nonlocal reached
        if event == "line":
            reached += 1
            if reached == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return each

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: each if "/seqlake/" in frame.f_code.co_filename else None)
    try:
        work()
    except KeyboardInterrupt:
        return reached, False
    finally:
        sys.settrace(before)
    return reached, True


def everywhere(source: sl.Dataset, tmp_path: Path, verb: str, *, moments: int, seed: int) -> None:
    def place(number: int) -> Path:
        return tmp_path / f"{verb}-{number}"

    interrupted(lambda: VERBS[verb](source, place(0)), 0)  # what is imported or made once is done
    lines, _ = interrupted(lambda: VERBS[verb](source, place(1)), 0)
    chosen = np.random.default_rng(seed).choice(np.arange(1, lines), moments, replace=False).tolist()
    for number, line in enumerate(chosen, 2):
        out = place(number)
        _, ended = interrupted(lambda out=out: VERBS[verb](source, out), line)  # type: ignore[misc]
        if any(path.is_file() for path in out.rglob("*")):  # after the commit, which stands
            made = sl.scan(out) if verb == "mds" else sl.open(out)
            assert sorted(made.select("sequence_id").to_arrow()["sequence_id"].to_pylist()) == ["a", "b"], line
        else:
            assert not ended
            VERBS[verb](source, out)


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that falls into a __del__
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # one that falls between a file's opening and its use
@pytest.mark.parametrize("verb", VERBS)
def test_it_is_all_there_or_nothing(source: sl.Dataset, tmp_path: Path, verb: str) -> None:
    everywhere(source, tmp_path, verb, moments=40, seed=5)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one that falls into a __del__
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # one that falls between a file's opening and its use
@pytest.mark.parametrize("verb", VERBS)
def test_it_is_all_there_or_nothing_wherever_it_comes(source: sl.Dataset, tmp_path: Path, verb: str) -> None:
    everywhere(source, tmp_path, verb, moments=400, seed=6)
