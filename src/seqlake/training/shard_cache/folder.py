"""What lies in the folder of a shard cache, and who uses it.

```text
lock                        held for the moment of every change
shards/<key>.parquet        one local shard
shards/<key>.json           what it was made of; without it, the shard counts as not there
shards/<key>.<user>.part    being made by that user; .mirror: what it is made of, as fetched
users/<user>.user           locked while its process lives: what it makes, holds and will need next
```

Only files of exactly these names are ever removed: a folder may hold other people's files beside them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.files import fence
from seqlake.training.shard_cache.copies import enough

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
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
        self.fd: int = os.open(path, _FLAGS, 0o666)
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


def can_lock(folder: Path, /) -> bool:
    """Whether files of a folder can be written and locked, which some file systems of networks refuse.

    Raises:
        OSError: They cannot.
    """
    path = folder / f"{os.getpid()}-{secrets.token_hex(8)}.probe"
    file = LockFile(path)
    try:
        return file.try_lock()
    finally:
        file.close()
        path.unlink(missing_ok=True)


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


_DIGEST = "sha256"
_SHARD = re.compile(r"([0-9a-f]{32})\.parquet")
_RECORD = re.compile(r"([0-9a-f]{32})\.json")
_PART = re.compile(r"([0-9a-f]{32})\.(\d+-[0-9a-f]{16})\.(?:part|mirror)")
_USER = re.compile(r"(\d+-[0-9a-f]{16})\.user")


@dataclass(slots=True, kw_only=True)
class UserClaims:
    """What one user says of itself, for the others to read.

    Attributes:
        making: Key -> bytes set aside for it.
        held: Keys of shards that it reads: nobody removes these.
        next: Keys of shards that it will need, the soonest first.
        order: Digest of the order of which it is a rank; empty where it has not said so, or is alone.
        rank: Which rank of it.
    """

    making: dict[str, int] = field(default_factory=dict)
    held: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    order: str = ""
    rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderInventory:
    """Everything that counts, at one moment under the lock.

    Attributes:
        entries: Bytes on disk of each shard that is there, by key.
        users: Claims of the users that are alive, by name.
        parts: Bytes on disk of what is being made, by key and user.
    """

    entries: Mapping[str, int]
    users: Mapping[str, UserClaims]
    parts: Mapping[tuple[str, str], int]

    @property
    def nbytes(self) -> int:
        """Bytes on disk and set aside."""
        aside = 0
        for name, claims in self.users.items():
            for key, room in claims.making.items():
                aside += max(room, self.parts.get((key, name), 0))
        return aside + sum(self.entries.values())

    @property
    def held(self) -> set[str]:
        """Keys that somebody reads."""
        return {key for claims in self.users.values() for key in claims.held}

    def distance(self) -> dict[str, int]:
        """How many shards come before a key, for the user that needs it soonest; absent: nobody said so."""
        distances: dict[str, int] = {}
        for claims in self.users.values():
            for at, key in enumerate(claims.next):
                distances[key] = min(at, distances.get(key, at))
        return distances


class Folder:
    """The folder of a cache; all but `locked` and `made` want the lock to be held."""

    def __init__(self, path: Path, /) -> None:
        self.path = path
        self.shards: Path = path / "shards"
        self.users: Path = path / "users"
        self._sizes: dict[str, tuple[int, int]] = {}  # file -> its inode, and the bytes on disk that were found

    def locked(self, *, patience: float) -> AbstractContextManager[None]:
        """The lock on everything here."""
        if not self.users.is_dir():
            self.shards.mkdir(parents=True, exist_ok=True)
            self.users.mkdir(exist_ok=True)
        for folder in (self.shards, self.users):  # what a link leads to is not the cache's to clean
            fence.refuse_links(str(self.path), folder.name)
        return locked(self.path / "lock", patience=patience)

    def shard(self, key: str, /) -> Path:
        """Where a shard lies."""
        return self.shards / f"{key}.parquet"

    def part(self, key: str, user: str, /) -> Path:
        """Where it is being made."""
        return self.shards / f"{key}.{user}.part"

    def record(self, key: str, /) -> Path:
        """Where it is said what a shard was made of."""
        return self.shards / f"{key}.json"

    def read_record(self, key: str, /) -> dict[str, Any] | None:
        """What is said of a shard; None where it is not there or torn."""
        try:
            record = json.loads(self.record(key).read_bytes())
        except (OSError, ValueError):
            return None
        whole = isinstance(record, dict) and record.pop(_DIGEST, None) == _digest(record)
        return record if whole and self.shard(key).exists() else None

    def write_record(self, key: str, record: Mapping[str, Any], /) -> None:
        """Say what a shard was made of; a torn record counts as none."""
        self.record(key).write_text(json.dumps({**record, _DIGEST: _digest(record)}), encoding="utf-8")

    def remove(self, key: str, /) -> None:
        """Remove a shard; those who have it open go on reading it."""
        for path in (self.shard(key), self.record(key)):
            path.unlink(missing_ok=True)

    # ---- users

    def join(self, user: str, /) -> LockFile:
        """Make the file of a user, locked."""
        file = LockFile(self.users / f"{user}.user")
        if not file.try_lock():
            file.close()
            raise OSError(11, "another process has this cache user's name", str(self.users))
        return file

    def leave(self, user: str, file: LockFile, /) -> None:
        """Remove a user with all that it left half made."""
        self._remove_parts(user)
        (self.users / f"{user}.user").unlink(missing_ok=True)
        file.close()

    def inventory(self, asking: str, /) -> FolderInventory:
        """Look at everything, and put right what dead users left.

        Args:
            asking: The user who asks; it is alive.
        """
        users = self.claims(asking)
        sizes_of: dict[str, dict[str, int]] = {"parquet": {}, "json": {}}
        parts: Counter[tuple[str, str]] = Counter()
        sizes: dict[str, tuple[int, int]] = {}
        with os.scandir(self.shards) as files:
            for file in files:
                named = _SHARD.fullmatch(file.name) or _RECORD.fullmatch(file.name)
                part = _PART.fullmatch(file.name)
                with suppress(FileNotFoundError):  # somebody else cleans up by hand
                    if named:  # neither is ever written to again: to look at each of thousands, every time, takes long
                        known = self._sizes.get(file.name)
                        if known is None or known[0] != file.inode():
                            known = file.inode(), allocated(file.stat())
                        sizes[file.name] = known
                        sizes_of[file.name.rpartition(".")[2]][named[1]] = known[1]
                    elif part and part[2] in users:
                        parts[part[1], part[2]] += allocated(file.stat())
                    elif part:
                        os.unlink(file.path)  # noqa: PTH108 - an entry of scandir
        self._sizes = sizes
        entries = {}
        for key in sizes_of["parquet"].keys() | sizes_of["json"].keys():
            shard, record = sizes_of["parquet"].get(key), sizes_of["json"].get(key)
            if shard is None and self._is_ours(key):
                self.record(key).unlink(missing_ok=True)  # a process was killed between the two
            elif shard is not None and record is not None:
                entries[key] = shard + record
        return FolderInventory(entries=entries, users=users, parts=parts)

    def claims(self, asking: str, /) -> dict[str, UserClaims]:
        """What the users say who are alive, by name."""
        return {name: claims for name in self._names() if (claims := self._claims(name, asking)) is not None}

    def used(self, key: str, /) -> int:
        """When a shard was opened last, in nanoseconds."""
        try:
            return self.record(key).stat().st_mtime_ns
        except OSError:
            return 0

    def _is_ours(self, key: str) -> bool:
        try:
            record = json.loads(self.record(key).read_bytes())
        except (OSError, ValueError):
            return False
        return isinstance(record, dict) and "form" in record

    def _names(self) -> Iterator[str]:
        for name in sorted(os.listdir(self.users)):  # noqa: PTH208 - names are what is wanted
            if match := _USER.fullmatch(name):
                yield match[1]

    def _claims(self, name: str, asking: str) -> UserClaims | None:
        """What a user says; None where its process has ended, and then its files are gone."""
        path = self.users / f"{name}.user"
        if name != asking:
            try:
                file = LockFile(path)
            except OSError:
                return None
            if file.try_lock():
                self.leave(name, file)
                return None
            file.close()
        return read_claims(path)

    def _remove_parts(self, user: str) -> None:
        for name in os.listdir(self.shards):  # noqa: PTH208 - names are what is wanted
            part = _PART.fullmatch(name)
            if part and part[2] == user:
                (self.shards / name).unlink(missing_ok=True)


def read_claims(path: Path, /) -> UserClaims:
    """What a user's file says; nothing, while its user has just begun."""
    try:
        return UserClaims(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return UserClaims()


def write_claims(file: LockFile, claims: UserClaims, /) -> None:
    """Write other claims where others read them."""
    text: dict[str, Any] = {"making": claims.making, "held": claims.held, "next": claims.next}  # `asdict` copies keys
    if claims.order:
        text |= {"order": claims.order, "rank": claims.rank}
    file.write(json.dumps(text).encode())


def _digest(record: Mapping[str, Any]) -> str:
    """Of a record as it was said; what rots in it would vouch for other bytes."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def allocated(status: os.stat_result, /) -> int:
    """Bytes that a file takes on disk; holes take none."""
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * 512


MOST_NEXT = 4096  # shards of a schedule that are told to the others
FULL: set[int] = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}


class User:
    """This process as a user of the folder; used under its lock, which also keeps threads apart."""

    def __init__(self, folder: Folder, holding: Counter[str]) -> None:
        self.folder = folder
        self.pid: int = os.getpid()
        self.name: str = f"{self.pid}-{secrets.token_hex(8)}"
        self.file: LockFile = folder.join(self.name)
        self.holding: Counter[str] = holding
        self.claims: UserClaims = UserClaims(held=sorted(+holding))
        self.tell()
        self.inventory()  # what dead users left goes

    def is_there(self) -> bool:
        """Whether the user's file is still in the folder: people remove caches."""
        try:
            return os.path.samestat(os.fstat(self.file.fd), (self.folder.users / f"{self.name}.user").stat())
        except OSError:
            return False

    def tell(self) -> None:
        """Write the claims where others read them."""
        try:
            write_claims(self.file, self.claims)
        except OSError as error:
            if error.errno not in FULL or not self.claims.next:
                raise
            self.claims.next = []  # a shorter text fits where the longer one lay
            write_claims(self.file, self.claims)

    def inventory(self) -> FolderInventory:
        """Everything in the folder that counts."""
        return self.folder.inventory(self.name)

    def maker(self, key: str) -> str | None:
        """The user that makes this shard, alive; another thread of this process counts as well."""
        return next((name for name, claims in self.folder.claims(self.name).items() if key in claims.making), None)

    def make(self, key: str) -> None:
        """Begin to make a shard."""
        self.claims.making.setdefault(key, 0)
        self.tell()

    def finish(self, key: str, *, hold: bool = False) -> None:
        """End a shard, made or given up."""
        self.claims.making.pop(key, None)
        if hold:
            self.hold(key)
        else:
            self.tell()

    def hold(self, key: str) -> None:
        """Hold a shard once more."""
        self.holding[key] += 1
        self.claims.held = sorted(+self.holding)
        self.tell()

    def let_go(self, key: str) -> None:
        """Hold it once less."""
        self.holding[key] -= 1
        self.holding = +self.holding
        self.claims.held = sorted(self.holding)
        self.tell()

    def free(self, nbytes: int, *, than: str | None, inventory: FolderInventory | None = None) -> bool:
        """Remove shards that nobody holds until so many bytes are free, those needed farthest ahead first.

        Args:
            nbytes: How many.
            than: Only what is needed later than this one.
            inventory: Of the folder, where it was just taken.

        Returns:
            Whether there were as many; if not, none was removed.
        """
        inventory = inventory or self.inventory()
        distance, held = inventory.distance(), inventory.held
        far = len(distance) + MOST_NEXT
        bound = -1 if than is None else distance.get(than, far)
        order = sorted(
            (
                (distance.get(key, far), 0 if key in distance else -self.folder.used(key), key)
                for key in inventory.entries
                if key not in held
            ),
            reverse=True,
        )
        gone = enough(((at, key, inventory.entries[key]) for at, _, key in order), nbytes, beyond=bound)
        for key in gone or ():
            self.folder.remove(key)
        return gone is not None
