"""One MDS shard: a count, offsets, a copy of its configuration, then the samples; and which encoding reads each column.

A sample begins with the lengths (uint32) of its columns of no fixed size; then come the cells of all columns. Reading
one sample of a mapped shard is a few microseconds of Python, so each step counts: the layout becomes one function, made
when the shard is opened; no sample or cell is an object of its own, and what cannot be is noticed by failing. A sample
that failed is read again, slowly, to say why.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError, SeqlakeError
from seqlake.formats._streaming.cells import CellBytes, CellEncoding, CellError, UnheldError, binary, fixed
from seqlake.formats._streaming.records import HEADER_BYTES, SampleError, agreed, cell_arrays, offsets, ranged
from seqlake.formats.mds import encodings
from seqlake.formats.mds.arrays import ArrayEncoding, head
from seqlake.protocols import Flat
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.formats._streaming.cells import Options
    from seqlake.formats._streaming.index import Config, IndexedShard
    from seqlake.formats._streaming.shard import SampleShard
    from seqlake.formats._streaming.stored import ShardFolder
    from seqlake.protocols import Blob, Ints

_SLACK = 64  # bytes by which a header of somebody else may be longer, and still come in the same request
_INT = struct.Struct("<q").unpack_from
_PAIR = struct.Struct("<2I").unpack_from


class MdsRecords:
    """The samples of one open shard.

    Args:
        entry: What the index says of it.
        place: Its folder.
        options: How columns are read.

    Raises:
        DatasetNotFoundError: It is not there.
        CorruptFileError: It is not what the index says.
    """

    def __init__(self, entry: IndexedShard, place: ShardFolder, options: Options, /) -> None:
        config = entry.config
        self.blob: Blob = place.open(entry.raw, entry.zipped, config.compression)
        self.names: list[str] = config.names
        self._entry = entry
        self._verify = place.verify
        self._sizes = config.sizes
        self._fixed = sum(size or 0 for size in config.sizes)
        self._heads = struct.Struct(f"<{sum(size is None for size in config.sizes)}I")
        self._encodings = {name: chosen(name, stored, options) for name, stored in config.columns}
        self._arrays = arrays(config, options)
        given = {name: options.given(name, stored) for name, stored in config.columns}
        self._given = [(name, reading if isinstance(reading, str) else "") for name, reading in given.items()]
        self._plan = [
            (name, size, self._encodings[name].decode) for name, size in zip(self.names, config.sizes, strict=True)
        ]

    @cached_property
    def bounds(self) -> Ints:
        """[samples + 1] see `Records`; read once, one request."""
        size, stop, config = self._entry.raw.size, 4 * (self._entry.samples + 2), self._entry.config
        # The shard's own header comes with the offsets: its length is that of the index's, or nearly.
        head = ranged(self.blob, 0, min(stop + len(config.header()) + _SLACK, size))
        bounds = offsets(head[:stop], self._entry.samples, first=stop, size=size, location=self.blob.location)
        if self._verify:
            first = min(int(bounds[0]), stop + HEADER_BYTES)
            header = head[stop:first] if first <= len(head) else ranged(self.blob, stop, first)
            agreed(header, config, location=self.blob.location)
        return bounds

    def arrays(self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> list[pa.Array]:
        """The cells of samples that lie at these places of a buffer; SampleError."""
        places = self._places(columns, buffer, starts, stops)
        return cell_arrays(self._encodings, columns, [CellBytes(buffer, *places[name]) for name in columns])

    def _places(
        self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints
    ) -> dict[str, tuple[Ints, Ints]]:
        """Column -> where its cells lie; the lengths in a sample must make exactly its bytes."""
        least = self._heads.size + self._fixed
        short = np.flatnonzero(stops - starts < least)
        if len(short):
            row = int(short[0])
            raise SampleError(f"it has {int(stops[row] - starts[row])} bytes, at least {least} are needed", row=row)
        heads = fixed(buffer, starts, self._heads.size).view("<u4").astype(np.int64)
        cursor, places, variable = starts + self._heads.size, {}, 0
        for name, size in zip(self.names, self._sizes, strict=True):
            if size is None:
                end = cursor + heads[:, variable]
                variable += 1
            else:
                end = cursor + size
            if name in columns:
                places[name] = (cursor, end)
            cursor = end
        wrong = np.flatnonzero(cursor != stops)
        if len(wrong):
            row = int(wrong[0])
            said, there = int(cursor[row] - starts[row]), int(stops[row] - starts[row])
            raise SampleError(f"the lengths of its columns make {said} bytes, it has {there}", row=row)
        return places

    def value(self, sample: memoryview, /) -> dict[str, Any]:
        """One sample as a dict; SampleError."""
        at = self._heads.size
        if len(sample) < at:
            raise SampleError(f"it has only {len(sample)} bytes")
        lengths = self._heads.unpack_from(sample)
        length = at + sum(lengths) + self._fixed
        if length != len(sample):
            raise SampleError(f"the lengths of its columns make {length} bytes, it has {len(sample)}")
        cells, name, following = {}, "", iter(lengths)
        try:
            for name, size, decode in self._plan:
                end = at + (next(following) if size is None else size)
                cells[name] = decode(sample[at:end])
                at = end
        except SeqlakeError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error) as error:
            raise SampleError(str(error), column=name, unheld=isinstance(error, UnheldError)) from error
        return cells

    def spans(self, column: str, buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> tuple[Ints, Ints] | None:
        """Where the cells of a column begin and end, if they are bytes as they are stored."""
        if self._encodings[column].array is not binary:
            return None
        return self._places([column], buffer, starts, stops)[column]

    def one_by_one(self) -> Callable[[int], dict[str, Any]] | None:
        """A function from a row to its values, where the shard is in memory; see `single`."""
        view = self.blob.view()
        if view is None or not len(self.bounds):
            return None
        sizes = (self._encodings[name].size for name in self.names)
        if any(known is not None and known != size for known, size in zip(sizes, self._sizes, strict=True)):
            return None  # an index that lies about sizes is told so, sample by sample
        fixed_shapes = {name: kind for name, kind in self._arrays.items() if kind.shape is not None}
        return sample_reader(
            view,
            [
                (name, size, cell_decoder(stored, self._encodings[name], fixed_shapes.get(name)))
                for (name, stored), size in zip(self._given, self._sizes, strict=True)
            ],
        )

    def cell(self, column: str, row: int = 0, /) -> memoryview:
        """The bytes of one cell."""
        start, stop = self.bounds[row : row + 2].tolist()
        sample = np.frombuffer(ranged(self.blob, start, stop), np.uint8)
        whole = (np.zeros(1, np.int64), np.array([len(sample)], np.int64))
        first, end = self._places([column], sample, *whole)[column]
        return sample.data[int(first[0]) : int(end[0])]

    def flat(self, column: str, /, *, step: tuple[int, ...] | None = None) -> Flat | None:
        """See `Records`; where a variable cell stands before an array, its place is found in the mapped samples."""
        kind = self._arrays.get(column)
        if self._entry.config.compression is not None or kind is None:
            return None
        if kind.shape is None:
            return None if step is None else self._free(column, kind, step)
        before = self.names.index(column)
        if None not in self._sizes[:before]:
            start = self.bounds[:-1] + self._heads.size + sum(size or 0 for size in self._sizes[:before])
        else:
            cells = self._mapped(column)
            if cells is None:
                return None  # every sample would have to be fetched to find its cells
            start = cells.starts
        return self._flat(start, np.full(len(start), kind.shape[0], np.int64), kind, kind.shape[1:])

    def _free(self, column: str, kind: ArrayEncoding, step: tuple[int, ...]) -> Flat | None:
        cells = self._mapped(column)
        if cells is None:
            return None
        try:
            start, steps = kind.steps(cells, prod(step))
        except CellError:
            return None  # `batches` says which cell it is
        return self._flat(start, steps, kind, step)

    def _mapped(self, column: str) -> CellBytes | None:
        """All cells of a column of a mapped shard."""
        view = self.blob.view()
        if view is None:
            return None
        buffer = np.frombuffer(view, np.uint8)
        return CellBytes(buffer, *self._places([column], buffer, self.bounds[:-1], self.bounds[1:])[column])

    def _flat(self, start: Ints, steps: Ints, kind: ArrayEncoding, step: tuple[int, ...]) -> Flat:
        dtype = np.dtype(kind.dtype)
        return Flat(
            blob=self.blob,
            start=start,
            steps=steps,
            stride=prod(step) * dtype.itemsize,
            stored=dtype.newbyteorder("<"),
            dtype=dtype,
            shape=step,
        )


def open_records(entry: IndexedShard, place: ShardFolder, options: Options, /) -> MdsRecords:
    """The samples of one shard, which is open from now on."""
    return MdsRecords(entry, place, options)


def sample_reader(
    view: memoryview, columns: Sequence[tuple[str, int | None, Callable[[memoryview, int, int], Any]]], /
) -> Callable[[int], dict[str, Any]]:
    """A function from the number of a sample to its values.

    Args:
        view: The shard, whose offsets were looked at.
        columns: Name, size (None: the sample says) and decoder of each, in order.

    Returns:
        The function. Any exception of it means that the sample is damaged.
    """
    heads = struct.Struct(f"<{sum(size is None for _, size, _ in columns)}I")
    lengths_of, head = heads.unpack_from, heads.size
    if all(size is not None for _, size, _ in columns):
        places, at = [], 0
        for name, size, decode in columns:
            places.append((name, at, at := at + (size or 0), decode))
        whole = at

        def fixed(row: int) -> dict[str, Any]:
            start, stop = _PAIR(view, 4 + 4 * row)
            if stop - start != whole:
                raise ValueError(row)
            return {name: decode(view, start + first, start + end) for name, first, end, decode in places}

        return fixed

    return _unrolled(view, columns, lengths_of, head)


def _unrolled(
    view: memoryview, columns: Sequence[tuple[str, int | None, Any]], lengths_of: Callable[..., Any], head: int
) -> Callable[[int], dict[str, Any]]:
    """The loop over columns written out, as in `packing`; names, decoders and sizes are the function's globals."""
    known: dict[str, Any] = {"view": view, "pair": _PAIR, "lengths_of": lengths_of}
    lengths, steps, cells = [], [f"at0 = start + {head}"], []
    for number, (name, size, decode) in enumerate(columns):
        known |= {f"name{number}": name, f"decode{number}": decode}
        if size is None:
            lengths.append(f"length{number}")
        steps.append(f"at{number + 1} = at{number} + {f'length{number}' if size is None else size}")
        cells.append(f"name{number}: decode{number}(view, at{number}, at{number + 1})")
    lines = [
        "def read(row):",
        " start, stop = pair(view, 4 + 4 * row)",
        f" {', '.join(lengths)}, = lengths_of(view, start)",
        *(f" {step}" for step in steps),
        f" if at{len(columns)} != stop:",
        "  raise ValueError(row)",
        f" return {{{', '.join(cells)}}}",
    ]
    exec("\n".join(lines), known)  # noqa: S102 - made of numbers alone
    function: Callable[[int], dict[str, Any]] = known["read"]
    return function


def cell_decoder(
    name: str, encoding: CellEncoding, array: ArrayEncoding | None, /
) -> Callable[[memoryview, int, int], Any]:
    """How a cell is read from a shard's bytes.

    Args:
        name: Of the encoding, if it is none of the user's.
        encoding: What reads a cell that stands alone.
        array: Of a column whose cells are arrays of one shape.
    """
    if array is not None:
        return _array(tuple(array.shape or ()), np.dtype(array.dtype))
    known = {"bytes": _bytes, "str": _text, "int": _int}.get(name)
    if known is not None:
        return known
    if name in _NUMBERS:
        return _number(np.dtype(name))
    decode = encoding.decode
    return lambda view, start, stop: decode(view[start:stop])


_NUMBERS = {"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"}


def _bytes(view: memoryview, start: int, stop: int) -> bytes:
    return view[start:stop].tobytes()


def _text(view: memoryview, start: int, stop: int) -> str:
    return str(view[start:stop], "utf-8")


def _int(view: memoryview, start: int, stop: int) -> int:  # noqa: ARG001 - as every decoder
    number: int = _INT(view, start)[0]
    return number


def _number(dtype: np.dtype[Any]) -> Callable[[memoryview, int, int], Any]:
    little = dtype.newbyteorder("<")

    def number(view: memoryview, start: int, stop: int) -> Any:  # noqa: ARG001 - as every decoder
        return np.ndarray((), little, view, start)[()]

    return number


def _array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[memoryview, int, int], Any]:
    little = dtype.newbyteorder("<")

    def array(view: memoryview, start: int, stop: int) -> Any:  # noqa: ARG001 - as every decoder
        return np.ndarray(shape, little, view, start)

    return array


def columns(config: Config, options: Options, /) -> dict[str, Column]:
    """The columns of shards of this kind."""
    result = {}
    for name, stored in config.columns:
        encoding = chosen(name, stored, options)
        result[name] = Column(name, encoding.arrow, encoding.type, nullable=False)
    return result


def chosen(name: str, stored: str, options: Options, /) -> CellEncoding:
    """What reads a column; arrays that nobody looked at yet are taken to be vectors of float32."""
    given = options.given(name, stored)
    if isinstance(given, CellEncoding):
        return given
    if given == encodings.PICKLE:
        allowed = name in options.allow_pickle
        return encodings.unpickled(options.pickles.get(name, pa.null())) if allowed else encodings.refused(name)
    kind = ArrayEncoding.of(given)
    if kind is not None and kind.shape is None:
        return encodings.of_array(kind.learned(*options.arrays.get(name, (kind.dtype or "float32", 1))))
    return encodings.encoding(given)


def arrays(config: Config, options: Options, /) -> dict[str, ArrayEncoding]:
    """The columns of arrays whose dtype is known, and of fixed shape only where that makes the bytes of a cell."""
    kinds = {}
    for (name, stored), size in zip(config.columns, config.sizes, strict=True):
        given = options.given(name, stored)
        kind = ArrayEncoding.of(given) if isinstance(given, str) else None
        if kind is not None and kind.shape is None and name in options.arrays:
            kind = kind.learned(*options.arrays[name])
        if kind is not None and kind.dtype is not None and kind.size == size:
            kinds[name] = kind
    return kinds


def learn(shards: Iterable[SampleShard], options: Options, /) -> Options:
    """Look at first samples for dtype and dimensions of arrays, and for the type of pickles.

    Raises:
        SchemaMismatchError: A pickle of something that Arrow cannot hold.
        CorruptFileError: The sample cannot be read.
    """
    arrays, pickles, looked = dict(options.arrays), dict(options.pickles), set[int]()
    for shard in shards:
        config = shard.entry.config
        if id(config) in looked or not shard.rows:
            continue
        looked.add(id(config))  # shards of one kind share it
        for name, stored in config.columns:
            given = options.given(name, stored)
            if not isinstance(given, str) or name in arrays or name in pickles:
                continue
            kind = ArrayEncoding.of(given)
            if kind is not None and kind.shape is None:
                arrays[name] = _array_of(shard, name, kind)
            elif given == encodings.PICKLE and name in options.allow_pickle:
                pickles[name] = _pickle_of(shard, name)
    return replace(options, arrays=arrays, pickles=pickles)


def _array_of(shard: SampleShard, name: str, kind: ArrayEncoding) -> tuple[str, int]:
    try:
        dtype, shape, _ = head(shard.open().cell(name), kind)
    except CellError as error:
        raise shard.damaged(SampleError(str(error), column=name), [0]) from error
    return dtype, len(shape)


def _pickle_of(shard: SampleShard, name: str) -> pa.DataType:
    try:
        value: Any = encodings.unpickled(pa.null()).decode(shard.open().cell(name))
    except CellError as error:
        raise shard.damaged(SampleError(str(error), column=name), [0]) from error
    try:
        return pa.array([value.tolist() if isinstance(value, np.ndarray) else value]).type
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatchError(
            f"Column {name!r} holds pickles of {type(value).__name__}, which Arrow cannot hold ({error}).",
            hint="Give a CellEncoding(arrow=..., decode=...) for it in encodings={...}.",
        ) from error
