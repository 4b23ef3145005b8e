"""Makes the packet indexes of a video file: by demuxing, and by decoding once where timestamps prove no order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.files.checksums import crc32
from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import open_container
from seqlake.media._limits import PACKETS, PIXELS, frame_pixels
from seqlake.media.video.codec import codec_name, in_sequence, refreshes
from seqlake.media.video.packets import DAMAGED, HIDDEN, KEY, OPEN, PacketIndex, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    import av
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

    from seqlake.protocols import Blob, Ints

_EXIF = b"Exif\0\0"
_LOOK = 1 << 16  # packets, after which their number is compared with its limit
_NEAR = 32  # in Matroska a payload starts a few bytes after the place that is named
_DECODED_ONCE = frozenset({"vp8", "mpeg1video", "mpeg2video", "vc1", "wmv3"})  # hidden frames, fields
_NO_TIMES = frozenset({"avi", "h264", "hevc", "m4v", "mpegvideo", "mjpeg", "obu"})  # containers that do not tell them


@dataclass(slots=True)
class _Packets:
    """One stream's packets as they are met."""

    stream: VideoStream
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    timed: bool = True  # every packet has a pts
    placed: bool = True
    turn: tuple[int, int, int, int] | None = None
    changes: list[tuple[int, bytes]] = field(default_factory=list)

    def add(self, packet: av.Packet[Any], file: BlobBytes, size: int, location: str) -> None:
        data = bytes(packet)
        if packet.has_sidedata("new_extradata"):
            self.changes.append((len(self.rows), bytes(packet.get_sidedata("new_extradata"))))
        offset = -1 if packet.pos is None else packet.pos
        if offset >= 0:
            near = file.between(offset, offset + _NEAR + len(data)).find(data)
            offset = -1 if near < 0 else offset + near
        cut = packet.is_corrupt or offset + len(data) > size
        self.placed &= offset >= 0 or cut
        time = packet.dts if packet.pts is None else packet.pts
        self.timed &= packet.pts is not None or cut
        flags = HIDDEN if packet.is_discard or cut else 0
        if packet.is_keyframe and not cut:
            codec = self.stream.codec_context
            flags |= KEY if refreshes(data, codec.name, bytes(codec.extradata or b"")) else KEY | OPEN
        if not len(self.rows) % _LOOK:
            PACKETS.hold(len(self.rows), location, path=location)
        self.rows.append((max(offset, 0), len(data), time or 0, flags, crc32(data)))


def index(blob: Blob, /) -> dict[int, PacketIndex]:
    """The packet index of every video stream of a file that FFmpeg has a decoder for; reads the file once.

    Raises:
        CorruptFileError: The container is damaged.
        DecodeError: There is a decoder for none of them.
    """
    file = BlobBytes(blob)
    with open_container(file, blob.location) as container:
        streams = dict(enumerate(picture_streams(container)))
        if not streams:
            return {}
        known = {number: stream for number, stream in streams.items() if _has_decoder(stream)}
        if not known:
            raise DecodeError(f"{blob.location}: this FFmpeg has no decoder for its video. Encode it anew.")
        for stream in known.values():
            _fits(stream, blob.location)
        found = {stream.index: _Packets(stream) for stream in known.values()}
        container_name = container.format.name
        for packet in _demuxed(container, list(known.values()), blob.location):
            if packet.has_sidedata("encryption_info"):
                raise DecodeError(f"{blob.location} is encrypted. Decrypt it first, by whoever has its key.")
            if packet.size:
                _turned(found[packet.stream_index], packet)
                found[packet.stream_index].add(packet, file, blob.size, blob.location)
        met = {number: found[stream.index] for number, stream in known.items() if found[stream.index].rows}
        made = {number: _made(number, packets, blob.size) for number, packets in met.items()}
    for number, one in made.items():
        if not _proven(one, met[number], container_name):
            made[number] = _decoded_once(one, file, blob.location, timed=met[number].timed)
        elif (one.flags & OPEN).any():
            made[number] = _damage_marked(one, file, blob.location)
    return made


def _demuxed(container: InputContainer, streams: list[VideoStream], location: str) -> Iterator[av.Packet[Any]]:
    import av

    try:
        yield from container.demux(streams)
    except (av.FFmpegError, IndexError) as error:  # IndexError: damage looks like a stream that appears half way
        raise CorruptFileError(
            f"{location} is damaged: FFmpeg finds no packets behind some point ({error}). Record or copy it again.",
            path=location,
        ) from error


def _fits(stream: VideoStream, location: str) -> None:
    width, height = stream.codec_context.width, stream.codec_context.height
    if not width or not height:
        raise DecodeError(
            f"{location}: FFmpeg finds no size of its frames, or one far above the limit of {frame_pixels():,} pixels "
            f"(half of {PIXELS.name}). Raise that if you trust it.",
            path=location,
        )
    PIXELS.hold(width * height, f"{location}: a frame of {width} x {height}", most=frame_pixels(), path=location)


def _has_decoder(stream: VideoStream) -> bool:
    context: object = stream.codec_context  # None for a codec that is not known, whatever its type says
    return context is not None


def picture_streams(container: InputContainer) -> list[VideoStream]:
    """Video streams that are no cover art."""
    import av

    return [one for one in container.streams.video if not one.disposition & av.stream.Disposition.attached_pic]


def _turned(packets: _Packets, packet: av.Packet[Any]) -> None:
    """Learn the display matrix: FFmpeg puts it on decoded frames only, so one is decoded."""
    import av

    if packets.turn is not None or not packet.is_keyframe:
        return
    packets.turn = (1, 0, 0, 1)
    codec = packets.stream.codec_context
    data = bytes(packet)
    if _EXIF in data:  # a still's own orientation is not applied, and PyAV does not know what FFmpeg makes of it
        packet = av.Packet(data.replace(_EXIF, b"Exi_\0\0"))
    try:
        frames = [*codec.decode(packet), *codec.decode(None)]
        matrix = frames[0].side_data.get("DISPLAYMATRIX") if frames else None
    except (av.FFmpegError, ValueError):  # ValueError: such notes of a TIFF, a PNG or a WebP
        return
    finally:
        codec.flush_buffers()
    if matrix is not None:
        a, b, _, c, d, *_ = np.frombuffer(bytes(cast("memoryview", matrix)), "=i4").tolist()
        signs = tuple(int(np.sign(round(one / 65536))) for one in (a, b, c, d))
        if signs.count(0) == 2 and signs[0] * signs[3] + signs[1] * signs[2]:
            packets.turn = cast("tuple[int, int, int, int]", signs)


def _made(number: int, packets: _Packets, size: int) -> PacketIndex:
    stream, codec = packets.stream, packets.stream.codec_context
    offset, length, pts, flags, crc = (np.array(column) for column in zip(*packets.rows, strict=True))
    return PacketIndex(
        stream=Stream(
            number=number,
            codec=codec_name(codec),
            extradata=bytes(codec.extradata or b""),
            width=codec.width,
            height=codec.height,
            pix_fmt=codec.pix_fmt or "",
            reorder=codec.reorder_depth,
            time_base=Fraction(stream.time_base or 1),
            rate=Fraction(stream.average_rate or stream.base_rate or 0),
            tags=(int(codec.color_range), int(codec.colorspace), int(codec.color_primaries), int(codec.color_trc)),
            turn=packets.turn or (1, 0, 0, 1),
            size=size,
            placed=packets.placed,
            changes=tuple(packets.changes),
            fourcc=_fourcc(codec),
            depth=codec.bits_per_coded_sample,
        ),
        offset=offset,
        length=length,
        pts=pts,
        flags=flags.astype(np.uint8),
        crc=crc.astype(np.uint32),
    )


def _fourcc(codec: VideoCodecContext) -> str:
    try:
        return str(codec.codec_tag).rstrip("\0")
    except UnicodeDecodeError:  # no codec's name
        return ""


def _proven(one: PacketIndex, packets: _Packets, container: str) -> bool:
    """Whether timestamps alone say which packet is which frame."""
    untimed = bool(_NO_TIMES & set(container.split(","))) and one.stream.reorder > 0
    if not packets.timed or untimed or one.stream.codec in _DECODED_ONCE:
        return False
    if len(np.unique(one.pts)) < len(one.pts) or not one.flags[0] & KEY:
        return False
    leading = (one.pts < one.pts[0]) & ((one.flags & HIDDEN) == 0)
    return not leading.any()


def packet_reader(index: PacketIndex, file: BlobBytes, location: str, /) -> Iterator[bytes]:
    """The bytes of every packet in decoding order; by demuxing where they do not lie in the file as they are."""
    if index.stream.placed:
        for start, length in zip(index.offset.tolist(), index.length.tolist(), strict=True):
            yield file.between(start, start + length)
        return
    with open_container(file, location) as container:
        stream = picture_streams(container)[index.stream.number]
        for packet in container.demux(stream):
            if packet.size:
                yield bytes(packet)


def _damage_marked(one: PacketIndex, file: BlobBytes, location: str) -> PacketIndex:
    """Open groups of H.264 cannot be begun strictly, so their damage is found in sequence, once."""
    closed = np.flatnonzero((one.flags & (KEY | OPEN)) == KEY)
    if not len(closed):
        return one
    flags = one.flags.copy()
    for number, frames in in_sequence(one.stream, packet_reader(one, file, location), first=int(closed[0])):
        if frames is None:
            flags[number] |= DAMAGED
    return replace(one, flags=flags)


def _decoded_once(one: PacketIndex, file: BlobBytes, location: str, *, timed: bool) -> PacketIndex:
    """The index with the order in which the decoder really gives the frames out."""
    order: dict[int, None] = {}
    for _, frames in in_sequence(one.stream, packet_reader(one, file, location), strict=False):
        # Damage, or leading pictures of a cut file: no frame, as in every player.
        order |= dict.fromkeys(int(frame.pts or 0) for frame in frames or ())
    kept = np.array([number for number in order if not one.flags[number] & HIDDEN], np.int64)
    times = _times(one, kept, timed=timed)
    if times is not None:
        return one.shown(kept, times, time_base=one.stream.time_base)
    rate = one.stream.rate or Fraction(25)
    return one.shown(kept, np.arange(len(kept)), time_base=1 / rate)


def _times(one: PacketIndex, order: Ints, *, timed: bool) -> Ints | None:
    """Ascending times for frames whose order is known; None where the file has none."""
    times = one.pts[order] if timed else np.sort(one.pts)[: len(order)]
    ascending = len(times) < 2 or bool((np.diff(times) > 0).all())
    if not ascending:
        times = np.sort(times)
        ascending = bool((np.diff(times) > 0).all())
    return times if ascending else None
