from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.errors import SchemaMismatchError
from seqlake.spec.column_types import Audio, ColumnType, Embedding, Image, Spatial3D, Trajectory, Video
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Column, Schema, dtype_of, without_views

F = pa.float32()
URL = pa.struct({"url": pa.string(), "first_frame": pa.int64()})


@pytest.mark.parametrize(
    ("arrow", "kind", "category"),
    [
        (pa.list_(pa.list_(F)), None, "temporal"),
        (pa.large_list(pa.large_list(pa.float64())), None, "temporal"),
        (pa.list_(pa.list_(F, 3)), None, "temporal"),
        (pa.list_(pa.list_(pa.int8())), None, "temporal"),
        (pa.list_view(pa.list_(F)), None, "temporal"),
        (pa.list_(F), ColumnType("trajectory"), "temporal"),
        (pa.list_(F), ColumnType("anything", time=True), "temporal"),
        (pa.list_(F), None, "other"),
        (pa.list_(F), Embedding(dim=3), "vector"),
        (pa.list_(F, 3), Embedding(), "vector"),
        (pa.binary(), Trajectory(dim=3, encoding="raw"), "temporal"),
        (pa.binary(), None, "scalar"),
        (pa.list_(pa.binary()), Image(), "frames"),
        (pa.list_(pa.string()), Image(), "frames"),
        (pa.list_(pa.string()), None, "other"),
        (pa.string(), Video(), "file"),
        (pa.string(), Image(), "file"),
        (pa.string(), ColumnType("mcap"), "file"),
        (pa.string(), ColumnType("language"), "scalar"),
        (pa.string(), ColumnType("lidar", file=True), "file"),
        (URL, ColumnType("link"), "other"),
        (pa.list_(pa.list_(pa.list_(F))), None, "temporal"),
        (pa.list_(pa.list_(pa.list_(F))), ColumnType("4d"), "temporal"),
        (pa.list_(pa.struct({"x": F})), ColumnType("trajectory"), "other"),
        (pa.list_(pa.list_(F)), Embedding(dim=3), "temporal"),
        (pa.binary(), ColumnType("trajectory", encoding="raw"), "scalar"),  # it says neither how many nor which
        (URL, Video(), "file"),
        (URL, None, "other"),
        (pa.string(), None, "scalar"),
        (pa.string(), ColumnType("trajectory"), "scalar"),
        (pa.dictionary(pa.int32(), pa.string()), None, "scalar"),
        (pa.timestamp("us"), None, "scalar"),
        (pa.decimal128(10, 2), None, "scalar"),
        (pa.bool_(), None, "scalar"),
        (pa.list_(pa.list_(pa.string())), None, "other"),
        (pa.map_(pa.string(), F), None, "other"),
        (pa.struct({"x": F}), None, "other"),
    ],
)
def test_the_first_category_that_fits(arrow, kind, category) -> None:
    assert Column("c", arrow, kind).category == category


def test_the_id_comes_first_and_is_a_string() -> None:
    assert Schema({"a": F}).names == ["sequence_id", "a"]
    assert Schema({"a": F, "sequence_id": pa.large_string()}).names == ["a", "sequence_id"]
    assert Schema({"a": F}, id=None).id is None
    with pytest.raises(SchemaMismatchError, match="string"):
        Schema({"sequence_id": pa.int64()})
    with pytest.raises(SchemaMismatchError, match="expected an Arrow type"):
        Schema({"a": float})


def test_stored_is_plain_and_logical_is_fixed() -> None:
    schema = Schema({"a": Trajectory(dim=4), "raw": Trajectory(dim=2, encoding="raw"), "free": Trajectory()})
    plain = pa.list_(pa.list_(F))
    assert schema.stored().field("a").type == plain
    assert schema.stored(fixed_size_inner=True).field("a").type == pa.list_(pa.list_(F, 4))
    assert schema.arrow.field("a").type == pa.list_(pa.list_(F, 4))
    assert schema.stored().field("raw").type == pa.binary()
    assert schema.arrow.field("raw").type == pa.list_(pa.list_(F, 2))
    assert schema.arrow.field("free").type == plain
    assert schema["a"].shape == (4,)
    assert schema["free"].shape is None
    assert Column("c", pa.list_(F), ColumnType("trajectory")).shape == ()
    assert Column("c", plain, Trajectory(dim=9, shape=(3, 3))).shape == (3, 3)
    assert Column("c", plain, Trajectory(shape=(3, 3))).dim == 9
    for far in (Trajectory(dim=1 << 40), Trajectory(shape=(1 << 20, 1 << 20))):  # no list of Arrow is so long
        assert (Column("c", plain, far).dim, Column("c", plain, far).logical) == (None, plain)
    # A shape that does not fit is a finding; reading goes on with what fits.
    assert Column("c", plain, Trajectory(dim=9, shape=(2, 3))).shape == (9,)


NUMBERS = st.sampled_from([pa.float32(), pa.float64(), pa.float16(), pa.int8(), pa.uint16(), pa.int64()])
TYPES = st.one_of(
    st.builds(Trajectory, dim=st.none() | st.integers(1, 64), dtype=NUMBERS, fps=st.none() | st.floats(0.1, 1000)),
    st.builds(Trajectory, dim=st.integers(1, 64), dtype=NUMBERS, encoding=st.just("raw")),
    st.builds(Embedding, dim=st.none() | st.integers(1, 64), dtype=NUMBERS),
    st.builds(Image, frames=st.sampled_from([None, "bytes", "files"])),
    st.builds(Video, fps=st.none() | st.integers(1, 120), lens=st.text()),
    st.builds(ColumnType, st.text(), future=st.lists(st.integers(-9, 9))),
)
SCALARS = st.sampled_from([pa.string(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.decimal128(9, 2), pa.binary()])


@settings(deadline=None)
@given(
    st.dictionaries(st.text().filter(lambda name: name != "sequence_id"), TYPES | SCALARS, max_size=6), st.booleans()
)
def test_what_files_and_metadata_say_is_the_whole_schema(columns, fixed) -> None:
    schema = Schema(columns)
    text = schema.metadata.to_json()
    again = Schema.from_arrow(schema.stored(fixed_size_inner=fixed), metadata=Metadata.parse(text))
    assert again.arrow == schema.arrow
    assert again.stored() == schema.stored()
    assert again.metadata == schema.metadata
    assert [c.category for c in again.values()] == [c.category for c in schema.values()]
    assert [c.shape for c in again.values()] == [c.shape for c in schema.values()]
    # What streams show is a schema of the same meaning.
    shown = Schema.from_arrow(schema.arrow, metadata=schema.metadata)
    assert shown.arrow == schema.arrow
    assert [c.category for c in shown.values()] == [c.category for c in schema.values()]


def test_from_arrow_of_what_engines_return() -> None:
    foreign = pa.schema({
        "sequence_id": pa.large_string(),
        "a": pa.large_list(pa.large_list(pa.float64())),
        "b": pa.list_(pa.list_(F, 7)),
        "cam": URL,
    })  # fmt: skip
    metadata = Metadata(column_types={"cam": Video(fps=30), "gone": Audio()})
    schema = Schema.from_arrow(foreign, metadata=metadata)
    assert [schema[n].category for n in schema] == ["scalar", "temporal", "temporal", "file"]
    assert schema["a"].value_type == pa.float64()
    assert schema["b"].dim == 7
    assert schema.arrow.field("a").type == pa.list_(pa.list_(pa.float64()))
    assert schema.metadata.column_types["gone"] == Audio()


def test_a_missing_id_guesses() -> None:
    with pytest.raises(SchemaMismatchError, match="Is 'sequence_ids' meant"):
        Schema.from_arrow(pa.schema({"sequence_ids": pa.string()}))
    with pytest.raises(SchemaMismatchError, match="twice"):
        Schema.from_arrow(pa.schema([pa.field("sequence_id", pa.string()), *[pa.field("a", F)] * 2]))
    assert Schema.from_arrow(pa.schema({"x": F}), id=None).names == ["x"]


def test_schemas_made_from_schemas() -> None:
    schema = Schema({"a": Trajectory(dim=4), "b": F}, metadata=Metadata(extra={"lab": "north"}))
    assert schema.select(["sequence_id", "b"]).metadata.column_types == {}
    assert schema.select(["b"]).id is None
    assert schema.without("a").names == ["sequence_id", "b"]
    renamed = schema.renamed({"a": "act"})
    assert renamed.names == ["sequence_id", "act", "b"]
    assert renamed.metadata.column_types == {"act": Trajectory(dim=4)}
    assert renamed.metadata.extra == {"lab": "north"}
    more = schema.with_columns({"c": Video(), "b": pa.float64()})
    assert more.names == ["sequence_id", "a", "b", "c"]
    assert more["b"].arrow == pa.float64()
    assert schema != more
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_printing_helps() -> None:
    schema = Schema({"a": Trajectory(dim=4, units="rad"), "mesh": Spatial3D(format="ply"), "<b>": F})
    assert "a: trajectory [T, 4] float units=rad" in repr(schema)
    assert "&lt;b&gt;" in schema._repr_html_()
    with pytest.raises(KeyError, match="Did you mean 'mesh'"):
        schema["mash"]


def test_views_are_plain_wherever_they_stand() -> None:
    view, plain = pa.string_view(), pa.string()
    for kind, expected in (
        (view, plain),
        (pa.binary_view(), pa.binary()),
        (pa.list_(view, 2), pa.list_(plain, 2)),
        (pa.large_list(view), pa.large_list(plain)),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.struct([pa.field("a", view, nullable=False)]), pa.struct([pa.field("a", plain, nullable=False)])),
        (pa.list_(pa.struct([("a", pa.list_(view))])), pa.list_(pa.struct([("a", pa.list_(plain))]))),
        (pa.map_(view, pa.binary_view()), pa.map_(plain, pa.binary())),
        (pa.list_(pa.field("element", pa.int8())), pa.list_(pa.field("element", pa.int8()))),
    ):
        assert without_views(kind) == expected
        assert str(without_views(kind)) == str(expected)


@pytest.mark.parametrize(
    ("arrow", "numpy"),
    [
        (pa.float16(), "f2"),
        (pa.uint32(), "u4"),
        (pa.bool_(), "?"),
        (pa.timestamp("us", tz="UTC"), "M8[us]"),
        (pa.timestamp("s"), "M8[s]"),
        (pa.duration("ms"), "m8[ms]"),
    ],
)
def test_types_of_numpy_are_known_without_pandas(arrow, numpy) -> None:
    assert dtype_of(arrow) == numpy
