"""Writes Parquet that `datasets.load_dataset` and the viewer of the Hub read: a file for each split of a part."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from seqlake.errors import ValidationError, in_line
from seqlake.files.appearing import STAGED, appear, clear
from seqlake.files.locations import absolute
from seqlake.files.stores import list_without_links, open_store, read_all
from seqlake.formats.huggingface.features import FILE, KEY, written
from seqlake.spec.schema import is_text
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.protocols import Store
    from seqlake.spec.schema import Schema

SPLIT = "split"
WHOLE, NOWHERE = "train", "unassigned"
"""The split of a dataset without splits, as `datasets` calls it; and of rows whose split is null."""

_DATA = "data"
_NAME = re.compile(r"\w+(?:\.\w+)*")
_DONE = re.compile(r"data/[\w.]+-\d{5}-of-\d{5}\.parquet")
_GROUP_BYTES, _GROUP_ROWS = 32 << 20, 1 << 16
_MOST_FILE = 1 << 30  # bytes of a file that goes into a row


def create(
    location: str,
    schema: Schema,
    /,
    *,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
    compression: str = "snappy",
) -> HuggingFaceSink:
    """A sink for `convert(..., to="huggingface")`.

    Images, sounds and videos go into the rows as features of their kind, also those that rows name; a text column
    `split` decides which file a row is in, and is none of the columns.

    Args:
        location: A new or empty folder: a path or URI.
        schema: What is written.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.
        compression: Of Parquet pages, as in `"zstd"`.

    Raises:
        ValueError: No such compression.
    """
    if not pa.Codec.is_available(compression) and compression != "none":
        raise ValueError(f"compression: expected snappy, zstd, gzip, brotli, lz4 or none, found {compression!r}.")
    return HuggingFaceSink(
        location=absolute(location),
        schema=schema,
        storage=storage,
        source_storage=source_storage,
        compression=compression,
    )


def takes_files(schema: Schema, /) -> list[str]:
    """The columns whose files are written into the rows."""
    return [name for name, (_, kind, _) in written(schema).items() if kind in {FILE, pa.list_(FILE)}]


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceSink:
    """See `seqlake.protocols.Sink`; picklable.

    Attributes:
        location: The folder, absolute.
        schema: What is written.
        storage: Options of the store.
        source_storage: Options of the store that the rows' files lie in; never printed.
        compression: Of Parquet pages.
    """

    location: str
    schema: Schema
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)
    compression: str = "snappy"

    @property
    def _splits(self) -> bool:
        return SPLIT in self.schema and is_text(self.schema[SPLIT].arrow) and self.schema[SPLIT].type is None

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> object:
        """Write one part, a file for each split in it; again, it replaces itself.

        Raises:
            ValidationError: A split has a name that no file can have.
            MissingFileError: A file that a row names is not there.
        """
        named = MediaFiles.named(root, self.source_storage)
        store = open_store(self.location, storage=self.storage)
        start = f"{STAGED}/{part:06d}-"
        store.delete([path for path, _ in list_without_links(store, STAGED) if path.startswith(start)])
        columns = {name: one for name, one in written(self.schema).items() if not (self._splits and name == SPLIT)}
        features = {name: feature for name, (_, _, feature) in columns.items()}
        metadata = {KEY: json.dumps({"info": {"features": features}}).encode()}
        types = pa.schema([pa.field(name, kind) for name, (_, kind, _) in columns.items()], metadata=metadata)
        with ExitStack() as stack:
            files: dict[str, _SplitWriter] = {}
            for batch in rows:
                for split, some in self._by_split(batch):
                    if split not in files:
                        path = stack.enter_context(_written(store, f"{start}{split}.parquet"))
                        files[split] = stack.enter_context(_SplitWriter(path, types, self.compression))
                    arrays = [_cells(some.column(name), kind, named) for name, (_, kind, _) in columns.items()]
                    files[split].add(pa.RecordBatch.from_arrays(arrays, schema=types))
        return [[split, f"{start}{split}.parquet"] for split in files]

    def _by_split(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not self._splits:
            yield WHOLE, batch
            return
        named = pc.fill_null(batch.column(SPLIT).cast(pa.string()), NOWHERE)
        for split in pc.unique(named).to_pylist():
            if not _NAME.fullmatch(split) or len(split) > 100:
                raise ValidationError(
                    f"The split {in_line(split)!r:.120} is no name of letters, digits and '_'.",
                    hint="Rename it, or leave the column out: ds.select(...).",
                )
            yield split, batch.filter(pc.equal(named, split))

    def commit(self, receipts: Sequence[object], /) -> None:
        """Give the files their names, which count those of each split; on a disk all at once."""
        by_split: dict[str, list[str]] = {}
        for receipt in receipts:
            assert isinstance(receipt, list)
            for split, path in receipt:
                by_split.setdefault(split, []).append(path)
        names = {
            path: f"{_DATA}/{split}-{number:05d}-of-{len(paths):05d}.parquet"
            for split, paths in by_split.items()
            for number, path in enumerate(paths)
        }
        store = open_store(self.location, storage=self.storage)
        appear(store, self.location, names)
        clear(store, self.location)

    def discard(self) -> None:
        """Remove what was written."""
        store = open_store(self.location, storage=self.storage)
        store.delete([path for path, _ in list_without_links(store) if _DONE.fullmatch(path)])
        clear(store, self.location)


@contextmanager
def _written(store: Store, path: str) -> Iterator[Path]:
    """A local file to write; afterwards it is in the store under this name."""
    local = store.local(path)
    if local is not None:
        local.parent.mkdir(parents=True, exist_ok=True)
        yield local
        store.put(path, local)
        return
    with tempfile.TemporaryDirectory(prefix="seqlake-hf-") as folder:
        yield Path(folder) / "part.parquet"
        store.put(path, Path(folder) / "part.parquet")


class _SplitWriter:
    """One file in the making; row groups of some megabytes, as the viewer of the Hub likes them."""

    def __init__(self, path: Path, types: pa.Schema, compression: str) -> None:
        self._writer: Any = pq.ParquetWriter(path, types, compression=compression, write_page_index=True)
        self._held: list[pa.RecordBatch] = []
        self._types = types

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        if sum(b.nbytes for b in self._held) >= _GROUP_BYTES or sum(b.num_rows for b in self._held) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, schema=self._types))
            self._held = []


def _cells(cells: pa.Array, kind: pa.DataType, named: MediaFiles) -> pa.Array:
    """Cells as they stand in the files."""
    if kind == FILE:
        return _files(cells, named)
    if kind == pa.list_(FILE):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(cells), 0)).astype(np.int64)
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        mask = cells.is_null() if cells.null_count else None
        return pa.ListArray.from_arrays(offsets, _files(cells.flatten(), named), mask=mask)
    return cells if cells.type == kind else cells.cast(kind)


def _files(cells: pa.Array, named: MediaFiles) -> pa.Array:
    """`{bytes, path}` of files that are bytes, `{bytes, path}` or references."""
    missing = cells.is_null()
    if pa.types.is_struct(cells.type):
        names = {one.name for one in cells.type}
        held = pc.struct_field(cells, "bytes")
        paths = pc.struct_field(cells, "path") if "path" in names else pa.nulls(len(cells), pa.string())
        if held.null_count > cells.null_count:  # only their path names some
            data = [
                one if one is not None or path is None else _read(named, path)
                for one, path in zip(held.to_pylist(), paths.to_pylist(), strict=True)
            ]
            held = pa.array(data, pa.binary())
    elif is_text(cells.type):
        references = cells.to_pylist()
        held = pa.array([None if one is None else _read(named, one) for one in references], pa.binary())
        paths = pa.array([None if one is None else one.replace("\\", "/").rpartition("/")[2] for one in references])
    else:
        held, paths = cells, pa.nulls(len(cells), pa.string())
    fields = [held.cast(pa.binary()), paths.cast(pa.string())]
    return pa.StructArray.from_arrays(fields, fields=list(FILE), mask=missing if cells.null_count else None)


def _read(named: MediaFiles, reference: str) -> bytes:
    return read_all(named.blob(reference), most=_MOST_FILE)
