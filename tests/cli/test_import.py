"""`seqlake import` and `export`: formats and their options by name, mappings, and the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.cli import _format_options as options
from seqlake.cli import main


def run(*given: object) -> int:
    with pytest.raises(SystemExit) as done:
        main([str(one) for one in given])
    return int(done.value.code or 0)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{e:03d};{t};{e + t};{-t};{t or ''}" for e in range(3) for t in range(4)]
    (tmp_path / "steps.txt").write_text("\n".join(["episode;t;x_0;x_1;n", *lines]))
    (tmp_path / "steps.txt").rename(tmp_path / "steps.csv")
    return tmp_path / "steps.csv"


STEPS = ("--sequence-id", "episode", "--steps", "t", "-j", 1)


def test_options_and_a_mapping(table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = ("--from", "csv", "--option", "delimiter=;", "--option", 'types={"x_0": "float32"}', "--map", "x=x_0..x_1")
    assert run("import", table, tmp_path / "out", *given, *STEPS) == 0
    out = capfd.readouterr()
    assert out.out.splitlines()[-1] == f"3 sequences at {tmp_path / 'out'}."
    assert "  x: list<item: fixed_size_list<item: double>[2]> <- x_0, x_1 (2 columns collected; a signal" in out.err
    np.testing.assert_array_equal(sl.open(tmp_path / "out")["002"]["x"][:, 0], [2, 3, 4, 5])


def test_a_mapping_in_a_file(table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_text(json.dumps({"x": {"source": "x_*", "type": "trajectory", "units": "m"}}))
    assert run("import", table, tmp_path / "out", "--map", tmp_path / "map.json", *STEPS, "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["mapped"][-1] == {
        "source": "x_0, x_1",
        "column": "x",
        "how": "2 columns collected; a signal, one array a row",
    }
    assert sl.open(tmp_path / "out").schema["x"].type.get("units") == "m"


def test_export_says_what_it_drops(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sl.create(
        tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1), "still": sl.Image(inline=True)})
    ).writer() as w:
        w.add("a", x=np.ones((2, 1)), still=np.zeros((8, 8, 3), np.uint8))
    given = ("export", tmp_path / "ds", tmp_path / "out", "--to", "jsonl", "--option", "size_limit=1000")
    assert run(*given, "--dry-run") == 0
    assert "Dropped: still (bytes are no text" in capfd.readouterr().out
    assert run(*given, "--json") == 0
    report = json.loads(capfd.readouterr().out)
    assert report["dropped"].keys() == {"still"}
    assert {"source": "still", "column": None, "how": report["dropped"]["still"]} in report["mapped"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (("--from", "csv", "--option", "nope=1"), "takes no option 'nope'; it takes block_bytes"),
        (("--from", "csv", "--option", "skip_rows=x"), "expected int, found 'x'"),
        (("--from", "csv", "--option", "header=maybe"), "expected bool, found 'maybe'"),
        (("--from", "csv", "--option", "types=[1]"), "expected a JSON object"),
        (("--from", "csv", "--option", "skip_rows"), "NAME=VALUE"),
        (("--from", "csv", "--option", "header=true", "--option", "header=true"), "given twice"),
        (
            (
                "--from",
                "nothing",
            ),
            "Nothing in 'formats' is called 'nothing'",
        ),
        (("--map", "a.json", "--map", "x=y"), "--map takes one file"),
        (("--fps", "10"), "--fps is for"),
        (("--videos", "{episode}.mp4", "--sequence-id", "episode"), "sequence_id= and steps="),
    ],
)
def test_what_is_refused(
    table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], given: tuple, what: str
) -> None:
    assert run("import", table, tmp_path / "out", *given) in {1, 2}
    assert what in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("str | None", "null", None),
        ("str | None", "12", "12"),
        ("bool", "false", False),
        ("int", "12", 12),
        ("float | None", "1.5", 1.5),
        ("int | str", "20 GB", "20 GB"),
        ("Collection[str]", "a,b", ["a", "b"]),
        ("Collection[str]", '["a,b"]', ["a,b"]),
        ("str | Collection[str] | None", "train", "train"),
        ("str | Collection[str] | None", '["train", "val"]', ["train", "val"]),
        ("Collection[str] | bool", "true", True),
        ("Collection[str] | bool", "action", ["action"]),
        ("Mapping[str, str] | None", '{"a": "b"}', {"a": "b"}),
        ("Any", "[1, 2]", [1, 2]),
        ("Any", "text", "text"),
    ],
)
def test_a_text_becomes_what_the_signature_says(kind: str, text: str, expected: object) -> None:
    def scan(location: str, /, *, option=None) -> None: ...

    scan.__annotations__["option"] = kind
    value = options.typed(scan, {"option": text}, what="The format 'x'")["option"]
    assert (value, type(value)) == (expected, type(expected))
