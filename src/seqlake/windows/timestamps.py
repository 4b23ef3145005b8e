"""Samples that carry their own times: which one stands at a given moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.windows.tracks import NANOSECONDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints


def nanoseconds(stamps: NDArray[Any]) -> Ints:
    """Time stamps as whole nanoseconds.

    Args:
        stamps: [T] whole numbers (nanoseconds), floating-point numbers (seconds), or numpy times.
    """
    if stamps.dtype.kind in "mM":
        return stamps.astype(f"{stamps.dtype.kind}8[ns]").astype(np.int64)
    if stamps.dtype.kind == "f":
        return np.rint(stamps.astype(np.float64) * NANOSECONDS).astype(np.int64)
    return stamps.astype(np.int64)


def samples_at(stamps: NDArray[Any] | None, times: Ints) -> Ints:
    """The latest sample at or before each time; -1 where there is none.

    Args:
        stamps: [T] sorted time stamps of one sequence; the first is its zero. None where the cell is null.
        times: Nanoseconds after the sequence's start, of any shape.
    """
    if stamps is None or not len(stamps):
        return np.full(times.shape, -1, dtype=np.int64)
    own = nanoseconds(stamps.reshape(-1))
    return np.searchsorted(own - own[0], times, side="right") - 1
