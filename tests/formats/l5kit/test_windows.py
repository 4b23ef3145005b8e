"""Windows of the car and of agents through `Loader`: from the store and from what it was converted to, equal values."""

from __future__ import annotations

import numpy as np
import pytest

import seqlake as sl
from seqlake.compat.l5kit import sampling
from seqlake.compat.l5kit.poses import relative_poses
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError
from seqlake.formats.l5kit import selecting
from seqlake.formats.l5kit.store import open_store
from seqlake.formats.l5kit.windows import windows
from seqlake.windows.timestamps import usual_rate

HISTORY, FUTURE = 4, 7
STEPS = range(-HISTORY, FUTURE + 1)
AGENT = ("centroid", "yaw", "extent", "available")
POSES = relative_poses(history=HISTORY, future=FUTURE)


def batches(source, window, **options):
    loader = sl.Loader(source, window=window, batch_size=16, shuffle=False, **options).tail("pad")
    parts = list(loader.map_batch(POSES))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {name: values[whole["valid"]] for name, values in whole.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert values.dtype == other[name].dtype, name
        np.testing.assert_array_equal(values, other[name], err_msg=name)


def test_windows_of_the_car(drive, tmp_path):
    window = sl.Window({"ego_translation": STEPS, "ego_rotation": STEPS, "timestamp": range(1), "scene_index": None})
    ego, scenes = sl.scan(str(drive), view="ego"), sl.scan(str(drive))
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    found = batches(ego, window)
    same(found, batches(scenes, window))
    same(found, batches(ds, window))
    samples = sampling.EgoDataset(dataset=open_store(str(drive)), history_num_frames=HISTORY, future_num_frames=FUTURE)
    assert len(samples) == len(found["start"])
    for number in range(0, len(samples), 5):
        one = samples[number]
        assert one["timestamp"] == found["timestamp"][number, 0]
        for name in ("target_positions", "target_yaws", "history_positions", "target_availabilities", "curr_speed"):
            np.testing.assert_array_equal(one[name], found[name][number], err_msg=name)


@pytest.mark.parametrize("view", ["ego", "tracks", "agents"])
def test_paths_declare_the_rate_of_the_frames(view, drive, tmp_path):
    options = {"history": HISTORY, "future": FUTURE} if view == "agents" else {}
    rows = sl.scan(str(drive), view=view, **options)
    for source in (rows, sl.convert(rows, tmp_path / "dataset", workers=1)):
        stepped = [column for column in source.schema.values() if column.category == "temporal"]
        assert len(stepped) >= 3
        assert {column.type.rate for column in stepped} == {10}


def test_scenes_declare_no_rate_and_are_not_cut_from_their_agents(drive, tmp_path):
    rows = sl.scan(str(drive))
    assert not any(column.type.rate for column in rows.schema.values() if column.type)
    with pytest.raises(SchemaMismatchError, match="which count for each step samples of other columns"):
        sl.trim(rows, tmp_path / "cut", seconds=(1, 2))


def test_windows_by_time_are_those_by_steps(drive):
    timed, stepped = (
        list(
            sl.Loader(
                sl.scan(str(drive), view="ego"), window={"ego_translation": offsets}, batch_size=16, shuffle=False
            )
        )
        for offsets in (sl.seconds(-0.4, 0.8, every=0.2), range(-4, 8, 2))
    )
    assert len(timed) == len(stepped) > 0
    for one, other in zip(timed, stepped, strict=True):
        np.testing.assert_array_equal(one["ego_translation"], other["ego_translation"])


@pytest.mark.parametrize(
    ("gaps", "rate"),
    [
        ([99_700_000, 100_200_000, 100_400_000, 99_900_000], 10),  # late and early by less than a millisecond
        ([100_000_000, 100_000_000, 4 * 10**12, 100_000_000], 10),  # between two scenes, hours
        ([-(10**12), 50_000_000, 0, 50_000_000], 20),
        ([400_000_000] * 3, 2.5),
        ([0, 0], None),
        ([-1, -5], None),
        ([10**14] * 4, None),  # once a day is no drive
        ([1] * 4, None),
        ([], None),
    ],
)
@pytest.mark.parametrize("dtype", [">i8", "<u8"])
def test_the_rate_is_that_of_most_frames(gaps, rate, dtype):
    times = 1_571_846_863_000_000_000 + np.cumsum([0, *gaps])
    assert usual_rate(times.astype(dtype)) == rate


def test_times_that_are_no_numbers_say_no_rate():
    assert usual_rate(np.array(["a", "b"])) is None
    assert usual_rate(np.arange(6).reshape(3, 2)) is None


def test_windows_of_agents_are_the_samples(drive, tmp_path):
    """The view `agents` has the samples of AgentDataset; from a dataset of tracks come the same."""
    store = open_store(str(drive))
    mask = selecting.select_agents(store)
    least = {"min_frame_history": 1, "min_frame_future": 2}
    view = sl.scan(str(drive), view="agents", history=HISTORY, future=FUTURE, **least)
    ds = sl.convert(sl.scan(str(drive), view="tracks", mask=mask), str(tmp_path / "tracks"), workers=1)
    again = windows(ds, history=HISTORY, future=FUTURE, **least)
    width = range(len(STEPS))
    columns = {**dict.fromkeys(AGENT, width), "track_id": None, "frame_index": None, "scene_index": None}
    window = sl.Window(columns, stride=len(width))
    found = batches(view, window)
    same(found, batches(again, window))
    samples = sampling.AgentDataset(
        dataset=store, history_num_frames=HISTORY, future_num_frames=FUTURE, agents_mask=mask, **least
    )
    ours = {
        key: number
        for number, key in enumerate(
            zip(found["scene_index"].tolist(), found["frame_index"].tolist(), found["track_id"].tolist(), strict=True)
        )
    }
    assert len(ours) == len(samples) > 100
    for number in range(0, len(samples), 7):
        one = samples[number]
        at = ours[one["scene_index"], one["frame_index"], int(one["track_id"])]
        for name in one.keys() & found.keys() - {"scene_index", "frame_index", "track_id"}:
            np.testing.assert_array_equal(one[name], found[name][at], err_msg=name)


def test_windows_from_elsewhere(zarr, tmp_path, s3_bucket):
    """From a zip archive and a bucket, and through local copies of shards, come the same windows."""
    from seqlake.files.stores import open_store as open_files

    drive = zarr.write(tmp_path / "drive.zarr", zarr.drives(scenes=1), codec=zarr.CODECS["blosc-1"], chunks=120)
    bucket = open_files(s3_bucket.uri, storage=s3_bucket.storage)
    for path in drive.rglob("*"):
        if path.is_file():
            bucket.put(f"drive.zarr/{path.relative_to(drive).as_posix()}", path.read_bytes())
    places = {
        str(zarr.zipped(drive, tmp_path / "drive.zarr.zip")): {},
        f"{s3_bucket.uri}/drive.zarr": {"storage": s3_bucket.storage},
    }
    width = range(len(STEPS))
    rows = sl.Window({**dict.fromkeys(AGENT, width), "track_id": None}, stride=len(width))
    steps = sl.Window({**dict.fromkeys(AGENT, STEPS), "track_id": None})
    ego = sl.Window(dict.fromkeys(("ego_translation", "ego_rotation"), STEPS))
    agents = {"view": "agents", "history": HISTORY, "future": FUTURE}
    for window, view in ((rows, agents), (steps, {"view": "tracks"}), (ego, {"view": "ego"})):
        found = batches(sl.scan(str(drive), **view), window)
        for place, options in places.items():
            same(found, batches(sl.scan(place, **view, **options), window))
        if view != agents:
            cache = sl.Cache(tmp_path / "copies", limit="1 GB")
            same(found, batches(sl.scan(str(drive), **view), window, cache=cache))


def test_windows_over_tracks(zarr, drive, tmp_path):
    """Without a selection every step of every track is an anchor; holes and edges have availability 0."""
    window = sl.Window({**dict.fromkeys(AGENT, STEPS), "track_id": None, "scene_index": None})
    tracks = sl.scan(str(drive), view="tracks")
    ds = sl.convert(tracks, str(tmp_path / "tracks"), workers=1)
    found = batches(tracks, window)
    same(found, batches(ds, window))
    truth = zarr.read(drive)
    seen = set()
    for scene, (a, b) in enumerate(truth["scenes"]["frame_index_interval"]):
        for frame in range(a, b):
            first, stop = truth["frames"]["agent_index_interval"][frame]
            seen |= {(scene, frame - a, int(track)) for track in truth["agents"]["track_id"][first:stop]}
    begins = {
        row["sequence_id"]: row["first_frame"]
        for row in tracks.select("sequence_id", "first_frame").to_arrow().to_pylist()
    }
    counted = 0
    for number, (name, scene) in enumerate(
        zip(found["sequence_id"].tolist(), found["scene_index"].tolist(), strict=True)
    ):
        now, track = begins[name] + int(found["start"][number]), int(found["track_id"][number])
        expected = [(scene, now + step, track) in seen for step in range(1, FUTURE + 1)]
        np.testing.assert_array_equal(found["target_availabilities"][number], expected)
        behind = [(scene, now - step, track) in seen for step in range(HISTORY + 1)]
        np.testing.assert_array_equal(found["history_availabilities"][number], behind)
        counted += behind[0]
    assert counted == len(seen)


def test_a_batch_is_what_its_samples_are(drive):
    """Poses of a batch are those of its samples one by one."""
    steps = dict.fromkeys(AGENT, STEPS)
    loader = sl.Loader(sl.scan(str(drive), view="tracks"), window=sl.Window(steps), batch_size=32, seed=3)
    batch = next(iter(loader))
    whole = POSES(batch)
    for number in range(32):
        alone = POSES({name: values[number : number + 1] for name, values in batch.items()})
        for name in ("target_positions", "target_velocities", "history_yaws", "agent_from_world", "future_extents"):
            np.testing.assert_array_equal(alone[name][0], whole[name][number], err_msg=name)


def test_samples_of_one_scene_in_memory(drive):
    store = open_store(str(drive))
    mask = selecting.select_agents(store)
    least = {"min_frame_history": 1, "min_frame_future": 2}
    agents = sampling.AgentDataset(dataset=store, agents_mask=mask, **least)
    car = sampling.EgoDataset(dataset=store)
    for whole in (agents, car):
        part, numbers = whole.get_scene_dataset(1), whole.get_scene_indices(1)
        assert len(part) == len(numbers) > 10
        for at in (0, len(part) // 2, -1):
            one, other = part[at], whole[int(numbers[at])]
            assert one.keys() == other.keys()
            for name in one.keys() - {"scene_index"}:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)
            assert (one["scene_index"], other["scene_index"]) == (0, 1)
    by_frame = [agents.get_frame_indices(frame) for frame in range(len(store.frames))]
    np.testing.assert_array_equal(np.concatenate(by_frame), np.arange(len(agents)))
    with pytest.raises(IndexError, match="no sample"):
        agents[len(agents)]
    with pytest.raises(IndexError, match="no frame"):
        car.get_frame_indices(-1)
    with pytest.raises(IndexError, match="not in frame 0"):
        car.get_frame(0, 0, track_id=10**9)


def test_as_tensors(drive):
    torch = pytest.importorskip("torch")
    window = sl.Window(dict.fromkeys(AGENT, STEPS))
    loader = sl.Loader(sl.scan(str(drive), view="tracks"), window=window, batch_size=32, seed=3).map_batch(POSES)
    arrays = next(iter(loader))
    loader.set_epoch(0)
    tensors = next(iter(loader.torch()))
    assert isinstance(tensors["history_positions"], torch.Tensor)
    for name, values in arrays.items():
        np.testing.assert_array_equal(np.asarray(tensors[name]), values, err_msg=name)


def test_poses_by_hand():
    """An agent that drives north at 2 metres a step and turns left by a quarter now."""
    batch = {
        "centroid": np.array([[[5.0, 1.0], [5.0, 3.0], [5.0, 5.0], [3.0, 5.0]]]),
        "yaw": np.array([[np.pi / 2, np.pi / 2, np.pi / 2, np.pi]], np.float32),
        "extent": np.full((1, 4, 3), 2, np.float32),
        "available": np.array([[1, 1, 1, 1]], np.uint8),
    }
    found = relative_poses(history=2, future=1, step_time=0.5)(batch)
    np.testing.assert_allclose(found["history_positions"][0], [[0, 0], [-2, 0], [-4, 0]], atol=1e-6)
    np.testing.assert_allclose(found["target_positions"][0], [[0, 2]], atol=1e-6)
    np.testing.assert_allclose(found["target_yaws"][0], [[np.pi / 2]], atol=1e-6)
    np.testing.assert_allclose(found["target_velocities"][0], [[0, 4]], atol=1e-6)
    np.testing.assert_allclose(found["history_velocities"][0], [[4, 0], [4, 0]], atol=1e-6)
    np.testing.assert_allclose(found["curr_speed"], [4], atol=1e-6)
    away = relative_poses(history=2, future=1)({**batch, "available": np.array([[1, 0, 1, 0]], np.uint8)})
    assert away["history_availabilities"].tolist() == [[1, 0, 1]]
    assert away["target_availabilities"].tolist() == [[0]]
    assert not away["target_positions"].any()
    assert not away["history_positions"][0, 1].any()


def test_what_poses_need():
    batch = {"centroid": np.zeros((1, 4, 2)), "yaw": np.zeros((1, 4))}
    with pytest.raises(SchemaMismatchError, match="'extent' is not there"):
        POSES(batch)
    with pytest.raises(SchemaMismatchError, match=r"4 \+ 1 \+ 7"):
        POSES({**batch, "extent": np.zeros((1, 4, 3)), "available": np.ones((1, 4))})
    with pytest.raises(ValueError, match="from 0 on"):
        relative_poses(history=-1, future=3)


def test_the_mask_is_kept_outside_the_store(drive, tmp_path):
    before = sorted(path for path in drive.rglob("*"))
    store = open_store(str(drive))
    keep = tmp_path / "masks" / "drive.npz"
    mask = selecting.select_agents(store, keep=str(keep), workers=2)
    assert sorted(path for path in drive.rglob("*")) == before
    with np.load(keep) as held:
        np.testing.assert_array_equal(held["arr_0"], mask)
        told = str(held["told"])
    np.savez_compressed(keep, np.full_like(mask, 7), told=np.array(told))
    assert (selecting.select_agents(store, keep=str(keep)) == 7).all()
    other = selecting.Thresholds(distance=10)
    fewer = selecting.select_agents(store, keep=str(keep), thresholds=other)
    assert fewer.sum() < mask.sum()
    np.testing.assert_array_equal(fewer, selecting.select_agents(store, thresholds=other))


def test_selections_decide_which_windows_there_are(zarr, drive, tmp_path):
    arrays = zarr.read(drive)
    rng = np.random.default_rng(2)
    runs = rng.integers(0, 12, (len(arrays["agents"]), 2)).astype("<u4")
    flags = rng.random(len(runs)) < 0.2
    folder = zarr.write(tmp_path / "m.zarr", {**arrays, "agents_mask/0.5": runs, "agents_mask/old": flags})
    least = {"min_frame_history": 3, "min_frame_future": 5}
    chosen = (runs[:, 0] >= 3) & (runs[:, 1] >= 5)
    assert len(sl.scan(str(folder), view="agents", mask="0.5", **least)) == chosen.sum()
    assert len(sl.scan(str(folder), view="agents", mask=runs, **least)) == chosen.sum()
    assert len(sl.scan(str(folder), view="agents", mask="old")) == flags.sum()
    assert sum(shard.rows for shard in windows(sl.scan(str(folder), view="tracks")).shards()) == len(runs)
    with pytest.raises(DatasetNotFoundError, match=r"no mask '0\.7'; it has 0\.5, old"):
        sl.scan(str(folder), view="tracks", mask="0.7")


def test_two_sightings_in_one_frame(zarr, tmp_path):
    """The first counts, as filter_agents_by_track_id()[0] has it."""
    arrays = zarr.drives(scenes=1, frames=4, agents=0)
    arrays["agents"] = np.zeros(5, zarr.AGENTS)
    arrays["agents"]["track_id"] = [9, 4, 9, 9, 4]
    arrays["agents"]["yaw"] = [1, 2, 3, 4, 5]
    ends = np.array([3, 3, 4, 5])
    arrays["frames"]["agent_index_interval"] = np.stack([[0, 3, 3, 4], ends], axis=1)
    rows = sl.scan(str(zarr.write(tmp_path / "t.zarr", arrays)), view="tracks").to_arrow().to_pylist()
    assert [row["track_id"] for row in rows] == [9, 4]
    assert rows[0]["yaw"] == [1, 0, 4]
    assert rows[0]["available"] == [1, 0, 1]
    assert rows[1]["yaw"] == [2, 0, 0, 5]
    assert [row["first_frame"] for row in rows] == [0, 0]
    assert rows[1]["timestamp"] == arrays["frames"]["timestamp"].tolist()


def test_a_chopped_set(drive, tmp_path):
    from seqlake.compat.l5kit import results

    results.create_chopped_dataset(
        str(drive), str(tmp_path / "test"), num_frames_to_copy=12, num_frames_gt=6, min_frame_future=3
    )
    chopped = open_store(str(tmp_path / "test" / "drive.zarr"))
    with np.load(tmp_path / "test" / "mask.npz") as held:
        mask = held["arr_0"]
    assert mask.shape == (len(chopped.agents),)
    rows = list(results.read_gt_csv(str(tmp_path / "test" / "gt.csv")))
    assert len(rows) == mask.sum() > 2
    last = {int(chopped.frames[int(stop) - 1]["timestamp"]) for _, stop in chopped.scenes["frame_index_interval"]}
    assert {int(row["timestamp"]) for row in rows} <= last
    assert all(row["avail"][:3].all() for row in rows)
    tracks = chopped.agents[mask]["track_id"].tolist()
    assert [int(row["track_id"]) for row in rows] == tracks


def test_result_files_say_what_is_wrong(tmp_path):
    from seqlake.compat.l5kit import results

    one = np.zeros(1, np.int64)
    path = str(tmp_path / "x.csv")
    with pytest.raises(SchemaMismatchError, match="avails"):
        results.write_gt_csv(path, one, one, np.zeros((1, 3, 2)), np.zeros((1, 2)))
    with pytest.raises(SchemaMismatchError, match="sum to 1"):
        results.write_pred_csv(path, one, one, np.zeros((1, 2, 3, 2)), np.array([[0.5, 0.4]]))
    with pytest.raises(SchemaMismatchError, match="modes up to 3"):
        results.write_pred_csv(path, one, one, np.zeros((1, 4, 3, 2)), np.full((1, 4), 0.25))
    (tmp_path / "x.csv").write_text("timestamp,track_id,nothing\r\n")
    for reader in (results.read_gt_csv, results.read_pred_csv):
        with pytest.raises(SchemaMismatchError, match="header"):
            list(reader(path))
