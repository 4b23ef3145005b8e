"""The frames of batches: what one needs is decoded once, by several threads, while others are in use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from math import prod
from threading import Event, Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SeqlakeError
from seqlake.training.bad_data.damage import Harm, is_damage
from seqlake.training.frames.decoding import Workers
from seqlake.training.frames.sounds import SoundColumn, SoundTask
from seqlake.training.telemetry import DecodeWork
from seqlake.windows.frames import find, find_by_count, steps_shown
from seqlake.windows.sources import located
from seqlake.windows.spec import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.frames.clips import FrameClip, FrameColumn, MediaColumn, Shape
    from seqlake.training.frames.columns import FrameColumns
    from seqlake.training.samples import Batch
    from seqlake.windows.frames import Shown
    from seqlake.windows.tracks import Track

    _Counted = tuple[Ints, Hashable, int, int, int]  # a row's slots, its file, first frame, frames and steps

_KEPT = 3  # batches whose memory is kept for later ones: in use, under way, asked for
_NEAR = 10  # windows of sound that are less than this part of a second apart are decoded as one
_PATIENCE = 600.0  # seconds without a batch's frames after which something is wrong


@dataclass(frozen=True, slots=True, eq=False)
class DecodeTask:
    """Frames of one clip that one thread decodes: ascending, each once, and where each is wanted."""

    column: int
    key: Hashable
    frames: Ints  # [m]
    which: Ints  # [n] number in `frames`
    places: Ints  # [n] place in the batch's [B * W]


class FrameBatch:
    """The frames of one batch on their way: clips are looked at, frames found, frames decoded.

    Whichever thread does the last piece of one stage begins the next. Errors are raised where the batch is asked for;
    of several, always the same one.
    """

    def __init__(
        self, frame_columns: FrameColumns, stream: FrameStream, rows: Ints, anchors: Ints, *, number: int
    ) -> None:
        self.pid: int = os.getpid()
        self.rows = rows
        self.anchors = anchors
        self._frame_columns = frame_columns
        self._stream = stream
        self._number = number
        self._lock = Lock()
        self._left = 0
        self._ready = Event()
        self._errors: list[tuple[int, BaseException]] = []
        self._clips: list[dict[Hashable, FrameClip]] = [{} for _ in frame_columns.columns]
        self._frames: list[NDArray[Any]] = []
        self._masks: list[NDArray[np.bool_]] = []
        self._lost: dict[tuple[int, Hashable], Exception] = {}
        self.harmed: dict[int, list[Harm]] = {}
        self.work: DecodeWork = DecodeWork()

    @property
    def ready(self) -> bool:
        """Whether nothing need be waited for."""
        return self._ready.is_set()

    def start(self) -> None:
        """Begin to look at the clips."""
        unique = np.unique(self.rows)
        looks: list[Callable[[], None]] = []
        for number, column in enumerate(self._frame_columns.columns):
            looks += [partial(self._look, number, rows) for rows in column.chores(unique)]
        self._stage(looks, self._arrange)

    def take(self) -> Batch:
        """The frames, counted; for the errors see `result`."""
        if self.pid != os.getpid():  # a parent's threads are not here
            again = self._stream.begin(self.rows, self.anchors)
            batch, self.harmed = again.take(), again.harmed
            return batch
        ready, batch = self.ready, self.result()
        self._stream.count(self.work, ready=ready)
        return batch

    def result(self) -> Batch:
        """Each column's frames [B, W, height, width, 3] and `<column>_mask` [B, W].

        Raises:
            DecodeError: A frame cannot be decoded; says of which sequence, column and file.
            DamagedTableError: A file is not there.
            SchemaMismatchError: Frames differ in size.
            TimeoutError: Nothing came for ten minutes.
        """
        if not self._ready.wait(_PATIENCE):
            raise TimeoutError(
                f"The frames of {len(self.rows)} windows were not decoded in {_PATIENCE:.0f} s: {self._left} pieces "
                f"are left, of rows {self.rows[:4].tolist()} and others. Does a store or a disk not answer?"
            )
        if self._errors:
            raise min(self._errors, key=lambda pair: pair[0])[1]
        for slot, harms in self.harmed.items():  # of several errors in a column, always the same one
            worst = {harm.column: harm for harm in sorted(harms, key=lambda harm: harm.error, reverse=True)}
            self.harmed[slot] = [worst[name] for name in sorted(worst)]
        batch: Batch = {}
        for number, column in enumerate(self._frame_columns.columns):
            if isinstance(column, SoundColumn):
                name = column.column.name
                batch |= {name: self._frames[number], f"{name}_mask": self._masks[number]}
                continue
            self.work.delivered += self._masks[number].size
            batch |= self._named(number, column.column.name)
        return batch

    def _named(self, number: int, name: str) -> Batch:
        """What batches hold of a column."""
        return {name: self._turned(self._frames[number]), f"{name}_mask": self._masks[number]}

    def _turned(self, frames: NDArray[Any]) -> NDArray[Any]:
        """[..., height, width, 3] frames in the layout that was asked for."""
        if frames.dtype.hasobject:  # clouds
            return frames
        return np.moveaxis(frames, -1, -3) if self._frame_columns.options.layout == "TCHW" else frames

    def _stage(self, works: Sequence[Callable[[], None]], then: Callable[[], None]) -> None:
        """Have pieces of work done, each by any thread, and then something else by the last of them."""
        self._left = max(1, len(works))
        for number, work in enumerate(works or [lambda: None]):
            self._stream.workers.put(self._number, partial(self._piece, number, work, then))

    def _piece(self, number: int, work: Callable[[], None], then: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised where the batch is asked for
            with self._lock:
                self._errors.append((number, error))
        with self._lock:
            self._left -= 1
            last = not self._left
        if not last:
            return
        if self._errors:
            self._ready.set()
            return
        try:
            then()
        except BaseException as error:  # noqa: BLE001 - the same
            self._errors.append((0, error))
            self._ready.set()

    def _look(self, number: int, rows: list[int]) -> None:
        column = self._frame_columns.columns[number]
        try:
            clips = column.look(rows)
        except (SeqlakeError, OSError) as error:
            if not self._tolerates(error):
                raise self._told(error, column, rows[0], "") from error
            clips = {}
            if len(rows) == 1:
                self._lost[number, column.key(rows[0])] = error
            for row in rows if len(rows) > 1 else ():
                self._look(number, [row])
        with self._lock:
            self._clips[number].update(clips)

    def _tolerates(self, error: Exception) -> bool:
        return self._frame_columns.tolerant and is_damage(error)

    def _harm(self, slots: Ints, error: Exception, column: MediaColumn, key: Hashable) -> None:
        harm = Harm.of(error, column=column.column.name, file=column.where(key))
        with self._lock:
            for slot in slots.tolist():
                self.harmed.setdefault(slot, []).append(harm)

    def _arrange(self) -> None:
        """Find every frame, make room for all of them, and deal them to the threads."""
        works: list[Callable[[], None]] = []
        for number, column in enumerate(self._frame_columns.columns):
            if isinstance(column, SoundColumn):
                works += [partial(self._hear, column, task) for task in self._arranged_sound(number, column)]
            else:
                works += [partial(self._decode, column, task) for task in self._arranged(number, column)]
        self._stage(works, self._ready.set)

    def _arranged_sound(self, number: int, column: SoundColumn) -> list[SoundTask]:
        """Windows that overlap, or nearly, as one piece of work."""
        shape, survey, clamp = column.shape(), self._frame_columns.survey, self._frame_columns.clamp
        (rate, channels), dtype = shape
        size = (len(self.rows), column.track.width(rate))
        sounds = self._stream.allocate(column.column.name, (*size, channels), dtype)
        mask = np.zeros(size, np.bool_)
        silent = np.ones(len(self.rows), np.bool_)
        tasks: list[SoundTask] = []
        for slots, row, key, clip in self._filmed(number, shape):
            if clip.sound is None:
                continue
            first, heard = column.frames_of(row, clip)
            steps = None if survey.steps is None else int(survey.steps[row])
            windows = column.windows(self.anchors[slots], clip, heard.count, steps)
            mask[slots] = windows.mask
            for which, low, high in windows.together(gap=rate // _NEAR, clamp=clamp):
                tasks.append(
                    SoundTask(
                        column=number,
                        key=key,
                        clip=clip,
                        part=(first, heard.count),
                        windows=windows,
                        which=which,
                        slots=slots[which].tolist(),
                        low=low,
                        high=high,
                    )
                )
                silent[slots[which]] = False
        sounds[silent] = 0
        self._frames.append(sounds)
        self._masks.append(mask)
        return tasks

    def _hear(self, column: SoundColumn, task: SoundTask) -> None:
        began, clamp = perf_counter(), self._frame_columns.clamp
        out = self._frames[task.column]
        try:
            values = column.hear(task)
            for which, slot in zip(task.which, task.slots, strict=True):
                task.windows.fill(out[slot], which, values, task.low, clamp=clamp)
        except (SeqlakeError, OSError) as error:
            slots = np.array(task.slots)
            if not self._tolerates(error):
                row = int(self.rows[slots[0]])
                raise self._told(error, column, row, f", samples {task.low} to {task.high - 1}") from error
            if len(slots) == 1:  # whether a window can be had must not depend on what it is read with
                out[slots], self._masks[task.column][slots] = 0, False
                self._harm(slots, error, column, task.key)
                return
            for one in task.singly(clamp=clamp):
                self._hear(column, one)
        with self._lock:
            self.work.seconds += perf_counter() - began

    def _arranged(self, number: int, column: FrameColumn) -> list[DecodeTask]:
        survey = self._frame_columns.survey
        shape, dtype = column.shape()
        width = column.track.width
        frames = self._stream.allocate(column.track.column, (len(self.rows), width, *shape), dtype)
        mask = np.zeros((len(self.rows), width), np.bool_)
        wanted = np.zeros((len(self.rows), width), np.bool_)
        parts: dict[Hashable, list[tuple[Ints, Ints]]] = {}
        places = np.arange(mask.size).reshape(mask.shape)
        counted: list[_Counted] = []
        for slots, row, key, clip in self._filmed(number, (shape, dtype)):
            first, frames_of = column.frames_of(row, clip)
            steps = steps_shown(column.track, frames_of) if survey.steps is None else int(survey.steps[row])
            if column.track.timestamps is None and frames_of.ticks is None and frames_of.present is None:
                counted.append((slots, key, first, frames_of.count, steps))
                continue
            numbers, mask[slots] = find(
                column.track,
                self.anchors[slots],
                steps=np.full(len(slots), steps, np.int64),
                frames=frames_of,
                cell_of=self._frame_columns.opened.times_of(row),
            )
            wanted[slots] = frames_of.there(numbers) if self._frame_columns.clamp else mask[slots]
            parts.setdefault(key, []).append((places[slots][wanted[slots]], numbers[wanted[slots]] + first))
        if counted:
            self._find_by_count(column.track, counted, parts, mask, wanted)
        if not wanted.all():
            frames.reshape(-1, *shape)[~wanted.reshape(-1)] = 0
        self._frames.append(frames)
        self._masks.append(mask)
        return self._dealt(number, parts, int(wanted.sum()))

    def _find_by_count(
        self,
        track: Track,
        counted: list[_Counted],
        parts: dict[Hashable, list[tuple[Ints, Ints]]],
        mask: NDArray[np.bool_],
        wanted: NDArray[np.bool_],
    ) -> None:
        """The frames of all rows of which the number alone decides, at once: row by row takes longer than to copy."""
        sizes = [len(slots) for slots, *_ in counted]
        slots = np.concatenate([one[0] for one in counted])
        first, counts, steps = np.repeat(np.array([one[2:] for one in counted], np.int64), sizes, axis=0).T
        numbers, mask[slots] = find_by_count(track, self.anchors[slots], steps=steps, counts=counts)
        inside = (numbers >= 0) & (numbers < counts[:, None])
        there = wanted[slots] = inside if self._frame_columns.clamp else mask[slots]
        numbers = numbers + first[:, None]
        places = slots[:, None] * track.width + np.arange(track.width)
        begin = 0
        for (_, key, *_), size in zip(counted, sizes, strict=True):
            some = slice(begin, begin + size)
            parts.setdefault(key, []).append((places[some][there[some]], numbers[some][there[some]]))
            begin += size

    def _width(self, number: int) -> int:
        """Frames of a window."""
        return int(self._masks[number].shape[1])

    def _filmed(self, number: int, shape: Shape) -> Iterator[tuple[Ints, int, Hashable, FrameClip]]:
        """Each row that has a clip of a column: its positions in the batch, the row, and the clip with its key."""
        column, order = self._frame_columns.columns[number], np.argsort(self.rows, kind="stable")
        for slots in np.split(order, np.flatnonzero(np.diff(self.rows[order])) + 1):
            row = int(self.rows[slots[0]])
            key = column.key(row)
            if key is None:
                continue
            clip = self._clip(number, key, row)
            if clip is not None and clip.shape is not None:
                self._check_shape(number, clip, shape, row)
            if clip is None or (number, key) in self._lost:
                self._harm(slots, self._lost[number, key], column, key)
                continue
            yield slots, row, key, clip

    def _slots(self, number: int, places: Ints) -> Ints:
        """[n] places among a column's frames -> positions in the batch."""
        return places // self._width(number)

    def _clip(self, number: int, key: Hashable, row: int) -> FrameClip | None:
        clips = self._clips[number]
        if key not in clips and (number, key) not in self._lost:
            known = self._frame_columns.columns[number].known(key)
            if known is None:  # forgotten meanwhile, for the sake of very many other files
                self._look(number, [row])
            else:
                clips[key] = known
        return clips.get(key)

    def _dealt(self, number: int, parts: dict[Hashable, list[tuple[Ints, Ints]]], total: int) -> list[DecodeTask]:
        """Each clip's frames as one piece of work, or as several of whole groups of pictures."""
        most = max(1, -(-total // (2 * self._stream.workers.size)))
        tasks: list[DecodeTask] = []
        for key, wanted in parts.items():
            places, numbers = (np.concatenate(arrays) for arrays in zip(*wanted, strict=True))
            if not len(places):
                continue
            clip = self._clips[number][key]
            unique, which = np.unique(numbers, return_inverse=True)
            groups = unique if clip.starts is None else np.searchsorted(clip.starts, unique, side="right")
            begins = np.flatnonzero(np.diff(groups, prepend=-1))  # the first frame of each group that is wanted
            edges = [0]
            for begin in begins.tolist():
                if begin - edges[-1] >= most:
                    edges.append(begin)
            for low, high in zip(edges, [*edges[1:], len(unique)], strict=True):
                inside = (which >= low) & (which < high)
                order = np.argsort(which[inside], kind="stable")
                tasks.append(
                    DecodeTask(number, key, unique[low:high], which[inside][order] - low, places[inside][order])
                )
        return tasks

    def _decode(self, column: FrameColumn, task: DecodeTask) -> None:
        out = self._frames[task.column]
        out = out.reshape(-1, *out.shape[2:])
        first = int(task.places[0])
        clip = self._clips[task.column][task.key]
        began = perf_counter()
        try:
            if len(task.places) == len(task.frames) and bool((np.diff(task.places) == 1).all()):
                column.read(task.key, clip, task.frames, out[first : first + len(task.frames)])
            elif not column.scatter(task.key, clip, task.frames[task.which], task.places, out):
                shape, dtype = out.shape[1:], out.dtype
                decoded = column.read(
                    task.key, clip, task.frames, self._stream.scratch((len(task.frames), *shape), dtype)
                )
                for place, number in zip(task.places.tolist(), task.which.tolist(), strict=True):
                    out[place] = decoded[number]
        except (SeqlakeError, OSError) as error:
            if not self._tolerates(error):
                row = int(self.rows[self._slots(task.column, task.places[:1])[0]])
                raise self._told(error, column, row, f", frames {task.frames[0]} to {task.frames[-1]}") from error
            self._decode_singly(column, task, out)
        with self._lock:
            self.work.frames += len(task.frames)
            self.work.seconds += perf_counter() - began

    def _decode_singly(self, column: FrameColumn, task: DecodeTask, out: NDArray[Any]) -> None:
        """What can be decoded of a damaged clip: whether a frame can must not depend on what it is decoded with."""
        mask = self._masks[task.column].reshape(-1)
        clip = self._clips[task.column][task.key]
        harmed: set[int] = set()
        for number, frame in enumerate(task.frames.tolist()):
            places = task.places[task.which == number]
            try:
                out[places] = column.read(task.key, clip, np.array([frame]), None)
            except (SeqlakeError, OSError) as error:
                if not self._tolerates(error):
                    raise
                out[places] = 0
                mask[places] = False
                slots = {*self._slots(task.column, places).tolist()} - harmed
                harmed |= slots
                self._harm(np.array(sorted(slots), np.int64), error, column, task.key)

    def _check_shape(self, number: int, clip: FrameClip, expected: Any, row: int) -> None:
        column = self._frame_columns.columns[number]
        try:
            assert clip.shape is not None
            column.check(clip.shape, expected)
        except SeqlakeError as error:
            if not self._tolerates(error):
                raise self._told(error, column, row, "") from None
            self._lost[number, column.key(row)] = error

    def _told(self, error: Exception, column: MediaColumn, row: int, frames: str) -> Exception:
        key = column.key(row)
        file = "" if key is None else f" ({column.where(key)})"
        return located(error, f"{self._frame_columns.name(row)}, column {column.column.name!r}{frames}{file}")


class SequenceFrames(FrameBatch):
    """`FrameBatch` of whole sequences: every frame that a row has, as often and at the rate that it has them."""

    def __init__(
        self, frame_columns: FrameColumns, stream: FrameStream, rows: Ints, anchors: Ints, *, number: int
    ) -> None:
        super().__init__(frame_columns, stream, rows, anchors, number=number)
        self._ends: list[Ints] = []  # of each column: [B + 1] cumulative numbers of frames

    @property
    def _packed(self) -> bool:
        window = self._frame_columns.survey.window
        return isinstance(window, Whole) and window.packed

    def _arranged(self, number: int, column: FrameColumn) -> list[DecodeTask]:
        shape, dtype = column.shape()
        filmed: list[tuple[Ints, Hashable, int, Shown]] = []
        counts = np.zeros(len(self.rows), np.int64)
        for slots, row, key, clip in self._filmed(number, (shape, dtype)):
            first, frames_of = column.frames_of(row, clip)
            counts[slots] = frames_of.count
            filmed.append((slots, key, first, frames_of))
        self._ends.append(np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
        size = (1, int(counts.sum())) if self._packed else (len(counts), int(counts.max(initial=0)))
        begins = self._ends[number] if self._packed else np.arange(len(counts)) * size[1]
        frames = self._stream.allocate(column.track.column, (*size, *shape), dtype)
        wanted = np.zeros(size[0] * size[1], np.bool_)
        parts: dict[Hashable, list[tuple[Ints, Ints]]] = {}
        for slots, key, first, frames_of in filmed:
            there = np.arange(frames_of.count) if frames_of.present is None else np.flatnonzero(frames_of.present)
            for slot in slots.tolist():
                places = begins[slot] + there
                wanted[places] = True
                parts.setdefault(key, []).append((places, first + there))
        frames.reshape(-1, *shape)[~wanted] = 0
        self._frames.append(frames)
        self._masks.append(wanted.reshape(size))
        return self._dealt(number, parts, int(wanted.sum()))

    def _slots(self, number: int, places: Ints) -> Ints:
        width = max(1, self._width(number))
        slots: Ints = (
            (np.searchsorted(self._ends[number], places, side="right") - 1) if self._packed else places // width
        )
        return slots

    def _named(self, number: int, name: str) -> Batch:
        frames, mask, ends = self._turned(self._frames[number]), self._masks[number], self._ends[number]
        if self._packed:
            return {name: frames[0], f"{name}_mask": mask[0], f"{name}_offsets": ends}
        return {name: frames, f"{name}_mask": mask, f"{name}_length": np.diff(ends)}


class FrameStream:
    """Frames of the batches of one pass, in the order they are asked for.

    Args:
        columns: The columns of frames, as this process sees them.
        work: Counts the decoding that is done.
        threads: How many decode.

    Attributes:
        workers: The threads.
    """

    def __init__(self, columns: Callable[[], FrameColumns], work: DecodeWork, *, threads: int) -> None:
        self._columns = columns
        self._work = work
        self._size = threads
        self._begin_anew()
        self._number = 0

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self.workers: Workers = Workers(self._size)
        self._memory: dict[str, Recycled] = {}
        self._scratch = Recycled(self._size)

    def share(self, other: FrameStream, /) -> None:
        """Have another stream's threads do the work."""
        self.workers = other.workers

    def begin(self, rows: Ints, anchors: Ints) -> FrameBatch:
        """Have the frames of one batch decoded."""
        if self._pid != os.getpid():  # a parent's threads are not here
            self._begin_anew()
        columns = self._columns()
        columns.opened.visit(rows)
        kind = SequenceFrames if isinstance(columns.survey.window, Whole) else FrameBatch
        batch = kind(columns, self, rows, anchors, number=self._number)
        self._number += 1
        batch.start()
        return batch

    def count(self, work: DecodeWork, *, ready: bool) -> None:
        """Count what a batch took."""
        self._work.add(work, ready=ready)

    def close(self) -> None:
        """End the threads; what was not delivered is forgotten."""
        if self._pid == os.getpid():
            self.workers.close()

    def allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for a column of a batch: that of an earlier batch which nobody has any more, or fresh."""
        return self._memory.setdefault(name, Recycled(_KEPT)).empty(shape, dtype)

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Memory for frames that are copied on from there."""
        return self._scratch.empty(shape, dtype)


class Recycled:
    """Memory for arrays: that of an earlier one which nobody has any more, else fresh.

    Memory fresh from the system is cleared page by page as it is first written to: with pictures, a good part of all
    work.

    Args:
        most: Pieces that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._pieces: list[NDArray[np.uint8]] = []
        self._alone = _references([np.empty(0, np.uint8)], 0)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """An array whose values are anything."""
        if dtype.hasobject:  # bytes are no references
            return np.empty(shape, dtype)
        nbytes = prod(shape) * dtype.itemsize
        with self._lock:
            piece = self._piece(nbytes)
        return piece[:nbytes].view(dtype).reshape(shape)

    def _piece(self, nbytes: int) -> NDArray[np.uint8]:
        # Whoever has the array that was handed out, or any view of it, holds a reference to the piece kept here.
        free = [place for place in range(len(self._pieces)) if _references(self._pieces, place) == self._alone]
        for place in free:
            if nbytes <= self._pieces[place].nbytes:
                return self._pieces[place]
        fresh = np.empty(nbytes, np.uint8)
        if len(self._pieces) < self._most:
            self._pieces.append(fresh)
        elif free:
            self._pieces[free[0]] = fresh
        return fresh


def _references(pieces: list[NDArray[np.uint8]], place: int) -> int:
    return sys.getrefcount(pieces[place])
