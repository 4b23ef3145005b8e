"""Modules of a room lean on each other one way, and on what other rooms show."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tools import tool

LATE = 55
"""Imports of our own modules inside functions, but for commands, which import what they run when they run: few enough
to have a reason each. The number falls."""


@pytest.fixture(scope="module")
def structure() -> dict[str, Any]:
    house = tool("house")
    measured: dict[str, Any] = house.dependencies()
    return measured


def test_no_modules_import_each_other(structure: dict[str, Any]) -> None:
    assert structure["circles of imports, late ones counted"] == []
    assert structure["circles of imports, those for types counted too"] == []


def test_what_is_private_stays_in_its_room(structure: dict[str, Any]) -> None:
    assert structure["private modules imported across rooms"] == []


def test_late_imports_are_counted(structure: dict[str, Any]) -> None:
    late = [one for one in structure["late imports of our own modules"] if not one.startswith("seqlake.cli.")]
    assert len(late) <= LATE, late
