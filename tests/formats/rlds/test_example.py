"""tf.train.Example off the wire, against bytes made by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.errors import CorruptFileError
from seqlake.formats.rlds.example import parse, varints

ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)


@given(values=st.lists(ints), packed=st.booleans())
def test_integers_come_back(tfds, values, packed):
    found = parse(memoryview(tfds.example({"a": values, "b": [1.5]}, packed=packed)))
    assert found["a"].ints().tolist() == values
    assert found["a"].count() == len(values)
    assert found["b"].floats().tolist() == [1.5]


@given(values=st.lists(floats), packed=st.booleans())
def test_floats_come_back_bit_for_bit(tfds, values, packed):
    found = parse(memoryview(tfds.example({"a": values}, packed=packed)))["a"]
    assert found.floats().tobytes() == struct.pack(f"<{len(values)}f", *values)
    assert found.count() == len(values)


def test_nan_payloads_stay(tfds):
    raw = bytes.fromhex("0100c07fefbea0ff")
    body = tfds.delimited(2, tfds.delimited(1, raw))
    data = tfds.delimited(1, tfds.delimited(1, tfds.delimited(1, b"a") + tfds.delimited(2, body)))
    assert parse(memoryview(data))["a"].floats().tobytes() == raw


@given(values=st.lists(st.binary(max_size=300)))
def test_bytes_come_back(tfds, values):
    found = parse(memoryview(tfds.example({"ä/b": values})))["ä/b"]
    assert [bytes(cell) for cell in found.bytes()] == values
    assert found.count() == len(values)


def test_packed_says_where_floats_lie(tfds):
    data = tfds.example({"x": [b"abc"], "a": [1.0, 2.0, 3.0]})
    start, stop = parse(memoryview(data))["a"].packed()
    assert data[start:stop] == struct.pack("<3f", 1, 2, 3)
    assert parse(memoryview(tfds.example({"a": [1.0, 2.0]}, packed=False)))["a"].packed() is None


def test_unknown_fields_are_passed_over_and_the_last_of_equal_keys_counts(tfds):
    one, two = tfds.example({"a": [1]}), tfds.example({"a": [2]})
    strange = b"\x50\x05" + tfds.delimited(11, b"hello") + b"\x65abcd" + b"\x69abcdefgh"
    found = parse(memoryview(strange + one + strange + two))
    assert found["a"].ints().tolist() == [2]


def test_another_kind_is_refused(tfds):
    values = parse(memoryview(tfds.example({"a": [1, 2]})))["a"]
    with pytest.raises(CorruptFileError, match="floats were expected, integers are stored"):
        values.floats()


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\xff\xff\xff\xff\x7f",  # a length far behind the end
        b"\x0a\x80",  # a length without end
        b"\x0b",  # a group
        b"\x80" * 20,  # a tag without end
        b"\x09abc",  # eight bytes announced, three there
    ],
)
def test_damage_is_an_error(data):
    with pytest.raises(CorruptFileError):
        parse(memoryview(data))


@given(st.binary(max_size=64))
def test_random_bytes_never_crash(data):
    try:
        for values in parse(memoryview(data)).values():
            values.count()
    except CorruptFileError:
        pass


@given(st.lists(ints, max_size=40))
def test_varints(tfds, values):
    assert varints(memoryview(b"".join(map(tfds.varint, values)))).tolist() == values


@pytest.mark.parametrize("data", [b"\x80", b"\x01\xff", b"\xff" * 11 + b"\x01"])
def test_varints_without_end(data):
    with pytest.raises(CorruptFileError):
        varints(memoryview(data))


def test_empty_example():
    assert parse(memoryview(b"")) == {}
    assert varints(memoryview(b"")).dtype == np.int64
