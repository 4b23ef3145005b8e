"""Bytes to arrays, and arrays to bytes: each plug decodes some column types.

A file here whose name begins with an underscore is no plug. What other rooms need of these stands in `__all__`.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.abilities import ForDevices, ability
from seqlake.errors import DecodeError
from seqlake.media import spatial
from seqlake.media._bytes import BlobBytes, blob_of
from seqlake.media._carried import hint
from seqlake.media._containers import PICTURES, format_of, kind_of, open_container
from seqlake.media._depth import MeasuredDecoder, depth_levels, depth_picture
from seqlake.media._encoding import (
    TICKS,
    Encoding,
    VideoEncoder,
    checked_frame,
    checked_grey,
    encode_image,
    image_format,
)
from seqlake.media._frames import Frames, LazyDecoder
from seqlake.media._limits import PACKETS
from seqlake.media._resampling import FASTEST, SLOWEST, resampled, resampled_count
from seqlake.media._sound import cut as cut_sound
from seqlake.media.image import ImageDecoder, decode_into
from seqlake.media.spatial import encode as encode_cloud
from seqlake.media.video.codes import pixels_of
from seqlake.spec.alignment import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.protocols import Decoder, Media, Source
    from seqlake.spec.column_types import ColumnType

__all__ = [
    "FASTEST",
    "PACKETS",
    "PICTURES",
    "SLOWEST",
    "TICKS",
    "BlobBytes",
    "Encoding",
    "Frames",
    "LazyDecoder",
    "VideoEncoder",
    "blob_of",
    "checked_frame",
    "checked_grey",
    "cut_sound",
    "decode_into",
    "depth_levels",
    "depth_picture",
    "encode_cloud",
    "encode_image",
    "format_of",
    "hint",
    "image_format",
    "index",
    "kind_of",
    "open",
    "open_container",
    "open_steps",
    "opens",
    "pixels_of",
    "resampled",
    "resampled_count",
]


@cache
def _plugs(kind: str) -> tuple[Media, ...]:
    plugs: list[Any] = [plugins.load("media", name) for name in plugins.names("media")]
    plugs = [plug for plug in plugs if kind in plug.types()]
    return tuple(sorted(plugs, key=lambda plug: not getattr(plug, "__name__", "").startswith("seqlake.")))


def _serves(plug: Media, device: str) -> bool:
    """Whether a plug is taken for a device without being chosen: all are, but for those that name theirs."""
    kind = device.partition(":")[0]
    known = ability(plug, ForDevices)
    return known is None or kind in known.DEVICES


def opens(kind: str, /) -> bool:
    """Whether some plug opens columns of this type.

    Example:
        ```python
        media.opens("video")                           # True
        ```
    """
    return bool(_plugs(kind))


def open(  # noqa: A001 - the protocol's name
    source: Source, /, *, threads: int = 1, device: str = "cpu", decoder: str | None = None
) -> Decoder:
    """Open a media source by its column's type; depth maps as metres.

    Args:
        source: What the cell points to.
        threads: How many a decoder may use.
        device: `"cpu"`, or `"cuda:0"` where a plug serves it.
        decoder: The name of a plug, as in `"torchcodec"`, that shall open it; the first that can by default.

    Raises:
        DecodeError: Nothing opens this type; or the first plug's own reason why it cannot.
        UnknownPluginError: Nothing is called `decoder`.

    Example:
        ```python
        media.open(ds["a"]["cam"].source()).read(np.array([3, 4]))    # what `ds["a"]["cam"][[3, 4]]` does
        ```
    """
    if decoder is not None:
        plug: Media = plugins.load("media", decoder)
        return _measured(plug.open(source, threads=threads, device=device), source.column)
    first: DecodeError | None = None
    for plug in _plugs(source.column.type):
        if not _serves(plug, device):
            continue
        try:
            return _measured(plug.open(source, threads=threads, device=device), source.column)
        except DecodeError as error:
            first = first or error
    blob = blob_of(source)
    known = hint(blob.location, blob, source.column)
    if first is not None:
        first.hint = first.hint or known or None
        raise first
    where = "" if device == "cpu" else f" on {device!r}"
    raise DecodeError(
        f"{blob.location}: nothing here decodes columns of type {source.column.type!r}{where}.",
        path=blob.location,
        hint=known or "Read the file's bytes instead.",
    )


def _measured(decoder: Decoder, column: ColumnType) -> Decoder:
    return MeasuredDecoder(decoder, column) if column.is_depth else decoder


def index(source: Source, /) -> Mapping[int, bytes]:
    """What makes opening this source cheap, by number of the video stream; empty where nothing does."""
    return next((parts for plug in _plugs(source.column.type) if (parts := plug.index(source))), {})


def open_steps(count: int, picture: Callable[[int], Source | None], column: ColumnType, /) -> Decoder:
    """Encoded pictures, or clouds of points, one for each step, as one decoder.

    Args:
        count: How many steps.
        picture: Gives one step's picture or cloud, None where there is none; called when it is read.
        column: What they are: clouds where its type is `4d`. May declare `fps`, which gives steps their times.

    Raises:
        DecodeError: `fps` is no number.
    """
    rate = column.get("fps")
    try:
        written = ratio(rate) if isinstance(rate, str) else Fraction(str(rate or 0))
    except (ValueError, ArithmeticError):
        raise DecodeError(f"fps: expected frames per second, found {rate!r:.80}. Mend the column's type.") from None
    exact_rate = written or None
    if column.type == "4d":
        return spatial.open_steps(count, picture, rate=exact_rate)
    return _measured(ImageDecoder(count, picture, rate=exact_rate), column)
