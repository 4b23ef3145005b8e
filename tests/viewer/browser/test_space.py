"""Clouds, paths and scenes in the page: they follow the playhead, turn, are seen from above, and say what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.formats.l5kit.conftest import drives, write
from tests.viewer import street
from tests.viewer.browser.viewing import Page, Server

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Opened = tuple[Page, Server]

DRAWN = """(name) => {
  const canvas = document.querySelector(`[data-tile="${name}"] canvas`);
  const copy = Object.assign(document.createElement('canvas'), { width: canvas.width, height: canvas.height });
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const seen = new Set();
  let drawn = 0;
  for (let i = 0; i < data.length; i += 4) {
    if (data[i + 3] <= 200) continue;
    drawn += 1;
    seen.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
  }
  return { drawn, colours: seen.size, text: copy.toDataURL() };
}"""
"""How many pixels of a tile are drawn, and in how many colours."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("space")


@pytest.fixture(scope="module")
def on_the_street(browser: Any, folder: Path) -> Iterator[Page]:
    """A page of the street."""
    street.make(folder / "street", steps=8, across=120, size=(64, 48))
    server = Server(folder / "street")
    page = Page(browser, server)
    yield page
    page.close()
    server.stop()


def looked(page: Page, name: str) -> dict[str, Any]:
    """What a tile shows, once it rests."""
    page.page.evaluate("() => new Promise((then) => requestAnimationFrame(() => requestAnimationFrame(then)))")
    seen: dict[str, Any] = page.page.evaluate(DRAWN, name)
    return seen


def test_clouds_follow_the_playhead_and_turn(on_the_street: Page) -> None:
    page = on_the_street
    page.open("seq?id=street&f=3")
    tile = page.page.locator('[data-tile="lidar"]')
    page.page.locator('[data-tile="lidar"][data-shown="3"]').wait_for()
    assert "points" in tile.inner_text()
    first = looked(page, "lidar")
    assert first["drawn"] > 1000
    assert first["colours"] > 30
    page.page.keyboard.press("End")
    page.page.locator('[data-tile="lidar"][data-shown="7"]').wait_for()
    last = looked(page, "lidar")
    assert last["text"] != first["text"]
    tile.get_by_role("button", name="Top").click()
    above = looked(page, "lidar")
    assert above["text"] != last["text"]
    tile.get_by_role("button", name="3D").click()
    assert looked(page, "lidar")["text"] == last["text"]
    tile.locator("canvas").scroll_into_view_if_needed()
    box = tile.locator("canvas").bounding_box()
    assert box
    page.page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 160, box["y"] + 70)
    page.page.mouse.up()
    assert looked(page, "lidar")["text"] != last["text"]
    page.page.mouse.dblclick(box["x"] + 60, box["y"] + 60)
    assert looked(page, "lidar")["text"] == last["text"]
    tile.locator("select").select_option("ring")
    page.page.wait_for_function(
        "() => document.querySelector('[data-tile=\"lidar\"] .depth-scale')?.title.includes('31')"
    )
    assert looked(page, "lidar")["text"] != last["text"]


def test_paths_share_the_view_of_their_frame_of_reference(on_the_street: Page) -> None:
    page = on_the_street
    page.open("seq?id=street&f=2")
    tile = page.page.locator('[data-tile="ego_pose map"]')
    page.page.locator('[data-tile="ego_pose map"][data-pose="2"][data-shown="0"]').wait_for()
    assert looked(page, "ego_pose map")["drawn"] > 1000
    assert "x" in tile.locator(".tile-fact").text_content()
    assert page.page.locator('[data-tile="hand_pos"] .badge', has_text="assumed").count() == 1
    assert page.page.locator('[data-tile="camera"] .badge').count() == 0
    page.page.evaluate("seqlakePlayer.seek(5)")
    page.page.locator('[data-tile="camera"][data-pose="5"]').wait_for()


def test_deep_cells_open_part_by_part(on_the_street: Page) -> None:
    page = on_the_street
    page.open("seq?id=street")
    page.page.locator(".others > summary").click()
    card = page.page.locator('.others [data-other="weather"]')
    assert "clear" in card.inner_text()
    assert "north" not in card.inner_text()
    card.locator("summary", has_text="wind").click()
    assert "north" in card.inner_text()
    assert page.page.locator('[data-other="caption"] svg path').count() == 1


def test_a_scene_follows_the_playhead(browser: Any, folder: Path) -> None:
    pytest.importorskip("numcodecs")
    write(folder / "drive.zarr", drives(frames=12, agents=9))
    server = Server(folder / "drive.zarr")
    page = Page(browser, server, color_scheme="dark")
    try:
        page.open("seq?row=0&f=4")
        page.page.locator('[data-tile="scene"][data-shown="4"]').wait_for()
        first = looked(page, "scene")
        assert first["drawn"] > 300
        assert page.page.locator('[data-panel="agents_centroid"]').count() == 0
        page.page.keyboard.press("ArrowRight")
        page.page.locator('[data-tile="scene"][data-shown="5"]').wait_for()
        second = looked(page, "scene")
        assert second["text"] != first["text"]
        page.page.locator('[data-tile="scene"]').get_by_role("button", name="Car up").click()
        assert looked(page, "scene")["text"] != second["text"]
    finally:
        page.close()
        server.stop()


def test_what_is_wrong_with_a_cloud_stands_in_its_tile(browser: Any, folder: Path) -> None:
    root = folder / "broken"
    root.mkdir()
    (root / "cut.pcd").write_bytes(b"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nPOINTS 99\nDATA binary\n")
    pq.write_table(
        pa.table({"sequence_id": ["cut", "gone"], "<b>scan</b>": ["cut.pcd", "gone.pcd"]}), root / "rows.parquet"
    )
    sl.init(root, column_types={"<b>scan</b>": sl.Spatial3D()})
    server = Server(root)
    page = Page(browser, server)
    page.expected = ("422",)
    try:
        page.open("seq?id=cut")
        page.page.locator('.tile.space[data-state="broken"] .tile-state').wait_for()
        assert "cannot be read as pcd" in page.page.locator(".tile-state").inner_text()
        page.open("seq?id=gone")
        page.page.locator('.tile.space[data-state="missing"] .tile-state').wait_for()
        assert "gone.pcd" in page.page.locator(".tile-state").inner_text()
        assert page.page.locator(".tile b").count() == 0
    finally:
        page.close()
        server.stop()
