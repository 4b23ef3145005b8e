"""Cuts sounds to the sample: PCM by its bytes, FLAC by encoding the same numbers again; other codecs are refused.

A decoder of a lossy codec (AAC, Opus, MP3) carries the past along, so no part of such a file holds the same values.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError, SeqlakeError
from seqlake.files.blobs import LocalBlob
from seqlake.media._bytes import BlobBytes, blob_of
from seqlake.media._clip import CutResult
from seqlake.media._containers import open_container
from seqlake.media.audio import AudioDecoder
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from numpy.typing import NDArray

_CHUNK = 4096  # samples of one packet where the encoder does not say
_CONTAINERS = {"wav": ".wav", "mov": ".mov", "matroska": ".mka", "aiff": ".aiff", "au": ".au", "caf": ".caf"}


def cut(source: Source, path: Path, /, *, start: int, stop: int) -> CutResult:
    """Write some consecutive samples of one stream as a file of its own.

    Args:
        source: The sound.
        path: Where to write; replaced if it is there. Any suffix.
        start: First sample, by number.
        stop: One past the last.

    Raises:
        DecodeError: A codec whose sounds cannot be cut exactly.
        CorruptFrameError: The file is damaged.
        IndexError: There are no such samples.
        OSError: The file cannot be written.
    """
    whole = AudioDecoder(source)
    if not 0 <= start < stop <= len(whole):
        raise IndexError(f"{blob_of(source).location} has samples 0 to {len(whole) - 1}, found {start} to {stop - 1}.")
    try:
        suffix = _write(source, path, start + source.first, stop + source.first)
        _check(whole, source, path, start, stop)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return CutResult(frames=stop - start, encoded=0, suffix=suffix)


def _write(source: Source, path: Path, start: int, stop: int) -> str:
    """Write the file and give its suffix."""
    import av

    blob = blob_of(source)
    with open_container(BlobBytes(blob), blob.location) as container:
        stream = container.streams.audio[source.column.stream or 0]
        codec = stream.codec_context.codec.canonical_name
        if codec != "flac" and not codec.startswith("pcm_"):
            raise DecodeError(
                f"{blob.location}: {codec} cannot be cut to the sample, since its decoder carries the past along. "
                "Encode it as FLAC or PCM first, or leave the column out."
            )
        try:
            return (_encode_flac if codec == "flac" else _copy_pcm)(container, stream, path, start, stop)
        except (OSError, SeqlakeError):
            raise
        except (av.FFmpegError, ValueError) as error:
            raise DecodeError(f"{blob.location} cannot be cut: {error}.") from error


def _check(whole: AudioDecoder, source: Source, path: Path, start: int, stop: int) -> None:
    """Read it back.

    Raises:
        DecodeError: It has other samples.
    """
    cut = AudioDecoder(Source(blob=LocalBlob(path), column=ColumnType("audio")))
    if not np.array_equal(cut.read(np.arange(len(cut))), whole.read(np.arange(start, stop))):
        raise DecodeError(
            f"{blob_of(source).location}: the cut has other samples; encode the sound as FLAC of 24 bits, or as PCM."
        )


def _copy_pcm(container: InputContainer, stream: AudioStream, path: Path, start: int, stop: int) -> str:
    """Slice the bytes; gives the file's suffix."""
    import av

    codec = stream.codec_context.codec.canonical_name
    digits = re.search(r"\d+", codec)
    width = (int(digits[0]) // 8 if digits else 1) * stream.channels
    kind = next((k for k in container.format.name.split(",") if k in _CONTAINERS), "matroska")
    place = written = 0
    with av.open(str(path), "w", format=kind) as out:
        copy: Any = out.add_stream_from_template(stream, opaque=True)
        for data in (bytes(packet) for packet in container.demux(stream) if packet.size):
            part = data[max(0, start - place) * width : max(0, stop - place) * width]
            place += len(data) // width
            if not part:
                continue
            packet: Any = av.Packet(len(part))
            memoryview(packet)[:] = part
            packet.pts = packet.dts = written
            packet.duration, packet.time_base = len(part) // width, Fraction(1, stream.rate)
            packet.is_keyframe, packet.stream = True, copy
            written += packet.duration
            out.mux(packet)
    return _CONTAINERS[kind]


def _encode_flac(container: InputContainer, stream: AudioStream, path: Path, start: int, stop: int) -> str:
    """The same whole numbers, encoded again; gives the file's suffix."""
    import av

    with av.open(str(path), "w", format="flac") as out:
        encoder: Any = out.add_stream("flac", rate=stream.rate, layout=stream.layout)
        encoder.codec_context.format = stream.format.name
        encoder.codec_context.open()
        number = 0
        for block in _blocks(container, stream, start, stop, encoder.codec_context.frame_size or _CHUNK):
            frame: Any = av.AudioFrame.from_ndarray(block, format=stream.format.name, layout=stream.layout.name)
            frame.sample_rate, frame.pts, frame.time_base = stream.rate, number, Fraction(1, stream.rate)
            number += frame.samples
            out.mux(encoder.encode(frame))
        out.mux(encoder.encode(None))
    return ".flac"


def _blocks(container: InputContainer, stream: AudioStream, start: int, stop: int, size: int) -> Iterator[NDArray[Any]]:
    """[1, samples x channels] interleaved samples in blocks of one size, the last may be shorter."""
    waiting: NDArray[Any] | None = None
    width, place = stream.channels, 0
    stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
    for frame in container.decode(stream):
        values = frame.to_ndarray()
        first, last = max(0, start - place), min(frame.samples, stop - place)
        place += frame.samples
        if first >= last:
            continue
        part = values[:, first * width : last * width]
        waiting = part if waiting is None else np.concatenate([waiting, part], axis=1)
        while waiting.shape[1] >= size * width:
            yield np.ascontiguousarray(waiting[:, : size * width])
            waiting = waiting[:, size * width :]
    if waiting is not None and waiting.shape[1]:
        yield np.ascontiguousarray(waiting)
