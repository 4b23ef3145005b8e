"""Visits say when shards are needed; the order itself is the judge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.training.order import Order, Shuffle


def order_of(sizes, shuffle, epoch=0) -> Order:
    return Order(shard_windows=np.array(sizes, np.int64), shuffle=shuffle, seed=3, epoch=epoch)


def used(order: Order) -> list[np.ndarray]:
    """For each sample, the shard it comes from: by the order itself."""
    windows = order.windows(np.arange(len(order)))
    return np.searchsorted(np.cumsum(order.shard_windows), windows, side="right")


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    lanes=st.integers(1, 7),
    block=st.integers(1, 200),
    epoch=st.integers(0, 3),
    together=st.sampled_from([1, 2, 7]),
)
def test_a_shard_is_needed_in_its_visits_only(sizes, lanes, block, epoch, together) -> None:
    order = order_of(sizes, Shuffle(lanes=lanes, block=block, visits=together), epoch)
    found = order.visits()
    of = used(order)
    for shard in range(len(sizes)):
        samples = np.flatnonzero(of == shard)
        own = [(b, e) for s, b, e in zip(found.shards, found.begins, found.ends, strict=True) if s == shard]
        covered = np.zeros(len(samples), bool)
        for begin, end in own:
            covered |= (samples >= begin) & (samples < end)
        assert covered.all()
        assert bool(own) == bool(sizes[shard])
    assert (np.diff(found.begins) >= 0).all()


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=30), lanes=st.integers(1, 5), data=st.data())
def test_what_some_samples_need_is_among_those_said(sizes, lanes, data) -> None:
    order = order_of(sizes, Shuffle(lanes=lanes, block=16))
    first = data.draw(st.integers(0, len(order) - 1))
    stop = data.draw(st.integers(first + 1, len(order)))
    found = order.visits()
    assert set(used(order)[first:stop]) <= set(found.needed(first, stop).tolist())
    assert set(found.after(first).needed(first, stop)) == set(found.needed(first, stop))


def test_small_blocks_need_few_shards_at_a_time() -> None:
    order = order_of([100] * 200, Shuffle(lanes=4, block=200))
    found = order.visits()
    assert found.most() <= 4 * 8
    at = max(len(found.needed(s, s + 64)) for s in range(0, len(order), 500))
    assert at <= found.most() + 8


def test_source_order_needs_one_shard_after_the_other() -> None:
    found = order_of([3, 0, 2], None).visits()
    assert found.shards.tolist() == [0, 2]
    assert found.begins.tolist() == [0, 3]
    assert found.ends.tolist() == [3, 5]
    assert found.most() == 1


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_that_take_lanes_need_their_shards_only(ranks) -> None:
    order = order_of([50] * 40, Shuffle(lanes=4, block=100))
    whole = order.visits()
    parts = [order.visits(lanes=range(rank * 4 // ranks, (rank + 1) * 4 // ranks)) for rank in range(ranks)]
    assert sum(len(part.shards) for part in parts) == len(whole.shards)
    assert set().union(*(set(part.shards.tolist()) for part in parts)) == set(range(40))
