"""Pictures: JPEG and PNG, one or a list of them, as arrays with channels last.

JPEG is read and written by simplejpeg where that is installed (extra `images`; libjpeg's own pixels), else by PyAV,
whose pixels differ a little. Orientation tags are not applied: an array has the rows that the file has.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFrameError, DecodeError
from seqlake.media._bytes import all_of
from seqlake.media._limits import PIXELS, guard
from seqlake.media.video.pixels import convertible, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Source

_QUALITY = 95  # of 100; FFmpeg's best step is about as good
_MAGIC = {b"\xff\xd8\xff": "mjpeg", b"\x89PNG\r\n\x1a\n": "png"}
_NO_SIZE = frozenset({0xC4, 0xC8, 0xCC})  # between the frame headers, and none themselves
_ARITHMETIC = 0xC9  # from this frame header on
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a PNG, by the kind of its colours
_DEFLATE = 1032  # the most bytes that one can stand for
_HUFFMAN = 512  # the most pixels that one can stand for: a bit for each block of 8 by 8

Size = tuple[int, int]


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("image",)


def index(source: Source, /) -> Mapping[int, bytes]:  # noqa: ARG001 - the protocol's
    """Nothing: a picture is read whole."""
    return {}


def open(source: Source, /, *, threads: int = 1, device: str = "cpu") -> ImageDecoder:  # noqa: A001, ARG001 - the protocol's
    """Open one picture as a decoder of one frame; its bytes are read with the first `read`."""
    return ImageDecoder(1, lambda _: source)


class ImageDecoder:
    """Pictures by number, each a source of its own; for one thread at a time.

    Args:
        count: How many.
        picture: Gives the source of one; None where a step has no picture.
        rate: Pictures per second, for times; step numbers by default.
    """

    def __init__(self, count: int, picture: Callable[[int], Source | None], /, *, rate: Fraction | None = None) -> None:
        self._count = count
        self._picture = picture
        self._rate = rate or Fraction(1)

    def __len__(self) -> int:
        return self._count

    @property
    def pts(self) -> Ints:
        """[steps] the number of each step."""
        return np.arange(self._count, dtype=np.int64)

    @property
    def time_base(self) -> Fraction:
        """Seconds from one step to the next."""
        return 1 / self._rate

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Decode pictures.

        Args:
            indices: [N] numbers in any order; repeats are decoded once.
            size: Height and width to scale to.
            out: [N, height, width, channels] to write into.

        Returns:
            uint8 [N, height, width, 3]; uint16 [N, height, width, 1 or 3] for pictures of 16 bits.

        Raises:
            CorruptFrameError: A picture is damaged.
            DecodeError: Neither JPEG nor PNG, a step without a picture, or pictures of different sizes.
            IndexError: There is no such step.
        """
        wanted = np.asarray(indices, np.int64).tolist()
        for step in wanted:
            if not 0 <= step < self._count:
                raise IndexError(f"There are pictures 0 to {self._count - 1}, found {step}.")
        if not wanted:
            return self._nothing(size)
        places: dict[int, int] = {}
        for place, step in enumerate(wanted):
            if step in places:
                assert out is not None
                out[place] = out[places[step]]
                continue
            picture = self._one(step, size)
            if out is None:
                out = np.empty((len(wanted), *picture.shape), picture.dtype)
            _same(picture, out, len(wanted), step)
            out[place] = picture
            places[step] = place
        assert out is not None
        return out

    def close(self) -> None:
        """Nothing to release: no file is held."""

    def _one(self, step: int, size: tuple[int, int] | None) -> NDArray[Any]:
        source = self._picture(step)
        if source is None:
            raise DecodeError(f"Step {step} has no picture. Leave it out, or ask for others.")
        return decode(all_of(source), size=size, name=f"picture {step}")

    def _nothing(self, size: tuple[int, int] | None) -> NDArray[Any]:
        first = next((step for step in range(self._count) if self._picture(step) is not None), None)
        if first is None:
            return np.empty((0, *(size or (0, 0)), 3), np.uint8)
        picture = self._one(first, size)
        return np.empty((0, *picture.shape), picture.dtype)


def _same(picture: NDArray[Any], out: NDArray[Any], count: int, step: int) -> None:
    if out.shape == (count, *picture.shape) and out.dtype == picture.dtype:
        return
    raise DecodeError(
        f"out has another shape than the pictures: expected {count} in {out.dtype} {list(out.shape)}, found "
        f"{picture.dtype} {list(picture.shape)} at picture {step}. Pictures of different sizes are read one by one, or "
        "with size=(height, width)."
    )


def decode(
    data: bytes | memoryview, /, *, size: tuple[int, int] | None = None, name: str = "the picture"
) -> NDArray[Any]:
    """One JPEG or PNG.

    Args:
        data: The encoded bytes.
        size: Height and width to scale to: averaged down, bicubic up.
        name: What errors call it.

    Returns:
        uint8 [height, width, 3]; uint16 [height, width, 1 or 3] where the file has 16 bits.

    Raises:
        CorruptFrameError: It is damaged.
        DecodeError: It is neither JPEG nor PNG, or has more pixels than `SEQLAKE_MAX_PIXELS`.
    """
    codec = next((codec for magic, codec in _MAGIC.items() if bytes(data[: len(magic)]) == magic), None)
    if codec is None:
        head = bytes(data[:12])
        known = head[:4] + head[8:] == b"RIFFWEBP"
        raise DecodeError(
            f"{name}: expected JPEG or PNG, found {'WebP' if known else f'bytes that begin with {head!r}'}."
        )
    _fits(data, name)
    if codec == "mjpeg" and has_simplejpeg():
        pixels = _by_simplejpeg(data, name)
        return pixels if size is None or size == pixels.shape[:2] else scaled(pixels, size)
    return _array(_by_av(data, codec, name), size)


def _fits(data: bytes | memoryview, name: str) -> None:
    """Compare what a picture says of its size with its bytes, and with what one picture may take."""
    declared = size_and_bits(data)
    if declared is None:
        raise _damaged(name, "it does not say how large it is")
    (width, height), bits = declared
    most = most_pixels(data)
    if most is not None and width * height > most:
        raise _damaged(name, f"its {len(data):,} bytes cannot hold the {width} x {height} pixels that it declares")
    PIXELS.hold(width * height * (2 if bits > 8 else 1), f"{name}, {width} x {height} of {bits} bits,")


@cache
def has_simplejpeg() -> bool:
    """Whether JPEG is libjpeg's own, both ways; FFmpeg's otherwise."""
    return importlib.util.find_spec("simplejpeg") is not None


def _by_simplejpeg(data: bytes | memoryview, name: str) -> NDArray[Any]:
    simplejpeg = plugins.require("simplejpeg", extra="images")
    try:
        pixels: NDArray[Any] = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True)
    except ValueError as error:
        raise _damaged(name, error) from error
    return pixels


def encode_jpeg(picture: NDArray[Any], /, *, quality: int = _QUALITY) -> bytes:
    """One picture as JPEG, by simplejpeg: 4:2:0, or of one channel.

    Args:
        picture: uint8 [H, W, 3] RGB, or [H, W] grey.
        quality: 1 to 100.

    Raises:
        MissingDependencyError: simplejpeg is not installed.
    """
    simplejpeg = plugins.require("simplejpeg", extra="images")
    grey = picture.ndim == 2
    data: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(picture[..., None] if grey else picture),
        quality=quality,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else "420",
    )
    return data


def _by_av(data: bytes | memoryview, codec: str, name: str) -> VideoFrame:
    import av

    context: Any = av.CodecContext.create(codec, "r")  # a fresh one each time: a reused PNG decoder gives wrong pixels
    context.thread_type, context.thread_count = "NONE", 1
    context.options = {"err_detect": "crccheck+explode"} | guard(PIXELS.value)
    packet: av.Packet[Any] = av.Packet(len(data))
    memoryview(packet)[:] = data
    try:
        frames: list[Any] = [*context.decode(packet), *context.decode(None)]
    except av.FFmpegError as error:
        raise _damaged(name, error) from error
    if not frames or frames[0].is_corrupt:
        raise _damaged(name, "no whole picture")
    frame: VideoFrame = frames[0]
    return frame


def _damaged(name: str, why: object) -> CorruptFrameError:
    return CorruptFrameError(f"{name} is damaged: {why}. Copy it from where it came from, or leave it out.")


def _array(frame: VideoFrame, size: tuple[int, int] | None) -> NDArray[Any]:
    """A decoded picture as an array: grey of 8 bits becomes RGB, 16 bits stay 16 bits."""
    kind = frame.format.name
    if max(part.bits for part in frame.format.components) > 8:
        kind = "gray16le" if len(frame.format.components) < 3 else "rgb48le"
    elif kind in {"gray", "ya8"}:
        kind = "gray"
    else:
        kind = "rgb24"
    frame = _converted(frame, kind, size)
    if kind == "rgb24":
        return rows_of(frame).copy()
    pixels: NDArray[Any] = frame.to_ndarray()
    if kind == "gray":
        return np.repeat(pixels[..., None], 3, axis=-1)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _converted(frame: VideoFrame, kind: str, size: tuple[int, int] | None) -> VideoFrame:
    from av.video.reformatter import Interpolation, VideoReformatter

    height, width = size or (frame.height, frame.width)
    if (frame.format.name, frame.width, frame.height) == (kind, width, height):
        return frame
    smaller = width * height < frame.width * frame.height
    with convertible(frame):
        return VideoReformatter().reformat(
            frame,
            width=width,
            height=height,
            format=kind,
            interpolation=Interpolation.AREA if smaller else Interpolation.BICUBIC,
            threads=1,
        )


def scaled(picture: NDArray[Any], size: tuple[int, int], /) -> NDArray[Any]:
    """uint8 [H, W, 3] in another height and width: averaged down, bicubic up."""
    import av

    return rows_of(_converted(av.VideoFrame.from_ndarray(picture, format="rgb24"), "rgb24", size)).copy()


def size_and_bits(head: bytes | memoryview, /) -> tuple[Size, int] | None:
    """Width and height, and the bits of a colour, of a PNG or JPEG; None where these bytes do not say them."""
    if bytes(head[:8]) == b"\x89PNG\r\n\x1a\n":
        if len(head) < 26 or bytes(head[12:16]) != b"IHDR":
            return None
        bits = 8 if head[25] == 3 else max(8, head[24])  # a palette, or fewer bits, is read as 8
        return (int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")), bits
    if bytes(head[:3]) == b"\xff\xd8\xff":
        header = _frame_header(head)
        return None if header is None else (header[1], head[header[0] + 4])
    return None


def most_pixels(data: bytes | memoryview, /) -> int | None:
    """How many pixels these bytes can stand for at most; None where it is not known."""
    if bytes(data[:4]) == b"\x89PNG" and len(data) >= 26 and data[25] in _CHANNELS:
        return len(data) * _DEFLATE * 8 // max(1, _CHANNELS[data[25]] * data[24])
    header = _frame_header(data) if bytes(data[:2]) == b"\xff\xd8" else None
    return None if header is None or data[header[0] + 1] >= _ARITHMETIC else len(data) * _HUFFMAN


def _frame_header(head: bytes | memoryview) -> tuple[int, Size] | None:
    """Where the frame header of a JPEG begins, and the width and height that it says."""
    place = 2
    while place + 9 < len(head):
        if head[place] != 0xFF:
            return None
        marker = head[place + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD8:  # padding, or a marker without a length
            place += 1 if marker == 0xFF else 2
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NO_SIZE:
            height, width = (int.from_bytes(head[at : at + 2], "big") for at in (place + 5, place + 7))
            return place, (width, height)
        place += 2 + int.from_bytes(head[place + 2 : place + 4], "big")
    return None
