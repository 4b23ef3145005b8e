"""Page headers, levels and Thrift: bytes in, facts or an error out, whatever the bytes."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.errors import CorruptFileError
from seqlake.files.stores import MemoryBlob
from seqlake.shards.parquet import pages as reading
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.parquet.pages import (
    DATA,
    DATA_V2,
    DICTIONARY,
    decode_levels,
    read_header,
    read_levels,
    read_struct,
    walk,
)


def file_of(table, **options):
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def pages_of(data, leaf=0):
    (chunk, *_) = (group[leaf] for group in read_footer(MemoryBlob(data)).chunks)
    part = memoryview(data)[chunk.start : chunk.stop]
    return part, list(walk(part, values=chunk.values))


@pytest.mark.parametrize(("version", "kind"), [("1.0", DATA), ("2.0", DATA_V2)])
def test_pages_of_a_chunk_touch_and_count(version, kind):
    table = pa.table({"x": pa.array(np.arange(5000))})
    data = file_of(
        table,
        data_page_version=version,
        data_page_size=1000,
        use_dictionary=False,
        write_page_checksum=True,
        write_batch_size=50,
    )
    part, pages = pages_of(data)
    assert len(pages) > 20
    assert {page.kind for page in pages} == {kind}
    assert sum(page.values for page in pages) == 5000
    assert [page.offset for page in pages] == [0, *(page.stop for page in pages[:-1])]
    assert pages[-1].stop == len(part)
    assert all(page.crc is not None for page in pages) is (version == "1.0" or pages[0].crc is not None)


def test_a_dictionary_page_comes_first():
    _, pages = pages_of(file_of(pa.table({"x": ["a", "b", "a"] * 100})))
    assert pages[0].kind == DICTIONARY
    assert sum(page.values for page in pages if page.is_data) == 300


def test_a_header_longer_than_the_first_guess():
    """Statistics of long strings make page headers of kilobytes."""
    table = pa.table({"x": ["a" * 3000, "z" * 3000]})
    _, pages = pages_of(file_of(table, use_dictionary=False))
    assert pages[0].body > 500


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_levels_are_those_of_the_lists(version):
    table = pa.table({"x": pa.array([[[1, 2], [3]], None, [], [None, [], [None]]], pa.list_(pa.list_(pa.int32())))})
    part, (page,) = pages_of(file_of(table, data_page_version=version, use_dictionary=False, compression="none"))
    repetition, definition = read_levels(part, page, deepest_repetition=2, deepest_definition=5)
    assert repetition.tolist() == [0, 2, 1, 0, 0, 0, 1, 1]
    assert definition.tolist() == [5, 5, 5, 0, 1, 2, 3, 4]


@given(
    runs=st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 255)), max_size=12),
    deepest=st.integers(1, 255),
)
@settings(max_examples=150, deadline=None)
def test_runs_of_levels(runs, deepest):
    """Encoded here by hand: RLE runs, and bit-packed groups of eight."""
    width, data, expected = deepest.bit_length(), b"", []
    for packed, count, value in runs:
        start = value % (deepest + 1)
        if packed:
            groups = -(-count // 8)
            levels = [(start + i) % (deepest + 1) for i in range(groups * 8)]
            bits = sum(level << (i * width) for i, level in enumerate(levels))
            data += varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")
            expected += levels
        else:
            data += varint(count << 1) + bytes([start])
            expected += [start] * count
    assert decode_levels(data, deepest=deepest, count=len(expected)).tolist() == expected
    with pytest.raises(CorruptFileError):
        decode_levels(data, deepest=deepest, count=len(expected) + 1)


def varint(value):
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


PATTERN = st.lists(st.sampled_from([2, 3, 4, 5, 80, 129, 200, 0, 1, 255]), min_size=1, max_size=40).map(bytes)


@given(
    PATTERN, st.integers(1, 400), st.lists(st.tuples(st.integers(0, 16_000), st.integers(0, 255)), max_size=3), PATTERN
)
@settings(deadline=None)
def test_runs_that_repeat_are_those_that_hops_meet(pattern, times, changed, after):
    data = bytearray(pattern * times + after)
    for place, byte in changed:
        data[place % len(data)] = byte
    for width in (1, 2):
        repeated = reading._runs(bytes(data), width)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "_repeated", lambda *_: None)
            hopped = reading._runs(bytes(data), width)
        for one, other in zip(repeated, hopped, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 9, 12, 17, 48, 100, 300, 1000])
def test_steps_of_one_width_are_not_hopped_over(dim, monkeypatch):
    steps, hops = 3000, []
    cells = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(steps * dim, "f4")), dim)
    kind = pa.list_(pa.list_(pa.float32()))
    cell = pa.ListArray.from_arrays(pa.array([0, steps], pa.int32()), cells.cast(kind.value_type)).cast(kind)
    part, found = pages_of(file_of(pa.table({"x": cell}), use_dictionary=False, compression="none"))
    hopped = reading._hopped
    monkeypatch.setattr(reading, "_hopped", lambda *rest: hops.append(rest) or hopped(*rest))
    repetition, _ = read_levels(part, found[0], deepest_repetition=2, deepest_definition=5)
    expected = np.full(steps * dim, 2)
    expected[::dim], expected[0] = 1, 0
    np.testing.assert_array_equal(repetition, expected)
    assert len(hops) < 6


def test_levels_above_the_deepest():
    with pytest.raises(CorruptFileError, match="up to 2"):
        decode_levels(varint(10 << 1) + b"\x03", deepest=2, count=10)


def test_a_run_of_no_levels_does_not_hang():
    with pytest.raises(CorruptFileError):
        decode_levels(b"\x00\x00" * 1000, deepest=1, count=5)


def test_more_levels_claimed_than_memory_has():
    with pytest.raises(CorruptFileError):
        decode_levels(b"", deepest=1, count=1 << 40)


@given(data=st.binary(max_size=400))
@settings(max_examples=400, deadline=None)
def test_any_bytes_as_a_header(data):
    try:
        page = read_header(memoryview(data), 0)
    except CorruptFileError:
        return
    assert 0 < page.body <= len(data)
    assert page.stop >= page.body


@given(data=st.binary(max_size=300))
@settings(max_examples=400, deadline=None)
def test_any_bytes_as_thrift(data):
    try:
        fields, length = read_struct(data)
    except (IndexError, ValueError):
        return
    assert length <= len(data)
    assert all(isinstance(number, int) for number in fields)


@pytest.mark.parametrize(
    "data",
    [
        b"\x19" * 100_000,  # lists of lists of lists
        b"\x1c" * 100_000,  # structs in structs
        b"\x19\xfc" + b"\xff" * 9 + b"\x01",  # a list of 2^63 structs
        b"\x18" + b"\xff" * 8 + b"\x7f",  # a string longer than memory
        b"\x15" + b"\xff" * 20,  # an endless integer
    ],
)
def test_thrift_that_wants_too_much(data):
    with pytest.raises((IndexError, ValueError)):
        read_struct(data)


def test_a_chunk_whose_counts_do_not_add_up():
    data = file_of(pa.table({"x": np.arange(100)}), use_dictionary=False)
    part, (page,) = pages_of(data)
    with pytest.raises(CorruptFileError, match="more than the chunk holds"):
        list(walk(part, values=99))
    with pytest.raises(CorruptFileError):
        list(walk(part, values=101))
    with pytest.raises(CorruptFileError):
        list(walk(part[: page.stop - 1], values=100))
