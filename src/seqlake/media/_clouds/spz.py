"""SPZ, splats (Gaussians) packed by Niantic: versions 1 to 3, one gzip stream of a head and one section a field.

Fields have the names, the order and the meaning that PLY files of splats have: logarithms of scales, logits of
opacities, quaternions w, x, y, z, and of each colour all coefficients of its spherical harmonics.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

    Floats = NDArray[np.float32]

_MAGIC, _HEAD = 0x5053474E, 16
_GZIP = b"\x1f\x8b"
_VERSIONS = (1, 2, 3)
_COEFFICIENTS = (0, 3, 8, 15, 24)  # of each colour beyond the first, by degree
_RATIO = 1032  # the most bytes that one of Deflate can stand for
_COLOUR = 0.15  # of a step of a colour's first coefficient
_EDGE = 1e-6  # of opacities 0 and 1, whose logits are infinite
_LEVELS = 511  # of a part of a quaternion, which is at most the root of a half


def read(data: memoryview, column: ColumnType, hold: Callable[[int], None], /) -> NDArray[Any]:  # noqa: ARG001 - as all
    """[splats] structured, all of float32.

    Raises:
        DecodeError: A version that is packed another way.
    """
    if bytes(data[:2]) != _GZIP:
        newer = len(data) >= 4 and struct.unpack_from("<I", data)[0] == _MAGIC
        if newer:
            raise DecodeError("SPZ of version 4 and later, packed by Zstandard, is not read. Write version 3.")
        raise ValueError(f"expected a gzip stream, found bytes that begin with {bytes(data[:4])!r}")
    inflater = zlib.decompressobj(wbits=31)
    head = _inflated(inflater, bytes(data), _HEAD)
    magic, version, count, degree, fraction, *_ = struct.unpack("<IIIBBBB", head)
    if magic != _MAGIC or version not in _VERSIONS or degree >= len(_COEFFICIENTS) or fraction > 23:
        raise ValueError(f"no head of SPZ: version {version}, degree {degree}, {fraction} bits of fraction")
    more = _COEFFICIENTS[degree]
    widths = [6 if version == 1 else 9, 1, 3, 3, 4 if version == 3 else 3, 3 * more]
    if count * sum(widths) > _RATIO * len(data):
        raise ValueError(f"{count:,} splats are declared, and {len(data):,} bytes are there")
    hold(count)
    body = np.frombuffer(_inflated(inflater, inflater.unconsumed_tail, count * sum(widths)), np.uint8)
    if inflater.decompress(inflater.unconsumed_tail, 1) or not inflater.eof:
        raise ValueError("it goes on after its last section, or does not end")
    ends = np.cumsum([count * width for width in widths])[:-1]
    places, alphas, colours, scales, turns, harmonics = (
        part.reshape(count, width) for part, width in zip(np.split(body, ends), widths, strict=True)
    )
    names = ["x", "y", "z", *_numbered("f_dc", 3), *_numbered("f_rest", 3 * more), "opacity"]
    names += [*_numbered("scale", 3), *_numbered("rot", 4)]
    alpha = (alphas / np.float32(255)).clip(_EDGE, 1 - _EDGE)
    rest = (harmonics.reshape(count, more, 3).astype(np.float32) - 128) / 128
    parts: list[NDArray[Any]] = [
        _float16(places) if version == 1 else _fixed(places, fraction),
        (colours / np.float32(255) - np.float32(0.5)) / np.float32(_COLOUR),
        rest.transpose(0, 2, 1).reshape(count, 3 * more),
        np.log(alpha / (1 - alpha)),
        scales / np.float32(16) - 10,
        _smallest_three(turns) if version == 3 else _first_three(turns),
    ]
    columns = np.concatenate(parts, axis=1, dtype=np.float32)
    return columns.view([(name, np.float32) for name in names]).reshape(count)


def _inflated(inflater: Any, data: bytes, count: int) -> bytes:
    try:
        unpacked: bytes = inflater.decompress(data, count) if count else b""
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(unpacked) != count:
        raise ValueError(f"expected {count:,} bytes unpacked, found {len(unpacked):,}")
    return unpacked


def _numbered(name: str, count: int) -> list[str]:
    return [f"{name}_{number}" for number in range(count)]


def _float16(places: NDArray[np.uint8]) -> Floats:
    return np.ascontiguousarray(places).view("<f2").astype(np.float32)


def _fixed(places: NDArray[np.uint8], fraction: int) -> Floats:
    """Numbers of 24 bits with a sign, of which so many bits are fraction."""
    parts = places.reshape(len(places), 3, 3).astype(np.int32)
    numbers = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
    return ((numbers - (numbers >> 23 << 24)) / np.float32(1 << fraction)).astype(np.float32)


def _first_three(turns: NDArray[np.uint8]) -> Floats:
    """x, y, z as bytes; w is what makes it a unit."""
    parts = turns / np.float32(127.5) - 1
    last = np.sqrt(np.maximum(0, 1 - (parts**2).sum(axis=1, keepdims=True)))
    return np.concatenate([last, parts], axis=1).astype(np.float32)


def _smallest_three(turns: NDArray[np.uint8]) -> Floats:
    """The three smaller parts in 10 bits each, with which one is left out in the upper two."""
    packed = np.ascontiguousarray(turns).view("<u4")[:, 0].astype(np.int64)
    largest = packed >> 30
    parts = np.zeros((len(packed), 4))
    for axis in range(3, -1, -1):
        here = largest != axis
        value = np.sqrt(0.5) * (packed & _LEVELS) / _LEVELS
        parts[here, axis] = np.where(packed >> 9 & 1, -value, value)[here]
        packed = np.where(here, packed >> 10, packed)
    rows = np.arange(len(packed))
    parts[rows, largest] = np.sqrt(np.maximum(0, 1 - (parts**2).sum(axis=1)))
    return parts[:, [3, 0, 1, 2]].astype(np.float32)
