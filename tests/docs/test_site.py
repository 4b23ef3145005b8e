"""The source of the site holds every page, and no link leads out of it. `scripts/docs` judges what is built from it."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.tools import tool

import seqlake as sl
from seqlake import plugins

ROOT = Path(__file__).parents[2]


PUBLIC = (
    *("errors", "media", "ray", "spark", "protocols", "abilities", "formats"),
    *(f"compat.{name}" for name in ("l5kit", "lerobot", "mosaicml")),
    *(f"testing.{name}" for name in ("samples", "executors", "formats", "media", "shards", "stores", "tables")),
)
"""Modules whose names are for users."""

ALIASES = {"Ints", "Depth", "Kind", "Need"}
"""Names of types, which cannot have a docstring."""


@pytest.fixture(scope="module")
def site() -> Any:
    return tool("_site.py")


@pytest.fixture(scope="module")
def source(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the site, for all tests that only read it."""
    folder = tmp_path_factory.mktemp("source")
    site.copy(ROOT, folder)
    return folder


def test_no_link_leads_out(source: Path) -> None:
    docs = source / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")} <= pages
    assert {"project/overview.md", "project/ARCHITECTURE.md", "project/benchmarks/results/loader.md"} <= pages
    for page in docs.rglob("*.md"):
        text = re.sub(r"^ *```.*?^ *```\s*$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)\s]*)?(?: \"[^\"]*\")?\)", text):
            target = (page.parent / link).resolve()
            assert target.is_relative_to(docs), (page, link)
            assert target.is_file(), (page, link)
    assert "](../../examples" not in (docs / "reference" / "loader.md").read_text()
    assert (docs / "gallery" / "show.svg").exists()


def test_every_public_name_has_its_place_in_the_reference(source: Path) -> None:
    """Of `sl`, and of each public module below it."""
    pages = "\n".join(page.read_text() for page in (source / "docs" / "reference" / "api").glob("*.md"))
    places = dict(re.findall(r"^::: (\S+)\n    options:\n      heading: (\S+)$", pages, flags=re.MULTILINE))
    names = set(places.values())
    of_sl = [f"sl.{name}" for name in sl.__all__ if not isinstance(getattr(sl, name), ModuleType)]
    lacking, checked = [name for name in of_sl if name not in names], len(of_sl)
    for name in (*PUBLIC, *(f"formats.{plug}" for plug in plugins.names("formats"))):
        module = import_module(f"seqlake.{name}")
        listed = getattr(module, "__all__", None) or [
            one
            for one, value in vars(module).items()
            if not one.startswith("_") and getattr(value, "__module__", None) == module.__name__
        ]
        lacking += [f"sl.{name}.{one}" for one in listed if f"seqlake.{name}.{one}" not in places]
        checked += len(listed)
    assert checked > 250
    assert not lacking, "scripts/_api.py lists the names of `sl` and the public modules"
    assert len(places) == len(names)
    for path in places:
        module, _, name = path.rpartition(".")
        assert getattr(import_module(module), name).__doc__ or name.isupper() or name in ALIASES, path


def test_names_of_the_reference_lead_to_their_place(source: Path) -> None:
    table = (source / "docs" / "reference" / "index.md").read_text().partition("| names in `sl` |")[2]
    for name in sl.__all__:
        assert re.search(rf"\[`{name}`\](\[seqlake\.|\(api/)", table), name


def test_the_site_says_its_version_and_where_to_edit(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(site.REPOSITORY, "https://example.org/seqlake")
    site.copy(ROOT, tmp_path)
    project = tomllib.loads((tmp_path / "zensical.toml").read_text())["project"]
    assert project["site_name"] == f"seqlake {sl.__version__}"
    assert project["repo_url"] == "https://example.org/seqlake"
    edit = "https://example.org/seqlake/edit/main/docs"
    page = tmp_path / "page.html"
    page.write_text(
        f'<a title="Edit" href="{edit}/guide/index.md">x</a><a href="{edit}/project/overview.md">x</a>'
        f'<a href="{edit}/project/benchmarks/results/loader.md">x</a>'
        f'<a class="b" href="{edit}/reference/api/schema.md"><p>x</p></a>'
    )
    site.mend(tmp_path)
    there = re.findall(r'href="([^"]*)"', page.read_text())
    assert there == [
        f"{edit}/guide/index.md",
        *(f"https://example.org/seqlake/edit/main/{name}" for name in ("README.md", "benchmarks/results/loader.md")),
    ]
    monkeypatch.delenv(site.REPOSITORY)
    assert "repo_url" not in tomllib.loads(site.settings(ROOT, tmp_path / "docs"))["project"]


def test_every_page_is_in_the_navigation(source: Path) -> None:
    project = tomllib.loads((source / "zensical.toml").read_text())["project"]

    def listed(entry: Any) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        parts = entry.values() if isinstance(entry, dict) else entry
        return [page for part in parts for page in listed(part)]

    pages = [page.relative_to(source / "docs").as_posix() for page in (source / "docs").rglob("*.md")]
    assert sorted(listed(project["nav"])) == sorted(pages)
    assert listed(project["nav"])[:2] == ["index.md", "start/index.md"]


def test_what_is_wrong_in_a_built_page_is_noticed(site: Any, tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"page{number}.html").write_text('<h1 id="here">x</h1><a href="page1.html#here">x</a>')
    assert site.check(tmp_path) == []
    for bad in ('<a href="gone.html">', '<a href="page1.html#gone">', '<script src="https://example.org/a.js">'):
        (tmp_path / "page0.html").write_text(bad)
        assert len(site.check(tmp_path)) == 1, bad


def test_each_version_has_a_folder_and_the_newest_is_shown(site: Any, tmp_path: Path) -> None:
    """Built again, a version's folder is replaced; those of others stay, and what is no version goes."""
    there = tmp_path / "site"
    for number, version in enumerate(["0.9.0", "0.10.0", "0.10.0rc1", "0.9.0"]):
        built = tmp_path / "built"
        built.mkdir()
        (built / "index.html").write_text(f"{version}, built {number}")
        (there / "guide").mkdir(parents=True, exist_ok=True)
        site.place(built, there, version)
    assert sorted(one.name for one in there.iterdir()) == [
        "0.10.0",
        "0.10.0rc1",
        "0.9.0",
        "index.html",
        "versions.json",
    ]
    assert (there / "0.9.0" / "index.html").read_text() == "0.9.0, built 3"
    listed = json.loads((there / "versions.json").read_text())
    assert [one["version"] for one in listed] == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert "url=0.10.0/" in (there / "index.html").read_text()
