"""Copies of shards that cannot be read in place: in a folder that processes share, or in memory; bounded."""

from __future__ import annotations

from seqlake.training.shard_cache.cache import Part, ShardCache
from seqlake.training.shard_cache.layers import is_remote
from seqlake.training.shard_cache.local import Copies, InFolder, LocalShard, NoRoomError
from seqlake.training.shard_cache.memory import InMemory, Room
from seqlake.training.shard_cache.sources import CacheSource

__all__ = [
    "CacheSource",
    "Copies",
    "InFolder",
    "InMemory",
    "LocalShard",
    "NoRoomError",
    "Part",
    "Room",
    "ShardCache",
    "is_remote",
]
