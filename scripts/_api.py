"""The pages of the API reference: which name stands on which page. Reads the source and imports nothing of it.

The text comes from the docstrings, by mkdocstrings, when the site is built; `_site.py` puts these pages there.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

FRONT_DOOR = {
    "opening": ("Open, create, read", "open create init scan Dataset Selection SequenceView Version"),
    "schema": (
        "Schema and column types",
        """
        Schema Column ColumnType Trajectory Embedding Video Depth Audio Image Spatial3D Spatial4D Metadata clock_of
        sample_at
        """,
    ),
    "writing": (
        "Write and reshape",
        """
        Writer File Encoding merge subset split repack compact trim segment resample assign_splits plan_splits diff
        relocate plan_relocation inline_files extract_files plan_inlining index
        """,
    ),
    "training": ("Windows and loader", "Window Whole seconds Loader Shuffle Mix Cache ranks prepare drop_copies"),
    "checking": ("Check, measure, look", "validate Report Finding statistics Statistics outliers contact_sheet view"),
    "converting": ("Convert and compute", "convert push compute nearest vector_index VectorIndex duplicates"),
}
"""Page -> its title and the names of `sl` on it."""

MODULES = {
    "errors": ("Errors", ["errors"]),
    "media": ("Media", ["media"]),
    "engines": ("Ray, Spark and shares", ["ray", "spark", "shares"]),
    "compat": ("Names of other libraries", ["compat.l5kit", "compat.lerobot", "compat.mosaicml"]),
    "formats": ("Formats", ["formats"]),
    "protocols": ("Protocols", ["protocols"]),
    "abilities": ("Abilities", ["abilities"]),
    "testing": (
        "Testing",
        [f"testing.{name}" for name in ("samples", "executors", "formats", "media", "shards", "stores", "tables")],
    ),
}  # fmt: skip
"""Page -> its title and the modules below `seqlake` on it, with all their public names; each format is one, too."""


class Entry(NamedTuple):
    """A public name."""

    path: str
    """Where it is defined, or shown: `seqlake.dataset.opening.open`."""
    name: str
    """What users write: `sl.open`."""


def homes(source: Path) -> dict[str, str]:
    """The names of `sl` and the modules that they come from, as the front door's own table says."""
    tree = ast.parse((source / "seqlake" / "__init__.py").read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOME"
    )
    homes_by_name: dict[str, str] = ast.literal_eval(table)
    return homes_by_name


@cache  # pages are made several times of the same source
def public(source: Path, module: str) -> list[str]:
    """The public names of a module: its `__all__`, or what it defines."""
    place = source / "seqlake" / module.replace(".", "/")
    tree = ast.parse((place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text())
    defined: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.append(node.name)
        for target in (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        ):
            if isinstance(target, ast.Name) and target.id == "__all__":
                return list(ast.literal_eval(node.value))  # type: ignore[arg-type]
            if isinstance(target, ast.Name):
                defined.append(target.id)
    return [name for name in defined if not name.startswith("_")]


def modules(source: Path, page: str) -> list[str]:
    """The modules of a page."""
    names = list(MODULES[page][1])
    if page == "formats":
        plugs = (place.stem for place in (source / "seqlake" / "formats").iterdir())
        names += [f"formats.{name}" for name in sorted(plugs) if not name.startswith("_")]
    return names


def entries(source: Path) -> dict[str, list[Entry]]:
    """Page -> the names on it."""
    known = homes(source)
    pages = {
        page: [Entry(f"seqlake.{known[name]}.{name}", f"sl.{name}") for name in names.split()]
        for page, (_, names) in FRONT_DOOR.items()
    }
    twice = {entry.path for names in pages.values() for entry in names}
    for page in MODULES:
        pages[page] = [
            Entry(f"seqlake.{module}.{name}", f"sl.{module}.{name}")
            for module in modules(source, page)
            for name in public(source, module)
            if f"seqlake.{module}.{name}" not in twice
        ]
    return pages


def titles() -> dict[str, str]:
    """Every page and its heading, in the order in which they are read."""
    return {page: known[0] for page, known in (FRONT_DOOR | MODULES).items()}


def text(source: Path, page: str) -> str:
    """The source of a page, for mkdocstrings."""
    parts = [f"# {titles()[page]}\n"]
    if page in MODULES:
        parts.append("Modules: " + ", ".join(f"`seqlake.{module}`" for module in modules(source, page)) + ".\n")
    parts += [
        f"::: {entry.path}\n    options:\n      heading: {entry.name}\n      toc_label: {entry.name}\n"
        for entry in entries(source)[page]
    ]
    return "\n".join(parts)


def linked(source: Path, page: str) -> str:
    """The page of the reference whose table lists the names of `sl`, each leading to its entry."""
    places = {entry.name.removeprefix("sl."): entry.path for names in entries(source).values() for entry in names}
    holders = {module.partition(".")[0]: name for name in MODULES for module in modules(source, name)}

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name in places:
            return f"[`{name}`][{places[name]}]"
        return f"[`{name}`](api/{holders[name]}.md)" if name in holders else match[0]

    head, mark, table = page.partition("| names in `sl` |")
    rows = [row.split("|") for row in table.split("\n")]
    for cells in rows[2:]:
        cells[1:2] = [re.sub(r"`(\w+)`", link, cell) for cell in cells[1:2]]
    return head + mark + "\n".join("|".join(cells) for cells in rows)


def index(source: Path) -> str:
    """The first page, with every name on it."""
    rows = [
        f"| [{titles()[page]}]({page}.md) | {', '.join(f'[`{one.name}`][{one.path}]' for one in names)} |"
        for page, names in entries(source).items()
    ]
    head = "Every public name with its signature, from the docstrings. `import seqlake as sl` is taken as given."
    return f"# API\n\n{head}\n\n| page | names |\n|---|---|\n" + "\n".join(rows) + "\n"
