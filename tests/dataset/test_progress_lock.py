"""Bars of a process whose forked child is killed."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from seqlake.bars import progress_bar
from seqlake.dataset.progress import counting

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked child")


def shows() -> bool:
    """Whether a bar comes and goes, and does not wait for ever."""

    def show() -> None:
        with counting(3, "rows", unit="rows") as step:
            step()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_a_child_that_is_killed_with_the_lock_takes_it_along() -> None:
    assert shows()
    hears, says = os.pipe()
    child = os.fork()
    if not child:
        with progress_bar().get_lock():
            os.write(says, b"!")
            signal.pause()
        os._exit(1)
    os.read(hears, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(hears)
    os.close(says)
    assert shows()


def test_a_child_has_a_lock_that_nobody_holds() -> None:
    with progress_bar().get_lock():
        child = os.fork()
        if not child:  # what held the lock is in the parent
            ended = False
            try:
                ended = shows()
            finally:
                os._exit(0 if ended else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
