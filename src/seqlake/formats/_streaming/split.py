"""Shards of two files: the data, and beside them a count, offsets and the configuration."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.errors import InvalidMetadataError
from seqlake.formats._streaming import cells as many
from seqlake.formats._streaming.encodings import CellEncoding
from seqlake.formats._streaming.records import HEADER_BYTES, SampleError, agreed, offsets, ranged
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.formats._streaming.encodings import Options
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.shard import SampleShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Blob, Flat, Ints


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
        self.names = entry.config.names
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
