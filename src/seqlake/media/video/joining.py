"""Joins parts of videos end to end in one file by copying packets: frame k of all is shown at exactly k / rate.

What a container said of times is left behind, since sums of what containers say drift. Only packets that need nothing
from before and nothing from behind are joined, and only those of one codec with one set of parameters: so the pictures
are the same to the last bit, whoever decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError, SeqlakeError
from seqlake.files.blobs import LocalBlob
from seqlake.media._bytes import BlobBytes, blob_of
from seqlake.media._containers import open_container
from seqlake.media.video import indexing
from seqlake.media.video.cutting import CutPlan, all_encoded, container_of, copied_packets, planned
from seqlake.media.video.demuxing import picture_streams
from seqlake.media.video.opening import open_video
from seqlake.media.video.packets import KEY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction
    from pathlib import Path

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Blob, Ints, Source

_UPRIGHT = (1, 0, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clip:
    """Some consecutive frames of a video whose packets can be copied as they are.

    Attributes:
        packets: The packet index of the whole video.
        blob: Its file.
        plan: Which frames, and their packets.
    """

    packets: PacketIndex
    blob: Blob
    plan: CutPlan

    @property
    def frames(self) -> int:
        """How many frames it has."""
        return self.plan.stop - self.plan.start

    @property
    def nbytes(self) -> int:
        """Bytes of its packets."""
        return int(self.packets.length[self.plan.begin : self.plan.end].sum())

    @property
    def parameters(self) -> tuple[Any, ...]:
        """What must be the same in all clips of one file."""
        return self.packets.stream.parameters

    def is_file(self, rate: Fraction, /) -> bool:
        """Whether it is all of an MP4, without sound, whose frames are shown at k / rate already."""
        stream = self.packets.stream
        if self.plan.begin or self.plan.end != len(self.packets.pts) or not self.blob.location.endswith(".mp4"):
            return False
        times = self.packets.pts[self.packets.order]
        base = stream.time_base * rate
        if not np.array_equal(times * base.numerator, np.arange(len(times)) * base.denominator):
            return False
        with open_container(BlobBytes(self.blob), self.blob.location) as container:
            return len(container.streams) == 1


def clip_of(source: Source, /, *, start: int, stop: int) -> Clip | str:
    """Some frames of a video as a clip; or why their packets cannot be joined with others in an MP4.

    Args:
        source: The video, or the part of it that a row has.
        start: First frame, by number.
        stop: One past the last.

    Raises:
        IndexError: There are no such frames.
        CorruptFileError: The container is damaged.
        DecodeError: There is no such stream, or no decoder for it.
    """
    decoder = open_video(source)
    if not 0 <= start < stop <= len(decoder):
        raise IndexError(f"{blob_of(source).location} has frames 0 to {len(decoder) - 1}, found {start} to {stop - 1}.")
    packets = decoder.packets
    stream = packets.stream
    decoder.close()
    if container_of(stream.codec) != "mp4":
        return f"an MP4 for others to read cannot hold {stream.codec}"
    if stream.turn != _UPRIGHT:
        return "it is turned when it is shown, which a shared file cannot say of a part"
    plan = planned(packets, all_encoded(start + source.first, stop + source.first))
    if plan.encoded:
        return f"{plan.encoded} of its frames lie between key frames"
    return Clip(packets=packets, blob=blob_of(source), plan=plan)


def spanning(first: Clip, last: Clip, /) -> Clip:
    """All from one clip to another of the same video."""
    plan = replace(first.plan, last=last.plan.last, stop=last.plan.stop, end=last.plan.end)
    return replace(first, plan=plan)


def join(clips: Sequence[Clip], path: Path, /, *, rate: Fraction) -> None:
    """Write clips as one MP4, one after another.

    Args:
        clips: At least one; all of the same `parameters`.
        path: Where to write; replaced if it is there.
        rate: Frames per second.

    Raises:
        CorruptFrameError: A packet is not what was indexed.
        DecodeError: FFmpeg cannot hold them in one file, or what was written is not what was meant.
        OSError: The file cannot be written.

    Example:
        ```python
        join([clip_of(one, start=0, stop=30), clip_of(other, start=10, stop=90)], Path("both.mp4"), rate=Fraction(30))
        ```
    """
    import av

    if len({clip.parameters for clip in clips}) != 1:
        raise ValueError("Clips are joined whose parameters are the same.")
    try:
        _write(clips, path, rate)
        _check(clips, path, rate)
    except (OSError, SeqlakeError):
        path.unlink(missing_ok=True)
        raise
    except (av.FFmpegError, ValueError) as error:
        path.unlink(missing_ok=True)
        raise DecodeError(f"{clips[0].blob.location} cannot be copied into an MP4: {error}.") from error


def _orders(clips: Sequence[Clip]) -> list[Ints]:
    """[clips] of each packet, which frame of the file it shows."""
    orders, at = [], 0
    for clip in clips:
        frame = clip.packets.frames[clip.plan.begin : clip.plan.end]
        orders.append(frame - clip.plan.start + at)
        at += clip.frames
    return orders


def _write(clips: Sequence[Clip], path: Path, rate: Fraction) -> None:
    import av

    orders = _orders(clips)
    frame = np.concatenate(orders)
    late = int((np.arange(len(frame)) - frame).max())  # a packet must be there before its frame is shown
    first, tick = clips[0], 1 / rate
    with (
        open_container(BlobBytes(first.blob), first.blob.location) as container,
        av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as out,
    ):
        template = picture_streams(container)[first.packets.stream.number]
        stream: Any = out.add_stream_from_template(template, opaque=True)
        stream.codec_context.extradata = first.packets.stream.extradata or None
        stream.time_base = tick
        count = 0
        for clip in clips:
            for data, key in copied_packets(clip.packets, clip.blob, clip.plan):
                packet: Any = av.Packet(len(data))
                memoryview(packet)[:] = data
                packet.pts, packet.dts, packet.duration, packet.time_base = int(frame[count]), count - late, 1, tick
                packet.is_keyframe, packet.stream = key, stream
                out.mux(packet)
                count += 1


def _check(clips: Sequence[Clip], path: Path, rate: Fraction) -> None:
    """Read the file back: the same packets, parameters and keys, each frame at its time.

    Raises:
        DecodeError: It is another.
    """
    blob = LocalBlob(path)
    indexes = indexing.index(blob)
    joined = indexes[0] if list(indexes) == [0] else None
    crc = np.concatenate([clip.packets.crc[clip.plan.begin : clip.plan.end] for clip in clips])
    flags = np.concatenate([clip.packets.flags[clip.plan.begin : clip.plan.end] for clip in clips])
    if joined is None or not np.array_equal(joined.crc, crc):
        raise DecodeError(f"{clips[0].blob.location}: other packets came out of FFmpeg than were put in.")
    if not np.array_equal(joined.frames, np.concatenate(_orders(clips))):
        raise DecodeError(f"{clips[0].blob.location}: its frames would be shown in another order.")
    if ((flags & KEY) & ~(joined.flags & KEY)).any() or joined.stream.extradata != clips[0].packets.stream.extradata:
        raise DecodeError(f"{clips[0].blob.location}: its parameters, or its key frames, would be others.")
    times = joined.pts[joined.order]
    base = joined.stream.time_base * rate  # frames of a tick
    exact = (times * base.numerator) == np.arange(len(times)) * base.denominator
    if not exact.all():
        raise DecodeError(f"{clips[0].blob.location}: frames cannot be shown at exactly {rate} a second.")
