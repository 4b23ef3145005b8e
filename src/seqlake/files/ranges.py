"""Many small ranges as a few requests: neighbours are fetched together, large ranges in pieces side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqlake.files.blobs import bounded
from seqlake.files.limits import refuse_more_than_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from typing_extensions import Buffer

    from seqlake.protocols import Ints

PARALLEL = 12
GAP = 256 << 10  # read along: cheaper than one more request
LARGEST = 16 << 20  # of one request, so that a slow line finishes it within the store's timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What to ask for, and how the answers become ranges.

    Attributes:
        pieces: (first byte, end) of each request, in order; those of one run touch.
        runs: (first byte, how many pieces) of each run of neighbours.
        cuts: For each range asked for: (run, its first byte, its end).
    """

    pieces: Sequence[tuple[int, int]]
    runs: Sequence[tuple[int, int]]
    cuts: Sequence[tuple[int, int, int]]


def plan(starts: Ints, stops: Ints, size: int, location: str, /) -> Requests:
    """Requests for these ranges of an object of `size` bytes.

    Raises:
        ShardChangedError: A range lies outside the object.
        CorruptFileError: They are more than this machine could hold.
    """
    firsts, ends = bounded(starts, stops, size, location)
    spans: list[list[int]] = []
    cuts = [(-1, 0, 0)] * len(firsts)
    for row in np.argsort(np.asarray(firsts, np.int64), kind="stable").tolist():
        first, end = firsts[row], ends[row]
        if first == end:
            continue
        if spans and first - spans[-1][1] <= GAP:
            spans[-1][1] = max(spans[-1][1], end)
        else:
            spans.append([first, end])
        cuts[row] = (len(spans) - 1, first, end)
    refuse_more_than_memory(sum(end - first for first, end in spans), location)
    pieces: list[tuple[int, int]] = []
    runs = []
    for first, end in spans:
        cut = [(at, min(at + LARGEST, end)) for at in range(first, end, LARGEST)]
        runs.append((first, len(cut)))
        pieces += cut
    return Requests(pieces=pieces, runs=runs, cuts=cuts)


def fetched(requests: Requests, fetch: Callable[[int, int], memoryview], /) -> list[memoryview]:
    """The ranges that were asked for, by up to 12 requests at once.

    Args:
        requests: What `plan` made.
        fetch: Asks for the bytes from a first one to before an end.
    """
    if len(requests.pieces) < 2:
        return assemble(requests, [fetch(*piece) for piece in requests.pieces])
    with ThreadPoolExecutor(min(PARALLEL, len(requests.pieces))) as pool:
        return assemble(requests, list(pool.map(lambda piece: fetch(*piece), requests.pieces)))


def assemble(requests: Requests, answers: Sequence[memoryview], /) -> list[memoryview]:
    """The ranges that were asked for, in their order; views of the answers wherever one answer holds them."""
    held, done = [], 0
    for _, count in requests.runs:
        parts = answers[done : done + count]
        held.append(parts[0] if count == 1 else memoryview(b"".join(parts)))
        done += count
    empty = memoryview(b"")
    return [
        empty if run < 0 else held[run][first - requests.runs[run][0] : end - requests.runs[run][0]]
        for run, first, end in requests.cuts
    ]


def hardly_more(parts: Iterable[Buffer], size: int, /) -> memoryview:
    """The bytes of an answer; of one that is longer than it ought to be, little more than `size` of them.

    Args:
        parts: As they come; what a server sends beyond is not waited for.
        size: How many bytes were asked for.
    """
    held: list[Buffer] = []
    came = 0
    for part in parts:
        held.append(part)
        came += memoryview(part).nbytes
        if came > size:
            break
    return memoryview(held[0] if len(held) == 1 else b"".join(held))
