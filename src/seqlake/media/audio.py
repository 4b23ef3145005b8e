"""Audio: samples by number, exact for every codec, since a file is decoded once from its start and kept.

Decoders of lossy codecs depend on what they decoded before, so a jump into the middle gives other values. Priming is
cut as the file says; samples are counted by decoding, never by timestamps.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError, CorruptFrameError, DecodeError
from seqlake.media._bytes import BlobBytes, blob_of, part_of
from seqlake.media._containers import open_container
from seqlake.media._frames import room_for
from seqlake.media._limits import SOUND

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


def types() -> tuple[str, ...]:
    """The column types that it opens."""
    return ("audio",)


def index(source: Source, /) -> Mapping[int, bytes]:  # noqa: ARG001 - the protocol's
    """Nothing: a file is decoded from its start."""
    return {}


def open(source: Source, /, *, threads: int = 1, device: str = "cpu") -> AudioDecoder:  # noqa: A001, ARG001 - the protocol's
    """Open one audio stream; nothing is read before it is asked for anything.

    Args:
        source: The file; `source.column` may name a `stream`, else it is the first.
        threads: Not used.
        device: Not used.
    """
    return AudioDecoder(source)


class AudioDecoder:
    """The samples of one audio stream; for one thread at a time.

    They lie in a temporary file while it is open: four bytes for each sample of each channel.

    Args:
        source: The file, and which of its samples belong to this source.
    """

    def __init__(self, source: Source, /) -> None:
        self._source = source
        self._held: tuple[NDArray[np.float32], int] | None = None

    def __len__(self) -> int:
        return len(self._samples()[0])

    @property
    def pts(self) -> Ints:
        """[samples] their numbers in the file."""
        return np.arange(len(self), dtype=np.int64) + self._source.first

    @property
    def time_base(self) -> Fraction:
        """Seconds from one sample to the next."""
        return Fraction(1, self._samples()[1])

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
        samples = self._samples()[0]
        wanted = np.asarray(indices, np.int64)
        if size is not None:
            raise ValueError("size is for pictures; samples have none.")
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(samples)):
            raise IndexError(f"There are samples 0 to {len(samples) - 1}, found {wanted.min()} to {wanted.max()}.")
        out = room_for(out, (len(wanted), samples.shape[1]), np.float32)
        return np.take(samples, wanted, axis=0, out=out, mode="clip")

    def close(self) -> None:
        """Let go of the samples; the next read decodes again."""
        self._held = None

    def _samples(self) -> tuple[NDArray[np.float32], int]:
        """[samples, channels] of this source and the sample rate, decoded once."""
        if self._held is None:
            first, count = part_of(self._source)
            samples, rate = _decoded(self._source)
            self._held = samples[first:][:count], rate
        return self._held


@contextmanager
def sound(source: Source, /) -> Iterator[tuple[AudioStream, Iterator[AudioFrame]]]:
    """One stream of sound, and what it decodes to from its start.

    Raises:
        CorruptFileError: The container is damaged.
        DecodeError: There is no such stream, no decoder for it, or it is encrypted.
    """
    blob = blob_of(source)
    with open_container(BlobBytes(blob), blob.location) as container:
        streams, number = container.streams.audio, source.column.stream or 0
        if not 0 <= number < len(streams):
            raise DecodeError(f"{blob.location} has {len(streams)} audio streams, found stream={number!r}.")
        stream = streams[number]
        codec: object = stream.codec_context  # None for a codec that is not known
        if codec is None or not stream.rate:
            raise DecodeError(f"{blob.location}: this FFmpeg has no decoder for its sound. Encode it anew.")
        stream.codec_context.thread_type = "NONE"
        yield stream, _frames(container, stream, blob)


def _frames(container: InputContainer, stream: AudioStream, blob: Blob) -> Iterator[AudioFrame]:
    location, taken, most = blob.location, 0, max(SOUND.value, _UNFOLDS * blob.size)
    for packet in container.demux(stream):
        if packet.has_sidedata("encryption_info"):
            raise DecodeError(f"{location} is encrypted. Decrypt it first, by whoever has its key.")
        for frame in packet.decode():
            if frame.format.name.removesuffix("p") not in _READ:
                raise DecodeError(
                    f"{location} has samples of format {frame.format.name}. Encode it anew, as FLAC or PCM."
                )
            taken += 4 * frame.samples * len(frame.layout.channels)
            SOUND.hold(taken, location, most=most, path=location)
            yield frame


def _decoded(source: Source) -> tuple[NDArray[np.float32], int]:
    import av

    location = blob_of(source).location
    with sound(source) as (stream, frames), tempfile.TemporaryFile() as kept:
        rate, channels, total = stream.rate, stream.channels, 0
        try:
            for frame in frames:
                if (frame.sample_rate, len(frame.layout.channels)) != (rate, channels):
                    raise CorruptFileError(
                        f"{location} changes in the middle: expected {channels} channels at {rate} Hz, found "
                        f"{len(frame.layout.channels)} at {frame.sample_rate} Hz. Encode it anew.",
                        path=location,
                    )
                block = _floats(frame, channels)
                kept.write(block.tobytes())
                total += len(block)
        except av.FFmpegError as error:
            raise CorruptFrameError(
                f"{location} is damaged after sample {total}: {error.strerror}. Copy it from where it came from.",
                path=location,
            ) from error
        kept.flush()
        shape = (total, channels)
        samples = np.memmap(kept, np.float32, "r", shape=shape) if total else np.empty(shape, np.float32)
        return samples, rate


def _floats(frame: AudioFrame, channels: int) -> NDArray[np.float32]:
    """[samples, channels] float32, full scale is 1."""
    values: NDArray[Any] = frame.to_ndarray()
    values = values.T if frame.format.is_planar else values.reshape(-1, channels)
    kind = frame.format.name.removesuffix("p")
    if kind in _WHOLE:
        zero, scale = _WHOLE[kind]
        values = (values.astype(np.float64) - zero) / scale
    return np.ascontiguousarray(values, np.float32)
