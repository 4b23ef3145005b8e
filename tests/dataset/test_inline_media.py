"""Files whose bytes stand in the rows: read, windowed, carried, cut and validated as files are, in every home."""

from __future__ import annotations

import io
import json
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


def film(number: int, **options: Any) -> bytes:
    """Another video for each number, with a key frame at every fourth picture."""
    return clips.encode("libx264", times=range(number, number + STEPS), g="4", bf="0", **options)


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
