"""The commands about files: what rows name, what is missing, and references that lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seqlake as sl


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("a.mcap", "b.mcap"):
        (tmp_path / name).write_bytes(name.encode() * 100)
    ds = sl.create(tmp_path / "ds", sl.Schema({"log": sl.ColumnType("mcap"), "more": sl.ColumnType("mcap")}))
    with ds.writer() as writer:
        writer.add("one", log=sl.File(tmp_path / "a.mcap"), more="gone.mcap")
        writer.add("two", log=str(tmp_path / "b.mcap"), more="gone.mcap")
    orphan = tmp_path / "ds" / "files" / "log" / "00" / f"x-{'0' * 32}-0.mcap"
    orphan.parent.mkdir()
    orphan.write_bytes(b"1")
    return tmp_path / "ds"


def test_files(place: Path, run: Callable[..., Any]) -> None:
    found = run("files", place, "--json").json
    assert found["totals"]["missing"] == {"files": 1, "bytes": 0}
    assert [one["state"] for one in found["files"]] == ["present", "outside", "missing", "orphan"]
    assert found["files"][2] == {
        "reference": "gone.mcap", "state": "missing", "size": None, "columns": ["more"], "rows": ["one", "two"],
    }  # fmt: skip
    text = run("files", place)
    assert text.code == 0
    assert "gone.mcap" in text.out
    assert "one +1" in text.out
    assert "1 missing (0 B)" in text.err


def test_files_of_one_kind(place: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    assert run("files", place, "--dangling", "-q").out == "gone.mcap\n"
    assert run("files", place, "--orphans", "-q").out == f"files/log/00/x-{'0' * 32}-0.mcap\n"
    assert len(run("files", place, "--dangling", "--orphans", "-q").out.splitlines()) == 2
    assert run("files", place, "--where", "sequence_id = 'two'", "-q").out == f"{tmp_path}/b.mcap\ngone.mcap\n"
    assert run("files", place, "--columns", "more", "-q").out == "gone.mcap\n"
    outside = run("files", place, "--columns", "log", "--allow-outside", "--json").json["files"][1]
    assert (outside["state"], outside["size"]) == ("present", 600)
    assert run("files", place, "--version", "0", "--json").json["files"][1]["state"] == "kept"
    csv = run("files", place, "--dangling", "--format", "csv").out.splitlines()
    assert csv == ["state,size,column,rows,reference", 'missing,,more,"[""one"", ""two""]",gone.mcap']
    assert run("files", tmp_path / "nothing").code == 1


def test_relocate(place: Path, tmp_path: Path, run: Callable[..., Any]) -> None:
    arguments = ("relocate", place, "--from", tmp_path / "b.mcap", "--to", "logs/b.mcap")
    planned = run(*arguments, "--dry-run", "--json").json
    assert planned["references"] == {f"{tmp_path}/b.mcap": "logs/b.mcap"}
    assert planned["missing"] == ["logs/b.mcap"]
    assert "not there: logs/b.mcap" in run(*arguments, "--dry-run").out
    refused = run(*arguments)
    assert (refused.code, "--allow-missing" in refused.err) == (1, True)
    assert sl.open(place).version.id == 1
    assert run(*arguments, "--copy").out.startswith("Version 2: 1 references in 1 cells, 600 B of files.")
    assert (place / "logs" / "b.mcap").read_bytes() == (tmp_path / "b.mcap").read_bytes()
    assert run("relocate", place, "--from", "logs", "--move", "--json").json["version"] == 3
    assert not (place / "logs" / "b.mcap").exists()
    assert sl.open(place)["two"]["log"].reference.startswith("files/log/")
    assert run("relocate", place, "--from", "gone.mcap", "--to", "s3://bucket/gone.mcap", "--dry-run").code in {0, 1}
    assert run("relocate", place, "--from", "logs").code == 2
    assert run("relocate", place, "--to", "logs").code == 2
    nothing = run("relocate", place, "--from", "logs", "--to", "x")
    assert (nothing.code, "seqlake files" in nothing.err) == (1, True)
