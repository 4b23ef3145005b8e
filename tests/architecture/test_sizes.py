"""Modules, functions and classes stay small enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "seqlake"
MODULES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in MODULES}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def body_lines(node: Function) -> int:
    """Lines of a function without its docstring."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        lines -= first.end_lineno - first.lineno + 1
    return lines


def test_there_is_something_to_check() -> None:
    assert len(MODULES) > 20


def test_modules_have_at_most_400_lines() -> None:
    assert not {name(p): n for p in MODULES if (n := len(p.read_text().splitlines())) > 400}


def too_large(tree: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, Function):
            if body_lines(node) > 50:
                found.append(f"{node.name}: {body_lines(node)} lines, at most 50")
            a = node.args
            parameters = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs) if p.arg not in {"self", "cls"}]
            if len(parameters) > 8:
                found.append(f"{node.name}: {len(parameters)} parameters, at most 8")
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > 300:
                found.append(f"class {node.name}: {lines} lines, at most 300")
    return found


def test_functions_and_classes_are_small() -> None:
    assert not {name(path): found for path in MODULES if (found := too_large(TREES[path]))}


def test_modules_say_what_they_hold_in_one_line() -> None:
    silent = []
    for path in MODULES:
        first, *rest = (ast.get_docstring(TREES[path]) or "").splitlines() or [""]
        if not first.endswith((".", ":", "?")) or (rest and rest[0]):
            silent.append(name(path))
    assert not silent
