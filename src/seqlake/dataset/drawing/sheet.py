"""Contact sheets: some frames of each camera with their times, and the signals below, as one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.dataset.drawing.canvas import GREY, RED, Canvas, line_height, shortened
from seqlake.dataset.drawing.clouds import has_points
from seqlake.dataset.drawing.plots import Panel, wrapped
from seqlake.dataset.drawing.strips import READ_ERRORS, Strip, is_drawn, rate_of, strip
from seqlake.protocols import Readable
from seqlake.spec.stamps import origin_of
from seqlake.windows.timestamps import Stamps, origin_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.reading.views import Row, SelectedRows
    from seqlake.spec.schema import Column

_CURVES = 16  # lines of one plot
_SAMPLES = 1 << 20  # of a sound, shown by its first so many


def panel_of(view: Row, name: str, /, *, width: int, height: int = 0) -> Panel | None:
    """The plot of one column: a signal, or a sound; None for other columns and for cells without steps.

    Dimensions that never change are named in the note with their value, and not drawn.

    Args:
        view: The sequence.
        name: The column.
        width: Pixels.
        height: Pixels; by default what its curves need.
    """
    column = view.schema[name]
    if (column.category != "temporal" or has_points(column)) and not is_sound(column):
        return None
    try:
        cell: Any = view[name]
        if cell is None or not len(cell):
            return None
        steps = cell[:_SAMPLES] if is_sound(column) else np.asarray(cell)
        seconds = _seconds(view, column, cell, len(steps))
        values = steps.reshape(len(steps), -1).astype(np.float64)
    except READ_ERRORS as error:
        return Panel(title=name, note=str(error).partition("\n")[0], curves=[], width=width, height=height)
    x = np.arange(len(steps)) if seconds is None else seconds
    names = dimension_names(column, values.shape[1])
    changing, constant = _split_constant(names, values)
    unit = _unit(column)
    notes = [f"{'constant' if len(values) > 1 else 'one step'}: {', '.join(constant)}"] if constant else []
    if len(changing) > _CURVES:
        notes.insert(0, f"the first {_CURVES} of {len(changing)} dimensions")
    return Panel(
        title=name if unit is None else f"{name} ({unit})",
        curves=[(names[number], np.stack([x, values[:, number]], -1)) for number in changing[:_CURVES]],
        unit="steps" if seconds is None else "s",
        note="; ".join(notes),
        width=width,
        height=height,
    )


def _unit(column: Column) -> str | None:
    """The one unit of all dimensions, as far as they have any; None where they differ."""
    declared = column.type.get("units") if column.type is not None else None
    units = {str(one) for one in (declared if isinstance(declared, list) else [declared]) if one}
    return units.pop() if len(units) == 1 else None


def _split_constant(names: Sequence[str], values: NDArray[np.float64]) -> tuple[list[int], list[str]]:
    """Which dimensions change; and of the others name and value, the first few."""
    same = ((values == values[0]) | (np.isnan(values) & np.isnan(values[0]))).all(0)
    flat = [f"{names[number]} {values[0, number]:.6g}" for number in np.flatnonzero(same).tolist()]
    more = [f"and {len(flat) - _CURVES} more"] if len(flat) > _CURVES else []
    changing: list[int] = np.flatnonzero(~same).tolist()
    return changing, flat[:_CURVES] + more


def is_sound(column: Column, /) -> bool:
    """Whether a column holds sounds."""
    return column.medium == "audio"


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
    stamps = column.timestamps
    if stamps is not None:
        times = view.get(stamps)
        if times is None or len(times) != count:
            return None
        stamps_ns = Stamps.of(np.asarray(times), column=stamps).times
        seconds: NDArray[np.float64] = (stamps_ns - origin_at(origin_of(view.schema, column.name), view.get)) / 1e9
        return seconds
    rate = rate_of(view.schema, column.name)
    return None if rate is None else np.arange(count, dtype=np.float64) / float(rate)


_MARGIN, _GAP = 16, 6
_TITLE, _NAME, _NOTE, _LABEL = 20, 13, 12, 11  # sizes of text
_TALLEST = 320  # pixels that a picture is scaled up to
_FACT = 60  # characters of one value
_IDS, _SPARK = 220, 360  # pixels of a sequence's facts and of its curves in a sheet of many
_SPARKS = 3  # signals whose curves are there
_ROW = 104  # pixels of a sequence's height there


def contact_sheet(
    what: Row | SelectedRows, /, *, frames: int | None = None, width: int = 1280, rows: int = 24
) -> NDArray[np.uint8]:
    """One sequence as one picture, or many in rows: evenly spaced frames of each camera, and the signals.

    What cannot be read is said in its place.

    Args:
        what: A sequence, or a dataset or selection of which the first `rows` are shown, one in a row.
        frames: How many of each camera; by default 8, and 4 where many sequences are shown.
        width: Pixels of the picture.
        rows: How many sequences of a selection.

    Returns:
        uint8 [H, W, 3].

    Example:
        ```python
        save(contact_sheet(ds.sequence("ep_001")), Path("ep_001.png"))
        save(contact_sheet(ds.where("split = 'val'"), rows=50), Path("val.png"))
        ```
    """
    if isinstance(what, Readable):
        return _many(what, frames=4 if frames is None else frames, width=width, rows=rows)
    count = 8 if frames is None else frames
    schema = what.schema
    most = (width - 2 * _MARGIN - max(0, count - 1) * _GAP) // max(1, count)
    strips = [
        strip(what, name, count=count, box=(most, min(most, _TALLEST)), enlarge=True)
        for name in schema
        if count and is_drawn(schema[name])
    ]
    panels = [panel for name in schema if (panel := panel_of(what, name, width=width)) is not None]
    facts = [_fact(what, name) for name in schema if schema[name].category == "scalar" and name != schema.id]
    return sheet(what.id, strips, panels, facts=facts, width=width)


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
    lines = wrapped(facts, width - 2 * _MARGIN, size=_NOTE, between="    ")
    rows = [max((len(one) for one in strip.pictures), default=0) for strip in strips]
    height = 2 * _MARGIN + line_height(_TITLE) + line_height(_NOTE) * len(lines) + 8
    height += sum(line_height(_NAME) + 4 + row + (line_height(_LABEL) if row else 0) + 10 for row in rows)
    canvas = Canvas(width, height + sum(panel.height or panel.needed for panel in panels))
    canvas.text(_MARGIN, _MARGIN - 4, title, size=_TITLE, bold=True)
    y = _MARGIN + line_height(_TITLE)
    for text in lines:
        canvas.text(_MARGIN, y, text, color=GREY, size=_NOTE)
        y += line_height(_NOTE)
    y += 8
    for one, row in zip(strips, rows, strict=True):
        x = canvas.text(_MARGIN, y, one.name, size=_NAME, bold=True)
        canvas.text(x + 10, y + 1, one.note, color=GREY if row else RED, size=_NOTE)
        canvas.fill(_MARGIN - 8, y, 0 if row else 3, line_height(_NAME), color=RED)
        y += line_height(_NAME) + 4
        _film(canvas, one, _MARGIN, y, row)
        y += row + (line_height(_LABEL) if row else 0) + 10
    for panel in panels:
        panel.draw(canvas, 0, y)
        y += panel.height or panel.needed
    return canvas.pixels


def _film(canvas: Canvas, one: Strip, x: int, y: int, height: int) -> None:
    """Pictures side by side; of labels that would run into each other every second is left out."""
    free = x
    for number, picture in enumerate(one.pictures):
        canvas.paste(picture, x, y)
        label = one.labels[number] if number < len(one.labels) else ""
        if label and x >= free:
            free = canvas.text(x, y + height + 2, label, color=GREY, size=_LABEL) + _GAP
        x += picture.shape[1] + _GAP


def _many(selection: SelectedRows, *, frames: int, width: int, rows: int) -> NDArray[np.uint8]:
    """Sequences in rows: what they are, some frames of each camera, their curves small."""
    count, schema = min(rows, len(selection)), selection.schema
    cameras = [name for name in schema if frames and is_drawn(schema[name])]
    signals = [name for name in schema if schema[name].category == "temporal"]
    top = 2 * _MARGIN + line_height(_TITLE)
    canvas = Canvas(width, top + count * (_ROW + _MARGIN) + _MARGIN)
    x = canvas.text(_MARGIN, _MARGIN - 4, f"{count} of {len(selection)} sequences", size=_TITLE, bold=True)
    if len(signals) > _SPARKS:
        text = f"{_SPARKS} of {len(signals)} signals: {', '.join(signals[:_SPARKS])}"
        text = shortened(text, width - _MARGIN - x - 16, size=_NOTE)
        canvas.text(x + 16, _MARGIN + 2, text, color=GREY, size=_NOTE)
    curves = min(_SPARK, width // 3) if cameras else width - 3 * _MARGIN - _IDS
    middle = width - 2 * _MARGIN - _IDS - (curves if signals else 0)
    for number in range(count):
        view, y = selection[number], top + number * (_ROW + _MARGIN)
        canvas.fill(_MARGIN, y - _MARGIN // 2, width - 2 * _MARGIN, 1)
        _say(canvas, view, y)
        for place, name in enumerate(cameras):
            each = middle // len(cameras)
            _show(canvas, view, name, _MARGIN + _IDS + place * each, y, width=each - _MARGIN, frames=frames)
        for place, name in enumerate(signals[:_SPARKS]):
            each = curves // min(len(signals), _SPARKS)
            _spark(canvas, view, name, width - _MARGIN - curves + place * each, y, width=each - _MARGIN)
    return canvas.pixels


def _say(canvas: Canvas, view: Row, y: int) -> None:
    """Id and scalars of a sequence in a sheet of many."""
    room, names = _IDS - _MARGIN, [name for name in view.schema if view.schema[name].category == "scalar"]
    canvas.text(_MARGIN, y, shortened(view.id, room, size=_NAME, bold=True), size=_NAME, bold=True)
    facts = [shortened(_fact(view, name), room, size=_LABEL) for name in names if name != view.schema.id]
    y += line_height(_NAME)
    for text in wrapped(facts, room, size=_LABEL, between="   ")[: (_ROW - line_height(_NAME)) // line_height(_LABEL)]:
        canvas.text(_MARGIN, y, text, color=GREY, size=_LABEL)
        y += line_height(_LABEL)


def _show(canvas: Canvas, view: Row, name: str, x: int, y: int, *, width: int, frames: int) -> None:
    """A camera of a sequence in a sheet of many."""
    head = line_height(_LABEL)
    one = strip(view, name, count=frames, box=(max(1, width // frames - _GAP), _ROW - head), enlarge=True)
    text = shortened(name if one.pictures else f"{name}: {one.note}", width, size=_LABEL)
    canvas.text(x, y, text, color=GREY if one.pictures else RED, size=_LABEL)
    canvas.fill(x - 8, y, 0 if one.pictures else 3, head, color=RED)
    _film(canvas, Strip(name=name, pictures=one.pictures), x, y + head, 0)


def _spark(canvas: Canvas, view: Row, name: str, x: int, y: int, *, width: int) -> None:
    """A signal of a sequence in a sheet of many."""
    head, panel = line_height(_LABEL), panel_of(view, name, width=width)
    if panel is None:
        return
    text = name if panel.curves else f"{name}: {panel.note}"
    canvas.text(x, y, shortened(text, width, size=_LABEL), color=GREY, size=_LABEL)
    for line in panel.spark(width, _ROW - head - 6):
        canvas.line(line.points + np.array([x, y + head + 3]), color=line.color, width=1.1)


def _fact(view: Row, name: str) -> str:
    try:
        value = view[name]
    except READ_ERRORS as error:
        value = f"unreadable: {error}"
    value = "–" if value is None else f"{value:.6g}" if isinstance(value, float) else value
    text = " ".join(str(value).split())
    return f"{name} {text if len(text) <= _FACT else text[: _FACT - 3] + '...'}"
