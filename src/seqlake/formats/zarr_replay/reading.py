"""Reads episodes of a replay buffer: whole cells, or the steps of a window with only the chunks that hold them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, ValidationError
from seqlake.files.limits import refuse_more_than_memory
from seqlake.media import encode_image
from seqlake.protocols import Flat, Ints
from seqlake.shards.scanned import ScannedReader
from seqlake.spec.schema import ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from seqlake.formats._zarr.grid import GridMetadata
    from seqlake.formats._zarr.reading import GridArray
    from seqlake.formats.zarr_replay.columns import ReplayColumn
    from seqlake.formats.zarr_replay.layout import ReplayPlace

_PICTURES_AT_ONCE = 32 << 20  # bytes of pixels in memory beside what was made of them


class ReplayReader(ScannedReader):
    """Some episodes that follow each other.

    Args:
        types: The logical Arrow schema.
        place: How the arrays are reached.
        metadata: Of the arrays that columns are read from.
        columns: Name -> how it is read, of columns of steps.
        known: [episodes] the other columns.
        starts: [episodes] the first step of each.
        lengths: [episodes] T.
        pictures: How pictures are encoded.
    """

    def __init__(
        self,
        types: pa.Schema,
        place: ReplayPlace,
        metadata: Mapping[str, GridMetadata],
        columns: Mapping[str, ReplayColumn],
        known: pa.Table,
        starts: Ints,
        lengths: Ints,
        pictures: str,
        /,
    ) -> None:
        per_step = sum(metadata[one.source].row_bytes for one in columns.values())
        super().__init__(types, len(lengths), location=place.location, sizes=lengths * per_step)
        self._place = place
        self._metadata = metadata
        self._columns = columns
        self._known = known
        self._starts = starts
        self._lengths = lengths
        self._pictures = pictures

    @cached_property
    def _arrays(self) -> dict[str, GridArray]:
        return self._place.arrays(self._metadata)

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column of steps; None for others."""
        return self._lengths.copy() if column in self._columns else None

    def flat(self, column: str, /) -> Flat | None:
        """Where the steps of a signal lie, where one chunk holds those of all rows, stored as they are."""
        self.type_of(column)
        one = self._columns.get(column)
        if one is None or one.role != "signal" or not self.count:
            return None
        array = self._arrays[one.source]
        first, stop = int(self._starts[0]), int(self._starts[-1] + self._lengths[-1])
        lying = array.lying(first, stop)
        if lying is None:
            return None
        blob, place = lying
        dtype = np.dtype(np.uint8) if array.dtype.kind == "b" else array.dtype
        width = array.metadata.row_bytes
        return Flat(
            blob=blob,
            start=place + (self._starts - first) * width,
            steps=self._lengths.copy(),
            stride=width,
            stored=dtype,
            dtype=dtype,
            shape=one.shape,
        )

    def slice(self, column: str, row: int, start: int, stop: int, /) -> NDArray[Any]:
        """Steps `start` to before `stop` of one row: [steps, ...] numbers, or [steps] encoded pictures.

        Only the chunks that hold them are read.

        Raises:
            SchemaMismatchError: No column of steps.
            IndexError: Steps that are not there.
        """
        self.type_of(column)
        one, length = self._columns[column], int(self._lengths[row])
        if not 0 <= start <= stop <= length:
            raise IndexError(f"Row {row} has {length} steps; expected a part of them, found {start} to {stop}.")
        first = int(self._starts[row])
        if one.role == "picture":
            cells = np.empty(stop - start, object)
            cells[:] = list(self._encoded(one, first + start, first + stop))
            return cells
        return self._numbers(one, first + start, first + stop)

    def arrays(self, schema: pa.Schema, rows: Ints, /) -> list[pa.Array]:
        """The cells of some episodes; CorruptFileError for a chunk that cannot be decoded."""
        return [self._cells(field, rows) for field in schema]

    def _cells(self, field: pa.Field, rows: Ints) -> pa.Array:
        one = self._columns.get(field.name)
        if one is None:
            cells = self._known.column(field.name).take(pa.array(rows)).combine_chunks()
            return cells.chunk(0) if isinstance(cells, pa.ChunkedArray) else cells
        spans = [(int(self._starts[row]), int(self._starts[row] + self._lengths[row])) for row in rows.tolist()]
        offsets = np.concatenate([[0], np.cumsum(self._lengths[rows])])
        if offsets[-1] >= 1 << 31:
            raise CorruptFileError(f"{self.location}: {offsets[-1]} steps of {field.name!r} are too many for one cell.")
        ends = pa.array(offsets, pa.int32())
        if one.role == "picture":
            pictures = pa.array([cell for span in spans for cell in self._encoded(one, *span)], pa.binary())
            if isinstance(pictures, pa.ChunkedArray):
                raise CorruptFileError(
                    f"{self.location}: the pictures of an episode of {field.name!r} are above 2 GiB.",
                    hint="Use pictures='png', or images='video' of sl.convert on shorter episodes.",
                )
            return pa.ListArray.from_arrays(ends, pictures, type=field.type)
        parts = [self._numbers(one, *span) for span in spans]
        values = pa.array(np.concatenate([part.reshape(-1) for part in parts]))
        if not one.shape:
            return pa.ListArray.from_arrays(ends, values, type=field.type)
        steps = pa.FixedSizeListArray.from_arrays(values, type=field.type.value_type)
        return pa.ListArray.from_arrays(ends, steps, type=field.type)

    def _numbers(self, one: ReplayColumn, start: int, stop: int) -> NDArray[Any]:
        array = self._arrays[one.source]
        refuse_more_than_memory((stop - start) * array.metadata.row_bytes, f"{self.location}/{one.source}")
        values = array.rows(start, stop)
        return values.view(np.uint8) if values.dtype.kind == "b" else values

    def _encoded(self, one: ReplayColumn, start: int, stop: int) -> Iterator[bytes]:
        """Pictures, read a few at a time."""
        array = self._arrays[one.source]
        chunk = array.metadata.chunks[0]
        count = max(1, _PICTURES_AT_ONCE // (chunk * array.metadata.row_bytes)) * chunk
        while start < stop:
            until = min(stop, (start // count + 1) * count)
            for step, pixels in enumerate(array.rows(start, until), start):
                yield encoded(self._exact(one, pixels, step), self._pictures)
            start = until

    def _exact(self, one: ReplayColumn, pixels: NDArray[Any], step: int) -> NDArray[Any]:
        if not one.whole:
            return pixels
        with np.errstate(invalid="ignore"):
            narrow = pixels.astype(np.uint8)
        if not np.array_equal(narrow, pixels):
            raise ValidationError(
                f"{self.location}/{one.source}: step {step} holds other numbers than whole ones from 0 to 255.",
                hint="Read the array as a signal: map={'img': {'source': 'data/img', 'type': 'trajectory'}}.",
            )
        return narrow


def encoded(pixels: NDArray[Any], form: str, /) -> bytes:
    """One picture without loss.

    Args:
        pixels: [height, width], or [height, width, 1 or 3]: uint8 or uint16.
        form: `ppm`: the pixels behind a short header (grey as PGM); `png`: smaller, and slower.
    """
    shown_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    if form == "png" and (shown_grey or pixels.dtype == np.uint8):
        return encode_image(pixels.reshape(pixels.shape[:2]) if shown_grey else pixels)
    kind, largest = b"P5" if shown_grey else b"P6", 255 if pixels.dtype == np.uint8 else 65535
    head = b"%s\n%d %d\n%d\n" % (kind, pixels.shape[1], pixels.shape[0], largest)
    return head + np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">")).tobytes()


def known_rows(names: list[str], columns: Mapping[str, NDArray[Any]], types: pa.Schema, /) -> pa.Table:
    """[episodes] ids and what is known of each episode beside its steps.

    Args:
        names: Ids.
        columns: Name -> [episodes, ...] values.
        types: The logical Arrow schema of all columns.
    """
    made_of: dict[str, pa.Array] = {ID: pa.array(names, pa.string())}
    for name, values in columns.items():
        kind = types.field(name).type
        if values.dtype.kind in "SU":
            made_of[name] = pa.array([text_of(one) for one in values.tolist()], kind)
        elif values.ndim == 1:
            made_of[name] = pa.array(values).cast(kind)
        else:
            flat = values.reshape(len(values), -1)
            edges = pa.array(np.arange(len(values) + 1) * flat.shape[1], pa.int32())
            made_of[name] = pa.ListArray.from_arrays(edges, pa.array(flat.reshape(-1)).cast(kind.value_type), type=kind)
    kept = [field for field in types if field.name in made_of]
    return pa.table([made_of[field.name] for field in kept], schema=pa.schema(kept))


def text_of(value: str | bytes, /) -> str:
    """A text of an array, whether it holds letters or bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
