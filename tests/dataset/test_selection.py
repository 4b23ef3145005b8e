"""Selections as sequences, as sources and as descriptions, against the Arrow table they come from."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.dataset.reading import streaming
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.errors import SequenceNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 23
STEPS = [number % 4 for number in range(COUNT)]
TABLE = pa.table(
    {
        "sequence_id": [f"ep_{number:03}" for number in range(COUNT)],
        "number": pa.array(range(COUNT), pa.int64()),
        "action": pa.array(
            [None if n == 5 else [[n + t, -n] for t in range(STEPS[n])] for n in range(COUNT)],
            pa.list_(pa.list_(pa.float32())),
        ),
    }
)


def write(path: Path, table: pa.Table = TABLE, *, files: int = 4) -> Path:
    path.mkdir()
    size = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * size, size), path / f"part-{number}.parquet", row_group_size=3)
    return path


@pytest.fixture
def rows(tmp_path: Path) -> sl.Selection:
    return sl.scan(write(tmp_path / "plain"), column_types={"action": sl.Trajectory(dim=2)})


def numbers(selection: sl.Selection) -> list[int]:
    return selection.to_arrow().column("number").to_pylist()


def test_length_indexing_and_iteration(rows: sl.Selection) -> None:
    assert len(rows) == COUNT
    assert [view["number"] for view in rows] == list(range(COUNT))
    assert rows[0].id == "ep_000"
    assert rows[-1].id == f"ep_{COUNT - 1:03}"
    assert rows[np.int64(7)]["number"] == 7
    assert rows["ep_011"].index == 11
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=str(COUNT)):
            rows[wrong]
    with pytest.raises(TypeError):
        rows[1.5]
    with pytest.raises(SequenceNotFoundError, match="nobody"):
        rows["nobody"]
    with pytest.raises(KeyError):
        rows.sequence("nobody")


@pytest.mark.parametrize(
    "cut", [slice(3, 9), slice(None, None, 5), slice(-4, None), slice(None, None, -1), slice(20, 4, -3), slice(9, 3)]
)
def test_slices_are_python_slices_in_every_view(rows: sl.Selection, cut: slice) -> None:
    expected = list(range(COUNT))[cut]
    chosen = rows[cut]
    assert len(chosen) == len(expected)
    assert numbers(chosen) == expected
    assert [view["number"] for view in chosen] == expected
    assert [view.index for view in chosen] == list(range(len(expected)))
    assert chosen.lengths("action").tolist() == [-1 if n == 5 else STEPS[n] for n in expected]
    assert sum(shard.rows for shard in chosen.shards()) == len(expected)
    assert chosen.select("number").to_polars()["number"].to_list() == expected


def test_selections_of_selections(rows: sl.Selection) -> None:
    chosen = rows.where("number % 2 = 0")[2:].where("number < 15").select("number", "sequence_id")[::-1]
    assert chosen.schema.names == ["number", "sequence_id"]
    assert numbers(chosen) == [14, 12, 10, 8, 6, 4]
    assert chosen.where(ids=["ep_012", "ep_004"]).to_arrow().to_pydict() == {
        "number": [12, 4],
        "sequence_id": ["ep_012", "ep_004"],
    }
    nested = sl.Selection(chosen, rows=np.array([1, 2]))
    assert numbers(nested) == [12, 10]
    assert nested.sequence("ep_010").index == 1
    with pytest.raises(SequenceNotFoundError, match="not in this selection"):
        chosen.sequence("ep_013")


def test_where_ids_keeps_the_order_of_the_dataset_and_misses_nothing_silently(rows: sl.Selection) -> None:
    assert numbers(rows.where(ids=["ep_009", "ep_001", "ep_009"])) == [1, 9]
    assert numbers(rows.where("number > 3", ids=pa.array(["ep_009", "ep_001"]))) == [9]
    assert numbers(rows.where(ids="ep_007")) == [7]
    assert len(rows.where(ids=[])) == 0
    with pytest.raises(SequenceNotFoundError, match=r"1 of 2 .*'nobody'"):
        rows.where(ids=["ep_001", "nobody"])
    with pytest.raises(SequenceNotFoundError):
        rows[:3].where(ids=["ep_003"])


def test_shards_without_selected_rows_vanish_and_whole_ones_stay_themselves(rows: sl.Selection) -> None:
    every = rows.shards()
    first = every[0].rows
    chosen = rows[: first + 1].shards()
    assert [shard.rows for shard in chosen] == [first, 1]
    assert chosen[0].key == every[0].key
    assert chosen[1].key != every[1].key
    assert len({shard.key for shard in rows[::-1].shards()}) == len(every)


def test_streams_are_lazy_and_can_be_opened_again(rows: sl.Selection) -> None:
    stream = pa.RecordBatchReader.from_stream(rows)
    assert stream.schema == rows.schema.arrow
    first = stream.read_next_batch()
    assert 0 < first.num_rows < COUNT
    assert pa.table(rows).num_rows == COUNT
    assert pa.table(rows) == pa.table(rows)
    assert pa.schema(rows) == rows.schema.arrow


def test_batches_are_cut_to_fit_their_offsets(rows: sl.Selection, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows.to_arrow()
    monkeypatch.setattr(streaming, "_LEAVES", 100)
    batches = list(pa.RecordBatchReader.from_stream(rows))
    assert len(batches) > len(rows.shards())
    assert all(batch.nbytes <= 100 or batch.num_rows == 1 for batch in batches)
    assert pa.Table.from_batches(batches).equals(expected)


def test_temporal_columns_show_their_declared_width(rows: sl.Selection) -> None:
    assert rows.schema.arrow.field("action").type == pa.list_(pa.list_(pa.float32(), 2))
    assert rows.to_arrow().column("action").to_pylist() == TABLE.column("action").to_pylist()


@pytest.mark.parametrize("condition", [lambda row: row["number"] > 3, np.ones(3, bool), 7])
def test_a_condition_that_is_no_text_says_what_to_write(rows: sl.Selection, condition: object) -> None:
    with pytest.raises(TypeError, match=r"A condition is text in SQL.*where\(ids="):
        rows.where(condition)
    with pytest.raises(TypeError, match="A query is text in SQL"):
        rows.sql(condition)


def test_pandas_leaves_signals_out_unless_asked(rows: sl.Selection) -> None:
    assert list(rows.to_pandas().columns) == ["sequence_id", "number"]
    frame = rows.to_pandas(signals="numpy")
    assert list(frame.columns) == TABLE.column_names
    assert frame["action"][5] is None
    assert frame["action"][7].shape == (3, 2)
    np.testing.assert_array_equal(frame["action"][7], np.array([[7 + t, -7] for t in range(3)], np.float32))
    named = rows.select("action", "number").to_pandas()
    assert list(named.columns) == ["action", "number"]
    np.testing.assert_array_equal(named["action"][7], frame["action"][7])
    assert list(rows.where("number > 3").to_pandas().columns) == ["sequence_id", "number"]


def test_fingerprints_follow_the_rows_not_the_text_of_a_condition(tmp_path: Path) -> None:
    place = write(tmp_path / "plain")
    rows = sl.scan(place)
    again = sl.scan(place)
    assert rows.fingerprint == again.fingerprint
    assert rows.where("number > 3").fingerprint == again.where("NOT number <= 3").fingerprint
    assert rows.where("true").fingerprint == rows.fingerprint

    changed = TABLE.set_column(1, "number", pa.array([*range(COUNT - 1), 99]))
    others = [
        sl.scan(write(tmp_path / "changed", changed)),
        sl.scan(write(tmp_path / "swapped", TABLE.take([1, 0, *range(2, COUNT)]))),
        sl.scan(write(tmp_path / "renamed", TABLE.rename_columns(["sequence_id", "n", "action"]))),
        sl.scan(place, column_types={"action": sl.Trajectory(dim=2)}),
        rows[1:],
        rows[:-1],
        rows[::-1],
        rows.where("number <> 7"),
        rows.select("sequence_id", "number"),
        rows.select("number", "sequence_id"),
    ]
    prints = [rows.fingerprint, *[other.fingerprint for other in others]]
    assert len(set(prints)) == len(prints)


def test_a_copied_dataset_keeps_its_fingerprints(tmp_path: Path) -> None:
    schema = sl.Schema({"number": pa.int64(), "action": sl.Trajectory(dim=2)})
    ds = sl.create(tmp_path / "original", schema)
    ds.append(TABLE)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    original, copy = sl.open(tmp_path / "original"), sl.open(tmp_path / "copy")
    assert copy.fingerprint == original.fingerprint
    assert copy.where("number > 3").fingerprint == original.where("number > 3").fingerprint
    copy.update([{"sequence_id": "ep_004", "number": 99}])
    assert sl.open(tmp_path / "copy").fingerprint != original.fingerprint


def test_a_selection_pickles_as_a_description(rows: sl.Selection) -> None:
    chosen = rows.where("number > 10").select("number", "action")
    assert numbers(chosen) == list(range(11, COUNT))
    chosen[0]["action"]  # opens a reader, which stays behind
    data = pickle.dumps(chosen)
    again = pickle.loads(data)
    assert numbers(again) == numbers(chosen)
    assert again.fingerprint == chosen.fingerprint
    assert len(data) < 60_000


def test_threads_share_a_selection(rows: sl.Selection) -> None:
    def visit(number: int) -> tuple[int, int]:
        view = rows.sequence(f"ep_{number:03}")
        steps = view["action"]
        return view["number"], -1 if steps is None else len(steps)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(visit, list(range(COUNT)) * 20))
    assert found == [(n, -1 if n == 5 else STEPS[n]) for n in range(COUNT)] * 20


def test_select_names_what_is_missing(rows: sl.Selection) -> None:
    with pytest.raises(KeyError, match="number"):
        rows.select("numbr")


def test_rows_without_ids_are_samples() -> None:
    samples = sl.scan({"x": [1, 2, 3]})
    assert samples.schema.id is None
    assert samples.where("x > 1")[0].id == "1"
    with pytest.raises(SequenceNotFoundError, match="without ids"):
        samples.sequence("1")


def test_old_names_of_plumbing_still_work_and_warn(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "old", sl.Schema({"n": pa.int64()}))
    ds.append([{"sequence_id": name, "n": 1} for name in "abc"])
    chosen = ds.where(ids=["a", "c"]).select("n")
    for name, use, wanted in (
        ("pinned", lambda member: len(member()), 2),
        ("with_id", lambda member: member().schema.names, ["sequence_id", "n"]),
        ("find_ids", lambda member: member(["c", "b"]).tolist(), [1, -1]),
        ("index_of", lambda member: member(2), 1),
        ("access", lambda member: member.row_of("c"), 2),
        ("check", lambda member: list(member("metadata")), []),
    ):
        with pytest.warns(DeprecationWarning, match=f"Selection.{name} is called .* now"):
            member = getattr(chosen, name)
        assert use(member) == wanted
    with pytest.warns(DeprecationWarning, match=r"Dataset\.open_for_changes is called"):
        ds.open_for_changes()


def test_lengths_are_those_of_the_selected_rows_in_their_order(tmp_path):
    ds = sl.create(tmp_path / "arm", {"action": sl.Trajectory(dim=2)})
    for shard in range(3):
        ds.append([{"sequence_id": f"{shard}-{n}", "action": np.zeros((10 * shard + n + 1, 2))} for n in range(4)])
    rows = np.array([9, 1, 8, 0, 11])
    excerpt = Excerpt(ds.table.snapshot(), rows=rows)
    assert excerpt.lengths("action").tolist() == [22, 2, 21, 1, 24]
    assert excerpt.lengths("action").tolist() == ds.table.snapshot().lengths("action")[rows].tolist()
    assert Excerpt(ds.table.snapshot(), rows=rows[:0]).lengths("action").tolist() == []
