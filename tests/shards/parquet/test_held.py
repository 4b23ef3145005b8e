"""Files in cells by their places: the bytes that pyarrow decodes, few bytes read for them, nothing believed unseen."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqlake.errors import SchemaMismatchError
from seqlake.files.blobs import MemoryBlob
from seqlake.shards.parquet.reader import ParquetReader

BYTES = pa.binary()
STRUCT = pa.struct({"bytes": pa.binary(), "path": pa.string()})
PLAIN = {"compression": "none", "use_dictionary": False, "write_page_index": True}


class Elsewhere:
    """Bytes of which only ranges can be had, counted."""

    location, token = "elsewhere", "one"

    def __init__(self, data: bytes) -> None:
        self.inner, self.size, self.read, self.asked = MemoryBlob(data), len(data), 0, 0

    def view(self) -> None:
        return None

    def ranges(self, starts, stops) -> list[memoryview]:
        parts = self.inner.ranges(starts, stops)
        self.read, self.asked = self.read + sum(map(len, parts)), self.asked + 1
        return parts


def written(cells: list, kind: pa.DataType = BYTES, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": range(len(cells)), "cam": pa.array(cells, kind)}), sink, **{**PLAIN, **options})
    return sink.getvalue()


def held(blob, rows) -> list | None:
    files = ParquetReader(blob).held("cam", np.asarray(rows, np.int64))
    if files is None:
        return None
    return [
        None if one is None else (one[0], bytes(one[1].ranges(np.array([0]), np.array([one[1].size]))[0]))
        for one in files
    ]


sizes = st.lists(st.one_of(st.none(), st.integers(0, 9), st.integers(200, 4000)), max_size=40)


@given(sizes, st.booleans(), st.sampled_from(["1.0", "2.0"]), st.integers(1, 50), st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_bytes_that_pyarrow_decodes(lengths, struct, version, group, data) -> None:
    rng = np.random.default_rng(len(lengths))
    raw = [None if one is None else rng.bytes(one) for one in lengths]
    names = [f"{number}.mp4" if number % 3 else None for number in range(len(raw))]
    cells = [{"bytes": one, "path": name} for one, name in zip(raw, names, strict=True)] if struct else raw
    file = written(
        cells,
        STRUCT if struct else pa.binary(),
        data_page_version=version,
        row_group_size=group,
        data_page_size=2000,
        write_batch_size=3,
    )
    rows = data.draw(st.lists(st.integers(0, len(raw) - 1), max_size=6) if raw else st.just([]))
    expected = [None if raw[row] is None else ((struct and names[row]) or "", raw[row]) for row in rows]
    if struct and None in expected:
        expected = None  # a name alone is a reference: the cell is decoded
    assert held(MemoryBlob(file), rows) == expected
    assert held(Elsewhere(file), rows) == expected


def test_of_a_large_cell_elsewhere_only_what_is_asked_for_is_read() -> None:
    cells = [np.random.default_rng(n).bytes(4 << 20) for n in range(4)]
    blob = Elsewhere(written(cells))
    reader = ParquetReader(blob)
    _, file = reader.held("cam", np.array([2]))[0]
    assert file.view() is None
    assert bytes(file.ranges(np.array([1000]), np.array([3000]))[0]) == cells[2][1000:3000]
    assert blob.read < 200_000  # the end of the file, the list of pages, a header: not 4 MiB
    before = blob.asked
    reader.held("cam", np.array([2]))
    assert blob.asked == before  # its place is known now
    small = Elsewhere(written([cells[0][:9000]] * 400))
    assert ParquetReader(small).held("cam", np.array([2])) is None  # better had together: one request a cell is slow


def test_each_cell_has_a_token_of_its_own_and_nobody_hashes_it() -> None:
    file = written([b"same", b"same", b"other"])
    for blob in (MemoryBlob(file, token="told"), Elsewhere(file)):
        tokens = [one[1].token for one in ParquetReader(blob).held("cam", np.arange(3))]
        assert len(set(tokens)) == 3
        assert tokens == [one[1].token for one in ParquetReader(blob).held("cam", np.arange(3))]
        assert all(blob.location in one for one in tokens)


@pytest.mark.parametrize("options", [{"compression": "zstd"}, {"use_dictionary": True}])
def test_what_does_not_lie_as_it_is_must_be_decoded(options) -> None:
    assert held(MemoryBlob(written([b"a" * 50] * 9, **options)), [1]) is None


def test_what_is_compared_when_read_is_decoded() -> None:
    blob = MemoryBlob(written([b"abc"]))
    assert ParquetReader(blob, verify=True).held("cam", np.array([0])) is None
    assert ParquetReader(blob).held("n", np.array([0])) is None
    with pytest.raises(SchemaMismatchError, match="cam2"):
        ParquetReader(blob).held("cam2", np.array([0]))
    with pytest.raises(IndexError):
        ParquetReader(blob).held("cam", np.array([1]))


def test_damage_gives_decoded_cells_or_bytes_within_the_page_and_never_others() -> None:
    cells = [bytes([number]) * 300 for number in range(20)]
    file, rng = written(cells, data_page_size=1000, write_batch_size=2), np.random.default_rng(3)
    start = file.index(cells[0]) - 60
    for at in rng.integers(start, start + 20 * 310, 150):
        torn = bytearray(file)
        torn[at] ^= 1 << rng.integers(8)
        for blob in (MemoryBlob(bytes(torn)), Elsewhere(bytes(torn))):
            files = held(blob, [0, 7, 19])
            assert files is None or all(one is None or len(one[1]) < 2000 for one in files)


def test_a_lying_page_index_is_not_believed(monkeypatch) -> None:
    cells = [bytes([number]) * 300 for number in range(20)]
    file = written(cells, data_page_size=1000, write_batch_size=2)
    truth = held(Elsewhere(file), range(20))
    assert [one[1] for one in truth] == cells
    chunk = ParquetReader(MemoryBlob(file)).footer.chunks[0][1]
    rng = np.random.default_rng(1)
    for at in range(*chunk.page_index):
        torn = bytearray(file)
        torn[at] = rng.integers(256)
        found = held(Elsewhere(bytes(torn)), range(20))
        assert found is None or found == truth
