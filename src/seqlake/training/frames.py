"""The frames of batches: what a batch needs is decoded once, by several threads, while the batch before is in use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqlake.errors import SeqlakeError
from seqlake.plugins import require
from seqlake.training.clips import Pictures, Videos, check_shape
from seqlake.training.decoding import DecoderPool, Workers, cores
from seqlake.training.pictures import EncodedCells
from seqlake.windows.frames import find, steps_shown
from seqlake.windows.sources import Files, told
from seqlake.windows.spec import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.batches import Batch
    from seqlake.training.clips import Clip, FrameColumn
    from seqlake.training.prepared import Prepared

Layout = Literal["THWC", "TCHW"]
LAYOUTS: tuple[Layout, ...] = ("THWC", "TCHW")
_PATIENCE = 600.0  # seconds without a batch's frames after which something is wrong
_DECODERS = 64  # at hand for each thread; one that has decoded 640 x 480 holds about 1.3 MB
_RING = 3  # batches whose frames are in memory at a time: in use, under way, asked for


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """How frames are delivered.

    Attributes:
        size: Height and width to scale to; None leaves them as they are.
        layout: Order of a window's axes; `TCHW` is a view.
        device: Where videos are decoded.
        threads: How many decode; None means one for each core.
    """

    size: tuple[int, int] | None = None
    layout: Layout = "THWC"
    device: str = "cpu"
    threads: int | None = None

    def check(self) -> None:
        """Raise ValueError or MissingDependencyError, naming the argument that cannot be meant."""
        size = self.size
        pair = isinstance(size, (tuple, list)) and len(size) == 2
        if size is not None and not (pair and all(isinstance(one, int) and one > 0 for one in size)):
            raise ValueError(f"frames size: expected (height, width) in pixels, found {size!r}.")
        if self.layout not in LAYOUTS:
            raise ValueError(f"frames layout: expected one of {', '.join(LAYOUTS)}, found {self.layout!r}.")
        if self.threads is not None and (not isinstance(self.threads, int) or self.threads < 1):
            raise ValueError(f"frames threads: expected a whole number from 1 on, found {self.threads!r}.")
        if self.device != "cpu":
            if find_spec("torchcodec") is None:
                require("torchcodec", extra="torchcodec")
            if not require("torch", extra="torch").cuda.is_available():
                raise ValueError(f"frames device: {self.device!r} needs a GPU that torch sees, and it sees none.")


class FrameColumns:
    """The columns of frames of one loader in one process; passes share what is known and open.

    Args:
        prepared: The dataset through the window.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.survey, self.opened = prepared.survey, prepared.opened
        self.options = prepared.settings.frames
        schema, files = prepared.source.schema, Files.of(prepared.source)
        pool = DecoderPool(most=_DECODERS * (self.options.threads or cores()))
        self.columns: list[FrameColumn] = []
        for track in self.survey.framed:
            column, size = schema[track.column], self.options.size
            if column.category == "frames":
                cells = EncodedCells(column.name, self.survey, self.opened)
                self.columns.append(Pictures(track, column, self.opened, cells=cells, files=files, size=size))
                continue
            device = self.options.device
            self.columns.append(Videos(track, column, self.opened, files=files, pool=pool, size=size, device=device))

    @property
    def clamp(self) -> bool:
        """Whether missing frames are the nearest that exist."""
        return isinstance(self.survey.window, Window) and self.survey.window.edges == "clamp"

    def name(self, row: int) -> str:
        """What messages call a row."""
        name = self.prepared.source.schema.id
        values = None if name is None else self.opened.values[name].values
        return f"Row {row}" if values is None else f"Sequence {values[row]!r}"


class FrameStream:
    """Frames of the batches of one pass, in the order they are asked for.

    Args:
        prepared: The dataset through the window.
        sharers: How many processes decode on this machine's cores.
        reuse: Frames are written where those of three batches ago were.
    """

    def __init__(self, prepared: Prepared, *, sharers: int = 1, reuse: bool = False) -> None:
        self._prepared = prepared
        self._size = prepared.settings.frames.threads or max(1, cores() // sharers)
        self._buffers: dict[tuple[str, int], NDArray[Any]] | None = {} if reuse else None
        self._pid = os.getpid()
        self._workers = Workers(self._size)
        self._number = 0

    def share(self, other: FrameStream, /) -> None:
        """Have another stream's threads do the work."""
        self._workers = other._workers

    def begin(self, rows: Ints, anchors: Ints) -> FrameBatch:
        """Have the frames of one batch decoded."""
        if self._pid != os.getpid():  # a parent's threads are not here
            self._pid, self._workers = os.getpid(), Workers(self._size)
        frame_columns = self._prepared.frame_columns
        frame_columns.opened.visit(rows)
        batch = FrameBatch(frame_columns, self._workers, rows, anchors, number=self._number)
        batch.allocate = partial(self._allocate, self._number % _RING)
        self._number += 1
        batch.start()
        return batch

    def take(self, batch: FrameBatch) -> Batch:
        """The frames of a batch that was begun; for the errors see `FrameBatch.result`."""
        if batch.pid != os.getpid():
            batch = self.begin(batch.rows, batch.anchors)
        return batch.result()

    def close(self) -> None:
        """End the threads; what was not delivered is forgotten."""
        if self._pid == os.getpid():
            self._workers.close()

    def _allocate(self, place: int, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if self._buffers is None:
            return np.empty(shape, dtype)
        found = self._buffers.get((name, place))
        if found is None or found.shape != shape or found.dtype != dtype:
            found = self._buffers[name, place] = np.empty(shape, dtype)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
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

    allocate: Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]]

    def __init__(
        self, frame_columns: FrameColumns, workers: Workers, rows: Ints, anchors: Ints, *, number: int
    ) -> None:
        self.pid = os.getpid()
        self.rows = rows
        self.anchors = anchors
        self._frame_columns = frame_columns
        self._workers = workers
        self._number = number
        self._lock = Lock()
        self._left = 0
        self._ready = Event()
        self._errors: list[tuple[int, BaseException]] = []
        self._clips: list[dict[Hashable, Clip]] = [{} for _ in frame_columns.columns]
        self._frames: list[NDArray[Any]] = []
        self._masks: list[NDArray[np.bool_]] = []

    def start(self) -> None:
        """Begin."""
        unique = np.unique(self.rows)
        looks: list[Callable[[], None]] = []
        for number, column in enumerate(self._frame_columns.columns):
            looks += [partial(self._look, number, rows) for rows in column.chores(unique)]
        self._stage(looks, self._arrange)

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
        batch: Batch = {}
        for column, frames, mask in zip(self._frame_columns.columns, self._frames, self._masks, strict=True):
            turned = frames.transpose(0, 1, 4, 2, 3) if self._frame_columns.options.layout == "TCHW" else frames
            batch |= {column.track.column: turned, f"{column.track.column}_mask": mask}
        return batch

    def _stage(self, works: Sequence[Callable[[], None]], then: Callable[[], None]) -> None:
        """Have pieces of work done, each by any thread, and then something else by the last of them."""
        self._left = max(1, len(works))
        for number, work in enumerate(works or [lambda: None]):
            self._workers.put(self._number, partial(self._piece, number, work, then))

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
            found = column.look(rows)
        except (SeqlakeError, OSError) as error:
            raise self._told(error, column, rows[0], "") from error
        with self._lock:
            self._clips[number].update(found)

    def _arrange(self) -> None:
        """Find every frame, make room for all of them, and deal them to the threads."""
        tasks: list[_Task] = []
        for number in range(len(self._frame_columns.columns)):
            tasks += self._arranged(number)
        self._stage([partial(self._decode, task) for task in tasks], self._ready.set)

    def _arranged(self, number: int) -> list[_Task]:
        column, survey = self._frame_columns.columns[number], self._frame_columns.survey
        shape, dtype = column.shape()
        width = column.track.width
        frames = self.allocate(column.track.column, (len(self.rows), width, *shape), dtype)
        mask = np.zeros((len(self.rows), width), np.bool_)
        wanted = np.zeros((len(self.rows), width), np.bool_)
        parts: dict[Hashable, list[tuple[Ints, Ints]]] = {}
        places = np.arange(mask.size).reshape(mask.shape)
        order = np.argsort(self.rows, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(self.rows[order])) + 1):
            row = int(self.rows[own[0]])
            key = column.key(row)
            if key is None:
                continue
            clip = self._clip(number, key, row)
            if clip.shape is not None:
                self._check_shape(clip, (shape, dtype), column, row)
            first, shown = column.shown(row, clip)
            steps = steps_shown(column.track, shown) if survey.steps is None else int(survey.steps[row])
            stamps = column.track.timestamps and self._frame_columns.opened.cell(column.track.timestamps, row)
            numbers, mask[own] = find(
                column.track,
                self.anchors[own],
                steps=np.full(len(own), steps, np.int64),
                shown=shown,
                stamps=stamps if isinstance(stamps, np.ndarray) else None,
            )
            wanted[own] = shown.there(numbers) if self._frame_columns.clamp else mask[own]
            parts.setdefault(key, []).append((places[own][wanted[own]], numbers[wanted[own]] + first))
        frames.reshape(-1, *shape)[~wanted.reshape(-1)] = 0
        self._frames.append(frames)
        self._masks.append(mask)
        return self._dealt(number, parts, int(wanted.sum()))

    def _clip(self, number: int, key: Hashable, row: int) -> Clip:
        clips = self._clips[number]
        if key not in clips:
            known = self._frame_columns.columns[number].known(key)
            if known is None:  # forgotten meanwhile, for the sake of very many other files
                self._look(number, [row])
            else:
                clips[key] = known
        return clips[key]

    def _dealt(self, number: int, parts: dict[Hashable, list[tuple[Ints, Ints]]], total: int) -> list[_Task]:
        """Each clip's frames as one piece of work, or as several of whole groups of pictures."""
        most = max(1, -(-total // (2 * self._workers.size)))
        tasks: list[_Task] = []
        for key, own in parts.items():
            places, numbers = (np.concatenate(arrays) for arrays in zip(*own, strict=True))
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
                tasks.append(_Task(number, key, unique[low:high], which[inside][order] - low, places[inside][order]))
        return tasks

    def _decode(self, task: _Task) -> None:
        column = self._frame_columns.columns[task.column]
        out = self._frames[task.column]
        out = out.reshape(-1, *out.shape[2:])
        first = int(task.places[0])
        clip = self._clips[task.column][task.key]
        try:
            if len(task.places) == len(task.frames) and bool((np.diff(task.places) == 1).all()):
                column.read(task.key, clip, task.frames, out[first : first + len(task.frames)])
                return
            found = column.read(task.key, clip, task.frames, None)
            for place, number in zip(task.places.tolist(), task.which.tolist(), strict=True):
                out[place] = found[number]
        except (SeqlakeError, OSError) as error:
            row = int(self.rows[first // column.track.width])
            raise self._told(error, column, row, f", frames {task.frames[0]} to {task.frames[-1]}") from error

    def _check_shape(self, clip: Clip, expected: Any, column: FrameColumn, row: int) -> None:
        try:
            assert clip.shape is not None
            check_shape(clip.shape, expected)
        except SeqlakeError as error:
            raise self._told(error, column, row, "") from None

    def _told(self, error: Exception, column: FrameColumn, row: int, frames: str) -> Exception:
        key = column.key(row)
        file = "" if key is None else f" ({column.where(key)})"
        return told(error, f"{self._frame_columns.name(row)}, column {column.track.column!r}{frames}{file}")
