"""The official shuffles, partitions and samplings: golden vectors, then the package itself over random arguments."""

from __future__ import annotations

import numpy as np
import pytest

from seqlake.compat.mosaicml import World
from seqlake.compat.mosaicml.order import per_shard
from seqlake.compat.mosaicml.partitions import dealt, in_order, partition
from seqlake.compat.mosaicml.shuffles import NAMES, shuffle

SIZES = np.array([3, 5, 4, 6])
GOLDEN = {
    "naive": (
        "5 2 0 6 8 7 9 11 10 15 13 1 17 14 12 3 16 4",
        "7 13 16 3 12 11 4 2 8 10 15 6 9 5 14 1 17 0",
    ),
    "py1s": (
        "14 13 12 15 17 16 5 3 6 7 4 2 1 0 10 8 9 11",
        "12 15 16 14 13 17 7 6 3 5 4 1 2 0 10 11 8 9",
    ),
    "py2s": (
        "12 13 14 15 17 16 5 3 6 7 4 1 0 2 11 10 9 8",
        "14 15 16 12 13 17 7 6 3 5 4 0 1 2 11 8 10 9",
    ),
    "py1br": (
        "14 17 12 15 16 13 7 5 0 3 4 6 11 8 10 2 1 9",
        "13 17 14 3 16 4 12 15 0 2 1 7 6 5 8 9 10 11",
    ),
    "py1e": (
        "14 13 12 15 17 16 5 7 3 6 4 2 1 10 9 8 0 11",
        "12 15 16 13 14 7 17 5 6 3 2 1 10 4 11 0 8 9",
    ),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("epoch", [0, 1])
def test_golden_orders(name, epoch):
    found = shuffle(name, SIZES, canonical_nodes=1, seed=9176, epoch=epoch, block_size=8)
    assert " ".join(map(str, found)) == GOLDEN[name][epoch]


def test_golden_partition_and_samplings():
    found = partition("orig", 10, world=World(ranks=2, workers=2), batch_size=2, canonical_nodes=2)
    assert found.shape == (1, 2, 2, 2, 2)
    assert found[0].tolist() == [
        [[[0, 1], [4, -1]], [[2, 3], [-1, -1]]],
        [[[5, 6], [9, -1]], [[7, 8], [-1, -1]]],
    ]
    assert per_shard(SIZES, 7, granularity=1, seed=9176).tolist() == [2, 3, 2, 0]
    assert per_shard(SIZES, 7, granularity=3, seed=9176).tolist() == [0, 5, 0, 2]
    assert per_shard(SIZES, 25, granularity=1, seed=9176).tolist() == [5, 8, 6, 6]


@pytest.mark.parametrize("name", NAMES)
def test_an_order_is_a_permutation_that_keeps_to_its_canonical_nodes(name):
    sizes = np.array([40, 0, 7, 90, 33, 1, 29])
    found = shuffle(name, sizes, canonical_nodes=4, seed=1, epoch=5, block_size=20)
    assert sorted(found.tolist()) == list(range(200))
    if name != "naive":  # a canonical node has the same samples in every epoch
        again = shuffle(name, sizes, canonical_nodes=4, seed=1, epoch=6, block_size=20)
        for node in range(4):
            own = slice(50 * node, 50 * (node + 1))
            assert set(found[own].tolist()) == set(again[own].tolist())


def test_unknown_names_and_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="py1e"):
        shuffle("py1b", SIZES, canonical_nodes=1, seed=0, epoch=0)
    with pytest.raises(ValueError, match="canonical"):
        shuffle("py1e", np.array([2]), canonical_nodes=3, seed=0, epoch=0)
    with pytest.raises(ValueError, match="relaxed"):
        partition("new", 10, world=World(), batch_size=1, canonical_nodes=1)
    with pytest.raises(ValueError, match="multiple"):
        partition("orig", 10, world=World(nodes=3), batch_size=1, canonical_nodes=2)
    with pytest.raises(ValueError, match="taken"):
        partition("orig", 10, world=World(), batch_size=1, canonical_nodes=1, drop_first=12)


def test_dealing_and_taking_in_order_are_inverse():
    world = World(nodes=2, ranks=3, workers=2)
    places = np.arange(2 * 3 * 2 * 5 * 4)
    assert in_order(dealt(places, world=world, batch_size=4)).tolist() == places.tolist()


def test_shuffles_equal_the_official_ones(official):
    random = np.random.default_rng(0)
    cases = []
    for _ in range(60):
        sizes = random.integers(0, 400, random.integers(1, 30))
        nodes = int(random.choice([1, 2, 3, 8]))
        sizes[0] += 64 * nodes
        cases.append(
            (sizes, nodes, int(random.integers(0, 10_000)), int(random.integers(0, 5)), int(random.integers(8, 900)))
        )
    expected = official(
        "from streaming.base.shuffle import get_shuffle\n"
        "result = [[get_shuffle(name, *case) for name in names] for case in cases]",
        cases=cases,
        names=NAMES,
    )
    for (sizes, nodes, seed, epoch, block), theirs in zip(cases, expected, strict=True):
        for name, order in zip(NAMES, theirs, strict=True):
            mine = shuffle(name, sizes, canonical_nodes=nodes, seed=seed, epoch=epoch, block_size=block)
            np.testing.assert_array_equal(
                mine, order, err_msg=f"{name} {sizes.tolist()} {nodes} {seed} {epoch} {block}"
            )


def test_partitions_equal_the_official_ones(official):
    random = np.random.default_rng(1)
    cases = []
    while len(cases) < 300:
        nodes, canonical = int(random.integers(1, 7)), int(random.integers(1, 13))
        initial = None if random.random() < 0.4 else int(random.integers(1, 7))
        samples = int(random.integers(1, 500))
        ranks, workers, batch = (int(random.integers(1, high)) for high in (5, 5, 9))
        drop = int(random.integers(0, samples)) if random.random() < 0.4 else 0
        name = str(random.choice(["orig", "relaxed"]))
        cases.append((name, samples, canonical, nodes, ranks, workers, batch, drop, initial))
    expected = official(
        "from streaming.base.partition import get_partitions\n"
        "def one(case):\n"
        "    try:\n"
        "        return get_partitions(*case)\n"
        "    except Exception as error:\n"
        "        return repr(error)\n"
        "result = [one(case) for case in cases]",
        cases=cases,
    )
    dealt_out = 0
    for case, theirs in zip(cases, expected, strict=True):
        name, samples, canonical, nodes, ranks, workers, batch, drop, initial = case
        arguments = {
            "world": World(nodes=nodes, ranks=ranks, workers=workers),
            "batch_size": batch,
            "canonical_nodes": canonical,
            "drop_first": drop,
            "initial_nodes": initial,
        }
        if isinstance(theirs, str):
            with pytest.raises(ValueError, match="partition"):
                partition(name, samples, **arguments)
            continue
        np.testing.assert_array_equal(partition(name, samples, **arguments), theirs, err_msg=str(case))
        dealt_out += 1
    assert dealt_out > 100


def test_samplings_equal_the_official_ones(official):
    random = np.random.default_rng(2)
    cases = []
    for _ in range(100):
        sizes = random.integers(1, 50, random.integers(1, 12))
        sizes[random.random(len(sizes)) < 0.1] = 0
        sizes[-1] += 1
        cases.append(
            (
                sizes,
                int(random.integers(0, 3 * sizes.sum())),
                int(random.integers(1, 20)),
                int(random.integers(0, 99)),
                int(random.integers(0, 4)),
                bool(random.integers(2)),
            )
        )
    expected = official(
        "from streaming.base.sampling import get_sampling\nresult = [get_sampling(*case) for case in cases]",
        cases=cases,
    )
    for (sizes, choose, granularity, seed, epoch, by_epoch), theirs in zip(cases, expected, strict=True):
        mine = per_shard(sizes, choose, granularity=granularity, seed=seed + epoch if by_epoch else seed)
        assert mine.tolist() == theirs.tolist()
