"""One column of a take: signals that are checked and kept, frames that a thread encodes."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.dataset.writing.conforming import too_large
from seqlake.dataset.writing.staging import clear_errors
from seqlake.dataset.writing.values import as_array, cell
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.spec.rules.signals import LARGEST_CELL

if TYPE_CHECKING:
    from seqlake.dataset.writing.encoding import FramesCell
    from seqlake.spec.schema import Column

_WAITING = 16  # frames of one camera: half a second at 30 fps, 15 MB at 640x480
_JOINED = 1024


class Track:
    """One column of a take."""

    def check(self, value: object, where: str, /, *, time: object = None) -> Any:
        """A step as `add` takes it, or an error that says what was expected; keeps nothing.

        Args:
            value: One step.
            where: Sequence, step and column, for messages.
            time: When it was taken, of a column that names `timestamps`.
        """
        raise NotImplementedError

    def add(self, value: Any, /) -> None:
        """Keep a checked step."""
        raise NotImplementedError

    def finish(self) -> object:
        """The value of the cell."""
        raise NotImplementedError

    def stop(self) -> None:
        """Begin to give up; does not wait."""

    def abort(self) -> None:
        """Give up, after `stop`; what was made is removed."""

    def raise_error(self) -> None:
        """Raise what went wrong in the background."""


class Signal(Track):
    """Steps of numbers, each checked as it comes."""

    def __init__(self, column: Column, logical: pa.DataType) -> None:
        self._column = column
        self._logical = logical
        self._width: int | None = None
        self._nbytes = 0
        self._joined: list[pa.Array] = []
        self._fresh: list[pa.Array] = []

    def check(self, value: object, where: str, /, *, time: object = None) -> pa.Array:  # noqa: ARG002 - it stands in its own column
        """One step, as an Arrow array of one element."""
        column = self._column
        step = None if value is None else as_array(value, where=where)
        wanted = column.shape or ("D",) if column.nested else ()
        if step is None or step.dtype.kind == "O":
            raise SchemaMismatchError(
                f"{where}: expected numbers of shape {_of(wanted)}, found {type(value).__name__}."
            )
        if step.shape != wanted and (not column.nested or step.ndim != 1 or column.dim not in {None, step.size}):
            raise SchemaMismatchError(f"{where}: expected one step of shape {_of(wanted)}, found {_of(step.shape)}.")
        if column.nested and self._width not in {None, step.size}:
            raise SchemaMismatchError(f"{where}: expected {self._width} numbers as before, found {step.size}.")
        numbers = cell(step[None], column, self._logical, where=where).flatten()
        size = self._nbytes + numbers.nbytes
        if size > LARGEST_CELL:
            raise ValidationError(too_large(where, size))
        return numbers

    def add(self, value: pa.Array, /) -> None:
        """Keep one more step."""
        numbers = value.flatten() if self._column.nested else value
        self._width = len(numbers)
        self._nbytes += numbers.nbytes
        self._fresh.append(value)
        if len(self._fresh) >= _JOINED:  # an Arrow array of one step is mostly overhead
            self._joined.append(pa.concat_arrays(self._fresh))
            self._fresh = []

    def finish(self) -> pa.Array:
        """All steps as one cell."""
        return pa.concat_arrays([*self._joined, *self._fresh])


def _of(shape: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class Camera(Track):
    """Frames of one column, encoded by a thread of its own; `add` waits while too many are waiting."""

    def __init__(self, name: str, frames: FramesCell, *, table: Any) -> None:
        self._frames = frames
        self._table = table
        self._waiting: deque[Any] = deque()
        self._changed = threading.Condition()
        self._ended = self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"seqlake-encode-{name}", daemon=True)

    def check(self, value: object, where: str, /, *, time: object = None) -> Any:
        """A frame that can be encoded."""
        self.raise_error()
        return self._frames.check(value, where=where, time=time)

    def add(self, value: Any, /) -> None:
        """Hand a copy of it to the thread; waits while too many are waiting."""
        frame = value.copy() if hasattr(value, "copy") else value
        self._frames.settle(frame)
        if self._thread.ident is None:
            atexit.register(self._leave)  # a thread that came back from FFmpeg after the end would take Python down
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < _WAITING or self._error is not None)
            self._waiting.append(frame)
            self._changed.notify_all()
        self.raise_error()

    def finish(self) -> object:
        """Wait for the thread and finish the file."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self._leave)
        self.raise_error()
        with clear_errors(self._table):
            return self._frames.close()

    def stop(self) -> None:
        """Let the thread end after the frame at hand."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()

    def abort(self) -> None:
        """Wait for the thread and remove what it made."""
        if self._thread.ident is not None:
            self._thread.join()
        atexit.unregister(self._leave)
        with suppress(OSError):  # what cannot be removed is swept with the transaction
            self._frames.abort()

    def raise_error(self) -> None:
        """Raise the thread's error here."""
        if self._error is not None:
            raise self._error

    def _leave(self) -> None:
        self.stop()
        self._thread.join()

    def _next(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended or self._stopped)
            frame = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return frame

    def _run(self) -> None:
        try:
            with clear_errors(self._table):
                while (frame := self._next()) is not None:
                    self._frames.write(frame)
        except BaseException as error:  # noqa: BLE001 - raised again on the caller's thread
            with self._changed:
                self._error = error
                self._changed.notify_all()
