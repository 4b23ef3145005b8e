"""RLDS folders as rows: against what was written, and the real set against a parser of its own."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seqlake.errors import CorruptFileError, DatasetNotFoundError, InvalidMetadataError, ShardChangedError
from seqlake.files.stores import open_store
from seqlake.formats import rlds
from seqlake.testing.formats import FormatTests, read
from seqlake.testing.shards import flat_is

from ...soak import SOAK  # noqa: TID252 - tests are no package that could be named


def table(source, columns=None):
    return pa.concat_tables(read(shard, columns or source.schema.names) for shard in source.shards())


class TestLaws(FormatTests):
    @pytest.fixture
    def source(self, arm):
        return rlds.scan(str(arm))


class TestLawsOnRealData(FormatTests):
    @pytest.fixture
    def source(self, bridge):
        return rlds.scan(str(bridge))


def test_names_types_and_sources(arm):
    schema = rlds.scan(str(arm)).schema
    assert {name: schema[name].category for name in schema.names} == {
        "sequence_id": "scalar",
        "split": "scalar",
        "path": "scalar",
        "pose": "vector",
        "success": "scalar",
        "action": "temporal",
        "embedding": "vector",
        "instruction": "scalar",
        "is_last": "temporal",
        "note": "other",
        "cam": "frames",
        "count": "temporal",
        "state": "temporal",
        "reward_step": "temporal",
    }
    assert schema["state"].dim == 4
    assert schema["state"].type.get("shape") == [2, 2]
    assert schema["state"].value_type == pa.float64()
    assert schema["count"].value_type == pa.int16()
    assert schema["is_last"].value_type == pa.uint8()
    assert schema["cam"].type.get("format") == "jpeg"
    assert schema["cam"].type.get("resolution") == [48, 64]
    assert schema["embedding"].type.get("source") == "steps/embedding"
    sources = schema.metadata.extra["source"]
    assert sources["format"] == "rlds"
    assert sources["columns"]["reward_step"] == "steps/reward"
    assert sources["columns"]["path"] == "episode_metadata/path"
    assert set(sources["columns"]) == set(schema.names) - {"sequence_id", "split"}


def test_values(arm, tfds):
    rows = table(rlds.scan(str(arm))).to_pylist()
    assert [row["sequence_id"] for row in rows] == [
        "arm-train-00000-00000",
        "arm-train-00000-00001",
        "arm-train-00001-00000",
        "arm-train-00001-00001",
        "arm-train-00001-00002",
        "arm-val-00000-00000",
    ]
    assert [row["split"] for row in rows] == ["train"] * 5 + ["val"]
    assert [row["success"] for row in rows] == [False, True] * 3
    assert [row["path"] for row in rows] == [f"/data/é{number}" for number in range(6)]
    # An episode without steps has no first step to take a value from.
    assert [row["instruction"] for row in rows] == ["do 0", None, *[f"do {number}" for number in range(2, 6)]]
    assert [len(row["action"]) for row in rows] == [4, 0, 1, 7, 2, 3]
    assert rows[3]["count"] == [[k] for k in range(-3, 4)]
    assert rows[3]["is_last"] == [[0]] * 6 + [[1]]
    assert rows[3]["note"] == [f"step {k}" for k in range(7)]
    assert rows[3]["reward_step"] == [[float(k)] for k in range(7)]
    assert [len(cell) for cell in rows[3]["cam"]] == list(range(5, 12))


def test_a_split_alone(arm):
    source = rlds.scan(str(arm), split="val")
    assert table(source, ["split"])["split"].to_pylist() == ["val"]
    assert len(rlds.scan(str(arm), split=["train"]).shards()) == 2
    with pytest.raises(DatasetNotFoundError, match="no split 'test'; it has train, val"):
        rlds.scan(str(arm), split="test")


def test_the_folder_above_a_version(arm, tmp_path):
    above = tmp_path / "above"
    shutil.copytree(arm, above / "1.0.0")
    assert rlds.matches(str(above))
    assert rlds.scan(str(above)).fingerprint == rlds.scan(str(arm)).fingerprint
    shutil.copytree(arm, above / "1.1.0")
    assert not rlds.matches(str(above))
    with pytest.raises(DatasetNotFoundError, match=re.escape("several versions: 1.0.0, 1.1.0")):
        rlds.scan(str(above))


def test_what_does_not_match(tmp_path):
    assert not rlds.matches(str(tmp_path))
    assert not rlds.matches(str(tmp_path / "nowhere"))
    with pytest.raises(DatasetNotFoundError, match=r"features\.json"):
        rlds.scan(str(tmp_path))


def test_constant_columns_may_be_kept(arm):
    kept = rlds.scan(str(arm), keep_constant=["embedding"]).schema
    assert kept["embedding"].category == "temporal"
    assert kept["instruction"].category == "scalar"
    every = rlds.scan(str(arm), keep_constant=True).schema
    assert every["instruction"].category == "other"


def test_an_action_that_never_changes_stays_an_action(tfds, tmp_path):
    folder = tfds.Folder(
        steps={"action": tfds.tensor([2], "float32"), "still": tfds.tensor([2], "float32")},
        files={"train": [[tfds.example({"steps/action": [0.0] * 6, "steps/still": [1.0] * 6})]]},
    ).write(tmp_path)
    assert rlds.scan(str(folder)).schema["action"].category == "temporal"
    assert rlds.scan(str(folder)).schema["still"].category == "vector"
    assert rlds.scan(str(folder), keep_constant=False).schema["action"].category == "vector"


def test_one_step_proves_no_constancy(tfds, tmp_path):
    folder = tfds.Folder(
        steps={"state": tfds.tensor([2], "float32"), "task": tfds.text()},
        files={"train": [[tfds.example({"steps/state": [0.0, 1.0], "steps/task": [b"pick"]})]]},
    ).write(tmp_path)
    schema = rlds.scan(str(folder)).schema
    assert schema["state"].category == "temporal"
    assert schema["task"].category == "scalar"


def test_constancy_is_decided_over_all_files(tfds, tmp_path):
    still = tfds.example({"steps/state": [1.0, 2.0] * 3, "steps/task": [b"a"] * 3})
    moves = tfds.example({"steps/state": [1.0, 2.0, 1.0, 3.0], "steps/task": [b"a", b"b"]})
    folder = tfds.Folder(
        steps={"state": tfds.tensor([2], "float32"), "task": tfds.text()},
        files={"train": [[still], [moves]]},
    ).write(tmp_path)
    source = rlds.scan(str(folder))
    assert source.schema["state"].category == "temporal"
    assert source.schema["task"].category == "other"
    assert read(source.shards()[0], ["task"])["task"].to_pylist() == [["a"] * 3]


def test_ids_of_the_episodes_are_used_where_they_are_unique(tfds, tmp_path):
    def folder(name, ids):
        records = [tfds.example({"steps/a": [1.0], "episode_metadata/episode_id": [key]}) for key in ids]
        made = tfds.Folder(
            steps={"a": tfds.tensor([], "float32")},
            episode={"episode_id": tfds.text() if isinstance(ids[0], bytes) else tfds.tensor([], "int32")},
            files={"train": [records[:2], records[2:]]},
        ).write(tmp_path / name)
        return table(rlds.scan(str(made)), ["sequence_id"])["sequence_id"].to_pylist()

    assert folder("numbers", [7, -1, 300]) == ["7", "-1", "300"]
    assert folder("texts", [b"a", b"b/c", b"d"]) == ["a", "b/c", "d"]
    assert folder("twice", [7, 8, 7])[0] == "arm-train-00000-00000"
    assert folder("empty", [b"a", b"", b"d"])[0] == "arm-train-00000-00000"


def test_names_that_clash(tfds, tmp_path):
    folder = tfds.Folder(
        steps={
            "state": tfds.tensor([2], "float32"),
            "observation": tfds.features_dict(
                {"state": tfds.tensor([3], "float32"), "split": tfds.tensor([], "int64")}
            ),
        },
        episode={"split": tfds.text(), "sequence_id": tfds.text()},
        files={
            "train": [
                [
                    tfds.example(
                        {
                            "steps/state": [1.0, 2.0],
                            "steps/observation/state": [1.0, 2.0, 3.0],
                            "steps/observation/split": [5],
                            "episode_metadata/split": [b"mine"],
                            "episode_metadata/sequence_id": [b"me"],
                        }
                    )
                ]
            ]
        },
    ).write(tmp_path)
    [row] = table(rlds.scan(str(folder))).to_pylist()
    assert row == {
        "sequence_id": "arm-train-00000-00000",
        "split": "train",
        "episode_metadata_sequence_id": "me",
        "episode_metadata_split": "mine",
        "steps_observation_split": [[5]],
        "steps_observation_state": [[1.0, 2.0, 3.0]],
        "state": [[1.0, 2.0]],
    }


DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_dtype_shape_and_encoding_comes_back(tfds, tmp_path_factory, data):
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    shape = data.draw(st.sampled_from([[], [1], [5], [2, 3]]))
    encoding = data.draw(st.sampled_from(["none", "bytes", "zlib"]))
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    packed = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    episodes, records = [], []
    for count in counts:
        if dtype.kind == "f":
            values = rng.normal(size=[count, *shape]).astype(np.float16).astype(dtype)
        else:
            limits = np.iinfo(dtype)
            values = rng.integers(limits.min, limits.max, size=[count, *shape], dtype=dtype, endpoint=True)
        episodes.append(values)
        cells = [step.tobytes() for step in values]
        stored = {"none": values, "bytes": cells, "zlib": [zlib.compress(cell) for cell in cells]}[encoding]
        # A second feature keeps the vector from being constant by chance.
        records.append(tfds.example({"steps/a": stored, "steps/k": list(range(count))}, packed=packed))
    folder = tfds.Folder(
        steps={"a": tfds.tensor(shape, dtype.name, encoding=encoding), "k": tfds.tensor([], "int64")},
        files={"train": [records]},
    ).write(tmp_path_factory.mktemp("rlds"))
    source = rlds.scan(str(folder), keep_constant=True)
    assert source.schema["a"].value_type == pa.from_numpy_dtype(dtype)
    found = table(source, ["a"])["a"].combine_chunks()
    for cell, values in zip(found, episodes, strict=True):
        assert np.asarray(cell.values.flatten()).tobytes() == values.tobytes()
    flat = source.shards()[0].open().flat("a")
    if dtype.kind != "f" or encoding != "none":
        assert flat is None
    elif packed:
        assert flat is not None
    if flat is not None:
        assert flat_is(flat, table(source, ["a"])["a"])


def test_text_that_is_not_utf8_is_binary(tfds, tmp_path):
    folder = tfds.Folder(
        steps={"a": tfds.tensor([], "float32"), "blob": tfds.tensor([], "string")},
        episode={"raw": tfds.text(), "words": tfds.text()},
        files={
            "train": [
                [
                    tfds.example(
                        {
                            "steps/a": [1.0, 2.0],
                            "steps/blob": [b"\xff\x00", b"b"],
                            "episode_metadata/raw": [b"\x80"],
                            "episode_metadata/words": ["wörter".encode()],
                        }
                    )
                ]
            ]
        },
    ).write(tmp_path)
    source = rlds.scan(str(folder))
    assert source.schema.arrow.field("raw").type == pa.binary()
    [row] = table(source).to_pylist()
    assert (row["raw"], row["words"], row["blob"]) == (b"\x80", "wörter", [b"\xff\x00", b"b"])


def test_lists_of_an_episode_are_carried(tfds, tmp_path):
    folder = tfds.Folder(
        steps={"a": tfds.tensor([], "float32")},
        episode={"tags": tfds.sequence(tfds.text()), "goal": tfds.sequence(tfds.tensor([2], "float32"))},
        files={
            "train": [
                [
                    tfds.example(
                        {
                            "steps/a": [1.0],
                            "episode_metadata/tags": [b"x", b"y"],
                            "episode_metadata/goal": [1.0, 2.0, 3.0, 4.0],
                        }
                    ),
                    tfds.example({"steps/a": [1.0], "episode_metadata/tags": [], "episode_metadata/goal": []}),
                ]
            ]
        },
    ).write(tmp_path)
    source = rlds.scan(str(folder))
    rows = table(source).to_pylist()
    assert [row["tags"] for row in rows] == [["x", "y"], []]
    assert [row["goal"] for row in rows] == [[[1.0, 2.0], [3.0, 4.0]], []]
    assert source.lengths("goal").tolist() == [2, 0]


# ---- on an object store


class TestLawsOnAnObjectStore(FormatTests):
    @pytest.fixture
    def source(self, arm, s3_bucket):
        return rlds.scan(upload(arm, s3_bucket, "1.0.0/"), storage=s3_bucket.storage)


def upload(folder, bucket, prefix):
    store = open_store(f"{bucket.uri}/sets/arm", storage=bucket.storage)
    for path in folder.iterdir():
        store.put(prefix + path.name, path.read_bytes())
    return f"{bucket.uri}/sets/arm"


def test_an_object_store_gives_the_same(arm, s3_bucket):
    place = upload(arm, s3_bucket, "2.0.0/")
    assert rlds.matches(place, storage=s3_bucket.storage)
    local, remote = rlds.scan(str(arm)), rlds.scan(place, storage=s3_bucket.storage)
    assert table(remote).equals(table(local))
    assert remote.fingerprint == local.fingerprint
    assert remote.root == f"{place}/2.0.0"
    assert list(remote.check("decode")) == []
    assert remote.shards()[0].open().flat("action") is None
    assert not rlds.matches(f"{s3_bucket.uri}/nothing", storage=s3_bucket.storage)
    with pytest.raises(DatasetNotFoundError):
        rlds.scan(f"{s3_bucket.uri}/nothing", storage=s3_bucket.storage)


# ---- what cannot be read, and what is missing


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"pythonClassName": "x.y.Audio", "audio": {}}, "'steps/odd' \\(Audio\\)"),
        ({"pythonClassName": "x.Tensor", "tensor": {"dtype": "complex64"}}, "complex64"),
        ({"tensor": {"dtype": "float32", "shape": {"dimensions": ["-1", "3"]}}}, "None"),
        ({"sequence": {"feature": {"tensor": {"dtype": "float32"}}}}, "sequence inside a sequence"),
    ],
)
def test_a_feature_that_cannot_be_read_is_named_and_may_be_left_out(tfds, tmp_path, node, words):
    folder = tfds.Folder(
        steps={"a": tfds.tensor([], "float32"), "odd": node},
        files={"train": [[tfds.example({"steps/a": [1.0]})]]},
    ).write(tmp_path)
    with pytest.raises(InvalidMetadataError, match=words) as error:
        rlds.scan(str(folder))
    assert "without=['steps/odd']" in str(error.value)
    source = rlds.scan(str(folder), without=["steps/odd"])
    assert "odd" not in source.schema
    assert "rlds-left-out" in [finding.code for finding in source.check("metadata")]


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"featuresDict": 3}', '{"type": "x", "content": {}}'])
def test_features_json_that_is_none(arm, text):
    (arm / "features.json").write_text(text)
    with pytest.raises(InvalidMetadataError, match=r"features\.json"):
        rlds.scan(str(arm))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fileFormat": "array_record"}, "array_record"),
        ({"splits": [3]}, "splits"),
        ({"splits": [{"name": "train", "shardLengths": ["x"]}]}, "splits"),
        ({"splits": [{"name": "../../etc", "shardLengths": ["1"]}]}, "not the name of a file"),
    ],
)
def test_dataset_info_that_cannot_be_used(arm, change, words):
    path = arm / "dataset_info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InvalidMetadataError, match=words):
        rlds.scan(str(arm))


def test_without_splits_in_the_info_the_names_of_the_files_tell(arm):
    info = json.loads((arm / "dataset_info.json").read_text())
    del info["splits"]
    (arm / "dataset_info.json").write_text(json.dumps(info))
    assert table(rlds.scan(str(arm)), ["split"])["split"].to_pylist() == ["train"] * 5 + ["val"]


def test_missing_files_and_wrong_counts_are_findings(tfds, tmp_path):
    made = tfds.arm_folder()
    made.absent = ("val",)
    folder = made.write(tmp_path)
    (folder / "arm-train.tfrecord-00001-of-00002").unlink()
    info = json.loads((folder / "dataset_info.json").read_text())
    info["splits"][0]["shardLengths"][0] = "3"
    (folder / "dataset_info.json").write_text(json.dumps(info))
    findings = list(rlds.scan(str(folder)).check("metadata"))
    assert [(finding.code, finding.severity) for finding in findings] == [
        ("rlds-missing-file", "error"),
        ("rlds-missing-split", "warning"),
        ("rlds-record-count", "error"),
    ]
    assert "00001-of-00002" in findings[0].location
    with pytest.raises(DatasetNotFoundError, match="no file of the splits val"):
        rlds.scan(str(folder), split="val")


def test_a_sound_dataset_has_no_findings(arm):
    assert list(rlds.scan(str(arm)).check("decode")) == []


# ---- damage


def first_file(arm):
    return arm / "arm-train.tfrecord-00000-of-00002"


def test_a_flipped_value_is_noticed_by_its_checksum(arm):
    path = first_file(arm)
    data = bytearray(path.read_bytes())
    at = data.index(b"do 0") + 3
    data[at] ^= 1
    path.write_bytes(data)
    source = rlds.scan(str(arm), split="train")
    [finding] = source.check("rows")
    assert (finding.code, finding.severity) == ("rlds-checksum", "error")
    assert "record 0" in str(finding)
    with pytest.raises(CorruptFileError, match=r"Record 0 of .*tfrecord-00000-of-00002.*checksum"):
        table(source, ["action"])
    # The record behind it is still there.
    assert read(source.shards()[0], ["path"], rows=np.array([1]))["path"].to_pylist() == ["/data/é1"]


def test_a_file_that_is_cut_off(arm):
    path = first_file(arm)
    whole = path.read_bytes()
    for size in (len(whole) - 1, len(whole) - 5, 100, 8):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match="tfrecord-00000-of-00002"):
            rlds.scan(str(arm))


def test_a_length_that_lies(arm, tfds):
    path = first_file(arm)
    head = struct.pack("<Q", 1 << 60)
    path.write_bytes(head + struct.pack("<I", tfds.crc(head)) + path.read_bytes())
    with pytest.raises(CorruptFileError, match=r"Record 0 .* says that it has 1152921504606846976 bytes"):
        rlds.scan(str(arm))


def test_a_compressed_file_is_recognised(arm):
    import gzip

    path = first_file(arm)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(CorruptFileError, match="gzip"):
        rlds.scan(str(arm))


def test_a_file_that_changed_after_the_scan(arm):
    source = rlds.scan(str(arm))
    with first_file(arm).open("ab") as file:
        file.write(b"more")
    with pytest.raises(ShardChangedError, match="tfrecord-00000-of-00002"):
        table(source, ["action"])


def test_columns_that_disagree_about_the_steps(tfds, tmp_path):
    bad = tfds.example({"steps/a": [1.0, 2.0], "steps/b": [1, 2, 3]})
    folder = tfds.Folder(
        steps={"a": tfds.tensor([], "float32"), "b": tfds.tensor([], "int64")}, files={"train": [[bad]]}
    ).write(tmp_path)
    source = rlds.scan(str(folder))
    assert table(source, ["a"])["a"].to_pylist() == [[[1.0], [2.0]]]
    with pytest.raises(CorruptFileError, match=r"Record 0 .*'steps/b' has 3 steps, the episode has 2"):
        table(source)
    assert [(f.code, f.column) for f in source.check("rows")] == [("rlds-steps", "b")]


def test_a_zlib_bomb_is_bounded(tfds, tmp_path):
    bomb = zlib.compress(bytes(50_000_000))
    folder = tfds.Folder(
        steps={"a": tfds.tensor([2], "float32", encoding="zlib"), "b": tfds.tensor([], "int64")},
        files={"train": [[tfds.example({"steps/a": [bomb], "steps/b": [1]})]]},
    ).write(tmp_path)
    with pytest.raises(CorruptFileError, match=r"Record 0.*'steps/a' has a value of 9 bytes"):
        table(rlds.scan(str(folder), keep_constant=True))


@pytest.mark.sampled
@settings(max_examples=150 if SOAK else 50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_an_error_or_the_right_answer(tfds, tmp_path_factory, data):
    """Bytes are changed; half of the time the checksums are made right again, so that the parser sees them."""
    folder = tfds.arm_folder().write(tmp_path_factory.mktemp("mutated"))
    truth = table(rlds.scan(str(folder), keep_constant=True))
    path = first_file(folder)
    records = [bytearray(record) for record in tfds.arm_folder().files["train"][0]]
    record = records[data.draw(st.integers(0, 1))]
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    mended = data.draw(st.booleans())
    if mended:
        path.write_bytes(b"".join(tfds.frame(bytes(record)) for record in records))
    else:
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
    try:
        source = rlds.scan(str(folder), keep_constant=True)
        found = table(source)
    except CorruptFileError as error:
        said = str(error)
    else:
        said = f"Record {path.name}"
        if not mended:
            assert found.schema == truth.schema
            assert found.equals(truth)
        for shard in source.shards():
            reader = shard.open()
            for name in source.schema.names:
                reader.flat(name)
    assert "Record" in said
    assert path.name in said


# ---- the real set, against a parser that shares nothing with ours


def real_records(path):
    """The records of a TFRecord file as {key: list of bytes, array of floats, or list of ints}."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield dict(entries(messages(messages(data[at + 12 : at + 12 + length])[0][1])))
        at += 16 + length


def messages(data):
    """[(field, content)] of a message that has only length-delimited fields, or varints."""
    found, at = [], 0
    while at < len(data):
        tag, at = number(data, at)
        if tag % 8 == 0:
            value, at = number(data, at)
            found.append((tag >> 3, value))
        else:
            size, at = number(data, at)
            found.append((tag >> 3, data[at : at + size]))
            at += size
    return found


def number(data, at):
    value, power = 0, 1
    while True:
        value += (data[at] % 128) * power
        power *= 128
        at += 1
        if data[at - 1] < 128:
            return value, at


def entries(features):
    for _, entry in features:
        fields = dict(messages(entry))
        [(kind, body)] = messages(fields[2])
        values = [value for _, value in messages(body)]
        if kind == 2:
            yield fields[1].decode(), np.frombuffer(b"".join(values), "<f4")
        elif kind == 3:
            [packed], ints, at = values, [], 0
            while at < len(packed):
                value, at = number(packed, at)
                ints.append(value)
            yield fields[1].decode(), ints
        else:
            yield fields[1].decode(), values


def test_the_real_set_float_for_float_and_byte_for_byte(bridge):
    truth = list(real_records(bridge / "bridge_dataset-train.tfrecord-00000-of-00001"))
    source = rlds.scan(str(bridge))
    rows = table(source)
    assert rows.num_rows == len(truth) == 25
    for name, key, width in [
        ("action", "steps/action", 7),
        ("state", "steps/observation/state", 7),
        ("reward_step", "steps/reward", 1),
        ("discount", "steps/discount", 1),
    ]:
        for cell, record in zip(rows[name], truth, strict=True):
            assert len(cell) == 10
            values = np.asarray(cell.values.flatten()).reshape(10, width)
            assert values.tobytes() == record[key].tobytes()
    for row, record in zip(rows.to_pylist(), truth, strict=True):
        assert {row["language_instruction"].encode()} == set(record["steps/language_instruction"])
        vectors = record["steps/language_embedding"].reshape(10, 512)
        assert np.array(row["language_embedding"], np.float32).tobytes() == vectors[9].tobytes()
        for camera in range(4):
            assert row[f"image_{camera}"] == record[f"steps/observation/image_{camera}"]
            assert row[f"has_image_{camera}"] == record[f"episode_metadata/has_image_{camera}"][0]
        for flag in ("is_first", "is_last", "is_terminal"):
            assert row[flag] == [[value] for value in record[f"steps/{flag}"]]
        assert row["file_path"].encode() == record["episode_metadata/file_path"][0]
        assert row["episode_id"] == record["episode_metadata/episode_id"][0]


def test_the_real_set_says_that_its_val_split_is_missing(bridge):
    source = rlds.scan(str(bridge))
    [finding] = source.check("decode")
    assert (finding.code, finding.severity) == ("rlds-missing-split", "warning")
    assert "'val'" in str(finding)
    assert source.schema["action"].dim == 7
    assert source.schema["language_embedding"].dim == 512
    assert source.schema["image_0"].category == "frames"


def test_fingerprints_are_of_the_content(arm, tmp_path):
    source = rlds.scan(str(arm))
    shutil.copytree(arm, tmp_path / "copy")
    copy = rlds.scan(str(tmp_path / "copy"))
    assert copy.fingerprint == source.fingerprint
    assert [shard.key for shard in copy.shards()] == [shard.key for shard in source.shards()]
    other = rlds.scan(str(arm), keep_constant=True)
    assert other.fingerprint != source.fingerprint
    assert {s.key for s in other.shards()}.isdisjoint(s.key for s in source.shards())
    assert pickle.loads(pickle.dumps(source)).fingerprint == source.fingerprint
