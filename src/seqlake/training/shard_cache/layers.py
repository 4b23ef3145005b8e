"""What lies under rows and columns of a shard: a Parquet file, or files of another format that can be copied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from seqlake.abilities import Copyable, ability
from seqlake.files.blobs import LocalBlob
from seqlake.shards.columns import Beside, Columns, Stored
from seqlake.shards.files import ParquetShard, innermost
from seqlake.shards.parquet.reader import ParquetReader
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from seqlake.protocols import Blob, Ints, Shard
    from seqlake.shards.parquet.footer import Footer


@dataclass(frozen=True, slots=True, kw_only=True)
class Known(ParquetShard):
    """A file whose footer was read already."""

    footer: Footer

    def open(self) -> ParquetReader:
        """Open it without reading its footer; see `ParquetShard.open`."""
        return ParquetReader(self.blob, index=self.index, footer=self.footer, verify=self.verify)


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
