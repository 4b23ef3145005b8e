"""What a `.zarray` says: dtype, shape, chunks and codec of one array of zarr format 2; read and written."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFileError, InvalidMetadataError
from seqlake.formats._zarr.decoding import CODECS, unpacked

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 1 << 62
_ROW_BYTES = 16 << 20  # of one row; an agent has 116
_DTYPE = re.compile(r"[<>|][iufbcUSV][0-9]{1,8}|[<>|][mM]8(\[[0-9]{0,6}[a-zA-Z]{1,2}\])?")

BLOSC: Mapping[str, Any] = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
"""What zarr 2, and so l5kit, writes where nothing else is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayMetadata:
    """One array.

    Attributes:
        dtype: Of one row, structured or plain.
        shape: Rows first.
        chunks: Of the same length; only rows are cut in l5kit's arrays.
        compressor: The codec's settings; None stores plain bytes.
        fill: What stands where a chunk is missing: the bytes of one element, or None for zeros.
        separator: Between the numbers in the name of a chunk of several dimensions.
        text: As it was read; written again where nothing changed.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    compressor: Mapping[str, Any] | None = field(default_factory=lambda: dict(BLOSC))
    fill: Any = None
    separator: str = "."
    text: str = field(default="", compare=False)

    @property
    def count(self) -> int:
        """How many chunks the rows make."""
        return -(-self.shape[0] // self.chunks[0])

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a whole chunk, decoded."""
        return self.dtype.itemsize * prod(self.chunks)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * prod(self.shape[1:])

    @property
    def plain(self) -> bool:
        """Whether chunks are stored as they are."""
        return self.compressor is None

    def resized(self, rows: int, /) -> ArrayMetadata:
        """The same array with another number of rows."""
        return replace(self, shape=(rows, *self.shape[1:]), text=self.text if rows == self.shape[0] else "")

    def to_json(self) -> str:
        """The text of a `.zarray`, to the byte as zarr 2 writes it: sorted keys, four spaces, no final newline."""
        if self.text:
            return self.text
        fill: Any = self.fill
        if self.dtype.names is not None:
            fill = base64.standard_b64encode(bytes(self.dtype.itemsize)).decode()
        value = {
            "chunks": list(self.chunks),
            "compressor": None if self.compressor is None else dict(self.compressor),
            "dtype": _described(self.dtype),
            "fill_value": fill,
            "filters": None,
            "order": "C",
            "shape": list(self.shape),
            "zarr_format": 2,
        }
        if self.separator != ".":
            value["dimension_separator"] = self.separator
        return json.dumps(value, indent=4, sort_keys=True, ensure_ascii=True, separators=(",", ": "))

    @staticmethod
    def parse(text: str | bytes, /, *, location: str) -> ArrayMetadata:
        """Read the text of a `.zarray`.

        Args:
            text: Its JSON.
            location: Where it lies, for messages.

        Raises:
            InvalidMetadataError: Not zarr format 2, or something in it that l5kit's stores never have.
        """
        try:
            value = json.loads(text)
            parsed = _parsed(value, text if isinstance(text, str) else text.decode())
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidMetadataError(
                f"{location}: no usable .zarray of zarr format 2: {error!r}.", path=location
            ) from error
        if isinstance(parsed, str):
            raise InvalidMetadataError(f"{location}: {parsed}", path=location)
        return parsed


def _parsed(value: Any, text: str) -> ArrayMetadata | str:
    if value["zarr_format"] != 2:
        return f"expected zarr format 2, found {value['zarr_format']!r}."
    if value.get("filters"):
        return f"filters are not read; found {value['filters']!r}."
    if value["order"] != "C" and (value["order"] != "F" or len(value["shape"]) > 1):
        return f"expected order 'C', found {value['order']!r}."
    compressor = value["compressor"]
    if compressor is not None and compressor.get("id") not in CODECS:
        return f"expected a codec among {', '.join(sorted(CODECS))}, found {compressor.get('id')!r}."
    dtype = dtype_of(value["dtype"])
    shape, chunks = tuple(value["shape"]), tuple(value["chunks"])
    if not all(type(size) is int and 0 <= size < _MOST for size in (*shape, *chunks)):
        raise ValueError(f"shape {shape} and chunks {chunks} are no numbers of rows")
    if not shape or len(shape) != len(chunks) or min(chunks) < 1:
        return f"shape {shape} and chunks {chunks} do not fit."
    if any(chunk < size for chunk, size in zip(chunks[1:], shape[1:], strict=True)):
        return f"chunks {chunks} cut the rows of an array of shape {shape}."
    separator = value.get("dimension_separator", ".")
    if separator not in {".", "/"}:
        return f"expected '.' or '/' between the numbers of a chunk's name, found {separator!r}."
    metadata = ArrayMetadata(
        dtype=dtype,
        shape=shape,
        chunks=chunks,
        compressor=compressor,
        fill=value["fill_value"],
        separator=separator,
        text=text,
    )
    if not 0 < metadata.row_bytes <= _ROW_BYTES or prod(chunks) * dtype.itemsize >= _MOST or prod(shape) >= _MOST:
        return f"rows of {metadata.row_bytes} bytes, {shape} of them in chunks of {chunks}, are none of l5kit's."
    filled(metadata, 1)  # what cannot stand for a missing row is told now
    return metadata


def dtype_of(described: Any) -> np.dtype[Any]:
    """Numbers and strings of fixed size, or fields of them.

    Raises:
        ValueError: Anything else: numpy would take texts that mean objects, or are a small language.
    """
    if isinstance(described, str):
        if not _DTYPE.fullmatch(described):
            raise ValueError(f"expected numbers and strings of fixed size, found {described!r}")
        return np.dtype(described)
    if not isinstance(described, list) or not described:
        raise ValueError(f"a dtype is a text or a list of fields, found {described!r}")
    return np.dtype([_field(one) for one in described])


def _field(one: Any) -> tuple[Any, ...]:
    name, kind, *shape = one
    if not isinstance(name, str) or ":" in name or len(shape) > 1:  # numpy hands no colon to a codec
        raise ValueError(f"a field is a name, a dtype and perhaps a shape, found {one!r}")
    name.encode()  # half of a surrogate pair is a ValueError here and not in a codec
    sizes = tuple(shape[0]) if shape else ()
    if not all(type(size) is int and 0 < size < _ROW_BYTES for size in sizes):
        raise ValueError(f"the field {name!r} has the shape {shape[0]!r}")
    return (name, dtype_of(kind), *([sizes] if shape else []))


def _described(dtype: np.dtype[Any]) -> Any:
    """A dtype as `.zarray` holds it: a code, or [name, code] and [name, code, shape] of each field."""
    if dtype.names is None:
        return dtype.str
    assert dtype.fields is not None
    out = []
    for name in dtype.names:
        kind = dtype.fields[name][0]
        shape = [list(kind.shape)] if kind.shape else []
        out.append([name, _described(kind.base), *shape])
    return out


def filled(metadata: ArrayMetadata, rows: int, /) -> np.ndarray[Any, np.dtype[Any]]:
    """[rows, ...] what stands where a chunk is missing."""
    shape = (rows, *metadata.shape[1:])
    out = np.zeros(shape, metadata.dtype)
    if metadata.fill is None or (metadata.dtype.names is not None and metadata.fill == 0):
        return out
    if metadata.dtype.names is not None or metadata.dtype.kind in "SV":
        out[...] = np.frombuffer(base64.standard_b64decode(metadata.fill), metadata.dtype)[0]
    else:
        with np.errstate(over="ignore"):
            out[...] = metadata.fill
    return out


def encoder(metadata: ArrayMetadata, /) -> Any:
    """What encodes an array's chunks; None for plain bytes.

    Raises:
        InvalidMetadataError: Settings that the codec does not have.
        MissingDependencyError: numcodecs is not installed.
    """
    if metadata.compressor is None:
        return None
    get_codec = plugins.require("numcodecs", extra="l5kit").get_codec
    try:
        return get_codec(dict(metadata.compressor))
    except (TypeError, ValueError, LookupError) as error:
        raise InvalidMetadataError(f"No codec has the settings {dict(metadata.compressor)}: {error}.") from error


def decode(metadata: ArrayMetadata, data: Any, /, *, location: str) -> np.ndarray[Any, np.dtype[Any]]:
    """One chunk's bytes as its rows: [chunk rows, ...], read-only; plain bytes are not copied.

    Raises:
        CorruptFileError: The bytes cannot be decoded, or are not as many as a whole chunk has.
    """
    view = memoryview(data)
    if metadata.compressor is None:
        flat = np.frombuffer(view, np.uint8)
    else:
        try:
            flat = unpacked(metadata.compressor, view, metadata.chunk_bytes)
        except ValueError as error:
            raise CorruptFileError(
                f"{location} cannot be decoded: {error}.", path=location, hint="It is cut off or damaged."
            ) from error
    if flat.nbytes != metadata.chunk_bytes:
        raise CorruptFileError(
            f"{location}: expected a chunk of {metadata.chunk_bytes} bytes, found {flat.nbytes}.",
            path=location,
            hint="The file is cut off or damaged: fetch it again.",
        )
    rows = flat.view(metadata.dtype).reshape(metadata.chunks)
    # A chunk may be wider than the array's rows are; none of l5kit's is.
    rows = rows[(slice(None), *(slice(size) for size in metadata.shape[1:]))]
    rows.flags.writeable = False
    return rows


def encode(metadata: ArrayMetadata, rows: np.ndarray[Any, np.dtype[Any]], /) -> bytes:
    """The bytes of one chunk: padded with zeros to the full size, as zarr does."""
    whole = np.zeros(metadata.chunks, metadata.dtype)
    whole[(slice(len(rows)), *(slice(size) for size in rows.shape[1:]))] = rows
    codec = encoder(metadata)
    return whole.tobytes() if codec is None else bytes(codec.encode(whole))  # shuffling goes by the size of a row
