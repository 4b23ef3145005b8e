"""Writes a folder sample by sample: shards are finished in the background, the index comes last.

```text
<out>/shard.00000.mds ...     each whole under its name, or not there
<out>/_writing/settings.json  a run is under way, or was killed: what it writes
<out>/_writing/00000.json     one a finished shard: its entry of the index
<out>/index.json              written when everything is there; then `_writing/` goes
```

Until the index names them, no reader believes the shards. After a kill, `mode="append"` goes on behind the last
finished shard, and the end result is the same, byte for byte.
"""

from __future__ import annotations

import re
import warnings
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from seqlake.errors import DatasetExistsError, SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.files.locations import is_local, join, local_path
from seqlake.files.stores import open_store, read_all
from seqlake.formats._streaming import index as indexes
from seqlake.formats._streaming.cells import CellError
from seqlake.formats._streaming.index import SampleIndex
from seqlake.formats._streaming.packing import MOST, Packer, seal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from seqlake.formats._streaming.index import IndexedShard

JOURNAL = "_writing"
SETTINGS = f"{JOURNAL}/settings.json"
_PASSING = ".tmp"
_NUMBERED = re.compile(r"shard\.(\d+)\.")
_WRITTEN = re.compile(rf"shard\.\d{{5,}}\.[a-z.0-9]+|{JOURNAL}/[\w.]+")
_WORKERS = 2
_WAITING = 3  # finished shards in memory that are not stored yet


def begin(
    out: str,
    packer: Packer,
    /,
    *,
    mode: str = "new",
    storage: Mapping[str, str] | None = None,
    extension: Mapping[str, Any] | None = None,
    claim: bool = True,
) -> SampleWriter:
    """Begin to write a folder, or go on with one.

    Args:
        out: The folder, absolute.
        packer: The format, with its columns and settings.
        mode: `new` needs a new or empty folder. `append` adds to what is there, and takes over what an interrupted
            run with the same settings finished. `replace` removes what a writer left, and only that, then begins anew.
        storage: Options of the store.
        extension: What our own key of the index holds.
        claim: Write the index at the end; else this is a part of something, and `entries` says what it holds.

    Raises:
        DatasetExistsError: `new`, and something is there; `append`, and the index has a name that the next shard takes;
            `replace`, and files are there that no writer wrote.
        SchemaMismatchError: `append`, and the interrupted run wrote something else.
    """
    if not isinstance(mode, str) or mode not in {"new", "append", "replace"}:
        raise ValueError(f'mode is "new", "append" or "replace", found {mode!r}.')
    store: Any = open_store(out, storage=storage)
    entries: list[IndexedShard] = []
    kept: list[IndexedShard] = []
    if mode == "new":
        _refuse_occupied(out, store)
    elif mode == "replace":
        _remove_written(out, store)
    else:
        before = _indexed(out, store)
        entries, extension = list(before.entries), extension or before.extension
        _refuse_taken(out, entries)
        kept = _left_behind(out, store, packer, entries)
    if claim:
        _put(store, SETTINGS, _settings(packer))
    return SampleWriter(out, packer, store, entries=entries, kept=kept, extension=extension, claim=claim)


def _put(store: Any, name: str, data: bytes) -> None:
    """A file, whole; the name it has before is always the same, so that a kill leaves nothing that is not found."""
    store.put(name, data, temporary=f"{JOURNAL}/{name.removeprefix(JOURNAL + '/')}{_PASSING}")


def remove_empty(out: str, folder: str, /) -> None:
    """Remove a local folder if nothing is in it; stores of objects have none."""
    if is_local(out):
        with suppress(OSError):
            local_path(join(out, f"./{folder}")).rmdir()


def _settings(packer: Packer) -> bytes:
    return packer.config.header()


def _refuse_occupied(out: str, store: Any) -> None:
    paths = {path for path, _ in store.list()}
    if paths:
        ours = SETTINGS in paths
        hint = 'Give another location, or add to it with mode="append".'
        killed = (
            f'An interrupted run lies there: go on with mode="append"; to begin anew, remove only {JOURNAL}/ first.'
        )
        text = f"The output must be new or empty; {out} is not."
        raise DatasetExistsError(text, path=out, hint=killed if ours else hint)


def _remove_written(out: str, store: Any) -> None:
    """Make room for a new run; the index goes first, so that no reader sees some of the shards."""
    paths = {path for path, _ in store.list()}
    named = {file.name for entry in _indexed(out, store).entries for file in entry.stored}
    written = {path for path in paths if path in named or path == indexes.NAME or _WRITTEN.fullmatch(path)}
    if strange := sorted(paths - written):
        raise DatasetExistsError(
            f"{out} holds {strange[0]}, which no writer wrote; only shards and their index are replaced.",
            path=out,
            hint="Give another location, or move that file away.",
        )
    store.delete([indexes.NAME] if indexes.NAME in paths else [])
    store.delete(sorted(written - {indexes.NAME}))


def _indexed(out: str, store: Any) -> SampleIndex:
    try:
        data = read_all(store.blob(indexes.NAME))
    except (FileNotFoundError, NotADirectoryError):
        return SampleIndex(entries=())
    return indexes.parse(data, location=f"{out}/{indexes.NAME}")


def _refuse_taken(out: str, entries: Sequence[IndexedShard]) -> None:
    """Shards are numbered by their place in the index: one that was dropped from it makes the last number taken."""
    for name in (file.name for entry in entries for file in entry.stored):
        match = _NUMBERED.match(name)
        if match is not None and int(match[1]) >= len(entries):
            raise DatasetExistsError(
                f"The index of {out} has {len(entries)} shards and names {name}, which appended ones would replace.",
                path=out,
                hint="Write into a folder of its own, then merge the two.",
            )


def _left_behind(out: str, store: Any, packer: Packer, entries: Sequence[IndexedShard]) -> list[IndexedShard]:
    """What an interrupted run finished, up to the first shard that it did not; the rest of its files goes."""
    names = sorted(path for path, _ in store.list(JOURNAL))
    if SETTINGS not in names:
        return []
    settings = read_all(store.blob(SETTINGS))
    if settings != _settings(packer):
        raise SchemaMismatchError(
            f"The interrupted run at {out} wrote other columns or settings: {settings.decode(errors='replace')}.",
            path=out,
            hint=f"Give the same ones, or remove only {JOURNAL}/, which gives up what the run wrote.",
        )
    store.delete([name for name in names if name.endswith(_PASSING)])
    written = {}
    for name in names:
        if name != SETTINGS and not name.endswith(_PASSING):
            [written[name]] = indexes.parse(read_all(store.blob(name)), location=f"{out}/{name}").entries
    kept = []
    number = len(entries)
    while _journal(number) in written:
        kept.append(written.pop(_journal(number)))
        number += 1
    # Journalled, but behind one that is missing: they are written anew. A kill after the index was put leaves journals
    # of shards that are committed: these stay.
    indexed = {file.name for entry in entries for file in entry.stored}
    left = {file.name for entry in written.values() for file in entry.stored}
    store.delete(sorted(left - indexed))
    store.delete(list(written))
    return kept


class SampleWriter:
    """Writes samples; as a context manager it finishes at the end, and after an exception it claims nothing.

    Attributes:
        kept: Samples in the folder that an interrupted run left behind and that need not be written again.

    Example:
        ```python
        with sl.create("out", {"tokens": "bytes"}, format="mds", compression="zstd:7") as writer:
            for tokens in texts:
                writer.write({"tokens": tokens})
        ```
    """

    def __init__(
        self,
        out: str,
        packer: Packer,
        store: Any,
        /,
        *,
        entries: Sequence[IndexedShard] = (),
        kept: Sequence[IndexedShard] = (),
        extension: Mapping[str, Any] | None = None,
        claim: bool = True,
    ) -> None:
        self._claim = claim
        self._out = out
        self._packer = packer
        self._store = store
        self._extension = extension
        self._entries = [*entries, *kept]
        self._before = len(entries)
        self.kept: int = sum(entry.samples for entry in kept)
        self._flushed = sum(entry.samples for entry in self._entries)
        self._new: list[bytes] = []
        self._size = packer.base
        self._each = packer.each
        self._limit = packer.config.size_limit
        self._most = min(self._limit or MOST - 1, MOST - 1)
        self._pack = packer.sample
        self._pool: ThreadPoolExecutor | None = None
        self._running: deque[Future[IndexedShard]] = deque()
        self._number = len(self._entries)
        self._closed = False
        self._failed = False

    def __del__(self) -> None:
        if self._claim and not self._closed and not self._failed and (self._new or self._number > self._before):
            warnings.warn(
                f"A writer to {self._out} is gone before it was finished: its index was not written, so that nobody "
                'reads what it wrote. Write `with sl.create(...) as writer:`, or call finish(); mode="append" goes on.',
                stacklevel=2,
            )

    def write(self, sample: Mapping[str, Any], /) -> None:
        """Add one sample.

        Args:
            sample: A value for every column; other keys are dropped. Values that are `bytes` are stored as they are.

        Raises:
            ValidationError: A value that its encoding does not take; names the column. The sample is not added.
            SeqlakeError: A shard could not be stored.
        """
        try:
            packed = self._pack(sample)
        except CellError as error:
            raise ValidationError(f"Sample {self.samples}: {error}.", path=self._out) from error
        except (TypeError, LookupError) as error:
            given: Any = sample
            if isinstance(given, Mapping):
                raise
            problem = f"expected a dict of values by column, found {type(given).__name__}"
            raise ValidationError(f"Sample {self.samples}: {problem}.", path=self._out) from error
        size = self._size + len(packed) + self._each
        if size > self._most:
            self.add(packed)
            return
        self._new.append(packed)
        self._size = size

    def add(self, sample: bytes, /) -> None:
        """Add one sample that is encoded already."""
        size = len(sample) + self._packer.each
        # The official writers close a shard that is still empty where the very first sample is above the limit.
        if self._limit and self._limit < self._size + size and (self._new or not self._number):
            self._flush()
        if self._size + size >= MOST:
            raise ValidationError(
                f"Sample {self.samples}: the shard would have {self._size + size} bytes, and 4 GiB is the most.",
                path=self._out,
                hint="Give a size_limit.",
            )
        self._new.append(sample)
        self._size += size

    @property
    def samples(self) -> int:
        """Samples in the folder so far, with those that were there before."""
        return self._flushed + len(self._new)

    def write_all(self, samples: Iterable[Mapping[str, Any]], /) -> None:
        """Add many samples, one by one."""
        for sample in samples:
            self.write(sample)

    def _flush(self) -> None:
        samples, self._new, self._size = self._new, [], self._packer.base
        self._flushed += len(samples)
        while len(self._running) >= _WAITING:
            self._collect()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="seqlake-shards")
        self._running.append(self._pool.submit(self._store_shard, samples, self._number))
        self._number += 1

    def _store_shard(self, samples: list[bytes], number: int) -> IndexedShard:
        entry, files = seal(self._packer, samples, f"shard.{number:05d}")
        for name, data in files.items():
            _put(self._store, name, data)
        if self._claim:
            _put(self._store, _journal(number), indexes.dump([entry]))
        return entry

    def _collect(self) -> None:
        """Wait for the oldest shard; one that could not be stored is the end."""
        try:
            self._entries.append(self._running.popleft().result())
        except BaseException:
            self._failed = True
            self._close()
            raise

    def finish(self) -> None:
        """Store what is left and write the index; only then is the dataset there.

        Raises:
            SeqlakeError: Something could not be stored, or an exception ended the writing; the index is not written.
        """
        if self._failed:
            raise SeqlakeError(
                f"The writing at {self._out} ended before everything was stored; it is not finished.",
                path=self._out,
                hint='Go on behind the last whole shard with mode="append".',
            )
        if self._closed:
            return
        self._failed = True  # until all is there
        if self._new:
            self._flush()
        while self._running:
            self._collect()
        self._close()
        self._store.sync("")  # the shards' names are durable before the index says them
        if self._claim:
            _put(self._store, indexes.NAME, indexes.dump(self._entries, extension=self._extension))
            self._store.sync("")
            self._forget()
        else:
            remove_empty(self._out, JOURNAL)
        self._failed = False

    def _forget(self) -> None:
        """Remove the journal; nothing else in its folder is touched."""
        written = [_journal(number) for number in range(self._before, len(self._entries))]
        self._store.delete([*written, SETTINGS])
        remove_empty(self._out, JOURNAL)

    @property
    def entries(self) -> list[IndexedShard]:
        """The shards that are stored, in order."""
        return list(self._entries)

    def _refuse(self, _: Mapping[str, Any], /) -> bytes:
        raise SeqlakeError("This writer is closed.", path=self._out)

    def _close(self) -> None:
        self._closed = True
        self._pack = self._refuse
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self._failed = self._failed or not self._closed
            self._close()

    def __repr__(self) -> str:
        return f"SampleWriter({self._out!r}, {self.samples} samples)"


def _journal(number: int) -> str:
    return f"{JOURNAL}/{number:05d}.json"
