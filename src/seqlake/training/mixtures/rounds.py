"""Proportions whose whole numbers are too large for a table: many equal rounds, and what is left dealt out over them.

A period of N samples becomes K rounds. Of a part's c samples each round has c // K, in the same slots every time; the
c % K that are left of every part are laid out in a table of their own, of which each round has the next few at its end.
Every table stays small, and after N samples each part has come exactly c times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from seqlake.protocols import Ints
    from seqlake.training.mixtures.schedule import Stage


@dataclass(frozen=True, kw_only=True, eq=False)
class Rounds:
    """A `Stage` of a long period.

    Attributes:
        begin: The first sample.
        counts: [parts] samples in a period.
        before: [parts] samples of each part before `begin`.
        round: The slots that all rounds have.
        rest: The slots that are dealt out over the rounds.
        begins: [K] first sample of each round in the period.
        rests: [K + 1] how many slots of the rest come before each round.
        had: [K + 1, parts] samples of each part before each round.
    """

    begin: int
    counts: Ints
    before: Ints
    round: Stage = field(repr=False)
    rest: Stage = field(repr=False)
    begins: Ints = field(repr=False)
    rests: Ints = field(repr=False)
    had: Ints = field(repr=False)

    @classmethod
    def of(
        cls, counts: Sequence[int], *, begin: int, before: Ints, most: int, lay_out: Callable[[Ints], Stage]
    ) -> Rounds:
        """Cut a period into rounds of at most about `most` samples.

        Args:
            counts: [parts] samples in a period.
            begin: The first sample.
            before: [parts] samples of each part before it.
            most: Samples of a round.
            lay_out: Makes a stage of counts.
        """
        each = np.asarray(counts, dtype=np.int64)
        number = -(-int(each.sum()) // most)
        own, left = lay_out(each // number), lay_out(each % number)
        rounds = np.arange(number + 1)
        rests = rounds * left.period // number
        dealt = np.zeros((left.period + 1, len(each)), np.int64)
        dealt[np.arange(left.period) + 1, left.slots] = 1
        return cls(
            begin=begin,
            counts=each,
            before=before,
            round=own,
            rest=left,
            begins=(rounds * own.period + rests)[:-1],
            rests=rests,
            had=rounds[:, None] * own.counts + dealt.cumsum(axis=0)[rests],
        )

    @property
    def period(self) -> int:
        """N."""
        return int(self.counts.sum())

    def locate(self, samples: Ints) -> tuple[Ints, Ints]:
        """See `Stage.locate`."""
        periods = (samples - self.begin) // self.period
        place = samples - self.begin - periods * self.period
        rounds = np.searchsorted(self.begins, place, side="right") - 1
        slot = place - self.begins[rounds]
        parts, numbers = np.empty_like(slot), np.empty_like(slot)
        own = slot < self.round.period
        parts[own] = self.round.slots[slot[own]]
        numbers[own] = self.had[rounds[own], parts[own]] + self.round.rank[slot[own]]
        left = self.rests[rounds[~own]] + slot[~own] - self.round.period
        parts[~own] = self.rest.slots[left]
        numbers[~own] = (rounds[~own] + 1) * self.round.counts[parts[~own]] + self.rest.rank[left]
        numbers += self.before[parts] + periods * self.counts[parts]
        return parts, numbers

    def taken(self, sample: int) -> Ints:
        """See `Stage.taken`."""
        periods, place = divmod(sample - self.begin, self.period)
        number = int(np.searchsorted(self.begins, place, side="right")) - 1
        slot, first = place - int(self.begins[number]), int(self.rests[number])
        slots = [self.round.slots[:slot], self.rest.slots[first : first + max(0, slot - self.round.period)]]
        partly = np.bincount(np.concatenate(slots), minlength=len(self.counts))
        taken: Ints = self.before + periods * self.counts + self.had[number] + partly
        return taken

    def places(self, part: int, numbers: Ints) -> Ints:
        """See `Stage.places`."""
        periods = (numbers - self.before[part]) // self.counts[part]
        left = numbers - self.before[part] - periods * self.counts[part]
        had = self.had[:, part]
        rounds = np.searchsorted(had, left, side="right") - 1
        within = left - had[rounds]
        places: Ints = self.begin + periods * self.period + self.begins[rounds]
        own = within < self.round.counts[part]
        places[own] += np.flatnonzero(self.round.slots == part)[within[own]]
        before = left[~own] - (rounds[~own] + 1) * self.round.counts[part]
        slots = np.flatnonzero(self.rest.slots == part)[before]
        places[~own] += self.round.period + slots - self.rests[rounds[~own]]
        return places
