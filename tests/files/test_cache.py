"""The user's cache: believed only for the bytes it was made of, bounded, and never a reason to fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seqlake.files.blobs import MemoryBlob
from seqlake.files.cache import BlobCache, user_folder
from seqlake.files.stores import open_blob

CACHE = BlobCache(name="things", limit=256 * 4000)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "seqlake" / "things"


def entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_was_kept_is_found_in_another_process(folder: Path) -> None:
    blob = MemoryBlob(b"video", location="s3://bucket/a.mp4?X-Amz-Signature=secret")
    assert CACHE.get(blob) is None
    for data in (b"made", b"", b"made anew"):
        CACHE.put(blob, data)
        assert BlobCache(name="things", limit=10).get(blob) == data
        assert BlobCache(name="others", limit=10).get(blob) is None
    [entry] = entries(folder)
    assert b"secret" not in entry.read_bytes()
    assert b"secret" not in os.fsencode(entry)
    assert entry.parent.stat().st_mode & 0o077 == 0


def test_other_bytes_other_entry(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"one")
    first = open_blob(path)
    CACHE.put(first, b"of one")
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))  # the same size
    second = open_blob(path)
    assert first.size == second.size
    assert CACHE.get(second) is None
    CACHE.put(second, b"of two")
    assert CACHE.get(second) == b"of two"
    assert CACHE.get(first) is None
    assert len(entries(folder)) == 1  # the old one was replaced
    path.rename(tmp_path / "b.mp4")
    assert CACHE.get(open_blob(tmp_path / "b.mp4")) is None


def test_damaged_entries_are_not_there_and_are_replaced(folder: Path) -> None:
    blob = MemoryBlob(b"video")
    CACHE.put(blob, b"made of it")
    [entry] = entries(folder)
    whole = entry.read_bytes()
    flipped = bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + bytes([whole[-1] ^ 1])
    for data in (b"", whole[:40], whole[:-1], whole + b"x", *flipped):
        entry.write_bytes(data)
        assert CACHE.get(blob) is None
        CACHE.put(blob, b"made of it")
        assert CACHE.get(blob) == b"made of it"


def test_it_is_bounded_and_the_oldest_go_first(folder: Path) -> None:
    cache = BlobCache(name="things", limit=256 * 2000)  # 2000 bytes in each of its folders
    blobs = [MemoryBlob(b"", location=str(number)) for number in range(2000)]
    for number, blob in enumerate(blobs):
        cache.put(blob, bytes(600))
        for entry in entries(folder) if number % 500 == 0 else ():
            os.utime(entry, ns=(number, number))
    sizes = {one: sum(entry.stat().st_size for entry in one.iterdir()) for one in folder.iterdir()}
    assert 200 < len(sizes) <= 256
    assert max(sizes.values()) <= 2000
    assert cache.get(blobs[0]) is None
    assert sum(cache.get(blob) is not None for blob in blobs) == len(entries(folder)) > 300
    assert cache.get(blobs[-1]) == bytes(600)
    cache.put(blobs[-1], bytes(3000))  # larger than its share: not kept, and nothing makes room for it
    assert cache.get(blobs[-1]) == bytes(600)


def test_what_is_used_is_young(folder: Path) -> None:
    cache = BlobCache(name="things", limit=256 * 2000)
    same: dict[str, list[MemoryBlob]] = {}
    number = 0
    while max(map(len, same.values()), default=0) < 3:  # three that share a folder
        blob = MemoryBlob(b"", location=str(number))
        same.setdefault(cache._path(blob).parent.name, []).append(blob)
        number += 1
    first, second, third = next(blobs for blobs in same.values() if len(blobs) == 3)
    for age, blob in enumerate((first, second)):
        cache.put(blob, bytes(800))
        os.utime(cache._path(blob), ns=(age, age))
    assert cache.get(first) is not None
    cache.put(third, bytes(800))
    assert [cache.get(one) is None for one in (first, second, third)] == [False, True, False]


def test_a_place_that_cannot_be_written_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = MemoryBlob(b"video")
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"a file where a folder should be")
    CACHE.put(blob, b"x")
    assert CACHE.get(blob) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing/can/be/made/here")
    CACHE.put(blob, b"x")
    assert CACHE.get(blob) is None


def test_a_full_disk_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        CACHE.put(MemoryBlob(b"video"), b"made")
    assert entries(folder) == []


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert user_folder() == tmp_path / ".cache" / "seqlake"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert user_folder() == tmp_path / ".cache" / "seqlake"


def test_without_a_home_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert user_folder() is None
    CACHE.put(MemoryBlob(b"video"), b"x")
    assert CACHE.get(MemoryBlob(b"video")) is None


def test_only_entries_go_and_nothing_behind_a_link(tmp_path: Path, folder: Path) -> None:
    blob = MemoryBlob(b"video", location="s3://bucket/a.mp4")
    CACHE.put(blob, b"made")
    [entry] = entries(folder)
    mine = entry.parent / "thesis.txt"
    mine.write_bytes(b"x" * 5000)  # more than the folder's share, and nobody's entry
    CACHE.put(blob, b"made anew")
    assert mine.exists()
    entry.parent.rename(tmp_path / "mine")
    entry.parent.symlink_to(tmp_path / "mine")
    before = {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    CACHE.put(blob, b"made once more" * 100)
    assert {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before
