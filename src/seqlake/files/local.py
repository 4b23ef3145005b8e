"""A folder of this machine as a store: whole and durable, or not there.

Every call that changes the disk goes through one small object, `SystemCalls`, in the order that a power loss at any
moment needs: bytes before names, names before what relies on them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seqlake.errors import ReadOnlyError, UnsafeReferenceError
from seqlake.files import fence
from seqlake.files.blobs import LocalBlob
from seqlake.files.locations import checked, folder
from seqlake.files.system_calls import SystemCalls, no_hard_links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FORBIDDEN = {errno.EACCES, errno.EROFS, errno.EPERM}
_PIECE = 8 << 20


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
        self.root = os.path.abspath(root)  # noqa: PTH100 - resolve() follows links
        self.calls = calls or SystemCalls()
        self.mapped = mapped
        self.allow_outside = allow_outside

    def blob(self, path: str, /) -> LocalBlob:
        """The file of that name.

        Raises:
            FileNotFoundError: There is none.
            UnsafeReferenceError: The name leaves the root, or a link does.
        """
        name = checked(path)
        if not self.allow_outside:
            fence.refuse_outside(self.root, name)
        return LocalBlob(Path(self.root, name), mapped=self.mapped)

    def list(self, prefix: str = "", /, *, after: str = "") -> Iterator[tuple[str, int]]:
        """(path, size) of the files below a folder, in the order of their whole names.

        Args:
            prefix: The folder, relative to the root; the root itself by default. One that is not there is empty.
            after: Begin behind this path.

        Raises:
            UnsafeReferenceError: A link to a folder leads out of the root.
        """
        entries = fence.walk(self.root, folder(prefix), allow_outside=self.allow_outside)
        return (entry for entry in entries if entry[0] > after)

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
            with fence.parent_of(target):
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
            path = self._path(folder(name).rstrip("/")) if name else Path(self.root)
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
        return fence.Below.of(self.root, checked(path))

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
        return fence.Below.of(self.root, here[len(self.root) :].lstrip(os.sep)) if inside else path

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
    with data.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield memoryview(piece)


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
