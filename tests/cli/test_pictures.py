"""`show` and `frames`: what is seen is what is stored, and files are never written over unasked."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli.frames import half_blocks
from seqlake.dataset.drawing.strips import strip
from seqlake.media import encode_image, image

from .conftest import run_as_process


def frame(number: int) -> np.ndarray:
    y, x = np.mgrid[:32, :48]
    return np.stack([x * 3 + 9 * number, y * 5, (x + y) + 7 * number], -1).astype(np.uint8)


@pytest.fixture
def filmed(tmp_path: Path) -> Path:
    columns = {
        "task": pa.string(),
        "action": sl.Trajectory(dim=2, fps=10),
        "cam": sl.Video(fps=10),
        "depth": sl.Image(frames="bytes", format="png"),
        "photos": sl.Image(frames="files", format="jpeg"),
        "still": sl.Image(),
        "mic": sl.Audio(),
    }
    ds = sl.create(tmp_path / "filmed", sl.Schema(columns))
    with ds.writer() as writer:
        writer.add(
            "ep",
            task="pick",
            action=np.ones((20, 2)),
            cam=[frame(n) for n in range(20)],
            depth=np.arange(20, dtype=np.uint16)[:, None, None] * np.full((1, 8, 8), 1000, np.uint16),
            photos=[frame(n) for n in range(20)],
            still=frame(3),
        )
    return tmp_path / "filmed"


def cells(line: str) -> list[tuple[list[int], list[int]]]:
    """(upper, lower) colour of each half block of a line."""
    found = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", line)
    return [([int(n) for n in one[:3]], [int(n) for n in one[3:]]) for one in found]


def test_a_terminal_shows_the_pixels_of_the_frames(run, filmed, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "65")
    told = run("--color", "always", "show", filmed, "ep", "--frames", 2)
    expected = strip(sl.open(filmed)["ep"], "cam", count=2, box=(32, 24))
    lines = told.out.split("\n")
    first = lines.index("cam  20 frames, 48x32") + 1
    rows = (len(expected.pictures[0]) + 1) // 2
    for number, line in enumerate(lines[first : first + rows]):
        upper = [one for picture in expected.pictures for one in picture[2 * number].tolist()]
        assert [pair[0] for pair in cells(line)] == upper
    assert lines[first + rows].split() == ["0.00", "s", "1.90", "s"]
    assert "photos  20 frames, 48x32" in told.out


def test_no_color_is_honoured(run, filmed, monkeypatch) -> None:
    asked = ("show", filmed, "ep", "--frames", 2)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in run(*asked).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run(*asked).out
    assert "\x1b[" in run("--color", "always", *asked).out


def test_half_blocks_of_odd_pictures() -> None:
    picture = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    lines = half_blocks(picture)
    assert len(lines) == 2
    assert cells(lines[0])[1] == ([3, 4, 5], [12, 13, 14])
    assert cells(lines[1])[0] == ([18, 19, 20], [18, 19, 20])
    assert all(line.endswith("\x1b[0m") for line in lines)


def test_without_a_terminal_show_is_text(run, filmed) -> None:
    told = run("show", filmed, "ep")
    assert "\x1b" not in told.out
    assert "f32[20,2]" in told.out
    assert "photos: " in told.out
    assert "png" not in run("show", filmed, "ep", "--json").json


def test_a_contact_sheet_is_written_and_never_over_a_file(run, filmed, tmp_path) -> None:
    out = tmp_path / "sheet.png"
    assert run("show", filmed, "ep", "--png", out, "--frames", 5, "--json").json["png"] == str(out)
    first = out.read_bytes()
    assert image.decode(first).shape[1] == 1280
    told = run("show", filmed, "ep", "--png", out)
    assert (told.code, out.read_bytes()) == (2, first)
    assert "--overwrite" in told.err
    assert str(out) in run("show", filmed, "ep", "--png", out, "--overwrite").out
    assert out.read_bytes() != first  # eight frames
    assert sorted(one.name for one in tmp_path.iterdir()) == ["filmed", "sheet.png"]


def test_show_works_without_cameras_and_of_foreign_folders(run, dataset, tmp_path) -> None:
    assert run("--color", "always", "show", dataset, "ep_03").code == 0
    assert run("show", dataset, "ep_03", "--png", tmp_path / "a.png").code == 0
    folder = tmp_path / "foreign"
    folder.mkdir()
    for path in (dataset / "data").glob("*.parquet"):
        (folder / path.name).write_bytes(path.read_bytes())
    assert run("show", folder, "ep_03", "--png", tmp_path / "b.png").code == 0
    assert (
        image.decode((tmp_path / "b.png").read_bytes()).shape == image.decode((tmp_path / "a.png").read_bytes()).shape
    )


def test_frames_are_exactly_those_of_the_library(run, filmed, tmp_path) -> None:
    cam = sl.open(filmed)["ep"]["cam"]
    told = run("frames", filmed, "ep", "cam", "--frames", "2:12:5", "-o", tmp_path / "out", "--json").json
    assert [(row["frame"], row["seconds"]) for row in told["rows"]] == [(2, 0.2), (7, 0.7)]
    for row in told["rows"]:
        np.testing.assert_array_equal(image.decode(Path(row["path"]).read_bytes()), cam[row["frame"]])
    assert [one.name for one in sorted((tmp_path / "out").iterdir())] == ["000002.png", "000007.png"]
    by_time = run("frames", filmed, "ep", "cam", "--at", "0.55,1", "--at", "0.5", "-o", tmp_path / "times", "-q")
    assert by_time.out.split() == [str(tmp_path / "times" / name) for name in ("000005.png", "000010.png")]
    assert run("frames", filmed, "ep", "cam", "-o", tmp_path / "all").code == 0
    assert len(list((tmp_path / "all").iterdir())) == 20


def test_one_frame_goes_into_one_file(run, filmed, tmp_path) -> None:
    assert run("frames", filmed, "ep", "cam", "--frames", -1, "-o", tmp_path / "last.png").code == 0
    np.testing.assert_array_equal(image.decode((tmp_path / "last.png").read_bytes()), sl.open(filmed)["ep"]["cam"][19])
    assert run("frames", filmed, "ep", "cam", "--at", 0.3, "-o", tmp_path / "a.jpg").code == 0
    assert (tmp_path / "a.jpg").read_bytes().startswith(b"\xff\xd8\xff")
    told = run("frames", filmed, "ep", "cam", "--frames", ":3", "-o", tmp_path / "b.png")
    assert (told.code, (tmp_path / "b.png").exists()) == (2, False)


def test_depth_keeps_its_bits_and_stored_images_are_copied(run, filmed, tmp_path) -> None:
    view = sl.open(filmed)["ep"]
    assert run("frames", filmed, "ep", "depth", "--at", 0.4, "-o", tmp_path / "depth").code == 0
    found = image.decode((tmp_path / "depth" / "000004.png").read_bytes())
    assert (found.dtype, found[0, 0, 0]) == (np.uint16, 4000)
    assert run("frames", filmed, "ep", "photos", "--frames", 6, "-o", tmp_path / "photos").code == 0
    assert (tmp_path / "photos" / "000006.jpg").read_bytes() == view["photos"].bytes(6)
    assert run("frames", filmed, "ep", "photos", "--frames", 6, "--as", "png", "-o", tmp_path / "png").code == 0
    np.testing.assert_array_equal(image.decode((tmp_path / "png" / "000006.png").read_bytes()), view["photos"][6])
    assert run("frames", filmed, "ep", "still", "-o", tmp_path / "still.png").code == 0
    np.testing.assert_array_equal(image.decode((tmp_path / "still.png").read_bytes()), frame(3))
    assert run("frames", filmed, "ep", "depth", "--frames", 1, "--as", "jpeg", "-o", tmp_path / "no").code == 1
    assert not list((tmp_path / "no").glob("*"))


def test_a_video_of_16_bits_keeps_them(run, tmp_path) -> None:
    with av.open(str(tmp_path / "depth.mkv"), "w") as out:
        stream = out.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "gray16le"
        for number in range(3):
            made = av.VideoFrame.from_ndarray(np.full((16, 32), 300 * number + 1, np.uint16), format="gray16le")
            made.pts, made.time_base = number, Fraction(1, 10)
            out.mux(stream.encode(made))
        out.mux(stream.encode(None))
    ds = sl.create(tmp_path / "arm", sl.Schema({"depth": sl.Video(fps=10)}))
    with ds.writer() as writer:
        writer.add("a", depth=sl.File(tmp_path / "depth.mkv"))
    assert run("frames", tmp_path / "arm", "a", "depth", "--frames", "1:", "-o", tmp_path / "out").code == 0
    found = [image.decode(path.read_bytes()) for path in sorted((tmp_path / "out").iterdir())]
    assert [(one.dtype, int(one[3, 3, 0])) for one in found] == [(np.uint16, 301), (np.uint16, 601)]


def test_frames_are_never_written_over_unasked(run, filmed, tmp_path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "000003.png").write_bytes(b"mine")
    told = run("frames", filmed, "ep", "cam", "--frames", "1:5", "-o", out)
    assert told.code == 2
    assert "000003.png is there already" in told.err
    assert [(one.name, one.read_bytes()) for one in out.iterdir()] == [("000003.png", b"mine")]
    assert run("frames", filmed, "ep", "cam", "--frames", "1:5", "-o", out, "--overwrite").code == 0
    assert image.decode((out / "000003.png").read_bytes()).shape == (32, 48, 3)
    rehearsed = run("frames", filmed, "ep", "cam", "-o", tmp_path / "dry", "--dry-run", "-q")
    assert len(rehearsed.out.split()) == 20
    assert not (tmp_path / "dry").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No column 'nothing'"),
        (["task"], "holds no pictures"),
        (["mic"], "holds no pictures"),
        (["cam", "--frames", "20"], "frames 0 to 19"),
        (["cam", "--frames", "a:b"], "A:B or A:B:STEP"),
        (["cam", "--at", "soon"], "expected seconds"),
        (["cam", "--at", "nan"], "expected seconds"),
        (["cam", "--at", "0.1,-1"], "shown at 0 seconds"),
        (["cam", "--at", "1", "--frames", "1"], "not both"),
        (["cam", "--frames", "::0"], "A:B or A:B:STEP"),
        (["photos", "--at", "2.5"], "end after 2 seconds"),
    ],
)
def test_wrong_usage_of_frames_is_said(run, filmed, tmp_path, arguments, said) -> None:
    told = run("frames", filmed, "ep", *arguments, "-o", tmp_path / "out")
    assert told.code == 2
    assert said in told.err


def test_frames_runs_as_people_run_it(filmed, tmp_path) -> None:
    told = run_as_process("frames", filmed, "ep", "cam", "--frames", 0, "-o", tmp_path / "a.png")
    assert (told.code, told.err) == (0, "")
    assert "a.png" in told.out
    assert encode_image(sl.open(filmed)["ep"]["cam"][0]) == (tmp_path / "a.png").read_bytes()


def test_a_sheet_shows_many_sequences(run, filmed, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = run("show", filmed, "--sheet")
    assert (told.code, told.out.split()) == (0, ["1", "of", "1", "sequences:", "sheet.png"])
    assert image.decode((tmp_path / "sheet.png").read_bytes()).shape[1] == 1280
    assert run("show", filmed, "--sheet", "--where", "task = 'pick'").code == 2  # it is there already
    told = run("show", filmed, "--sheet", "none.png", "--where", "task = 'none'", "--json")
    assert json.loads(told.out)["sequences"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "ID of a sequence, or --sheet"),
        (["ep", "--sheet"], "ID of a sequence, or --sheet"),
        (["--sheet", "sheet.jpg"], "ends in .png"),
        (["--sheet", "a.png", "--png", "b.png"], "not both"),
        (["ep", "--where", "true"], "--where chooses"),
        (["ep", "--png", "ep.txt"], "ends in .png"),
    ],
)
def test_wrong_usage_of_show_is_said(run, filmed, tmp_path, monkeypatch, arguments, said) -> None:
    monkeypatch.chdir(tmp_path)
    told = run("show", filmed, *arguments)
    assert told.code == 2
    assert said in told.err
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize(("column", "last"), [("cam", "1.9"), ("depth", "1.95")])
def test_a_time_beyond_the_end_is_wrong_usage(run, filmed, tmp_path, column, last) -> None:
    for late in ("2.5", "0.1,60"):
        told = run("frames", filmed, "ep", column, "--at", late, "-o", tmp_path / "out")
        assert told.code == 2
        assert "after 2 seconds" in told.err
    assert run("frames", filmed, "ep", column, "--at", "-1", "-o", tmp_path / "out").code == 2
    assert not (tmp_path / "out").exists()
    told = run("frames", filmed, "ep", column, "--at", last, "-o", tmp_path / "out", "--json")
    assert [row["frame"] for row in told.json["rows"]] == [19]
