"""Samples as sequences, one each: named by a column, or numbered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from seqlake.abilities import Checked, HasStorage, SaysMapping, ability
from seqlake.errors import SchemaMismatchError
from seqlake.protocols import Mapped
from seqlake.shards.reading import rows_asked
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.column_types import Image
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import ID, Column, Schema, is_binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard


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


def mapping_through(source: Readable, renamed: Callable[[str], tuple[str | None, str]], /) -> list[Mapped]:
    """What became of each thing of a source whose columns became other ones.

    Args:
        source: Before.
        renamed: A column of it -> what it is now, and how it became that.
    """
    inner = ability(source, SaysMapping)
    before = [Mapped(source=name, column=name) for name in source.schema.names] if inner is None else inner.mapping()
    after = []
    for one in before:
        column, how = (None, "") if one.column is None else renamed(one.column)
        after.append(Mapped(source=one.source, column=column, how="; ".join(text for text in (one.how, how) if text)))
    return after


def named(source: Readable, /, *, key: str | None = None) -> NamedSamples:
    """Samples as sequences, one each.

    Args:
        source: The samples.
        key: The column of their ids, which becomes `sequence_id`; None numbers them.

    Raises:
        SchemaMismatchError: None, and there is a column `sequence_id`.
    """
    columns = source.schema
    if key is None and ID in columns:
        raise SchemaMismatchError(f"The source has a column {ID!r} already.", hint=f"Use it: sequence_id={ID!r}.")
    kept = {name: as_frames(columns[name]) for name in columns.names if name != key}
    schema = Schema(kept, metadata=Metadata(version=columns.metadata.version, extra=columns.metadata.extra))
    shards, parts, first = source.shards(), [], 0
    width = len(str(sum(shard.rows for shard in shards)))
    for shard in shards:
        name, _, tail = shard.key.rpartition("#")
        digest = hashlib.sha256(f"{tail} {key} {first} {width}".encode()).hexdigest()[:16]
        reader = partial(NamedReader, shard, schema.arrow, key, first, width)
        parts.append(ScannedShard(key=f"{name}#{digest}", rows=shard.rows, nbytes=shard.nbytes, reader=reader))
        first += shard.rows
    state = hashlib.sha256(f"named {key} {source.fingerprint}".encode()).hexdigest()[:32]
    return NamedSamples(root=source.root, schema=schema, parts=parts, state=state, source=source, key=key)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FromSamples(ScannedDataset):
    """Sequences made of samples: a `Readable`.

    Attributes:
        source: The samples.
    """

    source: Readable

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: findings of its own, its storage options."""
        if isinstance(self, kind):
            return self
        return ability(self.source, kind) if kind in {Checked, HasStorage} else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NamedSamples(FromSamples):
    """Each sample is a sequence.

    Attributes:
        key: The column of their ids; None where they are numbered.
    """

    key: str | None

    def mapping(self) -> Sequence[Mapped]:
        """What became of each column of the samples."""
        moved = mapping_through(self.source, lambda name: (ID if name == self.key else name, ""))
        return moved if self.key is not None else [Mapped(source="number of the row", column=ID), *moved]

    def lengths(self, column: str, /) -> Ints:
        """The source's; an image is one frame."""
        if is_image(self.source.schema[column]):
            return np.ones(sum(shard.rows for shard in self.parts), np.int64)
        return self.source.lengths(column)


class NamedReader(ScannedReader):
    """Samples with ids.

    Args:
        shard: The samples.
        types: The logical Arrow schema.
        key: The column of their ids; None numbers them.
        first: The number of the first.
        width: Digits of a number.
    """

    def __init__(self, shard: Shard, types: pa.Schema, key: str | None, first: int, width: int, /) -> None:
        super().__init__(types, shard.rows)
        self._key = key
        self._first = first
        self._width = width
        self._reader = shard.open()

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`: the columns asked for, in the source's own batches."""
        key = self._key
        stored = [name for name in columns if name != ID]
        asked = [*stored, *([key] if ID in columns and key is not None else [])]
        numbers = rows_asked(rows, self.count)
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
            schema = pa.schema([self.types.field(name) for name in columns])
            yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], schema=schema)

    def _array(self, name: str, cells: pa.Array) -> pa.Array:
        kind = self.types.field(name).type
        if cells.type == kind or not pa.types.is_binary(cells.type):
            return cells
        return pa.ListArray.from_arrays(pa.array(np.arange(len(cells) + 1), pa.int32()), cells).cast(kind)

    def _numbered(self, rows: Ints) -> pa.Array:
        return pa.array([f"{self._first + row:0{self._width}d}" for row in rows.tolist()], pa.string())

    def flat(self, column: str, /) -> Flat | None:
        """See `ShardReader.flat`; ids have none."""
        return None if column == ID else self._reader.flat(column)

    def close(self) -> None:
        """Close the source's reader."""
        self._reader.close()
