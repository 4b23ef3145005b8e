"""Clips hold exactly the frames that were cut, at their times; what was copied is the same to the last bit."""

from __future__ import annotations

import io
import itertools
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from seqlake.errors import CorruptFrameError, DecodeError
from seqlake.files.blobs import LocalBlob, MemoryBlob
from seqlake.media import video
from seqlake.media.video import cutting, h264, indexing
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

from .clips import CLIPS, COUNT, clip, encode, planes, turn


def source_of(data: bytes) -> Source:
    return Source(blob=MemoryBlob(data, location="clip"), column=Video(fps=30))


def played(data: bytes) -> list[tuple[Fraction, list[np.ndarray]]]:
    """(time, planes) of every frame as FFmpeg plays the file from its start."""
    with av.open(io.BytesIO(data)) as container:
        base = container.streams.video[0].time_base
        return [(frame.pts * base, planes(frame)) for frame in container.decode(video=0)]


def frames_of(data: bytes) -> list[av.VideoFrame]:
    with av.open(io.BytesIO(data)) as container:
        return list(container.decode(video=0))


def luma(frame: list[np.ndarray], pix_fmt: str) -> np.ndarray:
    plane = frame[0]
    return plane.view(np.uint16).astype(float) if "10" in pix_fmt else plane.astype(float)


def cut(data: bytes, start: int, stop: int, path: Path) -> tuple[Any, bytes]:
    made = cutting.cut(source_of(data), path, start=start, stop=stop)
    return made, path.read_bytes()


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(CLIPS))
@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, 17), (7, -2)])
def test_a_clip_is_what_was_cut(name: str, start: int, stop: int | None, tmp_path: Path) -> None:
    data = clip(name)
    decoder = video.open(source_of(data))
    start = min(start, len(decoder) - 3)
    stop = slice(start, stop).indices(len(decoder))[1]
    before = {number: planes(frame) for number, frame in decoder.planes(np.arange(len(decoder)))}
    kind = decoder.packets.stream.pix_fmt
    made, out = cut(data, start, stop, tmp_path / "clip")
    after = played(out)

    assert made.frames == len(after) == stop - start
    times = (decoder.pts - decoder.pts[start])[start:stop]
    assert [time for time, _ in after] == [int(time) * decoder.time_base for time in times]
    same = [all(map(np.array_equal, frame, before[start + k])) for k, (_, frame) in enumerate(after)]
    assert sum(same) >= made.frames - made.encoded
    for k, (_, frame) in enumerate(after):  # an encoded frame is nearest to the one that it was
        near = range(max(0, start + k - 3), min(len(before), start + k + 4))
        errors = {n: float(((luma(frame, kind) - luma(before[n], kind)) ** 2).mean()) for n in near}
        assert min(errors, key=errors.__getitem__) == start + k
    assert len({shown.interlaced_frame for shown in frames_of(out)}) == 1
    # And our own reader gives the same pictures, each alone.
    mine = video.open(source_of(out))
    assert mine.size == decoder.size
    for k in (made.frames - 1, 0, made.frames // 2):
        ((_, frame),) = mine.planes(np.array([k]))
        assert all(map(np.array_equal, planes(frame), after[k][1]))


@pytest.mark.parametrize(
    ("name", "start", "stop", "encoded"),
    [
        ("h264 training profile", 0, 40, 0),
        ("h264 training profile", 8, 24, 0),  # from one key frame to another
        ("h264 training profile", 8, 19, 0),  # without B-frames it may end anywhere
        ("h264 training profile", 11, 35, 5),  # the rest of the group of pictures at the start
        ("h264 training profile", 17, 23, 6),  # no key frame within
        ("mjpeg", 3, 17, 0),
        ("prores", 3, 17, 0),
        ("vp9, odd size", 12, 40, 0),
        ("vp9, odd size", 3, 17, 14),
        ("hevc open groups", 0, 40, 0),
        ("hevc open groups", 3, 17, 14),
    ],
)
def test_no_more_is_encoded_than_must_be(name: str, start: int, stop: int, encoded: int, tmp_path: Path) -> None:
    made, _ = cut(clip(name), start, stop, tmp_path / "clip")
    assert made.encoded == encoded
    assert bool(made.note) == (encoded > 0 and not name.startswith("h264"))


def test_packets_are_copied_byte_for_byte(tmp_path: Path) -> None:
    data = clip("h264 training profile")
    _, out = cut(data, 11, 35, tmp_path / "clip")
    with av.open(io.BytesIO(data)) as one, av.open(io.BytesIO(out)) as other:
        before = [bytes(packet) for packet in one.demux(video=0) if packet.size]
        after = [bytes(packet) for packet in other.demux(video=0) if packet.size]
    assert after[5:] == before[16:35]


def test_parameter_sets_that_are_cut_are_refused() -> None:
    with av.open(io.BytesIO(clip("h264 training profile"))) as container:
        extradata = container.streams.video[0].codec_context.extradata
    whole, refused = h264.free_numbers(extradata), 0
    for end in range(5, len(extradata)):
        try:
            assert h264.free_numbers(extradata[:end]) == whole
        except DecodeError:
            refused += 1
        h264.Packets(extradata[:end])  # follows what it can
    assert refused > 20


def test_a_stream_that_has_the_highest_number_of_parameter_sets_is_cut_all_the_same(tmp_path: Path) -> None:
    data = encode(bf="0", g="8", sc_threshold="0", **{"x264-params": "sps-id=31:scenecut=0"})
    with av.open(io.BytesIO(data)) as container:
        extradata = container.streams.video[0].codec_context.extradata
    assert h264.free_numbers(extradata)[:2] == [30, 29]
    assert h264.free_numbers(h264.delimited(extradata))[:2] == [30, 29]
    made, out = cut(data, 3, 21, tmp_path / "clip")
    assert made.encoded == 5
    before, after = played(data), played(out)
    assert all(map(np.array_equal, after[5][1], before[8][1]))


def test_colours_and_rotation_stay(tmp_path: Path) -> None:
    def tag(stream: Any) -> None:
        context = stream.codec_context
        context.color_range, context.colorspace, context.color_primaries, context.color_trc = 2, 1, 1, 1
        turn(stream, 90)

    data = encode(bf="0", g="8", pix_fmt="yuvj420p", prepare=tag)
    _, out = cut(data, 3, 20, tmp_path / "clip")
    before, after = video.open(source_of(data)), video.open(source_of(out))
    assert after.packets.stream.tags == before.packets.stream.tags == (2, 1, 1, 1)
    assert after.packets.stream.turn == before.packets.stream.turn != (1, 0, 0, 1)
    near = after.read(np.array([0])).astype(int) - before.read(np.array([3])).astype(int)
    assert np.abs(near).mean() < 6


def test_pieces_joined_again_are_the_whole(tmp_path: Path) -> None:
    data = clip("h264 with B-frames")
    parts = [played(cut(data, a, b, tmp_path / "clip")[1]) for a, b in ((0, 13), (13, 14), (14, 33), (33, COUNT))]
    assert [len(part) for part in parts] == [13, 1, 19, 7]
    joined = [frame for part in parts for _, frame in part]
    for number, (frame, (_, before)) in enumerate(zip(joined, played(data), strict=True)):
        assert np.abs(frame[0].astype(int) - before[0]).mean() < 3, number


def test_frames_of_a_shared_file_are_counted_from_its_first(tmp_path: Path) -> None:
    data = clip("mjpeg")
    shared = Source(blob=MemoryBlob(data, location="clip"), column=Video(fps=30), first=10, count=20)
    cutting.cut(shared, tmp_path / "clip", start=2, stop=5)
    after = played((tmp_path / "clip").read_bytes())
    assert all(map(np.array_equal, after[0][1], played(data)[12][1]))
    with pytest.raises(IndexError, match="0 to 19"):
        cutting.cut(shared, tmp_path / "clip", start=2, stop=21)


def test_the_stream_that_is_named_is_cut_and_no_other_comes_along(tmp_path: Path) -> None:
    data = clip("several streams")
    small = Source(blob=MemoryBlob(data, location="clip"), column=Video(fps=30, stream=0))
    made = cutting.cut(small, tmp_path / "clip", start=9, stop=20)
    with av.open(io.BytesIO((tmp_path / "clip").read_bytes())) as container:
        assert [stream.type for stream in container.streams] == ["video"]
        assert (container.streams.video[0].width, container.streams.video[0].height) == (64, 48)
    assert made.frames == 11


def test_without_an_encoder_the_error_names_key_frames(tmp_path: Path) -> None:
    data = encode("msmpeg4", container="avi", g="10")
    made, _ = cut(data, 10, 30, tmp_path / "clip")
    assert made.encoded == 0
    with pytest.raises(DecodeError, match=r"0, 10, 20"):
        cut(data, 3, 17, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_damage_is_not_copied(tmp_path: Path) -> None:
    data = clip("h264 training profile")
    index = video.index(source_of(data))
    offset = int(video.open(source_of(data)).packets.offset[20])
    damaged = bytearray(data)
    damaged[offset + 40] ^= 0xFF
    (tmp_path / "damaged.mp4").write_bytes(damaged)
    broken = Source(blob=LocalBlob(tmp_path / "damaged.mp4"), column=Video(fps=30), index=index)
    with pytest.raises(CorruptFrameError, match="damaged"):
        cutting.cut(broken, tmp_path / "clip", start=8, stop=32)
    assert not (tmp_path / "clip").exists()
    assert cutting.cut(broken, tmp_path / "clip", start=24, stop=32).encoded == 0  # another group of pictures


def test_one_frame_is_shown_as_long_as_it_was(tmp_path: Path) -> None:
    data = encode("mjpeg", container="matroska", pix_fmt="yuvj420p", times=[0, 10, 12])
    _, out = cut(data, 0, 1, tmp_path / "clip")
    with av.open(io.BytesIO(out)) as container:
        stream = container.streams.video[0]
        assert float(stream.duration * stream.time_base) == pytest.approx(10 / 30, abs=0.002)


@pytest.mark.parametrize("name", ["h264 training profile", "h264 with B-frames", "av1", "uneven times, mp4"])
def test_a_copy_of_all_packets_is_proven_without_decoding_a_frame(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = cutting.VideoCutter(source_of(clip(name)))
    keys = [int(one) for one in cutter._packets.boundaries.first]
    monkeypatch.setattr(video.opening.VideoDecoder, "planes", lambda *_: pytest.fail("a frame was decoded"))
    for start, stop in itertools.pairwise([*keys, len(cutter)]):
        assert cutter.cut(tmp_path / "clip", start=start, stop=stop).encoded == 0
    assert len(keys) > 1


@pytest.mark.parametrize("codec", ["libsvtav1", "libvpx-vp9", "libx264"])
@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_clip_is_turned_as_a_decoder_says_where_none_was_asked(
    codec: str, degrees: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"svtav1-params": "lp=1"} if codec == "libsvtav1" else {"bf": "0"} if codec == "libx264" else {}
    data = encode(codec, g="8", prepare=lambda stream: turn(stream, degrees) if degrees else None, **options)
    cutter = cutting.VideoCutter(source_of(data))
    first, stop = (int(one) for one in cutter._packets.boundaries.first[1:3])
    asked, decode = [], indexing._turn_of_first
    monkeypatch.setattr(indexing, "_turn_of_first", lambda *of: asked.append(of) or decode(*of))
    made = cutter.cut(tmp_path / "clip", start=first, stop=stop)
    assert (made.encoded, len(asked)) == (0, codec == "libx264")
    decoded = indexing.index(LocalBlob(tmp_path / "clip"))
    assert made.index == {number: one.to_bytes() for number, one in decoded.items()}
    assert (decoded[0].stream.turn == (1, 0, 0, 1)) == (degrees == 0)


def test_a_clip_that_is_turned_another_way_is_not_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "display_matrix", lambda _: np.array([0, 65536, 0, -65536, 0, 0, 0, 0, 1 << 30]))
    made, _ = cut(clip("av1"), 0, 15, tmp_path / "clip")
    assert (made.encoded, made.note) == (15, "its packets cannot be copied")


def test_equal_packets_under_other_parameters_are_compared_by_their_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = cutting.VideoCutter(source_of(clip("av1")))
    other = replace(cutter._packets.stream, palettes=((0, bytes(1024)),))
    monkeypatch.setattr(cutter, "_packets", replace(cutter._packets, stream=other))
    monkeypatch.setattr(video.opening.VideoDecoder, "planes", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cutter.cut(tmp_path / "clip", start=0, stop=len(cutter))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only what root runs may have real time")
def test_cutting_av1_leaves_the_process_its_priority(tmp_path: Path) -> None:
    made, _ = cut(clip("av1"), 3, 9, tmp_path / "clip")
    assert made.encoded, "the cut lies between key frames"
    assert {os.sched_getscheduler(int(one.name)) for one in Path("/proc/self/task").iterdir()} == {os.SCHED_OTHER}
