"""What readers are asked for, against the plainest way to do it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.errors import SchemaMismatchError
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
