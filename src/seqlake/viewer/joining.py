"""The page's modules as one classic script, for places that load no modules: `file://`, and frames of notebooks."""

from __future__ import annotations

import re
from pathlib import Path

STATIC = Path(__file__).parent / "static"
"""The files of the page, as they are shipped."""

LIBRARIES = ("uPlot.iife.min.js", "preact.min.umd.js", "hooks.umd.js", "htm.umd.js")
"""Vendored scripts, in the order in which the page loads them."""

_NAMES = r"\{(?P<names>[^}]*)\}|\* as (?P<all>\w+)"
_IMPORT = re.compile(rf'^import (?:{_NAMES}) from "\./(?P<module>[\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|class) (?P<name>\w+))", re.MULTILINE)


def joined(first: str = "main.js", /, *, folder: Path = STATIC) -> str:
    """One classic script that does what a module and all that it imports do.

    The modules keep to the few forms that docs/design/viewer.md lists, and tests hold them to it: each becomes a
    function that gives what it exports, called once, after those that it imports from.

    Args:
        first: The module that the page loads.
        folder: Where the modules lie.
    """
    order: list[str] = []

    def visit(name: str) -> None:
        if name in order:
            return
        for match in _IMPORT.finditer((folder / name).read_text(encoding="utf-8")):
            visit(match["module"])
        order.append(name)

    visit(first)
    bodies = [_wrapped(name, (folder / name).read_text(encoding="utf-8")) for name in order]
    return '(() => {\n"use strict";\nconst modules = {};\n' + "".join(bodies) + "})();\n"


def _wrapped(name: str, text: str) -> str:
    """A module as a function that is called at once."""

    def imported(match: re.Match[str]) -> str:
        place = f'modules["{match["module"]}"]'
        if match["all"]:
            return f"const {match['all']} = {place};"
        names = [part.strip().replace(" as ", ": ") for part in match["names"].split(",") if part.strip()]
        return f"const {{ {', '.join(names)} }} = {place};"

    exports = [match["name"] for match in _EXPORT.finditer(text)]
    body = _EXPORT.sub("", _IMPORT.sub(imported, text))
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exports)} }};\n}})();\n'
