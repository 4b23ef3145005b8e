"""Which columns are paths in space: by what their types and names say, and held against their values.

A path is `[n, 3]` places or `[n, 7]` places with a unit quaternion x, y, z, w. What nothing says and values cannot
decide, as the order of an unnamed quaternion, is assumed and said to be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema

Form = Literal["xyzw", "wxyz", "rpy", "rotvec", "matrix", "yaw"]
_WORDS = re.compile(r"[^a-z0-9]+")
_PLACES = frozenset(
    [
        "position",
        "positions",
        "pos",
        "translation",
        "xyz",
        "centroid",
        "location",
        "trajectory",
        "path",
        "tcp",
        "eef",
        "ee",
    ]
)
_POSES = frozenset(
    [
        "pose",
        "poses",
        "transform",
        "transforms",
        "tf",
        "extrinsic",
        "extrinsics",
        "odom",
        "odometry",
        "tcp",
        "eef",
        "ee",
        "cartesian",
        "effector",
        "ego",
    ]
)
_OTHERS = frozenset(
    [
        "velocity",
        "velocities",
        "vel",
        "twist",
        "wrench",
        "force",
        "forces",
        "torque",
        "torques",
        "acceleration",
        "acc",
        "gyro",
        "imu",
        "joint",
        "joints",
        "qpos",
        "qvel",
        "normal",
        "gravity",
        "magnetic",
        "color",
        "colors",
        "rgb",
        "error",
        "extent",
        "extents",
        "size",
        "gripper",
        "euler",
        "rpy",
        "delta",
    ]
)
_TURNS = frozenset(["q", "quat", "quaternion", "rot", "rotation", "orientation", "ori", "euler", "rotvec"])
_PARTNERS: tuple[tuple[str, Form], ...] = (
    ("quat", "xyzw"),
    ("quaternion", "xyzw"),
    ("orientation", "xyzw"),
    ("ori", "xyzw"),
    ("rotation", "matrix"),
    ("rot", "matrix"),
    ("rpy", "rpy"),
    ("euler", "rpy"),
    ("axis_angle", "rotvec"),
    ("rotvec", "rotvec"),
)
_WIDTHS: dict[Form, int] = {"xyzw": 4, "wxyz": 4, "rpy": 3, "rotvec": 3, "matrix": 9, "yaw": 1}
_SAID: dict[Form, str] = {
    "xyzw": "quaternion x, y, z, w",
    "wxyz": "quaternion w, x, y, z",
    "rpy": "roll, pitch, yaw",
    "rotvec": "rotation vector",
    "matrix": "matrix",
    "yaw": "yaw",
}
_LOOKED_AT = 2000  # steps whose values are held against a reading
_NEAR = 0.02  # how far from unit length, and from a rotation, numbers of float16 may be


@dataclass(frozen=True, slots=True, kw_only=True)
class PoseReading:
    """How the numbers of a step are a place, and a rotation.

    Attributes:
        position: Which numbers are x, y and z; of two, z is 0.
        rotation: Which are the rotation; empty: there is none, or another column has it.
        form: What the rotation is; None where there is none.
        partner: The column that has it.
        assumed: Whether the form is the usual one, said by nothing.
    """

    position: tuple[int, ...]
    rotation: tuple[int, ...] = ()
    form: Form | None = None
    partner: str | None = None
    assumed: bool = False

    def to_json(self, frame: object, cell: NDArray[Any], /) -> dict[str, Any]:
        """What the page says of it: how it is read, and how far it reaches, in the column's own unit."""
        text = "position" if self.form is None else f"position and {_SAID[self.form]}"
        if self.partner is not None:
            text += f" of {self.partner}"
        named = frame if isinstance(frame, str) and frame else None
        places = cell.reshape(len(cell), -1)[:, self.position].astype(np.float64)
        whole = places[_finite(places)]
        with np.errstate(over="ignore"):
            reach = float(np.ptp(whole, axis=0).max()) if len(whole) else 0.0
        return {
            "reads": text,
            "assumed": self.assumed,
            "rotation": self.form is not None,
            "frame": named,
            "reach": reach if np.isfinite(reach) else None,
        }


def reading_of(
    column: Column, cell: NDArray[Any], schema: Schema, sibling: Callable[[str], Any], /
) -> PoseReading | None:
    """How a signal is a path; None where it is none.

    Args:
        column: Of the signal.
        cell: [T, ...] its values.
        schema: The columns beside it.
        sibling: Gives the cell of one of those.
    """
    steps = cell.reshape(len(cell), -1) if len(cell) else cell.reshape(0, prod(cell.shape[1:]))
    if not len(steps) or column.timeless or steps.dtype.kind not in "fiu":
        return None
    looked = steps[:: max(1, -(-len(steps) // _LOOKED_AT))].astype(np.float64)
    if (named := _by_names(column, steps.shape[1])) is not None:
        return named
    words = {*_WORDS.split(column.name.lower())}
    if words & _OTHERS:
        return None
    if steps.shape[1] in {12, 16} and (matrix := _as_matrix(cell.shape[1:], looked)) is not None:
        return matrix
    declared = _declared(column)
    if steps.shape[1] == 7 and _has_unit_length(looked[:, 3:]):
        form: Form = "wxyz" if "wxyz" in declared else "xyzw"
        return PoseReading(position=(0, 1, 2), rotation=(3, 4, 5, 6), form=form, assumed=form not in declared)
    likely = words & _POSES or "pose" in declared
    if steps.shape[1] == 6 and likely:
        form = "rotvec" if "rotvec" in declared or "axis" in declared else "rpy"
        return PoseReading(position=(0, 1, 2), rotation=(3, 4, 5), form=form, assumed=form not in declared)
    if steps.shape[1] in {2, 3} and (likely or words & _PLACES or _framed(column)):
        form_of = _partner(column.name, len(cell), schema, sibling)
        position = tuple(range(steps.shape[1]))
        return PoseReading(position=position) if form_of is None else form_of
    return None


def _declared(column: Column) -> str:
    """What a column's type says of its rotation, as one text of small letters."""
    if column.type is None:
        return ""
    keys = ("rotation", "rotation_format", "rotation_order", "quaternion", "order", "pose", "format", "representation")
    return " ".join([column.type.type, *(str(column.type.get(key)) for key in keys if column.type.get(key))]).lower()


def _framed(column: Column) -> bool:
    """Whether a column's type says in which frame of reference its numbers are."""
    return column.type is not None and isinstance(column.type.get("coordinate_frame"), str)


def _by_names(column: Column, width: int) -> PoseReading | None:
    """The reading that the names of its dimensions give."""
    given = column.type.get("names") if column.type is not None else None
    if not isinstance(given, list) or len(given) != width:
        return None
    names = [_WORDS.split(str(one).lower().strip()) for one in given]

    def at(last: str, *, turned: bool) -> int | None:
        """The number of the first dimension whose name ends so."""
        return next(
            (n for n, words in enumerate(names) if words[-1] == last and bool({*words[:-1]} & _TURNS) == turned), None
        )

    def all_of(lasts: Sequence[str], *, turned: bool = False) -> tuple[int, ...]:
        places = [at(last, turned=turned) for last in lasts]
        return tuple(one for one in places if one is not None) if None not in places else ()

    words = {word for one in names for word in one} | {*_WORDS.split(column.name.lower())}
    if words & {"velocity", "vel", "force", "torque", "acc", "acceleration", "twist", "wrench"}:
        return None
    position = all_of("xyz") or all_of(["px", "py", "pz"]) or all_of(["tx", "ty", "tz"])
    if not position:
        flat, turn = all_of("xy"), all_of(["yaw"]) or all_of(["theta"]) or all_of(["heading"])
        return PoseReading(position=flat, rotation=turn, form="yaw" if turn else None) if flat else None
    quaternion = all_of(["qx", "qy", "qz", "qw"]) or all_of("xyzw", turned=True)
    if quaternion:
        return PoseReading(position=position, rotation=quaternion, form="xyzw")
    angles = all_of(["roll", "pitch", "yaw"])
    if angles:
        return PoseReading(position=position, rotation=angles, form="rpy")
    vector = all_of(["rx", "ry", "rz"]) or all_of("xyz", turned=True)
    return PoseReading(position=position, rotation=vector, form="rotvec" if vector else None)


def _partner(name: str, count: int, schema: Schema, sibling: Callable[[str], Any]) -> PoseReading | None:
    """A place whose rotation stands in the column of the same name but for one word."""
    for old in ("position", "translation", "pos", "xyz", "location", "centroid"):
        if old not in name.lower():
            continue
        at = name.lower().rindex(old)
        for new, form in _PARTNERS:
            other = name[:at] + new + name[at + len(old) :]
            if other not in schema or schema[other].category != "temporal":
                continue
            turn = sibling(other)
            if not isinstance(turn, np.ndarray) or len(turn) != count or turn.dtype.kind not in "fiu":
                continue
            width = prod(turn.shape[1:])
            turned: Form = form if width != 4 else "xyzw"
            if form == "matrix" and width == 3:
                turned = "rotvec"
            if _WIDTHS[turned] == width and (width != 4 or _has_unit_length(turn.reshape(count, 4))):
                return PoseReading(
                    position=(0, 1, 2), form=turned, partner=other, assumed=width == 4 or turned == "rotvec"
                )
    return None


def _as_matrix(shape: tuple[int, ...], steps: NDArray[np.float64]) -> PoseReading | None:
    """Steps of 12 or 16 numbers, where they are rotations with translations: by rows, or by columns."""
    numbers = np.arange(steps.shape[1]).reshape(-1, 4)
    by_columns = numbers.T[:3] if len(numbers) == 4 else None
    for rows in (numbers[:3], by_columns):
        if rows is None or (len(shape) == 2 and shape not in {(3, 4), (4, 4)}):
            continue
        rotation, position = rows[:, :3].reshape(-1), rows[:, 3]
        last = [one for one in range(steps.shape[1]) if one not in {*rotation.tolist(), *position.tolist()}]
        ends = np.array([0, 0, 0, 1.0])
        closed = not last or bool((np.abs(steps[:, last] - ends)[_finite(steps)] < _NEAR).all())
        if closed and _are_rotations(steps[:, rotation].reshape(-1, 3, 3)):
            return PoseReading(
                position=tuple(position.tolist()), rotation=tuple(rotation.tolist()), form="matrix", assumed=False
            )
    return None


def _finite(steps: NDArray[Any]) -> NDArray[np.bool_]:
    """[n] whether all numbers of a step are finite."""
    whole: NDArray[np.bool_] = np.isfinite(steps).all(axis=1)
    return whole


def _has_unit_length(steps: NDArray[Any]) -> bool:
    """Whether steps are quaternions, as far as their length says; no step says no."""
    whole = steps[_finite(steps)].astype(np.float64)
    if not len(whole) or float(np.abs(whole).max()) > 1 + _NEAR:
        return False
    return bool((np.abs(np.linalg.norm(whole, axis=1) - 1) < _NEAR).all())


def _are_rotations(matrices: NDArray[np.float64]) -> bool:
    """Whether [n, 3, 3] turn and do not bend; no matrix says no."""
    whole = matrices[np.isfinite(matrices).all(axis=(1, 2))]
    if not len(whole) or float(np.abs(whole).max()) > 1 + _NEAR:
        return False
    return bool((np.abs(whole @ whole.transpose(0, 2, 1) - np.eye(3)) < 3 * _NEAR).all())


def path_of(cell: NDArray[Any], reading: PoseReading, turn: NDArray[Any] | None, /) -> NDArray[np.float64]:
    """[n, 3] places, or [n, 7] with unit quaternions x, y, z, w; NaN where a step has none.

    Args:
        cell: [n, ...] steps.
        reading: How they are poses.
        turn: [n, ...] steps of the partner, where there is one.
    """
    steps = cell.reshape(len(cell), prod(cell.shape[1:])).astype(np.float64)
    places = np.zeros((len(steps), 3))
    places[:, : len(reading.position)] = steps[:, reading.position]
    if reading.form is None:
        return places
    numbers = steps[:, reading.rotation] if turn is None else turn.reshape(len(steps), -1).astype(np.float64)
    return np.concatenate([places, quaternions(numbers, reading.form)], axis=1)


def quaternions(numbers: NDArray[np.float64], form: Form, /) -> NDArray[np.float64]:
    """[n, 4] unit quaternions x, y, z, w of rotations of a form; NaN where they are none.

    Example:
        >>> quaternions(np.array([[0.0, 0.0, np.pi]]), "rpy").round(6).tolist()
        [[0.0, 0.0, 1.0, 0.0]]
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        turned = _turned(numbers, form)
        length = np.linalg.norm(turned, axis=1, keepdims=True)
        unit: NDArray[np.float64] = np.where(length > 1e-9, turned / length, np.nan)
        return unit


def _turned(numbers: NDArray[np.float64], form: Form) -> NDArray[np.float64]:
    """[n, 4] quaternions of any length."""
    if form == "matrix":
        return _of_matrices(numbers.reshape(-1, 3, 3))
    if form == "rotvec":
        angle = np.linalg.norm(numbers, axis=1, keepdims=True)
        return np.concatenate([numbers * 0.5 * np.sinc(angle / (2 * np.pi)), np.cos(angle / 2)], axis=1)
    if form not in {"rpy", "yaw"}:
        return numbers if form == "xyzw" else numbers[:, [1, 2, 3, 0]]
    angles = numbers if form == "rpy" else np.pad(numbers, ((0, 0), (2, 0)))
    (cr, cp, cy), (sr, sp, sy) = np.cos(angles / 2).T, np.sin(angles / 2).T
    parts = [
        sr * cp * cy - cr * sp * sy,
        cr * sp * cy + sr * cp * sy,
        cr * cp * sy - sr * sp * cy,
        cr * cp * cy + sr * sp * sy,
    ]
    return np.stack(parts, -1)


def _of_matrices(m: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, 4] of [n, 3, 3], by the largest of the four parts, which is never near 0."""
    x, y, z = m[:, 0, 0], m[:, 1, 1], m[:, 2, 2]
    squares = np.stack([1 + x - y - z, 1 - x + y - z, 1 - x - y + z, 1 + x + y + z], -1)
    products = np.empty((len(m), 4, 4))
    products[:, range(4), range(4)] = squares
    sums = {(0, 1): m[:, 1, 0] + m[:, 0, 1], (0, 2): m[:, 0, 2] + m[:, 2, 0], (1, 2): m[:, 2, 1] + m[:, 1, 2]}
    turns = {(0, 3): m[:, 2, 1] - m[:, 1, 2], (1, 3): m[:, 0, 2] - m[:, 2, 0], (2, 3): m[:, 1, 0] - m[:, 0, 1]}
    for (one, other), product in {**sums, **turns}.items():
        products[:, one, other] = products[:, other, one] = product
    largest = np.argmax(np.nan_to_num(squares, nan=-np.inf), axis=1)
    chosen: NDArray[np.float64] = products[np.arange(len(m)), largest]
    return chosen
