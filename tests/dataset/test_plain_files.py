"""Files that were copied in for a plain text column: followed by every verb in every home, as others are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset import reshaping
from seqlake.spec.schema import Column

NOW = timedelta(0)
HOMES = {
    "standalone": "{}/{}",
    "delta": "delta:{}/{}",
    "iceberg": "iceberg:{}/{}/robots.takes",
    "ducklake": "ducklake:sqlite:{}/{}/lake.sqlite?table=takes",
}
SCHEMA = sl.Schema({"note": pa.string(), "notes": pa.list_(pa.string()), "n": pa.int64(), "part": pa.string()})


@pytest.fixture(params=HOMES)
def address(request, tmp_path):
    """`address(name)`: a dataset's, in each home."""
    pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}.get(request.param, "seqlake"))
    return lambda name: HOMES[request.param].format(tmp_path, name)


def given(tmp_path, *ids):
    rows = []
    for one in ids:
        paths = [tmp_path / f"{one}{number}.bin" for number in range(2)]
        for path in paths:
            path.write_bytes(path.name.encode())
        rows.append(
            {
                "sequence_id": one,
                "part": f"of-{one}",
                "note": sl.File(paths[0]),
                "notes": ["files/ of a text", sl.File(paths[1])],
            }
        )
    return rows


def assert_whole(ds, *ids):
    found = {row["sequence_id"]: row for row in ds.to_arrow().to_pylist()}
    assert set(found) == set(ids)
    for one, row in found.items():
        assert Path(ds.root, row["note"]).read_bytes() == f"{one}0.bin".encode()
        assert row["notes"][0] == "files/ of a text"
        assert Path(ds.root, row["notes"][1]).read_bytes() == f"{one}1.bin".encode()
    assert ds.validate(depth="files").ok


@pytest.mark.sampled(every=2)
def test_a_collection_keeps_what_an_upsert_copied_in(address, tmp_path):
    ds = sl.create(address("set"), SCHEMA)
    ds.append(given(tmp_path, "a"))
    ds.upsert([*given(tmp_path, "b"), {"sequence_id": "a", "n": 1}])
    ds.upsert([{**given(tmp_path, "c")[0], "n": 2}, *({**one, "n": 3} for one in given(tmp_path, "a"))])
    ds.vacuum(older_than=NOW)
    assert_whole(sl.open(address("set")), "a", "b", "c")
    ds.update([{"sequence_id": "c", "n": 5}])
    ds.delete(ids=["b"])
    ds.vacuum(older_than=NOW)
    assert_whole(sl.open(address("set")), "a", "c")
    copied = [path for path in Path(ds.root).rglob("*.bin") if "-" in path.name]
    assert {path.name.partition("-")[0] for path in copied} == {"a", "c"}


def test_every_verb_that_makes_a_dataset_takes_them_along(address, tmp_path):
    ds = sl.create(address("set"), SCHEMA)
    ds.upsert(given(tmp_path, "a", "b"))
    ds.update([{"sequence_id": "a", "n": 1}])
    for files in ("copy", "hardlink"):
        made = [str(tmp_path / f"{verb}-{files}") for verb in ("repack", "subset", "merge", "split", "convert")]
        reshaping.repack(ds, made[0], files=files)
        reshaping.subset(ds.where(ids=["a"]), made[1], files=files)
        reshaping.merge([ds.where(ids=["a"]), ds.where(ids=["b"])], made[2], files=files)
        reshaping.split(ds, made[3], by="part", files=files)
        sl.convert(ds, made[4], files=files, workers=1)
        for place, ids in zip(made, ("ab", "a", "ab", "", "ab"), strict=True):
            for folder in Path(place).iterdir() if not ids else [Path(place)]:
                out = sl.open(folder)
                assert_whole(out, *(ids or out.to_arrow().column("sequence_id").to_pylist()))
    sl.convert(ds, str(tmp_path / "adopted"), adopt=True)
    assert_whole(sl.open(tmp_path / "adopted"), "a", "b")


def test_a_rewrite_keeps_files_of_texts_of_any_arrow_type(tmp_path):
    kinds = {"dictionary": pa.dictionary(pa.int32(), pa.string()), "large": pa.large_string()}
    types = {name: Column(name, kind, sl.ColumnType("mcap")) for name, kind in kinds.items()}
    ds = sl.create(tmp_path / "set", sl.Schema(types))
    (tmp_path / "x.mcap").write_bytes(b"log")
    ds.append([{"sequence_id": one, **{name: sl.File(tmp_path / "x.mcap") for name in kinds}} for one in "ab"])
    ds.delete(ids=["b"])
    ds.vacuum(older_than=NOW)
    assert [ds["a"][name].read() for name in kinds] == [b"log"] * 2
