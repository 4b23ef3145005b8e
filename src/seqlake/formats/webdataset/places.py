"""Which shards a WebDataset has: a folder of them, one file, names in braces, or what Energon's metadata say."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import DatasetNotFoundError, InvalidMetadataError, SeqlakeError
from seqlake.files.appearing import refuse_unfinished
from seqlake.files.locations import is_local, join, local_path
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats.webdataset.tar import GZIPPED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from seqlake.protocols import Blob, Store

META = ".nv-meta"

_SPLITS, _INFOS = ("split.yaml", "split.json"), (".info.json", ".info.yaml")
_ENDINGS = (".tar", *GZIPPED)
_MOST_TEXT = 64 << 20
_LOOKED_AT = 1000
_MOST_NAMES = 1 << 20
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedShard:
    """One shard that should be there.

    Attributes:
        name: Below the root.
        split: Its split; None where nothing says one.
        count: Samples that Energon's metadata say; None where they say nothing.
        without: Keys of samples that are left out.
    """

    name: str
    split: str | None = None
    count: int | None = None
    without: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlace:
    """The root and its shards.

    Attributes:
        root: A folder or URI.
        shards: In their order.
    """

    root: str
    shards: Sequence[NamedShard]


def is_shard(name: str, /) -> bool:
    """Whether a name ends as one of a shard."""
    return name.lower().endswith(_ENDINGS)


def holds_shards(location: str, storage: Mapping[str, str] | None, /) -> bool:
    """Whether a location is a shard, names some in braces, or is a folder that has one on its first level."""
    if is_shard(location):
        root, name = _cut(location)
        return any(exists(open_store(root, storage=storage), one) for one in islice(braces(name), 1))
    if is_local(location):
        folder = local_path(location)
        return folder.is_dir() and (any(is_shard(path.name) for path in folder.iterdir()) or (folder / META).is_dir())
    names = (path for path, _ in islice(open_store(location, storage=storage).list(), _LOOKED_AT))
    return any(path.startswith(f"{META}/") or (is_shard(path) and "/" not in path) for path in names)


def _cut(location: str) -> tuple[str, str]:
    """The folder of a file, and its name there."""
    root, _, name = location.replace("\\", "/").rpartition("/")
    return root or "/", name


def braces(text: str, /) -> Iterator[str]:
    """Names with `{000..012}` and `{a,b}` written out.

    Raises:
        ValueError: More than a million.

    Example:
        >>> list(braces("train-{08..10}.tar"))
        ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    match = _BRACES.search(text)
    if match is None:
        yield text
        return
    ends = _RANGE.fullmatch(match[1])
    if ends is not None:
        first, last = int(ends[1]), int(ends[2])
        if abs(last - first) >= _MOST_NAMES:
            raise ValueError(f"{match[0]!r} are more than {_MOST_NAMES} names.")
        step = 1 if last >= first else -1
        width = len(ends[1]) if ends[1].startswith("0") or len(ends[1]) == len(ends[2]) else 0
        parts: Any = (f"{number:0{width}d}" for number in range(first, last + step, step))
    else:
        parts = match[1].split(",")
    for part in parts:
        yield from braces(text[: match.start()] + part + text[match.end() :])


def look(location: str, /, *, storage: Mapping[str, str] | None, split: Collection[str] | None) -> ShardPlace:
    """Name the shards of a dataset.

    Args:
        location: A folder, URI, shard, or shards in braces.
        storage: Options of the object store.
        split: The splits that are wanted; None: all.

    Raises:
        DatasetNotFoundError: No shard, or no such split.
        InvalidMetadataError: Energon's metadata cannot be used.
    """
    if is_shard(location):
        root, name = _cut(location)
        if split is not None:
            raise DatasetNotFoundError(f"{location} is a shard and has no splits.", path=location)
        return ShardPlace(root=root, shards=[NamedShard(name=one) for one in islice(braces(name), _MOST_NAMES)])
    store = open_store(location, storage=storage)
    refuse_unfinished(store, location)
    declared = _declared(store, location)
    if declared is None:
        if split is not None:
            raise DatasetNotFoundError(
                f"{location} has no {META}/split.yaml, so no splits.", path=location, hint="Leave split= out."
            )
        names = sorted(name for name, _ in store.list() if is_shard(name) and not name.startswith(f"{META}/"))
        shards = [NamedShard(name=name) for name in names]
    else:
        splits = list(dict.fromkeys(one.split for one in declared))
        unknown = [one for one in split or () if one not in splits]
        if unknown:
            raise DatasetNotFoundError(f"{location} has no split {unknown[0]!r}; it has {splits}.", path=location)
        shards = [one for one in declared if split is None or one.split in split]
    if not shards:
        raise DatasetNotFoundError(f"{location} holds no tar shard.", path=location)
    return ShardPlace(root=location, shards=shards)


def _declared(store: Store, location: str) -> list[NamedShard] | None:
    """What Energon's metadata say; None where there are none."""
    splits = _read(store, location, _SPLITS)
    if splits is None:
        return None
    infos = _read(store, location, _INFOS)
    try:
        counts = {str(name): int(count) for name, count in (infos or {}).get("shard_counts", {}).items()}
        excluded = {name for text in splits.get("exclude") or () for name in islice(braces(str(text)), _MOST_NAMES)}
        shards = []
        for split, names in splits["split_parts"].items():
            for name in (one for text in names for one in islice(braces(str(text)), _MOST_NAMES)):
                if name in excluded:
                    continue
                without = frozenset(one.removeprefix(f"{name}/") for one in excluded if one.startswith(f"{name}/"))
                shards.append(NamedShard(name=_below(name), split=str(split), count=counts.get(name), without=without))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        place = join(location, f"./{META}")
        raise InvalidMetadataError(f"{place}: the splits cannot be understood ({error!r}).", path=place) from error
    return shards


def _below(name: str) -> str:
    parts = name.replace("\\", "/").split("/")
    if not is_shard(name) or ".." in parts or parts[0] in {"", "~"} or ":" in parts[0]:
        raise ValueError(f"{name!r} is not the name of a shard below this folder")
    return name


def _read(store: Store, location: str, names: Sequence[str]) -> dict[str, Any] | None:
    for name in (f"{META}/{one}" for one in names):
        if not exists(store, name):
            continue
        text, place = read_all(store.blob(name), most=_MOST_TEXT), f"{location.rstrip('/')}/{name}"
        try:
            value = json.loads(text) if name.endswith(".json") else _yaml(text)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{place} cannot be read: {error}.", path=place) from error
        if not isinstance(value, dict):
            raise InvalidMetadataError(f"{place} is no mapping.", path=place)
        return value
    return None


def _yaml(text: bytes) -> Any:
    yaml = plugins.require("yaml", extra="webdataset")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def offsets_beside(store: Store, name: str, /) -> bytes | None:
    """Energon's index of a shard: where each sample begins, as uint64; None where there is none."""
    for ending in _ENDINGS:
        if name.lower().endswith(ending):
            try:
                return read_all(store.blob(f"{name[: -len(ending)]}.tar.idx"), most=_MOST_TEXT)
            except (FileNotFoundError, NotADirectoryError) as error:
                if isinstance(error, SeqlakeError):
                    raise
    return None


def open_shard(store: Store, name: str, /) -> Blob:
    """A shard's file.

    Raises:
        DatasetNotFoundError: It is not there.
    """
    try:
        return store.blob(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, SeqlakeError):
            raise
        place = f"{store.root}/{name}"
        raise DatasetNotFoundError(f"The shard {place} is not there.", path=place) from None
