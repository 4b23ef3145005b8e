"""The oracle of the commit protocol: what must hold of a standalone table after a crash, at any moment.

It reads the bytes by itself (JSON, Arrow, Parquet through pyarrow) and knows the table's own code only where a
promise is about that code: that opening works, that it repairs, that it changes nothing. `docs/reference/commits.md`
lists the promises; each failure names the one that was broken.
"""

from seqlake.testing.oracle.promises import check, check_collected, check_left, check_repaired, open_for_writing
from seqlake.testing.oracle.reading import Disk, Expected, OracleError, ReadOnly, check_pinned, glob_ids, read_ids

__all__ = [
    "Disk",
    "Expected",
    "OracleError",
    "ReadOnly",
    "check",
    "check_collected",
    "check_left",
    "check_pinned",
    "check_repaired",
    "glob_ids",
    "open_for_writing",
    "read_ids",
]
