"""What rules judge: some rows with what is known of them, and what was seen in the files that rows name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pyarrow.compute as pc

from seqlake.spec.alignment import Clock
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.spec.alignment import Observed
    from seqlake.spec.schema import Schema

Trouble = Literal["missing", "empty", "outside", "unreachable", "unreadable", "no stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows, as they are stored or as streams show them, and what is known of them."""

    rows: pa.RecordBatch
    schema: Schema
    location: str = ""
    """The shard, relative to the dataset's root."""

    start: int = 0
    """Number of the first of these rows in its shard."""

    clock: Clock = field(default_factory=lambda: Clock(rate=None, rule="not asked"))

    def held(self, name: str, /) -> Column:
        """A column as these rows hold it: its declared type over the Arrow type that is there."""
        return Column(name, self.rows.schema.field(name).type, self.schema[name].type)

    def columns(self, *categories: str) -> list[str]:
        """The columns of these categories that the rows have, in a form that can be judged cell by cell."""
        wanted = [n for n, c in self.schema.items() if c.category in categories and n in self.rows.schema.names]
        return [n for n in wanted if self.held(n).category == self.schema[n].category]

    @property
    def inline(self) -> list[str]:
        """The columns of sequences whose cells are the bytes of files."""
        there = [n for n, c in self.schema.items() if c.inline and n in self.rows.schema.names]
        return [] if self.schema.id is None else [n for n in there if self.held(n).inline]

    def steps(self, name: str, /) -> list[int]:
        """T of each cell of a list or raw column; -1 for null."""
        return steps_of(self.rows.column(name), self.held(name))

    def place(self, row: int, column: str = "", step: int | None = None) -> dict[str, Any]:
        """Where a finding is."""
        name = ""
        if self.schema.id is not None and self.schema.id in self.rows.schema.names:
            name = str(self.rows.column(self.schema.id)[row].as_py() or f"row {self.start + row}")
        return {"location": self.location, "sequence_id": name, "column": column, "step": step}


@dataclass(slots=True)
class SeenIds:
    """What is remembered from one batch to the next."""

    first: dict[str, str] = field(default_factory=dict)
    """The place of each id."""

    dims: dict[str, int] = field(default_factory=dict)
    """Numbers per step of each signal that does not declare them."""


def steps_of(cells: pa.Array, column: Column, /) -> list[int]:
    """T of each cell; -1 for null."""
    if column.raw:
        width = step_width(column)
        return [-1 if n is None else n // width for n in pc.binary_length(cells).to_pylist()]
    return [-1 if n is None else n for n in pc.list_value_length(cells).to_pylist()]


def step_width(column: Column) -> int:
    """Bytes of one step of a raw column."""
    assert column.value_type is not None
    assert column.dim is not None
    return column.dim * int(column.value_type.bit_width) // 8


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """When the frames of a video are shown."""

    ticks: NDArray[np.int64]
    """[frames] ascending."""

    tick: Fraction
    """Seconds of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Frames, or samples, that cannot be decoded, one after another."""

    first: int
    last: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileFacts:
    """What one file, or one picture in a row, says of itself; None where it does not say or was not asked."""

    name: str
    """What findings call it: the reference, or `picture`."""

    trouble: Trouble | None = None
    """Why nothing else is known."""

    why: str = ""
    """The trouble in words."""

    changed: bool = False
    """Its bytes are not those that were copied in."""

    cut: bool = False
    """It ends before its head says."""

    format: str | None = None
    codec: str | None = None
    size: tuple[int, int] | None = None
    """Width and height as shown."""

    bits: int | None = None
    """Of one colour of a pixel."""

    pixels: str | None = None
    """FFmpeg's name of a video's pixels."""

    array: tuple[str, int] | None = None
    """The type of number, and the channels, that a picture is handed out as."""

    turn: int = 1
    """How a picture is turned, as EXIF counts it, where its column does not say what becomes of turns."""

    times: Times | None = None
    sample_rate: int | None = None
    channels: int | None = None
    seconds: float | None = None
    """How long sound lasts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellFacts:
    """What was found behind one cell: one file, or one picture for each step."""

    files: tuple[tuple[int | None, FileFacts], ...] = ()
    """With the step, where there is one."""

    count: int | None = None
    """Frames of a video, or of this row's part of it."""

    part: tuple[int, int] | None = None
    """The first frame and the number of frames that the cell declares as its own."""

    held: int | None = None
    """Frames from the first of that part to the end of the file."""

    damage: tuple[Damage, ...] = ()
    looked: bool = False
    """It was decoded, and shows what follows."""

    black: bool = False
    frozen: bool = False
    silent: bool = False
    undecoded: bool = False
    """Nothing here decodes this kind of file, though it was wanted."""

    kind: str = ""
    """Then: what it is and how it is read, a sentence."""

    unread: str = ""
    """Why its frames are not given to readers, though they decode."""

    @property
    def many(self) -> bool:
        """Whether it is a picture for each step."""
        return bool(self.files) and self.files[0][0] is not None

    @property
    def name(self) -> str:
        """The file's name before a message, where the cell names one file."""
        return f"{self.files[0][1].name}: " if self.files and not self.many else ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowFacts:
    """What one row shows, and what was found behind its file cells."""

    places: Mapping[str, dict[str, Any]]
    """Where a finding about each of these columns is."""

    cells: Mapping[str, CellFacts]
    observed: Observed
    """Its steps, and the frames of those videos that could be opened."""

    schema: Schema


@dataclass(slots=True)
class SeenPictures:
    """What is remembered of pictures from one row to the next."""

    kinds: dict[str, str] = field(default_factory=dict)
    """What the first picture of each column is handed out as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One thing to say of one sequence."""

    place: Mapping[str, Any]
    message: str
    """What may be the same for others."""

    about: str = ""
    """The file, which is not."""

    more: str = ""
    """What else, as in `and at 3 more steps`."""

    def to_finding(self) -> dict[str, Any]:
        """As a rule yields it."""
        about = f"{self.about}: " if self.about else ""
        return {**self.place, "message": f"{about}{self.message}{self.more}"}


@dataclass(slots=True)
class Gathered:
    """What is said once of a column where the same holds in all its sequences, and otherwise of each of them."""

    looked: dict[tuple[str, str], int] = field(default_factory=dict)
    """Sequences that were looked at, by rule and column."""

    said: dict[tuple[str, str], list[Said]] = field(default_factory=dict)
    """What there is to say, of those of which there is something."""

    def look(self, code: str, place: Mapping[str, Any], /, *said: Said) -> None:
        """One more sequence was looked at, and this is to be said of it."""
        key = (code, str(place["column"]))
        self.looked[key] = self.looked.get(key, 0) + 1
        if said:
            self.said.setdefault(key, []).extend(said)

    def note(self, code: str, place: Mapping[str, Any], message: str, /, *, holds: bool) -> None:
        """One more sequence was looked at: the message is true of it, or not."""
        self.look(code, place, *([Said(place=place, message=message)] if holds else []))

    def findings_of(self, code: str, /) -> Iterator[dict[str, Any]]:
        """What one rule has to say, now that all sequences were looked at."""
        for (of, column), said in self.said.items():
            if of != code:
                continue
            if len(said) == self.looked[of, column] > 1 and len({one.message for one in said}) == 1:
                yield {"message": f"{said[0].message}, in all {len(said)} sequences", "column": column}
            else:
                yield from (one.to_finding() for one in said)
