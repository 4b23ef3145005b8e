"""What `.zarray` promises, compared with what is stored, before memory is taken for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from seqlake.errors import CorruptFileError, InvalidMetadataError, SeqlakeError

if TYPE_CHECKING:
    from seqlake.formats.l5kit.metadata import ArrayMetadata
    from seqlake.formats.l5kit.places import Place
    from seqlake.protocols import Blob

CHUNK_BYTES = 256 << 20  # of one chunk, decoded: a hundred times what l5kit writes
_CHUNK_COSTS = 1024  # bytes of memory, and as much time, that a chunk's file is worth
_DENSE = 1000  # times what is stored: more than any recording is compressed
_SLACK = 64 << 10  # bytes by which a codec may exceed what it cannot compress, beside as much again


def damaged(place: str, text: str, /) -> CorruptFileError:
    """The error for a chunk's file."""
    hint = "The file is cut off or damaged: fetch it again."
    return CorruptFileError(f"{place} cannot be decoded: {text}.", path=place, hint=hint)


@dataclass(frozen=True, kw_only=True)
class Promises:
    """Of one array.

    Attributes:
        place: The store's files.
        name: The array's folder in it.
        metadata: What its `.zarray` says.
        most: Bytes that one chunk may make, and all rows where next to nothing is stored of them.
    """

    place: Place
    name: str
    metadata: ArrayMetadata
    most: int

    @cached_property
    def _stored(self) -> int | None:
        """Bytes of the array's files; None where files cannot be listed."""
        try:
            return sum(size for _, size in self.place.list(self.name))
        except (OSError, SeqlakeError):
            return None  # the web

    @property
    def _nbytes(self) -> int:
        return self.metadata.row_bytes * self.metadata.shape[0]

    def refuse_empty(self, *, each: int = 0) -> None:
        """See that something is stored of the rows that are promised; asks the store of large arrays alone, once.

        Args:
            each: Bytes of memory that a row costs beside its own.

        Raises:
            InvalidMetadataError: They are above the limit, and more than a thousand times what is stored.
        """
        rows = self.metadata.shape[0]
        promised = max(self._nbytes, self.metadata.count * _CHUNK_COSTS, rows * each)
        if promised > self.most and self._stored is not None and promised > _DENSE * self._stored:
            raise self._too_much(f"promises {rows} rows, {promised} bytes of memory; {self._stored} are stored")

    def kept(self, number: int, file: Blob | None, /) -> Blob | None:
        """The file of a chunk, whose size can be that of such a chunk; None where there is none.

        Raises:
            CorruptFileError: It is larger than any chunk, or of plain bytes and another size.
            InvalidMetadataError: Decoded, it would be above the limit.
        """
        whole = self.metadata.chunk_bytes
        if file is None:
            if self._nbytes > self.most and self._stored is None:
                raise self._too_much(f"promises {self._nbytes} bytes, and chunk {number} is not there")
            return None
        if self.metadata.compressor is None:
            if file.size != whole:
                raise damaged(file.location, f"expected a chunk of {whole} bytes, found {file.size}")
        elif whole > self.most:
            raise self._too_much(f"has compressed chunks of {whole} bytes")
        elif file.size > 2 * whole + _SLACK:
            raise damaged(file.location, f"{file.size} bytes are too many for {whole} compressed ones")
        return file

    def _too_much(self, found: str) -> InvalidMetadataError:
        hint = f"If you trust it, raise the limit of {self.most} bytes: open_store(..., chunk_bytes=...), or of scan."
        return InvalidMetadataError(f"{self.name}/.zarray {found}.", path=self.name, hint=hint)
