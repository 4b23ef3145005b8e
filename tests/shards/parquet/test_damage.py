"""Damaged, stale and copied bytes: an error of ours or the right answer, never a crash, a hang or a wrong number."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.stores import MemoryBlob
from seqlake.shards import parquet
from seqlake.shards.parquet import building, index
from seqlake.shards.parquet.checking import check
from seqlake.shards.parquet.footer import read_footer
from seqlake.testing.shards import flat_is, identical

from ... import counting  # noqa: TID252 - tests are no package that could be named

SCRIPT = Path(__file__).with_name("mutating.py")
MUTATING = runpy.run_path(str(SCRIPT))
TEMPORAL = ["action", "state", "raw"]


@pytest.fixture(scope="module")
def data():
    return MUTATING["ours"]()


def table_of(data):
    return pq.read_table(pa.BufferReader(data))


def assert_right(data, *, flat=None):
    """Every column equals what pyarrow reads of the same bytes; `flat`: whether temporal ones are."""
    reader, truth = parquet.open(MemoryBlob(data)), table_of(data)
    for name in truth.column_names:
        found = pa.chunked_array([batch.column(0) for batch in reader.batches([name])])
        assert identical(found, truth[name])
        column = reader.flat(name)
        assert column is None or flat_is(column, truth[name])
        if flat is not None and name in TEMPORAL:
            assert (column is not None) is flat


PLACES = ["footer", "headers", "levels", "index", "values", "archive", "foreign"]


def mutate(place, seed, count):
    """Runs in a process of its own: pyarrow may end the process on damaged bytes, and that must be seen."""
    counted = counting.Counts(reader=f"parquet, bytes of {place}")
    command = [sys.executable, "-W", "error", str(SCRIPT), place, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:  # it ends at the first that is not as it should be, and says which
        ends = {"Timeout": "hang", "AssertionError": "wrong", "Traceback": "bare"}
        how = next((name for told, name in ends.items() if told in done.stderr), "crash")
        setattr(counted, how, 1)
        return counted, done.stderr
    counts = json.loads(done.stdout)
    counted.right, counted.refused = counts["right"], counts["raised"]
    counted.mutations = counted.right + counted.refused
    counted.over_2_gb = int(counts["peak_kb"] > 2_000_000)
    assert counted.mutations > 0.9 * count
    if place == "index":
        assert counted.right > 0.9 * count  # without its index, the file is read through pyarrow
    if place == "values":
        assert counts["caught"] == counted.mutations  # by their checksums, every one
    return counted, ""


@pytest.mark.sampled(every=3)
@pytest.mark.mutations
@pytest.mark.parametrize("place", PLACES)
def test_changed_bytes(place):
    counted, told = mutate(place, 11, 80)
    assert not counted.bad(), told


@pytest.mark.soak
@pytest.mark.mutations
@pytest.mark.parametrize("place", PLACES)
def test_many_changed_bytes(place):
    counted, told = mutate(place, counting.seeded(12), counting.many(3000))
    counted.keep()
    assert not counted.bad(), told


def test_damage_is_told_as_it_is_met(data):
    """The first finding comes before the rest of a large file was read."""
    chunks = read_footer(MemoryBlob(data)).chunks
    broken = bytearray(data)
    for group in chunks:
        for chunk in group:
            broken[chunk.stop - 1] ^= 1
    asked = []

    class Watched(MemoryBlob):
        def ranges(self, starts, stops):
            asked.extend(starts)
            return super().ranges(starts, stops)

    findings = check(Watched(bytes(broken)))
    assert next(findings).code in {"P602", "P603"}
    assert asked[-1] == chunks[0][0].start  # after the footer
    assert 1 + sum(1 for _ in findings) >= sum(map(len, chunks))


def test_sorted_and_rewritten_by_pyarrow_with_our_footer_key(data):
    metadata = pq.read_metadata(pa.BufferReader(data)).metadata
    table = table_of(data).sort_by([("sequence_id", "descending")])
    kept = {key: value for key, value in metadata.items() if key.startswith(b"seqlake")}
    assert len(kept) == 2
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(kept), sink, use_dictionary=False, compression="none", row_group_size=20
    )
    assert b"seqlake.offsets" in pq.read_metadata(pa.BufferReader(sink.getvalue())).metadata
    assert read_footer(MemoryBlob(sink.getvalue())).index() is None
    assert_right(sink.getvalue(), flat=False)
    assert list(check(MemoryBlob(sink.getvalue()))) == []


def test_rewritten_so_that_the_copied_key_points_to_copied_bytes(data):
    """Worst case: the pointer's bytes do match, since the old file's head lies before the new one."""
    other = MUTATING["ours"](seed=6)
    stitched = data[: -8 - int.from_bytes(data[-8:-4], "little")]
    length = int.from_bytes(other[-8:-4], "little")
    mixed = stitched + other[-8 - length :]
    with pytest.raises(CorruptFileError):
        list(parquet.open(MemoryBlob(mixed)).batches(["action"]))


def test_the_index_of_another_file_as_an_outside_index(data):
    plain = io.BytesIO()
    pq.write_table(
        table_of(data).drop_columns(["raw"]), plain, use_dictionary=False, compression="none", row_group_size=20
    )
    other = io.BytesIO()
    mixed = table_of(data).drop_columns(["raw"]).take(np.random.default_rng(0).permutation(60))
    pq.write_table(mixed, other, use_dictionary=False, compression="none", row_group_size=20)
    wrong, right = (building.build(MemoryBlob(sink.getvalue())) for sink in (other, plain))
    truth = table_of(plain.getvalue())
    for given, flat in ((wrong, False), (right, True)):
        reader = parquet.open(MemoryBlob(plain.getvalue()), index=given)
        for name in ("action", "state"):
            assert (reader.flat(name) is not None) is flat
            found = pa.chunked_array([batch.column(0) for batch in reader.batches([name])])
            assert identical(found, truth[name])


def test_a_stale_outside_index_of_the_same_lengths_gives_the_right_values():
    """Where only values differ, offsets are the same and so still right."""
    one, two = io.BytesIO(), io.BytesIO()
    options = {"use_dictionary": False, "compression": "none"}
    kind = pa.list_(pa.list_(pa.float32()))
    pq.write_table(pa.table({"a": pa.array([[[1, 2], [3, 4]]], kind)}), one, **options)
    pq.write_table(pa.table({"a": pa.array([[[2, 4], [1, 3]]], kind)}), two, **options)
    reader = parquet.open(MemoryBlob(two.getvalue()), index=building.build(MemoryBlob(one.getvalue())))
    assert flat_is(reader.flat("a"), table_of(two.getvalue())["a"])


@pytest.mark.parametrize("keep", [0, 3, 4, 11, 12, 100, 0.3, 0.5, 0.9, 0.99, -1, -4, -9])
def test_a_truncated_file(data, keep):
    cut = data[: int(len(data) * keep) if isinstance(keep, float) else keep]
    with pytest.raises(CorruptFileError, match="Expected a Parquet file"):
        list(parquet.open(MemoryBlob(cut, location="part-0.parquet")).batches(["action"]))
    (finding,) = check(MemoryBlob(cut))
    assert finding.code == "P601"


@pytest.mark.parametrize(
    "bad", [b"", b"PAR1PAR1", b"hello" * 10, bytes(400), b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1"]
)
def test_not_parquet(bad):
    with pytest.raises(CorruptFileError):
        list(parquet.open(MemoryBlob(bad)).batches(["action"]))


@pytest.mark.parametrize(
    "head", [b"\x15\x02\x19\xfc", b"\x15\x02\x19\x2c\x48\x01a\x15\x02\x00\x15\x02\x25\x00\x18\x01x\x00\x16\x00\x19\xfc"]
)
def test_a_footer_whose_lists_say_more_than_it_holds(head):
    """A million schema elements or row groups in fewer than fifty bytes: refused before memory is taken for them."""
    footer = head + b"\xc0\x84\x3d" + b"\x48\x01a\x00" * 3
    data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(CorruptFileError, match="size limit"):
        read_footer(MemoryBlob(data))


def test_bytes_after_the_end_or_a_cut_in_the_middle_are_noticed(data):
    with pytest.raises(SeqlakeError):
        list(parquet.open(MemoryBlob(data + b"\0" * 16)).batches(["action"]))
    cut = data[:200] + data[260:]
    reader = parquet.open(MemoryBlob(cut))
    assert reader.flat("action") is None  # the pointer misses its bytes
    with pytest.raises(SeqlakeError):
        list(reader.batches(reader.schema.names))


def test_a_changed_index_file_with_a_matching_hash_is_still_checked(data):
    """Every claim of an index is proved from the pages, even where its hash is right."""
    found = read_footer(MemoryBlob(data)).index()
    stripped = io.BytesIO()
    pq.write_table(
        table_of(data).drop_columns(["raw"]), stripped, use_dictionary=False, compression="none", row_group_size=20
    )
    built = index.decode(building.build(MemoryBlob(stripped.getvalue())))
    good, tied = built.columns["action"], built.levels["action"]
    truth = table_of(stripped.getvalue())["action"]
    assert found is not None

    def opened(**changes):
        parts = {name: getattr(good, name) for name in ("stored", "dim", "page_start", "page_row", "steps")} | changes
        wrong = index.OffsetIndex(columns={"action": index.ColumnIndex(**parts)}, levels={"action": tied})
        return parquet.open(MemoryBlob(stripped.getvalue()), index=index.encode(wrong))

    swapped = good.steps.copy()
    pair = np.flatnonzero((good.steps[:-1] != good.steps[1:]) & (good.steps[:-1] > 0) & (good.steps[1:] > 0))[0]
    swapped[pair] += 1
    for changes in (
        {"stored": "<i4"},
        {"stored": "<f8"},
        {"dim": 1},
        {"dim": 6},
        {"dim": 2**31 - 1},
        {"page_start": good.page_start + 4},
        {"page_start": good.page_start + (1 << 62)},
        {"page_start": -good.page_start},
        {"steps": swapped},
        {"steps": np.full_like(good.steps, 2**31 - 1)},
    ):
        assert opened(**changes).flat("action") is None, changes
    assert flat_is(opened().flat("action"), truth)
    tied = b""
    assert opened().flat("action") is None  # an index of nobody knows which file


def test_rows_in_another_order_with_the_same_sizes_and_statistics():
    """One page, one set of lengths: only the levels tell the two files apart."""
    kind = pa.list_(pa.list_(pa.float32()))
    one, two = ([[[1, 2]] * 3, [[3, 4]] * 5], [[[3, 4]] * 5, [[1, 2]] * 3])
    files = []
    for cells in (one, two):
        sink = io.BytesIO()
        pq.write_table(pa.table({"a": pa.array(cells, kind)}), sink, use_dictionary=False, compression="none")
        files.append(sink.getvalue())
    assert len(files[0]) == len(files[1])
    reader = parquet.open(MemoryBlob(files[1]), index=building.build(MemoryBlob(files[0])))
    assert reader.flat("a") is None
    assert pa.Table.from_batches(reader.batches(["a"]))["a"].to_pylist() == two


def test_index_bytes_that_are_no_index():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("x", pa.int64())])) as stream:
        stream.write_table(pa.table({"x": [1]}))
    for bad in (b"", b"junk", sink.getvalue().to_pybytes()):
        with pytest.raises(CorruptFileError):
            index.decode(bad)
        assert index.lengths(bad, "action") is None


def test_checks_name_the_column_and_the_row_group(data):
    start, stop = MUTATING["places"](data)["values"][-1]
    broken = bytearray(data)
    broken[(start + stop) // 2] ^= 1
    (finding,) = check(MemoryBlob(bytes(broken), location="part-0.parquet"))
    assert (finding.code, finding.column, finding.location) == ("P603", "tags", "part-0.parquet")
    assert "row group" in finding.message


def test_checks_find_changed_headers_and_footers(data):
    places = MUTATING["places"](data)
    for place, code in (("headers", "P602"), ("footer", "P601")):
        start, stop = places[place][0]
        broken = bytearray(data)
        broken[start + (stop - start) // 2] ^= 4
        assert code in {finding.code for finding in check(MemoryBlob(bytes(broken)))}
