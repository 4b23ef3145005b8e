"""The system calls behind every local write, in one place: what a kill test replaces."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_RENAME_NOREPLACE = 1
_RENAME_EXCL = 4
_AT_FDCWD = -100
_FULLFSYNC = 51


class SystemCalls:
    """One method per system call; each does one thing to the disk and nothing else."""

    def create(self, path: Path, /) -> int:
        """Open a new file for writing; `FileExistsError` if the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        return os.open(path, flags, 0o666)

    def write(self, fd: int, data: memoryview, /) -> int:
        """Write some of the bytes; how many."""
        return os.write(fd, data)

    def fsync(self, fd: int, /) -> None:
        """The file's bytes are durable."""
        if sys.platform == "darwin":
            import fcntl

            # Plain fsync on macOS leaves the bytes in the drive's own cache.
            fcntl.fcntl(fd, _FULLFSYNC)
        else:
            os.fsync(fd)

    def fsync_folder(self, path: Path, /) -> None:
        """The names in the folder are durable; Windows has no such call."""
        if os.name == "nt":
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: Path, /) -> None:
        """Make one folder; `FileExistsError` if it is there."""
        path.mkdir()

    def link(self, source: Path, target: Path, /) -> None:
        """A second name, or where the file system has no hard links a copy under the new name.

        `FileExistsError` if the target is taken.
        """
        os.link(source, target)

    def rename(self, source: Path, target: Path, /) -> None:
        """A new name for the file; what had that name before is gone."""
        os.replace(source, target)  # noqa: PTH105 - the call itself is what this method is

    def rename_new(self, source: Path, target: Path, /) -> None:
        """A new name for the file; `FileExistsError` if it is taken."""
        if os.name == "nt":
            source.rename(target)
            return
        name = "renameat2" if sys.platform == "linux" else "renamex_np"
        call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
        if call is None:
            raise OSError(errno.ENOSYS, "no exclusive rename here", str(target))
        old, new = os.fsencode(source), os.fsencode(target)
        if sys.platform == "linux":
            failed = call(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE)
        else:
            failed = call(old, new, _RENAME_EXCL)
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(target))

    def unlink(self, path: Path, /) -> None:
        """Remove the name."""
        path.unlink()


def no_hard_links(error: OSError, /) -> bool:
    """Whether an error of `link` means that this file system has none."""
    return error.errno in _NO_LINKS or getattr(error, "winerror", None) == 1
