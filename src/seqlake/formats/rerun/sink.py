"""Writes datasets as recordings of Rerun: one `.rrd` a sequence, which its viewer opens with a layout."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from seqlake.arguments import Kind, takes, whole
from seqlake.errors import SchemaMismatchError
from seqlake.files.locations import absolute
from seqlake.formats._recordings import FilePerSequence
from seqlake.formats.rerun.recording import RowLog, role_of
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from fractions import Fraction
    from pathlib import Path

    import pyarrow as pa

    from seqlake.spec.schema import Schema
    from seqlake.windows.sources import MediaFiles

_RATE = Kind("steps per second", lambda value: 0 < value < 1e6)
_OF_FILES = frozenset({"video", "images", "image", "clouds", "geometry"})


def takes_files(schema: Schema, /) -> Collection[str]:
    """Columns whose files are in the recordings."""
    return [name for name, column in schema.items() if role_of(column, schema) in _OF_FILES]


def dropped(schema: Schema, /) -> Mapping[str, str]:
    """Columns that a recording does not hold, with the reason."""
    reasons = {
        "sound": "sound has no stable place in a recording yet",
        "deep": "steps of more than one axis are no series",
        "bytes": "a recording has no place for bytes of this kind",
    }
    roles = {name: role_of(column, schema) for name, column in schema.items()}
    return {name: reasons[role] for name, role in roles.items() if role in reasons}


@takes(fps=_RATE.or_none(), quality=whole(1, 100))
def create(
    location: str,
    schema: Schema,
    /,
    *,
    fps: float | Fraction | None = None,
    quality: int = 90,
    storage: Mapping[str, str] | None = None,
    source_storage: Mapping[str, str] | None = None,
) -> RerunSink:
    """Where `convert(..., to="rerun")` writes: a recording for every sequence, `<id>.rrd`.

    Args:
        location: A new or empty folder, as a path or URI; its name is the recordings' application.
        schema: The columns.
        fps: Steps per second, where neither the columns nor their times say it; without any there is no time.
        quality: Of JPEG, 1 to 100: frames of videos whose codec Rerun's viewer does not decode.
        storage: Options of the object store.
        source_storage: Options of the store that the rows' files lie in.

    Raises:
        SchemaMismatchError: Rows without ids.
        MissingDependencyError: `seqlake[rerun]` is not installed.

    Example:
        ```python
        sl.convert("data/arm", "export/arm", to="rerun")
        ```
    """
    require("rerun", extra="rerun")
    if schema.id is None:
        raise SchemaMismatchError("Recordings are named after their sequences, and these rows have no ids.")
    place = absolute(location)
    return RerunSink(
        location=place, schema=schema, fps=fps, quality=quality, storage=storage, source_storage=source_storage
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunSink(FilePerSequence):
    """A `Sink`; picklable.

    Attributes:
        quality: Of JPEG.
    """

    quality: int
    ending: ClassVar[str] = ".rrd"

    @property
    def application(self) -> str:
        """What the viewer calls the set of recordings, and keeps one layout for."""
        return self.location.rstrip("/").rpartition("/")[2] or "seqlake"

    def save(self, row: pa.RecordBatch, key: str, named: MediaFiles, path: Path) -> None:
        """Write the recording of one row."""
        with _strict():
            log = RowLog(self.schema, row, named, fps=self.fps, quality=self.quality)
            log.save(path, application=self.application, key=key)


@contextmanager
def _strict() -> Iterator[None]:
    """Rerun raises what it would otherwise warn of, and write a recording without."""
    library = require("rerun", extra="rerun")
    before = library.strict_mode()
    library.set_strict_mode(True)
    try:
        yield
    finally:
        library.set_strict_mode(before)
