"""Every rule: one case that breaks it, and none that it should let pass."""

from __future__ import annotations

from fractions import Fraction

import pyarrow as pa
import pytest

from seqlake.errors import ValidationError
from seqlake.spec.alignment import Clock
from seqlake.spec.column_types import ColumnType, Embedding, Image, Trajectory, Video
from seqlake.spec.findings import Finding, Report
from seqlake.spec.metadata import Metadata
from seqlake.spec.rules import RULES, Batch, Ids, References, check_metadata, check_references, check_rows, check_schema
from seqlake.spec.rules import rows as row_rules
from seqlake.spec.schema import Column, Schema

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
    "S201": Schema({"a": F}, id=None),
    "S203": Schema({"task": F, "Task": F}),
    "S204": schema(pa.list_(pa.list_(pa.string())), None),
}


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
    "t": pa.list_(pa.int64()),
    "raw": Trajectory(dim=2, encoding="raw"),
    "e": Embedding(dim=2),
    "v": Video(),
})  # fmt: skip
GOOD = {
    "sequence_id": "one", "length": 3, "duration_seconds": 0.3, "a": [[1.0, 2.0]] * 3, "b": [[0.5]] * 3,
    "t": [0, 5, 5], "raw": b"\0" * 24, "e": [1.0, 2.0], "v": "files/v/1.mp4",
}  # fmt: skip
BAD_ROWS = {
    "R301": {"sequence_id": None},
    "R302": {"sequence_id": ""},
    "R303": {"sequence_id": "other"},
    "R304": {"b": [[0.5], None, [0.5]]},
    "R305": {"b": [[0.5], [0.5, 0.5], [0.5]]},
    "R307": {"b": [[0.5]] * 2, "length": None, "duration_seconds": None},
    "R308": {"length": 4},
    "R309": {"b": [[0.5], [float("nan")], [0.5]]},
    "R311": {"raw": b"\0" * 25},
    "R312": {"t": [0, 5, 4]},
    "R314": {"duration_seconds": 0.5},
    "R315": {"a": [], "t": []},
    "R316": {"e": [1.0]},
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
    return [*check_rows(given, Ids()), *check_references(given, References())]


def test_good_rows_have_no_findings() -> None:
    null = dict.fromkeys(GOOD) | {"sequence_id": "null"}
    assert findings(GOOD, {**GOOD, "sequence_id": "two", "v": "b/2.mp4"}, null) == []


@pytest.mark.parametrize(("code", "change"), BAD_ROWS.items())
def test_row_rule_finds_its_breach_alone(code, change) -> None:
    found = findings({**GOOD, **change})
    assert codes(found) == {code}
    [finding] = [f for f in found if f.code == code][:1]
    assert finding.location == "part-0.parquet"
    assert finding.sequence_id == str((GOOD | change)["sequence_id"] or "row 1")
    steps = {"R304": 1, "R305": 1, "R309": 1, "R312": 2}
    assert finding.step == steps.get(code)


def test_a_cell_that_is_too_large(monkeypatch) -> None:
    monkeypatch.setattr(row_rules, "LARGEST_CELL", 16)
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
    assert set(RULES) == {*BAD_TEXTS, *BAD_SCHEMAS, *BAD_ROWS, "R310"}


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
