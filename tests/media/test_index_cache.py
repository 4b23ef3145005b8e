"""Packet indexes of videos elsewhere are made once for all processes, and never believed for other bytes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

import seqlake as sl
from seqlake import media
from seqlake.files.stores import open_blob, open_store
from seqlake.media.video import indexing, opening
from seqlake.protocols import Source

from . import clips

NAME = "h264 with B-frames"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The locations whose containers were read."""
    read: list[str] = []
    real = indexing.index
    monkeypatch.setattr(indexing, "index", lambda blob: read.append(blob.location) or real(blob))
    return read


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process remembers is gone."""
    monkeypatch.setattr(opening, "_INDEXES", OrderedDict())


def frame(path: Path | str, number: int, **options: object) -> np.ndarray:
    return media.open(Source(blob=open_blob(path, **options), column=sl.Video())).read(np.array([number]))[0]


def test_made_once(cache: Path, containers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cam.mp4"
    path.write_bytes(clips.clip(NAME))
    first = frame(path, 7)
    for _ in range(3):
        another_process(monkeypatch)
        np.testing.assert_array_equal(frame(path, 7), first)
    assert containers == [str(path)]


def test_another_file_is_indexed_anew(
    cache: Path, containers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cam.mp4"
    for name in (NAME, "several streams", NAME):
        (tmp_path / "new.mp4").write_bytes(clips.clip(name))
        (tmp_path / "new.mp4").replace(path)
        another_process(monkeypatch)
        decoder = media.open(Source(blob=clips.clip(name), column=sl.Video()))
        np.testing.assert_array_equal(frame(path, 5), decoder.read(np.array([5]))[0])
    assert containers.count(str(path)) == 3
    assert len([one for one in cache.rglob("*") if one.is_file()]) == 1


def test_a_damaged_entry_is_replaced(
    cache: Path, containers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cam.mp4"
    path.write_bytes(clips.clip(NAME))
    first = frame(path, 3)
    [entry] = [one for one in cache.rglob("*") if one.is_file()]
    whole = entry.read_bytes()
    for number, data in enumerate((b"", whole[:100], whole[:-1] + b"!")):
        entry.write_bytes(data)
        another_process(monkeypatch)
        np.testing.assert_array_equal(frame(path, 3), first)
        assert len(containers) == number + 2
        assert entry.read_bytes() == whole


def test_what_a_later_release_wrote_is_not_used(
    cache: Path, containers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cam.mp4"
    path.write_bytes(clips.clip(NAME))
    opening._CACHE.put(open_blob(path), b"of another form")
    frame(path, 3)
    assert containers == [str(path)]


def test_a_cache_that_cannot_be_written_is_no_error(
    containers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cam.mp4"
    path.write_bytes(clips.clip(NAME))
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file
    for _ in range(2):
        another_process(monkeypatch)
        frame(path, 3)
    assert containers == [str(path)] * 2


def test_on_an_object_store(cache: Path, containers: list[str], s3_bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(s3_bucket.uri, storage=s3_bucket.storage)
    location = f"{s3_bucket.uri}/cam.mp4"
    for name in (NAME, "several streams"):
        store.put("cam.mp4", clips.clip(name))
        for _ in range(2):
            another_process(monkeypatch)
            frame(location, 3, storage=s3_bucket.storage)
    assert containers == [location] * 2


def test_bytes_of_a_row_are_not_kept(cache: Path) -> None:
    media.open(Source(blob=clips.clip(NAME), column=sl.Video()))
    assert not cache.exists()
