"""Rows from outside, checked and in the schema's logical Arrow types: sequences one by one, dicts, tables, data frames.

A row is checked whole before anything of it is kept, so that a mistake leaves what came before it as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.copying import whole_file
from seqlake.dataset.writing.references import may_name
from seqlake.dataset.writing.values import cell
from seqlake.errors import DuplicateSequenceError, SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.spec.alignment import clock_of, on_clock
from seqlake.spec.schema import is_binary

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column, Schema

    CopyIn = Callable[[str, str, "File"], str]
    Encode = Callable[[str, Mapping[str, object]], AbstractContextManager[Mapping[str, object]]]

_BUFFER_BYTES = 8 << 20
_BUFFER_ROWS = 4096
_SHARDS_ASKED, _ROWS_ASKED = 8, 16


@dataclass(frozen=True, slots=True)
class File:
    """A file to copy into the dataset; the row then refers to the copy.

    Args:
        path: A path or URI. A `str` in its place in a row would be a reference, kept as it is.

    Example:
        ```python
        writer.add("ep_001", video_cam_high=sl.File("recordings/cam.mp4"))
        ```
    """

    path: str | os.PathLike[str]

    @property
    def location(self) -> str:
        """The absolute path or URI."""
        return absolute(self.path)


@dataclass(frozen=True, slots=True)
class Encoded(File):
    """Frames encoded for this row: taken over, since nothing else needs the file.

    Args:
        path: A local path.
        suffix: What its name in the dataset ends in.
        packets: Its packet indexes, where they were made already.
    """

    suffix: str = ""
    packets: Mapping[int, bytes] = field(default_factory=dict)


class KnownIds:
    """The ids that one writer has seen, so that a repeated one is told at once."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def check(self, value: object) -> str:
        """A valid new id; it counts as seen only after `add`.

        Raises:
            SchemaMismatchError: It is not a str.
            ValidationError: It is empty, or not text that UTF-8 can hold.
            DuplicateSequenceError: This writer has it already.
        """
        if not isinstance(value, str):
            raise SchemaMismatchError(f"A sequence_id is a str, found {type(value).__name__} {value!r}.")
        if not value:
            raise ValidationError("A sequence_id must not be empty.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValidationError(f"A sequence_id must be valid Unicode, found {value!r} ({error.reason}).") from error
        if value in self._seen:
            raise DuplicateSequenceError(
                f"The sequence_id {value!r} was added already.",
                hint="Give each sequence an id of its own, or use `upsert` to replace one.",
            )
        return str(value)

    def add(self, value: str) -> None:
        """Remember an id that was added."""
        self._seen.add(value)

    def add_all(self, column: pa.Array) -> None:
        """Check and remember a column of ids, all or none of them."""
        fresh: set[str] = set()
        for value in column.to_pylist():
            if value in fresh:
                raise DuplicateSequenceError(f"The sequence_id {value!r} is in the data twice.")
            fresh.add(self.check(value))
        self._seen |= fresh

    def forget(self, values: Iterable[str]) -> None:
        """Rows that were not written after all."""
        self._seen.difference_update(values)


class Widths:
    """Numbers a step of each signal that declares none: those of the rows that are there, else of the first that comes.

    Args:
        schema: Of the rows.
        source: The rows that are there.
    """

    def __init__(self, schema: Schema, source: Readable) -> None:
        self.names: list[str] = undeclared(schema)
        self._source = source
        self._known: dict[str, int | None] = {}

    def of(self, name: str, /) -> int | None:
        """Of one signal; None where it declares how many, or nothing tells it yet."""
        if name not in self._known and name in self.names:
            self._known[name] = first_width(self._source, name)
        return self._known.get(name)

    def check(self, cells: Mapping[str, pa.Array], where: str) -> None:
        """Refuse rows whose steps are of another width than the rows before them.

        Raises:
            ValidationError: Some are.
        """
        widths: dict[str, int | None] = {}
        for name in self.names:
            bounds = pc.min_max(pc.list_value_length(cells[name].flatten())).as_py() if name in cells else {}
            low, high = bounds.get("min"), bounds.get("max")
            if low is None:
                continue
            known = self.of(name)
            first = widths[name] = low if known is None else known
            if low != first or high != first:
                raise ValidationError(
                    f"{where}, column {name!r}: expected {first} numbers a step as in the rows before, found "
                    f"{high if low == first else low}.",
                    hint=f"All sequences of a signal have one dimension; declare it, as in sl.Trajectory(dim={first}).",
                )
        self._known |= widths


def undeclared(schema: Schema, /) -> list[str]:
    """The signals, [T, D], that do not declare how many numbers a step has."""
    columns = schema.items()
    return [n for n, c in columns if c.category == "temporal" and c.nested and not c.deep and c.dim is None]


def first_width(source: Readable, name: str, /) -> int | None:
    """Numbers a step of a signal, as the first shard that has a step says; None where the first few have none.

    Indexes and footers tell it where steps lie flat; else a few rows are read.
    """
    for shard in islice(source.shards() if name in source.schema else (), _SHARDS_ASKED):
        # Rows may be added whatever is wrong with those that are there.
        with suppress(SeqlakeError, OSError):
            reader = shard.open()
            try:
                flat = reader.flat(name)
                if flat is not None and (flat.steps > 0).any():
                    return int(np.prod(flat.shape, dtype=np.int64))
                rows = np.arange(0 if flat is not None else min(shard.rows, _ROWS_ASKED))
                for batch in reader.batches([name], rows=rows):
                    widths = pc.list_value_length(batch.column(0).flatten()).drop_null()
                    if len(widths):
                        return int(widths[0].as_py())
            finally:
                reader.close()
    return None


class RowBuffer:
    """Sequences that were added one by one, until they are worth a batch."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._cells: dict[str, list[pa.Array]] = {name: [] for name in schema.names}
        self.rows: int = 0
        self.nbytes: int = 0

    def add(self, row: Mapping[str, pa.Array]) -> bool:
        """Keep one row that `prepare` made; whether the buffer should be flushed: at 8 MiB or 4096 rows."""
        for name, array in row.items():
            self._cells[name].append(array)
            self.nbytes += array.nbytes
        self.rows += 1
        return self.nbytes >= _BUFFER_BYTES or self.rows >= _BUFFER_ROWS

    def flush(self) -> pa.RecordBatch:
        """Everything kept, as one batch; the buffer is empty after it."""
        columns = [self._joined(name, cells) for name, cells in self._cells.items()]
        self._cells = {name: [] for name in self._cells}
        self.rows = self.nbytes = 0
        return pa.RecordBatch.from_arrays(columns, schema=self._schema.arrow)

    def _joined(self, name: str, cells: list[pa.Array]) -> pa.Array:
        if not cells:
            return pa.nulls(0, self._schema.arrow.field(name).type)
        try:
            return pa.concat_arrays(cells)
        except pa.ArrowInvalid:  # offsets of 32 bits
            nbytes = sum(array.nbytes for array in cells)
            raise ValidationError(
                f"Column {name!r}: expected at most 2 GiB of cells at a time, found {nbytes / (1 << 30):.1f} GiB in "
                f"{len(cells)} rows.",
                hint="Give fewer rows to each call; ds.append and ds.writer() take any number.",
            ) from None


def prepare(
    schema: Schema, sequence_id: str, values: Mapping[str, object], /, *, copy: CopyIn | None = None
) -> dict[str, pa.Array]:
    """One row, checked: an Arrow array of one element for each column of the schema.

    Args:
        schema: The dataset's schema.
        sequence_id: A valid id (`KnownIds.check`).
        values: Cells by column; what is missing is null, `length` is counted.
        copy: Copies a `File` in and gives its reference; called after every other cell was found right.

    Raises:
        SchemaMismatchError: Unknown columns, wrong shapes or kinds of values.
        ValidationError: A value does not fit its column.
    """
    key, arrow = schema.id, schema.arrow
    known = arrow.names
    strange = [name for name in values if name != key and name not in known]
    if strange:
        lines = conforming.unknown(strange, schema)
        raise SchemaMismatchError(f"Sequence {sequence_id!r} does not fit the schema:\n" + "\n".join(lines))
    row: dict[str, pa.Array] = {}
    files: dict[str, list[File]] = {}
    for name, column in schema.items():
        where = f"Sequence {sequence_id!r}, column {name!r}"
        logical = arrow.field(name).type
        value = sequence_id if name == key else in_row(values.get(name), column, where)
        if name != key and (given := _files(value)):
            files[name] = [existing(file, column, where) for file in given]
            value = _without_files(value)
        if value is None and name == "length" and pa.types.is_integer(logical):
            continue  # filled below, when the steps are known
        row[name] = cell(value, column, logical, where=where)
    if "length" in known and "length" not in row:
        kept = pa.RecordBatch.from_arrays(list(row.values()), names=list(row))
        row["length"] = steps_of(kept, schema)
    if schema.stamp_columns:
        conforming.refuse_coarse(row, schema)
    for name, given in files.items():
        if copy is None:
            raise SchemaMismatchError(
                f"Sequence {sequence_id!r}, column {name!r}: a File cannot be copied in here.",
                hint="Use `upsert`, or give a reference as a str.",
            )
        references = iter([copy(name, sequence_id, file) for file in given])
        value = _replaced(values[name], references)
        where = f"Sequence {sequence_id!r}, column {name!r}"
        row[name] = cell(value, schema[name], arrow.field(name).type, where=where)
    return {name: row[name] for name in known}


def is_rows(data: object, /) -> bool:
    """Whether data are rows as Python dicts, not Arrow."""
    return (
        isinstance(data, Iterable)
        and not isinstance(data, Mapping | str | bytes)
        and not hasattr(data, "__arrow_c_stream__")
        and not isinstance(data, pa.RecordBatch)
        and not hasattr(data, "scanner")
    )


def rows(data: Iterable[object], schema: Schema, /) -> Iterator[tuple[object, dict[str, object]]]:
    """Dicts as (id, other cells).

    Raises:
        SchemaMismatchError: Something that is no dict, or one without an id.
    """
    for number, row in enumerate(data):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(
                f"Row {number}: expected a dict of cells by column, found {type(row).__name__}.",
                hint="Give a list of dicts, or anything with __arrow_c_stream__.",
            )
        if schema.id not in row:
            raise SchemaMismatchError(f"Row {number}: expected a {schema.id!r}, found only {', '.join(map(str, row))}.")
        yield row[schema.id], {str(name): value for name, value in row.items() if name != schema.id}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """Cells for rows that may be there already.

    Attributes:
        cells: Ids and the columns that any row gives, in logical types.
        present: Column -> [rows] whether the row gives it; columns that every row gives are left out.
        frames: Id -> its steps as the frames that were encoded for it tell, where `length` is not given.
    """

    cells: pa.Table
    present: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    frames: Mapping[str, int] = field(default_factory=dict)

    def gives(self, column: str, rows: Ints) -> NDArray[np.bool_]:
        """[rows] whether each of these rows gives the column."""
        mask = self.present.get(column)
        return np.ones(len(rows), np.bool_) if mask is None else mask[rows]


def _as_given(_: str, values: Mapping[str, object]) -> AbstractContextManager[Mapping[str, object]]:
    """No row has frames."""
    return nullcontext(values)


def given_cells(data: Any, schema: Schema, /, *, copy: CopyIn | None = None, encode: Encode = _as_given) -> Given:
    """Dicts or Arrow data as cells of the columns that are given; ids are checked.

    Args:
        data: A list of dicts, where each may give other columns, or Arrow data of any maker.
        schema: The dataset's schema.
        copy: Copies a `File` in and gives its reference; without it files are refused.
        encode: Puts files and encoded images in the place of frames, for as long as its context is open.

    Raises:
        SchemaMismatchError: Unknown columns or wrong types.
        ValidationError: Values that do not fit; `DuplicateSequenceError` for an id that is there twice.
    """
    ids = KnownIds()
    if is_rows(data):
        return _from_rows(list(rows(data, schema)), schema, ids, copy, encode)
    batches = list(conforming.batches(data, schema, partial=True))
    for batch in batches:
        ids.add_all(batch.column(schema.id))
    if not batches:
        return Given(cells=schema.select([str(schema.id)]).arrow.empty_table())
    return Given(cells=pa.Table.from_batches(batches))


def _from_rows(
    given: list[tuple[object, dict[str, object]]], schema: Schema, ids: KnownIds, copy: CopyIn | None, encode: Encode
) -> Given:
    named = set(chain.from_iterable(values for _, values in given))
    missing = conforming.unknown(sorted(named), schema)
    if missing:
        raise SchemaMismatchError("The rows do not fit the schema:\n" + "\n".join(missing))
    part = schema.select([name for name in schema.names if name == schema.id or name in named])
    buffer = RowBuffer(part)
    frames: dict[str, int] = {}
    for key, values in given:
        checked = ids.check(key)
        # What a row does not give stays as it is, so that a column without nulls may be left out too.
        nullable = part.with_columns({n: replace(part[n], nullable=True) for n in part.names if n not in values})
        with encode(checked, values) as cells:
            if isinstance(steps := cells.get("length"), int) and "length" not in values:
                frames[checked] = steps
            buffer.add(prepare(nullable, checked, {name: cells[name] for name in values}, copy=copy))
        ids.add(checked)
    masks = {name: np.array([name in values for _, values in given], np.bool_) for name in named}
    present = {name: mask for name, mask in masks.items() if not mask.all()}
    return Given(cells=pa.Table.from_batches([buffer.flush()]), present=present, frames=frames)


def with_lengths(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Null cells of `length` counted from the steps of the row; others stay as they are."""
    if "length" not in batch.schema.names or not pa.types.is_integer(batch.schema.field("length").type):
        return batch
    place = batch.schema.get_field_index("length")
    if not batch.column(place).null_count:
        return batch
    filled = pc.coalesce(batch.column(place), steps_of(batch, schema))
    return batch.set_column(place, batch.schema.field(place), filled)


def with_counted_lengths(given: Given, schema: Schema) -> Given:
    """Rows with new signals get their number of steps, unless they give `length` too; so do rows with frames.

    Frames alone change the `length` of a row that is there only where no signal on the clock could tell it.
    """
    rows, clock = given.cells, _clock_column(schema)
    signal = clock is not None and clock in rows.column_names
    if "length" not in schema or not (signal or given.frames):
        return given
    length = schema.arrow.field("length")
    if not pa.types.is_integer(length.type):
        return given
    frames = pa.array([given.frames.get(key) for key in rows.column(str(schema.id)).to_pylist()], length.type)
    steps = pa.chunked_array([steps_of(batch, schema) for batch in rows.to_batches()], length.type)
    counted, everyone = pc.coalesce(steps, frames), np.ones(len(frames), np.bool_)
    known = given.present.get(str(clock), everyone) if signal else np.asarray(frames.is_valid()) & (clock is None)
    if "length" in rows.column_names:
        said = given.present.get("length", everyone)
        counted, known = pc.if_else(said, rows.column("length"), counted), known | said
        rows = rows.drop_columns("length")
    present = {**given.present, "length": known}
    return replace(given, cells=rows.append_column(length, counted), present=present)


def steps_of(batch: pa.RecordBatch, schema: Schema) -> pa.Array:
    """The number of clock steps of each row, null where no column tells."""
    logical = schema.arrow.field("length").type
    name = _clock_column(schema)
    if name is None or name not in batch.schema.names:
        return pa.nulls(batch.num_rows, logical)
    return pc.list_value_length(batch.column(name)).cast(logical)


def _clock_column(schema: Schema) -> str | None:
    """The first column whose steps are the clock's: it has no times and no rate of its own, or the clock's rate."""
    rate = clock_of(schema).rate
    signals = (name for name in schema if schema[name].category in {"temporal", "frames"})
    return next((name for name in signals if on_clock(schema, name, rate)), None)


def _files(value: object) -> list[File]:
    if isinstance(value, File):
        return [value]
    if isinstance(value, list | tuple):
        return [one for one in value if isinstance(one, File)]
    return []


def _without_files(value: Any) -> Any:
    return "" if isinstance(value, File) else ["" if isinstance(one, File) else one for one in value]


def _replaced(value: Any, references: Iterator[str]) -> Any:
    if isinstance(value, File):
        return next(references)
    return [next(references) if isinstance(one, File) else one for one in value]


def in_row(value: Any, column: Column, where: str) -> Any:
    """The value with the bytes of the files that it names, where the column holds bytes and no references.

    Raises:
        ValidationError: A file that is not there, or is above 1 GiB.
        SchemaMismatchError: A text, or a path without bytes for a column that cannot keep a path.
    """
    kind = column.arrow
    if column.category == "frames" and is_binary(kind.value_type) and isinstance(value, list | tuple):
        return [_file_bytes(one, where) for one in value]
    if not column.inline or value is None:
        return value
    if isinstance(value, str):
        raise SchemaMismatchError(
            f"{where}: expected a file's bytes, found the text {value!r}.",
            hint="Give sl.File(path) to store the bytes of a file, or the bytes themselves.",
        )
    name = Path(value.location if isinstance(value, File) else value).name if _is_file(value) else None
    held = _file_bytes(value, where)
    if pa.types.is_struct(kind):
        fields = {"bytes": held, **({"path": name} if kind.get_field_index("path") >= 0 else {})}
        return fields if isinstance(held, bytes | bytearray | memoryview) else held
    if not isinstance(held, Mapping) or not held.keys() <= {"bytes", "path"}:
        return held
    if held.get("bytes") is None and held.get("path") is not None:
        raise SchemaMismatchError(
            f"{where}: expected a file's bytes, found the path {held['path']!r} without any.",
            hint="Give sl.File(path); only a column of {bytes, path} can name a file instead.",
        )
    return held.get("bytes")


def _is_file(value: object) -> bool:
    return isinstance(value, File | os.PathLike)


def _file_bytes(value: Any, where: str) -> Any:
    """The bytes of a file; anything else as it came."""
    if not _is_file(value):
        return value
    file = value if isinstance(value, File) else File(value)
    data = whole_file(file.location, where=where)
    if isinstance(file, Encoded):
        local_path(file.location).unlink(missing_ok=True)
    return data


def existing(file: File, column: Column, where: str) -> File:
    """The file, if it is there and the column can refer to one.

    Raises:
        SchemaMismatchError: The column holds no references.
        ValidationError: No such file.
    """
    stored = column.arrow
    if not may_name(column) or pa.types.is_struct(stored):
        raise SchemaMismatchError(f"{where}: expected {stored}, found a File; only string columns refer to files.")
    if is_local(file.location) and not local_path(file.location).is_file():
        raise ValidationError(f"{where}: expected a file to copy at {os.fspath(file.path)!r}, found none.")
    return file
