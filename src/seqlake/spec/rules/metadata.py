"""Rules of the metadata (M1..) and of the schema (S2..)."""

from __future__ import annotations

from collections import defaultdict
from difflib import get_close_matches
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import InvalidMetadataError, UnsupportedVersionError
from seqlake.spec.column_types import KINDS
from seqlake.spec.metadata import MAJOR, Metadata
from seqlake.spec.rules._rule import rule
from seqlake.spec.schema import ID, Column, Schema, is_binary, is_list, is_number, is_text, list_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.spec.findings import Finding


def _is_real(kind: pa.DataType) -> bool:
    # SQL makes decimals of sums and integers of counts.
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


STANDARD: Mapping[str, Callable[[pa.DataType], bool]] = {
    "duration_seconds": _is_real,
    "reward": _is_real,
    "length": pa.types.is_integer,
    "source": is_text,
    "split": is_text,
    "label": is_text,
    "created_at": pa.types.is_timestamp,
}
"""The optional scalar columns that the specification names, with their types."""

METADATA, SCALARS, COLUMNS = "Dataset-Level Metadata", "Scalar Metadata Columns", "Format Specification"
TEMPORAL, FILES = "Temporal Sequence Columns", "File Reference Columns"


def check_metadata(text: str | bytes, /, *, location: str = "mixtrain.json") -> Iterator[Finding]:
    """All rules over the text of the metadata alone."""
    yield from m101_readable(text, location=location)
    yield from m102_version(text, location=location)
    yield from m103_newer_minor(text, location=location)


def check_types(metadata: Metadata, /, *, location: str = "mixtrain.json") -> Iterator[Finding]:
    """The rules over metadata that need no schema: each column type by itself."""
    yield from m103_newer_minor(metadata.to_json(), location=location)
    nothing = Schema({}, id=None, metadata=metadata)
    yield from m118_known_type(nothing, location=location)
    for name, kind in metadata.column_types.items():
        for check in (m105_dim, m106_rate, m114_shape, m115_names):
            yield from check(Column(name, kind.arrow, kind), nothing, location=location)


def check_places(texts: Sequence[tuple[str, str]], /) -> Iterator[Finding]:
    """The rule over metadata that stand in several places.

    Args:
        texts: (location, JSON text), the one that counts first, as a table's property before a `mixtrain.json`; "" for
            a place that has none.
    """
    if texts:
        yield from m122_is_there(texts[0][1], location=texts[0][0])
    yield from m117_one_place([one for one in texts if one[1]])


def check_arrow(arrow: pa.Schema, /, *, location: str = "") -> Iterator[Finding]:
    """All rules over the names and types that a file itself shows, which may be too wrong for a `Schema`."""
    yield from s201_id_is_there(arrow, location=location)
    yield from s202_names_are_unique(arrow, location=location)
    yield from s203_names_differ(arrow, location=location)


def check_schema(schema: Schema, /, *, location: str = "mixtrain.json") -> Iterator[Finding]:
    """All rules over the schema and the column types."""
    rules = (m104_column_is_there, m119_spelled, m118_known_type, s205_standard_scalars)
    yield from chain.from_iterable(check(schema, location=location) for check in rules)
    # Not `schema.arrow`: its logical types cannot be made of every declaration that is to be judged here.
    arrow = pa.schema([(column.name, column.arrow) for column in schema.values()])
    if schema.id in {None, ID}:
        yield from s201_id_is_there(arrow, location=location)
    yield from s203_names_differ(arrow, location=location)
    for column in schema.values():
        for check in COLUMN_RULES:
            yield from check(column, schema, location=location)


@rule("M101", "error", "The metadata is a JSON object with the key `mixtrain`.", section=METADATA)
def m101_readable(text: str | bytes, /, *, location: str) -> Iterator[dict[str, Any]]:
    """JSON in UTF-8, an object, `column_types` an object of objects with a string `type`."""
    try:
        Metadata.parse(text)
    except UnsupportedVersionError:
        return
    except InvalidMetadataError as error:
        yield {"message": error.message, "location": location}


@rule("M102", "error", "The version of the format is one that this package reads.", section=METADATA)
def m102_version(text: str | bytes, /, *, location: str) -> Iterator[dict[str, Any]]:
    """This package reads major version 1."""
    try:
        Metadata.parse(text)
    except UnsupportedVersionError as error:
        yield {"message": error.message, "location": location}
    except InvalidMetadataError:
        return


@rule("M103", "note", "The minor version of the format is not above ours.", section=METADATA)
def m103_newer_minor(text: str | bytes, /, *, location: str) -> Iterator[dict[str, Any]]:
    """What a newer minor version adds is kept, but not understood."""
    try:
        version = Metadata.parse(text).version
    except InvalidMetadataError:
        return
    if version != f"{MAJOR}.0":
        yield {"message": f"version {version} may hold more than this package understands", "location": location}


@rule("M104", "note", "A column type belongs to a column that is there.", section=METADATA)
def m104_column_is_there(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A type declared for a column that no shard has: of another export of the same robot, or of a column to come."""
    for name in schema.metadata.column_types:
        if name not in schema and _nearly(name, schema) is None:
            yield {"message": "declared in column_types, but no such column", "location": location, "column": name}


@rule("M119", "warning", "The name that a column type is declared for is spelled as the column's.", section=METADATA)
def m119_spelled(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A type for `acton`, beside a column `action` that has none."""
    for name in schema.metadata.column_types:
        near = None if name in schema else _nearly(name, schema)
        if near is not None:
            message = f"declared in column_types, but no such column; is {near!r} meant?"
            yield {"message": message, "location": location, "column": name}


def _nearly(name: str, schema: Schema) -> str | None:
    """The column without a type whose name is nearly this one."""
    near = get_close_matches(name, [one for one in schema if schema[one].type is None], n=1, cutoff=0.8)
    return near[0] if near else None


@rule("M117", "warning", "The metadata stand in one place.", section=METADATA)
def m117_one_place(texts: Sequence[tuple[str, str]], /) -> Iterator[dict[str, Any]]:
    """A table's property counts, and a `mixtrain.json` beside it is ignored."""
    for location, text in texts[1:]:
        differ = "" if text.strip() == texts[0][1].strip() else ", and they differ"
        yield {"message": f"there are metadata in {texts[0][0]} as well, which count{differ}", "location": location}


@rule("M122", "warning", "A table that is opened as a dataset has the key `mixtrain`.", section=METADATA)
def m122_is_there(text: str, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Its presence marks a dataset: without it columns have no types, and other readers see a plain table."""
    if not text:
        yield {"message": "untyped: there is no key `mixtrain`; `seqlake init` sets it", "location": location}


@rule("M118", "note", "The type of a column is one that this package knows.", section=METADATA)
def m118_known_type(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Types are open; the data of others are carried and shown as they are."""
    for name, kind in schema.metadata.column_types.items():
        if kind.type not in KINDS and kind.get("file") is not True:
            yield {"message": f"type {kind.type!r} is carried as it is", "location": location, "column": name}


@rule("S203", "warning", "No two column names differ in case alone.", section=COLUMNS)
def s203_names_differ(arrow: pa.Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """SQL engines do not tell them apart."""
    twins: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(arrow.names):
        twins[name.casefold()].append(name)
    for names in twins.values():
        if len(names) > 1:
            yield {"message": f"{' and '.join(names)} differ in case alone", "location": location, "column": names[1]}


@rule("S201", "error", "There is a column `sequence_id` of strings.", section=SCALARS)
def s201_id_is_there(arrow: pa.Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """It names the row: required, unique, the only column every dataset has."""
    if ID not in arrow.names:
        names = ", ".join(arrow.names) or "no columns"
        yield {"message": f"expected a string column {ID!r}, found {names}", "location": location}
        return
    kind = arrow.types[arrow.names.index(ID)]
    if not is_text(kind):
        yield {"message": f"expected strings, found {kind}", "location": location, "column": ID}


@rule("S202", "error", "Every column has a name of its own.", section=COLUMNS)
def s202_names_are_unique(arrow: pa.Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A name that stands there twice names neither column."""
    for name in dict.fromkeys(arrow.names):
        if arrow.names.count(name) > 1:
            message = f"{arrow.names.count(name)} columns have this name; rename all but one"
            yield {"message": message, "location": location, "column": name}


@rule("S205", "warning", "The scalar columns that the specification names have their types.", section=SCALARS)
def s205_standard_scalars(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Other readers count on them: `length` is an integer, `duration_seconds` a number, `split` a string."""
    for name, fits in STANDARD.items():
        if name in schema and schema[name].type is None and not fits(schema[name].arrow):
            yield {"message": f"{schema[name].arrow} is not its type", "location": location, "column": name}


def _facts(column: Column, location: str, message: str) -> dict[str, Any]:
    return {"message": message, "column": column.name, "location": location}


@rule("M105", "error", "`dim` is a positive integer.", section=METADATA)
def m105_dim(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Of trajectories and embeddings."""
    dim = column.type.get("dim") if column.type else None
    if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int) or dim < 1):
        yield _facts(column, location, f"dim must be a positive integer, found {dim!r}")


@rule("M106", "error", "`fps` and `sample_rate` are positive numbers.", section=METADATA)
def m106_rate(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """It is finite and above zero."""
    for name in ("fps", "sample_rate"):
        rate = column.type.get(name) if column.type else None
        if rate is None:
            continue
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not number or not 0 < rate < float("inf"):
            yield _facts(column, location, f"{name} must be a positive number, found {rate!r}")


@rule("M107", "error", "A declared `dim` agrees with fixed-size inner lists.", section=METADATA)
def m107_dim_agrees(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Where the Arrow schema says the size itself."""
    dim, kind = column.type.get("dim") if column.type else None, column.arrow
    # Of a list<number> that is a signal the size is T.
    inner = kind if column.category == "vector" else kind.value_type if column.nested and not column.raw else None
    if isinstance(dim, int) and inner is not None and pa.types.is_fixed_size_list(inner) and inner.list_size != dim:
        yield _facts(column, location, f"dim {dim} is declared, the Arrow type says {inner.list_size}")


@rule("M108", "error", "A trajectory is a list of numbers, of lists of numbers, or raw binary.", section=TEMPORAL)
def m108_trajectory(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """`list<list<number>>`, `list<number>`, deeper lists, or `binary` with `encoding: raw`. Of structs: see M120."""
    wrong = column.type is not None and column.type.type == "trajectory" and column.category != "temporal"
    if wrong and not _says_raw(column) and not pa.types.is_struct(list_levels(column.arrow)[1]):
        yield _facts(column, location, f"a trajectory must be list<list<number>>, found {column.arrow}")


@rule("M109", "error", "A file column is a string, a struct with `url`, or a file's bytes.", section=FILES)
def m109_file(column: Column, schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Its bytes are `binary`, or a struct `{bytes, path}`; with `inline: true` they must stand in the rows."""
    steps = column.category == "frames" and is_binary(column.arrow.value_type)
    if column.inline or steps or (schema.id is None and is_binary(column.arrow)):
        return
    if column.type is not None and column.type.inline:
        yield _facts(column, location, f"inline is declared, so bytes must stand in the rows, found {column.arrow}")
        return
    kinds = {"video", "image", "audio", "3d", "4d"}
    if column.type is not None and column.type.type in kinds and column.category not in {"file", "frames", "temporal"}:
        yield _facts(column, location, f"{column.type.type} must be a string or a struct with url, is {column.arrow}")


@rule("M120", "note", "The steps of a trajectory are numbers.", section=TEMPORAL)
def m120_structs(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """`list<struct>` is carried, shown and queried; windows take numbers."""
    levels, inner = list_levels(column.arrow)
    if column.type is not None and column.type.type == "trajectory" and levels and pa.types.is_struct(inner):
        yield _facts(column, location, f"{column.arrow} is carried as it is: no windows can be taken of structs")


@rule("M110", "error", "An embedding is a list of numbers, or one for each step.", section=METADATA)
def m110_embedding(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Each cell is [D], without time, or [T, D]."""
    is_one = column.category in {"vector", "temporal"}
    if column.type is not None and column.type.type == "embedding" and not is_one:
        yield _facts(column, location, f"an embedding must be list<number>, found {column.arrow}")


@rule("M111", "error", "A raw column declares `dim` and a number `dtype`.", section="Implementation Notes")
def m111_raw(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Its bytes say neither."""
    if not _says_raw(column) or column.type is None:
        return
    if column.dim is None:
        yield _facts(column, location, "encoding raw needs dim")
    dtype = column.type.get("dtype", "float32")
    names = {"float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    if dtype not in names | {f"u{n}" for n in names if n.startswith("int")}:
        yield _facts(column, location, f"dtype must be a number type such as 'float32', found {dtype!r}")


def _says_raw(column: Column) -> bool:
    return column.type is not None and column.type.get("encoding") == "raw" and is_binary(column.arrow)


@rule("M112", "warning", "An `encoding` is one that readers know.", section=METADATA)
def m112_encoding(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Only `raw`, and only over binary."""
    encoding = column.type.get("encoding") if column.type else None
    if encoding is not None and column.type is not None and column.type.type == "trajectory" and not _says_raw(column):
        yield _facts(column, location, f"encoding {encoding!r} on {column.arrow} is not understood")


@rule("M113", "error", "`timestamps` names a column of times.", section="Synchronization")
def m113_timestamps(column: Column, schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Lists or raw cells: a time per step. Its `origin` is a number, or a column of times or of one time a row."""
    name = column.type.get("timestamps") if column.type else None
    if name is None:
        return
    origin = column.type.get("origin") if column.type else None
    number = isinstance(origin, (int, float)) and not isinstance(origin, bool)
    if origin is not None and not number and not (isinstance(origin, str) and origin in schema):
        yield _facts(column, location, f"origin is {origin!r}: expected a number, or the name of a column")
    if not isinstance(name, str) or name not in schema:
        yield _facts(column, location, f"timestamps names {name!r}, and there is no such column")
        return
    if schema[name].raw:
        return  # numbers, or M111 has said that they are none
    kind = schema[name].arrow
    inner = kind
    while is_list(inner):
        inner = inner.value_type
    if not is_list(kind) or not (is_number(inner) or pa.types.is_timestamp(inner) or pa.types.is_duration(inner)):
        yield _facts(column, location, f"timestamps names {name!r}, which is no list of times: {kind}")


@rule("M114", "error", "The product of `shape` is `dim`.", section=METADATA)
def m114_shape(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A step's shape, as in [3, 3] over dim 9."""
    shape = column.type.get("shape") if column.type else None
    if shape is None or column.type is None:
        return
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        yield _facts(column, location, f"shape must be a list of positive integers, found {shape!r}")
    elif column.dim is not None and prod(shape) != column.dim:
        yield _facts(column, location, f"shape {shape} has {prod(shape)} numbers, dim is {column.dim}")


@rule("M115", "warning", "There are as many `names` as dimensions.", section=METADATA)
def m115_names(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """One name per dimension."""
    names = column.type.get("names") if column.type else None
    if isinstance(names, list) and column.dim is not None and len(names) != column.dim:
        yield _facts(column, location, f"{len(names)} names for {column.dim} dimensions")


@rule("M121", "warning", "The fields that readers act on are what they expect.", section=METADATA)
def m121_fields(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Fields are open, and others may mean something else by them; then they count as not given."""
    for name, (wanted, fits) in FIELDS.items():
        value = column.type.get(name) if column.type else None
        if value is not None and not fits(value):
            yield _facts(column, location, f"{name} is not understood: expected {wanted}, found {value!r}")


def _is_number_of_stream(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "stream": ("a stream's number, from 0", _is_number_of_stream),
    "frames": ('"bytes" or "files"', lambda value: value in ("bytes", "files")),
    "encoding": ("text", lambda value: isinstance(value, str)),
    "names": ("a list of names", lambda value: isinstance(value, list)),
    "file": ("true or false", lambda value: isinstance(value, bool)),
    "time": ("true or false", lambda value: isinstance(value, bool)),
}
"""What readers of this package act on, beside the fields with rules of their own: what they expect there."""


@rule("S204", "note", "A list of lists holds numbers.", section=TEMPORAL)
def s204_numbers(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Others are carried, shown and queried, but never windowed."""
    levels, inner = list_levels(kind := column.arrow)
    if column.type is None and levels > 1 and not is_number(inner):
        yield _facts(column, location, f"{kind} is not list<list<number>>, so that no windows can be taken")


COLUMN_RULES = (
    m105_dim,
    m106_rate,
    m107_dim_agrees,
    m108_trajectory,
    m109_file,
    m110_embedding,
    m120_structs,
    m111_raw,
    m112_encoding,
    m113_timestamps,
    m114_shape,
    m115_names,
    m121_fields,
    s204_numbers,
)
