"""Which files of samples become which column, by their endings, and how each is decoded."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from seqlake.errors import ColumnNotFoundError, InvalidMetadataError
from seqlake.protocols import Mapped
from seqlake.spec.column_types import Audio, ColumnType, Embedding, Image, Spatial3D, Trajectory, Video
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Column, Schema

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from seqlake.formats._mapping import Wanted
    from seqlake.formats.webdataset.survey import TarSurvey

KEY, URL, SPLIT = "__key__", "__url__", "split"
Role = Literal["bytes", "text", "json", "whole", "array", "field", "frames", "key", "url", "split", "part"]
_TEXTS = frozenset({"txt", "text", "transcript"})
_JSON = frozenset({"json", "jsn"})
_NUMBERS = frozenset({"cls", "cls2", "index", "inx", "id"})
_IMAGES = {"jpg": "jpeg", "jpeg": "jpeg", "tif": "tiff", "tiff": "tiff",
           **{one: one for one in ("png", "ppm", "pgm", "bmp", "webp", "avif", "jp2")}}  # fmt: skip
_VIDEOS = frozenset({"mp4", "mov", "mkv", "avi", "webm", "m4v", "mpg", "mpeg", "h264", "h265"})
_SOUNDS = frozenset({"wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"})
_CLOUDS = frozenset({"pcd", "ply", "las", "laz", "glb", "obj", "stl"})
_NEVER = frozenset({"pyd", "pickle", "pkl", "pth", "pt", "ten", "tb", "mp", "msg", "cbor", "npz"})
_NUMBERED = re.compile(r"(.+)\.(\d{3,9})\.([^.]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarColumn:
    """One column and the files that it is read from.

    Attributes:
        column: Its name and types.
        role: How a file becomes a cell; `frames`: several files are one cell; `key`, `url`, `split`: of the sample;
            `part`: a part of its key; `field`: a field of a JSON file.
        endings: Of the files.
        path: Names in JSON, or the name of a group of the pattern.
    """

    column: Column
    role: Role
    endings: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TarColumns:
    """All columns.

    Attributes:
        chosen: In their order.
        mapping: What became of every ending.
        pattern: What cuts keys into parts.
    """

    chosen: Mapping[str, TarColumn]
    mapping: Sequence[Mapped] = field(default_factory=tuple)
    pattern: re.Pattern[str] | None = None

    def schema(self) -> Schema:
        """Of samples: no column names a sequence."""
        columns = {name: one.column for name, one in self.chosen.items()}
        sources = {one.source: one.column for one in self.mapping if one.column is not None}
        source = {"format": "webdataset", "files": sources}
        return Schema(columns, id=None, metadata=Metadata(extra={"source": source}))


def columns_of(
    survey: TarSurvey,
    /,
    *,
    declared: Mapping[str, Wanted] | None,
    without: Collection[str],
    pattern: re.Pattern[str] | None,
    values: Mapping[str, list[Any]],
) -> TarColumns:
    """Choose and type columns.

    Args:
        survey: What is there.
        declared: A mapping that the user gave; None: all endings.
        without: Endings to leave out.
        pattern: Its named groups become columns.
        values: Source of a declared field of JSON -> its values in all samples.

    Raises:
        ColumnNotFoundError: An ending that is not there.
        InvalidMetadataError: The mapping cannot be used.
    """
    endings = survey.endings
    for ending in without:
        _expect(ending, endings, what="leave out")
    ends = {KEY: "key", URL: "url"} | ({SPLIT: "split"} if any(one.split is not None for one in survey.shards) else {})
    chosen = {name: TarColumn(column=Column(name, pa.string()), role=role) for name, role in ends.items()}  # type: ignore[arg-type]  # three of them
    said: dict[str, Mapped] = {}
    frames = _frames(endings) if declared is None else {}
    if pattern is not None:
        _parts(survey, pattern, chosen)
    for name, (column, source) in _wanted(survey, declared, without, frames, values).items():
        while name in chosen:
            name += "_"  # noqa: PLW2901 - one that is free
        chosen[name] = TarColumn(
            column=Column(name, column.column.arrow, column.column.type),
            role=column.role,
            endings=column.endings,
            path=column.path,
        )
        for ending in column.endings or (source,):
            said[ending] = Mapped(source=ending, column=name, how=_how(column))
    for ending in endings:
        why = "left out as asked" if ending in without else "not in the mapping"
        said.setdefault(ending, Mapped(source=ending, column=None, how=why))
    return TarColumns(chosen=chosen, mapping=[said[one] for one in sorted(said)], pattern=pattern)


def _wanted(
    survey: TarSurvey,
    declared: Mapping[str, Wanted] | None,
    without: Collection[str],
    frames: Mapping[str, tuple[str, ...]],
    values: Mapping[str, list[Any]],
) -> dict[str, tuple[TarColumn, str]]:
    if declared is not None:
        return {name: (_given(one, survey, values), one.source) for name, one in declared.items()}
    taken = {ending for several in frames.values() for ending in several}
    columns = {
        ending: (_by_ending(ending, ending, survey), ending)
        for ending in survey.endings
        if ending not in taken and ending not in without
    }
    for name, several in frames.items():
        kept = tuple(one for one in several if one not in without)
        kinds = {_IMAGES[one.rpartition(".")[2]] for one in kept}
        if kept:
            image = Image(frames="bytes", format=kinds.pop() if len(kinds) == 1 else None)
            column = Column(name, pa.list_(pa.binary()), image)
            columns[name] = (TarColumn(column=column, role="frames", endings=kept), kept[0])
    return columns


def _expect(ending: str, endings: Sequence[str], *, what: str) -> None:
    if ending not in endings:
        raise ColumnNotFoundError(f"No file ends in {ending!r} to {what}; there are {', '.join(endings) or 'none'}.")


def _frames(endings: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Numbered pictures of one sample, as `cam.000012.jpg`: name -> endings in the order of their numbers."""
    by_name: dict[str, list[tuple[int, str]]] = {}
    for ending in endings:
        match = _NUMBERED.fullmatch(ending)
        if match is not None and match[3] in _IMAGES:
            by_name.setdefault(match[1], []).append((int(match[2]), ending))
    return {
        name: tuple(ending for _, ending in sorted(several)) for name, several in by_name.items() if name not in endings
    }


def _parts(survey: TarSurvey, pattern: re.Pattern[str], chosen: dict[str, TarColumn]) -> None:
    keys = [pattern.fullmatch(key) for shard in survey.shards for key in shard.keys]
    if not any(keys):
        example = next((key for shard in survey.shards for key in shard.keys), "")
        raise InvalidMetadataError(f"key: the pattern {pattern.pattern!r} fits no key; the first is {example[:100]!r}.")
    for name in pattern.groupindex:
        texts = [match[name] for match in keys if match is not None and match[name] is not None]
        whole = all(text.isascii() and text.isdigit() and len(text) < 19 for text in texts)
        kind = pa.int64() if whole else pa.string()
        chosen[name] = TarColumn(column=Column(name, kind), role="part", path=(name,))


def is_json(ending: str, /) -> bool:
    """Whether files that end so hold JSON."""
    return ending.rpartition(".")[2] in _JSON


def _given(one: Wanted, survey: TarSurvey, values: Mapping[str, list[Any]]) -> TarColumn:
    ending, slash, path = one.source.partition("/")
    _expect(ending, survey.endings, what=f"be the column {one.column!r}")
    if not slash:
        column = _by_ending(one.column, ending, survey)
        if one.type is None:
            return column
        plain = column.role in {"array", "whole", "text", "json"}
        arrow = column.column.arrow if plain else pa.binary()
        return TarColumn(column=Column(one.column, arrow, one.type), role=column.role, endings=(ending,))
    if not is_json(ending):
        raise InvalidMetadataError(f"Column {one.column!r}: {one.source!r} names a field, and {ending!r} is no JSON.")
    kind = _field_type(values[one.source])
    return TarColumn(
        column=Column(one.column, kind, one.type), role="field", endings=(ending,), path=tuple(path.split("/"))
    )


def _field_type(values: list[Any]) -> pa.DataType:
    try:
        kind = pa.array(values, from_pandas=False).type
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return pa.string()
    nested = pa.types.is_struct(kind) or pa.types.is_null(kind)
    inner = kind
    while pa.types.is_list(inner):
        inner = inner.value_type
    return pa.string() if nested or pa.types.is_struct(inner) or pa.types.is_null(inner) else kind


def _by_ending(name: str, ending: str, survey: TarSurvey) -> TarColumn:
    last = ending.rpartition(".")[2]
    role: Role = "bytes"
    arrow: pa.DataType = pa.binary()
    kind: ColumnType | None = None
    if last in _TEXTS or last in _JSON:
        role, arrow = ("text" if last in _TEXTS else "json"), pa.string()
    elif last in _NUMBERS:
        role, arrow = "whole", pa.int64()
    elif last == "npy":
        typed = _array(survey.heads.get(ending, set()))
        if typed is not None:
            role, (arrow, kind) = "array", typed
    elif last in _IMAGES:
        kind = Image(format=_IMAGES[last])
    elif last in _VIDEOS:
        kind = Video(inline=True)
    elif last in _SOUNDS:
        kind = Audio(inline=True)
    elif last in _CLOUDS:
        kind = Spatial3D(format=last, inline=True)
    return TarColumn(column=Column(name, arrow, kind), role=role, endings=(ending,))


def head(data: bytes, /) -> tuple[np.dtype[Any], tuple[int, ...], bool, int] | None:
    """What a file of numpy says: dtype, shape, Fortran's order, and bytes before the values; None where it is none.

    Objects and fields are none: reading them would run what a stranger wrote, or needs more than a column has.
    """
    if data[:6] != b"\x93NUMPY" or len(data) < 10:
        return None
    wide = data[6] > 1
    at = 12 if wide else 10
    length = int.from_bytes(data[8:at], "little")
    try:
        said = ast.literal_eval(data[at : at + length].decode("latin-1" if data[6] < 3 else "utf-8").strip())
        described, shape, turned = said["descr"], said["shape"], said["fortran_order"]
    except (ValueError, SyntaxError, LookupError, TypeError, RecursionError, MemoryError):
        return None
    if not isinstance(described, str) or re.fullmatch(r"[<>|=][biuf][1248]", described) is None:
        return None
    if not isinstance(shape, tuple) or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        return None
    return np.dtype(described), shape, bool(turned), at + length


def _array(heads: set[bytes]) -> tuple[pa.DataType, ColumnType | None] | None:
    """The types of a column of arrays; None where they differ so much that they stay bytes."""
    known = [head(data) for data in heads]
    sizes = {(one[0].newbyteorder("="), len(one[1])) for one in known if one is not None}
    if len(sizes) != 1 or None in known:
        return None
    [(dtype, dimensions)] = sizes
    shapes = {one[1] for one in known if one is not None}
    number = pa.uint8() if dtype.kind == "b" else pa.from_numpy_dtype(dtype)
    if dimensions == 0:
        return number, None
    if dimensions == 1:
        vector = len(shapes) == 1 and next(iter(shapes))[0] > 0
        fixed: ColumnType = Embedding(dim=next(iter(shapes))[0], dtype=number) if vector else Trajectory(dtype=number)
        return pa.list_(number), fixed
    inner = {shape[1:] for shape in shapes}
    if len(inner) != 1 or prod(next(iter(inner))) < 1:
        return None
    [step] = inner
    signal = Trajectory(dim=prod(step), dtype=number, shape=list(step) if len(step) > 1 else None)
    return pa.list_(pa.list_(number)), signal


def _how(column: TarColumn) -> str:
    last = column.endings[0].rpartition(".")[2] if column.endings else ""
    if column.role == "bytes" and last in _NEVER:
        return "kept as bytes, never loaded"
    if column.role == "bytes" and last == "npy":
        return "arrays of several dtypes or shapes: kept as bytes"
    return {"field": "fields of JSON", "frames": "numbered pictures, one a step"}.get(column.role, "")
