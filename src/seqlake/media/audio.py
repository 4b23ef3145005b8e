"""Audio: samples by number, exact for every codec: what FFmpeg gives that decodes the file from its start.

Decoders of lossy codecs depend on what they decoded before, so a jump into the middle may give other values. So a file
is decoded once from its start, and checksums of its blocks are kept. After a jump blocks are compared with them: where
they differ the jump is made from further back, and at last from the start. PCM depends on nothing before, and its
containers say where a sample lies, so it is read by range at once. Priming is cut as the file says.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.media._bytes import BlobBytes, blob_of, part_of
from seqlake.media._containers import is_noted, open_container, refuse_encrypted
from seqlake.media._frames import room_for
from seqlake.media._limits import SOUND
from seqlake.media._resampling import FASTEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from numpy.typing import NDArray

    from seqlake.protocols import Blob, Ints, Source

_WHOLE = {"u8": (128, 128), "s16": (0, 1 << 15), "s32": (0, 1 << 31)}  # zero, scale to 1.0

_READ = frozenset({*_WHOLE, "flt", "dbl"})  # what PyAV makes arrays of
_UNFOLDS = 100  # bytes of samples for one of the file, whatever the limit; speech in Opus comes near
_PLAIN = frozenset({"wav", "w64", "aiff", "au", "caf"})  # containers whose times are numbers of samples
_BACK = (4, 32, 256)  # blocks before the wanted ones from which decoding is tried
_SPARSE = 4  # samples that are decoded for one that is asked for, at most, before all are
_SHORT = 1 << 16  # so few are decoded anyway


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("audio",)


def index(source: Source, /) -> Mapping[int, bytes]:  # noqa: ARG001 - the protocol's
    """Nothing that is kept with a dataset."""
    return {}


def open(source: Source, /, *, threads: int = 1, device: str = "cpu") -> AudioDecoder:  # noqa: A001, ARG001 - the protocol's
    """Open one audio stream; nothing is read before it is asked for anything.

    Args:
        source: The file; `source.column` may name a `stream`, else it is the first.
        threads: Not used.
        device: Not used.
    """
    return AudioDecoder(source)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoundIndex:
    """What is known of a file's sound once it was looked at.

    Attributes:
        rate: Samples per second.
        channels: How many.
        starts: [blocks + 1] the first sample of each block that the decoder gives, then how many samples there are.
        times: [blocks] when each is due, in the file's ticks; empty where a tick is a sample.
        sums: [blocks] CRC-32 of their samples.
    """

    rate: int
    channels: int
    starts: Ints
    times: Ints
    sums: NDArray[np.uint32]

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def plain(self) -> bool:
        """Whether any sample can be gone to."""
        return not len(self.times) and len(self.starts) == 2

    @property
    def seekable(self) -> bool:
        """Whether times tell blocks apart."""
        return len(self.times) > 1 and bool((np.diff(self.times) > 0).all())


class AudioDecoder:
    """The samples of one audio stream; for one thread at a time.

    What had to be decoded from its start lies in a temporary file while this is open: four bytes for each sample of
    each channel.

    Args:
        source: The file, and which of its samples belong to this source.
        known: What an earlier decoder of the file found, so that it need not be decoded from its start.
        keep: Bytes of samples that are kept at most when the index is made.
    """

    def __init__(self, source: Source, /, *, known: SoundIndex | None = None, keep: int | None = None) -> None:
        self._source = source
        self._index = known
        self._keep = keep
        self._held: NDArray[np.float32] | None = None  # [samples, channels] of the whole file
        self._stack = ExitStack()
        self._stream: tuple[InputContainer, AudioStream] | None = None

    def __len__(self) -> int:
        first, count = part_of(self._source)
        left = max(0, len(self.index) - first)
        return left if count is None else min(left, count)

    @property
    def index(self) -> SoundIndex:
        """What is known of the whole file; looks at it once."""
        if self._index is None:
            self._index = _plain_index(self._source)
        if self._index is None:
            self._index, self._held = _decoded(self._source, self._keep)
        return self._index

    @property
    def rate(self) -> int:
        """How many samples a second has."""
        return self.index.rate

    @property
    def channels(self) -> int:
        """How many numbers a sample has."""
        return self.index.channels

    @property
    def pts(self) -> Ints:
        """[samples] their numbers in the file."""
        return np.arange(len(self), dtype=np.int64) + self._source.first

    @property
    def time_base(self) -> Fraction:
        """Seconds from one sample to the next."""
        return Fraction(1, self.rate)

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Samples.

        Args:
            indices: [N] sample numbers in any order, repeats allowed.
            size: Nothing that samples have.
            out: [N, channels] float32 to write into.

        Returns:
            float32 [N, channels], full scale is 1.

        Raises:
            CorruptFileError: It is no audio, or is damaged.
            IndexError: There is no such sample.
        """
        wanted = np.asarray(indices, np.int64)
        if size is not None:
            raise ValueError("size is for pictures; samples have none.")
        low, high = (int(wanted.min()), int(wanted.max()) + 1) if wanted.size else (0, 0)
        if low < 0 or high > len(self):
            raise IndexError(f"There are samples 0 to {len(self) - 1}, found {low} to {high - 1}.")
        out = room_for(out, (len(wanted), self.channels), np.float32)
        if self._held is None and high - low > _SPARSE * len(wanted) + _SHORT:
            self._hold()
        return np.take(self.span(low, high), wanted - low, axis=0, out=out, mode="clip")

    def span(self, start: int, stop: int, /) -> NDArray[np.float32]:
        """Consecutive samples: float32 [stop - start, channels], which may not be written to.

        Raises:
            CorruptFileError: The file is damaged, or another than it was.
            IndexError: There are no such samples.
        """
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"There are samples 0 to {len(self) - 1}, found {start} to {stop - 1}.")
        start, stop = start + self._source.first, stop + self._source.first
        if self._held is None and start < stop:
            values = self._reached(start, stop)
            if values is not None:
                return values
            self._hold()
        if self._held is None:
            return np.zeros((0, self.channels), np.float32)
        return self._held[start:stop]

    def close(self) -> None:
        """Let go of the file and its samples; the next read opens it again."""
        self._held = None
        self._shut()

    def _hold(self) -> None:
        """Decode all of it.

        Raises:
            CorruptFileError: It is not what it was when it was looked at.
        """
        known = self.index
        again, self._held = _decoded(self._source, None)
        if len(again) != len(known) or (not known.plain and not np.array_equal(again.sums, known.sums)):
            location = blob_of(self._source).location
            raise CorruptFileError(
                f"{location} has changed since it was opened: expected {len(known)} samples, found {len(again)}, or "
                "others. Open the dataset again.",
                path=location,
            )

    def _reached(self, start: int, stop: int) -> NDArray[np.float32] | None:
        """Samples of the file by a jump; None where they are not those of a decode from the start."""
        known = self.index
        if known.plain:
            return self._jumped(start, stop, start)
        first, last = np.searchsorted(known.starts, [start, stop - 1], side="right") - 1
        for back in _BACK if known.seekable else ():
            low = int(first) - back
            values = self._compared(low if low > 0 else None, int(first), int(last))
            if values is not None:
                offset = int(known.starts[first])
                return values[start - offset : stop - offset]
        return None

    def _jumped(self, start: int, stop: int, place: int) -> NDArray[np.float32] | None:
        """Samples of a file that says where each lies."""
        parts: list[NDArray[np.float32]] = []
        for number, block in self._blocks(place):
            if number > start or (parts and number != start):
                return None  # there is a gap
            parts.append(block[start - number : stop - number])
            start = min(stop, number + len(block))
            if start == stop:
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
        return None

    def _compared(self, low: int | None, first: int, last: int) -> NDArray[np.float32] | None:
        """All samples of some blocks, decoded from an earlier one on; None where they are not as before."""
        known = self.index
        parts: list[NDArray[np.float32]] = []
        for time, block in self._blocks(None if low is None else int(known.times[low])):
            number = first + len(parts)
            if time < known.times[number]:
                continue
            if time > known.times[number] or crc32(block.data) != known.sums[number]:
                return None
            parts.append(block)
            if number == last:
                return np.concatenate(parts)
        return None

    def _blocks(self, place: int | None) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """What comes from a tick of the file on (None: from its start), and when it is due; may end early."""
        import av

        try:
            for frame in self._frames_from(place):
                if frame.pts is None or (frame.sample_rate, len(frame.layout.channels)) != (self.rate, self.channels):
                    return
                yield frame.pts, _floats(frame, self.channels)
        except av.FFmpegError:  # decoding it from the start says what is wrong, if anything is
            self._shut()

    def _frames_from(self, place: int | None) -> Iterator[AudioFrame]:
        import av

        if place is None:  # as it was decoded first, without a jump
            self._shut()
        container, stream = self._opened()
        if place is None:
            return _frames(container, stream, blob_of(self._source))
        try:
            container.seek(place, stream=stream, backward=True)
        except av.FFmpegError:  # some demuxers do not find back from the end
            self._shut()
            container, stream = self._opened()
            container.seek(place, stream=stream, backward=True)
        return _frames(container, stream, blob_of(self._source))

    def _shut(self) -> None:
        self._stream = None
        self._stack.close()

    def _opened(self) -> tuple[InputContainer, AudioStream]:
        if self._stream is None:
            self._stream = self._stack.enter_context(_open_stream(self._source))
        return self._stream


@contextmanager
def sound(source: Source, /) -> Iterator[tuple[AudioStream, Iterator[AudioFrame]]]:
    """One stream of sound, and what it decodes to from its start.

    Raises:
        CorruptFileError: The container is damaged.
        DecodeError: There is no such stream, no decoder for it, or it is encrypted.
    """
    with _open_stream(source) as (container, stream):
        yield stream, _frames(container, stream, blob_of(source))


@contextmanager
def _open_stream(source: Source) -> Iterator[tuple[InputContainer, AudioStream]]:
    from av.stream import Discard

    blob = blob_of(source)
    with open_container(BlobBytes(blob), blob.location) as container:
        streams, number = container.streams.audio, source.column.stream or 0
        if not 0 <= number < len(streams):
            raise DecodeError(f"{blob.location} has {len(streams)} audio streams, found stream={number!r}.")
        stream = streams[number]
        codec: object = stream.codec_context  # None for a codec that is not known
        if codec is None or not stream.rate:
            raise DecodeError(f"{blob.location}: this FFmpeg has no decoder for its sound. Encode it anew.")
        if stream.rate > FASTEST:
            raise DecodeError(f"{blob.location} has {stream.rate} samples a second; at most {FASTEST} are read.")
        stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all  # packets of pictures need not be read
        yield container, stream


def _frames(container: InputContainer, stream: AudioStream, blob: Blob) -> Iterator[AudioFrame]:
    location, taken = blob.location, 0
    for packet in container.demux(stream):
        if is_noted(packet):
            refuse_encrypted(packet, location)
        for frame in packet.decode():
            if frame.format.name.removesuffix("p") not in _READ:
                raise DecodeError(
                    f"{location} has samples of format {frame.format.name}. Encode it anew, as FLAC or PCM."
                )
            taken += 4 * frame.samples * len(frame.layout.channels)
            _hold(taken, blob)
            yield frame


def _hold(nbytes: int, blob: Blob) -> None:
    """Raise `DecodeError` where a file's samples take more than they may."""
    SOUND.hold(nbytes, blob.location, most=max(SOUND.value, _UNFOLDS * blob.size), path=blob.location)


def _plain_index(source: Source) -> SoundIndex | None:
    """Of a file in which every sample can be gone to and stands for itself; None of any other.

    How many there are is believed once the last ones were decoded.
    """
    import av

    with _open_stream(source) as (container, stream):
        codec, count = stream.codec_context.codec.canonical_name, stream.duration or 0
        exact = stream.time_base == Fraction(1, stream.rate) and not stream.start_time
        if container.format.name not in _PLAIN or not codec.startswith("pcm_"):
            return None
        if not exact or count <= 0:
            return None
        _hold(4 * count * stream.channels, blob_of(source))
        end = 0
        try:
            container.seek(count - 1, stream=stream, backward=True)
            for frame in _frames(container, stream, blob_of(source)):
                end = (frame.pts or 0) + frame.samples
        except av.FFmpegError:
            return None  # decoding all of it says where it is damaged
        return _index(stream, np.array([0, count]), [], []) if end == count else None


def _index(stream: AudioStream, starts: Ints, times: list[int], sums: list[int]) -> SoundIndex:
    return SoundIndex(
        rate=stream.rate,
        channels=stream.channels,
        starts=starts,
        times=np.array(times, np.int64),
        sums=np.array(sums, np.uint32),
    )


def _decoded(source: Source, keep: int | None) -> tuple[SoundIndex, NDArray[np.float32] | None]:
    """A file decoded from its start: what is known of it, and its samples where they take no more than `keep` bytes."""
    import av

    location = blob_of(source).location
    times: list[int] = []
    sums: list[int] = []
    with sound(source) as (stream, frames), tempfile.TemporaryFile() as kept:
        rate, channels, ends = stream.rate, stream.channels, [0]
        try:
            for frame in frames:
                if (frame.sample_rate, len(frame.layout.channels)) != (rate, channels):
                    raise CorruptFileError(
                        f"{location} changes in the middle: expected {channels} channels at {rate} Hz, found "
                        f"{len(frame.layout.channels)} at {frame.sample_rate} Hz. Encode it anew.",
                        path=location,
                    )
                block = _floats(frame, channels)
                ends.append(ends[-1] + len(block))
                times.append(-1 if frame.pts is None else frame.pts)
                sums.append(crc32(block.data))
                if keep is None or 4 * channels * ends[-1] <= keep:
                    kept.write(block.data)
        except av.FFmpegError as error:
            raise CorruptFrameError(
                f"{location} is damaged after sample {ends[-1]}: {error.strerror}. Copy it from where it came from.",
                path=location,
            ) from error
        index = _index(stream, np.array(ends), times, sums)
        kept.flush()
        shape = (ends[-1], channels)
        if keep is not None and 4 * channels * ends[-1] > keep:
            return index, None
        return index, np.memmap(kept, np.float32, "r", shape=shape) if ends[-1] else np.empty(shape, np.float32)


def _floats(frame: AudioFrame, channels: int) -> NDArray[np.float32]:
    """[samples, channels] float32, full scale is 1."""
    values: NDArray[Any] = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(-1, channels)
    kind = frame.format.name.removesuffix("p")
    if kind in _WHOLE:
        zero, scale = _WHOLE[kind]
        values = (values.astype(np.float64) - zero) / scale
    return np.ascontiguousarray(values, np.float32)
