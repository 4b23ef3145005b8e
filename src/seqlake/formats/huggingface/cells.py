"""Shards of Hugging Face datasets: cells as columns show them, and the Arrow streams of `save_to_disk`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import HasLengths, KnowsColumns, Physical, Verifiable, ability
from seqlake.errors import CorruptFileError, SchemaMismatchError
from seqlake.files.arrow_ipc import decoded_bytes
from seqlake.files.limits import refuse_more_than_memory
from seqlake.files.references import open_reference
from seqlake.files.stores import read_all
from seqlake.shards.memory import ArrowReader
from seqlake.spec.schema import is_list, plain_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.huggingface.features import ShownFeature
    from seqlake.protocols import Blob, Flat, Ints, Shard, ShardReader

_MOST_FILE = 1 << 30  # bytes of a file that a row names
_SEEN: set[tuple[str, str]] = set()  # streams that this process looked at
_MOST_SEEN = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFiles:
    """Where files lie that rows name and do not hold.

    Attributes:
        root: The dataset's.
        storage: Options of its store.
        allow_outside: They may lead out of the root.
    """

    root: str
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    allow_outside: bool = False

    def read(self, path: str, /) -> bytes:
        """The bytes of one."""
        blob = open_reference(self.root, path, storage=self.storage, allow_outside=self.allow_outside)
        return read_all(blob, most=_MOST_FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamShard:
    """An Arrow stream, as `save_to_disk` writes it: a `Shard`.

    Attributes:
        blob: The file.
        rows: Its rows.
        key: `<name>#<hash>`.
    """

    blob: Blob
    rows: int
    key: str

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self.blob.size

    def open(self) -> ShardReader:
        """A reader over the file's own memory, where it is on this disk."""
        return ArrowReader(read_stream(self.blob))


def read_stream(blob: Blob, /) -> pa.Table:
    """All of an Arrow stream; on this disk nothing is copied.

    Raises:
        CorruptFileError: It is none, or its buffers contradict each other, or memory cannot hold it.
    """
    view = blob.view()
    data = memoryview(read_all(blob)) if view is None else view
    try:
        refuse_more_than_memory(decoded_bytes(data), blob.location)
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        place = blob.location, blob.token
        if place not in _SEEN:
            table.validate(full=True)
            for one in table.schema:  # names, also of inner fields, are text only if they can be decoded
                one.with_type(plain_type(one.type)).with_name(one.name)
            if len(_SEEN) >= _MOST_SEEN:
                _SEEN.clear()
            _SEEN.add(place)
    except (pa.ArrowInvalid, pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, CorruptFileError):
            raise
        text = f"{blob.location}: expected an Arrow stream, as `save_to_disk` writes it; found none ({error})."
        raise CorruptFileError(text, path=blob.location, hint="Fetch the file again.") from None
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureShard:
    """A shard whose cells are shown as features say: a `Shard`.

    Attributes:
        shard: Where the rows lie.
        columns: Stored name -> how it is shown, of those that are not shown as they are.
        files: Where files lie that rows name.
    """

    shard: Shard
    columns: Mapping[str, ShownFeature]
    files: NamedFiles

    @property
    def key(self) -> str:
        """That of the shard: the columns above it say how it is read."""
        return self.shard.key

    @property
    def rows(self) -> int:
        """Rows of the shard."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the shard."""
        return self.shard.nbytes

    def open(self) -> FeatureReader:
        """A reader for this process."""
        return FeatureReader(self)

    def verified(self) -> Shard:
        """The same, its pages compared, where the shard below can."""
        known = ability(self.shard, Verifiable)
        return self if known is None else replace(self, shard=known.verified())


class FeatureReader:
    """Reads one open `FeatureShard`."""

    def __init__(self, shard: FeatureShard, /) -> None:
        self._inner = shard.shard.open()
        self._columns = shard.columns
        self._files = shard.files
        self._location = shard.key.rpartition("#")[0]

    @property
    def schema(self) -> pa.Schema:
        """What the file has, as cells are shown."""
        known = ability(self._inner, Physical)
        assert known is not None  # Parquet and Arrow say it
        return pa.schema(
            [
                pa.field(one.name, self._columns[one.name].column.logical) if one.name in self._columns else one
                for one in known.schema
            ]
        )

    @property
    def rows(self) -> int:
        """Rows of the file."""
        known = ability(self._inner, Physical)
        assert known is not None
        return known.rows

    def holds(self, column: str, /) -> bool:
        """Whether the file surely has a column."""
        known = ability(self._inner, KnowsColumns)
        return known is not None and known.holds(column)

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`.

        Raises:
            CorruptFileError: Cells are not what their feature says.
        """
        for batch in self._inner.batches(columns, rows=rows):
            if not columns:
                yield batch
                continue
            arrays = [self._shown(name, batch.column(place)) for place, name in enumerate(columns)]
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _shown(self, name: str, cells: pa.Array) -> pa.Array:
        cells = cells.storage if isinstance(cells, pa.ExtensionArray) else cells
        wanted = self._columns.get(name)
        if wanted is None:
            return cells
        try:
            if wanted.form == "file":
                return self._bytes(cells)
            if wanted.form == "files":
                return _relisted(cells, self._bytes(cells.flatten()))
            return _flat_steps(cells, wanted)
        except (_MisfitError, pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
            said = error.args[0] if error.args else type(error).__name__
            text = f"{self._location}: column {name!r} is not what its feature says: {said}."
            raise CorruptFileError(text, path=self._location, hint="Scan it with format='parquet', as it is.") from None

    def _bytes(self, cells: pa.Array) -> pa.Array:
        """The bytes of files; those of a file that only its path names are read."""
        if not pa.types.is_struct(cells.type):
            return cells.cast(pa.binary())
        names = {one.name for one in cells.type}
        held = pc.struct_field(cells, "bytes").cast(pa.binary())
        if not held.null_count or "path" not in names:
            return held
        paths = pc.struct_field(cells, "path").to_pylist()
        if not any(paths):
            return held
        return pa.array(
            [
                data if data is not None or not path else self._files.read(path)
                for data, path in zip(held.to_pylist(), paths, strict=True)
            ],
            pa.binary(),
        )

    def flat(self, column: str, /) -> Flat | None:
        """See `ShardReader.flat`; None where cells are made."""
        return None if column in self._columns else self._inner.flat(column)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T from an index below, where there is one."""
        known = None if column in self._columns else ability(self._inner, HasLengths)
        return None if known is None else known.lengths(column)

    def close(self) -> None:
        """Close the shard below."""
        self._inner.close()


class _MisfitError(ValueError):
    """Cells are not what their feature says."""


def _lengths(cells: pa.Array) -> Any:
    return np.asarray(pc.fill_null(pc.list_value_length(cells), 0)).astype(np.int64)


def _relisted(cells: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of the same lengths over other values."""
    if not is_list(cells.type):
        raise _MisfitError(f"found {cells.type}, no list")
    offsets = np.concatenate([[0], np.cumsum(_lengths(cells))])
    if offsets[-1] != len(values) or offsets[-1] >= 1 << 31:
        raise _MisfitError(f"{offsets[-1]:,} values are expected, and {len(values):,} are there")
    mask = cells.is_null() if cells.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, mask=mask)


def _flat_steps(cells: pa.Array, wanted: ShownFeature) -> pa.Array:
    """[T, ...] as [T, D]."""
    values = cells.flatten()
    count = len(values)
    for size in wanted.shape:
        if values.null_count or not is_list(values.type):
            raise _MisfitError(f"steps of shape {list(wanted.shape)} have no gaps")
        lengths = pc.min_max(pc.list_value_length(values)).as_py()
        if len(values) and {lengths["min"], lengths["max"]} != {size}:
            raise _MisfitError(f"an axis of {size} has {lengths['min']} to {lengths['max']} numbers")
        values = values.flatten()
    kind = wanted.column.value_type
    size = wanted.column.dim or 1
    if len(values) != count * size:
        raise _MisfitError(f"{count} steps of {size} numbers are {count * size}, and {len(values)} are there")
    return _relisted(cells, pa.FixedSizeListArray.from_arrays(values.cast(kind), size))


def refuse_other(first: pa.Schema, other: pa.Schema, /, *, path: str) -> None:
    """Refuse a file whose columns are not those of the first one.

    Raises:
        SchemaMismatchError: Says which column.
    """
    for name in dict.fromkeys([*first.names, *other.names]):
        want = first.field(name).type if name in first.names else None
        have = other.field(name).type if name in other.names else None
        if want != have:
            raise SchemaMismatchError(
                f"Column {name!r} is {want or 'missing'} in the first file and {have or 'missing'} in {path}.",
                path=path,
                hint="Files of one configuration have the same columns: choose one with config=, or name a folder.",
            )
