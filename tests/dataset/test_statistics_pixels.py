"""Statistics of pictures against numpy on the decoded frames; which frames are looked at, and which pixels."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqlake as sl
from seqlake.dataset.statistics import Statistics, scan, statistics
from seqlake.dataset.statistics.scan import evenly
from seqlake.errors import CorruptFrameError, ValidationError

QUANTILES = (0.0, 0.01, 0.5, 0.99, 1.0)
SCHEMA = sl.Schema(
    {
        "x": sl.Trajectory(dim=2, fps=10),
        "cam": sl.Video(fps=10),
        "inline": sl.Image(format="png", frames="bytes"),
        "stills": sl.Image(format="png", frames="files"),
        "goal": sl.Image(),
        "depth": sl.Image(format="png", frames="bytes"),
    }
)
VISUAL = ("cam", "inline", "stills", "goal", "depth")


def noise(*shape: int, seed: int = 0, dtype: type = np.uint8) -> np.ndarray:
    limit = np.iinfo(dtype).max
    return (np.random.default_rng(seed).beta(2, 3, shape) * (limit + 0.99)).astype(dtype)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory) -> sl.Dataset:
    """Nine rows of 1 to 9 steps; one more has no picture."""
    root = tmp_path_factory.mktemp("filmed") / "ds"
    ds = sl.create(root, SCHEMA)
    with ds.writer(rows_per_shard=4) as writer:
        for n in range(1, 10):
            frames = noise(n, 24, 32, 3, seed=n)
            writer.add(f"ep{n}", x=np.zeros((n, 2)), cam=frames, inline=frames, stills=frames, goal=frames[0],
                       depth=noise(n, 24, 32, seed=n, dtype=np.uint16))  # fmt: skip
        writer.add("bare", x=np.ones((3, 2)))
    return sl.open(root)


def check(own, frames: np.ndarray) -> None:
    """One column's statistics against numpy on [N, H, W, C] values that were all looked at."""
    values = frames.reshape(-1, frames.shape[-1]).astype(np.float64) / np.iinfo(frames.dtype).max
    assert own.shape == (frames.shape[-1],)
    assert own.frames == len(frames)
    assert (own.count == len(values)).all()
    for name, expected in (("mean", values.mean(axis=0)), ("std", values.std(axis=0))):
        assert np.abs(own[name] - expected).max() < 1e-12
    assert np.array_equal(own.min, values.min(axis=0))
    assert np.array_equal(own.max, values.max(axis=0))
    for quantile in QUANTILES:
        assert np.array_equal(own.quantiles[quantile], np.quantile(values, quantile, axis=0, method="inverted_cdf"))


@pytest.mark.parametrize("name", VISUAL)
@pytest.mark.parametrize("workers", [1, 3])
def test_small_columns_are_looked_at_whole(filmed, name: str, workers: int) -> None:
    views = [row[name] for row in filmed if row[name] is not None]
    frames = np.concatenate([view[:] for view in views])
    # Not from what the dataset keeps.
    own = scan.statistics_of(filmed, name, QUANTILES, workers=workers)
    check(own, frames)
    assert own.nulls == 1
    assert own.category == ("file" if name in {"cam", "goal"} else "frames")
    assert own.shape == ((1,) if name == "depth" else (3,))


def test_they_are_among_the_columns_and_kept(filmed, monkeypatch) -> None:
    stats = statistics(filmed, quantiles=QUANTILES)
    assert list(stats) == ["x", *VISUAL]
    assert "45 frames" in repr(stats)
    assert [one["note"] for one in stats.records() if one["column"] == "goal"] == ["1 null, 9 frames"] * 3
    assert Statistics.from_json(json.loads(json.dumps(stats.to_json()))) == stats
    monkeypatch.setattr(scan, "_look", None)  # whoever looks again fails
    monkeypatch.setattr(scan.Excerpt, "__getitem__", None)
    assert statistics(filmed, quantiles=QUANTILES) == stats
    assert statistics(sl.open(filmed.location), ["cam"])["cam"].mean.tolist() == stats["cam"].mean.tolist()


def test_of_a_selection_and_of_parts_together(filmed) -> None:
    some = filmed.where("len(x) IN (2, 3)")
    frames = np.concatenate([some[0]["inline"][:], some[1]["inline"][:]])
    check(statistics(some, ["inline"], quantiles=QUANTILES)["inline"], frames)
    one, two = statistics(filmed[:4], ["inline", "x"]), statistics(filmed[4:], ["inline", "x"])
    both, whole = one.merge(two)["inline"], statistics(filmed, ["inline"])["inline"]
    assert (both.frames, both.nulls, both.count.tolist()) == (45, 1, whole.count.tolist())
    assert np.allclose(both.mean, whole.mean, rtol=1e-12)
    assert np.allclose(both.std, whole.std, rtol=1e-12)
    assert np.array_equal(both.max, whole.max)


# ---- which frames


@given(st.integers(0, 5000), st.integers(1, 300))
def test_evenly_spaced_numbers(count: int, most: int) -> None:
    numbers = evenly(count, most)
    assert len(numbers) == min(count, most)
    assert (np.diff(numbers) >= 1).all()
    if count:
        gaps = np.diff(numbers, prepend=0, append=count)
        assert numbers[0] >= 0
        assert numbers[-1] < count
        assert gaps[1:-1].max(initial=0) - gaps[1:-1].min(initial=count) <= 1
    if count <= most:
        assert numbers.tolist() == list(range(count))


def test_large_columns_are_sampled(tmp_path, monkeypatch) -> None:
    """Every frame has a grey level of its own, so the levels that were seen tell the frames."""
    monkeypatch.setattr(scan, "SEQUENCES", 3)
    monkeypatch.setattr(scan, "FRAMES", 8)
    ds = sl.create(tmp_path / "ds", sl.Schema({"inline": sl.Image(frames="bytes")}))
    with ds.writer() as writer:
        for row in range(9):
            grey = np.arange(row * 10, row * 10 + 10, dtype=np.uint8)
            writer.add(f"ep{row}", inline=np.broadcast_to(grey[:, None, None, None], (10, 4, 4, 3)))
        writer.add("bare", inline=None)
    seen = []
    real = scan._thinned
    monkeypatch.setattr(scan, "_thinned", lambda frames: (seen.extend(frames[:, 0, 0, 0].tolist()), real(frames))[1])
    own = statistics(ds, workers=2)["inline"]
    assert sorted(seen) == [row * 10 + step for row in (1, 4, 7) for step in (2, 7)]
    assert own.frames == 6
    assert own.count.tolist() == [96] * 3
    assert own.mean.tolist() == pytest.approx([np.mean(seen) / 255] * 3)


@pytest.mark.parametrize(
    ("height", "width", "kept"),
    [(299, 200, (299, 200)), (300, 200, (150, 100)), (480, 640, (120, 160)), (30, 301, (15, 151))],
)
def test_large_pictures_are_thinned_but_not_scaled(height: int, width: int, kept: tuple[int, int], tmp_path) -> None:
    picture = noise(height, width, 3)
    ds = sl.create(tmp_path / "ds", sl.Schema({"goal": sl.Image()}))
    ds.append([{"sequence_id": "a", "goal": picture}])
    step = height // kept[0]
    own = statistics(ds, quantiles=QUANTILES)["goal"]
    assert own.count.tolist() == [kept[0] * kept[1]] * 3
    check(own, picture[None, ::step, ::step])


# ---- where there is nothing, or something wrong


def test_no_picture_at_all(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", SCHEMA)
    ds.append([{"sequence_id": "a", "x": np.zeros((1, 2)), "inline": []}, {"sequence_id": "b"}])
    stats = statistics(ds)
    for name in VISUAL:
        own = stats[name]
        assert (own.frames, own.count.tolist()) == (0, [0, 0, 0])
        assert np.isnan(own.mean).all()
        assert np.isnan(own.quantiles[0.5]).all()
    assert (stats["inline"].nulls, stats["cam"].nulls) == (1, 2)
    assert Statistics.from_json(json.loads(json.dumps(stats.to_json()))) == stats


def test_what_cannot_be_looked_at_is_an_error(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"inline": sl.Image(frames="bytes"), "cam": sl.Video(fps=5)}))
    both = [noise(4, 4, 3), noise(4, 4, dtype=np.uint16)]
    ds.append([{"sequence_id": f"ep{n}", "inline": [one]} for n, one in enumerate(both)])
    with pytest.raises(ValidationError, match="'inline' has pictures of 3 channels with 8 bits and of 1 channel"):
        statistics(ds, ["inline"])
    ds.upsert([{"sequence_id": "ep1", "inline": [b"\xff\xd8\xff no picture"], "cam": "files/gone.mp4"}])
    with pytest.raises(CorruptFrameError):
        statistics(ds, ["inline"])
    with pytest.raises(FileNotFoundError):
        statistics(ds, ["cam"])


def test_the_loader_leaves_frames_as_they_are(filmed) -> None:
    stats = statistics(filmed)
    rows = filmed.where("cam IS NOT NULL")
    loader = sl.Loader(rows, window={"x": range(1), "cam": range(2), "inline": range(1)}, batch_size=5, shuffle=False)
    for before, after in zip(loader, loader.normalize(stats), strict=True):
        for name in ("cam", "inline"):
            assert after[name].dtype == np.uint8
            assert np.array_equal(before[name], after[name])
        assert np.allclose(after["x"], (before["x"] - stats["x"].mean) / stats["x"].std)
