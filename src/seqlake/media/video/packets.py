"""The packet index of one video stream: where each packet lies, when it is shown, and what a decoder must know.

It names frames by packet number and makes containers unnecessary for reading. As bytes it is an Arrow IPC stream with
zstd: about 11 bytes a packet, a CRC-32 each included.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from seqlake.errors import CorruptFileError
from seqlake.files.arrow_ipc import decoded_bytes
from seqlake.media._limits import PACKETS, frame_pixels
from seqlake.spec.alignment import ratio

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from numpy.typing import NDArray

    from seqlake.protocols import Ints

KEY = 1  # decoding may begin here
HIDDEN = 2  # decoded, never shown: edit lists, a cut, the codec's own
OPEN = 4  # a key packet of H.264 whose followers may let go of pictures from before it
DAMAGED = 8  # did not decode in sequence when the index was made, or the container says that it is damaged
MARKED = 16  # the container calls it a key packet, which some decoders are to be told
_VERSION = 1
_NAME = b"seqlake.packets"
_WRONG = (OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)  # made of a header by others
_TURNS = frozenset({(a, 0, 0, d) for a in (1, -1) for d in (1, -1)} | {(0, b, c, 0) for b in (1, -1) for c in (1, -1)})
_COLOURS = 1024  # bytes of a palette
_PACKET = 32  # bytes of one, unpacked
# Of these nothing survives a flush but damage, and a container's times may prove the order of frames.
PLAIN = frozenset({"av1", "h264", "hevc", "vp9"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """What a decoder must know before the first packet.

    Attributes:
        number: Which of the container's video streams, from 0.
        codec: FFmpeg's name, as in `h264`.
        extradata: Parameter sets as the container holds them.
        width: Pixels of a coded picture.
        height: Pixels of a coded picture.
        pix_fmt: FFmpeg's name of the pixel format, as in `yuv420p`.
        reorder: How many pictures the decoder holds back.
        time_base: Seconds of one tick of `pts`.
        rate: Frames per second as the container says; 0 where it does not.
        tags: Colour range, matrix, primaries and transfer as FFmpeg numbers them.
        turn: The display matrix as (a, b, c, d), each -1, 0 or 1: x' = a x + c y, y' = b x + d y.
        size: Bytes of the whole file.
        placed: Whether packets lie in the file as they are; if not they are demuxed again when it is opened.
        changes: Where other parameter sets begin: (packet, extradata), ascending; not those inside packets.
        fourcc: The container's name of the codec, by which some decoders tell variants apart.
        depth: Bits of a coded sample as the container says; 0 where it does not.
        palettes: Where other colours begin: (packet, 256 colours as FFmpeg keeps them), ascending.
        proof: Why frames are held to be these packets: `"times"`, the container's timestamps; `"decoded"`, they were
            decoded and compared; empty in an index of a release that did not say.
    """

    number: int
    codec: str
    extradata: bytes
    width: int
    height: int
    pix_fmt: str
    reorder: int
    time_base: Fraction
    rate: Fraction
    tags: tuple[int, int, int, int]
    turn: tuple[int, int, int, int]
    size: int
    placed: bool
    changes: tuple[tuple[int, bytes], ...] = ()
    fourcc: str = ""
    depth: int = 0
    palettes: tuple[tuple[int, bytes], ...] = ()
    proof: str = ""

    @property
    def parameters(self) -> tuple[Any, ...]:
        """What makes of equal packets equal pictures, where it is equal too."""
        return (
            self.codec, self.extradata, self.width, self.height, self.pix_fmt, self.tags, self.fourcc,
            self.depth, self.changes, self.palettes,
        )  # fmt: skip


class Boundaries(NamedTuple):
    """Where packets can be parted, all ascending.

    Attributes:
        begins: Packets at which a copy may begin.
        first: [begins] the frame that each shows.
        ends: Packets before which a copy may end.
        last: [ends] how many frames are shown before each.
        broken: Packets that no copy can have: hidden, or damaged.
    """

    begins: Ints
    first: Ints
    ends: Ints
    last: Ints
    broken: Ints


_FIELDS = frozenset(one.name for one in fields(StreamInfo))  # of a later release there may be more


@dataclass(frozen=True, kw_only=True, eq=False)
class PacketIndex:
    """Every packet of one video stream in decoding order.

    Attributes:
        stream: What the decoder must know.
        offset: [packets] first byte in the file.
        length: [packets] bytes.
        pts: [packets] when its frame is shown, in ticks; only meaningful where it is shown.
        flags: [packets] `KEY`, `HIDDEN`, `OPEN`, `DAMAGED`, `MARKED`.
        crc: [packets] CRC-32 of the bytes.
    """

    stream: StreamInfo
    offset: Ints
    length: Ints
    pts: Ints
    flags: NDArray[np.uint8]
    crc: NDArray[np.uint32]

    @cached_property
    def order(self) -> Ints:
        """[frames] packet of each shown frame, in the order they are shown."""
        visible = np.flatnonzero((self.flags & HIDDEN) == 0)
        return visible[np.argsort(self.pts[visible], kind="stable")]

    @cached_property
    def starts(self) -> Ints:
        """Packets at which decoding may begin, ascending."""
        return np.flatnonzero(self.flags & KEY)

    @cached_property
    def frames(self) -> Ints:
        """[packets] which frame each shows; -1 where none."""
        frames = np.full(len(self.pts), -1, np.int64)
        frames[self.order] = np.arange(len(self.order))
        return frames

    @cached_property
    def ticks(self) -> Ints:
        """[frames] when each is shown, in ticks, in the order they are shown."""
        return self.pts[self.order]

    @cached_property
    def boundaries(self) -> Boundaries:
        """Where packets on one side need nothing from the other."""
        # Before packet p so many frames are shown, and they are the first ones.
        before = np.concatenate([[0], np.cumsum(self.frames >= 0)])
        newest = np.concatenate([[-1], np.maximum.accumulate(self.frames)])
        closed = newest == before - 1
        keys = (self.flags & (KEY | OPEN)) == KEY
        begins = np.flatnonzero(closed[:-1] & (self.frames == before[:-1]) & keys)
        ends = np.flatnonzero(closed)
        return Boundaries(
            begins=begins,
            first=before[begins],
            ends=ends,
            last=before[ends],
            broken=np.flatnonzero(self.flags & (HIDDEN | DAMAGED)),
        )

    @property
    def believed(self) -> bool:
        """Whether times alone can say which packet is which frame."""
        pts, stream = self.pts, self.stream
        if stream.codec not in PLAIN or (self.flags & (DAMAGED | OPEN)).any() or not len(pts):
            return False
        if len(np.unique(pts)) < len(pts) or not self.flags[0] & KEY:
            return False
        if stream.reorder > 0 and len(pts) > 1 and bool((np.diff(pts) > 0).all()):
            return False  # pictures that are reordered, and times that are not
        return not ((pts < pts[0]) & ((self.flags & HIDDEN) == 0)).any()  # leading pictures, whose references are gone

    def in_order(self, order: Ints, times: Ints, /, *, time_base: Fraction) -> PacketIndex:
        """The same packets with an order that was learned by decoding.

        Args:
            order: [frames] packets in the order their frames came out.
            times: [frames] strictly ascending ticks.
            time_base: Seconds of a tick.
        """
        pts = np.full_like(self.pts, min(times, default=0))  # before all others, so that a hidden key packet is a start
        pts[order] = times
        flags = (self.flags | HIDDEN).astype(np.uint8)
        flags[order] &= ~np.uint8(HIDDEN)
        # Begun at a picture that does not come out, the decoder would show something else; an edit list only hides it.
        flags[(flags & ~self.flags & HIDDEN) > 0] &= ~np.uint8(KEY)
        return replace(self, stream=replace(self.stream, time_base=time_base), pts=pts, flags=flags)

    def to_bytes(self) -> bytes:
        """The bytes that are kept beside a dataset."""
        ends = self.offset + self.length
        columns: dict[str, Any] = {
            "gap": self.offset - np.concatenate(([0], ends))[: len(ends)],
            "length": self.length,
            "step": np.diff(self.pts, prepend=0),
            "flags": self.flags,
            "crc": self.crc,
        }
        header = asdict(self.stream) | {
            "version": _VERSION,
            "extradata": base64.b64encode(self.stream.extradata).decode(),
            "changes": _to_json(self.stream.changes),
            "palettes": _to_json(self.stream.palettes),
            "time_base": str(self.stream.time_base),
            "rate": str(self.stream.rate),
        }
        batch = pa.record_batch({name: pa.array(values) for name, values in columns.items()})
        schema = batch.schema.with_metadata({_NAME: json.dumps(header)})
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)  # to wake them takes longer
        with pa.ipc.new_stream(sink, schema, options=options) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return bytes(sink.getvalue())

    @staticmethod
    def from_bytes(data: bytes, /) -> PacketIndex:
        """What `to_bytes` wrote.

        Raises:
            CorruptFileError: It is something else, or of a newer version.
        """
        try:
            table = _table_of(data)
            header = json.loads(table.schema.metadata[_NAME])
            version = header.pop("version")
            header |= {
                "extradata": base64.b64decode(header["extradata"]),
                "changes": _of_json(header["changes"]),
                "palettes": _of_json(header.get("palettes", ())),
                "time_base": ratio(header["time_base"]),
                "rate": ratio(header["rate"]),
                "tags": tuple(header["tags"]),
                "turn": tuple(header["turn"]),
            }
            stream = StreamInfo(**{key: value for key, value in header.items() if key in _FIELDS})
            gap, length, step, flags, crc = (
                table[name].to_numpy() for name in ("gap", "length", "step", "flags", "crc")
            )
            _check(stream, gap, length)
        except (pa.ArrowException, *_WRONG) as error:
            raise CorruptFileError(f"This is no packet index: {error}. Remove it; it is made again.") from error
        if version != _VERSION:
            raise CorruptFileError(f"This packet index has version {version!r}, expected {_VERSION}. Update seqlake.")
        offset = np.cumsum(gap) + np.cumsum(length) - length
        index = PacketIndex(
            stream=stream, offset=offset, length=length, pts=np.cumsum(step), flags=flags.copy(), crc=crc
        )
        if stream.proof != "decoded" and not (index.believed and (stream.placed or stream.proof)):
            raise CorruptFileError(f"This packet index says too little about {stream.codec}; it is made again.")
        return index


_COLUMNS = {"gap": "i8", "length": "i8", "step": "i8", "flags": "u1", "crc": "u4"}


def _table_of(data: bytes) -> pa.Table:
    """Strangers write indexes too: nothing is unpacked that is larger than the limit, or of other types."""
    if (taken := decoded_bytes(data)) > _PACKET * PACKETS.value:
        raise ValueError(f"it would take {taken:,} bytes, and {PACKETS.name} is {PACKETS.value:,}")
    table = pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
    table.validate(full=True)
    for name, kind in _COLUMNS.items():
        column = table[name]
        if column.null_count or column.type != pa.from_numpy_dtype(np.dtype(kind)):
            raise TypeError(f"its column {name!r} is {column.type} with {column.null_count} nulls")
    return table


def _check(stream: StreamInfo, gap: Ints, length: Ints) -> None:
    """What a decoder takes for granted."""
    small = (stream.number, stream.reorder, stream.depth, *stream.tags)
    large = (stream.width, stream.height, stream.size)
    if not all(type(one) is int and 0 <= one < most for of, most in ((small, 256), (large, 1 << 48)) for one in of):
        raise ValueError(f"it has numbers that no video has: {small + large}")
    if len(stream.tags) != 4 or stream.width * stream.height > frame_pixels() or stream.turn not in _TURNS:
        raise ValueError(f"its frames are {stream.width} x {stream.height}, turned by {stream.turn}")
    texts = (stream.codec, stream.pix_fmt, stream.fourcc, stream.proof)
    if not all(isinstance(one, str) and one.isascii() and len(one) < 64 for one in texts) or len(stream.fourcc) > 4:
        raise ValueError(f"it has names that no codec has: {texts}")
    if stream.time_base <= 0 or stream.rate < 0 or not isinstance(stream.placed, bool):
        raise ValueError("it tells no times")
    if not all(isinstance(packet, int) and packet >= 0 for packet, _ in stream.changes):
        raise ValueError("other parameter sets begin nowhere")
    if not all(isinstance(packet, int) and packet >= 0 and len(data) == _COLOURS for packet, data in stream.palettes):
        raise ValueError("other colours begin nowhere, or are none")
    ends = np.cumsum(gap.astype(np.float64)) + np.cumsum(length.astype(np.float64))  # of forged numbers, not wrapped
    starts = ends - length
    if len(length) and (length.min() < 0 or (stream.placed and (starts.min() < 0 or ends.max() > stream.size))):
        raise ValueError("its packets lie outside of the file")


def _to_json(held: Iterable[tuple[int, bytes]]) -> list[tuple[int, str]]:
    return [(packet, base64.b64encode(data).decode()) for packet, data in held]


def _of_json(held: Iterable[tuple[int, str]]) -> tuple[tuple[int, bytes], ...]:
    return tuple((packet, base64.b64decode(data)) for packet, data in held)
