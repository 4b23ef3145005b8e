"""Pictures around an agent: the matrices that place them, and boxes drawn in numpy. No map is needed for either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake.compat.l5kit.poses import EGO_EXTENT, rotation33_as_yaw
from seqlake.formats.l5kit.store import filter_agents_by_labels, filter_agents_by_track_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_PARAMS = {
    "raster_size": "[width, height] in pixels",
    "pixel_size": "[x, y] metres of a pixel, equal",
    "ego_center": "[x, y] where the agent is, as parts of the raster",
    "set_origin_to_bottom": "True or False",
}
_EDGE = 1.0  # pixels over which a box fades out beyond its sides, as OpenCV's smoothed polygons do


class Rasterizer(Protocol):
    """What draws; every rasteriser of l5kit is one, and any object with this method."""

    def rasterize(
        self,
        history_frames: NDArray[Any],
        history_agents: Sequence[NDArray[Any]],
        history_tl_faces: Sequence[NDArray[Any]],
        agent: Any = None,
        /,
    ) -> NDArray[Any]:
        """An image [height, width, C] of frames, agents and faces, the newest first, around an agent or the car."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RenderContext:
    """Where a raster lies around an agent, as l5kit's class of this name.

    Attributes:
        raster_size_px: [2] width and height.
        pixel_size_m: [2] metres of a pixel; both are equal.
        center_in_raster_ratio: [2] where the agent is, as parts of the raster.
        set_origin_to_bottom: Row 0 is the lowest.

    Example:
        ```python
        context = l5.RenderContext.of(cfg)            # of a configuration of l5kit
        ```
    """

    raster_size_px: NDArray[Any]
    pixel_size_m: NDArray[Any]
    center_in_raster_ratio: NDArray[Any]
    set_origin_to_bottom: bool = True

    def __post_init__(self) -> None:
        """See that the numbers are pairs.

        Raises:
            ValueError: One that is not, or pixels that are no squares.
        """
        for name in ("raster_size_px", "pixel_size_m", "center_in_raster_ratio"):
            pair = np.asarray(getattr(self, name))
            if pair.shape != (2,) or pair.dtype.kind not in "iuf":
                raise ValueError(f"{name}: expected two numbers, found {pair!r}.")
            object.__setattr__(self, name, pair)
        if self.pixel_size_m[0] != self.pixel_size_m[1] or not (self.pixel_size_m > 0).all():
            raise ValueError(f"pixel_size_m: expected two equal numbers above 0, found {self.pixel_size_m.tolist()}.")

    @classmethod
    def of(cls, cfg: Mapping[str, Any], /) -> RenderContext:
        """The raster that a configuration of l5kit describes.

        Raises:
            ValueError: `raster_params` lacks something.
        """
        params = cfg["raster_params"]
        if missing := [name for name in _PARAMS if name not in params]:
            raise ValueError(f"cfg: expected raster_params.{missing[0]}, {_PARAMS[missing[0]]}; it is not there.")
        return cls(
            raster_size_px=params["raster_size"],
            pixel_size_m=params["pixel_size"],
            center_in_raster_ratio=params["ego_center"],
            set_origin_to_bottom=bool(params["set_origin_to_bottom"]),
        )

    @property
    def raster_from_local(self) -> NDArray[np.float64]:
        """[3, 3] from metres around the agent to pixels."""
        center = self.center_in_raster_ratio * self.raster_size_px
        matrix = np.array(
            [[1 / self.pixel_size_m[0], 0, center[0]], [0, 1 / self.pixel_size_m[1], center[1]], [0, 0, 1]]
        )
        if self.set_origin_to_bottom:
            matrix = np.array([[1, 0, 0], [0, -1, self.raster_size_px[1]], [0, 0, 1.0]]) @ matrix
        return matrix

    def raster_from_world(self, position_m: Any, angle_rad: Any, /) -> NDArray[np.float64]:
        """[3, 3] from the world to pixels, around a place and heading.

        Args:
            position_m: [2 or 3] metres.
            angle_rad: In the world.
        """
        cos, sin = np.cos(angle_rad), np.sin(angle_rad)
        pose = np.array([[cos, -sin, position_m[0]], [sin, cos, position_m[1]], [0, 0, 1]])
        matrix: NDArray[np.float64] = self.raster_from_local @ np.linalg.inv(pose)
        return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRasterizer:
    """Agents and car as filled boxes, one channel a step, in numpy: the example of a rasteriser.

    Channels are l5kit's: other agents now and backwards, then the one in the middle. Boxes are those of its
    `BoxRasterizer` but for the smoothing along their sides, a pixel wide.

    Attributes:
        render_context: Where the raster lies.
        filter_agents_threshold: Agents below it are not drawn.
        history_num_frames: Frames before now.
        render_ego_history: Draw the one in the middle in the past, too.

    Example:
        ```python
        boxes = BoxRasterizer(render_context=RenderContext.of(cfg), filter_agents_threshold=0.5, history_num_frames=10)
        AgentDataset(cfg, store, boxes)[0]["image"].shape   # (22, height, width), float32
        ```
    """

    render_context: RenderContext
    filter_agents_threshold: float = 0.5
    history_num_frames: int = 10
    render_ego_history: bool = True

    def rasterize(
        self,
        history_frames: NDArray[Any],
        history_agents: Sequence[NDArray[Any]],
        history_tl_faces: Sequence[NDArray[Any]] = (),  # noqa: ARG002 - of the signature
        agent: Any = None,
    ) -> NDArray[np.float32]:
        """[height, width, 2 (history + 1)] 1 where a box is, less along its sides, 0 elsewhere."""
        width, height = self.render_context.raster_size_px.tolist()
        steps = self.history_num_frames + 1
        image = np.zeros((height, width, 2 * steps), np.float32)
        now = _car(history_frames[0], history_agents[0].dtype)[0] if agent is None else agent
        matrix = self.render_context.raster_from_world(now["centroid"], now["yaw"])
        for step, (frame, everyone) in enumerate(zip(history_frames, history_agents, strict=True)):
            others, car = filter_agents_by_labels(everyone, self.filter_agents_threshold), _car(frame, everyone.dtype)
            middle = car
            if agent is not None:
                middle = filter_agents_by_track_id(others, agent["track_id"])
                others = np.concatenate([others[others["track_id"] != agent["track_id"]], car])
            _fill(image[..., step], others, matrix)
            if self.render_ego_history or not step:
                _fill(image[..., steps + step], middle, matrix)
        return image

    def num_channels(self) -> int:
        """C of the image."""
        return 2 * (self.history_num_frames + 1)


def _car(frame: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """[1] the car as an agent."""
    car = np.zeros(1, dtype)
    car["centroid"], car["extent"] = frame["ego_translation"][:2], EGO_EXTENT
    car["yaw"] = rotation33_as_yaw(frame["ego_rotation"])
    return car


def _fill(image: NDArray[np.float32], agents: NDArray[Any], matrix: NDArray[np.float64]) -> None:
    """Set the pixels of each box to 1, fading out along its sides."""
    scale = np.sqrt(abs(np.linalg.det(matrix[:2, :2])))
    for one in agents:
        center = matrix[:2, :2] @ one["centroid"] + matrix[:2, 2]
        ahead = matrix[:2, :2] @ np.array([np.cos(one["yaw"]), np.sin(one["yaw"])]) / scale
        half = one["extent"][:2].astype(np.float64) * scale / 2
        reach = np.hypot(*half) + 1
        low = np.clip(np.floor(center - reach), 0, image.shape[::-1]).astype(int)
        high = np.clip(np.ceil(center + reach) + 1, 0, image.shape[::-1]).astype(int)
        x, y = np.arange(low[0], high[0]) - center[0], np.arange(low[1], high[1])[:, None] - center[1]
        along, across = np.abs(x * ahead[0] + y * ahead[1]), np.abs(y * ahead[0] - x * ahead[1])
        box = np.clip(half[0] + _EDGE - along, 0, 1) * np.clip(half[1] + _EDGE - across, 0, 1)
        part = image[low[1] : high[1], low[0] : high[0]]
        np.maximum(part, box, out=part)
