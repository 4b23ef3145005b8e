from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.cli._main import cli as commands
from seqlake.cli._options import complete_columns


def test_info_counts_and_says_that_windows_need_no_decoding(run, dataset) -> None:
    facts = run("info", dataset, "--json").json
    assert (facts["rows"], facts["shards"], facts["not_flat"]) == (12, 2, [])
    assert facts["columns"] == {"sequence_id": "scalar", "task": "scalar", "reward": "scalar", "action": "temporal"}
    assert facts["fingerprint"] == sl.open(dataset).fingerprint
    told = run("info", dataset)
    assert told.code == 0
    assert "12 sequences in 2 shards" in told.out


def test_info_of_an_archive_names_the_command_that_mends_it(run, dataset, tmp_path) -> None:
    assert run("repack", dataset, tmp_path / "archive", "--layout", "archive").code == 0
    facts = run("info", tmp_path / "archive", "--json").json
    assert facts["not_flat"] == ["action"]
    assert "seqlake repack" in run("info", tmp_path / "archive").out


def test_schema_lists_columns_with_their_types(run, dataset) -> None:
    rows = {row["column"]: row for row in run("schema", dataset, "--json").json["rows"]}
    assert rows["action"]["category"] == "temporal"
    assert rows["action"]["type"] == "trajectory"
    assert "dim=3" in rows["action"]["fields"]
    assert rows["task"]["type"] == ""


def test_ls_filters_sorts_and_limits(run, dataset) -> None:
    ids = run("ls", dataset, "--where", "reward >= 6 AND task = 'pick'", "--sort", "-reward", "-q").out.split()
    assert ids == ["ep_10", "ep_08", "ep_06"]
    two = run("ls", dataset, "-n", 2, "--offset", 3, "--json").json["rows"]
    assert [r["sequence_id"] for r in two] == ["ep_03", "ep_04"]
    told = run("ls", dataset, "-n", 2)
    assert "10 more" in told.err
    assert "action" not in told.out


@pytest.mark.parametrize("form", [["-q"], ["--json"], ["--format", "ndjson"], ["--format", "csv"], []])
def test_ls_gives_programs_all_there_are(run, tmp_path, form) -> None:
    ids = [f"ep_{number:03}" for number in range(120)]
    ds = sl.create(tmp_path / "many", sl.Schema({"task": pa.string()}))
    ds.append([{"sequence_id": one, "task": "pick"} for one in ids])
    told = run("ls", ds.location, *form)
    assert re.findall(r"ep_\d{3}", told.out) == ids
    assert told.err == ""
    some = run("ls", ds.location, "-n", 7, *form)
    assert re.findall(r"ep_\d{3}", some.out) == ids[:7]
    assert some.err == "113 more; --limit 0 shows all.\n"


def test_ls_shows_fifty_in_a_table_on_a_terminal_and_says_so(tmp_path) -> None:
    ds = sl.create(tmp_path / "many", sl.Schema({"task": pa.string()}))
    ds.append([{"sequence_id": f"ep_{number:03}", "task": "pick"} for number in range(120)])
    call = [sys.executable, "-c", "from seqlake.cli import main; main()", "ls", ds.location]
    for more, shown in (([], 50), (["-q"], 120), (["--limit", "0"], 120)):
        master, slave = pty.openpty()
        with subprocess.Popen([*call, *more], stdout=slave, stderr=subprocess.PIPE) as process:
            os.close(slave)
            out = _read(master)
            _, err = process.communicate()
        os.close(master)
        assert len(re.findall(rb"ep_\d{3}", out)) == shown
        assert err == (b"70 more; --limit 0 shows all.\n" if shown == 50 else b"")


def _read(terminal: int) -> bytes:
    """All that is shown."""
    found = b""
    try:
        while part := os.read(terminal, 65536):
            found += part
    except OSError:  # Linux says so at the end
        pass
    return found


def test_ls_of_an_unknown_column_is_wrong_usage(run, dataset) -> None:
    told = run("ls", dataset, "--columns", "rewrad")
    assert told.code == 2
    assert "rewrad" in told.err


def test_ls_prints_shapes_not_numbers(run, dataset) -> None:
    out = run("ls", dataset, "--columns", "sequence_id,action", "-n", 1).out
    assert out.split() == ["sequence_id", "action", "ep_00", "[10]"]


def test_every_row_format_holds_the_same_rows(run, dataset) -> None:
    query = "SELECT sequence_id, reward FROM dataset WHERE reward < 2 ORDER BY 1"
    expected = [{"sequence_id": "ep_00", "reward": 0.0}, {"sequence_id": "ep_01", "reward": 1.0}]
    assert run("sql", dataset, query, "--json").json["rows"] == expected
    lines = run("sql", dataset, query, "--format", "ndjson").out.splitlines()
    assert [json.loads(line) for line in lines] == expected
    assert run("sql", dataset, query, "--format", "csv").out == "sequence_id,reward\nep_00,0.0\nep_01,1.0\n"
    assert run("sql", dataset, query, "--format", "tsv").out.splitlines()[1] == "ep_00\t0.0"


def test_sql_writes_parquet_and_never_over_a_file(run, dataset, tmp_path) -> None:
    out = tmp_path / "answer.parquet"
    query = "SELECT task, count(*) AS n FROM dataset GROUP BY task ORDER BY task"
    assert run("sql", dataset, query, "-o", out).code == 0
    assert pq.read_table(io.BytesIO(out.read_bytes())).to_pydict() == {"task": ["pick", "place"], "n": [6, 6]}
    assert run("sql", dataset, query, "-o", out).code == 2


def test_sql_that_does_not_bind_is_one_line(run, dataset) -> None:
    told = run("sql", dataset, "SELECT nothing FROM dataset")
    assert told.code == 2
    assert told.err.startswith("seqlake: error:")
    assert "Traceback" not in told.err


def test_not_finite_numbers_are_null_in_json(run, dataset) -> None:
    told = run("sql", dataset, "SELECT sequence_id, 'nan'::DOUBLE AS x FROM dataset LIMIT 1", "--json")
    assert told.json["rows"] == [{"sequence_id": "ep_00", "x": None}]


def test_show_gives_scalars_and_statistics_of_each_dimension(run, dataset) -> None:
    document = run("show", dataset, "ep_03", "--json").json
    action = sl.open(dataset)["ep_03"]["action"]
    assert document["scalars"]["task"] == "place"
    dims = document["signals"][0]["dims"]
    assert [round(d["max"], 6) for d in dims] == [round(float(x), 6) for x in action.max(0)]
    assert "f32[13,3]" in run("show", dataset, "ep_03").out


def test_show_says_how_many_dimensions_it_leaves_out_and_programs_get_all(run, tmp_path) -> None:
    ds = sl.create(tmp_path / "wide", sl.Schema({"x": sl.Trajectory(dim=30)}))
    ds.append([{"sequence_id": "a", "x": [[float(n) for n in range(30)]] * 3}])
    told = run("show", ds.location, "a").out.splitlines()
    assert (len(told), told[-1]) == (19, "  the first 16 of 30 dimensions; --no-truncate shows all")
    assert len(run("show", ds.location, "a", "--no-truncate").out.splitlines()) == 32
    assert len(run("show", ds.location, "a", "--json").json["signals"][0]["dims"]) == 30


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "DS", "ID"),
        ("set", "DS", "ID", "reward=1"),
        ("frames", "DS", "ID", "x", "-o", "OUT"),
        ("subset", "DS", "OUT", "--ids", "IDS"),
        ("trim", "DS", "OUT", "--start", "1", "--ids", "IDS"),
        ("delete", "DS", "--ids", "IDS"),
        ("label", "DS", "good", "1", "--ids", "IDS"),
        ("label", "DS", "--csv", "CSV"),
    ],
    ids=" ".join,
)
def test_an_unknown_id_has_the_nearest_beside_it(run, tmp_path, arguments) -> None:
    place = tmp_path / "ds"
    ds = sl.create(place, sl.Schema({"reward": pa.float64(), "x": sl.Trajectory(dim=1, fps=10)}))
    ds.append([{"sequence_id": name, "x": [[0.0], [1.0]]} for name in ("walk_01", "grasp_02")])
    (tmp_path / "ids").write_text("walk_01\ngrasp_2\n")
    (tmp_path / "labels.csv").write_text("sequence_id,reward\nwalk_01,1\ngrasp_2,2\n")
    given = {"DS": place, "ID": "grasp_2", "OUT": tmp_path / "out", "IDS": tmp_path / "ids"}
    result = run(*({**given, "CSV": tmp_path / "labels.csv"}.get(one, one) for one in arguments))
    assert (result.code, result.out) == (1, "")
    assert "'grasp_2'" in result.err
    assert f"Did you mean 'grasp_02'? `seqlake ls {place} -q` lists the ids." in result.err
    assert "ds[" not in result.err
    assert len(sl.open(place).versions()) == len(ds.versions())
    assert not (tmp_path / "out").exists()


def test_samples_have_no_ids_to_be_named_by(run, tmp_path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    result = run("show", tmp_path, "a")
    assert result.code == 2
    assert "samples without" in result.err


def test_a_foreign_folder_is_looked_at_as_it_is(run, dataset, tmp_path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    pq.write_table(sl.open(dataset).select("sequence_id", "reward").to_arrow(), folder / "a.parquet")
    assert run("ls", folder, "-q").out.split() == [f"ep_{i:02d}" for i in range(12)]


def test_versions_oldest_first(run, dataset) -> None:
    sl.open(dataset).delete("reward < 2")
    listed = run("versions", dataset, "--json").json["rows"]
    assert [v["rows"] for v in listed][-2:] == [12, 10]
    assert listed[-1]["operation"] == "delete"
    assert run("info", dataset, "--version", listed[-2]["id"], "--json").json["rows"] == 12


WRONG = [
    ["ls", "--columns", "rewrad"],
    ["ls", "--sort", "-rewrad"],
    ["ls", "--where", "rewrad > 3"],
    ["sql", "SELECT rewrad FROM dataset"],
    ["sql", "SELECT dataset.rewrad FROM dataset"],
    ["show", "--sheet", "OUT.png", "--where", "rewrad > 3"],
    ["subset", "OUT", "--columns", "rewrad"],
    ["subset", "OUT", "--where", "rewrad > 3"],
    ["trim", "OUT", "--start", 1, "--columns", "rewrad"],
    ["trim", "OUT", "--start", 1, "--where", "rewrad > 3"],
    ["segment", "OUT", "--length", 1, "--columns", "rewrad"],
    ["segment", "OUT", "--length", 1, "--where", "rewrad > 3"],
    ["segment", "OUT", "--by", "rewrad"],
    ["resample", "OUT", "--fps", 5, "--signals", "rewrad"],
    ["resample", "OUT", "--fps", 5, "--method", "rewrad=hold"],
    ["resample", "OUT", "--fps", 5, "--columns", "rewrad"],
    ["resample", "OUT", "--fps", 5, "--where", "rewrad > 3"],
    ["repack", "OUT", "--where", "rewrad > 3"],
    ["merge", "OUT", "--rename", "rewrad=r"],
    ["merge", "OUT", "--rename", "rewrad=r", "--dry-run"],
    ["files", "--columns", "rewrad"],
    ["files", "--where", "rewrad > 3"],
    ["stats", "--columns", "rewrad"],
    ["stats", "--where", "rewrad > 3"],
    ["view", "--where", "rewrad > 3", "--no-open"],
    ["bench", "--columns", "rewrad", "--seconds", 0.1],
    ["bench", "--where", "rewrad > 3", "--seconds", 0.1],
    ["frames", "ep_00", "rewrad", "-o", "OUT"],
    ["split", "--group", "rewrad"],
    ["split", "--stratify", "rewrad"],
    ["split", "OUT", "--by", "rewrad"],
    ["split", "OUT", "--by", "rewrad", "--dry-run"],
    ["convert", "OUT", "--where", "rewrad > 3"],
    ["convert", "SAMPLES", "OUT", "--sequence-id", "rewrad"],
    ["convert", "SAMPLES", "OUT", "--sequence-id", "task", "--steps", "rewrad"],
    ["convert", "SAMPLES", "OUT", "--sequence-id", "task", "--steps", "reward", "--timestamps", "rewrad"],
    ["similar", "ep_00", "--by", "rewrad"],
    ["similar", "ep_00", "--by", "action", "--where", "rewrad > 3"],
    ["init", "PLAIN", "--type", "rewrad=label"],
    ["label", "good", "--sql", "rewrad > 3"],
    ["label", "good", 1, "--where", "rewrad > 3"],
    ["set", "ep_00", "rewrad=1"],
    ["delete", "--where", "rewrad > 3"],
    ["rename", "rewrad", "r"],
    ["drop", "rewrad"],
    ["relocate", "--inline", "rewrad"],
    ["relocate", "--extract", "rewrad"],
    ["relocate", "--extract", "rewrad", "--dry-run"],
    ["schema", "--set", "rewrad=label"],
    ["prepare", "--video", "rewrad=48x64"],
]
NEW_NAMES = {("label", "column"), ("convert", "mapped"), ("convert", "videos")}
"""Columns that need not be there."""


def takes_columns(parameter: click.Parameter) -> bool:
    return (
        parameter.name == "query"
        or parameter._custom_shell_complete is complete_columns
        or re.search(r"\b(COLUMNS?|SQL|EXPRESSION|A,B|OLD)\b", parameter.metavar or "") is not None
    )


@pytest.fixture
def places(dataset, tmp_path) -> dict[str, Path]:
    """What commands are given instead of the dataset, and where they write."""
    (tmp_path / "plain").mkdir()
    rows = sl.open(dataset).to_arrow()
    pq.write_table(rows, tmp_path / "plain" / "rows.parquet")
    columns = dict.fromkeys(("action", "reward", "task"), "str")
    with sl.create(tmp_path / "samples", columns, format="mds") as writer:
        writer.write(dict.fromkeys(columns, "x"))
    names = {"OUT": "out", "OUT.png": "out.png", "SAMPLES": "samples", "PLAIN": "plain"}
    return {word: tmp_path / name for word, name in names.items()}


def test_every_option_that_names_columns_is_among_these(dataset, places) -> None:
    context = click.Context(commands, **commands.context_settings)  # a command keeps its first --help
    expected, given = set(), set()
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        expected |= {(name, one.name) for one in command.params if takes_columns(one)}
    for verb, *rest in WRONG:
        source = [] if {"SAMPLES", "PLAIN"} & set(rest) else [dataset]
        arguments = [str(places.get(one, one)) for one in (*source, *rest)]
        with commands.get_command(context, verb).make_context(verb, arguments, parent=context) as made:
            given |= {(verb, name) for name, value in made.params.items() if "rewrad" in str(value)}
    assert expected - given == NEW_NAMES


@pytest.mark.sampled
@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("arguments", WRONG, ids=lambda one: " ".join(map(str, one)))
def test_a_wrong_column_is_one_line_with_the_nearest_and_wrong_usage(run, dataset, places, arguments, form) -> None:
    verb, *rest = arguments
    source = [] if {"SAMPLES", "PLAIN"} & set(rest) else [dataset]
    told = run(verb, *source, *(places.get(one, one) for one in rest), *form)
    assert (told.code, told.out) == (2, "")
    there = "action, reward, task" if "SAMPLES" in rest else "sequence_id, task, reward, action"
    text = f"No column 'rewrad'; there are {there}."
    if form:
        error = json.loads(told.err)["error"]
        assert (error["message"], error["hint"]) == (text, "Did you mean 'reward'?")
    else:
        assert told.err == f"seqlake: error: {text} Did you mean 'reward'?\n"
    assert not places["OUT"].exists()
    assert not places["OUT.png"].exists()


def test_a_name_with_a_dot_needs_quotes(run, tmp_path) -> None:
    ds = sl.create(
        tmp_path / "dots", sl.Schema({"observation.state": sl.Trajectory(dim=2), "meta.robot.arm": pa.int64()})
    )
    ds.append([{"sequence_id": "a", "meta.robot.arm": 3}])
    for name in ds.schema.names[1:]:
        told = run("ls", ds.location, "--where", f"{name} IS NULL")
        assert told.code == 2
        assert told.err.endswith(f"""A name with a dot stands in double quotes, as in "{name}".\n""")
        assert run("ls", ds.location, "--where", f'"{name}" IS NULL').code == 0


def test_sql_shows_short_lists_and_all_of_every_list_when_asked(run, dataset) -> None:
    query = "SELECT [1, 2.5] AS short, range(9) AS long, [[1, 2]] AS nested FROM dataset LIMIT 1"
    assert run("sql", dataset, query).out.splitlines()[1] == "[1.0, 2.5]  [9]   [1]"
    told = run("sql", dataset, query, "--no-truncate").out.splitlines()[1]
    assert told == "[1.0, 2.5]  [0, 1, 2, 3, 4, 5, 6, 7, 8]  [[1, 2]]"


@pytest.mark.parametrize("verb", ["info", "ls", "schema", "stats", "validate"])
def test_a_folder_of_datasets_is_no_dataset(run, dataset, verb) -> None:
    told = run(verb, dataset.parent)
    assert told.code == 1
    assert "it is a folder of datasets (arm). Open one of them." in told.err


def test_columns_in_the_names_of_folders(run, tmp_path) -> None:
    for split in ("train", "val"):
        folder = tmp_path / "set" / "data" / f"split={split}"
        folder.mkdir(parents=True)
        action = pa.array([[[1.0, 2.0]], [[2.0, 1.0]]], pa.list_(pa.list_(pa.float32())))
        pq.write_table(pa.table({"sequence_id": [f"{split}0", f"{split}1"], "action": action}), folder / "x.parquet")
    assert run("init", tmp_path / "set").code == 0
    assert "split" in run("info", tmp_path / "set").out
    asked = run("sql", tmp_path / "set", "SELECT split, count(*) AS n FROM dataset GROUP BY ALL ORDER BY ALL", "--json")
    assert json.loads(asked.out)["rows"] == [{"split": "train", "n": 2}, {"split": "val", "n": 2}]
    assert run("ls", tmp_path / "set", "--where", "split = 'val'", "-q").out.split() == ["val0", "val1"]
    assert run("validate", tmp_path / "set").code == 0
    refused = run("adopt", tmp_path / "set")
    assert refused.code == 1
    assert "repack" in refused.err
    assert run("repack", tmp_path / "set", tmp_path / "out").code == 0
    assert run("ls", tmp_path / "out", "--where", "split = 'val'", "-q").out.split() == ["val0", "val1"]


def test_sql_over_damaged_pages_is_one_line_of_ours(run, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"x": pa.float64()})
    ds.append([{"sequence_id": f"s{number}", "x": float(number)} for number in range(2000)])
    (shard,) = (tmp_path / "ds").rglob("data/**/*.parquet")
    chunk = next(
        chunk for chunk in map(pq.read_metadata(shard).row_group(0).column, range(2)) if chunk.path_in_schema == "x"
    )
    data = bytearray(shard.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + 40] = bytes(40)
    shard.write_bytes(data)
    told = run("sql", tmp_path / "ds", "SELECT sum(x) FROM dataset")
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("seqlake: error: Expected a Parquet page header")
    assert told.err.count("\n") == 1


def test_a_signal_of_no_steps_is_written_and_shown(run: Any, tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "poses", {"pose": sl.Trajectory(shape=(2, 3))})
    ds.append([{"sequence_id": "none", "pose": np.zeros((0, 2, 3))}])
    result = run("show", tmp_path / "poses", "none")
    assert result.code == 0
    assert "pose: f32[0,2,3]" in result.out


def test_info_says_where_media_stand_better(run, tmp_path) -> None:
    def photo(size: int) -> bytes:
        return b"\x89PNG\r\n\x1a\n" + bytes(size - 8)

    types = {"small": sl.Image(), "held": sl.Image(inline=True), "large": sl.Image(inline=True), "gone": sl.Image()}
    ds = sl.create(tmp_path / "ds", sl.Schema({**types, "middle": sl.Image()}))
    for name, size in (("small", 1000), ("middle", 300_000)):
        (tmp_path / f"{name}.png").write_bytes(photo(size))
    row = {"held": photo(2000), "large": photo(5 << 20), "small": sl.File(tmp_path / "small.png"), "gone": "gone.png"}
    ds.append([{"sequence_id": str(n), **row, "middle": sl.File(tmp_path / "middle.png")} for n in range(2)])
    media = run("info", tmp_path / "ds", "--json").json["media"]
    assert {name: (one["inline"], one["better"], one["mean"]) for name, one in media.items()} == {
        "small": (False, "inline", 1000),
        "held": (True, "inline", 2000),
        "large": (True, "files", 5 << 20),
        "middle": (False, "either", 300_000),
    }  # and nothing of files that are not there
    told = run("info", tmp_path / "ds").out
    assert f"seqlake relocate {tmp_path / 'ds'} --inline small`" in told
    assert f"seqlake relocate {tmp_path / 'ds'} --extract large`" in told
    assert "--extract held" not in told
    assert run("relocate", tmp_path / "ds", "--inline", "small").code == 0
    assert run("relocate", tmp_path / "ds", "--extract", "large").code == 0
    media = run("info", tmp_path / "ds", "--json").json["media"]
    assert {name: one["inline"] for name, one in media.items()} == {
        "small": True,
        "held": True,
        "large": False,
        "middle": False,
    }
