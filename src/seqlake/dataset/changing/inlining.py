"""Files that rows name become bytes in these rows, and bytes become files: one commit, whichever way."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from seqlake import media
from seqlake.dataset import progress
from seqlake.dataset.changing.evolving import replayed
from seqlake.dataset.changing.rewriting import shape_of
from seqlake.dataset.reading.streaming import for_writing
from seqlake.dataset.writing.conforming import too_large
from seqlake.dataset.writing.ingest import Encoded
from seqlake.dataset.writing.staging import ShardShape, Staging, open_for_changes
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.stores import read_all
from seqlake.spec.column_types import INLINE_TYPES, ColumnType
from seqlake.spec.rules.signals import LARGEST_CELL
from seqlake.spec.schema import is_binary, is_list, is_text
from seqlake.versions.messages import saying
from seqlake.windows.sources import MediaFiles, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Version
    from seqlake.spec.schema import Column

Where: TypeAlias = Literal["inline", "files"]

_NAMED = 5
_PARALLEL = 12
_PART = 32 << 20  # bytes of new cells that are put together before they are written
_HEAD = 16
_SUFFIXES = {b"\x1aE\xdf\xa3": ".mkv", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3": ".mp3"}
_RIFF = {b"WAVE": ".wav", b"AVI ": ".avi", b"WEBP": ".webp"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inlining:
    """What taking files into the rows, or out of them, changes; nothing has been done yet.

    Attributes:
        column: Whose cells.
        to: `inline`: files become bytes in the rows; `files`: the other way.
        cells: How many files, a cell of images one a step counting each.
        nbytes: Bytes of all of them.
        missing: References to nothing.
        too_large: Files above 1 GiB, which no cell holds.
    """

    column: str
    to: Where
    cells: int
    nbytes: int
    missing: tuple[str, ...] = ()
    too_large: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values."""
        lists = {"missing": list(self.missing), "too_large": list(self.too_large)}
        return {"column": self.column, "to": self.to, "cells": self.cells, "bytes": self.nbytes, **lists}


def plan_inlining(dataset: Dataset, column: str, /, *, to: Where) -> Inlining:
    """What `inline_files` or `extract_files` would do; looks at the size of every file, and changes nothing.

    Args:
        dataset: The dataset.
        column: One of files, of images one a step, or of bytes.
        to: `inline` or `files`.

    Raises:
        SchemaMismatchError: Cells of this column are no files, or no bytes.
        UnsafeReferenceError: A reference leads out of the dataset.
        ValidationError: A row has only some frames of a file.

    Example:
        ```python
        planned = sl.plan_inlining(ds, "cam", to="inline")  # planned.nbytes will lie in the rows
        ```
    """
    known = dataset.schema[column]
    _turned(known, to)
    if to == "files":
        counted, nbytes = _counted(dataset, known)
        return Inlining(column=column, to=to, cells=counted, nbytes=nbytes)
    names = [one for cell in _cells(dataset, column) for one in _references(cell, column) if one is not None]
    files = MediaFiles.of(dataset)

    def size(reference: str) -> tuple[str, int | None]:
        try:
            return reference, files.blob(reference).size
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return reference, None

    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="seqlake-sizes") as pool:
        sizes = dict(pool.map(size, dict.fromkeys(names)))
    return Inlining(
        column=column,
        to=to,
        cells=len(names),
        nbytes=sum(sizes[one] or 0 for one in names),
        missing=tuple(one for one, nbytes in sizes.items() if nbytes is None),
        too_large=tuple(one for one, nbytes in sizes.items() if (nbytes or 0) > LARGEST_CELL),
    )


def inline_files(dataset: Dataset, column: str, /, *, message: str | None = None) -> Version:
    """Make the files that the cells of a column name bytes in the rows, in one commit.

    The column becomes `binary` with `inline: true`; images one a step become `list<binary>`. Files that were copied
    into the dataset stay for the versions that name them, until `vacuum`; others are left where they are. Memory stays
    within a row group and the largest file.

    Args:
        dataset: Changed in its newest version, which it then shows.
        column: A column of `string` or a struct with `url`.
        message: What the commit is for; `versions()` shows it.

    Returns:
        The new version.

    Raises:
        SchemaMismatchError: Cells of this column name no files of media.
        ValidationError: A file is not there or above 1 GiB, or a row has only some frames of a file.
        UnsafeReferenceError: A reference leads out of the dataset.
        CommitConflictError: A rival rewrote one of the shards meanwhile.

    Example:
        ```python
        sl.inline_files(ds, "photo")            # small images travel with their rows
        sl.extract_files(ds, "photo")           # and become files of the dataset again
        ```
    """

    def change() -> Version:
        planned = plan_inlining(dataset, column, to="inline")
        if planned.missing or planned.too_large:
            why = "are not there" if planned.missing else "are above 1 GiB, the most that a cell holds"
            listed = planned.missing or planned.too_large
            raise ValidationError(
                f"{len(listed)} files of {column!r} {why} ({', '.join(map(repr, listed[:_NAMED]))}); nothing changed.",
                hint="`seqlake files` lists references to nothing; long videos stay in files, or are cut by `segment`.",
            )
        files = MediaFiles.of(dataset)

        def bytes_of(reference: str | None, key: str) -> tuple[Any, int]:
            if reference is None:
                return None, 0
            blob = files.blob(reference)
            if blob.size > LARGEST_CELL:
                raise ValidationError(too_large(f"Sequence {key!r}, column {column!r}", blob.size))
            data = read_all(blob)
            return data, len(data)

        def turn(cell: pa.Scalar, key: str) -> tuple[Any, int]:
            turned = [bytes_of(one, key) for one in _references(cell.as_py(), column)]
            nbytes = sum(size for _, size in turned)
            if nbytes > LARGEST_CELL:
                raise ValidationError(too_large(f"Sequence {key!r}, column {column!r}", nbytes))
            if not cell.is_valid:
                return None, 0
            return ([data for data, _ in turned] if is_list(cell.type) else turned[0][0]), nbytes

        return _written(dataset, column, "inline", lambda _: turn)

    with saying(message):
        return replayed(dataset, change)


def extract_files(dataset: Dataset, column: str, /, *, message: str | None = None) -> Version:
    """Make the bytes in the cells of a column files of the dataset that the rows name, in one commit.

    Each becomes a file below `files/`, as `File` cells do, named by its kind; a video is indexed on the way. The column
    becomes `string`; a cell `{bytes, path}` without bytes keeps its path as the reference.

    Args:
        dataset: Changed in its newest version, which it then shows.
        column: A column of bytes: `binary`, `{bytes, path}`, or encoded images one a step.
        message: What the commit is for; `versions()` shows it.

    Returns:
        The new version.

    Raises:
        SchemaMismatchError: Cells of this column hold no bytes of media.
        CommitConflictError: A rival rewrote one of the shards meanwhile.

    Example:
        ```python
        sl.extract_files(ds, "cam", message="videos beside the shards")
        ```
    """

    def change() -> Version:
        known = dataset.schema[column]
        _turned(known, "files")
        kept = known.type.get("format") if known.type is not None else None

        def turns(staging: Staging) -> Callable[[pa.Scalar, str], tuple[Any, int]]:
            def reference(data: pa.Buffer | None, key: str, name: str) -> str | None:
                if data is None:
                    return name or None
                path = staging.scratch()
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.write(data)
                return staging.take_in(column, key, Encoded(path, suffix=_suffix(data, name, kept)))

            def turn(cell: pa.Scalar, key: str) -> tuple[Any, int]:
                if not cell.is_valid:
                    return None, 0
                if is_list(cell.type):
                    return [reference(_buffer(one), key, "") for one in cell.values], 0
                if pa.types.is_struct(cell.type):
                    name = cell["path"].as_py() if cell.type.get_field_index("path") >= 0 else None
                    return reference(_buffer(cell["bytes"]), key, name or ""), 0
                return reference(_buffer(cell), key, ""), 0

            return turn

        return _written(dataset, column, "files", turns)

    with saying(message):
        return replayed(dataset, change)


def _written(
    dataset: Dataset,
    name: str,
    to: Where,
    turns: Callable[[Staging], Callable[[pa.Scalar, str], tuple[Any, int]]],
) -> Version:
    """All rows with other cells in one column, committed; on an error nothing is left behind.

    Args:
        dataset: The dataset.
        name: The column.
        to: What its cells become.
        turns: Gives what turns a cell of a row into its new value, and says how many bytes that has.
    """
    open_for_changes(dataset)
    schema = dataset.schema
    new = schema.with_columns({name: _turned(schema[name], to)})
    staging = Staging(dataset.table, new, shape=ShardShape())
    shards = dataset.source.shards()
    try:
        staging.begin(dataset.version)
        turn = turns(staging)
        for shard in progress.over(shards, to):
            layout = shape_of(shard, schema, schema.names).layout
            if layout != staging.shape.layout:
                staging.close_shard()
            staging.shape = ShardShape(layout=layout)
            for batch in for_writing(shard, schema.names):
                for part in _parts(batch, name, str(schema.id), new.arrow, turn):
                    staging.write(part)
                staging.renew_if_due()
    except BaseException:
        staging.discard()
        raise
    return staging.commit("evolve", remove=[shard.key for shard in shards], schema=new)


def _parts(
    batch: pa.RecordBatch, name: str, key: str, types: pa.Schema, turn: Callable[[pa.Scalar, str], tuple[Any, int]]
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch with new cells in one column, in pieces of some 32 MiB of them."""
    ids, place = batch.column(key).to_pylist(), batch.schema.get_field_index(name)
    values: list[Any] = []
    first = held = 0

    def piece() -> pa.RecordBatch:
        rows = batch.slice(first, len(values))
        new = pa.array(values, types.field(name).type)
        columns = [*rows.columns[:place], new, *rows.columns[place + 1 :]]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    for row, cell in enumerate(batch.column(place)):
        value, nbytes = turn(cell, ids[row])
        if values and held + nbytes > _PART:
            yield piece()
            first, values, held = row, [], 0
        values.append(value)
        held += nbytes
    if values:
        yield piece()


def _turned(column: Column, to: Where) -> Column:
    """The column as it will be.

    Raises:
        SchemaMismatchError: Its cells are nothing that could be turned so.
    """
    kind, arrow = column.type, column.arrow
    steps = column.category == "frames"
    if to not in {"inline", "files"}:
        raise ValueError(f"to is 'inline' or 'files', found {to!r}.")
    named = (column.category == "file" and not column.inline) or (steps and is_text(arrow.value_type))
    held = column.inline or (steps and is_binary(arrow.value_type))
    if kind is None or kind.type not in INLINE_TYPES or not (named if to == "inline" else held):
        wanted = "references to files of media" if to == "inline" else "bytes of media in the rows"
        found_there = "those already" if (held if to == "inline" else named) else str(column)
        raise SchemaMismatchError(
            f"Column {column.name!r}: expected {wanted}, found {found_there}.",
            hint=f"Types whose files may stand in rows: {', '.join(sorted(INLINE_TYPES))}.",
        )
    fields = kind.to_json()
    fields.pop("inline", None)
    if steps:
        changed = {"frames": "bytes" if to == "inline" else "files"} if "frames" in fields else {}
        inner = pa.binary() if to == "inline" else pa.string()
        return replace(column, arrow=pa.list_(inner), type=ColumnType.from_json({**fields, **changed}))
    declared = {"inline": True} if to == "inline" else {}
    single = pa.binary() if to == "inline" else pa.string()
    return replace(column, arrow=single, type=ColumnType.from_json({**fields, **declared}))


def _cells(dataset: Dataset, column: str) -> Iterator[Any]:
    for batch in dataset.batches([column]):
        yield from batch.column(0).to_pylist()


def _references(cell: Any, column: str) -> list[str | None]:
    """The files that a cell names, None for a step without one.

    Raises:
        ValidationError: The row has only some frames of a file.
    """
    if isinstance(cell, list):
        return cell
    place = place_of(cell)
    if place is None:
        return [None]
    if place.first or place.count is not None:
        raise ValidationError(
            f"Column {column!r}: {place.reference!r} is shared by rows that each have some frames of it, so each would "
            "hold all of it.",
            hint="Give each row a video of its own with `seqlake trim` or `segment` first.",
        )
    return [place.reference]


def _counted(dataset: Dataset, column: Column) -> tuple[int, int]:
    """How many files stand in the cells of a column, and their bytes."""
    cells = nbytes = 0
    for batch in dataset.batches([column.name]):
        for cell in batch.column(0):
            for one in cell.values if is_list(cell.type) and cell.is_valid else [cell]:
                data = _buffer(one["bytes"] if pa.types.is_struct(one.type) and one.is_valid else one)
                cells += data is not None
                nbytes += 0 if data is None else data.size
    return cells, nbytes


def _buffer(cell: pa.Scalar) -> pa.Buffer | None:
    return cell.as_buffer() if cell.is_valid and is_binary(cell.type) else None


def _suffix(data: pa.Buffer, name: str, kept: Any) -> str:
    """What the name of a file ends in: as it once did, by its first bytes, or as the column declares."""
    head = bytes(memoryview(data)[:_HEAD])
    once = PurePosixPath(name).suffix
    if re.fullmatch(r"\.[A-Za-z0-9]{1,16}", once):
        return once
    if head[:4] == b"RIFF":
        return _RIFF.get(head[8:12], "")
    known = next((suffix for magic, suffix in _SUFFIXES.items() if head.startswith(magic)), "")
    if known:
        return known
    if (picture := media.format_of(head)) is not None:
        return f".{picture}"
    if head[4:8] == b"ftyp":
        return ".m4a" if head[8:11] == b"M4A" else ".mp4"
    return f".{kept}" if isinstance(kept, str) and kept.isalnum() else ""
