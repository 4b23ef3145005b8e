"""A folder that was exported plays to the frame, from a disk and from a web server, and asks nobody else."""

from __future__ import annotations

import contextlib
import functools
import http.server
import io
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from tests.formats.l5kit.conftest import drives
from tests.formats.l5kit.conftest import write as write_drives
from tests.viewer import street
from tests.viewer.browser import films
from tests.viewer.browser.films import ACROSS, DOWN
from tests.viewer.browser.viewing import FILMS, STEPS, frame_of

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAWN = """(name) => {
    const figure = document.querySelector(`[data-tile="${name}"]`);
    const all = [...figure.querySelectorAll("video, canvas.decoded")];
    const seen = (one) => getComputedStyle(one).visibility !== "hidden" && (one.videoWidth ?? one.width) > 0;
    return all.filter(seen).pop(); }"""


class Opened:
    """A page of an export, and all that it asked for."""

    def __init__(self, browser: Any, start: str) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 1400})
        self.page = self.context.new_page()
        self.start = start
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)

    def open(self, path: str) -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.start}#/{path}")

    def rest(self, tracks: int) -> int:
        self.page.wait_for_function(
            f"() => window.seqlakePlayer && seqlakePlayer.tracks.size >= {tracks} && seqlakePlayer.settled()"
        )
        self.page.wait_for_timeout(120)
        return int(self.page.evaluate("seqlakePlayer.step"))

    def number(self, name: str) -> int | None:
        """What the pixels of a film say, by a picture of the screen: a page of a disk may not read them itself.

        None where nothing of it is drawn.
        """
        element = self.page.evaluate_handle(DRAWN, name).as_element()
        if element is None:
            return None
        picture = Image.open(io.BytesIO(element.screenshot())).convert("L")
        wide, tall = picture.size
        light = [
            float(np.asarray(picture.crop((int((x + 0.42) * wide / ACROSS), int((y + 0.42) * tall / DOWN),
                                           int((x + 0.58) * wide / ACROSS), int((y + 0.58) * tall / DOWN)))).mean())
            for y in range(DOWN) for x in range(ACROSS)
        ]  # fmt: skip
        middle = (light[0] + light[1]) / 2
        bits = [(one > middle) == (light[0] > light[1]) for one in light[2:]]
        return functools.reduce(lambda all_, bit: all_ * 2 + bit, bits, 0)

    def exact(self, step: int) -> None:
        """All films show the frame of a step, once the screen is painted."""
        wanted: dict[str, int | None] = {name: frame_of(name, step) for name in FILMS}
        shown: dict[str, int | None] = {}
        for _ in range(30):  # a browser that has no core to itself may paint late
            shown = {name: self.number(name) for name in FILMS}
            if shown == wanted:
                return
            self.page.wait_for_timeout(100)
        assert shown == wanted

    def close(self) -> None:
        self.context.close()
        assert not [url for url in self.asked if not url.startswith((self.start.rsplit("/", 1)[0], "data:", "blob:"))]
        assert not self.wrong


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Python's own server, which knows no ranges."""

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sequences with films of every kind, and the broken one."""
    done = sl.view(sl.open(made), export=tmp_path_factory.mktemp("export") / "folder")
    assert done.sequences == 3
    return done.folder


@pytest.fixture(params=["file", "http"])
def opened(request: pytest.FixtureRequest, browser: Any, folder: Path) -> Iterator[Opened]:
    with (
        served(folder)
        if request.param == "http"
        else contextlib.nullcontext(folder.joinpath("index.html").as_uri()) as at
    ):
        page = Opened(browser, at)
        yield page
        page.close()


@pytest.mark.sampled(every=2, start=1)
def test_every_film_shows_the_frame_of_the_step(opened: Opened) -> None:
    for step in (0, 29, STEPS - 1):
        opened.open(f"seq?id=every&f={step}")
        assert opened.rest(len(FILMS)) == step
        opened.exact(step)
    opened.page.keyboard.press("ArrowLeft")
    assert opened.rest(len(FILMS)) == STEPS - 2
    opened.exact(STEPS - 2)
    value = opened.page.locator('[data-panel="action"] .legend-row b').first.inner_text()
    assert float(value) == STEPS - 2
    opened.page.keyboard.press("Home")
    opened.page.keyboard.press("Space")
    opened.page.wait_for_function("() => seqlakePlayer.step > 10")
    opened.page.keyboard.press("Space")
    step = opened.rest(len(FILMS))
    opened.exact(step)


@pytest.mark.sampled(every=2)
def test_the_table_sorts_and_leads_to_sequences(opened: Opened) -> None:
    opened.open("")
    rows = opened.page.locator("tbody th")
    rows.first.wait_for()
    assert rows.all_inner_texts() == ["every", "short", "broken"]
    assert opened.page.locator(".sparkline path").count() > 0
    opened.page.wait_for_function(
        "() => [...document.querySelectorAll('.strip img')].some((one) => one.naturalWidth > 200)"
    )
    opened.page.get_by_role("button", name="reward").click()
    opened.page.wait_for_function("() => document.querySelector('tbody th').innerText === 'broken'")
    assert opened.page.get_by_role("link", name="SQL").count() == 0
    opened.page.locator("tbody th a", has_text="short").click()
    opened.page.wait_for_selector('[data-sequence="short"]')
    opened.page.keyboard.press("ArrowDown")
    opened.page.wait_for_selector('[data-sequence="broken"]')
    opened.page.locator('[data-tile="h264"][data-state="missing"]').wait_for()
    opened.page.go_back()
    opened.page.wait_for_selector('[data-sequence="short"]')


@pytest.mark.sampled(every=2)
def test_two_sequences_are_compared(opened: Opened) -> None:
    opened.open("cmp?id=every&id=short&f=20&vids=h264")
    assert opened.rest(2) == 20
    assert opened.page.locator(".own-step").all_inner_texts() == ["step 20", "step 20"]


def test_names_are_only_names(browser: Any, tmp_path: Path) -> None:
    """An id may be anything: markup, what every object of JavaScript has, a part of an address."""
    ids = ["__proto__", "constructor", "<script>alert(1)</script>", "a/../b?c=d&e#f", "ä 'x' \"y\" \\ \u2028", "%2e%2e"]
    ds = sl.create(tmp_path / "odd", {"x<y": sl.Trajectory(dim=2, fps=10)})
    with ds.writer() as writer:
        for number, name in enumerate(ids):
            writer.add(name, **{"x<y": np.full((5, 2), number, np.float32)})
    done = sl.view(sl.open(tmp_path / "odd"), export=tmp_path / "out")
    page = Opened(browser, done.index.as_uri())
    page.open("")
    page.page.locator("tbody th").first.wait_for()
    assert page.page.locator("tbody th").all_inner_texts() == ids
    for number, name in enumerate(ids):
        page.page.evaluate("(id) => { location.hash = '#/seq?' + new URLSearchParams({ id }); }", name)
        page.page.wait_for_function("(id) => document.querySelector('main')?.dataset.sequence === id", arg=name)
        page.page.wait_for_function(
            f"() => document.querySelector('[data-panel] .legend-row b')?.innerText === '{number}'"
        )
    page.close()


def test_a_long_signal_keeps_its_spikes(browser: Any, tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "long", {"x": sl.Trajectory(dim=6, fps=100)})
    steps = np.zeros((200_000, 6), np.float32)
    steps[77_777, 4] = 1000
    with ds.writer() as writer:
        writer.add("a", x=steps)
    done = sl.view(sl.open(tmp_path / "long"), "a", export=tmp_path / "out")
    assert done.nbytes < 3_000_000
    assert json.loads(json.loads((done.folder / "data.js").read_text().partition("JSON.parse(")[2][:-3]))[
        "sequences"
    ] == {"a": "data/0.js"}
    page = Opened(browser, done.index.as_uri())
    page.open("seq?id=a&dims=x:4")
    page.page.locator('[data-panel="x"] .badge', has_text="envelope").wait_for()
    page.page.wait_for_function("() => document.querySelectorAll('[data-panel] .legend-row').length > 0")
    page.close()


def test_a_film_is_cut_out_of_a_file_that_others_share(browser: Any, tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "films", {name: sl.Video(fps=30) for name in ("h264", "b_frames")})
    with ds.writer() as writer:
        for name, first in (("a", 0), ("b", 100)):
            made = {
                kind: sl.File(films.film(tmp_path / f"{name}{kind}", kind, 40, first=first))
                for kind in ("h264", "b_frames")
            }
            writer.add(name, **made)
    sl.convert(sl.open(tmp_path / "films"), tmp_path / "shared", to="lerobot")
    source = sl.scan(tmp_path / "shared")
    names = [name for name, column in source.schema.items() if column.medium == "video"]
    assert len({source[number][names[0]].location for number in range(2)}) == 1
    done = sl.view(source[1:2], export=tmp_path / "out")
    assert not list(done.folder.glob("media/*-[0-9]*.jpg"))
    page = Opened(browser, done.index.as_uri())
    for step in (0, 17, 39):
        page.open(f"seq?id={source[1].id}&f={step}")
        assert page.rest(2) == step
        for name in names:
            for _ in range(20):
                if page.number(name) == 100 + step:
                    break
                page.page.wait_for_timeout(100)
            assert page.number(name) == 100 + step
    page.close()


def test_a_mesh_is_drawn_by_its_faces(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("trimesh")
    ds = sl.create(tmp_path / "parts", {"part": sl.Spatial3D()})
    with ds.writer() as writer:
        writer.add("a", part=sl.File(street.box(tmp_path / "box.obj")))
    done = sl.view(sl.open(tmp_path / "parts"), export=tmp_path / "out")
    page = Opened(browser, done.index.as_uri())
    page.open("seq?id=a")
    tile = page.page.locator('[data-tile="part"]')
    tile.get_by_text("12 faces").wait_for()
    page.page.wait_for_timeout(200)
    canvas = np.asarray(Image.open(io.BytesIO(tile.locator("canvas").screenshot())).convert("L"), int)
    sides = np.bincount(canvas.ravel(), minlength=256)
    assert (np.sort(sides)[-4:] > 0.01 * canvas.size).all()  # the ground, and three sides that the light meets unlike
    page.close()


def test_clouds_paths_and_scenes_are_drawn(browser: Any, tmp_path: Path) -> None:
    street.make(tmp_path / "street", steps=8, across=120, size=(64, 48))
    done = sl.view(sl.open(tmp_path / "street"), "street", export=tmp_path / "out")
    page = Opened(browser, done.index.as_uri())
    page.open("seq?id=street&f=3")
    page.page.locator('[data-tile="lidar"][data-shown="3"]').wait_for()
    page.page.locator('[data-tile="ego_pose map"][data-pose="3"][data-shown="0"]').wait_for()
    assert "points" in page.page.locator('[data-tile="lidar"]').inner_text()
    page.page.keyboard.press("End")
    page.page.locator('[data-tile="lidar"][data-shown="7"]').wait_for()
    page.close()
    pytest.importorskip("numcodecs")
    write_drives(tmp_path / "drive.zarr", drives(frames=12, agents=9))
    scene = sl.scan(tmp_path / "drive.zarr")[0:1]
    done = sl.view(scene, export=tmp_path / "above")
    page = Opened(browser, done.index.as_uri())
    page.open(f"seq?id={scene[0].id}&f=4")
    page.page.locator('[data-tile="scene"][data-shown="4"]').wait_for()
    page.page.keyboard.press("ArrowRight")
    page.page.locator('[data-tile="scene"][data-shown="5"]').wait_for()
    page.close()
