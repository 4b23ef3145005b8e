"""`--on`, `--jobs` and `--address` of commands whose work may be shared."""

from __future__ import annotations

import pytest

from seqlake.testing import samples


@pytest.fixture
def dataset(tmp_path):
    return samples.arm_dataset(tmp_path / "arm", count=12).location


@pytest.mark.parametrize("command", [["validate", "--depth", "files"], ["stats", "--outliers", "2"]])
def test_processes_say_the_same(run, dataset, command, monkeypatch, tmp_path) -> None:
    name, *options = command
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = run(name, dataset, *options, "--on", "processes", "-j", 2, "--json")
    assert elsewhere.code == 0, elsewhere.err
    assert elsewhere.json == run(name, dataset, *options, "--json").json


@pytest.mark.parametrize("name", ["validate", "stats"])
def test_wrong_engines_are_told(run, dataset, name) -> None:
    unknown = run(name, dataset, "--on", "slurm")
    assert unknown.code in {1, 2}
    assert "known are processes, ray" in unknown.err
    wrong = run(name, dataset, "--address", "auto")
    assert wrong.code == 2
    assert "takes no option 'address'" in wrong.err
