"""The source of the site, and what is wrong with what was built: `python _site.py copy|check CHECKOUT FOLDER`.

Pages link to files beside `docs/` (README, architecture, benchmarks' results). Of these, pages are copied in under
`project/`; other files of the checkout become their name alone, since the site holds no source.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def copy(checkout: Path, folder: Path) -> None:
    """Copy `docs/` and each page that it leads to."""
    docs = checkout / "docs"
    ahead = sorted(docs.rglob("*.md"))
    seen = set(ahead)

    def place(page: Path) -> Path:
        inside = page.is_relative_to(docs)
        name = page.relative_to(docs) if inside else Path("project", page.relative_to(checkout))
        return folder / "docs" / (name.with_name("overview.md") if name.name == "README.md" else name)

    while ahead:
        page = ahead.pop()

        def mapped(match: re.Match[str], page: Path = page) -> str:
            target = (page.parent / unquote(match[2])).resolve()
            if not target.is_relative_to(checkout) or not target.is_file() or target.suffix != ".md":
                return match[0] if target.is_relative_to(docs) and target.exists() else match[1]
            if target not in seen:
                seen.add(target)
                ahead.append(target)
            return f"[{match[1]}]({os.path.relpath(place(target), place(page).parent)}{match[3] or ''})"

        place(page).parent.mkdir(parents=True, exist_ok=True)
        parts = re.split(r"(^ *```.*?^ *```\s*$)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        place(page).write_text("".join(p if i % 2 else _LINK.sub(mapped, p) for i, p in enumerate(parts)))
    shutil.copy(checkout / "zensical.toml", folder / "zensical.toml")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember names, links, and what the browser fetches by itself."""
        values = dict(attrs)
        self.anchors.update(v for v in (values.get("id"), values.get("name")) if v)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        elif tag in {"script", "img", "iframe", "link", "source", "video"} and values.get("rel") != "canonical":
            self.loads += [v for v in (values.get("src"), values.get("href") if tag == "link" else None) if v]


def check(site: Path) -> list[str]:
    """Links and anchors that lead nowhere, and what would be fetched from elsewhere."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = _Page()
        pages[path].feed(path.read_text())
    wrong = [] if len(pages) > 50 else [f"more than 50 pages were expected, found {len(pages)}"]
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                wrong += [f"{path}: fetches {link}"] if link in page.loads and parts.scheme != "data" else []
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{path.relative_to(site)}: {link} leads nowhere")
            elif (
                parts.fragment and target in pages and unquote(parts.fragment) not in {*pages[target].anchors, "__skip"}
            ):
                wrong.append(f"{path.relative_to(site)}: {link} names no heading")
    return wrong


if __name__ == "__main__":
    if sys.argv[1] == "copy":
        copy(Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
    else:
        problems = check(Path(sys.argv[3]).resolve())
        print("\n".join(problems) or "Every link and anchor leads somewhere, and nothing is fetched from elsewhere.")  # noqa: T201
        sys.exit(bool(problems))
