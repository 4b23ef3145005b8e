"""SQL over signals: the answers of DuckDB, from rows that a condition keeps, copied once and ahead."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.dataset.reading import access, scanning
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import answers
from seqlake.errors import CorruptFileError

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines

REWARDS = [1.0, math.nan, None, -0.0, 7.5, math.inf, 3.0, None, 0.0, -2.0, math.nan, 4.0]
CONDITIONS = [
    "reward > 2", "reward >= 'nan'::FLOAT", "reward = 'nan'::FLOAT", "reward <> 3", "NOT reward > 2",
    "reward IS NULL", "reward IN (1, 7.5, 'nan'::FLOAT)", "reward BETWEEN 0 AND 4", "task = 'pick'", "task LIKE 'p%'",
    "task IS DISTINCT FROM 'pick'", "len(task) > 4", "reward > 2 OR task = 'place'", "dataset.reward < 4",
    "len(action) > 3", "action[1][1] > 0.5", "len(list_filter(force, lambda reward: reward[1] > 0.5)) > 1",
    "reward + len(action) > 5", "task::INTEGER > 3", "random() >= 0", "n % 3 = 1", "try_cast(task AS INTEGER) IS NULL",
]  # fmt: skip


@pytest.fixture(scope="module", params=["training", "archive"])
def arm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> sl.Dataset:
    random = np.random.default_rng(0)
    schema = {
        "n": pa.int64(),
        "reward": pa.float32(),
        "task": pa.string(),
        "action": sl.Trajectory(dim=3),
        "force": sl.Trajectory(dim=1),
    }
    ds = sl.create(tmp_path_factory.mktemp(request.param) / "arm", sl.Schema(schema))
    for first in range(0, 12, 4):
        with ds.writer(layout=request.param) as writer:
            for n in range(first, first + 4):
                steps = int(random.integers(0, 8))
                signals = {
                    "action": random.random((steps, 3), np.float32),
                    "force": random.random((steps, 1), np.float32),
                }
                task = ["pick", "place", None, "pour"][n % 4]
                writer.add(f"ep_{n}", n=n, reward=REWARDS[n], task=task, **signals)
    ds.delete(ids=["ep_5"])
    return ds


def of_duckdb(ds: sl.Dataset, query: str) -> Any:
    with duckdb.connect() as db:
        db.register("arrow", ds.to_arrow())
        db.execute("CREATE TABLE dataset AS FROM arrow")
        try:
            return repr(db.execute(query).fetchall())
        except duckdb.Error as error:
            return type(error)


def of_ours(ds: sl.Dataset, query: str) -> Any:
    try:
        return repr(ds.sql(query).fetchall())
    except (duckdb.Error, sl.errors.QueryError) as error:
        return type(error.__cause__ or error)


@pytest.mark.sampled(every=2)
@settings(max_examples=25 if SOAK else 10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3))
def test_a_condition_keeps_the_rows_that_duckdb_keeps(arm: sl.Dataset, parts: list[str]) -> None:
    """A cast that fails on rows which other parts rule out may fail or not: no order of the parts is promised."""
    query = f"SELECT sequence_id, action, force FROM dataset WHERE {' AND '.join(parts)} ORDER BY n"
    allowed = [of_duckdb(arm, query)]
    if isinstance(allowed[0], type):
        allowed.append(of_duckdb(arm, query.replace("task::INTEGER", "try_cast(task AS INTEGER)")))
    assert of_ours(arm, query) in allowed


@pytest.mark.sampled
@pytest.mark.parametrize(
    "query",
    [
        "SELECT d.n, force FROM dataset d WHERE d.reward > 2 ORDER BY 1 LIMIT 2",
        "SELECT n AS reward, force FROM dataset WHERE reward > 2 ORDER BY 1",
        "SELECT x, y FROM (SELECT reward, n, force FROM dataset) d(x, n, y) WHERE x > 2 ORDER BY n",
        "WITH dataset AS (SELECT n AS reward, force FROM dataset) SELECT * FROM dataset WHERE reward > 2 ORDER BY 1",
        "SELECT count(*), sum(len(force)) FROM dataset WHERE n > 3 GROUP BY task HAVING count(*) > 1 ORDER BY 1, 2",
        "SELECT n, force FROM dataset WHERE n = (SELECT max(n) FROM dataset)",
        "SELECT a.n, b.force FROM dataset a JOIN dataset b ON a.n = b.n + 1 WHERE a.reward > 1 ORDER BY 1",
        "SELECT n, row_number() OVER (ORDER BY n) AS k, force FROM dataset WHERE reward > 1 QUALIFY k > 1",
        "SELECT n, sum(s[1]) FROM (SELECT n, unnest(force) s FROM dataset WHERE task = 'pick') GROUP BY n ORDER BY n",
        "SELECT DISTINCT task, force FROM main.dataset WHERE n < 3 ORDER BY task",
        "FROM dataset WHERE n < 3",
        "SELECT DISTINCT ON (task) task, n, force FROM dataset WHERE reward > 0 ORDER BY task, n",
        'SELECT N, "REWARD" FROM dataset WHERE Dataset.n > 3 ORDER BY ALL',
        "SELECT list_sort([x[1] for x in force if x[1] > 0.2]) FROM dataset ORDER BY n",
        "WITH dataset AS (SELECT 5 AS k) SELECT k FROM dataset",
        "SELECT dataset FROM dataset WHERE n < 2",
        "SELECT d FROM dataset d WHERE n < 2",
        "SELECT count() FROM dataset",
        "SELECT n FROM dataset ORDER BY reward DESC NULLS LAST, n LIMIT 3",
        "SELECT max(n) FILTER (WHERE reward > 1), min(task) FROM dataset",
        "SELECT n, sum(len(force)) OVER w FROM dataset WINDOW w AS (PARTITION BY task ORDER BY n) ORDER BY n",
        "SELECT COLUMNS('re.*') FROM dataset WHERE n < 3 ORDER BY n",
    ],
)
def test_questions_answer_as_duckdb_does(arm: sl.Dataset, query: str) -> None:
    wanted = of_duckdb(arm, query)
    assert [of_ours(arm, query) for _ in range(3)] == [wanted] * 3  # small columns are a table from the second on


@pytest.mark.sampled
@pytest.mark.parametrize(
    "query",
    [
        "SELECT n, force FROM dataset WHERE reward > 2 ORDER BY reward DESC, n LIMIT 2",
        "SELECT * FROM dataset WHERE n < 9 ORDER BY task NULLS FIRST, n DESC LIMIT 3",
        "SELECT d.n, len(d.force) FROM dataset d ORDER BY d.reward, d.n LIMIT 4",
        "SELECT n, force FROM dataset ORDER BY n % 3, n LIMIT 4 OFFSET 2",
        "SELECT -n AS reward, force FROM dataset ORDER BY reward LIMIT 2",
        "SELECT n, len(force) FROM dataset ORDER BY 2, 1 LIMIT 3",
        "SELECT n, unnest(force) FROM dataset ORDER BY n DESC LIMIT 3",
        "SELECT count(*), max(len(force)) FROM dataset ORDER BY 1 LIMIT 1",
        "SELECT task, sum(len(force)) FROM dataset GROUP BY task ORDER BY task LIMIT 2",
        "SELECT n, force FROM dataset WHERE len(force) > 3 ORDER BY n LIMIT 2",
        "SELECT n, force FROM dataset ORDER BY len(force), n LIMIT 2",
        "SELECT DISTINCT len(force) FROM dataset ORDER BY 1 LIMIT 2",
        "SELECT task, len(force), row_number() OVER (ORDER BY n) FROM dataset ORDER BY n LIMIT 2",
        "SELECT n, force FROM dataset ORDER BY n LIMIT 20%",
        "SELECT n, force FROM dataset ORDER BY n LIMIT 0",
        "SELECT n, force FROM dataset ORDER BY n LIMIT NULL",
        "SELECT n, force FROM dataset ORDER BY n LIMIT 1 + 1",
        "SELECT n, force FROM dataset ORDER BY ALL LIMIT 2",
        "SELECT n, force FROM dataset USING SAMPLE 100% ORDER BY n LIMIT 2",
    ],
)
def test_the_first_by_an_order_are_those_of_duckdb(arm: sl.Dataset, query: str) -> None:
    wanted = of_duckdb(arm, query)
    for small in ("n", "n, reward, task", "sequence_id"):
        arm.sql(f"SELECT {small} FROM dataset").fetchall()  # kept, then a table
        assert [of_ours(arm, query) for _ in range(2)] == [wanted] * 2


def test_only_the_signals_of_the_first_by_an_order_are_copied(arm: sl.Dataset, copied: list[int]) -> None:
    ds = sl.open(arm.root)
    query = "SELECT n, reward, force FROM dataset WHERE n > 1 ORDER BY reward DESC LIMIT 3"
    for wanted in (9, 3):  # the first question keeps the small columns
        copied.clear()
        assert ds.sql(query).fetchall()
        assert sum(copied) == wanted


def test_a_table_at_hand_is_of_one_version_and_one_selection(tmp_path: Path) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"n": pa.int64(), "half": pa.float16(), "force": sl.Trajectory(dim=1)}))
    cells = [{"sequence_id": f"s{n}", "n": n, "half": None, "force": np.zeros((n, 1), np.float32)} for n in range(4)]
    ds.append(cells)
    total = "SELECT sum(n), count(half) FROM dataset"
    assert [ds.sql(total).fetchall() for _ in range(3)] == [[(6, 0)]] * 3
    for unknown in ("rowid", "n + rowid", "half"):
        for _ in range(2):
            with pytest.raises(sl.errors.QueryError):
                ds.select("sequence_id", "n").sql(f"SELECT {unknown} FROM dataset").fetchall()
    assert ds.where("n > 1").sql("SELECT sum(n) FROM dataset").fetchall() == [(5,)]
    before = ds.sql(total)
    ds.update([{"sequence_id": f"s{n}", "n": n + 1} for n in range(4)])
    assert ds.sql(total).fetchall() == [(10, 0)]
    assert before.fetchall() == [(6, 0)]
    assert ds.sql("SELECT half FROM dataset").types == ds.sql("SELECT half, force FROM dataset").types[:1]
    assert [ds.sql("SELECT half FROM dataset LIMIT 0").types for _ in range(3)] == [["FLOAT"]] * 3


def test_types_are_those_of_the_schema_whatever_the_layout(arm: sl.Dataset) -> None:
    for query in ("SELECT action, force FROM dataset", "SELECT action, force FROM dataset WHERE reward > 2"):
        assert [str(kind) for kind in arm.sql(query).types] == ["FLOAT[3][]", "FLOAT[1][]"]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch whose signals were copied for a query."""
    rows: list[int] = []
    whole = scanning.batches

    def counting(shows: Any, columns: Any) -> Any:
        for batch in whole(shows, columns):
            rows.append(batch.num_rows if "force" in columns else 0)
            yield batch

    monkeypatch.setattr(scanning, "batches", counting)
    return rows


def test_signals_of_rows_that_are_ruled_out_are_not_copied(arm: sl.Dataset, copied: list[int]) -> None:
    assert arm.sql("SELECT sum(len(force)) FROM dataset WHERE task = 'pick' AND len(force) >= 0").fetchall()
    assert sum(copied) == 3
    selected = arm.where("n < 6").select("n", "task", "force")
    copied.clear()
    assert selected.sql("SELECT n, force FROM dataset WHERE task = 'pick' ORDER BY n").fetchall()[1][0] == 4
    assert sum(copied) == 2


@pytest.mark.parametrize("most", [0, 200])
def test_columns_that_are_too_large_to_keep_are_read_each_time(
    arm: sl.Dataset, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(access, "KEPT", most)
    ds = sl.open(arm.root)
    for _ in range(2):
        query = "SELECT n, task, force FROM dataset WHERE reward > 2 ORDER BY n"
        assert of_ours(ds, query) == of_duckdb(ds, query)
        assert ds.sql("SELECT count(*), max(task) FROM dataset").fetchall() == [(11, "pour")]


def test_damage_ahead_of_the_query_is_named(arm: sl.Dataset, tmp_path: Path) -> None:
    ds = sl.repack(arm, tmp_path / "b")
    (path,) = (tmp_path / "b" / "data").iterdir()
    data = bytearray(path.read_bytes())
    place = data.index(np.asarray(ds["ep_0"]["action"]).tobytes())
    data[place] ^= 1
    path.write_bytes(data)
    checked = sl.open(ds.root, verify="first")
    with pytest.raises(CorruptFileError, match="checksum"):
        answers(Excerpt.of(checked), "SELECT sum(len(action)) FROM dataset")


@pytest.mark.sampled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.skipif(
    duckdb.__version__ < "2", reason="a forked process that uses DuckDB 1.5 dies as it ends, ours or not"
)
@pytest.mark.parametrize("relation", ["kept", "gone"])
def test_a_forked_process_asks_and_ends(arm: sl.Dataset, relation: str) -> None:
    """A process that ended with the database that its parent had opened died of it."""
    code = """
import os, sys, seqlake as sl
ds = sl.open(sys.argv[1])
ds.sql("SELECT count(*) FROM dataset").fetchall()
kept = ds.sql("SELECT count(*) FROM dataset") if sys.argv[2] == "kept" else None
assert ds.sql("SELECT count(*) FROM dataset").fetchall() == [(11,)]
child = os.fork()
if child == 0:
    assert ds.sql("SELECT count(*), sum(len(force)) FROM dataset").fetchall()[0][0] == 11
    raise SystemExit(7) if kept is None else os._exit(7)
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(ended, kept.fetchall() if kept else [(11,)], len(ds.where("n > 3")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, arm.root, relation], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("7 [(11,)] 7\n", 0), done.stderr


@pytest.mark.parametrize("times", range(4))
def test_ctrl_c_into_a_question_is_ctrl_c(arm: sl.Dataset, times: int) -> None:
    """The connection is closed after it: of DuckDB 1.5 now and then that waited to the end of the question."""
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        question = "SELECT count(*) FROM range(1000000000000) WHERE hash(range) = (SELECT min(n) FROM dataset)"
        answers(Excerpt.of(arm), question)
    timer.join()
    assert len(arm.where("n < 3")) == 3
