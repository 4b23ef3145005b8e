"""Other engines' files are read alike, and other engines read our selections."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.abilities import Pushdown, ability
from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines

ROWS = pa.table(
    {
        "sequence_id": ["a", "b", "c", "d"],
        "task": ["pick", None, "place", "pick"],
        "reward": pa.array([1.5, None, -2.0, 40.0], pa.float32()),
        "action": pa.array([[[1, 2], [3, 4]], None, [], [[5, 6]]], pa.list_(pa.list_(pa.float32()))),
        "embedding": pa.array([[1, 2, 3], [4, 5, 6], None, [7, 8, 9]], pa.list_(pa.float32())),
    }
)
TYPES = {"action": sl.Trajectory(dim=2), "embedding": sl.Embedding(dim=3)}


def by_pyarrow(path: Path) -> None:
    pq.write_table(ROWS, path)


def by_pyarrow_fixed(path: Path) -> None:
    table = ROWS.set_column(3, "action", ROWS.column("action").cast(pa.list_(pa.list_(pa.float32(), 2))))
    pq.write_table(table, path, compression="none", use_dictionary=False)


def by_pyarrow_large(path: Path) -> None:
    large = pa.schema(
        [
            ("sequence_id", pa.large_string()),
            ("task", pa.dictionary(pa.int32(), pa.string())),
            ("reward", pa.float32()),
            ("action", pa.large_list(pa.large_list(pa.float32()))),
            ("embedding", pa.large_list(pa.float32())),
        ]
    )
    pq.write_table(
        pa.table([column.cast(field.type) if field.name != "task" else column.dictionary_encode()
                  for column, field in zip(ROWS.columns, large, strict=True)], schema=large),
        path, data_page_version="2.0", compression="zstd",
    )  # fmt: skip


def by_duckdb(path: Path) -> None:
    with duckdb.connect() as db:
        db.register("rows", ROWS)
        db.execute(f"COPY rows TO '{path}' (FORMAT parquet)")


def by_polars(path: Path) -> None:
    pl.from_arrow(ROWS).write_parquet(path)


WRITERS = [by_pyarrow, by_pyarrow_fixed, by_pyarrow_large, by_duckdb, by_polars]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("as_file", [True, False])
def test_files_of_every_engine_are_read_alike(tmp_path: Path, write, as_file: bool) -> None:
    path = tmp_path / "part.parquet"
    write(path)
    rows = sl.scan(path if as_file else tmp_path, column_types=TYPES)
    table = rows.to_arrow()
    assert table.schema == rows.schema.arrow
    assert table.to_pydict() == ROWS.to_pydict()
    assert rows.lengths("action").tolist() == [2, -1, 0, 1]
    np.testing.assert_array_equal(rows["d"]["action"], np.array([[5, 6]], np.float32), strict=True)
    np.testing.assert_array_equal(rows["d"]["embedding"], np.array([7, 8, 9], np.float32), strict=True)
    assert rows.where("reward > 0 AND task = 'pick'").to_arrow().column(0).to_pylist() == ["a", "d"]
    query = "SELECT sequence_id, list_extract(action, 1)[1] FROM dataset WHERE len(action) > 0 ORDER BY 1"
    assert rows.sql(query).fetchall() == [("a", 1.0), ("d", 5.0)]


def test_files_of_several_engines_make_one_folder(tmp_path: Path) -> None:
    for number, write in enumerate(WRITERS):
        write(tmp_path / f"part-{number}.parquet")
    rows = sl.scan(tmp_path, column_types=TYPES)
    assert rows.to_arrow().to_pydict() == pa.concat_tables([ROWS] * len(WRITERS)).to_pydict()


def test_every_engine_reads_a_selection_again_and_again() -> None:
    rows = sl.scan(ROWS, column_types=TYPES).where("reward IS NOT NULL")
    expected = ROWS.filter(pc.is_valid(ROWS.column("reward"))).to_pydict()
    for _ in range(2):
        assert pa.table(rows).to_pydict() == expected
        frame = pl.DataFrame(rows)
        assert frame.schema["action"] == pl.List(pl.Array(pl.Float32, 2))
        assert frame["sequence_id"].to_list() == expected["sequence_id"]
        assert frame["action"].to_list()[0] == expected["action"][0]
        found = duckdb.sql("SELECT sequence_id, reward FROM rows ORDER BY reward").fetchall()
        assert found == [("c", -2.0), ("a", 1.5), ("d", 40.0)]
        if hasattr(pd.DataFrame, "from_arrow"):
            assert pd.DataFrame.from_arrow(rows)["reward"].tolist() == expected["reward"]
        assert rows.to_polars().equals(frame)
        assert rows.to_pandas()["task"].tolist() == expected["task"]


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.to_pandas(), pl.from_arrow, lambda t: t.to_pydict()])
def test_tables_in_memory_are_scanned(make) -> None:
    table = ROWS.select(["sequence_id", "task", "reward"])
    rows = sl.scan(make(table))
    assert rows.where("reward > 0").to_arrow().column("sequence_id").to_pylist() == ["a", "d"]
    assert rows.schema.id == "sequence_id"
    assert rows["b"]["task"] is None


def test_folders_named_key_value_give_columns(tmp_path: Path) -> None:
    with duckdb.connect() as db:
        db.register("rows", ROWS.append_column("year", pa.array([2023, 2024, 2024, 2023])))
        db.execute(f"COPY rows TO '{tmp_path / 'out'}' (FORMAT parquet, PARTITION_BY (task, year))")
    rows = sl.scan(tmp_path / "out")
    found = {view.id: (view["task"], view["year"]) for view in rows}
    assert found == {"a": ("pick", 2023), "b": (None, 2024), "c": ("place", 2024), "d": ("pick", 2023)}
    assert rows.where("year = 2024").sql("SELECT count(*) FROM dataset").fetchall() == [(2,)]


def test_files_that_disagree_are_refused_by_file_and_column(tmp_path: Path) -> None:
    by_pyarrow(tmp_path / "a.parquet")
    pq.write_table(ROWS.set_column(2, "reward", ROWS.column("reward").cast(pa.float64())), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match=r"'reward' is float in a\.parquet and double in b\.parquet"):
        sl.scan(tmp_path)
    pq.write_table(ROWS.drop_columns(["task"]), tmp_path / "b.parquet")
    with pytest.raises(SchemaMismatchError, match=r"'task' is string in a\.parquet and missing in b\.parquet"):
        sl.scan(tmp_path)
    pq.write_table(ROWS.select(["action", "task", "embedding", "reward", "sequence_id"]), tmp_path / "b.parquet")
    assert sl.scan(tmp_path).to_arrow().to_pydict() == pa.concat_tables([ROWS, ROWS]).to_pydict()


@pytest.mark.parametrize("layout", ["training", "archive"])
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("encoding", [None, "raw"])
def test_list_extract_answers_the_same_on_every_layout(tmp_path: Path, layout: str, fixed: bool, encoding: str) -> None:
    schema = sl.Schema({"reward": pa.float32(), "action": sl.Trajectory(dim=2, encoding=encoding)})
    ds = sl.create(tmp_path / "arm", schema)
    ds.append(ROWS.select(["sequence_id", "reward", "action"]), layout=layout, fixed_size_inner=fixed)
    ds = sl.open(tmp_path / "arm")
    query = "SELECT sequence_id, list_extract(action, 1)[1] FROM dataset WHERE len(action) > 0 ORDER BY 1"
    assert ds.sql(query).fetchall() == [("a", 1.0), ("d", 5.0)]
    assert ds.where("list_extract(action, 1)[1] > 2").to_arrow().column("sequence_id").to_pylist() == ["d"]
    assert ds.to_arrow().column("action").to_pylist() == ROWS.column("action").to_pylist()
    np.testing.assert_array_equal(ds["a"]["action"], np.array([[1, 2], [3, 4]], np.float32), strict=True)
    assert ds["b"]["action"] is None
    assert ds["c"]["action"].shape == (0, 2)
    assert pl.DataFrame(ds)["action"].to_list() == ROWS.column("action").to_pylist()


def test_a_scan_outlives_the_threads_that_read_it(tmp_path: Path) -> None:
    """One of Arrow's threads that is the last to let go of Python's file system ends a process that is about to end."""
    ds = sl.create(tmp_path / "ds", sl.Schema({"task": pa.string()}))
    ds.append([{"sequence_id": "a", "task": "pick"}])

    def scanned() -> weakref.ref[object]:
        offer = ability(ds.source, Pushdown)
        assert offer is not None
        dataset = offer.arrow_dataset()
        assert dataset.to_table().num_rows == 1
        return weakref.ref(dataset.filesystem.handler)

    first = scanned()
    gc.collect()
    assert first() is not None
    others = [scanned() for _ in range(20)]
    gc.collect()
    assert first() is None, "not for ever"
    assert others[-1]() is not None
