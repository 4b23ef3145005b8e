"""What only the table can know is wrong: findings T501 to T515, and those of its shards' bytes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from seqlake.abilities import Physical, ability
from seqlake.errors import DamagedTableError, SeqlakeError
from seqlake.spec.findings import Finding
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.adopting import strangers
from seqlake.tables.standalone.context import placed_blob, placed_side, side_shard
from seqlake.tables.standalone.log import Log
from seqlake.tables.standalone.publishing import metadata_is_behind, metadata_is_edited
from seqlake.tables.standalone.state import EMPTY, fold
from seqlake.versions import folders, markers, names, references, shard_formats
from seqlake.versions.indexes import IndexFile, MediaFile, ShardIndex, unknown_shards
from seqlake.versions.small_files import can_list, names_in, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Depth, Store
    from seqlake.tables.standalone.context import LogContext
    from seqlake.tables.standalone.state import State
    from seqlake.versions.state import TableState


def check(context: LogContext, state: TableState, depth: Depth, /) -> Iterator[Finding]:
    """The findings about one version and the table around it, from the log outwards."""
    store, plain = context.store, state.version.id == -1
    yield from _shards(store, state)
    if plain and can_list(store):
        yield from _unread(store, state)
    elif can_list(store):
        log = Log(store)
        yield from _surroundings(log)
        yield from _log(log)
        yield from _indexes(store, state)
    if depth != "metadata":
        yield from _side_bytes(store, state)
        yield from _pages(store, state, plain=plain)
        yield from _outside(store, state, plain=plain)
    if depth in {"files", "decode"} and not plain:
        yield from _files(store, state)
        if can_list(store):
            yield from _media(store)


def _shards(store: Store, state: TableState) -> Iterator[Finding]:
    """T501, T502: shards and side shards that are gone or have another size."""
    version = int(state.version.id)
    blobs = {names.data(file.name): placed_blob(store, file, version=version) for file in state.files}
    for side in (side for file in state.files for side in file.beside):
        blobs[f"{names.SIDE}/{side.name}"] = placed_side(store, side, version=version)
    for path, blob in blobs.items():
        try:
            blob.place  # noqa: B018 - looks for it
        except DamagedTableError as error:
            code = "T502" if " bytes at " in error.message else "T501"
            yield Finding(code=code, severity="error", message=str(error), location=path)


def _side_bytes(store: Store, state: TableState) -> Iterator[Finding]:
    """T515: side shards that have other bytes than were committed, or not what the log promises."""
    version = int(state.version.id)
    for rows, side in ((file.rows, side) for file in state.files for side in file.beside):
        why = ""
        try:
            placed_side(store, side, version=version).place  # noqa: B018 - looks for it
            reader = ability(side_shard(store, side, rows=rows, version=version).open(), Physical)
            if reader is not None and (set(side.columns.values()) - set(reader.schema.names) or reader.rows != rows):
                why = f"expected {rows} rows and the columns {', '.join(side.columns.values())}, found {reader.rows} "
                why += f"rows and {', '.join(reader.schema.names)}"
        except DamagedTableError as error:
            why = "" if "was found " in error.message else str(error)  # T501 and T502 say so
        except SeqlakeError as error:
            why = str(error)
        if why:
            message = f"{', '.join(side.columns)} of {side.of}: {why}"
            yield Finding(code="T515", severity="error", message=message, location=f"{names.SIDE}/{side.name}")


def _unread(store: Store, state: TableState) -> Iterator[Finding]:
    """T503: what lies in `data/` of a plain folder and is not read, as `b.parq` or `b.csv`."""
    known = {file.name for file in state.files}
    for path, _ in store.list(names.DATA):
        if path not in known and not folders.is_hidden(path):
            message = "not read: its name is of no format of shards (`.parquet`); rename it, or take it away"
            yield Finding(code="T503", severity="warning", message=message, location=path)


def _outside(store: Store, state: TableState, *, plain: bool) -> Iterator[Finding]:
    """T503: data files outside `data/`, where a dataset has it; those of datasets further inside are their own."""
    if not can_list(store) or (plain and not any(file.name.startswith(f"{names.DATA}/") for file in state.files)):
        return
    paths = [path for path, _ in store.list() if not path.startswith(f"{names.DATA}/")]
    inner = tuple(path.removesuffix(names.METADATA) for path in paths if path.endswith(f"/{names.METADATA}"))
    for path in paths:
        if folders.is_data(path) and not path.startswith(inner):
            message = "not read: it lies outside data/, where the others are; move it there, or take it away"
            yield Finding(code="T503", severity="warning", message=message, location=path)


def _surroundings(log: Log) -> Iterator[Finding]:
    """T503 to T506: strangers, edited metadata, what a publish has not finished."""
    newest = log.newest()
    for name in strangers(log, newest):
        yield Finding(
            code="T503",
            severity="warning",
            message="not put there by seqlake and not read; move it up, for `seqlake adopt` to add it, or take it away"
            if "/" in name
            else "not put there by seqlake and not read; `seqlake adopt` adds it, or take it away",
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
        checkpoint = checkpoints.decode(read(log.store, path) or b"", version=state.version, path=path)
        why = "" if checkpoint.same_table(state) else "it differs from the versions before it"
    except SeqlakeError as error:
        why = "" if checkpoints.is_unsealed(read(log.store, path) or b"") else str(error)
    if why:
        message = f"{why}; it is derived: remove it, and it will be made again"
        yield Finding(code="T508", severity="error", message=message, location=path)


def _indexes(store: Store, state: TableState) -> Iterator[Finding]:
    """T509, T513: shards that have to be asked themselves, and index files that changed since they were written."""
    known = ShardIndex(store).find(state.files, unsealed=True)
    yield from unknown_shards(names.data(shard.name) for shard in state.files if shard.name not in known)
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


def _media(store: Store) -> Iterator[Finding]:
    """T511: packet indexes that have to be made from the videos again."""
    for name in names_in(store, names.MEDIA):
        path = f"{names.MEDIA}/{name}"
        try:
            damaged = MediaFile.decode(read(store, path) or b"", path=path).damaged()
            why = f"The packet index of {', '.join(damaged[:3])} changed after it was written." if damaged else ""
        except DamagedTableError as error:
            why = error.message
        if why:
            message = f"{why} Its videos are indexed when they are opened; remove it"
            yield Finding(code="T511", severity="note", message=message, location=path)


def _pages(store: Store, state: TableState, *, plain: bool) -> Iterator[Finding]:
    """P601 to P604: what the shards' own bytes say, page checksums among them, and the offset indexes of them."""
    from seqlake.shards.parquet import checking as parquet

    known = {} if plain else ShardIndex(store).find(state.files)
    for shard in state.files:
        blob = placed_blob(store, shard, version=int(state.version.id))
        location = shard.name if plain else names.data(shard.name)
        if shard_formats.name_of(shard.name) != shard_formats.PARQUET:
            with suppress(DamagedTableError):
                described = shard_formats.describe(shard.name, blob, rows=shard.rows, nbytes=shard.nbytes, key="")
                yield from shard_formats.findings(described, location)
            continue
        kept = known[shard.name].offsets(shard.name) if shard.name in known else None
        try:
            for finding in parquet.check(blob, outside=kept):
                yield replace(finding, location=location)
        except DamagedTableError:
            continue  # T501 and T502 say so
    for shard in state.files:
        for side in shard.beside:
            path = f"{names.SIDE}/{side.name}"
            with suppress(FileNotFoundError):
                for finding in parquet.check(store.blob(path)):
                    yield replace(finding, location=path)


def _files(store: Store, state: TableState) -> Iterator[Finding]:
    """T510: copied-in files that are gone or have another size; T512: other files that have another size."""
    known = ShardIndex(store).find(state.files, unsealed=True)
    yield from references.findings(store, known)
    for name, rows in known.items():
        for path, expected, _ in rows.references(name):
            with suppress(OSError):  # not there, or no name of ours: the rows' own findings say so
                size = store.blob(path).size
                if size != expected:
                    message = f"expected {expected} bytes, as when its rows were committed, found {size}"
                    yield Finding(code="T512", severity="warning", message=message, location=path)
