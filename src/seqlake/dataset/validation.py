"""Checks a dataset against the format and says everything there is to say, as findings.

What the metadata, the schema and the rows must hold is `seqlake.spec.rules`; what only a table knows it checks
itself. This module reads the rows as they are stored, so that a cell which does not fit is found and not refused.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.dataset import opening, plain, progress
from seqlake.dataset.references import refers
from seqlake.dataset.streaming import one_shard
from seqlake.errors import CorruptFileError, InvalidMetadataError, SchemaMismatchError, SeqlakeError
from seqlake.files.locations import inside, is_local, join, local_path
from seqlake.files.reading import BlobFile
from seqlake.files.stores import exists, open_store, read_all
from seqlake.protocols import Depth
from seqlake.shards.columns import Columns
from seqlake.shards.rows import Rows
from seqlake.spec.findings import Finding, Report
from seqlake.spec.rules import (
    Batch,
    Ids,
    References,
    check_arrow,
    check_metadata,
    check_references,
    check_rows,
    check_schema,
)
from seqlake.spec.rules.references import is_relative, paths_in
from seqlake.spec.schema import Column, Schema
from seqlake.windows.clock import dataset_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.dataset.selection import Selection
    from seqlake.protocols import Readable, Shard, Version
    from seqlake.spec.alignment import Clock

DEPTHS: tuple[Depth, ...] = get_args(Depth)


def validate(
    source: Selection | str | os.PathLike[str],
    /,
    *,
    depth: Depth = "files",
    version: Version | int | str | None = None,
    storage: Mapping[str, str] | None = None,
) -> Report:
    """Check a dataset, or the rows of a selection, against the format.

    Args:
        source: A dataset, a selection, a scanned folder; or a location, whose metadata may be too damaged to open.
        depth: `metadata`: what `mixtrain.json`, the schema and the table's log say. `rows`: also every cell, and the
            checksum of every page. `files`: also whether the local files that rows name are there. `decode`: as
            `files` for now, and the report says so.
        version: Of a location: this version instead of the newest.
        storage: Of a location: options of its store.

    Returns:
        Every finding; nothing is raised for what is wrong with the data.

    Raises:
        ValueError: No such depth.
        DatasetNotFoundError: No Mixtrain dataset is at the location.

    Example:
        ```python
        report = validate("data/pick-n-place", depth="rows")
        report.raise_for_errors()
        ```
    """
    if depth not in DEPTHS:
        raise ValueError(f"A depth is one of {', '.join(DEPTHS)}; found {depth!r}.")
    if not isinstance(source, str | os.PathLike):
        return Report(_findings(source, depth), subject=source.root, depth=depth)
    try:
        return validate(opening.open(source, version=version, storage=storage), depth=depth)
    except (InvalidMetadataError, SchemaMismatchError, CorruptFileError) as error:
        location = opening.place_of(source)
        found = list(_why_not(location, error, storage))
        return Report(found, subject=location, depth=depth)


def _why_not(location: str, error: SeqlakeError, storage: Mapping[str, str] | None) -> Iterator[Finding]:
    """Why a dataset cannot be opened: what its metadata and the columns of each file say, else the error itself."""
    store = open_store(location, storage=storage)
    found = list(check_metadata(read_all(store.blob(opening.METADATA)))) if exists(store, opening.METADATA) else []
    if not isinstance(error, InvalidMetadataError):
        for path in plain.parquet_paths(location, storage=storage)[1]:
            try:
                found += check_arrow(pq.read_schema(BlobFile(store.blob(path))), location=path)
            except (OSError, pa.ArrowException) as broken:
                found.append(_unreadable(broken, path))
    yield from found
    if all(finding.severity != "error" for finding in found):
        yield Finding(code="V701", severity="error", message=str(error), location=location)


def _findings(selection: Selection, depth: Depth) -> Iterator[Finding]:
    schema = selection.schema
    yield from check_metadata(schema.metadata.to_json())
    yield from check_schema(schema)
    told: set[str] = set()
    for finding in selection.check(depth):
        if finding.severity == "error":
            told.add(finding.location)
        yield finding
    if depth == "metadata":
        return
    walk = _Walk(schema=schema, root=selection.root, clock=_clock(selection), told=told, files=depth != "rows")
    for shard in progress.over(selection.shards(), "validate"):
        yield from walk.shard(shard, _place(shard, selection.access.source))
    if depth == "decode":
        yield Finding(
            code="V705",
            severity="note",
            message="files were looked for, not opened: decoding them is not checked in this version",
        )


def _clock(source: Readable) -> Clock:
    try:
        return dataset_clock(source)
    except (SeqlakeError, OSError, ValueError):
        # A shard that cannot be read is a finding of its own.
        from seqlake.spec.alignment import clock_of

        return clock_of(source.schema)


def _place(shard: Shard, source: Readable) -> str:
    """The shard's path where it belongs to a table, else its name."""
    name = shard.key.rpartition("#")[0] or shard.key
    return name if "/" in name or not hasattr(source, "version") else f"data/{name}"


def _unreadable(error: Exception, place: str) -> Finding:
    return Finding(code="V702", severity="error", message=f"cannot be read: {error}", location=place)


@dataclass(kw_only=True)
class _Walk:
    """What is remembered from one shard to the next.

    Attributes:
        schema: Of the rows.
        root: What references resolve against.
        clock: Of the dataset.
        told: Locations that the table has found errors in: what is damaged is not judged again.
        files: Whether files are looked for.
    """

    schema: Schema
    root: str
    clock: Clock
    told: set[str]
    files: bool
    ids: Ids = field(default_factory=Ids)
    references: References = field(default_factory=References)

    def shard(self, shard: Shard, place: str) -> Iterator[Finding]:
        """The findings of one shard's rows."""
        if place in self.told:
            return
        names = list(self.schema.names)
        stored = as_stored(shard, self.schema)
        try:
            misfits = dict(_misfits(stored, names))
            for name, error in misfits.items():
                yield Finding(code="V701", severity="error", message=str(error), location=place, column=name)
            names = [name for name in names if name not in misfits]
            start = 0
            for batch in one_shard(stored, names):
                yield from self._rows(batch, place, start)
                start += batch.num_rows
        except (SeqlakeError, OSError, pa.ArrowException) as error:
            yield _unreadable(error, place)

    def _rows(self, rows: pa.RecordBatch, place: str, start: int) -> Iterator[Finding]:
        batch = Batch(rows=rows, schema=self.schema, location=place, start=start, clock=self.clock)
        yield from check_rows(batch, self.ids)
        yield from check_references(batch, self.references)
        if self.files:
            yield from self._missing(batch)

    def _missing(self, batch: Batch) -> Iterator[Finding]:
        """V703: local files inside the dataset that are not there, V704: that are empty."""
        for name in batch.rows.schema.names:
            if not refers(self.schema, name):
                continue
            for row, cell in enumerate(batch.rows.column(name).to_pylist()):
                for reference in dict.fromkeys(path for path, _ in paths_in(cell)):
                    yield from self._looked_for(reference, batch.place(row, name))

    def _looked_for(self, reference: str, place: dict[str, Any]) -> Iterator[Finding]:
        if not reference.strip() or not is_relative(reference) or reference in self.told:
            return
        location = join(self.root, reference)
        if not is_local(location) or not inside(self.root, location):
            return
        path = local_path(location)
        if not path.is_file():
            yield Finding(code="V703", severity="error", message=f"no file is at {reference!r}", **place)
        elif path.stat().st_size == 0:
            yield Finding(code="V704", severity="error", message=f"the file {reference!r} is empty", **place)


def as_stored(shard: Shard, schema: Schema) -> Shard:
    """A shard that shows cells as they are stored: lists of any length, raw bytes, nulls anywhere."""
    if isinstance(shard, Rows):
        return Rows(as_stored(shard.shard, schema), shard.keep)
    if not isinstance(shard, Columns):
        return shard
    bare = {name: Column(name, schema[name].stored()) for name in schema.names}
    return Columns(shard.shard, Schema(bare, id=schema.id), shard.mapping)


def _misfits(shard: Shard, names: list[str]) -> Iterator[tuple[str, SchemaMismatchError]]:
    """Columns whose stored cells cannot be of the schema's type; asked one by one only where one is."""
    try:
        for _ in one_shard(shard, names):
            break  # types differ in the first batch or in none
    except SchemaMismatchError:
        for name in names:
            try:
                for _ in one_shard(shard, [name]):
                    break
            except SchemaMismatchError as error:
                yield name, error
