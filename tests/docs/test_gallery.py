"""The pictures of the gallery are those that its script makes, small, and safe to show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image
from tests.tools import tool

from seqlake import plugins

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"


@pytest.fixture(scope="module")
def script() -> Any:
    pytest.importorskip("pty", reason="this system has no terminals")
    return tool("gallery")


def words(svg: Path) -> str:
    return " ".join(" ".join(ET.parse(svg).getroot().itertext()).split())


def test_every_picture_is_shown_and_they_are_small() -> None:
    shown = set(re.findall(r"!\[[^\]]{10,}\]\(gallery/([\w.-]+)\)", (ROOT / "docs" / "gallery.md").read_text()))
    there = {one.name for one in GALLERY.iterdir()}
    assert shown == there
    assert sum(one.stat().st_size for one in GALLERY.iterdir()) < 1_000_000
    for one in GALLERY.glob("*.webp"):
        with Image.open(one) as picture:
            assert picture.width <= 1400
            picture.load()


def test_pictures_of_the_viewer_are_all_shown_and_small() -> None:
    folder = ROOT / "docs" / "how-to" / "pictures"
    text = (ROOT / "docs" / "how-to" / "view-pictures.md").read_text()
    shown = re.findall(r"!\[[^\]]{10,}\]\(pictures/([\w.-]+)\)", text)
    assert sorted(shown) == sorted(one.name for one in folder.iterdir())
    pages = ("dataset", "sequence", "compare", "problems", "sql", "versions")
    assert {f"{name}-{page}.webp" for name in ("bridge", "lyft") for page in pages} <= set(shown)
    assert sum(one.stat().st_size for one in folder.iterdir()) < 1_000_000
    for one in folder.iterdir():
        with Image.open(one) as picture:
            assert picture.width <= 1400
            picture.load()


def test_casts_are_of_the_commands_that_the_script_has(script: Any) -> None:
    assert {one.stem for one in GALLERY.glob("*.svg")} == set(script.CASTS)
    for name, commands in script.CASTS.items():
        text = words(GALLERY / f"{name}.svg").replace(" \\ ", " ")
        for command in commands:
            assert command.split()[0] in plugins.names("cli")
            assert " ".join(f"$ seqlake {command}".split()) in text, "run scripts/gallery"


def test_casts_fetch_and_run_nothing() -> None:
    for one in GALLERY.glob("*.svg"):
        text = one.read_text()
        assert not re.search(r"<script|<image|<foreignObject|href|url\(|@import", text), one
        assert re.findall(r"https?://[^\"'\s<]*", text.partition(">")[0]) == ["http://www.w3.org/2000/svg"]


def test_a_cast_shows_what_a_terminal_shows(script: Any) -> None:
    text = "\x1b[1m\x1b[31mred\x1b[0m & <b>\n\x1b[38;2;1;70;143mfar\x1b[39m\x1b[K near"
    root = ET.fromstring(script.svg([("seqlake info arm", text)]))
    shown = {
        (one.text or "").replace("\N{NO-BREAK SPACE}", " "): one.attrib
        for one in root.iter("{http://www.w3.org/2000/svg}text")
    }
    styles = {text: {k: v for k, v in known.items() if k in {"fill", "font-weight"}} for text, known in shown.items()}
    assert styles["red"] == {"fill": "#e06c75", "font-weight": "bold"}
    assert styles[" & <b>"] == {}
    assert styles["far"] == {"fill": "#048"}
    assert styles[" near"] == {}
    assert float(shown[" near"]["x"]) - float(shown["far"]["x"]) == pytest.approx(3 * script._WIDTH, abs=0.2)
    assert float(shown["far"]["y"]) - float(shown["red"]["y"]) == script._LINE
    assert root.attrib["aria-label"] == "seqlake info arm"


def test_a_line_that_was_written_over_is_what_was_written_last(script: Any) -> None:
    assert script._without_progress(" 10%|█  | 1/9\r100%|███| 9/9\r\ndone\r\n") == "done"


def test_a_long_line_goes_on_below(script: Any) -> None:
    rows = script.folded("a" * 60 + "\x1b[1m" + "b" * 60)
    assert [[(len(text), look.bold) for text, look in row] for row in rows] == [[(60, False), (24, True)], [(36, True)]]


def test_half_blocks_are_two_rectangles(script: Any) -> None:
    (row,) = script.folded("\x1b[38;2;16;32;48;48;2;64;80;96m▀▀\x1b[0m")
    shades = [part.rpartition("fill=")[2] for part in script.drawn(row, 0).split("/>")]
    assert shades == ['"#123"', '"#456"', ""]


@pytest.mark.soak
def test_the_script_makes_every_picture(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "OUT", tmp_path / "gallery")
    script.main()
    assert {one.name for one in (tmp_path / "gallery").iterdir()} == {one.name for one in GALLERY.iterdir()}
