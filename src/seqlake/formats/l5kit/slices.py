"""Slices of frames, agents and traffic lights, and filters over them: the names and rules of l5kit, without PyTorch.

Everything takes structured arrays in memory, as slicing a `Store` gives them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.formats._arguments import INDEX, NUMBER, Kind, takes, with_fields
from seqlake.formats.l5kit.intervals import expect_fields, in_range, span
from seqlake.formats.l5kit.labels import KEPT, TL_FACE_LABEL_TO_INDEX
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    FACE_INTERVAL,
    FACES,
    FRAME_INTERVAL,
    FRAMES,
    SCENES,
    SceneData,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.formats.l5kit.store import Store

_SHOWN_FRAMES = 50
_USUAL_RATE = 10.0
_POINT = Kind("a point as [x, y]", lambda value: np.asarray(value, np.float64).shape == (2,))


def get_frames_slice_from_scenes(scene_a: Any, scene_b: Any = None, /) -> slice:
    """Frames from the first of scene `a` to the last of scene `b` (of `a` itself by default)."""
    return _span(scene_a, scene_b, FRAME_INTERVAL)


def get_agents_slice_from_frames(frame_a: Any, frame_b: Any = None, /) -> slice:
    """Agents from the first of frame `a` to the last of frame `b` (of `a` itself by default)."""
    return _span(frame_a, frame_b, AGENT_INTERVAL)


def get_tl_faces_slice_from_frames(frame_a: Any, frame_b: Any = None, /) -> slice:
    """Traffic-light faces from the first of frame `a` to the last of frame `b` (of `a` itself by default)."""
    return _span(frame_a, frame_b, FACE_INTERVAL)


def _span(first: Any, last: Any, interval: str) -> slice:
    try:
        return slice(int(first[interval][0]), int((first if last is None else last)[interval][1]))
    except (TypeError, ValueError, LookupError):
        raise ValueError(f"Expected one row with {interval!r}, as store.frames[0], found {first!r:.80}.") from None


@takes(frames=with_fields(AGENT_INTERVAL), agents=with_fields())
def filter_agents_by_frames(frames: NDArray[Any], agents: NDArray[Any], /) -> list[NDArray[Any]]:
    """The agents of each frame; intervals must count in `agents`, so re-base them after slicing."""
    return [agents[get_agents_slice_from_frames(frame)] for frame in np.atleast_1d(frames)]


@takes(frames=with_fields(FACE_INTERVAL), tl_faces=with_fields())
def filter_tl_faces_by_frames(frames: NDArray[Any], tl_faces: NDArray[Any], /) -> list[NDArray[Any]]:
    """The traffic-light faces of each frame; intervals must count in `tl_faces`."""
    return [tl_faces[get_tl_faces_slice_from_frames(frame)] for frame in np.atleast_1d(frames)]


def label_mask(label_probabilities: NDArray[Any], threshold: float, /) -> NDArray[np.bool_]:
    """[n] whether the labels from `CAR` to `ANIMAL` are together more likely than `threshold`."""
    mask: NDArray[np.bool_] = np.sum(label_probabilities[:, list(KEPT)], axis=1) > threshold
    return mask


@takes(agents=with_fields("label_probabilities"), threshold=NUMBER)
def filter_agents_by_labels(agents: NDArray[Any], threshold: float = 0.5) -> NDArray[Any]:
    """Agents that are more likely than `threshold` something that moves by itself.

    Example:
        ```python
        cars = filter_agents_by_labels(store.agents[:20_000], threshold=0.5)
        ```
    """
    kept: NDArray[Any] = agents[label_mask(agents["label_probabilities"], threshold)]
    return kept


@takes(agents=with_fields("track_id"), track_id=INDEX)
def filter_agents_by_track_id(agents: NDArray[Any], track_id: int) -> NDArray[Any]:
    """Agents of one track; track ids are unique within a scene only."""
    kept: NDArray[Any] = agents[agents["track_id"] == track_id]
    return kept


@takes(agents=with_fields("centroid"), centroid=_POINT, max_distance=NUMBER)
def filter_agents_by_distance(agents: NDArray[Any], centroid: Any, max_distance: float) -> NDArray[Any]:
    """Agents nearer than `max_distance` metres to a point [2], the nearest first."""
    distance = np.linalg.norm(agents["centroid"] - centroid, axis=-1)
    near = distance < max_distance
    kept: NDArray[Any] = agents[near][np.argsort(distance[near])]
    return kept


@takes(tl_faces=with_fields("traffic_light_face_status"))
def filter_tl_faces_by_status(tl_faces: NDArray[Any], status: str) -> NDArray[Any]:
    """Faces whose `status`, as in `"ACTIVE"`, is above 0."""
    if not isinstance(status, str) or status not in TL_FACE_LABEL_TO_INDEX:
        raise ValueError(f"A face is {', '.join(TL_FACE_LABEL_TO_INDEX)}; found {status!r}.")
    return tl_faces[tl_faces["traffic_light_face_status"][:, TL_FACE_LABEL_TO_INDEX[status]] > 0]


@takes(scene_index=INDEX)
def scene_of(store: Store | SceneData, scene_index: int, /) -> SceneData:
    """One scene in memory, all intervals counted from 0; see `Store.get_scene_dataset`."""
    count = len(store.scenes)
    if not 0 <= scene_index < count:
        raise ValueError(f"There are {count} scenes; no scene {scene_index}.")
    scenes = _own(store.scenes, slice(scene_index, scene_index + 1))
    found = frames_of(store, scenes[0], scene_index)
    frames = _own(store.frames, found)
    spans = spans_of(store, frames)
    agents, faces = _own(store.agents, spans[AGENT_INTERVAL]), _own(store.tl_faces, spans[FACE_INTERVAL])
    for name, rows in spans.items():
        if name in (frames.dtype.names or ()):
            frames[name] -= rows.start
    scenes[FRAME_INTERVAL] -= found.start
    return SceneData(scenes=scenes, frames=frames, agents=agents, tl_faces=faces)


def _own(rows: Any, span: slice) -> NDArray[Any]:
    """Rows in memory of their own: slices of a store are, those of an array are not."""
    found: NDArray[Any] = rows[span]
    return found.copy() if isinstance(rows, np.ndarray) else found


def frames_of(store: Store | SceneData, scene: Any, number: int, /) -> slice:
    """The frames of a scene.

    Raises:
        InvalidMetadataError: It names others than there are.
    """
    path = store.location
    expect_fields(scene.dtype, [FRAME_INTERVAL], array=SCENES, path=path)
    pair = np.asarray(scene[FRAME_INTERVAL])[None]
    in_range(pair, len(store.frames), what=f"of scene {number}, interval", array=FRAMES, path=path)
    return get_frames_slice_from_scenes(scene)


def spans_of(store: Store | SceneData, frames: NDArray[Any], /) -> dict[str, slice]:
    """The agents and the faces that the frames of one scene name, by the names of the intervals.

    Raises:
        InvalidMetadataError: They name others than there are, or than those from the first frame's to the last one's.
    """
    found, path = {}, store.location
    for interval, array, rows in ((AGENT_INTERVAL, AGENTS, store.agents), (FACE_INTERVAL, FACES, store.tl_faces)):
        there = interval in (frames.dtype.names or ())
        pairs = frames[interval] if there else np.zeros((0, 2), np.int64)
        checked = in_range(pairs, len(rows), what="of a scene, frame", array=array, path=path)
        found[interval] = span(checked, array=array, path=path)
    return found


@takes(scenes=with_fields(FRAME_INTERVAL, "host", "start_time", "end_time"))
def get_combined_scenes(scenes: NDArray[Any], /) -> NDArray[Any]:
    """Scenes that follow each other without a gap, on one host, made one: [n] rows of the same dtype."""
    if not len(scenes):
        return scenes
    follows = (scenes["start_time"][1:] == scenes["end_time"][:-1]) & _same_host(scenes)
    firsts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    lasts = np.concatenate([firsts[1:] - 1, [len(scenes) - 1]])
    combined: NDArray[Any] = scenes[firsts].copy()
    combined["end_time"] = scenes["end_time"][lasts]
    combined[FRAME_INTERVAL][:, 1] = scenes[FRAME_INTERVAL][lasts, 1]
    return combined


def _same_host(scenes: NDArray[Any]) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = scenes["host"][1:] == scenes["host"][:-1]
    return same


def described(store: Store | SceneData, /) -> str:
    """Counts, hours and rates of a store, in lines for people."""
    frames = len(store.frames)
    rate = _USUAL_RATE
    if frames > 1 and "timestamp" in (store.frames.dtype.names or ()):
        times = np.diff(store.frames[:_SHOWN_FRAMES]["timestamp"])
        with np.errstate(divide="ignore"):
            rate = float(np.mean(1e9 / times))
    scenes, agents = len(store.scenes), len(store.agents)
    lines = {
        "scenes": f"{scenes:,}",
        "frames": f"{frames:,}",
        "agents": f"{agents:,}",
        "traffic-light faces": f"{len(store.tl_faces):,}",
        "hours": f"{frames / max(rate, 1) / 3600:.2f}",
        "frames per scene": f"{frames / max(scenes, 1):.2f}",
        "agents per frame": f"{agents / max(frames, 1):.2f}",
        "seconds per scene": f"{frames / max(scenes, 1) / rate:.2f}",
        "frames per second": f"{rate:.2f}" + ("" if frames > 1 else " (assumed: too few frames to tell)"),
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines.items())
