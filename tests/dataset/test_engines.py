"""Datasets whose shards are Lance or Vortex files: every verb, beside the same dataset of Parquet shards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.cli import main
from seqlake.errors import CorruptFileError, DatasetNotFoundError, ForkedProcessError, MissingDependencyError
from seqlake.files.stores import open_blob, open_store
from seqlake.plugins import load
from seqlake.shards.engines import append_trailer, read_trailer
from seqlake.shards.parquet.index import OffsetIndex
from seqlake.versions.shard_formats import name_of

ENGINES = ("lance", "vortex")


def rows(first: int, count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(first)
    return [
        {
            "sequence_id": f"ep_{n:03}",
            "task": ["pick", "place"][n % 2],
            "reward": float(n),
            "action": random.random((int(random.integers(1, 30)), 4)).astype(np.float32),
        }
        for n in range(first, first + count)
    ]


def make(location: Path, engine: str) -> sl.Dataset:
    if engine != "parquet":
        pytest.importorskip(engine)
    schema = sl.Schema({"task": pa.string(), "reward": pa.float64(), "action": sl.Trajectory(dim=4)})
    ds = sl.create(location, schema, shards=engine)
    for first in (0, 20, 40):
        ds.append(rows(first, 20))
    return ds


def formats(ds: sl.Dataset) -> set[str]:
    return {name_of(shard.key.partition("#")[0]) for shard in ds.shards()}


def same(left: Any, right: Any) -> bool:
    return sorted(left.to_pylist(), key=lambda row: row["sequence_id"]) == sorted(
        right.to_pylist(), key=lambda row: row["sequence_id"]
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_every_verb_gives_what_it_gives_on_parquet(tmp_path: Path, engine: str) -> None:
    ours = make(tmp_path / engine, engine)
    truth = sl.create(tmp_path / "parquet", ours.schema, shards="parquet")
    for first in (0, 20, 40):
        truth.append(rows(first, 20))
    assert formats(ours) == {engine}
    assert formats(truth) == {"parquet"}
    assert json.loads((tmp_path / engine / "mixtrain.json").read_text())["storage_format"] == engine
    assert "storage_format" not in json.loads((tmp_path / "parquet" / "mixtrain.json").read_text())
    for ds in (ours, truth):
        ds.delete(ids=["ep_003", "ep_041"])
        ds.update([{"sequence_id": "ep_004", "reward": 99.0}])
        ds.upsert(rows(59, 3))
        ds.rename_column("task", "job")
        ds.add_column("length", pa.int64(), sql="len(action)")
        ds.drop_column("reward")
        ds.fold()
        assert ds.validate(depth="rows").ok
    assert formats(ours) == {engine}
    assert same(ours.to_arrow(), truth.to_arrow())
    sums = "sum(length), max(list_max([a[1] for a in action]))"
    question = f"SELECT job, count(*), {sums} FROM dataset GROUP BY 1 ORDER BY 1"
    assert ours.sql(question).fetchall() == truth.sql(question).fetchall()
    assert same(ours.where("length > 10").to_arrow(), truth.where("length > 10").to_arrow())
    assert [v.operation for v in ours.versions()] == [v.operation for v in truth.versions()]
    old = sl.open(tmp_path / engine, version=1)
    assert len(old) == 20
    for ds in (ours, truth):
        sl.compact(ds)
    assert formats(ours) == {engine}
    window = {"action": range(-2, 6)}
    for left, right in zip(
        sl.Loader(ours, window=window, batch_size=16), sl.Loader(truth, window=window, batch_size=16), strict=True
    ):
        assert list(left["sequence_id"]) == list(right["sequence_id"])
        assert np.array_equal(left["action"], right["action"])
    assert sl.statistics(ours, ["action"]).to_json() == sl.statistics(truth, ["action"]).to_json()


def test_repack_goes_between_all_three(tmp_path: Path) -> None:
    kinds = ("parquet", *ENGINES)
    first = make(tmp_path / "first", "lance")
    truth = first.to_arrow()
    here = first
    for number, kind in enumerate([*kinds, *reversed(kinds)]):
        here = sl.repack(here, tmp_path / f"{number}", shards=kind, layout=["training", "archive"][number % 2])
        assert formats(here) == {kind}
        assert here.to_arrow().to_pylist() == truth.to_pylist()
        assert here.validate(depth="rows").ok
    kept = sl.subset(first.where("reward < 5"), tmp_path / "some")
    assert formats(kept) == {"lance"}
    moved = sl.convert(first, tmp_path / "converted", shards="vortex")
    assert formats(moved) == {"vortex"}


@pytest.mark.parametrize("engine", ENGINES)
def test_commands(tmp_path: Path, engine: str) -> None:
    make(tmp_path / "a", engine)
    for arguments in (
        ["info", "a"],
        ["ls", "a"],
        ["validate", "a", "--depth", "rows"],
        ["sql", "a", "SELECT count(*) FROM dataset"],
        ["schema", "a"],
        ["stats", "a"],
        ["index", "a"],
        ["repack", "a", "b", "--shards", "parquet"],
        ["label", "a", "good", "--sql", "reward > 3"],
        ["versions", "a"],
        ["vacuum", "a", "--dry-run"],
    ):
        with pytest.raises(SystemExit) as stop:
            main([str(tmp_path / word) if word in {"a", "b"} else word for word in arguments])
        assert not stop.value.code, arguments


def test_a_shard_that_retires_before_lance_has_opened_it_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = make(tmp_path / "a", "lance")
    from lance import file as engine

    opened = engine.LanceFileReader

    def retires_first(path: str, **options: Any) -> Any:
        monkeypatch.setattr(engine, "LanceFileReader", opened)
        sl.compact(sl.open(ours.root))
        assert not Path(path).exists()
        return opened(path, **options)

    monkeypatch.setattr(engine, "LanceFileReader", retires_first)
    assert len(ours.to_arrow()) == 60
    assert engine.LanceFileReader is opened
    assert len(sl.open(ours.root).shards()) == 1


def test_lakes_hold_parquet(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    ours = make(tmp_path / "a", "lance")
    with pytest.raises(ValueError, match="lake are Parquet"):
        sl.create(f"delta:{tmp_path / 'b'}", ours.schema, shards="lance")
    lake = sl.repack(ours, f"delta:{tmp_path / 'c'}")
    assert "storage_format" not in lake.schema.metadata.extra
    assert same(lake.to_arrow(), ours.to_arrow())


def test_a_wrong_format_of_shards_names_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'parquet', 'lance', 'vortex'; found 'orc'"):
        sl.create(tmp_path / "a", {"x": pa.int64()}, shards="orc")


def test_who_writes_parquet_loads_no_other_format(tmp_path: Path) -> None:
    code = """
import sys, numpy as np, seqlake as sl
ds = sl.create(sys.argv[1], {"action": sl.Trajectory(dim=2)})
ds.append([{"sequence_id": "a", "action": np.zeros((3, 2), np.float32)}])
sl.repack(ds, sys.argv[1] + "-2")
print([name for name in sys.modules if name.startswith("seqlake.shard_formats.")])
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("engine", ENGINES)
def test_without_the_engine_the_extra_is_named(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "log", engine)
    theirs = tmp_path / "theirs"
    (theirs / "data").mkdir(parents=True)
    (theirs / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    for number, path in enumerate((tmp_path / "log" / "data").iterdir()):
        (theirs / "data" / f"{number}.{engine}").write_bytes(without_trailer(path, engine))
    assert len(sl.open(theirs)) == 60
    for name in (engine, "lance.file", "vortex.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=rf"seqlake\[{engine}\]"):
        sl.open(theirs)
    ours = sl.open(tmp_path / "log")
    assert len(ours) == 60
    with pytest.raises(MissingDependencyError, match=rf"seqlake\[{engine}\]"):
        ours.to_arrow()


def without_trailer(path: Path, engine: str) -> bytes:
    """A shard as the engine alone would have written it."""
    trailer = read_trailer(open_blob(path), tail=load("shard_formats", engine).open(open_blob(path)).tail)
    assert trailer is not None
    return path.read_bytes()[: trailer.nbytes]


def homed(home: str, root: Path, bucket: tuple[str, Any], engine: str) -> tuple[str, Any]:
    """One place, and its storage, with sixty rows of this engine's shards."""
    make(root / "log", engine)
    if home.startswith("log"):
        if home == "log without its index":
            shutil.rmtree(root / "log" / "_seqlake" / "index")
        return str(root / "log"), None
    location = f"{bucket[0]}/plain" if home == "bucket" else str(root / "plain")
    storage = bucket[1] if home == "bucket" else None
    store = open_store(location, storage=storage)
    named = {} if home == "no format named" else {"storage_format": engine}
    if home != "no metadata":
        store.put("mixtrain.json", json.dumps({"mixtrain": "1.0", **named}).encode())
    folder = {"partitions": "data/split=train", "beside the metadata": ""}.get(home, "data")
    for number, path in enumerate((root / "log" / "data").iterdir()):
        store.put(f"{folder}/{number}.{engine}".lstrip("/"), without_trailer(path, engine))
    return location, storage


@pytest.mark.sampled
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "home",
    ["log", "log without its index", "data", "no format named", "partitions", "beside the metadata", "bucket"],
)
def test_without_the_engine_no_home_looks_empty(
    tmp_path: Path, s3_bucket: Any, home: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known without it is the truth; all else names the extra."""
    place, storage = homed(home, tmp_path, s3_bucket, engine)
    verbs: dict[str, Any] = {
        "open": lambda: len(sl.open(place, storage=storage)),
        "scan": lambda: len(sl.scan(place, storage=storage)),
        "rows": lambda: sl.open(place, storage=storage).to_arrow().num_rows,
        "sql": lambda: sl.open(place, storage=storage).sql("SELECT count(*) FROM dataset").fetchall()[0][0],
        "where": lambda: len(sl.open(place, storage=storage).where("task IS NOT NULL")),
        "convert": lambda: len(sl.convert(sl.open(place, storage=storage), tmp_path / "out", progress=False)),
    }
    assert len(sl.open(place, storage=storage)) == 60
    for name in {engine, "lance.file", "vortex.io", *(one for one in sys.modules if one.partition(".")[0] == engine)}:
        monkeypatch.setitem(sys.modules, name, None)
    refused = set()
    for name, verb in verbs.items():
        try:
            assert verb() == 60, name
        except MissingDependencyError as error:
            refused.add(name)
            assert f"seqlake[{engine}]" in error.message  # noqa: PT017 - some verbs do without the engine
    assert refused >= ({"rows", "where", "convert"} if home.startswith("log") else verbs.keys())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_of_shards_without_metadata_says_what_is_there(
    tmp_path: Path, s3_bucket: Any, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = homed("no metadata", tmp_path, s3_bucket, engine)
    for name in (engine, "lance.file", "vortex.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        DatasetNotFoundError, match=rf"holds {engine} shards but no mixtrain\.json.*seqlake\[{engine}\]"
    ):
        sl.open(place)


@pytest.mark.parametrize("engine", ["parquet", *ENGINES])
def test_a_plain_folder_is_asked_only_for_logs_of_tables_whose_files_it_has(
    tmp_path: Path, s3_bucket: Any, asked: list[Any], engine: str
) -> None:
    make(tmp_path / "log", engine)
    uri, storage = s3_bucket
    store = open_store(f"{uri}/plain", storage=storage)
    store.put("mixtrain.json", (tmp_path / "log" / "mixtrain.json").read_bytes())
    store.put(f"data/0.{engine}", min((tmp_path / "log" / "data").iterdir()).read_bytes())
    asked.clear()
    assert len(sl.open(f"{uri}/plain", storage=storage)) == 20
    looked = {path.rstrip("/") for verb, path in asked if verb == "list"}
    logs: dict[str, set[str]] = {"parquet": {"_delta_log", "metadata"}, "lance": {"_versions"}, "vortex": set()}
    assert looked & {"_delta_log", "metadata", "_versions"} == logs[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_damage_is_a_finding_and_not_written_on(tmp_path: Path, engine: str) -> None:
    ds = make(tmp_path / "a", engine)
    path = min((tmp_path / "a" / "data").iterdir())
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x55
    path.write_bytes(data)
    ds = sl.open(tmp_path / "a")
    assert "P601" in {finding.code for finding in ds.validate(depth="rows")}
    with pytest.raises(CorruptFileError):
        sl.repack(ds, tmp_path / "b")
    with pytest.raises(CorruptFileError):
        sl.open(tmp_path / "a", verify="first").to_arrow()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("lie", ["ids", "lengths", "places"])
def test_a_sealed_end_that_lies_is_a_finding(tmp_path: Path, engine: str, lie: str) -> None:
    """Who writes a trailer may seal whatever it says: validation holds it against the rows."""
    if (engine, lie) == ("vortex", "places"):
        pytest.skip("Vortex has no places")
    theirs = tmp_path / "theirs"
    (theirs / "data").mkdir(parents=True)
    make(tmp_path / "log", engine)
    (theirs / "mixtrain.json").write_bytes((tmp_path / "log" / "mixtrain.json").read_bytes())
    path = theirs / "data" / f"0.{engine}"
    data = min((tmp_path / "log" / "data").iterdir()).read_bytes()
    path.write_bytes(data)
    assert sl.open(theirs).validate(depth="rows").ok
    tail = load("shard_formats", engine).open(open_blob(path)).tail
    known = read_trailer(open_blob(path), tail=tail)
    assert known is not None
    entry = known.index.columns["action"]
    order = np.roll(np.arange(known.rows), 1)
    index, ids = known.index, known.ids
    if lie == "ids":
        ids = ids.take(order)
    elif lie == "lengths":
        entry = replace(entry, steps=entry.steps[order], page_start=entry.page_start[:0], page_row=entry.page_row[:0])
        index = OffsetIndex(columns={"action": entry})
    else:
        entry = replace(entry, page_start=entry.page_start + 16)
        index = OffsetIndex(columns={"action": entry}, headers=known.index.headers)
    path.write_bytes(data[: known.nbytes])
    append_trailer(path, index, ids=ids, schema=known.schema, tail=tail)
    findings = [finding for finding in sl.open(theirs).validate(depth="rows") if finding.code == "P604"]
    assert [lie in finding.message for finding in findings] == [True]


APPENDING = """
import sys
import numpy as np
import seqlake as sl

place, name = sys.argv[1:]
ds = sl.open(place)
for number in range(1000):
    steps = np.full((5, 4), number, np.float32)
    ds.append([{"sequence_id": f"{name}_{number}", "task": "t", "reward": 0.0, "action": steps}])
    print(f"{name}_{number}", flush=True)
"""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_writers_that_are_killed_lose_nothing_and_leave_nothing_half(tmp_path: Path, engine: str) -> None:
    """Two processes append at once, and both are killed at some moment of a commit."""
    make(tmp_path / "a", engine)
    command = [sys.executable, "-c", APPENDING, str(tmp_path / "a")]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("x", "y")]
    acknowledged: list[str] = []
    for writer in writers:
        assert writer.stdout is not None
        acknowledged += [writer.stdout.readline().strip() for _ in range(5)]
    for writer in writers:
        writer.kill()
        acknowledged += (writer.communicate()[0] or "").split()
    ds = sl.open(tmp_path / "a")
    assert {f"ep_{n:03}" for n in range(60)} | set(acknowledged) <= set(ds.to_arrow()["sequence_id"].to_pylist())
    assert ds.validate(depth="rows").ok
    assert formats(ds) == {engine}
    ds.append(rows(60, 1))
    ds.vacuum(older_than=timedelta(0))
    assert sl.open(tmp_path / "a").validate(depth="rows").ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_reads_windows_in_place_and_refuses_to_decode(tmp_path: Path) -> None:
    ds = make(tmp_path / "a", "lance")
    archive = sl.repack(ds, tmp_path / "b", layout="archive")
    assert len(archive.to_arrow()) == 60  # Lance has threads now
    into, out = os.pipe()
    child = os.fork()
    if not child:
        said = "nothing"
        try:
            window = next(iter(sl.Loader(ds, window={"action": range(4)}, batch_size=4)))["action"].shape
            try:
                archive.to_arrow()
            except ForkedProcessError as error:
                said = f"{window} {error}"
        finally:
            os.write(out, said.encode())
            os._exit(0)
    os.close(out)
    said = os.read(into, 10_000).decode()
    os.waitpid(child, 0)
    assert said.startswith("(4, 4, 4) Lance does not survive a fork")
    assert "forkserver" in said
