"""The episodes of a LeRobot folder, one row each: `meta/episodes/*.parquet` of v3.0, `meta/episodes.jsonl` of v2.x."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError, ReadOnlyError, SeqlakeError
from seqlake.files.locations import join
from seqlake.files.stores import exists, read_all
from seqlake.formats.lerobot.layout import EPISODES, EPISODES_JSONL, EPISODES_PATH, SUBTASKS, fill
from seqlake.shards import parquet
from seqlake.spec.schema import is_list, is_number, is_text, without_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.formats.lerobot.metadata import Info
    from seqlake.protocols import Ints, Store

INDEX, LENGTH, TASKS = "episode_index", "length", "tasks"
_LONGEST = 1 << 40  # steps of an episode, and numbers of files: beyond is damage
_PREFIXES = ("stats/", "meta/", "data/", "videos/")
_OWN = frozenset({INDEX, LENGTH, TASKS, "dataset_from_index", "dataset_to_index", "task_index"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """All episodes, in the order of their numbers.

    Attributes:
        table: One row each: the columns of the files but for statistics.
        index: [episodes] their numbers, ascending.
        length: [episodes] their steps.
        place: Where they are listed, for messages.
    """

    table: pa.Table
    index: Ints
    length: Ints
    place: str

    def __len__(self) -> int:
        return len(self.index)

    def tasks(self) -> pa.Array:
        """[episodes] list of texts: what was to be done."""
        return _tasks(self.table, len(self))

    def whole(self, name: str, /) -> Ints:
        """[episodes] a column of whole numbers; -1 where one is missing.

        Raises:
            InvalidMetadataError: No such column, or no whole numbers of 0 and more.
        """
        values = self.real(name)
        known = np.where(np.isnan(values), -1.0, values)
        if len(known) and (known.min() < -1 or known.max() > _LONGEST or (known != np.floor(known)).any()):
            raise InvalidMetadataError(f"{self.place}: {name!r} holds what is no number from 0 on.", path=self.place)
        return known.astype(np.int64)

    def real(self, name: str, /) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[episodes] a column of numbers; NaN where one is missing.

        Raises:
            InvalidMetadataError: No such column, or no numbers.
        """
        if name not in self.table.column_names:
            raise InvalidMetadataError(f"{self.place}: expected a column {name!r}; there is none.", path=self.place)
        try:
            column = self.table[name].cast(pa.float64())
        except pa.ArrowInvalid as error:
            raise InvalidMetadataError(f"{self.place}: {name!r} holds no numbers: {error}.", path=self.place) from None
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)

    def more(self) -> dict[str, pa.Array]:
        """Columns that somebody added: texts, numbers, flags, and lists of texts or numbers."""
        added = {}
        for name in self.table.column_names:
            if name in _OWN or name.startswith(_PREFIXES):
                continue
            column = self.table[name].combine_chunks()
            kind = without_views(column.type)
            listed = is_list(kind) and (is_text(kind.value_type) or is_number(kind.value_type))
            simple = is_text(kind) or pa.types.is_primitive(kind) or listed
            if simple and not pa.types.is_null(kind) and column.null_count < len(column):
                added[name] = column.cast(kind)
        return added


def _tasks(table: pa.Table, count: int) -> pa.Array:
    if TASKS not in table.column_names:
        return pa.nulls(count, pa.list_(pa.string()))
    column = table[TASKS].combine_chunks()
    if is_text(column.type):  # one task, written as it is
        column = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32)), column)
    try:
        return column.cast(pa.list_(pa.string()))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(count, pa.list_(pa.string()))


def read(store: Store, info: Info, /) -> Episodes:
    """All episodes.

    Raises:
        DatasetNotFoundError: Nothing lists them, as after a recording that was not finished.
        InvalidMetadataError: What lists them cannot be used: no number or length, or two episodes of one number.
        CorruptFileError: A file of them is damaged.
    """
    table, place = _shared(store, info) if info.shared else _lines(store)
    for name in (INDEX, LENGTH):
        if name not in table.column_names:
            raise InvalidMetadataError(f"{place}: expected a column {name!r}; there is none.", path=place)
    listed = Episodes(table=table, index=np.empty(0, np.int64), length=np.empty(0, np.int64), place=place)
    index, length = listed.whole(INDEX), listed.whole(LENGTH)
    if len(index) and (index.min() < 0 or length.min() < 0):
        row = int(np.flatnonzero((index < 0) | (length < 0))[0])
        raise InvalidMetadataError(
            f"{place}: row {row} has no {INDEX if index[row] < 0 else LENGTH}.",
            path=place,
            hint="A recording was not finished, or a tool wrote NaN there: mend that row.",
        )
    order = np.argsort(index, kind="stable")
    index, length = index[order], length[order]
    twice = np.flatnonzero(np.diff(index) == 0)
    if len(twice):
        raise InvalidMetadataError(
            f"{place}: {len(twice)} episodes are listed more than once, the first is {index[twice[0]]}.",
            path=place,
            hint="A recording that was resumed or a merge may have written them twice: remove one of them.",
        )
    return Episodes(table=table.take(pa.array(order)), index=index, length=length, place=place)


def _shared(store: Store, info: Info) -> tuple[pa.Table, str]:
    place = join(store.root, EPISODES)
    parts = [_projected(store, path) for path in _files(store)]
    if not parts:
        total = info.total("episodes")
        raise DatasetNotFoundError(
            f"{place} holds no Parquet file with the episodes" + (f"; info.json counts {total}." if total else "."),
            path=place,
            hint="The recording was ended without finalize(), or the folder was copied in part.",
        )
    try:
        return pa.concat_tables(parts, promote_options="permissive"), place
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidMetadataError(f"{place}: its files do not fit each other: {error}.", path=place) from None


def _files(store: Store) -> Iterator[str]:
    """Files of episodes: listed, or on the web counted up."""
    try:
        yield from sorted(path for path, _ in store.list(EPISODES) if path.endswith(".parquet"))
    except ReadOnlyError:
        chunk = file = 0
        while exists(store, path := _numbered(chunk, file)):
            yield path
            behind = exists(store, _numbered(chunk, file + 1))
            chunk, file = (chunk, file + 1) if behind else (chunk + 1, 0)


def _numbered(chunk: int, file: int) -> str:
    return fill(EPISODES_PATH, {"chunk_index": chunk, "file_index": file}, what=EPISODES)


def _projected(store: Store, path: str) -> pa.Table:
    """One file without the statistics, which are most of it."""

    def wanted(there: Sequence[str]) -> list[str]:
        return [name for name in there if not name.startswith(("stats/", "meta/"))]

    return read_parquet(store, path, wanted)


def read_parquet(store: Store, path: str, columns: Any, /) -> pa.Table:
    """Some columns of a small Parquet file.

    Args:
        store: Where it lies.
        path: Its name.
        columns: Gives those wanted of those that are there.

    Raises:
        CorruptFileError: It is damaged.
    """
    blob = store.blob(path)
    with closing(parquet.open(blob)) as reader:
        names = list(dict.fromkeys(columns(reader.schema.names)))
        if len(set(reader.schema.names)) != len(reader.schema.names):
            raise CorruptFileError(f"{blob.location}: two columns have one name.", path=blob.location)
        batches = list(reader.batches(names))
        schema = pa.schema([reader.schema.field(name) for name in names])
    return (
        pa.Table.from_batches([batch.replace_schema_metadata(None) for batch in batches])
        if batches
        else (schema.remove_metadata().empty_table())
    )


def _lines(store: Store) -> tuple[pa.Table, str]:
    place = join(store.root, EPISODES_JSONL)
    rows = read_lines(store, EPISODES_JSONL)
    kept: dict[str, list[Any]] = {name: [] for row in rows for name in row}
    for row in rows:
        for name, cells in kept.items():
            cells.append(row.get(name))
    columns = {}
    for name, cells in kept.items():
        try:
            columns[name] = pa.array(cells)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            if name in _OWN:
                raise InvalidMetadataError(f"{place}: {name!r} is of several kinds: {error}.", path=place) from None
    return pa.table(columns), place


def read_lines(store: Store, path: str, /) -> list[Mapping[str, Any]]:
    """The objects of a file of JSON lines.

    Raises:
        DatasetNotFoundError: It is not there.
        InvalidMetadataError: A line is no JSON object; the message says which.
    """
    place = join(store.root, path)
    try:
        text = read_all(store.blob(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        if isinstance(error, SeqlakeError):
            raise
        raise DatasetNotFoundError(
            f"{place} is not there.", path=place, hint="The folder was copied in part."
        ) from None
    rows: list[Mapping[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"{place}: line {number} is not JSON: {error}.", path=place) from None
        if not isinstance(row, dict):
            raise InvalidMetadataError(f"{place}: line {number} is no JSON object.", path=place)
        rows.append(row)
    return rows


def task_names(store: Store, info: Info, /) -> dict[int, str]:
    """Task number -> what it says; empty where no file lists them.

    Raises:
        InvalidMetadataError: The file cannot be used.
        CorruptFileError: It is damaged.
    """
    from seqlake.formats.lerobot.layout import TASKS as TASKS_PARQUET
    from seqlake.formats.lerobot.layout import TASKS_JSONL

    if not exists(store, TASKS_PARQUET if info.shared else TASKS_JSONL):
        return {}
    if not info.shared:
        rows = read_lines(store, TASKS_JSONL)
        return {
            row["task_index"]: row["task"]
            for row in rows
            if isinstance(row.get("task_index"), int) and isinstance(row.get("task"), str)
        }
    return _texts_by_number(store, TASKS_PARQUET, "task")


def subtask_names(store: Store, /) -> dict[int, str]:
    """Subtask number -> what it says; empty where no file lists them.

    Raises:
        InvalidMetadataError: The file cannot be used.
        CorruptFileError: It is damaged.
    """
    return _texts_by_number(store, SUBTASKS, "subtask") if exists(store, SUBTASKS) else {}


def _texts_by_number(store: Store, path: str, kind: str) -> dict[int, str]:
    """Number -> text, of a file that says what numbers of steps mean."""
    table, place, number = read_parquet(store, path, list), join(store.root, path), f"{kind}_index"
    # The index of a pandas frame: called by its name, or as pandas calls one that has none.
    texts = [
        name
        for name in (kind, "__index_level_0__", *table.column_names)
        if name in table.column_names and is_text(table.schema.field(name).type)
    ]
    if number not in table.column_names or not texts:
        raise InvalidMetadataError(
            f"{place}: expected columns {number!r} and {kind!r}, found {', '.join(table.column_names) or 'none'}.",
            path=place,
        )
    numbers = pc.cast(table[number], pa.int64(), safe=False).to_pylist()
    return {number: text for number, text in zip(numbers, table[texts[0]].to_pylist(), strict=True) if text is not None}
