"""Stores as rows of scenes and back, byte for byte, however awkward they are."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import (
    DatasetExistsError,
    InvalidMetadataError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.formats import l5kit
from seqlake.formats.l5kit.converted import as_store
from seqlake.formats.l5kit.sink import L5kitSink
from seqlake.formats.l5kit.store import open_store
from seqlake.testing.formats import FormatTests, read
from seqlake.testing.shards import flat_is

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named


def texts(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob(".z*")}


def round_trip(folder, work, **options):
    """To a dataset and back."""
    ds = sl.convert(str(folder), str(work / "dataset"), workers=1)
    sl.convert(ds, str(work / "back.zarr"), to="l5kit", workers=1, **options)
    same_arrays(as_store(ds), open_store(str(folder)))
    return work / "back.zarr"


def same_arrays(one, other):
    """Scenes that were converted are, without being written again, the store that they were."""
    assert [*one.arrays] == [*other.arrays]
    for name, array in other.arrays.items():
        rows = one.arrays[name]
        assert (rows.dtype, rows.shape) == (array.dtype, array.shape), name
        assert rows[:].tobytes() == array[:].tobytes(), name
        assert rows[::-2].tobytes() == array[::-2].tobytes(), name
    assert one.attributes_text == other.attributes_text


@pytest.mark.parametrize("name", ["drive", "real"])
def test_there_and_back(zarr, request, tmp_path, name):
    folder = request.getfixturevalue(name)
    back = round_trip(folder, tmp_path)
    zarr.same(zarr.read(back), zarr.read(folder))
    assert texts(back) == texts(folder)
    assert {path.name for path in back.iterdir()} == {path.name for path in folder.iterdir()}


def test_a_converted_dataset_is_valid(drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    assert not ds.validate(depth="rows").findings
    assert ds["drive-00001"]["ego_translation"].shape == (25, 3)
    assert ds["drive-00001"]["ego_rotation"].shape == (25, 3, 3)


def test_in_many_parts_and_with_other_chunks(zarr, drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1, bytes_per_part=1)
    out = tmp_path / "back.zarr"
    sl.convert(ds, str(out), to="l5kit", workers=1, bytes_per_part=1, chunks=33, compressor={"id": "zlib", "level": 1})
    zarr.same(zarr.read(out), zarr.read(drive))
    metadata = json.loads((out / "agents" / ".zarray").read_text())
    assert metadata["chunks"] == [33]
    assert metadata["compressor"] == {"id": "zlib", "level": 1}


def test_some_scenes(zarr, drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    out = tmp_path / "back.zarr"
    sl.convert(ds.where("scene_index <> 1"), str(out), to="l5kit", workers=1)
    found, truth = zarr.read(out), zarr.read(drive)
    first, third = truth["scenes"]["frame_index_interval"][[0, 2]]
    np.testing.assert_array_equal(
        found["scenes"]["frame_index_interval"], [first, [first[1], first[1] + third[1] - third[0]]]
    )
    kept = np.concatenate([truth["frames"][slice(*first)], truth["frames"][slice(*third)]])
    assert found["frames"]["ego_translation"].tobytes() == kept["ego_translation"].tobytes()
    counts = np.diff(kept["agent_index_interval"], axis=1)[:, 0]
    np.testing.assert_array_equal(np.diff(found["frames"]["agent_index_interval"], axis=1)[:, 0], counts)
    assert found["frames"]["agent_index_interval"][0, 0] == 0
    assert found["frames"]["agent_index_interval"][-1, 1] == len(found["agents"]) == counts.sum()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("place", ["zip", "bucket"])
def test_from_elsewhere(zarr, drive, tmp_path, s3_bucket, place):
    from seqlake.files.stores import open_store

    if place == "zip":
        ds = sl.convert(str(zarr.zipped(drive, tmp_path / "drive.zarr.zip")), str(tmp_path / "dataset"), workers=1)
        sl.convert(ds, str(tmp_path / "back.zarr"), to="l5kit", workers=1)
        zarr.same(zarr.read(tmp_path / "back.zarr"), zarr.read(drive))
        return
    bucket = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    for path in drive.rglob("*"):
        if path.is_file():
            bucket.put(f"drive.zarr/{path.relative_to(drive).as_posix()}", path.read_bytes())
    source = sl.scan(f"{s3_bucket.uri}/drive.zarr", storage=s3_bucket.storage)
    assert source.to_arrow().equals(sl.scan(str(drive)).to_arrow())
    sl.convert(source, f"{s3_bucket.uri}/back.zarr", to="l5kit", workers=1, storage=s3_bucket.storage)
    from seqlake.formats.l5kit.store import open_store as open_l5kit

    back = open_l5kit(f"{s3_bucket.uri}/back.zarr", storage=s3_bucket.storage)
    zarr.same({name: array[:] for name, array in back.arrays.items()}, zarr.read(drive))
    assert not any("_seqlake" in path for path, _ in bucket.list())


# ---- awkward stores

U16 = st.text(max_size=16) | st.sampled_from(["\0a", "a\0b", "\ud800", "x\udfffy", "\ufdd0", "\ufdd0ab", "😀" * 16, ""])
KINDS = ["tiles", "gap", "overlap", "again"]


@st.composite
def stores(draw):
    """Any bytes whatever as agents, any text as names, and intervals that tile or name any other rows."""
    scenes = draw(st.integers(0, 4))
    lengths = draw(st.lists(st.integers(0, 4), min_size=scenes, max_size=scenes))
    frames = sum(lengths)
    counts = draw(st.lists(st.integers(0, 4), min_size=frames, max_size=frames))
    lights = draw(st.lists(st.integers(0, 2), min_size=frames, max_size=frames))
    extra = draw(st.integers(0, 3)) if draw(st.booleans()) else 0
    kind = draw(st.sampled_from(KINDS))
    seed = draw(st.integers(0, 2**32 - 1))
    names = draw(st.lists(U16, min_size=1, max_size=5))
    return {
        "lengths": lengths,
        "counts": counts,
        "lights": lights,
        "extra": extra,
        "kind": kind,
        "seed": seed,
        "names": names,
    }


def tiled(counts):
    ends = np.cumsum(np.array(counts, np.int64))
    return np.stack([ends - counts, ends], axis=1).reshape(-1, 2) if len(counts) else np.zeros((0, 2), np.int64)


def disturb(rng, intervals, kind, size):
    out = intervals.copy()
    if kind == "tiles" or not len(out):
        return out
    row = int(rng.integers(len(out)))
    if kind == "gap":
        out[row] += [0, 1] if rng.random() < 0.5 else [1, 1]
    elif kind == "overlap":
        out[row] = [0, out[row, 1]]
    else:
        out[row] = np.sort(rng.integers(0, size + 1, 2))
    return np.minimum(out, size)


def made(zarr, case):
    rng = np.random.default_rng(case["seed"])
    numbers = {
        "scenes": len(case["lengths"]),
        "frames": len(case["counts"]) + case["extra"],
        "agents": sum(case["counts"]) + case["extra"],
        "traffic_light_faces": sum(case["lights"]) + case["extra"],
    }
    kinds = {"scenes": zarr.SCENES, "frames": zarr.FRAMES, "agents": zarr.AGENTS, "traffic_light_faces": zarr.FACES}
    arrays = {
        name: np.frombuffer(rng.bytes(count * np.dtype(kinds[name]).itemsize), kinds[name]).copy()
        for name, count in numbers.items()
    }
    for name, field in (
        ("scenes", "host"),
        ("traffic_light_faces", "face_id"),
        ("traffic_light_faces", "traffic_light_id"),
    ):
        arrays[name][field] = [case["names"][k % len(case["names"])] for k in range(numbers[name])]
    own = len(case["counts"])
    arrays["scenes"]["frame_index_interval"] = disturb(rng, tiled(case["lengths"]), case["kind"], numbers["frames"])
    for field, rows, counts in (
        ("agent_index_interval", "agents", "counts"),
        ("traffic_light_faces_index_interval", "traffic_light_faces", "lights"),
    ):
        arrays["frames"][field] = np.sort(rng.integers(0, numbers[rows] + 1, (numbers["frames"], 2)))
        arrays["frames"][field][:own] = disturb(rng, tiled(case[counts]), case["kind"], numbers[rows])
    return arrays


@pytest.mark.sampled
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40 if SOAK else 15)
@given(case=stores(), chunks=st.sampled_from([1, 3, 20_000]))
def test_awkward_stores_there_and_back(zarr, tmp_path_factory, case, chunks):
    arrays = made(zarr, case)
    work = tmp_path_factory.mktemp("awkward")
    folder = zarr.write(work / "a.zarr", arrays, codec=zarr.CODECS["blosc-1"], chunks=chunks)
    source = l5kit.scan(str(folder))
    sink = l5kit.create(str(work / "back.zarr"), source.schema)
    receipts = [
        sink.write(part, shard.open().batches(source.schema.names), root="")
        for part, shard in enumerate(source.shards())
    ]
    sink.commit(receipts)
    zarr.same(zarr.read(work / "back.zarr"), arrays)
    assert texts(work / "back.zarr") == texts(folder)
    same_arrays(as_store(source), open_store(str(folder)))


@pytest.mark.parametrize("kind", KINDS)
def test_awkward_stores_through_a_dataset(zarr, tmp_path, kind):
    lengths, counts, lights = [2, 0, 3, 1], [3, 0, 2, 4, 1, 0], [1, 1, 0, 2, 0, 0]
    case = {"lengths": lengths, "counts": counts, "lights": lights, "extra": kind != "tiles", "kind": kind, "seed": 5}
    arrays = made(zarr, {**case, "names": ["\ud800", "a\0b", "\ufdd0", "😀" * 16]})
    folder = zarr.write(tmp_path / "a.zarr", arrays, codec=zarr.CODECS["blosc-1"], chunks=3)
    assert l5kit.scan(str(folder)).layout.tiles == (kind == "tiles")
    back = round_trip(folder, tmp_path)
    zarr.same(zarr.read(back), arrays)
    assert texts(back) == texts(folder)


def test_the_awkward_are_not_all_tame(zarr):
    """Signalling NaNs, lone surrogates and rows that nobody names are among what the test above meets."""
    case = {"lengths": [2, 0, 1], "counts": [3, 0, 2], "lights": [1, 1, 0], "extra": 2, "kind": "gap", "seed": 1}
    arrays = made(zarr, {**case, "names": ["\ud800", "a\0b"]})
    arrays["agents"]["yaw"] = np.array([0x7FA00001] * len(arrays["agents"]), np.uint32).view(np.float32)
    assert np.isnan(arrays["agents"]["yaw"]).all()
    assert arrays["traffic_light_faces"]["face_id"][0] == "\ud800"


def test_signalling_nans_and_masks(zarr, tmp_path):
    arrays = zarr.drives(scenes=2)
    arrays["agents"]["yaw"][::3] = np.array([0x7FA00001], np.uint32).view(np.float32)[0]
    arrays["agents"].view(np.uint8)[20 * 116 : 21 * 116] = 0xFF
    rng = np.random.default_rng(1)
    arrays["agents_mask/0.5"] = rng.integers(0, 2**32 - 1, (len(arrays["agents"]), 2)).astype("<u4")
    arrays["agents_mask/0_12_0.5"] = rng.random(len(arrays["agents"])) < 0.5
    folder = zarr.write(tmp_path / "m.zarr", arrays, codec=zarr.CODECS["zstd"], chunks=77)
    back = round_trip(folder, tmp_path)
    zarr.same(zarr.read(back), arrays)
    assert texts(back) == texts(folder)


def test_format_1_and_fields_of_other_orders(zarr, tmp_path):
    drive = zarr.drives(scenes=2)
    old = [
        ("ego_rotation", "<f4", (3, 3)),
        ("timestamp", ">i8"),
        ("agent_index_interval", "<i8", (2,)),
        ("flags", "|b1"),
        ("raw", "|V5"),
        ("note", "|S3"),
    ]
    frames = np.zeros(len(drive["frames"]), old)
    for name in ("ego_rotation", "timestamp", "agent_index_interval"):
        frames[name] = drive["frames"][name]
    frames["flags"][::2], frames["note"][::3], frames["raw"][::2] = True, b"a\0b", b"\0\1\2\3\4"
    agents = drive["agents"].astype([(n, "<i4" if n == "track_id" else k, *r) for n, k, *r in zarr.AGENTS])
    arrays = {"scenes": drive["scenes"], "frames": frames, "agents": agents}
    folder = zarr.write(tmp_path / "v1.zarr", arrays, codec=zarr.CODECS["blosc-2"], chunks=41)
    back = round_trip(folder, tmp_path)
    zarr.same(zarr.read(back), arrays)
    assert texts(back) == texts(folder)


# ---- what cannot be


def test_rows_that_are_no_scenes(drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    with pytest.raises(SchemaMismatchError, match="agents_yaw"):
        sl.convert(ds.select("sequence_id", "scene_index", "host"), str(tmp_path / "b.zarr"), to="l5kit", workers=1)
    other = sl.create(str(tmp_path / "other"), {"action": sl.Trajectory(dim=2)})
    with pytest.raises(SchemaMismatchError, match="no usable key 'l5kit'"):
        sl.convert(other, str(tmp_path / "b.zarr"), to="l5kit", workers=1)
    with pytest.raises(DatasetExistsError):
        sl.convert(ds, str(drive), to="l5kit", workers=1)
    assert not (tmp_path / "b.zarr").exists()


def test_columns_of_the_users_are_dropped_with_a_word(zarr, drive, tmp_path):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    ds.add_column("weight", pa.float32(), sql="1.0")
    plan = sl.convert(ds, str(tmp_path / "b.zarr"), to="l5kit", dry_run=True)
    assert list(plan.dropped) == ["weight"]
    sl.convert(ds, str(tmp_path / "b.zarr"), to="l5kit", workers=1)
    zarr.same(zarr.read(tmp_path / "b.zarr"), zarr.read(drive))


def test_rows_that_contradict_themselves_leave_nothing_behind(drive, tmp_path):
    table = sl.scan(str(drive)).to_arrow()
    at = table.schema.get_field_index("num_agents")
    counts = [[number + 1 for number in cell] for cell in table["num_agents"].to_pylist()]
    wrong = table.set_column(at, table.schema.field(at), pa.array(counts, table.schema.field(at).type))
    schema = sl.scan(str(drive)).schema
    ds = sl.create(str(tmp_path / "dataset"), schema)
    ds.append(wrong)
    with pytest.raises(ValidationError, match="num_agents"):
        sl.convert(ds, str(tmp_path / "b.zarr"), to="l5kit", workers=1)
    assert not (tmp_path / "b.zarr").exists()


def test_a_part_of_a_store_that_does_not_tile_is_refused(zarr, tmp_path):
    arrays = zarr.drives(scenes=3)
    arrays["scenes"]["frame_index_interval"][1] += 1
    folder = zarr.write(tmp_path / "odd.zarr", arrays)
    ds = sl.convert(str(folder), str(tmp_path / "dataset"), workers=1)
    assert ds.where("scene_index < 0").to_arrow().num_rows > 0
    with pytest.raises(ValidationError, match="are missing"):
        sl.convert(ds.where("scene_index = 0"), str(tmp_path / "b.zarr"), to="l5kit", workers=1)
    assert not (tmp_path / "b.zarr").exists()
    source = l5kit.scan(str(folder))
    assert "l5kit-intervals" in {finding.code for finding in source.check("metadata")}


def test_masks_of_another_store(zarr, tmp_path):
    arrays = {**zarr.drives(scenes=1), "agents_mask/0.5": np.zeros((3, 2), "<u4")}
    with pytest.raises(InvalidMetadataError, match=r"agents_mask/0\.5 has 3 rows"):
        l5kit.scan(str(zarr.write(tmp_path / "m.zarr", arrays)))


def test_missing_chunks_are_told(zarr, tmp_path):
    arrays = zarr.drives(scenes=1)
    source = l5kit.scan(str(zarr.write(tmp_path / "m.zarr", arrays, chunks=64, leave_out=[("agents", 1)])))
    [finding] = source.check("rows")
    assert finding.code == "l5kit-missing-chunk"
    assert finding.location.endswith("agents")


def test_on_the_command_line(zarr, drive, tmp_path, capsys):
    from seqlake.cli import main

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(one) for one in arguments])
        assert stop.value.code in (0, None), capsys.readouterr().err
        return capsys.readouterr().out

    assert "ego_rotation" in run("info", drive)
    run("convert", drive, tmp_path / "dataset", "--workers", 1)
    run("convert", tmp_path / "dataset", tmp_path / "back.zarr", "--to", "l5kit", "--workers", 1)
    zarr.same(zarr.read(tmp_path / "back.zarr"), zarr.read(drive))


def test_an_interrupted_conversion_goes_on(zarr, drive, tmp_path, monkeypatch):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)
    given = {"to": "l5kit", "workers": 1, "bytes_per_part": 1, "work": str(tmp_path / "work")}
    original = L5kitSink.commit
    monkeypatch.setattr(L5kitSink, "write", lambda self, part, rows, *, root: failing(self, part, rows, root))
    with pytest.raises(SeqlakeError, match="goes on from there"):
        sl.convert(ds, str(tmp_path / "back.zarr"), **given)
    assert not l5kit.matches(str(tmp_path / "back.zarr"))
    monkeypatch.undo()
    assert L5kitSink.commit is original
    sl.convert(ds, str(tmp_path / "back.zarr"), **given)
    zarr.same(zarr.read(tmp_path / "back.zarr"), zarr.read(drive))
    assert {path.name for path in (tmp_path / "back.zarr").iterdir()} == {path.name for path in drive.iterdir()}


def failing(sink, part, rows, root, write=L5kitSink.write):
    if part == 2:
        raise SeqlakeError("the power went")
    return write(sink, part, rows, root=root)


def test_a_commit_that_fails_leaves_nothing(drive, tmp_path, monkeypatch):
    ds = sl.convert(str(drive), str(tmp_path / "dataset"), workers=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("seqlake.formats.l5kit.sink.publish", full)
    with pytest.raises(OSError, match="No space"):
        sl.convert(ds, str(tmp_path / "back.zarr"), to="l5kit", workers=1)
    assert not (tmp_path / "back.zarr").exists()


# ---- the laws of formats


class TestLawsOfScenes(FormatTests):
    @pytest.fixture
    def source(self, drive):
        return l5kit.scan(str(drive))


class TestLawsOfScenesThatDoNotTile(FormatTests):
    @pytest.fixture
    def source(self, zarr, tmp_path):
        arrays = zarr.drives(scenes=3)
        arrays["scenes"]["frame_index_interval"][1] += 1
        arrays["frames"]["agent_index_interval"][5] = [0, 3]
        return l5kit.scan(str(zarr.write(tmp_path / "odd.zarr", arrays, codec=None)))


class TestLawsOfTheCar(FormatTests):
    @pytest.fixture
    def source(self, zarr, tmp_path):
        arrays = zarr.drives(scenes=2)
        return l5kit.scan(str(zarr.write(tmp_path / "plain.zarr", arrays, codec=None)), view="ego")


class TestLawsOfTracks(FormatTests):
    @pytest.fixture
    def source(self, zarr, drive):
        count = len(zarr.read(drive)["agents"])
        return l5kit.scan(str(drive), view="tracks", mask=np.arange(2 * count, dtype=np.uint32).reshape(-1, 2))


class TestLawsOfWindows(FormatTests):
    @pytest.fixture
    def source(self, drive):
        return l5kit.scan(str(drive), view="agents", history=2, future=3, min_frame_history=5)


def test_plain_stores_are_read_in_place(zarr, tmp_path):
    arrays = zarr.drives(scenes=2)
    source = l5kit.scan(str(zarr.write(tmp_path / "plain.zarr", arrays, codec=None)))
    [shard] = source.shards()
    reader = shard.open()
    flats = {name: reader.flat(name) for name in source.schema.names}
    flat = {name for name, found in flats.items() if found is not None}
    assert flat == {
        "timestamp", "ego_translation", "ego_rotation", "agents_centroid", "agents_extent", "agents_yaw",
        "agents_velocity", "agents_track_id", "agents_label_probabilities", "tl_faces_status",
    }  # fmt: skip
    for name in flat:
        assert flat_is(flats[name], read(shard, [name])[name])
    assert flats["agents_yaw"].stride == 116


def test_views_and_their_options(drive):
    with pytest.raises(ValueError, match="scenes, ego, agents, tracks"):
        l5kit.scan(str(drive), view="cars")
    for view in ("scenes", "ego"):
        with pytest.raises(TypeError, match="history"):
            l5kit.scan(str(drive), view=view, history=3)
    with pytest.raises(TypeError, match="history"):
        l5kit.scan(str(drive), view="tracks", history=3)
    with pytest.raises(SchemaMismatchError, match="mask of 3 rows"):
        l5kit.scan(str(drive), view="tracks", mask=np.zeros(3))


def test_other_bytes_other_fingerprint(zarr, tmp_path):
    arrays = zarr.drives(scenes=1)
    folder = zarr.write(tmp_path / "a.zarr", arrays, codec=None)
    before = {view: l5kit.scan(str(folder), view=view).fingerprint for view in ("scenes", "ego", "tracks")}
    assert before == {view: l5kit.scan(str(folder), view=view).fingerprint for view in before}
    assert len(set(before.values())) == 3
    chunk = folder / "agents" / "0"
    data = bytearray(chunk.read_bytes())
    data[5] ^= 1
    chunk.unlink()
    chunk.write_bytes(data)
    for view, old in before.items():
        assert l5kit.scan(str(folder), view=view).fingerprint != old, view


def test_scenes_are_not_cut_beside_the_counts_of_their_agents(zarr, tmp_path):
    """Frames go by number and agents by times: the counts would name other agents, and nothing would say so."""
    store = zarr.write(tmp_path / "s.zarr", zarr.drives(scenes=2, frames=12, agents=6))
    ds = sl.convert(str(store), tmp_path / "out", progress=False)
    ds.set_type("ego_translation", sl.Trajectory(dim=3, fps=10))
    ds = sl.open(tmp_path / "out")
    verbs = {
        "trim": lambda rows, out: sl.trim(rows, out, start=1, stop=5).dataset,
        "segment": lambda rows, out: sl.segment(rows, out, length=4).dataset,
        "resample": lambda rows, out: sl.resample(rows, out, fps=5, columns=["ego_translation"]),
    }
    for name, verb in verbs.items():
        with pytest.raises(SchemaMismatchError, match=f"Expected to {name} rows .* found num_agents, num_tl_faces"):
            verb(ds, tmp_path / name)
        assert not (tmp_path / name).exists()
        cut = verb(ds.select("sequence_id", "ego_translation", "agents_centroid", "agents_timestamp"), tmp_path / name)
        assert len(cut) >= 2
