"""The writer: what was committed is there, what was not leaves nothing, files come before their rows."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.dataset import opening
from seqlake.dataset.writing.ingest import File
from seqlake.errors import (
    CommitConflictError,
    DuplicateSequenceError,
    ReadOnlyError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Schema
from seqlake.testing import samples

SCHEMA = Schema({"n": pa.int64(), "length": pa.int64(), "x": Trajectory(dim=2), "cam": Video(fps=30),
                 "stills": Image(frames="files")})  # fmt: skip


def files_in(root: Path) -> dict[str, bytes]:
    """Every file below a folder, by path."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "ds", SCHEMA)
    return tmp_path / "ds"


def test_what_is_added_is_what_any_engine_reads(tmp_path: Path) -> None:
    episodes = list(samples.arm_episodes(12))
    ds = samples.arm_dataset(tmp_path / "arm", count=12)
    table = pq.read_table(tmp_path / "arm" / "data")
    assert table.column("sequence_id").to_pylist() == [e["sequence_id"] for e in episodes]
    for row, episode in zip(table.to_pylist(), episodes, strict=True):
        assert np.array_equal(np.array(row["action"], np.float32), episode["action"])
        assert row["length"] == len(episode["action"])
        assert row["task"] == episode["task"]
    assert len(ds) == 12
    assert ds.version.operation == "append"
    assert ds.validate(depth="files").findings == ()


@pytest.mark.parametrize(("limit", "shards"), [(None, [10]), (4, [4, 4, 2]), (5, [5, 5]), (1, [1] * 10)])
def test_shards_close_at_their_rows(tmp_path: Path, limit: int | None, shards: list[int]) -> None:
    """Row by row and from a table."""
    ds = samples.arm_dataset(tmp_path / "arm", count=10, rows_per_shard=limit)
    again = opening.create(tmp_path / "again", ds.schema)
    again.append(ds, rows_per_shard=limit)
    for made in (ds, again):
        assert [shard.rows for shard in made.shards()] == shards
    assert again.to_arrow().equals(ds.to_arrow())


def test_bytes_per_shard(tmp_path: Path) -> None:
    schema = Schema({"x": Trajectory(dim=256)})
    ds = opening.create(tmp_path / "ds", schema)
    with ds.writer(bytes_per_shard=20 << 20) as writer:
        for number in range(50):
            writer.add(str(number), x=np.full((1 << 10, 256), number, np.float32))  # 1 MiB
    sizes = [shard.nbytes >> 20 for shard in ds.shards()]
    assert len(sizes) > 1
    assert max(sizes) <= 32
    assert [ds[i]["x"][0, 0] for i in range(50)] == list(range(50))


def test_commit_makes_rows_visible_to_others_one_by_one(root: Path) -> None:
    ds = opening.open(root)
    with ds.writer(commit_every=2) as writer:
        for number in range(5):
            writer.add(str(number), n=number)
            assert len(opening.open(root)) == (number + 1) // 2 * 2
        assert "1 sequences not yet committed" in repr(writer)
        version = writer.commit()
        assert version.rows == 5
        assert writer.commit() == version
    assert [v.rows for v in ds.versions()] == [0, 2, 4, 5]
    assert len(ds) == 5


def test_an_idle_writer_writes_nothing(root: Path) -> None:
    before = files_in(root)
    with opening.open(root).writer() as writer:
        assert writer.commit().id == 0
    assert files_in(root) == before


def test_an_exception_discards_what_was_not_committed(root: Path, tmp_path: Path) -> None:
    clip = tmp_path / "a.mp4"
    clip.write_bytes(b"video")
    ds = opening.open(root)
    with pytest.raises(ZeroDivisionError), ds.writer(rows_per_shard=1) as writer:
        writer.add("kept", n=1)
        writer.commit()
        before = files_in(root)
        writer.add("lost", n=2, cam=File(clip))
        writer.add("lost too", n=3)
        1 / 0
    assert files_in(root) == before
    assert [row.id for row in opening.open(root)] == ["kept"]


def test_a_mistake_leaves_the_rows_before_it(root: Path) -> None:
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("a", n=1)
        with pytest.raises(SchemaMismatchError):
            writer.add("b", x=np.zeros((3, 5)))
        with pytest.raises(DuplicateSequenceError):
            writer.add("a", n=2)
        writer.add("b", n=3)
    assert ds.select("n").to_arrow().column(0).to_pylist() == [1, 3]


def test_ids_that_are_there_already(root: Path) -> None:
    ds = opening.open(root)
    ds.append([{"sequence_id": "a", "n": 1}])
    before = files_in(root)
    with pytest.raises(DuplicateSequenceError, match="'a'"):
        ds.append([{"sequence_id": "b"}, {"sequence_id": "a"}])
    assert files_in(root) == before
    with pytest.raises(DuplicateSequenceError), ds.writer() as writer:
        writer.add("a")
    assert files_in(root) == before


def test_a_rival_with_the_same_id_wins_and_the_other_is_told(root: Path) -> None:
    mine, rival = opening.open(root), opening.open(root)
    with pytest.raises(CommitConflictError, match="'a'"), mine.writer() as writer:
        writer.add("a", n=1)
        rival.append([{"sequence_id": "a", "n": 2}])
    assert opening.open(root)["a"]["n"] == 2


def test_writers_side_by_side(root: Path) -> None:
    first, second = opening.open(root), opening.open(root)
    with first.writer() as one, second.writer() as two:
        for number in range(4):
            one.add(f"one {number}", n=number)
            two.add(f"two {number}", n=number)
            two.commit()
    assert len(opening.open(root)) == 8
    assert opening.open(root).validate(depth="rows").ok


# ---- files


def test_files_are_copied_in_and_listed(root: Path, tmp_path: Path) -> None:
    clip = tmp_path / "Käm 1.MP4"
    clip.write_bytes(os.urandom(9_000_000))
    still = tmp_path / "still.png"
    still.write_bytes(b"png")
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("../ep/1", cam=File(clip), stills=[File(still), "elsewhere/2.png", File(str(still))])
        writer.add("../EP/1", cam=File(clip))
        writer.add("refers", cam="s3://bucket/cam.mp4")
    names = [row["cam"] for row in ds.select("sequence_id", "cam").to_arrow().to_pylist()]
    sha = hashlib.sha256(clip.read_bytes()).hexdigest()
    assert names[2] == "s3://bucket/cam.mp4"
    assert names[0] != names[1]
    for name in names[:2]:
        assert name.startswith(f"files/cam/{sha[:2]}/ep-1-")
        assert name.endswith(".MP4")
        assert (root / name).read_bytes() == clip.read_bytes()
    stills = ds.select("stills").to_arrow().column(0)[0].as_py()
    assert stills[1] == "elsewhere/2.png"
    assert [(root / stills[i]).read_bytes() for i in (0, 2)] == [b"png", b"png"]
    clip.unlink()
    still.unlink()
    ds.vacuum(older_than=timedelta(0))
    assert all((root / name).is_file() for name in [*names[:2], stills[0], stills[2]])


def test_a_bad_row_copies_nothing(root: Path, tmp_path: Path) -> None:
    clip = tmp_path / "a.mp4"
    clip.write_bytes(b"video")
    with opening.open(root).writer() as writer:
        with pytest.raises(SchemaMismatchError):
            writer.add("a", cam=File(clip), n="text")
        with pytest.raises(ValidationError, match="expected a file to copy"):
            writer.add("a", cam=File(clip), stills=[File(tmp_path / "none.png")])
    assert not (root / "files").exists() or not files_in(root / "files")


# ---- places that cannot be written


class FullDisk:
    """The kernel's own answer: what is written to `/dev/full` finds no space."""

    def __init__(self, table: object) -> None:
        self._table = table

    def __getattr__(self, name: str) -> object:
        return getattr(self._table, name)

    def place(self, *args: object, **options: object) -> str:
        path = self._table.place(*args, **options)
        Path(path).symlink_to("/dev/full")
        return path


def test_a_full_disk_is_said_and_leaves_nothing(root: Path) -> None:
    before = files_in(root)
    ds = opening.open(root)
    ds.table = FullDisk(ds.table)
    with pytest.raises(OSError, match="No space is left in .*free some") as caught, ds.writer() as writer:
        writer.add("a", x=np.zeros((10, 2)))
    assert caught.value.errno == errno.ENOSPC
    assert files_in(root) == before
    assert not list(root.rglob("part-*"))


def test_a_writer_that_failed_says_so(root: Path) -> None:
    ds = opening.open(root)
    ds.table = FullDisk(ds.table)
    writer = ds.writer()
    writer.add("a", x=np.zeros((10, 2)))
    with pytest.raises(OSError, match="No space"):
        writer.commit()
    with pytest.raises(SeqlakeError, match="Open a new one"):
        writer.add("b")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_read_only_place_is_said(root: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = opening.open(root)
    before = files_in(root)

    def refuse(*args: object, **options: object) -> None:
        raise OSError(code, os.strerror(code))

    for name in ("create", "link", "rename", "make_folder"):
        if hasattr(ds.table.store.calls, name):
            monkeypatch.setattr(ds.table.store.calls, name, refuse)
    with pytest.raises(ReadOnlyError), ds.writer() as writer:
        writer.add("a", n=1)
    assert files_in(root) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(root: Path) -> None:
    for folder in [root, *[p for p in root.rglob("*") if p.is_dir()]]:
        folder.chmod(0o555)
    try:
        with pytest.raises(ReadOnlyError), opening.open(root).writer() as writer:
            writer.add("a", n=1)
    finally:
        for folder in [root, *[p for p in root.rglob("*") if p.is_dir()]]:
            folder.chmod(0o755)


def test_bad_options(root: Path) -> None:
    ds = opening.open(root)
    for options in ({"commit_every": 0}, {"rows_per_shard": 0}, {"bytes_per_shard": 0}, {"layout": "fast"}):
        with pytest.raises(ValueError, match="at least 1|'training' or 'archive'"):
            ds.writer(**options)


@pytest.mark.parametrize("raw", [True, False])
def test_rows_appended_later_are_stored_like_the_first(tmp_path: Path, raw: bool) -> None:
    samples.arm_dataset(tmp_path / "arm", count=2, raw=raw)
    opening.open(tmp_path / "arm").append(list(samples.arm_episodes(2, first=2)))
    kinds = [pq.read_schema(path).field("action").type for path in (tmp_path / "arm" / "data").iterdir()]
    assert [pa.types.is_binary(kind) for kind in kinds] == [raw, raw]
    assert opening.open(tmp_path / "arm").schema == samples.arm_schema(raw=raw)


def test_a_dataset_that_was_copied_is_written_like_the_first(root: Path, tmp_path: Path) -> None:
    opening.open(root).append([{"sequence_id": "a", "n": 1}])
    shutil.copytree(root, tmp_path / "copy")
    opening.open(tmp_path / "copy").append([{"sequence_id": "b", "n": 2}])
    assert [row.id for row in opening.open(tmp_path / "copy")] == ["a", "b"]
    assert [row.id for row in opening.open(root)] == ["a"]


# ---- bad input, all kinds, leaves the folder as it was

BAD = {
    "wrong shape": {"x": np.zeros((4, 3))},
    "ragged": {"x": [[1, 2], [3]]},
    "wrong type": {"n": "text"},
    "unknown column": {"m": 1},
    "beyond 1 GiB": {"x": np.broadcast_to(np.float32(0), ((1 << 27) + 1, 2))},
    "no such file": {"cam": File("/nowhere.mp4")},
    "path object": {"cam": Path("x.mp4")},
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_leave_nothing(case: str, root: Path) -> None:
    before = files_in(root)
    ds = opening.open(root)
    with pytest.raises((SchemaMismatchError, ValidationError), match="(?s)'good'|'bad'"), ds.writer() as writer:
        writer.add("good", n=1)
        writer.add("bad", **BAD[case])
    assert files_in(root) == before


@pytest.mark.parametrize("ids", [["a", "a"], [""], [None], [3], ["\ud800"]], ids=str)
def test_bad_ids_leave_nothing(ids: list[object], root: Path) -> None:
    before = files_in(root)
    with (
        pytest.raises((SchemaMismatchError, ValidationError), match="sequence_id"),
        opening.open(root).writer() as writer,
    ):
        for one in ids:
            writer.add(one, n=1)
    assert files_in(root) == before


def test_a_writer_that_is_dropped_says_what_is_lost(root: Path) -> None:
    writer = opening.open(root).writer()
    writer.add("a", n=1)
    writer.add("b", n=2)
    with pytest.warns(UserWarning, match=r"gone before its commit: 2 sequences.*with ds.writer\(\) as writer"):
        del writer
    opening.open(root).vacuum(older_than=timedelta(0))
    assert len(opening.open(root)) == 0


@pytest.mark.parametrize("end", ["commit", "discard"])
def test_a_writer_that_was_ended_goes_in_silence(root: Path, end: str) -> None:
    writer = opening.open(root).writer()  # a warning would be an error here
    writer.add("a", n=1)
    getattr(writer, end)()
    del writer
    idle = opening.open(root).writer()
    del idle
