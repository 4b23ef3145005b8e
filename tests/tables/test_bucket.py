"""Killed at every request of every kind of commit on an object store, where a move is a copy and a delete."""

from __future__ import annotations

import copy
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.errors import CommitUnknownError
from seqlake.files.blobs import MemoryBlob
from seqlake.protocols import Change, Side
from seqlake.tables.standalone import StandaloneTable, checkpoints
from seqlake.testing import oracle, tables
from seqlake.versions.small_files import remove


class Killed(BaseException):
    pass


class Bucket:
    """An object store in memory, as the contract of `Store` has it; it can die before any request that writes."""

    def __init__(self):
        self.root = "memory://bucket/table"
        self.objects = {}
        self.at = None
        self.steps = 0
        self.dead = False
        self.lost = []  # prefixes of puts whose answer is lost, once

    def _step(self):
        if self.dead or self.steps == self.at:
            self.dead = True
            raise Killed
        self.steps += 1

    def _there(self, path):
        if self.dead:
            raise Killed
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path]

    def blob(self, path, /):
        return MemoryBlob(self._there(path), location=f"{self.root}/{path}")

    def list(self, prefix="", /, *, after=""):
        if self.dead:
            raise Killed
        below = f"{prefix}/" if prefix else ""
        yield from sorted((p, len(d)) for p, d in list(self.objects.items()) if p.startswith(below) and p > after)

    def put(self, path, data, /, *, if_absent=False, temporary=""):
        self._step()
        if if_absent and path in self.objects:
            raise FileExistsError(path)
        self.objects[path] = data.read_bytes() if isinstance(data, Path) else bytes(data)
        lost = [prefix for prefix in self.lost if path.startswith(prefix)]
        if lost:
            self.lost.remove(lost[0])
            raise OSError(5, "no answer", path)

    def local(self, path, /):
        return None

    def copy(self, source, target, /):
        self._step()
        if target in self.objects:
            raise FileExistsError(target)
        self.objects[target] = self._there(source)

    def sync(self, *folders):
        pass

    def move(self, source, target, /):
        self._step()
        if source not in self.objects:
            self._there(target)
            return
        self.objects[target] = self.objects[source]
        self._step()
        self.objects.pop(source, None)

    def delete(self, paths, /):
        for path in paths:
            self._step()
            self.objects.pop(path, None)


def made():
    """Three versions and a retired shard."""
    bucket = Bucket()
    table = StandaloneTable.created(bucket, tables.SCHEMA)
    tables.append(table, ["a", "b"])
    tables.append(table, ["x"])
    tables.append(table, ["c"], operation="rewrite", remove=tables.keys(table.snapshot())[1:])
    return bucket


def append(table):
    tables.append(table, ["e"])


def rewrite(table):
    tables.append(table, ["a", "new"], operation="rewrite", remove=tables.keys(table.snapshot()))


def side(table):
    snapshot = table.snapshot()
    transaction = table.begin()
    sides = []
    for number, shard in enumerate(snapshot.shards()):
        path = table.place_side(transaction, n=str(number))
        pq.write_table(pa.table({"split": ["x"] * shard.rows}), path)
        sides.append(Side(location=path, shard=shard.key, columns=["split"], nbytes=Path(path).stat().st_size))
    schema = snapshot.schema.with_columns({"split": pa.string()})
    table.commit(Change(operation="upsert", side=sides, schema=schema), transaction=transaction)
    assert {row["split"] for row in tables.rows_of(table.snapshot()).values()} == {"x"}


def evolve(table):
    schema = table.snapshot().schema.renamed({"label": "text"})
    table.commit(Change(operation="evolve", schema=schema, renamed={"label": "text"}), transaction=table.begin())


def rollback(table):
    table.rollback(2)


def collect(table):
    table.vacuum(older_than=timedelta(0))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("act", "every"),
    [(append, 3), *((act, 1000) for act in (append, rewrite, side, evolve, rollback, collect))],
)
def test_killed_at_every_request(act, every, monkeypatch):
    monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", every)
    base = made()
    base.steps = 0
    alive = copy.deepcopy(base)
    act(StandaloneTable(alive))
    oracle.check(alive, oracle.Expected())
    assert alive.steps > 5
    steps = alive.steps
    for at in range(steps):
        bucket = copy.deepcopy(base)
        bucket.at = at
        with suppress(Killed):
            act(StandaloneTable(bucket))
        left = Bucket()
        left.objects = bucket.objects
        try:
            oracle.check(left, oracle.Expected(store=True))
        except oracle.OracleError as error:
            raise AssertionError(f"killed before request {at}: {error}") from error


def test_a_lost_answer_to_the_commit_is_looked_up(monkeypatch):
    bucket = made()
    bucket.lost = ["_seqlake/versions/"]
    table = StandaloneTable(bucket)
    assert tables.append(table, ["e"]).id == 4
    oracle.check(bucket, oracle.Expected())


def test_no_answer_and_no_version_is_unknown_and_discards_nothing():
    bucket = made()
    table = StandaloneTable(bucket)
    transaction = table.begin()
    written = tables.write(table, transaction, [tables.episode("e")])
    real = bucket.put

    def put(path, data, /, **options):
        if path.startswith("_seqlake/versions/"):
            raise OSError(5, "no answer", path)
        real(path, data, **options)

    bucket.put = put
    with pytest.raises(CommitUnknownError, match=transaction.id):
        table.commit(Change(operation="append", add=[written]), transaction=transaction)
    table.discard(transaction)
    assert any(transaction.id in path for path in bucket.objects)
    # Whoever asks the log later is told: it was not committed, and collect removes what it staged.
    bucket.put = real
    StandaloneTable(bucket).vacuum(older_than=timedelta(0))
    assert not any(transaction.id in path for path in bucket.objects)
    oracle.check(bucket, oracle.Expected())


def test_a_late_copy_is_put_right():
    """Of two publishers one copies late: the shard it brings back to `data/` goes at the next collection."""
    bucket = made()
    name = next(path for path in bucket.objects if path.startswith("_seqlake/retired/")).rpartition("/")[2]
    bucket.objects[f"data/{name}.parquet"] = bucket.objects[f"_seqlake/retired/{name}"]
    assert {finding.code for finding in StandaloneTable(bucket).snapshot().check("rows")} == {"T507"}
    StandaloneTable(bucket).vacuum(older_than=timedelta(0))
    assert f"data/{name}.parquet" not in bucket.objects
    oracle.check(bucket, oracle.Expected())


def test_a_table_is_read_over_http(tmp_path):
    """Read-only, without listing: the log is probed."""
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    from seqlake.errors import ReadOnlyError
    from seqlake.tables import standalone

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    table = standalone.create(tmp_path / "t", tables.SCHEMA)
    first = tables.append(table, ["a"])
    tables.append(table, ["b"])
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        remote = standalone.open(f"http://127.0.0.1:{server.server_port}/t")
        assert tables.rows_of(remote.snapshot()) == tables.expected(["a", "b"])
        assert tables.rows_of(remote.snapshot(first)) == tables.expected(["a"])
        assert remote.snapshot().find_ids(["b"]).tolist() == [1]
        assert [finding.code for finding in remote.snapshot().check("rows")] == []
        with pytest.raises(ReadOnlyError):
            remote.begin()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_names_that_a_rival_removed_first_keep_no_other_name_alive():
    class Strict(Bucket):
        """Ends a request at the first name that is gone."""

        def delete(self, paths, /):
            for path in paths:
                self._there(path)
                del self.objects[path]

    store = Strict()
    for number in range(5):
        store.put(f"a/{number}", b"")
    del store.objects["a/0"], store.objects["a/4"]
    remove(store, [f"a/{number}" for number in range(5)])
    assert not store.objects
    remove(store, [])
