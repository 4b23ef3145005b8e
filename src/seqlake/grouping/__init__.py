"""Samples as sequences: one each with an id, or those of a sequence put together step by step."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from seqlake.arguments import NUMBER, TEXTS, Kind
from seqlake.errors import ValidationError
from seqlake.grouping.collecting import collected
from seqlake.grouping.naming import FromSamples, NamedSamples, named
from seqlake.grouping.sequences import Grouping, StepsGrouped, grouped, templates
from seqlake.grouping.surveying import surveyed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from seqlake.protocols import Readable
    from seqlake.spec.column_types import ColumnType

__all__ = ["OPTIONS", "FromSamples", "NamedSamples", "StepsGrouped", "as_sequences", "collected"]

_CONSTANT = Kind(
    "True, False or a list of columns, as ['action']", lambda value: isinstance(value, bool) or TEXTS.fits(value)
)
OPTIONS = ("sequence_id", "steps", "videos", "fps", "timestamps", "keep_constant")
"""What `scan` and `convert` take for every source whose rows are samples."""


def as_sequences(
    source: Readable,
    /,
    *,
    sequence_id: str | bool | None = None,
    steps: str | bool | None = None,
    videos: str | Mapping[str, str] | None = None,
    fps: float | Fraction | None = None,
    timestamps: str | None = None,
    keep_constant: Collection[str] | bool = False,
    types: Mapping[str, ColumnType] | None = None,
) -> Readable:
    """Rows that are sequences, from rows that may be samples.

    Args:
        source: Sequences are given back as they are.
        sequence_id: The column that says which sequence a sample belongs to; True numbers the samples, and each
            becomes a sequence.
        steps: The column that orders the samples of a sequence, True for the order of the source; None: every sample
            is a sequence of its own.
        videos: With steps: the path of a sequence's video below the source's folder, with names of columns in braces,
            as `"{episode}.mp4"`; or columns and such paths.
        fps: With steps: how many a second, of signals and videos.
        timestamps: With steps: the column of their times, of signals and videos.
        keep_constant: With steps: columns that stay one value a step even if they never change within a sequence; True
            for all. Others become scalars then.
        types: What columns of the sequences mean.

    Raises:
        SchemaMismatchError: No such column, or one that cannot be an id.
        ValidationError: Ids that are missing or, without `steps`, not unique; two samples of one step.

    Example:
        ```python
        sl.convert("data/mds", "data/episodes", sequence_id="episode", steps="step")
        ```
    """
    _CONSTANT.check("keep_constant", keep_constant)
    NUMBER.or_none().check("fps", None if fps is None else float(fps) if isinstance(fps, Fraction) else fps)
    asked: dict[str, Any] = {"videos": videos, "fps": fps, "timestamps": timestamps, "keep_constant": keep_constant}
    of_steps = next((name for name, value in asked.items() if value is not None and value is not False), None)
    if source.schema.id is not None and not _are_steps(source, sequence_id, steps):
        if sequence_id is not None or steps is not None or of_steps:
            given = [name for name, value in (("sequence_id", sequence_id), ("steps", steps)) if value is not None]
            raise TypeError(
                f"The rows of this source are sequences already: leave {' and '.join(given) or of_steps} out."
            )
        return source
    if steps is not None and not isinstance(sequence_id, str):
        raise TypeError("`steps` orders the samples of a sequence: say with sequence_id= which column names it.")
    if of_steps is not None and steps is None:
        raise TypeError(f"`{of_steps}` is of sequences that are put together of steps: give sequence_id= and steps=.")
    if not sequence_id:
        return source
    if not isinstance(sequence_id, str):
        return named(source)
    if steps is None:
        ids = surveyed(source, key=sequence_id, steps=None, ids_only=True)
        if ids.has_steps:
            counts = Counter(ids.codes.tolist())
            twice = [name for code, name in enumerate(ids.ids) if counts[code] > 1]
            raise ValidationError(
                f"{len(twice)} values of {sequence_id!r} occur more than once, the first is {twice[0]!r}.",
                hint="If samples are time steps, say which column orders them: steps=... (or steps=True).",
            )
        return named(source, key=sequence_id)
    how = Grouping(
        key=sequence_id,
        steps=None if steps is True else str(steps),
        videos=templates(videos),
        fps=fps,
        timestamps=timestamps,
        keep_constant=keep_constant,
        types=types or {},
    )
    return grouped(source, how)


def _are_steps(source: Readable, sequence_id: object, steps: object) -> bool:
    """Whether rows with a `sequence_id` are steps all the same: the user says so, and no cell has steps of its own."""
    if steps is None or sequence_id != source.schema.id:
        return False
    return not any(source.schema[name].category in {"temporal", "frames"} for name in source.schema.names)
