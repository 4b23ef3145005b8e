"""MDS: MosaicML Streaming's binary shards with an `index.json`; read and written without its package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.formats._streaming.encodings import Encoding
from seqlake.formats._streaming.scan import SampleDataset, first_format, scan
from seqlake.formats.mds import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Encoding", "SampleDataset", "layout", "matches", "scan"]


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder has an `index.json` that begins with an MDS shard, or one without shards."""
    return first_format(location, storage=storage) in {"", "mds"}
