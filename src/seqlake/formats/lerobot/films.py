"""Videos on their way into a LeRobot folder: packets are copied, frames are encoded only where they must be."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFrameError, DecodeError, SchemaMismatchError, ValidationError
from seqlake.files.blobs import LocalBlob
from seqlake.formats.lerobot.counting import PictureCounts, looked_at
from seqlake.media import Encoding, VideoEncoder, depth_levels, depth_picture
from seqlake.media import open as open_media
from seqlake.media.video import cutting, joining
from seqlake.media.video.opening import open_video
from seqlake.protocols import Source
from seqlake.spec.depth import measure_of
from seqlake.spec.pixel_formats import plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.media.video.joining import Clip
    from seqlake.protocols import Store
    from seqlake.spec.column_types import ColumnType

_log = logging.getLogger(__name__)

DEPTH_PIXELS = "gray12le"
_DEEPEST_CODE = 4095
_AT_ONCE = 8  # frames that are decoded before they are counted or encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmSettings:
    """How the videos of one camera are written; picklable.

    Attributes:
        rate: Frames per second.
        limit: Bytes at which a file is full; 0: each episode has a file of its own.
        encoding: How all frames are encoded anew; None: only those are that must be, and by the usual profile.
        depth: What depth is quantised to where its pixels are not LeRobot's; None of other pictures.
        link: Files that stay as they are get a second name and are not copied, where that can be.
        looked_at: Frames whose pixels are counted: `sampled` as LeRobot does it, `all`, or `none`.
    """

    rate: Fraction
    limit: int
    encoding: Encoding | None = None
    depth: ColumnType | None = None
    link: bool = False
    looked_at: str = "sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmPlace:
    """Where the frames of an episode lie: in which file of its part, from which frame on."""

    file: int
    first: int


@dataclass(slots=True, kw_only=True, eq=False)
class FilmWriter:
    """The videos of one camera in one part.

    Attributes:
        settings: How they are written.
        kind: The column's type.
        store: Where they go.
        folder: In which folder of it.
        scratch: A folder of this machine for what is encoded.
        files: What was written: codec, size and pixels of each file.
    """

    settings: FilmSettings
    kind: ColumnType
    store: Store
    folder: str
    scratch: Path
    files: list[dict[str, Any]] = field(default_factory=list)
    _clips: list[Clip] = field(default_factory=list)
    _count: int = 0

    def add(self, source: Source, steps: int, where: str, /) -> tuple[FilmPlace, PictureCounts | None]:
        """The frames of one episode, out of a video.

        Args:
            source: The video, or its part.
            steps: How many frames the episode must have.
            where: Sequence and column, for messages.

        Raises:
            ValidationError: It has other frames.
            CorruptFrameError, DecodeError: It cannot be copied, nor decoded.
        """
        count = len(open_video(source))
        if count != steps:
            raise ValidationError(
                f"{where}: the video has {count} frames, where the episode has {steps} steps.",
                hint="LeRobot has a frame for each step: trim the sequence, or leave it or the column out.",
            )
        clip: Clip | str = "" if self._must_encode(source) else joining.clip_of(source, start=0, stop=count)
        if isinstance(clip, str):
            clip = self._cut(source, count, where, clip) if clip else self._anew(source, count, where)
        return self._take(clip)

    def add_pictures(self, pictures: Iterable[NDArray[Any]], where: str, /) -> tuple[FilmPlace, PictureCounts | None]:
        """The frames of one episode, out of pictures.

        Args:
            pictures: uint8 [H, W, 3] each.
            where: Sequence and column, for messages.

        Raises:
            SchemaMismatchError: They have different sizes, or no 8 bits.
        """
        return self._take(self._encoded(pictures, self.settings.encoding or Encoding(), where))

    def close(self) -> list[dict[str, Any]]:
        """Finish the last file."""
        self._flush()
        return self.files

    def _must_encode(self, source: Source) -> bool:
        if self.settings.encoding is not None:
            return True
        if not self.kind.is_depth:
            return False
        stream = open_video(source).packets.stream
        measure = measure_of(self.kind.fields)
        fits = stream.codec == "hevc" and plain(stream.pix_fmt) == plain(DEPTH_PIXELS)
        return not (fits and (measure is None or measure.scale is None))

    def _cut(self, source: Source, count: int, where: str, why: str) -> Clip:
        """A clip of its own, of which as few frames are encoded as its codec allows."""
        path = self._passing()
        try:
            result = cutting.cut(source, path, start=0, stop=count)
            clip = joining.clip_of(Source(blob=LocalBlob(path), column=self.kind), start=0, stop=count)
        except CorruptFrameError:
            raise
        except DecodeError as error:
            clip, result = str(error), None
        if isinstance(clip, str):
            path.unlink(missing_ok=True)
            return self._anew(source, count, where, because=why)
        if result is not None and result.encoded:
            _log.warning("%s: %d of %d frames were encoded again: %s.", where, result.encoded, count, why)
        return clip

    def _anew(self, source: Source, count: int, where: str, *, because: str = "") -> Clip:
        """A clip of which every frame is encoded."""
        if self.settings.depth is not None:
            kind = self.settings.depth
            pictures = (
                depth_picture(frame, kind, _DEEPEST_CODE, where=where)
                for frame in _frames(open_media(source), np.arange(count))
            )
            _log.warning(
                "%s: %d depth maps were quantised to 12 bits up to %g m, as LeRobot's are.",
                where,
                count,
                kind.get("depth_max"),
            )
            return self._encoded(pictures, Encoding.fitting(DEPTH_PIXELS), where)
        if because:
            _log.warning("%s: all %d frames were encoded again: %s.", where, count, because)
        encoding = self.settings.encoding or Encoding()
        return self._encoded(_frames(open_video(source), np.arange(count)), encoding, where)

    def _encoded(self, pictures: Iterable[NDArray[Any]], encoding: Encoding, where: str) -> Clip:
        path = self._passing()
        encoder = VideoEncoder(path, fps=self.settings.rate, encoding=encoding)
        try:
            for picture in pictures:
                encoder.write(encoder.checked(picture, where=where))
            encoder.close()
        except BaseException:
            encoder.abort()
            raise
        clip = joining.clip_of(Source(blob=LocalBlob(path), column=self.kind), start=0, stop=encoder.frames)
        if isinstance(clip, str):
            raise SchemaMismatchError(
                f"{where}: {encoding.codec} writes what cannot be part of a file: {clip}.",
                hint="Encode with another codec: libx264, libx265 or libsvtav1.",
            )
        return clip

    def _passing(self) -> Path:
        self._count += 1
        return self.scratch / f"{self.folder.rpartition('/')[2]}-{self._count:06d}.mp4"

    def _take(self, clip: Clip) -> tuple[FilmPlace, PictureCounts | None]:
        held = sum(one.nbytes for one in self._clips)
        full = self._clips and (not self.settings.limit or held + clip.nbytes > self.settings.limit)
        if full or (self._clips and self._clips[-1].parameters != clip.parameters):
            self._flush()
        counts = self._counted(clip)
        place = FilmPlace(file=len(self.files), first=sum(one.frames for one in self._clips))
        self._clips.append(clip)
        return place, counts

    def _counted(self, clip: Clip) -> PictureCounts | None:
        if self.settings.looked_at == "none":
            return None
        kind = self.settings.depth or self.kind
        counts = PictureCounts()
        numbers = np.arange(clip.frames) if self.settings.looked_at == "all" else looked_at(clip.frames)
        column = kind if kind.is_depth else self.kind
        decoder = _decoder(clip, column)
        with closing(decoder):
            for begin in range(0, len(numbers), _AT_ONCE):
                counts.add(decoder.read(numbers[begin : begin + _AT_ONCE]))
        if counts.values is not None and kind.is_depth:
            counts.metres = depth_levels(kind, counts.values.shape[1])
        return counts

    def _flush(self) -> None:
        if not self._clips:
            return
        clips, self._clips = self._clips, []
        path = f"{self.folder}/{len(self.files):06d}.mp4"
        whole = _whole_file(clips, self.settings.rate)
        if whole is not None:
            self._keep(whole, path)
        else:
            here = self.store.local(path) or self._passing()
            joining.join(clips, here, rate=self.settings.rate)
            self.store.put(path, here)
        stream = clips[0].packets.stream
        self.files.append(
            {"codec": stream.codec, "width": stream.width, "height": stream.height, "pix_fmt": stream.pix_fmt}
        )
        for clip in clips:
            if isinstance(clip.blob, LocalBlob) and Path(clip.blob.location).parent == self.scratch:
                Path(clip.blob.location).unlink(missing_ok=True)

    def _keep(self, whole: Path, path: str) -> None:
        """A file as it is, linked or copied; what others may not read is copied, so that they may."""
        here = self.store.local(path)
        open_to_all = stat.S_IMODE(whole.stat().st_mode) & 0o444 == 0o444
        if self.settings.link and here is not None and open_to_all and whole.parent != self.scratch:
            try:
                os.link(os.path.realpath(whole), here)
            except OSError:
                pass  # another disk, or one without links
            else:
                return
        self.store.put(path, whole)


def _decoder(clip: Clip, kind: ColumnType) -> Any:
    source = Source(blob=clip.blob, column=kind, first=clip.plan.start, count=clip.frames)
    return open_video(source)


def _frames(decoder: Any, numbers: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
    with closing(decoder):
        for begin in range(0, len(numbers), _AT_ONCE):
            yield from decoder.read(numbers[begin : begin + _AT_ONCE])


def _whole_file(clips: list[Clip], rate: Fraction) -> Path | None:
    """The file that clips are all of, one after another; None where they are not, or it has other times."""
    first, last = clips[0], clips[-1]
    if not isinstance(first.blob, LocalBlob) or any(clip.blob.location != first.blob.location for clip in clips):
        return None
    if any(one.plan.end != two.plan.begin for one, two in pairwise(clips)):
        return None
    span = joining.spanning(first, last)
    return Path(first.blob.location) if span.is_file(rate) else None
