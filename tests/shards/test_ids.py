from __future__ import annotations

from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqlake.shards import ids


@given(names=st.lists(st.text(max_size=8), unique=True, max_size=40))
def test_every_id_is_found_at_its_row(names):
    packed = ids.pack(pa.array(names, pa.string()))
    assert len(packed) == 12 * len(names)
    for row, name in enumerate(names):
        assert row in ids.find(packed, name)
    assert ids.find(packed, "not there at all").size == 0


def test_the_bytes_are_as_documented():
    names = ["ep_2", "ep_1", "ä/ö"]
    hashes = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in names]
    order = np.argsort(hashes)
    expected = b"".join(hashes[i].to_bytes(8, "little") for i in order) + b"".join(
        int(i).to_bytes(4, "little") for i in order
    )
    assert ids.pack(pa.array(names)) == expected
    assert ids.hash_ids(pa.chunked_array([names[:1], names[1:]])).tolist() == hashes


def test_equal_ids_are_all_found_in_row_order():
    assert ids.find(ids.pack(pa.array(["a", "b", "a", "a"])), "a").tolist() == [0, 2, 3]


def test_no_ids():
    assert ids.find(b"", "a").size == 0


def test_bytes_that_are_no_whole_rows():
    with pytest.raises(ValueError, match="12 bytes a row"):
        ids.unpack(b"x" * 13)
