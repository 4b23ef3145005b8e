"""Large files are copied and indexed by other threads while the next is read, and nothing is lost or left by it."""

from __future__ import annotations

import errno
import itertools
import os
import wave
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import current_thread

import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.writing import copying
from seqlake.errors import DiskFullError, SeqlakeError, ValidationError

SCHEMA = sl.Schema({"n": pa.int64(), "sound": sl.Audio()})
COUNT = 6


@pytest.fixture(params=["large", "small"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "large":
        monkeypatch.setattr(copying, "_LARGE", 1)
    return str(request.param)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{number}.wav" for number in range(COUNT)]
    for number, path in enumerate(paths):
        with wave.open(str(path), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes([number]) * 1000)
    return paths


def add_all(ds: sl.Dataset, files: list[Path]) -> None:
    with ds.writer() as writer:
        for number, path in enumerate(files):
            writer.add(f"ep_{number}", n=number, sound=sl.File(path))


def append_all(ds: sl.Dataset, files: list[Path]) -> None:
    """From another dataset, whose rows name the files."""
    other = sl.create(files[0].parent / "other", SCHEMA, exist_ok=True)
    if not len(other):
        for path in files:
            os.link(path, Path(other.root, path.name))
        with other.writer() as writer:
            for number, path in enumerate(files):
                writer.add(f"ep_{number}", n=number, sound=path.name)
    ds.append(other)


def left(ds: sl.Dataset) -> list[str]:
    return [path.name for path in Path(ds.root).rglob("*") if path.is_file() and path.suffix in {".wav", ".tmp"}]


WAYS = pytest.mark.parametrize("fill", [add_all, append_all])
Fill = Callable[[sl.Dataset, list[Path]], None]


@WAYS
def test_every_file_is_there_whoever_copied_it(
    tmp_path: Path, files: list[Path], size: str, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    whole = copying.put_file

    def put_file(*of: object, **how: object) -> None:
        threads.append(current_thread().name)
        whole(*of, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(copying, "put_file", put_file)
    ds = sl.create(tmp_path / "ds", SCHEMA)
    fill(ds, files)
    assert [row["sound"].read() for row in ds] == [path.read_bytes() for path in files]
    assert len(threads) == COUNT
    assert {name.startswith("seqlake-copy") for name in threads} == {size == "large"}
    assert sl.open(ds.location).validate(depth="files").ok


@WAYS
@pytest.mark.parametrize("which", [0, 2, COUNT - 1])
@pytest.mark.parametrize("fault", ["changed", "full"])
def test_a_fault_of_one_file_is_raised_and_leaves_none(
    tmp_path: Path,
    files: list[Path],
    size: str,
    fill: Fill,
    which: int,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ds = sl.create(tmp_path / "ds", SCHEMA)
    whole, calls = copying.put_file, itertools.count()

    def put_file(store: object, path: str, source: Path, /, *, link: bool) -> None:
        call = next(calls)
        if call == which and fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        whole(store, path, source, link=link)  # type: ignore[arg-type]
        if call == which:
            with source.open("ab") as file:
                file.write(b"more")

    if fill is append_all:
        append_all(sl.create(tmp_path / "first", SCHEMA), files)
    monkeypatch.setattr(copying, "put_file", put_file)
    expected = ValidationError if fault == "changed" else DiskFullError
    with pytest.raises(expected, match="changed while it was being copied" if fault == "changed" else None):
        fill(ds, files)
    assert len(sl.open(ds.location)) == 0
    assert left(ds) == []


def test_rows_that_were_refused_for_their_files_are_not_among_those_that_stay(
    tmp_path: Path, files: list[Path], size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = copying.put_file

    def put_file(store: object, path: str, source: Path, /, *, link: bool) -> None:
        whole(store, path, source, link=link)  # type: ignore[arg-type]
        if source.name == "2.wav":
            os.utime(source, (0, 0))

    monkeypatch.setattr(copying, "put_file", put_file)
    ds = sl.create(tmp_path / "ds", SCHEMA)
    with ds.writer() as writer:
        for number, path in enumerate(files):
            with pytest.raises(ValidationError) if number == 2 else nullcontext():
                writer.add(f"ep_{number}", n=number, sound=sl.File(path))
    assert [row["n"] for row in ds] == [0, 1, 3, 4, 5]
    assert len(left(ds)) == COUNT - 1
    assert ds.validate(depth="files").ok


def test_a_writer_that_is_given_up_leaves_no_copy(tmp_path: Path, files: list[Path], size: str) -> None:
    ds = sl.create(tmp_path / "ds", SCHEMA)

    def interrupted() -> None:
        with ds.writer() as writer:
            for number, path in enumerate(files):
                writer.add(f"ep_{number}", n=number, sound=sl.File(path))
            raise SeqlakeError("enough")

    with pytest.raises(SeqlakeError, match="enough"):
        interrupted()
    assert left(ds) == []
    add_all(ds, files)
    assert len(ds) == COUNT
