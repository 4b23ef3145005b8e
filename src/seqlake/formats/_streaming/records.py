"""One open shard as samples: where each lies, and its cells. Each format has its own `Records`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.formats._streaming.cells import CellBytes, CellError, UnheldError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.formats._streaming.cells import CellEncoding
    from seqlake.formats._streaming.index import Config
    from seqlake.protocols import Blob, Flat, Ints


HEADER_BYTES = 1 << 20  # of a shard's own header, at most
OF_COLUMNS = frozenset(
    {"format", "column_names", "column_encodings", "column_sizes", "columns", "newline", "separator"}
)


class SampleError(Exception):
    """A sample that is not what the index says.

    Attributes:
        row: Its place among the samples that were asked for.
        column: The column, where one is to blame.
        text: What is wrong.
        unheld: The sample is sound, only the column cannot hold it.
    """

    def __init__(self, text: str, *, row: int = 0, column: str | None = None, unheld: bool = False) -> None:
        super().__init__(text)
        self.row, self.column, self.text, self.unheld = row, column, text, unheld


class Records(Protocol):
    """The samples of one shard."""

    blob: Blob
    names: Sequence[str]

    @property
    def bounds(self) -> Ints:
        """[samples + 1] first byte of each sample in the blob, then the end of the last."""

    def arrays(self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> list[pa.Array]:
        """The cells of samples that lie at these places of a buffer; SampleError."""

    def value(self, sample: memoryview, /) -> dict[str, Any]:
        """One sample as Python values; SampleError."""

    def cell(self, column: str, row: int, /) -> memoryview:
        """The bytes of one cell; SampleError."""

    def flat(self, column: str, /, *, step: tuple[int, ...] | None = None) -> Flat | None:
        """As `ShardReader.flat`; `step`: the shape of a step where only the schema says it."""

    def spans(self, column: str, buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> tuple[Ints, Ints] | None:
        """Where the cells of a column lie in the buffer, if they are bytes as they are stored; SampleError."""

    def one_by_one(self) -> Callable[[int], dict[str, Any]] | None:
        """The fastest function from a row to its values, where the shard is in memory."""


def offsets(head: memoryview, count: int, *, first: int, size: int, location: str) -> Ints:
    """[count + 1] the offsets of a shard, checked.

    Args:
        head: `count`, then the offsets, all uint32.
        count: The samples that the index gives it.
        first: The least value of the first offset.
        size: What the last must be.
        location: For messages.

    Raises:
        CorruptFileError: They cannot be those of this shard.
    """
    raw = np.frombuffer(head[: len(head) & ~3], "<u4")
    problem = ""
    if len(raw) != count + 2 or int(raw[0]) != count:
        problem = f"it says that it has {int(raw[0]) if len(raw) else 0} samples, the index says {count}"
    elif int(raw[1]) < first:
        problem = f"its first sample begins at byte {int(raw[1])}, before byte {first}"
    elif int(raw[-1]) != size:
        problem = f"its last sample ends at byte {int(raw[-1])}, it has {size}"
    elif bool((raw[2:] < raw[1:-1]).any()):
        problem = f"sample {int(np.flatnonzero(raw[2:] < raw[1:-1])[0])} ends before it begins"
    if problem:
        raise CorruptFileError(f"{location}: {problem}.", path=location, hint="The file is damaged: fetch it again.")
    return raw[1:].astype(np.int64)


def agreed(header: memoryview, config: Config, /, *, location: str) -> None:
    """See that a shard's own header says the same of its columns as the index; one without any says nothing.

    Raises:
        CorruptFileError: It says otherwise, or is no JSON.
    """
    if not len(header) or header == config.header():
        return
    hint = "One of the two is damaged, or of another dataset. verify=False believes the index."
    try:
        document = json.loads(bytes(header))
        keys: dict[str, Any] = document if isinstance(document, dict) else {}
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{location}: its own header is no JSON: {error}.", path=location, hint=hint) from error
    said = config.to_json()
    for key in (key for key in sorted(OF_COLUMNS) if key in keys and key in said and keys[key] != said[key]):
        raise CorruptFileError(
            f"{location}: the index says {key!r} are {said[key]}, its own header says {keys[key]}.",
            path=location,
            hint=hint,
        )


def ranged(blob: Blob, start: int, stop: int, /) -> memoryview:
    """Some bytes of a blob."""
    view = blob.view()
    if view is not None:
        return view[start:stop]
    [data] = blob.ranges(np.array([start], np.int64), np.array([stop], np.int64))
    return data


def cell_arrays(
    encodings: Mapping[str, CellEncoding], columns: Sequence[str], cells: Sequence[CellBytes], /
) -> list[pa.Array]:
    """The cells of some columns as Arrow arrays.

    Raises:
        SampleError: A cell that its encoding does not allow; the first of them is looked for, which happens once.
    """
    arrays = []
    for name, those in zip(columns, cells, strict=True):
        encoding = encodings[name]
        try:
            arrays.append(encoding.read(those))
        except CellError as error:
            row, first = _first(encoding, those) or (0, error)
            raise SampleError(str(first), row=row, column=name, unheld=isinstance(first, UnheldError)) from error
    return arrays


def _first(encoding: CellEncoding, cells: CellBytes) -> tuple[int, CellError] | None:
    for row in range(len(cells)):
        try:
            encoding.read(CellBytes(cells.buffer, cells.starts[row : row + 1], cells.stops[row : row + 1]))
        except CellError as error:
            return row, error
    return None
