"""The packets of a video file as messages hold them: one frame each, with what a decoder must know in keyframes."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seqlake.errors import CorruptFileError, SchemaMismatchError
from seqlake.files.blobs import LocalBlob
from seqlake.media import BlobBytes, open_container
from seqlake.media import open as open_media
from seqlake.media.video.cutting import cut
from seqlake.protocols import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Blob
    from seqlake.spec.column_types import ColumnType

_FORMATS = {"h264": "h264", "hevc": "h265", "vp9": "vp9", "av1": "av1"}
_FILTERS = {"h264": "h264_mp4toannexb", "hevc": "hevc_mp4toannexb"}
_SECOND = 1_000_000_000


class MoviePacket(NamedTuple):
    """One packet: when its frame is shown, in nanoseconds from the first frame on, and its bytes."""

    pts: int
    data: bytes
    format: str


def packets_of(blob: Blob, column: ColumnType, /, *, first: int = 0, count: int | None = None) -> Iterator[MoviePacket]:
    """The packets of a video, in the order in which they are decoded.

    Args:
        blob: The file.
        column: Its type.
        first: The first frame; beyond 0 a clip is made, packets copied where they can be.
        count: How many frames; None: all.

    Raises:
        SchemaMismatchError: Its codec has no place in such messages.
        CorruptFileError: FFmpeg cannot read it.
    """
    import av

    with (
        _whole(blob, column, first, count) as (file, number),
        open_container(BlobBytes(file), file.location) as container,
    ):
        stream: Any = container.streams.video[number]
        codec = stream.codec_context.name
        codec = {"libdav1d": "av1", "libaom-av1": "av1", "libvpx-vp9": "vp9"}.get(codec, codec)
        if codec not in _FORMATS:
            raise SchemaMismatchError(
                f"{blob.location} is {codec}: messages of video hold {', '.join(_FORMATS.values())}.",
                hint="Encode it again as one of these, or select() other columns.",
            )
        try:
            yield from _demuxed(container, stream, codec)
        except av.FFmpegError as error:
            raise CorruptFileError(f"{blob.location} cannot be read: {error}", path=blob.location) from None


def _demuxed(container: Any, stream: Any, codec: str) -> Iterator[MoviePacket]:
    from av.bitstream import BitStreamFilterContext

    turned = BitStreamFilterContext(_FILTERS[codec], stream) if codec in _FILTERS else None
    read = [one for one in container.demux(stream) if one.size]
    pts = [one.pts for one in read]
    if not read or any(time is None for time in pts):
        raise CorruptFileError("a video has packets without a time")
    begin = min(pts)
    for packet in read:
        time = (packet.pts - begin) * Fraction(packet.time_base) * _SECOND
        data = b"".join(bytes(one) for one in turned.filter(packet)) if turned is not None else bytes(packet)
        yield MoviePacket(round(time), data, _FORMATS[codec])


@contextmanager
def _whole(blob: Blob, column: ColumnType, first: int, count: int | None) -> Iterator[tuple[Blob, int]]:
    """A file with nothing but the frames that are meant, and the number of its stream."""
    if first == 0 and count is None:
        yield blob, column.stream or 0
        return
    with tempfile.TemporaryDirectory(prefix="seqlake-mcap-") as folder:
        path = Path(folder) / "clip.mp4"
        source = Source(blob=blob, column=column)
        stop = first + count if count is not None else len(open_media(source))
        cut(source, path, start=first, stop=stop)
        yield LocalBlob(path), 0
