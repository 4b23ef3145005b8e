"""What only the table can know is wrong: findings T501 to T515, and those of its shards' bytes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.errors import DamagedTableError, SeqlakeError
from seqlake.spec.findings import Finding
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.adopting import strangers
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.lookup import ShardIndex
from seqlake.tables.standalone.publishing import metadata_is_behind, metadata_is_edited
from seqlake.tables.standalone.shards import placed_blob, placed_side, side_shard
from seqlake.tables.standalone.state import EMPTY, fold
from seqlake.versions import markers, names
from seqlake.versions.indexes import IndexFile, MediaFile
from seqlake.versions.small_files import can_list, names_in, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Depth
    from seqlake.tables.standalone.records import SideEntry
    from seqlake.tables.standalone.snapshot import StandaloneSnapshot
    from seqlake.tables.standalone.state import State


def check(snapshot: StandaloneSnapshot, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and the table around it, from the log outwards."""
    yield from _shards(snapshot)
    if not snapshot.plain and can_list(snapshot.store):
        log = Log(snapshot.store)
        yield from _surroundings(log)
        yield from _log(log)
        yield from _indexes(snapshot)
    if depth != "metadata":
        yield from _side_bytes(snapshot)
        yield from _pages(snapshot)
    if depth in {"files", "decode"} and not snapshot.plain:
        yield from _files(snapshot)
        if can_list(snapshot.store):
            yield from _media(snapshot)


def _shards(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
    """T501, T502: shards and side shards that are gone or have another size."""
    store, state = snapshot.store, snapshot.state
    blobs = {names.data(e.name): placed_blob(store, e, version=state.version) for e in state.shards.values()}
    for side in _sides(state):
        blobs[f"{names.SIDE}/{side.name}"] = placed_side(store, side, version=state.version)
    for path, blob in blobs.items():
        try:
            blob.place  # noqa: B018 - looks for it
        except DamagedTableError as error:
            code = "T502" if " bytes at " in error.message else "T501"
            yield Finding(code=code, severity="error", message=str(error), location=path)


def _sides(state: State) -> list[SideEntry]:
    return [side for beside in state.sides.values() for side in beside]


def _side_bytes(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
    """T515: side shards that have other bytes than were committed, or not what the log promises."""
    state = snapshot.state
    for side in _sides(state):
        rows, why = state.shards[side.of].rows, ""
        try:
            placed_side(snapshot.store, side, version=state.version).place  # noqa: B018 - looks for it
            reader = side_shard(snapshot.store, side, rows=rows, version=state.version).open()
            absent = set(side.columns.values()) - set(reader.schema.names)
            if absent or reader.rows != rows:
                why = f"expected {rows} rows and the columns {', '.join(side.columns.values())}, found {reader.rows} "
                why += f"rows and {', '.join(reader.schema.names)}"
        except DamagedTableError as error:
            why = "" if "was found " in error.message else str(error)  # T501 and T502 say so
        except SeqlakeError as error:
            why = str(error)
        if why:
            message = f"{', '.join(side.columns)} of {side.of}: {why}"
            yield Finding(code="T515", severity="error", message=message, location=f"{names.SIDE}/{side.name}")


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
    """T508, T514: checkpoints that do not say what the log says, and a log that is not whole."""
    numbers = set(log.checkpoint_numbers())
    state = EMPTY
    try:
        log.refuse_holes()
        for record in log.records(0, log.newest().version):
            state = fold(state, [record])
            if record.version in numbers:
                yield from _checkpoint(log, state)
    except DamagedTableError as error:
        place = names.version(state.version + 1)
        yield Finding(code="T514", severity="error", message=str(error), location=place)


def _checkpoint(log: Log, state: State) -> Iterator[Finding]:
    path = names.checkpoint(state.version)
    try:
        found = checkpoints.decode(read(log.store, path) or b"", version=state.version, path=path)
        why = "" if found.same_table(state) else "it differs from the versions before it"
    except SeqlakeError as error:
        why = "" if checkpoints.is_unsealed(read(log.store, path) or b"") else str(error)
    if why:
        message = f"{why}; it is derived: remove it, and it will be made again"
        yield Finding(code="T508", severity="error", message=message, location=path)


def _indexes(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
    """T509, T513: shards that have to be asked themselves, and index files that changed since they were written."""
    state, store = snapshot.state, snapshot.store
    found = ShardIndex(store).find(state, unsealed=True)
    for entry in state.shards.values():
        if entry.name not in found:
            yield Finding(
                code="T509",
                severity="note",
                message="no index file knows this shard, so that opening it for writing reads its ids",
                location=names.data(entry.name),
            )
    for path in (f"{names.INDEX}/{name}" for name in names_in(store, names.INDEX) if names.index_owner(name)):
        data = read(store, path)
        try:
            file = None if data is None else IndexFile.decode(data, path=path)
            damaged = [] if file is None else [name for name in file if file.standing(name) == "damaged"]
            why = f"what it says of {', '.join(damaged[:3])} changed after it was written" if damaged else ""
        except DamagedTableError as error:
            why = error.message
        if why:
            message = f"{why}; the shards themselves are asked, and no file is removed that they name"
            yield Finding(code="T513", severity="warning", message=message, location=path)


def _media(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
    """T511: packet indexes that have to be made from the videos again."""
    for name in names_in(snapshot.store, names.MEDIA):
        path = f"{names.MEDIA}/{name}"
        try:
            damaged = MediaFile.decode(read(snapshot.store, path) or b"", path=path).damaged()
            why = f"The packet index of {', '.join(damaged[:3])} changed after it was written." if damaged else ""
        except DamagedTableError as error:
            why = error.message
        if why:
            message = f"{why} Its videos are indexed when they are opened; remove it"
            yield Finding(code="T511", severity="note", message=message, location=path)


def _pages(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
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


def _files(snapshot: StandaloneSnapshot) -> Iterator[Finding]:
    """T510: copied-in files that are gone or have another size; T512: other files that have another size."""
    for name, rows in ShardIndex(snapshot.store).find(snapshot.state, unsealed=True).items():
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
