"""Some rows and columns of a dataset: queried, indexed, streamed as Arrow, given to a loader."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from seqlake.abilities import ability
from seqlake.dataset.reading import display, inventory, pruning, query, streaming
from seqlake.dataset.reading.cells import arrow_cell
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import Explained, explain
from seqlake.dataset.reading.sequence import SequenceView
from seqlake.errors import MissingDependencyError, SequenceNotFoundError
from seqlake.moved import OldName
from seqlake.shards.files import is_verified
from seqlake.shards.reading import count_lengths, gathered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb
    import pandas as pd
    import polars as pl

    from seqlake.abilities import Kind
    from seqlake.dataset.reading.inventory import FileEntry
    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Schema

_OF_DATASETS = """
    add_column adopt append collect convert_units declare delete diff drop_column fold lagging open_for_changes refresh
    rename_column rollback set_metadata set_type source tag tags unfolded untag update upsert vacuum validate version
    versions widen_column writer
"""  # what a Dataset has besides


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
        shows = ability(source, Excerpt)  # of a dataset, which moves on with its commits
        self._excerpt = Excerpt(
            source if shows is None else shows, columns=columns, rows=rows, storage=storage, allow_outside=allow_outside
        )

    @classmethod
    def _of(cls, excerpt: Excerpt) -> Selection:
        selection = Selection.__new__(Selection)
        selection._excerpt = excerpt  # noqa: SLF001 - its own class
        return selection

    if not TYPE_CHECKING:  # type checkers know what a selection has

        def __getattr__(self, name: str) -> Any:
            """Say what a verb of `Dataset` is for; anything else ends as it would."""
            if hasattr(type(self), name) or name not in _OF_DATASETS.split():
                return object.__getattribute__(self, name)
            raise AttributeError(
                f"{name!r} is for a whole Mixtrain dataset, sl.open(location).{name}; this is a Selection, which is "
                f"only read. A dataset of another format is converted first: sl.convert(source, out).{name}.",
                name=name,
                obj=self,
            )

    # ---- what `Readable` asks

    @property
    def schema(self) -> Schema:
        """The columns that were selected."""
        return self._excerpt.schema

    @property
    def root(self) -> str:
        """What relative file references resolve against."""
        return self._excerpt.root

    @property
    def fingerprint(self) -> str:
        """Changes when any selected row, its order, the schema or the bytes may have; not with the place."""
        return self._excerpt.fingerprint

    def shards(self) -> Sequence[Shard]:
        """The shards that have selected rows, cut down to these; opens no data file.

        Example:
            >>> len(dataset.shards())
            1
        """
        return self._excerpt.shards()

    def lengths(self, column: str, /) -> Ints:
        """[rows] the number of steps of each cell of a temporal or frames column; -1 null.

        As the table's index says, so that no shard is opened. With `verify="first"` they are counted in the column
        itself, all of which is read.

        Raises:
            SchemaMismatchError: The column has no steps.

        Example:
            >>> dataset.lengths("action").shape
            (64,)
        """
        shows = self._excerpt
        checked = any(is_verified(shard) for shard in shows.shards()[:1])
        return count_lengths(shows, column) if checked else shows.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """See `abilities.ability`: what is asked of the rows, the excerpt that is shown just now answers.

        Example:
            >>> from seqlake.abilities import HasIds
            >>> dataset.where("reward > 0").ability(HasIds) is not None
            True
        """
        known = self._excerpt.ability(kind)
        return known if known is not None or not isinstance(self, kind) else self

    @property
    def storage(self) -> Mapping[str, str] | None:
        """Options of the store that file references are read from; never printed."""
        return self._excerpt.storage

    @property
    def allow_outside(self) -> bool:
        """Whether references that leave the dataset's root may be opened."""
        return self._excerpt.allow_outside

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
        shows = self._excerpt
        rows = shows.rows if ids is None else self._rows_named(ids)
        if sql is not None:
            rows = pruning.narrowed(shows.source, rows, lambda: query.parts_of_condition(shows.source.schema, sql))
            # Conditions may name columns that are not selected.
            every = Excerpt(shows.source, rows=rows, access=shows.access)
            matching = query.matching_rows(every.schema, sql, every.batches)
            rows = matching if rows is None else rows[matching]
        return self._of(shows.cut(rows=rows))

    def _rows_named(self, ids: Iterable[str] | str) -> Ints:
        """The source's row numbers of these sequences, in the order they have here."""
        if isinstance(ids, (pa.Array, pa.ChunkedArray)):
            ids = ids.to_pylist()
        wanted = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        places = self._excerpt.find_ids(wanted)
        if len(places) and places.min() < 0:
            missing = [one for one, place in zip(wanted, places, strict=True) if place < 0]
            raise SequenceNotFoundError(
                f"{len(missing)} of {len(wanted)} ids are not in this selection, the first is {missing[0]!r}."
            )
        places = np.sort(places)
        return places if self._excerpt.rows is None else self._excerpt.rows[places]

    def select(self, *columns: str) -> Selection:
        """Only these columns, in this order; `sequence_id` too must be named to be kept.

        Raises:
            KeyError: No column of this name is here.

        Example:
            >>> list(dataset.select("sequence_id", "reward").schema)
            ['sequence_id', 'reward']
        """
        for name in columns:
            self.schema[name]
        return self._of(self._excerpt.cut(columns=columns))

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
        return query.relation(self._excerpt, sql, tables)

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
        shows = self._excerpt
        if sql is None:
            return explain(shows.source, shows.shards(), self.schema.names)
        columns, parts = query.asked(self.schema, sql)
        rows = pruning.narrowed(shows.source, shows.rows, lambda: parts)
        ruled_out = [str(part) for part in parts] if rows is not shows.rows else []
        return explain(shows.source, shows.cut(rows=rows).shards(), columns, ruled_out=ruled_out)

    def files(self, *, elsewhere: bool = False) -> list[FileEntry]:
        """Every file that the rows name, and of a whole dataset also the copied-in files that none names.

        Nothing is opened. Files below the root are looked for, others on this machine only if the dataset was opened
        with `allow_outside`.

        Args:
            elsewhere: Also ask other stores and web servers, one request for each file.

        Returns:
            Those that rows name in the order they were met, then the others by path. Each has `reference`, `state`
            (`present`, `missing`, `outside`, `elsewhere`; of files that no row names `kept`, `orphan`, `stranger`),
            `size` in bytes, `columns` and `rows`, the ids of the sequences that name it.

        Example:
            ```python
            dangling = [file for file in ds.files() if file.state == "missing"]
            ```
        """
        return inventory.entries_of(self, elsewhere=elsewhere)

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
        shows = self._excerpt
        row = shows.access.row_of(sequence_id)
        if shows.index_of(row) < 0:
            raise SequenceNotFoundError(f"The sequence {sequence_id!r} is in the dataset, but not in this selection.")
        return SequenceView(shows, row)

    def __getitem__(self, which: int | str | slice) -> Any:
        """`[3]`, `[-1]` and `["ep_001"]` give a `SequenceView`, `[10:20]` a `Selection`."""
        if isinstance(which, str):
            return self.sequence(which)
        if isinstance(which, slice):
            numbers = np.arange(*which.indices(len(self)), dtype=np.int64)
            rows = self._excerpt.rows
            return self._of(self._excerpt.cut(rows=numbers if rows is None else rows[numbers]))
        number, count = operator.index(which), len(self)
        if not -count <= number < count:
            raise IndexError(f"There is no sequence {number}; there are {count}.")
        return self._excerpt[number % count]

    def __len__(self) -> int:
        return len(self._excerpt)

    def __iter__(self) -> Iterator[SequenceView]:
        shows = self._excerpt
        return (shows[place] for place in range(len(shows)))

    # ---- Arrow and friends

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pa.RecordBatch]:
        """The selected rows of some columns, in order, in bounded Arrow batches of logical types.

        Example:
            >>> sum(batch.num_rows for batch in dataset.batches(["reward"]))
            64
        """
        return self._excerpt.batches(columns)

    def _stream(self) -> streaming.ArrowStream:
        return streaming.ArrowStream(self.schema.arrow, self.batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._stream().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._stream().__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All of it in memory, in logical types: temporal columns as `list<fixed_size_list<float>[D]>`.

        Example:
            >>> dataset.select("reward").to_arrow().num_rows
            64
        """
        return pa.Table.from_batches(gathered(self.batches(), "This selection"), schema=self.schema.arrow)

    def to_polars(self) -> pl.DataFrame:
        """All of it as a Polars frame: temporal columns as `List(Array(Float32, D))`.

        Raises:
            MissingDependencyError: Polars is not installed.

        Example:
            >>> dataset.select("sequence_id", "reward").to_polars().shape
            (64, 2)
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

        Example:
            >>> dataset.select("sequence_id", "reward").to_pandas().shape
            (64, 2)
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
        frame: pd.DataFrame = pd.DataFrame(index=range(len(self)))
        if others:
            # Python's times have no nanoseconds; Arrow's own, which pandas takes, do.
            exact = {pa.time64("ns"): pd.ArrowDtype(pa.time64("ns"))}
            frame = self.select(*others).to_arrow().to_pandas(types_mapper=exact.get)
        if signals is None and self._excerpt.columns is None:
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

    # ---- what other rooms ask by `ability`

    pinned: ClassVar[OldName] = OldName("where")
    access: ClassVar[OldName] = OldName("Excerpt.access", lambda selection: Excerpt.of(selection).access)
    check: ClassVar[OldName] = OldName(
        "ability(selection, Checked).check", lambda selection: Excerpt.of(selection).check
    )
    find_ids: ClassVar[OldName] = OldName(
        "ability(selection, HasIds).find_ids", lambda selection: Excerpt.of(selection).find_ids
    )
    index_of: ClassVar[OldName] = OldName("Excerpt.index_of", lambda selection: Excerpt.of(selection).index_of)
    with_id: ClassVar[OldName] = OldName(
        "ability(selection, Pinnable).with_id", lambda selection: Excerpt.of(selection).with_id
    )
