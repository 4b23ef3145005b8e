"""The log's own bytes: what is written is read back, what is hostile or torn is refused, what is newer says so."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqlake.errors import DamagedTableError, UnsupportedVersionError
from seqlake.files.checksums import seal
from seqlake.tables import standalone
from seqlake.tables.standalone import checkpoints
from seqlake.tables.standalone.records import ShardEntry, VersionRecord, parse
from seqlake.tables.standalone.state import EMPTY, fold, logged_file
from seqlake.testing import oracle, tables
from seqlake.versions import indexes, markers, names
from seqlake.versions.ids import IdRuns
from seqlake.versions.state import SideEntry

T = "0192f0c4a1b27c3d8e4f5a6b7c8d9e0f"
WHEN = datetime(2026, 11, 21, 12, 24, 43, 123456, tzinfo=UTC)


def record(version=0, **fields):
    schema = pa.schema([("sequence_id", pa.string()), ("act", pa.float32())]).serialize()
    given = {
        "version": version,
        "transaction": f"{version:032x}",
        "time": WHEN,
        "operation": "append",
        "writer": "seqlake",
        "rows": 0,
    }
    if version == 0:
        given |= {"schema": bytes(schema), "mixtrain": {"mixtrain": "1.0"}}
    return VersionRecord(**{**given, **fields})


def entry(name, transaction=T, **fields):
    return ShardEntry(**{"name": f"{name}.parquet", "transaction": transaction, "rows": 1, "nbytes": 2, **fields})


# ---- names
def test_transactions_sort_by_time_and_are_uuids():
    from uuid import UUID

    made = [names.new_transaction() for _ in range(50)]
    assert len(set(made)) == 50
    assert all(UUID(one).version == 7 and UUID(one).variant == "specified in RFC 4122" for one in made)
    assert [one[:12] for one in made] == sorted(one[:12] for one in made)


def test_owners_are_read_off_names():
    assert names.owner(names.part(T, "0")) == T
    assert names.owner("part-00000.parquet") is None
    assert names.side_owner(names.side(T, "a1")) == T
    for name in (f"part-{T}-0", f"file-{T}-0", f"{T}.json", f"{T}.tmp", f"{T}-ab12.tmp"):
        assert names.staged_owner(name) == T
    assert names.staged_owner(f"part-{T}-0.parquet.tmp") is None
    assert names.copied_owner(f"files/cam/0a/ep-1-{T}-3.mp4") == T
    assert names.copied_owner(f"files/cam/0a/ep-1-{T}-3") == T
    assert names.copied_owner("files/cam/0a/theirs.mp4") is None
    assert names.copied_owner(f"elsewhere/0a/ep-{T}-3.mp4") is None


@pytest.mark.parametrize(
    "name",
    ["../x.parquet", "a/b.parquet", "", ".parquet", "x", "a\\b.parquet", "a\0.parquet", 7, "x" * 300 + ".parquet"],
)
def test_hostile_shard_names(name):
    assert not names.is_shard_name(name)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a/../../b", "", None, "a\\b", "a/."])
def test_hostile_references(path):
    assert not names.is_reference(path)


# ---- records
def test_a_record_is_read_back():
    full = record(
        7,
        add=(entry("a", f"{7:032x}", columns='{"act": "action", "old": null}', statistics='{"r": [0.0, 42.5, 0]}'),),
        remove=("b.parquet",),
        schema=_schema({"ü": 0}),
        mixtrain={"mixtrain": "1.0", "ü": [1], "digest": "0" * 64},
        renamed={"act": "action"},
        side=(SideEntry(name=names.side(T, "1"), of="a.parquet", columns={"split": "part"}, nbytes=7, sha256="ab"),),
        aborted=(T,),
        oldest=3,
        previous="ab" * 32,
    )
    assert parse(full.encode(), version=7, path="x") == full
    assert set(json.loads(record(1).encode())) == {
        "format",
        "version",
        "transaction",
        "time",
        "operation",
        "writer",
        "rows",
        "digest",
    }


def test_the_example_of_the_documentation_is_read():
    text = Path(__file__).parents[2].joinpath("docs/reference/commits.md").read_text()
    example = text.split("```json\n")[1].split("```")[0]
    data = (re.sub(r"\n\s*", " ", example.strip()) + "\n").encode()  # a record is one line
    found = parse(data, version=7, path="docs")
    assert found.operation == "upsert"
    assert found.encode() == data


def unsealed(one):
    """The record as releases wrote it that knew no digests."""
    document = {key: value for key, value in json.loads(one.encode()).items() if key not in {"digest", "previous"}}
    return {**document, "format": 1}


def test_unknown_keys_are_skipped_only_where_a_digest_vouches_for_them():
    one = record(1, add=(entry("a", f"{1:032x}"),))
    document = {key: value for key, value in json.loads(one.encode()).items() if key != "digest"}
    document["add"][0]["later"] = document["later"] = {"x": 1}
    assert parse(seal(document), version=1, path="x") == one
    with pytest.raises(DamagedTableError, match="digest"):
        parse(json.dumps(document).encode(), version=1, path="x")
    assert parse(json.dumps(unsealed(one)).encode(), version=1, path="x") == one
    for kind in ({"adf": unsealed(one)["add"]}, {"add": [{**unsealed(one)["add"][0], "rowt": 1}]}):
        with pytest.raises(DamagedTableError, match="keys"):
            parse(json.dumps({**unsealed(one), **kind}).encode(), version=1, path="x")


def test_unknown_formats_and_requirements_are_refused():
    document = {key: value for key, value in json.loads(record(1).encode()).items() if key != "digest"}
    with pytest.raises(UnsupportedVersionError, match="format 3"):
        parse(seal({**document, "format": 3}), version=1, path="x")
    with pytest.raises(UnsupportedVersionError, match="requires 'colours'"):
        parse(seal({**document, "requires": ["colours"]}), version=1, path="x")
    state = replace(fold(EMPTY, [record(0)]), requires=frozenset({"colours"}))
    with pytest.raises(UnsupportedVersionError, match="requires 'colours'"):
        checkpoints.decode(checkpoints.encode(state, index=""), version=0, path="x")


@pytest.mark.sampled
@pytest.mark.parametrize(
    "change",
    [
        {"format": None},
        {"format": True},
        {"version": 2},
        {"version": -1},
        {"transaction": "../../etc"},
        {"transaction": T.upper()},
        {"time": "yesterday"},
        {"time": 7},
        {"rows": -1},
        {"rows": 1.5},
        {"rows": True},
        {"add": [{"name": "../x.parquet", "rows": 1, "nbytes": 1}]},
        {"add": [{"name": "x.parquet", "rows": -1, "nbytes": 1}]},
        {"add": [{"name": "x.parquet"}]},
        {"add": ["x.parquet"]},
        {"add": 7},
        {"add": [{"name": "x.parquet", "rows": 1, "nbytes": 1, "columns": ["a"]}]},
        {"remove": ["a/b.parquet"]},
        {"remove": [None]},
        {"side": [{"name": "../../x", "of": "x.parquet", "columns": []}]},
        {"side": [{"name": f"side-{T}-0", "of": "..", "columns": ["a"]}]},
        {"aborted": ["x"]},
        {"schema": "not base64!"},
        {"mixtrain": "1.0"},
        {"renamed": {"a": 1}},
        {"oldest": "3"},
        {"add": {"name": "x.parquet"}},
        {"schema": "c2NoZW1h"},
        {"side": [{"name": f"side-{T}-0", "of": "a.parquet", "columns": "split"}]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("number", [1, 2])
def test_hostile_records_are_refused(change, number):
    document = {**unsealed(record(1)), "format": number} | change
    data = seal(document) if number == 2 else json.dumps(document).encode()
    with pytest.raises(DamagedTableError, match="cannot be used"):
        parse(data, version=1, path="_seqlake/versions/1")


@settings(deadline=None)
@given(
    data=st.binary(max_size=80)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_any_bytes_are_a_record_or_an_error_of_ours(data):
    with pytest.raises((DamagedTableError, UnsupportedVersionError)):
        parse(data, version=0, path="x")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_record_with_any_byte_changed_is_refused(data):
    whole = record(1, add=(entry("a", f"{1:032x}"),), oldest=0).encode()
    encoded = bytearray(whole)
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    assume(bytes(encoded) != whole)
    with pytest.raises((DamagedTableError, UnsupportedVersionError)):
        parse(bytes(encoded), version=1, path="x")


# ---- fold
def test_a_log_that_contradicts_itself_is_damage():
    first = parse(record(0, add=(entry("a", f"{0:032x}"),), rows=1).encode(), version=0, path="x")
    state = fold(EMPTY, [first])
    linked = {"previous": first.digest, "rows": 1}
    fold(state, [record(1, **linked)])
    fold(fold(EMPTY, [replace(first, format=1)]), [record(1, rows=1, format=1)])  # as releases wrote them
    for wrong, why in (
        (record(2, **linked), "version 2 after version 0"),
        (record(1, add=(entry("a"),), previous=first.digest, rows=2), "there already"),
        (record(1, remove=("b.parquet",), **linked), "not there"),
        (record(1, side=(SideEntry(name=names.side(T, "0"), of="b.parquet", columns={"x": "x"}),), **linked), "beside"),
        (record(1, previous=first.digest, rows=2), "says 2 rows"),
        (record(1, rows=1, previous="ab" * 32), "another version 0"),
        (record(1, rows=1), "another version 0"),
        (record(1, format=1, **linked), "another version 0"),
    ):
        with pytest.raises(DamagedTableError, match=why):
            fold(state, [wrong])
    assert state == fold(EMPTY, [first])  # a fold that raises changes nothing


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_columns_are_found_through_any_history(data):
    """Against a model: each shard remembers the identity of the columns it was written with."""
    live = {"a": 0, "b": 1, "c": 2}  # logical name -> identity
    fresh = 3
    state = fold(EMPTY, [record(0, schema=_schema(live))])
    shards = {}
    for version in range(1, data.draw(st.integers(1, 8))):
        kind = data.draw(st.sampled_from(["append", "rename", "drop", "add"]))
        new = dict(live)
        fields = {}
        if kind == "append":
            name = f"s{version}"
            shards[name] = dict(live)
            fields = {"add": (entry(name),)}
        elif kind == "rename" and live:
            some = data.draw(st.lists(st.sampled_from(sorted(live)), unique=True, max_size=2))
            free = [n for n in "abcdef" if n not in live] + some
            targets = data.draw(st.permutations(free))[: len(some)]
            renamed = dict(zip(some, targets, strict=True))
            new = {renamed.get(name, name): identity for name, identity in live.items()}
            fields = {"renamed": renamed, "schema": _schema(new)}
        elif kind == "drop" and len(live) > 1:
            new.pop(data.draw(st.sampled_from(sorted(live))))
            fields = {"schema": _schema(new)}
        elif kind == "add":
            new[data.draw(st.sampled_from([n for n in "abcdefghijklm" if n not in live]))] = fresh
            fresh += 1
            fields = {"schema": _schema(new)}
        live = new
        state = fold(state, [record(version, rows=len(shards), **fields)])
    for name, columns in shards.items():
        identities = {identity: column for column, identity in columns.items()}
        for logical, identity in live.items():
            stored = next(iter(logged_file(state.shards[f"{name}.parquet"]).stored_names(logical)), None)
            wanted = identities.get(identity)
            # A column the file lacks may be looked for under a name that the file does not have.
            assert stored == wanted or (wanted is None and stored not in columns)


def _schema(columns):
    return bytes(pa.schema([(name, pa.int8()) for name in columns]).serialize())


# ---- checkpoints, index files, markers
def test_a_checkpoint_is_the_state():
    side = SideEntry(name=names.side(T, "0"), of="a.parquet", columns={"split": "part"})
    state = fold(
        EMPTY,
        [
            record(
                0,
                add=(entry("a", columns='{"x": null}'), entry("b", statistics='{"r": [1, 2, 0]}')),
                side=(side,),
                rows=2,
            )
        ],
    )
    index = names.merged_index(0, T)
    found = checkpoints.decode(checkpoints.encode(state, index=index), version=0, path="x")
    assert found.same_table(state)
    assert (found.checkpoint, found.index, found.entries) == (0, index, 0)


@pytest.mark.parametrize("cut", [0, 8, 200, -10])
def test_a_torn_checkpoint_is_refused(cut):
    data = checkpoints.encode(fold(EMPTY, [record(0, add=(entry("a"),), rows=1)]), index="")
    with pytest.raises(DamagedTableError):
        checkpoints.decode(data[:cut], version=0, path="x")
    with pytest.raises(DamagedTableError):
        checkpoints.decode(data, version=1, path="x")


@settings(max_examples=100, deadline=None)
@given(at=st.integers(0, 1 << 20), bit=st.integers(0, 7))
def test_a_checkpoint_with_any_bit_changed_is_refused(at, bit):
    encoded = bytearray(checkpoints.encode(fold(EMPTY, [record(0, add=(entry("a"),), rows=1)]), index=""))
    encoded[at % len(encoded)] ^= 1 << bit
    with pytest.raises((DamagedTableError, UnsupportedVersionError)):
        checkpoints.decode(bytes(encoded), version=0, path="x")


def test_checkpoints_of_a_hostile_writer_are_refused():
    state = fold(EMPTY, [record(0, add=(entry("a"),), rows=1)])
    for bad in (
        replace(state, shards={"../x": entry("../x")}),
        replace(state, shards={"a": entry("a", transaction="x")}),
    ):
        with pytest.raises(DamagedTableError):
            checkpoints.decode(checkpoints.encode(bad, index=""), version=0, path="x")
    with pytest.raises(DamagedTableError):
        checkpoints.decode(checkpoints.encode(state, index="../../x.arrow"), version=0, path="x")


def test_an_index_file_is_read_back():
    from seqlake.protocols import Copied

    row = indexes.IndexRow(
        shard="a.parquet",
        rows=2,
        nbytes=9,
        ids=b"ids",
        index=b"offsets",
        files=(Copied(path="files/x", size=1, sha256="00"),),
        references=(("s3://b/x", 2, "etag"),),
    )
    file = indexes.IndexFile.decode(indexes.encode([row]), path="x")
    assert file.row("a.parquet") == row
    assert file.standing("a.parquet") == "sound"
    assert file.knows("a.parquet", rows=2, nbytes=9)
    assert not file.knows("a.parquet", rows=2, nbytes=8)
    hostile = replace(row, files=(Copied(path="../../etc/passwd", size=1, sha256="00"),))
    assert indexes.IndexFile.decode(indexes.encode([hostile]), path="x").files("a.parquet") == ()
    with pytest.raises(DamagedTableError):
        indexes.IndexFile.decode(b"torn", path="x")


def test_ids_are_found_in_many_runs():
    import numpy as np

    from seqlake.shards.ids import hash_ids, pack

    runs = IdRuns()
    for number in range(200):
        runs.add([(f"s{number}", pack(pa.array([f"{number}-{row}" for row in range(3)])))])
    hashes = hash_ids(pa.array(["7-2", "nobody", "199-0"]))
    hits = [(one.shard, one.positions.tolist(), one.rows.tolist()) for one in runs.search(np.asarray(hashes))]
    assert sorted(hits) == [("s199", [2], [0]), ("s7", [0], [2])]


def test_markers():
    marker = markers.Marker(transaction=T, begin=5, time=WHEN)
    assert markers.parse(marker.encode(), transaction=T) == marker
    later = markers.parse(marker.encode().replace(b'"begin": 5', b'"begin": 9'), transaction=T)
    assert later.begin == -1  # or a commit in between would be taken for none
    torn = markers.parse(marker.encode()[:20], transaction=T)
    assert torn == later
    assert torn.time.year == 2024  # the time in the id


# ---- the log of a table
def test_a_log_with_a_torn_record_says_which(tmp_path):
    table = standalone.create(tmp_path / "t", tables.SCHEMA)
    tables.append(table, ["a"])
    path = Path(table.root, "_seqlake/versions/00000000000000000001.json")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedTableError, match="00000000000000000001"):
        standalone.open(table.root).snapshot()


def test_reading_writes_nothing(tmp_path):
    table = standalone.create(tmp_path / "t", tables.SCHEMA)
    first = tables.append(table, ["a", "b"])
    readers = standalone.StandaloneTable(oracle.ReadOnly(table.store))
    snapshot = readers.snapshot()
    assert tables.rows_of(snapshot) == tables.rows_of(readers.snapshot(first))
    assert snapshot.lengths("action").tolist() == [2, -1]
    assert snapshot.find_ids(["b"]).tolist() == [1]
    assert snapshot.arrow_dataset().to_table().num_rows == 2
    assert list(snapshot.check("decode")) == []
    assert len(readers.versions()) == 2
    assert readers.vacuum(older_than=markers.now() - WHEN, dry_run=True) == []
    assert (readers.strangers(), readers.metadata_edited()) == ([], False)
