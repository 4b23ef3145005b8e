"""Parts of sequences: signals cut exactly, files with them, and nothing left of a cut that failed."""

from __future__ import annotations

import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.reshaping.slicing import changes
from seqlake.dataset.reshaping.trimming import segment, trim
from seqlake.errors import ColumnNotFoundError, SchemaMismatchError, ValidationError

STEPS = 48
SIZE = (64, 48)


def picture(number: int) -> np.ndarray:
    """Its number as a bright bar on a ground that moves; no two are alike."""
    width, height = SIZE
    y, x = np.mgrid[:height, :width]
    made = np.stack([x * 2 + 3 * number, y * 3, (x + y) + 5 * number], -1) % 200
    made[:, number % width] = 255
    return made.astype(np.uint8)


def nearest(frame: np.ndarray, count: int = STEPS) -> int:
    """Which picture a decoded frame is."""
    errors = [float(((frame.astype(float) - picture(n)) ** 2).mean()) for n in range(count)]
    return int(np.argmin(errors))


def signals(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, STEPS / 30, 70))
    return {
        "action": rng.normal(size=(STEPS, 3)).astype(np.float32),
        "subtask": np.repeat([0, 1, 0, 2], [10, 15, 3, 20]).astype(np.int32),
        "force": rng.normal(size=(STEPS * 3, 2)).astype(np.float32),
        "slow": np.arange(STEPS // 2, dtype=np.float32)[:, None],
        "when": times,
        "touch": rng.normal(size=(70, 1)).astype(np.float32),
        "goal": rng.normal(size=4).astype(np.float32),
    }


SIGNALS: dict[str, Any] = {
    "task": pa.string(),
    "length": pa.int64(),
    "duration_seconds": pa.float64(),
    "action": sl.Trajectory(dim=3, fps=30),
    "subtask": pa.list_(pa.list_(pa.int32())),
    "force": sl.Trajectory(dim=2, fps=90),
    "slow": sl.Trajectory(dim=1, fps=15),
    "when": pa.list_(pa.list_(pa.float64())),
    "touch": sl.Trajectory(dim=1, timestamps="when"),
    "goal": sl.Embedding(dim=4),
}


def row(seed: int) -> dict[str, Any]:
    values = signals(seed)
    return {
        **values,
        "subtask": values["subtask"][:, None],
        "when": values["when"][:, None],
        "task": "pick",
        "duration_seconds": STEPS / 30,
    }


@pytest.fixture
def arm(tmp_path: Path) -> sl.Dataset:
    """Three sequences of signals at every kind of rate."""
    ds = sl.create(tmp_path / "arm", sl.Schema(SIGNALS))
    with ds.writer(rows_per_shard=2) as writer:
        for number in range(3):
            writer.add(f"ep_{number}", **row(number))
    return ds


@pytest.fixture
def filmed(tmp_path: Path) -> sl.Dataset:
    """Two sequences with a camera at the clock's rate, one at half of it, and depth images."""
    schema = sl.Schema(
        {
            "length": pa.int64(),
            "action": sl.Trajectory(dim=1, fps=30),
            "cam": sl.Video(fps=30, codec="h264"),
            "low": sl.Video(fps=15),
            "depth": sl.Image(frames="bytes", format="png"),
            "photos": sl.Image(frames="files", format="png"),
            "notes": sl.ColumnType("mcap"),
        }
    )
    ds = sl.create(tmp_path / "filmed", schema)
    (tmp_path / "log.mcap").write_bytes(b"whole")
    with ds.writer() as writer:
        for number in range(2):
            writer.add(
                f"ep_{number}",
                action=np.arange(STEPS, dtype=np.float32)[:, None],
                cam=[picture(n) for n in range(STEPS)],
                low=[picture(2 * n) for n in range(STEPS // 2)],
                depth=np.arange(STEPS, dtype=np.uint16)[:, None, None] * np.full((1, 5, 7), 300, np.uint16),
                photos=[picture(n) for n in range(STEPS)],
                notes=sl.File(tmp_path / "log.mcap"),
            )
    return ds


def test_every_signal_is_cut_to_the_same_moments(arm: sl.Dataset, tmp_path: Path) -> None:
    made = trim(arm, tmp_path / "out", start=12, stop=40)
    assert made.left_out == ()
    assert [one.id for one in made.dataset] == ["ep_0", "ep_1", "ep_2"]
    for number, after in enumerate(made.dataset):
        before = signals(number)
        np.testing.assert_array_equal(after["action"], before["action"][12:40])
        np.testing.assert_array_equal(after["subtask"][:, 0], before["subtask"][12:40])
        np.testing.assert_array_equal(after["force"], before["force"][36:120])
        np.testing.assert_array_equal(after["slow"], before["slow"][6:20])
        times = before["when"] - before["when"][0]
        first = int(np.flatnonzero(times <= 12 / 30)[-1])
        last = int(np.flatnonzero(times < 40 / 30)[-1])
        np.testing.assert_array_equal(after["touch"], before["touch"][first : last + 1])
        cut = before["when"][0] + 12 / 30  # the sample that stands there was taken before
        np.testing.assert_allclose(after["when"][:, 0], np.maximum(before["when"][first : last + 1], cut), atol=1e-9)
        np.testing.assert_array_equal(after["goal"], before["goal"])
        assert (after["task"], after["length"]) == ("pick", 28)
        assert after["duration_seconds"] == pytest.approx(28 / 30)
    assert made.dataset.validate(depth="files").ok


def test_training_sees_the_same_windows_as_before(arm: sl.Dataset, tmp_path: Path) -> None:
    made = trim(arm, tmp_path / "out", start=12, stop=40).dataset
    columns = ["action", "force", "slow", "touch"]
    for step in (0, 5, 11):
        new = made["ep_1"].window(step, step + 16, columns=columns, edges="drop")
        old = arm["ep_1"].window(step + 12, step + 28, columns=columns, edges="drop")
        for name in columns:
            np.testing.assert_array_equal(new[name], old[name])


ORIGINS: dict[str, Any] = {
    "the earliest stamp": {},
    "a number": {"origin": 1000},
    "nanoseconds": {"origin": 1000 * 10**9},
    "a column of one time a row": {"origin": "began"},
    "its own first stamp": {"origin": "when"},
}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("origin", "kind"),
    [
        ("the earliest stamp", "f8"),
        ("the earliest stamp", "M8[ns]"),
        ("a number", "f8"),
        ("nanoseconds", "i8"),
        ("a column of one time a row", "f8"),
        ("a column of one time a row", "M8[ns]"),
        ("its own first stamp", "f8"),
    ],
)
def test_pieces_show_what_stood_at_each_moment_before(tmp_path: Path, origin: str, kind: str) -> None:
    def stored(seconds: Any) -> Any:
        moved = np.asarray(seconds) + 1000
        return moved if kind == "f8" else np.rint(moved * 1e9).astype("i8").astype(kind)

    declared = ORIGINS[origin]
    arrow = {"f8": pa.float64(), "i8": pa.int64(), "M8[ns]": pa.timestamp("ns")}[kind]
    ds = sl.create(
        tmp_path / "ds",
        sl.Schema(
            {
                "tick": sl.Trajectory(dim=1, fps=10),
                "began": arrow,
                "slow": pa.list_(arrow),
                "when": pa.list_(arrow),
                "late": sl.Trajectory(dim=1, timestamps="when", **declared),
                "early": sl.Trajectory(
                    dim=1, timestamps="slow", **({} if origin == "its own first stamp" else declared)
                ),
            }
        ),
    )
    when, slow = np.array([0.55, 0.61, 0.9, 1.0, 1.33, 1.7, 2.2]), np.array([0.0, 0.35, 0.65, 1.45, 2.1])
    row = {"late": np.arange(7)[:, None], "early": np.arange(5)[:, None], "tick": np.arange(25)[:, None]}
    with ds.writer() as writer:
        writer.add(
            "a", began=stored(0).item() if kind != "M8[ns]" else stored(0), when=stored(when), slow=stored(slow), **row
        )
    whole = ds["a"].window(0, 25, columns=["tick", "late", "early"])
    zero = when[0] if origin == "its own first stamp" else 0.0
    shown = [sum(round(1e6 * (t - zero)) <= 100_000 * k for t in when) - 1 for k in range(25)]
    assert whole["late"][:, 0].tolist() == [max(0, one) for one in shown]
    assert whole["late_mask"].tolist() == [one >= 0 for one in shown]
    made = segment(ds, tmp_path / "cut", at=[4, 11, 12, 20]).dataset
    for piece in made:
        first, count = int(piece["source_start"]), len(piece["tick"])
        window = piece.window(0, count, columns=["tick", "late", "early"])
        for name in ("tick", "late", "late_mask", "early", "early_mask"):
            np.testing.assert_array_equal(
                window[name], whole[name][first : first + count], err_msg=f"{piece.id} {name}"
            )
        (batch,) = sl.Loader(
            made.where(ids=[piece.id]), window={"tick": [0], "late": [0]}, batch_size=count, shuffle=False
        )
        np.testing.assert_array_equal(batch["late"][:, 0], window["late"])
        np.testing.assert_array_equal(batch["late_mask"][:, 0], window["late_mask"])
    assert made.validate(depth="rows").ok


def test_between_two_samples_a_slow_signal_begins_with_the_earlier(arm: sl.Dataset, tmp_path: Path) -> None:
    after = trim(arm, tmp_path / "out", start=13, stop=18).dataset[0]
    np.testing.assert_array_equal(after["slow"][:, 0], [6, 7, 8])  # shown from steps 12, 14 and 16 on


def test_steps_may_count_from_the_end_and_times_stand_for_steps(arm: sl.Dataset, tmp_path: Path) -> None:
    one = trim(arm, tmp_path / "a", start=-20, stop=-5).dataset[2]
    two = trim(arm, tmp_path / "b", seconds=(28 / 30, 43 / 30)).dataset[2]
    np.testing.assert_array_equal(one["action"], signals(2)["action"][28:43])
    np.testing.assert_array_equal(one["action"], two["action"])
    late = trim(arm, tmp_path / "c", seconds=(0.41, None)).dataset[0]  # between steps 12 and 13
    np.testing.assert_array_equal(late["action"], signals(0)["action"][13:])
    with pytest.raises(ValueError, match="not both"):
        trim(arm, tmp_path / "d", start=1, seconds=(0, 1))


def test_sequences_without_such_steps_are_left_out(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": f"s{n}", "x": np.ones((n, 1))} for n in (0, 3, 8)])
    made = trim(ds, tmp_path / "out", start=3)
    assert made.left_out == ("s0", "s3")
    assert [(one.id, len(one["x"])) for one in made.dataset] == [("s8", 5)]
    assert len(trim(ds, tmp_path / "none", start=99).dataset) == 0


def test_null_cells_stay_null(tmp_path: Path) -> None:
    schema = sl.Schema({"x": sl.Trajectory(dim=1), "y": sl.Trajectory(dim=2), "cam": sl.Video(fps=30)})
    ds = sl.create(tmp_path / "arm", schema)
    ds.append([{"sequence_id": "a", "x": np.arange(9.0)[:, None], "y": None, "cam": None}])
    after = trim(ds, tmp_path / "out", start=2, stop=5).dataset["a"]
    assert (after["y"], after["cam"], after["x"].tolist()) == (None, None, [[2], [3], [4]])


def test_videos_are_cut_with_the_steps(filmed: sl.Dataset, tmp_path: Path) -> None:
    made = trim(filmed, tmp_path / "out", start=13, stop=41)
    for after in made.dataset:
        assert [len(after[name]) for name in ("action", "cam", "low", "depth")] == [28, 28, 14, 28]
        assert [nearest(frame) for frame in after["cam"][:]] == list(range(13, 41))
        assert [nearest(frame) for frame in after["low"][:]] == list(range(12, 40, 2))
        assert after["cam"].pts[0] == after["low"].pts[0] == 0
        np.testing.assert_array_equal(after["depth"][:][:, 0, 0, 0], np.arange(13, 41) * 300)
        np.testing.assert_array_equal(after["photos"][:], [picture(n) for n in range(13, 41)])
        assert after["notes"].read() == b"whole"
        assert after["length"] == 28
    cams = [file for file in made.files if file.column == "cam"]
    assert [file.encoded for file in cams] == [3, 3]  # from step 13 to the key frame at 16
    assert made.encoded == sum(file.encoded for file in made.files)
    report = made.dataset.validate(depth="decode")
    assert report.ok, str(report)


def test_what_is_kept_whole_is_copied_byte_for_byte(filmed: sl.Dataset, tmp_path: Path) -> None:
    made = trim(filmed, tmp_path / "out", stop=STEPS)
    assert made.dataset["ep_1"]["cam"].read() == filmed["ep_1"]["cam"].read()
    assert made.encoded == 0


def test_a_video_that_ends_early_gives_what_it_has(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1, fps=30), "cam": sl.Video(fps=30)}))
    with ds.writer() as writer:
        writer.add("a", x=np.ones((20, 1)), cam=[picture(n) for n in range(12)])
    made = segment(ds, tmp_path / "out", at=[8, 15])
    lengths = [None if one["cam"] is None else len(one["cam"]) for one in made.dataset]
    assert lengths == [8, 4, None]
    assert [file.note for file in made.files] == ["", "", "the file ends before the piece"]


def test_rows_that_share_a_file_get_files_of_their_own(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "one", sl.Schema({"cam": sl.Video(fps=30)}))
    with ds.writer() as writer:
        writer.add("a", cam=[picture(n) for n in range(STEPS)])
    file = next((tmp_path / "one").rglob("*.mp4"))
    cell = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
    table = pa.table(
        {
            "sequence_id": ["a", "b"],
            "x": pa.array([[[1.0]] * 20, [[2.0]] * 20], pa.list_(pa.list_(pa.float32()))),
            "cam": pa.array([{"url": file.name, "first_frame": s, "num_frames": 20} for s in (0, 20)], cell),
        }
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / file.name).write_bytes(file.read_bytes())
    pq.write_table(table, shared / "part.parquet")
    source = sl.scan(shared, column_types={"cam": sl.Video(fps=30), "x": sl.Trajectory(dim=1)})
    made = trim(source, tmp_path / "out", start=5, stop=9)
    assert [nearest(frame) for frame in made.dataset["b"]["cam"][:]] == [25, 26, 27, 28]
    stored = made.dataset.to_arrow().column("cam").to_pylist()
    assert [(one["first_frame"], one["num_frames"]) for one in stored] == [(0, 4), (0, 4)]


def test_pieces_follow_a_label_and_say_where_they_are_from(arm: sl.Dataset, tmp_path: Path) -> None:
    made = segment(arm, tmp_path / "out", by="subtask").dataset
    assert [one.id for one in made][:4] == ["ep_0/000", "ep_0/001", "ep_0/002", "ep_0/003"]
    assert [one["source_start"] for one in made][:4] == [0, 10, 25, 28]
    assert {one["source_id"] for one in made} == {"ep_0", "ep_1", "ep_2"}
    for one in made:
        start, before = one["source_start"], signals(int(one["source_id"][-1]))
        np.testing.assert_array_equal(one["action"], before["action"][start : start + one["length"]])
        assert len(set(one["subtask"][:, 0].tolist())) == 1
    long = segment(arm, tmp_path / "long", by="subtask", min_length=10).dataset
    assert [(one.id, one["source_start"]) for one in long][:3] == [("ep_0/000", 0), ("ep_0/001", 10), ("ep_0/002", 28)]


def test_pieces_of_pieces_name_what_was_cut_first(arm: sl.Dataset, tmp_path: Path) -> None:
    once = segment(arm, tmp_path / "once", length=20).dataset
    assert [one["length"] for one in once][:3] == [20, 20, 8]
    twice = segment(once, tmp_path / "twice", at=[-7]).dataset
    found = [(one.id, one["source_id"], one["source_start"], one["length"]) for one in twice][:4]
    assert found == [
        ("ep_0/000/000", "ep_0", 0, 13),
        ("ep_0/000/001", "ep_0", 13, 7),
        ("ep_0/001/000", "ep_0", 20, 13),
        ("ep_0/001/001", "ep_0", 33, 7),
    ]
    joined = np.concatenate([one["action"] for one in twice if one["source_id"] == "ep_2"])
    np.testing.assert_array_equal(joined, signals(2)["action"])


def test_more_than_a_thousand_pieces_sort_in_their_order(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": "a", "x": np.arange(1200.0)[:, None]}])
    ids = [one.id for one in segment(ds, tmp_path / "out", length=1).dataset]
    assert ids == sorted(ids)
    assert ids[0] == "a/0000"


def test_how_to_cut_is_said_in_one_way_and_can_be_done(arm: sl.Dataset, tmp_path: Path) -> None:
    for how in ({}, {"length": 5, "at": [3]}, {"length": 0}, {"length": 5, "min_length": 0}):
        with pytest.raises(ValueError, match="one of by|at least one"):
            segment(arm, tmp_path / "out", **how)
    for label in ("task", "force"):
        with pytest.raises(SchemaMismatchError, match="one value a step of the clock"):
            segment(arm, tmp_path / "out", by=label)
    with pytest.raises(ColumnNotFoundError, match="No column 'forse'.*mean 'force'"):
        segment(arm, tmp_path / "out", by="forse")
    with pytest.raises(SchemaMismatchError, match="Select the id column"):
        trim(arm.select("action"), tmp_path / "out", start=1)
    bare = sl.scan(pa.table({"sequence_id": ["a"], "x": pa.array([[[1.0], [2.0]]])}))
    with pytest.raises(SchemaMismatchError, match="need a clock"):
        trim(bare, tmp_path / "out", seconds=(0, 1))
    assert len(trim(bare, tmp_path / "steps", start=1).dataset["a"]["x"]) == 1
    with pytest.raises(SchemaMismatchError, match="Rename it first"):
        segment(sl.scan(pa.table({"sequence_id": ["a"], "source_id": [1]})), tmp_path / "out", length=1)
    assert not (tmp_path / "out").exists()


def test_pieces_never_take_the_name_of_another_sequence(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1)}))
    ds.append([{"sequence_id": one, "x": np.ones((4, 1))} for one in ("a", "a/000", "a/000/000")])
    assert len({one.id for one in segment(ds, tmp_path / "out", length=2).dataset}) == 6


def test_other_things_are_not_written_over(arm: sl.Dataset, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        trim(arm, tmp_path / "arm", start=1)


def tone(path: Path, count: int) -> np.ndarray:
    numbers = np.random.default_rng(1).integers(-9000, 9000, count).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(numbers.tobytes())
    return numbers


def test_sounds_are_cut_to_the_sample_or_refused(tmp_path: Path) -> None:
    numbers = tone(tmp_path / "a.wav", 8000)
    ds = sl.create(tmp_path / "arm", sl.Schema({"x": sl.Trajectory(dim=1, fps=30), "mic": sl.Audio(sample_rate=8000)}))
    with ds.writer() as writer:
        writer.add("a", x=np.ones((30, 1)), mic=sl.File(tmp_path / "a.wav"))
    after = trim(ds, tmp_path / "out", start=7, stop=11).dataset["a"]["mic"]
    with wave.open(io.BytesIO(after.read())) as file:
        found = np.frombuffer(file.readframes(10**6), "<i2")
    np.testing.assert_array_equal(found, numbers[-(-7 * 8000 // 30) : -(-11 * 8000 // 30)])

    import av

    with av.open(str(tmp_path / "a.mp3"), "w") as out:
        stream = out.add_stream("libmp3lame", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(numbers[None, :576].copy(), format="s16p", layout="mono")
        frame.sample_rate, frame.pts = 8000, 0
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    lossy = sl.create(tmp_path / "lossy", ds.schema)
    with lossy.writer() as writer:
        writer.add("b", x=np.ones((30, 1)), mic=sl.File(tmp_path / "a.mp3"))
    with pytest.raises(ValidationError, match=r"'b', column 'mic'.*mp3.*cannot be cut"):
        trim(lossy, tmp_path / "no", stop=2)
    assert not (tmp_path / "no").exists()
    assert len(trim(lossy, tmp_path / "whole", stop=30).dataset) == 1  # nothing to cut


def test_a_missing_file_is_named_and_nothing_is_left(filmed: sl.Dataset, tmp_path: Path) -> None:
    Path(filmed["ep_1"]["cam"].location).unlink()
    with pytest.raises(ValidationError, match="'ep_1', column 'cam': the file .* is not there"):
        trim(filmed, tmp_path / "out", start=3)
    assert not (tmp_path / "out").exists()
    assert len(trim(filmed.where(ids=["ep_0"]), tmp_path / "good", start=3).dataset) == 1


def test_the_stream_of_a_column_is_the_only_one_of_its_clip(tmp_path: Path) -> None:
    import av

    with av.open(str(tmp_path / "two.mp4"), "w") as out:
        streams = [out.add_stream("libx264", rate=30, options={"bf": "0", "g": "8"}) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for number in range(STEPS):
            for stream, shown in zip(streams, (number, STEPS - 1 - number), strict=True):
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture(shown), format="rgb24")))
        for stream in streams:
            out.mux(stream.encode(None))
    schema = sl.Schema({"x": sl.Trajectory(dim=1, fps=30), "cam": sl.Video(fps=30, stream=1)})
    ds = sl.create(tmp_path / "arm", schema)
    with ds.writer() as writer:
        writer.add("a", x=np.ones((STEPS, 1)), cam=sl.File(tmp_path / "two.mp4"))
    for start, stop in ((0, STEPS), (4, 9)):
        made = trim(ds, tmp_path / f"out{start}", start=start, stop=stop).dataset
        assert made.schema["cam"].type == sl.Video(fps=30)
        assert nearest(made["a"]["cam"][0]) == STEPS - 1 - start


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], []),
        ([5], []),
        ([1, 1, 2, 2, 1], [2, 4]),
        ([np.nan, np.nan, 1.0, np.nan], [2, 3]),
        ([[1, 2], [1, 2], [1, 3]], [2]),
    ],
)
def test_changes_of_a_label(values: list[Any], expected: list[int]) -> None:
    assert changes(np.array(values)) == expected
