"""A folder of local shards that never exceeds its limit, shared by the processes of one machine."""

from __future__ import annotations

import os
import shutil
import threading
import time
import weakref
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from seqlake.errors import CacheTooSmallError
from seqlake.training.shard_cache.copies import Draft, HeldCopy, NoRoomError
from seqlake.training.shard_cache.folder import FULL, MOST_NEXT, Folder, User, allocated
from seqlake.training.shard_cache.proof import proved, seal
from seqlake.training.shard_cache.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from seqlake.training.shard_cache.copies import LocalCopy
    from seqlake.training.shard_cache.originals import Original

_RECORD = 8192  # bytes on disk of what is said about a shard


class ShardCache:
    """Local shards by key.

    It pickles as a description, and every process that uses it is a user of its own; what a process held is free as
    soon as it ends, however it ends.

    Args:
        path: The folder; made when it is first used.
        limit: Bytes on disk that shards may take, those being made among them.
        patience: Seconds to wait for others: for the folder's lock, for a shard that another process makes to grow,
            for room that others hold.
    """

    def __init__(self, path: str | os.PathLike[str], /, *, limit: int, patience: float = 120.0) -> None:
        self.path: Path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links
        self.limit = limit
        self.patience = patience
        self._user: User | None = None
        self._turns: dict[int, threading.Lock] = {}

    # ---- reading

    def find(self, key: str, /) -> HeldCopy | None:
        """A shard that is there, held; None where it is not, or is damaged (then it is removed).

        Args:
            key: 32 hex digits.
        """
        with self._locked() as user:
            record = user.folder.read_record(key)
            if record is None:
                return None
            path = user.folder.shard(key)
            with suppress(OSError):
                os.utime(user.folder.record(key))  # used now
            user.hold(key)
        fresh = proved(path, record)
        if fresh is not record:
            with self._locked() as user, suppress(OSError):
                if user.folder.read_record(key) != record:
                    fresh = None  # another process has made it anew meanwhile
                elif fresh is None:
                    user.folder.remove(key)
                else:
                    user.folder.write_record(key, fresh)
        if fresh is None:
            self.release(key)
            return None
        return HeldCopy(key, path, fresh, release=self.release)

    def has(self, key: str, /) -> bool:
        """Whether it is there; nothing is checked or held."""
        with self._locked() as user:
            return user.folder.read_record(key) is not None

    def make(
        self, key: str, fill: Callable[[Draft], Mapping[str, Any]], /, *, name: object, ahead: bool = False
    ) -> HeldCopy | None:
        """A shard, made if it is not there; of several processes that want it, one makes it.

        Args:
            key: 32 hex digits.
            fill: Writes the shard to `draft.path`, after `draft.reserve`; gives what shall be known about it.
            name: What messages call it, as text: asked for only then.
            ahead: It is not needed yet: nothing that is needed sooner makes room for it, nobody is waited for, and it
                is not held.

        Returns:
            The shard, held; None for `ahead`.

        Raises:
            CacheTooSmallError: It does not fit beside what is in use; says the least limit that works.
            NoRoomError: The same, for `ahead`.
            TimeoutError: Another process makes it and does not get on.
            OSError: The disk is full, or whatever `fill` raised.
        """
        if ahead:
            return self._begin_and_fill(key, fill, name=name, ahead=True)
        while True:
            held = self.find(key)
            if held is None and self._await_other(key, name=name):
                held = self._begin_and_fill(key, fill, name=name, ahead=False)
            if held is not None:
                return held

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which shards this user will need next, the soonest first; what is needed farthest is removed first."""
        with self._locked() as user:
            user.claims.next = list(keys[:MOST_NEXT])
            user.tell()

    def join(self, order: str, rank: int, /) -> set[int]:
        """Say which rank of an order this user is; all ranks of it that use the folder just now, this one among them.

        Args:
            order: A digest of the order.
            rank: This process's.
        """
        with self._locked() as user:
            user.claims.order, user.claims.rank = order, rank
            user.tell()
            return {claims.rank for claims in user.inventory().users.values() if claims.order == order}

    def release(self, key: str, /) -> bool:
        """Hold a shard once less; whether it is not held at all any more."""
        if self._user is None or self._user.pid != os.getpid():
            return True  # closed, or the parent's
        with self._locked() as user:
            user.let_go(key)
            return key not in user.holding

    def nbytes(self) -> int:
        """Bytes on disk and set aside, of all users."""
        with self._locked() as user:
            return user.inventory().nbytes

    def close(self) -> None:
        """Hold nothing any more; shards stay for whoever comes next."""
        user, self._user = self._user, None
        if user is not None and user.pid == os.getpid():
            with user.folder.locked(patience=self.patience):
                user.folder.leave(user.name, user.file)

    # ---- making

    def _await_other(self, key: str, *, name: object) -> bool:
        """Wait while another process makes a shard; False when it is there, True when we are to make it."""
        seen, since, pause = -1, time.monotonic(), 0.005
        while True:
            with self._locked() as user:
                if user.folder.read_record(key) is not None:
                    return False
                other = user.maker(key)
                if other is None:
                    user.make(key)
                    return True
                size = user.inventory().parts.get((key, other), 0)
            if size != seen:
                seen, since = size, time.monotonic()
            if time.monotonic() - since > self.patience:
                raise TimeoutError(
                    f"{name}: process {other.partition('-')[0]} makes the local copy and has not got on for "
                    f"{self.patience:g} s. If it hangs, end it: this process then makes the copy itself."
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _begin_and_fill(
        self, key: str, fill: Callable[[Draft], Mapping[str, Any]], *, name: object, ahead: bool
    ) -> HeldCopy | None:
        with self._locked() as user:
            if ahead and (user.folder.read_record(key) is not None or user.maker(key) is not None):
                return None
            user.make(key)  # `_await_other` has, unless it is ahead
            draft = Draft(user.folder.part(key, user.name), reserve=partial(self.reserve, key, ahead=ahead))
        try:
            return self._filled(key, draft, fill, name=name, ahead=ahead)
        except BaseException:
            draft.remove()
            with self._locked() as user:
                user.finish(key)
            raise

    def _filled(
        self, key: str, draft: Draft, fill: Callable[[Draft], Mapping[str, Any]], *, name: object, ahead: bool
    ) -> HeldCopy | None:
        """Fill a draft and show it to all; on a full disk, again after others were removed."""
        while True:
            try:
                return self._publish(key, draft, seal(draft.path, fill(draft)), ahead=ahead)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                draft.remove()
                if ahead:
                    raise NoRoomError from error
                with self._locked() as user:
                    freed = user.free(max(draft.room, 1), than=None) or user.free(1, than=None)
                if not freed:
                    free = shutil.disk_usage(self.path).free
                    raise OSError(
                        error.errno,
                        f"{name}: the cache's disk is full ({free} bytes free; the cache may take {self.limit}). "
                        "Make room, give a lower limit or another folder: Cache(path, limit=...)",
                        str(self.path),
                    ) from error

    def _publish(self, key: str, draft: Draft, record: dict[str, Any], *, ahead: bool) -> HeldCopy | None:
        draft.reserve(allocated(draft.path.stat()) + len(str(record)))
        with self._locked() as user:
            other = user.folder.read_record(key)
            if other is None:
                user.folder.write_record(key, record)
                draft.path.replace(user.folder.shard(key))
            else:  # somebody may read it already
                draft.remove()
                record = other
            user.finish(key, hold=not ahead)
        return None if ahead else HeldCopy(key, user.folder.shard(key), record, release=self.release)

    def reserve(self, key: str, nbytes: int, /, *, ahead: bool) -> None:
        """Set bytes aside for a shard that is being made; see `Draft.reserve`."""
        room = nbytes + _RECORD
        end, pause = time.monotonic() + self.patience, 0.01
        while True:
            with self._locked() as user:
                inventory = user.inventory()
                missing = inventory.nbytes + room - user.claims.making.get(key, 0) - self.limit
                if missing <= 0 or user.free(missing, than=key if ahead else None, inventory=inventory):
                    user.claims.making[key] = room
                    user.tell()
                    return
                if ahead:
                    raise NoRoomError
                kept = {name for name, count in user.holding.items() if count}
                mine = sum(nbytes for one, nbytes in inventory.entries.items() if one in kept)
                held = sum(nbytes for one, nbytes in inventory.entries.items() if one in inventory.held)
            if mine + room > self.limit or time.monotonic() > end:
                least = max(mine + room, held + room if time.monotonic() > end else 0)
                raise self._too_small(room, least)
            time.sleep(pause)
            pause = min(pause * 2, 0.2)

    def _too_small(self, room: int, least: int) -> CacheTooSmallError:
        return CacheTooSmallError(
            f"The cache in {self.path} may take {self.limit} bytes; {least - room} are in use and a shard needs {room} "
            f"more, so {least} is the least that works.",
            path=str(self.path),
            hint=f"Allow more, Cache(path, limit={least}), or use fewer lanes: Shuffle(lanes=, block=).",
        )

    # ---- this process

    @contextmanager
    def _locked(self) -> Iterator[User]:
        # Threads of one process take turns without asking the disk; a forked child knows nobody of its parent's.
        turn = self._turns.setdefault(os.getpid(), threading.Lock())
        in_turn = turn.acquire(timeout=self.patience)
        try:
            folder = Folder(self.path)
            with folder.locked(patience=self.patience if in_turn else 0):
                yield self._used(folder)
        finally:
            if in_turn:
                turn.release()

    def _used(self, folder: Folder) -> User:
        """This process as a user, under the lock."""
        user = self._user
        if user is not None and user.pid != os.getpid():
            user = None  # the parent's; what it holds stays its own
        if user is None or not user.is_there():
            if user is not None:
                user.file.close()
            user = self._user = User(folder, Counter() if user is None else user.holding)
            # Who forgets to close must not hold anything for ever; whoever comes next removes the user's file.
            weakref.finalize(self, user.file.close).atexit = False
        return user

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_user": None, "_turns": {}}

    def __repr__(self) -> str:
        return f"ShardCache({str(self.path)!r}, limit={self.limit})"


class Copies(Protocol):
    """Where local shards lie: bounded; what is needed farthest ahead goes first."""

    def find(self, original: Original, /) -> LocalCopy | None:
        """One that is there, held; None where it is not."""

    def make(self, original: Original, /, *, ahead: bool = False) -> LocalCopy | None:
        """One, made if it is not there, and held; None for `ahead`, which holds nothing.

        Raises:
            CacheTooSmallError: It does not fit beside what is in use; says the least limit that works.
            NoRoomError: The same, for `ahead`: nothing that is needed sooner makes room.
            OSError: It cannot be fetched.
            CorruptFileError: Its bytes do not match their checksums.
        """

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which are needed next, the soonest first."""

    def join(self, order: str, rank: int, /) -> set[int]:
        """Say which rank of an order this is; all ranks that share this room."""

    def size(self, original: Original, steps: Mapping[str, int], /, *, look: bool) -> Size:
        """What a copy takes at most, known before it is made; see `Original.size_in_folder`."""


class InFolder:
    """Copies in a folder that processes share; see `Copies`.

    Args:
        cache: The folder.
    """

    def __init__(self, cache: ShardCache, /) -> None:
        self.cache = cache

    def find(self, original: Original, /) -> LocalCopy | None:
        """One that is there, held; None where it is not, or is damaged."""
        return _local(original, self.cache.find(original.key))

    def make(self, original: Original, /, *, ahead: bool = False) -> LocalCopy | None:
        """One, made if it is not there; see `ShardCache.make`."""
        return _local(original, self.cache.make(original.key, original.fill, name=original, ahead=ahead))

    def expect(self, keys: Sequence[str], /) -> None:
        """Say which are needed next, the soonest first."""
        self.cache.expect(keys)

    def join(self, order: str, rank: int, /) -> set[int]:
        """The ranks of an order that use the folder just now; see `ShardCache.join`."""
        return self.cache.join(order, rank)

    def size(self, original: Original, steps: Mapping[str, int], /, *, look: bool) -> Size:
        """What a copy takes at most, with what is said about it."""
        size = original.size_in_folder(steps, look=look)
        return Size(size.held + _RECORD, size.making)


def _local(original: Original, held: HeldCopy | None) -> LocalCopy | None:
    if held is None:
        return None
    try:
        return original.local(held)
    except BaseException:
        held.release()
        raise
