"""Where a long run of tests is, said every few minutes; in CI one that stands still or takes too long says so and ends.

CI that is ended from outside shows dots and nobody knows which test it was at, nor whether the machine was slow.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import pytest

EVERY = 300.0  # seconds
STILL = 900.0  # seconds in which no test ends; a single one that hangs is ended after 600 (pyproject.toml)
LONGEST = 4500.0  # seconds of one call of pytest


class Heartbeat:
    """A plugin of the process that gives out the tests."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.ended = 0
        self.running: dict[str, float] = {}
        self.over = threading.Event()
        threading.Thread(target=self.beat, daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, in this process or in another."""
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """It is over."""
        self.running.pop(nodeid, None)
        self.ended += 1
        self.last = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """What failed is named at once, not only at the end."""
        if report.failed:
            print(f"\nfailed: {report.nodeid}", file=sys.__stderr__, flush=True)

    def pytest_unconfigure(self) -> None:
        """Nothing more to say."""
        self.over.set()

    def beat(self) -> None:
        """Say where it is until it is over."""
        said = time.monotonic()
        while not self.over.wait(10):
            now = time.monotonic()
            late = "CI" in os.environ and (now - self.last > STILL or now - self.started > LONGEST)
            if late or now - said > EVERY:
                said = now
                print(f"\n{self}", file=sys.__stderr__, flush=True)
            if late:
                self.end()

    def __str__(self) -> str:
        now = time.monotonic()
        lines = [f"{(now - self.started) / 60:.0f} minutes, {self.ended} tests ended, load {os.getloadavg()[0]:.1f}"]
        lines += [f"  since {now - began:.0f} s: {name}" for name, began in list(self.running.items())]
        return "\n".join(lines)

    def end(self) -> None:
        """Every process of tests prints the stacks of its threads, as pytest has it do when it is aborted."""
        print("The tests stand still or take too long: they are ended here.", file=sys.__stderr__, flush=True)
        workers = psutil.Process().children()
        for worker in workers:
            with suppress(psutil.Error):
                worker.send_signal(signal.SIGABRT)
        psutil.wait_procs(workers, timeout=20)
        os.abort()
