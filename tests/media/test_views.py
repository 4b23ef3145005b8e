"""What a sequence hands out: frames by number, by time and by stream, from files, shared files and cells."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqlake as sl
from seqlake import media
from seqlake.dataset.reading.views import FileView, MediaView, StepsView
from seqlake.errors import CorruptFileError, MissingFileError, UnsafeReferenceError
from seqlake.files.stores import open_blob, open_store
from seqlake.media._frames import Frames, LazyDecoder
from seqlake.protocols import Source

from . import clips
from .test_image import jpeg, png, random

if TYPE_CHECKING:
    from seqlake.protocols import Decoder

JPEGS = [jpeg(clips.picture(number)) for number in range(8)]
DEPTHS = [png(random((20, 30), "u2", number), 0) for number in range(3)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two sequences with every kind of media column."""
    import pyarrow.parquet as pq

    root = tmp_path_factory.mktemp("media")
    for name in ("uneven times, mp4", "several streams"):
        (root / f"{name}.mp4").write_bytes(clips.clip(name))
    for number, depth in enumerate(DEPTHS):
        (root / f"{number}.png").write_bytes(depth)
    table = pa.table(
        {
            "sequence_id": ["a", "b"],
            "cam": ["uneven times, mp4.mp4", "several streams.mp4"],
            "part": pa.array([{"url": "uneven times, mp4.mp4", "first_frame": 4, "num_frames": 6}, None]),
            "image_0": pa.array([JPEGS, [JPEGS[0], None]], pa.list_(pa.binary())),
            "depth": pa.array([["0.png", "1.png", "2.png"], []], pa.list_(pa.string())),
            "still": ["1.png", None],
            "sound": pa.array([None, "several streams.mp4"], pa.string()),
            "log": ["0.png", "gone.mcap"],
        }
    )
    pq.write_table(table, root / "part.parquet")
    return root


TYPES = {
    "cam": sl.Video(fps=30),
    "part": sl.Video(fps=30),
    "image_0": sl.Image(fps=10),
    "depth": sl.Image(),
    "still": sl.Image(),
    "sound": sl.Audio(),
    "log": sl.ColumnType("mcap"),
}


@pytest.fixture
def rows(root: Path) -> sl.Selection:
    return sl.scan(root, column_types=TYPES)


def expected(name: str, column: sl.ColumnType | None = None) -> np.ndarray:
    """All frames as the decoder gives them, whose truth is another test's."""
    decoder = media.open(Source(blob=clips.clip(name), column=column or sl.Video()))
    return decoder.read(np.arange(len(decoder)))


def test_a_video_is_indexed_like_an_array(rows: sl.Selection) -> None:
    cam, every = rows["a"]["cam"], expected("uneven times, mp4")
    assert isinstance(cam, MediaView)
    assert len(cam) == len(every) == len(clips.UNEVEN)
    for which in (slice(3, 7), slice(None, None, -6), slice(-2, None), slice(50, 60), [4, 0, 4, -1], np.array([2, 9])):
        np.testing.assert_array_equal(cam[which], every[which], strict=True)
    np.testing.assert_array_equal(cam[5], every[5], strict=True)
    np.testing.assert_array_equal(cam[-1], every[-1], strict=True)
    assert cam.decode([1, 2], size=(16, 24)).shape == (2, 16, 24, 3)
    for beyond in (len(every), -len(every) - 1):
        with pytest.raises(IndexError):
            cam[beyond]
    with pytest.raises(TypeError, match="number, slice or a list"):
        cam[0.5]
    np.testing.assert_array_equal(np.stack(list(cam)), every)


def test_time_finds_the_latest_frame_that_is_shown(rows: sl.Selection) -> None:
    cam, every = rows["a"]["cam"], expected("uneven times, mp4")
    shown = [Fraction(one, 30) for one in clips.UNEVEN]
    assert [Fraction(int(one - cam.pts[0])) * cam.time_base for one in cam.pts] == shown
    np.testing.assert_allclose(cam.seconds, [float(one) for one in shown], rtol=1e-15)
    exact = cam.numbers_at([float(one) for one in shown])  # floats that mean a frame's time are its time
    assert exact.tolist() == list(range(len(shown)))
    assert cam.numbers_at([0.7, Fraction(7, 10), 0.699, 99, 0]).tolist() == [9, 9, 8, 24, 0]
    assert cam.numbers_at(np.float32([0.1, 0.7])).tolist() == [2, 9]
    np.testing.assert_array_equal(cam.at(seconds=[0.7, 0.0]), every[[9, 0]])
    np.testing.assert_array_equal(cam.at(seconds=0.35), every[5])
    np.testing.assert_array_equal(cam.at(seconds=1), every[12])
    with pytest.raises(IndexError, match="first frame is shown at 0 seconds"):
        cam.at(seconds=[0.5, -0.1])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", clips.CLIPS)
def test_every_frame_is_found_at_its_own_time(tmp_path: Path, name: str) -> None:
    (tmp_path / "clip").write_bytes(clips.clip(name))
    cam = MediaView("clip", root=str(tmp_path), column=sl.Video())
    assert cam.numbers_at(cam.seconds).tolist() == list(range(len(cam)))


class Stamped(Frames):
    """Frames that are shown at given ticks."""

    def __init__(self, pts: list[int], time_base: Fraction) -> None:
        self._held = LazyDecoder()
        self._given = pts, time_base

    def _open(self) -> Decoder:
        return self  # type: ignore[return-value]  # what times need of one

    def __len__(self) -> int:
        return len(self._given[0])

    @property
    def pts(self) -> np.ndarray:
        return np.array(self._given[0], np.int64)

    @property
    def time_base(self) -> Fraction:
        return self._given[1]


@given(
    start=st.integers(-(10**9), 10**15),
    gaps=st.lists(st.integers(1, 10**12), max_size=20),
    base=st.sampled_from([Fraction(1, n) for n in (7, 30, 600, 1000, 90_000, 10**6, 10**7, 14_112_000, 10**9)]),
    exact=st.booleans(),
)
def test_times_that_ascend_find_their_frames_whatever_a_tick_is(
    start: int, gaps: list[int], base: Fraction, exact: bool
) -> None:
    while sum(gaps) * base > 10**6:  # eleven days: beyond it floats tell no nanoseconds
        gaps = [gap // 1000 or 1 for gap in gaps]
    cam = Stamped(list(accumulate(gaps, initial=start)), base)
    seconds = [(tick - start) * base for tick in cam.pts.tolist()] if exact else cam.seconds
    assert cam.numbers_at(seconds).tolist() == list(range(len(cam)))


def test_a_container_that_counts_milliseconds_shows_each_frame_when_it_was_meant() -> None:
    cam = Stamped([round(k * 1001 / 30) for k in range(300)], Fraction(1, 1000))  # as Matroska writes NTSC
    assert cam.numbers_at([Fraction(k * 1001, 30_000) for k in range(300)]).tolist() == list(range(300))
    assert cam.numbers_at([k * 1001 / 30_000 for k in range(300)]).tolist() == list(range(300))
    assert cam.numbers_at([0.0322, 0.0326]).tolist() == [0, 1]  # half a tick before 33 ms
    frames = Stamped(list(range(30)), Fraction(1, 30))  # a tick as long as a frame is exact
    assert frames.numbers_at([0.05, 0.0655, 0.066]).tolist() == [1, 1, 2]
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="times in seconds"):
            cam.numbers_at([wrong])
    assert cam.numbers_at([1e300]).tolist() == [299]


def test_late_files_begin_at_their_own_first_frame(tmp_path: Path) -> None:
    (tmp_path / "late.mkv").write_bytes(clips.clip("late start, mkv"))
    cam = MediaView("late.mkv", root=str(tmp_path), column=sl.Video())
    np.testing.assert_array_equal(cam.at(seconds=0), cam[0])
    assert cam.seconds[0] == 0
    assert cam.pts[0] > 0


def test_streams_are_chosen(rows: sl.Selection) -> None:
    cam = rows["b"]["cam"]
    assert cam[0].shape == (clips.HEIGHT, clips.WIDTH, 3)
    other = cam.stream(0)
    assert (len(other), other[3].shape) == (30, (48, 64, 3))
    np.testing.assert_array_equal(other[:], expected("several streams", sl.Video(stream=0)))
    assert cam.column == sl.Video(fps=30)


def test_a_shared_file_has_parts(rows: sl.Selection) -> None:
    part, every = rows["a"]["part"], expected("uneven times, mp4")
    assert (len(part), part.first, part.count) == (6, 4, 6)
    np.testing.assert_array_equal(part[:], every[4:10])
    np.testing.assert_array_equal(part.at(seconds=0), every[4])
    assert len(part.stream(0)) == 6
    assert rows["b"]["part"] is None


def test_cells_of_images_decode_and_keep_their_bytes(rows: sl.Selection) -> None:
    frames = rows["a"]["image_0"]
    assert isinstance(frames, StepsView)
    assert len(frames) == 8
    found = frames[3:7]
    assert (found.shape, found.dtype) == ((4, clips.HEIGHT, clips.WIDTH, 3), np.uint8)
    for number, picture in zip(range(3, 7), found, strict=True):
        assert np.abs(picture.astype(int) - clips.picture(number)).mean() < 15
    assert frames.cells == JPEGS
    assert frames.bytes(3) == JPEGS[3]
    np.testing.assert_array_equal(frames.at(seconds=0.39), frames[3])
    short = rows["b"]["image_0"]
    assert short.bytes(1) is None
    np.testing.assert_array_equal(short[0], frames[0])
    with pytest.raises(ValueError, match="Step 1 has no picture"):
        short[:]
    assert frames == rows["a"]["image_0"]
    assert frames != short
    assert repr(frames) == "StepsView(8 images)"


def test_one_image_file_a_step(rows: sl.Selection) -> None:
    depth = rows["a"]["depth"]
    truth = np.stack([random((20, 30), "u2", number) for number in range(3)])[..., None]
    np.testing.assert_array_equal(depth[:], truth, strict=True)
    assert depth.bytes(1) == DEPTHS[1]
    assert [cell.reference for cell in depth.cells] == ["0.png", "1.png", "2.png"]
    assert rows["b"]["depth"][:].shape[0] == 0


def test_stills_sound_and_what_nothing_decodes(rows: sl.Selection) -> None:
    first, second = rows["a"], rows["b"]
    np.testing.assert_array_equal(first["still"][0], random((20, 30), "u2", 1)[..., None])
    assert first["still"].read() == DEPTHS[1]
    sound = second["sound"]
    assert (sound[100:200].shape, sound[5].shape) == ((100, 1), (1,))
    np.testing.assert_array_equal(sound.at(seconds=[0.5]), sound[[8000]])
    assert type(first["log"]) is FileView
    assert first["log"].read() == DEPTHS[0]


def test_a_view_is_true_travels_and_serves_threads(rows: sl.Selection) -> None:
    missing = MediaView("nowhere.mp4", root="/nowhere", column=sl.Video())
    assert missing
    with pytest.raises(MissingFileError):
        len(missing)
    cam, every = rows["a"]["cam"], expected("uneven times, mp4")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(cam))[2:4], every[2:4])
    steps = pickle.loads(pickle.dumps(rows["a"]["image_0"]))
    assert steps[2:4].shape[0] == 2
    numbers = np.random.default_rng(0).integers(0, len(every), 40).tolist()
    with ThreadPoolExecutor(2) as pool:
        for number, frame in zip(numbers, pool.map(cam.__getitem__, numbers), strict=True):
            np.testing.assert_array_equal(frame, every[number])


@pytest.mark.parametrize("mapped", ["true", "false"])
def test_a_file_that_goes_while_it_is_read_is_an_error_of_ours(tmp_path: Path, mapped: str) -> None:
    """As a vacuum takes those of a version that expired."""
    (tmp_path / "log.bin").write_bytes(b"log")
    ds = sl.create(tmp_path / "ds", sl.Schema({"still": sl.Image(), "log": sl.ColumnType("mcap")}))
    (tmp_path / "still.png").write_bytes(DEPTHS[0])
    row = {"still": sl.File(tmp_path / "still.png"), "log": sl.File(tmp_path / "log.bin")}
    ds.append([{"sequence_id": name, **row} for name in "ab"])
    before = sl.open(ds.root, storage={"mmap": mapped})
    still, log = before["a"]["still"], before["a"]["log"]
    assert still[0].shape[:2] == (20, 30)
    ds.delete(ids=["a", "b"])
    ds.vacuum(older_than=timedelta(0))
    assert not Path(log.location).exists()
    for read in (log.read, log.blob, lambda: log.size, lambda: before["b"]["still"][0]):
        with pytest.raises(MissingFileError, match="is not there") as gone:
            read()
        assert isinstance(gone.value, FileNotFoundError)
    with suppress(MissingFileError):  # held by then, or not
        assert still[0].shape[:2] == (20, 30)


def _pictures_in_a_child(cam: MediaView) -> np.ndarray:
    return cam[2:4]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_has_a_decoder_of_its_own(rows: sl.Selection, method: str) -> None:
    cam = rows["a"]["cam"]
    mine = cam[2:4]
    with multiprocessing.get_context(method).Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_pictures_in_a_child, (cam,)), mine)


def test_views_are_equal_when_they_show_the_same(rows: sl.Selection) -> None:
    cam = rows["b"]["cam"]
    assert cam == rows["b"]["cam"]
    assert hash(cam) == hash(rows["b"]["cam"])
    assert cam != cam.stream(0)
    assert rows["a"]["cam"] != rows["a"]["part"]


def test_references_that_leave_the_root_are_not_opened(tmp_path: Path, root: Path) -> None:
    view = MediaView(str(root / "several streams.mp4"), root=str(tmp_path), column=sl.Video())
    with pytest.raises(UnsafeReferenceError, match="allow_outside"):
        view[0]


def test_a_replaced_file_is_indexed_anew(tmp_path: Path) -> None:
    for name in ("uneven times, mp4", "h264 training profile"):
        (tmp_path / "new.mp4").write_bytes(clips.clip(name))
        (tmp_path / "new.mp4").replace(tmp_path / "cam.mp4")
        np.testing.assert_array_equal(MediaView("cam.mp4", root=str(tmp_path), column=sl.Video())[:], expected(name))
    (tmp_path / "cam.mp4").write_bytes(b"no video" * 99)
    with pytest.raises(CorruptFileError):
        len(MediaView("cam.mp4", root=str(tmp_path), column=sl.Video()))


@pytest.mark.parametrize("name", ["h264 with B-frames", "late start, ts"])
def test_by_range_from_s3(s3_bucket, name: str) -> None:
    open_store(s3_bucket.uri, storage=s3_bucket.storage).put("cam/1", clips.clip(name))
    cam = MediaView("cam/1", root=s3_bucket.uri, column=sl.Video(), storage=s3_bucket.storage)
    every = expected(name)
    assert len(cam) == len(every)
    for number in (30, 3, 17):
        np.testing.assert_array_equal(cam[number], every[number])
    np.testing.assert_array_equal(cam[:], every)
    blob = open_blob(cam.location, storage=s3_bucket.storage)
    kept = media.index(Source(blob=blob, column=sl.Video()))[0]
    decoder = media.open(Source(blob=blob, column=sl.Video(), index=kept))
    np.testing.assert_array_equal(decoder.read(np.array([20, 21])), every[20:22])
