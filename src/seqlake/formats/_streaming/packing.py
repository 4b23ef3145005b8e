"""From encoded samples to the files of a shard, as settings say: hashed, compressed, with their entry in the index."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.arguments import advice
from seqlake.formats._streaming.compression import Compression, checked_hashes, digest
from seqlake.formats._streaming.index import Config, IndexedFile, IndexedShard, byte_size

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 1 << 32  # offsets are uint32
SIZE_LIMIT = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
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
    def of(format_: str, given: Mapping[str, Any], /, **defaults: str) -> WriterSettings:
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
            raise TypeError(
                f"The format {format_!r} takes no option {unknown[0]!r}; it takes {taken}.{advice(unknown[0])}"
            )
        settings = WriterSettings(**{**defaults, **given})
        for name in ("compression", *defaults):
            value = getattr(settings, name)
            if not (value is None or isinstance(value, str)):
                raise ValueError(f"{name}: expected a text, found {value!r}.")
        listed: Any = () if settings.hashes is None else settings.hashes
        named = isinstance(listed, Collection) and not isinstance(listed, str)
        if not named or not all(isinstance(one, str) for one in listed):
            raise ValueError(f"hashes: expected a list as ['sha1'], found {settings.hashes!r}.")
        return settings

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
            hashes=checked_hashes(self.hashes or ()),
            size_limit=limit,
            newline=self.newline,
            separator=self.separator,
        )


class Packer(Protocol):
    """How a format writes.

    Attributes:
        config: What every shard says of itself.
        base: Bytes that a shard counts before its first sample.
        each: Bytes that a sample counts beside its own.
    """

    config: Config
    base: int
    each: int

    def sample(self, sample: Mapping[str, Any], /) -> bytes:
        """One sample as it is stored.

        Raises:
            CellError: A value that its encoding does not take, or none at all; names the column.
        """

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, bytes | None]:
        """A shard: its data, and the second file of formats that have two."""


def offsets(sizes: Sequence[int], first: int, /) -> bytes:
    """The count of samples and their offsets, the first sample at byte `first`."""
    places = np.empty(len(sizes) + 2, np.int64)
    places[0], places[1] = len(sizes), first
    np.cumsum(sizes, out=places[2:])
    places[2:] += first
    if places[-1] >= MOST:
        raise ValueError(f"A shard of {int(places[-1])} bytes cannot be written: its offsets end at 4 GiB.")
    return places.astype("<u4").tobytes()


def seal(packer: Packer, samples: Sequence[bytes], name: str, /) -> tuple[IndexedShard, dict[str, bytes]]:
    """A finished shard.

    Args:
        packer: The format.
        samples: What it holds.
        name: Of its file, without the format: `shard.00000`.

    Returns:
        Its entry in the index, and the files that are kept.
    """
    config = packer.config
    data, meta = packer.files(samples)
    kept: dict[str, bytes] = {}
    raw, zipped = _file(config, f"{name}.{config.format}", data, kept)
    raw_meta, zipped_meta = (None, None) if meta is None else _file(config, f"{name}.{config.format}.meta", meta, kept)
    entry = IndexedShard(
        config=config, samples=len(samples), raw=raw, zipped=zipped, raw_meta=raw_meta, zipped_meta=zipped_meta
    )
    return entry, kept


def _file(config: Config, name: str, data: bytes, kept: dict[str, bytes]) -> tuple[IndexedFile, IndexedFile | None]:
    raw = _described(config, name, data)
    if config.compression is None:
        kept[name] = data
        return raw, None
    kind = Compression.of(config.compression)
    packed = kind.compress(data)
    zipped = _described(config, f"{name}.{kind.extension}", packed)
    kept[zipped.name] = packed
    return raw, zipped


def _described(config: Config, name: str, data: bytes) -> IndexedFile:
    return IndexedFile(name=name, size=len(data), hashes={one: digest(data, one) for one in config.hashes})
