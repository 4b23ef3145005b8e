"""Arrays to bytes: frames become an H.264 video that random windows read fast, or one image each.

The training profile is H.264 `veryfast`, `tune=fastdecode`, a keyframe every 8 frames, no B-frames, BT.709 in the
pixels and in the tags: decoding is what a training run pays for, again and again, so the bytes are laid out for it.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.media import _tiff, image
from seqlake.media._priority import kept_priority
from seqlake.spec.pixel_formats import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_PROFILE = {
    "preset": "veryfast",
    "tune": "fastdecode",
    "crf": "23",
    "bf": "0",
    "sc_threshold": "0",
    "x264-params": "open-gop=0:threads=1",
}
_PROFILES = {"libx264": _PROFILE, "libx265": {"x265-params": "log-level=error"}}
# Of grey of more than 8 bits: depth, of which nothing may be lost unless it is asked for. Of pictures that refer to
# others x265 loses something at their edges, of one short clip in a hundred: so each is alone.
_LOSSLESS = {
    "libx265": {"x265-params": "lossless=1:keyint=1:bframes=0:open-gop=0:pools=1:frame-threads=1:log-level=error"},
    "ffv1": {"slicecrc": "1"},
}
_TV, _FULL, _BT709 = 1, 2, 1  # as FFmpeg numbers them
_NOMINAL = Fraction(30)  # what an encoder without a rate plans its bits by

_WIDE = tuple(np.dtype(name) for name in ("u1", "u2", "f2", "f4", "f8"))  # numbers that TIFF holds

TICKS = 90_000
"""Ticks of a second in videos whose frames have times of their own."""
_IMAGES = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "tiff": "tiff", "tif": "tiff"}


_HARDWARE = ("h264_nvenc", "h264_videotoolbox", "h264_qsv", "h264_amf")
_FIELDS = {"g": "keyframe_every", "pix_fmt": "pixel_format", "pixel_format": "pixel_format", "r": "fps of the column"}
_NESTED = ("x264-params", "x265-params", "x264opts", "svtav1-params")  # whose mistakes FFmpeg only logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How frames that are given as arrays become a video.

    Attributes:
        codec: FFmpeg's name of the encoder; or `auto`: one for H.264 in this machine's hardware if there is one that
            works, else libx264.
        keyframe_every: Frames from one keyframe to the next. 16 takes 0.6 of the bytes and a fifth of the speed of
            short random windows; 2 and 4 take two to three times the bytes and gain little.
        pixel_format: FFmpeg's name, of 8 bits a sample; by default `yuv420p`, and `yuv444p` where width or height is
            odd. `yuv444p` keeps all colour detail, for more bytes. Grey of 8 to 16 bits (`gray`, `gray16le`) takes
            frames of one channel and stores their numbers as they are; FFV1 and libx265 lose none of them (and
            libx265 makes each frame a keyframe).
        options: Options of the encoder, on top of the training profile (`preset` veryfast, `tune` fastdecode, `crf` 23,
            no B-frames) where it is libx264, and alone for any other.

    Raises:
        ValueError: A value that cannot be, or an option that another field is there for.

    Example:
        ```python
        writer = ds.writer(encoding=sl.Encoding(options={"preset": "ultrafast", "crf": "18"}))
        writer = ds.writer(encoding={"cam": sl.Encoding(codec="auto"), "wrist": sl.Encoding(pixel_format="yuv444p")})
        ```
    """

    codec: str = "libx264"
    keyframe_every: int = 8
    pixel_format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keyframe_every < 1:
            raise ValueError(f"keyframe_every is a number of frames, at least 1; found {self.keyframe_every}.")
        for name in self.options:
            if name in _FIELDS:
                raise ValueError(f"The option {name!r} would have no effect: give {_FIELDS[name]} instead.")
        if self.codec == "auto" and self.options:
            raise ValueError("codec='auto' takes no options, which differ from encoder to encoder; name the encoder.")

    @property
    def encoder(self) -> str:
        """FFmpeg's name of the encoder that is used on this machine: what `auto` stands for, else `codec`."""
        return _fastest() if self.codec == "auto" else self.codec

    @property
    def produces(self) -> str:
        """The codec that comes out, as a column type declares it: libx264 makes h264.

        Raises:
            SeqlakeError: This build of PyAV has no such encoder.
        """
        import av

        try:
            return str(av.Codec(self.encoder, "w").canonical_name)
        except ValueError as error:
            raise SeqlakeError(
                f"Expected an encoder of FFmpeg, found none called {self.codec!r}.",
                hint="libx264 is in every wheel of PyAV, auto takes what is fastest here; av.codecs_available has all.",
            ) from error

    def pixel_format_for(self, height: int, width: int, /) -> str:
        """The pixel format of a video of this size.

        Raises:
            SeqlakeError: The encoder cannot write the one asked for, or none that fits the size.
            SchemaMismatchError: It needs a width and height that are even.

        Example:
            >>> Encoding().pixel_format_for(48, 64), Encoding().pixel_format_for(47, 64)
            ('yuv420p', 'yuv444p')
        """
        import av

        known = [one.name for one in av.Codec(self.encoder, "w").video_formats or []]
        odd = bool(width % 2 or height % 2)
        wanted = self.pixel_format or ("yuv444p" if odd else "yuv420p")
        if self.pixel_format is None and not odd and wanted not in known and "nv12" in known:
            return "nv12"  # the same pixels, laid out as some hardware has them
        eight = [name for name in known if _bits(name) == 8 or _is_grey(name)]
        if known and wanted not in known:
            raise SeqlakeError(f"{self.encoder} writes {', '.join(eight) or 'no pixels of 8 bits'}; found {wanted!r}.")
        if _bits(wanted) != 8 and not _is_grey(wanted):
            raise SeqlakeError(
                f"Expected a pixel format of 8 bits a sample, such as {', '.join(eight[:3]) or 'yuv420p'}; "
                f"found {wanted!r}."
            )
        if _is_grey(wanted) and self.produces == "h264":
            raise SeqlakeError("FFmpeg reads grey H.264 back as yuv420p: write grey with ffv1 or libx265.")
        if _is_grey(wanted):
            return wanted
        chroma = av.VideoFormat(wanted, width, height)
        if odd and (chroma.chroma_width(2) < 2 or chroma.chroma_height(2) < 2):
            raise SchemaMismatchError(
                f"Expected an even width and height for {wanted}, found {width}x{height}.", hint="yuv444p takes any."
            )
        return wanted

    @staticmethod
    def fitting(pixel_format: str, /) -> Encoding:
        """What loses nothing of grey pixels: HEVC where it has them in 12 bits, as LeRobot writes depth, else FFV1.

        Example:
            >>> Encoding.fitting("gray16le").codec, Encoding.fitting("gray12le").codec
            ('ffv1', 'libx265')
        """
        import av

        twelve = plain(pixel_format) == "gray12" and "libx265" in av.codecs_available
        return Encoding(codec="libx265" if twelve else "ffv1", keyframe_every=1, pixel_format=pixel_format)


def _is_grey(pixel_format: str) -> bool:
    return plain(pixel_format).startswith("gray") and "f" not in plain(pixel_format)


def _bits(pixel_format: str) -> int:
    """Bits of a sample; 0 of a name that FFmpeg does not know, and of pixels in a device's memory."""
    import av

    try:
        return max((one.bits for one in av.VideoFormat(pixel_format, 16, 16).components), default=0)
    except ValueError:
        return 0


@cache
def _fastest() -> str:
    """The first encoder for H.264 that this machine's hardware has and that encodes a frame; else libx264."""
    import av

    for name in _HARDWARE:
        try:
            context: Any = av.CodecContext.create(name, "w")
            known = [one.name for one in context.codec.video_formats or []]
            context.pix_fmt = "yuv420p" if "yuv420p" in known else "nv12"
            context.width, context.height, context.time_base = 256, 256, Fraction(1, 30)
            frame = av.VideoFrame(256, 256, context.pix_fmt)
            frame.pts = 0
            if [*context.encode(frame), *context.encode(None)]:
                return name
        except (ValueError, OSError, av.error.FFmpegError):  # no such device, driver or encoder
            continue
    return "libx264"


class VideoEncoder:
    """An MP4 file that grows frame by frame; one thread at a time.

    Frame k is presented at exactly k / fps, or at its own tick of 1/90000 s; `moov` comes first, and a frame of odd
    width or height keeps its size (as 4:4:4). The size is that of the first frame. Until `close` returns the file is
    not usable; an encoder that is neither closed nor aborted leaves half a file.

    Args:
        path: Where to write; replaced if it is there. Any suffix.
        fps: Frames per second, exactly; None where every frame has a time of its own.
        encoding: The codec and its options; by default the training profile.

    Example:
        ```python
        encoder = VideoEncoder(Path("cam.mp4"), fps=Fraction(30))
        for frame in camera:          # uint8 [H, W, 3]
            encoder.write(frame)
        encoder.close()
        ```
    """

    def __init__(self, path: Path, /, *, fps: Fraction | None, encoding: Encoding | None = None) -> None:
        self._path = path
        self._fps = None if fps is None else Fraction(fps)
        self._encoding = encoding or Encoding()
        self._container: Any = None
        self._stream: Any = None
        self._reformatter: Any = None
        self._size: tuple[int, int] | None = None
        self._tick = -1
        self.frames: int = 0

    def write(self, frame: NDArray[Any], /, *, tick: int | None = None) -> None:
        """Encode one frame.

        Args:
            frame: uint8 [H, W, 3], RGB; not kept.
            tick: When it is presented, in 1/90000 s from the first frame on; needed just where there is no `fps`.

        Raises:
            SchemaMismatchError: Not such a frame, or of another size than the first.
            ValidationError: A tick that is not after the one before.
            SeqlakeError: FFmpeg does not know the encoder, or it refuses its options.
            OSError: The file cannot be written.
        """
        import av

        frame = self.checked(frame)
        tick = self._next_tick(tick)
        if self._container is None:
            self._open(frame)
        if frame.ndim == 2:
            self._encode_picture(_grey_picture(frame, self._stream.pix_fmt), tick)
            return
        source = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        # The tags say BT.709, so the pixels must be: FFmpeg's own choice for RGB would be BT.601.
        picture = self._reformatter.reformat(
            source, format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG", threads=1
        )
        self._encode_picture(picture, tick)

    def checked(self, frame: NDArray[Any], /, *, where: str = "") -> NDArray[Any]:
        """A frame as the encoding takes it.

        Args:
            frame: uint8 [H, W, 3]; of grey uint8 or uint16 [H, W], or with one channel.
            where: Sequence and column, for messages.

        Raises:
            SchemaMismatchError: Another shape or type, or numbers that have more bits than the pixels.
        """
        pixels = self._encoding.pixel_format
        if pixels is None or not _is_grey(pixels):
            return checked_frame(frame, size=self._size, where=where)
        return checked_grey(frame, bits=_bits(pixels), size=self._size, where=where)

    def _encode_picture(self, picture: Any, tick: int) -> None:
        picture.pts, picture.time_base, picture.pict_type = tick, self._time_base, 0
        self._mux(self._encode(picture))
        self._tick = tick
        self.frames += 1

    def close(self) -> None:
        """Finish the file.

        Raises:
            ValidationError: No frame was written; there is no file.
            OSError: The file cannot be written.
        """
        if self._container is None:
            raise ValidationError("Expected at least one frame for a video, found none.")
        packets = list(self._encode(None))
        if self.frames == 1:  # libx265 gives a frame alone a time of decoding that is whatever was in memory
            for packet in packets:
                packet.dts = packet.pts
        self._mux(packets)
        container, self._container = self._container, None
        container.close()

    def abort(self) -> None:
        """Stop and remove the file."""
        container, self._container = self._container, None
        if container is not None:
            with suppress(Exception):  # what it could not write is removed anyway
                container.close()
        self._path.unlink(missing_ok=True)

    @property
    def _time_base(self) -> Fraction:
        return Fraction(1, TICKS) if self._fps is None else 1 / self._fps

    def _next_tick(self, given: int | None) -> int:
        if (given is None) == (self._fps is None):
            raise ValueError("Frames have a constant rate, or each has a tick; give fps to the encoder or a tick here.")
        if given is None:
            return self.frames
        if given <= self._tick:
            raise ValidationError(f"Expected a frame after tick {self._tick} of 1/{TICKS} s, found one at {given}.")
        return given

    def _open(self, frame: NDArray[Any]) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        encoding = self._encoding
        _ = encoding.produces  # says which encoder is missing
        height, width = frame.shape[:2]
        pixels = encoding.pixel_format_for(height, width)
        _check_nested(encoding.encoder, tuple((k, v) for k, v in encoding.options.items() if k in _NESTED))
        self._size = (height, width)
        grey = _is_grey(pixels)
        profile = (_LOSSLESS if grey else _PROFILES).get(encoding.encoder, {})
        options = {**profile, **encoding.options}
        for name in options.keys() & profile.keys() & encoding.options.keys() & {*_NESTED}:
            options[name] = f"{profile[name]}:{encoding.options[name]}"
        scale = {"video_track_timescale": str(TICKS)} if self._fps is None else {}
        self._container = av.open(str(self._path), "w", format="mp4", options={"movflags": "+faststart", **scale})
        stream = self._container.add_stream(encoding.encoder, rate=self._fps or _NOMINAL, options=options)
        stream.width, stream.height = width, height
        stream.pix_fmt = pixels
        stream.gop_size = encoding.keyframe_every
        context = stream.codec_context
        if encoding.codec == "auto":
            context.max_b_frames = 0
        context.time_base = self._time_base
        context.color_range, context.colorspace = (_FULL if grey else _TV), _BT709
        context.color_primaries, context.color_trc = _BT709, _BT709
        self._stream, self._reformatter = stream, VideoReformatter()

    def _encode(self, frame: Any) -> Any:
        import av

        encoding, context = self._encoding, self._stream.codec_context
        try:
            with nullcontext() if context.is_open else kept_priority():
                packets = self._stream.encode(frame)
        except OSError:
            raise
        except (av.error.FFmpegError, ValueError) as error:
            refused = f"the options {dict(encoding.options)}" if encoding.options else f"{context.pix_fmt} of this size"
            raise SeqlakeError(f"{encoding.encoder} refused {refused}: {error}.") from error
        unknown = context.options.keys() & encoding.options.keys()  # the encoder takes out what it knows
        if unknown:
            raise SeqlakeError(f"Expected options of {encoding.encoder}, found {', '.join(sorted(unknown))}.")
        return packets

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            self._container.mux(packet)


@cache
def _check_nested(encoder: str, options: tuple[tuple[str, str], ...]) -> None:
    """Options within an option: FFmpeg goes on without those that the encoder does not know, and only logs it."""
    import av

    for name, value in options:
        level = av.logging.get_level()
        av.logging.set_level(av.logging.WARNING)
        try:
            with av.logging.Capture(local=True) as logged:
                context: Any = av.CodecContext.create(encoder, "w")
                context.width, context.height, context.time_base = 64, 64, Fraction(1, 30)
                context.pix_fmt, context.options = "yuv420p", {name: value}
                with kept_priority(), suppress(av.error.FFmpegError, ValueError):
                    context.open(strict=False)
        finally:
            av.logging.set_level(level)
        refused = [text.strip() for _, _, text in logged if "rror parsing option" in text]
        if refused:
            raise SeqlakeError(f"{encoder} refused {name}={value!r}: {refused[0]}")


def checked_grey(frame: Any, /, *, bits: int, size: tuple[int, int] | None = None, where: str = "") -> NDArray[Any]:
    """Grey as the numbers that are stored, [H, W] of uint8 or uint16.

    Args:
        frame: uint8 or uint16 [H, W] or [H, W, 1].
        bits: That a number may have.
        size: The height and width it must have.
        where: Sequence and column, for messages.

    Raises:
        SchemaMismatchError: Another shape or type, or a number that has more bits.
    """
    at = f"{where}: " if where else ""
    given = f"{getattr(frame, 'dtype', type(frame).__name__)} {list(getattr(frame, 'shape', ()))}"
    flat = frame[..., 0] if isinstance(frame, np.ndarray) and frame.ndim == 3 and frame.shape[-1] == 1 else frame
    stored = np.dtype(np.uint8 if bits <= 8 else np.uint16)
    if not isinstance(flat, np.ndarray) or flat.ndim != 2 or flat.dtype != stored or 0 in flat.shape:
        raise SchemaMismatchError(f"{at}expected grey of {bits} bits as {stored} [H, W], found {given}.")
    if size is not None and flat.shape != size:
        raise SchemaMismatchError(f"{at}expected frames of {size[1]}x{size[0]} pixels, found {given}.")
    if bits < 8 * stored.itemsize and int(flat.max()) >> bits:
        raise SchemaMismatchError(
            f"{at}expected numbers up to {(1 << bits) - 1}, of {bits} bits; found {int(flat.max())}.",
            hint="gray16le holds all of uint16.",
        )
    return flat


def _grey_picture(codes: NDArray[Any], pixel_format: str) -> Any:
    """A picture of FFmpeg's that holds these numbers as they are."""
    import av

    height, width = codes.shape
    picture = av.VideoFrame(width, height, pixel_format)
    plane: Any = picture.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    stored = codes.dtype.newbyteorder(">" if pixel_format.endswith("be") else "<")
    rows[:, : width * codes.dtype.itemsize].view(stored)[:] = codes
    return picture


def checked_frame(
    frame: Any, /, *, size: tuple[int, int] | None = None, where: str = "", still: bool = False, wide: bool = False
) -> NDArray[Any]:
    """A picture as an array, if it is one that can be encoded.

    Args:
        frame: uint8 [H, W, 3].
        size: The height and width it must have.
        where: Sequence and column, for messages.
        still: For an image: uint8 [H, W] and uint16 [H, W] are grey, as a depth map is.
        wide: For TIFF: grey and colours of 16 bits and floats too.

    Raises:
        SchemaMismatchError: Another shape or type.
    """
    at = f"{where}: " if where else ""
    given = f"{getattr(frame, 'dtype', type(frame).__name__)} {list(getattr(frame, 'shape', ()))}"
    if not isinstance(frame, np.ndarray):
        raise SchemaMismatchError(f"{at}expected a frame as uint8 [H, W, 3], found {given}.")
    colour = frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
    grey = still and frame.ndim == 2 and frame.dtype in (np.uint8, np.uint16)
    if wide and frame.dtype in _WIDE:
        colour, grey = frame.ndim == 3 and frame.shape[2] == 3, frame.ndim == 2
    if not (colour or grey) or 0 in frame.shape:
        also = ", or grey as uint8 or uint16 [H, W]" if still else ""
        also += ", or either of 16 bits or floats" if wide else ""
        hint = "Channels come last, as RGB." if frame.ndim == 3 and frame.shape[0] == 3 else None
        raise SchemaMismatchError(f"{at}expected a frame as uint8 [H, W, 3]{also}, found {given}.", hint=hint)
    if size is not None and frame.shape[:2] != size:
        raise SchemaMismatchError(
            f"{at}expected frames of {size[1]}x{size[0]} pixels, found {frame.shape[1]}x{frame.shape[0]}."
        )
    return frame


def image_format(declared: object, /) -> str:
    """The format in which images of a column are written: png, jpeg or tiff; png, which loses nothing, by default.

    Raises:
        SchemaMismatchError: Another one is declared.

    Example:
        >>> image_format("jpg")
        'jpeg'
    """
    name = "png" if declared is None else _IMAGES.get(str(declared).lower())
    if name is None:
        raise SchemaMismatchError(
            f"Expected the format png, jpeg or tiff to encode frames, found {declared!r}.",
            hint="Encode the images yourself and give bytes or a File.",
        )
    return name


def encode_image(
    frame: NDArray[Any],
    /,
    *,
    format: str = "png",  # noqa: A002 - the format's own word
    quality: int = image.QUALITY,
) -> bytes:
    """One picture as PNG or TIFF (exact), or JPEG (4:2:0, by simplejpeg where it is installed, else by FFmpeg).

    Args:
        frame: uint8 [H, W, 3] RGB; or grey: uint8 [H, W], and uint16 [H, W] as PNG; as TIFF of 16 bits and floats too.
        format: `png`, `jpeg` or `tiff`.
        quality: Of JPEG by simplejpeg, 1 to 100; FFmpeg's has its best.

    Raises:
        SchemaMismatchError: Not such a picture, or 16 bits for JPEG.

    Example:
        ```python
        media.encode_image(np.zeros((48, 64, 3), np.uint8), format="jpeg", quality=90)
        ```
    """
    import av

    frame = checked_frame(frame, still=True, wide=format == "tiff")
    if format == "tiff":
        return _tiff.encode(frame)
    if format == "jpeg" and frame.dtype == np.uint16:
        raise SchemaMismatchError("Expected uint8 for JPEG, found uint16.", hint="PNG holds 16 bits.")
    if format == "jpeg" and image.has_simplejpeg():
        return image.encode_jpeg(frame, quality=quality)
    if format == "jpeg" and frame.ndim == 2:
        frame = np.repeat(frame[:, :, None], 3, axis=2)  # FFmpeg writes no JPEG of one channel
    layout = "rgb24" if frame.ndim == 3 else ("gray" if frame.dtype == np.uint8 else "gray16le")
    source = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format=layout)
    # A fresh context for each picture: a reused PNG context mixes them.
    context: Any = av.CodecContext.create("png" if format == "png" else "mjpeg", "w")
    if format == "png":
        picture = source.reformat(format=layout.replace("gray16le", "gray16be"), threads=1)
    else:
        # JPEG means BT.601 over the full range, whatever the size.
        picture = source.reformat(format="yuvj420p", dst_colorspace="ITU601", dst_color_range="JPEG", threads=1)
        context.color_range, context.options = _FULL, {"qmin": "2", "qmax": "2"}
    context.width, context.height, context.pix_fmt = picture.width, picture.height, picture.format.name
    context.time_base, context.thread_count = Fraction(1, 25), 1
    picture.pts, picture.time_base, picture.pict_type = 0, context.time_base, 0
    return b"".join(bytes(packet) for packet in [*context.encode(picture), *context.encode(None)])
