"""Against l5kit 1.5.0 itself, on the real scene and on made-up drives of several scenes."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.compat.l5kit import editing, rasters, results, sampling
from seqlake.formats.l5kit import selecting, writing
from seqlake.formats.l5kit.store import (
    filter_agents_by_distance,
    filter_agents_by_frames,
    filter_agents_by_labels,
    filter_agents_by_track_id,
    filter_tl_faces_by_frames,
    filter_tl_faces_by_status,
    get_agents_slice_from_frames,
    get_combined_scenes,
    get_tl_faces_slice_from_frames,
    open_store,
)

OPEN = """
import os, shutil
from l5kit.data import ChunkedDataset
from l5kit.evaluation.chop_dataset import create_chopped_dataset
from l5kit.data import zarr_utils
from l5kit.data.filter import *
from l5kit.data.filter import _get_label_filter
from l5kit.data.combine import get_combined_scenes
from l5kit.dataset import AgentDataset, EgoDataset
from l5kit.dataset.select_agents import get_valid_agents
from l5kit.rasterization import RenderContext, StubRasterizer
from l5kit.sampling.slicing import get_future_slice, get_history_slice
from l5kit.evaluation import csv_utils
def arrays(path):
    d = ChunkedDataset(path).open()
    return {"scenes": d.scenes[:], "frames": d.frames[:], "agents": d.agents[:], "faces": d.tl_faces[:]}
def raw(rows):
    return np.frombuffer(rows.tobytes(), np.uint8)
CFG = {
    "raster_params": {
        "raster_size": (100, 100), "pixel_size": np.array((0.5, 0.5)), "ego_center": np.array((0.5, 0.5)),
        "filter_agents_threshold": 0.5, "disable_traffic_light_faces": True, "set_origin_to_bottom": True,
    },
    "model_params": {"history_num_frames": 10, "future_num_frames": 50, "step_time": 0.1},
}
STUB = StubRasterizer(RenderContext(np.array((100, 100)), np.array((0.5, 0.5)), np.array((0.5, 0.5)), True))
def rounds(d):
    return np.array(sorted({0, 1, 9, len(d) // 3, len(d) // 2, len(d) - 2, len(d) - 1} & set(range(len(d)))))
def mask_of(d):
    mask = np.zeros((len(d.agents), 2), np.uint32)
    for interval in d.scenes["frame_index_interval"]:
        found, _, (first, stop) = get_valid_agents(interval, d, 0.5, 30, 1.1, 50)
        mask[first:stop] = found
    return mask
"""


CAR = """
d = EgoDataset(CFG, ChunkedDataset(path).open(), STUB)
numbers = rounds(d)
out["car_len"], out["car_numbers"], out["car_indices"] = len(d), numbers, d.get_scene_indices(0)
for n in numbers:
    out.update({f"car_{n}_{k}": v for k, v in d[n].items() if k != "image"})
"""

AGENTS = """
z = ChunkedDataset(path).open()
mask = mask_of(z)
d = AgentDataset(CFG, z, STUB, agents_mask=(mask[:, 0] >= 10) * (mask[:, 1] >= 1))
numbers = rounds(d)
out["mask"], out["rows"], out["agent_numbers"] = mask, d.agents_indices, numbers
for n in numbers:
    out.update({f"agent_{n}_{k}": v for k, v in d[n].items() if k != "image"})
out["of_scene"], out["of_frame"] = d.get_scene_indices(0), d.get_frame_indices(12)
out["sub_len"] = len(d.get_scene_dataset(0))
"""

RASTERS = """
from l5kit.rasterization import BoxRasterizer
def cfg_of(text):
    cfg = json.loads(text)
    for name in ("raster_size", "pixel_size", "ego_center"):
        cfg["raster_params"][name] = np.array(cfg["raster_params"][name])
    return cfg
import json
cfg = cfg_of(raster_cfg)
p = cfg["raster_params"]
context = RenderContext(p["raster_size"], p["pixel_size"], p["ego_center"], p["set_origin_to_bottom"])
boxes = BoxRasterizer(context, 0.5, 4)
class Told:
    def rasterize(self, history_frames, history_agents, history_tl_faces, agent=None):
        faces = [np.frombuffer(x.tobytes(), np.uint8) for x in history_tl_faces]
        agents = [np.frombuffer(x.tobytes(), np.uint8) for x in history_agents]
        frames = np.frombuffer(history_frames.tobytes(), np.uint8)
        out[f"told_{number}_{kind}"] = np.concatenate([frames, *agents, *faces])
        return boxes.rasterize(history_frames, history_agents, history_tl_faces, agent)
z = ChunkedDataset(path).open()
mask = mask_of(z)
sets = {"car": EgoDataset(cfg, z, Told()),
    "agent": AgentDataset(cfg, z, Told(), agents_mask=(mask[:, 0] >= 10) * (mask[:, 1] >= 1))}
for kind, d in sets.items():
    for number in rounds(d):
        out.update({f"raster_{kind}_{number}_{k}": v for k, v in d[number].items() if "raster" in k or "image" in k})
    out[f"raster_{kind}"] = rounds(d)
"""

FILTERS = """
d = ChunkedDataset(path).open()
s = d.get_scene_dataset(0)
out["scene"], out["frames"], out["agents"], out["faces"] = map(raw, (s.scenes, s.frames, s.agents, s.tl_faces))
out["labels"] = raw(filter_agents_by_labels(s.agents, 0.5))
out["track"] = raw(filter_agents_by_track_id(s.agents, track))
out["near"] = raw(filter_agents_by_distance(s.agents[:50], s.frames[0]["ego_translation"][:2], 30))
out["by_frame"] = np.array([len(x) for x in filter_agents_by_frames(s.frames, s.agents)])
out["lights"] = np.array([len(x) for x in filter_tl_faces_by_frames(s.frames, s.tl_faces)])
for status in ("ACTIVE", "INACTIVE", "UNKNOWN"):
    out[status] = raw(filter_tl_faces_by_status(s.tl_faces, status))
cut = get_agents_slice_from_frames(s.frames[2], s.frames[5])
lit = get_tl_faces_slice_from_frames(s.frames[2], s.frames[5])
out["slices"] = np.array([cut.start, cut.stop, lit.start, lit.stop])
scenes = d.scenes[:]
scenes["end_time"][:-1] = scenes["start_time"][1:]
out["combined"] = raw(get_combined_scenes(scenes))
"""

EDITS = """
zarr_utils.zarr_concat([path] * 3, work + "/joined.zarr")
size = sum(os.path.getsize(os.path.join(top, f)) for top, _, files in os.walk(work + "/joined.zarr") for f in files)
splits = [{"name": "a.zarr", "split_size_GB": size / 2**31}, {"name": "b.zarr", "split_size_GB": -1}]
out["parts"] = np.array(zarr_utils.zarr_split(work + "/joined.zarr", work, splits))
zarr_utils.zarr_scenes_chop(work + "/joined.zarr", work + "/chopped.zarr", 15)
shutil.copytree(path, work + "/set.zarr")
create_chopped_dataset(work + "/set.zarr", 0.5, 15, 8, 4)
"""


HISTORY = """
line = np.arange(10)
for k, (i, n, s, c) in enumerate(grid):
    out[f"h{k}"], out[f"f{k}"] = line[get_history_slice(i, n, s, c)], line[get_future_slice(i, n, s)]
"""

WRITTEN = """
import glob
for path in sorted(glob.glob(folder + "/*.zarr")):
    for key, rows in arrays(path).items():
        truth = np.load(f"{folder}/arrays/{key}.npy")
        name = path.split("/")[-1]
        out[f"{name}-{key}"] = np.array([rows.tobytes() == truth.tobytes(), rows.dtype == truth.dtype])
    d = ChunkedDataset(path).open()
    out[f"attrs-{path.split('/')[-1]}"] = d.root.attrs["format_version"] == 2 and len(d.root.attrs["labels"]) == 17
"""

RESULTS = """
given = np.load(folder + "/in.npz")
times, tracks, coords, confs, avails = (given[k] for k in ("times", "tracks", "coords", "confs", "avails"))
csv_utils.write_gt_csv(folder + "/gt-theirs.csv", times, tracks, coords[:, 0], avails)
csv_utils.write_pred_csv(folder + "/pred-theirs.csv", times, tracks, coords, confs)
csv_utils.write_pred_csv(folder + "/single-theirs.csv", times, tracks, coords[:, 0])
for k, row in enumerate(csv_utils.read_gt_csv(folder + "/gt-mine.csv")):
    out[f"coord{k}"], out[f"avail{k}"] = row["coord"], row["avail"]
for k, row in enumerate(csv_utils.read_pred_csv(folder + "/pred-mine.csv")):
    out[f"coords{k}"], out[f"conf{k}"] = row["coords"], row["conf"]
"""


RASTER_CFG = {
    "raster_params": {
        "raster_size": [120, 90], "pixel_size": [0.5, 0.5], "ego_center": [0.25, 0.5], "set_origin_to_bottom": True,
        "filter_agents_threshold": 0.5, "disable_traffic_light_faces": False,
    },
    "model_params": {"history_num_frames": 4, "future_num_frames": 7, "step_time": 0.1},
}  # fmt: skip


@pytest.fixture(scope="module", params=["drive", "real"])
def path(request) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="module", params=["store", "dataset"])
def opened(request, path, tmp_path_factory):
    """The store, and a dataset that it was converted to."""
    if request.param == "store":
        return open_store(path)
    return sl.convert(path, str(tmp_path_factory.mktemp("converted") / "drives"), workers=1)


@pytest.fixture(scope="module")
def work(path, tmp_path_factory) -> Path:
    """Where l5kit puts what it makes of the store."""
    return tmp_path_factory.mktemp("theirs")


@pytest.fixture(scope="module")
def theirs(path, peer, work) -> dict:
    """Everything that l5kit says of the store, in one go: it takes seconds to start."""
    track = int(open_store(path).agents[3]["track_id"])
    given = {"path": path, "track": track, "work": str(work), "raster_cfg": json.dumps(RASTER_CFG)}
    return peer(OPEN + CAR + AGENTS + RASTERS + FILTERS + EDITS, work, **given)


def raw(rows):
    return np.frombuffer(np.asarray(rows).tobytes(), np.uint8)


def compare(sample, theirs, prefix):
    for name in (
        "target_positions", "target_yaws", "target_velocities", "target_availabilities", "history_positions",
        "history_yaws", "history_velocities", "history_availabilities", "history_extents", "future_extents",
        "agent_from_world", "world_from_agent", "centroid", "yaw", "extent", "frame_index", "scene_index", "timestamp",
        "track_id", "host_id", "curr_speed",
    ):  # fmt: skip
        mine, other = np.asarray(sample[name]), theirs[f"{prefix}_{name}"]
        assert mine.shape == other.shape, name
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=2e-5, err_msg=name)
            assert mine.dtype == other.dtype, name
        else:
            np.testing.assert_array_equal(mine, other, err_msg=name)


def test_samples_of_the_car(opened, theirs):
    mine = sampling.EgoDataset(dataset=opened)
    assert len(mine) == theirs["car_len"]
    assert len(theirs["car_numbers"]) > 5
    for number in theirs["car_numbers"].tolist():
        compare(mine[number], theirs, f"car_{number}")
    np.testing.assert_array_equal(mine.get_scene_indices(0), theirs["car_indices"])


def test_samples_of_agents_and_their_selection(opened, theirs):
    mask = selecting.select_agents(opened)
    np.testing.assert_array_equal(mask, theirs["mask"])
    assert len(np.unique(mask)) > 5
    mine = sampling.AgentDataset(dataset=opened, agents_mask=mask)
    np.testing.assert_array_equal(mine.agents_indices, theirs["rows"])
    assert len(theirs["agent_numbers"]) > 5
    for number in theirs["agent_numbers"].tolist():
        compare(mine[number], theirs, f"agent_{number}")
    np.testing.assert_array_equal(mine.get_scene_indices(0), theirs["of_scene"])
    np.testing.assert_array_equal(mine.get_frame_indices(12), theirs["of_frame"])
    assert len(mine.get_scene_dataset(0)) == theirs["sub_len"]


class Told:
    """A rasteriser that remembers what it was given."""

    def __init__(self) -> None:
        self.boxes = rasters.BoxRasterizer(
            render_context=rasters.RenderContext.of(RASTER_CFG), filter_agents_threshold=0.5, history_num_frames=4
        )

    def rasterize(self, history_frames, history_agents, history_tl_faces, agent=None):
        self.given = np.concatenate([raw(history_frames), *map(raw, history_agents), *map(raw, history_tl_faces)])
        return self.boxes.rasterize(history_frames, history_agents, history_tl_faces, agent)


def test_rasters_need_no_map(path, opened, theirs):
    """What a rasteriser is handed is l5kit's to the byte, so are the matrices; boxes differ along their edges."""
    told = Told()
    drawn = 0
    for kind, dataset in (
        ("car", sampling.EgoDataset(RASTER_CFG, opened, told)),
        ("agent", sampling.AgentDataset(RASTER_CFG, opened, told)),
    ):
        numbers = theirs[f"raster_{kind}"].tolist()
        assert len(numbers) > 5
        for number in numbers:
            sample, prefix = dataset[number], f"raster_{kind}_{number}_"
            np.testing.assert_array_equal(told.given, theirs[f"told_{number}_{kind}"])
            for name in ("raster_from_agent", "raster_from_world", "world_to_image"):
                np.testing.assert_allclose(sample[name], theirs[prefix + name], rtol=1e-9, atol=1e-6, err_msg=name)
            mine, other = sample["image"], theirs[prefix + "image"]
            assert (mine.shape, mine.dtype) == (other.shape, other.dtype) == ((10, 90, 120), np.float32)
            alone = slice(None) if "lyft" in path else slice(5, None)  # OpenCV leaves holes where two boxes overlap
            mine, other = mine[alone], other[alone]
            inner = np.s_[:, 2:-2, 2:-2]  # nor does it draw all that only touches the raster
            assert not ((mine > 0.5) & ~grown(other > 0))[inner].any()
            assert not ((other > 0.5) & ~grown(mine > 0))[inner].any()
            assert np.abs(mine - other).sum() <= 0.2 * other.sum()
            drawn += int(other.sum())
            bare = type(dataset)(RASTER_CFG, opened)[number]
            assert bare.keys() == sample.keys() - {"image"}
    assert drawn > 2000


def grown(image):
    """[C, H, W] with the pixels beside and across those that are set."""
    wide = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    _, height, width = image.shape
    return np.any([wide[:, y : y + height, x : x + width] for y in range(3) for x in range(3)], axis=0)


def test_slices_and_filters(path, theirs):
    store = open_store(path)
    data = store.get_scene_dataset(0)
    track = int(data.agents["track_id"][3])
    arrays = {"scene": data.scenes, "frames": data.frames, "agents": data.agents, "faces": data.tl_faces}
    for name, rows in arrays.items():
        np.testing.assert_array_equal(raw(rows), theirs[name], err_msg=name)
    kept = filter_agents_by_labels(data.agents, 0.5)
    assert 0 < len(kept) < len(data.agents)
    np.testing.assert_array_equal(raw(kept), theirs["labels"])
    np.testing.assert_array_equal(raw(filter_agents_by_track_id(data.agents, track)), theirs["track"])
    near = filter_agents_by_distance(data.agents[:50], data.frames[0]["ego_translation"][:2], 30)
    np.testing.assert_array_equal(raw(near), theirs["near"])
    counts = [len(one) for one in filter_agents_by_frames(data.frames, data.agents)]
    np.testing.assert_array_equal(counts, theirs["by_frame"])
    lights = [len(one) for one in filter_tl_faces_by_frames(data.frames, data.tl_faces)]
    np.testing.assert_array_equal(lights, theirs["lights"])
    for status in ("ACTIVE", "INACTIVE", "UNKNOWN"):
        np.testing.assert_array_equal(raw(filter_tl_faces_by_status(data.tl_faces, status)), theirs[status])
    cut = get_agents_slice_from_frames(data.frames[2], data.frames[5])
    lit = get_tl_faces_slice_from_frames(data.frames[2], data.frames[5])
    assert [cut.start, cut.stop, lit.start, lit.stop] == theirs["slices"].tolist()
    scenes = store.scenes[:]
    scenes["end_time"][:-1] = scenes["start_time"][1:]
    np.testing.assert_array_equal(raw(get_combined_scenes(scenes)), theirs["combined"])


def test_joining_splitting_and_chopping(path, theirs, work, zarr, tmp_path):
    editing.zarr_concat([path] * 3, f"{tmp_path}/joined.zarr")
    size = sum(file.stat().st_size for file in (tmp_path / "joined.zarr").rglob("*") if file.is_file())
    splits = [{"name": "a.zarr", "split_size_GB": size / 2**31}, {"name": "b.zarr", "split_size_GB": -1}]
    parts = editing.zarr_split(f"{tmp_path}/joined.zarr", str(tmp_path), splits)
    editing.zarr_scenes_chop(f"{tmp_path}/joined.zarr", f"{tmp_path}/chopped.zarr", 15)
    np.testing.assert_array_equal(parts, theirs["parts"])
    for name in ("joined", "a", "b", "chopped"):
        found = zarr.read(tmp_path / f"{name}.zarr")
        assert len(found["agents"]) > 0
        zarr.same(found, zarr.read(work / f"{name}.zarr"))


def test_a_test_set_without_its_future(path, theirs, work, zarr, tmp_path):
    shutil.copytree(path, tmp_path / "set.zarr")
    results.create_chopped_dataset(
        str(tmp_path / "set.zarr"), str(tmp_path / "mine"), num_frames_to_copy=15, num_frames_gt=8, min_frame_future=4
    )
    folder = work / "set_chopped_15"
    found, expected = (zarr.read(top / "set.zarr") for top in (tmp_path / "mine", folder))
    expected.pop("agents_mask/0.5", None)
    zarr.same(found, expected)
    with np.load(tmp_path / "mine" / "mask.npz") as mine, np.load(folder / "mask.npz") as other:
        np.testing.assert_array_equal(mine["arr_0"], other["arr_0"])
        assert mine["arr_0"].sum() > 2
    rows, others = (list(results.read_gt_csv(f"{top}/gt.csv")) for top in (tmp_path / "mine", folder))
    assert [(row["timestamp"], row["track_id"]) for row in rows] == [(r["timestamp"], r["track_id"]) for r in others]
    for row, other in zip(rows, others, strict=True):
        np.testing.assert_array_equal(row["avail"], other["avail"])
        np.testing.assert_allclose(row["coord"], other["coord"], atol=2e-5)
    # l5kit leaves its mask in the source; ours is as it was.
    assert "agents_mask/0.5" not in zarr.read(tmp_path / "set.zarr")
    np.testing.assert_array_equal(
        zarr.read(work / "set.zarr")["agents_mask/0.5"], selecting.select_agents(open_store(path))
    )


@pytest.fixture(scope="module")
def files(zarr, tmp_path_factory) -> Path:
    """Stores and result files of ours, and what they should hold."""
    folder = tmp_path_factory.mktemp("ours")
    drive = zarr.drives(seed=11)
    for name, codec in zarr.CODECS.items():
        for chunks in (7, 20_000):
            writing.write_store(f"{folder}/{name}-{chunks}.zarr", drive, compressor=codec, chunks=chunks)
    (folder / "arrays").mkdir()
    names = {"scenes": "scenes", "frames": "frames", "agents": "agents", "faces": "traffic_light_faces"}
    for short, name in names.items():
        np.save(folder / "arrays" / short, drive[name])
    rng = np.random.default_rng(0)
    count, steps = 7, 12
    given = {
        "times": rng.integers(10**18, 2 * 10**18, count),
        "tracks": rng.integers(0, 900, count),
        "coords": rng.normal(size=(count, 3, steps, 2)).astype(np.float32),
        "confs": rng.dirichlet(np.ones(3), size=count).astype(np.float32),
        "avails": (rng.random((count, steps)) < 0.7).astype(np.float32),
    }
    np.savez(folder / "in.npz", **given)
    times, tracks, coords = given["times"], given["tracks"], given["coords"]
    results.write_gt_csv(f"{folder}/gt-mine.csv", times, tracks, coords[:, 0], given["avails"])
    results.write_pred_csv(f"{folder}/pred-mine.csv", times, tracks, coords, given["confs"])
    results.write_pred_csv(f"{folder}/single-mine.csv", times, tracks, coords[:, 0])
    return folder


GRID = [(i, n, s, c) for i in range(0, 12, 2) for n in range(6) for s in (1, 2, 3) for c in (False, True)]
GRID += [(i, n, s, c) for i in (1, 3, 7) for n in (2, 3, 9) for s in (2, 3, 5) for c in (False, True)]


@pytest.fixture(scope="module")
def answers(peer, files) -> dict:
    """What l5kit says of what we wrote."""
    return peer(OPEN + HISTORY + WRITTEN + RESULTS, files, folder=str(files), grid=GRID)


def test_history_and_future_slices(answers):
    line = np.arange(10)
    for number, (i, n, s, c) in enumerate(GRID):
        future = line[sampling.get_future_slice(i, n, s)]
        np.testing.assert_array_equal(future, answers[f"f{number}"], err_msg=str((i, n, s)))
        if i < len(line):  # beyond the last frame there is no history to speak of
            history = line[sampling.get_history_slice(i, n, s, c)]
            np.testing.assert_array_equal(history, answers[f"h{number}"], err_msg=str((i, n, s, c)))


def test_what_is_written_is_read_there(answers):
    found = {name: right for name, right in answers.items() if ".zarr" in name}
    assert len(found) == 12 * 5
    for name, right in found.items():
        assert right.all(), name


def test_result_files_are_the_same_to_the_byte(files, answers):
    with np.load(files / "in.npz") as given:
        tracks, times = given["tracks"], given["times"]
    for name in ("gt", "pred", "single"):
        assert (files / f"{name}-mine.csv").read_bytes() == (files / f"{name}-theirs.csv").read_bytes(), name
    for number, row in enumerate(results.read_gt_csv(f"{files}/gt-theirs.csv")):
        assert row["track_id"] == str(tracks[number])
        np.testing.assert_array_equal(row["coord"], answers[f"coord{number}"])
        np.testing.assert_array_equal(row["avail"], answers[f"avail{number}"])
    for number, row in enumerate(results.read_pred_csv(f"{files}/pred-theirs.csv")):
        assert row["timestamp"] == str(times[number])
        np.testing.assert_array_equal(row["coords"], answers[f"coords{number}"])
        np.testing.assert_array_equal(row["conf"], answers[f"conf{number}"])
        assert math.isclose(row["conf"].sum(), 1, abs_tol=1e-5)
