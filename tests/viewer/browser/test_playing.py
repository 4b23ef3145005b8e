"""The frame on the screen is the frame of the step: the films' pixels say which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.viewer.browser.viewing import FILMS, STEPS, frame_of

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from tests.viewer.browser.viewing import Page


def exact(page: Page, step: int, names: tuple[str, ...] = FILMS) -> None:
    """All films show the frame of this step."""
    assert page.rest() == step
    assert page.numbers(names) == {name: frame_of(name, step) for name in names}


@pytest.mark.sampled
def test_a_link_leads_to_its_frame(page: Page) -> None:
    for step in (0, 2, 29, 40, 88, STEPS - 1) if SOAK else (0, 29, STEPS - 1):  # 2 and 29 are what `i / fps` misses
        page.open(f"seq?id=every&f={step}")
        exact(page, step)
    page.open("seq?id=every&t=1.5")
    exact(page, 45)


def test_steps_and_jumps(page: Page) -> None:
    page.open("seq?id=every&f=40")
    exact(page, 40)
    for key, step in (
        ("ArrowRight", 41), ("ArrowRight", 42), ("ArrowLeft", 41), ("Shift+ArrowRight", 51), ("Alt+ArrowLeft", 21),
        ("End", 89), ("ArrowRight", 89), ("ArrowLeft", 88), ("Home", 0), ("ArrowRight", 1),
    ):  # fmt: skip
        page.page.keyboard.press(key)
        exact(page, step)
    for _ in range(30):  # faster than any video seeks: only the last wish counts
        page.page.keyboard.press("ArrowRight")
    exact(page, 31)


def test_a_press_on_a_plot_seeks_everything(page: Page) -> None:
    page.open("seq?id=every")
    page.rest()
    over = page.page.locator('[data-panel="action"] .u-over')
    box = over.bounding_box()
    assert box
    for share, step in ((0.25, 22), (0.75, 67), (0.999, 89)):
        page.page.mouse.click(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        exact(page, step)
        page.page.mouse.move(5, 5)  # away, since what the pointer is over goes before the playhead
        value = page.page.locator('[data-panel="action"] .legend-row b').first.inner_text()
        assert float(value) == step  # the first dimension is the step itself
    head = page.page.locator('[data-panel="action"] .playhead').bounding_box()
    assert head
    assert abs(head["x"] + 1 - (box["x"] + box["width"] * (89.5 / 90))) < 2


def test_dragging_the_scrubber(page: Page) -> None:
    page.open("seq?id=every")
    page.rest()
    box = page.page.locator(".timeline-track").bounding_box()
    assert box
    page.page.mouse.move(box["x"] + 5, box["y"] + 10)
    page.page.mouse.down()
    for share in (0.2, 0.5, 0.9, 0.3):
        page.page.mouse.move(box["x"] + box["width"] * share, box["y"] + 10, steps=4)
    page.page.mouse.up()
    exact(page, 27)


def test_pausing_lands_all_films_on_one_frame(page: Page) -> None:
    page.open("seq?id=every")
    page.rest()
    before = 0
    for _ in range(3):
        page.page.keyboard.press("Space")
        page.page.wait_for_function(f"() => seqlakePlayer.step > {before} + 4")
        page.page.keyboard.press("Space")
        step = page.rest()
        assert before < step < STEPS
        exact(page, step)
        before = step


def test_playing_stops_at_the_end_and_loops_within_a_range(page: Page) -> None:
    page.open("seq?id=every&f=80")
    page.rest()
    page.page.keyboard.press("Space")
    page.page.wait_for_function("() => !seqlakePlayer.playing", timeout=20000)
    exact(page, STEPS - 1)
    page.page.evaluate("() => { seqlakePlayer.setLoop({start: 10, stop: 16}); seqlakePlayer.setLooping(true); }")
    page.page.keyboard.press("Space")
    steps = page.page.evaluate(
        """() => new Promise((then) => { const seen = new Set(); seqlakePlayer.on(() => seen.add(seqlakePlayer.step));
             setTimeout(() => then([...seen]), 1500); })"""
    )
    page.page.keyboard.press("Space")
    assert set(steps) <= set(range(10, 16))
    step = page.rest()
    exact(page, step)


def test_slow_playing_stays_close(page: Page) -> None:
    """Loosely, since machines that test decode without a GPU: no film is off by more than a quarter of a second."""
    page.open("seq?id=every&vids=h264,variable,half")
    page.rest(3)
    page.page.evaluate("() => seqlakePlayer.setRate(0.5)")
    page.page.keyboard.press("Space")
    page.page.wait_for_function("() => seqlakePlayer.step > 20", timeout=20000)
    off = page.page.evaluate(
        """() => [...seqlakePlayer.tracks].map((track) => {
             const times = track.times, step = Math.floor(seqlakePlayer.position);
             return Math.abs(track.video.currentTime - times[step]); })"""
    )
    page.page.keyboard.press("Space")
    assert len(off) == 3
    assert max(off) < 0.25
    step = page.rest(3)
    names = ("h264", "variable", "half")
    assert page.numbers(names) == {name: frame_of(name, step) for name in names}


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.parametrize("name", ["hevc", "mpeg4", "depth"])
def test_what_a_browser_does_not_play_is_decoded_here_and_says_so(page: Page, name: str) -> None:
    page.open(f"seq?id=every&vids={name}&f=33")
    page.rest(1)
    tile = page.page.locator(f'[data-tile="{name}"]')
    assert tile.get_attribute("data-play") == "frames"
    assert "decoded" in tile.locator("figcaption").inner_text()
    assert page.numbers((name,)) == {name: 33}


def test_the_tail_that_a_late_start_cuts_off_is_shown(page: Page) -> None:
    page.open(f"seq?id=every&vids=late&f={STEPS - 1}")
    page.rest(1)
    assert page.numbers(("late",)) == {"late": STEPS - 1}
    page.page.keyboard.press("Home")
    page.rest(1)
    assert page.numbers(("late",)) == {"late": 0}


def test_another_clock_moves_the_films(page: Page) -> None:
    page.open("seq?id=every&clock=half&vids=h264,half&f=10")
    assert page.rest(2) == 10
    assert page.numbers(("h264", "half")) == {"h264": 20, "half": 10}
