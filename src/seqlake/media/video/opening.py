"""Opens a video source as a `Decoder`: finds or makes its packet index, then reads frames by number."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError, DecodeError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.cache import BlobCache
from seqlake.media._bytes import blob_of, part_of
from seqlake.media._frames import room_for
from seqlake.media.video import indexing
from seqlake.media.video.codes import Codes, converter_of, pixels_of
from seqlake.media.video.decoder import FrameReader
from seqlake.media.video.demuxing import in_one_piece
from seqlake.media.video.packets import PacketIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from fractions import Fraction

    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

    from seqlake.media.video.pixels import Converter
    from seqlake.protocols import Blob, Ints, Source
    from seqlake.spec.column_types import ColumnType

_REMEMBERED = 256  # files whose indexes this process keeps at hand
_INDEXES: dict[tuple[str, str], Mapping[int, PacketIndex]] = {}
_CACHE = BlobCache(name="packets", limit=2 << 30)  # about 11 bytes a packet: two thousand hours of 30 fps


def index(source: Source, /) -> Mapping[int, bytes]:
    """The packet index of every video stream, made by reading the whole file once.

    Returns:
        By number of the video stream, as `Source.index` takes it.

    Raises:
        CorruptFileError: The container is damaged.
    """
    return {number: one.to_bytes() for number, one in indexing.index(blob_of(source)).items()}


def open_video(source: Source, /, *, threads: int = 1, device: str = "cpu") -> VideoDecoder:  # noqa: ARG001 - the protocol's
    """Open one stream of a video.

    Args:
        source: The file; `source.column` may name a `stream`, else it is the one with the largest pictures.
        threads: Not used: one decoder serves one thread, and several decoders do better than one with several.
        device: `"cpu"`.

    Raises:
        CorruptFileError: The container is damaged, or the kept index belongs to other bytes.
        DecodeError: No such stream, no decoder for its codec, or a device that PyAV does not serve.

    Example:
        ```python
        decoder = video.open(Source(blob=open_blob("cam.mp4"), column=Video(fps=30)))
        decoder.read(np.array([0, 10, 11])).shape                    # (3, 480, 640, 3)
        ```
    """
    if device != "cpu":
        raise DecodeError(f"PyAV decodes on the CPU; expected device='cpu', found {device!r}.")
    blob = blob_of(source)
    first, count = part_of(source)
    packets = _kept(source, blob) or _choose(source, _indexes(blob), blob)
    return VideoDecoder(packets, blob, first=first, count=count, column=source.column)


def _kept(source: Source, blob: Blob) -> PacketIndex | None:
    """The index that a table keeps; None where it keeps none, or one that cannot be read: it is made again then."""
    if not source.index:
        return None
    try:
        if isinstance(source.index, bytes):
            kept = PacketIndex.from_bytes(source.index)
        else:
            parts = {number: PacketIndex.from_bytes(data) for number, data in source.index.items()}
            kept = _choose(source, parts, blob)
    except CorruptFileError:
        return None
    if kept.stream.size != blob.size:
        raise CorruptFileError(
            f"{blob.location} is not the file that was indexed: expected {kept.stream.size} bytes, found {blob.size}. "
            "Put the file back as it was.",
            path=blob.location,
        )
    return kept


def _indexes(blob: Blob) -> Mapping[int, PacketIndex]:
    """All streams' indexes, remembered by location and token: in this process, and in the user's cache."""
    if isinstance(blob, MemoryBlob) and not blob.known:
        return indexing.index(blob)  # to name these bytes is to read all of them, which costs more than their index
    key = (blob.location, blob.token)
    indexes = _INDEXES.get(key)
    if indexes is None:
        indexes = _cached(blob)
    # No lock, which a fork could leave taken: single operations of a dict are atomic.
    _INDEXES.pop(key, None)
    _INDEXES[key] = indexes  # the newest from now on
    while len(_INDEXES) > _REMEMBERED:
        _INDEXES.pop(next(iter(list(_INDEXES)), key), None)
    return indexes


def _cached(blob: Blob) -> Mapping[int, PacketIndex]:
    data = _CACHE.get(blob)
    if data is not None:
        with suppress(CorruptFileError, pa.ArrowException, OSError):
            parts = pa.ipc.open_stream(data).read_all().column("packets").to_pylist()
            return {one.stream.number: one for one in map(PacketIndex.from_bytes, parts)}
    indexes = indexing.index(blob)
    packets = pa.record_batch({"packets": pa.array([one.to_bytes() for one in indexes.values()], pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packets.schema) as writer:
        writer.write_batch(packets)
    _CACHE.put(blob, bytes(sink.getvalue()))
    return indexes


def _choose(source: Source, indexes: Mapping[int, PacketIndex], blob: Blob) -> PacketIndex:
    asked = source.column.stream
    if not indexes:
        raise CorruptFileError(f"{blob.location} holds no video: expected at least one stream of pictures.")
    if asked is None:
        return max(indexes.values(), key=lambda one: (one.stream.width * one.stream.height, -one.stream.number))
    if asked not in indexes:
        raise DecodeError(f"{blob.location} has no video stream {asked!r}; it has {', '.join(map(str, indexes))}.")
    return indexes[asked]


class VideoDecoder:
    """The frames of one video stream by number; for one thread at a time.

    Args:
        packets: The stream's packet index.
        blob: The file.
        first: The first frame that belongs to this source, in a file that several rows share.
        count: How many frames belong to it; all the rest by default.
        column: The column's type, which may declare the pixels.

    Attributes:
        packets: The stream's packet index.
    """

    def __init__(
        self,
        packets: PacketIndex,
        blob: Blob,
        /,
        *,
        first: int = 0,
        count: int | None = None,
        column: ColumnType | None = None,
    ) -> None:
        self.packets = packets
        self._blob = blob
        self._first = first
        self._count = count
        self._reader: FrameReader | None = None
        self._column = column
        self._converter: Converter | Codes | None = None

    def __len__(self) -> int:
        there = max(0, len(self.packets.order) - self._first)
        return there if self._count is None else min(there, self._count)

    @property
    def pts(self) -> Ints:
        """[frames] when each frame is shown, in ticks of `time_base`, strictly ascending."""
        pts = self.packets.pts[self.packets.order]
        return pts[self._first : self._first + len(self)]

    @property
    def time_base(self) -> Fraction:
        """Seconds of one tick."""
        return self.packets.stream.time_base

    @property
    def starts(self) -> Ints:
        """First frames of groups of pictures, ascending: frames between two of them are decoded together."""
        packets = self.packets
        firsts = np.searchsorted(packets.pts[packets.order], packets.pts[packets.starts]) - self._first
        return np.unique(np.clip(firsts, 0, len(self)))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as shown, rotation applied."""
        stream = self.packets.stream
        return (stream.height, stream.width) if stream.turn[0] else (stream.width, stream.height)

    @property
    def bits(self) -> int:
        """Bits of a sample as it is stored."""
        return pixels_of(self.packets.stream.pix_fmt).bits

    @property
    def codes(self) -> bool:
        """Whether its pictures are numbers rather than colours: depth, or grey of more than 8 bits."""
        pixels = pixels_of(self.packets.stream.pix_fmt)
        depth = self._column is not None and self._column.is_depth
        return depth or (pixels.channels == 1 and pixels.bits > 8)

    @property
    def fed(self) -> int:
        """Packets given to FFmpeg so far: what reading really cost."""
        return 0 if self._reader is None else self._reader.fed

    def planes(self, indices: Ints, /) -> Iterator[tuple[int, VideoFrame]]:
        """Frames as FFmpeg decodes them (YUV, not rotated), each wanted one once, in the order they come out.

        Raises:
            CorruptFrameError: A packet is damaged, or the decoder gives no picture for it.
            IndexError: There is no such frame.
        """
        wanted: set[int] = set(np.asarray(indices, np.int64).tolist())
        if wanted and not 0 <= min(wanted) <= max(wanted) < len(self):
            span = f"{min(wanted)} to {max(wanted)}"
            raise IndexError(f"{self._blob.location} has frames 0 to {len(self) - 1}, found {span}.")
        first = self._first
        for number, frame in self._open().frames(number + first for number in wanted):
            yield number - first, frame

    def read(
        self, indices: Ints, /, *, size: tuple[int, int] | None = None, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Frames as RGB; those of 9 to 16 bits, and grey where the column says so, as the codes that are stored.

        Args:
            indices: [N] frame numbers, in any order, repeats allowed.
            size: Height and width to scale to, in the same pass; of codes the nearest are taken.
            out: [N, height, width, channels] to write into.

        Returns:
            uint8 [N, height, width, 3]; codes uint16 or uint8 [N, height, width, 1 or 3].

        Raises:
            CorruptFrameError: A packet is damaged, or the decoder gives no picture for it.
            CorruptFileError: Pictures change their size in the middle of the file.
            DecodeError: The column declares other pixels, or nothing here reads their codes.
            IndexError: There is no such frame.
        """
        wanted = np.asarray(indices, np.int64)
        converter, (height, width) = self._conversion(), size or self.size
        out = room_for(out, (len(wanted), height, width, converter.channels), converter.dtype)
        self._write(wanted.tolist(), range(len(wanted)), out)
        return out

    def scatter(
        self, indices: Ints, places: Ints, out: NDArray[Any], /, *, size: tuple[int, int] | None = None
    ) -> None:
        """As `read`, with each frame at its place among others, in one pass over its pixels.

        Args:
            indices: [N] frame numbers, in any order, repeats allowed.
            places: [N] where in `out` each goes.
            out: [M, height, width, channels] to write into; other places stay as they are.
            size: Height and width to scale to.
        """
        converter = self._conversion()
        out = room_for(out, (len(out), *(size or self.size), converter.channels), converter.dtype)
        self._write(np.asarray(indices, np.int64).tolist(), np.asarray(places, np.int64).tolist(), out)

    def _write(self, wanted: Sequence[int], places: Sequence[int], out: NDArray[Any]) -> None:
        """Each wanted frame at its place; one that has several is converted once."""
        converter, places_of = self._conversion(), dict[int, list[int]]()
        for number, place in zip(wanted, places, strict=True):
            places_of.setdefault(number, []).append(place)
        for number, frame in self.planes(np.array(wanted, np.int64)):
            place, *others = places_of[number]
            converter.convert(frame, out[place])
            for other in others:
                out[other] = out[place]

    def _conversion(self) -> Converter | Codes:
        if self._converter is None:
            self._converter = converter_of(self.packets.stream, self._column, self._blob.location)
        return self._converter

    def close(self) -> None:
        """Let go of the decoder; the next read makes a new one."""
        self._reader = None

    def _open(self) -> FrameReader:
        if self._reader is None:
            packets, blob = in_one_piece(self.packets, self._blob)
            self._reader = FrameReader(packets, blob, location=self._blob.location)
        return self._reader
