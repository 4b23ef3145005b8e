"""The contract of a table plug: a suite to inherit, and the few rows it is run with.

```python
class TestIceberg(TableTests):
    @pytest.fixture
    def table(self, tmp_path):
        return iceberg.create(str(tmp_path / "t"), tables.SCHEMA)
```
"""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from seqlake import protocols
from seqlake.abilities import OfALake, ability
from seqlake.conversion.convert import convert
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.reshaping import compact
from seqlake.dataset.statistics import statistics
from seqlake.errors import CommitConflictError, DuplicateSequenceError, SeqlakeError, VersionNotFoundError
from seqlake.protocols import Change
from seqlake.spec.column_types import Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.processes import elsewhere
from seqlake.testing.shards import flat_is
from seqlake.testing.strict import Strict
from seqlake.training.loader import Loader
from seqlake.versions import shard_formats
from seqlake.versions.shard_formats import PARQUET
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from seqlake.protocols import Readable, Shard, Transaction, Version, Written

SCHEMA = Schema({"reward": pa.float32(), "label": pa.string(), "action": Trajectory(dim=2)})


def episode(sequence_id: str, /) -> dict[str, Any]:
    """One row, the same for the same id: some rewards are null, some actions null or empty."""
    seed = sum(sequence_id.encode())
    steps = seed % 5
    action = None if seed % 7 == 0 else [[float(seed + step), float(step)] for step in range(steps)]
    return {
        "sequence_id": sequence_id,
        "reward": None if seed % 3 == 0 else float(seed),
        "label": f"label of {sequence_id}",
        "action": action,
    }


def batch(rows: Iterable[Mapping[str, Any]], schema: Schema, /) -> pa.RecordBatch:
    """Rows as a batch of the schema's logical types; what a row lacks is null."""
    listed = list(rows)
    arrays = [pa.array([row.get(field.name) for row in listed], field.type) for field in schema.arrow]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def format_of(table: Any, /) -> str:
    """The format that shards of a table have: the lake's, or Parquet."""
    lake = ability(table, OfALake)
    return PARQUET if lake is None else lake.shard_format


def write(table: Any, transaction: Transaction, rows: Iterable[Mapping[str, Any]], /, *, n: str = "0") -> Written:
    """Stage one shard of a transaction."""
    schema = table.snapshot().schema
    kind = format_of(table)
    writer = shard_formats.plug(kind).create(
        Path(table.place(transaction, {}, n=n, format=kind)), schema, layout="training"
    )
    writer.write(batch(rows, schema))
    return writer.close()


def append(table: Any, ids: Iterable[str], /, *, operation: str = "append", remove: Sequence[str] = ()) -> Version:
    """Commit the episodes of these ids in one shard."""
    transaction = table.begin()
    written = write(table, transaction, map(episode, ids))
    change = Change(operation=operation, add=[written], remove=tuple(remove))
    version: Version = table.commit(change, transaction=transaction)
    return version


def rows_of(readable: Readable, /) -> dict[str, dict[str, Any]]:
    """All rows by id, through `batches`."""
    rows: dict[str, dict[str, Any]] = {}
    for shard in readable.shards():
        for row in rows_of_shard(shard, list(readable.schema.names)):
            assert row["sequence_id"] not in rows, f"{row['sequence_id']} stands twice"
            rows[row["sequence_id"]] = row
    return rows


def rows_of_shard(shard: Shard, columns: Sequence[str], /, **options: Any) -> list[dict[str, Any]]:
    """The rows of one shard, as dicts."""
    return [row for part in one_shard(shard, columns, **options) for row in part.to_pylist()]


def expected(ids: Iterable[str], /) -> dict[str, dict[str, Any]]:
    """The rows that `append` committed for these ids."""
    return {one: episode(one) for one in ids}


def keys(readable: Readable, /) -> list[str]:
    """The keys of all shards, in order."""
    return [shard.key for shard in readable.shards()]


class TableTests:
    """The laws of a table; a plug's tests inherit them and give `table`, empty and made with `SCHEMA`."""

    @pytest.fixture
    def table(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def reopened(self, table: Any) -> Any:
        """The same table, as another process would open it."""
        return pickle.loads(pickle.dumps(table))

    # ---- writing
    def test_a_shard_has_a_place_for_its_format(self, table: Any) -> None:
        """Parquet where no other is asked for, if it has such; none for formats that nobody knows."""
        transaction, kind = table.begin(), format_of(table)
        place = table.place(transaction, {}, n="0", format=kind)
        assert kind != PARQUET or place == table.place(transaction, {}, n="0")
        with pytest.raises(ValueError, match="'wool'"):
            table.place(transaction, {}, n="0", format="wool")

    # ---- reading
    def test_an_empty_table_has_its_schema_and_no_rows(self, table: Any) -> None:
        snapshot = table.snapshot()
        assert snapshot.schema.arrow == SCHEMA.arrow
        assert snapshot.schema.metadata == SCHEMA.metadata
        assert rows_of(snapshot) == {}
        assert len(snapshot.lengths("action")) == 0

    def test_rows_come_back_value_for_value(self, table: Any, reopened: Any) -> None:
        ids = [f"ep_{number}" for number in range(9)]
        append(table, ids[:5])
        append(table, ids[5:])
        assert rows_of(table.snapshot()) == expected(ids)
        assert rows_of(reopened.snapshot()) == expected(ids)

    def test_counts_agree(self, table: Any) -> None:
        append(table, [f"a{number}" for number in range(7)])
        append(table, [f"b{number}" for number in range(4)])
        snapshot = table.snapshot()
        lengths = snapshot.lengths("action")
        batches = sum(len(rows_of_shard(shard, ["sequence_id"])) for shard in snapshot.shards())
        assert sum(shard.rows for shard in snapshot.shards()) == len(lengths) == batches == 11
        assert all(shard.nbytes > 0 for shard in snapshot.shards())

    def test_lengths_are_those_of_the_cells(self, table: Any) -> None:
        ids = [f"ep_{number}" for number in range(20)]
        append(table, ids)
        rows = rows_of(table.snapshot())
        lengths = [-1 if row["action"] is None else len(row["action"]) for row in rows.values()]
        assert table.snapshot().lengths("action").tolist() == lengths
        assert {-1, 0} < set(lengths)

    def test_flat_and_batches_give_equal_cells(self, table: Any) -> None:
        append(table, [f"ep_{number}" for number in range(20)])
        for shard in table.snapshot().shards():
            reader = shard.open()
            flat = reader.flat("action")
            assert flat is not None
            assert flat_is(flat, pa.Table.from_batches(list(reader.batches(["action"])))["action"])

    def test_rows_may_be_asked_for_in_any_order(self, table: Any) -> None:
        append(table, [f"ep_{number}" for number in range(12)])
        order = np.random.default_rng(0).permutation(12).astype(np.int64)
        for shard in table.snapshot().shards():
            everything = rows_of_shard(shard, ["sequence_id", "action"])
            assert rows_of_shard(shard, ["sequence_id", "action"], rows=order) == [everything[row] for row in order]

    def test_a_shard_opens_in_a_fresh_process(self, table: Any) -> None:
        append(table, ["ep_1", "ep_2"])
        (shard,) = table.snapshot().shards()
        assert elsewhere(_first_ids, pickle.dumps(shard)) == ["ep_1", "ep_2"]

    def test_shards_are_the_same_each_time_and_have_keys_of_their_own(self, table: Any, reopened: Any) -> None:
        for number in range(3):
            append(table, [f"ep_{number}"])
        snapshot = table.snapshot()
        assert keys(snapshot) == keys(snapshot) == keys(reopened.snapshot())
        assert len(set(keys(snapshot))) == 3
        assert all("#" in key for key in keys(snapshot))

    def test_a_fingerprint_changes_with_the_rows_and_with_nothing_else(self, table: Any, reopened: Any) -> None:
        append(table, ["ep_1"])
        before = table.snapshot().fingerprint
        assert reopened.snapshot().fingerprint == before
        table.vacuum(older_than=timedelta(days=7))
        assert table.snapshot().fingerprint == before
        append(table, ["ep_2"])
        assert table.snapshot().fingerprint != before

    # ---- versions
    def test_versions_are_oldest_first(self, table: Any) -> None:
        for number in range(3):
            append(table, [f"ep_{number}"])
        versions = table.versions()
        assert [version.rows for version in versions] == [0, 1, 2, 3]
        assert [version.time for version in versions] == sorted(version.time for version in versions)

    def test_a_version_stays_what_it_was(self, table: Any) -> None:
        first = append(table, ["a", "b"])
        pinned = table.snapshot(first)
        before = (rows_of(pinned), keys(pinned), pinned.fingerprint)
        append(table, ["c"])
        append(table, ["a"], operation="rewrite", remove=keys(pinned))
        table.vacuum(older_than=timedelta(days=7))
        for again in (pinned, table.snapshot(first), table.snapshot(first.id)):
            assert (rows_of(again), keys(again), again.fingerprint) == before
        assert rows_of(table.snapshot()) == expected(["a", "c"])

    def test_a_version_is_found_by_time(self, table: Any) -> None:
        first = append(table, ["a"])
        second = append(table, ["b"])
        assert table.snapshot(first.time).version.id == first.id
        assert table.snapshot(datetime.now(UTC)).version.id == second.id
        with pytest.raises(VersionNotFoundError):
            table.snapshot(datetime(2001, 1, 1, tzinfo=UTC))

    def test_an_unknown_version_is_refused(self, table: Any) -> None:
        for version in (99, "99", "never"):
            with pytest.raises(VersionNotFoundError):
                table.snapshot(version)

    def test_a_rollback_is_a_new_version_with_the_old_rows(self, table: Any) -> None:
        first = append(table, ["a", "b"])
        append(table, ["b"], operation="rewrite", remove=keys(table.snapshot()))
        append(table, ["c"])
        back = table.rollback(first)
        assert back.rows == 2
        assert rows_of(table.snapshot()) == expected(["a", "b"])
        assert len(table.versions()) == 5

    # ---- writing
    def test_what_is_discarded_was_never_there(self, table: Any) -> None:
        append(table, ["a"])
        before = table.snapshot().fingerprint
        transaction = table.begin()
        write(table, transaction, [episode("b")])
        table.discard(transaction)
        assert table.snapshot().fingerprint == before

    def test_an_id_is_there_once(self, table: Any) -> None:
        append(table, ["a", "b"])
        before = (table.snapshot().fingerprint, table.versions())
        with pytest.raises(DuplicateSequenceError, match="'b'"):
            append(table, ["c", "b"])
        assert (table.snapshot().fingerprint, table.versions()) == before

    def test_an_id_stands_once_among_new_rows(self, table: Any) -> None:
        transaction = table.begin()
        written = [write(table, transaction, [episode("a")], n=n) for n in "01"]
        with pytest.raises(DuplicateSequenceError, match="'a'"):
            table.commit(Change(operation="append", add=written), transaction=transaction)
        assert rows_of(table.snapshot()) == {}

    def test_a_removed_id_may_return(self, table: Any) -> None:
        append(table, ["a"])
        append(table, ["b"], operation="rewrite", remove=keys(table.snapshot()))
        append(table, ["a"])
        assert rows_of(table.snapshot()) == expected(["a", "b"])

    def test_appends_that_began_together_are_both_there(self, table: Any, reopened: Any) -> None:
        one, two = table.begin(), reopened.begin()
        first, second = write(table, one, [episode("a")]), write(reopened, two, [episode("b")])
        table.commit(Change(operation="append", add=[first]), transaction=one)
        reopened.commit(Change(operation="append", add=[second]), transaction=two)
        assert rows_of(table.snapshot()) == expected(["a", "b"])

    def test_an_id_that_a_rival_added_is_a_conflict(self, table: Any, reopened: Any) -> None:
        one, two = table.begin(), reopened.begin()
        first, second = write(table, one, [episode("a")]), write(reopened, two, [episode("a"), episode("b")])
        table.commit(Change(operation="append", add=[first]), transaction=one)
        with pytest.raises(CommitConflictError, match="'a'"):
            reopened.commit(Change(operation="append", add=[second]), transaction=two)
        assert rows_of(table.snapshot()) == expected(["a"])

    def test_of_two_rewrites_of_one_shard_one_wins(self, table: Any, reopened: Any) -> None:
        append(table, ["a", "b"])
        (key,) = keys(table.snapshot())
        one, two = table.begin(), reopened.begin()
        first, second = write(table, one, [episode("a")]), write(reopened, two, [episode("b")])
        table.commit(Change(operation="delete", add=[first], remove=[key]), transaction=one)
        with pytest.raises(CommitConflictError):
            reopened.commit(Change(operation="delete", add=[second], remove=[key]), transaction=two)
        assert rows_of(table.snapshot()) == expected(["a"])

    def test_a_delete_without_new_shards(self, table: Any) -> None:
        append(table, ["a"])
        append(table, ["b"])
        transaction = table.begin()
        change = Change(operation="delete", remove=keys(table.snapshot())[:1])
        table.commit(change, transaction=transaction)
        assert rows_of(table.snapshot()) == expected(["b"])

    def test_a_new_column_reads_null_in_old_rows(self, table: Any) -> None:
        append(table, ["a"])
        schema = table.snapshot().schema.with_columns({"split": pa.string()})
        transaction = table.begin()
        table.commit(Change(operation="evolve", schema=schema), transaction=transaction)
        assert table.snapshot().schema.arrow == schema.arrow
        assert rows_of(table.snapshot())["a"] == {**episode("a"), "split": None}

    def test_a_commit_that_raises_changes_nothing(self, table: Any) -> None:
        append(table, ["a"])
        before = (table.snapshot().fingerprint, len(table.versions()))
        transaction = table.begin()
        written = write(table, transaction, [episode("b")])
        change = Change(operation="rewrite", add=[written], remove=["nobody.parquet#0"])
        with pytest.raises((SeqlakeError, ValueError, LookupError)):
            table.commit(change, transaction=transaction)
        assert (table.snapshot().fingerprint, len(table.versions())) == before

    def test_collected_versions_are_gone_and_the_newest_is_not(self, table: Any) -> None:
        first = append(table, ["a"])
        append(table, ["b"], operation="rewrite", remove=keys(table.snapshot()))
        listed = table.vacuum(older_than=timedelta(0), dry_run=True)
        assert rows_of(table.snapshot(first)) == expected(["a"])
        removed = table.vacuum(older_than=timedelta(0))
        assert set(listed) <= set(removed)
        assert removed
        with pytest.raises(VersionNotFoundError):
            table.snapshot(first)
        assert rows_of(table.snapshot()) == expected(["b"])

    def test_derived_bytes_are_kept_by_name(self, table: Any, reopened: Any) -> None:
        assert table.read_derived("statistics-1") is None
        table.write_derived("statistics-1", b"one")
        table.write_derived("statistics-1", b"two")
        assert reopened.read_derived("statistics-1") == b"two"

    def test_nobody_asks_for_more_than_the_protocol(self, table: Any, tmp_path: Path) -> None:
        """A dataset is changed, read, trained on and converted over a proxy that lets nothing else through."""
        seen = Strict(table, protocols.Table)
        ds = Dataset(seen, seen.snapshot(), location=table.root)
        ds.append([episode(f"ep_{number}") for number in range(12)])
        ds.add_column("half", pa.float32(), sql="reward / 2")
        ds.rename_column("half", "less", rewrite=True)
        ds.upsert([{"sequence_id": "ep_0", "less": 1.5}, {"sequence_id": "new", "reward": 3.0}])
        ds.delete(ids=["ep_1"])
        assert ds["ep_0"]["less"] == 1.5
        assert len(ds.where("sequence_id LIKE 'ep%'")) == 11
        assert ds.sql("SELECT count(*) FROM dataset").fetchall() == [(12,)]
        assert statistics(ds, ["action"]).rows == 12
        steps = int(np.maximum(ds.lengths("action"), 0).sum())
        loader = Loader(ds, window=Window({"action": range(1)}), batch_size=1)
        assert sum(len(batch["action"]) for batch in loader) == steps
        converted = convert(ds, tmp_path / "converted", progress=False)
        assert converted is not None
        assert converted.to_arrow().num_rows == 12
        before = ds.version.id
        compact(ds)
        ds.rollback(before)
        ds.adopt()
        ds.vacuum(older_than=timedelta(0))
        assert ds.validate(depth="files").ok
        assert rows_of(table.snapshot()).keys() == {row.id for row in ds}


def _first_ids(pickled: bytes) -> list[str]:
    return [row["sequence_id"] for row in rows_of_shard(pickle.loads(pickled), ["sequence_id"])]
