"""Contact sheets: some frames of each camera with their times, and the signals below, as one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.canvas import GREY, LINE, RED, Canvas, width_of
from seqlake.dataset.drawing.plots import Panel
from seqlake.dataset.drawing.strips import READ_ERRORS, Strip, is_pictures, rate_of, strip
from seqlake.spec.stamps import origin_of
from seqlake.windows.timestamps import Stamps, origin_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.reading.views import Row
    from seqlake.spec.schema import Column

_CURVES = 16  # lines of one plot
_SAMPLES = 1 << 20  # of a sound, shown by its first so many


def panel_of(view: Row, name: str, /, *, width: int, height: int) -> Panel | None:
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


def _seconds(view: Row, column: Column, cell: Any, count: int) -> NDArray[np.float64] | None:
    """[T] seconds after the start; None where nothing says them."""
    if is_sound(column):
        return np.arange(count, dtype=np.float64) * float(cell.time_base)
    stamps = column.type.get("timestamps") if column.type is not None else None
    if isinstance(stamps, str):
        times = view.get(stamps)
        if times is None or len(times) != count:
            return None
        stamps_ns = Stamps.of(np.asarray(times), column=stamps).times
        seconds: NDArray[np.float64] = (stamps_ns - origin_at(origin_of(view.schema, column.name), view.get)) / 1e9
        return seconds
    rate = rate_of(view.schema, column.name)
    return None if rate is None else np.arange(count, dtype=np.float64) / float(rate)


_MARGIN, _GAP = 16, 4
_PLOT = 190  # pixels of one plot's height
_FACT = 60  # characters of one value


def contact_sheet(view: Row, /, *, frames: int = 8, width: int = 1280) -> NDArray[np.uint8]:
    """One sequence as one picture: evenly spaced frames of each camera with their times, then its signals.

    What cannot be read is said in its place.

    Args:
        view: The sequence.
        frames: How many of each camera.
        width: Pixels of the picture.

    Returns:
        uint8 [H, W, 3].

    Example:
        ```python
        save(contact_sheet(ds.sequence("ep_001")), Path("ep_001.png"))
        ```
    """
    schema = view.schema
    most = (width - 2 * _MARGIN - (frames - 1) * _GAP) // frames
    strips = [strip(view, name, count=frames, box=(most, most)) for name in schema if is_pictures(schema[name])]
    panels = [panel for name in schema if (panel := panel_of(view, name, width=width, height=_PLOT)) is not None]
    facts = [_fact(view, name) for name in schema if schema[name].category == "scalar" and name != schema.id]
    return sheet(view.id, strips, panels, facts=facts, width=width)


def sheet(
    title: str,
    strips: Sequence[Strip],
    panels: Sequence[Panel] = (),
    /,
    *,
    facts: Sequence[str] = (),
    width: int = 1280,
) -> NDArray[np.uint8]:
    """Lay out strips of pictures and plots, from top to bottom.

    Args:
        title: Stands at the top.
        strips: One row each; pictures that are too wide for `width` together are left out at the right.
        panels: One below the other, at their own width.
        facts: Short texts between the title and the pictures.
        width: Pixels.

    Returns:
        uint8 [H, W, 3].
    """
    line, lines = 2 * LINE + 2, _wrapped(facts, width - 2 * _MARGIN)
    rows = [max((len(one) for one in strip.pictures), default=0) for strip in strips]
    height = 2 * _MARGIN + line + line * len(lines) + 8
    height += sum(line + row + (line if row else 0) + 10 for row in rows) + sum(panel.height for panel in panels)
    canvas = Canvas(width, height)
    canvas.text(_MARGIN, _MARGIN, title, scale=2)
    y = _MARGIN + line
    for text in lines:
        canvas.text(_MARGIN, y, text, color=GREY, scale=2)
        y += line
    y += 8
    for one, row in zip(strips, rows, strict=True):
        x = canvas.text(_MARGIN, y, one.name, scale=2)
        canvas.text(x + 12, y, one.note, color=GREY if row else RED, scale=2)
        x, y = _MARGIN, y + line
        for number, picture in enumerate(one.pictures):
            canvas.paste(picture, x, y)
            if number < len(one.labels):
                canvas.text(x, y + row + 3, one.labels[number], color=GREY, scale=2)
            x += picture.shape[1] + _GAP
        y += row + (line if row else 0) + 10
    for panel in panels:
        panel.draw(canvas, 0, y)
        y += panel.height
    return canvas.pixels


def _fact(view: Row, name: str) -> str:
    try:
        value = view[name]
    except READ_ERRORS as error:
        value = f"unreadable: {error}"
    text = " ".join(f"{value:.6g}".split() if isinstance(value, float) else str(value).split())
    return f"{name} {text if len(text) <= _FACT else text[: _FACT - 3] + '...'}"


def _wrapped(facts: Iterable[str], room: int) -> list[str]:
    """Facts side by side, in as many lines as they need."""
    lines: list[str] = []
    for fact in facts:
        longer = f"{lines[-1]}   {fact}" if lines else fact
        if lines and width_of(longer, scale=2) <= room:
            lines[-1] = longer
        else:
            lines.append(fact)
    return lines
