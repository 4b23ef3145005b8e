"""Frames of an original by their numbers, out of its copy."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.abilities import HasStarts, ability
from seqlake.errors import CorruptFrameError, DecodeError, MissingCopyError
from seqlake.files.checksums import crc32
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.abilities import Kind
    from seqlake.copies.records import CopyRecord
    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Blob, Decoder, Ints

_BEGIN = 8  # bytes of the number where pixels begin
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
        self._film: HasStarts | None = None
        self._pixels: NDArray[np.uint8] | None = None
        self._sums = np.zeros(0, np.uint32)
        if settings.is_flat:
            self._pixels, self._sums = _flat(record, settings, blob)
            self._proven = np.zeros(record.count, bool)
        elif settings.codec == "mjpeg":
            self._decoder = _Jpegs(record, settings, blob)
        else:
            with self._blamed():
                source = Source(blob=blob, column=Video(), index=record.index or None)
                self._decoder = media.open(source, device=device)
            self._film = ability(self._decoder, HasStarts)
        if self._decoder is not None and len(self._decoder) != record.count:
            self.close()
            raise damaged(self._location, f"expected {record.count} frames.")

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
    def starts(self) -> Ints:
        """Frames of the original with which groups of pictures begin."""
        assert self._film is not None
        kept, starts = self._record.kept, self._film.starts
        return starts if kept is None else kept[starts]

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """Itself; no starts where every frame stands alone."""
        if kind is HasStarts and self._film is None:
            return None
        return self if isinstance(self, kind) else None

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
        if out is None:
            out = np.empty((len(numbers), *self._settings.size, 3), np.uint8)
        if not len(numbers):
            return out
        if self._pixels is not None:
            self._prove(self._pixels, numbers)
            return _taken(self._pixels, numbers, out)
        assert self._decoder is not None
        with self._blamed():
            return self._decoder.read(numbers, out=out)

    def scatter(self, indices: Ints, places: Ints, out: NDArray[np.uint8], /) -> None:
        """Put frames, by their numbers in the original, at places of `out`; of flat copies.

        Raises:
            MissingCopyError: The copy lacks one of them, or is damaged.
        """
        pixels, numbers = self._pixels, self._numbers(indices)
        assert pixels is not None
        self._prove(pixels, numbers)
        edges = np.flatnonzero((np.diff(numbers) != 1) | (np.diff(places) != 1)) + 1
        runs = zip([0, *edges.tolist()], [*edges.tolist(), len(numbers)], strict=True)
        for begin, end in runs if len(numbers) else ():
            number, place = int(numbers[begin]), int(places[begin])
            out[place : place + end - begin] = pixels[number : number + end - begin]

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

    def _prove(self, pixels: NDArray[np.uint8], numbers: Ints) -> None:
        """Compare frames with their checksums, each when it is first asked for."""
        for number in numbers[~self._proven[numbers]].tolist():
            if crc32(pixels[number].data) != self._sums[number]:
                raise damaged(self._location, f"the bytes of frame {number} have changed.")
            self._proven[number] = True

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


def _flat(record: CopyRecord, settings: CopySettings, blob: Blob) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """[frames, height, width, 3] the pixels where they lie, or in memory where they lie elsewhere; [frames] CRC-32."""
    begin, sums = int.from_bytes(record.index[:_BEGIN], "little"), _numbers_of(record, blob, record.index[_BEGIN:])
    shape = (record.count, *settings.size, 3)
    if begin + prod(shape) != blob.size or len(sums) != record.count:
        raise damaged(blob.location, f"expected {shape} numbers from byte {begin} on, found {blob.size} bytes.")
    view = blob.view()
    if view is None:
        (view,) = blob.ranges(np.array([0]), np.array([blob.size]))
    return np.frombuffer(view, np.uint8, offset=begin).reshape(shape), sums


def _numbers_of(record: CopyRecord, blob: Blob, data: bytes) -> NDArray[np.uint32]:
    """What an index has of each frame."""
    if len(data) % 4:
        raise damaged(blob.location, f"the index of {record.reference} is none.")
    return np.frombuffer(data, "<u4")


def _taken(pixels: NDArray[np.uint8], numbers: Ints, out: NDArray[Any]) -> NDArray[Any]:
    if (np.diff(numbers) == 1).all():
        out[:] = pixels[numbers[0] : numbers[0] + len(numbers)]
    else:
        np.take(pixels, numbers, axis=0, out=out, mode="clip")  # unbuffered; the numbers were checked
    return out


class _Jpegs:
    """JPEGs end to end, of which the record has the sizes, then their CRC-32; for one thread at a time."""

    def __init__(self, record: CopyRecord, settings: CopySettings, blob: Blob) -> None:
        sizes, sums = np.split(_numbers_of(record, blob, record.index), [record.count])
        ends = np.cumsum(sizes, dtype=np.int64)
        if len(sums) != len(ends) or len(ends) != record.count or int(ends[-1]) != blob.size:
            raise damaged(blob.location, f"expected {record.count} pictures, found {len(ends)} in {blob.size} bytes.")
        self.pts: Ints = np.arange(record.count, dtype=np.int64)
        self.time_base = record.time_base
        self._size = settings.size
        self._blob = blob
        self._ends = ends
        self._begins = ends - sizes
        self._sums: list[int] = sums.tolist()

    def __len__(self) -> int:
        return len(self._ends)

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """[N, height, width, 3], each decoded where it is wanted."""
        assert size in (None, self._size)
        out = np.empty((len(indices), *self._size, 3), np.uint8) if out is None else out
        view, begins, ends = self._blob.view(), self._begins[indices], self._ends[indices]
        if view is None:
            parts = self._blob.ranges(begins, ends)
        else:
            parts = [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        for place, (number, data) in enumerate(zip(indices.tolist(), parts, strict=True)):
            if crc32(data) != self._sums[number]:
                raise CorruptFrameError(f"The bytes of picture {number} have changed.")
            media.decode_into(data, out[place], name=f"picture {number}")
        return out

    def close(self) -> None:
        """Nothing to release: the file is the caller's."""
