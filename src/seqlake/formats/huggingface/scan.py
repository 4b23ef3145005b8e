"""Looks at Hugging Face datasets, in folders and as objects: which columns, which splits, which shards."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import (
    ColumnNotFoundError,
    DatasetNotFoundError,
    InvalidMetadataError,
    MissingFileError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.files import locations
from seqlake.files.allowed import OUTSIDE
from seqlake.files.appearing import refuse_unfinished
from seqlake.files.credentials import Storage
from seqlake.files.stores import exists, open_store, read_all
from seqlake.formats import _mapping
from seqlake.formats.huggingface import layout
from seqlake.formats.huggingface.cells import FeatureShard, NamedFiles, StreamShard, read_stream, refuse_other
from seqlake.formats.huggingface.features import KEY, ShownFeature, as_column, declared
from seqlake.formats.huggingface.objects import tables_of, takes
from seqlake.grouping import as_sequences
from seqlake.protocols import Mapped
from seqlake.shards.columns import Columns, Constant, From, Stored
from seqlake.shards.files import parquet_shard
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.scanned import ScannedDataset
from seqlake.spec.findings import Finding
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_text, plain_type
from seqlake.versions import folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Depth, Readable, Shard, Store
    from seqlake.spec.column_types import ColumnType

SPLIT = "split"
_THREADS = 4
_OTHERS = ("mixtrain.json", "meta/info.json", "index.json")  # of a format that may hold such Parquet, and counts
_MARKS = {layout.DICT: b'"splits"', layout.STATE: b'"_data_files"'}
_LOOKED_AT = 4096  # names of a folder, which may be of anything
_MOST_MARK = 64 << 20


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether `save_to_disk` saved a folder, or it holds Parquet that `datasets` wrote; Mixtrain datasets are none."""
    try:
        root, store, name = _place(location, storage)
        if name:
            return KEY in (read_footer(store.blob(name)).metadata.metadata or {})
        if any(exists(store, other) for other in _OTHERS):
            return False
        if any(_has(store, path, mark) for path, mark in _MARKS.items()):
            return True
        names = (path for path, _ in islice(store.list(), _LOOKED_AT))
        paths = folders.chosen(names, root=root, parquet_only=True)
        return bool(paths) and KEY in (read_footer(store.blob(paths[0])).metadata.metadata or {})
    except UnsafeReferenceError:
        raise  # what it is can be said once that is allowed
    except (SeqlakeError, OSError, ValueError):
        return False


def _has(store: Store, path: str, mark: bytes) -> bool:
    return exists(store, path) and mark in read_all(store.blob(path), most=_MOST_MARK)


def _place(location: str, storage: Mapping[str, str] | None) -> tuple[str, Store, str]:
    """Root, store and, of one file, its name."""
    place = locations.absolute(location)
    local = locations.is_local(place)
    if place.endswith(".parquet") and not (local and locations.local_path(place).is_dir()):
        place = os.path.realpath(locations.local_path(place)) if local else place
        root, _, name = place.replace("\\", "/").rpartition("/")
        return root, open_store(root, storage=storage), name
    return place, open_store(place, storage=storage), ""


def column_types(location: str, /, *, storage: Mapping[str, str] | None = None) -> dict[str, ColumnType]:
    """The types of those columns whose cells lie in the files as they are shown, for `sl.init`.

    Raises:
        SeqlakeError: It cannot be read.
    """
    source = _scanned(location, storage, split=None, config=None)
    return {
        column.column.name: column.column.type
        for column in source.columns.values()
        if column.form in {"same", "file"} and column.column.type is not None
    }


def scan(
    location: Any,
    /,
    *,
    split: str | None = None,
    config: str | None = None,
    sequence_id: str | bool | None = None,
    steps: str | bool | None = None,
    map: Mapping[str, Any] | str | os.PathLike[str] | None = None,  # noqa: A002 - as every format calls it
    storage: Mapping[str, str] | None = None,
) -> Readable:
    """Look at a Hugging Face dataset; nothing is converted, decoded or copied.

    Args:
        location: A folder of Parquet, a Parquet file, or a folder of `save_to_disk`, as a path or URI; or a `Dataset`
            or `DatasetDict` of the package `datasets`.
        split: Only this one. Of several, a column `split` says which a row is of.
        config: The configuration, where the folder has several.
        sequence_id: The column that says which sequence a row belongs to; True: each is a sequence.
        steps: The column that orders the rows of a sequence; True: the order of the dataset.
        map: Column -> feature, or -> `{"source": feature, "type": ...}`; only these are read. Or a JSON or TOML file.
        storage: Options of the object store.

    Returns:
        A `Readable` with `check` and `mapping`.

    Raises:
        DatasetNotFoundError: No file is there.
        MissingFileError: A split lacks one of its files.
        InvalidMetadataError: Several configurations are there, or a document cannot be used.
        SchemaMismatchError: Files disagree about a column.
        CorruptFileError: A file is damaged.

    Example:
        ```python
        sl.scan("hf://datasets/owner/frames", split="train", sequence_id="episode", steps="frame")
        ```
    """
    if isinstance(location, (str, os.PathLike)):
        source = _scanned(os.fspath(location), storage, split=split, config=config, wanted=map)
    elif takes(location):
        if config is not None:
            raise InvalidMetadataError("config= chooses among the files of a folder; an object is of one already.")
        source = _of_object(location, split=split, wanted=map)
    else:
        raise TypeError(f"Expected a location, or a Dataset of the package datasets, found {type(location).__name__}.")
    return as_sequences(source, sequence_id=sequence_id, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A shard as the file has it, and the split that its rows are of."""

    shard: Shard
    split: str | None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HuggingFaceData(ScannedDataset):
    """A scanned Hugging Face dataset: a `Readable`, `Checked`, `HasStorage`, `SaysMapping` and picklable.

    Attributes:
        columns: Feature -> the column that it is.
        files: Where files lie that rows name.
        features: As they were declared; empty where nothing usable is.
    """

    columns: Mapping[str, ShownFeature]
    files: NamedFiles
    features: Mapping[str, Any] = field(default_factory=dict)
    unread: Sequence[str] = ()

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of its store; never printed."""
        return self.files.storage

    @property
    def allow_outside(self) -> bool:
        """Whether references may leave the root."""
        return self.files.allow_outside

    def mapping(self) -> Sequence[Mapped]:
        """What became of each feature."""
        kept = [Mapped(source=name, column=one.column.name, how=one.how) for name, one in self.columns.items()]
        return [*kept, *(Mapped(source=name, column=None, how="not in the mapping") for name in self.unread)]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only this format knows: features of which the files have no column."""
        del depth
        for name in self.features:
            if name not in self.columns and name not in self.unread:
                text = f"the feature {name!r} is declared, and no file has a column of it"
                yield Finding(code="huggingface-feature", severity="warning", message=text, location=self.root)


def _scanned(
    location: str, storage: Mapping[str, str] | None, *, split: str | None, config: str | None, wanted: Any = None
) -> HuggingFaceData:
    root, store, name = _place(location, storage)
    outside = storage is not None and Storage(storage).allows(OUTSIDE)
    files = NamedFiles(root=root, storage=storage, allow_outside=outside)
    saved = [] if name else layout.saved(store)
    if saved or (not name and exists(store, layout.STATE)):
        known = list(dict.fromkeys(one.split for one in saved))
        if split is not None and split not in known:
            raise ColumnNotFoundError(f"{root} has no split {split!r}; it has {', '.join(map(str, known))}.", path=root)
        return _joined([_stream(store, one) for one in saved if split in {None, one.split}], root, files, wanted)
    listed = [name] if name else _listed(store, root)
    chosen = layout.chosen(listed, root=root, split=split, config=config, alone=bool(name))
    with ThreadPoolExecutor(_THREADS) as pool:
        footers = list(pool.map(lambda one: read_footer(store.blob(one.path)), chosen))
    parts = []
    for one, footer in zip(chosen, footers, strict=True):
        types = footer.schema.with_metadata(footer.metadata.metadata)
        parts.append((_Part(shard=parquet_shard(footer.blob, rows=footer.rows), split=one.split), types, one.path))
    return _joined(parts, root, files, wanted)


def _listed(store: Store, root: str) -> list[str]:
    try:
        refuse_unfinished(store, root)
        listed = [path for path, _ in store.list()]
    except FileNotFoundError:
        listed = []
    paths = folders.chosen(listed, root=root, parquet_only=True)
    if not paths:
        raise DatasetNotFoundError(f"No Parquet file, and nothing of save_to_disk, is at {root}.", path=root)
    return paths


def _stream(store: Store, file: layout.SplitFile) -> tuple[_Part, pa.Schema, str]:
    try:
        blob = store.blob(file.path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"{file.path} is not there, and {layout.STATE} names it.",
            path=file.path,
            hint="The folder was copied in part: fetch it again.",
        ) from None
    table = read_stream(blob)
    digest = blake2b(f"{blob.location}\0{blob.token}".encode(), digest_size=8).hexdigest()
    name = file.path.rpartition("/")[2]
    shard = StreamShard(blob=blob, rows=table.num_rows, key=f"{file.split or 'data'}-{name}#{digest}")
    return _Part(shard=shard, split=file.split), table.schema, file.path


def _of_object(source: Any, *, split: str | None, wanted: Any) -> HuggingFaceData:
    parts = [
        (_Part(shard=shard, split=held.split), held.schema, held.split or "the dataset")
        for held in tables_of(source, split=split)
        for shard in held.shards
    ]
    root = locations.absolute(os.curdir)
    # What rows name are the user's own files, wherever `datasets` met them: the object is already in the user's hands.
    return _joined(parts, root, NamedFiles(root=root, allow_outside=True), wanted)


def _joined(
    parts: Sequence[tuple[_Part, pa.Schema, str]], root: str, files: NamedFiles, wanted: Any
) -> HuggingFaceData:
    """All shards under one schema."""
    if not parts:
        raise DatasetNotFoundError(f"{root} has no files.", path=root)
    features = declared(parts[0][1].metadata)
    stored = [pa.schema([pa.field(one.name, plain_type(one.type)) for one in types]) for _, types, _ in parts]
    for types, (_, _, path) in zip(stored[1:], parts[1:], strict=True):
        refuse_other(stored[0], types, path=path)
    every = {one.name: as_column(one.name, one.type, features.get(one.name)) for one in stored[0]}
    columns = every if wanted is None else _mapped(every, wanted)
    schema, mapping = _schema(columns, [part.split for part, _, _ in parts], features)
    changed = {name: one for name, one in columns.items() if one.form != "same"}
    shards = []
    for part, _, _ in parts:
        inner = FeatureShard(shard=part.shard, columns=changed, files=files) if changed else part.shard
        split: dict[str, From] = {SPLIT: Constant(part.split)} if SPLIT in schema and SPLIT not in every else {}
        shards.append(Columns(inner, schema, {**mapping, **split}))
    unread = tuple(name for name in every if name not in columns)
    return HuggingFaceData(
        root=root, schema=schema, parts=shards, columns=columns, files=files, features=features, unread=unread
    )


def _schema(
    columns: Mapping[str, ShownFeature], splits: Sequence[str | None], features: Mapping[str, Any]
) -> tuple[Schema, dict[str, From]]:
    taken = {one.column.name for one in columns.values()}
    shown_columns: dict[str, Column] = {one.column.name: one.column for one in columns.values()}
    if SPLIT not in taken and any(split is not None for split in splits):
        shown_columns[SPLIT] = Column(SPLIT, pa.string())
    key = shown_columns.get(ID)
    has_id = key is not None and is_text(key.arrow)
    if has_id:
        shown_columns = {ID: shown_columns[ID], **shown_columns}
    source = {"format": "huggingface", **({"features": dict(features)} if features else {})}
    metadata = Metadata(
        column_types={name: one.type for name, one in shown_columns.items() if one.type is not None},
        extra={"source": source},
    )
    arrow = pa.schema([pa.field(name, one.arrow) for name, one in shown_columns.items()])
    schema = Schema.from_arrow(arrow, metadata=metadata, id=ID if has_id else None)
    return schema, {one.column.name: Stored(name) for name, one in columns.items()}


def _mapped(every: Mapping[str, ShownFeature], given: Any) -> dict[str, ShownFeature]:
    """The columns of a declared mapping."""
    columns: dict[str, ShownFeature] = {}
    for name, wanted in _mapping.wanted(given).items():
        if wanted.source not in every:
            raise ColumnNotFoundError(f"No feature {wanted.source!r} for {name!r}; there are {', '.join(every)}.")
        if wanted.source in columns:
            raise InvalidMetadataError(f"The feature {wanted.source!r} is mapped twice, the second time to {name!r}.")
        one = every[wanted.source]
        kind = one.column.type if wanted.type is None else wanted.type
        columns[wanted.source] = replace(one, column=Column(name, one.column.arrow, kind))
    return columns
