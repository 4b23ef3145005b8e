"""Finds a plug by the name of its file, or an installed entry point of the same group.

A plug is a module: `formats/mds.py` is the format called `mds`. It offers the functions that its protocol
names. Third parties register entry points in the group `seqlake.<group>`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from seqlake.errors import MissingDependencyError, UnknownPluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

GROUPS = ("tables", "formats", "media", "stores", "shard_formats", "executors", "cli")


@cache
def _modules(group: str) -> dict[str, str]:
    """The plugs of our own: name -> module path. Nothing is imported."""
    spec = importlib.util.find_spec(f"seqlake.{group}")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    return {
        module.name: f"seqlake.{group}.{module.name}"
        for module in pkgutil.iter_modules(folders)
        if not module.name.startswith("_")
    }


@cache  # reading what every installed package says of itself takes milliseconds
def _installed(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # half of what `seqlake --help` costs, and commands of ours need none

    return {point.name: point for point in entry_points(group=f"seqlake.{group}")}


def names(group: str, /) -> list[str]:
    """The names of all plugs of a group, sorted; imports none of them.

    Example:
        >>> "rlds" in names("formats")
        True
    """
    return sorted(_modules(group).keys() | _installed(group).keys())


def load(group: str, name: str, /) -> Any:
    """Import one plug.

    Args:
        group: One of `GROUPS`.
        name: The plug's name, as `names(group)` lists it.

    Returns:
        The module (or object) that offers the functions of the group's protocol.

    Raises:
        UnknownPluginError: No plug of that name; the message lists the known ones.
    """
    if name in _modules(group):
        return importlib.import_module(_modules(group)[name])
    point = _installed(group).get(name)
    if point is not None:
        return point.load()
    known = names(group)
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownPluginError(f"Nothing in {group!r} is called {name!r}; known are {', '.join(known)}.{guess}")


def options_of(function: Any, /) -> dict[str, inspect.Parameter]:
    """The keyword arguments that a function names itself.

    Example:
        >>> list(options_of(lambda place, *, view="": 0))
        ['view']
    """
    kinds = inspect.signature(function).parameters.values()
    return {one.name: one for one in kinds if one.kind is one.KEYWORD_ONLY}


def check_options(
    function: Any, options: Mapping[str, Any], /, *, what: str, advice: Callable[[str], str] = lambda _: ""
) -> None:
    """See that a function takes these options.

    Args:
        function: Whose keyword arguments they will be.
        options: By their names.
        what: What messages call the function.
        advice: An option that is not taken -> what the message ends with.

    Raises:
        TypeError: One that it does not take; those that it does are named.

    Example:
        >>> check_options(lambda place, *, view="": 0, {"columns": 1}, what="The format 'l5kit'")
        Traceback (most recent call last):
        TypeError: The format 'l5kit' takes no option 'columns'; it takes view.
    """
    kinds = inspect.signature(function).parameters.values()
    known = options_of(function)
    unknown = sorted(options.keys() - set(known))
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in kinds):
        takes = ", ".join(sorted(known)) or "none"
        raise TypeError(f"{what} takes no option {unknown[0]!r}; it takes {takes}.{advice(unknown[0])}")


def require(module: str, /, *, extra: str) -> Any:
    """Import an optional package, or say exactly how to install it.

    Args:
        module: What to import, as in `h5py`.
        extra: The extra of seqlake that brings it.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"This needs the package {module!r}, which is not installed. Run: pip install 'seqlake[{extra}]'"
        ) from error
