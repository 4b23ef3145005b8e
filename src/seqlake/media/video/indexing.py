"""Makes the packet indexes of a video file: by demuxing, and by decoding once where timestamps prove no order."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.errors import DecodeError
from seqlake.files.checksums import crc32
from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import open_container
from seqlake.media._limits import PACKETS, PIXELS, frame_pixels
from seqlake.media.video import h264
from seqlake.media.video.codec import codec_name
from seqlake.media.video.demuxing import demuxed, picture_streams
from seqlake.media.video.packets import DAMAGED, HIDDEN, KEY, MARKED, OPEN, PacketIndex, StreamInfo
from seqlake.media.video.proving import proven

if TYPE_CHECKING:
    import av
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream

    from seqlake.protocols import Blob

_EXIF = b"Exif\0\0"
_LOOK = 1 << 16  # packets, after which their number is compared with its limit
_NEAR = 32  # in Matroska a payload starts a few bytes after the place that is named


@dataclass(slots=True)
class _Packets:
    """One stream's packets as they are met."""

    stream: VideoStream
    h264: h264.Packets | None
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    timed: bool = True  # every packet has a pts
    placed: bool = True
    begins: bool = True  # a picture comes out of the first key packet alone; not so of a gradual refresh
    turn: tuple[int, int, int, int] | None = None
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    palettes: list[tuple[int, bytes]] = field(default_factory=list)

    def add(self, packet: av.Packet[Any], file: BlobBytes, size: int, location: str) -> None:
        data = bytes(packet)
        if packet.has_sidedata("new_extradata"):
            self.changes.append((len(self.rows), bytes(packet.get_sidedata("new_extradata"))))
        if packet.has_sidedata("palette"):
            palette = bytes(packet.get_sidedata("palette"))
            if not self.palettes or self.palettes[-1][1] != palette:
                self.palettes.append((len(self.rows), palette))
        offset = -1 if packet.pos is None else packet.pos
        if offset >= 0:
            near = file.between(offset, offset + _NEAR + len(data)).find(data)
            offset = -1 if near < 0 else offset + near
        end = offset + len(data)
        cut = end > size or (packet.is_corrupt and end >= min(size, file.end))  # the file ends within it
        self.placed &= offset >= 0 or cut
        time = packet.dts if packet.pts is None else packet.pts
        self.timed &= packet.pts is not None or cut
        flags = HIDDEN if packet.is_discard or cut else 0
        flags |= (DAMAGED if packet.is_corrupt and not cut else 0) | (MARKED if packet.is_keyframe else 0)
        anew, lost = (True, False) if self.h264 is None else self.h264.see(data)
        if packet.is_keyframe and not cut:
            flags |= KEY if anew else KEY | OPEN
        elif lost:
            flags |= DAMAGED
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
        gathered = {stream.index: _Packets(stream, _followed(stream)) for stream in known.values()}
        container_name = container.format.name
        for packet in demuxed(container, list(known.values()), blob.location):
            if packet.has_sidedata("encryption_info"):
                raise DecodeError(f"{blob.location} is encrypted. Decrypt it first, by whoever has its key.")
            if packet.size:
                _turned(gathered[packet.stream_index], packet)
                gathered[packet.stream_index].add(packet, file, blob.size, blob.location)
        met = {number: gathered[stream.index] for number, stream in known.items() if gathered[stream.index].rows}
        indexes = {number: _made(number, packets, blob.size) for number, packets in met.items()}
    return {
        number: proven(one, blob, container=container_name, timed=met[number].timed, begins=met[number].begins)
        for number, one in indexes.items()
    }


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


def _followed(stream: VideoStream) -> h264.Packets | None:
    codec = stream.codec_context
    return h264.Packets(bytes(codec.extradata or b"")) if codec_name(codec) == "h264" else None


def _turned(packets: _Packets, packet: av.Packet[Any]) -> None:
    """Learn the display matrix: FFmpeg puts it on decoded frames only, so one is decoded."""
    import av

    if packets.turn is not None or not packet.is_keyframe:
        return
    packets.turn, packets.begins = (1, 0, 0, 1), False
    codec = packets.stream.codec_context
    data = bytes(packet)
    if packet.is_discard:  # an edit list leaves it out, and the decoder would
        packet = av.Packet(data)
    if _EXIF in data:  # a still's own orientation is not applied, and PyAV does not know what FFmpeg makes of it
        packet = av.Packet(data.replace(_EXIF, b"Exi_\0\0"))
    try:
        frames = [*codec.decode(packet), *codec.decode(None)]
        packets.begins = bool(frames)
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
        stream=StreamInfo(
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
            palettes=tuple(packets.palettes),
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
