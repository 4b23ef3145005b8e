"""One shard of separated values: a line of names, then a line a sample. Nothing is quoted or escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import CorruptFileError
from seqlake.formats._streaming.cells import CellError, Cells, binary, fixed
from seqlake.formats._streaming.records import SampleError, cell_arrays
from seqlake.formats._streaming.split import SplitRecords, columns, learn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

__all__ = ["Records", "columns", "learn"]


class Records(SplitRecords):
    """The samples of one open shard."""

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
        """See `Records`."""
        if not columns:
            return []
        values, count = self._values(buffer, starts, stops), len(self.names)
        raw = values.buffers()
        ends = np.frombuffer(raw[1], np.int32, len(values) + 1).astype(np.int64)
        data = np.frombuffer(raw[2] or b"", np.uint8)
        places = [self.names.index(name) for name in columns]
        cells = [Cells(data, ends[:-1][place::count], ends[1:][place::count]) for place in places]
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
            lines = binary(Cells(buffer, starts, stops - size))
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
        """See `Records`."""
        found, name = {}, None
        try:
            values = bytes(self._line(sample)).split(self._entry.config.separator.encode())
            if len(values) != len(self.names):
                raise SampleError(f"it has {len(values)} values, there are {len(self.names)} columns")
            for name, cell in zip(self.names, values, strict=True):
                found[name] = self._encodings[name].decode(memoryview(cell))
        except ValueError as error:
            raise SampleError(str(error), column=name) from error
        return found

    def cell(self, column: str, row: int, /) -> memoryview:
        """See `Records`."""
        start, stop = self.bounds[row : row + 2].tolist()
        [view] = self.blob.ranges(np.array([start]), np.array([stop]))
        values = bytes(self._line(view)).split(self._entry.config.separator.encode())
        return memoryview(values[self.names.index(column)])
