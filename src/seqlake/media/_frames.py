"""Frames by number and by time, over a decoder that is opened when it is first needed."""

from __future__ import annotations

import os
from contextlib import contextmanager
from fractions import Fraction
from math import ulp
from threading import Lock
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from seqlake.files.references import missing
from seqlake.spec.alignment import rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from seqlake.protocols import Decoder, Ints

_LAST = 1 << 62
"""A tick after all others."""


class LazyDecoder:
    """One decoder, opened at first use, for one thread at a time; pickles as nothing, and a fork begins anew."""

    __slots__ = ("_decoder", "_lock", "_pid")

    def __init__(self) -> None:
        self._lock = Lock()
        self._decoder: Decoder | None = None
        self._pid = os.getpid()

    @contextmanager
    def use(self, opened: Callable[[], Decoder], /) -> Iterator[Decoder]:
        """The decoder, for as long as nobody else may use it."""
        if self._pid != os.getpid():
            LazyDecoder.__init__(self)  # a parent's thread may have held the lock
        with self._lock:
            try:
                if self._decoder is None:
                    self._decoder = opened()
                yield self._decoder
            except FileNotFoundError as error:  # removed since it was opened
                raise missing(error) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return (LazyDecoder, ())


class Frames:
    """What has frames: `[i]`, `[a:b]`, `[[3, 1, 2]]`, `.at(seconds=)`, `.pts`, `len`.

    May be used by several threads, one at a time; give each thread a view of its own to decode in parallel.
    """

    __slots__ = ()

    _held: LazyDecoder

    def _open(self) -> Decoder:
        raise NotImplementedError

    def __len__(self) -> int:
        with self._held.use(self._open) as decoder:
            return len(decoder)

    def __bool__(self) -> bool:
        return True  # a file is there whether or not it has frames

    @property
    def present(self) -> NDArray[np.bool_] | None:
        """[frames] False where a step has no image; None where all frames are there, as in a file."""
        return None

    def __getitem__(self, which: SupportsIndex | slice | Sequence[int] | NDArray[Any], /) -> NDArray[Any]:
        """Decode frames: one for a number, [N, ...] for a slice or a list of numbers."""
        if isinstance(which, slice):
            with self._held.use(self._open) as decoder:
                return decoder.read(np.arange(*which.indices(len(decoder)), dtype=np.int64))
        numbers = np.asarray(which)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise TypeError(f"Frames are chosen by number, slice or a list of numbers, found {which!r}.")
        if numbers.ndim == 0:
            one: NDArray[Any] = self.decode(numbers[None])[0]
            return one
        return self.decode(numbers)

    def decode(self, indices: ArrayLike, /, *, size: tuple[int, int] | None = None) -> NDArray[Any]:
        """Decode frames by number.

        Args:
            indices: [N] numbers in any order; negative ones count from the end.
            size: Height and width to scale to, in the same pass.

        Returns:
            Video and pictures uint8 [N, height, width, 3]; audio float32 [N, channels].

        Raises:
            IndexError: There is no such frame.
            CorruptFrameError: It is damaged.
            CorruptFileError: The file is.
        """
        with self._held.use(self._open) as decoder:
            numbers = np.array(indices, np.int64, ndmin=1)
            numbers[numbers < 0] += len(decoder)
            return decoder.read(numbers, size=size)

    def at(self, *, seconds: ArrayLike, size: tuple[int, int] | None = None) -> NDArray[Any]:
        """Decode the frames that are shown at some times: each the latest that is shown at or before.

        Args:
            seconds: [N] or one, after the first frame is shown; compared with the file's ticks as fractions, to
                within half a tick (1 ms at most), since files round the times of their frames to ticks.
            size: Height and width to scale to.

        Returns:
            [N, ...], or one frame for one time.

        Raises:
            IndexError: A time before the first frame.
            ValueError: Not a time.
        """
        times = np.asarray(seconds)
        numbers = self.numbers_at(times.reshape(-1).tolist() if times.dtype == object else times.reshape(-1))
        frames = self.decode(numbers, size=size)
        return frames if times.ndim else frames[0]

    def numbers_at(self, seconds: Sequence[Any] | NDArray[Any], /) -> Ints:
        """[N] the number of the latest frame shown at or before each time."""
        with self._held.use(self._open) as decoder:
            pts, base = decoder.pts, decoder.time_base
        slack = rounding(base)
        ticks = np.array([min((_exact(one) / base + slack) // 1, _LAST) for one in seconds], np.int64)
        if not len(pts) or (ticks < 0).any():
            raise IndexError(f"The first frame is shown at 0 seconds; found {min(map(float, seconds), default=0)}.")
        numbers: Ints = np.searchsorted(pts - pts[0], ticks, side="right").astype(np.int64) - 1
        return numbers

    @property
    def pts(self) -> Ints:
        """[frames] when each is shown, in ticks of `time_base`, strictly ascending, as the file says."""
        with self._held.use(self._open) as decoder:
            return decoder.pts

    @property
    def time_base(self) -> Fraction:
        """Seconds of one tick."""
        with self._held.use(self._open) as decoder:
            return decoder.time_base

    @property
    def seconds(self) -> NDArray[np.float64]:
        """[frames] when each is shown, counted from the first."""
        pts, base = self.pts, self.time_base
        seconds: NDArray[np.float64] = (pts - pts[:1]) * base.numerator / base.denominator
        return seconds


def room_for(out: NDArray[Any] | None, shape: tuple[int, ...], dtype: DTypeLike, /) -> NDArray[Any]:
    """Where a decoder writes: what it was given, else a new array.

    Raises:
        ValueError: What it was given has another shape or type.
    """
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(f"out: expected {np.dtype(dtype)} {list(shape)}, found {out.dtype} {list(out.shape)}.")
    return out


def nearest(pictures: NDArray[Any], size: tuple[int, int], /) -> NDArray[Any]:
    """Pictures in another height and width, each pixel one that was there: what lies under its centre.

    Args:
        pictures: [N, H, W, ...].
        size: Height and width.

    Example:
        >>> nearest(np.arange(4).reshape(1, 1, 4), (1, 2)).tolist()
        [[[1, 3]]]
    """
    rows, columns = (centres(*pair) for pair in zip(pictures.shape[1:3], size, strict=True))
    return pictures[:, rows[:, None], columns]


def centres(there: int, wanted: int, /) -> Ints:
    """[wanted] which of so many pixels lies under the centre of each new one."""
    return (2 * np.arange(wanted, dtype=np.int64) + 1) * there // (2 * wanted)


def _exact(seconds: Any) -> Fraction:
    if not isinstance(seconds, (int, Fraction)) and not np.isfinite(seconds):
        raise ValueError(f"Frames are asked for at times in seconds, found {seconds}.")
    if isinstance(seconds, (int, Fraction)):
        return Fraction(seconds)
    return Fraction(float(seconds)) + Fraction(ulp(seconds))  # a float may stand for a time that is later by so much
