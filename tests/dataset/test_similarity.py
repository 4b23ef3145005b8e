"""Nearest vectors and near-duplicates against numpy on all of them at once, however they are stored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.similarity import vectors as lying
from seqlake.errors import SchemaMismatchError, SequenceNotFoundError
from seqlake.executors.processes import Processes

DIM = 16


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, DIM)).astype(np.float32)
    vectors[17] = vectors[3] * 2  # the same direction
    vectors[41] = vectors[5] + 1e-4
    return vectors


@pytest.fixture(params=["flat", "beside", "archive", "memory"])
def ds(request, vectors, tmp_path):
    """Vectors in the shard, beside it, compressed, and in memory; one null, one zero, one not finite."""
    ids = [f"ep_{n:02d}" for n in range(len(vectors))]
    cells = [None if n == 7 else row for n, row in enumerate(vectors)]
    cells[8] = np.zeros(DIM, np.float32)
    cells[9] = np.full(DIM, np.nan, np.float32)
    if request.param == "memory":
        lists = pa.array([None if cell is None else cell.tolist() for cell in cells], pa.list_(pa.float32()))
        return sl.scan(pa.table({"sequence_id": ids, "v": lists}))
    schema = {"n": pa.int64()} | ({} if request.param == "beside" else {"v": sl.Embedding(dim=DIM)})
    ds = sl.create(tmp_path / "ds", sl.Schema(schema))
    layout = "archive" if request.param == "archive" else "training"
    with ds.writer(rows_per_shard=25, layout=layout) as writer:
        for n, key in enumerate(ids):
            writer.add(key, n=n, **({} if request.param == "beside" else {"v": cells[n]}))
    if request.param == "beside":
        ds.add_column("v", sl.Embedding(dim=DIM), values=dict(zip(ids, cells, strict=True)))
    return ds


def expected(vectors, like, metric):
    whole = vectors.astype(np.float64)
    if metric == "l2":
        scores = np.linalg.norm(whole - like, axis=1)
        order = np.argsort(scores, kind="stable")
    else:
        scores = whole @ like
        if metric == "cosine":
            scores = scores / (np.linalg.norm(whole, axis=1) * np.linalg.norm(like))
        order = np.argsort(-scores, kind="stable")
    return [n for n in order if n not in {7, 8, 9}], scores


@pytest.mark.sampled
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_nearest_is_that_of_numpy(ds, vectors, metric) -> None:
    like = np.random.default_rng(1).normal(size=DIM)
    order, scores = expected(vectors, like, metric)
    near = [one for one in sl.nearest(ds, "v", like, k=12, metric=metric) if one.row != 8]
    assert [one.row for one in near][:10] == order[:10]
    assert np.allclose([one.score for one in near], scores[[one.row for one in near]], atol=1e-5)
    assert all(one.sequence_id == f"ep_{one.row:02d}" for one in near)
    assert len(sl.nearest(ds, "v", like, k=1000, metric="cosine")) == 57


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("block", [1, 700, 1 << 20])
@pytest.mark.parametrize("step", [1, 3])
def test_however_vectors_are_cut_into_blocks(kind, block, step, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lying, "_BLOCK", block)  # of which one vector may be more, or many less
    monkeypatch.setattr(lying, "_ROWS", 70)
    vectors = np.random.default_rng(3).normal(size=(200, 23)).astype(kind)
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=23, dtype=np.dtype(kind).name)}))
    with ds.writer(rows_per_shard=90) as writer:
        for n, row in enumerate(vectors):
            writer.add(f"ep_{n:03d}", v=row)
    searched, rows = (ds, vectors) if step == 1 else (ds[::step], vectors[::step])
    like = vectors[11].astype(np.float64)
    near = sl.nearest(searched, "v", like, k=9, metric="dot")
    scores = rows.astype(np.float64) @ like
    assert [one.row for one in near] == np.argsort(-scores, kind="stable")[:9].tolist()
    assert np.allclose([one.score for one in near], np.sort(scores)[::-1][:9])


def test_like_a_sequence_and_of_some_rows(ds) -> None:
    assert sl.nearest(ds, "v", "ep_03", k=2)[0].sequence_id == "ep_17"
    some = ds[10:50]
    assert sl.nearest(some, "v", ds["ep_05"]["v"], k=1)[0].sequence_id == "ep_41"
    assert sl.nearest(some, "v", ds["ep_05"]["v"], k=1)[0].row == 31
    assert sl.nearest(ds[7:8], "v", np.ones(DIM)) == []


def test_many_at_once_are_each_by_itself(ds, vectors) -> None:
    asked = np.random.default_rng(2).normal(size=(5, DIM))
    for metric in ("cosine", "dot", "l2"):
        single = [sl.nearest(ds, "v", one, k=7, metric=metric) for one in asked]
        assert sl.nearest(ds, "v", asked, k=7, metric=metric) == single
    assert sl.nearest(ds, "v", ["ep_03", "ep_05"], k=3) == [sl.nearest(ds, "v", key, k=3) for key in ("ep_03", "ep_05")]
    assert sl.nearest(ds[7:8], "v", asked) == [[]] * 5


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16"])
def test_every_type_and_ties_in_the_order_of_rows(tmp_path, dtype) -> None:
    """Equal vectors, and some that float32 cannot tell apart but float64 can."""
    rng = np.random.default_rng(3)
    base = (rng.normal(size=(40, 8)) * 50).astype(dtype)
    whole = np.concatenate([base, base[::-1], base])
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=8, dtype=dtype)}))
    with ds.writer(rows_per_shard=50) as writer:
        for n, row in enumerate(whole):
            writer.add(f"{n:03d}", v=row)
    for metric in ("cosine", "dot", "l2"):
        for like in (rng.normal(size=8), np.full(8, 1e-3), base[4].astype(np.float64)):
            _, scores = expected(whole, like, metric)
            ranked = np.round(scores if metric == "l2" else -scores, 9)
            near = sl.nearest(ds, "v", like, k=120, metric=metric)
            assert [one.row for one in near] == np.lexsort((np.arange(120), ranked)).tolist()
            assert near[:11] == sl.nearest(ds, "v", like, k=11, metric=metric)
            assert np.allclose([one.score for one in near], scores[[one.row for one in near]], rtol=1e-9, atol=1e-9)


@pytest.mark.sampled
@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e25, 3e37])
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_very_small_and_very_large_numbers(tmp_path, size, metric) -> None:
    """Squares that float32 has no room for, beside numbers as they usually are."""
    rng = np.random.default_rng(4)
    whole = rng.normal(size=(30, 4)).astype(np.float32)
    whole[::2] = (whole[::2] * size).astype(np.float32)
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=4)}))
    ds.append([{"sequence_id": f"{n}", "v": row} for n, row in enumerate(whole)])
    for like in (rng.normal(size=4), rng.normal(size=4) * size):
        _, scores = expected(whole, like, metric)
        order = np.argsort(scores if metric == "l2" else -scores, kind="stable")
        assert [one.row for one in sl.nearest(ds, "v", like, k=6, metric=metric)] == order[:6].tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("block", [7, 4096])
def test_duplicates_are_all_pairs_above_the_threshold(ds, vectors, monkeypatch, block) -> None:
    monkeypatch.setattr("seqlake.dataset.similarity.pairs.ROWS", block)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.triu(unit @ unit.T, 1)
    cosines[[7, 8, 9]] = cosines[:, [7, 8, 9]] = 0
    for threshold in (0.5, 0.999):
        pairs = sl.duplicates(ds, "v", threshold=threshold, on=Processes(workers=1))
        assert {pair.rows for pair in pairs} == {*map(tuple, np.argwhere(cosines >= threshold).tolist())}
        assert all(np.isclose(pair.score, cosines[pair.rows], atol=1e-5) for pair in pairs)
    assert {(pair.sequence_id, pair.other_id) for pair in pairs} == {("ep_03", "ep_17"), ("ep_05", "ep_41")}
    assert len(sl.duplicates(ds, "v", threshold=-1, most=5, on=Processes(workers=1))) == 5


def test_on_processes(vectors, tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=DIM)}))
    ds.append([{"sequence_id": f"{n}", "v": row} for n, row in enumerate(vectors)])
    assert sl.duplicates(ds, "v", workers=2) == sl.duplicates(ds, "v", on=Processes(workers=1))


def test_wrong_arguments(ds, tmp_path) -> None:
    with pytest.raises(SequenceNotFoundError, match="no sequence has this id"):
        sl.nearest(ds, "v", "nobody")
    with pytest.raises(SequenceNotFoundError, match="is null"):
        sl.nearest(ds, "v", "ep_07")
    with pytest.raises(SchemaMismatchError, match=r"expected vectors of 3 numbers.*found 16"):
        sl.nearest(ds, "v", [1, 2, 3])
    with pytest.raises(SchemaMismatchError, match=r"Expected a column of vectors"):
        sl.nearest(ds, "sequence_id", [1, 2, 3])
    for wrong in ([np.nan] * DIM, [], [[1.0], [2.0, 3.0]], np.zeros((1, 1, DIM)), None, {"v": 1}, ["ep_03", 4], b"ep"):
        with pytest.raises(ValueError, match=r"Expected a vector .*found"):
            sl.nearest(ds, "v", wrong)
    with pytest.raises(ValueError, match="finite"):
        sl.nearest(ds, "v", [np.nan] * DIM)
    with pytest.raises(ValueError, match="metric"):
        sl.nearest(ds, "v", [0] * DIM, metric="manhattan")
    with pytest.raises(ValueError, match="threshold"):
        sl.duplicates(ds, "v", threshold=2)


def test_ragged_vectors_are_refused(tmp_path) -> None:
    table = pa.table({"sequence_id": ["a", "b"], "v": pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32()))})
    with pytest.raises(SchemaMismatchError, match="of 2 and of 1 numbers"):
        sl.nearest(sl.scan(table), "v", [1, 2])
    with pytest.raises(SchemaMismatchError, match="of 2 and of 1 numbers"):
        sl.duplicates(sl.scan(table), "v", on=Processes(workers=1))


def test_wide_vectors_that_lie_side_by_side_are_read_where_they_are(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(lying, "_BLOCK", 64)  # less than one of them
    monkeypatch.setattr(lying, "gather", lambda *_: pytest.fail("copied together, as scattered ones are"))
    vectors = np.random.default_rng(6).normal(size=(60, 40)).astype(np.float32)
    ds = sl.create(tmp_path / "ds", sl.Schema({"v": sl.Embedding(dim=40)}))
    ds.append([{"sequence_id": f"{n:02d}", "v": row} for n, row in enumerate(vectors)])
    (shard,) = lying.shard_vectors(Excerpt.of(ds), "v")
    blocks = [block.copy() for piece in shard.flat() for _, block in piece.blocks()]
    assert np.array_equal(np.concatenate(blocks), vectors)
