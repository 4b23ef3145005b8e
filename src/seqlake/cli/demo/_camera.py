"""Two cameras that film the arm: one sees the whole plane, one sits on the wrist and turns with it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.cli.demo._arm import LINKS

if TYPE_CHECKING:
    from numpy.typing import NDArray

FRONT = (160, 120)
"""Width and height of the camera that sees everything, in pixels."""

WRIST = (96, 72)
"""Width and height of the camera on the wrist."""

_THICK = (0.05, 0.04, 0.03)  # of the links, in metres
_COLORS = np.array([[67, 99, 216], [60, 180, 75], [245, 130, 49]], np.float32)
_JOINT = np.array([40, 40, 48], np.float32)


def front(angles: NDArray[Any]) -> NDArray[np.uint8]:
    """The arm as the fixed camera sees it: joint angles [3] -> uint8 [120, 160, 3]."""
    x, y = _grid(*FRONT, metres=2.0)
    return _with_arm(_table_before_front(), x, y, angles)


def wrist(angles: NDArray[Any]) -> NDArray[np.uint8]:
    """What lies before the hand, seen from the last link: joint angles [3] -> uint8 [72, 96, 3]."""
    turn, (left, up) = float(np.sum(angles)), _joints(angles)[-1].tolist()
    x, y = _grid(*WRIST, metres=0.5)
    x, y = left + np.cos(turn) * x - np.sin(turn) * y, up + np.sin(turn) * x + np.cos(turn) * y
    return _with_arm(_table(x, y), x, y, angles)


def _joints(angles: NDArray[Any]) -> NDArray[Any]:
    """[4, 2] the base, both joints and the hand, in metres."""
    total = np.cumsum(angles)
    ends = np.cumsum(LINKS[:, None] * np.stack([np.cos(total), np.sin(total)], -1), axis=0)
    return np.concatenate([np.zeros((1, 2)), ends])


@cache
def _grid(width: int, height: int, *, metres: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where each pixel looks, around the middle of the picture: x and y as [height, width]; y goes up."""
    x, y = np.meshgrid(np.arange(width) - width / 2 + 0.5, height / 2 - 0.5 - np.arange(height))
    scale = metres / width
    return (x * scale).astype(np.float32), (y * scale).astype(np.float32)


@cache
def _table_before_front() -> NDArray[np.uint8]:
    return _table(*_grid(*FRONT, metres=2.0))


def _table(x: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.uint8]:
    """A table with a soft pattern: uint8 [height, width, 3]."""
    wood = 200 + 12 * np.sin(14 * x + 3 * np.sin(5 * y)) + 8 * np.sin(9 * y)
    return np.stack([wood, wood - 14, wood - 34], -1).astype(np.uint8)


def _with_arm(
    table: NDArray[np.uint8], x: NDArray[np.float32], y: NDArray[np.float32], angles: NDArray[Any]
) -> NDArray[np.uint8]:
    """The picture with three round links and the joint at which each begins."""
    out = table.copy()
    joints = _joints(angles)
    for number, ((left, up), (along_x, along_y)) in enumerate(zip(joints, np.diff(joints, axis=0), strict=False)):
        right_of, above, thick = x - np.float32(left), y - np.float32(up), _THICK[number]
        place = np.clip((right_of * along_x + above * along_y) / LINKS[number] ** 2, 0, 1)
        near = 1 - ((right_of - place * along_x) ** 2 + (above - place * along_y) ** 2) / thick**2
        link = near > 0
        out[link] = _COLORS[number] * (0.6 + 0.4 * np.sqrt(near[link]))[:, None]
        out[right_of**2 + above**2 < (0.6 * thick) ** 2] = _JOINT
    return out
