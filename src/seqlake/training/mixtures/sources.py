"""Several datasets under one loader: each is read as if it were alone, and batches are put together from theirs."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.abilities import Pinnable, ability
from seqlake.errors import SchemaMismatchError
from seqlake.training.batches import Assembler, Chunk, Found
from seqlake.training.fetching.range_batches import RangeAssembler
from seqlake.training.gather import Memory
from seqlake.training.mixtures.parts import scattered, some, together
from seqlake.training.mixtures.samples import Mixture, Part, split
from seqlake.training.mixtures.schedule import Mix
from seqlake.training.prepared import Prepared
from seqlake.training.telemetry import Fetched
from seqlake.training.visits import Visits
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column, Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Batch, Samples
    from seqlake.training.cells import Cells
    from seqlake.training.frames.ahead import FrameStream
    from seqlake.training.frames.batch import FrameBatch
    from seqlake.training.gather import Pace
    from seqlake.training.opened import Opened
    from seqlake.training.settings import Settings
    from seqlake.training.survey import Survey
    from seqlake.training.telemetry import Telemetry
    from seqlake.windows.tracks import Track


def prepare(source: Readable | Mix, settings: Settings) -> Prepared:
    """What a loader knows of one dataset, or of several.

    Raises:
        SchemaMismatchError: Several datasets whose columns do not agree.
    """
    # A dataset moves on with its commits, and rows without a name would count as samples: a selection can pin both.
    if not isinstance(source, Mix):
        pinned = _pinned(source)
        return Prepared(pinned, _named(settings, pinned.schema))
    return PreparedMix.of(source, settings)


def _named(settings: Settings, schema: Schema) -> Settings:
    """The settings with all columns named where all are meant."""
    window = settings.window
    return replace(settings, window=window.of(list(schema))) if isinstance(window, Whole) else settings


def _pinned(source: Readable) -> Readable:
    known = ability(source, Pinnable)
    return source if known is None else known.with_id()


class PreparedMix(Prepared):
    """`Prepared` of several datasets.

    Attributes:
        members: Each dataset, with the same settings.
    """

    members: list[Prepared]

    @classmethod
    def of(cls, mix: Mix, settings: Settings) -> PreparedMix:
        """From the sources as they are given; see `prepare`."""
        sources = {name: _pinned(source) for name, source in mix.sources.items()}
        settings = _named(settings, next(iter(sources.values())).schema)
        _check({name: source.schema for name, source in sources.items()}, settings.window.columns)
        pinned = copy(mix)
        pinned.sources = sources
        made = cls(cast("Readable", pinned), settings)
        made.members = [Prepared(source, settings) for source in sources.values()]
        made.share(1)
        return made

    def share(self, users: int, /) -> None:
        """As for one dataset: here each dataset is a user."""
        super().share(users)
        for member in self.members:
            member.share(users * len(self.members))

    @property
    def mix(self) -> Mix:
        """Names and proportions."""
        return cast("Mix", self.source)  # what is asked of a `Readable` is asked of the members

    def changed(self, settings: Settings) -> PreparedMix:
        """The same sources with other settings."""
        if settings.groups is not None:
            raise ValueError("weights: groups are those of one dataset. Give the sources of a Mix their weights there.")
        other = PreparedMix(self.source, settings)
        other.members = [member.changed(settings) for member in self.members]
        if settings.shuffle == self.settings.shuffle and settings.seed == self.settings.seed:
            other.__dict__.update({"mixture": self.mixture} if "mixture" in self.__dict__ else {})
        return other

    @property
    def schema(self) -> Schema:
        """The columns of the first dataset, with which those of all agree where the window asks for them."""
        return self.members[0].schema

    @property
    def surveys(self) -> Sequence[Survey]:
        """The datasets through the window."""
        return [member.survey for member in self.members]

    @cached_property
    def first_rows(self) -> Ints:
        """[datasets + 1] number of the first row of each among all rows."""
        rows = [survey.rows for survey in self.surveys]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])

    @cached_property
    def first_shards(self) -> Ints:
        """[datasets + 1] number of the first shard of each among all shards."""
        shards = [len(survey.shards) for survey in self.surveys]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(shards, dtype=np.int64)])

    @cached_property
    def mixture(self) -> Mixture:
        """Which window of which dataset each sample is."""
        parts = [
            Part.of(
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
    def fingerprint(self) -> str:
        """Of all datasets, with their names."""
        told = repr([(name, each.fingerprint) for name, each in zip(self.mix.sources, self.members, strict=True)])
        return "mix " + hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def opened(self) -> Opened:
        """The shards in use, of all datasets."""
        return cast("Opened", MixOpened(self))

    def report(self) -> Telemetry:
        """The meter's counts, with what the shards in use know."""
        files = sum((member.files_read for member in self.members), Fetched())
        return self.meter.report(held=self.opened.decoded, fetched=self.opened.fetched, files=files)

    def assembler(self, *, sharers: int = 1) -> Assembler:
        """Makes batches of samples of all datasets."""
        return MixAssembler(self, sharers=sharers)

    def frame_stream(self, *, sharers: int) -> FrameStream | None:
        """Decodes frames of all datasets, on one set of threads."""
        for member in self.members:
            member.meter = self.meter
        return cast("FrameStream", MixFrames(self, sharers=sharers)) if self.surveys[0].framed else None

    def windows(self) -> int:
        """Windows of all datasets."""
        return sum(len(survey.axis) for survey in self.surveys)

    def locate(self, numbers: Ints) -> tuple[Ints, Ints]:
        """[n] windows in source order, dataset after dataset -> row and anchor of each."""
        ends = np.cumsum([len(survey.axis) for survey in self.surveys])
        rows, anchors = np.empty_like(numbers), np.empty_like(numbers)
        for number, own in split(np.searchsorted(ends, numbers, side="right")):
            before = int(ends[number - 1]) if number else 0
            found, anchors[own] = self.members[number].locate(numbers[own] - before)
            rows[own] = found + self.first_rows[number]
        return rows, anchors

    def numbers(self, rows: Ints, anchors: Ints) -> Ints:
        """[n] rows, counted through the datasets, and anchors -> windows in source order, dataset after dataset."""
        found, before = np.empty_like(rows), np.cumsum([0, *(len(survey.axis) for survey in self.surveys)])
        for number, own in self.by_member(rows):
            found[own] = before[number] + self.members[number].numbers(
                rows[own] - self.first_rows[number], anchors[own]
            )
        return found

    def by_member(self, rows: Ints) -> list[tuple[int, Ints]]:
        """Each dataset that rows belong to, and which of them do."""
        return list(split(np.searchsorted(self.first_rows, rows, side="right") - 1))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "members": self.members}


class MixFrames:
    """`FrameStream` of several datasets."""

    def __init__(self, prepared: PreparedMix, *, sharers: int) -> None:
        self._prepared = prepared
        streams = [member.frame_stream(sharers=sharers) for member in prepared.members]
        self._streams = [stream for stream in streams if stream is not None]
        self.harmed: dict[int, list[Harm]] = {}
        for stream in self._streams[1:]:
            stream.share(self._streams[0])

    def begin(self, rows: Ints, anchors: Ints) -> list[tuple[int, Ints, FrameBatch]]:
        """Have the frames of one batch decoded."""
        first = self._prepared.first_rows
        return [
            (member, own, self._streams[member].begin(rows[own] - first[member], anchors[own]))
            for member, own in self._prepared.by_member(rows)
        ]

    def take(self, begun: list[tuple[int, Ints, FrameBatch]]) -> Batch:
        """The frames of a batch that was begun."""
        parts: list[tuple[Ints, Batch]] = []
        self.harmed = {}
        for member, own, batch in begun:
            parts.append((own, self._streams[member].take(batch)))
            self.harmed |= {int(own[place]): harms for place, harms in self._streams[member].harmed.items()}
        return together(parts, self._prepared.settings.window)

    def close(self) -> None:
        """End the threads."""
        for stream in self._streams:
            stream.close()


# ---- do the columns agree?


def _check(schemas: dict[str, Schema], columns: Any) -> None:
    """Every column of the window is the same in all datasets."""
    if taken := {NAME, NUMBER} & set(columns):
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
        expected = _told(schemas[first][name])
        for source in others:
            found = _told(schemas[source][name])
            if found != expected:
                raise SchemaMismatchError(
                    f"Mix: column {name!r} is {expected} in source {first!r} and {found} in source {source!r}.",
                    hint="Sources of a mixture need columns of one kind, shape and number type: `widen_column`, "
                    "`add_column` or `rename_column` can make them so.",
                )


def _told(column: Column) -> str:
    """A column as far as batches depend on it, in words."""
    if column.category in {"file", "frames"}:
        return column.category if column.category == "file" else "encoded images"
    if column.category in {"temporal", "vector"}:
        shape = (
            "any shape" if column.shape is None and column.category == "temporal" else f"{column.shape or column.dim}"
        )
        return f"{column.category} {column.value_type} {shape}"
    return f"{column.category} {column.arrow}"


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


NAME, NUMBER = "source", "source_number"
"""What batches of several datasets say beside their columns."""

_Parts = dict[int, tuple["Ints", Chunk]]
"""Dataset -> the positions of its samples, and what is known of their windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixChunk:
    """Some steps' samples, of which each batch is prepared by itself.

    Attributes:
        parts: Of each batch; empty where that is done when it is made.
        origins: Bytes of the batch that was made last, by where they were copied from.
    """

    samples: Samples
    size: int
    parts: Sequence[_Parts] = ()
    origins: dict[str, float] = field(default_factory=dict)


class MixAssembler(Assembler):
    """`Assembler` of several datasets.

    Where the windows of all lie alike in memory they are copied by one index, whichever dataset each is of. Whole
    sequences, windows read by range and shards of unlike layouts are assembled dataset by dataset and put together.
    """

    def __init__(self, prepared: PreparedMix, *, sharers: int) -> None:
        super().__init__(prepared.surveys[0], prepared.opened)
        self._prepared = prepared
        self._assemblers = [member.assembler(sharers=sharers) for member in prepared.members]
        self._names = np.array([*prepared.mix.sources, None], dtype=object)[:-1]
        self._sequences = isinstance(prepared.settings.window, Whole)
        self._paces: dict[int, Pace] = {}
        self._reads = any(isinstance(assembler, RangeAssembler) for assembler in self._assemblers)

    def reuse_buffers(self) -> None:
        """Nothing: batches are put together in fresh memory."""

    def harmed(self, samples: Samples) -> dict[int, Sequence[Harm]]:
        """Place in a batch -> what only making it showed to be bad."""
        found: dict[int, Sequence[Harm]] = {}
        for member, which in self._prepared.by_member(samples.rows):
            own = some(samples, which, before=int(self._prepared.first_rows[member]))
            harms = self._assemblers[member].harmed(own)
            found |= {int(which[place]): harms[place] for place in harms}
        return {place: found[place] for place in found if place not in samples.bad}

    def prepare(self, samples: Samples, *, size: int) -> Chunk:
        """Find where the windows of some batches lie; see `Assembler.prepare`."""
        count = len(samples.rows)
        parts: list[_Parts] = []
        if self._reads:  # begin to read all of it
            parts = [self._parts(some(samples, slice(at, at + size))) for at in range(0, count, size)]
        elif count and not self._sequences and (found := self._one(samples, self._parts(samples), size)) is not None:
            return found
        return cast("Chunk", MixChunk(samples=samples, size=size, parts=parts))

    def batch(self, chunk: Chunk | MixChunk, number: int) -> Batch:
        """One batch of a chunk, with the source of each sample."""
        if isinstance(chunk, Chunk):
            return super().batch(chunk, number)
        own = slice(number * chunk.size, (number + 1) * chunk.size)
        samples = some(chunk.samples, own)
        found: list[tuple[Ints, Batch]] = []
        chunk.origins.clear()
        parts = chunk.parts[number] if chunk.parts else self._parts(samples)
        for member, (which, part) in parts.items():
            found.append((which, self._assemblers[member].batch(part, 0)))
            for origin, count in part.origins.items():
                chunk.origins[origin] = chunk.origins.get(origin, 0.0) + count
        return {**together(found, self._prepared.settings.window), **self._told(samples, parts)}

    def close(self) -> None:
        """End what is done ahead of batches."""
        super().close()
        for assembler in self._assemblers:
            assembler.close()

    def _parts(self, samples: Samples) -> _Parts:
        """The samples of each dataset, prepared as one batch."""
        found: _Parts = {}
        for member, which in self._prepared.by_member(samples.rows):
            mine = some(samples, which, before=int(self._prepared.first_rows[member]))
            found[member] = which, self._assemblers[member].prepare(mine, size=len(which))
        return found

    def _told(self, samples: Samples, parts: _Parts) -> Batch:
        """[n] name and number of the source of each sample."""
        members = np.zeros(len(samples.rows), dtype=np.int64)
        for member, (which, _) in parts.items():
            members[which] = member
        return {NAME: self._names[members], NUMBER: members}

    # ---- all datasets as one

    def _one(self, samples: Samples, parts: _Parts, size: int) -> Chunk | None:
        """What is known of the windows of all datasets; None where they do not lie alike."""
        opened = {member: self._prepared.members[member].opened for member in parts}
        if not all(_alike([opened[m].cells[track.column] for m in parts]) for track in self._survey.tracks):
            return None
        memory = Memory.joined([each.memory for each in opened.values()], paces=self._paces)
        self.opened.cells = next(iter(opened.values())).cells
        count = len(samples.rows)
        values = {
            name: scattered([(which, part.values[name]) for which, part in parts.values()], count, name=name)
            for name in next(iter(parts.values()))[1].values
        }
        origins: dict[str, float] = {}
        for _, part in parts.values():
            for origin, nbytes in part.origins.items():
                origins[origin] = origins.get(origin, 0.0) + nbytes * size / count
        return Chunk(
            samples=samples,
            size=size,
            columns={track.column: self._merged(track, parts, memory, count, size) for track in self._survey.tracks},
            values={**values, **self._told(samples, parts)},
            origins=origins,
            pieces=memory.pieces,
        )

    def _merged(self, track: Track, parts: _Parts, memory: Memory, count: int, size: int) -> Found:
        """Where the windows of one column lie, of all datasets."""
        found = [(which, part.columns[track.column]) for which, part in parts.values()]
        mask = scattered([(which, each.mask) for which, each in found], count, name=track.column)
        lacking = any(each.missing for _, each in found)
        missing = self._by_batch(np.flatnonzero(~mask), mask.size, size * track.width) if lacking else []
        readable = next((each.runs.addresses[:1] for _, each in found if each.runs is not None), None)
        if readable is None:
            numbers = scattered([(which, each.numbers) for which, each in found], count, name=track.column)
            return Found(mask=mask, missing=missing, runs=None, apart=np.zeros(0, np.int64), numbers=numbers)
        addresses = np.empty(count, np.int64)
        for which, each in found:
            addresses[which] = readable if each.runs is None else each.runs.addresses
        alone = np.concatenate([which if each.runs is None else which[each.apart] for which, each in found])
        order = np.argsort(alone, kind="stable")
        cells = self.opened.cells[track.column]
        layout = cells.layouts[0]
        cell = layout.stored, (track.width, *(cells.shape or ()))
        at_once = self._copied_together(size)
        return Found(
            mask=mask,
            missing=missing,
            runs=memory.ranges(addresses, track.width * layout.stride, size=size, cell=cell, together=at_once),
            apart=alone[order],
            numbers=np.concatenate([each.numbers for _, each in found])[order],
        )

    def picks(self, cells: Cells, rows: Ints, numbers: Ints) -> NDArray[Any]:
        """[n, W, ...] steps gathered one by one, dataset by dataset; rows are counted through all of them."""
        if not len(rows):
            return np.zeros((*numbers.shape, *(cells.shape or ())), cells.layouts[0].stored)
        parts: list[tuple[Ints, NDArray[Any]]] = []
        for member, own in self._prepared.by_member(rows):
            assembler, first = self._assemblers[member], self._prepared.first_rows[member]
            mine = assembler.opened.cells[cells.name]
            parts.append((own, assembler.picks(mine, rows[own] - first, numbers[own])))
        return scattered(parts, len(rows), name=cells.name)


def _alike(cells: Sequence[Cells]) -> bool:
    """Whether the steps of a column have one layout in all datasets."""
    return len({layout for each in cells for layout in each.layouts}) == 1 and len({each.shape for each in cells}) == 1
