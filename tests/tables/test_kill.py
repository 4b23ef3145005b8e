"""A writer killed before and after every system call of every kind of commit leaves the oracle's promises whole.

The calls are sampled in every run; the soak goes through all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import time
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqlake.files.stores import LocalStore
from seqlake.protocols import Change, Copied, Side
from seqlake.shards.parquet import writer
from seqlake.spec.metadata import Metadata
from seqlake.spec.schema import Schema
from seqlake.tables.standalone import StandaloneTable, checkpoints
from seqlake.testing import oracle, tables
from seqlake.testing.oracle import crashes, power

from ..soak import SOAK  # noqa: TID252 - tests are no package that could be named

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")

LONGEST = float(os.environ.get("SEQLAKE_SOAK_SECONDS") or 600)  # of a kind of commit's second kills
STRANGER = "data/theirs.parquet"


def opened(root, calls=None):
    return StandaloneTable(LocalStore(root, calls=calls or crashes.Unsynced()))


# ---- the kinds of commit; each returns (version, transaction) of what it committed
def _commit(table, change, transaction):
    version = table.commit(change, transaction=transaction)
    return version.id, transaction.id


def append(table):
    transaction = table.begin()
    path = f"files/label/00/e-{transaction.id}-f.txt"
    table.store.put(path, b"copied in", temporary=table.temporary(transaction, "f"))
    written = tables.write(table, transaction, [{**tables.episode("e"), "label": path}, tables.episode("f")])
    digest = hashlib.sha256(b"copied in").hexdigest()
    written = replace(written, files=[Copied(path=path, size=9, sha256=digest, packets={0: b"index"})])
    return _commit(table, Change(operation="append", add=[written]), transaction)


def delete(table):
    snapshot = table.snapshot()
    transaction = table.begin(snapshot.version)
    written = tables.write(table, transaction, [tables.episode("c")])
    change = Change(operation="delete", add=[written], remove=tables.keys(snapshot)[:2])
    return _commit(table, change, transaction)


def upsert_side(table):
    snapshot = table.snapshot()
    transaction = table.begin(snapshot.version)
    schema = snapshot.schema.with_columns({"split": pa.string()})
    sides = []
    for number, shard in enumerate(snapshot.shards()):
        path = table.place_side(transaction, n=str(number))
        pq.write_table(pa.table({"split": ["train"] * shard.rows}), path)
        sides.append(Side(location=path, shard=shard.key, columns=["split"], nbytes=Path(path).stat().st_size))
    return _commit(table, Change(operation="upsert", side=sides, schema=schema), transaction)


def evolve(table):
    schema = table.snapshot().schema.renamed({"reward": "score"})
    metadata = Metadata(column_types=schema.metadata.column_types, extra={"note": "renamed"})
    schema = Schema({name: schema[name] for name in schema}, metadata=metadata)
    transaction = table.begin()
    return _commit(table, Change(operation="evolve", schema=schema, renamed={"reward": "score"}), transaction)


def fold(table):
    snapshot = table.snapshot()
    transaction = table.begin(snapshot.version)
    written = [
        tables.write(table, transaction, tables.rows_of_shard(shard, snapshot.schema.names), n=str(number))
        for number, shard in enumerate(snapshot.lagging())
    ]
    change = Change(operation="fold", add=written, remove=[shard.key for shard in snapshot.lagging()])
    return _commit(table, change, transaction)


def rollback(table):
    version = table.rollback(2)
    return version.id, _transaction(table, version.id)


def adopt(table):
    version = table.adopt()
    return version.id, _transaction(table, version.id)


def collect(table):
    table.vacuum(older_than=timedelta(0))
    version = table.versions()[-1]
    return version.id, _transaction(table, version.id)


def tag(table):
    table.tag("v3", table.snapshot().version)
    version = table.versions()[-1]
    return version.id, _transaction(table, version.id)


def create(table):
    made = StandaloneTable.created(table.store, tables.SCHEMA)
    return 0, _transaction(made, 0)


def _transaction(table, version):
    return json.loads(Path(table.root, f"_seqlake/versions/{version:020d}.json").read_text())["transaction"]


# ---- the tables they are made on
def worn(root):
    """Four versions, a retired shard, a copied-in file, and a transaction that died long ago."""
    table = StandaloneTable.created(LocalStore(root, calls=crashes.Unsynced()), tables.SCHEMA)
    tables.append(table, ["a", "b"])
    tables.append(table, ["x"])
    key = tables.keys(table.snapshot())[1]
    tables.append(table, ["c", "d"], operation="rewrite", remove=[key])
    dead = table.begin()
    tables.write(table, dead, [tables.episode("never")])
    marker = Path(root, f"_seqlake/staged/{dead.id}.json")
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "time": "2020-01-01T00:00:00.000000Z"}))


def tagged(root):
    """The same with a name for the version whose shard is retired by now."""
    worn(root)
    table = opened(root)
    table.tag("v2", table.snapshot(2).version)


def lagging(root):
    """The same with a renamed column and labels, which the files do not have yet."""
    worn(root)
    evolve(opened(root))
    upsert_side(opened(root))


def edited(root):
    """The same with a file of somebody else's in `data/` and `mixtrain.json` edited by hand."""
    worn(root)
    schema = opened(root).snapshot().schema
    rows = tables.batch([tables.episode("theirs")], schema)
    pq.write_table(pa.Table.from_batches([rows]), Path(root, STRANGER))
    Path(root, "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "note": "by hand"}))


def plain(root):
    """What another tool left: Parquet files and `mixtrain.json`."""
    Path(root, "data").mkdir(parents=True)
    for number, ids in enumerate((["a", "b"], ["c"])):
        rows = tables.batch(map(tables.episode, ids), tables.SCHEMA)
        pq.write_table(pa.Table.from_batches([rows]), Path(root, f"data/part-{number:05d}.parquet"))
    Path(root, "mixtrain.json").write_text(tables.SCHEMA.metadata.to_json())


def nothing(root):
    Path(root).mkdir()


@dataclass(frozen=True)
class Scenario:
    base: object
    act: object
    after: frozenset[str]
    every: int = 1000  # versions between checkpoints

    def __str__(self):
        return (
            self.act.__name__
            + ("_with_tags" if self.base is tagged else "")
            + ("_with_checkpoint" if self.every < 1000 else "")
        )


OLD = frozenset("abcd")
SCENARIOS = [
    Scenario(worn, append, OLD | {"e", "f"}),
    Scenario(worn, append, OLD | {"e", "f"}, every=4),
    Scenario(worn, delete, frozenset("c")),
    Scenario(worn, upsert_side, OLD),
    Scenario(worn, evolve, OLD),
    Scenario(lagging, fold, OLD),
    Scenario(worn, rollback, frozenset("abx")),
    Scenario(worn, collect, OLD),
    Scenario(worn, tag, OLD),
    Scenario(tagged, collect, OLD, every=4),
    Scenario(edited, adopt, OLD | {"theirs"}),
    Scenario(plain, adopt, frozenset("abc")),
    Scenario(nothing, create, frozenset()),
]


class Prepared:
    """A scenario whose base lies ready to be copied, and whose code has run once, so that children are warm."""

    def __init__(self, scenario, folder, monkeypatch):
        monkeypatch.setattr(checkpoints, "EVERY_VERSIONS", scenario.every)
        self.scenario = scenario
        self.folder = folder
        self.base = folder / "base"
        scenario.base(self.base)
        before = oracle.Disk(LocalStore(self.base))
        self.rows = {v: frozenset(before.version_ids(v)) for v in before.readable}
        self.newest = before.newest
        self.strangers = frozenset({STRANGER, "mixtrain.json"} if scenario.base is edited else ())
        warm = crashes.fresh_copy(self.base, folder / "warm")
        scenario.act(opened(warm))
        self.operation = oracle.Disk(LocalStore(warm)).records[-1]["operation"]
        self.steps = self.run(None).steps
        oracle.check(self.store, self.expected({}))

    @property
    def store(self):
        return LocalStore(self.folder / "crashed", calls=crashes.Unsynced())

    def run(self, at):
        """Act in a child that dies before step `at`."""
        crashes.fresh_copy(self.base, self.folder / "crashed")

        def act(report):
            calls = crashes.Killing(at)
            writer.new_file = calls.new_shard  # this process ends with the test
            report.commit(*self.scenario.act(opened(self.folder / "crashed", calls)))
            report.steps(calls.steps)

        return crashes.in_child(act)

    def expected(self, acknowledged):
        rows, strangers = dict(self.rows), self.strangers
        for record in oracle.Disk(self.store).records[self.newest + 1 :]:
            # The repair may collect before anything of the scenario was committed.
            ours = record["operation"] == self.operation
            rows[record["version"]] = self.scenario.after if ours else rows[record["version"] - 1]
            strangers = frozenset() if ours else strangers
        return oracle.Expected(acknowledged=acknowledged, rows=rows, strangers=strangers)

    def again(self):
        """What a version 0 was to be made of is still good for it."""
        table = opened(self.folder / "crashed")
        if not table.manifest_exists:
            self.scenario.act(table)
        assert frozenset(tables.rows_of(table.snapshot())) == self.scenario.after
        table.vacuum(older_than=timedelta(0))
        oracle.check_collected(self.store, oracle.Expected())

    def record(self, mistake=None):
        """Act once, and give the calls with what was committed."""
        crashes.fresh_copy(self.base, self.folder / "recorded")
        calls = power.RecordedCalls(self.folder / "recorded")
        table = opened(self.folder / "recorded", calls)
        if mistake is not None:
            mistake(table.store, pytest.MonkeyPatch())
        version, transaction = self.scenario.act(table)
        return calls.calls, {version: transaction}

    def recover(self, at):
        """What the oracle does to repair, in a child that dies before step `at`."""

        def act(report):
            store = LocalStore(self.folder / "crashed", calls=crashes.Killing(at))
            if oracle.Disk(store).newest >= 0:
                oracle.open_for_writing(store)
                StandaloneTable(store).vacuum(older_than=timedelta(0))
            report.steps(store.calls.steps)

        return crashes.in_child(act)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_at_every_step(scenario, tmp_path, monkeypatch):
    """Every eighth step here, of each kind of commit others, and always the last; all in the soak."""
    prepared = Prepared(scenario, tmp_path, monkeypatch)
    assert prepared.steps > 10
    # One step more than there are: after the last call, before the commit is reported.
    steps = range(prepared.steps + 1)
    for at in steps if SOAK else [*steps[SCENARIOS.index(scenario) % 8 : -1 : 8], steps[-1]]:
        outcome = prepared.run(at)
        assert outcome.killed == (at < prepared.steps), at
        try:
            oracle.check(prepared.store, prepared.expected(outcome.acknowledged))
        except oracle.OracleError as error:
            raise AssertionError(f"killed before step {at} of {prepared.steps}: {error}") from error
        if prepared.newest < 0 and not outcome.acknowledged:
            prepared.again()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_killed_again_while_it_is_repaired(scenario, tmp_path, monkeypatch):
    """Sampled here; in the soak every pair of steps, in random order, as far as `LONGEST` seconds reach."""
    prepared = Prepared(scenario, tmp_path, monkeypatch)
    dice = random.Random(str(scenario))
    everything, began = range(prepared.steps), time.monotonic()
    firsts = dice.sample(everything, prepared.steps if SOAK else 1)
    for number, first in enumerate(firsts):
        if SOAK and time.monotonic() - began > LONGEST:
            print(f"{scenario}: {number} of {prepared.steps} first kills in {LONGEST} s")
            break
        prepared.run(first)
        crashes.fresh_copy(tmp_path / "crashed", tmp_path / "left")
        second = 0
        while True:
            crashes.fresh_copy(tmp_path / "left", tmp_path / "crashed")
            outcome = prepared.recover(second)
            try:
                oracle.check(prepared.store, prepared.expected({}))
            except oracle.OracleError as error:
                raise AssertionError(f"killed before step {first}, then {second} of the repair: {error}") from error
            if not outcome.killed:
                break
            second += 1 if SOAK else dice.randrange(5, 25)


@pytest.mark.parametrize("kills", [pytest.param(10_000, marks=pytest.mark.soak), 20])
def test_killed_at_random_moments(kills, tmp_path):
    if kills > 20 and not SOAK:
        pytest.skip("10 000 kills take long: set SEQLAKE_SOAK=1")
    root = tmp_path / "t"
    table = StandaloneTable.created(LocalStore(root, calls=crashes.Unsynced()), tables.SCHEMA)
    tables.append(table, ["first"])
    began = time.monotonic()
    _any_commits(root, random.Random(0), rounds=6)(crashes.Acknowledging(os.open(os.devnull, os.O_WRONLY)))
    longest = time.monotonic() - began  # about so many commits, however busy the machine is
    store = LocalStore(root, calls=crashes.Unsynced())
    dice = random.Random(1)
    reached = 0
    for kill in range(kills):
        pinned = opened(root).snapshot()
        rows = oracle.read_ids(pinned)

        def patience(child):
            time.sleep(dice.random() * longest)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

        outcome = crashes.in_child(_any_commits(root, random.Random(kill), rounds=1000), patience=patience)
        expected = oracle.Expected(acknowledged=outcome.acknowledged)
        oracle.check_left(store, expected)
        oracle.check_pinned(pinned, rows)
        reached += len(outcome.acknowledged)
        if kill % 5 == 4:
            oracle.check_repaired(store, expected)
    assert reached  # some lived long enough to commit


def _any_commits(root, dice, *, rounds):
    """Commits of every kind, one after the other, on what is there by then."""

    def act(report):
        table = opened(root)
        for _ in range(rounds):
            snapshot = table.snapshot()
            keys = tables.keys(snapshot)
            kind = dice.choice(["append", "append", "rewrite", "collect", "rollback", "delete"])
            if kind == "append" or len(keys) < 2:
                version = tables.append(table, [f"{os.urandom(8).hex()}" for _ in range(dice.randrange(1, 4))])
            elif kind == "rewrite":
                some = dice.sample(keys, 2)
                ids = [f"{os.urandom(8).hex()}"]
                version = tables.append(table, ids, operation="rewrite", remove=some)
            elif kind == "delete":
                transaction = table.begin(snapshot.version)
                version = table.commit(Change(operation="delete", remove=keys[:-1]), transaction=transaction)
            elif kind == "rollback":
                version = table.rollback(dice.choice(table.versions()))
            else:
                table.vacuum(older_than=timedelta(seconds=dice.random()))
                version = table.versions()[-1]
            report.commit(version.id, _transaction(table, version.id))

    return act


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds files by /proc")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_power_fails_at_any_moment(scenario, tmp_path, monkeypatch):
    """Sampled here; every moment in the soak, several losses each."""
    prepared = Prepared(scenario, tmp_path, monkeypatch)
    calls, committed = prepared.record()
    dice = random.Random(str(scenario))
    moments = range(len(calls) + 1)
    for moment in moments if SOAK else [*sorted(dice.sample(moments, 2)), len(calls)]:
        for surviving in (0.0, 1.0, 0.5, 0.5, 0.2, 0.8) if SOAK else (0.0, 0.5):
            power.after_power_loss(prepared.base, tmp_path / "crashed", calls[:moment], dice=dice, surviving=surviving)
            acknowledged = committed if moment == len(calls) else {}
            try:
                oracle.check(prepared.store, replace(prepared.expected(acknowledged), power_loss=True))
            except oracle.OracleError as error:
                raise AssertionError(f"power failed after call {moment} of {len(calls)}: {error}") from error


def skip_sync_of(*folders):
    def mistake(store, monkeypatch):
        real = store.sync
        monkeypatch.setattr(store, "sync", lambda *some: real(*(f for f in some if f not in folders)))

    return mistake


def skip_sync_of_bytes(store, monkeypatch):
    monkeypatch.setattr(store.calls, "fsync", lambda fd: None)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="finds files by /proc")
@pytest.mark.parametrize(
    "mistake",
    [skip_sync_of("_seqlake/versions"), skip_sync_of("_seqlake/staged"), skip_sync_of("data"), skip_sync_of_bytes],
    ids=["versions", "staged", "data", "bytes"],
)
def test_a_missing_sync_is_caught(mistake, tmp_path, monkeypatch):
    prepared = Prepared(SCENARIOS[2], tmp_path, monkeypatch)
    calls, committed = prepared.record(mistake)
    dice = random.Random(0)

    def lose_power():
        for moment in range(len(calls) + 1):
            for surviving in (0.0, 1.0, 0.5):
                power.after_power_loss(
                    prepared.base, tmp_path / "crashed", calls[:moment], dice=dice, surviving=surviving
                )
                acknowledged = committed if moment == len(calls) else {}
                oracle.check_left(prepared.store, replace(prepared.expected(acknowledged), power_loss=True))

    with pytest.raises((oracle.OracleError, ValueError, OSError)):
        lose_power()


def test_a_killed_writer_costs_others_nothing(tmp_path, monkeypatch):
    """Its marker stays, its rows never were, and others go on as if it had not been there."""
    prepared = Prepared(SCENARIOS[0], tmp_path, monkeypatch)
    prepared.run(prepared.steps // 3)
    table = opened(tmp_path / "crashed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables.append(table, ["e", "g"])
    assert sorted(tables.rows_of(table.snapshot())) == ["a", "b", "c", "d", "e", "g"]
