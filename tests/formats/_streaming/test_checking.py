"""`validate` and `info` of folders of others: what is wrong with them, and what the official reader would not say."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import seqlake as sl
from seqlake.abilities import Checked, ability
from seqlake.cli import main
from seqlake.dataset.validation import validate

from ..by_hand import arm, lines, write  # noqa: TID252 - one tool for several formats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cells = [{"name": arm(i)["name"], "label": arm(i)["label"]} for i in range(6)]
    return write(tmp_path / "set", {"name": "str", "label": "int"}, [cells[:4], cells[4:]], hashes=("md5", "sha1"))


def findings(folder: Path, depth: str = "rows") -> list[tuple[str, str, str]]:
    return [(f.code, f.severity, f.location) for f in ability(sl.scan(folder, format="mds"), Checked).check(depth)]


def edit(folder: Path, change) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"])
    (folder / "index.json").write_text(json.dumps(index))


def test_a_sound_folder_has_no_findings(folder: Path, tmp_path: Path) -> None:
    assert findings(folder) == []
    assert validate(sl.scan(folder), depth="decode").ok
    assert findings(lines(tmp_path / "csv", "csv", {"a": "int"}, [[b"1\n"]], header=b"a\n")) == []
    assert findings(lines(tmp_path / "json", "json", {"a": "int"}, [[b'{"a": 1}\n']])) == []


def test_a_flipped_byte_is_found_by_every_hash(folder: Path) -> None:
    path = folder / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert findings(folder, "metadata") == []
    assert findings(folder) == [("streaming-hash", "error", "shard.00001.mds")] * 2


def test_missing_files_other_sizes_and_strays(folder: Path) -> None:
    (folder / "shard.00000.mds").unlink()
    with (folder / "shard.00001.mds").open("ab") as file:
        file.write(b"more")
    (folder / "shard.00007.mds").write_bytes(b"")
    (folder / "notes.txt").write_text("mine")
    assert findings(folder, "metadata") == [
        ("streaming-missing", "error", "shard.00000.mds"),
        ("streaming-size", "error", "shard.00001.mds"),
        ("streaming-stray", "note", "shard.00007.mds"),
    ]
    assert ("streaming-unreadable", "error", "shard.00001.mds") in findings(folder)


def test_a_shard_of_another_set_is_noticed_by_its_own_head(folder: Path, tmp_path: Path) -> None:
    edit(folder, lambda shards: shards[0].update(column_encodings=["bytes", "str"], column_sizes=[8, None]))
    assert ("streaming-head", "error", "shard.00000.mds") in findings(folder)


def test_what_the_official_reader_refuses_or_runs(tmp_path: Path) -> None:
    cell = pickle.dumps(1)
    folder = write(tmp_path / "set", {"x": "pkl"}, [[{"x": cell}], []])
    edit(folder, lambda shards: shards[0].update(colour="blue"))
    assert findings(folder, "metadata") == [
        ("streaming-unknown-key", "warning", "index.json"),
        ("streaming-pickle", "warning", "index.json"),
        ("streaming-empty", "note", "shard.00001.mds"),
    ]


def test_names_of_compressions_hashes_and_files(folder: Path) -> None:
    def change(shards: list) -> None:
        shards[1]["raw_data"]["basename"] = "shard.00000.mds"
        shards[1]["hashes"] = ["crc7"]

    edit(folder, change)
    codes = [code for code, _, _ in findings(folder, "metadata")]
    assert codes == ["streaming-twice", "streaming-hash-name", "streaming-size", "streaming-stray"]
    edit(folder, lambda shards: shards[0].update(compression="lzma", zip_data=shards[0]["raw_data"]))
    assert "streaming-compression" in [code for code, _, _ in findings(folder, "metadata")]


def test_columns_in_another_order_are_noticed(folder: Path) -> None:
    def change(shards: list) -> None:
        for shard in shards:
            for key in ("column_names", "column_encodings", "column_sizes"):
                shard[key].reverse()

    edit(folder, change)
    assert ("streaming-order", "warning", "index.json") in findings(folder, "metadata")


def test_an_interrupted_run_is_seen(tmp_path: Path) -> None:
    with sl.create(tmp_path / "out", {"a": "int"}, format="mds") as writer:
        writer.write({"a": 1})
    sl.create(tmp_path / "out", {"a": "int"}, format="mds", mode="append")
    assert findings(tmp_path / "out", "metadata") == [("streaming-unfinished", "warning", "_writing/settings.json")]


def test_a_bad_sample_is_a_finding_with_its_shard(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"x": "str"}, [[{"x": b"fine"}, {"x": b"\xff"}]])
    report = validate(sl.scan(folder), depth="rows")
    [error] = report.errors
    assert "sample 1, column 'x'" in error.message


def test_the_commands(folder: Path, capsys) -> None:
    for command, code in ((["info", str(folder)], 0), (["validate", str(folder), "--depth", "rows"], 0)):
        with pytest.raises(SystemExit) as done:
            main(command)
        assert (done.value.code or 0) == code
    out, err = capsys.readouterr()
    assert "6 samples in 2 shards" in out
    assert "0 errors" in err
    (folder / "shard.00000.mds").unlink()
    with pytest.raises(SystemExit) as done:
        main(["validate", str(folder), "--depth", "metadata"])
    assert done.value.code == 1
    assert "streaming-missing" in capsys.readouterr().out


def test_info_says_it_before_anything_is_read(folder: Path, capsys) -> None:
    (folder / "shard.00007.mds").write_bytes(b"")
    with (folder / "shard.00001.mds").open("ab") as file:
        file.write(b"more")
    edit(folder, lambda shards: shards[0].update(colour="blue"))
    size = (folder / "shard.00001.mds").stat().st_size
    with pytest.raises(SystemExit) as done:
        main(["info", str(folder)])
    assert not done.value.code
    out = capsys.readouterr().out
    assert "note: warning, index.json: shard 0 has the key 'colour', which MosaicML Streaming refuses" in out
    assert f"note: error, shard.00001.mds: it has {size} bytes, the index says {size - 4}" in out
    assert "note: note, shard.00007.mds: the index does not name this file" in out


READ = """
from streaming import LocalDataset
dataset = LocalDataset(folder)
result = [dict(dataset[number]) for number in range(len(dataset))]
"""


@pytest.mark.parametrize("damage", ["flip", "grow", "pickle"])
def test_what_the_official_reader_takes_without_a_word_is_a_finding(folder, tmp_path, official, damage: str) -> None:
    if damage == "pickle":
        folder = write(tmp_path / "pickles", {"x": "pkl"}, [[{"x": pickle.dumps("run")}]])
        assert official(READ, folder=str(folder)) == [{"x": "run"}]
        assert [code for code, _, _ in findings(folder)] == ["streaming-pickle"]
        return
    path = folder / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    before = official(READ, folder=str(folder))
    if damage == "flip":
        data[-1] ^= 1
    path.write_bytes(data + b"more" * (damage == "grow"))
    taken = official(READ, folder=str(folder))
    assert len(taken) == 6
    assert (taken != before) == (damage == "flip")
    expected = {"flip": "streaming-hash", "grow": "streaming-size"}[damage]
    assert expected in [code for code, _, _ in findings(folder)]
