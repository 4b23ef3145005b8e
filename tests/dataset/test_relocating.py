"""References moved to another place: with their files or without, in one commit or not at all."""

from __future__ import annotations

import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.changing.relocating import carry_out, plan_relocation, relocate
from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    UnsafeReferenceError,
    ValidationError,
)
from seqlake.files.stores import open_store, read_all
from seqlake.spec.schema import Column

from ..media import clips  # noqa: TID252 - tests are no package that could be named

SHARED = pa.struct([("url", pa.string()), ("first_frame", pa.int64())])
SCHEMA = sl.Schema(
    {
        "n": pa.int64(),
        "x": sl.Trajectory(dim=2),
        "log": sl.ColumnType("mcap"),
        "stills": sl.Image(frames="files"),
        "part": Column("part", SHARED, sl.Video()),
    }
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    place = tmp_path / "old"
    (place / "deep").mkdir(parents=True)
    for name in ("0.log", "1.log", "deep/2.log", "shared.mp4", "a.png", "b.png"):
        (place / name).write_bytes(name.encode() * 3)
    return place


@pytest.fixture
def ds(tmp_path: Path, old: Path) -> sl.Dataset:
    """Rows in two shards, references of every kind below `old`, and beside it."""
    (tmp_path / "older.log").write_bytes(b"beside")
    (tmp_path / "own.log").write_bytes(b"own")
    ds = sl.create(tmp_path / "ds", SCHEMA)
    with ds.writer(rows_per_shard=2) as writer:
        x = np.ones((3, 2))
        writer.add("a", n=1, x=x, log=f"{old}/0.log", stills=[f"{old}/a.png", None, f"{old}/b.png"])
        writer.add("b", n=2, x=2 * x, log=(old / "1.log").as_uri(), part={"url": f"{old}/shared.mp4", "first_frame": 0})
        writer.add("c", n=3, x=3 * x, log="../old/deep/2.log", part={"url": f"{old}/shared.mp4", "first_frame": 4})
        writer.add("d", n=4, x=4 * x, log=f"{tmp_path}/older.log", stills=[])
        writer.add("e", n=5, x=5 * x, log=sl.File(tmp_path / "own.log"))
    return ds


def rows(ds: sl.Dataset) -> pa.Table:
    return ds.to_arrow().sort_by("sequence_id")  # a shard that is written anew comes last


def cells(ds: sl.Dataset, column: str = "log") -> list[object]:
    return rows(ds).column(column).to_pylist()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_references_alone(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    before, own = rows(ds), cells(ds)[4]
    new = tmp_path / "new"
    old.rename(new)
    found = plan_relocation(ds, str(old), str(new))
    assert (len(found.references), found.cells, found.missing, found.nbytes) == (6, 6, (), 0)
    version = relocate(ds, str(old), str(new))
    assert (version.id, version.operation, ds.version) == (2, "rewrite", version)
    assert cells(ds) == [f"{new}/0.log", f"{new}/1.log", f"{new}/deep/2.log", f"{tmp_path}/older.log", own]
    assert cells(ds, "stills") == [[f"{new}/a.png", None, f"{new}/b.png"], None, None, [], None]
    assert cells(ds, "part")[1:3] == [
        {"url": f"{new}/shared.mp4", "first_frame": 0},
        {"url": f"{new}/shared.mp4", "first_frame": 4},
    ]
    rest = ["sequence_id", "n", "x"]
    assert rows(ds).select(rest).equals(before.select(rest))
    assert rows(sl.open(ds.location, version=1)).equals(before)


def test_into_the_dataset_references_are_relative(ds: sl.Dataset, old: Path) -> None:
    root = Path(ds.location)
    old.rename(root / "media")
    for new in ("media", str(root / "media"), "./media/", (root / "media").as_uri()):
        found = plan_relocation(ds, f"{old}/", new)
        assert found.references[f"{old}/deep/2.log".replace(str(old), "../old")] == "media/deep/2.log"
    relocate(ds, str(old), "media")
    assert cells(ds)[:3] == ["media/0.log", "media/1.log", "media/deep/2.log"]
    assert ds["c"]["log"].read() == b"deep/2.log" * 3
    (root / "media" / "0.log").rename(root / "0.log")
    relocate(ds, "media/0.log", "0.log")
    assert cells(ds)[0] == "0.log"
    (root / "media" / "1.log").rename(root / "1.log")
    relocate(ds, str(root / "media" / "1.log"), "1.log")
    assert cells(ds)[:2] == ["0.log", "1.log"]


@pytest.mark.parametrize("files", ["copy", "move"])
def test_with_their_files(files: str, ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    contents, new = everything(old), tmp_path / "not" / "there"
    relocate(ds, str(old), str(new), files=files)
    assert everything(new) == contents
    assert everything(old) == (contents if files == "copy" else {})
    assert cells(ds)[2] == f"{new}/deep/2.log"


def test_taken_into_the_dataset(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    contents = everything(old)
    relocate(ds, str(old), files="move")
    assert everything(old) == {}
    ds.vacuum(older_than=timedelta(0))
    moved = tmp_path / "elsewhere"
    Path(ds.location).rename(moved)
    now = sl.open(moved)
    assert [now[key]["log"].read() for key in "abc"] == [contents["0.log"], contents["1.log"], contents["deep/2.log"]]
    assert [now[key]["log"].reference.startswith("files/log/") for key in "abcde"] == [True, True, True, False, True]
    assert now["a"]["stills"].bytes(2) == contents["b.png"]
    assert now["b"]["part"].reference == now["c"]["part"].reference  # shared before, shared now
    assert now["c"]["part"].first == 4
    assert now["c"]["part"].read() == contents["shared.mp4"]
    assert not now.validate(depth="rows").errors


def test_videos_that_are_taken_in_are_indexed(tmp_path: Path) -> None:
    (tmp_path / "cam.mp4").write_bytes(clips.clip("h264 training profile"))
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Video(fps=30)}))
    ds.append([{"sequence_id": "a", "cam": str(tmp_path / "cam.mp4")}])
    relocate(ds, str(tmp_path), files="copy")
    assert ds["a"]["cam"][3].shape == (clips.HEIGHT, clips.WIDTH, 3)
    assert list(ds.source.kept_packets(ds["a"]["cam"].reference)) == [0]


def test_columns_that_lie_beside_a_shard(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    ds.add_column("extra", sl.ColumnType("mcap"), values={"a": f"{old}/0.log", "d": "other"})
    (tmp_path / "copy").mkdir()
    shards = sorted(Path(ds.location, "data").iterdir())
    relocate(ds, f"{old}/0.log", "0.log", allow_missing=True)
    assert cells(ds, "extra") == ["0.log", None, None, "other", None]
    assert len(set(shards) & set(Path(ds.location, "data").iterdir())) == len(shards) - 1


def test_copied_in_files_go_out_and_are_collected_later(ds: sl.Dataset, tmp_path: Path) -> None:
    own = str(cells(ds)[4])
    before = ds.version
    relocate(ds, "files", str(tmp_path / "out"), files="move")
    assert cells(ds)[4] == f"{tmp_path}/out/{own.removeprefix('files/')}"
    assert sl.open(ds.location, version=before)["e"]["log"].read() == b"own"  # older versions keep theirs
    ds.vacuum(older_than=timedelta(0))
    assert not Path(ds.location, own).exists()
    assert sl.open(ds.location, allow_outside=True)["e"]["log"].read() == b"own"


def test_references_to_nothing_are_refused_unless_they_are_meant(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    before, version = ds.to_arrow(), ds.version
    (old / "0.log").unlink()
    with pytest.raises(ValidationError, match=r"6 of 6 files are not there \('s/0.log', .*allow-missing"):
        relocate(ds, str(old), "s")
    for new in (str(tmp_path / "new"), None):
        with pytest.raises(ValidationError, match="1 of 6 files are not there"):
            relocate(ds, str(old), new, files="copy")
    assert not (tmp_path / "new").exists()
    assert (ds.refresh(), ds.to_arrow()) == (version, before)
    relocate(ds, str(old), files="copy", allow_missing=True)
    assert cells(ds)[0] == f"{old}/0.log"  # nothing could be taken in
    assert str(cells(ds)[1]).startswith("files/")
    relocate(ds, str(old), "gone", allow_missing=True)
    assert cells(ds)[0] == "gone/0.log"


@pytest.mark.parametrize(
    ("before", "after", "files", "error", "message"),
    [
        ("/no/such", "x", "leave", ValidationError, "No reference"),
        ("/old", "x", "leave", ValidationError, "No reference"),
        ("OLD-", "x", "leave", ValidationError, "No reference"),  # prefixes end at a slash
        ("OLD", None, "leave", ValueError, "Say where"),
        ("OLD", "x", "steal", ValueError, "'leave', 'copy' or 'move'"),
        ("OLD", "../x", "leave", UnsafeReferenceError, "leaves the dataset's root"),
        ("OLD", "files/log", "copy", ValueError, "table's own"),
        ("OLD", "data", "leave", ValueError, "table's own"),
        ("OLD", "_seqlake/x", "leave", ValueError, "table's own"),
        ("OLD/0.log", ".", "leave", ValueError, "is one file"),
        ("https://host/x", "y", "move", ValueError, "web server"),
    ],
)
def test_what_makes_no_sense(before, after, files, error, message, ds: sl.Dataset, old: Path) -> None:
    version = ds.version
    with pytest.raises(error, match=message):
        relocate(ds, before.replace("OLD", str(old)), after, files=files)
    assert ds.refresh() == version


def test_another_file_at_the_new_place_is_left_alone(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    new, version = tmp_path / "new", ds.version
    new.mkdir()
    (new / "1.log").write_bytes(b"somebody's")
    (new / "0.log").write_bytes((old / "0.log").read_bytes())  # an earlier try came so far
    with pytest.raises(ValidationError, match="Another file"):
        relocate(ds, str(old), str(new), files="move")
    assert everything(new) == {"0.log": (old / "0.log").read_bytes(), "1.log": b"somebody's"}
    assert len(everything(old)) == 6
    (new / "1.log").unlink()
    assert relocate(ds, str(old), str(new), files="move").id == version.id + 1


def test_links_out_of_the_dataset_are_not_followed(ds: sl.Dataset, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"key")
    Path(ds.location, "in").mkdir()
    Path(ds.location, "in", "link.log").symlink_to(tmp_path / "secret")
    ds.upsert([{"sequence_id": "a", "log": "in/link.log"}])
    for new in (None, str(tmp_path / "new")):
        with pytest.raises(UnsafeReferenceError, match="allow_outside"):
            relocate(ds, "in", new, files="copy")
    trusting = sl.open(ds.location, allow_outside=True)
    relocate(trusting, "in", files="copy")
    assert trusting["a"]["log"].read() == b"key"


def test_nothing_is_moved_away_through_a_folder_that_is_a_link(ds: sl.Dataset, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.log").write_bytes(b"key")
    Path(ds.location, "in").symlink_to(tmp_path / "mine")
    ds.upsert([{"sequence_id": "a", "log": "in/a.log"}])
    trusting = sl.open(ds.location, allow_outside=True)
    with pytest.warns(UserWarning, match="could not be removed"):
        relocate(trusting, "in", files="move")
    assert (tmp_path / "mine" / "a.log").read_bytes() == b"key"
    assert trusting["a"]["log"].read() == b"key"


def test_a_rivals_commit_takes_the_copies_back(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    planned = plan_relocation(ds, str(old), str(tmp_path / "new"), files="move")
    sl.open(ds.location).update([{"sequence_id": "a", "n": 100}])
    with pytest.raises(CommitConflictError):
        carry_out(ds, planned)
    assert everything(tmp_path / "new") == {}
    assert len(everything(old)) == 6
    assert relocate(ds, str(old), str(tmp_path / "new"), files="move").operation == "rewrite"


def test_without_an_answer_copies_and_old_files_stay(
    ds: sl.Dataset, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object, **__: object) -> None:
        raise CommitUnknownError("No answer.")

    monkeypatch.setattr(type(ds.table), "commit", lost)
    with pytest.raises(CommitUnknownError):
        relocate(ds, str(old), str(tmp_path / "new"), files="move")
    assert everything(tmp_path / "new") == everything(old) != {}


def test_old_files_that_cannot_be_removed_are_a_warning(
    ds: sl.Dataset, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from seqlake.files.local import LocalStore

    real = LocalStore.delete

    def denied(self: LocalStore, paths: object) -> None:
        if str(self.root).startswith(str(old)):
            raise PermissionError(13, "denied")
        real(self, paths)

    monkeypatch.setattr(LocalStore, "delete", denied)
    with pytest.warns(UserWarning, match="6 old files could not be removed"):
        relocate(ds, str(old), str(tmp_path / "new"), files="move")
    assert cells(ds)[0] == f"{tmp_path}/new/0.log"


def test_between_a_disk_and_a_bucket(ds: sl.Dataset, old: Path, s3_bucket) -> None:
    ds = sl.open(ds.location, storage=s3_bucket.storage)
    contents = everything(old)
    relocate(ds, str(old), f"{s3_bucket.uri}/new/", files="move")
    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    assert {path.removeprefix("new/"): read_all(store.blob(path)) for path, _ in store.list()} == contents
    assert ds["c"]["log"].reference == f"{s3_bucket.uri}/new/deep/2.log"
    assert ds["c"]["log"].read() == contents["deep/2.log"]
    relocate(ds, f"{s3_bucket.uri}/new", "back", files="move")
    assert list(store.list()) == []
    assert everything(Path(ds.location, "back")) == contents
    assert cells(ds)[:3] == ["back/0.log", "back/1.log", "back/deep/2.log"]


def test_a_dataset_in_a_bucket(s3_bucket, tmp_path: Path) -> None:
    root, storage = f"{s3_bucket.uri}/ds", s3_bucket.storage
    ds = sl.create(root, sl.Schema({"log": sl.ColumnType("mcap")}), storage=storage)
    store = open_store(root, storage=storage)
    store.put("in/a b?.log", b"1")
    ds.append([{"sequence_id": "a", "log": "in/a b?.log"}, {"sequence_id": "b", "log": f"{root}/in/a b?.log"}])
    relocate(ds, f"{root}/in", f"{root}/out", files="move")
    assert ds.to_arrow().column("log").to_pylist() == ["out/a b?.log"] * 2
    assert ds["b"]["log"].read() == b"1"
    assert [path for path, _ in store.list("in")] == []
    relocate(ds, "out", files="copy")
    assert ds["a"]["log"].reference.startswith("files/log/")
    assert ds["b"]["log"].read() == b"1"


def test_nothing_warns_and_a_plan_is_plain_values(ds: sl.Dataset, old: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = plan_relocation(ds, str(old), "x", files="copy").to_json()
    assert found["bytes"] == sum(map(len, everything(old).values()))
    assert found["references"][f"{old}/0.log"] == "x/0.log"
    assert plan_relocation(ds, str(old), files="copy").references[f"{old}/0.log"] is None


def test_interrupted_after_the_commit_the_copies_stay(
    ds: sl.Dataset, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = type(ds.table).commit

    def interrupted(self: object, *arguments: object, **options: object) -> None:
        real(self, *arguments, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(ds.table), "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            relocate(ds, str(old), str(tmp_path / "new"), files="move")
    trusting = sl.open(ds.location, allow_outside=True)
    assert trusting["a"]["log"].reference == f"{tmp_path}/new/0.log"
    assert trusting["a"]["log"].read() == (old / "0.log").read_bytes()


def test_a_root_that_is_a_link(ds: sl.Dataset, old: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ds.location)
    linked = sl.open(tmp_path / "link")
    relocate(linked, str(old), f"{ds.location}/media", files="copy")
    assert linked["a"]["log"].reference == "media/0.log"
    assert sl.open(ds.location)["a"]["log"].read() == (old / "0.log").read_bytes()
