"""Lance and Vortex shards: the laws of all shards, the same cells as Parquet's, and read by their own libraries."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.errors import CorruptFileError, SchemaMismatchError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.stores import open_blob
from seqlake.plugins import load
from seqlake.shards import engines, parquet
from seqlake.shards.parquet import layout
from seqlake.shards.parquet.index import OffsetIndex
from seqlake.testing.shards import ShardTests, ShardWriterTests, flat_is, identical
from seqlake.versions.shard_formats import describe

if TYPE_CHECKING:
    from seqlake.protocols import Shard
    from seqlake.spec.schema import Schema

ENGINES = ("lance", "vortex")
POOLS: list[pa.MemoryPool] = []  # kept: an engine's threads may give bytes back to them late


def write(engine: str, table: pa.Table, schema: Schema, path: Path, **options: Any) -> Any:
    """A file of an engine; gives what a table would keep of it."""
    pytest.importorskip(engine)
    writer = load("shard_formats", engine).create(path, schema, **options)
    for batch in table.to_batches(max_chunksize=3):
        writer.write(batch)
    return writer.close()


class _Laws(ShardTests, ShardWriterTests):
    def make(self, table: pa.Table, folder: Path, /) -> list[Shard]:
        path = folder / f"part.{self.format}"
        schema = sl.Schema({**{f.name: f for f in table.schema}, "action": sl.Trajectory(dim=4)})
        known = write(self.format, table, schema, path)
        assert (known.rows, known.nbytes) == (len(table), path.stat().st_size)
        key = f"{path.name}#{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        return [describe(path.name, open_blob(path), rows=known.rows, nbytes=known.nbytes, key=key)]


class TestLance(_Laws):
    format = "lance"


class TestVortex(_Laws):
    format = "vortex"


def signals(rows: int, *, dtype: Any = np.float32, seed: int = 0, nulls: bool = True) -> pa.Table:
    """Rows with [T, 4] and [T] signals, some empty, some null."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 40, rows)
    numbers = [(random.random((n, 4)) * 100).astype(dtype) for n in lengths]
    holes = random.random(rows) < 0.2 if nulls else np.zeros(rows, np.bool_)
    nested = [None if hole else cell.tolist() for cell, hole in zip(numbers, holes, strict=True)]
    single = [cell[:, 0].tolist() for cell in numbers]
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    return pa.table(
        {
            "sequence_id": pa.array([f"ep_{i}" for i in range(rows)], pa.string()),
            "action": pa.array(nested, pa.list_(pa.list_(kind, 4))),
            "force": pa.array(single, pa.list_(kind)),
        }
    )


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "u4", "i8", "u8"])
def test_signals_of_lance_lie_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(layout, "ROW_GROUP", 20_000)
    monkeypatch.setattr(engines, "PIECE", 1_000)
    table = signals(200, dtype=dtype)
    write("lance", table, sl.Schema(dict(zip(table.column_names, table.schema, strict=True))), tmp_path / "x.lance")
    reader = load("shard_formats", "lance").open(open_blob(tmp_path / "x.lance"))
    for name in ("action", "force"):
        flat = reader.flat(name)
        assert flat is not None
        assert flat_is(flat, table[name])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("order", ["training", "archive"])
def test_cells_are_those_of_parquet(tmp_path: Path, engine: str, order: str) -> None:
    columns: dict[str, pa.Array] = {
        "sequence_id": pa.array(["a", "b", "c"]),
        "bool": pa.array([True, None, False]),
        "i8": pa.array([1, None, -3], pa.int8()),
        "u64": pa.array([1, None, 2**64 - 1], pa.uint64()),
        "f16": pa.array([1.5, None, -0.0], pa.float16()),
        "nan": pa.array([float("nan"), None, -0.0], pa.float32()),
        "text": pa.array(["x", None, "\u2028\0"]),
        "large": pa.array(["x", None, ""], pa.large_string()),
        "bytes": pa.array([b"\0", None, b""]),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "ns": pa.array([1, None, 3], pa.timestamp("ns")),
        "zone": pa.array([1, None, 3], pa.timestamp("us", "Europe/Berlin")),
        "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "time": pa.array([1, None, 3], pa.time64("us")),
        "span": pa.array([1, None, -3], pa.duration("ms")),
        "decimal": pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("-2.5")], pa.decimal128(10, 2)),
        "steps": pa.array([[1.0, 2.0], None, []], pa.list_(pa.float32())),
        "holes": pa.array([[1.0, None], None, []], pa.list_(pa.float32())),
        "ragged": pa.array([[[1.0], [2.0, 3.0]], None, []], pa.list_(pa.list_(pa.float32()))),
        "points": pa.array([[[[1.0, 2.0]], [[3.0, 4.0]]], None, []], pa.list_(pa.list_(pa.list_(pa.float32(), 2)))),
        "words": pa.array([["a", None], None, []]),
        "flags": pa.array([[True], None, []], pa.list_(pa.bool_())),
        "struct": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
        "structs": pa.array([[{"a": 1}], None, []], pa.list_(pa.struct([("a", pa.int64())]))),
        "blob": pa.array([{"bytes": b"x", "path": None}, None, {"bytes": None, "path": "y"}]),
    }
    for chosen in (columns, {name: c for name, c in columns.items() if "struct" not in name and name != "blob"}):
        table = pa.table(chosen)
        schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
        known = write(engine, table, schema, tmp_path / f"x.{engine}", layout=order)
        path = tmp_path / "x.parquet"
        writer = parquet.create(path, schema)
        for batch in table.to_batches():
            writer.write(batch)
        same = writer.close()
        assert (known.ids, known.statistics) == (same.ids, same.statistics)
        reader, truth = (
            load("shard_formats", engine).open(open_blob(tmp_path / f"x.{engine}")),
            parquet.open(open_blob(path)),
        )
        for rows in (None, np.array([2, 0, 0], np.int64)):
            left = pa.Table.from_batches(list(reader.batches(table.column_names, rows=rows)))
            right = pa.Table.from_batches(list(truth.batches(table.column_names, rows=rows)))
            for name in table.column_names:
                kind = right[name].type
                assert left[name].cast(kind).to_pylist() == right[name].to_pylist() or identical(
                    left[name].cast(kind), right[name]
                ), name


@pytest.mark.parametrize("engine", ENGINES)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.integers(0, 60), seed=st.integers(0, 1000), group=st.integers(500, 40_000), order=st.booleans())
def test_any_rows_come_back(tmp_path: Path, engine: str, rows: int, seed: int, group: int, order: bool) -> None:
    table = signals(rows, seed=seed)
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    path = tmp_path / f"x.{engine}"
    before, layout.ROW_GROUP = layout.ROW_GROUP, group
    try:
        write(engine, table, schema, path, layout="archive" if order else "training")
    finally:
        layout.ROW_GROUP = before
    picks = np.random.default_rng(seed).integers(0, max(rows, 1), 7 if rows else 0)
    for blob in (open_blob(path), MemoryBlob(path.read_bytes())):
        reader = load("shard_formats", engine).open(blob)
        assert reader.rows == rows
        for wanted in (None, picks):
            parts = list(reader.batches(table.column_names, rows=wanted))
            got = pa.Table.from_batches(parts) if parts else table.slice(0, 0)
            expected = table if wanted is None else table.take(picks)
            for name in table.column_names:
                assert identical(got[name], expected[name])
        for name in ("action", "force"):
            lengths = [-1 if cell is None else len(cell) for cell in table[name].to_pylist()]
            assert reader.lengths(name).tolist() == lengths


@pytest.mark.parametrize("order", ["training", "archive"])
def test_their_own_libraries_read_the_files(tmp_path: Path, order: str) -> None:
    table = signals(50)
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    for engine in ENGINES:
        write(engine, table, schema, tmp_path / f"x.{engine}", layout=order)
    lance = pytest.importorskip("lance.file").LanceFileReader(str(tmp_path / "x.lance")).read_all().to_table()
    vortex = pytest.importorskip("vortex").open(str(tmp_path / "x.vortex")).to_arrow().read_all()
    for name in table.column_names:
        assert identical(lance[name], table[name])
        assert identical(vortex[name].cast(table[name].type), table[name])


@pytest.mark.parametrize("engine", ENGINES)
def test_files_of_others_open(tmp_path: Path, engine: str) -> None:
    table = signals(50)
    path = tmp_path / f"x.{engine}"
    if engine == "lance":
        with pytest.importorskip("lance.file").LanceFileWriter(str(path), table.schema) as writer:
            writer.write_batch(table.combine_chunks().to_batches()[0])
    else:
        pytest.importorskip("vortex.io").write(table, str(path))
    reader = load("shard_formats", engine).open(open_blob(path))
    assert reader.rows == 50
    assert reader.lengths("action") is None
    assert reader.flat("action") is None
    (batch,) = reader.batches(table.column_names)
    assert all(identical(batch.column(name), table[name]) for name in table.column_names)


def test_a_schema_that_lance_panics_over_is_damage(tmp_path: Path) -> None:
    """A panic of Rust is no `Exception`, and ended whoever asked for the schema of a file of somebody else."""
    table, path = signals(5), tmp_path / "x.lance"
    with pytest.importorskip("lance.file").LanceFileWriter(str(path), table.schema) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])
    kind = b"fixed_size_list:float:4"
    assert kind in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(kind, kind.replace(b":4", b"84")))
    with pytest.raises(CorruptFileError, match=r"x\.lance cannot be read"):
        assert load("shard_formats", "lance").open(open_blob(path)).schema


@pytest.mark.parametrize("engine", ENGINES)
def test_every_changed_byte_is_met_by_a_verified_read(tmp_path: Path, engine: str) -> None:
    table = signals(40).append_column("note", pa.array(["n"] * 40))
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    path = tmp_path / f"x.{engine}"
    write(engine, table, schema, path)
    data = path.read_bytes()
    opened = load("shard_formats", engine).open
    whole = engines.read_trailer(open_blob(path), tail=opened(open_blob(path)).tail)
    assert whole is not None
    random = np.random.default_rng(3)
    for at in random.integers(0, whole.nbytes, 40).tolist():
        changed = bytearray(data)
        changed[at] ^= int(random.integers(1, 256))
        reader = opened(MemoryBlob(bytes(changed))).verified()
        with pytest.raises(CorruptFileError):
            list(reader.batches(["note"]))
    for at in range(whole.nbytes, len(data) - opened(open_blob(path)).tail, 97):
        changed = bytearray(data)
        changed[at] ^= 1
        reader = opened(MemoryBlob(bytes(changed)))
        try:
            lengths = reader.lengths("action")
        except CorruptFileError:
            continue
        assert lengths is None  # the pointer itself: a file of somebody else


def test_a_changed_signal_is_met_where_it_is_read_in_place(tmp_path: Path) -> None:
    table = signals(400, nulls=False)
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    path = tmp_path / "x.lance"
    write("lance", table, schema, path)
    opened = load("shard_formats", "lance").open
    flat = opened(open_blob(path)).flat("action")
    changed = bytearray(path.read_bytes())
    row = int(np.flatnonzero(flat.steps > 0)[7])
    changed[int(flat.start[row]) + 1] ^= 1
    reader = opened(MemoryBlob(bytes(changed))).verified()
    with pytest.raises(CorruptFileError, match="action"):
        list(reader.batches(["action"], rows=np.array([row])))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_reader_compares_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    table = signals(400, nulls=False).append_column("note", pa.array(["n"] * 400))
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    path = tmp_path / f"x.{engine}"
    write(engine, table, schema, path)
    compared: list[int] = []
    crc32 = engines.crc32
    monkeypatch.setattr(engines, "crc32", lambda data: compared.append(len(data)) or crc32(data))
    columns = ["action", "note"]

    def read() -> int:
        before = len(compared)
        reader = load("shard_formats", engine).open(open_blob(path)).verified()
        assert identical(pa.Table.from_batches(list(reader.batches(columns)))["action"], table["action"])
        return len(compared) - before

    assert read() > 0
    assert read() == 0
    load("shard_formats", engine).open(open_blob(path)).compare()
    assert compared.pop() > 0  # who asks for all of it is not answered from memory
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)  # other bytes: another file
    with pytest.raises(CorruptFileError):
        read()
    with pytest.raises(CorruptFileError):
        read()


@pytest.mark.parametrize("engine", ["parquet", *ENGINES])
def test_an_unknown_layout_is_refused_alike(tmp_path: Path, engine: str) -> None:
    if engine != "parquet":
        pytest.importorskip(engine)
    schema = sl.Schema({"x": pa.int64()})
    create = parquet.create if engine == "parquet" else load("shard_formats", engine).create
    with pytest.raises(ValueError, match="layout 'training' or 'archive', found 'tight'"):
        create(tmp_path / "x", schema, layout="tight")
    with pytest.raises(ValueError, match="layout 'training' or 'archive', found 'tight'"):
        sl.repack(sl.create(tmp_path / "a", schema), tmp_path / "b", layout="tight", shards=engine)


def test_views_of_vortex_in_structs_and_maps_are_plain(tmp_path: Path) -> None:
    """Files of others, read by their own library, hold views wherever text stands."""
    vortex = pytest.importorskip("vortex")
    rows = [{"a": "x" * 40, "b": [{"c": "y"}, {"c": None}]}, None, {"a": None, "b": []}]
    table = pa.table({"s": pa.array(rows), "t": pa.array([["u"], None, []])})
    vortex.io.write(table, str(tmp_path / "x.vortex"))
    raw = vortex.open(str(tmp_path / "x.vortex")).to_arrow().read_all()
    assert "string_view" in str(raw.schema)
    reader = load("shard_formats", "vortex").open(open_blob(tmp_path / "x.vortex"))
    assert "view" not in str(reader.schema)
    (batch,) = reader.batches(["s", "t"], rows=np.array([2, 0, 0, 1]))
    assert batch.schema.types == reader.schema.types
    assert batch.column("s").to_pylist() == [rows[2], rows[0], rows[0], None]


class Far:
    """A file that is no memory, and how many requests it was asked."""

    def __init__(self, path: Path) -> None:
        self.inside, self.requests = MemoryBlob(path.read_bytes()), 0
        self.location, self.size, self.token = f"far://{path.name}", self.inside.size, "1"

    def view(self) -> None:
        return None

    def ranges(self, starts: Any, stops: Any, /) -> list[memoryview]:
        self.requests += 1
        return self.inside.ranges(starts, stops)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_of_a_file_far_away_costs_one_request(tmp_path: Path, engine: str) -> None:
    for rows, most in ((50, 1), (6_000, 2)):
        table = signals(rows)
        ids = np.random.default_rng(1).bytes(16 * rows).hex("/", 16).split("/")
        table = table.set_column(0, "sequence_id", pa.array(ids))
        schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
        path = tmp_path / f"{rows}.{engine}"
        pytest.importorskip(engine)
        writer = load("shard_formats", engine).create(path, schema)
        writer.write(table.combine_chunks().to_batches()[0])
        writer.close()
        far = Far(path)
        reader = load("shard_formats", engine).open(far)
        (batch,) = reader.batches(["sequence_id"])
        assert batch.column(0).to_pylist() == table["sequence_id"].to_pylist()
        assert reader.lengths("action").tolist() == [-1 if c is None else len(c) for c in table["action"].to_pylist()]
        assert (reader.rows, far.requests) == (rows, most)


def test_lance_has_no_dots_in_names(tmp_path: Path) -> None:
    schema = sl.Schema({"sequence_id": pa.string(), "a.b": pa.int64()})
    with pytest.raises(SchemaMismatchError, match=r"a\.b.*dot"):
        load("shard_formats", "lance").create(tmp_path / "x.lance", schema)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_no_file_of_the_engine_says_so(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    for data in (b"", b"x", b"PAR1" * 100, bytes(5000)):
        path = tmp_path / f"x.{engine}"
        path.write_bytes(data)
        with pytest.raises(CorruptFileError, match=str(path)):
            assert load("shard_formats", engine).open(open_blob(path)).rows


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_said_of_a_file_is_compared_with_itself(tmp_path: Path, engine: str) -> None:
    """Anybody can seal a trailer again: counts, types and sizes that do not fit are refused before they are used."""
    table = signals(20)
    schema = sl.Schema(dict(zip(table.column_names, table.schema, strict=True)))
    path = tmp_path / f"x.{engine}"
    write(engine, table, schema, path)
    opened = load("shard_formats", engine).open
    tail = opened(open_blob(path)).tail
    known = engines.read_trailer(open_blob(path), tail=tail)
    assert known is not None
    data = path.read_bytes()[: known.nbytes]
    many = pa.table({"sequence_id": pa.array(["x"] * (1 << 24))})
    lies: list[dict[str, Any]] = [
        {"ids": table.select(["sequence_id"]).slice(1)},
        {"ids": table.select(["force"])},
        {"ids": table.select(["sequence_id", "force"])},
        {"ids": pa.table({"sequence_id": pa.array(range(20))})},
        {"ids": many},
        {"schema": known.schema.remove(1)},
        {"index": OffsetIndex(columns=many_steps(known.index, 1 << 24))},
    ]
    for lie in lies:
        path.write_bytes(data)
        told = {"index": known.index, "ids": known.ids, "schema": known.schema, **lie}
        engines.append_trailer(path, told.pop("index"), **told, tail=tail)
        with pytest.raises(CorruptFileError):
            list(opened(open_blob(path)).batches(["sequence_id"]))
    for stored in ("<f8", "<i4"):
        path.write_bytes(data)
        columns = {name: replace(entry, stored=stored) for name, entry in known.index.columns.items()}
        index = OffsetIndex(columns=columns, headers=known.index.headers)
        engines.append_trailer(path, index, ids=known.ids, schema=known.schema, tail=tail)
        reader = opened(open_blob(path))
        assert reader.flat("action") is None
        (batch,) = reader.batches(["action"])
        assert identical(batch.column(0), table["action"])


def many_steps(index: OffsetIndex, rows: int) -> dict[str, Any]:
    """The index of a file that had so many rows."""
    return {name: replace(entry, steps=np.zeros(rows, np.int32)) for name, entry in index.columns.items()}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("order", ["training", pytest.param("archive", marks=pytest.mark.soak)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_writer_holds_no_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, order: str) -> None:
    """Arrow's bytes, those that the engine took over among them: far fewer than the file has."""
    pytest.importorskip(engine)
    monkeypatch.setattr(layout, "ROW_GROUP", 1 << 20)
    usual, schema = pa.default_memory_pool(), sl.Schema({"action": sl.Trajectory(dim=4)})
    pool = pa.proxy_memory_pool(usual)
    POOLS.append(pool)
    numbers = np.random.default_rng(0).random((8_000, 4)).astype(np.float32)
    cells = pa.FixedSizeListArray.from_arrays(numbers.reshape(-1), 4)
    pa.set_memory_pool(pool)
    try:
        writer = load("shard_formats", engine).create(tmp_path / f"x.{engine}", schema, layout=order)
        for number in range(512):  # of 128 KB each
            action = pa.ListArray.from_arrays(pa.array([0, 8_000], pa.int32()), cells.take(pa.array(range(8_000))))
            writer.write(pa.record_batch({"sequence_id": [f"ep_{number}"], "action": action}))
        written = writer.close()
    finally:
        pa.set_memory_pool(usual)
    assert written.rows == 512
    assert pool.max_memory() < 24 << 20  # of 64 MiB
