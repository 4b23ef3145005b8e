"""An extra is there because code asks for it, and code asks for extras that are there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.trees import nodes

ROOT = Path(__file__).parents[2]
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
EXTRAS = set(OPTIONAL) - {"all", "dev"}


def test_every_extra_is_asked_for_and_every_one_asked_for_is_there() -> None:
    asked = {
        keyword.value.value
        for _, node in nodes()
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Constant)
    }
    assert asked == EXTRAS


def test_all_brings_every_extra() -> None:
    (everything,) = OPTIONAL["all"]
    assert set(everything.removeprefix("seqlake[").removesuffix("]").split(",")) == EXTRAS
