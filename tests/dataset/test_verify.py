"""`verify="first"`: whatever reads notices changed values and lying lengths, and gives the same answers otherwise."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset import reshaping
from seqlake.dataset.reading.access import Access
from seqlake.dataset.validation import validate
from seqlake.errors import CorruptFileError, SeqlakeError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.stores import open_store
from seqlake.shards import files
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.parquet.pages import walk

from ..homes import PLACES  # noqa: TID252 - tests are no package that could be named

DIMS = {"action": 2, "raw": 3}
LENGTHS = [120, 0, 333, 7, 90, 250, 61, 400]


def written(folder, shards=2):
    schema = {
        name: sl.Trajectory(dim=dim, **({"encoding": "raw"} if name == "raw" else {})) for name, dim in DIMS.items()
    }
    ds = sl.create(folder, sl.Schema({"task": pa.string(), **schema}))
    with ds.writer(rows_per_shard=len(LENGTHS) // shards) as writer:
        for n, steps in enumerate(LENGTHS):
            cells = {
                name: np.arange(steps * dim, dtype=np.float32).reshape(steps, dim) + n for name, dim in DIMS.items()
            }
            writer.add(f"ep_{n}", task="pick", **cells)
    return folder


def flip(folder, column="action", row_group=0):
    """One bit of a value in the middle of a column of the first shard; the checksums stay as they are."""
    path = min(Path(folder).rglob("*.parquet"))
    data = bytearray(path.read_bytes())
    footer = read_footer(MemoryBlob(bytes(data)))
    chunk = footer.chunks[row_group][footer.leaves[column][0]]
    page = next(walk(memoryview(data)[chunk.start : chunk.stop], values=chunk.values))
    data[chunk.start + (page.body + page.stop) // 2 + 40] ^= 4
    path.write_bytes(bytes(data))
    return path


def by_stream(ds):
    ds.to_arrow()


def by_cell(ds):
    for sequence in ds:
        _ = sequence["action"], sequence["raw"]


def by_window(ds):
    for sequence in ds:
        sequence.window(0, 4, columns=["action"])


def by_loader(ds):
    window = {"action": range(3), **({"raw": range(-1, 2)} if ds.schema["raw"].category == "temporal" else {})}
    list(sl.Loader(ds, window=window, batch_size=16))


def by_whole(ds):
    list(sl.Loader(ds, window=sl.Whole(["action"]), batch_size=2))


def by_map_style(ds):
    windows = sl.Loader(ds, window={"action": range(3)}, batch_size=16).dataset()
    for start in range(0, len(windows), 64):
        windows.__getitems__(list(range(start, min(start + 64, len(windows)))))


ROWS = itertools.cycle([5, 6, 7])


def by_statistics(ds):
    sl.statistics(ds[: next(ROWS)])  # those of the same rows are kept, and nothing would be read


def by_selection(ds):
    picked = ds.where("len(action) > 5")
    by_cell(picked)
    by_loader(picked)


READS = [by_stream, by_cell, by_window, by_loader, by_whole, by_map_style, by_statistics, by_selection]


@pytest.mark.parametrize("read", READS)
def test_every_way_of_reading_finds_a_changed_value(tmp_path, read):
    written(tmp_path / "arm")
    read(sl.open(tmp_path / "arm", verify="first"))
    flip(tmp_path / "arm")
    read(sl.open(tmp_path / "arm"))  # as documented: what is read in place is not compared
    for ds in (sl.open(tmp_path / "arm", verify="first"), sl.scan(tmp_path / "arm" / "data", verify="first")):
        with pytest.raises(CorruptFileError, match="'action'.* expected checksum"):
            read(ds)


def test_answers_are_the_same(tmp_path):
    written(tmp_path / "arm")
    plain, checked = sl.open(tmp_path / "arm"), sl.open(tmp_path / "arm", verify="first")
    assert plain.to_arrow().equals(checked.to_arrow())
    assert plain.fingerprint == checked.fingerprint
    assert plain[::-1].where("len(raw) > 50").to_arrow().equals(checked[::-1].where("len(raw) > 50").to_arrow())
    window = {"action": range(3), "raw": range(-2, 2)}
    for one, other in zip(*(sl.Loader(ds, window=window, batch_size=8) for ds in (plain, checked)), strict=True):
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert all(np.array_equal(a["action"], b["action"]) for a, b in zip(plain, checked, strict=True))


def test_only_pages_that_are_touched_are_compared(tmp_path):
    """The same shard, the other row group: nobody has looked at the damage yet."""
    ds = sl.create(tmp_path / "arm", sl.Schema({"action": sl.Trajectory(dim=256)}))
    with ds.writer() as writer:
        for n in range(4):
            writer.add(f"ep_{n}", action=np.full((2000, 256), n, np.float32))  # 2 MB each: a page of its own
    flip(tmp_path / "arm")
    ds = sl.open(tmp_path / "arm", verify="first")
    assert all((ds[f"ep_{n}"]["action"] == n).all() for n in (1, 2, 3))
    with pytest.raises(CorruptFileError, match="checksum"):
        ds["ep_0"]["action"]
    loader = sl.Loader(ds, window={"action": range(2)}, batch_size=32, shuffle=False).on_error("mask", budget=None)
    lost = np.concatenate([batch["sequence_id"][~batch["valid"]] for batch in loader])
    assert set(lost.tolist()) == {"ep_0"}
    assert len(lost) == 2000


def test_lengths_that_were_shifted_and_sealed_anew_are_found(tmp_path):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("forging", Path(__file__).parents[1] / "shards" / "parquet" / "forging.py")
    forging = module_from_spec(spec)
    spec.loader.exec_module(forging)
    written(tmp_path / "arm")
    for path in Path(tmp_path, "arm").rglob("*.parquet"):
        data = path.read_bytes()
        told = forging.own_index(data)
        (tmp_path / path.name).write_bytes(
            forging.resealed(data, forging.lying(told, "action", steps=forging.shifted(told.columns["action"].steps)))
        )
    by_cell(sl.scan(tmp_path / path.name))
    for read in (by_cell, lambda ds: ds.lengths("action")):
        with pytest.raises(CorruptFileError, match="lengths of rows"):
            read(sl.scan(tmp_path / path.name, verify="first"))
    assert read_footer(MemoryBlob((tmp_path / path.name).read_bytes())).index() is not None


CHILD = """
import pickle, sys
import seqlake as sl
ds = pickle.load(open(sys.argv[1], "rb"))
try:
    list(sl.Loader(ds, window={"action": range(3)}, batch_size=16))
except sl.errors.CorruptFileError as error:
    print(error)
"""


def test_another_process_compares_for_itself(tmp_path):
    written(tmp_path / "arm")
    flip(tmp_path / "arm")
    pickled = tmp_path / "pickled"
    pickled.write_bytes(pickle.dumps(sl.open(tmp_path / "arm", verify="first")[2:7]))
    done = subprocess.run([sys.executable, "-c", CHILD, str(pickled)], capture_output=True, text=True, check=True)
    assert "expected checksum" in done.stdout


def test_forked_workers_of_torch_compare_too(tmp_path):
    torch = pytest.importorskip("torch.utils.data")
    written(tmp_path / "arm")
    flip(tmp_path / "arm")
    loader = sl.Loader(sl.open(tmp_path / "arm", verify="first"), window={"action": range(3)}, batch_size=16)
    with pytest.raises(CorruptFileError, match="checksum"):
        list(torch.DataLoader(loader.torch(), batch_size=None, num_workers=1))


def test_threads_share_what_was_compared(tmp_path):
    written(tmp_path / "arm")
    ds = sl.open(tmp_path / "arm", verify="first")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: ds[n % len(LENGTHS)]["action"].shape[0], range(400)))
    assert found == [LENGTHS[n % len(LENGTHS)] for n in range(400)]


def test_pages_of_a_bucket_are_fetched_whole(s3_bucket, tmp_path):
    """Cells of a bucket are parts of pages; so are windows that a loader reads by range."""
    written(tmp_path / "arm")
    flip(tmp_path / "arm")
    place, storage = f"{s3_bucket.uri}/arm", s3_bucket.storage
    store = open_store(place, storage=storage)
    for path in Path(tmp_path, "arm").rglob("*"):
        if path.is_file():
            store.put(path.relative_to(tmp_path / "arm").as_posix(), path.read_bytes())
    plain, checked = (sl.open(place, storage=storage, verify=verify) for verify in (None, "first"))
    by_cell(plain)
    assert np.array_equal(plain["ep_5"]["action"], checked["ep_5"]["action"])  # in the other shard
    with pytest.raises(CorruptFileError, match="checksum"):
        by_cell(checked)
    ranged = {"window": {"action": range(3)}, "batch_size": 16, "cache": sl.Cache(fetch="range")}
    list(sl.Loader(plain, **ranged))
    with pytest.raises(CorruptFileError, match="checksum"):
        list(sl.Loader(checked, **ranged))


ANEW = {
    "compact": lambda ds, out: sl.compact(ds, rows_per_shard=100),
    "delete": lambda ds, out: ds.delete("task = 'pick' AND len(action) = 333"),
    "convert": sl.convert,
    "append": lambda ds, out: sl.create(out, ds.schema).append(ds),
    "upsert": lambda ds, out: ds.upsert(ds.select("sequence_id", "action")),
    "repack": sl.repack,
    "subset": sl.subset,
    "merge": lambda ds, out: sl.merge([ds, ds], out, union=True, prefixes=["a/", "b/"]),
    "split": lambda ds, out: sl.split(ds, out, by="task"),
    "trim": lambda ds, out: sl.trim(ds, out, start=1),
    "segment": lambda ds, out: sl.segment(ds, out, length=50),
    "resample": lambda ds, out: sl.resample(ds, out, fps=7),
    "convert_units": lambda ds, out: ds.convert_units("action", "counts", factor=2),
    "add_column": lambda ds, out: ds.add_column("sum", pa.float64(), sql="list_sum(flatten(action))"),
    "fold": lambda ds, out: (ds.rename_column("action", "moves"), ds.fold()),
    "widen_column": lambda ds, out: ds.widen_column("action", pa.float64(), rewrite=True),
}


@pytest.mark.parametrize("verb", ANEW)
def test_what_is_written_anew_is_compared_always(tmp_path, verb):
    """New checksums over damaged values, and over what is computed of them, would hide the damage for good."""
    written(tmp_path / "arm")
    ds = sl.open(tmp_path / "arm")
    ds.set_type("action", sl.Trajectory(dim=2, fps=20))
    flip(tmp_path / "arm")
    with pytest.raises(SeqlakeError, match="checksum"):
        ANEW[verb](ds, tmp_path / "copy")
    assert len(sl.open(tmp_path / "arm")) == len(LENGTHS)
    assert {one.code for one in validate(sl.open(tmp_path / "arm"), depth="rows").errors} == {"P603"}


@pytest.mark.parametrize("verb", ["trim", "segment", "resample"])
def test_signals_that_are_written_anew_are_read_once(tmp_path, monkeypatch, verb):
    """What was compared is what is written; a second read may see other bytes."""
    ds = sl.open(written(tmp_path / "arm"))
    ds.set_type("action", sl.Trajectory(dim=2, fps=20))
    read, cell = set(), Access.cell
    monkeypatch.setattr(Access, "cell", lambda self, row, column: read.add(column.name) or cell(self, row, column))
    ANEW[verb](ds, tmp_path / "copy")
    assert not read & DIMS.keys()


def test_after_a_commit_it_is_still_compared(tmp_path):
    ds = sl.open(written(tmp_path / "arm"), verify="first")
    ds.append([{"sequence_id": "new", "action": np.zeros((5, 2)), "raw": np.zeros((5, 3)), "task": "place"}])
    flip(tmp_path / "arm")
    with pytest.raises(CorruptFileError):
        by_cell(ds)


def logged(place, folder):
    """Two sequences, each with a log that is copied in."""
    ds = sl.create(place, sl.Schema({"log": sl.ColumnType("mcap")}))
    for name in "ab":
        (folder / f"{name}.bin").write_bytes(name.encode() * 3000)
        ds.append([{"sequence_id": name, "log": sl.File(folder / f"{name}.bin")}])
    return ds


def change(ds, name):
    path = Path(ds[name]["log"].location)
    data = path.read_bytes()
    path.write_bytes(data[:99] + b"?" + data[100:])


@pytest.mark.parametrize("kind", ["standalone", "delta", "ducklake, sqlite"])
def test_copied_in_files_are_compared_when_they_are_opened(tmp_path, monkeypatch, kind):
    if kind != "standalone":
        pytest.importorskip({"delta": "deltalake"}.get(kind, "duckdb"))
    place = PLACES[kind].format(folder=tmp_path, name="arm")
    change(logged(place, tmp_path), "b")
    assert sl.open(place)["b"]["log"].read()[99:100] == b"?"  # as documented
    checked = sl.open(place, verify="first")
    sl.compact(checked)  # what is known of them goes on with their rows
    monkeypatch.setattr(files, "_PIECE", 1000)  # less than the file
    for ds in (checked, checked.where("true"), sl.open(place, verify="first")):
        with pytest.raises(CorruptFileError, match="expected the 3000 bytes that were copied in"):
            ds["b"]["log"].read()
        assert ds["a"]["log"].read() == b"a" * 3000
    monkeypatch.setattr(files, "sha256", None)  # not again in this process
    assert sl.open(place, verify="first")["a"]["log"].read() == b"a" * 3000


@pytest.mark.parametrize("workers", [1, 2])
def test_a_conversion_does_not_seal_a_changed_file_anew(tmp_path, workers):
    ds = logged(tmp_path / "arm", tmp_path)
    change(ds, "b")
    with pytest.raises(SeqlakeError, match="copied in"):
        sl.convert(ds, tmp_path / "copy", workers=workers, progress=False)


@pytest.mark.parametrize("verb", ["merge", "repack", "subset", "adopt"])
def test_what_copies_files_does_not_seal_a_changed_one_anew(tmp_path, verb):
    ds = logged(tmp_path / "arm", tmp_path)
    change(ds, "b")
    verbs = {
        "merge": lambda: sl.merge([ds], tmp_path / "copy"),
        "repack": lambda: reshaping.repack(ds, tmp_path / "copy"),
        "subset": lambda: reshaping.subset(ds.where("true"), tmp_path / "copy"),
        "adopt": lambda: sl.convert(ds, tmp_path / "copy", adopt=True, progress=False),
    }
    with pytest.raises(CorruptFileError, match="copied in"):
        verbs[verb]()


def test_wrong_arguments(tmp_path):
    written(tmp_path / "arm")
    with pytest.raises(ValueError, match="None or 'first'"):
        sl.open(tmp_path / "arm", verify="always")
    with pytest.raises(ValueError, match="Parquet"):
        sl.scan({"x": [1, 2]}, verify="first")
