"""The system calls behind every local write, in one place: what a kill test replaces."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import TYPE_CHECKING

from seqlake.files.fence import parent_of

if TYPE_CHECKING:
    from pathlib import Path

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_RENAME_NOREPLACE = 1
_RENAME_EXCL = 4
_AT_FDCWD = -100 if sys.platform == "linux" else -2
_FULLFSYNC = 51


class SystemCalls:
    """One method per system call; each does one thing to the disk and nothing else.

    A path that is `fence.Below` a folder is reached without following links.
    """

    def create(self, path: Path, /) -> int:
        """Open a new file for writing; `FileExistsError` if the name is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        with parent_of(path) as (name, folder):
            return os.open(name, flags, 0o666, dir_fd=folder)

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
        with parent_of(path) as (name, folder):
            fd = os.open(name, os.O_RDONLY, dir_fd=folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def mkdir(self, path: Path, /) -> None:
        """Make one folder; `FileExistsError` if it is there."""
        with parent_of(path) as (name, folder):
            os.mkdir(name, dir_fd=folder)

    def link(self, source: Path, target: Path, /) -> None:
        """A second name, or where the file system has no hard links a copy under the new name.

        `FileExistsError` if the target is taken.
        """
        with parent_of(source) as (old, place), parent_of(target) as (new, folder):
            if folder is None:
                os.link(old, new)
            else:
                os.link(old, new, src_dir_fd=place, dst_dir_fd=folder, follow_symlinks=False)

    def rename(self, source: Path, target: Path, /) -> None:
        """A new name for the file; what had that name before is gone."""
        with parent_of(source) as (old, place), parent_of(target) as (new, folder):
            os.replace(old, new, src_dir_fd=place, dst_dir_fd=folder)

    def rename_new(self, source: Path, target: Path, /) -> None:
        """A new name for the file; `FileExistsError` if it is taken."""
        if os.name == "nt":
            source.rename(target)
            return
        name = "renameat2" if sys.platform == "linux" else "renameatx_np"
        call = getattr(ctypes.CDLL(None, use_errno=True), name, None)
        if call is None:
            raise OSError(errno.ENOSYS, "no exclusive rename here", str(target))
        with parent_of(source) as (before, place), parent_of(target) as (after, folder):
            old, new = os.fsencode(before), os.fsencode(after)
            here, there = (_AT_FDCWD if fd is None else fd for fd in (place, folder))
            failed = call(here, old, there, new, _RENAME_NOREPLACE if sys.platform == "linux" else _RENAME_EXCL)
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(target))

    def unlink(self, path: Path, /) -> None:
        """Remove a name of a file."""
        with parent_of(path) as (name, folder):
            os.unlink(name, dir_fd=folder)


def no_hard_links(error: OSError, /) -> bool:
    """Whether an error of `link` means that this file system has none."""
    return error.errno in _NO_LINKS or getattr(error, "winerror", None) == 1
