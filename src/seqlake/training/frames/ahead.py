"""The frames of a loader's columns: what is known and open of them, and batches decoded while others are in use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from seqlake.plugins import require
from seqlake.training.fetching.transfers import Transfers
from seqlake.training.frames.batch import FrameBatch, SequenceFrames
from seqlake.training.frames.clips import EncodedCells, MeteredFiles, Pictures, Videos
from seqlake.training.frames.decoding import DecoderPool, Workers, cores
from seqlake.windows.sources import Files
from seqlake.windows.spec import Whole, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Ints
    from seqlake.training.bad_data.damage import Harm
    from seqlake.training.batches import Batch
    from seqlake.training.frames.clips import FrameColumn
    from seqlake.training.prepared import Prepared

Layout = Literal["THWC", "TCHW"]
LAYOUTS: tuple[Layout, ...] = ("THWC", "TCHW")
_DECODERS = 64  # at hand for each thread; one that has decoded 640 x 480 holds about 1.3 MB
_KEPT = 3  # batches whose memory is kept for later ones: in use, under way, asked for


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

    Attributes:
        transfers: What reads videos and images that lie in stores.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.prepared = prepared
        self.survey, self.opened = prepared.survey, prepared.opened
        self.options = prepared.settings.frames
        self.transfers = Transfers()
        schema, files = prepared.source.schema, MeteredFiles(Files.of(prepared.source), self.transfers)
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

    Attributes:
        harmed: Of the batch taken last: position in it -> what is wrong there. Empty unless bad data are tolerated.
    """

    def __init__(self, prepared: Prepared, *, sharers: int = 1) -> None:
        self._prepared = prepared
        self._size = prepared.settings.frames.threads or max(1, cores() // sharers)
        self._begin_anew()
        self._number = 0
        self.harmed: dict[int, list[Harm]] = {}

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._workers = Workers(self._size)
        self._memory: dict[str, Recycled] = {}
        self._scratch = Recycled(self._size)

    def share(self, other: FrameStream, /) -> None:
        """Have another stream's threads do the work."""
        self._workers = other._workers

    def begin(self, rows: Ints, anchors: Ints) -> FrameBatch:
        """Have the frames of one batch decoded."""
        if self._pid != os.getpid():  # a parent's threads are not here
            self._begin_anew()
        frame_columns = self._prepared.frame_columns
        frame_columns.opened.visit(rows)
        kind = SequenceFrames if isinstance(frame_columns.survey.window, Whole) else FrameBatch
        batch = kind(frame_columns, self._workers, rows, anchors, number=self._number)
        batch.allocate, batch.scratch = self._allocate, self._scratch.empty
        self._number += 1
        batch.start()
        return batch

    def take(self, batch: FrameBatch) -> Batch:
        """The frames of a batch that was begun; for the errors see `FrameBatch.result`."""
        if batch.pid != os.getpid():
            batch = self.begin(batch.rows, batch.anchors)
        ready, found = batch.ready, batch.result()
        self.harmed = batch.harmed
        self._prepared.meter.work.add(batch.work, ready=ready)
        return found

    def close(self) -> None:
        """End the threads; what was not delivered is forgotten."""
        if self._pid == os.getpid():
            self._workers.close()

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return self._memory.setdefault(name, Recycled(_KEPT)).empty(shape, dtype)


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
