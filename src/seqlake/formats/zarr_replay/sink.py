"""Writes sequences as a replay buffer of zarr: parts are staged, one commit joins them to arrays."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import MAPPING, Kind, takes, whole
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.appearing import STAGED, clear, sweep
from seqlake.files.locations import absolute
from seqlake.files.stores import exists, open_store
from seqlake.formats._frames import frames_of, has_frames
from seqlake.formats._zarr.metadata import BLOSC, ArrayMetadata, encoder
from seqlake.formats._zarr.writing import ZarrForm
from seqlake.formats.zarr_replay.layout import DATA, ENDS, META
from seqlake.receipts import by_part
from seqlake.spec.schema import dtype_of, is_list, is_number, is_text
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Store
    from seqlake.spec.schema import Column, Schema

_CHUNK_BYTES = 1 << 20  # of signals, about
_CODEC = Kind("settings of a codec, as {'id': 'zstd', 'level': 3}, or None", lambda value: value is None or value["id"])


_VERSION = Kind("2 or 3", lambda value: value in {2, 3})


@takes(chunks=whole(0), shards=whole(0), zarr_format=_VERSION, compressor=_CODEC, fill=MAPPING.or_none())
def create(
    location: str,
    schema: Schema,
    /,
    *,
    chunks: int = 0,
    shards: int = 0,
    zarr_format: int = 2,
    compressor: Mapping[str, Any] | None = BLOSC,
    fill: Mapping[str, Any] | None = None,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> ReplaySink:
    """Write sequences as a replay buffer that diffusion policy reads; videos and pictures become [T, H, W, C] pixels.

    Args:
        location: A new folder or URI.
        schema: The columns.
        chunks: Steps of signals in a chunk; 0: about a mebibyte. A picture is a chunk of its own.
        shards: Steps whose chunks share a file, made up to whole chunks; 0: a chunk is a file. Needs `zarr_format=3`.
        zarr_format: 2, which diffusion policy and UMI read with the zarr that they pin, or 3, which zarr 3 writes.
        compressor: The settings of a codec, as numcodecs names them; None stores plain bytes.
        fill: What stands for a null, by column of one value a row.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        SchemaMismatchError: No column that a buffer can hold, or `fill` names one that is not there.
        ValueError: A setting that makes no sense.

    Example:
        ```python
        sl.convert("data/arm", "arm.zarr", to="zarr_replay")
        ```
    """
    if shards and zarr_format == 2:
        raise ValueError("shards: chunks share files in zarr format 3 only; give zarr_format=3, or leave shards out.")
    for name in fill or ():
        schema[name]
    left = dropped(schema)
    kept = [name for name in schema.names if name not in left]
    if not any(_of_steps(schema[name]) for name in kept):
        raise SchemaMismatchError("A replay buffer needs a column of steps: signals of one shape, or pictures.")
    one = np.dtype(np.uint8)
    encoder(ArrayMetadata(dtype=one, shape=(1,), chunks=(1,), compressor=compressor))  # settings are told now
    return ReplaySink(
        location=absolute(location),
        schema=schema,
        columns=tuple(kept),
        chunks=chunks,
        form=ZarrForm(version=zarr_format, shard=shards),
        compressor=compressor,
        fill=fill or {},
        storage=storage,
        source_storage=source_storage,
    )


def takes_files(schema: Schema, /) -> Collection[str]:
    """All columns: frames and files are written, no references to them."""
    return schema.names


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that a replay buffer has no place for, with the reason."""
    reasons = {name: _refusal(column) for name, column in schema.items()}
    return {name: why for name, why in reasons.items() if why}


def _refusal(column: Column) -> str:
    if _of_steps(column):
        return ""
    if column.category == "temporal":
        return "its steps have no one shape"
    kind = column.arrow
    if column.category == "vector":
        return "" if column.dim is not None else "its vectors have no one length"
    plain = is_text(kind) or (is_number(kind) and not is_list(kind))
    return "" if plain and column.medium is None else f"a replay buffer holds numbers, pictures and texts, no {kind}"


def _of_steps(column: Column) -> bool:
    return has_frames(column) or (column.category == "temporal" and column.shape is not None)


def array_names(columns: Sequence[str], schema: Schema, /) -> dict[str, str]:
    """Column -> array: `data/<name>` for steps, `meta/<name>` for what is known of a whole episode."""
    names: dict[str, str] = {}
    taken = {ENDS}
    for column in columns:
        name = column.replace("/", "_").replace("\\", "_")
        name = f"_{name}" if name.startswith((".", "__")) or not name else name
        full = (DATA if _of_steps(schema[column]) else META) + name
        while full in taken:
            full += "_"
        taken.add(full)
        names[column] = full
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySink:
    """A `Sink`; picklable.

    Attributes:
        location: The buffer to be.
        schema: Of the rows.
        columns: Those that are written.
        chunks: Steps of signals in a chunk; 0: about a mebibyte.
        form: The format of zarr, and how many steps share a file.
        compressor: Settings of the codec.
        fill: What stands for nulls.
        storage: Options of the object store; never printed.
        source_storage: Options of the store that the rows' files lie in; never printed.
    """

    location: str
    schema: Schema
    columns: Sequence[str]
    chunks: int
    form: ZarrForm
    compressor: Mapping[str, Any] | None
    fill: Mapping[str, Any]
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage the steps of one part, plain; the same part again replaces itself.

        Returns:
            Lengths of the episodes, dtype and shape of a step of every column, and the values of the others.

        Raises:
            ValidationError: Columns of one episode with different numbers of steps, nulls, pictures of several sizes.
        """
        named = MediaFiles.named(root, self.source_storage)
        names = array_names(self.columns, self.schema)
        staged = _Staged(self, named)
        store = open_store(self.location, storage=self.storage)
        with tempfile.TemporaryDirectory(prefix="seqlake-replay-") as folder, ExitStack() as files:
            for column in self.columns:
                if names[column].startswith(DATA):
                    staged.files[column] = files.enter_context((Path(folder) / str(len(staged.files))).open("wb"))
            for batch in rows:
                for row in range(batch.num_rows):
                    staged.add(batch, row)
            files.close()
            for number in range(len(staged.files)):
                store.put(_part(part, number), Path(folder) / str(number))
        return {"part": part, "lengths": staged.lengths, "steps": staged.steps, "known": staged.known}

    def commit(self, receipts: Sequence[object], /) -> None:
        """Make the arrays of all parts; only its last file makes it a store.

        Raises:
            ValidationError: Pictures of several sizes.
        """
        store = open_store(self.location, storage=self.storage)
        if not exists(store, self.form.gate):  # else it was made, and only the parts are left to remove
            self._make(store, by_part(receipts))
        self._clear(store)

    def _make(self, store: Store, ordered: Sequence[Mapping[str, Any]]) -> None:
        sweep(store, self.location)
        names = array_names(self.columns, self.schema)
        lengths = np.array([one for receipt in ordered for one in receipt["lengths"]], np.int64)
        stepped = [column for column in self.columns if names[column].startswith(DATA)]
        for number, column in enumerate(stepped):
            metadata = self._metadata(column, ordered, int(lengths.sum()))
            self.form.put_array(store, names[column], metadata, _pieces(store, number, metadata, ordered))
        for column in self.columns:
            if column not in stepped:
                values = np.array([one for receipt in ordered for one in receipt["known"][column]], self._kind(column))
                self._put_whole(store, names[column], _texts(values))
        self._put_whole(store, ENDS, np.cumsum(lengths))
        for folder in (DATA, META):
            self.form.put_group(store, folder)
        store.sync("")
        self.form.put_group(store, "")
        store.sync("")

    def _put_whole(self, store: Store, name: str, values: NDArray[Any]) -> None:
        """An array of one chunk."""
        metadata = ArrayMetadata(
            dtype=values.dtype,
            shape=values.shape,
            chunks=tuple(max(1, size) for size in values.shape),
            compressor=self.compressor,
            fill=_missing(values.dtype),
        )
        ZarrForm(version=self.form.version).put_array(store, name, metadata, [values] if len(values) else [])

    def _kind(self, column: str) -> Any:
        kind = self.schema[column].arrow
        if is_text(kind):
            return np.str_
        return dtype_of(self.schema[column].value_type or kind)

    def _metadata(self, column: str, receipts: Sequence[Mapping[str, Any]], count: int) -> ArrayMetadata:
        known = {receipt["steps"][column] for receipt in receipts if column in receipt["steps"]}
        if len(known) > 1:
            raise ValidationError(f"Column {column!r} has pictures of several sizes: {sorted(known, key=str)}.")
        described, shape = known.pop() if known else _declared(self.schema[column])
        dtype = np.dtype(described)
        width = dtype.itemsize * max(prod(shape), 1)
        size = 1 if has_frames(self.schema[column]) else self.chunks or max(1, _CHUNK_BYTES // width)
        return ArrayMetadata(
            dtype=dtype,
            shape=(count, *shape),
            chunks=(max(1, min(size, count)), *(max(1, one) for one in shape)),
            compressor=self.compressor,
            fill=_missing(dtype),
        )

    def discard(self) -> None:
        """Remove what was staged, and what a commit that failed had written."""
        self._clear(open_store(self.location, storage=self.storage))

    def _clear(self, store: Store) -> None:
        clear(store, self.location, () if exists(store, self.form.gate) else (DATA, META))


class _Staged:
    """One part in the making: the bytes of steps go to files, all else is kept.

    Args:
        sink: Whose part it is.
        named: How files are opened that rows name.
    """

    def __init__(self, sink: ReplaySink, named: MediaFiles) -> None:
        self.files: dict[str, IO[bytes]] = {}
        self.lengths: list[int] = []
        self.steps: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.known: dict[str, list[Any]] = {column: [] for column in sink.columns}
        self._sink = sink
        self._named = named

    def add(self, batch: pa.RecordBatch, row: int) -> None:
        """Take in one episode, a row."""
        sink, length = self._sink, -1
        key = sink.schema.id
        where = f"Sequence {batch.column(key)[row].as_py()!r}" if key is not None else f"Row {row} of its batch"
        for column in sink.columns:
            cell = batch.column(column)[row]
            if column not in self.files:
                self.known[column].append(self._value(column, cell, where))
                continue
            if not cell.is_valid:
                raise ValidationError(f"{where}: {column!r} is null; a replay buffer has steps in every column.")
            steps = (
                self._pictures(column, cell, where) if has_frames(sink.schema[column]) else self._signal(column, cell)
            )
            if length not in {-1, steps}:
                raise ValidationError(
                    f"{where}: {column!r} has {steps} steps, the columns before it {length}.",
                    hint="A replay buffer has one clock: seqlake resample first, or leave the column out.",
                )
            length = steps
        self.lengths.append(max(length, 0))

    def _value(self, column: str, cell: pa.Scalar, where: str) -> Any:
        value = cell.as_py() if cell.is_valid else self._sink.fill.get(column)
        if value is None:
            raise ValidationError(
                f"{where}: {column!r} is null, and arrays hold no nulls.",
                hint=f"Say what stands for it: fill={{{column!r}: ...}}.",
            )
        known = self._sink.schema[column]
        if known.category == "vector" and len(value) != known.dim:
            raise ValidationError(f"{where}: {column!r} has {len(value)} numbers, expected {known.dim}.")
        return value

    def _signal(self, column: str, cell: pa.ListScalar) -> int:
        values = cell.values
        count = len(values)
        while is_list(values.type):
            values = values.flatten()
        if values.null_count:
            raise ValidationError(f"Column {column!r} holds nulls among its numbers.")
        described, shape = _declared(self._sink.schema[column])
        numbers = np.asarray(values.to_numpy(zero_copy_only=False)).astype(described, copy=False)
        if numbers.size != count * prod(shape):
            raise ValidationError(f"Column {column!r} has {numbers.size} numbers in {count} steps of {list(shape)}.")
        self.steps[column] = (described, shape)
        self.files[column].write(np.ascontiguousarray(numbers).tobytes())
        return count

    def _pictures(self, column: str, cell: pa.Scalar, where: str) -> int:
        count = 0
        for frame in frames_of(cell.as_py(), self._sink.schema[column], self._named):
            known = (frame.dtype.newbyteorder("<").str, frame.shape)
            if self.steps.setdefault(column, known) != known:
                raise ValidationError(
                    f"{where}: {column!r} has a picture of {list(frame.shape)} {frame.dtype} at step {count}, those "
                    f"before are {list(self.steps[column][1])}.",
                    hint="A replay buffer holds pictures of one size.",
                )
            self.files[column].write(np.ascontiguousarray(frame).tobytes())
            count += 1
        return count


def _declared(column: Column) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a step, as columns of signals declare them."""
    if has_frames(column):
        return "|u1", (1, 1, 3)
    assert column.dtype is not None
    assert column.shape is not None
    return column.dtype.newbyteorder("<").str, column.shape


def _pieces(
    store: Store, number: int, metadata: ArrayMetadata, receipts: Sequence[Mapping[str, Any]]
) -> Iterator[NDArray[Any]]:
    """The rows of an array in pieces of one chunk, the last one shorter."""
    size, width = metadata.chunks[0], metadata.row_bytes
    held: list[NDArray[Any]] = []
    count = 0
    for receipt in receipts:
        rows, at = int(sum(receipt["lengths"])), 0
        if not rows:
            continue
        blob = store.blob(_part(receipt["part"], number))
        while at < rows:
            until = min(rows, at + size - count)
            [data] = blob.ranges(np.array([at * width], np.int64), np.array([until * width], np.int64))
            held.append(np.frombuffer(data, metadata.dtype).reshape(-1, *metadata.shape[1:]))
            count += until - at
            at = until
            if count == size:
                yield np.concatenate(held)
                held, count = [], 0
    if count:
        yield np.concatenate(held)


def _missing(dtype: np.dtype[Any]) -> Any:
    """What stands where a chunk is missing; none is."""
    return {"U": "", "b": False}.get(dtype.kind, 0)


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Texts of at least one letter, which arrays need."""
    return values.astype("<U1") if values.dtype.kind == "U" and values.dtype.itemsize == 0 else values


def _part(part: int, number: int) -> str:
    return f"{STAGED}/{part}/{number}"
