"""Batches of samples from row numbers: arrays of one shape copied as they lie, everything else decoded in portions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.media import image
from seqlake.training.bad_data.damage import Harm, is_damage
from seqlake.training.frames.decoding import cores
from seqlake.training.rows.values import Collected

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.spec.column_types import ColumnType
    from seqlake.training.gather import Ranges
    from seqlake.training.rows.shards import RowShards
    from seqlake.training.rows.values import Form
    from seqlake.training.samples import Batch, Samples
    from seqlake.training.settings import FrameOptions

_PORTION = 8 << 20  # bytes that are decoded at a time
_LEAST = 64  # bytes that a decoded row counts for
_LARGE = 1 << 10  # bytes of a row from which on one copy less is worth a loop over rows

_Coming = tuple[int, "Batch", dict[str, Any]]
"""Number of a batch, its decoded columns, and its pictures that are on their way."""


@dataclass(slots=True, kw_only=True)
class RowChunk:
    """`Chunk` of samples that are rows; portions of it are decoded as they are come to.

    Attributes:
        assembler: Makes its batches.
        samples: The samples.
        size: B, samples of a batch.
        ranges: For each column that is copied, where its cells lie.
        decoded: The columns that are not.
        step: Batches of a portion.
        origins: Bytes of a batch, about, by where they come from.
        portion: Number of the portion that is decoded now.
        values: Its columns.
        coming: The next batch, whose pictures are being decoded.
        pieces: The memory that `ranges` points into, which stays while it is in use.
    """

    assembler: RowAssembler
    samples: Samples
    size: int
    ranges: dict[str, Ranges]
    decoded: list[Form]
    step: int
    origins: dict[str, float]
    portion: int = -1
    values: Batch = field(default_factory=dict)
    coming: _Coming | None = None
    pieces: tuple[memoryview, ...]

    def batch(self, number: int, /) -> Batch:
        """One batch of it: arrays and lists, one value a sample in each."""
        return self.assembler.batch(self, number)


class RowAssembler:
    """`Assembler` of samples that are rows."""

    def __init__(self, opened: RowShards, pictures: RowPictures, *, tolerant: bool) -> None:
        self.opened = opened
        self._pictures = pictures
        self._tolerant = tolerant
        self._buffers: dict[str, Any] | None = None

    def reuse_buffers(self) -> None:
        """From now on arrays that are copied are written where the batch before was."""
        self._buffers = {}

    def prepare(self, samples: Samples, *, size: int) -> RowChunk:
        """Find where the cells of some batches lie; see `Assembler.prepare`."""
        opened, rows = self.opened, samples.rows
        if not self._tolerant:
            opened.visit(rows)
        ranges: dict[str, Ranges] = {}
        decoded: list[Form] = []
        decoded_bytes = opened.row_bytes
        for form in opened.forms:
            if len(rows) and not self._tolerant and opened.is_flat(form.name, rows):
                address = opened.placed[form.name].address[rows]
                assert form.dtype is not None
                assert form.shape is not None
                cell = form.dtype, form.shape
                ranges[form.name] = opened.memory.ranges(address, form.width, size=size, cell=cell)
                decoded_bytes -= form.width
            else:
                decoded.append(form)
        step = max(1, int(_PORTION / (max(_LEAST, decoded_bytes) * size)))
        pieces = opened.pieces(rows) if ranges else ()
        origins = {opened.origin: opened.row_bytes * size}
        return RowChunk(
            assembler=self,
            samples=samples,
            size=size,
            ranges=ranges,
            decoded=decoded,
            step=step,
            origins=origins,
            pieces=pieces,
        )

    def batch(self, chunk: RowChunk, number: int) -> Batch:
        """One batch of a chunk: arrays and lists, one value a sample in each."""
        rows = chunk.samples.rows[number * chunk.size : (number + 1) * chunk.size]
        coming = chunk.coming if chunk.coming is not None and chunk.coming[0] == number else self._begun(chunk, number)
        _, batch, begun = coming
        chunk.coming = None
        if begun and (number + 1) * chunk.size < len(chunk.samples.rows):
            chunk.coming = self._begun(chunk, number + 1)
        for name, pictures in begun.items():
            batch[name], failed = self._pictures.take(pictures)
            for place, error in failed.items():
                self._bad(name, int(rows[place]), error)
        for form in self.opened.forms:
            if form.name in chunk.ranges:
                batch[form.name] = self._copied(form, chunk.ranges[form.name], number, len(rows))
                if form.nullable:
                    batch[f"{form.name}_mask"] = np.ones(len(rows), dtype=np.bool_)
        names = [name for form in self.opened.forms for name in (form.name, f"{form.name}_mask")]
        return {name: batch[name] for name in names if name in batch}

    def close(self) -> None:
        """End what is decoded ahead."""
        self._pictures.close()

    def _begun(self, chunk: RowChunk, number: int) -> _Coming:
        """What is decoded of a batch, its pictures on their way."""
        if not chunk.decoded:
            return number, {}, {}
        portion, within = divmod(number, chunk.step)
        if portion != chunk.portion:
            first = portion * chunk.step * chunk.size
            wanted = chunk.samples.rows[first : first + chunk.step * chunk.size]
            chunk.values, chunk.portion = self._decode(chunk.decoded, wanted), portion
        inside = slice(within * chunk.size, (within + 1) * chunk.size)
        batch = {name: _cut(values, inside) for name, values in chunk.values.items()}
        begun = {
            form.name: self._pictures.begin(batch[form.name], form.pictures) for form in chunk.decoded if form.pictures
        }
        return number, batch, begun

    def _bad(self, column: str, row: int, error: Exception) -> None:
        """A picture that cannot be decoded."""
        shard = int(self.opened.shard_of(np.array([row]))[0])
        if not self._tolerant:
            error.add_note(f"in column {column!r}, row {row}, {self.opened.file(shard)}")
            raise error
        self.opened.harms[row] = [Harm.of(error, column=column, file=self.opened.file(shard))]

    def harmed(self, samples: Samples) -> dict[int, list[Harm]]:
        """Place in a batch -> what was found wrong with its row while it was read."""
        harms = self.opened.harms
        return {
            place: harms[row]
            for place, row in enumerate(samples.rows.tolist() if harms else ())
            if row in harms and place not in samples.bad
        }

    def _copied(self, form: Form, ranges: Ranges, number: int, count: int) -> Any:
        out = None
        if self._buffers is not None:
            out = self._buffers.get(form.name)
            if out is None or len(out) != count:
                out = self._buffers[form.name] = np.empty((count, form.width), dtype=np.uint8)
        return ranges.copy(number, out=out)

    def _decode(self, forms: Sequence[Form], rows: Ints) -> Batch:
        """[n] rows of some columns, in the order asked for."""
        small = not self._tolerant and len(rows) > 0 and self.opened.row_bytes < _LARGE
        values: Batch = {
            form.name: Collected(len(rows)) if small and form.plain else form.empty(len(rows)) for form in forms
        }
        values |= {f"{form.name}_mask": np.zeros(len(rows), np.bool_) for form in forms if form.nullable}
        # Rows with their places in one number: sorting those is quicker than asking for the order of rows.
        bits = len(rows).bit_length()
        both = (rows << bits) | np.arange(len(rows))
        both.sort()
        ascending, places = both >> bits, both & ((1 << bits) - 1)
        shards = self.opened.shard_of(ascending)
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(shards)) + 1) if len(rows) else ():
            first, stop = int(run[0]), int(run[-1]) + 1
            shard = int(shards[first])
            within = self.opened.within(ascending[first:stop], shard)
            self._decode_shard(shard, forms, places[first:stop], within, values)
        return {name: each.array() if isinstance(each, Collected) else each for name, each in values.items()}

    def _decode_shard(self, shard: int, forms: Sequence[Form], places: Ints, rows: Ints, values: Batch) -> None:
        try:
            forms = [form for form in forms if not self._taken(shard, form, places, rows, values)]
            if not forms:
                return
            table = self.opened.read(shard, [form.name for form in forms], rows)
            for form in forms:
                first = 0
                for cells in table.column(form.name).chunks:
                    here = places[first : first + len(cells)]
                    if isinstance(values[form.name], Collected):
                        values[form.name].put(here, cells)
                    else:
                        form.put(values[form.name], here, cells)
                    if form.nullable:
                        values[f"{form.name}_mask"][here] = cells.is_valid().to_numpy(zero_copy_only=False)
                    first += len(cells)
        except Exception as error:
            if not self._tolerant or not is_damage(error):
                raise
            self._salvage(shard, forms, places, rows, values, error)

    def _taken(self, shard: int, form: Form, places: Ints, rows: Ints, values: Batch) -> bool:
        """Take bytes from where they lie, if that is possible: large ones are copied once instead of twice."""
        if not form.bytes or form.nullable or self.opened.row_bytes < _LARGE:
            return False
        cells = self.opened.verbatim(shard, form.name, rows)
        if cells is None:
            return False
        column = values[form.name]
        for place, cell in zip(places.tolist(), cells, strict=True):
            column[place] = cell if form.pictures else cell.tobytes()
        return True

    def _salvage(
        self, shard: int, forms: Sequence[Form], places: Ints, rows: Ints, values: Batch, error: Exception
    ) -> None:
        """Read what can be read: halves, until bad rows stand alone."""
        if len(rows) == 1 or self._fails_alike(shard, forms, rows, error):
            harm = Harm.of(error, column="", file=self.opened.file(shard))
            for row in self.opened.beyond(rows, shard).tolist():
                self.opened.harms[row] = [harm]
            return
        middle = len(rows) // 2
        self._decode_shard(shard, forms, places[:middle], rows[:middle], values)
        self._decode_shard(shard, forms, places[middle:], rows[middle:], values)

    def _fails_alike(self, shard: int, forms: Sequence[Form], rows: Ints, error: Exception) -> bool:
        """Whether the shard as a whole cannot be read: then no message depends on the row."""
        for row in (rows[:1], rows[-1:]):
            try:
                self.opened.read(shard, [form.name for form in forms], row)
            except Exception as other:
                if not is_damage(other):
                    raise
                if str(other) != str(error):
                    return False
            else:
                return False
        return True


def _cut(values: Any, inside: slice) -> Any:
    """A batch's part of a portion's column."""
    if isinstance(values, pa.Array):
        return values[inside].to_pylist()
    return values[inside].tolist() if values.dtype == np.object_ else values[inside]


_Begun = list["Future[Any] | None"]
"""A batch's pictures on their way; None for a null cell."""


class RowPictures:
    """Decodes the images of samples; belongs to one pass.

    Args:
        options: Size, layout and threads.
        processes: Processes of this machine that decode at the same time.
    """

    def __init__(self, options: FrameOptions, *, processes: int = 1) -> None:
        self._options = options
        self._threads = options.threads or max(1, cores() // processes)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, cells: Sequence[Any], column: ColumnType, /) -> _Begun:
        """Have the pictures of one column of a batch decoded, as its type says."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="seqlake-pictures")
        return [None if cell is None else self._pool.submit(self._decoded, cell, column) for cell in cells]

    def take(self, begun: _Begun, /) -> tuple[Any, dict[int, Exception]]:
        """The pictures of a batch, and what is wrong with those that cannot be decoded, by place.

        Returns:
            With a size, uint8 [B, height, width, 3] with zeros where there is none; else a list of arrays.
        """
        images: list[Any] = []
        failed: dict[int, Exception] = {}
        for place, future in enumerate(begun):
            try:
                images.append(None if future is None else future.result())
            except (ValueError, OSError) as error:  # DecodeError is a ValueError
                failed[place] = error
                images.append(None)
        if self._options.size is None or any(isinstance(one, list) for one in images):
            return images, failed
        height, width = self._options.size
        shape = (3, height, width) if self._options.layout == "TCHW" else (height, width, 3)
        pictures = np.zeros((len(images), *shape), np.uint8)
        for place, one in enumerate(images):
            if one is not None and (one.shape != shape or one.dtype != np.uint8):
                failed[place] = SchemaMismatchError(
                    f"expected a picture of 8 bits, uint8 {list(shape)}, found {one.dtype} {list(one.shape)}.",
                    hint="frames(size=) is for pictures of 8 bits with three colours: leave size out.",
                )
            elif one is not None:
                pictures[place] = one
        return pictures, failed

    def close(self) -> None:
        """End the threads; pictures on their way are forgotten."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _decoded(self, cell: Any, column: ColumnType) -> Any:
        if isinstance(cell, list):
            return [None if one is None else self._decoded(one, column) for one in cell]
        picture: NDArray[Any] = image.decode(cell, size=self._options.size, column=column)
        return picture.transpose(2, 0, 1) if self._options.layout == "TCHW" else picture
