"""Videos as Rerun's viewer decodes them: a whole MP4 with the times of its frames; else pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError
from seqlake.media import blob_of, encode_image, format_of
from seqlake.media.image import encode_jpeg
from seqlake.media.video.cutting import cut
from seqlake.plugins import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.protocols import Decoder, Ints, Source
    from seqlake.spec.column_types import ColumnType

_CLOSE = 1000  # nanoseconds that two readers of a container may differ in
_FARTHEST = 65_535  # millimetres


def asset_of(source: Source, instants: Ints, /) -> tuple[bytes, Ints] | None:
    """A video as an MP4 that Rerun reads, and the time of each frame in it.

    Packets are copied into a file of their own where the container is another one, holds more, or has Rerun read other
    frames from it than are presented.

    Args:
        source: The video.
        instants: [frames] when each is presented, in nanoseconds after the first.

    Returns:
        The file, and [frames] nanoseconds; None where Rerun reads no such video.
    """
    blob = blob_of(source)
    whole = source.first == 0 and source.count is None and not source.column.stream
    if whole and _head(blob)[4:8] == b"ftyp":
        data = _all_of(blob)
        stamps = _stamps(data, instants)
        if stamps is not None:
            return data, stamps
    with tempfile.TemporaryDirectory(prefix="seqlake-rerun-") as folder:
        path = Path(folder) / "clip.mp4"
        try:
            cut(source, path, start=0, stop=len(instants))
        except DecodeError:
            return None
        data = path.read_bytes()
    stamps = _stamps(data, instants) if data[4:8] == b"ftyp" else None
    return None if stamps is None else (data, stamps)


def _stamps(data: bytes, instants: Ints) -> Ints | None:
    """The time of each frame as Rerun reads them, if they are the frames that are presented."""
    library = require("rerun", extra="rerun")
    try:
        stamps = library.AssetVideo(contents=data, media_type="video/mp4").read_frame_timestamps_nanos()
    except (RuntimeError, ValueError):  # a codec, or a container, that it does not know
        return None
    same = len(stamps) == len(instants) and bool((np.abs(stamps - stamps[0] - instants) <= _CLOSE).all())
    return np.asarray(stamps, np.int64) if same else None


def frames_of(decoder: Decoder, numbers: Ints, column: ColumnType, quality: int, /) -> list[bytes]:
    """Frames as JPEG; depth as PNG of millimetres in 16 bits."""
    return [_encoded(picture, column, quality) for picture in decoder.read(numbers)]


def picture_of(source: Source | None, decoder: Decoder, step: int, column: ColumnType, quality: int, /) -> bytes:
    """One picture of a column: as it is where it is JPEG or PNG, else encoded anew; depth as `frames_of`."""
    assert source is not None
    data = _all_of(blob_of(source))
    if not column.is_depth and format_of(data[:64]) in {"jpeg", "png"}:
        return data
    return frames_of(decoder, np.array([step], np.int64), column, quality)[0]


def _encoded(picture: NDArray[Any], column: ColumnType, quality: int) -> bytes:
    if column.is_depth:
        metres = np.nan_to_num(np.squeeze(picture).astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
        return encode_image(np.clip(np.rint(metres * 1000), 0, _FARTHEST).astype(np.uint16), format="png")
    flat = picture[..., 0] if picture.ndim == 3 and picture.shape[-1] == 1 else picture
    if flat.dtype != np.uint8:
        return encode_image(flat, format="png")
    return encode_jpeg(np.repeat(flat[..., None], 3, axis=-1) if flat.ndim == 2 else flat[..., :3], quality=quality)


def _head(blob: Any) -> bytes:
    [head] = blob.ranges(np.array([0], np.int64), np.array([min(64, blob.size)], np.int64))
    return bytes(head)


def _all_of(blob: Any) -> bytes:
    view = blob.view()
    if view is not None:
        return bytes(view)
    [data] = blob.ranges(np.array([0], np.int64), np.array([blob.size], np.int64))
    return bytes(data)


__all__ = ["asset_of", "frames_of", "picture_of"]
