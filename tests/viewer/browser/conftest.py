"""A browser, and what it looks at."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.viewer.browser.viewing import ARGUMENTS, Page, Server, make

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the dataset; nobody writes to it."""
    folder = tmp_path_factory.mktemp("viewer")
    make(folder / "films", folder / "work")
    return folder / "films"


@pytest.fixture(scope="session")
def server(browser: Any, made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A viewer of that dataset."""
    running = Server(made)
    yield running
    running.stop()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    """A page of the viewer at 1280 pixels."""
    opened = Page(browser, server)
    yield opened
    opened.close()
