"""Spark: a data source of batches, `spark.read.format("seqlake")`, and datasets written by one commit.

Spark makes its reader and its writer in processes of their own, so nothing is shared but what pickles: the options,
parts of shards, a sink. The classes that Spark asks for are made in `register`, since they need its package.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.conversion.planning import PartTask, parts
from seqlake.conversion.targets import TableTarget
from seqlake.dataset.dataset import Dataset
from seqlake.dataset.opening import open as open_dataset
from seqlake.dataset.opening import scan
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import conformed, one_shard
from seqlake.dataset.writing import conforming
from seqlake.dataset.writing.staging import ShardShape
from seqlake.errors import (
    CommitConflictError,
    CommitUnknownError,
    DatasetNotFoundError,
    InvalidMetadataError,
    SchemaMismatchError,
    SeqlakeError,
    ValidationError,
)
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import absolute, is_local, local_path
from seqlake.plugins import require
from seqlake.shards.cells import cast
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Schema, is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from seqlake.dataset.selection import Selection
    from seqlake.dataset.writing.sink import TableSink

LEAST_PER_PARTITION = 4 << 20
"""Stored bytes that are worth a task of their own: what Spark takes opening a file to cost."""

_log = logging.getLogger(__name__)
_READING = frozenset({"path", "columns", "where", "version", "bytes_per_partition"})
_WRITING = frozenset({"path", "column_types", "root"})
_STORAGE = "storage."
_RENEW_SECONDS = 600.0
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
}


def register(session: Any, /) -> None:
    """Make the format `seqlake` known to a session of Spark, once for each.

    Reading takes the options `columns` (names with commas, or a JSON list), `where` (a condition in SQL, which leaves
    out shards by their bounds), `version` and `bytes_per_partition`; writing in mode `append` takes `column_types`
    (JSON, of a new dataset) and `root` (what relative file references resolve against; the files are copied in).
    Options of the object store are `storage.NAME`. Filters of Spark's own hold, too, but every row is read for them.

    Args:
        session: A `pyspark.sql.SparkSession`. seqlake must be installed where its executors run.

    Raises:
        MissingDependencyError: pyspark 4 is not installed.

    Example:
        ```python
        sl.spark.register(spark)
        rows = spark.read.format("seqlake").option("where", "reward > 3").load("data/arm")
        rows.write.format("seqlake").mode("append").option("root", "data/arm").save("data/good")
        ```
    """
    source = _source()
    session.dataSource.register(source)


# ---- reading


@dataclass(frozen=True, slots=True)
class _Query:
    """What one `load` asks for; options as Spark gives them, whose keys it keeps in small letters."""

    options: Mapping[str, str]

    def opened(self, version: int | str | None, /) -> Selection:
        """The columns; of this version, if none was asked for. A dataset at a version, another format as it is."""
        options = self.options
        _check(options, _READING, "read")
        place, storage, version = options["path"], _storage(options), _version(options) or version
        try:
            chosen: Selection = open_dataset(place, version=version, storage=storage)
        except DatasetNotFoundError:
            if version is not None:
                raise
            chosen = scan(place, storage=storage)
        return chosen

    def columns(self, chosen: Selection, /) -> Selection:
        """Those that were asked for."""
        return chosen.select(*_names(self.options["columns"])) if "columns" in self.options else chosen

    def parts(self, names: Sequence[str], version: int | str | None, /) -> list[PartTask]:
        """One for each task."""
        chosen = self.opened(version)
        for name in names:
            chosen.schema[name]
        excerpt = Excerpt.of(chosen.where(self.options["where"]) if "where" in self.options else chosen)
        most = self.options.get("bytes_per_partition")
        if most is not None and not most.isdecimal():
            raise ValueError(f"bytes_per_partition is a whole number, found {most!r}.")
        limit = None if most is None else int(most)
        return parts(excerpt.shards(), excerpt.root, bytes_per_part=limit, least=LEAST_PER_PARTITION)


def _check(options: Mapping[str, str], known: frozenset[str], verb: str) -> None:
    unknown = sorted(name for name in options if name not in known and not name.startswith(_STORAGE))
    if unknown:
        raise TypeError(
            f"The format 'seqlake' takes no option {unknown[0]!r} to {verb}; it takes "
            f"{', '.join(sorted(known))} and {_STORAGE}NAME."
        )
    if "path" not in options:
        raise TypeError(f"The format 'seqlake' {verb}s one place: give its path or URI to load() or save().")


def _storage(options: Mapping[str, str]) -> dict[str, str] | None:
    given = {name.removeprefix(_STORAGE): value for name, value in options.items() if name.startswith(_STORAGE)}
    return given or None


def _version(options: Mapping[str, str]) -> int | str | None:
    text = options.get("version")
    return int(text) if text is not None and text.isdecimal() else text


def _names(text: str) -> list[str]:
    """Names of columns: a JSON list, or with commas."""
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",")]
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"columns are names with commas, or a JSON list of them; found {text!r:.80}.")
    return names


def _read(task: PartTask | None, types: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one task in the types that Spark expects; None: there are no rows at all."""
    for piece in () if task is None else task.pieces:
        whole = piece.stop - piece.start == piece.shard.rows
        rows = None if whole else np.arange(piece.start, piece.stop, dtype=np.int64)
        for batch in one_shard(piece.shard, types.names, rows=rows):
            yield from conformed(batch, types)


def _spark_type(kind: pa.DataType, column: str) -> pa.DataType:
    """A type that Spark has and that holds every value.

    Raises:
        SchemaMismatchError: It has none.
    """
    is_ = pa.types
    if is_list(kind):
        return pa.list_(_spark_type(kind.value_type, column))
    if is_.is_struct(kind):
        return pa.struct([inner.with_type(_spark_type(inner.type, column)).remove_metadata() for inner in kind])
    if is_.is_map(kind):
        return pa.map_(_spark_type(kind.key_type, column), _spark_type(kind.item_type, column))
    if is_.is_dictionary(kind):
        return _spark_type(kind.value_type, column)
    if is_.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if is_.is_duration(kind):
        return pa.duration("us")
    held = _plain(kind)
    narrow = is_.is_decimal(held) and held.precision <= 38
    simple = is_.is_primitive(held) or is_.is_string(held) or is_.is_binary(held) or is_.is_null(held)
    if narrow or (simple and not is_.is_decimal(held)):
        return pa.decimal128(held.precision, held.scale) if narrow else held
    raise SchemaMismatchError(
        f"Column {column!r}: Spark has no type that holds every {kind}.",
        hint="Leave it out: option('columns', ...) names the columns that are read.",
    )


def _plain(kind: pa.DataType) -> pa.DataType:
    is_ = pa.types
    if is_.is_large_string(kind) or is_.is_string_view(kind):
        return pa.string()
    if is_.is_large_binary(kind) or is_.is_binary_view(kind) or is_.is_fixed_size_binary(kind):
        return pa.binary()
    return _WIDER.get(kind, kind)


# ---- writing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """One write, from Spark's driver to its executors and back; picklable."""

    target: TableTarget
    sink: TableSink = field(repr=False)
    state: Mapping[str, Any] = field(repr=False)
    root: str
    begun: float

    @staticmethod
    def begin(options: Mapping[str, str], arrow: pa.Schema) -> _Writing:
        """A transaction of the dataset, which is made where none is.

        Raises:
            SchemaMismatchError: The rows do not fit its columns; nothing is made then.
        """
        _check(options, _WRITING, "write")
        place, storage = absolute(options["path"]), _storage(options)
        schema = _schema(options, place, storage, arrow)
        conforming.compare(_own_types(arrow, schema), arrow.names, schema)
        root = absolute(options["root"]) if "root" in options else os.getcwd()  # noqa: PTH109 - a text
        target = TableTarget(
            location=place,
            schema=schema,
            storage=storage,
            source_storage=storage,
            shape=ShardShape(),
            files="copy",
        )
        sink: Any
        sink, state = target.begin(None)
        # Spark aborts while other tasks are at work, and runs slow ones twice.
        guarded: TableSink = replace(sink, guarded=True)
        return _Writing(target=target, sink=guarded, state=state, root=root, begun=time.time())

    def write(self, part: int, batches: Iterable[pa.RecordBatch]) -> object:
        """Stage the rows of one task; the sink's receipt."""
        try:
            return self.sink.write(part, self._rows(batches), root=self.root)
        except (CommitConflictError, OSError):
            place = self.target.location
            if self.state["made"] and is_local(place) and self.target.is_gone():
                remove_empty_folders(local_path(place))  # which a task has made again after its dataset was undone
            raise

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last = self.begun
        for batch in batches:
            if time.time() - last > _RENEW_SECONDS:  # what nobody renews may be cleared away
                self.sink.renew()
                last = time.time()
            types = _own_types(batch.schema, self.target.schema)
            arrays = [cast(batch.column(one.name), one.type, column=one.name) for one in types]
            yield from conforming.batches(pa.RecordBatch.from_arrays(arrays, schema=types), self.target.schema)

    def commit(self, receipts: Sequence[Any]) -> None:
        """Show every part; a commit that is refused leaves nothing."""
        ordered = sorted(receipts, key=lambda receipt: int(receipt["part"]))
        numbered = [{**receipt, "part": number} for number, receipt in enumerate(ordered)]
        try:
            self.sink.commit(numbered)
        except CommitUnknownError:
            raise  # it may have been made
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Remove what was staged and made."""
        try:
            self.sink.discard()
            self.target.undo(self.state)
        except (OSError, SeqlakeError) as error:
            _log.warning("Some of what was written could not be removed: %s", error)


def _own_types(arrow: pa.Schema, schema: Schema) -> pa.Schema:
    """The types of rows with those of the dataset wherever Spark has only a wider one for them."""

    def narrowed(one: pa.Field) -> pa.Field:
        if one.name not in schema or conforming.fits_column(one.type, schema[one.name]):
            return one
        try:
            wider = _spark_type(schema[one.name].logical, one.name)
        except SchemaMismatchError:
            return one
        return one.with_type(schema[one.name].logical) if wider == one.type else one

    return pa.schema([narrowed(one) for one in arrow])


def _schema(options: Mapping[str, str], place: str, storage: Mapping[str, str] | None, arrow: pa.Schema) -> Schema:
    """The columns of the dataset that is appended to; of a new one those of the rows, with `column_types`."""
    try:
        known = open_dataset(place, storage=storage).schema
    except DatasetNotFoundError:
        known = None
    text = options.get("column_types")
    if known is not None:
        if text is not None:
            raise SchemaMismatchError(f"The dataset at {place} has its column types already: leave column_types out.")
        return known
    fields = [one.with_nullable(one.nullable and one.name != ID).remove_metadata() for one in arrow]
    given = Schema.from_arrow(pa.schema(fields), metadata=_metadata(text))
    if unknown := [name for name in given.metadata.column_types if name not in given]:
        raise SchemaMismatchError(f"column_types name {unknown[0]!r}; the rows have {', '.join(given.names)}.")
    return given


def _metadata(text: str | None) -> Metadata:
    try:
        return Metadata.parse(json.dumps({"mixtrain": "1.0", "column_types": json.loads(text or "{}")}))
    except (ValueError, InvalidMetadataError) as error:
        raise ValidationError(
            f"column_types cannot be used: {error}",
            hint='Give JSON as in mixtrain.json: {"action": {"type": "trajectory", "dim": 7}}.',
        ) from None


# ---- what Spark asks for


def _source() -> Any:
    """The class to register."""
    base = require("pyspark.sql.datasource", extra="spark")
    types = require("pyspark.sql.pandas.types", extra="spark")
    reader, writer = _reader(base), _writer(base)

    class Sequences(base.DataSource):  # type: ignore[misc, name-defined]
        """Rows of a dataset; one for each `load`, and one for each `save`."""

        def __init__(self, options: Mapping[str, str]) -> None:
            self.query = _Query(dict(options))
            self.version: int | str | None = None  # that of the columns is that of the rows

        @classmethod
        def name(cls) -> str:
            return "seqlake"

        def schema(self) -> Any:
            opened = self.query.opened(None)
            self.version = opened.version.id if isinstance(opened, Dataset) else None
            arrow = self.query.columns(opened).schema.arrow
            fields = [pa.field(one.name, _spark_type(one.type, one.name), one.nullable) for one in arrow]
            return types.from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)  # before 4.2 not the default

        def reader(self, schema: Any) -> Any:
            return reader(self.query, self.version, _arrow_schema(types, schema))

        def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: FBT001 - as Spark calls it
            if overwrite:
                raise TypeError(
                    "A dataset is not overwritten: mode('append') adds rows to it, ds.delete() removes rows, and "
                    "both can be taken back."
                )
            return writer(_Writing.begin(self.query.options, _arrow_schema(types, schema)))

    return Sequences


def _arrow_schema(types: Any, schema: Any) -> pa.Schema:
    """Spark's own mapping, with times in UTC: what 4.2 is to be asked for, and what those before it give by default."""
    asked = {"timezone": "UTC"} if "timezone" in signature(types.to_arrow_schema).parameters else {}
    result: pa.Schema = types.to_arrow_schema(schema, **asked)
    return result


def _reader(base: Any) -> Any:
    class Reader(base.DataSourceReader):  # type: ignore[misc]
        """Rows of parts. No `pushFilters`: Spark 4 leaves out what they did for other queries of the frame, too."""

        def __init__(self, query: _Query, version: int | str | None, types: pa.Schema) -> None:
            self.query, self.version, self.types = query, version, types

        def partitions(self) -> list[Any]:
            return [base.InputPartition(task) for task in self.query.parts(self.types.names, self.version)]

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            return iter(()) if partition is None else _read(partition.value, self.types)  # Spark 4.0: of no parts

    return Reader


def _writer(base: Any) -> Any:
    class Receipt(base.WriterCommitMessage):  # type: ignore[misc]
        """What a task staged."""

        def __init__(self, receipt: object) -> None:
            self.receipt = receipt

    class Writer(base.DataSourceArrowWriter):  # type: ignore[misc]
        """One commit of what the tasks staged."""

        def __init__(self, writing: _Writing) -> None:
            self.writing = writing

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            context = require("pyspark", extra="spark").TaskContext.get()
            return Receipt(self.writing.write(context.partitionId(), iterator))

        def commit(self, messages: Sequence[Any]) -> None:
            self.writing.commit([message.receipt for message in messages])

        def abort(self, messages: Sequence[Any]) -> None:
            if not messages or any(message is None for message in messages):
                self.writing.undo()
            # Else the commit was tried, and has cleared away what can be told to be of no use.

    return Writer
