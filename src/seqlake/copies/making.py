"""One copy of one file: decoded, scaled, encoded, and named only when it is whole."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seqlake import media
from seqlake.copies.records import CopyRecord, kept_of, packed
from seqlake.copies.settings import SUFFIXES
from seqlake.errors import CorruptFileError, DecodeError, MissingFileError, SchemaMismatchError
from seqlake.files.checksums import crc32
from seqlake.files.stores import open_blob
from seqlake.media import TICKS, Encoding, VideoEncoder, encode_image
from seqlake.protocols import Source
from seqlake.spec.column_types import Video

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.copies.reading import CopySet
    from seqlake.copies.settings import CopySettings
    from seqlake.protocols import Decoder, Ints
    from seqlake.spec.column_types import ColumnType

_TOGETHER = 48  # frames that are in memory at a time
_QUALITY = 90  # of JPEG: two thirds of the bytes, and four fifths of the work, of 95
_ENCODINGS = {"h264": Encoding(), "ffv1": Encoding(codec="ffv1", keyframe_every=1, pixel_format="bgr0")}
PASSING = ".tmp"
"""What the names of copies in the making end in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """One file of which a copy is to be made.

    Attributes:
        reference: As rows name it.
        phases: Remainders of the numbers of the frames that are kept, of copies at a lower rate.
    """

    reference: str
    phases: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMade:
    """What became of a task: bytes and frames of the copy, or why the original has none."""

    nbytes: int = 0
    frames: int = 0
    damage: str = ""


@dataclass(frozen=True, kw_only=True)
class CopyMaker:
    """Makes copies of one set; travels to workers.

    Attributes:
        group: The set.
        column: The type of its column.
    """

    group: CopySet
    column: ColumnType

    def __call__(self, task: CopyTask, /) -> CopyMade:
        """Make one copy; replaces what is there.

        Raises:
            SchemaMismatchError: Its frames are no colour pictures of 8 bits.
            OSError: It cannot be written.
        """
        originals, reference = self.group.originals, task.reference
        try:
            original = originals.fingerprint(reference, whole=True)
        except MissingFileError as error:
            return CopyMade(damage=error.message)
        place, settings = self.group.place, self.group.settings
        store, path = place.store, self.group.path(reference)
        facts: dict[str, Any] = {"reference": reference, "original": original, "every": settings.every}
        store.delete([f"{path}{PASSING}"])  # ours alone; a link there would lead what is written elsewhere
        try:
            decoder = media.open(originals.files.source(reference, self.column))
            with tempfile.TemporaryDirectory(prefix="seqlake-copies-") as scratch:
                local = store.local(f"{path}{PASSING}")
                target = Path(scratch) / f"copy{SUFFIXES[settings.codec]}" if local is None else local
                record = write_copy(decoder, settings, target, phases=task.phases, facts=facts)
                if local is None:
                    store.put(path, target)
                else:
                    store.put(f"{path}{PASSING}", target)  # durable before it has its name
                    store.move(f"{path}{PASSING}", path)
        except DecodeError as error:
            record = CopyRecord(damage=error.message, **facts)
        store.put(self.group.path(reference, ".json"), record.document())
        return CopyMade(nbytes=record.nbytes, frames=record.count if not record.damage else 0, damage=record.damage)


def write_copy(
    decoder: Decoder, settings: CopySettings, target: Path, /, *, phases: tuple[int, ...], facts: dict[str, Any]
) -> CopyRecord:
    """Write the copy of an open file, and say what is known of it; closes the file.

    Args:
        decoder: The original.
        settings: What the copy is.
        target: Where it is written; replaced if it is there.
        phases: As in `CopyTask`.
        facts: What the record has besides.

    Raises:
        DecodeError: The original is damaged; nothing is left at `target`.
        SchemaMismatchError: Its frames are no colour pictures of 8 bits.
    """
    try:
        count, pts, time_base = len(decoder), decoder.pts, decoder.time_base
        if not count:
            raise CorruptFileError("The file has no frames.")
        kept = kept_of(count, settings.every, phases)
        writer = _writer(settings, target, pts[kept], time_base)
        try:
            for picture in pictures(decoder, settings, kept):
                writer.write(picture)
            index = writer.close()
        except BaseException:
            writer.abort()
            raise
    finally:
        decoder.close()
    return CopyRecord(
        frames=count,
        times=packed(pts),
        time_base=time_base,
        phases=phases,
        nbytes=target.stat().st_size,
        index=index,
        **facts,
    )


def pictures(decoder: Decoder, settings: CopySettings, numbers: Ints, /) -> Iterator[NDArray[np.uint8]]:
    """Frames of an original as a copy has them, [height, width, 3] each.

    Raises:
        SchemaMismatchError: They are no colour pictures of 8 bits.
    """
    nothing = decoder.read(np.zeros(0, np.int64))
    if nothing.dtype != np.uint8 or nothing.shape[-1] != 3:
        raise SchemaMismatchError(
            f"Training copies are of colour video of 8 bits; column {settings.column!r} has frames of "
            f"{nothing.shape[-1]} channels of {nothing.dtype}. Train on the originals."
        )
    there = (int(nothing.shape[1]), int(nothing.shape[2]))
    scaled = scaled_size(there, settings)
    for begin in range(0, len(numbers), _TOGETHER):
        for picture in decoder.read(numbers[begin : begin + _TOGETHER], size=scaled):
            yield _fitted(picture, settings.size)


def scaled_size(there: tuple[int, int], settings: CopySettings, /) -> tuple[int, int]:
    """Height and width to which pictures are scaled before they are filled up or cut."""
    if settings.fit == "stretch":
        return settings.size
    scales = [Fraction(wanted, have) for wanted, have in zip(settings.size, there, strict=True)]
    scale = min(scales) if settings.fit == "letterbox" else max(scales)
    height, width = (max(1, round(have * scale)) for have in there)
    return height, width


def _fitted(picture: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """In the middle of black where it is smaller, its middle where it is larger."""
    height, width = size
    if picture.shape[:2] == size:
        return picture
    top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
    picture = picture[max(0, top) :, max(0, left) :][:height, :width]
    whole = np.zeros((height, width, 3), np.uint8)
    down, right = (height - picture.shape[0]) // 2, (width - picture.shape[1]) // 2
    whole[down : down + picture.shape[0], right : right + picture.shape[1]] = picture
    return whole


class _PictureWriter(Protocol):
    """A copy in the making."""

    def write(self, picture: NDArray[np.uint8], /) -> object: ...
    def close(self) -> bytes:
        """Finish the file; gives the index."""

    def abort(self) -> None:
        """Remove what was made."""


def _writer(settings: CopySettings, target: Path, pts: Ints, time_base: Fraction) -> _PictureWriter:
    if settings.codec in _ENCODINGS:
        return _Film(target, _ENCODINGS[settings.codec], pts, time_base)
    if settings.codec == "mjpeg":
        return _Jpegs(target)
    return _Flat(target, (len(pts), *settings.size, 3))


class _Film:
    """A film that plays at the original's clock; what counts is its record, which has the exact times."""

    def __init__(self, target: Path, encoding: Encoding, pts: Ints, time_base: Fraction) -> None:
        ticks = (pts - pts[:1]) * (time_base * TICKS).numerator // (time_base * TICKS).denominator
        even = len(pts) > 1 and bool((np.diff(pts) == pts[1] - pts[0]).all())
        self._ticks: list[int] | None = None
        rate: Fraction | None = Fraction(30)
        if even:
            rate = 1 / (int(pts[1] - pts[0]) * time_base)
        elif len(pts) > 1 and bool((np.diff(ticks) > 0).all()):
            rate, self._ticks = None, ticks.tolist()
        self._target = target
        self._encoder = VideoEncoder(target, fps=rate, encoding=encoding)

    def write(self, picture: NDArray[np.uint8], /) -> None:
        tick = None if self._ticks is None else self._ticks[self._encoder.frames]
        self._encoder.write(picture, tick=tick)

    def close(self) -> bytes:
        self._encoder.close()
        index = media.index(Source(blob=open_blob(self._target), column=Video()))
        return next(iter(index.values()), b"")

    def abort(self) -> None:
        self._encoder.abort()


class _Jpegs:
    """JPEGs end to end; the index has their sizes, then their CRC-32."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._file = target.open("wb")
        self._sizes: list[int] = []
        self._sums: list[int] = []

    def write(self, picture: NDArray[np.uint8], /) -> None:
        data = encode_image(picture, format="jpeg", quality=_QUALITY)
        self._sizes.append(self._file.write(data))
        self._sums.append(crc32(data))

    def close(self) -> bytes:
        self._file.close()
        return np.array(self._sizes + self._sums, "<u4").tobytes()

    def abort(self) -> None:
        self._file.close()
        self._target.unlink(missing_ok=True)


class _Flat:
    """Pixels as numpy's own file; the index says where they begin, and each frame's CRC-32."""

    def __init__(self, target: Path, shape: tuple[int, ...]) -> None:
        self._target = target
        self._file = target.open("wb")
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()
        self._sums: list[int] = []

    def write(self, picture: NDArray[np.uint8], /) -> None:
        data = np.ascontiguousarray(picture).data
        self._file.write(data)
        self._sums.append(crc32(data))

    def close(self) -> bytes:
        self._file.close()
        return self._begin.to_bytes(8, "little") + np.array(self._sums, "<u4").tobytes()

    def abort(self) -> None:
        self._file.close()
        self._target.unlink(missing_ok=True)
