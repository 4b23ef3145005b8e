"""Pictures of sequences: every curve, frame and error stands where it belongs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.drawing import COLORS, Canvas, Panel, Strip, canvas, contact_sheet, png, save, sheet, svg
from seqlake.dataset.drawing.canvas import RED, rgb
from seqlake.dataset.drawing.plots import envelope, runs
from seqlake.dataset.drawing.sheet import dimension_names, panel_of
from seqlake.dataset.drawing.strips import displayable, strip
from seqlake.media import image


def frame(number: int, width: int = 48, height: int = 32) -> np.ndarray:
    made = np.full((height, width, 3), 90, np.uint8)
    made[:, number % width :, 0] = 230
    return made


def read(path: Path) -> np.ndarray:
    return image.decode(path.read_bytes())


def has(picture: np.ndarray, color: str) -> bool:
    return bool((picture == rgb(color)).all(-1).any())


def find(picture: np.ndarray, part: np.ndarray) -> list[tuple[int, int]]:
    """Where a small picture stands in a large one."""
    rows, columns = len(picture) - len(part) + 1, picture.shape[1] - part.shape[1] + 1
    corners = np.argwhere((picture[:rows, :columns] == part[0, 0]).all(-1))
    size = part.shape[:2]
    return [(int(y), int(x)) for y, x in corners if np.array_equal(picture[y : y + size[0], x : x + size[1]], part)]


@pytest.fixture
def filmed(tmp_path: Path) -> sl.Dataset:
    columns = {
        "task": pa.string(),
        "action": sl.Trajectory(dim=2, fps=10, units="rad", names=["left", "right"]),
        "cam": sl.Video(fps=10),
        "depth": sl.Image(frames="bytes", format="png"),
    }
    ds = sl.create(tmp_path / "filmed", sl.Schema(columns))
    with ds.writer() as writer:
        writer.add(
            "ep",
            task="pick & place",
            action=np.stack([np.arange(20), -np.arange(20)], -1),
            cam=[frame(n) for n in range(20)],
            depth=np.arange(20, dtype=np.uint16)[:, None, None] * np.full((1, 8, 8), 1000, np.uint16),
        )
    return ds


def test_every_letter_has_a_look_of_its_own() -> None:
    letters = [chr(code) for code in range(33, 127)]
    assert len({canvas.dots(one).tobytes() for one in letters}) == len(letters)
    assert not canvas.dots(" ").any()
    assert np.array_equal(canvas.dots("é"), canvas.dots("e"))
    assert np.array_equal(canvas.dots("€"), canvas.dots("中"))  # a frame
    assert canvas.dots("").shape == (9, 0)


def test_what_is_drawn_beyond_the_edge_is_left_out() -> None:
    canvas = Canvas(20, 10)
    canvas.text(15, 8, "far too long for this", scale=3)
    canvas.paste(np.zeros((9, 9, 3), np.uint8), 16, 6)
    canvas.line(np.array([[-50.0, 5.0], [50.0, 5.0]]), color="#ff0000")
    canvas.box(-3, -3, 100, 100)
    canvas.paste(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), -3, -2)
    assert canvas.pixels[:2, 0].tolist() == [[33, 34, 35], [45, 46, 47]]
    assert canvas.pixels.shape == (10, 20, 3)
    assert (canvas.pixels[5, :16] == (255, 0, 0)).all()


def test_a_panel_keeps_spikes_leaves_gaps_and_takes_odd_curves(tmp_path: Path) -> None:
    x = np.arange(50_000.0)
    spiky = np.zeros(50_000)
    spiky[31_337] = 9
    panel = Panel(title="spike", curves=[("a", np.stack([x, spiky], -1))])
    ((_, _, points),) = panel.placed()
    assert points[:, 1].min() == pytest.approx(34)
    assert len(points) <= 2 * panel.width
    broken = np.array([[0, 1], [1, np.nan], [2, 3], [3, np.inf], [4, 1]])
    assert len(list(Panel(title="gaps", curves=[("a", broken)]).placed())) == 3
    odd = [
        [],
        [("none", np.empty((0, 2)))],
        [("one", np.array([[1.0, 2.0]]))],
        [("flat", np.array([[0.0, 5.0], [1.0, 5.0]]))],
        [("lost", np.full((3, 2), np.nan))],
    ]
    for curves in odd:
        png([Panel(title="odd", curves=curves, unit="s")], tmp_path / "odd.png")
        assert read(tmp_path / "odd.png").shape == (300, 460, 3)


def test_svg_and_png_show_the_same_panels(tmp_path: Path) -> None:
    curve = np.stack([np.arange(9.0), np.arange(9.0) ** 2], -1)
    panels = [
        Panel(title="<first>", curves=[("a", curve), ("a", curve * 2), ("b", curve[::-1])]),
        Panel(title="second", curves=[("c", curve)], width=200, height=120),
    ]
    svg(panels, tmp_path / "p.svg")
    png(panels, tmp_path / "p.png")
    tree = ET.parse(tmp_path / "p.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert [line.attrib["stroke"] for line in tree.iter(f"{name}polyline")] == [*COLORS[:1] * 2, COLORS[1], COLORS[0]]
    texts = [text.text for text in tree.iter(f"{name}text")]
    assert texts == ["<first>", "a", "b", "second", "c"]
    picture = read(tmp_path / "p.png")
    assert picture.shape == (300, 660, 3)
    assert has(picture[:, :460], COLORS[1])
    assert not has(picture[:, 460:], COLORS[1])
    assert has(picture[:, 460:], COLORS[0])


def test_envelope_and_runs() -> None:
    points = np.stack([np.arange(100.0), np.sin(np.arange(100.0))], -1)
    kept = envelope(points, 10)
    assert len(kept) <= 10
    assert kept[:, 1].max() == points[:, 1].max()
    assert (np.diff(kept[:, 0]) > 0).all()
    assert list(runs(np.array([], np.bool_))) == []


def test_a_contact_sheet_has_the_frames_that_are_there(filmed: sl.Dataset, tmp_path: Path) -> None:
    view = filmed["ep"]
    cam = strip(view, "cam", count=4, box=(100, 100))
    assert cam.labels == ["0.00 s", "0.60 s", "1.30 s", "1.90 s"]
    assert cam.note == "20 frames, 48x32"
    for picture, number in zip(cam.pictures, (0, 6, 13, 19), strict=True):
        np.testing.assert_array_equal(picture, view["cam"][number])
    save(contact_sheet(view, frames=4, width=600), tmp_path / "sheet.png")
    picture = read(tmp_path / "sheet.png")
    assert picture.shape[1] == 600
    places = [find(picture, one) for one in cam.pictures]
    assert [len(found) for found in places] == [1, 1, 1, 1]
    assert len({y for ((y, _),) in places}) == 1
    assert [x for ((_, x),) in places] == sorted(x for ((_, x),) in places)
    assert has(picture, COLORS[0])
    assert has(picture, COLORS[1])
    assert not has(picture, RED)


def test_depth_is_spread_over_grey(filmed: sl.Dataset) -> None:
    greys = [int(one[0, 0, 0]) for one in strip(filmed["ep"], "depth", count=3, box=(50, 50)).pictures]
    assert greys == [0, 134, 255]
    assert displayable(np.full((1, 2, 2, 1), 7, np.uint16)).max() == 0
    assert displayable(np.zeros((1, 2, 2, 3), np.uint8)).shape == (1, 2, 2, 3)


def test_signals_are_drawn_over_seconds_where_a_rate_is_known(filmed: sl.Dataset) -> None:
    panel = panel_of(filmed["ep"], "action", width=400, height=100)
    assert panel is not None
    assert (panel.title, panel.unit) == ("action (rad)", "s")
    assert [name for name, _ in panel.curves] == ["left", "right"]
    np.testing.assert_allclose(panel.curves[1][1], np.stack([np.arange(20) / 10, -np.arange(20)], -1))
    assert panel_of(filmed["ep"], "task", width=400, height=100) is None
    wide = sl.scan(pa.table({"sequence_id": ["a"], "x": pa.array([np.ones((5, 20)).tolist()])}))
    steps = panel_of(wide[0], "x", width=400, height=100)
    assert steps is not None
    assert (steps.unit, len(steps.curves)) == ("steps", 16)
    assert "16 of 20" in steps.title
    assert dimension_names(wide.schema["x"], 1) == ["x[0]"]


def test_own_times_are_the_axis() -> None:
    table = pa.table({"sequence_id": ["a"], "x": [[[1.0], [2.0], [5.0]]], "t": [[[10.0], [10.5], [12.0]]]})
    panel = panel_of(
        sl.scan(table, column_types={"x": sl.Trajectory(dim=1, timestamps="t")})[0], "x", width=400, height=100
    )
    assert panel is not None
    assert panel.curves[0][1].tolist() == [[0.0, 1.0], [0.5, 2.0], [2.0, 5.0]]


def test_what_cannot_be_read_is_said_in_red(filmed: sl.Dataset) -> None:
    Path(filmed["ep"]["cam"].location).write_bytes(b"no video")
    assert strip(sl.open(filmed.location)["ep"], "cam", count=3, box=(50, 50)).pictures == ()
    assert has(contact_sheet(sl.open(filmed.location)["ep"]), RED)


def test_a_sheet_of_nothing_is_a_picture() -> None:
    bare = sl.scan(pa.table({"sequence_id": ["a"], "x": pa.array([None], pa.list_(pa.list_(pa.float32())))}))
    assert contact_sheet(bare[0], width=300).shape[1] == 300
    assert sheet("empty", [Strip(name="cam", note="null")], width=200).shape[1] == 200
