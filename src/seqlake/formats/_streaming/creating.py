"""`create` of a folder: settings looked at once, for all formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.compression import Compression
from seqlake.formats._streaming.hashing import checked
from seqlake.formats._streaming.index import Config, byte_size
from seqlake.formats._streaming.packing import MOST

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    @staticmethod
    def of(format_: str, given: Mapping[str, Any], /, **defaults: str) -> Settings:
        """What a user gave, over what a format has besides.

        Args:
            format_: Its name, for messages.
            given: Settings by their names.
            **defaults: Of the settings that this format alone has.

        Raises:
            TypeError: A setting that it does not have.
            ValueError: One of another kind than it should be.
        """
        known = {"compression", "hashes", "size_limit", *defaults}
        if unknown := sorted(given.keys() - known):
            taken = ", ".join(sorted(known))
            raise TypeError(f"The format {format_!r} takes no option {unknown[0]!r}; it takes {taken}.")
        made = Settings(**{**defaults, **given})
        for name in ("compression", *defaults):
            value = getattr(made, name)
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"{name}: expected a text, found {value!r}.")
        listed: Any = () if made.hashes is None else made.hashes
        named = isinstance(listed, Collection) and not isinstance(listed, str)
        if not named or not all(isinstance(one, str) for one in listed):
            raise ValueError(f"hashes: expected a list as ['sha1'], found {made.hashes!r}.")
        return made

    def config(self, kind: str, columns: Mapping[str, str], /) -> Config:
        """What every shard will say of itself.

        Raises:
            ValueError: A setting that makes no sense.
        """
        if not isinstance(columns, Mapping) or not all(
            isinstance(one, str) for pair in columns.items() for one in pair
        ):
            raise ValueError(f"Expected the encodings of columns by name, as {{'x': 'int'}}, found {columns!r}.")
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
            hashes=checked(self.hashes or ()),
            size_limit=limit,
            newline=self.newline,
            separator=self.separator,
        )
