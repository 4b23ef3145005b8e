"""What `datasets` says that its rows are, beside what we say; in folders, streams and objects."""

from __future__ import annotations

import io
import json

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Array2D, Array3D, Audio, ClassLabel, Features, Image, List, Value

import seqlake as sl
from seqlake.abilities import SaysMapping, ability
from seqlake.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidMetadataError,
    MissingFileError,
    SchemaMismatchError,
    SeqlakeError,
    UnsafeReferenceError,
)
from seqlake.formats import huggingface
from seqlake.testing.formats import FormatTests

FEATURES = Features(
    {
        "name": Value("large_string"),
        "count": Value("int32"),
        "label": ClassLabel(names=["no", "yes"]),
        "image": Image(),
        "images": List(Image()),
        "signal": Array2D((None, 3), "float32"),
        "cube": Array3D((2, 3, 4), "float32"),
        "state": List(Value("float32"), length=4),
        "boxes": List(List(Value("float64"))),
        "sound": Audio(sampling_rate=16_000, decode=False),
        "pair": {"x": Value("int64"), "y": Value("string")},
        "when": Value("timestamp[us]"),
    }
)


@pytest.fixture(autouse=True, scope="module")
def _silent():
    datasets.disable_progress_bars()


def png(value: int) -> bytes:
    sink = io.BytesIO()
    PIL.Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(sink, "PNG")
    return sink.getvalue()


def row(number: int) -> dict:
    random = np.random.default_rng(number)
    return {
        "name": f"row {number}",
        "count": number,
        "label": number % 2,
        "image": None if number == 3 else {"bytes": png(number), "path": f"{number}.png"},
        "images": [{"bytes": png(step), "path": None} for step in range(number % 3)],
        "signal": random.random((number + 1, 3), np.float32),
        "cube": random.random((2, 3, 4), np.float32),
        "state": random.random(4, np.float32),
        "boxes": None if number == 2 else random.random((2, 4)).tolist(),
        "sound": {"bytes": b"RIFF" + bytes([number]), "path": "a.wav"},
        "pair": {"x": number, "y": None},
        "when": None,
    }


def dataset(start: int = 0, stop: int = 7) -> datasets.Dataset:
    rows = [row(number) for number in range(start, stop)]
    stored = Features({**FEATURES, "sound": {"bytes": Value("binary"), "path": Value("string")}})
    official = datasets.Dataset.from_list(rows, features=stored)  # encoding sounds would need torchcodec
    return official.cast_column("sound", FEATURES["sound"])


def same(seen: pa.Table, official: datasets.Dataset) -> None:
    """All values, image bytes among them; `datasets` decodes nothing."""
    raw = official.cast_column("image", Image(decode=False)).cast_column("images", List(Image(decode=False)))
    truth = raw.with_format(None)[:]
    ours = seen.to_pydict()
    assert set(truth) <= set(ours)
    alike = {
        "image": lambda one: one and one["bytes"],
        "images": lambda cell: [one["bytes"] for one in cell],
        "cube": lambda one: np.asarray(one).reshape(2, 12).tolist(),
        "signal": lambda one: np.asarray(one).tolist(),
        "state": lambda one: np.asarray(one).tolist(),
    }
    for name, values in truth.items():
        assert ours[name] == [alike.get(name, lambda one: one)(value) for value in values], name


@pytest.fixture
def folder(tmp_path):
    out = tmp_path / "hub"
    (out / "data").mkdir(parents=True)
    dataset(0, 4).to_parquet(out / "data" / "train-00000-of-00002.parquet")
    dataset(4, 7).to_parquet(out / "data" / "train-00001-of-00002.parquet")
    dataset(7, 9).to_parquet(out / "data" / "test-00000-of-00001.parquet")
    return out


class TestParquet(FormatTests):
    @pytest.fixture
    def source(self, folder):
        return huggingface.scan(str(folder))


class TestObjects(FormatTests):
    @pytest.fixture
    def source(self):
        return huggingface.scan(dataset().select([5, 1, 3, 0]))


class TestEpisodes(FormatTests):
    """Put together out of streams."""

    @pytest.fixture
    def source(self, tmp_path):
        rows = {"episode": [0, 0, 1, 1, 1], "step": [1, 0, 2, 0, 1], "x": [1.0, 2.0, 3.0, 4.0, 5.0]}
        images = [{"bytes": png(number), "path": None} for number in range(5)]
        official = datasets.Dataset.from_dict({**rows, "image": images}).cast_column("image", Image())
        official.save_to_disk(tmp_path / "saved", num_shards=2)
        return huggingface.scan(str(tmp_path / "saved"), sequence_id="episode", steps="step")


def test_folders_of_parquet(folder) -> None:
    seen = sl.scan(folder)
    paths = sorted(map(str, (folder / "data").glob("*")))
    official = datasets.load_dataset("parquet", data_files={"each": paths}, cache_dir=str(folder.parent / "cache"))[
        "each"
    ]
    same(seen.to_arrow(), official)
    assert seen.to_arrow()["split"].to_pylist() == ["test"] * 2 + ["train"] * 7
    same(sl.scan(folder, split="train").to_arrow(), dataset())
    kinds = {name: column.type and column.type.type for name, column in seen.schema.items()}
    assert kinds == {
        "name": None, "count": None, "label": "class_label", "image": "image", "images": "image", "split": None,
        "signal": "trajectory", "cube": "trajectory", "state": None, "boxes": "trajectory", "sound": "audio",
        "pair": None, "when": None,
    }  # fmt: skip
    assert seen.schema["label"].type.get("names") == ["no", "yes"]
    assert (seen.schema["signal"].dim, seen.schema["cube"].shape) == (3, (3, 4))
    assert [seen.schema[name].category for name in ("images", "signal")] == ["frames", "temporal"]
    assert sl.scan(folder / "data" / "test-00000-of-00001.parquet").schema["image"].type.type == "image"


def test_what_became_of_each_feature_is_said(folder) -> None:
    said = ability(huggingface.scan(str(folder), map={"picture": "image", "n": "count"}), SaysMapping).mapping()
    assert [(one.source, one.column) for one in said][:3] == [("image", "picture"), ("count", "n"), ("name", None)]
    assert len(said) == len(FEATURES)
    mapped = sl.scan(folder, map={"picture": {"source": "image", "type": "image", "format": "png"}, "n": "count"})
    assert mapped.schema.names == ["picture", "n", "split"]
    assert mapped.to_arrow()["n"].to_pylist() == [7, 8, 0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(ColumnNotFoundError, match="No feature 'nothing'"):
        sl.scan(folder, map={"a": "nothing"})
    grouped = huggingface.scan(str(folder), sequence_id="name", split="train")
    assert ability(grouped, SaysMapping) is not None


def test_folders_of_save_to_disk(tmp_path) -> None:
    dataset().save_to_disk(tmp_path / "one", num_shards=3)
    same(sl.scan(tmp_path / "one").to_arrow(), datasets.load_from_disk(tmp_path / "one"))
    datasets.DatasetDict({"train": dataset(0, 4), "test": dataset(4, 6)}).save_to_disk(tmp_path / "dict")
    seen = sl.scan(tmp_path / "dict")
    assert seen.to_arrow()["split"].to_pylist() == ["train"] * 4 + ["test"] * 2
    same(sl.scan(tmp_path / "dict", split="test").to_arrow(), dataset(4, 6))


def test_objects_are_not_copied_and_their_selections_are_honoured() -> None:
    official = dataset()
    seen = sl.scan(official)
    assert seen.shards()[0].shard.shard.table["count"].chunk(0).buffers()[1].address == (
        official.data.table["count"].chunk(0).buffers()[1].address
    )
    same(seen.to_arrow(), official)
    for part in (
        official.select([6, 0, 3]),
        official.shuffle(seed=4),
        official.select([]),
        official.select(range(2, 5)),
    ):
        same(sl.scan(part).to_arrow(), part) if len(part) else None
        assert len(sl.scan(part)) == len(part)
    mixed = datasets.concatenate_datasets([dataset(0, 3), dataset(3, 7)])
    same(sl.scan(mixed.select([6, 0, 5, 1, 4, 2])).to_arrow(), mixed.select([6, 0, 5, 1, 4, 2]))
    both = datasets.DatasetDict({"train": official, "test": dataset(7, 9)})
    assert sl.scan(both).to_arrow()["split"].to_pylist() == ["train"] * 7 + ["test"] * 2
    assert sl.scan(official).fingerprint == sl.scan(official).fingerprint != sl.scan(official.select([0])).fingerprint
    with pytest.raises(SeqlakeError, match="IterableDataset has no table"):
        sl.scan(official.to_iterable_dataset())


def test_episodes_out_of_frames(tmp_path) -> None:
    frames = [(episode, step) for episode in range(3) for step in range(4 + episode)]
    rows = [
        {"episode": e, "frame": s, "image": {"bytes": png(10 * e + s), "path": None}, "state": [e, s], "task": f"t{e}"}
        for e, s in frames
    ]
    features = Features(
        {"episode": Value("int64"), "frame": Value("int64"), "image": Image(), "task": Value("string"),
         "state": List(Value("float32"), length=2)}
    )  # fmt: skip
    official = datasets.Dataset.from_list(rows, features=features).shuffle(seed=1)
    ds = sl.convert(official, tmp_path / "out", sequence_id="episode", steps="frame", workers=1, progress=False)
    assert ds.validate(depth="decode").ok
    assert len(ds) == 3
    assert ds["1"]["image"][2].tolist() == np.full((6, 8, 3), 12, np.uint8).tolist()
    assert ds.to_arrow()["task"].to_pylist() == [f"t{one}" for one in ds.to_arrow()["sequence_id"].to_pylist()]


def test_what_we_write_is_what_datasets_loads(tmp_path) -> None:
    official = dataset()
    source = sl.scan(official)
    sl.convert(source, tmp_path / "out", to="huggingface", workers=1, progress=False)
    assert [path.name for path in (tmp_path / "out" / "data").iterdir()] == ["train-00000-of-00001.parquet"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"data"}
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))["train"]
    rate = loaded.features["sound"].sampling_rate
    loaded = loaded.cast_column("sound", Audio(decode=False))  # decoding would need torchcodec
    assert isinstance(loaded.features["image"], Image)
    assert loaded.features["label"].names == ["no", "yes"]
    assert loaded.features["images"].feature == Image()
    assert rate == 16_000
    assert loaded["sound"][:] == official["sound"][:]
    assert loaded["count"][:] == official["count"][:]
    for one, two in zip(loaded["signal"], official["signal"], strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(two, np.float32))
    assert np.asarray(loaded[4]["image"]).tolist() == np.asarray(official[4]["image"]).tolist()
    assert loaded[3]["image"] is None
    again = sl.scan(tmp_path / "out")
    assert again.to_arrow().drop_columns(["split"]).equals(source.select(*again.schema.names[:-1]).to_arrow())


def test_splits_and_files_that_rows_name_are_written(tmp_path) -> None:
    (tmp_path / "a" / "files").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "a" / "files" / f"{number}.png").write_bytes(png(number))
    ds = sl.create(tmp_path / "a" / "ds", {"split": pa.string(), "picture": sl.Image(format="png")})
    ds.append(
        [
            {"sequence_id": f"e{n}", "split": s, "picture": sl.File(tmp_path / "a" / "files" / f"{n}.png")}
            for n, s in enumerate(["train", "test", None, "train"])
        ]
    )
    sl.convert(ds, tmp_path / "out", to="huggingface", workers=1, progress=False)
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: part["sequence_id"][:] for name, part in loaded.items()} == {
        "train": ["e0", "e3"], "test": ["e1"], "unassigned": ["e2"],
    }  # fmt: skip
    assert np.asarray(loaded["test"][0]["picture"])[0, 0].tolist() == [1, 1, 1]
    bad = sl.create(tmp_path / "bad", {"split": pa.string()})
    bad.append([{"sequence_id": "a", "split": "../up"}])
    with pytest.raises(SeqlakeError, match="is no name of letters"):
        sl.convert(bad, tmp_path / "never", to="huggingface", workers=1, progress=False)
    assert not list((tmp_path / "never").rglob("*.parquet"))


def test_mixtrain_and_lerobot_folders_are_what_they_are(tmp_path, folder) -> None:
    ds = sl.create(tmp_path / "ds", {"image": sl.Image(inline=True)})
    ds.append([{"sequence_id": "a", "image": png(1)}])
    dataset(0, 2).to_parquet(tmp_path / "ds" / "stray.parquet")
    assert not huggingface.matches(str(tmp_path / "ds"))
    assert len(sl.scan(tmp_path / "ds")) == 1
    (folder / "meta").mkdir()
    (folder / "meta" / "info.json").write_text('{"codebase_version": "v3.0"}')
    assert not huggingface.matches(str(folder))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain.parquet")
    assert not huggingface.matches(str(tmp_path / "plain.parquet"))
    assert not huggingface.matches(str(tmp_path / "nothing"))


def test_init_takes_the_types_that_features_declare(tmp_path) -> None:
    features = Features({"sequence_id": Value("string"), "image": Image(), "x": List(List(Value("float32"), length=2))})
    rows = [{"sequence_id": f"e{n}", "image": {"bytes": png(n), "path": None}, "x": [[n, n]]} for n in range(3)]
    (tmp_path / "d" / "data").mkdir(parents=True)
    datasets.Dataset.from_list(rows, features=features).to_parquet(
        tmp_path / "d" / "data" / "train-00000-of-00001.parquet"
    )
    seen = sl.scan(tmp_path / "d")
    assert seen.schema.id == "sequence_id"
    sl.init(tmp_path / "d")
    ds = sl.open(tmp_path / "d")
    assert ds["e2"]["image"][0][0, 0].tolist() == [2, 2, 2]
    assert ds.validate(depth="rows").ok


def test_configurations_are_asked_for(tmp_path) -> None:
    for config in ("en", "de"):
        (tmp_path / config).mkdir()
        dataset(0, 2).to_parquet(tmp_path / config / "train-00000-of-00001.parquet")
    with pytest.raises(InvalidMetadataError, match=r"several configurations: de, en.*config='de'"):
        sl.scan(tmp_path)
    assert len(sl.scan(tmp_path, config="en")) == 2
    with pytest.raises(ColumnNotFoundError, match="no configuration 'fr'"):
        sl.scan(tmp_path, config="fr")
    with pytest.raises(ColumnNotFoundError, match="no split 'test'"):
        sl.scan(tmp_path, config="en", split="test")


def test_a_part_is_not_taken_for_the_whole(folder) -> None:
    (folder / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(MissingFileError, match="train-00001-of-00002.parquet is not there: 1 of 2"):
        sl.scan(folder)
    assert len(sl.scan(folder / "data" / "train-00000-of-00002.parquet")) == 4


def test_files_that_disagree_are_refused(folder) -> None:
    pq.write_table(pa.table({"count": ["text"]}), folder / "data" / "validation-00000-of-00001.parquet")
    with pytest.raises(SchemaMismatchError, match="is .* in the first file and"):
        sl.scan(folder)


@pytest.mark.parametrize(
    "features",
    ["no json", "[]", '{"info": {}}', '{"info": {"features": []}}',
     '{"info": {"features": {"a": 7, "b": {"_type": []}}}}',
     '{"info": {"features": {"a": {"_type": "Array2D", "shape": [null, 1e99]}, "b": {"_type": "ClassLabel"}}}}',
     '{"info": {"features": {"a": {"_type": "Image"}, "b": {"feature": {"_type": "Image"}, "_type": "List"}}}}'],
)  # fmt: skip
def test_features_that_lie_leave_plain_columns(tmp_path, features) -> None:
    table = pa.table({"a": [[[1.0, 2.0]]], "b": [["x"]]}).replace_schema_metadata({"huggingface": features})
    pq.write_table(table, tmp_path / "train.parquet")
    assert sl.scan(tmp_path).to_arrow().select(["a", "b"]).to_pydict() == table.to_pydict()


def test_arrays_of_other_shapes_are_errors(tmp_path) -> None:
    features = {"a": {"_type": "Array3D", "shape": [None, 2, 3], "dtype": "float32"}}
    table = pa.table({"a": pa.array([[[[1, 2, 3], [4, 5]]]], pa.list_(pa.list_(pa.list_(pa.float32()))))})
    pq.write_table(
        table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}),
        tmp_path / "train.parquet",
    )
    with pytest.raises(CorruptFileError, match="an axis of 3 has 2 to 3 numbers"):
        sl.scan(tmp_path).to_arrow()


def test_paths_that_lead_out_are_refused(tmp_path) -> None:
    (tmp_path / "secret.png").write_bytes(png(7))
    metadata = {"huggingface": '{"info": {"features": {"image": {"_type": "Image"}}}}'}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for path in ("../secret.png", str(tmp_path / "secret.png")):
        table = pa.table({"image": pa.array([{"bytes": None, "path": path}], kind)}, metadata=metadata)
        (tmp_path / "d").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "d" / "train.parquet")
        with pytest.raises(UnsafeReferenceError):
            sl.scan(tmp_path / "d").to_arrow()
    assert sl.scan(tmp_path / "d", allow_outside=True).to_arrow()["image"].to_pylist() == [png(7)]


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, 0.99])
def test_streams_that_are_cut_off_are_errors(tmp_path, cut) -> None:
    dataset().save_to_disk(tmp_path / "s")
    path = next((tmp_path / "s").glob("*.arrow"))
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
    with pytest.raises(CorruptFileError):
        sl.scan(tmp_path / "s").to_arrow()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_changed_bytes_are_errors_of_ours_or_rows(tmp_path, kind) -> None:
    """Neither format has checksums of its own here: another value may come, another kind of error may not."""
    official = dataset(0, 3)
    if kind == "arrow":
        official.save_to_disk(tmp_path / "d")
    else:
        (tmp_path / "d").mkdir()
        official.to_parquet(tmp_path / "d" / "train.parquet")
    path = next((tmp_path / "d").glob(f"*.{kind}"))
    path.chmod(0o644)
    data = path.read_bytes()
    random = np.random.default_rng(7)
    refused = 0
    for _ in range(60):
        changed = bytearray(data)
        for place in random.integers(0, min(len(data), 6000), random.integers(1, 10)).tolist():
            changed[place if kind == "arrow" else -1 - place] = int(random.integers(256))
        path.write_bytes(changed)
        try:
            assert sl.scan(tmp_path / "d").to_arrow().num_rows >= 0
        except SeqlakeError:
            refused += 1
    assert refused > 10


def test_documents_that_lie_are_errors(tmp_path) -> None:
    dataset(0, 2).save_to_disk(tmp_path / "s")
    state = tmp_path / "s" / "state.json"
    for text, error in [
        ('{"_data_files": [{"filename": "../../etc/passwd"}]}', UnsafeReferenceError),
        ('{"_data_files": 7}', InvalidMetadataError),
        ('{"_data_files": [7]}', InvalidMetadataError),
        ('["_data_files"]', InvalidMetadataError),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', FileNotFoundError),
        ('{"_data_files": []}', FileNotFoundError),
    ]:
        state.write_text(text)
        with pytest.raises(error):
            sl.scan(tmp_path / "s")
    datasets.DatasetDict({"train": dataset(0, 2)}).save_to_disk(tmp_path / "dd")
    (tmp_path / "dd" / "dataset_dict.json").write_text('{"splits": ["../x"]}')
    with pytest.raises(UnsafeReferenceError):
        sl.scan(tmp_path / "dd")
    (tmp_path / "dd" / "dataset_dict.json").write_text('{"splits": ["gone"]}')
    with pytest.raises(MissingFileError, match="gone/state.json"):
        sl.scan(tmp_path / "dd")
