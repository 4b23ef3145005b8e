"""Columns of sound as one process sees them: which file a row's sound is in, what is known of it, its samples."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.media import resampled, resampled_count
from seqlake.media.audio import AudioDecoder
from seqlake.training.frames.clips import FrameClip, by_shard, first_shape
from seqlake.windows.frames import Shown
from seqlake.windows.sounds import SoundWindows, check_rate, declared_rate
from seqlake.windows.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Source
    from seqlake.spec.schema import Column
    from seqlake.training.frames.clips import EncodedCells, MeteredFiles, Shape
    from seqlake.training.frames.decoding import DecoderPool
    from seqlake.training.opened import Opened
    from seqlake.training.settings import AudioOptions
    from seqlake.windows.sounds import SoundSpan
    from seqlake.windows.sources import FileSpan

_KNOWN = 4096  # files whose index is kept at hand: 12 bytes for each block, 30 kB for a minute
_KEEP = 32 << 20  # bytes of samples that stay decoded beside an index, while the decoder is at hand


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoundTask:
    """Windows of one row's sound that one thread makes.

    Attributes:
        column: The number of the column.
        key: The file.
        clip: What is known of it.
        part: The row's first sample in the file, and how many it has.
        windows: All windows of the row in the batch.
        which: [m] those that are made.
        slots: [m] their positions in the batch.
        low: The first sample that is needed, at the rate that is delivered.
        high: One past the last.
    """

    column: int
    key: Hashable
    clip: FrameClip
    part: tuple[int, int]
    windows: SoundWindows
    which: list[int]
    slots: list[int]
    low: int
    high: int

    def singly(self, *, clamp: bool) -> Iterator[SoundTask]:
        """Each window by itself."""
        lows, highs = self.windows.needed(clamp=clamp)
        for which, slot in zip(self.which, self.slots, strict=True):
            yield SoundTask(
                column=self.column,
                key=self.key,
                clip=self.clip,
                part=self.part,
                windows=self.windows,
                which=[which],
                slots=[slot],
                low=int(lows[which]),
                high=int(highs[which]),
            )


class SoundColumn:
    """A column of sound, in files or in the rows.

    Args:
        span: The time that a window spans.
        column: The column.
        opened: Holds its cells.
        files: Opens files.
        pool: Keeps decoders, and with them what they have decoded.
        options: How sound is delivered.
        cells: Reads the rows' sounds, where they are inline.
    """

    def __init__(
        self,
        span: SoundSpan,
        column: Column,
        opened: Opened,
        *,
        files: MeteredFiles,
        pool: DecoderPool,
        options: AudioOptions,
        cells: EncodedCells | None,
    ) -> None:
        self.track = span
        self.column = column
        self._opened = opened
        self._files = files
        self._pool = pool
        self._options = options
        self._cells = cells
        self._lock = Lock()
        self._known: OrderedDict[Hashable, FrameClip] = OrderedDict()
        self._shape: Shape | None = None

    def shape(self) -> Shape:
        """(samples a second, channels) of batches: as asked for, as declared, or as the first file has them."""
        with self._lock:
            shape = self._shape
        if shape is None:
            shape = self._decided()
            with self._lock:
                self._shape = shape
        return shape

    def _decided(self) -> Shape:
        kind = self.column.type
        rate = self._options.rate or declared_rate(self.column)
        declared = None if kind is None else kind.get("channels")
        channels = self._options.channels or (declared if isinstance(declared, int) and declared > 0 else None)
        if rate is None or channels is None:
            first, _ = first_shape(self, self._opened)
            rate, channels = rate or first[0], channels or first[1]
        return (rate, channels), np.dtype(np.float32)

    def check(self, clip: Shape, expected: Shape) -> None:
        """Raise `SchemaMismatchError` unless a sound can be delivered as all others are."""
        (rate, channels), (expected_rate, expected_channels) = clip[0], expected[0]
        if self._options.rate is None:
            check_rate(self.column, rate, expected_rate)
        if self._options.channels is None and channels != expected_channels:
            raise SchemaMismatchError(
                f"the sound of column {self.column.name!r} has {channels} channels, and the column has "
                f"{expected_channels}.",
                hint="Have all of them mixed: loader.audio(channels=1); or mend `channels` of the column.",
            )

    def key(self, row: int) -> Hashable | None:
        """The reference to its file; the row itself where it holds its sound."""
        if self._cells is not None:
            return row
        place = self._place(row)
        return None if place is None else place.reference

    def chores(self, rows: Ints) -> list[list[int]]:
        """One file at a time; inline the rows of one shard together."""
        named: dict[Hashable, int] = {}
        for row in rows.tolist():
            named.setdefault(self.key(row), row)
        new = [row for key, row in named.items() if key is not None and self.known(key) is None]
        return [[row] for row in new] if self._cells is None else by_shard(np.array(new, np.int64), self._opened)

    def known(self, key: Hashable) -> FrameClip | None:
        """A file that was looked at not long ago."""
        with self._lock:
            clip = self._known.get(key)
            if clip is not None:
                self._known.move_to_end(key)
            return clip

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Look at the sounds of some rows: those that cannot be gone into are decoded once."""
        clips: dict[Hashable, FrameClip] = {}
        for row in rows:
            key = self.key(row)
            source = self._opened_source(row)
            clips[key] = FrameClip(count=0) if source is None else self._clip(key, source)
        with self._lock:
            self._known.update(clips)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return clips

    def _clip(self, key: Hashable, source: Source) -> FrameClip:
        with self._pool.use((self.column.name, key), lambda: AudioDecoder(source, keep=_KEEP)) as decoder:
            index = _sound(decoder).index
        return FrameClip(
            count=len(index),
            shape=((index.rate, index.channels), np.dtype(np.float32)),
            sound=index,
            source=source if self._cells is None else None,
        )

    def frames_of(self, row: int, clip: FrameClip) -> tuple[int, Shown]:
        """A part of a shared file begins at its first sample."""
        place = None if self._cells is not None else self._place(row)
        if place is None:
            return 0, Shown(count=clip.count)
        left = max(0, clip.count - place.first)
        return place.first, Shown(count=left if place.count is None else min(left, place.count))

    def windows(self, anchors: Ints, clip: FrameClip, count: int, steps: int | None) -> SoundWindows:
        """The windows of one row.

        Args:
            anchors: [n] clock steps.
            clip: Its sound.
            count: How many samples of it are the row's.
            steps: N, clock steps of the row; None where only the sound says it.
        """
        assert clip.shape is not None
        before, after = clip.shape[0][0], self.shape()[0][0]
        return SoundWindows.of(
            self.track,
            anchors,
            steps=self.track.steps(count, before) if steps is None else steps,
            count=resampled_count(count, before, after),
            rate=after,
        )

    def hear(self, task: SoundTask) -> NDArray[np.float32]:
        """[high - low, channels] the samples of a task, at the rate and with the channels that are delivered."""
        assert task.clip.shape is not None
        (first, count), rates = task.part, (task.clip.shape[0][0], self.shape()[0][0])
        mixed = self._options.channels == 1

        def source() -> Source:
            kept = task.clip.source if self._cells is None else self._opened_source(int(str(task.key)))
            assert kept is not None
            return kept

        with self._decoder(task.key, task.clip, source) as decoder:

            def read(start: int, stop: int) -> NDArray[np.float32]:
                samples = _sound(decoder).span(first + start, first + stop)
                return samples.mean(axis=1, keepdims=True, dtype=np.float32) if mixed else samples

            return resampled(read, count, rates, task.low, task.high)

    def where(self, key: Hashable) -> str:
        """The reference to the file; inline the sequence says it."""
        return str(key) if self._cells is None else "its sound"

    def _decoder(self, key: Hashable, clip: FrameClip, source: Any) -> AbstractContextManager[Decoder]:
        return self._pool.use((self.column.name, key), lambda: AudioDecoder(source(), known=clip.sound))

    def _opened_source(self, row: int) -> Source | None:
        place, kind = self._place(row), self.column.type
        assert kind is not None
        return None if place is None else self._files.source(place.reference, kind, data=place.data)

    def _place(self, row: int) -> FileSpan | None:
        if self._cells is not None:
            return self._cells.files(np.array([row], np.int64))[row]
        values = self._opened.beside[self.column.name].values
        return None if values is None else place_of(values[row])


def _sound(decoder: Decoder) -> AudioDecoder:
    assert isinstance(decoder, AudioDecoder)
    return decoder
