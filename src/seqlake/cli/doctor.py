"""`seqlake doctor`: what is installed, what is missing, how large it is."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from seqlake.cli._output import Output, output_options, size, table

NO_PART = frozenset({"all", "dev"})  # extras that say nothing of what a package is for


@click.command()
@output_options
def command(*, output: Output) -> None:
    """Say which packages are installed, which extras are missing, and how much disk they take."""
    rows: list[dict[str, Any]] = [_package("seqlake", "")]
    rows += [_package(name, part) for name, part in _needed()]
    total = sum(row["nbytes"] for row in rows if row["part"] in {"", "core"})
    system = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "hard_links_and_fork": sys.platform == "linux",
    }
    cells = [
        [row["package"], row["version"] or "missing", size(row["nbytes"]) if row["version"] else "",
         "" if row["version"] else f"pip install 'seqlake[{row['part']}]'"]
        for row in rows
    ]  # fmt: skip
    text = table(cells, head=["package", "version", "size", "to install"], fit=output.truncate)
    text += f"\n\nPython {system['python']} on {system['platform']}\ncore packages: {size(total)}"
    output.document({**system, "packages": rows, "core_nbytes": total}, text=text)


def _needed() -> list[tuple[str, str]]:
    """The packages that the installed seqlake names, each with the extra that brings it, or "core"."""
    parts: dict[str, str] = {}
    for requirement in metadata.requires("seqlake") or ():
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        part = extra[1] if extra else "core"
        if name and name[0] != "seqlake" and part not in NO_PART:
            parts.setdefault(name[0], part)
    return sorted(parts.items(), key=lambda item: (item[1] != "core", item[1]))


def _package(name: str, part: str) -> dict[str, Any]:
    try:
        installed = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return {"package": name, "part": part, "version": None, "nbytes": 0}
    # Compiled caches are Python's, and come and go.
    files = [file for file in installed.files or () if file.suffix != ".pyc"]
    nbytes = sum(_size_of(Path(str(installed.locate_file(file)))) for file in files)
    return {"package": name, "part": part, "version": installed.version, "nbytes": nbytes}


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
