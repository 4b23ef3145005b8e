"""Frames given as arrays: they become a video, images in the cell, or one image file a step."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from seqlake.dataset.writing.conforming import too_large
from seqlake.dataset.writing.ingest import Encoded, File, existing
from seqlake.dataset.writing.values import as_array
from seqlake.errors import DecodeError, SchemaMismatchError, ValidationError
from seqlake.media import (
    TICKS,
    Encoding,
    VideoEncoder,
    checked_frame,
    checked_grey,
    depth_picture,
    encode_cloud,
    encode_image,
    image_format,
    pixels_of,
)
from seqlake.spec.alignment import clock_of, on_clock, own_rate
from seqlake.spec.pixel_formats import differs, plain
from seqlake.spec.rules.signals import LARGEST_CELL
from seqlake.spec.schema import is_binary, is_text
from seqlake.windows.frames import is_clouds
from seqlake.windows.timestamps import nanoseconds
from seqlake.windows.tracks import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from seqlake.spec.schema import Column, Schema

    Scratch = Callable[[], Path]
    Keep = Callable[[Encoded], object]

_SAME_CODEC = {"avc": "h264", "avc1": "h264", "x264": "h264", "h265": "hevc", "x265": "hevc"}


@dataclass(frozen=True, slots=True)
class Encodings:
    """How the videos of a dataset are encoded: all alike, or some columns in a way of their own; picklable."""

    default: Encoding = field(default_factory=Encoding)
    by_column: Mapping[str, Encoding] = field(default_factory=dict)

    def of(self, column: str, /) -> Encoding:
        """That of one column."""
        return self.by_column.get(column, self.default)

    @staticmethod
    def given(encoding: Encoding | Mapping[str, Encoding] | None, schema: Schema, /) -> Encodings:
        """What a caller asked for, if it has an effect.

        Args:
            encoding: For all videos, or by column; None for the training profile.
            schema: The columns.

        Raises:
            SchemaMismatchError: A column is named that holds no video.
            ValueError: No column holds one; or it is no encoding.
        """
        grey = {name: Encoding.fitting(pixels) for name in schema if (pixels := _grey_of(schema[name]))}
        if encoding is None:
            return Encodings(by_column=grey)
        chosen = Encodings.among([name for name in schema if is_video(schema[name])], encoding)
        return replace(chosen, by_column=grey | dict(chosen.by_column))

    @staticmethod
    def among(videos: Sequence[str], encoding: Encoding | Mapping[str, Encoding], /) -> Encodings:
        """What a caller asked for, if these are the columns of videos; as `given`."""
        by_column = dict(encoding) if isinstance(encoding, Mapping) else {}
        for one in by_column.values() if isinstance(encoding, Mapping) else [encoding]:
            if not isinstance(one, Encoding):
                raise ValueError(  # noqa: TRY004 - as every other argument that is none
                    f"encoding: expected sl.Encoding(...), or one for each column named, found {one!r}."
                )
        if not videos:
            raise ValueError("encoding= would have no effect: no column holds videos.")
        for name in by_column:
            if name not in videos:
                near = difflib.get_close_matches(str(name), videos, n=1)
                raise SchemaMismatchError(
                    f"encoding: expected columns of videos, which are {', '.join(videos)}; found {name!r}.",
                    hint=f"Did you mean {near[0]!r}?" if near else None,
                )
        return Encodings(by_column=by_column) if isinstance(encoding, Mapping) else Encodings(default=encoding)


class FramesCell(Protocol):
    """One cell that grows frame by frame: `check` and `settle` on the caller's thread, `write` on one's own."""

    def check(self, frame: object, /, *, where: str, time: object = None) -> Any:
        """The frame as `write` takes it, or an error that says what was expected; keeps nothing.

        Args:
            frame: A picture.
            where: Sequence, column and step, for messages.
            time: When it was taken, of a video whose column names `timestamps`.
        """

    def settle(self, frame: Any, /) -> None:
        """This checked frame is taken: later ones must be like it."""

    def write(self, frame: Any, /) -> None:
        """Encode a checked frame."""

    def close(self) -> object:
        """The value of the cell."""

    def abort(self) -> None:
        """Remove what was made."""


def cell_of(schema: Schema, name: str, /, *, encoding: Encoding, scratch: Scratch, keep: Keep) -> FramesCell:
    """What encodes the frames of a column.

    Args:
        schema: All columns.
        name: A video column, or one of images, one a step.
        encoding: How videos are encoded.
        scratch: Gives a path for a file in the making.
        keep: Takes an image file, and gives what stands for it in the row.

    Raises:
        SchemaMismatchError: The column declares what this encoding does not make, or no rate is known.
    """
    column = schema[name]
    if is_video(column):
        return _VideoCell(schema, column, encoding=encoding, scratch=scratch)
    if is_clouds(column):
        return _CloudsCell(column, scratch=scratch, keep=keep)
    return _ImagesCell(column, scratch=scratch, keep=keep)


def is_video(column: Column, /) -> bool:
    """Whether frames of this column become a video."""
    return column.medium == "video" and (column.inline or _is_path(column))


@contextmanager
def encoded(
    schema: Schema, key: str, values: Mapping[str, object], /, *, encoding: Encodings, scratch: Scratch
) -> Iterator[Mapping[str, object]]:
    """The cells of a row with frames replaced by what they become; files made for it are gone afterwards.

    Args:
        schema: All columns.
        key: The row's id, for messages.
        values: Cells by column.
        encoding: How videos are encoded.
        scratch: Gives a path for a file in the making.

    Raises:
        SchemaMismatchError: Frames of a kind, size or codec that the column does not have.
        ValidationError: No frames at all.
    """
    scratch_files: list[Path] = []

    def path() -> Path:
        scratch_files.append(scratch())
        return scratch_files[-1]

    def cell(name: str, value: Any) -> object:
        where = f"Sequence {key!r}, column {name!r}"
        column = schema[name]
        if is_cloud(column):
            return _cloud_file(value, column, path(), where)
        if _is_image_file(column):
            frame = _still(value, column, size=_declared(column), where=where)
            return _image_file(frame, column, path())
        frames = cell_of(schema, name, encoding=encoding.of(name), scratch=path, keep=lambda file: file)
        times = _times(values.get(stamps), where) if is_video(column) and (stamps := column.timestamps) else None
        try:
            pictures = (
                as_array(value, where=where) if is_clouds(column) and _is_array(value) else _pictures(value, where)
            )
            count = _fill(frames, pictures, times, where)
            made_of = frames.close()
        except BaseException:
            frames.abort()
            raise
        if is_video(column):
            if not count:
                raise ValidationError(f"{where}: expected at least one frame, found none.")
            counted.append((name, count))
        return made_of

    counted: list[tuple[str, int]] = []
    try:
        cells = {n: cell(n, v) if n in schema and holds_frames(schema[n], v) else v for n, v in values.items()}
        yield {**cells, **_length(schema, cells, counted)}
    finally:
        for file in scratch_files:
            file.unlink(missing_ok=True)


def _fill(frames: FramesCell, pictures: Iterable[object], times: list[int] | None, where: str) -> int:
    """Give a cell its frames; how many there were."""
    count = 0
    for picture in pictures:
        time = None if times is None or count >= len(times) else times[count]
        frame = frames.check(picture, where=f"{where}, step {count}", time=time)
        frames.settle(frame)
        frames.write(frame)
        count += 1
    if times is not None and count < len(times):
        raise SchemaMismatchError(f"{where}: expected a frame for each of {len(times)} times, found {count}.")
    return count


def _grey_of(column: Column) -> str:
    """The pixels of a video whose frames are numbers of one channel; empty of others."""
    declared = None if column.type is None else column.type.pixel_format
    return declared if is_video(column) and declared is not None and plain(declared).startswith("gray") else ""


def takes_frames(column: Column, /) -> bool:
    """Whether a column may be given pictures to encode: a video, images of the steps, one image."""
    one_file = column.medium in {"video", "image", "3d"} and (column.inline or _is_path(column))
    return one_file or column.category == "frames"


def holds_frames(column: Column, value: object, /) -> bool:
    """Whether this value is pictures to encode, not a reference, a file or encoded bytes."""
    if value is None or isinstance(value, str | bytes | bytearray | memoryview | os.PathLike | Mapping | File):
        return False
    if isinstance(value, pa.Scalar | pa.Array | pa.ChunkedArray) or hasattr(value, "__arrow_c_stream__"):
        return False
    if is_video(column):
        return isinstance(value, Iterable)
    if is_cloud(column):
        return _is_array(value)
    if column.category == "frames":
        if _is_array(value):
            return len(getattr(value, "shape", ())) >= 3
        return isinstance(value, Iterator) or (isinstance(value, Iterable) and any(map(_is_array, value)))
    return _is_image_file(column) and _is_array(value) and len(getattr(value, "shape", ())) >= 2


def is_cloud(column: Column, /) -> bool:
    """Whether an array for this column is a cloud of points, which becomes a file."""
    return column.medium == "3d" and (column.inline or _is_path(column))


def _is_image_file(column: Column) -> bool:
    return column.medium == "image" and (column.inline or _is_path(column))


@dataclass(frozen=True, slots=True)
class TimedFrame:
    """A checked frame of a video, and its time in nanoseconds where frames have times of their own."""

    picture: NDArray[Any]
    time: int | None

    def copy(self) -> TimedFrame:
        """The same, in memory of its own."""
        return TimedFrame(self.picture.copy(), self.time)


class _VideoCell:
    """An MP4, in the making beside the dataset's files."""

    def __init__(self, schema: Schema, column: Column, *, encoding: Encoding, scratch: Scratch) -> None:
        self._column = column
        self._grey = _grey_of(column)
        if self._grey and encoding.pixel_format is None:
            encoding = replace(encoding, pixel_format=self._grey)
        self._encoding = encoding
        self._scratch = scratch
        self._stamps = column.timestamps
        self._rate = None if self._stamps else own_rate(column) or clock_of(schema).rate
        self._size = _declared(column)
        self._first: int | None = None
        self._newest: int | None = None
        self._encoder: VideoEncoder | None = None
        self._path: Path | None = None
        self._check_column()

    def check(self, frame: object, /, *, where: str, time: object = None) -> Any:
        picture = as_array(frame, where=where)
        if self._grey:
            bits = pixels_of(self._grey).bits
            if self._column.type is not None and self._column.type.is_depth:
                picture = depth_picture(picture, self._column.type, (1 << bits) - 1, where=where)
            picture = checked_grey(picture, bits=bits, size=self._size, where=where)
        else:
            picture = checked_frame(picture, size=self._size, where=where)
        return TimedFrame(picture, self._checked_time(time, where) if self._stamps else None)

    def settle(self, frame: TimedFrame, /) -> None:
        height, width = frame.picture.shape[:2]
        self._size = (height, width)
        if self._first is None:
            self._first = frame.time
        self._newest = frame.time

    def write(self, frame: TimedFrame, /) -> None:
        if self._encoder is None:
            self._path = self._scratch()
            self._encoder = VideoEncoder(self._path, fps=self._rate, encoding=self._encoding)
        self._encoder.write(frame.picture, tick=None if frame.time is None else self._tick(frame.time))

    def _tick(self, time: int) -> int:
        # Rounded down, so that the frame stands at its own time whoever asks what stood there.
        return (time - (time if self._first is None else self._first)) * TICKS // NANOSECONDS

    def _checked_time(self, time: object, where: str) -> int:
        if time is None:
            raise SchemaMismatchError(f"{where}: expected the frame's time in column {self._stamps!r}, found none.")
        [moment] = _times([time], where)
        if self._newest is not None and self._tick(moment) <= self._tick(self._newest):
            raise ValidationError(
                f"{where}: expected a frame at least 1/{TICKS} s after the one before, found it "
                f"{(moment - self._newest) / NANOSECONDS:g} s after it.",
                hint=f"The times in {self._stamps!r} ascend: nanoseconds as whole numbers, or seconds.",
            )
        return moment

    def close(self) -> object:
        if self._encoder is None or self._path is None:
            return None
        self._encoder.close()
        return Encoded(self._path, suffix=".mp4")

    def abort(self) -> None:
        if self._encoder is not None:
            self._encoder.abort()

    def _check_column(self) -> None:
        name, declared = self._column.name, self._column.type
        assert declared is not None, "a video column has a type"
        if self._rate is None and not self._stamps:
            raise SchemaMismatchError(
                f"Column {name!r}: expected a rate to encode frames at, found no fps in the schema.",
                hint="Declare it, as in sl.Video(fps=30).",
            )
        pixels = self._encoding.pixel_format
        if pixels is not None and differs(declared.pixel_format, pixels):
            raise SchemaMismatchError(
                f"Column {name!r} declares pixels {declared.pixel_format!r}, found an encoding in {pixels!r}.",
                hint="Give the writer encoding=sl.Encoding(pixel_format=...), or a File that is encoded already.",
            )
        codec, produced = declared.get("codec"), self._encoding.produces
        if isinstance(codec, str) and _SAME_CODEC.get(codec.lower(), codec.lower()) != produced:
            raise SchemaMismatchError(
                f"Column {name!r} declares the codec {codec!r}, found an encoder that makes {produced!r}.",
                hint="Give the writer encoding=sl.Encoding(codec=...), or a File that is encoded already.",
            )


class _ImagesCell:
    """Images one a step: bytes in the cell, or files of their own. What is encoded already passes through."""

    def __init__(self, column: Column, *, scratch: Scratch, keep: Keep) -> None:
        self._column = column
        self._in_row = is_binary(column.arrow.value_type)
        self._format = image_format(column.type.get("format") if column.type is not None else None)
        self._scratch = scratch
        self._keep = keep
        self._size = _declared(column)
        self._kind: tuple[int, np.dtype[Any]] | None = None
        self._nbytes = 0
        self._values: list[object] = []

    def check(self, frame: object, /, *, where: str, time: object = None) -> Any:  # noqa: ARG002 - images have none
        if isinstance(frame, File) and not self._in_row:
            return existing(frame, self._column, where)
        if isinstance(frame, bytes if self._in_row else str):
            return frame
        if not _is_array(frame):
            encoded_as = "bytes" if self._in_row else "a str or a File"
            kind_given = type(frame).__name__
            raise SchemaMismatchError(f"{where}: expected an image as an array or {encoded_as}, found {kind_given}.")
        image = _still(frame, self._column, size=self._size, where=where)
        kind = (image.ndim, image.dtype)
        if self._kind not in {None, kind} or (self._format == "jpeg" and image.dtype != np.uint8):
            wanted = "uint8, for JPEG" if self._kind is None else f"{self._kind[1]} with {self._kind[0]} dimensions"
            raise SchemaMismatchError(f"{where}: expected {wanted}, found {image.dtype} {list(image.shape)}.")
        return image

    def settle(self, frame: Any, /) -> None:
        if isinstance(frame, np.ndarray):
            self._size, self._kind = frame.shape[:2], (frame.ndim, frame.dtype)

    def write(self, frame: Any, /) -> None:
        if isinstance(frame, np.ndarray):
            frame = encode_image(frame, format=self._format)
            if not self._in_row:
                path = self._scratch()
                path.write_bytes(frame)
                frame = self._keep(Encoded(path, suffix=f".{self._format}"))
        self._values.append(frame)
        if isinstance(frame, bytes):
            self._nbytes += len(frame)
            if self._nbytes > LARGEST_CELL:
                raise ValidationError(too_large(f"Column {self._column.name!r}", self._nbytes))

    def close(self) -> object:
        return self._values

    def abort(self) -> None:
        self._values = []


class _CloudsCell:
    """Clouds one a step, each a file of its own. What is a file already passes through."""

    def __init__(self, column: Column, *, scratch: Scratch, keep: Keep) -> None:
        self._column = column
        self._scratch = scratch
        self._keep = keep
        self._values: list[object] = []

    def check(self, frame: object, /, *, where: str, time: object = None) -> Any:  # noqa: ARG002 - clouds have none
        if isinstance(frame, File):
            return existing(frame, self._column, where)
        if isinstance(frame, str):
            return frame
        if not _is_array(frame):
            kind = type(frame).__name__
            raise SchemaMismatchError(f"{where}: expected a cloud as an array, a str or a File, found {kind}.")
        return cloud_bytes(frame, self._column, where)

    def settle(self, frame: Any, /) -> None:
        """Nothing: clouds need not be alike."""

    def write(self, frame: Any, /) -> None:
        if isinstance(frame, bytes):
            path = self._scratch()
            path.write_bytes(frame)
            frame = self._keep(Encoded(path, suffix=".pcd"))
        self._values.append(frame)

    def close(self) -> object:
        return self._values

    def abort(self) -> None:
        self._values = []


def _still(value: Any, column: Column, *, size: tuple[int, int] | None, where: str) -> NDArray[Any]:
    """One picture as it is encoded; a depth map as codes of 16 bits."""
    picture = as_array(value, where=where)
    if column.type is not None and column.type.is_depth:
        picture = depth_picture(picture, column.type, np.iinfo(np.uint16).max, where=where)
    wide = image_format(column.type.get("format") if column.type is not None else None) == "tiff"
    return checked_frame(picture, size=size, where=where, still=True, wide=wide)


def _image_file(frame: NDArray[Any], column: Column, path: Path) -> Encoded:
    kind = image_format(column.type.get("format") if column.type is not None else None)
    path.write_bytes(encode_image(frame, format=kind))
    return Encoded(path, suffix=f".{kind}")


def _cloud_file(value: object, column: Column, path: Path, where: str) -> Encoded:
    path.write_bytes(cloud_bytes(value, column, where))
    return Encoded(path, suffix=".pcd")


def cloud_bytes(value: object, column: Column, where: str, /) -> bytes:
    """A cloud given as an array, as the file that is written.

    Raises:
        SchemaMismatchError: It is none, or has numbers that the file has no type for.
    """
    assert column.type is not None, "a column of clouds has a type"
    try:
        return encode_cloud(as_array(value, where=where), column.type, where=where)
    except DecodeError as error:
        raise SchemaMismatchError(error.message) from error


def _pictures(value: Any, where: str) -> Iterable[object]:
    """The steps of [T, ...] arrays and tensors, or of any iterable."""
    if not _is_array(value):
        return value  # type: ignore[no-any-return]  # `holds_frames` saw that it is iterable
    frames = as_array(value, where=where)
    if frames.ndim not in {3, 4} or (frames.ndim == 3 and frames.shape[-1] == 3):
        raise SchemaMismatchError(f"{where}: expected frames as [T, H, W, 3], found {list(frames.shape)}.")
    return frames


def _times(given: Any, where: str) -> list[int]:
    """Times of frames in nanoseconds: whole numbers are, floats are seconds."""
    times = np.empty(0) if given is None else as_array(given, where=where)
    if times.dtype.kind not in "iufmM":
        raise SchemaMismatchError(f"{where}: expected times as numbers, found {times.dtype}.")
    if times.dtype.kind == "f" and not np.isfinite(times).all():
        raise ValidationError(f"{where}: expected times that are finite, found {times[~np.isfinite(times)][0]}.")
    ticks: list[int] = nanoseconds(times.reshape(-1)).tolist()
    return ticks


def _length(schema: Schema, cells: Mapping[str, object], counted: list[tuple[str, int]]) -> dict[str, int]:
    """The steps of a row that has no signal on the clock: the frames of its first video there."""
    if "length" not in schema or not pa.types.is_integer(schema["length"].arrow) or cells.get("length") is not None:
        return {}
    rate = clock_of(schema).rate
    signals = (n for n, value in cells.items() if n in schema and value is not None)
    if any(schema[n].category in {"temporal", "frames"} and on_clock(schema, n, rate) for n in signals):
        return {}
    return next(({"length": frames} for n, frames in counted if on_clock(schema, n, rate)), {})


def _declared(column: Column) -> tuple[int, int] | None:
    """Height and width, where the column declares a resolution."""
    declared = column.type.get("resolution") if column.type is not None else None
    if isinstance(declared, list) and len(declared) == 2 and all(type(n) is int for n in declared):
        return declared[1], declared[0]
    return None


def _is_array(value: object) -> bool:
    return hasattr(value, "shape") and (hasattr(value, "__array__") or hasattr(value, "__dlpack__"))


def _is_path(column: Column) -> bool:
    return is_text(column.arrow)
