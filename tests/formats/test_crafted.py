"""What hostile and broken inputs do in every format: a finding, a clear error or the right rows, never silently others.

`CELLS` says for each format and fault which tests look at it, here or in the format's own folder, or why there is
nothing to look at.
"""

from __future__ import annotations

import json
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SeqlakeError
from seqlake.media import encode_image

FAULTS = ("truncated", "lengths", "missing videos", "clock", "NaN", "ids", "paths")
ALL = {
    "clock": "test_clocks_that_were_set_are_said_in_every_format",
    "NaN": "test_numbers_that_are_none_come_back_bit_for_bit",
    "paths": "test_ids_that_are_paths_write_nothing_elsewhere",
}
CELLS: dict[str, dict[str, str]] = {
    "lerobot": {
        "truncated": "lerobot/test_hostile.py::test_a_cut_data_file_is_a_finding_and_an_error "
        "lerobot/test_hostile.py::test_a_cut_video_is_found "
        "lerobot/test_hostile.py::test_an_unfinished_recording_says_so",
        "lengths": "lerobot/test_hostile.py::test_steps_that_are_not_what_is_meant_are_refused",
        "missing videos": "lerobot/test_hostile.py::test_a_missing_video_is_found",
        "clock": "test_steps_of_lerobot_that_are_not_in_order_or_of_another_time "
        "lerobot/test_hostile.py::test_drifting_times_are_counted",
        "NaN": ALL["NaN"],
        "ids": "test_episodes_of_lerobot_that_are_listed_twice "
        "lerobot/test_hostile.py::test_ids_that_name_nothing_are_made_of_numbers",
        "paths": "lerobot/test_hostile.py::test_no_template_leaves_the_root "
        "lerobot/test_hostile.py::test_images_that_rows_name_are_read_below_the_root_alone " + ALL["paths"],
    },
    "hdf5": {
        "truncated": "hdf5/test_hostile.py::test_a_file_that_was_cut_off_says_so",
        "lengths": "hdf5/test_hostile.py::test_lengths_and_types_that_differ_are_said_of_their_episode",
        "missing videos": "test_videos_beside_hdf5_that_are_missing_or_lie_elsewhere",
        "clock": "test_clocks_in_hdf5_that_were_set",
        "NaN": "hdf5/test_hostile.py::test_nan_and_texts_and_values_come_as_they_are",
        "ids": "hdf5/test_hostile.py::test_same_names_in_other_files_are_other_sequences",
        "paths": "hdf5/test_hostile.py::test_links_that_leave_the_file_are_not_followed "
        "hdf5/test_hostile.py::test_values_in_files_of_their_own_are_not_read "
        "test_videos_beside_hdf5_that_are_missing_or_lie_elsewhere",
    },
    "mcap": {
        "truncated": "mcap/test_hostile.py::test_cut_off_anywhere mcap/test_hostile.py::test_cut_off_sqlite",
        "lengths": "test_messages_of_other_lengths_are_kept_as_they_are "
        "mcap/test_hostile.py::test_pictures_that_are_not_what_they_say",
        # Videos are messages: what can be missing is a file of the bag.
        "missing videos": "mcap/test_hostile.py::test_names_in_a_bag_stay_in_it",
        "clock": "mcap/test_hostile.py::test_times_that_go_back_are_put_in_order_and_said "
        "mcap/test_hostile.py::test_a_rate_over_a_clock_that_was_set_is_refused " + ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "test_recordings_of_one_name mcap/test_rows.py::test_equal_names_of_two_kinds_are_told_apart",
        "paths": "mcap/test_hostile.py::test_names_in_a_bag_stay_in_it test_topics_that_are_paths " + ALL["paths"],
    },
    "zarr_replay": {
        "truncated": "zarr_replay/test_hostile.py::test_chunks_that_are_cut_off_or_changed "
        "zarr_replay/test_hostile.py::test_a_chunk_that_is_gone_reads_as_zarr_reads_it_and_is_said",
        "lengths": "zarr_replay/test_hostile.py::test_an_array_that_is_too_short_is_left_out_and_said "
        "zarr_replay/test_hostile.py::test_ends_that_cannot_be",
        "missing videos": "none: pictures are chunks of arrays, and a chunk that is gone is in `truncated`",
        "clock": ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "test_episodes_of_replay_buffers_that_are_called_the_same test_members_of_one_name_in_a_zip",
        "paths": "test_members_of_a_zip_that_lead_elsewhere " + ALL["paths"],
    },
    "webdataset": {
        "truncated": "webdataset/test_webdataset.py::test_a_shard_that_ends_between_two_files",
        "lengths": "test_signals_of_one_sample_that_differ_in_length",
        "missing videos": "test_a_sample_without_its_video_has_none",
        "clock": ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "test_ids_that_come_twice_are_said_or_made_their_own "
        "webdataset/test_webdataset.py::test_two_files_of_one_name",
        "paths": "test_names_in_tar_files_that_lead_elsewhere " + ALL["paths"],
    },
    "huggingface": {
        "truncated": "huggingface/test_values.py::test_streams_that_are_cut_off_are_errors",
        "lengths": "huggingface/test_values.py::test_arrays_of_other_shapes_are_errors",
        "missing videos": "test_files_that_rows_of_hugging_face_name_and_that_are_missing",
        "clock": ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "test_ids_that_come_twice_are_said_or_made_their_own",
        "paths": "huggingface/test_values.py::test_paths_that_lead_out_are_refused " + ALL["paths"],
    },
    "csv and frames": {
        "truncated": "test_csv_that_is_cut_off",
        "lengths": "csv/test_scan.py::test_what_is_broken_says_so",
        "missing videos": "test_videos_beside_csv_that_are_missing_or_lie_elsewhere",
        "clock": "test_steps_of_a_table_are_in_order_and_its_clock_is_looked_at "
        "test_a_frame_whose_steps_jump_is_put_in_order_and_twice_the_same_step_is_refused",
        "NaN": "test_numbers_of_csv_that_are_none",
        "ids": "test_ids_that_come_twice_are_said_or_made_their_own "
        "test_steps_of_a_table_are_in_order_and_its_clock_is_looked_at",
        "paths": "test_videos_beside_csv_that_are_missing_or_lie_elsewhere",
    },
    "rlds": {
        "truncated": "rlds/test_scan.py::test_a_file_that_is_cut_off",
        "lengths": "rlds/test_scan.py::test_columns_that_disagree_about_the_steps",
        "missing videos": "none: pictures are in the records; missing files of records are "
        "rlds/test_scan.py::test_missing_files_and_wrong_counts_are_findings",
        "clock": ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "rlds/test_scan.py::test_ids_of_the_episodes_are_used_where_they_are_unique",
        "paths": ALL["paths"],
    },
    "mds": {
        "truncated": "mds/test_single.py::test_a_damaged_sample_says_where_and_others_are_read",
        "lengths": "mds/test_encodings.py::test_a_bad_cell_is_named",
        "missing videos": "none: samples hold all; missing shards are "
        "_streaming/test_index.py::test_a_missing_shard_is_named",
        "clock": ALL["clock"],
        "NaN": ALL["NaN"],
        "ids": "none: samples have numbers; ids that a column holds are of every format: "
        "test_ids_that_come_twice_are_said_or_made_their_own",
        "paths": "_streaming/test_index.py::test_names_that_leave_the_folder_are_refused " + ALL["paths"],
    },
}


@pytest.mark.parametrize("kind", CELLS)
def test_every_fault_of_every_format_is_looked_at(kind: str) -> None:
    """Each cell names tests that there are."""
    assert set(CELLS[kind]) == set(FAULTS)
    here = Path(__file__)
    for fault, cell in CELLS[kind].items():
        named = re.findall(r"(?:([\w/]+\.py)::)?(test_\w+)\b(?!\.py)", cell)
        assert named or cell.startswith("none: "), (kind, fault)
        for file, name in named:
            assert f"def {name}(" in (here.parent / (file or here.name)).read_text(), (kind, fault, name)


OPTIONS: dict[str, dict[str, Any]] = {
    "huggingface": {},
    "lerobot": {"fps": 10},
    "mcap": {},
    "mds": {},
    "rlds": {},
    "webdataset": {},
    "zarr_replay": {},
    "rerun": {},
}
READ = [name for name in OPTIONS if name != "rerun"]
NEEDS = {"mcap": "mcap", "rerun": "rerun", "zarr_replay": "numcodecs"}
ODD = np.array([[np.nan, np.inf], [-np.inf, -0.0], [1e-40, 3.0]], "f4")


def source(folder: Path, ids: list[str]) -> Any:
    schema = {"x": sl.Trajectory(2, dtype="float32", fps=10), "cam": sl.Image(frames="bytes", format="png")}
    ds = sl.create(folder, schema)
    picture = encode_image(np.zeros((16, 16, 3), "u1"))
    ds.append([{"sequence_id": key, "x": ODD + number, "cam": [picture] * 3} for number, key in enumerate(ids)])
    return ds


def exported(ds: Any, out: Path, to: str) -> Path:
    pytest.importorskip(NEEDS.get(to, "seqlake"))
    sl.convert(ds, out, to=to, workers=1, progress=False, **OPTIONS[to])
    return out


def cells_of(read: Any, to: str) -> list[bytes]:
    """The bytes of the signal of each row; tar shards call it after its file."""
    return [np.asarray(row["x.npy" if to == "webdataset" else "x"], "f4").tobytes() for row in read]


@pytest.mark.parametrize("to", READ)
def test_numbers_that_are_none_come_back_bit_for_bit(to: str, tmp_path: Path) -> None:
    out = exported(source(tmp_path / "ds", ["a", "b"]), tmp_path / "out", to)
    read = sl.scan(out)
    assert cells_of(read, to) == [(ODD + number).astype("f4").tobytes() for number in range(2)]
    more = {"sequence_id": True} if to == "webdataset" else {}
    copied = sl.convert(read, tmp_path / "copy", workers=1, progress=False, **more)
    said = [one for one in sl.validate(copied, depth="rows").warnings if one.column in {"x", "x.npy"}]
    assert any("NaN" in one.message or "infinit" in one.message for one in said), said


IDS = [
    *("../../up", "/etc/passwd", "..", ".", "a/../../b", "C:\\windows", "con", ".seqlake_parts", "x\ny", "data/a"),
    "ü" * 120,
]


@pytest.mark.parametrize("to", OPTIONS)
def test_ids_that_are_paths_write_nothing_elsewhere(to: str, tmp_path: Path) -> None:
    ds = source(tmp_path / "a" / "b" / "ds", IDS)
    place = tmp_path / "inner" / "deep" / "out"
    place.parent.mkdir(parents=True)
    out = exported(ds, place, to)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "inner"}
    assert [path.name for path in place.parent.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["deep"]
    assert not [path for path in out.rglob("*") if path.is_symlink()]
    if to in {"mcap", "rerun"}:
        assert len(list(out.iterdir())) == len(IDS)
    if to != "rerun":
        read = sl.scan(out)
        assert sorted(cells_of(read, to)) == sorted((ODD + number).astype("f4").tobytes() for number in range(len(IDS)))


def tar(path: Path, keys: list[str]) -> None:
    with tarfile.open(path, "w") as archive:
        for number, key in enumerate(keys):
            data = json.dumps({"n": number}).encode()
            info = tarfile.TarInfo(f"{key}.json")
            info.size = len(data)
            archive.addfile(info, BytesIO(data))


def twice_in_webdataset(top: Path) -> Any:
    (top / "shards").mkdir()
    tar(top / "shards/s-0.tar", ["a", "b"])
    tar(top / "shards/s-1.tar", ["a", "c"])
    return sl.scan(top / "shards", sequence_id=True)


def twice_in_parquet(top: Path) -> Any:
    (top / "data").mkdir()
    pq.write_table(pa.table({"sequence_id": ["a", "b", "a", "c"], "n": [0, 1, 2, 3]}), top / "data/train-0.parquet")
    return sl.scan(top / "data" / "train-0.parquet")


def twice_in_csv(top: Path) -> Any:
    (top / "rows.csv").write_text("sequence_id,n\na,0\nb,1\na,2\nc,3\n")
    return sl.scan(top / "rows.csv")


def twice_in_frame(_top: Path) -> Any:
    import pandas as pd

    return sl.scan(pd.DataFrame({"sequence_id": ["a", "b", "a", "c"], "n": [0, 1, 2, 3]}))


TWICE = {"webdataset": twice_in_webdataset, "parquet": twice_in_parquet, "csv": twice_in_csv, "pandas": twice_in_frame}


@pytest.mark.parametrize("kind", TWICE)
def test_ids_that_come_twice_are_said_or_made_their_own(kind: str, tmp_path: Path) -> None:
    """Four rows, or an error: never three, and never one id for two."""
    try:
        read = TWICE[kind](tmp_path)
        copied = sl.convert(read, tmp_path / "copy", workers=1, progress=False)
    except SeqlakeError as error:
        assert "'a'" in str(error)  # noqa: PT017 - which of the two it is, is the format's
        return
    assert len(copied) == 4
    ids = [row["sequence_id"] for row in copied]
    assert len(set(ids)) == 4


def test_episodes_of_replay_buffers_that_are_called_the_same(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    import zarr

    root = zarr.open_group(str(tmp_path / "b.zarr"), mode="w", zarr_format=2)
    root.create_array("data/action", data=np.zeros((6, 2), "f4"))
    root.create_array("meta/episode_ends", data=np.array([2, 4, 6]))
    root.create_array("meta/sequence_id", data=np.array(["a", "b", "a"]))
    ids = [row["sequence_id"] for row in sl.scan(tmp_path / "b.zarr")]
    assert ids == ["episode_000000", "episode_000001", "episode_000002"]


def test_a_frame_whose_steps_jump_is_put_in_order_and_twice_the_same_step_is_refused() -> None:
    """A clock that was set back: `steps` orders, and two rows of one step are nobody's."""
    import pandas as pd

    rows = pd.DataFrame({"e": ["a"] * 4, "t": [0.0, 9.0, 0.5, 1.0], "v": [0, 3, 1, 2]})
    read = sl.scan(rows, sequence_id="e", steps="t")
    assert np.asarray(next(iter(read))["v"]).reshape(-1).tolist() == [0, 1, 2, 3]
    rows.loc[2, "t"] = 9.0
    with pytest.raises(SeqlakeError, match="'a'"):
        list(sl.scan(rows, sequence_id="e", steps="t"))
    rows.loc[2, "t"] = np.nan
    with pytest.raises(SeqlakeError, match="1 samples have no 't'"):
        list(sl.scan(rows, sequence_id="e", steps="t"))


def test_videos_beside_hdf5_that_are_missing_or_lie_elsewhere(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from seqlake.formats import hdf5

    folder = tmp_path / "demos"
    folder.mkdir()
    (tmp_path / "secret.mp4").write_bytes(b"not yours")
    for name in ("a", "b"):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["action"] = np.zeros((3, 2), "f4")
    (folder / "a.mp4").write_bytes(b"here")
    cam = {"type": "video", "source": "file:{stem}.mp4"}
    read = hdf5.scan(str(folder), map={"action": "action", "cam": cam})
    said = [one for one in read.check("rows") if one.code == "hdf5-missing"]
    assert [(one.column, one.sequence_id) for one in said] == [("cam", "b")], said
    assert sl.scan(read).to_arrow()["cam"].is_null().to_pylist() == [False, True]
    outside = hdf5.scan(str(folder), map={"action": "action", "cam": cam | {"source": "file:../secret.mp4"}})
    assert sl.scan(outside).to_arrow()["cam"].null_count == 2
    assert {one.column for one in outside.check("rows") if one.code == "hdf5-missing"} == {"cam"}


def test_files_that_rows_of_hugging_face_name_and_that_are_missing(tmp_path: Path) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = pa.array([{"bytes": None, "path": "gone.png"}, {"bytes": encode_image(np.zeros((4, 4, 3), "u1"))}], kind)
    features = {"n": {"dtype": "int64", "_type": "Value"}, "cam": {"_type": "Image"}}
    described = {"huggingface": json.dumps({"info": {"features": features}})}
    (tmp_path / "data").mkdir()
    table = pa.table({"n": [0, 1], "cam": cells}).replace_schema_metadata(described)
    pq.write_table(table, tmp_path / "data/train-00000-of-00001.parquet")
    read = sl.scan(tmp_path)
    assert len(read) == 2
    for to, more in (("huggingface", {}), (None, {"sequence_id": True})):
        with pytest.raises(SeqlakeError, match=r"gone\.png"):
            sl.convert(read, tmp_path / f"out-{to}", to=to, workers=1, progress=False, **more)
        assert not list(tmp_path.glob(f"out-{to}/*"))


GOOD = np.arange(6) / 10
BACK = np.array([0.0, 0.1, 0.2, 0.05, 0.4, 0.5])
AHEAD = GOOD + np.array([0, 0, 0, 1e9, 1e9, 1e9])
CLOCKS = {"good": GOOD, "back": BACK, "ahead": AHEAD}
SET = {"goes back, from 0.2 to 0.05", "jumps ahead, from 0.2 to 1000000000.3"}


def set_clocks(read: Any, code: str = "R319") -> set[str]:
    """What validation says of clocks."""
    found = [one for one in sl.validate(read, depth="rows").findings if one.code == code]
    return {one.message.removeprefix("the clock ") for one in found}


@pytest.mark.parametrize("to", [to for to in READ if to != "lerobot"])
def test_clocks_that_were_set_are_said_in_every_format(to: str, tmp_path: Path) -> None:
    """A robot's own time stamps, which go back in one episode and jump in another; they come as they are."""
    ds = sl.create(
        tmp_path / "ds", {"x": sl.Trajectory(2, fps=10), "timestamp": sl.Trajectory(1, dtype="float64", fps=10)}
    )
    ds.append([{"sequence_id": key, "x": np.ones((6, 2)), "timestamp": at[:, None]} for key, at in CLOCKS.items()])
    read = sl.scan(exported(ds, tmp_path / "out", to))
    name = "timestamp.npy" if to == "webdataset" else "timestamp"
    there = sorted(np.asarray(row[name]).reshape(-1).tolist() for row in read)
    assert there == sorted(at.tolist() for at in CLOCKS.values())
    assert set_clocks(read) == SET


def test_clocks_in_hdf5_that_were_set(tmp_path: Path) -> None:
    """Said of what is called a clock; and refused by windows where a mapping says that steps are timed by it."""
    h5py = pytest.importorskip("h5py")
    for number, at in enumerate(CLOCKS.values()):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"], file["observations/qpos"], file["timestamps"] = np.ones((6, 2)), np.ones((6, 2)), at
    assert set_clocks(sl.scan(tmp_path)) == SET
    timed = {
        "action": {"source": "action", "type": "trajectory", "timestamps": "at"},
        "qpos": {"source": "observations/qpos", "type": "trajectory", "fps": 10},
        "at": "timestamps",
    }
    read = sl.scan(tmp_path, map=timed)
    assert set_clocks(read) == {one for one in SET if "ahead" in one}
    assert set_clocks(read, "R312") == {"a timestamp is not at or after the one before it"}
    with pytest.raises(SeqlakeError, match="'at' cannot say when samples were taken"):
        list(sl.Loader(read, window=sl.Window({"qpos": [0], "action": [0]}), batch_size=1))


def test_steps_of_lerobot_that_are_not_in_order_or_of_another_time(tmp_path: Path) -> None:
    """The official package seeks frames by `timestamp`, and we count rows: said where the two are not one."""
    from .lerobot import by_hand

    rows = "data/chunk-000/file-000.parquet"
    changes: dict[str, Callable[[pa.Table], pa.Table]] = {
        "none": lambda table: table,
        "order": lambda table: table.take(pa.array([1, 0, *range(2, len(table))])),
        "twice": lambda table: with_values(table, frame_index=[0, 0, *range(1, 11), 0]),
        "ahead": lambda table: with_values(table, timestamp=[0.0, *(1.7 + t / 10 for t in range(11)), 0.0]),
        "NaN": lambda table: with_values(table, timestamp=[0.0, np.nan, *(t / 10 for t in range(2, 12)), 0.0]),
    }
    said = {}
    for name, change in changes.items():
        folder = by_hand.write(tmp_path / name, by_hand.four(), "v3.0")
        pq.write_table(change(pq.read_table(folder / rows)), folder / rows)
        found = [one for one in sl.open(folder).validate(depth="rows").findings if one.code == "lerobot-clock"]
        said[name] = [(one.severity, one.sequence_id, one.column, one.step) for one in found]
    index, time = ("error", "episode_000000", "frame_index"), ("warning", "episode_000000", "timestamp")
    assert said == {
        "none": [],
        "order": [(*index, 0), (*time, 0)],
        "twice": [(*index, 1)],
        "ahead": [(*time, 1)],
        "NaN": [(*time, 1)],
    }


def with_values(table: pa.Table, **columns: list[Any]) -> pa.Table:
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(place).type))
    return table


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_episodes_of_lerobot_that_are_listed_twice(version: str, tmp_path: Path) -> None:
    from .lerobot import by_hand

    folder = by_hand.write(tmp_path / "arm", by_hand.four(), version)
    if version == "v3.0":
        path = folder / "meta/episodes/chunk-000/file-000.parquet"
        pq.write_table(with_values(pq.read_table(path), episode_index=[0, 1, 1, 3]), path)
    else:
        path = folder / "meta/episodes.jsonl"
        path.write_text(path.read_text().replace('"episode_index": 2', '"episode_index": 1'))
    with pytest.raises(SeqlakeError, match=r"listed more than once, the first is 1"):
        sl.open(folder)


def test_messages_of_other_lengths_are_kept_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("mcap")
    from .mcap import by_hand

    values = [[1.0, 2.0], [1.0], [2.0, 3.0, 4.0]]
    path = by_hand.json_file(
        tmp_path / "x.mcap", [("/x", by_hand.BEGIN + k, {"v": one}) for k, one in enumerate(values)]
    )
    assert sl.open(path).to_arrow()["x"].to_pylist() == [[[[one] for one in each] for each in values]]


def test_recordings_of_one_name(tmp_path: Path) -> None:
    """Paths without their endings, where these name two; with them where those name a third."""
    pytest.importorskip("mcap")
    from .mcap import by_hand

    names = ["x.mcap", "x.bag.mcap", "a/x.mcap"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        by_hand.json_file(tmp_path / name, [("/x", by_hand.BEGIN, {"v": float(number)})])
    read = sl.open(tmp_path)
    assert {row["sequence_id"]: row["x"].tolist() for row in read} == {"x": [[0]], "x.bag": [[1]], "a/x": [[2]]}
    by_hand.write(tmp_path, "ros1", name="x", count=4)
    assert [row["sequence_id"] for row in sl.open(tmp_path)] == ["a/x.mcap", "x.bag", "x.bag.mcap", "x.mcap"]


def test_topics_that_are_paths(tmp_path: Path) -> None:
    pytest.importorskip("mcap")
    from .mcap import by_hand

    topics = ["/../../x", "/a/../b", "C:\\x", "/etc/passwd"]
    path = by_hand.json_file(tmp_path / "in.mcap", [(topic, by_hand.BEGIN, {"v": 1.0}) for topic in topics])
    copied = sl.convert(sl.open(path), tmp_path / "a" / "out", workers=1, progress=False)
    assert [len(copied[0][name]) for name, column in copied.schema.items() if column.nested] == [1] * len(topics)
    assert not [name for name in copied.schema if set("/\\:") & set(name)]
    assert {one.name for one in tmp_path.iterdir()} == {"a", "in.mcap"}


def zipped(folder: Path, out: Path, *more: tuple[str, bytes]) -> Path:
    """A replay buffer in a zip archive, with members besides."""
    import zarr

    root = zarr.open_group(str(folder), mode="w", zarr_format=2)
    root.create_array("data/action", data=np.arange(12, dtype="f4").reshape(6, 2), compressors=None, chunks=(6, 2))
    root.create_array("meta/episode_ends", data=np.array([2, 6]))
    with zipfile.ZipFile(out, "w") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            archive.write(path, path.relative_to(folder).as_posix())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of names that are there already
            for name, data in more:
                archive.writestr(name, data)
    return out


def test_members_of_one_name_in_a_zip(tmp_path: Path) -> None:
    """zarr writes a chunk again by adding it: the last counts, for it and for us, and it is said."""
    pytest.importorskip("zarr")
    import zarr

    chunk = np.full((6, 2), 9, "f4").tobytes()
    out = zipped(tmp_path / "b", tmp_path / "b.zarr.zip", ("data/action/0.0", chunk))
    with zarr.storage.ZipStore(out, mode="r") as store:
        expected = np.asarray(zarr.open_group(store, mode="r")["data/action"][:])
    read = sl.scan(out)
    np.testing.assert_array_equal(np.concatenate([row["action"] for row in read]), expected)
    [said] = [one.message for one in sl.validate(read).findings if one.code == "zarr-zip-names"]
    assert said.startswith("1 members are there more than once")
    assert "data/action/0.0" in said


@pytest.mark.parametrize(
    "name", ["../e/a", "data/../../e", "/etc/a", "data\\..\\a", "data//a", "./data/a", "data/s/../action"]
)
def test_members_of_a_zip_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    """They are no arrays, whatever they say; the others are read."""
    pytest.importorskip("zarr")
    plain = zipped(tmp_path / "b", tmp_path / "b.zarr.zip")
    with zipfile.ZipFile(plain) as archive:
        described = archive.read("data/action/.zarray")
    out = zipped(tmp_path / "c", tmp_path / "c.zarr.zip", (f"{name}/.zarray", described), (f"{name}/0.0", bytes(48)))
    read = sl.scan(out)
    assert read.schema.names == sl.scan(plain).schema.names == ["sequence_id", "action"]
    assert [row["action"].tolist() for row in read] == [row["action"].tolist() for row in sl.scan(plain)]
    [said] = [one.message for one in sl.validate(read).findings if one.code == "zarr-zip-names"]
    assert said.startswith("2 members have names that lead elsewhere")
    assert [one.code for one in sl.validate(sl.scan(plain)).findings if one.severity != "note"] == []
    sl.convert(read, tmp_path / "d" / "out", workers=1, progress=False)
    assert {one.name for one in tmp_path.iterdir()} == {"b", "b.zarr.zip", "c", "c.zarr.zip", "d"}


def shard(path: Path, *members: tuple[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, BytesIO(data))
    return path.parent


def numbers(values: Any) -> bytes:
    out = BytesIO()
    np.save(out, np.asarray(values))
    return out.getvalue()


def test_signals_of_one_sample_that_differ_in_length(tmp_path: Path) -> None:
    folder = shard(
        tmp_path / "s" / "0.tar", ("a.x.npy", numbers(np.ones((4, 2)))), ("a.y.npy", numbers(np.ones((3, 2))))
    )
    read = sl.scan(folder)
    found = [one for one in sl.validate(read, depth="rows").warnings if one.code == "R307"]
    assert [(one.column, one.message) for one in found] == [("y.npy", "3 steps, x.npy has 4")]
    assert [len(read[0][name]) for name in ("x.npy", "y.npy")] == [4, 3]


def test_a_sample_without_its_video_has_none(tmp_path: Path) -> None:
    """Not that of the next: each sample has the files of its own name."""
    folder = shard(
        tmp_path / "s" / "0.tar", ("a.json", b"{}"), ("a.mp4", b"film"), ("b.json", b"{}"), ("c.mp4", b"more")
    )
    read = sl.scan(folder).to_arrow()
    assert read["__key__"].to_pylist() == ["a", "b", "c"]
    assert read["mp4"].is_null().to_pylist() == [False, True, False]
    assert read["json"].is_null().to_pylist() == [False, False, True]


def test_names_in_tar_files_that_lead_elsewhere(tmp_path: Path) -> None:
    names = ["../../a", "/etc/b", "c/../../d", "e"]
    folder = shard(tmp_path / "s" / "0.tar", *((f"{name}.mp4", name.encode()) for name in names))
    read = sl.scan(folder, sequence_id=True)
    assert [one.code for one in sl.validate(read).warnings if one.code == "webdataset-name"] == ["webdataset-name"]
    out = tmp_path / "d" / "out"
    copied = sl.convert(sl.scan(folder), out, sequence_id="__key__", workers=1, progress=False)
    assert copied.to_arrow()["mp4"].to_pylist() == [name.encode() for name in names]
    assert len(set(copied.to_arrow()["sequence_id"].to_pylist())) == len(names)
    assert {one.name for one in tmp_path.iterdir()} == {"s", "d"}


def test_csv_that_is_cut_off(tmp_path: Path) -> None:
    """In a row, in a quoted cell; and behind a whole row, where nobody can know."""
    path = tmp_path / "t.csv"
    whole = 'e,t,v\na,0,"x"\na,1,"y"\n'
    for cut, what in ((len(whole) - 6, "Expected 3 columns"), (len(whole) - 2, "never closed")):
        path.write_text(whole[:cut])
        with pytest.raises(SeqlakeError, match=what):
            sl.scan(path).to_arrow()
    path.write_text(whole[: whole.index("a,1")])
    assert len(sl.scan(path)) == 1


def test_videos_beside_csv_that_are_missing_or_lie_elsewhere(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    (inner / "v").mkdir(parents=True)
    (tmp_path / "x.mp4").write_bytes(b"not yours")
    (inner / "v/a.mp4").write_bytes(b"here")
    (inner / "t.csv").write_text("e,t,v\na,0,0\na,1,1\nb,0,9\n")
    read = sl.scan(inner / "t.csv", sequence_id="e", steps="t", videos="v/{e}.mp4")
    found = [one for one in sl.validate(read, depth="rows").errors if one.code == "table-missing-video"]
    assert len(found) == 1
    assert "v/b.mp4 is not there" in found[0].message
    for name in ("../../x", "/etc/passwd", "..\\..\\x"):
        (inner / "t.csv").write_text(f"e,t,v\n{name},0,0\nb,0,9\n")
        with pytest.raises(SeqlakeError, match="no name inside a dataset"):
            sl.scan(inner / "t.csv", sequence_id="e", steps="t", videos="v/{e}.mp4").to_arrow()


def test_steps_of_a_table_are_in_order_and_its_clock_is_looked_at(tmp_path: Path) -> None:
    """Rows out of order are ordered by `steps`; without it the order of the file stays, and is looked at."""
    path = tmp_path / "t.csv"
    lines = [f"{key},{at},{number}" for key, each in CLOCKS.items() for number, at in enumerate(each)]
    path.write_text("\n".join(["e,time,v", *lines]) + "\n")
    ordered = sl.scan(path, sequence_id="e", steps="time")
    kept = sl.scan(path, sequence_id="e", steps=True)
    for (key, at), one, two in zip(CLOCKS.items(), ordered, kept, strict=True):
        assert one["sequence_id"] == two["sequence_id"] == key
        assert one["v"].reshape(-1).tolist() == np.argsort(at).tolist()
        assert two["time"].reshape(-1).tolist() == at.tolist()
    assert set_clocks(ordered) == {one for one in SET if "ahead" in one}
    assert set_clocks(kept) == SET
    path.write_text("e,time,v\na,0,0\nb,0,1\na,0,2\n")
    with pytest.raises(SeqlakeError, match="'a' has two samples of step"):
        sl.scan(path, sequence_id="e", steps="time").to_arrow()
    with pytest.raises(SeqlakeError, match="occur more than once, the first is 'a'"):
        sl.scan(path, sequence_id="e").to_arrow()


def test_numbers_of_csv_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("e,t,v\na,0,nan\na,1,inf\na,2,-inf\na,3,1.5\n")
    read = sl.scan(path, sequence_id="e", steps="t")
    np.testing.assert_array_equal(read[0]["v"].reshape(-1), [np.nan, np.inf, -np.inf, 1.5])
    [said] = [one for one in sl.validate(read, depth="rows").warnings if one.code == "R309"]
    assert "3 numbers are NaN or infinite" in said.message
    path.write_text("e,t,v\n,0,1\na,1,2\n")
    with pytest.raises(SeqlakeError, match="1 samples have no 'e'"):
        sl.scan(path, sequence_id="e", steps="t").to_arrow()
