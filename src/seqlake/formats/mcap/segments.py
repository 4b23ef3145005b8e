"""Cuts long recordings into rows: every so many seconds, at each message of a topic, or where nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seqlake.errors import InvalidMetadataError
from seqlake.formats.mcap.kinds import Number
from seqlake.formats.mcap.logs import LAST

if TYPE_CHECKING:
    from seqlake.formats.mcap.kinds import MessageDecoder
    from seqlake.formats.mcap.recordings import LoggedRun
    from seqlake.protocols import Ints

_SECOND = 1_000_000_000
_MOST = 1_000_000  # rows of one recording


class Segment(NamedTuple):
    """Messages from `start` to before `stop` (nanoseconds), and their row's number; -1 for a whole recording."""

    start: int
    stop: int
    number: int


def segments_of(
    recording: LoggedRun, segment: float | str | None, gap: float, marker: MessageDecoder | None, /
) -> list[Segment]:
    """The rows that a recording becomes.

    Args:
        recording: One with its times.
        segment: Seconds, `"gaps"`, or a topic; None: one row.
        gap: With `"gaps"`: seconds without any message.
        marker: The decoder of the topic that `segment` names.

    Raises:
        InvalidMetadataError: It would be more than a million rows.
    """
    span = recording.span
    if segment is None or span is None:
        return [Segment(0, LAST + 1, -1)]
    if isinstance(segment, str):
        parts = _at_gaps(recording, gap) if segment == "gaps" else _at_marks(recording, segment, marker)
    else:
        parts = _every(recording, span, round(segment * _SECOND))
    if len(parts) > _MOST:
        raise InvalidMetadataError(f"{recording.path} would become {len(parts):,} rows; {_MOST:,} are the most.")
    return parts


def _every(recording: LoggedRun, span: tuple[int, int], length: int) -> list[Segment]:
    """Pieces of one length from the first message on, without those in which nothing can be."""
    first, last = span
    count = (last - first) // length + 1
    if count > _MOST:
        raise InvalidMetadataError(
            f"{recording.path} has messages from {first} to {last} nanoseconds, which are {count:,} pieces of "
            f"{length / _SECOND:g} s; {_MOST:,} are the most.",
            hint="Its clock may have been set while it was recorded: segment='gaps' cuts it there.",
        )
    there = np.zeros(count, np.bool_)
    for log in recording.logs:
        for begin, end in [(part.first, part.last) for part in log.spans] or [log.span or span]:
            there[max(begin - first, 0) // length : max(min(end, last) - first, 0) // length + 1] = True
    return [Segment(first + k * length, first + (k + 1) * length, k) for k in np.flatnonzero(there).tolist()]


def _at_gaps(recording: LoggedRun, gap: float) -> list[Segment]:
    times = np.sort(np.fromiter((one.time for one in recording.messages()), np.int64))
    cuts: Ints = np.flatnonzero(np.diff(times) > round(gap * _SECOND)) + 1
    starts = times[np.concatenate([[0], cuts])].tolist() if len(times) else []
    return [
        Segment(start, stop, k) for k, (start, stop) in enumerate(zip(starts, [*starts[1:], LAST + 1], strict=True))
    ]


def _at_marks(recording: LoggedRun, topic: str, marker: MessageDecoder | None) -> list[Segment]:
    """From each message of a topic to the next; of flags, from true to false."""
    flag = None if marker is None else _flag(marker)
    marks = list[tuple[int, bool]]()
    for message in recording.messages({topic}):
        begins = True if flag is None or marker is None else bool(marker.decode(message.data).get(flag))
        marks.append((message.time, begins))
    marks.sort(key=lambda mark: mark[0])
    stops = [*[time for time, _ in marks], LAST + 1][1:]
    parts = list[Segment]()
    for (time, begins), stop in zip(marks, stops, strict=True):
        if begins:
            parts.append(Segment(time, stop, len(parts)))
    return parts


def _flag(marker: MessageDecoder) -> str | None:
    flags = [name for name, kind in marker.kind.fields.items() if kind == Number("bool")]
    return flags[0] if len(flags) == 1 else None


def checked(segment: Any, /) -> None:
    """Refuse what is no way to cut.

    Raises:
        ValueError: Neither seconds, nor `gaps`, nor a topic.
    """
    number = isinstance(segment, int | float) and not isinstance(segment, bool) and 1e-3 <= segment < 1e9
    if not (segment is None or number or (isinstance(segment, str) and segment)):
        raise ValueError(f"segment: expected seconds, 'gaps' or a topic, found {segment!r:.60}.")


__all__ = ["Segment", "checked", "segments_of"]
