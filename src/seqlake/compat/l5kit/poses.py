"""History and future of an agent, or of the car, seen from where it is now: for one sample or for a whole batch.

Frames of reference, names and number types are l5kit's: positions in metres and angles in radians relative to the pose
at step 0, computed in float64 and given as float32; the history goes back in time from now; steps at which the agent
was not seen are zeros with availability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.arguments import FLAG, SECONDS, STEPS, takes
from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Batch = dict[str, NDArray[Any]]

EGO_EXTENT = (4.87, 1.85, 1.8)
"""Length, width and height of the recording car in metres; stores do not say them."""

AGENT_COLUMNS = ("centroid", "yaw", "extent", "available")
EGO_COLUMNS = ("ego_translation", "ego_rotation")
_FLAT = 4 * np.finfo(np.float64).eps


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativePoses:
    """For `loader.map_batch`: windows as they are stored become what l5kit's samples hold.

    Attributes:
        history: Steps before now.
        future: Steps after now.
        step_time: Seconds from one step to the next, for velocities.
        keep: Leave the windows themselves in the batch.
    """

    history: int
    future: int
    step_time: float = 0.1
    keep: bool = False

    def __call__(self, batch: Mapping[str, NDArray[Any]], /) -> Batch:
        """A batch with windows of `history + 1 + future` steps, oldest first.

        Raises:
            SchemaMismatchError: The windows are not there, or of another length.
        """
        columns = EGO_COLUMNS if EGO_COLUMNS[0] in batch else AGENT_COLUMNS
        if missing := [name for name in columns if name not in batch]:
            raise SchemaMismatchError(
                f"Poses need windows of {' and '.join(AGENT_COLUMNS)}, or of {' and '.join(EGO_COLUMNS)}; "
                f"{missing[0]!r} is not there."
            )
        width = self.history + 1 + self.future
        if batch[columns[0]].shape[1] != width:
            raise SchemaMismatchError(
                f"Expected windows of {self.history} + 1 + {self.future} steps, found {batch[columns[0]].shape[1]}.",
                hint=f"Ask for range({-self.history}, {self.future + 1}), or for range({width}) of windows.",
            )
        used = {name for column in columns for name in (column, f"{column}_mask")}
        rest = dict(batch) if self.keep else {name: values for name, values in batch.items() if name not in used}
        track = self._ego(batch) if columns is EGO_COLUMNS else self._agent(batch)
        return {**rest, **relative(track, history=self.history, step_time=self.step_time)}

    @staticmethod
    def _agent(batch: Mapping[str, NDArray[Any]]) -> PoseTrack:
        seen = batch["available"] != 0
        if "available_mask" in batch:
            seen &= batch["available_mask"]
        yaw = batch["yaw"]
        return PoseTrack(position=batch["centroid"], yaw=yaw, extent=batch["extent"], seen=seen)

    @staticmethod
    def _ego(batch: Mapping[str, NDArray[Any]]) -> PoseTrack:
        translation, rotation = batch["ego_translation"], batch["ego_rotation"]
        seen = batch.get("ego_translation_mask")
        if seen is None:
            seen = np.ones(translation.shape[:2], np.bool_)
        return ego_track(translation, rotation, seen)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoseTrack:
    """Windows of one kind, oldest step first.

    Attributes:
        position: [B, W, 2] in the world.
        yaw: [B, W] in the world.
        extent: [B, W, 3].
        seen: [B, W].
    """

    position: NDArray[Any]
    yaw: NDArray[Any]
    extent: NDArray[Any]
    seen: NDArray[np.bool_]


@takes(history=STEPS, future=STEPS, step_time=SECONDS, keep=FLAG)
def relative_poses(*, history: int, future: int, step_time: float = 0.1, keep: bool = False) -> RelativePoses:
    """A function for `loader.map_batch`; see `RelativePoses`.

    Example:
        ```python
        steps = range(-10, 51)
        window = sl.Window({name: steps for name in ("centroid", "yaw", "extent", "available")})
        loader = sl.Loader(sl.scan("sample.zarr", view="tracks"), window=window, batch_size=64)
        loader = loader.map_batch(relative_poses(history=10, future=50))
        next(iter(loader))["target_positions"].shape   # (64, 50, 2)
        ```
    """
    return RelativePoses(history=history, future=future, step_time=step_time, keep=keep)


def ego_track(translation: NDArray[Any], rotation: NDArray[Any], seen: NDArray[np.bool_], /) -> PoseTrack:
    """The car's own windows: [B, W, 3] and [B, W, 3, 3]."""
    extent = np.broadcast_to(np.array(EGO_EXTENT), translation.shape)
    return PoseTrack(position=translation[..., :2], yaw=rotation33_as_yaw(rotation), extent=extent, seen=seen)


def rotation33_as_yaw(rotation: NDArray[Any], /) -> NDArray[np.float64]:
    """[...] the angle about the vertical axis of rotations [..., 3, 3]; 0 where they look straight up or down."""
    down, left = rotation[..., 0, 0].astype(np.float64), rotation[..., 1, 0].astype(np.float64)
    upright = np.sqrt(down * down + left * left) > _FLAT
    yaw: NDArray[np.float64] = np.where(upright, np.arctan2(left, down), 0.0)
    return yaw


def angular_distance(angle_a: Any, angle_b: Any, /) -> Any:
    """`a - b`, brought to [-pi, pi)."""
    return (angle_a - angle_b + np.pi) % (2 * np.pi) - np.pi


def transform_points(points: NDArray[Any], matrix: NDArray[Any], /) -> NDArray[Any]:
    """Points [..., N, D] through matrices [..., D + 1, D + 1]."""
    size = points.shape[-1]
    turned: NDArray[Any] = points @ np.swapaxes(matrix[..., :size, :size], -1, -2) + matrix[..., None, :size, size]
    return turned


def compute_agent_pose(centroid: NDArray[Any], yaw: Any, /) -> NDArray[np.float64]:
    """[..., 3, 3] world from agent, for places [..., 2] and angles [...]."""
    yaw = np.asarray(yaw, np.float64)
    pose = np.zeros((*yaw.shape, 3, 3))
    pose[..., 0, 0] = pose[..., 1, 1] = np.cos(yaw)
    pose[..., 1, 0] = np.sin(yaw)
    pose[..., 0, 1] = -pose[..., 1, 0]
    pose[..., :2, 2] = centroid
    pose[..., 2, 2] = 1
    return pose


def relative(track: PoseTrack, /, *, history: int, step_time: float) -> Batch:
    """What l5kit's samples hold, for a whole batch.

    Args:
        track: Windows, oldest step first.
        history: Steps before now.
        step_time: Seconds from one step to the next.

    Returns:
        `target_*` [B, F, ...] and `history_*` [B, H + 1, ...] (velocities [B, H, 2]), `centroid` [B, 2], `yaw` [B],
        `extent` [B, 3], `world_from_agent` and `agent_from_world` [B, 3, 3], and with a history `curr_speed` [B].
    """
    centroid = track.position[:, history].astype(np.float64)
    yaw = track.yaw[:, history].astype(np.float64)
    world_from_agent = compute_agent_pose(centroid, yaw)
    agent_from_world = np.linalg.inv(world_from_agent)
    seen = track.seen.astype(np.float32)
    away = np.where(track.seen[..., None], track.position.astype(np.float64, copy=False), 0.0)
    positions = (transform_points(away, agent_from_world) * seen[..., None]).astype(np.float32)
    turned = angular_distance(track.yaw.astype(np.float32), yaw.astype(np.float32)[:, None]).astype(np.float32)
    yaws = np.where(track.seen, turned, np.float32(0))[..., None]
    extents = np.where(track.seen[..., None], track.extent[..., :2], 0).astype(np.float32)
    past, then = slice(history, None, -1), slice(history + 1, None)
    backwards = positions[:, : history + 1][:, ::-1]
    sample = {
        "target_positions": positions[:, then],
        "target_yaws": yaws[:, then],
        "target_velocities": _velocities(positions[:, then], step_time),
        "target_availabilities": seen[:, then],
        "history_positions": backwards,
        "history_yaws": yaws[:, past],
        "history_velocities": -np.diff(backwards, axis=1) / np.float32(step_time),
        "history_availabilities": seen[:, past],
        "history_extents": extents[:, past],
        "future_extents": extents[:, then],
        "centroid": centroid,
        "yaw": yaw,
        "extent": track.extent[:, history],
        "world_from_agent": world_from_agent,
        "agent_from_world": agent_from_world,
    }
    if history:
        sample["curr_speed"] = np.linalg.norm(sample["history_velocities"][:, 0], axis=-1)
    return {name: np.ascontiguousarray(values) for name, values in sample.items()}  # tensors cannot run backwards


def _velocities(positions: NDArray[np.float32], step_time: float) -> NDArray[np.float32]:
    """[B, F, 2] from one step to the next, the first from now."""
    steps = np.diff(positions, axis=1, prepend=np.zeros_like(positions[:, :1])) if positions.shape[1] else positions
    velocities: NDArray[np.float32] = steps / np.float32(step_time)
    return velocities
