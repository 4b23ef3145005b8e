"""One Parquet file as a shard: a small description that opens itself in any process."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from seqlake.shards import parquet
from seqlake.shards.columns import Columns
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Shard
    from seqlake.shards.parquet.reader import ParquetReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetShard:
    """A Parquet file, described; it shows physical names and types.

    Attributes:
        blob: The file.
        rows: Its rows.
        nbytes: Its bytes.
        key: `<name>#<hash>`; other bytes, other key.
        index: An offset index kept outside the file, for a file that has none of its own.
        verify: Whether each page of a flat column is compared before it is first handed out.
    """

    blob: Blob
    rows: int
    nbytes: int
    key: str
    index: bytes | None = field(default=None, repr=False)
    verify: bool = False

    def open(self) -> ParquetReader:
        """A reader; the file is opened when it is first asked."""
        return parquet.open(self.blob, index=self.index, verify=self.verify)


def parquet_shard(blob: Blob, /, *, index: bytes | None = None, rows: int | None = None) -> ParquetShard:
    """Describe a Parquet file; reads its footer where its rows are not known.

    Args:
        blob: The file.
        index: An offset index kept outside the file.
        rows: As its footer says.

    Raises:
        CorruptFileError: It is not Parquet, or is damaged.

    Example:
        >>> parquet_shard(open_blob("part-0.parquet")).rows
        64
    """
    name = blob.location.replace("\\", "/").rpartition("/")[2]
    told = blake2b(f"{blob.location}\0{blob.token}".encode(), digest_size=8).hexdigest()
    rows = read_footer(blob).rows if rows is None else rows
    return ParquetShard(blob=blob, rows=rows, nbytes=blob.size, key=f"{name}#{told}", index=index)


def innermost(shard: Shard, /) -> Shard:
    """What rows and columns are taken of."""
    while isinstance(shard, (Rows, Columns)):
        shard = shard.shard
    return shard
