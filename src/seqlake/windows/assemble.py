"""One window of one sequence from its cells: what training delivers, for a single anchor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.windows.clock import declared_clock, singles, tracks
from seqlake.windows.edges import nearest, sequence_steps
from seqlake.windows.timestamps import samples_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.spec.alignment import Clock
    from seqlake.spec.schema import Column, Schema
    from seqlake.windows.spec import Window
    from seqlake.windows.tracks import Track


def assemble(
    cell_of: Callable[[str], NDArray[Any] | object | None],
    schema: Schema,
    window: Window,
    start: int,
    *,
    clock: Clock | None = None,
) -> dict[str, Any]:
    """The window anchored at one clock step of one sequence.

    Args:
        cell_of: Gives the row's cell of a column: an array [T, ...] for a temporal column, [D] for a vector, a
            plain value otherwise, None where it is null.
        schema: The schema the cells follow.
        window: Which steps of which columns.
        start: The anchor, in clock steps; it need not be a multiple of the window's stride.
        clock: The dataset's clock; by default what the schema declares.

    Returns:
        For each temporal column an array [W, ...] and `<column>_mask` [W], True where the step exists; for each
        column asked for with None its value and `<column>_mask`; and `start`. A column whose cell is null gives
        zeros.

    Raises:
        SchemaMismatchError: The window names a column that is not there or cannot be windowed.
        ValueError: `edges="drop"` and a step of this window does not exist, or no clock is known.

    Example:
        >>> assemble({"action": np.ones((3, 2))}.get, schema, Window({"action": range(4)}), 0)["action_mask"]
        array([ True,  True,  True, False])
    """
    clock = clock or declared_clock(schema, window)
    wanted = tracks(window, schema, clock)
    cells = {track.column: cell_of(track.column) for track in wanted}
    counts = {name: np.array([-1 if cell is None else len(_array(cell))]) for name, cell in cells.items()}
    anchor = np.array([start], dtype=np.int64)
    sample: dict[str, Any] = {}
    if wanted:
        length = cell_of("length") if "length" in schema and schema["length"].category == "scalar" else None
        declared = None if length is None else np.array([int(str(length))])
        steps = sequence_steps(wanted, counts=counts, declared=declared)
    for track in wanted:
        own = counts[track.column]
        if track.timestamps is None:
            numbers = track.samples(anchor)
        else:
            stamps = cell_of(track.timestamps)
            numbers = samples_at(None if stamps is None else _array(stamps), track.nanoseconds(anchor)[0])[None]
        mask = track.exists(anchor, numbers, steps=steps, counts=own)[0]
        if window.edges == "drop" and not mask.all():
            raise ValueError(
                f"Column {track.column!r} has no step {_missing(track, anchor, mask)} clock steps from the sequence's "
                f"start (it has {int(steps[0])}), and the window's edges are 'drop'; use edges='pad' or 'clamp'."
            )
        sample[track.column] = _steps(
            cells[track.column], schema[track.column], nearest(numbers, track.available(steps=steps, counts=own))[0]
        )
        if window.edges != "clamp":
            sample[track.column][~mask] = 0
        sample[f"{track.column}_mask"] = mask
    for name in singles(window, schema):
        value = cell_of(name)
        sample[name] = _single(value, schema[name])
        sample[f"{name}_mask"] = np.bool_(value is not None)
    sample["start"] = np.int64(start)
    return sample


def _missing(track: Track, anchor: NDArray[np.int64], mask: NDArray[np.bool_]) -> str:
    return f"{int(track.moments(anchor)[0][~mask][0]) / track.denominator:g}"


def _array(cell: object) -> NDArray[Any]:
    return np.asarray(cell)


def step_dtype(column: Column, /) -> np.dtype[Any]:
    """The numpy type of a temporal or vector column's numbers."""
    assert column.value_type is not None
    dtype: np.dtype[Any] = np.dtype(column.value_type.to_pandas_dtype())
    return dtype


def _steps(cell: object, column: Column, numbers: NDArray[np.int64]) -> NDArray[Any]:
    """[W, ...] the steps of one cell; zeros where the cell has none at all."""
    dtype = step_dtype(column)
    if cell is None or not len(values := _array(cell)):
        return np.zeros((len(numbers), *(column.shape or ())), dtype=dtype)
    shape = column.shape if column.shape is not None else values.shape[1:]
    return values[numbers].astype(dtype, copy=False).reshape(len(numbers), *shape)


def _single(value: object, column: Column) -> Any:
    if column.category == "vector":
        dtype = step_dtype(column)
        return np.zeros(column.shape or (column.dim or 0,), dtype) if value is None else _array(value).astype(dtype)
    return value
