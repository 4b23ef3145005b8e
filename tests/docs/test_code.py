"""The code in README and docs runs as written."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    text = page.read_text()
    return [(text[: m.start(1)].count("\n"), m.group(1)) for m in BLOCK.finditer(text)]


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_page_runs_top_to_bottom(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's blocks share one namespace and one empty folder, as for somebody who types them in."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, code in blocks(page):
        # Newlines in front keep the page's own line numbers in tracebacks.
        exec(compile("\n" * line + code, str(page), "exec"), names)


# Rooms whose `>>>` examples need nothing but what they import; longer ones stand in fences.
EXAMPLES = ("spec", "files", "formats", "dataset", "conversion")


@pytest.mark.parametrize("room", EXAMPLES)
def test_examples_of_docstrings_give_what_they_say(room: str) -> None:
    package = importlib.import_module(f"seqlake.{room}")
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    told = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(one.failed for one in told) == 0
    if room in {"spec", "files"}:
        assert sum(one.attempted for one in told) > 10


def test_there_are_pages_with_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
