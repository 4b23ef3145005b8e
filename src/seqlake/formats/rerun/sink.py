"""Writes datasets as recordings of Rerun: one `.rrd` a sequence, which its viewer opens with a layout."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqlake.arguments import Kind, takes, whole
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.files.locations import absolute
from seqlake.formats._recordings import FileEach
from seqlake.formats.rerun.recording import RowLog, role_of
from seqlake.plugins import require
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from fractions import Fraction

    import pyarrow as pa

    from seqlake.spec.schema import Schema

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
class RerunSink:
    """A `Sink`; picklable.

    Attributes:
        location: The folder, absolute.
        schema: What is written.
        fps: Steps per second where nothing else says it.
        quality: Of JPEG.
        storage: Options of the store; never printed.
        source_storage: Options of the store that the rows' files lie in; never printed.
    """

    location: str
    schema: Schema
    fps: float | Fraction | None
    quality: int
    storage: Mapping[str, str] | None = field(default=None, repr=False)
    source_storage: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def application(self) -> str:
        """What the viewer calls the set of recordings, and keeps one layout for."""
        return self.location.rstrip("/").rpartition("/")[2] or "seqlake"

    def write(self, part: int, rows: Iterator[pa.RecordBatch], /, *, root: str) -> dict[str, Any]:
        """Stage the recordings of one part; the same part again replaces itself.

        Returns:
            The names of its files.

        Raises:
            ValidationError: Steps and their times do not fit each other.
        """
        return self._files().stage(part, self._written(rows, MediaFiles.named(root, self.source_storage)))

    def _written(self, rows: Iterator[pa.RecordBatch], named: MediaFiles) -> Iterator[tuple[str, Path]]:
        with tempfile.TemporaryDirectory(prefix="seqlake-rerun-") as scratch, _strict():
            path = Path(scratch) / "row.rrd"
            for batch in rows:
                for row in range(batch.num_rows):
                    one = batch.slice(row, 1)
                    key = one.column(str(self.schema.id))[0].as_py()
                    path.unlink(missing_ok=True)
                    try:
                        RowLog(self.schema, one, named, fps=self.fps, quality=self.quality).save(
                            path, application=self.application, key=key
                        )
                    except ValidationError as error:
                        raise ValidationError(f"sequence {key!r}: {error.message}", hint=error.hint) from None
                    yield key, path

    def commit(self, receipts: Sequence[object], /) -> None:
        """Give the files their names; see `FileEach.commit`."""
        self._files().commit(receipts)

    def discard(self) -> None:
        """Remove every file that was staged."""
        self._files().discard()

    def _files(self) -> FileEach:
        return FileEach(location=self.location, ending=".rrd", storage=self.storage)


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
