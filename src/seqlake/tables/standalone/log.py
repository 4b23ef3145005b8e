"""Reading the log: the newest state, an older one, the records between. Writes nothing, ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

from seqlake.abilities import SeesNames, ability
from seqlake.errors import DamagedTableError, UnsupportedVersionError, VersionNotFoundError
from seqlake.files.stores import exists
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.records import VersionRecord, parse
from seqlake.tables.standalone.state import EMPTY, State, fold
from seqlake.versions import names
from seqlake.versions.small_files import can_list, names_in, read, read_many

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from seqlake.protocols import Store

_REMEMBERED = 1024
_AHEAD = 9  # numbers that one look takes in: the next, and those above it for what lies behind a gap


class Log:
    """The log of one table; remembers what it has read, which never changes.

    Attributes:
        store: The table's root.
        in_doubt: Transactions that asked for a version here and have not seen that they did not get it: for them
            the log decides, and nothing of theirs is discarded without asking it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._newest = EMPTY
        self._hint: bytes | None = None  # as it was when somebody asked whether a dataset is there
        self._records: dict[int, VersionRecord] = {}
        self._lock = RLock()  # threads may share a table
        self._is_whole = False
        self.in_doubt: set[str] = set()

    def is_there(self) -> bool:
        """Whether a dataset lies here: versions of ours, or `mixtrain.json`."""
        # Most who ask read the log next: its hint, which may be old, comes in the time of the other.
        metadata, hint = read_many(self.store, [names.METADATA, names.LAST])
        self._hint = hint or b""
        return metadata is not None or hint is not None or read(self.store, names.version(0)) is not None

    def newest(self) -> State:
        """The state of the newest version; its `version` is -1 where there is no log.

        Raises:
            DamagedTableError: A record that cannot be used.
        """
        with self._lock:
            state, listed = self._newest, None
            if state.version < 0:
                state, listed = self._begin()
            records = self._after(state.version, listed)
            if records or state is not self._newest:
                self._newest = fold(state, records)
            return self._newest

    def at(self, version: int, /) -> State:
        """The state of a version.

        Raises:
            VersionNotFoundError: It expired, or was never there.
        """
        newest = self.newest()
        if not newest.is_readable(version):
            raise self.not_found(version, newest)
        if version == newest.version:
            return newest
        state = self._checkpoint(version)
        return fold(state, self.records(state.version + 1, version))

    def not_found(self, version: int | str, newest: State) -> VersionNotFoundError:
        """The error for a version that is not there."""
        named = f", or a tag ({', '.join(sorted(newest.tags)[:10])})" if newest.tags else ""
        return VersionNotFoundError(
            f"Expected a version from {newest.oldest} to {newest.version}{named}, found {version!r}.",
            path=self.root,
            hint="`seqlake versions` lists those that are left; older ones were removed by `vacuum`.",
        )

    @property
    def root(self) -> str:
        """The table's location, for messages."""
        return self.store.root

    def forget(self) -> None:
        """Read the newest state from a checkpoint again, next time."""
        self._newest = EMPTY

    def at_time(self, time: datetime, /) -> State:
        """The last version whose `time` is not later.

        Raises:
            VersionNotFoundError: All are later, or it expired.
        """
        newest = self.newest()
        if newest.time <= time:
            return newest
        # Clocks of writers may differ, so every version from the newest down is asked; more at a time each time.
        last, many = newest.version, 1
        while last >= newest.oldest:
            first = max(newest.oldest, last - many + 1)
            for record in reversed(self.records(first, last)):
                if record.time <= time:
                    return self.at(record.version)
            last, many = first - 1, min(4 * many, _REMEMBERED)
        raise self.not_found(time.isoformat(), newest)

    def record(self, version: int, /) -> VersionRecord:
        """One record that is known to be there."""
        return self.records(version, version)[0]

    def records(self, first: int, last: int, /) -> list[VersionRecord]:
        """The records of these versions, both included.

        Raises:
            DamagedTableError: One is gone or cannot be used.
        """
        with self._lock:
            wanted = [number for number in range(first, last + 1) if number not in self._records]
            paths = names.versions(wanted) if wanted else []
            for number, path, data in zip(wanted, paths, read_many(self.store, paths), strict=True):
                if data is None:
                    raise self._gone(number)
                self._remember(data, number, path)
            records = [self._records[number] for number in range(first, last + 1)]
            for number in list(self._records)[:-_REMEMBERED]:
                del self._records[number]
            return records

    def each(self, first: int, last: int, /) -> Iterator[VersionRecord]:
        """The records of these versions, as `records` has them; however many, some of them are in memory at a time."""
        for at in range(first, last + 1, _REMEMBERED):
            yield from self.records(at, min(at + _REMEMBERED - 1, last))

    def transaction_in(self, transaction: str, /, *, after: int) -> VersionRecord | None:
        """The record that this transaction made, if it made one after that version."""
        newest = self.newest()
        for record in self.each(max(after + 1, 0), newest.version):
            if record.transaction == transaction:
                return record
        return None

    def probe(self, version: int, /) -> VersionRecord | None:
        """The record of a version, read anew; None where there is none yet."""
        path = names.version(version)
        data = read(self.store, path)
        return None if data is None else parse(data, version=version, path=path)

    def checkpoint_numbers(self) -> list[int]:
        """The versions that have a checkpoint, oldest first."""
        listed = names_in(self.store, names.CHECKPOINTS)
        return sorted(n for name in listed if (n := names.checkpoint_number(name)) is not None) if listed else []

    def index_of_checkpoint(self, number: int, /) -> str | None:
        """The name of a checkpoint's index file; None where the checkpoint cannot be used."""
        state = self._load(number)
        return None if state is None else state.index

    def _remember(self, data: bytes, number: int, path: str) -> VersionRecord:
        record = parse(data, version=number, path=path)
        self._records[number] = record
        return record

    def _after(self, version: int, listed: Sequence[str] | None = None) -> list[VersionRecord]:
        """The records that came after a version: probed one by one locally, listed once elsewhere."""
        if self._is_listed:
            if listed is None:
                listed = names_in(self.store, names.VERSIONS, after=f"{version:020d}.json" if version >= 0 else "")
            numbers = [n for name in listed if (n := names.version_number(name)) is not None and n > version]
            return self.records(version + 1, max(numbers)) if numbers else []
        records: list[VersionRecord] = []
        while True:
            number = version + 1 + len(records)
            while (known := self._records.get(number)) is not None:
                records.append(known)
                number += 1
            came = [self._remember(data, number + i, path) for i, (path, data) in enumerate(self._look(number))]
            records += came
            if not came:  # nothing in the last look, which saw what lies beyond
                return records

    def _look(self, number: int) -> Iterator[tuple[str, bytes]]:
        """(path, bytes) of the records from this version to the first that is not there; on disk a few at a time.

        Raises:
            DamagedTableError: One is not there, and another above it is.
        """
        known = self._known
        paths = names.versions(range(number, number + (1 if known is None else _AHEAD)))
        # What is not taken is worth no request, where that can be told cheaply; the fence is asked when one is read.
        there = paths if known is None else list(known.taken(paths))
        for path in paths:
            data = read(self.store, path) if path in there else None
            if data is None and there and any(later > path and exists(self.store, later) for later in there):
                data = read(self.store, path)  # two rivals may have come meanwhile
                if data is None:
                    raise self._gone(number + paths.index(path))
            if data is None:
                return
            yield path, data

    def refuse_holes(self) -> State:
        """List the log, once, for a version above a gap however wide: the next commit would go into the gap.

        Where the log is listed to be read, nothing more is asked.

        Returns:
            The state of the newest version.

        Raises:
            DamagedTableError: There is a gap.
        """
        if self._is_whole or self._is_listed or not can_list(self.store):
            return self.newest()
        numbers = [n for name in names_in(self.store, names.VERSIONS) if (n := names.version_number(name)) is not None]
        newest = self.newest()  # read after the listing, so that what rivals add is no gap
        if max(numbers, default=-1) > newest.version:
            raise self._gone(newest.version + 1)
        self._is_whole = True
        return newest

    def _gone(self, number: int) -> DamagedTableError:
        return DamagedTableError(
            f"{names.version(number)} is gone from {self.root}, and later versions are there.",
            path=self.root,
            hint="The log never shrinks by itself; restore the file from a copy.",
        )

    @cached_property
    def _known(self) -> SeesNames | None:
        """What tells for next to nothing whether the next version is there, as a disk does."""
        return ability(self.store, SeesNames)

    @cached_property
    def _is_listed(self) -> bool:
        """Whether one request that lists the log is cheaper here than probing for the next version."""
        return self._known is None and can_list(self.store)

    def _begin(self) -> tuple[State, Sequence[str] | None]:
        """The newest usable checkpoint, and the names of all versions where they came in the time of looking for it."""
        hint = self._hinted()
        if hint is not None or not self._is_listed:
            return self._checkpoint(None) if hint is None else hint, None
        with ThreadPoolExecutor(1) as pool:
            versions = pool.submit(names_in, self.store, names.VERSIONS)
            return self._checkpoint(None), versions.result()

    def _checkpoint(self, limit: int | None) -> State:
        """The largest usable checkpoint up to a version; the empty state where there is none."""
        numbers = self.checkpoint_numbers() if can_list(self.store) else []
        for number in reversed(numbers):
            if limit is not None and number > limit:
                continue
            state = self._load(number)
            if state is not None:
                return state
        return EMPTY

    def _hinted(self) -> State | None:
        seen, self._hint = self._hint, None
        text = (read(self.store, names.LAST) or b"" if seen is None else seen).strip()
        return self._load(int(text)) if text.isdigit() and len(text) <= 20 else None

    def _load(self, number: int) -> State | None:
        data = read(self.store, names.checkpoint(number))
        if data is None:
            return None
        try:
            return checkpoints.decode(data, version=number, path=names.checkpoint(number))
        except (DamagedTableError, UnsupportedVersionError):
            return None  # It is derived: the log is read, which refuses what is too new. `check` reports it.


def touched(records: Iterable[VersionRecord], /) -> list[str]:
    """The names that these versions added or removed, each once, in order."""
    ordered: dict[str, None] = {}
    for record in records:
        ordered.update(dict.fromkeys(entry.name for entry in record.add))
        ordered.update(dict.fromkeys(record.remove))
    return list(ordered)
