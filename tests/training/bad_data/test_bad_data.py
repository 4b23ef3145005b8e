"""Bad data while training: batches keep their shape, the rest is delivered as ever, and each event is in the ledger."""

from __future__ import annotations

import errno
import json
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal
from torch.utils.data import DataLoader

import seqlake as sl
from seqlake import media
from seqlake.errors import BadDataError, CorruptFileError, DamagedTableError, DecodeError, SchemaMismatchError
from seqlake.files.stores import open_store
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.training.bad_data.damage import BadSample, is_damage
from seqlake.training.order import Shuffle
from seqlake.training.randomness import Substitutes

from ...media.test_image import png  # noqa: TID252 - tests are no package that could be named
from .. import faulty, films  # noqa: TID252 - the same

WINDOW = {"action": range(-1, 3), "obs_state": [0], "task": None}


def by_name(loader: sl.Loader) -> list[dict[str, Any]]:
    """Every sample as a dict, in the order of delivery."""
    return [{name: values[k] for name, values in batch.items()} for batch in loader for k in range(len(batch["start"]))]


def same(sample, other, names):
    for name in names:
        assert_array_equal(sample[name], other[name])


# ---- shards


@pytest.fixture
def stored(tmp_path):
    """Twenty episodes of 30 steps in four shards, and what every window of them is."""
    schema = sl.Schema({"task": pa.string(), "action": sl.Trajectory(dim=2), "obs_state": sl.Trajectory(dim=3)})
    with sl.create(tmp_path / "arm", schema).writer(rows_per_shard=5) as writer:
        for number in range(20):
            steps = np.arange(30, dtype=np.float32)[:, None] + 100 * number
            writer.add(f"ep_{number:02d}", task="pick", action=steps + np.arange(2), obs_state=steps + np.arange(3))
    return sl.open(tmp_path / "arm")


def shard_file(ds, number):
    return sorted((root_of(ds) / "data").rglob("*.parquet"))[number]


def root_of(ds):
    return Path(ds.location)


def clean(ds, **options):
    """Samples by sequence and anchor, before anything is damaged."""
    loader = sl.Loader(ds, window=WINDOW, batch_size=10, shuffle=False, **options)
    return {(sample["sequence_id"], int(sample["start"])): sample for sample in by_name(loader)}


GONE = {f"ep_{n:02d}" for n in range(5, 10)}


@pytest.mark.parametrize("damage", ["gone", "cut short", "another file", "its end"])
def test_a_shard_that_cannot_be_read_is_masked(stored, damage):
    expected = clean(stored)
    ids = [(f"ep_{n:02d}", t) for n in range(20) for t in range(30)]
    path = shard_file(stored, 1)
    if damage == "gone":
        path.unlink()
    else:
        whole = path.read_bytes()
        ends = {"cut short": b"", "another file": bytes(len(whole)), "its end": b"\xff" * 60 + whole[-40:]}
        path.write_bytes((whole[:-100] + ends[damage])[-len(whole) :])
        stored = sl.open(stored.location)
    loader = sl.Loader(stored, window=WINDOW, batch_size=64, shuffle=False).on_error("mask", budget=150)
    found = by_name(loader)
    assert len(found) == 10 * 64  # with the repetitions that fill the last batch
    for (name, start), sample in zip(ids, found, strict=False):
        assert sample["valid"] == (name not in GONE)
        assert sample["start"] == start
        if name in GONE:
            assert sample["sequence_id"] is None
            assert not sample["action_mask"].any()
            assert not sample["action"].any()
            assert not sample["task_mask"]
        else:
            same(sample, expected[name, start], expected[name, start])
    assert not any(sample["valid"] for sample in found[600:])
    assert len(loader.ledger) == 150
    assert loader.ledger.bad(0) == 150
    first = loader.ledger[0]
    assert (first.sequence_id, first.column, first.epoch, first.sample, first.start) == (None, "", 0, 150, 0)
    assert first.file == path.name
    assert first.error.startswith("DamagedTableError: " if damage in ("gone", "cut short") else "CorruptFileError: ")
    assert first.action == "masked"
    with pytest.raises((DamagedTableError, CorruptFileError)):
        list(loader.on_error("raise"))


@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=3, block=40)])
def test_substitutes_stand_where_bad_samples_were(stored, shuffle):
    expected = clean(stored)
    before = by_name(sl.Loader(stored, window=WINDOW, batch_size=50, shuffle=shuffle, seed=3))
    shard_file(stored, 1).unlink()
    loader = sl.Loader(stored, window=WINDOW, batch_size=50, shuffle=shuffle, seed=3).on_error(
        "substitute", budget=None
    )
    after = by_name(loader)
    assert len(after) == len(before) == 600
    for sample, old in zip(after, before, strict=True):
        name = sample["sequence_id"]
        if old["sequence_id"] in GONE:
            if shuffle is not True and not sample["substituted"]:  # a block may hold nothing but bad samples
                assert not sample["valid"]
                continue
            assert sample["substituted"]
            assert name not in GONE
        else:
            assert not sample["substituted"]
            assert (name, sample["start"]) == (old["sequence_id"], old["start"])
        assert sample["valid"]
        same(sample, expected[name, int(sample["start"])], expected[name, int(sample["start"])].keys() - {"valid"})
    assert sorted((entry.start, entry.action) for entry in loader.ledger) == sorted(
        (old["start"], "substituted" if sample["substituted"] else "masked")
        for sample, old in zip(after, before, strict=True)
        if old["sequence_id"] in GONE
    )
    assert sum(sample["substituted"] for sample in after) > 50


def test_substitutes_depend_on_the_sample_alone(stored):
    shard_file(stored, 1).unlink()

    def keys(loader):
        return [
            [(str(s), int(t)) for s, t in zip(b["sequence_id"], b["start"], strict=True)]
            for b in loader.on_error("substitute", budget=None)
        ]

    one = keys(sl.Loader(stored, window=WINDOW, batch_size=60, seed=1))
    for world in (2, 3):
        ranks = [
            keys(sl.Loader(stored, window=WINDOW, batch_size=60 // world, seed=1, rank=rank, world_size=world))
            for rank in range(world)
        ]
        for step, whole in enumerate(one):
            assert sorted(key for rank in ranks for key in rank[step]) == sorted(whole)
    small = keys(sl.Loader(stored, window=WINDOW, batch_size=12, seed=1))
    assert [key for batch in small for key in batch] == [key for batch in one for key in batch]
    loader = sl.Loader(stored, window=WINDOW, batch_size=60, seed=1).on_error("substitute", budget=None)
    for _, _batch in zip(range(4), loader, strict=False):
        state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    resumed = sl.Loader(stored, window=WINDOW, batch_size=60, seed=1).on_error("substitute", budget=None)
    resumed.load_state_dict(state)
    assert keys(resumed) == one[4:]
    assert keys(pickle.loads(pickle.dumps(sl.Loader(stored, window=WINDOW, batch_size=60, seed=1)))) == one
    assert keys(sl.Loader(stored, window=WINDOW, batch_size=60, seed=2)) != one


@pytest.mark.parametrize("lanes", [1, 3])
def test_substitutes_lie_in_the_same_lane_and_block(lanes):
    choice = Substitutes(samples=1000, shuffle=Shuffle(lanes=lanes, block=20), seed=0)
    numbers = np.arange(1000)
    found = choice.of(np.zeros(1000, np.int64), numbers)
    assert ((found >= 0) & (found < 1000)).all()
    assert_array_equal(found % lanes, np.broadcast_to((numbers % lanes)[:, None], found.shape))
    block = numbers // lanes // 20
    assert_array_equal(found // lanes // 20, np.broadcast_to(block[:, None], found.shape))
    assert len(np.unique(found)) > 990
    again = choice.of(np.zeros(3, np.int64), np.array([5, 999, 7]))
    assert_array_equal(again, found[[5, 999, 7]])
    assert (choice.of(np.ones(1000, np.int64), numbers) != found).any()


def test_bytes_of_decoded_shards_are_checked_and_those_read_in_place_are_not(readable, arm):
    schema, rows = arm([20] * 12)
    window = {"action": [0], "obs_state": [0]}

    def damaged(kind):
        source = readable(schema, rows, shards=3, kind=kind)
        before = by_name(sl.Loader(source, window=window, batch_size=12, shuffle=False))
        path = Path(source.parts[1].shard.blob.location)
        data = bytearray(path.read_bytes())
        place = data.find(np.ascontiguousarray(rows[5]["action"][7]).tobytes()) if kind == "parquet" else len(data) // 4
        assert place > 0
        data[place + 2] ^= 0xFF
        path.write_bytes(data)
        fresh = readable_again(source)
        loader = sl.Loader(fresh, window=window, batch_size=12, shuffle=False).on_error("mask", budget=None)
        return before, by_name(loader), loader.ledger

    before, after, ledger = damaged("archive")
    bad = {entry.sample for entry in ledger}
    assert bad
    assert bad <= set(range(80, 160))
    for k, (sample, old) in enumerate(zip(after, before, strict=True)):
        assert sample["valid"] == (k not in bad)
        if k not in bad:
            same(sample, old, ["action", "obs_state", "action_mask", "obs_state_mask"])
    assert {entry.column for entry in ledger} <= {"action", "obs_state", ""}
    before, after, ledger = damaged("parquet")
    assert not len(ledger)  # `seqlake validate` compares checksums; windows are copied as they lie
    assert sum(bool((s["action"] != o["action"]).any()) for s, o in zip(after, before, strict=True)) == 1


def readable_again(source):
    from seqlake.files.local import LocalBlob
    from seqlake.shards.columns import Columns
    from seqlake.shards.files import parquet_shard

    parts = [Columns(parquet_shard(LocalBlob(part.shard.blob.location)), source.schema, {}) for part in source.parts]
    return replace(source, parts=parts)


# ---- cells


@pytest.mark.sampled
@pytest.mark.parametrize("fault", ["ragged", "null step", "null number"])
@pytest.mark.parametrize("policy", ["mask", "substitute"])
def test_a_bad_cell_costs_its_own_row_only(readable, fault, policy):
    schema = Schema({"task": pa.string(), "action": Trajectory(), "obs_state": Trajectory()})
    rows: list[dict[str, Any]] = [
        {
            "sequence_id": f"ep_{k}",
            "task": "pick",
            "action": np.full((6, 2), k, np.float32).tolist(),
            "obs_state": np.full((6, 3), k, np.float32).tolist(),
        }
        for k in range(8)
    ]
    rows[3]["action"][2] = {"ragged": [1.0, 2.0, 3.0], "null step": None, "null number": [1.0, None]}[fault]
    source = readable(schema, rows, shards=2, kind="arrow")
    window = {"action": [0], "obs_state": [0]}
    with pytest.raises(SchemaMismatchError):
        list(sl.Loader(source, window=window, batch_size=8, shuffle=False))
    loader = sl.Loader(source, window=window, batch_size=8, shuffle=False).on_error(policy, budget=6)
    found = by_name(loader)
    assert len(found) == 48
    for k, sample in enumerate(found):
        row = k // 6
        if row != 3:
            assert sample["valid"]
            assert sample["action"].tolist() == [[row, row]]
            assert sample["obs_state"].tolist() == [[row] * 3]
        elif policy == "mask":
            assert not sample["valid"]
            assert not sample["action_mask"].any()
            assert not sample["action"].any()
            assert sample["obs_state"].tolist() == [[3] * 3]  # that column is whole
            assert sample["sequence_id"] == "ep_3"
        else:
            assert sample["valid"]
            assert sample["substituted"]
            assert sample["action"][0, 0] == sample["obs_state"][0, 0] == int(sample["sequence_id"][3:]) != 3
    assert [(e.sequence_id, e.column, e.sample, e.start) for e in loader.ledger] == [
        ("ep_3", "action", 18 + t, t) for t in range(6)
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_whole_sequences(readable, packed):
    schema = Schema({"action": Trajectory(dim=2)})
    rows: list[dict[str, Any]] = [{"sequence_id": f"ep_{k}", "action": [[k, k]] * (k + 1)} for k in range(6)]
    rows[2]["action"] = [[2, 2], None, [2, 2]]
    source = readable(schema, rows, shards=2, kind="arrow")
    loader = sl.Loader(source, window=sl.Whole(["action"], packed=packed), batch_size=6, shuffle=False)
    (batch,) = loader.on_error("mask", budget=1)
    assert batch["valid"].tolist() == [True, True, False, True, True, True]
    lengths = np.diff(batch["action_offsets"]) if packed else batch["action_length"]
    assert lengths.tolist() == [1, 2, 0, 4, 5, 6]
    (batch,) = loader.on_error("substitute", budget=1)
    assert batch["valid"].all()
    assert batch["substituted"].tolist() == [False, False, True, False, False, False]
    lengths = np.diff(batch["action_offsets"]) if packed else batch["action_length"]
    assert lengths.tolist() == [int(name[3:]) + 1 for name in batch["sequence_id"]]


# ---- frames


@pytest.fixture
def filmed(tmp_path):
    """Five videos of 40 frames with 40 steps, a row each; `path(k)` is the file of one."""
    films.write(tmp_path, ["training"])
    schema = sl.Schema({"cam": sl.Video(fps=30), "action": sl.Trajectory(dim=1)})
    with sl.create(tmp_path / "filmed", schema).writer() as writer:
        for number in range(5):
            action = np.arange(40, dtype=np.float32)[:, None] + 100 * number
            writer.add(str(number), cam=sl.File(tmp_path / "training.mp4"), action=action)
    return sl.open(tmp_path / "filmed")


def damaged_film(ds, name, frame=20):
    """Spoil one packet; the frames that cannot be decoded by themselves any more."""
    view = ds[name]["cam"]
    path = root_of(ds) / view.reference
    data = bytearray(path.read_bytes())
    data[media.open(view.source()).packets.offset[frame] + 5] ^= 0xFF
    path.write_bytes(data)
    bad = set()
    for number in range(40):
        try:
            media.open(sl.open(ds.location)[name]["cam"].source()).read(np.array([number]))
        except DecodeError:
            bad.add(number)
    assert bad
    assert bad != set(range(40))
    return bad


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("threads", [1, 3])
def test_only_the_frames_that_cannot_be_decoded_are_masked(filmed, threads):
    bad = damaged_film(filmed, "2")
    (root_of(filmed) / filmed["4"]["cam"].reference).unlink()
    loader = sl.Loader(filmed, window={"cam": [-1, 0], "action": [0]}, batch_size=16, seed=5)
    loader = loader.frames(threads=threads).on_error("mask", budget=0.5)
    seen = 0
    for sample in by_name(loader.tail("pad")):
        name, start = sample["sequence_id"], int(sample["start"])
        there = np.array([start > 0, True])
        ill = [name == "4" or (name == "2" and t in bad) for t in (start - 1, start)] & there
        assert_array_equal(sample["cam_mask"], there & ~ill)
        for place, moment in enumerate((start - 1, start)):
            right = films.frames("training")[moment] if sample["cam_mask"][place] else 0
            assert_array_equal(sample["cam"][place], np.broadcast_to(right, sample["cam"][place].shape))
        assert sample["action"].tolist() == [[start + 100 * int(name)]]
        if seen < 200:
            assert sample["valid"] == (not ill.any())
        seen += 1
    assert seen == 208
    touched = {t for t in range(40) if t in bad or t - 1 in bad}
    expected = sorted([("2", t) for t in touched] + [("4", t) for t in range(40)])
    assert sorted((entry.sequence_id, entry.start) for entry in loader.tail("pad").ledger) == []  # each loader its own
    again = loader.tail("pad")
    list(again)
    assert sorted((entry.sequence_id, entry.start) for entry in again.ledger) == expected
    assert {entry.column for entry in again.ledger} == {"cam"}
    assert again.ledger.files[filmed["4"]["cam"].reference] == 40


def test_other_windows_stand_in_for_damaged_frames(filmed):
    bad = damaged_film(filmed, "2")
    (root_of(filmed) / filmed["4"]["cam"].reference).unlink()

    def delivered(batch_size, **options):
        loader = sl.Loader(filmed, window={"cam": [0], "action": [0]}, batch_size=batch_size, seed=5, **options)
        loader = loader.frames(layout="TCHW").reuse_buffers().on_error("substitute", budget=0.5)
        found = []
        for batch in loader:
            assert batch["valid"].all()
            for k in range(batch_size):
                name, start = batch["sequence_id"][k], int(batch["start"][k])
                assert name != "4"
                assert name != "2" or start not in bad
                assert_array_equal(batch["cam"][k, 0].transpose(1, 2, 0), films.frames("training")[start])
                assert batch["action"][k, 0, 0] == start + 100 * int(name)
                found.append((name, start, bool(batch["substituted"][k])))
        return found, loader

    found, loader = delivered(20)
    assert sum(substituted for *_, substituted in found) == 40 + len(bad) == len(loader.ledger)
    assert {entry.action for entry in loader.ledger} == {"substituted"}
    assert {(entry.sequence_id, entry.start) for entry in loader.ledger} == {
        *(("4", t) for t in range(40)),
        *(("2", t) for t in bad),
    }
    assert delivered(40)[0] == found
    assert delivered(8)[0] == found


def test_an_image_of_another_size_or_none_at_all_is_a_bad_item(tmp_path):
    schema = sl.Schema({"pic": sl.Image(frames="bytes"), "action": sl.Trajectory(dim=1)})
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (4, 5, 16, 16, 3), dtype=np.uint8)
    with sl.create(tmp_path / "pics", schema).writer() as writer:
        for number in range(4):
            cells = [png(one, 2) for one in pictures[number]]
            if number == 1:
                cells[2] = cells[2][:40]
                cells[4] = png(np.zeros((8, 8, 3), np.uint8), 2)
            writer.add(str(number), pic=cells, action=np.zeros((5, 1), np.float32))
    loader = sl.Loader(sl.open(tmp_path / "pics"), window={"pic": [0]}, batch_size=20, shuffle=False)
    loader = loader.on_error("mask", budget=2)
    (batch,) = loader
    assert np.flatnonzero(~batch["valid"]).tolist() == [7, 9]
    assert np.flatnonzero(~batch["pic_mask"][:, 0]).tolist() == [7, 9]
    expected = pictures.reshape(20, 16, 16, 3).copy()
    expected[[7, 9]] = 0
    assert_array_equal(batch["pic"][:, 0], expected)
    assert [entry.error.split(":")[0] for entry in loader.ledger][1] == "SchemaMismatchError"


def test_map_style_windows_follow_the_policy(filmed):
    (root_of(filmed) / filmed["4"]["cam"].reference).unlink()
    loader = sl.Loader(filmed, window={"cam": [0], "action": [0]}, batch_size=20).on_error("mask", budget=2)
    windows = loader.dataset()
    assert [bool(sample["valid"]) for sample in windows.__getitems__([3, 165, 100, 165, 170])] == [1, 0, 1, 0, 0]
    assert len(loader.ledger) == 3
    with pytest.raises(BadDataError, match="3 of 200 samples"):
        windows[171]


# ---- budget and ledger


def test_a_budget_ends_the_run(stored):
    shard_file(stored, 1).unlink()
    loader = sl.Loader(stored, window=WINDOW, batch_size=20, seed=1)
    for budget, allowed in ((0, 0), (7, 7), (0.05, 30), (0.0, 0), (0.001, 1)):
        own = loader.on_error("mask", budget=budget)
        with pytest.raises(BadDataError, match=rf"^{allowed + 1} of 600 samples .* tolerates {allowed}\..*parquet"):
            list(own)
        assert own.ledger.bad(0) == allowed + 1
        assert len(own.ledger) == allowed + 1
    with pytest.raises(BadDataError, match=r"budget=0\.01.* tolerates 6"):
        list(loader.on_error("mask"))
    whole = loader.on_error("mask", budget=150)
    for _ in range(3):  # of every epoch, not of all together
        list(whole)
    assert len(whole.ledger) == 450
    assert whole.ledger.bad(2) == 150
    half = sl.Loader(stored, window=WINDOW, batch_size=10, seed=1, rank=0, world_size=2).on_error("mask", budget=0.01)
    with pytest.raises(BadDataError, match="4 of 300 samples"):
        list(half)


def test_a_ledger_reads_like_one(stored):
    loader = sl.Loader(stored, window=WINDOW, batch_size=20, shuffle=False).on_error("mask", budget=None)
    assert str(loader.ledger) == "No bad samples."
    shard_file(stored, 1).unlink()
    batch = next(iter(loader))
    assert batch["valid"].all()
    list(loader)
    ledger = loader.ledger
    assert len([*ledger]) == len(ledger) == 150
    assert all(isinstance(entry, BadSample) for entry in ledger)
    assert "150 bad, in part-" in str(ledger)
    assert "150 times every column: DamagedTableError" in repr(ledger)
    assert "epoch 0, sample 150 (a sequence of part-" in str(ledger[0])
    assert not loader.on_error("mask").ledger.files


@pytest.mark.parametrize("budget", [-1, 1.5, -0.1, True, "few"])
def test_a_budget_is_a_count_or_a_fraction(stored, budget):
    with pytest.raises(ValueError, match="on_error budget: expected a count"):
        sl.Loader(stored, window=WINDOW, batch_size=20).on_error("mask", budget=budget)


def test_a_policy_is_one_of_three(stored):
    with pytest.raises(ValueError, match="expected one of raise, mask, substitute, found 'skip'"):
        sl.Loader(stored, window=WINDOW, batch_size=20).on_error("skip")


def test_good_data_are_delivered_as_ever(stored):
    plain = sl.Loader(stored, window=WINDOW, batch_size=32, seed=4)
    for policy in ("mask", "substitute"):
        for batch, own in zip(plain, plain.on_error(policy, budget=0), strict=True):
            assert own.keys() - batch.keys() == {"valid"} | ({"substituted"} if policy == "substitute" else set())
            assert own["valid"].all()
            same(own, batch, batch)
        plain.set_epoch(0)


def test_where_nothing_can_be_read_nothing_is_made_up(stored):
    for number in range(4):
        shard_file(stored, 0).unlink()
        assert number < 4
    with pytest.raises(DamagedTableError, match="No shard can be read"):
        list(sl.Loader(stored, window=WINDOW, batch_size=32).on_error("mask", budget=None))


@pytest.mark.sampled
@pytest.mark.parametrize("shuffle", [True, False, Shuffle(lanes=2, block=100)])
@pytest.mark.parametrize("policy", ["mask", "substitute"])
def test_shards_that_come_through_a_cache(readable, arm, tmp_path, shuffle, policy):
    schema, rows = arm([50] * 80)
    source = readable(schema, rows, shards=8, kind="archive")
    clean = {
        (sample["sequence_id"], int(sample["start"])): sample
        for sample in by_name(sl.Loader(source, window={"action": range(3)}, batch_size=40, shuffle=False))
    }
    path = Path(source.parts[2].shard.blob.location)
    data = bytearray(path.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    path.write_bytes(data)
    source = readable_again(source)
    options = {"window": {"action": range(3)}, "batch_size": 40, "shuffle": shuffle, "seed": 2}
    loader = sl.Loader(source, cache=sl.Cache(tmp_path / "cache"), **options).on_error(policy, budget=None)
    in_memory = sl.Loader(source, **options).on_error(policy, budget=None)
    for _ in range(2):
        for sample, other in zip(by_name(loader), by_name(in_memory), strict=True):
            same(sample, other, other)
            if sample["valid"]:
                same(sample, clean[sample["sequence_id"], int(sample["start"])], ["action", "action_mask"])
    assert len(loader.ledger) == len(in_memory.ledger) >= 1000
    assert [entry.sample for entry in loader.ledger] == [entry.sample for entry in in_memory.ledger]


# ---- what is no damage


@dataclass
class Failing:
    """A shard that cannot be opened at the moment."""

    shard: Any
    error: Exception

    def __getattr__(self, name):
        return getattr(self.shard, name)

    def open(self):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no answer"),
        ConnectionResetError(errno.ECONNRESET, "reset"),
        OSError(errno.EIO, "the store failed"),
        OSError(errno.EMFILE, "too many open files"),
        PermissionError(errno.EACCES, "not yours"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_be_gone_tomorrow_is_raised(readable, arm, error):
    schema, rows = arm([10] * 6)
    source = readable(schema, rows, shards=2)
    source.parts[1] = Failing(source.parts[1], error)
    loader = sl.Loader(source, window={"action": [0]}, batch_size=10, shuffle=False).on_error("mask", budget=None)
    with pytest.raises(type(error)):
        list(loader)
    assert not len(loader.ledger)


def test_damage_that_a_broken_line_caused_is_none():
    def read():
        try:
            raise ConnectionResetError(errno.ECONNRESET, "reset")
        except ConnectionResetError:
            raise CorruptFileError("half a file") from None

    with pytest.raises(CorruptFileError) as raised:
        read()
    assert not is_damage(raised.value)
    assert is_damage(CorruptFileError("half a file"))
    assert is_damage(FileNotFoundError(2, "not there"))
    assert not is_damage(KeyError("a"))


def test_a_video_that_times_out_is_raised(filmed, monkeypatch):
    from seqlake.media.video.opening import VideoDecoder

    real = VideoDecoder.read

    def read(self, frames, **options):
        if len(frames):
            raise TimeoutError("no answer")
        return real(self, frames, **options)

    monkeypatch.setattr(VideoDecoder, "read", read)
    loader = sl.Loader(filmed, window={"cam": [0]}, batch_size=20).on_error("substitute", budget=None)
    with pytest.raises(TimeoutError):
        next(iter(loader))


def test_an_error_of_the_users_function_is_raised(stored):
    def fail(_batch):
        raise DecodeError("mine")

    loader = sl.Loader(stored, window=WINDOW, batch_size=20).map_batch(fail).on_error("mask", budget=None)
    with pytest.raises(DecodeError, match="mine"):
        next(iter(loader))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("fault", ["reset", "503", "truncate"])
def test_a_store_that_fails_is_no_bad_data_and_a_missing_object_is(s3_bucket, tmp_path, monkeypatch, fault):
    monkeypatch.setattr("seqlake.files.remote._RETRIES", {"max_retries": 0})
    films.write(tmp_path, ["training"])
    at = f"{s3_bucket.uri}/filmed"
    schema = sl.Schema({"cam": sl.Video(fps=30), "action": sl.Trajectory(dim=1)})
    with sl.create(at, schema, storage=s3_bucket.storage).writer() as writer:
        for name in ("0", "1"):
            action = np.zeros((40, 1), np.float32)
            writer.add(name, cam=sl.File(tmp_path / "training.mp4"), action=action)
    with faulty.Proxy(s3_bucket.storage["endpoint"]) as proxy:
        ds = sl.open(at, storage={**s3_bucket.storage, "endpoint": proxy.url})
        gone = ds["1"]["cam"].reference
        loader = sl.Loader(ds, window={"cam": [0], "action": [0]}, batch_size=20, shuffle=False)
        loader = loader.on_error("mask", budget=40)
        proxy.rule = lambda path, span, n: fault if gone in path else None
        batches = iter(loader)
        with pytest.raises(OSError, match=r"."):
            list(batches)
        assert not len(loader.ledger)
        proxy.rule = faulty.always_well
        open_store(at, storage=s3_bucket.storage).delete([gone])
        loader.set_epoch(0)
        assert [batch["valid"].all() for batch in loader] == [True, True, False, False]
        assert loader.ledger.files == {gone: 40}


# ---- mixtures


@pytest.mark.parametrize("policy", ["mask", "substitute"])
def test_in_a_mixture_substitutes_come_from_the_same_source(readable, policy):
    schema = Schema({"action": Trajectory()})

    def rows(first, bad):
        cells: list[Any] = [[[first + k, t] for t in range(10)] for k in range(8)]
        cells[bad][5] = [1.0, 2.0, 3.0]
        return [{"sequence_id": f"{first}-{k}", "action": cell} for k, cell in enumerate(cells)]

    sources = {
        "left": (replace(readable(schema, rows(0, 3), shards=2, kind="arrow"), fingerprint="left"), 3),
        "right": (replace(readable(schema, rows(100, 6), shards=2, kind="arrow"), fingerprint="right"), 1),
    }
    loader = sl.Loader(sl.Mix(sources), window={"action": [0]}, batch_size=16, seed=1).on_error(policy, budget=None)
    counts = {"left": 0, "right": 0}
    bad = 0
    for sample in by_name(loader):
        source = sample["mix_source"]
        counts[source] += 1
        ill = sample["sequence_id"] in {"0-3", "100-6"}
        bad += (not sample["valid"]) if policy == "mask" else bool(sample["substituted"])
        if policy == "mask":
            assert sample["valid"] == (not ill)
        else:
            assert sample["valid"]
            assert not ill
        if not ill:
            row = int(sample["sequence_id"].split("-")[1]) + 100 * (source == "right")
            assert sample["action"].tolist() == [[row, sample["start"]]]
    assert counts["left"] == 3 * counts["right"]
    assert bad == len(loader.ledger) > 0
    assert {entry.sequence_id for entry in loader.ledger} == {"0-3", "100-6"}
    report = loader.report()
    assert report.samples == sum(counts.values())
    assert report.nbytes.keys() == {"memory"}


def test_in_groups_with_weights_substitutes_come_from_the_same_group(readable):
    schema = Schema({"task": pa.string(), "action": Trajectory()})
    cells: list[Any] = [[[k, t] for t in range(10)] for k in range(8)]
    cells[3][5] = [1.0, 2.0, 3.0]
    rows = [{"sequence_id": f"{k}", "task": "ab"[k % 2], "action": cell} for k, cell in enumerate(cells)]
    source = readable(schema, rows, shards=2, kind="arrow")
    loader = sl.Loader(source, window={"action": [0], "task": None}, batch_size=10, seed=1).weights("task")
    found = by_name(loader.on_error("substitute", budget=None))
    assert sum(sample["substituted"] for sample in found) == 10
    assert all(sample["task"] == "b" and sample["sequence_id"] != "3" for sample in found if sample["substituted"])
    assert sum(sample["task"] == "b" for sample in found) * 2 == len(found)


def test_frames_of_a_mixture(filmed, tmp_path):
    (root_of(filmed) / filmed["4"]["cam"].reference).unlink()
    mix = sl.Mix({"first": (filmed[:2], 1), "last": (filmed[2:], 1)})
    loader = sl.Loader(mix, window={"cam": [0], "action": [0]}, batch_size=20, seed=5)
    for sample in by_name(loader.on_error("substitute", budget=None)):
        assert sample["valid"]
        name, start = sample["sequence_id"], int(sample["start"])
        assert (name in "01") == (sample["mix_source"] == "first")
        assert_array_equal(sample["cam"][0], films.frames("training")[start])
    masked = loader.on_error("mask", budget=None)
    assert all(sample["valid"] == (sample["sequence_id"] != "4") for sample in by_name(masked))
    assert masked.report().frames_decoded > 0


def test_a_mixture_through_a_cache(readable, arm, tmp_path):
    schema, rows = arm([50] * 80)
    source = readable(schema, rows, shards=8, kind="archive")
    path = Path(source.parts[2].shard.blob.location)
    data = bytearray(path.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    path.write_bytes(data)
    source = readable_again(source)
    mix = sl.Mix({"all": (source, 2), "again": (replace(source, fingerprint="dataset 2"), 1)})
    options = {"window": {"action": range(3)}, "batch_size": 40, "seed": 2}
    loader = sl.Loader(mix, cache=sl.Cache(tmp_path / "cache"), **options).on_error("substitute", budget=None)
    in_memory = sl.Loader(mix, **options).on_error("substitute", budget=None)
    for sample, other in zip(by_name(loader), by_name(in_memory), strict=True):
        same(sample, other, other)
    assert [entry.sample for entry in loader.ledger] == [entry.sample for entry in in_memory.ledger]
    assert loader.report().nbytes["cache"] > 0


@pytest.mark.parametrize("policy", ["mask", "substitute"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_worker_processes_met_is_collected(stored, policy):
    shard_file(stored, 1).unlink()
    loader = sl.Loader(stored, window=WINDOW, batch_size=50, seed=3).on_error(policy, budget=0.3)
    list(loader)
    alone = sorted(map(str, loader.ledger))
    assert len(alone) == 150
    loader = loader.on_error(policy, budget=0.3)
    next(iter(loader))  # a forked worker begins with a ledger that is not empty
    before = len(loader.ledger)
    loader.set_epoch(0)
    context = "fork" if hasattr(os, "fork") else "spawn"
    workers = DataLoader(loader.torch(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=60)
    for batch in workers:
        loader.ledger.collect(batch)
        assert "ledger" not in batch
        loader.ledger.collect(batch)  # nothing is left
    assert sorted([*map(str, loader.ledger)][before:]) == alone
    loader.set_epoch(0)
    strict = loader.on_error(policy, budget=100)  # each worker meets fewer
    workers = DataLoader(strict.torch(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=60)
    with pytest.raises(BadDataError, match="101 of 600"):
        for batch in workers:
            strict.ledger.collect(batch)
