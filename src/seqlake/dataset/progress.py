"""Long work over shards shows how far it is, on stderr."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from seqlake.bars import progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")

_SHOWN: ContextVar[bool | None] = ContextVar("seqlake_progress", default=None)


@contextmanager
def enabled(wanted: bool | None, /) -> Iterator[None]:  # noqa: FBT001 - what the block is about
    """Within the block, progress is shown or not; None: where stderr is a terminal."""
    before = _SHOWN.set(wanted)
    try:
        yield
    finally:
        _SHOWN.reset(before)


def over(items: Sequence[Item], what: str, /, *, unit: str = "shards") -> Iterator[Item]:
    """The items one by one; work of more than a second shows a bar."""
    wanted = _SHOWN.get()
    hidden = None if wanted is None else not wanted
    yield from progress_bar()(items, desc=what, unit=f" {unit}", delay=1, leave=False, disable=hidden)


@contextmanager
def counting(total: int, what: str, /, *, unit: str) -> Iterator[Callable[..., object]]:
    """A function to be called for each of so many things that are done, or with how many; shown as `over` shows it."""
    wanted = _SHOWN.get()
    hidden = None if wanted is None else not wanted
    with progress_bar()(total=total, desc=what, unit=f" {unit}", delay=1, leave=False, disable=hidden) as bar:
        yield bar.update


@contextmanager
def timing(seconds: float, what: str, /) -> Iterator[Callable[[float, str], None]]:
    """A function to be called with the seconds that passed and what there is to say; shown as `over` shows it."""
    wanted = _SHOWN.get()
    hidden = None if wanted is None else not wanted
    form = "{desc}: {bar} {n:.0f}/{total:.0f} s{postfix}"
    with progress_bar()(total=seconds, desc=what, bar_format=form, leave=False, disable=hidden, mininterval=0.2) as bar:

        def show(passed: float, text: str) -> None:
            bar.set_postfix_str(text, refresh=False)
            bar.update(min(passed, seconds) - bar.n)

        yield show


@contextmanager
def of_parts(parts: int, rows: int, nbytes: int, what: str, /) -> Iterator[Callable[[int, int], None]]:
    """A function to be called with the rows and bytes of each part that is done; shows tasks, rows, bytes, rate, time.

    Args:
        parts: All of them.
        rows: Of all.
        nbytes: Likewise.
        what: The verb.
    """
    wanted = _SHOWN.get()
    hidden = None if wanted is None else not wanted
    ended = amount = 0
    with progress_bar()(total=rows, desc=what, unit=" sequences", delay=1, leave=False, disable=hidden) as bar:

        def step(some: int, size: int) -> None:
            nonlocal ended, amount
            ended, amount = ended + 1, amount + size
            text = f"{ended} of {parts} tasks, {amount / 1e6:,.0f} of {nbytes / 1e6:,.0f} MB"
            bar.set_postfix_str(text, refresh=False)
            bar.update(some)

        yield step
