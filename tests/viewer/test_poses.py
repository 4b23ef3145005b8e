"""Which signals are paths, and what they are as quaternions: held against rotations that are written another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import seqlake as sl
from seqlake.viewer.poses import path_of, quaternions, reading_of


def turned(q: np.ndarray) -> np.ndarray:
    """[n, 3, 3] by the product v + 2 r x (r x v + w v), which shares nothing with what is tested."""
    r, w = q[:, None, :3], q[:, None, 3:]
    v = np.eye(3)[None]
    return np.swapaxes(v + 2 * np.cross(r, np.cross(r, v) + w * v), 1, 2)


def about(axis: int, angle: np.ndarray) -> np.ndarray:
    """[n, 3, 3] rotations about an axis."""
    one, other = [(1, 2), (2, 0), (0, 1)][axis]
    out = np.tile(np.eye(3), (len(angle), 1, 1))
    out[:, one, one] = out[:, other, other] = np.cos(angle)
    out[:, other, one], out[:, one, other] = np.sin(angle), -np.sin(angle)
    return out


ANGLES = np.random.default_rng(0).uniform(-3.1, 3.1, (200, 3))
MATRICES = about(2, ANGLES[:, 2]) @ about(1, ANGLES[:, 1]) @ about(0, ANGLES[:, 0])


def test_every_form_gives_the_same_rotation() -> None:
    np.testing.assert_allclose(turned(quaternions(ANGLES, "rpy")), MATRICES, atol=1e-9)
    of_matrices = quaternions(MATRICES.reshape(-1, 9), "matrix")
    np.testing.assert_allclose(turned(of_matrices), MATRICES, atol=1e-9)
    np.testing.assert_allclose(turned(quaternions(of_matrices[:, [3, 0, 1, 2]] * 5, "wxyz")), MATRICES, atol=1e-9)
    length = 2 * np.arccos(np.clip(of_matrices[:, 3:], -1, 1))
    vector = of_matrices[:, :3] / np.sin(length / 2) * length
    np.testing.assert_allclose(turned(quaternions(vector, "rotvec")), MATRICES, atol=1e-9)
    np.testing.assert_allclose(turned(quaternions(ANGLES[:, :1], "yaw")), about(2, ANGLES[:, 0]), atol=1e-9)
    half_turns = np.stack([np.diag([1, -1, -1]), np.diag([-1, 1, -1]), np.diag([-1, -1, 1])]).astype(float)
    np.testing.assert_allclose(turned(quaternions(half_turns.reshape(-1, 9), "matrix")), half_turns, atol=1e-12)
    assert np.isnan(quaternions(np.array([[0.0, 0, 0, 0], [np.nan, 0, 0, 1]]), "xyzw")).any(axis=1).all()


def read(name: str, cell: np.ndarray, declared: Any, **others: tuple[Any, np.ndarray]) -> Any:
    """What a column is read as, beside others."""
    schema = sl.Schema({name: declared, **{other: kind for other, (kind, _) in others.items()}})
    return reading_of(schema[name], cell, schema, lambda other: others[other][1])


QUATERNIONS = quaternions(ANGLES, "rpy")
PLACES = np.cumsum(ANGLES, axis=0)


@pytest.mark.parametrize(
    ("name", "cell", "declared", "form", "assumed"),
    [
        ("camera_pose", np.hstack([PLACES, QUATERNIONS]), sl.Trajectory(dim=7), "xyzw", True),
        ("a", np.hstack([PLACES, QUATERNIONS]), sl.Trajectory(dim=7, rotation="wxyz"), "wxyz", False),
        (
            "b",
            np.hstack([QUATERNIONS, PLACES]),
            sl.Trajectory(dim=7, names=["qx", "qy", "qz", "qw", "x", "y", "z"]),
            "xyzw",
            False,
        ),
        (
            "c",
            np.hstack([PLACES, ANGLES]),
            sl.Trajectory(dim=6, names=["x", "y", "z", "roll", "pitch", "yaw"]),
            "rpy",
            False,
        ),
        (
            "d",
            np.hstack([PLACES, ANGLES]),
            sl.Trajectory(dim=6, names=["tcp.x", "tcp.y", "tcp.z", "rx", "ry", "rz"]),
            "rotvec",
            False,
        ),
        ("ee_pose", np.hstack([PLACES, ANGLES]), sl.Trajectory(dim=6), "rpy", True),
        ("base", PLACES, sl.Trajectory(dim=3, names=["x", "y", "yaw"]), "yaw", False),
        ("position", PLACES, sl.Trajectory(dim=3), None, False),
        ("p", PLACES, sl.Trajectory(dim=3, coordinate_frame="world"), None, False),
    ],
)
def test_names_and_hints_say_what_a_path_is(
    name: str, cell: Any, declared: Any, form: str | None, assumed: bool
) -> None:
    found = read(name, cell, declared)
    assert (found.form, found.assumed) == (form, assumed)
    path = path_of(cell, found, None)
    assert path.shape == (200, 3 if form is None else 7)
    flat = form == "yaw"
    np.testing.assert_allclose(path[:, : 2 if flat else 3], PLACES[:, : 2 if flat else 3])
    if form == "rpy" or name == "b":
        np.testing.assert_allclose(turned(path[:, 3:]), MATRICES, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "width"),
    [("state", 7), ("action", 7), ("joint_positions", 7), ("qpos", 3), ("ee_velocity", 6), ("color", 3)],
)
def test_what_nothing_says_to_be_a_path_is_none(name: str, width: int) -> None:
    cell = np.random.default_rng(1).normal(size=(50, width))
    assert read(name, cell, sl.Trajectory(dim=width)) is None


@pytest.mark.parametrize("shape", [(4, 4), (16,), (3, 4), (12,)])
def test_matrices_are_known_by_their_values(shape: tuple[int, ...]) -> None:
    rows = 4 if shape in {(4, 4), (16,)} else 3
    whole = np.tile(np.eye(4), (200, 1, 1))
    whole[:, :3, :3], whole[:, :3, 3] = MATRICES, PLACES
    cell = whole[:, :rows].reshape(200, *shape)
    column = sl.Schema({"m": sl.Trajectory(dim=cell[0].size, shape=list(shape) if len(shape) > 1 else None)})
    found = reading_of(column["m"], cell, column, {}.get)
    path = path_of(cell, found, None)
    np.testing.assert_allclose(path[:, :3], PLACES)
    np.testing.assert_allclose(turned(path[:, 3:]), MATRICES, atol=1e-9)
    if rows == 4:  # written by columns, as OpenGL does
        columns = np.swapaxes(whole, 1, 2).reshape(200, *shape)
        found = reading_of(column["m"], columns, column, {}.get)
        np.testing.assert_allclose(turned(path_of(columns, found, None)[:, 3:]), MATRICES, atol=1e-9)
    broken = cell.copy().reshape(200, -1)
    broken[7, 0] += 3
    assert reading_of(column["m"], broken.reshape(cell.shape), column, {}.get) is None


def test_a_rotation_may_stand_in_the_column_beside() -> None:
    beside = {"robot0_eef_quat": (sl.Trajectory(dim=4), QUATERNIONS)}
    found = read("robot0_eef_pos", PLACES, sl.Trajectory(dim=3), **beside)
    assert (found.partner, found.form, found.assumed) == ("robot0_eef_quat", "xyzw", True)
    np.testing.assert_allclose(turned(path_of(PLACES, found, QUATERNIONS)[:, 3:]), MATRICES, atol=1e-9)
    shorter = {"robot0_eef_quat": (sl.Trajectory(dim=4), QUATERNIONS[:-1])}
    assert read("robot0_eef_pos", PLACES, sl.Trajectory(dim=3), **shorter).form is None
    no_turns = {"robot0_eef_quat": (sl.Trajectory(dim=4), QUATERNIONS * 2)}
    assert read("robot0_eef_pos", PLACES, sl.Trajectory(dim=3), **no_turns).form is None
    of_l5kit = {"ego_rotation": (sl.Trajectory(dim=9), MATRICES.reshape(-1, 9))}
    found = read("ego_translation", PLACES, sl.Trajectory(dim=3), **of_l5kit)
    np.testing.assert_allclose(turned(path_of(PLACES, found, MATRICES)[:, 3:]), MATRICES, atol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308, 0.0])
def test_numbers_of_any_size_are_no_error(value: float) -> None:
    for width in (2, 3, 6, 7, 12, 16):
        cell = np.full((5, width), value)
        found = read("pose", cell, sl.Trajectory(dim=width))
        if found is not None:
            assert len(path_of(cell, found, None)) == 5
    assert read("pose", np.zeros((0, 7)), sl.Trajectory(dim=7)) is None
