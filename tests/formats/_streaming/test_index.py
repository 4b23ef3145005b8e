"""`index.json` as it comes from others: read whatever the order, refused where it makes no sense or reaches outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import seqlake as sl
from seqlake.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.formats import mds

from ..by_hand import arm, write  # noqa: TID252 - one tool for several formats


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "set", {"name": "str"}, [[{"name": arm(i)["name"]} for i in range(3)]], hashes=("sha1",))


def changed(folder: Path, change) -> Path:
    path = folder / "index.json"
    index = json.loads(path.read_text())
    change(index["shards"][0])
    path.write_text(json.dumps(index))
    return folder


def put(*keys: str, value: Any):
    def change(shard: dict[str, Any]) -> None:
        for key in keys[:-1]:
            shard = shard[key]
        shard[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "name", ["../shard.00000.mds", "/etc/passwd", "a/../../b", "C:\\x.mds", "..\\x", "a//b", "", "s3://b/x", "a\0b"]
)
def test_names_that_leave_the_folder_are_refused(folder: Path, name: str) -> None:
    with pytest.raises(UnsafeReferenceError):
        sl.scan(changed(folder, put("raw_data", "basename", value=name)), format="mds")


def test_a_link_out_of_the_folder_is_refused_unless_allowed(folder: Path, tmp_path: Path) -> None:
    shard = folder / "shard.00000.mds"
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        sl.scan(folder).to_arrow()
    assert sl.scan(folder, format="mds", allow_outside=True).to_arrow().num_rows == 3


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("samples",), -1),
        (("samples",), "3"),
        (("samples",), None),
        (("raw_data",), None),
        (("raw_data", "bytes"), -5),
        (("raw_data", "bytes"), 1 << 70),
        (("raw_data", "basename"), 5),
        (("raw_data", "hashes"), {"sha1": 5}),
        (("column_names",), ["a", "b"]),
        (("column_names",), []),
        (("column_sizes",), [None, None]),
        (("column_sizes",), [-8]),
        (("format",), "parquet"),
        (("version",), 1),
        (("compression",), 7),
        (("hashes",), "sha1"),
        (("size_limit",), "many"),
        (("size_limit",), -1),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_shard(folder: Path, keys: tuple[str, ...], value: Any) -> None:
    with pytest.raises(InvalidMetadataError, match="shard 0"):
        sl.scan(changed(folder, put(*keys, value=value)), format="mds")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"shards": 1, "version": 2}', '{"shards": [], "version": 1}', "nope"]
)
def test_what_is_no_index_is_refused(folder: Path, text: str) -> None:
    (folder / "index.json").write_text(text)
    with pytest.raises(InvalidMetadataError):
        sl.scan(folder, format="mds")


def test_order_of_keys_and_unknown_keys_do_not_matter(folder: Path) -> None:
    index = json.loads((folder / "index.json").read_text())
    shard = dict(reversed(index["shards"][0].items()), colour="blue")
    (folder / "index.json").write_text(json.dumps({"note": 1, "version": 2, "shards": [shard]}))
    source = mds.scan(str(folder))
    assert sl.scan(source).to_arrow()["name"].to_pylist() == ["ärm 0", "ärm 1", "ärm 2"]
    assert [finding.code for finding in source.check("metadata")] == ["streaming-unknown-key"]


def test_names_in_sub_folders_are_read(folder: Path) -> None:
    (folder / "3").mkdir()
    (folder / "shard.00000.mds").rename(folder / "3" / "shard.00000.mds")
    changed(folder, put("raw_data", "basename", value="3/shard.00000.mds"))
    assert len(sl.scan(folder).to_arrow()) == 3


def test_an_index_without_shards_is_empty(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    assert len(sl.scan(tmp_path)) == 0
    assert sl.scan(tmp_path).to_arrow().num_rows == 0


def test_splits_are_folders(folder: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match="split='set'"):
        sl.scan(folder.parent, format="mds")
    assert len(sl.scan(folder.parent, format="mds", split="set")) == 3


def test_a_split_cannot_climb(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    with pytest.raises(UnsafeReferenceError):
        sl.scan(folder.parent / "other", format="mds", split="../set")


def test_a_size_of_another_file_is_refused(folder: Path) -> None:
    with (folder / "shard.00000.mds").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CorruptFileError, match="its index says"):
        sl.scan(folder).to_arrow()


def test_a_hash_that_does_not_match_is_refused(folder: Path) -> None:
    data = bytearray((folder / "shard.00000.mds").read_bytes())
    data[-1] ^= 1
    (folder / "shard.00000.mds").write_bytes(data)
    with pytest.raises(CorruptFileError, match="sha1"):
        sl.scan(folder).to_arrow()
    assert sl.scan(folder, format="mds", verify=False).to_arrow().num_rows == 3


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "shard.00000.mds").unlink()
    with pytest.raises(DatasetNotFoundError, match="shard.00000.mds is not there"):
        sl.scan(folder).to_arrow()


def test_shards_of_one_index_may_differ(tmp_path: Path) -> None:
    one = write(tmp_path / "set" / "a", {"name": "str", "n": "int"}, [[{"name": b"x", "n": bytes(8)}]])
    two = write(tmp_path / "set" / "b", {"name": "str"}, [[{"name": b"y"}]])
    shards = []
    for part in (one, two):
        [shard] = json.loads((part / "index.json").read_text())["shards"]
        shard["raw_data"]["basename"] = f"{part.name}/{shard['raw_data']['basename']}"
        shards.append(shard)
    (tmp_path / "set" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    table = sl.scan(tmp_path / "set").to_arrow()
    assert sorted(table.column_names) == ["n", "name"]
    assert table.select(["n", "name"]).to_pylist() == [{"n": 0, "name": "x"}, {"n": None, "name": "y"}]


def test_shards_that_disagree_about_a_column_are_refused(tmp_path: Path) -> None:
    shards = []
    for name, encoding, cell in (("a", "str", b"1"), ("b", "int", bytes(8))):
        part = write(tmp_path / "set" / name, {"x": encoding}, [[{"x": cell}]])
        [shard] = json.loads((part / "index.json").read_text())["shards"]
        shard["raw_data"]["basename"] = f"{name}/{shard['raw_data']['basename']}"
        shards.append(shard)
    (tmp_path / "set" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(SeqlakeError, match="'x' is string"):
        sl.scan(tmp_path / "set").schema["x"]


def test_other_folders_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"chunks": [], "format": "mds"}')
    assert not mds.matches(str(tmp_path))
    assert not mds.matches(str(tmp_path / "nowhere"))


def test_a_count_that_no_file_can_hold_is_refused(folder: Path) -> None:
    for count in (1 << 20, 1 << 40, 1 << 62):
        with pytest.raises(InvalidMetadataError, match="shard 0"):
            sl.scan(changed(folder, put("samples", value=count)), format="mds")


def test_sizes_of_columns_that_are_not_their_encoding_s(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"a": "int", "b": "int"}, [[{"a": bytes(8), "b": bytes(8)}]])
    changed(folder, put("column_sizes", value=[4, 12]))
    for options, said in (({}, "'column_sizes' are"), ({"verify": False}, "column 'a'")):
        with pytest.raises(CorruptFileError, match=said):
            sl.scan(folder, **options).to_arrow()
        with pytest.raises(CorruptFileError, match=said):
            mds.scan(str(folder), **options)[0]


def test_json_that_is_nested_without_end_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", {"x": "json"}, [[{"x": b"[" * 100_000}]])
    with pytest.raises(CorruptFileError, match="column 'x'"):
        mds.scan(str(folder))[0]
