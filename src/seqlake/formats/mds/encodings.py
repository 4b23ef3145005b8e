"""Every encoding of MDS by its name.

A value that is `bytes` already is stored untouched whatever the encoding, as the official writer does.
"""

from __future__ import annotations

import json
import struct
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import DecodeError, InvalidMetadataError
from seqlake.formats._streaming import cells as many
from seqlake.formats._streaming.cells import CellError, Cells
from seqlake.formats._streaming.encodings import Encoding
from seqlake.formats.mds import images
from seqlake.formats.mds.arrays import Array
from seqlake.spec.column_types import Image

if TYPE_CHECKING:
    from collections.abc import Callable

PICKLE = "pkl"
_SCALARS = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
_INT = struct.Struct("<q")


@lru_cache(maxsize=1024)
def encoding(name: str, /) -> Encoding:
    """The encoding of that name; arrays whose name does not say what they are must be `learned` first.

    Raises:
        InvalidMetadataError: No encoding is called so.
    """
    made = _SIMPLE.get(name)
    if made is not None:
        return made()
    if name in _SCALARS:
        return _scalar(name)
    kind = Array.of(name)
    if kind is not None:
        return of_array(kind)
    raise InvalidMetadataError(
        f"No encoding of MDS is called {name!r}.",
        hint=f"If you know what it means: scan(..., encodings={{{name!r}: seqlake.formats.mds.Encoding(...)}}).",
    )


def of_array(kind: Array, /) -> Encoding:
    """The encoding of arrays of a kind."""
    return Encoding(
        arrow=kind.arrow if kind.dtype else pa.null(),
        decode=kind.value,
        encode=kind.bytes,
        size=kind.size,
        type=kind.type if kind.dtype else None,
        array=kind.array,
    )


def unpickled(arrow: pa.DataType, /) -> Encoding:
    """Pickles that the user allowed to be read."""
    return Encoding(arrow=arrow, decode=_unpickle, encode=_pickle)


def refused(column: str, /) -> Encoding:
    """A column of pickles that was not allowed: it is shown, and reading it is an error."""

    def refuse(_: object) -> Any:
        raise DecodeError(
            f"Column {column!r} holds pickles, which can run any code when they are read.",
            hint=f"If you trust whoever wrote it: scan(..., allow_pickle=[{column!r}]); else select other columns.",
        )

    return Encoding(arrow=pa.binary(), decode=refuse, encode=_pickle, array=refuse)


def _scalar(name: str) -> Encoding:
    dtype = np.dtype(name)
    little = dtype.newbyteorder("<")

    def encode(value: Any) -> bytes:
        return dtype.type(value).astype(little).tobytes()  # type: ignore[no-any-return]  # numpy's stubs

    def array(cells: Cells) -> pa.Array:
        return pa.array(many.numbers(cells, dtype).reshape(-1))

    return Encoding(
        arrow=pa.from_numpy_dtype(dtype),
        decode=lambda cell: np.frombuffer(cell, little)[0],
        encode=encode,
        size=dtype.itemsize,
        array=array,
    )


def _int() -> Encoding:
    def encode(value: Any) -> bytes:
        if not isinstance(value, int):
            raise CellError(f"expected an int, found {type(value).__name__}")
        return _INT.pack(value)

    def array(cells: Cells) -> pa.Array:
        return pa.array(many.numbers(cells, np.dtype(np.int64)).reshape(-1))

    return Encoding(arrow=pa.int64(), decode=lambda c: _INT.unpack(c)[0], encode=encode, size=8, array=array)


def _bytes() -> Encoding:
    def encode(value: Any) -> bytes:
        raise CellError(f"expected bytes, found {type(value).__name__}")

    return Encoding(arrow=pa.binary(), decode=bytes, encode=encode, array=many.binary)


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


def _decimals(cells: Cells) -> pa.Array:
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


def _image(kind: str, encode: Callable[[Any], bytes]) -> Encoding:
    return Encoding(arrow=pa.binary(), decode=bytes, encode=encode, type=Image(format=kind), array=many.binary)


def _pil() -> Encoding:
    def array(cells: Cells) -> pa.Array:
        return pa.array([images.pixels_as_png(cells.one(row)) for row in range(len(cells))], pa.binary())

    def encode(value: Any) -> bytes:
        if not hasattr(value, "tobytes") or not hasattr(value, "mode"):
            raise CellError(f"expected a Pillow image, found {type(value).__name__}")
        return images.pixel_bytes(value)

    return Encoding(
        arrow=pa.binary(), decode=images.pixels_as_png, encode=encode, type=Image(format="png"), array=array
    )


def _image_list(kind: str, *, reserved: bool = True) -> Encoding:
    element: Callable[[Any], bytes] = images.pixels_as_png if kind == "pil" else bytes
    encoders: dict[str, Callable[[Any], bytes]] = {
        "pil": images.pixel_bytes,
        "png": images.png_bytes,
        "jpeg": images.jpeg_bytes,
    }
    one = encoders[kind]

    def encode(value: Any) -> bytes:
        if not isinstance(value, list):
            raise CellError(f"expected a list of images, found {type(value).__name__}")
        if not reserved and not (value and all(isinstance(item, bytes) for item in value)):
            raise CellError("expected a list of JPEG files as bytes, at least one")
        # Unlike columns, elements of these lists are always encoded.
        return images.listed([item if not reserved else one(item) for item in value], reserved=reserved)

    return Encoding(
        arrow=pa.list_(pa.binary()),
        decode=lambda cell: [element(item) for item in images.items(cell, reserved=reserved)],
        encode=encode,
        type=Image(format="jpeg" if kind == "jpeg" else "png", frames="bytes"),
        array=lambda cells: images.list_array(cells, element, reserved=reserved),
    )


_SIMPLE: dict[str, Callable[[], Encoding]] = {
    "bytes": _bytes,
    "str": lambda: Encoding(arrow=pa.string(), decode=_str, encode=_encode_str, array=many.text),
    "int": _int,
    "str_int": lambda: Encoding(
        arrow=pa.int64(), decode=lambda c: int(_str(c)), encode=partial(_written, (int,)), array=many.integers
    ),
    "str_float": lambda: Encoding(
        arrow=pa.float64(), decode=lambda c: float(_str(c)), encode=partial(_written, (float,)), array=many.floats
    ),
    "str_decimal": lambda: Encoding(
        arrow=pa.string(), decode=lambda c: Decimal(_str(c)), encode=partial(_written, (Decimal,)), array=_decimals
    ),
    "json": lambda: Encoding(
        arrow=pa.string(), decode=lambda c: json.loads(bytes(c)), encode=_encode_json, array=many.text
    ),
    "pil": _pil,
    "jpeg": lambda: _image("jpeg", images.jpeg_bytes),
    "png": lambda: _image("png", images.png_bytes),
    "jpeg_array": lambda: _image_list("jpeg", reserved=False),
    "jpegarray": lambda: _image_list("jpeg", reserved=False),
    "list[pil]": lambda: _image_list("pil"),
    "list[jpeg]": lambda: _image_list("jpeg"),
    "list[png]": lambda: _image_list("png"),
}

PICKLED = unpickled(pa.null())  # to write, which is safe
