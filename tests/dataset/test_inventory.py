"""The files of a dataset: who names them, which are missing, and which nobody names."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.inventory import FileEntry, files, totals
from seqlake.files.stores import open_store
from seqlake.spec.schema import Column

SHARED = pa.struct([("url", pa.string()), ("first_frame", pa.int64())])
SCHEMA = sl.Schema(
    {
        "n": pa.int64(),
        "log": sl.ColumnType("mcap"),
        "more": sl.ColumnType("mcap"),
        "stills": sl.Image(frames="files"),
        "part": Column("part", SHARED, sl.Video()),
    }
)


@pytest.fixture
def ds(tmp_path: Path) -> sl.Dataset:
    (tmp_path / "a.mcap").write_bytes(b"a" * 10)
    (tmp_path / "b.mcap").write_bytes(b"b" * 20)
    ds = sl.create(tmp_path / "ds", SCHEMA)
    (tmp_path / "ds" / "shared.mp4").write_bytes(b"s" * 5)
    with ds.writer(rows_per_shard=1) as writer:
        writer.add("one", n=1, log=sl.File(tmp_path / "a.mcap"), part={"url": "shared.mp4", "first_frame": 0})
        writer.add("two", n=2, log="gone.mcap", more="gone.mcap", part={"url": "shared.mp4", "first_frame": 9})
        writer.add("six", n=6, log=sl.File(tmp_path / "b.mcap"), stills=["shared.mp4", None, "0.png", "0.png"])
        writer.add("far", n=7, log="http://127.0.0.1:9/x.mcap", more=str(tmp_path / "a.mcap"))
    return ds


def by_reference(selection: sl.Selection, **options: bool) -> dict[str, FileEntry]:
    found = selection.files(**options)
    assert len({one.reference for one in found}) == len(found)
    return {one.reference: one for one in found}


def test_every_file_with_who_names_it(ds: sl.Dataset, tmp_path: Path) -> None:
    found = by_reference(ds)
    first, outside = ds["one"]["log"].reference, str(tmp_path / "a.mcap")
    assert found[first] == FileEntry(reference=first, state="present", size=10, columns=("log",), rows=("one",))
    assert found["gone.mcap"] == FileEntry(
        reference="gone.mcap", state="missing", columns=("log", "more"), rows=("two",)
    )
    shared = FileEntry(
        reference="shared.mp4", state="present", size=5, columns=("part", "stills"), rows=("one", "two", "six")
    )
    assert {**shared.to_json(), "columns": set(shared.columns)} == {
        **found["shared.mp4"].to_json(), "columns": set(found["shared.mp4"].columns),
    }  # fmt: skip
    assert found["0.png"].rows == ("six",)
    assert found["http://127.0.0.1:9/x.mcap"].state == "elsewhere"
    assert found[outside].state == "outside"
    assert found[outside].size is None
    assert by_reference(sl.open(ds.location, allow_outside=True))[outside].size == 10
    assert totals(ds.files()) == {
        "present": {"files": 3, "bytes": 35},
        "missing": {"files": 2, "bytes": 0},
        "elsewhere": {"files": 1, "bytes": 0},
        "outside": {"files": 1, "bytes": 0},
    }


def test_of_some_rows_and_columns(ds: sl.Dataset) -> None:
    assert list(by_reference(ds.where("n = 2"))) == ["gone.mcap", "shared.mp4"]
    assert list(by_reference(ds.select("stills"))) == ["shared.mp4", "0.png"]
    assert by_reference(ds.select("stills"))["0.png"].rows == ("six",)
    assert ds.select("n").files() == []
    scanned = sl.scan({"log": ["x", "x"]}, column_types={"log": sl.ColumnType("mcap")})
    assert [one.rows for one in scanned.files()] == [("0", "1")]


def test_files_that_no_row_names(ds: sl.Dataset, tmp_path: Path) -> None:
    first = ds["one"]["log"].reference
    kept = ds["six"]["log"].reference
    before = ds.version
    ds.delete(ids=["one"])
    stranger = Path(ds.location, "files", "log", "mine.mcap")
    stranger.write_bytes(b"123")
    orphan = Path(ds.location, "files", "log", "00", f"x-{'0' * 32}-0.mcap")
    orphan.parent.mkdir()
    orphan.write_bytes(b"1234")
    with ds.writer() as writer:
        writer.add("half", log=sl.File(tmp_path / "a.mcap"))
        found = by_reference(ds)  # what is being written is nobody's yet
        writer.discard()
    named = {"gone.mcap", "shared.mp4", "0.png", "http://127.0.0.1:9/x.mcap", str(tmp_path / "a.mcap"), kept}
    rest = {path: (one.state, one.size) for path, one in found.items() if path not in named}
    assert rest == {
        first: ("kept", 10),
        "files/log/mine.mcap": ("stranger", 3),
        str(orphan.relative_to(ds.location)): ("orphan", 4),
    }
    old = sl.open(ds.location, version=before)
    assert by_reference(old)[first].state == "present"
    ds.vacuum(older_than=timedelta(0))
    left = {path for path, one in by_reference(ds).items() if one.state in {"kept", "orphan", "stranger"}}
    assert left == {"files/log/mine.mcap"}
    assert Path(ds.location, kept).exists()


def test_links_are_looked_at_where_they_lead(ds: sl.Dataset, tmp_path: Path) -> None:
    Path(ds.location, "0.png").symlink_to(tmp_path / "a.mcap")
    assert by_reference(ds)["0.png"].state == "outside"
    Path(ds.location, "gone.mcap").symlink_to("shared.mp4")
    assert by_reference(ds)["gone.mcap"].state == "present"


def test_names_of_no_file_are_missing(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "odd", sl.Schema({"log": sl.ColumnType("mcap")}))
    cells = ["nul\0", "file://other-machine/x", "", "  ", "files", "a\\b", "%41", "…"]
    Path(ds.location, "a\\b").write_bytes(b"1")
    Path(ds.location, "%41").write_bytes(b"2")
    ds.append([{"sequence_id": str(number), "log": cell} for number, cell in enumerate(cells)])
    found = by_reference(ds)
    assert {one for one, entry in found.items() if entry.state == "present"} == {"a\\b", "%41"}
    assert {one for one, entry in found.items() if entry.state == "missing"} == {
        "nul\0", "file://other-machine/x", "files", "…",
    }  # fmt: skip


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("count", [3, 300])
def test_in_a_bucket_by_name_or_by_list(count: int, s3_bucket, tmp_path: Path) -> None:
    storage = s3_bucket.storage
    ds = sl.create(f"{s3_bucket.uri}/ds", sl.Schema({"log": sl.ColumnType("mcap")}), storage=storage)
    outside = open_store(s3_bucket.uri, storage=storage)
    for number in range(0, count, 100 if count > 10 else 1):
        outside.put(f"ds/logs/{number}.mcap", b"x" * number)
    outside.put("other/1.mcap", b"12345")
    rows = [{"sequence_id": str(number), "log": f"logs/{number}.mcap"} for number in range(count)]
    far = f"{s3_bucket.uri}/other/1.mcap"
    ds.append([*rows, {"sequence_id": "far", "log": far}, {"sequence_id": "up", "log": "../other/1.mcap"}])
    found = by_reference(ds)
    sizes = {one: entry.size for one, entry in found.items() if entry.state == "present"}
    assert sizes == {f"logs/{n}.mcap": n for n in range(0, count, 100 if count > 10 else 1)}
    assert found[far].state == "elsewhere"
    assert found["../other/1.mcap"].state == "outside"
    assert by_reference(ds, elsewhere=True)[far].size == 5


def test_sizes_are_remembered_and_compared(ds: sl.Dataset) -> None:
    def changed() -> dict[str, str]:
        found = sl.open(ds.location).validate(depth="files")
        return {one.location: one.severity for one in found if one.code == "T512"}

    assert changed() == {}
    shared = Path(ds.location, "shared.mp4")
    shared.write_bytes(b"longer than before")
    assert changed() == {"shared.mp4": "warning"}
    ds.update([{"sequence_id": key, "n": 0} for key in ("one", "two")])  # as seen when its rows are written anew
    assert changed() == {}
    shared.unlink()
    assert changed() == {}  # that it is gone is another finding


def test_old_names_still_work_and_say_the_new_one(ds: sl.Dataset) -> None:
    with pytest.warns(DeprecationWarning, match=r"reading\.inventory\.files is Selection\.files now"):
        assert files(ds) == ds.files()
    with pytest.warns(DeprecationWarning, match=r"dataset\.inventory\.files is seqlake\.Selection\.files now"):
        from seqlake.dataset.inventory import files as oldest
    assert oldest(ds) == ds.files()
