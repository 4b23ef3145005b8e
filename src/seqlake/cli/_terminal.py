"""What a terminal can show of a sequence: curves as bars, pictures as half blocks of two colours."""

from __future__ import annotations

import shutil
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from seqlake.errors import in_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from seqlake.dataset.reading.sequence import SequenceView

BARS = "▁▂▃▄▅▆▇█"
_HALF = "▀"  # the upper half in the letter's colour, the lower in the ground's
_PICTURES, _GAP, _TALLEST = 4, 1, 24  # in one row; columns between two; pixels


def sparkline(curve: Any, /, *, width: int = 32) -> str:
    """A curve as block characters; a gap where nothing is finite."""
    import numpy as np

    parts = np.array_split(np.asarray(curve, np.float64), min(width, len(curve)))
    means = np.array([p[np.isfinite(p)].mean() if np.isfinite(p).any() else np.nan for p in parts])
    low, high = np.nanmin(means), np.nanmax(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if np.isnan(m) else BARS[round((m - low) * scale)] for m in means)


def colours() -> bool:
    """Whether stdout is a terminal, or is to be treated as one, that may be coloured."""
    context = click.get_current_context(silent=True)
    wanted = None if context is None else context.color
    return sys.stdout.isatty() if wanted is None else wanted


def film_strips(view: SequenceView, /, *, count: int | None = None) -> Iterator[str]:
    """Lines that show evenly spaced frames of every camera, as wide as the terminal.

    Args:
        view: The sequence.
        count: How many frames; four by default.
    """
    from seqlake.dataset.drawing.strips import is_pictures, strip

    number = _PICTURES if count is None else count
    columns = shutil.get_terminal_size().columns
    width = max(4, (columns - (number - 1) * _GAP) // max(1, number))
    for name in view.schema:
        if number and is_pictures(view.schema[name]):
            one = strip(view, name, count=number, box=(width, _TALLEST))
            yield in_line(f"{name}  {one.note}")
            yield from side_by_side(one.pictures, one.labels)


def side_by_side(pictures: Sequence[NDArray[Any]], labels: Sequence[str], /) -> Iterator[str]:
    """Pictures in one row, with a line of labels below.

    Args:
        pictures: Each uint8 [h, w, 3].
        labels: Of each.
    """
    blocks = [half_blocks(picture) for picture in pictures]
    widths = [picture.shape[1] for picture in pictures]
    for row in zip_longest(*blocks):
        yield (" " * _GAP).join(part or " " * width for part, width in zip(row, widths, strict=True))
    if labels:
        yield (" " * _GAP).join(f"{label[:width]:<{width}}" for label, width in zip(labels, widths, strict=False))


def half_blocks(picture: NDArray[Any], /) -> list[str]:
    """A picture, uint8 [h, w, 3], as (h + 1) // 2 lines of w characters in 24-bit colours."""
    lines = []
    for top in range(0, len(picture), 2):
        upper, lower = picture[top].tolist(), picture[min(top + 1, len(picture) - 1)].tolist()
        cells = (
            f"\x1b[38;2;{r};{g};{b};48;2;{x};{y};{z}m{_HALF}" for (r, g, b), (x, y, z) in zip(upper, lower, strict=True)
        )
        lines.append("".join(cells) + "\x1b[0m")
    return lines
