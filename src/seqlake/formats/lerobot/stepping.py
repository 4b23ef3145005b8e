"""Cells of one sequence as the steps of an episode: one row a step, checked against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import CorruptFrameError, DecodeError, MissingFileError, SchemaMismatchError, ValidationError
from seqlake.files.stores import read_all
from seqlake.formats.lerobot.counting import PictureCounts, looked_at
from seqlake.media import depth_levels, format_of
from seqlake.media import image as pictures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.formats.lerobot.planning import ExportedFeature
    from seqlake.protocols import Blob
    from seqlake.spec.column_types import ColumnType

PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_MOST_PICTURE = 1 << 30  # bytes of one image that a row names


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FeatureSteps:
    """One feature of one episode.

    Attributes:
        cells: [T] as the data file has them.
        values: [T, ...] of numbers; None of others.
    """

    cells: pa.Array
    values: NDArray[Any] | None = None


def step_type(feature: ExportedFeature, column: pa.DataType, /) -> pa.DataType:
    """The Arrow type of a step in the data file.

    Args:
        feature: What it is.
        column: The type of the column's cells.
    """
    if feature.role == "image":
        return PICTURE
    if feature.role == "text":
        return pa.string()
    if feature.role == "language":
        return column.value_type
    number = pa.from_numpy_dtype(np.dtype(feature.dtype))
    if feature.shape == (1,):
        return number
    if len(feature.shape) == 1:
        return pa.list_(number, feature.shape[0])
    for _ in feature.shape:
        number = pa.list_(number)
    return number


def steps_of(feature: ExportedFeature, cell: pa.ListScalar, kind: pa.DataType, where: str, /) -> FeatureSteps:
    """The steps of a cell of numbers, texts or language.

    Args:
        feature: What it is.
        cell: Of one sequence.
        kind: What `step_type` gave.
        where: Sequence and column, for messages.

    Raises:
        ValidationError: It is null, or steps of it are, or they have other shapes.
    """
    values = values_of(cell, where)
    if feature.role != "numbers":
        return FeatureSteps(cells=values.cast(kind))
    shape = () if feature.shape == (1,) and not pa.types.is_nested(values.type) else feature.shape
    flat = _flattened(values, shape, where)
    numbers = flat.to_numpy(zero_copy_only=False).reshape(len(values), *feature.shape)
    if not pa.types.is_list(kind):  # a number, or a list of fixed size
        return FeatureSteps(
            cells=flat if kind == flat.type else pa.FixedSizeListArray.from_arrays(flat, type=kind), values=numbers
        )
    cells: pa.Array = flat
    for place in range(len(feature.shape) - 1, -1, -1):
        size = feature.shape[place]
        offsets = np.arange(0, len(cells) + 1, size, dtype=np.int32)
        cells = pa.ListArray.from_arrays(pa.array(offsets), cells)
    return FeatureSteps(cells=cells.cast(kind), values=numbers)


def values_of(cell: pa.ListScalar, where: str, /) -> pa.Array:
    """The steps of a cell.

    Raises:
        ValidationError: It is null.
    """
    if not cell.is_valid:
        raise ValidationError(
            f"{where}: the cell is null, and LeRobot has every feature in every episode.",
            hint="Leave such rows out with where(), or the column with without=.",
        )
    return cell.values


def _flattened(values: pa.Array, shape: tuple[int, ...], where: str) -> pa.Array:
    count = len(values)
    in_one = (int(np.prod(shape)),) if shape else ()
    for size in shape if _levels(values.type) == len(shape) else in_one:
        if values.null_count:
            raise ValidationError(f"{where}: {values.null_count} steps are null.", hint="Mend them, or leave it out.")
        lengths = pc.min_max(pc.list_value_length(values)).as_py()
        if len(values) and {lengths["min"], lengths["max"]} != {size}:
            raise ValidationError(
                f"{where}: steps have {lengths['min']} to {lengths['max']} numbers, where {size} are declared."
            )
        values = values.flatten()
    if values.null_count:
        raise ValidationError(f"{where}: {values.null_count} numbers are null.", hint="Mend them, or leave it out.")
    if len(values) != count * int(np.prod(shape)):
        raise ValidationError(f"{where}: {len(values)} numbers in {count} steps of shape {list(shape)}.")
    return values


def _levels(kind: pa.DataType) -> int:
    levels = 0
    while pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        kind, levels = kind.value_type, levels + 1
    return levels


class PictureSteps:
    """The pictures of a cell, one a step.

    Args:
        cell: Encoded bytes, or names of files.
        kind: The column's type.
        where: Sequence and column, for messages.
        opened: Gives the file of a reference.
    """

    def __init__(self, cell: pa.ListScalar, kind: ColumnType, where: str, /, *, opened: Callable[[str], Blob]) -> None:
        self._cells = values_of(cell, where)
        self._kind = kind
        self._where = where
        self._opened = opened

    def __len__(self) -> int:
        return len(self._cells)

    def data(self, step: int, /) -> bytes:
        """The encoded bytes of one.

        Raises:
            ValidationError: There is none, or its file is not there.
        """
        cell = self._cells[step].as_py()
        if not cell:
            raise ValidationError(
                f"{self._where}, step {step}: there is no picture, and LeRobot has one at every step.",
                hint="Leave such rows out with where(), or the column with without=.",
            )
        if isinstance(cell, bytes):
            return cell
        try:
            return read_all(self._opened(cell), most=_MOST_PICTURE)
        except (FileNotFoundError, MissingFileError) as error:
            raise ValidationError(f"{self._where}, step {step}: the file {cell!r} is not there.") from error

    def decoded(self, steps: Sequence[int], /) -> Iterator[NDArray[Any]]:
        """[H, W, channels] of some.

        Raises:
            ValidationError: One is no picture.
        """
        for step in steps:
            where = f"{self._where}, step {step}"
            try:
                yield pictures.decode(self.data(step), name=where, column=self._kind)
            except (CorruptFrameError, DecodeError) as error:
                raise ValidationError(f"{where}: {error.message}") from error

    def eight_bits(self) -> Iterator[NDArray[np.uint8]]:
        """All of them as frames of a video.

        Raises:
            SchemaMismatchError: One has more bits.
        """
        for step, picture in enumerate(self.decoded(range(len(self)))):
            if picture.dtype != np.uint8:
                raise SchemaMismatchError(
                    f"{self._where}, step {step}: expected a picture of 8 bits for a video, found {picture.dtype}.",
                    hint="Leave it as images: images={...: 'bytes'} for the other columns, or without=.",
                )
            yield picture

    def stored(self) -> FeatureSteps:
        """The bytes as they are, in cells as LeRobot's recorder writes them."""
        held = [self.data(step) for step in range(len(self))]
        names = [f"frame-{step:06d}.{_suffix(data)}" for step, data in enumerate(held)]
        parts = [pa.array(held, pa.binary()), pa.array(names, pa.string())]
        return FeatureSteps(cells=pa.StructArray.from_arrays(parts, fields=list(PICTURE)))

    def counted(self, which: str, /) -> tuple[PictureCounts | None, list[int]]:
        """Their pixels counted, and the shape of one.

        Args:
            which: `sampled`, `all` or `none`.
        """
        numbers = range(len(self)) if which == "all" else looked_at(len(self)).tolist()
        numbers = numbers[:1] if which == "none" else numbers
        counts, shape = PictureCounts(), list[int]()
        for picture in self.decoded(numbers):
            shape = list(picture.shape)
            try:
                counts.add(picture[None])
            except ValueError as error:
                raise ValidationError(
                    f"{self._where}: {error} cannot be counted.", hint="picture_statistics='none'."
                ) from error
        if counts.values is not None and self._kind.is_depth:
            counts.metres = depth_levels(self._kind, counts.values.shape[1])
        return (None if which == "none" else counts), shape


def _suffix(data: bytes) -> str:
    kind = format_of(data[:64])
    return {"jpeg": "jpg", None: "png"}.get(kind, str(kind))
