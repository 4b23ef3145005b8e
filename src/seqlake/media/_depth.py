"""Depth maps between the codes that files hold and metres; see `spec.depth` for what says which are which."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import ability
from seqlake.errors import DecodeError, SchemaMismatchError, ValidationError
from seqlake.media._frames import nearest, room_for
from seqlake.media.video.codes import pixels_of
from seqlake.media.video.opening import VideoDecoder
from seqlake.spec.depth import Measure, measure_of

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints
    from seqlake.spec.column_types import ColumnType


@lru_cache(maxsize=32)
def metres_of(measure: Measure, largest: int, /) -> NDArray[np.float32]:
    """[largest + 1] float32: what each code stands for."""
    codes = np.arange(largest + 1, dtype=np.float64)
    if measure.scale is not None:
        metres = codes * measure.scale
    else:
        low, high = (_bent(measure, np.float64(end)) for end in (measure.nearest, measure.farthest))
        metres = low + codes * ((high - low) / largest)
        if measure.shift is not None:
            metres = np.exp(metres) - measure.shift
        metres = metres.clip(measure.nearest, measure.farthest)
    if measure.invalid is not None and measure.invalid <= largest:
        metres[measure.invalid] = 0
    table = metres.astype(np.float32)
    table.flags.writeable = False
    return table


def depth_levels(kind: ColumnType, levels: int, /) -> NDArray[np.float64] | None:
    """[levels] the metres of each code of a column; None where its pictures are no depth, or nobody says which.

    Args:
        kind: The column's type.
        levels: How many codes are counted; those that its pixels do not have stand for what the largest does.
    """
    measure = measure_of(kind.fields)
    if measure is None:
        return None
    bits = levels.bit_length() - 1
    if kind.type == "video" and kind.pixel_format is not None:
        bits = pixels_of(kind.pixel_format).bits
    table = metres_of(measure, (1 << bits) - 1).astype(np.float64)
    return np.concatenate([table, np.full(max(0, levels - len(table)), table[-1])])[:levels]


def codes_of(depth: NDArray[Any], measure: Measure, largest: int, /, *, where: str = "") -> NDArray[np.uint16]:
    """Depth as the codes that are stored: those of `measure`, the nearest ones.

    Args:
        depth: Floats are metres. Whole numbers count the column's `units`, and where depth is not quantised they are
            the codes themselves.
        measure: What codes mean.
        largest: The largest code.
        where: Sequence and column, for messages.

    Returns:
        uint16, of the same shape. Depth that is not finite, or not more than 0, is no measurement and becomes the
        code for that, or the smallest where there is none; quantised depth beyond the range becomes its end.

    Raises:
        ValidationError: Depth that is not quantised has no such code.
    """
    if depth.dtype.kind in "ui" and measure.scale is not None:
        return _checked(depth, largest, measure, where)
    metres = depth.astype(np.float64) * (1.0 if depth.dtype.kind == "f" else measure.unit)
    there = np.isfinite(metres) & (metres > 0)
    with np.errstate(all="ignore"):
        places = _places(np.where(there, metres, measure.nearest), measure, largest)
    codes = np.rint(places)
    if measure.scale is not None:
        _checked(codes, largest, measure, where)
    else:
        least = 1 if measure.invalid == 0 else 0
        codes = codes.clip(least, largest - (measure.invalid == largest))
    out: NDArray[np.uint16] = np.where(there, codes, measure.invalid or 0).astype(np.uint16)
    return out


def _places(metres: NDArray[np.float64], measure: Measure, largest: int) -> Any:
    if measure.scale is not None:
        return metres / measure.scale
    low, high = (_bent(measure, np.float64(end)) for end in (measure.nearest, measure.farthest))
    return (_bent(measure, metres.clip(measure.nearest, measure.farthest)) - low) * (largest / (high - low))


def _bent(measure: Measure, metres: Any) -> Any:
    return metres if measure.shift is None else np.log(metres + measure.shift)


def _checked(codes: NDArray[Any], largest: int, measure: Measure, where: str) -> NDArray[np.uint16]:
    assert measure.scale is not None
    low, high = (codes.min(), codes.max()) if codes.size else (0, 0)
    if low < 0 or high > largest:
        at = f"{where}: " if where else ""
        far = high if high > largest else low
        raise ValidationError(
            f"{at}expected depth of 0 to {largest * measure.scale:g} m, which {largest + 1} codes of "
            f"{measure.scale:g} m hold; found {float(far) * measure.scale:g} m.",
            hint="Take larger units, quantise with sl.Depth(depth_max=...), or set what is no measurement to 0.",
        )
    return codes.astype(np.uint16)


def depth_picture(picture: NDArray[Any], kind: ColumnType, largest: int, /, *, where: str = "") -> NDArray[Any]:
    """One depth map as the codes [H, W] that a column stores.

    Args:
        picture: [H, W] or [H, W, 1] of whole numbers or floats.
        kind: The column's type.
        largest: The largest code that its pixels hold.
        where: Sequence and column, for messages.

    Raises:
        SchemaMismatchError: Another shape or type.
        ValidationError: Depth that has no code.
    """
    flat = picture[..., 0] if picture.ndim == 3 and picture.shape[-1] == 1 else picture
    if flat.ndim != 2 or flat.dtype.kind not in "uif" or 0 in flat.shape:
        at = f"{where}: " if where else ""
        raise SchemaMismatchError(
            f"{at}expected depth as [H, W], of whole numbers or of floats in metres; "
            f"found {picture.dtype} {list(picture.shape)}."
        )
    measure = measure_of(kind.fields)
    if measure is None:
        if flat.dtype.kind == "f":
            raise SchemaMismatchError(
                f"{where}: expected codes as whole numbers, found {flat.dtype}: nothing says what a code stands for.",
                hint='Declare units="mm", depth_scale or depth_max.',
            )
        measure = Measure(scale=1.0, unit=1.0)
    return codes_of(flat, measure, largest, where=where)


class MeasuredDecoder:
    """A decoder of depth maps that hands out metres: float32 [N, height, width, 1], 0 where nothing was measured.

    Where the column does not say what codes mean they are handed out as they are. Scaling takes the nearest pixel,
    since a mean of what is near and what is far, or of no measurement, is a depth that nothing has.

    Args:
        decoder: Hands out codes, uint8 or uint16 with one channel, or measurements that are floats.
        column: The column's type.
    """

    def __init__(self, decoder: Decoder, column: ColumnType, /) -> None:
        self._decoder = decoder
        self._measure = measure_of(column.fields)
        self._scales = column.type == "video"
        self._pixels = column.pixel_format or ""

    def __len__(self) -> int:
        return len(self._decoder)

    @property
    def pts(self) -> Ints:
        """[frames] when each is shown."""
        return self._decoder.pts

    @property
    def time_base(self) -> Fraction:
        """Seconds of one tick."""
        return self._decoder.time_base

    def ability(self, kind: type[Any], /) -> Any:
        """Itself, or what it decodes with: where decoding may begin is for that to say."""
        return self if isinstance(self, kind) else ability(self._decoder, kind)

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Depth in metres.

        Args:
            indices: [N] frame numbers, in any order, repeats allowed.
            size: Height and width to scale to: of each new pixel the nearest.
            out: [N, height, width, 1] float32 to write into.
        """
        codes = self._codes(np.asarray(indices, np.int64), size)
        values = codes if self._measure is None else self._metres(codes, self._measure)
        if out is None:
            return values
        out = room_for(out, values.shape, values.dtype)
        out[:] = values
        return out

    def close(self) -> None:
        """Let go of the decoder."""
        self._decoder.close()

    def _codes(self, indices: Ints, size: tuple[int, int] | None) -> NDArray[Any]:
        if size is None or self._scales:
            return _grey(self._decoder.read(indices, size=size))
        one_by_one = [nearest(_grey(self._decoder.read(indices[k : k + 1])), size) for k in range(len(indices))]
        if one_by_one:
            return np.concatenate(one_by_one)
        none = _grey(self._decoder.read(indices))
        return np.empty((0, *size, 1), none.dtype)

    def _metres(self, codes: NDArray[Any], measure: Measure) -> NDArray[np.float32]:
        if codes.dtype.kind == "f":  # measurements themselves, no codes of a table
            measured = codes * (1.0 if measure.scale is None else measure.scale)
            unknown = (
                ~np.isfinite(measured)
                if measure.invalid is None
                else ~np.isfinite(measured) | (codes == measure.invalid)
            )
            return np.where(unknown, 0, measured).astype(np.float32)
        bits = self._bits(codes)
        metres: NDArray[np.float32] = np.take(metres_of(measure, (1 << bits) - 1), codes, mode="clip")
        return metres

    def _bits(self, codes: NDArray[Any]) -> int:
        return self._decoder.bits if isinstance(self._decoder, VideoDecoder) else 8 * codes.dtype.itemsize


def _grey(pictures: NDArray[Any]) -> NDArray[Any]:
    """[N, h, w, 1] of pictures that may be grey, shown in three equal channels.

    Raises:
        DecodeError: They have colours.
    """
    if pictures.shape[-1] > 1 and not (pictures == pictures[..., :1]).all():
        raise DecodeError("Expected a depth map, grey of 8 or 16 bits; found colours. Declare the column as images.")
    return pictures[..., :1]
