"""Writes arrays of zarr format 2, or of format 3, whose chunks may share files (the codec `sharding_indexed`)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np

from seqlake.formats._zarr.grid import NUMBERS
from seqlake.formats._zarr.metadata import ArrayMetadata, encode, encoder
from seqlake.formats._zarr.places import NODE, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from seqlake.protocols import Store

_THREADS = 4
_GROUP = b'{\n    "zarr_format": 2\n}'
_GROUP_3: Mapping[str, Any] = {"attributes": {}, "zarr_format": 3, "node_type": "group"}
_CORE = frozenset({"blosc", "gzip", "zstd"})
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_EMPTY = (1 << 64) - 1  # place and size of a chunk that a shard does not hold
_NAMES = {np.dtype(code): name for name, code in NUMBERS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrForm:
    """How a store is written.

    Attributes:
        version: 2 or 3.
        shard: Rows that share a file, made up to whole chunks (format 3); 0: each chunk is a file.
    """

    version: int = 2
    shard: int = 0

    @property
    def gate(self) -> str:
        """The file by which readers know the store: it is written last."""
        return ROOT if self.version == 2 else NODE

    def put_group(self, store: Store, folder: str, /) -> None:
        """Make a folder a group; `""` is the root, others end in `/`."""
        store.put(f"{folder}{self.gate}", _GROUP if self.version == 2 else _json(_GROUP_3))

    def put_array(self, store: Store, name: str, metadata: ArrayMetadata, pieces: Iterable[NDArray[Any]], /) -> None:
        """Write an array.

        Args:
            store: Of the root.
            name: The array, as in `data/action`.
            metadata: What it is.
            pieces: Its rows in pieces of one chunk each, the last one perhaps shorter.
        """
        several = self._several(metadata)

        def put(numbered: tuple[int, list[NDArray[Any]]]) -> None:
            number, held = numbered
            chunks = [encode(metadata, rows) for rows in held]
            store.put(f"{name}/{self._chunk(metadata, number)}", _shard(chunks, several) if several else chunks[0])

        files = enumerate(_by(iter(pieces), several or 1))
        with ThreadPoolExecutor(_THREADS) as pool:
            while waiting := list(islice(files, _THREADS)):
                list(pool.map(put, waiting))
        text = metadata.to_json().encode() if self.version == 2 else _json(self._described(metadata, several))
        store.put(f"{name}/{'.zarray' if self.version == 2 else NODE}", text)

    def _several(self, metadata: ArrayMetadata) -> int:
        """Chunks of a file; 0 where each is one."""
        return -(-self.shard // metadata.chunks[0]) if self.version == 3 else 0

    def _chunk(self, metadata: ArrayMetadata, number: int) -> str:
        numbers = [str(number), *("0" for _ in metadata.shape[1:])]
        return ".".join(numbers) if self.version == 2 else "/".join(["c", *numbers])

    def _described(self, metadata: ArrayMetadata, several: int) -> dict[str, Any]:
        """The `zarr.json` of an array."""
        wide = metadata.dtype.itemsize > 1
        plain: dict[str, Any] = {"name": "bytes", **({"configuration": {"endian": "little"}} if wide else {})}
        codecs = [plain, *_codecs(metadata)]
        outer = metadata.chunks
        if several:
            little = {"name": "bytes", "configuration": {"endian": "little"}}
            inner = {
                "chunk_shape": list(metadata.chunks),
                "codecs": codecs,
                "index_codecs": [little, {"name": "crc32c"}],
                "index_location": "end",
            }
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
            outer = (metadata.chunks[0] * several, *metadata.chunks[1:])
        return {
            "shape": list(metadata.shape),
            "data_type": _data_type(metadata.dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(outer)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": metadata.fill,
            "codecs": codecs,
            "attributes": {},
            "zarr_format": 3,
            "node_type": "array",
            "storage_transformers": [],
        }


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()


def _by(pieces: Iterator[NDArray[Any]], count: int) -> Iterator[list[NDArray[Any]]]:
    while held := list(islice(pieces, count)):
        yield held


def _data_type(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "U":  # as zarr 3 itself names numpy's texts
        return {"name": "fixed_length_utf32", "configuration": {"length_bytes": dtype.itemsize}}
    return _NAMES[dtype.newbyteorder("<")]


def _codecs(metadata: ArrayMetadata) -> list[dict[str, Any]]:
    """The codec of format 3 with the settings of one of format 2."""
    codec = encoder(metadata)
    if codec is None:
        return []
    settings = dict(codec.get_config())
    name = settings.pop("id")
    if name == "blosc":
        size, shuffle = metadata.dtype.itemsize, settings["shuffle"]
        shuffle = (2 if size == 1 else 1) if shuffle == -1 else shuffle
        settings |= {"shuffle": _SHUFFLES[shuffle], "typesize": size}
    elif name == "zstd":
        settings.setdefault("checksum", False)
    return [{"name": name if name in _CORE else f"numcodecs.{name}", "configuration": settings}]


def _shard(chunks: list[bytes], several: int) -> bytes:
    """Chunks one after another, then where each is: [chunks, 2] uint64 and its CRC-32C."""
    index = np.full((several, 2), _EMPTY, "<u8")
    at = 0
    for number, chunk in enumerate(chunks):
        index[number] = at, len(chunk)
        at += len(chunk)
    places = index.tobytes()
    return b"".join([*chunks, places, google_crc32c.value(places).to_bytes(4, "little")])
