"""The steps of a signal, or the samples of a sound, as a plot over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.plots import Panel
from seqlake.dataset.drawing.strips import READ_ERRORS, rate_of
from seqlake.spec.stamps import origin_of
from seqlake.windows.timestamps import Stamps, origin_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.dataset.reading.sequence import SequenceView
    from seqlake.spec.schema import Column

_CURVES = 16  # lines of one plot
_SAMPLES = 1 << 20  # of a sound, shown by its first so many


def panel_of(view: SequenceView, name: str, /, *, width: int, height: int) -> Panel | None:
    """The plot of one column: a signal, or a sound; None for other columns and for cells without steps.

    Args:
        view: The sequence.
        name: The column.
        width: Pixels.
        height: Pixels.
    """
    column = view.schema[name]
    if column.category != "temporal" and not is_sound(column):
        return None
    try:
        cell: Any = view[name]
        if cell is None or not len(cell):
            return None
        steps = cell[:_SAMPLES] if is_sound(column) else np.asarray(cell)
        seconds = _seconds(view, column, cell, len(steps))
    except READ_ERRORS as error:
        return Panel(title=f"{name}: {str(error).partition(chr(10))[0]}", curves=[], width=width, height=height)
    curves = steps.reshape(len(steps), -1).astype(np.float64)
    x = np.arange(len(steps)) if seconds is None else seconds
    unit = column.type.get("units") if column.type is not None else None
    title = name if unit is None else f"{name} ({unit})"
    if curves.shape[1] > _CURVES:
        title += f", the first {_CURVES} of {curves.shape[1]}"
    names = dimension_names(column, curves.shape[1])[:_CURVES]
    return Panel(
        title=title,
        curves=[(label, np.stack([x, curves[:, number]], -1)) for number, label in enumerate(names)],
        unit="steps" if seconds is None else "s",
        width=width,
        height=height,
    )


def is_sound(column: Column, /) -> bool:
    """Whether a column holds sounds."""
    return column.category == "file" and column.type is not None and column.type.type == "audio"


def dimension_names(column: Column, count: int, /) -> list[str]:
    """What each dimension is called: as `names` of the column's type says, else by its number.

    Example:
        >>> dimension_names(Schema({"action": Trajectory(dim=2)})["action"], 2)
        ['action[0]', 'action[1]']
    """
    declared = column.type.get("names") if column.type is not None else None
    if isinstance(declared, list) and len(declared) == count:
        return [str(one) for one in declared]
    return [f"{column.name}[{number}]" for number in range(count)]


def _seconds(view: SequenceView, column: Column, cell: Any, count: int) -> NDArray[np.float64] | None:
    """[T] seconds after the start; None where nothing says them."""
    if is_sound(column):
        return np.arange(count, dtype=np.float64) * float(cell.time_base)
    stamps = column.type.get("timestamps") if column.type is not None else None
    if isinstance(stamps, str):
        times = view.get(stamps)
        if times is None or len(times) != count:
            return None
        stamps_ns = Stamps.of(np.asarray(times), column=stamps).own
        seconds: NDArray[np.float64] = (stamps_ns - origin_at(origin_of(view.schema, column.name), view.get)) / 1e9
        return seconds
    rate = rate_of(view.schema, column.name)
    return None if rate is None else np.arange(count, dtype=np.float64) / float(rate)
