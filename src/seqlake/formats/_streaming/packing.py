"""From encoded samples to the files of a shard: hashed, compressed, with their entry in the index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.formats._streaming.compression import Compression
from seqlake.formats._streaming.hashing import digest
from seqlake.formats._streaming.index import Entry, File

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.formats._streaming.index import Config

MOST = 1 << 32  # offsets are uint32


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
    made = np.empty(len(sizes) + 2, np.int64)
    made[0], made[1] = len(sizes), first
    np.cumsum(sizes, out=made[2:])
    made[2:] += first
    if made[-1] >= MOST:
        raise ValueError(f"A shard of {int(made[-1])} bytes cannot be written: its offsets end at 4 GiB.")
    return made.astype("<u4").tobytes()


def seal(packer: Packer, samples: Sequence[bytes], name: str, /) -> tuple[Entry, dict[str, bytes]]:
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
    entry = Entry(
        config=config, samples=len(samples), raw=raw, zipped=zipped, raw_meta=raw_meta, zipped_meta=zipped_meta
    )
    return entry, kept


def _file(config: Config, name: str, data: bytes, kept: dict[str, bytes]) -> tuple[File, File | None]:
    raw = _described(config, name, data)
    if config.compression is None:
        kept[name] = data
        return raw, None
    kind = Compression.of(config.compression)
    packed = kind.compress(data)
    zipped = _described(config, f"{name}.{kind.extension}", packed)
    kept[zipped.name] = packed
    return raw, zipped


def _described(config: Config, name: str, data: bytes) -> File:
    return File(name=name, size=len(data), hashes={one: digest(data, one) for one in config.hashes})
