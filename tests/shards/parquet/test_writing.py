"""What the writer takes, refuses, splits and reports."""

from __future__ import annotations

import io
import resource
import subprocess
import sys
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.stores import MemoryBlob, open_blob
from seqlake.shards import ids, parquet
from seqlake.shards.parquet import index, writer
from seqlake.shards.parquet.footer import read_footer
from seqlake.spec.column_types import Image, Trajectory
from seqlake.spec.schema import Schema
from seqlake.testing.shards import flat_is

SCHEMA = Schema({"reward": pa.float32(), "action": Trajectory(dim=2)})


def write(path, *batches, schema=SCHEMA, **options):
    writer = parquet.create(path, schema, **options)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def batch(**columns):
    return pa.record_batch(columns)


def test_what_close_says(tmp_path):
    path = tmp_path / "x.parquet"
    said = write(
        path,
        batch(sequence_id=["b", "a"], reward=[1.0, None], action=[[[1, 2]], None]),
        batch(sequence_id=["c"], reward=[-2.0], action=[[]]),
    )
    assert (said.location, said.rows, said.nbytes) == (str(path), 3, path.stat().st_size)
    assert (said.partition, said.files, said.references) == ({}, (), ())
    assert said.statistics == {"sequence_id": ("a", "c", 0), "reward": (-2.0, 1.0, 1)}
    hashes, rows = ids.unpack(said.ids)
    assert np.array_equal(hashes, np.sort(hashes))
    assert np.array_equal(ids.hash_ids(pa.array(["b", "a", "c"]))[rows], hashes)
    assert index.decode(said.index).lengths("action").tolist() == [1, -1, 0]
    start, length = (int(word) for word in pq.read_metadata(path).metadata[b"seqlake.offsets"].split()[1:3])
    assert path.read_bytes()[start : start + length] == said.index


def test_the_index_lies_between_the_last_row_group_and_the_page_index(tmp_path):
    write(tmp_path / "x.parquet", batch(sequence_id=["a"], reward=[1.0], action=[[[1, 2]]]))
    blob = open_blob(tmp_path / "x.parquet")
    footer = read_footer(blob)
    start, length = (int(word) for word in footer.metadata.metadata[b"seqlake.offsets"].split()[1:3])
    last = max(chunk.stop for group in footer.chunks for chunk in group)
    footer_start = blob.size - 8 - int.from_bytes(bytes(blob.view()[-8:-4]), "little")
    assert last == start
    assert start + length < footer_start  # page index and Bloom filter lie between


def test_no_rows_at_all(tmp_path):
    said = write(tmp_path / "x.parquet", pa.RecordBatch.from_pylist([], SCHEMA.arrow))
    assert (said.rows, said.ids) == (0, b"")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0
    reader = parquet.open(open_blob(tmp_path / "x.parquet"))
    assert list(reader.batches(["action"])) == []
    flat = reader.flat("action")
    assert (flat.start.size, flat.shape) == (0, (2,))


def test_row_groups_close_at_decoded_bytes_and_long_cells_have_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.shards.parquet.layout.ROW_GROUP", 1000)
    lengths = [10, 10, 10, 500, 10, 10, 200]
    cells = [np.arange(2 * n, dtype=np.float32).reshape(n, 2).tolist() for n in lengths]
    names = [str(i) for i in range(len(lengths))]
    write(tmp_path / "x.parquet", batch(sequence_id=names, reward=pa.array([0.0] * 7, pa.float32()), action=cells))
    metadata = pq.read_metadata(tmp_path / "x.parquet")
    groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert sum(groups) == 7
    assert groups[:2] == [3, 1]
    reader = parquet.open(open_blob(tmp_path / "x.parquet"))
    assert flat_is(reader.flat("action"), pq.read_table(tmp_path / "x.parquet")["action"])


def test_a_cell_over_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.shards.parquet.layout.LARGEST_CELL", 1000)
    writer = parquet.create(tmp_path / "x.parquet", SCHEMA)
    long = np.zeros((200, 2), np.float32).tolist()
    with pytest.raises(ValidationError, match="row 1 of this batch") as caught:
        writer.write(batch(sequence_id=["a", "b"], action=[[[1, 2]], long]))
    assert "segment" in str(caught.value)
    writer.write(batch(sequence_id=["a", "b"], action=[[[1, 2]] * 100] * 2))  # many bytes together, but no long cell
    assert writer.close().rows == 2


def test_a_long_cell_is_measured_as_it_is_stored(tmp_path, monkeypatch):
    """Parquet keeps int8 in four bytes."""
    monkeypatch.setattr("seqlake.shards.parquet.layout.LARGEST_CELL", 1000)
    writer = parquet.create(tmp_path / "x.parquet", Schema({"action": Trajectory(dim=2, dtype=pa.int8())}))
    with pytest.raises(ValidationError, match="found 1600"):
        writer.write(batch(sequence_id=["a"], action=[[[1, 2]] * 200]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"sequence_id": ["a"], "acton": [[[1.0, 2.0]]]}, "acton"),
        ({"sequence_id": ["a"], "action": [[[1.0, 2.0], [3.0]]]}, "'action'"),
        ({"sequence_id": ["a"], "action": [[[1.0, 2.0, 3.0]]]}, "'action'"),
        ({"sequence_id": ["a"], "action": [["x"]]}, "'action'"),
        ({"sequence_id": ["a"], "action": [1.0]}, "'action'"),
        ({"sequence_id": ["a"], "reward": ["high"]}, "'reward'"),
        ({"sequence_id": ["a", None]}, "'sequence_id'"),
        ({"reward": [1.0]}, "'sequence_id'"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path, columns, message):
    writer = parquet.create(tmp_path / "x.parquet", SCHEMA)
    with pytest.raises(SchemaMismatchError, match=message):
        writer.write(batch(**columns))
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_written_in_large_pieces(tmp_path, monkeypatch):
    """The system keeps those in large pages."""
    pieces = []

    class File(io.FileIO):
        def write(self, data):
            pieces.append(len(data))
            return super().write(data)

    monkeypatch.setattr(writer, "new_file", lambda path: pa.PythonFile(File(path, "wb"), "w"))
    steps = np.random.default_rng(0).random((100, 1000, 48), dtype=np.float32)
    cells = pa.FixedSizeListArray.from_arrays(pa.array(steps.reshape(-1)), 48)
    lists = pa.LargeListArray.from_arrays(np.arange(0, 100_001, 1000), cells)
    schema = Schema({"action": Trajectory(dim=48)})
    path = tmp_path / "x.parquet"
    written = parquet.create(path, schema)
    for _ in range(4):
        written.write(batch(sequence_id=[str(i) for i in range(100)], action=lists))
    written.close()
    assert sum(pieces) == path.stat().st_size > 70 << 20
    assert sum(size for size in pieces if size >= 8 << 20) > 0.8 * sum(pieces)


def test_abort_after_a_row_group_removes_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("seqlake.shards.parquet.layout.ROW_GROUP", 10)
    writer = parquet.create(tmp_path / "x.parquet", SCHEMA)
    writer.write(batch(sequence_id=["a", "b"], action=[[[1, 2]], [[1, 2]]]))
    assert writer.nbytes > 0
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_while_closing_leaves_nothing(tmp_path, monkeypatch):
    writer = parquet.create(tmp_path / "x.parquet", SCHEMA)
    writer.write(batch(sequence_id=["a"], action=[[[1, 2]]]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index, "encode", full)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OSError, match="No space"):
            writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_real_full_disk():
    """Through the operating system: a file size limit in a child process."""
    code = """
import resource, signal, sys, tempfile, pathlib
import numpy as np, pyarrow as pa
from seqlake.shards import parquet
from seqlake.shards.parquet import layout
from seqlake.spec.schema import Schema
from seqlake.spec.column_types import Trajectory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "x.parquet")
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    layout.ROW_GROUP = 20_000
    writer = parquet.create(path, Schema({"action": Trajectory(dim=2)}))
    try:
        for i in range(50):
            cell = np.zeros((500, 2), np.float32).tolist()
            writer.write(pa.record_batch({"sequence_id": [str(i)], "action": [cell]}))
        writer.close()
    except OSError as error:
        writer.abort()
        print(type(error).__name__, list(pathlib.Path(folder).iterdir()))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "OSError []", done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("layout", ["Training", "", "columnar"])
def test_an_unknown_layout(tmp_path, layout):
    with pytest.raises(ValueError, match="'training' or 'archive'"):
        parquet.create(tmp_path / "x.parquet", SCHEMA, layout=layout)


def test_other_arrow_forms_are_taken(tmp_path):
    schema = Schema({"task": pa.string(), "action": Trajectory(dim=2), "cam": Image(frames="bytes")})
    write(
        tmp_path / "x.parquet",
        batch(
            sequence_id=pa.array(["a"], pa.large_string()),
            task=pa.array(["pick"]).dictionary_encode(),
            action=pa.array([[[1.0, 2.0]]], pa.large_list(pa.large_list(pa.float64()))),
            cam=pa.array([[b"x"]], pa.large_list(pa.large_binary())),
        ),
        batch(
            sequence_id=pa.array(["b"], pa.string_view()),
            action=pa.array([[[3, 4]]], pa.list_(pa.list_(pa.int16(), 2))),
        ),
        schema=schema,
    )
    found = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert found == [
        {"sequence_id": "a", "task": "pick", "action": [[1.0, 2.0]], "cam": [b"x"]},
        {"sequence_id": "b", "task": None, "action": [[3.0, 4.0]], "cam": None},
    ]


def test_bounds_that_are_not_known_are_none(tmp_path):
    schema = Schema(
        {"nan": pa.float64(), "long": pa.string(), "none": pa.int32(), "flag": pa.bool_(), "kind": pa.binary()}
    )
    said = write(
        tmp_path / "x.parquet",
        batch(
            sequence_id=["a", "b"],
            nan=[1.0, float("nan")],
            long=["x" * 100, "y"],
            flag=[True, False],
            kind=[b"1", b"2"],
        ),
        schema=schema,
    )
    assert said.statistics["nan"] == (None, None, 0)
    assert said.statistics["long"] == (None, None, 0)
    assert said.statistics["none"] == (None, None, 2)
    assert said.statistics["flag"] == (False, True, 0)


def test_layouts_on_disk(tmp_path):
    rows = batch(sequence_id=[str(i) for i in range(50)], action=[np.zeros((400, 2), np.float32).tolist()] * 50)
    for layout, codec, encoding in (("training", "UNCOMPRESSED", "PLAIN"), ("archive", "ZSTD", "BYTE_STREAM_SPLIT")):
        write(tmp_path / layout, rows, layout=layout)
        group = pq.read_metadata(tmp_path / layout).row_group(0)
        action = group.column(2)
        assert (action.compression, action.has_dictionary_page, action.is_stats_set) == (codec, False, False)
        assert encoding in action.encodings
        assert (group.column(0).compression, group.column(0).is_stats_set) == ("ZSTD", True)
        assert all(group.column(i).has_offset_index for i in range(3))
        assert getattr(group.column(0), "bloom_filter_offset", 0) is not None  # of which pyarrow before 25 says nothing
    assert (tmp_path / "archive").stat().st_size < (tmp_path / "training").stat().st_size / 20


def test_many_small_batches_are_joined(tmp_path):
    writer = parquet.create(tmp_path / "x.parquet", SCHEMA)
    for i in range(1500):
        writer.write(batch(sequence_id=[str(i)], reward=pa.array([i], pa.float32()), action=[[[i, -i]] * (i % 3)]))
    assert writer.close().rows == 1500
    truth = pq.read_table(tmp_path / "x.parquet")
    assert truth["sequence_id"].to_pylist() == [str(i) for i in range(1500)]
    assert truth["action"].to_pylist() == [[[i, -i]] * (i % 3) for i in range(1500)]
    assert flat_is(parquet.open(open_blob(tmp_path / "x.parquet")).flat("action"), truth["action"])
    assert pq.read_metadata(tmp_path / "x.parquet").num_row_groups == 1


@pytest.mark.parametrize("names", [("a.b", "a"), ("list.element", "list"), ("ä ö/…", 'say "hi"'), ("A", "a")])
def test_odd_names(tmp_path, names):
    one, two = names
    schema = Schema({one: Trajectory(dim=2), two: pa.struct([("b", pa.int32()), ("element", pa.string())])})
    cells = {one: [[[1, 2]], None], two: [{"b": 1, "element": "x"}, None]}
    write(tmp_path / "x.parquet", batch(sequence_id=["a", "b"], **cells), schema=schema)
    reader = parquet.open(open_blob(tmp_path / "x.parquet"))
    assert reader.flat(one) is not None
    for columns in ([one], [two], [two, one]):
        assert pa.Table.from_batches(reader.batches(columns)).to_pydict() == {name: cells[name] for name in columns}
        reader.flat = lambda name: None
        assert pa.Table.from_batches(reader.batches(columns)).to_pydict() == {name: cells[name] for name in columns}
        del reader.flat


def test_memory_stays_bounded(tmp_path):
    """400 MB through a writer take a few row groups of memory, not their own size."""
    rows = np.zeros((2500, 100), np.float32)
    cell = pa.ListArray.from_arrays(
        pa.array([0, 2500], pa.int32()), pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 100)
    )
    writer = parquet.create(tmp_path / "x.parquet", Schema({"action": Trajectory(dim=100)}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(400):
        writer.write(pa.record_batch({"sequence_id": [str(i)], "action": cell}))
    said = writer.close()
    assert said.rows == 400
    assert said.nbytes > 350_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 380_000  # kB: less than was written


class RemoteBlob(MemoryBlob):
    """Bytes that can only be had by range; counts the requests."""

    requests: list[tuple[int, int]]

    def __init__(self, data):
        super().__init__(data)
        self.requests = []

    def view(self):
        return None

    def ranges(self, starts, stops, /):
        self.requests.append((len(starts), int((stops - starts).sum())))
        return super().ranges(starts, stops)


def test_a_remote_file_is_read_by_range(tmp_path):
    cells = [np.random.default_rng(i).random((100, 2), np.float32).tolist() for i in range(200)]
    notes = [str(i) * 50 for i in range(200)]
    schema = Schema({"note": pa.string(), "action": Trajectory(dim=2), "other": Trajectory(dim=2)})
    write(
        tmp_path / "x.parquet",
        batch(sequence_id=[str(i) for i in range(200)], note=notes, action=cells, other=cells),
        schema=schema,
    )
    blob = RemoteBlob((tmp_path / "x.parquet").read_bytes())
    reader = parquet.open(blob)
    truth = pq.read_table(tmp_path / "x.parquet")
    assert flat_is(reader.flat("action"), truth["action"])
    assert sum(size for _, size in blob.requests[:6]) < 100_000
    blob.requests.clear()
    found = pa.Table.from_batches(reader.batches(["note", "action"]))
    assert found.equals(truth.select(["note", "action"]))
    assert sum(size for _, size in blob.requests) < blob.size  # only the columns asked for
    picked = pa.Table.from_batches(reader.batches(["sequence_id", "action"], rows=np.array([7, 3])))
    assert picked.equals(truth.select(["sequence_id", "action"]).take([7, 3]))
