from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.files.local import LocalStore

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named


def snapshot(folder) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_dry_runs_write_nothing(run, dataset, tmp_path) -> None:
    before = snapshot(tmp_path)
    out = tmp_path / "out"
    for command in (
        ["repack", dataset, out],
        ["subset", dataset, out, "--where", "reward > 3"],
        ["merge", dataset, out],
        ["split", dataset],
        ["convert", dataset, out],
        ["adopt", dataset],
        ["vacuum", dataset],
        ["compact", dataset],
        ["rollback", dataset, "0"],
    ):
        told = run(*command, "--dry-run")
        assert told.code == 0, (command, told.err)
        assert snapshot(tmp_path) == before, command


def test_repack_keeps_every_value_in_both_layouts(run, dataset, tmp_path) -> None:
    truth = sl.open(dataset).to_arrow()
    for layout in ("training", "archive"):
        out = tmp_path / layout
        assert run("repack", dataset, out, "--layout", layout, "--rows-per-shard", 5).code == 0
        assert sl.open(out).to_arrow().equals(truth)
        assert len(sl.open(out).shards()) == 3


def test_a_place_that_is_taken_is_refused(run, dataset, tmp_path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("precious")
    for command in (["repack", dataset, taken], ["merge", dataset, taken], ["convert", dataset, taken]):
        told = run(*command)
        assert told.code == 1, command
        assert snapshot(taken) == {"mine.txt": b"precious"}


def test_ids_flow_from_ls_to_subset(run, dataset, tmp_path) -> None:
    ids = tmp_path / "ids"
    ids.write_text(run("ls", dataset, "--where", "reward < 3", "-q").out)
    assert run("subset", dataset, tmp_path / "kept", "--ids", ids).code == 0
    assert [s.id for s in sl.open(tmp_path / "kept")] == ["ep_00", "ep_01", "ep_02"]
    assert run("subset", dataset, tmp_path / "dropped", "--ids", ids, "--drop").code == 0
    assert len(sl.open(tmp_path / "dropped")) == 9
    columns = run("subset", dataset, tmp_path / "narrow", "--columns", "reward")
    assert columns.code == 0
    assert sl.open(tmp_path / "narrow").schema.names == ["sequence_id", "reward"]


def test_subset_of_nothing_in_particular_is_wrong_usage(run, dataset, tmp_path) -> None:
    assert run("subset", dataset, tmp_path / "out").code == 2


def test_merge_refuses_ids_that_meet(run, dataset, tmp_path) -> None:
    assert run("subset", dataset, tmp_path / "a", "--where", "reward < 4").code == 0
    assert run("subset", dataset, tmp_path / "b", "--where", "reward >= 4").code == 0
    assert run("merge", tmp_path / "a", tmp_path / "b", tmp_path / "both").code == 0
    assert sl.open(tmp_path / "both").to_arrow().equals(sl.open(dataset).to_arrow())
    told = run("merge", tmp_path / "a", tmp_path / "a", tmp_path / "twice")
    assert told.code == 1
    assert "ep_00" in told.err
    assert not (tmp_path / "twice" / "data").exists() or not list((tmp_path / "twice" / "data").iterdir())


def test_split_assigns_and_writes(run, dataset, tmp_path) -> None:
    told = run("split", dataset, "--shares", "train=0.5,val=0.5", "--stratify", "task", "--json")
    counts = told.json["splits"]
    assert sum(counts.values()) == 12
    stored = dict(sl.open(dataset).sql("SELECT split, count(*) FROM dataset GROUP BY 1").fetchall())
    assert stored == counts
    assert run("split", dataset, tmp_path / "parts").code == 0
    assert len(sl.open(tmp_path / "parts" / "train")) == counts["train"]


def test_split_with_shares_that_are_none(run, dataset) -> None:
    assert run("split", dataset, "--shares", "train").code == 2


def test_init_makes_a_plain_folder_a_dataset(run, tmp_path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    table = pa.table({"sequence_id": ["a", "b"], "action": [[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]]]})
    pq.write_table(table, folder / "rows.parquet")
    before = (folder / "rows.parquet").read_bytes()
    assert run("init", folder, "--dry-run").code == 0
    assert not (folder / "mixtrain.json").exists()
    assert run("init", folder, "--type", 'action={"type": "trajectory", "dim": 2}').code == 0
    assert json.loads((folder / "mixtrain.json").read_text())["mixtrain"] == "1.0"
    assert (folder / "rows.parquet").read_bytes() == before
    assert sl.open(folder)["b"]["action"].tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert run("init", folder).code == 1
    assert run("init", folder, "--type", "action").code == 2


def test_validate_finds_and_its_exit_code_says_so(run, dataset, tmp_path) -> None:
    assert run("validate", dataset, "--depth", "rows").code == 0
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    (folder / "data").mkdir()
    pq.write_table(pa.table({"sequence_id": ["a", "a"], "x": [1, 2]}), folder / "data" / "rows.parquet")
    told = run("validate", folder, "--depth", "rows", "--json")
    assert told.code == 1
    assert any(f["severity"] == "error" for f in told.json["findings"])


def test_validate_says_what_is_wrong_with_metadata_that_cannot_be_used(run, dataset, tmp_path) -> None:
    first = sl.open(dataset).versions()[0].id
    assert run("validate", dataset, "--version", first, "--json").code == 0
    folder = tmp_path / "damaged"
    folder.mkdir()
    pq.write_table(pa.table({"sequence_id": ["a"]}), folder / "rows.parquet")
    for text, code in (('{"mixtrain": ', "M101"), ('{"mixtrain": "2.0"}', "M102")):
        (folder / "mixtrain.json").write_text(text)
        told = run("validate", folder, "--json")
        assert (told.code, [f["code"] for f in told.json["findings"]]) == (1, [code])
    (folder / "mixtrain.json").unlink()
    assert run("validate", folder).code == 0  # as it is, without being a dataset
    assert run("validate", tmp_path / "nowhere").code == 1


def test_compact(run, dataset) -> None:
    truth = sl.open(dataset).to_arrow()
    told = run("compact", dataset, "--dry-run", "--json").json
    assert told["dry_run"]
    done = run("compact", dataset, "--json").json
    assert (done["before"], done["rewritten"]) == (told["before"], told["rewritten"])
    assert done["after"] == len(sl.open(dataset).shards())
    assert sl.open(dataset).to_arrow().sort_by("sequence_id").equals(truth.sort_by("sequence_id"))
    assert "anew" in run("compact", dataset).out


def test_rollback_and_collect(run, dataset) -> None:
    ds = sl.open(dataset)
    ds.delete("reward < 6")
    full = ds.versions()[-2].id
    assert run("rollback", dataset, full).code == 0
    assert len(sl.open(dataset)) == 12
    assert run("vacuum", dataset, "--older-than", 0).code == 0
    assert sl.open(dataset).to_arrow().num_rows == 12


def test_adopt_takes_in_a_shard_that_others_dropped(run, dataset) -> None:
    extra = sl.open(dataset).to_arrow().slice(0, 1).set_column(0, "sequence_id", pa.array(["new"]))
    pq.write_table(extra, dataset / "data" / "theirs.parquet")
    assert run("adopt", dataset, "--dry-run", "--json").json["shards"]
    assert run("adopt", dataset).code == 0
    assert len(sl.open(dataset)) == 13


def test_index_makes_plain_files_of_others_direct(run, tmp_path) -> None:
    folder = tmp_path / "theirs"
    (folder / "data").mkdir(parents=True)
    (folder / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    action = [[[float(i), float(t)] for t in range(5 + i)] for i in range(4)]
    rows = pa.table({"sequence_id": list("abcd"), "action": action})
    pq.write_table(rows, folder / "data" / "plain.parquet", compression="none", use_dictionary=False)
    before = snapshot(folder)
    could = run("index", folder, "--dry-run", "--json").json["columns"]
    assert could == [{"column": "action", "indexed": 1, "shards": 1}]
    assert snapshot(folder) == before
    assert run("info", folder, "--json").json["not_flat"] == ["action"]
    assert run("index", folder, "--json").json["columns"] == could
    assert run("info", folder, "--json").json["not_flat"] == []
    assert (folder / "data" / "plain.parquet").read_bytes() == before["data/plain.parquet"]
    assert sl.open(folder)["c"]["action"].tolist() == action[2]


def test_index_says_what_it_cannot_do(run, tmp_path) -> None:
    folder = tmp_path / "theirs"
    (folder / "data").mkdir(parents=True)
    (folder / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    pq.write_table(pa.table({"sequence_id": ["a"], "x": [[[1.0]]]}), folder / "data" / "snappy.parquet")
    told = run("index", folder)
    assert "0 of 1 shards" in told.out
    assert "seqlake repack" in told.out


def test_nothing_is_written_into_a_dataset_by_another_verb(run, dataset) -> None:
    before = snapshot(dataset)
    for out in (dataset, dataset / "part", dataset / "data" / "part"):
        for command in (
            ["subset", dataset, out, "--where", "reward > 3"],
            ["repack", dataset, out],
            ["convert", dataset, out],
            ["convert", dataset, out, "--to", "mds"],
            ["trim", dataset, out, "--start", 1],
            ["split", dataset, out, "--by", "task"],
            ["subset", dataset, out, "--where", "reward > 3", "--overwrite"],
        ):
            told = run(*command)
            assert told.code in {1, 2}, (command, told.err)
            assert snapshot(dataset) == before, command


def test_convert_counts_sequences_not_samples(run, tmp_path) -> None:
    with sl.create(
        tmp_path / "mds", {"episode": "str", "step": "int", "x": "ndarray:float32:2"}, format="mds"
    ) as writer:
        for step in range(10):
            writer.write({"episode": f"ep_{step % 3}", "step": step, "x": np.ones(2, "f4")})
    told = run("convert", tmp_path / "mds", tmp_path / "arm", "--sequence-id", "episode", "--steps", "step")
    assert told.out.startswith("3 sequences at ")
    told = run("convert", tmp_path / "arm", tmp_path / "again", "--to", "mds")
    assert told.out.startswith("3 sequences at ")


def test_a_conversion_that_leaves_files_behind_says_where_they_stay(run, tmp_path) -> None:
    (tmp_path / "a.mcap").write_bytes(b"abc")
    ds = sl.create(tmp_path / "arm", sl.Schema({"log": sl.ColumnType("mcap"), "task": pa.string()}))
    ds.append([{"sequence_id": "a", "log": sl.File(tmp_path / "a.mcap"), "task": "x"}])
    told = run("convert", ds.location, tmp_path / "mds", "--to", "mds")
    assert f"The files that log name stay at {ds.location}" in told.err
    [sample] = sl.scan(tmp_path / "mds").to_arrow().to_pylist()
    assert Path(sample["log"]).read_bytes() == b"abc"
    assert "stay at" not in run("convert", ds.location, tmp_path / "ours").err


def test_split_warns_of_parts_that_nobody_is_in(run, dataset) -> None:
    told = run("split", dataset, "--shares", "train=0.999,val=0.001")
    assert (told.code, told.out) == (0, "train: 12 sequences\nval: 0 sequences\n")
    assert told.err.count("No sequence is in val: 12 sequences or groups are too few") == 1
    assert "No sequence" in run("split", dataset, "--shares", "train=0.999,val=0.001", "--dry-run").err
    assert run("split", dataset, "--shares", "train=0.5,val=0.5", "--dry-run").err == ""
    assert run("split", dataset, "--shares", "train=1,val=0", "--dry-run").err == ""


def test_vacuum_says_how_much_it_frees(run, dataset) -> None:
    old = sum(path.stat().st_size for path in dataset.glob("data/*.parquet"))
    sl.open(dataset).delete("true")
    planned = run("vacuum", dataset, "--older-than", 0, "--dry-run", "--json").json
    told = run("vacuum", dataset, "--older-than", 0, "--json").json
    assert planned["nbytes"] == told["nbytes"] >= old
    assert {**planned, "dry_run": False} == told
    assert run("vacuum", dataset, "--older-than", 0).out.startswith("Removed 0 files, 0 B.")


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("kind", ["standalone", "delta", "iceberg", "ducklake"])
def test_vacuum_counts_bytes_by_the_listings_that_it_makes_anyway(kind, run, tmp_path, monkeypatch) -> None:
    ds = sl.create(PLACES[kind].format(folder=tmp_path, name="ds"), sl.Schema({"reward": pa.float64()}))
    ds.append([{"sequence_id": f"ep_{n}", "reward": n / 2} for n in range(3)])
    ds.delete("reward > 0")

    def there() -> dict[Path, int]:
        return {path: path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()}

    lists, before = [], there()
    listed = LocalStore.list
    monkeypatch.setattr(LocalStore, "list", lambda *given, **how: lists.append(given[1:]) or listed(*given, **how))
    told = run("vacuum", ds.location, "--older-than", 0, "--json").json
    monkeypatch.undo()
    left = there()
    gone = {path: size for path, size in before.items() if path not in left and "versions" not in path.parts}
    assert len(gone) >= len(told["removed"]) > 0
    assert told["nbytes"] == sum(size for path, size in gone.items() if str(path).endswith(tuple(told["removed"])))
    assert () not in lists


def test_fold(run, dataset) -> None:
    ds = sl.open(dataset)
    ds.add_column("good", pa.bool_(), values={"ep_01": True})
    ds.rename_column("reward", "score")
    info = run("info", dataset)
    assert "labels beside the files: good" in info.out
    assert "`seqlake fold` writes them anew" in info.out
    unfolded = {"renamed": {"reward": "score"}, "beside": {"good": "_seqlake/side"}}
    assert run("info", dataset, "--json").json["unfolded"] == unfolded | {"added": ["good"]}
    before = snapshot(dataset)
    told = run("fold", dataset, "--dry-run", "--json").json
    assert (told["rewritten"], told["unfolded"]) == (2, unfolded | {"added": ["good"]})
    assert snapshot(dataset) == before
    assert run("fold", dataset, "-m", "for the web").out.startswith("Wrote 2 of 2 shards anew.\n")
    assert pq.read_table(dataset / "data").column_names == ["sequence_id", "task", "score", "action", "good"]
    assert run("info", dataset, "--json").json["unfolded"] == {}
    assert "Wrote 0 of 2" in run("fold", dataset).out


def test_schema_sets_types_and_metadata(run, dataset) -> None:
    count = len(sl.open(dataset).versions())
    told = run(
        *("schema", dataset, "--set", "task=video,fps=30,codec=h264", "--set", 'action={"type":"trajectory","dim":3}'),
        *("--set-metadata", "license=MIT", "--set-metadata", "robots=2"),
    )
    assert (told.code, told.err) == (0, f"Version {count}.\n")
    assert "fps=30, codec=h264" in told.out
    ds = sl.open(dataset)
    assert len(ds.versions()) == count + 1
    assert ds.schema["task"].type == sl.Video(fps=30, codec="h264")
    assert ds.schema.metadata.extra == {"license": "MIT", "robots": 2}
    assert "metadata: license=MIT, robots=2" in run("info", dataset).out
    run("schema", dataset, "--set", "task=", "--set-metadata", "license=")
    ds = sl.open(dataset)
    assert (ds.schema["task"].type, ds.schema.metadata.extra) == (None, {"robots": 2})


def test_schema_refuses_what_does_not_fit(run, dataset) -> None:
    before = snapshot(dataset)
    refused = run("schema", dataset, "--set", "action=trajectory,dim=4")
    assert refused.code == 1
    assert "3 numbers, 4 declared" in refused.err
    for wrong in ("task", "task=video,fps", "=video", "task={", "task=,fps=3"):
        assert run("schema", dataset, "--set", wrong).code == 2, wrong
    assert run("schema", dataset, "--set-metadata", "license").code == 2
    assert run("schema", dataset, "--set", "task=video", "--version", "0").code == 2
    assert "nothing was changed" in run("schema", dataset, "--set", "task=video", "--dry-run").err
    assert snapshot(dataset) == before
