"""Sequences of a dataset as samples of another format: each row a sample, in parts that processes write side by side.

A part is a folder of shards, `part-00000/`; one index above them, written last, makes the dataset. Beside the shards
the index keeps, under a key of ours that other readers pass over, what the columns were: so `scan` shows them again as
they had been.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from seqlake.errors import SeqlakeError, ValidationError
from seqlake.files.appearing import sweep
from seqlake.files.local import remove_empty_folders
from seqlake.files.locations import absolute, is_local, join, local_path
from seqlake.files.references import open_reference
from seqlake.files.stores import exists, list_without_links, open_store
from seqlake.formats._streaming import index as indexes
from seqlake.formats._streaming.cells import CellError
from seqlake.formats._streaming.merging import in_folder
from seqlake.formats._streaming.restoring import described
from seqlake.formats._streaming.writing import begin
from seqlake.spec.rules.references import names_its_file
from seqlake.spec.schema import is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.formats._streaming.index import IndexedShard
    from seqlake.formats._streaming.packing import Packer
    from seqlake.spec.schema import Schema

    Plan: TypeAlias = Callable[[Schema, Mapping[str, str], Mapping[str, Any]], dict[str, "Exported"]]

_OURS = re.compile(r"part-\d{5}/(shard\.\d{5,}\.[a-z.0-9]+|_writing/[\w.]+\.tmp)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """How a column is written.

    Attributes:
        encoding: Its name.
        values: A column of a batch -> its values, as the encoding takes them.
        holds_files: Whether of cells `{bytes, path}` the bytes are written.
    """

    encoding: str
    values: Callable[[pa.Array], list[Any]]
    holds_files: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSink:
    """See `seqlake.protocols.Sink`; picklable.

    Attributes:
        location: The folder, absolute.
        schema: What is written.
        packer: Encodings by column -> the format's packer; a function of a module.
        plan: The schema, `columns` and `settings` -> how each column is written; a function of a module.
        columns: Encodings that the user chose.
        fill: Values in place of nulls, by column.
        settings: Of the shards.
        storage: Options of the store.
    """

    location: str
    schema: Schema
    packer: Callable[[Mapping[str, str], Mapping[str, Any]], Packer]
    plan: Plan
    columns: Mapping[str, str] = field(default_factory=dict)
    fill: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    storage: Mapping[str, str] | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse settings and columns that cannot be written.

        Raises:
            ValueError: A setting that makes no sense.
            SchemaMismatchError: `columns` or `fill` name a column that is not there.
        """
        for name in (*self.columns, *self.fill):
            self.schema[name]
        self._packer()

    def _packer(self) -> Packer:
        plan = self.plan(self.schema, self.columns, self.settings)
        return self.packer({name: exported.encoding for name, exported in plan.items()}, self.settings)

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> object:
        """Write one part; again, it replaces itself."""
        folder = f"part-{part:05d}"
        store: Any = open_store(self.location, storage=self.storage)
        store.delete([path for path, _ in list_without_links(store, folder) if _OURS.fullmatch(path)])
        writer = begin(join(self.location, f"./{folder}"), self._packer(), storage=self.storage, claim=False)
        plan = self.plan(self.schema, self.columns, self.settings)
        with writer:
            for batch in rows:
                self._write(writer.write, batch, plan, root)
        entries = [entry.to_json() for entry in writer.entries]
        return {"part": part, "shards": entries}

    def _write(self, write: Callable[[Any], None], batch: pa.RecordBatch, plan: dict[str, Exported], root: str) -> None:
        cells = {name: self._values(name, batch.column(name), exported, root) for name, exported in plan.items()}
        key = self.schema.id
        ids = batch.column(key).to_pylist() if key is not None else None
        for row in range(batch.num_rows):
            try:
                write({name: values[row] for name, values in cells.items()})
            except (ValidationError, CellError) as error:
                place = f"sequence {ids[row]!r}" if ids is not None else f"row {row} of its batch"
                raise ValidationError(f"{place}: {error}") from error

    def _values(self, name: str, array: pa.Array, exported: Exported, root: str) -> list[Any]:
        if array.null_count and name not in self.fill:
            row = array.is_null().to_pylist().index(True)
            raise ValidationError(
                f"Column {name!r} is null in row {row} of its batch, and these formats hold no nulls.",
                hint=f"Say what stands for it: fill={{{name!r}: ...}}.",
            )
        column = self.schema[name]
        texts = column.category == "frames" and is_text(column.arrow.value_type)
        if exported.holds_files:
            array = pa.array([_held(cell, root, name) for cell in array.to_pylist()], array.type)
        elif column.category == "file" or texts or (column.inline and pa.types.is_struct(column.arrow)):
            # A relative reference means nothing elsewhere.
            array = pa.array([_moved(cell, root) for cell in array.to_pylist()], array.type)
        values: list[Any] = exported.values(array)
        if array.null_count:
            values = [self.fill[name] if value is None else value for value in values]
        return values

    def commit(self, receipts: Sequence[object], /) -> None:
        """Write the index: only then is the dataset there."""
        entries = [entry for receipt in receipts for entry in _placed(receipt)]
        store: Any = open_store(self.location, storage=self.storage)
        sweep(store, self.location)
        store.sync("")
        store.put(indexes.NAME, indexes.dump(entries, extension=described(self.schema)))
        store.sync("")

    def discard(self) -> None:
        """Remove the parts that were written; once an index names them, they stay."""
        store: Any = open_store(self.location, storage=self.storage)
        if exists(store, indexes.NAME):
            return
        store.delete([path for path, _ in list_without_links(store) if _OURS.fullmatch(path)])
        if is_local(self.location):
            remove_empty_folders(local_path(self.location))


def _moved(cell: Any, root: str) -> Any:
    """A cell whose references are absolute: a text, a list of texts or a struct with a `url`."""
    if isinstance(cell, str):
        return join(root, cell) if cell else cell
    if isinstance(cell, list):
        return [_moved(one, root) for one in cell]
    if isinstance(cell, dict) and "url" in cell:
        return {**cell, "url": _moved(cell["url"], root)}
    if names_its_file(cell):
        return {**cell, "path": _moved(cell["path"], root)}
    return cell


def _held(cell: Any, root: str, name: str) -> Any:
    """A cell `{bytes, path}` with the bytes of the file that it names, where it holds none."""
    if not names_its_file(cell):
        return cell
    try:
        blob = open_reference(root, cell["path"])
        return {**cell, "bytes": bytes(blob.ranges(np.array([0]), np.array([blob.size]))[0])}
    except (SeqlakeError, OSError) as error:
        raise ValidationError(
            f"Column {name!r} names the file {cell['path']!r}, whose bytes cannot be read: {error}",
            hint="Put the file below the dataset's root, or its bytes into the row.",
        ) from error


def _placed(receipt: Any) -> list[IndexedShard]:
    """The entries of a part, with its folder in their names."""
    data = json.dumps({"version": indexes.VERSION, "shards": receipt["shards"]}).encode()
    return [in_folder(entry, f"part-{receipt['part']:05d}") for entry in indexes.parse(data).entries]


def exporter(
    packer: Callable[[Mapping[str, str], Mapping[str, Any]], Packer], plan: Plan, /, **defaults: Any
) -> Callable[..., SampleSink]:
    """The `create` of a format.

    Args:
        packer: Encodings by column -> its packer.
        plan: How each column is written.
        **defaults: Settings that count where the user gives no others.
    """

    def create(
        location: str,
        schema: Schema,
        /,
        *,
        columns: Mapping[str, str] | None = None,
        fill: Mapping[str, Any] | None = None,
        storage: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> SampleSink:
        """Where `convert(..., to=...)` writes: a sample for every sequence.

        Args:
            location: The folder.
            schema: The columns.
            columns: Encodings that you choose, by column.
            fill: What stands for nulls, by column; these formats hold none.
            storage: Options of the object store.
            **settings: As for `writer`.

        Raises:
            SchemaMismatchError: `columns` or `fill` name a column that is not there.
            ValueError: A setting that makes no sense.
        """
        sink = SampleSink(
            location=absolute(location),
            schema=schema,
            packer=packer,
            plan=plan,
            columns=columns or {},
            fill=fill or {},
            settings={**defaults, **settings},
            storage=storage,
        )
        sink.check()
        return sink

    return create
