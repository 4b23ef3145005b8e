"""`where` and `sql` against DuckDB on the same rows, and everything that they refuse."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqlake as sl
from seqlake.dataset.reading import scanning
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import answers
from seqlake.errors import QueryError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engines

ROWS = pa.table(
    {
        "sequence_id": ["a", "b", "c", "d", "e"],
        "reward": pa.array([1.0, math.nan, 7.0, None, -2.5]),
        "task": ["pick", "place", "pick", None, ""],
        "action": pa.array([[[1, 2]], None, [], [[3, 4], [5, 6]], [[9, 9]]], pa.list_(pa.list_(pa.float32()))),
        'we"ird, na;me --': [1, 2, 3, 4, 5],
        "select": [True, False, None, True, True],
        "two\nlines": ["x"] * 5,
    }
)


def folder(path: Path, table: pa.Table = ROWS, *, files: int = 3) -> Path:
    """The rows in several Parquet files, as another engine would have left them."""
    path.mkdir(exist_ok=True)
    size = max(1, -(-table.num_rows // files))
    for number in range(files):
        pq.write_table(table.slice(number * size, size), path / f"part-{number}.parquet")
    return path


@pytest.fixture(params=["memory", "files", "slice"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> sl.Selection:
    if request.param == "memory":
        return sl.scan(ROWS)
    if request.param == "files":
        return sl.scan(folder(tmp_path / "plain"))
    twice = pa.concat_tables([ROWS.set_column(0, "sequence_id", [["x", "y", "z", "u", "v"]]), ROWS])
    return sl.scan(folder(tmp_path / "plain", twice))[5:]


def ids(selection: sl.Selection) -> list[str]:
    return selection.to_arrow().column("sequence_id").to_pylist()


def truth(expression: str, table: pa.Table = ROWS) -> list[str]:
    """DuckDB's own answer, from a table of its own: Arrow tables let 1.5 ask pyarrow, which drops NaN."""
    with duckdb.connect() as db:
        db.register("arrow", table)
        db.execute("CREATE TABLE dataset AS SELECT row_number() OVER () AS place, * FROM arrow")
        found = db.execute(f"SELECT sequence_id FROM dataset WHERE (\n{expression}\n) ORDER BY place").fetchall()
    return [one for (one,) in found]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "expression",
    [
        "reward > 5",
        "reward IS NULL OR isnan(reward)",
        "task = 'pick' AND reward < 5",
        "task IN ('place', '') -- a comment",
        "len(action) > 0",
        "list_extract(action, 1)[1] > 2",
        "list_max(list_transform(action, lambda step: step[1])) >= 5",
        '"we""ird, na;me --" % 2 = 0',
        '"select"',
        '"two\nlines" = \'x\' AND NOT "select"',
        "dataset.reward BETWEEN 0 AND 10",
        "CASE WHEN task IS NULL THEN true ELSE reward > 5 END",
        "nullif(task, 'pick') IS NULL",
        "false",
        "NULL::BOOLEAN",
        "Reward > 0 and TASK like 'p%'",
    ],
)
def test_where_keeps_the_rows_that_duckdb_keeps(rows: sl.Selection, expression: str) -> None:
    assert ids(rows.where(expression)) == truth(expression)


VALUES = st.one_of(st.none(), st.floats(width=64), st.sampled_from([0.0, -0.0, 1.5, math.inf]))
LITERALS = st.sampled_from(["0", "1.5", "'nan'::DOUBLE", "'inf'::DOUBLE", "NULL", "-0.0"])
COMPARE = st.sampled_from(["<", "<=", "=", "<>", ">=", ">", "IS DISTINCT FROM"])
ATOMS = st.one_of(
    st.tuples(st.sampled_from(["x", "y", '"x" + y', "abs(x)"]), COMPARE, LITERALS).map(" ".join),
    st.sampled_from(["x IS NULL", "y IS NOT NULL", "name LIKE 'a%'", "name = ''", "x IN (0, 1.5, NULL)"]),
)
PREDICATES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        inner.map(lambda p: f"NOT ({p})"),
    ),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(
    cells=st.lists(st.tuples(VALUES, VALUES, st.one_of(st.none(), st.text("ab ", max_size=2))), max_size=12),
    expression=PREDICATES,
    start=st.integers(0, 3),
)
def test_where_agrees_with_duckdb_on_any_predicate(cells: list[tuple], expression: str, start: int) -> None:
    table = pa.table(
        {
            "sequence_id": pa.array([str(number) for number in range(len(cells))], pa.string()),
            "x": pa.array([x for x, _, _ in cells], pa.float64()),
            "y": pa.array([y for _, y, _ in cells], pa.float64()),
            "name": pa.array([name for _, _, name in cells], pa.string()),
        }
    )
    assert ids(sl.scan(table)[start:].where(expression)) == truth(expression, table.slice(start))


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("random() < 0.5", "changes from call to call"),
        ("current_date > DATE '2020-01-01'", "changes from call to call"),
        ("now() IS NOT NULL", "changes from call to call"),
        ("main.random() < 2", "changes from call to call"),
        ("ago(INTERVAL 1 DAY) IS NULL", "changes from call to call"),
        ("sum(reward) > 1", "aggregate"),
        ("geomean(reward) > 1", "aggregate"),
        ("count(*) > 1", "aggregate"),
        ("row_number() OVER () > 1", "window function"),
        ("reward > (SELECT 1)", "subquery"),
        ("EXISTS (FROM dataset)", "subquery"),
        ("sequence_id IN (SELECT 'a')", "subquery"),
        ("unnest([true, false])", "one value a row"),
        ("columns('rew.*') > 1", "uses *"),
        ("$1", "parameter"),
        ("reward + 1", "gives DOUBLE"),
        ("'yes'", "gives VARCHAR"),
        ("reward >", "not a boolean expression"),
        ("true) AS x, (false", "more than that"),
        ("true) FROM dataset; DROP VIEW dataset; SELECT (true", "not a boolean expression"),
        ("true) AS x FROM dataset WHERE (reward > 1", "not a boolean expression"),
        ("true) AS x FROM dataset UNION ALL SELECT (false", "more than that"),
        ("rewrad > 1", "reward"),
        ("", "empty"),
    ],
)
def test_where_refuses_what_is_no_pure_row_expression(expression: str, reason: str) -> None:
    with pytest.raises(QueryError, match=r"\S") as refused:
        sl.scan(ROWS).where(expression)
    assert reason in str(refused.value)


def test_a_name_that_sql_cannot_tell_from_another_is_refused(tmp_path: Path) -> None:
    twins = sl.scan(pa.table({"sequence_id": ["a", "b"], "x": [1, 2], "X": [2, 1], "y": [0, 1]}))
    assert ids(twins.where("y = 1")) == ["b"]
    assert twins.sql("SELECT count(*), sum(y) FROM dataset").fetchall() == [(2, 1)]
    assert twins.select("X").sql("SELECT x FROM dataset").fetchall() == [(2,), (1,)]
    for query in (
        "FROM dataset",
        'SELECT "X" FROM dataset',
        "SELECT sum(COLUMNS('X')) FROM dataset",
        "SUMMARIZE dataset",
    ):
        with pytest.raises(QueryError, match="the columns x and X apart"):
            twins.sql(query)
    written = sl.create(tmp_path / "written", {"x": pa.int64(), "X": pa.int64()})
    written.append([{"sequence_id": "a", "x": 1, "X": 2}])
    with pytest.raises(QueryError, match="the columns x and X apart"):
        written.add_column("more", pa.int64(), sql="X + 1")
    with pytest.raises(QueryError, match="x and X"):
        twins.where("X = 1")


def test_where_sees_columns_that_are_not_selected(rows: sl.Selection) -> None:
    assert rows.select("sequence_id").where("reward = 7").to_arrow().to_pydict() == {"sequence_id": ["c"]}


def test_a_condition_on_a_selection_never_sees_the_other_rows() -> None:
    texts = sl.scan(pa.table({"sequence_id": ["a", "b", "c"], "text": ["1", "no number", "3"]}))
    with pytest.raises(QueryError, match="no number"):
        texts.where("text::INTEGER > 2")
    assert ids(texts.where("text <> 'no number'").where("text::INTEGER > 2")) == ["c"]


def test_sql_answers_as_duckdb_does(rows: sl.Selection) -> None:
    for query in (
        "SELECT task, count(*) AS n, max(reward) FROM dataset GROUP BY task ORDER BY task NULLS FIRST",
        "SELECT sequence_id, list_extract(action, 1)[1] FROM dataset WHERE len(action) > 0 ORDER BY 1",
        "SELECT count(*) FROM dataset WHERE reward > 5",
        "SELECT a.sequence_id FROM dataset a JOIN dataset b ON a.reward = b.reward ORDER BY 1",
        'SELECT "we""ird, na;me --", "two\nlines", "select" FROM dataset ORDER BY 1',
        "WITH good AS (FROM dataset WHERE reward > 0) SELECT count(*) FROM good",
        "SELECT * FROM dataset WHERE false",
        "SELECT sum(s) FROM (SELECT unnest(flatten(action)) AS s FROM dataset)",
    ):
        with duckdb.connect() as db:
            db.register("arrow", ROWS)
            db.execute("CREATE TABLE dataset AS FROM arrow")
            assert repr(rows.sql(query).fetchall()) == repr(db.execute(query).fetchall()), query


def test_a_relation_outlives_its_selection_and_can_be_run_and_refined_again(rows: sl.Selection) -> None:
    relation = rows.sql("SELECT sequence_id, reward FROM dataset WHERE reward < 10")
    del rows
    assert relation.fetchall() == [("a", 1.0), ("c", 7.0), ("e", -2.5)]
    assert relation.filter("reward > 0").order("reward DESC").fetchall() == [("c", 7.0), ("a", 1.0)]
    assert relation.to_arrow_table().num_rows == 3


def test_sql_joins_other_tables() -> None:
    rows = sl.scan(ROWS)
    labels = pa.table({"sequence_id": ["c", "a"], "label": ["good", "bad"]})
    query = "SELECT task, label FROM dataset JOIN labels USING (sequence_id) ORDER BY label"
    for other in (labels, labels.to_pandas(), sl.scan(labels)):
        assert rows.sql(query, labels=other).fetchall() == [("pick", "bad"), ("pick", "good")]
    with pytest.raises(QueryError, match="name of the dataset"):
        rows.sql("FROM dataset", dataset=labels)
    with pytest.raises(QueryError, match="cannot read 'labels'"):
        rows.sql("FROM labels", labels=3)


def test_pivot_and_summarize_work(rows: sl.Selection) -> None:
    pivot = rows.select("task", "reward").sql("PIVOT dataset ON task USING count(*)").to_arrow_table()
    assert {"pick", "place"} <= set(pivot.column_names)
    assert [row[0] for row in rows.sql("SUMMARIZE SELECT task, len(action) AS t FROM dataset").fetchall()] == [
        "task",
        "t",
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM nothing",
        "SELECT nothing FROM dataset",
        "SELECT 1; SELECT 2",
        "CREATE TABLE t AS SELECT 1",
        "DELETE FROM dataset",
        "",
        "SELEC",
        "SELECT * FROM ROWS",  # a variable of this module
    ],
)
def test_sql_refuses_what_is_no_query(query: str) -> None:
    with pytest.raises(QueryError):
        sl.scan(ROWS).sql(query)


def test_sql_reaches_no_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"COPY dataset TO '{tmp_path / 'out.csv'}'",
        f"ATTACH '{tmp_path / 'x.db'}'",
        "SET enable_external_access = true",
    ):
        with pytest.raises(QueryError):
            sl.scan(ROWS).sql(query).fetchall()
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_only_the_columns_a_query_uses_are_read() -> None:
    class Watched:
        """A readable that notes what is asked of its one shard."""

        def __init__(self) -> None:
            self.inner = sl.scan(ROWS)
            self.asked: set[str] = set()
            self.schema, self.root, self.fingerprint = self.inner.schema, self.inner.root, self.inner.fingerprint

        key, rows, nbytes = "watched#1", 5, 100

        def shards(self):
            return [self]

        def lengths(self, column):
            return self.inner.lengths(column)

        def open(self):
            reader = self.inner.shards()[0].open()
            watched = self

            class Reader:
                def batches(self, columns, /, *, rows=None):
                    watched.asked.update(columns)
                    return reader.batches(columns, rows=rows)

                flat, close = reader.flat, reader.close

            return Reader()

    for query, columns in {
        "SELECT reward FROM dataset WHERE task = 'pick'": {"reward", "task"},
        "SELECT count(*) FROM dataset": {"sequence_id"},
        "SELECT count(*) FROM (SELECT * FROM dataset) WHERE len(action) > 1": {"action"},
        "SELECT max(reward) FROM (SELECT *, task AS t FROM dataset)": {"reward"},
    }.items():
        source = Watched()
        sl.Selection(source).sql(query).fetchall()
        assert source.asked == columns, query
    source = Watched()
    sl.Selection(source).where("reward > 1 OR task = 'x'")
    assert source.asked == {"reward", "task"}


def test_no_rows_and_no_matches() -> None:
    empty = sl.scan(ROWS.slice(0, 0))
    assert len(empty.where("reward > 1")) == 0
    assert empty.sql("SELECT count(*) FROM dataset").fetchall() == [(0,)]
    nothing = sl.scan(ROWS).where("reward < -100")
    assert len(nothing) == 0
    assert len(nothing.where("reward > 1")) == 0
    assert nothing.shards() == []
    assert nothing.sql("SELECT * FROM dataset").fetchall() == []


def test_a_query_leaves_nothing_behind(tmp_path):
    """A view that held its own DuckDB kept both for good, and DuckDB said so when the process ended."""
    schema = sl.Schema({"reward": pa.float32()})
    sl.create(tmp_path / "ds", schema).append([{"sequence_id": "a", "reward": 1.0}])
    code = "import sys, seqlake as sl; print(sl.open(sys.argv[1]).sql('SELECT count(*) FROM dataset').fetchall())"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "ds")], capture_output=True, text=True, check=True
    )
    assert (ended.stdout.strip(), ended.stderr) == ("[(1,)]", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.EIO, "Input/output error"), MemoryError()])
def test_what_ends_the_reading_of_rows_is_not_called_a_query(tmp_path, monkeypatch, error):
    """Ctrl-C that comes while DuckDB pulls rows reached the caller as an error of the query."""
    ds = sl.create(tmp_path / "arm", sl.Schema({"action": sl.Trajectory(dim=2, fps=10)}))
    ds.append([{"sequence_id": "a", "action": [[1.0, 2.0]]}])

    def batches(*_, **__):
        raise error
        yield

    monkeypatch.setattr(Excerpt, "batches", batches)
    monkeypatch.setattr(scanning, "batches", batches)
    for ask in (
        lambda: ds.where("len(action) > 1"),
        lambda: ds.add_column("steps", pa.int64(), sql="len(action)"),
        lambda: answers(Excerpt.of(ds), "SELECT len(action) FROM dataset"),
    ):
        with pytest.raises(type(error)) as caught:
            ask()
        assert caught.value.args == error.args
    assert ds.refresh().id == 1


def test_times_with_a_zone_mean_the_same_wherever_the_machine_is(tmp_path) -> None:
    """Their parts are asked for in UTC; what depends on the moment of asking is refused."""
    times = pa.array([0, 3_600, 86_399], pa.timestamp("s", "UTC"))
    folder(tmp_path / "plain", pa.table({"sequence_id": ["a", "b", "c"], "stamp": times}))
    code = (
        "import sys, seqlake as sl; ds = sl.scan(sys.argv[1]);"
        "print(ds.where('hour(stamp) = 1 OR day(stamp - INTERVAL 1 DAY) = 30').to_arrow()['sequence_id'].to_pylist(),"
        " ds.sql('SELECT hour(stamp) FROM dataset ORDER BY stamp').fetchall())"
    )
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        answer = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "plain")],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert answer.strip() == "['b'] [(0,), (1,), (23,)]", zone
    for text in ("age(stamp) > INTERVAL 1 DAY", "stamp < now()", "stamp > today()"):
        with pytest.raises(QueryError, match="changes from call to call"):
            sl.scan(str(tmp_path / "plain")).where(text)
    between = "age(stamp, TIMESTAMPTZ '1970-01-01 00:00:00+00') > INTERVAL 2 HOUR"
    assert sl.scan(str(tmp_path / "plain")).where(between).to_arrow()["sequence_id"].to_pylist() == ["c"]
