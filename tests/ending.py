"""Programs of other people that tests begin, browsers and JVMs: where one does not end, its processes are ended."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0  # seconds


@contextmanager
def ended(seconds: float = PATIENCE) -> Iterator[None]:
    """What is closed within: after so long this process's own are killed, and what closing says then is no error.

    CI that waits for a browser that hangs tells nobody anything.
    """
    late = threading.Event()

    def kill() -> None:
        late.set()
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:
        if not late.is_set():
            raise
    finally:
        timer.cancel()
