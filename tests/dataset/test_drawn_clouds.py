"""Clouds as pictures: how they are thinned, what colours them, and where a point is seen from above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.cli.frames import film_strips
from seqlake.dataset.drawing import contact_sheet
from seqlake.dataset.drawing.clouds import drawn, ground, seen_from_above, thinned
from seqlake.dataset.drawing.strips import strip
from seqlake.errors import DecodeError, SchemaMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

XYZ = [("x", "f4"), ("y", "f4"), ("z", "f4")]


def cloud(count: int, *more: tuple[str, str], **values: Any) -> NDArray[Any]:
    points = np.zeros(count, [*XYZ, *more])
    for name, value in values.items():
        points[name] = value
    return points


def test_thinning_keeps_one_of_each_span_and_every_ring() -> None:
    for count, most in ((0, 5), (4, 5), (5, 5), (6, 5), (10_007, 500), (1 << 20, 20_000)):
        kept = thinned(count, most)
        assert len(kept) == min(count, most)
        assert (np.diff(kept) > 0).all()
        assert count == 0 or (kept[0] >= 0 and kept[-1] < count)
        if count > most:
            spans = kept * most // count  # of equal parts, each has one, or its neighbour's edge
            assert np.abs(spans - np.arange(most)).max() <= 1
    rings = np.tile(np.arange(32), 2000)  # in turns, as a spinning scanner has them
    for most in (1000, 2000, 4000, 16_000):  # of which every n-th would be one ring, two, four
        counts = np.bincount(rings[thinned(len(rings), most)], minlength=32)
        assert counts.min() > 0.5 * counts.mean()


def test_points_without_a_place_are_left_out_and_counted() -> None:
    points = cloud(6, x=[0, np.nan, 2, np.inf, 4, 1e38], y=1, z=2)
    one = drawn(points, most=10)
    assert (one.total, one.lost) == (6, 3)
    assert one.points[:, 0].tolist() == [0, 2, 4]
    assert drawn(cloud(3, x=np.nan), most=10).points.shape == (0, 3)
    assert drawn(cloud(0), most=10).span == (0.0, 0.0)
    with pytest.raises(DecodeError, match="no field 'z'"):
        drawn(np.zeros(3, XYZ[:2]), most=10)


def test_far_from_zero_nothing_is_rounded() -> None:
    far = np.zeros(100, [(axis, "f8") for axis in "xyz"])
    far["x"], far["y"] = 4_512_345.0 + np.arange(100) * 0.001, 600_000.0
    one = drawn(far, most=100)
    assert one.points.dtype == np.float32
    np.testing.assert_allclose(one.points.astype(float) + one.origin, np.stack([far[a] for a in "xyz"], 1), atol=1e-6)
    assert drawn(cloud(2, x=[-50, 50]), most=9).origin == (0, 0, 0)


@pytest.mark.parametrize(
    ("more", "values", "by", "first"),
    [
        ([("red", "u1"), ("green", "u1"), ("blue", "u1")], {"red": 255, "blue": 51}, "rgb", (1, 0, 0.2)),
        ([("red", "u2"), ("green", "u2"), ("blue", "u2")], {"red": 65535, "blue": 13107}, "rgb", (1, 0, 0.2)),
        ([("red", "u2"), ("green", "u2"), ("blue", "u2")], {"red": 255, "blue": 51}, "rgb", (1, 0, 0.2)),
        ([("r", "f4"), ("g", "f4"), ("b", "f4")], {"r": 1, "b": 0.2}, "rgb", (1, 0, 0.2)),
        ([("rgb", "u4")], {"rgb": 0xFF0033}, "rgb", (1, 0, 0.2)),
        ([("rgb", "f4")], {"rgb": np.array([0xFF0033] * 3, "u4").view("f4")}, "rgb", (1, 0, 0.2)),
        (
            [("f_dc_0", "f4"), ("f_dc_1", "f4"), ("f_dc_2", "f4")],
            {"f_dc_0": 9, "f_dc_1": 0, "f_dc_2": -1.0634723},
            "rgb",
            (1, 0.5, 0.2),
        ),
        ([("intensity", "u1")], {"intensity": [0, 100, 200]}, "intensity", 0),
        ([("intensity", "u1")], {"intensity": 7}, "height", 5),  # all the same says nothing
        ([("ring", "u2")], {"ring": [1, 2, 3]}, "height", 5),
    ],
)
def test_what_colours_points(more: Any, values: Any, by: str, first: Any) -> None:
    one = drawn(cloud(3, *more, z=[5, 6, 7], **values), most=10)
    assert one.by == by
    seen = one.colors if one.values is None else one.values
    assert seen is not None
    np.testing.assert_allclose(seen[0], first, atol=2e-3)


def test_a_colour_is_chosen_by_name() -> None:
    points = cloud(3, ("ring", "u2"), ("normal", "f4"), z=[5, 6, 7], ring=[4, 2, 9])
    assert drawn(points, most=9).choices == ("height", "ring", "normal")
    assert drawn(points, most=9, by="ring").values.tolist() == [4, 2, 9]  # type: ignore[union-attr]
    with pytest.raises(SchemaMismatchError, match="'x'"):
        drawn(points, most=9, by="x")


def test_seen_from_above_y_is_up_and_the_highest_is_on_top() -> None:
    points = cloud(
        4, ("red", "u1"), ("green", "u1"), ("blue", "u1"),
        x=[0, 10, 0, 10], y=[0, 10, 10, 10], z=[0, 1, 0, 0],
        red=[255, 0, 0, 255], green=[0, 255, 0, 0], blue=[0, 0, 255, 0],
    )  # fmt: skip
    one = drawn(points, most=10)
    picture = seen_from_above(one, ground([one]), 60)
    reds, greens, blues = (np.argwhere(picture[..., channel] > 200) for channel in range(3))
    assert reds[0][0] > greens[0][0]  # lower in the picture
    assert blues[0][1] < greens[0][1]
    assert len(reds) == len(greens) == len(blues) == 1  # the green one hides a red one under it
    nothing = drawn(cloud(0), most=10)
    assert (seen_from_above(nothing, ground([nothing]), 8) == (15, 19, 25)).all()


def test_contact_sheets_show_clouds(tmp_path: Path) -> None:
    schema = sl.Schema({"lidar": sl.Spatial4D(frames="files", fps=10), "scan": sl.Spatial3D()})
    ds = sl.create(tmp_path / "ds", schema)
    rng = np.random.default_rng(0)
    clouds = [cloud(500, x=rng.normal(size=500), y=rng.normal(size=500), z=number) for number in range(5)]
    with ds.writer() as writer:
        writer.add("a", lidar=clouds, scan=clouds[0])
        writer.add("b", lidar=[clouds[0], clouds[1]], scan=None)
        writer.add("c", lidar=[], scan=clouds[1])
    one = strip(ds["a"], "lidar", count=3, box=(90, 60))
    assert [picture.shape for picture in one.pictures] == [(60, 60, 3)] * 3
    assert list(one.labels) == ["0.00 s", "0.20 s", "0.40 s"]
    assert one.note.startswith("5 clouds of 500 points, seen from above, ")
    assert len(strip(ds["b"], "lidar", count=3, box=(90, 60)).pictures) == 2
    assert strip(ds["b"], "scan", count=3, box=(90, 60)).note == "null"
    assert strip(ds["c"], "lidar", count=3, box=(90, 60)).note == "no clouds"
    with_clouds = contact_sheet(ds["a"], width=700)
    lines = list(film_strips(ds["a"], count=2))  # of the terminal
    assert lines[0].startswith("lidar  5 clouds")
    assert "\u2580" in lines[1]
    night = (with_clouds == (15, 19, 25)).all(-1)
    assert night.sum() > 8 * 60 * 60
    assert (contact_sheet(ds, rows=3, width=900) == (15, 19, 25)).all(-1).sum() > 4000
    next(
        path for path in (tmp_path / "ds").rglob("*.pcd") if "scan" in str(path) and path.stem.startswith("a")
    ).write_bytes(b"VERSION 0.7\nno")
    assert "cannot be read as pcd" in strip(ds["a"], "scan", count=3, box=(90, 60)).note
