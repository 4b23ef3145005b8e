"""The order is a permutation, a pure function, and the same for ever."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.training import order
from seqlake.training.order import ORDER_VERSION, Axis, Domain, Finder, Order, Shuffle, permute
from seqlake.training.steps import Steps


def order_of(windows, *, lanes, block, seed=0, epoch=0, visits=1):
    shuffle = Shuffle(lanes=lanes, block=block, visits=visits)
    return Order(shard_windows=np.asarray(windows, np.int64), shuffle=shuffle, seed=seed, epoch=epoch)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.integers(0, 40) | st.integers(0, 3), min_size=1, max_size=40))
def test_the_interval_of_every_number_is_found(lengths):
    ends = np.cumsum(np.array(lengths, np.int64))
    numbers = np.arange(ends[-1])
    assert Finder(ends)(numbers).tolist() == np.searchsorted(ends, numbers, side="right").tolist()


@settings(deadline=None, max_examples=150)
@given(
    windows=st.lists(st.integers(0, 120), min_size=1, max_size=40),
    lanes=st.integers(1, 70),
    block=st.integers(1, 300),
    seed=st.integers(-5, 2**70),
    epoch=st.integers(0, 10**6),
    visits=st.sampled_from([1, 1, 2, 3, 8, 500]),
)
def test_every_window_comes_once_and_the_inverse_finds_it(windows, lanes, block, seed, epoch, visits):
    order = order_of(windows, lanes=lanes, block=block, seed=seed, epoch=epoch, visits=visits)
    samples = np.arange(sum(windows))
    found = order.windows(samples)
    assert sorted(found.tolist()) == samples.tolist()
    assert order.samples(found).tolist() == samples.tolist()


@settings(deadline=None, max_examples=60)
@given(m=st.integers(1, 3000), key=st.integers(0, 2**32 - 1), many=st.booleans())
def test_permute_is_one_to_one_on_any_length(m, key, many):
    values = np.arange(m)
    keys = np.full(m, key, np.uint32) if many else np.uint32(key)
    result = permute(values, Domain.of(m), keys)
    assert sorted(result.tolist()) == values.tolist()
    assert permute(result, Domain.of(m), keys, backwards=True).tolist() == values.tolist()


def test_any_part_of_the_order_is_found_without_the_rest():
    order = order_of([1000, 1, 0, 5000, 77], lanes=3, block=400)
    whole = order.windows(np.arange(len(order)))
    some = np.array([6077, 0, 3333, 3333, 17])
    assert order.windows(some).tolist() == whole[some].tolist()
    again = order_of([1000, 1, 0, 5000, 77], lanes=3, block=400)
    assert again.windows(some).tolist() == whole[some].tolist()


def test_very_long_axes_need_no_more_than_the_samples_asked_for():
    sizes = np.full(1000, 10**13)
    order = Order(shard_windows=sizes, shuffle=Shuffle.default(shards=1000, windows=10**16), seed=1, epoch=0)
    samples = np.array([0, 1, 10**15, 10**16 - 1])
    assert order.samples(order.windows(samples)).tolist() == samples.tolist()
    flat = Order(shard_windows=sizes, shuffle=Shuffle(lanes=1, block=10**16), seed=1, epoch=0)
    assert flat.samples(flat.windows(samples)).tolist() == samples.tolist()


def test_seeds_and_epochs_give_unlike_orders():
    found = {
        tuple(order_of([40, 60], lanes=1, block=100, seed=seed, epoch=epoch).windows(np.arange(100)).tolist())
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(found) == 25


GOLDEN = [
    ((7,), 1, 7, 0, 0, "126a8d56a1a4040a"),
    ((0, 300, 12, 1000), 1, 1312, 0, 0, "dfbd1f6cf2d0e723"),
    ((0, 300, 12, 1000), 1, 1312, 0, 1, "d8f115b4e8312461"),
    ((100,) * 250, 20, 400, 12345, 3, "96b59c60b3051437"),
    ((31, 17, 5) * 30, 7, 33, 2**64, 9, "5244fc392f5409e4"),
]


def digest(windows, lanes, block, seed, epoch):
    order = order_of(windows, lanes=lanes, block=block, seed=seed, epoch=epoch)
    return hashlib.sha256(order.windows(np.arange(sum(windows))).astype("<i8").tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("windows", "lanes", "block", "seed", "epoch", "expected"), GOLDEN)
def test_the_order_never_changes_silently(windows, lanes, block, seed, epoch, expected):
    """Saved states count samples of this order. Another order is another ORDER_VERSION."""
    assert ORDER_VERSION == 1
    assert digest(windows, lanes, block, seed, epoch) == expected


def test_another_process_with_another_hash_seed_gives_the_same_order():
    code = (
        "import hashlib, numpy as np\n"
        "from seqlake.training.order import Order, Shuffle\n"
        "o = Order(shard_windows=np.full(250, 100), shuffle=Shuffle(lanes=20, block=400), seed=12345, epoch=3)\n"
        "print(hashlib.sha256(o.windows(np.arange(25000)).astype('<i8').tobytes()).hexdigest()[:16])\n"
    )
    for hash_seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        assert out.stdout.strip() == GOLDEN[3][-1]


def test_the_order_imports_nothing_heavy():
    code = (
        "import sys, seqlake.training.order, seqlake.windows.spec\n"
        "print([m for m in ('torch', 'pyarrow', 'duckdb') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_default_shuffle_is_global_for_few_shards_and_lanes_for_many():
    assert Shuffle.default(shards=191, windows=10_000) == Shuffle(lanes=1, block=10_000)
    assert Shuffle.default(shards=192, windows=192_000) == Shuffle(lanes=16, block=4000)
    assert Shuffle.default(shards=1000, windows=999_999) == Shuffle(lanes=64, block=4000)
    assert Shuffle.default(shards=0, windows=0) == Shuffle(lanes=1, block=1)
    with pytest.raises(ValueError, match="lanes"):
        Shuffle(lanes=-1, block=1)
    with pytest.raises(ValueError, match="visits: expected a whole number from 1 on, found 0"):
        Shuffle(visits=0)
    assert Shuffle(lanes=3, block=50).filled(shards=9, windows=90) == Shuffle(lanes=3, block=50)
    assert Shuffle(visits=8).filled(shards=9, windows=90) == Shuffle(lanes=1, block=96, visits=8)
    assert Shuffle(lanes=2, visits=4).filled(shards=200, windows=40_000) == Shuffle(lanes=2, block=800, visits=4)
    assert repr(Shuffle(block=7, visits=2)) == "Shuffle(block=7, visits=2)"


@pytest.mark.parametrize(("lanes", "block"), [(1, 960), (4, 80), (4, 960)])
@pytest.mark.parametrize("visits", [2, 5])
def test_the_windows_of_a_visit_stay_together_and_visits_are_mixed(lanes, block, visits):
    order = order_of([40, 80, 120, 240, 240, 240], lanes=lanes, block=block, visits=visits)
    windows = order.windows(np.arange(960)).reshape(-1, lanes).T  # a row for each lane
    together = windows.reshape(-1, visits)
    assert (np.diff(together, axis=1) == 1).all()
    first = together[:, 0]
    assert np.mean(np.diff(first) == visits) < 0.1  # and one visit does not follow the one before


def test_what_is_no_whole_visit_stays_at_the_end_of_its_lane():
    order = order_of([7, 6], lanes=1, block=13, visits=5)
    windows = order.windows(np.arange(13))
    assert sorted(windows.tolist()) == list(range(13))
    assert (np.diff(windows[10:]) == 1).all()


def distinct_sequences(sequences, shards, *, batch=1024, looks=12):
    """Distinct sequences a batch: of the default order, and of numpy's own permutation."""
    random = np.random.default_rng(7)
    windows = random.integers(100, 250, sequences)
    rows = np.diff(np.linspace(0, sequences, shards + 1).astype(int))
    axis = Axis.of(windows, shard_rows=rows)
    shuffle = Shuffle.default(shards=shards, windows=len(axis))
    order = Order(shard_windows=axis.shard_windows, shuffle=shuffle, seed=0, epoch=0)
    starts = random.integers(0, len(axis) - batch, looks)
    ours = [len(np.unique(axis.locate(order.windows(s + np.arange(batch)))[0])) for s in starts]
    ideal = [len(np.unique(axis.locate(random.integers(0, len(axis), batch))[0])) for _ in starts]
    return np.mean(ours) / np.mean(ideal)


@pytest.mark.parametrize(("sequences", "shards"), [(20_000, 200), (300, 3), (4_000, 191)])
def test_a_batch_mixes_as_many_sequences_as_a_uniform_permutation(sequences, shards):
    assert distinct_sequences(sequences, shards) >= 0.95


def test_a_global_shuffle_has_no_trend_left():
    """Neighbours in the order are far apart in the source, and every stretch is drawn from everywhere."""
    order = order_of([50_000, 30_000, 20_000], lanes=1, block=100_000)
    found = order.windows(np.arange(100_000)).astype(float)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(100_000), found)[0, 1]) < 0.02
    stretches = np.histogram2d(np.arange(100_000), found, bins=10)[0]
    # 1000 expected in each of 100 cells: chi-squared with 81 degrees of freedom
    assert ((stretches - 1000) ** 2 / 1000).sum() < 140


def test_blocks_overlap_so_that_no_border_stays():
    """Windows travel beyond the block they begin in, and not much further."""
    order = Order(shard_windows=np.array([8000]), shuffle=Shuffle(lanes=1, block=1000), seed=0, epoch=0)
    moved = np.abs(order.windows(np.arange(8000)) - np.arange(8000))
    assert 1000 < moved.max() <= 1500
    for border in range(1000, 8000, 1000):
        before = order.samples(np.arange(border - 200, border))
        assert (before >= border).any()


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
@pytest.mark.parametrize(
    ("samples", "batch", "lanes"), [(101, 10, 1), (97, 12, 5), (64, 16, 4), (5, 7, 1), (30, 7, 64)]
)
def test_ranks_share_the_same_steps_whatever_their_number(samples, batch, lanes, tail):
    position = 3
    whole = Steps(samples=samples, lanes=min(lanes, samples), global_batch=batch, rank=0, world_size=1, tail=tail)
    steps = np.arange(whole.count(position))
    for world in (1, 2, 3, 4, 5):
        shares = [
            Steps(samples=samples, lanes=min(lanes, samples), global_batch=batch, rank=r, world_size=world, tail=tail)
            for r in range(world)
        ]
        assert {share.count(position) for share in shares} == {len(steps)}
        sizes = [share.local_batch for share in shares]
        assert sum(sizes) == batch
        assert max(sizes) - min(sizes) <= 1
        for step in steps:
            parts = [share.take(position, np.array([step])) for share in shares]
            got = [np.concatenate([part[k] for part in parts]).tolist() for k in range(3)]
            assert got == [values.tolist() for values in whole.take(position, np.array([step]))]


@settings(deadline=None, max_examples=80)
@given(samples=st.integers(1, 60), batch=st.integers(1, 25), lanes=st.integers(1, 9), position=st.integers(0, 59))
def test_carried_samples_come_once_an_epoch(samples, batch, lanes, position):
    position %= samples
    steps = Steps(samples=samples, lanes=min(lanes, samples), global_batch=batch, rank=0, world_size=1, tail="carry")
    epoch, at, seen = 0, position, []
    for _ in range(6):
        count = steps.count(at)
        assert count >= 1
        further, numbers, valid = steps.take(at, np.arange(count))
        assert valid.all()
        seen += [(epoch + int(e), int(s)) for e, s in zip(further, numbers, strict=True)]
        more, at = steps.after(at, count)
        epoch += more
    assert len(set(seen)) == len(seen)
    for done in range(1, epoch):
        assert sum(e == done for e, _ in seen) == samples


def test_a_rank_keeps_to_its_own_lanes():
    """Neighbouring ranks read unlike shards: a step's samples are dealt sorted by lane, then by place in it."""
    lanes, batch = 8, 64
    for rank in range(4):
        steps = Steps(samples=1000, lanes=lanes, global_batch=batch, rank=rank, world_size=4, tail="drop")
        _, numbers, _ = steps.take(0, np.array([0]))
        assert numbers.tolist() == [
            lane + lanes * place for lane in (2 * rank, 2 * rank + 1) for place in range(batch // lanes)
        ]


@pytest.mark.parametrize("few", [7, 1 << 20])
def test_windows_are_located_among_rows_however_many(few, monkeypatch):
    """By groups of rows, as of a large dataset, and row by row: against the plain sums."""
    monkeypatch.setattr(order, "_FEW_ROWS", few)
    rng = np.random.default_rng(few)
    shard_rows = rng.integers(0, 90, 60) * rng.integers(0, 2, 60)
    windows = rng.integers(0, 2000, int(shard_rows.sum())) * rng.integers(0, 2, int(shard_rows.sum()))
    axis = Axis.of(windows, shard_rows=shard_rows)
    ends = np.cumsum(windows)
    numbers = rng.integers(0, int(ends[-1]), 5000)
    numbers[:2] = 0, int(ends[-1]) - 1
    rows, places = axis.locate(numbers)
    expected = np.searchsorted(ends, numbers, side="right")
    assert (rows == expected).all()
    assert (places == numbers - (ends - windows)[expected]).all()
    assert (axis.before(rows) == numbers - places).all()
    assert len(axis) == windows.sum()
    assert (axis.row_windows == windows).all()
    assert (axis.shard_ends == np.concatenate([[0], ends])[np.cumsum(shard_rows)]).all()
    assert dict(zip(*axis.spread(), strict=True)) == dict(zip(*np.unique(windows, return_counts=True), strict=True))


def test_an_axis_of_many_rows_takes_few_bytes_for_each():
    rows = (1 << 20) + 7
    axis = Axis.of(np.full(rows, 100), shard_rows=np.array([rows]))
    axis.locate(np.arange(10))
    held = [axis.grouped, axis.shard_ends, axis._group_ends, axis._group_starts, axis._groups._first]
    assert sum(array.nbytes for array in held) <= 6 * rows
