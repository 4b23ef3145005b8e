"""The packets of an MP4 as its own tables list them: all at once, where FFmpeg asks for them one by one.

Only of files in which nothing else has a say: one track, whole, of one kind of sample, begun at its first picture and
shown to its last, of a codec whose packets lie there as they are. ISO/IEC 14496-12, section 8.5 to 8.7; whoever asks
compares the first of them with FFmpeg's. Of every other file nothing is said here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqlake.files.checksums import crc32
from seqlake.media._containers import boxes_in, table_of
from seqlake.media.video import h264
from seqlake.media.video.packets import DAMAGED, KEY, MARKED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from seqlake.media._bytes import BlobBytes
    from seqlake.media._containers import Box
    from seqlake.protocols import Ints

_CODECS = {b"avc1": "h264", b"avc3": "h264", b"av01": "av1", b"hvc1": "hevc", b"hev1": "hevc", b"vp09": "vp9"}
_PLAIN = frozenset({b"stsd", b"stts", b"ctts", b"stss", b"stsc", b"stsz", b"stco", b"co64", b"sdtp"})
_MOST = 64  # outermost boxes of a file
_SAMPLE = 8  # bytes of a table of sample kinds before the first of them
_LONGEST = 1 << 31  # ticks that FFmpeg takes for a duration
_FARTHEST = 1 << 28  # ticks that it believes a picture to be moved by
_ONE = 1 << 16  # the speed at which an edit shows what it names
_READ = 1 << 19  # bytes read at a time, which the processor's cache still has when they are looked at
_UNITS = 16  # of an AV1 packet among which its first frame is
_FRAMES = frozenset({3, 6})  # kinds of units, 6.2.2
_LAYERED, _SIZED = 4, 2  # bits of a unit's first byte
_SHOWN_KEY = 0b0001  # shows no frame of before, is a key frame, is shown
_BITS = 56  # of a size
_VP9_PROFILE, _VP9_OF_OTHERS = 0b0011_0000, 0b0000_1100  # bits of a packet's first byte


class ListedPackets(NamedTuple):
    """All packets of one stream in decoding order.

    Attributes:
        offset: [packets] first byte in the file.
        length: [packets] bytes.
        pts: [packets] when its frame is shown, in ticks of the track.
        flags: [packets] `KEY`, `MARKED` and `DAMAGED` of an index.
        crc: [packets] CRC-32 of the bytes.
    """

    offset: Ints
    length: Ints
    pts: Ints
    flags: NDArray[np.uint8]
    crc: NDArray[np.uint32]


class _Unlike(Exception):  # noqa: N818 - no error: a file of another kind
    """It is no file whose tables say everything."""


def listed(file: BlobBytes, codec: str, extradata: bytes, /) -> ListedPackets | None:
    """The packets of an MP4's only track; None where its tables do not say everything, or say otherwise than packets.

    Args:
        file: All of it is read.
        codec: As FFmpeg calls it.
        extradata: Parameter sets as the container holds them.
    """
    try:
        offset, length, pts, key = _samples(file, codec)
        flags, crc = _looked_at(
            file, offset, length, key, _of_h264(extradata) if codec == "h264" else _LOOKS.get(codec)
        )
    except (_Unlike, IndexError):  # IndexError: a packet that ends before its first frame
        return None
    return ListedPackets(offset, length, pts, flags, crc)


def _hold(*conditions: bool) -> None:
    if not all(conditions):
        raise _Unlike


def _inside(file: BlobBytes, box: Box) -> list[Box]:
    return list(boxes_in(file, box.start, box.stop))


def _only(boxes: list[Box], kind: bytes) -> Box:
    these = [box for box in boxes if box.kind == kind]
    _hold(len(these) == 1)
    return these[0]


def _number(file: BlobBytes, place: int, size: int = 4) -> int:
    return int.from_bytes(file.between(place, place + size), "big")


def _samples(file: BlobBytes, codec: str) -> tuple[Ints, Ints, Ints, NDArray[np.bool_]]:
    head = _inside(file, _only(list(_top(file)), b"moov"))
    _hold(not any(box.kind == b"mvex" for box in head))
    track = _inside(file, _only(head, b"trak"))
    media = _inside(file, _only(track, b"mdia"))
    tables = _inside(file, _only(_inside(file, _only(media, b"minf")), b"stbl"))
    boxes = {box.kind: box for box in tables}
    _hold(len(boxes) == len(tables), _PLAIN.issuperset(boxes), _codec(file, _only(tables, b"stsd")) == codec)
    length = _lengths(file, _only(tables, b"stsz"))
    pts = _times(file, _only(tables, b"stts"), boxes.get(b"ctts"), len(length))
    edits = [box for box in track if box.kind == b"edts"]
    if edits:
        _hold(len(edits) == 1)
        ticks = _ticks(file, _only(media, b"mdhd")), _ticks(file, _only(head, b"mvhd"))
        pts -= _begin(file, _inside(file, edits[0]), pts, *ticks)
    return _offsets(file, boxes, length), length, pts, _keys(file, boxes.get(b"stss"), len(length))


def _top(file: BlobBytes) -> Iterator[Box]:
    """The outermost boxes; the first fragment ends it, since to look at the head of each may cost a request."""
    for number, box in enumerate(boxes_in(file, 0, file.end)):
        _hold(box.kind != b"moof", number < _MOST)
        yield box


def _codec(file: BlobBytes, kinds: Box) -> str | None:
    """The codec of a table of sample kinds that has one."""
    _hold(_number(file, kinds.start + 4) == 1)
    return _CODECS.get(file.between(kinds.start + _SAMPLE + 4, kinds.start + _SAMPLE + 8))


def _ticks(file: BlobBytes, head: Box) -> int:
    """Those of a second, in the head of a film or of its track."""
    later = _number(file, head.start, 1) == 1  # whose times have 64 bits
    return _number(file, head.start + (20 if later else 12))


def _lengths(file: BlobBytes, sizes: Box) -> Ints:
    count = _number(file, sizes.start + 8)
    _hold(_number(file, sizes.start + 4) == 0, count > 0, sizes.start + 12 + 4 * count == sizes.stop)
    length = np.frombuffer(file.between(sizes.start + 12, sizes.stop), ">u4").astype(np.int64)
    _hold(bool(length.all()), len(length) == count)
    return length


def _runs(file: BlobBytes, box: Box, count: int) -> tuple[Ints, Ints]:
    """How often each number of a table of runs comes, and the number; all of them `count` times."""
    runs = table_of(file, box, 2)
    _hold(len(runs) > 0, int(runs[:, 0].sum()) == count, bool(runs[:, 0].all()))
    return runs[:, 0], runs[:, 1]


def _times(file: BlobBytes, lasting: Box, moved: Box | None, count: int) -> Ints:
    """[packets] when each is shown, in ticks from the beginning of its track."""
    often, ticks = _runs(file, lasting, count)
    _hold(ticks.min() > 0, ticks.max() < _LONGEST)
    each = np.repeat(ticks, often)
    pts = np.cumsum(each) - each
    if moved is None:
        return pts
    often, by = _runs(file, moved, count)
    by = by.astype(np.uint32).view(np.int32).astype(np.int64)  # as FFmpeg reads both versions
    _hold(int(np.abs(by).max()) < _FARTHEST)
    return pts + np.repeat(by, often)


def _begin(file: BlobBytes, boxes: list[Box], pts: Ints, ticks: int, of_film: int) -> int:
    """The time of the track at which its only edit begins, which must show all pictures at their speed."""
    edit = _only(boxes, b"elst")
    wide = 8 if _number(file, edit.start, 1) == 1 else 4
    first = edit.start + 8
    _hold(_number(file, edit.start + 4) == 1, first + 2 * wide + 4 <= edit.stop, ticks > 0, of_film > 0)
    lasting, begin = _number(file, first, wide), _number(file, first + wide, wide)
    _hold(_number(file, first + 2 * wide) == _ONE, begin < 1 << (8 * wide - 1))
    _hold(begin <= pts[0] == pts.min(), int(pts.max()) < begin + lasting * ticks // of_film)
    return begin


def _offsets(file: BlobBytes, boxes: dict[bytes, Box], length: Ints) -> Ints:
    """[packets] where each lies: chunks have places, and packets lie side by side within them."""
    _hold((b"stco" in boxes) != (b"co64" in boxes), b"stsc" in boxes)
    if b"stco" in boxes:
        chunks = table_of(file, boxes[b"stco"], 1)[:, 0]
    else:
        high, low = table_of(file, boxes[b"co64"], 2).T
        _hold(int(high.max(initial=0)) < 1 << 16)
        chunks = (high << 32) + low
    first, often, kind = table_of(file, boxes[b"stsc"], 3).T
    _hold(len(first) > 0, bool((kind == 1).all()), bool(often.all()))
    spans = np.diff(first, append=len(chunks) + 1)
    _hold(first[0] == 1, bool((spans > 0).all()), int((spans * often).sum()) == len(length))
    held = np.repeat(often, spans)  # [chunks] packets of each
    begins = np.cumsum(held) - held
    before = np.cumsum(length) - length  # bytes of the packets before each
    offset: Ints = np.repeat(chunks - before[begins], held) + before
    ends = offset + length
    _hold(int(ends.max()) <= file.end, bool((offset[1:] >= ends[:-1]).all()))
    return offset


def _keys(file: BlobBytes, box: Box | None, count: int) -> NDArray[np.bool_]:
    """[packets] whether the table calls it a key packet; without a table all are."""
    if box is None:
        return np.ones(count, np.bool_)
    numbers = table_of(file, box, 1)[:, 0]
    _hold(len(numbers) > 0, bool((np.diff(numbers) > 0).all()))
    _hold(numbers[0] == 1, numbers[-1] <= count)
    key = np.zeros(count, np.bool_)
    key[numbers - 1] = True
    return key


def _looked_at(
    file: BlobBytes, offset: Ints, length: Ints, key: NDArray[np.bool_], look: Callable[[memoryview], int] | None
) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """[packets] flags and CRC-32 of each, read in one go; the table of key packets is held against them."""
    sums: list[int] = []
    flags: list[int] = []
    ends = offset + length
    first = 0
    while first < len(offset):
        last = max(first + 1, int(np.searchsorted(ends, offset[first] + _READ, "right")))
        data = memoryview(file.between(int(offset[first]), int(ends[last - 1])))
        places = (offset[first:last] - offset[first]).tolist()
        packets = [data[place : place + size] for place, size in zip(places, length[first:last].tolist(), strict=True)]
        sums += map(crc32, packets)
        if look is not None:
            flags += map(look, packets)
            _hold(np.array_equal(np.array(flags[first:last]) & KEY > 0, key[first:last]))
        first = last
    return np.array(flags, np.uint8) if look else (key * (KEY | MARKED)).astype(np.uint8), np.array(sums, np.uint32)


def _of_h264(extradata: bytes) -> Callable[[memoryview], int]:
    width = h264.length_bytes(extradata)
    packets = h264.Packets(extradata)

    def look(packet: memoryview) -> int:
        """Only an IDR picture is a key frame here: of a recovery point, or of units cut short, FFmpeg decides."""
        place = 0
        while width is not None and place < len(packet):
            place += width + int.from_bytes(packet[place : place + width], "big")
        anew, lost = packets.see(packet)
        _hold(place == len(packet), anew or not packets.recovers)
        return KEY | MARKED if anew else DAMAGED * lost

    return look


def _of_vp9(packet: memoryview) -> int:
    """6.2 of its bitstream specification."""
    head = packet[0]
    _hold(head & _VP9_PROFILE != _VP9_PROFILE)  # the fourth, which has another head
    return 0 if head & _VP9_OF_OTHERS else KEY | MARKED


def _of_av1(packet: memoryview) -> int:
    """Whether the first frame is a key frame that is shown, 5.3 and 5.9.2."""
    place = 0
    for _ in range(_UNITS):
        head, place, size, shift = packet[place], place + 1, 0, 0
        if head & _SIZED:  # a number of seven bits a byte, 4.10.5
            while (byte := packet[place]) & 128 and shift < _BITS:
                size, shift, place = size | (byte & 127) << shift, shift + 7, place + 1
            size, place = size | byte << shift, place + 1
        if head & _LAYERED:
            break
        if head >> 3 & 15 in _FRAMES:
            return KEY | MARKED if packet[place] >> 4 == _SHOWN_KEY else 0
        if not head & _SIZED:
            break
        place += size
    raise _Unlike


# What packets say themselves, as FFmpeg asks them; of H.264 it depends on earlier ones, of HEVC the table is believed.
_LOOKS = {"av1": _of_av1, "vp9": _of_vp9}
