"""Arrays to bytes: frames become an H.264 video that random windows read fast, or one image each.

The training profile is H.264 `veryfast`, `tune=fastdecode`, a keyframe every 8 frames, no B-frames, BT.709 in the
pixels and in the tags: decoding is what a training run pays for, again and again, so the bytes are laid out for it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import SchemaMismatchError, SeqlakeError, ValidationError
from seqlake.media import image

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
_TV, _FULL, _BT709 = 1, 2, 1  # as FFmpeg numbers them
_NOMINAL = Fraction(30)  # what an encoder without a rate plans its bits by

TICKS = 90_000
"""Ticks of a second in videos whose frames have times of their own."""
_IMAGES = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How frames that are given as arrays become a video.

    Attributes:
        codec: FFmpeg's name of the encoder.
        keyframe_every: Frames from one keyframe to the next. 16 takes 0.6 of the bytes and a fifth of the speed of
            short random windows; 2 and 4 take two to three times the bytes and gain little.
        options: Options of the encoder, on top of the training profile (`preset` veryfast, `tune` fastdecode, `crf` 23,
            no B-frames) where it is libx264, and alone for any other.

    Example:
        ```python
        writer = ds.writer(encoding=sl.Encoding(options={"preset": "ultrafast", "crf": "18"}))
        ```
    """

    codec: str = "libx264"
    keyframe_every: int = 8
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keyframe_every < 1:
            raise ValueError(f"keyframe_every is a number of frames, at least 1; found {self.keyframe_every}.")

    @property
    def produces(self) -> str:
        """The codec that comes out, as a column type declares it: libx264 makes h264.

        Raises:
            SeqlakeError: This build of PyAV has no such encoder.
        """
        import av

        try:
            return str(av.Codec(self.codec, "w").canonical_name)
        except ValueError as error:
            raise SeqlakeError(
                f"Expected an encoder of FFmpeg, found none called {self.codec!r}.",
                hint="`libx264` is in every wheel of PyAV; av.codecs_available lists all.",
            ) from error


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
        self.frames = 0

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

        frame = checked_frame(frame, size=self._size)
        tick = self._next_tick(tick)
        if self._container is None:
            self._open(frame)
        source = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        # The tags say BT.709, so the pixels must be: FFmpeg's own choice for RGB would be BT.601.
        picture = self._reformatter.reformat(
            source, format=self._stream.pix_fmt, dst_colorspace="ITU709", dst_color_range="MPEG", threads=1
        )
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
        self._mux(self._encode(None))
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
        self._size = (height, width)
        profile = _PROFILE if encoding.codec == "libx264" else {}
        scale = {"video_track_timescale": str(TICKS)} if self._fps is None else {}
        self._container = av.open(str(self._path), "w", format="mp4", options={"movflags": "+faststart", **scale})
        options = {**profile, **encoding.options}
        stream = self._container.add_stream(encoding.codec, rate=self._fps or _NOMINAL, options=options)
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuv444p" if width % 2 or height % 2 else "yuv420p"
        stream.gop_size = encoding.keyframe_every
        context = stream.codec_context
        context.time_base = self._time_base
        context.color_range, context.colorspace = _TV, _BT709
        context.color_primaries, context.color_trc = _BT709, _BT709
        self._stream, self._reformatter = stream, VideoReformatter()

    def _encode(self, frame: Any) -> Any:
        import av

        encoding, context = self._encoding, self._stream.codec_context
        try:
            packets = self._stream.encode(frame)
        except OSError:
            raise
        except (av.error.FFmpegError, ValueError) as error:
            raise SeqlakeError(f"{encoding.codec} refused the options {dict(encoding.options)}: {error}.") from error
        unknown = context.options.keys() & encoding.options.keys()  # the encoder takes out what it knows
        if unknown:
            raise SeqlakeError(f"Expected options of {encoding.codec}, found {', '.join(sorted(unknown))}.")
        return packets

    def _mux(self, packets: Any) -> None:
        for packet in packets:
            self._container.mux(packet)


def checked_frame(
    frame: Any, /, *, size: tuple[int, int] | None = None, where: str = "", still: bool = False
) -> NDArray[Any]:
    """A picture as an array, if it is one that can be encoded.

    Args:
        frame: uint8 [H, W, 3].
        size: The height and width it must have.
        where: Sequence and column, for messages.
        still: For an image: uint8 [H, W] and uint16 [H, W] are grey, as a depth map is.

    Raises:
        SchemaMismatchError: Another shape or type.
    """
    at = f"{where}: " if where else ""
    given = f"{getattr(frame, 'dtype', type(frame).__name__)} {list(getattr(frame, 'shape', ()))}"
    if not isinstance(frame, np.ndarray):
        raise SchemaMismatchError(f"{at}expected a frame as uint8 [H, W, 3], found {given}.")
    colour = frame.ndim == 3 and frame.shape[2] == 3 and frame.dtype == np.uint8
    grey = still and frame.ndim == 2 and frame.dtype in (np.uint8, np.uint16)
    if not (colour or grey) or 0 in frame.shape:
        also = ", or grey as uint8 or uint16 [H, W]" if still else ""
        hint = "Channels come last, as RGB." if frame.ndim == 3 and frame.shape[0] == 3 else None
        raise SchemaMismatchError(f"{at}expected a frame as uint8 [H, W, 3]{also}, found {given}.", hint=hint)
    if size is not None and frame.shape[:2] != size:
        raise SchemaMismatchError(
            f"{at}expected frames of {size[1]}x{size[0]} pixels, found {frame.shape[1]}x{frame.shape[0]}."
        )
    return frame


def image_format(declared: object, /) -> str:
    """The format in which images of a column are written: png or jpeg; png, which loses nothing, by default.

    Raises:
        SchemaMismatchError: Another one is declared.

    Example:
        >>> image_format("jpg")
        'jpeg'
    """
    name = "png" if declared is None else _IMAGES.get(str(declared).lower())
    if name is None:
        raise SchemaMismatchError(
            f"Expected the format png or jpeg to encode frames, found {declared!r}.",
            hint="Encode the images yourself and give bytes or a File.",
        )
    return name


def encode_image(frame: NDArray[Any], /, *, format: str = "png") -> bytes:  # noqa: A002 - the format's own word
    """One picture as PNG (exact) or JPEG (4:2:0, by simplejpeg where it is installed, else by FFmpeg).

    Args:
        frame: uint8 [H, W, 3] RGB; or grey: uint8 [H, W], and uint16 [H, W] as PNG.
        format: `png` or `jpeg`.

    Raises:
        SchemaMismatchError: Not such a picture, or 16 bits for JPEG.
    """
    import av

    frame = checked_frame(frame, still=True)
    if format == "jpeg" and frame.dtype == np.uint16:
        raise SchemaMismatchError("Expected uint8 for JPEG, found uint16.", hint="PNG holds 16 bits.")
    if format == "jpeg" and image.has_simplejpeg():
        return image.encode_jpeg(frame)
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
