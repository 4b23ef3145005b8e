"""Several datasets under one loader: each has an engine as if it were alone; batches are put together from theirs."""

from __future__ import annotations

import hashlib
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.training.batches import Located, WindowAssembler, WindowChunk, by_batch, window_bytes
from seqlake.training.engine import TrainingEngine
from seqlake.training.gather import Memory, batches_together
from seqlake.training.mixtures.parts import scattered, together
from seqlake.training.mixtures.samples import MixPlanner, Mixture, MixturePart, split
from seqlake.training.needs import joined
from seqlake.training.order import Visits
from seqlake.training.plan import plan_mixture
from seqlake.training.samples import SOURCE, SOURCE_NUMBER, MixtureBatch
from seqlake.training.sources import engine_of, named, pinned
from seqlake.training.telemetry import Fetched
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column, Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.cells import StepColumn
    from seqlake.training.engine import Assembler, FramesAhead, OpenShards, SampleChunk
    from seqlake.training.frames.batch import FrameStream
    from seqlake.training.gather import Pace
    from seqlake.training.mixtures.schedule import Mix
    from seqlake.training.needs import Budget
    from seqlake.training.plan import EpochPlan
    from seqlake.training.samples import Batch, Samples
    from seqlake.training.settings import LoaderSettings
    from seqlake.training.sources import RowEngine, WindowEngine
    from seqlake.training.survey import WindowSurvey
    from seqlake.training.telemetry import Telemetry
    from seqlake.windows.spec import Whole


class MixtureEngine(TrainingEngine):
    """`TrainingEngine` of several datasets; rows, shards and windows are numbered on through them.

    Attributes:
        mix: Names and proportions.
        members: The engine of each dataset, with the same settings.
    """

    def __init__(self, mix: Mix, members: Sequence[WindowEngine | RowEngine], settings: LoaderSettings) -> None:
        super().__init__(settings)
        self.mix = mix
        self.members = members

    @classmethod
    def of(cls, mix: Mix, settings: LoaderSettings) -> MixtureEngine:
        """From the sources as they are given.

        Raises:
            SchemaMismatchError: Their columns do not agree.
            ValueError: A column has the name of one of the keys that batches of mixtures have.
        """
        mix = copy(mix)
        mix.sources = {name: pinned(source) for name, source in mix.sources.items()}
        settings = named(settings, next(iter(mix.sources.values())).schema)
        _check({name: source.schema for name, source in mix.sources.items()}, settings.window.columns)
        engine = cls(mix, [engine_of(source, settings) for source in mix.sources.values()], settings)
        engine.share(1)
        return engine

    def share(self, processes: int, /, *, datasets: int = 1) -> None:
        """As for one dataset: here there are several in each process."""
        super().share(processes, datasets=datasets * len(self.members))
        for member in self.members:
            member.share(processes, datasets=self._datasets)

    def changed(self, settings: LoaderSettings) -> MixtureEngine:
        """The same sources with other settings; what does not depend on them is shared."""
        if settings.groups is not None:
            raise ValueError("weights: groups are those of one dataset. Give the sources of a Mix their weights there.")
        other = MixtureEngine(self.mix, [member.changed(settings) for member in self.members], settings)
        other._processes, other._datasets = self._processes, self._datasets
        if settings.shuffle == self.settings.shuffle and settings.seed == self.settings.seed:
            other.__dict__.update({"mixture": self.mixture} if "mixture" in self.__dict__ else {})
        return other

    # ---- the sources through the window

    @property
    def schema(self) -> Schema:
        """The columns of the first dataset, with which those of all agree where the window asks for them."""
        return self.members[0].schema

    @property
    def fingerprint(self) -> str:
        """Of all datasets, with their names."""
        text = repr([(name, each.fingerprint) for name, each in zip(self.mix.sources, self.members, strict=True)])
        return "mix " + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def surveys(self) -> Sequence[WindowSurvey]:
        """The datasets through the window."""
        return [member.survey for member in self.members]

    @property
    def shuffle(self) -> None:
        """None: each part of the mixture has its own."""
        return

    @cached_property
    def mixture(self) -> Mixture:
        """Which window of which dataset each sample is."""
        parts = [
            MixturePart.of(
                member.survey,
                name=name,
                shuffle=self.settings.shuffle,
                seed=self.settings.seed,
                member=number,
                first_row=int(self.first_rows[number]),
                first_shard=int(self.first_shards[number]),
            )
            for number, (name, member) in enumerate(zip(self.mix.sources, self.members, strict=True))
        ]
        return Mixture(parts, self.mix.proportions_of([len(part.axis) for part in parts]))

    @property
    def copies(self) -> list[CopySettings]:
        """The training copies of all datasets."""
        return [settings for member in self.members for settings in member.copies]

    def plan(self) -> EpochPlan:
        """What one epoch will be."""
        return plan_mixture(self.mixture, self.surveys, self.steps)

    # ---- which dataset a number belongs to

    @cached_property
    def first_rows(self) -> Ints:
        """[datasets + 1] number of the first row of each among all rows."""
        return _firsts([survey.rows for survey in self.surveys])

    @cached_property
    def first_shards(self) -> Ints:
        """[datasets + 1] number of the first shard of each among all shards."""
        return _firsts([len(survey.shards) for survey in self.surveys])

    @cached_property
    def _first_windows(self) -> Ints:
        return _firsts([len(survey.axis) for survey in self.surveys])

    def by_member(self, rows: Ints) -> list[tuple[int, Ints]]:
        """Each dataset that rows belong to, and which of them do."""
        return list(split(np.searchsorted(self.first_rows, rows, side="right") - 1))

    def windows(self) -> int:
        """How many windows all datasets have."""
        return int(self._first_windows[-1])

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] windows in source order, dataset after dataset -> row and anchor of each."""
        rows, anchors = np.empty_like(numbers), np.empty_like(numbers)
        for member, which in split(np.searchsorted(self._first_windows, numbers, side="right") - 1):
            inside, anchors[which] = self.members[member].locate(numbers[which] - self._first_windows[member])
            rows[which] = inside + self.first_rows[member]
        return rows, anchors

    def numbers(self, rows: Ints, anchors: Ints) -> Ints:
        """[n] rows and anchors -> windows in source order, dataset after dataset: the inverse of `locate`."""
        numbers = np.empty_like(rows)
        for member, which in self.by_member(rows):
            inside = self.members[member].numbers(rows[which] - self.first_rows[member], anchors[which])
            numbers[which] = inside + self._first_windows[member]
        return numbers

    # ---- what passes are made of

    @property
    def opened(self) -> MixtureShards:
        """The shards in use, of all datasets."""
        return MixtureShards(self)

    def planner(self, *, rank: int | None = None) -> MixPlanner:
        """Gives the samples of steps; of another rank than ours where one is named."""
        return MixPlanner(self.mixture, self.steps_of(rank))

    def assembler(self) -> MixtureAssembler:
        """Makes batches of samples of all datasets."""
        return MixtureAssembler(self)

    def frames(self) -> MixtureFrames | None:
        """Decodes frames of all datasets, on one set of threads."""
        for member in self.members:
            member.meter = self.meter
        first = self.surveys[0]
        return MixtureFrames(self) if first.framed or first.sounds else None

    def report(self) -> Telemetry:
        """The meter's counts, with what the shards in use know."""
        files = sum((member.files_read for member in self.members), Fetched())
        return self.meter.report(held=self.opened.decoded, fetched=self.opened.fetched, files=files)

    def __getstate__(self) -> dict[str, Any]:
        kept = ("mix", "members", "settings", "_processes", "_datasets")
        return {name: self.__dict__[name] for name in kept}


def _firsts(counts: Sequence[int]) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


class MixtureShards:
    """`OpenShards` of several datasets: each question goes to those whose rows or shards it is about."""

    def __init__(self, engine: MixtureEngine) -> None:
        self._engine = engine
        self._members: list[OpenShards] = [member.opened for member in engine.members]

    @property
    def seconds(self) -> float:
        """Spent on opening and looking at shards."""
        return sum(member.seconds for member in self._members)

    @property
    def decoded(self) -> int:
        """Bytes of memory held for shards that are not read in place."""
        return sum(member.decoded for member in self._members)

    @property
    def fetched(self) -> Fetched:
        """What came from stores."""
        return sum((member.fetched for member in self._members), Fetched())

    @property
    def portion(self) -> int | None:
        """Samples whose windows are read by range together; None where none are."""
        return min((member.portion for member in self._members if member.portion is not None), default=None)

    @property
    def is_ranged(self) -> bool:
        """Whether windows of some shard are read by range."""
        return any(member.is_ranged for member in self._members)

    @property
    def is_fetched(self) -> bool:
        """Whether shards are copied as they are needed, to a folder or into memory."""
        return any(member.is_fetched for member in self._members)

    def visit(self, rows: Ints) -> None:
        """Open the shards of these rows."""
        for opened, which, first in self._of(rows):
            opened.visit(rows[which] - first)

    def budgets(self, shards: Ints, *, look: bool, kept: bool = False) -> Sequence[Budget]:
        """What copies of these shards take: datasets have memory of their own each, and share a folder."""
        firsts, parts = self._engine.first_shards.tolist(), []
        for number, member in enumerate(self._members):
            inside = shards[(shards >= firsts[number]) & (shards < firsts[number + 1])] - firsts[number]
            parts += [one.within(firsts[-1], firsts[number]) for one in member.budgets(inside, look=look, kept=kept)]
        return joined(parts)

    def join(self, order: str, rank: int) -> set[int]:
        """Say which rank of an order this process is; all ranks that share room for copies of some dataset."""
        return set[int]().union(*(member.join(order, rank) for member in self._members))

    def expect(self, visits: Visits, sample: int, *, then: Visits | None) -> None:
        """Take in when shards will be needed, numbered on through the datasets."""
        for number, member in enumerate(self._members):
            later = None if then is None else self._visits_of(number, then)
            member.expect(self._visits_of(number, visits), sample, then=later)

    def leave(self, sample: int, until: int) -> None:
        """Release local copies that no sample from this one on needs soon."""
        for member in self._members:
            member.leave(sample, until)

    def pin(self, rows: Ints) -> None:
        """Keep the shards of these rows as long as the chunk under way; see `OpenShards.pin`."""
        for opened, which, first in self._of(rows):
            opened.pin(rows[which] - first)

    def harmed(self, rows: Ints) -> NDArray[np.bool_]:
        """[n] whether something is wrong with the cells of rows."""
        harmed = np.zeros(len(rows), np.bool_)
        for opened, which, first in self._of(rows):
            harmed[which] = opened.harmed(rows[which] - first)
        return harmed

    def harms_of(self, row: int) -> list[Harm]:
        """What is wrong with the cells of a row."""
        ((opened, _, first),) = self._of(np.array([row]))
        return opened.harms_of(row - first)

    def id_of(self, row: int) -> str | None:
        """The id of a row; None where there are none, or it cannot be read."""
        ((opened, _, first),) = self._of(np.array([row]))
        return opened.id_of(row - first)

    def _of(self, rows: Ints) -> list[tuple[OpenShards, Ints, int]]:
        """For each dataset that rows belong to: its shards, which of the rows, and the number of its first."""
        firsts = self._engine.first_rows
        return [(self._members[member], which, int(firsts[member])) for member, which in self._engine.by_member(rows)]

    def _visits_of(self, number: int, visits: Visits) -> Visits:
        first, stop = self._engine.first_shards[number : number + 2]
        inside = (visits.shards >= first) & (visits.shards < stop)
        return Visits(shards=visits.shards[inside] - first, begins=visits.begins[inside], ends=visits.ends[inside])


_Parts = dict[int, tuple["Ints", "SampleChunk"]]
"""Dataset -> the positions of its samples in a batch, and its chunk of them."""


class MixtureChunk:
    """`SampleChunk` of which each batch is put together from those of the datasets.

    Attributes:
        samples: The samples.
        size: B, samples of a batch.
        origins: Bytes of the batch that was made last, by where they were copied from.
    """

    def __init__(self, assembler: MixtureAssembler, samples: Samples, *, size: int, parts: Sequence[_Parts]) -> None:
        self.samples = samples
        self.size = size
        self.origins: dict[str, float] = {}
        self._assembler = assembler
        self._parts = parts  # of each batch; none where they are prepared when it is made

    def batch(self, number: int, /) -> Batch:
        """One batch of it, with the source of each sample."""
        samples = self.samples.chosen(slice(number * self.size, (number + 1) * self.size))
        parts = self._parts[number] if self._parts else self._assembler.parts(samples)
        batches: list[tuple[Ints, Batch]] = []
        self.origins.clear()
        for which, chunk in parts.values():
            batches.append((which, chunk.batch(0)))
            _add(self.origins, chunk.origins)
        batch = together(batches, self._assembler.window)
        return MixtureBatch({**batch, **self._assembler.sources(samples, parts)})


class JoinedChunk(WindowChunk):
    """`SampleChunk` of windows that lie alike in all datasets, copied by one index."""

    def batch(self, number: int, /) -> Batch:
        """One batch of it, with the source of each sample."""
        return MixtureBatch(super().batch(number))


class MixtureAssembler:
    """`Assembler` of several datasets.

    Where the windows of all lie alike in memory they are copied by one index, whichever dataset each is of. Whole
    sequences, windows read by range and shards of unlike layouts are assembled dataset by dataset and put together.

    Attributes:
        window: Of all datasets.
    """

    def __init__(self, engine: MixtureEngine) -> None:
        self.window: Window | Whole = engine.settings.window
        self._engine = engine
        self._members: list[Assembler] = [member.assembler() for member in engine.members]
        self._names = np.array([*engine.mix.sources, None], dtype=object)[:-1]
        self._paces: dict[int, Pace] = {}
        in_place = all(type(member) is WindowAssembler for member in self._members)
        self._joins = in_place and isinstance(self.window, Window)
        self._reads = engine.opened.is_ranged

    def reuse_buffers(self) -> None:
        """Nothing: batches are put together in fresh memory."""

    def prepare(self, samples: Samples, *, size: int) -> SampleChunk:
        """Locate the windows of some batches; see `Assembler.prepare`."""
        count = len(samples.rows)
        parts: list[_Parts] = []
        if self._reads:  # begin to read all of it
            parts = [self.parts(samples.chosen(slice(at, at + size))) for at in range(0, count, size)]
        elif count and self._joins and (joined := self._joined(samples, size)) is not None:
            return joined
        return MixtureChunk(self, samples, size=size, parts=parts)

    def harmed(self, samples: Samples) -> dict[int, Sequence[Harm]]:
        """Place in a batch -> what only making it showed to be bad."""
        harmed: dict[int, Sequence[Harm]] = {}
        for member, which, mine in self._split(samples):
            harms = self._members[member].harmed(mine)
            harmed |= {int(which[place]): harms[place] for place in harms}
        return {place: harmed[place] for place in harmed if place not in samples.bad}

    def close(self) -> None:
        """End what is done ahead of batches."""
        for member in self._members:
            member.close()

    def parts(self, samples: Samples) -> _Parts:
        """The samples of each dataset, prepared as one batch."""
        return {
            member: (which, self._members[member].prepare(mine, size=len(which)))
            for member, which, mine in self._split(samples)
        }

    def sources(self, samples: Samples, which_of: Mapping[int, tuple[Ints, object]]) -> Batch:
        """[n] name and number of the source of each sample."""
        members = np.zeros(len(samples.rows), dtype=np.int64)
        for member, (which, _) in which_of.items():
            members[which] = member
        return {SOURCE: self._names[members], SOURCE_NUMBER: members}

    def _split(self, samples: Samples) -> list[tuple[int, Ints, Samples]]:
        """Each dataset that samples come from, which of them do, and these as its own."""
        firsts = self._engine.first_rows
        return [
            (member, which, samples.chosen(which, before=int(firsts[member])))
            for member, which in self._engine.by_member(samples.rows)
        ]

    # ---- all datasets as one

    def _joined(self, samples: Samples, size: int) -> JoinedChunk | None:
        """The windows of all datasets as of one; None where they do not lie alike."""
        count = len(samples.rows)
        chunks: dict[int, tuple[Ints, WindowChunk]] = {}
        memories: list[Memory] = []
        for member, which, mine in self._split(samples):
            assembler = self._members[member]
            assert isinstance(assembler, WindowAssembler)
            chunks[member] = which, assembler.prepare(mine, size=len(which))
            memories.append(assembler.opened.memory)
        parts = list(chunks.values())
        columns = [
            [(which, chunk.columns[number]) for which, chunk in parts] for number in range(len(parts[0][1].columns))
        ]
        if not all(_alike([located.cells for _, located in column]) for column in columns):
            return None
        memory = Memory.joined(memories, [piece for _, chunk in parts for piece in chunk.pieces], paces=self._paces)
        values = {
            name: scattered([(which, chunk.values[name]) for which, chunk in parts], count, name=name)
            for name in parts[0][1].values
        }
        origins: dict[str, float] = {}
        for _, chunk in parts:
            _add(origins, chunk.origins, share=size / count)
        nbytes = window_bytes([(column[0][1].track, column[0][1].cells) for column in columns], size)
        at_once = batches_together(nbytes)
        return JoinedChunk(
            samples,
            size=size,
            columns=[self._merged(column, memory, count, size, at_once) for column in columns],
            values={**values, **self.sources(samples, chunks)},
            origins=origins,
            pieces=memory.pieces,
            steps_of=self._steps_of,
        )

    def _merged(
        self, column: Sequence[tuple[Ints, Located]], memory: Memory, count: int, size: int, together: int
    ) -> Located:
        """Where the windows of one column lie, of all datasets."""
        first = column[0][1]
        track, cells = first.track, first.cells
        mask = scattered([(which, each.mask) for which, each in column], count, name=track.column)
        missing: list[Ints] = []
        if any(each.missing for _, each in column):
            edges = self.window.edges if isinstance(self.window, Window) else "pad"
            missing = by_batch(np.flatnonzero(~mask), mask.size, size * track.width, edges=edges)
        readable = next((each.runs.addresses[:1] for _, each in column if each.runs is not None), None)
        if readable is None:
            numbers = scattered([(which, each.numbers) for which, each in column], count, name=track.column)
            nothing = np.zeros(0, np.int64)
            return Located(
                track=track, cells=cells, mask=mask, missing=missing, runs=None, apart=nothing, numbers=numbers
            )
        addresses = np.empty(count, np.int64)
        for which, each in column:
            addresses[which] = readable if each.runs is None else each.runs.addresses
        alone = np.concatenate([which if each.runs is None else which[each.apart] for which, each in column])
        order = np.argsort(alone, kind="stable")
        layout = cells.layouts[0]
        cell = layout.stored, (track.width, *(cells.shape or ()))
        return Located(
            track=track,
            cells=cells,
            mask=mask,
            missing=missing,
            runs=memory.ranges(addresses, track.width * layout.stride, size=size, cell=cell, together=together),
            apart=alone[order],
            numbers=np.concatenate([each.numbers for _, each in column])[order],
        )

    def _steps_of(self, cells: StepColumn, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one, dataset by dataset; rows are counted through all of them."""
        if not len(rows):
            return np.zeros((*numbers.shape, *(cells.shape or ())), cells.layouts[0].stored)
        parts: list[tuple[Ints, NDArray[Any]]] = []
        for member, which in self._engine.by_member(rows):
            assembler, first = self._members[member], self._engine.first_rows[member]
            assert isinstance(assembler, WindowAssembler)
            mine = assembler.opened.cells[cells.name]
            parts.append((which, assembler.steps_of(mine, rows[which] - first, numbers[which])))
        return scattered(parts, len(rows), name=cells.name)


def _add(origins: dict[str, float], more: Mapping[str, float], *, share: float = 1.0) -> None:
    for origin, nbytes in more.items():
        origins[origin] = origins.get(origin, 0.0) + nbytes * share


def _alike(cells: Sequence[StepColumn]) -> bool:
    """Whether the steps of a column have one layout in all datasets."""
    return len({layout for each in cells for layout in each.layouts}) == 1 and len({each.shape for each in cells}) == 1


class MixtureFrames:
    """`Frames` of several datasets."""

    def __init__(self, engine: MixtureEngine) -> None:
        self._engine = engine
        streams = [member.frames() for member in engine.members]
        self._streams: list[FrameStream] = [stream for stream in streams if stream is not None]
        for stream in self._streams[1:]:
            stream.share(self._streams[0])

    def begin(self, rows: Ints, anchors: Ints) -> MixtureFramesAhead:
        """Have the frames of one batch decoded."""
        firsts = self._engine.first_rows
        return MixtureFramesAhead(
            [
                (which, self._streams[member].begin(rows[which] - firsts[member], anchors[which]))
                for member, which in self._engine.by_member(rows)
            ],
            self._engine.settings.window,
        )

    def close(self) -> None:
        """End the threads of all datasets."""
        for stream in self._streams:
            stream.close()


class MixtureFramesAhead:
    """`FramesAhead` of several datasets.

    Attributes:
        harmed: Place in the batch -> what is wrong with its frames, once they were taken.
    """

    def __init__(self, parts: Sequence[tuple[Ints, FramesAhead]], window: Any) -> None:
        self.harmed: dict[int, Sequence[Harm]] = {}
        self._parts = parts
        self._window = window

    def take(self) -> Batch:
        """The columns of frames, of all datasets together."""
        batches: list[tuple[Ints, Batch]] = []
        for which, frames in self._parts:
            batches.append((which, frames.take()))
            self.harmed |= {int(which[place]): harms for place, harms in frames.harmed.items()}
        return together(batches, self._window)


# ---- do the columns agree?


def _check(schemas: dict[str, Schema], columns: Sequence[str] | Mapping[str, Any]) -> None:
    """Every column of the window is the same in all datasets."""
    if taken := {SOURCE, SOURCE_NUMBER} & set(columns):
        raise ValueError(f"Mix: {taken.pop()!r} is what batches of a mixture call the source; rename the column.")
    first, *others = schemas
    if len({schema.id is None for schema in schemas.values()}) > 1:
        raise SchemaMismatchError("Mix: rows are sequences in some sources and samples in others.")
    for name in columns:
        missing = [source for source, schema in schemas.items() if name not in schema]
        if missing:
            raise SchemaMismatchError(
                f"Mix: source {missing[0]!r} has no column {name!r} ({', '.join(schemas[missing[0]])}).",
                hint="Rename it there with `rename_column`, or leave it out of the window.",
            )
        expected = _in_words(schemas[first][name])
        for source in others:
            actual = _in_words(schemas[source][name])
            if actual != expected:
                raise SchemaMismatchError(
                    f"Mix: column {name!r} is {expected} in source {first!r} and {actual} in source {source!r}.",
                    hint="Sources of a mixture need columns of one kind, shape and number type: `widen_column`, "
                    "`add_column` or `rename_column` can make them so.",
                )


def _in_words(column: Column) -> str:
    """A column as far as batches depend on it."""
    if column.category in {"file", "frames"}:
        return f"file ({column.medium})" if column.category == "file" else "encoded images"
    if column.category in {"temporal", "vector"}:
        shape = (
            "any shape" if column.shape is None and column.category == "temporal" else f"{column.shape or column.dim}"
        )
        return f"{column.category} {column.value_type} {shape}"
    return f"{column.category} {column.arrow}"
