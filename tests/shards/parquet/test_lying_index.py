"""An offset index that lies, sealed anew by whoever made it, inside the file or beside it."""

from __future__ import annotations

import importlib.util
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.validation import validate
from seqlake.errors import DamagedTableError
from seqlake.files.blobs import MemoryBlob
from seqlake.shards import parquet
from seqlake.shards.parquet import index
from seqlake.shards.parquet.checking import check
from seqlake.shards.reading import lengths_of
from seqlake.spec.schema import Column
from seqlake.versions import indexes

LENGTHS = [5, 9, 0, 7, 12, 3]
COLUMNS = {
    "action": sl.Trajectory(dim=2),
    "grip": Column("grip", pa.list_(pa.float32()), sl.ColumnType("trajectory")),
    "raw": sl.Trajectory(dim=2, encoding="raw"),
}


def _module(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


forging = _module("forging")


def written(folder, layout="training"):
    ds = sl.create(folder, sl.Schema(COLUMNS))
    with ds.writer(layout=layout) as writer:
        for n, steps in enumerate(LENGTHS):
            cell = np.full((steps, 2), n, np.float32)
            writer.add(f"ep_{n}", action=cell, grip=cell[:, 0], raw=cell)
    return sl.open(folder)


def shard_of(folder):
    return next(Path(folder, "data").glob("*.parquet"))


def longer(steps, by=10**6):
    found = steps.copy()
    found[1] += by
    return found


def lie(folder, column, **changes):
    """The dataset's shard with an index that lies, as somebody would send it."""
    path = shard_of(folder)
    data = path.read_bytes()
    path.write_bytes(forging.resealed(data, forging.lying(forging.own_index(data), column, **changes)))
    return path


def test_a_file_is_resealed_as_if_it_had_been_written_so(tmp_path):
    written(tmp_path / "arm")
    data = shard_of(tmp_path / "arm").read_bytes()
    same = forging.resealed(data, index.encode(forging.own_index(data)))
    assert parquet.open(MemoryBlob(same)).flat("action") is not None
    assert list(check(MemoryBlob(same))) == []


@pytest.mark.parametrize("layout", ["training", "archive"])
@pytest.mark.parametrize("column", list(COLUMNS))
def test_lengths_that_the_file_cannot_hold_are_not_believed(tmp_path, column, layout):
    written(tmp_path / "arm", layout)
    told = forging.own_index(shard_of(tmp_path / "arm").read_bytes()).columns[column]
    lie(tmp_path / "arm", column, steps=longer(told.steps))
    path = shard_of(tmp_path / "arm")
    assert pq.read_table(path, columns=[column]).num_rows == len(LENGTHS)
    reader = parquet.open(MemoryBlob(path.read_bytes()))
    assert reader.flat(column) is None
    if column != "raw":
        assert lengths_of(reader, column).tolist() == LENGTHS
        scanned = sl.scan(path, column_types={"grip": {"type": "trajectory"}})
        assert scanned.lengths(column).tolist() == LENGTHS
        loader = sl.Loader(scanned, window={column: range(2)}, batch_size=4)
        assert loader.plan().samples == sum(LENGTHS)
        assert all(batch[f"{column}_mask"][:, 0].all() for batch in loader)
    assert {found.code for found in check(MemoryBlob(path.read_bytes()))} == {"P604"}


def test_raw_cells_of_no_known_type_tell_no_lengths(tmp_path):
    written(tmp_path / "arm")
    told = forging.own_index(shard_of(tmp_path / "arm").read_bytes()).columns["raw"]
    path = lie(tmp_path / "arm", "raw", steps=longer(told.steps), stored="")
    assert parquet.open(MemoryBlob(path.read_bytes())).lengths("raw") is None
    shutil.rmtree(tmp_path / "arm" / "_seqlake")  # a folder as somebody would send it
    assert sl.open(tmp_path / "arm").lengths("raw").tolist() == LENGTHS


@pytest.mark.parametrize("column", list(COLUMNS))
@pytest.mark.parametrize("layout", ["training", "archive"])
def test_steps_shifted_between_two_rows_are_found_by_validate(tmp_path, column, layout):
    ds = written(tmp_path / "arm", layout)
    assert validate(ds, depth="rows").ok
    told = forging.own_index(shard_of(tmp_path / "arm").read_bytes()).columns[column]
    path = lie(tmp_path / "arm", column, steps=forging.shifted(told.steps))
    found = validate(sl.scan(path), depth="rows")
    assert {(one.code, one.column, one.location) for one in found.errors} == {("P604", column, path.name)}


def sidecar(folder, change):
    """Writes the table's index file anew, with another offset index of the one shard."""
    (path,) = Path(folder, "_seqlake", "index").glob("*.arrow")
    kept = indexes.IndexFile.decode(path.read_bytes(), path=str(path))
    (name,) = list(kept)
    row = kept.row(name)
    path.write_bytes(indexes.encode([replace(row, index=change(index.decode(row.index)))]))


@pytest.mark.parametrize("change", [lambda steps: longer(steps, by=40), forging.shifted])
def test_a_tables_index_that_says_other_lengths_than_its_shard(tmp_path, change):
    written(tmp_path / "arm")
    sidecar(tmp_path / "arm", lambda told: forging.lying(told, "action", steps=change(told.columns["action"].steps)))
    ds = sl.open(tmp_path / "arm")
    with pytest.raises(DamagedTableError, match="an index says"):
        list(sl.Loader(ds, window={"action": range(2)}, batch_size=4))
    tolerant = sl.Loader(ds, window={"action": range(2)}, batch_size=4, shuffle=False)
    tolerant = tolerant.on_error("mask", budget=None)
    for batch in tolerant:
        assert (~batch["valid"] | batch["action_mask"][:, 0]).all()
    found = validate(ds, depth="rows")
    assert {(one.code, one.column) for one in found.errors} == {("P604", "action")}
    checked = sl.open(tmp_path / "arm", verify="first")
    assert checked.lengths("action").tolist() == LENGTHS
    assert checked[1:4].lengths("raw").tolist() == LENGTHS[1:4]


def test_an_index_of_an_adopted_file_sealed_anew(tmp_path):
    """Levels are hashed so that a stale index is known; whoever lies computes the hash as well."""
    folder = tmp_path / "theirs"
    (folder / "data").mkdir(parents=True)
    cells = pa.array([[[1.0, 2.0]] * 4, [[3.0, 4.0]] * 6], pa.list_(pa.list_(pa.float32())))
    table = pa.table({"sequence_id": ["a", "b"], "pose": cells})
    pq.write_table(table, folder / "data" / "x.parquet", compression="none", use_dictionary=False)
    sl.init(folder)
    sl.open(folder).adopt()
    assert validate(sl.open(folder), depth="rows").ok
    sidecar(folder, lambda told: forging.lying(told, "pose", steps=forging.shifted(told.columns["pose"].steps)))
    found = validate(sl.open(folder), depth="rows")
    assert {(one.code, one.column) for one in found.errors} == {("P604", "pose")}


def bomb(rows=100_000_000):
    """An index whose few bytes say that they become hundreds of megabytes, of zeros."""
    table = pa.table(
        [
            pa.array(["action"]),
            pa.array(["<f4"]),
            pa.array([2], pa.int32()),
            pa.array([[0]], pa.list_(pa.int64())),
            pa.array([[0]], pa.list_(pa.int64())),
            pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), pa.array(np.zeros(rows, np.int32))),
        ],
        schema=pa.schema(
            [
                ("column", pa.string()),
                ("stored", pa.string()),
                ("dim", pa.int32()),
                *((name, pa.list_(kind)) for name, kind in (("page_start", pa.int64()), ("page_row", pa.int64()))),
                ("steps", pa.list_(pa.int32())),
            ]
        ),
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return sink.getvalue()


def test_an_index_that_would_fill_memory_is_refused_before_it_does(tmp_path):
    encoded = bomb()
    assert len(encoded) < 100_000
    written(tmp_path / "arm")
    data = shard_of(tmp_path / "arm").read_bytes()
    forged = forging.resealed(data, encoded)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(sl.errors.CorruptFileError, match="at most"):
        parquet.open(MemoryBlob(forged)).flat("action")
    assert {found.code for found in check(MemoryBlob(forged))} == {"P601"}
    sidecar(tmp_path / "arm", lambda _: encoded)
    assert sl.open(tmp_path / "arm").lengths("action").tolist() == LENGTHS
    assert parquet.open(MemoryBlob(data), index=encoded).lengths("action").tolist() == LENGTHS
    assert pa.default_memory_pool().max_memory() < before + (100 << 20)
    assert "P604" in {found.code for found in validate(sl.open(tmp_path / "arm"), depth="rows").errors}
