"""Clouds of windows side by side: padded to the longest with a mask, or end to end with offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError
from seqlake.media.spatial import XYZ, stacked, xyz

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class PointOptions:
    """How points are delivered.

    Attributes:
        fields: Which, side by side: the C of [N, C].
        packed: End to end with offsets, not padded.
        dtype: Of the numbers; None means float32, where that holds what is stored.
    """

    fields: tuple[str, ...] = XYZ
    packed: bool = False
    dtype: str | None = None

    def check(self) -> None:
        """Raise ValueError, naming the argument that cannot be meant."""
        fields = self.fields
        named = isinstance(fields, tuple) and all(isinstance(one, str) for one in fields)
        if not named or not fields or len(set(fields)) < len(fields):
            raise ValueError(f'points fields: expected names, each once, as ("x", "y", "z"), found {fields!r}.')
        if self.dtype not in {None, "float32", "float64"}:
            raise ValueError(f'points dtype: expected "float32" or "float64", found {self.dtype!r}.')

    @property
    def kind(self) -> np.dtype[Any]:
        """The numpy type of the numbers."""
        return np.dtype(self.dtype or "float32")

    def numbers(self, cloud: NDArray[Any], /) -> NDArray[Any]:
        """[N, C] the fields of one cloud.

        Raises:
            DecodeError: It has no such field.
            SchemaMismatchError: float32 would round what is stored, and nobody asked for that.
        """
        values = stacked(cloud, self.fields)
        if self.dtype is None and not np.can_cast(values.dtype, np.float32, "safe"):
            raise SchemaMismatchError(
                f"points with {', '.join(self.fields)} are {values.dtype}, which float32 would round.",
                hint='Say which is meant: loader.points(dtype="float64"), or "float32" to have them rounded.',
            )
        return values.astype(self.kind, copy=False)


def as_numbers(clouds: NDArray[Any], /) -> tuple[NDArray[Any], PointOptions]:
    """[W] of objects: the coordinates of each cloud; and the options that hold them as they are stored."""
    values = np.empty(clouds.shape, object)
    for place, one in enumerate(clouds):
        values[place] = xyz(one) if isinstance(one, np.ndarray) else None
    kinds = {one.dtype for one in values if one is not None}
    return values, PointOptions(dtype="float64" if np.dtype(np.float64) in kinds else "float32")


def joined(name: str, clouds: NDArray[Any], options: PointOptions, /) -> dict[str, NDArray[Any]]:
    """The clouds of a column as numbers.

    Args:
        name: The column.
        clouds: [...] of objects: [N, C] arrays, anything else where there is no cloud.
        options: How they are delivered.

    Returns:
        Padded `name` [..., N, C], N that of the largest, and `name_points_mask` [..., N], True where a point is; or
        packed `name` [points, C] and `name_points_offsets` [clouds + 1], whose cloud k is offsets[k] to offsets[k + 1].
    """
    nothing = np.zeros((0, len(options.fields)), options.kind)
    flat = [one if isinstance(one, np.ndarray) else nothing for one in clouds.reshape(-1)]
    counts = np.array([len(one) for one in flat], np.int64)
    if options.packed:
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return {name: np.concatenate([nothing, *flat]), f"{name}_points_offsets": offsets}
    most = int(counts.max(initial=0))
    padded = np.zeros((len(flat), most, len(options.fields)), options.kind)
    for place, one in enumerate(flat):
        padded[place, : len(one)] = one
    mask = np.arange(most) < counts[:, None]
    return {
        name: padded.reshape(*clouds.shape, *padded.shape[1:]),
        f"{name}_points_mask": mask.reshape(*clouds.shape, most),
    }
