"""The built site in a browser: every page in both themes, the search, the six ways in, versions; no other machine."""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.tools import tool

import seqlake as sl

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATHS = ("lerobot", "rlds-or-hdf5", "mosaicml", "l5kit", "lake", "own-files")
OLDER = "0.0.9"
"""Another version that the site has: one page."""

SEARCHES = {"LeRobotDataset": "lerobot", "normalize": "loader", "checksum": "checksums"}
"""What is looked for -> a part of the address of one of the first results."""

PARTS = 8
"""Tests that share the pages of the site, as all of them take longer than one test may."""

KINDS = ["/", "/gallery/", "/comparison/", "/reference/cli/", "/reference/api/training/", "/project/overview/"]
OTHER_THEME = "[...document.querySelectorAll('[data-md-component=palette] label')].find(one => !one.hidden).click()"


class Site(NamedTuple):
    """A version's folder in the site as built, and where it is served."""

    folder: Path
    address: str

    def pages(self) -> list[str]:
        """Addresses of all pages, from the root."""
        found = sorted(self.folder.rglob("index.html"))
        return [f"/{one.parent.relative_to(self.folder).as_posix()}/".replace("/./", "/") for one in found]


def build(tools: Any, folder: Path) -> None:
    """The site, in a folder that is there only if that went well."""
    work = folder.with_suffix(".work")
    tools.copy(ROOT, work)
    command = [sys.executable, "-c", "from zensical.main import cli; cli()", "build", "--clean", "--strict"]
    ended = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tools.mend(work / "site")
    older = work / OLDER
    older.mkdir()
    shutil.copy(work / "site" / "sitemap.xml", older)
    (older / "index.html").write_text('<!doctype html><link rel="icon" href="data:,"><h1>The older one</h1>')
    for built, version in ((older, OLDER), (work / "site", sl.__version__)):
        tools.place(built, work / "all", version)
    work.rename(folder)


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def tools() -> Any:
    return tool("_site.py")


@pytest.fixture(scope="module")
def site(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Built once, as `scripts/docs` does, by whichever test process comes first, and served on this machine."""
    if find_spec("zensical") is None or find_spec("mkdocstrings_handlers") is None:
        pytest.skip("zensical and mkdocstrings are not installed: the extra `dev` brings them")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site-of-docs"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            build(tools, folder)
    handler = functools.partial(Quiet, directory=str(folder / "all"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield Site(folder / "all" / sl.__version__, f"http://127.0.0.1:{server.server_port}/{sl.__version__}")
    server.shutdown()
    server.server_close()
    thread.join()


class Reader:
    """A browser with one page, which notes what goes wrong."""

    def __init__(self, browser: Any, site: Site) -> None:
        self.site = site
        self.wrong: list[str] = []
        self.context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("console", lambda one: self.wrong.append(f"console: {one.text}") if one.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.context.on("request", self._note)
        self.context.on(
            "response", lambda one: self.wrong.append(f"{one.status}: {one.url}") if one.status >= 400 else None
        )

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.site.address.rpartition("/")[0], "data:", "blob:")):
            self.wrong.append(f"asks another machine: {request.url}")

    def _failed(self, request: Any) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # the page was left before all of it had come
            self.wrong.append(f"failed: {request.url}")

    def go(self, path: str) -> None:
        self.page.goto(self.site.address + path)

    def theme(self) -> tuple[str, str]:
        """The name of the theme, and what is seen of it."""
        name = self.page.locator("body").get_attribute("data-md-color-scheme")
        return name, self.page.evaluate("getComputedStyle(document.body).backgroundColor")

    def search(self, term: str) -> list[str]:
        """Addresses that the search finds for a term, best first."""
        self.page.locator("button.md-search__button").click()
        self.page.locator("dialog input[role=combobox]").fill(term)
        self.page.locator("dialog a[role=option]").first.wait_for()
        return [one.get_attribute("href") or "" for one in self.page.locator("dialog a[role=option]").all()]


@pytest.fixture(scope="module")
def reader(site: Site) -> Iterator[Reader]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield Reader(browser, site)
        browser.close()


def test_links_and_anchors_of_the_built_site_lead_somewhere(tools: Any, site: Site) -> None:
    assert tools.check(site.folder) == []


def test_every_public_name_is_on_a_page(tools: Any, site: Site) -> None:
    """With its signature and its docstring."""
    pages = "".join(page.read_text() for page in (site.folder / "reference" / "api").rglob("*.html"))
    for names in tools._api.entries(ROOT / "src").values():
        for entry in names:
            assert f'id="{entry.path}"' in pages, entry


def look(reader: Reader, pages: list[str]) -> None:
    """Each page in both themes."""
    reader.wrong.clear()
    for path in pages:
        reader.go(path)
        before = reader.theme()
        reader.page.evaluate(OTHER_THEME)
        themes = {before, reader.theme()}
        assert {name for name, _ in themes} == {"default", "slate"}, path
        assert len({shade for _, shade in themes}) == 2, path
        assert reader.page.locator("article h1").count() == 1, path
        assert not reader.wrong, (path, reader.wrong)


def test_pages_of_each_kind_are_shown_in_both_themes(reader: Reader) -> None:
    assert set(KINDS) <= set(reader.site.pages())
    look(reader, KINDS)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_every_page_is_shown_in_both_themes(reader: Reader, part: int) -> None:
    pages = reader.site.pages()
    assert len(pages) > 100
    look(reader, pages[part::PARTS])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("term", SEARCHES)
def test_the_search_finds(reader: Reader, term: str) -> None:
    reader.wrong.clear()
    reader.go("/")
    hits = reader.search(term)
    assert any(SEARCHES[term] in hit for hit in hits[:5]), hits
    reader.page.locator("dialog a[role=option]").first.click()
    reader.page.wait_for_url(lambda address: "?h=" in address)
    assert term.lower() in reader.page.locator("article").inner_text().lower()
    assert not reader.wrong


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", PATHS)
def test_the_six_ways_in_are_followed(reader: Reader, name: str) -> None:
    """From the first page by clicking alone, to the code and on to the next page."""
    reader.wrong.clear()
    page = reader.page
    reader.go("/")
    page.locator("article").get_by_role("link", name="First batches", exact=True).click()
    page.locator(f'article a[href*="{name}"]').first.click()
    page.wait_for_url(f"**/start/{name}/")
    assert "import seqlake as sl" in page.locator("article .highlight code").first.inner_text()
    page.locator("article table a").last.click()
    page.wait_for_url(lambda address: f"/start/{name}/" not in address)
    assert page.locator("article h1").count() == 1
    assert not reader.wrong


def test_the_version_is_shown(reader: Reader) -> None:
    reader.go("/")
    assert f"seqlake {sl.__version__}" in reader.page.locator("header").inner_text()


def test_another_version_can_be_chosen(reader: Reader) -> None:
    reader.wrong.clear()
    reader.go("/gallery/")
    chooser = reader.page.locator(".md-version")
    assert sl.__version__ in chooser.locator("button").inner_text()
    chooser.hover()
    chooser.get_by_role("link", name=OLDER, exact=True).click()
    reader.page.wait_for_url(f"**/{OLDER}/**")
    assert reader.page.locator("h1").inner_text() == "The older one"
    assert not reader.wrong


def test_the_first_page_of_the_site_leads_to_the_newest_version(reader: Reader) -> None:
    reader.page.goto(reader.site.address.rpartition("/")[0])
    reader.page.wait_for_url(f"**/{sl.__version__}/")
    assert reader.page.locator("article h1").count() == 1
