"""Public names that moved, of modules and of members: the old ones work for one release more, and warn."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from operator import attrgetter
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MOVED = {
    "seqlake.dataset.inventory": "seqlake.dataset.reading.inventory",
    "seqlake.dataset.relocating": "seqlake.dataset.changing.relocating",
    "seqlake.dataset.sink": "seqlake.dataset.writing.sink",
    "seqlake.dataset.splits": "seqlake.dataset.reshaping",
    "seqlake.dataset.trimming": "seqlake.dataset.reshaping",
    "seqlake.formats.l5kit.data": "seqlake.compat.l5kit",
    "seqlake.formats.l5kit.editing": "seqlake.compat.l5kit.editing",
    "seqlake.formats.l5kit.poses": "seqlake.compat.l5kit.poses",
    "seqlake.formats.l5kit.results": "seqlake.compat.l5kit.results",
    "seqlake.formats.l5kit.sampling": "seqlake.compat.l5kit.sampling",
    "seqlake.training.mosaicml": "seqlake.compat.mosaicml",
}
"""Path of 0.1.0 -> path of today."""
RENAMED = {
    ("seqlake.dataset.inventory", "files"): "seqlake:Selection.files",
    ("seqlake.dataset.relocating", "plan"): "seqlake:plan_relocation",
}
"""(path of 0.1.0, name) -> module and name of today."""


class MovedModule(ModuleType):
    """Stands at the old path of a module and imports the new one when a name of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        here = RENAMED.get((self.__name__, name))
        if here is not None:
            warnings.warn(f"{self.__name__}.{name} is {here} now.".replace(":", "."), DeprecationWarning, stacklevel=2)
            return resolve_name(here)
        here = MOVED[self.__name__]
        warnings.warn(f"{self.__name__} is {here} now.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(here), name)


def keep_old_paths(package: str, /) -> None:
    """Let the old paths in a package lead to the new ones.

    Args:
        package: Calls this while it is imported.
    """
    for path in MOVED:
        parent, _, name = path.rpartition(".")
        if parent == package:
            sys.modules[path] = module = MovedModule(path)
            setattr(sys.modules[package], name, module)


class OldName:
    """A member of a class that is called otherwise now.

    Args:
        new: What it is called.
        get: What the object has there now; by default its member of that name.

    Example:
        ```python
        class Dataset:
            collect = OldName("vacuum")
        ```
    """

    def __init__(self, new: str, get: Callable[[Any], Any] | None = None, /) -> None:
        self._new = new
        self._get = attrgetter(new) if get is None else get

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = f"{owner.__name__}.{name}"

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        warnings.warn(f"{self._old} is called {self._new} now.", DeprecationWarning, stacklevel=2)
        return self._get(instance)
