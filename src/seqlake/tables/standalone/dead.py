"""Which of our own files nothing needs any more, by their names; the same in every table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.tables.standalone import names

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet


def is_copied(path: str, /, *, needed: AbstractSet[str], alive: AbstractSet[str]) -> bool:
    """A copied-in file that no kept shard names, of a transaction that ended.

    Args:
        path: Below the root.
        needed: The files that kept shards name.
        alive: Transactions under way.
    """
    owner = names.copied_owner(path)
    return owner is not None and owner not in alive and path not in needed


def is_media(path: str, /, *, owners: AbstractSet[str | None], alive: AbstractSet[str]) -> bool:
    """Packet indexes of a transaction none of whose files are needed; `owners`: those of needed files."""
    owner = path.rpartition("/")[2].removesuffix(".arrow")
    return names.is_transaction(owner) and owner not in alive and owner not in owners


def is_index(path: str, /, *, adders: AbstractSet[str], alive: AbstractSet[str]) -> bool:
    """An index file of shards that are all gone, or one that was merged; `adders`: whose shards are kept."""
    name = path.rpartition("/")[2]
    owner = names.index_owner(name)
    if owner is None or owner in alive:
        return False
    return names.is_merged_index(name) or owner not in adders
