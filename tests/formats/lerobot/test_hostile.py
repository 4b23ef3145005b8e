"""Folders that are damaged, half copied, of other writers, or made to harm: a finding or an error, never silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake import errors
from seqlake.formats import lerobot
from seqlake.formats.lerobot.layout import fill

from . import by_hand
from .by_hand import CAM, FPS

INFO = "meta/info.json"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-000/file-000.parquet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return by_hand.write_v3(tmp_path / "lerobot", by_hand.four())


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return by_hand.write_v2(tmp_path / "older", by_hand.four())


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    info = json.loads((folder / INFO).read_text())
    change(info)
    (folder / INFO).write_text(json.dumps(info))
    return folder


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def put(name: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    """A table with other values in a column."""

    def changed(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(name)
        cells = values if isinstance(values, pa.Array) else pa.array(values)
        return table.append_column(name, cells) if place < 0 else table.set_column(place, name, cells)

    return changed


def codes(folder: Path, depth: Any = "files") -> set[str]:
    return {finding.code for finding in lerobot.scan(str(folder)).check(depth)}


# ---- info.json


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"codebase_version": "v3.0"}',
        '{"codebase_version": 3, "features": {}}',
        "\xff",
        "{" * 99,
    ],
)
def test_a_broken_info_is_refused(folder: Path, text: str) -> None:
    (folder / INFO).write_bytes(text.encode("latin-1"))
    with pytest.raises((errors.InvalidMetadataError, errors.DatasetNotFoundError), match="info"):
        sl.scan(folder, format="lerobot")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("codebase_version", "v1.6", "v2.0, v2.1, v3.0"),
        ("codebase_version", "v4.0", "v2.0, v2.1, v3.0"),
        ("codebase_version", "three", "codebase_version"),
        ("storage_format", "tar", "parquet and lance"),
        ("fps", 0, "fps"),
        ("fps", "30", "fps"),
        ("fps", None, "fps"),
        ("fps", True, "fps"),
        ("fps", float("nan"), "fps"),
        ("features", [], "features"),
        ("features", {}, "features"),
        ("features", {"action": "float32"}, "action"),
        ("features", {"a/b": {"dtype": "float32", "shape": [1]}}, "a/b"),
        ("features", {"action": {"dtype": "float32", "shape": [-1]}}, "action"),
        ("features", {"action": {"dtype": "float32", "shape": "7"}}, "action"),
        ("data_path", 7, "data_path"),
        ("data_path", "data/{episode_index.__class__}.parquet", "data_path"),
        ("data_path", "data/{chunk_index:999999999d}.parquet", "data_path"),
        ("data_path", "data/{file_index!r}.parquet", "data_path"),
        ("data_path", "data/{", "data_path"),
        ("chunks_size", 0, "chunks_size"),
    ],
)
def test_what_info_says_is_checked(folder: Path, key: str, value: object, match: str) -> None:
    edited(folder, lambda info: info.update({key: value}))
    with pytest.raises(errors.InvalidMetadataError, match=match):
        lerobot.scan(str(folder))


@pytest.mark.parametrize(
    "template", ["../{file_index:03d}.parquet", "/etc/passwd", "data/../../{file_index}", "data//{file_index}", "a\\b"]
)
@pytest.mark.parametrize("key", ["data_path", "video_path"])
def test_no_template_leaves_the_root(folder: Path, key: str, template: str) -> None:
    edited(folder, lambda info: info.update({key: template}))
    with pytest.raises(errors.UnsafeReferenceError, match=key):
        lerobot.scan(str(folder))


def test_no_name_of_a_camera_leaves_the_root(folder: Path) -> None:
    def change(info: dict[str, Any]) -> None:
        info["features"][".."] = info["features"].pop(CAM)

    edited(folder, change)
    rewritten(
        folder / EPISODES,
        lambda table: table.rename_columns([name.replace(CAM, "..") for name in table.column_names]),
    )
    with pytest.raises(errors.UnsafeReferenceError, match="video_path"):
        lerobot.scan(str(folder))


def test_a_template_takes_names_and_widths_only() -> None:
    assert fill("a/{n:03d}-{n:d}-{n}/{{x}}", {"n": 7}, what="here") == "a/007-7-7/{x}"
    for template in ("{n:>9}", "{n[0]}", "{n.real}", "{}", "{m}", "{n:x}", "{n:{n}}"):
        with pytest.raises(errors.InvalidMetadataError, match="here"):
            fill(template, {"n": 7}, what="here")


def test_unknown_keys_and_dtypes_are_no_harm(folder: Path) -> None:
    def change(info: dict[str, Any]) -> None:
        info |= {"tools": [{"name": "x"}], "splits": {"train": "0:2", "val": "2:4", "odd": [1]}}
        info["features"]["cloud"] = {"dtype": "pointcloud", "shape": [5]}
        info["features"]["gone"] = {"dtype": "float32", "shape": [2], "names": None}

    edited(folder, change)
    source = lerobot.scan(str(folder))
    assert [row["split"] for row in sl.scan(source)] == ["train", "train", "val", "val"]
    assert "cloud" not in source.schema
    assert "gone" not in source.schema
    assert codes(folder) == {"lerobot-feature", "lerobot-split"}


def test_a_feature_may_be_left_out(folder: Path) -> None:
    source = lerobot.scan(str(folder), without=["pose", CAM])
    assert {"pose", CAM}.isdisjoint(source.schema.names)
    with pytest.raises(errors.ColumnNotFoundError, match="nothing"):
        lerobot.scan(str(folder), without=["nothing"])


# ---- episodes and tasks


def test_an_unfinished_recording_says_so(folder: Path) -> None:
    (folder / EPISODES).unlink()
    with pytest.raises(errors.DatasetNotFoundError, match=r"finalize"):
        sl.open(folder)


def test_a_cut_file_of_episodes_is_refused(folder: Path) -> None:
    data = (folder / EPISODES).read_bytes()
    (folder / EPISODES).write_bytes(data[:-20])
    with pytest.raises(errors.CorruptFileError, match="file-000"):
        sl.open(folder)


@pytest.mark.parametrize(
    ("name", "values", "match"),
    [
        ("episode_index", [0, 1, 1, 3], "more than once"),
        ("episode_index", [0, 1, None, 3], "episode_index"),
        ("episode_index", [0, 1, -5, 3], "episode_index"),
        ("length", [12.0, float("nan"), 25.0, 7.0], "length"),
        ("length", [12.5, 1.0, 25.0, 7.0], "length"),
        ("length", ["a", "b", "c", "d"], "length"),
        ("length", [1 << 60] * 4, "length"),
    ],
)
def test_numbers_of_episodes_are_checked(folder: Path, name: str, values: list[Any], match: str) -> None:
    rewritten(folder / EPISODES, put(name, values))
    with pytest.raises(errors.InvalidMetadataError, match=match):
        sl.open(folder)


def test_lengths_that_are_whole_floats_are_taken(folder: Path) -> None:
    """As pandas writes whole numbers once one was missing."""
    rewritten(folder / EPISODES, put("length", [12.0, 1.0, 25.0, 7.0]))
    assert sl.open(folder).lengths("action").tolist() == [12, 1, 25, 7]


@pytest.mark.parametrize("line", ["{", "[]", '{"episode_index": 0}'])
def test_a_broken_line_is_refused(older: Path, line: str) -> None:
    with (older / "meta/episodes.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(errors.InvalidMetadataError, match=r"episodes\.jsonl"):
        sl.open(older)


def test_missing_lines_say_so(older: Path) -> None:
    (older / "meta/episodes.jsonl").unlink()
    with pytest.raises(errors.DatasetNotFoundError, match=r"episodes\.jsonl"):
        sl.open(older)


@pytest.mark.parametrize("column", ["task", "__index_level_0__"])
def test_tasks_are_named_in_either_way(tmp_path: Path, column: str) -> None:
    folder = by_hand.write_v3(tmp_path / "lerobot", by_hand.four(), task_column=column)
    assert sl.open(folder).schema.metadata.extra["source"]["tasks"] == {"0": "pick", "1": "place"}


def test_totals_are_compared(folder: Path) -> None:
    edited(folder, lambda info: info.update(total_episodes=5, total_frames=1))
    assert codes(folder, "metadata") == {"lerobot-count"}


def test_what_somebody_added_to_episodes_is_kept(folder: Path, older: Path) -> None:
    rewritten(folder / EPISODES, put("operator", ["ada", "ada", None, "joe"]))
    assert len(sl.open(folder).where("operator = 'ada'")) == 2
    lines = [json.loads(line) for line in (older / "meta/episodes.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({**line, "score": n / 2, "odd": [{}]}) + "\n" for n, line in enumerate(lines))
    (older / "meta/episodes.jsonl").write_text(text)
    assert len(sl.open(older).where("score > 0.4")) == 3


# ---- data files


def test_a_missing_data_file_is_a_finding_and_an_error(folder: Path) -> None:
    (folder / DATA).unlink()
    ds = sl.open(folder)
    assert "lerobot-missing-file" in codes(folder, "metadata")
    assert ds[2]["action"].shape == (25, 3)
    with pytest.raises(errors.MissingFileError, match="file-000"):
        ds[0]["action"]


def test_a_cut_data_file_is_a_finding_and_an_error(folder: Path) -> None:
    data = (folder / DATA).read_bytes()
    (folder / DATA).write_bytes(data[: len(data) // 2])
    assert "lerobot-steps" in codes(folder, "rows")
    with pytest.raises(errors.CorruptFileError, match="file-000"):
        sl.open(folder)[0]["action"]


def first_rows(count: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.slice(0, count)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (first_rows(5), "5 steps of episode 0"),
        (lambda table: table.drop_columns(["episode_index"]), "episode_index"),
        (lambda table: table.drop_columns(["action"]), "action"),
        (put("episode_index", [0.5] * 13), "episode_index"),
        (put("episode_index", [0, 1] + [0] * 11), "do not lie together"),
        (put("action", pa.array([[1.0, 2.0]] * 13, pa.list_(pa.float32()))), "action.*2 to 2 numbers"),
        (put("action", pa.array([[1.0, 2.0, 3.0]] * 12 + [None], pa.list_(pa.float32(), 3))), "action"),
        (put("action", pa.array([[1.0, 2.0, None]] * 13, pa.list_(pa.float32()))), "action"),
        (put("action", ["x"] * 13), "action"),
        (put("action", pa.array([1.0] * 13)), "action"),
        (put("task_index", [0.5] * 13), "task_index"),
    ],
)
def test_steps_that_are_not_what_is_meant_are_refused(
    folder: Path, change: Callable[[pa.Table], pa.Table], match: str
) -> None:
    other = folder / "data/chunk-000/file-001.parquet"  # the first file tells which columns there are
    before = pq.read_table(folder / DATA)
    rewritten(folder / DATA, change)
    if "action" not in pq.read_schema(folder / DATA).names:
        edited(folder, lambda info: info["features"].update(extra={"dtype": "float32", "shape": [1]}))
        rewritten(folder / DATA, lambda _: before)
        rewritten(other, lambda table: table.drop_columns(["action"]))
    ds = sl.open(folder)
    with pytest.raises(errors.CorruptFileError, match=match):
        ds.to_arrow()
    report = ds.validate(depth="rows")
    assert report.errors


def test_wider_floats_are_read_as_declared(folder: Path) -> None:
    """Many writers store float64 where float32 is declared; the official reader casts."""
    doubles = np.random.default_rng(0).normal(size=(13, 3))
    rewritten(folder / DATA, put("action", pa.array(doubles.tolist(), pa.list_(pa.float64()))))
    np.testing.assert_array_equal(sl.open(folder)[0]["action"], doubles[:12].astype(np.float32))


@pytest.mark.parametrize("groups", [True, False])
def test_row_groups_need_not_follow_episodes(tmp_path: Path, groups: bool) -> None:
    episodes = by_hand.four()
    folder = by_hand.write_v3(tmp_path / "lerobot", episodes, groups=groups, per_data_file=4)
    if not groups:
        rewritten(folder / DATA, lambda table: table)
        pq.write_table(pq.read_table(folder / DATA), folder / DATA, row_group_size=10)
    for one, row in zip(episodes, sl.open(folder), strict=True):
        np.testing.assert_array_equal(row["action"], one.values["action"])


def test_strange_episodes_in_a_file_are_a_finding(folder: Path) -> None:
    rewritten(folder / EPISODES, first_rows(3))
    assert codes(folder, "metadata") == {"lerobot-count"}
    assert "lerobot-steps" in codes(folder, "rows")
    assert len(sl.open(folder).to_arrow()) == 3


def test_images_that_rows_name_are_read_below_the_root_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "images").mkdir()
    (folder / "images/a.png").write_bytes(by_hand.png(1, 1))
    (tmp_path / "secret.png").write_bytes(by_hand.png(2, 2))

    def named(path: str) -> Callable[[pa.Table], pa.Table]:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return put("picture", pa.array([{"bytes": None, "path": path}] * 13, kind))

    rewritten(folder / DATA, named("images/a.png"))
    assert bytes(sl.open(folder)[0]["picture"].bytes(3)) == by_hand.png(1, 1)
    rewritten(folder / DATA, named("../secret.png"))
    with pytest.raises(errors.UnsafeReferenceError):
        sl.open(folder)[0]["picture"].bytes(3)


# ---- videos


def of_video(**columns: Any) -> Callable[[pa.Table], pa.Table]:
    def changed(table: pa.Table) -> pa.Table:
        for name, values in columns.items():
            table = put(f"videos/{CAM}/{name}", values)(table)
        return table

    return changed


def test_drifting_times_are_counted(tmp_path: Path) -> None:
    """As containers say durations a little too long: after some episodes the sum is a frame off."""
    episodes = [by_hand.record(number, 10) for number in range(12)]
    late = Fraction(1, 3 * FPS)
    folder = by_hand.write_v3(tmp_path / "lerobot", episodes, per_video_file=12, late=late)
    ds = sl.open(folder)
    for one, row in zip(episodes, ds, strict=True):
        np.testing.assert_array_equal(row[CAM][:], by_hand.frames(one.films[CAM]))
    assert codes(folder) == {"lerobot-video-drift"}
    rounded = [round(number * (1 + float(late)) * FPS) for number in range(12)]
    assert rounded != [number * 10 for number in range(12)]  # rounding alone would be wrong


def test_a_gap_in_a_file_is_passed_over(folder: Path) -> None:
    """Episode 1 was deleted from the list, and its frames stayed."""
    rewritten(folder / EPISODES, lambda table: table.take(pa.array([0, 2, 3])))
    edited(folder, lambda info: info.update(total_episodes=3, total_frames=44))
    ds, episodes = sl.open(folder), by_hand.four()
    np.testing.assert_array_equal(ds["episode_000002"][CAM][:], by_hand.frames(episodes[2].films[CAM]))
    assert "lerobot-video-gap" in codes(folder, "metadata")


def test_episodes_that_overlap_are_a_finding(folder: Path) -> None:
    rewritten(folder / EPISODES, of_video(from_timestamp=[0.0, 0.5, 1.3, 0.0], to_timestamp=[1.2, 0.6, 3.8, 0.7]))
    assert {"lerobot-video-overlap"} <= codes(folder, "metadata")


def test_times_of_another_length_are_a_finding(folder: Path) -> None:
    rewritten(folder / EPISODES, of_video(from_timestamp=[0.0, 1.2, 1.3, 0.0], to_timestamp=[1.2, 1.3, 9.8, 0.7]))
    assert {"lerobot-video-length"} == codes(folder, "metadata")


def test_frames_that_a_file_has_not_are_a_finding(folder: Path) -> None:
    rewritten(folder / EPISODES, of_video(from_timestamp=[9.0, 10.2, 10.3, 0.0], to_timestamp=[10.2, 10.3, 12.8, 0.7]))
    assert {"lerobot-video-frames"} <= codes(folder)
    with pytest.raises((errors.SeqlakeError, IndexError)):
        sl.open(folder)[0][CAM][0]


@pytest.mark.parametrize(
    "columns",
    [
        {"from_timestamp": [0.0, None, 1.3, 0.0]},
        {"from_timestamp": [0.0, float("nan"), 1.3, 0.0]},
        {"from_timestamp": [0.0, -1.0, 1.3, 0.0]},
        {"file_index": [0, None, 0, 1]},
        {"chunk_index": [0.0, float("nan"), 0.0, 0.0]},
    ],
)
def test_an_episode_without_a_place_has_no_video(folder: Path, columns: dict[str, Any]) -> None:
    rewritten(folder / EPISODES, of_video(**columns))
    ds = sl.open(folder)
    assert ds[1][CAM] is None
    assert "lerobot-video-missing" in codes(folder, "metadata")
    np.testing.assert_array_equal(ds[2][CAM][:], by_hand.frames(by_hand.four()[2].films[CAM]))


def test_a_missing_video_is_found(folder: Path, older: Path, tmp_path: Path) -> None:
    for place in (folder, older):
        next((place / "videos").rglob("*.mp4")).unlink()
        ds = sl.open(place)
        assert ds.validate().errors
        with pytest.raises(errors.ValidationError, match=r"not there"):
            sl.convert(ds, tmp_path / f"{place.name}-out", progress=False, workers=1)


def test_a_cut_video_is_found(folder: Path, tmp_path: Path) -> None:
    path = folder / f"videos/{CAM}/chunk-000/file-000.mp4"
    path.write_bytes(path.read_bytes()[:-300])
    ds = sl.open(folder)
    assert ds.validate(depth="decode").errors
    with pytest.raises(errors.SeqlakeError, match="episode_00000"):
        sl.convert(ds, tmp_path / "out", progress=False, workers=1)


def test_episodes_lie_in_the_order_of_their_files(tmp_path: Path) -> None:
    """Tools may put later episodes into earlier files."""
    episodes = [by_hand.record(number, 4 + number) for number in (2, 3, 0, 1)]
    folder = by_hand.write_v3(tmp_path / "lerobot", episodes)
    ds = sl.open(folder)
    assert sorted(row["episode_index"] for row in ds) == [0, 1, 2, 3]
    for one in episodes:
        row = ds[f"episode_{one.number:06d}"]
        np.testing.assert_array_equal(row["action"], one.values["action"])
        np.testing.assert_array_equal(row[CAM][:], by_hand.frames(one.films[CAM]))


@pytest.mark.parametrize("info", [{"self": 1}, {"dims": 3}, {"units": 5}, {"scalar": "yes"}, {"timestamps": "note"}])
def test_what_info_says_of_numbers_changes_none(folder: Path, info: dict[str, Any]) -> None:
    before = sl.open(folder)
    for name in ("action", "next.reward", "observation.state"):
        edited(folder, lambda said, name=name: said["features"][name].update(info=info))
    after = sl.open(folder)
    for name in ("action", "next.reward", "observation.state"):
        assert after.schema[name].arrow == before.schema[name].arrow
        np.testing.assert_array_equal(after[2][name], before[2][name])
    assert next(iter(sl.Loader(after, window={"action": range(2)}, batch_size=4)))["action"].shape == (4, 2, 3)


@pytest.mark.parametrize("ids", [["a", "a", "b", "c"], ["a", "", "b", "c"], ["a", None, "b", "c"], [1, 2, 3, 4]])
def test_ids_that_name_nothing_are_made_of_numbers(folder: Path, ids: list[Any]) -> None:
    rewritten(folder / EPISODES, put("sequence_id", ids))
    assert [row.id for row in sl.open(folder)] == [f"episode_{number:06d}" for number in range(4)]
    rewritten(folder / EPISODES, put("sequence_id", ["a", "b", "c", "d"]))
    assert [row.id for row in sl.open(folder)] == ["a", "b", "c", "d"]
