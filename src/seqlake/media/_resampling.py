"""Samples at another rate, by FFmpeg's swresample: any span of a sound is what the whole of it gives there.

A span is cut out so that the filter sees all that it reaches, and begins where the filter's phase is the same as in
the whole sound.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

SLOWEST = 1_000
"""Hz, the least rate that may be asked for."""

FASTEST = 768_000
"""Hz, the greatest; a filter from one to the other takes about 100 MB."""

_REACH = 64  # samples of the slower of both rates; swresample's filter has 16 on each side
_BLOCK = 1 << 14
_LAYOUTS = {1: "mono", 2: "stereo"}


def resampled_count(count: int, before: int, after: int, /) -> int:
    """How many samples of the second rate begin within `count` of the first.

    Example:
        >>> resampled_count(441, 44_100, 16_000)
        160
    """
    return -(-count * after // before)


def resampled(
    read: Callable[[int, int], NDArray[np.float32]],
    count: int,
    rates: tuple[int, int],
    start: int,
    stop: int,
) -> NDArray[np.float32]:
    """A span of a sound at another rate.

    Args:
        read: Gives samples [first, last) of the sound, float32 [n, channels].
        count: How many samples it has.
        rates: Hz that it has, and Hz that are wanted.
        start: First sample of the span, at the rate that is wanted.
        stop: One past its last.

    Returns:
        float32 [stop - start, channels]: what `ffmpeg -ar` makes of the whole sound, at these places.
    """
    before, after = rates
    if before == after:
        return read(start, stop)
    period = before // gcd(before, after)  # the filter's phase is the same again
    reach = _REACH * (1 + -(-before // after))
    first = max(0, start * before // after - reach) // period * period
    last = min(count, -(-stop * before // after) + reach)
    whole = read(first, last)
    out = np.concatenate(
        [_filtered(whole[:, at : at + 2], before, after) for at in range(0, whole.shape[1], 2)], axis=1
    )
    begin = start - first * after // before
    return out[begin : begin + stop - start]


def _filtered(samples: NDArray[np.float32], before: int, after: int) -> NDArray[np.float32]:
    """One or two channels, from their beginning to their end."""
    import av

    channels = samples.shape[1]
    layout = _LAYOUTS[channels]
    resampler = av.AudioResampler(format="flt", layout=layout, rate=after)
    parts: list[NDArray[Any]] = []
    for at in range(0, len(samples), _BLOCK):
        block = np.ascontiguousarray(samples[at : at + _BLOCK]).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(block, format="flt", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = before, at, Fraction(1, before)
        parts += [one.to_ndarray().reshape(-1, channels) for one in resampler.resample(frame)]
    parts += [one.to_ndarray().reshape(-1, channels) for one in resampler.resample(None)]
    return np.concatenate(parts) if parts else np.zeros((0, channels), np.float32)
