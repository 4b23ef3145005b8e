"""Crashes on purpose: system calls that kill their process at a chosen step, in a forked child."""

from __future__ import annotations

import io
import os
import select
import shutil
import signal
import sys
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.files.local import SystemCalls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


if hasattr(os, "fork"):
    _fork = os.fork  # kept here, because tests put the function below in its place
_PATIENCE = 20.0  # seconds


class Unsynced(SystemCalls):
    """Real calls without the waiting: what is synced makes no difference to a process that is killed."""

    def fsync(self, fd: int, /) -> None:
        """Nothing to wait for."""

    def fsync_folder(self, path: Path, /) -> None:
        """Nothing to wait for."""


class Killing(Unsynced):
    """Dies before its n-th step. After a call is before the next one; a write has one step more, half way.

    Args:
        at: The step to die at, from 0; None lives.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.steps: int = 0

    def _step(self) -> None:
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1

    def create(self, path: Path, /) -> int:
        """Die before this call, or create."""
        self._step()
        return super().create(path)

    def write(self, fd: int, data: memoryview, /) -> int:
        """Die, or write half and die, or write."""
        self._step()
        half = super().write(fd, data[: len(data) // 2])
        self._step()
        return half + super().write(fd, data[half:])

    def fsync(self, fd: int, /) -> None:
        """Die before this call, or sync."""
        self._step()
        super().fsync(fd)

    def fsync_folder(self, path: Path, /) -> None:
        """Die before this call, or sync."""
        self._step()
        super().fsync_folder(path)

    def mkdir(self, path: Path, /) -> None:
        """Die, or make the folder."""
        self._step()
        super().mkdir(path)

    def link(self, source: Path, target: Path, /) -> None:
        """Die before this call, or link."""
        self._step()
        super().link(source, target)

    def rename(self, source: Path, target: Path, /) -> None:
        """Die before this call, or rename."""
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path, /) -> None:
        """Die before this call, or unlink."""
        self._step()
        super().unlink(path)

    def new_shard(self, path: Path, /) -> pa.NativeFile:
        """A file for a Parquet writer, every write to which is a `write` of this object."""
        return pa.PythonFile(_Shard(path, self), mode="w")


class _Shard(io.RawIOBase):
    def __init__(self, path: Path, calls: Killing) -> None:
        path.unlink(missing_ok=True)
        self._fd = calls.create(path)
        self._calls = calls
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        written = self._calls.write(self._fd, view)
        assert written == len(view)
        self._at += written
        return written

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How a child ended.

    Attributes:
        killed: By a signal, as it was meant to.
        acknowledged: Version -> transaction of each commit that it saw return.
        steps: How many steps it took, where it lived.
    """

    killed: bool
    acknowledged: dict[int, str] = field(default_factory=dict)
    steps: int = 0


class Acknowledging:
    """What a child says to its parent, a line for each commit that returned."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def commit(self, version: int, transaction: str) -> None:
        """Note that a commit returned."""
        os.write(self._fd, f"commit {version} {transaction}\n".encode())

    def steps(self, count: int) -> None:
        """So many steps were taken."""
        os.write(self._fd, f"steps {count} -\n".encode())


def fork() -> int:
    """`os.fork`, again where the child does not come up.

    Threads of Arrow or DuckDB may hold a lock of the interpreter at the moment of a fork; then the child waits for it
    for ever before it runs a line of Python (as of 3.11). Such a child is ended, and nothing has happened.
    """
    while True:
        (hearing, telling), (waiting, going) = os.pipe(), os.pipe()
        child = _fork()
        if child == 0:
            os.close(hearing)
            os.close(going)
            os.write(telling, b"up")
            if not os.read(waiting, 1):
                os._exit(1)  # the parent gave up, or is gone
            os.close(telling)
            os.close(waiting)
            return 0
        os.close(telling)
        os.close(waiting)
        came_up = bool(select.select([hearing], [], [], _PATIENCE)[0])
        os.close(hearing)
        if came_up:
            os.write(going, b"!")
        os.close(going)
        if came_up:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def in_child(action: Callable[[Acknowledging], None], /, *, patience: Callable[[int], None] | None = None) -> Outcome:
    """Run something in a forked child, and see how it ends.

    Args:
        action: What the child does; told where to report to.
        patience: What the parent does with the child's process id meanwhile, such as kill it after a while.

    Raises:
        AssertionError: The child raised.
    """
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            action(Acknowledging(writing))
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    os.close(writing)
    if patience is not None:
        patience(child)
    with os.fdopen(reading) as pipe:
        lines = [line.split() for line in pipe.read().splitlines()]
    _, status = os.waitpid(child, 0)
    outcome = Outcome(killed=os.WIFSIGNALED(status))
    assert outcome.killed or os.WEXITSTATUS(status) == 0, "the child raised; its traceback is on stderr"
    for kind, number, transaction in (line for line in lines if len(line) == 3):
        if kind == "commit":
            outcome.acknowledged[int(number)] = transaction
        else:
            outcome.steps = int(number)
    return outcome


def fresh_copy(source: Path, target: Path, /) -> Path:
    """The folder again, as it was before the last crash."""
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)
    return target
