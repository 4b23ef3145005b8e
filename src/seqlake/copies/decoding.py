"""Frames of an original by their numbers, out of its copy."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.abilities import HasStarts, ability
from seqlake.errors import DecodeError, MissingCopyError
from seqlake.protocols import Source
from seqlake.spec.column_types import Image, Video

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.copies.records import CopyRecord
    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Blob, Decoder, Ints

AGAIN = "Drop the copies and make them again: seqlake prepare --drop."


class CopyDecoder:
    """One copy as its original: as many frames, the same numbers and times, smaller pictures; one thread at a time.

    Args:
        record: What is known of it.
        settings: Of its set.
        blob: Its bytes.
        device: Where films are decoded.
    """

    def __init__(self, record: CopyRecord, settings: CopySettings, blob: Blob, /, *, device: str = "cpu") -> None:
        self._record = record
        self._settings = settings
        self._location = blob.location
        self._decoder: Decoder | None = None
        self._pixels: NDArray[np.uint8] | None = None
        if settings.codec == "raw":
            self._pixels = _flat(record, settings, blob)
        elif settings.codec == "mjpeg":
            self._decoder = _pictures(record, blob)
        else:
            with self._blamed():
                source = Source(blob=blob, column=Video(), index=record.index or None)
                self._decoder = media.open(source, device=device)

    def __len__(self) -> int:
        return self._record.frames

    @property
    def pts(self) -> Ints:
        """[frames] when each frame of the original is shown."""
        return self._record.pts

    @property
    def time_base(self) -> Fraction:
        """Seconds of a tick."""
        return self._record.time_base

    @property
    def starts(self) -> Ints | None:
        """Frames of the original with which groups of pictures begin; None where every frame stands alone."""
        known = None if self._decoder is None else ability(self._decoder, HasStarts)
        if known is None:
            return None
        kept = self._record.kept
        return known.starts if kept is None else kept[known.starts]

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """[N, height, width, 3] frames by their numbers in the original, in the order asked.

        Raises:
            MissingCopyError: The copy lacks one of them, or is damaged.
        """
        if size not in (None, self._settings.size):
            raise ValueError(f"A copy has frames of {self._settings.size}, found size={size}.")
        numbers = self._numbers(np.asarray(indices, np.int64))
        if self._pixels is not None:
            return _taken(self._pixels, numbers, out)
        assert self._decoder is not None
        if not len(numbers):
            return np.empty((0, *self._settings.size, 3), np.uint8)
        with self._blamed():
            return self._decoder.read(numbers, out=out)

    def close(self) -> None:
        """Let go of the file."""
        self._pixels = None
        if self._decoder is not None:
            self._decoder.close()

    def _numbers(self, wanted: Ints) -> Ints:
        """Where frames of the original stand in the copy."""
        kept = self._record.kept
        if len(wanted) and not 0 <= int(wanted.min()) <= int(wanted.max()) < self._record.frames:
            raise IndexError(f"There are frames 0 to {self._record.frames - 1}, found {wanted.tolist()}.")
        if kept is None:
            return wanted
        places: Ints = np.searchsorted(kept, wanted)
        there = np.append(kept, -1)[places] == wanted
        if not there.all():
            raise MissingCopyError(
                f"the training copy keeps one of {self._record.every} frames, and frame {int(wanted[~there][0])} of "
                f"{self._record.reference} is not among them.",
                path=self._location,
                hint="Ask for steps that are there, or make copies at the full rate: seqlake prepare without --fps.",
            )
        return places

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Damage of a copy is not damage of the data."""
        try:
            yield
        except (DecodeError, FileNotFoundError) as error:
            raise damaged(self._location, error) from error


def damaged(location: str, why: object, /) -> MissingCopyError:
    """The error about a copy that cannot be used."""
    return MissingCopyError(f"the training copy {location} is damaged: {why}", path=location, hint=AGAIN)


def _flat(record: CopyRecord, settings: CopySettings, blob: Blob) -> NDArray[np.uint8]:
    """[frames, height, width, 3] the pixels where they lie, or in memory where they lie elsewhere."""
    begin, shape = int.from_bytes(record.index, "little"), (record.count, *settings.size, 3)
    if begin + int(np.prod(shape)) != blob.size:
        raise damaged(blob.location, f"expected {shape} numbers from byte {begin} on, found {blob.size} bytes.")
    view = blob.view()
    if view is None:
        (view,) = blob.ranges(np.array([0]), np.array([blob.size]))
    return np.frombuffer(view, np.uint8, offset=begin).reshape(shape)


def _taken(pixels: NDArray[np.uint8], numbers: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
    if out is None:
        out = np.empty((len(numbers), *pixels.shape[1:]), np.uint8)
    if len(numbers) and (np.diff(numbers) == 1).all():
        out[:] = pixels[numbers[0] : numbers[0] + len(numbers)]
    else:
        np.take(pixels, numbers, axis=0, out=out, mode="clip")  # unbuffered; the numbers were checked
    return out


def _pictures(record: CopyRecord, blob: Blob) -> Decoder:
    """JPEGs end to end, whose sizes the record has."""
    ends = np.cumsum(np.frombuffer(record.index, "<u4"), dtype=np.int64)
    if len(ends) != record.count or (len(ends) and int(ends[-1]) != blob.size):
        raise damaged(blob.location, f"expected {record.count} pictures, found {len(ends)} in {blob.size} bytes.")
    begins = np.concatenate([np.zeros(1, np.int64), ends])
    kind = Image()

    def picture(number: int) -> Source:
        (data,) = blob.ranges(begins[number : number + 1], ends[number : number + 1])
        return Source(blob=bytes(data), column=kind)

    return media.open_steps(len(ends), picture, kind)
