"""One position, the same steps on every machine, and nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake
from seqlake.errors import LoaderStateError, ShardChangedError
from seqlake.training import needs, opened, passes
from seqlake.training.loader import Loader
from seqlake.training.order import Shuffle
from seqlake.windows.spec import Whole, Window

LENGTHS = [5, 0, 9, 1, 14, 3, 30, 2, 7, 21, 4, 11]
WINDOW = {"action": range(3)}


def ids(batch):
    valid = batch.get("valid", np.ones(len(batch["start"]), bool))
    return [
        (name, int(start), bool(ok))
        for name, start, ok in zip(batch["sequence_id"], batch["start"], valid, strict=True)
    ]


def joined(parts):
    return list(chain.from_iterable(parts))


def steps_of(loader):
    return [ids(batch) for batch in loader]


@pytest.fixture
def source(readable, arm):
    return readable(*arm(LENGTHS))


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=3, block=20)])
@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
def test_equal_global_batches_are_equal_steps_for_every_world_size(source, shuffle, tail):
    def passes_of(world, batch=None):
        shares = []
        for rank in range(world):
            loader = Loader(
                source, window=WINDOW, batch_size=24 // world, shuffle=shuffle, seed=3, rank=rank, world_size=world
            ).tail(tail)
            loader = loader.global_batch(24)
            shares.append([step for _ in range(2) for step in steps_of(loader)])
        assert len({len(share) for share in shares}) == 1
        return [joined(parts) for parts in zip(*shares, strict=True)]

    alone = passes_of(1)
    assert len(alone) >= 6
    for world in (2, 3, 4, 5, 8):
        assert passes_of(world) == alone


def test_batch_size_moves_step_borders_and_not_the_order(source):
    one = joined(steps_of(Loader(source, window=WINDOW, batch_size=1)))
    assert len(one) == sum(LENGTHS)
    for batch in (2, 7, 50):
        other = joined(steps_of(Loader(source, window=WINDOW, batch_size=batch).tail("pad")))
        assert [sample for sample in other if sample[2]] == one


@pytest.mark.parametrize("ahead", [1, 5, 64, 10**6])
def test_how_far_is_planned_ahead_changes_nothing(source, monkeypatch, ahead):
    expected = steps_of(Loader(source, window=WINDOW, batch_size=4))
    monkeypatch.setattr(passes, "_AHEAD", ahead)
    monkeypatch.setattr(needs, "_FIRST", ahead)
    assert steps_of(Loader(source, window=WINDOW, batch_size=4)) == expected


def test_every_window_comes_once_an_epoch_and_epochs_differ(source):
    loader = Loader(source, window=WINDOW, batch_size=10).tail("pad")
    first = [s for step in steps_of(loader) for s in step if s[2]]
    second = [s for step in steps_of(loader) for s in step if s[2]]
    assert len(set(first)) == len(first) == sum(LENGTHS)
    assert sorted(first) == sorted(second)
    assert first != second


def test_source_order_without_shuffling(source):
    got = [
        s[:2] for step in steps_of(Loader(source, window=WINDOW, batch_size=10, shuffle=False)) for s in step if s[2]
    ]
    assert got == [(f"ep_{k:04d}", t) for k, steps in enumerate(LENGTHS) for t in range(steps)]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stop=st.integers(0, 40),
    before=st.integers(1, 4),
    after=st.integers(1, 5),
    tail=st.sampled_from(["drop", "pad", "carry"]),
)
def test_a_state_continues_exactly_also_on_another_world_size(source, stop, before, after, tail):
    def loader(rank, world, batch=12):
        return (
            Loader(source, window=WINDOW, batch_size=1, seed=9, rank=rank, world_size=world)
            .tail(tail)
            .global_batch(batch)
        )

    whole = loader(0, 1)
    truth = [step for _ in range(7) for step in steps_of(whole)]
    states, kept = [], []
    for rank in range(before):
        share = loader(rank, before)
        done = []
        while len(done) < stop:
            for batch in share:
                done.append(ids(batch))
                if len(done) == stop:
                    break
        states.append(json.dumps(share.state_dict()))
        kept.append(done)
    assert len(set(states)) == 1
    assert len(states[0]) < 1000
    resumed = []
    for rank in range(after):
        share = loader(rank, after)
        share.load_state_dict(json.loads(states[0]))
        resumed.append(steps_of(share))
    together = [joined(parts) for parts in zip(*kept, strict=True)] + [
        joined(parts) for parts in zip(*resumed, strict=True)
    ]
    assert together == truth[: len(together)]
    assert len(together) > stop or stop == 0


def test_another_batch_size_continues_at_the_same_sample(source):
    truth = [s for step in steps_of(Loader(source, window=WINDOW, batch_size=1)) for s in step]
    loader = Loader(source, window=WINDOW, batch_size=10)
    head = [ids(batch) for _, batch in zip(range(4), loader, strict=False)]
    other = Loader(source, window=WINDOW, batch_size=7)
    other.load_state_dict(loader.state_dict())
    tail = steps_of(other)
    together = joined(head) + joined(tail)
    assert together == truth[: len(together)]
    assert len(truth) - len(together) < 7


def test_state_after_a_number_of_steps_is_what_delivering_them_gives(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    for count, _ in enumerate(loader, 1):
        assert loader.state_dict() == loader.state_dict(steps=count)
        assert Loader(source, window=WINDOW, batch_size=10).state_dict(steps=count) == loader.state_dict()
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["next_sample"] == 0
    with pytest.raises(ValueError, match="steps"):
        loader.state_dict(steps=len(loader) + 1)


@pytest.mark.parametrize("tail", ["drop", "pad", "carry"])
def test_a_state_at_the_end_of_an_epoch_means_the_next_one(source, tail):
    loader = Loader(source, window=WINDOW, batch_size=10).tail(tail)
    list(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["next_sample"]) == ((0, 100) if tail == "carry" else (1, 0))
    second = steps_of(loader)
    again = Loader(source, window=WINDOW, batch_size=10).tail(tail)
    again.load_state_dict(state)
    assert steps_of(again) == second


def test_a_larger_batch_that_does_not_fit_any_more_goes_to_the_next_epoch(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    state = loader.state_dict(steps=9)
    larger = Loader(source, window=WINDOW, batch_size=20)
    larger.load_state_dict(state)
    got = steps_of(larger)
    fresh = Loader(source, window=WINDOW, batch_size=20)
    fresh.set_epoch(1)
    assert got == steps_of(fresh)
    assert larger.state_dict()["epoch"] == 2


def test_iter_begins_where_the_state_is(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    truth = steps_of(loader) + steps_of(loader)
    loader.set_epoch(0)
    assert len(loader) == 10
    got = []
    for batch in loader:
        got.append(ids(batch))
        if len(got) == 3:
            break
    got += steps_of(loader)
    assert len(got) == 10
    got += steps_of(loader)
    assert got == truth
    loader.set_epoch(1)
    assert steps_of(loader) == truth[10:]
    with pytest.raises(ValueError, match="set_epoch"):
        loader.set_epoch(-1)


def test_len_is_exact_from_any_position(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    state = loader.state_dict(steps=4)
    loader.load_state_dict(state)
    assert len(loader) == 6 == len(steps_of(loader))
    assert len(loader) == 10


def test_two_live_iterators_are_refused(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(RuntimeError, match="iterated anew"):
        next(first)
    loader.set_epoch(3)
    with pytest.raises(RuntimeError, match="one position"):
        next(second)


def test_a_state_of_another_loader_says_what_changed(source, readable, arm):
    state = Loader(source, window=WINDOW, batch_size=4, seed=1).state_dict()

    def refuse(loader, match):
        with pytest.raises(LoaderStateError, match=match):
            loader.load_state_dict(state)

    refuse(Loader(source, window=WINDOW, batch_size=4, seed=2), "the seed")
    refuse(Loader(source, window={"action": range(4)}, batch_size=4, seed=1), "the window")
    refuse(Loader(source, window=WINDOW, batch_size=4, seed=1, shuffle=False), "the shuffle")
    other = readable(*arm(LENGTHS))
    other.fingerprint = "dataset 2"
    refuse(Loader(other, window=WINDOW, batch_size=4, seed=1), "the dataset")
    with pytest.raises(LoaderStateError, match="state_dict"):
        Loader(source, window=WINDOW, batch_size=4).load_state_dict({"epoch": 1})
    good = Loader(source, window=WINDOW, batch_size=9, seed=1, rank=1, world_size=3)
    good.load_state_dict(state)
    with pytest.raises(LoaderStateError, match="999999"):
        good.load_state_dict({**state, "next_sample": 999_999})


def test_bad_arguments_are_named(source):
    for bad in ({"batch_size": 0}, {"rank": 1}, {"world_size": 0}, {"rank": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Loader(source, window=WINDOW, **{"batch_size": 4, **bad})
    with pytest.raises(TypeError, match="seed"):
        Loader(source, window=WINDOW, batch_size=4, seed="x")
    with pytest.raises(TypeError, match="shuffle"):
        Loader(source, window=WINDOW, batch_size=4, shuffle="yes")
    with pytest.raises(ValueError, match="tail"):
        Loader(source, window=WINDOW, batch_size=4).tail("cut")
    with pytest.raises(ValueError, match="global_batch"):
        Loader(source, window=WINDOW, batch_size=4, world_size=4).global_batch(3)
    with pytest.raises(ValueError, match="do not fill one step"):
        iter(Loader(source, window=WINDOW, batch_size=10_000))


def test_an_empty_dataset_gives_no_batches(readable, arm):
    schema, _ = arm([])
    for tail in ("drop", "pad", "carry"):
        loader = Loader(readable(schema, [], shards=1), window=WINDOW, batch_size=4).tail(tail)
        assert len(loader) == 0
        assert list(loader) == []


def test_resuming_reads_nothing_of_what_was_skipped(readable, arm):
    schema, rows = arm([50] * 40)
    source = readable(schema, rows, shards=40)
    loader = Loader(source, window=WINDOW, batch_size=50, shuffle=False)
    loader.load_state_dict(loader.state_dict(steps=38))
    assert len(list(loader)) == 2
    assert [shard.opened for shard in source.parts] == [0] * 38 + [1, 1]
    loader.plan()
    assert sum(shard.opened for shard in source.parts) == 2


def test_the_plan_knows_the_epoch_before_anything_is_opened(readable, arm):
    schema, rows = arm([100, 200, 0, 300])
    source = readable(schema, rows, shards=2)
    plan = Loader(source, window=Window({"action": range(16)}, stride=2), batch_size=32, world_size=2, rank=1).plan()
    assert sum(shard.opened for shard in source.parts) == 0
    assert (plan.samples, plan.sequences, plan.empty) == (300, 4, 1)
    assert (plan.steps, plan.global_batch, plan.local_batch, plan.dropped) == (4, 64, 32, 44)
    assert plan.batch_bytes == 32 * 16 * 3 * 4
    assert plan.shuffle_quality > 0.9
    assert (plan.lanes, plan.block) == (1, 300)
    for word in ("300", "drop (44", "action: 16 steps", "no rate"):
        assert word in str(plan)
    assert "source order" in str(Loader(source, window=WINDOW, batch_size=8, shuffle=False).plan())


def test_a_loader_pickles_as_a_description(readable, arm):
    source = readable(*arm(LENGTHS), kind="parquet")
    loader = Loader(source, window=WINDOW, batch_size=10)
    got = [ids(batch) for _, batch in zip(range(3), loader, strict=False)]
    copy = pickle.loads(pickle.dumps(loader))
    assert len(pickle.dumps(loader)) < 2 * len(pickle.dumps(source)) + 5000
    assert copy.state_dict() == loader.state_dict()
    assert got + steps_of(copy) == steps_of(Loader(source, window=WINDOW, batch_size=10))


def test_no_thread_is_left_after_break_error_or_end(source, begun):
    for batch in Loader(source, window=WINDOW, batch_size=1):
        assert len(batch["start"]) == 1
        break
    list(Loader(source, window=WINDOW, batch_size=1))
    with pytest.raises(ZeroDivisionError):
        list(Loader(source, window=WINDOW, batch_size=1).map_batch(lambda batch: 1 / 0))
    assert begun() == []


def test_sigint_ends_a_training_loop_at_once(tmp_path, interrupted):
    import pyarrow as pa

    from seqlake.shards import parquet
    from seqlake.spec.schema import Schema

    schema = Schema({"action": pa.list_(pa.list_(pa.float32()))})
    writer = parquet.create(tmp_path / "a.parquet", schema)
    cells = pa.array([[[1.0, 2.0]] * 50] * 20, schema.arrow.field("action").type)
    writer.write(pa.record_batch([pa.array([str(k) for k in range(20)]), cells], schema=schema.arrow))
    writer.close()
    interrupted(f"""
import numpy as np
from pathlib import Path
from seqlake.files.local import LocalBlob
from seqlake.shards.files import parquet_shard
from seqlake.shards.columns import Columns
from seqlake.spec.schema import Schema
from seqlake.training.loader import Loader
import pyarrow as pa
class Source:
    schema = Schema({{"action": pa.list_(pa.list_(pa.float32()))}})
    fingerprint, root = "x", "/"
    def shards(self):
        return [Columns(parquet_shard(LocalBlob(Path({str(tmp_path / "a.parquet")!r}))), self.schema, {{}})]
    def lengths(self, column):
        return np.full(20, 50)
loader = Loader(Source(), window={{"action": range(4)}}, batch_size=8)""")


@pytest.mark.parametrize("window", [WINDOW, Whole("*")])
def test_no_code_that_loses_a_ctrl_c_runs_in_a_training_loop(window, readable, arm):
    schema, rows = arm([40] * 30)
    loader = Loader(readable(schema, rows, shards=2), window=window, batch_size=8)
    deaf = []  # numpy takes an error in its check for ctypes for "no", and a signal may come there as anywhere

    def called(frame, event, _argument) -> None:
        if event == "call" and frame.f_code.co_name == "npy_ctypes_check":
            deaf.append(frame.f_back.f_code.co_name)

    sys.setprofile(called)
    try:
        np.dtype((np.void, 8))
        list(loader)
    finally:
        sys.setprofile(None)
    assert deaf == ["test_no_code_that_loses_a_ctrl_c_runs_in_a_training_loop"]


def test_types_of_opaque_bytes_are_made_by_name():
    """Everywhere, since any call may run in a loop that somebody stops: `np.dtype("V16")`."""
    modules = Path(seqlake.__file__).parent.rglob("*.py")
    assert [str(one) for one in modules if "dtype((np.void" in one.read_text()] == []


def test_a_shard_that_changes_under_the_loader_is_noticed(readable, arm, tmp_path, monkeypatch):
    monkeypatch.setattr(opened, "_FRESH", 0.0)
    schema, rows = arm([2000] * 40)
    source = readable(schema, rows, shards=1, kind="parquet")
    loader = Loader(source, window=WINDOW, batch_size=10)
    batches = iter(loader)
    next(batches)
    path = tmp_path / "parquet-0.parquet"
    shorter = tmp_path / "shorter"
    shorter.write_bytes(path.read_bytes()[:1000])
    shorter.replace(path)
    with pytest.raises(ShardChangedError):
        for _ in batches:
            pass


def test_errors_while_planning_reach_the_caller(source, monkeypatch):
    def broken(*_):
        raise OSError("gone")

    monkeypatch.setattr(type(source.parts[0]), "open", broken)
    with pytest.raises(OSError, match="gone"):
        next(iter(Loader(source, window=WINDOW, batch_size=10)))


def test_map_and_map_batch_and_their_random_numbers(source):
    plain = Loader(source, window=WINDOW, batch_size=10, seed=4)
    doubled = plain.map_batch(lambda batch: {**batch, "twice": batch["action"] * 2})
    for batch in doubled:
        np.testing.assert_array_equal(batch["twice"], batch["action"] * 2)
    single = plain.map(lambda sample: {"id": sample["sequence_id"], "sum": sample["action"].sum()})
    for batch, expected in zip(single, Loader(source, window=WINDOW, batch_size=10, seed=4), strict=True):
        assert batch["id"].tolist() == expected["sequence_id"].tolist()
        np.testing.assert_allclose(batch["sum"], expected["action"].sum(axis=(1, 2)))


def noise(batch, random):
    return {**batch, "noise": random.normal(2), "again": random.uniform(), "pick": random.integers(0, 5, 3)}


def jitter(sample, random):
    return {"id": sample["sequence_id"], "start": sample["start"], "x": random.random(2)}


def test_random_numbers_belong_to_samples_not_to_batches_or_ranks(source):
    def by_sample(name, batch_size, world=1):
        found = {}
        for rank in range(world):
            loader = Loader(source, window=WINDOW, batch_size=batch_size, seed=4, rank=rank, world_size=world)
            mapped = loader.map_batch(noise, random=True) if name != "x" else loader.map(jitter, random=True)
            for batch in mapped:
                names = batch["sequence_id"] if name != "x" else batch["id"]
                for k, key in enumerate(zip(names, batch["start"].tolist(), strict=True)):
                    found[key] = batch[name][k].tolist()
        return found

    for name in ("noise", "again", "pick", "x"):
        one, two = by_sample(name, 1), by_sample(name, 5, world=3)
        assert all(one[key] == two[key] for key in two)
        assert len({str(value) for value in one.values()}) > len(one) * (0.9 if name != "pick" else 0.5)


@pytest.mark.parametrize("tail", ["pad", "carry"])
def test_random_numbers_differ_between_epochs(source, tail):
    loader = Loader(source, window=WINDOW, batch_size=10).tail(tail).map_batch(noise, random=True)
    found = []
    for _ in range(2):
        epoch = {}
        for batch in loader:
            for key, value in zip(ids(batch), batch["again"].tolist(), strict=True):
                epoch.setdefault(key, value)
        found.append(epoch)
    common = found[0].keys() & found[1].keys()
    assert len(common) > 80
    assert not any(found[0][key] == found[1][key] for key in common)


def test_random_numbers_are_spread_as_they_should_be():
    from seqlake.training.randomness import Random

    random = Random(seed=1, epochs=np.zeros(20_000, np.int64), numbers=np.arange(20_000))
    uniform, normal, picks = random.uniform(4), random.normal(4), random.integers(-2, 3, 4)
    assert abs(uniform.mean() - 0.5) < 0.005
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert set(np.unique(picks)) == {-2, -1, 0, 1, 2}
    assert abs(np.corrcoef(uniform[:-1, 0], uniform[1:, 0])[0, 1]) < 0.03
    assert abs(np.corrcoef(uniform[:, 0], uniform[:, 1])[0, 1]) < 0.03


def test_normalise_leaves_missing_steps_at_zero(source):
    stats = {"action": {"mean": [1.0, 2.0, 3.0], "std": [2.0, 0.0, 4.0]}}
    plain = list(Loader(source, window={"action": range(4)}, batch_size=10))
    for batch, raw in zip(
        Loader(source, window={"action": range(4)}, batch_size=10).normalize(stats), plain, strict=True
    ):
        assert batch["action"].dtype == np.float32
        expected = (raw["action"].astype(float) - [1, 2, 3]) / [2, 1, 4] * raw["action_mask"][..., None]
        np.testing.assert_allclose(batch["action"], expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="std"):
        Loader(source, window=WINDOW, batch_size=1).normalize({"action": {"mean": [0]}})
    with pytest.warns(DeprecationWarning, match="normalize"), pytest.raises(ValueError, match="std"):
        Loader(source, window=WINDOW, batch_size=1).normalise({"action": {"mean": [0]}})


def test_verbs_keep_the_position_and_leave_the_first_loader_alone(source):
    loader = Loader(source, window=WINDOW, batch_size=10)
    loader.load_state_dict(loader.state_dict(steps=2))
    padded = loader.tail("pad")
    assert "pad" in repr(padded)
    assert "drop" in repr(loader)
    assert "valid" not in next(iter(loader))
    assert next(iter(padded))["valid"].all()


def test_the_pid_decides_whose_handles_they_are(source, monkeypatch):
    loader = Loader(source, window=WINDOW, batch_size=10)
    next(iter(loader))
    opened = [shard.opened for shard in source.parts]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    next(iter(loader))
    assert [shard.opened for shard in source.parts] == [2 * n for n in opened]


def test_a_dataset_that_moves_on_and_a_selection_without_ids_are_trained_on_as_they_were(tmp_path):
    import pyarrow as pa

    import seqlake as sl

    ds = sl.create(tmp_path / "arm", sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=2)}))
    rows = [{"sequence_id": f"ep_{n}", "task": "pick", "action": np.full((6, 2), n)} for n in range(4)]
    ds.append(rows)
    loader = sl.Loader(ds, window={"action": range(2)}, batch_size=4, shuffle=False)
    narrow = sl.Loader(ds.select("action"), window={"action": range(2)}, batch_size=4, shuffle=False)
    ds.append([{"sequence_id": "late", "task": "pick", "action": np.zeros((6, 2))}])
    for one in (loader, narrow):
        batches = list(one)
        assert [name for b in batches for name in b["sequence_id"]] == [f"ep_{n}" for n in range(4) for _ in range(6)]
    assert (
        loader.state_dict()["fingerprint"]
        != sl.Loader(ds, window={"action": range(2)}, batch_size=4, shuffle=False).state_dict()["fingerprint"]
    )


def test_a_commit_since_the_state_is_refused_with_all_that_changed(tmp_path):
    import seqlake as sl

    ds = sl.create(tmp_path / "arm", sl.Schema({"action": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": f"ep_{row}", "action": np.zeros((10, 1), np.float32)} for row in range(4)])
    pinned = sl.open(tmp_path / "arm")
    state = Loader(pinned, window=WINDOW, batch_size=5).state_dict(steps=3)
    ds.append([{"sequence_id": "late", "action": np.zeros((7, 1), np.float32)}])
    with pytest.raises(LoaderStateError) as refused:
        Loader(sl.open(tmp_path / "arm"), window=WINDOW, batch_size=5).load_state_dict(state)
    for told in ("the dataset", "the number of windows (saved 40, here 47)", "open the dataset at the version it had"):
        assert told in str(refused.value)
    again = Loader(sl.open(tmp_path / "arm", version=pinned.version), window=WINDOW, batch_size=5)
    again.load_state_dict(state)
    assert len(again) == 5
