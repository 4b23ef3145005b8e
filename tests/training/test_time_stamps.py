"""Columns whose samples have time stamps: what a sequence's clock counts from, against moments counted by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.dataset.validation import validate
from seqlake.errors import DamagedTableError, ValidationError

START = 1_763_855_123  # seconds since 1970
FORCE = [Fraction(k, 7) for k in range(14)]
CAMERA = [Fraction(1, 2) + Fraction(k, 5) for k in range(8)]  # began half a second late
STEPS = 20


def stored(times: list[Fraction], kind: str, start: int = START) -> Any:
    if kind.startswith("raw "):
        return stored(times, kind.removeprefix("raw "), start)[:, None]
    nanoseconds = [round((time + start) * 10**9) for time in times]
    return (
        np.array([float(time + start) for time in times]) if kind == "f8" else np.array(nanoseconds, "i8").astype(kind)
    )


def arrow(kind: str) -> pa.DataType:
    return {"f8": pa.float64(), "i8": pa.int64(), "M8[ns]": pa.timestamp("ns")}[kind]


def latest(times: list[Fraction], step: int) -> int:
    """The sample that stands at a step of ten a second."""
    return sum(time <= Fraction(step, 10) for time in times) - 1


LATE = {f"ep_{row}": (START, [time + late for time in CAMERA]) for row, late in enumerate((0, 3))}


def made(
    path: Any,
    kind: str,
    camera: dict[str, Any] | None = None,
    force: dict[str, Any] | None = None,
    rows: dict[str, tuple[int, list[Fraction]]] = LATE,
) -> sl.Dataset:
    """For each sequence: when its clock stands at 0, and the camera's times after that."""
    single = kind.removeprefix("raw ")
    times = pa.list_(arrow(kind)) if single == kind else sl.Trajectory(dim=1, dtype=arrow(single), encoding="raw")
    schema = {
        "action": sl.Trajectory(dim=1, fps=10),
        "began": arrow(single),
        "t_force": times,
        "t_cam": times,
        "force": sl.Trajectory(dim=1, timestamps="t_force", **(force or {})),
        "cam": sl.Trajectory(dim=1, timestamps="t_cam", **(camera or {})),
    }
    ds = sl.create(path, sl.Schema(schema))
    with ds.writer() as writer:
        for name, (start, cam) in rows.items():
            writer.add(
                name,
                action=np.arange(STEPS)[:, None],
                began=stored([Fraction(0)], single, start)[0],
                t_force=stored(FORCE, kind, start),
                t_cam=stored(cam, kind, start),
                force=np.arange(len(FORCE))[:, None],
                cam=np.arange(len(CAMERA))[:, None],
            )
    return sl.open(ds.location)


@pytest.mark.parametrize("kind", ["f8", "i8", "M8[ns]", "raw f8", "raw i8"])
@pytest.mark.parametrize("columns", [["action", "cam"], ["action", "force", "cam"]])
def test_a_camera_that_began_late_shows_nothing_from_the_future(tmp_path: Any, kind: str, columns: list[str]) -> None:
    ds = made(tmp_path / "ds", kind)
    (batch,) = sl.Loader(ds, window={name: [0] for name in columns}, batch_size=2 * STEPS, shuffle=False)
    for row, late in enumerate((0, 3)):
        own = slice(row * STEPS, (row + 1) * STEPS)
        wanted = [latest([time + late for time in CAMERA], k) for k in range(STEPS)]
        assert batch["cam_mask"][own, 0].tolist() == [one >= 0 for one in wanted]
        assert batch["cam"][own, 0, 0].tolist() == [max(0, one) for one in wanted]
        alone = ds[f"ep_{row}"].window(0, STEPS, columns=columns)
        for name in columns:
            np.testing.assert_array_equal(alone[name], batch[name][own, 0])
            np.testing.assert_array_equal(alone[f"{name}_mask"], batch[f"{name}_mask"][own, 0])
    assert ds.validate(depth="rows").ok


@pytest.mark.parametrize(("stride", "kind"), [(1, "i8"), (2, "i8"), (3, "i8"), (2, "raw f8")])
def test_where_every_sample_must_exist_windows_begin_with_the_last_column(
    tmp_path: Any, stride: int, kind: str
) -> None:
    ds = made(tmp_path / "ds", kind)
    window = sl.Window({"action": [0], "cam": [-2, 0]}, stride=stride, edges="drop")
    loader = sl.Loader(ds, window=window, batch_size=1, shuffle=False)
    found = [(batch["sequence_id"][0], int(batch["start"][0]), batch["cam"][0, :, 0].tolist()) for batch in loader]
    wanted = [
        ("ep_0", k, [latest(CAMERA, k - 2), latest(CAMERA, k)])
        for k in range(0, STEPS, stride)
        if latest(CAMERA, k - 2) >= 0
    ]  # the camera of the other began after its last step
    assert found == wanted
    grouped = sl.Loader(ds, window=window, batch_size=1, shuffle=False).weights("began")
    assert {int(batch["start"][0]) for batch in grouped} == {k for _, k, _ in wanted}


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "camera"),
    [
        ("f8", {"origin": START}),
        ("i8", {"origin": START * 10**9}),
        ("f8", {"origin": "began"}),
        ("i8", {"origin": "began"}),
        ("M8[ns]", {"origin": "began"}),
        ("i8", {"origin": "t_force"}),
        ("raw f8", {"origin": START}),
        ("raw i8", {"origin": "t_force"}),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_a_declared_origin_counts_instead(tmp_path: Any, kind: str, camera: dict[str, Any], single: bool) -> None:
    ds = made(tmp_path / "ds", kind, camera, {"origin": "t_force"})  # without it the camera's own stamps are first
    window: dict[str, Any] = {"action": [0], "cam": [0]} | ({"began": None} if single else {})
    (batch,) = sl.Loader(ds.where(ids=["ep_0"]), window=window, batch_size=STEPS, shuffle=False)
    wanted = [latest(CAMERA, k) for k in range(STEPS)]
    assert batch["cam_mask"][:, 0].tolist() == [one >= 0 for one in wanted]
    assert batch["cam"][:, 0, 0].tolist() == [max(0, one) for one in wanted]
    renamed = sl.open(ds.location)
    if isinstance(camera["origin"], str):
        renamed.rename_column(camera["origin"], "anew")
    alone = renamed["ep_0"].window(0, STEPS, columns=["action", "cam"])
    np.testing.assert_array_equal(alone["cam_mask"], batch["cam_mask"][:, 0])


def test_a_clock_of_its_own_counts_from_its_own_first_stamp_and_moves_no_other(tmp_path: Any) -> None:
    ds = made(tmp_path / "ds", "i8", force={"origin": "t_force"})
    (batch,) = sl.Loader(
        ds.where(ids=["ep_0"]), window={"action": [0], "cam": [0], "force": [0]}, batch_size=STEPS, shuffle=False
    )
    assert batch["cam"][:, 0, 0].tolist() == [latest([time - CAMERA[0] for time in CAMERA], k) for k in range(STEPS)]
    assert batch["force"][:, 0, 0].tolist() == [latest(FORCE, k) for k in range(STEPS)]


def narrow(encoding: str | None) -> sl.Schema:
    return sl.Schema(
        {
            "action": sl.Trajectory(dim=1, fps=10),
            "t": sl.Trajectory(dim=1, **({} if encoding is None else {"encoding": encoding})),
            "cam": sl.Trajectory(dim=1, timestamps="t"),
        }
    )


@pytest.mark.parametrize("encoding", [None, "raw"])
def test_unix_seconds_in_float32_are_refused_wherever_they_are_written(tmp_path: Any, encoding: str | None) -> None:
    schema = narrow(encoding)
    times = START + np.arange(STEPS) / 10
    row = {"sequence_id": "a", "action": np.zeros((STEPS, 1)), "cam": np.zeros((STEPS, 1)), "t": times[:, None]}
    table = pa.table({name: [value if isinstance(value, str) else value.tolist()] for name, value in row.items()})
    ds = sl.create(tmp_path / "ds", schema)
    for write in (lambda: ds.append([row]), lambda: ds.append(table), lambda: ds.upsert([row])):
        with pytest.raises(ValidationError, match=r"'a', column 't': float32 .* float64"):
            write()
    with ds.writer() as writer, pytest.raises(ValidationError, match="float64"):
        writer.add("a", **{name: value for name, value in row.items() if name != "sequence_id"})
    ds.append([{**row, "t": (times - START)[:, None]}])  # seconds of the sequence are fine
    (batch,) = sl.Loader(ds, window={"action": [0], "cam": [0]}, batch_size=STEPS, shuffle=False)
    assert batch["cam_mask"].all()


@pytest.mark.parametrize("encoding", [None, "raw"])
def test_unix_seconds_in_float32_that_are_there_already_are_refused_where_they_are_read(encoding: str | None) -> None:
    schema = narrow(encoding)
    times = (START + np.arange(STEPS) / 10).astype("f4")
    assert len(np.unique(times)) == 1
    table = pa.table(
        {
            "sequence_id": ["a"],
            "action": [np.zeros((STEPS, 1), "f4").tolist()],
            "cam": [np.zeros((STEPS, 1), "f4").tolist()],
            "t": [times[:, None].tolist() if encoding is None else times.tobytes()],
        },
        schema=schema.stored(),
    )
    source = sl.scan(table, column_types={name: schema[name].type for name in ("action", "cam", "t")})
    with pytest.raises(DamagedTableError, match="'t'.*float64"):
        list(sl.Loader(source, window={"action": [0], "cam": [0]}, batch_size=STEPS))
    with pytest.raises(DamagedTableError, match="'t'.*float64"):
        source[0].window(0, 2, columns=["action", "cam"])
    [finding] = validate(source, depth="rows").errors
    assert (finding.code, finding.column, finding.sequence_id) == ("R312", "t", "a")
    assert "float64" in finding.message


# ---- two clocks in one sequence
CLOCKS: dict[str, tuple[dict[str, Any], dict[str, Any], float, bool]] = {
    # what the force's origin is, what the camera's is, seconds by which the camera's clock is ahead; whether it is told
    "one clock": ({}, {}, 0, False),
    "a camera that begins when all else has ended": ({}, {}, 3.5, False),
    "seconds since 1970 beside seconds since the start": ({}, {}, START, True),
    "seconds since two machines were switched on": ({}, {}, 5000, True),
    "the camera counts for itself": ({}, {"origin": "t_cam"}, START, False),
    "the force counts for itself": ({"origin": "t_force"}, {}, START, False),
    "from a number that is meant": ({}, {"origin": START}, START, False),
    "from a number of the other clock": ({}, {"origin": 0}, START, True),
    "from a column of the other clock": ({"origin": "began"}, {"origin": "began"}, START, True),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["f8", "i8", "raw f8"])
@pytest.mark.parametrize("case", CLOCKS)
def test_two_clocks_in_one_sequence_are_a_finding(tmp_path: Any, kind: str, case: str) -> None:
    force, camera, ahead, told = CLOCKS[case]
    unit = 10**9 if kind == "i8" else 1
    number = {key: value * unit if isinstance(value, int) else value for key, value in camera.items()}
    late = [time + Fraction(ahead) for time in CAMERA]
    ds = made(tmp_path / "ds", kind, number, force, {"ep_0": (0, late)})
    found = [one for one in ds.validate(depth="rows").findings if one.code == "R318"]
    assert [(one.sequence_id, one.column) for one in found] == ([("ep_0", "t_cam")] if told else [])
    assert all("origin" in one.message and one.severity == "warning" for one in found)
    if told:
        (batch,) = sl.Loader(ds, window={"action": [0], "cam": [0]}, batch_size=STEPS, shuffle=False)
        assert not batch["cam_mask"].any()  # which is why it is told
