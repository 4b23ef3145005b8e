"""Samples as sequences: one each with an id, or those of a sequence put together step by step."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.abilities import Checked, HasStorage, ability
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.shards.asked import rows_asked
from seqlake.spec.column_types import Image
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard, ShardReader

OPTIONS = frozenset({"sequence_id", "steps"})


def as_sequences(
    source: Readable, /, *, sequence_id: str | bool | None = None, steps: str | bool | None = None
) -> Readable:
    """Rows that are sequences, from rows that may be samples.

    Args:
        source: Sequences are given back as they are.
        sequence_id: The column that says which sequence a sample belongs to; True numbers the samples, and each
            becomes a sequence.
        steps: The column that orders the samples of a sequence, True for the order of the source; None: every sample
            is a sequence of its own.

    Raises:
        SchemaMismatchError: No such column, or one that cannot be an id.
        ValidationError: Ids that are missing or, without `steps`, not unique; two samples of one step.

    Example:
        ```python
        sl.convert("data/mds", "data/episodes", sequence_id="episode", steps="step")
        ```
    """
    if source.schema.id is not None:
        if sequence_id is not None or steps is not None:
            raise TypeError("The rows of this source are sequences already: leave sequence_id and steps out.")
        return source
    if steps is not None and not isinstance(sequence_id, str):
        raise TypeError("`steps` orders the samples of a sequence: say with sequence_id= which column names it.")
    if not sequence_id:
        return source
    if not isinstance(sequence_id, str):
        return NamedSamples(source)
    ids = read_ids(source, sequence_id)
    if steps is None:
        twice = [one for one, count in Counter(ids.to_pylist()).items() if count > 1]
        if twice:
            raise ValidationError(
                f"{len(twice)} values of {sequence_id!r} occur more than once, the first is {twice[0]!r}.",
                hint="If samples are time steps, say which column orders them: steps=... (or steps=True).",
            )
        return NamedSamples(source, key=sequence_id)
    from seqlake.conversion.grouping import grouped

    return grouped(source, ids, key=sequence_id, steps=None if steps is True else str(steps))


def read_ids(source: Readable, column: str, /) -> pa.ChunkedArray:
    """[rows] the ids of all samples as texts.

    Raises:
        SchemaMismatchError: No such column, or one of another kind than text or integers.
        ValidationError: One that is null or empty.
    """
    kind = source.schema[column].arrow
    if not (is_text(kind) or pa.types.is_integer(kind)):
        raise SchemaMismatchError(f"An id is a text or an integer; {column!r} is {kind}.")
    if ID in source.schema and column != ID:
        raise SchemaMismatchError(f"The source has a column {ID!r} beside {column!r}.", hint="Select the others.")
    ids = pa.chunked_array(list(_texts(source, column)), pa.string())
    wrong = [row for row, one in enumerate(ids.to_pylist()) if not one]
    if wrong:
        raise ValidationError(f"{len(wrong)} samples have no {column!r}, the first is sample {wrong[0]}.")
    return ids


def _texts(source: Readable, column: str) -> Iterator[pa.Array]:
    for shard in source.shards():
        reader = shard.open()
        try:
            for batch in reader.batches([column]):
                yield batch.column(0).cast(pa.string())
        finally:
            reader.close()


def as_frames(column: Column, /) -> Column:
    """A sample's own image is one frame: in a sequence, bytes of images are a list, one a step."""
    if not is_image(column):
        return column
    assert column.type is not None
    image = Image(frames="bytes", **{key: field for key, field in column.type.fields.items() if key != "frames"})
    return Column(column.name, pa.list_(pa.binary()), image)


def is_image(column: Column, /) -> bool:
    """Whether a cell is the bytes of one image."""
    return is_binary(column.arrow) and column.type is not None and column.type.type == "image"


class NamedSamples:
    """Samples as sequences, one each; a `Readable`.

    Args:
        source: The samples.
        key: The column of their ids, which becomes `sequence_id`; None numbers them.
    """

    def __init__(self, source: Readable, /, *, key: str | None = None) -> None:
        self._source = source
        self._key = key

    @property
    def schema(self) -> Schema:
        """The source's columns behind `sequence_id`."""
        found = self._source.schema
        if self._key is None and ID in found:
            raise SchemaMismatchError(f"The source has a column {ID!r} already.", hint=f"Use it: sequence_id={ID!r}.")
        kept = {name: as_frames(found[name]) for name in found.names if name != self._key}
        metadata = Metadata(version=found.metadata.version, extra=found.metadata.extra)
        return Schema(kept, metadata=metadata)

    @property
    def root(self) -> str:
        """The source's."""
        return self._source.root

    @property
    def fingerprint(self) -> str:
        """Of the source and the way ids are made."""
        return hashlib.sha256(f"named {self._key} {self._source.fingerprint}".encode()).hexdigest()[:32]

    def shards(self) -> list[NamedShard]:
        """One a shard of the source."""
        types, made, first = self.schema.arrow, [], 0
        found = self._source.shards()
        width = len(str(sum(shard.rows for shard in found)))
        for shard in found:
            made.append(NamedShard(shard=shard, source_key=self._key, first=first, width=width, types=types))
            first += shard.rows
        return made

    def lengths(self, column: str, /) -> Ints:
        """The source's; an image is one frame."""
        if is_image(self._source.schema[column]):
            return np.ones(sum(shard.rows for shard in self._source.shards()), np.int64)
        return self._source.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: findings of its own, its storage options."""
        return ability(self._source, kind) if kind in {Checked, HasStorage} else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedShard:
    """One shard of samples with ids."""

    shard: Shard
    source_key: str | None
    first: int
    width: int
    types: pa.Schema

    @property
    def key(self) -> str:
        """Of the source's shard and the ids."""
        name, _, tail = self.shard.key.rpartition("#")
        state = f"{tail} {self.source_key} {self.first} {self.width}"
        return f"{name}#{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    @property
    def rows(self) -> int:
        """Samples."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """The source's."""
        return self.shard.nbytes

    def open(self) -> NamedReader:
        """A reader of this process."""
        return NamedReader(self, self.shard.open())


class NamedReader:
    """One open `NamedShard`."""

    def __init__(self, shard: NamedShard, reader: ShardReader, /) -> None:
        self._shard = shard
        self._reader = reader

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """As `ShardReader.batches`."""
        key = self._shard.source_key
        stored = [name for name in columns if name != ID]
        asked = [*stored, *([key] if ID in columns and key is not None else [])]
        numbers = rows_asked(rows, self._shard.rows)
        done = 0
        for batch in self._reader.batches(asked, rows=rows):
            arrays = {name: self._array(name, batch.column(name)) for name in stored}
            if ID in columns:
                here = numbers[done : done + batch.num_rows]
                arrays[ID] = batch.column(key).cast(pa.string()) if key is not None else self._numbered(here)
            done += batch.num_rows
            if not columns:
                yield batch
                continue
            schema = pa.schema([self._shard.types.field(name) for name in columns])
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)

    def _array(self, name: str, cells: pa.Array) -> pa.Array:
        kind = self._shard.types.field(name).type
        if cells.type == kind or not pa.types.is_binary(cells.type):
            return cells
        return pa.ListArray.from_arrays(pa.array(np.arange(len(cells) + 1), pa.int32()), cells).cast(kind)

    def _numbered(self, rows: Ints) -> pa.Array:
        shard = self._shard
        return pa.array([f"{shard.first + row:0{shard.width}d}" for row in rows.tolist()], pa.string())

    def flat(self, column: str, /) -> Flat | None:
        """As `ShardReader.flat`."""
        return None if column == ID else self._reader.flat(column)

    def close(self) -> None:
        """Close the source's reader."""
        self._reader.close()
