"""How selections and sequences print themselves: text of a few lines, and static HTML without scripts.

Only footers and indexes are read for a dataset's text; a table's first rows and a sequence's curves are read for
HTML. Nothing here raises: what cannot be read is said in place.
"""

from __future__ import annotations

import base64
from collections.abc import Sized
from contextlib import suppress
from html import escape
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import OfATable, Pinnable, ability
from seqlake.dataset.drawing.plots import runs
from seqlake.dataset.drawing.strips import READ_ERRORS, is_pictures, strip
from seqlake.dataset.reading.views import FileView, StepsView
from seqlake.errors import in_line, visible
from seqlake.files import locations
from seqlake.media import encode_image
from seqlake.media.image import orientation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.reading.views import Row, SelectedRows
    from seqlake.spec.column_types import ColumnType
    from seqlake.spec.schema import Column

_LINES = 15
_TEXT = 60  # characters of a value
_ROWS = 5
_COLUMNS = 24
_CURVES = 8  # of one column
_POINTS = 160
_PICTURES = 6
_PICTURE_BYTES = 16_000
_THUMB = (96, 72)  # pixels
_LARGEST_VIDEO = 256 << 20  # that a notebook looks into
_PICTURE_KINDS = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png"}
_LIMIT = 200_000  # bytes of one notebook output
_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888", "#000000")
_DETAILS = ("units", "fps", "codec", "sample_rate", "format", "model", "coordinate_frame")


def selection_text(selection: SelectedRows) -> str:
    """At most 15 lines: what it is, how many sequences, and its columns."""
    schema = selection.schema
    rows = [(name, *describe(schema[name])) for name in schema.names]
    width = max((len(name) for name, *_ in rows), default=0)
    kinds = max((len(kind) for _, kind, _ in rows), default=0)
    lines = [f"  {name:<{width}}  {kind:<{kinds}}  {detail}".rstrip() for name, kind, detail in rows]
    if len(lines) > _LINES - 1:
        more = len(lines) - (_LINES - 2)
        lines = [*lines[: _LINES - 2], f"  ... and {more} columns more"]
    return "\n".join(map(in_line, [headline(selection), *lines]))


def headline(selection: SelectedRows) -> str:
    """One line, as in `Dataset 'data/pick' · standalone · version 3 · 1,284 sequences in 6 shards`."""
    words = [type(selection).__name__]
    whole = ability(selection, OfATable)
    if whole is not None:
        words[0] += f" {whole.location!r}"
        words.append(whole.table.kind)
    try:
        if whole is not None:
            words.append("no versions" if whole.version.id == -1 else f"version {whole.version.id}")
        named = ability(selection, Pinnable)  # its ids need not have been selected
        unit = "samples" if named is None or named.with_id().schema.id is None else "sequences"
        count, shards = len(selection), len(selection.shards())
        words.append(f"{counted(count, unit)} in {counted(shards, 'shards')}")
        if whole is not None and whole.unfolded:
            words.append("fold is due")
    except READ_ERRORS as error:
        words.append(f"unreadable: {_short(error)}")
    return " · ".join(words)


def counted(number: int, unit: str) -> str:
    """`1 shard`, `1,284 shards`."""
    return f"{number:,} {unit.removesuffix('s') if number == 1 else unit}"


def describe(column: Column) -> tuple[str, str]:
    """(kind, details) of a column, as in `("trajectory", "[T, 12] float32  rad")`."""
    kind = column.type.type if column.type is not None else ""
    details = [_of_type(column.type, key) for key in _DETAILS if column.type and column.type.get(key) is not None]
    if column.category == "temporal":
        shape = ", ".join(["T", *map(str, column.shape if column.shape is not None else ("?",))])
        return kind or "temporal", "  ".join([f"[{shape}] {column.dtype}", *details])
    if column.category == "vector":
        return kind, "  ".join([f"[{column.dim or '?'}] {column.dtype}", *details])
    if column.medium is not None or column.category == "frames":
        return kind, "  ".join(details)
    return kind or str(column.arrow), "  ".join(details)


def _of_type(kind: ColumnType, key: str) -> str:
    value = kind.get(key)
    if key == "sample_rate" and isinstance(value, (int, float)):
        return f"{value / 1000:g} kHz"
    return f"{value} fps" if key == "fps" else str(value)


def brief(value: object, column: Column | None = None) -> str:
    """A value in one short line: arrays by type and shape, as in `float32[200, 12]`."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    if isinstance(value, Sized) and column is not None and column.category == "frames":
        return counted(len(value), "frames")
    if value is None:
        return "null"
    text = f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."


def sequence_text(view: Row) -> str:
    """The sequence's id, then one line a column."""
    names = view.schema.names
    width = max((len(name) for name in names), default=0)
    lines = [f"  {name:<{width}}  {_cell_and_hint(view, name)}" for name in names[: _LINES * 2]]
    if len(names) > len(lines):
        lines.append(f"  ... and {len(names) - len(lines)} columns more")
    return "\n".join(map(in_line, [f"Sequence {_safe_id(view)!r}", *lines]))


def _safe_id(view: Row) -> str:
    try:
        return view.id
    except READ_ERRORS as error:
        return f"unreadable: {_short(error)}"


def _brief_cell(view: Row, name: str) -> str:
    try:
        return brief(view[name], view.schema[name])
    except READ_ERRORS as error:
        return f"unreadable: {_short(error)}"


def _cell_and_hint(view: Row, name: str) -> str:
    """A cell in one line; of a file that nothing here decodes what reads it, too."""
    text = _brief_cell(view, name)
    with suppress(*READ_ERRORS):
        value = view[name]
        return f"{text}  {value.hint()}".rstrip() if isinstance(value, FileView) else text
    return text


def _short(error: Exception) -> str:
    return brief(str(error).partition("\n")[0])


# ---- HTML


def selection_html(selection: SelectedRows) -> str:
    """Columns and the first rows, as two tables."""
    schema = selection.schema
    columns = [[name, *describe(schema[name])] for name in islice(schema.names, 200)]
    parts = [f"<p><b>{_text(headline(selection))}</b></p>", _table(["column", "type", ""], columns)]
    names = schema.names[:_COLUMNS]
    try:
        views = [selection[number] for number in range(min(_ROWS, len(selection)))]
        rows = [[_brief_cell(view, name) for name in names] for view in views]
    except READ_ERRORS as error:
        parts.append(_failed(error))
    else:
        parts.append(_table(names, rows))
    return _bounded(parts)


def sequence_html(view: Row) -> str:
    """Values as a table, a curve for each signal, some pictures of each frames column; missing files in red."""
    schema = view.schema
    parts = [f"<p><b>Sequence {_text(_safe_id(view))}</b></p>"]
    plain = [name for name in schema.names if schema[name].category != "temporal"]
    parts.append(_table(["column", "value"], [[name, _cell_and_hint(view, name)] for name in plain[:200]]))
    for name in schema.names:
        try:
            parts.append(_drawn(name, schema[name], view))
        except READ_ERRORS as error:
            parts.append(f"<div>{_text(name)}</div>{_failed(error)}")
    return _bounded(parts)


def _drawn(name: str, column: Column, view: Row) -> str:
    category = column.category
    if category == "temporal":
        array = view[name]
        caption = f"<div>{_text(name)} <small>{_text(brief(array))}</small></div>"
        return caption + ("" if array is None else sparkline(array))
    if category == "frames" and is_pictures(column):
        return _pictures(name, view)
    file = view[name] if column.medium is not None else None
    if not isinstance(file, FileView) or not locations.is_local(file.location):
        return ""  # a notebook asks no other machine
    try:
        size = file.blob().size  # says so where the file is not allowed
    except FileNotFoundError:
        return f"<div>{_text(name)}</div>{_red(f'missing: {file.reference}')}"
    return _pictures(name, view) if is_pictures(column) and size <= _LARGEST_VIDEO else ""


def _pictures(name: str, view: Row) -> str:
    """A few small pictures, inline; whatever is not one is left out."""
    value = view[name]
    if value is None:
        return ""
    if isinstance(value, StepsView) and (stored := _film_strip(name, value.cells)):
        return stored
    one = strip(view, name, count=_PICTURES, box=_THUMB)
    if not one.pictures:
        return f"<div>{_text(name)}</div>{_red(one.note)}"
    images = [
        _image(encode_image(picture, format="jpeg"), "jpeg", label)
        for picture, label in zip_longest(one.pictures, one.labels, fillvalue="")
        if not isinstance(picture, str)
    ]
    return f"<div>{_text(name)} <small>{_text(one.note)}</small></div><div>{''.join(images)}</div>"


def _film_strip(name: str, cells: Sequence[object]) -> str:
    """Encoded images that are small enough as they are."""
    images = []
    for place in np.unique(np.linspace(0, len(cells) - 1, _PICTURES).astype(int)) if cells else ():
        cell = cells[place]
        kind = next(
            (k for magic, k in _PICTURE_KINDS.items() if isinstance(cell, bytes) and cell.startswith(magic)), ""
        )
        if isinstance(cell, bytes) and kind and len(cell) <= _PICTURE_BYTES:
            if orientation(cell) != 1:  # which a browser applies, whatever the column says
                return ""
            images.append(_image(cell, kind, f"frame {place}"))
    return f"<div>{_text(name)}</div><div>{''.join(images)}</div>" if images else ""


def _image(data: bytes, kind: str, label: str) -> str:
    coded = base64.b64encode(data).decode()
    name = escape(visible(label))
    return f'<img alt="{name}" title="{name}" height="{_THUMB[1]}" src="data:image/{kind};base64,{coded}"/> '


def sparkline(array: NDArray[Any], *, width: int = 480, height: int = 60) -> str:
    """A signal [T, D] or [T] as one inline SVG; at most 8 dimensions, each by its lowest and highest values.

    Args:
        array: The steps; values that are not finite leave gaps.
        width: Pixels.
        height: Pixels.
    """
    values = np.asarray(array, np.float64).reshape(len(array), -1)[:, :_CURVES] if len(array) else np.empty((0, 0))
    finite = values[np.isfinite(values)]
    if not finite.size:
        return "<div><small>no finite values</small></div>"
    low, high = float(finite.min()), float(finite.max())
    span = high - low or 1.0
    lines = []
    for number, curve in enumerate(values.T):
        places, picked = _envelope(curve)
        x = places * (width / max(1, len(curve) - 1))
        y = height - 1 - (picked / span - low / span) * (height - 2)
        for run in runs(np.isfinite(y)):
            points = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(x[run], y[run], strict=True))
            lines.append(
                f'<polyline points="{points}" fill="none" stroke="{_COLORS[number % len(_COLORS)]}" stroke-width="1"/>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'aria-label="{low:.4g} to {high:.4g}">{"".join(lines)}</svg><div><small>{low:.4g} to {high:.4g}</small></div>'
    )


def _envelope(curve: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """(places, values): lowest and highest of each stretch, so that no spike disappears."""
    if len(curve) <= _POINTS:
        return np.arange(len(curve)), curve
    places: list[int] = []
    for stretch in np.array_split(np.arange(len(curve)), _POINTS // 2):
        finite = stretch[np.isfinite(curve[stretch])]
        chosen = (
            {int(finite[curve[finite].argmin()]), int(finite[curve[finite].argmax()])}
            if len(finite)
            else {int(stretch[0])}
        )
        places += sorted(chosen)
    return np.array(places), curve[places]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cell = 'style="text-align:left;padding:2px 8px"'
    first = "".join(f"<th {cell}>{_text(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td {cell}>{_text(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: str) -> str:
    return escape(visible(value if len(value) <= 4 * _TEXT else f"{value[: 4 * _TEXT]}..."))


def _failed(error: Exception) -> str:
    return _red(f"unreadable: {_short(error)}")


def _red(text: str) -> str:
    return f'<div style="color:#b00020">{_text(text)}</div>'


def _bounded(parts: Sequence[str]) -> str:
    """The parts that fit; those that do not are counted, so that a notebook stays light."""
    kept, size, left = [], 0, 0
    for part in parts:
        length = len(part.encode())
        if size + length > _LIMIT - 200:
            left += 1
        else:
            kept.append(part)
            size += length
    if left:
        kept.append(f"<p>{left} parts more are not shown.</p>")
    return f"<div>{''.join(kept)}</div>"
