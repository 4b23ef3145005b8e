"""Rules of the metadata (M1..) and of the schema (S2..)."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import InvalidMetadataError, UnsupportedVersionError
from seqlake.spec.column_types import KINDS
from seqlake.spec.metadata import MAJOR, Metadata
from seqlake.spec.rules._rule import rule
from seqlake.spec.schema import ID, is_list, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Column, Schema

METADATA, COLUMNS = "Dataset-Level Metadata", "Format Specification"
TEMPORAL, FILES = "Temporal Sequence Columns", "File Reference Columns"


def check_metadata(text: str | bytes, /, *, location: str = "mixtrain.json") -> Iterator[Finding]:
    """All rules over the text of the metadata alone."""
    yield from m101_readable(text, location=location)
    yield from m102_version(text, location=location)
    yield from m103_newer_minor(text, location=location)


def check_schema(schema: Schema, /, *, location: str = "mixtrain.json") -> Iterator[Finding]:
    """All rules over the schema and the column types."""
    rules = (m104_column_is_there, m118_known_type, s203_names_differ)
    yield from chain.from_iterable(check(schema, location=location) for check in rules)
    yield from s201_id_is_there(schema, location=location)
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
    """Major version 1."""
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


@rule("M104", "warning", "A column type belongs to a column that is there.", section=METADATA)
def m104_column_is_there(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A type declared for a column that no shard has."""
    for name in schema.metadata.column_types:
        if name not in schema:
            yield {"message": "declared in column_types, but no such column", "location": location, "column": name}


@rule("M118", "note", "The type of a column is one that this package knows.", section=METADATA)
def m118_known_type(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Types are open; the data of others are carried and shown as they are."""
    for name, kind in schema.metadata.column_types.items():
        if kind.type not in KINDS:
            yield {"message": f"type {kind.type!r} is carried as it is", "location": location, "column": name}


@rule("S203", "warning", "No two column names differ in case alone.", section=COLUMNS)
def s203_names_differ(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """SQL engines do not tell them apart."""
    twins: dict[str, list[str]] = defaultdict(list)
    for name in schema:
        twins[name.casefold()].append(name)
    for names in twins.values():
        if len(names) > 1:
            yield {"message": f"{' and '.join(names)} differ in case alone", "location": location, "column": names[1]}


@rule("S201", "error", "There is a column `sequence_id` of strings.", section="Scalar Metadata Columns")
def s201_id_is_there(schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Unique and required."""
    if schema.id is None and ID not in schema:
        yield {"message": f"expected a string column {ID!r}, found {', '.join(schema)}", "location": location}


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
    """Finite, above zero."""
    for name in ("fps", "sample_rate"):
        rate = column.type.get(name) if column.type else None
        if rate is None:
            continue
        number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
        if not number or not isfinite(rate) or rate <= 0:
            yield _facts(column, location, f"{name} must be a positive number, found {rate!r}")


@rule("M107", "error", "A declared `dim` agrees with fixed-size inner lists.", section=METADATA)
def m107_dim_agrees(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Where the Arrow schema says the size itself."""
    dim, kind = column.type.get("dim") if column.type else None, column.arrow
    inner = kind.value_type if is_list(kind) and is_list(kind.value_type) else kind
    if isinstance(dim, int) and pa.types.is_fixed_size_list(inner) and inner.list_size != dim:
        yield _facts(column, location, f"dim {dim} is declared, the Arrow type says {inner.list_size}")


@rule("M108", "error", "A trajectory is a list of numbers, of lists of numbers, or raw binary.", section=TEMPORAL)
def m108_trajectory(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """`list<list<number>>`, `list<number>`, or `binary` with `encoding: raw`."""
    if column.type is not None and column.type.type == "trajectory" and column.category != "temporal":
        yield _facts(column, location, f"a trajectory must be list<list<number>>, found {column.arrow}")


@rule("M109", "error", "A file column is a string, or a struct with `url`.", section=FILES)
def m109_file(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Video, image, audio, 3d and 4d refer to files."""
    kinds = {"video", "image", "audio", "3d", "4d"}
    if column.type is not None and column.type.type in kinds and column.category not in {"file", "frames", "temporal"}:
        yield _facts(column, location, f"{column.type.type} must be a string or a struct with url, is {column.arrow}")


@rule("M110", "error", "An embedding is a list of numbers.", section=METADATA)
def m110_embedding(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Without time: [D]."""
    if column.type is not None and column.type.type == "embedding" and column.category != "vector":
        yield _facts(column, location, f"an embedding must be list<number>, found {column.arrow}")


@rule("M111", "error", "A raw column declares `dim` and a number `dtype`.", section="Implementation Notes")
def m111_raw(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Its bytes say neither."""
    if not column.raw or column.type is None:
        return
    if column.dim is None:
        yield _facts(column, location, "encoding raw needs dim")
    dtype = column.type.get("dtype", "float32")
    names = {"float16", "float32", "float64", "int8", "int16", "int32", "int64"}
    if dtype not in names | {f"u{n}" for n in names if n.startswith("int")}:
        yield _facts(column, location, f"dtype must be a number type such as 'float32', found {dtype!r}")


@rule("M112", "warning", "An `encoding` is one that readers know.", section=METADATA)
def m112_encoding(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Only `raw`, and only over binary."""
    encoding = column.type.get("encoding") if column.type else None
    if encoding is not None and column.type is not None and column.type.type == "trajectory" and not column.raw:
        yield _facts(column, location, f"encoding {encoding!r} on {column.arrow} is not understood")


@rule("M113", "error", "`timestamps` names a column of times.", section="Synchronization")
def m113_timestamps(column: Column, schema: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A list column: one time per step."""
    name = column.type.get("timestamps") if column.type else None
    if name is None:
        return
    if not isinstance(name, str) or name not in schema:
        yield _facts(column, location, f"timestamps names {name!r}, and there is no such column")
    elif not is_list(schema[name].arrow):
        yield _facts(column, location, f"timestamps names {name!r}, which is no list: {schema[name].arrow}")


@rule("M114", "error", "The product of `shape` is `dim`.", section=METADATA)
def m114_shape(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """A step's shape, as in [3, 3] over dim 9."""
    shape = column.type.get("shape") if column.type else None
    if shape is None or column.type is None:
        return
    if not isinstance(shape, list) or not all(isinstance(n, int) and n > 0 for n in shape):
        yield _facts(column, location, f"shape must be a list of positive integers, found {shape!r}")
    elif column.dim is not None and prod(shape) != column.dim:
        yield _facts(column, location, f"shape {shape} has {prod(shape)} numbers, dim is {column.dim}")


@rule("M115", "warning", "There are as many `names` as dimensions.", section=METADATA)
def m115_names(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """One name per dimension."""
    names = column.type.get("names") if column.type else None
    if isinstance(names, list) and column.dim is not None and len(names) != column.dim:
        yield _facts(column, location, f"{len(names)} names for {column.dim} dimensions")


@rule("S204", "warning", "A list of lists holds numbers.", section=TEMPORAL)
def s204_numbers(column: Column, _: Schema, /, *, location: str) -> Iterator[dict[str, Any]]:
    """Others are carried, shown and queried, but never windowed."""
    kind = column.arrow
    if column.type is None and is_list(kind) and is_list(kind.value_type) and not is_number(kind.value_type.value_type):
        yield _facts(column, location, f"{kind} holds no numbers, so that no windows can be taken")


COLUMN_RULES = (
    m105_dim,
    m106_rate,
    m107_dim_agrees,
    m108_trajectory,
    m109_file,
    m110_embedding,
    m111_raw,
    m112_encoding,
    m113_timestamps,
    m114_shape,
    m115_names,
    s204_numbers,
)
