"""Writers and readers at once: nothing lost, nothing double, nothing torn."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import pytest

from seqlake.errors import CommitConflictError
from seqlake.tables import standalone
from seqlake.testing import oracle, tables
from seqlake.testing.oracle import crashes
from seqlake.testing.processes import fresh

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

WRITERS, APPENDS = 4, 25 if SOAK else 8


def append_many(location, storage, writer):
    table = standalone.open(location, storage=storage)
    for number in range(APPENDS):
        if storage is None:
            table = standalone.open(location)  # anew each time; on a bucket, that would read the whole log each time
        tables.append(table, [f"w{writer}-{number}"])
    return os.getpid()


def check_all_there(location, storage):
    table = standalone.open(location, storage=storage)
    wanted = sorted(f"w{writer}-{number}" for writer in range(WRITERS) for number in range(APPENDS))
    assert sorted(oracle.read_ids(table.snapshot())) == wanted
    assert sorted(oracle.glob_ids(table.store)) == wanted
    assert table.snapshot().version.id == WRITERS * APPENDS
    assert [version.id for version in table.versions()] == list(range(WRITERS * APPENDS + 1))
    assert len({record["transaction"] for record in oracle.Disk(table.store).records}) == WRITERS * APPENDS + 1
    oracle.check_left(table.store, oracle.Expected())


def run_writers(location, storage):
    # obstore's threads do not survive a fork; a fresh process has none yet.
    with fresh().Pool(WRITERS, maxtasksperchild=1) as pool:
        found = pool.starmap(append_many, [(location, storage, writer) for writer in range(WRITERS)], chunksize=1)
    assert len(set(found)) == WRITERS


@pytest.mark.sampled
def test_four_processes_append_on_disk(tmp_path):
    location = str(tmp_path / "t")
    standalone.create(location, tables.SCHEMA)
    run_writers(location, None)
    check_all_there(location, None)


@pytest.mark.soak
def test_four_processes_append_on_a_bucket(s3_bucket):
    uri, storage = s3_bucket
    location = f"{uri}/t"
    standalone.create(location, tables.SCHEMA, storage=storage)
    run_writers(location, storage)
    check_all_there(location, storage)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a writer")
def test_readers_see_whole_versions_while_others_write(tmp_path):
    """Manifest, glob and pinned readers beside a writer that appends, rewrites, rolls back and collects."""
    location = str(tmp_path / "t")
    table = standalone.create(location, tables.SCHEMA)
    tables.append(table, ["stays"])
    first = tables.append(table, ["goes"])

    turns = tmp_path / "turns"
    turns.write_bytes(b"")

    def two_more_turns():
        """The second of them began after this, so it sees what was committed by now."""
        enough = turns.stat().st_size + 2
        deadline = time.monotonic() + 60
        while turns.stat().st_size < enough and time.monotonic() < deadline:
            time.sleep(0.001)

    def write(report):
        writer = standalone.open(location)
        for number in range(8):
            tables.append(writer, [f"a{number}"])
            keys = tables.keys(writer.snapshot())
            tables.append(writer, [f"b{number}"], operation="rewrite", remove=keys[1:2])
            if number % 3 == 0:
                writer.rollback(writer.versions()[-2])
            if number % 2:
                two_more_turns()
            if number % 4 == 3:  # whoever reads now began at the newest version, however slowly it reads
                writer.vacuum(older_than=timedelta(seconds=0.05))

    pinned = standalone.open(location).snapshot(first)
    seen = []

    def read(child):
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            snapshot = standalone.open(location).snapshot()
            ids = oracle.read_ids(snapshot)
            seen.append((snapshot.version.id, sorted(ids)))
            assert len(ids) == len(set(ids)) == snapshot.version.rows
            assert "stays" in oracle.glob_ids(table.store)
            oracle.check_pinned(pinned, ["stays", "goes"])
            with turns.open("ab") as file:
                file.write(b".")

    crashes.in_child(write, patience=read)
    assert len({version for version, _ in seen}) > 3
    # Whatever was read as a version is what the log says that version is.
    found = oracle.Disk(table.store)
    for version, ids in seen:
        if version >= found.oldest:
            assert sorted(found.version_ids(version)) == ids


def test_a_shard_that_retires_before_it_is_open_is_found_again(tmp_path):
    table = standalone.create(str(tmp_path / "t"), tables.SCHEMA)
    snapshot = standalone.open(table.root).snapshot(tables.append(table, ["stays", "goes"]))
    dataset = snapshot.arrow_dataset()
    assert dataset.to_table(columns=["sequence_id"]).num_rows == 2
    tables.append(table, ["new"], operation="rewrite", remove=tables.keys(table.snapshot()))
    assert sorted(dataset.to_table()["sequence_id"].to_pylist()) == ["goes", "stays"]


def test_many_threads_of_one_process_append(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    location = str(tmp_path / "t")
    standalone.create(location, tables.SCHEMA)

    def one(number):
        return tables.append(standalone.open(location), [f"t{number}"]).id

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(one, range(12))) == list(range(1, 13))


def test_a_writer_gives_up_when_rivals_are_always_faster(tmp_path, monkeypatch):
    from seqlake.tables.standalone import committing

    location = str(tmp_path / "t")
    table = standalone.create(location, tables.SCHEMA)
    monkeypatch.setattr(committing, "ROUNDS", 3)
    real, busy = committing._create, []

    def create(log, record):
        if not busy:
            busy.append(True)
            tables.append(standalone.open(location), [f"rival-{time.monotonic_ns()}"])
            busy.pop()
        return real(log, record)

    monkeypatch.setattr(committing, "_create", create)
    with pytest.raises(CommitConflictError, match="faster 3 times"):
        tables.append(table, ["slow"])
    assert "slow" not in tables.rows_of(table.snapshot())
    assert not list((tmp_path / "t/_seqlake/staged").iterdir())
    assert sys.version_info >= (3, 11)
