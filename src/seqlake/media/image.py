"""Pictures, one or a list of them, as arrays with channels last and every bit that the file has.

Each format has the reader that loses nothing: PNG, BMP and JPEG 2000 of more than 8 bits PyAV; TIFF, PPM and PGM
numpy; WebP, AVIF and other JPEG 2000 Pillow (extra `images`), AVIF of more than 8 bits imagecodecs (the same extra).
JPEG is read and written by simplejpeg where that is installed (again the same; libjpeg's own pixels), else by PyAV,
whose pixels differ a little. Turns are applied where the column says `orientation="apply"`; otherwise an array has the
rows that the file has.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import plugins
from seqlake.errors import CorruptFrameError, DecodeError
from seqlake.media import _tiff
from seqlake.media._bytes import all_of
from seqlake.media._carried import carried
from seqlake.media._containers import format_of
from seqlake.media._limits import PIXELS, guard
from seqlake.media._stills import PictureHead, checked_head, describe, netpbm_header, orientation
from seqlake.media.video.pixels import convertible, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Source
    from seqlake.spec.column_types import ColumnType

__all__ = [
    "FORMATS",
    "ImageDecoder",
    "PictureHead",
    "decode",
    "decode_into",
    "describe",
    "encode_jpeg",
    "handed_out",
    "has_simplejpeg",
    "index",
    "open",
    "orientation",
    "scaled",
    "types",
    "upright",
]

QUALITY = 95
"""Of 100; FFmpeg's best step is about as good."""
_COLOURS = 3
_LYING = 4  # turns above exchange height and width
_LAYOUTS = {("uint8", 3): "rgb24", ("uint8", 1): "gray", ("uint16", 3): "rgb48le", ("uint16", 1): "gray16le"}
_SAID = {"jpeg": "JPEG", "webp": "WebP", "jp2": "JPEG 2000"}
_SPLIT = "A picture is one frame: split it, or make it a video (a column of type video)."
_ADVICE = {"frames": _SPLIT, "animation": _SPLIT, "pages": "A picture is one page: split the file, one page each."}

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
            [N, height, width, 1 or 3], of the type that `decode` gives.

        Raises:
            CorruptFrameError: A picture is damaged.
            DecodeError: A picture that is not read, a step without one, or pictures of different sizes or types.
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
        return decode(all_of(source), size=size, name=f"picture {step}", column=source.column)

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
    data: bytes | memoryview,
    /,
    *,
    size: Size | None = None,
    name: str = "the picture",
    column: ColumnType | None = None,
) -> NDArray[Any]:
    """One picture.

    Args:
        data: The encoded bytes; they say their format, whatever their file is called.
        size: Height and width to scale to, as handed out: averaged down, bicubic up (floats: repeated).
        name: What errors call it.
        column: Its type: `orientation="apply"` has it turned as its EXIF says, `channels=1` keeps grey of 8 bits
            one channel.

    Returns:
        [height, width, 1 or 3], alpha left out: uint8, uint16 for 9 to 16 bits, or the floats that the file has.
        Grey of 8 bits has three channels, where the column does not say one.

    Raises:
        CorruptFrameError: It is damaged.
        DecodeError: It is of another kind, has several frames or pages, other channels than the column declares, or
            more pixels than `SEQLAKE_MAX_PIXELS`.
        MissingDependencyError: WebP, AVIF or JPEG 2000, and Pillow is not installed; or AVIF of more than 8 bits, and
            imagecodecs is not.

    Example:
        ```python
        image.decode(Path("depth.tiff").read_bytes())[..., 0]        # float32 [H, W]
        ```
    """
    head = _checked(data, name)
    turn = orientation(data) if column is not None and column.get("orientation") == "apply" else 1
    inner = size[::-1] if size is not None and turn > _LYING else size
    pixels = _READERS[head.format](data, head, name, inner)
    if inner is not None and pixels.shape[:2] != inner:
        pixels = scaled(pixels, inner)
    return _with_channels(upright(pixels, turn), None if column is None else column.get("channels"), name)


def decode_into(data: bytes | memoryview, out: NDArray[np.uint8], /, *, name: str = "the picture") -> None:
    """One JPEG in colour of 8 bits, written where it is wanted: no head is read twice, no pixel copied.

    Args:
        data: The encoded bytes.
        out: [height, width, 3], C-contiguous.
        name: What errors call it.

    Raises:
        CorruptFrameError: It is damaged, or has more pixels than `out`.
        DecodeError: It has another size.
    """
    if not has_simplejpeg():
        pixels = decode(data, name=name)
    else:
        try:
            pixels = _simplejpeg().decode_jpeg(data, colorspace="RGB", strict=True, buffer=out)
        except ValueError as error:
            raise _damaged(name, error) from error
    if pixels.shape != out.shape or pixels.dtype != out.dtype:
        raise DecodeError(f"{name}: expected {out.dtype} {list(out.shape)}, found {pixels.dtype} {list(pixels.shape)}.")
    if not has_simplejpeg():
        out[:] = pixels


@cache
def _simplejpeg() -> Any:
    return plugins.require("simplejpeg", extra="images")


def handed_out(head: PictureHead, column: ColumnType, /) -> tuple[str, int]:
    """The type of number, and the channels, of the array that `decode` makes of a picture."""
    return head.dtype, _COLOURS if _repeated(head.dtype, column.get("channels")) else head.channels


def _repeated(dtype: str, declared: Any) -> bool:
    """Whether grey becomes three channels: of 8 bits where the column does not say one, other where it says three."""
    return bool(declared == _COLOURS or (declared != 1 and dtype == "uint8"))


def _checked(data: bytes | memoryview, name: str) -> PictureHead:
    """Compare what a picture says of its size with its bytes, and with what one picture may take."""
    kind = format_of(bytes(data[:64]))
    if kind not in _READERS:
        what = f"bytes that begin with {bytes(data[:12])!r}" if kind is None else kind
        known = carried(name, bytes(data[:64]))
        advice = "Convert it, or read its bytes." if known is None else f"It is {known}."
        raise DecodeError(
            f"{name}: expected JPEG, PNG, TIFF, WebP, BMP, PPM, PGM, AVIF or JPEG 2000, found {what}. {advice}"
        )
    try:
        head = checked_head(data)
    except _tiff.DamagedError as error:
        raise _damaged(name, error) from error
    if head.refusal:
        raise DecodeError(
            f"{name}: {_SAID.get(head.format, head.format.upper())} with {head.refusal} is not read. "
            f"{_ADVICE.get(head.refusal.split()[-1], 'Convert it to PNG or plain TIFF, or read its bytes.')}"
        )
    width, height = head.size
    if head.most is not None and width * height > head.most:
        raise _damaged(name, f"its {len(data):,} bytes cannot hold the {width} x {height} pixels that it declares")
    PIXELS.hold(width * height * max(1, (head.bits + 7) // 8), f"{name}, {width} x {height} of {head.bits} bits,")
    return head


def _with_channels(pixels: NDArray[Any], declared: Any, name: str) -> NDArray[Any]:
    """Grey as one channel or three, as the column says; by default three of 8 bits, one of more."""
    grey = pixels.shape[2] == 1
    if declared == 1 and not grey:
        raise DecodeError(
            f"{name}: expected 1 channel, as the column declares, found {pixels.shape[2]}. Mend the column's "
            "`channels`, or convert the picture."
        )
    return np.repeat(pixels, _COLOURS, axis=2) if grey and _repeated(pixels.dtype.name, declared) else pixels


def upright(pixels: NDArray[Any], turn: int, /) -> NDArray[Any]:
    """[H, W, C] turned and mirrored, from `orientation` to 1: for 5 to 8 height and width change places."""
    if turn in {5, 6, 7, 8}:
        pixels = pixels.transpose(1, 0, 2)
    if turn in {3, 4, 7, 8}:
        pixels = pixels[::-1]
    if turn in {2, 3, 6, 7}:
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


@cache
def has_simplejpeg() -> bool:
    """Whether JPEG is libjpeg's own, both ways; FFmpeg's otherwise."""
    return importlib.util.find_spec("simplejpeg") is not None


def _jpeg(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:
    if head.bits != 8 or not has_simplejpeg():
        return _by_av(data, head, name, size)
    try:
        pixels: NDArray[Any] = _simplejpeg().decode_jpeg(
            data, colorspace="GRAY" if head.channels == 1 else "RGB", strict=True
        )
    except ValueError as error:
        raise _damaged(name, error) from error
    return pixels


def _jp2(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:
    if head.bits == 8:
        return _by_pillow(data, head, name, size)
    pixels = _by_av(data, head, name, None)  # Pillow cuts colours to 8 bits
    return pixels >> (16 - head.bits)  # FFmpeg moves fewer bits to the upper end


def _avif(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:
    if head.bits == 8:
        return _by_pillow(data, head, name, size)
    codecs = plugins.require("imagecodecs", extra="images")  # Pillow cuts to 8 bits
    try:
        pixels = codecs.avif_decode(bytes(data), index=0, numthreads=1)
    except MemoryError:
        raise
    except Exception as error:  # whatever damage makes it raise
        raise _damaged(name, error) from error
    pixels = (pixels[..., None] if pixels.ndim == 2 else pixels)[..., : head.channels]
    width, height = head.size
    if pixels.dtype != np.uint16 or pixels.shape != (height, width, head.channels):
        raise _damaged(name, f"it declares {head.size} and {head.bits} bits, and holds other pixels")
    return np.ascontiguousarray(pixels)


def _by_pillow(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:  # noqa: ARG001 - as its like
    """Pillow's plug for this very format: `Image.open` would try others, and has a limit of its own."""
    module, kind, feature = _PILLOW[head.format]
    plugins.require("PIL", extra="images")
    if not importlib.import_module("PIL.features").check(feature):
        raise DecodeError(f"{name}: this Pillow reads no {head.format}. Install a newer one: pip install -U pillow.")
    try:
        with getattr(importlib.import_module(f"PIL.{module}"), kind)(io.BytesIO(data)) as picture:
            frames, size_there = 1 if head.format == "jp2" else picture.n_frames, picture.size
            if frames == 1 and size_there == head.size:
                grey = head.channels == 1
                pixels = np.asarray(picture.convert("RGB"))
                return pixels[..., :1] if grey else pixels
    except MemoryError:
        raise
    except Exception as error:  # whatever damage makes it raise
        raise _damaged(name, error) from error
    if frames != 1:
        raise DecodeError(f"{name}: {head.format} with {frames} frames is not read. {_ADVICE['frames']}")
    raise _damaged(name, f"it declares {head.size}, and holds {size_there}")


def _of_tiff(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:  # noqa: ARG001 - as its like
    def unpack(strip: bytes, count: int) -> bytes:
        frame = _frame(strip, "tiff", name)
        if frame.width * frame.height != count or frame.format.name != "gray":
            raise _damaged(name, "a strip holds other pixels than it declares")
        return frame.to_ndarray().tobytes()

    try:
        return _tiff.pixels_of(data, _tiff.layout_of(data), unpack)
    except _tiff.DamagedError as error:
        raise _damaged(name, error) from error


def _netpbm(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:  # noqa: ARG001 - as its like
    """Values as they are stored, also where the largest is no power of two: those of a depth map mean distances."""
    header = netpbm_header(data)
    assert header is not None
    _, width, height, largest, start = header
    count = width * height * head.channels
    if len(data) - start < count * (head.bits // 8):
        raise _damaged(name, f"it ends after {len(data):,} bytes")
    pixels = np.frombuffer(data, ">u2" if head.bits > 8 else "u1", count, start)
    if largest < (1 << head.bits) - 1 and pixels.max(initial=0) > largest:
        raise _damaged(name, f"expected values up to {largest}, found {pixels.max()}")
    return pixels.astype(head.dtype).reshape(height, width, head.channels)


def encode_jpeg(picture: NDArray[Any], /, *, quality: int = QUALITY) -> bytes:
    """One picture as JPEG, by simplejpeg: 4:2:0, or of one channel.

    Args:
        picture: uint8 [H, W, 3] RGB, or [H, W] grey.
        quality: 1 to 100.

    Raises:
        MissingDependencyError: simplejpeg is not installed.
    """
    grey = picture.ndim == 2
    data: bytes = _simplejpeg().encode_jpeg(
        np.ascontiguousarray(picture[..., None] if grey else picture),
        quality=quality,
        colorspace="GRAY" if grey else "RGB",
        colorsubsampling="Gray" if grey else "420",
    )
    return data


def _by_av(data: bytes | memoryview, head: PictureHead, name: str, size: Size | None) -> NDArray[Any]:
    return _array(_frame(data, _CODECS[head.format], name), size)


def _frame(data: bytes | memoryview, codec: str, name: str) -> VideoFrame:
    import av

    context: Any = av.CodecContext.create(codec, "r")  # a fresh one each time: a reused PNG decoder gives wrong pixels
    context.thread_type, context.thread_count = "NONE", 1
    context.options = {"err_detect": "crccheck+explode"} | guard(PIXELS.value)
    packet: av.Packet[Any] = av.Packet(len(data))
    memoryview(packet)[:] = data
    try:
        frames: list[Any] = [*context.decode(packet), *context.decode(None)]
    except (av.PatchWelcomeError, NotImplementedError) as error:
        raise DecodeError(f"{name}: FFmpeg does not read this kind of {codec}: {error}. Convert it to PNG.") from error
    except av.FFmpegError as error:
        raise _damaged(name, error) from error
    if not frames or frames[0].is_corrupt:
        raise _damaged(name, "no whole picture")
    frame: VideoFrame = frames[0]
    return frame


def _damaged(name: str, why: object) -> CorruptFrameError:
    return CorruptFrameError(f"{name} is damaged: {why}. Copy it from where it came from, or leave it out.")


def _array(frame: VideoFrame, size: Size | None) -> NDArray[Any]:
    """A decoded picture as an array: grey has one channel, 16 bits stay 16 bits."""
    kind = frame.format.name
    if max(part.bits for part in frame.format.components) > 8:
        kind = "gray16le" if len(frame.format.components) < 3 else "rgb48le"
    elif kind in {"gray", "ya8"}:
        kind = "gray"
    else:
        kind = "rgb24"
    return _pixels(_converted(frame, kind, size))


def _pixels(frame: VideoFrame) -> NDArray[Any]:
    if frame.format.name == "rgb24":
        return rows_of(frame).copy()
    pixels: NDArray[Any] = frame.to_ndarray()
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _converted(frame: VideoFrame, kind: str, size: Size | None) -> VideoFrame:
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


def scaled(picture: NDArray[Any], size: Size, /) -> NDArray[Any]:
    """[H, W, 1 or 3] in another height and width: averaged down; up bicubic, and floats repeated."""
    import av

    kind = _LAYOUTS.get((picture.dtype.name, picture.shape[2]))
    if kind is None:
        down, across = (_shares(many, few) for many, few in zip(picture.shape, size, strict=False))
        wide: NDArray[Any] = np.einsum("ih,jw,hwc->ijc", down, across, picture.astype(np.float64), optimize=True)
        return wide.astype(picture.dtype)
    plain = picture[..., 0] if picture.shape[2] == 1 else picture
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(plain), format=kind)
    return _pixels(_converted(frame, kind, size))


def _shares(many: int, few: int) -> NDArray[np.float64]:
    """[few, many] how much of each new pixel is each old one's, along one side."""
    edges = np.arange(few + 1) * (many / few)
    old = np.arange(many)
    shares: NDArray[np.float64] = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    shares = shares.clip(0)
    shares /= shares.sum(1, keepdims=True)
    return shares


_CODECS = {"jpeg": "mjpeg", "png": "png", "bmp": "bmp", "jp2": "jpeg2000"}
_PILLOW = {
    "webp": ("WebPImagePlugin", "WebPImageFile", "webp"),
    "avif": ("AvifImagePlugin", "AvifImageFile", "avif"),
    "jp2": ("Jpeg2KImagePlugin", "Jpeg2KImageFile", "jpg_2000"),
}
_READERS: Mapping[str, Callable[[bytes | memoryview, PictureHead, str, Size | None], NDArray[Any]]] = {
    "jpeg": _jpeg, "png": _by_av, "bmp": _by_av, "ppm": _netpbm, "pgm": _netpbm, "tiff": _of_tiff,
    "webp": _by_pillow, "avif": _avif, "jp2": _jp2,
}  # fmt: skip
FORMATS = frozenset(_READERS)
"""The formats that are read, as `format_of` calls them."""
