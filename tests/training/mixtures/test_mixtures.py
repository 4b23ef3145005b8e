"""Mixtures: exact proportions, every source exactly once in each of its epochs, and a position that is one number."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import LoaderStateError, SchemaMismatchError
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training.batches import WindowAssembler
from seqlake.training.frames.decoding import THREADS, cores
from seqlake.training.gather import Pace, torch
from seqlake.training.loader import Loader
from seqlake.training.mixtures.schedule import MOST, Mix, Proportions, Schedule, lay_out, quantise
from seqlake.training.order import Shuffle
from seqlake.windows.spec import Whole, Window

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named

LENGTHS = {"arm": [5, 0, 9, 1, 14, 3], "hand": [4, 4, 3], "leg": [2, 8, 0, 7]}
WEIGHTS = {"arm": 3, "hand": 1, "leg": 2}
WINDOW = {"action": range(3)}

weights_strategy = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


def ids(batch):
    valid = batch.get("valid", np.ones(len(batch["start"]), bool))
    parts = (batch["mix_source"], batch["sequence_id"], batch["start"].tolist(), valid.tolist())
    return list(zip(*parts, strict=True))


def samples_of(loader, epochs=1):
    return [sample for _ in range(epochs) for batch in loader for sample in ids(batch)]


@pytest.fixture
def sources(readable, arm):
    """Three datasets with the same columns and ids; only the source tells their sequences apart."""
    made = {}
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        made[name] = readable(*arm(lengths, seed=number), shards=2)
        made[name].fingerprint = name
    return made


@pytest.fixture
def mix(sources):
    return Mix({name: (sources[name], WEIGHTS[name]) for name in sources})


# ---- proportions


def test_weights_of_few_digits_are_exact_and_others_the_nearest():
    assert quantise({"a": 0.7, "b": 0.2, "c": 0.1}) == (7, 2, 1)
    assert quantise({"a": 3, "b": 0, "c": np.float32(1.5)}) == (2, 0, 1)
    assert quantise({"a": Fraction(1, 3), "b": Fraction(2, 3)}) == (1, 2)
    assert quantise({"a": 1e-9, "b": 1}) == (1, MOST - 1)
    assert quantise({"a": 10**12, "b": 10**12}) == (1, 1)
    many = quantise({str(k): 1.0 + 1e-7 * k for k in range(1000)})
    assert sum(many) == MOST
    assert {*many} == {65, 66}


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30).filter(any))
def test_quantised_weights_keep_the_share_of_each(weights):
    counts = quantise(dict(enumerate(weights)))
    period, total = sum(counts), sum(Fraction(repr(weight)) for weight in weights)
    assert period <= MOST
    for count, weight in zip(counts, weights, strict=True):
        assert (count > 0) == (weight > 0)
        assert abs(Fraction(count, period) - Fraction(repr(weight)) / total) <= Fraction(len(weights), MOST)


@pytest.mark.parametrize("weights", [{"a": -1}, {"a": float("nan")}, {"a": 0}, {"a": "1"}, {"a": float("inf")}])
def test_weights_that_cannot_be_meant_are_refused(weights):
    with pytest.raises(ValueError, match="Mix weight"):
        quantise(weights)


@settings(deadline=None)
@given(weights_strategy)
def test_a_period_is_exact_and_even(counts):
    slots = lay_out(counts)
    assert np.bincount(slots, minlength=len(counts)).tolist() == counts
    share = np.array(counts) / len(slots)
    taken = np.cumsum(slots[:, None] == np.arange(len(counts)), axis=0)
    # Each part's j-th slot is due in the middle of its j-th stretch: no part can be far from its share anywhere.
    assert np.abs(taken - share * (np.arange(len(slots)) + 1)[:, None]).max() <= 1 + len(counts) / 2


@settings(deadline=None, max_examples=60)
@given(first=weights_strategy, data=st.data())
def test_the_schedule_counts_on_through_stages_and_agrees_with_counting(first, data):
    names = [f"s{k}" for k in range(len(first))]
    begins = sorted(data.draw(st.sets(st.integers(1, 120), max_size=3)))
    same_size = st.lists(st.integers(0, 9), min_size=len(first), max_size=len(first)).filter(any)
    curriculum = [(begin, dict(zip(names, data.draw(same_size), strict=True))) for begin in begins]
    schedule = Schedule(Proportions.of(dict(zip(names, first, strict=True)), curriculum=curriculum))
    parts, numbers = schedule.locate(np.arange(300))
    seen = Counter()
    for sample, (part, number) in enumerate(zip(parts.tolist(), numbers.tolist(), strict=True)):
        assert schedule.taken(sample).tolist() == [seen[k] for k in range(len(first))]
        assert number == seen[part]
        seen[part] += 1
    for part in set(parts.tolist()):
        own = np.flatnonzero(parts == part)
        assert schedule.places(part, numbers[own]).tolist() == own.tolist()
    some = np.array([299, 0, 17, 17])
    assert [values.tolist() for values in schedule.locate(some)] == [parts[some].tolist(), numbers[some].tolist()]
    for stage, weights in zip(schedule.stages, [first, *(list(own.values()) for _, own in curriculum)], strict=True):
        assert [count * sum(weights) for count in stage.counts.tolist()] == [w * stage.period for w in weights]
    lasting = [k for k in range(len(first)) if schedule.stages[-1].counts[k]]
    windows = data.draw(st.lists(st.integers(1, 15), min_size=len(first), max_size=len(first)))
    epoch = schedule.epoch(windows)
    assert all(schedule.taken(epoch)[k] >= windows[k] for k in lasting)
    assert epoch == 1 or any(schedule.taken(epoch - 1)[k] < windows[k] for k in lasting)


# ---- loaders


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=3, block=4)])
def test_every_source_runs_its_own_epochs_exactly_once_each(mix, shuffle):
    loader = Loader(mix, window=WINDOW, batch_size=12, shuffle=shuffle)
    got = samples_of(loader, epochs=5)
    assert len(got) >= 4 * 64
    period = 6
    for at in range(0, len(got) - period, period):
        assert Counter(sample[0] for sample in got[at : at + period]) == WEIGHTS
    for name, lengths in LENGTHS.items():
        own = [sample[1:3] for sample in got if sample[0] == name]
        everything = {(f"ep_{k:04d}", start) for k, steps in enumerate(lengths) for start in range(steps)}
        size, epochs = len(everything), []
        for at in range(0, len(own) - size + 1, size):
            epochs.append(own[at : at + size])
            assert set(epochs[-1]) == everything
        assert len(epochs) >= 2
        assert (epochs[0] == epochs[1]) == (shuffle is False)


def test_an_epoch_lasts_until_every_source_was_seen(mix, sources):
    loader = Loader(mix, window=WINDOW, batch_size=6)
    plan = loader.plan()
    assert plan.samples == 64  # 32 windows of `arm` at 3 of 6 samples
    assert plan.tail == "carry"
    assert [line.split(":")[0] for line in plan.parts] == list(LENGTHS)
    assert "arm: 3 of 6 samples; 32 windows, 1.00 times" in str(plan)
    assert plan.shuffle_quality > 0.8
    sized = Loader(
        Mix({"arm": (sources["arm"], 1), "leg": (sources["leg"], 1)}, samples=10), window=WINDOW, batch_size=5
    )
    assert len(sized) == 2
    assert len(Loader(mix, window=WINDOW, batch_size=5)) == 12  # and four samples are carried on


def test_values_and_masks_are_those_of_each_source(mix, sources):
    window = Window({"action": range(-1, 3), "task": None, "reward": None})
    truth = {
        name: {
            (batch["sequence_id"][k], int(batch["start"][k])): {key: batch[key][k] for key in batch}
            for batch in Loader(source, window=window, batch_size=4).tail("pad")
            for k in range(4)
        }
        for name, source in sources.items()
    }
    for batch in Loader(mix, window=window, batch_size=16):
        assert batch["mix_source_number"].tolist() == [list(LENGTHS).index(name) for name in batch["mix_source"]]
        for k, (name, sequence, start, _) in enumerate(ids(batch)):
            for key, value in truth[name][sequence, start].items():
                if key != "valid":
                    np.testing.assert_array_equal(batch[key][k], value)


def test_the_keys_of_older_releases_work_with_a_warning(mix):
    loader = Loader(mix, window=WINDOW, batch_size=16)
    batch = next(iter(loader))
    for old, new in (("source", "mix_source"), ("source_number", "mix_source_number")):
        assert old not in batch
        with pytest.warns(DeprecationWarning, match=f"batch.'{new}'"):
            assert batch[old].tolist() == batch[new].tolist()
    with pytest.raises(KeyError, match="nothing"):
        batch["nothing"]
    (sample,) = loader.dataset().__getitems__([0])
    with pytest.warns(DeprecationWarning, match="mix_source"):
        assert sample["source"] == sample["mix_source"]
    names = loader.map(lambda sample: {**sample, "name": sample["mix_source"]})
    batch = next(iter(names))
    assert batch["name"].tolist() == batch["mix_source"].tolist()


def test_a_column_may_be_called_source(readable):
    schema = Schema({"action": Trajectory(dim=2), "source": pa.string()})
    parts = {}
    for name in ("sim", "robot"):
        rows = [
            {"sequence_id": f"{name}_{k}", "source": f"of {name}", "action": np.ones((4, 2), np.float32)}
            for k in range(3)
        ]
        parts[name] = readable(schema, rows)
        parts[name].fingerprint = name
    mix = Mix({name: (part, 1) for name, part in parts.items()})
    for batch in Loader(mix, window={"action": range(2), "source": None}, batch_size=8):
        assert batch["source"].tolist() == [f"of {name}" for name in batch["mix_source"]]


@pytest.mark.sampled
@settings(deadline=None, max_examples=30 if SOAK else 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stop=st.integers(0, 30),
    before=st.integers(1, 5),
    after=st.integers(1, 5),
    batch=st.integers(5, 14),
    tail=st.sampled_from(["drop", "pad", "carry"]),
    late=st.booleans(),
)
def test_a_state_continues_on_any_world_size(sources, stop, before, after, batch, tail, late):
    pairs = {name: (sources[name], WEIGHTS[name]) for name in sources}
    mix = Mix(pairs, curriculum=[(37, {"arm": 0, "hand": 5})] if late else ())

    def loader(rank, world):
        made = Loader(mix, window=WINDOW, batch_size=1, seed=4, rank=rank, world_size=world)
        return made.tail(tail).global_batch(batch)

    def steps(one):
        return [ids(step) for step in itertools.islice(itertools.chain.from_iterable(itertools.repeat(one)), 40)]

    truth = steps(loader(0, 1))
    first, states = [], []
    for rank in range(before):
        share = loader(rank, before)
        batches = itertools.chain.from_iterable(itertools.repeat(share))
        first.append([ids(step) for step in itertools.islice(batches, stop)])
        states.append(json.dumps(share.state_dict()))
    assert len(set(states)) == 1
    assert len(states[0]) < 1000
    second = []
    for rank in range(after):
        share = pickle.loads(pickle.dumps(loader(rank, after)))
        share.load_state_dict(json.loads(states[0]))
        second.append(steps(share))
    got = [list(itertools.chain(*parts)) for parts in zip(*first, strict=True)]
    got += [list(itertools.chain(*parts)) for parts in zip(*second, strict=True)]
    assert got[:40] == truth


def test_a_batch_of_another_size_goes_on_at_the_same_sample(mix):
    truth = samples_of(Loader(mix, window=WINDOW, batch_size=1), epochs=2)
    loader = Loader(mix, window=WINDOW, batch_size=10)
    head = [ids(batch) for _, batch in zip(range(4), loader, strict=False)]
    other = Loader(mix, window=WINDOW, batch_size=7)
    other.load_state_dict(loader.state_dict())
    together = list(itertools.chain(*head)) + samples_of(other)
    assert together == truth[: len(together)]


def test_a_source_keeps_its_order_when_others_come_and_go(sources):
    def own(names):
        mix = Mix({name: (sources[name], 1) for name in names})
        return [sample for sample in samples_of(Loader(mix, window=WINDOW, batch_size=1)) if sample[0] == "leg"][:17]

    assert own(["leg"]) == own(["arm", "leg"]) == own(["leg", "hand", "arm"])


def test_sources_of_equal_size_have_orders_of_their_own(readable, arm):
    twins = {name: (readable(*arm([40, 40])), 1) for name in ("a", "b")}
    got = samples_of(Loader(Mix(twins), window=WINDOW, batch_size=2))
    assert [s[1:3] for s in got if s[0] == "a"] != [s[1:3] for s in got if s[0] == "b"]


def test_a_curriculum_changes_the_proportions_at_its_sample(sources):
    pairs = {name: (sources[name], 1) for name in ("arm", "leg")}
    mix = Mix(pairs, curriculum=[(20, {"leg": 3}), (60, {"arm": 0})], samples=100)
    got = [sample[0] for sample in samples_of(Loader(mix, window=WINDOW, batch_size=10))]
    assert Counter(got[:20]) == {"arm": 10, "leg": 10}
    assert Counter(got[20:60]) == {"arm": 10, "leg": 30}
    assert set(got[60:]) == {"leg"}
    plan = str(Loader(mix, window=WINDOW, batch_size=10).plan())
    assert "leg: 1 of 2 samples, from 20 on 3 of 4, from 60 on 1 of 1; 17 windows" in plan


def test_a_state_of_another_mixture_is_refused(sources, mix):
    state = Loader(mix, window=WINDOW, batch_size=4).state_dict()
    others = [
        Mix({name: (sources[name], 1) for name in sources}, samples=64),
        Mix({name: (sources[name], WEIGHTS[name]) for name in sources}, curriculum=[(9, {"arm": 1})], samples=64),
    ]
    for other in others:
        with pytest.raises(LoaderStateError, match="the mixture"):
            Loader(other, window=WINDOW, batch_size=4).load_state_dict(state)
    sources["arm"].fingerprint = "changed"
    with pytest.raises(LoaderStateError, match="the dataset"):
        Loader(mix, window=WINDOW, batch_size=4).load_state_dict(state)
    with pytest.raises(LoaderStateError, match="Changed"):
        Loader(sources["hand"], window=WINDOW, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("packed", [False, True])
def test_whole_sequences_of_several_sources(mix, sources, packed):
    window = Whole(["action"], packed=packed)
    batch = next(iter(Loader(mix, window=window, batch_size=9, seed=1)))
    assert len(set(batch["mix_source"])) == 3
    for k, (name, sequence) in enumerate(zip(batch["mix_source"], batch["sequence_id"], strict=True)):
        expected = sources[name].row(sequence)["action"]
        if packed:
            got = batch["action"][batch["action_offsets"][k] : batch["action_offsets"][k + 1]]
        else:
            length = batch["action_length"][k]
            got = batch["action"][k, :length]
            assert not batch["action"][k, length:].any()
        np.testing.assert_array_equal(got, expected)


def test_samples_without_order_of_their_own_are_map_style_too(mix, sources):
    windows = Loader(mix, window=WINDOW, batch_size=4).dataset()
    assert len(windows) == 32 + 11 + 17
    batch = windows.batch([0, 59, 32, 42, -1])
    assert batch["mix_source"].tolist() == ["arm", "leg", "hand", "hand", "leg"]
    assert batch["start"].tolist() == [0, 6, 0, 2, 6]
    for k, name in enumerate(batch["mix_source"]):
        start = int(batch["start"][k])
        truth = sources[name].row(batch["sequence_id"][k])["action"][start : start + 3]
        np.testing.assert_array_equal(batch["action"][k, : len(truth)], truth)


def test_transforms_statistics_and_random_numbers_apply_to_mixtures(mix):
    def jitter(batch, random):
        return {**batch, "noise": random.uniform()}

    stats = {"action": {"mean": [1.0, 1, 1], "std": [2.0, 2, 2]}}
    plain = Loader(mix, window=WINDOW, batch_size=8)
    made = plain.normalize(stats).map_batch(jitter, random=True)
    for raw, batch in zip(plain, made, strict=True):
        scaled = np.where(raw["action_mask"][..., None], (raw["action"] - 1) / 2, 0)
        np.testing.assert_allclose(batch["action"], scaled, rtol=1e-6)
    one = [value for batch in plain.map_batch(jitter, random=True) for value in batch["noise"]]
    made.set_epoch(0)
    assert len(set(one)) == len(one) == 64


def test_sources_must_agree_where_the_window_asks(readable, sources, arm):
    def refuse(schema, rows, match, window=WINDOW):
        other = Mix({"arm": (sources["arm"], 1), "odd": (readable(schema, rows), 1)})
        with pytest.raises(SchemaMismatchError, match=match):
            Loader(other, window=window, batch_size=4)

    rows = [{"sequence_id": "x", "action": np.zeros((4, 2), np.float32), "task": 3}]
    refuse(Schema({"action": Trajectory(dim=2)}), rows, r"'action' is temporal float \(3,\) in source 'arm'")
    wide = [{"sequence_id": "x", "action": np.zeros((4, 3))}]
    refuse(Schema({"action": Trajectory(dim=3, dtype=pa.float64())}), wide, "double")
    refuse(
        Schema({"other": Trajectory(dim=3)}), [{"sequence_id": "x", "other": np.zeros((4, 3))}], "no column 'action'"
    )
    narrow = Schema({"action": Trajectory(dim=3), "task": pa.int64()})
    refuse(narrow, [{"sequence_id": "x", "action": np.zeros((4, 3)), "task": 1}], "string", {**WINDOW, "task": None})
    more = readable(*arm([4, 4], state=9))  # a column that nobody asks for may differ
    fine = Mix({"arm": (sources["arm"], 1), "more": (more, 1)})
    assert next(iter(Loader(fine, window=WINDOW, batch_size=4)))["action"].shape == (4, 3, 3)


def test_what_cannot_be_meant_is_refused(sources, readable, arm):
    with pytest.raises(TypeError, match="one source at least"):
        Mix({})
    with pytest.raises(TypeError, match="dataset, weight"):
        Mix({"arm": sources["arm"]})
    pair = (sources["arm"], 1)
    with pytest.raises(ValueError, match="ascend"):
        Mix({"arm": pair}, curriculum=[(5, {}), (5, {})])
    with pytest.raises(ValueError, match="'leg' is none of the sources"):
        Mix({"arm": pair}, curriculum=[(5, {"leg": 1})])
    with pytest.raises(ValueError, match="Mix samples"):
        Mix({"arm": pair}, samples=0)
    with pytest.raises(ValueError, match="gives no window"):
        len(Loader(Mix({"arm": pair, "none": (readable(*arm([0, 0])), 1)}), window=WINDOW, batch_size=4))
    with pytest.raises(ValueError, match="call the source"):
        Loader(Mix({"arm": pair}), window={**WINDOW, "mix_source": None}, batch_size=4)
    assert repr(Mix({"arm": (3, 1)}, curriculum=[(5, {"arm": 2})], samples=9)) == (
        "Mix({'arm': (3, 1)}, curriculum=[(5, {'arm': 2})], samples=9)"
    )


def film(location, count, *, height, first):
    schema = sl.Schema({"cam": sl.Video(fps=10), "action": Trajectory(dim=1, fps=10)})
    with sl.create(location, schema).writer() as writer:
        for number in range(count):
            pictures = [np.full((height, 64, 3), first + 9 * number + 2 * step, np.uint8) for step in range(6)]
            writer.add(f"ep_{number}", cam=pictures, action=np.arange(6)[:, None])
    return sl.open(location)


def test_frames_of_several_sources_are_decoded_on_one_set_of_threads(tmp_path):
    films = {"low": film(tmp_path / "a", 3, height=48, first=10), "high": film(tmp_path / "b", 2, height=48, first=120)}
    window = {"cam": range(-1, 1), "action": [0]}
    truth = {
        name: {
            (batch["sequence_id"][k], int(batch["start"][k])): (batch["cam"][k], batch["cam_mask"][k])
            for batch in Loader(source, window=window, batch_size=6)
            for k in range(6)
        }
        for name, source in films.items()
    }
    loader = Loader(Mix({name: (source, 1) for name, source in films.items()}), window=window, batch_size=6)
    batches = iter(loader)
    for batch in batches:
        running = [one.name for one in threading.enumerate() if one.name.startswith(THREADS)]
        assert len(running) <= cores()
        for k, (name, sequence, start, _) in enumerate(ids(batch)):
            np.testing.assert_array_equal(batch["cam"][k], truth[name][sequence, start][0])
            np.testing.assert_array_equal(batch["cam_mask"][k], truth[name][sequence, start][1])
    assert not [one for one in threading.enumerate() if one.name.startswith(THREADS)]
    small = next(iter(loader.frames(size=(8, 8), layout="TCHW")))
    assert small["cam"].shape == (6, 2, 3, 8, 8)
    assert loader.dataset().batch([0, 20])["cam"].shape == (2, 2, 48, 64, 3)


def test_frames_of_unlike_sizes_ask_for_one(tmp_path):
    films = {"low": film(tmp_path / "a", 1, height=48, first=10), "high": film(tmp_path / "b", 1, height=32, first=99)}
    loader = Loader(Mix({name: (source, 1) for name, source in films.items()}), window={"cam": [0]}, batch_size=6)
    with pytest.raises(SchemaMismatchError, match="'cam' is .* in one source") as caught:
        next(iter(loader))
    assert "frames(size=" in str(caught.value.hint)
    assert next(iter(loader.frames(size=(16, 24))))["cam"].shape == (6, 1, 16, 24, 3)


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=2, block=3)])
def test_shards_are_expected_exactly_when_samples_may_need_them(mix, sources, shuffle):
    loader = Loader(mix, window=WINDOW, batch_size=4, shuffle=shuffle)
    mixture = loader._engine.mixture
    firsts = loader._engine.first_rows.tolist()
    shard_of = np.concatenate(
        [2 * k + np.repeat([0, 1], [part.rows for part in source.parts]) for k, source in enumerate(sources.values())]
    )
    assert len(shard_of) == firsts[-1]
    for epoch in range(3):
        found = mixture.visits(epoch)
        assert (np.diff(found.begins) >= 0).all()
        rows = mixture.locate(epoch * len(mixture) + np.arange(len(mixture)))[1]
        for sample, shard in enumerate(shard_of[rows].tolist()):
            assert shard in found.needed(sample, sample + 1)
        assert (found.begins >= 0).all() and (found.ends <= len(mixture)).all()  # noqa: PT018 - one span


def test_a_mixture_comes_through_a_cache_in_a_folder(arm, tmp_path):
    archives = {}
    for seed, name in enumerate(("a", "b")):
        schema, rows = arm([5, 9, 4, 7, 8, 6], seed=seed)
        archives[name] = sl.create(tmp_path / name, schema)
        for low in (0, 2, 4):
            with archives[name].writer(layout="archive") as writer:
                for row in rows[low : low + 2]:
                    writer.add(row.pop("sequence_id"), **row)
    cache = sl.Cache(tmp_path / "cache", limit=10**7)
    for shuffle in (True, Shuffle(lanes=1, block=4)):
        how = {"window": WINDOW, "batch_size": 6, "shuffle": shuffle}
        mix = Mix({name: (source, 1 + number) for number, (name, source) in enumerate(archives.items())})
        pairs = [(Loader(mix, **how), Loader(mix, cache=cache, **how))]
        pairs.append(tuple(Loader(archives["a"], cache=one, **how).weights("task") for one in (None, cache)))
        for plain, copied in pairs:
            for _ in range(3):
                for expected, batch in zip(plain, copied, strict=True):
                    assert batch["sequence_id"].tolist() == expected["sequence_id"].tolist()
                    np.testing.assert_array_equal(batch["action"], expected["action"])
    assert any((tmp_path / "cache").rglob("*"))


# ---- groups of one dataset


def test_groups_are_balanced_exactly_and_each_comes_once_in_its_epochs(readable, arm):
    source = readable(*arm([5, 0, 9, 1, 14, 3, 30, 2, 7]), shards=3, kind="parquet")
    task = {row["sequence_id"]: row["task"] for row in source.rows}
    loader = Loader(source, window=WINDOW, batch_size=9, seed=2).weights("task")
    got = [
        (name, int(start))
        for _ in range(4)
        for b in loader
        for name, start in zip(b["sequence_id"], b["start"], strict=True)
    ]
    for at in range(0, len(got) - 3, 3):
        assert {task[name] for name, _ in got[at : at + 3]} == {"task 0", "task 1", "task 2"}
    for value in ("task 0", "task 1", "task 2"):
        everything = {(r["sequence_id"], t) for r in source.rows if r["task"] == value for t in range(len(r["action"]))}
        own = [sample for sample in got if task[sample[0]] == value]
        for at in range(0, len(own) - len(everything) + 1, len(everything)):
            assert set(own[at : at + len(everything)]) == everything
    assert loader.plan().samples == 3 * 35 + 1  # the last of the 36 windows of task 0
    assert loader.plan().tail == "carry"
    assert "'task 2': 1 of 3 samples; 19 windows, 1.84 times" in str(loader.plan())
    many = readable(*arm([2] * 30))
    told = str(Loader(many, window=WINDOW, batch_size=9).weights("reward").plan())
    assert told.count("; 2 windows") == 20
    assert "and 10 more" in told


def test_groups_with_weights_resume_and_travel(readable, arm):
    source = readable(*arm([5, 3, 9, 1, 14, 3]), kind="parquet")
    loader = Loader(source, window=WINDOW, batch_size=8).weights("task", {"task 0": 2, "task 1": 1, "task 2": 0})
    values = [batch["sequence_id"] for batch in loader]
    tasks = Counter(source.row(name)["task"] for batch in values[:3] for name in batch)
    assert tasks == {"task 0": 16, "task 1": 8}
    again = pickle.loads(pickle.dumps(loader)).reuse_buffers()
    again.load_state_dict(loader.state_dict(steps=0) | {"epoch": 0, "next_sample": 8})
    assert next(iter(again))["sequence_id"].tolist() == values[1].tolist()
    with pytest.raises(LoaderStateError, match="the mixture"):
        Loader(source, window=WINDOW, batch_size=8).weights("task").load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="1 groups of 'task' have windows and no weight"):
        len(loader.weights("task", {"task 0": 1, "task 1": 1}))
    with pytest.raises(ValueError, match="'task 9' is no value"):
        len(loader.weights("task", {"task 0": 1, "task 1": 1, "task 2": 1, "task 9": 1}))
    with pytest.raises(SchemaMismatchError, match="no scalar column"):
        len(loader.weights("action"))
    mixed = Mix({"a": (source, 1)})
    with pytest.raises(ValueError, match="groups are those of one dataset"):
        Loader(mixed, window=WINDOW, batch_size=8).weights("task")


@pytest.mark.parametrize("kinds", [("flat", "flat"), ("flat", "archive"), ("flat", "parquet")])
def test_windows_of_all_sources_are_found_many_batches_at_a_time(readable, monkeypatch, kinds):
    """Int16 takes two bytes in memory and four in Parquet: sources that lie unlike each other give the same batches."""
    schema = Schema({"action": Trajectory(dim=2, dtype=pa.int16()), "task": pa.string()})
    made = []
    for number, kind in enumerate(kinds):
        cells = [np.arange(60, dtype=np.int16).reshape(30, 2) + 1000 * number + 100 * row for row in range(6)]
        rows = [{"sequence_id": f"{number}-{row}", "task": "t", "action": cell} for row, cell in enumerate(cells)]
        source = readable(schema, rows, kind=kind, shards=2 + number)
        source.fingerprint = f"source {number}"
        made.append(source)
    prepared = []
    real = WindowAssembler.prepare
    monkeypatch.setattr(Pace, "alone", lambda _: False)
    monkeypatch.setattr(
        WindowAssembler, "prepare", lambda self, *args, **options: (prepared.append(1), real(self, *args, **options))[1]
    )
    for edges in ("pad", "clamp", "drop"):
        prepared.clear()
        window = Window({"action": range(-1, 3), "task": None}, edges=edges)
        loader = Loader(Mix({"a": (made[0], 2), "b": (made[1], 1)}), window=window, batch_size=12, seed=3)
        batches = list(loader)
        assert len(batches) > 30
        alike = "parquet" not in kinds
        assert (len(prepared) <= 3 * 2) == alike  # chunks times sources, or else batches times sources
        if alike and torch() is not None:  # up to sixteen batches are one piece of memory
            begins = np.array([batch["action"].ctypes.data for batch in batches])
            assert np.mean(np.diff(begins) == batches[0]["action"].nbytes) > 0.8
        for batch in batches:
            assert batch["action"].dtype == np.int16
            assert batch["mix_source"].tolist().count("a") == 8
            for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
                number, row = map(int, name.split("-"))
                assert batch["mix_source_number"][place] == number
                steps = np.arange(start - 1, start + 3)
                there = (steps >= 0) & (steps < 30)
                value = np.arange(60).reshape(30, 2)[np.clip(steps, 0, 29)] + 1000 * number + 100 * row
                value[~there] *= edges == "clamp"
                np.testing.assert_array_equal(batch["action"][place], value)
                np.testing.assert_array_equal(batch["action_mask"][place], there)
