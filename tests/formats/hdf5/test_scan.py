"""HDF5 read in place and converted, held against h5py cell by cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.formats.hdf5 import by_hand

import seqlake as sl
from seqlake.errors import InvalidMetadataError, ReadOnlyError
from seqlake.files.stores import open_store
from seqlake.formats import hdf5


def same(cell: Any, array: Any) -> None:
    assert cell.dtype == array.dtype
    np.testing.assert_array_equal(cell, array)


# ---- layouts


def test_aloha_cell_by_cell(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(*by_hand.LENGTHS, *[3] * 9), effort=True)
    ds = sl.open(folder)
    assert [view.id for view in ds] == [f"episode_{number}" for number in range(12)]  # 10 comes after 9
    for view in ds:
        with h5py.File(folder / f"{view.id}.hdf5") as file:
            same(view["action"], file["action"][()])
            for name in ("qpos", "qvel", "effort"):
                same(view[name], file[f"observations/{name}"][()])
            for name in by_hand.CAMERAS:
                same(view[name][:], file[f"observations/images/{name}"][()])
            assert view["sim"] is True
    reader = ds.shards()[0].open()
    assert {name for name in ds.schema.names if reader.flat(name) is not None} == {"action", "qpos", "qvel", "effort"}
    reader.close()
    with pytest.raises(ReadOnlyError, match="Convert it first"):
        ds.delete("true")
    with h5py.File(folder / "episode_0.hdf5") as file, h5py.File(folder / "episode_1.hdf5") as other:
        moments = sl.statistics(ds[:2], ["action"])["action"]
        both = np.concatenate([file["action"][()], other["action"][()]])
        np.testing.assert_allclose(moments.mean, both.mean(0), rtol=1e-5)


def test_padded_jpeg_comes_as_it_was_encoded(tmp_path: Path) -> None:
    packed = by_hand.aloha_packed(tmp_path / "aloha")
    source = hdf5.scan(str(tmp_path / "aloha"))
    ds = sl.scan(source)
    for number, view in enumerate(ds):
        for name in by_hand.CAMERAS:
            assert view[name].cells == packed[number, name]
    mapped = {one.source: one for one in source.mapping()}
    assert mapped["/compress_len"].column is None
    assert mapped["/observations/images/cam_low"].column == "cam_low"
    assert list(source.check("rows")) == []


def test_robomimic_cell_by_cell(tmp_path: Path) -> None:
    path = by_hand.robomimic(tmp_path / "demo.hdf5", lengths=tuple([3] * 12), instruction="pick up the bowl")
    for ds in (sl.open(path), sl.open(tmp_path)):
        assert [view.id for view in ds] == [f"demo_{number}" for number in range(12)]
        assert [view["split"] for view in ds][:4] == ["train", "valid", "train", None]
        with h5py.File(path) as file:
            for view in ds:
                demo = file[f"data/{view.id}"]
                for name in ("actions", "states", "rewards", "dones"):
                    same(view[name], demo[name][()])
                for group, prefix in (("obs", ""), ("next_obs", "next_")):
                    for name in ("object", "robot0_eef_pos", "agentview_depth"):
                        same(view[prefix + name], demo[f"{group}/{name}"][()])
                    same(view[f"{prefix}agentview_image"][:], demo[f"{group}/agentview_image"][()])
                assert view["model_file"] == demo.attrs["model_file"]
                assert view["num_samples"] == 3
        assert ds[0]["language_instruction"] == "pick up the bowl"
        assert ds[0]["env_name"] == "Lift"
        assert json.loads(ds[0]["env_args"])["env_kwargs"] == {"control_freq": 20}
        assert ds.schema["actions"].type.get("fps") == 20
    assert sl.open(path).sql("SELECT count(*) FROM dataset WHERE split = 'train'").fetchall() == [(2,)]


def test_several_files_and_several_shards_of_one(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("kitchen", "living"):
        by_hand.robomimic(tmp_path / f"{name}.hdf5", instruction=f"clean the {name}", images=False)
    monkeypatch.setattr(sys.modules["seqlake.formats.hdf5.scan"], "_SHARD_BYTES", 1)
    source = hdf5.scan(str(tmp_path), without=["next_obs", "states"])
    assert len(source.shards()) == 6
    ds = sl.scan(source)
    assert ds[4].id == "living/demo_1"
    assert ds.sql("SELECT DISTINCT language_instruction FROM dataset ORDER BY 1").fetchall() == [
        ("clean the kitchen",),
        ("clean the living",),
    ]
    assert not {"states", "next_object"} & set(ds.schema.names)
    left_out = {one.source: one.how for one in source.mapping() if one.column is None}
    assert left_out["data/{episode}/states"] == "left out as asked"
    with h5py.File(tmp_path / "living.hdf5") as file:
        same(ds["living/demo_1"]["actions"], file["data/demo_1/actions"][()])


def test_droid_with_its_videos(tmp_path: Path) -> None:
    folder = by_hand.droid(tmp_path / "droid")
    ds = sl.open(folder)
    ids = [f"success/2023-07-07/Fri_Jul__7_09:42:2{number}_2023" for number in range(2)]
    assert [view.id for view in ds] == ids
    for number, view in enumerate(ds):
        with h5py.File(folder / view.id / "trajectory.h5") as file:
            same(view["action.cartesian_position"], file["action/cartesian_position"][()])
            same(view["action.gripper_position"], file["action/gripper_position"][()])
            same(view["observation.robot_state.joint_positions"], file["observation/robot_state/joint_positions"][()])
            serial = 11110001 + number * 10
            same(
                view["observation.camera_extrinsics.ext1_left"],
                file[f"observation/camera_extrinsics/{serial}_left"][()],
            )
        assert view["task"] == f"Put the cup on shelf {number}"
        assert view["ext1"].reference.endswith(f"{serial}.mp4")
        assert len(view["ext1"]) == len(view["action.gripper_position"])
    assert ds.validate(depth="files").ok
    out = sl.convert(folder, tmp_path / "out", progress=False)
    same(out[ids[1]]["ext2"][:], ds[ids[1]]["ext2"][:])
    (folder / ids[0] / "recordings/MP4/11110001.mp4").unlink()
    assert sl.open(folder)[ids[0]]["ext1"] is None
    codes = [(one.code, one.column) for one in hdf5.scan(str(folder)).check("rows")]
    assert codes == [("hdf5-missing", "ext1")]


# ---- mappings


def flat_file(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["data/action"] = np.arange(20.0).reshape(10, 2)
        file["data/img"] = by_hand.picture(1, 10)
        file.create_dataset("data/state", data=np.arange(10), chunks=(3,), compression="gzip")
        file["meta/episode_ends"] = np.array([4, 4, 9, 10])
    return path


def test_a_mapping_over_ends_of_episodes(tmp_path: Path) -> None:
    path = flat_file(tmp_path / "all.h5")
    declared = {"action": "/data/action", "top": "/data/img", "state": "data/state"}
    ds = sl.scan(path, map=declared, episode_ends="meta/episode_ends", fps=10)
    assert [view.id for view in ds] == [f"episode_{number:06d}" for number in range(4)]
    assert [len(view["action"]) for view in ds] == [4, 0, 5, 1]
    with h5py.File(path) as file:
        same(ds[2]["action"], file["data/action"][4:9])
        same(ds[2]["top"][:], file["data/img"][4:9])
        same(ds[3]["state"], file["data/state"][9:])
        batch = next(
            iter(sl.Loader(ds[2:3], window={"action": range(2), "state": range(2)}, batch_size=2, shuffle=False))
        )
        same(batch["action"], np.stack([file["data/action"][4:6], file["data/action"][5:7]]))
    assert list(hdf5.scan(str(path), map=declared, episode_ends="meta/episode_ends").check("rows")) == []
    with h5py.File(path, "r+") as file:
        file["meta/episode_ends"][-1] = 9
    short = hdf5.scan(str(path), map=declared, episode_ends="meta/episode_ends").check("rows")
    assert [(one.code, one.column) for one in short] == [("hdf5-length", name) for name in declared]
    with h5py.File(path, "r+") as file:
        file["meta/episode_ends"][-1] = 11
    with pytest.raises(sl.errors.CorruptFileError, match="end at 11"):
        _ = sl.scan(path, map=declared, episode_ends="meta/episode_ends")[3]["action"]
    with h5py.File(path, "r+") as file:
        file["meta/episode_ends"][0] = 5
    with pytest.raises(InvalidMetadataError, match="never fall"):
        sl.scan(path, map=declared, episode_ends="meta/episode_ends")
    with pytest.raises(ValueError, match="give both"):
        sl.scan(path, episode_ends="meta/episode_ends")


def test_a_mapping_of_files_with_types_and_files_beside(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["robot/q"] = np.ones((6, 3), "f4")
            file["tactile/raw"] = np.arange(6 * 3 * 8 * 8, dtype="u1").reshape(6, 8, 8, 3) if name else None
            file["fast"] = np.arange(12.0)
            file["info"] = json.dumps({"task": {"name": f"task {name}"}})
            file["robot"].attrs["spec"] = json.dumps({"task": {"name": f"task {name}"}, "n": 3})
        (tmp_path / f"{name}.mp4").write_bytes(b"not looked at")
    declared: dict[str, Any] = {
        "q": {"source": "/robot/q", "type": "trajectory", "units": "rad", "names": ["x", "y", "z"]},
        "touch": {"source": "/tactile/raw", "type": "trajectory"},
        "fast": {"source": "/fast", "type": "trajectory", "fps": 20},
        "task": "/robot@spec#task.name",
        "film": "file:{stem}.mp4",
    }
    (tmp_path / "map.json").write_text(json.dumps(declared))
    for given_map in (declared, tmp_path / "map.json"):
        ds = sl.scan(tmp_path, map=given_map, fps=10)
        assert [(view.id, view["task"], view["film"].reference) for view in ds] == [
            ("a", "task a", "a.mp4"),
            ("b", "task b", "b.mp4"),
        ]
        assert ds.schema["q"].type.get("units") == "rad"
        assert (ds.schema["q"].type.get("fps"), ds.schema["fast"].type.get("fps")) == (10, 20)
        assert ds[0]["touch"].shape == (6, 8, 8, 3)
    assert [one.code for one in hdf5.scan(str(tmp_path), map=declared, fps=10).check("rows")] == []


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"a": "/nothing"}, "no data set '/nothing'"),
        ({"a": "/{camera}/x"}, "paths may name"),
        ({"a": "x/{episode}/a", "b": "y/{episode}/b"}, "one group of the episodes"),
        ({"a": {"source": "/data/action", "type": "image"}}, "no pictures"),
        ({"a": {"source": "/data/action", "type": "trajectory", "dim": 5}}, "5 are declared"),
        ({"a": "file:{stem}.bin"}, "the type of the file"),
        ({"a": {"source": "/data/action", "unit": "m"}}, "beside a type its fields"),
    ],
)
def test_mappings_that_do_not_fit_are_refused(tmp_path: Path, declared: Any, said: str) -> None:
    with pytest.raises(InvalidMetadataError, match=said):
        sl.scan(flat_file(tmp_path / "all.h5"), map=declared)


# ---- conversion


def test_raw_pictures_become_videos_files_or_stay(tmp_path: Path) -> None:
    folder = by_hand.aloha(tmp_path / "aloha", lengths=(7, 5))
    source = sl.scan(folder)
    stays = sl.convert(folder, tmp_path / "bytes", progress=False)
    files = sl.convert(folder, tmp_path / "files", images="files", progress=False)
    video = sl.convert(folder, tmp_path / "video", images="video", fps=50, progress=False)
    for view in source:
        for out in (stays, files):
            same(out[view.id]["cam_high"][:], view["cam_high"][:])
        for out in (stays, files, video):
            same(out[view.id]["qpos"], view["qpos"])
        film = video[view.id]["cam_high"]
        assert film[:].shape == view["cam_high"][:].shape
        assert np.abs(film[:].astype(int) - view["cam_high"][:].astype(int)).mean() < 12
    assert video.schema["cam_high"].type.get("fps") == 50
    assert stays.validate(depth="rows").ok


def test_jpeg_is_passed_on_undecoded(tmp_path: Path) -> None:
    packed = by_hand.aloha_packed(tmp_path / "aloha")
    out = sl.convert(tmp_path / "aloha", tmp_path / "out", progress=False)
    assert out["episode_1"]["cam_low"].cells == packed[1, "cam_low"]


def test_pictures_of_other_kinds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "grey": rng.integers(0, 256, (5, 9, 12), np.uint8),
        "grey1": rng.integers(0, 256, (5, 9, 12, 1), np.uint8),
        "depth": rng.integers(0, 65536, (5, 9, 12), np.uint16),
        "first": rng.integers(0, 256, (5, 3, 9, 12), np.uint8),
    }
    encoded = [by_hand.jpeg(one) for one in by_hand.picture(0, 5)]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["action"] = np.zeros((5, 2))
        file.create_group("observations")
        for name, array in arrays.items():
            file[f"observations/images/{name}"] = array
        runs = file.create_dataset("observations/images/runs", (5,), h5py.vlen_dtype(np.uint8))
        for step, one in enumerate(encoded):
            runs[step] = np.frombuffer(one, np.uint8)
        file["observations/images/fixed"] = np.array(encoded)  # as RoboTwin writes them
    episode = sl.open(tmp_path / "x.h5")[0]
    same(episode["grey"][:], arrays["grey"][..., None])
    same(episode["grey1"][:], arrays["grey1"])
    same(episode["depth"][:], arrays["depth"][..., None])
    same(episode["first"][:], arrays["first"].transpose(0, 2, 3, 1))
    assert episode["runs"].cells == encoded
    assert episode["fixed"].cells == encoded


# ---- elsewhere


def test_a_bucket_is_read_by_range(tmp_path: Path, s3_bucket: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("seqlake.formats.hdf5.files._WHOLE", 0)
    monkeypatch.setattr("seqlake.formats.hdf5.files._BLOCK", 4096)
    local = by_hand.aloha(tmp_path / "aloha", lengths=(7, 5))
    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for path in local.iterdir():
        store.put(f"aloha/{path.name}", path)
    there, here = sl.open(f"{s3_bucket.uri}/aloha", storage=s3_bucket.storage), sl.open(local)
    assert [view.id for view in there] == [view.id for view in here]
    for view in here:
        for name in ("action", "qpos"):
            same(there[view.id][name], view[name])
        same(there[view.id]["cam_low"][2:4], view["cam_low"][2:4])
    alone = sl.scan(f"{s3_bucket.uri}/aloha/episode_1.hdf5", storage=s3_bucket.storage)
    same(alone[0]["action"], here["episode_1"]["action"])
    window = {"action": range(2), "cam_low": range(2)}
    theirs, ours = (next(iter(sl.Loader(one, window=window, batch_size=4, shuffle=False))) for one in (there, here))
    for name in window:
        same(theirs[name], ours[name])


# ---- whatever is stored


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["f2", "<f4", ">f4", "<f8", ">f8", "i1", "<i2", ">i4", "i8", "u1", "<u2", ">u8", "?"]),
    steps=st.integers(0, 9),
    shape=st.lists(st.integers(1, 4), max_size=2),
    chunk=st.integers(0, 5),
    packing=st.sampled_from(
        [{}, {"compression": "gzip"}, {"compression": "lzf", "shuffle": True}, {"fletcher32": True}]
    ),
    growing=st.booleans(),
    version=st.sampled_from(["earliest", "latest"]),
)
def test_any_type_chunking_and_packing(
    tmp_path: Path, dtype: str, steps: int, shape: list[int], chunk: int, packing: Any, growing: bool, version: str
) -> None:
    path = tmp_path / "x.h5"
    rng = np.random.default_rng(steps)
    array = rng.integers(0, 100, (steps, *shape)).astype(dtype)
    options: dict[str, Any] = {**packing}
    if chunk and steps:
        options["chunks"] = (min(chunk, steps), *shape)
    elif packing and not steps:
        options = {}
    if growing and ("chunks" in options or packing) and steps:
        options["maxshape"] = (None, *shape)
    with h5py.File(path, "w", libver=version, userblock_size=512 if growing else 0) as file:
        file.create_dataset("x", data=array, **options)
    source = hdf5.scan(str(path), map={"x": {"source": "x", "type": "trajectory"}})
    cell = sl.scan(source)[0]["x"]
    expected = array.astype(array.dtype.newbyteorder("="))
    np.testing.assert_array_equal(np.asarray(cell).reshape(expected.shape), expected)
    assert source.lengths("x").tolist() == [steps]
    reader = source.shards()[0].open()
    if steps:
        np.testing.assert_array_equal(reader.slice("x", 0, steps // 2, steps), expected[steps // 2 :])
    flat = reader.flat("x")
    assert (flat is not None) == (dtype != "?" and (not options or not steps))
    with pytest.raises(IndexError):
        reader.slice("x", 0, 0, steps + 1)
    reader.close()


def test_a_view_reads_the_pictures_that_are_asked_for(tmp_path: Path, monkeypatch: Any) -> None:
    import pickle

    from seqlake.formats.hdf5.nodes import Hdf5File

    folder = by_hand.aloha(tmp_path / "aloha", lengths=(40, 5))
    reads: list[int] = []
    steps = Hdf5File.steps

    def counted(self: Hdf5File, array: Any, start: int, stop: int) -> Any:
        reads.append(stop - start)
        return steps(self, array, start, stop)

    ds = sl.open(folder)
    view = ds["episode_0"]["cam_low"]
    monkeypatch.setattr(Hdf5File, "steps", counted)
    with h5py.File(folder / "episode_0.hdf5") as file:
        same(view[10:13], file["observations/images/cam_low"][10:13])
        same(view[-1], file["observations/images/cam_low"][-1])
        assert view.bytes(3) == b"P6\n32 24\n255\n" + file["observations/images/cam_low"][3].tobytes()
    assert (len(view), max(reads), len(reads)) == (40, 1, 5)
    again = pickle.loads(pickle.dumps(view))
    assert again == view
    assert view != ds["episode_1"]["cam_low"]
    window = ds["episode_0"].window(38, 42, columns=["cam_low", "action"])
    assert window["cam_low_mask"].tolist() == [True, True, False, False]
    same(window["cam_low"][:2], view[38:])
