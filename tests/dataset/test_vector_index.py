"""An index of vectors: what it finds, what it says of itself, and that losing it does no harm."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import seqlake as sl
from seqlake.dataset.similarity import ivf
from seqlake.errors import MissingDependencyError, SchemaMismatchError

DIM, COUNT = 16, 900


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ivf._loaded.clear()
    if find_spec("faiss") is not None:
        import faiss

        faiss.omp_set_num_threads(1)  # threads that wait for each other by turning round, beside other tests
    return tmp_path / "cache" / "seqlake" / "vectors"


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    """Vectors around thirty centres; one null, one zero, one not finite."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(30, DIM))
    whole = (centres[rng.integers(0, 30, COUNT)] + 0.3 * rng.normal(size=(COUNT, DIM))).astype(np.float32)
    whole[8], whole[9] = 0, np.nan
    ds = sl.create(
        tmp_path_factory.mktemp("vectors") / "ds", sl.Schema({"v": sl.Embedding(dim=DIM), "n": sl.Embedding(dim=3)})
    )
    with ds.writer(rows_per_shard=400) as writer:
        for n, row in enumerate(whole):
            writer.add(f"ep_{n:03d}", v=None if n == 7 else row, n=np.ones(3))
    return ds


needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="faiss is not installed")


@needs_faiss
@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_it_finds_what_it_says(ds, metric) -> None:
    index = sl.vector_index(ds, "v", metric=metric, recall=0.9)
    assert index.rows == COUNT - 2 - (metric == "cosine")
    assert index.lists == 30
    assert 0.9 <= index.recall <= 1
    assert f"{index.recall:.1%} of the 20 nearest" in str(index)
    asked = [f"ep_{n:03d}" for n in range(100, 140)]
    exact = sl.nearest(ds, "v", asked, k=20, metric=metric)
    near = sl.nearest(ds, "v", asked, k=20, metric=metric, index=index)
    hits = [len({*map(repr, a)} & {*map(repr, b)}) for a, b in zip(exact, near, strict=True)]  # scores are equal, too
    assert sum(hits) / (20 * len(asked)) > 0.8
    assert all(len(some) == 20 for some in near)
    whole = sl.vector_index(ds, "v", metric=metric, recall=1.0)
    assert sl.nearest(ds, "v", asked, k=20, metric=metric, index=whole)[0][0] == exact[0][0]
    every = sl.nearest(ds, "v", "ep_100", k=2000, metric=metric, index=index)
    assert [one.row for one in every] == [one.row for one in sl.nearest(ds, "v", "ep_100", k=2000, metric=metric)]


@needs_faiss
def test_it_is_kept_and_nothing_is_lost_with_it(ds, cache, monkeypatch) -> None:
    index = sl.vector_index(ds, "v")
    expected = sl.nearest(ds, "v", "ep_100", index=index)
    [path] = cache.glob("*.faiss")
    assert {one.suffix for one in cache.iterdir()} == {".faiss", ".json"}
    ivf._loaded.clear()
    with monkeypatch.context() as patched:
        patched.setattr(ivf, "_filled", None)  # nothing is made again
        assert sl.vector_index(ds, "v") == index
        assert sl.nearest(ds, "v", "ep_100", index=index) == expected
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    for broken in (bytes(data), data[:100], b"", None):
        path.unlink() if broken is None else path.write_bytes(broken)
        ivf._loaded.clear()
        assert sl.nearest(ds, "v", "ep_100", index=index) == expected
        assert path.read_bytes() not in {bytes(data), b""}
    said = path.with_suffix(".json")
    for broken in (b"{}", b"[1]", b"\xff", json.dumps({"index": {"key": "x"}, "crc32c": 1}).encode()):
        said.write_bytes(broken)
        ivf._loaded.clear()
        assert sl.nearest(ds, "v", "ep_100", index=index) == expected
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # nothing can be written
    ivf._loaded.clear()
    assert sl.nearest(ds, "v", "ep_100", index=index) == expected


@needs_faiss
def test_the_cache_is_bounded(ds, cache, monkeypatch) -> None:
    monkeypatch.setattr(ivf, "_LIMIT", 1)
    for recall in (0.5, 0.6):
        sl.vector_index(ds, "v", recall=recall)
    assert len(list(cache.glob("*.faiss"))) == 1


@needs_faiss
def test_of_other_rows_it_is_refused(ds) -> None:
    index = sl.vector_index(ds, "v")
    with pytest.raises(ValueError, match="index is of the rows"):
        sl.nearest(ds[:500], "v", "ep_100", index=index)
    with pytest.raises(ValueError, match="index is of the metric 'cosine'"):
        sl.nearest(ds, "v", "ep_100", metric="dot", index=index)
    with pytest.raises(ValueError, match="index is of the column 'v'"):
        sl.nearest(ds, "n", "ep_100", index=index)
    with pytest.raises(ValueError, match=r"expected what sl\.vector_index gives"):
        sl.nearest(ds, "v", "ep_100", index=True)
    some = sl.vector_index(ds[300:700], "v")
    assert sl.nearest(ds[300:700], "v", "ep_400", index=some)[0].row < 400
    none = sl.vector_index(ds[7:8], "v")
    assert none.rows == 0
    assert sl.nearest(ds[7:8], "v", np.ones(DIM), index=none) == []
    with pytest.raises(SchemaMismatchError, match="found 16"):
        sl.nearest(ds, "v", [1.0, 2.0], index=index)


@pytest.mark.parametrize(
    "wrong", [{"metric": "x"}, {"recall": 0}, {"recall": 1.5}, {"recall": float("nan")}, {"lists": 0}]
)
def test_wrong_arguments(ds, wrong) -> None:
    with pytest.raises(ValueError, match="vector_index: expected"):
        sl.vector_index(ds, "v", **wrong)


def test_without_faiss_the_extra_is_named(ds, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match=r"seqlake\[faiss\]"):
        sl.vector_index(ds, "v")
