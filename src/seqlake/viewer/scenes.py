"""Scenes of l5kit from above: the car, the agents around it, and what traffic lights show, at one step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.compat.l5kit.poses import EGO_EXTENT, rotation33_as_yaw
from seqlake.errors import MissingFileError, SchemaMismatchError
from seqlake.formats.l5kit.store import PERCEPTION_LABELS, TL_FACE_LABELS
from seqlake.viewer.asking import plain
from seqlake.windows.timestamps import usual_rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.protocols import Ints
    from seqlake.spec.schema import Schema
    from seqlake.viewer.asking import Parameters
    from seqlake.viewer.tables import Shelf

SCENE = "scene"
_NEEDED = {"ego_translation": 3, "num_agents": 1, "agents_centroid": 2, "agents_yaw": 1}
_MORE = ("agents_extent", "agents_velocity", "agents_track_id", "agents_label_probabilities")
_FACES = ("num_tl_faces", "tl_faces_face_id", "tl_faces_traffic_light_id", "tl_faces_status")
_AGENTS, _LIGHTS, _TRAIL = 2000, 400, 240  # at most so many are sent
_CENTIMETRES = 2


def scene_columns(schema: Schema, /) -> tuple[str, ...]:
    """The columns that together are a scene of l5kit; none where some that are needed are missing."""
    for name, width in _NEEDED.items():
        if name not in schema:
            return ()
        column = schema[name]
        numbers = column.category == "temporal" or (width == 1 and name == "num_agents")
        if not numbers or (width > 1 and column.dim not in {width, None}):
            return ()
    optional = ("ego_rotation", *_MORE, *_FACES, "agents_timestamp", "tl_faces_timestamp")
    return (*_NEEDED, *(name for name in optional if name in schema))


def scene_rate(view: SequenceView, /) -> float | None:
    """Frames per second of a scene, as their times say; None where it has none, or is no scene."""
    if not scene_columns(view.schema) or "timestamp" not in view.schema:
        return None
    times = view["timestamp"]
    return usual_rate(times) if isinstance(times, np.ndarray) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DriveScene:
    """A scene in memory, as much of it as is drawn.

    Attributes:
        times: [T] nanoseconds since 1970; None where nothing says them.
        ego: [T, 3] x, y and yaw of the car in the world.
        ends: [T + 1] where the agents of each step begin.
        boxes: [A, 5] x, y, yaw, length and width.
        speeds: [A] metres per second; NaN where nothing says them.
        tracks: [A] numbers; None where nothing says them.
        labels: [A] the number of the likeliest label; -1 where nothing says it.
        likely: [A] how likely it is.
        face_ends: [T + 1] where the faces of each step begin.
        faces: (id, light) of each face.
        states: [K] the number of each face's likeliest state.
    """

    times: Ints | None
    ego: NDArray[np.float64]
    ends: Ints
    boxes: NDArray[np.float64]
    speeds: NDArray[np.float64]
    tracks: NDArray[Any] | None
    labels: Ints
    likely: NDArray[np.float64]
    face_ends: Ints
    faces: list[tuple[str, str]]
    states: Ints


def scene(shelf: Shelf, asked: Parameters, /) -> dict[str, Any]:
    """What is seen from above at one step, in metres from the car; axes are the world's."""
    shows, row = shelf.row(asked)
    if not scene_columns(shows.schema):
        raise SchemaMismatchError("These rows are no scenes of l5kit: they lack some of " + ", ".join(_NEEDED) + ".")
    key = ("scene", shelf.pinned(asked), row)
    drive: DriveScene = shelf.kept(key, lambda: drive_of(shows[shows.index_of(row)]))
    step = asked.whole("k", 0, low=0, high=1 << 40)
    if step >= len(drive.ego):
        raise MissingFileError(f"There is no step {step}; there are {len(drive.ego)}.")
    x, y, yaw = drive.ego[step].tolist()
    facts: dict[str, Any] = {"step": step, "steps": len(drive.ego), "time": _time(drive.times, step)}
    facts["world"] = [x, y]
    length, width, _ = EGO_EXTENT
    facts["ego"] = {"x": 0.0, "y": 0.0, "yaw": yaw, "length": length, "width": width, "speed": _speed(drive, step)}
    agents, lost, others = _agents(drive, step)
    lights = _lights(drive, step)
    every = max(1, -(-len(drive.ego) // _TRAIL))
    trail = np.round(drive.ego[::every, :2] - (x, y), _CENTIMETRES)
    facts |= {"agents": agents, "lost": lost, "more": others, "lights": lights[:_LIGHTS]}
    facts |= {"trail": trail.tolist(), "trail_now": step // every, "counts": _counted(drive, step)}
    plain_facts: dict[str, Any] = plain(facts)
    return plain_facts


def _time(times: Ints | None, step: int) -> str | None:
    if times is None or not 0 <= times[step] < 1 << 62:
        return None
    return str(np.datetime64(int(times[step]), "ns").astype("datetime64[ms]")) + "Z"


def _speed(drive: DriveScene, step: int) -> float | None:
    """Metres per second of the car, from its places around a step."""
    first, last = max(0, step - 1), min(len(drive.ego) - 1, step + 1)
    if drive.times is None or drive.times[last] <= drive.times[first]:
        return None
    away = float(np.linalg.norm(drive.ego[last, :2] - drive.ego[first, :2]))
    return away / float(drive.times[last] - drive.times[first]) * 1e9


def _agents(drive: DriveScene, step: int) -> tuple[list[dict[str, Any]], int, int]:
    """The agents of a step, the nearest first; how many have no place; and how many are not sent."""
    start, stop = int(drive.ends[step]), int(drive.ends[step + 1])
    boxes = drive.boxes[start:stop].copy()
    boxes[:, :2] -= drive.ego[step, :2]
    there = np.flatnonzero(np.isfinite(boxes[:, :2]).all(axis=1) & (np.abs(boxes[:, :2]) < 1e6).all(axis=1))
    near = there[np.argsort(np.hypot(*boxes[there, :2].T), kind="stable")][:_AGENTS]
    agents = []
    for number in near.tolist():
        x, y, yaw, length, width = np.round(boxes[number], _CENTIMETRES + 1).tolist()
        at = start + number
        label = int(drive.labels[at])
        agents.append(
            {
                "id": None if drive.tracks is None else int(drive.tracks[at]),
                "x": x,
                "y": y,
                "yaw": yaw,
                "length": length if 0 < length < 100 else None,
                "width": width if 0 < width < 100 else None,
                "label": PERCEPTION_LABELS[label].rpartition("LABEL_")[2] if label >= 0 else None,
                "p": round(float(drive.likely[at]), 3) if np.isfinite(drive.likely[at]) else None,
                "speed": round(float(drive.speeds[at]), 2) if np.isfinite(drive.speeds[at]) else None,
            }
        )
    return agents, stop - start - len(there), len(there) - len(near)


def _lights(drive: DriveScene, step: int) -> list[dict[str, Any]]:
    """The faces of traffic lights at a step, by their light."""
    start, stop = int(drive.face_ends[step]), int(drive.face_ends[step + 1])
    named = sorted(range(start, stop), key=lambda at: (drive.faces[at][1], drive.faces[at][0]))
    return [
        {
            "id": drive.faces[at][0],
            "light": drive.faces[at][1],
            "state": TL_FACE_LABELS[int(drive.states[at])].lower() if drive.states[at] >= 0 else "unknown",
        }
        for at in named
    ]


def _counted(drive: DriveScene, step: int) -> dict[str, int]:
    """How many agents, faces and lights a step has."""
    faces = drive.faces[int(drive.face_ends[step]) : int(drive.face_ends[step + 1])]
    return {
        "agents": int(drive.ends[step + 1] - drive.ends[step]),
        "faces": len(faces),
        "lights": len({light for _, light in faces}),
    }


def drive_of(view: SequenceView, /) -> DriveScene:
    """Read a scene, and see that its counts fit its rows.

    Raises:
        MissingFileError: A cell that is needed is null.
        SchemaMismatchError: Cells that do not fit each other.
    """
    ego = _matrix(view, "ego_translation", 3)
    count = len(ego)
    ends = _ends(view, "num_agents", count)
    centroid = _matrix(view, "agents_centroid", 2, rows=int(ends[-1]))
    agents = len(centroid)
    extent = _optional(view, "agents_extent", agents, 3)
    velocity = _optional(view, "agents_velocity", agents, 2)
    chances = _optional(view, "agents_label_probabilities", agents, len(PERCEPTION_LABELS))
    yaw = np.zeros(count)
    if (rotation := _optional(view, "ego_rotation", count, 9)) is not None:
        yaw = rotation33_as_yaw(rotation.reshape(count, 3, 3))
    known = chances is not None and agents > 0
    tracks, times = (view[name] if name in view.schema else None for name in ("agents_track_id", "timestamp"))
    face_ends, faces, states = _faces(view, count)
    sides = np.full((agents, 2), np.nan) if extent is None else extent[:, :2]
    return DriveScene(
        times=np.asarray(times, np.int64) if isinstance(times, np.ndarray) and times.shape == (count,) else None,
        ego=np.concatenate([ego[:, :2], yaw[:, None]], axis=1),
        ends=ends,
        boxes=np.concatenate([centroid, _matrix(view, "agents_yaw", 1, rows=agents), sides], axis=1),
        speeds=np.full(agents, np.nan) if velocity is None else np.hypot(velocity[:, 0], velocity[:, 1]),
        tracks=tracks if isinstance(tracks, np.ndarray) and tracks.shape == (agents,) else None,
        labels=_likeliest(chances) if known and chances is not None else np.full(agents, -1, np.int64),
        likely=chances.max(axis=1) if known and chances is not None else np.full(agents, np.nan),
        face_ends=face_ends,
        faces=faces,
        states=states,
    )


def _likeliest(chances: NDArray[np.float64]) -> Ints:
    """[n] the number of the largest of each row; -1 where none is above 0."""
    clean = np.nan_to_num(chances, nan=0.0)
    largest: Ints = np.where(clean.max(axis=1) > 0, clean.argmax(axis=1), -1).astype(np.int64)
    return largest


def _faces(view: SequenceView, count: int) -> tuple[Ints, list[tuple[str, str]], Ints]:
    """Where the faces of each step begin; (id, light) of each; its likeliest state."""
    nothing = np.zeros(count + 1, np.int64)
    if any(name not in view.schema or view[name] is None for name in _FACES):
        return nothing, [], np.zeros(0, np.int64)
    ends = _ends(view, "num_tl_faces", count)
    ids, lights = ([str(one) for one in view[name]] for name in _FACES[1:3])
    status = _matrix(view, "tl_faces_status", len(TL_FACE_LABELS))
    if not len(ids) == len(lights) == len(status) == int(ends[-1]):
        raise SchemaMismatchError(
            f"Traffic lights: {int(ends[-1])} faces are counted, and there are {len(ids)} ids and {len(status)} states."
        )
    return ends, list(zip(ids, lights, strict=True)), _likeliest(status)


def _ends(view: SequenceView, name: str, count: int) -> Ints:
    """[count + 1] the sums of the counts of each step."""
    cell = view[name]
    if cell is None:
        raise MissingFileError(f"The cell of {name!r} is null.")
    counts = np.asarray(cell).reshape(-1)
    if len(counts) != count or counts.dtype.kind not in "iu" or bool((counts < 0).any()):
        raise SchemaMismatchError(f"{name!r}: expected a count for each of {count} steps, found {len(counts)}.")
    return np.concatenate([[0], np.cumsum(counts.astype(np.int64))])


def _optional(view: SequenceView, name: str, rows: int, width: int) -> NDArray[np.float64] | None:
    """Numbers of a column that need not be there."""
    cell = view[name] if name in view.schema else None
    return None if cell is None else _numbers(cell, name, width, rows)


def _matrix(view: SequenceView, name: str, width: int, *, rows: int | None = None) -> NDArray[np.float64]:
    """[rows, width] the numbers of a column that must be there."""
    cell = view[name]
    if cell is None:
        raise MissingFileError(f"The cell of {name!r} is null.")
    return _numbers(cell, name, width, rows)


def _numbers(cell: Any, name: str, width: int, rows: int | None) -> NDArray[np.float64]:
    array = np.asarray(cell)
    numbers = array.dtype.kind in "iufb" and array.size == len(array) * width
    if not numbers or rows not in {None, len(array)}:
        raise SchemaMismatchError(
            f"{name!r}: expected [{'steps' if rows is None else rows}, {width}] numbers, found {list(array.shape)}."
        )
    return array.reshape(len(array), width).astype(np.float64)
