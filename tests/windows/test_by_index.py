"""Frame i belongs to step i where nothing says a rate: counted, checked and told apart."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError
from seqlake.spec.alignment import even_rate

from ..media import clips  # noqa: TID252 - tests are no package that could be named

COUNTS = (5, 7)


def episodes(place: Path, *, frames: tuple[int, ...] = COUNTS, types: dict | None = None) -> Path:
    """Two episodes of 5 and 7 steps with a video each, as another writer leaves them."""
    (place / "data").mkdir(parents=True)
    for number, count in enumerate(frames):
        (place / f"{number}.mp4").write_bytes(clips.encode(times=range(count)))
    actions = [np.arange(steps, dtype="f4")[:, None].tolist() for steps in COUNTS]
    table = pa.table({
        "sequence_id": ["a", "b"],
        "action": pa.array(actions, pa.list_(pa.list_(pa.float32()))),
        "cam": [f"{number}.mp4" for number in range(len(frames))],
    })  # fmt: skip
    pq.write_table(table, place / "data" / "part-0.parquet")
    if types is not None:
        (place / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": types}))
    return place


@pytest.mark.parametrize("edges", ["pad", "clamp", "drop"])
def test_videos_without_a_rate_align_by_index(edges, tmp_path) -> None:
    ds = sl.open(episodes(tmp_path / "in", types={"cam": {"type": "video"}}))
    window = sl.Window({"action": range(2), "cam": range(2)}, edges=edges)
    batches = list(sl.Loader(ds, window=window, batch_size=1, shuffle=False))
    assert len(batches) == sum(COUNTS) - 2 * (edges == "drop")
    films = {name: ds.sequence(name)["cam"][:] for name in "ab"}
    for batch in batches:
        name, start = batch["sequence_id"][0], int(batch["start"][0])
        there = batch["cam_mask"][0]
        assert there.tolist() == batch["action_mask"][0].tolist()
        np.testing.assert_array_equal(batch["cam"][0][there], films[name][start : start + 2][: there.sum()])
        np.testing.assert_array_equal(batch["action"][0][there, 0], np.arange(start, start + there.sum()))
    one = ds.sequence("b").window(3, 5, columns=["action", "cam"])
    np.testing.assert_array_equal(one["cam"], films["b"][3:5])


def test_counts_that_differ_are_told_with_what_would_relate_them(tmp_path) -> None:
    ds = sl.open(episodes(tmp_path / "in", frames=(5, 14), types={"cam": {"type": "video"}}))
    wanted = r"'action' and 'cam' have 7 and 14 steps.*fps.*timestamps.*clock"
    with pytest.raises(SchemaMismatchError, match=wanted):
        next(iter(sl.Loader(ds, window={"action": range(2), "cam": range(2)}, batch_size=1)))
    with pytest.raises(SchemaMismatchError, match=wanted):
        ds.sequence("b").window(0, 2, columns=["action", "cam"])
    assert ds.sequence("a").window(0, 2, columns=["action", "cam"])["cam_mask"].all()
    (alone, *_) = sl.Loader(ds, window={"cam": range(2)}, batch_size=1)
    assert alone["cam"].shape[1] == 2
    both = sl.Window({"action": range(2), "cam": range(2)}, clock=30)  # whoever insists on one gets it
    assert len(list(sl.Loader(ds, window=both, batch_size=1))) == sum(COUNTS)


def test_init_writes_the_rate_that_the_files_show(tmp_path) -> None:
    place = episodes(tmp_path / "in")
    metadata = sl.init(place)
    assert metadata.column_types["cam"] == sl.Video(fps=30)
    ds = sl.open(place)
    assert [str(one) for one in ds.validate(depth="decode") if one.severity != "note"] == []
    (batch, *_) = sl.Loader(ds, window={"action": [0], "cam": [0]}, batch_size=12, shuffle=False)
    assert batch["cam_mask"].all()


def test_init_writes_no_rate_that_files_do_not_share_or_show(tmp_path) -> None:
    place = episodes(tmp_path / "in")
    (place / "1.mp4").write_bytes(clips.encode(times=[0, 1, 5, 6, 9, 20, 21]))
    assert sl.init(place, dry_run=True).column_types["cam"] == sl.Video()
    (place / "1.mp4").unlink()
    assert sl.init(place, dry_run=True).column_types["cam"] == sl.Video(fps=30), "the one that is there"
    (place / "0.mp4").write_bytes(b"no video")
    assert sl.init(place, dry_run=True).column_types["cam"] == sl.Video()


@pytest.mark.parametrize(
    "rate", [Fraction(30), Fraction(30000, 1001), Fraction(24000, 1001), Fraction(25, 2), Fraction(5)]
)
@pytest.mark.parametrize("tick", [Fraction(1, 1000), Fraction(1, 90_000), Fraction(1, 15360)])
def test_a_rate_is_told_by_rounded_times(rate, tick) -> None:
    ticks = np.array([round(number / rate / tick) for number in range(3000)])
    assert even_rate(ticks, tick) == rate
    ticks[1000:] += round(1 / tick)
    assert even_rate(ticks, tick) is None
