"""All routes with hostile values over strange data: what we refuse has its status, and nothing is a fault of ours."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import wave
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.soak import SOAK
from tests.viewer import elsewhere

import seqlake as sl
from seqlake.viewer.app import Server
from seqlake.viewer.curating import Drafts
from seqlake.viewer.notebook import Answers
from seqlake.viewer.safety import Rules
from seqlake.viewer.tables import Shelf

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("starlette")

PARAMETERS = (
    *("id", "row", "col", "where", "q", "order", "desc", "offset", "limit", "rows", "points", "bins", "clock", "k"),
    *("height", "start", "stop", "dims", "version", "from", "to", "n", "format", "columns", "explain", "depth", "max"),
)
VALUES = (
    *("", "0", "1", "-1", "2", "7", "a", "b", "broken", "no such", "ep_1", "0,1,2", "1,1,1", "1.5", "inf", "nan"),
    *("-0", "0x10", "1_0", "²", "٣", "1e999", "9" * 18, "9" * 19, "9" * 40, "-" + "9" * 30, "\0", "'", '"', ";"),
    *("--", "/*", "%s", "{}", "\ud7ff", "\u202e", "😀" * 50, "../../etc/passwd", "file:///etc/passwd"),
    *("reward > 1", "reward >", "TRUE", "NULL", "1/0", "x[1] > 0", "len(x) > 2", "'a' IN (task)", "SELECT 1"),
    *("SELECT * FROM dataset", "FROM dataset", "SELECT 1 AS a, 2 AS A", "DESCRIBE dataset", "SUMMARIZE dataset"),
    *("SHOW TABLES", "SELECT * FROM duckdb_settings()", "SELECT error('x')", "SELECT unnest([1,2]), NULL"),
    "SELECT 1::BIT, [1,2], {'a': 1}, MAP {1: 2}, INTERVAL 1 DAY, 'x'::BLOB, 1::HUGEINT, TIME '01:02:03'",
    *("PIVOT dataset ON task", "SELECT 1e400, 'inf'::DOUBLE, uuid()", "SELECT x, x FROM dataset", "EXPLAIN SELECT 1"),
    *("CALL pragma_version()", "length:x", "length:task", "x" * 3000, "9999", "metadata", "rows", "png", "jpeg"),
    *("newest", "-5", "0:5", "SELECT 'infinity'::TIMESTAMP, DATE '290000-01-01'"),
)


def strange(folder: Path) -> list[tuple[Any, list[str]]]:
    """Datasets with every kind of column, null and broken cells, and no ids or ids twice; with their columns."""
    count = 4
    table: dict[str, Any] = {
        "sequence_id": ["a", "b", "b", ""],
        "task": pa.array(["pick", None, "\ufeff\u202e<b>", "it's"], pa.large_string()).dictionary_encode(),
        "whole": pa.array([2**63 - 1, -(2**63), None, 0]),
        "unsigned": pa.array([2**64 - 1, 0, 1, None], pa.uint64()),
        "real": [float("nan"), float("inf"), None, -0.0],
        "half": pa.array(np.array([1, 2, 3, np.nan], np.float16)),
        "money": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-99999.99"), decimal.Decimal("0.00")]),
        "when": pa.array([dt.datetime(1, 1, 1), None, dt.datetime(9999, 12, 31), dt.datetime(2020, 1, 1)]),
        "zoned": pa.array([0, None, 2**60, -(2**60)], pa.timestamp("us", tz="Europe/Paris")),
        "day": pa.array([dt.date(2020, 1, 1), None, dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
        "clock": pa.array([dt.time(1, 2, 3), None, dt.time(0), dt.time(23, 59)]),
        "lasting": pa.array([0, None, 2**40, -1], pa.duration("us")),
        "raw": [b"\xff\x00", None, b"", b"x" * 100],
        "flag": [True, False, None, True],
        "nothing": pa.nulls(count),
        "struct": [{"a": 1, "b": [1]}, None, {"a": None, "b": []}, {"a": 2, "b": None}],
        "mapped": pa.array([[("k", 1)], None, [], [("", None)]], pa.map_(pa.string(), pa.int64())),
        "texts": [["a", None], None, [], ["b"]],
        "x": [[1.0, float("nan")], None, [], [3.0] * 500],
        "xy": pa.array([[[1, 2]], None, [], [[3, 4]] * 3], pa.list_(pa.list_(pa.float32(), 2))),
        "deep": [[[[1.0]]], None, [], [[[1.0], [2.0]]]],
        "ragged": [[[1.0], [1.0, 2.0]], None, [], [[]]],
        "odd \"name'; --": [1, 2, 3, 4],
    }
    pq.write_table(pa.table(table), folder / "rows.parquet")
    scanned = sl.scan(folder / "rows.parquet")
    ds = sl.create(
        folder / "arm",
        {
            "sequence_id": pa.string(),
            "task": pa.string(),
            "reward": pa.float64(),
            "x": sl.Trajectory(dim=3, fps=10),
            "cam": sl.Video(fps=10),
            "still": sl.Image(),
            "sound": sl.Audio(sample_rate=8000),
            "depth": sl.Depth(fps=10),
            "other": sl.Video(fps=7),
            "vector": sl.Embedding(dim=4),
        },
    )
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(1600))
    with ds.writer() as writer:
        for name in ("a", "b"):
            writer.add(
                name,
                task="it's",
                reward=1.5,
                x=np.arange(30, dtype=np.float32).reshape(10, 3),
                cam=np.zeros((10, 16, 32, 3), np.uint8),
                still=np.zeros((16, 16, 3), np.uint8),
                depth=np.full((10, 16, 16), 500, np.uint16),
                other=np.zeros((7, 16, 16, 3), np.uint8),
                vector=np.ones(4, np.float32),
                sound=sl.File(folder / "a.wav"),
            )
        writer.add("empty")
        writer.add("broken", cam=np.zeros((3, 16, 32, 3), np.uint8), other=np.zeros((3, 16, 16, 3), np.uint8))
    for path in (folder / "arm").rglob("*broken*"):
        path.write_bytes(path.read_bytes()[:40] if "cam" in str(path) else b"no film")
    return [(scanned, list(table)), (sl.open(folder / "arm"), list(ds.schema))]


class Asker:
    """Puts questions to the routes, without a socket."""

    def __init__(self, selection: Any, folder: Path) -> None:
        self.server = Server(Shelf(selection), Rules(host="127.0.0.1", port=1, token=None), Drafts("x", folder=folder))
        self.answers = Answers(self.server)

    def ask(self, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, bytes]:
        asked = {"path": path, "method": method, "body": body, "headers": headers, "id": 1}
        message, buffers = elsewhere.answer(self.answers, asked)
        return message["status"], buffers[0]

    @property
    def routes(self) -> tuple[list[str], list[str]]:
        """(what is asked, what is changed), as the application lists them."""
        every = [route for route in self.server.routes().routes if getattr(route, "methods", None)]
        gets = sorted({route.path for route in every if "GET" in route.methods})
        return gets, sorted({route.path for route in every if "POST" in route.methods})


@pytest.mark.sampled
def test_no_question_is_a_fault(tmp_path: Path) -> None:
    chosen = random.Random(29)
    wrong: dict[str, str] = {}
    seen: dict[str, int] = {}
    for number, (selection, columns) in enumerate(strange(tmp_path)):
        asker = Asker(selection, tmp_path / f"drafts{number}")
        gets, _ = asker.routes
        assert {"/api/sql", "/api/signal", "/media", "/api/frame", "/seq"} <= set(gets)
        values = [*VALUES, *columns, *columns]
        for route in gets:
            for turn in range((40 if SOAK else 24) if route.startswith(("/api", "/media")) else 4):
                given = {name: chosen.choice(values) for name in chosen.sample(PARAMETERS, chosen.randint(0, 4))}
                if turn % 2:  # what makes sense of most routes, so that they come further
                    given |= {"col": chosen.choice(columns), "id": chosen.choice(["a", "b", "broken", "empty"])}
                    given |= {"from": "0", "to": "1"} if route == "/api/diff" else {}
                    given |= {"id": "a", "col": "sound"} if route == "/api/audio" else {}
                    given |= {"rows": chosen.choice(["0,1", "2", "3,0"]), "q": chosen.choice(VALUES)}
                path = f"{route}?{urlencode(given, errors='surrogatepass')}"
                status, body = asker.ask(
                    path, range=chosen.choice(["bytes=0-3", "bytes=-1", "bytes=9-1", "bytes=a", ""])
                )
                seen[route] = seen.get(route, 0) + (status < 300)
                if status >= 500 and status not in {501, 503}:
                    wrong.setdefault(route, f"{path}: {body[:300]!r}")
                elif status >= 400 and route.startswith(("/api", "/media")):
                    assert json.loads(body)["error"]["code"], path
    assert not wrong, json.dumps(wrong, indent=1)
    without = {"/api/faces", "/api/points", "/api/poses", "/api/scene"}  # no such columns are here
    assert not [
        route for route, count in seen.items() if not count and route.startswith("/api") and route not in without
    ]


@pytest.mark.parametrize("route", ["labels", "commit", "undo"])
def test_no_change_is_a_fault(tmp_path: Path, route: str) -> None:
    chosen = random.Random(31)
    leaves = [
        None,
        True,
        0,
        -1,
        1.5,
        2**70,
        "a",
        "b",
        "",
        "\0",
        "x" * 20_000,
        [],
        {},
        [[]],
        {"a": 1},
        "sequence_id",
        "reward",
    ]
    keys = [
        "set",
        "revision",
        "message",
        "columns",
        "dry_run",
        "version",
        "a",
        "b",
        "flag",
        "note",
        "labels",
        "spans",
        "start",
        "stop",
        "task",
        "",
    ]

    def value(depth: int) -> Any:
        kind = chosen.random()
        if depth > 3 or kind < 0.4:
            return chosen.choice(leaves)
        if kind < 0.5:
            return [value(depth + 1) for _ in range(chosen.randint(0, 3))]
        return {chosen.choice(keys): value(depth + 1) for _ in range(chosen.randint(0, 4))}

    (_, _), (selection, _) = strange(tmp_path)
    asker = Asker(selection, tmp_path / "drafts")
    assert f"/api/{route}" in asker.routes[1]
    bodies = [json.dumps({chosen.choice(keys): value(0) for _ in range(3)}) for _ in range(80)]
    spans = [{"start": start, "stop": stop, "label": "x"} for start in (0, 5, 2**52) for stop in (1, 2**52 + 1)]
    for draft in (
        {"flag": True},
        {"note": "n"},
        {"labels": {"reward": "x"}},
        {"labels": {"": "x"}},
        {"spans": spans[:2]},
        {"labels": {"cam": "x"}},
    ):
        bodies.append(json.dumps({"set": {"a": draft, "no such": draft}}))
    bodies += [
        "",
        "{",
        "[]",
        "null",
        "1",
        '"x"',
        "[" * 5000,
        '{"a":' * 3000,
        "NaN",
        '{"set": {"a": {"note": "\\ud800"}}}',
        "\0",
    ]
    for body in bodies:
        status, answer = asker.ask(f"/api/{route}", "POST", body)
        assert status < 500, (body[:300], answer[:300])
        if route == "commit":  # with something to commit
            asker.ask("/api/labels", "POST", chosen.choice(bodies))
