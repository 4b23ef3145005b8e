"""A source and settings, and what follows from the two; each part is worked out when it is first asked for."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.training.bad_data.damage import Ledger
from seqlake.training.batches import Assembler
from seqlake.training.cache import shared
from seqlake.training.fetching.range_batches import RangeAssembler
from seqlake.training.frames.ahead import FrameColumns, FrameStream
from seqlake.training.mixtures.samples import MixPlanner, Mixture, resolved
from seqlake.training.opened import Opened
from seqlake.training.passes import Planner
from seqlake.training.plan import resident
from seqlake.training.rows.batches import RowAssembler
from seqlake.training.rows.pictures import Pictures
from seqlake.training.rows.shards import RowShards
from seqlake.training.state import describe
from seqlake.training.steps import Steps
from seqlake.training.survey import Survey, survey
from seqlake.training.telemetry import Fetched, Meter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Schema
    from seqlake.training.order import Shuffle
    from seqlake.training.settings import Settings
    from seqlake.training.telemetry import Telemetry


class Prepared:
    """What a loader knows; pickles as source and settings.

    Attributes:
        source: The dataset.
        settings: What was asked for.
    """

    def __init__(self, source: Readable, settings: Settings) -> None:
        self.source = source
        self.settings = settings
        self._opened: tuple[int, Opened] | None = None
        self._frame_columns: tuple[int, FrameColumns] | None = None
        self._sharers = 1

    def share(self, users: int, /) -> None:
        """Say how many, each for itself, open shards on this machine: the memory that none was given is divided."""
        self._sharers = users

    def changed(self, settings: Settings) -> Prepared:
        """The same source with other settings; what does not depend on them is shared."""
        other = Prepared(self.source, settings)
        other.share(self._sharers)
        if settings.on_error.tolerant == self.settings.on_error.tolerant:
            other._opened = self._opened
            if settings.frames == self.settings.frames and settings.on_error == self.settings.on_error:
                other._frame_columns = self._frame_columns
        if "survey" in self.__dict__:
            other.__dict__["survey"] = self.survey
        if "mixture" in self.__dict__ and settings.groups == self.settings.groups:
            other.__dict__["mixture"] = self.mixture
        return other

    @property
    def schema(self) -> Schema:
        """The columns."""
        return self.source.schema

    @property
    def surveys(self) -> Sequence[Survey]:
        """Of each dataset."""
        return [self.survey]

    @cached_property
    def survey(self) -> Survey:
        """The dataset through the window."""
        return survey(self.source, self.settings.window)

    @cached_property
    def shuffle(self) -> Shuffle | None:
        """Lanes and block; None in source order."""
        if self.mixture is not None:  # each part has its own
            return None
        return resolved(self.settings.shuffle, self.survey.axis.shard_windows)

    @cached_property
    def mixture(self) -> Mixture | None:
        """Parts in proportions, where some were asked for."""
        groups, settings = self.settings.groups, self.settings
        if groups is None:
            return None
        return groups.mixture(self.source, self.survey, shuffle=settings.shuffle, seed=settings.seed)

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

    @property
    def opened(self) -> Opened:
        """The shards in use, by this process."""
        # A forked child makes its own: a lock or thread of the parent's would be dead in it.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open())
        return self._opened[1]

    def _open(self) -> Opened:
        settings = self.settings
        cache = shared(settings.cache, by=self._sharers)
        if self.survey.by_row:
            shuffle = resolved(settings.shuffle, self.survey.axis.shard_windows)
            in_use = resident(self.survey.axis, shuffle)
            return cast("Opened", RowShards(self.source.schema, self.survey, cache, in_use=in_use))
        return Opened(self.source.schema, self.survey, cache, tolerant=settings.on_error.tolerant)

    @cached_property
    def ledger(self) -> Ledger:
        """The bad samples that this process met."""
        settings = self.settings
        return Ledger(budget=settings.on_error, samples=-(-self.samples // settings.world_size))

    @cached_property
    def meter(self) -> Meter:
        """What this process spent its time on."""
        return Meter()

    def report(self) -> Telemetry:
        """The meter's counts, with what the shards in use know."""
        if self._opened is None or self._opened[0] != os.getpid():
            return self.meter.report(held=0, fetched=Fetched(), files=Fetched())
        opened = self._opened[1]
        return self.meter.report(held=opened.decoded, fetched=opened.fetched, files=self.files_read)

    @property
    def files_read(self) -> Fetched:
        """What came from stores of videos and other files."""
        if self._frame_columns is None or self._frame_columns[0] != os.getpid():
            return Fetched()
        return Fetched.of(self._frame_columns[1].transfers.traffic)

    @property
    def frame_columns(self) -> FrameColumns:
        """The columns of frames, in this process."""
        if self._frame_columns is None or self._frame_columns[0] != os.getpid():
            self._frame_columns = (os.getpid(), FrameColumns(self))
        return self._frame_columns[1]

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides which sample comes when."""
        return describe(
            fingerprint=self.fingerprint,
            window=self.settings.window.digest,
            samples=self.samples,
            seed=self.settings.seed,
            shuffle=self.shuffle,
            tail=self.settings.tail,
            mix=None if self.mixture is None else self.mixture.digest,
        )

    @property
    def fingerprint(self) -> str:
        """Of the dataset."""
        return self.source.fingerprint

    # ---- what passes are made of

    def planner(self) -> Planner | MixPlanner:
        """Gives the samples of steps."""
        if self.mixture is not None:
            return MixPlanner(self.mixture, self.steps)
        return Planner(self.survey, self.steps, shuffle=self.shuffle, seed=self.settings.seed)

    def assembler(self, *, sharers: int = 1) -> Assembler:
        """Makes batches of samples; `sharers` processes of this machine do so at the same time."""
        if self.survey.by_row:
            rows = cast("RowShards", self.opened)
            pictures = Pictures(self.settings.frames, sharers=sharers)
            return cast("Assembler", RowAssembler(rows, pictures, tolerant=self.settings.on_error.tolerant))
        if self.opened.is_ranged:
            return RangeAssembler(self.survey, self.opened)
        return Assembler(self.survey, self.opened)

    def frame_stream(self, *, sharers: int) -> FrameStream | None:
        """Decodes frames; None where the window asks for none."""
        return FrameStream(self, sharers=sharers) if self.survey.framed else None

    def windows(self) -> int:
        """All windows there are."""
        return len(self.survey.axis)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] windows in source order -> row and anchor of each."""
        rows, index = self.survey.axis.locate(numbers)
        return rows, self.survey.anchors(rows, index)

    def numbers(self, rows: Ints, anchors: Ints) -> Ints:
        """[n] rows and anchors -> windows in source order: the inverse of `locate`."""
        axis = self.survey.axis
        before = np.concatenate([np.zeros(1, np.int64), axis.row_ends]).take(rows)
        found: Ints = before + (anchors - self.survey.anchors(rows, np.zeros_like(rows))) // self.survey.stride
        return found

    def __getstate__(self) -> dict[str, Any]:
        kept = {"source": self.source, "settings": self.settings, "_sharers": self._sharers}
        return {**kept, "_opened": None, "_frame_columns": None}
