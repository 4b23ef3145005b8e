"""Bad data while training: what counts as such, what a loader does about it, and the ledger it keeps."""

from __future__ import annotations

import errno
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from seqlake.errors import BadDataError, DamagedTableError, DecodeError, SchemaMismatchError, SeqlakeError, causes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Policy = Literal["raise", "mask", "substitute"]
POLICIES: tuple[Policy, ...] = ("raise", "mask", "substitute")

LEDGER = "ledger"
"""What batches of worker processes carry beside their columns: the entries that were made for them."""

_DAMAGE = (DecodeError, DamagedTableError, SchemaMismatchError, FileNotFoundError)
_PASSING = (ConnectionError, TimeoutError, PermissionError, MemoryError)
# The machine's trouble or the line's, not the file's: too many open files, no memory, a store that failed.
_PASSING_NUMBERS = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ECONNRESET}
_KEPT = 10_000  # entries of a ledger that are kept; all are counted
_TOLD = 5  # files that an error or a printed ledger names


def is_damage(error: BaseException, /) -> bool:
    """Whether an error says that the data are bad: gone, damaged, or not of their declared shape.

    Broken connections, time-outs, refused access and want of memory are not, wherever in the chain of causes they
    stand: they say nothing about the data.
    """
    return isinstance(error, _DAMAGE) and not is_passing(error)


def is_passing(error: BaseException, /) -> bool:
    """Whether an error is the machine's or the line's and may be gone tomorrow: it says nothing about the data."""
    return any(
        isinstance(cause, _PASSING) or (isinstance(cause, OSError) and cause.errno in _PASSING_NUMBERS)
        for cause in causes(error, contexts=True)
    )


@dataclass(frozen=True, kw_only=True)
class OnError:
    """What a loader does about bad data.

    Attributes:
        policy: Raise, deliver the sample masked, or put another sample in its place.
        budget: Bad samples of an epoch that are tolerated: a count, a fraction of the epoch's samples, or None.
    """

    policy: Policy = "raise"
    budget: float | None = 0.01

    @property
    def tolerant(self) -> bool:
        """Whether bad data do not raise."""
        return self.policy != "raise"

    def check(self) -> None:
        """Raise ValueError, naming the argument that cannot be meant."""
        if self.policy not in POLICIES:
            raise ValueError(f"Loader on_error: expected one of {', '.join(POLICIES)}, found {self.policy!r}.")
        budget = self.budget
        if budget is None:
            return
        count = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        if not count and not (isinstance(budget, float) and 0 <= budget <= 1):
            raise ValueError(
                "Loader on_error budget: expected a count (a whole number from 0 on), a fraction (0.0 to 1.0) or None "
                f"for no limit, found {budget!r}."
            )

    def allowed(self, samples: int) -> float:
        """Bad samples that are tolerated among so many."""
        if self.budget is None:
            return math.inf
        return self.budget if isinstance(self.budget, int) else math.ceil(self.budget * samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What is wrong with one column of a sample.

    Attributes:
        column: Its name; empty where a whole shard cannot be read.
        file: The file it is in, as far as it is known.
        error: The error, with its class.
    """

    column: str
    file: str
    error: str

    @classmethod
    def of(cls, error: BaseException, *, column: str, file: str) -> Harm:
        """From what was raised."""
        message = error.message if isinstance(error, SeqlakeError) else str(error)
        return cls(column=column, file=file, error=f"{type(error).__name__}: {message}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """One entry of a ledger.

    Attributes:
        sequence_id: The sequence; None where the dataset has no ids, or the shard that holds it cannot be read.
        column: The column; empty where a whole shard cannot be read.
        file: The file it is in, as far as it is known.
        error: The error, with its class.
        epoch: The epoch.
        sample: The sample number in it, which does not depend on rank or batch.
        start: The sample's anchor.
        action: What became of its place: `"masked"` or `"substituted"`.
    """

    sequence_id: str | None
    column: str
    file: str
    error: str
    epoch: int
    sample: int
    start: int
    action: Literal["masked", "substituted"] = "masked"

    def __str__(self) -> str:
        where = f"sequence {self.sequence_id!r}" if self.sequence_id is not None else f"a sequence of {self.file}"
        column = f", column {self.column!r}" if self.column else ""
        sample = f"epoch {self.epoch}, sample {self.sample}"
        return f"{sample} ({where}, step {self.start}{column}) {self.action}: {self.error}"


@dataclass(eq=False)
class Ledger:
    """Bad samples that one loader met in one process, in the order they were delivered; iterable, and prints itself.

    `len` counts entries, one for each bad column of a sample. The first ten thousand are kept, all are counted.

    Attributes:
        budget: What is tolerated.
        samples: This rank's samples of an epoch, which a budget as a fraction refers to.
        files: How many entries name each file.
    """

    budget: OnError
    samples: int
    files: Counter[str] = field(default_factory=Counter, init=False)
    _entries: list[BadSample] = field(default_factory=list, init=False)
    _bad: dict[int, set[int]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return self.files.total()

    def __iter__(self) -> Iterator[BadSample]:
        return iter(self._entries)

    def __getitem__(self, number: int) -> BadSample:
        return self._entries[number]

    def bad(self, epoch: int) -> int:
        """Bad samples of an epoch; of the newest two that were seen, 0 for older ones."""
        return len(self._bad.get(epoch, ()))

    def add(self, entries: Iterable[BadSample], /) -> None:
        """Enter what was met.

        Raises:
            BadDataError: An epoch has more bad samples than the budget allows.
        """
        allowed = self.budget.allowed(self.samples)
        for entry in entries:
            self.files[entry.file] += 1
            if len(self._entries) < _KEPT:
                self._entries.append(entry)
            if entry.epoch not in self._bad:
                self._bad = {epoch: bad for epoch, bad in self._bad.items() if abs(epoch - entry.epoch) < 2}
            self._bad.setdefault(entry.epoch, set()).add(entry.sample)
            if len(self._bad[entry.epoch]) > allowed:
                raise BadDataError(
                    f"{len(self._bad[entry.epoch])} of {self.samples} samples of epoch {entry.epoch} are bad so far; "
                    f"on_error({self.budget.policy!r}, budget={self.budget.budget!r}) tolerates {allowed}. "
                    f"Most of them are in {self._worst()}. The last: {entry}",
                    hint="Run `seqlake validate --depth decode` to see what is damaged, or allow more: "
                    f"loader.on_error({self.budget.policy!r}, budget=...).",
                )

    def drain(self) -> tuple[BadSample, ...]:
        """The entries kept since the last call, which are kept here no longer; counts stay."""
        entries, self._entries = tuple(self._entries), []
        return entries

    def collect(self, batch: dict[str, Any], /) -> None:
        """Enter what a worker process met in making a batch, and take it out of the batch.

        Args:
            batch: From a `DataLoader` with workers; one without `"ledger"` is left as it is.

        Raises:
            BadDataError: All processes together met more bad samples than the budget allows.

        Example:
            ```python
            for batch in DataLoader(loader.torch(), batch_size=None, num_workers=4):
                loader.ledger.collect(batch)
            ```
        """
        self.add(batch.pop(LEDGER, ()))

    def _worst(self) -> str:
        worst = [f"{file} ({count})" for file, count in self.files.most_common(_TOLD)]
        more = len(self.files) - len(worst)
        return ", ".join(worst) + (f" and {more} more files" if more else "")

    def __str__(self) -> str:
        if not self.files:
            return "No bad samples."
        alike = Counter((entry.column or "every column", entry.error) for entry in self._entries)
        lines = [f"{len(self)} bad, in {self._worst()}"]
        lines += [f"{count} times {column}: {error}" for (column, error), count in alike.most_common(_TOLD)]
        return "\n".join([*lines, *(["..."] if len(alike) > _TOLD else [])])

    __repr__ = __str__
