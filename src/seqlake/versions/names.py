"""What a name below the root means: who owns it, which place it is in.

A Parquet shard is called `part-<T>-<n>.parquet` in `data/` and loses the suffix below `_seqlake/`, so that no glob for
`*.parquet` ever sees it there. T is the transaction that made it, so the owner of everything is read off its name.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from typing import TYPE_CHECKING

from seqlake.versions.shard_formats import PARQUET, has_format, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

METADATA = "mixtrain.json"
DATA = "data"
FILES = "files"
OURS = "_seqlake"
VERSIONS = f"{OURS}/versions"
STAGED = f"{OURS}/staged"
TAGS = f"{OURS}/tags"
RETIRED = f"{OURS}/retired"
SIDE = f"{OURS}/side"
MEDIA = f"{OURS}/media"
DERIVED = f"{OURS}/derived"
INDEX = f"{OURS}/index"
COPIES = f"{OURS}/copies"
CHECKPOINTS = f"{OURS}/checkpoints"
LAST = f"{CHECKPOINTS}/last"
SUFFIX = f".{PARQUET}"
FOLDERS = (DATA, FILES, VERSIONS, STAGED, RETIRED, SIDE, MEDIA, DERIVED, INDEX, CHECKPOINTS)
"""What a writer puts, moves and removes names in."""
NOBODY = "0" * 32
"""Stands for a transaction where there is none: the shards of a plain folder, whose names are paths."""

_T = r"[0-9a-f]{32}"
_N = r"[0-9a-z]{1,16}"
_TRANSACTION = re.compile(_T)
_COUNTER = re.compile(_N)
_PART = re.compile(rf"part-({_T})-({_N})(?:\.[0-9a-z]+)?")
_SIDE = re.compile(rf"side-({_T})-({_N})")
_STAGED = re.compile(
    rf"(?:part-({_T})-{_N}(?:\.(?!parquet\b)[0-9a-z]+)?|file-({_T})-{_N}|({_T})\.json|({_T})(?:-{_N})?\.tmp)"
)
_COPIED = re.compile(rf"(?:{OURS}/)?{FILES}/[^/]+/[0-9a-f]{{2}}/[^/]*-({_T})-{_N}(?:\.[^/]*)?")
_TRAINING_COPY = re.compile(rf"(({_T})-[0-9a-f]{{32}})\.[a-z0-9.]+")
_NO_LETTER = re.compile(r"[/\\\x00-\x1f]")
_NUMBERED = re.compile(r"(\d{20})(?:-([0-9a-f]{32}))?")


def new_transaction() -> str:
    """A uuid7: 32 lower-case hex digits that sort by time."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & (1 << 48) - 1) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    return f"{value & ~(0x3 << 62) | 0x2 << 62:032x}"


def is_transaction(text: object) -> bool:
    """Whether this is a transaction id as we write it."""
    return isinstance(text, str) and _TRANSACTION.fullmatch(text) is not None


def is_counter(n: str) -> bool:
    """Whether `n` may number something within a transaction: 1 to 16 of `[0-9a-z]`."""
    return _COUNTER.fullmatch(n) is not None


def is_shard_name(name: object) -> bool:
    """Whether a record may call a shard this: one plain file name with the ending of a shard format."""
    return (
        isinstance(name, str)
        and has_format(name)
        and not name.startswith(".")
        and len(name.encode("utf-8", "replace")) <= 255
        and _NO_LETTER.search(name) is None
    )


def is_reference(path: object) -> bool:
    """Whether an index file may name this path: relative, and never above the root."""
    return (
        isinstance(path, str)
        and bool(path)
        and not path.startswith("/")
        and "\\" not in path
        and "\0" not in path
        and not any(part in ("", ".", "..") for part in path.split("/"))
    )


def counter(n: str) -> str:
    """What may number something within a transaction, as it was given.

    Raises:
        ValueError: It is not 1 to 16 of `[0-9a-z]`.
    """
    if not is_counter(n):
        raise ValueError(f"n is 1 to 16 of [0-9a-z], found {n!r}.")
    return n


def part(transaction: str, n: str, format: str = PARQUET, /) -> str:  # noqa: A002 - as `Table.place` calls it
    """The name of shard `n` of a transaction, as records and `data/` have it; it ends with its format's."""
    name = f"part-{transaction}-{counter(n)}.{format}"
    if name_of(name) != format:
        raise ValueError(f"No format of shards is called {format!r}.")
    return name


def bare(name: str) -> str:
    """A shard's name as it is below `_seqlake/`, where no glob for `*.parquet` may meet it."""
    return name.removesuffix(SUFFIX)


def of_bare(name: str) -> str:
    """The name of a shard, from the one that it has below `_seqlake/`."""
    return name if has_format(name) else f"{name}{SUFFIX}"


def data(name: str) -> str:
    """Where the shard is while it belongs to the newest version."""
    return f"{DATA}/{name}"


def staged(name: str) -> str:
    """Where it is before."""
    return f"{STAGED}/{bare(name)}"


def retired(name: str) -> str:
    """Where it is afterwards."""
    return f"{RETIRED}/{bare(name)}"


def places(name: str) -> tuple[str, ...]:
    """Where to look for a shard, in the order that cannot miss it: names only move forward."""
    return data(name), staged(name), data(name), retired(name)


def owner(name: str) -> str | None:
    """The transaction in the name of a shard, with or without its suffix; None for adopted names."""
    match = _PART.fullmatch(name)
    return match[1] if match else None


def side(transaction: str, n: str) -> str:
    """The name of a side shard."""
    return f"side-{transaction}-{counter(n)}"


def side_owner(name: object) -> str | None:
    """The transaction in the name of a side shard."""
    match = _SIDE.fullmatch(name) if isinstance(name, str) else None
    return match[1] if match else None


def staged_owner(name: str) -> str | None:
    """The transaction that owns a name in `staged/`; None for strangers."""
    match = _STAGED.fullmatch(name)
    return next((group for group in match.groups() if group), None) if match else None


def copied_owner(path: str) -> str | None:
    """The transaction in the path of a copied-in file; None for files that we did not copy."""
    match = _COPIED.fullmatch(path)
    return match[1] if match else None


def marker(transaction: str) -> str:
    """The path of the marker: this transaction is under way, or died."""
    return f"{STAGED}/{transaction}.json"


def marker_owner(name: str) -> str | None:
    """The transaction whose marker has this name in `staged/`."""
    stem = name.removesuffix(".json")
    return stem if stem != name and is_transaction(stem) else None


def temporary(transaction: str, n: str = "") -> str:
    """A path that a local file of this transaction has before it gets its name."""
    return f"{STAGED}/{transaction}-{n}.tmp" if n else f"{STAGED}/{transaction}.tmp"


def version(number: int) -> str:
    """The path of a version record."""
    return f"{VERSIONS}/{number:020d}.json"


def versions(numbers: Iterable[int]) -> list[str]:
    """The paths of several version records."""
    return [f"{VERSIONS}/{number:020d}.json" for number in numbers]


def version_number(name: str) -> int | None:
    """The number of a version record, from its name in `versions/`."""
    stem = name.removesuffix(".json")
    return int(stem) if stem != name and len(stem) == 20 and stem.isdecimal() and stem.isascii() else None


def index(transaction: str) -> str:
    """The path of the index file of the shards that a transaction added."""
    return f"{INDEX}/{transaction}.arrow"


def merged_index(number: int, transaction: str) -> str:
    """The name, in `index/`, of the index file of a checkpoint."""
    return f"{number:020d}-{transaction}.arrow"


def is_merged_index(name: object) -> bool:
    """Whether a checkpoint may name this as its index file."""
    if not isinstance(name, str) or not name.endswith(".arrow"):
        return False
    match = _NUMBERED.fullmatch(name.removesuffix(".arrow"))
    return match is not None and match[2] is not None


def index_owner(name: str) -> str | None:
    """The transaction that wrote this file of `index/`."""
    stem = name.removesuffix(".arrow")
    if stem == name:
        return None
    if is_transaction(stem):
        return stem
    match = _NUMBERED.fullmatch(stem)
    return match[2] if match else None


def checkpoint(number: int) -> str:
    """The path of the checkpoint of a version."""
    return f"{CHECKPOINTS}/{number:020d}.arrow"


def checkpoint_number(name: str) -> int | None:
    """The version of a checkpoint, from its name in `checkpoints/`."""
    stem = name.removesuffix(".arrow")
    return int(stem) if stem != name and len(stem) == 20 and stem.isdecimal() and stem.isascii() else None


def media(transaction: str) -> str:
    """The path of the packet indexes of a transaction's videos."""
    return f"{MEDIA}/{transaction}.arrow"


def of_key(key: str, /) -> str:
    """The shard's name in a `Shard.key`, `<name>#<hash>`."""
    return key.rpartition("#")[0] or key


def copy_key(reference: str, /) -> str:
    """What the training copies of a file are called, without their suffix; begins with its owner, if it has one."""
    digest, owner = hashlib.sha256(reference.encode("utf-8", "surrogatepass")).hexdigest()[:32], copied_owner(reference)
    return digest if owner is None else f"{owner}-{digest}"


def is_dead_training_copy(path: str, /, *, keys: AbstractSet[str], alive: AbstractSet[str]) -> bool:
    """A training copy of a copied-in file that no kept shard names; `keys`: `copy_key` of those that are named."""
    match = _TRAINING_COPY.fullmatch(path.rpartition("/")[2])
    return match is not None and match[2] not in alive and match[1] not in keys


def is_dead_copy(path: str, /, *, needed: AbstractSet[str], alive: AbstractSet[str]) -> bool:
    """A copied-in file that no kept shard names, of a transaction that ended.

    Args:
        path: Below the root.
        needed: The files that kept shards name.
        alive: Transactions under way.
    """
    owner = copied_owner(path)
    return owner is not None and owner not in alive and path not in needed


def is_dead_media(path: str, /, *, owners: AbstractSet[str | None], alive: AbstractSet[str]) -> bool:
    """Packet indexes of a transaction none of whose files are needed; `owners`: those of needed files."""
    owner = path.rpartition("/")[2].removesuffix(".arrow")
    return is_transaction(owner) and owner not in alive and owner not in owners


def is_dead_index(path: str, /, *, adders: AbstractSet[str], alive: AbstractSet[str]) -> bool:
    """An index file of shards that are all gone, or one that was merged; `adders`: whose shards are kept."""
    name = path.rpartition("/")[2]
    owner = index_owner(name)
    if owner is None or owner in alive:
        return False
    return is_merged_index(name) or owner not in adders
