"""Batches that are all held at once, as far as memory is free for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.errors import DecodeError
from seqlake.files.limits import DECODED
from seqlake.files.memory import free_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

_SMALL = 256 << 20  # nobody is asked about


def gathered(batches: Iterable[pa.RecordBatch], what: str, /) -> Iterator[pa.RecordBatch]:
    """The same batches, refused where what came of them is more than the memory that was free.

    Cells may take a thousand times the bytes that are stored for them, so no size tells it beforehand.

    Args:
        batches: As a reader yields them.
        what: Whose they are, for the message.

    Raises:
        DecodeError: They are more than the free memory, and than the limit that the user may raise.
    """
    nbytes, most = 0, 0
    for batch in batches:
        nbytes += batch.nbytes
        if nbytes > _SMALL:
            free = max(0, free_memory() * 19 // 20 - _SMALL) if not most else 0  # what reading takes itself stays free
            most = most or max(DECODED.value if DECODED.is_set else 0, nbytes + free)
            if nbytes > most:
                raise DecodeError(
                    f"{what}: its cells take more than {most:,} bytes, which is all the memory that is free.",
                    hint="Read fewer rows or columns, or in batches. If more may be taken, say how much: "
                    f"export {DECODED.name}={2 * most}",
                )
        yield batch
