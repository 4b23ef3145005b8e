"""SQL of the viewer ends in time and memory; files outside the dataset are shown from folders that were named alone."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.viewer import elsewhere

import seqlake as sl
from seqlake.errors import QueryLimitError
from seqlake.files import sandbox
from seqlake.viewer import app
from seqlake.viewer.app import Server
from seqlake.viewer.curating import Drafts
from seqlake.viewer.notebook import Answers
from seqlake.viewer.safety import Rules
from seqlake.viewer.tables import Shelf

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("starlette")
ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t"
SLOW = "list_sum(list_transform(range(50000), lambda i: list_sum(range(i)))) > reward"


def asker(selection: sl.Selection, folder: Path, **options: Any) -> Any:
    """Asks the routes of one dataset."""
    rules = Rules(host="127.0.0.1", port=1, token=None)
    answers = Answers(Server(Shelf(selection, **options), rules, Drafts("x", folder=folder)))

    def ask(route: str, **asked: Any) -> tuple[int, Any]:
        message, [body] = elsewhere.answer(answers, {"path": f"{route}?{urlencode(asked)}"})
        is_json = message["headers"].get("content-type") == "application/json"
        return message["status"], json.loads(body) if is_json else body

    return ask


@pytest.fixture
def dataset(tmp_path: Path) -> sl.Dataset:
    ds = sl.create(tmp_path / "arm", {"reward": pa.float64(), "x": sl.Trajectory(dim=3, fps=10)})
    with ds.writer() as writer:
        for number in range(20):
            writer.add(f"ep_{number}", reward=float(number), x=np.ones((10, 3), np.float32))
    return ds


def test_a_runaway_query_ends(dataset: sl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = asker(dataset, tmp_path / "labels")
    for route, asked in (("api/sql", {"q": ENDLESS}), ("api/rows", {"where": SLOW})):
        monkeypatch.setattr(app, "SECONDS", 0.7)
        begin = time.monotonic()
        status, answer = ask(route, **asked)
        monkeypatch.setattr(app, "SECONDS", 60)
        assert (status, answer["error"]["code"]) == (503, "limit")
        assert "longer than 0.7 seconds" in answer["error"]["message"]
        assert time.monotonic() - begin < 60  # it would never end
        status, answer = ask("api/sql", q="SELECT sum(reward) FROM dataset")  # the next is as ever
        assert (status, answer["rows"]) == (200, [[190.0]])


def test_memory_is_bounded_and_nothing_is_put_aside(
    dataset: sl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MEMORY", "60MB")
    monkeypatch.chdir(tmp_path)
    ask = asker(dataset, tmp_path / "labels")
    status, answer = ask("api/sql", q="SELECT len(list(i)) FROM range(100000000) t(i)")
    assert (status, answer["error"]["code"]) == (503, "limit")
    assert "60MB" in answer["error"]["message"]
    assert ask("api/sql", q="SELECT count(*) FROM (SELECT DISTINCT i FROM range(30000000) t(i))")[0] == 503
    assert not (tmp_path / ".tmp").exists()
    setting = dataset.sql("SELECT current_setting('memory_limit')").fetchall()
    assert setting != ask("api/sql", q="SELECT current_setting('memory_limit')")[1]["rows"]  # yours is as it was


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system ends no process after a time")
def test_one_value_of_any_size_ends_in_a_process_of_its_own(
    dataset: sl.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB neither counts nor interrupts what one function makes as one value."""
    ask = asker(dataset, tmp_path / "labels")
    assert ask("api/sql", q="SELECT len(repeat('x', 20000)), sum(reward) FROM dataset")[1]["rows"] == [[20000, 190.0]]
    assert ask("api/rows", where="len(repeat('x', reward::INT)) > 17")[1]["matched"] == 2
    status, answer = ask("api/sql", q="SELECT repeat('x', 3) FROM nowhere")
    assert (status, answer["error"]["code"]) == (400, "query")
    assert "nowhere" in answer["error"]["message"]
    monkeypatch.setattr(app, "MEMORY", "60MB")
    status, answer = ask("api/sql", q="SELECT len(repeat('x', 3000000000))")
    assert (status, answer["error"]["code"]) == (503, "limit")
    monkeypatch.setattr(app, "MEMORY", "8GB")
    monkeypatch.setattr(app, "SECONDS", 2)
    for bomb in ("SELECT len(range(400000000))", "SELECT len(list_transform(range(90000000), lambda i: i + 1))"):
        begin = time.monotonic()
        status, answer = ask("api/sql", q=bomb)
        assert (status, answer["error"]["code"]) == (503, "limit")
        assert time.monotonic() - begin < 60
    assert ask("api/sql", q="SELECT count(*) FROM dataset")[1]["rows"] == [[20]]


def test_a_bound_ends_with_its_block(dataset: sl.Dataset) -> None:
    with pytest.raises(QueryLimitError), sandbox.limited(seconds=0.3):
        dataset.where(SLOW)
    assert len(dataset.where("reward > 3")) == 16


def test_lists_in_an_answer_are_said_by_their_lengths(dataset: sl.Dataset, tmp_path: Path) -> None:
    ask = asker(dataset, tmp_path / "labels")
    _, answer = ask("api/sql", q="SELECT sequence_id, x FROM dataset ORDER BY reward LIMIT 1")
    assert answer["rows"] == [["ep_0", "FLOAT[3][] of 10"]]
    assert answer["ids"] == ["ep_0"]
    _, answer = ask("api/sql", q="SELECT repeat('x', 20000), 1 AS a, 2 AS A")
    assert len(answer["rows"][0][0]) < 11_000


def test_only_folders_that_were_named_are_read(tmp_path: Path) -> None:
    """Of a link and of a way up it counts where they lead."""
    for name in ("root", "films", "films2", "secret"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.mp4").write_bytes(name.encode())
    (tmp_path / "films" / "link.mp4").symlink_to(tmp_path / "secret" / "a.mp4")
    (tmp_path / "root" / "in.mp4").symlink_to(tmp_path / "films" / "a.mp4")
    paths = {
        "../films/a.mp4": b"films",
        str(tmp_path / "films" / "a.mp4"): b"films",
        "in.mp4": b"films",
        "a.mp4": b"root",
        "../films2/a.mp4": None,
        str(tmp_path / "films" / "link.mp4"): None,
        f"{tmp_path}/films/../secret/a.mp4": None,
    }
    rows = {"sequence_id": [f"e{number}" for number in range(len(paths))], "cam": list(paths)}
    pq.write_table(pa.table(rows), tmp_path / "root" / "rows.parquet")
    selection = sl.scan(tmp_path / "root" / "rows.parquet", column_types={"cam": sl.Video(fps=10)})
    closed, opened = (
        asker(selection, tmp_path / "labels", folders=folders) for folders in ([], [str(tmp_path / "films")])
    )
    for number, wanted in enumerate(paths.values()):
        status, body = opened("media", id=f"e{number}", col="cam")
        assert (status, body) == (200, wanted) if wanted else (status, body["error"]["code"]) == (403, "outside")
        if wanted == b"films":
            status, body = closed("media", id=f"e{number}", col="cam")
            assert (status, body["error"]["code"]) == (403, "outside")
            assert "--allow-dir" in body["error"]["hint"]
            assert opened("api/files", rows=number)[1]["rows"][str(number)]["cam"]["state"] == "present"
