"""What readers are asked for, against the plainest way to do it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.errors import SchemaMismatchError
from seqlake.files.stores import LocalStore
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.reading import read_in_parts, runs_of


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 20), st.none() | st.integers(1, 4))
def test_runs_are_as_long_as_they_may_be(nbytes, most_bytes, most_rows):
    expected: list[list[int]] = []
    for row, size in enumerate(nbytes):
        held = sum(nbytes[one] for one in expected[-1]) if expected else 0
        if not expected or held + size > most_bytes or (most_rows is not None and len(expected[-1]) >= most_rows):
            expected.append([])
        expected[-1].append(row)
    rows = np.arange(len(nbytes)) + 5
    runs = list(runs_of(rows, np.array(nbytes, np.int64), most_bytes=most_bytes, most_rows=most_rows))
    assert [(run - 5).tolist() for run in runs] == expected


def test_batches_hold_what_was_asked_for() -> None:
    types = pa.schema({"a": pa.int64(), "b": pa.int64()})

    def read(columns, rows=None):
        return read_in_parts(
            columns,
            rows,
            types=types,
            count=5,
            parts=lambda wanted: [wanted[:2], wanted[2:]],
            arrays=lambda schema, part: [pa.array(part * (10 if name == "b" else 1)) for name in schema.names],
            path="somewhere",
        )

    batches = list(read(["b", "a"], np.array([4, 0, 4])))
    assert [batch.to_pydict() for batch in batches] == [{"b": [40, 0], "a": [4, 0]}, {"b": [40], "a": [4]}]
    assert [(batch.num_rows, batch.num_columns) for batch in read([])] == [(5, 0)]
    with pytest.raises(SchemaMismatchError, match="No column 'c' here"):
        list(read(["c"]))
    with pytest.raises(IndexError, match="rows of 0 to 4"):
        list(read(["a"], np.array([5])))


def test_footers_of_many_files_are_read_side_by_side(tmp_path):
    """Before Python 3.12 a `cached_property` has one lock for all objects: each file waited for the one before it."""
    both = threading.Barrier(2, timeout=20)

    class Slow:
        """A file of a store whose first answer comes only when another file is asked, too."""

        def __init__(self, blob):
            self.blob, self.waited = blob, False
            self.location, self.size, self.token = blob.location, blob.size, blob.token

        def view(self):
            return None

        def ranges(self, starts, stops, /):
            if not self.waited:
                self.waited = True
                both.wait()
            return self.blob.ranges(starts, stops)

    readers = []
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / name)
        readers.append(ParquetReader(Slow(LocalStore(tmp_path).blob(name))))
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda reader: reader.rows, readers)) == [3, 3]
