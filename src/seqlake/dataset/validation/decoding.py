"""Decodes everything a cell names: which frames are damaged, and whether there is anything to see or hear."""

from __future__ import annotations

from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.dataset.validation import looking
from seqlake.errors import (
    CorruptFileError,
    CorruptFrameError,
    DecodeError,
    InvalidMetadataError,
    MissingDependencyError,
)
from seqlake.media.video.codes import Codes, converter_of, unread
from seqlake.media.video.pixels import fingerprint
from seqlake.spec.depth import measure_of
from seqlake.spec.rules.facts import Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Event

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.media.video import VideoDecoder
    from seqlake.protocols import Source
    from seqlake.spec.column_types import ColumnType

_BLACK = 16  # of 255: what a covered lens shows
_STILL = 6  # of 255, averaged over 64 pixels: what encoding, or the noise of a sensor, makes of equal pictures
_THUMBNAIL = 80  # pixels at most; each stands for 8 by 8 or more
_HELD, _HELD_PIXELS = 24, 1 << 25  # pictures, and pixels of all of them
_TOGETHER = 64  # frames that are decoded by one call
_CHECKED = {"flac": "crccheck+explode"}  # codecs whose own checksums tell damage, and nothing else


class Looks:
    """Whether pictures show something, and whether they change; small grey copies decide."""

    def __init__(self) -> None:
        self._reformatter: Any = None
        self._first: NDArray[Any] | None = None
        self._count = 0
        self.black = True
        self.frozen = True

    @property
    def facts(self) -> dict[str, Any]:
        """What the pictures looked like."""
        return {
            "looked": self._count > 0,
            "black": self._count > 0 and self.black,
            "frozen": self._count > 1 and self.frozen,
        }

    def see(self, frame: VideoFrame, /) -> None:
        """Look at one more picture."""
        self._count += 1
        if not self.black and not self.frozen:
            return  # nothing left to find out
        from av.video.reformatter import Interpolation, VideoReformatter

        from seqlake.media.video.pixels import convertible

        self._reformatter = self._reformatter or VideoReformatter()
        with convertible(frame):
            small = self._reformatter.reformat(
                frame,
                width=max(1, min(frame.width // 8, _THUMBNAIL)),
                height=max(1, min(frame.height // 8, _THUMBNAIL)),
                format="gray",
                interpolation=Interpolation.AREA,
                threads=1,
            )
        self._compare(small.to_ndarray().astype(np.int16), black=_BLACK, still=_STILL)

    def see_array(self, pixels: NDArray[Any], /) -> None:
        """One more picture, decoded: [H, W, 1 or 3]; numbers of more than 8 bits mean more than brightness."""
        import av

        if pixels.dtype == np.uint8:
            flat = pixels if pixels.shape[2] == 3 else pixels[..., 0]
            layout = "rgb24" if flat.ndim == 3 else "gray"
            self.see(av.VideoFrame.from_ndarray(np.ascontiguousarray(flat), format=layout))
            return
        self._count += 1
        if self.black or self.frozen:
            values = np.nan_to_num(pixels) if pixels.dtype.kind == "f" else pixels.astype(np.int32)
            self._compare(values, black=0, still=0)

    def _compare(self, values: NDArray[Any], *, black: int, still: int) -> None:
        self.black &= bool(values.max(initial=0) <= black)
        if self._first is None:
            self._first = values
        elif self.frozen:
            self.frozen = self._first.shape == values.shape and bool(np.abs(values - self._first).max() <= still)


class _Memory:
    """Finds pictures that show what memory held before.

    Where damage ends a slice of HEVC early, FFmpeg leaves the rest of the picture as it found it and says nothing. So
    such videos are decoded twice: while their pictures are held, and with memory that is used again.
    """

    def __init__(self, decoder: VideoDecoder, /) -> None:
        stream = decoder.packets.stream
        self._decoder = decoder
        self._prints: dict[int, int] | None = {} if stream.codec == "hevc" else None
        self._held = deque[object](maxlen=max(1, min(_HELD, _HELD_PIXELS // max(1, stream.width * stream.height))))

    def keep(self, number: int, frame: VideoFrame, /) -> None:
        """Remember one more picture."""
        if self._prints is not None:
            self._held.append(frame)
            self._prints[number] = fingerprint(frame)

    def changed(self, stop: Event, /) -> Iterator[Damage]:
        """The frames that are other pictures this time."""
        if not self._prints:
            return
        self._held.clear()
        for groups in _calls(self._decoder):
            if stop.is_set():
                return
            with suppress(CorruptFileError, CorruptFrameError):  # which is known
                for number, frame in self._decoder.planes(np.concatenate(groups)):
                    if self._prints.get(number, fingerprint(frame)) != fingerprint(frame):
                        why = "decodes to another picture each time: its packet, or one that it refers to, is damaged"
                        yield Damage(first=number, last=number, why=why)


def decode_video(source: Source, stop: Event, /) -> dict[str, Any]:
    """Every frame of a video that can be opened.

    Returns:
        `damage`, `looked`, `black`, `frozen`, `unread`; or `undecoded`.
    """
    from seqlake.media import video

    decoder = video.open(source)
    looks, damage, memory = Looks(), list[Damage](), _Memory(decoder)
    unread, see = _seeing(decoder, source, looks)
    try:
        for groups in _calls(decoder):
            if stop.is_set():
                break
            try:
                for number, frame in decoder.planes(np.concatenate(groups)):
                    see(frame)
                    memory.keep(number, frame)
            except (CorruptFileError, CorruptFrameError):
                damage += [broken for group in groups if (broken := _damage_in(decoder, group)) is not None]
        damage += memory.changed(stop)
    except (CorruptFileError, CorruptFrameError):
        raise
    except DecodeError:
        return {"undecoded": True}  # this FFmpeg has no decoder for the codec
    finally:
        decoder.close()
    return {"damage": joined(damage), "unread": unread, **looks.facts}


def _seeing(decoder: VideoDecoder, source: Source, looks: Looks) -> tuple[str, Callable[[VideoFrame], None]]:
    """Why readers are not given these frames, and what looks at one: codes mean more than brightness."""
    stream, column = decoder.packets.stream, source.column
    why = unread(stream.pix_fmt, column)
    try:
        measure_of(column.fields)
    except InvalidMetadataError as error:
        why = why or error.message
    converter = None if why else converter_of(stream, column, "")
    if not isinstance(converter, Codes) or converter.channels > 1 or converter.dtype == np.uint8:
        return why, looks.see
    codes = np.empty((*decoder.size, 1), converter.dtype)

    def see(frame: VideoFrame) -> None:
        converter.convert(frame, codes)
        looks.see_array(codes)

    return why, see


def _calls(decoder: VideoDecoder) -> Iterator[list[NDArray[np.int64]]]:
    """All frames in groups that share a key packet, and some such groups for each call of the decoder."""
    packets = _packets(decoder)
    keys = np.searchsorted(decoder.packets.starts, packets, side="right")
    order = np.argsort(keys, kind="stable")
    together: list[NDArray[np.int64]] = []
    for group in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        if together and sum(map(len, together)) + len(group) > _TOGETHER:
            yield together
            together = []
        together.append(group)
    if together and len(together[0]):
        yield together


def _packets(decoder: VideoDecoder) -> NDArray[np.int64]:
    """[frames] the packet of each frame of this source."""
    first = int(np.searchsorted(decoder.packets.pts[decoder.packets.order], decoder.pts[0])) if len(decoder) else 0
    numbers: NDArray[np.int64] = decoder.packets.order[first : first + len(decoder)]
    return numbers


def _damage_in(decoder: VideoDecoder, group: NDArray[np.int64]) -> Damage | None:
    """The frames of one group of pictures that do not decode: from some packet on, none does."""
    frames = group[np.argsort(_packets(decoder)[group], kind="stable")].tolist()
    why = _error_of(decoder, frames)
    if why is None:
        return None
    low, high = 0, len(frames) - 1
    while low < high:
        middle = (low + high) // 2
        error = _error_of(decoder, frames[middle : middle + 1])
        low, high, why = (low, middle, error) if error is not None else (middle + 1, high, why)
    bad = frames[low:]
    return Damage(first=min(bad), last=max(bad), why=why)


def _error_of(decoder: VideoDecoder, frames: list[int]) -> str | None:
    try:
        for _ in decoder.planes(np.array(frames, np.int64)):
            pass
    except (CorruptFileError, CorruptFrameError) as error:
        return looking.said(error, str(error.path))
    return None


def joined(damage: Iterable[Damage], /) -> tuple[Damage, ...]:
    """Damage with neighbours made one."""
    kept: list[Damage] = []
    for one in sorted(damage, key=lambda one: one.first):
        if kept and kept[-1].last + 1 >= one.first:
            kept[-1] = Damage(first=kept[-1].first, last=max(kept[-1].last, one.last), why=kept[-1].why)
        else:
            kept.append(one)
    return tuple(kept)


def decode_pictures(
    pictures: Sequence[tuple[int, bytes | memoryview]], column: ColumnType, stop: Event, /
) -> dict[str, Any]:
    """Pictures of a cell of this type, each with its step.

    Returns:
        `damage`, `looked`, `black`, `frozen`, `undecoded`.
    """
    from seqlake.media import image

    looks, damage, undecoded = Looks(), list[Damage](), False
    for step, data in pictures:
        if stop.is_set():
            break
        kind = media.format_of(bytes(data[:64]))
        if kind not in image.FORMATS:
            undecoded |= kind in media.PICTURES
            continue
        try:
            looks.see_array(image.decode(data, name="the picture", column=column))
        except MissingDependencyError:
            undecoded = True
        except DecodeError as error:
            damage.append(Damage(first=step, last=step, why=error.message))
    return {"damage": joined(damage), "undecoded": undecoded, **looks.facts}


def decode_sound(source: Source, stop: Event, /) -> tuple[dict[str, Any], float | None]:
    """Every sample of a file with sound.

    Returns:
        `damage`, `looked`, `silent`; and how many seconds there are, counted, where all of it decodes.
    """
    import av

    from seqlake.media.audio import sound

    total, silent = 0, True
    with sound(source) as (stream, frames):
        context: Any = stream.codec_context
        if context.name in _CHECKED:
            context.options = {"err_detect": _CHECKED[context.name]}
        try:
            for frame in frames:
                if stop.is_set():
                    break
                if frame.is_corrupt:
                    raise av.InvalidDataError(0, "the packet is damaged")
                silent = silent and _is_silent(frame.to_ndarray(), frame.format.name)
                total += frame.samples
        except av.FFmpegError as error:
            damage = Damage(first=total, last=total, why=f"what follows cannot be decoded: {error.strerror}")
            return {"damage": (damage,)}, None
        return {"looked": total > 0, "silent": total > 0 and silent}, total / stream.rate


def decode_other(source: Source, stop: Event, /) -> dict[str, Any]:
    """Everything in a file that some other plug opens.

    Returns:
        `damage`; or `undecoded` where none does.
    """
    start = 0
    try:
        with closing(media.open(source)) as decoder:
            count = len(decoder)
            for start in range(0, count, _TOGETHER):
                if not stop.is_set():
                    decoder.read(np.arange(start, min(start + _TOGETHER, count)))
    except (CorruptFileError, CorruptFrameError) as error:
        return {"damage": (Damage(first=start, last=start, why=looking.said(error, str(error.path))),)}
    except (DecodeError, MissingDependencyError):
        return {"undecoded": True}
    return {}


def _is_silent(values: NDArray[Any], kind: str) -> bool:
    return not (values != (128 if kind.removesuffix("p") == "u8" else 0)).any()
