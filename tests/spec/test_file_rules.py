"""Every rule of files finds its breach in facts, alone, and says nothing of good ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seqlake.spec.alignment import Clock, Observed
from seqlake.spec.column_types import Audio, ColumnType, Image, Trajectory, Video
from seqlake.spec.rules import (
    Batch,
    Gathered,
    SeenPictures,
    check_cell,
    check_decoded,
    check_notes,
    check_row,
    gather_constant,
)
from seqlake.spec.rules.facts import CellFacts, Damage, FileFacts, RowFacts, Times
from seqlake.spec.rules.files import same_codec
from seqlake.spec.schema import Column, Schema

PLACE = {"location": "data/one.parquet", "sequence_id": "a", "column": "cam", "step": None}
VIDEO = Video(fps=30, codec="avc1", resolution=[64, 48])
AUDIO = Audio(sample_rate=48_000, channels=2)


def times(*ticks: int, tick: Fraction = Fraction(1, 15_360)) -> Times:
    return Times(ticks=np.array(ticks, np.int64), tick=tick)


FILM = FileFacts(name="'f'", codec="h264", size=(64, 48), times=times(*range(0, 10 * 512, 512)))
SOUND = FileFacts(name="'s'", codec="aac", sample_rate=48_000, channels=2, seconds=1.0)
PICTURE = FileFacts(name="picture", format="png", size=(8, 6), bits=16)


def codes(
    cell: CellFacts | FileFacts,
    kind: ColumnType = VIDEO,
    *,
    seen: SeenPictures | None = None,
    notes: Gathered | None = None,
) -> list[str]:
    cell = CellFacts(files=((None, cell),)) if isinstance(cell, FileFacts) else cell
    column, notes = Column("cam", kind.arrow, kind), notes or Gathered()
    found = [*check_cell(cell, column, PLACE, seen=seen or SeenPictures(), notes=notes)]
    found += check_decoded(cell, column, PLACE, notes)
    return [f.code for f in [*found, *check_notes(notes)]]


def many(*pictures: FileFacts | None) -> CellFacts:
    return CellFacts(files=tuple((step, one) for step, one in enumerate(pictures) if one is not None))


CELLS: dict[str, tuple[CellFacts | FileFacts, ColumnType]] = {
    "F404": (replace(FILM, trouble="missing"), VIDEO),
    "F406": (replace(FILM, trouble="empty"), VIDEO),
    "F407": (replace(FILM, trouble="outside"), VIDEO),
    "F408": (replace(FILM, trouble="unreachable"), VIDEO),
    "F409": (replace(FILM, trouble="unreadable"), VIDEO),
    "F410": (replace(FILM, trouble="no stream"), Video(stream=3)),
    "F411": (replace(FILM, cut=True), VIDEO),
    "F412": (replace(FILM, changed=True), VIDEO),
    "F413": (replace(SOUND, sample_rate=16_000), AUDIO),
    "F414": (replace(FILM, times=times(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, tick=Fraction(1, 30))), VIDEO),
    "F415": (replace(FILM, codec="hevc"), VIDEO),
    "F416": (replace(FILM, size=(48, 64)), VIDEO),
    "F417": (many(PICTURE, replace(PICTURE, bits=8)), Image()),
    "F419": (replace(PICTURE, turn=6), Image()),
    "F418": (CellFacts(files=((None, FILM),), part=(5, 6), held=5, count=5), VIDEO),
    "F431": (CellFacts(files=((None, FILM),), damage=(Damage(first=3, last=7, why="lost"),)), VIDEO),
    "F432": (CellFacts(files=((None, FILM),), looked=True, black=True, frozen=True), VIDEO),
    "F433": (CellFacts(files=((None, FILM),), looked=True, frozen=True), VIDEO),
    "F434": (CellFacts(files=((None, SOUND),), looked=True, silent=True), AUDIO),
    "F435": (CellFacts(files=((None, replace(PICTURE, format="gif")),), undecoded=True), Image()),
}


@pytest.mark.parametrize("code", CELLS)
def test_a_rule_of_files_finds_its_breach_alone(code: str) -> None:
    cell, kind = CELLS[code]
    assert codes(cell, kind) == [code]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (FILM, VIDEO),
        (SOUND, AUDIO),
        (PICTURE, Image(format="image/PNG", resolution="8 x 6")),
        (replace(PICTURE, format="jpeg"), Image(format=".jpg")),
        (many(PICTURE, None, PICTURE), Image()),
        (CellFacts(files=((None, FILM),), part=(5, 5), held=5, count=5), VIDEO),
        (CellFacts(files=((None, FILM),), part=(10, 0), held=0, count=0), VIDEO),
        (CellFacts(files=((None, FILM),), looked=True), VIDEO),
        (CellFacts(), VIDEO),
        (replace(FILM, codec=None, size=None, times=None), VIDEO),
        (replace(FILM, times=times(5)), VIDEO),
        (replace(FILM, times=times(0, 9, 40, 60, tick=Fraction(1, 30))), Video(timestamps="t", fps=30)),
        (replace(FILM, size=(3, 3)), Video(resolution="large")),
    ],
)
def test_good_files_have_no_findings(cell: CellFacts | FileFacts, kind: ColumnType) -> None:
    assert codes(cell, kind) == []


@pytest.mark.parametrize(
    ("declared", "shown", "found"),
    [
        (30, times(*range(0, 5120, 512)), []),
        (29.97, times(*range(0, 5120, 512)), ["F413"]),
        (29.97, times(*(round(k * 90_000 * 1001 / 30_000) for k in range(10)), tick=Fraction(1, 90_000)), []),
        (14.985, times(*range(0, 10010, 1001), tick=Fraction(1, 15_000)), []),
        (30, times(0, 33, 67, 100, 133, 167, 200, tick=Fraction(1, 1000)), []),  # Matroska counts milliseconds
        (25, times(0, 33, 67, 100, 133, 167, 200, tick=Fraction(1, 1000)), ["F413"]),
        (30, times(*range(10), tick=Fraction(1, 30)), []),
        (29.97, times(*range(10), tick=Fraction(1, 30)), ["F413"]),
        (30, times(0, 35, 66, 98, 133, 160, 201, tick=Fraction(1, 1000)), []),  # a phone
        (30, times(0, 2, tick=Fraction(1, 30)), ["F413"]),
    ],
)
def test_rates_are_compared_as_exactly_as_the_file_tells_them(declared: float, shown: Times, found: list[str]) -> None:
    assert codes(replace(FILM, times=shown), Video(fps=declared)) == found


@pytest.mark.parametrize(
    ("declared", "found", "same"),
    [
        ("H.264", "h264", True), ("avc1.640028", "h264", True), ("libx264", "h264", True), ("HEVC", "hevc", True),
        ("hev1", "hevc", True), ("H-265", "hevc", True), ("libsvtav1", "av1", True), ("av01.0.05M.08", "av1", True),
        ("mp4v", "mpeg4", True), ("wav", "pcm_s16le", True), ("mp4a.40.2", "aac", True), ("h264", "hevc", False),
        ("vp8", "vp9", False), ("anything", "h264", False), ("anything", "anything", True),
    ],
)  # fmt: skip
def test_codecs_have_many_names(declared: str, found: str, *, same: bool) -> None:
    assert same_codec(declared, found) is same


def test_a_column_keeps_one_bit_depth_over_its_rows() -> None:
    seen = SeenPictures()
    assert codes(many(PICTURE), Image(), seen=seen) == []
    assert codes(many(replace(PICTURE, size=(1, 1))), Image(), seen=seen) == []  # sizes may differ between sequences
    assert codes(many(replace(PICTURE, bits=8)), Image(), seen=seen) == ["F417"]


def test_what_is_false_of_every_file_of_a_column_is_said_once() -> None:
    def told(*codecs: str) -> list[tuple[str, str, str]]:
        notes, column = Gathered(), Column("cam", VIDEO.arrow, VIDEO)
        for number, codec in enumerate(codecs):
            cell = CellFacts(files=((None, replace(FILM, codec=codec)),))
            place = {**PLACE, "sequence_id": str(number)}
            assert list(check_cell(cell, column, place, seen=SeenPictures(), notes=notes)) == []
        return [(f.sequence_id, f.column, f.message) for f in check_notes(notes)]

    assert told("av1", "av1") == [("", "cam", "codec 'avc1' is declared, the file has 'av1', in all 2 sequences")]
    assert told("av1", "h264") == [("0", "cam", "'f': codec 'avc1' is declared, the file has 'av1'")]
    assert [sequence for sequence, _, _ in told("av1", "vp9")] == ["0", "1"]


def test_of_the_pictures_of_a_cell_the_first_is_named() -> None:
    small, gone = replace(PICTURE, format="jpeg"), replace(PICTURE, trouble="missing", why="no file is there")
    column, notes = Column("cam", pa.list_(pa.binary()), Image(format="png")), Gathered()
    found = [*check_cell(many(PICTURE, gone, gone, small), column, PLACE, seen=SeenPictures(), notes=notes)]
    found += check_notes(notes)
    assert [(f.code, f.step, f.message) for f in found] == [
        ("F404", 1, "picture: no file is there, and at 1 more steps"),
        ("F415", 3, "picture: format 'png' is declared, the file is 'jpeg'"),
    ]


# ---- counts

SCHEMA = Schema({
    "x": Trajectory(dim=1), "slow": Video(fps=15), "cam": Video(fps=30), "own": Video(timestamps="t"),
    "t": pa.list_(pa.int64()), "mic": Audio(),
})  # fmt: skip
CLOCK = Clock(rate=Fraction(30), rule="given")


def judged(
    clock: Clock = CLOCK, *, length: int | None = None, seconds: float | None = None, **counts: int
) -> list[str]:
    """The columns that a finding is about, for a row with these steps (`x`, `t`) and frames."""
    steps = {name: counts.pop(name) for name in ("x", "t") if name in counts}
    cells = {name: CellFacts(files=((None, FILM),), count=count) for name, count in counts.items()}
    if seconds is not None:
        cells["mic"] = CellFacts(files=((None, replace(SOUND, seconds=seconds)),))
    row = RowFacts(
        places={name: {**PLACE, "column": name} for name in cells},
        cells=cells,
        observed=Observed(steps=steps, frames=counts, length=length),
        schema=SCHEMA,
    )
    found = list(check_row(row, clock))
    assert {f.code for f in found} <= {"F421", "F422"}
    return [f.column for f in found]


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ({"x": 30, "cam": 30, "slow": 15}, []),
        ({"x": 30, "cam": 29}, ["cam"]),
        ({"x": 30, "cam": 31}, ["cam"]),
        ({"x": 31, "slow": 15}, []),
        ({"x": 31, "slow": 16}, []),
        ({"x": 31, "slow": 14}, ["slow"]),
        ({"x": -1, "cam": 29, "length": 30}, ["cam"]),
        ({"length": 30, "cam": 30, "slow": 15}, []),
        ({"slow": 15, "cam": 30}, []),
        ({"slow": 15, "cam": 33}, ["cam"]),
        ({"cam": 30}, []),
        ({"x": 30, "own": 7, "t": 7}, []),
        ({"x": 30, "own": 7, "t": 8}, ["own"]),
        ({"x": 30, "own": 7, "t": -1}, []),
        ({"x": 30, "seconds": 1.05}, []),
        ({"x": 30, "seconds": 0.8}, ["mic"]),
        ({"x": 30, "seconds": 1.3}, ["mic"]),
        ({"seconds": 1.3}, []),
    ],
)
def test_frames_and_sound_are_counted_against_steps(facts: dict[str, Any], wrong: list[str]) -> None:
    assert judged(**facts) == wrong


def test_without_a_clock_frames_are_steps() -> None:
    nothing = Clock(rate=None, rule="none")
    assert judged(nothing, x=30, slow=30) == []
    assert judged(nothing, x=30, slow=15) == ["slow"]
    assert judged(nothing, x=30, seconds=9.0) == []


# ---- notes


def test_notes_are_gathered_by_column() -> None:
    notes = Gathered()
    for name, black in (("a", True), ("b", True), ("c", False)):
        cell = CellFacts(files=((None, FILM),), looked=True, black=black)
        place = {**PLACE, "sequence_id": name}
        assert list(check_decoded(cell, SCHEMA["cam"], place, notes)) == []
        if name != "a":
            assert list(check_decoded(cell, SCHEMA["slow"], {**place, "column": "slow"}, notes)) == []
        every = replace(cell, black=False, frozen=True)
        assert list(check_decoded(every, SCHEMA["own"], {**place, "column": "own"}, notes)) == []
    assert [(f.code, f.column, f.sequence_id) for f in check_notes(notes)] == [
        ("F432", "cam", "a"), ("F432", "cam", "b"), ("F432", "slow", "b"), ("F433", "own", "")
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.list_(pa.list_(pa.float32())), pa.list_(pa.list_(pa.int16(), 2))])
def test_signals_that_never_change(kind: pa.DataType) -> None:
    schema = Schema({"x": Trajectory(dim=2)})
    cells = [[[1, 2]] * 4, None, [[1, 2], [1, 3], [1, 2]], [], [[1, 2]], [[5, 5]] * 2]
    rows = pa.record_batch({"sequence_id": pa.array([*"abcdef"]), "x": pa.array(cells, kind)})
    notes = Gathered()
    gather_constant(Batch(rows=rows, schema=schema), notes)
    assert [(f.code, f.sequence_id) for f in check_notes(notes)] == [("R317", "a"), ("R317", "f")]
    gather_constant(Batch(rows=rows.slice(1, 1), schema=schema), notes)
    assert notes.looked == {("R317", "x"): 3}


CODES = {*CELLS, "F421", "F422", "R317"}
