"""`create` of a folder: settings looked at once, for all formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.compression import Compression
from seqlake.formats._streaming.hashing import checked
from seqlake.formats._streaming.index import Config, byte_size
from seqlake.formats._streaming.packing import MOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SIZE_LIMIT = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How shards are written; the defaults of the official writers.

    Attributes:
        compression: `br`, `bz2`, `gz`, `snappy` or `zstd`, with a level as in `zstd:7`; None for none.
        hashes: Of every file: `sha1`, `xxh3_64`, ...
        size_limit: Bytes of a shard, as a number or as `64mb`; None for one shard.
    """

    compression: str | None = None
    hashes: Sequence[str] = ()
    size_limit: int | str | None = SIZE_LIMIT
    newline: str = field(default="")
    separator: str = field(default="")

    def config(self, kind: str, columns: Mapping[str, str], /) -> Config:
        """What every shard will say of itself.

        Raises:
            ValueError: A setting that makes no sense.
        """
        if not columns:
            raise ValueError("There must be at least one column.")
        if self.compression:
            Compression.of(self.compression)
        limit = byte_size(self.size_limit)
        if limit is not None and limit >= MOST:
            raise ValueError(f"size_limit is below 4 GiB, found {limit}: offsets are 32 bits wide.")
        pairs: Any = tuple(columns.items())
        return Config(
            format=kind,
            columns=pairs,
            compression=self.compression or None,
            hashes=checked(self.hashes),
            size_limit=limit,
            newline=self.newline,
            separator=self.separator,
        )
