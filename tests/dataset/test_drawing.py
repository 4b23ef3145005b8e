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
from seqlake.dataset.drawing.plots import Line, Text, envelope, runs, ticks
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
    alphabet = [chr(code) for code in range(33, 127)] + list("äéñłßΩπжЯ€µ°→≤“…")
    assert len({canvas.ink(one, size=20).tobytes() for one in alphabet}) == len(alphabet)
    assert not canvas.ink(" ").any()
    assert np.array_equal(canvas.ink("ǻ"), canvas.ink("a"))
    frame = canvas.ink("中")
    for one in "\U0001f600ﬁⅣ⑩㎏⅟≢≰":  # no mark makes these of others, and no part of them is them
        assert np.array_equal(canvas.ink(one), frame), one
    assert np.array_equal(canvas.ink("Mu\u0308nchen o\u031b\u0323"), canvas.ink("München o"))  # as a Mac names files
    assert canvas.ink("").shape == (canvas.line_height(), 0)


@pytest.mark.parametrize("size", [10, 13, 20, 33])
def test_text_is_as_large_as_it_says_and_stays_in_its_line(size: int) -> None:
    covered = canvas.ink("Ég", size=size, bold=True)
    assert covered.shape == (canvas.line_height(size), canvas.width_of("Ég", size=size, bold=True))
    assert 0 <= covered.min() < covered.max() <= 1.001
    capital = np.flatnonzero(canvas.ink("H", size=size).max(1) > 0.5)
    assert (capital[-1] - capital[0] + 1) / size == pytest.approx(0.73, abs=1.6 / size)  # Inter's capitals
    assert 0 < canvas.ink("H", size=size).sum() < canvas.ink("H", size=size, bold=True).sum()


def test_lines_are_smooth_and_as_wide_as_asked() -> None:
    for points in ([[5.0, 20.0], [95.0, 20.0]], [[5.0, 5.0], [95.0, 60.0]], [[50.0, 5.0], [50.0, 65.0]]):
        drawn = Canvas(100, 70)
        drawn.line(np.array(points), color="#000000", width=2)
        covered = (255 - drawn.pixels[..., 0].astype(float)) / 255
        assert covered.sum() == pytest.approx(2 * np.hypot(*np.subtract(*points)), rel=0.15)
    assert len(np.unique(covered)) > 2  # greys at its edges


def test_what_is_drawn_beyond_the_edge_is_left_out() -> None:
    canvas = Canvas(20, 10)
    canvas.text(15, 8, "far too long for this", size=30)
    canvas.paste(np.zeros((9, 9, 3), np.uint8), 16, 6)
    canvas.fill(-3, -3, 100, 5)
    canvas.line(np.array([[-50.0, 5.0], [50.0, 5.0]]), color="#ff0000")
    canvas.line(np.array([[-50.0, 500.0], [50.0, 500.0]]))
    canvas.paste(np.arange(48, dtype=np.uint8).reshape(4, 4, 3), -3, -2)
    assert canvas.pixels[:2, 0].tolist() == [[33, 34, 35], [45, 46, 47]]
    assert canvas.pixels.shape == (10, 20, 3)
    assert (canvas.pixels[5, :16] == (255, 0, 0)).all()


def test_a_panel_keeps_spikes_leaves_gaps_and_takes_odd_curves(tmp_path: Path) -> None:
    x = np.arange(50_000.0)
    spiky = np.zeros(50_000)
    spiky[31_337] = 9
    panel = Panel(title="spike", curves=[("a", np.stack([x, spiky], -1))])
    (points,) = [mark.points for mark in panel.marks() if isinstance(mark, Line)]
    assert len(points) <= 2 * panel.width
    assert points[:, 1].min() < points[:, 1].max() - 80  # the spike is there
    broken = np.array([[0, 1], [1, np.nan], [2, 3], [3, np.inf], [4, 1]])
    gaps = Panel(title="gaps", curves=[("a", broken)]).marks()
    assert len([mark for mark in gaps if isinstance(mark, Line)]) == 3
    odd = [
        [],
        [("none", np.empty((0, 2)))],
        [("one", np.array([[1.0, 2.0]]))],
        [("flat", np.array([[0.0, 5.0], [1.0, 5.0]]))],
        [("lost", np.full((3, 2), np.nan))],
        [("huge", np.array([[0.0, -1.7e308], [1.0, 1.7e308]])), ("tiny", np.array([[0.0, 1e-300], [1.0, 3e-300]]))],
    ]
    for curves in odd:
        png([Panel(title="odd", curves=curves, unit="s", height=300)], tmp_path / "odd.png")
        assert read(tmp_path / "odd.png").shape == (300, 460, 3)
        png([Panel(title="odd", curves=curves, unit="s")], tmp_path / "odd.png")


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
    assert {"<first>", "a", "b", "second", "c"} < set(texts)
    assert texts.count("a") == 1
    picture = read(tmp_path / "p.png")
    assert picture.shape == (max(panels[0].needed, 120), 660, 3)
    assert has(picture[:, :460], COLORS[1])
    assert not has(picture[:, 460:], COLORS[1])
    assert has(picture[:, 460:], COLORS[0])


def lines_of(panel: Panel) -> list[np.ndarray]:
    return [mark.points for mark in panel.marks() if isinstance(mark, Line)]


def test_curves_share_a_scale_unless_their_ranges_differ_a_lot() -> None:
    x = np.arange(50.0)

    def wave(low: float, high: float) -> np.ndarray:
        return np.stack([x, low + (high - low) * (0.5 + 0.5 * np.sin(x / 5))], -1)

    alike = Panel(title="alike", curves=[("a", wave(-1, 1)), ("b", wave(-0.3, 0.5))], height=200)
    a, b = lines_of(alike)
    assert np.ptp(a[:, 1]) / np.ptp(b[:, 1]) == pytest.approx(np.ptp(wave(-1, 1)[:, 1]) / np.ptp(wave(-0.3, 0.5)[:, 1]))
    apart = Panel(title="apart", curves=[("a", wave(-1, 1)), ("b", wave(1e5, 1.001e5)), ("c", wave(0, 1e-4))])
    lines = lines_of(apart)
    assert [round(np.ptp(line[:, 1])) for line in lines] == [round(np.ptp(lines[0][:, 1]))] * 3  # each fills its lane
    assert lines[0][:, 1].max() < lines[1][:, 1].min() < lines[1][:, 1].max() < lines[2][:, 1].min()
    assert apart.needed > alike.needed
    one, two = (
        Panel(title="p", curves=[("a", wave(0, 1))]),
        Panel(title="p", curves=[("a", wave(0, 1)), ("b", wave(0, 2))]),
    )
    assert one.needed < two.needed


def test_lanes_keep_their_labels_apart_and_their_names_off_their_curves() -> None:
    x = np.arange(5.0)
    high, low = np.array([10.0, 0, 0, 0, 0]), np.array([0, 0, 0, 0, 1e-3])
    panel = Panel(title="p", curves=[(name, np.stack([x, y], -1)) for name, y in (("high", high), ("low", low))])
    written = [mark for mark in panel.marks() if isinstance(mark, Text)]
    labels = sorted(mark.y for mark in written if mark.text.replace(".", "").replace("-", "").isdigit() and mark.x < 40)
    assert (np.diff(labels) >= canvas.line_height(10)).all()
    for name, line in zip(("high", "low"), lines_of(panel), strict=True):
        (mark,) = [one for one in written if one.text == name]
        box = [mark.x, mark.y], [mark.x + canvas.width_of(name, size=mark.size), mark.y + canvas.line_height(mark.size)]
        assert not ((line >= box[0]) & (line <= box[1])).all(1).any()


def test_a_point_alone_is_seen_and_one_step_is_a_note(tmp_path: Path) -> None:
    gaps = np.array([[0, 1], [1, np.nan], [2, 3], [3, np.nan], [4, 1]])
    panel = Panel(title="gaps", curves=[("a", gaps)])
    assert all(np.ptp(line, axis=0).min() >= 3 for line in lines_of(panel))
    ds = sl.create(tmp_path / "one", sl.Schema({"x": sl.Trajectory(dim=2)}))
    ds.append([{"sequence_id": "a", "x": [[1.0, 2.0]]}])
    assert panel_of(ds["a"], "x", width=300) == Panel(
        title="x", curves=[], unit="steps", note="one step: x[0] 1, x[1] 2", width=300
    )


def test_names_that_steer_a_terminal_are_spelt_out(tmp_path: Path) -> None:
    panel = Panel(title="evil\x1b[31m\x00", curves=[("a\u202e", np.zeros((2, 2)))])
    assert (canvas.ink("\x1b") == canvas.ink("\\x1b")).all()
    svg([panel], tmp_path / "p.svg")
    assert "evil\\x1b[31m" in "".join(ET.parse(tmp_path / "p.svg").getroot().itertext())


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-0.998, 0.9996), (1e9, 1e9 + 20), (-3e-7, 2e-7), (0, 1e308), (-1.7e308, 1.7e308), (5, 5)]
)
def test_axes_have_round_values_and_are_not_cut(low: float, high: float) -> None:
    marked = ticks(low, high, 4)
    assert 1 <= len(marked) <= 9
    assert all(low <= value <= high for value, _ in marked)
    assert len({label for _, label in marked}) == len(marked)
    assert all(float(label) == pytest.approx(value, rel=1e-3, abs=1e-300) for value, label in marked)
    curve = np.array([[0.0, low], [1.0, high]])
    for mark in Panel(title="t", curves=[("a", curve)], unit="s", width=300).marks():
        if isinstance(mark, Text):
            assert mark.x >= 0
            assert mark.x + canvas.width_of(mark.text, size=mark.size, bold=mark.bold) <= 300


def test_a_legend_names_every_curve_within_the_panel() -> None:
    curve = np.stack([np.arange(5.0), np.arange(5.0)], -1)
    names = [f"a_rather_long_joint_name_{number}" for number in range(16)]
    panel = Panel(title="many", curves=[(name, curve) for name in names], width=400)
    written = [mark for mark in panel.marks() if isinstance(mark, Text) and mark.text in names]
    assert [mark.text for mark in written] == names
    assert len({mark.color for mark in written}) == 16
    assert all(mark.x + canvas.width_of(mark.text, size=mark.size) <= 400 for mark in written)
    places = [(mark.x, mark.y) for mark in written]
    assert len(set(places)) == 16
    assert max(y for _, y in places) < min(line[:, 1].min() for line in lines_of(panel))


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
    cam = strip(view, "cam", count=4, box=(137, 137), enlarge=True)
    np.testing.assert_array_equal(cam.pictures[1][::2, 1::2], view["cam"][6])  # every pixel is four
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


def test_labels_below_narrow_pictures_keep_apart() -> None:
    narrow = [np.full((20, 10, 3), 9 * number, np.uint8) for number in range(12)]
    one = Strip(name="cam", pictures=narrow, labels=[f"{number}.00 s" for number in range(12)])
    with_labels, without = (sheet("x", [strip], width=300) for strip in (one, Strip(name="cam", pictures=narrow)))
    inked = (with_labels != without).any((0, 2))
    assert inked.any()
    words = list(runs(np.convolve(inked, np.ones(5), "same") > 0))
    assert len(words) < 12  # some are left out
    assert all(run.stop - run.start < 2 * canvas.width_of("10.00 s", size=11) for run in words)


def test_many_sequences_are_one_picture(filmed: sl.Dataset, tmp_path: Path) -> None:
    with filmed.writer() as writer:
        for number in range(3):
            action = np.cumsum(np.ones((20, 2)), 0) * (1, 1000)
            writer.add(f"ep_{number}", task="place", action=action, cam=[frame(number + n) for n in range(20)])
    Path(filmed["ep_1"]["cam"].location).write_bytes(b"no video")
    ds = sl.open(filmed.location)
    picture = contact_sheet(ds, frames=3, width=1100, rows=3)
    assert picture.shape[1] == 1100
    assert len(contact_sheet(ds, frames=3, width=1100, rows=4)) > len(picture)
    assert len(contact_sheet(ds.where("task = 'place'"), frames=3, width=1100)) == len(picture)
    first = strip(ds["ep"], "cam", count=3, box=(70, 89), enlarge=True).pictures
    assert all(find(picture, one) for one in first)
    assert has(picture, RED)  # ep_1
    assert has(picture, COLORS[0])
    assert contact_sheet(ds.select("task"), width=300).shape[1] == 300
    assert contact_sheet(ds.where("false")).shape[1] == 1280


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
    values = np.arange(5)[:, None] * np.ones((5, 22))
    values[:, :2] = (3, np.nan)
    wide = sl.scan(pa.table({"sequence_id": ["a"], "x": pa.array([values.tolist()])}))
    steps = panel_of(wide[0], "x", width=400)
    assert steps is not None
    assert (steps.unit, len(steps.curves), steps.curves[0][0]) == ("steps", 16, "x[2]")
    assert steps.note == "the first 16 of 20 dimensions; constant: x[0] 3, x[1] nan"
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
