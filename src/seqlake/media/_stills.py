"""What a PNG or JPEG says of itself before it is decoded: its size, its depth, and whether its bytes can hold that."""

from __future__ import annotations

_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # between the frame headers, and none themselves
_ARITHMETIC = 0xC9  # from this frame header on
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a PNG, by the kind of its colours
_DEFLATE = 1032  # the most bytes that one can stand for
_HUFFMAN = 512  # the most pixels that one can stand for: a bit for each block of 8 by 8

Size = tuple[int, int]


def size_and_bits(head: bytes | memoryview, /) -> tuple[Size, int] | None:
    """Width and height, and the bits of a colour, of a PNG or JPEG; None where these bytes do not say them."""
    if bytes(head[:8]) == b"\x89PNG\r\n\x1a\n":
        if len(head) < 26 or bytes(head[12:16]) != b"IHDR":
            return None
        bits = 8 if head[25] == 3 else max(8, head[24])  # a palette, or fewer bits, is read as 8
        return (int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")), bits
    if bytes(head[:3]) == b"\xff\xd8\xff":
        found = _frame_header(head)
        return None if found is None else (found[1], head[found[0] + 4])
    return None


def most_pixels(data: bytes | memoryview, /) -> int | None:
    """How many pixels these bytes can stand for at most; None where it is not known."""
    if bytes(data[:4]) == b"\x89PNG" and len(data) >= 26 and data[25] in _CHANNELS:
        return len(data) * _DEFLATE * 8 // max(1, _CHANNELS[data[25]] * data[24])
    found = _frame_header(data) if bytes(data[:2]) == b"\xff\xd8" else None
    return None if found is None or data[found[0] + 1] >= _ARITHMETIC else len(data) * _HUFFMAN


def _frame_header(head: bytes | memoryview) -> tuple[int, Size] | None:
    """Where the frame header of a JPEG begins, and the width and height that it says."""
    place = 2
    while place + 9 < len(head):
        if head[place] != 0xFF:
            return None
        marker = head[place + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8:  # padding, or a marker without a length
            place += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = (int.from_bytes(head[at : at + 2], "big") for at in (place + 5, place + 7))
            return place, (width, height)
        place += 2 + int.from_bytes(head[place + 2 : place + 4], "big")
    return None
