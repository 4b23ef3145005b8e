"""Copying out of raw memory: the right bytes, and never a byte that was not promised."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqlake.errors import DamagedTableError, SchemaMismatchError
from seqlake.files.blobs import LocalBlob, MemoryBlob
from seqlake.protocols import Flat
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training import gather
from seqlake.training.gather import Memory, clear
from seqlake.training.loader import Loader


@pytest.fixture(params=["torch", "numpy"])
def library(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(gather, "torch", lambda: None)
    else:
        monkeypatch.setattr(gather.Pace, "alone", lambda _: False)
    return request.param


@pytest.mark.parametrize("width", [1, 3, 192, 5000])
def test_ranges_of_several_pieces_in_one_call(library, width):
    random = np.random.default_rng(0)
    pieces = [random.integers(0, 256, size).astype(np.uint8) for size in (20_000, 7_001, 1 << 20)]
    memory, addresses, expected = Memory(), [], []
    for piece in pieces:
        low, high = memory.hold(piece.data)
        assert high - low == len(piece)
        for at in random.integers(0, len(piece) - width + 1, 300):
            addresses.append(low + at)
            expected.append(piece[at : at + width])
    shuffled = random.permutation(len(addresses))
    addresses, expected = np.array(addresses)[shuffled], np.array(expected)[shuffled]
    got = memory.gather(addresses, width)
    np.testing.assert_array_equal(got, expected)
    out = np.zeros((50, width), np.uint8)
    part = memory.ranges(addresses, width, size=50).copy(2, out=out)
    np.testing.assert_array_equal(part, expected[100:150])
    assert np.shares_memory(part, out)
    assert memory.gather(addresses[:0], width).shape == (0, width)


def test_addresses_outside_everything_held_are_refused(library):
    piece = np.zeros(100, np.uint8)
    memory = Memory()
    low, high = memory.hold(piece.data)
    memory.gather(np.array([low, high - 10]), 10)
    for wrong in (low - 1, high - 9, 0):
        with pytest.raises(IndexError, match="outside"):
            memory.gather(np.array([low, wrong]), 10)
    with pytest.raises(IndexError, match="outside"):
        Memory().gather(np.array([low]), 1)


def test_what_was_prepared_stays_right_when_more_is_held():
    """Another shard may be opened, lower in memory, between finding the windows of a batch and copying them."""
    arrays = sorted((np.full(1 << 16, k, np.uint8) for k in range(4)), key=lambda a: -a.ctypes.data)
    memory, prepared = Memory(), []
    for array in arrays:
        low, _ = memory.hold(array.data)
        prepared.append((array[0], memory.ranges(np.array([low, low + 100]), 50, size=2)))
    for value, ranges in prepared:
        assert (ranges.copy(0) == value).all()


def test_clear_sets_whole_steps_to_zero():
    for shape in ((2, 3), (2, 3, 5), (2, 3, 2, 2)):
        values = np.ones(shape, np.float32)
        clear(values, np.array([0, 4]))
        assert not values[0, 0].any()
        assert not values[1, 1].any()
        assert values.sum() == values.size * 4 / 6
    clear(np.ones((2, 3, 0)), np.array([1]))


class Shard:
    """One shard whose signals lie as a test says."""

    def __init__(self, key, flats, table):
        self.key, self.flats, self.table = key, flats, table
        self.rows, self.nbytes = table.num_rows, table.nbytes

    def open(self):
        return self

    def flat(self, column):
        return self.flats.get(column)

    def batches(self, columns, /, *, rows=None):
        yield from self.table.select(list(columns)).to_batches()

    def close(self): ...


def flat_of(cells, *, stored="<f4", stride=None, lead=5):
    """Cells in one blob, each step padded to `stride` bytes."""
    stored = np.dtype(stored)
    width = cells[0].shape[1] * stored.itemsize
    stride = stride or width
    data, start = bytearray(b"\xaa" * lead), []
    for cell in cells:
        start.append(len(data))
        for step in cell:
            data += step.astype(stored).tobytes().ljust(stride, b"\xaa")
    return Flat(
        blob=MemoryBlob(bytes(data)),
        start=np.array(start, np.int64),
        steps=np.array([len(cell) for cell in cells], np.int64),
        stride=stride,
        stored=stored,
        dtype=np.dtype(np.float32),
        shape=(cells[0].shape[1],),
    )


@pytest.fixture
def parts(readable):
    import pyarrow as pa

    schema = Schema({"x": Trajectory(dim=3)})
    random = np.random.default_rng(2)
    rows = [
        {"sequence_id": f"ep_{k}", "x": random.integers(-9, 9, (steps, 3)).astype(np.float32)}
        for k, steps in enumerate([6, 4, 9, 2])
    ]
    source = readable(schema, rows, shards=2)
    tables = [pa.table({"sequence_id": [row["sequence_id"] for row in rows[k : k + 2]]}) for k in (0, 2)]
    return source, rows, tables


@pytest.mark.parametrize("edges", ["pad", "clamp"])
def test_shards_may_lie_differently(library, parts, edges):
    """Interleaved steps in one shard, wider numbers in the other: the same batches."""
    source, rows, tables = parts
    cells = [row["x"] for row in rows]
    window = {"x": range(-2, 3)}
    from seqlake.windows.spec import Window

    expected = list(Loader(source, window=Window(window, edges=edges), batch_size=4))
    for kinds in ([{"stride": 116}, {"stride": 116}], [{"stored": "<f8"}, {}], [{"stride": 20}, {"stored": "<i2"}]):
        source.parts = [
            Shard(f"s#{k}", {"x": flat_of(cells[2 * k : 2 * k + 2], **kind)}, tables[k]) for k, kind in enumerate(kinds)
        ]
        got = list(Loader(source, window=Window(window, edges=edges), batch_size=4))
        for a, b in zip(got, expected, strict=True):
            assert a["x"].dtype == np.float32
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


def test_windows_at_the_very_borders_of_memory_read_nothing_outside(library, parts):
    """No bytes before the first cell and none after the last: edges there are assembled step by step."""
    source, rows, tables = parts
    cells = [row["x"] for row in rows]
    expected = list(Loader(source, window={"x": range(-3, 4)}, batch_size=3))
    source.parts = [Shard(f"s#{k}", {"x": flat_of(cells[2 * k : 2 * k + 2], lead=0)}, tables[k]) for k in (0, 1)]
    for a, b in zip(Loader(source, window={"x": range(-3, 4)}, batch_size=3), expected, strict=True):
        np.testing.assert_array_equal(a["x"], b["x"])
        np.testing.assert_array_equal(a["x_mask"], b["x_mask"])


@pytest.mark.parametrize("wrong", [{"start": -1}, {"start": 10**6}, {"steps": 10**6}, {"stride": 10**6}])
def test_an_index_that_names_bytes_outside_the_shard_is_refused(parts, wrong, monkeypatch):
    source, rows, tables = parts
    lengths = np.array([wrong.get("steps", len(rows[0]["x"])), *(len(row["x"]) for row in rows[1:])])
    monkeypatch.setattr(source, "lengths", lambda _: lengths)  # an index that agrees with itself
    good = flat_of([row["x"] for row in rows[:2]])
    changes = {
        name: value if name == "stride" else np.array([value, getattr(good, name)[1]]) for name, value in wrong.items()
    }
    source.parts = [Shard("s#0", {"x": replace(good, **changes)}, tables[0]), source.parts[1]]
    with pytest.raises(DamagedTableError, match="outside"):
        list(Loader(source, window={"x": range(2)}, batch_size=1))


def test_shards_of_unlike_width_are_refused(parts):
    source, rows, tables = parts
    narrow = flat_of([row["x"][:, :2] for row in rows[:2]])
    source.parts = [Shard("s#0", {"x": narrow}, tables[0]), source.parts[1]]
    with pytest.raises(SchemaMismatchError, match=r"\(3,\)"):
        list(Loader(source, window={"x": range(2)}, batch_size=1))


def test_batches_are_the_same_however_they_are_copied(monkeypatch):
    random = np.random.default_rng(0)
    piece = random.integers(0, 256, 1 << 16).astype(np.uint8)
    busy, alone = [False], [True]
    memory = Memory(busy=lambda: busy[0])
    low, high = memory.hold(piece.data)
    addresses = random.integers(low, high - 100, 64)
    expected = piece[(addresses - low)[:, None] + np.arange(100)]
    monkeypatch.setattr(gather.Pace, "alone", lambda _: alone[0])
    ranges = memory.ranges(addresses, 100, size=4, together=3)
    for number in range(16):
        busy[0], alone[0] = random.random() < 0.3, random.random() < 0.5
        np.testing.assert_array_equal(ranges.copy(number), expected[4 * number : 4 * number + 4])


def test_some_batches_are_copied_at_a_time_but_none_that_are_large():
    assert gather.batches_together(0) == gather.batches_together(1 << 10) == 16
    assert gather.batches_together(3 << 20) == 5
    assert gather.batches_together(16 << 20) == gather.batches_together(1 << 40) == 1


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages")
def test_large_pages_are_asked_for_where_a_file_is_mapped(tmp_path):
    def flags(path):
        maps = os.fsdecode(Path("/proc/self/smaps").read_bytes()).partition(str(path))[2]
        return re.search("VmFlags:(.*)", maps)[1].split()

    path = tmp_path / "x"
    path.write_bytes(bytes(3 << 20))
    view = LocalBlob(path).view()
    assert "hg" not in flags(path)
    Memory().hold(view)
    assert "hg" in flags(path)


def test_the_faster_way_to_copy_is_taken_until_it_is_the_slower_one():
    def share(copies, cost):
        """Of how many copies one way is taken, where each way costs so much."""
        taken = 0
        for _ in range(copies):
            alone = pace.alone()
            taken += alone
            pace.took(cost[alone])
        return taken / copies

    pace = gather.Pace()
    assert share(1000, {False: 1.0, True: 2.0}) < 0.1
    assert share(50, {False: 30.0, True: 2.0}) > 0.5  # noticed at once, not at the next trial
    assert share(2000, {False: 30.0, True: 2.0}) > 0.9
    assert share(20_000, {False: 30.0, True: 2.0}) > 0.99  # the slower, the less often it is tried
    assert share(20_000, {False: 1.0, True: 2.0}) < 0.4


def test_ways_that_are_about_as_fast_are_not_changed():
    pace, random = gather.Pace(), np.random.default_rng(0)
    taken = []
    for _ in range(3000):
        taken.append(pace.alone())
        pace.took((1.0 if taken[-1] else 1.02) * random.uniform(1.0, 1.05))
    changes = np.flatnonzero(np.diff(taken[20:]))
    assert len(changes) <= 2 * 3000 / 128  # the trials alone


def test_one_interrupted_copy_changes_nothing():
    pace = gather.Pace()
    taken = []
    for number in range(500):
        alone = pace.alone()
        taken.append(alone)
        pace.took(1000.0 if number in {0, 100, 300} else {False: 1.0, True: 1.5}[alone])
    assert sum(taken[10:]) < 0.1 * len(taken)
