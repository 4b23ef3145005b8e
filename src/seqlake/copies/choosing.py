"""Which codec pays: what each takes and gives, measured on a few clips of the dataset itself."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from seqlake import media
from seqlake.copies.decoding import CopyDecoder
from seqlake.copies.making import pictures, write_copy
from seqlake.copies.records import Fingerprint
from seqlake.copies.settings import CODECS, SUFFIXES
from seqlake.errors import DecodeError
from seqlake.files.stores import open_blob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.copies.reading import CopySet
    from seqlake.copies.settings import Codec, CopySettings
    from seqlake.protocols import Decoder, Ints
    from seqlake.spec.column_types import ColumnType

_CLIPS = 2  # files that are looked at
_FRAMES = 48  # of each
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
_TIMES = 4  # the bytes of the originals
_WINDOW = 2  # neighbours that are read together: what random windows of cameras are like


def megabytes(count: int, /) -> str:
    """Bytes for people, in decimal units as budgets are given.

    Example:
        >>> megabytes(1_500_000), megabytes(2_500)
        ('1.5 MB', '2.5 kB')
    """
    size, unit = next((scale, unit) for scale, unit in _UNITS if count >= scale or unit == "kB")
    return f"{count / size:,.1f} {unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one codec takes and gives.

    Attributes:
        codec: Its name.
        frame_bytes: Of one frame, on average.
        frames_per_second: Decoded at random places, two at a time, by one thread.
        psnr: How near frames are to the scaled original, in dB; infinite where nothing is lost.
        nbytes: All copies, estimated.
    """

    codec: Codec
    frame_bytes: float
    frames_per_second: float
    psnr: float
    nbytes: int

    def __str__(self) -> str:
        near = "nothing is lost" if np.isinf(self.psnr) else f"{self.psnr:.1f} dB"
        return (
            f"{self.codec}: {self.frames_per_second:,.0f} frames a second by one thread, "
            f"{self.frame_bytes / 1e3:,.1f} kB a frame, {near}, {megabytes(self.nbytes)} in all"
        )


class _First:
    """The first frames of a film, as if it had no more."""

    def __init__(self, inner: Decoder, count: int) -> None:
        self._inner = inner
        self._count = min(count, len(inner))
        self.pts: Ints = inner.pts[: self._count]
        self.time_base = inner.time_base
        self.read = inner.read

    def __len__(self) -> int:
        return self._count

    def close(self) -> None:
        self._inner.close()


def measure(
    group: CopySet, column: ColumnType, references: Sequence[str], /, *, codecs: Sequence[Codec] = CODECS
) -> list[Measured]:
    """What codecs take and give of the copies of these files.

    Args:
        group: The set; its codec does not matter.
        column: The type of its column.
        references: All files; the first, the middle one and so on are looked at.
        codecs: Which.

    Raises:
        DecodeError: None of the files that were looked at can be decoded; the first one's reason.
    """
    clips = sorted({*np.linspace(0, len(references) - 1, _CLIPS).astype(int).tolist()})
    sums = {codec: np.zeros(5) for codec in codecs}  # bytes, frames, seconds, frames read, squared error
    lengths: list[int] = []
    first: DecodeError | None = None
    for number in clips:
        source = group.originals.files.source(references[number], column)
        try:
            lengths.append(len(media.open(source)) // group.settings.every)
            for codec in codecs:
                sums[codec] += _tried(media.open(source), replace(group.settings, codec=codec, every=1))
        except DecodeError as error:
            first = first or error
    if not lengths or not all(one[1] for one in sums.values()):
        assert first is not None
        raise first
    frames = float(np.mean(lengths)) * len(references)
    return [
        Measured(
            codec=codec,
            frame_bytes=one[0] / one[1],
            frames_per_second=one[3] / max(1e-9, one[2]),
            psnr=10 * float(np.log10(255**2 * one[1] / one[4])) if one[4] else float("inf"),
            nbytes=round(one[0] / one[1] * frames),
        )
        for codec, one in sums.items()
    ]


def _tried(original: Decoder, settings: CopySettings) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    clip = _First(original, _FRAMES)
    numbers = np.arange(len(clip))
    exact = np.stack(list(pictures(clip, settings, numbers)))
    with tempfile.TemporaryDirectory(prefix="seqlake-copies-") as scratch:
        target = Path(scratch) / f"copy{SUFFIXES[settings.codec]}"
        nothing = {"reference": "", "original": Fingerprint(nbytes=0)}
        record = write_copy(clip, settings, target, phases=(0,), facts=nothing)
        decoder = CopyDecoder(record, settings, open_blob(target))
        error = float(np.mean((decoder.read(numbers).astype(np.float64) - exact) ** 2))
        begins = np.random.default_rng(0).integers(0, max(1, len(clip) - _WINDOW + 1), 24)
        windows = [np.arange(begin, min(begin + _WINDOW, len(clip))) for begin in begins.tolist()]
        began = thread_time()
        for window in windows:
            decoder.read(window)
        seconds = thread_time() - began
        decoder.close()
    return np.array([record.nbytes, len(clip), seconds, sum(map(len, windows)), error * len(clip)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """Bytes that copies may take.

    Attributes:
        nbytes: How many.
        why: What they are, for people; empty where somebody gave them.
    """

    nbytes: int
    why: str = ""

    @classmethod
    def by_default(cls, originals: int, /, *, disk: int, memory: int) -> Allowance:
        """What fits this machine: raw pixels are read at the speed of memory only where they stay there.

        Args:
            originals: Bytes of the originals.
            disk: Free bytes where copies will lie; 0 where nobody knows.
            memory: Of the machine.

        Example:
            >>> Allowance.by_default(10, disk=10_000, memory=500).nbytes
            250
            >>> Allowance.by_default(1_000, disk=10_000, memory=500).nbytes
            2500
            >>> Allowance.by_default(1_000, disk=0, memory=500).nbytes
            1000
        """
        quarter, kept = disk // 4, max(memory // 2, _TIMES * originals)
        if originals >= min(quarter, kept):
            return cls(nbytes=originals, why="what the originals take")
        if quarter <= kept:
            return cls(nbytes=quarter, why="a quarter of what is free there")
        if memory // 2 == kept:
            return cls(nbytes=kept, why="what stays in memory, half of this machine's")
        return cls(nbytes=kept, why=f"{_TIMES} times the originals")

    def __str__(self) -> str:
        return f"{megabytes(self.nbytes)}, {self.why}" if self.why else megabytes(self.nbytes)


def choose(measured: Sequence[Measured], /, *, budget: Allowance) -> tuple[Measured, str]:
    """The fastest codec whose copies fit, and why; the smallest where none does."""
    fitting = [one for one in measured if one.nbytes <= budget.nbytes]
    if not fitting:
        smallest = min(measured, key=lambda one: one.nbytes)
        return smallest, f"{smallest.codec}: none fits {budget}, and it takes least"
    fastest = max(fitting, key=lambda one: one.frames_per_second)
    return fastest, f"{fastest.codec}: the fastest of those that fit {budget}"
