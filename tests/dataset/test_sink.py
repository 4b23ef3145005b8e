"""A table as the target of a conversion: parts anywhere, in any order, once or twice; one commit."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seqlake.dataset import opening
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.writing.sink import TableSink
from seqlake.dataset.writing.staging import ShardShape
from seqlake.errors import DuplicateSequenceError, SeqlakeError, ValidationError
from seqlake.receipts import decode, encode
from seqlake.spec.column_types import Video
from seqlake.testing import samples
from seqlake.testing.processes import fresh


@pytest.fixture
def source(tmp_path: Path) -> Dataset:
    return samples.arm_dataset(tmp_path / "source", count=12, rows_per_shard=4)


@pytest.fixture
def target(tmp_path: Path, source: Dataset) -> Dataset:
    return opening.create(tmp_path / "target", source.schema)


def sink_of(target: Dataset, **options: Any) -> TableSink:
    return TableSink(table=target.table, schema=target.schema, transaction=target.table.begin(), **options)


def tree(root: str) -> list[str]:
    return sorted(str(path) for path in Path(root).rglob("*") if path.is_file())


def stage(sink: TableSink, shard: object, part: int, columns: list[str]) -> object:
    return sink.write(part, shard.open().batches(columns), root="/nowhere")


def test_parts_in_any_order_and_twice_make_one_commit(source: Dataset, target: Dataset) -> None:
    sink = sink_of(target, shape=ShardShape(rows=3))
    names = source.schema.names
    receipts = [stage(sink, source.shards()[part], part, names) for part in (2, 0, 1, 0)]
    assert len(opening.open(target.location)) == 0
    version = sink.commit(receipts)
    assert version.rows == 12
    assert opening.open(target.location).to_arrow().equals(source.to_arrow())
    assert [shard.rows for shard in opening.open(target.location).shards()] == [3, 1] * 3


def test_parts_of_other_processes_and_receipts_as_json(source: Dataset, target: Dataset) -> None:
    sink = pickle.loads(pickle.dumps(sink_of(target)))
    with fresh().Pool(2) as pool:
        work = [(sink, shard, part, source.schema.names) for part, shard in enumerate(source.shards())]
        receipts = pool.starmap(stage, work)
    kept = [decode(json.loads(json.dumps(encode(receipt)))) for receipt in receipts]
    assert kept == receipts
    again = TableSink(table=target.table, schema=sink.schema, transaction=sink.transaction)
    again.renew()
    again.commit(kept)
    assert opening.open(target.location).to_arrow().equals(source.to_arrow())
    assert opening.open(target.location).validate(depth="rows").ok


def test_nothing_is_left_of_a_part_that_failed(source: Dataset, target: Dataset) -> None:
    before = tree(target.location)
    sink = sink_of(target, shape=ShardShape(rows=1))
    begun = tree(target.location)

    def failing() -> object:
        yield from source.shards()[0].open().batches(source.schema.names)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink.write(0, failing(), root="/nowhere")
    assert tree(target.location) == begun
    stage(sink, source.shards()[0], 0, source.schema.names)
    sink.discard()
    assert tree(target.location) == before


def test_files_come_along(tmp_path: Path) -> None:
    schema = samples.arm_schema().select(["sequence_id", "task"]).with_columns({"cam": Video(fps=30)})
    target = opening.create(tmp_path / "target", schema)
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a.mp4").write_bytes(b"clip")
    rows = pa.RecordBatch.from_pylist(
        [{"sequence_id": "a", "task": "t", "cam": "a.mp4"}, {"sequence_id": "b", "task": "t", "cam": None}],
        schema.arrow,
    )
    sink = sink_of(target)
    with pytest.raises(ValidationError, match="'none.mp4' is not there"):
        sink.write(0, iter([rows.set_column(2, "cam", pa.array(["a.mp4", "none.mp4"]))]), root=str(tmp_path / "from"))
    assert not list(Path(target.location).rglob("*.mp4"))
    sink.commit([sink.write(0, iter([rows]), root=str(tmp_path / "from"))])
    ds = opening.open(target.location)
    found = ds.select("cam").to_arrow().column(0).to_pylist()
    assert Path(target.location, found[0]).read_bytes() == b"clip"
    assert found[1] is None
    assert [f.code for f in ds.validate(depth="files")] == ["F409"]  # there, and no video


def test_what_cannot_be_committed(source: Dataset, target: Dataset) -> None:
    names = source.schema.names
    sink = sink_of(target)
    receipts = [stage(sink, source.shards()[0], part, names) for part in (0, 1)]
    with pytest.raises(SeqlakeError, match=r"Parts \[0\] have no receipt"):
        sink.commit(receipts[1:])
    with pytest.raises(ValidationError, match="Expected a receipt"):
        sink.commit(["?"])
    with pytest.raises(DuplicateSequenceError):
        sink.commit(receipts)
    with pytest.raises(ValueError, match="at least 0"):
        sink.write(-1, iter([]), root="/")
    assert len(opening.open(target.location)) == 0
    sink.discard()
