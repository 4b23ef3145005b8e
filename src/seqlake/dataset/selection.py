"""Some rows and columns of a dataset: queried, indexed, streamed as Arrow, given to a loader."""

from __future__ import annotations

import operator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.abilities import Checked, KeepsDerived, KeepsFiles, ShardSizes, ability
from seqlake.dataset.reading import display, plain, pruning, query, streaming
from seqlake.dataset.reading.access import Access
from seqlake.dataset.reading.cells import arrow_cell
from seqlake.dataset.reading.query import Explained, explain
from seqlake.dataset.reading.sequence import SequenceView
from seqlake.errors import MissingDependencyError, SequenceNotFoundError
from seqlake.shards.reading import gathered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb
    import pandas as pd
    import polars as pl

    from seqlake.abilities import Kind
    from seqlake.protocols import Depth, Ints, Readable, Shard
    from seqlake.spec.findings import Finding
    from seqlake.spec.schema import Schema


class Selection:
    """Some rows and columns of a source, in order; itself something that can be read, trained on and converted.

    A selection holds row numbers and names, never data: it is cheap to make, may be shared by threads, and pickles
    as a description. Any Arrow consumer reads it, as often as it likes: `pa.table(selection)`,
    `pl.DataFrame(selection)`, `duckdb.sql("FROM selection")`.

    Args:
        source: What is selected from: a snapshot of a table, a scanned format, any `Readable`.
        columns: Names, in this order; all of them by default.
        rows: Row numbers of the source, each at most once; all of them by default.
        storage: Options of the store that file references are read from; never printed.
        allow_outside: References that leave the dataset's root may be opened.

    Example:
        ```python
        good = ds.where("reward > 40 AND task = 'pick'").select("sequence_id", "action")
        len(good), good[0]["action"].shape
        ```
    """

    def __init__(
        self,
        source: Readable,
        *,
        columns: Sequence[str] | None = None,
        rows: Ints | None = None,
        storage: Mapping[str, str] | None = None,
        allow_outside: bool = False,
    ) -> None:
        self._source = source.pinned() if isinstance(source, Selection) else source
        self._columns = None if columns is None else tuple(columns)
        self._rows = rows
        self.storage = storage
        self.allow_outside = allow_outside
        self.access = Access(self._source)
        self._pinned: Selection | None = None

    def _derive(self, *, columns: Sequence[str] | None = None, rows: Ints | None = None) -> Selection:
        derived = Selection(
            self._source,
            columns=self._columns if columns is None else columns,
            rows=self._rows if rows is None else rows,
            storage=self.storage,
            allow_outside=self.allow_outside,
        )
        derived.access = self.access  # open readers and known ids serve all selections of one source
        return derived

    def __getstate__(self) -> dict[str, Any]:
        return {**{key: value for key, value in vars(self).items() if key != "_sorted"}, "_pinned": None}

    def pinned(self) -> Selection:
        """This selection for good: a `Dataset` moves on with its commits, what was taken from it does not."""
        if type(self) is Selection:
            return self
        if self._pinned is None:
            self._pinned = self._derive()
        return self._pinned

    def with_id(self) -> Selection:
        """This selection for good, and with the column that names its rows even if it was not selected."""
        name = self._source.schema.id
        if name is None or name in self.schema:
            return self.pinned()
        return self._derive(columns=[name, *self.schema])

    # ---- what `Readable` asks

    @property
    def schema(self) -> Schema:
        """The columns that were selected."""
        schema = self._source.schema
        return schema if self._columns is None else schema.select(self._columns)

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """Changes when any selected row, its order, the schema or the bytes may have; not with the place."""
        if self._columns is None and self._is_everything():
            return self._source.fingerprint
        return plain.fingerprint(self.schema, self.shards())  # shards without selected rows are not named

    def _is_everything(self) -> bool:
        rows = self._rows
        return rows is None or (len(rows) == self.access.starts[-1] and bool((np.diff(rows) > 0).all()))

    def shards(self) -> Sequence[Shard]:
        """The shards that have selected rows, cut down to these; opens no data file."""
        return self.access.shards if self._rows is None else self.access.cut(self._rows)

    def lengths(self, column: str, /) -> Ints:
        """[rows] the number of steps of each cell of a temporal or frames column; -1 null.

        Raises:
            SchemaMismatchError: The column has no steps.
        """
        lengths = self._source.lengths(column)
        return lengths if self._rows is None else lengths[self._rows]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the source knows to be wrong with it (`Checked`), whatever is selected."""
        checked = ability(self._source, Checked)
        if checked is not None:
            yield from checked.check(depth)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """See `protocols.ability`: what the source keeps serves its selections, but no other shards than its own."""
        if kind in {KeepsFiles, KeepsDerived, ShardSizes}:
            return ability(self._source, kind)
        return self if isinstance(self, kind) else None

    # ---- choosing

    def where(self, sql: str | None = None, /, *, ids: Iterable[str] | str | None = None) -> Selection:
        """The rows for which a condition is true, in the order they have here.

        The condition is decided now, reading only the columns that it names; the result keeps row numbers.

        Args:
            sql: One boolean SQL expression over all columns of the source, selected or not, as in
                `"reward > 40 AND task = 'pick'"`. NULL counts as false. Random values, the current time, aggregates,
                window functions and subqueries are refused.
            ids: Only these sequences.

        Raises:
            QueryError: The condition cannot be used.
            SequenceNotFoundError: One of `ids` is not in this selection.

        Example:
            ```python
            ds.where("success AND len(action) > 100")
            ds.where(ids=["ep_001", "ep_007"])
            ```
        """
        rows = self._rows if ids is None else self._rows_named(ids)
        if sql is not None:
            rows = pruning.narrowed(self._source, rows, lambda: query.parts_of_condition(self._source.schema, sql))
            every = Selection(self._source, rows=rows)  # conditions may name columns that are not selected
            every.access = self.access
            matching = query.matching_rows(every.schema, sql, every.batches)
            rows = matching if rows is None else rows[matching]
        return self._derive(rows=rows)

    def _rows_named(self, ids: Iterable[str] | str) -> Ints:
        """The source's row numbers of these sequences, in the order they have here."""
        if isinstance(ids, (pa.Array, pa.ChunkedArray)):
            ids = ids.to_pylist()
        wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        places = self.find_ids(wanted)
        if len(places) and places.min() < 0:
            missing = [one for one, place in zip(wanted, places, strict=True) if place < 0]
            raise SequenceNotFoundError(
                f"{len(missing)} of {len(wanted)} ids are not in this selection, the first is {missing[0]!r}."
            )
        places = np.sort(places)
        return places if self._rows is None else self._rows[places]

    def select(self, *columns: str) -> Selection:
        """Only these columns, in this order; `sequence_id` too must be named to be kept.

        Raises:
            KeyError: No column of this name is here.
        """
        for name in columns:
            self.schema[name]
        return self._derive(columns=columns)

    def sql(self, sql: str, /, **tables: object) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation over the selected rows and columns, called `dataset` in the query.

        It reads only the columns that the query uses, again on every run, and can reach no file.

        Args:
            sql: One query, as in `"SELECT task, avg(reward) FROM dataset GROUP BY task"`.
            **tables: More tables by name: Arrow, pandas, Polars, another selection.

        Raises:
            QueryError: The query cannot be used.

        Example:
            ```python
            ds.sql("SELECT * FROM dataset JOIN labels USING (sequence_id)", labels=frame).to_arrow_table()
            ```
        """
        rows = pruning.narrowed(self._source, self._rows, lambda: [] if tables else query.asked(self.schema, sql)[1])
        return query.relation(self.schema, sql, self._derive(rows=rows).batches, tables)

    def explain(self, sql: str | None = None, /) -> Explained:
        """What a query, or reading all of this selection, would open and read; footers are opened to find out.

        Args:
            sql: A query as for `sql`; None: all selected rows and columns.

        Raises:
            QueryError: The query cannot be used.

        Example:
            ```python
            print(ds.explain("SELECT avg(reward) FROM dataset WHERE split = 'train'"))
            ```
        """
        if sql is None:
            return explain(self._source, self.shards(), self.schema.names)
        columns, parts = query.asked(self.schema, sql)
        rows = pruning.narrowed(self._source, self._rows, lambda: parts)
        ruled_out = [str(part) for part in parts] if rows is not self._rows else []
        return explain(self._source, self._derive(rows=rows).shards(), columns, ruled_out=ruled_out)

    # ---- single sequences

    def sequence(self, sequence_id: str, /) -> SequenceView:
        """One sequence by its id.

        Raises:
            SequenceNotFoundError: It is not in this selection.

        Example:
            ```python
            ds.sequence("ep_001")["action"]  # float32 [T, 12]
            ```
        """
        row = self.access.row_of(sequence_id)
        if self._rows is not None and not self._holds(row):
            raise SequenceNotFoundError(f"The sequence {sequence_id!r} is in the dataset, but not in this selection.")
        return SequenceView(self.pinned(), row)

    def __getitem__(self, which: int | str | slice) -> Any:
        """`[3]`, `[-1]` and `["ep_001"]` give a `SequenceView`, `[10:20]` a `Selection`."""
        if isinstance(which, str):
            return self.sequence(which)
        if isinstance(which, slice):
            numbers = np.arange(*which.indices(len(self)), dtype=np.int64)
            return self._derive(rows=numbers if self._rows is None else self._rows[numbers])
        number, count = operator.index(which), len(self)
        if not -count <= number < count:
            raise IndexError(f"There is no sequence {number}; there are {count}.")
        number %= count
        return SequenceView(self.pinned(), number if self._rows is None else int(self._rows[number]))

    def find_ids(self, ids: Sequence[str], /) -> Ints:
        """[ids] place of each sequence in this selection; -1 where it is not in it."""
        rows = self.access.rows_of(ids)
        if self._rows is None:
            return rows
        order, ascending = self._sorted
        places = np.searchsorted(ascending, rows)
        here = (places < len(ascending)) & (ascending[np.minimum(places, len(ascending) - 1)] == rows)
        return np.where(here, order[np.minimum(places, len(order) - 1)], -1)

    def index_of(self, row: int, /) -> int:
        """Where a row of the source stands in this selection."""
        if self._rows is None:
            return row
        order, ascending = self._sorted
        return int(order[np.searchsorted(ascending, row)])

    def _holds(self, row: int) -> bool:
        _, ascending = self._sorted
        place = int(np.searchsorted(ascending, row))
        return place < len(ascending) and int(ascending[place]) == row

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """(places, row numbers) of the selected rows, by row number."""
        rows = np.arange(len(self), dtype=np.int64) if self._rows is None else self._rows
        order = np.argsort(rows, kind="stable")
        return order, rows[order]

    def __len__(self) -> int:
        return self.access.starts[-1] if self._rows is None else len(self._rows)

    def __iter__(self) -> Iterator[SequenceView]:
        pinned = self.pinned()
        for number in range(len(pinned)):
            yield pinned[number]

    # ---- Arrow and friends

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pa.RecordBatch]:
        """The selected rows of some columns, in order, in bounded Arrow batches of logical types."""
        names = self.schema.names if columns is None else columns
        if self._rows is None:
            return streaming.read(self._source, names)
        if 4 * len(self._rows) > self.access.starts[-1] and streaming.is_narrow(self.schema, names):
            return streaming.picked(self._source, names, self._rows)
        return streaming.read(self, names)

    def _stream(self) -> streaming.ArrowStream:
        return streaming.ArrowStream(self.schema.arrow, self.batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._stream().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._stream().__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All of it in memory, in logical types: temporal columns as `list<fixed_size_list<float>[D]>`."""
        return pa.Table.from_batches(gathered(self.batches(), "This selection"), schema=self.schema.arrow)

    def to_polars(self) -> pl.DataFrame:
        """All of it as a Polars frame: temporal columns as `List(Array(Float32, D))`.

        Raises:
            MissingDependencyError: Polars is not installed.
        """
        try:
            import polars as pl
        except ImportError as error:
            raise MissingDependencyError(
                "This needs Polars, which is not installed. Run: pip install polars"
            ) from error
        return pl.DataFrame(streaming.ArrowStream(self.schema.arrow, self.to_arrow().to_batches))

    def to_pandas(self, *, signals: Literal["numpy"] | None = None) -> pd.DataFrame:
        """All of it as a pandas frame.

        Args:
            signals: Temporal and frames columns are left out unless they were named by `select`, or this is
                `"numpy"`. A cell of a temporal column is a numpy array [T, D], one of a frames column a list.

        Raises:
            MissingDependencyError: pandas is not installed.
            ValueError: `signals` is neither None nor `"numpy"`.
        """
        if signals not in {None, "numpy"}:
            raise ValueError(f"signals is None (leave signals out) or 'numpy' (one array a cell), not {signals!r}.")
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError(
                "This needs pandas, which is not installed. Run: pip install pandas"
            ) from error
        schema = self.schema
        steps = [name for name in schema.names if schema[name].category in {"temporal", "frames"}]
        others = [name for name in schema.names if name not in steps]
        frame: pd.DataFrame = (
            self.select(*others).to_arrow().to_pandas() if others else pd.DataFrame(index=range(len(self)))
        )
        if signals is None and self._columns is None:
            return frame
        for name in steps:
            cells: list[Any] = []
            for batch in self.batches([name]):
                cells += (arrow_cell(batch.column(0), row, schema[name]) for row in range(batch.num_rows))
            frame[name] = pd.Series(cells, index=frame.index, dtype=object)
        return frame[list(schema.names)]

    def __repr__(self) -> str:
        return display.selection_text(self)

    def _repr_html_(self) -> str:
        return display.selection_html(self)
