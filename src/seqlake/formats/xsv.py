"""CSV, TSV and XSV as MosaicML Streaming stores them: shards of lines with an `index.json`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import CorruptFileError
from seqlake.files.locations import absolute
from seqlake.formats._streaming import texts
from seqlake.formats._streaming.cells import CellBytes, CellError, binary, fixed
from seqlake.formats._streaming.exporting import exporter
from seqlake.formats._streaming.merging import merge
from seqlake.formats._streaming.packing import WriterSettings, offsets
from seqlake.formats._streaming.records import SampleError, cell_arrays
from seqlake.formats._streaming.scan import first_format, scan
from seqlake.formats._streaming.texts import Plain, SplitRecords, columns, dropped, learn
from seqlake.formats._streaming.writing import SampleWriter, begin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.formats._streaming.cells import CellEncoding, Options
    from seqlake.formats._streaming.exporting import SampleSink
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Ints

__all__ = ["columns", "create", "dropped", "learn", "matches", "merge", "open_records", "scan", "writer"]


def matches(location: str, /, *, storage: Mapping[str, str] | None = None) -> bool:
    """Whether a folder has an `index.json` that begins with a shard of `csv`, `tsv` or `xsv`."""
    return first_format(location, storage=storage) in {"csv", "tsv", "xsv"}


def writer(
    out: str,
    columns: Mapping[str, str],
    /,
    *,
    separator: str = ",",
    newline: str = "\n",
    mode: str = "new",
    storage: Mapping[str, str] | None = None,
    **settings: Any,
) -> SampleWriter:
    """Begin to write samples, one by one; what is written equals the official writer's output, byte for byte.

    Args:
        out: A new or empty folder, as a path or URI.
        columns: Name -> `str`, `int` or `float`.
        mode: `"append"` adds to a folder that is there, or goes on after an interruption: `writer.samples` says how
            many samples are in it. `"replace"` removes shards and index of before.
        separator: A comma makes `csv`, a tab `tsv`, anything else `xsv`. Values may not hold it: nothing is quoted.
        newline: Ends a line.
        storage: Options of the object store.
        **settings: `compression`, `hashes`, `size_limit`, as in `WriterSettings`.

    Returns:
        A writer with `write(sample)` and `finish()`; best used with `with`.

    Raises:
        DatasetExistsError: Something is at `out`.
        ValueError: A setting that makes no sense.
    """
    packing = packer(columns, {"separator": separator, "newline": newline, **settings})
    return begin(absolute(out), packing, mode=mode, storage=storage)


class XsvRecords(SplitRecords):
    """The samples of one open shard; see `_streaming.records.Records`."""

    @property
    def _first(self) -> int:
        return len(self._header)

    @property
    def _header(self) -> bytes:
        config = self._entry.config
        return (config.separator.join(config.names) + config.newline).encode()

    def _agreed(self) -> None:
        view = self.blob.view()
        if view is not None and view[: self._first] != self._header:
            location = self.blob.location
            raise CorruptFileError(
                f"{location}: the index names the columns {self.names}, its first line is "
                f"{bytes(view[: self._first])!r}.",
                path=location,
                hint="One of the two is damaged, or of another dataset. verify=False believes the index.",
            )

    def arrays(self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> list[pa.Array]:
        """The cells of samples that lie at these places of a buffer; SampleError."""
        if not columns:
            return []
        values, count = self._values(buffer, starts, stops), len(self.names)
        raw = values.buffers()
        ends = np.frombuffer(raw[1], np.int32, len(values) + 1).astype(np.int64)
        data = np.frombuffer(raw[2] or b"", np.uint8)
        places = [self.names.index(name) for name in columns]
        cells = [CellBytes(data, ends[:-1][place::count], ends[1:][place::count]) for place in places]
        return cell_arrays(self._encodings, columns, cells)

    def _values(self, buffer: NDArray[np.uint8], starts: Ints, stops: Ints) -> pa.Array:
        """[rows * columns] the texts of all columns, line by line."""
        size = len(self._newline)
        short = np.flatnonzero(stops - starts < size)
        if len(short):
            raise SampleError("it has no newline", row=int(short[0]))
        ends = fixed(buffer, stops - size, size) == np.frombuffer(self._newline, np.uint8)
        wrong = np.flatnonzero(~ends.all(axis=1))
        if len(wrong):
            raise SampleError(f"it does not end with {self._entry.config.newline!r}", row=int(wrong[0]))
        try:
            lines = binary(CellBytes(buffer, starts, stops - size))
        except CellError as error:
            raise SampleError(str(error)) from error
        # Split as bytes: a separator that is UTF-8 never begins inside another letter.
        parts = pc.split_pattern(lines.view(pa.string()), self._entry.config.separator)
        counts = np.asarray(pc.list_value_length(parts))
        other = np.flatnonzero(counts != len(self.names))
        if len(other):
            row = int(other[0])
            raise SampleError(f"it has {int(counts[row])} values, there are {len(self.names)} columns", row=row)
        return parts.flatten()

    def value(self, sample: memoryview, /) -> dict[str, Any]:
        """One sample as a dict; SampleError."""
        cells, name = {}, None
        try:
            values = bytes(self._line(sample)).split(self._entry.config.separator.encode())
            if len(values) != len(self.names):
                raise SampleError(f"it has {len(values)} values, there are {len(self.names)} columns")
            for name, cell in zip(self.names, values, strict=True):
                cells[name] = self._encodings[name].decode(memoryview(cell))
        except ValueError as error:
            raise SampleError(str(error), column=name) from error
        return cells

    def cell(self, column: str, row: int, /) -> memoryview:
        """The bytes of one cell."""
        start, stop = self.bounds[row : row + 2].tolist()
        [view] = self.blob.ranges(np.array([start]), np.array([stop]))
        values = bytes(self._line(view)).split(self._entry.config.separator.encode())
        return memoryview(values[self.names.index(column)])


def open_records(entry: IndexedShard, place: ShardFolder, options: Options, /) -> XsvRecords:
    """The samples of one shard, which is open from now on."""
    return XsvRecords(entry, place, options)


class XsvPacker:
    """Packs samples; see `_streaming.packing.Packer`.

    Args:
        config: Columns and settings; sorted afterwards.
        _given: Not used: values are texts, integers and floats.

    Raises:
        ValueError: Another encoding, or a name that holds the separator or the newline.
    """

    base = 0
    each = 0

    def __init__(self, config: Config, _given: Mapping[str, CellEncoding], /) -> None:
        columns = tuple(sorted(config.columns))
        self._forbidden = (config.newline, config.separator)
        self._plain = Plain(columns)
        for name, _ in columns:
            if any(mark in name for mark in self._forbidden):
                raise ValueError(f"The name {name!r} holds the separator or the newline.")
        self.config: Config = replace(config, columns=columns)

    def sample(self, sample: Mapping[str, Any], /) -> bytes:
        """One sample as it is stored; CellError."""
        values, (newline, separator) = [], self._forbidden
        for name, value in self._plain.values(sample):
            text = str(value)
            if newline in text or separator in text:
                raise CellError(f"column {name!r}: {text[:80]!r} holds the separator or the newline; nothing is quoted")
            values.append(text)
        line = separator.join(values) + newline
        # Marks of several letters can also arise where two values meet.
        if line.count(separator) != len(values) - 1 or line.count(newline) != 1:
            raise CellError(f"the values make another separator or newline together: {line[:80]!r}")
        try:
            return line.encode()
        except UnicodeEncodeError as error:
            raise CellError(f"a value is no text that UTF-8 holds ({error})") from error

    def files(self, samples: Sequence[bytes], /) -> tuple[bytes, bytes]:
        """The files of a shard: its data, and the second file where there is one."""
        config = self.config
        header = (config.separator.join(config.names) + config.newline).encode()
        return b"".join([header, *samples]), offsets([len(one) for one in samples], len(header)) + config.header()


def packer(columns: Mapping[str, str], settings: Mapping[str, Any], /) -> XsvPacker:
    """The packer of some columns; a comma makes `csv`, a tab `tsv`, another separator `xsv`.

    Raises:
        ValueError: A setting that makes no sense.
    """
    chosen = WriterSettings.of("xsv", settings, separator=",", newline="\n")
    if not chosen.separator or not chosen.newline:
        raise ValueError("separator and newline are not empty.")
    return XsvPacker(chosen.config({",": "csv", "\t": "tsv"}.get(chosen.separator, "xsv"), columns), {})


create: Callable[..., SampleSink] = exporter(packer, texts.plan, separator=",")
