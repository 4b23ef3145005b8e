"""The source of the site holds every page, and no link leads out of it. `scripts/docs` judges what is built from it."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> Any:
    loader = SourceFileLoader("_site", str(ROOT / "scripts" / "_site.py"))
    module = module_from_spec(spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def test_no_link_leads_out(site: Any, tmp_path: Path) -> None:
    site.copy(ROOT, tmp_path)
    docs = tmp_path / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} <= pages
    assert {"project/overview.md", "project/ARCHITECTURE.md", "project/benchmarks/results/loader.md"} <= pages
    for page in docs.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```\s*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)]*)?\)", text):
            target = (page.parent / link).resolve()
            assert target.is_relative_to(docs), (page, link)
            assert target.is_file(), (page, link)
    assert "](../../examples" not in (docs / "reference" / "loader.md").read_text()


def test_what_is_wrong_in_a_built_page_is_noticed(site: Any, tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"page{number}.html").write_text('<h1 id="here">x</h1><a href="page1.html#here">x</a>')
    assert site.check(tmp_path) == []
    for bad in ('<a href="gone.html">', '<a href="page1.html#gone">', '<script src="https://example.org/a.js">'):
        (tmp_path / "page0.html").write_text(bad)
        assert len(site.check(tmp_path)) == 1, bad
