"""Stores of ours, read by a reader that shares nothing with the writer."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from seqlake.compat import l5kit as l5
from seqlake.compat.l5kit import editing
from seqlake.errors import DatasetExistsError, DatasetNotFoundError, SchemaMismatchError
from seqlake.files.stores import open_store as open_files
from seqlake.formats.l5kit import writing
from seqlake.formats.l5kit.store import open_store
from seqlake.testing.processes import fresh


@pytest.mark.sampled
@pytest.mark.parametrize("chunks", [1, 7, 20_000])
@pytest.mark.parametrize("codec", ["none", "zlib", "zstd", "blosc-0", "blosc-1", "blosc-2"])
def test_every_codec_and_chunk_size(zarr, tmp_path, codec, chunks):
    drive = zarr.drives(scenes=1, frames=10, agents=5)
    writing.write_store(str(tmp_path / "s.zarr"), drive, compressor=zarr.CODECS[codec], chunks=chunks)
    zarr.same(zarr.read(tmp_path / "s.zarr"), drive)


def test_the_usual_store_is_that_of_l5kit(zarr, real, tmp_path):
    arrays = zarr.read(real)
    writing.write_store(str(tmp_path / "s.zarr"), arrays)
    for path in real.rglob(".z*"):
        assert (tmp_path / "s.zarr" / path.relative_to(real)).read_text() == path.read_text(), path


def test_in_a_bucket(zarr, s3_bucket):
    drive = zarr.drives(scenes=1, frames=10)
    place = f"{s3_bucket.uri}/made.zarr"
    writing.write_store(place, drive, chunks=50, storage=s3_bucket.storage)
    store = open_store(place, storage=s3_bucket.storage)
    zarr.same({name: array[:] for name, array in store.arrays.items()}, drive)


def fill(writer, name, rows, part):
    writer.write(name, part.start, rows[part.start : part.stop])


def test_writers_side_by_side(zarr, tmp_path):
    drive = zarr.drives(scenes=2)
    sizes = {"tl_faces" if name == "traffic_light_faces" else name: len(rows) for name, rows in drive.items()}
    writer = writing.create_store(str(tmp_path / "s.zarr"), writing.sized(**sizes, chunks=16))
    empty = zarr.read(tmp_path / "s.zarr")
    assert {name: len(rows) for name, rows in empty.items()} == {name: len(rows) for name, rows in drive.items()}
    assert not any(rows.tobytes().strip(b"\0") for rows in empty.values())
    with ProcessPoolExecutor(3, mp_context=fresh()) as pool:
        done = [
            pool.submit(fill, writer, name, rows, part)
            for name, rows in drive.items()
            for part in writer.ranges(name, 3)
        ]
        assert len(done) > len(drive) * 2
        for one in done:
            one.result(timeout=60)
    zarr.same(zarr.read(tmp_path / "s.zarr"), drive)


def test_ranges_share_no_chunk(tmp_path):
    writer = writing.create_store(str(tmp_path / "s.zarr"), writing.sized(agents=1000, chunks=64))
    for parts in (1, 3, 16, 50):
        found = writer.ranges("agents", parts)
        assert [row for part in found for row in part] == list(range(1000))
        assert all(part.start % 64 == 0 for part in found)
        assert len(found) == min(parts, 16)
    assert writer.ranges("frames", 4) == []


def test_rows_that_do_not_fit(zarr, tmp_path):
    drive = zarr.drives(scenes=1)
    writer = writing.create_store(str(tmp_path / "s.zarr"), writing.sized(agents=100, chunks=30))
    agents = drive["agents"]
    for start, count in ((10, 30), (0, 20), (90, 20), (-30, 30)):
        with pytest.raises(ValueError, match="whole chunks"):
            writer.write("agents", start, agents[:count])
    with pytest.raises(SchemaMismatchError, match="rows of"):
        writer.write("agents", 0, drive["frames"][:30])
    assert not any(zarr.read(tmp_path / "s.zarr")["agents"].tobytes())


def test_nothing_is_overwritten_or_half_there(zarr, drive, tmp_path):
    rows = zarr.drives(scenes=1)
    with pytest.raises(DatasetExistsError):
        writing.write_store(str(drive), rows)
    arrays = {name: writing.metadata_of(name, part.dtype, part.shape) for name, part in rows.items()}
    writing.staged_store(str(tmp_path / "half.zarr"), arrays)
    with pytest.raises(DatasetNotFoundError):
        from seqlake.formats.l5kit import scan

        scan(str(tmp_path / "half.zarr"))
    assert len(list(open_files(str(tmp_path / "half.zarr")).list())) == len(rows)


def test_a_place_that_holds_something_is_left_alone(zarr, tmp_path):
    (tmp_path / "s.zarr" / "agents").mkdir(parents=True)
    (tmp_path / "s.zarr" / "agents" / "0").write_text("mine")
    with pytest.raises(DatasetExistsError, match="new or empty"):
        writing.write_store(str(tmp_path / "s.zarr"), zarr.drives(scenes=1))
    assert (tmp_path / "s.zarr" / "agents" / "0").read_text() == "mine"
    assert not (tmp_path / "s.zarr" / "scenes").exists()


def test_storage_options_are_not_printed():
    writer = writing.StoreWriter(location="s3://b/s.zarr", arrays={}, storage={"secret_access_key": "hidden"})
    assert "hidden" not in repr(writer)


def test_an_uncompressed_copy(zarr, drive, tmp_path):
    made = editing.uncompressed(str(drive), str(tmp_path / "plain.zarr"))
    zarr.same(zarr.read(tmp_path / "plain.zarr"), zarr.read(drive))
    for name, array in made.arrays.items():
        assert array.mapped() is not None, name
    assert made.attributes == zarr.ATTRIBUTES


def test_editing_says_what_is_wrong(zarr, drive, tmp_path):
    with pytest.raises(ValueError, match="-1"):
        editing.zarr_split(str(drive), str(tmp_path), [{"name": "a.zarr", "split_size_GB": 1}])
    sizes = [{"name": "a.zarr", "split_size_GB": 9}, {"name": "b.zarr", "split_size_GB": -1}]
    with pytest.raises(ValueError, match="leave none"):
        editing.zarr_split(str(drive), str(tmp_path), sizes)
    with pytest.raises(ValueError, match="Scene 0 has 24 frames"):
        editing.zarr_scenes_chop(str(drive), str(tmp_path / "c.zarr"), 24)
    narrow = dict(zarr.drives(scenes=1))
    narrow["agents"] = narrow["agents"].astype(
        [(n, "<f4", (2,)) if n == "centroid" else (n, *r) for n, *r in zarr.AGENTS]
    )
    zarr.write(tmp_path / "narrow.zarr", narrow)
    with pytest.raises(SchemaMismatchError, match="agents"):
        editing.zarr_concat([str(drive), str(tmp_path / "narrow.zarr")], str(tmp_path / "d.zarr"))
    assert not (tmp_path / "d.zarr").exists()
    assert not (tmp_path / "a.zarr").exists()


def test_scenes_in_memory_as_a_store(zarr, drive, tmp_path):
    data = open_store(str(drive)).get_scene_dataset(2)
    writing.write_store(str(tmp_path / "one.zarr"), data)
    found = zarr.read(tmp_path / "one.zarr")
    assert found["agents"].tobytes() == data.agents.tobytes()
    np.testing.assert_array_equal(found["scenes"]["frame_index_interval"], [[0, len(data.frames)]])


def test_a_store_grows_by_scenes_until_it_is_whole(zarr, tmp_path):
    drives = zarr.drives(scenes=5)
    source = l5.open_store(str(zarr.write(tmp_path / "source.zarr", drives)))
    for chunks in (7, 0):
        out = tmp_path / f"grown-{chunks}.zarr"
        with l5.growing_store(str(out), chunks=chunks) as growing:
            for scene in range(5):
                growing.append(source.get_scene_dataset(scene))
            with pytest.raises(DatasetNotFoundError):
                l5.open_store(str(out))
        zarr.same(zarr.read(out), drives)  # by a reader of its own
        whole = tmp_path / f"whole-{chunks}.zarr"
        l5.write_store(str(whole), drives, chunks=chunks)
        names = {path.relative_to(whole) for path in whole.rglob("*") if path.is_file()}
        assert {path.relative_to(out) for path in out.rglob("*") if path.is_file()} == names
        for name in names:  # Blosc's threads order blocks as they please, so chunks may differ
            assert not name.name.startswith(".z") or (out / name).read_text() == (whole / name).read_text()
        with pytest.raises(DatasetExistsError), l5.growing_store(str(out)):
            pass


def test_a_store_that_did_not_grow_to_its_end_is_gone(zarr, tmp_path):
    source = l5.open_store(str(zarr.write(tmp_path / "source.zarr", zarr.drives(scenes=2))))
    scene = source.get_scene_dataset(0)
    beyond = scene.frames.copy()
    beyond["agent_index_interval"][-1, 1] += 1
    other = scene.agents[["centroid", "yaw"]]
    for wrong, match in (
        (replace(scene, frames=beyond), "counts to"),
        (replace(scene, agents=other), "agents has rows of"),
        ({"scenes": 1}, "data: expected scenes in memory"),
    ):
        out = tmp_path / "out.zarr"
        with pytest.raises(ValueError, match=match), l5.growing_store(str(out), chunks=5) as growing:
            growing.append(scene)
            growing.append(wrong)
        assert not out.exists() or not list(out.iterdir())
