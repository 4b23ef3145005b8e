"""Whole sequences with their frames, padded and end to end, against frames decoded in sequence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

import seqlake as sl
from seqlake.errors import CorruptFrameError

from ...media import clips  # noqa: TID252 - tests are no package that could be named
from ...media.test_image import png  # noqa: TID252 - the same
from .. import films  # noqa: TID252 - the same


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    return films.arm(tmp_path_factory.mktemp("films"))


def whole(source, columns, *, packed, **options):
    options = {"batch_size": 2, "seed": 4, **options}
    return sl.Loader(source, window=sl.Whole(columns, packed=packed), **options).tail("pad")


def sequences(batch, name, *, packed):
    """The frames of each sample."""
    if packed:
        ends = batch[f"{name}_offsets"]
        assert ends[0] == 0
        assert ends[-1] == len(batch[name]) == len(batch[f"{name}_mask"])
        return [batch[name][low:high] for low, high in pairwise(ends)]
    lengths = batch[f"{name}_length"]
    assert batch[name].shape[:2] == batch[f"{name}_mask"].shape == (len(lengths), lengths.max(initial=0))
    for frames, length in zip(batch[name], lengths, strict=True):
        assert not frames[length:].any()
    return [frames[:length] for frames, length in zip(batch[name], lengths, strict=True)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_frame_of_every_sequence(arm, packed, shuffle):
    loader = whole(arm, ["cam", "wrist", "action"], packed=packed, shuffle=shuffle)
    assert "cam: whole" in str(loader.plan())
    seen = []
    for batch in loader:
        for column, which in (("cam", 0), ("wrist", 1)):
            assert batch[column].dtype == np.uint8
            for name, frames in zip(batch["sequence_id"], sequences(batch, column, packed=packed), strict=True):
                film = films.EPISODES[int(name[-1])][which]
                assert_array_equal(frames, films.frames(film) if film else np.zeros((0, *frames.shape[1:]), np.uint8))
        steps = batch["action_offsets" if packed else "action_length"]
        assert (np.diff(steps) if packed else steps).tolist() == [films.STEPS] * len(batch["sequence_id"])
        seen += [name for name, valid in zip(batch["sequence_id"], batch["valid"], strict=True) if valid]
    assert sorted(seen) == [f"ep_{row}" for row in range(5)]
    report = loader.report()
    assert report.frames_decoded > 0


def test_frames_are_scaled_and_turned(arm):
    loader = whole(arm, ["cam"], packed=True, batch_size=5, shuffle=False).frames(size=(24, 32), layout="TCHW")
    (batch,) = loader
    assert batch["cam"].shape[1:] == (3, 24, 32)
    first = batch["cam"][: batch["cam_offsets"][1]]
    assert_array_equal(first.transpose(0, 2, 3, 1), films.frames("b", (24, 32)))
    (padded,) = whole(arm, ["cam"], packed=False, batch_size=5, shuffle=False).frames(layout="TCHW")
    assert_array_equal(padded["cam"][0].transpose(0, 2, 3, 1)[:60], films.frames("b")[:60])


@pytest.mark.parametrize("packed", [False, True])
def test_images_in_rows(tmp_path, packed):
    rows = [[0, 1, None, 3], [], None, [7, 8]]
    cells = [
        None if row is None else [None if n is None else png(clips.picture(n, 20, 16), 2) for n in row] for row in rows
    ]
    table = pa.table({"sequence_id": ["a", "b", "c", "d"], "view": pa.array(cells, pa.list_(pa.binary()))})
    (tmp_path / "rows").mkdir()
    pq.write_table(table, tmp_path / "rows" / "0.parquet")
    ds = sl.scan(tmp_path / "rows", column_types={"view": sl.Image(fps=10)})
    (batch,) = whole(ds, ["view"], packed=packed, batch_size=4, shuffle=False)
    for row, frames, there in zip(
        rows,
        sequences(batch, "view", packed=packed),
        sequences({"m": batch["view_mask"], "m_mask": batch["view_mask"], **_ends(batch)}, "m", packed=packed),
        strict=True,
    ):
        assert len(frames) == len(row or [])
        assert there.tolist() == [number is not None for number in row or []]
        for number, frame in zip(row or [], frames, strict=True):
            assert_array_equal(frame, 0 if number is None else clips.picture(number, 20, 16))


def _ends(batch):
    return {name.replace("view_", "m_"): batch[name] for name in batch if name in {"view_offsets", "view_length"}}


@pytest.mark.parametrize("packed", [False, True])
def test_parts_of_shared_files_and_mixtures(tmp_path, packed):
    kind = pa.struct([("url", pa.string()), ("first_frame", pa.int64()), ("num_frames", pa.int64())])
    cells = [(0, 5), (5, 9), (20, 3)]
    table = pa.table(
        {
            "sequence_id": ["a", "b", "c"],
            "cam": pa.array([{"url": "b.mp4", "first_frame": f, "num_frames": n} for f, n in cells], kind),
        }
    )
    (tmp_path / "rows").mkdir()
    films.write(tmp_path / "rows", ["b"])
    pq.write_table(table, tmp_path / "rows" / "0.parquet")
    ds = sl.scan(tmp_path / "rows", column_types={"cam": sl.Video(fps=30)})
    (alone,) = whole(ds, ["cam"], packed=packed, batch_size=3, shuffle=False)
    for (first, count), frames in zip(cells, sequences(alone, "cam", packed=packed), strict=True):
        assert_array_equal(frames, films.frames("b")[first : first + count])
    mix = sl.Mix({"x": (ds, 1), "y": (ds.where("sequence_id = 'b'"), 1)})
    for batch in whole(mix, ["cam"], packed=packed, batch_size=4):
        for name, frames in zip(batch["sequence_id"], sequences(batch, "cam", packed=packed), strict=True):
            first, count = cells["abc".index(name)]
            assert_array_equal(frames, films.frames("b")[first : first + count])


@pytest.mark.parametrize("packed", [False, True])
def test_damaged_files_cost_their_own_sequence(tmp_path, packed):
    ds = films.arm(tmp_path)
    clean = {}
    for batch in whole(ds, ["cam"], packed=packed):
        clean |= dict(zip(batch["sequence_id"], sequences(batch, "cam", packed=packed), strict=True))
    file = tmp_path / "arm" / ds["ep_0"]["cam"].reference
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 400] = bytes(byte ^ 0x5A for byte in data[middle : middle + 400])
    file.write_bytes(data)
    with pytest.raises(CorruptFrameError, match="ep_0"):
        list(whole(sl.open(tmp_path / "arm"), ["cam"], packed=packed))
    masked = whole(sl.open(tmp_path / "arm"), ["cam"], packed=packed).on_error("mask", budget=1)
    for batch in masked:
        assert not batch["valid"][batch["sequence_id"] == "ep_0"].any()
        for name, frames in zip(batch["sequence_id"], sequences(batch, "cam", packed=packed), strict=True):
            assert len(frames) == len(clean[name])
            if name != "ep_0":
                assert_array_equal(frames, clean[name])
    assert {entry.sequence_id for entry in masked.ledger} == {"ep_0"}
    other = whole(sl.open(tmp_path / "arm"), ["cam", "action"], packed=packed, batch_size=5).on_error(
        "substitute", budget=1
    )
    (batch,) = other
    assert batch["valid"].all()
    assert batch["substituted"].sum() == 1
    assert "ep_0" not in batch["sequence_id"]
    counts = batch["action_offsets" if packed else "action_length"]
    assert (np.diff(counts) if packed else counts).tolist() == [films.STEPS] * 5
    for name, frames in zip(batch["sequence_id"], sequences(batch, "cam", packed=packed), strict=True):
        assert_array_equal(frames, clean[name])
    steps = batch["action"].reshape(5, films.STEPS, 2)[:, 0, 1] // 100
    assert [f"ep_{int(step)}" for step in steps] == batch["sequence_id"].tolist()
