"""Arrow data of any maker, brought to the schema's logical types without losing a value.

A column is matched by its name. Lists may be large, views or of fixed size; strings and binaries of any width,
dictionaries and run-end encoded columns are read as what they hold. Numbers are cast where no value changes, and from
a wider to a narrower float; nothing is parsed from text and no boolean becomes a number. Values that are of the right
type already keep their bits, NaN payloads included.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.reading import in_memory
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.selection import Selection
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards import cells
from seqlake.spec.rules import check_schema
from seqlake.spec.rules.signals import LARGEST_CELL
from seqlake.spec.schema import is_binary, is_list, is_text, without_extensions
from seqlake.spec.stamps import coarse
from seqlake.windows.timestamps import times_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.spec.schema import Column, Schema

_BATCH = 32 << 20
_NARROW = (np.dtype("f2"), np.dtype("f4"))


def batches(data: Any, schema: Schema, /, *, partial: bool = False) -> Iterator[pa.RecordBatch]:
    """Stream Arrow data in the schema's logical types, in batches of about 32 MiB.

    Args:
        data: A table, record batch, reader, dataset or data frame: anything with `__arrow_c_stream__`.
        schema: What the batches will have, column for column; columns that the data lack are null.
        partial: Leave out the columns that the data lack instead.

    Raises:
        SchemaMismatchError: Columns are unknown or missing, or a type does not fit; every one is named.
        ValidationError: A value does not fit: too large, ragged, null where that is not allowed.
    """
    reader = stream(data)
    names = [name for name in reader.schema.names if not name.startswith("__index_level_")]
    compare(reader.schema, names, schema, partial=partial)
    wanted = [name for name in schema.names if not partial or name in names]
    logical = pa.schema([schema.arrow.field(name) for name in wanted])
    row = 0
    for batch in reader:
        for part in _bounded(batch):
            columns = [
                conform_column(part.column(name), schema[name], logical.field(name).type, row=row)
                if name in names
                else pa.nulls(part.num_rows, logical.field(name).type)
                for name in wanted
            ]
            refuse_coarse(dict(zip(wanted, columns, strict=True)), schema)
            yield pa.RecordBatch.from_arrays(columns, schema=logical)
            row += part.num_rows


def stream(data: Any, /) -> pa.RecordBatchReader:
    """Anything that hands out Arrow, as a reader; rows of a dataset are compared with their checksums."""
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, Selection):
        rows = Excerpt.of(data).verified()
        return pa.RecordBatchReader.from_batches(rows.schema.arrow, rows.batches())
    if in_memory.has_arrays(data):
        return in_memory.table_of(data).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        try:
            return pa.RecordBatchReader.from_stream(data)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaMismatchError(
                f"Arrow cannot hold this {type(data).__name__}: {error}.",
                hint="Give rows as a list of dicts where cells are arrays.",
            ) from error
    if hasattr(data, "scanner"):
        return data.scanner().to_reader()
    raise SchemaMismatchError(
        f"Expected Arrow data (a table, batch, reader or data frame with __arrow_c_stream__) or a list of dicts, "
        f"found {type(data).__name__}."
    )


def compare(actual: pa.Schema, names: Sequence[str], schema: Schema, *, partial: bool = False) -> None:
    """Raise `SchemaMismatchError` that names every column which does not fit; `partial`: only the id must be there."""
    problems = [f"  {n}: is there twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    problems += unknown(names, schema)
    for name in schema.names:
        if name not in names:
            if name == schema.id or not (partial or schema[name].nullable):
                problems.append(f"  {name}: expected {schema.arrow.field(name).type}, is missing")
        elif names.count(name) == 1:
            kind, expected = actual.field(name).type, schema.arrow.field(name).type
            if not fits_column(kind, schema[name]):
                problems.append(f"  {name}: expected {expected}, found {kind}")
    if problems:
        raise SchemaMismatchError("The data do not fit the schema:\n" + "\n".join(problems))


def differences(expected: Schema, actual: Schema, /) -> list[str]:
    """One line for each column that two schemas do not have in common."""
    lines = [f"  {name}: is missing" for name in expected.names if name not in actual]
    lines += [f"  {name}: was not expected" for name in actual.names if name not in expected]
    for name in expected.names:
        if name in actual:
            one, other = expected[name], actual[name]
            if one.logical != other.logical:
                lines.append(f"  {name}: expected {one.logical}, found {other.logical}")
            elif one.type != other.type:
                lines.append(f"  {name}: expected {one.type!r}, found {other.type!r}")
    return lines


def refuse_broken(schema: Schema, /, *, column: str | None = None) -> None:
    """Raise `SchemaMismatchError` that names every error that the format's rules find in a schema, or in one column."""
    for name in schema.names if column is None else [column]:
        if _is_foreign(schema[name].arrow):
            raise SchemaMismatchError(
                f"Column {name!r}: no file format here holds {schema[name].arrow}.",
                hint="Store intervals as durations or as a struct of numbers, unions as a column for each type.",
            )
    errors = [finding for finding in check_schema(schema) if finding.severity == "error"]
    broken = [finding for finding in errors if column is None or finding.column == column]
    if broken:
        lines = [f"  {finding.column}: {finding.message} ({finding.code})" for finding in broken]
        raise SchemaMismatchError("The schema breaks rules of the format:\n" + "\n".join(lines))


def storable(schema: Schema, /) -> Schema:
    """The schema as files hold it: dictionaries of all but text, and run ends, become the values they stand for."""
    kinds = {name: _plain(schema[name].arrow) for name in schema if not is_text(schema[name].arrow)}
    changed = {name: replace(schema[name], arrow=kind) for name, kind in kinds.items() if kind != schema[name].arrow}
    return schema.with_columns(changed) if changed else schema


def _is_foreign(kind: pa.DataType) -> bool:
    """Whether no column of Parquet holds it."""
    if pa.types.is_union(kind) or pa.types.is_interval(kind):
        return True
    return any(_is_foreign(kind.field(number).type) for number in range(kind.num_fields))


def refuse_coarse(cells: Mapping[str, pa.Array], schema: Schema, /) -> None:
    """Refuse time stamps that are all alike in their type: seconds since 1970 in float32, which nothing brings back.

    Args:
        cells: Columns of some rows, conformed.
        schema: All columns.

    Raises:
        ValidationError: They are.
    """
    for name in schema.stamp_columns:
        if name not in cells or schema[name].dtype not in _NARROW or not is_list(cells[name].type):
            continue
        for row, stamps in enumerate(map(times_in, cells[name])):
            fault = None if stamps is None else coarse(stamps)
            if fault is not None:
                name_of = cells.get(schema.id or "")
                where = f"Row {row}" if name_of is None else f"Sequence {name_of[row].as_py()!r}"
                raise ValidationError(
                    f"{where}, column {name!r}: {fault}.",
                    hint=f"It holds time stamps; declare {name!r} with dtype=pa.float64().",
                )


def unknown(names: Iterable[str], schema: Schema) -> list[str]:
    """One line for each name that the schema lacks, with the nearest that it has."""
    lines, known = [], schema.names
    for name in dict.fromkeys(names):
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            guess = f"; did you mean {near[0]!r}?" if near else ""
            lines.append(f"  {name}: is not in the schema ({', '.join(known)}){guess}")
    return lines


def fits_column(actual: pa.DataType, column: Column) -> bool:
    """Whether cells of a type may be those of a column; of a raw one as bytes or as lists."""
    return fits(actual, column.logical) or (column.raw and fits(actual, pa.binary()))


def fits(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Whether values of one type may be values of another without being reinterpreted."""
    is_ = pa.types
    actual, expected = _plain(actual), _plain(expected)
    if is_.is_null(actual) or actual == expected:
        return True
    if is_list(actual) and is_list(expected):
        sizes = [t.list_size for t in (actual, expected) if is_.is_fixed_size_list(t)]
        return len(set(sizes)) < 2 and fits(actual.value_type, expected.value_type)
    if is_.is_struct(actual) and is_.is_struct(expected):
        names = [f.name for f in expected]
        return all(f.name in names for f in actual) and all(
            fits(actual.field(f.name).type, f.type) for f in expected if actual.get_field_index(f.name) >= 0
        )
    if is_.is_timestamp(actual) and is_.is_timestamp(expected):
        return (actual.tz is None) == (expected.tz is None)
    groups = (_number, is_text, _bytes, is_.is_date, is_.is_time, is_.is_duration, is_.is_decimal)
    return any(group(actual) and group(expected) for group in groups)


def conform_column(array: pa.Array, column: Column, logical: pa.DataType, *, row: int = 0) -> pa.Array:
    """One column in its logical type.

    Args:
        array: What was given; its type passed `fits`.
        column: Its column.
        logical: The type to reach.
        row: The number of its first row, for messages.

    Raises:
        ValidationError: A value does not fit, a cell is above 1 GiB, or null where that is not allowed.
    """
    where = f"column {column.name!r}"
    if not column.nullable and array.null_count:
        first = row + int(np.flatnonzero(np.asarray(array.is_null()))[0])
        raise ValidationError(f"{where}, row {first}: null where the schema allows none.")
    _refuse_large(array, where, row)
    array = _decoded(array)
    if column.raw and _bytes(array.type):
        array = _unpacked(array, column, logical, where)
    out = conform(array, logical, where=where)
    if column.category == "vector" and column.dim is not None:
        wrong = pc.fill_null(pc.not_equal(pc.list_value_length(out), column.dim), False)
        if (at := np.flatnonzero(np.asarray(wrong))).size:
            width = len(out[int(at[0])])
            raise ValidationError(f"{where}, row {row + int(at[0])}: expected {column.dim} values, found {width}.")
    return out


def conform(array: pa.Array, expected: pa.DataType, *, where: str) -> pa.Array:
    """An array in another type that it `fits`, values unchanged; buffers are shared where they can be."""
    array = _decoded(array)
    if array.type == expected:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), expected)
    if is_list(expected):
        return _conform_list(array, expected, where)
    if pa.types.is_struct(expected):
        children = [
            conform(array.field(f.name), f.type, where=where)
            if array.type.get_field_index(f.name) >= 0
            else pa.nulls(len(array), f.type)
            for f in expected
        ]
        return pa.StructArray.from_arrays(children, fields=list(expected), mask=array.is_null())
    try:
        out = pc.cast(array, expected)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValidationError(f"{where}: a value of {array.type} does not fit {expected}: {error}.") from error
    if pa.types.is_floating(array.type) and pa.types.is_floating(expected) and overflowed(array, out):
        raise ValidationError(f"{where}: a finite value of {array.type} is too large for {expected}.")
    return out


def overflowed(wide: pa.Array, narrow: pa.Array) -> bool:
    """Whether a finite float became infinite."""
    if wide.type.bit_width <= narrow.type.bit_width:
        return False
    before = wide.drop_null().to_numpy(zero_copy_only=False)
    after = narrow.drop_null().to_numpy(zero_copy_only=False)
    return bool((np.isfinite(before) & ~np.isfinite(after)).any())


def _conform_list(array: pa.Array, expected: pa.DataType, where: str) -> pa.Array:
    lengths, values = cells.list_lengths(array), conform(array.flatten(), expected.value_type, where=where)
    fixed = pa.types.is_fixed_size_list(expected)
    if fixed and (other := lengths[(lengths >= 0) & (lengths != expected.list_size)]).size:
        raise ValidationError(
            f"{where}: every step must have {expected.list_size} values, found one with {other[0]}.",
            hint="Steps of one column are equally long; change `dim` in the schema or the data.",
        )
    if not fixed and not pa.types.is_large_list(expected) and len(values) > np.iinfo(np.int32).max:
        raise ValidationError(f"{where}: one row holds {len(values)} values, Arrow lists at most 2147483647.")
    return cells.listed(lengths, values, expected)


def _unpacked(array: pa.Array, column: Column, logical: pa.DataType, where: str) -> pa.Array:
    """Little-endian cells as lists of steps."""
    try:
        return cells.cast(array.cast(pa.binary()), logical, column=column.name)
    except SchemaMismatchError as error:
        wanted = f"whole steps of {column.dim} {column.value_type} values"
        raise ValidationError(f"{where}: a raw cell must be {wanted}: {error.message}") from error


def _refuse_large(array: pa.Array, where: str, row: int) -> None:
    """A cell above 1 GiB is refused; only a batch above it can hold one."""
    if array.nbytes <= LARGEST_CELL:
        return
    for number in range(len(array)):
        size = array.slice(number, 1).nbytes
        if size > LARGEST_CELL:
            raise ValidationError(too_large(f"{where}, row {row + number}", size))


def too_large(where: str, size: int) -> str:
    """The message for a cell above 1 GiB."""
    return (
        f"{where}: a cell may have 1 GiB, this one has {size / (1 << 30):.2f} GiB. Cut the sequence into "
        "segments of fewer steps and write each as a row of its own."
    )


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of at most 32 MiB, or of one row."""
    if batch.num_rows <= 1 or batch.nbytes <= _BATCH:
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from _bounded(batch.slice(0, half))
    yield from _bounded(batch.slice(half))


def _plain(kind: pa.DataType) -> pa.DataType:
    kind = without_extensions(kind)
    while True:
        if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def _decoded(array: pa.Array) -> pa.Array:
    kind = without_extensions(array.type)
    array = array if array.type == kind else array.cast(kind)
    while True:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        elif pa.types.is_run_end_encoded(array.type):
            array = pc.run_end_decode(array)
        else:
            return array


def _number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _bytes(kind: pa.DataType) -> bool:
    return is_binary(kind) or bool(pa.types.is_fixed_size_binary(kind))
