"""Stores as they lie: every codec, chunk size and place gives the same rows, and only what is touched is decoded."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError
from seqlake.files.blobs import LocalBlob
from seqlake.files.stores import open_store as open_files
from seqlake.formats import l5kit
from seqlake.formats._zarr.decoding import Blocks
from seqlake.formats._zarr.metadata import ArrayMetadata
from seqlake.formats._zarr.places import open_place
from seqlake.formats.l5kit.store import open_store


def whole(store):
    return {name: array[:] for name, array in store.arrays.items()}


@pytest.mark.sampled
@pytest.mark.parametrize("chunks", [1, 7, 20_000])
@pytest.mark.parametrize("codec", ["none", "zlib", "zstd", "blosc-0", "blosc-1", "blosc-2"])
def test_every_codec_and_chunk_size(zarr, tmp_path, codec, chunks):
    drive = zarr.drives(scenes=1, frames=12, agents=5)
    folder = zarr.write(tmp_path / "s.zarr", drive, codec=zarr.CODECS[codec], chunks=chunks)
    store = open_store(str(folder))
    zarr.same(whole(store), drive)
    assert store.attributes == zarr.ATTRIBUTES
    assert store.agents[-1].tobytes() == drive["agents"][-1].tobytes()


@pytest.mark.parametrize("frames", [1, 3])
def test_zstandard_whose_frames_do_not_say_their_size(zarr, drive, tmp_path, frames):
    """As streaming compressors write them; numcodecs reads them too."""
    zstandard = pytest.importorskip("zstandard")
    drive = zarr.drives(scenes=1, frames=12, agents=5)
    folder = zarr.write(tmp_path / "s.zarr", drive, codec=zarr.CODECS["zstd"], chunks=40)
    engine = zstandard.ZstdCompressor(write_content_size=False)
    for path in folder.rglob("[0-9]*"):
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        parts = [data[len(data) * n // frames : len(data) * (n + 1) // frames] for n in range(frames)]
        path.write_bytes(b"".join(map(engine.compress, parts)))
    zarr.same(whole(open_store(str(folder))), drive)


def test_the_same_from_folder_zip_and_bucket(zarr, drive, tmp_path, s3_bucket):
    truth = zarr.read(drive)
    archives = {
        "plain.zip": zarr.zipped(drive, tmp_path / "plain.zip"),
        "packed.zip": zarr.zipped(drive, tmp_path / "packed.zip", method=zipfile.ZIP_DEFLATED),
        "bzip2.zip": zarr.zipped(drive, tmp_path / "bzip2.zip", method=zipfile.ZIP_BZIP2),
        "lzma.zip": zarr.zipped(drive, tmp_path / "lzma.zip", method=zipfile.ZIP_LZMA),
        "below.zip": zarr.zipped(drive, tmp_path / "below.zip", below="sample.zarr/"),
    }
    bucket = open_files(s3_bucket.uri, storage=s3_bucket.storage)
    for path in sorted(drive.rglob("*")):
        if path.is_file():
            bucket.put(f"drive.zarr/{path.relative_to(drive).as_posix()}", path.read_bytes())
    bucket.put("plain.zip", archives["plain.zip"].read_bytes())
    places = [(str(drive), None), *((str(path), None) for path in archives.values())]
    places += [(f"{s3_bucket.uri}/{name}", s3_bucket.storage) for name in ("drive.zarr", "plain.zip")]
    for place, storage in places:
        assert l5kit.matches(place, storage=storage), place
        store = open_store(place, storage=storage)
        assert "testing" not in repr(store)
        assert "543 agents" in repr(store)
        zarr.same(whole(store), truth)
        zarr.same(whole(pickle.loads(pickle.dumps(store))), truth)
    assert not l5kit.matches(f"{s3_bucket.uri}/nothing", storage=s3_bucket.storage)


@pytest.fixture(scope="module")
def ranges(zarr, tmp_path_factory):
    """An array in chunks of seven with one chunk that is not there, and the rows it should have."""
    drive = zarr.drives(scenes=1, frames=10, agents=6)
    folder = tmp_path_factory.mktemp("ranges") / "s.zarr"
    zarr.write(folder, drive, codec=zarr.CODECS["blosc-1"], chunks=7, leave_out=[("agents", 2)])
    expected = drive["agents"].copy()
    expected[14:21] = np.zeros(7, expected.dtype)
    return open_store(str(folder), cache_bytes=3000).agents, expected


@pytest.fixture(scope="module", params=[0, 40_000])
def blocks(zarr, tmp_path_factory, request):
    """An array whose chunks have many blocks, the last of them short, without and with room for a chunk."""
    agents = np.concatenate([zarr.drives(scenes=1)["agents"]] * 3)
    codec = {**zarr.CODECS["blosc-1"], "blocksize": 4096, "clevel": 1}
    folder = tmp_path_factory.mktemp("blocks") / "s.zarr"
    zarr.write(folder, {**zarr.drives(scenes=1), "agents": agents}, codec=codec, chunks=150)
    return open_store(str(folder), cache_bytes=request.param, threads=2).agents, agents


bounds = st.none() | st.integers(-70, 70)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_parts_of_chunks_are_those_of_numpy(blocks, data):
    array, expected = blocks
    assert len(expected) > 400
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    found = array[start:stop]
    assert found.tobytes() == expected[start:stop].tobytes()
    assert found.flags.writeable
    assert found.flags.owndata or found.base is not None
    numbers = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), min_size=1, max_size=9))
    assert array[numbers].tobytes() == expected[numbers].tobytes()
    assert array[numbers[0]].tobytes() == expected[numbers[0]].tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(start=bounds, stop=bounds, step=st.none() | st.integers(-9, 9).filter(bool))
def test_slices_are_those_of_numpy(ranges, start, stop, step):
    array, expected = ranges
    index = slice(start, stop, step)
    assert array[index].tobytes() == expected[index].tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(numbers=st.lists(st.integers(-33, 32), max_size=12))
def test_rows_by_number_are_those_of_numpy(ranges, numbers):
    array, expected = ranges
    assert len(expected) == 33
    index = np.array(numbers, np.int64)
    assert array[index].tobytes() == expected[index].tobytes()
    for number in numbers[:2]:
        assert array[number].tobytes() == expected[number].tobytes()


def test_other_indices(ranges):
    array, expected = ranges
    odd = np.arange(len(expected)) % 3 == 1
    assert array[odd].tobytes() == expected[odd].tobytes()
    assert array["centroid"].tobytes() == np.ascontiguousarray(expected["centroid"]).tobytes()
    assert array[...].tobytes() == np.asarray(array).tobytes() == expected.tobytes()
    assert b"".join(row.tobytes() for row in array) == expected.tobytes()
    assert array[2:4, None].shape == expected[2:4, None].shape
    for wrong in (len(expected), -len(expected) - 1, [0, 99], "nothing", 1.5, odd[:-1]):
        with pytest.raises((IndexError, ValueError)):
            array[wrong]


def test_what_was_sliced_is_ones_own(ranges):
    array, expected = ranges
    taken = array[:5]
    taken["yaw"] = 9
    assert array[:5].tobytes() == expected[:5].tobytes()


def test_only_the_chunks_touched_are_decoded(zarr, drive, monkeypatch):
    touched = set()
    original = LocalBlob.view
    monkeypatch.setattr(LocalBlob, "view", lambda blob: touched.add(blob.location.rpartition("/")[2]) or original(blob))
    store, truth = open_store(str(drive), threads=2), zarr.read(drive)["agents"]
    for index, chunks in (
        (slice(150, 160), {"1"}),
        (slice(199, 201), {"1", "2"}),
        ([3, 250, -1], {"0", "2", "5"}),
        (slice(None, None, 250), {"0", "2", "5"}),
        (310, {"3"}),
    ):
        _ = len(store.agents)  # its .zarray is read by now
        touched.clear()
        assert store.agents[index].tobytes() == truth[index].tobytes()
        assert touched - {".zarray"} <= chunks
    held = open_store(str(drive), threads=2)
    for _ in range(2):  # what is small is held from the second look on
        assert held.frames[3].tobytes() == zarr.read(drive)["frames"][3].tobytes()
    touched.clear()
    assert held.frames[5].tobytes() == zarr.read(drive)["frames"][5].tobytes()
    assert not touched


def test_of_a_chunk_only_the_blocks_touched_are_decoded(blocks, monkeypatch):
    array, _ = blocks
    decoded = []
    original = Blocks.decode
    monkeypatch.setattr(Blocks, "decode", lambda self, a, b, out: decoded.append(b - a) or original(self, a, b, out))
    fresh = open_store(array._place.root, cache_bytes=0).agents
    fresh[40]
    fresh[149:151]
    assert len(decoded) == 3
    assert 0 < decoded[0] <= 4096
    assert sum(decoded) <= 4 * 4096


def test_the_cache_is_bounded(zarr, drive):
    row = np.dtype(zarr.AGENTS).itemsize
    store, truth = open_store(str(drive), cache_bytes=250 * row), zarr.read(drive)["agents"]
    cache, most = store.agents._cache, 0
    for number in [0, 0, 150, 150, 250, 250, 350, 350, 20, *([450] * 90)]:
        assert store.agents[number].tobytes() == truth[number].tobytes()
        assert cache.nbytes <= 250 * row
        most = max(most, cache.nbytes)
    assert most == 200 * row
    assert cache.holds(("agents", 4))
    nothing = open_store(str(drive), cache_bytes=0)
    assert nothing.agents[[3, 3, 299]].tobytes() == truth[[3, 3, 299]].tobytes()
    assert nothing.agents._cache.nbytes == 0


def test_plain_stores_are_mapped(zarr, tmp_path):
    drive = zarr.drives(scenes=1)
    plain = open_store(str(zarr.write(tmp_path / "plain.zarr", drive, codec=None, chunks=len(drive["agents"]))))
    mapped = plain.agents.mapped()
    assert mapped.tobytes() == drive["agents"].tobytes()
    assert not mapped.flags.writeable
    assert not mapped.flags.owndata
    parts = open_store(str(zarr.write(tmp_path / "parts.zarr", drive, codec=None, chunks=50)))
    assert parts.agents.mapped() is None
    assert parts.agents.rows(60, 70).base is not None
    packed = open_store(str(zarr.write(tmp_path / "packed.zarr", drive, codec=zarr.CODECS["zlib"], chunks=10_000)))
    assert packed.agents.mapped() is None


def test_stores_of_format_1_and_masks(zarr, tmp_path):
    drive = zarr.drives(scenes=1)
    frames = drive["frames"]
    old = [field for field in zarr.FRAMES if "lights" not in field[0] and "traffic" not in field[0]]
    old = [(name, "<f4" if code == "<f8" else code, *shape) for name, code, *shape in old]
    first = np.zeros(len(frames), old)
    for name in first.dtype.names:
        first[name] = frames[name]
    count = len(drive["agents"])
    rng = np.random.default_rng(0)
    masks = {
        "agents_mask/0.5": rng.integers(0, 99, (count, 2)).astype("<u4"),
        "agents_mask/0_12_0.5": rng.random(count) < 0.5,
    }
    rows = {"scenes": drive["scenes"], "frames": first, "agents": drive["agents"], **masks}
    store = open_store(str(zarr.write(tmp_path / "v1.zarr", rows, codec=zarr.CODECS["blosc-1"], chunks=64)))
    zarr.same(whole(store), rows)
    assert store.frames.dtype["ego_translation"].base == np.float32
    assert store.traffic_light_faces is None
    assert len(store.tl_faces) == 0
    assert sorted(store.masks) == ["0.5", "0_12_0.5"]
    data = store.get_scene_dataset(0)
    assert data.agents.tobytes() == drive["agents"].tobytes()
    assert "scenes" in str(store)


def test_one_scene_in_memory(zarr, drive):
    truth = zarr.read(drive)
    a, b = truth["scenes"]["frame_index_interval"][1]
    data = open_store(str(drive)).get_scene_dataset(1)
    assert data.scenes["frame_index_interval"].tolist() == [[0, b - a]]
    first, last = truth["frames"]["agent_index_interval"][a, 0], truth["frames"]["agent_index_interval"][b - 1, 1]
    assert data.agents.tobytes() == truth["agents"][first:last].tobytes()
    assert data.frames["agent_index_interval"][0, 0] == 0
    assert data.frames["agent_index_interval"][-1, 1] == len(data.agents)
    assert data.frames["traffic_light_faces_index_interval"][-1, 1] == len(data.tl_faces)
    for missing in (3, -1):
        with pytest.raises(ValueError, match="3 scenes"):
            open_store(str(drive)).get_scene_dataset(missing)


def damaged(drive, tmp_path, name, **changes):
    folder = shutil.copytree(drive, tmp_path / name)
    place = folder / "agents" / ".zarray"
    place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compressor": {"id": "pickle"}}, "codec among"),
        ({"filters": [{"id": "delta", "dtype": "<f4"}]}, "filters"),
        ({"zarr_format": 3}, "zarr format 2"),
        ({"dtype": "|O"}, "fixed size"),
        ({"chunks": [0]}, "do not fit"),
        ({"shape": "x"}, "no usable"),
    ],
)
def test_what_is_refused(drive, tmp_path, changes, said):
    with pytest.raises(InvalidMetadataError, match=said):
        open_store(damaged(drive, tmp_path, "bad.zarr", **changes))


def test_damaged_chunks(drive, tmp_path):
    folder = shutil.copytree(drive, tmp_path / "cut.zarr")
    chunk = folder / "agents" / "1"
    chunk.write_bytes(chunk.read_bytes()[:40])
    store = open_store(str(folder))
    assert len(store.agents[:100]) == 100
    with pytest.raises(CorruptFileError, match="agents/1"):
        store.agents[100:110]
    with pytest.raises(CorruptFileError, match="makes 11600 bytes, expected 11716"):
        open_store(damaged(drive, tmp_path, "short.zarr", chunks=[101])).agents[:5]


def test_what_is_no_store(tmp_path, drive):
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "nothing.zip"):
        assert not l5kit.matches(str(place))
        with pytest.raises(DatasetNotFoundError):
            open_store(str(place))
    (tmp_path / "junk.zip").write_bytes(b"PK junk")
    assert not l5kit.matches(str(tmp_path / "junk.zip"))
    with pytest.raises(CorruptFileError, match="no zip"):
        open_store(str(tmp_path / "junk.zip"))
    half = shutil.copytree(drive, tmp_path / "half.zarr")
    (half / "frames" / ".zarray").unlink()
    with pytest.raises(DatasetNotFoundError, match=r"frames/\.zarray"):
        open_store(str(half))


def test_metadata_texts_are_those_of_zarr(real):
    for path in real.rglob(".zarray"):
        text = path.read_text()
        found = ArrayMetadata.parse(text, location=str(path))
        made = ArrayMetadata(dtype=found.dtype, shape=found.shape, chunks=found.chunks, compressor=found.compressor)
        assert made.to_json() == text


def test_parts_of_an_archive_are_not_copied(zarr, tmp_path):
    drive = zarr.drives(scenes=1)
    folder = zarr.write(tmp_path / "plain.zarr", drive, codec=None, chunks=len(drive["agents"]))
    place = open_place(str(zarr.zipped(folder, tmp_path / "plain.zarr.zip")))
    blob = place.blob("agents/0")
    assert bytes(blob.view()) == drive["agents"].tobytes()
    assert open_store(str(tmp_path / "plain.zarr.zip")).agents.mapped().tobytes() == drive["agents"].tobytes()
    [middle] = blob.ranges(np.array([10]), np.array([30]))
    assert bytes(middle) == drive["agents"].tobytes()[10:30]
    with pytest.raises(OSError, match="bytes"):
        blob.ranges(np.array([0]), np.array([blob.size + 1]))
