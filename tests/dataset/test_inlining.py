"""Files become bytes in the rows and bytes become files: the same bytes, one commit, in every home."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import seqlake as sl
from seqlake.dataset.changing import inlining
from seqlake.errors import SchemaMismatchError, UnsafeReferenceError, ValidationError
from seqlake.versions.shard_formats import name_of

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named
from .test_inline_media import FILMS, PHOTOS, STEPS, above_note, frames_of

ACTION = np.zeros((STEPS, 2))
IDS = ["a", "b", "c", "d"]
TYPES = {"cam": sl.Video(fps=30), "log": sl.ColumnType("mcap"), "action": sl.Trajectory(dim=2, fps=30), "n": pa.int64()}


def filmed(place: str, tmp_path: Path) -> sl.Dataset:
    """Two commits: three rows with a film, one without, and a log beside them that stays a file."""
    for number, film in enumerate(FILMS):
        (tmp_path / f"{number}.mp4").write_bytes(film)
    (tmp_path / "log.mcap").write_bytes(b"a log")
    ds = sl.create(place, sl.Schema(TYPES))
    rows = [
        {"sequence_id": one, "action": ACTION, "n": at, "cam": sl.File(tmp_path / f"{at}.mp4") if at < 3 else None}
        for at, one in enumerate(IDS)
    ]
    ds.append([{**row, "log": sl.File(tmp_path / "log.mcap")} for row in rows[:2]])
    ds.append(rows[2:])
    return sl.open(place)


def digests(ds: sl.Dataset, column: str = "cam") -> dict[str, str | None]:
    rows = ((one, ds.sequence(one)[column]) for one in IDS)
    return {one: None if file is None else hashlib.sha256(file.read()).hexdigest() for one, file in rows}


TRUTH = {one: hashlib.sha256(film).hexdigest() for one, film in zip(IDS, FILMS, strict=False)} | {"d": None}


def frames(ds: sl.Dataset) -> list[dict[str, np.ndarray]]:
    window = {"action": range(2), "cam": range(3)}
    return list(sl.Loader(ds, window=window, batch_size=16, shuffle=False).frames(size=(16, 16)))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("home", PLACES)
def test_both_ways_in_every_home(home, tmp_path) -> None:
    place = PLACES[home].format(folder=tmp_path, name="ds")
    ds = filmed(place, tmp_path)
    before, named = ds.version, frames(ds)
    planned = sl.plan_inlining(ds, "cam", to="inline")
    assert (planned.cells, planned.nbytes, planned.missing) == (3, sum(map(len, FILMS)), ())
    sl.inline_files(ds, "cam", message="to the rows")
    held = sl.open(place)
    assert held.schema["cam"].type == sl.Video(fps=30, inline=True)
    assert pa.types.is_binary(held.schema["cam"].arrow)
    assert digests(held) == TRUTH
    assert held.to_arrow().sort_by("n")["cam"].to_pylist() == [*FILMS, None]
    assert {one.columns for one in held.files() if one.state == "present"} == {("log",)}
    assert held.sequence("a")["log"].read() == b"a log"
    for one, other in zip(named, frames(held), strict=True):
        for name in ("cam", "cam_mask", "sequence_id"):
            np.testing.assert_array_equal(one[name], other[name])
    assert above_note(held) == []
    sl.extract_files(held, "cam")
    out = sl.open(place)
    assert out.schema["cam"].type == TYPES["cam"]
    assert digests(out) == TRUTH
    references = [cell for cell in out.to_arrow()["cam"].to_pylist() if cell is not None]
    assert all("/cam/" in one and ".mp4" in one for one in references)
    assert above_note(out) == []
    assert digests(sl.open(place, version=before.id)) == TRUTH, "older versions still name their files"
    out.vacuum()
    assert digests(sl.open(place)) == TRUTH


def test_shards_hold_the_bytes_as_other_engines_read_them(tmp_path) -> None:
    ds = filmed(str(tmp_path / "ds"), tmp_path)
    sl.inline_files(ds, "cam")
    parts = [pq.read_table(one) for one in sorted((tmp_path / "ds" / "data").rglob("*.parquet"))]
    live = [part for part in parts if pa.types.is_binary(part.schema.field("cam").type)]
    assert sorted(cell for part in live for cell in part["cam"].to_pylist() if cell) == sorted(FILMS)
    document = json.loads((tmp_path / "ds" / "mixtrain.json").read_text())
    assert document["column_types"]["cam"]["inline"] is True


def test_images_one_a_step_go_both_ways(tmp_path) -> None:
    for number, photo in enumerate(PHOTOS):
        (tmp_path / f"{number}.png").write_bytes(photo)
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Image(frames="files")}))
    ds.append([{"sequence_id": "a", "cam": [sl.File(tmp_path / "0.png"), None, sl.File(tmp_path / "2.png")]}])
    sl.inline_files(ds, "cam")
    assert ds.schema["cam"].type == sl.Image(frames="bytes")
    assert ds.to_arrow()["cam"].to_pylist() == [[PHOTOS[0], None, PHOTOS[2]]]
    sl.extract_files(ds, "cam")
    assert ds.schema["cam"].type == sl.Image(frames="files")
    first, none, last = ds.sequence("a")["cam"].cells
    assert (first.read(), none, last.read()) == (PHOTOS[0], None, PHOTOS[2])
    assert first.reference.endswith(".png")


def test_pairs_of_hugging_face_become_files(tmp_path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Column("cam", kind, sl.Video(fps=30))}))
    (tmp_path / "ds" / "own.mp4").write_bytes(FILMS[1])
    pairs = [{"bytes": FILMS[0], "path": "was.MOV"}, {"bytes": None, "path": "own.mp4"}, None]
    ds.append([{"sequence_id": one, "cam": pair} for one, pair in zip(IDS, pairs, strict=False)])
    sl.extract_files(ds, "cam")
    taken, kept, none = ds.to_arrow()["cam"].to_pylist()
    assert taken.endswith(".MOV")
    assert (kept, none) == ("own.mp4", None)
    assert [ds.sequence(one)["cam"].read() for one in "ab"] == FILMS[:2]


def test_large_cells_go_in_pieces(tmp_path, monkeypatch) -> None:
    ds = filmed(str(tmp_path / "ds"), tmp_path)
    monkeypatch.setattr(inlining, "_PART", 1)
    rows: list[int] = []
    write = inlining.Staging.write
    monkeypatch.setattr(
        inlining.Staging, "write", lambda self, batch: (rows.append(batch.num_rows), write(self, batch))
    )
    sl.inline_files(ds, "cam")
    assert rows == [1, 1, 1, 1]
    assert digests(ds) == TRUTH


def test_what_cannot_be_is_refused_and_nothing_changes(tmp_path, monkeypatch) -> None:
    ds = filmed(str(tmp_path / "ds"), tmp_path)
    before = ds.version
    for column, to in (("action", "inline"), ("log", "inline"), ("n", "files"), ("cam", "files")):
        with pytest.raises(SchemaMismatchError, match=column):
            (sl.inline_files if to == "inline" else sl.extract_files)(ds, column)
    with monkeypatch.context() as patch:
        patch.setattr(inlining, "LARGEST_CELL", 100)
        with pytest.raises(ValidationError, match="1 GiB"):
            sl.inline_files(ds, "cam")
    assert ds.refresh() == before
    ds.upsert([{"sequence_id": "d", "cam": "none.mp4"}])
    with pytest.raises(ValidationError, match=r"none\.mp4"):
        sl.inline_files(ds, "cam")
    ds.upsert([{"sequence_id": "d", "cam": str(tmp_path / "0.mp4")}])
    with pytest.raises(UnsafeReferenceError):
        sl.inline_files(ds, "cam")
    shared = pa.struct({"url": pa.string(), "first_frame": pa.int64(), "num_frames": pa.int64()})
    other = sl.create(tmp_path / "shared", sl.Schema({"cam": sl.Column("cam", shared, sl.Video(fps=30))}))
    other.append([{"sequence_id": "a", "cam": {"url": "all.mp4", "first_frame": 2, "num_frames": 3}}])
    with pytest.raises(ValidationError, match="some frames"):
        sl.inline_files(other, "cam")
    assert pa.types.is_string(sl.open(tmp_path / "ds").schema["cam"].arrow)


@pytest.mark.parametrize("home", ["standalone", "delta"])
def test_rows_that_a_rival_adds_meanwhile_are_turned_too(home, tmp_path, monkeypatch) -> None:
    place = PLACES[home].format(folder=tmp_path, name="ds")
    ds = filmed(place, tmp_path)
    written, rivals = inlining._parts, [None]

    def with_rival(*args):
        if rivals:
            rivals.clear()
            sl.open(place).append([{"sequence_id": "z", "action": ACTION, "cam": sl.File(tmp_path / "1.mp4")}])
        yield from written(*args)

    monkeypatch.setattr(inlining, "_parts", with_rival)
    sl.inline_files(ds, "cam")
    assert sl.open(place).sequence("z")["cam"].data == FILMS[1]
    assert above_note(sl.open(place)) == []


def test_units_of_rows_that_a_rival_adds_meanwhile(tmp_path, monkeypatch) -> None:
    """The same of every verb that turns the cells of all rows."""
    from seqlake.dataset.changing import units

    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1, units="m")}))
    ds.append([{"sequence_id": "a", "x": [[1.0]]}])
    turned, rivals = units._turned, [None]

    def with_rival(*args):
        if rivals:
            rivals.clear()
            sl.open(tmp_path / "ds").append([{"sequence_id": "z", "x": [[2.0]]}])
        return turned(*args)

    monkeypatch.setattr(units, "_turned", with_rival)
    ds.convert_units("x", "mm")
    assert [ds.sequence(one)["x"].tolist() for one in "az"] == [[[1000.0]], [[2000.0]]]


def test_the_command(tmp_path) -> None:
    from seqlake.cli.relocate import command

    place = str(tmp_path / "ds")
    filmed(place, tmp_path)

    def run(*args: str) -> dict:
        result = CliRunner().invoke(command, [place, *args, "--json"])
        if result.exception is not None:
            raise result.exception
        return json.loads(result.stdout)

    assert run("--inline", "cam", "--dry-run")["cells"] == 3
    assert pa.types.is_string(sl.open(place).schema["cam"].arrow)
    assert run("--inline", "cam")["bytes"] == sum(map(len, FILMS))
    assert digests(sl.open(place)) == TRUTH
    assert run("--extract", "cam")["to"] == "files"
    assert digests(sl.open(place)) == TRUTH


@pytest.mark.parametrize("engine", ["lance", "vortex"])
def test_shards_of_other_engines_hold_the_same_bytes(engine, tmp_path) -> None:
    pytest.importorskip(engine)
    place = str(tmp_path / "ds")
    ds = sl.create(place, sl.Schema({"cam": sl.Video(fps=30, inline=True), "n": pa.int64()}), shards=engine)
    ds.append(
        [{"sequence_id": one, "cam": film, "n": at} for at, (one, film) in enumerate(zip(IDS, FILMS, strict=False))]
    )
    ds.append([{"sequence_id": "d", "cam": None, "n": 3}])

    def holds(now: sl.Dataset) -> None:
        assert {name_of(shard.key.partition("#")[0]) for shard in now.shards()} == {engine}
        assert digests(now) == TRUTH
        for one, film in zip(IDS, FILMS, strict=False):
            np.testing.assert_array_equal(now[one]["cam"][3:6], frames_of(film)[3:6])
        assert above_note(now) == []

    holds(ds)
    assert ds["a"]["cam"].data == FILMS[0]
    sl.extract_files(ds, "cam")
    holds(sl.open(place))
    assert sl.open(place)["a"]["cam"].reference.endswith(".mp4")
    sl.inline_files(ds, "cam")
    holds(sl.open(place))
    assert sl.open(place)["b"]["cam"].data == FILMS[1]
    assert sl.open(place).sql("SELECT sum(octet_length(cam)) FROM dataset").fetchall() == [(sum(map(len, FILMS)),)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")
@pytest.mark.parametrize("kills", [pytest.param(60, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize("change", [sl.inline_files, sl.extract_files])
def test_a_killed_change_leaves_one_version_or_the_other(change, kills, tmp_path) -> None:
    """At moments spread over the time that the change takes: every byte is there, and it can be made again."""
    ds = filmed(str(tmp_path / "base"), tmp_path)
    if change is sl.extract_files:
        sl.inline_files(ds, "cam")
    before, turned = ds.version.id, 0

    def run(place: str, seconds: float | None) -> float:
        began, child = time.monotonic(), os.fork()
        if not child:
            code = 1
            try:
                change(sl.open(place), "cam")
                code = 0
            finally:
                os._exit(code)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] in {0, signal.SIGKILL}
        return time.monotonic() - began

    spent = []
    for name in ("whole", "again"):  # what runs first may take longer
        shutil.copytree(tmp_path / "base", tmp_path / name)
        spent.append(run(str(tmp_path / name), None))
        assert sl.open(tmp_path / name).version.id == before + 1
    whole = min(spent)
    for number in range(2 * kills + 6):
        if number >= kills and turned < number:
            break
        place = str(tmp_path / f"{number}")
        shutil.copytree(tmp_path / "base", place)
        run(place, whole * (number % kills + 1) / (kills + 1))
        left = sl.open(place)
        assert left.version.id in {before, before + 1}
        if left.version.id > before:
            turned, whole = turned + 1, whole * 0.7  # it took longer before, beside other work
        assert digests(left) == TRUTH
        assert above_note(left, "files") == []
        if left.version.id == before:
            change(left, "cam")
        assert digests(sl.open(place)) == TRUTH
        left.vacuum(older_than=timedelta(0))
        assert digests(sl.open(place)) == TRUTH
        assert above_note(sl.open(place), "files") == []
    else:
        pytest.fail("nothing was killed before its end")
