"""No silent wrong frame: each clip of the zoo equals a sequential decode by every way to its frames, or is an error."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import numpy as np
import pytest
from av.video.reformatter import Interpolation, VideoReformatter

import seqlake as sl
from seqlake.dataset.reshaping.trimming import segment, trim
from seqlake.errors import CorruptFileError, CorruptFrameError, ValidationError
from seqlake.media import video
from seqlake.protocols import Source

from ..counting import Counts, many, seeded  # noqa: TID252 - tests are no package that could be named
from . import zoo

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    ("h264-refresh.flv+zeros0", True),  # damage that nobody notices, and that shows another past from each key
    ("h264.avi+short", False),
    ("h264.flv+zeros103", False),  # a reference that is shown, and known to be damaged, long after what refers to it
    ("ffv1-crc.matroska+flip0", False),  # a checksum that FFmpeg only logs
    ("ffv1-crc.avi+flips0", False),
    ("flashsv.nut+flips0", False),  # the same, of a zlib stream: what is missing is what memory held
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


@cache
def clip_of(name: str, folder: Path) -> zoo.Clip:
    bred, _, how = name.partition("+")
    encoder, container = bred.split(".")
    one = zoo.Clip(bred, zoo.encoded(next(one for one in zoo.ENCODERS if one[0] == encoder), container, folder))
    if not one.data:
        pytest.skip(f"this ffmpeg does not make {bred}")
    made = one if not how else zoo.treatment(one, how, folder)
    assert made is not None
    return made


@pytest.mark.sampled(every=3)
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


def damage_told(clip: zoo.Clip, root: Path) -> bool:
    """Whether `validate` says that the file is damaged."""
    report = dataset_of({clip.name: clip}, root).validate(depth="decode")
    return any(one.code == "F431" for one in report.findings)


@pytest.mark.parametrize("name", ["hevc-open.nut+flip100", "hevc.matroska+zeros100"])
def test_pictures_of_what_memory_held_are_found_by_validation(name: str, folder: Path, tmp_path: Path) -> None:
    """FFmpeg leaves a slice of HEVC that ends early as it found it, and says nothing."""
    assert damage_told(clip_of(name, folder), tmp_path)


def test_what_ffmpeg_does_not_flag_is_known_of_a_file_that_was_copied_in(folder: Path, tmp_path: Path) -> None:
    """By the CRC of each packet; and where the index of packets is gone, too, by the SHA-256 of the file."""
    whole = clip_of("hevc.matroska", folder)
    ds = dataset_of({"a": whole}, tmp_path)
    Path(ds["a"]["cam"].location).write_bytes(clip_of("hevc.matroska+zeros100", folder).data)
    with pytest.raises(CorruptFrameError):
        sl.open(ds.root)["a"]["cam"][:]
    shutil.rmtree(Path(ds.root, "_seqlake", "media"))
    frames = sl.open(ds.root)["a"]["cam"][:]
    shown = [rgb(one) for one in zoo.played(whole.data, keep=True)]
    assert len(frames) == len(shown)
    assert any((one != other).any() for one, other in zip(frames, shown, strict=True))
    with pytest.raises(CorruptFileError, match="copied in"):
        sl.open(ds.root, verify="first")["a"]["cam"][0]


def test_validation_finds_nothing_in_hevc_that_is_whole(folder: Path, tmp_path: Path) -> None:
    assert not damage_told(clip_of("hevc-open.mpegts+joined", folder), tmp_path)


# ---- what training sees, and what is written of them
def rgb(shown: zoo.Shown) -> np.ndarray:
    """One picture by PyAV's own converter."""
    made = VideoReformatter().reformat(shown.frame, format="rgb24", interpolation=Interpolation.BICUBIC, threads=1)
    return made.to_ndarray()


def dataset_of(clips: dict[str, zoo.Clip], root: Path) -> sl.Dataset:
    ds = sl.create(root / "ds", sl.Schema({"cam": sl.Video(fps=30)}))
    for number, clip in enumerate(clips.values()):
        (root / f"{number}.bin").write_bytes(clip.data)
    ds.append([{"sequence_id": name, "cam": sl.File(root / f"{number}.bin")} for number, name in enumerate(clips)])
    return ds


def seen(clip: zoo.Clip) -> dict[int, zoo.Shown]:
    """Number to what a plain decode shows there."""
    uncut = zoo.played(clip.whole, keep=True) if clip.whole else []
    decoder = video.open(Source(blob=clip.data, column=sl.Video()))
    return zoo.meant(decoder, zoo.played(clip.data, keep=True), uncut)


def test_a_loader_delivers_them(folder: Path, tmp_path: Path) -> None:
    """In windows, shuffled, some of one clip in a batch; what is damaged has a mask and no picture."""
    clips = {name: clip_of(name, folder) for name, _ in SAMPLE}
    truth = {name: {number: rgb(one) for number, one in seen(clip).items()} for name, clip in clips.items()}
    window = sl.Window({"cam": [-2, 0, 1, 5]}, stride=3, edges="pad")
    loader = sl.Loader(dataset_of(clips, tmp_path), window=window, batch_size=16, seed=3).tail("pad")
    damaged = {name for name, whole in SAMPLE if not whole}
    delivered = Counter[str]()
    for batch in loader.on_error("mask", budget=None):
        for name, start, frames, mask in zip(
            batch["sequence_id"], batch["start"], batch["cam"], batch["cam_mask"], strict=True
        ):
            if name is None:
                continue  # what fills up the last batch
            for offset, frame, there in zip([-2, 0, 1, 5], frames, mask, strict=True):
                number = int(start) + offset
                assert there <= (number in truth[name]), (name, number)
                assert there or name in damaged or number not in truth[name], (name, number)
                np.testing.assert_array_equal(frame, truth[name][number] if there else 0, err_msg=f"{name} {number}")
                delivered[name] += int(there)
    assert all(delivered[name] > 0 for name in clips)


WRITTEN = {
    "trim": SAMPLE,
    "segment": [("h264.mp4", True), ("hevc.mp4", True), ("vp9.webm", True), ("mpeg4-b.avi", True)],
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("how", "name", "whole"), [(how, *one) for how, every in WRITTEN.items() for one in every])
def test_what_is_cut_out_of_them_shows_the_same(how: str, name: str, whole: bool, folder: Path, tmp_path: Path) -> None:
    """Copied frames to the last bit, encoded ones nearest to theirs; damage may be refused, before or after."""
    clip = clip_of(name, folder)
    ds, truth = dataset_of({name: clip}, tmp_path), seen(clip)
    pictures = {number: rgb(one).astype(np.int16) for number, one in truth.items()}
    total = len(ds[name]["cam"])
    pieces = [(5, total - 3)] if how == "trim" else [(begin, min(begin + 9, total)) for begin in range(0, total, 9)]
    try:
        out = tmp_path / "out"
        made = trim(ds, out, start=5, stop=-3) if how == "trim" else segment(ds, out, length=9)
    except ValidationError as error:
        if whole and "needs an encoder" not in str(error):
            raise
        return
    assert [file.frames for file in made.files] == [end - begin for begin, end in pieces]
    for file, (begin, end) in zip(made.files, pieces, strict=True):
        cam = made.dataset[file.sequence_id]["cam"]
        written = seen(zoo.Clip(name, cam.read()))
        assert len(written) == end - begin or not whole
        same = 0
        for number, one in written.items():
            try:
                frame = cam[number]
            except CorruptFrameError:
                assert not whole
                same += 1  # as damaged as it was
                continue
            np.testing.assert_array_equal(frame, rgb(one))
            same += one.planes == truth[begin + number].planes
            near = {n: pictures[n] for n in range(begin + number - 1, begin + number + 2) if n in truth}
            errors = {n: int(np.abs(frame - picture).sum()) for n, picture in near.items()}
            assert min(errors, key=errors.__getitem__) == begin + number
        assert same >= file.frames - file.encoded


# ---- all of it
def sampled(clip: zoo.Clip, folder: Path) -> Iterator[zoo.Clip]:
    """A clip, and a third of what may become of it, the same ones each time."""
    yield clip
    rng = random.Random(f"{clip.name}{seeded(0) or ''}")
    for how in zoo.treatments(clip):
        if rng.random() < 1 / 3:
            made = zoo.treatment(clip, how, folder)
            if made is not None:
                yield made


@pytest.mark.soak
@pytest.mark.mutations
def test_the_whole_zoo(tmp_path: Path) -> None:
    """Three of ten clips, others with another seed. What is delivered is compared with two releases of FFmpeg."""
    counts, frames = Counter[str](), 0
    told = Counts(reader="video, the zoo of ffmpeg's clips")
    other = Counts(reader="video, the zoo beside the ffmpeg command")
    dice, share = random.Random(seeded(5)), many(300) / 1000
    for bred in zoo.bred(tmp_path):
        if dice.random() >= share:
            continue
        for clip in sampled(bred, tmp_path):
            counts["clips"] += 1
            told.mutations += 1
            try:
                verdict = zoo.judged(clip)
                found = zoo.beside(clip, tmp_path)
                told_so = bool(verdict.wrong) and damage_told(clip, Path(mkdtemp(dir=tmp_path)))
            except Exception as error:  # what is counted
                told.bare += 1
                told.examples.append(f"{clip.name}: {error!r}")
                continue
            frames += verdict.frames
            counts.update(right=verdict.right, refused=verdict.refused, wrong=len(verdict.wrong))
            told.refused += bool(verdict.error)
            told.wrong += bool(verdict.wrong) and not told_so
            told.right += not verdict.error and (not verdict.wrong or told_so)
            told.examples += [f"{clip.name}: {one}" for one in verdict.wrong[:1] if not told_so]
            counts[f"beside the command: {found}"] += 1
            if zoo.comparable(clip, found):
                other.mutations += 1
                other.right += found in {"same", "rounded"}
                other.wrong += found not in {"same", "rounded"}
                other.examples += [clip.name] if found not in {"same", "rounded"} else []
    for one in (told, other):
        one.keep()
    print(f"{dict(counts)}, {frames} frames")
    assert (told.bad(), told.examples) == ({}, [])
    assert (other.bad(), other.examples) == ({}, [])
    assert counts["clips"] > 1000 * share
