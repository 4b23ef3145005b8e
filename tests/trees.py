"""The source of seqlake, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import gc
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[1] / "src" / "seqlake"


@contextmanager
def kept() -> Iterator[None]:
    """What comes to be within stays: a million nodes, which would be looked at for garbage again and again."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


@cache
def trees() -> dict[Path, ast.Module]:
    """Path of each module -> its tree."""
    with kept():
        return {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """All nodes of all modules, each with its path."""
    parsed = trees()
    with kept():
        return [(path, node) for path, tree in parsed.items() for node in ast.walk(tree)]
