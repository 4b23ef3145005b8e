"""Columns of depth: written, recorded, read, trained on, cut, looked at and validated."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

import seqlake as sl
from seqlake.dataset.drawing.strips import strip
from seqlake.errors import SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from pathlib import Path

COUNT, HEIGHT, WIDTH = 12, 24, 32
SCHEMA = sl.Schema(
    {
        "x": sl.Trajectory(dim=1, fps=30),
        "mm": sl.Depth(fps=30),
        "log": sl.Depth(fps=30, depth_max=8.0),
        "linear": sl.Depth(fps=30, depth_max=8.0, use_log=False),
        "png": sl.Depth(frames="bytes"),
        "files": sl.Depth(frames="files", depth_scale=0.0002),
        "infrared": sl.Video(fps=30, pixel_format="gray"),
    }
)


def scene(seed: int = 0) -> np.ndarray:
    """Millimetres of a wall, of which a part was not measured."""
    depth = np.random.default_rng(seed).integers(400, 6000, (COUNT, HEIGHT, WIDTH)).astype(np.uint16)
    depth[:, :4, :4] = 0
    return depth


def row(key: str, depth: np.ndarray) -> dict[str, object]:
    return {
        "sequence_id": key,
        "x": np.arange(len(depth), dtype=np.float32)[:, None],
        "mm": depth,
        "log": depth / np.float32(1000),
        "linear": depth,
        "png": depth[..., None],
        "files": list(depth * np.float64(0.001)),
        "infrared": (depth // 24).astype(np.uint8),
    }


@pytest.fixture
def dataset(tmp_path: Path) -> sl.Dataset:
    ds = sl.create(str(tmp_path / "ds"), SCHEMA)
    ds.append([row("a", scene(0)), row("b", scene(1))])
    return ds


def near(found: np.ndarray, depth: np.ndarray, name: str) -> None:
    """Within half a step of what was written, and 0 where nothing was measured."""
    metres = depth.astype(np.float64)[..., None] / 1000
    step = {"mm": 0.0, "png": 0.0, "files": 0.0, "linear": 8.0 / 4095}.get(name)
    if step is None:
        step = (metres + 3.5) * np.expm1(np.log(11.5 / 3.51) / 4095)
    assert found.dtype == np.float32
    assert (np.abs(found - metres) <= np.asarray(step) / 2 * 1.001 + 1e-6).all()
    assert (found[metres == 0] == 0).all()


@pytest.mark.parametrize("name", ["mm", "log", "linear", "png", "files"])
def test_depth_comes_back_in_metres(dataset: sl.Dataset, name: str) -> None:
    view = dataset["a"][name]
    near(view[:], scene(0), name)
    near(view[[7, 0, 7]], scene(0)[[7, 0, 7]], name)
    if name not in {"png", "files"}:
        near(view.at(seconds=[0.1, 0.2]), scene(0)[[3, 6]], name)
    small = view.decode([2], size=(10, 15))
    assert small.shape == (1, 10, 15, 1)
    assert np.isin(small, view[2]).all()  # no mean of two
    window = dataset["a"].window(2, 6, columns=[name])
    near(window[name], scene(0)[2:6], name)


def test_codes_are_those_that_a_camera_gave(dataset: sl.Dataset) -> None:
    for name, codes in (("mm", scene(0)), ("png", scene(0)), ("files", scene(0) * 5)):
        view = dataset["a"][name].codes
        assert view[:].dtype == np.uint16
        np.testing.assert_array_equal(view[:][..., 0], codes)
    assert dataset["a"]["log"].codes[:].max() <= 4095
    assert dataset["a"]["infrared"][:].shape == (COUNT, HEIGHT, WIDTH, 1)
    np.testing.assert_array_equal(dataset["a"]["infrared"][:][..., 0], (scene(0) // 24).astype(np.uint8))
    assert dataset["a"]["mm"].rgb[0].shape == (HEIGHT, WIDTH, 3)


def test_what_is_stored_is_what_ffmpeg_reads(dataset: sl.Dataset) -> None:
    for name, pixels, codec in (("mm", "gray16le", "ffv1"), ("log", "gray12le", "hevc")):
        view = dataset["a"][name]
        reading = ["ffmpeg", "-v", "error", "-i", view.location, "-f", "rawvideo", "-pix_fmt", pixels, "-"]
        raw = subprocess.run(reading, check=True, capture_output=True, timeout=60).stdout
        codes = np.frombuffer(raw, "<u2").reshape(COUNT, HEIGHT, WIDTH)
        np.testing.assert_array_equal(view.codes[:][..., 0], codes)
        with av.open(view.location) as container:
            assert container.streams.video[0].codec_context.name == codec


def test_a_batch_holds_metres(dataset: sl.Dataset) -> None:
    names = ["mm", "log", "png"]
    window = {"x": range(2), **dict.fromkeys(names, range(2))}
    for size in (None, (12, 16)):
        loader = sl.Loader(dataset, window=window, batch_size=4, shuffle=False)
        batch = next(iter(loader.frames(size=size)))
        for name in names:
            shape = size or (HEIGHT, WIDTH)
            assert batch[name].dtype == np.float32
            assert batch[name].shape == (4, 2, *shape, 1)
            expected = dataset["a"][name].decode([0, 1], size=size)
            np.testing.assert_array_equal(batch[name][0], expected)
        codes = next(iter(loader.frames(size=size, depth="codes")))
        for name in names:
            assert codes[name].dtype == np.uint16
            np.testing.assert_array_equal(codes[name][0], dataset["a"][name].codes.decode([0, 1], size=size))
        np.testing.assert_array_equal(codes["mm_mask"], batch["mm_mask"])
    with pytest.raises(ValueError, match="frames depth: expected one of metres, codes, found 'feet'"):
        loader.frames(depth="feet")
    frames = next(iter(sl.Loader(dataset, window={"infrared": range(1)}, batch_size=2).frames(size=(6, 8))))
    assert frames["infrared"].dtype == np.uint8
    assert frames["infrared"].shape == (2, 1, 6, 8, 1)


def test_depth_is_recorded_frame_by_frame(tmp_path: Path) -> None:
    ds = sl.create(str(tmp_path / "ds"), SCHEMA.select(["sequence_id", "x", "mm", "log", "png"]))
    with ds.writer() as writer, writer.record("a") as take:
        for number, depth in enumerate(scene(3)):
            values = {name: value for name, value in row("a", depth[None]).items() if name in ds.schema}
            values = {name: value[0] for name, value in values.items() if name != "sequence_id"}
            take.add(**{**values, "x": [float(number)]})
    for name in ("mm", "log", "png"):
        near(ds["a"][name][:], scene(3), name)


def test_an_encoding_for_cameras_leaves_depth_alone(tmp_path: Path) -> None:
    ds = sl.create(str(tmp_path / "ds"), sl.Schema({"cam": sl.Video(fps=30), "mm": sl.Depth(fps=30)}))
    cam = np.zeros((COUNT, HEIGHT, WIDTH, 3), np.uint8)
    ds.append([{"sequence_id": "a", "cam": cam, "mm": scene(0)}], encoding=sl.Encoding(options={"preset": "ultrafast"}))
    near(ds["a"]["mm"][:], scene(0), "mm")
    own = {"mm": sl.Encoding(codec="libx265", pixel_format="gray12le")}
    with pytest.raises(SchemaMismatchError, match="declares pixels 'gray16le', found an encoding in 'gray12le'"):
        ds.append([{"sequence_id": "b", "mm": scene(0)}], encoding=own)
    with pytest.raises(SeqlakeError, match="libx264 writes .*found 'gray16le'"):
        ds.append([{"sequence_id": "b", "mm": scene(0)}], encoding={"mm": sl.Encoding(options={"crf": "1"})})


def test_what_is_no_depth_is_refused_with_its_place(dataset: sl.Dataset) -> None:
    with pytest.raises(SchemaMismatchError, match=r"'c', column 'mm', step 0: expected depth as \[H, W\]"):
        dataset.append([{"sequence_id": "c", "mm": np.zeros((2, 8, 8, 3), np.uint8)}])
    with pytest.raises(ValidationError, match=r"'c', column 'mm', step 1: expected depth of 0 to 65.535 m.*found 70 m"):
        dataset.append([{"sequence_id": "c", "mm": np.array([np.ones((8, 8)), np.full((8, 8), 70.0)])}])


@pytest.mark.parametrize("start", [0, 3])
def test_cut_depth_keeps_its_codes(dataset: sl.Dataset, tmp_path: Path, start: int) -> None:
    sl.trim(dataset, str(tmp_path / "out"), start=start, stop=start + 6)
    out = sl.open(str(tmp_path / "out"))
    for name in ("mm", "log", "linear", "png"):
        before = dataset["a"][name].codes[start : start + 6]
        np.testing.assert_array_equal(out["a"][name].codes[:], before)
    assert out.validate(depth="decode").ok


def test_a_file_with_other_pixels_is_a_finding_and_an_error(dataset: sl.Dataset, tmp_path: Path) -> None:
    quantised = dataset["a"]["log"].location
    ds = sl.create(str(tmp_path / "other"), sl.Schema({"mm": sl.Depth(fps=30)}))
    ds.append([{"sequence_id": "a", "mm": scene(0)}, {"sequence_id": "b", "mm": sl.File(quantised)}])
    report = ds.validate()
    [finding] = [one for one in report.findings if one.code == "F415"]
    assert "pixel_format 'gray16le' is declared, the file has 'gray12le'" in finding.message
    with pytest.raises(SeqlakeError, match="its pixels are gray12le, and its column declares gray16le"):
        ds["b"]["mm"][0]
    with pytest.raises(SeqlakeError, match="gray12le"):
        list(sl.Loader(ds, window={"mm": range(1)}, batch_size=2, shuffle=False))
    plain = sl.create(str(tmp_path / "plain"), sl.Schema({"cam": sl.Video(fps=30)}))
    grey = dataset["a"]["infrared"].location
    plain.append([{"sequence_id": "a", "cam": sl.File(quantised)}, {"sequence_id": "b", "cam": sl.File(grey)}])
    assert "F417" in {one.code for one in plain.validate().findings}  # bits differ, and nothing declares any
    with pytest.raises(SchemaMismatchError, match="frames are .*uint8"):
        list(sl.Loader(plain, window={"cam": range(1)}, batch_size=2, shuffle=False))


def test_a_dark_far_room_is_not_called_black(dataset: sl.Dataset, tmp_path: Path) -> None:
    assert [one.code for one in dataset.validate(depth="decode").findings] == []
    ds = sl.create(str(tmp_path / "dead"), sl.Schema({"mm": sl.Depth(fps=30)}))
    ds.append([{"sequence_id": "a", "mm": np.zeros((3, 8, 8), np.uint16)}])
    assert {one.code for one in ds.validate(depth="decode").findings} == {"F432"}


def test_bad_fields_are_said_once_and_where(dataset: sl.Dataset, tmp_path: Path) -> None:
    wrong = ColumnType.from_json({"type": "video", "fps": 30, "is_depth_map": True, "depth_max": -1.0})
    ds = sl.create(str(tmp_path / "wrong"), sl.Schema({"mm": wrong}))
    ds.append([{"sequence_id": "a", "mm": sl.File(dataset["a"]["mm"].location)}])
    with pytest.raises(SeqlakeError, match="depth_min: expected metres from 0 to less than depth_max"):
        ds["a"]["mm"][0]
    assert "F435" in {one.code for one in ds.validate(depth="decode").findings}


def test_pictures_to_look_at_say_what_they_show(dataset: sl.Dataset) -> None:
    one = strip(dataset["a"], "mm", count=3, box=(32, 24))
    assert one.note.startswith(f"{COUNT} frames, {WIDTH}x{HEIGHT}, 0.4")
    assert one.note.endswith("m (dark), black: nothing measured")
    assert all(picture.dtype == np.uint8 and picture.shape[-1] == 3 for picture in one.pictures)
    first = one.pictures[0][..., 0]
    assert (first[scene(0)[0] == 0] == 0).all()
    nearest, farthest = scene(0)[0].argmax(), np.where(scene(0)[0] == 0, 9999, scene(0)[0]).argmin()
    assert 0 < first.reshape(-1)[nearest] < first.reshape(-1)[farthest]


def test_statistics_of_depth_are_of_metres_that_were_measured(dataset: sl.Dataset) -> None:
    measured = np.concatenate([scene(0), scene(1)]).astype(np.float64)
    measured = measured[measured > 0] / 1000
    for name, step in (("mm", 1e-6), ("png", 1e-6), ("log", 2e-3)):
        numbers = sl.statistics(dataset, [name])[name]
        for found, true in (
            (numbers.min, measured.min()),
            (numbers.max, measured.max()),
            (numbers.mean, measured.mean()),
            (numbers.std, measured.std()),
        ):
            np.testing.assert_allclose(found, [true], atol=step)
        assert numbers.count.tolist() == [measured.size]
