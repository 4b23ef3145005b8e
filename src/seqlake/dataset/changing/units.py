"""Numbers in another unit: values and the column's `units` change in one commit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from seqlake.arguments import NUMBER, TEXT, TEXT_OR_TEXTS, takes
from seqlake.dataset.changing.evolving import replayed
from seqlake.dataset.changing.rewriting import write_anew
from seqlake.dataset.writing.staging import ShardShape, Staging
from seqlake.errors import SchemaMismatchError
from seqlake.shards.cells import revalued
from seqlake.spec.column_types import ColumnType
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.writing.staging import OpenDataset
    from seqlake.protocols import Version
    from seqlake.spec.schema import Column

    Units = str | Sequence[str]

_DEGREE, _MILE, _POUND, _GRAVITY = np.pi / 180, 1609.344, 0.45359237, 9.80665
_SCALES: dict[str, dict[str, float]] = {
    "angle": {"rad": 1, "mrad": 1e-3, "deg": _DEGREE, "turn": 2 * np.pi},
    "length": {"m": 1, "mm": 1e-3, "cm": 1e-2, "um": 1e-6, "km": 1e3, "in": 0.0254, "ft": 0.3048, "mi": _MILE},
    "time": {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60, "h": 3600},
    "speed": {"m/s": 1, "mm/s": 1e-3, "cm/s": 1e-2, "km/h": 1 / 3.6, "mph": _MILE / 3600},
    "angular speed": {"rad/s": 1, "deg/s": _DEGREE, "rpm": 2 * np.pi / 60},
    "acceleration": {"m/s^2": 1, "mm/s^2": 1e-3, "g0": _GRAVITY},
    "mass": {"kg": 1, "g": 1e-3, "mg": 1e-6, "lb": _POUND},
    "force": {"N": 1, "mN": 1e-3, "kN": 1e3, "kgf": _GRAVITY, "lbf": _POUND * _GRAVITY},
    "torque": {"Nm": 1, "mNm": 1e-3, "kNm": 1e3},
    "pressure": {"Pa": 1, "kPa": 1e3, "MPa": 1e6, "bar": 1e5, "psi": _POUND * _GRAVITY / 0.0254**2},
    "voltage": {"V": 1, "mV": 1e-3},
    "current": {"A": 1, "mA": 1e-3},
    "power": {"W": 1, "mW": 1e-3, "kW": 1e3},
    "frequency": {"Hz": 1, "kHz": 1e3, "MHz": 1e6},
}
_SPELLINGS = {
    **dict.fromkeys(("radian", "radians"), "rad"),
    **dict.fromkeys(("degree", "degrees", "°"), "deg"),
    **dict.fromkeys(("meter", "meters", "metre", "metres"), "m"),
    **dict.fromkeys(("second", "seconds", "sec"), "s"),
    **dict.fromkeys(("N*m", "N·m", "N m"), "Nm"),
    **dict.fromkeys(("m/s2", "m/s²", "m/s**2"), "m/s^2"),
    "µm": "um",
    "μm": "um",
    "µs": "us",
    "μs": "us",
    "°C": "degC",
    "°F": "degF",
}
_TEMPERATURES = {"K": (1.0, 0.0), "degC": (1.0, 273.15), "degF": (5 / 9, 459.67 * 5 / 9)}


class _Linear(NamedTuple):
    """What a number is multiplied by, and what is added then."""

    factor: float
    offset: float = 0.0


@takes(name=TEXT, units=TEXT_OR_TEXTS, factor=NUMBER.or_none(), offset=NUMBER)
def convert_units(
    dataset: OpenDataset, name: str, units: Units, /, *, factor: float | None = None, offset: float = 0.0
) -> Version:
    """Numbers in another unit; what `Dataset.convert_units` does."""

    def change() -> Version:
        schema = dataset.schema
        column = schema[name]
        if name in schema.stamp_columns:
            raise SchemaMismatchError(
                f"{name!r} holds the time stamps of other columns, whose unit the format sets: seconds as floats."
            )
        changed = _declared(column, units)
        ways = _ways(column, units, factor, offset)
        if all(way == _Linear(1.0) for way in ways) and changed == column:
            return dataset.version
        new = schema.with_columns({name: changed})
        staging = Staging(dataset.table, new, shape=ShardShape())
        try:
            staging.begin(dataset.version)
            shards = dataset.source.shards()
            for shard in shards:
                write_anew(staging, shard, new, schema.names, turned={name: lambda cells: _turned(cells, ways, name)})
        except BaseException:
            staging.discard()
            raise
        return staging.commit("evolve", remove=[shard.key for shard in shards], schema=new)

    return replayed(dataset, change)


def turn_of(unit: object, /) -> float:
    """A whole turn in a unit of angles; in radians where it is no unit of angles.

    Example:
        >>> turn_of("degrees"), turn_of("turn")
        (360.0, 1.0)
    """
    scale = _SCALES["angle"].get(_SPELLINGS.get(unit, unit), 1.0) if isinstance(unit, str) else 1.0
    return float(2 * np.pi / scale)


def _declared(column: Column, units: Units) -> Column:
    if not pa.types.is_floating(column.value_type or column.arrow) or column.raw:
        what = "raw cells" if column.raw else str(column.arrow)
        raise SchemaMismatchError(
            f"{column.name!r}: expected floating-point numbers to convert, found {what}.",
            hint="Widen whole numbers first, as in ds.widen_column(name, pa.float64())." if not column.raw else None,
        )
    plain = "scalar" if column.category == "scalar" else "trajectory"
    fields = {"type": plain} if column.type is None else column.type.to_json()
    written = units if isinstance(units, str) else list(units)
    return replace(column, type=ColumnType.from_json({**fields, "units": written}))


def _ways(column: Column, units: Units, factor: float | None, offset: float) -> list[_Linear]:
    """One way for all numbers, or one for each dimension."""
    if factor is not None:
        if not np.isfinite(factor) or factor == 0 or not np.isfinite(offset):
            raise ValueError(f"factor and offset are finite, and factor is not 0; found {factor} and {offset}.")
        return [_Linear(float(factor), float(offset))]
    if offset:
        raise ValueError("offset goes with a factor.")
    before = column.type.get("units") if column.type is not None else None
    if before is None:
        example = "sl.ColumnType('scalar', " if column.category == "scalar" else "sl.Trajectory("
        raise SchemaMismatchError(
            f"{column.name!r} does not say its units.",
            hint=f"Declare them, as in ds.set_type({column.name!r}, {example}units='m')), or give factor=.",
        )
    if isinstance(before, str) and isinstance(units, str):
        return [_way(before, units)]
    dims = column.dim
    sides = [[one] * (dims or 0) if isinstance(one, str) else list(one) for one in (before, units)]
    if dims is None or any(len(side) != dims for side in sides):
        raise SchemaMismatchError(
            f"{column.name!r}: expected one unit, or one for each of {dims or 'its'} dimensions; "
            f"found {before!r} and {units!r}."
        )
    return [_way(str(one), str(other)) for one, other in zip(*sides, strict=True)]


def _way(before: str, after: str) -> _Linear:
    one, other = (_SPELLINGS.get(unit, unit) for unit in (before, after))
    if one == other:
        return _Linear(1.0)
    if one in _TEMPERATURES and other in _TEMPERATURES:
        (factor, offset), (scale, base) = _TEMPERATURES[one], _TEMPERATURES[other]
        return _Linear(factor / scale, (offset - base) / scale)
    for scales in _SCALES.values():
        if one in scales and other in scales:
            return _Linear(scales[one] / scales[other])
    known = next((scales for scales in _SCALES.values() if one in scales or other in scales), None)
    alike = f"; {one if one in (known or ()) else other} goes with {', '.join(known)}" if known else ""
    raise SchemaMismatchError(
        f"No way is known from {before!r} to {after!r}{alike}.", hint="Give it: factor=, and offset= if zero moves."
    )


def _turned(cells: pa.Array, ways: list[_Linear], name: str) -> pa.Array:
    """The same cells of other numbers, computed in double precision."""
    values = cells
    while is_list(values.type):
        values = values.flatten()
    numbers: NDArray[Any] = np.asarray(values.fill_null(np.nan)).astype(np.float64).reshape(-1, len(ways))
    factors, offsets = (np.array(one) for one in zip(*ways, strict=True))
    with np.errstate(over="ignore", invalid="ignore"):  # infinite ones stay so
        turned = numbers * factors + offsets
    out = pa.array(turned.reshape(-1), pa.float64(), mask=np.asarray(values.is_null())).cast(values.type, safe=False)
    lost = np.isfinite(numbers).reshape(-1) & ~np.isfinite(np.asarray(out.fill_null(0)))
    if lost.any():
        raise SchemaMismatchError(
            f"{name!r}: {numbers.reshape(-1)[lost][0]:.6g} would be more than {values.type} can hold.",
            hint=f"Widen the column first, as in ds.widen_column({name!r}, pa.float64()).",
        )
    return revalued(cells, out)
