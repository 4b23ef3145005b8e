"""Where windows may be anchored in a sequence, and what stands where a step is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from seqlake.protocols import Ints
    from seqlake.windows.sounds import SoundSpan
    from seqlake.windows.spec import Edges
    from seqlake.windows.tracks import Track


def anchors(
    tracks: Sequence[Track | SoundSpan],
    *,
    steps: Ints,
    counts: Mapping[str, Ints],
    stride: int,
    edges: Edges,
    ends: Mapping[str, Ints] | None = None,
    begins: Mapping[str, Ints] | None = None,
) -> tuple[int | Ints, Ints]:
    """The first anchor of every sequence, and how many anchors each sequence has.

    Anchors are 0, stride, 2 * stride, ... below N. `edges="drop"` keeps those at which every sample exists.

    Args:
        tracks: What is asked for at each anchor.
        steps: [rows] N, clock steps of each sequence; 0 or less has no anchor.
        counts: For each track's column, [rows] T.
        stride: Clock steps between anchors.
        edges: The edge rule.
        ends: For columns whose frames' own times decide, [rows] how many moments have a frame, in 1/denominator steps.
        begins: For columns with time stamps, [rows] the first moment that has a sample, in 1/denominator steps.

    Returns:
        (first anchor, [rows] number of anchors); the first is [rows], too, where sequences begin differently.
    """
    if edges != "drop":
        return 0, np.maximum(-(-steps // stride), 0)
    first: int | Ints = 0
    last = steps - 1
    for track in tracks:
        name = track.column
        times = {"ends": (ends or {}).get(name), "begins": (begins or {}).get(name)}
        earliest, latest = track.bounds(steps=steps, counts=counts[name], **times)
        one_for_all = isinstance(first, int) and isinstance(earliest, int)
        first, last = max(first, earliest) if one_for_all else np.maximum(first, earliest), np.minimum(last, latest)
    first = -(-first // stride) * stride
    return first, np.maximum((last - first) // stride + 1, 0)


def nearest(samples: Ints, counts: Ints) -> Ints:
    """[n, W] sample numbers moved to the nearest one that exists; 0 where the column has none.

    Args:
        samples: [n, W] sample numbers, any.
        counts: [n] T of each sequence.
    """
    return np.maximum(np.minimum(samples, counts[:, None] - 1), 0)


def check_alike(counts: Mapping[str, Ints], /) -> None:
    """Without a clock, columns share steps by index: only where they have equally many in every row.

    Args:
        counts: Column -> [rows] T, the frames of a video among them; -1 null.

    Raises:
        SchemaMismatchError: Some have not, so that nothing relates their steps.
    """
    (first, counts_of_first), *others = counts.items() or [("", np.zeros(0, np.int64))]
    for name, other in others:
        unlike = np.flatnonzero((counts_of_first != other) & (counts_of_first >= 0) & (other >= 0))
        if len(unlike):
            row = int(unlike[0])
            raise SchemaMismatchError(
                f"Columns {first!r} and {name!r} have {counts_of_first[row]} and {other[row]} steps in row {row}, and "
                f"no clock relates them ({len(unlike)} rows differ).",
                hint=f"Declare the fps of both, or name the column that holds the times of {name!r} (timestamps=); "
                "Window(..., clock=steps_per_second) takes them by index all the same. Or window them one at a time.",
            )


def sequence_steps(
    tracks: Sequence[Track],
    *,
    counts: Mapping[str, Ints],
    declared: Ints | None = None,
    framed: Sequence[Track] = (),
    steps_of: Callable[[Track | SoundSpan, Ints], Ints] | None = None,
    sounds: Sequence[SoundSpan] = (),
    rows: int | None = None,
) -> Ints:
    """N, the clock steps of each sequence.

    The first column at the clock's rate decides; where it is null the next one does, then the `length` column, then
    the frames of the first column of frames, then a column at another rate by `floor(T * clock / rate)`, then sound.

    Args:
        tracks: The temporal columns of the window, in schema order.
        counts: For each track's column, [rows] T; -1 null.
        declared: [rows] the `length` column; -1 null.
        framed: The columns of frames, in schema order.
        steps_of: Counts the clock steps that have a frame, or sound, of a column in some rows; -1 where it has none.
        sounds: The columns of sound, in schema order.
        rows: How many sequences; by default as many as the first track has counts.

    Raises:
        ValueError: No column says how long a sequence is.
    """
    if not tracks and not framed and not sounds:
        raise ValueError("Without a column of steps, frames or sound a sequence has no steps.")
    result = np.full(len(counts[tracks[0].column]) if rows is None else rows, -1, dtype=np.int64)
    direct = [counts[track.column] for track in tracks if track.ratio == 1 and track.timestamps is None]
    if declared is not None:
        direct.append(declared)
    counted = [track for track in framed if track.timestamps is None] if steps_of is not None else []
    scaled = [track for track in tracks if track.ratio != 1 and track.timestamps is None]
    if not direct and not counted and not scaled and not sounds:
        raise ValueError(
            f"Column {(*tracks, *framed)[0].column!r} has time stamps and no rate, so nothing says how many clock "
            "steps a sequence has: add a column at the clock's rate to the window, or a `length` column to the dataset."
        )
    for source in direct:
        result = np.where(result < 0, source, result)
    for track in counted:
        left = np.flatnonzero(result < 0)
        if len(left):
            assert steps_of is not None
            result[left] = steps_of(track, left)
    for track in scaled:
        count = counts[track.column]
        steps = count * track.ratio.denominator // track.ratio.numerator
        result = np.where(result < 0, np.where(count < 0, -1, steps), result)
    for sound in sounds:
        left = np.flatnonzero(result < 0)
        if len(left) and steps_of is not None:
            result[left] = steps_of(sound, left)
    return np.maximum(result, 0)
