"""From the values of a record to numpy: one feature of one episode."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.formats.rlds.example import Values
    from seqlake.formats.rlds.features import Feature


def steps_of(feature: Feature, values: Values, /) -> int:
    """The number of steps a step feature has, without decoding it.

    Raises:
        CorruptFileError: Its numbers do not make whole steps.
    """
    count = values.count()
    per_step = feature.size if feature.kind == "tensor" and feature.encoding == "none" else 1
    if count % per_step:
        raise CorruptFileError(f"{feature.path!r} has {count} numbers, which are not whole steps of {per_step}.")
    return count // per_step


def numbers(feature: Feature, values: Values, /) -> NDArray[Any]:
    """[n * size] the numbers of a tensor feature, in the dtype that `features.json` declares.

    tfds keeps every float as float32 and every integer as int64; the declared dtype is what tfds itself hands out.

    Raises:
        CorruptFileError: Values of another kind, outside the dtype, or not whole.
    """
    dtype = np.dtype(feature.dtype)
    if feature.encoding != "none":
        parts = [_decoded(feature, dtype, bytes(cell)) for cell in values.bytes()]
        return np.concatenate(parts) if parts else np.empty(0, dtype)
    if dtype.kind == "f":
        found: NDArray[Any] = values.floats()
    elif dtype == np.uint64:
        found = values.ints().view(np.uint64)  # stored by their bits, since records hold int64
    else:
        found = values.ints()
        limits = np.iinfo(dtype)
        if found.size and (found.min() < limits.min or found.max() > limits.max):
            raise CorruptFileError(f"{feature.path!r} is {dtype} but holds {found.min()} to {found.max()}.")
    if found.size % feature.size:
        raise CorruptFileError(f"{feature.path!r} has {found.size} numbers, not whole values of {feature.size}.")
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, as in tfds
        return found.astype(dtype, copy=False)


def _decoded(feature: Feature, dtype: np.dtype[Any], cell: bytes) -> NDArray[Any]:
    expected = feature.size * dtype.itemsize
    if feature.encoding == "zlib":
        try:
            # A few bytes can claim to be gigabytes: never more than the shape needs.
            cell = zlib.decompressobj().decompress(cell, expected + 1)
        except zlib.error as error:
            raise CorruptFileError(f"{feature.path!r} is not zlib: {error}.") from error
    if len(cell) != expected:
        raise CorruptFileError(
            f"{feature.path!r} has a value of {len(cell)} bytes; {dtype} {list(feature.shape)} has {expected}."
        )
    return np.frombuffer(cell, dtype.newbyteorder("<")).astype(dtype, copy=False)
