"""What the codes of a depth map mean, from the fields of its column: metres for one code, or a quantised range.

The fields and the arithmetic of quantised depth are LeRobot's, whose spelling with `video.` before a name is read too.
"""

from __future__ import annotations

from math import exp, isfinite, log
from typing import TYPE_CHECKING, Any, NamedTuple

from seqlake.errors import InvalidMetadataError

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6}
"""Metres of one."""

_SPELT = {"pixel_format": ("pix_fmt",), "units": ("depth_unit",)}
_NEAREST, _SHIFT = 0.01, 3.5  # metres: what LeRobot takes where a range does not say them


class Measure(NamedTuple):
    """How codes become metres; by `scale` alone, or over the range from `nearest` to `farthest`.

    Attributes:
        scale: Metres of one code; None where depth is quantised.
        unit: Metres of one, for depth that is given in whole numbers.
        nearest: Metres of code 0.
        farthest: Metres of the largest code.
        shift: Metres added before the logarithm; None for equal steps.
        invalid: The code that stands for no measurement, handed out as 0 m; None where every code is one.
    """

    scale: float | None
    unit: float
    nearest: float = 0.0
    farthest: float = 0.0
    shift: float | None = None
    invalid: int | None = None

    def metres(self, code: int, largest: int, /) -> float:
        """What a code stands for, `largest` being the largest there is.

        Example:
            >>> Measure(scale=0.001, unit=0.001).metres(1500, 65535)
            1.5
        """
        if code == self.invalid:
            return 0.0
        if self.scale is not None:
            return code * self.scale
        low, high = (self._bent(end) for end in (self.nearest, self.farthest))
        place = low + code * (high - low) / largest
        metres = place if self.shift is None else exp(place) - self.shift
        return min(max(metres, self.nearest), self.farthest)

    def _bent(self, metres: float) -> float:
        return metres if self.shift is None else log(metres + self.shift)


def field_of(fields: Mapping[str, Any], name: str, /) -> Any:
    """A field by its name, or by the names that LeRobot has for it; None where there is none."""
    for one in (name, *_SPELT.get(name, ())):
        for spelt in (one, f"video.{one}"):
            if fields.get(spelt) is not None:
                return fields[spelt]
    return None


def is_depth(fields: Mapping[str, Any], /) -> bool:
    """Whether a column of pictures declares that they are depth maps."""
    return field_of(fields, "is_depth_map") is True


def measure_of(fields: Mapping[str, Any], /) -> Measure | None:
    """What the codes of a column mean; None where its fields do not say that, and where they are no depth.

    Raises:
        InvalidMetadataError: The fields contradict themselves.

    Example:
        >>> measure_of({"is_depth_map": True, "units": "mm", "invalid": 0}).metres(2000, 65535)
        2.0
    """
    if not is_depth(fields):
        return None
    units = field_of(fields, "units")
    if units is not None and units not in UNITS:
        raise _wrong("units", f"one of {', '.join(UNITS)}", units)
    invalid = fields.get("invalid")
    if invalid is not None and (type(invalid) is not int or not 0 <= invalid < 1 << 16):
        raise _wrong("invalid", "a code, 0 to 65535", invalid)
    unit = UNITS["mm" if units is None else units]
    if field_of(fields, "depth_max") is not None:
        return _range_of(fields, unit, invalid)
    scale = _number(fields, "depth_scale", None)
    if scale is None and units is None:
        return None
    if scale is not None and scale <= 0:
        raise _wrong("depth_scale", "metres of one code, more than 0", scale)
    return Measure(scale=unit if scale is None else scale, unit=unit if scale is None else scale, invalid=invalid)


def _range_of(fields: Mapping[str, Any], unit: float, invalid: int | None) -> Measure:
    low, high = _number(fields, "depth_min", _NEAREST), _number(fields, "depth_max", None)
    shift, bent = _number(fields, "shift", _SHIFT), field_of(fields, "use_log")
    assert low is not None
    assert high is not None
    assert shift is not None
    if bent not in {None, True, False}:
        raise _wrong("use_log", "true or false", bent)
    if fields.get("depth_scale") is not None:
        raise _wrong("depth_scale", "none beside depth_max, which quantises", fields["depth_scale"])
    if not 0 <= low < high:
        raise _wrong("depth_min", f"metres from 0 to less than depth_max, {high}", low)
    if bent is not False and low + shift <= 0:
        raise _wrong("shift", f"metres, with depth_min ({low}) more than 0", shift)
    return Measure(
        scale=None, unit=unit, nearest=low, farthest=high, shift=None if bent is False else shift, invalid=invalid
    )


def _number(fields: Mapping[str, Any], name: str, default: float | None) -> float | None:
    value = field_of(fields, name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise _wrong(name, "a number", value)
    return float(value)


def _wrong(name: str, expected: str, value: object) -> InvalidMetadataError:
    return InvalidMetadataError(f"Depth: {name}: expected {expected}, found {value!r}. Mend the column's type.")
