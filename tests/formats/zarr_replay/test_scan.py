"""Replay buffers read in place, against the zarr package, which wrote them."""

from __future__ import annotations

import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.abilities import Checked, SaysMapping, ability
from seqlake.errors import ColumnNotFoundError, CorruptFileError, InvalidMetadataError, ValidationError
from seqlake.formats import zarr_replay
from seqlake.media import image
from seqlake.protocols import Readable
from seqlake.testing.formats import FormatTests
from seqlake.testing.shards import flat_is

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")

ENDS = [5, 5, 12, 20]
SPANS = [(0, 5), (5, 5), (5, 12), (12, 20)]


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return {
        "action": rng.normal(size=(20, 2)).astype("f4"),
        "pose": rng.normal(size=(20, 4, 4)),
        "gripper": rng.integers(-3, 3, 20).astype("i2"),
        "done": rng.random(20) > 0.5,
        "img": rng.integers(0, 256, (20, 6, 8, 3)).astype("u1"),
        "mask": rng.integers(0, 9, (20, 6, 8)).astype("u1"),
    }


def write(folder: Path, form: int, **options: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(store=str(folder), mode="w", zarr_format=form)
        for name, values in arrays().items():
            chunks = (1, *values.shape[1:]) if name == "img" else (3, *(-(-n // 2) for n in values.shape[1:]))
            group.create_array(f"data/{name}", data=values, chunks=chunks, **options)
        group.create_array("meta/episode_ends", data=np.array(ENDS))
        group.create_array("meta/success", data=np.array([True, False, True, True]))
        group.create_array("meta/goal", data=np.arange(8.0).reshape(4, 2))
        group.create_array("meta/task", data=np.array(["push", "", "ümlaut", "x"], "<U8"))
        group.create_array("meta/other", data=np.arange(7))
    return folder


def packed(folder: Path, *, method: int = zipfile.ZIP_STORED) -> Path:
    out = folder.with_name(folder.name + ".zip")
    with zipfile.ZipFile(out, "w", method) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, str(path.relative_to(folder)))
    return out


@pytest.fixture(scope="module", params=["v2", "v3 zip", "v3 shards"])
def buffer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buffer") / "replay.zarr"
    form = int(request.param[1])
    if "shards" in request.param:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            write(folder, form)
            group = zarr.open_group(store=str(folder), mode="r+")
            for name, values in arrays().items():
                del group[f"data/{name}"]
                chunks = tuple(max(1, -(-size // 4)) for size in values.shape)
                shards = tuple(2 * size for size in chunks)
                group.create_array(f"data/{name}", data=values, chunks=chunks, shards=shards)
        return folder
    write(folder, form)
    return packed(folder, method=zipfile.ZIP_DEFLATED) if "zip" in request.param else folder


class TestReplayBuffers(FormatTests):
    @pytest.fixture
    def source(self, buffer: Path) -> Readable:
        return zarr_replay.scan(str(buffer))


def test_every_value_is_what_zarr_wrote(buffer: Path) -> None:
    assert zarr_replay.matches(str(buffer))
    ds = sl.scan(buffer)
    known = arrays()
    for row, (start, stop) in zip(ds, SPANS, strict=True):
        for name in ("action", "pose", "gripper"):
            np.testing.assert_array_equal(row[name], known[name][start:stop])
            assert row[name].dtype == known[name].dtype
        np.testing.assert_array_equal(row["done"], known["done"][start:stop].astype("u1"))
        np.testing.assert_array_equal(row["mask"], known["mask"][start:stop])
        if stop > start:
            np.testing.assert_array_equal(row["img"][:], known["img"][start:stop])
    assert [row["sequence_id"] for row in ds] == [f"episode_{n:06d}" for n in range(4)]
    assert [row["success"] for row in ds] == [True, False, True, True]
    assert [row["task"] for row in ds] == ["push", "", "ümlaut", "x"]
    np.testing.assert_array_equal([row["goal"] for row in ds], np.arange(8.0).reshape(4, 2))


def test_parts_of_cells_are_those_of_the_cells(buffer: Path) -> None:
    known = arrays()
    for shard in zarr_replay.scan(str(buffer)).shards():
        reader: Any = shard.open()
        np.testing.assert_array_equal(reader.slice("action", 2, 3, 6), known["action"][8:11])
        np.testing.assert_array_equal(reader.slice("pose", 3, 0, 8), known["pose"][12:20])
        assert reader.slice("gripper", 1, 0, 0).shape == (0,)
        [cell] = reader.slice("img", 0, 4, 5)
        np.testing.assert_array_equal(image.decode(cell), known["img"][4])
        with pytest.raises(IndexError, match="5 steps"):
            reader.slice("action", 0, 3, 6)


def test_a_window_reads_only_the_chunks_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from seqlake.formats._zarr.reading import GridArray

    read: list[tuple[int, ...]] = []
    real = GridArray._read
    monkeypatch.setattr(GridArray, "_read", lambda self, at: (read.append(at), real(self, at))[1])
    reader: Any = zarr_replay.scan(str(write(tmp_path / "b", 2))).shards()[0].open()
    read.clear()
    reader.slice("action", 3, 1, 3)  # steps 13 and 14 of chunks of 3 steps, each in two halves
    assert sorted(set(read)) == [(4, 0), (4, 1)]


def test_mapping_says_what_became_of_every_array(buffer: Path) -> None:
    source = zarr_replay.scan(str(buffer), without=["mask"])
    known = ability(source, SaysMapping)
    assert known
    said = {one.source: (one.column, one.how) for one in known.mapping()}
    assert said["data/action"] == ("action", "")
    assert said["data/mask"] == (None, "left out as asked")
    assert said["meta/episode_ends"] == (None, "where episodes end")
    assert said["meta/other"] == (None, "it has 7 rows, there are 4 episodes")
    checked = ability(source, Checked)
    assert checked
    assert {one.code for one in checked.check("rows")} >= {"zarr-replay-left-out"}


def test_a_declared_mapping(buffer: Path) -> None:
    declared = {
        "act": "action",
        "depth": {"source": "data/mask", "type": "image"},
        "flat": {"source": "data/img", "type": "trajectory", "units": "levels"},
    }
    ds = sl.scan(buffer, map=declared)
    assert ds.schema.names == ["sequence_id", "act", "depth", "flat"]
    np.testing.assert_array_equal(ds[2]["act"], arrays()["action"][5:12])
    np.testing.assert_array_equal(ds[2]["depth"][:][..., 0], arrays()["mask"][5:12])
    np.testing.assert_array_equal(ds[2]["flat"], arrays()["img"][5:12])
    assert ds.schema["flat"].type.get("units") == "levels"
    with pytest.raises(ColumnNotFoundError, match="no array 'nothing'"):
        sl.scan(buffer, map={"a": "nothing"})
    with pytest.raises(InvalidMetadataError, match="no pictures"):
        sl.scan(buffer, map={"a": {"source": "action", "type": "image"}})


def test_plain_chunks_are_flat(tmp_path: Path) -> None:
    group = zarr.open_group(store=str(tmp_path / "b"), mode="w", zarr_format=2)
    values = np.random.default_rng(0).normal(size=(20, 3))
    group.create_array("data/plain", data=values, chunks=(32, 3), compressors=None)
    group.create_array("data/packed", data=values, chunks=(32, 3))
    group.create_array("data/cut", data=values, chunks=(5, 3), compressors=None)
    group.create_array("data/big", data=values.astype(">f8"), chunks=(32, 3), compressors=None)
    group.create_array("meta/episode_ends", data=np.array(ENDS))
    [shard] = zarr_replay.scan(str(tmp_path / "b")).shards()
    reader = shard.open()
    flat = reader.flat("plain")
    assert flat is not None
    [batch] = list(reader.batches(["plain"]))
    assert flat_is(flat, batch.column(0))
    assert [reader.flat(name) for name in ("packed", "cut", "big")] == [None] * 3
    np.testing.assert_array_equal(sl.scan(tmp_path / "b")[3]["big"], values[12:])


def test_windows_in_place(buffer: Path) -> None:
    loader = sl.Loader(sl.scan(buffer), window={"action": range(3), "img": range(1)}, batch_size=20, shuffle=False)
    batch = next(iter(loader))
    known = arrays()
    for row, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"], strict=True)):
        first, stop = SPANS[int(str(name)[-1])]
        there = batch["action_mask"][row]
        wanted = known["action"][first + start : min(first + start + 3, stop)]
        np.testing.assert_array_equal(batch["action"][row][there], wanted)
        np.testing.assert_array_equal(batch["img"][row][0], known["img"][first + start])


@pytest.mark.parametrize("name", ["jpegxl", "jpeg2k", "png"])
def test_pictures_as_umi_compresses_them(tmp_path: Path, name: str) -> None:
    imagecodecs = pytest.importorskip("imagecodecs")
    from imagecodecs.numcodecs import register_codecs

    register_codecs(verbose=False)
    kinds: Any = __import__("imagecodecs.numcodecs", fromlist=["x"])
    codec = {"jpegxl": lambda: kinds.Jpegxl(lossless=True), "jpeg2k": lambda: kinds.Jpeg2k(reversible=True, level=0),
             "png": kinds.Png}[name]()  # fmt: skip
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 16, 24, 3)).astype("u1")
    write_by_hand(tmp_path / "b", "img", pixels, codec)
    ds = sl.scan(tmp_path / "b")
    expected = np.stack([decode_alone(imagecodecs, name, codec, one) for one in pixels])
    np.testing.assert_array_equal(ds[1]["img"][:], expected[2:6])
    np.testing.assert_array_equal(expected, pixels)  # the codec was asked to lose nothing
    picture = sorted((tmp_path / "b" / "data" / "img").glob("[0-9]*"))[3]
    picture.write_bytes(picture.read_bytes()[:40])
    with pytest.raises(CorruptFileError, match="cannot be decoded"):
        sl.scan(tmp_path / "b")[1]["img"][:]


def decode_alone(imagecodecs: Any, name: str, codec: Any, pixels: Any) -> Any:
    return getattr(imagecodecs, f"{name}_decode")(codec.encode(pixels))


def write_by_hand(folder: Path, name: str, pixels: Any, codec: Any) -> None:
    """As diffusion policy with zarr 2 and its own codecs does."""
    import json

    group = zarr.open_group(store=str(folder), mode="w", zarr_format=2)
    group.create_array("meta/episode_ends", data=np.array([2, len(pixels)]))
    group.create_group("data")
    place = folder / "data" / name
    place.mkdir(parents=True)
    config = {**codec.get_config(), "id": codec.codec_id}
    text = {"zarr_format": 2, "shape": pixels.shape, "chunks": [1, *pixels.shape[1:]], "dtype": "|u1", "order": "C",
            "compressor": json.loads(json.dumps(config, default=str)), "fill_value": 0, "filters": None}  # fmt: skip
    (place / ".zarray").write_text(json.dumps(text))
    for number, one in enumerate(pixels):
        (place / f"{number}.0.0.0").write_bytes(codec.encode(one))


def test_floats_that_are_pixels(tmp_path: Path) -> None:
    """As the push-T set has them: float32 from 0 to 255."""
    group = zarr.open_group(store=str(tmp_path / "b"), mode="w", zarr_format=2)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 3)).astype("f4")
    group.create_array("data/img", data=pixels, chunks=(2, 4, 5, 3))
    group.create_array("data/feature", data=pixels / 255, chunks=(2, 4, 5, 3))
    group.create_array("meta/episode_ends", data=np.array([6]))
    ds = sl.scan(tmp_path / "b")
    assert ds.schema["img"].category == "frames"
    assert ds.schema["feature"].category == "temporal"
    np.testing.assert_array_equal(ds[0]["img"][:], pixels.astype("u1"))
    group["data/img"][3, 0, 0, 0] = 0.5
    with pytest.raises(ValidationError, match="step 3 holds other numbers"):
        sl.scan(tmp_path / "b")[0]["img"][:]


def test_in_a_bucket(tmp_path: Path, s3_bucket: Any) -> None:
    from seqlake.files.stores import open_store

    folder = write(tmp_path / "b.zarr", 3)
    store = open_store(f"{s3_bucket.uri}/b.zarr", storage=s3_bucket.storage)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    archive = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    archive.put("b.zarr.zip", packed(folder).read_bytes())
    here = sl.scan(folder).to_arrow()
    for name in ("b.zarr", "b.zarr.zip"):
        assert sl.scan(f"{s3_bucket.uri}/{name}", storage=s3_bucket.storage).to_arrow().equals(here)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_grid_of_chunks_reads_as_zarr_reads_it(tmp_path: Path, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, size + 2)) for size in shape)
    dtype = data.draw(st.sampled_from(["<f4", ">f8", "<i2", "|u1", "|b1", "<f2", ">u4"]))
    form = data.draw(st.sampled_from([2, 3]))
    options: dict[str, Any] = {"fill_value": data.draw(st.sampled_from([0, 1]))}
    if form == 2:
        packing = [None, numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.GZip()]
        options |= {"compressors": data.draw(st.sampled_from(packing)), "order": data.draw(st.sampled_from("CF"))}
        if data.draw(st.booleans()):
            options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
    else:
        codecs = zarr.codecs
        packing = [[], [codecs.BloscCodec()], [codecs.GzipCodec()], [codecs.ZstdCodec()], [codecs.Crc32cCodec()]]
        packing += [[codecs.ZstdCodec(), codecs.Crc32cCodec()], [codecs.Crc32cCodec(), codecs.ZstdCodec()]]
        options["compressors"] = data.draw(st.sampled_from(packing))
        if data.draw(st.booleans()):
            options["filters"] = [codecs.TransposeCodec(order=data.draw(st.permutations(range(len(shape)))))]
        if data.draw(st.booleans()):
            options["shards"] = tuple(size * data.draw(st.integers(1, 3)) for size in chunks)
    folder = tmp_path / "b"
    shutil.rmtree(folder, ignore_errors=True)
    values = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 3, shape).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(store=str(folder), mode="w", zarr_format=form)
        array = group.create_array("data/a", shape=shape, dtype=dtype, chunks=chunks, **options)
        array[:] = values
        group.create_array("meta/episode_ends", data=np.array([shape[0] // 2, shape[0]]))
        ds = sl.scan(folder, map={"a": {"source": "data/a", "type": "trajectory"}})
        for row, part in zip(ds, (values[: shape[0] // 2], values[shape[0] // 2 :]), strict=True):
            np.testing.assert_array_equal(row["a"].reshape(part.shape), part)
