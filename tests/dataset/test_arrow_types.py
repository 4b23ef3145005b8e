"""Cells of every Arrow type through every verb: the same cells, or an error of ours that says what to do."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import SchemaMismatchError

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

NS = 1_700_000_000_123_456_789
UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]


def _scalars() -> dict[pa.DataType, st.SearchStrategy]:
    """Numbers as the type stores them, from which Arrow makes its cells."""
    kinds: dict[pa.DataType, st.SearchStrategy] = {kind: st.integers(0, 100) for kind in INTEGERS}
    kinds |= {kind: st.sampled_from([0.0, -1.5, 2.25]) for kind in (pa.float16(), pa.float32(), pa.float64())}
    for unit, scale in UNITS.items():
        times = st.integers(0, NS // scale)
        kinds |= {pa.timestamp(unit, zone): times for zone in (None, "UTC", "Europe/Berlin")}
        kinds[pa.duration(unit)] = times
    kinds |= {pa.date32(): st.integers(0, 20_000), pa.date64(): st.integers(0, 20_000).map((86_400_000).__mul__)}
    kinds |= {pa.time32("s"): st.integers(0, 86_399), pa.time32("ms"): st.integers(0, 86_399_999)}
    kinds |= {pa.time64("us"): st.integers(0, 10**9), pa.time64("ns"): st.integers(0, 10**9)}
    decimals = (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(30, 2), pa.decimal256(50, 2))
    kinds |= {kind: st.integers(0, 99).map(Decimal) for kind in decimals}
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
    kinds |= dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), text)
    kinds |= {kind: st.binary(max_size=4) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())}
    kinds |= {pa.binary(3): st.binary(min_size=3, max_size=3), pa.bool_(): st.booleans(), pa.null(): st.none()}
    kinds[pa.dictionary(pa.int32(), pa.string())] = text
    return kinds


SCALARS = _scalars()
LISTS = (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)


def cells_of(kind: pa.DataType, values: list) -> pa.Array:
    """The cells; times and dates from the numbers that they are stored as."""
    if pa.types.is_temporal(kind):
        narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        return pa.array(values, pa.int32() if narrow else pa.int64()).cast(kind)
    if pa.types.is_float16(kind):
        values = [None if one is None else np.float16(one) for one in values]
    return pa.array(values, kind)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Three cells of some type: a scalar, a list of one, or a list of lists; some of them null."""
    kind = draw(st.sampled_from(list(SCALARS)))
    levels = draw(st.sampled_from([0, 0, 0, 1, 2]))
    if levels == 0:
        return cells_of(kind, [draw(st.none() | SCALARS[kind]), draw(SCALARS[kind]), draw(SCALARS[kind])])
    flat = cells_of(kind, [draw(SCALARS[kind]) for _ in range(12)])
    inner, width = flat, 2  # as many steps as `action` has
    for _ in range(levels):
        maker = draw(st.sampled_from(LISTS))
        ends = list(range(0, len(inner) + 1, width))
        plain = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), inner)
        if maker is pa.large_list:
            plain = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), inner)
        if maker in (pa.list_view, pa.large_list_view):
            small = maker is pa.list_view
            number = pa.int32() if small else pa.int64()
            sizes = [width] * (len(ends) - 1)
            made = pa.ListViewArray if small else pa.LargeListViewArray
            plain = made.from_arrays(pa.array(ends[:-1], number), pa.array(sizes, number), inner)
        inner = plain
    return inner.slice(0, 3)


def same(ds: sl.Dataset, wanted: list) -> None:
    """The cells of `x`, by id."""
    table = ds.to_arrow()
    order = np.argsort(table["sequence_id"].to_pylist())
    cells = table["x"].to_pylist()
    assert [cells[number] for number in order] == wanted


def verbs(ds: sl.Dataset, wanted: list, place) -> None:
    """Everything that reads or rewrites a dataset."""
    same(ds, wanted)
    assert "x" in repr(ds.sequence("a"))
    assert ds.sequence("a")._repr_html_()
    assert len(ds.where("sequence_id <> 'b' AND (x IS NULL OR x IS NOT NULL)")) == 2
    assert ds.sql("SELECT count(*), count(x) FROM dataset").fetchall() == [(3, sum(one is not None for one in wanted))]
    assert not [one for one in ds.validate(depth="decode") if one.severity == "error"]
    sl.statistics(ds, progress=False)
    column = ds.schema["x"]
    if column.category in {"scalar", "temporal"}:
        asked = None if column.category == "scalar" else [0]
        assert sum(1 for _ in sl.Loader(ds, window={"action": [0], "x": asked}, batch_size=1)) == 6
    converted = sl.convert(ds, place / "converted", workers=1, progress=False)
    same(converted, wanted)
    parts = [ds.where("sequence_id = 'a'"), converted.where("sequence_id <> 'a'")]
    same(sl.merge(parts, place / "merged"), wanted)
    same(sl.subset(ds, place / "subset"), wanted)
    same(sl.repack(ds, place / "repacked"), wanted)
    if column.category == "scalar":
        converted.update(ds.to_arrow().select(["sequence_id", "x"]))
        same(sl.open(place / "converted"), wanted)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "theirs"])
@settings(max_examples=10 if SOAK else 4, deadline=None, suppress_health_check=list(HealthCheck))
@given(cells=columns())
def test_cells_of_every_type_go_through_every_verb(ours, cells, tmp_path_factory) -> None:
    place = tmp_path_factory.mktemp("types")
    action = pa.array([[[0.0, 1.0], [2.0, 3.0]]] * 3, pa.list_(pa.list_(pa.float32())))
    table = pa.table({"sequence_id": ["a", "b", "c"], "action": action, "x": cells})
    if ours:
        ds = sl.create(place / "ds", {field.name: field.type for field in table.schema})
        with ds.writer() as writer:
            writer.add_batch(table)
    else:
        (place / "ds" / "data").mkdir(parents=True)
        pq.write_table(table, place / "ds" / "data" / "part-0.parquet")
        (place / "ds" / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    wanted = cells.to_pylist()
    verbs(sl.open(place / "ds"), wanted, place)


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([5, None, 5]).dictionary_encode(),
        pa.array([1, None, 2], pa.timestamp("us")).dictionary_encode(),
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([7, 8])),
    ],
    ids=["dictionary of numbers", "dictionary of times", "run ends"],
)
def test_encoded_values_are_stored_plain(tmp_path, cells) -> None:
    ds = sl.create(tmp_path / "ds", {"x": cells.type})
    with ds.writer() as writer:
        writer.add_batch(pa.table({"sequence_id": ["a", "b", "c"], "x": cells}))
    assert ds.schema["x"].arrow == cells.type.value_type
    same(sl.open(tmp_path / "ds"), cells.to_pylist())
    same(sl.convert(ds, tmp_path / "out", workers=1, progress=False), cells.to_pylist())


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, lambda inner: pa.list_(pa.list_(inner))])
def test_lists_of_nulls_go_through_every_verb(kind, tmp_path) -> None:
    cells = pa.array([[None, None]] * 3, pa.list_(pa.null()))
    if kind(pa.null()) != cells.type:
        ends = pa.array([0, 2, 4, 6], pa.int32())
        cells = {
            pa.large_list(pa.null()): lambda: pa.LargeListArray.from_arrays(ends.cast(pa.int64()), pa.nulls(6)),
            pa.list_view(pa.null()): lambda: pa.ListViewArray.from_arrays(
                ends[:3], pa.array([2] * 3, "i4"), pa.nulls(6)
            ),
            pa.list_(pa.list_(pa.null())): lambda: pa.ListArray.from_arrays(
                ends, pa.ListArray.from_arrays(pa.array(range(0, 14, 2), "i4"), pa.nulls(12))
            ),
        }[kind(pa.null())]()
    action = pa.array([[[0.0, 1.0], [2.0, 3.0]]] * 3, pa.list_(pa.list_(pa.float32())))
    table = pa.table({"sequence_id": ["a", "b", "c"], "action": action, "x": cells})
    (tmp_path / "ds" / "data").mkdir(parents=True)
    pq.write_table(table, tmp_path / "ds" / "data" / "part-0.parquet")
    (tmp_path / "ds" / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    verbs(sl.open(tmp_path / "ds"), cells.to_pylist(), tmp_path)


@pytest.mark.parametrize(
    "kind",
    [pa.month_day_nano_interval(), pa.list_(pa.month_day_nano_interval()), pa.dense_union([pa.field("a", "i4")])],
)
def test_what_no_file_holds_is_refused_by_name(tmp_path, kind) -> None:
    with pytest.raises(SchemaMismatchError, match=r"Column 'x'.*Store intervals as durations"):
        sl.create(tmp_path / "ds", {"x": kind})
    assert not (tmp_path / "ds").exists()


def test_pandas_has_times_of_nanoseconds(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"x": pa.time64("ns"), "y": pa.int64()})
    with ds.writer() as writer:
        writer.add_batch(pa.table({"sequence_id": ["a", "b"], "x": pa.array([1, None], pa.time64("ns")), "y": [1, 2]}))
    frame = ds.to_pandas()
    assert pa.array(frame["x"]).cast(pa.int64()).to_pylist() == [1, None]
    assert frame["y"].tolist() == [1, 2]


@pytest.mark.parametrize("kind", [kind for kind in SCALARS if getattr(kind, "unit", "") == "ns"], ids=str)
def test_times_of_nanoseconds_are_found_by_their_last_digit(kind, tmp_path) -> None:
    """Bounds of shards are of microseconds, and may leave out no row."""
    cells = cells_of(kind, [1_001, 2_999, 3_000])
    ds = sl.create(tmp_path / "ds", {"x": kind})
    with ds.writer(rows_per_shard=1) as writer:
        writer.add_batch(pa.table({"sequence_id": ["a", "b", "c"], "x": cells}))
    ds = sl.convert(sl.open(tmp_path / "ds"), tmp_path / "out", workers=1, progress=False)
    assert ds.to_arrow()["x"].cast(pa.int64()).to_pylist() == [1_001, 2_999, 3_000]
    if pa.types.is_timestamp(kind) and kind.tz is None:
        assert [row["sequence_id"] for row in ds.where("x > TIMESTAMP_NS '1970-01-01 00:00:00.000002998'")] == [
            "b",
            "c",
        ]


class Own(pa.ExtensionType):
    """An extension that only this process knows."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "seqlake.test")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized) -> Own:
        return cls()

    def __hash__(self) -> int:
        return 0


EXTENSIONS = {
    pa.fixed_shape_tensor(pa.float32(), (2, 3)): [[float(cell)] * 6 for cell in range(3)],
    pa.uuid(): [bytes([cell]) * 16 for cell in range(3)],
    pa.json_(): ["{}", "[1]", "2"],
    pa.bool8(): [0, 1, 1],
    pa.opaque(pa.binary(), "a", "b"): [b"a", b"b", b"c"],
    Own(): [1, 2, 3],
}
INSIDE = ("plain", "list", "struct", "map")


def extended(kind: pa.DataType, inside: str, *, null: bool) -> tuple[pa.Array, pa.Array]:
    """Three cells of an extension type, alone or inside another, and the same as they are stored."""
    stored = pa.array(
        [None if null and not number else cell for number, cell in enumerate(EXTENSIONS[kind])], kind.storage_type
    )
    cells = pa.ExtensionArray.from_storage(kind, stored)
    ends = pa.array([0, 1, 2, 3], pa.int32())
    made = {
        "plain": lambda array: array,
        "list": lambda array: pa.ListArray.from_arrays(ends, array),
        "struct": lambda array: pa.StructArray.from_arrays([array], ["a"]),
        "map": lambda array: pa.MapArray.from_arrays(ends, pa.array(["k"] * 3), array),
    }[inside]
    return made(cells), made(stored)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("engine", ["parquet", "lance", "vortex", "theirs"])
@settings(max_examples=3, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck))
@given(kind=st.sampled_from(list(EXTENSIONS)), inside=st.sampled_from(INSIDE), null=st.booleans())
def test_extension_types_are_stored_as_what_stands_behind_them(engine, kind, inside, null, tmp_path_factory) -> None:
    place = tmp_path_factory.mktemp("extended")
    cells, stored = extended(kind, inside, null=null)
    table = pa.table({"sequence_id": ["a", "b", "c"], "action": pa.array([[[0.0, 1.0]] * 2] * 3), "x": cells})
    if engine == "theirs":
        (place / "ds" / "data").mkdir(parents=True)
        pq.write_table(table, place / "ds" / "data" / "part-0.parquet")
        (place / "ds" / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    else:
        sl.create(place / "ds", {field.name: field.type for field in table.schema}, shards=engine).append(table)
    ds = sl.open(place / "ds")
    wanted = stored.to_pylist()
    assert ds.to_arrow()["x"].type.equals(stored.type) or ds.schema["x"].category == "temporal"
    if engine == "parquet":
        verbs(ds, wanted, place)
    same(ds, wanted)
    same(sl.repack(ds, place / "other", shards="vortex" if engine == "lance" else "lance"), wanted)
    assert ds.sql("SELECT count(x) FROM dataset WHERE x IS NOT NULL").fetchall() == [
        (3 - sum(one is None for one in wanted),)
    ]
    assert not [one for one in ds.validate(depth="rows") if one.severity == "error"]
    if engine == "theirs":
        return
    with ds.writer() as writer:
        writer.add("d", action=np.zeros((2, 2)), x=wanted[1])
        writer.add("e", action=np.zeros((2, 2)), x=wanted[2])
    ds = sl.open(place / "ds")
    ds.append([{"sequence_id": "f", "action": np.zeros((2, 2)), "x": wanted[1]}])
    same(sl.open(place / "ds"), [*wanted, wanted[1], wanted[2], wanted[1]])
    ds = sl.open(place / "ds")
    ds.upsert(table.set_column(0, "sequence_id", pa.array(["a", "g", "h"])))
    same(sl.open(place / "ds"), [*wanted, wanted[1], wanted[2], wanted[1], wanted[1], wanted[2]])
    plain = sl.create(place / "plain", {"y": pa.int64()}, shards=engine)
    plain.append(pa.table({"sequence_id": ["a", "b", "c"], "y": [1, 2, 3]}))
    sl.open(place / "plain").add_column("x", cells.type, values=dict(zip("abc", wanted, strict=True)))
    same(sl.open(place / "plain"), wanted)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.json_()], ids=str)
def test_what_lance_panics_over_is_refused_by_name(kind, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"x": pa.struct([("a", pa.list_(kind, 2))])}, shards="lance")
    with pytest.raises(SchemaMismatchError, match=r"Column 'x': Lance does not write lists of a fixed size"):
        ds.append([{"sequence_id": "a", "x": {"a": None}}])
