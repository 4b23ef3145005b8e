"""Bare codec contexts, fed with packets from an index and never with a container."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media._limits import PIXELS, frame_pixels, guard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import av
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

    from seqlake.media.video.packets import Stream

_LENIENT = frozenset({"tiff"})  # decoders that take a tag they do not know for damage when they are strict
_SOFTWARE = {"av1": "libdav1d"}  # the decoder that carries the codec's own name needs hardware


def codec_name(context: VideoCodecContext, /) -> str:
    """FFmpeg's name of the codec, whichever of its decoders a container would open."""
    return str(context.codec.canonical_name)


def bare_codec(stream: Stream, /, *, packet: int = 0, strict: bool = True) -> VideoCodecContext:
    """A decoder of its own for one stream, in this thread.

    Args:
        stream: What it must know.
        packet: The first that it will be fed: it gets the parameter sets that hold from there.
        strict: Damage raises instead of being concealed.

    Raises:
        DecodeError: This FFmpeg has no decoder for the codec, or the one it has does not take this variant.
        CorruptFileError: What the decoder must know first is damaged.
    """
    import av
    from av.codec.codec import UnknownCodecError

    try:
        made = av.CodecContext.create(_SOFTWARE.get(stream.codec, stream.codec), "r")
    except UnknownCodecError as error:
        raise DecodeError(f"The FFmpeg inside this PyAV ({av.__version__}) cannot decode {stream.codec!r}.") from error
    if made.type != "video":
        raise DecodeError(f"{stream.codec!r} is no codec of pictures.")
    codec = cast("VideoCodecContext", made)
    held = [data for first, data in stream.changes if first <= packet]
    codec.extradata = (held[-1] if held else stream.extradata) or None
    codec.width, codec.height = stream.width, stream.height
    if stream.fourcc:
        codec.codec_tag = stream.fourcc.ljust(4, "\0")
    codec.bits_per_coded_sample = stream.depth
    if stream.pix_fmt:
        try:
            codec.pix_fmt = stream.pix_fmt
        except ValueError as error:
            raise CorruptFileError(f"FFmpeg knows no pixels called {stream.pix_fmt!r}.") from error
    codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc = stream.tags
    codec.thread_type, codec.thread_count = "NONE", 1
    careful = {"err_detect": "crccheck+explode"} if strict and stream.codec not in _LENIENT else {}
    PIXELS.hold(stream.width * stream.height, f"A frame of {stream.width} x {stream.height}", most=frame_pixels())
    codec.options = {"has_b_frames": str(stream.reorder)} | careful | guard(frame_pixels())
    try:
        codec.open()
    except av.InvalidDataError as error:
        raise CorruptFileError(
            f"FFmpeg's decoder of {stream.codec} cannot begin: what its container says of it is damaged."
        ) from error
    except av.FFmpegError as error:
        kind = f"{stream.codec} {stream.fourcc!r}, {stream.pix_fmt or 'unknown pixels'}"
        raise DecodeError(f"FFmpeg's decoder does not take this variant ({kind}): {error.strerror}.") from error
    return codec


def in_sequence(
    stream: Stream, packets: Iterable[bytes], /, *, first: int = 0, strict: bool = True
) -> Iterator[tuple[int, list[VideoFrame] | None]]:
    """Decode all packets from `first` on.

    Yields:
        The packet's number and the frames that came out with it, whose `pts` are packet numbers; None where it raised.
    """
    import av

    changes = {packet for packet, _ in stream.changes}
    codec = bare_codec(stream, packet=first, strict=strict)
    number = first
    for number, data in enumerate(packets):
        if number < first:
            continue
        if number in changes and number > first:
            yield number - 1, codec.decode(None)
            codec = bare_codec(stream, packet=number, strict=strict)
        try:
            yield number, codec.decode(packet_of(data, number))
        except av.FFmpegError:
            yield number, None
    yield number, codec.decode(None)


def refreshes(data: bytes, codec: str, extradata: bytes, /) -> bool:
    """Whether a key packet lets go of everything before it; True for all codecs but H.264.

    Other pictures of H.264 may be marked as key packets (a recovery point); what follows one refers to the past in its
    reference marking, if not in its pixels, and a strict decoder that begins there takes that for damage.
    """
    if codec != "h264":
        return True
    return 5 in (_prefixed(data, (extradata[4] & 3) + 1) if extradata[:1] == b"\x01" else _delimited(data))


def _prefixed(data: bytes, width: int) -> Iterator[int]:
    """Types of the units in a packet, each behind its length, up to the first slice."""
    place = 0
    while place + width < len(data):
        kind = data[place + width] & 31
        yield kind
        if kind in {1, 5}:
            return
        place += width + int.from_bytes(data[place : place + width], "big")


def _delimited(data: bytes) -> Iterator[int]:
    """Types of the units in a packet, each behind a start code, up to the first slice."""
    place = data.find(b"\0\0\1")
    while 0 <= place < len(data) - 3:
        kind = data[place + 3] & 31
        yield kind
        if kind in {1, 5}:
            return
        place = data.find(b"\0\0\1", place + 3)


def packet_of(data: bytes | memoryview, number: int, /) -> av.Packet[Any]:
    """A packet that carries its number as its time, so that its frame gives the number back."""
    import av

    packet: av.Packet[Any] = av.Packet(len(data))  # padded by FFmpeg, which reads past the end
    memoryview(packet)[:] = data
    packet.pts = number
    return packet
