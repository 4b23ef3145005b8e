"""Types are hints: columns of any declaration are read, windowed and converted, or refused by name."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError, SeqlakeError

from ..homes import PLACES, QUICK  # noqa: TID252 - tests are no package that could be named
from ..media import clips  # noqa: TID252 - tests are no package that could be named

F = pa.float32()
STEPS = 5


def numbers(*shape: int) -> list:
    return np.arange(np.prod(shape), dtype="f4").reshape(shape).tolist()


def folder(place: Path, kind: pa.DataType, cells: list, declared: object) -> Path:
    """Two sequences with an `action` of five steps and a column `x`, as another writer leaves them."""
    (place / "data").mkdir(parents=True)
    action = pa.array([numbers(STEPS, 2)] * 2, pa.list_(pa.list_(F)))
    times = pa.array([[number / 10 for number in range(STEPS)]] * 2, pa.list_(pa.float64()))
    table = pa.table({"sequence_id": ["a", "b"], "action": action, "x": pa.array(cells, kind), "t": times})
    pq.write_table(table, place / "data" / "part-0.parquet")
    types = {} if declared is None else {"x": declared}
    (place / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": types}))
    return place


def above_note(ds: sl.Dataset) -> list:
    return [str(one) for one in ds.validate(depth="decode") if one.severity != "note"]


CARRIED = {
    "text of an unknown type": (pa.string(), ["pick it up", "../put it down"], {"type": "language"}),
    "texts of an unknown type": (pa.list_(pa.string()), [["a", "b"], []], {"type": "language"}),
    "a link that is no file": (pa.struct({"url": pa.string()}), [{"url": "x"}, None], {"type": "link"}),
    "structs by step": (
        pa.list_(pa.struct({"x": F, "y": F})), [[{"x": 1, "y": 2}] * STEPS] * 2, {"type": "trajectory"}),
    "text by step": (pa.list_(pa.list_(pa.string())), [[["a"]], [["b", "c"]]], None),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_what_is_not_known_is_left_alone(name, tmp_path) -> None:
    kind, cells, declared = CARRIED[name]
    ds = sl.open(folder(tmp_path / "in", kind, cells, declared))
    assert above_note(ds) == []
    assert [row["x"] for row in ds] == cells
    assert "x" in repr(ds.sequence("a"))
    assert ds.sequence("a")._repr_html_()
    out = sl.convert(ds, tmp_path / "out", progress=False)
    assert out.to_arrow()["x"].to_pylist() == cells
    assert out.schema["x"].type == ds.schema["x"].type
    assert above_note(out) == []


def test_a_type_may_declare_that_its_texts_are_files(tmp_path) -> None:
    place = folder(tmp_path / "in", pa.string(), ["a.raw", "b.raw"], {"type": "frames10", "file": True})
    (place / "a.raw").write_bytes(b"1")
    ds = sl.open(place)
    assert ds.sequence("a")["x"].read() == b"1"
    assert [one.code for one in ds.validate() if one.severity != "note"] == ["F404"]


WINDOWED = {
    "embeddings by step": (2, [numbers(STEPS, 4)] * 2, {"type": "embedding", "dim": 4}),
    "parts by step": (3, [numbers(STEPS, 3, 2)] * 2, {"type": "trajectory"}),
    "parts by step, dim of all": (3, [numbers(STEPS, 3, 2)] * 2, {"type": "trajectory", "dim": 6}),
    "parts by step, dim of one": (3, [numbers(STEPS, 3, 2)] * 2, {"type": "trajectory", "dim": 2}),
    "parts by step, with a shape": (3, [numbers(STEPS, 3, 2)] * 2, {"type": "trajectory", "shape": [3, 2]}),
    "of no type": (3, [numbers(STEPS, 3, 2)] * 2, None),
    "of four levels": (4, [numbers(STEPS, 2, 3, 2)] * 2, None),
    "a moving cloud": (3, [numbers(STEPS, 7, 3)] * 2, {"type": "4d", "fps": 10}),
}


@pytest.mark.parametrize("name", WINDOWED)
def test_steps_of_any_shape_are_windowed(name, tmp_path) -> None:
    levels, cells, declared = WINDOWED[name]
    kind = F
    for _ in range(levels):
        kind = pa.list_(kind)
    ds = sl.open(folder(tmp_path / "in", kind, cells, declared))
    assert above_note(ds) == []
    whole = np.array(cells[0], "f4")
    np.testing.assert_array_equal(ds.sequence("a")["x"], whole)
    out = sl.convert(ds, tmp_path / "out", progress=False)
    assert above_note(out) == []
    for each in (ds, out):
        window = {"action": range(3), "x": range(3)}
        batches = list(sl.Loader(each, window=window, batch_size=1, shuffle=False))
        assert len(batches) == 2 * STEPS
        np.testing.assert_array_equal(batches[1]["x"][0], whole[1:4])
        np.testing.assert_array_equal(batches[4]["x_mask"][0], [True, False, False])
        np.testing.assert_array_equal(each.sequence("a").window(1, 4, columns=["x"])["x"], whole[1:4])
        (packed,) = sl.Loader(each, window=sl.Whole(["x"], packed=True), batch_size=2, shuffle=False)
        np.testing.assert_array_equal(packed["x"], np.concatenate([whole, whole]))
        assert each.to_arrow()["x"].to_pylist() == cells
    with out.writer() as writer:  # and written, as an array and as lists
        writer.add("c", action=np.ones((STEPS, 2)), x=whole)
        writer.add("d", action=np.ones((STEPS, 2)), x=cells[0])
    assert sl.open(tmp_path / "out").to_arrow()["x"].to_pylist() == [*cells, cells[0], cells[0]]


@pytest.mark.parametrize("shape", [[3, 2], None])
def test_statistics_of_deep_signals_are_by_last_dimension(shape, tmp_path) -> None:
    cells = [numbers(STEPS, 3, 2) if shape else [numbers(4, 2), numbers(1, 2)], None]
    declared = {"type": "trajectory"} | ({"shape": shape} if shape else {})
    ds = sl.open(folder(tmp_path / "in", pa.list_(pa.list_(pa.list_(F))), cells, declared))
    stats = sl.statistics(ds)
    own = stats["x"]
    flat = np.concatenate([np.array(step, "f4") for cell in cells if cell for step in cell])
    assert own.shape == (2,)
    assert (own.nulls, own.count.tolist()) == (1, [len(flat)] * 2)
    np.testing.assert_array_equal(own.max, flat.max(0))
    np.testing.assert_allclose(own.mean, flat.mean(0, dtype="f8"), rtol=1e-12)
    np.testing.assert_allclose(own.std, flat.std(0, dtype="f8"), rtol=1e-12)
    np.testing.assert_array_equal(
        own.quantiles[0.5], np.quantile(flat, 0.5, axis=0, method="inverted_cdf").astype("f4")
    )
    assert sl.outliers(ds, stats)
    with pytest.raises(ValueError, match=r"\[T, D\]"):
        sl.outliers(ds, stats.select("x"))
    if shape:
        loader = sl.Loader(ds.where("x IS NOT NULL"), window={"x": range(1)}, batch_size=1).normalize(stats)
        normal = np.concatenate([batch["x"].reshape(-1, 2) for batch in loader])
        np.testing.assert_allclose(normal.mean(0), 0, atol=1e-5)


def test_clouds_whose_steps_differ_are_shown_and_say_why_they_make_no_batch(tmp_path) -> None:
    cells = [[numbers(4, 3), numbers(2, 3)], [numbers(4, 3)] * 3]
    ds = sl.open(folder(tmp_path / "in", pa.list_(pa.list_(pa.list_(F))), cells, {"type": "4d"}))
    assert [one.shape for one in ds.sequence("a")["x"]] == [(4, 3), (2, 3)]
    assert sl.convert(ds, tmp_path / "out", progress=False).to_arrow()["x"].to_pylist() == cells
    with pytest.raises(SeqlakeError, match="steps of different shapes"):
        next(iter(sl.Loader(ds, window={"x": range(2)}, batch_size=1)))


def test_the_points_of_a_cloud_are_no_steps(tmp_path) -> None:
    cells = [numbers(7, 3), numbers(9, 3)]
    ds = sl.open(folder(tmp_path / "in", pa.list_(pa.list_(F)), cells, {"type": "3d", "format": "xyz"}))
    assert above_note(ds) == []
    window = {"x": None, "action": range(2)}
    batches = list(sl.Loader(ds, window=window, batch_size=10, shuffle=False))
    assert len(batches) == 1, "five steps of action, twice"
    np.testing.assert_array_equal(batches[0]["x"][9], np.array(cells[1], "f4"))
    np.testing.assert_array_equal(ds.sequence("b").window(0, 2, columns=["x", "action"])["x"], np.array(cells[1], "f4"))
    points = next(iter(sl.Loader(ds, window={"x": range(2), "action": range(2)}, batch_size=10, shuffle=False)))
    assert points["action_mask"][4].tolist() == [True, False]


KINDS = {
    "trajectory": (pa.list_(pa.list_(F)), [numbers(STEPS, 2)] * 2),
    "embedding": (pa.list_(F), [numbers(4)] * 2),
    "video": (pa.string(), ["cam.mp4"] * 2),
    "image": (pa.list_(pa.binary()), [[b"?"] * STEPS] * 2),
    "audio": (pa.string(), ["sound.wav"] * 2),
    "3d": (pa.string(), ["cloud.ply"] * 2),
    "binary trajectory": (pa.binary(), [np.ones((STEPS, 2), "<f4").tobytes()] * 2),
    "language": (pa.string(), ["text"] * 2),
}
FIELDS = (
    "stream", "shape", "encoding", "timestamps", "frames", "dim", "fps", "names", "origin", "format", "resolution",
)  # fmt: skip
VALUES = (True, -1, 2.5, 10**30, "action", "raw", ["a"], {"a": 1})
NAMED = {"stream", "encoding", "timestamps", "frames", "shape"}
"""Fields whose wrong values validation must name."""


@pytest.fixture(scope="module")
def film() -> bytes:
    return clips.encode(times=range(STEPS))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_others_use_otherwise_never_breaks_reading(kind, field, film, tmp_path) -> None:
    arrow, cells = KINDS[kind]
    place = folder(tmp_path / "in", arrow, cells, None)
    (place / "cam.mp4").write_bytes(film)
    name = kind.removeprefix("binary ")
    for value in VALUES:
        declared = {"type": name, field: value}
        (place / "mixtrain.json").write_text(json.dumps({"mixtrain": "1.0", "column_types": {"x": declared}}))
        ds = sl.open(place)
        said = [one for one in ds.validate(depth="files") if one.column == "x" and field in one.message]
        if field in NAMED and isinstance(value, (dict, float)) and name != "language":
            assert said, declared
        repr(ds)
        ds.to_arrow()
        with suppress(SeqlakeError):  # what is wrong may be refused, by an error that says so
            repr(ds.sequence("a"))
            ds.sequence("a")._repr_html_()
        if value not in (2.5, "raw", ["a"]):
            continue
        for window in ({"x": range(2), "action": range(2)}, {"x": None, "action": range(2)}):
            with suppress(SeqlakeError, ValueError):  # nothing says the clock of time stamps
                next(iter(sl.Loader(ds, window=window, batch_size=2)))
        with suppress(SeqlakeError, ValueError):
            ds.sequence("a").window(0, 2, columns=["x"])
        with suppress(SeqlakeError):
            sl.convert(ds, tmp_path / "out", files="reference", workers=1, progress=False)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize(
    ("make", "given", "meant"),
    [
        (lambda: sl.Trajectory(dims=3), "dims", "dim"),
        (lambda: sl.Trajectory(dim=3, unit="rad"), "unit", "units"),
        (lambda: sl.Video(frame_rate=10), "frame_rate", "fps"),
        (lambda: sl.Image(formats="png"), "formats", "format"),
        (lambda: sl.Audio(samplerate=8000), "samplerate", "sample_rate"),
        (lambda: sl.Embedding(dim=4, modell="clip"), "modell", "model"),
    ],
)
def test_a_misspelt_option_warns_with_the_nearest_name(make, given, meant) -> None:
    with pytest.warns(UserWarning, match=f"no '{given}'; is '{meant}' meant") as caught:
        kind = make()
    assert caught[0].filename == __file__
    assert given in kind.fields, "fields are open: it is kept"


def test_fields_of_ones_own_are_no_mistakes() -> None:
    assert sl.Video(fps=30, lens="wide", bitrate=4000).get("lens") == "wide"
    assert sl.Trajectory(dim=3, lab="north", kind="quaternion").get("lab") == "north"


def test_a_row_of_another_dimension_than_the_first_is_refused(tmp_path) -> None:
    ds = sl.create(tmp_path / "ds", {"action": sl.Trajectory()})
    with ds.writer() as writer:
        writer.add("a", action=np.ones((4, 3)))
        with pytest.raises(SeqlakeError, match="'b'.*'action': expected 3 numbers a step.*found 4"):
            writer.add("b", action=np.ones((4, 4)))
        table = pa.table({"sequence_id": ["c"], "action": pa.array([numbers(2, 5)], pa.list_(pa.list_(F)))})
        with pytest.raises(SeqlakeError, match="'action': expected 3 numbers a step.*found 5"):
            writer.add_batch(table)
        writer.add("b", action=np.ones((2, 3)))
        writer.add("empty", action=np.ones((0, 3)))
    assert [len(row["action"]) for row in sl.open(tmp_path / "ds")] == [4, 2, 0]


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["training", "archive"])
@pytest.mark.parametrize("home", QUICK)
def test_a_row_of_another_dimension_than_those_that_are_there_is_refused(home, layout, tmp_path) -> None:
    def place(name: str) -> str:
        return PLACES[home].format(folder=tmp_path, name=name)

    (tmp_path / "warehouse").mkdir()
    ds = sl.create(place("ds"), sl.Schema({"action": sl.Trajectory(), "task": pa.string()}))
    with ds.writer(layout=layout) as writer:
        writer.add("null")
        writer.add("empty", action=np.zeros((0, 3)))
        writer.add("a", action=np.ones((2, 3)))
    wide = {"sequence_id": "b", "action": np.ones((2, 4))}

    def record() -> None:
        with ds.writer() as writer, writer.record("c") as take:
            take.add(action=[1, 2, 3, 4])

    table = pa.table({"sequence_id": ["b"], "action": pa.array([[[1.0] * 4]]), "task": ["x"]})
    ds = sl.open(place("ds"))
    for refused in (
        lambda: ds.append([wide]),
        lambda: ds.append(table),
        lambda: ds.upsert([wide]),
        lambda: ds.upsert([wide | {"sequence_id": "a"}]),
        record,
    ):
        with pytest.raises(SeqlakeError, match=r"expected 3 numbers"):
            refused()
    assert sorted(sl.open(place("ds")).to_arrow()["sequence_id"].to_pylist()) == ["a", "empty", "null"]
    ds.upsert([{"sequence_id": "a", "action": np.zeros((4, 3))}, {"sequence_id": "d", "action": np.ones((1, 3))}])
    with ds.writer() as writer, writer.record("c") as take:
        take.add(action=[1, 2, 3])
    other = sl.create(place("other"), sl.Schema({"action": sl.Trajectory(), "task": pa.string()}))
    other.append([wide])
    with pytest.raises(SchemaMismatchError, match="'action': dataset 1 has 4 numbers a step, dataset 0 has 3"):
        sl.merge([ds, other], place("both"))
    merged = sl.merge([ds, other], place("both"), union=True, columns=[{}, {"action": "moves"}])
    assert len(merged) == 6
