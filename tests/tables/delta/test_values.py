"""Values of every kind come back from Delta as they were, to us and to deltalake; partitions of every kind, too."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl

deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")

MOMENT = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
KINDS = {
    "truth": (pa.bool_(), True),
    "small": (pa.int8(), -5),
    "large": (pa.int64(), 2**60),
    "real": (pa.float64(), 0.1),
    "day": (pa.date32(), date(2026, 3, 1)),
    "moment": (pa.timestamp("us", "UTC"), MOMENT),
    "wall": (pa.timestamp("us"), MOMENT.replace(tzinfo=None)),
    "money": (pa.decimal128(10, 2), Decimal("12.30")),
    "raw": (pa.binary(), b"\0\1"),
    "words": (pa.list_(pa.string()), ["a", "b", None]),
    "link": (pa.struct([("url", pa.string()), ("start", pa.int64())]), {"url": "https://x/y.mp4", "start": 3}),
}


def test_values_of_every_kind(tmp_path):
    root = str(tmp_path / "t")
    ds = sl.create(f"delta:{root}", {name: kind for name, (kind, _) in KINDS.items()})
    full = {name: value for name, (_, value) in KINDS.items()}
    ds.append(pa.Table.from_pylist([{"sequence_id": "full", **full}, {"sequence_id": "bare"}], ds.schema.arrow))
    found = {row["sequence_id"]: row for row in sl.open(root).to_arrow().to_pylist()}
    assert found == {"full": {"sequence_id": "full", **full}, "bare": {"sequence_id": "bare", **dict.fromkeys(KINDS)}}
    stream = pa.RecordBatchReader.from_stream(deltalake.DeltaTable(root).scan())
    theirs = {row["sequence_id"]: row for row in stream.read_all().to_pylist()}
    assert theirs == found
    assert {finding.severity for finding in sl.open(root).validate(depth="rows").findings} <= {"note"}


def test_signals_of_every_kind(tmp_path):
    kinds = {
        "action": sl.Trajectory(dim=3),
        "wide": sl.Column("wide", pa.list_(pa.list_(pa.float64())), sl.Trajectory(dim=2)),
        "flags": sl.Column("flags", pa.list_(pa.int64()), sl.Trajectory()),
        "pose": sl.Trajectory(shape=[2, 2], dim=4),
        "packed": sl.Column("packed", pa.binary(), sl.Trajectory(dim=2, encoding="raw", dtype="float32")),
        "embedding": sl.Embedding(dim=4),
    }
    ds = sl.create(f"delta:{tmp_path}/t", kinds)
    rng = np.random.default_rng(0)
    cells = {
        "action": rng.normal(size=(5, 3)).astype(np.float32),
        "wide": rng.normal(size=(5, 2)),
        "flags": np.arange(5),
        "pose": rng.normal(size=(5, 2, 2)).astype(np.float32),
        "packed": rng.normal(size=(5, 2)).astype(np.float32),
        "embedding": rng.normal(size=4).astype(np.float32),
    }
    with ds.writer() as writer:
        writer.add("full", **cells)
        writer.add("bare")
    found = sl.open(ds.location)
    for name, cell in cells.items():
        assert np.array_equal(found["full"][name], cell), name
        assert found["bare"][name] is None
        assert found.schema[name].shape == ds.schema[name].shape
    (shard,) = found.shards()
    assert all(shard.open().flat(name) is not None for name in ("action", "wide", "flags", "pose", "packed"))


PARTITIONS = {
    "text": (pa.string(), ["plain", "a/b=c %25 ü", " spaced ", "it's", None]),
    "number": (pa.int64(), [-3, 0, 2**60, None]),
    "truth": (pa.bool_(), [True, False, None]),
    "day": (pa.date32(), [date(2026, 3, 1), date(1969, 12, 31), None]),
    "moment": (pa.timestamp("us", "UTC"), [MOMENT, None]),
}


@pytest.mark.parametrize("column", PARTITIONS)
def test_partitions_of_every_kind(tmp_path, column):
    kind, values = PARTITIONS[column]
    root = str(tmp_path / "t")
    ds = sl.create(f"delta:{root}", {column: kind, "n": pa.int64()}, partition_by=[column])
    rows = [{"sequence_id": f"ep_{n}", column: value, "n": n} for n, value in enumerate(values * 2)]
    ds.append(pa.Table.from_pylist(rows, ds.schema.arrow))
    expected = {row["sequence_id"]: row for row in rows}
    assert {row["sequence_id"]: row for row in sl.open(root).to_arrow().to_pylist()} == expected
    assert len(ds.shards()) == len(values)
    stream = pa.RecordBatchReader.from_stream(deltalake.DeltaTable(root).scan())
    assert {row["sequence_id"]: row for row in stream.read_all().to_pylist()} == expected
    assert {row["sequence_id"]: row for row in pl.scan_delta(root).collect().to_dicts()} == expected
    # Others append to the same partitions, and ours are changed after that.
    more = pa.Table.from_pylist([{"sequence_id": "theirs", column: values[0], "n": 99}], deltalake_schema(root))
    deltalake.write_deltalake(root, more, mode="append")
    ds.refresh()
    ds.update([{"sequence_id": "ep_0", "n": 50}])
    assert ds["ep_0"]["n"] == 50
    assert ds["theirs"]["n"] == 99
    assert len(ds.where(f"{column} IS NULL")) == 2


def deltalake_schema(root):
    return pa.schema(deltalake.DeltaTable(root).schema().to_arrow())


def test_files_in_odd_places_are_found(tmp_path):
    root = str(tmp_path / "with space & ü")
    ds = sl.create(f"delta:{root}", {"split": pa.string()}, partition_by=["split"])
    ds.append([{"sequence_id": "a", "split": "x y"}])
    assert len(sl.open(root)) == 1
    assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == 1
    assert next(Path(root, "data").iterdir()).name.startswith("split=")
