"""What the head of a picture says of it, before anything is decoded: size, bits, colours, and why it is not read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqlake.media import _tiff
from seqlake.media._containers import format_of
from seqlake.media._tiff import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Bytes = bytes | memoryview

_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # between the frame headers of a JPEG, and none themselves
_ARITHMETIC = 0xC9  # from this frame header on
_PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by the kind of its colours
_DEFLATE = 1032  # the most bytes that one can stand for
_HUFFMAN = 512  # the most pixels that one can stand for: a bit for each block of 8 by 8
_CHUNKS = 1 << 16  # of a PNG or WebP, beyond which nobody looks for a turn
_NETPBM = re.compile(rb"P([2356])(?:\s+|#[^\n]*\n)+(\d{1,9})(?:\s+|#[^\n]*\n)+(\d{1,9})(?:\s+|#[^\n]*\n)+(\d{1,5})\s")
_JP2 = b"\xff\x4f\xff\x51"
_TURN = b"Exif\0\0"
_BOXES = frozenset({b"meta", b"iprp", b"ipco"})
_DEPTH = 8  # boxes in boxes
_TURNED = {(1, None): 8, (2, None): 3, (3, None): 6, (0, 0): 4, (0, 1): 2, (1, 0): 5, (1, 1): 7, (2, 0): 2, (2, 1): 4,
           (3, 0): 7, (3, 1): 5}  # fmt: skip
"""Quarter turns against the clock, then the axis of a mirror (0 swaps top and bottom), as EXIF counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHead:
    """What a picture says of itself.

    Attributes:
        format: As `format_of` calls it.
        size: Width and height as stored.
        bits: Of one sample as stored.
        channels: Colours, without alpha: 1 for grey, else 3.
        floating: Whether samples are floats.
        most: How many pixels its bytes can stand for at most; None where that is not known.
        refusal: Why it is not read though it may be whole, as in `4 pages`; or empty.
    """

    format: str
    size: tuple[int, int]
    bits: int = 8
    channels: int = 3
    floating: bool = False
    most: int | None = None
    refusal: str = ""

    @property
    def dtype(self) -> str:
        """Of the array that it is read as."""
        return f"float{self.bits}" if self.floating else "uint8" if self.bits <= 8 else "uint16"


def describe(data: Bytes, /) -> PictureHead | None:
    """What a picture's own bytes say of it; None where they do not, or are of no kind that is read.

    Args:
        data: Its first bytes: 64 KiB are enough for all but a JPEG with large notes, and a TIFF, which may have its
            directory at the end.

    Example:
        ```python
        from seqlake.media import image

        image.describe(ds["a"]["photo"].read())     # PictureHead(format='jpeg', size=(640, 480), ...)
        ```
    """
    try:
        return checked_head(data)
    except DamagedError:
        return None


def checked_head(data: Bytes, /) -> PictureHead:
    """As `describe`, with the reason.

    Raises:
        DamagedError: It does not say what it is, or contradicts itself.
    """
    read = _HEADS.get(format_of(bytes(data[:64])) or "")
    try:
        head = None if read is None else read(data)
    except IndexError:
        head = None
    if head is None or not all(head.size):
        raise DamagedError("it does not say how large it is")
    return head


def orientation(data: Bytes, /) -> int:
    """How a picture is turned, as EXIF counts it: 6 wants a quarter turn clockwise, 1 is upright, or says nothing.

    Args:
        data: The whole picture.
    """
    find = _ORIENTATIONS.get(format_of(bytes(data[:64])) or "")
    return 1 if find is None else find(data)


def _jpeg(data: Bytes) -> PictureHead | None:
    for marker, start, _ in _segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = (int.from_bytes(data[at : at + 2], "big") for at in (start + 1, start + 3))
            most = None if marker >= _ARITHMETIC else len(data) * _HUFFMAN
            channels = 1 if data[start + 5] == 1 else 3
            return PictureHead(format="jpeg", size=(width, height), bits=data[start], channels=channels, most=most)
    return None


def _segments(data: Bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of what it holds, of each segment of a JPEG before its pixels."""
    place = 2
    while place + 9 < len(data) and data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8:  # padding, or a marker without a length
            place += 1 if marker == 0xFF else 2
            continue
        if marker in {0xDA, 0xD9}:
            return
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        yield marker, place + 4, end
        place = end


def _png(data: Bytes) -> PictureHead | None:
    if len(data) < 26 or bytes(data[12:16]) != b"IHDR":
        return None
    (width, height), bits, kind = _big(data, 16, 20), data[24], data[25]
    samples = _PNG_SAMPLES.get(kind)
    frames = next((_big(data, start)[0] for name, start, _ in _chunks(data) if name == b"acTL"), 1)
    return PictureHead(
        format="png",
        size=(width, height),
        bits=8 if kind == 3 else max(8, bits),  # a palette, or fewer bits, is read as 8
        channels=1 if kind in {0, 4} else 3,
        most=None if samples is None else len(data) * _DEFLATE * 8 // max(1, samples * bits),
        refusal=f"{frames} frames" if frames > 1 else "",
    )


def _chunks(data: Bytes, *, behind: bool = False) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of each chunk of a PNG up to its pixels, and behind them."""
    place = 8
    for _ in range(_CHUNKS):
        length, name = int.from_bytes(data[place : place + 4], "big"), bytes(data[place + 4 : place + 8])
        if len(name) < 4 or (name == b"IDAT" and not behind):
            return
        yield name, place + 8, place + 8 + length
        place += 12 + length


def _bmp(data: Bytes) -> PictureHead | None:
    old = _little(data, 14, 4) == 12
    width, height = (_little(data, at, 2) for at in (18, 20)) if old else (_little(data, at, 4) for at in (18, 22))
    height = height if height < 1 << 31 else (1 << 32) - height  # from top to bottom
    bits = _little(data, 24 if old else 28, 2)
    packed = 0 if old else _little(data, 30, 4)
    wrong = f"compression {packed}" if packed not in {0, 3} else f"{bits} bits a pixel"
    return PictureHead(
        format="bmp",
        size=(width, height),
        most=len(data) * 8 // max(1, bits),
        refusal="" if packed in {0, 3} and bits in {1, 4, 8, 24, 32} else wrong,
    )


def _netpbm(data: Bytes) -> PictureHead | None:
    header = netpbm_header(data)
    if header is None:
        return None
    kind, width, height, largest, _ = header
    channels, bits = 3 if kind in {3, 6} else 1, 8 if largest < 256 else 16
    return PictureHead(
        format="ppm" if channels == 3 else "pgm",
        size=(width, height),
        bits=bits,
        channels=channels,
        most=len(data) // (channels * bits // 8),
        refusal="numbers as text" if kind < 5 else "" if 0 < largest < 1 << 16 else f"a largest value of {largest}",
    )


def netpbm_header(data: Bytes, /) -> tuple[int, int, int, int, int] | None:
    """Kind (2 and 3 text, 5 and 6 bytes; 3 and 6 RGB), width, height, largest value, and where the pixels begin."""
    match = _NETPBM.match(bytes(data[:4096]))
    if match is None:
        return None
    kind, width, height, largest = map(int, match.groups())
    return kind, width, height, largest, match.end()


def _of_tiff(data: Bytes) -> PictureHead | None:
    layout = _tiff.layout_of(data)
    return PictureHead(
        format="tiff",
        size=layout.size,
        bits=layout.bits,
        channels=layout.channels,
        floating=layout.dtype is not None and layout.dtype.kind == "f",
        most=None if layout.refusal else layout.most,
        refusal=layout.refusal,
    )


def _webp(data: Bytes) -> PictureHead | None:
    name = bytes(data[12:16])
    refusal = ""
    if name == b"VP8X":
        size = (_little(data, 24, 3) + 1, _little(data, 27, 3) + 1)
        refusal = "animation" if data[20] & 2 else ""
    elif name == b"VP8L" and data[20] == 0x2F:
        both = _little(data, 21, 4)
        size = ((both & 0x3FFF) + 1, (both >> 14 & 0x3FFF) + 1)
    elif name == b"VP8 " and bytes(data[23:26]) == b"\x9d\x01\x2a":
        size = (_little(data, 26, 2) & 0x3FFF, _little(data, 28, 2) & 0x3FFF)
    else:
        return None
    return PictureHead(format="webp", size=size, refusal=refusal)


def _avif(data: Bytes) -> PictureHead | None:
    sizes: list[tuple[int, int]] = []
    bits, grey = 8, True
    for name, start, _ in _boxes(data, 0, len(data), 0):
        if name == b"ispe":
            width, height = _big(data, start + 4, start + 8)
            sizes.append((width, height))
        elif name == b"av1C":
            deep, twelve, mono = (data[start + 2] >> place & 1 for place in (6, 5, 4))
            bits = max(bits, 12 if deep and twelve else 10 if deep else 8)
            grey = grey and bool(mono)
    if not sizes:
        return None
    sequence = bytes(data[8:12]) == b"avis"
    return PictureHead(
        format="avif",
        size=max(sizes, key=lambda size: size[0] * size[1]),
        bits=bits,
        channels=1 if grey else 3,
        refusal="animation" if sequence else "",
    )


def _boxes(data: Bytes, place: int, stop: int, depth: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and end of each box of an AVIF, those within its properties too."""
    for _ in range(_CHUNKS):
        length, name = int.from_bytes(data[place : place + 4], "big"), bytes(data[place + 4 : place + 8])
        start = place + (16 if length == 1 else 8)
        length = int.from_bytes(data[place + 8 : place + 16], "big") if length == 1 else length or stop - place
        if len(name) < 4 or place + length < start:
            return
        end = min(place + length, stop)
        yield name, start, end
        if name in _BOXES and depth < _DEPTH:
            yield from _boxes(data, start + (4 if name == b"meta" else 0), end, depth + 1)
        place += length
        if place >= stop:
            return


def _jp2(data: Bytes) -> PictureHead | None:
    start = bytes(data[: 1 << 20]).find(_JP2)  # of the code stream
    if start < 0:
        return None
    right, bottom, left, top = (_big(data, start + at)[0] for at in (8, 12, 16, 20))
    samples = int.from_bytes(data[start + 40 : start + 42], "big")
    kinds = {data[start + 42 + 3 * at] for at in range(min(samples, 4))}
    bits = max(kinds, default=0) % 128 + 1
    odd = len(kinds) != 1 or bits > 16 or max(kinds) > 127 or samples > 4
    return PictureHead(
        format="jp2",
        size=(max(0, right - left), max(0, bottom - top)),
        bits=max(8, bits),
        channels=1 if samples < 3 else 3,
        refusal=f"{samples} channels of {sorted(kind % 128 + 1 for kind in kinds)} bits, or signed ones" if odd else "",
    )


def _big(data: Bytes, *places: int) -> tuple[int, ...]:
    """Numbers of 32 bits at some places.

    Raises:
        IndexError: The bytes end before.
    """
    if max(places) + 4 > len(data):
        raise IndexError(max(places))
    return tuple(int.from_bytes(data[at : at + 4], "big") for at in places)


def _little(data: Bytes, place: int, size: int) -> int:
    if place + size > len(data):
        raise IndexError(place)
    return int.from_bytes(data[place : place + size], "little")


def _jpeg_turn(data: Bytes) -> int:
    for marker, start, end in _segments(data):
        if marker == 0xE1 and bytes(data[start : start + 6]) == _TURN:
            return _tiff.orientation_of(data[start + 6 : end])
    return 1


def _png_turn(data: Bytes) -> int:
    exif = next((data[start:end] for name, start, end in _chunks(data, behind=True) if name == b"eXIf"), b"")
    return _tiff.orientation_of(exif)


def _webp_turn(data: Bytes) -> int:
    place = 12
    for _ in range(_CHUNKS):
        name, length = bytes(data[place : place + 4]), int.from_bytes(data[place + 4 : place + 8], "little")
        if len(name) < 4:
            return 1
        if name == b"EXIF":
            exif = data[place + 8 : place + 8 + length]
            return _tiff.orientation_of(exif[6:] if bytes(exif[:6]) == _TURN else exif)
        place += 8 + length + length % 2
    return 1


def _avif_turn(data: Bytes) -> int:
    turns = {name: data[start] for name, start, end in _boxes(data, 0, len(data), 0) if name in _TURNS and start < end}
    mirror = turns.get(b"imir")
    return _TURNED.get((turns.get(b"irot", 0) & 3, None if mirror is None else mirror & 1), 1)


_TURNS = frozenset({b"irot", b"imir"})
_HEADS: Mapping[str, Callable[[Bytes], PictureHead | None]] = {
    "jpeg": _jpeg, "png": _png, "bmp": _bmp, "ppm": _netpbm, "pgm": _netpbm, "tiff": _of_tiff, "webp": _webp,
    "avif": _avif, "jp2": _jp2,
}  # fmt: skip
_ORIENTATIONS: Mapping[str, Callable[[Bytes], int]] = {
    "jpeg": _jpeg_turn, "png": _png_turn, "webp": _webp_turn, "avif": _avif_turn, "tiff": _tiff.orientation_of,
}  # fmt: skip
