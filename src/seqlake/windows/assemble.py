"""One window of one sequence from its cells and frames: what training delivers, for a single anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from seqlake.spec.schema import dtype_of, is_list
from seqlake.windows.clock import deciding, declared_clock, singles, spans, tracks
from seqlake.windows.clouds import as_numbers, joined
from seqlake.windows.edges import check_alike, nearest, sequence_steps
from seqlake.windows.frames import find, is_clouds, shown_of, steps_shown
from seqlake.windows.sounds import SoundSpan, hear
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from seqlake.spec.alignment import Clock
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.frames import Decoded, Shown
    from seqlake.windows.sounds import Heard
    from seqlake.windows.spec import Window
    from seqlake.windows.tracks import Track


T = TypeVar("T")


def assemble(
    cell_of: Callable[[str], NDArray[Any] | object | None],
    schema: Schema,
    window: Window,
    start: int,
    *,
    clock: Clock | None = None,
    frames_of: Callable[[str], Decoded] | None = None,
    sounds_of: Callable[[str], Heard] | None = None,
) -> dict[str, Any]:
    """The window anchored at one clock step of one sequence.

    Args:
        cell_of: Gives the row's cell of a column: an array [T, ...] for a temporal column, [D] for a vector, a
            plain value otherwise, None where it is null.
        schema: The schema the cells follow.
        window: Which steps of which columns.
        start: The anchor, in clock steps; it need not be a multiple of the window's stride.
        clock: The dataset's clock; by default what the schema declares.
        frames_of: Gives the row's pictures of a video or a column of images.
        sounds_of: Gives the row's sound of a column of audio.

    Returns:
        For each temporal column an array [W, ...] and `<column>_mask` [W], True where the step exists; for each
        column of frames uint8 [W, height, width, 3] and its mask; for each column of sound float32 [S, channels] and
        its mask [S]; for each column asked for with None its value and
        `<column>_mask`; and `start`. A column whose cell is null gives zeros.

    Raises:
        SchemaMismatchError: The window names a column that is not there or cannot be windowed.
        ValueError: `edges="drop"` and a step of this window does not exist, or no clock is known.

    Example:
        >>> assemble({"action": np.ones((3, 12))}.get, schema, Window({"action": range(4)}), 0)["action_mask"]
        array([ True,  True,  True, False])
    """
    clock = clock or declared_clock(schema, window)
    wanted, framed = tracks(window, schema, clock)
    heard = spans(window, schema, clock)
    cells = {track.column: cell_of(track.column) for track in wanted}
    counts = {name: np.array([-1 if cell is None else len(_array(cell))]) for name, cell in cells.items()}
    sounds = {span.column: _opener(sounds_of, span.column)(span.column) for span in heard}
    films = {track.column: _opener(frames_of, track.column)(track.column) for track in framed}
    films_shown = {track.column: shown_of(track, schema[track.column], films[track.column]) for track in framed}
    anchor = np.array([start], dtype=np.int64)
    sample: dict[str, Any] = {}
    if wanted or framed or heard:
        if clock.rate is None:
            pictured = {name: np.array([one.count or -1]) for name, one in films_shown.items()}
            check_alike({t.column: (counts | pictured)[t.column] for t in [*deciding(wanted, schema), *framed]})
        length = cell_of("length") if "length" in schema and schema["length"].category == "scalar" else None
        steps = sequence_steps(
            deciding(wanted, schema),
            counts=counts,
            declared=None if length is None else np.array([int(str(length))]),
            framed=framed,
            steps_of=lambda one, _: np.array([_lasts(one, films_shown, sounds)]),
            sounds=heard,
            rows=1,
        )
    for track in wanted:
        numbers, mask, available = _steps_at(track, anchor, steps, counts[track.column], cell_of)
        _check_edges(window, track, anchor, mask, int(steps[0]))
        values = _steps(cells[track.column], schema[track.column], nearest(numbers, available)[0])
        if window.edges != "clamp":
            values[~mask] = 0
        sample |= {track.column: values, f"{track.column}_mask": mask}
    for track in framed:
        frames = films_shown[track.column]
        numbers, mask = (part[0] for part in find(track, anchor, steps=steps, frames=frames, cell_of=cell_of))
        _check_edges(window, track, anchor, mask, int(steps[0]))
        values = _decoded(films[track.column], numbers, frames.there(numbers) if window.edges == "clamp" else mask)
        sample |= {track.column: values, f"{track.column}_mask": mask}
        if is_clouds(schema[track.column]):
            sample |= joined(track.column, *as_numbers(values))
    for span in heard:
        sample |= _heard(window, span, start, int(steps[0]), sounds[span.column])
    for name in singles(window, schema):
        value = cell_of(name)
        sample[name] = _single(value, schema[name])
        sample[f"{name}_mask"] = np.bool_(value is not None)
    sample["start"] = np.int64(start)
    return sample


def _lasts(one: Track | SoundSpan, films: Mapping[str, Shown], sounds: Mapping[str, Heard]) -> int:
    """N as a column of frames or of sound counts it."""
    if not isinstance(one, SoundSpan):
        return steps_shown(one, films[one.column])
    sound = sounds[one.column]
    return one.steps(len(sound), sound.rate)


def _opener(media_of: Callable[[str], T] | None, column: str) -> Callable[[str], T]:
    if media_of is None:
        raise ValueError(f"Column {column!r} has frames or sound, and nothing was given that decodes them.")
    return media_of


def _heard(window: Window, span: SoundSpan, start: int, steps: int, sound: Heard) -> dict[str, Any]:
    _check_span(window, span, start, steps, sound)
    values, mask = hear(span, np.array([start]), sound, steps=steps, edges=window.edges)
    return {span.column: values, f"{span.column}_mask": mask}


def _check_span(window: Window, span: SoundSpan, start: int, steps: int, sound: Heard) -> None:
    lasts = np.array([span.moments(len(sound), sound.rate)])
    first, last = span.bounds(steps=np.array([steps]), counts=np.array([len(sound)]), ends=lasts)
    if window.edges == "drop" and not first <= start <= int(last[0]):
        raise ValueError(
            f"Column {span.column!r} has no sound for all of the {float(span.seconds):g} s at step {start} (there is "
            f"{len(sound) / sound.rate:g} s), and the window's edges are 'drop'; use edges='pad' or 'clamp'."
        )


def _steps_at(
    track: Track,
    anchor: NDArray[np.int64],
    steps: NDArray[np.int64],
    counts: NDArray[np.int64],
    cell_of: Callable[[str], Any],
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """[1, W] which sample stands at each moment, [W] whether it exists, and [1] how many there are to choose from."""
    numbers = track.samples(anchor) if track.timestamps is None else samples_at(track, anchor, cell_of)
    mask = track.exists(anchor, numbers, steps=steps, counts=counts)[0]
    return numbers, mask, track.available(steps=steps, counts=counts)


def _check_edges(window: Window, track: Track, anchor: NDArray[np.int64], mask: NDArray[np.bool_], steps: int) -> None:
    if window.edges == "drop" and not mask.all():
        raise ValueError(
            f"Column {track.column!r} has no step {_missing(track, anchor, mask)} clock steps from the sequence's "
            f"start (it has {steps}), and the window's edges are 'drop'; use edges='pad' or 'clamp'."
        )


def _missing(track: Track, anchor: NDArray[np.int64], mask: NDArray[np.bool_]) -> str:
    return f"{int(track.moments(anchor)[0][~mask][0]) / track.denominator:g}"


def _array(cell: object) -> NDArray[Any]:
    return np.asarray(cell)


def step_dtype(column: Column, /) -> np.dtype[Any]:
    """The numpy type of the numbers, or times, of a column of lists."""
    inner = column.value_type
    if inner is None:  # time stamps need not be numbers
        inner = column.arrow.value_type
        inner = inner.value_type if is_list(inner) else inner
    dtype: np.dtype[Any] = dtype_of(inner)
    return dtype


def _steps(cell: object, column: Column, numbers: NDArray[np.int64]) -> NDArray[Any]:
    """[W, ...] the steps of one cell; zeros where the cell has none at all."""
    dtype = step_dtype(column)
    if cell is None or not len(values := _array(cell)):
        return np.zeros((len(numbers), *(column.shape or ())), dtype=dtype)
    shape = column.shape if column.shape is not None else values.shape[1:]
    return values[numbers].astype(dtype, copy=False).reshape(len(numbers), *shape)


def _decoded(frames: Decoded, numbers: NDArray[np.int64], wanted: NDArray[np.bool_]) -> NDArray[Any]:
    """[W, height, width, channels] the frames that are wanted, each decoded once; zeros in place of the others."""
    unique, places = np.unique(numbers[wanted], return_inverse=True)
    pictures = frames.decode(unique)
    values = np.zeros((len(numbers), *pictures.shape[1:]), pictures.dtype)
    values[wanted] = pictures[places]
    return values


def _single(value: object, column: Column) -> Any:
    if column.category == "vector":
        dtype = step_dtype(column)
        return np.zeros(column.shape or (column.dim or 0,), dtype) if value is None else _array(value).astype(dtype)
    return value
