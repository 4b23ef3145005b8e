"""A folder of this machine as a store: whole and durable, or not there.

Every call that changes the disk goes through one small object, `SystemCalls`, in the order that a power loss at any
moment needs: bytes before names, names before what relies on them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.errors import ReadOnlyError, ShardChangedError, UnsafeReferenceError
from seqlake.files import fence
from seqlake.files.blobs import LocalBlob
from seqlake.files.limits import refuse_more_than_memory
from seqlake.files.locations import checked, folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FORBIDDEN = {errno.EACCES, errno.EROFS, errno.EPERM}
_PIECE = 1 << 20  # bytes copied at a time, which stay in the cache between their two ways
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}
_RENAME_NOREPLACE = 1
_RENAME_EXCL = 4
_AT_FDCWD = -100 if sys.platform == "linux" else -2
_FULLFSYNC = 51
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_HERE: type[Path] = type(Path())


class Below(_HERE):  # type: ignore[misc, valid-type]  # Python 3.11 has no other way to extend a path
    """A path that knows below which folder no link is followed on the way to it.

    Attributes:
        top: That folder; empty for a path like any other.
    """

    top = ""

    @classmethod
    def of(cls, top: str, name: str, /) -> Below:
        """The path of a name below a folder."""
        path = cls(top, name)
        path.top = top
        return path


@contextmanager
def parent_of(path: Path, /) -> Iterator[tuple[str, int | None]]:
    """What a system call takes for a path: a name, and the open folder that it lies in.

    The folders between the top and the name are opened one in the other, so that none of them is a link, and none can
    become one before the call is made. A path without a top, and Windows, which opens no folders, have no open folder.

    Raises:
        UnsafeReferenceError: One of them is a link.
        FileNotFoundError: One is not there.
    """
    top = path.top if isinstance(path, Below) else ""
    if not top:
        yield os.fspath(path), None
        return
    *folders, name = path.relative_to(top).parts
    if os.open not in os.supports_dir_fd:
        fence.refuse_link_among(top, folders)
        yield os.fspath(path), None
        return
    fd = os.open(top, _FOLDER)
    try:
        for number, folder in enumerate(folders):
            try:
                inner = os.open(folder, _FOLDER | _NO_LINK, dir_fd=fd)
            except OSError as error:
                if error.errno in {errno.ELOOP, errno.ENOTDIR}:
                    fence.refuse_link_among(top, folders[: number + 1])
                error.filename = os.path.join(top, *folders[: number + 1])  # noqa: PTH118 - a string
                raise
            fd, above = inner, fd  # before it is closed: a number that is closed twice may be another file's by then
            os.close(above)
        yield name, fd
    except OSError as error:
        if error.filename == name:  # the system was told no more than that
            error.filename = os.fspath(path)
        if error.filename2 == name:
            error.filename2 = os.fspath(path)
        raise
    finally:
        os.close(fd)


class SystemCalls:
    """One method per system call; each does one thing to the disk and nothing else.

    A path that is `Below` a folder is reached without following links.
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


class LocalStore:
    """A folder of this machine.

    Args:
        root: The folder; made when something is put into it.
        calls: The system calls, which kill tests replace (`store.calls` is an attribute like any other).
        mapped: Whether blobs are mapped into memory.
        allow_outside: Links may lead what is read out of the root. What is written, moved or deleted follows none.

    Example:
        >>> store = LocalStore("data/arm")
        >>> store.put("notes/today.txt", b"two takes")  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        /,
        *,
        calls: SystemCalls | None = None,
        mapped: bool = True,
        allow_outside: bool = False,
    ) -> None:
        self.root: str = os.path.abspath(root)  # noqa: PTH100 - resolve() follows links
        self.calls: SystemCalls = calls or SystemCalls()
        self.mapped = mapped
        self.allow_outside = allow_outside

    def blob(self, path: str, /) -> LocalBlob:
        """The file of that name.

        Raises:
            FileNotFoundError: There is none.
            UnsafeReferenceError: The name leaves the root, or a link does.
        """
        return LocalBlob(self._readable(path), mapped=self.mapped)

    def read(self, path: str, /) -> bytes:
        """All bytes of a small file (`ReadsWhole`).

        Raises:
            FileNotFoundError: There is none.
            ShardChangedError: It was cut short meanwhile.
            CorruptFileError: It is more than this machine could hold.
            UnsafeReferenceError: The name leaves the root, or a link does.
        """
        place = self._readable(path)
        if not stat.S_ISREG(os.stat(place).st_mode):  # noqa: PTH116 - a string; opening a pipe would wait
            raise FileNotFoundError(errno.ENOENT, "not a file", place)
        with open(place, "rb") as file:  # noqa: PTH123 - a string
            size = os.fstat(file.fileno()).st_size
            refuse_more_than_memory(size, place)
            data = file.read(size)
        if len(data) < size:
            raise ShardChangedError(f"{place}: expected {size} bytes, found {len(data)}. Read it again.", path=place)
        return data

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """(path, size) of the files below a folder, in the order of their whole names.

        Args:
            prefix: The folder, relative to the root; the root itself by default. One that is not there is empty.
            after: Begin behind this path.

        Raises:
            UnsafeReferenceError: A link to a folder leads out of the root.
        """
        return fence.walk(self.root, folder(prefix), after=after, allow_outside=self.allow_outside)

    def list_without_links(self, prefix: str = "", /) -> Iterator[tuple[str, int]]:
        """As `list`, for what is to be moved or removed: links to folders are passed by.

        Raises:
            UnsafeReferenceError: The folder itself is a link.
        """
        return fence.walk_without_links(self.root, folder(prefix))

    def taken(self, paths: Iterable[str], /) -> list[str]:  # type: ignore[valid-type]  # `list` is a method here
        """Those of these names that are taken, broken links too; one call of the system each."""
        return [path for path in paths if os.path.lexists(f"{self.root}{os.sep}{path}")]

    def put(self, path: str, data: bytes | Path, /, *, if_absent: bool = False, temporary: str = "") -> None:
        """Bytes under a name: whole and durable, or not there. The name itself is durable after `sync`.

        Args:
            path: The name.
            data: The bytes, or a file to copy; a `Path` that already lies at `path` is only made durable.
            if_absent: Refuse a name that is taken.
            temporary: The name the bytes have before. Without it, `if_absent` fills the name itself: right for
                names that are used once, since kill -9 may leave a part of the bytes under it.

        Raises:
            FileExistsError: `if_absent`, and a rival was first.
            ReadOnlyError: The place cannot be written.
            OSError: A full disk or a broken one; what was half-written is removed.
        """
        target = self._path(path)
        if isinstance(data, Path) and os.path.abspath(data) == str(target):  # noqa: PTH100 - lexical
            self._sync_file(target)
            return
        with _refused(target):
            self._make_folder(target.parent)
            if if_absent and not temporary:
                self._fill(target, data)
                return
            passing = self._path(temporary or f"{path}.{uuid.uuid4().hex[:8]}.tmp")
            self._make_folder(passing.parent)
            self._fill_anew(passing, data)
            try:
                if if_absent:
                    self._give_name(passing, target)
                else:
                    self.calls.rename(passing, target)
            except BaseException:
                self._try_unlink(passing)
                raise

    def local(self, path: str, /) -> Path:
        """Where other code may write this name itself; its folder is there. `put` it afterwards.

        Raises:
            UnsafeReferenceError: Its folder is a link.
            ReadOnlyError: The place cannot be written.
        """
        target = self._path(path)
        with _refused(target):
            self._make_folder(target.parent)
            with parent_of(target):
                return Path(target)

    def copy(self, source: str, target: str, /) -> None:
        """A second name for the same bytes: a hard link, or a copy where there are none.

        Raises:
            FileExistsError: The name is taken.
            FileNotFoundError: There is no such source.
        """
        old, new = self._path(source), self._path(target)
        if not self.allow_outside:
            fence.refuse_outside(self.root, source)
        with _refused(new):
            self._make_folder(new.parent)
            try:
                self.calls.link(old, new)
            except OSError as error:
                if not no_hard_links(error):
                    raise
                self._fill(new, old)

    def sync(self, *folders: str) -> None:
        """Names made, moved or removed in these folders are durable; one that is not there has none."""
        for name in folders:
            path = self._path(name.rstrip("/")) if name else Path(self.root)
            with _refused(path), contextlib.suppress(FileNotFoundError):
                self.calls.fsync_folder(path)

    def move(self, source: str, target: str, /) -> None:
        """Another name for the file; again does nothing. Not durable before `sync`.

        Raises:
            FileNotFoundError: It lies under neither name.
        """
        old, new = self._path(source), self._path(target)
        with _refused(new):
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
            with _refused(target), contextlib.suppress(FileNotFoundError):
                self.calls.unlink(target)

    def free(self) -> int:
        """Bytes that are free on this disk, for messages about a full one."""
        place = Path(self.root)
        while not place.exists():
            place = place.parent
        return shutil.disk_usage(place).free

    def _path(self, path: str) -> Path:
        return Below.of(self.root, checked(path))

    def _readable(self, path: str) -> str:
        name = checked(path)
        if not self.allow_outside:
            fence.refuse_outside(self.root, name)
        return os.path.join(self.root, name)  # noqa: PTH118 - a string

    def _give_name(self, passing: Path, target: Path) -> None:
        """The commit itself: `link` refuses a name that is taken, where `rename` would replace a rival's bytes."""
        try:
            self.calls.link(passing, target)
        except FileExistsError:
            # NFS may say so of a link that it made, when its first answer was lost.
            if not _same(passing, target):
                raise
        except OSError as error:
            if not no_hard_links(error):
                raise
            self._rename_new(passing, target)
            return
        self._try_unlink(passing)  # it is done; a temporary name that stays is `vacuum`'s business

    def _rename_new(self, passing: Path, target: Path) -> None:
        try:
            self.calls.rename_new(passing, target)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
                raise
            raise ReadOnlyError(
                f"{self.root}: this file system has neither hard links nor exclusive renames, so two writers could "
                "overwrite each other. Use another folder, or the store's own URI (s3://, gs://, az://).",
                path=self.root,
            ) from error

    def _fill_anew(self, path: Path, data: bytes | Path) -> None:
        """Fill a temporary name, which nobody else uses; what an earlier attempt left goes first.

        Never by truncating: the old name may be a hard link to bytes that are committed.
        """
        try:
            self._fill(path, data)
        except FileExistsError:
            self.calls.unlink(path)
            self._fill(path, data)

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
        except BaseException:
            self._try_unlink(path)  # a full disk, or Ctrl-C, leaves no half a file behind
            raise

    def _try_unlink(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            self.calls.unlink(path)

    def _sync_file(self, path: Path) -> None:
        with _refused(path):
            fd = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
            try:
                self.calls.fsync(fd)
            finally:
                os.close(fd)

    def _make_folder(self, path: Path) -> None:
        """A folder and those above it; each new one's name is durable before anything is put into it."""
        if path.is_dir():
            return
        self._make_folder(path.parent)
        with contextlib.suppress(FileExistsError):  # a rival's is as good; if it is a file, the next call says so
            self.calls.mkdir(self._fenced(path))
        self.calls.fsync_folder(self._fenced(path.parent))

    def _fenced(self, path: Path) -> Path:
        """A path with the root below which no link is followed, where it lies there."""
        here = os.fspath(path)
        inside = here.startswith(self.root.rstrip(os.sep) + os.sep)
        return Below.of(self.root, here[len(self.root) :].lstrip(os.sep)) if inside else path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"


def remove_empty_folders(top: Path) -> None:
    """Remove a folder and those in it, as far as no file is in them; links are files."""
    for path, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):  # not empty: it stays
            Path(path).rmdir()


def holds_files(top: Path) -> bool:
    """Whether something is in a folder, however deep; other folders are nothing."""
    return any(files or any(Path(path, one).is_symlink() for one in inner) for path, inner, files in os.walk(top))


def _pieces(data: bytes | Path) -> Iterator[memoryview]:
    if not isinstance(data, Path):
        yield memoryview(data)
        return
    room = memoryview(bytearray(_PIECE))  # one for all: what is allocated anew is mapped anew, page by page
    with data.open("rb", buffering=0) as file:
        while count := file.readinto(room):
            yield room[:count]


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What the system forbids, in our own words."""
    try:
        yield
    except (ReadOnlyError, UnsafeReferenceError):
        raise
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        raise ReadOnlyError(
            f"{path} cannot be written: {error.strerror}. Check its permissions, or choose another place.",
            path=str(path),
        ) from error
