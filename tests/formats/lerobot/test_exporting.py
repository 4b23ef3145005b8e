"""LeRobot folders that we write: read back with us, and with pyarrow and PyAV alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.conversion import convert as conversion
from seqlake.errors import ColumnNotFoundError, DatasetExistsError, SchemaMismatchError, ValidationError
from seqlake.files.stores import open_store
from seqlake.formats import lerobot
from seqlake.formats.lerobot import counting
from seqlake.protocols import Readable
from seqlake.spec.schema import Column
from seqlake.testing.formats import FormatTests

from . import by_hand
from .by_hand import CAM, FPS

INFO = "meta/info.json"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
VERSIONS = ["v3.0", "v2.1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_hand.write(tmp_path_factory.mktemp("lerobot"), by_hand.four(), "v3.0")


def export(source: Any, out: Path, **options: Any) -> Path:
    sl.convert(source, out, to="lerobot", progress=False, **{"workers": 1, **options})
    return out


def info_of(folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((folder / INFO).read_text())
    return info


def data_of(folder: Path) -> pa.Table:
    """All steps, by pyarrow alone."""
    return pa.concat_tables(pq.read_table(path) for path in sorted((folder / "data").rglob("*.parquet")))


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "meta/episodes").rglob("*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def same_rows(one: Any, other: Any, *, columns: list[str] | None = None) -> None:
    """Every value and every frame."""
    for a, b in zip(one, other, strict=True):
        for name in columns or one.schema.names:
            if one.schema[name].category in {"file", "frames"}:
                np.testing.assert_array_equal(a[name][:], b[name][:])
            elif isinstance(a[name], np.ndarray):
                assert a[name].dtype == b[name].dtype
                np.testing.assert_array_equal(a[name], b[name])
            else:
                assert a[name] == b[name], name


class TestExported(FormatTests):
    @pytest.fixture
    def source(self, folder: Path, tmp_path: Path) -> Readable:
        return lerobot.scan(str(export(sl.open(folder), tmp_path / "out", data_files_size_in_mb=0.005)))


# ---- there and back


@pytest.mark.sampled
@pytest.mark.parametrize("before", ["v2.0", "v2.1", "v3.0"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_came_from_lerobot_goes_back_the_same(tmp_path: Path, before: str, version: str) -> None:
    source = by_hand.write(tmp_path / "before", by_hand.four(), before)
    first = sl.open(source)
    again = sl.open(export(first, tmp_path / "after", version=version))
    assert not again.validate(depth="decode").errors
    assert not again.validate(depth="decode").warnings
    assert again.schema.names == first.schema.names
    assert {name: again.schema[name].type for name in again.schema} == {n: first.schema[n].type for n in first.schema}
    same_rows(first, again)
    was, now = info_of(source), info_of(tmp_path / "after")
    versioned = {"codebase_version", "features", "data_path", "video_path", "total_videos", "total_chunks"}
    versioned |= {"data_files_size_in_mb", "video_files_size_in_mb"}
    assert {k: v for k, v in now.items() if k not in versioned} == {k: v for k, v in was.items() if k not in versioned}
    assert list(now["features"]) == list(was["features"])
    for name, feature in was["features"].items():
        renamed = {"info" if key == "video_info" else key: value for key, value in feature.items()}
        assert now["features"][name] == renamed, name


@pytest.mark.parametrize("options", [{}, {"videos": "episode"}, {"version": "v2.1"}, {"files": "hardlink"}])
def test_frames_are_those_of_the_packets(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """By PyAV alone: frame k of an episode is shown at from_timestamp + k / fps, and is the recorded one."""
    out = export(sl.open(folder), tmp_path / "out", **options)
    shared = info_of(out)["codebase_version"] == "v3.0"
    for one in by_hand.four():
        if shared:
            row = episodes_of(out)[one.number]
            place = (row[f"videos/{CAM}/chunk_index"], row[f"videos/{CAM}/file_index"])
            path, start = (
                out / f"videos/{CAM}/chunk-{place[0]:03d}/file-{place[1]:03d}.mp4",
                row[f"videos/{CAM}/from_timestamp"],
            )
            assert row[f"videos/{CAM}/to_timestamp"] == pytest.approx(start + one.length / FPS, abs=1e-9)
            assert start == 0 or options.get("videos") != "episode"
        else:
            path, start = out / f"videos/chunk-000/{CAM}/episode_{one.number:06d}.mp4", 0.0
        with av.open(path) as container:
            times = {
                round(float(f.pts * f.time_base), 6): f.to_ndarray(format="rgb24") for f in container.decode(video=0)
            }
        expected = by_hand.frames(one.films[CAM])
        for step in range(one.length):
            np.testing.assert_array_equal(times[round(start + step / FPS, 6)], expected[step])


def test_data_is_what_the_layout_says(folder: Path, tmp_path: Path) -> None:
    out = export(sl.open(folder), tmp_path / "out")
    table, was = data_of(out), data_of(folder)
    assert table.column_names == was.column_names
    for name in table.column_names:
        assert table[name].type == was[name].type, name
        if name != "picture":
            assert table[name].equals(was[name]), name
    file = pq.ParquetFile(out / "data/chunk-000/file-000.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [12, 1, 25, 7]
    described = json.loads(file.schema_arrow.metadata[b"huggingface"])["info"]["features"]
    assert described["observation.state"] == {
        "feature": {"dtype": "float32", "_type": "Value"},
        "length": 6,
        "_type": "Sequence",
    }
    assert described["pose"] == {"shape": [2, 3], "dtype": "float64", "_type": "Array2D"}
    assert described["picture"] == {"_type": "Image"}
    assert CAM not in described
    rows = episodes_of(out)
    assert [(r["dataset_from_index"], r["dataset_to_index"]) for r in rows] == [(0, 12), (12, 13), (13, 38), (38, 45)]
    assert pq.read_table(out / "meta/tasks.parquet").to_pandas().to_dict() == {"task_index": {"pick": 0, "place": 1}}
    assert sorted(path.name for path in out.iterdir()) == ["data", "meta", "videos"]


# ---- statistics


def test_statistics_are_exact(folder: Path, tmp_path: Path) -> None:
    out = export(sl.open(folder), tmp_path / "out")
    stats = json.loads((out / "meta/stats.json").read_text())
    every = by_hand.four()
    for name in ("observation.state", "action", "pose", "next.reward", "next.done"):
        values = np.concatenate([one.values[name] for one in every]).astype(np.float64)
        values = values.reshape(len(values), *(values.shape[1:] or (1,)))
        same_statistics(stats[name], values)
        for row, one in zip(episodes_of(out), every, strict=True):
            own = one.values[name].astype(np.float64)
            kept = {key: row[f"stats/{name}/{key}"] for key in stats[name]}
            same_statistics(kept, own.reshape(len(own), *(own.shape[1:] or (1,))))
    assert "note" not in stats
    index = np.arange(45.0)[:, None]
    same_statistics(stats["index"], index)
    assert stats["episode_index"]["max"] == [3.0]


def same_statistics(stats: dict[str, Any], values: np.ndarray) -> None:
    assert stats["count"] == [len(values)]
    np.testing.assert_array_equal(stats["min"], values.min(0))
    np.testing.assert_array_equal(stats["max"], values.max(0))
    np.testing.assert_allclose(stats["mean"], values.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(stats["std"], values.std(0), rtol=1e-12, atol=1e-12)
    for key, point in QUANTILES.items():
        np.testing.assert_array_equal(stats[key], np.quantile(values, point, axis=0, method="inverted_cdf"))


@pytest.mark.parametrize("version", VERSIONS)
def test_statistics_of_pictures_are_those_of_all_frames(folder: Path, tmp_path: Path, version: str) -> None:
    out = export(sl.open(folder), tmp_path / "out", version=version, picture_statistics="all")
    films = [by_hand.frames(one.films[CAM]) for one in by_hand.four()]
    if version == "v2.1":
        lines = [json.loads(line) for line in (out / "meta/episodes_stats.jsonl").read_text().splitlines()]
        assert [line["episode_index"] for line in lines] == [0, 1, 2, 3]
        for line, film in zip(lines, films, strict=True):
            assert sorted(line["stats"][CAM]) == ["count", "max", "mean", "min", "std"]
            same_pictures(line["stats"][CAM], film)
        return
    stats = json.loads((out / "meta/stats.json").read_text())
    same_pictures(stats[CAM], np.concatenate(films))
    assert np.shape(stats["picture"]["q50"]) == (3, 1, 1)
    for row, film in zip(episodes_of(out), films, strict=True):
        same_pictures({key: row[f"stats/{CAM}/{key}"] for key in stats[CAM]}, film)
    none = export(sl.open(folder), tmp_path / "none", picture_statistics="none")
    assert CAM not in json.loads((none / "meta/stats.json").read_text())


def same_pictures(stats: dict[str, Any], frames: np.ndarray) -> None:
    pixels = frames.reshape(-1, 3) / 255
    assert stats["count"] == [len(frames)]
    for key, expected in {
        "min": pixels.min(0),
        "max": pixels.max(0),
        "mean": pixels.mean(0),
        "std": pixels.std(0),
    }.items():
        np.testing.assert_allclose(stats[key], expected.reshape(3, 1, 1), rtol=1e-9, atol=1e-12)
    for key in QUANTILES.keys() & stats.keys():
        expected = np.quantile(pixels, QUANTILES[key], axis=0, method="inverted_cdf")
        np.testing.assert_allclose(stats[key], expected.reshape(3, 1, 1), atol=1e-12)


def test_numbers_that_are_not_finite_do_not_count() -> None:
    values = np.array([[1.0, np.nan], [np.inf, np.nan], [3.0, np.nan]])
    stats = counting.of_numbers(values)
    assert (stats["min"][0], stats["max"][0], stats["mean"][0], stats["std"][0]) == (1.0, 3.0, 2.0, 1.0)
    assert all(np.isfinite(one).all() for one in stats.values())
    assert stats["count"].tolist() == [3]


# ---- where files end


def test_files_and_chunks_roll_over(tmp_path: Path) -> None:
    many = [by_hand.record(number, 6) for number in range(7)]
    source = sl.open(by_hand.write_v3(tmp_path / "before", many))
    tiny = {"data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001, "chunks_size": 2}
    out = export(source, tmp_path / "out", **tiny)
    for kind in ("data", f"videos/{CAM}", "meta/episodes"):
        names = sorted(str(p.relative_to(out / kind)).partition(".")[0] for p in (out / kind).rglob("*") if p.is_file())
        assert names[:3] == ["chunk-000/file-000", "chunk-000/file-001", "chunk-001/file-000"], kind
        assert len(names) == 7, kind
    assert {key: info_of(out)[key] for key in tiny} == tiny
    same_rows(source, sl.open(out))
    older = export(source, tmp_path / "older", version="v2.1", chunks_size=3)
    assert (older / f"videos/chunk-002/{CAM}/episode_000006.mp4").exists()
    assert (info_of(older)["total_chunks"], info_of(older)["total_videos"]) == (3, 7)
    same_rows(source, sl.open(older))


def test_parts_of_many_workers_are_the_same_dataset(tmp_path: Path) -> None:
    many = [by_hand.record(n, 5 + n % 4, tasks=[("wipe", "pick", "place")[n % 3]]) for n in range(9)]
    source = sl.open(by_hand.write_v3(tmp_path / "before", many, per_data_file=1))
    assert len(conversion.plan(source, bytes_per_part=9_000).tasks) > 3
    outs = [
        export(source, tmp_path / f"out{workers}", workers=workers, bytes_per_part=nbytes)
        for workers, nbytes in ((1, 1 << 27), (2, 9_000))
    ]
    one, two = map(data_of, outs)
    assert one.equals(two)
    assert [r["tasks"] for r in episodes_of(outs[0])] == [r["tasks"] for r in episodes_of(outs[1])]
    assert (outs[0] / "meta/stats.json").read_bytes() == (outs[1] / "meta/stats.json").read_bytes()
    same_rows(source, sl.open(outs[1]))
    assert len(list((outs[1] / "videos").rglob("*.mp4"))) > 1


def test_others_may_read_what_is_written(folder: Path, tmp_path: Path) -> None:
    for path in folder.rglob("*.mp4"):
        path.chmod(0o600)  # as the official recorder leaves them
    for options in ({}, {"version": "v2.1"}, {"files": "hardlink"}):
        out = export(sl.open(folder), tmp_path / str(len(options) + ("files" in options)), **options)
        assert {path.stat().st_mode & 0o444 for path in out.rglob("*") if path.is_file()} == {0o444}
    for path in folder.rglob("*.mp4"):
        path.chmod(0o644)


def test_whole_files_are_linked_where_that_is_asked_for(tmp_path: Path) -> None:
    before = by_hand.write_v2(tmp_path / "before", by_hand.four())
    out = export(sl.open(before), tmp_path / "out", version="v2.1", files="hardlink")
    copied = export(sl.open(before), tmp_path / "copied", version="v2.1")
    for path in before.rglob("*.mp4"):
        assert (out / path.relative_to(before)).stat().st_ino == path.stat().st_ino
        assert (copied / path.relative_to(before)).stat().st_ino != path.stat().st_ino
        assert (copied / path.relative_to(before)).read_bytes() == path.read_bytes()


# ---- datasets of ours


def recorded(place: Path, schema: dict[str, Any], rows: list[dict[str, Any]]) -> sl.Dataset:
    dataset = sl.create(place, sl.Schema(schema))
    with dataset.writer() as writer:
        for number, row in enumerate(rows):
            writer.add(f"take_{number}", **row)
    return sl.open(place)


def test_a_dataset_of_ours_keeps_what_it_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    schema = {
        "split": pa.string(),
        "task": pa.string(),
        "operator": pa.string(),
        "score": pa.float32(),
        "good": pa.bool_(),
        "tags": pa.list_(pa.string()),
        "embedding": sl.Embedding(dim=4),
        "action": sl.Trajectory(dim=3, fps=FPS, units="rad", names=["a", "b", "c"]),
        "reward": Column("reward", pa.list_(pa.float32()), sl.Trajectory(fps=FPS)),
        "grid": sl.Trajectory(dim=6, shape=[2, 3], dtype=pa.int16(), fps=FPS),
        "cam": sl.Video(fps=FPS),
        "still": sl.Image(format="jpeg", frames="bytes"),
    }
    rows = [
        {
            "split": ("train", "val")[n % 2],
            "task": f"do {n % 3}",
            "operator": "ä" * n,
            "score": n / 3,
            "good": n % 2 == 0,
            "tags": ["x"] * n,
            "embedding": rng.normal(size=4),
            "action": rng.normal(size=(5 + n, 3)),
            "reward": rng.normal(size=5 + n),
            "grid": rng.integers(0, 9, (5 + n, 2, 3)),
            "cam": np.full((5 + n, 32, 48, 3), 30 * n, np.uint8),
            "still": np.full((5 + n, 8, 8, 3), 30 * n, np.uint8),
        }
        for n in range(5)
    ]
    ds = recorded(tmp_path / "ds", schema, rows)
    out = export(ds, tmp_path / "out")
    again = sl.open(out)
    assert not again.validate(depth="decode").errors
    order = ["take_0", "take_2", "take_4", "take_1", "take_3"]  # of a split, since LeRobot's are ranges
    assert [row.id for row in again] == order
    assert info_of(out)["splits"] == {"train": "0:3", "val": "3:5"}
    for key in order:
        for name in schema:
            a, b = ds[key][name], again[key][name]
            if ds.schema[name].category in {"file", "frames"}:
                np.testing.assert_array_equal(a[:], b[:])
            else:
                np.testing.assert_array_equal(a, b)
    assert again.schema["action"].type == ds.schema["action"].type
    assert again.schema["reward"].shape == ()
    assert again.schema["grid"].shape == (2, 3)
    assert again.schema["embedding"].type == ds.schema["embedding"].type
    assert again.schema["embedding"].category == "vector"
    for name in ("cam", "still"):
        kept = again.schema[name].type
        assert kept is not None
        assert kept.get("resolution") == ([48, 32] if name == "cam" else [8, 8])
    assert [row["task"] for row in again] == ["do 0", "do 2", "do 1", "do 1", "do 0"]
    same_rows(again, sl.open(export(again, tmp_path / "back")))
    older = sl.open(export(ds, tmp_path / "older", version="v2.1"))
    for key in order:
        for name in ("operator", "score", "good", "tags", "action", "reward", "grid"):
            np.testing.assert_array_equal(older[key][name], again[key][name])


def test_instructions_are_tasks(tmp_path: Path) -> None:
    schema = {"language_instruction": pa.string(), "said": pa.list_(pa.string()), "action": sl.Trajectory(dim=1, fps=5)}
    rows: list[dict[str, Any]] = [
        {"language_instruction": "open", "said": ["look", "look", "grab"], "action": np.zeros((3, 1))},
        {"language_instruction": None, "said": ["rest", "rest"], "action": np.zeros((2, 1))},
    ]
    ds = recorded(tmp_path / "ds", schema, rows)
    out = sl.open(export(ds, tmp_path / "one"))
    assert [row["task"] for row in out] == ["open", ""]
    assert [row["language_instruction"] for row in out] == ["open", None]
    each = sl.open(export(ds, tmp_path / "two", task_column="said", tasks={"rest": "wait"}))
    assert [row["task_index"].tolist() for row in each] == [[0, 0, 1], [2, 2]]
    assert [row["tasks"] for row in each] == [["look", "grab"], ["wait"]]
    with pytest.raises(ColumnNotFoundError, match="nothing"):
        export(ds, tmp_path / "three", task_column="nothing")
    with pytest.raises(SchemaMismatchError, match="texts"):
        export(ds, tmp_path / "three", task_column="action")


def test_what_has_no_place_is_said_first(tmp_path: Path) -> None:
    schema = {
        "action": sl.Trajectory(dim=2, fps=5),
        "a/b": sl.Trajectory(dim=2, fps=5),
        "..": sl.Trajectory(dim=2, fps=5),
        "timestamp": sl.Trajectory(dim=2, fps=5),
        "stats/x": pa.int64(),
        "task": pa.int64(),
        "length": pa.float64(),
        "robot_type": pa.int32(),
        "sound": sl.Audio(),
        "mesh": sl.Spatial3D(),
        "blob": pa.binary(),
        "ragged": pa.list_(pa.list_(pa.list_(pa.float32()))),
        "state": pa.struct([("a", pa.int32())]),
        "n": pa.int64(),
    }
    ds = sl.create(tmp_path / "ds", sl.Schema(schema))
    plan = sl.convert(ds, tmp_path / "out", to="lerobot", dry_run=True)
    assert set(plan.dropped) == set(schema) - {"action", "n"}
    assert "/" not in plan.schema["action"].name
    assert "audio" in plan.dropped["sound"]
    assert "dim or shape" in plan.dropped["ragged"]


def test_what_lerobot_counts_itself_is_dropped_with_a_word(tmp_path: Path) -> None:
    """Of rows that did not come from there these columns are numbers of somebody's own."""
    stamps = Column("timestamp", pa.list_(pa.int64()), sl.Trajectory(dtype=pa.int64(), fps=5))
    schema = {"episode_index": pa.int64(), "timestamp": stamps, "action": sl.Trajectory(dim=1, fps=5)}
    rows = [{"episode_index": 7 - n, "timestamp": [10, 20], "action": np.full((2, 1), n)} for n in range(2)]
    dataset = sl.create(tmp_path / "ds", sl.Schema(schema))
    with dataset.writer() as writer:
        for number, row in enumerate(rows):
            writer.add(f"episode_{7 - number:06d}", **row)
    plan = sl.convert(tmp_path / "ds", tmp_path / "out", to="lerobot", dry_run=True)
    assert set(plan.dropped) == {"episode_index", "timestamp"}
    out = sl.open(export(sl.open(tmp_path / "ds"), tmp_path / "out"))
    assert [row.id for row in out] == ["episode_000007", "episode_000006"]
    assert [row["action"].item(0) for row in out] == [0, 1]


def test_tasks_that_an_episode_lists_stay(tmp_path: Path) -> None:
    """Though no step of it has one of them."""
    before = by_hand.write_v3(tmp_path / "before", by_hand.four())
    path = before / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("tasks")
    cells = pa.array([["place", "pick"], ["pick"], ["pick", "place"], ["place"]])
    pq.write_table(table.set_column(place, "tasks", cells), path)
    after = sl.open(export(sl.open(before), tmp_path / "out"))
    assert [row["tasks"] for row in after] == cells.to_pylist()
    assert [set(row["task_index"].tolist()) for row in after] == [{0}, {0}, {0, 1}, {1}]


# ---- refused


def two_columns(place: Path, **rows: Any) -> sl.Dataset:
    schema = {"action": sl.Trajectory(dim=2, fps=5), "force": sl.Trajectory(dim=1, fps=rows.pop("fps", 5))}
    return recorded(place, schema, [rows])


def test_rates_that_differ_are_refused_with_advice(tmp_path: Path) -> None:
    ds = two_columns(tmp_path / "ds", fps=20, action=np.zeros((4, 2)), force=np.zeros((16, 1)))
    with pytest.raises(SchemaMismatchError, match="'force' has 20") as caught:
        export(ds, tmp_path / "out")
    assert "sl.resample(ds, out, fps=5)" in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()
    out = sl.open(export(ds, tmp_path / "out", without=["force"]))
    assert "force" not in out.schema
    even = sl.resample(ds, tmp_path / "even", fps=5)
    assert "force" in sl.open(export(even, tmp_path / "resampled")).schema


def test_lengths_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    ds = two_columns(tmp_path / "ds", action=np.zeros((4, 2)), force=np.zeros((5, 1)))
    with pytest.raises(ValidationError, match="'take_0': all features .* action has 4, force has 5"):
        export(ds, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(("cell", "words"), [(np.zeros((0, 1)), "no steps"), (None, "null")])
def test_cells_that_are_no_episode(tmp_path: Path, cell: Any, words: str) -> None:
    schema = {"action": sl.Trajectory(dim=1, fps=5)}
    ds = recorded(tmp_path / "ds", schema, [{"action": np.ones((2, 1))}, {"action": cell}])
    with pytest.raises(ValidationError, match=rf"(?s)'take_1'.*{words}"):
        export(ds, tmp_path / "out")


def test_a_folder_has_episodes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="no sequence"):
        export(sl.open(folder).where("length > 1000"), tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_a_dataset_without_a_rate_needs_one(tmp_path: Path) -> None:
    ds = recorded(tmp_path / "ds", {"action": sl.Trajectory(dim=1)}, [{"action": np.ones((2, 1))}])
    with pytest.raises(SchemaMismatchError, match="one rate") as caught:
        export(ds, tmp_path / "out")
    assert "fps=" in (caught.value.hint or "")
    out = export(ds, tmp_path / "out", fps=12.5)
    assert info_of(out)["fps"] == 12.5
    np.testing.assert_array_equal(data_of(out)["timestamp"].to_numpy(), np.array([0, 0.08], np.float32))
    with pytest.raises(DatasetExistsError):
        export(ds, tmp_path / "out", fps=12.5)
    with pytest.raises(SchemaMismatchError, match="at least one feature"):
        export(ds.select("sequence_id"), tmp_path / "none", fps=5)


@pytest.mark.parametrize(
    "options",
    [
        {"version": "v1.0"},
        {"version": 3},
        {"videos": "all"},
        {"files": "reference"},
        {"picture_statistics": 7},
        {"chunks_size": 0},
        {"data_files_size_in_mb": "x"},
        {"images": "files"},
        {"images": 3},
        {"tasks": ["a"]},
        {"tasks": {"a": 1}},
        {"without": "action"},
        {"encoding": "libx264"},
        {"fps": -1},
        {"fps": "ten"},
    ],
)
def test_options_that_cannot_be(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="found"):
        export(sl.open(folder), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_columns_that_are_not_there(folder: Path, tmp_path: Path) -> None:
    for options in ({"without": ["nothing"]}, {"encoding": {"action": sl.Encoding()}}, {"images": {CAM: "video"}}):
        with pytest.raises((ColumnNotFoundError, SchemaMismatchError)):
            export(sl.open(folder), tmp_path / "out", **options)


# ---- videos


def test_a_video_that_is_not_there_or_has_other_frames(tmp_path: Path) -> None:
    schema = {"action": sl.Trajectory(dim=1, fps=FPS), "cam": sl.Video(fps=FPS)}
    film = tmp_path / "film.mp4"
    film.write_bytes(by_hand.film(0, 6))
    ds = recorded(tmp_path / "ds", schema, [{"action": np.zeros((7, 1)), "cam": sl.File(film)}])
    with pytest.raises(ValidationError, match="'take_0', column 'cam': the video has 6 frames, .* 7 steps"):
        export(ds, tmp_path / "out")
    next((tmp_path / "ds/files").rglob("*.mp4")).unlink()
    with pytest.raises(ValidationError, match="not there"):
        export(ds, tmp_path / "out")
    empty = recorded(tmp_path / "empty", schema, [{"action": np.zeros((7, 1))}])
    with pytest.raises(ValidationError, match="no video"):
        export(empty, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_a_damaged_video_is_refused(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(folder, tmp_path / "ds", progress=False, workers=1)
    film = next((tmp_path / "ds/files").rglob("*.mp4"))
    data = bytearray(film.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    film.write_bytes(data)
    with pytest.raises(ValidationError, match=rf"Sequence 'episode_00000\d', column '{CAM}': "):
        export(ds, tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


def test_other_parameters_begin_another_file(tmp_path: Path) -> None:
    """A file has one set of parameters, so that every decoder shows what was recorded."""
    schema = {"action": sl.Trajectory(dim=1, fps=FPS), "cam": sl.Video(fps=FPS)}
    rows = []
    for number, codec in enumerate(["libx264", "libx264", "libx265", "libx264"]):
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(by_hand.film(number, 5, codec=codec))
        rows.append({"action": np.zeros((5, 1)), "cam": sl.File(path)})
    ds = recorded(tmp_path / "ds", schema, rows)
    out = export(ds, tmp_path / "out")
    assert [row["videos/cam/file_index"] for row in episodes_of(out)] == [0, 0, 1, 2]
    same_rows(ds, sl.open(out), columns=["cam"])


def test_a_film_between_key_frames_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cell = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
    schema = sl.Schema({"action": sl.Trajectory(dim=1, fps=FPS), "cam": Column("cam", cell, sl.Video(fps=FPS))})
    film = tmp_path / "ds" / "shared" / "film.mp4"
    ds = sl.create(tmp_path / "ds", schema)
    by_hand.put(film, by_hand.film(0, 20, gop=8))
    with ds.writer() as writer:
        for number, first in enumerate((0, 3)):
            part = {"url": "shared/film.mp4", "first_frame": first, "num_frames": 9}
            writer.add(f"take_{number}", action=np.zeros((9, 1)), cam=part)
    with caplog.at_level(logging.WARNING):
        out = sl.open(export(ds, tmp_path / "out"))
    assert "'take_1', column 'cam': " in caplog.text
    assert "'take_0'" not in caplog.text
    frames = by_hand.frames(film.read_bytes())
    np.testing.assert_array_equal(out[0]["cam"][:], frames[:9])
    apart = np.abs(out[1]["cam"][:].astype(int) - frames[3:12])
    assert apart.max() < 60
    assert apart.mean() < 2
    np.testing.assert_array_equal(out[1]["cam"][5:], frames[8:12])  # from the key frame on packets are copied


def test_what_no_mp4_holds_is_encoded_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    film = tmp_path / "film.webm"
    with av.open(str(film), "w") as container:
        stream = container.add_stream("libvpx", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for step in range(6):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * step, np.uint8))))
        container.mux(stream.encode())
    schema = {"action": sl.Trajectory(dim=1, fps=FPS), "cam": sl.Video(fps=FPS)}
    ds = recorded(tmp_path / "ds", schema, [{"action": np.zeros((6, 1)), "cam": sl.File(film)}])
    with caplog.at_level(logging.WARNING):
        out = export(ds, tmp_path / "out")
    assert "cannot hold vp8" in caplog.text
    assert info_of(out)["features"]["cam"]["info"]["video.codec"] == "h264"
    assert np.abs(sl.open(out)[0]["cam"][:].astype(int) - ds[0]["cam"][:]).mean() < 5


def test_videos_are_encoded_anew_only_where_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    ds = sl.open(folder)
    encoding = sl.Encoding(codec="libx265", keyframe_every=2)
    out = export(ds, tmp_path / "out", encoding={CAM: encoding}, images={"picture": "video"})
    features = info_of(out)["features"]
    assert (features[CAM]["info"]["video.codec"], features["picture"]["info"]["video.codec"]) == ("hevc", "h264")
    assert (features["picture"]["dtype"], features["picture"]["shape"]) == ("video", [6, 8, 3])
    again = sl.open(out)
    assert not again.validate(depth="decode").errors
    for a, b in zip(ds, again, strict=True):
        assert np.abs(a[CAM][:].astype(int) - b[CAM][:]).mean() < 6
        assert np.abs(a["picture"][:].astype(int) - b["picture"][:]).mean() < 6


def test_pictures_of_files_lie_in_the_rows(tmp_path: Path) -> None:
    schema = {"action": sl.Trajectory(dim=1, fps=5), "still": sl.Image(format="png", frames="files")}
    pictures = np.random.default_rng(0).integers(0, 255, (3, 8, 9, 3), dtype=np.uint8)
    ds = recorded(tmp_path / "ds", schema, [{"action": np.zeros((3, 1)), "still": pictures}])
    out = export(ds, tmp_path / "out")
    cells = data_of(out)["still"].to_pylist()
    assert [cell["path"] for cell in cells] == [f"frame-{step:06d}.png" for step in range(3)]
    np.testing.assert_array_equal(sl.open(out)[0]["still"][:], pictures)
    assert info_of(out)["features"]["still"]["shape"] == [8, 9, 3]
    next((tmp_path / "ds/files").rglob("*.png")).unlink()
    with pytest.raises(ValidationError, match="'take_0', column 'still', step"):
        export(ds, tmp_path / "again")


@pytest.mark.parametrize("images", ["bytes", "video"])
def test_pictures_of_several_sizes_are_refused(tmp_path: Path, images: str) -> None:
    schema = {"action": sl.Trajectory(dim=1, fps=5), "still": sl.Image(format="png", frames="bytes")}
    rows = [{"action": np.zeros((2, 1)), "still": np.zeros((2, 16, width, 3), np.uint8)} for width in (16, 32)]
    ds = recorded(tmp_path / "ds", schema, rows)
    for nbytes in (1, 1 << 27):
        with pytest.raises(ValidationError, match="size"):
            export(ds, tmp_path / "out", images=images, bytes_per_part=nbytes)
        assert not list(tmp_path.glob("out/*"))


# ---- depth


def test_depth_of_twelve_bits_is_copied_and_other_depth_quantised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    near = sl.Depth(fps=5, depth_min=0.1, depth_max=4.0)
    schema = {"action": sl.Trajectory(dim=1, fps=5), "near": near, "far": sl.Depth(fps=5)}
    metres = np.linspace(0.2, 3.9, 4 * 16 * 24, dtype=np.float32).reshape(4, 16, 24)
    metres[0, 0, 0] = 0  # not measured
    ds = recorded(tmp_path / "ds", schema, [{"action": np.zeros((4, 1)), "near": metres, "far": metres}])
    with caplog.at_level(logging.WARNING):
        out = export(ds, tmp_path / "out", depth_max=8.0)
    assert "column 'far': 4 depth maps were quantised to 12 bits up to 8 m" in caplog.text
    assert "'near'" not in caplog.text
    features = info_of(out)["features"]
    for name, most in {"near": 4.0, "far": 8.0}.items():
        info = features[name]["info"]
        assert (info["video.pix_fmt"], info["video.codec"], info["is_depth_map"]) == ("gray12le", "hevc", True)
        assert (info["depth_max"], info["use_log"], info["video.channels"]) == (most, True, 1)
    again = sl.open(out)
    np.testing.assert_array_equal(again[0]["near"][:], ds[0]["near"][:])
    np.testing.assert_allclose(again[0]["far"][:][..., 0], metres, atol=0.004)
    assert again[0]["far"][0][0, 0] == 0
    stats = json.loads((out / "meta/stats.json").read_text())["far"]
    assert np.shape(stats["max"]) == (1, 1, 1)
    assert stats["min"][0][0][0] == pytest.approx(0.2, abs=0.01)
    assert stats["max"][0][0][0] == pytest.approx(3.9, abs=0.01)
    back = sl.open(export(again, tmp_path / "back"))
    np.testing.assert_array_equal(back[0]["far"][:], again[0]["far"][:])


def test_language_and_texts_come_back(tmp_path: Path) -> None:
    said = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("at", pa.float64())]))
    before = by_hand.write_v3(tmp_path / "before", by_hand.four())
    info = info_of(before)
    info["features"]["language_events"] = {"dtype": "language", "shape": [1], "names": None}
    (before / INFO).write_text(json.dumps(info))
    for path in (before / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        cells = [[{"role": "user", "content": f"{n}", "at": n / 2}] * (n % 3) for n in range(len(table))]
        pq.write_table(table.append_column("language_events", pa.array(cells, said)), path)
    first = sl.open(before)
    same_rows(first, sl.open(export(first, tmp_path / "out")), columns=["language_events", "note"])


# ---- editing


def test_episodes_are_deleted_and_packets_copied(folder: Path, tmp_path: Path) -> None:
    before = sl.open(folder)
    rest = before.where("episode_index <> 1")
    after = sl.open(export(rest, tmp_path / "out"))
    assert [row["episode_index"] for row in after] == [0, 1, 2]
    assert [row.id for row in after] == [f"episode_{n:06d}" for n in range(3)]
    counted = {"sequence_id", "episode_index", "index"}
    same_rows(rest, after, columns=[name for name in before.schema.names if name not in counted])
    assert np.concatenate([row["index"] for row in after]).tolist() == list(range(44))
    assert not after.validate(depth="decode").warnings
    kept = info_of(tmp_path / "out")
    assert (kept["total_episodes"], kept["total_frames"], kept["splits"]) == (3, 44, {"train": "0:3"})


def test_tasks_that_nothing_uses_go(folder: Path, tmp_path: Path) -> None:
    out = export(sl.open(folder).where("task = 'place'"), tmp_path / "out")
    assert pq.read_table(out / "meta/tasks.parquet").to_pydict() == {"task_index": [0], "task": ["place"]}


def test_tasks_are_changed(folder: Path, tmp_path: Path) -> None:
    after = sl.open(export(sl.open(folder), tmp_path / "out", tasks={"pick": "pick it up"}))
    assert [row["tasks"] for row in after] == [["pick it up"], ["pick it up"], ["pick it up", "place"], ["place"]]
    source = after.schema.metadata.extra["source"]["tasks"]
    named = [{source[str(number)] for number in row["task_index"].tolist()} for row in after]
    assert named == [{"pick it up"}, {"pick it up"}, {"pick it up", "place"}, {"place"}]


def test_features_are_added_removed_and_renamed(folder: Path, tmp_path: Path) -> None:
    before = sl.open(folder)
    sl.convert(before, tmp_path / "ds", files="reference", progress=False, workers=1)
    ds = sl.open(tmp_path / "ds", allow_outside=True)
    assert not (tmp_path / "ds/files").exists()  # no video was copied
    ds.rename_column("action", "move")
    ds.drop_column("pose")
    speed = {
        row.id: np.gradient(row["observation.state"][:, 0]) if row["length"] > 1 else np.zeros(1) for row in before
    }
    ds.add_column("speed", Column("speed", pa.list_(pa.float32()), sl.Trajectory(fps=FPS)), values=speed)
    ds.add_column("operator", pa.string(), sql="'ann'")
    ds.update([{"sequence_id": "episode_000000", "task": "rest", "tasks": ["rest"]}])
    out = export(ds, tmp_path / "out")
    after = sl.open(out)
    assert list(info_of(out)["features"]) == [
        *(name for name in by_hand.FEATURES if name not in {"action", "pose"}),
        CAM,
        *by_hand.BOOKKEEPING,
        "move",
        "speed",
    ]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a["action"], b["move"])
        np.testing.assert_array_equal(np.asarray(speed[a.id], np.float32), b["speed"])
        np.testing.assert_array_equal(a[CAM][:], b[CAM][:])
    assert {row["operator"] for row in after} == {"ann"}
    assert [row["task"] for row in after] == ["rest", "pick", "pick", "place"]
    stats = json.loads((out / "meta/stats.json").read_text())
    assert "action" not in stats
    assert stats["speed"]["count"] == [45]


def test_folders_are_merged_and_tasks_numbered_anew(tmp_path: Path) -> None:
    """Each counts its own tasks: the same numbers mean other texts."""
    parts = [by_hand.four(), [by_hand.record(0, 5, tasks=["place"]), by_hand.record(1, 6, tasks=["place", "pick"])]]
    folders = [sl.open(by_hand.write_v3(tmp_path / str(n), some)) for n, some in enumerate(parts)]
    assert [one.schema.metadata.extra["source"]["tasks"]["0"] for one in folders] == ["pick", "place"]
    sl.merge(folders, tmp_path / "ds", prefixes=["a_", "b_"], files="reference")
    merged = sl.open(tmp_path / "ds", allow_outside=True)
    after = sl.open(export(merged, tmp_path / "out"))
    assert [row["episode_index"] for row in after] == list(range(6))
    texts = after.schema.metadata.extra["source"]["tasks"]
    for row, one in zip(after, [*parts[0], *parts[1]], strict=True):
        assert row["tasks"] == one.tasks
        steps = [texts[str(number)] for number in row["task_index"].tolist()]
        assert list(dict.fromkeys(steps)) == one.tasks
        np.testing.assert_array_equal(row["action"], one.values["action"])
        np.testing.assert_array_equal(row[CAM][:], by_hand.frames(one.films[CAM]))
    assert not after.validate(depth="decode").errors


def test_tasks_that_contradict_each_other_are_refused(folder: Path, tmp_path: Path) -> None:
    sl.convert(folder, tmp_path / "ds", progress=False, workers=1)
    ds = sl.open(tmp_path / "ds")
    ds.update([{"sequence_id": "episode_000002", "tasks": ["sweep", "mop"]}])
    with pytest.raises(ValidationError, match="'episode_000002'"):
        export(ds, tmp_path / "out")
    ds.update([{"sequence_id": "episode_000002", "tasks": ["sweep"]}])
    with pytest.raises(ValidationError, match="another column") as caught:
        export(ds, tmp_path / "out")
    assert "task_column=" in (caught.value.hint or "")
    out = sl.open(export(ds, tmp_path / "out", task_column="tasks"))
    assert out[2]["tasks"] == ["sweep"]


def test_a_folder_is_split(folder: Path, tmp_path: Path) -> None:
    ds = sl.open(folder)
    for name, where in {"short": "length < 10", "long": "length >= 10"}.items():
        export(ds.where(where), tmp_path / name)
    assert [info_of(tmp_path / name)["total_frames"] for name in ("short", "long")] == [8, 37]


# ---- mapping


def test_it_says_what_became_of_each_feature(tmp_path: Path) -> None:
    folder = by_hand.write_v3(tmp_path / "lerobot", by_hand.four())
    info = info_of(folder)
    info["features"]["length"] = {"dtype": "float32", "shape": [1], "names": None}
    info["features"]["odd"] = {"dtype": "complex64", "shape": [1], "names": None}
    (folder / INFO).write_text(json.dumps(info))
    for path in (folder / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        zeros = pa.array(np.zeros(len(table), np.float32))
        pq.write_table(table.append_column("length", zeros).append_column("odd", zeros), path)
    said = {one.source: (one.column, one.how) for one in lerobot.scan(str(folder), without=["pose"]).mapping()}
    assert list(said) == list(info["features"])
    assert said["action"] == ("action", "")
    assert said["length"] == ("length_", "")
    assert said["episode_index"] == ("episode_index", "one number for all steps")
    assert said[CAM] == (CAM, "its part of a file that episodes share")
    assert said["pose"] == (None, "left out as without= says")
    assert said["odd"][0] is None
    assert "complex64" in said["odd"][1]
    again = export(lerobot.scan(str(folder)), tmp_path / "out")
    assert "length" in info_of(again)["features"]


# ---- failed


def test_a_failure_leaves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqlake.formats.lerobot.assembling import Assembly

    def refuse(*_: Any) -> None:
        raise OSError(5, "broken disk")

    monkeypatch.setattr(Assembly, "_put_json", refuse)
    with pytest.raises(OSError, match="broken"):
        export(sl.open(folder), tmp_path / "out")
    assert not list(tmp_path.glob("out/*"))


# ---- elsewhere


def test_a_bucket_is_written_and_read(folder: Path, tmp_path: Path, s3_bucket: Any) -> None:
    place = f"{s3_bucket.uri}/arm"
    first = sl.open(folder)
    options = {"data_files_size_in_mb": 0.005, "bytes_per_part": 6000, "storage": s3_bucket.storage}
    sl.convert(first, place, to="lerobot", workers=1, progress=False, **options)
    there = sl.open(place, storage=s3_bucket.storage)
    same_rows(first, there)
    assert not [entry for entry, _ in open_store(place, storage=s3_bucket.storage).list() if entry.startswith("_")]
    same_rows(first, sl.open(export(there, tmp_path / "back", version="v2.1")))


@pytest.mark.parametrize(
    "said",
    [
        3,
        {"column_types": 3},
        {"column_types": {"operator": "x"}},
        {"column_types": {"operator": {"type": 3}}},
        {"column_types": {"operator": {"type": "video"}}},
        {"column_types": {"operator": {"type": "file", "file": True}}},
        {"column_types": {"operator": {"type": "embedding", "dim": 4}}},
        {"column_types": {"operator": {"type": "trajectory", "dim": -1}, "action": {"type": "embedding"}}},
    ],
)
def test_what_columns_meant_is_not_believed_where_it_cannot_be(tmp_path: Path, said: Any) -> None:
    schema = {"action": sl.Trajectory(dim=1, fps=FPS), "operator": pa.string()}
    out = export(recorded(tmp_path / "ds", schema, [{"action": np.zeros((6, 1)), "operator": "a"}]), tmp_path / "out")
    assert "seqlake" not in info_of(out)
    (out / INFO).write_text(json.dumps({**info_of(out), "seqlake": said}))
    again = sl.open(out)
    assert again.schema["operator"].type is None
    assert again.schema["action"].category == "temporal"
    assert again[0]["operator"] == "a"
    assert "seqlake" not in info_of(export(again, tmp_path / "more"))


# ---- a dataset of other people

BRIDGE = Path(__file__).parents[3].parent / "shared" / "data" / "bridge_rlds" / "1.0.0"


@pytest.mark.skipif(not BRIDGE.exists(), reason="needs BridgeData as RLDS beside the project")
def test_bridge_goes_through_lerobot_unchanged(tmp_path: Path) -> None:
    first = sl.convert(BRIDGE, tmp_path / "first", images="video", fps=5, workers=1, progress=False)
    assert first is not None
    out = export(first, tmp_path / "lerobot")
    second = sl.convert(out, tmp_path / "second", workers=1, progress=False)
    assert second is not None
    assert not second.validate(depth="decode").errors
    same_rows(first, second, columns=first.schema.names)
    assert second.schema["language_embedding"].type == first.schema["language_embedding"].type
    assert [row["task"] for row in second] == [row["language_instruction"] for row in first]
    stills = sl.scan(BRIDGE)
    kept = sl.open(export(stills, tmp_path / "stills", fps=5))
    for a, b in zip(stills, kept, strict=True):
        assert [a["image_0"].bytes(k) for k in range(10)] == [b["image_0"].bytes(k) for k in range(10)]


def test_bytes_in_rows_are_videos_too(tmp_path: Path) -> None:
    """A video whose bytes lie in the row."""
    film = by_hand.film(3, 6)
    schema = {"action": sl.Trajectory(dim=1, fps=FPS), "cam": Column("cam", pa.binary(), sl.Video(fps=FPS))}
    ds = recorded(tmp_path / "ds", schema, [{"action": np.zeros((6, 1)), "cam": film}])
    out = export(ds, tmp_path / "out")
    np.testing.assert_array_equal(sl.open(out)[0]["cam"][:], by_hand.frames(film))
