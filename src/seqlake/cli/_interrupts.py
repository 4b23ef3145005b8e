"""Ctrl-C that is never lost, wherever in Python it comes."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from sys import UnraisableHookArgs
    from types import FrameType

# In these, Python or a library written in C drops a KeyboardInterrupt or turns it into another error: modules being
# imported (numpy's random numbers, what pyarrow imports by itself), objects being destroyed, classes being built.
FILES = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>", "weakref.py", "_weakrefset.py")
FUNCTIONS = ("__del__", "__set_name__")
AGAIN = 0.005  # seconds


def never_lose_interrupts() -> None:
    """Raise KeyboardInterrupt for Ctrl-C only where it reaches the command; elsewhere wait until it can.

    Where Python itself drops one, in what it calls as it destroys an object, it says so, and another is raised.
    Whoever has chosen another handler keeps it.
    """
    alone = threading.current_thread() is threading.main_thread()
    if alone and hasattr(signal, "setitimer") and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = partial(_dropped, sys.unraisablehook)


def _dropped(before: Callable[[UnraisableHookArgs], object], unraisable: UnraisableHookArgs, /) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
    else:
        before(unraisable)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _would_be_lost(frame):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        return
    with suppress(ValueError):  # not after the interpreter began to end
        signal.setitimer(signal.ITIMER_REAL, 0)
    signal.default_int_handler(number, frame)


def _would_be_lost(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in FUNCTIONS or frame.f_code.co_filename.endswith(FILES):
            return True
        frame = frame.f_back
    return False
