"""What this process asks of object stores: how often, for what, and how many times one after the other."""

from __future__ import annotations

import time
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

import obstore

if TYPE_CHECKING:
    from types import TracebackType

VERBS = ("get", "head", "list", "put", "copy", "delete")


class Asked:
    """Within the block, every request through obstore is counted and timed.

    Args:
        latency: Seconds that each waits before it is made, as for a store that is far away.

    Attributes:
        requests: (verb, path, begin, end) of each, in seconds.
    """

    def __init__(self, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.requests: list[tuple[str, str, float, float]] = []
        self._lock = Lock()
        self._real: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for verb in VERBS:
            self._real[verb] = getattr(obstore, verb)
            setattr(obstore, verb, self._counting(verb))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for verb, real in self._real.items():
            setattr(obstore, verb, real)

    def _counting(self, verb: str) -> Any:
        real = self._real[verb]

        def call(store: Any, *args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            time.sleep(self.latency)
            try:
                answer = real(store, *args, **options)
                # A listing is asked for as it is iterated.
                return iter(list(answer)) if verb == "list" else answer
            finally:
                named = args[0] if args else options.get("prefix")
                paths = named if isinstance(named, list) else [named or ""]
                with self._lock:
                    end = time.perf_counter()
                    # S3 deletes a thousand names in one request.
                    self.requests += [(verb, str(path), begin, end) for path in paths[::1000]]

        return call

    @property
    def count(self) -> int:
        """All requests."""
        return len(self.requests)

    @property
    def round_trips(self) -> int:
        """The most requests none of which began before another of them had ended: what latency is multiplied by."""
        trips, free = 0, float("-inf")
        for _, _, begin, end in sorted(self.requests, key=lambda one: one[3]):
            if begin >= free:
                trips, free = trips + 1, end
        return trips

    @property
    def by_folder(self) -> dict[str, int]:
        """Requests by the folder that they are about, the most first."""
        counts = Counter(f"{verb} {path.rpartition('/')[0] or path}" for verb, path, _, _ in self.requests)
        return dict(counts.most_common())
