"""Makes the packet indexes of a video file: by demuxing, and by decoding once where timestamps prove no order.

Which packet is which frame is told by the container's times where they can be believed, else by decoding: from the
file's start as any player does, and then packet by packet from each key packet as it will be read later. A key packet
from which other pictures come is none, and where no beginning gives the same pictures the packet is damaged. So
whatever is read later is what a sequential decode shows, or an error.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.files.checksums import crc32
from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import display_matrix, is_noted, open_container, refuse_encrypted
from seqlake.media._limits import PACKETS, PIXELS, frame_pixels
from seqlake.media.video import h264, tables
from seqlake.media.video.codec import codec_name, in_sequence
from seqlake.media.video.decoder import FrameReader
from seqlake.media.video.demuxing import demuxed, in_one_piece, packet_reader, picture_streams
from seqlake.media.video.packets import DAMAGED, HIDDEN, KEY, MARKED, OPEN, PacketIndex, StreamInfo
from seqlake.media.video.pixels import fingerprint

if TYPE_CHECKING:
    import av
    from av.video.codeccontext import VideoCodecContext
    from av.video.stream import VideoStream
    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints

_UPRIGHT = (1, 0, 0, 1)
_EXIF = b"Exif\0\0"
_LOOK = 1 << 16  # packets, after which their number is compared with its limit
_NOTHING_BESIDE = frozenset({"av1", "vp9"})  # codecs in which nothing but the container turns pictures
_FIRST = 8  # packets that are asked for one by one before a container's tables are believed
_NEAR = 32  # in Matroska a payload starts a few bytes after the place that is named


@dataclass(slots=True)
class _Packets:
    """One stream's packets as they are met."""

    stream: VideoStream
    codec: str  # asked before anything is decoded: a decoder that failed forgets what it was
    h264: h264.Packets | None
    rows: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    others: NDArray[np.int64] | None = None  # [packets, 5] those after `rows`, which nobody asked one by one
    timed: bool = True  # every packet has a pts
    placed: bool = True
    begins: bool = True  # a picture comes out of the first key packet alone; not so of a gradual refresh
    turn: tuple[int, int, int, int] | None = None
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    palettes: list[tuple[int, bytes]] = field(default_factory=list)

    def add(self, packet: av.Packet[Any], data: bytes, file: BlobBytes, size: int, location: str) -> None:
        # Of an hour of video this runs a hundred thousand times, so that nothing is asked of a packet twice.
        length, corrupt, key, pts = len(data), packet.is_corrupt, packet.is_keyframe, packet.pts
        offset = _place(packet.pos, data, file)
        end = offset + length
        cut = end > size or (corrupt and end >= min(size, file.end))  # the file ends within it
        self.placed &= offset >= 0 or cut
        self.timed &= pts is not None or cut
        time = packet.dts if pts is None else pts
        flags = HIDDEN if cut or packet.is_discard else 0
        if corrupt and not cut:
            flags |= DAMAGED
        if key:
            flags |= MARKED
        anew, lost = (True, False) if self.h264 is None else self.h264.see(data)
        if key and not cut:
            flags |= KEY if anew else KEY | OPEN
        elif lost:
            flags |= DAMAGED
        if not len(self.rows) % _LOOK:
            PACKETS.hold(len(self.rows), location, path=location)
        self.rows.append((max(offset, 0), length, time or 0, flags, crc32(data)))

    def listed(self, file: BlobBytes, location: str) -> bool:
        """Take the others from the container's own tables, where these tell the first ones as FFmpeg does."""
        listed = tables.listed(file, self.codec, bytes(self.stream.codec_context.extradata or b""))
        if listed is None:
            return False
        PACKETS.hold(len(listed.pts), location, path=location)
        rows = np.stack([listed.offset, listed.length, listed.pts, listed.flags, listed.crc], axis=1)
        if not np.array_equal(rows[: len(self.rows)], self.rows):
            return False
        self.others = rows[len(self.rows) :]
        return True

    def learn(self, packet: av.Packet[Any]) -> None:
        """What a note beside a packet changes from it on."""
        if packet.has_sidedata("new_extradata"):
            self.changes.append((len(self.rows), bytes(packet.get_sidedata("new_extradata"))))
        if packet.has_sidedata("palette"):
            palette = bytes(packet.get_sidedata("palette"))
            if not self.palettes or self.palettes[-1][1] != palette:
                self.palettes.append((len(self.rows), palette))


def _place(named: int | None, data: bytes, file: BlobBytes) -> int:
    """Where the bytes of a packet lie in the file; -1 where they do not lie there as they are."""
    if named is None or named < 0:
        return -1
    near = file.between(named, named + _NEAR + len(data))
    moved = 0 if near.startswith(data) else near.find(data)  # to prepare a search takes longer than to compare
    return -1 if moved < 0 else named + moved


def index(blob: Blob, /, *, cut_from: PacketIndex | None = None) -> dict[int, PacketIndex]:
    """The packet index of every video stream of a file that FFmpeg has a decoder for; reads the file once.

    Of an MP4 whose tables say everything FFmpeg is asked for the first packets alone.

    Args:
        blob: The file.
        cut_from: Of the stream whose packets these are, of which some have been decoded already. Where only the
            container can say how pictures are turned, none is decoded again for that.

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
        gathered = {stream.index: _begun(stream) for stream in known.values()}
        container_name, size = container.format.name, blob.size
        for packet in demuxed(container, list(known.values()), blob.location):
            noted = is_noted(packet)
            if noted:
                refuse_encrypted(packet, blob.location)
            if packet.size:
                packets, data = gathered[packet.stream_index], bytes(packet)
                if packets.turn is None and packet.is_keyframe:
                    packets.turn = _turn_without(cut_from, packets, file) or _turn_of_first(packets, packet, data)
                if noted:
                    packets.learn(packet)
                packets.add(packet, data, file, size, blob.location)
                if len(packets.rows) == _FIRST and len(known) == 1 and packets.listed(file, blob.location):
                    break
        met = {number: gathered[stream.index] for number, stream in known.items() if gathered[stream.index].rows}
        indexes = {number: _made(number, packets, size) for number, packets in met.items()}
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


def _begun(stream: VideoStream) -> _Packets:
    codec = codec_name(stream.codec_context)
    followed = h264.Packets(bytes(stream.codec_context.extradata or b"")) if codec == "h264" else None
    return _Packets(stream, codec, followed)


def _turn_of_first(packets: _Packets, packet: av.Packet[Any], data: bytes) -> tuple[int, int, int, int]:
    """How pictures are turned: FFmpeg puts the display matrix on decoded frames only, so a key packet is decoded."""
    import av

    packets.begins = False
    codec = packets.stream.codec_context
    if not codec.is_open:
        codec.thread_count = 1  # to start others costs more than one picture
    if packet.is_discard:  # an edit list leaves it out, and the decoder would
        packet = av.Packet(data)
    if _EXIF in data:  # a still's own orientation is not applied, and PyAV does not know what FFmpeg makes of it
        packet = av.Packet(data.replace(_EXIF, b"Exi_\0\0"))
    try:
        frames = [*codec.decode(packet), *codec.decode(None)]
        packets.begins = bool(frames)
        matrix = frames[0].side_data.get("DISPLAYMATRIX") if frames else None
    except (av.FFmpegError, ValueError):  # ValueError: such notes of a TIFF, a PNG or a WebP
        return _UPRIGHT
    finally:
        codec.flush_buffers()
    if matrix is None:
        return _UPRIGHT
    return _turn_of(np.frombuffer(bytes(cast("memoryview", matrix)), "=i4")) or _UPRIGHT


def _turn_of(matrix: Ints) -> tuple[int, int, int, int] | None:
    """By which quarters a display matrix turns and mirrors; None where it does something else."""
    a, b, _, c, d, *_ = matrix.tolist()
    signs = tuple(int(np.sign(round(one / 65536))) for one in (a, b, c, d))
    quarters = signs.count(0) == 2 and signs[0] * signs[3] + signs[1] * signs[2]
    return cast("tuple[int, int, int, int]", signs) if quarters else None


def _turn_without(cut_from: PacketIndex | None, packets: _Packets, file: BlobBytes) -> tuple[int, int, int, int] | None:
    """How pictures are turned where no packet can say that, of a codec whose packets were decoded before."""
    if cut_from is None:
        return None
    stream = cut_from.stream
    if packets.codec not in _NOTHING_BESIDE or packets.codec != stream.codec or stream.proof != "times":
        return None
    matrix = display_matrix(file)
    return None if matrix is None else _turn_of(matrix)


def _made(number: int, packets: _Packets, size: int) -> PacketIndex:
    stream, codec = packets.stream, packets.stream.codec_context
    rows = np.array(packets.rows, np.int64)
    offset, length, pts, flags, crc = (rows if packets.others is None else np.concatenate([rows, packets.others])).T
    return PacketIndex(
        stream=StreamInfo(
            number=number,
            codec=packets.codec,
            extradata=bytes(codec.extradata or b""),
            width=codec.width,
            height=codec.height,
            pix_fmt=codec.format.name if codec.format else "",  # `codec.pix_fmt` of none ends the process in PyAV 17
            reorder=codec.reorder_depth,
            time_base=Fraction(stream.time_base or 1),
            rate=Fraction(stream.average_rate or stream.base_rate or 0),
            tags=(int(codec.color_range), int(codec.colorspace), int(codec.color_primaries), int(codec.color_trc)),
            turn=packets.turn or _UPRIGHT,
            size=size,
            placed=packets.placed,
            changes=tuple(packets.changes),
            fourcc=_fourcc(codec),
            depth=codec.bits_per_coded_sample,
            palettes=tuple(packets.palettes),
        ),
        offset=offset.copy(),
        length=length.copy(),
        pts=pts.copy(),
        flags=flags.astype(np.uint8),
        crc=crc.astype(np.uint32),
    )


def _fourcc(codec: VideoCodecContext) -> str:
    try:
        return str(codec.codec_tag).rstrip("\0")
    except UnicodeDecodeError:  # no codec's name
        return ""


# Containers whose presentation times are those of the pictures; AVI, MXF, ASF and raw streams only count packets.
_TIMED = frozenset({"mov", "matroska", "webm", "mpegts", "mpeg", "flv", "nut", "ivf"})
_ONCE = 1  # key packets that are doubted for one that does not decode
_OFTEN = 3  # for one that shows another picture
_HELD, _PIXELS = 12, 1 << 25  # pictures, and pixels of all of them
_MANY = 12  # in one file: then all of them


def proven(one: PacketIndex, blob: Blob, /, *, container: str, timed: bool, begins: bool) -> PacketIndex:
    """The index with an order of frames and with key packets that can be believed.

    Args:
        one: What the container says.
        blob: The file.
        container: FFmpeg's names of its kind, with commas.
        timed: Each packet has a presentation time.
        begins: A picture comes out of the first key packet alone.

    Raises:
        DecodeError: FFmpeg shows other pictures when it is fed without the container.
    """
    if timed and begins and one.believed and _tells(one, container):
        return _said(one, "times")
    if one.stream.codec in _CHECKSUMS:
        one = replace(one, flags=one.flags | _checksums_failed(one, blob))
    played = _played(one, blob)
    confirmed = _confirmed(_ordered(one, list(played), timed=timed), blob, played)
    return _said(_damage_marked(confirmed, blob) if (confirmed.flags & OPEN).any() else confirmed, "decoded")


def _tells(one: PacketIndex, container: str) -> bool:
    return one.stream.reorder == 0 or bool(_TIMED & set(container.split(",")))


def _said(one: PacketIndex, proof: str) -> PacketIndex:
    return replace(one, stream=replace(one.stream, proof=proof))


def _damage_marked(one: PacketIndex, blob: Blob) -> PacketIndex:
    """Open groups of H.264 cannot be begun strictly, so their damage is found in sequence, once."""
    closed = np.flatnonzero((one.flags & (KEY | OPEN)) == KEY)
    if not len(closed):
        return one
    flags = one.flags.copy()
    for number, frames in in_sequence(one, packet_reader(one, BlobBytes(blob), blob.location), first=int(closed[0])):
        bad = [number] if frames is None else [int(frame.pts or 0) for frame in frames if frame.is_corrupt]
        flags[bad] |= DAMAGED
    return replace(one, flags=flags)


def _checksums_failed(one: PacketIndex, blob: Blob) -> NDArray[np.uint8]:
    """[packets] DAMAGED where a checksum within the packet says so; FFmpeg conceals these in silence."""
    packets = packet_reader(one, BlobBytes(blob), blob.location)
    is_whole = _CHECKSUMS[one.stream.codec]
    failed = np.fromiter((not is_whole(bytes(data)) for data in packets), bool, len(one.pts))
    return failed.astype(np.uint8) * np.uint8(DAMAGED)


def _played(one: PacketIndex, blob: Blob) -> dict[int, int]:
    """Packet to fingerprint of every frame in the order in which a decode of the whole container gives them out."""
    import av

    played: dict[int, int] = {}
    with open_container(BlobBytes(blob), blob.location) as container:
        stream = picture_streams(container)[one.stream.number]
        # One thread: of damaged AV1 several give out other pictures each time (FFmpeg 9).
        stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
        number = -1
        for packet in demuxed(container, [stream], blob.location):
            if packet.size:
                number += 1
                packet.pts = number
            try:
                frames = stream.codec_context.decode(packet)
            except (av.FFmpegError, ValueError):  # ValueError: of a decoder that could not begin, since PyAV 19
                continue  # damage, or leading pictures of a cut file: no frame, as in every player
            for frame in frames:
                which = -1 if frame.pts is None else int(frame.pts)
                if which in played or not 0 <= which < len(one.pts):
                    raise DecodeError(
                        f"{blob.location}: one packet of its {one.stream.codec} shows several pictures, so that none "
                        "can be read alone. Encode it anew, as H.264 for example.",
                        path=blob.location,
                    )
                played[which] = fingerprint(frame)
    return played


def _ordered(one: PacketIndex, played: list[int], *, timed: bool) -> PacketIndex:
    """The index with the order in which frames came out."""
    cut = [number for number in played[:-1] if one.flags[number] & HIDDEN]
    if cut:  # the file ends within it, and others are shown behind it: it keeps its place, but not its picture
        flags = one.flags & ~np.uint8(HIDDEN) | np.uint8(DAMAGED)
        one = replace(one, flags=np.where(np.isin(np.arange(len(one.flags)), cut), flags, one.flags))
    kept = np.array([number for number in played if not one.flags[number] & HIDDEN], np.int64)
    times = _times(one, kept, timed=timed)
    if times is not None:
        return one.in_order(kept, times, time_base=one.stream.time_base)
    rate = one.stream.rate or Fraction(25)
    return one.in_order(kept, np.arange(len(kept)), time_base=1 / rate)


def _times(one: PacketIndex, order: Ints, *, timed: bool) -> Ints | None:
    """Ascending times for frames whose order is known; None where the file has none."""
    times = one.pts[order] if timed else np.sort(one.pts)[: len(order)]
    ascending = len(times) < 2 or bool((np.diff(times) > 0).all())
    if not ascending:
        times = np.sort(times)
        ascending = bool((np.diff(times) > 0).all())
    return times if ascending else None


def _confirmed(one: PacketIndex, blob: Blob, played: dict[int, int]) -> PacketIndex:
    """The index without key packets from which other pictures come than were shown, and with damage marked."""
    flags = one.flags.copy()
    placed, data = in_one_piece(one, blob)
    taken: dict[int, list[int]] = {}  # packet that failed -> key packets that were doubted for it
    begin = 0  # groups of pictures before it are confirmed
    while (failure := _first_failure(replace(placed, flags=flags), data, played, begin)) is not None:
        start, packet, raised = failure
        doubted = taken.setdefault(packet, [])
        if start > 0 and len(doubted) < (_ONCE if raised else _OFTEN):
            doubted.append(start)
            flags[start] &= ~np.uint8(KEY)
            if sum(map(len, taken.values())) > _MANY:
                flags[1:] &= ~np.uint8(KEY)
            keys = np.flatnonzero(flags & KEY)
            begin = int(keys[keys < start].max(initial=0))
            continue
        if packet == one.order[0] and not raised:
            raise DecodeError(
                f"{blob.location}: FFmpeg shows other pictures of its {one.stream.codec} when it is fed without the "
                "container. Encode it anew, as H.264 for example.",
                path=blob.location,
            )
        flags[doubted] |= KEY  # it was not them
        doubted.clear()
        flags[packet] |= DAMAGED
        begin = start
    return replace(one, flags=flags)


def _first_failure(index: PacketIndex, blob: Blob, played: dict[int, int], begin: int) -> tuple[int, int, bool] | None:
    """The first group of pictures from `begin` on that gives something else when it is decoded alone.

    Returns:
        Its key packet, the packet at fault, and whether it raised; None where there is none.
    """
    reader = FrameReader(index, blob, location=blob.location)
    groups: dict[int, list[int]] = {}
    for number, packet in enumerate(index.order.tolist()):
        groups.setdefault(reader.start_of(packet), []).append(number)
    bad = np.flatnonzero(index.flags & DAMAGED)
    # While these live, pictures lie elsewhere in memory than before: damage may show what memory held.
    pixels = max(1, index.stream.width * index.stream.height)  # a damaged beginning may say 0
    held = deque[object](maxlen=max(1, min(_HELD, _PIXELS // pixels)))
    for start in sorted(groups):
        if start < begin:
            continue
        numbers = [number for number in groups[start] if not ((bad >= start) & (bad <= index.order[number])).any()]
        failing = None
        if index.flags[start] & OPEN:
            # One by one, a frame that does not come out of it would be decoded from further back, and those behind too.
            failing = _failing(reader, index, [numbers], played, held)
            if failing is None:
                continue
        if failing is None or failing[1]:
            failing = _failing(reader, index, [[number] for number in numbers], played, held) or failing
        if failing is not None:
            return start, *failing
    return None


def _failing(
    reader: FrameReader, index: PacketIndex, asked: list[list[int]], played: dict[int, int], held: deque[object]
) -> tuple[int, bool] | None:
    """Read frames anew: the first packet at fault, and whether it raised; None where there is none."""
    reader.restart()
    for numbers in asked:
        try:
            for number, frame in reader.frames(numbers):
                held.append(frame)
                packet = int(index.order[number])
                if fingerprint(frame) != played[packet]:
                    return packet, False
        except CorruptFrameError:
            packet = int(index.order[numbers[-1]])
            return packet if reader.refused is None else min(packet, reader.refused), True
        except CorruptFileError:
            return None  # other sizes or pixels from here on, which is an error whenever it is read
    return None


# Checksums inside packets of FFV1 and Flash Screen Video: FFmpeg only logs one that fails, and shows something else,
# an older picture (FFV1, RFC 9043) or what the decoder's memory held (Flash Screen Video).
_LENGTH, _CHECKED = 3, 8  # bytes behind a slice: its length; the same, a status and a checksum
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ALL = 0xFFFFFFFF
_SEEDS = (
    0,
    0x5E31029E,
)  # of the register at first, and again behind the checksum: RFC 9043; FFmpeg's `slicecrc=2`
_HEADER = 4  # width and height of blocks and of the picture


def ffv1_is_whole(packet: bytes, /) -> bool:
    """Whether no checksum of a picture's slices fails; True where it has none."""
    slices = _slices(packet, _CHECKED)
    if not slices or _slices(packet, _LENGTH):
        return True
    registers = [[_register(packet[a:b], seed) == seed for seed in _SEEDS] for a, b in slices]
    return any(all(column) for column in zip(*registers, strict=True))


def _slices(packet: bytes, trailer: int) -> list[tuple[int, int]]:
    """(start, stop) of slices, each of whose lengths stands behind it; empty where they do not fill the packet."""
    spans, stop = [], len(packet)
    while stop >= trailer:
        place = stop - trailer
        start = place - int.from_bytes(packet[place : place + 3], "big")
        if start < 0:
            return []
        spans.append((start, stop))
        stop = start
    return [] if stop else spans


def _register(data: bytes, seed: int) -> int:
    """CRC-32 of the polynomial 0x04C11DB7 with the highest bit first, its register read the other way round."""
    return zlib.crc32(data.translate(_REVERSED), seed ^ _ALL) ^ _ALL


def flashsv_is_whole(packet: bytes, /) -> bool:
    """Whether every block of a picture is whole: each that changed is a zlib stream, which ends with an Adler-32."""
    if len(packet) < _HEADER:
        return False
    (across, width), (down, height) = _size(packet[:2]), _size(packet[2:4])
    place = _HEADER
    for _ in range(-(-width // across) * -(-height // down)):
        start = place + 2
        place = start + int.from_bytes(packet[place:start], "big")
        if place > len(packet) or (place > start and not _inflates(packet[start:place], 3 * across * down)):
            return False
    return True


def _size(pair: bytes) -> tuple[int, int]:
    """Of a block and of the picture, in 4 and 12 bits."""
    both = int.from_bytes(pair, "big")
    return 16 * ((both >> 12) + 1), both & 0xFFF


def _inflates(data: bytes, most: int) -> bool:
    """Whether it is one zlib stream of at most so many bytes."""
    stream = zlib.decompressobj()
    try:
        stream.decompress(data, most + 1)
    except zlib.error:
        return False
    return stream.eof


_CHECKSUMS = {"ffv1": ffv1_is_whole, "flashsv": flashsv_is_whole}  # within a packet; of others FFmpeg raises
