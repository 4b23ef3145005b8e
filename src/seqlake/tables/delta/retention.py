"""Versions of a Delta table: which can be read, what each has, and what is removed with those that cannot."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from seqlake.errors import VersionNotFoundError
from seqlake.tables._lakes.engine import Expired
from seqlake.tables._lakes.paths import removable
from seqlake.tables.delta.log import OLDEST, described, is_there
from seqlake.versions import names
from seqlake.versions.state import TableFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from seqlake.protocols import Version
    from seqlake.tables.delta.log import DeltaLog
    from seqlake.versions.state import TableState


def readable(log: DeltaLog, numbers: Sequence[int] | None = None, /) -> list[int]:
    """The versions that can be read: those with a file, without a hole, that no collection gave up.

    Args:
        log: The log.
        numbers: What `log.numbers()` gave, where it was asked already.
    """
    numbers = log.numbers() if numbers is None else numbers
    first = len(numbers) - 1
    while first > 0 and numbers[first - 1] == numbers[first] - 1:
        first -= 1
    oldest = log.oldest()
    return [number for number in numbers[max(first, 0) :] if number >= oldest]


def number_of(log: DeltaLog, version: int | str | datetime | None, /) -> int | None:
    """The number that is meant; None for the newest.

    Raises:
        VersionNotFoundError: A name, or a time before the oldest version that is left.
    """
    if version is None:
        return None
    if isinstance(version, datetime):
        for number in reversed(readable(log)):
            if _was_there(log, number, version):
                return number
        raise not_found(log, version.isoformat())
    # deltalake looks for one file of the log after the other up to the version that it was asked for.
    if isinstance(version, str) or version < log.oldest() or not is_there(log.store, since=version):
        raise not_found(log, version)
    return version


def _was_there(log: DeltaLog, number: int, moment: datetime) -> bool:
    """Whether a version was made by then; one whose file tells no time is not known to have been."""
    time = log.version(number).time
    return time.timestamp() > 0 and time <= moment


def not_found(log: DeltaLog, version: object, /) -> VersionNotFoundError:
    """The error for a version that is not there."""
    numbers = readable(log)
    left = f"versions {numbers[0]} to {numbers[-1]} can be read" if numbers else "none can be read"
    return VersionNotFoundError(
        f"{log.root} has no version {version}: {left}.", path=log.root, hint="`ds.versions()` lists them."
    )


def versions(log: DeltaLog, counted: Callable[[int], dict[str, int]], /) -> list[Version]:
    """The versions that can be read, with their rows, oldest first.

    Args:
        log: The log.
        counted: Path -> rows of a version's files, for the oldest one.
    """
    numbers = readable(log)
    kept = []
    rows: dict[str, int] = {}
    for number, actions in zip(numbers, log.many(numbers), strict=True):
        if number == numbers[0] and number > 0:
            rows = counted(number)
        else:
            for action in actions or []:
                if "remove" in action:
                    rows.pop(unquote(action["remove"]["path"]), None)
            for action in actions or []:
                if "add" in action:
                    rows[unquote(action["add"]["path"])] = _rows(action["add"], log)
        kept.append(replace(described(number, actions or []), rows=sum(rows.values())))
    return kept


def _rows(add: dict[str, Any], log: DeltaLog) -> int:
    counted = json.loads(add.get("stats") or "{}").get("numRecords")
    if counted is None:
        return _counted(unquote(add["path"]), log)
    return int(counted) - int((add.get("deletionVector") or {}).get("cardinality", 0))


def _counted(path: str, log: DeltaLog) -> int:
    """The rows of a file that the log does not count; 0 where it is gone."""
    from seqlake.shards.parquet.footer import read_footer
    from seqlake.tables._lakes.paths import blob_at

    with suppress(FileNotFoundError):
        return int(read_footer(blob_at(log.store, path, storage=None)).rows)
    return 0


def expire(
    log: DeltaLog,
    limit: datetime,
    /,
    *,
    dry_run: bool,
    state: Callable[[int | None], TableState],
    keep: Callable[[], Collection[int | str]] = tuple,
) -> Expired:
    """Give up versions that were replaced before `limit`, and remove the data files that only they named.

    The number of the oldest version that stays is kept first, so that none is half there; and what got a name until
    then stays, with all versions since.
    """
    every = log.numbers()  # listed once: what is committed from here on names no file that may go
    numbers = readable(log, every)
    if not numbers:  # only a checkpoint is left, which tells of one version alone
        return Expired(retained=state(None).files)
    oldest = next((n for n in reversed(numbers) if _was_there(log, n, limit)), numbers[0])
    kept = keep()
    oldest = min([oldest, *(n for n in numbers if n in kept)])
    if not dry_run and oldest > log.oldest():
        _write_oldest(log, oldest)
        kept = keep()
        late = [n for n in numbers if n < oldest and n in kept]
        if late:  # named after we looked; whoever names looks at the number afterwards
            oldest = late[0]
            _write_oldest(log, oldest)
    retained = {file.name: file for file in state(oldest).files}
    for actions in log.many([number for number in numbers if number > oldest]):
        retained |= {file.name: file for file in _added(actions or [])}
    ever = {path for actions in log.many(every) for path in _named(actions or [])}
    removed = removable(log.store, ever - retained.keys())
    if not dry_run:
        for path in removed:
            with suppress(FileNotFoundError):
                log.store.delete([path])
    return Expired(removed=removed, retained=list(retained.values()))


def _write_oldest(log: DeltaLog, number: int) -> None:
    log.store.put(OLDEST, str(number).encode(), temporary=names.temporary(names.new_transaction()))
    log.store.sync(names.OURS)


def _added(actions: Sequence[dict[str, Any]]) -> Iterator[TableFile]:
    for action in actions:
        if "add" in action:
            add = action["add"]
            counted = json.loads(add.get("stats") or "{}").get("numRecords")
            yield TableFile(
                name=unquote(add["path"]), rows=-1 if counted is None else int(counted), nbytes=int(add.get("size", -1))
            )


def _named(actions: Sequence[dict[str, Any]]) -> Iterator[str]:
    for action in actions:
        for kind in ("add", "remove"):
            if kind in action:
                yield unquote(action[kind]["path"])
