"""Judge what `scripts/release` built: `python _release.py CHECKOUT FOLDER`. Needs nothing but Python."""

from __future__ import annotations

import re
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

LIMIT = 8 * 2**20
"""Bytes of one file; ten times what text alone takes would mean that data slipped in."""

_RELATIVE = re.compile(r"\[([^\[\]]+)\]\((?![a-z][a-z0-9+.-]*:|#)([^)\s]+)\)")

WANTED = ("ARCHITECTURE.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")
UNWANTED = re.compile(r"(^|/)(\.venv[^/]*|__pycache__|\.git|dist|site)/|\.pyc$|(^|/)\.(env|netrc|pypirc)$")


def described(readme: str, repository: str | None = None) -> str:
    """The README as a package index shows it, beside no other file.

    Args:
        readme: Its text.
        repository: Where the source can be looked at. Links to other files lead there; without, they become their text.
    """

    def link(match: re.Match[str]) -> str:
        return f"[{match[1]}]({repository.rstrip('/')}/blob/main/{match[2]})" if repository else match[1]

    parts = re.split(r"(^ *```.*?^ *```\s*$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if n % 2 else _RELATIVE.sub(link, part) for n, part in enumerate(parts))


def repository_of(checkout: Path) -> str | None:
    """Where pyproject.toml says that the source lies."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    address: str | None = project.get("urls", {}).get("Repository")
    return address


def strangers_miss(checkout: Path, inside: set[str], source: set[str], about: Message) -> list[str]:
    """Licences of others, types and the changes of this version, where they are not handed out."""
    licences = about.get_all("License-File") or []
    wrong = [
        f"{name} is no licence file of the wheel"
        for name in sorted(source)
        if re.match(r"src/.*LICENSE", name) and name not in licences
    ]
    wrong += [
        f"the wheel lacks {name}: types would not reach whoever installs it"
        for name in ("seqlake/py.typed", "seqlake/__init__.pyi")
        if name not in inside
    ]
    headings = re.findall(r"^## (\S+)", (checkout / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    if headings[:1] != [about["Version"]]:
        wrong.append(f"CHANGELOG.md begins with {headings[:1]}, expected {about['Version']}")
    return wrong


def judge(checkout: Path, folder: Path) -> list[str]:
    """What is wrong with the one wheel and the one sdist in the folder."""
    version = re.findall(
        r'^__version__ = "(.+)"$', (checkout / "src/seqlake/__init__.py").read_text(), flags=re.MULTILINE
    )[0]
    wheel = folder / f"seqlake-{version}-py3-none-any.whl"
    sdist = folder / f"seqlake-{version}.tar.gz"
    gone = [f"{path.name} was expected in {folder}" for path in (wheel, sdist) if not path.exists()]
    if gone:
        return gone
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
        about = message_from_string(archive.read(f"seqlake-{version}.dist-info/METADATA").decode())
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    wrong = [f"{path.name} has {path.stat().st_size:,} bytes" for path in (wheel, sdist) if path.stat().st_size > LIMIT]
    wrong += [f"it holds {name}" for name in sorted(inside | source) if UNWANTED.search(name)]
    # Every file of the package, page and test is handed out.
    for top in ("src", "docs", "tests"):
        files = (p for p in (checkout / top).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        names = {p.relative_to(checkout).as_posix() for p in files if not p.name.endswith((".pyc", ".egg-info"))}
        wrong += [f"the sdist lacks {name}" for name in sorted(names - source) if ".egg-info/" not in name]
        if top == "src":
            wrong += [
                f"the wheel lacks {name}"
                for name in sorted(names)
                if name[4:] not in inside | {""} and ".egg-info/" not in name
            ]
    wrong += [f"the sdist lacks {name}" for name in WANTED if name not in source]
    wrong += [
        f"the wheel holds {name}" for name in sorted(inside) if not re.match(r"seqlake(-[\w.]+\.dist-info)?/", name)
    ]
    for name in about.get_all("License-File") or ["a licence file"]:
        if f"seqlake-{version}.dist-info/licenses/{name}" not in inside or name not in source:
            wrong.append(f"{name} is not handed out")
    wrong += strangers_miss(checkout, inside, source, about)
    if about["Version"] != version or about["License-Expression"] != "Apache-2.0" or not about["Requires-Python"]:
        wrong.append("version, licence or Python of the metadata differ from the project's")
    if (
        about["Description-Content-Type"] != "text/markdown"
        or about.get_payload().strip()
        != described((checkout / "README.md").read_text(), repository_of(checkout)).strip()
    ):
        wrong.append("the description is not the README with links that lead somewhere")
    return wrong


if __name__ == "__main__":
    problems = judge(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(problems) or "Contents, metadata, licence files and sizes are as they should be.")  # noqa: T201
    sys.exit(bool(problems))
