"""Recording: a take is there whole or not at all, whatever ends it, and leaves no file and no thread behind."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.dataset import opening
from seqlake.dataset.writing import waiting
from seqlake.dataset.writing.ingest import File
from seqlake.errors import (
    BacklogFullError,
    CommitConflictError,
    DuplicateSequenceError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.media import Encoding, VideoEncoder
from seqlake.spec.column_types import Image, Trajectory, Video
from seqlake.spec.schema import Column, Schema

SCHEMA = Schema(
    {
        "task": pa.string(),
        "success": pa.bool_(),
        "length": pa.int64(),
        "action": Trajectory(dim=3, fps=30),
        "gripper": Column("gripper", pa.list_(pa.float32()), Trajectory()),
        "cam": Video(fps=30),
        "wrist": Video(fps=15),
        "stills": Image(format="png", frames="bytes"),
    }
)
WAITING = 18  # sixteen in the queue, one in the encoder, one at the door


def picture(number: int, *, height: int = 48, width: int = 64) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    waves = np.stack([x + 5 * number, y + 3 * number, x - y + number], axis=-1)
    return (128 + 100 * np.sin(waves / 47)).astype(np.uint8)


def step(number: int) -> dict[str, object]:
    return {"action": np.full(3, number), "gripper": number / 2, "cam": picture(number)}


def video(path: Path) -> tuple[np.ndarray, list[Fraction]]:
    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    rgb = [f.reformat(format="rgb24", src_colorspace="ITU709", threads=1).to_ndarray() for f in frames]
    return np.stack(rgb), [f.pts * f.time_base for f in frames]


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    return float(np.mean((found.astype(float) - expected) ** 2)) < 20  # 35 dB


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def encoders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("seqlake-encode")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    opening.create(tmp_path / "ds", SCHEMA)
    return tmp_path / "ds"


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not encoders()


# ---- a take


def test_a_take_is_a_row_like_any_other(root: Path) -> None:
    ds = opening.open(root)
    buffers = {"action": np.empty(3), "cam": np.empty((48, 64, 3), np.uint8)}
    with ds.writer() as writer:
        writer.add("before", task="added, not committed")
        with writer.record("ep", task="pick") as take:
            for k in range(40):
                buffers["action"][:] = k
                buffers["cam"][:] = picture(k)
                take.add(gripper=k / 2, **buffers)  # the same memory at each step
                if k % 2 == 0:
                    take.add(wrist=picture(100 + k))
            take.set(success=True)
            assert take.steps == 40
            assert len(opening.open(root)) == 0
        assert [row.id for row in opening.open(root)] == ["ep"]
        assert take.version == ds.version
        assert "committed, 40 steps" in repr(take)
    row = next(r for r in pq.read_table(root / "data").to_pylist() if r["sequence_id"] == "ep")
    assert (row["task"], row["success"], row["length"]) == ("pick", True, 40)
    assert row["action"] == [[k, k, k] for k in range(40)]
    assert row["gripper"] == [k / 2 for k in range(40)]
    assert row["stills"] is None
    cam, times = video(root / row["cam"])
    assert times == [Fraction(k, 30) for k in range(40)]
    assert near(cam, np.stack([picture(k) for k in range(40)]))
    wrist, times = video(root / row["wrist"])
    assert times == [Fraction(k, 15) for k in range(20)]
    assert near(wrist, np.stack([picture(100 + k) for k in range(0, 40, 2)]))
    assert [row.id for row in opening.open(root)] == ["ep", "before"]
    assert ds.validate(depth="files").ok
    assert not list((root / "_seqlake" / "staged").iterdir())


def test_files_of_a_take_are_kept_by_collection(root: Path) -> None:
    ds = opening.open(root)
    with ds.writer() as writer, writer.record("ep") as take:
        take.add(**step(0))
    before = files_in(root)
    ds.vacuum(older_than=timedelta(0))
    assert {n for n in before if n.startswith("files/")} == {n for n in files_in(root) if n.startswith("files/")}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("raw", [False, True])
def test_long_takes_of_every_kind_of_signal(raw: bool, tmp_path: Path) -> None:
    schema = Schema(
        {
            "pose": Trajectory(dim=9, shape=(3, 3), dtype=pa.float64(), encoding="raw" if raw else None),
            "free": Trajectory(dtype=pa.int16()),
        }
    )
    poses = np.random.default_rng(0).normal(size=(2500, 3, 3))
    ds = opening.create(tmp_path / "ds", schema)
    with ds.writer() as writer, writer.record("ep") as take:
        for k, pose in enumerate(poses):
            take.add(pose=pose, free=[k, -k])
    assert np.array_equal(ds["ep"]["pose"], poses)
    assert np.array_equal(ds["ep"]["free"], np.stack([np.arange(2500), -np.arange(2500)], axis=1))


def test_images_of_a_take(tmp_path: Path) -> None:
    schema = Schema({"inline": Image(frames="bytes"), "stills": Image(frames="files"), "x": Trajectory(dim=1)})
    ds = opening.create(tmp_path / "ds", schema)
    (tmp_path / "given.png").write_bytes(b"given")
    with ds.writer() as writer, writer.record("ep") as take:
        for k in range(5):
            take.add(inline=picture(k), stills=picture(k), x=[k])
        take.add(inline=b"encoded", stills=File(tmp_path / "given.png"), x=[5])
    row = ds.to_arrow().to_pylist()[0]
    for k in range(5):
        for data in (row["inline"][k], (tmp_path / "ds" / row["stills"][k]).read_bytes()):
            (tmp_path / "one.png").write_bytes(data)
            with av.open(str(tmp_path / "one.png")) as container:
                assert np.array_equal(next(container.decode(video=0)).to_ndarray(format="rgb24"), picture(k))
    assert row["inline"][5] == b"encoded"
    assert (tmp_path / "ds" / row["stills"][5]).read_bytes() == b"given"


def test_two_takes_at_once(root: Path) -> None:
    ds = opening.open(root)
    with ds.writer() as writer, writer.record("one") as one, writer.record("two") as two:
        for k in range(3):
            one.add(**step(k))
            two.add(**step(10 + k))
    assert {row.id: row["action"][0, 0] for row in opening.open(root)} == {"one": 0, "two": 10}


def test_columns_with_times_of_their_own(tmp_path: Path) -> None:
    times = Column("t", pa.list_(pa.int64()), Trajectory())
    schema = Schema({"x": Trajectory(dim=1, fps=10), "force": Trajectory(dim=2, timestamps="t"), "t": times,
                     "length": pa.int64()})  # fmt: skip
    ds = opening.create(tmp_path / "ds", schema)
    with ds.writer() as writer, writer.record("ep") as take:
        take.add(force=[1, 2], t=5)
        take.add(x=[0.0])
        with pytest.raises(SchemaMismatchError, match="expected the columns force, t, found force"):
            take.add(force=[1, 2])
        take.add(force=[3, 4], t=6, x=[1.0])
        take.add(force=[5, 6], t=7)
    row = ds.to_arrow().to_pylist()[0]
    assert (row["t"], row["length"], len(row["x"]), row["force"][2]) == ([5, 6, 7], 2, 2, [5, 6])


def test_a_camera_with_times_of_its_own(tmp_path: Path) -> None:
    schema = Schema({"x": Trajectory(dim=1, fps=10), "cam": Video(timestamps="t"), "length": pa.int64(),
                     "t": Column("t", pa.list_(pa.float64()), Trajectory())})  # fmt: skip
    ds = opening.create(tmp_path / "ds", schema)
    seconds = [10.0, 10.05, 10.0625, 11.5]
    with ds.writer() as writer, writer.record("ep") as take:
        for k, at in enumerate(seconds):
            take.add(cam=picture(k), t=at)
            with pytest.raises(ValidationError, match="column 'cam': expected a frame at least 1/90000"):
                take.add(cam=picture(k), t=at)
            take.add(x=[float(k)])
            with pytest.raises(SchemaMismatchError, match="expected the columns cam, t, found cam"):
                take.add(cam=picture(k))
    found, shown = video(tmp_path / "ds" / ds["ep"]["cam"].reference)
    assert near(found, np.stack([picture(k) for k in range(4)]))
    assert shown == [0, Fraction(1, 20), Fraction(1, 16), Fraction(3, 2)]
    assert (ds["ep"]["t"].tolist(), ds["ep"]["length"]) == (seconds, 4)


def test_a_take_on_a_bucket(s3_bucket) -> None:
    ds = opening.create(f"{s3_bucket.uri}/ds", SCHEMA, storage=s3_bucket.storage)
    with ds.writer() as writer:
        with writer.record("ep") as take:
            for k in range(5):
                take.add(**step(k))
        with pytest.raises(ZeroDivisionError), writer.record("lost") as take:
            take.add(**step(0))
            1 / 0
    again = opening.open(f"{s3_bucket.uri}/ds", storage=s3_bucket.storage)
    names = [name for name, _ in again.table.store.list("")]
    cam = again.select("cam").to_arrow().column(0).to_pylist()
    assert [name for name in names if name.startswith("files/")] == cam
    data = bytes(again.table.store.blob(cam[0]).view() or again.table.store.blob(cam[0]).ranges(
        np.array([0]), np.array([again.table.store.blob(cam[0]).size]))[0])  # fmt: skip
    assert data.index(b"moov") < data.index(b"mdat")


# ---- steps that do not fit


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"action": [0, 0, 0]}, "step 3: expected the columns action, gripper, cam, found action"),
        ({**step(3), "stills": picture(3)}, "expected the columns action, gripper, cam, found .*cam, stills"),
        ({**step(3), "actoin": 1}, "actoin: is not in the schema.*did you mean 'action'"),
        ({}, "expected the columns of a step, found none"),
        ({**step(3), "action": [0, 0]}, r"step 3, column 'action': expected one step of shape \[3\], found \[2\]"),
        ({**step(3), "action": np.zeros((4, 3))}, r"expected one step of shape \[3\], found \[4, 3\]"),
        ({**step(3), "action": [[1], 2, 3]}, r"expected numbers of shape \[3\], found list"),
        ({**step(3), "action": None}, r"expected numbers of shape \[3\], found NoneType"),
        ({**step(3), "action": "abc"}, "column 'action'"),
        ({**step(3), "gripper": [1.0]}, r"expected one step of shape \[\], found \[1\]"),
        (
            {**step(3), "cam": picture(3, width=66)},
            "step 3, column 'cam': expected frames of 64x48 pixels, found 66x48",
        ),
        ({**step(3), "cam": None}, "expected a frame as uint8"),
        ({**step(3), "task": "pick"}, r"column 'task' \(scalar\) has no steps|expected the columns"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_the_take_goes_on(columns: dict, message: str, root: Path) -> None:
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(3):
            take.add(**step(k))
        with pytest.raises((SchemaMismatchError, ValidationError), match=f"(?s){message}"):
            take.add(**columns)
        take.add(**step(3))
    row = pq.read_table(root / "data").to_pylist()[0]
    assert row["action"] == [[k] * 3 for k in range(4)]
    assert len(video(root / row["cam"])[0]) == row["length"] == 4


def test_a_first_step_that_does_not_fit(root: Path) -> None:
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        with pytest.raises(SchemaMismatchError, match="found float64"):
            take.add(cam=np.zeros((4, 4, 3)), stills=picture(0))
        with pytest.raises(SchemaMismatchError, match=r"'task' \(scalar\) has no steps.*writer.record\(..., task="):
            take.add(task="pick")
        take.add(action=[1, 2, 3])
    row = pq.read_table(root / "data").to_pylist()[0]
    assert (row["action"], row["cam"], row["stills"]) == ([[1, 2, 3]], None, None)


def test_columns_that_may_not_be_null_are_asked_for_at_the_first_step(tmp_path: Path) -> None:
    needed = Column("y", pa.list_(pa.list_(pa.float32())), Trajectory(dim=1), nullable=False)
    ds = opening.create(tmp_path / "ds", Schema({"x": Trajectory(dim=1), "y": needed}))
    with ds.writer() as writer, writer.record("ep") as take:
        with pytest.raises(SchemaMismatchError, match="expected the columns x, y, found x"):
            take.add(x=[0])
        take.add(x=[0], y=[1])


def test_steps_without_a_declared_width_are_equally_long(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"x": Trajectory()}))
    with ds.writer() as writer, writer.record("ep") as take:
        take.add(x=[1, 2])
        with pytest.raises(SchemaMismatchError, match="expected 2 numbers as before, found 3"):
            take.add(x=[1, 2, 3])
    assert ds["ep"]["x"].tolist() == [[1, 2]]


def test_cells_that_grow_too_large_are_told_before_the_take_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqlake.dataset.writing.recording.LARGEST_CELL", 40)
    monkeypatch.setattr("seqlake.dataset.writing.encoding.LARGEST_CELL", 4000)
    ds = opening.create(tmp_path / "ds", Schema({"x": Trajectory(dim=2), "stills": Image(frames="bytes")}))
    with ds.writer() as writer:
        with writer.record("signal") as take:
            for k in range(5):
                take.add(x=[k, k])
            with pytest.raises(ValidationError, match="column 'x': a cell may have 1 GiB.*segments"):
                take.add(x=[5, 5])
        with pytest.raises(ValidationError, match="'stills': a cell may have 1 GiB"), writer.record("images") as take:
            for k in range(100):
                take.add(stills=picture(k))
    assert [row.id for row in opening.open(tmp_path / "ds")] == ["signal"]


def test_frames_of_the_whole_take(root: Path) -> None:
    with opening.open(root).writer() as writer, writer.record("ep", cam=[picture(k) for k in range(3)]) as take:
        with pytest.raises(SchemaMismatchError, match="cam was set for the whole take already"):
            take.add(action=[1, 2, 3], cam=picture(0))
        take.add(action=[1, 2, 3])
    row = pq.read_table(root / "data").to_pylist()[0]
    assert (row["length"], len(video(root / row["cam"])[0])) == (1, 3)
    assert not list((root / "_seqlake" / "staged").iterdir())


def test_cells_of_the_whole_take_are_checked_at_once(root: Path) -> None:
    before = files_in(root)
    with opening.open(root).writer() as writer:
        with pytest.raises(SchemaMismatchError, match="expected bool"), writer.record("ep", success="yes"):
            raise AssertionError("never recorded")
        with pytest.raises(SchemaMismatchError, match="taks: is not in the schema"), writer.record("ep", taks="x"):
            raise AssertionError("never recorded")
        assert files_in(root) == before
        with writer.record("ep", task="pick") as take:
            take.add(**step(0))
            with pytest.raises(SchemaMismatchError, match="expected bool"):
                take.set(success="yes")
            with pytest.raises(SchemaMismatchError, match="cam comes step by step already"):
                take.set(cam="s3://b/cam.mp4")
            take.set(task="place", success=False)
    row = pq.read_table(root / "data").to_pylist()[0]
    assert (row["task"], row["success"]) == ("place", False)


def test_ids(root: Path) -> None:
    ds = opening.open(root)
    with ds.writer() as writer:
        writer.add("added", task="x")
        for one in ("added", "", 3):
            with pytest.raises((ValidationError, SchemaMismatchError), match="sequence_id"):
                writer.record(one)
        writer.commit()
    already = pytest.raises(DuplicateSequenceError, match="'added' is in the dataset already")
    with ds.writer() as writer, already, writer.record("added"):
        raise AssertionError("never recorded")
    before = files_in(root)
    lost = pytest.raises((CommitConflictError, DuplicateSequenceError), match="'raced'")
    with ds.writer() as writer, lost, writer.record("raced") as take:
        take.add(**step(0))
        opening.open(root).append([{"sequence_id": "raced"}])
    left = {n for n in files_in(root) if n.startswith(("files/", "_seqlake/staged/"))}
    assert left == {n for n in before if n.startswith(("files/", "_seqlake/staged/"))}


# ---- takes that end badly


class Mishap(Exception):
    pass


def test_an_exception_discards_the_take_and_nothing_else(root: Path) -> None:
    ds = opening.open(root)
    before = files_in(root)
    with ds.writer() as writer:
        with pytest.raises(Mishap), writer.record("ep") as take:
            for k in range(30):
                take.add(**step(k), stills=picture(k))
            raise Mishap
        assert files_in(root) == before
        assert take.version is None
        with pytest.raises(SeqlakeError, match="is discarded"):
            take.add(**step(0))
        with writer.record("ep") as take:  # the id is free again
            take.add(**step(0))
    assert [row.id for row in opening.open(root)] == ["ep"]


def test_a_take_can_be_given_up(root: Path) -> None:
    before = files_in(root)
    with opening.open(root).writer() as writer:
        with writer.record("ep") as take:
            take.add(**step(0))
            take.discard()
        assert take.version is None
        with writer.record("kept") as take:
            take.add(**step(0))
        with pytest.raises(SeqlakeError, match="committed already"):
            take.discard()
    assert [row.id for row in opening.open(root)] == ["kept"]
    assert {n for n in before if n.startswith("data/")} < set(files_in(root))


def test_a_take_without_steps_is_none(root: Path) -> None:
    before = files_in(root)
    empty = pytest.raises(ValidationError, match="at least one step")
    with opening.open(root).writer() as writer, empty, writer.record("ep", task="pick"):
        pass
    assert files_in(root) == before


def test_takes_are_used_once_and_in_a_with_block(root: Path) -> None:
    with opening.open(root).writer() as writer:
        take = writer.record("ep")
        with pytest.raises(SeqlakeError, match="begins with `with`"):
            take.add(**step(0))
        with take:
            take.add(**step(0))
        with pytest.raises(SeqlakeError, match="used already"), take:
            raise AssertionError("never recorded")


@pytest.mark.parametrize(("bad", "number"), [(0, errno.ENOSPC), (5, errno.EDQUOT), (29, errno.ENOSPC)])
def test_an_encoders_error_is_raised_where_the_steps_are_added(
    bad: int, number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one of the next steps, or at the end of the take."""
    real = VideoEncoder.write

    def failing(self, frame, **rest) -> None:
        if self.frames == bad:
            raise OSError(number, os.strerror(number))
        real(self, frame, **rest)

    monkeypatch.setattr(VideoEncoder, "write", failing)
    before = files_in(root)
    full = pytest.raises(OSError, match="No space is left in .*free some")
    with full as error, opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(30):
            take.add(**step(k))
    assert error.value.errno == number
    assert files_in(root) == before


def test_an_encoders_error_that_was_caught_still_loses_the_take(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self, frame, **rest) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(VideoEncoder, "write", failing)
    before = files_in(root)
    with pytest.raises(OSError, match="broken"), opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(30):
            with suppress(OSError):
                take.add(**step(k))
    assert files_in(root) == before


def test_frames_are_checked_against_those_that_still_wait(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, release = VideoEncoder.write, threading.Event()

    def waiting(self, frame, **rest) -> None:
        release.wait()
        real(self, frame, **rest)

    monkeypatch.setattr(VideoEncoder, "write", waiting)
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        take.add(cam=picture(0))
        with pytest.raises(SchemaMismatchError, match="expected frames of 64x48 pixels, found 66x48"):
            take.add(cam=picture(1, width=66))
        release.set()
    assert len(video(root / pq.read_table(root / "data").to_pylist()[0]["cam"])[0]) == 1


def test_a_slow_encoder_holds_the_steps_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, added, ahead = VideoEncoder.write, [], []

    def slow(self, frame, **rest) -> None:
        time.sleep(0.001)
        ahead.append(len(added) - self.frames)
        real(self, frame, **rest)

    monkeypatch.setattr(VideoEncoder, "write", slow)
    buffer = np.empty((48, 64, 3), np.uint8)
    waits = opening.open(root).writer(on_full="wait", spill_bytes=0)
    with waits as writer, writer.record("ep") as take:
        for k in range(100):
            buffer[:] = picture(k)  # the same memory, while frames before it still wait
            take.add(cam=buffer)
            added.append(k)
    assert len(ahead) == 100
    assert max(ahead) <= WAITING
    found, _ = video(root / pq.read_table(root / "data").to_pylist()[0]["cam"])
    assert near(found, np.stack([picture(k) for k in range(100)]))


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch):
    """Every encoder stands still; Ctrl-C comes when the queue is full, and only then they go on."""
    real, release, over, added = VideoEncoder.write, threading.Event(), threading.Event(), []

    def wait(self, frame, **rest) -> None:
        release.wait()
        real(self, frame, **rest)

    def press() -> None:
        before = -1
        # Full, and nothing has moved for a while: the caller waits inside a step, and not between two.
        while len(added) < WAITING - 1 or before != len(added):
            before = len(added)
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        release.set()
        while not over.wait(5):  # one that falls into a callback of the interpreter is lost
            os.kill(os.getpid(), signal.SIGINT)

    def record(take) -> None:
        finger.start()
        try:
            while True:
                take.add(cam=picture(0))
                added.append(1)
        finally:
            over.set()

    monkeypatch.setattr(VideoEncoder, "write", wait)
    finger = threading.Thread(target=press)
    yield record
    finger.join()


def test_ctrl_c_while_waiting_for_the_encoder(root: Path, stuck) -> None:
    before = files_in(root)
    with (
        pytest.raises(KeyboardInterrupt),
        opening.open(root).writer(on_full="wait", spill_bytes=0) as writer,
        writer.record("ep") as take,
    ):
        stuck(take)
    assert not encoders()
    assert files_in(root) == before


def test_a_step_that_was_interrupted_loses_the_take(root: Path, stuck) -> None:
    """Whoever catches Ctrl-C in the block must not commit half a step."""
    before = files_in(root)
    broken = pytest.raises(SeqlakeError, match="is broken")
    with (
        broken,
        opening.open(root).writer(on_full="wait", spill_bytes=0) as writer,
        writer.record("ep") as take,
        suppress(KeyboardInterrupt),
    ):
        stuck(take)
    assert files_in(root) == before


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch):
    """No encoder goes on before it is opened."""
    real, release = VideoEncoder.write, threading.Event()

    def wait(self, frame, **rest) -> None:
        release.wait()
        real(self, frame, **rest)

    monkeypatch.setattr(VideoEncoder, "write", wait)
    yield release
    release.set()


def spilled_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.tmp") if path.stat().st_size]


def test_a_robot_does_not_wait_for_an_encoder(root: Path, gate: threading.Event) -> None:
    """All steps are added while no encoder moves: half in memory, the rest on disk, in their order."""
    buffer = np.empty((48, 64, 3), np.uint8)
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(200):
            buffer[:] = picture(k)
            take.add(cam=buffer, action=np.full(3, k))
            if k == 100:
                take.add(wrist=picture(7))
        assert take.spilled >= 180 * buffer.nbytes
        assert spilled_files(root)
        gate.set()
    assert not spilled_files(root)
    row = pq.read_table(root / "data").to_pylist()[0]
    assert near(video(root / row["cam"])[0], np.stack([picture(k) for k in range(200)]))
    assert [step[0] for step in row["action"]] == list(range(200))


def test_a_disk_that_is_full_is_seen_before_the_first_frame_goes_there(
    root: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting.shutil, "disk_usage", lambda _: SimpleNamespace(free=waiting._LEFT))
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        with suppress(BacklogFullError):
            for k in range(30):
                take.add(cam=picture(k), action=np.full(3, k))
        spilled = spilled_files(root)
        gate.set()
    assert take.steps in {16, 17}  # sixteen in memory, and one in the encoder if it was quick enough to take it
    assert not spilled


def test_frames_on_disk_come_and_go_in_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders that are slow in turns, parts that are read while more is written."""
    monkeypatch.setattr(waiting, "_PART", 5 * 48 * 64 * 3)
    real, rng = VideoEncoder.write, random.Random(3)

    def slow(self, frame, **rest) -> None:
        if rng.random() < 0.1:
            time.sleep(0.05)
        real(self, frame, **rest)

    monkeypatch.setattr(VideoEncoder, "write", slow)
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(400):
            take.add(cam=picture(k), stills=picture(k)[:4, :4])
        assert take.spilled
    row = pq.read_table(root / "data").to_pylist()[0]
    assert near(video(root / row["cam"])[0], np.stack([picture(k) for k in range(400)]))
    assert not spilled_files(root)


def test_a_full_backlog_is_an_error_and_the_take_goes_on(root: Path, gate: threading.Event) -> None:
    nbytes = picture(0).nbytes
    with opening.open(root).writer(spill_bytes=3 * nbytes) as writer, writer.record("ep") as take:
        with pytest.raises(BacklogFullError, match=r"step 20: frames of cam come faster") as caught:
            for k in range(30):
                take.add(cam=picture(k), action=np.full(3, k))
        assert "ultrafast" in str(caught.value.hint)
        assert take.steps == 20  # one in the encoder, sixteen in memory, three on disk
        gate.set()
        while True:
            with suppress(BacklogFullError):
                take.add(cam=picture(20), action=np.full(3, 20))
                break
    row = pq.read_table(root / "data").to_pylist()[0]
    assert near(video(root / row["cam"])[0], np.stack([picture(k) for k in range(21)]))
    assert len(row["action"]) == 21


def test_dropped_frames_leave_the_others_at_their_times(tmp_path: Path, gate: threading.Event) -> None:
    times = Trajectory(dim=1, dtype=pa.float64())
    schema = Schema({"action": Trajectory(dim=1, fps=10), "cam": Video(timestamps="t"), "t": times})
    ds = opening.create(tmp_path / "ds", schema)
    with ds.writer(on_full="drop", spill_bytes=0) as writer, writer.record("ep") as take:
        for k in range(40):
            take.add(action=[k], cam=picture(k), t=[k / 10])
            if k == 29:
                gate.set()
                while len(take._tracks["cam"]._waiting):
                    time.sleep(0.01)
        dropped = take.dropped["cam"]
    assert 12 <= dropped <= 14
    assert f"{dropped} frames of cam dropped" in repr(take)
    row = ds["ep"]
    kept = np.asarray(row["t"])[:, 0]
    assert len(row["action"]) == 40
    assert len(kept) == len(row["cam"]) == 40 - dropped
    np.testing.assert_allclose(row["cam"].seconds, kept, atol=1e-4)
    for place, moment in enumerate(kept):
        assert near(row["cam"][place], picture(round(moment * 10)))
    assert ds.validate(depth="decode").ok


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"cam": Video(fps=30), "action": Trajectory(dim=1, fps=30)}, "'cam', which has no times of its own"),
        ({"cam": Video(timestamps="t"), "t": Trajectory(), "action": Trajectory(timestamps="t")}, "with action"),
    ],
)
def test_frames_that_would_move_others_are_not_dropped(columns: dict, said: str, tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema(columns))
    values = {"cam": picture(0), "action": [1.0], "t": [0.0]}
    with ds.writer(on_full="drop") as writer, pytest.raises(SchemaMismatchError, match=said):  # noqa: SIM117 - the take is within
        with writer.record("ep") as take:
            take.add(**{name: values[name] for name in columns})


@pytest.mark.parametrize("given", [{"on_full": "skip"}, {"spill_bytes": -1}, {"spill_bytes": "4 GB"}])
def test_wrong_settings_of_the_backlog(given: dict, root: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        opening.open(root).writer(**given)


def test_a_take_that_is_given_up_leaves_nothing_on_disk(root: Path, gate: threading.Event) -> None:
    before = files_in(root)
    with opening.open(root).writer() as writer, writer.record("ep") as take:
        for k in range(40):
            take.add(cam=picture(k))
        assert spilled_files(root)
        threading.Timer(0.2, gate.set).start()
        take.discard()
    assert files_in(root) == before


# ---- encodings


def test_each_column_has_an_encoding_of_its_own(root: Path) -> None:
    fine = Encoding(pixel_format="yuv444p", options={"crf": "5"})
    ds = opening.open(root)
    with ds.writer(encoding={"wrist": fine}) as writer:
        writer.add("a", cam=[picture(k) for k in range(4)], wrist=[picture(k) for k in range(4)])
        with writer.record("b") as take:
            take.add(cam=picture(0))
            take.add(wrist=picture(0))
    ds.upsert([{"sequence_id": "c", "wrist": [picture(0)]}], encoding={"wrist": fine})
    for row in pq.read_table(root / "data").to_pylist():
        for name, wanted in (("cam", "yuv420p"), ("wrist", "yuv444p")):
            if row[name] is not None:
                with av.open(str(root / row[name])) as container:
                    assert container.streams.video[0].pix_fmt == wanted


@pytest.mark.parametrize(
    ("encoding", "error", "said"),
    [
        ({"can": Encoding()}, SchemaMismatchError, "columns of videos, which are cam, wrist; found 'can'"),
        ({"action": Encoding()}, SchemaMismatchError, "found 'action'"),
        ({"cam": "libx264"}, ValueError, "expected sl.Encoding"),
        ("libx264", ValueError, "expected sl.Encoding"),
    ],
)
def test_encodings_without_effect_are_refused(root: Path, encoding, error, said: str) -> None:
    ds = opening.open(root)
    with pytest.raises(error, match=said):
        ds.writer(encoding=encoding)
    with pytest.raises(error, match=said):
        ds.upsert([{"sequence_id": "c", "task": "x"}], encoding=encoding)


def test_an_encoding_of_no_video_is_refused(tmp_path: Path) -> None:
    ds = opening.create(tmp_path / "ds", Schema({"action": Trajectory(dim=1)}))
    with pytest.raises(ValueError, match="no effect: no column holds videos"):
        ds.writer(encoding=Encoding())


def test_a_commit_that_fails_discards_the_take(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = opening.open(root)
    before = files_in(root)

    def fail(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(ds.table), "commit", fail)
    with pytest.raises(KeyboardInterrupt), ds.writer() as writer, writer.record("ep") as take:
        take.add(**step(0))
    assert files_in(root) == before


def test_a_long_take_says_hourly_that_it_is_alive(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = opening.open(root)
    renewed, real = [], type(ds.table).renew
    monkeypatch.setattr(type(ds.table), "renew", lambda table, t: (renewed.append(t.id), real(table, t))[1])
    with ds.writer() as writer, writer.record("ep") as take:
        take.add(**step(0))
        assert not renewed
        monkeypatch.setattr("seqlake.dataset.writing.staging._HOUR", 0.0)
        take.add(**step(1))
        take.add(**step(2))
        assert len(renewed) == 2
        ds.vacuum(older_than=timedelta(hours=1))  # does not take it for dead
    assert [row.id for row in opening.open(root)] == ["ep"]


# ---- kill -9


TAKE = 20  # steps
FAR = 15  # steps after which the encoder, which looks ahead, has written something


def record_for_ever(root: Path, first: int, say: int, *, last_step: int) -> None:
    """Take after take; the number of each that is committed goes down the pipe, and before that a dot for each step.

    At the last step it dies, far into a take only when the encoder has begun its file.
    """
    ds = opening.open(root)
    staged = root / "_seqlake" / "staged"
    earlier = set(staged.glob("*.tmp"))
    steps = 0
    with ds.writer() as writer:
        for number in range(first, first + 1000):
            with writer.record(f"ep_{number:05}", task="pick") as take:
                for k in range(TAKE):
                    take.add(**step(k))
                    os.write(say, b".")
                    steps += 1
                    if steps == last_step:
                        deadline = time.monotonic() + 60
                        while k >= FAR and not set(staged.glob("*.tmp")) - earlier and time.monotonic() < deadline:
                            time.sleep(0.001)
                        os.kill(os.getpid(), signal.SIGKILL)
            os.write(say, b"%d\n" % number)


def killed(root: Path, first: int, *, steps: int, after: float | None) -> list[int]:
    """Record in a child, kill it at this step or so long after it, and say what it said was committed."""
    hear, say = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(hear)
            record_for_ever(root, first, say, last_step=steps if after is None else -1)
        finally:
            os._exit(1)
    os.close(say)
    with os.fdopen(hear, "rb") as pipe:
        said = b""
        while said.count(b".") < steps:
            said += pipe.read(1)
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        said += pipe.read()
    assert os.WIFSIGNALED(status), "it was still recording"
    return [int(line.strip(b".")) for line in said.splitlines(keepends=True) if line.endswith(b"\n")]


def check_kills(root: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    in_the_making = 0
    for kill in range(kills):
        steps, after = rng.randint(1, 3 * TAKE), rng.choice([None, rng.uniform(0, 0.03)])
        in_the_making += after is None and (steps - 1) % TAKE >= FAR
        said = killed(root, 1000 * kill, steps=steps, after=after)
        assert len(said) >= (steps - 1) // TAKE
        acknowledged |= {f"ep_{number:05}" for number in said}
        rows = {row["sequence_id"]: row for row in opening.open(root).to_arrow().to_pylist()}
        assert acknowledged <= set(rows)
        unsaid = set(rows) - acknowledged
        assert unsaid <= {f"ep_{1000 * kill + len(said):05}"}, "committed, and killed before it could say so"
        acknowledged |= unsaid
        for number in [*said, *(int(one[3:]) for one in unsaid)]:
            row = rows[f"ep_{number:05}"]
            assert row["length"] == len(row["action"]) == TAKE
            assert len(video(root / row["cam"])[0]) == TAKE
    staged = root / "_seqlake" / "staged"
    assert len(list(staged.glob("*.tmp"))) >= in_the_making > 0, "killed while videos were in the making"
    ds = opening.open(root)
    ds.vacuum(older_than=timedelta(0))
    files = {name for name in files_in(root) if name.startswith("files/")}
    assert files == {row["cam"] for row in ds.to_arrow().to_pylist()}
    assert not list(staged.iterdir())
    assert ds.validate(depth="files").ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")
def test_kill_in_mid_take_loses_that_take_alone(root: Path) -> None:
    check_kills(root, 8, seed=0)


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")
def test_many_kills_in_mid_take(root: Path) -> None:
    check_kills(root, 200, seed=1)
