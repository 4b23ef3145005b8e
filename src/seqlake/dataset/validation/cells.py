"""What is behind one cell: a file, a part of one, or a picture for each step; decoded where that is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.dataset.validation import decoding, looking
from seqlake.errors import SeqlakeError
from seqlake.files.locations import scheme, shown
from seqlake.spec.rules.facts import CellFacts, FileFacts, Trouble

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Event

    import pyarrow as pa

    from seqlake.dataset.validation.looking import Place
    from seqlake.protocols import Blob, Source
    from seqlake.spec.column_types import ColumnType


class CellReader:
    """Looks at cells; several threads may share it.

    Args:
        deep: Whether everything is decoded.
        stop: Set when nobody wants the answers any more.
    """

    def __init__(self, *, deep: bool, stop: Event) -> None:
        self._deep = deep
        self._stop = stop
        self._unreachable: dict[str, str] = {}  # stores that gave no answer, and why

    def facts(self, cell: pa.Scalar, kind: ColumnType, place: Place, /) -> CellFacts:
        """What is behind one cell that is not null; whatever is wrong with it is a fact and no error."""
        value = cell.as_py()
        if self._stop.is_set():
            return CellFacts()
        if isinstance(value, list):
            return self._pictures(value, kind, place)
        part: tuple[int, int] | None = None
        part_asked: tuple[int, int | None] = (0, None)
        if isinstance(value, dict):
            first, count = value.get("first_frame"), value.get("num_frames")
            if isinstance(first, int):
                part_asked = (max(first, 0), count)
                part = (first, count) if isinstance(count, int) else None
            value = value.get("url")
        blob = self._blob(value, place) if isinstance(value, str) else None
        if blob is None or isinstance(blob, FileFacts):
            return CellFacts() if blob is None else _of(blob)
        try:
            source = replace(looking.source_of(value, blob, kind, place), first=part_asked[0], count=part_asked[1])
            return self._file(value, source, place, part)
        except (SeqlakeError, OSError) as error:  # gone, changed or refused while it was read
            return _of(_trouble(value, "unreachable", f"it could not be read: {error}"))
        except Exception as error:  # noqa: BLE001 - whatever damage makes a library raise says that it is damaged
            return _of(_trouble(value, "unreadable", f"damaged: {error}"))

    def _blob(self, reference: str, place: Place) -> Blob | FileFacts | None:
        """As `looking.blob_at`, but a store that gave no answer is not asked again."""
        host = "/".join(reference.split("/")[:3]) if scheme(reference) != "file" else ""
        if host in self._unreachable:
            return _trouble(reference, "unreachable", self._unreachable[host])
        blob = looking.blob_at(reference, place)
        if host and isinstance(blob, FileFacts) and blob.trouble == "unreachable":
            self._unreachable[host] = blob.why
        return blob

    def _file(self, reference: str, source: Source, place: Place, part: tuple[int, int] | None) -> CellFacts:
        kind, blob = source.column, source.blob
        assert not isinstance(blob, bytes)
        if kind.type == "video":
            cell = looking.look_at_video(reference, source, place, part=part)
            return replace(cell, **decoding.decode_video(source, self._stop)) if self._deep and cell.count else cell
        file = looking.look(reference, blob, kind, place)
        if not self._deep or file.trouble is not None:
            return _of(file)
        if kind.type == "image":
            return replace(_of(file), **decoding.decode_pictures([(0, looking.whole(blob))], self._stop))
        if kind.type == "audio":
            heard, seconds = decoding.decode_sound(source, self._stop)
            counted = file if seconds is None else replace(file, seconds=seconds)
            return replace(_of(counted), **heard)
        return replace(_of(file), **decoding.decode_other(source, self._stop))

    def _pictures(self, cells: Sequence[bytes | str | None], kind: ColumnType, place: Place) -> CellFacts:
        """A picture for each step, in the row or in a file of its own."""
        files: list[tuple[int | None, FileFacts]] = []
        held: list[tuple[int, bytes | memoryview]] = []
        for step, one in enumerate(cells):
            if one is None or self._stop.is_set():
                continue
            facts, data = self._picture(one, kind, place)
            if facts is not None:
                files.append((step, facts))
            if data is not None:
                held.append((step, data))
        cell = CellFacts(files=tuple(files))
        return replace(cell, **decoding.decode_pictures(held, self._stop)) if self._deep else cell

    def _picture(
        self, one: bytes | str, kind: ColumnType, place: Place
    ) -> tuple[FileFacts | None, bytes | memoryview | None]:
        """What one picture says of itself, and its bytes where they are to be decoded."""
        if isinstance(one, bytes):
            facts = looking.picture(one, "picture")
            return facts, one if facts.trouble is None else None
        blob = self._blob(one, place)
        if blob is None or isinstance(blob, FileFacts):
            return blob, None
        try:
            facts = looking.look(one, blob, kind, place)
            return facts, looking.whole(blob) if self._deep and facts.trouble is None else None
        except (SeqlakeError, OSError) as error:
            return _trouble(one, "unreachable", f"it could not be read: {error}"), None


def _of(file: FileFacts) -> CellFacts:
    return CellFacts(files=((None, file),))


def _trouble(reference: str, trouble: Trouble, why: str) -> FileFacts:
    return FileFacts(name=repr(shown(reference)), trouble=trouble, why=why)
