"""The shards in use of several datasets, as if they were one dataset's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.training.telemetry import Fetched
from seqlake.training.visits import Visits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.cells import Cells
    from seqlake.training.mixtures.sources import PreparedMix
    from seqlake.training.opened import Opened


class MixOpened:
    """`Opened` of several datasets, as far as passes ask for it.

    Attributes:
        cells: Those of one dataset, while the steps of all have its layout.
    """

    def __init__(self, prepared: PreparedMix) -> None:
        self.cells: Mapping[str, Cells] = {}
        self._prepared = prepared
        self._members = [member.opened for member in prepared.members]

    @property
    def seconds(self) -> float:
        """Spent on opening and looking at shards."""
        return sum(member.seconds for member in self._members)

    @property
    def decoded(self) -> int:
        """Bytes held for shards that are not flat."""
        return sum(member.decoded for member in self._members)

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""
        return sum((member.fetched for member in self._members), Fetched())

    def visit(self, rows: Ints) -> None:
        """Open the shards of these rows."""
        for member, own in self._prepared.by_member(rows):
            self._members[member].visit(rows[own] - self._prepared.first_rows[member])

    @property
    def portion(self) -> int | None:
        """Samples that may be prepared together; None where that does not matter."""
        return min((member.portion for member in self._members if member.portion is not None), default=None)

    @property
    def is_ranged(self) -> bool:
        """Whether windows of some shard are read by range."""
        return any(member.is_ranged for member in self._members)

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory."""
        return any(member.is_fetched for member in self._members)

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Say when which shards will be needed, numbered on through the datasets."""
        for number, member in enumerate(self._members):
            later = None if then is None else self._own(number, then)
            member.expect(self._own(number, visits), sample, then=later)

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon."""
        for member in self._members:
            member.leave(sample, until)

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows as long as the chunk under way; see `Opened.pin`."""
        for member, own in self._prepared.by_member(rows):
            self._members[member].pin(rows[own] - self._prepared.first_rows[member])

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something is wrong with the cells of rows."""
        found = np.zeros(len(rows), np.bool_)
        for member, own in self._prepared.by_member(rows):
            found[own] = self._members[member].harmed(rows[own] - self._prepared.first_rows[member])
        return found

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with the cells of a row."""
        member, own = self._of(row)
        return member.harms_of(own)

    def id_of(self, row: int) -> str | None:
        """The id of a row."""
        member, own = self._of(row)
        return member.id_of(own)

    def _own(self, number: int, visits: Visits) -> Visits:
        first, stop = self._prepared.first_shards[number : number + 2]
        own = (visits.shards >= first) & (visits.shards < stop)
        return Visits(shards=visits.shards[own] - first, begins=visits.begins[own], ends=visits.ends[own])

    def _of(self, row: int) -> tuple[Opened, int]:
        ((member, _),) = self._prepared.by_member(np.array([row]))
        return self._members[member], row - int(self._prepared.first_rows[member])
