"""What selections and sequences print: short, true, escaped, and never an exception."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seqlake as sl
from seqlake.dataset.reading.display import sparkline

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "<script>alert('x')</script>"


def sample(rows: int = 3, **columns: object) -> sl.Selection:
    table = pa.table(
        {
            "sequence_id": [f"ep_{n}" for n in range(rows)],
            "task": [EVIL] * rows,
            "action": pa.array([[[n, t] for t in range(5)] for n in range(rows)], pa.list_(pa.list_(pa.float32()))),
            "cam": ["a.mp4"] * rows,
            **columns,
        }
    )
    return sl.scan(
        table, column_types={"action": sl.Trajectory(dim=2, units="rad"), "cam": sl.Video(fps=30, codec="h264")}
    )


def test_text_names_counts_shapes_and_units() -> None:
    assert repr(sample()).split("\n") == [
        "Selection · 3 sequences in 1 shard",
        "  sequence_id  string",
        "  task         string",
        "  action       trajectory  [T, 2] float32  rad",
        "  cam          video       30 fps  h264",
    ]
    assert repr(sample()[:1]).startswith("Selection · 1 sequence in 1 shard\n")
    assert repr(sample().where("false")).startswith("Selection · 0 sequences in 0 shards\n")


def test_text_of_many_columns_has_at_most_15_lines() -> None:
    wide = sample(**{f"c{n}": [1, 2, 3] for n in range(40)})
    lines = repr(wide).split("\n")
    assert len(lines) == 15
    assert lines[-1] == "  ... and 31 columns more"


def test_text_of_a_sequence_is_one_line_a_column() -> None:
    assert repr(sample()[1]).split("\n") == [
        "Sequence 'ep_1'",
        "  sequence_id  'ep_1'",
        f"  task         {EVIL!r}",
        "  action       float32[5, 2]",
        "  cam          MediaView('a.mp4', video)",
    ]


def test_html_is_escaped_static_and_well_formed() -> None:
    odd = sl.scan(pa.table({"sequence_id": [f'{EVIL}"'], f"{EVIL}&": [EVIL], "x": pa.array([[[1.0], [2.0]]])}))
    for html in (odd._repr_html_(), odd[0]._repr_html_(), sample()._repr_html_(), sample()[0]._repr_html_()):
        assert "<script" not in html
        assert not re.search(r"<[^>]*\bon\w+=", html)
        assert "http" not in html.replace("http://www.w3.org/2000/svg", "")
        ET.fromstring(html)
    assert "&lt;script&gt;" in odd._repr_html_()
    assert "<svg" in odd[0]._repr_html_()


def test_html_stays_under_200_kb() -> None:
    signals = {
        f"signal_{n}": pa.array([np.random.rand(300, 30).tolist()], pa.list_(pa.list_(pa.float64()))) for n in range(40)
    }
    big = sl.scan(pa.table({"sequence_id": ["a"], "text": ["x" * 1_000_000], **signals}))
    for html in (big._repr_html_(), big[0]._repr_html_()):
        assert len(html.encode()) < 200_000
        ET.fromstring(html)
    assert "more are not shown" in big[0]._repr_html_()
    assert len(repr(big[0])) < 5000


def test_a_curve_keeps_spikes_and_survives_odd_values() -> None:
    curve = np.zeros((10_000, 1), np.float32)
    curve[7_777] = 5
    assert 'aria-label="0 to 5"' in sparkline(curve)
    points = re.search(r'points="([^"]*)"', sparkline(curve))
    assert points is not None
    assert min(float(point.split(",")[1]) for point in points[1].split()) == 1
    assert sparkline(np.array([[np.nan], [1], [np.nan], [np.inf], [2], [2]])).count("<polyline") == 2
    for odd in (np.empty((0, 3)), np.full((4, 2), np.nan), np.array([1, 2, 3]), np.array([[True], [False]])):
        ET.fromstring(f"<p>{sparkline(odd)}</p>")
    assert "1e+308" in sparkline(np.array([[-1e308], [1e308]]))


def test_what_cannot_be_read_is_said_in_place(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table({"sequence_id": ["a", "b"], "x": [1, 2]}), path)
    rows = sl.scan(tmp_path)
    view = rows[0]
    path.unlink()
    for text in (repr(rows), rows._repr_html_(), repr(view), view._repr_html_()):
        assert text
    assert "unreadable" in repr(view)
    assert "unreadable" in rows._repr_html_()


def test_ragged_cells_are_said_in_place() -> None:
    ragged = pa.array([[[1, 2], [3]]], pa.list_(pa.list_(pa.float32())))
    view = sl.scan(pa.table({"sequence_id": ["a"], "x": ragged}))[0]
    assert "different widths" in repr(view)
    assert "different widths" in view._repr_html_()


def test_pictures_are_shown_and_missing_files_are_red(tmp_path: Path) -> None:
    jpeg = b"\xff\xd8\xff\xe0 a small picture"
    table = pa.table(
        {
            "sequence_id": ["a"],
            "images": pa.array([[jpeg] * 20 + [None, b"no picture", b"\xff\xd8\xff" * 10_000]]),
            "there": ["there.mp4"],
            "gone": ["gone.mp4"],
            "outside": ["../x.mp4"],
            "remote": ["s3://nowhere/x.mp4"],
        }
    )
    (tmp_path / "there.mp4").write_bytes(b"x")
    pq.write_table(table, tmp_path / "part.parquet")
    types = {
        "images": sl.Image(format="jpeg"),
        **dict.fromkeys(("there", "gone", "outside", "remote"), sl.Video(fps=30)),
    }
    html = sl.scan(tmp_path, column_types=types)[0]._repr_html_()
    tree = ET.fromstring(html)
    pictures = [base64.b64decode(img.attrib["src"].partition("base64,")[2]) for img in tree.iter("img")]
    assert pictures == [jpeg] * 5
    red = [div.text for div in tree.iter("div") if "color" in div.attrib.get("style", "")]
    assert len(red) == 3
    assert "there.mp4 cannot be opened as media" in str(red[0])
    assert red[1] == "missing: gone.mp4"
    assert "leads out of the dataset" in str(red[2])


def test_videos_and_large_pictures_are_shown_small(tmp_path: Path) -> None:
    from seqlake.media import image

    rng = np.random.default_rng(0)
    ds = sl.create(
        tmp_path / "arm", sl.Schema({"cam": sl.Video(fps=30), "big": sl.Image(frames="bytes", format="png")})
    )
    frames = rng.integers(0, 255, (12, 120, 160, 3), dtype=np.uint8)
    with ds.writer() as writer:
        writer.add("a", cam=frames, big=frames[:3])
    html = ds["a"]._repr_html_()
    assert len(html.encode()) < 200_000
    pictures = list(ET.fromstring(html).iter("img"))
    assert [one.attrib["title"] for one in pictures[:6]] == ["0.00 s", "0.07 s", "0.13 s", "0.23 s", "0.30 s", "0.37 s"]
    assert len(pictures) == 9
    for one in pictures:
        data = base64.b64decode(one.attrib["src"].partition("base64,")[2])
        assert image.decode(data).shape == (72, 96, 3)
