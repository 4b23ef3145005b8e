"""Copies many byte ranges out of mapped shards in one call: the only module that sees raw memory.

However many shards a batch touches, they are gathered through one view that spans all their maps: rows of `width`
bytes that begin at every byte. The bytes between two maps belong to nobody and are never touched, because every
address is checked before it is used, and the view never leaves this module.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from math import inf, prod
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

_KEPT = 24 << 20  # bytes of freed memory that stay with the process
_BLOCK = 1 << 20  # bytes gathered at a time without torch: what is read is still in the cache when it is written

# A call of torch costs more than copying a small batch does, and its threads lose time whenever they begin, so several
# batches are copied by one. They share memory, and who keeps one batch keeps its neighbours: hence not many, and none
# that are large. `_KEPT` has room for two portions, as many as are in use at a time. The next is not copied ahead on a
# thread of its own: torch would have a second team, and the two keep each other from the cores.
_TOGETHER = 16
_TOGETHER_BYTES = 16 << 20

_TRIES = 3
_TRIAL = 128  # copies from one trial of the slower way to the next, if it is as fast
_RARELY = 4096
_CLEARLY = 1.1  # times faster, before the way is changed


@cache
def torch() -> Any | None:
    """The torch module where it is installed: it copies on several threads without the interpreter's lock."""
    return import_module("torch") if find_spec("torch") else None


def batches_together(nbytes: int, /) -> int:
    """How many batches, of so many bytes in all columns, are copied at a time."""
    return max(1, min(_TOGETHER, _TOGETHER_BYTES // max(1, nbytes)))


Cell: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"


class Memory:
    """Pieces of memory that stay alive together, seen as one range of addresses.

    Args:
        busy: Whether other threads of this process need the cores just now: then nothing is copied on several.
    """

    def __init__(self, *, busy: Callable[[], bool] = bool) -> None:
        self.busy = busy
        self.paces: dict[int, Pace] = {}  # by width
        # glibc hands freed memory back to the system, and every batch would be paged in anew, until a large piece was
        # freed for the first time: then it keeps twice as much. This one is never written to.
        np.empty(_KEPT, dtype=np.uint8)
        self._held: dict[int, memoryview] = {}  # by its first address
        self._low = 0
        self._high = 0

    @classmethod
    def joined(cls, memories: Sequence[Memory], pieces: Iterable[memoryview], /, *, paces: dict[int, Pace]) -> Memory:
        """Some pieces of several memories; `paces` is kept from one to the next."""
        joined = cls(busy=lambda: any(memory.busy() for memory in memories))
        joined.paces = paces
        for piece in pieces:
            joined._keep(piece)
        return joined

    def hold(self, view: memoryview) -> tuple[int, int]:
        """Keep a piece of memory alive; its first address and the one after its last."""
        low, high = self._keep(view)
        _ask_for_large_pages(low, high)
        return low, high

    def _keep(self, view: memoryview) -> tuple[int, int]:
        low = np.frombuffer(view, dtype=np.uint8).ctypes.data if view.nbytes else 0
        high = low + view.nbytes
        if view.nbytes:
            self._low = min(self._low or low, low)
            self._high = max(self._high, high)
            self._held[low] = view
        return low, high

    def drop(self, low: int) -> None:
        """Let go of the piece that begins at an address; whoever has it among its `pieces` keeps it."""
        self._held.pop(low, None)

    @property
    def pieces(self) -> tuple[memoryview, ...]:
        """Everything held: as long as somebody has this, no address in it dangles."""
        return tuple(self._held.values())

    def pieces_at(self, lows: Iterable[int], /) -> tuple[memoryview, ...]:
        """Those that begin at some addresses; none where nothing is held."""
        return tuple(self._held[low] for low in lows if low in self._held)

    def ranges(self, addresses: Ints, width: int, *, size: int, cell: Cell | None = None, together: int = 1) -> Ranges:
        """Byte ranges that can be copied batch by batch, now or later.

        The caller has checked each address against the piece it belongs to; what is checked again here is that
        all lie within the whole.

        Args:
            addresses: [n] absolute addresses.
            width: Bytes of each range, above 0.
            size: Ranges of a batch.
            cell: Type and shape of what a range holds; `width` bytes otherwise.
            together: Batches that are copied when the first of them is asked for.

        Raises:
            IndexError: An address outside everything held.
        """
        low, high = self._low, self._high  # another thread may open a shard meanwhile: the span only grows
        if len(addresses) and (addresses.min() < low or addresses.max() + width > high):
            raise IndexError("A window's bytes lie outside the shards that are open; nothing was read.")
        cell = cell or (np.dtype(np.uint8), (width,))
        return Ranges(self, addresses - low, width, cell, size=size, together=together, span=(low, high))

    def gather(self, addresses: Ints, width: int) -> NDArray[np.uint8]:
        """Copy `width` bytes from each address into fresh memory: [n, width]."""
        if len(addresses) == 1:  # a whole cell: other threads would cost more than they copy
            return self._one(int(addresses[0]), width)
        return self.ranges(addresses, width, size=len(addresses)).copy(0)

    def _one(self, address: int, width: int) -> NDArray[np.uint8]:
        if address < self._low or address + width > self._high:
            raise IndexError("A cell's bytes lie outside the shards that are open; nothing was read.")
        return np.frombuffer(_bytes_at(address, width), np.uint8).copy()[None]


class Ranges:
    """Byte ranges of one width, checked and ready: what remains for a batch is to copy them."""

    def __init__(
        self, memory: Memory, offsets: Ints, width: int, cell: Cell, *, size: int, together: int, span: tuple[int, int]
    ) -> None:
        self._memory = memory  # keeps the pieces alive
        self._offsets = offsets
        self._width = width
        self._dtype, self._shape = cell
        self._size = size
        self._together = together
        self._copied: tuple[int, NDArray[Any]] | None = None  # batches of which some were not asked for yet
        low, high = span
        self._low = low
        self._whole = _bytes_at(low, high - low)
        self._torch = torch() if len(offsets) else None
        self._pace = memory.paces.setdefault(width, Pace())
        if self._torch is not None:
            everything = self._torch.from_numpy(np.frombuffer(self._whole, dtype=np.uint8))
            self._rows = everything.as_strided((high - low - width + 1, width), (1, 1))
            # Cut once: a view of the index for each batch costs more to make than to use.
            self._index = self._torch.from_numpy(offsets).split(size * together)

    @property
    def addresses(self) -> Ints:
        """[n] where each begins."""
        return self._offsets + self._low

    def __getitem__(self, number: int, /) -> NDArray[Any]:
        return self.copy(number)

    def copy(self, number: int, *, out: NDArray[np.uint8] | None = None) -> NDArray[Any]:
        """Copy the ranges of a batch.

        Args:
            number: Which batch, from 0; the last may have fewer ranges than the others.
            out: [size, width] to write to, where one batch is copied at a time; fresh memory otherwise.

        Returns:
            [size, ...] cells.
        """
        group, place = divmod(number, self._together)
        if self._copied is None or self._copied[0] != group:
            if self._torch is None or self._memory.busy():
                return self._cells(self._copy_alone(number, out))
            alone = self._pace.alone()
            began = perf_counter()
            fresh = self._copy_alone(number, out) if alone else self._copy_together(group, out)
            self._pace.took((perf_counter() - began) / max(1, fresh.nbytes))
            if alone or out is not None:
                return self._cells(fresh)
            self._copied = group, self._cells(fresh)
        cells = self._copied[1]
        if place == self._together - 1:
            self._copied = None
        return cells[place * self._size : (place + 1) * self._size] if self._together > 1 else cells

    def _cells(self, data: NDArray[np.uint8]) -> NDArray[Any]:
        return np.ndarray((len(data), *self._shape), self._dtype, data)

    def _copy_alone(self, number: int, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """A batch, on this thread."""
        offsets = self._offsets[number * self._size : (number + 1) * self._size]
        return _copy_with_numpy(self._whole, offsets, self._width, out)

    def _copy_together(self, group: int, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        """Some batches, on torch's threads."""
        assert self._torch is not None
        if out is not None:
            self._torch.index_select(self._rows, 0, self._index[group], out=self._torch.from_numpy(out))
            return out
        copied: NDArray[np.uint8] = self._torch.index_select(self._rows, 0, self._index[group]).numpy()
        return copied


class Pace:
    """Which way of copying is faster just now.

    Torch's threads wait for each other by spinning: quick while cores are free, many times slower than one thread while
    they are not. So both ways are tried, the slower one the less often the slower it is.
    """

    def __init__(self) -> None:
        self._cost = [inf, inf]  # seconds a byte: on torch's threads, alone
        self._usual = True
        self._trial = True  # of the other way
        self._left = _TRIES  # copies until a trial begins or ends

    def alone(self) -> bool:
        """Whether to copy the next batch on this thread alone."""
        while not self._left:
            self._trial = not self._trial
            if self._trial:
                self._cost[not self._usual] = inf
                self._left = _TRIES
            else:
                self._choose()
                slow, fast = max(self._cost), min(self._cost)
                self._left = int(min(_RARELY, _TRIAL * slow / max(fast, 1e-15))) if slow < inf else 0
        self._left -= 1
        return self._usual != self._trial

    def took(self, cost: float) -> None:
        """Tell how it went, in seconds a byte."""
        way = self._usual != self._trial
        known = self._cost[way]
        if self._trial:  # of a few the best: the first may find threads asleep and memory cold
            self._cost[way] = min(known, cost)
        else:  # one copy that was interrupted says little
            self._cost[way] = known + (min(cost, 2 * known) - known) / 8
            self._choose()

    def _choose(self) -> None:
        if self._cost[not self._usual] * _CLEARLY < self._cost[self._usual]:
            self._usual = not self._usual


def _ask_for_large_pages(low: int, high: int) -> None:
    """For a mapped file: windows at random places miss the processor's table of small pages nearly every time."""
    # Maps begin with a page. Arrays do not: they have their pages already, and asking would cut their maps in two.
    if sys.platform == "linux" and high > low and low % mmap.PAGESIZE == 0:
        # A kernel that has none refuses, and nothing is lost.
        _madvise()(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_HUGEPAGE)


@cache
def _madvise() -> Any:
    return ctypes.CDLL(None).madvise


def _bytes_at(low: int, span: int) -> Any:
    return (ctypes.c_ubyte * span).from_address(low)


def _copy_with_numpy(whole: Any, offsets: Ints, width: int, out: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
    # Each range is one element of an opaque type, and elements begin at every byte: indexing copies whole elements.
    # Never np.take: it would first expand the overlapping view.
    kind = _opaque(width)
    ranges: NDArray[Any] = np.ndarray((len(whole) - width + 1,), dtype=kind, buffer=whole, strides=(1,))
    if out is None:
        return ranges[offsets].view(np.uint8).reshape(-1, width)
    target = out.view(kind)[:, 0]
    step = max(1, _BLOCK // width)
    for at in range(0, len(offsets), step):
        target[at : at + step] = ranges[offsets[at : at + step]]
    return out


def clear(steps: NDArray[Any], which: Ints) -> None:
    """Set some steps to zero bytes.

    Args:
        steps: [n, W, ...], C-contiguous.
        which: Positions in [n * W].
    """
    width = prod(steps.shape[2:]) * steps.itemsize
    if width:
        kind = _opaque(width)
        steps.reshape(-1).view(kind)[which] = kind.type(width)


@cache
def _opaque(width: int) -> np.dtype[np.void]:
    # Whole steps at a time: several times faster than number by number. By its name: given the class numpy.void, numpy
    # asks Python code whether that is one of ctypes, and takes an error there, a Ctrl-C too, for "no".
    return np.dtype(f"V{width}")
