from __future__ import annotations

import pytest

from seqlake.dataset import progress
from seqlake.testing import samples


@pytest.fixture
def slow(monkeypatch):
    import tqdm

    seen = []

    class Watched(tqdm.tqdm):
        def __init__(self, *args, **options):
            seen.append(options["disable"])
            super().__init__(*args, **{**options, "delay": 0, "mininterval": 0})

    monkeypatch.setattr(progress, "progress_bar", lambda: Watched)
    return seen


def test_work_is_shown_on_stderr_when_asked_for(slow, capsys) -> None:
    with progress.enabled(True):
        assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "validate" in err
    assert "/3" in err


def test_nothing_is_shown_for_programs_and_without_a_terminal(slow, capsys) -> None:
    with progress.enabled(False):
        assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    assert slow == [True, None]
    assert capsys.readouterr() == ("", "")


def test_what_is_counted_is_shown_too(slow, capsys, tmp_path) -> None:
    with progress.enabled(True), progress.counting(3, "validate", unit="sequences") as done:
        for _ in range(3):
            done()
    assert "3/3" in capsys.readouterr().err
    ds = samples.arm_dataset(tmp_path / "arm", count=4)
    capsys.readouterr()
    with progress.enabled(True):
        assert ds.validate(depth="files").ok
    out, err = capsys.readouterr()
    assert out == ""
    assert "4/4" in err
    assert "sequences" in err
    with progress.enabled(False):
        assert ds.validate(depth="files").ok
    assert capsys.readouterr() == ("", "")
