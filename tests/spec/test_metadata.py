from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.errors import InvalidMetadataError, UnsupportedVersionError
from seqlake.spec.column_types import ColumnType, Image, Trajectory, Video
from seqlake.spec.metadata import Metadata
from seqlake.spec.rules import check_types

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TYPES = st.fixed_dictionaries({"type": st.text()}, optional={"dim": JSON, "fps": JSON, "future": JSON})


@settings(deadline=None)
@given(
    types=st.dictionaries(st.text(), TYPES, max_size=4),
    extra=st.dictionaries(st.text().filter(lambda k: k not in {"mixtrain", "column_types"}), JSON, max_size=3),
)
def test_everything_unknown_survives_a_round_trip(types, extra) -> None:
    value = {"mixtrain": "1.0", **({"column_types": types} if types else {}), **extra}
    once = Metadata.parse(json.dumps(value))
    assert json.loads(once.to_json()) == value
    assert Metadata.parse(once.to_json()) == once


@pytest.mark.parametrize(
    ("written", "read"), [("1", "1.0"), ("1.0", "1.0"), (1.0, "1.0"), (1, "1.0"), ("1.2", "1.2"), ("1.0.3", "1.0.3")]
)
def test_versions_that_are_read(written, read) -> None:
    metadata = Metadata.parse(json.dumps({"mixtrain": written}))
    assert metadata.version == read
    assert json.loads(metadata.to_json())["mixtrain"] == read


@pytest.mark.parametrize("version", ["2.0", "2", 2, 3.5, "10.1"])
def test_a_newer_major_version_is_refused(version) -> None:
    with pytest.raises(UnsupportedVersionError, match="Upgrade seqlake"):
        Metadata.parse(json.dumps({"mixtrain": version}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "JSON object"),
        ("[]", "found list"),
        ("null", "found NoneType"),
        ('"mixtrain"', "found str"),
        ("{}", "No key 'mixtrain'"),
        ('{"Mixtrain": "1.0"}', "No key 'mixtrain'"),
        ('{"mixtrain": null}', "version such as"),
        ('{"mixtrain": true}', "version such as"),
        ('{"mixtrain": "one"}', "version such as"),
        ('{"mixtrain": "1."}', "version such as"),
        ('{"mixtrain": ["1.0"]}', "version such as"),
        ('{"mixtrain": "1.0", "mixtrain": "1.0"}', "stands there twice"),
        ('{"mixtrain": "1.0", "column_types": []}', "must be an object"),
        ('{"mixtrain": "1.0", "column_types": {"a": 1}}', "column_types.a"),
        ('{"mixtrain": "1.0", "column_types": {"a": {}}}', "column_types.a"),
        ('{"mixtrain": "1.0", "column_types": {"a": {"type": 3}}}', "string"),
        ('{"mixtrain": "1.0", "x": NaN}', "NaN is not JSON"),
        ('{"mixtrain": "1.0", "x": -Infinity}', "not JSON"),
        ('{"mixtrain": "1.0"', "JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"mixtrain": "1.0", "x":' + "[" * 100_000, "nested too deeply"),
        (b'\xff\xfe{"mixtrain": "1.0"}', "UTF-8"),
        ('{"mixtrain": "1.0", "x": 1e400}', "larger than any number"),
        ('{"mixtrain": "1.0", "x":' + "[" * 80 + "]" * 80 + "}", "nested too deeply"),
        ('{"mixtrain": "1.0", "x": ' + "9" * 5000 + "}", "JSON object"),
        ('{"mixtrain": "' + "1" * 5000 + '"}', "version such as"),
        ('{"mixtrain": "1.0", "x": {"a": 1, "a": 2}}', "'a' stands there twice"),
    ],
)
def test_hostile_metadata_is_refused_with_what_was_found(text, says) -> None:
    with pytest.raises(InvalidMetadataError, match=says):
        Metadata.parse(text)


def test_what_is_read_can_be_written() -> None:
    deep = '{"mixtrain": "1.0", "x":' + "[" * 60 + "]" * 60 + "}"
    lone = r'{"mixtrain": "1.0", "x": "\ud800"}'
    for text in (deep, lone):
        written = Metadata.parse(text).to_json()
        assert json.loads(written.encode()) == json.loads(text)


def test_what_is_not_json_is_not_written() -> None:
    with pytest.raises(InvalidMetadataError, match="cannot be written"):
        Metadata(extra={"x": float("nan")}).to_json()
    with pytest.raises(InvalidMetadataError, match="cannot be written"):
        Metadata(extra={"x": object()}).to_json()


def test_column_types_check_themselves() -> None:
    with pytest.raises(InvalidMetadataError, match="JSON value"):
        Video(fps=float("nan"))
    with pytest.raises(InvalidMetadataError, match="'lens'"):
        ColumnType("mcap", lens={"k": [{1, 2}]})
    with pytest.raises(InvalidMetadataError, match="one type"):
        Trajectory(type="video")
    with pytest.raises(InvalidMetadataError, match="must be a string"):
        ColumnType(3)
    with pytest.raises(InvalidMetadataError, match="frames"):
        Image(frames="pixels")
    numbers = ColumnType("x", a=np.float64(0.5), b=np.arange(2), c=(1, 2)).to_json()
    assert json.loads(json.dumps(numbers)) == {"type": "x", "a": 0.5, "b": [0, 1], "c": [1, 2]}


def test_metadata_are_checked_without_a_schema() -> None:
    text = (
        '{"mixtrain": "1.3", "column_types": {"a": {"type": "trajectory", "dim": 0}, "b": {"type": "nifti", "fps": 0}}}'
    )
    assert {(f.code, f.column) for f in check_types(Metadata.parse(text))} == {
        ("M103", ""), ("M105", "a"), ("M118", "b"), ("M106", "b"),
    }  # fmt: skip
    fine = Metadata(column_types={"a": Trajectory(dim=9, shape=(3, 3)), "v": Video(fps=30)})
    assert list(check_types(fine)) == []


def test_a_byte_order_mark_is_no_obstacle() -> None:
    assert Metadata.parse(b'\xef\xbb\xbf{"mixtrain": "1.0"}') == Metadata()


def test_column_types_know_their_class_and_keep_their_fields() -> None:
    entry = {"type": "video", "fps": 30, "codec": "h264", "lens": {"k1": 0.1}}
    made = ColumnType.from_json(entry)
    assert isinstance(made, Video)
    assert made.to_json() == entry
    assert made == Video(fps=30, codec="h264", lens={"k1": 0.1})
    assert hash(made) == hash(Video(fps=30, codec="h264", lens={"k1": 0.1}))
    assert pickle.loads(pickle.dumps(made)) == made
    assert "lens" in repr(made)
    assert type(ColumnType.from_json({"type": "mcap"})) is ColumnType


def test_nothing_is_written_that_was_not_said() -> None:
    assert Trajectory(dim=3).to_json() == {"type": "trajectory", "dim": 3}
    assert Trajectory(dim=3, encoding="raw").to_json()["dtype"] == "float32"
