"""No silent wrong frame: each clip of the zoo equals a sequential decode by every way to its frames, or is an error."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import seqlake as sl
from seqlake.errors import CorruptFrameError

from ..counting import Counts  # noqa: TID252 - tests are no package that could be named
from . import zoo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs the ffmpeg command")

# What was once wrong, each in one clip: `encoder.container+treatment`, and whether all of it is right.
SAMPLE = [
    ("png.matroska", True),  # decoded with what was shown before where packets are not marked as keys
    ("png-pal.mov", True),
    ("raw-pal.nut", True),  # colours beside the packets
    ("smc.mov", True),
    ("xvid-b.avi", True),  # two pictures in a packet, and none in the next
    ("xvid-b.matroska", True),
    ("xvid-b.mp4", True),
    ("divx-b.avi", True),
    ("h264.mxf", True),  # presentation times that do not reorder
    ("h264.asf", True),
    ("h264.mpegts+twice", True),  # packets that the demuxer calls corrupt
    ("h264.mpegts+lost0", False),
    ("mpeg2-b.mpegts+lost1", False),
    ("h264.mp4+drop", False),  # references that are gone, without a word from FFmpeg
    ("h264-nob.mov+zeros0", False),  # missing macroblocks, and all that refer to them
    ("h264-refresh.matroska+cut", True),  # begins within a gradual refresh
    ("h264.avi+short", False),
    ("ffv1-crc.matroska+flip0", False),  # a checksum that FFmpeg only logs
    ("ffv1-crc.avi+flips0", False),
    ("vp8.avi+flips0", False),  # pictures that depend on what memory held
    ("mjpeg.avi+zeros0", False),
    ("mpeg2-b.matroska+flips0", False),
    ("theora.ogg", True),
    ("snow.nut", True),
    ("qtrle-grey.mov", True),
    ("hevc-open.mpegts+joined", True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def clip_of(name: str, folder: Path) -> zoo.Clip:
    bred, _, how = name.partition("+")
    encoder, container = bred.split(".")
    one = zoo.Clip(bred, zoo.encoded(next(one for one in zoo.ENCODERS if one[0] == encoder), container, folder))
    if not one.data:
        pytest.skip(f"this ffmpeg does not make {bred}")
    made = one if not how else zoo.treatment(one, how, folder)
    assert made is not None
    return made


@pytest.mark.parametrize(("name", "whole"), SAMPLE)
def test_frames_are_those_of_a_sequential_decode(name: str, whole: bool, folder: Path) -> None:
    verdict = zoo.judged(clip_of(name, folder))
    assert (verdict.error, verdict.wrong) == ("", [])
    assert verdict.right > 0
    assert not (whole and verdict.refused)


def test_no_frame_is_like_another(folder: Path) -> None:
    """Else a shift of the index would not be seen."""
    shown = zoo.played(clip_of("h264.mp4", folder).data)
    assert len({one.planes for one in shown}) == len(shown) == zoo.FRAMES


def test_a_dataset_tells_the_truth_about_them(folder: Path, tmp_path: Path) -> None:
    damaged, packed = clip_of("ffv1-crc.matroska+flip0", folder), clip_of("xvid-b.avi", folder)
    (tmp_path / "damaged.mkv").write_bytes(damaged.data)
    (tmp_path / "packed.avi").write_bytes(packed.data)
    ds = sl.create(tmp_path / "ds", sl.Schema({"cam": sl.Video(fps=30)}))
    ds.append([{"sequence_id": "a", "cam": sl.File(tmp_path / "damaged.mkv")}])
    ds.append([{"sequence_id": "b", "cam": sl.File(tmp_path / "packed.avi")}])
    found = [one for one in ds.validate(depth="decode").findings if one.severity == "error"]
    assert {(one.code, one.sequence_id) for one in found} == {("F431", "a")}
    with pytest.raises(CorruptFrameError):
        ds["a"]["cam"][:]
    assert len(ds["b"]["cam"][:]) == len(zoo.played(packed.data))


# ---- all of it
def sampled(clip: zoo.Clip, folder: Path) -> Iterator[zoo.Clip]:
    """A clip, and a third of what may become of it, the same ones each time."""
    yield clip
    rng = random.Random(clip.name)
    for how in zoo.treatments(clip):
        if rng.random() < 1 / 3:
            made = zoo.treatment(clip, how, folder)
            if made is not None:
                yield made


@pytest.mark.soak
@pytest.mark.mutations
def test_the_whole_zoo(tmp_path: Path) -> None:
    """About 2 500 clips; an hour on two cores."""
    counts, frames = Counter[str](), 0
    told = Counts(reader="video, the zoo of ffmpeg's clips")
    for bred in zoo.bred(tmp_path):
        for clip in sampled(bred, tmp_path):
            counts["clips"] += 1
            told.mutations += 1
            try:
                verdict = zoo.judged(clip)
            except Exception as error:  # what is counted
                told.bare += 1
                told.examples.append(f"{clip.name}: {error!r}")
                continue
            frames += verdict.frames
            counts.update(right=verdict.right, refused=verdict.refused, wrong=len(verdict.wrong))
            told.refused += bool(verdict.error)
            told.wrong += bool(verdict.wrong)
            told.right += not verdict.error and not verdict.wrong
            told.examples += [f"{clip.name}: {one}" for one in verdict.wrong[:1]]
    told.keep()
    print(f"{dict(counts)}, {frames} frames")
    assert (told.wrong, told.bare, told.examples) == (0, 0, [])
    assert counts["clips"] > 300
