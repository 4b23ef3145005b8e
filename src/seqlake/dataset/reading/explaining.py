"""What an answer would read: which shards, which columns, how many bytes; nothing but footers is opened for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.shards.files import ParquetShard
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.protocols import Readable, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """What reading some rows and columns costs.

    Attributes:
        columns: The columns that are read.
        rows: Rows that are looked at.
        shards: Shards of the version.
        opened: Shards whose files are opened.
        nbytes: Bytes of these columns in those files, as they lie there; other rows of the same files count too.
        total: Bytes of all files of the version.
        ruled_out: Parts of the condition that rule shards out, in words.

    Example:
        ```python
        print(ds.explain("SELECT avg(reward) FROM dataset WHERE split = 'train'"))
        ```
    """

    columns: Sequence[str]
    rows: int
    shards: int
    opened: int
    nbytes: int
    total: int
    ruled_out: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "columns": list(self.columns),
            "rows": self.rows,
            "shards": self.shards,
            "files_opened": self.opened,
            "bytes_read": self.nbytes,
            "bytes_total": self.total,
            "ruled_out_by": list(self.ruled_out),
        }

    def __str__(self) -> str:
        lines = [
            f"opens {self.opened} of {self.shards} files, reads {self.nbytes:,} of {self.total:,} bytes",
            f"  rows     {self.rows}",
            f"  columns  {', '.join(self.columns)}",
        ]
        if self.ruled_out:
            lines.append(f"  ruled out by  {' and '.join(self.ruled_out)}")
        return "\n".join(lines)


def explain(
    source: Readable, shards: Sequence[Shard], columns: Sequence[str], /, *, ruled_out: Sequence[str] = ()
) -> Explained:
    """What reading these columns of these shards costs.

    Args:
        source: The version.
        shards: Those that hold rows to look at, cut down to them.
        columns: What is read.
        ruled_out: Why the other shards are not among them.
    """
    read = [_bytes(shard, columns) for shard in shards]
    every = source.shards()
    return Explained(
        columns=tuple(columns),
        rows=sum(shard.rows for shard in shards),
        shards=len(every),
        opened=sum(nbytes is not None for nbytes in read),
        nbytes=sum(nbytes or 0 for nbytes in read),
        total=sum(shard.nbytes for shard in every),
        ruled_out=tuple(ruled_out),
    )


def _bytes(shard: Shard, columns: Sequence[str]) -> int | None:
    """Bytes of these columns in the shard's own file; None where it is not opened at all."""
    if isinstance(shard, Rows):
        return _bytes(shard.shard, columns)
    if isinstance(shard, Columns):
        places = [shard.mapping.get(name, Stored(name)) for name in columns]
        stored = [place.name for place in places if not isinstance(place, Constant)]
        return _bytes(shard.shard, stored) if stored else None
    if not isinstance(shard, ParquetShard):
        return shard.nbytes  # another format's: nothing is known of its columns
    footer = read_footer(shard.blob)
    leaves = [leaf for name in columns for leaf in footer.leaves.get(name, ())]
    groups = range(footer.metadata.num_row_groups)
    sizes = [footer.metadata.row_group(g).column(leaf).total_compressed_size for g in groups for leaf in leaves]
    return int(sum(sizes))
