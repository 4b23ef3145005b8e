"""Publishing: `data/` and `mixtrain.json` become what the newest version says. Anybody's job, any number of times."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

from seqlake.errors import PublishPendingWarning
from seqlake.spec.unfolded import KEY, meant
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.log import Log, touched
from seqlake.tables.standalone.state import columns_of, files_of, fingerprint
from seqlake.versions import indexes, markers, names, staging
from seqlake.versions.small_files import in_parallel, on_disk, own_names, read, remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from seqlake.protocols import Store
    from seqlake.tables.standalone.state import State


def publish(log: Log, transaction: str, /, *, first: int) -> None:
    """Make visible what the versions since `first` changed.

    Args:
        log: The table's log.
        transaction: Whose temporary names are used.
        first: The oldest version that may not have been published.

    Raises:
        OSError: A step failed; whoever opens the table for writing next repeats all of them.
    """
    store = log.store
    while True:
        state = log.newest()
        store.sync(names.VERSIONS)
        moving = touched(log.records(first, state.version))
        _move_in(store, state, moving)
        _write_metadata(store, state, transaction)
        _move_out(store, state, moving)
        if not _overtaken(log, state, moving):
            break
    if checkpoints.due(state):
        write_checkpoint(log, state, transaction)


def publish_or_warn(log: Log, transaction: str, /, *, first: int) -> bool:
    """Publish; what goes wrong is a warning, because the commit stands and a repeated one would be a duplicate."""
    try:
        publish(log, transaction, first=first)
    except Exception as error:  # noqa: BLE001 - the commit stands, so nothing may say that it failed
        warnings.warn(
            f"{log.root}: version {first} is committed, but readers that glob data/ do not see all of it yet "
            f"({error}). Do not repeat the commit: the next opening for writing finishes it.",
            PublishPendingWarning,
            stacklevel=2,
        )
        return False
    return True


def recover(log: Log, transaction: str, newest: State, /) -> None:
    """Put right what transactions left that are under way or dead.

    Args:
        log: The table's log.
        transaction: The caller's own.
        newest: The newest version, as the caller read it. Who commits after that publishes for itself, or leaves
            a marker to the next who opens the table for writing.
    """
    store = log.store
    left = [marker for marker in markers.read_all(store) if marker.transaction != transaction]
    pending: dict[str, int] = {}
    for marker in left:
        since = log.records(max(marker.begin + 1, 0), newest.version)
        mine = [record.version for record in since if record.transaction == marker.transaction]
        if mine:
            pending[marker.transaction] = mine[0]
        elif any(marker.transaction in record.aborted for record in since):
            discard(store, marker.transaction)
    if not pending and not metadata_is_behind(store, newest):
        return
    if publish_or_warn(log, transaction, first=min(pending.values(), default=newest.version)):
        forget_markers(store, pending)


def forget_markers(store: Store, transactions: Iterable[str], /) -> None:
    """Remove the markers of transactions that are finished."""
    remove(store, [names.marker(t) for t in transactions])


def discard(store: Store, transaction: str, /) -> None:
    """Remove all that a transaction owns, its marker last."""
    sides = [f"{names.SIDE}/{name}" for name in own_names(store, names.SIDE) if names.side_owner(name) == transaction]
    staging.discard(store, transaction, others=sides)


# ---- mixtrain.json
def metadata_bytes(mixtrain: Mapping[str, Any], /) -> bytes:
    """`mixtrain.json` as we write it."""
    return (json.dumps(dict(mixtrain), ensure_ascii=False, indent=2) + "\n").encode()


def _present(store: Store) -> dict[str, Any] | None:
    """What `mixtrain.json` says now; None where it is absent, empty where it is no JSON object."""
    data = read(store, names.METADATA)
    if data is None:
        return None
    try:
        mixtrain = json.loads(data)
    except ValueError:
        return {}
    return mixtrain if isinstance(mixtrain, dict) else {}


def _is_ours(present: dict[str, Any], state: State) -> bool:
    """Whether some version said so, or said the same but for where the files lag behind, which only the log knows."""
    if fingerprint(present) in state.known:
        return True
    return KEY in present and fingerprint(meant(present, columns_of(state.schema))) in state.known


def metadata_is_behind(store: Store, state: State, /) -> bool:
    """Whether `mixtrain.json` is absent or an older one of ours: a publish is pending."""
    present = _present(store)
    return present is None or (fingerprint(present) != fingerprint(state.mixtrain) and _is_ours(present, state))


def metadata_is_edited(store: Store, state: State, /) -> bool:
    """Whether somebody else changed `mixtrain.json`: it is none that a version ever had."""
    present = _present(store)
    return present is not None and not _is_ours(present, state)


def _write_metadata(store: Store, state: State, transaction: str) -> None:
    if metadata_is_behind(store, state):
        store.put(names.METADATA, metadata_bytes(state.mixtrain), temporary=names.temporary(transaction))
        store.sync("")


# ---- shards
def move(store: Store, source: str, target: str, /) -> bool:
    """Move a shard one place forward; False where it is not there (any more)."""
    try:
        store.move(source, target)
    except FileNotFoundError:
        return False
    return True


def _move_in(store: Store, state: State, moving: Sequence[str]) -> None:
    there = [name for name in moving if name in state.shards]
    in_parallel(store, lambda name: move(store, names.staged(name), names.data(name)), there)
    if moving:
        store.sync(names.DATA)  # before anything goes out: a glob reader may see rows twice, but misses none


def _move_out(store: Store, state: State, moving: Sequence[str]) -> None:
    out = [name for name in moving if name not in state.shards]
    # One look at what is staged instead of one at each name: what left it does not come back.
    staged = None if on_disk(store) or not out else set(own_names(store, names.STAGED))

    def retire(name: str) -> None:
        if staged is None or names.staged(name).rpartition("/")[2] in staged:
            move(store, names.staged(name), names.retired(name))
        move(store, names.data(name), names.retired(name))

    in_parallel(store, retire, out)
    if out:
        store.sync(names.DATA)


def _overtaken(log: Log, state: State, moving: Sequence[str]) -> bool:
    """Whether a version newer than the one just published undoes part of it."""
    newest = log.newest()
    moved = set(moving)
    return any(
        record.mixtrain is not None or not moved.isdisjoint(record.remove)
        for record in log.records(state.version + 1, newest.version)
    )


# ---- checkpoints
def write_checkpoint(log: Log, state: State, transaction: str, /) -> None:
    """Write the checkpoint of a version, its index file first; a rival's is as good."""
    store = log.store
    index = names.merged_index(state.version, transaction)
    rows = indexes.ShardIndex(store).rows(files_of(state))
    store.put(f"{names.INDEX}/{index}", indexes.encode(rows), temporary=names.temporary(transaction))
    store.sync(names.INDEX)
    try:
        data = checkpoints.encode(state, index=index)
        path = names.checkpoint(state.version)
        store.put(path, data, if_absent=True, temporary=names.temporary(transaction))
    except FileExistsError:
        remove(store, [f"{names.INDEX}/{index}"])
    number = str(state.version).encode()
    store.put(names.LAST, number, temporary=names.temporary(transaction))
    log.forget()
