"""What lies under rows and columns of a shard: a Parquet file, or files of another format that can be copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import Copyable, ability
from seqlake.files.blobs import LocalBlob, MemoryBlob
from seqlake.protocols import Flat
from seqlake.shards.columns import Beside, Columns, Stored
from seqlake.shards.files import ParquetShard, innermost
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.protocols import Blob, Ints, Shard, ShardReader
    from seqlake.shards.parquet.footer import Footer


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(ParquetShard):
    """A file whose footer was read already."""

    footer: Footer

    def open(self) -> ParquetReader:
        """Open it without reading its footer; see `ParquetShard.open`."""
        return ParquetReader(self.blob, index=self.index, footer=self.footer, verify=self.verify)


@dataclass(frozen=True, slots=True, eq=False)
class InSteps:
    """A shard some columns of which are decoded in memory: there they are flat.

    Args:
        shard: The shard.
        arrays: Of these columns [all steps, ...] and [rows] how many are each row's, -1 for null.
        others: All other columns that are wanted; None to read them where they lie.
    """

    shard: Shard
    arrays: Mapping[str, tuple[NDArray[Any], Ints]]
    others: pa.Table | None

    @property
    def key(self) -> str:
        """That of the shard itself."""
        return self.shard.key

    @property
    def rows(self) -> int:
        """As many as the shard has."""
        return self.shard.rows

    @property
    def nbytes(self) -> int:
        """Of the shard, as it is stored."""
        return self.shard.nbytes

    def open(self) -> InStepsReader:
        """A reader; the shard itself is opened when something else of it is wanted."""
        return InStepsReader(self)


class InStepsReader:
    """Reads one open `InSteps`."""

    def __init__(self, copy: InSteps, /) -> None:
        self._copy = copy
        self._reader: ShardReader | None = None

    @property
    def inner(self) -> ShardReader:
        """A reader of the shard itself."""
        self._reader = self._reader or self._copy.shard.open()
        return self._reader

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the shard can."""
        return ability(self.inner, kind)

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches of columns that were not decoded."""
        others = self._copy.others
        if others is None:
            return self.inner.batches(columns, rows=rows)
        table = others.select(columns)
        return iter((table if rows is None else table.take(rows)).to_batches())

    def flat(self, column: str, /) -> Flat | None:
        """The column without decoding."""
        if column not in self._copy.arrays:
            return self.inner.flat(column)
        values, steps = self._copy.arrays[column]
        stride = prod(values.shape[1:]) * values.itemsize
        counts = np.maximum(steps, 0)
        return Flat(
            blob=MemoryBlob(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data),
            start=(np.cumsum(counts) - counts) * stride,
            steps=steps,
            stride=stride,
            stored=values.dtype,
            dtype=values.dtype,
            shape=values.shape[1:],
        )

    def close(self) -> None:
        """Close the shard, if it was opened."""
        if self._reader is not None:
            self._reader.close()


def copyable(shard: Shard, /) -> Copyable | None:
    """The file under rows and columns, if a copy of it as it is read serves better than the file itself."""
    file = ability(innermost(shard), Copyable)
    return None if file is None or not file.one_file or file.in_place else file


def fits_in_memory(shard: Shard, /) -> bool:
    """Whether it is read better from a copy in memory: it is one file that is remote or compressed."""
    return is_remote(shard) or copyable(shard) is not None


def needs_copy(shard: Shard, /) -> bool:
    """Whether single rows are read better from a copy on disk: the same, and those that must be written anew."""
    file = ability(innermost(shard), Copyable)
    return is_remote(shard) or (file is not None and not file.in_place)


def beneath(shard: Shard, /) -> ParquetShard | None:
    """The Parquet file under rows and columns; None where it is no Parquet."""
    file = innermost(shard)
    return file if isinstance(file, ParquetShard) else None


def is_remote(shard: Shard, /) -> bool:
    """Whether it is a Parquet file that can only be read by range; nothing is read to find out."""
    base = beneath(shard)
    return base is not None and _by_range(base.blob)


def over(shard: Shard, blob: Blob, /, *, kind: Callable[..., ParquetShard] = ParquetShard) -> Shard:
    """The same rows and columns of another copy of the file.

    Args:
        shard: Rows and columns of a Parquet file, or of a `Copyable`.
        blob: The copy.
        kind: How a Parquet file is opened.
    """
    if isinstance(shard, (Rows, Columns)):
        return replace(shard, shard=over(shard.shard, blob, kind=kind))
    if not isinstance(shard, ParquetShard):
        file = ability(shard, Copyable)
        assert file is not None  # nobody else asks
        return file.over(blob)
    facts = {"rows": shard.rows, "nbytes": shard.nbytes, "key": shard.key, "index": shard.index, "verify": shard.verify}
    return kind(blob=blob, **facts)


def _by_range(blob: Blob) -> bool:
    return not isinstance(blob, LocalBlob) and blob.view() is None


def beneath_names(shard: Shard, names: list[str], /) -> tuple[list[str], Ints | None, bool]:
    """The physical names of columns, the rows that are kept, and whether some column lies in another shard."""
    rows: Ints | None = None
    aside = False
    while isinstance(shard, (Rows, Columns)):
        if isinstance(shard, Rows):
            keep = np.asarray(shard.keep, np.int64)
            rows = keep if rows is None else keep[rows]
        else:
            sources = [shard.mapping.get(name, Stored(name)) for name in names]
            aside = aside or any(isinstance(source, Beside) for source in sources)
            names = [source.name for source in sources if isinstance(source, Stored)]
        shard = shard.shard
    return list(dict.fromkeys(names)), rows, aside
