"""Packet indexes as the table keeps them: found by name, read once, held within bounds, gone with their files."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from seqlake.files.stores import LocalStore
from seqlake.protocols import Change, Copied
from seqlake.tables.standalone import StandaloneTable
from seqlake.testing import tables
from seqlake.versions import indexes

from .test_bucket import Bucket


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path):
    return LocalStore(tmp_path / "table") if request.param == "disk" else Bucket()


def film(table: StandaloneTable, one: str, packets: dict[int, bytes], *, shards: int = 1) -> str:
    """Commit a row that names a copied-in file; its reference."""
    transaction = table.begin()
    path = f"files/label/00/{one}-{transaction.id}-f.mp4"
    table.store.put(path, b"film", temporary=table.temporary(transaction, "f"))
    file = Copied(path=path, size=4, sha256=hashlib.sha256(b"film").hexdigest(), packets=packets)
    written = [
        replace(
            tables.write(table, transaction, [{**tables.episode(f"{one}{n}"), "label": path}], n=str(n)), files=[file]
        )
        for n in range(shards)
    ]
    table.commit(Change(operation="append", add=written), transaction=transaction)
    return path


def test_found_by_reference(store) -> None:
    table = StandaloneTable.created(store, tables.SCHEMA)
    first = film(table, "a", {0: b"one", 3: b"two"}, shards=2)
    second = film(table, "b", {})
    third = film(table, "c", {1: b""})
    for snapshot in (table.snapshot(), StandaloneTable(store).snapshot(), table.snapshot(1)):
        assert snapshot.kept_packets(first) == {0: b"one", 3: b"two"}
        assert snapshot.kept_packets(second) == {}
        assert snapshot.kept_packets(third) == {1: b""}
        for strange in ("", "files/label/x.mp4", f"./{first}", f"{first}x", "s3://b/x", f"../{first}", "files/a\0b"):
            assert snapshot.kept_packets(strange) == {}


def test_each_file_is_read_once(store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = StandaloneTable.created(store, tables.SCHEMA)
    paths = [film(table, one, {0: one.encode()}) for one in "abc"]
    reads: list[str] = []
    real = indexes.MediaFile.decode.__func__

    def decode(cls, data, /, *, path):
        reads.append(path)
        return real(cls, data, path=path)

    monkeypatch.setattr(indexes.MediaFile, "decode", classmethod(decode))
    for _ in range(3):
        assert [table.snapshot().kept_packets(path) for path in paths] == [{0: b"a"}, {0: b"b"}, {0: b"c"}]
    assert len(reads) == 3
    monkeypatch.setattr(indexes, "_MEDIA_FILES", 2)
    found = StandaloneTable(store).snapshot()
    for path in (paths[0], paths[1], paths[0], paths[2], paths[0], paths[1]):  # the one used longest ago goes
        found.kept_packets(path)
    assert len(reads) == 3 + 4


def test_bytes_are_bounded_where_files_cannot_be_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    table = StandaloneTable.created(Bucket(), tables.SCHEMA)
    paths = [film(table, one, {0: bytes(10_000)}) for one in "abcd"]
    monkeypatch.setattr(indexes, "_MEDIA_BYTES", 25_000)
    kept = table.snapshot().context.packets
    for path in paths:
        assert kept.find(path) == {0: bytes(10_000)}
        assert len(kept._held) <= 2
    monkeypatch.setattr(indexes, "_MEDIA_BYTES", 10)
    assert kept.find(paths[0]) == {0: bytes(10_000)}  # what is asked for is had, however large
    assert len(kept._held) == 1


def test_a_plain_folder_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "mixtrain.json").write_text('{"mixtrain": "1.0"}')
    assert StandaloneTable(LocalStore(tmp_path)).snapshot().kept_packets(f"files/x/00/a-{'0' * 32}-1.mp4") == {}


def test_threads_read_a_file_once_and_forked_children_anew(store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = StandaloneTable.created(store, tables.SCHEMA)
    path = film(table, "a", {0: b"a"})
    reads: list[str] = []
    real = indexes.KeptPackets._read
    monkeypatch.setattr(indexes.KeptPackets, "_read", lambda self, owner: reads.append(owner) or real(self, owner))
    snapshot = table.snapshot()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(snapshot.kept_packets, [path] * 200)) == [{0: b"a"}] * 200
    assert len(reads) == 1
    kept = snapshot.context.packets
    with kept._lock:  # as a thread of the parent may hold it at the moment of a fork
        monkeypatch.setattr(indexes.os, "getpid", lambda: -1)
        assert snapshot.kept_packets(path) == {0: b"a"}
