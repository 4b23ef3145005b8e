"""Copies of shards that cannot be read in place: in a folder that processes share, or in memory; bounded."""

from __future__ import annotations

from seqlake.training.shard_cache.cache import Copies, InFolder, ShardCache
from seqlake.training.shard_cache.copies import Draft, LocalCopy, NoRoomError
from seqlake.training.shard_cache.layers import is_remote
from seqlake.training.shard_cache.memory import InMemory, Room
from seqlake.training.shard_cache.originals import Original

__all__ = [
    "Copies",
    "Draft",
    "InFolder",
    "InMemory",
    "LocalCopy",
    "NoRoomError",
    "Original",
    "Room",
    "ShardCache",
    "is_remote",
]
