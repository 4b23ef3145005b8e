"""`scan` of a folder with an `index.json`: its samples as rows, whatever format its shards have, and what is odd."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from bisect import bisect_right
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import WholeFiles, ability
from seqlake.arguments import TEXT, takes
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError, SeqlakeError, UnsafeReferenceError
from seqlake.files import locations
from seqlake.files.allowed import with_rules
from seqlake.files.limits import limit_of
from seqlake.files.locations import checked
from seqlake.files.stores import open_store, read_all
from seqlake.formats._streaming import index as indexes
from seqlake.formats._streaming.cells import Options
from seqlake.formats._streaming.compression import ALGORITHMS, Compression, digest
from seqlake.formats._streaming.records import OF_COLUMNS
from seqlake.formats._streaming.restoring import declared
from seqlake.formats._streaming.shard import SampleReader, SampleShard, sample_format
from seqlake.formats._streaming.stored import SHARD_BYTES, ShardFolder, read_whole
from seqlake.formats._streaming.writing import SETTINGS
from seqlake.protocols import Mapped
from seqlake.shards.scanned import lengths_in
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from seqlake.formats._streaming.cells import CellEncoding
    from seqlake.formats._streaming.index import Config, IndexedFile, IndexedShard, SampleIndex
    from seqlake.protocols import Blob, Depth, Ints

_HEAD = 1 << 16
_FORMAT = re.compile(rb'"format"\s*:\s*"(\w+)"')
_NO_SHARDS = re.compile(rb"\s*:\s*\[\s*\]")
_HELD = 2 << 30  # bytes of decompressed shards that single samples are read from
_FRESH = 0.05  # seconds for which a file that was looked at counts as still the same
_LOOK_AFTER = 1024
_DAMAGE = (RecursionError, ValueError, TypeError, LookupError, ArithmeticError, struct.error)


def first_format(location: str, /, *, storage: Mapping[str, str] | None = None) -> str | None:
    """The format of the first shard of a folder's `index.json`; empty for no shards, None where there is no index."""
    try:
        blob = open_store(locations.absolute(location), storage=storage).blob(indexes.NAME)
        [head] = blob.ranges(np.zeros(1, np.int64), np.array([min(_HEAD, blob.size)], np.int64))
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (OSError, ValueError):
        return None
    shards = bytes(head).partition(b'"shards"')[2]
    match = _FORMAT.search(shards)
    if match is None:
        return "" if _NO_SHARDS.match(shards) else None
    return match[1].decode()


def scan(
    location: str,
    /,
    *,
    split: str | None = None,
    encodings: Mapping[str, str | CellEncoding] | None = None,
    allow_pickle: Collection[str] = (),
    verify: bool = True,
    allow_outside: bool = False,
    shard_bytes: int = SHARD_BYTES,
    storage: Mapping[str, str] | None = None,
) -> SampleDataset:
    """Look at a folder of MosaicML Streaming; every row is a sample, nothing is converted.

    Args:
        location: The folder of `index.json`, or the folder above it with `split`.
        split: A folder below `location`.
        encodings: Another encoding for a column, or for all columns of an encoding: a name or a `CellEncoding`.
        allow_pickle: Columns of encoding `pkl` that may be read. Pickles can run any code: only of data you trust.
        verify: Compare the hashes of the index where all bytes of a file are at hand (mapped, or decompressed), and
            the columns that it names with those that each shard's own header names.
        allow_outside: Shards may be links to files outside the folder, as in caches of other packages.
        shard_bytes: The limit for what a compressed file of somebody else may unfold to: above it, a hundredth of
            the bytes has to be stored.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check`, `len` and `[i]`.

    Raises:
        DatasetNotFoundError: No `index.json` there.
        InvalidMetadataError: It cannot be used.
        SchemaMismatchError: Shards disagree about a column.
        ValueError: An argument of another kind than it should be.

    Example:
        ```python
        sl.scan("data/mds", split="train")
        sl.scan("s3://bucket/mds", encodings={"label": "uint8"}, allow_pickle=["meta"])
        ```
    """
    options, most = Options.of(encodings, allow_pickle), limit_of("shard_bytes", shard_bytes)
    if split is not None and not isinstance(split, str):
        raise ValueError(f"split: expected the name of a folder, found {split!r}.")
    root = locations.absolute(location)
    root = root if split is None else locations.join(root, f"./{checked(split)}")
    storage = with_rules(storage, outside=allow_outside)
    store: Any = open_store(root, storage=storage)
    try:
        blob = store.blob(indexes.NAME)
        data = read_all(blob)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _nothing(root, store) from error
    whole = ability(store, WholeFiles)
    stamp = blob.token if whole is None else whole.stamp(indexes.NAME)
    place = ShardFolder(root=root, storage=storage, verify=verify, most=most)
    return SampleDataset(place, indexes.parse(data, location=f"{root}/{indexes.NAME}"), options, stamp)


def _nothing(root: str, store: Any) -> DatasetNotFoundError:
    splits: set[str] = set()
    with suppress(OSError, SeqlakeError):  # the web cannot be listed
        splits = {path.split("/")[0] for path, _ in store.list() if re.fullmatch(r"[^/]+/index\.json", path)}
    hint = f"Name one of its folders: split={min(splits)!r}." if splits else "Check the location."
    return DatasetNotFoundError(f"No {indexes.NAME} is at {root}.", path=root, hint=hint)


class SampleDataset:
    """The samples of a folder, in order: a `Readable`, `Checked`, picklable, and a map-style dataset.

    Example:
        ```python
        samples = seqlake.formats.mds.scan("data/mds")
        len(samples), samples[0]["tokens"]
        ```
    """

    def __init__(self, place: ShardFolder, index: SampleIndex, options: Options, stamp: str) -> None:
        self._place = place
        self._index = index
        self._options = options
        self._stamp = stamp
        self._open: OrderedDict[int, SampleReader] = OrderedDict()
        self._reads: dict[int, Callable[[int], dict[str, Any]]] = {}
        self._due = 0.0  # when open files are looked at again

    @cached_property
    def _known(self) -> tuple[Schema, Options, dict[str, Column]]:
        """The schema, options that know what it took to make it, and columns that are made again what they were."""
        options = self._options
        kinds: dict[str, list[IndexedShard]] = {}
        for entry in self._index.entries:
            kinds.setdefault(entry.config.format, []).append(entry)
        for kind, entries in kinds.items():
            shards = (self._bare(entry, options) for entry in entries)
            options = sample_format(kind).learn(shards, options)
        schema, again = schema_of(self._index, options, root=self._place.root)
        return schema, options, again

    @property
    def schema(self) -> Schema:
        """The columns of all shards; one that some shards lack is null there. `schema.id` is None: rows are samples.

        Arrays whose encoding does not name dtype and dimensions are looked at in the first sample that has them.
        """
        return self._known[0]

    @property
    def root(self) -> str:
        """The folder of the index."""
        return self._place.root

    @property
    def index(self) -> SampleIndex:
        """The index, as `index.json` says it."""
        return self._index

    @property
    def fingerprint(self) -> str:
        """Hash of the index and the columns."""
        columns = [(field.name, str(field.type)) for field in self.schema.arrow]
        state, last = hashlib.sha256(repr(columns).encode()), None
        for entry in self._index.entries:
            if entry.config is not last:
                last = entry.config
                state.update(last.header())
            state.update(f"{entry.samples} {_described(entry)}".encode())
        return state.hexdigest()[:32]

    @property
    def sizes(self) -> list[int]:
        """Samples of every shard of the index, those without any among them."""
        return [entry.samples for entry in self._index.entries]

    def shards(self) -> list[SampleShard]:
        """One a shard of the index, in its order; those without samples are left out."""
        schema, options, again = self._known
        types = schema.arrow
        columns = [(field.name, str(field.type)) for field in types]
        common = {
            id(entry.config): repr([self._place.root, self._stamp, entry.config.header(), columns])
            for entry in {id(one.config): one for one in self._index.entries}.values()
        }
        return [
            SampleShard(
                entry=entry,
                place=self._place,
                options=options,
                key=self._key(entry, common[id(entry.config)]),
                types=types,
                was=again,
            )
            for entry in self._index.entries
            if entry.samples
        ]

    def _key(self, entry: IndexedShard, common: str) -> str:
        stamps = [self._place.stamp(file) for file in entry.stored]
        state = f"{common} {entry.samples} {_described(entry)} {stamps}"
        return f"{entry.raw.name}#{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    def mapping(self) -> list[Mapped]:
        """What became of each column of the index; `how` names its encoding, or what it was before it was exported."""
        schema, _, again = self._known
        stored = {name: encoding for config in _configs(self._index) for name, encoding in config.columns}
        return [
            Mapped(
                source=name,
                column=name if name in schema else None,
                how=f"encoding {encoding}, read as what it was before" if name in again else f"encoding {encoding}",
            )
            for name, encoding in stored.items()
        ]

    @takes(column=TEXT)
    def lengths(self, column: str, /) -> Ints:
        """[rows] the first dimension of a column of arrays, or how many images; counted where it differs.

        Raises:
            SchemaMismatchError: The column has no steps.
        """
        return lengths_in(self.shards(), self.schema, column)

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: the index, sizes, hashes, each shard's own header and offsets."""
        yield from check_folder(self._index, self._place, depth)

    def __len__(self) -> int:
        return self._index.samples

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(entry.samples for entry in self._index.entries if entry.samples))

    @cached_property
    def _count(self) -> int:
        return self._ends[-1] if self._ends else 0

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *self._ends]

    @cached_property
    def _listed(self) -> list[SampleShard]:
        """Enough for single samples, which say themselves what they are."""
        return [self._bare(entry, self._options) for entry in self._index.entries if entry.samples]

    def _bare(self, entry: IndexedShard, options: Options) -> SampleShard:
        return SampleShard(entry=entry, place=self._place, options=options, key="", types=None)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """One sample as Python values: numbers, texts, bytes, numpy arrays over the shard's memory.

        Raises:
            IndexError: There is no such sample.
            CorruptFileError: It cannot be read.
        """
        try:
            if number < 0:
                number += self._count
            there = 0 <= number < self._count
        except (TypeError, ValueError):
            raise TypeError(f"Expected the number of a sample, found {number!r:.80}.") from None
        if not there:
            raise IndexError(f"There is no sample {number}; there are {self._count}.")
        if monotonic() > self._due:
            self._look()
        shard = bisect_right(self._ends, number)
        read = self._reads.get(shard) or self._begin(shard)
        row = number - self._starts[shard]
        try:
            return read(row)
        except _DAMAGE as error:
            return self._failed(shard, row, error)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All samples in order."""
        for shard, listed in enumerate(self._listed):
            read = self._begin(shard)
            for row in range(listed.rows):
                if not row % _LOOK_AFTER:
                    self._look()
                try:
                    sample = read(row)
                except _DAMAGE as error:
                    sample = self._failed(shard, row, error)
                yield sample

    def _begin(self, shard: int) -> Callable[[int], dict[str, Any]]:
        """Open a shard; where shards are decompressed, those that were opened first are let go of."""
        read = self._reads.get(shard)
        if read is not None:
            return read
        reader = self._open[shard] = self._listed[shard].open()
        read = self._reads[shard] = reader.one_by_one()
        held = sum(one.held for one in self._open.values())
        while held > _HELD and len(self._open) > 1:
            gone, oldest = self._open.popitem(last=False)
            self._reads.pop(gone, None)
            held -= oldest.held
        return read

    def _look(self) -> None:
        """See that what is open is still the same files."""
        for reader in self._open.values():
            reader.look()
        self._due = monotonic() + _FRESH

    def _failed(self, shard: int, row: int, error: Exception) -> dict[str, Any]:
        """Read a sample again, slowly: that says what is wrong with it."""
        if isinstance(error, SeqlakeError):
            raise error
        return self._open[shard].sample(row)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict(), "_reads": {}, "_due": 0.0}

    def __repr__(self) -> str:
        return f"SampleDataset({self.root!r}, {len(self)} samples, columns: {', '.join(self.schema.names)})"


def _described(entry: IndexedShard) -> list[tuple[str, int, dict[str, str]]]:
    """The files of a shard, as the index has them."""
    files = (entry.raw, entry.zipped, entry.raw_meta, entry.zipped_meta)
    return [(file.name, file.size, dict(file.hashes)) for file in files if file is not None]


def schema_of(index: SampleIndex, options: Options, /, *, root: str) -> tuple[Schema, dict[str, Column]]:
    """The schema, and the columns in it that are made again what they were.

    Raises:
        SchemaMismatchError: Shards disagree about a column.
        InvalidMetadataError: An encoding that is not known, or a description of ours that cannot be used.
    """
    stored = _stored(index, options, root)
    source = {"format": index.entries[0].config.format if index.entries else "mds"}
    was = declared(index.extension)
    if was is None:
        return Schema(stored, id=None, metadata=Metadata(extra={"source": source})), {}
    # What the user reads otherwise stays as the user reads it.
    given = {name for config in _configs(index) for name, kind in config.columns if options.given(name, kind) != kind}
    again = {name: was[name] for name in was.names if name in stored and name not in given}
    columns = {name: again.get(name, stored[name]) for name in [*again, *(n for n in stored if n not in again)]}
    key = was.id if was.id in again else None
    return Schema(columns, id=key, metadata=replace(was.metadata, column_types={})), again


def _configs(index: SampleIndex) -> list[Config]:
    """The kinds of shards, each once: an index has few."""
    return list({id(entry.config): entry.config for entry in index.entries}.values())


def _stored(index: SampleIndex, options: Options, root: str) -> dict[str, Column]:
    configs = _configs(index)
    columns: dict[str, tuple[Column, Config]] = {}
    for config in configs:
        for name, column in sample_format(config.format).columns(config, options).items():
            first, where = columns.setdefault(name, (column, config))
            if first.logical != column.logical:
                here, there = (dict(kind.columns)[name] for kind in (where, config))
                raise SchemaMismatchError(
                    f"Column {name!r} is {first.logical} ({here}) in one shard, {column.logical} ({there}) in another.",
                    path=root,
                    hint=f"Give both one reading: encodings={{{name!r}: ...}}.",
                )
    everywhere = set(columns).intersection(*(config.names for config in configs))
    firsts = {name: column for name, (column, _) in columns.items()}
    return {n: replace(column, nullable=column.nullable or n not in everywhere) for n, column in firsts.items()}


_ZSTD = (0xFD2FB528).to_bytes(4, "little")


def check_folder(index: SampleIndex, place: ShardFolder, depth: Depth, /) -> Iterator[Finding]:
    """Findings of one folder; from depth `rows` on every file is read, decompressed and hashed."""
    yield from _of_index(index)
    yield from _of_files(index, place)
    if depth != "metadata":
        for entry in index.entries:
            yield from _of_shard(entry, place)


def _found(code: str, severity: Any, message: str, location: str = indexes.NAME, column: str = "") -> Finding:
    return Finding(code=f"streaming-{code}", severity=severity, message=message, location=location, column=column)


def _of_index(index: SampleIndex) -> Iterator[Finding]:
    for number, key in index.unknown:
        yield _found("unknown-key", "warning", f"shard {number} has the key {key!r}, which MosaicML Streaming refuses")
    names = Counter(file.name for entry in index.entries for file in entry.stored)
    for name in (name for name, count in names.items() if count > 1):
        yield _found("twice", "error", f"{name} is named by {names[name]} shards", name)
    for config in dict.fromkeys(entry.config for entry in index.entries):
        yield from _of_config(config)
    for entry in index.entries:
        if not entry.samples:
            yield _found("empty", "note", "the shard has no samples", entry.raw.name)


def _of_config(config: Config) -> Iterator[Finding]:
    try:
        Compression.of(config.compression or "zstd")
    except ValueError as error:
        yield _found("compression", "error", str(error))
    for name in config.hashes:
        if name not in ALGORITHMS:
            yield _found("hash-name", "warning", f"no hash is called {name!r}: it is not compared")
    for column, encoding in config.columns:
        if config.format == "mds" and encoding == "pkl":
            text = "pickles can run any code when they are read; LocalDataset of MosaicML Streaming does not ask"
            yield _found("pickle", "warning", text, column=column)
    if config.columns != tuple(sorted(config.columns)) and config.format != "json":
        yield _found("order", "warning", "the columns are not sorted by name, as every official writer does")


def _of_files(index: SampleIndex, place: ShardFolder) -> Iterator[Finding]:
    """Files that are missing, of another size, or not named by the index."""
    store: Any = open_store(place.root, storage=place.storage)
    try:
        there = dict(store.list())
    except (OSError, SeqlakeError):
        return  # the web cannot be listed
    if SETTINGS in there:
        yield _found("unfinished", "warning", "a run that writes here was interrupted, or is under way", SETTINGS)
    named = set()
    for entry in index.entries:
        # A cache of the official reader keeps what it decompressed instead of what it fetched.
        for kept, raw in ((entry.zipped, entry.raw), (entry.zipped_meta, entry.raw_meta)):
            named |= {file.name for file in (kept, raw) if file is not None}
            file = next((one for one in (kept, raw) if one is not None and one.name in there), None)
            if file is None and raw is not None:
                yield _found("missing", "error", "the file is not there", (kept or raw).name)
            elif file is not None and there[file.name] != file.size:
                text = f"it has {there[file.name]} bytes, the index says {file.size}"
                yield _found("size", "error", text, file.name)
    for name in sorted(there.keys() - named):
        if name.rpartition("/")[2].startswith("shard."):
            yield _found("stray", "note", "the index does not name this file", name)


def _of_shard(entry: IndexedShard, place: ShardFolder) -> Iterator[Finding]:
    pairs = [(entry.raw, entry.zipped), (entry.raw_meta, entry.zipped_meta)]
    heads: dict[str, bytes] = {}
    for raw, zipped in pairs:
        if raw is None:
            continue
        try:
            blob = place.unverified(raw, zipped, entry.config.compression)
            data = read_whole(blob)
        except DatasetNotFoundError:
            return  # said already
        except (SeqlakeError, OSError) as error:
            yield _found("unreadable", "error", str(error), (zipped or raw).name)
            return
        yield from _hashes(raw, data)
        heads[raw.name] = bytes(data[: _head_size(entry, raw)])
    for _, zipped in pairs:
        if zipped is not None:
            yield from _of_zipped(zipped, place)
    yield from _of_head(entry, heads)


def _head_size(entry: IndexedShard, file: IndexedFile) -> int:
    """All of a second file; of MDS the count, the offsets and, as it turns out, the configuration."""
    return file.size if file is entry.raw_meta else 4 * (entry.samples + 2) + (1 << 20)


def _of_zipped(zipped: IndexedFile, place: ShardFolder) -> Iterator[Finding]:
    try:
        blob: Blob = place.unverified(zipped, None, None)
        data = read_whole(blob)
    except (SeqlakeError, OSError):
        return  # only the raw file is there, or it was said already
    yield from _hashes(zipped, data)
    # The frame's second part says in its two highest bits, and one more, whether the content's size follows.
    if data[:4] == _ZSTD and len(data) > 4 and not data[4] >> 6 and not data[4] & 0x20:
        text = "the zstd frame does not say its content's size: MosaicML Streaming cannot read it"
        yield _found("zstd-size", "warning", text, zipped.name)


def _hashes(file: IndexedFile, data: bytes | memoryview) -> Iterator[Finding]:
    for name, expected in file.hashes.items():
        if name in ALGORITHMS and (actual := digest(data, name)) != expected.lower():
            yield _found("hash", "error", f"{name} is {actual}, the index says {expected}", file.name)


def _of_head(entry: IndexedShard, heads: Mapping[str, bytes]) -> Iterator[Finding]:
    """The shard's own copy of its configuration; no reader looks at it, but it says when a file is of another set."""
    file = entry.raw_meta or entry.raw
    head, start = heads[file.name], 4 * (entry.samples + 2)
    if len(head) < start:
        return  # opening it says so
    first = int(np.frombuffer(head, "<u4", 1, 4)[0]) if entry.raw_meta is None else len(head)
    try:
        config = json.loads(head[start:first])
    except ValueError:
        yield _found("head", "error", "its own configuration is no JSON", file.name)
        return
    if config != entry.config.to_json():
        keys = [key for key in entry.config.to_json() if not isinstance(config, dict) or _differs(config, entry, key)]
        severity = "error" if set(keys) & OF_COLUMNS else "warning"  # the first are compared when a shard is opened
        yield _found("head", severity, f"its own configuration differs from the index: {', '.join(keys)}", file.name)


def _differs(config: Mapping[str, Any], entry: IndexedShard, key: str) -> bool:
    return bool(config.get(key) != entry.config.to_json()[key])
