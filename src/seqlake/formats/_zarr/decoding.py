"""One chunk's bytes decoded, by codec: what the header claims is compared with what is there before any decoder runs.

numcodecs believes the headers of Blosc and LZ4: it reads as many bytes as a chunk says it has and asks for
as much memory as it says it makes. And its zlib, gzip, bz2 and lzma make whatever a few bytes unfold to. So the claims
are looked at here, the memory is made here, and the settings of a stranger's `.zarray` never reach a decoder.

numcodecs decodes chunks only whole. The blocks of a Blosc chunk are compressed one by one, so the blocks wanted are put
together here as a chunk of their own, which it decodes: a few rows need not cost a whole chunk. The header is 16 bytes:
format, codec's format, flags, element size, then bytes decoded, bytes of a block and bytes of the chunk as uint32;
behind it stands the place of each block, in whichever order they were written.
"""

from __future__ import annotations

import bz2
import lzma
import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import google_crc32c
import numpy as np
import pyarrow as pa

from seqlake import plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Decoder: TypeAlias = Callable[[memoryview, int, Mapping[str, Any]], NDArray[np.uint8]]
    from seqlake.protocols import Ints

CODECS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
"""Codecs of bytes alone. Others (`pickle` among them) would run what a stranger wrote."""

PICTURES: Mapping[str, str] = {
    f"imagecodecs_{name}": f"{name}_decode" for name in ("jpeg", "jpeg2k", "jpegxl", "png", "webp")
}
"""Codecs of pictures, as diffusion policy and UMI write them: one chunk is one picture, or several of one size."""

_BLOSC = struct.Struct("<BBBBIII")
_BLOSC_FORMAT, _BLOSC_PLAIN = 2, 0x2
_LZMA_MEMORY = 128 << 20  # the largest dictionary of xz's own levels takes 65 MiB
_CRC = "crc32c"
_GZIP = 31  # zlib's number for a gzip header and its checksum
_HEADER = struct.Struct("<BBBBIII")
_PLAIN = 0x2


def unpacked(settings: Mapping[str, Any], data: memoryview, size: int, /) -> NDArray[np.uint8]:
    """[size] the bytes that a chunk makes.

    Args:
        settings: The codec's, as `.zarray` holds them.
        data: The chunk as it is stored.
        size: Bytes that it has to make.

    Raises:
        ValueError: It is damaged, or makes another number of bytes.
        MissingDependencyError: numcodecs is not installed.
    """
    return _DECODERS[settings["id"]](data, size, settings)


def through(
    codecs: Sequence[Mapping[str, Any]], data: memoryview, shape: Sequence[int], dtype: np.dtype[Any], /
) -> NDArray[np.uint8]:
    """The bytes of a chunk that went through some codecs, the first of which took the chunk itself.

    Args:
        codecs: Their settings; of those that compress there is one at most, see `refuse_chains`.
        data: The chunk as it is stored.
        shape: Of the chunk, in the order in which it is stored.
        dtype: Of its elements.

    Raises:
        ValueError: It is damaged, or makes another number of bytes.
        MissingDependencyError: numcodecs or imagecodecs is not installed.
    """
    size = math.prod(shape) * dtype.itemsize
    sizes = [size + 4 * sum(one["id"] == _CRC for one in codecs[:number]) for number in range(len(codecs))]
    for settings, expected in zip(reversed(codecs), reversed(sizes), strict=True):
        if settings["id"] == _CRC:
            if len(data) < 4 or google_crc32c.value(bytes(data[:-4])) != int.from_bytes(data[-4:], "little"):
                raise ValueError("it has another CRC-32C than it says")
            data = data[:-4]
        elif settings["id"] in PICTURES:
            data = _picture(PICTURES[settings["id"]], data, shape, dtype).data
        else:
            data = unpacked(settings, data, expected).data
    return np.frombuffer(data, np.uint8)


def refuse_chains(codecs: Sequence[Mapping[str, Any]], /) -> None:
    """Refuse two codecs that compress one after the other: nobody knows what the inner one should make.

    Raises:
        ValueError: Names them.
    """
    packing = [str(one["id"]) for one in codecs if one["id"] != _CRC]
    if len(packing) > 1:
        raise ValueError(f"the codecs {' and '.join(packing)} one after the other are not read")


def _picture(name: str, data: memoryview, shape: Sequence[int], dtype: np.dtype[Any]) -> NDArray[np.uint8]:
    decoders = plugins.require("imagecodecs", extra="zarr")
    out = np.empty([size for size in shape if size != 1] or [1], dtype)  # as these codecs squeeze what they are given
    decode = getattr(decoders, name)
    try:
        # They compare the picture's size with that of `out` before they decode it.
        decoded = decode(bytes(data), out=out)
    except (ValueError, RuntimeError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"it is no such picture of {out.shape} {dtype} ({error})") from error
    if decoded.shape != out.shape or decoded.dtype != dtype:
        raise ValueError(f"it is a picture of {decoded.shape} {decoded.dtype}, expected {out.shape} {dtype}")
    return np.ascontiguousarray(decoded).reshape(-1).view(np.uint8)


def blosc_head(data: memoryview, size: int, /) -> tuple[tuple[int, int, int, int], int]:
    """What the header of a Blosc chunk says, if it can be true: (its first four bytes, bytes of a block).

    Args:
        data: The chunk.
        size: Bytes that it has to make.

    Raises:
        ValueError: The header is cut off, or claims what is not there.
    """
    if len(data) < _BLOSC.size:
        raise ValueError(f"a Blosc chunk has at least {_BLOSC.size} bytes, found {len(data)}")
    form, inner, flags, width, unpacked, block, whole = _BLOSC.unpack_from(data)
    if form != _BLOSC_FORMAT:
        raise ValueError(f"Blosc's format is {_BLOSC_FORMAT}, found {form}")
    if whole != len(data):
        raise ValueError(f"its header says that it has {whole} bytes, it has {len(data)}")
    if unpacked != size:
        raise ValueError(f"its header says that it makes {unpacked} bytes, expected {size}")
    if flags & _BLOSC_PLAIN:
        if whole != unpacked + _BLOSC.size:
            raise ValueError(f"{unpacked} plain bytes and a header are not {whole} bytes")
        return (form, inner, flags, width), block
    # A block that is no whole number of elements would leave bytes of the decoder's own memory in the result.
    if unpacked and (not 0 < block <= unpacked or not width or (block > width and block % width)):
        raise ValueError(f"blocks of {block} bytes and elements of {width} do not make {unpacked} bytes")
    count = -(-unpacked // block) if unpacked else 0
    if _BLOSC.size + 4 * count > whole:
        raise ValueError(f"{count} blocks do not lie in {whole} bytes")
    starts = np.frombuffer(data, "<i4", count, _BLOSC.size).astype(np.int64)
    if bool((starts < _BLOSC.size + 4 * count).any()) or bool((starts >= whole).any()):
        raise ValueError("a block is said to lie outside of the chunk")
    return (form, inner, flags, width), block


def decoded_into(module: str, data: bytes | memoryview, out: NDArray[np.uint8], /) -> None:
    """Decode bytes whose header was looked at.

    Args:
        module: Of numcodecs.
        data: The bytes.
        out: As many bytes as the header says.

    Raises:
        ValueError: They cannot be decoded.
    """
    try:
        plugins.require(module, extra="zarr").decompress(data, out)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _blosc(data: memoryview, size: int, _: Mapping[str, Any]) -> NDArray[np.uint8]:
    blosc_head(data, size)
    return _into("numcodecs.blosc", data, size)


def _lz4(data: memoryview, size: int, _: Mapping[str, Any]) -> NDArray[np.uint8]:
    said = int.from_bytes(data[:4], "little")
    if len(data) <= 4 or said != size:
        raise ValueError(f"its header says that it makes {said} bytes, expected {size}")
    return _into("numcodecs.lz4", data, size)


def _zstd(data: memoryview, size: int, _: Mapping[str, Any]) -> NDArray[np.uint8]:
    # Arrow's decoder stops at the end of the memory that it is given, whether frames say their size or not.
    try:
        return np.frombuffer(pa.Codec("zstd").decompress(data, size), np.uint8)
    except OSError as error:
        raise ValueError(f"it does not make {size} bytes ({error})") from error


def _into(module: str, data: memoryview, size: int) -> NDArray[np.uint8]:
    out = np.empty(size, np.uint8)
    if size:
        decoded_into(module, data, out)
    return out


def member(data: memoryview, size: int, method: int, /) -> memoryview:
    """The bytes of a member of a zip archive that was made smaller.

    Args:
        data: The member as it is stored.
        size: Bytes that it has to make.
        method: How it is compressed, by zipfile's number.

    Raises:
        ValueError: They are damaged, or make another number of bytes.
    """
    return MEMBERS[method](data, size, {}).data


def _stream(make: Callable[[Mapping[str, Any]], Any]) -> Decoder:
    """Of decoders of Python's own: they stop at as many bytes as are wanted, and one more is too many."""

    def decode(data: memoryview, size: int, settings: Mapping[str, Any]) -> NDArray[np.uint8]:
        try:
            decoder = make(settings)
            unpacked = decoder.decompress(data, size + 1)
            if len(unpacked) == size and not decoder.eof:  # the end itself may need one more look
                unpacked += decoder.decompress(getattr(decoder, "unconsumed_tail", b""), 1)
        except (zlib.error, lzma.LZMAError, OSError, EOFError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error
        if len(unpacked) != size or not decoder.eof:
            more = "more" if len(unpacked) > size else f"{len(unpacked)} and has no end"
            raise ValueError(f"it should make {size} bytes, but makes {more}")
        if decoder.unused_data:
            raise ValueError(f"{len(decoder.unused_data)} bytes behind its end belong to nothing")
        return np.frombuffer(unpacked, np.uint8)

    return decode


def _lzma(settings: Mapping[str, Any]) -> Any:
    form, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    if form != lzma.FORMAT_RAW:
        return lzma.LZMADecompressor(format=form, memlimit=_LZMA_MEMORY)
    if any(int(one.get("dict_size", 0)) > _LZMA_MEMORY for one in filters or ()):
        raise ValueError(f"its dictionary is above {_LZMA_MEMORY} bytes")
    return lzma.LZMADecompressor(format=form, filters=filters)


def _zip_lzma(data: memoryview, size: int, _: Mapping[str, Any]) -> NDArray[np.uint8]:
    """LZMA as zip archives have it: a version, the length of five bytes of properties, and a stream (APPNOTE 5.8.8)."""
    if len(data) < 9 or int.from_bytes(data[2:4], "little") != 5:
        raise ValueError("it does not begin with the properties of LZMA")
    rest, context = divmod(data[4], 9)
    # No more than what it makes is ever looked back at, whatever memory its properties ask for.
    wanted = min(int.from_bytes(data[5:9], "little"), max(size, 4096))
    kind = {"id": lzma.FILTER_LZMA1, "dict_size": wanted, "lc": context, "lp": rest % 5, "pb": rest // 5}
    try:
        decoder = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=[kind])
        unpacked = decoder.decompress(data[9:], size + 1)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error
    if len(unpacked) != size or decoder.unused_data:  # its end may be marked or not
        raise ValueError(f"it should make {size} bytes, but makes {'more' if len(unpacked) > size else len(unpacked)}")
    return np.frombuffer(unpacked, np.uint8)


_BZ2 = _stream(lambda _: bz2.BZ2Decompressor())
MEMBERS: Mapping[int, Decoder] = {
    zipfile.ZIP_DEFLATED: _stream(lambda _: zlib.decompressobj(-zlib.MAX_WBITS)),
    zipfile.ZIP_BZIP2: _BZ2,
    zipfile.ZIP_LZMA: _zip_lzma,
}
"""Of compressed members of zip archives: what zipfile reads."""
_DECODERS: Mapping[str, Decoder] = {
    "blosc": _blosc,
    "bz2": _BZ2,
    "gzip": _stream(lambda _: zlib.decompressobj(_GZIP)),
    "lz4": _lz4,
    "lzma": _stream(_lzma),
    "zlib": _stream(lambda _: zlib.decompressobj()),
    "zstd": _zstd,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Where the blocks of a chunk are.

    Attributes:
        data: The chunk.
        head: Its first four bytes.
        nbytes: Bytes decoded.
        size: Bytes decoded of a block; the last one may be shorter.
        starts: [blocks] the first byte of each in the chunk.
        stops: [blocks] the byte after its last.
    """

    data: memoryview
    head: tuple[int, int, int, int]
    nbytes: int
    size: int
    starts: Ints
    stops: Ints

    def span(self, start: int, stop: int, /) -> tuple[int, int]:
        """The decoded bytes of the blocks that hold `start` to before `stop`: first, and after the last."""
        first, last = start // self.size * self.size, min(-(-stop // self.size) * self.size, self.nbytes)
        # Blosc refuses a chunk that is shorter than its blocks: a short last block comes with the one before.
        return (first - self.size if first and last - first < self.size else first), last

    def decode(self, start: int, stop: int, out: Any, /) -> None:
        """Decode the blocks from byte `start` to before `stop`, both as `span` gives them, into `out`.

        Raises:
            ValueError: They cannot be decoded.
        """
        if (start, stop) == (0, self.nbytes):
            decoded_into("numcodecs.blosc", self.data, out)
            return
        first, last = start // self.size, -(-stop // self.size)
        starts, stops = self.starts[first:last], self.stops[first:last]
        sizes = stops - starts
        head = _HEADER.size + 4 * len(sizes)
        moved = head + np.cumsum(sizes) - sizes
        whole = head + int(sizes.sum())
        parts = [_HEADER.pack(*self.head, stop - start, self.size, whole), moved.astype("<i4").tobytes()]
        parts += [self.data[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]
        decoded_into("numcodecs.blosc", b"".join(parts), out)


def blocks_of(data: memoryview, expected: int, /) -> Blocks | None:
    """The blocks of a Blosc chunk; None where only the whole of it can be decoded.

    Args:
        data: The chunk.
        expected: Bytes that it should have, decoded.

    Raises:
        ValueError: Its header claims what is not there.
    """
    head, size = blosc_head(data, expected)
    if head[2] & _PLAIN or not expected:
        return None
    count = -(-expected // size)
    starts = np.frombuffer(data, "<i4", count, _HEADER.size).astype(np.int64)
    edges = np.append(np.sort(starts), len(data))
    stops = edges[np.searchsorted(edges, starts, side="right")]
    return Blocks(data=data, head=head, nbytes=expected, size=size, starts=starts, stops=stops)
