"""Mixtures as MosaicML Streaming says them: exactly as many samples of each source in every epoch as it would take."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.training.mixtures import schedule as schedules
from seqlake.training.mixtures.schedule import Mix, Proportions, Schedule

OFFICIAL = """
from streaming import Stream

def one(sizes, weights, epoch_size, seed):
    try:
        streams = [Stream(local="nowhere", **given) for given in weights]
        total = Stream.apply_weights(streams, np.array(sizes), epoch_size, seed)
    except ValueError:
        return None
    return total, [int(stream.choose) for stream in streams]

import numpy as np
result = [one(*case) for case in cases]
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for name, count in {"web": 40, "code": 25, "books": 7}.items():
        folder = tmp_path_factory.mktemp("streams") / name
        with sl.create(folder, {"n": "int"}, format="mds", size_limit=300) as writer:
            writer.write_all({"n": n} for n in range(count))
        made[name] = sl.scan(folder)
    return made


def counts(mix, sizes) -> list[int]:
    proportions = mix.proportions_of(sizes)
    assert not proportions.samples % sum(proportions.counts[0])
    times = proportions.samples // sum(proportions.counts[0])
    return [times * count for count in proportions.counts[0]]


def given_as(weights) -> dict:
    """Each stream's own arguments -> what `Mix.of_streams` takes."""
    kinds = {kind: {str(k): own[kind] for k, own in enumerate(weights) if kind in own} for kind in KINDS}
    return {kind: shares for kind, shares in kinds.items() if shares}


KINDS = ("proportion", "repeat", "choose")


def test_counts_equal_the_official_ones(official, folders):
    random = np.random.default_rng(0)
    cases = []
    for number in range(300):
        sizes = random.integers(1, 3_000_000 if number % 2 else 50, random.integers(1, 6)).tolist()
        shares = [
            {},
            {"proportion": float(random.random())},
            {"proportion": int(random.integers(0, 4))},
            {"repeat": float(random.random() * 4)},
            {"choose": int(random.integers(0, 400))},
            {"repeat": 2, "choose": 3},
        ]
        alike = random.random() < 0.5
        kinds = [1, 2] if alike else [0, 3, 4] if random.random() < 0.8 else range(6)
        weights = [shares[int(random.choice(kinds))] for _ in sizes]
        # Every stream draws numbers of its own.
        weights = [
            {kind: (share if kind == "choose" else share * (k + 1)) for kind, share in own.items()}
            for k, own in enumerate(weights)
        ]
        whole = int(random.integers(1, 10_000)) if random.random() < 0.4 else None
        cases.append((sizes, weights, whole, int(random.integers(0, 99))))
    expected = official(OFFICIAL, cases=cases)
    seen = Counter()
    for (sizes, weights, whole, seed), theirs in zip(cases, expected, strict=True):
        sources = {str(k): folders["web"] for k in range(len(sizes))}
        try:
            mix = Mix.of_streams(sources, **given_as(weights), epoch_size=whole, seed=seed)
            mine = counts(mix, sizes)
        except ValueError:
            # Nothing to draw is an epoch of no samples there, or one of NaN; here it is refused.
            assert theirs is None or theirs[0] <= 0 or not any(own.get("proportion", 1) for own in weights)
            seen["refused"] += 1
            continue
        assert theirs is not None
        assert (sum(mine), mine) == theirs
        seen["equal"] += 1
    assert seen["equal"] > 150
    assert seen["refused"] > 20


@pytest.mark.parametrize(
    ("given_shares", "expected"),
    [
        ({"proportion": {"web": 0.7, "code": 0.2, "books": 0.1}, "epoch_size": 50}, [35, 10, 5]),
        ({"repeat": {"web": 2, "books": 0.5}}, [80, 25, 3]),
        ({"choose": {"web": 3}, "repeat": {"books": 5}}, [3, 25, 35]),
        ({"choose": {"web": 0}}, [0, 25, 7]),
        ({}, [40, 25, 7]),
    ],
)
def test_every_epoch_has_exactly_as_many_of_each(folders, given_shares, expected):
    mix = Mix.of_streams(folders, **given_shares)
    loader = pickle.loads(pickle.dumps(sl.Loader(mix, window=["n"], batch_size=4, shuffle=True, seed=3).tail("pad")))
    taken = {name: [] for name in folders}
    for epoch in range(3):
        found = Counter()
        for batch in loader:
            for name, n, valid in zip(batch["mix_source"], batch["n"].tolist(), batch["valid"].tolist(), strict=True):
                if valid:
                    found[str(name)] += 1
                    taken[str(name)].append(n)
        assert [found[name] for name in folders] == expected, epoch
    for name, numbers in taken.items():
        size = len(folders[name])
        for at in range(0, len(numbers) - size + 1, size):  # all of a source once before any comes again
            assert sorted(numbers[at : at + size]) == list(range(size))


def test_windows_of_sequences_are_counted_not_rows(readable, arm):
    sources = {"a": readable(*arm([5, 9, 1], seed=0), shards=1), "b": readable(*arm([4, 4], seed=1), shards=1)}
    for name, source in sources.items():
        source.fingerprint = name
    mix = Mix.of_streams(sources, repeat={"b": 2})
    loader = sl.Loader(mix, window={"action": range(3)}, batch_size=1)
    windows = {
        name: len(sl.Loader(source, window={"action": range(3)}, batch_size=1)) for name, source in sources.items()
    }
    found = Counter(str(batch["mix_source"][0]) for batch in loader)
    assert found == {"a": windows["a"], "b": 2 * windows["b"]}


@pytest.mark.parametrize(
    ("given_shares", "what"),
    [
        ({"repeat": {"web": 2}, "choose": {"web": 3}}, "at most one"),
        ({"proportion": {"web": 1, "code": 1, "books": 1}, "choose": {"web": 3}}, "at most one"),
        ({"proportion": {"web": 1, "code": 1}, "choose": {"books": 3}}, "has no proportion"),
        ({"proportion": {"web": 1}}, "has no proportion"),
        ({"repeat": {"web": 1}, "epoch_size": 10}, "epoch_size"),
        ({"epoch_size": 0}, "epoch_size"),
        ({"repeat": {"news": 1}}, "'news' is none of the sources"),
        ({"repeat": {"web": -1}}, "from 0 on"),
        ({"repeat": {"web": float("nan")}}, "from 0 on"),
        ({"choose": {"web": 1.5}}, "a whole number"),
        ({"choose": {"web": True}}, "a whole number"),
        ({"proportion": {"web": 0, "code": 0, "books": 0}}, "only zeros"),
    ],
)
def test_shares_that_cannot_be_meant_are_refused(folders, given_shares, what):
    with pytest.raises(ValueError, match=what):
        Mix.of_streams(folders, **given_shares)


def test_an_epoch_of_nothing_is_refused(folders):
    mix = Mix.of_streams(folders, choose=dict.fromkeys(folders, 0))
    with pytest.raises(ValueError, match="no sample"):
        len(sl.Loader(mix, window=["n"], batch_size=1))


def test_a_mix_says_how_it_is_dealt(folders):
    assert repr(Mix.of_streams(folders, repeat={"web": 2})).endswith(", repeat={'web': 2})")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(lambda each: sum(each) > 16), st.data())
def test_long_periods_count_on_and_agree_with_counting(each, data):
    names = tuple(f"s{k}" for k in range(len(each)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "MOST", data.draw(st.integers(5, 16)))
        schedule = Schedule(Proportions(names=names, begins=(0,), counts=(tuple(each),), samples=sum(each)))
    parts, numbers = schedule.locate(np.arange(2 * sum(each) + 5))
    seen = Counter()
    for sample, (part, number) in enumerate(zip(parts.tolist(), numbers.tolist(), strict=True)):
        assert schedule.taken(sample).tolist() == [seen[k] for k in range(len(each))]
        if sample in (sum(each), 2 * sum(each)):
            assert [seen[k] for k in range(len(each))] == [sample // sum(each) * count for count in each]
        assert number == seen[part]
        seen[part] += 1
    for part in set(parts.tolist()):
        own = np.flatnonzero(parts == part)
        assert schedule.places(part, numbers[own]).tolist() == own.tolist()


def test_millions_of_samples_are_dealt_evenly_and_exactly():
    each = (1_000_003, 250_007, 31)
    schedule = Schedule(Proportions(names=("a", "b", "c"), begins=(0,), counts=(each,), samples=sum(each)))
    parts, _ = schedule.locate(np.arange(sum(each)))
    assert np.bincount(parts).tolist() == list(each)
    rare = np.flatnonzero(parts == 2)
    assert np.diff(rare).max() < 2 * sum(each) / 31
    assert max(stage.round.period for stage in schedule.stages) <= schedules.MOST
