"""Modules stay small enough to read, and say what they hold; ruff bounds branches and statements of functions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.trees import SOURCE, trees

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted(SOURCE.rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 20


def test_modules_have_at_most_700_lines() -> None:
    assert not {name(p): n for p in MODULES if (n := len(p.read_text().splitlines())) > 700}


def test_modules_say_what_they_hold_in_one_line() -> None:
    silent = []
    for path, tree in trees().items():
        first, *rest = (ast.get_docstring(tree) or "").splitlines() or [""]
        if not first.endswith((".", ":", "?")) or (rest and rest[0]):
            silent.append(name(path))
    assert not silent
