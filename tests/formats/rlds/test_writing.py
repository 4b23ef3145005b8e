"""RLDS datasets that are written: against tfds itself, against what tfds writes, and read again here."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqlake as sl
from seqlake.abilities import SaysMapping, ability
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.formats import rlds
from seqlake.formats.rlds.example import numbers, packed_varints, parse, serialized, stored, varints
from seqlake.formats.rlds.features import Feature
from seqlake.media import encode_image, image

PYTHON = os.environ.get("SEQLAKE_TFDS_PYTHON", "")
HERE = Path(__file__).parent


def convert(source: Any, out: Path, **options: Any) -> None:
    sl.convert(source, out, to="rlds", progress=False, workers=1, **options)


def arm(place: Path) -> Any:
    """A dataset of ours with a camera, flags, texts and numbers of many kinds, in two splits."""
    columns = {
        "action": sl.Trajectory(dim=3),
        "pose": sl.Trajectory(dim=4, shape=(2, 2), dtype=pa.float64()),
        "reward": pa.list_(pa.float32()),
        "count": sl.Trajectory(dim=1, dtype=pa.int16()),
        "is_terminal": sl.Trajectory(dim=1, dtype=pa.uint8()),
        "cam": sl.Image(frames="bytes", format="png"),
        "film": sl.Video(fps=10),
        "task": pa.string(),
        "success": pa.bool_(),
        "tries": pa.int64(),
        "words": pa.list_(pa.string()),
        "goal": sl.Embedding(dim=2),
        "split": pa.string(),
        "cloud": sl.Spatial3D(),
    }
    columns["reward"] = sl.ColumnType("trajectory")
    schema = {**columns, "reward": sl.Trajectory(dim=1)}
    rng = np.random.default_rng(5)
    with (ds := sl.create(place, schema)).writer() as writer:
        for number, steps in enumerate((4, 1, 6)):
            writer.add(
                f"ep {number}",
                action=rng.normal(size=(steps, 3)).astype("f4"),
                pose=rng.normal(size=(steps, 4)),
                reward=np.arange(steps, dtype="f4")[:, None],
                count=np.arange(steps)[:, None] - 2,
                is_terminal=(np.arange(steps) == steps - 1)[:, None].astype("u1"),
                cam=[encode_image(rng.integers(0, 256, (8, 6, 3)).astype("u1")) for _ in range(steps)],
                film=rng.integers(0, 256, (steps, 64, 48, 3)).astype("u1"),
                task=f"do {number}",
                success=number != 1,
                tries=-number,
                words=["a", "ä"][:number],
                goal=np.array([number, 0.5], "f4"),
                split="val" if number == 2 else "train",
            )
    return sl.open(ds.location)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return arm(tmp_path_factory.mktemp("arm") / "arm")


@pytest.fixture(scope="module")
def written(ours: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("rlds") / "arm" / "1.0.0"
    convert(ours, out, images="png")
    return out


def test_bridge_comes_back_as_it_was(bridge: Path, tmp_path: Path, tfds: Any) -> None:
    """Through a dataset of ours: every value, every byte of every image, and `features.json`."""
    source = rlds.scan(str(bridge))
    stays = sl.convert(source, tmp_path / "ours", progress=False, workers=1)
    convert(stays, tmp_path / "1.0.0", name="bridge_dataset")
    again = rlds.scan(str(tmp_path / "1.0.0"))
    assert sl.scan(again).to_arrow().equals(sl.scan(source).to_arrow())
    there, here = ((place / "features.json").read_text() for place in (bridge, tmp_path / "1.0.0"))
    assert json.loads(here) == json.loads(there)
    records = [
        by_hand(path, tfds) for place in (bridge, tmp_path / "1.0.0") for path in sorted(place.glob("*tfrecord*"))
    ]
    for before, after in zip(records[0], records[1], strict=True):
        known, features = parse(memoryview(before)), parse(memoryview(after))
        assert sorted(known) == sorted(features)
        for name, values in known.items():
            one = features[name]
            assert (values.kind, values.count()) == (one.kind, one.count()), name
            if values.kind == 1:
                assert list(map(bytes, values.bytes())) == list(map(bytes, one.bytes())), name
            else:
                read = (values.floats(), one.floats()) if values.kind == 2 else (values.ints(), one.ints())
                np.testing.assert_array_equal(*read)


def by_hand(path: Path, tfds: Any) -> list[bytes]:
    """The records of a file, with checksums by the bytewise definition."""
    data, at, records = path.read_bytes(), 0, []
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert tfds.crc(data[at : at + 8]) == crc
        record = data[at + 12 : at + 12 + length]
        if len(record) < 5000:  # the definition takes a second for a megabyte
            assert tfds.crc(record) == struct.unpack_from("<I", data, at + 12 + length)[0]
        records.append(record)
        at += 16 + length
    return records


def test_features_are_declared_as_tfds_declares_them(tmp_path: Path) -> None:
    """The file beside this one is what tfds 4.9.10 saved for the same features."""
    from seqlake.formats.rlds import declaring

    expected = json.loads((HERE / "features_by_tfds.json").read_text())
    schema = sl.Schema(
        {
            "action": sl.Trajectory(dim=2),
            "is_first": sl.Trajectory(dim=1, dtype=pa.uint8()),
            "reward": sl.ColumnType("trajectory"),
            "f64": sl.Trajectory(dim=2, dtype=pa.float64()),
            "text": pa.list_(pa.string()),
            "cam": sl.Image(frames="bytes", format="png", resolution=[6, 4]),
            "any": sl.Image(frames="bytes", format="jpeg"),
            "depth": sl.Depth(frames="bytes", resolution=[6, 4]),
            "state": sl.Trajectory(dim=4, shape=(2, 2)),
            "ok": pa.bool_(),
            "n": pa.int64(),
            "name": pa.string(),
            "vec": sl.Embedding(dim=3),
            "names": pa.list_(pa.string()),
        }
        | {"reward": sl.Trajectory(dim=1)}
    )
    paths = {name: f"steps/{name}" for name in ("f64", "text", "cam", "any", "depth")}
    chosen = declaring.declarations(schema, paths=paths, images="jpeg", episode_id=False, flags=False)
    root = declaring.tree({one.feature.path: one.node for one in chosen})
    steps = root["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    known = expected["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    del known["count"]  # a number a step of shape () without the class Scalar, which is not written
    del known["observation"]["featuresDict"]["features"]["state"]["description"]
    steps["reward"] = known["reward"]  # [T, 1] is a tensor of shape [1]
    meta = expected["featuresDict"]["features"]["episode_metadata"]["featuresDict"]["features"]
    assert meta["n"]["pythonClassName"].endswith("Tensor")  # of FeaturesDict({"n": np.int64}); a scalar says so here
    meta["n"]["pythonClassName"] = meta["ok"]["pythonClassName"]
    assert root == expected


def test_what_is_written_is_read_again(ours: Any, written: Path) -> None:
    source = rlds.scan(str(written), keep_constant=True)
    ds = sl.scan(source)
    assert sorted(row["sequence_id"] for row in ds) == ["ep 0", "ep 1", "ep 2"]
    for before in ours:
        row = ds.sequence(before["sequence_id"])
        for name in ("action", "reward_step", "count", "is_terminal"):
            np.testing.assert_array_equal(row[name], before["reward" if name == "reward_step" else name])
            assert row[name].dtype == before["reward" if name == "reward_step" else name].dtype
        np.testing.assert_array_equal(np.asarray(row["pose"]).reshape(-1, 4), np.asarray(before["pose"]).reshape(-1, 4))
        np.testing.assert_array_equal(row["goal"], before["goal"])
        assert [bytes(row["cam"].bytes(n)) for n in range(len(row["cam"]))] == [
            bytes(before["cam"].bytes(n)) for n in range(len(before["cam"]))
        ]
        np.testing.assert_array_equal(row["film"][:], before["film"][:])  # PNG loses nothing of what was decoded
        steps = len(before["action"])
        assert row["is_first"][:, 0].tolist() == [1] + [0] * (steps - 1)
        assert row["is_last"][:, 0].tolist() == [0] * (steps - 1) + [1]
        assert list(row["language_instruction"]) == [before["task"]] * steps
        assert (row["success"], row["tries"], row["split"]) == (before["success"], before["tries"], before["split"])
        assert list(row["words"]) == list(before["words"])
    assert [finding for finding in source.check("rows") if finding.severity == "error"] == []
    known = ability(source, SaysMapping)
    assert known
    assert {one.source for one in known.mapping()} >= {"steps/observation/cam", "episode_metadata/words"}


def test_what_has_no_place_is_said(ours: Any, tmp_path: Path) -> None:
    assert set(rlds.dropped(ours.schema)) == {"cloud"}
    plan = sl.convert(ours, tmp_path / "out", to="rlds", dry_run=True)
    assert set(plan.dropped) == {"cloud"}


def test_refusals(tmp_path: Path) -> None:
    schema = {"a": sl.Trajectory(dim=1), "b": sl.Trajectory(dim=1), "note": pa.string(), "split": pa.string()}
    with (ds := sl.create(tmp_path / "ours", schema)).writer() as writer:
        writer.add("x", a=np.zeros((3, 1)), b=np.zeros((2, 1)), note=None, split="a-b")
    ds = sl.open(ds.location)
    with pytest.raises(ValidationError, match="tfds has no split called 'a-b'"):
        convert(ds, tmp_path / "out")
    with pytest.raises(ValidationError, match="'b' has 2 steps, the columns before it 3"):
        convert(ds.select("sequence_id", "a", "b"), tmp_path / "out")
    with pytest.raises(ValidationError, match=r"fill=\{'note'"):
        convert(ds.select("sequence_id", "a", "note"), tmp_path / "out")
    convert(ds.select("sequence_id", "a", "note"), tmp_path / "filled", fill={"note": "-"})
    assert sl.scan(tmp_path / "filled")[0]["note"] == "-"
    with pytest.raises(SchemaMismatchError, match="is no path"):
        convert(ds, tmp_path / "out", paths={"a": "steps"})
    with pytest.raises(SchemaMismatchError, match="Two columns would be"):
        convert(ds, tmp_path / "out", paths={"a": "steps/x", "b": "steps/x"})
    with pytest.raises(SchemaMismatchError, match="holds others|below another"):
        convert(ds, tmp_path / "out", paths={"a": "steps/x", "b": "steps/x/y"})
    with pytest.raises(ValueError, match="images: expected 'jpeg' or 'png'"):
        convert(ds, tmp_path / "out", images="webp")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_replay_buffer_becomes_rlds(tmp_path: Path) -> None:
    """Its pictures are neither JPEG nor PNG: they are encoded, without loss where PNG is asked for."""
    zarr = pytest.importorskip("zarr")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3)).astype("u1")
    group = zarr.open_group(store=str(tmp_path / "b"), mode="w", zarr_format=2)
    group.create_array("data/img", data=pixels)
    group.create_array("meta/episode_ends", data=np.array([2, 5]))
    convert(sl.scan(tmp_path / "b"), tmp_path / "out", images="png")
    ds = sl.scan(tmp_path / "out")
    np.testing.assert_array_equal(ds[1]["img"][:], pixels[2:])


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_varints_come_back(values: list[int]) -> None:
    packed = packed_varints(np.array(values, np.int64))
    assert varints(memoryview(packed)).tolist() == values


@given(
    st.sampled_from(["int8", "uint8", "int16", "uint32", "int64", "float32", "float64", "float16"]),
    st.sampled_from(["none", "bytes", "zlib"]),
    st.integers(0, 4),
    st.data(),
)
def test_numbers_come_back(dtype: str, encoding: Any, steps: int, data: st.DataObject) -> None:
    kind = np.dtype(dtype)
    width = 16 if kind.kind == "f" and encoding == "none" else 8 * kind.itemsize
    if kind.kind == "f":
        one = st.floats(width=min(width, 8 * kind.itemsize), allow_nan=False)  # type: ignore[arg-type]  # 16, 32, 64
    else:
        one = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))  # type: ignore[assignment]
    values = np.array(data.draw(st.lists(one, min_size=3 * steps, max_size=3 * steps)), kind)
    feature = Feature(path="steps/a", kind="tensor", dtype=dtype, shape=(3,), encoding=encoding, step=True, details={})
    record = serialized({"steps/a": stored(feature, values), "steps/é": (1, [b"", b"x"])})
    parsed = parse(memoryview(record))
    np.testing.assert_array_equal(numbers(feature, parsed["steps/a"]), values)
    assert [bytes(cell) for cell in parsed["steps/é"].bytes()] == [b"", b"x"]


READS = """
import json, sys
import numpy as np
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
out = {}
for split in builder.info.splits:
    for episode in tfds.as_numpy(builder.as_dataset(split=split, shuffle_files=False)):
        meta = episode["episode_metadata"]
        steps = list(episode["steps"])
        one = {"split": split, "n": len(steps), "success": bool(meta["success"]), "tries": int(meta["tries"])}
        one["words"] = [word.decode() for word in meta["words"]]
        one["goal"] = meta["goal"].tolist()
        one["text"] = [step["language_instruction"].decode() for step in steps]
        for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
            one[name] = [np.asarray(step[name]).tolist() for step in steps]
            one[name + " dtype"] = str(np.asarray(steps[0][name]).dtype)
        for name in ("pose", "count", "cam", "film"):
            one[name] = [np.asarray(step["observation"][name]).tolist() for step in steps]
            one[name + " dtype"] = str(np.asarray(steps[0]["observation"][name]).dtype)
        out[meta["episode_id"].decode()] = one
json.dump(out, open(sys.argv[2], "w"))
"""


@pytest.mark.skipif(
    not PYTHON, reason="tfds is not there: benchmarks/peers/setup makes it, SEQLAKE_TFDS_PYTHON names it"
)
def test_tfds_reads_every_value(ours: Any, written: Path, tmp_path: Path) -> None:
    out = tmp_path / "read.json"
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "HOME": str(tmp_path)}
    subprocess.run([PYTHON, "-c", READS, str(written), str(out)], check=True, env=quiet, capture_output=True)
    read = json.loads(out.read_text())
    assert sorted(read) == ["ep 0", "ep 1", "ep 2"]
    for before in ours:
        one, steps = read[before["sequence_id"]], len(before["action"])
        assert (one["split"], one["n"], one["success"], one["tries"]) == (
            before["split"], steps, before["success"], before["tries"],
        )  # fmt: skip
        assert one["words"] == list(before["words"])
        assert one["text"] == [before["task"]] * steps
        np.testing.assert_array_equal(np.array(one["goal"], "f4"), before["goal"])
        for name in ("action", "pose", "count", "reward"):
            assert one[f"{name} dtype"] == str(before[name].dtype)
            np.testing.assert_array_equal(np.array(one[name], before[name].dtype), before[name])
        assert one["is_first dtype"] == one["is_terminal dtype"] == "bool"
        assert one["is_terminal"] == before["is_terminal"][:, 0].astype(bool).tolist()
        pictures = [image.decode(bytes(before["cam"].bytes(n))) for n in range(steps)]
        np.testing.assert_array_equal(np.array(one["cam"], "u1"), np.stack(pictures))
        np.testing.assert_array_equal(np.array(one["film"], "u1"), before["film"][:])


READS_BRIDGE = """
import sys, hashlib, json
import numpy as np
import tensorflow_datasets as tfds
def digest(place):
    out = []
    for episode in tfds.as_numpy(tfds.builder_from_directory(place).as_dataset(split="train", shuffle_files=False)):
        whole = hashlib.sha256()
        def walk(value, path=""):
            if isinstance(value, dict):
                for key in sorted(value):
                    walk(value[key], path + "/" + key)
            else:
                array = np.asarray(value)
                held = array.tobytes() if array.dtype != object else repr(value).encode()
                whole.update(f"{path} {array.dtype} {array.shape}".encode() + held)
        steps = list(episode.pop("steps"))
        walk(episode)
        for step in steps:
            walk(step)
        out.append([len(steps), whole.hexdigest()])
    return out
json.dump([digest(place) for place in sys.argv[1:3]], open(sys.argv[3], "w"))
"""


@pytest.mark.skipif(
    not PYTHON, reason="tfds is not there: benchmarks/peers/setup makes it, SEQLAKE_TFDS_PYTHON names it"
)
def test_tfds_reads_bridge_as_before(bridge: Path, tmp_path: Path) -> None:
    convert(rlds.scan(str(bridge)), tmp_path / "1.0.0", name="bridge_dataset")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "HOME": str(tmp_path)}
    out = tmp_path / "read.json"
    places = [str(bridge), str(tmp_path / "1.0.0")]
    subprocess.run([PYTHON, "-c", READS_BRIDGE, *places, str(out)], check=True, env=quiet, capture_output=True)
    before, after = json.loads(out.read_text())
    assert len(before) == 25
    assert before == after
