"""Names say what they hold, and docstrings are sentences."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

from tests.trees import SOURCE, nodes, trees

EMPTY = {"found", "made", "told", "shown", "below", "own"}
"""Words that fit anything: what was found, and what is it?"""
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def names(node: ast.AST) -> str | None:
    """The name that a node gives to something."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


def test_no_name_fits_anything() -> None:
    guilty = [
        f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)} {names(node)}"
        for path, node in nodes()
        if names(node) in EMPTY
    ]
    assert not guilty


def test_grey_has_one_spelling() -> None:
    """The other one is FFmpeg's and simplejpeg's, for names of pixels, which always stand in quotes."""
    pages = sorted((SOURCE.parents[1] / "docs").rglob("*.md"))
    others = re.compile(r"""["'`](?i:gray)(?:\d*[bl]e|\d+|f\d+le)?["'`]|-pix_fmt gray16le|gray16le holds""")
    guilty = [
        f"{path.name}:{number} {line.strip()}"
        for path in (*trees(), *pages)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "gray" in others.sub("", line).lower()
    ]
    assert not guilty


def test_a_docstring_is_a_sentence() -> None:
    short = [
        f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 1)} {text!r}"
        for path, node in nodes()
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)) is not None and len(text.split()) < 4
    ]
    assert not short


def test_a_public_class_has_a_name_of_its_own() -> None:
    """A store of L5Kit is public under that word, and so is the protocol."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in places.items() if len(where) > 1}.keys() == {"Store"}
