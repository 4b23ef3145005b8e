"""The scripts of this repository as modules: what they make is what tests judge."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def tool(name: str) -> Any:
    """`scripts/<name>`, which may have no ending."""
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)  # dataclasses look there for their own
    loader.exec_module(module)
    return module
