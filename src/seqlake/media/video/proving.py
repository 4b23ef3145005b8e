"""Proves which packet is which frame: by the container's times where they can be believed, else by decoding.

Where they cannot, the file is decoded from its start as any player does, and then packet by packet from each key packet
as it will be read later. A key packet from which other pictures come is none, and where no beginning gives the same
pictures the packet is damaged. So whatever is read later is what a sequential decode shows, or an error.
"""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.media._bytes import BlobBytes
from seqlake.media._containers import open_container
from seqlake.media.video.codec import in_sequence
from seqlake.media.video.decoder import FrameReader
from seqlake.media.video.demuxing import demuxed, in_one_piece, packet_reader, picture_streams
from seqlake.media.video.packets import DAMAGED, HIDDEN, KEY, OPEN, PacketIndex
from seqlake.media.video.pixels import fingerprint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints

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
        stream.codec_context.thread_type = "NONE"
        number = -1
        for packet in demuxed(container, [stream], blob.location):
            if packet.size:
                number += 1
                packet.pts = number
            try:
                frames = stream.codec_context.decode(packet)
            except av.FFmpegError:
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
