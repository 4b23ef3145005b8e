"""Columns of encoded images in batches, against the arrays they were encoded from."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

import seqlake as sl
from seqlake.errors import CorruptFrameError, DamagedTableError, SchemaMismatchError
from seqlake.files.stores import open_store
from seqlake.training.cache import Cache
from seqlake.training.frames.clips import EncodedCells
from seqlake.training.opened import Opened

from ...media import clips  # noqa: TID252 - tests are no package that could be named
from ...media.test_image import jpeg, png, random  # noqa: TID252 - the same
from ..faulty import Proxy  # noqa: TID252 - the same

LENGTHS = [9, 0, 5, -1, 12]
TYPES = {
    "action": sl.Trajectory(dim=1),
    "png": sl.Image(fps=10),
    "jpeg": sl.Image(fps=10),
    "depth": sl.Image(fps=5),
}


def pixels(row: int, step: int) -> np.ndarray:
    return clips.picture(17 * row + step, 40, 30)


def depth(row: int, step: int) -> np.ndarray:
    return random((12, 16), "u2", 100 * row + step)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Five rows in two files: PNG and JPEG in the rows (the third PNG of each is missing), depth images as files."""
    root = tmp_path_factory.mktemp("pictures")
    columns = {name: [] for name in ("sequence_id", *TYPES)}
    for row, length in enumerate(LENGTHS):
        columns["sequence_id"].append(f"s{row}")
        columns["action"].append(None if length < 0 else [[float(k)] for k in range(length)])
        steps = range(max(length, 0))
        own = [png(pixels(row, step), 2) if step != 2 else None for step in steps]
        columns["png"].append(None if length < 0 else own)
        columns["jpeg"].append(None if length < 0 else [jpeg(pixels(row, step)) for step in steps])
        files = []
        for step in range(-(-max(length, 0) // 2)):
            files.append(f"depth/{row}-{step}.png")
            (root / "rows" / "depth").mkdir(exist_ok=True, parents=True)
            (root / "rows" / files[-1]).write_bytes(png(depth(row, step), 0))
        columns["depth"].append(files)
    steps, images = pa.list_(pa.list_(pa.float32())), pa.list_(pa.binary())
    kinds = [pa.string(), steps, images, images, pa.list_(pa.string())]
    table = pa.table({n: pa.array(v, kind) for (n, v), kind in zip(columns.items(), kinds, strict=True)})

    for number, (start, count) in enumerate([(0, 3), (3, 2)]):
        pq.write_table(table.slice(start, count), root / "rows" / f"{number}.parquet", row_group_size=1)
    return root / "rows"


@pytest.fixture
def rows(root):
    return sl.scan(root, column_types=TYPES)


def check(batch, edges):
    for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
        row = int(name[1:])
        length = max(LENGTHS[row], 0)
        for k, offset in enumerate((-1, 0, 1)):
            step = start + offset
            inside = 0 <= step < length
            near = min(max(step, 0), length - 1)
            assert bool(batch["png_mask"][place, k]) == (inside and step != 2)
            shown = (inside or edges == "clamp") and near != 2
            assert_array_equal(batch["png"][place, k], pixels(row, near) if shown else 0)
        step = start // 2
        assert bool(batch["depth_mask"][place, 0])
        assert_array_equal(batch["depth"][place, 0, ..., 0], depth(row, step))


@pytest.mark.parametrize("edges", ["pad", "clamp"])
@pytest.mark.parametrize("limit", ["1 GB", 0])
def test_windows_of_images_equal_the_arrays_they_were_made_of(rows, edges, limit):
    window = sl.Window({"png": range(-1, 2), "depth": [0]}, edges=edges)
    loader = sl.Loader(rows, window=window, batch_size=6, seed=2, cache=Cache(limit=limit)).tail("pad")
    seen = set()
    for batch in loader:
        assert batch["png"].dtype == np.uint8
        assert batch["depth"].dtype == np.uint16
        assert batch["depth"].shape[1:] == (1, 12, 16, 1)
        check(batch, edges)
        seen |= set(zip(batch["sequence_id"], batch["start"].tolist(), strict=True))
    assert seen == {(f"s{row}", t) for row, length in enumerate(LENGTHS) for t in range(length)}


def test_shards_are_read_once_while_there_is_room(rows, monkeypatch):
    asked = []
    real = EncodedCells._cells
    monkeypatch.setattr(EncodedCells, "_cells", lambda self, shard, own: (asked.append(own), real(self, shard, own))[1])
    for batch in sl.Loader(rows, window={"png": range(-1, 2), "depth": [0]}, batch_size=4, seed=1):
        check(batch, "pad")
    assert len(asked) == 4  # two columns, two shards
    assert all(own is None for own in asked)


def test_a_sequences_window_is_what_training_sees(rows):
    window = sl.Window({name: range(3) for name in ("action", "png", "jpeg", "depth")})
    for batch in sl.Loader(rows, window=window, batch_size=7, seed=4).tail("pad"):
        for place, (name, start) in enumerate(zip(batch["sequence_id"], batch["start"].tolist(), strict=True)):
            alone = rows[name].window(start, start + 3, columns=[*window.columns])
            for column, values in alone.items():
                assert_array_equal(batch[column][place], values)
    nothing = rows["s3"].window(0, 2, columns=["png", "depth"])
    assert nothing["png"].shape == (2, 30, 40, 3)
    assert not nothing["png_mask"].any()


def test_images_are_scaled_and_turned(rows):
    loader = sl.Loader(rows, window={"png": [0]}, batch_size=9, shuffle=False).frames(size=(15, 20), layout="TCHW")
    batch = next(iter(loader))
    assert batch["png"].shape == (9, 1, 3, 15, 20)
    halved = rows["s0"]["png"].decode([4], size=(15, 20))[0]
    assert_array_equal(batch["png"][4, 0].transpose(1, 2, 0), halved)


def test_whole_windows_and_lengths_by_images_alone(rows):
    dropped = sl.Loader(rows, window=sl.Window({"jpeg": range(4)}, edges="drop"), batch_size=1, shuffle=False)
    assert len(dropped) == (9 - 3) + (5 - 3) + (12 - 3)


def test_without_a_clock_columns_of_images_and_signals_go_together_if_they_are_alike(root):
    bare = sl.scan(root, column_types={"action": sl.Trajectory(dim=1), "png": sl.Image(), "depth": sl.Image()})
    batch = next(iter(sl.Loader(bare, window={"png": [0], "action": [0]}, batch_size=9, shuffle=False)))
    assert_array_equal(batch["png"][8, 0], pixels(0, 8))
    with pytest.raises(SchemaMismatchError, match="'depth'.*no clock"):
        len(sl.Loader(bare, window={"depth": [0], "action": [0]}, batch_size=1))


def test_rows_that_are_samples_hold_images_too(readable):
    schema = sl.Schema({"pic": sl.Image(frames="bytes"), "label": pa.int64()}, id=None)
    cells = [[png(pixels(row, step), 2) for step in range(3)] for row in range(5)]
    source = readable(schema, [{"pic": cell, "label": row} for row, cell in enumerate(cells)], shards=2, kind="arrow")
    for batch in sl.Loader(source, window={"pic": range(4), "label": None}, batch_size=2):
        assert source.asked == []
        for place, row in enumerate(batch["label"].tolist()):
            assert batch["pic_mask"][place].tolist() == [True, True, True, False]
            assert_array_equal(batch["pic"][place, :3], [pixels(row, step) for step in range(3)])


def scanned(root, cells, name="own"):
    (root / name).mkdir()
    kind = pa.list_(pa.binary())
    pq.write_table(pa.table({"sequence_id": ["a", "b"], "pic": pa.array(cells, kind)}), root / name / "a.parquet")
    return sl.scan(root / name, column_types={"pic": sl.Image(fps=10)})


def test_what_goes_wrong_is_named(tmp_path):
    good, other = png(pixels(0, 0), 2), png(clips.picture(1, 32, 16), 2)
    rows = scanned(tmp_path, [[good], [good, other]])
    loader = sl.Loader(rows, window={"pic": [0]}, batch_size=3, shuffle=False)
    with pytest.raises(SchemaMismatchError, match=r"Sequence 'b', column 'pic'.*16 high and 32 wide.*frames\(size="):
        next(iter(loader))
    assert next(iter(loader.frames(size=(8, 8))))["pic"].shape == (3, 1, 8, 8, 3)
    cut = scanned(tmp_path, [[good], [good[:-40]]], "cut")
    with pytest.raises(CorruptFrameError, match="Sequence 'b', column 'pic', frames 0 to 0"):
        list(sl.Loader(cut, window={"pic": [0]}, batch_size=2))
    (tmp_path / "gone").mkdir()
    table = pa.table({"sequence_id": ["a"], "pic": pa.array([["gone.png"]], pa.list_(pa.string()))})
    pq.write_table(table, tmp_path / "gone" / "a.parquet")
    gone = sl.scan(tmp_path / "gone", column_types={"pic": sl.Image(fps=10)})
    with pytest.raises(DamagedTableError, match=r"'pic'.*gone\.png"):
        next(iter(sl.Loader(gone, window={"pic": [0]}, batch_size=1)))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("in_memory", [True, False])
def test_images_of_remote_shards_come_through_the_shard_cache(root, s3_bucket, tmp_path, monkeypatch, in_memory):
    if not in_memory:
        monkeypatch.setattr(Opened, "take_room", lambda *_: False)
    put, sizes = open_store(s3_bucket.uri, storage=s3_bucket.storage), []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            put.put(f"rows/{path.relative_to(root)}", path)
            sizes += [path.stat().st_size] if path.suffix == ".parquet" else []
    with Proxy(s3_bucket.storage["endpoint"]) as proxy:
        storage = {**s3_bucket.storage, "endpoint": proxy.url}
        rows = sl.scan(f"{s3_bucket.uri}/rows", column_types=TYPES, storage=storage)
        window = {"png": range(-1, 2), "action": [0], "depth": [0]}
        loader = sl.Loader(rows, window=window, batch_size=6, seed=2, cache=Cache(tmp_path / "cache")).tail("pad")
        loader.plan()
        proxy.reset_counts()
        for _ in range(2):
            for batch in loader:
                check(batch, "pad")
        of_shards = [(path, span) for path, span in proxy.seen.elements() if path.endswith(".parquet")]
    assert len(of_shards) == 2  # small files come whole, each once
    assert loader.report().fetched.nbytes == sum(sizes)
    assert set(loader.report().nbytes) == {"cache"}
