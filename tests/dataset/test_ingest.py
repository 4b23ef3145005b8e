"""What goes into a row: every kind of array and table, equal to what pyarrow holds; mistakes say what is wrong."""

from __future__ import annotations

import datetime as dt

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from seqlake.dataset.writing import conforming, ingest
from seqlake.errors import DuplicateSequenceError, SchemaMismatchError, ValidationError
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory, Video
from seqlake.spec.schema import Schema

NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERS += [pa.float16(), pa.float32(), pa.float64()]


def one(schema: Schema, **cells: object) -> pa.RecordBatch:
    """The batch of one prepared row."""
    buffer = ingest.RowBuffer(schema)
    buffer.add(ingest.prepare(schema, "a", cells))
    return buffer.flush()


def bits(array: pa.Array) -> bytes:
    """The numbers of a list column, bit for bit."""
    while hasattr(array, "flatten") and hasattr(array.type, "value_type"):
        array = array.flatten()
    return array.to_numpy(zero_copy_only=False).tobytes()


@st.composite
def signals(draw: st.DrawFn) -> tuple[pa.DataType, np.ndarray]:
    kind = draw(st.sampled_from(NUMBERS))
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 4)))
    dtype = np.dtype(kind.to_pandas_dtype())
    order = draw(st.sampled_from("<>"))
    values = draw(hnp.arrays(dtype.newbyteorder(order), shape))
    steps = draw(st.sampled_from([1, -1, 2]))
    return kind, values[::steps] if draw(st.booleans()) else np.asfortranarray(values)


@given(signals())
@settings(deadline=None)
def test_arrays_arrive_bit_for_bit(found: tuple[pa.DataType, np.ndarray]) -> None:
    """Any type, byte order and memory layout, NaN payloads too."""
    kind, values = found
    batch = one(Schema({"x": Trajectory(dim=values.shape[1], dtype=kind)}), x=values)
    assert batch.schema.field("x").type == pa.list_(pa.list_(kind, values.shape[1]))
    native = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
    assert bits(batch.column("x")) == native.tobytes()
    assert len(batch.column("x")[0]) == len(values)
    batch.validate(full=True)


@given(hnp.arrays(hnp.integer_dtypes() | hnp.unsigned_integer_dtypes(), (3, 2)), st.sampled_from(NUMBERS))
@settings(deadline=None)
def test_integers_are_kept_or_refused(values: np.ndarray, kind: pa.DataType) -> None:
    """pyarrow's checked cast is at most stricter: what arrives has the very values."""
    schema = Schema({"x": Trajectory(dim=2, dtype=kind)})
    try:
        batch = one(schema, x=values)
    except ValidationError:
        with np.errstate(all="ignore"):
            there = values.astype(kind.to_pandas_dtype())
            exact = [[int(v) if np.isfinite(v) else None for v in row] for row in there]
        assert exact != values.tolist()
        return
    assert [[int(v) for v in row] for row in batch.column("x")[0].as_py()] == values.tolist()


@given(st.lists(st.lists(st.floats(width=32), min_size=3, max_size=3), max_size=5))
@settings(deadline=None)
def test_nested_lists_are_what_pyarrow_makes_of_them(values: list[list[float]]) -> None:
    schema = Schema({"x": Trajectory(dim=3)})
    expected = pa.array([values], pa.list_(pa.list_(pa.float32(), 3)))
    assert bits(one(schema, x=values).column("x")) == bits(expected)


def test_tensors_scalars_and_arrow_values() -> None:
    schema = Schema(
        {"x": Trajectory(dim=2), "f": Trajectory(dim=2, dtype=pa.float64()), "v": Embedding(dim=3), "n": pa.int32()}
    )
    batch = one(
        schema,
        x=torch.arange(6, dtype=torch.float32, requires_grad=True).reshape(3, 2),
        f=pa.array([[1.0, 2.0], [3.0, 4.0]]),
        v=torch.tensor([1, 2, 3]),
        n=torch.tensor(7),
    )
    assert batch.to_pylist() == [
        {"sequence_id": "a", "x": [[0, 1], [2, 3], [4, 5]], "f": [[1, 2], [3, 4]], "v": [1, 2, 3], "n": 7}
    ]
    series = pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2))
    assert one(schema, x=series, n=np.int64(3)).column("x").to_pylist() == [[[1, 2], [3, 4]]]
    assert one(schema, x=pa.scalar([[1.0, 2.0]])).column("x").to_pylist() == [[[1, 2]]]
    assert one(schema, x=[torch.ones(2), torch.zeros(2)]).column("x").to_pylist() == [[[1, 1], [0, 0]]]
    with pytest.raises(SchemaMismatchError, match="bfloat16"):
        one(schema, x=torch.ones(2, 2, dtype=torch.bfloat16))


def test_a_buffer_may_be_used_again() -> None:
    schema = Schema({"x": Trajectory(dim=1)})
    buffer, rows = np.ones((2, 1), np.float32), ingest.RowBuffer(schema)
    rows.add(ingest.prepare(schema, "a", {"x": buffer}))
    buffer[:] = 5
    assert rows.flush().column("x").to_pylist() == [[[1], [1]]]


def test_every_category_of_column() -> None:
    schema = Schema(
        {
            "steering": pa.field("steering", pa.list_(pa.float32())),
            "raw": Trajectory(dim=2, encoding="raw"),
            "pose": Trajectory(dim=4, shape=(2, 2)),
            "frames": Image(frames="bytes"),
            "stills": Image(frames="files"),
            "cam": Video(fps=30),
            "clip": pa.struct([("url", pa.string()), ("first_frame", pa.int64())]),
            "at": pa.timestamp("us", "UTC"),
            "blob": pa.binary(),
            "tags": pa.list_(pa.string()),
            "free": Trajectory(),
        }
    ).with_columns({"steering": ingest_column("steering")})
    time = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    cells = {
        "steering": [0.5, 1.5, 2.5],
        "raw": np.arange(4, dtype="<f4").tobytes(),
        "pose": np.arange(8).reshape(2, 2, 2),
        "frames": [b"\xff\xd8", None, bytearray(b"x")],
        "stills": ["a/0.png", "a/1.png"],
        "cam": "s3://bucket/cam.mp4",
        "clip": {"url": "v.mp4", "first_frame": 3},
        "at": time,
        "blob": memoryview(b"abc"),
        "tags": ["a", "b"],
        "free": np.zeros((2, 5)),
    }
    row = one(schema, **cells).to_pylist()[0]
    assert row == {
        "sequence_id": "a",
        **cells,
        "raw": [[0, 1], [2, 3]],
        "pose": [[0, 1, 2, 3], [4, 5, 6, 7]],
        "frames": [b"\xff\xd8", None, b"x"],
        "blob": b"abc",
        "free": [[0] * 5] * 2,
    }
    assert set(one(schema).to_pylist()[0].values()) == {"a", None}


def ingest_column(name: str):
    from seqlake.spec.schema import Column

    return Column(name, pa.list_(pa.float32()), Trajectory(), nullable=True)


def test_empty_and_null_cells() -> None:
    schema = Schema({"x": Trajectory(dim=2), "v": Embedding(dim=2)})
    for empty in ([], np.empty((0, 2)), np.empty((0,)), torch.empty(0, 2)):
        assert one(schema, x=empty).column("x").to_pylist() == [[]]
    assert one(schema, x=[[1, None], None, [3, 4]]).column("x").to_pylist() == [[[1, None], None, [3, 4]]]


def test_length_is_counted_at_the_clocks_rate() -> None:
    plain = Schema({"length": pa.int32(), "x": Trajectory(dim=1)})
    assert one(plain, x=np.zeros((3, 1))).column("length").to_pylist() == [3]
    assert one(plain, x=np.zeros((3, 1)), length=5).column("length").to_pylist() == [5]
    assert one(plain).column("length").to_pylist() == [None]
    timed = {"t": pa.list_(pa.list_(pa.int64())), "slow": Trajectory(dim=1, timestamps="t")}
    rated = Schema({**timed, "x": Trajectory(dim=1, fps=10), "fast": Trajectory(dim=1, fps=100), "length": pa.int64()})
    cells = {"t": np.zeros((2, 1), int), "slow": np.zeros((2, 1)), "fast": np.zeros((90, 1)), "x": np.zeros((9, 1))}
    assert one(rated, **cells).column("length").to_pylist() == [9]


CAM = Schema({"x": Trajectory(dim=2), "n": pa.int8(), "s": pa.string(), "ok": pa.bool_(), "f": pa.float32(),
              "v": Embedding(dim=3), "frames": Image(frames="bytes"), "cam": Video(fps=30),
              "must": pa.field("must", pa.int8(), nullable=False)})  # fmt: skip
GIB = np.broadcast_to(np.float32(0), ((1 << 27) + 1, 2))

BAD = {
    "shape": ({"x": np.zeros((4, 3))}, SchemaMismatchError, r"'x': expected shape \[T, 2\], found \[4, 3\]"),
    "one dimension": (
        {"x": np.zeros(4)}, SchemaMismatchError, r"expected shape \[T, 2\], found \[4\].*values\[:, None"),
    "three dimensions": ({"x": np.zeros((4, 2, 1))}, SchemaMismatchError, r"found \[4, 2, 1\]"),
    "ragged lists": ({"x": [[1, 2], [3]]}, ValidationError, r"'x': ragged"),
    "ragged with null": (
        {"x": [[1, None], [3]]}, ValidationError, r"ragged: the steps of a sequence are equally long, found \[2, 1\]"),
    "text for numbers": ({"x": np.array([["1", "2"]])}, SchemaMismatchError, r"expected float32 values, found <U1"),
    "booleans for numbers": ({"x": np.ones((2, 2), bool)}, SchemaMismatchError, r"expected float32 values, found bool"),
    "objects": ({"x": [[object(), 1]]}, SchemaMismatchError, r"Arrow cannot hold"),
    "complex": ({"x": np.ones((1, 2), complex)}, SchemaMismatchError, r"found complex128"),
    "too large for float32": ({"x": [[1e300, 0]]}, ValidationError, r"values that float32 can hold"),
    "inexact integer": ({"x": [[2**24 + 1, 0]]}, ValidationError, r"values that float32 can hold, found int64"),
    "no array": ({"x": 3}, SchemaMismatchError, r"expected shape \[T, 2\], found \[\]"),
    "beyond 1 GiB": ({"x": GIB}, ValidationError, r"1 GiB, this one has 1.00 GiB.*segments"),
    "integer range": ({"n": 300}, ValidationError, r"'n': expected values that int8 can hold"),
    "fraction": ({"n": 1.5}, ValidationError, r"values that int8 can hold"),
    "nan": ({"n": float("nan")}, ValidationError, r"values that int8 can hold"),
    "beyond 64 bits": ({"n": 2**70}, ValidationError, r"beyond 64 bits"),
    "text as integer": ({"n": "3"}, SchemaMismatchError, r"expected int8, found str '3'"),
    "boolean as integer": ({"n": True}, SchemaMismatchError, r"expected int8, found bool True"),
    "array as scalar": ({"n": np.zeros(2, np.int8)}, SchemaMismatchError, r"expected int8, found ndarray"),
    "number as text": ({"s": 3}, SchemaMismatchError, r"expected string, found int 3"),
    "bytes as text": ({"s": b"x"}, SchemaMismatchError, r"expected string, found bytes"),
    "integer as boolean": ({"ok": 1}, SchemaMismatchError, r"expected bool, found int 1"),
    "overflow": ({"f": 1e300}, ValidationError, r"values that float32 can hold"),
    "vector size": ({"v": [1.0, 2.0]}, SchemaMismatchError, r"expected shape \[3\], found \[2\]"),
    "frames as array": (
        {"frames": np.zeros((2, 4, 4, 3), "u1")}, SchemaMismatchError, r"list of encoded images \(bytes\)"),
    "frames of text": ({"frames": ["a.png"]}, SchemaMismatchError, r"step 0: expected encoded images"),
    "array as file": ({"cam": np.zeros((2, 4, 4, 3), "u1")}, SchemaMismatchError, r"File\(path\), which is copied in"),
    "null": ({"must": None}, ValidationError, r"'must': null where the schema allows none"),
    "unknown": ({"rewrad": 1, "f2": 2}, SchemaMismatchError, r"rewrad: is not in the schema"),
    "near miss": ({"framse": 1}, SchemaMismatchError, r"did you mean 'frames'"),
    "no file": (
        {"cam": ingest.File("/nowhere/x.mp4")}, ValidationError, r"expected a file to copy at '/nowhere/x.mp4'"),
    "file in a number": ({"n": ingest.File(__file__)}, SchemaMismatchError, r"expected int8, found a File"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_cells_say_what_was_expected_and_found(case: str) -> None:
    cells, kind, message = BAD[case]
    with pytest.raises(kind, match=f"(?s)'a'.*{message}"):
        ingest.prepare(CAM, "a", {"must": 1, **cells})


@pytest.mark.parametrize(
    ("value", "kind"),
    [(3, SchemaMismatchError), (None, SchemaMismatchError), (b"a", SchemaMismatchError), ("", ValidationError),
     ("\ud800", ValidationError)],
)  # fmt: skip
def test_bad_ids(value: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="sequence_id"):
        ingest.KnownIds().check(value)


def test_ids_may_look_like_paths_and_differ_by_case_alone() -> None:
    ids = ingest.KnownIds()
    for value in ("a/b", "..", "../x", "A", "a", "ä", "a\u0308", " ", "x" * 10_000):
        ids.add(ids.check(value))
    with pytest.raises(DuplicateSequenceError, match="'a/b' was added already"):
        ids.check("a/b")


# ---- tables

TABLE = Schema({"n": pa.int32(), "s": pa.string(), "x": Trajectory(dim=2), "b": pa.binary()})
PLAIN = pa.table(
    {"sequence_id": ["a", "b", "c"], "n": [1, None, 3], "s": ["x", None, "z"],
     "x": [[[1.0, 2.0], [3.0, 4.0]], None, []], "b": [b"1", b"", None]}
)  # fmt: skip
VARIANTS = {
    "plain": PLAIN,
    "batch": PLAIN.to_batches()[0],
    "reader": PLAIN.to_reader(),
    "slices": pa.concat_tables([PLAIN.slice(0, 1), PLAIN.slice(1)]),
    "polars": pl.from_arrow(PLAIN),
    "other order": PLAIN.select(["x", "b", "s", "n", "sequence_id"]),
    "views": pa.table(
        {"sequence_id": PLAIN["sequence_id"].cast(pa.string_view()), "n": PLAIN["n"].cast(pa.int64()),
         "s": PLAIN["s"].cast(pa.string_view()), "b": PLAIN["b"].cast(pa.large_binary()),
         "x": pa.array(PLAIN["x"].to_pylist(), pa.list_view(pa.large_list(pa.float32())))}
    ),
    "fixed": PLAIN.set_column(3, "x", pa.array(PLAIN["x"].to_pylist(), pa.large_list(pa.list_(pa.float64(), 2)))),
    "dictionary": PLAIN.set_column(2, "s", PLAIN["s"].combine_chunks().dictionary_encode()),
    "run ends": PLAIN.set_column(1, "n", pa.compute.run_end_encode(PLAIN["n"].combine_chunks())),
    "pandas": PLAIN.drop(["x"]).to_pandas().assign(x=[[[1.0, 2.0], [3.0, 4.0]], None, []]),
}  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_tables_of_every_maker(name: str) -> None:
    batches = list(conforming.batches(VARIANTS[name], TABLE))
    table = pa.Table.from_batches(batches, schema=TABLE.arrow)
    assert table.to_pylist() == PLAIN.to_pylist()
    table.validate(full=True)


def test_nulls_inside_steps_and_hidden_values_behind_nulls() -> None:
    inner = pa.array([[1, 2], None, [3, None], [9, 9]], pa.list_(pa.float32()))
    outer = pa.ListArray.from_arrays(pa.array([0, 3, 4], pa.int32()), inner, mask=pa.array([False, True]))
    found = pa.table({"sequence_id": ["a", "b"], "x": outer})
    table = pa.Table.from_batches(conforming.batches(found, TABLE))
    assert table["x"].to_pylist() == [[[1, 2], None, [3, None]], None]
    table.validate(full=True)


def test_nan_payloads_survive_a_cast_of_the_lists_around_them() -> None:
    payload = np.array([0x7FC00001, 0xFFC12345, 0, 1], np.uint32)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(payload.view(np.float32)), 2)
    cells = pa.LargeListArray.from_arrays(pa.array([0, 2], pa.int64()), fixed)
    batch = next(conforming.batches(pa.table({"sequence_id": ["a"], "x": cells}), TABLE))
    assert bits(batch.column("x")) == payload.tobytes()


def test_raw_cells_are_taken_as_bytes_and_as_lists() -> None:
    schema = Schema({"x": Trajectory(dim=2, encoding="raw")})
    raw = pa.table({"sequence_id": ["a", "b"], "x": [np.arange(4, dtype="<f4").tobytes(), None]})
    lists = pa.table({"sequence_id": ["a", "b"], "x": [[[0.0, 1.0], [2.0, 3.0]], None]})
    assert list(conforming.batches(raw, schema)) == list(conforming.batches(lists, schema))
    with pytest.raises(ValidationError, match="whole steps of 2 float values"):
        list(conforming.batches(pa.table({"sequence_id": ["a"], "x": [b"12345"]}), schema))


def test_a_table_that_does_not_fit_is_told_column_by_column() -> None:
    table = pa.table({"sequence_id": [1], "n": ["1"], "nn": [1], "x": [["a"]], "b": [True]})
    with pytest.raises(SchemaMismatchError) as caught:
        list(conforming.batches(table, TABLE))
    lines = str(caught.value).splitlines()[1:]
    assert sorted(line.split(":")[0].strip() for line in lines) == ["b", "n", "nn", "sequence_id", "x"]
    assert "  n: expected int32, found string" in lines
    with pytest.raises(SchemaMismatchError, match="sequence_id: expected string, is missing"):
        list(conforming.batches(pa.table({"n": [1]}), TABLE))
    with pytest.raises(SchemaMismatchError, match="n: is there twice"):
        list(conforming.batches(pa.Table.from_arrays([PLAIN["n"], PLAIN["n"]], ["n", "n"]), TABLE))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"x": [[[1.0, 2.0], [3.0]]]}, "every step must have 2 values, found one with 1"),
        ({"n": [2**40]}, "int64 does not fit int32"),
        ({"n": [1.5]}, "double does not fit int32"),
        ({"sequence_id": [None]}, "null where the schema allows none"),
    ],
)
def test_values_that_do_not_fit(column: dict[str, list], message: str) -> None:
    table = pa.table({"sequence_id": ["a"], **column})
    if "sequence_id" in column:
        table = table.set_column(0, "sequence_id", pa.array([None], pa.string()))
    with pytest.raises(ValidationError, match=message):
        list(conforming.batches(table, TABLE))


@pytest.mark.parametrize(
    ("kind", "value", "whole"),
    [
        (pa.timestamp("ms"), 8.5, 8.0),
        (pa.date32(), 1.5, 1.0),
        (pa.time64("us"), float("nan"), 0.0),
        (pa.duration("s"), 0.5, 2.0),
        (pa.list_(pa.list_(pa.timestamp("s"))), [[1.5]], [[1.0], [2]]),
        (pa.struct({"n": pa.int16(), "x": pa.float32()}), {"n": 1.5}, {"n": 1.0, "x": 0.5}),
        (pa.map_(pa.string(), pa.int8()), {"a": 1, "b": 0.1}, {"a": 1.0}),
        (pa.map_(pa.string(), pa.int8()), [("a", 0.1)], [("a", 1.0)]),
    ],
)
def test_no_fraction_is_cut_off(kind: pa.DataType, value: object, whole: object) -> None:
    schema = Schema({"v": kind})
    with pytest.raises((SchemaMismatchError, ValidationError), match="'v'"):
        one(schema, v=value)
    assert one(schema, v=whole).column("v").null_count == 0


def test_a_vector_of_another_size_and_a_type_beyond_the_list() -> None:
    schema = Schema({"v": Embedding(dim=2), "m": ColumnType("mcap")})
    with pytest.raises(ValidationError, match="row 1: expected 2 values, found 3"):
        list(conforming.batches(pa.table({"sequence_id": ["a", "b"], "v": [[1.0, 2.0], [1.0, 2.0, 3.0]]}), schema))
    assert one(schema, m="x.mcap").column("m").to_pylist() == ["x.mcap"]


def test_a_pandas_index_is_no_column() -> None:
    frame = pd.DataFrame({"sequence_id": ["a", "b"], "n": [1, 2]}, index=[5, 7])
    assert pa.Table.from_batches(conforming.batches(frame, TABLE))["n"].to_pylist() == [1, 2]


def test_long_tables_come_in_bounded_batches() -> None:
    cells = np.zeros((40, 1 << 18, 1), np.float32)  # 1 MiB each
    table = pa.table({"sequence_id": [str(i) for i in range(40)], "x": pa.array(list(map(list, cells[:, :4, :])))})
    big = pa.FixedSizeListArray.from_arrays(pa.array(cells.ravel()), 2)
    x = pa.ListArray.from_arrays(pa.array(np.arange(41, dtype=np.int32) * (1 << 17)), big)
    table = table.set_column(1, "x", x)
    parts = list(conforming.batches(table, TABLE))
    assert len(parts) > 1
    assert max(part.nbytes for part in parts) <= 33 << 20
    assert sum(part.num_rows for part in parts) == 40


def test_rows_as_dicts_become_a_table_of_the_columns_they_have() -> None:
    table = ingest.given_cells([{"sequence_id": "a", "n": 1}, {"sequence_id": "b", "s": "x"}], TABLE).cells
    assert table.column_names == ["sequence_id", "n", "s"]
    assert table.to_pylist() == [{"sequence_id": "a", "n": 1, "s": None}, {"sequence_id": "b", "n": None, "s": "x"}]
    with pytest.raises(SchemaMismatchError, match="m: is not in the schema"):
        ingest.given_cells([{"sequence_id": "a", "m": 1}], TABLE)
    with pytest.raises(SchemaMismatchError, match="expected a 'sequence_id', found only n"):
        ingest.given_cells([{"n": 1}], TABLE)
    with pytest.raises(SchemaMismatchError, match="Row 0: expected a dict of cells"):
        ingest.given_cells([("a", 1)], TABLE)
    with pytest.raises(DuplicateSequenceError, match="'a'"):
        ingest.given_cells(pa.table({"sequence_id": ["a", "a"]}), TABLE)
