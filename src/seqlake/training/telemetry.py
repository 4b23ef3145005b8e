"""What a loader spends its time on, counted as it goes: a few clock readings a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.training.fetching.transfers import Traffic

STAGES = ("order", "open", "locate", "gather", "decode", "transform")
ORIGINS = ("memory", "mapped", "cache", "range")
"""Where steps come from: shards copied or decoded into memory, files read in place, copies in the cache's folder,
ranges read from a store for each window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What came from stores: shards, windows by range, parts of videos.

    Attributes:
        nbytes: Bytes that arrived.
        requests: Requests for them, failed ones among them.
        retries: Requests after the first for the same bytes.
        hits: Shards that were there when they were needed, or came in time.
        misses: Shards that were made while the consumer waited.
        waited: Seconds waited for shards.
    """

    nbytes: int = 0
    requests: int = 0
    retries: int = 0
    hits: int = 0
    misses: int = 0
    waited: float = 0.0

    @classmethod
    def of(cls, traffic: Traffic) -> Fetched:
        """Traffic that no cache had a part in."""
        return cls(nbytes=traffic.nbytes, requests=traffic.requests, retries=traffic.retries)

    def __add__(self, other: Fetched, /) -> Fetched:
        """The sum of both."""
        return Fetched(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(slots=True)
class DecodeWork:
    """Decoding done.

    Attributes:
        frames: Frames decoded, each once for a batch.
        delivered: Frames in batches, missing ones among them.
        seconds: Time of all threads in it.
        batches: Batches taken.
        ready: Those that were decoded before they were asked for.
    """

    frames: int = 0
    delivered: int = 0
    seconds: float = 0.0
    batches: int = 0
    ready: int = 0

    def add(self, other: DecodeWork, /, *, ready: bool) -> None:
        """Count a batch's work."""
        self.frames += other.frames
        self.delivered += other.delivered
        self.seconds += other.seconds
        self.batches += 1
        self.ready += ready


@dataclass(slots=True)
class Meter:
    """Counts of one loader in one process; written by its passes.

    Attributes:
        seconds: Stage -> time of the thread that asks for batches.
        nbytes: Origin -> bytes of windows delivered from there.
        batches, samples: Delivered.
        inside: Seconds in which a batch was waited for.
        elapsed: Seconds from asking for the first batch of each pass to its last.
        work: Decoding.
        ahead: Batches that are decoded ahead.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    nbytes: dict[str, float] = field(default_factory=dict)
    batches: int = 0
    samples: int = 0
    inside: float = 0.0
    elapsed: float = 0.0
    work: DecodeWork = field(default_factory=DecodeWork)
    ahead: int = 0

    def report(self, *, held: int, fetched: Fetched, files: Fetched) -> Telemetry:
        """The counts as a value."""
        return Telemetry(
            batches=self.batches,
            samples=self.samples,
            elapsed=self.elapsed,
            waited=self.inside,
            stages=dict(self.seconds),
            nbytes={origin: round(count) for origin, count in self.nbytes.items()},
            held=held,
            fetched=fetched,
            files=files,
            frames_decoded=self.work.frames,
            frames_delivered=self.work.delivered,
            decode_seconds=self.work.seconds,
            ahead=self.ahead,
            ready=self.work.ready / self.work.batches if self.work.batches else 1.0,
        )


@dataclass(frozen=True, kw_only=True)
class Telemetry:
    """What a loader did so far in this process; prints itself.

    Attributes:
        batches: Delivered.
        samples: Delivered windows or sequences.
        elapsed: Seconds from asking for a pass's first batch to the delivery of its last, over all passes.
        waited: Seconds of it inside `next`: the consumer had to wait.
        stages: `order` (which windows), `open` (shards opened and looked at), `locate` (where windows lie), `gather`
            (copying them), `decode` (waiting for frames), `transform` (the user's functions) -> seconds of the
            consumer's thread. What is left of `waited` is the loop itself.
        nbytes: Bytes of delivered windows by origin: `mapped` files read in place, `memory` that shards were copied or
            decoded into, `cache` in a folder, `range` read from a store.
        held: Bytes of memory that shards take, copied or decoded.
        fetched: Bytes and requests of stores, hits and misses of the cache.
        files: Bytes and requests of stores for videos and images that are files, of which only parts are read.
        frames_decoded: Frames decoded; those that windows of a batch share count once.
        frames_delivered: Frames in batches.
        decode_seconds: Seconds in which the decoding threads worked, added up.
        ahead: Batches that are decoded while one is in use.
        ready: Share of the batches with frames that were ready when they were asked for.

    Example:
        >>> report = loader.report()
        >>> 0 <= report.wait_share <= 1
        True
    """

    batches: int
    samples: int
    elapsed: float
    waited: float
    stages: Mapping[str, float]
    nbytes: Mapping[str, int]
    held: int
    fetched: Fetched
    files: Fetched
    frames_decoded: int
    frames_delivered: int
    decode_seconds: float
    ahead: int
    ready: float

    @property
    def wait_share(self) -> float:
        """Share of the time that the consumer waited: near 1 the loader is the limit, near 0 training is."""
        return self.waited / self.elapsed if self.elapsed else 0.0

    @property
    def read_amplification(self) -> float | None:
        """Bytes fetched from stores for each byte delivered of them; None where none was. Below 1 windows share."""
        delivered = self.nbytes.get("cache", 0) + self.nbytes.get("range", 0)
        return self.fetched.nbytes / delivered if delivered and self.fetched.nbytes else None

    @property
    def samples_per_second(self) -> float:
        """Windows or sequences a second, the consumer's own time included."""
        return self.samples / self.elapsed if self.elapsed else 0.0

    @property
    def frames_per_second(self) -> float:
        """Frames decoded in a second of elapsed time."""
        return self.frames_decoded / self.elapsed if self.elapsed else 0.0

    def __str__(self) -> str:
        rate = f"{self.samples_per_second:,.0f} samples/s"
        lines = [
            f"delivered  {self.batches:,} batches, {self.samples:,} samples in {self.elapsed:.2f} s: {rate}",
            f"waited     {self.waited:.2f} s, {self.wait_share:.0%} of the time",
            "stages     " + ", ".join(f"{name} {spent:.3f} s" for name, spent in self.stages.items() if spent),
            "bytes      " + (", ".join(f"{name} {_size(count)}" for name, count in self.nbytes.items()) or "none"),
        ]
        if self.held:
            lines.append(f"in memory  {_size(self.held)} of shards")
        fetched = self.fetched
        shards = fetched.hits + fetched.misses
        if shards or fetched.requests:
            there = f"; {fetched.hits} of {shards} shards were there, {fetched.waited:.2f} s waited for them"
            lines.append(_traffic("fetched    ", fetched) + (there if shards else ""))
        if self.frames_delivered:
            lines.append(
                f"frames     {self.frames_decoded:,} decoded for {self.frames_delivered:,} delivered, "
                f"{self.frames_per_second:,.0f}/s, {self.decode_seconds:.2f} s of threads"
            )
            if self.files.requests:
                lines.append(_traffic("files      ", self.files))
            lines.append(f"ahead      {self.ahead} batches, {self.ready:.0%} ready when asked for")
        return "\n".join(lines)


def _traffic(name: str, fetched: Fetched) -> str:
    return f"{name}{_size(fetched.nbytes)} in {fetched.requests:,} requests"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
