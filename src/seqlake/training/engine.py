"""What makes batches, as every kind of source has it: sequences, samples, several datasets.

```text
Planner      which samples come at which steps                      steps.Planner, mixtures.samples.MixPlanner
OpenShards   what is open of the data, as samples come to it        opened.Opened, rows.shards.RowShards, of mixtures
Assembler    samples -> Chunk: all about some steps but the copying batches, fetching.range_batches, rows.batches
Chunk        -> batches, one after the other
Frames       frames of batches, decoded ahead on threads            frames.batch.FrameStream
Engine       one of each, of a source with settings                 sources, mixtures.engine
```

An engine says what there is; `passes.Pipeline` runs it: assemble, add frames, repair, transform.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from seqlake.errors import LoaderStateError
from seqlake.training.bad_data.damage import Ledger
from seqlake.training.order import ORDER_VERSION
from seqlake.training.steps import Steps
from seqlake.training.telemetry import Meter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.mixtures.samples import Mixture
    from seqlake.training.needs import Budget
    from seqlake.training.order import Shuffle, Visits
    from seqlake.training.plan import EpochPlan
    from seqlake.training.samples import Batch, Samples
    from seqlake.training.settings import LoaderSettings
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Fetched, Telemetry


STATE_FORMAT = "seqlake loader state 1"

_MEANING = {
    "format": "the form of the state",
    "order": "the version of the order algorithm",
    "fingerprint": "the dataset (its rows, their order or their bytes), or the selection from it",
    "window": "the window",
    "samples": "the number of windows",
    "seed": "the seed",
    "shuffle": "the shuffle (its lanes, block or visits)",
    "tail": "the tail rule",
    "mix": "the mixture (its sources, weights, curriculum or shuffle)",
    "copies": "the training copies that frames come from",
}


class Planner(Protocol):
    """Says which samples come when; all of it is arithmetic."""

    @property
    def local_batch(self) -> int:
        """Samples of a step on this rank."""

    def samples(self, epoch: int, position: int, steps: Ints) -> Samples:
        """The samples of some steps of the pass that begins at a sample of an epoch."""

    def substitutes(self, epochs: Ints, numbers: Ints, attempt: int) -> Samples:
        """Samples to be tried in the places of others; see `Substitutes`."""

    def shards(self, epoch: int, position: int, steps: Ints) -> Ints:
        """The shards that samples of some steps are in, ascending; for few steps."""

    def visits(self, epoch: int, position: int) -> Visits:
        """When each shard is needed by this rank in an epoch."""


class OpenShards(Protocol):
    """The shards in use by one process; rows are numbered through all of them."""

    @property
    def seconds(self) -> float:
        """Spent on opening and looking at shards."""

    @property
    def portion(self) -> int | None:
        """Samples whose windows are read by range together; None where none are."""

    @property
    def is_ranged(self) -> bool:
        """Whether windows of some shard are read by range."""

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory."""

    @property
    def decoded(self) -> int:
        """Bytes of memory held for shards that are not read in place."""

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""

    def visit(self, rows: Ints) -> object:
        """Open the shards of these rows, and see that those open already are still the same files."""

    def budgets(self, shards: Ints, *, look: bool, kept: bool = False) -> Sequence[Budget]:
        """What copies of these shards take of what they may take; estimated generously, or after a look at each.

        Args:
            shards: Which.
            look: At each.
            kept: Also where all of them fit, so that none ever goes.
        """

    def join(self, order: str, rank: int) -> set[int]:
        """Say which rank of an order this process is; all ranks that share its room for copies just now."""

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Take in when shards will be needed: the next ones are fetched ahead."""

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon; windows located in them are void."""

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows, which the order does not ask for, as long as this chunk is in use."""

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something is wrong with the cells of rows."""

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with the cells of a row."""

    def id_of(self, row: int) -> str | None:
        """The id of a row; None where there are none, or it cannot be read."""


class SampleChunk(Protocol):
    """Some steps' samples, with everything about them but the numbers that fill memory."""

    @property
    def samples(self) -> Samples:
        """All samples of the steps, batch after batch."""

    @property
    def size(self) -> int:
        """B, samples of a batch."""

    @property
    def origins(self) -> Mapping[str, float]:
        """Bytes of a batch, about, by where they are copied from: see `telemetry.ORIGINS`."""

    def batch(self, number: int, /) -> Batch:
        """One batch of it, as arrays whose first axis is the sample."""


class Assembler(Protocol):
    """Turns samples into batches; belongs to one pass."""

    def reuse_buffers(self) -> None:
        """From now on write what is copied to where the batch before was, where that can be."""

    def prepare(self, samples: Samples, *, size: int) -> SampleChunk:
        """Open the shards that samples are in, and do for all of them whatever is not copying.

        Args:
            samples: Of some batches, one after the other.
            size: B, samples of a batch.
        """

    def harmed(self, samples: Samples) -> Mapping[int, Sequence[Harm]]:
        """Place in a batch, whose samples these are -> what only making it showed to be bad."""

    def close(self) -> None:
        """End what is done ahead of batches, if anything is."""


class FramesAhead(Protocol):
    """The frames of one batch, on their way."""

    @property
    def harmed(self) -> Mapping[int, Sequence[Harm]]:
        """Place in the batch -> what is wrong with its frames, once they were taken."""

    def take(self) -> Batch:
        """The columns of frames; waits for them."""


class FrameDecoding(Protocol):
    """Decodes the frames of one pass."""

    def begin(self, rows: Ints, anchors: Ints) -> FramesAhead:
        """Have the frames of one batch decoded."""

    def close(self) -> None:
        """End the threads; what was not delivered is forgotten."""


class TrainingEngine(ABC):
    """A source and settings, and what follows from the two; each part is worked out when it is first asked for.

    Attributes:
        settings: What was asked for.
        has_begun: This process has begun a pass, so that what an order needs was looked at.
    """

    has_begun: bool = False

    def __init__(self, settings: LoaderSettings) -> None:
        self.settings = settings
        self._processes = 1
        self._datasets = 1

    # ---- the source through the window

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The columns of the source."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Of the source: rows, their order, their bytes."""

    @property
    @abstractmethod
    def surveys(self) -> Sequence[WindowSurvey]:
        """Each dataset through the window."""

    @property
    @abstractmethod
    def shuffle(self) -> Shuffle | None:
        """Lanes and block; None in source order, and where each part of a mixture has its own."""

    @property
    @abstractmethod
    def mixture(self) -> Mixture | None:
        """Parts in proportions, where some were asked for."""

    @abstractmethod
    def plan(self) -> EpochPlan:
        """What one epoch will be."""

    @abstractmethod
    def windows(self) -> int:
        """How many windows there are in all."""

    @abstractmethod
    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] windows in source order -> row and anchor of each."""

    @abstractmethod
    def numbers(self, rows: Ints, anchors: Ints) -> Ints:
        """[n] rows and anchors -> windows in source order: the inverse of `locate`."""

    @property
    @abstractmethod
    def copies(self) -> Sequence[CopySettings]:
        """The training copies that frames come from; MissingCopyError where some were asked for and are not there."""

    # ---- what passes are made of

    @property
    @abstractmethod
    def opened(self) -> OpenShards:
        """The shards in use, by this process."""

    @abstractmethod
    def planner(self, *, rank: int | None = None) -> Planner:
        """Gives the samples of steps; of another rank than ours where one is named."""

    @abstractmethod
    def assembler(self) -> Assembler:
        """Makes batches of samples."""

    @abstractmethod
    def frames(self) -> FrameDecoding | None:
        """Decodes frames; None where the window asks for none."""

    # ---- settings

    @abstractmethod
    def changed(self, settings: LoaderSettings) -> TrainingEngine:
        """The same source with other settings; what does not depend on them is shared."""

    def share(self, processes: int, /, *, datasets: int = 1) -> None:
        """Divide the machine among those who read at the same time, each for itself.

        Args:
            processes: Of this machine; they divide its cores.
            datasets: In each process; all divide the memory that none was given.
        """
        self._processes, self._datasets = processes, datasets

    # ---- what follows

    @property
    def shards(self) -> int:
        """Shards of all datasets."""
        return sum(len(survey.shards) for survey in self.surveys)

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.windows() if self.mixture is None else len(self.mixture)

    @cached_property
    def steps(self) -> Steps:
        """Which samples this rank takes at each step."""
        settings, samples = self.settings, self.samples
        return Steps(
            samples=samples,
            lanes=1 if self.shuffle is None else min(self.shuffle.lanes, max(1, samples)),
            global_batch=settings.global_batch or settings.batch_size * settings.world_size,
            rank=settings.rank,
            world_size=settings.world_size,
            tail=settings.tail,
        )

    def steps_of(self, rank: int | None, /) -> Steps:
        """Which samples a rank takes at each step; None for this one."""
        return self.steps if rank is None else replace(self.steps, rank=rank)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides which sample comes when."""
        return {
            "format": STATE_FORMAT,
            "order": ORDER_VERSION,
            "fingerprint": self.fingerprint,
            "window": self.settings.window.digest,
            "samples": self.samples,
            "seed": self.settings.seed,
            "shuffle": None if self.shuffle is None else _mixing(self.shuffle),
            "tail": self.settings.tail,
            "mix": None if self.mixture is None else self.mixture.digest,
            "copies": digest_of(self.copies),
        }

    @cached_property
    def ledger(self) -> Ledger:
        """The bad samples that this process met."""
        settings = self.settings
        return Ledger(budget=settings.on_error, samples=-(-self.samples // settings.world_size))

    @cached_property
    def meter(self) -> Meter:
        """What this process spent its time on."""
        return Meter()

    @abstractmethod
    def report(self) -> Telemetry:
        """The meter's counts, with what the shards in use know."""


# ---- where a loader is, as a small JSON value that every rank agrees on


def digest_of(copies: Sequence[CopySettings], /) -> str | None:
    """What decides the pixels of training copies; None of none."""
    if not copies:
        return None
    return hashlib.blake2b(b"\n".join(one.document() for one in copies), digest_size=8).hexdigest()


def _mixing(shuffle: Shuffle) -> list[int]:
    visits = [] if shuffle.visits == 1 else [shuffle.visits]
    return [shuffle.lanes, shuffle.block, *visits]


def position_of(state: Mapping[str, Any], here: Mapping[str, Any], /) -> tuple[int, int]:
    """The (epoch, sample) of a state, if it belongs here.

    Args:
        state: What `state_dict` gave.
        here: `TrainingEngine.identity` of this loader.

    Raises:
        LoaderStateError: It is not a state, or one of another dataset, window or order; says what differs.
    """
    if not isinstance(state, Mapping) or state.get("format") != STATE_FORMAT:
        form = state.get("format") if isinstance(state, Mapping) else type(state).__name__
        raise LoaderStateError(f"Expected a loader's state_dict ({STATE_FORMAT!r}), found {form!r}.")
    # JSON, msgpack and torch.save give lists back as lists or tuples.
    changed = [name for name in here if _plain(state.get(name)) != _plain(here[name])]
    if changed:
        parts = "; ".join(f"{_MEANING[each]} (saved {state.get(each)!r}, here {here[each]!r})" for each in changed)
        raise LoaderStateError(
            f"This state belongs to another loader. Changed since it was saved: {parts}.",
            hint="Make the loader as it was, open the dataset at the version it had, or start a new epoch without "
            "load_state_dict. Batch size, rank and world size may differ.",
        )
    epoch, sample = state.get("epoch"), state.get("next_sample")
    if (
        not isinstance(epoch, int)
        or not isinstance(sample, int)
        or not (0 <= epoch < 1 << 62 and 0 <= sample <= here["samples"])
    ):
        raise LoaderStateError(
            f"A state needs an epoch and a sample of it (0 .. {here['samples']}); found {epoch!r} and {sample!r}."
        )
    return epoch, sample


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
