"""Images in MDS: files as they are, raw pixels of Pillow, and lists of either."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake import plugins
from seqlake.formats._streaming.cells import CellError, Cells, UnheldError

if TYPE_CHECKING:
    from collections.abc import Sequence

_RAW = struct.Struct("<III")  # width, height, bytes of the mode's name
_LISTED = struct.Struct("<II")  # a zero for later use, how many
_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}  # what PNG holds without loss
_LONGEST_MODE = 16


def pixels_as_png(cell: memoryview, /) -> bytes:
    """Raw pixels as a PNG file, without loss.

    Raises:
        CellError: It is cut off.
        UnheldError: It has a mode that PNG cannot hold.
    """
    image = pixels(cell)
    if image.mode not in _MODES:
        raise UnheldError(f'PNG cannot hold the mode {image.mode!r}; encodings={{column: "bytes"}} gives raw cells')
    if image.mode == "P":
        # The palette is not stored; PNG keeps only as many bits of the indices as it has colours.
        image.putpalette(bytes(level for level in range(256) for _ in range(3)))
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=1)
    return out.getvalue()


def pixels(cell: memoryview, /) -> Any:
    """Raw pixels as a Pillow image.

    Raises:
        CellError: It is cut off, or its mode does not exist.
    """
    if len(cell) < _RAW.size:
        raise CellError("it is cut off before its size")
    width, height, length = _RAW.unpack_from(cell)
    if length > _LONGEST_MODE or _RAW.size + length > len(cell):
        raise CellError(f"the name of its mode has {length} bytes")
    start = _RAW.size + length
    try:
        mode = str(cell[_RAW.size : start], "ascii")
        image = plugins.require("PIL.Image", extra="mds")
        # Looked at before memory is asked for: no mode has less than a bit for a pixel.
        if width * height > 8 * (len(cell) - start):
            raise CellError(f"{width} x {height} pixels do not lie in {len(cell) - start} bytes")
        return image.frombytes(mode, (width, height), bytes(cell[start:]))
    except (ValueError, KeyError, UnicodeDecodeError, SystemError) as error:
        raise CellError(f"its pixels cannot be read ({error})") from error


def pixel_bytes(image: Any, /) -> bytes:
    """A Pillow image as raw pixels."""
    mode: bytes = image.mode.encode()
    data: bytes = image.tobytes()
    head = _RAW.pack(*image.size, len(mode))
    return head + mode + data


def jpeg_bytes(image: Any, /) -> bytes:
    """A Pillow image as JPEG; one that was opened from a JPEG file stays those bytes.

    Raises:
        CellError: No Pillow image.
    """
    if not hasattr(image, "save"):
        raise CellError(f"expected a Pillow image or bytes, found {type(image).__name__}")
    opened = type(image).__name__ == "JpegImageFile" and getattr(image, "filename", None)
    if opened:
        with open(image.filename, "rb") as file:  # noqa: PTH123 - whatever Pillow was given
            return file.read()
    return _saved(image, "JPEG")


def png_bytes(image: Any, /) -> bytes:
    """A Pillow image as PNG.

    Raises:
        CellError: No Pillow image.
    """
    if not hasattr(image, "save"):
        raise CellError(f"expected a Pillow image or bytes, found {type(image).__name__}")
    return _saved(image, "PNG")


def _saved(image: Any, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind)
    return out.getvalue()


def items(cell: memoryview, /, *, reserved: bool) -> list[memoryview]:
    """The elements of a list: how many, their lengths, their bytes.

    Args:
        cell: The list.
        reserved: A zero stands before the count.

    Raises:
        CellError: It is cut off.
    """
    at = 4 if reserved else 0
    if len(cell) < at + 4:
        raise CellError("it is cut off before its number of elements")
    count = int.from_bytes(cell[at : at + 4], "little")
    start = at + 4 + 4 * count
    if start > len(cell):
        raise CellError(f"{count} elements do not lie in {len(cell)} bytes")
    lengths = np.frombuffer(cell, "<u4", count, at + 4).tolist() if count else []
    if start + sum(lengths) != len(cell):
        raise CellError(f"its elements have {sum(lengths)} bytes, {len(cell) - start} are there")
    found = []
    for length in lengths:
        found.append(cell[start : start + length])
        start += length
    return found


def listed(parts: Sequence[bytes], /, *, reserved: bool) -> bytes:
    """A list of elements as a cell."""
    lengths = np.array([len(part) for part in parts], "<u4").tobytes()
    head = _LISTED.pack(0, len(parts)) if reserved else len(parts).to_bytes(4, "little")
    return b"".join([head, lengths, *parts])


def list_array(cells: Cells, element: Any, /, *, reserved: bool) -> pa.Array:
    """Lists of image files.

    Args:
        cells: The lists.
        element: What makes a file of an element.
        reserved: As for `items`.
    """
    made = [[element(item) for item in items(cells.one(row), reserved=reserved)] for row in range(len(cells))]
    return pa.array(made, pa.list_(pa.binary()))
