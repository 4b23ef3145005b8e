"""A drive along a street, cast by rays: scans of a spinning lidar, a camera, poses in every form, a map, objects.

Nothing is random and nothing is read: the same street for tests, for pictures and for who looks at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import seqlake as sl

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HZ = 10
RINGS = 32
_POINT = [("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "u1"), ("ring", "u2")]
_SKY = (168, 196, 224)


def boxes(step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Low and high corners [B, 2, 3] of all that stands on the street, and the colour of each [B, 3]."""
    corners: list[list[list[float]]] = []
    colours: list[tuple[int, int, int]] = []
    walls = [(196, 164, 132), (170, 120, 100), (150, 160, 172), (210, 196, 170), (128, 138, 120)]
    for number in range(14):
        x, tall = -60 + 12.0 * number, 7 + 3 * ((number * 7) % 5)
        for side in (-1, 1):
            if (number + side) % 6 == 0:
                continue  # a lane between the houses
            near = 9 + (number * 3 + side) % 4
            corners.append([[x, side * (near + 4) - 4, 0], [x + 10.5, side * (near + 4) + 4, tall]])
            colours.append(walls[(number + (side > 0) * 2) % 5])
    for number in range(9):  # parked
        x = -50 + 13.0 * number
        corners.append([[x, -5.4, 0.25], [x + 4.4, -3.6, 1.6]])
        colours.append([(70, 90, 160), (190, 60, 60), (230, 230, 230)][number % 3])
    for number in range(12):  # trees and lamps
        x = -56 + 11.0 * number
        corners.append([[x, 6.2, 0], [x + 0.3, 6.5, 5.5]])
        colours.append((90, 80, 60))
        corners.append([[x - 1.2, 5.0, 3.4], [x + 1.5, 7.7, 6.0]])
        colours.append((70, 130, 70))
    oncoming = 46 - 0.9 * step
    corners.append([[oncoming, 1.2, 0.25], [oncoming + 4.6, 3.1, 1.7]])
    colours.append((250, 200, 40))
    return np.array(corners), np.array(colours)


def cast(eye: NDArray[Any], rays: NDArray[Any], step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """[n] how far each ray goes (infinite into the sky), and [n] what it meets: the box, -1 the ground, -2 the sky."""
    corners, _ = boxes(step)
    inverse = 1 / np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    best, what = np.full(len(rays), np.inf), np.full(len(rays), -2)
    ground = -eye[2] * inverse[:, 2]
    hit = (ground > 0) & (ground < 90)
    best[hit], what[hit] = ground[hit], -1
    for number, (low, high) in enumerate(corners):
        one, other = (low - eye) * inverse, (high - eye) * inverse
        near, far = np.minimum(one, other).max(1), np.maximum(one, other).min(1)
        hit = (near < far) & (near > 0) & (near < best)
        best[hit], what[hit] = near[hit], number
    return best, what


def paint(places: NDArray[Any], what: NDArray[Any], step: int) -> NDArray[np.uint8]:
    """[n, 3] the colour of each place."""
    _, colours = boxes(step)
    shade = colours[np.maximum(what, 0)].astype(float)
    windows = (np.floor(places[:, 0] * 0.5) + np.floor(places[:, 2] * 0.4)) % 2 == 0
    house = (what >= 0) & (places[:, 2] > 2)
    shade[house & windows] *= 0.72
    ground = what == -1
    lane = ground & (np.abs(places[:, 1]) < 0.12) & (np.mod(places[:, 0], 6) < 3)
    walk = ground & (np.abs(places[:, 1]) > 5.6)
    shade[ground], shade[walk], shade[lane] = (92, 94, 100), (150, 146, 140), (240, 240, 235)
    shade[what == -2] = _SKY
    return np.clip(shade, 0, 255).astype(np.uint8)


def pose(step: int) -> tuple[NDArray[Any], float]:
    """Where the car is, and its yaw."""
    yaw = 0.10 * np.sin(step / 9)
    return np.array([-30 + 1.1 * step, -1.6 + 0.9 * np.sin(step / 11), 0.0]), float(yaw)


def scan(step: int, across: int) -> NDArray[Any]:
    """One turn of the lidar, in the frame of the car: column by column, the rings of each in turns."""
    place, yaw = pose(step)
    eye = np.add(place, (0, 0, 1.9))
    turn = np.repeat(np.arange(across) * 2 * np.pi / across, RINGS)
    ring = np.tile(np.arange(RINGS), across)
    rise = np.deg2rad(np.linspace(-24, 8, RINGS))[ring]
    local = np.stack([np.cos(rise) * np.cos(turn), np.cos(rise) * np.sin(turn), np.sin(rise)], 1)
    (c, s) = np.cos(yaw), np.sin(yaw)
    rays = local @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    far, what = cast(eye, rays, step)
    there = np.isfinite(far)
    cloud = np.zeros(int(there.sum()), _POINT)
    points = local[there] * far[there, None] + (0, 0, 1.9)
    for number, axis in enumerate("xyz"):
        cloud[axis] = points[:, number]
    bright = paint(eye + rays[there] * far[there, None], what[there], step).mean(1)
    cloud["intensity"], cloud["ring"] = np.clip(bright * (1.1 - far[there] / 120), 0, 255), ring[there]
    return cloud


def picture(step: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """What a camera behind the windscreen sees: uint8 [height, width, 3]."""
    wide, tall = size
    place, yaw = pose(step)
    across, down = np.meshgrid((np.arange(wide) - wide / 2 + 0.5) / wide, (np.arange(tall) - tall / 2 + 0.5) / wide)
    local = np.stack([np.full(across.size, 0.62), -across.ravel(), -down.ravel()], 1)
    (c, s) = np.cos(yaw), np.sin(yaw)
    rays = local @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    eye = np.add(place, (0.6, 0, 1.5))
    far, what = cast(eye, rays, step)
    places = eye + rays * np.where(np.isfinite(far), far, 0)[:, None]
    haze = np.clip(np.where(np.isfinite(far), far, 90) / 140, 0, 0.7)[:, None]
    seen = paint(places, what, step) * (1 - haze) + np.array(_SKY) * haze
    return seen.astype(np.uint8).reshape(tall, wide, 3)


def painted(steps: int, across: int) -> NDArray[Any]:
    """The map: what all scans meet, in the world, with colours."""
    parts = []
    for step in range(0, steps, 4):
        place, _ = pose(step)
        eye = np.add(place, (0, 0, 1.9))
        cloud = scan(step, across)
        _, yaw = pose(step)
        (c, s) = np.cos(yaw), np.sin(yaw)
        local = np.stack([cloud[axis] for axis in "xyz"], 1)
        world = local @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]) + place
        rays = world - eye
        _, what = cast(eye, rays / np.linalg.norm(rays, axis=1, keepdims=True), step)
        part = np.zeros(
            len(world), [("x", "f8"), ("y", "f8"), ("z", "f8"), ("red", "u1"), ("green", "u1"), ("blue", "u1")]
        )
        for number, axis in enumerate("xyz"):
            part[axis] = world[:, number]
        for number, name in enumerate(("red", "green", "blue")):
            part[name] = paint(world, what, step)[:, number]
        parts.append(part)
    return np.concatenate(parts)


def quaternion(yaw: NDArray[Any]) -> NDArray[Any]:
    """[n, 4] x, y, z, w."""
    zero = np.zeros_like(yaw)
    return np.stack([zero, zero, np.sin(yaw / 2), np.cos(yaw / 2)], 1)


def make(root: Path, *, steps: int = 40, across: int = 720, size: tuple[int, int] = (320, 192)) -> sl.Dataset:
    """The dataset: sequence `street` with everything, and `short` with its first quarter."""
    xyz = ["x", "y", "z"]
    schema = sl.Schema(
        {
            "task": pa.string(),
            "front": sl.Video(fps=HZ),
            "lidar": sl.Spatial4D(frames="files", fps=HZ),
            "map": sl.Spatial3D(coordinate_frame="map", units="m"),
            "ego_pose": sl.Trajectory(
                dim=7, fps=HZ, names=[*xyz, "qx", "qy", "qz", "qw"], coordinate_frame="map", units=["m"] * 3 + [""] * 4
            ),
            "hand_pos": sl.Trajectory(dim=3, fps=HZ),
            "hand_quat": sl.Trajectory(dim=4, fps=HZ),
            "camera": sl.Trajectory(dim=16, shape=[4, 4], fps=HZ),
            "speed": sl.Trajectory(dim=1, fps=HZ, names=["forward"], units=["m/s"]),
            "objects": pa.list_(
                pa.struct({"label": pa.string(), "box": pa.list_(pa.float32()), "seen": pa.list_(pa.int32())})
            ),
            "weather": pa.struct({"sky": pa.string(), "wind": pa.struct({"speed": pa.float32(), "from": pa.string()})}),
            "caption": sl.Embedding(dim=64),
        }
    )
    ds = sl.create(root, schema)
    with ds.writer() as writer:
        for name, count in (("street", steps), ("short", max(2, steps // 4))):
            writer.add(name, **_row(count, across, size))
    return ds


def _row(steps: int, across: int, size: tuple[int, int]) -> dict[str, Any]:
    places, yaws = map(np.array, zip(*map(pose, range(steps)), strict=True))
    time = np.arange(steps) / HZ
    matrices = np.tile(np.eye(4, dtype=np.float32), (steps, 1, 1))
    matrices[:, 0, 0] = matrices[:, 1, 1] = np.cos(yaws)
    matrices[:, 1, 0], matrices[:, 0, 1] = np.sin(yaws), -np.sin(yaws)
    matrices[:, :3, 3] = np.add(places, (0.6, 0, 1.5))
    around = np.stack([0.3 * np.cos(time * 2), 0.3 * np.sin(time * 2), 0.2 + 0.05 * time], 1)
    objects = [
        {"label": "parked car", "box": [-50 + 13.0 * n, -5.4, 0.25, 4.4, 1.8, 1.4], "seen": list(range(steps))}
        for n in range(9)
    ]
    return {
        "task": "drive to the end of the street",
        "front": np.stack([picture(step, size) for step in range(steps)]),
        "lidar": [scan(step, across) for step in range(steps)],
        "map": painted(steps, across),
        "ego_pose": np.concatenate([places, quaternion(yaws)], 1).astype(np.float32),
        "hand_pos": around.astype(np.float32),
        "hand_quat": quaternion(time * 2).astype(np.float32),
        "camera": matrices.reshape(steps, 16),
        "speed": np.gradient(places[:, 0], 1 / HZ).astype(np.float32)[:, None],
        "objects": objects,
        "weather": {"sky": "clear", "wind": {"speed": 3.5, "from": "north"}},
        "caption": np.sin(np.arange(64) / 5).astype(np.float32),
    }


def box(path: Path) -> Path:
    """A cube of two metres as an OBJ: eight corners, six sides of two triangles."""
    corners = [(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]
    sides = [(1, 2, 4, 3), (5, 7, 8, 6), (1, 5, 6, 2), (3, 4, 8, 7), (1, 3, 7, 5), (2, 6, 8, 4)]
    lines = [f"v {x} {y} {z}" for x, y, z in corners]
    lines += [f"f {a} {b} {c}\nf {a} {c} {d}" for a, b, c, d in sides]
    path.write_text("\n".join(lines) + "\n")
    return path
