"""Dry runs: a change is made up to its first write, so that whatever would refuse it refuses it now."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_REHEARSING: ContextVar[bool] = ContextVar("seqlake_rehearsing", default=False)


class Rehearsed(Exception):  # noqa: N818 - nothing went wrong
    """Internal: a rehearsal came to the first write; everything before it was in order."""


@contextmanager
def rehearsing() -> Iterator[None]:
    """Within the block a change of this thread ends, without an error, where it would begin to write."""
    before = _REHEARSING.set(True)
    try:
        with suppress(Rehearsed):
            yield
    finally:
        _REHEARSING.reset(before)


def under_way() -> bool:
    """Whether this thread rehearses."""
    return _REHEARSING.get()


def stop_here() -> None:
    """The next step writes: a rehearsal is over."""
    if under_way():
        raise Rehearsed
