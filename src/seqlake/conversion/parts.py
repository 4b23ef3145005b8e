"""One part of a conversion: rows of a source read, put into the schema's types, and handed to a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.dataset.writing import conforming
from seqlake.errors import DecodeError, SchemaMismatchError, SeqlakeError, ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.conversion.planning import PartTask, RowRange
    from seqlake.protocols import ShardReader, Sink
    from seqlake.spec.schema import Column, Schema


def convert_part(task: PartTask, /, *, sink: Sink, schema: Schema) -> object:
    """Convert one part; what an executor runs.

    Args:
        task: Which rows.
        sink: Where they go; a part that is run again replaces what it wrote.
        schema: What is handed to the sink; columns of the source that it lacks are not read.

    Returns:
        The sink's receipt.

    Raises:
        SeqlakeError: Whatever went wrong, in its own class where it is one of ours; the message names the shard.
    """
    place = _Place()
    try:
        return sink.write(task.part, _batches(task, schema, place), root=task.root)
    except SeqlakeError as error:
        error.message = f"{place.text(task)}: {error.message}"
        error.args = (error.message,)
        raise
    except Exception as error:
        raise SeqlakeError(f"{place.text(task)}: {type(error).__name__}: {error}") from error


class _Place:
    """Where the work is, for messages: a sink asks for batches while it writes."""

    def __init__(self) -> None:
        self.piece: RowRange | None = None

    def text(self, task: PartTask) -> str:
        piece = self.piece or task.pieces[0]
        return f"Part {task.part}, rows {piece.start} to {piece.stop - 1} of the source shard {piece.shard.key!r}"


def _batches(task: PartTask, schema: Schema, place: _Place) -> Iterator[pa.RecordBatch]:
    for piece in task.pieces:
        place.piece = piece
        whole = piece.start == 0 and piece.stop == piece.shard.rows
        reader = piece.shard.open()
        try:
            rows = None if whole else np.arange(piece.start, piece.stop, dtype=np.int64)
            for batch in reader.batches(list(schema.names), rows=rows):
                yield conformed(batch, schema)
        except (SchemaMismatchError, DecodeError) as error:
            _name_sequence(error, reader, piece, schema)
            raise
        finally:
            reader.close()


def _name_sequence(error: SeqlakeError, reader: ShardReader, piece: RowRange, schema: Schema) -> None:
    """Put the first sequence that cannot be read before the message: asked one by one, since it happens once."""
    if schema.id is None:
        return
    for row in range(piece.start, piece.stop):
        alone = np.array([row], np.int64)
        try:
            list(reader.batches(list(schema.names), rows=alone))
        except SeqlakeError:
            try:
                [batch] = reader.batches([schema.id], rows=alone)
            except SeqlakeError:
                return
            error.message = f"sequence {batch.column(0)[0].as_py()!r}: {error.message}"
            return


def conformed(batch: pa.RecordBatch, schema: Schema, /) -> pa.RecordBatch:
    """The batch in the schema's logical types.

    Raises:
        ValidationError: A cell that does not fit; the message names its column and its sequence.
    """
    arrays = []
    for name in schema.names:
        try:
            arrays.append(_fitted(batch.column(name), schema[name]))
        except ValidationError as error:
            raise _misfit(batch, schema[name], schema.id, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)


def _fitted(array: pa.Array, column: Column) -> pa.Array:
    if not conforming.fits_column(array.type, column):
        raise SchemaMismatchError(f"Column {column.name!r}: expected {column.logical}, found {array.type}.")
    return conforming.conform_column(array, column, column.logical)


def _misfit(batch: pa.RecordBatch, column: Column, key: str | None, error: ValidationError) -> ValidationError:
    """Which row it was: asked one by one, since it happens once."""
    for row in range(batch.num_rows):
        try:
            _fitted(batch.column(column.name).slice(row, 1), column)
        except ValidationError as alone:
            name = f"sequence {batch.column(key)[row].as_py()!r}" if key in batch.schema.names else f"row {row}"
            return ValidationError(
                f"{name}: {alone.message}", hint="Mend it in the source, or leave the column out with select()."
            )
    return error
