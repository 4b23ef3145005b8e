"""Samples one at a time, by the names that users of l5kit know; for training there are views and `Loader`.

No PyTorch and no map: a sample holds everything of l5kit's, `image` where a rasteriser is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import FLAG, INDEX, NUMBER, SECONDS, STEPS, Kind, check_fields, takes, with_fields
from seqlake.compat.l5kit.poses import PoseTrack, ego_track, relative
from seqlake.compat.l5kit.rasters import RenderContext
from seqlake.formats.l5kit.converted import ROWS, as_store
from seqlake.formats.l5kit.selecting import (
    MIN_FRAME_FUTURE,
    MIN_FRAME_HISTORY,
    Thresholds,
    select_agents,
    selected,
)
from seqlake.formats.l5kit.store import (
    AGENT_INTERVAL,
    AGENTS,
    FACE_DTYPE,
    FACE_INTERVAL,
    FRAME_INTERVAL,
    FRAMES,
    SCENES,
    SceneArrays,
    SceneData,
    expect_fields,
    filter_agents_by_frames,
    filter_agents_by_labels,
    filter_agents_by_track_id,
    filter_tl_faces_by_frames,
    frames_of,
    get_agents_slice_from_frames,
    scene_of,
    span_of,
    spans_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.compat.l5kit.rasters import Rasterizer
    from seqlake.protocols import Readable

_HOST_BYTES = 70
_STORE = Kind(
    "a store as open_store gives it, scenes of one, or an open dataset that was converted from one",
    lambda value: isinstance(value, SceneData) or ROWS.fits(value),
)
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
_DEFAULTS = {"history_num_frames": 10, "future_num_frames": 50, "step_time": 0.1, "filter_agents_threshold": 0.5}
_CFG = Kind(
    "a configuration of l5kit, with model_params and raster_params",
    lambda value: all(isinstance(value[group], Mapping) for group in ("model_params", "raster_params")),
)
_DRAWS = Kind("an object with l5kit's method rasterize", lambda value: callable(value.rasterize))
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
    render_context: RenderContext | None = None,
    rasterizer: Rasterizer | None = None,
    tl_faces: Any = None,
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
        render_context: Where a raster lies around the agent: adds `raster_from_agent`, `raster_from_world` and
            `world_to_image`, [3, 3] each.
        rasterizer: Draws `image`, as it gives it: [height, width, C].
        tl_faces: The array that `traffic_light_faces_index_interval` counts in, for the rasteriser; None: none.

    Returns:
        The arrays that `relative` names, without the batch axis, and `frame_index`.

    Raises:
        IndexError: There is no such frame, or the agent is not in it, or below the threshold.

    Example:
        ```python
        l5.generate_agent_sample(12, frames, agents, 7, history_num_frames=10, future_num_frames=20)
        ```
    """
    expect_fields(frames.dtype, _OF_FRAMES, array=FRAMES)
    if selected_track_id is not None:
        expect_fields(agents.dtype, _OF_AGENTS, array=AGENTS)
    if not 0 <= state_index < len(frames):
        raise IndexError(f"There are {len(frames)} frames; no frame {state_index}.")
    width = history_num_frames + 1 + future_num_frames
    numbers = np.arange(state_index - history_num_frames, state_index + future_num_frames + 1)
    there = np.flatnonzero((numbers >= 0) & (numbers < len(frames)))
    frames_there, agent = frames[numbers[there]], None
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
        sightings = filter_agents_by_track_id(now, selected_track_id)
        if not len(sightings):
            raise IndexError(f"Track {selected_track_id} is not in frame {state_index}, or below the threshold.")
        agent = sightings[0]
    poses = relative(track, history=history_num_frames, step_time=step_time)
    sample = {"frame_index": state_index, **{name: values[0] for name, values in poses.items()}}
    if render_context is not None:
        matrix = render_context.raster_from_world(sample["centroid"], sample["yaw"])
        sample |= {"world_to_image": matrix, "raster_from_world": matrix}
        sample["raster_from_agent"] = matrix @ sample["world_from_agent"]
    if rasterizer is not None:
        past = int((there <= history_num_frames).sum())
        sample["image"] = rasterizer.rasterize(*_context(frames_there, past, agents, tl_faces), agent)
    return sample


def _context(frames: NDArray[Any], past: int, agents: Any, tl_faces: Any) -> tuple[Any, Any, Any]:
    """What a rasteriser is given: frames, agents and faces of now and before, the newest first."""
    cut = span_of(frames, AGENT_INTERVAL, len(agents))
    history, rows = frames[:past][::-1].copy(), agents[cut]
    history[AGENT_INTERVAL] -= cut.start
    seen = filter_agents_by_frames(history, rows)
    if tl_faces is None or FACE_INTERVAL not in (frames.dtype.names or ()):
        return history, seen, [np.empty(0, FACE_DTYPE)] * past
    lit = span_of(frames, FACE_INTERVAL, len(tl_faces))
    history[FACE_INTERVAL] -= lit.start
    return history, seen, filter_tl_faces_by_frames(history, tl_faces[lit])


def _agent_track(frames: NDArray[Any], there: NDArray[np.int64], agents: Any, track_id: int, width: int) -> PoseTrack:
    span = span_of(frames, AGENT_INTERVAL, len(agents))
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


class EgoDataset:
    """Every frame of a store as one sample of the car's own motion; see `generate_agent_sample`.

    Args:
        cfg: A configuration of l5kit: `model_params` and `raster_params` say what the keywords do not, and where a
            raster lies. Without one there are no raster matrices.
        zarr_dataset: A store, an open dataset that was converted from one, or scenes in memory; `dataset=` is the same.
        rasterizer: Draws `image` [C, height, width]: of l5kit, or anything with its method `rasterize`. None: no image.
        history_num_frames: Frames before now; 10 where nothing says it.
        future_num_frames: Frames after now; 50 where nothing says it.
        step_time: Seconds from one frame to the next, for velocities; 0.1 where nothing says it.
        filter_agents_threshold: Below this an agent counts as not there; 0.5 where nothing says it.

    Example:
        ```python
        dataset = EgoDataset(cfg, open_store("sample.zarr"))       # or sl.open("data/drives")
        dataset[0]["raster_from_agent"], dataset[0]["target_positions"]
        ```
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | None = None,
        zarr_dataset: SceneArrays[Any] | SceneData | Readable | None = None,
        rasterizer: Rasterizer | None = None,
        *,
        dataset: SceneArrays[Any] | SceneData | Readable | None = None,
        history_num_frames: int | None = None,
        future_num_frames: int | None = None,
        step_time: float | None = None,
        filter_agents_threshold: float | None = None,
    ) -> None:
        _CFG.or_none().check("cfg", cfg)
        _DRAWS.or_none().check("rasterizer", rasterizer)
        given: Any = zarr_dataset if dataset is None else dataset
        _STORE.check("zarr_dataset" if dataset is None else "dataset", given)
        self.cfg = cfg
        self.dataset: SceneArrays[Any] | SceneData = given if isinstance(given, SceneData) else as_store(given)
        self.rasterizer = rasterizer
        self.history_num_frames: int = _setting(cfg, "model_params", "history_num_frames", history_num_frames)
        self.future_num_frames: int = _setting(cfg, "model_params", "future_num_frames", future_num_frames)
        self.step_time: float = _setting(cfg, "model_params", "step_time", step_time)
        self.filter_agents_threshold: float = _setting(
            cfg, "raster_params", "filter_agents_threshold", filter_agents_threshold
        )
        check_fields(self, **_WINDOW)
        self.render_context: RenderContext | None = None if cfg is None else RenderContext.of(cfg)

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
            render_context=self.render_context,
            rasterizer=self.rasterizer,
            tl_faces=self._faces,
        )
        if "image" in data:
            data["image"] = data["image"].transpose(2, 0, 1)
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

    @property
    def _faces(self) -> Any:
        """The traffic lights that a rasteriser is shown; None where the configuration switches them off."""
        off = self.cfg is not None and self.cfg["raster_params"].get("disable_traffic_light_faces", False)
        return None if off else self.dataset.tl_faces

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
        names = ("cfg", "rasterizer", *_WINDOW)
        return {name: vars(self)[name] for name in names}


class AgentDataset(EgoDataset):
    """Every trusted sighting of an agent as one sample.

    Args:
        cfg: As for `EgoDataset`, and so are `zarr_dataset`, `rasterizer` and the keywords.
        zarr_dataset: A store, or an open dataset that was converted from one; scenes in memory need a mask.
        rasterizer: Draws `image`.
        agents_mask: [agents] which sightings, or [agents, 2] past and future frames as `select_agents` gives them.
            None: the store's own mask of this threshold, or else l5kit's rules, computed when it is first needed.
        min_frame_history: Of past frames, where the mask says them.
        min_frame_future: Of future frames.
        **options: The keywords of `EgoDataset`.

    Example:
        ```python
        dataset = l5.AgentDataset(cfg, l5.open_store("sample.zarr"))
        dataset[0]["target_positions"]               # float32 [future, 2], metres, in the agent's own frame
        ```
    """

    def __init__(
        self,
        cfg: Mapping[str, Any] | None = None,
        zarr_dataset: SceneArrays[Any] | SceneData | Readable | None = None,
        rasterizer: Rasterizer | None = None,
        *,
        agents_mask: NDArray[Any] | None = None,
        min_frame_history: int = MIN_FRAME_HISTORY,
        min_frame_future: int = MIN_FRAME_FUTURE,
        **options: Any,
    ) -> None:
        super().__init__(cfg, zarr_dataset, rasterizer, **options)
        self.min_frame_history = min_frame_history
        self.min_frame_future = min_frame_future
        check_fields(self, min_frame_history=INDEX, min_frame_future=INDEX)
        _MASK.or_none().check("agents_mask", agents_mask)
        if agents_mask is None and not isinstance(self.dataset, SceneArrays):
            raise ValueError("agents_mask: scenes in memory have none of their own; give the rows of the store's.")
        self._mask = agents_mask

    @cached_property
    def agents_mask(self) -> NDArray[Any]:
        """[agents] or [agents, 2] the mask that was given, or is the store's, or follows from l5kit's rules."""
        if self._mask is not None or not isinstance(self.dataset, SceneArrays):
            return np.asarray(self._mask)
        stored = self.dataset.masks.get(str(self.filter_agents_threshold))
        if stored is not None and len(stored) == len(self.dataset.agents):
            return np.asarray(stored[:])
        return select_agents(self.dataset, thresholds=Thresholds(probability=self.filter_agents_threshold))

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
        least = {"min_frame_history": self.min_frame_history, "min_frame_future": self.min_frame_future}
        replaced = {"dataset": scene_of(self.dataset, scene_index), "agents_mask": self.agents_mask[span]}
        return AgentDataset(**{**self._settings(), **least, **replaced})

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


def _setting(cfg: Mapping[str, Any] | None, group: str, name: str, given: Any) -> Any:
    """A keyword, or what the configuration says, or the default where there is none."""
    if given is not None or cfg is None:
        return _DEFAULTS[name] if given is None else given
    if name not in cfg[group]:
        raise ValueError(f"cfg: expected {group}.{name}; it is not there. Add it, or give {name}=.")
    return cfg[group][name]


def _track_number(track_id: int) -> np.int64 | np.uint64:
    """As l5kit has it, int64; ids that only the store's own uint64 can hold stay what they are."""
    return np.int64(track_id) if track_id < 1 << 63 else np.uint64(track_id)
