"""Samples become sequences: grouped by two columns, or one each."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.validation import validate
from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.formats import mds
from seqlake.grouping import as_sequences
from seqlake.testing.formats import FormatTests

Image = pytest.importorskip("PIL.Image")

COLUMNS = {
    "act": "ndarray:float32:3",
    "ep": "str",
    "img": "png",
    "meta": "json",
    "note": "str",
    "pose": "ndarray:float64:2,3",
    "r": "float32",
    "t": "int",
    "task": "str",
}


def png(value: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(out, "PNG")
    return out.getvalue()


def sample(episode: int, step: int) -> dict:
    return {
        "act": np.full(3, 100 * episode + step, "f4"),
        "ep": f"e{episode}",
        "img": png(10 * episode + step),
        "meta": {"k": step},
        "note": f"{episode}-{step}",
        "pose": np.full((2, 3), step, "f8"),
        "r": step / 2,
        "t": step,
        "task": f"task {episode % 2}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Samples of five episodes of 4 to 8 steps, in no order, in several shards."""
    rows = [(episode, step) for episode in range(5) for step in range(4 + episode)]
    np.random.default_rng(0).shuffle(rows)
    with sl.create(tmp_path / "mds", COLUMNS, format="mds", size_limit=1500) as writer:
        writer.write_all(sample(episode, step) for episode, step in rows)
    return tmp_path / "mds"


class TestGrouped(FormatTests):
    @pytest.fixture
    def source(self, folder: Path):
        return as_sequences(mds.scan(str(folder)), sequence_id="ep", steps="t")


class TestNamed(FormatTests):
    @pytest.fixture
    def source(self, folder: Path):
        return as_sequences(mds.scan(str(folder)), sequence_id="note")


class TestNumbered(FormatTests):
    @pytest.fixture
    def source(self, folder: Path):
        return as_sequences(mds.scan(str(folder)), sequence_id=True)


def test_steps_are_put_in_order_across_shards(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(folder, tmp_path / "out", sequence_id="ep", steps="t", workers=1)
    assert sorted(ds.to_arrow()["sequence_id"].to_pylist()) == [f"e{i}" for i in range(5)]
    for episode in range(5):
        seq, length = ds[f"e{episode}"], 4 + episode
        np.testing.assert_array_equal(seq["act"], [[100 * episode + step] * 3 for step in range(length)])
        np.testing.assert_array_equal(seq["pose"], [np.full((2, 3), step) for step in range(length)])
        np.testing.assert_array_equal(seq["r"][:, 0], np.arange(length) / 2)
        assert seq["task"] == f"task {episode % 2}"
        assert list(seq["note"]) == [f"{episode}-{step}" for step in range(length)]
        np.testing.assert_array_equal(seq["img"][2], np.full((4, 4, 3), 10 * episode + 2))
    assert validate(ds, depth="decode").ok


def test_the_types_of_a_sequence(folder: Path) -> None:
    schema = as_sequences(mds.scan(str(folder)), sequence_id="ep", steps="t").schema
    assert list(schema) == ["sequence_id", "act", "img", "meta", "note", "pose", "r", "t", "task"]
    assert (schema["act"].shape, schema["act"].dtype) == ((3,), np.float32)
    assert (schema["pose"].shape, schema["pose"].dtype) == ((2, 3), np.float64)
    assert schema["img"].category == "frames"
    assert schema["task"].arrow == pa.string()
    assert schema["note"].arrow == pa.list_(pa.string())


def test_one_sample_is_one_sequence(folder: Path, tmp_path: Path) -> None:
    source = sl.scan(folder).to_arrow()
    ds = sl.convert(folder, tmp_path / "out", sequence_id=True, workers=1)
    table = ds.to_arrow()
    assert table["sequence_id"].to_pylist() == [f"{i:02d}" for i in range(len(source))]
    for name in ("act", "ep", "meta", "note", "pose", "r", "t", "task"):
        assert table[name].to_pylist() == source[name].to_pylist(), name
    assert table["img"].to_pylist() == [[cell] for cell in source["img"].to_pylist()]
    assert validate(ds, depth="decode").ok


def test_ids_are_the_values_of_a_column(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(folder, tmp_path / "out", sequence_id="note", workers=1)
    assert sorted(ds.to_arrow()["sequence_id"].to_pylist()) == sorted(
        f"{episode}-{step}" for episode in range(5) for step in range(4 + episode)
    )
    assert ds["3-2"]["t"] == 2


def test_an_interrupted_conversion_goes_on(folder: Path, tmp_path: Path, monkeypatch) -> None:
    from seqlake.conversion import convert as conversion

    options = {"sequence_id": "ep", "steps": "t", "workers": 1, "work": tmp_path / "work", "bytes_per_part": 4000}
    real, left = conversion.convert_part, [1]

    def run(part, /, **options):
        left[0] -= 1
        if left[0] < 0:
            raise ValidationError("stop")
        return real(part, **options)

    with monkeypatch.context() as patch:
        patch.setattr(conversion, "convert_part", run)
        with pytest.raises(ValidationError, match="stop"):
            sl.convert(folder, tmp_path / "out", **options)
    ds = sl.convert(folder, tmp_path / "out", **options)
    whole = sl.convert(folder, tmp_path / "whole", **{**options, "work": None})
    assert ds.to_arrow().equals(whole.to_arrow())


def test_samples_of_two_shards_convert_in_processes(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(folder, tmp_path / "out", sequence_id="ep", steps="t", workers=2, bytes_per_part=4000)
    np.testing.assert_array_equal(ds["e4"]["t"][:, 0], np.arange(8))


def test_the_order_of_the_source_can_be_the_steps(tmp_path: Path) -> None:
    with sl.create(tmp_path / "mds", {"ep": "int", "x": "int32"}, format="mds") as writer:
        writer.write_all({"ep": i % 2, "x": 10 - i} for i in range(6))
    ds = sl.convert(tmp_path / "mds", tmp_path / "out", sequence_id="ep", steps=True, workers=1)
    assert ds["1"]["x"][:, 0].tolist() == [9, 7, 5]


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({}, SchemaMismatchError, "sequence_id=True"),
        ({"sequence_id": "nope"}, KeyError, "nope"),
        ({"sequence_id": "r"}, SchemaMismatchError, "text or an integer"),
        ({"sequence_id": "ep"}, ValidationError, "steps="),
        ({"steps": "t"}, TypeError, "sequence_id="),
        ({"sequence_id": "ep", "steps": "task"}, SchemaMismatchError, "numbers or times"),
        ({"sequence_id": "task", "steps": "t"}, ValidationError, "two samples of step"),
    ],
)
def test_what_cannot_be_grouped(folder: Path, tmp_path: Path, options: dict, error: type, what: str) -> None:
    with pytest.raises(error, match=what):
        sl.convert(folder, tmp_path / "out", workers=1, **options)
    assert not (tmp_path / "out").exists()


def test_samples_without_an_id_are_named(tmp_path: Path) -> None:
    with sl.create(tmp_path / "mds", {"ep": "str"}, format="mds") as writer:
        writer.write_all([{"ep": "a"}, {"ep": ""}])
    with pytest.raises(ValidationError, match="the first is sample 1"):
        sl.convert(tmp_path / "mds", tmp_path / "out", sequence_id="ep", workers=1)


def test_sequences_stay_sequences(folder: Path, tmp_path: Path) -> None:
    ds = sl.convert(folder, tmp_path / "out", sequence_id="ep", steps="t", workers=1)
    with pytest.raises(TypeError, match="sequences already"):
        sl.convert(ds, tmp_path / "again", sequence_id="task", workers=1)
    with pytest.raises(SchemaMismatchError, match="Select it too"):
        sl.convert(ds.select("act"), tmp_path / "again", workers=1)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    from seqlake.cli import main

    given = ["--sequence-id", "ep", "--steps", "t", "--workers", "1"]
    with pytest.raises(SystemExit) as done:
        main(["convert", str(folder), str(tmp_path / "out"), *given])
    assert done.value.code in {0, None}
    assert len(sl.open(tmp_path / "out")) == 5
