"""Parquet shards: any engine reads them, and random windows come out without decoding."""

from __future__ import annotations

from seqlake.shards.parquet.reader import open  # noqa: A004 - the verb of the ShardFormat protocol
from seqlake.shards.parquet.writer import create

__all__ = ["create", "open"]
