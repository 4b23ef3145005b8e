"""What a commit is for is said at any verb, kept in every home, and read by what reads the home's own log."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named

ODD = 'two lines\n"quoted" \x1b[2J 🦾 \u202e \u2028 \u2029 \x85 \x0b \x0c \x1c end'


@pytest.fixture(params=PLACES)
def ds(request, tmp_path) -> sl.Dataset:
    made = sl.create(PLACES[request.param].format(folder=tmp_path, name="ds"), sl.Schema({"n": pa.int64()}))
    made.append([{"sequence_id": f"ep_{n}", "n": n} for n in range(4)])
    return made


def messages(ds: sl.Dataset) -> list[str | None]:
    listed = sl.open(ds.location).versions()
    assert [v.rows for v in listed] == [v.rows for v in ds.versions()]
    return [version.message for version in listed]


def test_every_verb_says_what_it_is_for(ds: sl.Dataset) -> None:
    before = len(messages(ds))
    row = [{"sequence_id": "ep_9", "n": 9}]
    for verb in (
        lambda text: ds.append(row, message=text),
        lambda text: ds.upsert([{"sequence_id": "ep_9", "n": 8}], message=text),
        lambda text: ds.update([{"sequence_id": "ep_9", "n": 7}], message=text),
        lambda text: ds.delete("n = 7", message=text),
        lambda text: ds.add_column("m", pa.int64(), sql="n + 1", message=text),
        lambda text: ds.rename_column("m", "k", rewrite=True, message=text),
        lambda text: ds.drop_column("k", rewrite=True, message=text),
        lambda text: sl.assign_splits(ds, {"a": 0.5, "b": 0.5}, message=text),
        lambda text: ds.rollback(ds.versions()[before - 1], message=text),
    ):
        count = len(messages(ds))
        text = f"{ODD} {count}"
        verb(text)
        assert messages(ds)[-1] == text
        assert set(messages(ds)[count:]) == {text}
    with ds.writer(message="by a writer") as writer:
        writer.add("ep_10", n=10)
    ds.append([{"sequence_id": "ep_11", "n": 11}])
    assert messages(ds)[-2:] == ["by a writer", None]
    assert set(messages(ds)[:before]) == {None}


def test_what_is_no_message_is_refused_before_anything_is_written(ds: sl.Dataset) -> None:
    before = ds.version
    for wrong in ("", "  ", "x" * 10_001, "\ud800"):
        with pytest.raises(ValueError, match="message"):
            ds.delete("true", message=wrong)
        with pytest.raises(ValueError, match="message"):
            ds.writer(message=wrong)
    with pytest.raises(TypeError, match="A message is a text"):
        ds.delete("true", message=7)
    assert sl.open(ds.location).version == before


def test_the_homes_own_logs_show_it(tmp_path: Path) -> None:
    for kind in ("standalone", "delta", "ducklake"):
        ds = sl.create(PLACES[kind].format(folder=tmp_path / kind, name="ds"), sl.Schema({"n": pa.int64()}))
        ds.append([{"sequence_id": "a", "n": 1}], message="why it is")
    newest = max((tmp_path / "standalone/ds/_seqlake/versions").iterdir())
    assert json.loads(newest.read_text())["message"] == "why it is"
    lines = max((tmp_path / "delta/ds/_delta_log").glob("*.json")).read_text().splitlines()
    assert json.loads(lines[0])["commitInfo"]["userMetadata"] == "why it is"
    with duckdb.connect(str(tmp_path / "ducklake/meta.duckdb"), read_only=True) as catalog:
        said = "SELECT commit_message FROM ducklake_snapshot_changes ORDER BY snapshot_id DESC LIMIT 1"
        assert catalog.sql(said).fetchall() == [("why it is",)]


def test_the_command_line_says_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"n": pa.int64()}))
    ds.append([{"sequence_id": f"ep_{n}", "n": n} for n in range(20)])
    for arguments in (
        ["split", ds.location, "-m", ODD],
        ["versions", ds.location],
        ["versions", ds.location, "--json"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        out = capsys.readouterr().out
    assert json.loads(out)["rows"][-1]["message"] == ODD
    ds.append([{"sequence_id": "z", "n": 0}])
    assert ds.versions()[-1].message is None
