"""Frames in batches, against frames decoded in sequence and against the windows of single sequences."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

import seqlake as sl
from seqlake import media
from seqlake.errors import CorruptFrameError, DamagedTableError, MissingDependencyError, SchemaMismatchError
from seqlake.media.video.opening import VideoDecoder
from seqlake.training.frames import batch as module
from seqlake.training.frames.batch import Recycled
from seqlake.training.frames.decoding import THREADS, DecoderPool, Workers

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named
from .. import films  # noqa: TID252 - tests are no package that could be named

WINDOW = {"cam": range(-1, 2), "wrist": [-3, 0, 2, 5], "action": range(-1, 3)}


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    return films.arm(tmp_path_factory.mktemp("films"))


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert gone_within(30)


def decoding():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREADS)]


def gone_within(seconds):
    end = time.monotonic() + seconds
    while decoding() and time.monotonic() < end:
        time.sleep(0.01)
    return not decoding()


def samples(batches):
    for batch in batches:
        valid = batch.get("valid", np.ones(len(batch["start"]), bool))
        for k in np.flatnonzero(valid):
            yield {name: values[k] for name, values in batch.items()}


def by_hand(sequence_id, start, edges, size=None):
    """What `WINDOW` holds at one anchor, in whole numbers."""
    cam, wrist = films.EPISODES[int(sequence_id[-1])]
    made = {}
    for column, name, ratio in (("cam", cam, 1), ("wrist", wrist, 2)):
        moments = [start + offset for offset in WINDOW[column]]
        numbers = [moment // ratio for moment in moments]
        count = 0 if name is None else len(films.frames(name))
        there = [0 <= m < films.STEPS and n < count for m, n in zip(moments, numbers, strict=True)]
        made[column] = films.expected(name, numbers, there, edges, size)
    return made


@pytest.mark.sampled
@pytest.mark.parametrize("edges", ["pad", "clamp"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_windows_equal_frames_decoded_in_sequence(arm, edges, shuffle):
    loader = sl.Loader(arm, window=sl.Window(WINDOW, edges=edges), batch_size=9, shuffle=shuffle).tail("pad")
    seen = set()
    for sample in samples(loader):
        seen.add((sample["sequence_id"], int(sample["start"])))
        for column, (values, mask) in by_hand(sample["sequence_id"], int(sample["start"]), edges).items():
            assert sample[column].dtype == np.uint8
            assert_array_equal(sample[f"{column}_mask"], mask)
            assert_array_equal(sample[column], values)
    assert seen == {(f"ep_{n}", t) for n in range(5) for t in range(films.STEPS)}


def test_only_whole_windows_where_edges_are_dropped(arm):
    loader = sl.Loader(arm, window=sl.Window(WINDOW, edges="drop"), batch_size=4, shuffle=False)
    found = [(sample["sequence_id"], int(sample["start"])) for sample in samples(loader)]
    whole = [
        (f"ep_{n}", t)
        for n in range(5)
        for t in range(1, films.STEPS - 2)
        if all(mask.all() for _, mask in by_hand(f"ep_{n}", t, "drop").values())
    ]
    assert found == whole
    assert len({name for name, _ in whole}) == 3  # two episodes lack a camera
    batch = next(iter(loader))
    assert batch["cam_mask"].all()
    assert batch["wrist_mask"].all()


@pytest.mark.parametrize("edges", ["pad", "clamp"])
def test_a_sequences_window_is_what_training_sees(arm, edges):
    window = sl.Window({"cam": range(3), "wrist": range(3), "action": range(3)}, stride=3, edges=edges)
    for sample in samples(sl.Loader(arm, window=window, batch_size=16, seed=2).tail("pad")):
        start = int(sample["start"])
        alone = arm[sample["sequence_id"]].window(start, start + 3, columns=[*window.columns], edges=edges)
        for name, values in alone.items():
            assert_array_equal(sample[name], values)
    before = arm["ep_2"].window(-2, 2, columns=["cam"], edges=edges)
    assert before["cam_mask"].tolist() == [False, False, True, True]
    assert_array_equal(before["cam"][2:], films.frames("open")[:2])
    with pytest.raises(ValueError, match="'cam' has no step -2"):
        arm["ep_2"].window(-2, 2, columns=["cam"], edges="drop")


def test_selected_columns_and_rows_are_enough(arm):
    selection = arm.where(ids=["ep_0", "ep_4"]).select("cam")
    loader = sl.Loader(selection, window={"cam": range(2)}, batch_size=5, shuffle=False)
    assert len(loader.dataset()) == len(films.frames("b")) + len(films.frames("short"))  # counted
    last = loader.dataset()[-1]
    assert (last["sequence_id"], int(last["start"])) == ("ep_4", 32)
    assert last["cam_mask"].tolist() == [True, False]
    assert_array_equal(last["cam"][0], films.frames("short")[32])


def row_by_row(tmp_path, schema, rows, name="rows"):
    ds = sl.create(tmp_path / name, schema)
    ds.append([{"sequence_id": str(number), **row} for number, row in enumerate(rows)])
    return ds


@pytest.mark.parametrize("name", ["uneven", "half", "half, mkv"])
def test_at_another_rate_times_decide(tmp_path, name):
    films.write(tmp_path, [name])
    schema = sl.Schema({"action": sl.Trajectory(dim=1, fps=30), "cam": sl.Video(fps=15)})
    action = np.zeros((70, 1), np.float32)
    ds = row_by_row(tmp_path, schema, [{"action": action, "cam": sl.File(tmp_path / f"{name}.mp4")}])
    (batch,) = sl.Loader(ds, window={"action": [0], "cam": [0]}, batch_size=70, shuffle=False)
    shown = [round(30 * time) for time in films.times(name)]  # every clip stands on 1/30 s; mkv rounds to 1/1000
    assert len(set(shown)) == len(shown)
    for step in range(70):
        frame = max(k for k, at in enumerate(shown) if at <= step)
        there = step < shown[-1] + 2
        assert bool(batch["cam_mask"][step, 0]) == there
        assert_array_equal(batch["cam"][step, 0], films.frames(name)[frame] if there else 0)
    dropped = sl.Loader(ds, window=sl.Window({"action": [0], "cam": [0]}, edges="drop"), batch_size=1, shuffle=False)
    assert len(dropped) == min(70, shown[-1] + 2)


@pytest.mark.parametrize("edges", ["pad", "clamp"])
def test_time_stamps_decide_where_a_column_names_them(tmp_path, edges):
    films.write(tmp_path, ["small"])
    schema = sl.Schema(
        {
            "action": sl.Trajectory(dim=1, fps=10),
            "at": sl.Trajectory(dim=1, dtype=pa.float64()),
            "cam": sl.Video(timestamps="at"),
        }
    )
    at = np.array([3.0, 3.04, 3.31, 3.5, 3.55, 3.9, 4.0, 4.1, 4.2, 4.3, 4.4, 4.5])
    row = {"action": np.zeros((14, 1)), "at": at[:, None], "cam": sl.File(tmp_path / "small.mp4")}
    ds = row_by_row(tmp_path, schema, [row])
    window = sl.Window({"action": [0], "cam": [-1, 0]}, edges=edges)
    (batch,) = sl.Loader(ds, window=window, batch_size=14, shuffle=False)
    for step in range(14):
        latest = [
            max(k for k, t in enumerate(at) if round(1000 * (t - 3)) <= 100 * max(m, 0)) for m in (step - 1, step)
        ]
        there = [step > 0, True]
        assert batch["cam_mask"][step].tolist() == there
        for k in (0, 1):
            shown = there[k] or edges == "clamp"
            assert_array_equal(batch["cam"][step, k], films.frames("small")[latest[k]] if shown else 0)
        alone = ds["0"].window(step, step + 2, columns=["action", "cam"], edges=edges)
        assert_array_equal(alone["cam"][0], batch["cam"][step, 1])


def test_offsets_in_seconds(arm):
    window = {"cam": sl.seconds(-0.1, 0.1, every=0.05), "wrist": sl.seconds(0, 0.2, every=0.1)}
    (batch,) = sl.Loader(arm.where(ids=["ep_0"]), window=window, batch_size=40, shuffle=False)
    at = 20
    assert_array_equal(batch["cam"][at], films.frames("b")[[at - 3, at - 2, at, at + 1]])
    assert_array_equal(batch["wrist"][at], films.frames("half")[[10, 11]])


def test_without_a_clock_a_video_of_another_length_stands_alone(tmp_path):
    films.write(tmp_path, ["b"])
    schema = sl.Schema({"action": sl.Trajectory(dim=1), "cam": sl.Video()})
    ds = row_by_row(tmp_path, schema, [{"action": np.zeros((30, 1)), "cam": sl.File(tmp_path / "b.mp4")}])
    together = {"action": range(2), "cam": range(2)}
    with pytest.raises(SchemaMismatchError, match="30 and 40 steps.*no clock.*Declare the fps"):
        len(sl.Loader(ds, window=together, batch_size=4))
    with pytest.raises(SchemaMismatchError, match="no clock"):
        ds["0"].window(0, 2, columns=["action", "cam"])
    assert len(sl.Loader(ds, window={"cam": range(2)}, batch_size=1)) == 40
    given = sl.Loader(ds, window=sl.Window(together, clock=30), batch_size=40, shuffle=False)
    assert_array_equal(next(iter(given))["cam"][7], films.frames("b")[7:9])
    assert_array_equal(ds["0"].window(7, 9, columns=["cam"])["cam"], films.frames("b")[7:9])


def test_the_clock_is_that_of_the_video_whose_frames_are_as_many_as_the_steps(tmp_path):
    films.write(tmp_path, ["b", "half"])
    schema = sl.Schema({"action": sl.Trajectory(dim=1), "cam": sl.Video(fps=30), "wrist": sl.Video(fps=15)})
    row = {name: sl.File(tmp_path / f"{film}.mp4") for name, film in (("cam", "b"), ("wrist", "half"))}
    slow = row_by_row(tmp_path, schema, [{**row, "action": np.zeros((20, 1))}])
    loader = sl.Loader(slow, window={"action": [0], "cam": [0], "wrist": [0]}, batch_size=20, shuffle=False)
    assert loader.plan().clock.startswith("15 steps per second (fps of video 'wrist'")
    (batch,) = loader
    assert_array_equal(batch["wrist"][:, 0], films.frames("half"))
    assert_array_equal(batch["cam"][:, 0], films.frames("b")[::2])
    assert_array_equal(slow["0"].window(3, 4, columns=["cam"])["cam"][0], films.frames("b")[6])
    gone = row_by_row(tmp_path, schema, [{"action": np.zeros((20, 1)), "cam": "gone.mp4", "wrist": None}], "gone")
    plan = sl.Loader(gone, window={"action": [0], "wrist": [0]}, batch_size=1).plan()
    assert plan.clock.startswith("30 steps per second (the highest declared fps")
    assert "not counted" in plan.clock
    assert "gone.mp4" in plan.clock


def test_frames_are_scaled_and_turned_as_asked(arm):
    bare = sl.Loader(arm, window=WINDOW, batch_size=40, shuffle=False)
    loader = bare.frames(size=(24, 40))
    batch = next(iter(loader))
    assert batch["cam"].shape == (40, 3, 24, 40, 3)
    assert batch["wrist"].shape == (40, 4, 24, 40, 3)
    for start in (0, 17, 39):
        for column, (values, _) in by_hand("ep_0", start, "pad", (24, 40)).items():
            assert_array_equal(batch[column][start], values)
    turned = next(iter(bare.frames(size=(24, 40), layout="TCHW")))
    assert turned["cam"].shape == (40, 3, 3, 24, 40)
    assert turned["cam"].base is not None  # a view, not a copy
    assert turned["cam"].transpose(0, 1, 3, 4, 2).flags["C_CONTIGUOUS"]
    assert_array_equal(turned["cam"].transpose(0, 1, 3, 4, 2), batch["cam"])
    with pytest.raises(ValueError, match="height, width"):
        loader.frames(size=24)
    with pytest.raises(ValueError, match="THWC, TCHW"):
        loader.frames(layout="NCHW")
    with pytest.raises(ValueError, match="threads"):
        loader.frames(threads=0)


def test_a_device_needs_what_it_needs(arm):
    loader = sl.Loader(arm, window={"cam": [0]}, batch_size=1)
    wanted = (ValueError, "GPU") if find_spec("torchcodec") else (MissingDependencyError, "torchcodec")
    if find_spec("torchcodec") and find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
    with pytest.raises(wanted[0], match=wanted[1]):
        loader.frames(device="cuda:0")
    assert len(next(iter(loader.frames(device="cpu")))["cam"]) == 1


def test_frames_change_neither_order_nor_state(arm):
    def places(loader):
        return [list(zip(b["sequence_id"], b["start"].tolist(), strict=True)) for b in loader]

    bare = sl.Loader(arm, window={"action": range(3)}, batch_size=8, seed=5)
    filmed = sl.Loader(arm, window={"action": range(3), "cam": range(2)}, batch_size=8, seed=5)
    assert places(bare) == places(filmed.frames(size=(16, 24), threads=3))
    sizes = filmed.frames(size=(8, 8)).state_dict()
    assert sizes == filmed.state_dict()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_state_in_mid_epoch_continues_exactly(arm, threads):
    def loader():
        return sl.Loader(arm, window=WINDOW, batch_size=16, seed=9).frames(threads=threads)

    first = loader()
    whole = list(loader())
    for step, batch in enumerate(first):
        assert_array_equal(batch["cam"], whole[step]["cam"])
        assert first.state_dict() == loader().state_dict(steps=step + 1)  # what is decoded ahead does not count
        if step == 3:
            break
    other = loader()
    other.load_state_dict(first.state_dict())
    rest = list(other)
    assert len(rest) == len(whole) - 4
    for found, wanted in zip(rest, whole[4:], strict=True):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_array_equal(found[name], wanted[name])
    halves = [sl.Loader(arm, window=WINDOW, batch_size=8, seed=9, rank=rank, world_size=2) for rank in (0, 1)]
    both = [next(iter(half)) for half in halves]
    pairs = sorted(
        zip(
            np.concatenate([b["sequence_id"] for b in both]),
            *(np.concatenate([b[n] for b in both]).tolist() for n in ("start",)),
            strict=True,
        )
    )
    assert pairs == sorted(zip(whole[0]["sequence_id"], whole[0]["start"].tolist(), strict=True))


def test_a_loader_travels_as_a_description(arm):
    loader = sl.Loader(arm, window=WINDOW, batch_size=16, seed=1).frames(size=(16, 16))
    first = next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert_array_equal(next(iter(copy))["cam"], next(iter(loader))["cam"])
    loader.set_epoch(0)
    assert_array_equal(next(iter(loader))["wrist"], first["wrist"])
    windows = pickle.loads(pickle.dumps(loader.dataset()))
    assert_array_equal(windows[3]["cam"], loader.dataset()[3]["cam"])


def test_map_style_windows_hold_frames(arm):
    windows = sl.Loader(arm, window=WINDOW, batch_size=16).dataset()
    batch = windows.batch([77, 3, -1, 3])
    for place, (sequence_id, start) in enumerate([("ep_1", 37), ("ep_0", 3), ("ep_4", 39), ("ep_0", 3)]):
        for column, (values, mask) in by_hand(sequence_id, start, "pad").items():
            assert_array_equal(batch[column][place], values)
            assert_array_equal(batch[f"{column}_mask"][place], mask)


# ---- who decodes what, and when


@pytest.fixture
def reads(monkeypatch):
    """Every time that frames of a video are decoded: (file, frames)."""
    made = []
    real = VideoDecoder.planes

    def planes(self, indices, /):
        if len(indices):
            made.append((self._blob.location, list(dict.fromkeys(np.asarray(indices).tolist()))))
        return real(self, indices)

    monkeypatch.setattr(VideoDecoder, "planes", planes)
    return made


def test_frames_that_windows_of_a_batch_share_are_decoded_once(arm, reads):
    loader = sl.Loader(arm.where(ids=["ep_0"]), window={"cam": range(5)}, batch_size=12, shuffle=False)
    windows = loader.frames(threads=2).dataset()
    batch = windows.batch([3, 2, 1, 0, 3, 20])
    decoded = [frame for _, frames in reads for frame in frames]
    assert sorted(decoded) == [*range(8), *range(20, 25)]
    assert all(frames == sorted(frames) for _, frames in reads)
    for place, start in enumerate([3, 2, 1, 0, 3, 20]):
        assert_array_equal(batch["cam"][place], films.frames("b")[start : start + 5])


def test_frames_of_scattered_windows_are_written_where_they_belong(arm, monkeypatch):
    """Not into memory of their own, from which each picture would be copied once more."""
    monkeypatch.setattr(module.FrameStream, "scratch", lambda *_: pytest.fail("pictures are copied once more"))
    loader = sl.Loader(arm.where(ids=["ep_0"]), window={"cam": range(5)}, batch_size=12, shuffle=False)
    starts = [30, 2, 1, 30, 12]
    batch = loader.frames(threads=2).dataset().batch(starts)
    for place, start in enumerate(starts):
        assert_array_equal(batch["cam"][place], films.frames("b")[start : start + 5])


def test_one_file_is_dealt_to_several_threads_by_whole_groups_of_pictures(arm, reads):
    loader = sl.Loader(arm.where(ids=["ep_1"]), window={"cam": [0]}, batch_size=40, shuffle=False)
    batch = next(iter(loader.frames(threads=2)))
    assert_array_equal(batch["cam"][:, 0], films.frames("training"))
    parts = sorted(frames for _, frames in reads)
    assert parts == [list(range(16)), list(range(16, 32)), list(range(32, 40))]  # key frames every 8


def test_the_packet_indexes_that_a_table_keeps_are_used(arm, monkeypatch):
    from seqlake.media.video import indexing, opening

    monkeypatch.setattr(indexing, "index", lambda _: pytest.fail("a file was read to index it"))
    monkeypatch.setattr(opening, "_INDEXES", {})
    selection = sl.open(arm.location).where(ids=["ep_2", "ep_3"]).select("sequence_id", "action", "cam", "wrist")
    for sample in samples(sl.Loader(selection, window=WINDOW, batch_size=20)):
        values, _ = by_hand(sample["sequence_id"], int(sample["start"]), "pad")["wrist"]
        assert_array_equal(sample["wrist"], values)
    assert selection["ep_2"].window(0, 2, columns=["cam"])["cam_mask"].all()


def test_rows_that_share_a_file_share_its_decoding(tmp_path, reads):
    import pyarrow.parquet as pq

    films.write(tmp_path, ["b"])
    parts = [{"url": "b.mp4", "first_frame": 5, "num_frames": 9}, {"url": "b.mp4", "first_frame": 12, "num_frames": 8}]
    table = pa.table({"sequence_id": ["a", "b", "c"], "part": pa.array([*parts, None])})
    pq.write_table(table, tmp_path / "part.parquet")
    rows = sl.scan(tmp_path, column_types={"part": sl.Video(fps=30)})
    (batch,) = sl.Loader(rows, window={"part": range(-1, 2)}, batch_size=17, shuffle=False)
    assert sorted(frame for _, frames in reads for frame in frames) == list(range(5, 20))
    truth = films.frames("b")
    place = 0
    for first, count in ((5, 9), (12, 8)):
        for start in range(count):
            for k, offset in enumerate((-1, 0, 1)):
                there = 0 <= start + offset < count
                assert bool(batch["part_mask"][place, k]) == there
                assert_array_equal(batch["part"][place, k], truth[first + start + offset] if there else 0)
            place += 1
    assert_array_equal(rows["b"].window(-1, 2, columns=["part"])["part"][1:], truth[12:14])
    drop = sl.Loader(rows, window=sl.Window({"part": range(3)}, edges="drop"), batch_size=1, shuffle=False)
    assert len(drop) == 7 + 6


def test_the_next_batch_is_decoded_while_one_is_in_use(arm, reads):
    loader = sl.Loader(arm.where(ids=["ep_0"]), window={"cam": [0]}, batch_size=4, shuffle=False)
    batches = iter(loader)
    next(batches)
    end = time.monotonic() + 30
    while len({f for _, frames in reads for f in frames}) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    assert gone_within(30)
    assert sorted(f for _, frames in reads for f in frames) == list(range(8))  # this one and the next, no more
    assert loader.state_dict()["next_sample"] == 4
    assert_array_equal(next(batches)["cam"][:, 0], films.frames("b")[4:8])


def test_threads_end_with_the_pass_an_error_and_a_break(arm):
    loader = sl.Loader(arm, window=WINDOW, batch_size=16).frames(threads=3)
    for _ in loader:
        pass
    assert not decoding()
    batches = iter(loader)
    next(batches)
    batches.close()
    assert not decoding()
    for _ in loader:
        break
    loader.set_epoch(0)  # which ends the live iterator
    assert not decoding()
    for _ in loader:
        break
    assert gone_within(30)  # even if nobody says that it is over
    with pytest.raises(ZeroDivisionError):
        list(loader.map_batch(lambda batch: 1 / 0))
    assert gone_within(30)


def test_threads_end_with_tensors_that_are_closed(arm):
    pytest.importorskip("torch")
    tensors = iter(sl.Loader(arm, window=WINDOW, batch_size=16).frames(threads=3).torch())
    next(tensors)
    tensors.close()
    assert not decoding()


def test_a_wait_without_end_has_one(arm, monkeypatch):
    blocked = threading.Event()
    real = VideoDecoder.read
    monkeypatch.setattr(VideoDecoder, "read", lambda *a, **k: (blocked.wait(60), real(*a, **k))[1])
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    try:
        with pytest.raises(TimeoutError, match="were not decoded"):
            next(iter(sl.Loader(arm, window={"cam": [0]}, batch_size=2)))
    finally:
        blocked.set()


def test_sigint_ends_a_loop_over_frames_and_its_process(arm, interrupted):
    interrupted(f"""
import seqlake as sl
loader = sl.Loader(sl.open({str(arm.location)!r}), window={{"cam": range(8)}}, batch_size=8).frames(threads=3)""")


@pytest.mark.sampled
def test_a_program_may_end_while_frames_are_decoded(arm):
    script = f"""
import seqlake as sl
batches = iter(sl.Loader(sl.open({str(arm.location)!r}), window={{"cam": range(8)}}, batch_size=8).frames(threads=3))
next(batches)
"""
    for _ in range(3 if SOAK else 1):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _child(loader, live, connection):
    connection.send([int(batch["cam"].astype(np.int64).sum()) for batch in (next(live), next(iter(loader)))])
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_thread_crosses_a_fork(arm):
    loader = sl.Loader(arm, window=WINDOW, batch_size=16, seed=4)
    wanted = [
        int(batch["cam"].astype(np.int64).sum()) for batch in sl.Loader(arm, window=WINDOW, batch_size=16, seed=4)
    ]
    live = iter(loader)
    next(live)
    assert gone_within(30)  # forks and threads at the same moment are others' trouble too
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_child, args=(loader, live, there))
    process.start()
    assert here.poll(60), "the child hangs"
    assert here.recv() == [wanted[1], wanted[2]]
    process.join(30)
    assert process.exitcode == 0
    assert int(next(live)["cam"].astype(np.int64).sum()) == wanted[1]


def test_tensors_and_workers_give_the_same_frames(arm):
    torch = pytest.importorskip("torch")
    loader = sl.Loader(arm, window=WINDOW, batch_size=32, seed=6).frames(layout="TCHW")
    wanted = list(loader)
    loader.set_epoch(0)
    for batch, tensors in zip(wanted, loader.torch(), strict=True):
        assert tensors["cam"].dtype == torch.uint8
        assert_array_equal(tensors["cam"].numpy(), batch["cam"])
    loader.set_epoch(0)
    workers = torch.utils.data.DataLoader(loader.torch(), batch_size=None, num_workers=2, timeout=120)
    for batch, tensors in zip(wanted, workers, strict=True):
        assert_array_equal(tensors["cam"].numpy(), batch["cam"])
        assert_array_equal(tensors["wrist_mask"].numpy(), batch["wrist_mask"])


def test_the_memory_of_frames_is_used_again_once_nobody_has_them(arm):
    loader = sl.Loader(arm, window=WINDOW, batch_size=16, seed=3)
    wanted = [batch["cam"] for batch in loader]
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(wanted, 2))
    seen = Counter()
    for batch, frames in zip(sl.Loader(arm, window=WINDOW, batch_size=16, seed=3), wanted, strict=True):
        assert_array_equal(batch["cam"], frames)
        seen[batch["cam"].ctypes.data] += 1
        del batch
    assert len(seen) <= 3 < len(wanted)


@pytest.mark.parametrize(
    "kept", [lambda frames: frames[2:, 0], lambda frames: frames.transpose(0, 1, 4, 2, 3)[:1], memoryview]
)
def test_memory_of_which_somebody_has_any_part_is_left_alone(kept):
    memory, shape = Recycled(2), (4, 2, 8, 8, 3)
    held = []
    for number in range(6):
        frames = memory.empty(shape, np.dtype(np.uint8))
        frames[:] = number
        held.append(kept(frames))
        del frames
    assert [int(np.asarray(one).min()) for one in held] == [int(np.asarray(one).max()) for one in held] == [*range(6)]
    held.clear()
    first, second, third = (memory.empty(shape, np.dtype(np.uint8)) for _ in range(3))
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(second, third)


def test_memory_serves_any_shape_and_type_that_fit_and_grows_where_none_does():
    memory, byte = Recycled(1), np.dtype(np.uint8)
    memory.empty((10,), byte)
    large = memory.empty((10_000,), byte).ctypes.data
    assert memory.empty((60, 100), byte).ctypes.data == large
    assert memory.empty((3000,), np.dtype(np.uint16)).ctypes.data == large
    assert memory.empty((0, 5), byte).shape == (0, 5)


def test_a_pool_closes_what_lies_there_longest():
    class Decoder:
        closed = False

        def close(self):
            self.closed = True

    pool, made = DecoderPool(most=2), []

    def opened():
        made.append(Decoder())
        return made[-1]

    for key in ("a", "b", "a", "c"):
        with pool.use(key, opened):
            pass
    assert len(made) == 3
    assert [one.closed for one in made] == [False, True, False]
    with pytest.raises(ZeroDivisionError), pool.use("a", opened):
        1 / 0
    assert made[0].closed
    with pool.use("a", opened), pool.use("a", opened):
        pass
    assert len(made) == 5


def test_workers_do_first_what_is_needed_first():
    workers, done, gate = Workers(1), [], threading.Event()
    workers.put(0, lambda: gate.wait(30))
    for need in (3, 1, 2):
        workers.put(need, lambda need=need: done.append(need))
    workers.put(4, lambda: (done.append("end"), gate.clear()))
    gate.set()
    assert gone_within(30)
    assert done == [1, 2, 3, "end"]
    workers.close()
    workers.put(0, lambda: done.append("late"))
    assert gone_within(30)
    assert done[-1] == "end"


# ---- what goes wrong


def test_frames_of_several_sizes_need_one(tmp_path):
    films.write(tmp_path, ["b", "small"])
    schema = sl.Schema({"cam": sl.Video(fps=30)})
    ds = row_by_row(tmp_path, schema, [{"cam": sl.File(tmp_path / f"{name}.mp4")} for name in ("b", "small")])
    loader = sl.Loader(ds, window={"cam": [0]}, batch_size=52, shuffle=False)
    with pytest.raises(SchemaMismatchError, match=r"Sequence '1', column 'cam' .*48 high and 64 wide.*frames\(size="):
        next(iter(loader))
    (batch,) = loader.frames(size=(32, 32))
    assert_array_equal(batch["cam"][40:, 0], films.frames("small", (32, 32)))


def test_a_video_that_is_gone_or_damaged_is_named(tmp_path):
    films.write(tmp_path, ["b", "training"])
    schema = sl.Schema({"cam": sl.Video(fps=30), "action": sl.Trajectory(dim=1)})
    action = np.zeros((40, 1), np.float32)
    rows = [{"cam": sl.File(tmp_path / f"{name}.mp4"), "action": action} for name in ("b", "training")]
    ds = row_by_row(tmp_path, schema, rows)
    loader = sl.Loader(ds, window={"cam": [0], "action": [0]}, batch_size=8, shuffle=False)
    path = tmp_path / "rows" / ds["1"]["cam"].reference
    whole = path.read_bytes()
    damaged = bytearray(whole)
    place = media.open(ds["1"]["cam"].source()).packets.offset[20]
    damaged[place + 5] ^= 0xFF
    path.write_bytes(damaged)
    batches = iter(sl.Loader(ds, window={"cam": [0], "action": [0]}, batch_size=8, shuffle=False))
    for _ in range(7):
        next(batches)  # up to frame 15 of the second: other groups of pictures
    with pytest.raises(CorruptFrameError, match=r"Sequence '1', column 'cam', frames 16 to 23 \(files/cam/"):
        next(batches)
    path.unlink()
    loader = sl.Loader(ds, window={"cam": [0], "action": [0]}, batch_size=40, shuffle=False)
    batches = iter(loader)
    assert_array_equal(next(batches)["cam"][:, 0], films.frames("b"))
    with pytest.raises(DamagedTableError, match=r"Sequence '1', column 'cam'.*not there.*validate"):
        next(batches)


def test_of_several_errors_it_is_always_the_same_one(tmp_path):
    schema = sl.Schema({"cam": sl.Video(fps=30), "action": sl.Trajectory(dim=1)})
    rows = [{"cam": f"gone-{k}.mp4", "action": np.zeros((1, 1))} for k in range(12)]
    ds = row_by_row(tmp_path, schema, rows)
    for threads in (1, 4, 4, 4):
        loader = sl.Loader(ds, window={"cam": [0], "action": [0]}, batch_size=12, seed=1).frames(threads=threads)
        with pytest.raises(DamagedTableError, match=r"gone-0\.mp4"):
            next(iter(loader))


def test_columns_without_frames_are_refused_by_name(tmp_path):
    schema = sl.Schema({"still": sl.Image(), "sound": sl.Audio(sample_rate=8000)})
    ds = row_by_row(tmp_path, schema, [{"still": "a.png", "sound": "a.wav"}])
    with pytest.raises(SchemaMismatchError, match="'still'.*no steps"):
        len(sl.Loader(ds, window={"still": range(2)}, batch_size=1))
    with pytest.raises(ValueError, match="'sound' is sound, but the dataset has no clock"):
        len(sl.Loader(ds, window={"sound": range(2)}, batch_size=1))
    (batch,) = sl.Loader(ds, window={"still": None}, batch_size=1)
    assert batch["still"].tolist() == ["a.png"]


def test_the_plan_knows_frames_and_normalise_leaves_them_alone(arm, tmp_path):
    loader = sl.Loader(arm, window=WINDOW, batch_size=16)
    text = str(loader.plan())
    assert "cam: 3 frames, the clock's rate" in text
    assert "wrist: 4 frames, 1/2 samples a clock step" in text
    assert loader.plan().clock == "30 steps per second (the highest declared fps, of column 'cam')"  # some are shorter
    declared = sl.Schema({"cam": sl.Video(fps=30, resolution=[96, 64])})
    films.write(tmp_path, ["small"])
    ds = row_by_row(tmp_path, declared, [{"cam": sl.File(tmp_path / "small.mp4")}])
    assert sl.Loader(ds, window={"cam": range(2)}, batch_size=5).plan().batch_bytes == 5 * 2 * 96 * 64 * 3
    scaled, plain = next(iter(loader.normalize(sl.statistics(arm)))), next(iter(loader))
    assert scaled["cam"].dtype == np.uint8
    assert_array_equal(scaled["cam"], plain["cam"])
    assert not np.array_equal(scaled["action"], plain["action"])


def test_frames_on_an_object_store(s3_bucket, tmp_path):
    at = f"{s3_bucket.uri}/arm"
    films.arm(tmp_path, at=at, storage=s3_bucket.storage)
    ds = sl.open(at, storage=s3_bucket.storage)
    for sample in samples(sl.Loader(ds, window=WINDOW, batch_size=20, seed=8).tail("pad")):
        for column, (values, mask) in by_hand(sample["sequence_id"], int(sample["start"]), "pad").items():
            assert_array_equal(sample[f"{column}_mask"], mask)
            assert_array_equal(sample[column], values)
