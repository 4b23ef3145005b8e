"""What a `.zarray` says: dtype, shape, chunks and codec of one array of zarr format 2; read and written."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFileError, InvalidMetadataError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CODECS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
"""Codecs of bytes alone. Others (`pickle` among them) would run what a stranger wrote."""

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
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

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
            found = _parsed(value, text if isinstance(text, str) else text.decode())
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InvalidMetadataError(
                f"{location}: no usable .zarray of zarr format 2: {error!r}.", path=location
            ) from (error)
        if isinstance(found, str):
            raise InvalidMetadataError(f"{location}: {found}", path=location)
        return found


def _parsed(value: Any, text: str) -> ArrayMetadata | str:
    if value["zarr_format"] != 2:
        return f"expected zarr format 2, found {value['zarr_format']!r}."
    if value.get("filters"):
        return f"filters are not read; found {value['filters']!r}."
    if value["order"] != "C" and len(value["shape"]) > 1:
        return f"expected order 'C', found {value['order']!r}."
    compressor = value["compressor"]
    if compressor is not None and compressor.get("id") not in _CODECS:
        return f"expected a codec among {', '.join(sorted(_CODECS))}, found {compressor.get('id')!r}."
    dtype = _dtype(value["dtype"])
    if dtype.hasobject:
        return f"expected numbers and strings of fixed size, found {value['dtype']!r}."
    shape, chunks = tuple(map(int, value["shape"])), tuple(map(int, value["chunks"]))
    if not shape or len(shape) != len(chunks) or min(shape) < 0 or min(chunks) < 1:
        return f"shape {shape} and chunks {chunks} do not fit."
    if any(chunk < size for chunk, size in zip(chunks[1:], shape[1:], strict=True)):
        return f"chunks {chunks} cut the rows of an array of shape {shape}."
    return ArrayMetadata(
        dtype=dtype,
        shape=shape,
        chunks=chunks,
        compressor=compressor,
        fill=value["fill_value"],
        separator=value.get("dimension_separator", "."),
        text=text,
    )


def _dtype(described: Any) -> np.dtype[Any]:
    if isinstance(described, str):
        return np.dtype(described)
    return np.dtype([(str(one[0]), _dtype(one[1]), *([tuple(one[2])] if len(one) > 2 else [])) for one in described])


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
    if metadata.fill is None:
        return out
    if metadata.dtype.names is not None or metadata.dtype.kind in "SV":
        out[...] = np.frombuffer(base64.standard_b64decode(metadata.fill), metadata.dtype)[0]
    else:
        out[...] = metadata.fill
    return out


def codec(metadata: ArrayMetadata, /) -> Any:
    """The codec of an array's chunks, with `encode` and `decode`; None for plain bytes.

    Raises:
        MissingDependencyError: numcodecs is not installed.
    """
    if metadata.compressor is None:
        return None
    return plugins.require("numcodecs", extra="l5kit").get_codec(dict(metadata.compressor))


def decode(metadata: ArrayMetadata, data: Any, /, *, location: str) -> np.ndarray[Any, np.dtype[Any]]:
    """One chunk's bytes as its rows: [chunk rows, ...], read-only; plain bytes are not copied.

    Raises:
        CorruptFileError: The bytes cannot be decoded, or are not as many as a whole chunk has.
    """
    try:
        made = codec(metadata)
        raw = data if made is None else made.decode(data)
    except MissingDependencyError:
        raise
    except Exception as error:
        raise CorruptFileError(f"{location} cannot be decoded: {error}.", path=location) from error
    flat = np.frombuffer(raw, np.uint8)
    expected = int(np.prod(metadata.chunks, dtype=np.int64)) * metadata.dtype.itemsize
    if flat.nbytes != expected:
        raise CorruptFileError(
            f"{location}: expected a chunk of {expected} bytes, found {flat.nbytes}.",
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
    made = codec(metadata)
    return whole.tobytes() if made is None else bytes(made.encode(whole))  # shuffling goes by the size of a row
