"""Exact order statistics of more numbers than memory holds, by histograms that are refined where it matters.

Every number has a key: an unsigned integer of its own width that sorts as the number does. One pass counts the upper
16 bits of all keys, which says in which of 65 536 bins each wanted rank lies; the next pass looks only at numbers in
these bins, and keeps them where they are few, else counts their next 16 bits. Two passes do for 32 bits, however the
numbers are distributed; the first needs to know nothing, so it may be the one that counts them.
"""

from __future__ import annotations

import sys
from copy import copy
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Sparse = tuple[NDArray[Any], NDArray[Any]]  # numbers of bins, and what is in each
    Seen = tuple[dict[tuple[int, int], list[NDArray[Any]]], dict[tuple[int, int], Sparse]]

_DIGIT = 16  # bits that one pass decides
_KEPT = 1 << 22  # numbers that are kept and sorted instead of counted
HISTOGRAMS = 256  # of 512 KiB each, at a time
UNCOUNTED = 1 << 40
"""In place of counts that nobody knows yet: so many that the first pass counts bins, whatever there is."""

_TURNED = 1024  # steps that are turned into columns at a time, within the cache
_PARTS = 8  # in which even few numbers are counted
_UPPER = _DIGIT // 8  # bytes of a number that the first pass looks at


def rank_of(quantile: float, count: int, /) -> int:
    """The place among `count` sorted numbers, from 0, as `numpy.quantile(..., method="inverted_cdf")` has it."""
    return min(max(0, int(np.ceil(count * quantile - 1))), count - 1)


def histograms(counts: NDArray[np.int64], quantiles: int, /) -> int:
    """The memory that `QuantileSearch` takes, in histograms of 512 KiB, for [D] counts and so many quantiles."""
    numbers = int(counts.sum())
    if numbers <= _KEPT:
        return -(-numbers >> _DIGIT)
    return min(HISTOGRAMS, len(counts) * quantiles)


class QuantileSearch:
    """Finds the numbers of given ranks in D dimensions; numbers that are not finite have no rank.

    Args:
        dtype: Type of the numbers: floats or integers of any width.
        counts: [D] how many finite numbers each dimension has; `UNCOUNTED` until `know` says it.
        quantiles: From 0 to 1.

    Example:
        ```python
        ranks = Ranks(values.dtype, np.array([len(values)]), [0.5])
        while ranks.wanted:
            ranks.add(values)        # all of them, in any number of parts, from any thread
            ranks.end_pass()
        ranks.values                 # [quantiles, D]
        ```
    """

    def __init__(self, dtype: np.dtype[Any], counts: NDArray[np.int64], quantiles: Sequence[float], /) -> None:
        self.dtype = dtype
        self._quantiles = tuple(quantiles)
        self._counts = counts
        self._keys: NDArray[Any] = np.zeros((len(self._quantiles), len(counts)), _unsigned(dtype))
        self._left: NDArray[np.int64] = np.zeros(self._keys.shape, np.int64)  # ranks within the bins found so far
        self._lock = Lock()
        # Of the pass under way: its dimensions, the bins looked at and the quantiles that lie there, what was seen.
        self._next = 0
        self._dims = range(0)
        self._level = 0
        self._keeping = True
        self._targets: dict[int, dict[int, list[int]]] = {}
        self._kept: dict[tuple[int, int], list[NDArray[Any]]] = {}
        self._counted: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._begin_group()

    def __getstate__(self) -> dict[str, Any]:
        """Without what it has seen, which another process has no use for: that looks with a `blank` one."""
        made_anew = {"_lock", "_kept", "_counted", "_between"}
        return {name: value for name, value in vars(self).items() if name not in made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=Lock())
        self._begin_seeing()

    def blank(self) -> QuantileSearch:
        """One of the same pass that has seen no numbers, for another process; `absorb` takes in what it sees there."""
        other = copy(self)
        other._begin_seeing()  # noqa: SLF001 - of its own class
        return other

    @property
    def seen(self) -> Seen:
        """What it has seen in this pass, by dimension and bin: numbers that are kept, and histograms.

        Of a histogram only the bins that are not empty: whole ones would take longer on their way between processes
        than the count.
        """
        return self._kept, {place: _sparse(counts) for place, counts in self._counted.items()}

    def absorb(self, seen: Seen, /) -> None:
        """What another one has seen in this pass counts as seen here."""
        kept, histograms_of = seen
        for place, parts in kept.items():
            self._kept[place] += parts
        for place, (bins, counts) in histograms_of.items():
            self._counted[place][bins] += counts

    def know(self, counts: NDArray[np.int64], /) -> None:
        """How many finite numbers each of [D] dimensions has, before the first pass ends, which went through all."""
        self._counts = counts
        self._left = self._ranks()
        for dim in self._dims:
            if not counts[dim]:
                self._targets[dim] = {}
                del self._counted[dim, 0]

    def parts(self, steps: int, /) -> int:
        """In how many parts others count at most: with fewer numbers for each bin, histograms outweigh them.

        Args:
            steps: How many numbers a dimension has at most, as long as nobody has counted them.
        """
        return max(_PARTS, min(steps, int(self._counts.max(initial=0))) >> (_DIGIT + 3))

    @property
    def dims(self) -> int:
        """D, how many numbers a step has."""
        return len(self._counts)

    @property
    def wanted(self) -> bool:
        """Whether another pass over all numbers is needed."""
        return bool(self._dims)

    @property
    def values(self) -> NDArray[Any]:
        """[quantiles, D] the numbers found; meaningless where a dimension has none."""
        values = _from_keys(self._keys, self.dtype)
        values += self.dtype.type(0)  # minus zero is zero
        return values

    def add(self, *parts: NDArray[Any]) -> None:
        """Look at [n, D] numbers, in parts, in this pass."""
        if self._level and self._keeping:
            self._keep_between(parts)
            return
        keys = self._columns(parts)
        digits = np.empty(keys.shape[1], np.intp)
        for dim, column in zip(self._dims, keys, strict=True):
            if self._keeping:
                self._keep(dim, column)
            elif self._level == 0:
                self._count(dim, 0, column, digits)
            else:
                upper = column >> column.dtype.type(self._bits - self._level * _DIGIT)
                for prefix in self._targets[dim]:
                    self._count(dim, prefix, column[upper == prefix], digits)

    def _rows(self, parts: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """[steps, dimensions of this pass] of these numbers, as many steps as stay in the cache."""
        for part in parts:
            for start in range(0, len(part), _TURNED):
                rows = part[start : start + _TURNED]
                rows = rows if rows.flags.aligned else rows.copy()  # steps in a file may begin at any byte
                yield rows[:, self._dims.start : self._dims.stop]

    def _columns(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """[dimensions of this pass, n] keys, turned in the cache; of the upper bits where only these are counted."""
        counted = self._level == 0 and not self._keeping and self.dtype.itemsize > _UPPER
        dtype = np.dtype(f"{self.dtype.kind}{_UPPER}") if counted else self.dtype
        columns = np.empty((len(self._dims), sum(map(len, parts))), _unsigned(dtype))
        at = 0
        for rows in self._rows(parts):
            some = np.ascontiguousarray((_upper(rows, dtype) if counted else rows).T)
            columns[:, at : at + some.shape[1]] = _to_keys(some)
            at += some.shape[1]
        return columns

    def _keep_between(self, parts: Sequence[NDArray[Any]]) -> None:
        """Keep the numbers of some bins. Nearly all lie in others: these are told apart as they lie, without keys."""
        inside: list[tuple[NDArray[Any], NDArray[Any]]] = []
        bounds = [np.tile(one, (_TURNED, 1)) for pair in zip(*self._between, strict=True) for one in pair]
        for rows in self._rows(parts):  # all of one shape, so that comparing is vectorised over all of them
            near = np.zeros(rows.shape, np.bool_)
            with np.errstate(invalid="ignore"):
                for first, last in zip(bounds[::2], bounds[1::2], strict=True):
                    near |= (rows >= first[: len(rows)]) & (rows <= last[: len(rows)])
            inside.append((np.flatnonzero(near) % rows.shape[1], rows[near]))
        if not inside:
            return
        dims = np.concatenate([dims for dims, _ in inside])
        keys = _to_keys(np.concatenate([numbers for _, numbers in inside]))
        order = np.argsort(dims, kind="stable")
        dims, keys = dims[order], keys[order]
        upper = keys >> keys.dtype.type(self._bits - self._level * _DIGIT)
        edges = np.searchsorted(dims, np.arange(len(self._dims) + 1)).tolist()
        for dim, (start, stop) in zip(self._dims, pairwise(edges), strict=True):
            for prefix in self._targets[dim] if stop > start else ():
                members = keys[start:stop][upper[start:stop] == prefix]  # minus zero is zero only as a number
                with self._lock:
                    self._kept[dim, prefix].append(members)

    def _keep(self, dim: int, keys: NDArray[Any]) -> None:
        """All numbers of a dimension."""
        if not self._targets[dim]:
            return
        keys = keys[np.isfinite(_from_keys(keys, self.dtype))] if self.dtype.kind == "f" else keys.copy()
        with self._lock:
            self._kept[dim, 0].append(keys)

    def _count(self, dim: int, prefix: int, keys: NDArray[Any], digits: NDArray[np.intp]) -> None:
        """Count the bits that come next, of keys that begin with `prefix`; `digits` is room for them."""
        if not len(keys) or prefix not in self._targets[dim]:
            return
        if self._level:
            keys = keys >> keys.dtype.type(max(0, self._bits - (self._level + 1) * _DIGIT))
            keys &= keys.dtype.type((1 << _DIGIT) - 1)
        first, last, digits = int(keys.min()), int(keys.max()), digits[: len(keys)]
        np.subtract(keys, first, out=digits, dtype=np.intp)
        counted = np.bincount(digits)
        with self._lock:
            self._counted[dim, prefix][first : last + 1] += counted

    def end_pass(self) -> None:
        """All numbers have been looked at: decide what the next pass is for."""
        if self._keeping:
            for (dim, prefix), parts in self._kept.items():
                keys = np.sort(np.concatenate(parts))
                for number in self._targets[dim][prefix]:
                    self._keys[number, dim] = keys[self._left[number, dim]]
            self._begin_group()
            return
        targets: dict[int, dict[int, list[int]]] = {dim: {} for dim in self._dims}
        sizes: dict[tuple[int, int], int] = {}
        for (dim, prefix), counted in self._counted.items():
            if self._level == 0 and self.dtype.kind == "f":
                counted[_not_finite(self.dtype)] = 0
            up_to = np.cumsum(counted)
            for number in self._targets[dim][prefix]:
                digit = int(np.searchsorted(up_to, self._left[number, dim], side="right"))
                self._left[number, dim] -= int(up_to[digit]) - int(counted[digit])
                longer = (prefix << min(_DIGIT, self._bits)) | digit
                targets[dim].setdefault(longer, []).append(number)
                sizes[dim, longer] = int(counted[digit])
        self._level += 1
        self._targets = targets
        if self._level * _DIGIT >= self._bits:
            for dim, by_prefix in targets.items():
                for prefix, numbers in by_prefix.items():
                    self._keys[numbers, dim] = prefix
            self._begin_group()
        else:
            self._begin_pass(sum(sizes.values()))

    def _begin_group(self) -> None:
        """Turn to the next dimensions: so many that their histograms fit, without those that have no numbers."""
        while True:
            start = self._next
            stop = self._next = min(len(self._counts), start + max(1, HISTOGRAMS // max(1, len(self._quantiles))))
            self._dims = range(start, stop) if self._quantiles else range(0)
            if not self._dims or self._counts[start:stop].any():
                break
        everything = list(range(len(self._quantiles)))
        self._level = 0
        self._targets = {dim: {0: everything} if self._counts[dim] else {} for dim in self._dims}
        self._left = self._ranks()
        self._begin_pass(int(self._counts[self._dims.start : self._dims.stop].sum()))

    def _ranks(self) -> NDArray[np.int64]:
        """[quantiles, D] which of its sorted numbers each quantile is."""
        ranks = [[rank_of(q, int(count)) if count else 0 for count in self._counts] for q in self._quantiles]
        return np.array(ranks, np.int64).reshape(self._keys.shape)

    def _begin_pass(self, numbers: int) -> None:
        self._keeping = numbers <= _KEPT
        self._begin_seeing()

    def _begin_seeing(self) -> None:
        wanted = [(dim, prefix) for dim, by_prefix in self._targets.items() for prefix in by_prefix]
        self._kept = {place: [] for place in wanted}
        self._counted = {} if self._keeping else {place: np.zeros(self._bins, np.int64) for place in wanted}
        self._between = self._bounds()

    def _bounds(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """[bins, dimensions of this pass] each: the least and the greatest number of each bin that is looked at."""
        if not (self._level and self._keeping):
            return np.zeros((0, len(self._dims)), self.dtype), np.zeros((0, len(self._dims)), self.dtype)
        most = max(map(len, self._targets.values()), default=0)
        least = np.full((most, len(self._dims)), -1, np.int64).astype(_unsigned(self.dtype))
        greatest = np.zeros_like(least)  # no number lies between these two, where a dimension has fewer bins
        shift = self._bits - self._level * _DIGIT
        for column, dim in enumerate(self._dims):
            for place, prefix in enumerate(self._targets[dim]):
                least[place, column] = prefix << shift
                greatest[place, column] = (prefix << shift) | ((1 << shift) - 1)
        return _from_keys(least, self.dtype), _from_keys(greatest, self.dtype)

    @property
    def _bits(self) -> int:
        return 8 * self.dtype.itemsize

    @property
    def _bins(self) -> int:
        return 1 << min(_DIGIT, self._bits)


def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"u{dtype.itemsize}")


def _upper(rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The upper bits of numbers [n, D], as numbers of another width: they sort as the whole ones do."""
    parts = rows.dtype.itemsize // dtype.itemsize
    place = parts - 1 if sys.byteorder == "little" else 0
    return rows.view(dtype)[:, place::parts]


def _to_keys(values: NDArray[Any]) -> NDArray[Any]:
    """[n] unsigned integers that sort as the numbers do: floats are signed magnitudes, integers two's complements."""
    kind = _unsigned(values.dtype)
    keys: NDArray[Any] = values.view(kind)
    sign = kind.type(1 << (8 * kind.itemsize - 1))
    if values.dtype.kind == "i":
        keys = keys ^ sign
    elif values.dtype.kind == "f":
        negative = values.view(f"i{kind.itemsize}") >> (8 * kind.itemsize - 1)  # all bits, or none
        keys = keys ^ (negative.view(kind) | sign)
    return keys


def _from_keys(keys: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    sign = keys.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    if dtype.kind == "i":
        keys = keys ^ sign
    elif dtype.kind == "f":
        keys = np.where(keys & sign, keys ^ sign, ~keys)
    numbers: NDArray[Any] = keys.view(dtype)
    return numbers


def _not_finite(dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Which upper 16 bits of keys belong to infinities and NaN: those whose exponent is all ones."""
    exponent = {2: 5, 4: 8, 8: 11}[dtype.itemsize]
    ones = ((1 << exponent) - 1) << (15 - exponent)
    digits = np.arange(1 << _DIGIT)
    magnitude = np.where(digits >> 15, digits, ~digits) & 0x7FFF
    wrong: NDArray[np.bool_] = magnitude & ones == ones
    return wrong


def _sparse(counts: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The bins that are not empty and what is in them, in as few bytes as hold them."""
    bins = np.flatnonzero(counts)
    return bins.astype(np.min_scalar_type(len(counts))), counts[bins].astype(np.min_scalar_type(counts.max(initial=0)))
