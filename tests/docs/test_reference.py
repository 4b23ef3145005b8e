"""What is not documented fails here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.tools import tool

import seqlake as sl
from seqlake import errors, plugins
from seqlake.cli._main import ALIASES, SUMMARIES

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_the_command_line_page_is_what_the_commands_say() -> None:
    """`scripts/cli-reference` writes the page."""
    module = tool("cli-reference")
    assert (REFERENCE / "cli.md").read_text() == module.page(), "run scripts/cli-reference"


@pytest.mark.parametrize("name", plugins.names("cli"))
def test_command_has_a_summary_in_the_help(name: str) -> None:
    assert SUMMARIES[name]


def test_nothing_is_summarised_that_is_not_there() -> None:
    assert set(SUMMARIES) == set(plugins.names("cli"))
    assert set(ALIASES.values()) <= set(SUMMARIES)


def test_every_error_has_its_line_on_the_page_and_in_the_tree() -> None:
    page = (REFERENCE / "errors.md").read_text()
    tree = errors.__doc__ or ""
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, (Exception, Warning)) and kind.__module__ == errors.__name__:
            assert f"`{name}`" in page, name
            assert name in tree, name


def test_the_rules_page_is_what_the_rules_say() -> None:
    """`scripts/rules-reference` writes the page."""
    module = tool("rules-reference")
    assert (REFERENCE / "rules.md").read_text() == module.page(), "run scripts/rules-reference"


def test_the_page_of_the_reference_lists_the_front_door() -> None:
    """No more and no less than what stands in `sl`."""
    page = (REFERENCE / "index.md").read_text()
    rows = page[page.index("| names in `sl` |") :].splitlines()[2:]
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])) == sorted(sl.__all__)


def test_the_modules_that_the_architecture_names_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    names = set(re.findall(r"`([\w/]+/\w+\.py)`", text))
    assert len(names) > 20
    assert not {name for name in names if not (ROOT / "src" / "seqlake" / name).exists()}


def _calls() -> dict[str, str]:
    """Each public call of `sl`, methods and properties of its classes among them -> its docstring."""
    calls = {}
    for name in sl.__all__:
        value = getattr(sl, name)
        if inspect.ismodule(value):
            continue
        calls[name] = inspect.getdoc(value) or ""
        if inspect.isclass(value):
            for member, one in inspect.getmembers(value):
                if not member.startswith("_") and (callable(one) or isinstance(one, property)):
                    calls[f"{name}.{member}"] = inspect.getdoc(one) or ""
    return calls


def test_every_public_call_has_a_docstring() -> None:
    calls = _calls()
    assert len(calls) > 250
    assert not [name for name, text in calls.items() if len(text.split()) < 3]


def test_every_public_call_has_an_example() -> None:
    """Those of a docstring run in `test_code.py` where they begin with `>>>`; what Python itself gives has none."""
    plain = [
        name
        for name, text in _calls().items()
        if ">>>" not in text and "```python" not in text and _is_called(_member(name))
    ]
    assert not plain, plain


def _is_called(member: object) -> bool:
    """Whether this is no property, and no method of `Mapping`."""
    return not isinstance(member, property) and getattr(member, "__module__", "") != "collections.abc"


def _member(name: str) -> object:
    head, _, tail = name.partition(".")
    return inspect.getattr_static(getattr(sl, head), tail, None) if tail else None
