"""Statistics against numpy on all the numbers at once, however these are stored, split or selected."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import seqlake as sl
from seqlake.dataset.statistics import Statistics, chunks, outliers, ranks, scan, statistics
from seqlake.dataset.statistics.moments import merged, moments
from seqlake.dataset.statistics.ranks import QuantileSearch
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.executors.processes import Processes
from seqlake.testing import samples

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.99, 1.0)
DTYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Plain folders keep derived files in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def check(own, everything: np.ndarray, quantiles=QUANTILES) -> None:
    """One column's statistics against numpy on [n, *shape] numbers."""
    shape = everything.shape[1:]
    assert own.shape == shape
    assert own.dtype == everything.dtype
    columns = everything.reshape(len(everything), int(np.prod(shape)))
    for dim, place in enumerate(np.ndindex(shape)):
        column = columns[:, dim]
        finite = column[np.isfinite(column)]
        assert own.count[place] == len(finite)
        assert own.nan[place] == np.isnan(column).sum()
        assert own.inf[place] == np.isinf(column).sum()
        if not len(finite):
            assert np.isnan(own.min[place])
            assert np.isnan(own.mean[place])
            assert np.isnan(own.std[place])
            continue
        assert own.min.dtype == everything.dtype
        assert own.min[place] == finite.min()
        assert own.max[place] == finite.max()
        size = max(float(np.abs(finite).max()), 1e-300)
        wide = finite.astype(np.longdouble)
        assert abs(own.mean[place] - float(wide.mean())) <= 1e-12 * size
        assert abs(own.std[place] - float(wide.std())) <= 1e-12 * size
        assert bool(own.constant[place]) == (finite.min() == finite.max())
        if own.constant[place]:
            assert own.std[place] == 0
            assert own.mean[place] == float(finite[0])
        for quantile in quantiles:
            truth = np.quantile(np.sort(finite), np.float64(quantile), method="inverted_cdf")
            assert own.quantiles[quantile][place] == truth
            assert own.quantiles[quantile].dtype == everything.dtype


def dataset(path, cells, *, column=None, **writing) -> sl.Dataset:
    ds = sl.create(path, sl.Schema({"signal": column if column is not None else sl.Trajectory(dim=3)}))
    with ds.writer(**writing) as writer:
        for number, cell in enumerate(cells):
            writer.add(f"s{number:03d}", signal=cell)
    return ds


def arms(path, **writing) -> sl.Dataset:
    return samples.arm_dataset(path, count=30, **writing)


WAYS = {
    "one shard": {},
    "many shards": {"rows_per_shard": 4},
    "archive": {"layout": "archive", "rows_per_shard": 7},
    "fixed": {"fixed_size_inner": True},
    "raw": {"raw": True, "rows_per_shard": 9},
}


def concatenated(episodes, name) -> np.ndarray:
    return np.concatenate([episode[name] for episode in episodes])


@pytest.mark.parametrize("way", WAYS)
def test_statistics_are_numpys_on_the_concatenated_steps(tmp_path, way) -> None:
    stats = statistics(arms(tmp_path / "arm", **WAYS[way]), quantiles=QUANTILES)
    episodes = list(samples.arm_episodes(30))
    assert list(stats) == ["reward", "success", "length", "action", "obs_state", "instruction_embedding"]
    assert stats.rows == 30
    for name in ("action", "obs_state"):
        assert stats[name].category == "temporal"
        check(stats[name], concatenated(episodes, name))
    check(stats["reward"], np.array([e["reward"] for e in episodes], np.float32))
    check(stats["success"], np.array([e["success"] for e in episodes], np.uint8))
    check(stats["length"], np.array([len(e["action"]) for e in episodes], np.int64))
    check(stats["instruction_embedding"], np.stack([e["instruction_embedding"] for e in episodes]))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("way", WAYS)
def test_every_number_is_seen_once_whatever_the_selection(tmp_path, way) -> None:
    ds = arms(tmp_path / "arm", **WAYS[way])
    episodes = {e["sequence_id"]: e for e in samples.arm_episodes(30)}
    chosen = [ds.where("task = 'pick'"), ds[3:20], ds[::-1], ds[::7], ds.where("reward > 36"), ds[:0]]
    for selection in chosen:
        own = [episodes[view.id]["action"] for view in selection]
        stats = statistics(selection, ["action"], quantiles=QUANTILES)
        assert stats.rows == len(selection)
        check(stats["action"], np.concatenate([np.zeros((0, 12), "f4"), *own]))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["training", "archive"])
def test_every_type_of_number(tmp_path, dtype, layout) -> None:
    rng = np.random.default_rng(3)
    if np.dtype(dtype).kind == "f":
        cells = [rng.normal(5, 2, size=(n, 3)).astype(dtype) for n in (4, 0, 57, 1)]
    else:
        limits = np.iinfo(dtype)
        cells = [rng.integers(limits.min, limits.max, size=(n, 3), dtype=dtype, endpoint=True) for n in (4, 0, 57, 1)]
        cells[0][0] = [limits.min, limits.max, 0]
    kind = sl.Trajectory(dim=3, dtype=pa.from_numpy_dtype(dtype))
    ds = dataset(tmp_path / "ds", cells, column=kind, layout=layout, rows_per_shard=2)
    check(statistics(ds, quantiles=QUANTILES)["signal"], np.concatenate(cells))


def test_shapes_of_steps_are_kept(tmp_path) -> None:
    rng = np.random.default_rng(0)
    cells = [rng.normal(size=(5 + n, 2, 3)).astype("f4") for n in range(4)]
    ds = dataset(tmp_path / "a", cells, column=sl.Trajectory(dim=6, shape=[2, 3]))
    check(statistics(ds, quantiles=QUANTILES)["signal"], np.concatenate(cells))
    single = [rng.normal(size=5 + n) for n in range(4)]
    kind = sl.Column("signal", pa.list_(pa.float64()), sl.Trajectory())
    ds = dataset(tmp_path / "b", single, column=kind)
    check(statistics(ds, quantiles=QUANTILES)["signal"], np.concatenate(single))


def test_null_empty_and_broken_numbers_are_counted_apart(tmp_path) -> None:
    nan, inf = np.nan, np.inf
    one = np.array([[1, nan, nan], [2, inf, nan], [3, 7, nan], [4, -inf, nan]], "f4")
    cells = [one, None, np.zeros((0, 3), "f4"), np.full((2, 3), 5, "f4"), None]
    for layout in ("training", "archive"):
        ds = dataset(tmp_path / layout, cells, layout=layout)
        own = statistics(ds, quantiles=QUANTILES)["signal"]
        check(own, np.concatenate([one, cells[3]]))
        assert own.nulls == 2
        assert own.nan.tolist() == [0, 1, 4]
        assert own.inf.tolist() == [0, 2, 0]
        assert own.constant.tolist() == [False, False, True]
        notes = [record["note"] for record in statistics(ds).records()]
        assert notes == ["2 null", "1 NaN, 2 infinite, 2 null", "constant, 4 NaN, 2 null"]


@pytest.mark.parametrize("cells", [[], [None], [None, np.zeros((0, 3), "f4")], [np.full((2, 3), np.nan)]])
def test_where_there_is_no_number_there_is_nan(tmp_path, cells) -> None:
    ds = dataset(tmp_path / "ds", cells)
    stats = statistics(ds)
    assert stats["signal"].count.tolist() == [0, 0, 0]
    assert np.isnan(stats["signal"].quantiles[0.5]).all()
    assert Statistics.from_json(json.loads(json.dumps(stats.to_json(), allow_nan=False))) == stats
    assert "signal" in repr(stats)


def test_numbers_of_tables_in_memory_and_undeclared_dimensions() -> None:
    table = pa.table({
        "sequence_id": ["a", "b", "c"],
        "free": pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, None]], None], pa.list_(pa.list_(pa.float64()))),
        "count": pa.array([1, None, 2**63 - 1], pa.int64()),
        "big": pa.array([0, 2**64 - 1, 1], pa.uint64()),
        "good": [True, False, None],
        "task": ["x", "y", "z"],
    })  # fmt: skip
    stats = statistics(sl.scan(table), quantiles=QUANTILES)
    assert list(stats) == ["free", "count", "big", "good"]
    check(stats["free"], np.array([[1, 2], [3, 4], [5, np.nan]]))
    check(stats["count"], np.array([1, 2**63 - 1]))
    check(stats["big"], np.array([0, 2**64 - 1, 1], "u8"))
    check(stats["good"], np.array([1, 0], "u1"))
    assert stats["good"].nulls == 1


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([[[1.0, 2.0], [3.0]]], pa.float64()),
        ([[[1.0, 2.0]], [[1.0, 2.0, 3.0]]], pa.float64()),
        ([[[1.0, 2.0], None]], pa.float64()),
        ([[[1, None]]], pa.int64()),
    ],
)
def test_cells_that_break_the_format_are_refused(cells, kind) -> None:
    ids = [str(i) for i in range(len(cells))]
    table = pa.table({"sequence_id": ids, "signal": pa.array(cells, pa.list_(pa.list_(kind)))})
    with pytest.raises(ValidationError, match="signal"):
        statistics(sl.scan(table))


def test_two_files_of_unlike_dimensions_are_refused(tmp_path) -> None:
    for name, width in (("a", 2), ("b", 3)):
        cells = pa.array([[[0.0] * width]], pa.list_(pa.list_(pa.float32())))
        pq.write_table(pa.table({"sequence_id": [name], "signal": cells}), tmp_path / f"{name}.parquet")
    with pytest.raises(ValidationError, match="shape"):
        statistics(sl.scan(tmp_path))


def test_what_cannot_be_asked_for(tmp_path) -> None:
    ds = arms(tmp_path / "arm")
    with pytest.raises(KeyError, match="acton"):
        statistics(ds, ["acton"])
    with pytest.raises(SchemaMismatchError, match="task"):
        statistics(ds, ["action", "task"])
    with pytest.raises(ValueError, match="Quantiles"):
        statistics(ds, quantiles=[1.5])
    with pytest.raises(ValueError, match="worker"):
        statistics(ds, workers=0)
    with pytest.raises(KeyError, match="reward"):
        statistics(ds, ["action"])["reward"]


# ---- numbers by themselves


def floats(dtype):
    width = np.dtype(dtype).itemsize * 8
    largest = {16: 2.0**15, 32: 2.0**120, 64: 2.0**400}[width]
    return st.floats(-largest, largest, width=width) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0])


@st.composite
def arrays(draw) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    elements = floats(dtype) if np.dtype(dtype).kind == "f" else hnp.from_dtype(np.dtype(dtype))
    shape = draw(st.tuples(st.integers(0, 60), st.integers(1, 4)))
    return draw(hnp.arrays(dtype, shape, elements=elements))


@given(values=arrays(), cuts=st.lists(st.integers(0, 60), max_size=3), quantile=st.floats(0, 1))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@pytest.mark.parametrize("kept", [1 << 22, 12, 0], ids=["sorted", "counted and sorted", "counted"])
@pytest.mark.parametrize("known", [True, False])
def test_any_numbers_in_any_parts(kept, known, values, cuts, quantile) -> None:
    """The ways to a quantile: keeping the numbers, counting 16 bits at a time to the very end, and both in turn.

    How many there are is known before, or when the first pass ends.
    """
    parts = np.split(values, sorted(min(cut, len(values)) for cut in cuts))
    found = merged([moments(part) for part in parts])
    assert moments(*parts).count.tolist() == found.count.tolist()
    points = (quantile, 0.5)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ranks, "_KEPT", kept)
        counts = found.count if known else np.full(values.shape[1], ranks.UNCOUNTED)
        selector = QuantileSearch(values.dtype, counts, points)
        passes = 0
        while selector.wanted:
            for part in parts:
                selector.add(part)
            if not known and not passes:
                selector.know(found.count)
            selector.end_pass()
            passes += 1
    assert passes <= (int(not known) + 1 if kept >= values.size else max(1, values.dtype.itemsize // 2))
    for dim in range(values.shape[1]):
        finite = np.sort(values[:, dim][np.isfinite(values[:, dim])])
        assert found.count[dim] == len(finite)
        if not len(finite):
            continue
        assert (found.min[dim], found.max[dim]) == (finite[0], finite[-1])
        wide = finite.astype(np.longdouble)
        size = max(float(np.abs(wide).max()), 1e-140)  # squares of smaller numbers leave float64's range
        assert abs(found.mean[dim] + found.rest[dim] - float(wide.mean())) <= 1e-12 * size
        assert abs(np.sqrt(found.m2[dim] / len(finite)) - float(wide.std())) <= 1e-12 * size
        for place, point in enumerate(points):
            assert selector.values[place, dim] == np.quantile(finite, np.float64(point), method="inverted_cdf")


def test_many_numbers_are_counted_in_more_parts() -> None:
    """Each part gives back a histogram for each dimension and quantile: of few numbers they are more than these."""
    parts = [
        QuantileSearch(np.dtype("f4"), np.array([count, 1]), (0.5,)).parts(10**9) for count in (0, 10**6, 10**7, 10**8)
    ]
    assert parts == [8, 8, 19, 190]
    assert QuantileSearch(np.dtype("f4"), np.full(2, ranks.UNCOUNTED), (0.5,)).parts(10**7) == 19


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_that_lie_close_together_and_both_zeros(dtype, monkeypatch) -> None:
    """Most numbers outside the bins that are looked at, some at their edges, more steps than are compared at a time."""
    monkeypatch.setattr(ranks, "_KEPT", 40_000)
    rng = np.random.default_rng(5)
    values = (rng.normal(size=(5000, 9)) * (100 if np.dtype(dtype).kind in "iu" else 1e-3)).astype(dtype)
    if values.dtype.kind == "f":
        values[::3, 4] = 0.0
        values[1::3, 4] = -0.0
        values[::5, 5] = np.nan
        values[::7, 6] = np.inf
    selector = QuantileSearch(values.dtype, np.isfinite(values).sum(axis=0), points := (0.01, 0.5, 0.501, 0.99))
    while selector.wanted:
        for part in np.split(values, [1, 1025, 3000]):
            selector.add(part)
        selector.end_pass()
    for dim in range(values.shape[1]):
        finite = values[np.isfinite(values[:, dim]), dim]
        assert selector.values[:, dim].tolist() == [np.quantile(finite, q, method="inverted_cdf") for q in points]


def test_moments_keep_their_digits_far_from_zero() -> None:
    """A naive sum of squares has no right digit left here."""
    values = (1e9 + np.random.default_rng(0).normal(size=(100_000, 3))).astype("f8")
    found = moments(values)
    std = np.sqrt(found.m2 / found.count)
    truth = (values - 1e9).astype(np.longdouble).std(axis=0)
    assert np.allclose(std, truth.astype("f8"), rtol=1e-12, atol=0)
    assert np.allclose(found.mean + found.rest, (values - 1e9).astype(np.longdouble).mean(axis=0) + 1e9, rtol=1e-15)
    drift = np.cumsum(np.random.default_rng(1).normal(size=(300_000, 1)), axis=0)
    found = moments(drift)
    truth = drift.astype(np.longdouble)
    assert np.allclose(found.mean + found.rest, truth.mean(axis=0).astype("f8"), rtol=1e-12)
    assert np.allclose(np.sqrt(found.m2 / found.count), truth.std(axis=0).astype("f8"), rtol=1e-12)


@pytest.mark.parametrize("cuts", [[], [1, 40, 41, 60]])
@pytest.mark.parametrize("dim", [1, 7, 64, 3000])
def test_blocks_of_any_width_in_parts_that_begin_anywhere(dim, cuts) -> None:
    count = 900_000 // dim + 13
    room = np.empty(4 * count * dim + 1, "u1")
    values = room[1:].view("f4").reshape(count, dim)  # at no multiple of four bytes, as in files
    values[:] = np.random.default_rng(dim).normal(3, 2, size=(count, dim))
    found = moments(*np.split(values, cuts))
    assert np.allclose(found.mean + found.rest, values.mean(axis=0, dtype="f8"), rtol=1e-12)
    assert np.allclose(np.sqrt(found.m2 / found.count), values.std(axis=0, dtype="f8"), rtol=1e-12)
    assert np.array_equal(found.min, values.min(axis=0))
    assert np.array_equal(found.max, values.max(axis=0))


def test_histograms_are_few_at_a_time(monkeypatch) -> None:
    """Many dimensions take turns, also where some of them have no numbers."""
    monkeypatch.setattr(ranks, "_KEPT", 0)
    monkeypatch.setattr(ranks, "HISTOGRAMS", 6)
    values = np.random.default_rng(0).normal(size=(500, 11)).astype("f4")
    values[:, 2:5] = np.nan
    selector = QuantileSearch(values.dtype, np.isfinite(values).sum(axis=0), [0.1, 0.5, 0.9])
    while selector.wanted:
        assert len(selector._counted) <= 6
        selector.add(values)
        selector.end_pass()
    good = [0, 1, *range(5, 11)]
    truth = np.quantile(values[:, good].astype("f8"), [0.1, 0.5, 0.9], axis=0, method="inverted_cdf")
    assert np.array_equal(selector.values[:, good], truth.astype("f4"))


def test_columns_take_turns_where_memory_is_short(tmp_path, monkeypatch) -> None:
    ds = arms(tmp_path / "arm", rows_per_shard=12)
    monkeypatch.setattr(ranks, "_KEPT", 0)
    monkeypatch.setattr("seqlake.dataset.statistics.scan.HISTOGRAMS", 1)
    alive = []
    monkeypatch.setattr(
        "seqlake.dataset.statistics.scan.QuantileSearch", lambda *given: alive.append(given) or QuantileSearch(*given)
    )
    turns = []
    over = scan._Scan._over
    monkeypatch.setattr(scan._Scan, "_over", lambda self, names, *rest: turns.append(names) or over(self, names, *rest))
    stats = statistics(ds, ["action", "reward", "obs_state"], quantiles=QUANTILES)
    assert len(alive) == 3
    assert {len(names) for names in turns[1:]} == {1}
    for name in ("action", "obs_state"):
        check(stats[name], concatenated(samples.arm_episodes(30), name))


@pytest.mark.parametrize("on", [None, Processes(workers=1)])
def test_two_passes_do_for_what_has_a_declared_width(tmp_path, monkeypatch, on) -> None:
    """Where quantiles lie is seen together with the moments; a wide column and one without a width go once more."""
    wide = ranks.HISTOGRAMS // len(QUANTILES) + 1
    schema = sl.Schema({"x": sl.Trajectory(dim=3), "wide": sl.Trajectory(dim=wide), "any": sl.Trajectory()})
    ds = sl.create(tmp_path / "ds", schema)
    rng = np.random.default_rng(3)
    cells = {"x": 3, "wide": wide, "any": 2}
    for number in range(4):
        given = {name: rng.normal(size=(30, dim)).astype("f4") for name, dim in cells.items()}
        if number == 1:
            given["x"][:, 1] = np.nan
        ds.append([{"sequence_id": f"{number}", **given}])
    passes = []
    over = scan._Scan._over
    monkeypatch.setattr(
        scan._Scan, "_over", lambda self, names, *rest: passes.append(names) or over(self, names, *rest)
    )
    stats = statistics(ds, [*cells], quantiles=QUANTILES, on=on)
    # All begin together; then "x" goes on, and the others begin and, as far as they are many numbers, go on.
    assert passes[:2] == [["x", "wide", "any"], ["x"]]
    assert all("x" not in names for names in passes[2:])
    rows = list(ds)
    for name in cells:
        numbers = np.concatenate([row[name][:] for row in rows]).astype("f4")
        for point in QUANTILES:
            finite = [column[np.isfinite(column)] for column in numbers.T]
            truth = [np.quantile(column, point, method="inverted_cdf") for column in finite]
            assert stats[name].quantiles[point].tolist() == truth


def test_a_width_that_is_another_than_declared_is_searched_once_it_is_known(tmp_path, monkeypatch) -> None:
    """As of files of others, where lists within steps have more numbers than their declaration says."""
    cells = [np.random.default_rng(n).normal(size=(20, 3)).astype("f4") for n in range(4)]
    ds = dataset(tmp_path / "ds", cells)
    monkeypatch.setattr(scan, "declared_shape", lambda column: (5,))
    check(statistics(ds, quantiles=QUANTILES)["signal"], np.concatenate(cells))


def test_steps_of_other_widths_are_refused_where_quantiles_are_asked(tmp_path) -> None:
    """The search beside the moments has the declared width; what has another is an error of ours."""
    path = tmp_path / "ds" / "data"
    path.mkdir(parents=True)
    cells = [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0, 3.0]]]
    kind = pa.list_(pa.list_(pa.float32()))
    for number, cell in enumerate(cells):
        table = pa.table({"sequence_id": [f"{number}"], "x": pa.array([cell], kind)})
        pq.write_table(table, path / f"{number}.parquet")
    sl.init(tmp_path / "ds", column_types={"x": sl.Trajectory(dim=2)})
    for on in (None, Processes(workers=1)):
        with pytest.raises(SchemaMismatchError, match="does not fit"):
            statistics(sl.open(tmp_path / "ds"), ["x"], on=on)


def test_long_columns_are_counted_block_by_block(tmp_path, monkeypatch) -> None:
    """Blocks smaller than a cell, histograms instead of sorting: what a large dataset does."""
    monkeypatch.setattr(chunks, "_BLOCK", 400)
    monkeypatch.setattr(ranks, "_KEPT", 0)
    cells = [np.random.default_rng(n).normal(size=(40 + n, 3)).astype("f4") for n in range(10)]
    ds = dataset(tmp_path / "ds", cells, rows_per_shard=4)
    one = statistics(ds, quantiles=QUANTILES, workers=1)
    check(one["signal"], np.concatenate(cells))
    (kept,) = (tmp_path / "ds" / "_seqlake" / "derived").iterdir()
    kept.unlink()
    assert statistics(ds, quantiles=QUANTILES, workers=5) == one


# ---- the value


def test_merging_is_the_statistics_of_both(tmp_path) -> None:
    ds = arms(tmp_path / "arm", rows_per_shard=4)
    whole = statistics(ds, quantiles=())
    both = statistics(ds[:11]).merge(statistics(ds[11:])).merge(statistics(ds[:0]))
    assert both.rows == whole.rows == 30
    for name, own in whole.items():
        for key in ("count", "min", "max", "nan", "inf"):
            assert np.array_equal(both[name][key], own[key]), (name, key)
        assert np.allclose(both[name].mean, own.mean, rtol=1e-12, atol=1e-15)
        assert np.allclose(both[name].std, own.std, rtol=1e-12, atol=1e-15)
        assert both[name].quantiles == {}
    with pytest.raises(SchemaMismatchError, match="obs_state"):
        whole.merge(statistics(ds, ["action"]))
    other = Statistics({"action": whole["obs_state"]}, rows=1)
    with pytest.raises(SchemaMismatchError, match="12.*48"):
        whole.select("action").merge(other)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u8", "u1"])
def test_json_gives_back_every_bit(tmp_path, dtype) -> None:
    kind = pa.from_numpy_dtype(dtype)
    cells = np.random.default_rng(0).integers(0, 200, size=(50, 3)).astype(dtype)
    cells[0, 0] = np.finfo(dtype).tiny if dtype[0] == "f" else np.iinfo(dtype).max
    stats = statistics(dataset(tmp_path / "ds", [cells, None], column=sl.Trajectory(dim=3, dtype=kind)))
    again = Statistics.from_json(json.loads(json.dumps(stats.to_json(), allow_nan=False)))
    assert again == stats
    for key in ("count", "min", "max", "mean", "std"):
        assert again["signal"][key].dtype == stats["signal"][key].dtype
        assert again["signal"][key].tobytes() == stats["signal"][key].tobytes()
    assert again["signal"].quantiles.keys() == {0.01, 0.5, 0.99}
    with pytest.raises(ValueError, match="format 99"):
        Statistics.from_json({"format": 99})


def test_printing_names_columns_dimensions_and_what_is_odd(tmp_path) -> None:
    cells = [np.array([[1, 2, np.nan], [1, 3, 4]], "f4")]
    text = repr(statistics(dataset(tmp_path / "ds", cells)))
    assert text.splitlines()[0] == "Statistics of 1 sequences"
    assert "q0.99" in text
    assert "constant" in text
    assert "1 NaN" in text
    wide = repr(statistics(arms(tmp_path / "arm"), ["obs_state"]))
    assert "32 more dimensions" in wide


# ---- kept by fingerprint


def forbid_scans(monkeypatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("the dataset was read again")

    monkeypatch.setattr("seqlake.dataset.statistics.scan.pieces", refuse)


def test_what_was_found_is_kept_until_the_dataset_changes(tmp_path, monkeypatch) -> None:
    ds = arms(tmp_path / "arm")
    some = ds.where("task = 'pick'")
    whole, part = statistics(ds), statistics(some, ["action"])
    assert len(list((tmp_path / "arm" / "_seqlake" / "derived").iterdir())) == 2
    assert ds.validate(depth="rows").ok
    with monkeypatch.context() as patched:
        forbid_scans(patched)
        again = sl.open(tmp_path / "arm")
        assert statistics(again) == whole
        assert statistics(again.where("task = 'pick'"), "action") == part
        assert statistics(again, ["action"], quantiles=[0.5])["action"].quantiles.keys() == {0.5}
        with pytest.raises(AssertionError):
            statistics(again, quantiles=[0.3])
        with pytest.raises(AssertionError):
            statistics(again.where("task = 'pick'"), ["obs_state"])
    ds.delete("task = 'pour'")
    assert statistics(ds).rows < 30
    assert statistics(ds) != whole


def test_more_columns_and_quantiles_join_what_is_kept(tmp_path, monkeypatch) -> None:
    ds = arms(tmp_path / "arm")
    statistics(ds, ["action"], quantiles=[0.5])
    statistics(ds, ["action", "reward"], quantiles=[0.9])
    forbid_scans(monkeypatch)
    assert list(statistics(ds, ["action"], quantiles=[0.5, 0.9])["action"].quantiles) == [0.5, 0.9]
    assert list(statistics(ds, ["reward"], quantiles=[0.9])) == ["reward"]


def test_damaged_kept_statistics_are_found_anew(tmp_path) -> None:
    ds = arms(tmp_path / "arm")
    stats = statistics(ds)
    (kept,) = (tmp_path / "arm" / "_seqlake" / "derived").iterdir()
    for broken in (b"", b"{}", b"[1]", b'{"format": 1, "columns": {"action": {}}, "rows": 1}', b"\xff"):
        kept.write_bytes(broken)
        assert statistics(ds) == stats


def test_a_plain_folder_is_left_as_it_is(tmp_path) -> None:
    ds = arms(tmp_path / "arm")
    folder = tmp_path / "plain"
    folder.mkdir()
    for file in (tmp_path / "arm" / "data").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    before = sorted(folder.iterdir())
    assert statistics(sl.scan(folder), ["action"]) == statistics(ds, ["action"])
    assert sorted(folder.iterdir()) == before


def test_a_remote_dataset_gives_the_same(tmp_path, s3_bucket) -> None:
    remote = sl.create(f"{s3_bucket.uri}/arm", samples.arm_schema(), storage=s3_bucket.storage)
    with remote.writer(rows_per_shard=12) as writer:
        for episode in samples.arm_episodes(30):
            writer.add(episode.pop("sequence_id"), **episode)
    local = statistics(arms(tmp_path / "arm", rows_per_shard=12), ["action", "reward"])
    assert statistics(remote, ["action", "reward"]) == local
    assert statistics(remote[::3], ["action"])["action"].count[0] > 0


# ---- training


def test_the_loader_takes_them_as_they_are(tmp_path) -> None:
    """Columns outside the window and labels stay out of it."""
    ds = arms(tmp_path / "arm")
    stats = statistics(ds)
    window = {"action": range(1), "instruction_embedding": None, "reward": None}
    plain = list(sl.Loader(ds, window=window, batch_size=50, shuffle=False))
    ready = list(sl.Loader(ds, window=window, batch_size=50, shuffle=False).normalize(stats))
    for before, after in zip(plain, ready, strict=True):
        assert np.array_equal(before["reward"], after["reward"])
        for name in ("action", "instruction_embedding"):
            own = stats[name]
            assert np.allclose(after[name], (before[name] - own.mean) / own.std, atol=1e-6)
    actions = np.concatenate([b["action"][b["valid"]] for b in ready])[:, 0]
    assert np.allclose(actions.mean(axis=0, dtype="f8"), 0, atol=1e-6)
    assert np.allclose(actions.std(axis=0, dtype="f8"), 1, atol=1e-6)


def test_a_name_that_is_no_column_is_still_an_error(tmp_path) -> None:
    loader = sl.Loader(arms(tmp_path / "arm"), window={"action": range(2)}, batch_size=4)
    with pytest.raises(SchemaMismatchError, match="acton"):
        next(iter(loader.normalize({"acton": {"mean": 0.0, "std": 1.0}})))


# ---- outliers


def walks(count=40) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [np.cumsum(rng.normal(0, 0.02, size=(60 + n % 5, 3)), axis=0).astype("f4") for n in range(count)]


@pytest.mark.parametrize("layout", ["training", "archive"])
def test_each_kind_of_outlier_is_found_and_explained(tmp_path, layout) -> None:
    cells = walks()
    cells[3][17, 1] += 20  # a spike
    cells[11][20:] = cells[11][20]  # stands still
    noise = np.random.default_rng(0).normal(0, 1e-4, (540, 3))
    cells[19] = (np.repeat(cells[19], 9, axis=0)[:540] + noise).astype("f4")  # goes on for long
    cells[25] += np.random.default_rng(1).normal(0, 0.4, cells[25].shape).astype("f4")  # trembles
    ds = dataset(tmp_path / "ds", cells, layout=layout, rows_per_shard=16)
    stats = statistics(ds)
    found = {one.row: one for one in outliers(ds, stats, top=4)}
    assert set(found) == {3, 11, 19, 25}
    assert "signal[1] is" in found[3].reason
    assert "at step 17" in found[3].reason
    assert "stands still" in found[11].reason
    assert "540 steps" in found[19].reason
    assert "jerk" in found[25].reason
    assert found[3].sequence_id == "s003"
    z = np.abs((np.concatenate(cells).astype("f8") - stats["signal"].mean) / stats["signal"].std)
    assert found[3].peak == pytest.approx(z.max())
    steps = np.array([len(cell) for cell in cells])
    assert found[19].length == pytest.approx((540 - steps.mean()) / steps.std())
    same = (cells[11][1:] == cells[11][:-1]).all(axis=1).mean()
    assert found[11].static == pytest.approx(same)
    third = np.diff((cells[25].astype("f8") - stats["signal"].mean) / stats["signal"].std, n=3, axis=0)
    assert found[25].jerk == pytest.approx(np.sqrt((third**2).mean()))
    json.dumps([one.to_json() for one in found.values()], allow_nan=False)


def test_ranking_is_of_all_sequences_worst_first(tmp_path) -> None:
    cells = [*walks(10), None, np.zeros((0, 3), "f4"), np.full((3, 3), np.nan, "f4")]
    ds = dataset(tmp_path / "ds", cells)
    ranked = outliers(ds, statistics(ds), top=100)
    assert sorted(one.row for one in ranked) == list(range(13))
    scores = [one.score for one in ranked]
    assert scores == sorted(scores, reverse=True)
    assert all(np.isfinite(scores))
    assert ranked[-1].reason.startswith("nothing unusual")
    assert outliers(ds, statistics(ds), top=2) == ranked[:2]
    assert outliers(ds, statistics(ds), top=0) == []


def test_a_few_still_steps_are_no_oddity(tmp_path) -> None:
    cells = walks()
    cells[8][30:33] = cells[8][30]
    ds = dataset(tmp_path / "ds", cells)
    (one,) = (one for one in outliers(ds, statistics(ds), top=40) if one.row == 8)
    assert one.static == pytest.approx(2 / (len(cells[8]) - 1))
    assert "stands still" not in one.reason or one.reason.startswith("nothing unusual")


def test_constant_dimensions_and_like_sequences_have_no_outliers(tmp_path) -> None:
    ds = dataset(tmp_path / "ds", [np.ones((10, 3), "f4")] * 6)
    assert {one.score for one in outliers(ds, statistics(ds))} == {0.0}


def test_outliers_of_a_selection_against_the_statistics_of_another(tmp_path) -> None:
    cells = walks()
    cells[30][5, 0] = -50
    ds = dataset(tmp_path / "ds", cells)
    train = statistics(ds[:20])
    (worst,) = outliers(ds[20:], train, top=1)
    assert (worst.row, worst.sequence_id) == (10, "s030")


def test_outliers_need_a_temporal_column(tmp_path) -> None:
    ds = arms(tmp_path / "arm")
    with pytest.raises(ValueError, match="temporal"):
        outliers(ds, statistics(ds, ["reward"]))
    with pytest.raises(ValueError, match="top"):
        outliers(ds, statistics(ds), top=-1)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u2"])
def test_a_search_travels_without_its_empty_bins(dtype, monkeypatch) -> None:
    monkeypatch.setattr(ranks, "_KEPT", 16)
    rng = np.random.default_rng(0)
    parts = [(rng.normal(size=(500, 3)) * 50).astype(dtype) for _ in range(4)]
    whole = np.concatenate(parts)
    search = QuantileSearch(whole.dtype, np.full(3, len(whole)), [0.1, 0.5])
    while search.wanted:
        for part in parts:
            other = pickle.loads(pickle.dumps(search.blank()))
            other.add(part)
            sent = pickle.dumps(other.seen)  # what a worker gives back
            assert len(sent) < 100_000
            search.absorb(pickle.loads(sent))
        search.end_pass()
    assert np.array_equal(search.values, np.quantile(whole, [0.1, 0.5], axis=0, method="inverted_cdf").astype(dtype))
