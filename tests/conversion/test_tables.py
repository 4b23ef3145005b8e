"""Tables of one row a time step become sequences: of CSV, Parquet and frames in memory, with folders of videos."""

from __future__ import annotations

import random
from pathlib import Path

import av
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.validation import validate
from seqlake.errors import SchemaMismatchError, SeqlakeError, UnsafeReferenceError, ValidationError

EPISODES, STEPS = 3, 6


def steps(*, shuffled: bool = True) -> pd.DataFrame:
    rows = [
        {
            "episode": f"e{episode}",
            "t": step,
            "time": step / 10,
            "pose.x": episode + step / 2,
            "pose.y": -step / 2,
            **{f"q_{joint}": 10 * joint + step for joint in range(3)},
            "reward": float(step == STEPS - 1),
            "task": f"task {episode % 2}",
            "operator": 40 + episode,
            "good": episode != 1,
            "note": f"n{episode}.{step}",
        }
        for episode in range(EPISODES)
        for step in range(STEPS + episode)
    ]
    if shuffled:
        random.Random(5).shuffle(rows)
    return pd.DataFrame(rows)


def in_csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "steps.csv", index=False)
    return folder / "steps.csv"


def in_parquet(frame: pd.DataFrame, folder: Path) -> Path:
    """Several files, as engines write them; episodes go across files."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    (folder / "steps").mkdir()
    for part in range(3):
        pq.write_table(table.slice(part * 7, 7), folder / "steps" / f"part-{part}.parquet")
    return folder / "steps"


SOURCES = {
    "csv": in_csv,
    "parquet": in_parquet,
    "pandas": lambda frame, _: frame,
    "polars": lambda frame, _: pl.from_pandas(frame),
    "arrow": lambda frame, _: pa.Table.from_pandas(frame, preserve_index=False),
    "dict": lambda frame, _: frame.to_dict("list"),
}
HOW = {"sequence_id": "episode", "steps": "t", "map": {"pose": "pose.x, pose.y", "q": "q_0..q_2"}}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_table_gives_the_same_sequences(tmp_path: Path, kind: str) -> None:
    frame = steps()
    source = SOURCES[kind](frame, tmp_path)
    ds = sl.convert(source, tmp_path / "out", **HOW, workers=1)
    looked_at = sl.scan(source, **HOW)
    for shown in (ds, looked_at):
        assert sorted(shown.to_arrow()["sequence_id"].to_pylist()) == [f"e{n}" for n in range(EPISODES)]
        for name, rows in frame.sort_values("t").groupby("episode"):
            one = shown[name]
            np.testing.assert_array_equal(one["pose"], rows[["pose.x", "pose.y"]].to_numpy())
            np.testing.assert_array_equal(one["q"], rows[["q_0", "q_1", "q_2"]].to_numpy())
            np.testing.assert_array_equal(one["reward"][:, 0], rows["reward"])
            np.testing.assert_array_equal(one["time"][:, 0], rows["time"])
            assert (one["task"], one["operator"]) == (rows["task"].iloc[0], rows["operator"].iloc[0])
            assert one["good"] == rows["good"].iloc[0]
            assert list(one["note"]) == list(rows["note"])
        assert shown.schema["pose"].type.get("names") == ["pose.x", "pose.y"]
        assert shown.schema["q"].shape == (3,)
    assert validate(ds, depth="decode").ok


def test_a_window_runs_over_the_file_itself(tmp_path: Path) -> None:
    source = sl.scan(in_csv(steps(), tmp_path), **HOW, fps=10)
    batch = next(iter(sl.Loader(source, window={"q": range(3)}, batch_size=4)))
    assert batch["q"].shape == (4, 3, 3)
    assert source.schema["q"].type.get("fps") == 10


def test_columns_that_never_change_can_stay_signals(tmp_path: Path) -> None:
    source = sl.scan(steps(), **HOW, keep_constant=["operator"])
    assert source.schema["operator"].category == "temporal"
    assert source.schema["good"].category == "scalar"
    assert sl.scan(steps(), **HOW, keep_constant=True).schema["task"].category == "other"


def test_what_is_missing_of_a_signal_is_nan(tmp_path: Path) -> None:
    frame = pd.DataFrame({"e": ["a"] * 3, "t": range(3), "x": [1.5, None, 2], "n": pd.array([1, None, 3], "Int64")})
    for source in (frame, in_csv(frame.assign(n=frame["n"]), tmp_path)):
        one = sl.scan(source, sequence_id="e", steps="t")["a"]
        np.testing.assert_array_equal(one["x"][:, 0], [1.5, np.nan, 2])
        np.testing.assert_array_equal(one["n"][:, 0], [1, np.nan, 3])


def test_the_plan_says_what_becomes_of_what(tmp_path: Path) -> None:
    planned = sl.convert(in_csv(steps(), tmp_path), tmp_path / "out", **HOW, videos="{episode}.mp4", dry_run=True)
    said = {one["column"]: (one["source"], one["how"]) for one in planned.to_json()["mapped"]}
    assert said["sequence_id"] == ("episode", "")
    assert said["pose"] == ("pose.x, pose.y", "2 columns collected; a signal, one array a row")
    assert said["task"][1].startswith("one value")
    assert said["video"] == ("{episode}.mp4", "a file for each sequence")
    assert "pose: list<item: fixed_size_list<item: double>[2]> <- pose.x, pose.y" in str(planned)
    assert sum("e0.mp4 is not there" in text for text in planned.to_json()["findings"]) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.time32("s"), pa.time64("us"), pa.duration("s"), pa.date32()],
)
def test_steps_may_be_times_of_any_kind(kind: pa.DataType) -> None:
    moments = pa.array([3, 1, 2], pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    shown = sl.scan(pa.table({"e": ["a"] * 3, "t": moments, "x": [30, 10, 20]}), sequence_id="e", steps="t")
    assert shown["a"]["x"][:, 0].tolist() == [10, 20, 30]


# ---- videos


def write_video(path: Path, pictures: np.ndarray, *, fps: int) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = pictures.shape[2], pictures.shape[1], "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def films(folder: Path, *, short: str = "") -> None:
    (folder / "videos").mkdir(exist_ok=True)
    for episode in range(EPISODES):
        count = STEPS + episode - (2 if f"e{episode}" == short else 0)
        pictures = np.arange(count, dtype=np.uint8)[:, None, None, None] * np.full((count, 32, 48, 3), 20, np.uint8)
        write_video(folder / "videos" / f"e{episode}.mp4", pictures, fps=10)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_videos_beside_a_table(tmp_path: Path, kind: str) -> None:
    source = SOURCES[kind](steps(), tmp_path)
    films(tmp_path if kind == "csv" else source)
    ds = sl.convert(source, tmp_path / "out", **HOW, videos={"cam": "videos/{episode}.mp4"}, fps=10, workers=1)
    for episode in range(EPISODES):
        frames = ds[f"e{episode}"]["cam"]
        assert len(frames) == STEPS + episode
        assert abs(int(frames[4].mean()) - 80) < 6
    assert validate(ds, depth="decode").ok


def test_frames_are_compared_with_steps(tmp_path: Path) -> None:
    place = in_csv(steps(), tmp_path)
    films(tmp_path, short="e1")
    for clock in ({"fps": 10}, {"timestamps": "time"}, {}):
        source = sl.scan(place, **HOW, videos={"cam": "videos/{episode}.mp4"}, **clock)
        messages = [str(one) for one in validate(source, depth="decode").findings if one.code == "F421"]
        assert len(messages) == 1, clock
        assert "5 frames, expected 7" in messages[0]


def test_videos_that_are_not_there(tmp_path: Path) -> None:
    place = in_csv(steps(), tmp_path)
    films(tmp_path)
    (tmp_path / "videos" / "e2.mp4").unlink()
    how = {**HOW, "videos": {"cam": "videos/{episode}.mp4"}, "fps": 10}
    missing = [one for one in validate(sl.scan(place, **how)).findings if one.code == "table-missing-video"]
    assert [(one.sequence_id, one.location) for one in missing] == [("e2", "videos/e2.mp4")]
    with pytest.raises(SeqlakeError, match=r"e2\.mp4"):
        sl.convert(place, tmp_path / "out", **how, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("cell", ["../secret", "/etc/passwd", "a/../../b", "..\\x", "a\0b", "C:x"])
def test_a_cell_cannot_lead_out_of_the_folder(cell: str) -> None:
    frame = pd.DataFrame({"e": ["a", "a"], "t": [0, 1], "file": [cell] * 2})
    for template in ("{file}.mp4", "{file}"):
        with pytest.raises(UnsafeReferenceError, match="no name inside a dataset"):
            sl.scan(frame, sequence_id="e", steps="t", videos=template)


@pytest.mark.parametrize(
    ("template", "error", "what"),
    [
        ("cam.mp4", SchemaMismatchError, "names no column"),
        ("{nope}.mp4", KeyError, "nope"),
        ("{e.__class__}.mp4", KeyError, "__class__"),
        ("{e!r}.mp4", SchemaMismatchError, "no width"),
        ("{e:>9999999999}.mp4", SchemaMismatchError, "no width"),
        ("{e", SchemaMismatchError, "expected a path"),
        ("{}", SchemaMismatchError, "holds no name"),
        ("{x}.mp4", ValidationError, "changes within a sequence"),
        ("{e:03d}.mp4", ValidationError, "writes a number"),
    ],
)
def test_templates_that_are_none(template: str, error: type, what: str) -> None:
    frame = pd.DataFrame({"e": ["a", "a"], "t": [0, 1], "x": [1, 2]})
    with pytest.raises(error, match=what):
        sl.scan(frame, sequence_id="e", steps="t", videos=template)


def test_numbers_in_names_are_padded() -> None:
    frame = pd.DataFrame({"e": [7, 7, 12], "t": [0, 1, 0], "cam": ["left", "left", "right"]})
    shown = sl.scan(frame, sequence_id="e", steps="t", videos={"film": "{cam}/{e:03d}.mp4"})
    assert shown.to_arrow()["film"].to_pylist() == ["left/007.mp4", "right/012.mp4"]


# ---- what cannot be


@pytest.mark.parametrize(
    ("change", "options", "error", "what"),
    [
        (lambda f: pd.concat([f, f.iloc[:1]]), {}, ValidationError, "two samples of step"),
        (lambda f: f.assign(t=f["t"].where(f["t"] > 0)), {}, ValidationError, "have"),
        (
            lambda f: f.assign(episode=f["episode"].where(f["episode"] != "e1")),
            {},
            ValidationError,
            "have no 'episode'",
        ),
        (lambda f: f, {"map": {"pose": "pose.*, q_9"}}, SchemaMismatchError, "'q_9'"),
        (lambda f: f, {"map": {"pose": "nothing.*"}}, SchemaMismatchError, "No column matches"),
        (lambda f: f, {"map": {"p": "pose.x, task"}}, SchemaMismatchError, "'task' is string"),
        (lambda f: f, {"map": {"task": "pose.x, pose.y"}}, SchemaMismatchError, "another column has"),
        (lambda f: f, {"map": {"p": "q_0, q_0"}}, SchemaMismatchError, "twice"),
        (lambda f: f, {"map": {"p": "q_2..q_0"}}, SchemaMismatchError, "range of columns"),
        (lambda f: f, {"timestamps": "task"}, SchemaMismatchError, "column of times"),
        (lambda f: f, {"fps": 0}, ValueError, "above 0"),
        (lambda f: f, {"fps": 10, "timestamps": "time"}, TypeError, "one of them"),
        (lambda f: f, {"steps": None, "videos": "{episode}.mp4"}, TypeError, "sequence_id= and steps="),
        (lambda f: f, {"videos": {"task": "{episode}.mp4"}}, SchemaMismatchError, "already"),
        (lambda f: f, {"keep_constant": ["nope"]}, KeyError, "nope"),
        (lambda f: f, {"keep_constant": "task"}, ValueError, "list of columns"),
        (lambda f: f, {"fps": "ten"}, ValueError, "a number"),
        (lambda f: f, {"nope": 1}, TypeError, "takes no option 'nope'"),
    ],
)
def test_what_cannot_be_sequences(change, options: dict, error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        sl.scan(change(steps()), **{**HOW, **options})


def test_the_range_and_the_pattern_are_sorted_by_number() -> None:
    frame = pd.DataFrame({"e": ["a"] * 2, "t": [0, 1], **{f"x{n}": [n, n] for n in (10, 2, 1)}})
    shown = sl.scan(frame, sequence_id="e", steps="t", map={"x": "x*"})
    np.testing.assert_array_equal(shown["a"]["x"], [[1, 2, 10]] * 2)


def test_a_mapping_in_a_file_and_types(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('[pose]\nsource = "pose.x, pose.y"\ntype = "trajectory"\nunits = "m"\n')
    shown = sl.scan(
        steps(),
        sequence_id="episode",
        steps="t",
        map=tmp_path / "map.toml",
        column_types={"reward": sl.Trajectory(units="points")},
    )
    assert shown.schema["pose"].type.get("units") == "m"
    assert shown.schema["reward"].type.get("units") == "points"


def test_a_table_whose_id_is_called_sequence_id_is_steps_where_that_is_said() -> None:
    frame = steps().rename(columns={"episode": "sequence_id"})
    assert len(sl.scan(frame, sequence_id="sequence_id", steps="t")) == EPISODES
    assert len(sl.scan(frame)) == len(frame)
