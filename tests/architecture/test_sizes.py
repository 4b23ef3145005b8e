"""Modules, functions and classes stay small enough to read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_has_at_most_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_functions_and_classes_are_small(path: Path) -> None:
    too_large = []
    for node in ast.walk(TREES[path]):
        if isinstance(node, Function):
            if body_lines(node) > 50:
                too_large.append(f"{node.name}: {body_lines(node)} lines, at most 50")
            a = node.args
            parameters = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs) if p.arg not in {"self", "cls"}]
            if len(parameters) > 8:
                too_large.append(f"{node.name}: {len(parameters)} parameters, at most 8")
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > 300:
                too_large.append(f"class {node.name}: {lines} lines, at most 300")
    assert not too_large


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_module_says_what_it_holds_in_one_line(path: Path) -> None:
    docstring = ast.get_docstring(TREES[path])
    assert docstring, "no module docstring"
    first, *rest = docstring.splitlines()
    assert first.endswith((".", ":", "?"))
    assert not rest or rest[0] == "", "the first line stands alone"
