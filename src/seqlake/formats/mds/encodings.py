"""Every encoding of MDS by its name: numbers, texts, arrays, and images as files, as raw pixels or in lists.

A value that is `bytes` already is stored untouched whatever the encoding, as the official writer does.
"""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake import plugins
from seqlake.errors import DecodeError, InvalidMetadataError
from seqlake.formats._streaming import cells as many
from seqlake.formats._streaming.cells import CellBytes, CellEncoding, CellError, UnheldError
from seqlake.formats.mds.arrays import ArrayEncoding
from seqlake.spec.column_types import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PICKLE = "pkl"
_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_INT = struct.Struct("<q")
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


def list_items(cell: memoryview, /, *, reserved: bool) -> list[memoryview]:
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
    parts = []
    for length in lengths:
        parts.append(cell[start : start + length])
        start += length
    return parts


def image_list(parts: Sequence[bytes], /, *, reserved: bool) -> bytes:
    """A list of elements as a cell."""
    lengths = np.array([len(part) for part in parts], "<u4").tobytes()
    head = _LISTED.pack(0, len(parts)) if reserved else len(parts).to_bytes(4, "little")
    return b"".join([head, lengths, *parts])


def list_array(cells: CellBytes, element: Any, /, *, reserved: bool) -> pa.Array:
    """Lists of image files.

    Args:
        cells: The lists.
        element: What makes a file of an element.
        reserved: As for `items`.
    """
    pictures = [[element(item) for item in list_items(cells.one(row), reserved=reserved)] for row in range(len(cells))]
    return pa.array(pictures, pa.list_(pa.binary()))


@lru_cache(maxsize=1024)
def encoding(name: str, /) -> CellEncoding:
    """The encoding of that name; arrays whose name does not say what they are must be `learned` first.

    Raises:
        InvalidMetadataError: No encoding is called so.
    """
    simple = _SIMPLE.get(name)
    if simple is not None:
        return simple()
    if name in _SCALARS:
        return _scalar(name)
    kind = ArrayEncoding.of(name)
    if kind is not None:
        return of_array(kind)
    raise InvalidMetadataError(
        f"No encoding of MDS is called {name!r}.",
        hint=f"If you know what it means: scan(..., encodings={{{name!r}: seqlake.formats.mds.CellEncoding(...)}}).",
    )


def of_array(kind: ArrayEncoding, /) -> CellEncoding:
    """The encoding of arrays of a kind."""
    return CellEncoding(
        arrow=kind.arrow if kind.dtype else pa.null(),
        decode=kind.value,
        encode=kind.bytes,
        size=kind.size,
        type=kind.type if kind.dtype else None,
        array=kind.array,
    )


def unpickled(arrow: pa.DataType, /) -> CellEncoding:
    """Pickles that the user allowed to be read."""
    return CellEncoding(arrow=arrow, decode=_unpickle, encode=_pickle)


def refused(column: str, /) -> CellEncoding:
    """A column of pickles that was not allowed: it is shown, and reading it is an error."""

    def refuse(_: object) -> Any:
        raise DecodeError(
            f"Column {column!r} holds pickles, which can run any code when they are read.",
            hint=f"If you trust whoever wrote it: scan(..., allow_pickle=[{column!r}]); else select other columns.",
        )

    return CellEncoding(arrow=pa.binary(), decode=refuse, encode=_pickle, array=refuse)


def _scalar(name: str) -> CellEncoding:
    dtype = np.dtype(name)
    little = dtype.newbyteorder("<")

    def encode(value: Any) -> bytes:
        return dtype.type(value).astype(little).tobytes()  # type: ignore[no-any-return]  # numpy's stubs

    def array(cells: CellBytes) -> pa.Array:
        return pa.array(many.numbers(cells, dtype).reshape(-1))

    return CellEncoding(
        arrow=pa.from_numpy_dtype(dtype),
        decode=lambda cell: np.frombuffer(cell, little)[0],
        encode=encode,
        size=dtype.itemsize,
        array=array,
    )


def _int() -> CellEncoding:
    def encode(value: Any) -> bytes:
        if not isinstance(value, int):
            raise CellError(f"expected an int, found {type(value).__name__}")
        return _INT.pack(value)

    def array(cells: CellBytes) -> pa.Array:
        return pa.array(many.numbers(cells, np.dtype(np.int64)).reshape(-1))

    return CellEncoding(arrow=pa.int64(), decode=lambda c: _INT.unpack(c)[0], encode=encode, size=8, array=array)


def _bytes() -> CellEncoding:
    def encode(value: Any) -> bytes:
        raise CellError(f"expected bytes, found {type(value).__name__}")

    return CellEncoding(arrow=pa.binary(), decode=bytes, encode=encode, array=many.binary)


def _str(value: memoryview) -> str:
    return str(value, "utf-8")


def _encode_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise CellError(f"expected a str, found {type(value).__name__}")
    return value.encode()


def _written(kinds: tuple[type, ...], value: Any) -> bytes:
    if not isinstance(value, kinds):
        raise CellError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
    return str(value).encode()


def _decimals(cells: CellBytes) -> pa.Array:
    texts = many.text(cells)
    try:
        for one in texts.to_pylist():
            Decimal(one)
    except InvalidOperation as error:
        raise CellError("it is no decimal number") from error
    return texts


def _encode_json(value: Any) -> bytes:
    return json.dumps(value.tolist() if isinstance(value, np.ndarray) else value).encode()


def _unpickle(cell: memoryview) -> Any:
    import pickle

    try:
        return pickle.loads(cell)  # noqa: S301 - the user named this column in allow_pickle
    except Exception as error:  # whatever its classes raise
        raise CellError(f"it cannot be unpickled ({error})") from error


def _pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def _image(kind: str, encode: Callable[[Any], bytes]) -> CellEncoding:
    return CellEncoding(arrow=pa.binary(), decode=bytes, encode=encode, type=Image(format=kind), array=many.binary)


def _pil() -> CellEncoding:
    def array(cells: CellBytes) -> pa.Array:
        return pa.array([pixels_as_png(cells.one(row)) for row in range(len(cells))], pa.binary())

    def encode(value: Any) -> bytes:
        if not hasattr(value, "tobytes") or not hasattr(value, "mode"):
            raise CellError(f"expected a Pillow image, found {type(value).__name__}")
        return pixel_bytes(value)

    return CellEncoding(arrow=pa.binary(), decode=pixels_as_png, encode=encode, type=Image(format="png"), array=array)


def _image_list(kind: str, *, reserved: bool = True) -> CellEncoding:
    element: Callable[[Any], bytes] = pixels_as_png if kind == "pil" else bytes
    encoders: dict[str, Callable[[Any], bytes]] = {
        "pil": pixel_bytes,
        "png": png_bytes,
        "jpeg": jpeg_bytes,
    }
    one = encoders[kind]

    def encode(value: Any) -> bytes:
        if not isinstance(value, list):
            raise CellError(f"expected a list of images, found {type(value).__name__}")
        if not reserved and not (value and all(isinstance(item, bytes) for item in value)):
            raise CellError("expected a list of JPEG files as bytes, at least one")
        # Unlike columns, elements of these lists are always encoded.
        return image_list([item if not reserved else one(item) for item in value], reserved=reserved)

    return CellEncoding(
        arrow=pa.list_(pa.binary()),
        decode=lambda cell: [element(item) for item in list_items(cell, reserved=reserved)],
        encode=encode,
        type=Image(format="jpeg" if kind == "jpeg" else "png", frames="bytes"),
        array=lambda cells: list_array(cells, element, reserved=reserved),
    )


_SIMPLE: dict[str, Callable[[], CellEncoding]] = {
    "bytes": _bytes,
    "str": lambda: CellEncoding(arrow=pa.string(), decode=_str, encode=_encode_str, array=many.text),
    "int": _int,
    "str_int": lambda: CellEncoding(
        arrow=pa.int64(), decode=lambda c: int(_str(c)), encode=partial(_written, (int,)), array=many.integers
    ),
    "str_float": lambda: CellEncoding(
        arrow=pa.float64(), decode=lambda c: float(_str(c)), encode=partial(_written, (float,)), array=many.floats
    ),
    "str_decimal": lambda: CellEncoding(
        arrow=pa.string(), decode=lambda c: Decimal(_str(c)), encode=partial(_written, (Decimal,)), array=_decimals
    ),
    "json": lambda: CellEncoding(
        arrow=pa.string(), decode=lambda c: json.loads(bytes(c)), encode=_encode_json, array=many.text
    ),
    "pil": _pil,
    "jpeg": lambda: _image("jpeg", jpeg_bytes),
    "png": lambda: _image("png", png_bytes),
    "jpeg_array": lambda: _image_list("jpeg", reserved=False),
    "jpegarray": lambda: _image_list("jpeg", reserved=False),
    "list[pil]": lambda: _image_list("pil"),
    "list[jpeg]": lambda: _image_list("jpeg"),
    "list[png]": lambda: _image_list("png"),
}

PICKLED = unpickled(pa.null())  # to write, which is safe
