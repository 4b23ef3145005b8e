"""What the viewer shows of a whole dataset: its columns, pages of rows, histograms, SQL, versions."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import OfATable, ability
from seqlake.dataset.drawing.clouds import has_points
from seqlake.dataset.opening import open as open_dataset
from seqlake.dataset.reading.cells import python_value
from seqlake.dataset.reading.difference import diff as difference
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.query import quoted
from seqlake.errors import QueryError, SchemaMismatchError, SeqlakeError, SequenceNotFoundError
from seqlake.files.allowed import with_rules
from seqlake.spec.schema import is_text
from seqlake.viewer import apart
from seqlake.viewer.asking import Parameters, plain
from seqlake.windows.frames import is_clouds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.dataset.selection import Selection
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Column

_KEPT = 32  # lists of rows that were asked for
_LONGEST = 10_000  # letters of a text


class Shelf:
    """One dataset, its versions and the lists of rows that were asked for lately.

    Args:
        selection: What is shown.
        where: The condition that the page begins with.
        sequence: The sequence that it begins with.
        folders: Places outside the dataset whose files may be shown.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        where: str | None = None,
        sequence: str | None = None,
        folders: Sequence[str] = (),
    ) -> None:
        self.selection = selection
        self._folders = folders
        self.where = where
        self.sequence = sequence
        self._lists: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._versions: dict[str, Selection] = {}
        self._lock = RLock()

    @property
    def table(self) -> Any:
        """The dataset, where it is one with versions."""
        return ability(self.selection, OfATable)

    def of(self, asked: Parameters, /) -> Selection:
        """The version that a request names."""
        name = asked.text("version")
        table = self.table
        if name is None or (table is not None and name == str(table.version.id)):
            return self.selection
        if table is None:
            raise QueryError("This dataset has no versions.")
        with self._lock:
            if name not in self._versions:
                which = int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else name
                self._versions[name] = open_dataset(table.location, version=which, allow_outside=table.allow_outside)
            return self._versions[name]

    def shows(self, asked: Parameters, /) -> Excerpt:
        """The rows of the version that a request names; their files may lie in the folders that were allowed."""
        shows = Excerpt.of(self.of(asked))
        if not self._folders:
            return shows
        return Excerpt(
            shows.source,
            columns=shows.columns,
            rows=shows.rows,
            storage=with_rules(shows.storage, folders=self._folders),
            allow_outside=shows.allow_outside,
            access=shows.access,
        )

    def pinned(self, asked: Parameters, /) -> tuple[str | None, object]:
        """What tells the version of a request from all others; unlike a fingerprint it costs nothing."""
        table = ability(self.of(asked), OfATable)
        return asked.text("version"), None if table is None else table.version.id

    def kept(self, key: tuple[Any, ...], make: Any, /) -> Any:
        """What was made for a key, or is made now."""
        with self._lock:
            if key in self._lists:
                self._lists.move_to_end(key)
                return self._lists[key]
        value = make()
        with self._lock:
            self._lists[key] = value
            while len(self._lists) > _KEPT:
                self._lists.popitem(last=False)
        return value

    def chosen(self, asked: Parameters, /) -> Excerpt:
        """The rows for which `where` and `q` hold."""
        selection = self.of(asked)
        conditions = [part for part in (asked.text("where"), _holding(selection, asked.text("q"))) if part]
        if not conditions:
            return Excerpt.of(selection)

        def choose() -> Excerpt:
            # Each by itself, so that none closes a bracket of ours.
            rows = apart.asked(apart.kept, " ".join(conditions), selection, conditions)
            return Excerpt.of(selection).cut(rows=rows)

        rows: Excerpt = self.kept(("rows", self.pinned(asked), *conditions), choose)
        return rows

    def ordered(self, asked: Parameters, /) -> Ints:
        """[rows] the source's numbers of the chosen rows in the order that was asked for."""
        chosen, name, down = self.chosen(asked), asked.text("order"), asked.text("desc") == "1"
        rows = np.arange(len(chosen), dtype=np.int64) if chosen.rows is None else chosen.rows
        if name is None:
            return rows[::-1] if down else rows
        column = chosen.schema[name]
        if column.category != "scalar":
            raise QueryError(f"Rows are sorted by a scalar, and {name!r} is none.")

        def sort() -> Ints:
            # As one array: to merge the order of many chunks costs forty times as much.
            cells = _cells(chosen, name).combine_chunks()
            order: Ints = pc.array_sort_indices(cells, order="descending" if down else "ascending").to_numpy()
            return rows[order.astype(np.int64)]

        key = ("order", self.pinned(asked), asked.text("where"), asked.text("q"), name, down)
        ordered: Ints = self.kept(key, sort)
        return ordered

    def row(self, asked: Parameters, /) -> tuple[Excerpt, int]:
        """The version and the row that a request names by `id` or `row`."""
        shows = self.shows(asked)
        name = asked.text("id")
        if name is not None:
            if shows.schema.id is not None:
                return shows, shows.access.row_of(name)
            if not (name.isascii() and name.isdecimal()):
                raise SequenceNotFoundError(f"There is no sequence {name!r:.80}.")
        number = asked.whole("row", int(name[:18]) if name else -1, low=-1, high=1 << 60)
        if not 0 <= number < shows.access.starts[-1]:
            raise SequenceNotFoundError(f"There is no row {number}.")
        return shows, number


def _cells(shows: Excerpt, name: str) -> pa.ChunkedArray:
    """All cells of one column."""
    schema = pa.schema([shows.schema.arrow.field(name)])
    return pa.Table.from_batches(shows.batches([name]), schema=schema).column(0)


def _holding(selection: Selection, text: str | None) -> str | None:
    if not text:
        return None
    names = [name for name, column in selection.schema.items() if is_text(column.arrow) and column.category == "scalar"]
    sought = literal(text.lower())
    return " OR ".join(f"contains(lower({quoted(name)}), {sought})" for name in names) or "FALSE"


def literal(value: Any, /) -> str:
    """A value in SQL."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, (int, float)):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def kind_of(column: Column, /) -> str:
    """What the page draws a column as."""
    if column.type is not None and column.type.is_depth:
        return "depth"
    if is_clouds(column):
        return "clouds"
    if column.category == "frames":
        return "frames"
    if column.medium is not None:
        known = {"video": "video", "image": "image", "audio": "audio", "3d": "points"}
        return known.get(column.medium, "file")
    if column.category == "temporal":
        return "points" if column.timeless else "clouds" if has_points(column) else "signal"
    if column.category == "vector":
        return "embedding"
    if column.category != "scalar":
        return "other"
    for test, kind in ((pa.types.is_boolean, "boolean"), (pa.types.is_temporal, "time"), (is_text, "text")):
        if test(column.arrow):
            return kind
    numeric = pa.types.is_integer(column.arrow) or pa.types.is_floating(column.arrow)
    return "number" if numeric or pa.types.is_decimal(column.arrow) else "other"


def _described(column: Column) -> dict[str, Any]:
    kind, declared = kind_of(column), column.type
    facts: dict[str, Any] = {"name": column.name, "kind": kind, "type": str(column.arrow)}
    facts["sort"] = facts["filter"] = kind in {"text", "number", "boolean", "time"}
    if kind == "number":
        facts["integer"] = pa.types.is_integer(column.arrow)
    if declared is not None:
        facts["column_type"] = plain(declared.to_json())
        for key in ("names", "units", "fps"):
            if declared.get(key) is not None:
                facts[key] = plain(declared.get(key))
    if kind == "signal":
        facts |= {"dims": list(column.shape or ())}
    return facts


def dataset(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """Header cards and columns; no file of a row is opened."""
    selection, table = shelf.of(asked), shelf.table
    schema, whole = selection.schema, ability(selection, OfATable)
    metadata = json.loads(schema.metadata.to_json())
    location = selection.root if table is None else table.location
    above, last = ["", *str(location).rstrip("/").split("/")][-2:]
    # Folders of tfds are called after a version: the dataset's name stands above.
    name = str(metadata.get("name") or (f"{above} {last}" if last.replace(".", "").isdecimal() and above else last))
    shards = selection.shards()
    why = None if table is not None and table.version.id != -1 else "This source is only read; labels become a command."
    facts = {
        "name": name,
        "title": metadata.get("title") or name,
        "description": metadata.get("description"),
        "root": location,
        "version": None if whole is None else whole.version.id,
        "newest": None if table is None else table.version.id,
        "format": "mixtrain" if table is not None else "foreign",
        "rows": len(selection),
        "shards": len(shards),
        "bytes": sum(shard.nbytes for shard in shards),
        "hours": None,
        "where": shelf.where,
        "sequence": shelf.sequence,
        "id_column": schema.id,
        "columns": [_described(column) for column in schema.values()],
        "writable": why is None,
        "read_only_why": why,
        "commands": {"open": f"sl.{'open' if table is not None else 'scan'}({location!r})"},
        "metadata": metadata,
    }
    if "duration_seconds" in schema and kind_of(schema["duration_seconds"]) == "number":
        answer = selection.sql("SELECT sum(duration_seconds) AS total FROM dataset").to_arrow_table()
        total = answer.column(0)[0].as_py()
        facts |= {"hours": None if total is None else float(total) / 3600, "hours_of": "duration_seconds"}
    return facts


def rows(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """One page of rows: scalars and lengths, never signals."""
    begin = time.monotonic()
    offset, limit = asked.whole("offset", 0, low=0, high=1 << 60), asked.whole("limit", 100, low=1, high=500)
    everything, ordered = Excerpt.of(shelf.of(asked)), shelf.ordered(asked)
    schema, page = everything.schema, ordered[offset : offset + limit]
    wanted = asked.text("columns")
    for name in wanted.split(",") if wanted else ():
        schema[name]
    scalars = [
        name
        for name, column in schema.items()
        if kind_of(column) in {"text", "number", "boolean", "time"} and (not wanted or name in wanted.split(","))
    ]
    visible = everything.cut(rows=page)
    names = list(dict.fromkeys([*([schema.id] if schema.id else []), *scalars]))
    cells: list[dict[str, Any]] = []
    for batch in visible.batches(names) if names else ():
        columns = [_values(batch.column(name)) for name in names]
        cells += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    cells = cells if names else [{} for _ in page]
    lengths: dict[str, list[int]] = {}
    for name, column in schema.items():
        if kind_of(column) == "signal" and len(page):
            try:
                lengths[name] = visible.lengths(name).tolist()
            except (SeqlakeError, OSError):
                continue
    return {
        "total": len(everything),
        "matched": len(ordered),
        "offset": offset,
        "limit": limit,
        "rows": [
            {
                "row": int(number),
                "id": str(number if schema.id is None else cell[schema.id]),
                "values": {name: plain(cell[name]) for name in scalars},
                "lengths": {name: (None if counts[place] < 0 else counts[place]) for name, counts in lengths.items()},
            }
            for place, (number, cell) in enumerate(zip(page.tolist(), cells, strict=True))
        ],
        "ms": round((time.monotonic() - begin) * 1000, 1),
    }


def place(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """Where a sequence stands in a list, and its neighbours there."""
    shows, row = shelf.row(asked)
    ordered = shelf.ordered(asked)
    places = np.flatnonzero(ordered == row)
    position = int(places[0]) if len(places) else None

    def named(at: int) -> dict[str, Any] | None:
        if not 0 <= at < len(ordered):
            return None
        number = int(ordered[at])
        return {"row": number, "id": shows.cut(rows=np.array([number]))[0].id}

    before, after = (None, named(0)) if position is None else (named(position - 1), named(position + 1))
    return {"position": position, "matched": len(ordered), "previous": before, "next": after}


def histogram(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """How the values of a scalar, or the lengths of a signal, are spread; with the condition for each bar."""
    name, bins, chosen = asked.needed("col"), asked.whole("bins", 24, low=1, high=100), shelf.chosen(asked)
    if name.startswith("length:"):
        lengths = chosen.lengths(name[7:])
        return _numbers(
            lengths[lengths >= 0].astype(np.float64), int((lengths < 0).sum()), f"len({quoted(name[7:])})", bins
        )
    kind = kind_of(chosen.schema[name])
    if kind not in {"number", "text", "boolean", "time"}:
        raise SchemaMismatchError(f"A histogram is of a scalar, and {name!r} is none.")
    cells = _cells(chosen, name)
    if kind == "number":
        values = pc.cast(cells.drop_null(), pa.float64(), safe=False).to_numpy()
        return _numbers(values[np.isfinite(values)], cells.null_count, quoted(name), bins)
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        return _times(cells, quoted(name), bins)
    return _frequent(cells, name, kind, bins)


def _frequent(cells: pa.ChunkedArray, name: str, kind: str, bins: int) -> dict[str, Any]:
    """The values that are there most often."""
    counted = pc.value_counts((cells.cast(pa.string()) if kind != "boolean" else cells).drop_null())
    counts = counted.field(1)
    most = counted.take(
        pc.select_k_unstable(counts, bins, [("", "descending")])
    )  # of a million ids, only a few are named
    top = sorted(
        zip(most.field(1).to_pylist(), most.field(0).to_pylist(), strict=True), key=lambda one: (-one[0], str(one[1]))
    )
    bars = [
        {
            "value": plain(value),
            "count": count,
            "where": f"CAST({quoted(name)} AS VARCHAR) = {literal(str(value).lower() if kind == 'boolean' else value)}",
        }
        for count, value in top
    ]
    count = len(cells) - cells.null_count
    return {
        "kind": "values",
        "bins": bars,
        "count": count,
        "nulls": cells.null_count,
        "distinct": len(counted),
        "other": count - sum(number for number, _ in top),
    }


def _times(cells: pa.ChunkedArray, name: str, bins: int) -> dict[str, Any]:
    """Moments, by even spans of time."""
    unit = "D" if pa.types.is_date(cells.type) else cells.type.unit
    numbers = (cells.cast(pa.date32()) if unit == "D" else cells).drop_null()
    values = pc.cast(numbers.cast(pa.int32() if unit == "D" else pa.int64()), pa.int64()).to_numpy()
    empty: dict[str, Any] = {
        "kind": "number",
        "min": None,
        "max": None,
        "nulls": cells.null_count,
        "count": 0,
        "bins": [],
    }
    if not len(values):
        return empty
    low, high = int(values.min()), int(values.max())
    edges = (
        [low + (high - low + 1) * at // bins for at in range(bins)]
        if high - low >= bins
        else list(range(low, high + 1))
    )
    places = np.searchsorted(np.array(edges, np.int64), values, side="right") - 1
    counts = np.bincount(places, minlength=len(edges)).tolist()
    said = [_moment(edge, unit) for edge in [*edges, high]]
    bars = [
        {
            "low": said[at],
            "high": said[at + 1],
            "count": count,
            "where": f"{name} >= '{said[at]}' AND {name} {'<=' if at == len(counts) - 1 else '<'} '{said[at + 1]}'",
        }
        for at, count in enumerate(counts)
    ]
    return {**empty, "min": said[0], "max": said[-1], "count": len(values), "bins": bars}


def _moment(number: int, unit: str) -> str:
    return str(np.datetime64(number, unit)).replace("T", " ")  # type: ignore[call-overload]  # any unit of Arrow's


def _numbers(values: np.ndarray[Any, Any], nulls: int, name: str, bins: int) -> dict[str, Any]:
    empty: dict[str, Any] = {"kind": "number", "min": None, "max": None, "nulls": nulls, "count": 0, "bins": []}
    if not len(values):
        return empty
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(high - low) or low == high:
        alone = {"low": low, "high": high, "count": len(values), "where": f"{name} >= {low!r} AND {name} <= {high!r}"}
        return {**empty, "min": low, "max": high, "count": len(values), "bins": [alone]}
    counts, edges = np.histogram(values, bins)
    bars = []
    for at, count in enumerate(counts.tolist()):
        start, stop = float(edges[at]), float(edges[at + 1])
        sign = "<=" if at == len(counts) - 1 else "<"
        where = f"{name} >= {start!r} AND {name} {sign} {stop!r}"
        bars.append({"low": start, "high": stop, "count": count, "where": where})
    return {**empty, "min": low, "max": high, "count": len(values), "bins": bars}


def sql(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """What one query answers, up to a number of rows; or what it would read."""
    begin, query, limit = time.monotonic(), asked.needed("q"), asked.whole("limit", 1000, low=1, high=10_000)
    selection = shelf.of(asked)
    if asked.text("explain"):
        return {"plan": str(selection.explain(query))}
    table, columns = apart.asked(apart.table, query, selection, query, _narrowed, limit)
    lists = [list(map(_short, _values(table.column(at).slice(0, limit)))) for at in range(table.num_columns)]
    facts: dict[str, Any] = {
        "columns": [{"name": name, "type": kind} for name, kind in columns],
        "rows": [list(row) for row in zip(*lists, strict=True)],
        "truncated": table.num_rows > limit,
        "ms": round((time.monotonic() - begin) * 1000, 1),
    }
    key, names = selection.schema.id, [name for name, _ in columns]
    if key is not None and key in names and table.num_rows <= 1000:
        ids = list(dict.fromkeys(str(one) for one in lists[names.index(key)] if one is not None))
        facts |= {"ids": ids, "where": f"{quoted(key)} IN ({', '.join(map(literal, ids))})" if ids else "FALSE"}
    return facts


def _narrowed(answer: Any, limit: int) -> Any:
    return _shortened(answer.limit(limit + 1))


def _shortened(answer: Any) -> Any:
    """An answer whose lists are how long they are, since a thousand signals are no table to look at."""
    names, kinds = list(answer.columns), list(map(str, answer.types))
    if len(set(map(str.casefold, names))) < len(names) or not any(kind.endswith("]") for kind in kinds):
        return answer
    return answer.project(
        ", ".join(
            f"'{literal(kind)[1:-1]} of ' || len({quoted(name)}) AS {quoted(name)}"
            if kind.endswith("]")
            else quoted(name)
            for name, kind in zip(names, kinds, strict=True)
        )
    )


def _values(cells: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Cells as Python values; those that Python has none for as NumPy's."""
    try:
        return cells.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    except (OverflowError, ValueError):
        return [python_value(one) for one in cells]


def _short(cell: Any) -> Any:
    """A cell of an answer; of a long text, its beginning."""
    value = plain(cell)
    return f"{value[:_LONGEST]}…" if isinstance(value, str) and len(value) > _LONGEST else value


def versions(shelf: Shelf, _asked: Parameters, /) -> dict[str, Any]:
    """What was committed, newest first."""
    table = shelf.table
    if table is None:
        return {"versions": [], "versioned": False}
    tags = table.tags()
    listed = [
        {
            "version": one.id,
            "time": one.time.isoformat(),
            "message": one.message,
            "rows": one.rows,
            "what": one.operation,
            "tags": [name for name, number in tags.items() if number == one.id],
            "undo": False,
        }
        for one in reversed(list(table.versions()))
    ]
    return {"versions": listed, "versioned": True}


def diff(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """What differs between two versions; at most 200 ids of a kind."""
    before, after = (shelf.of(Parameters({"version": asked.needed(name)})) for name in ("from", "to"))
    facts = difference(before, after)
    changed = [{"id": name, "columns": list(columns)} for name, columns in facts.changed.items()]
    return {
        "rows_added": len(facts.added),
        "rows_removed": len(facts.removed),
        "rows_changed": len(changed),
        "added": list(facts.added)[:200],
        "removed": list(facts.removed)[:200],
        "changed": changed[:200],
        "columns_added": list(facts.columns_added),
        "columns_removed": list(facts.columns_removed),
        "columns_changed": list(facts.types),
        "metadata": ["metadata"] if facts.metadata else [],
        "more": max(len(facts.added), len(facts.removed), len(changed)) > 200,
    }
