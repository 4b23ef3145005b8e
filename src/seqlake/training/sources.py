"""Engines of one dataset: its windows or whole sequences, or its rows where they are samples."""

from __future__ import annotations

import os
from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from seqlake.abilities import Pinnable, ability
from seqlake.training.batches import WindowAssembler
from seqlake.training.cache import kept, shared
from seqlake.training.engine import OpenShards, TrainingEngine
from seqlake.training.fetching.range_batches import RangeAssembler
from seqlake.training.frames.batch import FrameStream
from seqlake.training.frames.columns import FrameColumns
from seqlake.training.frames.copied import copies_of
from seqlake.training.frames.decoding import cores
from seqlake.training.mixtures.samples import MixPlanner
from seqlake.training.opened import Opened
from seqlake.training.order import resolved
from seqlake.training.plan import plan, plan_mixture
from seqlake.training.rows.batches import RowAssembler, RowPictures
from seqlake.training.rows.shards import RowShards
from seqlake.training.steps import OrderPlanner
from seqlake.training.survey import survey
from seqlake.training.telemetry import Fetched
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Schema
    from seqlake.training.cache import Cache
    from seqlake.training.mixtures.samples import Mixture
    from seqlake.training.order import Shuffle
    from seqlake.training.plan import EpochPlan
    from seqlake.training.settings import LoaderSettings
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Telemetry

Shards = TypeVar("Shards", bound=OpenShards)


def pinned(source: Readable, /) -> Readable:
    """A dataset that stays as it is now: it moves on with its commits, and rows without a name count as samples."""
    known = ability(source, Pinnable)
    return source if known is None else known.with_id()


def named(settings: LoaderSettings, schema: Schema, /) -> LoaderSettings:
    """The settings with all columns named where all are meant."""
    window = settings.window
    return replace(settings, window=window.of(list(schema))) if isinstance(window, Whole) else settings


def engine_of(source: Readable, settings: LoaderSettings, /) -> WindowEngine | RowEngine:
    """The engine of a dataset, which is pinned, and settings that name its columns."""
    by_row = isinstance(settings.window, Whole) and source.schema.id is None
    if settings.cache is None:
        settings = replace(settings, cache=kept(source))
    return RowEngine(source, settings) if by_row else WindowEngine(source, settings)


class SourceEngine(TrainingEngine, Generic[Shards]):
    """`TrainingEngine` of one dataset; pickles as source and settings.

    Attributes:
        source: The dataset.
    """

    def __init__(self, source: Readable, settings: LoaderSettings) -> None:
        super().__init__(settings)
        self.source = source
        self._opened: tuple[int, Shards] | None = None  # and the process that did so

    @abstractmethod
    def _open(self, cache: Cache) -> Shards:
        """Shards of this process, none of which is open yet."""

    @property
    def opened(self) -> Shards:
        """The shards in use, by this process."""
        # A forked child makes its own: a lock or thread of the parent's would be dead in it.
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = (os.getpid(), self._open(shared(self.settings.cache, by=self._processes * self._datasets)))
        return self._opened[1]

    @property
    def schema(self) -> Schema:
        """The columns of the dataset."""
        return self.source.schema

    @property
    def fingerprint(self) -> str:
        """Of the dataset: rows, their order, their bytes."""
        return self.source.fingerprint

    @property
    def surveys(self) -> Sequence[WindowSurvey]:
        """The dataset through the window, alone."""
        return [self.survey]

    @cached_property
    def survey(self) -> WindowSurvey:
        """The dataset through the window."""
        return survey(self.source, self.settings.window)

    @cached_property
    def shuffle(self) -> Shuffle | None:
        """Lanes and block; None in source order, and where each group has its own."""
        return None if self.mixture is not None else resolved(self.settings.shuffle, self.survey.axis.shard_windows)

    @cached_property
    def mixture(self) -> Mixture | None:
        """Groups of rows in proportions, where some were asked for."""
        groups, settings = self.settings.groups, self.settings
        if groups is None:
            return None
        return groups.mixture(self.source, self.survey, shuffle=settings.shuffle, seed=settings.seed)

    def _lend(self, other: SourceEngine[Shards]) -> None:
        """Share with another engine of the same dataset what does not depend on the settings that differ."""
        other.share(self._processes, datasets=self._datasets)
        if other.settings.on_error.tolerant == self.settings.on_error.tolerant:
            other._opened = self._opened
        if "survey" in self.__dict__:
            other.__dict__["survey"] = self.survey
        if "mixture" in self.__dict__ and other.settings.groups == self.settings.groups:
            other.__dict__["mixture"] = self.mixture

    def planner(self, *, rank: int | None = None) -> OrderPlanner | MixPlanner:
        """Gives the samples of steps; of another rank than ours where one is named."""
        if self.mixture is not None:
            return MixPlanner(self.mixture, self.steps_of(rank))
        return OrderPlanner(self.survey, self.steps_of(rank), shuffle=self.shuffle, seed=self.settings.seed)

    def plan(self) -> EpochPlan:
        """What one epoch will be."""
        if self.mixture is not None:
            return plan_mixture(self.mixture, self.surveys, self.steps)
        return plan(self.survey, self.steps, shuffle=self.shuffle, seed=self.settings.seed)

    def report(self) -> Telemetry:
        """The meter's counts, with what the shards in use know."""
        if self._opened is None or self._opened[0] != os.getpid():
            return self.meter.report(held=0, fetched=Fetched(), files=Fetched())
        opened = self._opened[1]
        return self.meter.report(held=opened.decoded, fetched=opened.fetched, files=self.files_read)

    @property
    def files_read(self) -> Fetched:
        """What came from stores of videos and other files."""
        return Fetched()

    def windows(self) -> int:
        """How many windows there are in all."""
        return len(self.survey.axis)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] windows in source order -> row and anchor of each."""
        rows, index = self.survey.axis.locate(numbers)
        return rows, self.survey.anchors(rows, index)

    def numbers(self, rows: Ints, anchors: Ints) -> Ints:
        """[n] rows and anchors -> windows in source order: the inverse of `locate`."""
        before = self.survey.axis.before(rows)
        numbers: Ints = before + (anchors - self.survey.anchors(rows, np.zeros_like(rows))) // self.survey.stride
        return numbers

    def __getstate__(self) -> dict[str, Any]:
        kept = ("source", "settings", "_processes", "_datasets")
        return {**{name: self.__dict__[name] for name in kept}, "_opened": None}


class WindowEngine(SourceEngine[Opened]):
    """`TrainingEngine` of windows, and of whole sequences."""

    def __init__(self, source: Readable, settings: LoaderSettings) -> None:
        super().__init__(source, settings)
        self._frame_columns: tuple[int, FrameColumns] | None = None  # and the process that has them

    def _open(self, cache: Cache) -> Opened:
        return Opened(self.source.schema, self.survey, cache, tolerant=self.settings.on_error.tolerant)

    def changed(self, settings: LoaderSettings) -> WindowEngine:
        """The same dataset with other settings; what does not depend on them is shared."""
        other = WindowEngine(self.source, settings)
        self._lend(other)
        if (settings.on_error, settings.frames, settings.audio) == (
            self.settings.on_error,
            self.settings.frames,
            self.settings.audio,
        ):
            other._frame_columns = self._frame_columns
        return other

    def assembler(self) -> WindowAssembler:
        """Makes batches of samples."""
        kind = RangeAssembler if self.opened.is_ranged else WindowAssembler
        return kind(self.survey, self.opened)

    def frames(self) -> FrameStream | None:
        """Decodes frames; None where the window asks for none."""
        if not (self.survey.framed or self.survey.sounds):
            return None
        threads = self.settings.frames.threads or max(1, cores() // self._processes)
        return FrameStream(lambda: self.frame_columns, self.meter.work, threads=threads)

    @property
    def frame_columns(self) -> FrameColumns:
        """The columns of frames, in this process."""
        if self._frame_columns is None or self._frame_columns[0] != os.getpid():
            columns = FrameColumns(self.source, self.settings, self.survey, self.opened)
            self._frame_columns = (os.getpid(), columns)
        return self._frame_columns[1]

    @property
    def files_read(self) -> Fetched:
        """What came from stores of videos and other files."""
        if self._frame_columns is None or self._frame_columns[0] != os.getpid():
            return Fetched()
        return Fetched.of(self._frame_columns[1].transfers.traffic)

    @cached_property
    def copies(self) -> list[CopySettings]:
        """The sets of training copies that frames come from, one for each video of the window."""
        options = self.settings.frames
        if not options.copies:
            return []
        assert options.size is not None
        schema, place = self.source.schema, copies_of(self.source, options)
        videos = [name for name in self.settings.window.columns if name in schema and schema[name].medium == "video"]
        return [place.expect(name, options.size) for name in videos]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_frame_columns": None}


class RowEngine(SourceEngine[RowShards]):
    """`TrainingEngine` of a dataset whose rows are samples."""

    def _open(self, cache: Cache) -> RowShards:
        return RowShards(self.source.schema, self.survey, cache)

    def changed(self, settings: LoaderSettings) -> RowEngine:
        """The same dataset with other settings; what does not depend on them is shared."""
        other = RowEngine(self.source, settings)
        self._lend(other)
        return other

    @property
    def copies(self) -> list[CopySettings]:
        """None: pictures in rows have no copies."""
        if self.settings.frames.copies:
            raise ValueError("frames copies: rows without ids are samples, which have no training copies.")
        return []

    def assembler(self) -> RowAssembler:
        """Makes batches of rows."""
        pictures = RowPictures(self.settings.frames, processes=self._processes)
        return RowAssembler(self.opened, pictures, tolerant=self.settings.on_error.tolerant)

    def frames(self) -> None:
        """None: pictures in rows are values of theirs, decoded by the assembler."""
