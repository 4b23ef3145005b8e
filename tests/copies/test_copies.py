"""Training copies show what the originals show, scaled; what is missing, stale or damaged is an error of its own."""

from __future__ import annotations

import base64
import io
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.copies.decoding import CopyDecoder
from seqlake.copies.records import CopyRecord, Fingerprint, packed
from seqlake.copies.settings import CopySettings
from seqlake.errors import (
    DecodeError,
    LoaderStateError,
    MissingCopyError,
    ReadOnlyError,
    SchemaMismatchError,
    UnsafeReferenceError,
)
from seqlake.executors.processes import Processes
from seqlake.files.stores import open_blob
from seqlake.media import encode_image

from ..training import films  # noqa: TID252 - tests are no package that could be named

_NO_TIME = timedelta(0)
HERE = Processes(workers=1)
SIZE = (48, 64)
BOTH = {"cam": SIZE, "wrist": SIZE}


@pytest.fixture(scope="module")
def filmed(tmp_path_factory):
    """Five episodes with a camera at their rate and one at half of it."""
    root = tmp_path_factory.mktemp("copies")
    films.arm(root)
    return root / "arm"


@pytest.fixture
def arm(filmed, tmp_path):
    """The same, to be changed."""
    shutil.copytree(filmed, tmp_path / "arm")
    return sl.open(tmp_path / "arm")


def raw(ds, videos=BOTH, **options):
    return sl.prepare(ds, videos, **{"codec": "raw", "on": HERE, **options})


def batches(loader) -> list[dict]:
    return [{name: np.array(value) for name, value in batch.items()} for batch in loader]


def same(some: list[dict], others: list[dict]) -> None:
    assert len(some) == len(others) > 0
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("window", [{"cam": [-1, 0, 1], "wrist": [0, 2]}, sl.Whole(["cam", "wrist"])], ids=repr)
def test_raw_copies_give_the_pixels_of_the_originals_scaled(arm, window, tmp_path) -> None:
    raw(arm)
    loader = sl.Loader(arm, window=window, batch_size=5, seed=4)
    scaled = loader.frames(size=SIZE)
    wanted = batches(scaled)
    for file in (tmp_path / "arm" / "files").rglob("*.mp4"):  # all lengths are known by now
        file.write_bytes(b"")
    copied = scaled.frames(size=SIZE, copies=True)
    copied.set_epoch(0)
    same(batches(copied), wanted)


@pytest.mark.parametrize(("codec", "most"), [("h264", 8), ("mjpeg", 4), ("ffv1", 0)])
def test_codecs_keep_the_pictures(arm, codec, most) -> None:
    done = raw(arm, {"cam": SIZE}, codec=codec)
    assert [(one.files, one.written, one.there, one.settings.codec) for one in done.columns] == [(4, 4, 0, codec)]
    loader = sl.Loader(arm, window={"cam": [0, 1]}, batch_size=16, shuffle=False)
    pairs = zip(batches(loader.frames(size=SIZE, copies=True)), batches(loader.frames(size=SIZE)), strict=True)
    for copied, wanted in pairs:
        np.testing.assert_array_equal(copied["cam_mask"], wanted["cam_mask"])
        assert np.abs(copied["cam"].astype(int) - wanted["cam"]).mean() <= most


@pytest.mark.parametrize("fit", ["letterbox", "crop"])
def test_the_shape_is_kept_where_that_is_asked(arm, fit) -> None:
    height, width = films.frames("b").shape[1:3]
    size = (32, 32)
    raw(arm, {"cam": size}, fit=fit)
    batch = next(iter(sl.Loader(arm, window={"cam": [0]}, batch_size=1, shuffle=False).frames(size=size, copies=True)))
    scale = (min if fit == "letterbox" else max)(32 / height, 32 / width)
    scaled = films.frames("b", (round(height * scale), round(width * scale)))[0]
    wanted = np.zeros((32, 32, 3), np.uint8)
    if fit == "letterbox":
        top = (32 - scaled.shape[0]) // 2
        wanted[top : top + scaled.shape[0]] = scaled
    else:
        left = (scaled.shape[1] - 32) // 2
        wanted[:] = scaled[:, left : left + 32]
    np.testing.assert_array_equal(batch["cam"][0, 0], wanted)


def test_copies_that_are_not_there_are_an_error(arm) -> None:
    loader = sl.Loader(arm, window={"cam": [0], "wrist": [0]}, batch_size=2).on_error("mask", budget=None)
    with pytest.raises(ValueError, match=r"size=\(height, width\)"):
        loader.frames(copies=True)
    with pytest.raises(MissingCopyError, match="column 'cam' at 48x64.*there are none.*seqlake prepare"):
        loader.frames(size=SIZE, copies=True)
    raw(arm, {"cam": SIZE})
    with pytest.raises(MissingCopyError, match=r"'wrist' at 48x64.*there are cam 48x64, stretch, raw"):
        loader.frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match="'cam' at 64x48"):
        loader.frames(size=SIZE[::-1], copies=True)


def test_a_new_video_needs_its_copy_and_the_next_run_makes_it_alone(arm, tmp_path) -> None:
    raw(arm, {"cam": SIZE})
    (tmp_path / "more.mp4").write_bytes(films.film("small"))
    arm.append([{"sequence_id": "more", "action": np.zeros((12, 2), "f4"), "cam": sl.File(tmp_path / "more.mp4")}])
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match=r"column 'cam'.*no training copy of files/.*seqlake prepare"):
        batches(loader.on_error("mask", budget=None))
    (done,) = raw(arm, {"cam": SIZE}).columns
    assert (done.files, done.there, done.written, done.frames) == (5, 4, 1, 12)
    batches(loader)


def test_a_copy_of_other_bytes_is_an_error(tmp_path) -> None:
    (tmp_path / "films").mkdir()
    film = tmp_path / "films" / "a.mp4"
    film.write_bytes(films.film("training"))
    schema = sl.Schema({"cam": sl.Video(fps=30)})
    ds = sl.create(tmp_path / "ds", schema)
    ds.append([{"sequence_id": "a", "cam": str(film)}])
    ds = sl.open(tmp_path / "ds", allow_outside=True)
    raw(ds, {"cam": SIZE})
    loader = sl.Loader(ds, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    batches(loader)
    film.write_bytes(films.film("short"))
    ds = sl.open(tmp_path / "ds", allow_outside=True)
    loader = sl.Loader(ds, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match="made from other bytes than the file has now"):
        batches(loader)
    assert raw(ds, {"cam": SIZE}).columns[0].written == 1
    batches(loader)


def _jpegs(folder: Path, pictures: list[np.ndarray], size: tuple[int, int]) -> CopyDecoder:
    """A copy of JPEGs as anybody can write it, whose set says `size`."""
    data = [encode_image(one, format="jpeg") for one in pictures]
    path = folder / "copy.mjpeg"
    path.write_bytes(b"".join(data))
    index = np.array([*map(len, data), *map(zlib.crc32, data)], "<u4").tobytes()
    facts = {"frames": len(data), "times": packed(np.arange(len(data))), "nbytes": path.stat().st_size, "index": index}
    record = CopyRecord(reference="a.mp4", original=Fingerprint(nbytes=9), **facts)
    settings = CopySettings(column="cam", height=size[0], width=size[1], codec="mjpeg")
    return CopyDecoder(record, settings, open_blob(path))


@pytest.mark.parametrize("by", ["simplejpeg", "ffmpeg"])
def test_jpegs_are_decoded_as_another_reader_does(by, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.media.image.has_simplejpeg", lambda: by == "simplejpeg")
    pictures = [np.random.default_rng(seed).integers(0, 256, (48, 64, 3), np.uint8) for seed in range(3)]
    decoder = _jpegs(tmp_path, pictures, SIZE)
    data = (tmp_path / "copy.mjpeg").read_bytes()
    ends = np.cumsum([len(encode_image(one, format="jpeg")) for one in pictures]).tolist()
    parts = [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    wanted = np.stack([np.asarray(PIL.Image.open(io.BytesIO(part))) for part in parts])
    found = decoder.read(np.array([2, 0, 0]))
    assert np.abs(found.astype(int) - wanted[[2, 0, 0]]).max() <= (0 if by == "simplejpeg" else 60)  # other chroma
    assert decoder.read(np.zeros(0, np.int64)).shape == (0, 48, 64, 3)


@pytest.mark.parametrize("by", ["simplejpeg", "ffmpeg"])
@pytest.mark.parametrize("size", [(24, 32), (32, 96), (64, 48), (96, 64), (48, 65)], ids=str)
def test_jpegs_of_another_size_are_no_pictures(size, by, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("seqlake.media.image.has_simplejpeg", lambda: by == "simplejpeg")
    decoder = _jpegs(tmp_path, [np.full((*size, 3), 9, np.uint8)], SIZE)
    with pytest.raises(MissingCopyError, match="is damaged: .*picture 0"):
        decoder.read(np.array([0]))


@pytest.mark.parametrize("codec", ["raw", "mjpeg", "h264"])
def test_a_damaged_copy_is_no_damage_of_the_data(arm, codec) -> None:
    raw(arm, {"cam": SIZE}, codec=codec)
    for path in _folder(arm).iterdir():
        if path.suffix != ".json":
            path.write_bytes(path.read_bytes()[:-100])
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match=r"expected \d+ bytes, found \d+.*--drop"):
        batches(loader.on_error("mask", budget=None))
    assert raw(arm, {"cam": SIZE}, codec=codec).columns[0].written == 4
    batches(loader)


@pytest.mark.parametrize("codec", ["raw", "mjpeg", "h264"])
def test_a_byte_that_changed_is_never_a_picture(arm, codec) -> None:
    raw(arm, {"cam": SIZE}, codec=codec)
    for path in _folder(arm).iterdir():
        if path.suffix != ".json":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 16
            path.write_bytes(data)
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match=r"is damaged: .*--drop"):
        batches(loader.on_error("mask", budget=None))


def _folder(ds: sl.Dataset) -> Path:
    (folder,) = (Path(ds.root) / "_seqlake" / "copies").glob("cam-*")
    return folder


def _times(count: int) -> str:
    return base64.b64encode(zlib.compress(bytes(8 * count), 9)).decode()


def _many_times() -> str:
    """Of 2^27 frames: a gigabyte to unpack, which takes seconds to pack, so not where tests are collected."""
    return base64.b64encode(zlib.compress(bytes(8 << 27), 1)).decode()


def _sealed(**changes) -> bytes:
    """A record whose checksum is right, as whoever sends a dataset can write it."""
    record = CopyRecord(reference="a.mp4", original=Fingerprint(nbytes=9), frames=3, times=_times(3), nbytes=9)
    fields = json.loads(json.loads(record.document())["copy"]) | changes
    body = json.dumps({name: value for name, value in fields.items() if value is not ...})
    return json.dumps({"copy": body, "crc32": zlib.crc32(body.encode())}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        *({"frames": value} for value in (2, 4, -1, 0, 3.0, "3", [], True, 10**18, 10**30)),
        {"frames": 1 << 27, "times": _many_times},
        *({"time_base": value} for value in ("1e99999999", "0", "-1/30", "1/0", "1/" + "9" * 5000, 30, None)),
        *({"phases": value} for value in ([], "0", [1], [-1], [10**30], [0.0], [[0]])),
        *({"every": value} for value in (0, "1", 1.0)),
        *({"times": value} for value in ("", "!", "\u2603", 3, base64.b64encode(b"x").decode())),
        *({name: 7} for name in ("reference", "original", "index", "damage")),
        {"original": {"nbytes": 1, "other": 2}},
        {"nbytes": "9"},
        {"frames": ...},
        {"another": 1},
        {"frames": 1, "times": base64.b64encode(zlib.compress((1 << 63).to_bytes(8, "little"))).decode()},
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_record_by_a_stranger_is_a_record_or_none(changes) -> None:
    assert CopyRecord.parse(_sealed()).pts.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match=r"."):
        CopyRecord.parse(_sealed(**{name: value() if callable(value) else value for name, value in changes.items()}))


def test_a_set_by_a_stranger_is_that_of_its_folder(arm) -> None:
    raw(arm, {"cam": SIZE})
    path = _folder(arm) / "set.json"
    ours = json.loads(path.read_text())
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8)
    others = [
        {"height": 1 << 40},
        {"height": 47},
        {"column": "wrist"},
        {"column": "../.."},
        {"every": 10**30},
        {"fit": []},
    ]
    for text in (*(json.dumps(ours | other) for other in others), "[" * 60_000):
        path.write_text(text)
        for use in (lambda: loader.frames(size=SIZE, copies=True), lambda: raw(arm, {"cam": SIZE})):
            with pytest.raises(MissingCopyError, match=r"does not describe training copies.*--drop"):
                use()
    path.write_bytes(bytes(1 << 17))
    with pytest.raises(MissingCopyError, match="expected at most 65,536 bytes"):
        loader.frames(size=SIZE, copies=True)
    assert sl.drop_copies(arm)


def test_no_link_leads_what_is_made_or_dropped_elsewhere(arm, tmp_path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    raw(arm, {"cam": SIZE})
    folder = _folder(arm)
    for path in [path for path in folder.iterdir() if path.name != "set.json"]:
        path.unlink()
        if path.suffix == ".npy":
            for name in (path.name, f"{path.name}.tmp"):
                (folder / name).symlink_to(mine / name)
    raw(arm, {"cam": SIZE})
    assert not list(mine.iterdir())
    (mine / "set.json").write_text("mine")
    (folder.parent / "more").symlink_to(mine)
    gone = sl.drop_copies(arm)
    assert "_seqlake/copies/more/set.json" not in gone
    assert (mine / "set.json").read_text() == "mine"
    shutil.rmtree(folder.parent)
    folder.parent.symlink_to(mine)
    for verb in (raw, sl.drop_copies):
        with pytest.raises(UnsafeReferenceError, match="link"):
            verb(arm)
    assert [path.name for path in mine.iterdir()] == ["set.json"]


def test_a_damaged_original_stays_damage(arm) -> None:
    first = next(one.reference for one in arm.files() if "cam" in one.columns)
    path = Path(arm.root, first)
    path.chmod(0o600)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :])
    (done,) = raw(arm, {"cam": SIZE}).columns
    assert list(done.damaged) == [first]
    assert done.written == 3
    assert first in str(raw(arm, {"cam": SIZE}))
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8).frames(size=SIZE, copies=True)
    with pytest.raises((DecodeError, OSError)):
        batches(loader)
    masked = loader.on_error("mask", budget=None)
    assert any(not batch["valid"].all() for batch in batches(masked))


def test_state_and_plan_say_where_frames_come_from(arm) -> None:
    plain = sl.Loader(arm, window={"cam": [0]}, batch_size=8).frames(size=SIZE)
    raw(arm, {"cam": SIZE})
    copied = plain.frames(size=SIZE, copies=True)
    assert "from training copies: cam 48x64, stretch, raw" in str(copied.plan())
    assert "training copies" not in str(plain.plan())
    for here, other in ((plain, copied), (copied, plain)):
        with pytest.raises(LoaderStateError, match="the training copies that frames come from"):
            here.load_state_dict(other.state_dict())
    copied.load_state_dict(copied.state_dict())
    old = {name: value for name, value in plain.state_dict().items() if name != "copies"}
    plain.load_state_dict(old)  # of a release without copies


def test_lower_rates_serve_the_steps_they_have(arm) -> None:
    (done,) = raw(arm, {"cam": SIZE}, fps=10).columns
    assert done.settings.every == 3
    loader = sl.Loader(arm, window=sl.Window({"cam": range(0, 9, 3)}, stride=3), batch_size=4, shuffle=False)
    same(batches(loader.frames(size=SIZE, copies=True)), batches(loader.frames(size=SIZE)))
    between = sl.Loader(arm, window={"cam": [0]}, batch_size=4, shuffle=False).frames(size=SIZE, copies=True)
    with pytest.raises(MissingCopyError, match=r"'ep_0', column 'cam'.*one of 3 frames, and frame 1 of .*--fps"):
        batches(between.on_error("mask", budget=None))
    with pytest.raises(ValueError, match="divides the 15 a second of column 'wrist'"):
        raw(arm, {"wrist": SIZE, "cam": (8, 8)}, fps=7)


def test_parts_of_a_file_keep_steps_from_their_own_beginning(tmp_path) -> None:
    """As LeRobot has them: several rows share a file, each with a part of its own."""
    films.write(tmp_path, ["b"])
    kind = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
    cells = [{"url": "b.mp4", "first_frame": first, "num_frames": 10} for first in (0, 7)]
    table = pa.table({"sequence_id": ["x", "y"], "cam": pa.array(cells, kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    ds = sl.scan(tmp_path, column_types={"cam": sl.Video(fps=30)})
    (done,) = raw(ds, {"cam": SIZE}, fps=10, out=tmp_path / "copies").columns
    assert (done.files, done.frames) == (1, sum(n % 3 in (0, 7 % 3) for n in range(len(films.frames("b")))))
    loader = sl.Loader(ds, window=sl.Window({"cam": [0, 3]}, stride=3), batch_size=4, shuffle=False)
    same(batches(loader.frames(size=SIZE, copies=tmp_path / "copies")), batches(loader.frames(size=SIZE)))


def test_settings_that_differ_are_refused_and_drop_makes_room(arm) -> None:
    raw(arm)
    with pytest.raises(sl.errors.SeqlakeError, match=r"found cam 48x64, stretch, raw; asked for cam 48x64, crop"):
        raw(arm, {"cam": SIZE}, fit="crop")
    planned = sl.drop_copies(arm, {"cam": SIZE}, dry_run=True)
    assert planned == sl.drop_copies(arm, {"cam": SIZE})
    assert {path.split("/")[2].split("-")[0] for path in planned} == {"cam"}
    assert all(size > 0 for size in planned.values())
    raw(arm, {"cam": SIZE}, fit="crop")
    version = arm.version
    sl.drop_copies(arm)
    assert not list(arm.table.store.list("_seqlake/copies"))
    arm.refresh()
    assert arm.version == version
    assert sl.validate(arm).ok


def test_a_folder_of_its_own(arm, tmp_path) -> None:
    out = tmp_path / "copies"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    raw(arm, out=out)
    assert not list(arm.table.store.list("_seqlake/copies"))
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=8, shuffle=False)
    same(batches(loader.frames(size=SIZE, copies=out)), batches(loader.frames(size=SIZE)))
    with pytest.raises(MissingCopyError):
        loader.frames(size=SIZE, copies=True)
    sl.drop_copies(arm, out=out)
    assert [path.name for path in out.rglob("*") if path.is_file()] == ["mine.txt"]


def test_what_is_not_ours_to_write_to_needs_a_folder(arm, tmp_path) -> None:
    shutil.rmtree(tmp_path / "arm" / "_seqlake")
    plain = sl.open(tmp_path / "arm")
    with pytest.raises(ReadOnlyError, match=r"out=, and copies="):
        raw(plain, {"cam": SIZE})
    raw(plain, {"cam": SIZE}, out=tmp_path / "copies")
    assert not (tmp_path / "arm" / "_seqlake").exists()
    loader = sl.Loader(plain, window={"cam": [0]}, batch_size=8, shuffle=False)
    same(batches(loader.frames(size=SIZE, copies=tmp_path / "copies")), batches(loader.frames(size=SIZE)))


def test_the_codec_is_measured_and_explained(arm) -> None:
    large = sl.prepare(arm, {"cam": SIZE}, budget="1 GB", on=HERE, dry_run=True)
    (column,) = large.columns
    assert large.planned
    assert not list(arm.table.store.list("_seqlake/copies"))
    assert "fastest of those that fit 1.0 GB" in str(large)
    assert {line.split(":")[0] for line in column.why[1:]} == {"h264", "mjpeg", "ffv1", "raw"}
    exact = raw(arm, {"cam": SIZE}).columns[0].nbytes
    planned = sl.prepare(arm, {"cam": (49, 65)}, codec="raw", budget=10**9, on=HERE, dry_run=True).columns[0].nbytes
    assert planned == pytest.approx(exact * 49 * 65 / 48 / 64, rel=0.2)
    with pytest.raises(sl.errors.SeqlakeError, match="within 1,000 bytes, found about"):
        sl.prepare(arm, {"cam": (49, 65)}, codec="raw", budget=1000, on=HERE)


def test_by_default_copies_take_what_fits_the_machine(arm, monkeypatch) -> None:
    def planned(disk: int, memory: int) -> str:
        monkeypatch.setattr("seqlake.files.local.LocalStore.free", lambda _: disk)
        monkeypatch.setattr("seqlake.copies.preparing.machine_memory", lambda: memory)
        return str(sl.prepare(arm, BOTH, on=HERE, dry_run=True))

    large = planned(1 << 40, 1 << 34)
    assert large.count("chose raw: the fastest of those that fit 4.3 GB, what stays in memory, half of this") == 2
    assert "a quarter of what is free there" in planned(1 << 30, 1 << 40)
    assert "4 times the originals" in planned(1 << 40, 1 << 10)
    small = planned(0, 1 << 40)  # as in a bucket, where nobody knows
    assert "what the originals take" in small
    assert "chose raw" not in small


@pytest.mark.parametrize(
    ("videos", "options", "error", "says"),
    [
        ({}, {}, ValueError, "expected columns with sizes"),
        ({"cam": 224}, {}, ValueError, "height, width"),
        ({"cam": (0, 8)}, {}, ValueError, "height, width"),
        ({"cam": SIZE}, {"fit": "pad"}, ValueError, "stretch, letterbox, crop"),
        ({"cam": SIZE}, {"codec": "av1"}, ValueError, "auto or one of h264"),
        ({"cam": SIZE}, {"budget": "much"}, ValueError, "such as '20 GB'"),
        ({"action": SIZE}, {}, SchemaMismatchError, "expected one of cam, wrist; found 'action'"),
        ({"cma": SIZE}, {}, sl.errors.ColumnNotFoundError, "No column 'cma'; there are .*cam"),
    ],
)
def test_what_cannot_be_meant(filmed, videos, options, error, says) -> None:
    with pytest.raises(error, match=says):
        raw(sl.open(filmed), videos, **options)


class Pickled:
    """As processes do it, without their starting: what travels is pickled."""

    def run(self, function, tasks, /, *, done, tick):
        for task in tasks:
            function, result = pickle.loads(pickle.dumps((function, task)))[0], None
            result = pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(task)))))
            done(task, result)
            tick()


def test_copies_are_made_elsewhere(arm) -> None:
    assert [one.written for one in raw(arm, on=Pickled()).columns] == [4, 4]


def _many(root: Path, count: int) -> sl.Dataset:
    (root / "a.mp4").write_bytes(films.film("b"))
    ds = sl.create(root / "ds", sl.Schema({"cam": sl.Video(fps=30)}))
    ds.append([{"sequence_id": f"{n:02}", "cam": sl.File(root / "a.mp4")} for n in range(count)])
    return ds


def _gone_on_with(ds: sl.Dataset, count: int) -> None:
    """What has its record is whole, and is not made again."""
    folder = Path(ds.root) / "_seqlake" / "copies"
    before = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    kept = {name.removesuffix(".json") for name in before if name.endswith(".json") and name != "set.json"}
    assert 0 < len(kept) < count, "it was not killed in the middle"
    (again,) = raw(ds, {"cam": SIZE}).columns
    assert (again.there, again.written) == (len(kept), count - len(kept))
    after = {path.name: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert not [name for name in after if name.endswith(".tmp")]
    assert len(after) == 2 * count + 1
    assert all(after[name] == before[name] for name in before if name.split(".")[0] in kept)
    loader = sl.Loader(ds, window={"cam": [0]}, batch_size=64, shuffle=False)
    same(batches(loader.frames(size=SIZE, copies=True)), batches(loader.frames(size=SIZE)))


def _until(folder: Path, records: int, ended) -> None:
    give_up = time.monotonic() + 120
    while len(list(folder.rglob("*.json"))) <= records and not ended() and time.monotonic() < give_up:
        time.sleep(0.002)


@pytest.mark.parametrize("records", [1, 6])
def test_a_killed_run_is_gone_on_with(tmp_path, records) -> None:
    ds = _many(tmp_path, 16)
    child = multiprocessing.get_context("fork").Process(target=raw, args=(ds, {"cam": SIZE}))
    child.start()
    _until(tmp_path / "ds" / "_seqlake" / "copies", records, lambda: not child.is_alive())
    child.kill()
    child.join()
    _gone_on_with(ds, 16)


SCRIPT = """
import sys
import seqlake as sl

if __name__ == "__main__":
    sl.prepare(sl.open(sys.argv[1]), {"cam": (48, 64)}, codec="raw", workers=2)
"""


@pytest.mark.soak
def test_a_run_of_several_processes_is_killed_with_them(tmp_path) -> None:
    ds = _many(tmp_path, 60)
    (tmp_path / "run.py").write_text(SCRIPT)
    run = subprocess.Popen([sys.executable, str(tmp_path / "run.py"), ds.root], start_new_session=True)
    _until(tmp_path / "ds" / "_seqlake" / "copies", 5, lambda: run.poll() is not None)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    _gone_on_with(ds, 60)


def test_vacuum_keeps_the_copies_of_what_is_kept(arm) -> None:
    raw(arm)
    before = [path for path, _ in arm.table.store.list("_seqlake/copies")]
    assert not [path for path in arm.vacuum(older_than=_NO_TIME) if "copies" in path]
    assert [path for path, _ in arm.table.store.list("_seqlake/copies")] == before
    arm.delete(ids=["ep_0"])
    planned = arm.vacuum(older_than=_NO_TIME, dry_run=True)
    removed = arm.vacuum(older_than=_NO_TIME)
    assert list(planned) == list(removed)
    gone = [path for path in removed if "copies" in path]
    assert sorted(path.split("/")[2].split("-")[0] + Path(path).suffix for path in gone) == [
        *("cam.json", "cam.npy", "wrist.json", "wrist.npy")
    ]
    loader = sl.Loader(arm, window={"cam": [0], "wrist": [0]}, batch_size=8)
    batches(loader.frames(size=SIZE, copies=True))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "kind",
    ["delta:{}/lake", "iceberg:{}/warehouse/robots.arm", "ducklake:sqlite:{}/meta.sqlite?table=arm", "lance:{}/lake"],
)
def test_lakes_have_copies(arm, kind, tmp_path) -> None:
    lake = sl.convert(arm, kind.format(tmp_path), workers=1, progress=False)
    raw(lake)
    loader = sl.Loader(lake, window={"cam": [-1, 0], "wrist": [0]}, batch_size=8, seed=3)
    same(batches(loader.frames(size=SIZE, copies=True)), batches(loader.frames(size=SIZE)))
    assert raw(sl.open(kind.format(tmp_path))).columns[0].there == 4
    assert sl.drop_copies(lake)
    with pytest.raises(MissingCopyError):
        loader.frames(size=SIZE, copies=True)


@pytest.mark.parametrize(
    "kind", ["delta:{}/lake", "iceberg:{}/warehouse/robots.arm", "ducklake:sqlite:{}/meta.sqlite?table=arm"]
)
def test_vacuum_of_a_lake_keeps_the_copies_of_what_is_kept(arm, kind, tmp_path) -> None:
    """A version that is retained needs its copies as the newest does; what is no copy of ours is left alone."""
    lake = sl.convert(arm, kind.format(tmp_path), workers=1, progress=False)
    raw(lake)

    def lying() -> set[str]:
        return {path for path, _ in lake.table.store.list("_seqlake/copies")}

    before = lying()
    folder = min(before).rpartition("/")[0]
    lake.table.store.put(f"{folder}/notes.txt", b"mine")
    assert not [path for path in lake.vacuum(older_than=_NO_TIME) if "copies" in path]
    lake.delete(ids=["ep_0"])
    assert not [path for path in lake.vacuum() if "copies" in path]
    assert lying() == before | {f"{folder}/notes.txt"}
    planned = {path for path in lake.vacuum(older_than=_NO_TIME, dry_run=True) if "copies" in path}
    assert lying() == before | {f"{folder}/notes.txt"}
    removed = {path for path in lake.vacuum(older_than=_NO_TIME) if "copies" in path}
    assert planned == removed == before - (lying() - {f"{folder}/notes.txt"})
    assert sorted(path.split("/")[2].split("-")[0] + Path(path).suffix for path in removed) == [
        *("cam.json", "cam.npy", "wrist.json", "wrist.npy")
    ]
    assert f"{folder}/notes.txt" in lying()
    loader = sl.Loader(lake, window={"cam": [0], "wrist": [0]}, batch_size=8)
    batches(loader.frames(size=SIZE, copies=True))


def test_vacuum_leaves_the_copies_of_another_table_of_the_lake(arm, tmp_path) -> None:
    """All tables of a DuckLake have one folder, and a version is kept for as long as another table's shows it."""
    one, other = (
        sl.convert(arm, f"ducklake:sqlite:{tmp_path}/meta.sqlite?table={name}", workers=1, progress=False)
        for name in ("one", "other")
    )
    for lake in (one, other):
        raw(lake, {"cam": SIZE})
    one.delete(ids=["ep_0"])
    assert not [path for path in one.vacuum(older_than=_NO_TIME) if "copies" in path]
    other.delete(ids=["ep_1"])
    other.vacuum(older_than=_NO_TIME)
    assert len([path for path in one.vacuum(older_than=_NO_TIME) if "copies" in path]) == 2
    for lake in (one, other):
        assert raw(lake, {"cam": SIZE}).columns[0].written == 0


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("codec", ["raw", "mjpeg", "h264"])
def test_copies_lie_in_a_bucket(arm, codec, s3_environment) -> None:
    far = sl.convert(arm, f"{s3_environment}/arm", workers=1, progress=False)
    (done,) = raw(far, {"cam": SIZE}, codec=codec).columns
    assert (done.written, done.there) == (4, 0)
    assert raw(sl.open(f"{s3_environment}/arm"), {"cam": SIZE}, codec=codec).columns[0].there == 4
    raw(arm, {"cam": SIZE}, codec=codec)
    here, there = (
        sl.Loader(one, window={"cam": [0]}, batch_size=8, shuffle=False).frames(size=SIZE, copies=True)
        for one in (arm, far)
    )
    same(batches(there), batches(here))
    assert len(sl.drop_copies(far)) == 9
