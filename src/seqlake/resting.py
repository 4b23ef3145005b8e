"""What processes that wait for work let go of: models and maps that the next task of the same run would have needed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_kept_for_the_next: list[Callable[[], object]] = []


def at_rest(end: Callable[[], object], /) -> None:
    """Have this called in a worker that has had nothing to do for a while, whose next task may be of another run.

    Example:
        >>> models = {}
        >>> at_rest(models.clear)
    """
    _kept_for_the_next.append(end)


def let_go() -> None:
    """What a worker at rest calls.

    Example:
        >>> let_go()
    """
    for end in _kept_for_the_next:
        end()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # else the memory of a model that is gone stays this process's
