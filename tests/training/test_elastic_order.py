"""What every number of ranks and workers must agree on, over random datasets and by the pure order alone."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqlake.training.mixtures.samples import MixPlanner, Mixture, MixturePart
from seqlake.training.mixtures.schedule import Proportions
from seqlake.training.order import Axis, Shuffle
from seqlake.training.steps import OrderPlanner, Steps
from seqlake.training.survey import WindowSurvey
from seqlake.windows.spec import Window

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

WORLDS = range(1, 17)
WORKERS = range(5)


def survey_of(windows, cuts):
    """A survey of rows with so many windows each, cut into shards; nothing of it can be read."""
    edges = np.array([0, *sorted(min(cut, len(windows)) for cut in cuts), len(windows)])
    axis = Axis.of(np.array(windows, np.int64), shard_rows=np.diff(edges))
    nothing = {"tracks": (), "framed": (), "cells": (), "singles": (), "steps": None, "clock": None, "shards": ()}
    return WindowSurvey(first_rows=edges, window=Window({"a": [0]}, stride=3), first=0, axis=axis, **nothing)


@st.composite
def datasets(draw):
    """Of a dataset or a mixture: steps -> planner, the samples of an epoch, lanes, and whether epochs surely differ."""
    rows = st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(any)
    asked = [True, False, Shuffle(lanes=3, block=7), Shuffle(lanes=8, block=40), Shuffle(visits=4)]
    shuffle = draw(st.sampled_from([*asked, Shuffle(lanes=3, block=7, visits=3)]))
    seed, cuts = draw(st.integers(0, 2**40)), st.lists(st.integers(0, 30), max_size=5)
    if draw(st.booleans()):
        survey = survey_of(draw(rows), draw(cuts))
        own = MixturePart.of(survey, name="", shuffle=shuffle, seed=seed).shuffle
        lanes = 1 if own is None else min(own.lanes, len(survey.axis))
        shuffled = shuffle is True and len(survey.axis) > 9
        return lambda steps: OrderPlanner(survey, steps, shuffle=own, seed=seed), len(survey.axis), lanes, shuffled
    parts = [
        MixturePart.of(
            survey_of(draw(rows), draw(cuts)), name=str(k), shuffle=shuffle, seed=seed, member=k, first_row=100 * k
        )
        for k in range(draw(st.integers(1, 4)))
    ]
    weights = {part.name: draw(st.integers(1, 9)) for part in parts}
    mixture = Mixture(parts, Proportions.of(weights, curriculum=[(draw(st.integers(1, 90)), {"0": 1})]))
    shuffled = shuffle is True and any(len(part.axis) > 9 for part in parts)
    return lambda steps: MixPlanner(mixture, steps), len(mixture), 1, shuffled


def keys(samples):
    """What identifies samples: epoch, number, row, anchor, valid."""
    parts = (samples.epochs, samples.numbers, samples.rows, samples.anchors, samples.valid)
    return list(zip(*(part.tolist() for part in parts), strict=True))


def delivered(planner, position, count, workers):
    """The batches of one rank as worker processes make them, in the order they are handed out."""
    epoch, sample = position
    if not count:
        return []
    steps = [range(count)] if not workers else [range(worker, count, workers) for worker in range(workers)]
    size, made = planner.local_batch, {}
    for own in steps:
        found = keys(planner.samples(epoch, sample, np.array(own, np.int64))) if len(own) else []
        made |= {step: found[k * size : (k + 1) * size] for k, step in enumerate(own)}
    return [made[step] for step in range(count)]


@pytest.mark.sampled
@settings(deadline=None, max_examples=150 if SOAK else 40)
@given(
    dataset=datasets(),
    batch=st.integers(16, 50),
    tail=st.sampled_from(["drop", "pad", "carry"]),
    epoch=st.integers(0, 3),
    stop=st.integers(0, 10**6),
    world=st.sampled_from(WORLDS),
    workers=st.sampled_from(WORKERS),
)
def test_ranks_and_workers_share_the_steps_of_one_process(dataset, batch, tail, epoch, stop, world, workers):
    make, samples, lanes, _ = dataset

    def share(rank, world):
        return Steps(samples=samples, lanes=lanes, global_batch=batch, rank=rank, world_size=world, tail=tail)

    whole = share(0, 1)
    truth = delivered(make(whole), (epoch, 0), whole.count(0), 0)
    assert whole.count(0) <= whole.longest
    # Exactly once: every sample of the epoch that the tail rule leaves in it.
    seen = [key[:2] for step in truth for key in step if key[4]]
    assert len(set(seen)) == len(seen)
    if tail == "pad":
        assert sorted(seen) == [(epoch, number) for number in range(samples)]
    # The first steps by one number of ranks and workers, the rest by another, from one small position.
    stop = stop % (len(truth) + 1)
    further, position = whole.after(0, stop) if stop else (0, 0)
    for ranks, many, at, count in (
        (world, workers, (epoch, 0), stop),
        (17 - world, 4 - workers, (epoch + further, position), len(truth) - stop),
    ):
        if count and at[0] == epoch:
            parts = [delivered(make(share(rank, ranks)), at, count, many) for rank in range(ranks)]
            expected = truth[:stop] if at == (epoch, 0) and count == stop else truth[stop:]
            assert [[key for part in step for key in part] for step in zip(*parts, strict=True)] == expected


@settings(deadline=None, max_examples=3)
@given(dataset=datasets(), batch=st.integers(16, 40), tail=st.sampled_from(["drop", "pad", "carry"]))
def test_every_world_size_and_worker_count_gives_the_same_global_batches(dataset, batch, tail):
    make, samples, lanes, _ = dataset

    def share(rank, world):
        return Steps(samples=samples, lanes=lanes, global_batch=batch, rank=rank, world_size=world, tail=tail)

    whole = share(0, 1)
    truth = delivered(make(whole), (1, 0), whole.count(0), 0)
    for world in WORLDS:
        shares = [share(rank, world) for rank in range(world)]
        assert {own.count(0) for own in shares} == {len(truth)}
        sizes = [own.local_batch for own in shares]
        assert max(sizes) - min(sizes) <= 1
        for workers in WORKERS:
            parts = [delivered(make(own), (1, 0), len(truth), workers) for own in shares]
            assert [[key for part in step for key in part] for step in zip(*parts, strict=True)] == truth


@pytest.mark.sampled
@settings(deadline=None, max_examples=40 if SOAK else 15)
@given(dataset=datasets())
def test_epochs_differ_wherever_there_is_something_to_shuffle(dataset):
    make, samples, lanes, shuffled = dataset
    steps = Steps(samples=samples, lanes=lanes, global_batch=samples, rank=0, world_size=1, tail="drop")
    planner = make(steps)
    orders = {tuple(key[2:4] for key in keys(planner.samples(epoch, 0, np.array([0])))) for epoch in range(6)}
    assert len(orders) > 1 or not shuffled


def test_a_mixture_mixes_as_many_sequences_as_uniform_permutations_of_its_sources():
    random = np.random.default_rng(3)
    sizes = {"large": (20_000, 200), "small": (300, 3)}
    parts, first = [], 0
    for number, (name, (rows, shards)) in enumerate(sizes.items()):
        survey = survey_of(random.integers(100, 250, rows).tolist(), np.linspace(0, rows, shards + 1)[1:-1].astype(int))
        parts.append(MixturePart.of(survey, name=name, shuffle=True, seed=0, member=number, first_row=first))
        first += rows
    mixture = Mixture(parts, Proportions.of({"large": 3, "small": 1}))
    assert parts[0].shuffle.lanes == 16
    looks = range(0, 1_000_000, 100_000)
    found = np.mean([len(np.unique(mixture.locate(at + np.arange(1024))[1])) for at in looks])
    ideal = []
    for _ in looks:
        drawn = [
            part.axis.locate(random.integers(0, len(part.axis), n))[0]
            for part, n in zip(parts, (768, 256), strict=True)
        ]
        ideal.append(sum(len(np.unique(rows)) for rows in drawn))
    assert found / np.mean(ideal) >= 0.95


DIGEST = """
import hashlib, numpy as np
from seqlake.training.mixtures.schedule import Proportions, Schedule
schedule = Schedule(Proportions.of({"a": 0.3, "b": 0.6, "c": 1.7, "d": 3.14159}, curriculum=[(50_000, {"c": 0})]))
found = np.concatenate(schedule.locate(np.arange(100_000)))
print(schedule.proportions.digest, hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16])
"""


def test_the_order_of_each_source_of_a_mixture_never_changes_silently():
    parts = [
        MixturePart.of(survey_of(rows, [2]), name=name, shuffle=shuffle, seed=5, member=k, first_row=10 * k)
        for k, (name, rows, shuffle) in enumerate([("a", [3, 0, 9], True), ("b", [4, 4], Shuffle(lanes=2, block=3))])
    ]
    found = np.concatenate(Mixture(parts, Proportions.of({"a": 2, "b": 1})).locate(np.arange(100)))
    assert hashlib.sha256(found.astype("<i8").tobytes()).hexdigest()[:16] == "701f937a18f973f9"


@pytest.mark.parametrize("hash_seed", ["1", "77"])
def test_a_mixture_is_the_same_in_every_process_for_ever(hash_seed):
    """Saved states count samples of this schedule. Another schedule is another ORDER_VERSION."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run([sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True, text=True)
    assert out.stdout.split() == ["e4d7954012f4d3fdc6c6a1719e0e172b", "8d4c4dda4094b998"]
