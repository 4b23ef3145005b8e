"""Every rule: one case that breaks it, and none that it should let pass."""

from __future__ import annotations

import dataclasses
import struct
from fractions import Fraction

import pyarrow as pa
import pytest

from seqlake.errors import ValidationError
from seqlake.spec.alignment import Clock
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory, Video
from seqlake.spec.findings import Finding, Report
from seqlake.spec.metadata import Metadata
from seqlake.spec.rules import (
    RULES,
    Batch,
    References,
    SeenIds,
    check_arrow,
    check_metadata,
    check_places,
    check_references,
    check_rows,
    check_schema,
    signals,
)
from seqlake.spec.schema import Column, Schema

from . import test_file_rules

F = pa.float32()
LL = pa.list_(pa.list_(F))


def codes(findings) -> set[str]:
    return {finding.code for finding in findings}


GOOD_TEXT = '{"mixtrain": "1.0", "column_types": {"a": {"type": "trajectory"}}}'
BAD_TEXTS = {"M101": '{"column_types": {}}', "M102": '{"mixtrain": "2.0"}', "M103": '{"mixtrain": "1.7"}'}


@pytest.mark.parametrize(("code", "text"), BAD_TEXTS.items())
def test_metadata_rule_finds_its_breach_alone(code, text) -> None:
    assert codes(check_metadata(text)) == {code}


def test_good_metadata_has_no_findings() -> None:
    assert codes(check_metadata(GOOD_TEXT)) == set()


def schema(arrow: pa.DataType, kind: ColumnType | None, **others: pa.DataType) -> Schema:
    return Schema({"c": Column("c", arrow, kind), **others})


BAD_SCHEMAS = {
    "M104": Schema({"a": F}, metadata=Metadata(column_types={"b": Video()})),
    "M105": schema(LL, Trajectory(dim=0)),
    "M106": schema(pa.string(), Video(fps=-1)),
    "M107": schema(pa.list_(pa.list_(F, 3)), Trajectory(dim=4)),
    "M108": schema(pa.string(), Trajectory()),
    "M109": schema(pa.int64(), Video()),
    "M110": schema(pa.string(), Embedding()),
    "M111": schema(pa.binary(), Trajectory(encoding="raw")),
    "M112": schema(LL, Trajectory(encoding="zip")),
    "M113": schema(LL, Trajectory(timestamps="t")),
    "M114": schema(LL, Trajectory(dim=9, shape=(3, 4))),
    "M115": schema(LL, Trajectory(dim=2, names=["x"])),
    "M118": schema(pa.string(), ColumnType("nifti")),
    "M119": Schema({"action": F}, metadata=Metadata(column_types={"acton": Trajectory()})),
    "M120": schema(pa.list_(pa.struct({"x": F})), Trajectory()),
    "M121": schema(pa.string(), ColumnType("audio", stream=-1)),
    "S201": Schema({"a": F}, id=None),
    "S203": Schema({"task": F, "Task": F}),
    "S205": Schema({"length": pa.string()}),
    "S204": schema(pa.list_(pa.list_(pa.string())), None),
}


ID = pa.field("sequence_id", pa.string())
BAD_FILES = {
    "S201": [pa.schema([]), pa.schema([("a", F)]), pa.schema([("sequence_id", pa.int64())])],
    "S202": [pa.schema([ID, ("a", F), ("a", F)]), pa.schema([ID, ID])],
    "S203": [pa.schema([ID, ("a", F), ("A", F)])],
}


@pytest.mark.parametrize(("code", "file"), [(code, file) for code, files in BAD_FILES.items() for file in files])
def test_file_rule_finds_its_breach_alone(code, file) -> None:
    assert codes(check_arrow(file, location="part-0.parquet")) == {code}


def test_a_good_file_has_no_findings() -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        assert codes(check_arrow(pa.schema([("sequence_id", kind), ("a", F), ("b", F)]))) == set()


def test_metadata_in_two_places() -> None:
    twice = [("table property", GOOD_TEXT), ("mixtrain.json", GOOD_TEXT + "\n")]
    [same] = check_places(twice)
    assert (same.code, same.location, "differ" in same.message) == ("M117", "mixtrain.json", False)
    [other] = check_places([*twice[:1], ("mixtrain.json", "{}")])
    assert "differ" in other.message
    assert list(check_places(twice[:1])) == []
    [none] = check_places([("table property", "")])
    assert (none.code, none.location) == ("M122", "table property")
    assert [one.code for one in check_places([("table property", ""), *twice[1:]])] == ["M122"]


MORE_BAD_SCHEMAS = [
    ("M105", schema(LL, ColumnType("trajectory", dim=True))),
    ("M105", schema(LL, ColumnType("trajectory", dim="7"))),
    ("M106", schema(pa.string(), ColumnType("audio", sample_rate="48k"))),
    ("M107", schema(pa.list_(F, 3), Embedding(dim=4))),
    ("M108", schema(pa.list_(pa.list_(pa.string())), Trajectory())),
    ("M109", schema(pa.struct({"path": pa.string()}), Video())),
    ("M110", schema(pa.list_(pa.string()), Embedding())),
    ("M111", schema(pa.binary(), ColumnType("trajectory", dim=2, encoding="raw", dtype="complex64"))),
    ("M112", schema(pa.string(), ColumnType("trajectory", encoding="raw"))),
    ("M113", schema(LL, Trajectory(timestamps="t"), t=pa.int64())),
    ("M113", schema(LL, Trajectory(timestamps="t"), t=pa.list_(pa.string()))),
    ("M113", schema(LL, ColumnType("trajectory", timestamps=5))),
    ("M113", schema(LL, Trajectory(timestamps="t", origin="nowhere"), t=pa.list_(pa.int64()))),
    ("M113", schema(LL, Trajectory(timestamps="t", origin=True), t=pa.list_(pa.int64()))),
    ("M114", schema(LL, ColumnType("trajectory", dim=3, shape="3"))),
    ("M114", schema(LL, ColumnType("trajectory", dim=3, shape=[3, 0]))),
    ("S204", schema(pa.list_(pa.list_(pa.list_(pa.string()))), None)),
    ("M121", schema(pa.string(), ColumnType("video", stream="rgb"))),
    ("M121", schema(pa.string(), ColumnType("image", frames=["bytes"]))),
    ("M121", schema(LL, ColumnType("trajectory", names="x"))),
    ("S205", Schema({"created_at": pa.string()})),
]


@pytest.mark.parametrize(("code", "bad"), MORE_BAD_SCHEMAS)
def test_schema_rule_finds_other_breaches(code, bad) -> None:
    assert code in codes(check_schema(bad))


GOOD_SCHEMAS = [
    schema(pa.list_(F, 8), ColumnType("trajectory", dim=1)),  # the fixed size is T
    schema(pa.list_(pa.list_(F, 3)), Trajectory(dim=3)),
    schema(LL, Trajectory(timestamps="t"), t=pa.list_(pa.timestamp("ns"))),
    schema(LL, Trajectory(timestamps="t"), t=pa.list_(pa.list_(pa.float64()))),
    schema(pa.string(), Video(fps=10**400)),
    schema(pa.binary(), Trajectory(dim=2, dtype=pa.float16(), encoding="raw")),
    schema(pa.struct({"url": pa.string()}), Video()),
    Schema(
        {"length": pa.int32(), "duration_seconds": pa.float32(), "reward": pa.int64(), "created_at": pa.timestamp("s")}
    ),
    Schema({"name": pa.string()}, id="name"),
]


@pytest.mark.parametrize("good", GOOD_SCHEMAS)
def test_good_schemas_have_no_findings(good) -> None:
    assert codes(check_schema(good)) == set()


@pytest.mark.parametrize(("code", "bad"), BAD_SCHEMAS.items())
def test_schema_rule_finds_its_breach_alone(code, bad) -> None:
    found = list(check_schema(bad))
    assert codes(found) == {code}
    assert all(str(finding).startswith(f"{RULES[code].severity} {code}") for finding in found)


def test_a_good_schema_has_no_findings() -> None:
    good = Schema({
        "a": Trajectory(dim=9, shape=(3, 3), names=list("abcdefghi"), fps=20, timestamps="t"),
        "t": pa.list_(pa.int64()),
        "raw": Trajectory(dim=2, encoding="raw"),
        "e": Embedding(dim=4),
        "f": Image(frames="bytes"),
        "v": Video(fps=29.97),
        "n": pa.int64(),
    })  # fmt: skip
    assert codes(check_schema(good)) == set()


SCHEMA = Schema({
    "length": pa.int64(),
    "duration_seconds": pa.float64(),
    "a": Trajectory(dim=2, timestamps="t"),
    "b": Trajectory(dim=1),
    "c": Trajectory(dim=1, timestamps="u"),
    "u": pa.list_(pa.int64()),
    "free": Trajectory(dtype=pa.float64()),
    "seen.time": pa.list_(pa.float64()),
    "t": pa.list_(pa.int64()),
    "raw": Trajectory(dim=2, encoding="raw"),
    "e": Embedding(dim=2),
    "v": Video(),
    "jpeg": Image(frames="bytes"),
})  # fmt: skip
GOOD = {
    "sequence_id": "one", "length": 3, "duration_seconds": 0.3, "a": [[1.0, 2.0]] * 3, "b": [[0.5]] * 3,
    "c": [[0.5]] * 3, "u": [0, 5, 9],
    "free": [[0.5]] * 3, "seen.time": [0.0, 0.1, 0.2], "t": [0, 5, 5],
    "raw": b"\0" * 24, "e": [1.0, 2.0], "v": "files/v/1.mp4",
    "jpeg": [b"x"] * 3,
}  # fmt: skip
BAD_ROWS = {
    "R301": {"sequence_id": None},
    "R302": {"sequence_id": ""},
    "R303": {"sequence_id": "other"},
    "R304": {"b": [[0.5], None, [0.5]]},
    "R305": {"b": [[0.5], [0.5, 0.5], [0.5]]},
    "R307": {"jpeg": [b"x"]},
    "R308": {"length": 4},
    "R309": {"b": [[0.5], [float("nan")], [0.5]]},
    "R311": {"raw": b"\0" * 25},
    "R312": {"t": [0, 5, 4]},
    "R306": {"free": [[0.0, 0.0]] * 3},
    "R313": {"duration_seconds": -1.0},
    "R314": {"duration_seconds": 0.36},
    "R315": {"a": [], "t": []},
    "R316": {"e": [1.0]},
    "R318": {"t": [0, 5, 5], "u": [1_700_000_000_000_000_000] * 3},
    "R319": {"seen.time": [0.0, 0.2, 0.1]},
    "F401": {"v": ""},
    "F402": {"v": "files/../../other/1.mp4"},
    "F403": {"v": "/data/1.mp4"},
    "F405": {"v": "shared.mp4"},
}


def batch(*rows: dict[str, object]) -> Batch:
    stored = SCHEMA.stored()
    arrays = [pa.array([row[n] for row in rows], stored.field(n).type) for n in stored.names]
    loose = pa.schema([f.with_nullable(True) for f in stored])
    return Batch(
        rows=pa.RecordBatch.from_arrays(arrays, schema=loose),
        schema=SCHEMA,
        location="part-0.parquet",
        clock=Clock(rate=Fraction(10), rule="test"),
    )


def findings(*rows: dict[str, object]) -> list[Finding]:
    given = batch({**GOOD, "sequence_id": "other", "v": "shared.mp4"}, *rows)
    return [*check_rows(given, SeenIds()), *check_references(given, References())]


def test_good_rows_have_no_findings() -> None:
    null = dict.fromkeys(GOOD) | {"sequence_id": "null"}
    gap = {**GOOD, "sequence_id": "gap", "v": "b/3.mp4", "jpeg": [b"x", b"x", None]}  # a step without a picture
    assert findings(GOOD, {**GOOD, "sequence_id": "two", "v": "b/2.mp4"}, null, gap) == []


@pytest.mark.parametrize(("code", "change"), BAD_ROWS.items())
def test_row_rule_finds_its_breach_alone(code, change) -> None:
    found = findings({**GOOD, **change})
    assert codes(found) == {code}
    [finding] = [f for f in found if f.code == code][:1]
    assert finding.location == "part-0.parquet"
    assert finding.sequence_id == str((GOOD | change)["sequence_id"] or "row 1")
    steps = {"R304": 1, "R305": 1, "R309": 1, "R312": 2, "R319": 2}
    assert finding.step == steps.get(code)


NAN = float("nan")
MORE_BAD_ROWS = [
    ("R304", {"b": [[0.5], [None], [0.5]]}, "b", 1),
    ("R304", {"e": [None, 1.0]}, "e", None),
    ("R305", {"free": [[0.5], [0.5], []]}, "free", 2),
    ("R305", {"a": [[1.0]] * 3}, "a", 0),
    ("R307", {"b": [[0.5]] * 2}, "jpeg", None),
    ("R309", {"e": [NAN, 1.0]}, "e", None),
    ("R309", {"a": [[1.0, 2.0], [1.0, 2.0], [1.0, -float("inf")]]}, "a", 2),
    ("R309", {"raw": struct.pack("<6f", 1, 1, 1, NAN, 1, 1)}, "raw", 1),
    ("R309", {"free": [[0.5], [0.5], [NAN]]}, "free", 2),
    ("R312", {"t": [0, 5]}, "t", None),
    ("R312", {"t": None}, "t", None),
    # One nanosecond in fifty years: lost in floats.
    ("R312", {"t": [1_700_000_000_000_000_000, 1_700_000_000_000_000_002, 1_700_000_000_000_000_001]}, "t", 2),
    ("R312", {"t": [0, 5, 2**63 - 1]}, "t", 2),
    ("R319", {"seen.time": [0.0, 0.1, 0.2, NAN, 1.7e9, 1.7e9]}, "seen.time", 4),
    ("R319", {"t": [0, 5, 6, 10**18], "a": [[1.0, 2.0]] * 4}, "t", 3),
    ("R313", {"length": -1}, "length", None),
    ("R313", {"duration_seconds": NAN}, "duration_seconds", None),
    ("R314", {"duration_seconds": 0.24}, "duration_seconds", None),
    ("F401", {"v": "  "}, "v", None),
    ("F402", {"v": "..\\1.mp4"}, "v", None),
    ("F402", {"v": "cam1:left/../../1.mp4"}, "v", None),
    ("F403", {"v": "C:\\data\\1.mp4"}, "v", None),
    ("F403", {"v": "FILE:///data/1.mp4"}, "v", None),
    ("F405", {"v": "./a/../shared.mp4"}, "v", None),
]


@pytest.mark.parametrize(("code", "change", "column", "step"), MORE_BAD_ROWS)
def test_row_rule_finds_other_breaches(code, change, column, step) -> None:
    assert (code, column, step) in {(f.code, f.column, f.step) for f in findings({**GOOD, **change})}


GOOD_ROWS = [
    {"v": "s3://bucket/../1.mp4"},
    {"v": "files/cam1:left/a..b/1.mp4"},
    {"v": "files/x/../1.mp4"},
    {"v": None, "jpeg": None},
    {"duration_seconds": 0.34},
    {"duration_seconds": 0.26},
    {"length": None, "a": None, "t": None},
    {"seen.time": [0.0, 0.1, 0.2, 0.3, 2.5]},  # nothing was recorded for a while
]


@pytest.mark.parametrize("change", GOOD_ROWS)
def test_rows_that_are_unusual_but_good(change) -> None:
    assert findings({**GOOD, **change}) == []


def test_rules_remember_from_batch_to_batch() -> None:
    ids, seen = SeenIds(), References()
    one = batch(GOOD)
    assert [*check_rows(one, ids), *check_references(one, seen)] == []
    later = dataclasses.replace(batch({**GOOD, "free": [[0.0, 0.0]] * 3}), location="part-1.parquet", start=70)
    found = [*check_rows(later, ids), *check_references(later, seen)]
    assert codes(found) == {"R303", "R306"}
    assert "part-0.parquet row 0" in found[0].message
    nameless = dataclasses.replace(batch({**GOOD, "sequence_id": None}), start=70)
    assert next(check_rows(nameless, SeenIds())).sequence_id == "row 70"


def test_logical_rows_are_judged_as_stored_ones_are() -> None:
    stored = batch(GOOD, {**GOOD, "sequence_id": "two", "e": [NAN, 1.0], "v": None}).rows
    step = struct.pack("<2f", NAN, 1)
    values = [[[0.0, 0.0]] * 3, [list(struct.unpack("<2f", step))] * 3]
    raw = pa.array(values, SCHEMA.arrow.field("raw").type)
    place = stored.schema.get_field_index("raw")
    rows = stored.set_column(place, "raw", raw)
    found = list(check_rows(Batch(rows=rows, schema=SCHEMA), SeenIds()))
    assert {(f.code, f.sequence_id, f.column, f.step) for f in found} == {
        ("R309", "two", "raw", 0), ("R309", "two", "e", None),
    }  # fmt: skip


def test_columns_that_cannot_be_judged_are_left_alone() -> None:
    rows = pa.record_batch({"sequence_id": ["x"], "a": ["text"], "raw": [b"12345"], "length": ["3"], "more": [1]})
    declared = Schema({
        "a": Trajectory(dim=2),
        "raw": Column("raw", pa.binary(), ColumnType("trajectory", encoding="raw")),
        "length": pa.int64(),
    })  # fmt: skip
    assert list(check_rows(Batch(rows=rows, schema=declared), SeenIds())) == []


@pytest.mark.sampled
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, pa.list_view])
@pytest.mark.parametrize("inner", [pa.list_, pa.large_list])
@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64(), pa.int8(), pa.uint64(), pa.bool_()])
def test_lists_of_every_kind_are_judged(outer, inner, number) -> None:
    kind = outer(inner(number))
    one, zero = (True, False) if number == pa.bool_() else (1, 0)
    cells = pa.array([[[one, zero], [zero, one]], None, [], [[one, one], [zero]]], kind)
    rows = pa.RecordBatch.from_arrays([pa.array(list("wxyz")), cells], ["sequence_id", "a"])
    given = Batch(rows=rows, schema=Schema({"a": Column("a", kind, Trajectory(dim=2))}))
    found = {(f.code, f.sequence_id, f.step) for f in check_rows(given, SeenIds())}
    assert found == {("R305", "z", 1), ("R315", "y", None)}


def test_a_cell_that_is_too_large(monkeypatch) -> None:
    monkeypatch.setattr(signals, "LARGEST_CELL", 16)
    assert codes(findings(GOOD)) == {"R310"}


def test_a_shared_file_may_be_declared() -> None:
    kind = pa.struct({"url": pa.string(), "first_frame": pa.int64(), "num_frames": pa.int64()})
    declared = Schema({"v": Column("v", kind, Video())})
    cells = [
        {"url": "all.mp4", "first_frame": 0, "num_frames": 9},
        {"url": "all.mp4", "first_frame": 9, "num_frames": 9},
    ]
    rows = pa.RecordBatch.from_arrays([pa.array(["x", "y"]), pa.array(cells, kind)], ["sequence_id", "v"])
    assert list(check_references(Batch(rows=rows, schema=declared), References())) == []
    whole = [{"url": "all.mp4", "first_frame": None, "num_frames": None}] * 2
    rows = pa.RecordBatch.from_arrays([pa.array(["x", "y"]), pa.array(whole, kind)], ["sequence_id", "v"])
    assert codes(check_references(Batch(rows=rows, schema=declared), References())) == {"F405"}


def test_every_rule_has_a_case() -> None:
    assert set(RULES) == {
        *BAD_TEXTS,
        *BAD_SCHEMAS,
        *BAD_FILES,
        *BAD_ROWS,
        "M117",
        "M122",
        "R310",
        *test_file_rules.CODES,
    }


def test_a_report_raises_only_when_asked() -> None:
    report = Report(findings({**GOOD, "length": 4}), depth="rows")
    assert (len(report), report.ok, len(report.errors)) == (1, False, 1)
    with pytest.raises(ValidationError, match="R308") as raised:
        report.raise_for_errors()
    assert raised.value.findings == report.findings
    assert report.to_json()["findings"][0]["column"] == "length"
    assert "R308" in repr(report)
    assert "R308" in report._repr_html_()
    Report([]).raise_for_errors()
