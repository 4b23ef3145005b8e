from __future__ import annotations

import pytest

from seqlake.dataset import progress


@pytest.fixture
def slow(monkeypatch):
    import tqdm

    seen = []

    class Watched(tqdm.tqdm):
        def __init__(self, *args, **options):
            seen.append(options["disable"])
            super().__init__(*args, **{**options, "delay": 0})

    monkeypatch.setattr(tqdm, "tqdm", Watched)
    return seen


def test_work_is_shown_on_stderr_when_asked_for(slow, capsys) -> None:
    with progress.shown(True):
        assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    out, err = capsys.readouterr()
    assert out == ""
    assert "validate" in err
    assert "/3" in err


def test_nothing_is_shown_for_programs_and_without_a_terminal(slow, capsys) -> None:
    with progress.shown(False):
        assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    assert list(progress.over(range(3), "validate")) == [0, 1, 2]
    assert slow == [True, None]
    assert capsys.readouterr() == ("", "")
