"""Frames of pandas, Polars and Arrow whose cells are arrays: looked at, converted, added as rows and as cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import seqlake as sl
from seqlake.errors import SchemaMismatchError

IDS = ["a", "b", "c"]
CELLS = [np.arange(2 * (3 + n), dtype=np.float32).reshape(3 + n, 2) for n in range(3)]
LISTS = [cell.tolist() for cell in CELLS]
TASKS = ["x", None, "y"]


def frames() -> dict[str, object]:
    return {
        "arrays": pd.DataFrame({"sequence_id": IDS, "action": CELLS, "task": TASKS}),
        "lists": pd.DataFrame({"sequence_id": IDS, "action": LISTS, "task": TASKS}),
        "steps": pd.DataFrame({"sequence_id": IDS, "action": [list(cell) for cell in CELLS], "task": TASKS}),
        "indexed": pd.DataFrame({"sequence_id": IDS, "action": CELLS, "task": TASKS}).set_index("sequence_id"),
        "polars": pl.DataFrame({"sequence_id": IDS, "action": LISTS, "task": TASKS}),
        "lazy": pl.DataFrame({"sequence_id": IDS, "action": LISTS, "task": TASKS}).lazy(),
        "objects": pl.DataFrame({"sequence_id": IDS, "action": pl.Series(CELLS, dtype=pl.Object), "task": TASKS}),
        "arrow": pa.table(
            {"sequence_id": IDS, "action": pa.array(LISTS, pa.list_(pa.list_(pa.float32()))), "task": TASKS}
        ),
        "dict": {"sequence_id": IDS, "action": CELLS, "task": TASKS},
    }


@pytest.mark.parametrize("kind", sorted(frames()))
def test_every_frame_gives_its_cells(tmp_path: Path, kind: str) -> None:
    given = frames()[kind]
    for shown in (sl.scan(given), sl.convert(given, tmp_path / "out", workers=1)):
        for name, cell, task in zip(IDS, CELLS, TASKS, strict=True):
            np.testing.assert_array_equal(shown[name]["action"], cell)
            assert shown[name]["task"] == task


@pytest.mark.parametrize("kind", sorted(set(frames()) - {"lazy", "dict", "indexed"}))
def test_every_frame_is_appended(tmp_path: Path, kind: str) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=2), "task": pa.string()}))
    ds.append(frames()[kind])
    for name, cell in zip(IDS, CELLS, strict=True):
        np.testing.assert_array_equal(ds[name]["action"], cell)
        assert ds[name]["action"].dtype == np.float32


def test_dimensions_and_nulls() -> None:
    cube = [np.arange(24.0).reshape(2, 3, 4), None, np.ones((5, 3, 4))]
    shown = sl.scan(pd.DataFrame({"sequence_id": IDS, "rotation": cube}))
    np.testing.assert_array_equal(shown["a"]["rotation"], cube[0])
    assert shown["b"]["rotation"] is None
    ragged = [np.ones((2, 3)), np.ones((2, 4)), np.ones((0, 3))]
    shown = sl.scan(pd.DataFrame({"sequence_id": IDS, "x": ragged}))
    assert [shown[name]["x"].shape for name in IDS[:2]] == [(2, 3), (2, 4)]


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ([np.ones((2, 2)), "text", None], "one Arrow type cannot hold"),
        ([np.ones((2, 2)), np.ones(2), None], "one Arrow type cannot hold"),
        ([np.array([["a", "b"]]), None, None], "one Arrow type cannot hold"),
        ([{"k": 1}, 5, "x"], "one Arrow type cannot hold"),
    ],
)
def test_cells_of_several_kinds_are_named(cells: list[object], what: str) -> None:
    for frame in (pd.DataFrame({"sequence_id": IDS, "x": cells}), {"sequence_id": IDS, "x": cells}):
        with pytest.raises(SchemaMismatchError, match=what) as refused:
            sl.scan(frame)
        assert "'x'" in str(refused.value)


def test_columns_of_several_lengths() -> None:
    with pytest.raises(SchemaMismatchError, match="one length"):
        sl.scan({"sequence_id": IDS, "x": [np.ones((2, 2))]})


@pytest.mark.parametrize(
    "cell",
    [
        pd.DataFrame(CELLS[0], columns=["p", "q"]),
        pl.DataFrame(CELLS[0]),
        pa.table({"p": CELLS[0][:, 0], "q": CELLS[0][:, 1]}),
        pd.Series(list(CELLS[0])),
        pl.Series(LISTS[0]),
        LISTS[0],
    ],
    ids=["pandas", "polars", "arrow", "series", "polars series", "lists"],
)
def test_a_frame_of_steps_is_a_cell(tmp_path: Path, cell: object) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=2), "task": pa.string()}))
    with ds.writer() as writer:
        writer.add("a", action=cell, task=pd.NA)
    np.testing.assert_array_equal(ds["a"]["action"], CELLS[0])
    assert ds["a"]["task"] is None


@pytest.mark.parametrize(
    ("cell", "what"),
    [
        (pd.DataFrame({"p": [1, 2]}), r"shape \[T, 2\], found \[2, 1\]"),
        (pd.DataFrame({"p": ["a"], "q": [1]}), "action"),
        (np.ma.masked_array(CELLS[0], mask=[[1, 0]] * 3), "masked"),
    ],
)
def test_cells_that_are_none(tmp_path: Path, cell: object, what: str) -> None:
    ds = sl.create(tmp_path / "ds", sl.Schema({"action": sl.Trajectory(dim=2)}))
    with ds.writer() as writer, pytest.raises(SchemaMismatchError, match=what):
        writer.add("a", action=cell)
