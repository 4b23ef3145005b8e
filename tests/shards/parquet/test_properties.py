"""Every column that is flat, and every one that is not, equals what pyarrow reads, whoever wrote the file."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from seqlake.files.stores import MemoryBlob, open_blob
from seqlake.shards import parquet
from seqlake.shards.parquet import building, index, layout
from seqlake.shards.parquet.checking import check
from seqlake.spec.column_types import Embedding, Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import flat_is, identical

NUMBERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
]
RELAXED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@dataclass(frozen=True)
class Shape:
    """One random column: `matrix` [T, D], `fixed` [T, D] as fixed-size lists, `series` [T], `vector` or `scalar`."""

    form: str
    number: pa.DataType
    dim: int
    nulls: str  # none, cell, step, value, ragged

    @property
    def regular(self):
        return self.nulls in {"none", "cell"}


shapes = st.builds(
    Shape,
    form=st.sampled_from(["matrix", "matrix", "fixed", "series", "vector", "scalar"]),
    number=st.sampled_from(NUMBERS),
    dim=st.integers(1, 5),
    nulls=st.sampled_from(["none", "none", "cell", "cell", "step", "value", "ragged"]),
)
lengths = st.lists(st.sampled_from([0, 1, 1, 2, 3, 7, 30, 200]), max_size=25)
seeds = st.integers(0, 2**32 - 1)


def numbers(random, kind, count):
    """Random bits: every float is as likely as a NaN with a payload."""
    dtype = np.dtype(kind.to_pandas_dtype())
    return pa.array(np.frombuffer(random.bytes(count * dtype.itemsize), dtype), kind)


def column(random, shape, steps):
    """An Arrow column with `len(steps)` rows."""
    steps = np.array(steps, np.int64)
    mask = random.random(steps.size) < 0.2 if shape.nulls != "none" else np.zeros(steps.size, bool)
    if shape.form == "scalar":
        return pa.array(
            numbers(random, shape.number, steps.size).to_numpy(zero_copy_only=False), shape.number, mask=mask
        )
    if shape.form == "vector":
        steps = np.full(steps.size, shape.dim)
    steps = np.where(mask, 0, steps)
    total = int(steps.sum())
    inner = values(random, shape, total)
    ends = pa.array(np.concatenate([[0], np.cumsum(steps)]), pa.int32())
    return pa.ListArray.from_arrays(ends, inner, mask=pa.array(mask) if mask.any() else None)


def values(random, shape, total):
    if shape.form in {"series", "vector"}:
        flat = numbers(random, shape.number, total)
        return holed(random, flat) if shape.nulls in {"value", "step"} else flat
    flat = numbers(random, shape.number, total * shape.dim)
    flat = holed(random, flat) if shape.nulls == "value" else flat
    if shape.form == "fixed":
        steps = pa.FixedSizeListArray.from_arrays(flat, shape.dim)
        return holed(random, steps) if shape.nulls == "step" else steps
    sizes = np.full(total, shape.dim)
    if shape.nulls == "ragged" and total > 1:
        sizes[0] -= 1
        sizes[-1] += 1
    ends = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    steps = pa.ListArray.from_arrays(ends, flat)
    return holed(random, steps) if shape.nulls == "step" else steps


def holed(random, array):
    """Some values null."""
    keep = random.random(len(array)) < 0.9
    return array.take(pa.array(np.where(keep, np.arange(len(array)), 0), mask=~keep))


def assert_reads_as(reader, truth, *, random):
    """Batches in file order and in a random order, and every flat column, equal the truth."""
    names = truth.column_names
    got = pa.Table.from_batches(reader.batches(names), schema=None) if truth.num_rows else None
    rows = random.permutation(truth.num_rows)[: random.integers(0, truth.num_rows + 1)]
    for name in names:
        if got is not None:
            assert identical(got[name], truth[name]), name
            assert got.schema.field(name).type == truth.schema.field(name).type
        picked = [batch.column(0) for batch in reader.batches([name], rows=rows)]
        assert identical(pa.chunked_array(picked, truth.schema.field(name).type), truth[name].take(rows)), name
        flat = reader.flat(name)
        assert flat is None or flat_is(flat, truth[name]), name


@RELAXED
@given(
    columns=st.lists(shapes, min_size=1, max_size=4),
    steps=lengths,
    seed=seeds,
    layout_name=st.sampled_from(["training", "training", "archive"]),
    fixed=st.booleans(),
    group=st.sampled_from([200, 3000, 64 << 20]),
    declared=st.booleans(),
)
def test_ours(tmp_path_factory, columns, steps, seed, layout_name, fixed, group, declared):
    random = np.random.default_rng(seed)
    arrays = {f"c{i}": column(random, shape, steps) for i, shape in enumerate(columns)}
    types = {name: ours(array, shape, declared) for (name, array), shape in zip(arrays.items(), columns, strict=True)}
    schema = Schema({**types, "note": pa.list_(pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))]))})
    ids = [f"s{i}" for i in range(len(steps))]
    notes = [
        None if i % 3 == 0 else [{"a": "x", "b": [1, None]}, None, {"a": None, "b": []}][: i % 4]
        for i in range(len(steps))
    ]
    table = pa.table(
        {"sequence_id": pa.array(ids, pa.string()), **arrays, "note": pa.array(notes, schema["note"].arrow)}
    )
    path = tmp_path_factory.mktemp("ours") / "x.parquet"
    before, layout.ROW_GROUP = layout.ROW_GROUP, group
    try:
        writer = parquet.create(path, schema, layout=layout_name, fixed_size_inner=fixed)
        for batch in table.to_batches(max_chunksize=int(random.integers(1, 9))):
            writer.write(batch)
        written = writer.close()
    finally:
        layout.ROW_GROUP = before
    truth = pq.read_table(path, page_checksum_verification=True)
    assert written.rows == truth.num_rows == len(steps)
    for name in table.column_names:
        assert identical(truth[name], table[name]), name
    reader = parquet.open(open_blob(path))
    assert_reads_as(reader, truth, random=random)
    for name, shape in zip(arrays, columns, strict=True):
        lists = shape.form != "scalar"
        if lists:
            expected = [-1 if not cell.is_valid else len(cell.values) for cell in truth[name]]
            assert reader.lengths(name).tolist() == expected
            assert index.decode(written.index).lengths(name).tolist() == expected
            assert index.lengths(written.index, name).tolist() == expected
        if lists and shape.regular and layout_name == "training":
            assert reader.flat(name) is not None, name
    assert index.lengths(written.index, "not a column") is None
    assert list(check(open_blob(path))) == []


def ours(array, shape, declared):
    """A column of a schema that can hold the array."""
    if shape.form == "scalar":
        return shape.number
    if shape.form == "vector":
        return pa.list_(shape.number)
    if shape.form == "series":
        return pa.list_(shape.number)
    whole = shape.nulls in {"none", "cell"}
    return Trajectory(dim=shape.dim if declared and whole else None, dtype=shape.number)


CODECS = ["none", "none", "none", "snappy", "zstd", "gzip", "lz4", "brotli"]


def encoding_of(random, leaf):
    names = ["PLAIN", "PLAIN", "PLAIN"]
    if leaf.physical_type in {"INT32", "INT64"}:
        names += ["DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]
    if leaf.physical_type in {"FLOAT", "DOUBLE", "FIXED_LEN_BYTE_ARRAY"}:
        names.append("BYTE_STREAM_SPLIT")
    return str(random.choice(names))


@RELAXED
@given(
    columns=st.lists(shapes, min_size=1, max_size=4),
    steps=lengths,
    seed=seeds,
    codec=st.sampled_from(CODECS),
    dictionary=st.sampled_from([False, False, False, True]),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([60, 700, 1 << 20]),
    group=st.sampled_from([1, 3, 1000]),
    page_index=st.booleans(),
)
@example(  # D is known from the type alone
    columns=[Shape("fixed", pa.int8(), 3, "cell")],
    steps=[0, 0],
    seed=0,
    codec="none",
    dictionary=False,
    version="1.0",
    page=1 << 20,
    group=1000,
    page_index=False,
)
def test_files_by_pyarrow(columns, steps, seed, codec, dictionary, version, page, group, page_index):
    random = np.random.default_rng(seed)
    table = pa.table({f"c{i}": column(random, shape, steps) for i, shape in enumerate(columns)})
    leaves = layout.parquet_schema(table.schema)
    encodings = {leaves.column(i).path: encoding_of(random, leaves.column(i)) for i in range(len(leaves))}
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression=codec,
        use_dictionary=dictionary,
        data_page_version=version,
        data_page_size=page,
        row_group_size=group,
        write_page_index=page_index,
        write_batch_size=5,
        column_encoding=None if dictionary else encodings,
    )
    blob = MemoryBlob(sink.getvalue())
    truth = pq.read_table(pa.BufferReader(sink.getvalue()))
    reader = parquet.open(blob, index=building.build(blob))
    assert_reads_as(reader, truth, random=random)
    assert all(parquet.open(blob).flat(name) is None for name in truth.column_names)  # no index, no belief
    for i, shape in enumerate(columns):
        plain = codec == "none" and not dictionary and encodings[leaves.column(i).path] == "PLAIN"
        if plain and shape.regular and table.num_rows and (page_index or page == 1 << 20):
            assert reader.flat(f"c{i}") is not None, shape


@RELAXED
@given(
    steps=lengths.filter(len),
    seed=seeds,
    kind=st.sampled_from([pa.int16(), pa.float32(), pa.float64()]),
    layout_name=st.sampled_from(["training", "archive"]),
)
def test_raw_cells(tmp_path_factory, steps, seed, kind, layout_name):
    random = np.random.default_rng(seed)
    dim = int(random.integers(1, 6))
    steps = [int(s) for s in steps]
    cells = column(random, Shape("fixed", kind, dim, "cell"), steps)
    schema = Schema({"act": Trajectory(dim=dim, dtype=kind, encoding="raw"), "emb": Embedding(dim=dim)})
    path = tmp_path_factory.mktemp("raw") / "x.parquet"
    writer = parquet.create(path, schema, layout=layout_name)
    table = pa.table({"sequence_id": [str(i) for i in range(len(steps))], "act": cells})
    for batch in table.to_batches(max_chunksize=4):
        writer.write(batch)
    writer.close()
    truth = pq.read_table(path)
    assert truth.schema.field("act").type == pa.binary()
    expected = [
        None if not c.is_valid else np.asarray(c.values.flatten()).tobytes()
        for c in table["act"].cast(pa.list_(pa.list_(kind, dim)))
    ]
    assert truth["act"].to_pylist() == expected
    reader = parquet.open(open_blob(path))
    assert_reads_as(reader, truth, random=random)
    if layout_name == "training":
        assert reader.flat("act").shape == (dim,)
        rebuilt = index.decode(building.build(open_blob(path), schema=schema)).columns["act"]
        own = reader.index.columns["act"]
        assert np.array_equal(rebuilt.page_start, own.page_start)
        assert np.array_equal(rebuilt.steps, own.steps)
