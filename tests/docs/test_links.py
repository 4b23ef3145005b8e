"""Every link and anchor of README and docs leads somewhere, and every page of docs can be reached."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
BESIDE = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")]
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?\s*$", re.MULTILINE)


@cache
def _prose(page: Path) -> str:
    """The page without its code, in which brackets are no links and `#` begins no heading."""
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2`*\s*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def _links(page: Path) -> list[str]:
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "code", _prose(page), flags=re.DOTALL)
    targets = _LINK.findall(text) + _REFERENCE.findall(text)
    return [target for target in targets if not re.match(r"[a-z][a-z0-9+.-]*:", target)]


@cache
def _anchors(page: Path) -> frozenset[str]:
    """As GitHub names them: lower case, no punctuation, hyphens for spaces, a number where a name comes again."""
    names: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _prose(page), flags=re.MULTILINE):
        label = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", label.lower()).replace(" ", "-")
        names.add(next(each for i in range(99) if (each := f"{name}-{i}" if i else name) not in names))
    return frozenset(names)


def _target(page: Path, link: str) -> tuple[Path, str]:
    path, _, anchor = unquote(link).partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


def _wrong(page: Path) -> list[str]:
    wrong = []
    for link in _links(page):
        target, anchor = _target(page, link)
        if not target.exists() or not target.is_relative_to(ROOT):
            wrong.append(f"{link}: nothing is there")
        elif target.is_dir():
            wrong.append(f"{link}: a folder is no page, name the file")
        elif anchor and anchor not in _anchors(target):
            wrong.append(f"{link}: no such heading; there are {sorted(_anchors(target))}")
    return wrong


def _reached(start: Path) -> set[Path]:
    seen, ahead = {start}, [start]
    while ahead:
        page = ahead.pop()
        for target in (_target(page, link)[0] for link in _links(page)):
            if (
                target not in seen
                and target.suffix == ".md"
                and target.is_relative_to(start.parent)
                and target.exists()
            ):
                seen.add(target)
                ahead.append(target)
    return seen


@pytest.mark.parametrize("page", [*BESIDE, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_anchor_leads_somewhere(page: Path) -> None:
    assert not _wrong(page)


def test_every_page_can_be_reached_from_the_first() -> None:
    assert set(PAGES) - _reached(DOCS / "index.md") == set()


def test_every_design_page_has_its_sentence() -> None:
    index = DOCS / "design" / "index.md"
    rows = re.findall(r"^\| \[[^\]]+\]\(([\w-]+\.md)\) \| [^|]{20,}\. \|$", index.read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(page.name for page in index.parent.glob("*.md") if page != index)


def test_the_links_are_seen() -> None:
    """Else the tests above would pass over pages that they cannot read."""
    links = {link for page in [*BESIDE, *PAGES] for link in _links(page)}
    assert len(links) > 150
    assert any("#" in link for link in links)


def test_what_is_wrong_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "index.md"
    (tmp_path / "other.md").write_text("# A `b`, c\n\n# A `b`, c\n\n```\n# no heading\n```\n")
    (tmp_path / "alone.md").write_text("[out](https://example.org)\n")
    good = "[1](other.md#a-b-c) [2](other.md#a-b-c-1) [3](#here) `[4](gone.md)`\n\n```\n[5](gone.md)\n```\n\n## Here\n"
    page.write_text(good)
    assert not _wrong(page)
    assert _reached(page) == {page, tmp_path / "other.md"}
    for bad in ("gone.md", "other.md#no-heading", "#there", "../index.md", "."):
        other = tmp_path / f"bad{len(bad)}.md"
        other.write_text(f"[text]({bad})\n\n[again][x]\n\n[x]: {bad}\n")
        assert len(_wrong(other)) == 2, bad
