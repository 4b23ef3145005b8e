"""Small videos of every awkward kind, made by FFmpeg through PyAV, and what FFmpeg itself decodes from them."""

from __future__ import annotations

import io
import os
import tempfile
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest
from av.bitstream import BitStreamFilterContext

from seqlake.media._priority import kept_priority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WIDTH, HEIGHT, COUNT = 96, 64, 40


def picture(number: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """A bright square on its way over a textured, noisy ground: no two pictures are alike."""
    y, x = np.mgrid[:height, :width]
    ground = np.stack([x * 2 + number, y * 3, (x + y) * 2 + 5 * number], -1) % 256
    noise = np.random.default_rng(number).integers(0, 24, ground.shape)
    made = np.clip(ground // 2 + noise, 0, 255).astype(np.uint8)
    made[number % (height - 8) :][:8, (3 * number) % (width - 8) :][:, :8] = (255, 40, 10)
    return made


def encode(
    codec: str = "libx264",
    *,
    container: str = "mp4",
    times: Iterable[int] = range(COUNT),
    pix_fmt: str = "yuv420p",
    size: tuple[int, int] = (WIDTH, HEIGHT),
    muxer: dict[str, str] | None = None,
    prepare: Callable[[Any], None] | None = None,
    **options: str,
) -> bytes:
    """One video stream; `times` in 1/30 s, one for each picture."""
    descriptor, path = tempfile.mkstemp()  # a name, since the head is put first by reading the file again
    os.close(descriptor)
    with kept_priority(), av.open(path, "w", format=container, options=muxer or {}) as out:
        stream = out.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.time_base = Fraction(1, 30)
        stream.codec_context.thread_count = 1
        if prepare is not None:
            prepare(stream)
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 30)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    data = Path(path).read_bytes()
    Path(path).unlink()
    return data


def turn(stream: Any, degrees: int) -> None:
    """Have players show what is encoded turned."""
    if not hasattr(stream, "set_display_rotation"):
        pytest.skip("PyAV before 18 writes no rotation")
    stream.set_display_rotation(degrees)


def remux(data: bytes, *, container: str = "mp4", skip: int = 0, shift: int = 0, **muxer: str) -> bytes:
    """The same packets in another container, without the first `skip`, `shift` ticks of 1/30 s earlier."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format=container, options=muxer) as out:
        stream = source.streams.video[0]
        copy = out.add_stream_from_template(stream)
        for number, packet in enumerate(source.demux(stream)):
            if packet.dts is None or number < skip:
                continue
            ticks = int(Fraction(shift, 30) / stream.time_base)
            packet.pts, packet.dts = packet.pts - ticks, packet.dts - ticks
            packet.stream = copy
            out.mux(packet)
    return file.getvalue()


def several() -> bytes:
    """Audio first, then two videos of different size and rate."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        sound = out.add_stream("aac", rate=16_000)
        sound.layout = "mono"
        videos = [out.add_stream("libx264", rate=rate, options={"bf": "2", "g": "9"}) for rate in (30, 12)]
        sizes = [(64, 48), (WIDTH, HEIGHT)]
        for stream, (stream.width, stream.height) in zip(videos, sizes, strict=True):
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1
        for stream, size, count in zip(videos, sizes, (30, 12), strict=True):
            for number in range(count):
                frame = av.VideoFrame.from_ndarray(picture(number, *size), format="rgb24")
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
        tone = np.sin(np.arange(16_000) / 20).astype(np.float32)[None]
        for start in range(0, 16_000, 1_000):
            block = av.AudioFrame.from_ndarray(tone[:, start : start + 1_000].copy(), format="fltp", layout="mono")
            block.sample_rate, block.pts = 16_000, start
            out.mux(sound.encode(block))
        out.mux(sound.encode(None))
    return file.getvalue()


def parameter_sets(*, apart: bool) -> bytes:
    """Two H.264 encodings with different parameter sets in one stream: the second's in the packets, or apart."""
    joined = encode(container="h264", bf="2", g="10") + encode(container="h264", preset="ultrafast", g="7")
    file = io.BytesIO()
    with av.open(io.BytesIO(joined), format="h264") as source, av.open(file, "w", format="mp4") as out:
        stream = source.streams.video[0]
        copy = out.add_stream_from_template(stream)
        taken = BitStreamFilterContext("extract_extradata=remove=1" if apart else "null", stream)
        number = 0
        shown = [packet for packet, _ in sorted(enumerate(_raw_order(joined)), key=lambda pair: pair[1])]
        rank = {packet: place for place, packet in enumerate(shown)}
        for packet in source.demux(stream):
            for one in taken.filter(packet if packet.size else None):
                tick = int(1 / (30 * stream.time_base))
                one.pts, one.dts = (rank[number] + 2) * tick, number * tick
                one.stream = copy
                out.mux(one)
                number += 1
    return file.getvalue()


def _raw_order(data: bytes) -> list[int]:
    """The place in which each packet of a raw stream is shown."""
    with av.open(io.BytesIO(data), format="h264") as source:
        codec = source.streams.video[0].codec_context
        codec.thread_type = "NONE"
        packets = [packet for packet in source.demux(video=0) if packet.size]
        frames = []
        for number, packet in enumerate(packets):
            packet.pts = packet.dts = number
            frames += codec.decode(packet)
        frames += codec.decode(None)
    places = {int(frame.pts): place for place, frame in enumerate(frames)}
    return [places[number] for number in range(len(packets))]


UNEVEN = [0, 1, 2, 5, 6, 10, 11, 13, 20, 21, 22, 23, 24, 31, 32, 33, 40, 44, 45, 46, 50, 51, 53, 59, 60]
OPEN = "open-gop=1:keyint=10:min-keyint=10:bframes=3:b-adapt=0:scenecut=0"
CLIPS: dict[str, Callable[[], bytes]] = {
    "h264 with B-frames": lambda: encode(bf="3", g="12"),
    "h264 with a pyramid, mkv": lambda: encode(
        container="matroska", bf="3", g="15", **{"x264-params": "b-pyramid=normal"}
    ),
    "h264 training profile": lambda: encode(preset="veryfast", tune="fastdecode", g="8", bf="0", sc_threshold="0"),
    "h264 open groups": lambda: encode(**{"x264-params": OPEN}),
    "h264 intra refresh": lambda: encode(**{"x264-params": "intra-refresh=1:keyint=12:bframes=0"}),
    "h264 interlaced": lambda: encode(**{"x264-params": "interlaced=1:keyint=10"}),
    "h264 interlaced, ts": lambda: encode(container="mpegts", **{"x264-params": "interlaced=1:keyint=10"}),
    "h264 10 bit": lambda: encode(pix_fmt="yuv420p10le", bf="2", g="10"),
    "h264 4:4:4, odd size": lambda: encode(pix_fmt="yuv444p", size=(85, 47), bf="2", g="10"),
    "hevc open groups": lambda: encode(
        "libx265", **{"x265-params": "open-gop=1:keyint=10:min-keyint=10:bframes=3:log-level=none"}
    ),
    "hevc 10 bit": lambda: encode(
        "libx265", pix_fmt="yuv420p10le", **{"x265-params": "keyint=10:bframes=3:log-level=none"}
    ),
    "av1": lambda: encode("libsvtav1", g="15", preset="10", **{"svtav1-params": "lp=1"}),
    "vp9, odd size": lambda: encode(
        "libvpx-vp9", container="webm", size=(95, 63), g="12", deadline="realtime", **{"cpu-used": "8"}
    ),
    "mpeg4 with B-frames": lambda: encode("mpeg4", bf="2", g="10"),
    "mpeg4 with B-frames, avi": lambda: encode("mpeg4", container="avi", bf="2", g="10"),
    "mpeg2 with B-frames": lambda: encode("mpeg2video", container="mpegts", bf="2", g="10"),
    "mpeg2, mkv": lambda: encode("mpeg2video", container="matroska", bf="2", g="10"),
    "mjpeg": lambda: encode("mjpeg", container="matroska", pix_fmt="yuvj420p"),
    "mjpeg, avi": lambda: encode("mjpeg", container="avi", pix_fmt="yuvj420p"),
    "prores": lambda: encode("prores_ks", container="mov", pix_fmt="yuv422p10le"),
    "ffv1, odd size": lambda: encode("ffv1", container="matroska", size=(95, 63), g="5"),
    "uneven times, mp4": lambda: encode(times=UNEVEN, bf="2", g="8"),
    "uneven times, mkv": lambda: encode(container="matroska", times=UNEVEN, bf="2", g="8"),
    "late start, mp4": lambda: encode(times=range(165, 165 + COUNT), bf="2", g="10"),
    "late start, mkv": lambda: encode(container="matroska", times=range(165, 165 + COUNT), bf="2", g="10"),
    "late start, ts": lambda: encode(container="mpegts", times=range(165, 165 + COUNT), bf="2", g="10"),
    "fragmented by key frame": lambda: encode(muxer={"movflags": "frag_keyframe+empty_moov"}, bf="2", g="10"),
    "fragmented by time": lambda: encode(
        muxer={"movflags": "empty_moov+default_base_moof", "frag_duration": "300000"}, bf="2", g="10"
    ),
    "head first": lambda: encode(muxer={"movflags": "+faststart"}, bf="2", g="10"),
    "edit list": lambda: remux(encode(bf="2", g="10"), shift=7),
    "edit list, open groups": lambda: remux(encode(**{"x264-params": OPEN}), shift=17),
    "edit list, hevc": lambda: remux(clip("hevc open groups"), shift=17),
    "hevc cut at an open group": lambda: remux(clip("hevc open groups"), skip=10),
    "h264 cut at an open group": lambda: remux(clip("h264 open groups"), skip=10),
    "raw h264": lambda: encode(container="h264", bf="2", g="10"),
    "two parameter sets": lambda: parameter_sets(apart=False),
    "two parameter sets, apart": lambda: parameter_sets(apart=True),
    "rotated": lambda: encode(bf="2", g="10", prepare=lambda stream: turn(stream, 90)),
    "several streams": several,
}


@cache
def clip(name: str) -> bytes:
    """One of `CLIPS`, encoded once in a process: every reader is given the same bytes."""
    return CLIPS[name]()


def planes(frame: av.VideoFrame) -> list[np.ndarray]:
    """What FFmpeg decoded, without the padding of rows."""
    wide = 2 if max(part.bits for part in frame.format.components) > 8 else 1
    return [
        np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width * wide].copy()
        for plane in frame.planes
    ]


def sequential(data: bytes, stream: int = 0) -> list[list[np.ndarray]]:
    """Every picture as a plain, sequential decode of the container gives it."""
    with av.open(io.BytesIO(data)) as container:
        if container.streams.video[stream].codec_context.name == "svq1":
            # FFmpeg 8.1 decodes it otherwise, and wrongly, where Matroska hands it the private data of MOV.
            container.streams.video[stream].codec_context.extradata = None
        return [planes(frame) for frame in container.decode(video=stream)]
