"""A dataset of scenes instead of the store: the same samples, selections and windows, bit by bit and in one order."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.compat import l5kit as l5
from seqlake.errors import DatasetNotFoundError, SchemaMismatchError, ValidationError
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Schema

from ... import theirs  # noqa: TID252 - tests are no package that could be named

CFG = {
    "model_params": {"history_num_frames": 4, "future_num_frames": 7, "step_time": 0.1},
    "raster_params": {
        "raster_size": [40, 30], "pixel_size": [1, 1], "ego_center": [0.5, 0.5], "set_origin_to_bottom": False,
        "filter_agents_threshold": 0.5, "disable_traffic_light_faces": False,
    },
}  # fmt: skip
LEAST = {"min_frame_history": 1, "min_frame_future": 2}
SPAN = {"history": 4, "future": 7}
WIDTH = range(12)


class Cells(ScannedReader):
    """Rows of a table, as somebody else's dataset."""

    def __init__(self, table):
        super().__init__(table.schema, table.num_rows)
        self.table = table

    def arrays(self, schema, rows):
        return [self.table[name].combine_chunks().take(pa.array(rows)) for name in schema.names]


def in_memory(schema, table):
    shard = ScannedShard(key="cells#1", rows=table.num_rows, nbytes=table.nbytes, reader=partial(Cells, table))
    return ScannedDataset(root="memory", schema=schema, parts=[shard])


class Drawn:
    """A rasteriser that gives the bytes that it was handed."""

    def rasterize(self, history_frames, history_agents, history_tl_faces, agent=None):
        parts = [history_frames, *history_agents, *history_tl_faces, *([] if agent is None else [agent])]
        return np.frombuffer(b"".join(part.tobytes() for part in parts), np.uint8).reshape(1, 1, -1)


@pytest.fixture(scope="module", params=["drive", "real"])
def store(request):
    return l5.open_store(str(request.getfixturevalue(request.param)))


@pytest.fixture(scope="module")
def ds(store, tmp_path_factory):
    return sl.convert(store.location, str(tmp_path_factory.mktemp("converted") / "drives"), workers=1)


def same_samples(one, other, numbers):
    assert len(one) == len(other) > 20
    for number in numbers:
        sample, wanted = one[number], other[number]
        assert sample.keys() == wanted.keys()
        for name, value in wanted.items():
            assert np.asarray(sample[name]).dtype == np.asarray(value).dtype, name
            assert np.asarray(sample[name]).tobytes() == np.asarray(value).tobytes(), name


def test_samples_are_those_of_the_store(store, ds):
    np.testing.assert_array_equal(l5.select_agents(ds), l5.select_agents(store))
    for kind, more in ((l5.EgoDataset, {}), (l5.AgentDataset, LEAST)):
        one, other = (kind(CFG, rows, Drawn(), **more) for rows in (ds, store))
        numbers = [*range(0, len(other), max(1, len(other) // 25)), -1]
        same_samples(one, other, numbers)
        same_samples(pickle.loads(pickle.dumps(one)), other, numbers[::5])
        np.testing.assert_array_equal(one.get_scene_indices(0), other.get_scene_indices(0))
        np.testing.assert_array_equal(one.get_frame_indices(12), other.get_frame_indices(12))
        same_samples(one.get_scene_dataset(0), other.get_scene_dataset(0), (0, 5, -1))
    np.testing.assert_array_equal(one.agents_indices, other.agents_indices)


@pytest.mark.parametrize("view", ["agents", "tracks"])
def test_rows_of_the_views_are_those_of_the_store(store, ds, view):
    mask = l5.select_agents(store)
    if view == "agents":
        wanted = sl.scan(store.location, view=view, mask=mask, **SPAN, **LEAST)
        rows = l5.windows(ds, mask=mask, **SPAN, **LEAST)
    else:
        wanted, rows = sl.scan(store.location, view=view, mask=mask), l5.tracks_of(ds, mask=mask)
    assert [shard.rows for shard in rows.shards()] == [shard.rows for shard in wanted.shards()]
    more = {**SPAN, **LEAST} if view == "agents" else {}
    for shown in (rows, sl.scan(ds, view=view, mask=mask, **more), sl.scan(ds.location, view=view, mask=mask, **more)):
        assert sl.scan(shown).to_arrow().equals(wanted.to_arrow())
    assert wanted.to_arrow().num_rows > 30


def test_a_loader_trains_on_the_same_batches(store, ds):
    """Shuffled too, since shards and rows are the same; without a mask l5kit's rules decide."""
    columns = {
        **dict.fromkeys(("centroid", "yaw", "extent", "available"), WIDTH),
        "track_id": None,
        "frame_index": None,
    }
    batches = []
    for rows in (sl.scan(store.location, view="agents", **SPAN, **LEAST), l5.windows(ds, **SPAN, **LEAST)):
        loader = sl.Loader(rows, window=sl.Window(columns, stride=len(WIDTH)), batch_size=16, seed=5)
        batches.append([*loader.map_batch(l5.relative_poses(**SPAN))])
    assert len(batches[0]) == len(batches[1]) > 3
    for one, other in zip(*batches, strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            assert values.dtype == other[name].dtype, name
            as_values = np.ndarray.tolist if values.dtype == object else np.ndarray.tobytes
            assert as_values(values) == as_values(other[name]), name


@pytest.fixture(scope="module")
def narrow(zarr, tmp_path_factory):
    """A store that every lake has types for, if wider ones: Delta and Iceberg have none for uint64."""
    arrays = zarr.drives()
    kinds = [(name, "<i8" if name == "track_id" else kind, *shape) for name, kind, *shape in zarr.AGENTS]
    mask = np.random.default_rng(2).integers(0, 12, (len(arrays["agents"]), 2)).astype("<u4")
    arrays = {**arrays, "agents": arrays["agents"].astype(kinds), "agents_mask/0.5": mask}
    return l5.open_store(str(zarr.write(tmp_path_factory.mktemp("narrow") / "drive.zarr", arrays, chunks=100)))


@pytest.mark.parametrize("home", theirs.HOMES)
def test_in_every_home(narrow, tmp_path, home):
    """With the store's own mask, by its name and as AgentDataset takes it."""
    places = {
        "standalone": "drives", "delta": "delta:drives", "iceberg": "iceberg:drives/rl.t",
        "ducklake": "ducklake:drives/meta.duckdb?table=t",
    }  # fmt: skip
    (tmp_path / "drives").mkdir()
    place = places[home].replace("drives", str(tmp_path / "drives"))
    ds = sl.convert(narrow.location, place, workers=1)
    one, other = (l5.AgentDataset(CFG, rows, Drawn(), **LEAST) for rows in (ds, narrow))
    np.testing.assert_array_equal(one.agents_mask, other.agents_mask)
    assert one.agents_mask.dtype == np.uint32
    same_samples(one, other, (0, 7, 20, -1))
    view = sl.scan(narrow.location, view="agents", mask="0.5", **SPAN)
    assert sl.scan(l5.windows(ds, mask="0.5", **SPAN)).to_arrow().equals(view.to_arrow())


def test_some_scenes_are_a_store_of_these(zarr, drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1, bytes_per_part=1)
    some = ds.where("scene_index <> 1")
    sl.convert(some, str(tmp_path / "some.zarr"), to="l5kit", workers=1)
    written, read = l5.open_store(str(tmp_path / "some.zarr")), l5.as_store(some)
    for name, array in written.arrays.items():
        assert read.arrays[name][:].tobytes() == array[:].tobytes(), name
        assert read.arrays[name][[3, 0, -1] if name != "scenes" else [1, 0]].tobytes() == (
            array[[3, 0, -1] if name != "scenes" else [1, 0]].tobytes()
        )
    same_samples(l5.AgentDataset(CFG, some, **LEAST), l5.AgentDataset(CFG, written, **LEAST), (0, 9, -1))
    rows = sl.scan(l5.windows(some, **SPAN, **LEAST)).to_arrow()
    assert {*rows["scene_index"].to_pylist()} == {0, 2}  # as the dataset has them
    assert all(name.startswith(("drive-00000-", "drive-00002-")) for name in rows["sequence_id"].to_pylist())


def test_commits_do_not_change_what_is_open(drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    samples, wanted = l5.AgentDataset(CFG, ds, **LEAST), l5.AgentDataset(CFG, l5.open_store(str(drive)), **LEAST)
    ds.delete("scene_index = 0")
    same_samples(samples, wanted, (0, -1))
    assert len(l5.EgoDataset(CFG, ds)) < len(wanted.dataset.frames)


def test_scenes_that_hold_rows_twice_or_not_at_all(zarr, tmp_path):
    """Intervals that do not tile are those of the store; a part of such scenes is refused."""
    arrays = zarr.drives(scenes=3)
    arrays["scenes"]["frame_index_interval"][1] += 1
    folder = str(zarr.write(tmp_path / "odd.zarr", arrays))
    ds = sl.convert(folder, str(tmp_path / "dataset"), workers=1)
    store = l5.open_store(folder)
    same_samples(l5.AgentDataset(CFG, ds, **LEAST), l5.AgentDataset(CFG, store, **LEAST), (0, 11, -1))
    view = sl.scan(folder, view="agents", **SPAN, **LEAST).to_arrow()
    assert sl.scan(l5.windows(ds, **SPAN, **LEAST)).to_arrow().equals(view)
    with pytest.raises(ValidationError, match=r"do not hold all (scenes|frames|agents).*"):
        len(l5.AgentDataset(CFG, ds.where("scene_index >= 0"), **LEAST))


def test_rows_that_are_no_scenes_are_told_so(drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    tracks = sl.convert(sl.scan(str(drive), view="tracks"), str(tmp_path / "tracks"), workers=1)
    other = sl.create(str(tmp_path / "other"), {"action": sl.Trajectory(dim=2)})
    for rows in (tracks, other):
        for call in (l5.AgentDataset, l5.EgoDataset):
            with pytest.raises(SchemaMismatchError, match=r"Expected rows of scenes.*found the columns") as error:
                call(CFG, rows)
            assert "sl.convert" in error.value.hint
    with pytest.raises(SchemaMismatchError, match=r"Expected rows of scenes.* or rows of tracks.* found .*action"):
        l5.windows(other)
    with pytest.raises(SchemaMismatchError, match="needs the columns .*agents_yaw, .*which these rows lack"):
        l5.AgentDataset(CFG, ds.select("sequence_id", "scene_index", "host"))
    with pytest.raises(ValueError, match="expected a store as open_store gives it, .*or an open dataset"):
        l5.AgentDataset(CFG, str(tmp_path / "dataset"))
    with pytest.raises(ValueError, match="mask: these are rows of tracks"):
        l5.windows(tracks, mask="0.5")
    with pytest.raises(DatasetNotFoundError, match=r"no mask '0\.5'; it has none"):
        l5.windows(ds, mask="0.5")
    with pytest.raises(SchemaMismatchError, match="mask of 3 rows does not fit"):
        l5.windows(ds, mask=np.ones(3, np.bool_))


def test_views_of_a_dataset_are_asked_for_as_those_of_a_store(drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    tracks = sl.convert(sl.scan(ds, view="tracks"), str(tmp_path / "tracks"), workers=1)
    other = sl.create(str(tmp_path / "other"), {"action": sl.Trajectory(dim=2)})
    assert sl.scan(ds, view="scenes").to_arrow().equals(ds.to_arrow())
    assert sl.scan(tracks.location, view="tracks").to_arrow().equals(tracks.to_arrow())
    of_tracks, of_scenes = (sl.scan(rows, view="agents", **SPAN, min_frame_history=0) for rows in (tracks, ds))
    assert len(of_tracks) >= len(of_scenes) > 30
    part = ds.where("scene_index = 1")
    assert set(sl.scan(part, view="agents", **SPAN).to_arrow()["scene_index"].to_pylist()) == {1}
    for rows in (ds, ds.location, tracks):
        with pytest.raises(ValueError, match="view: expected one of"):
            sl.scan(rows, view="agent")
        with pytest.raises(ValueError, match=r"ds\.select"):
            sl.scan(rows, view="ego")
        with pytest.raises(TypeError, match="The view 'tracks' takes no option 'history'"):
            sl.scan(rows, view="tracks", history=3)
    with pytest.raises(SchemaMismatchError, match="Expected rows of scenes"):
        sl.scan(tracks, view="scenes")
    with pytest.raises(SchemaMismatchError, match="needs the columns .*agents_yaw, .*which these rows lack"):
        sl.scan(ds.select("sequence_id", "scene_index", "host"), view="agents")
    for rows in (other, other.where("true"), other.location):
        with pytest.raises(TypeError, match="takes no option 'view'.*was not converted from a format that has views"):
            sl.scan(rows, view="agents")
    with pytest.raises(TypeError, match="takes no option 'column_types'"):
        sl.scan(other, column_types={"action": sl.Trajectory(dim=2)})


@pytest.mark.parametrize("wrong", ["num_agents", "agents_yaw", "null"])
def test_scenes_that_contradict_themselves_are_refused(drive, tmp_path, wrong):
    scanned = sl.scan(str(drive))
    table, schema = scanned.to_arrow(), scanned.schema
    name = "agents_yaw" if wrong == "null" else wrong
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    cells = table[name].to_pylist()
    cells[1] = None if wrong == "null" else [*cells[1][1:]] if wrong == "agents_yaw" else [9, *cells[1][1:]]
    field = field.with_nullable(True) if wrong == "null" else field
    table = table.set_column(at, field, pa.array(cells, field.type))
    rows = in_memory(schema, table)
    with pytest.raises((ValidationError, SchemaMismatchError), match="agents"):
        len(l5.AgentDataset(CFG, rows, **LEAST))


@pytest.mark.parametrize("value", [{"mapping": 1}, {"mapping": 1, "arrays": [], "tiles": 1}, {"mapping": 2}, "x"])
def test_metadata_that_say_nothing_of_use(drive, value):
    scanned = sl.scan(str(drive))
    schema = Schema(dict(scanned.schema), metadata=Metadata(extra={"l5kit": value}))
    with pytest.raises(SchemaMismatchError, match="l5kit"):
        l5.as_store(in_memory(schema, scanned.to_arrow()))
