"""Packet indexes are made once, when videos are committed, and found again wherever the files are named."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import current_thread

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake import media
from seqlake.dataset.reshaping.merging import merge, repack, subset
from seqlake.dataset.writing import copying
from seqlake.dataset.writing.sink import TableSink
from seqlake.errors import CorruptFileError, CorruptFrameError, UnsafeReferenceError
from seqlake.files.stores import LocalStore, open_store
from seqlake.media.video import indexing
from seqlake.media.video.packets import PacketIndex
from seqlake.protocols import Source
from seqlake.tables.standalone import StandaloneTable

from ..media import clips  # noqa: TID252 - tests are no package that could be named

SCHEMA = sl.Schema({"n": pa.int64(), "cam": sl.Video(fps=30), "wrist": sl.Video(fps=30), "still": sl.Image()})
NAME = "h264 training profile"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clips.clip(NAME))
    return path


@pytest.fixture
def ds(tmp_path: Path, clip: Path) -> sl.Dataset:
    """Three sequences in three shards; the second video of the last holds several streams."""
    several = tmp_path / "several.mp4"
    several.write_bytes(clips.clip("several streams"))
    ds = sl.create(tmp_path / "ds", SCHEMA)
    with ds.writer(rows_per_shard=1) as writer:
        for number in range(3):
            wrist = sl.File(several if number == 2 else clip)
            writer.add(f"ep_{number}", n=number, cam=sl.File(clip), wrist=wrist)
    return ds


@pytest.fixture
def never_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing may read a container."""
    for given in ((), (NAME,), ("several streams",)):
        frames(*given)  # the truth is known before
        made(*given)
    no_container_is_read(monkeypatch)


def no_container_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a container was read")

    monkeypatch.setattr(indexing, "open_container", refuse)


class Counted:
    """A blob of which only ranges can be had, each noted."""

    def __init__(self, blob: object) -> None:
        self.blob = blob
        self.location, self.size, self.token = blob.location, blob.size, blob.token
        self.read: list[tuple[int, int]] = []

    def view(self) -> None:
        return None

    def ranges(self, starts: np.ndarray, stops: np.ndarray) -> list[memoryview]:
        self.read += zip(starts.tolist(), stops.tolist(), strict=True)
        return self.blob.ranges(starts, stops)


@cache
def frames(name: str = NAME) -> np.ndarray:
    decoder = media.open(Source(blob=clips.clip(name), column=sl.Video()))
    return decoder.read(np.arange(len(decoder)))


def kept(ds: sl.Dataset, reference: str) -> dict[int, bytes]:
    return dict(ds.source.kept_packets(reference))


@cache
def made(name: str = NAME) -> dict[int, bytes]:
    return dict(media.index(Source(blob=clips.clip(name), column=sl.Video())))


def test_every_stream_of_every_video_has_its_index(ds: sl.Dataset) -> None:
    assert kept(ds, ds[0]["cam"].reference) == made()
    assert kept(ds, ds[2]["wrist"].reference) == made("several streams")
    assert sorted(made("several streams")) == [0, 1]


@pytest.mark.parametrize("name", [NAME, "damaged"])
def test_a_large_file_is_indexed_while_it_is_hashed_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(copying, "_LARGE", 1)
    by: list[str] = []
    whole = copying.packets_of
    monkeypatch.setattr(copying, "packets_of", lambda *of: by.append(current_thread().name) or whole(*of))
    path = tmp_path / "clip.mp4"
    path.write_bytes(clips.clip(name) if name == NAME else b"no video")
    ds = sl.create(tmp_path / "ds", SCHEMA)
    with ds.writer() as writer:
        writer.add("a", n=1, cam=sl.File(path))
    assert kept(ds, ds["a"]["cam"].reference) == (made() if name == NAME else {})
    assert ds["a"]["cam"].read() == path.read_bytes()
    assert [one.startswith("seqlake-index") for one in by] == [True]


def test_opening_reads_no_byte_but_those_of_the_wanted_packets(ds: sl.Dataset, never_indexed: None) -> None:
    view = sl.open(ds.location)["ep_1"]["cam"]
    blob = Counted(view.blob())
    decoder = media.open(replace(view.source(), blob=blob))
    assert len(decoder) == clips.COUNT
    assert blob.read == []
    np.testing.assert_array_equal(decoder.read(np.array([21, 22])), frames()[21:23])
    index = PacketIndex.from_bytes(made()[0])
    wanted = index.order[[21, 22]]
    first = index.starts[index.starts <= wanted.min()].max()
    packets = np.arange(first, wanted.max() + 1)
    ends = (index.offset + index.length)[packets]
    assert blob.read == list(zip(index.offset[packets].tolist(), ends.tolist(), strict=True))


def test_streams_are_chosen_from_the_kept_index(ds: sl.Dataset, never_indexed: None) -> None:
    view = ds["ep_2"]["wrist"]
    assert view[0].shape == (clips.HEIGHT, clips.WIDTH, 3)  # the largest
    assert view.stream(0)[0].shape == (48, 64, 3)
    assert (len(view.stream(0)), len(view.stream(1))) == (30, 12)


def test_bytes_that_changed_since_the_commit_are_told_by_file_and_frame(ds: sl.Dataset) -> None:
    reference = ds[0]["cam"].reference
    index = PacketIndex.from_bytes(kept(ds, reference)[0])
    path = Path(ds.location, reference)
    data = bytearray(path.read_bytes())
    packet = int(index.order[17])
    data[int(index.offset[packet]) + int(index.length[packet]) // 2] ^= 1
    path.write_bytes(data)
    cam = sl.open(ds.location)[0]["cam"]
    with pytest.raises(CorruptFrameError, match="frame 17") as raised:
        cam[18]
    assert raised.value.path == str(path)
    np.testing.assert_array_equal(cam[24], frames()[24])
    path.write_bytes(bytes(data) + b"longer")
    with pytest.raises(CorruptFileError, match="not the file that was indexed"):
        len(sl.open(ds.location)[0]["cam"])


def test_a_view_travels_with_its_index_and_without_its_table(ds: sl.Dataset, never_indexed: None) -> None:
    view = pickle.loads(pickle.dumps(ds[1]["cam"]))
    np.testing.assert_array_equal(view[3], frames()[3])
    assert len(pickle.dumps(ds[1]["cam"])) < 10_000


def test_frames_given_as_arrays_and_recorded_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = np.stack([clips.picture(number) for number in range(12)])
    ds = sl.create(tmp_path / "new", SCHEMA)
    with ds.writer() as writer:
        writer.add("given", n=1, cam=pictures, still=pictures[0])
        with writer.record("taken", n=2) as take:
            for one in pictures:
                take.add(cam=one)
    no_container_is_read(monkeypatch)
    for name in ("given", "taken"):
        cam = sl.open(ds.location)[name]["cam"]
        assert len(cam) == 12
        assert np.abs(cam[:].astype(int) - pictures).mean() < 20
    assert kept(ds, ds["given"]["still"].reference) == {}


def test_what_cannot_be_indexed_is_taken_in_all_the_same(tmp_path: Path, clip: Path) -> None:
    broken = tmp_path / "broken.mp4"
    ds = sl.create(tmp_path / "new", SCHEMA)
    contents = {"text": b"no video at all" * 50, "empty": b"", "cut": clip.read_bytes()[:-700]}
    with ds.writer() as writer:
        for key, data in contents.items():
            broken.write_bytes(data)
            writer.add(key, cam=sl.File(broken))
    for key, data in contents.items():
        cam = ds[key]["cam"]
        assert cam.read() == data
        assert kept(ds, cam.reference) == {}
        with pytest.raises(CorruptFileError):
            len(cam)


def test_only_videos_are_indexed(tmp_path: Path, clip: Path, never_indexed: None) -> None:
    ds = sl.create(tmp_path / "new", sl.Schema({"log": sl.ColumnType("mcap"), "path": pa.string()}))
    with ds.writer() as writer:
        writer.add("a", log=sl.File(clip), path=sl.File(clip))
    assert kept(ds, ds["a"]["log"].reference) == kept(ds, ds["a"]["path"]) == {}
    assert not Path(ds.location, "_seqlake", "media").exists()


def test_rows_that_are_changed_rewritten_or_brought_back_keep_it(ds: sl.Dataset, never_indexed: None) -> None:
    first = ds.version
    ds.update([{"sequence_id": "ep_0", "n": 9}])
    ds.rename_column("wrist", "hand")
    ds.delete(ids=["ep_1"])
    ds.rollback(first)
    ds.vacuum(older_than=timedelta(0))
    for number in range(3):
        np.testing.assert_array_equal(sl.open(ds.location)[f"ep_{number}"]["cam"][5], frames()[5])
    np.testing.assert_array_equal(sl.open(ds.location, version=ds.version)["ep_1"]["wrist"][5], frames()[5])


def test_upserted_files_have_theirs(ds: sl.Dataset, clip: Path) -> None:
    ds.upsert([{"sequence_id": "ep_0", "cam": sl.File(clip)}, {"sequence_id": "ep_9", "cam": sl.File(clip)}])
    for key in ("ep_0", "ep_9"):
        assert kept(ds, ds[key]["cam"].reference) == made()


@pytest.mark.parametrize("mode", ["copy", "hardlink"])
def test_copies_carry_it_along(mode: str, ds: sl.Dataset, tmp_path: Path, never_indexed: None) -> None:
    made_of = {
        "packed": repack(ds, tmp_path / "packed", files=mode),
        "some": subset(ds.where("n > 0"), tmp_path / "some", files=mode),
        "nested": subset(sl.Selection(ds.where("n > 0")), tmp_path / "nested", files=mode),
        "joined": merge([ds.where("n = 1"), ds.where("n = 2")], tmp_path / "joined", files=mode),
    }
    shutil.rmtree(ds.location)
    for out in made_of.values():
        again = sl.open(out.location)
        assert len(again) >= 2
        for row in again:
            np.testing.assert_array_equal(row["cam"][7], frames()[7])


def test_a_conversion_makes_it(ds: sl.Dataset, tmp_path: Path) -> None:
    out = sl.create(tmp_path / "out", SCHEMA)
    sink = TableSink(table=out.table, schema=out.schema, transaction=out.table.begin())
    sink.commit([sink.write(0, ds.batches(), root=ds.root)])
    out.refresh()
    assert kept(out, out["ep_2"]["wrist"].reference) == made("several streams")


def test_a_dataset_that_was_copied_with_cp_opens_with_it(ds: sl.Dataset, tmp_path: Path, never_indexed: None) -> None:
    shutil.copytree(ds.location, tmp_path / "elsewhere")
    shutil.rmtree(ds.location)
    np.testing.assert_array_equal(sl.open(tmp_path / "elsewhere")["ep_0"]["cam"][:], frames())


def test_index_files_that_are_gone_or_damaged_are_no_error(ds: sl.Dataset) -> None:
    [path] = Path(ds.location, "_seqlake", "media").iterdir()
    whole = path.read_bytes()
    assert "T511" not in {one.code for one in ds.validate(depth="files")}
    for data in (whole[:500], b"x" * 400, b""):
        path.write_bytes(data)
        assert "T511" in {one.code for one in ds.validate(depth="files")}
        np.testing.assert_array_equal(sl.open(ds.location)["ep_0"]["cam"][4], frames()[4])
    path.unlink()
    np.testing.assert_array_equal(sl.open(ds.location)["ep_0"]["cam"][4], frames()[4])


def test_on_an_object_store(s3_bucket, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location, storage = f"{s3_bucket.uri}/ds", s3_bucket.storage
    ds = sl.create(location, SCHEMA, storage=storage)
    with ds.writer() as writer:
        for key in "ab":
            writer.add(key, cam=sl.File(clip))
    assert kept(ds, ds["a"]["cam"].reference) == made()
    copied = repack(ds, tmp_path / "here")
    no_container_is_read(monkeypatch)
    view = sl.open(location, storage=storage)["b"]["cam"]
    blob = Counted(view.blob())
    decoder = media.open(replace(view.source(), blob=blob))
    np.testing.assert_array_equal(decoder.read(np.array([21])), frames()[21:22])
    assert sum(stop - start for start, stop in blob.read) < clip.stat().st_size / 3
    np.testing.assert_array_equal(sl.open(copied.location)["a"]["cam"][9], frames()[9])
    [name] = [path for path, _ in open_store(location, storage=storage).list("_seqlake/media")]
    assert name.endswith(".arrow")


def test_references_that_leave_the_root_need_allow_outside(ds: sl.Dataset, clip: Path, tmp_path: Path) -> None:
    for reference in ("../clip.mp4", str(clip), clip.as_uri()):
        ds.upsert([{"sequence_id": "out", "cam": reference}])
        with pytest.raises(UnsafeReferenceError, match="allow_outside"):
            len(sl.open(ds.location)["out"]["cam"])
        np.testing.assert_array_equal(sl.open(ds.location, allow_outside=True)["out"]["cam"][2], frames()[2])
    Path(ds.location, "link.mp4").symlink_to(clip)
    ds.upsert([{"sequence_id": "out", "cam": "link.mp4"}])
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        len(sl.open(ds.location)["out"]["cam"])
    assert len(sl.open(ds.location, allow_outside=True)["out"]["cam"]) == clips.COUNT


def test_the_indexes_of_files_that_are_collected_go_with_them(ds: sl.Dataset, clip: Path) -> None:
    ds.append([{"sequence_id": "late", "cam": sl.File(clip)}])
    media_files = Path(ds.location, "_seqlake", "media")
    assert len(list(media_files.iterdir())) == 2
    ds.delete(ids=["late"])
    ds.vacuum(older_than=timedelta(0))
    assert len(list(media_files.iterdir())) == 1
    assert kept(ds, ds["ep_0"]["cam"].reference) == made()


def test_a_discarded_writer_leaves_none(ds: sl.Dataset, clip: Path) -> None:
    before = {path for path in Path(ds.location).rglob("*") if path.is_file()}
    with ds.writer() as writer:
        writer.add("late", cam=sl.File(clip))
        writer.discard()
    assert {path for path in Path(ds.location).rglob("*") if path.is_file()} == before


class Nameless:
    """A folder as the store of a root that no location opens."""

    root = "nowhere://arm"

    def __init__(self, path: Path) -> None:
        self.inner = LocalStore(path)

    def __getattr__(self, name: str) -> object:
        if name not in {"blob", "list", "put", "copy", "sync", "move", "delete"}:
            raise AttributeError(name)
        return getattr(self.inner, name)

    def local(self, _: str, /) -> None:
        return None


def test_copied_files_are_opened_through_the_tables_own_store(tmp_path: Path, clip: Path) -> None:
    """By sequences and by loaders, and by those that travelled: nothing else may know where the table is."""
    table = StandaloneTable.created(Nameless(tmp_path / "ds"), SCHEMA)
    ds = sl.Dataset(table, table.snapshot(), location=table.root)
    ds.append([{"sequence_id": "ep_0", "cam": sl.File(clip)}])
    view = ds["ep_0"]["cam"]
    assert view.read() == clip.read_bytes()
    assert np.array_equal(view[:2], frames(NAME)[:2])
    loader = sl.Loader(ds, window={"cam": range(2)}, batch_size=1, shuffle=False)
    for mine in (loader, pickle.loads(pickle.dumps(loader))):
        assert np.array_equal(next(iter(mine))["cam"][0], frames(NAME)[:2])
