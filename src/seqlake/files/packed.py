"""Files that are compressed as a whole, as blobs of what is in them: unpacked once a process, onto its disk."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import error as zlib_error

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import KeptMemory, map_file
from seqlake.files.reading import BlobFile
from seqlake.plugins import require
from seqlake.resting import at_rest

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Ints

ENDINGS = (".gz", ".bz2", ".xz", ".zst")
_PIECE = 4 << 20
_HELD = KeptMemory(most_maps=64)
at_rest(_HELD.clear)


def is_packed(name: str, /) -> bool:
    """Whether a name ends as one of a file that is compressed.

    Example:
        >>> is_packed("steps.csv.gz"), is_packed("steps.csv")
        (True, False)
    """
    return name.lower().endswith(ENDINGS)


def plain_name(name: str, /) -> str:
    """The name that the file has once it is unpacked.

    Example:
        >>> plain_name("a/steps.csv.gz")
        'a/steps.csv'
    """
    return name[: name.rindex(".")] if is_packed(name) else name


class UnpackedBlob:
    """What a compressed file holds, as a `Blob`; it pickles as a description, and every process unpacks for itself.

    Args:
        blob: The file; the end of its name says how it is compressed.

    Raises:
        CorruptFileError: It is damaged, cut off, or would fill half of the disk that is free for temporary files.
    """

    def __init__(self, blob: Blob, /) -> None:
        self._blob = blob

    @property
    def location(self) -> str:
        """That of the compressed file."""
        return self._blob.location

    @property
    def token(self) -> str:
        """That of the compressed file: the same bytes unpack to the same."""
        return self._blob.token

    @property
    def size(self) -> int:
        """Bytes that are in it; it is unpacked to know."""
        return len(self.view())

    def view(self) -> memoryview:
        """All of it, mapped from a temporary file that has no name any more."""
        key = self.location, self.token
        held = _HELD.get(key)
        return _HELD.keep(key, self._unpacked(), copied=False) if held is None else held

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of what is in it, without copies."""
        view = self.view()
        return [view[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def _unpacked(self) -> memoryview:
        with tempfile.TemporaryFile(prefix="seqlake-unpacked-") as file:
            most = shutil.disk_usage(tempfile.gettempdir()).free // 2
            size = 0
            try:
                with _opened(self.location, io.BufferedReader(BlobFile(self._blob), _PIECE)) as packed:
                    while piece := packed.read(_PIECE):
                        size += len(piece)
                        if size > most:
                            raise self._damaged(f"it holds more than {most:,} bytes, half of what is free here")
                        file.write(piece)
            except _damage(self.location) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of the disk, not of what is in the file
                if isinstance(error, CorruptFileError):
                    raise
                raise self._damaged(f"it cannot be unpacked ({error or type(error).__name__})") from None
            file.flush()
            return map_file(file.fileno(), size)

    def _damaged(self, text: str) -> CorruptFileError:
        return CorruptFileError(f"{self.location}: {text}.", path=self.location, hint="Unpack it yourself to see more.")


def _opened(name: str, file: io.BufferedReader) -> Any:
    ending = Path(name.lower()).suffix
    if ending == ".gz":
        return gzip.GzipFile(fileobj=file)
    if ending == ".bz2":
        return bz2.BZ2File(file)
    if ending == ".xz":
        return lzma.LZMAFile(file)
    return require("zstandard", extra="mds").ZstdDecompressor().stream_reader(file, read_across_frames=True)


def _damage(name: str) -> tuple[type[Exception], ...]:
    """What those who unpack raise for what is damaged."""
    plain = (OSError, EOFError, ValueError, lzma.LZMAError, zlib_error)
    return (*plain, require("zstandard", extra="mds").ZstdError) if name.lower().endswith(".zst") else plain
