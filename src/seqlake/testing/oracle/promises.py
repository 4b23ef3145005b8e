"""The promises, one function each, in the order of `docs/reference/commits.md`."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from seqlake.tables.standalone import StandaloneTable
from seqlake.testing.oracle.reading import Disk, Expected, ReadOnly, demand, read_ids

if TYPE_CHECKING:
    from seqlake.protocols import Store

_CHECKPOINT = re.compile(r"_seqlake/checkpoints/(\d{20})\.arrow")
_MERGED = re.compile(r"_seqlake/index/\d{20}-[0-9a-f]{32}\.arrow")


def check(store: Store, expected: Expected, /) -> None:
    """Everything: what is left, then two openings for writing and a vacuum.

    Args:
        store: The root, through which the repairing is done.
        expected: What the test knows.

    Raises:
        OracleError: A promise was broken; the message begins with its number.
    """
    check_left(store, expected)
    check_repaired(store, expected)


def check_left(store: Store, expected: Expected, /) -> None:
    """Points 1 to 6, on what is left, before any repair; writes nothing."""
    disk = Disk(store)
    _log_is_whole(disk)
    _acknowledged_are_there(disk, expected)
    if disk.newest < 0:
        return
    _versions_are_whole(disk, expected)
    _checkpoints_are_true(disk)
    _glob_readers_see(disk, expected)
    _opens_without_writing(store, disk)


def _log_is_whole(disk: Disk) -> None:
    """1: no hole, no transaction twice, none after its abort, every remove live."""
    numbers = [record["version"] for record in disk.records]
    demand(numbers == list(range(len(numbers))), f"1: the log has a hole: {numbers}")
    seen: set[str] = set()
    aborted: set[str] = set()
    for record in disk.records:
        transaction = record["transaction"]
        demand(transaction not in seen, f"1: transaction {transaction} stands twice in the log")
        demand(transaction not in aborted, f"1: transaction {transaction} was committed after it was aborted")
        seen.add(transaction)
        aborted.update(record.get("aborted", ()))
    demand(not seen & aborted, f"1: committed transactions were aborted: {seen & aborted}")
    disk.live(disk.newest)


def _acknowledged_are_there(disk: Disk, expected: Expected) -> None:
    """2: each acknowledged commit stands at its number."""
    for version, transaction in expected.acknowledged.items():
        there = version <= disk.newest and disk.records[version]["transaction"] == transaction
        demand(there, f"2: version {version} of transaction {transaction} was acknowledged and is not there")


def _versions_are_whole(disk: Disk, expected: Expected) -> None:
    """3: ids unique; every shard of its size and rows; its index row and files there, hashes equal."""
    indexes = _index_rows(disk)
    for version in disk.readable:
        live = disk.live(version)
        for name, entry in live.items():
            place = disk.place(name)
            demand(place is not None, f"3: version {version} needs {name}, which lies nowhere")
            size = disk.sizes[place or ""]
            demand(size == entry["nbytes"], f"3: {place} has {size} bytes, version {version} says {entry['nbytes']}")
            rows = len(disk.ids(place or ""))
            demand(rows == entry["rows"], f"3: {place} has {rows} rows, version {version} says {entry['rows']}")
            demand(name in indexes, f"3: no index file knows {name}, which version {version} needs")
            for file in indexes[name]:
                demand(file["path"] in disk.sizes, f"3: {file['path']} of {name} in version {version} is gone")
                digest = hashlib.sha256(disk.read(file["path"])).hexdigest()
                demand(digest == file["sha256"], f"3: {file['path']} has other bytes than were committed")
        ids = disk.version_ids(version)
        demand(len(ids) == len(set(ids)), f"3: version {version} has ids twice: {_twice(ids)}")
        demand(len(ids) == disk.records[version]["rows"], f"3: version {version} does not have the rows it says")
        wanted = expected.rows.get(version)
        demand(wanted is None or wanted == set(ids), f"3: version {version} has ids {sorted(ids)}, not {wanted}")
        promised = _promised_sides(disk)
        for side in _sides(disk, version):
            demand(side in disk.sizes, f"3: {side}, which version {version} needs, is gone")
            side_record, data = promised[side], disk.read(side)
            same = "sha256" not in side_record or hashlib.sha256(data).hexdigest() == side_record["sha256"]
            demand(same, f"3: {side} has other bytes than version {version} promises")
            held = set(pq.read_schema(io.BytesIO(data)).names)
            stored = {side_record.get("stored", {}).get(column, column) for column in side_record["columns"]}
            demand(stored <= held, f"3: {side} lacks {stored - held}, which version {version} promises")


def _promised_sides(disk: Disk) -> dict[str, dict[str, Any]]:
    return {f"_seqlake/side/{side['name']}": side for record in disk.records for side in record.get("side", ())}


def _sides(disk: Disk, version: int) -> set[str]:
    live = disk.live(version)
    return {
        f"_seqlake/side/{side['name']}"
        for record in disk.records[: version + 1]
        for side in record.get("side", ())
        if side["of"] in live
    } - _replaced_sides(disk, version)


def _replaced_sides(disk: Disk, version: int) -> set[str]:
    """Sides whose columns a later side, or a schema without them, has taken the place of."""
    owner: dict[tuple[str, str], str] = {}
    names: set[str] = set()
    for record in disk.records[: version + 1]:
        if "schema" in record:
            owner = _after_schema(owner, record)
        for side in record.get("side", ()):
            names.add(f"_seqlake/side/{side['name']}")
            owner.update({(side["of"], column): f"_seqlake/side/{side['name']}" for column in side["columns"]})
    return names - set(owner.values())


def _after_schema(owner: dict[tuple[str, str], str], record: dict[str, Any]) -> dict[tuple[str, str], str]:
    columns = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(record["schema"]))).names
    renamed = record.get("renamed", {})
    mapped = {(of, renamed.get(column, column)): side for (of, column), side in owner.items()}
    return {key: side for key, side in mapped.items() if key[1] in columns}


def _index_rows(disk: Disk) -> dict[str, list[dict[str, Any]]]:
    """Shard -> its copied-in files, from all index files."""
    rows: dict[str, list[dict[str, Any]]] = {}
    committed = {record["transaction"]: record["format"] for record in disk.records}
    for path in disk.sizes:
        if path.startswith("_seqlake/index/") and path[-38:-6] in committed:
            table = pa.ipc.open_file(pa.py_buffer(disk.read(path))).read_all()
            for row in table.to_pylist():
                if committed[path[-38:-6]] > 1:
                    same = _row_checksum(row) == row["checksum"]
                    demand(same, f"3: {path} says otherwise of {row['shard']} than was written")
                rows[row["shard"]] = row["files"]
    return rows


def _row_checksum(row: dict[str, Any]) -> int:
    """CRC-32 of a row of an index file, from the values that pyarrow gives."""
    packed = b""
    for key in ("shard", "rows", "nbytes", "ids", "index", "files", "references", "texts"):
        if key not in row:
            continue
        value = row[key].encode() if isinstance(row[key], str) else row[key]
        if isinstance(value, int):
            packed += struct.pack("<q", value)
        elif isinstance(value, bytes):
            packed += struct.pack("<q", len(value)) + value
        else:
            packed += struct.pack("<q", len(value))
            for field in value[0] if value else ():
                cells = [item[field] for item in value]
                if isinstance(cells[0], int):
                    packed += struct.pack(f"<{len(cells)}q", *cells)
                else:
                    texts = [cell.encode() for cell in cells]
                    packed += struct.pack(f"<{len(texts)}i", *map(len, texts)) + b"".join(texts)
    return zlib.crc32(packed)


def _checkpoints_are_true(disk: Disk) -> None:
    """4: each checkpoint is the fold of the log."""
    for path in disk.sizes:
        match = _CHECKPOINT.fullmatch(path)
        if match is None:
            continue
        data = disk.read(path)
        table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
        live = disk.live(int(match[1]))
        said = {row["name"]: (row["transaction"], row["rows"], row["nbytes"]) for row in table.to_pylist()}
        true = {name: (entry["transaction"], entry["rows"], entry["nbytes"]) for name, entry in live.items()}
        demand(list(said.items()) == list(true.items()), f"4: {path} is not the fold of the log")
        rest = json.loads(table.schema.metadata[b"seqlake"])
        if rest["format"] > 1:
            digits = rest["digest"].encode()
            same = hashlib.sha256(data.replace(digits, b"0" * 64)).hexdigest().encode() == digits
            demand(same, f"4: {path} has another digest")
            demand(rest["record"][1] == disk.digests[int(match[1])], f"4: {path} names another record")
        demand(rest.get("tags", {}) == disk.tags(int(match[1])), f"4: {path} has other tags than the log")
        demand(rest["mixtrain"] == disk.metadata(int(match[1])), f"4: {path} has other metadata than the log")


def _glob_readers_see(disk: Disk, expected: Expected) -> None:
    """5: whole, committed shards only; exactly the newest version while no publish is pending."""
    ever = {entry["name"]: entry for record in disk.records for entry in record.get("add", ())}
    for name in disk.in_data():
        if f"data/{name}" in expected.strangers:
            continue
        demand(name in ever, f"5: data/{name} belongs to no committed version")
        size = disk.sizes[f"data/{name}"]
        demand(size == ever[name]["nbytes"], f"5: data/{name} has {size} bytes, not {ever[name]['nbytes']}")
    by_transaction = {record["transaction"]: record["version"] for record in disk.records}
    pending = [by_transaction[marker] for marker in disk.markers if marker in by_transaction]
    if pending:
        # Every row that stays, perhaps twice: nothing that all versions since have may be missing.
        kept = set.intersection(
            *(set(disk.version_ids(v)) for v in range(max(min(pending) - 1, disk.oldest, 0), disk.newest + 1))
        )
        seen = {one for name in disk.in_data() if f"data/{name}" not in expected.strangers for one in _ids(disk, name)}
        demand(kept <= seen, f"5: glob readers miss {sorted(kept - seen)[:5]} while a publish is pending")
    elif not disk.markers:
        _data_is_newest(disk, expected, "5: without markers")


def _ids(disk: Disk, name: str) -> list[str]:
    return disk.ids(f"data/{name}")


def _data_is_newest(disk: Disk, expected: Expected, when: str, *, exact: bool = True) -> None:
    names = {name for name in disk.in_data() if f"data/{name}" not in expected.strangers}
    live = set(disk.live(disk.newest))
    retired = names - live
    demand(live <= names, f"{when}, data/ lacks {sorted(live - names)[:3]} of version {disk.newest}")
    demand(not retired or not exact, f"{when}, data/ holds {sorted(retired)[:3]}, not in version {disk.newest}")
    _metadata_is_newest(disk, expected, when)


def _metadata_is_newest(disk: Disk, expected: Expected, when: str) -> None:
    if "mixtrain.json" in expected.strangers:
        return
    known = [disk.metadata(version) for version in range(disk.newest + 1)]
    if "mixtrain.json" not in disk.sizes:
        demand(expected.power_loss and when.startswith("5"), f"{when}, mixtrain.json is absent")
        return
    said = json.loads(disk.read("mixtrain.json"))
    wanted = known if expected.power_loss and when.startswith("5") else known[-1:]
    demand(said in wanted, f"{when}, mixtrain.json is not version {disk.newest}'s")
    if said == known[-1]:
        _metadata_contradicts_nothing(disk, said, when)


def _metadata_contradicts_nothing(disk: Disk, said: dict[str, Any], when: str) -> None:
    """5, too: what the metadata name is in the files, and what the files hold is a column, or they say otherwise."""
    lag = {"renamed": {}, "dropped": [], "beside": {}, "added": [], "reused": [], **said.get("x_seqlake", {})}
    schemas = [record["schema"] for record in disk.records if "schema" in record]
    columns = set(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schemas[-1]))).names) if schemas else set()
    held = {
        name
        for shard in disk.live(disk.newest)
        if f"data/{shard}" in disk.sizes
        for name in pq.read_schema(io.BytesIO(disk.read(f"data/{shard}"))).names
    }
    unexplained = held - columns - {*lag["renamed"], *lag["dropped"], *lag["reused"]}
    demand(not unexplained, f"{when}, files hold {sorted(unexplained)}, of which mixtrain.json says nothing")
    there = held | {*lag["renamed"].values(), *lag["beside"], *lag["added"], *lag["reused"]}
    nowhere = {name for name in said.get("column_types", {}) if held and name in columns and name not in there}
    demand(not nowhere, f"{when}, mixtrain.json gives {sorted(nowhere)} a type, and nothing says where they are")
    strange = {name for name, now in lag["renamed"].items() if now not in columns or name in columns}
    demand(not strange, f"{when}, mixtrain.json says that {sorted(strange)} were renamed, and they were not")


def _opens_without_writing(store: Store, disk: Disk) -> None:
    """6: opening with writes forbidden gives the newest version."""
    table = StandaloneTable(ReadOnly(store))
    snapshot = table.snapshot()
    demand(snapshot.version.id == disk.newest, f"6: opening gives version {snapshot.version.id}, not {disk.newest}")
    same = sorted(read_ids(snapshot)) == sorted(disk.version_ids(disk.newest))
    demand(same, f"6: opening gives other rows than version {disk.newest} has")


def check_repaired(store: Store, expected: Expected, /) -> None:
    """Points 7 and 8: opening for writing repairs, opening again changes nothing, vacuuming leaves what is needed.

    Where no version was ever made there is nothing to open, and nothing to check.
    """
    before = Disk(store)
    if before.newest < 0:
        return
    open_for_writing(store)
    first = Disk(store)
    demand(first.newest == before.newest, "7: opening for writing made a version")
    _data_is_newest(first, expected, "7: after opening for writing", exact=not expected.store)
    open_for_writing(store)
    second = Disk(store)
    demand(
        first.sizes == second.sizes, f"7: opening again changed {set(first.sizes.items()) ^ set(second.sizes.items())}"
    )
    StandaloneTable(store).vacuum(older_than=timedelta(0))
    check_collected(store, expected)


def open_for_writing(store: Store, /) -> None:
    """What every writer does first; then it has nothing to write."""
    table = StandaloneTable(store)
    table.discard(table.begin())


def check_collected(store: Store, expected: Expected, /) -> None:
    """8: after `vacuum(older_than=0)` only what the newest and tagged versions need is left, no marker, no `.tmp`."""
    disk = Disk(store)
    _log_is_whole(disk)
    _data_is_newest(disk, expected, "8: after vacuum")
    demand(not disk.markers, f"8: markers are left: {disk.markers}")
    live = disk.live(disk.newest)
    tagged = {name: entry for number in disk.tags().values() for name, entry in disk.live(number).items()}
    adders = {f"_seqlake/index/{entry['transaction']}.arrow" for entry in (tagged | live).values()}
    indexes = _index_rows(disk)
    files = {file["path"] for name in tagged | live for file in indexes.get(name, [])}
    checkpoints = sorted(path for path in disk.sizes if _CHECKPOINT.fullmatch(path))
    merged = {path for path in disk.sizes if _MERGED.fullmatch(path)}
    demand(len(checkpoints) <= 1 and len(merged) <= len(checkpoints), f"8: checkpoints {checkpoints}, {merged}")
    needed = (
        {f"_seqlake/versions/{number:020d}.json" for number in range(disk.newest + 1)}
        | {f"data/{name}" for name in live}
        | {f"_seqlake/retired/{name.removesuffix('.parquet')}" for name in tagged.keys() - live.keys()}
        | adders
        | files
        | set().union(*(_sides(disk, number) for number in (disk.newest, *disk.tags().values())))
        | {*checkpoints, *merged, "_seqlake/checkpoints/last", "mixtrain.json"}
        | expected.strangers
    )
    extra = {
        path
        for path in disk.sizes
        if path not in needed and not path.startswith(("_seqlake/derived/", "_seqlake/media/"))
    }
    demand(not extra, f"8: vacuum left {sorted(extra)[:5]}")
    demand(needed - adders - {"_seqlake/checkpoints/last"} <= disk.sizes.keys(), "8: vacuum took what is needed")
    _opens_without_writing(store, disk)


def _twice(ids: list[str]) -> list[str]:
    return sorted({one for one in ids if ids.count(one) > 1})[:5]
