"""Bare codec contexts, fed with packets from an index and never with a container."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, cast

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.media._limits import PIXELS, frame_pixels, guard
from seqlake.media.video.packets import KEY, MARKED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import av
    from av.packet import PacketSideData
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

    from seqlake.media.video.packets import PacketIndex, StreamInfo

_LENIENT = frozenset({"tiff"})  # decoders that take a tag they do not know for damage when they are strict
_SOFTWARE = {"av1": "libdav1d"}  # the decoder that carries the codec's own name needs hardware


def codec_name(context: VideoCodecContext, /) -> str:
    """FFmpeg's name of the codec, whichever of its decoders a container would open."""
    return str(context.codec.canonical_name)


def bare_codec(stream: StreamInfo, /, *, packet: int = 0, strict: bool = True) -> VideoCodecContext:
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
        context = av.CodecContext.create(_SOFTWARE.get(stream.codec, stream.codec), "r")
    except UnknownCodecError as error:
        raise DecodeError(f"The FFmpeg inside this PyAV ({av.__version__}) cannot decode {stream.codec!r}.") from error
    if context.type != "video":
        raise DecodeError(f"{stream.codec!r} is no codec of pictures.")
    codec = cast("VideoCodecContext", context)
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
    index: PacketIndex, packets: Iterable[bytes], /, *, first: int = 0
) -> Iterator[tuple[int, list[VideoFrame] | None]]:
    """Decode all packets from `first` on, strictly.

    Yields:
        The packet's number and the frames that came out with it, whose `pts` are packet numbers; None where it raised.
    """
    import av

    stream = index.stream
    changes = {packet for packet, _ in stream.changes}
    feeder = Feeder(index)
    codec = bare_codec(stream, packet=first)
    number = first
    for number, data in enumerate(packets):
        if number < first:
            continue
        if number in changes and number > first:
            yield number - 1, codec.decode(None)
            codec = bare_codec(stream, packet=number)
        try:
            yield number, codec.decode(feeder.packet(data, number, begins=number == first))
        except av.FFmpegError:
            yield number, None
    yield number, codec.decode(None)


class Feeder:
    """Makes packets for a bare decoder, with all that the container said about each.

    Args:
        index: The packets.
    """

    def __init__(self, index: PacketIndex, /) -> None:
        self._marked: list[bool] = ((index.flags & (MARKED | KEY)) > 0).tolist()
        self._palettes = index.stream.palettes
        self._changes = [packet for packet, _ in self._palettes]

    def packet(self, data: bytes | memoryview, number: int, /, *, begins: bool) -> av.Packet[Any]:
        """A packet that carries its number as its time, so that its frame gives the number back.

        Args:
            data: Its bytes.
            number: Its number.
            begins: It is the first that a decoder is fed, and brings the colours that hold there.
        """
        import av

        packet: av.Packet[Any] = av.Packet(len(data))  # padded by FFmpeg, which reads past the end
        memoryview(packet)[:] = data
        packet.pts = number
        packet.is_keyframe = self._marked[number]
        if self._palettes:
            place = bisect_right(self._changes, number) - 1
            if place >= 0 and (begins or self._changes[place] == number):
                packet.set_sidedata(_side_data(self._palettes[place][1]))
        return packet


def _side_data(palette: bytes) -> PacketSideData:
    from av.packet import PacketSideData

    side_data: PacketSideData = cast("Any", PacketSideData)(0, len(palette))  # 0: AV_PKT_DATA_PALETTE
    memoryview(side_data)[:] = palette
    return side_data
