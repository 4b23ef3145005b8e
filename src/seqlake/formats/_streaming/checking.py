"""What is wrong with a folder that only its own index and headers can tell, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.spec.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.formats._streaming.index import Index
    from seqlake.protocols import Depth


def check(index: Index, _depth: Depth, /) -> Iterator[Finding]:
    """Findings of one folder."""
    for number, key in index.unknown:
        text = f"shard {number} has the key {key!r}, which MosaicML Streaming refuses"
        yield Finding(code="mds-unknown-key", severity="warning", message=text, location="index.json")
