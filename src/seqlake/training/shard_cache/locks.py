"""Locks on files: between processes, and freed by the system however their holder ends."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FAR = 1 << 30  # the byte that Windows locks: behind everything that is read or written
_prepared = threading.Event()


class LockFile:
    """An open file that can be locked; a forked child closes it, since it would share the lock and keep it.

    Args:
        path: The file; made where it is not there.
    """

    def __init__(self, path: Path, /) -> None:
        if not _prepared.is_set() and hasattr(os, "register_at_fork"):
            _prepared.set()
            os.register_at_fork(after_in_child=_close_all)
        self.fd = os.open(path, _FLAGS, 0o666)
        _open.add(self)

    def try_lock(self) -> bool:
        """Lock the file; False where it is locked already, by whomever."""
        try:
            if os.name == "nt":
                import msvcrt

                os.lseek(self.fd, _FAR, os.SEEK_SET)
                msvcrt.locking(self.fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
            else:
                import fcntl

                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def write(self, data: bytes, /) -> None:
        """Replace what it holds, in place: the lock is on this very file."""
        os.lseek(self.fd, 0, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(self.fd, left) :]
        os.ftruncate(self.fd, len(data))

    def close(self) -> None:
        """Unlock and close; again does nothing."""
        fd, self.fd = self.fd, -1
        if fd < 0:
            return
        _open.discard(self)
        with suppress(OSError):
            _unlock(fd)  # closing alone would not, while a forked child has the same file open
        os.close(fd)


# What is open in this process.
_open: set[LockFile] = set()


def _unlock(fd: int) -> None:
    if os.name == "nt":
        import msvcrt

        os.lseek(fd, _FAR, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


@contextmanager
def locked(path: Path, /, *, patience: float) -> Iterator[None]:
    """Hold the lock of a file.

    Args:
        path: The file; it holds the number of the process that locked it last.
        patience: Seconds to wait.

    Raises:
        TimeoutError: Another process held it all the time; says which.
    """
    file = LockFile(path)
    try:
        end, pause = time.monotonic() + patience, 0.0005
        while not file.try_lock():
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{path}: expected the lock within {patience:g} s, found it held by process {_holder(path)}. "
                    "If that process hangs, end it: its lock is free at once."
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
        with suppress(OSError):  # a full disk keeps nobody from working
            file.write(str(os.getpid()).encode())
        yield
    finally:
        file.close()


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "unknown"
    except (OSError, ValueError):
        return "unknown"


def _close_all() -> None:
    """In a forked child: the locks stay the parent's."""
    for file in list(_open):
        fd, file.fd = file.fd, -1
        with suppress(OSError):
            os.close(fd)
    _open.clear()
