"""`seqlake frames`: exact frames of one column as files."""

from __future__ import annotations

import shutil
import sys
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seqlake.cli import _files, _options
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
    from seqlake.dataset.drawing.strips import is_drawn, strip

    number = _PICTURES if count is None else count
    columns = shutil.get_terminal_size().columns
    width = max(4, (columns - (number - 1) * _GAP) // max(1, number))
    for name in view.schema:
        if number and is_drawn(view.schema[name]):
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


_SUFFIXES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}
_MAGIC = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg"}


def _times(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[Fraction]:
    times = []
    for one in (part.strip() for several in given for part in several.split(",") if part.strip()):
        try:
            times.append(Fraction(one))
        except (ValueError, ZeroDivisionError):
            raise click.BadParameter(f"expected seconds, as in 0.5 or 0,0.5,1, found {one!r}.") from None
        if times[-1] < 0:
            raise click.BadParameter(f"the first frame is shown at 0 seconds, found {one}.")
    return times


def _slice(_context: click.Context, _parameter: click.Parameter, given: str | None) -> slice | int | None:
    if given is None:
        return None
    try:
        parts = [int(part) if part.strip() else None for part in given.split(":")]
        if len(parts) == 1:
            return int(given)
        chosen = slice(*parts)
        chosen.indices(0)  # a step of nothing is refused here
    except (ValueError, TypeError):
        raise click.BadParameter(f"expected a number, A:B or A:B:STEP as in Python, found {given!r}.") from None
    return chosen


@click.command()
@_options.source
@click.argument("sequence_id", metavar="ID", shell_complete=_options.complete_ids)
@click.argument("column", metavar="COLUMN", shell_complete=_options.complete_columns)
@click.option(
    "--at", "times", multiple=True, metavar="SECONDS", callback=_times, help="What is shown then; several, or 0,0.5,1."
)
@click.option(
    "--frames", "numbers", metavar="A:B[:STEP]", callback=_slice, help="By number, as in Python (default: all)."
)
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR|FILE",
    help="A folder, or a file for one.",
)
@click.option(
    "--as",
    "kind",
    type=click.Choice(["png", "jpeg"]),
    help="How to write them (default: images as they are stored, video frames as PNG).",
)
@click.option("--rgb", is_flag=True, help="RGB of 8 bits from a video that has more.")
@_options.version
@_options.overwrite
@_options.dry_run
@_options.output_options
def command(
    source: str,
    sequence_id: str,
    column: str,
    *,
    times: Sequence[Fraction],
    numbers: slice | int | None,
    out: Path,
    kind: str | None,
    rgb: bool,
    version: int | str | None,
    overwrite: bool,
    dry_run: bool,
    output: _options.Output,
) -> None:
    """Write frames of one sequence of DATASET as pictures: exactly those that are asked for.

    PNG loses nothing; grey of more than 8 bits, such as depth, keeps the numbers that are stored. Images that are
    stored as they are wanted are copied byte for byte. In a folder files are called by the number of the frame.
    """
    selection = _options.opened(source, version=version)
    with _options.sequences(selection, [sequence_id]):
        view = selection.sequence(sequence_id)
    if times and numbers is not None:
        raise click.UsageError("Give times (--at) or numbers (--frames), not both.")
    pictures = _Pictures(view, column, rgb=rgb)
    wanted = pictures.at(times) if times else pictures.chosen(numbers)
    single = out.suffix.lower() in _SUFFIXES
    if single and len(wanted) != 1:
        raise click.UsageError(f"{out} is one file, and {len(wanted)} frames are asked for; name a folder.")
    if single and kind is None:
        kind = _SUFFIXES[out.suffix.lower()]
    kinds = {number: kind or pictures.stored_as(number) or "png" for number in wanted}
    paths = {
        number: out if single else out / f"{number:06d}.{'jpg' if kinds[number] == 'jpeg' else 'png'}"
        for number in wanted
    }
    _files.refuse_existing(paths.values(), overwrite=overwrite)
    rows = [{"frame": number, "seconds": pictures.seconds(number), "path": str(paths[number])} for number in wanted]
    if not dry_run:
        for number, data in pictures.encoded(kinds):
            _files.save(paths[number], data, overwrite=overwrite)
    output.rows(rows, key="path", columns=["frame", "seconds", "path"])


class _Pictures:
    """The frames of a video, the images of a frames column, or the one image of a file."""

    def __init__(self, view: SequenceView, column: str, *, rgb: bool) -> None:
        from seqlake.dataset.drawing.strips import is_pictures, rate_of

        kind = view.schema[column]
        if not is_pictures(kind):
            raise click.UsageError(f"Column {column!r} holds no pictures; seqlake schema shows which do.")
        self._frames: Any = view[column]
        if self._frames is None:
            raise click.ClickException(f"Sequence {view.id!r} has nothing in column {column!r}.")
        self._steps = kind.category == "frames"
        if rgb and kind.medium == "video":
            self._frames = self._frames.rgb
        self._image = kind.type is not None and kind.type.type == "image"
        self._rate = rate_of(view.schema, column) if self._steps else None

    def chosen(self, which: slice | int | None) -> list[int]:
        """Frame numbers, each once."""
        count = len(self._frames)
        if not isinstance(which, int):
            return sorted(range(count)[which or slice(None)])
        if not -count <= which < count:
            raise click.UsageError(f"There are frames 0 to {count - 1}, found {which}.")
        return [which % count]

    def at(self, times: Sequence[Fraction]) -> list[int]:
        """The frames that are shown at these times, each once."""
        if not self._steps:
            if not self._image:
                self._refuse_later(max(times))
            return sorted(set(self._frames.numbers_at(times).tolist()))
        if self._rate is None:
            raise click.UsageError("Nothing says the rate of these images; ask for them by --frames.")
        steps = sorted({int(one * self._rate) for one in times})
        if steps[-1] >= len(self._frames):
            raise click.UsageError(f"The images end after {len(self._frames) / float(self._rate):g} seconds.")
        return steps

    def _refuse_later(self, latest: Fraction) -> None:
        """The last frame is shown as long as the one before it."""
        starts = self._frames.seconds
        end = float(starts[-1] + (starts[-1] - starts[-2])) if len(starts) > 1 else float(latest)
        if float(latest) > end:
            raise click.UsageError(f"The video ends after {end:g} seconds, found {float(latest):g}.")

    def seconds(self, number: int) -> float | None:
        """When a frame is shown, counted from the first."""
        if self._steps:
            return None if self._rate is None else number / float(self._rate)
        return float(self._frames.seconds[number])

    def stored_as(self, number: int) -> str | None:
        """How an image is encoded already, where it is."""
        return next((kind for magic, kind in _MAGIC.items() if self._bytes(number).startswith(magic)), None)

    def _bytes(self, number: int) -> bytes:
        if self._steps:
            return self._frames.bytes(number) or b""
        return self._frames.read() if self._image else b""

    def encoded(self, kinds: dict[int, str]) -> Iterator[tuple[int, bytes]]:
        """(number, file) of each frame."""
        import numpy as np

        from seqlake.media import encode_image

        together = 16  # decoded at once: cameras share groups of pictures
        numbers = list(kinds)
        copied = {number for number in numbers if self.stored_as(number) == kinds[number]}
        for number in sorted(copied):
            yield number, self._bytes(number)
        rest = [number for number in numbers if number not in copied]
        for start in range(0, len(rest), together):
            some = rest[start : start + together]
            for number, picture in zip(some, self._decoded(some), strict=True):
                flat = picture[:, :, 0] if picture.ndim == 3 and picture.shape[-1] == 1 else picture
                yield number, encode_image(np.ascontiguousarray(flat), format=kinds[number])

    def _decoded(self, numbers: list[int]) -> Sequence[Any]:
        """Pictures as arrays, with all their bits."""
        import numpy as np

        frames = self._frames.codes  # of depth; all others are as they are
        if self._steps:
            return [frames[number] for number in numbers]  # each may have a size of its own
        pictures = frames.decode(numbers)
        if pictures.dtype != np.uint8 and pictures.shape[-1] == 3 and not self._image:
            raise click.ClickException(
                "The video has colours of more than 8 bits, which PNG and JPEG are not written with here; --rgb writes "
                "RGB of 8 bits."
            )
        return pictures  # type: ignore[no-any-return]  # a view of frames
