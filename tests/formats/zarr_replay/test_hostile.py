"""Replay buffers that are damaged, half copied or hostile: an error of ours, a finding, or what zarr reads."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError, SeqlakeError
from seqlake.formats import zarr_replay

from ..test_wrong_arguments import WRONG, told  # noqa: TID252 - the same for every format

zarr = pytest.importorskip("zarr")
pytest.importorskip("numcodecs")


def write(folder: Path, form: int = 2, **options: Any) -> Path:
    group = zarr.open_group(store=str(folder), mode="w", zarr_format=form)
    rng = np.random.default_rng(0)
    group.create_array("data/action", data=rng.normal(size=(12, 3)).astype("f4"), chunks=(4, 3), **options)
    group.create_array("data/img", data=rng.integers(0, 256, (12, 4, 6, 3)).astype("u1"), chunks=(1, 4, 6, 3))
    group.create_array("meta/episode_ends", data=np.array([5, 12]))
    return folder


def edited(folder: Path, array: str, **changed: Any) -> None:
    path = folder / array / ("zarr.json" if (folder / "zarr.json").exists() else ".zarray")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([5, 3, 12], "count up"),
        ([-1, 12], "no number of steps"),
        ([5, 1 << 50], "no number of steps"),
        ([5, 40], "no array of steps that can be read"),
    ],
)
def test_ends_that_cannot_be(tmp_path: Path, ends: list[int], said: str) -> None:
    folder = write(tmp_path / "b")
    shutil.rmtree(folder / "meta")
    group = zarr.open_group(store=str(folder), mode="r+")
    group.create_array("meta/episode_ends", data=np.array(ends))
    with pytest.raises(SeqlakeError, match=said):
        zarr_replay.scan(str(folder))


def test_ends_that_are_no_numbers(tmp_path: Path) -> None:
    folder = write(tmp_path / "b")
    for values in (np.array([5.0, np.nan]), np.zeros((2, 2), int)):
        shutil.rmtree(folder / "meta")
        zarr.open_group(store=str(folder), mode="r+").create_array("meta/episode_ends", data=values)
        with pytest.raises(InvalidMetadataError, match="expected whole numbers"):
            zarr_replay.scan(str(folder))
    shutil.rmtree(folder / "meta")
    with pytest.raises(DatasetNotFoundError, match="no array 'meta/episode_ends'"):
        zarr_replay.scan(str(folder))
    assert not zarr_replay.matches(str(folder))


def test_an_array_that_is_too_short_is_left_out_and_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "b")
    zarr.open_group(store=str(folder), mode="r+").create_array("data/short", data=np.zeros((7, 2)))
    source = zarr_replay.scan(str(folder))
    assert "short" not in source.schema
    [finding] = list(source.check("metadata"))
    assert (finding.code, finding.severity) == ("zarr-replay-left-out", "warning")
    assert "7 rows, the episodes have 12 steps" in finding.message


def test_steps_behind_the_last_episode_are_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "b")
    shutil.rmtree(folder / "meta")
    zarr.open_group(store=str(folder), mode="r+").create_array("meta/episode_ends", data=np.array([5]))
    source = zarr_replay.scan(str(folder))
    assert {one.code for one in source.check("metadata")} == {"zarr-replay-steps"}
    assert len(sl.scan(source)[0]["action"]) == 5


@pytest.mark.parametrize("form", [2, 3])
def test_a_chunk_that_is_gone_reads_as_zarr_reads_it_and_is_said(tmp_path: Path, form: int) -> None:
    folder = write(tmp_path / "b", form)
    chunk = folder / "data" / "action" / ("1.0" if form == 2 else "c/1/0")
    chunk.unlink()
    source = zarr_replay.scan(str(folder))
    there = zarr.open_group(store=str(folder), mode="r")["data/action"][:]
    np.testing.assert_array_equal(np.concatenate([row["action"] for row in sl.scan(source)]), there)
    assert [one.code for one in source.check("rows")] == ["zarr-replay-chunks"]


@pytest.mark.parametrize("plain", [True, False])
def test_chunks_that_are_cut_off_or_changed(tmp_path: Path, *, plain: bool) -> None:
    folder = write(tmp_path / "b", **({"compressors": None} if plain else {}))
    chunk = folder / "data" / "action" / "1.0"
    whole = chunk.read_bytes()
    for data in (b"", whole[:-1], whole + b"x", bytes(20)):
        chunk.write_bytes(data)
        with pytest.raises(CorruptFileError, match="cannot be decoded"):
            sl.scan(folder).to_arrow()


HUGE = 1 << 45


@pytest.mark.parametrize(
    ("array", "changed"),
    [
        ("data/action", {"shape": [HUGE, 3]}),
        ("data/action", {"shape": [HUGE, 3], "chunks": [HUGE, 3]}),
        ("data/action", {"shape": [12, HUGE], "chunks": [4, HUGE]}),
        ("data/action", {"chunks": [HUGE, 3]}),
        ("data/img", {"shape": [HUGE, 4, 6, 3]}),
        ("data/action", {"shape": [12, 3, 3]}),
        ("data/action", {"chunks": [0, 3]}),
        ("data/action", {"shape": [-1, 3]}),
        ("data/action", {"shape": [1 << 70, 3]}),
        ("data/action", {"dtype": "|O"}),
        ("data/action", {"dtype": "<f99999999"}),
        ("data/action", {"compressor": {"id": "pickle"}}),
        ("data/action", {"compressor": {"id": "blosc", "x": "y"}, "filters": [{"id": "pickle"}]}),
        ("data/action", {"fill_value": "zz"}),
        ("data/action", {"order": "Q"}),
        ("data/action", {"zarr_format": 9}),
        ("meta/episode_ends", {"shape": [HUGE]}),
        ("meta/episode_ends", {"shape": [HUGE], "chunks": [HUGE]}),
    ],
)
def test_what_metadata_promise_is_compared_with_what_is_stored(
    tmp_path: Path, array: str, changed: dict[str, Any]
) -> None:
    folder = write(tmp_path / "b")
    edited(folder, array, **changed)
    tracemalloc.start()
    try:
        source = zarr_replay.scan(str(folder))
        sl.scan(source).to_arrow()
        known = {one.source: one.column for one in source.mapping()}
        assert known[array] is None  # left out, and said
    except SeqlakeError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20


def test_episodes_of_what_is_not_stored(tmp_path: Path) -> None:
    """A thousand million steps that nobody wrote: of a fill value, without a chunk."""
    group = zarr.open_group(store=str(tmp_path / "b"), mode="w", zarr_format=2)
    group.create_array("data/action", shape=(1 << 30, 3), chunks=(1 << 10, 3), dtype="f4")
    group.create_array("meta/episode_ends", data=np.array([1 << 30]))
    with pytest.raises(InvalidMetadataError, match="promises"):
        zarr_replay.scan(str(tmp_path / "b"))


def test_indexes_of_shards_that_lie(tmp_path: Path) -> None:
    group = zarr.open_group(store=str(tmp_path / "b"), mode="w", zarr_format=3)
    values = np.random.default_rng(0).normal(size=(12, 3))
    codecs = zarr.codecs
    group.create_array("data/a", data=values, chunks=(2, 3), shards=(12, 3), compressors=codecs.ZstdCodec())
    group.create_array("meta/episode_ends", data=np.array([12]))
    np.testing.assert_array_equal(sl.scan(tmp_path / "b")[0]["a"], values)
    chunk = tmp_path / "b" / "data" / "a" / "c" / "0" / "0"
    whole = chunk.read_bytes()
    for data in (whole[:50], whole[:-4] + b"abcd", whole[:-60] + bytes(60), b""):
        chunk.write_bytes(data)
        with pytest.raises(CorruptFileError):
            sl.scan(tmp_path / "b").to_arrow()
    import google_crc32c

    for start, size in ((0, 1 << 60), (1 << 63, 10), ((1 << 64) - 1, 5), (0, 0)):
        index = struct.pack("<QQ", start, size) + whole[-4 - 5 * 16 : -4]
        chunk.write_bytes(whole[: -4 - 6 * 16] + index + google_crc32c.value(index).to_bytes(4, "little"))
        with pytest.raises(CorruptFileError):
            sl.scan(tmp_path / "b").to_arrow()


def test_any_byte_of_the_metadata_may_be_another(tmp_path: Path) -> None:
    """An error of ours, or rows; never an exception of somebody's library."""
    rng = np.random.default_rng(1)
    for form in (2, 3):
        folder = write(tmp_path / f"b{form}", form)
        for name in ("data/action", "meta/episode_ends"):
            path = folder / name / ("zarr.json" if form == 3 else ".zarray")
            whole = path.read_bytes()
            for _ in range(40):
                data = bytearray(whole)
                data[rng.integers(len(data))] = rng.integers(256)
                path.write_bytes(data)
                try:
                    sl.scan(folder, format="zarr_replay").to_arrow()
                except SeqlakeError:
                    continue
            path.write_bytes(whole)


def test_wrong_arguments_are_told_in_our_words(tmp_path: Path) -> None:
    folder = write(tmp_path / "b")
    calls = {
        option: lambda value, option=option: zarr_replay.scan(str(folder), **{option: value})
        for option in ("map", "without", "ends", "pictures", "chunk_bytes")
    } | {
        option: lambda value, option=option: zarr_replay.create(
            str(tmp_path / "out"), sl.scan(folder).schema, **{option: value}
        )
        for option in ("chunks", "compressor", "fill")
    }
    bare = {
        (option, repr(value)): text
        for option, call in calls.items()
        for value in WRONG
        if not (option == "map" and isinstance(value, str))  # the name of a file that is not there
        if (text := told(lambda call=call, value=value: call(value)))
    }
    assert bare == {}
    with pytest.raises(InvalidMetadataError, match="no array can be mapped to 'sequence_id'"):
        zarr_replay.scan(str(folder), map={"sequence_id": "data/action"})
