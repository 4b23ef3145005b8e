"""The files that rows name, looked at by a few threads; what they show is judged row by row, in the rows' order.

A deep look decodes everything a cell names: which frames are damaged, and whether there is anything to see or hear.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from threading import Event
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from seqlake import media
from seqlake.dataset.validation import looking
from seqlake.errors import (
    CorruptFileError,
    CorruptFrameError,
    DecodeError,
    InvalidMetadataError,
    MissingDependencyError,
    SeqlakeError,
)
from seqlake.files.blobs import MemoryBlob
from seqlake.files.locations import is_local, redacted, scheme
from seqlake.media import spatial
from seqlake.media.video.codes import Codes, converter_of, unread
from seqlake.media.video.pixels import fingerprint
from seqlake.protocols import Source
from seqlake.spec.alignment import LOOKED_AT, Clock, Observed, clock_of, own_rate
from seqlake.spec.column_types import ColumnType
from seqlake.spec.depth import measure_of
from seqlake.spec.findings import Finding
from seqlake.spec.rules import Gathered, SeenPictures, check_cell, check_decoded, check_row
from seqlake.spec.rules.facts import CellFacts, Damage, FileFacts, RowFacts, Trouble
from seqlake.spec.rules.references import names_its_file
from seqlake.spec.schema import is_list
from seqlake.windows.sources import inline_blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.dataset.validation.looking import FileContext
    from seqlake.media.video import VideoDecoder
    from seqlake.protocols import Blob
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
            cell = self._file(value, source, place, part)
            [(step, file)] = cell.files
            if file.trouble != "unreadable" or not (kind := looking.kind(source)):
                return cell
            return replace(cell, files=((step, replace(file, why=f"{file.why.rstrip('.')}. {kind}")),))
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
            return replace(cell, **decode_video(source, self._stop)) if self._deep and cell.count else cell
        file = looking.look(reference, blob, kind, place)
        if not self._deep or file.trouble is not None:
            return _of(file)
        if kind.type == "image":
            return replace(_of(file), **decode_pictures([(0, looking.whole(blob))], kind, self._stop))
        if kind.type == "audio":
            heard, seconds = decode_sound(source, self._stop)
            counted = file if seconds is None else replace(file, seconds=seconds)
            return replace(_of(counted), **heard)
        return replace(_of(file), **decode_other(source, self._stop))

    def _pictures(self, cells: Sequence[bytes | str | None], kind: ColumnType, place: FileContext) -> CellFacts:
        """A picture or a cloud for each step, in the row or in a file of its own."""
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
        if not self._deep:
            return cell
        if kind.type == "4d":
            clouds = [(step, cells[step], data) for step, data in held]
            return replace(cell, **decode_clouds(clouds, kind, self._stop))
        return replace(cell, **decode_pictures(held, kind, self._stop))

    def _picture(
        self, one: bytes | str, kind: ColumnType, place: FileContext
    ) -> tuple[FileFacts | None, bytes | memoryview | None]:
        """What one picture says of itself, and its bytes where they are to be decoded."""
        if isinstance(one, bytes):
            facts = looking.cloud(one) if kind.type == "4d" else looking.picture(one, "picture", kind)
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
        self._rows: deque[_Row | Finding] = deque()
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

    def look(
        self, batch: Batch, place: FileContext, ahead: Iterator[Mapping[str, CellFacts]] | None = None
    ) -> Iterator[Finding]:
        """Look at the files of some rows; the findings are of these rows or of rows before.

        `ahead` has what others have seen of the next rows, as `seen` gives it; where it ends they are looked at.
        """
        steps = {name: batch.steps(name) for name in self._listed(batch)}
        scalars = {name: _scalars(batch, name) for name in ("length", "duration_seconds")}
        for row, there in enumerate(_there(batch)):
            observed = Observed(
                steps={name: counts[row] for name, counts in steps.items()},
                length=_whole(scalars["length"][row]),
                duration_seconds=scalars["duration_seconds"][row],
            )
            known = None if ahead is None else next(ahead, None)
            cells = {
                name: self._submit(cell, name, place) if known is None else _answered(known[name])
                for name, cell in there.items()
            }
            self._rows.append(
                _Row(places={name: batch.place(row, name) for name in there}, cells=cells, observed=observed)
            )
            self._waiting += len(there)
            yield from self._judged(_AHEAD * self._threads)

    def after(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Findings of others, behind those of rows before, whose files may take longer one time and shorter another."""
        self._rows += findings
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
        while self._rows:
            row = self._rows[0]
            if isinstance(row, Finding):
                self._rows.popleft()
                yield row
                continue
            if row.cells and most and self._waiting <= most and len(self._rows) <= _ROWS:
                return
            self._rows.popleft()
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


def _there(batch: Batch) -> Iterator[dict[str, pa.Scalar]]:
    """Of each row the cells that name files, or hold some."""
    names = [*batch.columns("file", "frames"), *batch.inline]
    for row in range(batch.rows.num_rows):
        cells = {name: batch.rows.column(name)[row] for name in names}
        yield {name: cell for name, cell in cells.items() if cell.is_valid}


def _answered(facts: CellFacts) -> Future[CellFacts]:
    known: Future[CellFacts] = Future()
    known.set_result(facts)
    return known


def seen(batches: Iterable[Batch], place: FileContext, /, *, deep: bool) -> Iterator[dict[str, CellFacts]]:
    """What is behind the cells of some rows, row by row, for a `FileWalk` elsewhere."""
    reader = CellReader(deep=deep, stop=Event())
    for batch in batches:
        for cells in _there(batch):
            yield {
                name: reader.facts(cell, batch.schema[name].type or ColumnType("file"), place)
                for name, cell in cells.items()
            }


def _scalars(batch: Batch, name: str) -> list[Any]:
    if name not in batch.rows.schema.names:
        return [None] * batch.rows.num_rows
    values: list[Any] = batch.rows.column(name).to_pylist()
    return [one if isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0 else None for one in values]


def _whole(number: float | None) -> int | None:
    return number if isinstance(number, int) else None


_BLACK = 16  # of 255: what a covered lens shows
_STILL = 6  # of 255, averaged over 64 pixels: what encoding, or the noise of a sensor, makes of equal pictures
_THUMBNAIL = 80  # pixels at most; each stands for 8 by 8 or more
_HELD, _HELD_PIXELS = 24, 1 << 25  # pictures, and pixels of all of them
_TOGETHER = 64  # frames that are decoded by one call
_CHECKED = {"flac": "crccheck+explode"}  # codecs whose own checksums tell damage, and nothing else


class Looks:
    """Whether pictures show something, and whether they change; small grey copies decide."""

    def __init__(self) -> None:
        self._reformatter: Any = None
        self._first: NDArray[Any] | None = None
        self._count = 0
        self.black: bool = True
        self.frozen: bool = True

    @property
    def facts(self) -> dict[str, Any]:
        """What the pictures looked like."""
        return {
            "looked": self._count > 0,
            "black": self._count > 0 and self.black,
            "frozen": self._count > 1 and self.frozen,
        }

    def see(self, frame: VideoFrame, /) -> None:
        """Look at one more picture."""
        self._count += 1
        if not self.black and not self.frozen:
            return  # nothing left to find out
        from av.video.reformatter import Interpolation, VideoReformatter

        from seqlake.media.video.pixels import convertible

        self._reformatter = self._reformatter or VideoReformatter()
        with convertible(frame):
            small = self._reformatter.reformat(
                frame,
                width=max(1, min(frame.width // 8, _THUMBNAIL)),
                height=max(1, min(frame.height // 8, _THUMBNAIL)),
                format="gray",
                interpolation=Interpolation.AREA,
                threads=1,
            )
        self._compare(small.to_ndarray().astype(np.int16), black=_BLACK, still=_STILL)

    def see_array(self, pixels: NDArray[Any], /) -> None:
        """One more picture, decoded: [H, W, 1 or 3]; numbers of more than 8 bits mean more than brightness."""
        import av

        if pixels.dtype == np.uint8:
            flat = pixels if pixels.shape[2] == 3 else pixels[..., 0]
            layout = "rgb24" if flat.ndim == 3 else "gray"
            self.see(av.VideoFrame.from_ndarray(np.ascontiguousarray(flat), format=layout))
            return
        self._count += 1
        if self.black or self.frozen:
            values = np.nan_to_num(pixels) if pixels.dtype.kind == "f" else pixels.astype(np.int32)
            self._compare(values, black=0, still=0)

    def _compare(self, values: NDArray[Any], *, black: int, still: int) -> None:
        self.black &= bool(values.max(initial=0) <= black)
        if self._first is None:
            self._first = values
        elif self.frozen:
            self.frozen = self._first.shape == values.shape and bool(np.abs(values - self._first).max() <= still)


class _Memory:
    """Finds pictures that show what memory held before.

    Where damage ends a slice of HEVC early, FFmpeg leaves the rest of the picture as it found it and says nothing. So
    such videos are decoded twice: while their pictures are held, and with memory that is used again.
    """

    def __init__(self, decoder: VideoDecoder, /) -> None:
        stream = decoder.packets.stream
        self._decoder = decoder
        self._prints: dict[int, int] | None = {} if stream.codec == "hevc" else None
        self._held = deque[object](maxlen=max(1, min(_HELD, _HELD_PIXELS // max(1, stream.width * stream.height))))

    def keep(self, number: int, frame: VideoFrame, /) -> None:
        """Remember one more picture."""
        if self._prints is not None:
            self._held.append(frame)
            self._prints[number] = fingerprint(frame)

    def changed(self, stop: Event, /) -> Iterator[Damage]:
        """The frames that are other pictures this time."""
        if not self._prints:
            return
        self._held.clear()
        for groups in _calls(self._decoder):
            if stop.is_set():
                return
            with suppress(CorruptFileError, CorruptFrameError):  # which is known
                for number, frame in self._decoder.planes(np.concatenate(groups)):
                    if self._prints.get(number, fingerprint(frame)) != fingerprint(frame):
                        why = "decodes to another picture each time: its packet, or one that it refers to, is damaged"
                        yield Damage(first=number, last=number, why=why)


def decode_video(source: Source, stop: Event, /) -> dict[str, Any]:
    """Every frame of a video that can be opened.

    Returns:
        `damage`, `looked`, `black`, `frozen`, `unread`; or `undecoded`.
    """
    from seqlake.media import video

    decoder = video.open(source)
    looks, damage, memory = Looks(), list[Damage](), _Memory(decoder)
    unread, see = _seeing(decoder, source, looks)
    try:
        for groups in _calls(decoder):
            if stop.is_set():
                break
            try:
                for number, frame in decoder.planes(np.concatenate(groups)):
                    see(frame)
                    memory.keep(number, frame)
            except (CorruptFileError, CorruptFrameError):
                damage += [broken for group in groups if (broken := _damage_in(decoder, group)) is not None]
        damage += memory.changed(stop)
    except (CorruptFileError, CorruptFrameError):
        raise
    except DecodeError:
        return {"undecoded": True}  # this FFmpeg has no decoder for the codec
    finally:
        decoder.close()
    return {"damage": joined(damage), "unread": unread, **looks.facts}


def _seeing(decoder: VideoDecoder, source: Source, looks: Looks) -> tuple[str, Callable[[VideoFrame], None]]:
    """Why readers are not given these frames, and what looks at one: codes mean more than brightness."""
    stream, column = decoder.packets.stream, source.column
    why = unread(stream.pix_fmt, column)
    try:
        measure_of(column.fields)
    except InvalidMetadataError as error:
        why = why or error.message
    converter = None if why else converter_of(stream, column, "")
    if not isinstance(converter, Codes) or converter.channels > 1 or converter.dtype == np.uint8:
        return why, looks.see
    codes = np.empty((*decoder.size, 1), converter.dtype)

    def see(frame: VideoFrame) -> None:
        converter.convert(frame, codes)
        looks.see_array(codes)

    return why, see


def _calls(decoder: VideoDecoder) -> Iterator[list[NDArray[np.int64]]]:
    """All frames in groups that share a key packet, and some such groups for each call of the decoder."""
    packets = _packets(decoder)
    keys = np.searchsorted(decoder.packets.starts, packets, side="right")
    order = np.argsort(keys, kind="stable")
    together: list[NDArray[np.int64]] = []
    for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        if together and sum(map(len, together)) + len(group) > _TOGETHER:
            yield together
            together = []
        together.append(group)
    if together and len(together[0]):
        yield together


def _packets(decoder: VideoDecoder) -> NDArray[np.int64]:
    """[frames] the packet of each frame of this source."""
    first = int(np.searchsorted(decoder.packets.pts[decoder.packets.order], decoder.pts[0])) if len(decoder) else 0
    numbers: NDArray[np.int64] = decoder.packets.order[first : first + len(decoder)]
    return numbers


def _damage_in(decoder: VideoDecoder, group: NDArray[np.int64]) -> Damage | None:
    """The frames of one group of pictures that do not decode: from some packet on, none does."""
    frames = group[np.argsort(_packets(decoder)[group], kind="stable")].tolist()
    why = _error_of(decoder, frames)
    if why is None:
        return None
    low, high = 0, len(frames) - 1
    while low < high:
        middle = (low + high) // 2
        error = _error_of(decoder, frames[middle : middle + 1])
        low, high, why = (low, middle, error) if error is not None else (middle + 1, high, why)
    bad = frames[low:]
    return Damage(first=min(bad), last=max(bad), why=why)


def _error_of(decoder: VideoDecoder, frames: list[int]) -> str | None:
    try:
        for _ in decoder.planes(np.array(frames, np.int64)):
            pass
    except (CorruptFileError, CorruptFrameError) as error:
        return looking.said(error, str(error.path))
    return None


def joined(damage: Iterable[Damage], /) -> tuple[Damage, ...]:
    """Damage with neighbours made one."""
    kept: list[Damage] = []
    for one in sorted(damage, key=lambda one: one.first):
        if kept and kept[-1].last + 1 >= one.first:
            kept[-1] = Damage(first=kept[-1].first, last=max(kept[-1].last, one.last), why=kept[-1].why)
        else:
            kept.append(one)
    return tuple(kept)


def decode_pictures(
    pictures: Sequence[tuple[int, bytes | memoryview]], column: ColumnType, stop: Event, /
) -> dict[str, Any]:
    """Pictures of a cell of this type, each with its step.

    Returns:
        `damage`, `looked`, `black`, `frozen`, `undecoded`.
    """
    from seqlake.media import image

    looks, damage, undecoded = Looks(), list[Damage](), False
    for step, data in pictures:
        if stop.is_set():
            break
        kind = media.format_of(bytes(data[:64]))
        if kind not in image.FORMATS:
            undecoded |= kind in media.PICTURES
            continue
        try:
            looks.see_array(image.decode(data, name="the picture", column=column))
        except MissingDependencyError:
            undecoded = True
        except DecodeError as error:
            damage.append(Damage(first=step, last=step, why=error.message))
    return {"damage": joined(damage), "undecoded": undecoded, **looks.facts}


def decode_clouds(
    clouds: Iterable[tuple[int, str | bytes | None, bytes | memoryview]], column: ColumnType, stop: Event, /
) -> dict[str, Any]:
    """Clouds of a cell of this type, each with its step and its file's name, which may say its format.

    Returns:
        `damage`, `undecoded`, `kind`.
    """
    damage, kinds = list[Damage](), list[str]()
    for step, name, data in clouds:
        if stop.is_set():
            break
        source = Source(blob=MemoryBlob(data, location=str(name)), column=column)
        try:
            spatial.points(source)
        except (CorruptFileError, CorruptFrameError) as error:
            damage.append(Damage(first=step, last=step, why=looking.said(error, str(name))))
        except (DecodeError, MissingDependencyError):
            kinds.append(looking.kind(source))
    return {"damage": joined(damage), "undecoded": bool(kinds), "kind": next(iter(kinds), "")}


def decode_sound(source: Source, stop: Event, /) -> tuple[dict[str, Any], float | None]:
    """Every sample of a file with sound.

    Returns:
        `damage`, `looked`, `silent`; and how many seconds there are, counted, where all of it decodes.
    """
    import av

    from seqlake.media.audio import sound

    total, silent = 0, True
    with sound(source) as (stream, frames):
        context: Any = stream.codec_context
        if context.name in _CHECKED:
            context.options = {"err_detect": _CHECKED[context.name]}
        try:
            for frame in frames:
                if stop.is_set():
                    break
                if frame.is_corrupt:
                    raise av.InvalidDataError(0, "the packet is damaged")
                silent = silent and _is_silent(frame.to_ndarray(), frame.format.name)
                total += frame.samples
        except av.FFmpegError as error:
            damage = Damage(first=total, last=total, why=f"what follows cannot be decoded: {error.strerror}")
            return {"damage": (damage,)}, None
        return {"looked": total > 0, "silent": total > 0 and silent}, total / stream.rate


def decode_other(source: Source, stop: Event, /) -> dict[str, Any]:
    """Everything in a file that some other plug opens.

    Returns:
        `damage`; or `undecoded` where none does.
    """
    start = 0
    try:
        with closing(media.open(source)) as decoder:
            count = len(decoder)
            for start in range(0, count, _TOGETHER):
                if not stop.is_set():
                    decoder.read(np.arange(start, min(start + _TOGETHER, count)))
    except (CorruptFileError, CorruptFrameError) as error:
        return {"damage": (Damage(first=start, last=start, why=looking.said(error, str(error.path))),)}
    except (DecodeError, MissingDependencyError):
        return {"undecoded": True, "kind": looking.kind(source)}
    return {}


def _is_silent(values: NDArray[Any], kind: str) -> bool:
    return not (values != (128 if kind.removesuffix("p") == "u8" else 0)).any()
