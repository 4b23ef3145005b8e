"""The source of the site, what is wrong with what was built, and where it is put.

`python _site.py copy CHECKOUT FOLDER`, and `python _site.py finish CHECKOUT BUILT SITE`.

Pages link to files beside `docs/` (README, architecture, benchmarks' results). Of these, pages are copied in under
`project/`; other files of the checkout become their name alone, since the site holds no source. The pages of the API
reference are made here (`_api.py`), and so are the order of all pages and what only the project's files know: its
version and the address of its repository. Each version has a folder of its own in the site, so that readers can choose.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?( \"[^\"]*\")?\)")
REPOSITORY = "SEQLAKE_REPOSITORY"
"""The variable with the address of the repository, where `[project.urls]` of pyproject.toml names none."""

_BRANCH = "edit/main"
_ORDER = ("index.md", "start", "guide", "how-to", "choosing.md", "comparison.md", "gallery.md", "reference", "design")
_TITLES = {"start": "First batches", "guide": "Guide", "how-to": "How to", "reference": "Reference", "design": "Design",
           "api": "API", "formats": "Formats", "project": "Project", "results": "Results"}  # fmt: skip

_spec = importlib.util.spec_from_file_location("_api", Path(__file__).with_name("_api.py"))
assert _spec is not None
assert _spec.loader is not None
_api = importlib.util.module_from_spec(_spec)
sys.modules["_api"] = _api
_spec.loader.exec_module(_api)


def copy(checkout: Path, folder: Path) -> None:
    """Copy `docs/` and each page that it leads to, and add what is made."""
    _copy_pages(checkout, folder)
    docs, source = folder / "docs", checkout / "src"
    (docs / "reference" / "api").mkdir(exist_ok=True)
    for page in _api.entries(source):
        (docs / "reference" / "api" / f"{page}.md").write_text(_api.text(source, page))
    (docs / "reference" / "api" / "index.md").write_text(_api.index(source))
    reference = docs / "reference" / "index.md"
    reference.write_text(_api.linked(source, reference.read_text()))
    for module in source.rglob("*.py"):
        place = folder / "src" / module.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        # The parser knows `Examples` as a section; `Example` would be prose, and `>>>` in it a quotation.
        place.write_text(re.sub(r"^( +)Example:$", r"\1Examples:", module.read_text(), flags=re.MULTILINE))
    (folder / "zensical.toml").write_text(settings(checkout, docs))


def version_of(checkout: Path) -> str:
    """What the package says of itself."""
    text = (checkout / "src/seqlake/__init__.py").read_text()
    return re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)[0]


def settings(checkout: Path, docs: Path) -> str:
    """`zensical.toml` with the version, the order of pages, and links to edit them where the repository is known."""
    version = version_of(checkout)
    urls = tomllib.loads((checkout / "pyproject.toml").read_text())["project"].get("urls", {})
    repository = os.environ.get(REPOSITORY) or urls.get("Repository")
    lines = [f"nav = {_toml(_navigation(docs))}", f'copyright = "seqlake {version}, Apache-2.0"']
    if repository:
        lines += [f"repo_url = {json.dumps(repository)}", f'edit_uri = "{_BRANCH}/docs/"']
    text = (checkout / "zensical.toml").read_text().replace('site_name = "seqlake"', f'site_name = "seqlake {version}"')
    return text.replace("[project]\n", "[project]\n" + "\n".join(lines) + "\n", 1)


def _navigation(docs: Path) -> list[object]:
    """Pages in the order in which they are read: as listed, then by name; an index comes first."""
    first = [docs / name for name in _ORDER]
    rest = sorted((one for one in docs.iterdir() if one not in first), key=lambda one: (one.is_dir(), one.name))

    def entry(place: Path) -> object:
        if place.is_file():
            return place.relative_to(docs).as_posix()
        first = ["index", *(_api.titles() if place.name == "api" else ())]
        known = {name: number for number, name in enumerate(first)}
        inside = sorted(place.iterdir(), key=lambda one: (known.get(one.stem, len(known)), one.is_dir(), one.name))
        pages = [entry(one) for one in inside if one.suffix == ".md" or (one.is_dir() and list(one.rglob("*.md")))]
        return {_TITLES.get(place.name, place.name.replace("-", " ").capitalize()): pages}

    return [entry(one) for one in [*first, *rest] if one.exists() and (one.suffix == ".md" or list(one.rglob("*.md")))]


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _copy_pages(checkout: Path, folder: Path) -> None:
    docs = checkout / "docs"
    for picture in docs.rglob("*"):
        if picture.is_file() and picture.suffix != ".md":
            place_of_it = folder / "docs" / picture.relative_to(docs)
            place_of_it.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, place_of_it)
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
            return f"[{match[1]}]({os.path.relpath(place(target), place(page).parent)}{match[3] or ''}{match[4] or ''})"

        place(page).parent.mkdir(parents=True, exist_ok=True)
        parts = re.split(r"(^ *```.*?^ *```\s*$)", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        place(page).write_text("".join(p if i % 2 else _LINK.sub(mapped, p) for i, p in enumerate(parts)))


def mend(site: Path) -> None:
    """Make links to edit a page lead to the file that it was made of; one that was made of docstrings has none."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        new = re.sub(rf'<a [^>]*href="[^"]*{_BRANCH}/docs/reference/api/[^"]*"[^>]*>.*?</a>', "", text, flags=re.DOTALL)
        new = re.sub(
            rf"({_BRANCH}/)docs/project/([^\"]*)", lambda m: m[1] + re.sub(r"\boverview\.md$", "README.md", m[2]), new
        )
        if new != text:
            path.write_text(new)


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


_VERSION = re.compile(r"(\d+(?:\.\d+)+)(\D.*)?")


def _age(version: str) -> tuple[list[int], bool, str]:
    """Versions in the order of their numbers; what leads to a version comes before it."""
    numbers, rest = re.findall(_VERSION, version)[0]
    return [int(one) for one in numbers.split(".")], not rest, rest


def place(built: Path, site: Path, version: str) -> None:
    """Put what was built into the version's folder of the site, in which those of other versions stay.

    The theme's list of versions reads `versions.json` beside them; the site's first page leads to the newest one.

    Args:
        built: A built folder, which is moved.
        site: The site; what is no version's folder is removed there, but for hidden names.
        version: Of what was built.
    """
    site.mkdir(exist_ok=True)
    for one in [one for one in site.iterdir() if not one.name.startswith(".")]:
        if one.is_file():
            one.unlink()
        elif one.name == version or not _VERSION.fullmatch(one.name) or not (one / "index.html").exists():
            shutil.rmtree(one)
    shutil.move(built, site / version)
    versions = sorted(
        (one.name for one in site.iterdir() if one.is_dir() and not one.name.startswith(".")), key=_age, reverse=True
    )
    listed = [{"version": one, "title": one, "aliases": []} for one in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=2) + "\n")
    newest = versions[0]
    (site / "index.html").write_text(
        f'<!doctype html>\n<meta charset="utf-8">\n<title>seqlake {newest}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={newest}/">\n<a href="{newest}/">seqlake {newest}</a>\n'
    )


if __name__ == "__main__":
    if sys.argv[1] == "copy":
        copy(Path(sys.argv[2]).resolve(), Path(sys.argv[3]).resolve())
    else:
        pages = Path(sys.argv[3]).resolve()
        mend(pages)
        problems = check(pages)
        print("\n".join(problems) or "Every link and anchor leads somewhere, and nothing is fetched from elsewhere.")  # noqa: T201
        if not problems:
            place(pages, Path(sys.argv[4]).resolve(), version_of(Path(sys.argv[2])))
        sys.exit(bool(problems))
