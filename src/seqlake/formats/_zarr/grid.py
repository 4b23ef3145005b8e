"""What `.zarray` (format 2) or `zarr.json` (format 3) say of one array: dtype, chunk grid, codecs, shards."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import InvalidMetadataError
from seqlake.formats._zarr.decoding import CODECS, PICTURES, refuse_chains
from seqlake.formats._zarr.metadata import dtype_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_MOST = 1 << 62
_MOST_DIMENSIONS = 32
NUMBERS = {
    "bool": "|b1",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_CRC = "crc32c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Of format 3: several chunks in one file, with an index of where each begins and how long it is.

    Attributes:
        grid: Of the files, in steps of the array; a multiple of the chunks in each dimension.
        at_end: Whether the index stands behind the chunks or before them.
        sealed: Whether the index has a CRC-32C.
    """

    grid: tuple[int, ...]
    at_end: bool = True
    sealed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMetadata:
    """One array, whose chunks may cut every dimension.

    Attributes:
        dtype: Of one element, as it is stored.
        shape: Rows first.
        chunks: Of the same length.
        codecs: What chunks went through when they were written, each of bytes to bytes, in that order.
        fill: The element that stands where a chunk is missing.
        axes: The order of the dimensions in a stored chunk.
        key: `c` before the numbers of a chunk (format 3), or nothing.
        separator: Between the parts of a chunk's name.
        shards: How chunks share files; None: each is one.
        text: As it was read.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: tuple[Mapping[str, Any], ...]
    fill: Any
    axes: tuple[int, ...]
    key: str = ""
    separator: str = "."
    shards: Shards | None = None
    text: str = ""

    @property
    def grid(self) -> tuple[int, ...]:
        """[dimensions] how many chunks there are along each."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return prod(self.grid)

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
        return not self.codecs

    @property
    def in_order(self) -> bool:
        """Whether the elements of a stored chunk lie as numpy's do."""
        return self.axes == tuple(range(len(self.axes)))

    def name(self, numbers: Sequence[int], /) -> str:
        """The name of a chunk's file, by its number along each dimension."""
        return self.separator.join([*([self.key] if self.key else []), *map(str, numbers)])


def parse_array(text: bytes, /, *, location: str) -> GridMetadata:
    """Read the text of a `.zarray`, or of the `zarr.json` of an array.

    Raises:
        InvalidMetadataError: It is neither, or needs codecs, dtypes or grids that are not read; the message says which.
    """
    try:
        value = json.loads(text)
        parsed = _parsed(value)
        _check(parsed)
        refuse_chains(parsed["codecs"])
        fields = {name: parsed[name] for name in parsed if name != "fill_value"}
        dtype = fields["dtype"]
        fill = np.zeros((), dtype)[()] if parsed["fill_value"] is None else _filling(parsed["fill_value"], dtype)
        return GridMetadata(**fields, fill=fill, text=text.decode())
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        why = str(error) if type(error) is ValueError else repr(error)
        raise InvalidMetadataError(f"{location} is no array that can be read: {why:.300}.", path=location) from error


def _parsed(value: Any) -> dict[str, Any]:
    form = value["zarr_format"]
    if form not in {2, 3}:
        raise ValueError(f"expected zarr format 2 or 3, found {form!r}")
    return _second(value) if form == 2 else _third(value)


def _check(parsed: Mapping[str, Any]) -> None:
    shape, chunks, dtype = parsed["shape"], parsed["chunks"], parsed["dtype"]
    outer = parsed["shards"].grid if parsed.get("shards") else chunks
    for sizes in (shape, chunks, outer):
        if not all(type(size) is int and 0 <= size < _MOST for size in sizes):
            raise ValueError(f"the shape {list(shape)} and chunks {list(sizes)} are no numbers of elements")
    if not len(shape) == len(chunks) == len(outer) <= _MOST_DIMENSIONS or min(chunks, default=1) < 1:
        raise ValueError(f"the shape {list(shape)} and chunks {list(chunks)} do not fit each other")
    if any(whole % part for whole, part in zip(outer, chunks, strict=True)) or min(outer, default=1) < 1:
        raise ValueError(f"shards {list(outer)} are no multiples of their chunks {list(chunks)}")
    if any(prod(sizes) * dtype.itemsize >= _MOST for sizes in (shape, chunks, outer)) or dtype.itemsize < 1:
        raise ValueError(f"the shape {list(shape)} of {dtype} is larger than anything")


def _second(value: Mapping[str, Any]) -> dict[str, Any]:
    if value.get("filters"):
        raise ValueError(f"filters are not read; found {[one.get('id') for one in value['filters']]}")
    shape, chunks = tuple(value["shape"]), tuple(value["chunks"])
    if value["order"] not in {"C", "F"}:
        raise ValueError(f"expected order 'C' or 'F', found {value['order']!r}")
    axes = tuple(range(len(shape)))
    separator = value.get("dimension_separator", ".")
    if separator not in {".", "/"}:
        raise ValueError(f"expected '.' or '/' between the numbers of a chunk's name, found {separator!r}")
    return {
        "dtype": _simple(dtype_of(value["dtype"])),
        "shape": shape,
        "chunks": chunks,
        "codecs": () if value["compressor"] is None else (_codec(value["compressor"]["id"], value["compressor"]),),
        "fill_value": value["fill_value"],
        "axes": axes if value["order"] == "C" else axes[::-1],
        "separator": separator,
    }


def _third(value: Mapping[str, Any]) -> dict[str, Any]:
    if value.get("node_type") != "array":
        raise ValueError(f"expected an array, found the node type {value.get('node_type')!r}")
    if value.get("storage_transformers"):
        raise ValueError("storage transformers are not read")
    shape = tuple(value["shape"])
    grid, naming = value["chunk_grid"], value["chunk_key_encoding"]
    if grid["name"] != "regular" or naming["name"] not in {"default", "v2"}:
        raise ValueError(f"expected a regular chunk grid with usual names, found {grid['name']!r}, {naming['name']!r}")
    outer = tuple(grid["configuration"]["chunk_shape"])
    usual = "/" if naming["name"] == "default" else "."
    separator = (naming.get("configuration") or {}).get("separator", usual)
    if separator not in {".", "/"}:
        raise ValueError(f"expected '.' or '/' between the numbers of a chunk's name, found {separator!r}")
    codecs, chunks, shards = value["codecs"], outer, None
    if codecs and codecs[0]["name"] == "sharding_indexed":
        if len(codecs) > 1:
            raise ValueError("codecs around shards are not read")
        inner = codecs[0]["configuration"]
        chunks, codecs = tuple(inner["chunk_shape"]), inner["codecs"]
        shards = Shards(grid=outer, at_end=_at_end(inner), sealed=_sealed(inner))
    dtype = _named(value["data_type"])
    axes, dtype, chain = _chain(codecs, dtype, len(shape))
    return {
        "dtype": dtype,
        "shape": shape,
        "chunks": chunks,
        "codecs": chain,
        "fill_value": value["fill_value"],
        "axes": axes,
        "key": "c" if naming["name"] == "default" else "",
        "separator": separator,
        "shards": shards,
    }


def _at_end(inner: Mapping[str, Any]) -> bool:
    place = inner.get("index_location", "end")
    if place not in {"start", "end"}:
        raise ValueError(f"expected the index of a shard at its start or end, found {place!r}")
    return bool(place == "end")


def _sealed(inner: Mapping[str, Any]) -> bool:
    names = [one["name"] for one in inner.get("index_codecs", [{"name": "bytes"}, {"name": _CRC}])]
    little = [one for one in inner.get("index_codecs", ()) if one["name"] == "bytes"]
    if names[:1] != ["bytes"] or names[1:] not in ([], [_CRC]) or any(_is_big(one) for one in little):
        raise ValueError(f"expected the index of a shard as plain bytes, found the codecs {names}")
    return len(names) > 1


def _is_big(codec: Mapping[str, Any]) -> bool:
    return (codec.get("configuration") or {}).get("endian") == "big"


def _chain(
    codecs: Sequence[Mapping[str, Any]], dtype: np.dtype[Any], dimensions: int
) -> tuple[tuple[int, ...], np.dtype[Any], tuple[Mapping[str, Any], ...]]:
    """The order of dimensions, the dtype as it is stored, and the codecs of bytes."""
    axes = tuple(range(dimensions))
    chain: list[Mapping[str, Any]] = []
    has_bytes = False
    for codec in codecs:
        name, settings = codec["name"], codec.get("configuration") or {}
        if name == "transpose" and not has_bytes:
            order = tuple(settings["order"])
            if sorted(order) != list(range(dimensions)):
                raise ValueError(f"a transposition of {dimensions} dimensions is no {settings['order']!r}")
            axes = tuple(axes[axis] for axis in order)
        elif name == "bytes" and not has_bytes:
            has_bytes = True
            dtype = dtype.newbyteorder(">") if settings.get("endian") == "big" else dtype
        elif has_bytes:
            chain.append(_codec(name.removeprefix("numcodecs."), settings))
        else:
            raise ValueError(f"the codec {name!r} is not read")
    if not has_bytes:
        raise ValueError("no codec makes bytes of a chunk")
    return axes, dtype, tuple(chain)


def _codec(name: Any, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    if name not in CODECS and name not in PICTURES and name != _CRC:
        raise ValueError(f"the codec {name!r} is not read; these are: {', '.join(sorted({*CODECS, *PICTURES}))}")
    return {**settings, "id": name}


def _named(described: Any) -> np.dtype[Any]:
    if isinstance(described, str) and described in NUMBERS:
        return np.dtype(NUMBERS[described])
    if isinstance(described, dict):
        length = (described.get("configuration") or {}).get("length_bytes")
        kinds = {"fixed_length_utf32": ("<U", 4), "null_terminated_bytes": ("|S", 1)}
        kind = kinds.get(described.get("name", ""))
        if kind is not None and type(length) is int and 0 < length < 1 << 20 and length % kind[1] == 0:
            return np.dtype(f"{kind[0]}{length // kind[1]}")
    raise ValueError(f"the data type {described!r:.80} is not read")


def _simple(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "biufSU":
        raise ValueError(f"the dtype {dtype} is not read: expected numbers, flags or texts of a fixed size")
    return dtype


def _filling(value: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "S" and isinstance(value, str):
        return np.frombuffer(base64.standard_b64decode(value).ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "f" and isinstance(value, str):
        if value.startswith("0x"):
            bits = np.array(int(value, 16), f">u{dtype.itemsize}")
            return bits.view(dtype.newbyteorder(">"))[()]
        value = _SPECIAL[value]
    with np.errstate(over="ignore"):
        return np.array(value).astype(dtype)[()]
