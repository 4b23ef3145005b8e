"""The laws of every format that can be read: inherit `FormatTests` and name a dataset."""

from __future__ import annotations

import pickle
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from seqlake import protocols
from seqlake.abilities import SaysMapping, ability
from seqlake.conversion.convert import convert
from seqlake.dataset.opening import scan
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.validation import validate
from seqlake.errors import SchemaMismatchError
from seqlake.spec.alignment import own_rate
from seqlake.testing.processes import elsewhere
from seqlake.testing.shards import flat_is, identical
from seqlake.testing.strict import Strict
from seqlake.training.loader import Loader
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from seqlake.protocols import Ints, Readable, Shard

_WITH_STEPS = {"temporal", "frames"}


class FormatTests:
    """Inherit it, and define the fixture `source`.

    Example:
        ```python
        class TestMine(FormatTests):
            @pytest.fixture
            def source(self, tmp_path):
                write_mine(tmp_path)
                return mine.scan(str(tmp_path))
        ```
    """

    @pytest.fixture
    def source(self) -> Readable:
        """A dataset of the format with several rows; better with several shards, empty cells and nulls."""
        raise NotImplementedError("Define the fixture `source` in the test class.")

    def test_there_are_rows(self, source: Readable) -> None:
        """Laws about nothing would prove nothing."""
        assert sum(shard.rows for shard in source.shards()) > 1

    def test_batches_hold_all_rows_in_logical_types(self, source: Readable) -> None:
        """The rows of all batches are the rows of the shard, in the schema's Arrow types."""
        for shard in source.shards():
            table = read(shard, source.schema.names)
            assert table.num_rows == shard.rows
            assert table.schema.equals(source.schema.arrow)

    def test_each_column_alone_is_the_same(self, source: Readable) -> None:
        """Only what is named is read, and it does not depend on what else is."""
        for shard in source.shards():
            whole = read(shard, source.schema.names)
            for name in source.schema.names:
                alone = read(shard, [name])
                assert alone.column_names == [name]
                assert equal(alone[name], whole[name]), name

    def test_no_columns_still_count_rows(self, source: Readable) -> None:
        """Batches without columns have the rows all the same."""
        for shard in source.shards():
            reader = shard.open()
            assert sum(batch.num_rows for batch in reader.batches([])) == shard.rows
            reader.close()

    def test_rows_give_the_permutation(self, source: Readable) -> None:
        """`batches(rows=p)` is row p[0], then p[1], ...; repeats and none at all are allowed."""
        names = source.schema.names
        for shard in source.shards():
            whole = read(shard, names)
            backwards = np.arange(shard.rows, dtype=np.int64)[::-1].copy()
            for rows in (backwards, np.repeat(backwards[:2], 2), backwards[:0]):
                table = read(shard, names, rows=rows)
                assert table.num_rows == len(rows)
                for name in names:
                    assert equal(table[name], whole[name].take(pa.array(rows))), name

    def test_lengths_are_those_of_the_cells(self, source: Readable) -> None:
        """`lengths` is T of every row, -1 for null; as many as there are rows."""
        shards = source.shards()
        for name in source.schema.names:
            if source.schema[name].category in _WITH_STEPS:
                lengths = source.lengths(name)
                assert lengths.dtype == np.int64
                assert len(lengths) == sum(shard.rows for shard in shards)
                read_all = [steps(read(shard, [name])[name]) for shard in shards]
                np.testing.assert_array_equal(lengths, np.concatenate(read_all))

    def test_lengths_of_columns_without_steps_are_refused(self, source: Readable) -> None:
        """So are those of columns that are not there."""
        scalars = [name for name in source.schema.names if source.schema[name].category == "scalar"]
        for name in (*scalars, "no such column here"):
            with pytest.raises(SchemaMismatchError):
                source.lengths(name)

    def test_flat_and_batches_agree(self, source: Readable) -> None:
        """Both ways to read a column give the same values, bit for bit."""
        for shard in source.shards():
            with closing(shard.open()) as reader:
                for name in source.schema.names:
                    flat = reader.flat(name)
                    if flat is not None:
                        assert flat_is(flat, read(shard, [name])[name]), name

    def test_shards_are_the_same_twice(self, source: Readable) -> None:
        """Order and keys are stable, and no two keys are equal."""
        first, second = ([(s.key, s.rows, s.nbytes) for s in source.shards()] for _ in range(2))
        assert first == second
        assert len({key for key, _, _ in first}) == len(first)

    def test_source_survives_pickling(self, source: Readable) -> None:
        """A copy reads the same rows and has the same fingerprint."""
        again = pickle.loads(pickle.dumps(source))
        assert again.fingerprint == source.fingerprint
        assert again.schema == source.schema
        assert [shard.key for shard in again.shards()] == [shard.key for shard in source.shards()]

    def test_shards_open_in_a_fresh_process(self, source: Readable) -> None:
        """A pickled shard opens in a process that shares nothing with this one."""
        names = source.schema.names
        tables = elsewhere(read_all, list(source.shards()), names)
        for shard, table in zip(source.shards(), tables, strict=True):
            here = read(shard, names)
            for name in names:
                assert equal(table[name], here[name]), name

    def test_ids_are_unique(self, source: Readable) -> None:
        """Where rows are sequences, each has an id of its own that is not empty."""
        name = source.schema.id
        if name is not None:
            ids = [value for shard in source.shards() for value in read(shard, [name])[name].to_pylist()]
            assert len(set(ids)) == len(ids)
            assert all(ids)

    def test_the_mapping_names_columns_that_are_there_once(self, source: Readable) -> None:
        """What a source says of itself: no column is named twice, none is invented; ids and times of ours need none."""
        known = ability(source, SaysMapping)
        assert known is not None, "a format says what of the source became which column: SaysMapping"
        things = known.mapping()
        named = [one.column for one in things if one.column is not None]
        assert named, "it says nothing"
        assert len(set(named)) == len(named), named
        assert set(named) <= set(source.schema.names), set(named) - set(source.schema.names)
        assert all(one.source for one in things)
        assert all(one.how for one in things if one.column is None), "what is left out says why"
        assert pickle.loads(pickle.dumps(list(things))) == list(things)

    def test_unknown_columns_are_refused(self, source: Readable) -> None:
        """A name that is not there is an error that says so."""
        reader = source.shards()[0].open()
        with pytest.raises(SchemaMismatchError, match="no such column here"):
            list(reader.batches(["no such column here"]))

    def test_rows_that_are_not_there_are_refused(self, source: Readable) -> None:
        """Numbers below 0 do not count from the end; one behind the last row is an error too."""
        shard = source.shards()[0]
        for missing in (-1, shard.rows):
            for columns in (source.schema.names[:1], source.schema.names, []):
                with pytest.raises(IndexError, match="row"):
                    read(shard, columns, rows=np.array([0, missing], np.int64))

    def test_nobody_asks_for_more_than_the_protocol(self, source: Readable, tmp_path: Path) -> None:
        """Validation, SQL, a loader and conversion run over a proxy that lets nothing else through."""
        seen = scan(Strict(source, protocols.Readable))
        schema, rows = seen.schema, sum(shard.rows for shard in source.shards())
        assert seen.to_arrow().num_rows == rows
        assert seen.sql("SELECT count(*) FROM dataset").fetchall() == [(rows,)]
        assert validate(seen, depth="rows").findings == validate(scan(source), depth="rows").findings
        name = next((name for name in schema.names if schema[name].category == "temporal"), None)
        if name is not None:
            window = Window({name: range(1)}, clock=own_rate(schema[name]) or 1)  # rows may last less than a second
            assert name in next(iter(Loader(seen, window=window, batch_size=1)))
        if schema.id is not None:
            converted = convert(seen, tmp_path / "converted", progress=False)
            assert converted is not None
            assert len(converted) == rows


def read(shard: Shard, columns: Sequence[str], /, *, rows: Ints | None = None) -> pa.Table:
    """Columns of a shard as one table."""
    batches = list(one_shard(shard, list(columns), rows=rows))
    if batches:
        return pa.Table.from_batches(batches)
    return pa.table({name: pa.array([], pa.null()) for name in columns})


def read_all(shards: Sequence[Shard], columns: Sequence[str], /) -> list[pa.Table]:
    """Columns of several shards; runs in the fresh process."""
    return [read(shard, columns) for shard in shards]


def steps(cells: pa.ChunkedArray, /) -> Ints:
    """[rows] the lengths of list cells, -1 for null."""
    lengths: Any = pc.fill_null(pc.list_value_length(cells), -1)
    return np.asarray(lengths.to_numpy(), np.int64)


def equal(left: pa.ChunkedArray, right: pa.ChunkedArray, /) -> bool:
    """The same cells; numbers by their bits, so that a NaN equals the same NaN."""
    return len(left) == len(right) == 0 or identical(left, right)
