"""What `trim` and `segment` share: steps and times as arguments, and what was made."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from seqlake.cli._output import Output
    from seqlake.dataset.reshaping.trimming import Cuts

Moment = int | float
"""A step of the clock (int), or seconds (float)."""


def _read(text: str) -> Moment:
    try:
        return float(text[:-1]) if text.endswith("s") else int(text)
    except ValueError:
        raise click.BadParameter(f"expected a step, as in 40, or seconds, as in 1.5s, found {text!r}.") from None


def moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Moment | None:
    """One step or time."""
    return None if text is None else _read(text.strip())


def moments(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[Moment] | None:
    """Steps or times, between commas."""
    if text is None:
        return None
    steps = [_read(part.strip()) for part in text.split(",") if part.strip()]
    if not steps:
        raise click.BadParameter("expected at least one step or time.")
    return steps


def seconds_of(one: Moment, /) -> float:
    """A time.

    Raises:
        UsageError: It is a step.
    """
    if not isinstance(one, float):
        raise click.UsageError(f"Give all in steps or all in seconds; {one} is a step, {one}s is a time.")
    return one


def in_seconds(one: Moment | None, /) -> float | None:
    """A time, or none."""
    return None if one is None else seconds_of(one)


def tell(cuts: Cuts, out: str, output: Output) -> None:
    """What was made, how much of it was encoded again, and why."""
    why = Counter((file.column, file.note) for file in cuts.files if file.note)
    lines = [f"{len(cuts.dataset)} sequences at {out}."]
    if cuts.left_out:
        lines.append(f"{len(cuts.left_out)} sequences have no such steps and are left out: {_some(cuts.left_out)}")
    if cuts.files:
        lines.append(f"{len(cuts.files)} files of {cuts.frames} frames, {cuts.encoded} of them encoded again.")
    lines += [f"{column}: {note} ({count} files)" for (column, note), count in sorted(why.items())]
    document = {
        "rows": len(cuts.dataset),
        "out": out,
        "left_out": list(cuts.left_out),
        "files": len(cuts.files),
        "frames": cuts.frames,
        "encoded": cuts.encoded,
        "notes": [{"column": column, "note": note, "files": count} for (column, note), count in sorted(why.items())],
    }
    output.document(document, text="\n".join(lines))


def _some(ids: tuple[str, ...]) -> str:
    return ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
