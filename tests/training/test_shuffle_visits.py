"""Several windows of a sequence at a visit: exactly once, resumable, and the plan says what it costs."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import LoaderStateError

from . import films

LENGTHS = [5, 0, 9, 1, 14, 3, 30, 2, 7, 21, 4, 11, 40, 25]


@pytest.fixture
def source(readable, arm):
    return readable(*arm(LENGTHS))


def load(source, *, visits=4, tail="carry", **options):
    options = {"shuffle": sl.Shuffle(visits=visits), "batch_size": 24, "seed": 5, **options}
    return sl.Loader(source, window={"action": range(3)}, **options).tail(tail)


def samples(batch):
    valid = batch.get("valid", np.ones(len(batch["start"]), bool))
    return [(batch["sequence_id"][k], int(batch["start"][k])) for k in np.flatnonzero(valid)]


def alike(delivered):
    return np.mean([one[0] == other[0] for one, other in pairwise(delivered)])


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_every_window_comes_once_and_neighbours_together(source, tail):
    everything = {(f"ep_{row:04}", start) for row, steps in enumerate(LENGTHS) for start in range(steps)}
    orders = []
    for _ in range(2):
        loader = load(source, tail=tail)
        for epoch in range(2):
            delivered = [sample for batch in loader for sample in samples(batch)]
            assert len(set(delivered)) == len(delivered)
            assert set(delivered) <= everything
            assert len(everything) - len(delivered) == (len(everything) % 24 if tail == "drop" else 0)
            assert alike(delivered) > 0.6
            orders.append((epoch, delivered))
    assert orders[:2] == orders[2:]
    assert orders[0][1] != orders[1][1]
    assert alike([sample for batch in load(source, visits=1) for sample in samples(batch)]) < 0.3


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
@pytest.mark.parametrize("shuffle", [sl.Shuffle(visits=4), sl.Shuffle(lanes=3, block=20, visits=3)])
def test_it_resumes_on_another_world_size_and_only_as_it_was(source, tail, shuffle):
    whole = [samples(batch) for batch in load(source, tail=tail, shuffle=shuffle)]
    state = load(source, tail=tail, shuffle=shuffle).state_dict(steps=3)
    assert len(json.dumps(state)) < 1000
    ranks = [load(source, tail=tail, shuffle=shuffle, batch_size=8, rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        rank.load_state_dict(json.loads(json.dumps(state)))
    for expected, *parts in zip(whole[3:], *ranks, strict=True):
        assert sorted(expected) == sorted(sample for part in parts for sample in samples(part))
    with pytest.raises(LoaderStateError, match="lanes, block or visits"):
        load(source, tail=tail, visits=1).load_state_dict(state)


def test_the_plan_says_what_it_costs(source):
    one, several = (load(source, visits=visits).plan() for visits in (1, 8))
    assert (one.visits, several.visits) == (1, 8)
    assert several.shuffle_quality < 0.7 < one.shuffle_quality
    assert "8 at a visit" in str(several)
    assert "visit" not in str(one)


def test_windows_of_a_visit_share_what_is_decoded(tmp_path):
    ds = films.arm(tmp_path)
    window = {"cam": range(4), "action": [0]}
    decoded, seen = [], []
    for visits in (1, 8):
        loader = sl.Loader(ds, window=window, batch_size=8, shuffle=sl.Shuffle(visits=visits), seed=2).tail("pad")
        seen.append({sample for batch in loader for sample in samples(batch)})
        decoded.append(loader.report().frames_decoded)
    assert seen[0] == seen[1] == {(f"ep_{row}", start) for row in range(5) for start in range(films.STEPS)}
    assert decoded[1] < 0.6 * decoded[0]  # 8 neighbouring windows of 4 frames have 11 between them


def test_mixtures_take_it_too(source):
    mix = sl.Mix({"a": (source, 1), "b": (source, 1)})
    delivered = [[], []]
    for batch in load(mix, batch_size=20):
        for part in (0, 1):
            own = batch["mix_source_number"] == part
            delivered[part] += zip(batch["sequence_id"][own], batch["start"][own].tolist(), strict=True)
    assert all(alike(own) > 0.6 for own in delivered)
    assert all(len(set(own)) == len(own) > 0.9 * sum(LENGTHS) for own in delivered)
