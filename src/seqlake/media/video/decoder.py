"""Exact frames of one stream by packet number: which packets a decoder is fed, and when it must begin anew.

A frame is known by the number of its packet. A run begins at the newest key packet at or before it that is also shown
no later than it; that condition makes open groups of pictures right. Nothing is delivered that the run did not decode
from a key packet, and after damage nothing until the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.files.checksums import crc32
from seqlake.media.video.codec import Feeder, bare_codec
from seqlake.media.video.packets import DAMAGED, HIDDEN, OPEN, PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Blob

_DEEPEST = 16  # pictures that a stream of H.264 keeps at most
_TOGETHER = 32 << 20  # bytes of packets that are fetched by one request


class FrameReader:
    """Decodes the frames of one stream; for one thread at a time.

    Args:
        index: The stream's packets.
        blob: The bytes that the index's offsets mean.
        location: What errors call the file.

    Attributes:
        fed: Packets given to the decoder so far.
        refused: The packet at which the decoder found the damage of the last error; None where it found none.
    """

    def __init__(self, index: PacketIndex, blob: Blob, /, *, location: str) -> None:
        self.fed: int = 0
        self.refused: int | None = None
        self._index = index
        self._blob = blob
        self._location = location
        self._changes = [packet for packet, _ in index.stream.changes]
        self._codecs: dict[tuple[int, bool], VideoCodecContext] = {}  # by parameter sets and strictness
        self._order: list[int] = index.order.tolist()
        self._pts: list[int] = index.pts.tolist()
        self._starts: list[int] = index.starts.tolist()
        self._data: dict[int, memoryview] = {}  # fetched, not fed
        self._mapped = False
        self._proven: set[int] = set()  # packets of mapped memory, which never changes, that were compared once
        self._last = -1  # newest frame of the last read
        self._wanted: set[int] = set()
        self._keep_from = self._stop = 0
        # An IDR picture of H.264 lets go of all before it, and nothing waits inside: a flush would only cost time.
        self._resets = index.stream.codec == "h264" and index.stream.reorder == 0
        self._feeder = Feeder(index)
        self._codec = self._codec_for(0, strict=True)
        self._hidden = set(np.flatnonzero(index.flags & HIDDEN).tolist())
        self._bad: list[int] = np.flatnonzero(index.flags & DAMAGED).tolist()
        self._base = self._at = 0  # the run's key packet; the next packet to feed
        self._inside: set[int] = set()  # fed, not out
        self._out: dict[int, VideoFrame] = {}  # out, not asked for yet
        self._damaged: set[int] = set()  # packets of this run that the decoder refused
        self._jump(0)

    def __len__(self) -> int:
        return len(self._order)

    def frames(self, wanted: Iterable[int], /) -> Iterator[tuple[int, VideoFrame]]:
        """The frames with these numbers, each once, as they come out of the decoder.

        Args:
            wanted: Numbers in the order of presentation, 0 to len - 1.

        Raises:
            CorruptFrameError: A packet is damaged, or the decoder gives a frame no picture.
            CorruptFileError: Pictures change their size or pixel format in the middle of the file.
        """
        need = {self._order[frame]: frame for frame in wanted}
        if not need:
            return
        ahead = min(need.values()) == self._last + 1  # goes on: the next read probably will too
        self._last = max(need.values())
        runs: dict[int, set[int]] = {}
        for packet in need:
            runs.setdefault(self.start_of(packet), set()).add(packet)
        try:
            following = sorted(runs)
            for start in sorted(runs):
                following.pop(0)
                goes_on = following[0] <= max(runs[start]) + 1 if following else ahead
                for packet, frame in self._run(start, runs[start], ahead=goes_on):
                    yield need[packet], frame
        except BaseException:
            self._jump(0)  # whatever state it was left in
            raise

    def restart(self) -> None:
        """Forget all that was decoded."""
        self._jump(0)
        self._base = self._at = len(self._pts)
        self._last = -1

    def _run(self, start: int, run: set[int], *, ahead: bool) -> Iterator[tuple[int, VideoFrame]]:
        """The frames of one group of pictures, decoded once."""
        self._refuse_damaged(start, run)
        if self._must_jump(start, run):
            self._jump(start, flush=False)
        self._keep_from = max(self._pts[packet] for packet in run)
        self._wanted = run
        self._stop = max(run) + 1
        if ahead:  # feeding on in place of draining keeps the decoder's state for the next read
            self._stop = min(len(self._pts), max(self._stop, self._at) + self._index.stream.reorder)
        missing = set(run)
        while True:
            yield from self._take(missing)
            while missing and self._at < self._stop:
                self._feed(self._at)
                if not missing.isdisjoint(self._out):
                    yield from self._take(missing)
            if missing:
                self._drain()
                yield from self._take(missing)
            if not missing:
                break
            earlier = [one for one in self._starts if one < start]
            if self._damaged or not earlier:
                raise self._damage(min(missing))
            start = earlier[-1]  # a key packet in name only (intra refresh): one further back
            self._jump(start)
        self._see_what_they_refer_to(max(run), ahead=ahead)
        self._out = {one: frame for one, frame in self._out.items() if self._pts[one] > self._keep_from}

    def _refuse_damaged(self, start: int, run: set[int]) -> None:
        """A frame behind a packet that is known to be damaged is not even tried."""
        for packet in sorted(run) if self._bad else ():
            if any(start <= bad <= packet for bad in self._bad):
                raise self._damage(packet)

    def _see_what_they_refer_to(self, newest: int, *, ahead: bool) -> None:
        """Pictures that are shown later than those that refer to them tell only then whether they are damaged."""
        reorder, at_end = self._index.stream.reorder, len(self._pts)
        end = min(at_end, newest + 1 + reorder)
        while reorder and any(one < newest for one in self._inside) and self._at < end:
            self._feed(self._at)
        end = min(at_end, newest + 1 + _DEEPEST) if ahead else 0
        while self._waits_for(newest) and self._at < end:
            self._feed(self._at)
        if self._waits_for(newest) or (reorder and self._at == at_end and any(one < newest for one in self._inside)):
            self._drain()
        if any(one <= newest for one in self._damaged):
            raise self._damage(newest)

    def _waits_for(self, newest: int) -> bool:
        """Whether a concealed picture of H.264, shown later than one that may refer to it, can still be inside."""
        if not self._index.stream.reorder or self._index.stream.codec != "h264":
            return False  # others raise when they are fed
        begin = self._pts[self._base] if self._base < len(self._pts) else 0
        return any(one < newest and self._pts[one] >= begin and one not in self._hidden for one in self._inside)

    def start_of(self, packet: int) -> int:
        """The newest key packet at or before it that is shown no later than it."""
        place = bisect_right(self._starts, packet) - 1
        while place > 0 and self._pts[self._starts[place]] > self._pts[packet]:
            place -= 1
        return self._starts[place] if place >= 0 else 0

    def _must_jump(self, start: int, run: set[int]) -> bool:
        if self._index.stream.codec == "ffv1" and start != self._base:
            return True  # it conceals in silence, and a key packet does not end that
        if any(one < start for one in self._damaged):
            return True  # what damage left in the decoder must not reach frames behind the next key packet
        if run <= self._out.keys():
            return False
        gone = any(one < self._at and one not in self._inside and one not in self._out for one in run)
        return gone or not self._base <= start <= self._at

    def _jump(self, start: int, *, flush: bool = True) -> None:
        """Begin anew at a key packet; with `flush=False` leave it to the packet to reset the decoder where it does."""
        if self._damaged or self._index.stream.codec not in PLAIN:
            self._codecs.clear()  # what was shown before, or damage left behind, survives a flush
        strict = start >= len(self._pts) or not self._index.flags[start] & OPEN
        codec = self._codec_for(start, strict=strict)
        if flush or not self._resets or not strict or codec is not self._codec or self._inside:
            codec.flush_buffers()
        self._codec = codec
        self._base = self._at = start
        self._inside.clear()
        self._out.clear()
        self._damaged.clear()

    def _codec_for(self, packet: int, *, strict: bool) -> VideoCodecContext:
        key = (bisect_right(self._changes, packet), strict)
        if key not in self._codecs:
            try:
                self._codecs[key] = bare_codec(self._index.stream, packet=packet, strict=strict)
            except DecodeError as error:
                raise type(error)(f"{self._location}: {error.message}", path=self._location, hint=error.hint) from error
        return self._codecs[key]

    def _take(self, missing: set[int]) -> Iterator[tuple[int, VideoFrame]]:
        for packet in [one for one in self._out if one in missing]:
            frame = self._out.pop(packet)
            if frame.is_corrupt or any(one <= packet for one in self._damaged):
                raise self._damage(packet)
            missing.discard(packet)
            yield packet, frame

    def _feed(self, packet: int) -> None:
        import av

        data = self._packet(packet)
        if packet in self._changes and packet > self._base:  # other parameter sets: another decoder goes on
            self._came_out(self._codec.decode(None))
            self._codec = self._codec_for(packet, strict=True)
            self._codec.flush_buffers()
        self._inside.add(packet)
        self._at = packet + 1
        self.fed += 1
        try:
            self._came_out(self._codec.decode(self._feeder.packet(data, packet, begins=packet == self._base)))
        except av.FFmpegError:
            # Leading pictures of a cut open group refer to what the cut took away; nobody asks for them.
            if self._pts[packet] >= self._pts[self._base]:
                self._damaged.add(packet)

    def _drain(self) -> None:
        """Get out what is still inside; nothing can be fed afterwards but from a key packet."""
        import av

        try:
            self._came_out(self._codec.decode(None))
        except av.FFmpegError:
            self._damaged.add(self._at)
        self._codec.flush_buffers()
        self._inside.clear()
        self._base = self._at = len(self._pts)

    def _came_out(self, frames: Iterable[VideoFrame]) -> None:
        stream = self._index.stream
        expected = (stream.width, stream.height, stream.pix_fmt)
        for frame in frames:
            packet = int(frame.pts or 0)
            self._inside.discard(packet)
            if (frame.width, frame.height, frame.format.name) != expected:
                raise CorruptFileError(
                    f"{self._location} changes its pictures: expected {stream.width}x{stream.height} "
                    f"{stream.pix_fmt}, found {frame.width}x{frame.height} {frame.format.name} at packet {packet}. "
                    "Encode it anew.",
                    path=self._location,
                )
            if frame.is_corrupt and self._pts[packet] >= self._pts[self._base]:
                self._damaged.add(packet)  # and all that refer to it
            if packet in self._wanted or self._pts[packet] > self._keep_from:
                self._out[packet] = frame

    def _packet(self, number: int) -> memoryview:
        """A packet's bytes, unless they are not those of the index; what will be fed next is fetched with it."""
        if number not in self._data:
            self._fetch(number)
        data = self._data.pop(number)
        if number not in self._proven and crc32(data) != self._index.crc[number]:
            raise CorruptFrameError(
                f"{self._location}: frame {self._shown(number)} is damaged: the bytes of packet {number} are not those "
                "that were indexed. Copy the file from where it came from.",
                path=self._location,
            )
        if self._mapped:
            self._proven.add(number)
        return data

    def _fetch(self, number: int) -> None:
        """A packet's bytes, and those of the packets that this run will feed after it."""
        stop = max(self._stop, number + 1) + self._index.stream.reorder
        starts, lengths = self._index.offset[number:stop], self._index.length[number:stop]
        view = self._blob.view()
        self._mapped = view is not None
        if view is None:
            count = max(1, int(np.searchsorted(np.cumsum(lengths), _TOGETHER, side="right")))
            parts = self._blob.ranges(starts[:count], starts[:count] + lengths[:count])
        else:
            parts = [view[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
        self._data = dict(enumerate(parts, number))

    def _shown(self, packet: int) -> int:
        """The number of a packet's frame; of one that is never shown, that of the frame that follows."""
        return int(np.searchsorted(self._index.pts[self._index.order], self._pts[packet]))

    def _damage(self, packet: int) -> CorruptFrameError:
        self.refused = min(self._damaged, default=None)
        where = "" if self.refused is None else f" (at packet {self.refused})"
        return CorruptFrameError(
            f"{self._location}: frame {self._shown(packet)} cannot be decoded from what the file holds{where}. "
            "The file is damaged; frames in other groups of pictures can still be read.",
            path=self._location,
        )
