"""Cuts a video in time: packets are copied, and only what no packet boundary allows is encoded again.

A copy begins at a key packet that nothing before refers to, and ends where the packets so far show exactly the frames
so far. Frames before and behind it, the edges, are encoded again: for H.264 into the same track, under parameter sets
of their own; for other codecs the whole clip is. Every clip is read back before it counts: its frames must be as many
as asked, at the right times. Where nothing was encoded and times alone order the frames, its packets must be those of
the file, bit for bit; else the pictures must be the same to the last bit where copies begin and end.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.errors import CorruptFrameError, DecodeError, SeqlakeError
from seqlake.files.blobs import LocalBlob
from seqlake.files.checksums import crc32
from seqlake.media._bytes import BlobBytes, blob_of
from seqlake.media._clip import CutResult
from seqlake.media._containers import open_container
from seqlake.media._priority import kept_priority
from seqlake.media.video import h264, indexing
from seqlake.media.video.demuxing import packet_reader, picture_streams
from seqlake.media.video.opening import VideoDecoder, open_video
from seqlake.media.video.packets import KEY
from seqlake.media.video.pixels import planes_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Blob, Ints, Source

_GLOBAL_HEADER = 1 << 22  # FFmpeg's flag: parameter sets apart from packets
_TOGETHER = 16  # frames that are decoded at once
# No encoder may reorder: packets must come out in the order of frames.
_ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": (
        "libx264",
        {"preset": "veryfast", "tune": "fastdecode", "crf": "16", "bf": "0", "sc_threshold": "0", "g": "8"},
    ),
    "hevc": (
        "libx265",
        {
            "preset": "veryfast",
            "crf": "18",
            "x265-params": "bframes=0:keyint=8:min-keyint=8:scenecut=0:open-gop=0:log-level=none:pools=1",
        },
    ),
    "av1": ("libsvtav1", {"preset": "8", "crf": "20", "g": "8", "svtav1-params": "pred-struct=1:lp=1"}),
    "vp9": ("libvpx-vp9", {"crf": "16", "b": "0", "g": "8", "lag-in-frames": "0", "cpu-used": "4"}),
    "vp8": ("libvpx", {"crf": "8", "b": "4M", "g": "8", "lag-in-frames": "0", "auto-alt-ref": "0"}),
    "mpeg4": ("mpeg4", {"flags": "+qscale", "global_quality": "236", "g": "8", "bf": "0"}),
    "mpeg2video": ("mpeg2video", {"flags": "+qscale", "global_quality": "236", "g": "8", "bf": "0"}),
    "ffv1": ("ffv1", {"g": "1"}),
}
_CONTAINERS = dict.fromkeys(("h264", "hevc", "av1", "vp9", "mpeg4", "mpeg2video", "mjpeg", "ffv1"), "mp4")
_CONTAINERS |= dict.fromkeys(("prores", "mpeg1video", "dnxhd", "h263", "png"), "mov")
_SUFFIXES = {"mp4": ".mp4", "mov": ".mov", "matroska": ".mkv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPlan:
    """Frames `start` to `stop`, of which `first` to `last` are the packets `begin` to `end`."""

    start: int
    first: int
    last: int
    stop: int
    begin: int
    end: int

    @property
    def encoded(self) -> int:
        """How many frames are encoded again."""
        return (self.first - self.start) + (self.stop - self.last)


def cut(source: Source, path: Path, /, *, start: int, stop: int) -> CutResult:
    """Write some consecutive frames of one stream as a video of its own, without other streams of the file.

    The first frame is shown at 0, the others as long after it as before.

    Args:
        source: The video.
        path: Where to write; replaced if it is there. Any suffix.
        start: First frame, by number.
        stop: One past the last.

    Raises:
        IndexError: There are no such frames.
        CorruptFrameError: A packet that is needed is damaged.
        DecodeError: Frames must be encoded again and there is no encoder for the codec.
        OSError: The file cannot be written.

    Example:
        ```python
        cut(Source(blob=open_blob("cam.mp4"), column=Video(fps=30)), Path("clip.mp4"), start=45, stop=110).encoded
        ```
    """
    there = len(open_video(source))
    if not 0 <= start < stop <= there:
        raise IndexError(f"{blob_of(source).location} has frames 0 to {there - 1}, found {start} to {stop - 1}.")
    return VideoCutter(source).cut(path, start=start + source.first, stop=stop + source.first)


class VideoCutter:
    """Cuts one stream of a file again and again; what is known of the whole file is learned once. Threads may share it.

    Args:
        source: The video, of which the whole file is meant.

    Raises:
        CorruptFileError: The container is damaged.
        DecodeError: There is no such stream, or no decoder for it.

    Example:
        ```python
        cutter = VideoCutter(Source(blob=open_blob("cam.mp4"), column=Video(fps=30)))
        cutter.cut(Path("first.mp4"), start=0, stop=30)
        ```
    """

    def __init__(self, source: Source, /) -> None:
        self._source = source
        self._packets = open_video(replace(source, first=0, count=None)).packets
        self._blob = blob_of(source)
        self._lock = Lock()
        self._opened = ExitStack()
        self._template: VideoStream | None = None

    def __len__(self) -> int:
        return len(self._packets.order)

    def cut(self, path: Path, /, *, start: int, stop: int) -> CutResult:
        """Write some consecutive frames of the file as a video of its own; see `cut`."""
        if not 0 <= start < stop <= len(self):
            raise IndexError(f"{self._blob.location} has frames 0 to {len(self) - 1}, found {start} to {stop - 1}.")
        decoder = VideoDecoder(self._packets, self._blob, column=self._source.column)
        whole = all_encoded(start, stop)
        plan = planned(self._packets, whole)
        codec, note = self._packets.stream.codec, ""
        if plan.encoded and codec != "h264":
            plan = whole
            note = f"{codec} is cut without encoding only at key frames"
        try:
            try:
                self._write(decoder, path, plan)
                index = _check(decoder, path, plan)
            except DecodeError as error:
                if plan == whole or isinstance(error, CorruptFrameError):
                    raise
                plan, note = whole, "its packets cannot be copied"
                self._write(decoder, path, plan)
                index = _check(decoder, path, plan)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            decoder.close()
        suffix = _SUFFIXES[container_of(codec)]
        indexes = {number: one.to_bytes() for number, one in index.items()}
        return CutResult(frames=stop - start, encoded=plan.encoded, suffix=suffix, note=note, index=indexes)

    def _write(self, decoder: VideoDecoder, path: Path, plan: CutPlan) -> None:
        """Write the file; its packets come one after another, encoded and copied ones.

        Raises:
            DecodeError: FFmpeg refuses to encode or to hold them.
        """
        import av

        packets, stream, blob = self._packets, self._packets.stream, self._blob
        both = plan.encoded > 0 and plan.begin < plan.end
        numbers = h264.free_numbers(stream.extradata) if both else [0, 0]
        head = _encoder(decoder, plan.start, numbers[0]) if plan.start < plan.first else None
        tail = _encoder(decoder, plan.last, numbers[1]) if plan.last < plan.stop else None
        encoded = [bytes(one.extradata or b"") for one in (head, tail) if one is not None]
        held = h264.delimited(stream.extradata) if both else b""
        extradata = held + b"".join(encoded) if encoded else stream.extradata
        width = h264.length_bytes(stream.extradata) if both else None

        def contents() -> Iterator[tuple[bytes, bool]]:
            if head is not None:
                yield from _encoded(decoder, head, plan.start, plan.first)
            for data, key in copied_packets(packets, blob, plan):
                yield h264.with_start_codes(data, width), key
            if tail is not None:
                yield from _encoded(decoder, tail, plan.last, plan.stop)

        try:
            self._mux(path, plan, contents(), extradata=extradata)
        except (OSError, SeqlakeError):
            raise
        except (av.FFmpegError, ValueError) as error:
            raise DecodeError(f"{blob.location} cannot be cut: {error}.", path=blob.location) from error

    def _mux(self, path: Path, plan: CutPlan, contents: Iterator[tuple[bytes, bool]], *, extradata: bytes) -> None:
        import av

        packets = self._packets
        times, lasting = _times(packets, plan)
        frame = packets.frames
        order = np.concatenate(
            [np.arange(plan.start, plan.first), frame[plan.begin : plan.end], np.arange(plan.last, plan.stop)]
        )
        pts = times[order - plan.start]
        late = int((times - pts).max())  # a packet must be there before its frame is shown
        index, kind = packets.stream, container_of(packets.stream.codec)
        options = {} if kind == "matroska" else {"movflags": "+faststart"}
        with av.open(str(path), "w", format=kind, options=options) as out:
            with self._lock:
                stream: Any = out.add_stream_from_template(self._stream(), opaque=True)
            stream.codec_context.extradata = extradata or None
            for number, (data, key) in enumerate(contents):
                packet: Any = av.Packet(len(data))
                memoryview(packet)[:] = data
                packet.pts, packet.dts = int(pts[number]), int(times[number]) - late
                packet.duration, packet.time_base = int(lasting[order[number] - plan.start]), index.time_base
                packet.is_keyframe, packet.stream = key, stream
                out.mux(packet)

    def _stream(self) -> VideoStream:
        """The stream as FFmpeg sees it, in a container that stays open."""
        if self._template is None:
            container = self._opened.enter_context(open_container(BlobBytes(self._blob), self._blob.location))
            self._template = picture_streams(container)[self._packets.stream.number]
        return self._template


def container_of(codec: str, /) -> str:
    """FFmpeg's name of the container that clips of a codec are put into."""
    return _CONTAINERS.get(codec, "matroska")


def all_encoded(start: int, stop: int, /) -> CutPlan:
    """The plan that copies nothing."""
    return CutPlan(start=start, first=stop, last=stop, stop=stop, begin=0, end=0)


def planned(packets: PacketIndex, whole: CutPlan, /) -> CutPlan:
    """The longest copy there is within these frames.

    Args:
        packets: Of the video.
        whole: What `all_encoded` gave for them.
    """
    parts = packets.boundaries
    at = int(np.searchsorted(parts.first, whole.start))
    if at == len(parts.first) or parts.first[at] >= whole.stop or packets.stream.changes:
        return whole
    begin = int(parts.begins[at])
    awkward = int(np.searchsorted(parts.broken, begin))
    limit = int(parts.broken[awkward]) if awkward < len(parts.broken) else len(packets.pts)
    within = np.searchsorted(parts.last, whole.stop, side="right")
    last = int(min(within, np.searchsorted(parts.ends, limit, side="right"))) - 1
    end = int(parts.ends[last])
    if end <= begin:
        return whole
    return replace(whole, first=int(parts.first[at]), last=int(parts.last[last]), begin=begin, end=end)


def _times(packets: PacketIndex, plan: CutPlan) -> tuple[Ints, Ints]:
    """[frames] ticks after the first at which each is shown, and how long."""
    ticks, stream = packets.ticks, packets.stream
    lasting = np.diff(ticks[plan.start : plan.stop + 1])
    if plan.stop == len(ticks):
        usual = int(1 / (stream.rate * stream.time_base)) if stream.rate else 1
        lasting = np.append(lasting, ticks[-1] - ticks[-2] if len(ticks) > 1 else max(1, usual))
    return ticks[plan.start : plan.stop] - ticks[plan.start], lasting


def copied_packets(packets: PacketIndex, blob: Blob, plan: CutPlan, /) -> Iterator[tuple[bytes, bool]]:
    """Packets as they are in the file, and whether decoding may begin at each.

    Args:
        packets: Of the video.
        blob: Its file.
        plan: Which of them: `begin` to `end`.

    Raises:
        CorruptFrameError: They are not those of the index.
    """
    file = BlobBytes(blob)
    if packets.stream.placed:
        spans = zip(packets.offset[plan.begin : plan.end].tolist(), packets.length[plan.begin : plan.end], strict=True)
        contents: Iterator[bytes] = (file.between(start, start + int(length)) for start, length in spans)
    else:
        contents = islice(packet_reader(packets, file, blob.location), plan.begin, plan.end)
    for number, data in enumerate(contents, plan.begin):
        if crc32(data) != packets.crc[number]:
            raise CorruptFrameError(
                f"{blob.location}: the bytes of packet {number} are not those that were indexed. The file is damaged; "
                "copy it from where it came from.",
                path=blob.location,
            )
        yield data, bool(packets.flags[number] & KEY)


def _encoder(decoder: VideoDecoder, first: int, number: int) -> VideoCodecContext:
    """An encoder for pictures like those of the stream, open.

    Args:
        decoder: The stream.
        first: The first frame that it will be given.
        number: Of its parameter sets, where the codec numbers them.

    Raises:
        DecodeError: There is none in this FFmpeg.
    """
    import av

    packets, stream = decoder.packets, decoder.packets.stream
    ((_, frame),) = decoder.planes(np.array([first]))
    name, options = _ENCODERS.get(stream.codec, ("", {}))
    try:
        codec = cast("VideoCodecContext", av.CodecContext.create(name, "w"))
        codec.width, codec.height, codec.pix_fmt = stream.width, stream.height, stream.pix_fmt
        codec.time_base = Fraction(1) / (stream.rate or 30)
        codec.framerate = stream.rate or Fraction(30)
        codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc = stream.tags
        codec.thread_count = 1
        codec.flags |= _GLOBAL_HEADER
        x264 = f"open-gop=0:threads=1:sps-id={number}:interlaced={int(frame.interlaced_frame)}"
        own_options = {"x264-params": x264} if stream.codec == "h264" else {}
        if stream.codec == "hevc" and decoder.codes:  # of which none may change
            # Each picture alone: of those that refer to others x265 loses something.
            own_options = {"x265-params": f"{options['x265-params']}:lossless=1:keyint=1"}
        codec.options = options | own_options
        with kept_priority():
            codec.open()
    except (av.FFmpegError, ValueError) as error:
        keys = ", ".join(map(str, np.flatnonzero(np.isin(packets.order, packets.starts))[:5]))
        raise DecodeError(
            f"A cut between key frames needs an encoder for {stream.codec} ({stream.pix_fmt}), and the FFmpeg inside "
            f"this PyAV ({av.__version__}) has none that works: {error}. Cut at key frames ({keys}, ...), or encode "
            "the videos as H.264 first."
        ) from error
    return codec


def _encoded(decoder: VideoDecoder, encoder: VideoCodecContext, first: int, last: int) -> Iterator[tuple[bytes, bool]]:
    """Frames `first` to `last` encoded again, one packet each."""
    for begin in range(first, last, _TOGETHER):
        frames = dict(decoder.planes(np.arange(begin, min(begin + _TOGETHER, last))))
        for number in sorted(frames):
            frame = frames[number]
            frame.pts, frame.time_base = number - first, encoder.time_base
            frame.pict_type = cast("Any", 0)  # else the encoder copies the type that the frame had
            for packet in encoder.encode(frame):
                yield bytes(packet), packet.is_keyframe
    for packet in encoder.encode(None):
        yield bytes(packet), packet.is_keyframe


def _check(decoder: VideoDecoder, path: Path, plan: CutPlan) -> dict[int, PacketIndex]:
    """Read the clip back, and give its packet indexes.

    Raises:
        DecodeError: It has other frames, at other times, or its copied packets do not show what they showed.
    """
    index = indexing.index(LocalBlob(path), cut_from=None if plan.encoded else decoder.packets)
    clip = VideoDecoder(index[0], LocalBlob(path))
    times, _ = _times(decoder.packets, plan)
    base, clip_base = decoder.time_base, clip.time_base
    expected = [int(time) * base.numerator * clip_base.denominator for time in times]
    actual = [int(time) * clip_base.numerator * base.denominator for time in clip.pts]
    if clip.packets.stream.turn != decoder.packets.stream.turn:
        raise DecodeError("The clip is turned another way than the video.")
    # Matroska, which holds what no other container does, counts in milliseconds.
    matroska = container_of(decoder.packets.stream.codec) == "matroska"
    near = base.denominator * clip_base.denominator / 1000 if matroska else 0
    if len(actual) != len(expected) or any(abs(a - b) > near for a, b in zip(actual, expected, strict=True)):
        raise DecodeError(
            f"The clip has {len(actual)} frames where {len(expected)} were cut, or they have other times."
        )
    if not plan.encoded and _same_packets(decoder.packets, clip.packets, plan):
        return index  # the same packets, in the same order, under the same parameters: the same pictures
    for number in {plan.first, plan.last - 1} if plan.first < plan.last else ():
        before = next(frame for _, frame in decoder.planes(np.array([number])))
        after = next(frame for _, frame in clip.planes(np.array([number - plan.start])))
        if not all(map(np.array_equal, planes_of(before), planes_of(after))):
            raise DecodeError(f"The copied frame {number} shows something else in the clip.")
    return index


def _same_packets(packets: PacketIndex, clip: PacketIndex, plan: CutPlan) -> bool:
    """Whether a clip has all packets of a plan as they were, for the same frames, and may be begun where they may."""
    crc, keys = packets.crc[plan.begin : plan.end], packets.flags[plan.begin : plan.end] & KEY
    same = np.array_equal(clip.crc, crc) and clip.stream.parameters == packets.stream.parameters
    same &= np.array_equal(clip.frames, packets.frames[plan.begin : plan.end] - plan.start)
    return bool(same) and not (keys & ~clip.flags).any() and packets.stream.proof == "times"
