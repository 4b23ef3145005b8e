"""How much memory, or which folder, a loader may use for shards that cannot be read in place, and what it fetches."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from seqlake.abilities import DecodedOnce, ability
from seqlake.arguments import bytes_of
from seqlake.files.cache import user_folder
from seqlake.training.shard_cache.folder import can_lock

if TYPE_CHECKING:
    from os import PathLike

    from seqlake.protocols import Readable

_PART_OF_DISK = 10  # that what is kept unasked may take of it
_DATASETS = 2  # of the largest size that find room there at the same time

Fetch = Literal["auto", "range", "whole"]


@dataclass(frozen=True, slots=True)
class Cache:
    """Room for shards that cannot be read in place: compressed ones, and those in a bucket.

    Args:
        path: A folder for local copies of such shards, shared by all processes of the machine and kept for the next
            run. None keeps them in memory.
        limit: Bytes, as a number or as in `"20 GB"`; by default half of the folder's disk, or a tenth of the machine's
            memory.
        fetch: What is read of remote shards: `"whole"` all steps of the columns wanted, once; `"range"` the bytes of
            windows alone, each time they come; `"auto"` by range where that is less than a quarter of the whole.

    Raises:
        ValueError: `fetch` is none of the three.

    Example:
        >>> Cache(limit="1.5 GB").nbytes
        1500000000
    """

    path: str | PathLike[str] | None = None
    limit: int | str | None = None
    fetch: Fetch = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        if self.fetch not in get_args(Fetch):
            raise ValueError(f"Cache fetch: expected one of {', '.join(get_args(Fetch))}, found {self.fetch!r}.")

    @property
    def nbytes(self) -> int:
        """The limit in bytes.

        Raises:
            ValueError: The limit is not a size.
        """
        if self.limit is None and self.path is not None:
            place = Path(self.path).absolute()
            while not place.exists():
                place = place.parent
            return shutil.disk_usage(place).total // 2
        if self.limit is None:
            return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10) if _counts_pages() else 10**9
        return bytes_of(self.limit, name="Cache limit")


def shared(cache: Cache | None, /, *, by: int) -> Cache:
    """A cache for one of several users of a machine's memory: the default limit is divided, a given one is each's.

    Args:
        cache: What was asked for; None for the default.
        by: How many there are.
    """
    cache = Cache() if cache is None else cache
    if cache.path is not None or cache.limit is not None:
        return cache
    return replace(cache, limit=cache.nbytes // by)


def kept(source: Readable, /) -> Cache | None:
    """The folder in the user's cache for local copies of shards that take long to decode; None where memory serves.

    Nobody asked for it, so it is taken only where nothing can go wrong with it: all copies fit with room to spare, and
    the folder can be written to and locked.

    Args:
        source: A dataset; only one with the ability `DecodedOnce` has such copies.
    """
    known, top = ability(source, DecodedOnce), user_folder()
    if known is None or top is None:
        return None
    nbytes, folder = known.decoded_bytes, top / "shards"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(folder)
        limit = disk.total // _PART_OF_DISK
        if _DATASETS * nbytes > limit or not can_lock(folder):
            return None
    except OSError:
        return None
    return Cache(folder, limit=limit) if _DATASETS * nbytes < disk.free else None


def _counts_pages() -> bool:
    return hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
