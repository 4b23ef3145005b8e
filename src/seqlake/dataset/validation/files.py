"""The files that rows name, looked at by a few threads; what they show is judged row by row, in the rows' order."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Any, Self

from seqlake.dataset.validation import decoding, looking
from seqlake.errors import SeqlakeError
from seqlake.files.locations import is_local, redacted, scheme
from seqlake.protocols import Source
from seqlake.spec.alignment import LOOKED_AT, Clock, Observed, clock_of, own_rate
from seqlake.spec.column_types import ColumnType
from seqlake.spec.rules import Gathered, SeenPictures, check_cell, check_decoded, check_row
from seqlake.spec.rules.facts import CellFacts, FileFacts, RowFacts, Trouble
from seqlake.spec.rules.references import names_its_file
from seqlake.spec.schema import is_list
from seqlake.windows.sources import inline_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from seqlake.dataset.validation.looking import FileContext
    from seqlake.protocols import Blob
    from seqlake.spec.findings import Finding
    from seqlake.spec.rules import Batch
    from seqlake.spec.schema import Schema


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

    def facts(self, cell: pa.Scalar, kind: ColumnType, place: FileContext, /) -> CellFacts:
        """What is behind one cell that is not null; whatever is wrong with it is a fact and no error."""
        value = cell.as_py()
        if self._stop.is_set():
            return CellFacts()
        if isinstance(value, list):
            return self._pictures(value, kind, place)
        held = value if isinstance(value, bytes) else value.get("bytes") if isinstance(value, dict) else None
        if isinstance(held, bytes):
            return self._inline(held, kind, place)
        part: tuple[int, int] | None = None
        part_asked: tuple[int, int | None] = (0, None)
        if isinstance(value, dict):
            first, count = value.get("first_frame"), value.get("num_frames")
            if isinstance(first, int):
                part_asked = (max(first, 0), count)
                part = (first, count) if isinstance(count, int) else None
            value = value["path"] if names_its_file(value) else value.get("url")
        blob = self._blob(value, place) if isinstance(value, str) else None
        if blob is None or isinstance(blob, FileFacts):
            return CellFacts() if blob is None else _of(blob)
        source = replace(looking.source_of(value, blob, kind, place), first=part_asked[0], count=part_asked[1])
        return self._looked(value, source, place, part)

    def _inline(self, data: bytes, kind: ColumnType, place: FileContext) -> CellFacts:
        """What the bytes of a row are."""
        blob = inline_blob(data)
        if not data:
            return _of(FileFacts(name=_INLINE, trouble="empty"))
        # No table keeps packets of bytes, and nobody copied them in: no record is theirs.
        cell = self._looked(_INLINE, Source(blob=blob, column=kind), replace(place, copied={}), None)
        return replace(cell, files=tuple((step, replace(file, name=_INLINE)) for step, file in cell.files))

    def _looked(self, value: str, source: Source, place: FileContext, part: tuple[int, int] | None) -> CellFacts:
        """As `_file`; whatever it raises is a fact."""
        try:
            return self._file(value, source, place, part)
        except (SeqlakeError, OSError) as error:  # gone, changed or refused while it was read
            return _of(_trouble(value, "unreachable", f"it could not be read: {error}"))
        except Exception as error:  # noqa: BLE001 - whatever damage makes a library raise says that it is damaged
            return _of(_trouble(value, "unreadable", f"damaged: {error}"))

    def _blob(self, reference: str, place: FileContext) -> Blob | FileFacts | None:
        """As `looking.blob_at`, but a store that gave no answer is not asked again."""
        host = "/".join(reference.split("/")[:3]) if scheme(reference) != "file" else ""
        if host in self._unreachable:
            return _trouble(reference, "unreachable", self._unreachable[host])
        blob = looking.blob_at(reference, place)
        if host and isinstance(blob, FileFacts) and blob.trouble == "unreachable":
            self._unreachable[host] = blob.why
        return blob

    def _file(self, reference: str, source: Source, place: FileContext, part: tuple[int, int] | None) -> CellFacts:
        kind, blob = source.column, source.blob
        assert not isinstance(blob, bytes)
        if kind.type == "video":
            cell = looking.look_at_video(reference, source, place, part=part)
            return replace(cell, **decoding.decode_video(source, self._stop)) if self._deep and cell.count else cell
        file = looking.look(reference, blob, kind, place)
        if not self._deep or file.trouble is not None:
            return _of(file)
        if kind.type == "image":
            return replace(_of(file), **decoding.decode_pictures([(0, looking.whole(blob))], kind, self._stop))
        if kind.type == "audio":
            heard, seconds = decoding.decode_sound(source, self._stop)
            counted = file if seconds is None else replace(file, seconds=seconds)
            return replace(_of(counted), **heard)
        return replace(_of(file), **decoding.decode_other(source, self._stop))

    def _pictures(self, cells: Sequence[bytes | str | None], kind: ColumnType, place: FileContext) -> CellFacts:
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
        return replace(cell, **decoding.decode_pictures(held, kind, self._stop)) if self._deep else cell

    def _picture(
        self, one: bytes | str, kind: ColumnType, place: FileContext
    ) -> tuple[FileFacts | None, bytes | memoryview | None]:
        """What one picture says of itself, and its bytes where they are to be decoded."""
        if isinstance(one, bytes):
            facts = looking.picture(one, "picture", kind)
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
    return FileFacts(name=repr(redacted(reference)), trouble=trouble, why=why)


_INLINE = "bytes in the row"
_REMOTE_THREADS = 16  # they wait, most of the time
_AHEAD = 4  # cells for each thread
_ROWS = 4096  # that wait for one whose files take long
_UNDECIDED = 1000  # rows without videos or signals after which the clock is what the schema says


@dataclass(slots=True)
class _Row:
    """A row whose files are being looked at."""

    places: dict[str, dict[str, Any]]
    cells: dict[str, Future[CellFacts]]
    observed: Observed


class FileWalk:
    """Looks at the files of rows; a context manager, which ends its threads.

    Args:
        schema: Of the rows.
        clock: Of the dataset, as far as it is known without counting frames.
        deep: Whether everything is decoded.
        notes: What is worth a note is gathered here.
        done: Called for each row whose files were looked at, or that names none.
    """

    def __init__(
        self, schema: Schema, *, clock: Clock, deep: bool, notes: Gathered, done: Callable[[], object] = lambda: None
    ) -> None:
        self._schema = schema
        self._clock = clock
        self._deep = deep
        self._notes = notes
        self._done = done
        self._seen = SeenPictures()
        self._stop = Event()
        self._reader = CellReader(deep=deep, stop=self._stop)
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1
        self._rows: deque[_Row] = deque()
        self._waiting = 0  # cells of these rows
        self._undecided: list[RowFacts] | None = [] if self._frames_tell() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _frames_tell(self) -> bool:
        """Whether the clock depends on how many frames the videos have."""
        columns = [self._schema[name] for name in self._schema]
        rated = any(own_rate(one) is not None for one in columns if one.category in {"temporal", "frames"})
        return not rated and any(own_rate(one) is not None for one in columns if one.medium is not None)

    def look(self, batch: Batch, place: FileContext) -> Iterator[Finding]:
        """Look at the files of some rows; the findings are of these rows or of rows before."""
        names = [*batch.columns("file", "frames"), *batch.inline]
        steps = {name: batch.steps(name) for name in self._listed(batch)}
        scalars = {name: _scalars(batch, name) for name in ("length", "duration_seconds")}
        for row in range(batch.rows.num_rows):
            cells = {name: batch.rows.column(name)[row] for name in names}
            there = {name: cell for name, cell in cells.items() if cell.is_valid}
            observed = Observed(
                steps={name: counts[row] for name, counts in steps.items()},
                length=_whole(scalars["length"][row]),
                duration_seconds=scalars["duration_seconds"][row],
            )
            self._rows.append(
                _Row(
                    places={name: batch.place(row, name) for name in there},
                    cells={name: self._submit(cell, name, place) for name, cell in there.items()},
                    observed=observed,
                )
            )
            self._waiting += len(there)
            yield from self._judged(_AHEAD * self._threads)

    def finish(self) -> Iterator[Finding]:
        """The findings of the rows that are left."""
        yield from self._judged(0)
        yield from self._decided()

    def _listed(self, batch: Batch) -> list[str]:
        """Signals, columns of pictures, and columns of times, which may be plain lists."""
        times = {column.timestamps for column in self._schema.values()}
        names = batch.columns("temporal", "frames")
        rows = batch.rows.schema
        return names + [n for n in rows.names if n in times and n not in names and is_list(rows.field(n).type)]

    def _submit(self, cell: pa.Scalar, name: str, place: FileContext) -> Future[CellFacts]:
        if self._pool is None:
            self._threads = (os.cpu_count() or 1) if is_local(place.root) else _REMOTE_THREADS
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="seqlake-validate")
        kind = self._schema[name].type or ColumnType("file")
        return self._pool.submit(self._reader.facts, cell, kind, place)

    def _judged(self, most: int) -> Iterator[Finding]:
        """The findings of the oldest rows, until at most so many cells are waiting."""
        while self._rows and (self._waiting > most or len(self._rows) > _ROWS or not most or not self._rows[0].cells):
            row = self._rows.popleft()
            self._waiting -= len(row.cells)
            cells = {name: future.result() for name, future in row.cells.items()}
            for name, cell in cells.items():
                column, place = self._schema[name], row.places[name]
                yield from check_cell(cell, column, place, seen=self._seen, notes=self._notes)
                if self._deep:
                    yield from check_decoded(cell, column, place, self._notes)
            self._done()
            if cells:
                counted = {name: cell.count for name, cell in cells.items() if cell.count is not None}
                observed = replace(row.observed, frames=counted)
                yield from self._counted(
                    RowFacts(places=row.places, cells=cells, observed=observed, schema=self._schema)
                )

    def _counted(self, row: RowFacts) -> Iterator[Finding]:
        if self._undecided is None:
            yield from check_row(row, self._clock)
            return
        self._undecided.append(row)
        deciding = [
            one for one in self._undecided if one.observed.frames and max(one.observed.steps.values(), default=0) > 0
        ]
        if len(deciding) >= LOOKED_AT or len(self._undecided) >= _UNDECIDED:
            yield from self._decided()

    def _decided(self) -> Iterator[Finding]:
        """Decide the clock by the frames that were counted, and judge the rows that waited for it."""
        waiting, self._undecided = self._undecided or [], None
        if waiting:
            clock = clock_of(self._schema, observed=[row.observed for row in waiting])
            self._clock = clock if clock.rate is not None else self._clock
        yield from chain.from_iterable(check_row(row, self._clock) for row in waiting)


def _scalars(batch: Batch, name: str) -> list[Any]:
    if name not in batch.rows.schema.names:
        return [None] * batch.rows.num_rows
    values: list[Any] = batch.rows.column(name).to_pylist()
    return [one if isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0 else None for one in values]


def _whole(number: float | None) -> int | None:
    return number if isinstance(number, int) else None
