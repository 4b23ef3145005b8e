"""What only the table can know is wrong: findings T501 to T512, and those of its shards' bytes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, SeqlakeError
from seqlake.spec.findings import Finding
from seqlake.tables.standalone import checkpoints, markers, names
from seqlake.tables.standalone.adopting import strangers
from seqlake.tables.standalone.indexes import MediaFile
from seqlake.tables.standalone.log import Log, can_list, names_in, read
from seqlake.tables.standalone.lookup import ShardIndex
from seqlake.tables.standalone.publishing import metadata_is_behind, metadata_is_edited
from seqlake.tables.standalone.shards import placed_blob
from seqlake.tables.standalone.state import EMPTY, fold

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Depth
    from seqlake.tables.standalone.snapshot import Snapshot


def check(snapshot: Snapshot, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and the table around it, from the log outwards."""
    yield from _shards(snapshot)
    if not snapshot.plain and can_list(snapshot.store):
        log = Log(snapshot.store)
        yield from _surroundings(log)
        yield from _log(log)
        yield from _indexes(snapshot)
    if depth != "metadata":
        yield from _pages(snapshot)
    if depth in {"files", "decode"} and not snapshot.plain:
        yield from _files(snapshot)
        if can_list(snapshot.store):
            yield from _media(snapshot)


def _shards(snapshot: Snapshot) -> Iterator[Finding]:
    """T501, T502: shards that are gone or have another size."""
    state = snapshot.state
    for entry in state.shards.values():
        blob = placed_blob(snapshot.store, entry, version=state.version)
        try:
            blob.place  # noqa: B018 - looks for it
        except DamagedTableError as error:
            code = "T502" if " bytes at " in error.message else "T501"
            yield Finding(code=code, severity="error", message=str(error), location=names.data(entry.name))
    for beside in state.sides.values():
        for side in beside:
            try:
                snapshot.store.blob(f"{names.SIDE}/{side.name}")
            except FileNotFoundError:
                message = f"the columns {', '.join(side.columns)} of {side.of} lie in this file, which is gone"
                yield Finding(code="T501", severity="error", message=message, location=f"{names.SIDE}/{side.name}")


def _surroundings(log: Log) -> Iterator[Finding]:
    """T503 to T506: strangers, edited metadata, what a publish has not finished."""
    newest = log.newest()
    for name in strangers(log, newest):
        yield Finding(
            code="T503",
            severity="warning",
            message="not put there by seqlake and not read; `seqlake adopt` adds it, or take it away",
            location=f"{names.DATA}/{name}",
        )
    if metadata_is_edited(log.store, newest):
        yield Finding(
            code="T504",
            severity="warning",
            message="edited by hand and not used; `seqlake adopt` checks and commits it",
            location=names.METADATA,
        )
    elif metadata_is_behind(log.store, newest):
        yield Finding(
            code="T505",
            severity="note",
            message="absent or of an older version; the next opening for writing puts it right",
            location=names.METADATA,
        )
    yield from markers.findings(log.store)
    known = set(newest.shards)
    for name in names_in(log.store, names.DATA):
        if names.owner(name) is not None and name not in known:
            yield Finding(
                code="T507",
                severity="note",
                message="left by a publish that was interrupted; the next opening for writing moves it away",
                location=f"{names.DATA}/{name}",
            )


def _log(log: Log) -> Iterator[Finding]:
    """T508: checkpoints that do not say what the log says."""
    numbers = set(log.checkpoint_numbers())
    if not numbers:
        return
    state = EMPTY
    for record in log.records(0, log.newest().version):
        state = fold(state, [record])
        if record.version in numbers:
            path = names.checkpoint(record.version)
            try:
                found = checkpoints.decode(read(log.store, path) or b"", version=record.version, path=path)
                why = "" if found.same_table(state) else "it differs from the versions before it"
            except SeqlakeError as error:
                why = str(error)
            if why:
                message = f"{why}; it is derived: remove it, and it will be made again"
                yield Finding(code="T508", severity="error", message=message, location=path)


def _indexes(snapshot: Snapshot) -> Iterator[Finding]:
    """T509: shards whose ids and lengths have to be read from the shard itself."""
    state = snapshot.state
    found = ShardIndex(snapshot.store).find(state)
    for entry in state.shards.values():
        if entry.name not in found:
            yield Finding(
                code="T509",
                severity="note",
                message="no index file knows this shard, so that opening it for writing reads its ids",
                location=names.data(entry.name),
            )


def _media(snapshot: Snapshot) -> Iterator[Finding]:
    """T511: packet indexes that have to be made from the videos again."""
    for name in names_in(snapshot.store, names.MEDIA):
        path = f"{names.MEDIA}/{name}"
        try:
            MediaFile.decode(read(snapshot.store, path) or b"", path=path)
        except DamagedTableError as error:
            message = f"{error.message} Its videos are indexed when they are opened; remove it"
            yield Finding(code="T511", severity="note", message=message, location=path)


def _pages(snapshot: Snapshot) -> Iterator[Finding]:
    """P601 to P604: what the shards' own bytes say, page checksums among them, and the offset indexes of them."""
    from seqlake.shards.parquet import checking as parquet

    state = snapshot.state
    known = {} if snapshot.plain else ShardIndex(snapshot.store).find(state)
    for entry in state.shards.values():
        blob = placed_blob(snapshot.store, entry, version=state.version)
        location = entry.name if snapshot.plain else names.data(entry.name)
        kept = known[entry.name].offsets(entry.name) if entry.name in known else None
        try:
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=location)
        except DamagedTableError:
            continue  # T501 and T502 say so
    for beside in state.sides.values():
        for side in beside:
            path = f"{names.SIDE}/{side.name}"
            with suppress(FileNotFoundError):
                for finding in parquet.check(snapshot.store.blob(path)):
                    yield replace(finding, location=path)


def _files(snapshot: Snapshot) -> Iterator[Finding]:
    """T510: copied-in files that are gone or have another size; T512: other files that have another size."""
    for name, rows in ShardIndex(snapshot.store).find(snapshot.state).items():
        for file in rows.files(name):
            try:
                size = snapshot.store.blob(file.path).size
                why = "" if size == file.size else f"expected {file.size} bytes, found {size}"
            except FileNotFoundError:
                why = "copied in, and gone"
            if why:
                yield Finding(code="T510", severity="error", message=why, location=file.path)
        for path, expected, _ in rows.references(name):
            with suppress(OSError):  # not there, or no name of ours: the rows' own findings say so
                size = snapshot.store.blob(path).size
                if size != expected:
                    message = f"expected {expected} bytes, as when its rows were committed, found {size}"
                    yield Finding(code="T512", severity="warning", message=message, location=path)
