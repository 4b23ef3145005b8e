"""A folder of this machine as a store, and its files as blobs; every write is durable before it counts."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.errors import ReadOnlyError, ShardChangedError
from seqlake.files.memory import sliced
from seqlake.files.names import checked
from seqlake.files.system_calls import SystemCalls, no_hard_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from seqlake.protocols import Ints

_FORBIDDEN = {errno.EACCES, errno.EROFS, errno.EPERM}
_PIECE = 8 << 20
# A file that another machine truncates under a map kills this process, so these are read instead.
_NETWORK = ("nfs", "cifs", "smb", "9p", "lustre", "beegfs", "ceph", "gpfs", "afs", "glusterfs", "fuse.")


def stamp(status: os.stat_result, /) -> str:
    """What tells one state of a file from another."""
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


class LocalBlob:
    """A file that does not change, mapped into memory when it is first looked at.

    Args:
        path: The file; it must be there.
        mapped: Whether to map it; False reads it into memory.

    Raises:
        FileNotFoundError: It is not there.
    """

    __slots__ = ("_memory", "_path", "mapped", "size", "token")

    def __init__(self, path: str | Path, /, *, mapped: bool = True) -> None:
        self._path = os.fspath(path)
        status = os.stat(self._path)  # noqa: PTH116 - a string, at every visit
        if not os.path.isfile(self._path):  # noqa: PTH113 - the same
            raise FileNotFoundError(errno.ENOENT, "not a file", self._path)
        self.size = status.st_size
        self.token = stamp(status)
        self.mapped = mapped and not on_network(status.st_dev)
        self._memory: memoryview | None = None

    @property
    def location(self) -> str:
        """The path."""
        return self._path

    def view(self) -> memoryview:
        """All of it; raises `ShardChangedError` if the file changed since this blob was made."""
        self._check(os.stat(self._path))  # noqa: PTH116 - a string, at every visit
        if self._memory is None:
            self._memory = self._held()
        return self._memory

    def ranges(self, starts: Ints, stops: Ints, /) -> list[memoryview]:
        """Parts of it, each read by itself."""
        if self._memory is not None:
            return sliced(self.view(), starts, stops, self._path)
        with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123 - a string
            self._check(os.fstat(file.fileno()))
            parts = []
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
                parts.append(_read(file.fileno(), start, stop, self._path))
            return parts

    def _held(self) -> memoryview:
        with open(self._path, "rb", buffering=0) as file:  # noqa: PTH123 - a string
            self._check(os.fstat(file.fileno()))
            if not self.size:
                return memoryview(b"")
            if self.mapped:
                return memoryview(mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ))
            return _read(file.fileno(), 0, self.size, self._path)

    def _check(self, status: os.stat_result) -> None:
        if stamp(status) != self.token:
            raise ShardChangedError(
                f"{self._path} changed while it was open: expected size-time-inode {self.token}, found "
                f"{stamp(status)}. Shards never change; open the dataset again.",
                path=self._path,
            )

    def __getstate__(self) -> tuple[str, bool, int, str]:
        return (self._path, self.mapped, self.size, self.token)

    def __setstate__(self, state: tuple[str, bool, int, str]) -> None:
        self._path, self.mapped, self.size, self.token = state
        self._memory = None

    def __repr__(self) -> str:
        return f"LocalBlob({self._path!r}, {self.size} bytes)"


def _read(fd: int, start: int, stop: int, path: str) -> memoryview:
    out = bytearray(max(stop - start, 0))
    view, done = memoryview(out), 0
    while done < len(out):
        os.lseek(fd, start + done, os.SEEK_SET)
        piece = os.read(fd, min(len(out) - done, _PIECE))
        if not piece:
            break
        view[done : done + len(piece)] = piece
        done += len(piece)
    if start < 0 or done < stop - start:
        raise ShardChangedError(f"{path}: expected bytes {start} to {stop}, found {start + done}.", path=path)
    return view.toreadonly()


@lru_cache(maxsize=64)
def on_network(device: int, /) -> bool:
    """Whether a device is a network file system, as far as the system says (Linux)."""
    if sys.platform != "linux":
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        left, _, right = line.partition(" - ")
        if left.split()[2:3] == [number]:
            return right.startswith(_NETWORK)
    return False


class LocalStore:
    """A folder of this machine.

    Args:
        root: The folder; made when something is put into it.
        calls: The system calls, which tests replace.
        mapped: Whether blobs are mapped into memory.
    """

    def __init__(self, root: str | Path, /, *, calls: SystemCalls | None = None, mapped: bool = True) -> None:
        self.root = os.path.abspath(root)  # noqa: PTH100 - resolve() follows links
        self.calls = calls or SystemCalls()
        self.mapped = mapped

    def blob(self, path: str, /) -> LocalBlob:
        """The file of that name."""
        return LocalBlob(self._path(path), mapped=self.mapped)

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """Files at or below `prefix`, in the order of their whole names, those up to `after` left out."""
        top = self._path(prefix) if prefix else Path(self.root)
        if top.is_file():
            yield prefix, top.stat().st_size
            return
        found = [(path, size) for path, size in _walk(top, f"{prefix}/" if prefix else "") if path > after]
        yield from sorted(found)

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:
        """Whole and durable, or not there; see `Store.put`. The folder's own fsync is `sync`."""
        target = self._path(path)
        if isinstance(data, Path) and data == target:
            self._sync_file(target)
            return
        with _said(target):
            self._make_folder(target.parent)
            if temporary or (not if_absent and target.exists()):
                self._through(self._path(temporary or f"{path}.tmp"), target, data, if_absent=if_absent)
            else:
                self._fill(target, data)

    def _through(self, passing: Path, target: Path, data: bytes | Path, *, if_absent: bool) -> None:
        self._make_folder(passing.parent)
        try:
            self._fill(passing, data)
        except FileExistsError:
            # Ours from an attempt that failed before its end: nobody else uses the name.
            self.calls.unlink(passing)
            self._fill(passing, data)
        if not if_absent:
            self.calls.rename(passing, target)
            return
        try:
            self.calls.link(passing, target)
        except FileExistsError:
            self.calls.unlink(passing)
            raise
        except OSError as error:
            if not no_hard_links(error):
                raise
            self._rename_new(passing, target)
            return
        self.calls.unlink(passing)

    def _rename_new(self, passing: Path, target: Path) -> None:
        try:
            self.calls.rename_new(passing, target)
        except FileExistsError:
            self.calls.unlink(passing)
            raise
        except OSError as error:
            raise ReadOnlyError(
                f"{self.root}: this file system has neither hard links nor exclusive renames, so two writers could "
                "overwrite each other. Use another folder, or the store's own URI.",
                path=self.root,
            ) from error

    def _fill(self, path: Path, data: bytes | Path) -> None:
        fd = self.calls.create(path)
        try:
            try:
                for piece in _pieces(data):
                    left = piece
                    while left:
                        left = left[self.calls.write(fd, left) :]
                self.calls.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            # A full disk leaves no half a file behind.
            self.calls.unlink(path)
            raise

    def _sync_file(self, path: Path) -> None:
        with _said(path):
            fd = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                self.calls.fsync(fd)
            finally:
                os.close(fd)

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        try:
            self.calls.mkdir(folder)
        except FileExistsError:
            if not folder.is_dir():
                raise
            return
        self.calls.fsync_folder(folder.parent)

    def local(self, path: str, /) -> Path:
        """The path of that name; its folder is there."""
        target = self._path(path)
        with _said(target):
            self._make_folder(target.parent)
        return target

    def copy(self, source: str, target: str, /) -> None:
        """A second name for the same bytes; a copy where there are no hard links."""
        old, new = self._path(source), self._path(target)
        with _said(new):
            self._make_folder(new.parent)
            try:
                self.calls.link(old, new)
            except FileExistsError:
                raise
            except OSError as error:
                if not no_hard_links(error):
                    raise
                self._fill(new, old)

    def sync(self, *folders: str) -> None:
        """The names in these folders are durable; folders that are not there have none."""
        for folder in folders:
            path = self._path(folder) if folder else Path(self.root)
            if path.is_dir():
                with _said(path):
                    self.calls.fsync_folder(path)

    def move(self, source: str, target: str, /) -> None:
        """Rename; again does nothing."""
        old, new = self._path(source), self._path(target)
        with _said(new):
            self._make_folder(new.parent)
            try:
                self.calls.rename(old, new)
            except FileNotFoundError:
                if not new.exists():
                    raise

    def delete(self, paths: Iterable[str], /) -> None:
        """Remove names; those that are gone are fine."""
        for path in paths:
            target = self._path(path)
            with _said(target):
                try:
                    self.calls.unlink(target)
                except FileNotFoundError:
                    continue

    def free(self) -> int:
        """Bytes that are free on this disk."""
        return shutil.disk_usage(self.root).free

    def _path(self, path: str) -> Path:
        return Path(self.root, checked(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"


def _walk(top: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield f"{prefix}{entry.name}", entry.stat().st_size
        except FileNotFoundError:
            continue  # moved on between the listing and the look


def _pieces(data: bytes | Path) -> Iterator[memoryview]:
    if isinstance(data, Path):
        with data.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                yield memoryview(piece)
    else:
        yield memoryview(data)


class _said:  # noqa: N801 - used like a function: `with _said(path): ...`
    """Errors that mean *not allowed* say so in our own words."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, ReadOnlyError) and error.errno in _FORBIDDEN:
            raise ReadOnlyError(
                f"{self.path} cannot be written: {error.strerror}. Check permissions, or choose another place.",
                path=str(self.path),
            ) from error
