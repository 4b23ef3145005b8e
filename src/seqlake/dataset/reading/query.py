"""SQL over a dataset: which rows a condition keeps, and DuckDB relations that read only what they need.

DuckDB binds every query against an empty table of the schema first; its plan then names the columns to read. The
columns reach it under names of our own behind a view, so that no column name can break a plan or a query. Each
query has its own in-memory connection, without access to files, the network or this process's variables.
"""

from __future__ import annotations

import json
import re
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.dataset.reading import scanning
from seqlake.dataset.reading.at_hand import NAME, ROW, AtHand, held, table_of, type_in_duckdb
from seqlake.dataset.reading.pruning import Comparison, condition_over, first_over, names_in, narrowed, parts_of
from seqlake.dataset.reading.streaming import ArrowStream
from seqlake.errors import QueryError, QueryLimitError
from seqlake.files import sandbox
from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.shards.files import ParquetShard
from seqlake.shards.parquet.expansion import NARROW
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.rows import Rows
from seqlake.spec.schema import no_column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    import duckdb

    from seqlake.dataset.reading.excerpt import Excerpt
    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What reading some rows and columns costs.

    Attributes:
        columns: The columns that are read.
        rows: Rows that are looked at.
        shards: Shards of the version.
        opened: Shards whose files are opened.
        nbytes: Bytes of these columns in those files, as they lie there; other rows of the same files count too.
        total: Bytes of all files of the version.
        ruled_out: Parts of the condition that rule shards out, in words.

    Example:
        ```python
        print(ds.explain("SELECT avg(reward) FROM dataset WHERE split = 'train'"))
        ```
    """

    columns: Sequence[str]
    rows: int
    shards: int
    opened: int
    nbytes: int
    total: int
    ruled_out: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "columns": list(self.columns),
            "rows": self.rows,
            "shards": self.shards,
            "files_opened": self.opened,
            "bytes_read": self.nbytes,
            "bytes_total": self.total,
            "ruled_out_by": list(self.ruled_out),
        }

    def __str__(self) -> str:
        lines = [
            f"opens {self.opened} of {self.shards} files, reads {self.nbytes:,} of {self.total:,} bytes",
            f"  rows     {self.rows}",
            f"  columns  {', '.join(self.columns)}",
        ]
        if self.ruled_out:
            lines.append(f"  ruled out by  {' and '.join(self.ruled_out)}")
        return "\n".join(lines)


def explain(
    source: Readable, shards: Sequence[Shard], columns: Sequence[str], /, *, ruled_out: Sequence[str] = ()
) -> Explained:
    """What reading these columns of these shards costs.

    Args:
        source: The version.
        shards: Those that hold rows to look at, cut down to them.
        columns: What is read.
        ruled_out: Why the other shards are not among them.
    """
    read = [_bytes(shard, columns) for shard in shards]
    every = source.shards()
    return Explained(
        columns=tuple(columns),
        rows=sum(shard.rows for shard in shards),
        shards=len(every),
        opened=sum(nbytes is not None for nbytes in read),
        nbytes=sum(nbytes or 0 for nbytes in read),
        total=sum(shard.nbytes for shard in every),
        ruled_out=tuple(ruled_out),
    )


def _bytes(shard: Shard, columns: Sequence[str]) -> int | None:
    """Bytes of these columns in the shard's own file; None where it is not opened at all."""
    if isinstance(shard, Rows):
        return _bytes(shard.shard, columns)
    if isinstance(shard, Columns):
        places = [shard.mapping.get(name, Stored(name)) for name in columns]
        stored = [place.name for place in places if not isinstance(place, Constant)]
        return _bytes(shard.shard, stored) if stored else None
    if not isinstance(shard, ParquetShard):
        return shard.nbytes  # another format's: nothing is known of its columns
    footer = read_footer(shard.blob)
    leaves = [leaf for name in columns for leaf in footer.leaves.get(name, ())]
    groups = range(footer.metadata.num_row_groups)
    sizes = [footer.metadata.row_group(g).column(leaf).total_compressed_size for g in groups for leaf in leaves]
    return int(sum(sizes))


_SOURCE = "_seqlake_rows"
_COLUMN = re.compile(r"_seqlake_column_(\d+)_")
_UNKNOWN = re.compile(
    """Referenced column "(?P<column>.+)" not found| "dataset" does not have a column named "(?P<other>.+)\""""
    """|Referenced table "(?P<table>.+)" not found|Cannot extract field '.*' from expression "(?P<part>.+)\""""
)
# DuckDB 1.5 hands comparisons to pyarrow, which thinks differently of NaN. No comparison with what may change from call
# to call leaves its place, and nothing compares lists there; filters that a join finds while it runs are switched off.
# A LIMIT would hold them back as well, and all that follows it runs on one thread.
_NOT_HANDED_ON = "CASE WHEN random() < 2 THEN {} END"
_SETTINGS: dict[str, Any] = {"disabled_optimizers": "join_filter_pushdown"}


def _settings() -> dict[str, Any]:
    return {**_SETTINGS, **sandbox.settings_of_limit()}


# Fails instead of answering wrongly, should a plan ever read a column that it did not name.
_NOT_READ = "error('this column was not read')"
_NOW = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
_functions: dict[str, set[str]] = {}
_REFUSED_NODES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column number",
    "DEFAULT": "DEFAULT",
}


def matching_rows(
    schema: Schema, expression: str, batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
) -> Ints:
    """The numbers of the rows for which a boolean row expression is true.

    Args:
        schema: All columns that the expression may name.
        expression: One boolean SQL expression; NULL counts as false.
        batches: Reads the named columns of all rows, in order, in the types of `schema.arrow`.

    Returns:
        [matches] row numbers, ascending.

    Raises:
        QueryError: It does not parse or bind, is not boolean, or is not a pure function of one row.
    """
    refuse_what_is_no_text(expression)
    with _planner(schema) as planner:
        planner.check_row_expression(expression)
        query = f"SELECT (\n{expression}\n) AS keep FROM {NAME}"
        kind = str(planner.relation(query).types[0])
        if kind not in {"BOOLEAN", '"NULL"', "NULL"}:
            raise QueryError(
                f"A condition is true or false for each row; {expression!r} gives {kind}.",
                hint="Compare it with something, as in: reward > 40.",
            )
        return planner.matching(query, batches)


def refuse_what_is_no_text(condition: object, /) -> None:
    """Raise `TypeError` for a lambda, a mask or another library's expression in the place of SQL."""
    if not isinstance(condition, str):
        raise TypeError(
            f"A condition is text in SQL, as in where(\"reward > 40 AND task = 'pick'\"), found "
            f"{type(condition).__name__}. Rows that Python code chooses are named by where(ids=[...])."
        )


def asked(schema: Schema, query: str, /) -> tuple[list[str], list[Comparison]]:
    """The columns that a query reads, and the parts of its condition that may rule shards out.

    Raises:
        QueryError: It does not parse or bind, or is not one query.
    """
    with _planner(schema) as planner:
        explained = planner.check_one_query(query) == "SELECT"
        numbers = planner.needed(query, explained=explained)
        return [schema.arrow.field(i).name for i in numbers], planner.parts(query) if explained else []


def parts_of_condition(schema: Schema, expression: str, /) -> list[Comparison]:
    """The parts of a row expression that may rule shards out; none where it does not parse."""
    refuse_what_is_no_text(expression)
    with _planner(schema) as planner:
        return planner.parts(f"SELECT * FROM {NAME} WHERE (\n{expression}\n)")


def relation(shows: Excerpt, query: str, others: Mapping[str, object], /) -> duckdb.DuckDBPyRelation:
    """A DuckDB relation over the rows, called `dataset` in the query; they are read whenever it runs.

    Args:
        shows: What `dataset` is.
        query: One SELECT (or FROM, WITH, PIVOT, SUMMARIZE, DESCRIBE) statement.
        others: More tables by name: Arrow, pandas, Polars, or anything with `__arrow_c_stream__`.

    Raises:
        QueryError: It does not parse or bind, is not one query, or names files.
    """
    if not others:
        with _planner(shows.schema) as planner:
            connection = planner.answering(query, shows)
    else:
        connection = _Connection(shows.schema)
        for name, other in others.items():
            connection.add(name, other)
        explained = connection.check_one_query(query) == "SELECT"
        needed = connection.needed(query, explained=explained)
        connection.provide(_Provision(columns=needed, batches=partial(scanning.batches, shows)))
    relation: duckdb.DuckDBPyRelation = connection.relation(query)
    return relation


def answers(
    shows: Excerpt, query: str, /, *, narrowed_to: Callable[[duckdb.DuckDBPyRelation], Any] | None = None
) -> pa.Table:
    """What a query answers, read at once: rows that cannot be read keep their error, as `relation` cannot.

    Args:
        shows: As for `relation`.
        query: As for `relation`.
        narrowed_to: Makes another relation of the answer, before anything is read: some rows or columns of it.

    Raises:
        QueryError: As for `relation`.
    """
    with _planner(shows.schema) as planner, planner.answering(query, shows) as connection:
        answer = connection.relation(query)
        part = answer if narrowed_to is None else connection.run(lambda: narrowed_to(answer))
        table: pa.Table = connection.run(part.to_arrow_table)
    return table


_planners: dict[tuple[Schema, str], _Connection] = {}
"""Connections without rows, by their columns: to make one costs as much as a question over small columns."""
_MOST_PLANNERS = 8


@contextmanager
def _planner(schema: Schema) -> Iterator[_Connection]:
    """A connection without rows that nobody else uses meanwhile."""
    key = schema, str(sandbox.settings_of_limit())
    planner = _planners.pop(key, None) or _Connection(schema)
    with ExitStack() as failed:
        failed.enter_context(planner)
        with planner.watched():
            yield planner
        if len(_planners) < _MOST_PLANNERS and key not in _planners:
            failed.pop_all()
            _planners[key] = planner


@sandbox.on_end
def _forget() -> None:
    while _planners:
        _planners.popitem()[1].__exit__()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Provision:
    """What is put behind the view.

    Attributes:
        columns: Numbers of the columns that are read.
        batches: Reads them, by their names.
        alone: The query names no others, so that the view has none: each costs DuckDB a third of a millisecond.
    """

    columns: Sequence[int]
    batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    alone: bool = False


class _Connection:
    """One private DuckDB in which the view `dataset` stands for the rows."""

    def __init__(self, schema: Schema, types: dict[str, str] | None = None, *, table: AtHand | None = None) -> None:
        import duckdb

        self._schema = schema
        self._arrow = schema.arrow
        # Cheap columns first: the first one is read where only rows are counted.
        self.every = sorted(range(len(self._arrow)), key=self._is_wide)
        self._duckdb = duckdb
        self._damage: list[BaseException] = []  # the last one, if any
        self._db = sandbox.shared(utc=True, **_settings()) if table is None else table.database.cursor()
        self._types = types or {}
        if types is not None:
            return  # rows are provided next
        try:
            self._db.register(_SOURCE, self._renamed(self.every).empty_table())
            described = self._db.execute(f"DESCRIBE {_SOURCE}").fetchall()
            self._types = {name: kind for name, kind, *_ in described}
            self._view(self.every)
        except duckdb.Error as error:
            raise QueryError(f"DuckDB cannot hold these columns: {_first_line(error)}") from error

    def _is_wide(self, number: int) -> bool:
        return self._schema[self._arrow.field(number).name].category not in NARROW

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def watched(self) -> AbstractContextManager[None]:
        """While it answers, a bound on time holds (`sandbox.limited`)."""
        return sandbox.watched(self._db)

    def add(self, name: str, table: object) -> None:
        """Register another table under its name."""
        if name.casefold() in {NAME, _SOURCE}:
            raise QueryError(f"{name!r} is the name of the dataset itself; call the other table something else.")
        try:
            self._db.register(name, table)
        except (self._duckdb.Error, TypeError) as error:
            raise QueryError(
                f"DuckDB cannot read {name!r}, a {type(table).__name__}: {_first_line(error)}",
                hint="Give an Arrow table, a pandas or Polars frame, or a Selection.",
            ) from error

    def answering(self, query: str, shows: Excerpt) -> _Connection:
        """Another connection, that has the columns that a query reads, of the rows that its condition may keep."""
        explained = self.check_one_query(query) == "SELECT"
        tree = self._tree(query) if explained else None
        words = names_in(tree, table=NAME)
        named = [] if words is None else self._named(words)
        needed = named or self.needed(query, explained=explained)
        table = None if words is None else self._at_hand(shows, needed, words)
        if table is not None:
            return _Connection(self._schema, self._types, table=table)
        if tree is not None and "where" in query.casefold():
            shows = shows.cut(rows=narrowed(shows.source, shows.rows, lambda: parts_of(tree, table=NAME)))
        if tree is not None and any(map(self._is_wide, needed)):
            shows = self._first(shows, tree) or self._narrowed(shows, tree)
        return self.provided(_Provision(columns=needed, batches=partial(scanning.batches, shows), alone=bool(named)))

    def _at_hand(self, shows: Excerpt, numbers: Sequence[int], words: set[str]) -> AtHand | None:
        """A table of these columns, where questions were asked over them before and a question means the same there."""
        if any(map(self._is_wide, numbers)):
            return None
        names = [self._arrow.field(i).name for i in numbers]
        table = table_of(shows, names, _settings())
        return table if table is not None and table.knows(names, words) else None

    def _first(self, shows: Excerpt, tree: Any) -> Excerpt | None:
        """The few rows that an order over small columns and a LIMIT leave; None where that is not what is asked."""
        small = [name for name in shows.schema if shows.schema[name].category in NARROW]
        asked = first_over(tree, small, table=NAME, row=ROW)
        words = None if asked is None else names_in(asked, table=NAME)
        if asked is None or words is None:
            return None
        numbers = [i for i in self.every if self._arrow.field(i).name.casefold() in words]
        table = self._at_hand(shows, numbers, words - {ROW})
        if table is None:
            return None
        node = tree["statements"][0]["node"]
        selected = [one for one in node["select_list"] if one.get("class") != "STAR" or one.get("replace_list")]
        try:  # each row gives one, and none changes
            self._check([selected, node["where_clause"], node["modifiers"]], self._functions(), "the query")
            with _Connection(self._schema, self._types, table=table) as connection:
                rows = connection.run(lambda: connection.relation(connection.text(asked)).to_arrow_table())
        except QueryError:
            return None
        return shows.cut(rows=np.sort(rows.column(0).to_numpy()).astype(np.int64))

    def _narrowed(self, shows: Excerpt, tree: object) -> Excerpt:
        """The rows that the parts of the condition over small columns keep: no other's signals are ever copied."""
        small = [name for name in shows.schema if shows.schema[name].category in NARROW]
        statement = condition_over(tree, small, table=NAME)
        if statement is None:
            return shows
        try:
            text = self.text(statement)
            self._check(statement["statements"][0]["node"]["select_list"], self._functions(), text)
            kept = self.matching(text, partial(scanning.batches, shows))
        except QueryError:
            return shows  # it depends on more than its row, or fails where other parts would have spared it
        return shows.cut(rows=kept if shows.rows is None else shows.rows[kept])

    def text(self, statement: Mapping[str, Any]) -> str:
        """A parsed statement in SQL."""
        asked = [json.dumps(statement)]
        rows = self.run(lambda: self._db.execute("SELECT json_deserialize_sql(?::JSON)", asked).fetchall())
        return str(rows[0][0])

    def matching(self, query: str, batches: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]) -> Ints:
        """[matches] the rows for which a query's one column is true; NULL counts as false."""
        with self.provided(_Provision(columns=self.needed(query), batches=batches)) as connection:
            table = connection.run(connection.relation(query).to_arrow_table)
        mask = table.column(0).cast(pa.bool_()).fill_null(False).to_numpy()
        return np.flatnonzero(mask).astype(np.int64)

    def provided(self, provision: _Provision) -> _Connection:
        """Another connection, with the real rows behind the view."""
        connection = _Connection(self._schema, self._types)
        connection.provide(provision)
        return connection

    def provide(self, provision: _Provision) -> None:
        """Put the real rows behind the view."""
        needed, batches = provision.columns, provision.batches
        names = [self._arrow.field(i).name for i in needed]
        schema = self._renamed(needed)
        damage = self._damage  # not self: DuckDB would hold what holds DuckDB, and neither would ever be freed

        def read() -> Iterator[pa.RecordBatch]:
            try:
                for batch in batches(names):
                    yield pa.RecordBatch.from_arrays(
                        [held(batch.column(name), kind) for name, kind in zip(names, schema.types, strict=True)],
                        schema=schema,
                    )
            except GeneratorExit:
                raise
            except BaseException as error:  # Ctrl-C too
                damage[:] = [copy(error)]  # DuckDB hands on its text alone; a copy has no frames that hold this
                raise

        self._db.register(_SOURCE, ArrowStream(schema, read))
        self._view(needed, among=sorted(needed) if provision.alone else None)

    def _renamed(self, numbers: Sequence[int]) -> pa.Schema:
        return pa.schema([pa.field(_column(i), type_in_duckdb(self._arrow.field(i).type)) for i in numbers])

    def _view(self, needed: Sequence[int], *, among: Sequence[int] | None = None) -> None:
        present = set(needed)
        columns = ", ".join(
            f"{self._read(i) if i in present else f'{_NOT_READ}::{self._types[_column(i)]}'} AS "
            f"{quoted(self._arrow.field(i).name)}"
            for i in (range(len(self._arrow)) if among is None else among)
        )
        self._db.execute(f"CREATE OR REPLACE TEMP VIEW {NAME} AS SELECT {columns} FROM {_SOURCE}")

    def _read(self, number: int) -> str:
        """A column of the rows, in SQL."""
        name = _column(number)
        return name if self._types[name].endswith("]") else _NOT_HANDED_ON.format(name)

    def needed(self, query: str, *, explained: bool = True) -> list[int]:
        """The columns that a query's plan reads; at least one, since rows without columns cannot be counted.

        Args:
            query: One query.
            explained: Whether it has a plan; one that has none may read all columns.

        Raises:
            QueryError: One of them differs from another by case alone.
        """
        if not explained:
            self._refuse_twins(self.every)
            return self.every
        try:
            plan = self._db.execute(f"EXPLAIN (FORMAT json) {query}").fetchall()[0][1]
        except (self._duckdb.Error, IndexError):
            return self.every  # what cannot be explained may need all of them
        named = {int(number) for number in _COLUMN.findall(plan)}
        self._refuse_twins(named)
        return [i for i in self.every if i in named] or self.every[:1]

    def _named(self, words: set[str]) -> list[int]:
        """The columns that a plain query names; `needed` finds them of any, at the cost of a plan."""
        named = [i for i in self.every if self._arrow.field(i).name.casefold() in words]
        self._refuse_twins(named)
        return named or self.every[:1]

    def _refuse_twins(self, numbers: Iterable[int]) -> None:
        """Names of SQL mean the same in capitals: the first of two columns would be taken for the other."""
        names = self._arrow.names
        for name in [names[i] for i in sorted(numbers)]:
            twins = [one for one in names if one.casefold() == name.casefold()]
            if len(twins) > 1:
                raise QueryError(
                    f"SQL cannot tell the columns {' and '.join(twins)} apart, and this reads one of them.",
                    hint=f"Rename one, or leave it out, as in ds.select({twins[0]!r}, ...).sql(...).",
                )

    def parts(self, query: str) -> list[Comparison]:
        """The parts of a query's condition that may rule shards out."""
        return parts_of(self._tree(query), table=NAME)

    def _tree(self, query: str) -> Any:
        """A query as DuckDB parses it."""
        return json.loads(self._db.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])

    def relation(self, query: str) -> Any:
        """The query as a relation."""
        return self.run(lambda: self._db.sql(query))

    def run(self, call: Callable[[], Any]) -> Any:
        """Call DuckDB; what it refuses is a `QueryError`, and rows that cannot be read keep their error."""
        try:
            with sandbox.ctrl_c(self._db), self.watched():
                return call()
        except self._duckdb.Error as error:
            if self._damage:
                raise self._damage[0] from None
            if isinstance(error, self._duckdb.OutOfMemoryException) and sandbox.settings_of_limit():
                raise QueryLimitError(
                    f"It needs more memory than {sandbox.settings_of_limit()['memory_limit']} and was stopped.",
                    hint="Ask for less: a condition on small columns first, a LIMIT, fewer signals.",
                ) from error
            self._refuse_unknown(str(error))
            raise QueryError(f"DuckDB refused the query: {str(error).strip()}") from error

    def _refuse_unknown(self, text: str) -> None:
        """What DuckDB says of a name that it does not know, as every other verb says it."""
        known = _UNKNOWN.search(text)
        if known is None:
            return
        kind, name = next((kind, name) for kind, name in known.groupdict().items() if name is not None)
        dotted = [one for one in self._arrow.names if one.startswith(f"{name}.")]
        if dotted:
            raise QueryError(
                f"No column {name!r}; there are {', '.join(self._arrow.names)}.",
                hint=f'A name with a dot stands in double quotes, as in "{dotted[0]}".',
            )
        if kind in {"column", "other"}:
            error = no_column(name, self._arrow.names)
            raise QueryError(error.message, hint=error.hint)

    def check_one_query(self, query: str) -> str:
        """The kind of its one statement that gives rows; raises where it is not one."""
        if not isinstance(query, str):
            raise TypeError(f'A query is text in SQL, as in sql("FROM dataset"), found {type(query).__name__}.')
        kinds = [str(s.type).rpartition(".")[2] for s in self.run(lambda: self._db.extract_statements(query))]
        asking = [kind for kind in kinds if kind in {"SELECT", "MULTI", "EXPLAIN"}]
        if len(asking) != 1 or kinds[-1] not in asking:
            raise QueryError(
                f"One SELECT was expected; found {', '.join(kinds) or 'nothing'}.",
                hint="SQL only reads here; to change a dataset use update, upsert, delete or add_column.",
            )
        return kinds[0] if len(kinds) == 1 else "several"  # PIVOT becomes several

    def check_row_expression(self, expression: str) -> None:
        """Raise unless the text is one pure expression of one row."""
        if not expression.strip():
            raise QueryError("A condition was expected, as in 'reward > 40'; found an empty text.")
        node = self._parsed(expression)
        self._check(node, self._functions(), expression)

    def _functions(self) -> Mapping[str, set[str]]:
        """What is known of DuckDB's functions, by name; the same for all questions."""
        if not _functions:
            kinds: dict[str, set[str]] = {}
            for name, kind, stability in self._db.execute(
                "SELECT DISTINCT function_name, function_type, stability FROM duckdb_functions()"
            ).fetchall():
                kinds.setdefault(name, set()).add(stability if kind == "scalar" else kind)
            _functions.update(kinds)
        return _functions

    def _parsed(self, expression: str) -> object:
        """The tree of one expression; a text that leaves its brackets is refused."""
        frame, tree = self._select(expression)
        if len(tree) != 1 or frame != self._select("true")[0]:
            raise QueryError(f"One boolean expression was expected; found more than that in {expression!r}.")
        return tree

    def _select(self, expression: str) -> tuple[object, list[Any]]:
        """(everything around the selected expressions, their trees), without positions in the text."""
        text = f"SELECT (\n{expression}\n) AS keep FROM {NAME}"
        if text != text.encode(errors="replace").decode():
            raise QueryError(f"{expression!r} holds what no text can: bytes of another encoding, or half a letter.")
        answer = json.loads(self._db.execute("SELECT json_serialize_sql(?)", [text]).fetchall()[0][0])
        if answer["error"]:
            raise QueryError(f"{expression!r} is not a boolean expression: {answer['error_message']}")
        frame = _without_positions(answer)
        frame["statements"][0].pop("named_param_map", None)
        return frame, frame["statements"][0]["node"].pop("select_list", [])

    def _check(self, node: object, kinds: Mapping[str, set[str]], expression: str, depth: int = 0) -> None:
        columns = {name.casefold() for name in self._arrow.names}
        for inner in _nodes(node):
            refused = _REFUSED_NODES.get(str(inner.get("class")))
            name = str(inner.get("function_name", "")).casefold()
            if inner.get("class") == "COLUMN_REF" and len(inner["column_names"]) == 1:
                bare = inner["column_names"][0].casefold()
                name = bare if bare in _NOW - columns else ""  # functions that SQL calls without parentheses
            if name and not refused:
                given = inner.get("arguments", inner.get("children", ()))  # of DuckDB 2.0, and of 1.5
                until_now = name == "age" and len(given) == 1
                refused = _why_not(name, {"VOLATILE"} if until_now else kinds.get(name, set()))
            if name and not refused and "macro" in kinds.get(name, ()) and depth < 8:
                for (body,) in self._db.execute(
                    "SELECT macro_definition FROM duckdb_functions()"
                    " WHERE function_type = 'macro' AND function_name = ?",
                    [name],
                ).fetchall():
                    self._check(self._parsed(body), kinds, expression, depth + 1)
            if refused:
                raise QueryError(
                    f"{expression!r} cannot select rows: it uses {refused}.",
                    hint="A condition looks at one row and always gives the same answer; for more, take ids from "
                    "ds.sql(...) and give them to ds.where(ids=...).",
                )


def quoted(name: str) -> str:
    """A column's name as SQL writes it, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def _column(number: int) -> str:
    return f"_seqlake_column_{number}_"


def _why_not(name: str, kinds: set[str]) -> str:
    # Several functions may have one name: those of times with a zone differ by the zone that is set, which is UTC.
    passing = "CONSISTENT_WITHIN_QUERY" in kinds and "CONSISTENT" not in kinds
    if name in _NOW or "VOLATILE" in kinds or passing:
        return f"{name}, whose answer changes from call to call"
    if kinds & {"aggregate", "window"}:
        return f"{name}, an aggregate over many rows"
    if name in {"unnest", "unlist"} or (kinds and not kinds & {"CONSISTENT", "macro"}):
        return f"{name}, which does not give one value a row"
    return ""


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from _nodes(value)


def _without_positions(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_positions(value) for key, value in tree.items() if not key.startswith("query_location")}
    return [_without_positions(value) for value in tree] if isinstance(tree, list) else tree


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
