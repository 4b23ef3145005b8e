"""What a release says of itself is said once, and what it hands out is complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from click.testing import CliRunner
from tests.tools import tool

import seqlake
from seqlake.cli._main import cli
from seqlake.versions.format import writer_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version", "readme"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.+)"$', source.read_text(), flags=re.MULTILINE) == [seqlake.__version__]
    assert f"version {seqlake.__version__}" in CliRunner().invoke(cli, ["--version"]).output
    assert writer_name() == f"seqlake {seqlake.__version__}"


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == seqlake.__version__
    assert len(set(headings)) == len(headings)


def test_the_citation_names_this_project() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    fields = dict(re.findall(r'^([a-z-]+): "?(.*?)"?$', text, flags=re.MULTILINE))
    assert fields["cff-version"] == "1.2.0"
    assert fields["title"] == PROJECT["project"]["name"]
    assert fields["license"] == PROJECT["project"]["license"]
    assert fields["version"] == seqlake.__version__
    assert PROJECT["project"]["description"] in fields["abstract"]


def test_each_bound_of_the_project_is_what_the_matrix_begins_with() -> None:
    """`scripts/matrix --resolve` writes the files."""
    extras = PROJECT["project"]["optional-dependencies"]
    for row in tool("_matrix.py").ROWS:
        if not row.constraints.startswith("oldest"):
            continue
        text = (ROOT / "constraints" / f"{row.constraints}.txt").read_text()
        pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.MULTILINE))
        bounds: dict[str, list[str]] = {}
        of_extras = [one for name in row.extras for one in extras[name]]  # they may ask for a newer one of the base's
        for one in of_extras or PROJECT["project"]["dependencies"]:
            if found := re.match(r"([\w.-]+)(?:\[.*\])?>=([\d.]+)", one):
                bounds.setdefault(found[1].replace("_", "-"), []).append(found[2])
        for name, named in bounds.items():
            there = (pinned[name] + ".").startswith(tuple(bound + "." for bound in named))
            assert there, f"{row.name} has {name} {pinned[name]}, of {named}: run scripts/matrix --resolve"


def test_files_of_others_bring_their_licences() -> None:
    """Each licence that lies beside what it is for is one that a wheel names."""
    named = {path for pattern in PROJECT["project"]["license-files"] for path in ROOT.glob(pattern)}
    assert named >= {path for path in (ROOT / "src").rglob("*LICENSE*") if path.is_file()}
    assert len(named) >= 5


def test_the_source_distribution_names_what_is_there() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all(pattern.startswith("/") for pattern in included), "else a folder of that name is taken anywhere"
    assert not [pattern for pattern in included if not list(ROOT.glob(pattern[1:]))]
    assert {"/src", "/tests", "/docs", "/constraints", "/*.md", "/LICENSE"} <= set(included)


def test_no_link_of_the_description_needs_another_file() -> None:
    """A package index shows the README alone."""
    release = tool("_release.py")
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len([link for link in links if "://" not in link]) > 10
    bare = release.described(readme)
    assert not [link for link in re.findall(r"\]\(([^)\s]+)\)", bare) if "://" not in link]
    assert "| Guide | the whole way, from arrays to batches |" in bare
    assert 'batch["action"]' in bare
    absolute = release.described(readme, "https://example.org/seqlake/")
    assert "[Guide](https://example.org/seqlake/blob/main/docs/guide/index.md)" in absolute
    assert len(re.findall(r"\]\(https://example.org/seqlake/blob/main/", absolute)) == len(links)


def test_nothing_is_to_be_installed_from_an_index() -> None:
    """There is no release there; an extra of an installed seqlake can be added by name."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert not re.findall(r"pip install (?:-U |--upgrade )?[\'\"]?seqlake(?![\w.*-]|\[|-\*)", page.read_text()), (
            page
        )


def test_the_site_is_built_by_the_same_packages_everywhere() -> None:
    pins = set((ROOT / "scripts" / "docs-requirements.txt").read_text().split())
    assert pins <= set(PROJECT["project"]["optional-dependencies"]["dev"])
