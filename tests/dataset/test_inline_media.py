"""Files whose bytes stand in the rows: read, windowed, carried, cut and validated as files are, in every home."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import seqlake as sl
from seqlake.dataset.statistics import statistics
from seqlake.errors import DecodeError, SeqlakeError, UnsafeReferenceError
from seqlake.files.remote import ObjectBlob
from seqlake.shards.parquet.reader import ParquetReader

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named
from ..media import clips  # noqa: TID252 - likewise

STEPS = 12
STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})
KINDS = {"binary": pa.binary(), "large binary": pa.large_binary(), "struct": STRUCT}
TYPES = {
    "cam": {"type": "video", "fps": 30},
    "photo": {"type": "image"},
    "sound": {"type": "audio", "sample_rate": 8000},
    "action": {"type": "trajectory", "fps": 30},
}


def film(number: int) -> bytes:
    """Other pictures for each number, with a key frame at every fourth."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("libx264", rate=30, options={"g": "4", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = clips.WIDTH, clips.HEIGHT, "yuv420p"
        for step in range(STEPS):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(clips.picture(50 * number + step), format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def photo(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(clips.picture(number)).save(file, "png")
    return file.getvalue()


def tone(number: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes((np.arange(3200) * (number + 1) % 999).astype("<i2").tobytes())
    return file.getvalue()


FILMS, PHOTOS, TONES = ([make(n) for n in range(3)] for make in (film, photo, tone))


def cell(data: bytes | None, kind: pa.DataType, *, path: str | None = "was.bin") -> Any:
    return {"bytes": data, "path": path} if pa.types.is_struct(kind) and data is not None else data


def table(kind: pa.DataType) -> pa.Table:
    """Three sequences; the last has no media."""
    columns = {"cam": [*FILMS[:2], None], "photo": [*PHOTOS[:2], None], "sound": [*TONES[:2], None]}
    action = [[[float(step), float(row)] for step in range(STEPS)] for row in range(3)]
    return pa.table(
        {
            "sequence_id": ["a", "b", "c"],
            "action": pa.array(action, pa.list_(pa.list_(pa.float32()))),
            **{name: pa.array([cell(one, kind) for one in cells], kind) for name, cells in columns.items()},
        }
    )


def folder(place: Path, kind: pa.DataType, given: pa.Table | None = None) -> Path:
    """As another writer leaves them."""
    (place / "data").mkdir(parents=True)
    pq.write_table(table(kind) if given is None else given, place / "data" / "part-0.parquet")
    (place / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": TYPES}))
    return place


def frames_of(data: bytes) -> np.ndarray:
    """[N, H, W, 3] as FFmpeg decodes and converts them."""
    with av.open(io.BytesIO(data)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def decoded(data: bytes, name: str, place: Path) -> np.ndarray:
    """What the library decodes from the same bytes, as a file that a row names."""
    root = folder(place, pa.string(), table(pa.string()).slice(0, 0) if False else _named(place, data, name))
    return np.asarray(sl.open(root).sequence("x")[name][:])


def _named(place: Path, data: bytes, name: str) -> pa.Table:
    place.mkdir(parents=True, exist_ok=True)
    (place / "file.bin").write_bytes(data)
    return pa.table({"sequence_id": ["x"], name: ["file.bin"]})


def above_note(ds: sl.Dataset, depth: str = "decode") -> list[str]:
    return [str(one) for one in ds.validate(depth=depth) if one.severity != "note"]


@pytest.fixture(params=KINDS)
def kind(request) -> pa.DataType:
    return KINDS[request.param]


def test_bytes_in_rows_decode_as_the_same_bytes_in_a_file(kind, tmp_path) -> None:
    row = sl.open(folder(tmp_path / "in", kind)).sequence("b")
    for name, data in (("cam", FILMS[1]), ("photo", PHOTOS[1]), ("sound", TONES[1])):
        np.testing.assert_array_equal(row[name][:], decoded(data, name, tmp_path / name))
        assert (row[name].data, row[name].read(), row[name].size) == (data, data, len(data))
    np.testing.assert_array_equal(row["photo"][0], clips.picture(1))
    with wave.open(io.BytesIO(TONES[1])) as told:
        expected = np.frombuffer(told.readframes(3200), "<i2") / 32768
    np.testing.assert_allclose(row["sound"][:][:, 0], expected, atol=1e-6)
    difference = np.abs(row["cam"][:].astype(int) - frames_of(FILMS[1]))
    assert difference.mean() < 3, "as FFmpeg, but for how it rounds colours"
    assert sl.open(tmp_path / "in").sequence("c")["cam"] is None


def test_windows_take_frames_of_bytes(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))
    truth = [ds.sequence(one)["cam"][:] for one in "ab"]
    loader = sl.Loader(ds, window={"action": range(3), "cam": range(3)}, batch_size=4, shuffle=False).frames()
    batches = list(loader)
    ids = np.concatenate([batch["sequence_id"] for batch in batches])
    cam, mask = (np.concatenate([batch[name] for batch in batches]) for name in ("cam", "cam_mask"))
    for number, one in enumerate("ab"):
        mine = cam[ids == one]
        assert len(mine) == STEPS
        np.testing.assert_array_equal(mine[2], truth[number][2:5])
        np.testing.assert_array_equal(mask[ids == one][STEPS - 1], [True, False, False])
    assert not mask[ids == "c"].any()
    window = ds.sequence("a").window(2, 5, columns=["cam", "action"])
    np.testing.assert_array_equal(window["cam"], truth[0][2:5])


def test_frames_alone_are_counted_and_other_rates_go_by_time(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))
    alone = list(sl.Loader(ds, window={"cam": range(1)}, batch_size=4, shuffle=False).frames(size=(8, 8)))
    assert sum(len(batch["cam"]) for batch in alone) == 2 * STEPS
    slower = sl.Loader(ds, window=sl.Window({"cam": [0]}, clock=10), batch_size=64, shuffle=False).frames()
    (batch,) = slower
    np.testing.assert_array_equal(batch["cam"][1, 0], ds.sequence("a")["cam"][3])


def test_a_loader_that_shuffles_goes_on_where_it_stopped(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))

    def loader() -> sl.Loader:
        return sl.Loader(ds, window={"cam": range(2)}, batch_size=5, seed=3).frames()

    whole = list(loader())
    first = loader()
    head = next(iter(first))
    again = loader()
    again.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(head["cam"], whole[0]["cam"])
    for expected, found in zip(whole[1:], again, strict=True):
        np.testing.assert_array_equal(found["cam"], expected["cam"])


@pytest.mark.sampled
@pytest.mark.parametrize("home", PLACES)
@pytest.mark.parametrize("name", ["binary", "struct"])
def test_every_home_carries_bytes_and_decodes_them(home, name, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", KINDS[name]))
    out = sl.convert(ds, PLACES[home].format(folder=tmp_path, name="out"), progress=False)
    assert out.schema["cam"].type == ds.schema["cam"].type
    for one in ("cam", "photo", "sound"):
        assert out.to_arrow()[one].to_pylist() == ds.to_arrow()[one].to_pylist()
        np.testing.assert_array_equal(out.sequence("b")[one][:], ds.sequence("b")[one][:])
    inner = "cam" if name == "binary" else "cam.bytes"
    sizes = out.sql(f"SELECT octet_length({inner}) FROM dataset ORDER BY sequence_id").to_arrow_table()
    assert sizes.column(0).to_pylist() == [len(FILMS[0]), len(FILMS[1]), None]
    loader = sl.Loader(out, window={"cam": range(2)}, batch_size=64, shuffle=False).frames()
    (batch,) = loader
    np.testing.assert_array_equal(batch["cam"][1], ds.sequence("a")["cam"][1:3])
    assert above_note(out) == []


@pytest.mark.sampled(every=2)
def test_sequences_and_sheets_show_them(kind, tmp_path) -> None:
    from seqlake.dataset.drawing import contact_sheet

    ds = sl.open(folder(tmp_path / "in", kind))
    html = ds.sequence("a")._repr_html_()
    assert html.count("data:image/") >= 7, "six of the video, one photograph"
    assert "unreadable" not in html
    assert f"{len(FILMS[0]):,} bytes" in repr(ds.sequence("a"))
    assert "unreadable" not in ds._repr_html_()
    with_cam, without = (np.asarray(contact_sheet(one)) for one in (ds.sequence("a"), ds.sequence("c")))
    assert len(np.unique(with_cam.reshape(-1, 3), axis=0)) > 10 * len(np.unique(without.reshape(-1, 3), axis=0))


def changed(place: Path, kind: pa.DataType, name: str, data: bytes | None, *, path: str | None = None) -> sl.Dataset:
    """A dataset whose second sequence holds something else in one column."""
    rows = table(kind)
    cells = rows[name].to_pylist()
    cells[1] = {"bytes": data, "path": path} if pa.types.is_struct(kind) else data
    rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(cells, kind))
    return sl.open(folder(place, kind, rows))


BROKEN = {
    "no video": ("cam", b"not a video at all" * 9, "F409"),
    "no bytes": ("cam", b"", "F406"),
    "half a video": ("cam", FILMS[1][: len(FILMS[1]) // 2], "F409"),
    "no picture": ("photo", b"\x00" * 64, "F409"),
    "half a picture": ("photo", PHOTOS[1][:-900], "F431"),
    "no sound": ("sound", b"RIFF????WAVE", "F409"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", BROKEN)
def test_damage_in_rows_is_found_and_no_row_beside_it_suffers(name, kind, tmp_path) -> None:
    column, data, code = BROKEN[name]
    ds = changed(tmp_path / "in", kind, column, data)
    findings = [one for one in ds.validate(depth="decode") if one.severity != "note"]
    assert code in [one.code for one in findings]
    assert {(one.sequence_id, one.column) for one in findings} == {("b", column)}
    assert "bytes in the row" in str(findings[0])
    with pytest.raises(SeqlakeError):
        ds.sequence("b")[column][:]
    assert len(ds.sequence("a")[column][:])
    assert "unreadable" not in repr(ds.sequence("a"))
    assert ds.sequence("b")._repr_html_()


def test_pictures_that_say_they_are_huge_are_refused_in_rows_too(kind, tmp_path) -> None:
    data = bytearray(PHOTOS[0])
    data[16:24] = (1 << 30).to_bytes(4, "big") * 2
    ds = changed(tmp_path / "in", kind, "photo", bytes(data))
    with pytest.raises(DecodeError):
        ds.sequence("b")["photo"][0]
    with pytest.raises(DecodeError):
        ds.sequence("b")["photo"].at(seconds=[0])


def test_a_path_without_bytes_is_a_reference(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.mp4").write_bytes(FILMS[1])
    ds = changed(tmp_path / "in", STRUCT, "cam", None, path="b.mp4")
    assert above_note(ds) == []
    assert [one.reference for one in ds.files()] == ["b.mp4"]
    truth = frames = ds.sequence("b")["cam"][:]
    out = sl.convert(ds, tmp_path / "out", progress=False)
    (tmp_path / "in" / "b.mp4").unlink()
    assert [one.code for one in ds.validate(depth="files") if one.severity != "note"] == ["F404"]
    moved = out.sequence("b")["cam"]
    assert moved.data is None
    np.testing.assert_array_equal(moved[:], truth)
    loader = sl.Loader(out, window={"cam": range(1)}, batch_size=STEPS, shuffle=False).frames()
    np.testing.assert_array_equal(list(loader)[1]["cam"][:, 0], frames)
    cut = sl.trim(out, tmp_path / "cut", start=2, stop=6).dataset
    np.testing.assert_array_equal(cut.sequence("b")["cam"][:], frames[2:6])
    assert above_note(cut) == []


def test_a_path_without_bytes_stays_in_the_dataset(tmp_path) -> None:
    (tmp_path / "secret.mp4").write_bytes(FILMS[1])
    for number, path in enumerate(["../secret.mp4", str(tmp_path / "secret.mp4")]):
        ds = changed(tmp_path / str(number), STRUCT, "cam", None, path=path)
        with pytest.raises(UnsafeReferenceError):
            ds.sequence("b")["cam"][0]
        assert {"F402", "F403"} & {one.code for one in ds.validate()}
    ds = changed(tmp_path / "named", STRUCT, "cam", FILMS[1], path="../secret.mp4")
    assert above_note(ds) == [], "beside bytes it is a name"
    assert ds.files() == []


def test_pieces_hold_their_own_part(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))
    cuts = sl.trim(ds, tmp_path / "cut", start=2, stop=8)
    out = cuts.dataset
    assert above_note(out) == []
    for one in "ab":
        whole, part = ds.sequence(one), out.sequence(one)
        np.testing.assert_array_equal(part["cam"][:], whole["cam"][2:8])
        np.testing.assert_array_equal(part["sound"][:], whole["sound"][534:2134])
        assert part["photo"].read() == whole["photo"].read()
    assert out.sequence("c")["cam"] is None
    assert out.files() == []
    if pa.types.is_struct(kind):
        assert out.to_arrow()["cam"].to_pylist()[0]["path"] == "was.bin"
    pieces = sl.segment(ds, tmp_path / "pieces", length=5).dataset
    np.testing.assert_array_equal(pieces.sequence("a/001")["cam"][:], ds.sequence("a")["cam"][5:10])


@pytest.mark.sampled(every=2)
def test_what_only_moves_rows_moves_bytes(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))
    copy = sl.convert(ds, tmp_path / "copy", progress=False)
    for place, out in (
        ("subset", sl.subset(ds.where("sequence_id = 'b'"), tmp_path / "subset")),
        ("repack", sl.repack(copy, tmp_path / "packed")),
    ):
        np.testing.assert_array_equal(out.sequence("b")["cam"][:], ds.sequence("b")["cam"][:], err_msg=place)
        assert above_note(out) == []
    merged = sl.merge([ds.where("sequence_id = 'a'"), ds.where("sequence_id = 'b'")], tmp_path / "merged")
    assert merged.to_arrow().select(["cam"]).to_pylist() == ds.to_arrow().select(["cam"]).to_pylist()[:2]
    with copy.writer() as writer:
        writer.add("d", action=np.zeros((STEPS, 2)), cam=cell(FILMS[2], kind), photo=None, sound=None)
    np.testing.assert_array_equal(sl.open(tmp_path / "copy").sequence("d")["cam"][:].shape[0], STEPS)


def test_statistics_are_of_their_pictures(kind, tmp_path) -> None:
    ds = sl.open(folder(tmp_path / "in", kind))
    found = statistics(ds, ["photo"])["photo"]
    both = np.stack([clips.picture(0), clips.picture(1)]) / 255
    np.testing.assert_allclose(np.ravel(found.mean), both.mean((0, 1, 2)), atol=1e-6)


def test_a_loader_names_the_sequence_that_is_damaged(kind, tmp_path) -> None:
    ds = changed(tmp_path / "in", kind, "cam", b"not a video at all" * 9)
    window = {"action": range(1), "cam": range(1)}
    with pytest.raises(SeqlakeError, match=r"b.*cam"):
        list(sl.Loader(ds, window=window, batch_size=4, shuffle=False).frames())


def test_commands_show_them_and_write_their_frames(tmp_path) -> None:
    place = str(folder(tmp_path / "in", STRUCT))
    command = [sys.executable, "-c", "from seqlake.cli import main; main()"]
    said = subprocess.run([*command, "show", place, "a"], check=True, capture_output=True, text=True).stdout
    assert f"{len(FILMS[0]):,} bytes" in said
    out = tmp_path / "out"
    subprocess.run([*command, "frames", place, "a", "cam", "-o", str(out), "--as", "png"], check=True)
    pictures = [np.asarray(Image.open(one)) for one in sorted(out.iterdir())]
    np.testing.assert_array_equal(pictures, sl.open(place).sequence("a")["cam"][:])


def test_more_videos_than_decoders_are_opened_again(kind, tmp_path) -> None:
    films = [film(number) for number in range(7)]
    cam = pa.array([cell(one, kind) for one in films], kind)
    ds = sl.open(folder(tmp_path / "in", kind, pa.table({"sequence_id": list("abcdefg"), "cam": cam})))
    truth = {one: ds.sequence(one)["cam"][:] for one in "abcdefg"}
    loader = sl.Loader(ds, window={"cam": range(1)}, batch_size=2, seed=1).frames(threads=1)
    seen = 0
    for batch in loader:
        for one, frame in zip(batch["sequence_id"], batch["cam"][:, 0], strict=True):
            assert (truth[one] == frame).all((1, 2, 3)).any()
            seen += 1
    assert seen == 7 * STEPS


def padded(data: bytes, size: int) -> bytes:
    """The same film, as large as one of an hour: a box that every player skips."""
    return data + (size + 8).to_bytes(4, "big") + b"free" + bytes(size)


def test_of_a_film_in_a_row_few_bytes_are_read(s3_bucket, monkeypatch, tmp_path) -> None:
    schema = sl.Schema({"cam": sl.Video(fps=30, inline=True), "action": sl.Trajectory(dim=2, fps=30)})
    rows = [
        {"sequence_id": str(n), "cam": padded(film(n), 8 << 20), "action": np.zeros((STEPS, 2), np.float32)}
        for n in range(3)
    ]
    for place, storage in ((f"{s3_bucket.uri}/ds", s3_bucket.storage), (str(tmp_path / "ds"), None)):
        sl.create(place, schema, storage=storage).append(rows)
    there = sl.open(f"{s3_bucket.uri}/ds", storage=s3_bucket.storage)
    read: list[int] = []
    real = ObjectBlob.ranges

    def ranges(blob: ObjectBlob, starts: Any, stops: Any) -> Any:
        read.append(int(np.sum(np.asarray(stops) - np.asarray(starts))))
        return real(blob, starts, stops)

    monkeypatch.setattr(ObjectBlob, "ranges", ranges)
    np.testing.assert_array_equal(there["1"]["cam"][7], there["1"]["cam"][:][7])
    np.testing.assert_array_equal(there["1"]["cam"][:], sl.open(tmp_path / "ds")["1"]["cam"][:])
    assert sum(read) < 8 << 20  # the shard has 24 MiB, the cell 8
    assert there["1"]["cam"].read() == rows[1]["cam"]
    copy = pickle.loads(pickle.dumps(there["2"]["cam"]))
    assert copy == there["2"]["cam"] != there["1"]["cam"]
    np.testing.assert_array_equal(copy[3], sl.open(tmp_path / "ds")["2"]["cam"][3])

    monkeypatch.setattr(ParquetReader, "batches", _no_media(ParquetReader.batches))
    here = sl.open(tmp_path / "ds")
    loader = sl.Loader(here, window={"action": range(1), "cam": range(2)}, batch_size=STEPS, shuffle=False)
    for number, batch in enumerate(loader):
        np.testing.assert_array_equal(batch["cam"][:, 0], here[number]["cam"][:])
    monkeypatch.setattr("seqlake.files.blobs.blake2b", _refused)  # and nobody hashes them
    assert here["1"]["cam"][7].any()


def _no_media(real: Any) -> Any:
    def batches(reader: Any, columns: Any, /, **options: Any) -> Any:
        assert "cam" not in columns, "cells were decoded"
        return real(reader, columns, **options)

    return batches


def _refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a whole cell was hashed")
