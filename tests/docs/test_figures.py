"""Every figure that README and docs give of speed names the page of results that holds it, and is what stands there."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from tests.tools import tool

ROOT = Path(__file__).parents[2]
figures = tool("figures")
PAGES = figures.pages()

COUNTS = "two|three|four|five|six|seven|eight|nine|ten|twenty|fifty|a? ?hundred|two hundred|a? ?thousand"
COMPARED = (
    "as (?:fast|quick|slow|long)|faster|slower|quicker|the (?:speed|time|processor|CPU|throughput)|less time|more time"
)
RATIOS = (
    re.compile(rf"\d[\d.,]*\]?(?:\([^)]*\))? times (?:{COMPARED})"),
    re.compile(rf"\b(?:{COUNTS}) times (?:{COMPARED})"),
    re.compile(
        r"\b(?:twice|half|a third|a quarter|a tenth) (?:of )?(?:as fast|the speed|the (?:CPU |processor )?time of)"
    ),
    re.compile(r"\d[\d.,]*\]?(?:\([^)]*\))? of (?:the|its|their|that|a memcpy|memcpy)[\w' ]* speed"),
    re.compile(r"\d[\d.,]*×|\b\d[\d.,]*x (?:faster|slower|as (?:fast|quick))"),
    re.compile(
        r"\b\d{1,3}(?:,\d{3})+ (?:frames|windows|samples|rows|steps)(?:/s| a second| per second| by one thread)"
    ),
)


def blocks(page: Path) -> list[str]:
    """Paragraphs; a table, a list and a block of code belong to the paragraph above them."""
    text = re.sub(r"^ *```.*?^ *```\s*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    parts: list[str] = []
    for part in re.split(r"\n\s*\n", text):
        if parts and not parts[-1].startswith("#") and re.match(r"\s*[|-]", part):
            parts[-1] += f"\n{part}"
        else:
            parts.append(part)
    return parts


def claims(page: Path) -> list[str]:
    """Ratios whose block names no page of results."""
    lacking = []
    for block in blocks(page):
        line = " ".join(block.split())
        bare = figures.FIGURE.sub(lambda match: match["text"], line)
        if any(pattern.search(bare) for pattern in RATIOS) and "benchmarks/results/" not in line:
            lacking.append(line[:200])
    return lacking


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_is_what_its_page_of_results_says(page: Path) -> None:
    """`scripts/figures` writes them anew."""
    assert figures.renewed(page) == page.read_text(), "run scripts/figures"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.is_relative_to(ROOT / "docs" / "design")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_ratio_names_the_page_that_holds_it(page: Path) -> None:
    assert not claims(page)


def test_every_number_of_the_pages_that_compare_is_a_figure() -> None:
    """The pages that advise and compare give no number of speed by hand."""
    for name in ("comparison.md", "choosing.md"):
        text = (ROOT / "docs" / name).read_text()
        assert len(figures.FIGURE.findall(text)) > 15, name
        bare = figures.FIGURE.sub("", text)
        by_hand = [match[0] for pattern in RATIOS for match in pattern.finditer(bare)]
        assert not by_hand, name


def test_ratios_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    for bad in ("It is 3.5 times as fast.", "At half the speed.", "Two hundred times as long.".lower(), "12x faster",
                "At 0.86 of the speed of theirs.", "- It reads 66,000 frames a second."):  # fmt: skip
        page.write_text(f"# Title\n\n{bad}\n")
        assert claims(page), bad
        page.write_text(f"# Title\n\n{bad} See [there](../benchmarks/results/prepare.md).\n")
        assert not claims(page), bad
    page.write_text("# Title\n\nShown 3 times, at 30 frames per second, and 200 times or two minutes.\n")
    assert not claims(page)


def test_keys_name_one_cell(tmp_path: Path) -> None:
    results = tmp_path / "one.md"
    results.write_text(
        "# One\n\n2026-01-02 08:00 UTC\n\n## First\n\n| | n | rate | rate | ratio |\n|---|---|---|---|---|\n"
        "| W=16 | 1 | 1,277 (0.75, 0.5) | 9 | 3.456 |\n| W=16 | 2 | 20,000 | 8 | 0.5 |\n\n"
        "## Second\n\n| | ratio |\n|---|---|\n| W=16 | 7 |\n"
    )
    value = figures.value
    assert value(results, "date") == "2026-01-02"
    assert value(results, "W=16, 1 > rate #1") == 1277
    assert value(results, "W=16, 1 > rate #1, in brackets") == Decimal("0.75")
    assert value(results, "W=16, 1 > rate #1, second in brackets") == Decimal("0.5")
    assert value(results, "W=16, 1 > rate #2") == 9
    assert value(results, "Second > W=16 > ratio") == 7
    assert value(results, "W=16, 1 > ratio ÷ W=16, 2 > ratio") == Decimal("6.912")
    for wrong in ("W=16 > ratio", "W=16, 1 > rate", "W=17 > ratio", "W=16, 1 > none", "W=16, 2 > ratio, in brackets"):
        with pytest.raises(ValueError, match="one was expected|no such number"):
            value(results, wrong)


@pytest.mark.parametrize(
    ("number", "like", "text"),
    [
        ("21.476", "21", "21"),
        ("3847.1", "3,800", "3,800"),
        ("0.4949", "0.49", "0.49"),
        ("1318577", "1,300,000", "1,300,000"),
        ("95", "100", "100"),
        ("0.983", "1.0", "1.0"),
        ("12.7", "9", "10"),
    ],
)
def test_a_figure_keeps_its_digits(number: str, like: str, text: str) -> None:
    assert figures.written(Decimal(number), like) == text


def test_a_figure_that_is_old_is_written_anew(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results" / "one.md"
    results.parent.mkdir(parents=True)
    results.write_text("| | ratio |\n|---|---|\n| W=16 | 7.26 |\n")
    page = tmp_path / "page.md"
    page.write_text('It is [6.1](benchmarks/results/one.md "W=16 > ratio") times as fast.\n')
    assert figures.renewed(page) == page.read_text().replace("6.1", "7.3")
