"""Count, range, mean and squared deviations of numbers: found block by block and merged without losing digits.

A block is small enough to stay in the processor's cache while it is read several times: for its range, for its
deviations from a mean of a few of its steps, for the squares of these. Blocks are merged by the rule of Chan, Golub and
LeVeque.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_WIDTH = 1024  # numbers side by side: short steps are laid next to each other, so that additions are vectorised
_BLOCK = 1 << 19  # numbers of a block, as float64 four MiB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """What is known of some numbers, for each of D dimensions.

    Attributes:
        count: [D] finite numbers.
        mean: [D] their mean but for `rest`; 0 where there is none.
        rest: [D] what rounding took from `mean`: far from zero it matters when parts are merged.
        m2: [D] the sum of their squared deviations from it.
        min: [D] the smallest, in the numbers' own type; infinite or the type's largest where there is none.
        max: [D] the largest.
        nan: [D] how many more are NaN.
        inf: [D] how many more are infinite.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    rest: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[Any]
    max: NDArray[Any]
    nan: NDArray[np.int64]
    inf: NDArray[np.int64]


def none_yet(dim: int, dtype: np.dtype[Any], /) -> Moments:
    """The moments of no number."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return Moments(
        count=np.zeros(dim, np.int64),
        mean=np.zeros(dim),
        rest=np.zeros(dim),
        m2=np.zeros(dim),
        min=np.full(dim, np.inf if limits is None else limits.max, dtype),
        max=np.full(dim, -np.inf if limits is None else limits.min, dtype),
        nan=np.zeros(dim, np.int64),
        inf=np.zeros(dim, np.int64),
    )


def moments(*parts: NDArray[Any]) -> Moments:
    """The moments of [n, D] numbers in one or more parts of one type, read at about the speed of memory."""
    dim, dtype = parts[0].shape[1], parts[0].dtype
    count = sum(map(len, parts))
    if not count or not dim:
        return none_yet(dim, dtype)
    beside = max(1, _WIDTH // dim)
    rows = min(max(1, _BLOCK // (beside * dim)) * beside, count)
    held = np.empty((rows, dim), dtype)
    room = np.empty(held.size)
    with np.errstate(over="ignore", invalid="ignore"):
        return merged([_of_block(block, beside, room) for block in _blocks(parts, held, beside)])


def _blocks(parts: Sequence[NDArray[Any]], held: NDArray[Any], beside: int) -> Iterator[NDArray[Any]]:
    """The numbers in blocks like `held`, in place where that is possible: steps in a file may begin at any byte.

    What is left in the end comes in two blocks, the first with a multiple of `beside` steps.
    """
    rows, filled = len(held), 0
    for part in parts:
        at = 0
        while at < len(part):
            some = part[at : at + rows - filled]
            at += len(some)
            if len(some) == rows and some.flags.aligned and some.flags.c_contiguous:
                yield some
                continue
            held[filled : filled + len(some)] = some
            filled += len(some)
            if filled == rows:
                yield held
                filled = 0
    whole = filled - filled % beside
    yield from (block for block in (held[:whole], held[whole:filled]) if len(block))


def _of_block(block: NDArray[Any], beside: int, room: NDArray[np.float64]) -> Moments:
    """Of one block, of which `beside` steps are laid side by side if they divide it, in the room given."""
    count, dim = block.shape
    beside = 1 if count % beside else beside
    wide = block.reshape(count // beside, beside * dim)
    low = np.minimum.reduce(wide, axis=0).reshape(beside, dim).min(axis=0)
    high = np.maximum.reduce(wide, axis=0).reshape(beside, dim).max(axis=0)
    if block.dtype.kind == "f" and not (np.isfinite(low).all() and np.isfinite(high).all()):
        return _of_gaps(block)
    # These steps are so large a part of the block that their mean is only a few deviations off, whatever the numbers.
    mean = wide[0].reshape(beside, dim).mean(axis=0, dtype=np.float64)
    numbers = room[: block.size].reshape(wide.shape)
    np.copyto(numbers, wide)
    numbers -= np.tile(mean, beside)
    rest = _sum(numbers, dim) / count
    numbers *= numbers
    return Moments(
        count=np.full(dim, count, np.int64),
        mean=mean,
        rest=rest,
        m2=np.maximum(_sum(numbers, dim) - count * rest * rest, 0),
        min=low,
        max=high,
        nan=np.zeros(dim, np.int64),
        inf=np.zeros(dim, np.int64),
    )


def _sum(wide: NDArray[np.float64], dim: int) -> NDArray[np.float64]:
    total: NDArray[np.float64] = np.add.reduce(np.add.reduce(wide, axis=0).reshape(-1, dim), axis=0)
    return total


def _of_gaps(block: NDArray[Any]) -> Moments:
    """Of a block with numbers that are not finite, which count for nothing."""
    finite = np.isfinite(block)
    count = finite.sum(axis=0)
    some = np.maximum(count, 1)
    numbers = np.where(finite, block, 0).astype(np.float64)
    mean = numbers.sum(axis=0) / some
    numbers = np.where(finite, numbers - mean, 0)
    rest = numbers.sum(axis=0) / some
    nan = np.isnan(block).sum(axis=0)
    limit = block.dtype.type(np.inf)
    return Moments(
        count=count,
        mean=mean,
        rest=rest,
        m2=np.maximum((numbers * numbers).sum(axis=0) - count * rest * rest, 0),
        min=np.where(finite, block, limit).min(axis=0),
        max=np.where(finite, block, -limit).max(axis=0),
        nan=nan,
        inf=len(block) - count - nan,
    )


def merged(parts: Sequence[Moments], /) -> Moments:
    """The moments of all numbers of some parts of one type and width, at least one."""
    if len(parts) == 1:
        return parts[0]
    count = np.stack([part.count for part in parts])
    mean = np.stack([part.mean for part in parts])
    total = count.sum(axis=0)
    some = np.maximum(total, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = (count * mean).sum(axis=0) / some
        off = (mean - middle) + np.stack([part.rest for part in parts])
        rest = (count * off).sum(axis=0) / some
        m2 = np.stack([part.m2 for part in parts]).sum(axis=0) + (count * np.square(off - rest)).sum(axis=0)
    return Moments(
        count=total,
        mean=middle,
        rest=rest,
        m2=m2,
        min=np.stack([part.min for part in parts]).min(axis=0),
        max=np.stack([part.max for part in parts]).max(axis=0),
        nan=np.stack([part.nan for part in parts]).sum(axis=0),
        inf=np.stack([part.inf for part in parts]).sum(axis=0),
    )
