"""Frames are provably the right ones: each equals FFmpeg's own sequential decode, whichever way it is reached."""

from __future__ import annotations

import io
import re
import threading
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest
from av.filter import Graph

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.stores import open_blob
from seqlake.media import video
from seqlake.media.video.packets import HIDDEN, OPEN, PacketIndex
from seqlake.protocols import Source
from seqlake.spec.column_types import Video
from seqlake.testing.media import DecoderTests

from . import clips

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REAL = Path(__file__).parents[3] / "shared" / "data" / "nasa_13013.mp4"
real = pytest.mark.skipif(not REAL.exists(), reason="needs ../shared/data beside the checkout")


def clip(name: str) -> bytes:
    return REAL.read_bytes() if name == "real" else clips.clip(name)


@cache
def truth(name: str, stream: int = 0) -> list[list[np.ndarray]]:
    return clips.sequential(clip(name), stream)


CASES = [
    *((name, 0) for name in clips.CLIPS),
    ("several streams", 1),
    pytest.param("real", 0, marks=real),
    pytest.param("real", 1, marks=real),
]


def opened(data: bytes, stream: int = 0, **fields: object) -> video.VideoDecoder:
    return video.open(Source(blob=data, column=Video(stream=stream), **fields))


def wrong(decoder: video.VideoDecoder, wanted: Iterable[int], expected: list[list[np.ndarray]]) -> list[int]:
    """Numbers of frames that did not come, or came with other pixels."""
    asked = list(wanted)
    got = {number: clips.planes(frame) for number, frame in decoder.planes(np.array(asked, np.int64))}
    return [
        number
        for number in asked
        if number not in got
        or not all(np.array_equal(a, b) for a, b in zip(got[number], expected[number], strict=True))
    ]


def needed(index: PacketIndex, frame: int) -> int:
    """Packets from the right key packet to the frame's own, in decoding order."""
    packet = int(index.order[frame])
    before = index.starts[(index.starts <= packet) & (index.pts[index.starts] <= index.pts[packet])]
    return packet + 1 - int(before[-1] if len(before) else index.starts[0])


class TestLaws(DecoderTests):
    @pytest.fixture
    def decoder(self) -> video.VideoDecoder:
        return opened(clip("h264 with B-frames"))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("name", "stream"), CASES)
def test_each_frame_is_the_right_one_by_every_way_to_it(name: str, stream: int) -> None:
    expected = truth(name, stream)
    decoder = opened(clip(name), stream)
    count = len(expected)
    assert len(decoder) == count
    order = np.random.default_rng(0).permutation(count)[:80]
    for sequence in (range(count), range(count - 1, max(-1, count - 80), -1), order):
        assert [number for number in sequence if wrong(decoder, [number], expected)] == []
    for start in [*range(0, count - 5, 5), *np.random.default_rng(1).integers(0, count - 5, 10).tolist()]:
        assert wrong(decoder, range(start, start + 5), expected) == []
    assert wrong(decoder, order.tolist(), expected) == []
    assert wrong(decoder, range(count), expected) == []


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.parametrize(("name", "stream"), CASES)
def test_a_kept_index_says_the_same(name: str, stream: int) -> None:
    data = clip(name)
    kept = video.index(Source(blob=data, column=Video()))[stream]
    decoder = opened(data, index=kept)
    made = opened(data, stream).packets
    for field in ("offset", "length", "pts", "flags", "crc", "order", "starts"):
        np.testing.assert_array_equal(getattr(decoder.packets, field), getattr(made, field), field)
    assert decoder.packets.stream == made.stream
    assert wrong(decoder, [0, len(decoder) - 1, 3], truth(name, stream)) == []


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("name", "stream"), CASES)
def test_a_random_read_feeds_no_more_than_it_must(name: str, stream: int) -> None:
    index = opened(clip(name), stream).packets
    worst = 0
    for number in np.random.default_rng(2).permutation(len(index.order))[:40].tolist():
        decoder = opened(clip(name), stream)
        list(decoder.planes(np.array([number])))
        worst = max(worst, decoder.fed - needed(index, number) - index.stream.reorder)
    assert worst <= 0 or name == "h264 intra refresh"


@pytest.mark.sampled(every=3, start=2)
@pytest.mark.parametrize("name", [name for name in clips.CLIPS if name != "h264 intra refresh"])
def test_going_on_feeds_each_packet_once(name: str) -> None:
    decoder = opened(clip(name))
    for number in range(len(decoder)):
        list(decoder.planes(np.array([number])))
    assert decoder.fed <= len(decoder.packets.pts)


@pytest.mark.sampled(every=3, start=1)
@pytest.mark.parametrize("name", [name for name in clips.CLIPS if name not in {"h264 intra refresh", "ffv1, odd size"}])
def test_a_long_slice_feeds_each_packet_once(name: str) -> None:
    decoder = opened(clip(name))
    index, last = decoder.packets, len(decoder) - 4
    assert wrong(decoder, range(3, last), truth(name)) == []
    begun = int(index.order[3]) + 1 - needed(index, 3)
    assert decoder.fed <= int(index.order[3:last].max()) + 1 - begun + index.stream.reorder


def times(data: bytes) -> list[tuple[int, Fraction]]:
    with av.open(io.BytesIO(data)) as container:
        return [(int(frame.pts or 0), Fraction(frame.time_base or 0)) for frame in container.decode(video=0)]


UNTOLD = {"raw h264", "mpeg4 with B-frames, avi"}  # the container tells no presentation times


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", [name for name in clips.CLIPS if name not in UNTOLD])
def test_times_are_those_of_the_container(name: str) -> None:
    decoder = opened(clip(name))
    found = [(int(pts), decoder.time_base) for pts in decoder.pts]
    assert found == times(clip(name))
    assert (np.diff(decoder.pts) > 0).all()


@pytest.mark.parametrize("name", sorted(UNTOLD))
def test_times_that_no_container_tells_still_ascend(name: str) -> None:
    decoder = opened(clip(name))
    assert (np.diff(decoder.pts) > 0).all()
    assert len(decoder.pts) == len(truth(name))


def test_uneven_times_are_not_made_even() -> None:
    decoder = opened(clip("uneven times, mp4"))
    assert [pts * decoder.time_base * 30 for pts in decoder.pts.tolist()] == clips.UNEVEN
    late = opened(clip("late start, mkv"))
    assert abs(float(late.pts[0] * late.time_base) - 5.5) < 0.002


def test_the_awkward_clips_are_what_they_are_called() -> None:
    """The cases above would show little if the clips had come out tame."""
    assert (opened(clip("h264 open groups")).packets.flags & OPEN).any()
    assert (opened(clip("h264 with B-frames")).packets.stream.reorder) > 0
    for name in ("edit list", "edit list, open groups", "edit list, hevc", "hevc cut at an open group"):
        assert (opened(clip(name)).packets.flags & HIDDEN).any(), name
    for name in ("h264 interlaced, ts", "late start, ts", "mpeg2 with B-frames"):
        assert not opened(clip(name)).packets.stream.placed, name
    index = opened(clip("hevc open groups")).packets
    assert any((index.pts[key:] < index.pts[key]).any() for key in index.starts[1:])
    assert opened(clip("ffv1, odd size")).size == (63, 95)
    assert [packet for packet, _ in opened(clip("two parameter sets, apart")).packets.stream.changes] == [clips.COUNT]
    assert not opened(clip("two parameter sets")).packets.stream.changes


# ---- pixels
LEFT = ":in_chroma_loc=left"


def scaled(
    frame: av.VideoFrame, flags: str = "bicubic", size: tuple[int, int] | None = None, *, chroma: str = LEFT
) -> np.ndarray:
    """RGB by the `scale` filter of the FFmpeg inside PyAV.

    H.264 and HEVC define chroma to lie left where the file says nothing, and FFmpeg marks their frames so; the filter
    has to be told, or takes it for centred.
    """
    width, height = size or (frame.width, frame.height)
    graph = Graph()
    source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 30))
    scale = graph.add("scale", f"{width}:{height}:flags={flags}{chroma}")
    last = graph.add("format", "rgb24")
    sink = graph.add("buffersink")
    source.link_to(scale)
    scale.link_to(last)
    last.link_to(sink)
    graph.configure()
    source.push(frame)
    return sink.pull().to_ndarray()


RGB_CASES = [
    "h264 with B-frames", "h264 4:4:4, odd size", "mjpeg", "vp9, odd size", "ffv1, odd size", "av1",
    pytest.param("real", marks=real),
]  # fmt: skip


@pytest.mark.parametrize("name", RGB_CASES)
def test_rgb_equals_the_scale_filter(name: str) -> None:
    decoder = opened(clip(name))
    wanted = [0, 7, 20]
    found = decoder.read(np.array(wanted))
    with av.open(io.BytesIO(clip(name))) as container:
        frames = [frame for number, frame in enumerate(container.decode(video=0)) if number in wanted]
        for frame, picture in zip(frames, found, strict=True):
            chroma = LEFT if decoder.packets.stream.codec in {"h264", "hevc"} else ""
            np.testing.assert_array_equal(picture, scaled(frame, chroma=chroma))


@pytest.mark.parametrize("name", ["h264 10 bit", "hevc 10 bit", "prores"])
def test_more_than_8_bits_are_not_cut_to_8(name: str) -> None:
    decoder = opened(clip(name))
    luma = truth(name)[3][0].view(np.uint16)
    np.testing.assert_array_equal(decoder.read(np.array([3]))[0, ..., 0], luma)
    assert luma.max() > 255
    assert wrong(decoder, [3], truth(name)) == []


@pytest.mark.parametrize(("matrix", "full"), [(1, False), (1, True), (5, False), (5, True)])
def test_rgb_follows_the_files_own_colour_tags(matrix: int, full: bool) -> None:
    def tagged(stream: av.VideoStream) -> None:
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if full else 1

    data = clips.encode(prepare=tagged, g="8", bf="0")
    found = opened(data).read(np.array([3]))[0]
    with av.open(io.BytesIO(data)) as container:
        frame = list(container.decode(video=0))[3]
    np.testing.assert_array_equal(found, scaled(frame))
    assert not np.array_equal(found, opened(clips.encode(g="8", bf="0")).read(np.array([3]))[0]) or matrix == 5


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_rotation_is_applied_to_rgb_and_not_to_planes(degrees: int) -> None:
    data = clips.encode(g="8", bf="0", prepare=lambda stream: clips.turn(stream, degrees))
    decoder = opened(data)
    with av.open(io.BytesIO(data)) as container:
        frame = next(container.decode(video=0))
    expected = np.rot90(scaled(frame), frame.rotation // 90)
    assert abs(frame.rotation) % 360 in {degrees, 360 - degrees}
    np.testing.assert_array_equal(decoder.read(np.array([0]))[0], expected)
    assert decoder.size == expected.shape[:2]
    assert wrong(decoder, [0], clips.sequential(data)) == []
    small = decoder.read(np.array([0]), size=(40, 40))
    assert small.shape == (1, 40, 40, 3)


@pytest.mark.parametrize(("size", "flags"), [((48, 32), "area"), ((192, 128), "bicubic"), ((31, 50), "area")])
def test_scaling_is_the_scale_filters(size: tuple[int, int], flags: str) -> None:
    found = opened(clip("h264 with B-frames")).read(np.array([5, 5, 2]), size=size)
    with av.open(io.BytesIO(clip("h264 with B-frames"))) as container:
        frames = list(container.decode(video=0))
    for picture, number in zip(found, (5, 5, 2), strict=True):
        np.testing.assert_array_equal(picture, scaled(frames[number], flags, size[::-1]))


# ---- streams and shared files
def test_the_largest_stream_is_the_one_unless_another_is_asked_for() -> None:
    data = clip("several streams")
    best = video.open(Source(blob=data, column=Video()))
    assert (best.packets.stream.number, best.size) == (1, (clips.HEIGHT, clips.WIDTH))
    assert opened(data, 0).size == (48, 64)
    with pytest.raises(DecodeError, match="no video stream 2; it has 0, 1"):
        opened(data, 2)
    with pytest.raises(DecodeError, match="device"):
        video.open(Source(blob=data, column=Video()), device="cuda")


def test_part_of_a_shared_file_is_counted_from_its_own_first_frame() -> None:
    expected = truth("h264 with B-frames")
    part = opened(clip("h264 with B-frames"), first=12, count=9)
    assert len(part) == len(part.pts) == 9
    assert wrong(part, range(9), expected[12:21]) == []
    assert len(opened(clip("h264 with B-frames"), first=35, count=99)) == len(expected) - 35
    with pytest.raises(IndexError, match="0 to 8"):
        part.read(np.array([9]))


# ---- bytes
class Ranged(MemoryBlob):
    """A remote blob: ranges only, each request noted."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.requests: list[int] = []

    def view(self) -> None:
        return None

    def ranges(self, starts: np.ndarray, stops: np.ndarray) -> list[memoryview]:
        self.requests.append(int((stops - starts).sum()))
        return super().ranges(starts, stops)


@pytest.mark.parametrize("name", ["h264 with B-frames", "late start, ts", "fragmented by time", "uneven times, mkv"])
def test_by_range_the_frames_are_the_same_and_only_their_bytes_are_read(name: str) -> None:
    data = clip(name)
    blob = Ranged(data)
    kept = video.index(Source(blob=blob, column=Video()))[0]
    decoder = video.open(Source(blob=blob, column=Video(), index=kept))
    blob.requests.clear()
    assert wrong(decoder, [20, 21], truth(name)) == []
    if decoder.packets.stream.placed:
        assert len(blob.requests) <= 2
        assert sum(blob.requests) < len(data) / 2
    assert wrong(decoder, np.random.default_rng(3).permutation(len(decoder)).tolist(), truth(name)) == []


def test_two_threads_have_a_decoder_each() -> None:
    expected, failed = truth("h264 with B-frames"), []
    path_free = clip("h264 with B-frames")

    def work(seed: int) -> None:
        decoder = opened(path_free)
        for number in np.random.default_rng(seed).integers(0, len(expected), 60).tolist():
            failed.extend(wrong(decoder, [number], expected))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_local_file_is_read_where_it_lies(tmp_path: Path) -> None:
    path = tmp_path / "cam.mp4"
    path.write_bytes(clip("h264 with B-frames"))
    decoder = video.open(Source(blob=open_blob(path), column=Video()))
    assert wrong(decoder, [3, 30], truth("h264 with B-frames")) == []
    decoder.close()
    assert wrong(decoder, [4], truth("h264 with B-frames")) == []


# ---- damage
CUT: dict[str, Callable[[], bytes]] = {
    "head first": lambda: clip("head first"),
    "fragmented": lambda: clip("fragmented by key frame"),
    "mkv": lambda: clip("h264 with a pyramid, mkv"),
}


@pytest.mark.parametrize("name", CUT)
def test_a_file_that_was_cut_short_is_read_up_to_the_cut(name: str) -> None:
    whole = CUT[name]()
    expected = clips.sequential(whole)
    cut = whole[: int(len(whole) * 0.7)]  # the fragmented one: inside the head of a fragment
    decoder = opened(cut)
    assert 5 < len(decoder) < len(expected)
    shown = {int(pts): number for number, pts in enumerate(opened(whole).pts)}
    numbers = [shown[int(pts)] for pts in decoder.pts]
    kept = [expected[number] for number in numbers]
    good = [number for number in range(len(decoder)) if not raised(decoder, number)]
    assert len(good) >= len(decoder) - decoder.packets.stream.reorder - 1
    assert [number for number in good if wrong(decoder, [number], kept)] == []


def raised(decoder: video.VideoDecoder, number: int) -> bool:
    try:
        list(decoder.planes(np.array([number])))
    except CorruptFrameError:
        return True
    return False


def test_a_cut_file_whose_head_comes_last_is_an_error() -> None:
    with pytest.raises(CorruptFileError, match="moov"):
        opened(clip("h264 with B-frames")[: -len(clip("h264 with B-frames")) // 4])
    with pytest.raises(CorruptFileError, match="holds no video"):
        opened(clip("h264 with B-frames")[:-500])  # part of the moov is there
    with pytest.raises(CorruptFileError):
        opened(b"no video at all" * 100)


def test_a_flipped_byte_is_found_by_the_kept_index() -> None:
    data = bytearray(clip("h264 training profile"))
    kept = video.index(Source(blob=bytes(data), column=Video()))[0]
    index = PacketIndex.from_bytes(kept)
    packet = int(index.order[17])
    data[int(index.offset[packet] + index.length[packet] // 2)] ^= 0x10
    decoder = video.open(Source(blob=bytes(data), column=Video(), index=kept))
    for number in (17, 20, 23):  # to the end of its group of pictures
        with pytest.raises(CorruptFrameError, match="frame 17 is damaged: the bytes of packet 17"):
            decoder.read(np.array([number]))
    assert wrong(decoder, [*range(17), *range(24, 40)], truth("h264 training profile")) == []


def test_a_kept_index_of_another_file_is_refused() -> None:
    kept = video.index(Source(blob=clip("h264 training profile"), column=Video()))[0]
    with pytest.raises(CorruptFileError, match="not the file that was indexed"):
        opened(clip("h264 with B-frames"), index=kept)


def test_a_kept_index_that_cannot_be_read_is_made_again() -> None:
    name = "h264 with B-frames"
    for index in (b"something else", {0: b""}, {}):
        assert wrong(opened(clip(name), index=index), [3, 30], truth(name)) == []


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name",
    [
        "h264 with B-frames",
        "h264 training profile",
        "h264 open groups",
        "hevc 10 bit",
        "ffv1, odd size",
        "mpeg4 with B-frames",
        "av1",
        "vp9, odd size",
        "h264 intra refresh",
        "mjpeg",
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_damage_raises_or_gives_the_same_pixels_by_every_way(name: str, seed: int) -> None:
    """Bytes that were wrong before anybody indexed them."""
    data = bytearray(clip(name))
    index = opened(clip(name)).packets
    middle = int(index.offset[len(index.offset) // 2])
    flips = np.random.default_rng(seed).integers(0, int(index.length[len(index.offset) // 2 :][:6].sum()), 12)
    for flip in flips.tolist():
        data[middle + flip] ^= 0x55
    damaged = bytes(data)

    def by(sequence: Iterable[int]) -> dict[int, list[np.ndarray] | None]:
        decoder = opened(damaged)
        found: dict[int, list[np.ndarray] | None] = {}
        for number in sequence:
            try:
                found[number] = clips.planes(next(iter(decoder.planes(np.array([number]))))[1])
            except CorruptFrameError:
                found[number] = None
        return found

    count = len(opened(damaged))
    forwards = by(range(count))
    assert len([one for one in forwards.values() if one is not None]) >= count // 4
    for other in (by(range(count - 1, -1, -1)), by(np.random.default_rng(9).permutation(count).tolist())):
        for number, planes in other.items():
            expected = forwards[number]
            assert planes is None or expected is None or all(map(np.array_equal, planes, expected)), number


def test_damage_of_av1_gives_the_same_index_each_time() -> None:
    # Several threads of FFmpeg 9 raised for the damaged packet, or for all that came.
    data = bytearray(clips.encode("libsvtav1", preset="12", g="10"))
    place = int(PacketIndex.from_bytes(video.index(Source(blob=bytes(data), column=Video()))[0]).offset[0]) + 30
    data[place : place + 4] = b"\xff" * 4
    made = {video.index(Source(blob=bytes(data), column=Video()))[0] for _ in range(12)}
    assert len(made) == 1
    assert np.count_nonzero(PacketIndex.from_bytes(made.pop()).flags & HIDDEN) <= 10


def test_a_damaged_head_of_a_container_is_an_error() -> None:
    data = bytearray(clip("h264 with B-frames"))
    sizes = data.index(b"stsz") + 16
    data[sizes + 4 * 5] |= 0x20  # the sixth packet has half a gigabyte
    with pytest.raises(CorruptFileError, match="Record or copy it again"):
        opened(bytes(data))


def test_pictures_that_change_their_size_are_refused() -> None:
    joined = clips.encode(container="h264", g="5", bf="0") + clips.encode(
        container="h264", size=(48, 32), g="5", bf="0"
    )
    file = io.BytesIO()
    with av.open(io.BytesIO(joined), format="h264") as source, av.open(file, "w", format="mp4") as out:
        copy = out.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(source.demux(video=0)):
            if packet.size:
                packet.pts = packet.dts = int(number / (30 * source.streams.video[0].time_base))
                packet.stream = copy
                out.mux(packet)
    decoder = opened(file.getvalue())
    assert decoder.read(np.array([0])).shape == (1, clips.HEIGHT, clips.WIDTH, 3)
    with pytest.raises(CorruptFileError, match="expected 96x64 yuv420p, found 48x32"):
        decoder.read(np.array([60]))


def test_a_codec_that_nobody_knows() -> None:
    def with_unknown(data: bytes, count: int) -> bytes:
        """The first sample entries of video are of a kind that no one has heard of."""
        for _ in range(count):
            at = next(m.start() for m in re.finditer(b"stsd", data) if data[m.start() + 16 :][:4] == b"avc1") + 16
            data = data[:at] + b"zzz9" + data[at + 4 :]
        return data

    with pytest.raises(DecodeError, match="no decoder for its video"):
        opened(with_unknown(clip("h264 with B-frames"), 1))
    several = clip("several streams")
    half = with_unknown(several, 1)
    assert list(video.index(Source(blob=half, column=Video()))) == [1]  # the other keeps its number
    assert wrong(opened(half, 1), [0, 5, 11], clips.sequential(several, 1)) == []
    with pytest.raises(DecodeError, match="no video stream 0"):
        opened(half)
    with pytest.raises(DecodeError, match="no decoder"):
        opened(with_unknown(several, 2))
