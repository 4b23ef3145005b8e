"""Which window comes when: a pure function of the dataset's window counts, the shuffle, the seed and the epoch.

Windows have a number in source order, shard after shard and row after row. The order gives window numbers for
*sample numbers* 0 .. N-1: it permutes the shards, cuts the axis that results into lanes, deals samples to the
lanes in turn, and inside a lane mixes with two overlapping block permutations. Every step is arithmetic, so any
sample of any epoch is found without making the ones before it. World size, batch size and machine do not occur.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

Words: TypeAlias = "NDArray[np.uint32]"
Key: TypeAlias = "NDArray[np.uint32] | np.uint32"
Size: TypeAlias = "NDArray[np.uint32] | np.uint32"

ROUNDS = 4
_MASK = 0xFFFFFFFF
_FIRST, _SECOND = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)
_STEP = 0x61C88647  # the key of round r is key + r * _STEP
_LEAST = 4  # values of a digit: four rounds over smaller ones would not mix
_HALF = 1 << 16


@dataclass(frozen=True, slots=True)
class Domain:
    """The numbers 0 .. m-1 as pairs of digits; m is one number, or one for each value.

    Attributes:
        m: Length of the domain, at most 2**62.
        high: Values of the high digit, near the root of m, so that hardly a pair stands for a number outside.
        low: Values of the low digit.
        most: The largest high and the largest low, or more.
    """

    m: Ints | int
    high: Size
    low: Size
    most: tuple[int, int]

    @classmethod
    def of(cls, m: Ints | int) -> Domain:
        """The domain of one length, or of each of some."""
        if isinstance(m, int):
            high = max(_LEAST, isqrt(max(m, 1) - 1) + 1)
            low = max(_LEAST, -(-m // high))
            return cls(m, np.uint32(high), np.uint32(low), (high, low))
        lengths = sorted(set(m.tolist()))
        each = [cls.of(length) for length in lengths]
        if len(each) == 1:
            return each[0]
        which = np.searchsorted(lengths, m)
        highs, lows = (np.array(sizes, dtype=np.uint32) for sizes in ([d.high for d in each], [d.low for d in each]))
        return cls(m, highs[which], lows[which], (int(highs.max()), int(lows.max())))

    def __getitem__(self, which: Ints) -> Domain:
        """The domains of some of the values."""
        if isinstance(self.m, int):
            return self
        assert isinstance(self.high, np.ndarray)
        assert isinstance(self.low, np.ndarray)
        return Domain(self.m[which], self.high[which], self.low[which], self.most)

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """Wide enough for the number that any pair stands for; half the width is more than twice as fast."""
        return np.uint32 if self.most[0] * self.most[1] <= _MASK else np.uint64


def mix(words: Words, key: Key) -> Words:
    """32 well-mixed bits of each word under a key."""
    mixed = words * _FIRST
    mixed += key
    mixed ^= mixed >> np.uint32(16)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint32(15)
    return mixed


def _round_key(key: Key, number: int) -> Key:
    if isinstance(key, np.ndarray):
        return key + np.uint32(number * _STEP & _MASK)
    return np.uint32((int(key) + number * _STEP) & _MASK)


def _below(words: Words, key: Key, size: Size, most: int) -> Words:
    """A number below `size`, none of them above `most`, for each word: the well-mixed upper bits of a hash."""
    mixed = words * _FIRST
    mixed += key
    mixed ^= mixed >> np.uint32(16)
    mixed *= _SECOND
    if most > _HALF:
        wide = ((mixed.astype(np.uint64) * size) >> np.uint64(32)).astype(np.uint32)
        if np.min(size) > _HALF:
            return wide
        narrow: Words = (mixed >> np.uint32(16)) * size >> np.uint32(16)
        return np.where(size > _HALF, wide, narrow)
    mixed >>= np.uint32(16)
    mixed *= size
    mixed >>= np.uint32(16)
    return mixed


def _rounds(values: NDArray[Any], domain: Domain, key: Key, *, backwards: bool) -> NDArray[Any]:
    """One pass of the rounds over all pairs of digits, or of their inverse."""
    sizes = domain.high, domain.low
    high = values // domain.low
    digits = [high.astype(np.uint32), (values - high * domain.low).astype(np.uint32)]
    for number in range(ROUNDS - 1, -1, -1) if backwards else range(ROUNDS):
        digit, size = number % 2, sizes[number % 2]
        offset = _below(digits[1 - digit], _round_key(key, number), size, domain.most[digit])
        # Addition modulo the digit's size: of the two candidates, the one that wrapped around is the larger.
        if backwards:
            digits[digit] -= offset
            digits[digit] = np.minimum(digits[digit], digits[digit] + size)
        else:
            digits[digit] += offset
            digits[digit] = np.minimum(digits[digit], digits[digit] - size)
    result: NDArray[Any] = digits[0].astype(values.dtype, copy=False)
    result *= domain.low
    result += digits[1]
    return result


def permute(values: Ints, domain: Domain, key: Key, *, backwards: bool = False) -> Ints:
    """A permutation of 0 .. m-1, chosen by the key, applied to each value.

    The rounds permute all pairs of digits, a few more than m; a value that lands at or above m is sent through them
    again until it does not, which keeps the map one to one.

    Args:
        values: [n], each in 0 .. m-1.
        domain: One, or one for each value.
        key: One, or one for each value.
        backwards: The inverse map.
    """
    if isinstance(domain.m, int) and domain.m <= 1:
        return values.copy()
    result = _rounds(values.astype(domain.dtype, copy=False), domain, key, backwards=backwards)
    outside = np.flatnonzero(result >= domain.m)
    while len(outside):
        keys = key[outside] if isinstance(key, np.ndarray) else key
        again = _rounds(result[outside], domain[outside], keys, backwards=backwards)
        result[outside] = again
        outside = outside[again >= domain[outside].m]
    permuted: Ints = result.astype(values.dtype, copy=False)
    return permuted


ORDER_VERSION = 1
"""Changes whenever any sample of any order would move; part of every saved loader state."""

_FEW_SHARDS = 192  # below this a global shuffle keeps at most 24 GiB of default shards in use
_FEW_ROWS = 1 << 20  # up to here it is known where each row ends
_GROUP = 32  # rows, beyond: so many are looked at for a window
_AT_ONCE = 1 << 16  # samples computed at a time: memory does not grow with what is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """How far windows travel, where the default is not wanted.

    Args:
        lanes: Parts of the dataset that are read side by side; every batch draws evenly from all. 0 is the default.
        block: Windows mixed with each other inside a lane. Two overlapping blocks are in use at a time. 0 is the
            default.
        visits: Neighbouring windows that stay together, nearly always of one sequence: what is decoded for one serves
            the others.

    Raises:
        ValueError: A number that is too small, or not whole.

    Example:
        >>> Shuffle(lanes=8, block=100_000)
        Shuffle(lanes=8, block=100000)
        >>> Shuffle(visits=8)
        Shuffle(visits=8)
    """

    lanes: int = 0
    block: int = 0
    visits: int = 1

    def __post_init__(self) -> None:
        for name, value, least in (("lanes", self.lanes, 0), ("block", self.block, 0), ("visits", self.visits, 1)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f"Shuffle {name}: expected a whole number from {least} on, found {value!r}.")

    def __repr__(self) -> str:
        asked = {"lanes": self.lanes, "block": self.block, "visits": self.visits if self.visits > 1 else 0}
        return f"Shuffle({', '.join(f'{name}={value}' for name, value in asked.items() if value)})"

    @classmethod
    def default(cls, *, shards: int, windows: int) -> Shuffle:
        """Lanes and block from the dataset alone, never from a budget, a world size or a machine.

        Below 192 shards the whole epoch is one block: a global shuffle.

        Example:
            >>> Shuffle.default(shards=8, windows=10_000)
            Shuffle(lanes=1, block=10000)
            >>> Shuffle.default(shards=1200, windows=3_000_000)
            Shuffle(lanes=64, block=10000)
        """
        if shards < _FEW_SHARDS:
            return cls(lanes=1, block=max(1, windows))
        return cls(lanes=min(64, shards // 12), block=max(1, -(-4 * windows // shards)))

    def filled(self, *, shards: int, windows: int) -> Shuffle:
        """With the defaults of a dataset where nothing was asked for; half a block holds whole visits.

        Example:
            >>> Shuffle(lanes=4).filled(shards=8, windows=10_000)
            Shuffle(lanes=4, block=10000)
        """
        default, half = Shuffle.default(shards=shards, windows=windows), 2 * self.visits
        block = self.block or default.block
        return replace(
            self,
            lanes=self.lanes or default.lanes,
            block=block if self.visits == 1 else -(-block // half) * half,
        )


def resolved(shuffle: bool | Shuffle, windows: Ints, /) -> Shuffle | None:  # noqa: FBT001 - as a loader takes it
    """Lanes and block of an axis, as a loader was asked for them; None in source order."""
    if not shuffle:
        return None
    asked = shuffle if isinstance(shuffle, Shuffle) else Shuffle()
    return asked.filled(shards=int((windows > 0).sum()), windows=int(windows.sum()))


class Finder:
    """Which interval holds each of many numbers: a binary search that begins near its end.

    Args:
        ends: [intervals] where each ends, ascending; the first begins at 0.
    """

    def __init__(self, ends: Ints, /) -> None:
        self._ends = ends
        total = int(ends[-1]) if len(ends) else 0
        # About as many buckets as intervals: most hold one border or none.
        self._shift = max(0, (total // (4 * len(ends) + 1)).bit_length())
        first = np.searchsorted(ends, np.arange((total >> self._shift) + 1) << self._shift, side="right")
        self._crowded = bool((np.diff(first, append=len(ends)) > 1).any())  # some bucket holds several borders
        self._first = first if len(ends) <= _HALF else first.astype(np.uint32)  # of many, half the memory

    def __call__(self, numbers: Ints) -> Ints:
        """[n] numbers, each below the last end -> [n] intervals."""
        intervals: Ints = self._first[numbers >> self._shift].astype(np.int64, copy=False)
        behind = self._ends[intervals] <= numbers
        intervals += behind
        if self._crowded:
            left = np.flatnonzero(self._ends[intervals] <= numbers)
            if len(left):
                intervals[left] = np.searchsorted(self._ends, numbers[left], side="right")
        return intervals


@dataclass(frozen=True, kw_only=True, eq=False)
class Axis:
    """All windows in source order.

    Of many rows only the windows of each are kept, in 4 bytes, and where groups of rows end: a rank of a large
    dataset has ten times the rows that it has windows in a batch.

    Attributes:
        rows: How many there are.
        grouped: [groups, rows of a group] windows of each row; 0 behind the last.
        shard_ends: [shards] number of windows up to and including each shard.
    """

    rows: int
    grouped: Ints
    shard_ends: Ints

    @classmethod
    def of(cls, windows: Ints, *, shard_rows: Ints) -> Axis:
        """An axis from the number of windows of each row, and of rows of each shard."""
        group = 1 if len(windows) <= _FEW_ROWS else _GROUP
        kind = np.uint32 if group > 1 and int(windows.max()) <= _MASK else np.int64
        grouped = np.zeros((-(-len(windows) // group), group), kind)
        grouped.reshape(-1)[: len(windows)] = windows
        filled = np.flatnonzero(shard_rows)
        of_shards = np.zeros(len(shard_rows), np.int64)
        if len(filled):
            of_shards[filled] = np.add.reduceat(windows, (np.cumsum(shard_rows) - shard_rows)[filled], dtype=np.int64)
        return cls(rows=len(windows), grouped=grouped, shard_ends=np.cumsum(of_shards))

    def __len__(self) -> int:
        return int(self.shard_ends[-1]) if len(self.shard_ends) else 0

    @property
    def shard_windows(self) -> Ints:
        """[shards] windows of each shard."""
        return np.diff(self.shard_ends, prepend=0)

    @property
    def row_windows(self) -> Ints:
        """[rows] windows of each row; a view."""
        return self.grouped.reshape(-1)[: self.rows]

    def spread(self) -> tuple[Ints, Ints]:
        """Which numbers of windows rows have, and how many rows have each."""
        counts: dict[int, int] = {}
        for at in range(0, self.rows, _FEW_ROWS):
            for size, rows in zip(*np.unique(self.row_windows[at : at + _FEW_ROWS], return_counts=True), strict=True):
                counts[int(size)] = counts.get(int(size), 0) + int(rows)
        return np.array(list(counts), np.int64), np.array(list(counts.values()), np.int64)

    @cached_property
    def _groups(self) -> Finder:
        return Finder(self._group_ends)

    @cached_property
    def _group_ends(self) -> Ints:
        return np.cumsum(self.grouped.sum(axis=1, dtype=np.int64))

    @cached_property
    def _group_starts(self) -> Ints:
        return np.concatenate([np.zeros(1, np.int64), self._group_ends[:-1]])

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] window numbers -> the row of each, and which of the row's windows it is."""
        groups = self._groups(numbers)
        places = numbers - self._group_starts[groups]
        width = self.grouped.shape[1]
        if width == 1:
            return groups, places
        rows = groups * width
        for at in range(0, len(numbers), _AT_ONCE // width):
            part = slice(at, at + _AT_ONCE // width)
            ends = np.cumsum(self.grouped[groups[part]], axis=1, dtype=np.int64)
            which = (ends <= places[part, None]).sum(axis=1)
            rows[part] += which
            places[part] -= np.where(which > 0, ends[np.arange(len(which)), which - 1], 0)
        return rows, places

    def before(self, rows: Ints) -> Ints:
        """[n] rows -> how many windows come before the first of each."""
        group, inside = np.divmod(rows, self.grouped.shape[1])
        ahead = np.arange(self.grouped.shape[1]) < inside[:, None]
        within: Ints = np.where(ahead, self.grouped[group], 0).sum(axis=1, dtype=np.int64)
        return self._group_starts[group] + within


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """The order of one epoch.

    Args:
        shard_windows: [shards] windows of each shard, in source order.
        shuffle: Lanes and block; None is source order.
        seed: Any whole number; neighbouring seeds share nothing.
        epoch: From 0.

    Example:
        >>> order = Order(shard_windows=np.array([2, 3]), shuffle=Shuffle(lanes=1, block=5), seed=0, epoch=0)
        >>> sorted(order.windows(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """

    shard_windows: Ints
    shuffle: Shuffle | None
    seed: int
    epoch: int

    def __len__(self) -> int:
        return self._total

    @cached_property
    def _total(self) -> int:
        return int(self.shard_windows.sum())

    @cached_property
    def _words(self) -> list[int]:
        # A hash, not seed + epoch: neighbouring seeds would share epochs.
        text = f"seqlake order {ORDER_VERSION} seed {self.seed} epoch {self.epoch}"
        digest = hashlib.blake2b(text.encode(), digest_size=32).digest()
        words: list[int] = np.frombuffer(digest, dtype="<u4").tolist()
        return words

    @cached_property
    def _shards(self) -> Ints:
        """Shard numbers in this epoch's order; shards without windows take no part."""
        shards = np.flatnonzero(self.shard_windows)
        numbers = np.arange(len(shards), dtype=np.uint32)
        high = mix(numbers, np.uint32(self._words[0])).astype(np.uint64) << np.uint64(32)
        rank = high | mix(numbers, np.uint32(self._words[1]))
        return shards[np.argsort(rank, kind="stable")]

    @cached_property
    def _sources(self) -> Ints:
        """Where each of `_shards` begins among the window numbers."""
        return (np.cumsum(self.shard_windows) - self.shard_windows)[self._shards]

    @cached_property
    def _moved(self) -> Ints:
        """How far each of `_shards` lies among the window numbers from where it lies on this epoch's axis."""
        sizes = self.shard_windows[self._shards]
        return self._sources - (np.cumsum(sizes) - sizes)

    @cached_property
    def _finder(self) -> Finder:
        return Finder(np.cumsum(self.shard_windows[self._shards]))

    def windows(self, samples: Ints) -> Ints:
        """[n] sample numbers, each in 0 .. N-1 -> [n] window numbers in source order."""
        return self._apply(samples, self._window)

    def samples(self, windows: Ints) -> Ints:
        """[n] window numbers -> [n] sample numbers: the inverse of `windows`."""
        return self._apply(windows, self._sample)

    def _apply(self, numbers: Ints, function: Callable[[Ints], Ints]) -> Ints:
        numbers = np.asarray(numbers, dtype=np.int64)
        if self.shuffle is None or not len(numbers):
            return numbers.copy()
        parts = [function(numbers[at : at + _AT_ONCE]) for at in range(0, len(numbers), _AT_ONCE)]
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def _window(self, samples: Ints) -> Ints:
        lane, place = self._lane(samples)
        for shifted in self._passes():
            place = self._mix(place, lane, shifted=shifted, backwards=False)
        position = place if self._lanes == 1 else place + self._lane_spans[1][lane]
        return position + self._moved[self._finder(position)]

    def _sample(self, windows: Ints) -> Ints:
        by_source = np.argsort(self._sources)
        shard = by_source[np.searchsorted(self._sources[by_source], windows, side="right") - 1]
        position = windows - self._moved[shard]
        lanes, short, extra = self._lanes, *divmod(len(self), self._lanes)
        border = extra * (short + 1)  # the first `extra` lanes are one longer
        lane = (
            np.where(position < border, position // (short + 1), extra + (position - border) // max(short, 1))
            if lanes > 1
            else np.zeros_like(position)
        )
        place = position - self._lane_spans[1][lane]
        for shifted in reversed(self._passes()):
            place = self._mix(place, lane, shifted=shifted, backwards=True)
        samples: Ints = place * lanes + lane
        return samples

    @property
    def _lanes(self) -> int:
        assert self.shuffle is not None
        return min(self.shuffle.lanes, max(1, len(self)))

    def _passes(self) -> tuple[bool, ...]:
        """The second, shifted pass carries windows over the borders of the first; one block has no border."""
        assert self.shuffle is not None
        longest = -(-len(self) // self._lanes)
        return (False,) if self.shuffle.block >= longest else (False, True)

    def _lane(self, samples: Ints) -> tuple[Ints, Ints]:
        if self._lanes == 1:
            return np.zeros(1, np.int64), samples
        place = samples // self._lanes
        return samples - place * self._lanes, place

    @cached_property
    def _lane_spans(self) -> tuple[Ints, Ints]:
        """Length of each lane and its place on the axis."""
        short, extra = divmod(len(self), self._lanes)
        lane = np.arange(self._lanes)
        return short + (lane < extra), lane * short + np.minimum(lane, extra)

    def _mix(self, place: Ints, lane: Ints, *, shifted: bool, backwards: bool) -> Ints:
        """Permute visits, of so many windows each; what is left at the end of a lane stays where it is."""
        assert self.shuffle is not None
        size = self.shuffle.visits
        if size == 1:
            return self._mix_blocks(place, lane, shifted=shifted, backwards=backwards)
        visit, rest = np.divmod(place, size)
        count = self._visits[lane]
        mixed = self._mix_blocks(
            np.minimum(visit, np.maximum(count - 1, 0)), lane, shifted=shifted, backwards=backwards
        )
        return np.where(visit < count, mixed * size + rest, place)

    @cached_property
    def _visits(self) -> Ints:
        """[lanes] whole visits of each lane."""
        assert self.shuffle is not None
        visits: Ints = self._lane_spans[0] // self.shuffle.visits
        return visits

    @property
    def block(self) -> int:
        """Visits of a block."""
        assert self.shuffle is not None
        return max(1, self.shuffle.block // self.shuffle.visits)

    def _mix_blocks(self, place: Ints, lane: Ints, *, shifted: bool, backwards: bool) -> Ints:
        """Permute inside blocks of B, or inside blocks of B that begin B/2 earlier."""
        size = self.block
        if self._lanes == 1 and size >= self._visits[0]:
            domain = Domain.of(max(1, int(self._visits[0])))
            nothing = np.zeros(1, np.int64)
            return permute(place, domain, self._block_key(nothing, nothing, shifted=shifted)[0], backwards=backwards)
        shift = size - size // 2 if shifted else 0
        narrow: NDArray[Any] = place.astype(np.uint32 if int(self._visits.max()) + 2 * size < 1 << 32 else np.int64)
        block = (narrow + shift) // size
        first = np.maximum(block * size, shift) - shift
        key = self._block_key(lane, block, shifted=shifted)
        mixed = permute(narrow - first, self._domain(lane, block, shift), key, backwards=backwards)
        mixed += first
        return mixed.astype(np.int64)

    def _domain(self, lane: Ints, block: NDArray[Any], shift: int) -> Domain:
        """Of each block: blocks are of one length, but for those at the ends of a lane."""
        size, low, high = self.block, int(block.min()), int(block.max())
        if (low or not shift) and (high + 1) * size - shift <= int(self._visits.min()):
            return Domain.of(size)
        wide = high - low + 1
        if wide * self._lanes > len(block):
            return Domain.of(self._lengths(lane, block.astype(np.int64), shift))
        # Neighbours share blocks: what is to be known of a block is found once.
        lanes, blocks = np.divmod(np.arange(wide * self._lanes), wide)
        domain = Domain.of(self._lengths(lanes, low + blocks, shift))
        return domain[block.astype(np.int64) + (np.arange(self._lanes) * wide - low)[lane]]

    def _lengths(self, lane: Ints, block: Ints, shift: int) -> Ints:
        first = np.maximum(block * self.block - shift, 0)
        ends = np.minimum((block + 1) * self.block - shift, self._visits[lane])
        lengths: Ints = np.maximum(ends - first, 1)
        return lengths

    def _block_key(self, lane: Ints, block: NDArray[Any], *, shifted: bool) -> Words:
        """[n] the key of each block of each lane."""
        high = (lane << 8).astype(np.uint32)
        if block.dtype != np.uint32:
            high = high | (block >> 32).astype(np.uint32)
        first, second = self._words[4:6] if shifted else self._words[2:4]
        return mix(block.astype(np.uint32) ^ mix(high, np.uint32(first)), np.uint32(second))

    def visits(self, *, lanes: Iterable[int] | None = None) -> Visits:
        """When each shard is needed in this epoch.

        Windows travel at most to the border of the blocks they are mixed in, so the samples that can hold a shard's
        windows lie between two borders.

        Args:
            lanes: Only these: a rank of several takes few.
        """
        total = len(self)
        sizes = self.shard_windows
        if self.shuffle is None:
            ends = np.cumsum(sizes)
            has = np.flatnonzero(sizes)
            return Visits(shards=has, begins=(ends - sizes)[has], ends=ends[has])
        shards = self._shards
        count = self._lanes
        lengths, places = self._lane_spans
        mixed_twice = len(self._passes()) > 1
        stops = np.cumsum(sizes[shards])
        starts = stops - sizes[shards]
        spans: list[tuple[Ints, Ints, Ints]] = []
        for lane in range(count) if lanes is None else sorted(set(lanes)):
            low, high = int(places[lane]), int(places[lane] + lengths[lane])
            inside = np.flatnonzero((starts < high) & (stops > low))
            first = np.maximum(starts[inside], low) - low
            last = np.minimum(stops[inside], high) - low - 1
            size = self.shuffle.visits
            first, last = _travelled(first // size, last // size, self.block, twice=mixed_twice)
            first, last = first * size, last * size + size - 1
            last = np.minimum(last, high - low - 1)
            spans.append((shards[inside], first * count + lane, np.minimum(last * count + lane + 1, total)))
        if not spans:
            nothing = np.zeros(0, np.int64)
            return Visits(shards=nothing, begins=nothing, ends=nothing)
        which, begins, ends = (np.concatenate(part) for part in zip(*spans, strict=True))
        by_begin = np.lexsort((which, begins))
        return Visits(shards=which[by_begin], begins=begins[by_begin], ends=ends[by_begin])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Visits:
    """Stretches of an epoch in which shards are needed, the one that begins first being first.

    A shard that lies in two lanes has one for each; in no other sample than these is it needed.

    Attributes:
        shards: [visits] shard numbers.
        begins: [visits] the first sample that may need the shard.
        ends: [visits] the sample from which on it is not needed any more.
    """

    shards: Ints
    begins: Ints
    ends: Ints

    def after(self, sample: int, /) -> Visits:
        """Those that are not over at a sample."""
        left = self.ends > sample
        return Visits(shards=self.shards[left], begins=self.begins[left], ends=self.ends[left])

    def of(self, shards: NDArray[np.bool_], /) -> Visits:
        """Those of some shards: [shards] True where wanted."""
        wanted = shards[self.shards]
        return Visits(shards=self.shards[wanted], begins=self.begins[wanted], ends=self.ends[wanted])

    def moved(self, samples: int, /) -> Visits:
        """The same, each so many samples later."""
        return Visits(shards=self.shards, begins=self.begins + samples, ends=self.ends + samples)

    @classmethod
    def joined(cls, parts: Sequence[Visits], /) -> Visits:
        """Those of several parts of an epoch."""
        if len(parts) == 1:
            return parts[0]
        shards, begins, ends = (
            np.concatenate(one) for one in zip(*((part.shards, part.begins, part.ends) for part in parts), strict=True)
        )
        order = np.lexsort((shards, begins))
        return cls(shards=shards[order], begins=begins[order], ends=ends[order])

    def needed(self, first: int, stop: int, /) -> Ints:
        """Shards that some of the samples may need."""
        needed: Ints = np.unique(self.shards[(self.begins < stop) & (self.ends > first)])
        return needed

    def most(self, sizes: Ints | None = None, /) -> int:
        """Shards that are needed at the same time, at most; or their bytes, with those of each visit's shard."""
        moments = np.concatenate([self.begins, self.ends])
        sizes = np.ones(len(self.shards), np.int64) if sizes is None else sizes
        change = np.concatenate([sizes, -sizes])
        order = np.lexsort((change, moments))  # one that ends makes room for one that begins
        return int(np.cumsum(change[order]).max(initial=0))


def _travelled(first: Ints, last: Ints, block: int, *, twice: bool) -> tuple[Ints, Ints]:
    """The first and last place in a lane that windows from `first` to `last` can have after mixing."""
    if twice:  # blocks that begin half a block earlier are mixed last, so undone first
        shift = block - block // 2
        first = np.maximum((first + shift) // block * block - shift, 0)
        last = ((last + shift) // block + 1) * block - shift - 1
    return first // block * block, (last // block + 1) * block - 1
