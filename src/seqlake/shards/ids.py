"""Sorted hashes of sequence ids with their row numbers: 12 bytes a row make ids findable and uniqueness checkable.

A hash that occurs twice is a hint only: the ids themselves decide.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_ROW = 12  # 8 bytes of hash, 4 of row number


def hash_ids(ids: pa.Array | pa.ChunkedArray, /) -> NDArray[np.uint64]:
    """[rows] BLAKE2b with an 8-byte digest of each id's UTF-8 bytes, read as little-endian.

    Args:
        ids: Strings without nulls.

    Example:
        >>> hash_ids(pa.array(["ep_001"])).dtype
        dtype('uint64')
    """
    digests = b"".join(blake2b(text.encode(), digest_size=8).digest() for text in ids.to_pylist())
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def pack(ids: pa.Array | pa.ChunkedArray | NDArray[np.uint64], /) -> bytes:
    """All hashes in ascending order, then their 32-bit row numbers; little-endian.

    Args:
        ids: Strings, or their hashes, in row order.
    """
    hashes = ids if isinstance(ids, np.ndarray) else hash_ids(ids)
    order = np.argsort(hashes, kind="stable")
    return hashes[order].astype("<u8").tobytes() + order.astype("<u4").tobytes()


def unpack(packed: bytes | memoryview, /) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The sorted hashes and the row of each, as views of the packed bytes.

    Raises:
        ValueError: The bytes are not whole rows.
    """
    rows, rest = divmod(len(packed), _ROW)
    if rest:
        raise ValueError(
            f"Expected {_ROW} bytes a row of packed ids, found {len(packed)} bytes; rebuild the index file."
        )
    hashes = np.frombuffer(packed, "<u8", rows)
    return hashes, np.frombuffer(packed, "<u4", rows, rows * 8)


def find(packed: bytes | memoryview, sequence_id: str, /) -> Ints:
    """Rows whose id has the same hash, in ascending order: none or one, and very rarely more.

    Example:
        >>> find(pack(pa.array(["a", "b"])), "b")
        array([1])
    """
    hashes, rows = unpack(packed)
    wanted = np.frombuffer(blake2b(sequence_id.encode(), digest_size=8).digest(), "<u8")[0]
    first, last = np.searchsorted(hashes, wanted, side="left"), np.searchsorted(hashes, wanted, side="right")
    return np.sort(rows[first:last].astype(np.int64))
