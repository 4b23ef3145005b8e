"""Lines of text: shards of two files (the data; beside them a count, offsets and the configuration), read and written.

They hold texts, integers and floats, which is all that columns of a dataset can become in them.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import InvalidMetadataError, SchemaMismatchError
from seqlake.formats._streaming import cells as many
from seqlake.formats._streaming.cells import CellEncoding, CellError, absent
from seqlake.formats._streaming.exporting import Exported
from seqlake.formats._streaming.records import HEADER_BYTES, SampleError, agreed, offsets, ranged
from seqlake.spec.schema import Column, is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from seqlake.formats._streaming.cells import Options
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.shard import SampleShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Blob, Flat, Ints
    from seqlake.spec.schema import Schema

_KINDS: dict[str, type] = {"str": str, "int": int, "float": float}


def plan(schema: Schema, columns: Mapping[str, str], settings: Mapping[str, Any], /) -> dict[str, Exported]:
    """How each column is written: numbers as they are, everything nested as JSON in a text.

    Where commas separate values, a text holds none: JSON's commas become semicolons, as `restored` knows.
    """
    nested = _json_without_commas if settings.get("separator") == "," else _json
    return {name: _exported(schema[name], columns.get(name), nested) for name in schema.names}


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that text cannot hold, with the reason."""
    reason = "bytes are no text; export to MDS, or leave the images as files"
    return {name: reason for name in schema.names if _bytes_inside(schema[name].arrow)}


def _bytes_inside(kind: pa.DataType) -> bool:
    if is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(_bytes_inside(field.type) for field in fields)


def _exported(column: Column, chosen: str | None, nested: Callable[[pa.Array], list[Any]]) -> Exported:
    kind = column.logical
    if chosen is not None:
        return Exported(encoding=chosen, values=_python)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return Exported(encoding="int", values=lambda array: [None if v is None else int(v) for v in array.to_pylist()])
    if pa.types.is_duration(kind):
        return Exported(encoding="int", values=lambda array: list(array.cast(pa.int64()).to_pylist()))
    if pa.types.is_floating(kind):
        return Exported(encoding="float", values=_python)
    if is_text(kind):
        return Exported(encoding="str", values=_python)
    if pa.types.is_nested(kind):
        return Exported(encoding="str", values=nested)
    return Exported(encoding="str", values=lambda array: list(array.cast(pa.string()).to_pylist()))


def _python(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def _json_without_commas(array: pa.Array) -> list[Any]:
    # A semicolon of its own can only stand inside a string, where JSON has another spelling for it.
    return [t if t is None else t.replace(";", r"\u003b").replace(",", ";") for t in _json(array)]


def _json(array: pa.Array) -> list[Any]:
    try:
        return [None if value is None else json.dumps(value) for value in array.to_pylist()]
    except TypeError as error:
        raise SchemaMismatchError(
            f"{array.type} cannot be JSON ({error}).", hint="Leave the column out with select()."
        ) from error


class Plain:
    """Columns whose values are texts, integers and floats.

    Args:
        columns: Pairs of (name, encoding).

    Raises:
        ValueError: Another encoding.
    """

    def __init__(self, columns: Iterable[tuple[str, str]], /) -> None:
        self._kinds: list[tuple[str, type]] = []
        for name, encoding in columns:
            if encoding not in _KINDS:
                raise ValueError(f"Column {name!r}: expected {', '.join(_KINDS)}, found {encoding!r}.")
            self._kinds.append((name, _KINDS[encoding]))

    def values(self, sample: Mapping[str, Any], /) -> Iterator[tuple[str, Any]]:
        """(name, value) of each column of a sample.

        Raises:
            CellError: A value of another type, or none at all; names the column.
        """
        for name, kind in self._kinds:
            if name not in sample:
                raise CellError(absent(name, sample))
            value = sample[name]
            if not isinstance(value, kind):
                raise CellError(f"column {name!r}: expected {kind.__name__}, found {type(value).__name__}")
            yield name, value


def _text(cell: memoryview) -> str:
    return str(cell, "utf-8")


ENCODINGS = {
    "str": CellEncoding(arrow=pa.string(), decode=_text, array=many.text),
    "int": CellEncoding(arrow=pa.int64(), decode=lambda cell: int(_text(cell)), array=many.integers),
    "float": CellEncoding(arrow=pa.float64(), decode=lambda cell: float(_text(cell)), array=many.floats),
}


def chosen(name: str, stored: str, options: Options, /) -> CellEncoding:
    """What reads a column.

    Raises:
        InvalidMetadataError: An encoding that is not known.
    """
    given = options.given(name, stored)
    if isinstance(given, CellEncoding):
        return given
    if given not in ENCODINGS:
        raise InvalidMetadataError(
            f"Column {name!r} has the encoding {given!r}; expected {', '.join(ENCODINGS)}.",
            hint=f'Read it as text: scan(..., encodings={{{name!r}: "str"}}).',
        )
    return ENCODINGS[given]


def columns(config: Config, options: Options, /) -> dict[str, Column]:
    """The columns of shards of this kind."""
    result = {}
    for name, stored in config.columns:
        encoding = chosen(name, stored, options)
        # An object of JSON may lack a key; a line of separated values lacks nothing.
        result[name] = Column(name, encoding.arrow, encoding.type, nullable=config.format == "json")
    return result


def learn(_shards: Iterable[SampleShard], options: Options, /) -> Options:
    """The options themselves: nothing is left to learn."""
    return options


class SplitRecords:
    """What XSV and JSONL shards share.

    Args:
        entry: What the index says of it.
        place: Its folder.
        options: How columns are read.
    """

    def __init__(self, entry: IndexedShard, place: ShardFolder, options: Options, /) -> None:
        self.blob: Blob = place.open(entry.raw, entry.zipped, entry.config.compression)
        self.names: list[str] = entry.config.names
        self._entry = entry
        self._place = place
        self._newline = entry.config.newline.encode()
        self._encodings = {name: chosen(name, stored, options) for name, stored in entry.config.columns}

    @cached_property
    def bounds(self) -> Ints:
        """[samples + 1] see `Records`; from the second file."""
        entry = self._entry
        assert entry.raw_meta is not None
        meta = self._place.open(entry.raw_meta, entry.zipped_meta, entry.config.compression)
        stop, location = 4 * (entry.samples + 2), self._place.location(entry.raw_meta)
        head = ranged(meta, 0, min(stop + HEADER_BYTES, entry.raw_meta.size))
        bounds = offsets(head[:stop], entry.samples, first=self._first, size=entry.raw.size, location=location)
        if self._place.verify:
            agreed(head[stop:], entry.config, location=location)
            self._agreed()
        return bounds

    def _agreed(self) -> None:
        """Compare what the data themselves say of their columns, where they do and are at hand."""

    @property
    def _first(self) -> int:
        """Where the first sample begins."""
        return 0

    def _line(self, sample: memoryview) -> memoryview:
        """A sample without the newline."""
        size = len(self._newline)
        if bytes(sample[len(sample) - size :]) != self._newline or len(sample) < size:
            raise SampleError(f"it does not end with {self._entry.config.newline!r}")
        return sample[: len(sample) - size]

    def flat(self, _column: str, /, *, step: tuple[int, ...] | None = None) -> Flat | None:  # noqa: ARG002 - the contract's argument
        """None: texts are decoded."""
        return None

    def spans(self, _column: str, _buffer: object, _starts: Ints, _stops: Ints, /) -> None:
        """None: texts are decoded."""

    def one_by_one(self) -> None:
        """None: `value` is as fast."""
