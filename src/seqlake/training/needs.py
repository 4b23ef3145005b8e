"""What an order needs at a time of the memory or the folder that copies may take: known before the first is made.

A pass prepares its samples in portions; while it prepares one, the one before it may still be in use, and every shard
that a sample between the two needs stays. Which shards these are is arithmetic, and what each takes is known from
lengths and footers: so is the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqlake.errors import CacheTooSmallError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.order import Visits

_PART = 8  # of what copies may take that the shards of one portion take at most, about: an order needs others too
_EASY = 0.75  # of it that is in use where there is a choice: the next shards come meanwhile
_FIRST = 1 << 10  # samples prepared at first, so that the first batch comes soon
HORIZON = 15  # further epochs that are looked at before the first of them begins
_IN_HAND = 2  # batches that worker processes are ahead of each other, as torch lets them
UNKNOWN = 1 << 44  # bytes of what nobody has looked at yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What copies and decoded columns may take, and what those of each shard take.

    Attributes:
        limit: Bytes.
        held: [shards] bytes of each while it is there, at most.
        making: [shards] more of them while it is made.
        folder: Where copies lie; None for memory.
    """

    limit: int
    held: Ints
    making: Ints
    folder: str | None = None

    def within(self, shards: int, first: int, /) -> Budget:
        """The same of several datasets: how many shards all have, and the number of this one's first."""
        held, making = np.zeros(shards, np.int64), np.zeros(shards, np.int64)
        held[first : first + len(self.held)] = self.held
        making[first : first + len(self.making)] = self.making
        return replace(self, held=held, making=making)


def joined(budgets: Sequence[Budget], /) -> list[Budget]:
    """Those of several datasets, with one for each folder."""
    by_folder: dict[str, Budget] = {}
    alone = []
    for budget in budgets:
        if budget.folder is None:
            alone.append(budget)
            continue
        other = by_folder.get(budget.folder)
        by_folder[budget.folder] = (
            budget
            if other is None
            else replace(other, held=other.held + budget.held, making=other.making + budget.making)
        )
    return [*alone, *by_folder.values()]


class Need(NamedTuple):
    """What is needed at a time, at most.

    Attributes:
        shards: So many that are copied.
        held: Bytes of them.
        making: Bytes beside them, while one is made.
        ranks: Of so many ranks together.
    """

    shards: int
    held: int
    making: int
    ranks: int = 1

    @property
    def least(self) -> int:
        """The least limit that works."""
        return self.held + self.making


def cuts(count: int, local_batch: int, /, *, most: int) -> Ints:
    """The first step of each portion of a pass.

    Args:
        count: Steps of the pass.
        local_batch: Samples of each that are this process's.
        most: Samples of a portion, about.
    """
    first = max(1, min(_FIRST, most) // max(1, local_batch))
    later = max(1, most // max(1, local_batch))
    return np.concatenate([np.zeros(min(count, 1), np.int64), np.arange(first, count, later, dtype=np.int64)])


@dataclass(frozen=True, kw_only=True, eq=False)
class Course:
    """A pass, as far as it decides which shards are in use at a time.

    Attributes:
        visits: Of the epoch.
        sample: Where the pass begins.
        steps: Which of its steps are taken; other processes take those between.
        global_batch: Samples of a step over all ranks.
        local_batch: Samples of a step on each rank, at least.
        ranks: How many ranks' visits these are.
    """

    visits: Visits
    sample: int
    steps: range
    global_batch: int
    local_batch: int
    ranks: int = 1

    @property
    def shards(self) -> Ints:
        """All that are needed."""
        needed: Ints = np.unique(self.visits.after(self.sample).shards)
        return needed

    def spans(self, most: int, /, *, together: bool = False) -> tuple[Ints, Ints]:
        """For each portion, the samples of the epoch between which all that may be in use lies.

        Args:
            most: Samples of a portion, about.
            together: Of all processes that take part in the pass.
        """
        starts = cuts(len(self.steps), self.local_batch, most=most)
        if not len(starts):
            return starts, starts
        ends = np.append(starts[1:], len(self.steps))
        begin, stride = self.sample + self.steps.start * self.global_batch, self.steps.step * self.global_batch
        firsts, stops = begin + starts * stride, begin + (ends - 1) * stride + self.global_batch
        lows = np.concatenate([[self.sample], firsts[:-1]])
        if together and self.steps.step * self.ranks > 1:  # some are in the next portion, and some batches ahead
            apart = _IN_HAND * stride
            return np.maximum(lows - apart, self.sample), np.append(stops[1:], stops[-1:]) + apart
        return lows, stops

    def need(self, budget: Budget, most: int, /) -> Need:
        """What portions of so many samples need of a budget."""
        lows, stops = self.spans(most, together=budget.folder is not None)
        if not len(lows):
            return Need(0, 0, 0)
        first = np.searchsorted(stops, self.visits.begins, side="right")
        last = np.searchsorted(lows, self.visits.ends, side="left") - 1
        shards = self.visits.shards
        taken = (first <= last) & (budget.held[shards] + budget.making[shards] > 0)
        shards, first, last = _merged(shards[taken], first[taken], last[taken], len(lows))
        counts, held = np.zeros(len(lows) + 1, np.int64), np.zeros(len(lows) + 1, np.int64)
        np.add.at(counts, first, 1)
        np.add.at(counts, last + 1, -1)
        np.add.at(held, first, budget.held[shards])
        np.add.at(held, last + 1, -budget.held[shards])
        making = int(budget.making[shards].max(initial=0))
        return Need(int(np.cumsum(counts).max()), int(np.cumsum(held).max()), making, self.ranks)


def _merged(shards: Ints, first: Ints, last: Ints, portions: int) -> tuple[Ints, Ints, Ints]:
    """Visits of portions, those of one shard that meet as one: it is there once."""
    order = np.lexsort((first, shards))
    shards, first, last = shards[order], first[order], last[order]
    apart = shards * (portions + 2)
    reach = np.maximum.accumulate(last + apart) if len(last) else last
    new = np.ones(len(shards), np.bool_)
    new[1:] = (first + apart)[1:] > reach[:-1]
    heads = np.flatnonzero(new)
    tails = np.append(heads[1:], len(shards)) - 1 if len(heads) else heads
    return shards[heads], first[heads], (reach - apart)[tails]


def portion(
    course: Course,
    later: Iterable[Course],
    budgets: Callable[[bool], Sequence[Budget]],
    /,
    *,
    most: int,
    samples: float,
    strict: bool,
    sharing: Callable[[], tuple[Iterable[Course], Course]] | None = None,
) -> int:
    """Samples that are prepared together, so many that what they need fits into each budget.

    Args:
        course: The pass that begins.
        later: Passes that follow: what they need differs by a little. Only looked at where not everything fits.
        budgets: What shards take, estimated generously, or with True as it is.
        most: Samples of a portion, at most.
        samples: Of this process, what all shards together hold of them.
        sharing: Where other ranks may copy to the same folder: the pass and those that follow, of all ranks that do so
            just now; and the pass of all ranks that there are, by which each chooses alike.
        strict: Refuse; else begin all the same: shards that no sample of the moment needs then go, and come again.

    Raises:
        CacheTooSmallError: Not even portions of one step fit; says the least limit that works.
    """
    least = max(1, course.local_batch)
    lacking: list[tuple[Budget, Need]] = []
    courses: list[Course] = []
    for look in (False, True):
        limits = budgets(look)
        everything = [int(budget.held.sum()) for budget in limits]
        sizes = [most]
        for budget, total in zip(limits, everything, strict=True):
            if total:
                sizes[0] = min(sizes[0], int(budget.limit / _PART / total * samples))
        while sizes[-1] > least:
            sizes.append(sizes[-1] // 2)
        sizes[-1] = least
        if all(
            total + int(budget.making.max(initial=0)) <= budget.limit
            for budget, total in zip(limits, everything, strict=True)
        ):
            return sizes[0]
        courses = courses or [course, *later]
        needs = [(budget, one.need(budget, least)) for budget in limits for one in courses]
        lacking = [(budget, need) for budget, need in needs if need.least > budget.limit]
        everyone = course
        if not lacking and sharing is not None:
            together, everyone = sharing()
            needs = [(budget, one.need(budget, least)) for one in together for budget in limits]
            lacking = [(budget, need) for budget, need in needs if need.least > budget.limit]
        if not lacking:
            return _largest(everyone, limits, sizes)
    if strict:
        raise too_small(*max(lacking, key=lambda one: one[1].least))
    return least


def _largest(course: Course, budgets: Sequence[Budget], sizes: Sequence[int]) -> int:
    """The largest of some sizes with which there is room for the shards that come next, too; else that fits at all."""
    for size in sizes:
        if all(course.need(budget, size).least <= _EASY * budget.limit for budget in budgets):
            return size
    fitting = (size for size in sizes if all(course.need(budget, size).least <= budget.limit for budget in budgets))
    return next(fitting, sizes[-1])


def too_small(budget: Budget, need: Need, /) -> CacheTooSmallError:
    """The error that says what is needed, before anything is copied."""
    whose = f" on the {need.ranks} ranks that share the folder" if need.ranks > 1 else ""
    place = "memory" if budget.folder is None else f"the folder {budget.folder}"
    beside = f", and {size_text(need.making)} beside them while one is made" if need.making else ""
    path = "" if budget.folder is None else f'"{budget.folder}", '
    other = 'a folder, Cache("/nvme/cache"), ' if budget.folder is None else ""
    return CacheTooSmallError(
        f"Shards cannot be read in place (they are compressed, encoded or remote), and this order needs up to "
        f"{need.shards} of them at a time{whose}: {size_text(need.held)}{beside}. Their copies may take "
        f"{size_text(budget.limit)} of {place}; {need.least} bytes is the least that works.",
        path=budget.folder,
        hint=f"Allow more, Loader(..., cache=Cache({path}limit={need.least})), or {other and f'give {other}or '}let "
        "fewer shards be in use: shuffle=Shuffle(lanes=, block=), or write the dataset anew with `seqlake repack`, so "
        "that it can be read in place.",
    )


def size_text(nbytes: float, /) -> str:
    """Bytes as `Cache` reads them, rounded up."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6)):
        if nbytes >= scale:
            return f"{-(-nbytes * 10 // scale) / 10:g} {unit}"
    return f"{-(-nbytes // 1000):g} kB"
