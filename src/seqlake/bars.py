"""Progress bars with a lock of their own process.

tqdm's own lock is a semaphore that forked processes share: one that is killed while it holds it, as by a system that is
short of memory, would leave all others waiting for ever.
"""

from __future__ import annotations

import os
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm


@cache
def progress_bar() -> type[tqdm[Any]]:
    """What makes a bar, with tqdm's arguments; imported where one is shown.

    Example:
        >>> list(progress_bar()([1, 2], disable=True))
        [1, 2]
    """
    from tqdm import tqdm

    class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
        """A bar of ours; those of others keep their lock."""

    def renew() -> None:
        ProgressBar.set_lock(RLock())

    renew()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)  # a thread that held it is not in the child
    return ProgressBar
