"""Local copies of shards that cannot be read in place: bounded, shared by processes, farthest next use goes first."""

from __future__ import annotations

from seqlake.training.shard_cache.cache import NoRoomError, Part, ShardCache
from seqlake.training.shard_cache.layers import is_remote
from seqlake.training.shard_cache.sources import LocalShard, Source

__all__ = ["LocalShard", "NoRoomError", "Part", "ShardCache", "Source", "is_remote"]
