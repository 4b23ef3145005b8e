"""What was written for a commit that was not made is removed: manifests, their lists, indexes, metadata files.

pyiceberg leaves them where a disk is full, where a rival was faster and where somebody interrupts; nobody's cleanup
would know them for ours.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from seqlake.errors import DatasetNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.io import InputFile, OutputFile
    from pyiceberg.table import Table

_AT_HAND: ContextVar[WrittenFiles | None] = ContextVar("written", default=None)


class Asked(Protocol):
    """A table whose catalog is asked whether a commit was made."""

    @property
    def is_local_catalog(self) -> bool:
        """Whether the catalog is a file of this machine, whose answers stay true."""

    def load(self) -> Table:
        """The table as it is now."""


class WrittenFiles:
    """What a commit wrote so far.

    Attributes:
        asked: Whether the catalog was asked to make it, and has not said no.
    """

    def __init__(self) -> None:
        self.asked = False
        self._files: list[tuple[Any, str]] = []

    def note(self, io: Any, location: str, /) -> None:
        """A file that is about to be written."""
        self._files.append((io, location))

    def noted_by(self, io: Any, /) -> Any:
        """A `FileIO` whose new files are noted, by whatever thread."""
        return NotingIO(io, self)

    def __contains__(self, location: str) -> bool:
        return any(location == known for _, known in self._files)

    def remove(self) -> None:
        """Remove all of it, as far as it is there."""
        for io, location in self._files:
            with suppress(Exception):  # the error under way says more
                io.delete(location)


class NotingIO:
    """A `FileIO` that notes what is written.

    Args:
        io: Another one.
        written: Where.
    """

    def __init__(self, io: Any, written: WrittenFiles, /) -> None:
        self._io = io
        self._written = written
        self.properties: Any = io.properties

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        file: InputFile = self._io.new_input(location)
        return file

    def new_output(self, location: str) -> OutputFile:
        """A file to write."""
        self._written.note(self._io, location)
        file: OutputFile = self._io.new_output(location)
        return file

    def delete(self, location: Any) -> None:
        """Remove a file; nothing is noted."""
        self._io.delete(location)


def noting(write: Any, /) -> Any:
    """A catalog's way to write metadata files, which notes them for the commit at hand."""

    def call(metadata: Any, io: Any, metadata_path: str) -> None:
        written = _AT_HAND.get()
        if written is not None:
            written.note(io, metadata_path)
        write(metadata, io, metadata_path)

    return call


@contextmanager
def undone(engine: Asked, /, *, asked: bool = False) -> Iterator[WrittenFiles]:
    """Within the block one commit is made; what it wrote is removed if it was not made for sure.

    Args:
        engine: The table.
        asked: Whether the catalog may be asked at once.
    """
    written = WrittenFiles()
    written.asked = asked
    token = _AT_HAND.set(written)
    try:
        yield written
    except BaseException:
        if not written.asked or settled(engine, written):
            written.remove()
        raise
    finally:
        _AT_HAND.reset(token)


def settled(engine: Asked, written: WrittenFiles, /) -> bool:
    """Whether a commit that ended in an error was not made, and cannot be made any more.

    A catalog in a file of this machine is such: its transaction ended with the call, so what it says now stays true.
    Another one may have got the request and not be done with it.
    """
    if not engine.is_local_catalog:
        return False
    try:
        table = engine.load()
    except DatasetNotFoundError:
        return True
    except Exception:  # noqa: BLE001 - whatever fails here, the fate of the commit stays unknown
        return False
    log = (one.metadata_file for one in table.metadata.metadata_log)
    return not any(place in written for place in (table.metadata_location, *log))
