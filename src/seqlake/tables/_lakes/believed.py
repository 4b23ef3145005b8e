"""A remote shard of our own whose sidecar is believed: a cell of a signal costs one request, and no footer is read.

The name of such a file occurs once, its bytes never change, and the first answer tells its size; what the sidecar knows
of it is what its own index says. On local disks, where nothing is saved by it, the file itself is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.protocols import Flat
from seqlake.shards.cells import numpy_type
from seqlake.shards.files import ParquetShard
from seqlake.shards.parquet import index as offsets
from seqlake.shards.parquet.flatness import physical
from seqlake.shards.parquet.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Blob, Ints
    from seqlake.spec.schema import Column
    from seqlake.tables._lakes.sidecar import Sidecar
    from seqlake.versions.state import TableFile


@dataclass(frozen=True, kw_only=True)
class Believed(ParquetShard):
    """A Parquet file that a sidecar knows; in another process it is asked like any other.

    Attributes:
        file: As the lake lists it.
        sidecar: What may know it.
        columns: The version's columns by their names in the file.
    """

    file: TableFile
    sidecar: Sidecar
    columns: Mapping[str, Column]

    def open(self) -> ParquetReader:
        """A reader; the sidecar is asked when a column is first."""
        return BelievedReader(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _bare, (self.blob, self.rows, self.nbytes, self.key, self.index)


def believed(shard: ParquetShard, file: TableFile, sidecar: Sidecar, columns: Mapping[str, Column], /) -> ParquetShard:
    """The shard with a sidecar that is believed."""
    return Believed(
        blob=shard.blob,
        rows=shard.rows,
        nbytes=shard.nbytes,
        key=shard.key,
        index=shard.index,
        file=file,
        sidecar=sidecar,
        columns=columns,
    )


def _bare(blob: Blob, rows: int, nbytes: int, key: str, index: bytes | None) -> ParquetShard:
    return ParquetShard(blob=blob, rows=rows, nbytes=nbytes, key=key, index=index)


class BelievedReader(ParquetReader):
    """One open `Believed`; what the sidecar does not tell is read from the file."""

    def __init__(self, shard: Believed, /) -> None:
        super().__init__(shard.blob, index=shard.index)
        self._shard = shard
        self._told: offsets.OffsetIndex | None = None

    def holds(self, column: str, /) -> bool:
        """Whether the file has a column, as far as the sidecar knows; else its footer says so."""
        return column in self._known_offsets().columns

    def flat(self, column: str, /) -> Flat | None:
        """Where the steps of each row lie."""
        if column not in self._flats:
            flat = self._from_sidecar(column)
            if flat is None:
                return super().flat(column)
            self._flats[column] = flat
        return self._flats[column]

    def lengths(self, column: str, /) -> Ints | None:
        """[rows] T of a column, -1 null; None where it is not indexed."""
        lengths = self._known_offsets().lengths(column)
        return super().lengths(column) if lengths is None else lengths

    def _known_offsets(self) -> offsets.OffsetIndex:
        if self._told is None:
            file = self._shard.file
            known = self._shard.sidecar.find([file]).get(file.name)
            data = b"" if known is None else known.offsets(file.name)
            try:
                self._told = offsets.decode(data, nbytes=file.nbytes) if len(data) else offsets.OffsetIndex(columns={})
            except CorruptFileError:
                self._told = offsets.OffsetIndex(columns={})  # derived: the file is asked
        return self._told

    def _from_sidecar(self, name: str) -> Flat | None:
        entry, column = self._known_offsets().columns.get(name), self._shard.columns.get(name)
        if entry is None or column is None or column.value_type is None or entry.steps.size != self._shard.rows:
            return None
        dtype = numpy_type(column.value_type)
        if not entry.flat or dtype is None or physical(dtype)[1] != np.dtype(entry.stored):
            return None
        if (column.nested and column.dim not in {None, entry.dim}) or (not column.nested and entry.dim != 1):
            return None
        start, steps = entry.starts(raw=column.raw), entry.steps.astype(np.int64)
        stride = entry.dim * np.dtype(entry.stored).itemsize
        held = steps > 0
        if held.any() and (start[held].min() < 0 or (start[held] + steps[held] * stride).max() > self._shard.nbytes):
            return None
        return Flat(
            blob=self.blob,
            start=start,
            steps=steps,
            stride=stride,
            stored=np.dtype(entry.stored),
            dtype=dtype.newbyteorder("="),
            shape=(entry.dim,) if column.nested else (),
        )
