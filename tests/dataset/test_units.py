"""Numbers in another unit, and columns computed from signals: compared with numpy."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError


@pytest.fixture
def arm(tmp_path: Path) -> sl.Dataset:
    columns = {
        "action": sl.Trajectory(dim=2, fps=10, units="rad"),
        "pose": sl.Trajectory(dim=3, fps=10, units=["m", "m", "rad"], dtype=pa.float64()),
        "count": sl.Trajectory(dim=1, fps=10, units="m", dtype=pa.int32()),
        "plain": sl.Trajectory(dim=1, fps=10),
        "cam": sl.Video(fps=10),
    }
    ds = sl.create(tmp_path / "arm", sl.Schema(columns))
    rng = np.random.default_rng(0)
    with ds.writer(rows_per_shard=2) as writer:
        for number in range(5):
            count = 3 + number
            writer.add(
                f"ep_{number}",
                action=None if number == 2 else rng.normal(size=(count, 2)),
                pose=rng.normal(size=(count, 3)),
                count=np.ones((count, 1)),
                plain=np.full((count, 1), np.nan),
                cam=[np.full((16, 16, 3), k, np.uint8) for k in range(count)],
            )
    return ds


def test_values_and_units_change_in_one_commit(arm: sl.Dataset) -> None:
    before = {row.id: {name: row[name] for name in ("action", "pose", "count")} for row in arm}
    old = arm.version
    version = arm.convert_units("action", "deg", message="degrees, as the controller has them")
    assert version.id == old.id + 1
    arm.convert_units("pose", ["mm", "cm", "deg"])
    for row in sl.open(arm.location):
        was = before[row.id]
        if was["action"] is None:
            assert row["action"] is None
        else:
            np.testing.assert_allclose(row["action"], np.rad2deg(np.asarray(was["action"], float)), rtol=1e-6)
            assert row["action"].dtype == np.float32
        np.testing.assert_allclose(row["pose"], np.asarray(was["pose"]) * [1000, 100, 180 / np.pi], rtol=1e-14)
        assert np.array_equal(row["count"], was["count"])
        assert len(row["cam"]) == len(was["count"])
    declared = json.loads(Path(arm.location, "mixtrain.json").read_text())["column_types"]
    assert declared["action"]["units"] == "deg"
    assert declared["pose"]["units"] == ["mm", "cm", "deg"]
    stored = pa.concat_tables(pq.read_table(path) for path in sorted(Path(arm.location, "data").glob("*.parquet")))
    assert stored.num_rows == 5
    again = sl.open(arm.location, version=old)
    assert again.schema["action"].type.get("units") == "rad"
    assert np.array_equal(again["ep_0"]["action"], before["ep_0"]["action"])
    assert arm.convert_units("action", "degrees").id == arm.convert_units("action", "degrees").id  # nothing to do
    arm.vacuum(older_than=timedelta(0))
    assert sl.open(arm.location).validate(depth="decode").ok


@pytest.mark.parametrize(
    ("before", "after", "value", "wanted"),
    [
        ("degC", "K", 20, 293.15),
        ("°F", "°C", 212, 100),
        ("K", "degF", 273.15, 32),
        ("km/h", "m/s", 36, 10),
        ("m/s", "mph", 0.44704, 1),
        ("rpm", "rad/s", 60, 2 * np.pi),
        ("N*m", "mNm", 1, 1000),
        ("lb", "kg", 1, 0.45359237),
        ("psi", "Pa", 1, 6894.757293168),
        ("turn", "deg", 0.25, 90),
        ("in", "mm", 1, 25.4),
    ],
)
def test_units(tmp_path: Path, before: str, after: str, value: float, wanted: float) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"x": sl.Trajectory(dim=1, units=before, dtype=pa.float64())}))
    ds.append([{"sequence_id": "a", "x": [[value]]}])
    ds.convert_units("x", after)
    assert ds["a"]["x"][0, 0] == pytest.approx(wanted, rel=1e-12)


def test_scalars_have_units_too(tmp_path: Path) -> None:
    kinds = {"mass": pa.float64(), "half": pa.float16(), "temperature": pa.float32()}
    ds = sl.create(tmp_path / "ds", sl.Schema(kinds | {"action": sl.Trajectory(dim=1)}))
    ds.append(
        [
            {"sequence_id": "a", "mass": 2.0, "half": np.float16(2), "temperature": 20.0, "action": [[1]]},
            {"sequence_id": "b", "action": [[1]]},
        ]
    )
    with pytest.raises(SchemaMismatchError, match="does not say its units") as error:
        ds.convert_units("mass", "g")
    assert "sl.ColumnType('scalar', units='m')" in str(error.value.hint)
    ds.set_type("mass", sl.ColumnType("scalar", units="kg"))
    version = ds.version
    assert ds.convert_units("mass", "g").id == version.id + 1
    ds.convert_units("half", "cm", factor=100)
    ds.convert_units("temperature", "K", factor=1, offset=273.15)
    again = sl.open(ds.location)
    assert again.select("mass", "half").to_arrow().to_pylist() == [
        {"mass": 2000.0, "half": 200.0},
        {"mass": None, "half": None},
    ]
    assert again["a"]["temperature"] == pytest.approx(293.15)
    assert {name: again.schema[name].arrow for name in kinds} == kinds
    declared = json.loads(Path(ds.location, "mixtrain.json").read_text())["column_types"]
    assert (declared["mass"], declared["half"]["units"]) == ({"type": "scalar", "units": "g"}, "cm")
    assert again.validate(depth="rows").ok
    assert sl.open(ds.location, version=version)["a"]["mass"] == 2.0


def test_time_stamps_keep_the_unit_of_the_format(tmp_path: Path) -> None:
    columns = {
        "touch": sl.Trajectory(dim=1, timestamps="at"),
        "at": sl.Trajectory(dim=1, units="s", dtype=pa.float64()),
    }
    ds = sl.create(tmp_path / "ds", sl.Schema(columns))
    with pytest.raises(SchemaMismatchError, match="time stamps of other columns"):
        ds.convert_units("at", "ms")


def test_a_factor_of_ones_own(arm: sl.Dataset) -> None:
    was = np.asarray(arm["ep_0"]["pose"])
    arm.convert_units("pose", "counts", factor=100, offset=-3)
    np.testing.assert_allclose(arm["ep_0"]["pose"], was * 100 - 3)
    arm.convert_units("plain", "counts", factor=2)
    assert arm.schema["plain"].type.get("units") == "counts"


@pytest.mark.parametrize(
    ("name", "given", "error", "said"),
    [
        ("acton", {"units": "deg"}, SchemaMismatchError, "'acton'"),
        ("count", {"units": "mm"}, SchemaMismatchError, "expected floating-point numbers to convert"),
        ("cam", {"units": "mm"}, SchemaMismatchError, "expected floating-point numbers to convert"),
        ("plain", {"units": "mm"}, SchemaMismatchError, "does not say its units"),
        ("action", {"units": "m"}, SchemaMismatchError, "from 'rad' to 'm'; rad goes with rad, mrad, deg, turn"),
        ("action", {"units": "furlong"}, SchemaMismatchError, "from 'rad' to 'furlong'"),
        ("pose", {"units": ["m", "m"]}, SchemaMismatchError, "one for each of 3 dimensions"),
        ("action", {"units": "x", "factor": 0}, ValueError, "factor is not 0"),
        ("action", {"units": "deg", "offset": 1}, ValueError, "goes with a factor"),
        ("action", {"units": "x", "factor": "2"}, ValueError, "factor: expected a number"),
        ("action", {"units": "x", "factor": 10**400}, ValueError, "factor: expected a number"),
        ("action", {"units": 5}, ValueError, "units: expected text or a list of texts"),
        (["action"], {"units": "deg"}, ValueError, "name: expected text"),
        ("action", {"units": "x", "factor": 1e39}, SchemaMismatchError, "would be more than float can hold"),
    ],
)
def test_wrong_arguments(arm: sl.Dataset, name: str, given: dict, error: type, said: str) -> None:
    units = given.pop("units")
    before = arm.version
    with pytest.raises(error, match=said):
        arm.convert_units(name, units, **given)
    assert sl.open(arm.location).version == before


def test_columns_of_signals_are_computed_in_sql(arm: sl.Dataset) -> None:
    speed = "list_transform(action, lambda step: [sqrt(step[1]**2 + step[2]**2), 0.5])"
    arm.add_column("speed", sl.Trajectory(dim=2, fps=10), sql=speed)
    for row in sl.open(arm.location):
        if row["action"] is None:
            assert row["speed"] is None
            continue
        wanted = np.linalg.norm(np.asarray(row["action"], float), axis=1)
        np.testing.assert_allclose(row["speed"][:, 0], wanted, rtol=1e-6)
        assert (row["speed"][:, 1] == 0.5).all()
    with pytest.raises(SchemaMismatchError, match="the expression gives"):
        arm.add_column("other", sl.Trajectory(dim=1), sql="list_transform(action, lambda step: step[1])")
