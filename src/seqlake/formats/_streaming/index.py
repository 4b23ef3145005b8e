"""`index.json`: which shards a folder holds, what each is made of, and how it must be when it arrives.

The file is input like any other: names that leave the folder, sizes that are no sizes and keys that are missing are
refused here, so that nothing after this asks again. Order of keys and unknown keys do not matter.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

from seqlake.errors import InvalidMetadataError
from seqlake.files.locations import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "index.json"
VERSION = 2
EXTENSION = "x_seqlake"  # our own key, sorted behind `shards`; other readers pass over it
SPLIT = frozenset({"csv", "tsv", "xsv", "json"})  # formats of two files a shard: data and meta
FORMATS = frozenset({"mds", *SPLIT})
_OF_SPLIT = frozenset({"raw_meta", "zip_meta"})
_OF_ONE = frozenset({"samples", "raw_data", "zip_data", *_OF_SPLIT})  # keys that differ between shards of one kind
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_HALF = re.compile("[\ud800-\udfff]")
_UNITS = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pb": 1 << 50, "eb": 1 << 60}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedFile:
    """One file of a shard.

    Attributes:
        name: Relative to the folder of the index.
        size: Bytes.
        hashes: Algorithm -> lower-case hex digest.
    """

    name: str
    size: int
    hashes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object as it stands in the index."""
        return {"basename": self.name, "bytes": self.size, "hashes": dict(self.hashes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What shards of one kind have in common; the shards of a large index share one.

    Attributes:
        format: `mds`, `csv`, `tsv`, `xsv` or `json`.
        columns: (name, encoding), in the order of the index, which is the order of the bytes.
        sizes: [columns] bytes of fixed-size columns, None for others; only MDS has them.
        compression: As `zstd:7`, or None.
        hashes: The algorithms used.
        size_limit: Bytes of a shard, at which the next was begun; None for one shard.
        newline: Ends a line; empty for MDS.
        separator: Between values; only XSV and its kin.
    """

    format: str
    columns: tuple[tuple[str, str], ...]
    sizes: tuple[int | None, ...] = ()
    compression: str | None = None
    hashes: tuple[str, ...] = ()
    size_limit: int | None = None
    newline: str = ""
    separator: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.columns]

    def to_json(self) -> dict[str, Any]:
        """The keys that a shard's own header repeats."""
        keys: dict[str, Any] = {
            "version": VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": list(self.hashes),
            "size_limit": self.size_limit,
        }
        if self.format == "json":
            return {**keys, "columns": dict(self.columns), "newline": self.newline}
        keys["column_names"] = self.names
        keys["column_encodings"] = [encoding for _, encoding in self.columns]
        if self.format == "mds":
            return {**keys, "column_sizes": list(self.sizes)}
        keys["newline"] = self.newline
        return {**keys, "separator": self.separator} if self.format == "xsv" else keys

    def header(self) -> bytes:
        """The same, as a shard holds it."""
        return json.dumps(self.to_json(), sort_keys=True).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedShard:
    """One shard.

    Attributes:
        config: What it is made of.
        samples: How many.
        raw: The shard as it is read.
        zipped: The same, compressed; None without compression.
        raw_meta: The second file of a split shard.
        zipped_meta: The same, compressed.
    """

    config: Config
    samples: int
    raw: IndexedFile
    zipped: IndexedFile | None = None
    raw_meta: IndexedFile | None = None
    zipped_meta: IndexedFile | None = None

    @property
    def stored(self) -> list[IndexedFile]:
        """The files that a writer leaves behind."""
        files = [self.zipped or self.raw, self.zipped_meta or self.raw_meta]
        return [file for file in files if file is not None]

    def to_json(self) -> dict[str, Any]:
        """The object as it stands in the index."""
        files = {"raw_data": self.raw, "zip_data": self.zipped}
        if self.config.format in SPLIT:
            files |= {"raw_meta": self.raw_meta, "zip_meta": self.zipped_meta}
        parts = {key: None if file is None else file.to_json() for key, file in files.items()}
        return {**self.config.to_json(), **parts, "samples": self.samples}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleIndex:
    """All shards of a folder.

    Attributes:
        entries: In order.
        extension: What seqlake wrote beside them; empty in other people's folders.
        unknown: Keys of shards that the official reader refuses: (shard, key).
    """

    entries: Sequence[IndexedShard]
    extension: Mapping[str, Any] = field(default_factory=dict)
    unknown: Sequence[tuple[int, str]] = ()

    @property
    def samples(self) -> int:
        """Samples of all shards together."""
        return sum(entry.samples for entry in self.entries)


def dump(entries: Sequence[IndexedShard], /, *, extension: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of an `index.json`, as the official writers make them."""
    document: dict[str, Any] = {"version": VERSION, "shards": [entry.to_json() for entry in entries]}
    if extension:
        document[EXTENSION] = dict(extension)
    return json.dumps(document, sort_keys=True).encode()


def parse(data: bytes | memoryview, /, *, location: str = NAME) -> SampleIndex:
    """Read an `index.json`.

    Args:
        data: Its bytes.
        location: What messages call it.

    Raises:
        InvalidMetadataError: No JSON, another version, a key that is missing or makes no sense.
        UnsafeReferenceError: A name that leaves the folder.
    """
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InvalidMetadataError(f"{location} is no JSON: {error}.", path=location) from error
    try:
        has_shards = isinstance(document, dict) and isinstance(document.get("shards"), list)
        _expect(has_shards, "an object with a list 'shards'")
        _expect(document.get("version") == VERSION, f"version {VERSION}, found {document.get('version')!r}")
    except _WrongError as error:
        raise InvalidMetadataError(f"{location}: expected {error}.", path=location) from error
    extension = document.get(EXTENSION)
    entries, unknown, seen = [], [], dict[str, tuple[Config, frozenset[str]]]()
    for number, shard in enumerate(document["shards"]):
        try:
            entry, known = _entry(shard, seen)
        except _WrongError as error:
            raise InvalidMetadataError(f"{location}: shard {number}: expected {error}.", path=location) from error
        unknown += [(number, key) for key in shard.keys() - known]
        entries.append(entry)
    return SampleIndex(entries=entries, extension=extension if isinstance(extension, dict) else {}, unknown=unknown)


def byte_size(value: int | str | None, /) -> int | None:
    """A size as a number of bytes: `64mb` counts in powers of 1024; 0 and None mean no limit.

    Example:
        >>> byte_size("64mb"), byte_size(None)
        (67108864, None)
    """
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
        if match is None or (match[2] or "b") not in _UNITS:
            raise ValueError(f"A size is a number of bytes or a text such as '64mb', found {value!r}.")
        return int(float(match[1]) * _UNITS[match[2] or "b"]) or None
    given: Any = value
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not 0 <= given < float("inf"):
        raise ValueError(f"A size is a number of bytes, or a text such as '64mb', and not negative; found {value!r}.")
    return int(value) or None


class _WrongError(Exception):
    """What was expected; becomes an error that says where."""


def _expect(condition: object, what: str) -> None:
    if not condition:
        raise _WrongError(what)


def _entry(shard: Any, seen: dict[str, tuple[Config, frozenset[str]]]) -> tuple[IndexedShard, frozenset[str]]:
    """One shard and the keys that it may have; shards of one kind share a `Config`, looked at once."""
    _expect(isinstance(shard, dict), f"an object, found {type(shard).__name__}")
    kind = repr([(key, value) for key, value in shard.items() if key not in _OF_ONE])
    if kind not in seen:
        described = _config(shard)
        files = _OF_ONE if described.format in SPLIT else _OF_ONE - _OF_SPLIT
        seen[kind] = described, frozenset(files) | described.to_json().keys()
    config, known = seen[kind]
    split = config.format in SPLIT
    samples = _count(shard, "samples", limit=1 << 30)
    raw, zipped = _file(shard, "raw_data"), _file(shard, "zip_data", optional=config.compression is None)
    assert raw is not None
    raw_meta = _file(shard, "raw_meta") if split else None
    held = (raw_meta or raw).size
    _expect(4 * (samples + 2) <= held, f"room for the offsets of {samples} samples in {held} bytes")
    entry = IndexedShard(
        config=config,
        samples=samples,
        raw=raw,
        zipped=zipped if config.compression else None,
        raw_meta=raw_meta,
        zipped_meta=_file(shard, "zip_meta") if split and config.compression else None,
    )
    return entry, known


def _config(shard: Mapping[str, Any]) -> Config:
    kind = shard.get("format")
    _expect(shard.get("version", VERSION) == VERSION, f"version {VERSION}, found {shard.get('version')!r}")
    _expect(isinstance(kind, str) and kind in FORMATS, f"a format among {', '.join(sorted(FORMATS))}, found {kind!r}")
    if kind == "json":
        columns: Any = shard.get("columns")
        _expect(isinstance(columns, dict) and _texts([*columns, *columns.values()]), "'columns': names with encodings")
        pairs = tuple(columns.items())
    else:
        names: Any = shard.get("column_names")
        encodings: Any = shard.get("column_encodings")
        same = _texts(names) and _texts(encodings) and len(names) == len(encodings)
        _expect(same, "'column_names' and 'column_encodings' of equal length")
        pairs = tuple(zip(names, encodings, strict=True))
    _expect(len({name for name, _ in pairs}) == len(pairs) > 0, "columns of different names, at least one")
    compression, hashes = shard.get("compression"), shard.get("hashes") or []
    _expect(compression is None or isinstance(compression, str), "'compression': a text or null")
    _expect(_texts(hashes), "'hashes': a list of names")
    try:
        limit = byte_size(shard.get("size_limit"))
    except (ValueError, TypeError, AttributeError) as error:
        raise _WrongError(f"'size_limit': a size ({error})") from error
    newline = _text(shard, "newline") if kind in SPLIT else ""
    separator = _text(shard, "separator") if kind == "xsv" else _SEPARATORS.get(str(kind), "")
    return Config(
        format=str(kind),
        columns=pairs,
        sizes=_sizes(shard, len(pairs)) if kind == "mds" else (),
        compression=compression or None,
        hashes=tuple(hashes),
        size_limit=limit,
        newline=newline,
        separator=separator,
    )


def _sizes(shard: Mapping[str, Any], count: int) -> tuple[int | None, ...]:
    sizes: Any = shard.get("column_sizes")
    right = isinstance(sizes, list) and len(sizes) == count
    _expect(right and all(size is None or (type(size) is int and size >= 0) for size in sizes), "'column_sizes'")
    return tuple(sizes)


def _file(shard: Mapping[str, Any], key: str, *, optional: bool = False) -> IndexedFile | None:
    value: Any = shard.get(key)
    if value is None and optional:
        return None
    _expect(isinstance(value, dict), f"'{key}': an object")
    hashes = value.get("hashes") or {}
    _expect(_texts([value.get("basename")]), f"'{key}' with a 'basename'")
    _expect(isinstance(hashes, dict) and _texts(list(hashes.values())), f"'{key}' with 'hashes' of digests")
    return IndexedFile(name=checked(value["basename"]), size=_count(value, "bytes"), hashes=hashes)


def _count(holder: Mapping[str, Any], key: str, *, limit: int = 1 << 62) -> int:
    value = holder.get(key)
    _expect(type(value) is int and 0 <= value < limit, f"'{key}': a number from 0 to {limit - 1}, found {value!r}")
    return int(value)  # type: ignore[arg-type]  # an int, as was just looked at


def _text(shard: Mapping[str, Any], key: str) -> str:
    value = shard.get(key)
    _expect(_texts([value]) and value != "", f"'{key}': a text")
    return str(value)


def _texts(value: Any) -> bool:
    """Texts that UTF-8 can hold: JSON's escapes can spell halves of characters, which nothing else takes."""
    return isinstance(value, list) and all(isinstance(item, str) and not _HALF.search(item) for item in value)
