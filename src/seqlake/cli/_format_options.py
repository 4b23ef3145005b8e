"""Options of a format on a command line: `--option name=value`, typed by the format's own signature."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seqlake import plugins
from seqlake.cli import _values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_HIDDEN = {"storage"}


def pairs(option: str, texts: Iterable[str], /) -> dict[str, str]:
    """Names and texts of `name=value`, each once."""
    given: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{option} wants NAME=VALUE, got {text!r}.")
        if name in given:
            raise click.UsageError(f"{option} {name} is given twice.")
        given[name] = value
    return given


def typed(function: Callable[..., Any], texts: dict[str, str], /, *, what: str) -> dict[str, Any]:
    """The values that a function's signature asks for.

    Args:
        function: What takes them as keyword arguments.
        texts: As they were typed.
        what: What messages call it.

    Raises:
        UsageError: An option that it does not take, or a text that is none of its type.
    """
    known = {name: one for name, one in plugins.options_of(function).items() if name not in _HIDDEN}
    others = any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())
    values = {}
    for name, text in texts.items():
        if name not in known and not others:
            takes = ", ".join(sorted(known)) or "none"
            raise click.UsageError(f"{what} takes no option {name!r}; it takes {takes}.")
        kind = known[name].annotation if name in known else "Any"
        values[name] = _typed(name, text, kind if isinstance(kind, str) else "Any")
    return values


_NUMBERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}


def _typed(name: str, text: str, kind: str) -> Any:
    """A text as one of the types that an annotation names; the more exact ones first."""
    is_list = any(word in kind for word in ("Collection[", "Sequence[", "Iterable[", "list["))
    outside = re.sub(r"(Collection|Sequence|Iterable|list)\[[^\]]*\]", " ", kind)
    words = set(re.findall(r"\w+", outside))
    exact = {"null": ("None", None), "true": ("bool", True), "false": ("bool", False)}
    if text in exact and exact[text][0] in words:
        return exact[text][1]
    for word in words & _NUMBERS.keys():
        try:
            return _NUMBERS[word](text)
        except ValueError:
            continue
    if "Mapping" in words or "dict" in words:
        return _mapped(name, text, may_be_text="Mapping" in words and kind.startswith("str"))
    if words & {"str", "Literal"}:
        return _listed(name, text) if is_list and text.startswith("[") else text
    if is_list:
        return _listed(name, text)
    if words & {"bool", "int", "float"}:
        raise click.UsageError(f"--option {name}: expected {kind}, found {text!r}.")
    return _values.json_or_text(text)


def _listed(name: str, text: str) -> list[Any]:
    if not text.startswith("["):
        return text.split(",") if text else []
    try:
        values: list[Any] = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--option {name}: expected a list as A,B or JSON, found {text!r} ({error}).") from None
    return values


def _mapped(name: str, text: str, *, may_be_text: bool) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        if may_be_text:
            return text
        raise click.UsageError(f"--option {name}: expected a JSON object, found {text!r} ({error}).") from None
    if not isinstance(value, dict) and not may_be_text:
        raise click.UsageError(f"--option {name}: expected a JSON object, found {text!r}.")
    return value


def mapping(texts: Iterable[str], /) -> dict[str, str] | str | None:
    """What `--map` says: a file, or columns and their sources; None where it was not given."""
    given = list(texts)
    files = [text for text in given if "=" not in text or Path(text).is_file()]
    if not given:
        return None
    if not files:
        return pairs("--map", given)
    if len(given) > 1:
        raise click.UsageError("--map takes one file, or COLUMN=SOURCE as often as you like.")
    return files[0]
