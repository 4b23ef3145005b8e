"""Stores made to harm: headers that lie, shapes that promise, archives that rot, intervals that lead nowhere."""

from __future__ import annotations

import bz2
import json
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake.compat import l5kit as l5
from seqlake.errors import CorruptFileError, InvalidMetadataError
from seqlake.files import stores as file_stores
from seqlake.formats.l5kit.store import open_store

from ..bounded import run  # noqa: TID252 - one tool for several formats

BLOSC = {
    f"blosc-{name}-{shuffle}": {"id": "blosc", "cname": name, "clevel": 5, "shuffle": shuffle, "blocksize": 0}
    for name, shuffle in (("lz4", 0), ("lz4", 1), ("lz4", 2), ("blosclz", 1), ("lz4hc", 2), ("zlib", 1), ("zstd", 2))
}
OTHERS = {
    "zlib": {"id": "zlib", "level": 1},
    "gzip": {"id": "gzip", "level": 1},
    "bz2": {"id": "bz2", "level": 1},
    "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
    "lzma-alone": {"id": "lzma", "format": 2, "check": -1, "preset": 1, "filters": None},
    "lzma-raw": {"id": "lzma", "format": 3, "check": -1, "preset": None, "filters": [{"id": 33, "preset": 1}]},
    "lz4": {"id": "lz4", "acceleration": 1},
    "zstd": {"id": "zstd", "level": 1},
}
CODECS = {**BLOSC, **OTHERS}


@pytest.fixture(scope="module")
def stores(zarr, tmp_path_factory):
    """A store of each codec, in chunks of 700 rows of which the last is not full; and what they hold."""
    arrays = zarr.drives(scenes=2, frames=60, agents=20)
    home = tmp_path_factory.mktemp("codecs")
    made = {name: zarr.write(home / name, arrays, codec=codec, chunks=700) for name, codec in CODECS.items()}
    return made, arrays


def changed(folder: Path, target: Path, array: str, **keys: object) -> Path:
    """A copy with other keys in one `.zarray`."""
    copied = shutil.copytree(folder, target)
    path = copied / array / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return copied


def lies(data: bytes, codec: str) -> list[bytes]:
    """A chunk cut short, with something behind it, and with each number of its header forged."""
    made = [data[:cut] for cut in (0, 1, 3, 7, 15, 16, 17, 20, len(data) // 2, len(data) - 1)]
    made += [data + b"\0", data + data]
    if codec.startswith("blosc"):
        for at in (4, 8, 12):
            for value in (0, 1, 7, len(data) - 1, len(data) + 1, 1 << 20, (1 << 31) - 1, (1 << 32) - 1):
                made.append(data[:at] + struct.pack("<I", value) + data[at + 4 :])
        made += [data[:at] + bytes([value]) + data[at + 1 :] for at, value in ((0, 1), (0, 3), (2, 2), (3, 0))]
        starts = (-1, 0, 16, len(data), len(data) + 4096, 1 << 30)
        made += [data[:16] + struct.pack("<i", start) + data[20:] for start in starts]
    if codec == "lz4":
        made += [struct.pack("<I", value) + data[4:] for value in (0, 5, 1 << 27, (1 << 32) - 1)]
    if codec == "zstd":
        assert data[4] >> 6 == 2, "a frame that says its size in four bytes"
        made += [data[:5] + struct.pack("<I", value) + data[9:] for value in (5, 1 << 27, (1 << 32) - 1)]
    return [one for one in made if one != data]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("codec", CODECS)
def test_chunks_whose_header_and_length_differ_are_refused(stores, tmp_path, codec):
    folders, arrays = stores
    store = open_store(str(folders[codec]))
    np.testing.assert_array_equal(store.agents[:], arrays["agents"])
    np.testing.assert_array_equal(store.agents[710:720], arrays["agents"][710:720])
    folder = shutil.copytree(folders[codec], tmp_path / codec)
    count = len(arrays["agents"])
    for number, ask in ((0, slice(5, 9)), (1, slice(0, count)), (count // 700, slice(count - 3, count))):
        chunk = folder / "agents" / str(number)
        whole = chunk.read_bytes()
        for bad in lies(whole, codec):
            chunk.write_bytes(bad)
            with pytest.raises(CorruptFileError, match=f"agents/{number}"):
                open_store(str(folder)).agents[ask]
            with pytest.raises(CorruptFileError, match=f"agents/{number}"):
                open_store(str(folder)).agents["track_id"]
        chunk.write_bytes(whole)


def test_elements_of_odd_width_never_show_the_decoders_memory(stores, tmp_path):
    """Blocks that are no whole elements leave a few bytes that no decoder writes: Blosc's own memory, unshuffled."""
    folders, arrays = stores
    folder = shutil.copytree(folders["blosc-lz4-1"], tmp_path / "odd")
    chunk = folder / "agents" / "0"
    whole = chunk.read_bytes()
    block = int.from_bytes(whole[8:12], "little")
    for width in range(2, 17):
        if block % width:
            chunk.write_bytes(whole[:3] + bytes([width]) + whole[4:])
            with pytest.raises(CorruptFileError, match="elements of"):
                open_store(str(folder)).agents[:5]
    assert len(arrays["agents"]) > 700


# ---- promises

READ = """
from seqlake.formats.l5kit.store import open_store
for batch in sl.scan(sys.argv[1]).batches(): pass
bound(400 << 20)
result = {}
for place in sys.argv[2:]:
    def rows():
        for batch in sl.scan(place).batches(): pass
    result[place] = [
        told(rows),
        told(lambda: open_store(place).agents["track_id"]),
        told(lambda: open_store(place).agents[:]),
        told(lambda: sl.scan(place).fingerprint),
        told(lambda: open_store(place).get_scene_dataset(0)),
    ]
"""


def bombs(zarr, home: Path) -> dict[str, Path]:
    arrays = zarr.drives(scenes=2, frames=20, agents=4)
    good = zarr.write(home / "good", arrays, codec=OTHERS["zlib"], chunks=100)
    many, huge, pairs = 10**10, 512 << 20, [["frame_index_interval", "|u1", [2]]]
    made = {
        "agents without chunks": changed(good, home / "a", "agents", shape=[many]),
        "scenes without chunks": changed(good, home / "b", "scenes", shape=[many]),
        "frames in chunks of one row": changed(good, home / "c", "frames", shape=[many], chunks=[1]),
        "a chunk larger than any": changed(good, home / "d", "agents", shape=[many], chunks=[many]),
        "few rows of a chunk larger than any": changed(good, home / "e", "agents", chunks=[many]),
        "rows larger than any": changed(good, home / "f", "agents", dtype="|V99999999"),
        "many scenes of few bytes": changed(good, home / "g", "scenes", dtype=pairs, shape=[120_000_000]),
    }  # fmt: skip
    zeros = _zeros(huge)
    made["a chunk that unfolds"] = changed(good, home / "h", "agents", chunks=[huge // 116])
    (home / "h" / "agents" / "0").write_bytes(zeros)
    made["a chunk that makes more than it should"] = shutil.copytree(good, home / "i")
    (home / "i" / "agents" / "0").write_bytes(zeros)
    for name, kept in (("lz4", struct.pack("<I", (1 << 31) - 1)), ("zstd", b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\xff")):
        made[name] = changed(good, home / name, "agents", compressor=OTHERS[name])
        (made[name] / "agents" / "0").write_bytes(kept + bytes(40))
    files = {path.relative_to(good).as_posix(): path.read_bytes() for path in good.rglob("*") if path.is_file()}
    unfolds = _zeros(huge)[2:-4]
    packed = bz2.compress(bytes(1 << 26))
    lookback = b"\x09\x14\x05\x00\x5d\xff\xff\xff\xff" + bytes(100)  # LZMA that asks for 4 GiB to look back at
    for name, data, method, size in (
        ("a member of many bytes", unfolds, 8, huge),
        ("a member of more bytes than it says", unfolds, 8, 11_600),
        ("bzip2 of more bytes than it says", packed, zipfile.ZIP_BZIP2, 11_600),
        ("LZMA of many bytes", lookback, zipfile.ZIP_LZMA, huge),
        ("LZMA of a large dictionary", lookback, zipfile.ZIP_LZMA, 11_600),
    ):
        made[name] = home / f"{name}.zip"
        made[name].write_bytes(
            archive({**{k: (v, 0, len(v)) for k, v in files.items()}, "agents/0": (data, method, size)})
        )
    return made


def _zeros(count: int) -> bytes:
    """What zlib makes of many zeros, without making them: one block again and again, and the sum of them all."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * (count >> 24) + b"\3\0" + struct.pack(">HH", count % 65521, 1)


def archive(members: dict[str, tuple[bytes, int, int]]) -> bytes:
    """A zip archive of (what is stored, how it is compressed, how many bytes it is said to make)."""
    out, directory = b"", b""
    for name, (data, method, size) in members.items():
        crc = zlib.crc32(data) if not method else 0
        facts = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, crc, len(data), size, len(name), 0)
        directory += b"PK\1\2" + struct.pack("<H", 20) + facts + struct.pack("<HHHII", 0, 0, 0, 0, len(out))
        directory += name.encode()
        out += b"PK\3\4" + facts + name.encode() + data
    count = len(members)
    return out + directory + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(out), 0)


def test_shapes_and_members_that_promise_too_much_take_no_memory(zarr, tmp_path):
    found = bombs(zarr, tmp_path)
    results = run(READ, str(tmp_path / "good"), *map(str, found.values()), timeout=120)
    assert results is not None, "the process did not come to its end"
    for name, path in found.items():
        result = results[str(path)]
        assert all(ours for _, _, ours in result), (name, result)
        assert any(error in {"InvalidMetadataError", "CorruptFileError"} for error, _, _ in result), (name, result)


def test_the_limit_can_be_raised(zarr, tmp_path):
    arrays = zarr.drives(scenes=2, frames=20, agents=4)
    folder = zarr.write(tmp_path / "s.zarr", arrays, codec=OTHERS["zlib"])
    with pytest.raises(InvalidMetadataError, match=r"compressed chunks of \d+ bytes.*chunk_bytes"):
        open_store(str(folder), chunk_bytes=100_000).agents[:3]
    with pytest.raises(InvalidMetadataError, match="chunk_bytes"):
        sl.scan(str(folder), chunk_bytes=100_000).to_arrow()
    np.testing.assert_array_equal(open_store(str(folder), chunk_bytes=10**7).agents[:], arrays["agents"])
    archive = zarr.zipped(folder, tmp_path / "s.zip", method=zipfile.ZIP_DEFLATED)
    with pytest.raises(InvalidMetadataError, match="limit is 100.*chunk_bytes"):
        open_store(str(archive), chunk_bytes=100)
    np.testing.assert_array_equal(open_store(str(archive)).agents[:], arrays["agents"])


def test_rows_that_were_never_written_are_still_zeros(zarr, tmp_path):
    l5.create_store(str(tmp_path / "empty.zarr"), l5.sized(scenes=1, frames=1000, agents=2_000_000))
    store = open_store(str(tmp_path / "empty.zarr"))
    assert store.agents[1_999_990:]["track_id"].tolist() == [0] * 10
    l5.create_store(str(tmp_path / "large.zarr"), l5.sized(scenes=1, frames=1000, agents=200_000_000))
    with pytest.raises(InvalidMetadataError, match="200000000 rows, 23200000000 bytes of memory; .* are stored"):
        open_store(str(tmp_path / "large.zarr")).agents[5:6]
    assert open_store(str(tmp_path / "large.zarr"), chunk_bytes=1 << 40).agents[5:6]["track_id"] == [0]


# ---- archives


@pytest.mark.sampled
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("codec", ["none", "zlib", "blosc-1"])
def test_members_of_archives_are_compared_with_their_checksum(zarr, tmp_path, s3_bucket, method, codec):
    arrays = zarr.drives(scenes=1, frames=30, agents=4)
    folder = zarr.write(tmp_path / "s.zarr", arrays, codec=zarr.CODECS[codec], chunks=500)
    path = zarr.zipped(folder, tmp_path / "s.zip", method=method)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("agents/0")
    data = bytearray(path.read_bytes())
    name = int.from_bytes(data[info.header_offset + 26 : info.header_offset + 28], "little")
    data[info.header_offset + 30 + name + info.compress_size // 2] ^= 0x10
    path.write_bytes(data)
    file_stores.open_store(s3_bucket.uri, storage=s3_bucket.storage).put("s.zip", bytes(data))
    for place, storage in ((str(path), None), (f"{s3_bucket.uri}/s.zip", s3_bucket.storage)):
        store = open_store(place, storage=storage)
        np.testing.assert_array_equal(store.frames[:], arrays["frames"])
        for rows in (slice(None), slice(3, 5)):
            with pytest.raises(CorruptFileError, match=r"agents/0.*(CRC-32|unpacked|decoded)"):
                store.agents[rows]
        if codec == "none" and storage is None:
            with pytest.raises(CorruptFileError, match=r"agents/0.*(CRC-32|unpacked)"):
                store.agents.mapped()
        with pytest.raises(CorruptFileError):
            sl.scan(place, storage=storage).to_arrow()


def test_archives_that_lie_about_their_members(zarr, tmp_path):
    arrays = zarr.drives(scenes=1, frames=30, agents=4)
    folder = zarr.write(tmp_path / "s.zarr", arrays, codec=None, chunks=500)
    path = zarr.zipped(folder, tmp_path / "s.zip")
    whole = path.read_bytes()
    at = whole.rindex(b"agents/0") - 46  # its line in the directory at the end
    for offset, value, said in (
        (24, 10**9, "do not lie in"),
        (42, len(whole) - 2, "not where it should be"),
        (42, 5, "not where it should be"),
        (8, 1, "encrypted"),
        (10, 93, "by method 93"),
        (10, zipfile.ZIP_BZIP2, "cannot be unpacked"),
        (10, zipfile.ZIP_LZMA, "cannot be unpacked"),
    ):
        size = 2 if offset < 20 else 4
        path.write_bytes(whole[: at + offset] + value.to_bytes(size, "little") + whole[at + offset + size :])
        with pytest.raises(CorruptFileError, match=said):
            open_store(str(path)).agents[:]


# ---- intervals


def outside(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {key: rows.copy() for key, rows in arrays.items()}
    scenes, frames = arrays["scenes"]["frame_index_interval"], arrays["frames"]["agent_index_interval"]
    lights = arrays["frames"]["traffic_light_faces_index_interval"]
    first = int(scenes[1, 0])
    if name == "frames beyond the end":
        scenes[1, 1] += 1
    elif name == "frames before the beginning":
        scenes[1] = [-3, 5]
    elif name == "frames backwards":
        scenes[1] = scenes[1, ::-1].copy()
    elif name == "agents beyond the end":
        frames[first + 3, 1] = len(arrays["agents"]) + 1
    elif name == "agents before the beginning":
        frames[first + 3, 0] = -1
    elif name == "agents backwards":
        frames[first + 3] = [9, 2]
    elif name == "lights far away":
        lights[first + 3] = [2**62, 2**63 - 1]
    return arrays


OUTSIDE = ["frames beyond the end", "frames before the beginning", "frames backwards", "agents beyond the end"]
OUTSIDE += ["agents before the beginning", "agents backwards", "lights far away"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_intervals_that_leave_their_array_are_one_error_everywhere(zarr, tmp_path, name):
    arrays = outside(name, zarr.drives(scenes=2, frames=12, agents=5))
    folder = str(zarr.write(tmp_path / "s.zarr", arrays, codec=None))
    store = open_store(folder)
    mask = np.ones(len(arrays["agents"]), np.bool_)
    ways = {
        "scan": lambda: sl.scan(folder),
        "tracks": lambda: sl.scan(folder, view="tracks"),
        "agents": lambda: sl.scan(folder, view="agents"),
        "get_scene_dataset": lambda: store.get_scene_dataset(1),
        "zarr_concat": lambda: l5.zarr_concat([folder], str(tmp_path / "out.zarr")),
        "zarr_chop": lambda: l5.zarr_scenes_chop(folder, str(tmp_path / "out.zarr"), 3),
        "select_agents": lambda: l5.select_agents(store),
        "AgentDataset": lambda: l5.AgentDataset(dataset=store, agents_mask=mask).get_scene_indices(1),
    }
    for way, look in ways.items():
        if way == "zarr_chop" and name.startswith("frames b"):
            continue  # says first that such a scene is too short
        with pytest.raises(InvalidMetadataError, match=r"names the rows -?\d+ to -?\d+ of \w+, which has \d+"):
            look()
    assert not (tmp_path / "out.zarr").exists()
    assert len(store.get_scene_dataset(0).frames) == 12


def test_rows_named_again_and_again_take_no_memory(zarr, tmp_path):
    arrays = zarr.drives(scenes=1, frames=4, agents=5)
    arrays["frames"] = np.repeat(arrays["frames"], 40_000)
    arrays["scenes"]["frame_index_interval"] = [0, len(arrays["frames"])]
    arrays["frames"]["agent_index_interval"] = [0, len(arrays["agents"])]
    arrays["frames"]["traffic_light_faces_index_interval"] = [0, 0]
    folder = str(zarr.write(tmp_path / "s.zarr", arrays, codec=OTHERS["zlib"]))
    with pytest.raises(InvalidMetadataError, match="together name"):
        sl.scan(folder)


# ---- ids


def test_track_ids_above_63_bits(zarr, tmp_path):
    arrays = zarr.drives(scenes=1, frames=30, agents=3)
    large = np.array([2**63, 2**64 - 1, 7], np.uint64)
    arrays["agents"]["track_id"] = large[arrays["agents"]["track_id"].astype(np.int64) % 3]
    folder = str(zarr.write(tmp_path / "s.zarr", arrays, codec=None))
    store = open_store(folder)
    samples = l5.AgentDataset(
        dataset=store,
        agents_mask=np.ones(len(arrays["agents"]), np.bool_),
        history_num_frames=2,
        future_num_frames=2,
        filter_agents_threshold=-1,
    )
    assert len(samples) == len(arrays["agents"])
    assert [int(one["track_id"]) for one in samples] == arrays["agents"]["track_id"].tolist()
    assert {one["track_id"].dtype.name for one in samples} == {"int64", "uint64"}
    rows = sl.scan(folder, view="tracks").to_arrow()
    assert set(rows["track_id"].to_pylist()) == set(large.tolist())
    assert any(name.endswith(str(2**64 - 1)) for name in rows["sequence_id"].to_pylist())
    assert len(l5.filter_agents_by_track_id(arrays["agents"], 2**64 - 1)) > 0
    assert len(l5.filter_agents_by_track_id(store.agents[:], 2**65)) == 0
    assert sl.scan(folder, view="agents", history=2, future=2, min_frame_history=0).to_arrow().num_rows


@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": "|O"}, {"dtype": "O,i4"}, {"dtype": []}, {"dtype": [["a"]]}, {"dtype": [["a", "<f4", 3]]},
        {"dtype": [["a", "<f4"], ["a", "<f4"]]}, {"dtype": [["a", "<f4", [10**9]]]}, {"dtype": {"a": 1}},
        {"dtype": [["a:b", "<f4"]]}, {"dtype": [["\ud800", "<f4"]]},
        {"dtype": None}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": [10**40]}, {"shape": []}, {"shape": {}},
        {"chunks": [True]}, {"chunks": "1"}, {"chunks": [2**61]}, {"compressor": []}, {"compressor": {"id": []}},
        {"compressor": "blosc"}, {"fill_value": "!!"}, {"fill_value": "AAAA"}, {"fill_value": {}},
        {"fill_value": 5}, {"order": []}, {"dimension_separator": "/../"}, {"dimension_separator": 3},
        {"zarr_format": "2"}, {"filters": "x"},
    ],
)  # fmt: skip
def test_settings_of_arrays_that_make_no_sense(zarr, drive, tmp_path, keys):
    with pytest.raises(InvalidMetadataError):
        open_store(str(changed(drive, tmp_path / "s.zarr", "agents", **keys)))


@pytest.mark.parametrize("kind", ["<f8", "<U4", "<i8"])
def test_intervals_are_pairs_of_whole_numbers(zarr, drive, tmp_path, kind):
    fields = [["frame_index_interval", kind, [2]] if kind != "<i8" else ["frame_index_interval", kind]]
    folder = changed(drive, tmp_path / "s.zarr", "scenes", dtype=fields, fill_value=None)
    with pytest.raises(InvalidMetadataError, match="pairs of whole numbers"):
        open_store(str(folder))


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[1", b"{", b'{"format_version": "two"}', b'{"format_version": [2]}'])
def test_attributes_that_make_no_sense(drive, tmp_path, text):
    folder = shutil.copytree(drive, tmp_path / "s.zarr")
    (folder / ".zattrs").write_bytes(text)
    with pytest.raises(InvalidMetadataError):
        assert open_store(str(folder)).format_version


MISSING = {
    ("scenes", "frame_index_interval"): ("scan", "scene", "sample", "select"),
    ("frames", "agent_index_interval"): ("scan", "sample", "select"),
    ("frames", "timestamp"): ("sample",),
    ("agents", "track_id"): ("tracks", "select"),
}


@pytest.mark.parametrize(("array", "field"), MISSING)
def test_fields_that_are_missing_are_named(zarr, tmp_path, array, field):
    arrays = zarr.drives(scenes=1, frames=12, agents=4)
    rows = arrays[array]
    names = [name if name != field else f"old_{name}" for name in rows.dtype.names]
    arrays[array] = rows.view([(name, *kind[1:]) for name, kind in zip(names, rows.dtype.descr, strict=True)])
    folder = str(zarr.write(tmp_path / "s.zarr", arrays, codec=None))
    store = open_store(folder)
    ways = {
        "scan": lambda: sl.scan(folder),
        "tracks": lambda: sl.scan(folder, view="tracks"),
        "scene": lambda: store.get_scene_dataset(0),
        "sample": lambda: l5.EgoDataset(dataset=store)[0],
        "select": lambda: l5.select_agents(store),
    }
    for way in MISSING[array, field]:
        with pytest.raises(InvalidMetadataError, match=f"{array} has no field '{field}'"):
            ways[way]()
    assert "frames per scene" in str(store)
