"""Samples one at a time, by the names that users of l5kit know; for training there are views and `Loader`.

No PyTorch, no map and no rasteriser: a sample holds everything of l5kit's but `image` and what depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import FLAG, INDEX, NUMBER, SECONDS, STEPS, Kind, a, check_fields, takes, with_fields
from seqlake.compat.l5kit.poses import PoseTrack, ego_track, relative
from seqlake.formats.l5kit.intervals import expect_fields, in_range
from seqlake.formats.l5kit.intervals import span as between
from seqlake.formats.l5kit.selecting import MIN_FRAME_FUTURE, MIN_FRAME_HISTORY, selected
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    FRAME_INTERVAL,
    FRAMES,
    SCENES,
    SceneData,
    Store,
    filter_agents_by_frames,
    filter_agents_by_labels,
    filter_agents_by_track_id,
    frames_of,
    get_agents_slice_from_frames,
    scene_of,
    spans_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HOST_BYTES = 70
_STORE = a((Store, SceneData), "a store as open_store gives it, or scenes of one")
_MASK = Kind(
    "a mask with a row for each agent, as select_agents gives it",
    lambda value: value.dtype.kind in "biu" and (value.ndim == 1 or (value.ndim == 2 and value.shape[1] == 2)),
)
_WINDOW = {
    "history_num_frames": STEPS,
    "future_num_frames": STEPS,
    "step_time": SECONDS,
    "filter_agents_threshold": NUMBER,
}
_OF_FRAMES = ("timestamp", AGENT_INTERVAL, "ego_translation", "ego_rotation")
_OF_AGENTS = ("centroid", "extent", "yaw", "track_id", "label_probabilities")


@takes(frame_index=INDEX, history_num_states=INDEX, history_step_size=INDEX, include_current_state=FLAG)
def get_history_slice(
    frame_index: int,
    history_num_states: int,
    history_step_size: int,
    include_current_state: bool = False,  # noqa: FBT001, FBT002 - the name and order that users know
) -> slice:
    """The frames before one, the newest first, as far as there are any.

    Args:
        frame_index: Now.
        history_num_states: How many frames before now.
        history_step_size: Frames from one to the next.
        include_current_state: Begin with now.

    Raises:
        IndexError: A step below 1.

    Example:
        >>> list(range(10))[get_history_slice(4, 3, 1, include_current_state=True)]
        [4, 3, 2, 1]
    """
    if history_step_size <= 0:
        raise IndexError(f"A history goes back by at least 1 frame a step, found {history_step_size}.")
    first = frame_index - (0 if include_current_state else history_step_size)
    steps = history_num_states + (1 if include_current_state else 0)
    there = max(0, min(steps, first // history_step_size + 1)) if first >= 0 else 0
    if not there:
        return slice(0, 0, -history_step_size)
    stop = first - there * history_step_size
    return slice(first, stop if stop >= 0 else None, -history_step_size)


@takes(frame_index=INDEX, future_num_states=INDEX, future_step_size=INDEX)
def get_future_slice(frame_index: int, future_num_states: int, future_step_size: int) -> slice:
    """The frames after one, as far as there are any.

    Raises:
        IndexError: A step below 1.

    Example:
        >>> list(range(10))[get_future_slice(4, 2, 2)]
        [6, 8]
    """
    if future_step_size <= 0:
        raise IndexError(f"A future goes on by at least 1 frame a step, found {future_step_size}.")
    first = frame_index + future_step_size
    return slice(first, first + future_num_states * future_step_size, future_step_size)


@takes(state_index=INDEX, frames=with_fields(), agents=with_fields(), selected_track_id=INDEX.or_none(), **_WINDOW)
def generate_agent_sample(
    state_index: int,
    frames: NDArray[Any],
    agents: Any,
    selected_track_id: int | None,
    *,
    history_num_frames: int,
    future_num_frames: int,
    step_time: float = 0.1,
    filter_agents_threshold: float = 0.5,
) -> dict[str, Any]:
    """What a model sees of one agent, or of the car, at one frame.

    Args:
        state_index: The frame, counted in `frames`.
        frames: Of one scene.
        agents: The array that `agent_index_interval` counts in: of a store, or in memory.
        selected_track_id: The agent; None: the car.
        history_num_frames: Frames before now.
        future_num_frames: Frames after now.
        step_time: Seconds from one frame to the next, for velocities.
        filter_agents_threshold: Below this the agent counts as not there.

    Returns:
        The arrays that `relative` names, without the batch axis, and `frame_index`.

    Raises:
        IndexError: There is no such frame, or the agent is not in it, or below the threshold.
    """
    expect_fields(frames.dtype, _OF_FRAMES, array=FRAMES)
    if selected_track_id is not None:
        expect_fields(agents.dtype, _OF_AGENTS, array=AGENTS)
    if not 0 <= state_index < len(frames):
        raise IndexError(f"There are {len(frames)} frames; no frame {state_index}.")
    width = history_num_frames + 1 + future_num_frames
    numbers = np.arange(state_index - history_num_frames, state_index + future_num_frames + 1)
    there = np.flatnonzero((numbers >= 0) & (numbers < len(frames)))
    frames_there = frames[numbers[there]]
    if selected_track_id is None:
        translation, rotation = np.zeros((1, width, 3)), np.zeros((1, width, 3, 3))
        translation[0, there], rotation[0, there] = frames_there["ego_translation"], frames_there["ego_rotation"]
        seen = np.zeros((1, width), np.bool_)
        seen[0, there] = True
        track = ego_track(translation, rotation, seen)
    else:
        track = _agent_track(frames_there, there, agents, selected_track_id, width)
        current = frames_there[there == history_num_frames]
        now = filter_agents_by_labels(agents[get_agents_slice_from_frames(current[0])], filter_agents_threshold)
        if not len(filter_agents_by_track_id(now, selected_track_id)):
            raise IndexError(f"Track {selected_track_id} is not in frame {state_index}, or below the threshold.")
    sample = relative(track, history=history_num_frames, step_time=step_time)
    return {"frame_index": state_index, **{name: values[0] for name, values in sample.items()}}


def _agent_track(frames: NDArray[Any], there: NDArray[np.int64], agents: Any, track_id: int, width: int) -> PoseTrack:
    span = between(in_range(frames[AGENT_INTERVAL], len(agents), what="of a sample, frame", array=AGENTS), array=AGENTS)
    rows = agents[span]
    moved = frames.copy()
    moved[AGENT_INTERVAL] -= span.start
    position, seen = np.zeros((1, width, 2), rows["centroid"].dtype), np.zeros((1, width), np.bool_)
    yaw, extent = np.zeros((1, width), rows["yaw"].dtype), np.zeros((1, width, 3), rows["extent"].dtype)
    for at, one in zip(there.tolist(), filter_agents_by_frames(moved, rows), strict=True):
        sighting = one[one["track_id"] == track_id]
        if len(sighting):
            seen[0, at] = True
            position[0, at], yaw[0, at], extent[0, at] = (sighting[0][name] for name in ("centroid", "yaw", "extent"))
    return PoseTrack(position=position, yaw=yaw, extent=extent, seen=seen)


@dataclass(frozen=True, kw_only=True)
class EgoDataset:
    """Every frame of a store as one sample of the car's own motion; see `generate_agent_sample`.

    Attributes:
        dataset: A store, or scenes in memory.
        history_num_frames: Frames before now.
        future_num_frames: Frames after now.
        step_time: Seconds from one frame to the next, for velocities.
        filter_agents_threshold: Below this an agent counts as not there.
    """

    dataset: Store | SceneData
    history_num_frames: int = 10
    future_num_frames: int = 50
    step_time: float = 0.1
    filter_agents_threshold: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, dataset=_STORE, **_WINDOW)

    @cached_property
    def _scenes(self) -> NDArray[Any]:
        scenes: NDArray[Any] = self.dataset.scenes[:]
        expect_fields(scenes.dtype, [FRAME_INTERVAL, "host"], array=SCENES)
        return scenes

    @cached_property
    def cumulative_sizes(self) -> NDArray[np.int64]:
        """[scenes] the frame after the last of each."""
        ends: NDArray[np.int64] = self._scenes[FRAME_INTERVAL][:, 1]
        return ends

    def __len__(self) -> int:
        return len(self.dataset.frames)

    @takes(index=INDEX)
    def __getitem__(self, index: int, /) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} samples; no sample {index}.")
        frame = index % len(self)
        scene = int(np.searchsorted(self.cumulative_sizes, frame, side="right"))
        return self.get_frame(scene, frame - int(self._scenes[scene][FRAME_INTERVAL][0]))

    @takes(scene_index=INDEX, state_index=INDEX, track_id=INDEX.or_none())
    def get_frame(self, scene_index: int, state_index: int, track_id: int | None = None) -> dict[str, Any]:
        """One sample.

        Args:
            scene_index: The scene.
            state_index: The frame, counted in the scene.
            track_id: The agent; None: the car.

        Raises:
            IndexError: No such scene or frame, or the agent is not in it.
        """
        scene = self._scene(scene_index)
        frames = self.dataset.frames[frames_of(self.dataset, scene, scene_index)]
        data = generate_agent_sample(
            state_index,
            frames,
            self.dataset.agents,
            track_id,
            history_num_frames=self.history_num_frames,
            future_num_frames=self.future_num_frames,
            step_time=self.step_time,
            filter_agents_threshold=self.filter_agents_threshold,
        )
        host = np.frombuffer(str(scene["host"]).encode("ascii", "replace").ljust(_HOST_BYTES, b"\0"), np.uint8)
        return {
            **data,
            "scene_index": scene_index,
            "host_id": host,
            "timestamp": frames[state_index]["timestamp"],
            "track_id": _track_number(-1 if track_id is None else track_id),
        }

    def get_scene_dataset(self, scene_index: int, /) -> EgoDataset:
        """The samples of one scene, in memory."""
        return EgoDataset(**{**self._settings(), "dataset": scene_of(self.dataset, scene_index)})

    def get_scene_indices(self, scene_idx: int, /) -> NDArray[np.int64]:
        """Which samples belong to a scene."""
        return np.arange(*self._scene(scene_idx)[FRAME_INTERVAL])

    @takes(scene_index=INDEX)
    def _scene(self, scene_index: int) -> Any:
        """The row of a scene; negative numbers count from the end."""
        count = len(self._scenes)
        if not -count <= scene_index < count:
            raise IndexError(f"There are {count} scenes; no scene {scene_index}.")
        return self._scenes[scene_index]

    @takes(frame_idx=INDEX)
    def get_frame_indices(self, frame_idx: int, /) -> NDArray[np.int64]:
        """Which samples belong to a frame."""
        if not 0 <= frame_idx < len(self.dataset.frames):
            raise IndexError(f"There are {len(self.dataset.frames)} frames; no frame {frame_idx}.")
        return np.array([frame_idx], np.int64)

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, kw_only=True)
class AgentDataset(EgoDataset):
    """Every trusted sighting of an agent as one sample.

    Attributes:
        agents_mask: [agents] which sightings, or [agents, 2] past and future frames as `select_agents` gives them.
        min_frame_history: Of past frames, where the mask says them.
        min_frame_future: Of future frames.
    """

    agents_mask: NDArray[Any] = field(repr=False)
    min_frame_history: int = MIN_FRAME_HISTORY
    min_frame_future: int = MIN_FRAME_FUTURE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, agents_mask=_MASK, min_frame_history=INDEX, min_frame_future=INDEX)

    @cached_property
    def agents_indices(self) -> NDArray[np.int64]:
        """[samples] the agents' rows."""
        return np.flatnonzero(selected(self.agents_mask, self.min_frame_history, self.min_frame_future))

    @cached_property
    def _frame_ends(self) -> NDArray[np.int64]:
        expect_fields(self.dataset.frames.dtype, [AGENT_INTERVAL], array=FRAMES)
        ends: NDArray[np.int64] = self.dataset.frames[:][AGENT_INTERVAL][:, 1]
        return ends

    def __len__(self) -> int:
        return len(self.agents_indices)

    @takes(index=INDEX)
    def __getitem__(self, index: int, /) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} samples; no sample {index}.")
        row = int(self.agents_indices[index])
        frame = int(np.searchsorted(self._frame_ends, row, side="right"))
        scene = int(np.searchsorted(self.cumulative_sizes, frame, side="right"))
        state = frame - int(self._scenes[scene][FRAME_INTERVAL][0])
        return self.get_frame(scene, state, track_id=int(self.dataset.agents[row]["track_id"]))

    def get_scene_dataset(self, scene_index: int, /) -> AgentDataset:
        """The samples of one scene, in memory."""
        span = self._rows_of(scene_index)
        replaced = {"dataset": scene_of(self.dataset, scene_index), "agents_mask": self.agents_mask[span]}
        return AgentDataset(**{**self._settings(), **replaced})

    def get_scene_indices(self, scene_idx: int, /) -> NDArray[np.int64]:
        """Which samples belong to a scene."""
        span = self._rows_of(scene_idx)
        return self._within(span.start, span.stop)

    def _rows_of(self, scene_index: int) -> slice:
        """The agents of a scene."""
        frames = self.dataset.frames[frames_of(self.dataset, self._scene(scene_index), scene_index)]
        return spans_of(self.dataset, frames)[AGENT_INTERVAL]

    def get_frame_indices(self, frame_idx: int, /) -> NDArray[np.int64]:
        """Which samples belong to a frame."""
        super().get_frame_indices(frame_idx)
        return self._within(int(self._frame_ends[frame_idx - 1]) if frame_idx else 0, int(self._frame_ends[frame_idx]))

    def _within(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(*np.searchsorted(self.agents_indices, [start, stop]))


def _track_number(track_id: int) -> np.int64 | np.uint64:
    """As l5kit has it, int64; ids that only the store's own uint64 can hold stay what they are."""
    return np.int64(track_id) if track_id < 1 << 63 else np.uint64(track_id)
