"""Columns of videos whose frames come from training copies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.abilities import HasStarts, ability
from seqlake.copies.decoding import CopyDecoder
from seqlake.copies.reading import CopyFolder, CopySet
from seqlake.copies.records import Originals
from seqlake.training.frames.clips import FrameClip, VideoColumn

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Readable
    from seqlake.training.frames.clips import Shape
    from seqlake.training.settings import FrameOptions


def copies_of(source: Readable, options: FrameOptions, /) -> CopyFolder:
    """Where the copies lie that a loader was asked to use."""
    return CopyFolder.of(source, options.copies if isinstance(options.copies, str) else None)


def copy_set(source: Readable, column: str, options: FrameOptions, /) -> CopySet:
    """The copies of a column, at the size that was asked for.

    Raises:
        MissingCopyError: There are none.
    """
    assert options.size is not None
    place = copies_of(source, options)
    return CopySet(place=place, settings=place.expect(column, options.size), originals=Originals.of(source))


class CopiedColumn(VideoColumn):
    """A column of video files that is read from their copies: the same frames by the same numbers and times."""

    copies: CopySet

    def shape(self) -> Shape:
        """[height, width, 3] of the copies."""
        return (*self.copies.settings.size, 3), np.dtype(np.uint8)

    def look(self, rows: Sequence[int]) -> dict[Hashable, FrameClip]:
        """Find the copies of some rows' files."""
        clips: dict[Hashable, FrameClip] = {}
        for row in rows:
            place = self._place(row)
            assert place is not None
            copied = self.copies.find(place.reference)
            clip = FrameClip(count=copied.record.frames, shape=self.shape(), copied=copied)
            with self._copy(place.reference, clip) as decoder:
                pts = (decoder.pts, decoder.time_base) if self._timed else None
                film = ability(decoder, HasStarts)
                clips[place.reference] = replace(clip, pts=pts, starts=None if film is None else film.starts)
        self._remember(clips)
        return clips

    def read(self, key: Hashable, clip: FrameClip, frames: Ints, out: NDArray[Any] | None) -> NDArray[Any]:
        """Frames of the original by their numbers, out of its copy."""
        with self._copy(key, clip) as decoder:
            return decoder.read(frames, out=out)

    def scatter(self, key: Hashable, clip: FrameClip, frames: Ints, places: Ints, out: NDArray[Any]) -> bool:
        """Pixels that lie mapped go to their places in one copy."""
        assert clip.copied is not None
        if not clip.copied.group.settings.is_flat:
            return False
        with self._copy(key, clip) as decoder:
            assert isinstance(decoder, CopyDecoder)
            decoder.scatter(frames, places, out)
        return True

    def _copy(self, key: Hashable, clip: FrameClip) -> AbstractContextManager[Decoder]:
        assert clip.copied is not None
        copied, device = clip.copied, self._device
        return self._pool.use((self.column.name, key), lambda: copied.decoder(device=device))
