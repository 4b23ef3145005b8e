"""The oracle catches the mistakes that the protocol was made to avoid: each is made on purpose here."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from seqlake.errors import PublishPendingWarning, SeqlakeError
from seqlake.files.stores import LocalStore
from seqlake.protocols import Change
from seqlake.tables.standalone import StandaloneTable, changes, committing, log, publishing, table, vacuuming
from seqlake.tables.standalone.state import State
from seqlake.testing import oracle, tables
from seqlake.testing.oracle import crashes
from seqlake.versions import ids, markers, names


class Replacing(crashes.Unsynced):
    """`rename` where `link` belongs."""

    def link(self, source, target, /):
        source.replace(target)
        source.touch()


class Stop(Exception):
    pass


@pytest.fixture
def root(tmp_path):
    made = StandaloneTable.created(LocalStore(tmp_path / "t", calls=crashes.Unsynced()), tables.SCHEMA)
    tables.append(made, ["a", "b"])
    tables.append(made, ["c"])
    return tmp_path / "t"


def opened(root, calls=None):
    return StandaloneTable(LocalStore(root, calls=calls or crashes.Unsynced()))


def begun(root, ids, calls=None):
    """A writer with a staged shard, about to commit."""
    writer = opened(root, calls)
    transaction = writer.begin()
    written = tables.write(writer, transaction, map(tables.episode, ids))
    return writer, transaction, writer.stage(transaction, written)


def committed(writer, transaction, written, *, operation="append", remove=()):
    change = Change(operation=operation, add=[written], remove=remove)
    return {writer.commit(change, transaction=transaction).id: transaction.id}


def before_the_create(monkeypatch, action):
    """Something happens between reading the newest version and creating the next one."""
    real = committing._create
    done = []

    def create(log, record):
        if not done:
            done.append(True)
            action()
        return real(log, record)

    monkeypatch.setattr(committing, "_create", create)


# ---- what happens: each gives what was acknowledged
def a_rival_is_faster(root, monkeypatch, calls=None):
    acknowledged = {}

    def rival():
        version = tables.append(opened(root), ["rival"])
        record = json.loads(Path(root, f"_seqlake/versions/{version.id:020d}.json").read_text())
        acknowledged[version.id] = record["transaction"]

    writer = begun(root, ["mine"], calls)
    before_the_create(monkeypatch, rival)
    return acknowledged | committed(*writer)


def two_writers_add_one_id(root, monkeypatch):
    one, two = begun(root, ["same"]), begun(root, ["same"])
    acknowledged = committed(*one)
    with suppress(SeqlakeError):
        acknowledged |= committed(*two)
    return acknowledged


def two_writers_rewrite_one_shard(root, monkeypatch):
    key = tables.keys(opened(root).snapshot())[0]
    one, two = begun(root, ["a"]), begun(root, ["b"])
    acknowledged = committed(*one, operation="rewrite", remove=[key])
    with suppress(SeqlakeError):
        acknowledged |= committed(*two, operation="rewrite", remove=[key])
    return acknowledged


def a_rename_overtakes_an_append(root, monkeypatch):
    """On an empty table, so that the rename itself has nothing to say."""
    opened(root).commit(
        Change(operation="delete", remove=tables.keys(opened(root).snapshot())), transaction=opened(root).begin()
    )
    slow = begun(root, ["slow"])
    table = opened(root)
    schema = table.snapshot().schema.renamed({"reward": "score"})
    table.commit(Change(operation="evolve", schema=schema, renamed={"reward": "score"}), transaction=table.begin())
    return committed(*slow)


def a_collection_comes_before_the_commit(root, monkeypatch):
    writer = begun(root, ["slow"])
    opened(root).vacuum(older_than=timedelta(0))
    with suppress(SeqlakeError):
        return committed(*writer)
    return {}


def a_collection_overtakes_a_young_writer(root, monkeypatch):
    writer = begun(root, ["young"])
    opened(root).vacuum(older_than=timedelta(days=1))
    return committed(*writer)


def a_commit_lands_while_it_sweeps(root, monkeypatch):
    acknowledged = {}
    real = vacuuming._Listing.of

    def of(store):
        if not acknowledged:
            acknowledged.update(committed(*begun(root, ["meanwhile"])))
        return real(store)

    monkeypatch.setattr(vacuuming._Listing, "of", of)
    opened(root).vacuum(older_than=timedelta(days=1))
    return acknowledged


def a_version_has_a_name(root, monkeypatch):
    table = opened(root)
    table.tag("v1", table.snapshot().version)
    tables.append(table, ["c"], operation="rewrite", remove=tables.keys(table.snapshot())[1:])
    table.vacuum(older_than=timedelta(0))
    return {}


def the_answer_is_lost(root, monkeypatch):
    writer, transaction, written = begun(root, ["lost"])
    real = writer.store.put
    lost = []

    def put(path, data, **options):
        real(path, data, **options)
        if path.startswith(names.VERSIONS) and not lost:
            lost.append(path)
            raise FileExistsError(path)  # what NFS answers to a link that it made

    writer.store.put = put
    with suppress(SeqlakeError):
        return committed(writer, transaction, written)
    return {}


def killed_before_publishing(root, monkeypatch):
    key = tables.keys(opened(root).snapshot())[0]
    writer, transaction, written = begun(root, ["a"])
    with monkeypatch.context() as patch, suppress(Stop):
        patch.setattr(table, "publish_or_warn", lambda *_, **__: (_ for _ in ()).throw(Stop))
        committed(writer, transaction, written, operation="rewrite", remove=[key])
    return {}


def killed_at_each_step_of_publishing(root, monkeypatch):
    """Rewrites one after the other, each stopped one step later; the oracle looks at what each leaves."""
    for step in range(12):
        store = opened(root).store
        shard = opened(root).snapshot().shards()[0]
        ids = [row["sequence_id"] for row in tables.rows_of_shard(shard, ["sequence_id"])]
        writer, transaction, written = begun(root, ids)
        taken = []

        def move(old, new, real=writer.store.move, taken=taken, step=step):
            if len(taken) == step:
                raise Stop
            taken.append(old)
            real(old, new)

        writer.store.move = move
        with suppress(Stop):
            committed(writer, transaction, written, operation="rewrite", remove=[shard.key])
        oracle.check_left(store, oracle.Expected())
        oracle.open_for_writing(store)
    return {}


def metadata_vanishes(root, monkeypatch):
    Path(root, "mixtrain.json").unlink()
    return {}


def nothing_wrong(monkeypatch):
    return None


# ---- the mistakes
def rename_instead_of_link(monkeypatch):
    return Replacing()


def no_id_check(monkeypatch):
    monkeypatch.setattr(ids.Identity, "check", lambda *_, **__: None)


def no_remove_check(monkeypatch):
    monkeypatch.setattr(changes, "check_change", lambda *_, **__: None)
    monkeypatch.setattr(committing, "declared", lambda _, record: record)  # it folds the record, and would notice
    real = changes.Proposal.__call__

    def call(self, state, since):
        return real(self, replace(state, shards={**self.parent.shards, **state.shards}), since)

    monkeypatch.setattr(changes.Proposal, "__call__", call)


def metadata_of_the_dataset_alone(monkeypatch):
    monkeypatch.setattr(committing, "declared", lambda _, record: record)


def no_fence(monkeypatch):
    monkeypatch.setattr(committing, "check_fence", lambda *_, **__: None)
    monkeypatch.setattr(table, "check_fence", lambda *_, **__: None)


def markers_ignored_by_sweep(monkeypatch):
    real = vacuuming.sweep

    def sweep(log):
        with monkeypatch.context() as patch:
            patch.setattr(markers, "read_all", lambda _: [])
            return real(log)

    monkeypatch.setattr(vacuuming, "sweep", sweep)


def log_read_before_the_lists(monkeypatch):
    kept = []
    real = vacuuming._Retained.of

    def sweep(log, sweep=vacuuming.sweep):
        kept.append(real(log))
        return sweep(log)

    monkeypatch.setattr(vacuuming, "sweep", sweep)
    monkeypatch.setattr(vacuuming._Retained, "of", lambda *_: kept[-1])


def names_ignored_by_sweep(monkeypatch):
    monkeypatch.setattr(State, "kept", lambda *_: [])


def no_own_transaction_check(monkeypatch):
    real = log.Log.records

    def records(self, first, last):
        return [replace(record, transaction="f" * 32) for record in real(self, first, last)]

    monkeypatch.setattr(log.Log, "records", records)
    monkeypatch.setattr(log.Log, "probe", lambda *_: None)


def publish_not_repeated(monkeypatch):
    monkeypatch.setattr(publishing, "publish_or_warn", lambda *_, **__: True)


def old_out_before_new_in(monkeypatch):
    move_in, move_out = publishing._move_in, publishing._move_out
    monkeypatch.setattr(publishing, "_move_in", move_out)
    monkeypatch.setattr(publishing, "_move_out", move_in)


def metadata_not_compared_at_open(monkeypatch):
    monkeypatch.setattr(publishing, "metadata_is_behind", lambda *_: False)


CASES = [
    (a_rival_is_faster, rename_instead_of_link),
    (two_writers_add_one_id, no_id_check),
    (two_writers_rewrite_one_shard, no_remove_check),
    (a_collection_comes_before_the_commit, no_fence),
    (a_collection_overtakes_a_young_writer, markers_ignored_by_sweep),
    (a_commit_lands_while_it_sweeps, log_read_before_the_lists),
    (a_version_has_a_name, names_ignored_by_sweep),
    (the_answer_is_lost, no_own_transaction_check),
    (killed_before_publishing, publish_not_repeated),
    (killed_at_each_step_of_publishing, old_out_before_new_in),
    (metadata_vanishes, metadata_not_compared_at_open),
    (a_rename_overtakes_an_append, metadata_of_the_dataset_alone),
]


def run(root, happens, mistake, monkeypatch):
    calls = mistake(monkeypatch)
    extra = {"calls": calls} if calls is not None else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PublishPendingWarning)  # some mistakes are noticed, too late
        acknowledged = happens(root, monkeypatch, **extra)
        hand = happens is metadata_vanishes
        oracle.check(opened(root).store, oracle.Expected(acknowledged=acknowledged, power_loss=hand))


@pytest.mark.sampled(every=2, start=1)
@pytest.mark.parametrize(("happens", "mistake"), CASES, ids=[mistake.__name__ for _, mistake in CASES])
def test_the_oracle_catches(happens, mistake, root, monkeypatch):
    with pytest.raises(oracle.OracleError):
        run(root, happens, mistake, monkeypatch)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("happens", [happens for happens, _ in CASES], ids=[h.__name__ for h, _ in CASES])
def test_without_the_mistake_nothing_is_wrong(happens, root, monkeypatch):
    run(root, happens, nothing_wrong, monkeypatch)
