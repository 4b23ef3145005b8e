"""Names of stores and shards, and what tells one state of a store from another."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.formats.l5kit.store import Store

_SHARD_BYTES = 64 << 20


def state_of(store: Store, /) -> str:
    """A hash of what changes when any row of a store may have: metadata, and size and token of every chunk."""
    told = [
        [name, array.metadata.to_json(), [blob and (blob.size, blob.token) for blob in array.blobs()]]
        for name, array in store.arrays.items()
    ]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def stem_of(location: str, /) -> str:
    """The store's name without `.zarr` and `.zip`."""
    name = location.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return name.removesuffix(".zip").removesuffix(".zarr") or "store"


def grouped(sizes: list[int], /, *, limit: int = _SHARD_BYTES) -> Iterator[tuple[int, int]]:
    """Neighbours of about `limit` bytes together: (first, after the last)."""
    start, held = 0, 0
    for at, size in enumerate(sizes):
        if at > start and held + size > limit:
            yield start, at
            start, held = at, 0
        held += size
    if start < len(sizes):
        yield start, len(sizes)
