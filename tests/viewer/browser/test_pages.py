"""The pages: what they show of broken files, how they filter, compare, label and keep to themselves."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.viewer.browser.viewing import FILMS, READ, STEPS, Page, Server, frame_of

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_broken_files_say_what_is_wrong(page: Page) -> None:
    page.open("seq?id=broken")
    tile = page.page.locator
    tile('[data-tile="av1"][data-shown="0"]').wait_for()
    assert tile('[data-tile="h264"]').get_attribute("data-state") == "missing"
    assert "missing" in tile('[data-tile="h264"]').inner_text().lower()
    assert tile('[data-tile="vp9"]').get_attribute("data-state") in {"undecodable", "broken"}
    assert tile('[data-tile="vp9"] .tile-state p').count() == 1
    assert tile('[data-tile="hevc"]').get_attribute("data-state") == "null"
    finding = tile('[data-tile="av1"] [data-finding]').first
    assert re.search(r"70.*90|90.*70", finding.get_attribute("title") or "")
    page.page.keyboard.press("End")
    tile('[data-tile="av1"][data-shown="none"]').wait_for()
    assert "no frame at this step" in tile('[data-tile="av1"]').inner_text()
    page.page.evaluate("seqlakePlayer.seek(69)")
    tile('[data-tile="av1"][data-shown="69"]').wait_for()
    assert page.page.evaluate(f"({READ})", "av1") == 69


def test_the_table_filters_sorts_and_opens(page: Page) -> None:
    page.open("")
    rows = page.page.locator("tbody tr")
    assert rows.count() == 3
    assert page.page.locator("td b").count() == 0  # markup in a cell stays text
    assert "<b>every</b>" in page.page.locator("tbody").inner_text()
    page.page.keyboard.press("/")
    page.page.keyboard.type("wrong")
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert "q=wrong" in page.page.url
    page.page.get_by_label("Clear the filter").click()
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 3")
    page.page.get_by_role("button", name="SQL", exact=True).click()
    box = page.page.get_by_label("condition in SQL")
    box.fill("reward BETWEEN 0.5 AND 3 AND sequence_id <> 'short'")
    box.press("Enter")
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert page.page.locator(".filter-state .chip").count() == 2
    page.expected = ("400",)
    box.fill("nonsense >")
    box.press("Enter")
    page.page.locator(".trouble").wait_for()
    page.open("?order=reward&desc=1")
    assert page.page.locator("tbody th").all_inner_texts() == ["short", "every", "broken"]
    page.page.locator("tbody th a").first.click()
    page.page.wait_for_selector('[data-sequence="short"]')
    page.page.keyboard.press("ArrowDown")
    page.page.wait_for_selector('[data-sequence="every"]')
    assert "order=reward" in page.page.url


# What somebody types in the very moment at which a page has drawn itself anew, before anything that comes later.
TYPED = """async ([press, label, text]) => {
  const field = () => document.querySelector(`input[aria-label="${label}"]`);
  if (press) [...document.querySelectorAll('button')].find((one) => one.textContent === press).click();
  while (!field()) await null;
  field().value = text;
  field().dispatchEvent(new Event('input', {bubbles: true}));
}"""
SETTLED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 200))))"


def test_a_condition_that_is_typed_at_once_stays(page: Page) -> None:
    page.open("")
    page.page.evaluate(TYPED, ["SQL", "condition in SQL", "reward > 0.5"])
    page.page.evaluate(SETTLED)
    assert page.page.get_by_label("condition in SQL").input_value() == "reward > 0.5"
    page.page.get_by_role("button", name="Search", exact=True).click()
    page.page.get_by_label("search", exact=True).wait_for()
    assert page.page.get_by_label("search", exact=True).input_value() == ""  # each has words of its own


def test_words_that_are_typed_while_others_are_looked_for_stay(page: Page) -> None:
    page.open("")
    page.page.evaluate(TYPED, ["", "search", "wro"])
    page.page.evaluate(
        """async () => {
          while (!location.search.includes('q=wro')) await new Promise((done) => setTimeout(done));
          const field = document.querySelector('input[aria-label="search"]');
          field.value = 'wrong';
          field.dispatchEvent(new Event('input', {bubbles: true}));
        }"""
    )
    page.page.evaluate(SETTLED)
    assert page.page.get_by_label("search", exact=True).input_value() == "wrong"
    page.page.wait_for_url("**q=wrong*")
    page.page.go_back()  # a filter that came from elsewhere is shown
    page.page.wait_for_function("() => document.querySelector('input[aria-label=\"search\"]').value !== 'wrong'")


# A key that is pressed in the very moment at which other rows have been drawn.
PRESSED = """(key) => new Promise((done) => {
  const first = () => document.querySelector('tbody th')?.innerText, before = first();
  const seen = new MutationObserver(() => {
    if (!first() || first() === before) return;
    seen.disconnect();
    document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
    done();
  });
  seen.observe(document.body, {childList: true, subtree: true, characterData: true});
  [...document.querySelectorAll('.column-head')].find((one) => one.innerText.trim() === 'reward').click();
})"""


def test_a_row_that_is_chosen_as_soon_as_it_is_there_stays_chosen(page: Page) -> None:
    page.open("")
    page.page.locator("tbody th a").first.wait_for()
    page.page.evaluate(PRESSED, "ArrowDown")
    page.page.evaluate(SETTLED)
    assert page.page.locator("tbody tr.current").count() == 1
    chosen = page.page.locator("tbody tr.current th").inner_text()
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector(f'[data-sequence="{chosen}"]')


def test_a_press_on_a_histogram_filters(page: Page) -> None:
    page.open("")
    bar = page.page.locator('[data-histogram="reward"] .bars button:not([disabled])')
    bar.first.wait_for()
    bar.last.click()
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    assert page.page.locator("tbody th").inner_text() == "short"
    chips = page.page.locator(".filter-state .chip")
    while chips.count():  # one for each end of the bar
        before = chips.count()
        chips.first.click()
        page.page.wait_for_function(f"() => document.querySelectorAll('.filter-state .chip').length < {before}")
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 3")


def test_the_table_shows_sparklines_strips_and_states(page: Page) -> None:
    page.open("")
    page.page.locator(".sparkline path").first.wait_for()
    page.page.wait_for_function(
        "() => [...document.querySelectorAll('.strip img')].some((one) => one.naturalWidth > 200)"
    )
    page.page.locator('[data-file-state="missing"]').first.wait_for()


def test_comparing_keeps_two_sequences_in_step(page: Page) -> None:
    page.open("cmp?id=every&id=short&f=20&vids=h264,half")
    page.rest(4)
    inside = READ.replace("document.querySelector", "column.querySelector")
    read = f"""(number) => {{ const column = [...document.querySelectorAll('.compare-column')][number];
                              const read = {inside}; return [read('h264'), read('half')]; }}"""
    assert page.page.evaluate(read, 0) == [20, 10]
    assert page.page.evaluate(read, 1) == [20, 10]
    page.page.get_by_role("button", name="ends").click()
    page.rest(4)
    page.page.evaluate("seqlakePlayer.seek(seqlakePlayer.steps - 1)")
    page.rest(4)
    assert page.page.evaluate(read, 0) == [89, 44]
    assert page.page.evaluate(read, 1) == [59, 29]
    page.page.evaluate("seqlakePlayer.seek(5)")
    page.page.locator(".own-step >> nth=1").wait_for()
    assert page.page.locator(".own-step").all_inner_texts() == ["step 5", "outside"]
    page.page.get_by_role("button", name="normalised").click()
    page.page.evaluate("() => new Promise((then) => setTimeout(then, 50))")
    page.page.evaluate("seqlakePlayer.seek(seqlakePlayer.steps - 1)")
    page.rest(4)
    assert page.page.evaluate(read, 1) == [59, 29]
    page.page.get_by_role("button", name="Overlaid").click()
    page.page.locator('.signals [data-panel="action"] .u-over').wait_for()
    page.page.wait_for_function(
        "() => location.search.includes('lay=over') && location.search.includes('align=normal')"
    )


def test_offsets_move_one_sequence(page: Page) -> None:
    page.open("cmp?id=every&id=short&align=offset&off=0&off=12&f=30&vids=h264")
    page.rest(2)
    assert page.page.locator(".own-step").all_inner_texts() == ["step 30", "step 18"]


def test_links_carry_the_view(page: Page) -> None:
    page.open("seq?id=every&f=12&cols=state&vids=h264&zoom=5-40&where=reward%20%3E%200")
    page.rest(1)
    assert page.page.locator("[data-panel]").count() == 1
    assert page.page.locator("[data-tile]").count() == 1
    page.page.keyboard.press("ArrowRight")
    page.page.wait_for_function("() => location.search.includes('f=13')")
    for part in ("cols=state", "vids=h264", "zoom=5-40", "where=reward"):
        assert part in page.page.url
    page.page.get_by_label("Share").click()
    page.page.get_by_text("Copy a link to this step").click()
    assert "f=13" in page.page.evaluate("navigator.clipboard.readText()")


@pytest.fixture
def own(browser: Any, made: Path, tmp_path: Path) -> Iterator[tuple[Page, Path]]:
    """A page over a copy of the dataset that may be written."""
    shutil.copytree(made, tmp_path / "copy")
    server = Server(tmp_path / "copy")
    page = Page(browser, server)
    yield page, tmp_path / "copy"
    page.close()
    server.stop()


def test_labels_are_committed_and_given_back(own: tuple[Page, Path]) -> None:
    page, root = own
    before = sl.open(root)
    page.open("seq?id=every&f=10&vids=h264")
    page.rest(1)
    page.page.keyboard.press("f")
    page.page.locator('[data-drafts="1"]').wait_for()
    page.page.keyboard.press("n")
    page.page.locator("textarea").fill("the gripper slips")
    page.page.keyboard.press("Tab")
    page.page.get_by_label("label name").fill("quality")
    page.page.get_by_label("label value").fill("bad")
    page.page.keyboard.press("Enter")
    page.page.locator(".label").wait_for()
    page.page.evaluate("seqlakePlayer.setLoop({start: 10, stop: 31})")
    page.page.get_by_label("label of the span").fill("slip")
    page.page.get_by_role("button", name="Mark").click()
    page.page.locator(".span-row").wait_for()
    assert before.version == sl.open(root).version  # a draft changes nothing
    page.page.reload()
    page.rest(1)
    page.page.locator('[data-drafts="1"]').click()
    page.page.get_by_label("Message").fill("slips seen")
    page.page.get_by_role("dialog").get_by_role("button", name="Commit", exact=True).click()
    page.page.locator('[data-drafts="0"]').wait_for()
    ds = sl.open(root)
    assert [seq.id for seq in ds.where("flag")] == ["every"]
    assert [seq.id for seq in ds.where("quality = 'bad' AND note LIKE '%slips'")] == ["every"]
    assert ds["every"]["spans"] == [{"start": 10, "stop": 31, "label": "slip"}] or "slip" in str(ds["every"]["spans"])
    assert ds.versions()[-1].message == "slips seen" or ds.versions()[0].message == "slips seen"
    page.page.get_by_role("link", name="Versions").click()
    page.page.get_by_role("button", name="Undo").first.click()
    page.page.wait_for_function("() => document.querySelector('.toast')?.textContent.includes('given back')")
    ds = sl.open(root)
    assert not [seq.id for seq in ds.where("flag")]
    assert not [seq.id for seq in ds.where("quality = 'bad'")]
    ds.rollback(before.version)
    assert "flag" not in repr(sl.open(root))


def test_taking_back_a_draft(own: tuple[Page, Path]) -> None:
    page, _ = own
    page.open("seq?id=short&vids=h264")
    page.rest(1)
    page.page.keyboard.press("f")
    page.page.locator('[data-drafts="1"]').wait_for()
    page.page.get_by_label("Details").click()
    page.page.get_by_label("Take back the last change").click()
    page.page.locator('[data-drafts="0"]').wait_for()


def test_problems_lead_to_their_sequence(page: Page) -> None:
    page.open("problems?depth=files")
    link = page.page.locator(".findings a").first
    link.wait_for(timeout=30000)
    assert page.page.locator(".findings").filter(has_text="broken").count() > 0
    page.page.locator(".findings a", has_text="broken").first.click()
    page.page.wait_for_selector('[data-sequence="broken"]')


def test_sql_finds_and_becomes_a_filter(page: Page) -> None:
    page.open("sql")
    page.page.get_by_label("SQL", exact=True).fill(
        "SELECT sequence_id, reward FROM dataset WHERE reward > 0 ORDER BY reward"
    )
    page.page.keyboard.press("Control+Enter")
    page.page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 2")
    page.page.get_by_role("button", name="Use as filter").click()
    page.page.wait_for_function("() => document.querySelectorAll('.dataset-page tbody tr').length === 2")
    page.expected = ("400",)
    page.open("sql?q=COPY%20(SELECT%201)%20TO%20%27x.csv%27")
    page.page.locator(".trouble").wait_for()


def test_keys_and_names_for_those_who_do_not_see(page: Page) -> None:
    page.open("seq?id=every&vids=h264")
    page.rest(1)
    unnamed = page.page.evaluate(
        """() => [...document.querySelectorAll("button, a[href], input, textarea")]
             .filter((one) => one.checkVisibility()
               && !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length || one.title))
             .map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    page.page.keyboard.press("?")
    page.page.get_by_role("dialog").get_by_text("play or pause").wait_for()
    page.page.keyboard.press("Escape")
    page.page.wait_for_function("() => !document.querySelector('dialog')")
    page.page.keyboard.press("g")
    page.page.get_by_label("step, time or id").fill("1.5s")
    page.page.keyboard.press("Enter")
    assert page.rest(1) == 45


@pytest.mark.soak
@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("path", ["", "seq?id=every", "cmp?id=every&id=short", "problems", "sql", "versions"])
def test_no_page_is_wider_than_its_window(browser: Any, server: Server, width: int, path: str) -> None:
    page = Page(browser, server, viewport={"width": width, "height": 800})
    page.open(path)
    page.page.locator("main").first.wait_for()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_films_of_all_kinds_are_there(page: Page) -> None:
    page.open(f"seq?id=every&f={STEPS // 2}")
    page.rest()
    assert page.numbers() == {name: frame_of(name, STEPS // 2) for name in FILMS}
