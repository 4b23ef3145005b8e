"""TIFF with every bit it has: 8 and 16 bits and floats, grey, RGB and palettes, in strips or tiles.

Readers at hand cut colours of 16 bits to 8 (Pillow), or go on over strips that are damaged (FFmpeg). So the structure
is read here, each number compared with the bytes that are there; only LZW and PackBits are left to FFmpeg.
TIFF 6.0; Adobe's technical note 3 for the predictor of floats; BigTIFF.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

    Bytes = bytes | memoryview
    Unpack = Callable[[bytes, int], bytes]
    """Bytes of a TIFF of one strip of grey, and how many pixels it has, to these pixels."""

_NUMBERS = {1: "u1", 3: "u2", 4: "u4", 16: "u8"}  # of the kinds of numbers that tags here have
_PAGES = 64  # directories, beyond which nobody follows
_LISTED = 1 << 20  # numbers of one tag

_KIND, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _MEANING, _FILL = 254, 256, 257, 258, 259, 262, 266
_OFFSETS, _ORIENTATION, _SAMPLES, _ROWS, _SIZES, _PLANAR = 273, 274, 277, 278, 279, 284
_PREDICTOR, _PALETTE, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES = 317, 320, 322, 323, 324, 325
_EXTRA, _FORMAT = 338, 339
_WANTED = frozenset({
    _KIND, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _MEANING, _FILL, _OFFSETS, _ORIENTATION, _SAMPLES, _ROWS, _SIZES,
    _PLANAR, _PREDICTOR, _PALETTE, _TILE_WIDTH, _TILE_HEIGHT, _TILES, _TILE_SIZES, _EXTRA, _FORMAT,
})  # fmt: skip
_NOT_WHOLE = 1 | 4  # bits of `_KIND`: a smaller copy, a mask
_PLAIN, _LZW, _DEFLATE, _OLD_DEFLATE, _PACKBITS = 1, 5, 8, 32946, 32773
_RATIO = {_PLAIN: 1, _LZW: 4096, _DEFLATE: 1032, _OLD_DEFLATE: 1032, _PACKBITS: 64}
"""The most bytes that one can stand for, by how they are packed."""
_REFUSED = {2: "CCITT", 3: "CCITT", 4: "CCITT", 6: "JPEG", 7: "JPEG", 34925: "LZMA", 50000: "zstd", 50001: "WebP"}
_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _MAPPED = 0, 1, 2, 3
_DTYPES = {(1, 8): "u1", (1, 16): "u2", (3, 16): "f2", (3, 32): "f4", (3, 64): "f8"}

Page = dict[int, list[int]]


def encode(pixels: NDArray[Any], /) -> bytes:
    """A picture as TIFF: one page, one strip, Deflate, little-endian.

    Args:
        pixels: uint8, uint16 or floats, [H, W] or [H, W, 3].

    Example:
        >>> encode(np.zeros((2, 3), np.float32))[:3]
        b'II*'
    """
    kind = pixels.dtype.newbyteorder("<")
    strip = zlib.compress(np.ascontiguousarray(pixels, kind).tobytes())
    height, width = pixels.shape[:2]
    samples = 1 if pixels.ndim == 2 else pixels.shape[2]
    floats, bits = pixels.dtype.kind == "f", 8 * pixels.dtype.itemsize
    beside, count, size = b"", 12, 8  # bytes before the directory
    if samples > 1:  # more than an entry holds: they lie behind the directory
        beside = struct.pack("<6H", *[bits] * samples, *[3 if floats else 1] * samples)
    at = size + 2 + 12 * count + 4
    entries = [
        (_WIDTH, 4, 1, width), (_HEIGHT, 4, 1, height), (_BITS, 3, samples, at if beside else bits),
        (_COMPRESSION, 3, 1, _DEFLATE), (_MEANING, 3, 1, _BLACK_IS_ZERO if samples == 1 else _RGB),
        (_OFFSETS, 4, 1, at + len(beside)), (_ORIENTATION, 3, 1, 1), (_SAMPLES, 3, 1, samples), (_ROWS, 4, 1, height),
        (_SIZES, 4, 1, len(strip)), (_PLANAR, 3, 1, 1),
        (_FORMAT, 3, samples, at + len(beside) // 2 if beside else 3 if floats else 1),
    ]  # fmt: skip
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = struct.pack("<2sHIH", b"II", 42, size, count)
    return b"".join([head, directory, struct.pack("<I", 0), beside, strip])


class DamagedError(ValueError):
    """A picture that contradicts itself, or its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the pixels of one page lie.

    Attributes:
        order: `<` or `>`.
        page: Its tags.
        dtype: Of one sample, in this order; None for kinds that are not read.
        refusal: Why they are not read, or empty.
    """

    order: str
    page: Page = field(repr=False)
    dtype: np.dtype[Any] | None
    refusal: str

    def one(self, tag: int, default: int = 0) -> int:
        """The first number of a tag."""
        values = self.page.get(tag)
        return values[0] if values else default

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the picture, in pixels."""
        return self.one(_WIDTH), self.one(_HEIGHT)

    @property
    def orientation(self) -> int:
        """As EXIF counts them, 1 for upright."""
        return self.one(_ORIENTATION, 1)

    @property
    def bits(self) -> int:
        """How many there are in one sample."""
        return self.one(_BITS, 1)

    @property
    def samples(self) -> int:
        """Of one pixel, alpha counted."""
        return self.one(_SAMPLES, 1)

    @property
    def channels(self) -> int:
        """Of the picture as it is handed out: 1 or 3."""
        return 3 if self.one(_MEANING, 1) in {_RGB, _MAPPED} else 1

    @property
    def cell(self) -> tuple[int, int]:
        """Width and height of a tile or strip."""
        width, height = self.size
        if _TILES in self.page:
            return self.one(_TILE_WIDTH), self.one(_TILE_HEIGHT)
        return width, min(self.one(_ROWS, height), height)

    @property
    def most(self) -> int:
        """Pixels that the bytes of the file can stand for at most."""
        sizes = self.page.get(_TILE_SIZES if _TILES in self.page else _SIZES, [])
        each = max(1, self.samples * self.bits // 8)
        return sum(sizes) * _RATIO.get(self.one(_COMPRESSION, 1), 1) // each


def layout_of(data: Bytes, /) -> Layout:
    """What a TIFF says of its one picture.

    Raises:
        DamagedError: It contradicts itself, or is not there as a whole.
    """
    order = {b"II": "<", b"MM": ">"}[bytes(data[:2])]
    pages = list(_pages(data, order))
    whole = [page for page in pages if not page.get(_KIND, [0])[0] & _NOT_WHOLE] or pages[:1]
    if not whole:
        raise DamagedError("it has no picture")
    layout = Layout(order=order, page=whole[0], dtype=None, refusal="")
    code = _DTYPES.get((layout.one(_FORMAT, 1), layout.bits))
    dtype = None if code is None else np.dtype(code).newbyteorder(order)  # type: ignore[arg-type]
    refusal = f"{len(whole)} pages" if len(whole) > 1 else _refusal(layout, dtype)
    return Layout(order=order, page=whole[0], dtype=dtype, refusal=refusal)


def orientation_of(data: Bytes, /) -> int:
    """The turn that the first directory names, as EXIF counts them; 1 where it names none, or is damaged.

    Args:
        data: A TIFF, or the block of EXIF of another picture, which is one.
    """
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    try:
        page = next(_pages(data, order), {}) if order else {}
    except DamagedError:
        return 1
    turn = (page.get(_ORIENTATION) or [1])[0]
    return turn if 1 <= turn <= 8 else 1


class _Words(NamedTuple):
    """How wide the numbers of a directory are: in a TIFF, and in a BigTIFF."""

    entries: str
    entry: str
    offset: str
    room: int


_SMALL, _BIG = _Words("H", "HHI", "I", 4), _Words("Q", "HHQ", "Q", 8)


def _pages(data: Bytes, order: str) -> Iterator[Page]:
    """The tags of each directory, as far as they are wanted."""
    big = _unpack(data, 2, order + "H")[0] == 43
    words = _BIG if big else _SMALL
    place = _unpack(data, 8 if big else 4, order + words.offset)[0]
    visited: set[int] = set()
    while place:
        if place in visited or len(visited) >= _PAGES:
            raise DamagedError(f"its directories go in a circle, or are more than {_PAGES}")
        visited.add(place)
        count = _unpack(data, place, order + words.entries)[0]
        start = place + struct.calcsize(order + words.entries)
        step = struct.calcsize(order + words.entry) + words.room
        if start + count * step > len(data):
            raise DamagedError(f"its directory at {place:,} ends behind the file")
        yield _tags(data, order, words, range(start, start + count * step, step))
        place = _unpack(data, start + count * step, order + words.offset)[0]


def _tags(data: Bytes, order: str, words: _Words, entries: range) -> Page:
    page: Page = {}
    for at in entries:
        tag, kind, count = _unpack(data, at, order + words.entry)
        if tag not in _WANTED or kind not in _NUMBERS:
            continue
        number = np.dtype(_NUMBERS[kind]).newbyteorder(order)  # type: ignore[arg-type]
        value = at + struct.calcsize(order + words.entry)
        if count * number.itemsize > words.room:
            value = _unpack(data, value, order + words.offset)[0]
        if count > _LISTED or value + count * number.itemsize > len(data):
            raise DamagedError(f"its tag {tag} declares {count:,} numbers that are not there")
        page[tag] = np.frombuffer(data, number, count, value).tolist()
    return page


def _unpack(data: Bytes, place: int, form: str) -> tuple[int, ...]:
    if place + struct.calcsize(form) > len(data):
        raise DamagedError(f"it ends at {len(data):,}, and names what lies at {place:,}")
    return struct.unpack_from(form, data, place)


def _refusal(layout: Layout, dtype: np.dtype[Any] | None) -> str:
    """Why a TIFF that may be whole is not read; empty where it is."""
    packed, meaning = layout.one(_COMPRESSION, 1), layout.one(_MEANING, 1)
    alpha = layout.page.get(_EXTRA, [])
    colours = 3 if meaning == _RGB else 1
    reasons: Mapping[str, bool] = {
        f"compression {_REFUSED.get(packed, packed)}": packed not in _RATIO,
        f"{layout.bits} bits a sample, of format {layout.one(_FORMAT, 1)}": dtype is None
        or len({layout.bits, *layout.page.get(_BITS, [])}) > 1,
        f"photometric interpretation {meaning}": meaning not in {_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _MAPPED}
        or (meaning == _WHITE_IS_ZERO and dtype is not None and dtype.kind == "f")
        or (meaning == _MAPPED and layout.bits != 8),
        f"{layout.samples} channels, of which {colours} are colours": layout.samples - colours
        != len([one for one in alpha if one in {1, 2}])
        or layout.samples > colours + 1,
        "bits in reverse order": layout.one(_FILL, 1) != 1,
        f"predictor {layout.one(_PREDICTOR, 1)}": dtype is not None
        and layout.one(_PREDICTOR, 1) not in ({1, 3} if dtype.kind == "f" else {1, 2}),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def pixels_of(data: Bytes, layout: Layout, unpack: Unpack, /) -> NDArray[Any]:
    """[height, width, 1 or 3] the picture, without alpha.

    Args:
        data: The file.
        layout: Of this file; its size was held against a limit.
        unpack: Decodes LZW and PackBits.

    Raises:
        DamagedError: Something is missing, or does not unpack.
    """
    assert layout.dtype is not None
    (width, height), (across, down) = layout.size, layout.cell
    tiled = _TILES in layout.page
    places, sizes = (layout.page.get(tag, []) for tag in ((_TILES, _TILE_SIZES) if tiled else (_OFFSETS, _SIZES)))
    planes = layout.samples if layout.one(_PLANAR, 1) == 2 else 1
    if not (width and height and across and down):
        raise DamagedError("it has no size")
    columns, rows = -(-width // across), -(-height // down)
    if not len(places) == len(sizes) == planes * columns * rows:
        raise DamagedError(
            f"it needs {planes * columns * rows:,} strips or tiles, found {len(places):,} of {len(sizes):,}"
        )
    colours = 3 if layout.one(_MEANING, 1) == _RGB else 1
    out = np.empty((height, width, colours), layout.dtype.newbyteorder("="))
    for number in range(min(planes, colours) * columns * rows):
        plane, at = divmod(number, columns * rows)
        top, left = at // columns * down, at % columns * across
        high = down if tiled else min(down, height - top)
        shape = (high, across, layout.samples // planes)
        part = _cell(data[places[number] : places[number] + sizes[number]], layout, shape, unpack)
        channels = slice(plane, plane + 1) if planes > 1 else slice(None)
        room = out[top : top + down, left : left + across, channels]
        room[:] = part[: room.shape[0], : room.shape[1], : room.shape[2]]
    return _meant(out, layout)


def _meant(stored: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Numbers as brightness, and of a palette as its colours."""
    meaning = layout.one(_MEANING, 1)
    if meaning == _WHITE_IS_ZERO:
        return np.iinfo(stored.dtype).max - stored
    if meaning != _MAPPED:
        return stored
    palette = layout.page.get(_PALETTE, [])
    if len(palette) != 3 << 8:
        raise DamagedError(f"its palette has {len(palette)} numbers, expected {3 << 8}")
    colours: NDArray[Any] = (np.array(palette, np.uint16) >> 8).astype(np.uint8).reshape(3, -1).T[stored[..., 0]]
    return colours


def _cell(packed: Bytes, layout: Layout, shape: Sequence[int], unpack: Unpack) -> NDArray[Any]:
    """[rows, width, samples] one strip or tile."""
    assert layout.dtype is not None
    rows, width, samples = shape
    row = width * samples * layout.dtype.itemsize
    compression = layout.one(_COMPRESSION, 1)
    if rows * row > len(packed) * _RATIO[compression]:
        raise DamagedError(f"a strip or tile of {rows * row:,} bytes cannot be held by its {len(packed):,}")
    if compression in {_DEFLATE, _OLD_DEFLATE}:
        plain: Bytes = _inflated(packed, rows * row)
    elif compression == _PLAIN:
        plain = packed
    else:
        plain = unpack(_strip(packed, compression, row, rows), rows * row)
    if len(plain) < rows * row:
        raise DamagedError(f"a strip or tile ends after {len(plain):,} of {rows * row:,} bytes")
    data = np.frombuffer(plain, np.uint8, rows * row)
    predicted = layout.one(_PREDICTOR, 1) if compression not in {_PLAIN, _PACKBITS} else 1
    if predicted == 3:
        summed: Ints = np.cumsum(data.reshape(rows, -1, samples), 1, np.uint8)
        apart = summed.reshape(rows, layout.dtype.itemsize, width * samples)  # the first bytes of all, then the second
        joined = np.ascontiguousarray(apart.transpose(0, 2, 1))
        return joined.view(layout.dtype.newbyteorder(">")).reshape(shape)
    values: NDArray[Any] = data.view(layout.dtype).reshape(shape)
    return np.cumsum(values, 1, layout.dtype.newbyteorder("=")) if predicted == 2 else values


def _inflated(packed: Bytes, size: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(packed, size)
        unpacker.decompress(unpacker.unconsumed_tail, 1)  # its checksum, where nothing follows
    except zlib.error as error:
        raise DamagedError(str(error)) from error
    return plain


def _strip(packed: Bytes, compression: int, width: int, height: int) -> bytes:
    """A TIFF of one strip of grey bytes."""
    tags = {
        _WIDTH: width, _HEIGHT: height, _BITS: 8, _COMPRESSION: compression, _MEANING: _BLACK_IS_ZERO,
        _OFFSETS: 0, _SAMPLES: 1, _ROWS: height, _SIZES: len(packed),
    }  # fmt: skip
    tags[_OFFSETS] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + bytes(packed)
