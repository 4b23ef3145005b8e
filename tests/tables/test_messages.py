"""What a commit is for is said at any verb, kept in every home, and read by what reads the home's own log."""

from __future__ import annotations

import json
from pathlib import Path

import click
import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.cli import main
from seqlake.cli._main import cli as commands

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named

ODD = 'two lines\n"quoted" \x1b[2J 🦾 \u202e \u2028 \u2029 \x85 \x0b \x0c \x1c end'


@pytest.fixture(params=QUICK)
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(one) for one in arguments])
        return int(stop.value.code or 0), capsys.readouterr().err

    return call


READING = {
    *(
        "bench",
        "completion",
        "demo",
        "diff",
        "doctor",
        "files",
        "frames",
        "info",
        "ls",
        "show",
        "similar",
        "sql",
        "stats",
        "view",
    ),
    *("prepare", "vacuum", "validate", "versions"),
}


def test_every_command_that_commits_takes_a_message() -> None:
    context = click.Context(commands, **commands.context_settings)  # a command keeps its first --help
    taking = {
        name
        for name in commands.list_commands(context)
        if any("--message" in one.opts for one in commands.get_command(context, name).params)
    }
    assert set(commands.list_commands(context)) - taking == READING


@pytest.mark.parametrize("kind", QUICK)
def test_a_new_dataset_and_a_table_that_becomes_one_carry_it(kind: str, tmp_path: Path, run) -> None:
    source = tmp_path / "source"
    ds = sl.create(source, sl.Schema({"x": sl.Trajectory(dim=1, fps=10)}))
    ds.append([{"sequence_id": f"ep_{n}", "x": [[0.0], [1.0]]} for n in range(4)])
    for number, (verb, *rest) in enumerate(
        [
            ("convert",),
            ("merge",),
            ("repack",),
            ("subset", "--where", "true"),
            ("trim", "--start", "1"),
            ("segment", "--length", "1"),
            ("resample", "--fps", "5"),
        ]
    ):
        place = PLACES[kind].format(folder=tmp_path, name=f"out_{number}")
        assert run(verb, source, place, *rest, "-m", ODD)[0] == 0, verb
        assert sl.open(place).versions()[-1].message == ODD, verb
    code, said = run("convert", source, tmp_path / "mds", "--to", "mds", "-m", "why")
    assert (code, "no versions" in said, (tmp_path / "mds").exists()) == (2, True, False)


def test_a_lake_table_becomes_a_dataset_with_a_message(tmp_path: Path, run) -> None:
    table = pa.table({"sequence_id": ["a"], "n": [1]})
    deltalake.write_deltalake(tmp_path / "table", table)
    assert run("init", f"delta:{tmp_path / 'table'}", "-m", ODD)[0] == 0
    assert sl.open(f"delta:{tmp_path / 'table'}").versions()[-1].message == ODD
    (tmp_path / "plain" / "data").mkdir(parents=True)
    pq.write_table(table, tmp_path / "plain" / "data" / "a.parquet")
    assert run("init", tmp_path / "plain", "-m", "why")[0] == 2
    assert not (tmp_path / "plain" / "mixtrain.json").exists()
    assert run("init", tmp_path / "plain")[0] == 0
    assert run("index", tmp_path / "plain", "-m", ODD)[0] == 0
    assert sl.open(tmp_path / "plain").versions()[-1].message == ODD


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
