"""Public paths of modules that moved: the old ones work for one release more, and warn."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

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
RENAMED = {("seqlake.dataset.relocating", "plan"): "plan_relocation"}
"""(path of 0.1.0, name) -> name of today."""


class MovedModule(ModuleType):
    """Stands at the old path of a module and imports the new one when a name of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        here = MOVED[self.__name__]
        warnings.warn(f"{self.__name__} is {here} now.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(here), RENAMED.get((self.__name__, name), name))


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
