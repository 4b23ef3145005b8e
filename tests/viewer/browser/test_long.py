"""Films that no browser takes at once: two hours of one, and more of them than a browser has connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from tests.viewer.browser import films
from tests.viewer.browser.viewing import Page, Server

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FRAMES, COPIES = 1024, 211  # two hours at 30 Hz; as many numbers as the ten blocks of a picture have
STEPS = FRAMES * COPIES
MANY = 8  # a browser has six connections to one server
SECONDS = 120


def repeated(short: Path, path: Path) -> Path:
    """The packets of a film again and again, each copy where the one before it ends."""
    with av.open(str(short)) as source, av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        [stream] = source.streams.video
        base = stream.time_base
        assert base is not None
        packets: list[Any] = [one for one in source.demux(stream) if one.size]
        copied = [(bytes(one), one.pts, one.dts, one.duration, one.is_keyframe) for one in packets]
        target = file.add_stream_from_template(stream)
        for copy in range(COPIES):
            later = copy * round(FRAMES / 30 / base)
            for data, shown_at, read_at, lasts, key in copied:
                packet = av.Packet(data)
                packet.pts, packet.dts, packet.duration = shown_at + later, read_at + later, lasts
                packet.time_base, packet.is_keyframe, packet.stream = base, key, target
                file.mux(packet)
    return path


def noisy(path: Path) -> Path:
    """A film of 1 Hz and about 10 MB: more than a browser reads ahead, in little time to play."""
    chosen = np.random.default_rng(0)
    with av.open(str(path), "w", options={"movflags": "+faststart"}) as file:
        stream = file.add_stream("libx264", rate=1, options={"preset": "ultrafast", "qp": "12", "g": "30", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for _ in range(SECONDS):
            picture = av.VideoFrame.from_ndarray(chosen.integers(0, 255, (240, 320), np.uint8), format="gray")
            file.mux(stream.encode(picture.reformat(format="yuv420p")))
        file.mux(stream.encode(None))
    return path


@pytest.fixture
def long(browser: Any, tmp_path: Path) -> Iterator[Page]:
    """A page of a film of two hours beside a signal that is the step itself."""
    film = repeated(films.film(tmp_path / "short", "h264", FRAMES), tmp_path / "long.mp4")
    ds = sl.create(tmp_path / "data", {"action": sl.Trajectory(dim=1, fps=30), "cam": sl.Video(fps=30)})
    with ds.writer() as writer:
        writer.add("long", action=np.arange(STEPS, dtype=np.float32)[:, None], cam=sl.File(film))
    yield from opened(browser, tmp_path / "data")


@pytest.fixture
def many(browser: Any, tmp_path: Path) -> Iterator[Page]:
    """A page of more long films than a browser has connections."""
    film = noisy(tmp_path / "noisy.mp4")
    names = [f"cam_{number}" for number in range(MANY)]
    ds = sl.create(
        tmp_path / "data", {"action": sl.Trajectory(dim=1, fps=1), **{name: sl.Video(fps=1) for name in names}}
    )
    with ds.writer() as writer:
        for sequence in ("first", "second"):
            ramp = np.arange(SECONDS, dtype=np.float32)[:, None]
            writer.add(sequence, action=ramp, **{name: sl.File(film) for name in names})
    yield from opened(browser, tmp_path / "data")


def opened(browser: Any, root: Path) -> Iterator[Page]:
    """A page of a viewer of its own."""
    server = Server(root)
    page = Page(browser, server)
    yield page
    page.close()
    server.stop()


def test_two_hours_are_sought_and_played_to_the_frame(long: Page) -> None:
    for step in (1, 100_000, STEPS - 1):
        long.open(f"seq?id=long&f={step}")  # waits until no reply is under way
        assert long.rest(1) == step
        assert long.numbers(("cam",)) == {"cam": step % FRAMES}
    for step in (FRAMES, 60 * FRAMES - 8):  # the last frame before another copy is near
        long.page.evaluate(f"() => seqlakePlayer.seek({step})")
        assert long.rest(1) == step
        assert long.numbers(("cam",)) == {"cam": step % FRAMES}
    long.page.keyboard.press("Space")
    long.page.wait_for_function(f"() => seqlakePlayer.step > {60 * FRAMES + 4}")
    long.page.keyboard.press("Space")
    step = long.rest(1)
    assert 60 * FRAMES + 4 < step < 61 * FRAMES
    assert long.numbers(("cam",)) == {"cam": step % FRAMES}


def test_more_long_films_than_connections_leave_some_for_the_page(many: Page) -> None:
    """Each film that keeps its connection takes one from all pages of the server; six would leave none."""
    half = ",".join(f"cam_{number}" for number in range(MANY // 2))
    for path in ("seq?id=first&f=1", "seq?id=first&f=70", f"cmp?id=first&id=second&f=40&vids={half}"):
        many.page.goto(f"{many.server.origin}/{path}")
        many.rest(MANY)
        many.page.wait_for_load_state("networkidle")
    assert many.page.evaluate("() => fetch('api/rows?limit=1').then((reply) => reply.status)") == 200
