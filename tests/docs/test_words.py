"""Words of this project are explained where they first appear on a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WORDS = {
    "lane": r"\blanes?\b",
    "flat": r"\bflat\b",
    "publish": r"\bpublish(?:es|ed|ing)?\b",
    "side shard": r"\bside shards?\b",
}
WRITTEN_BY_SCRIPTS = {"cli.md", "rules.md"}
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if page.name not in WRITTEN_BY_SCRIPTS | {"glossary.md"} and not page.is_relative_to(DOCS / "design")
]


def unexplained(text: str) -> list[str]:
    """Words whose first paragraph neither defines them (`*word*`) nor leads to the glossary or to a page about them."""
    prose = re.sub(r"^ *```.*?^ *```\s*$|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    lacking = []
    for word, pattern in WORDS.items():
        first = next(
            (line for line in re.split(r"\n\s*\n|\n(?=[|#-])", prose) if re.search(pattern, line, re.IGNORECASE)), ""
        )
        linked = re.search(rf"\[[^\]]*{pattern}[^\]]*\]\(|\]\([^)]*#{word.replace(' ', '-')}", first, re.IGNORECASE)
        defined = re.search(rf"\*{pattern}\*", first, re.IGNORECASE)
        if first and not first.startswith("#") and not linked and not defined:
            lacking.append(f"{word}: {' '.join(first.split())[:120]}")
    return lacking


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_words_are_explained_where_they_first_appear(page: Path) -> None:
    assert not unexplained(page.read_text())


def test_the_glossary_has_them() -> None:
    text = (DOCS / "glossary.md").read_text()
    for word in WORDS:
        assert re.search(rf"^\| {word}[ ,]", text, re.MULTILINE), word


def test_what_is_not_explained_is_noticed() -> None:
    assert unexplained("# Title\n\nEach lane is mixed.\n")
    assert not unexplained("# Title\n\nEach *lane* is mixed.\n\nA lane more.\n")
    assert not unexplained("# Title\n\nSteps lie [flat](../glossary.md) there, in `lanes`.\n")
    assert len(unexplained("# Title\n\nA [lane](x.md).\n\n| it is published | in a side shard |\n")) == 2
