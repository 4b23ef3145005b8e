"""Several datasets under one loader: each is read as if it were alone, and batches are put together from theirs."""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from seqlake.abilities import Pinnable, ability
from seqlake.errors import SchemaMismatchError
from seqlake.training.mixtures.batches import NAME, NUMBER, MixAssembler
from seqlake.training.mixtures.opened import MixOpened
from seqlake.training.mixtures.parts import together
from seqlake.training.mixtures.samples import Mixture, Part, split
from seqlake.training.mixtures.schedule import Mix
from seqlake.training.prepared import Prepared
from seqlake.training.telemetry import Fetched
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Ints, Readable
    from seqlake.spec.schema import Column, Schema
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Assembler, Batch
    from seqlake.training.frames.ahead import FrameStream
    from seqlake.training.frames.batch import FrameBatch
    from seqlake.training.opened import Opened
    from seqlake.training.settings import Settings
    from seqlake.training.survey import Survey
    from seqlake.training.telemetry import Telemetry


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
