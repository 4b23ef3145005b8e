"""What lies under rows and columns of a shard: a Parquet file, or files of another format that can be copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from seqlake.files.blobs import LocalBlob
from seqlake.shards.columns import Beside, Columns, Stored
from seqlake.shards.files import ParquetShard, innermost
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqlake.protocols import Blob, Ints, Shard
    from seqlake.shards.parquet.footer import Footer


class Copyable(Protocol):
    """A shard that is one file of another format, stored as it is read or compressed."""

    @property
    def one_file(self) -> bool:
        """False: it is several, and can only be read as it is."""

    @property
    def in_place(self) -> bool:
        """Whether it is read where it is: a file of this machine that is not compressed."""

    @property
    def nbytes(self) -> int:
        """Bytes of the file as it is read."""

    def packed(self) -> Blob:
        """The file as it is stored."""

    def unpacked(self, data: memoryview, /) -> memoryview:
        """The file as it is read, from all of its stored bytes.

        Raises:
            CorruptFileError: They are not what they should be.
        """

    def over(self, blob: Blob, /) -> Shard:
        """The same shard, read from this copy of the file as it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(ParquetShard):
    """A file whose footer was read already."""

    footer: Footer

    def open(self) -> ParquetReader:
        """See `ParquetShard.open`."""
        return ParquetReader(self.blob, index=self.index, footer=self.footer, verify=self.verify)


def copyable(shard: Shard, /) -> Copyable | None:
    """The file under rows and columns, if a copy of it as it is read serves better than the file itself."""
    inner = innermost(shard)
    if not getattr(inner, "one_file", False):
        return None
    found = cast("Copyable", inner)
    return None if found.in_place else found


def fits_in_memory(shard: Shard, /) -> bool:
    """Whether it is read better from a copy in memory: it is one file that is remote or compressed."""
    return is_remote(shard) or copyable(shard) is not None


def needs_copy(shard: Shard, /) -> bool:
    """Whether single rows are read better from a copy on disk: the same, and those that must be written anew."""
    return is_remote(shard) or not getattr(innermost(shard), "in_place", True)


def beneath(shard: Shard, /) -> ParquetShard | None:
    """The Parquet file under rows and columns; None where it is no Parquet."""
    found = innermost(shard)
    return found if isinstance(found, ParquetShard) else None


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
        return cast("Copyable", shard).over(blob)
    told = {"rows": shard.rows, "nbytes": shard.nbytes, "key": shard.key, "index": shard.index, "verify": shard.verify}
    return kind(blob=blob, **told)


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
