"""What the columns of a plain Parquet folder mean, by their types, names and first values."""

from __future__ import annotations

import warnings
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake import media
from seqlake.dataset.reading import streaming
from seqlake.errors import DuplicateSequenceError, SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.spec.alignment import even_rate
from seqlake.spec.column_types import INLINE_TYPES, ColumnType, Embedding, Image, Trajectory, Video
from seqlake.spec.metadata import Metadata
from seqlake.spec.rules.references import is_relative
from seqlake.spec.schema import Column, is_list, is_number
from seqlake.windows.sources import MediaFiles, cells_of, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Readable

_SAMPLE_ROWS = 32
_PROBED = 4
_SAMPLE_SHARDS = 4
_SUFFIXES = {
    "video": ("mp4", "mov", "mkv", "webm", "avi", "m4v"),
    "image": ("jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "ppm", "pgm", "avif", "jp2", "j2k"),
    "audio": ("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"),
    "3d": ("ply", "pcd", "obj", "stl", "glb", "gltf", "las", "laz"),
    "mcap": ("mcap",),
    "hdf5": ("h5", "hdf5"),
    "zarr": ("zarr",),
    "rerun": ("rrd",),
}
_TYPE_OF_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes}
_HEAD = 16  # bytes


def infer(source: Readable, known: Mapping[str, ColumnType], /) -> Metadata:
    """Metadata for files that have none.

    Args:
        source: The files.
        known: Column types that need no guessing; they win.

    Raises:
        SchemaMismatchError: `sequence_id` is missing or no text, or `known` names a column that is not there.
        ValidationError, DuplicateSequenceError: An id is missing, empty or there twice.
    """
    schema = source.schema
    for name in known:
        schema[name]
    _check_ids(source)
    asked = [name for name in schema.names if name not in known and name != schema.id]
    guessed = {name: _guess(name, kind, cells) for name, (kind, cells) in _sample(source, asked).items()}
    types = {name: known.get(name) or _rated(source, name, guessed.get(name)) for name in schema.names}
    return Metadata(column_types={name: kind for name, kind in types.items() if kind is not None})


def _rated(source: Readable, name: str, kind: ColumnType | None) -> ColumnType | None:
    """A video's type with the rate that its first files show, where they can be opened and all show one."""
    if kind is None or kind.type != "video":
        return kind
    files, rates = MediaFiles.of(source), set()
    cells = cells_of(source, name, np.arange(min(_PROBED, sum(shard.rows for shard in source.shards()))))
    for span in dict.fromkeys(span for span in map(place_of, cells) if span is not None):
        if span.data is None and not (span.reference and is_relative(span.reference)):
            continue
        try:
            decoder = media.open(files.source(span.reference, kind, data=span.data))
        except (SeqlakeError, OSError):
            continue  # validation says so
        rates.add(even_rate(decoder.pts, decoder.time_base))
        decoder.close()
    rate = rates.pop() if len(rates) == 1 else None
    if rate is None:
        return kind
    return Video(fps=int(rate) if rate.denominator == 1 else round(float(rate), 3))


def _check_ids(source: Readable) -> None:
    name = source.schema.id
    if name is None:
        raise SchemaMismatchError(
            "A dataset needs a text column sequence_id with a unique name for each row; "
            f"there are {', '.join(source.schema.names)}.",
            hint="Write the files anew with that column, or look at them as they are with sl.scan(folder).",
        )
    batches = list(streaming.read(source, [name]))
    ids = pa.chunked_array([batch.column(0).cast(pa.string()) for batch in batches], pa.string())
    empty = ids.null_count + (pc.sum(pc.equal(ids, "")).as_py() or 0)
    if empty:
        raise ValidationError(f"Column {name!r} is null or empty in {empty} rows.", hint="Every sequence has an id.")
    counts = ids.value_counts()
    twice = [one["values"] for one in counts.filter(pc.greater(counts.field("counts"), 1)).to_pylist()]
    if twice:
        raise DuplicateSequenceError(
            f"{len(twice)} ids occur more than once, the first is {twice[0]!r}.",
            hint="Each row of a dataset is a sequence of its own.",
        )


def _sample(source: Readable, columns: list[str]) -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Column -> (type, first cells that are not null), from a few shards."""
    samples: dict[str, tuple[pa.DataType, list[Any]]] = {name: (source.schema[name].arrow, []) for name in columns}
    for shard in source.shards()[:_SAMPLE_SHARDS] if columns else []:
        for batch in islice(streaming.one_shard(shard, columns), 1):
            few = batch.slice(0, _SAMPLE_ROWS)
            for name in columns:
                samples[name][1].extend(cell for cell in few.column(name) if cell.is_valid)
    return samples


def _guess(name: str, kind: pa.DataType, cells: list[Any]) -> ColumnType | None:
    if pa.types.is_string(kind):
        return _file(cells)
    if Column(name, kind, Image()).inline:
        return _inline(name, cells)
    if not is_list(kind):
        return None
    inner = kind.value_type
    if is_list(inner):
        return _trajectory(inner, cells) if is_number(inner.value_type) else None
    if pa.types.is_binary(inner):
        return _images(cells)
    if is_number(inner) and ("embed" in name.casefold() or pa.types.is_fixed_size_list(kind)):
        widths = {len(cell.values) for cell in cells}
        return Embedding(dim=widths.pop()) if len(widths) == 1 else None
    return None


def _trajectory(inner: pa.DataType, cells: list[Any]) -> ColumnType:
    if pa.types.is_fixed_size_list(inner):
        return Trajectory(dim=inner.list_size)
    widths = {width for cell in cells for width in set(pc.list_value_length(cell.values).to_pylist())}
    return Trajectory(dim=widths.pop()) if len(widths) == 1 and None not in widths else Trajectory()


def _file(cells: list[Any]) -> ColumnType | None:
    """The type that every sampled path's suffix says."""
    kinds = {_kind_of_path(cell.as_py()) for cell in cells}
    kind = kinds.pop() if len(kinds) == 1 else None
    return ColumnType.from_json({"type": kind}) if kind else None


def _kind_of_path(path: str) -> str | None:
    return _TYPE_OF_SUFFIX.get(PurePosixPath(path).suffix.removeprefix(".").casefold())


def _inline(name: str, cells: list[Any]) -> ColumnType | None:
    """The type of files that stand in the rows, by their first bytes; by their names where only those stand there."""
    spans = [span for cell in cells if (span := place_of(cell.as_py())) is not None]
    heads = [span.data[:_HEAD] if isinstance(span.data, bytes) else None for span in spans]
    kinds = {
        _kind_of_path(span.reference) if head is None else media.kind_of(head)
        for span, head in zip(spans, heads, strict=True)
    }
    if len(kinds) > 1 and kinds & INLINE_TYPES:
        warnings.warn(
            f"Column {name!r} holds files of different kinds in the first rows "
            f"({', '.join(sorted(kind or 'unknown' for kind in kinds))}), so it gets no type. "
            f"If it has one, say which: column_types={{{name!r}: sl.Image()}}, or --type {name}=image.",
            stacklevel=2,
        )
    if len(kinds) != 1 or not kinds & INLINE_TYPES:
        return None
    kind = ColumnType.from_json({"type": kinds.pop()})
    formats = {None if head is None else media.format_of(head) for head in heads}
    return Image(format=formats.pop()) if kind.type == "image" and len(formats) == 1 else kind


def _images(cells: list[Any]) -> ColumnType | None:
    first = next((bytes(one) for cell in cells for one in cell.as_py() if one), b"")
    image = media.format_of(first[:_HEAD])
    return Image(format=image, frames="bytes") if image in media.PICTURES else None
