from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl


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
