"""Frames of a row as arrays, for formats that hold pixels or pictures of their own: videos are decoded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.protocols import Source
from seqlake.spec.schema import is_binary, is_text
from seqlake.windows.sources import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from seqlake.protocols import Decoder
    from seqlake.spec.schema import Column
    from seqlake.windows.sources import MediaFiles

_AT_ONCE = 16 << 20  # bytes of decoded frames, about


def has_frames(column: Column, /) -> bool:
    """Whether a cell is a video, or a list of pictures; clouds of points are none."""
    if column.medium == "video":
        return True
    return column.category == "frames" and column.type is not None and column.type.type == "image"


def stored_pictures(column: Column, /) -> bool:
    """Whether the pictures of a cell are encoded already: bytes, or files of their own."""
    return column.category == "frames" and (is_binary(column.arrow.value_type) or is_text(column.arrow.value_type))


def picture_bytes(cell: Any, files: MediaFiles, /) -> bytes:
    """The encoded bytes of one picture of a list.

    Args:
        cell: Its bytes, or a reference.
        files: How files are opened that the row names.
    """
    if isinstance(cell, bytes):
        return cell
    blob = files.blob(cell)
    [data] = blob.ranges(np.array([0], np.int64), np.array([blob.size], np.int64))
    return bytes(data)


def frames_of(cell: Any, column: Column, files: MediaFiles, /) -> Iterator[NDArray[Any]]:
    """The frames of one cell in order, each [height, width, channels].

    Args:
        cell: As the row holds it; None has no frames.
        column: A column that `has_frames`.
        files: How files are opened that the row names.

    Raises:
        DecodeError: They cannot be decoded.
        MissingFileError: The file is not there.
    """
    if cell is None:
        return
    with closing(_opened(cell, column, files)) as decoder:
        count, at, step = len(decoder), 0, 1
        while at < count:
            numbers = np.arange(at, min(at + step, count), dtype=np.int64)
            frames = decoder.read(numbers)
            yield from frames
            at += len(numbers)
            step = max(1, _AT_ONCE // max(1, frames[0].nbytes))


def _opened(cell: Any, column: Column, files: MediaFiles) -> Decoder:
    kind = column.type
    assert kind is not None
    if column.category == "frames":

        def picture(step: int) -> Source | None:
            one = cell[step]
            return None if one is None else Source(blob=picture_bytes(one, files), column=kind)

        return media.open_steps(len(cell), picture, kind)
    span = place_of(cell)
    assert span is not None
    source = files.source(span.reference, kind, data=span.data)
    return media.open(replace(source, first=span.first, count=span.count))
