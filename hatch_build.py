"""What a release says of itself: the README, with links that lead somewhere where no other file is beside it."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Description(MetadataHookInterface):
    """Called by hatchling for the metadata of the wheel and the sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        root = Path(self.root)
        loader = SourceFileLoader("_release", str(root / "scripts" / "_release.py"))
        release = module_from_spec(spec_from_loader(loader.name, loader))
        loader.exec_module(release)
        text = release.described((root / "README.md").read_text(encoding="utf-8"), release.repository_of(root))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
