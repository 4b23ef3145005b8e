"""What the first bytes of a file say: its format, and where the file should end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_MAGIC = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"\x76\x2f\x31\x01": "exr",
    b"\0\0\0\x0cjP  ": "jp2",
    b"\xff\x0a": "jxl",
    b"\0\0\0\x0cJXL ": "jxl",
    b"ply\n": "ply",
    b"ply\r\n": "ply",
    b"glTF": "glb",
    b"# .PCD": "pcd",
    b"VERSION .7": "pcd",
}
_BRANDS = {b"avif": "avif", b"avis": "avif", b"heic": "heic", b"heix": "heic", b"mif1": "heic"}
PICTURES = frozenset({"jpeg", "png", "gif", "bmp", "tiff", "exr", "jp2", "jxl", "webp", "avif", "heic"})
"""The formats of pictures that are told apart."""

HEAD = 1 << 16
"""Bytes that are enough for all but a JPEG with large notes before its picture."""

_SEGMENT = b"\x18\x53\x80\x67"


def format_of(head: bytes, /) -> str | None:
    """The format that a file begins like; None where it is none of those told apart.

    Example:
        >>> format_of(b"ply" + bytes([10]) + b"format ascii 1.0")
        'ply'
    """
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp" and head[8:12] in _BRANDS:
        return _BRANDS[head[8:12]]
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def is_cut(between: Callable[[int, int], bytes], size: int, /) -> bool:
    """Whether a container says that it is longer than it is: MP4, AVI, WAV and Matroska.

    Args:
        between: Gives the bytes from one place to another.
        size: Of the file.
    """
    head = between(0, 64)
    if head[4:8] in {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp"}:
        return _boxes_end(between, size) > size
    if head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        return 0 < length < 0xFFFFFFFF and length + 8 > size  # a stream has neither length
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _segment_end(head) > size
    return False


def _boxes_end(between: Callable[[int, int], bytes], size: int) -> int:
    """Where the last top-level box of an MP4 ends."""
    place = 0
    while place < size:
        head = between(place, place + 16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # it goes to the end, wherever that is
            return size
        place += max(length, 8)
    return place


def _segment_end(head: bytes) -> int:
    """Where the one large element of a Matroska file ends; 0 where it does not say."""
    at = head.find(_SEGMENT)
    if at < 0 or at + 5 > len(head) or not head[at + 4]:
        return 0
    first = head[at + 4]
    width = 9 - first.bit_length()
    length = int.from_bytes(bytes([first & ((1 << (8 - width)) - 1)]) + head[at + 5 : at + 4 + width], "big")
    unknown = (1 << (7 * width)) - 1
    return 0 if length == unknown else at + 4 + width + length
