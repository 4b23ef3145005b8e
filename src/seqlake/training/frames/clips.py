"""Columns of frames as one process sees them: which file or row a frame is in, what is known of it, its pixels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake import media
from seqlake.abilities import HasLengths, HasStarts, HoldsFiles, ability
from seqlake.errors import SchemaMismatchError, SeqlakeError
from seqlake.media.video.opening import VideoDecoder
from seqlake.protocols import Source
from seqlake.spec.schema import is_list
from seqlake.training.fetching.transfers import MeteredBlob
from seqlake.training.slices import StepReaders
from seqlake.windows.frames import Shown, by_time
from seqlake.windows.sources import FileSpan, cell_token, held_span, located, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.copies.reading import OpenCopy
    from seqlake.media.audio import SoundIndex
    from seqlake.protocols import Blob, Decoder, Ints
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Column
    from seqlake.training.fetching.transfers import Transfers
    from seqlake.training.frames.decoding import DecoderPool
    from seqlake.training.opened import Opened
    from seqlake.training.survey import WindowSurvey
    from seqlake.windows.clouds import PointOptions
    from seqlake.windows.sources import MediaFiles
    from seqlake.windows.tracks import Track


class EncodedCells:
    """The cells of a column of images, or of inline videos, for several threads.

    Args:
        name: The column.
        survey: Knows the shards.
        opened: Knows the room: what is kept here counts with the decoded shards.
    """

    def __init__(self, name: str, survey: WindowSurvey, opened: Opened) -> None:
        self._name = name
        self._survey = survey
        self._opened = opened
        self._lock = Lock()
        self._kept: dict[int, list[Any]] = {}  # shard -> a cell for each row
        self._readers = StepReaders(opened.reader)
        opened.lend(self)

    def forget(self, shard: int) -> bool:
        """Let go of the cells of a shard; whether there were any."""
        with self._lock:
            if self._kept.pop(shard, None) is None:
                return False
        self._opened.count_decoded(-self._survey.shards[shard].nbytes)
        return True

    def give_back(self) -> bool:
        """Let go of all cells: whether that made room."""
        return sum(self.forget(shard) for shard in list(self._kept)) > 0

    def read(self, rows: Ints) -> dict[int, Any]:
        """The cells of some rows of one shard: row -> array of its images, None where null; or its video, a scalar."""
        shard = int(self._opened.shard_of(rows[:1])[0])
        first = int(self._survey.first_rows[shard])
        with self._lock:
            if self._keeps(shard):
                cells = [self._kept[shard][row - first] for row in rows.tolist()]
            else:
                cells = self._cells(shard, rows - first)
        return dict(zip(rows.tolist(), cells, strict=True))

    def counts(self, rows: Ints) -> dict[int, int] | None:
        """How many images some rows of one shard have, -1 where null; None where they cannot be read one by one."""
        shard = int(self._opened.shard_of(rows[:1])[0])
        first = int(self._survey.first_rows[shard])
        with self._readers.use(shard) as reader:
            known = None if reader is None else ability(reader, HasLengths)
            lengths = None if known is None else known.lengths(self._name)
        return None if lengths is None else {row: int(lengths[row - first]) for row in rows.tolist()}

    def steps(self, row: int, start: int, stop: int) -> list[Any]:
        """Some images of a row, where `counts` knows them; None where a step has none."""
        shard = int(self._opened.shard_of(np.array([row]))[0])
        with self._readers.use(shard) as reader:
            assert reader is not None
            return list(reader.slice(self._name, row - int(self._survey.first_rows[shard]), start, stop))

    def _keeps(self, shard: int) -> bool:
        """Whether the cells of a shard are kept, from now on if there is room; one thread at a time reads them."""
        nbytes = self._survey.shards[shard].nbytes
        if shard not in self._kept and self._opened.take_room(nbytes):
            try:
                self._kept[shard] = self._cells(shard, None)
            except BaseException:
                self._opened.count_decoded(-nbytes)  # nothing is kept
                raise
        return shard in self._kept

    def files(self, rows: Ints) -> dict[int, FileSpan | None]:
        """The files that some rows of one shard hold, where they lie if the shard is on this machine; None where null.

        Of a shard that is elsewhere all cells are kept, as long as there is room; then its files are read by range.
        """
        shard = int(self._opened.shard_of(rows[:1])[0])
        first = int(self._survey.first_rows[shard])
        held = self._in_place(shard, rows - first)
        if held is not None:
            mapped = all(one is None or one[1].view() is not None for one in held)
            with self._lock:
                in_place = mapped or not self._keeps(shard)
            if in_place:
                spans = [None if one is None else FileSpan(one[0], data=one[1]) for one in held]
                return dict(zip(rows.tolist(), spans, strict=True))
        whole = self._survey.shards[shard]
        return {
            row: held_span(cell.as_py(), cell_token(whole, self._name, row - first))
            for row, cell in self.read(rows).items()
        }

    def _in_place(self, shard: int, rows: Ints) -> list[tuple[str, Blob] | None] | None:
        reader = self._opened.reader(shard)
        try:
            given = ability(reader, HoldsFiles)
            return None if given is None else given.held(self._name, rows.astype(np.int64))
        finally:
            reader.close()

    def _cells(self, shard: int, rows: Ints | None) -> list[Any]:
        reader = self._opened.reader(shard)
        cells_read: list[Any] = []
        try:
            for batch in reader.batches([self._name], rows=None if rows is None else rows.astype(np.int64)):
                cells = batch.column(0)
                cells_read += [one.values for one in cells] if is_list(cells.type) else cells
        finally:
            reader.close()
        return cells_read


_KNOWN = 4096  # files whose counts and times are kept at hand
_TRIES = 16  # files that may fail before the search for the frames' shape gives up

Shape = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameClip:
    """What is decoded as one: a video file, or the images of one row.

    Attributes:
        count: Its frames.
        shape: Of one frame, with its type; None where frames may differ.
        pts: [count] when each is shown, and the seconds of a tick; None where count alone decides.
        starts: First frames of its groups of pictures, ascending; None where every frame stands alone.
        cells: [count] the encoded images of a row.
        alone: They are read one by one, when they are wanted.
        source: The open file.
        sound: What is known of a file's sound; then `shape` has its rate and its channels.
        copied: The training copy that its frames come from.
    """

    count: int
    shape: Shape | None = None
    pts: tuple[Ints, Fraction] | None = None
    starts: Ints | None = None
    cells: Any = None
    alone: bool = False
    source: Source | None = None
    sound: SoundIndex | None = None
    copied: OpenCopy | None = None


class MediaColumn(Protocol):
    """One column of frames, or of sound."""

    column: Column

    def shape(self) -> Shape:
        """Of a frame, with its type: that of the first row which has any."""

    def check(self, clip: Shape, expected: Shape) -> None:
        """Raise `SchemaMismatchError` unless a clip of this shape can stand in a batch."""

    def key(self, row: int) -> Hashable | None:
        """The clip that a row's frames are on; None where its cell is null."""

    def chores(self, rows: Ints) -> list[list[int]]:
        """Rows with clips that must be looked at first, those together that are best done together."""

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Open the clips of some rows."""

    def known(self, key: Hashable) -> FrameClip | None:
        """A clip that was looked at not long ago."""

    def frames_of(self, row: int, clip: FrameClip) -> tuple[int, Shown]:
        """Where a row's frames begin on the clip, and which they are."""

    def where(self, key: Hashable) -> str:
        """What messages call a clip."""


class FrameColumn(MediaColumn, Protocol):
    """One column of frames."""

    track: Track

    def read(self, key: Hashable, clip: FrameClip, frames: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
        """[n, ...] decode frames, ascending and each once, into `out` if it is given."""

    def scatter(self, key: Hashable, clip: FrameClip, frames: Ints, places: Ints, out: NDArray[Any]) -> bool:
        """Put each frame at its place in `out`, in any order; False where `read` is the way, and nothing was done."""


@dataclass(frozen=True, slots=True)
class MeteredFiles:
    """`Files` whose reading from stores is counted, bounded, and tried again after errors that pass.

    Attributes:
        files: Opens them.
        transfers: What reads them.
    """

    files: MediaFiles
    transfers: Transfers

    def source(self, reference: str, column: ColumnType, /, *, data: bytes | Blob | None = None) -> Source:
        """What a decoder opens; see `MediaFiles.source`."""
        source = self.files.source(reference, column, data=data)
        if isinstance(source.blob, bytes) or source.blob.view() is not None:
            return source
        return replace(source, blob=MeteredBlob(source.blob, self.transfers))


class VideoColumn:
    """A column of video files, or of parts of them.

    Args:
        track: The column on the clock.
        column: The column.
        opened: Holds its cells.
        files: Opens files.
        pool: Keeps decoders.
        size: Height and width to scale to.
        device: Where to decode.
    """

    def __init__(
        self,
        track: Track,
        column: Column,
        opened: Opened,
        *,
        files: MeteredFiles,
        pool: DecoderPool,
        size: tuple[int, int] | None,
        device: str,
    ) -> None:
        self.track = track
        self.column = column
        self._opened = opened
        self._files = files
        self._pool = pool
        self._size = size
        self._device = device
        self._timed = by_time(track, column)
        self._lock = Lock()
        self._known: OrderedDict[Hashable, FrameClip] = OrderedDict()
        self._shape: Shape | None = None

    def shape(self) -> Shape:
        """[height, width, channels] of the first video that can be opened."""
        with self._lock:
            shape = self._shape
        if shape is None:
            try:
                shape = first_shape(self, self._opened, whole=self._size)
            except (SeqlakeError, OSError):
                if self._size is None:
                    raise
                shape = ((*self._size, 3), np.dtype(np.uint8))  # each row says for itself what is wrong
            with self._lock:
                self._shape = shape
        return shape

    def check(self, clip: Shape, expected: Shape) -> None:
        """All frames have one size."""
        check_shape(clip, expected)

    def key(self, row: int) -> Hashable | None:
        """The reference to its file."""
        place = self._place(row)
        return None if place is None else place.reference

    def chores(self, rows: Ints) -> list[list[int]]:
        """One file at a time."""
        named: dict[Hashable, int] = {}
        for row in rows.tolist():
            named.setdefault(self.key(row), row)
        return [[row] for key, row in named.items() if key is not None and self.known(key) is None]

    def known(self, key: Hashable) -> FrameClip | None:
        """Counts and times, kept for the files used last."""
        with self._lock:
            clip = self._known.get(key)
            if clip is not None:
                self._known.move_to_end(key)
            return clip

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Open the files of some rows."""
        clips: dict[Hashable, FrameClip] = {}
        for row in rows:
            place = self._place(row)
            assert place is not None
            assert self.column.type is not None
            source = self._files.source(place.reference, self.column.type)
            clips[place.reference] = replace(self._clip(place.reference, source), source=source)
        self._remember(clips)
        return clips

    def _clip(self, key: Hashable, source: Source) -> FrameClip:
        """What is known of a file that is open now."""
        with self._decoder(key, lambda: source) as decoder:
            nothing, film = decoder.read(np.zeros(0, np.int64), size=self._size), ability(decoder, HasStarts)
            return FrameClip(
                count=len(decoder),
                shape=(nothing.shape[1:], nothing.dtype),
                pts=(decoder.pts, decoder.time_base) if self._timed else None,
                starts=np.zeros(1, np.int64) if film is None else film.starts,
            )

    def _remember(self, clips: dict[Hashable, FrameClip]) -> None:
        with self._lock:
            self._known.update(clips)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)

    def frames_of(self, row: int, clip: FrameClip) -> tuple[int, Shown]:
        """A part of a shared file begins at its first frame, and its times with it."""
        place = self._place(row)
        assert place is not None
        if clip.pts is not None:
            pts, time_base = clip.pts
            return place.first, Shown.timed(pts[place.first :][: place.count], time_base, self.track)
        left = max(0, clip.count - place.first)
        return place.first, Shown(count=left if place.count is None else min(left, place.count))

    def read(self, key: Hashable, clip: FrameClip, frames: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
        """Decode, by a decoder that nobody else uses meanwhile."""
        with self._decoder(key, lambda: self._source(key, clip)) as decoder:
            return decoder.read(frames, size=self._size, out=out)

    def scatter(self, key: Hashable, clip: FrameClip, frames: Ints, places: Ints, out: NDArray[Any]) -> bool:
        """Frames of FFmpeg's are written where they belong as they come; others are read first."""
        with self._decoder(key, lambda: self._source(key, clip)) as decoder:
            if not isinstance(decoder, VideoDecoder):
                return False
            decoder.scatter(frames, places, out, size=self._size)
        return True

    def _source(self, key: Hashable, clip: FrameClip) -> Source:  # noqa: ARG002 - inline videos need it
        """What a decoder opens when there is none at hand."""
        assert clip.source is not None
        return clip.source

    def where(self, key: Hashable) -> str:
        """The reference to the file."""
        return str(key)

    def _place(self, row: int) -> FileSpan | None:
        values = self._opened.beside[self.column.name].values
        return None if values is None else place_of(values[row])

    def _decoder(self, key: Hashable, source: Callable[[], Source]) -> AbstractContextManager[Decoder]:
        return self._pool.use((self.column.name, key), lambda: media.open(source(), device=self._device))


class InlineColumn(VideoColumn):
    """A column of videos whose bytes stand in the rows: read with their shard, kept by the few decoders that are open.

    Args:
        track: The column on the clock.
        column: The column.
        opened: Knows where rows are.
        cells: Reads the rows' videos.
        files: Opens those that are named after all.
        pool: Keeps decoders, and with them their bytes.
        size: Height and width to scale to.
        device: Where to decode.
    """

    def __init__(
        self,
        track: Track,
        column: Column,
        opened: Opened,
        *,
        cells: EncodedCells,
        files: MeteredFiles,
        pool: DecoderPool,
        size: tuple[int, int] | None,
        device: str,
    ) -> None:
        super().__init__(track, column, opened, files=files, pool=pool, size=size, device=device)
        self._cells = cells

    def key(self, row: int) -> Hashable | None:
        """The row itself: each has a video of its own."""
        return row

    def chores(self, rows: Ints) -> list[list[int]]:
        """The rows of one shard together."""
        new = [row for row in np.unique(rows).tolist() if self.known(row) is None]
        return by_shard(np.array(new, np.int64), self._opened)

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Open the videos of some rows of one shard; what is kept of them are counts and times, and no bytes."""
        clips: dict[Hashable, FrameClip] = {}
        for row, place in self._cells.files(np.asarray(rows, np.int64)).items():
            source = self._held(place)
            clips[row] = FrameClip(count=0) if source is None else self._clip(row, source)
        self._remember(clips)
        return clips

    def frames_of(self, row: int, clip: FrameClip) -> tuple[int, Shown]:  # noqa: ARG002 - files need it
        """All frames are the row's own."""
        if clip.pts is not None:
            return 0, Shown.timed(*clip.pts, self.track)
        return 0, Shown(count=clip.count)

    def where(self, key: Hashable) -> str:  # noqa: ARG002 - files need it
        """Nothing: the sequence says it."""
        return "its video"

    def _source(self, key: Hashable, clip: FrameClip) -> Source:  # noqa: ARG002 - files need it
        assert isinstance(key, int)
        source = self._held(self._cells.files(np.array([key], np.int64))[key])
        assert source is not None  # or nobody would ask for frames
        return source

    def _held(self, place: FileSpan | None) -> Source | None:
        kind = self.column.type
        assert kind is not None
        return None if place is None else self._files.source(place.reference, kind, data=place.data)


def by_shard(rows: Ints, opened: Opened) -> list[list[int]]:
    """Rows, those of one shard together."""
    shards = opened.shard_of(rows)
    return [rows[shards == shard].tolist() for shard in np.unique(shards)]


class ImageColumn:
    """A column of encoded images, in the rows or in files of their own.

    Args:
        track: The column on the clock.
        column: The column.
        opened: Knows where rows are.
        cells: Reads the rows' images.
        files: Opens images that are files.
        size: Height and width to scale to.
    """

    def __init__(
        self,
        track: Track,
        column: Column,
        opened: Opened,
        *,
        cells: EncodedCells,
        files: MeteredFiles,
        size: tuple[int, int] | None,
    ) -> None:
        self.track = track
        self.column = column
        self._opened = opened
        self._cells = cells
        self._files = files
        self._size = size
        self._lock = Lock()
        self._shape: Shape | None = None

    def shape(self) -> Shape:
        """[height, width, 3] of the first image that can be decoded."""
        with self._lock:
            shape = self._shape
        if shape is None:
            shape = first_shape(self, self._opened, whole=self._size)
            with self._lock:
                self._shape = shape
        return shape

    def check(self, clip: Shape, expected: Shape) -> None:
        """All frames have one size."""
        check_shape(clip, expected)

    def key(self, row: int) -> Hashable | None:
        """The row itself: its images are decoded as one."""
        return row

    def chores(self, rows: Ints) -> list[list[int]]:
        """The rows of one shard together."""
        return by_shard(np.unique(rows), self._opened)

    def known(self, key: Hashable) -> FrameClip | None:  # noqa: ARG002 - videos need it
        """Nothing: the images themselves are what is kept."""
        return None

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Read the encoded images of some rows of one shard, or count those that are read when they are wanted."""
        counts = self._cells.counts(np.asarray(rows, np.int64))
        if counts is not None:
            return {row: FrameClip(count=max(0, count), alone=True) for row, count in counts.items()}
        read = self._cells.read(np.asarray(rows, np.int64))
        return {row: FrameClip(count=0 if cell is None else len(cell), cells=cell) for row, cell in read.items()}

    def frames_of(self, row: int, clip: FrameClip) -> tuple[int, Shown]:  # noqa: ARG002 - videos need it
        """A step without an image is not there; of images that are read one by one, each is."""
        if clip.alone:
            return 0, Shown(count=clip.count)
        if clip.cells is None:
            return 0, Shown(count=0)
        present: NDArray[np.bool_] = clip.cells.is_valid().to_numpy(zero_copy_only=False)
        return 0, Shown(count=clip.count, present=None if present.all() else present)

    def scatter(self, *_: object) -> bool:
        """An image that several windows have is decoded once."""
        return False

    def read(self, key: Hashable, clip: FrameClip, frames: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
        """Decode images one by one.

        Raises:
            SchemaMismatchError: They differ in size or depth.
        """
        shape, dtype = self.shape()
        if out is None:
            out = np.empty((len(frames), *shape), dtype)
        decoder = self._decoder(key, clip, frames)
        for place, frame in enumerate(frames.tolist()):
            picture = decoder.read(np.array([frame]), size=self._size)[0]
            check_shape((picture.shape, picture.dtype), (shape, dtype))
            out[place] = picture
        return out

    def where(self, key: Hashable) -> str:  # noqa: ARG002 - videos need it
        """Nothing: the sequence says it."""
        return "its images"

    def first_of(self, key: Hashable, clip: FrameClip) -> Shape | None:
        """Shape of a row's first image, None where it has none."""
        held = None if clip.cells is None else len(clip.cells) - clip.cells.null_count
        if not (clip.count if clip.alone else held):
            return None
        first = self._decoder(key, clip, np.zeros(1, np.int64)).read(np.zeros(0, np.int64), size=self._size)
        return first.shape[1:], first.dtype

    def _decoder(self, key: Hashable, clip: FrameClip, frames: Ints) -> Decoder:
        kind = self.column.type
        assert kind is not None
        alone = self._alone(key, frames) if clip.alone else {}

        def picture(step: int) -> Source | None:
            if clip.alone:
                return None if alone.get(step) is None else Source(blob=alone[step], column=kind)
            cell = clip.cells[step]
            if not cell.is_valid:
                return None
            encoded = cell.as_py()
            return self._files.source(encoded, kind) if isinstance(encoded, str) else Source(blob=encoded, column=kind)

        return media.open_steps(clip.count, picture, kind)

    def _alone(self, key: Hashable, frames: Ints) -> dict[int, Any]:
        """Encoded images of a row, those side by side read together."""
        assert isinstance(key, int)
        images: dict[int, Any] = {}
        for run in np.split(frames, np.flatnonzero(np.diff(frames) != 1) + 1):
            start, stop = int(run[0]), int(run[-1]) + 1
            images.update(zip(range(start, stop), self._cells.steps(key, start, stop), strict=True))
        return images


class CloudColumn(ImageColumn):
    """A column of clouds, one file a step: each frame is an object, [N, C] numbers."""

    options: PointOptions

    def shape(self) -> Shape:
        """Of an object: clouds have as many points as they have."""
        return (), np.dtype(object)

    def read(self, key: Hashable, clip: FrameClip, frames: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
        """Read clouds, as numbers of the fields that were asked for."""
        if out is None:
            out = np.empty(len(frames), object)
        clouds = self._decoder(key, clip, frames).read(frames)
        for place, cloud in enumerate(clouds):
            out[place] = self.options.numbers(cloud)
        return out

    def where(self, key: Hashable) -> str:  # noqa: ARG002 - videos need it
        """Nothing: the sequence says it."""
        return "its clouds"


def check_shape(actual: Shape, expected: Shape, /) -> None:
    """Raise `SchemaMismatchError` unless frames of these shapes can stand in one array."""
    if actual != expected:
        raise SchemaMismatchError(
            f"frames are {_shape(actual)}, those of the first sequence are {_shape(expected)}; a batch holds frames of "
            "one size.",
            hint="Have them scaled to one: loader.frames(size=(height, width)).",
        )


def _shape(shape: Shape) -> str:
    (height, width, *channels), dtype = shape
    return f"{height} high and {width} wide ({dtype}, {' x '.join(map(str, channels))} channels)"


def first_shape(frames: MediaColumn, opened: Opened, *, whole: tuple[int, int] | None = None) -> Shape:
    """The shape of the first frames of the dataset that can be had; whatever the order, it is the same one."""
    failed: list[Exception] = []
    for rows in opened.rows_by_shard():
        opened.visit(rows[:1])
        for row in rows.tolist():
            try:
                key = frames.key(row)
                clip = None if key is None else frames.look([row])[key]
                shape = frames.first_of(key, clip) if isinstance(frames, ImageColumn) and clip is not None else None
            except (SeqlakeError, OSError) as error:
                failed.append(error)
                if len(failed) >= _TRIES:
                    raise located(failed[0], f"Column {frames.column.name!r}") from error
                continue
            shape = shape or (None if clip is None else clip.shape)
            if shape is not None:
                return shape
    if failed:
        raise located(failed[0], f"Column {frames.column.name!r}")
    return (*(whole or (0, 0)), 3), np.dtype(np.uint8)
