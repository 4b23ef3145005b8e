"""Packet indexes that are made of an MP4's own tables: the same as by FFmpeg's packets, for changed tables, too."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.soak import SOAK

from seqlake.errors import DecodeError, SeqlakeError
from seqlake.files.blobs import MemoryBlob
from seqlake.media import _bytes
from seqlake.media.video import demuxing, h264, indexing, tables
from seqlake.media.video.packets import DAMAGED

from . import clips
from .mutations import changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from seqlake.media.video.packets import PacketIndex
    from seqlake.protocols import Ints

UNEVEN = [0, 1, 2, 4, 7, 8, 9, 10, 12, 20, 21, 22, 23, 24, 25, 26, 30, 31]
KINDS: dict[str, Callable[[], bytes]] = {
    "av1": lambda: clips.encode("libsvtav1", preset="12", g="10"),
    "av1, two of a group": lambda: clips.encode(
        "libsvtav1", preset="12", g="2", muxer={"movflags": "+faststart"}, **{"svtav1-params": "pred-struct=1"}
    ),
    "hevc, reordered": lambda: clips.encode("libx265", **{"x265-params": "keyint=10:bframes=3:log-level=none"}),
    "hevc, uneven": lambda: clips.encode(
        "libx265", times=UNEVEN, **{"x265-params": "keyint=6:bframes=2:log-level=none"}
    ),
    "vp9": lambda: clips.encode("libvpx-vp9", g="10", deadline="realtime"),
    "h264": lambda: clips.encode(g="10", bf="0", sc_threshold="0"),
    "h264, reordered": lambda: clips.encode(g="12", bf="3", muxer={"movflags": "+faststart"}),
    "h264, with messages": lambda: clips.encode(
        g="10", **{"x264-params": "nal-hrd=vbr:vbv-maxrate=900:vbv-bufsize=900"}
    ),
}
TABLES = [b"stts", b"ctts", b"stss", b"stsc", b"stsz", b"stco", b"elst", b"mdhd", b"mvhd", b"stsd", b"tkhd"]


@cache
def made(kind: str) -> bytes:
    return KINDS[kind]()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many packets FFmpeg gave, file after file."""
    counts: list[int] = []

    def counted(*arguments: object) -> Iterator[object]:
        counts.append(0)
        for packet in demuxing.demuxed(*arguments):
            counts[-1] += 1
            yield packet

    monkeypatch.setattr(indexing, "demuxed", counted)
    return counts


def by_packets(data: bytes, monkeypatch: pytest.MonkeyPatch) -> dict[int, PacketIndex] | str:
    with monkeypatch.context() as context:
        context.setattr(tables, "listed", lambda *_: None)
        return indexed(data)


def indexed(data: bytes) -> dict[int, PacketIndex] | str:
    """Its indexes, or the name of the error that it has none by."""
    try:
        return indexing.index(MemoryBlob(data))
    except SeqlakeError as error:
        return type(error).__name__


def same(one: dict[int, PacketIndex] | str, other: dict[int, PacketIndex] | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    fields = ("offset", "length", "pts", "flags", "crc")
    return one.keys() == other.keys() and all(
        one[number].stream == other[number].stream
        and all(np.array_equal(getattr(one[number], name), getattr(other[number], name)) for name in fields)
        for number in one
    )


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes as they are before anything is decoded: what is damaged shows other pictures in other releases."""
    monkeypatch.setattr(
        indexing, "proven", lambda one, _, **said: replace(one, stream=replace(one.stream, proof=repr(said)))
    )


def box(data: bytes, kind: bytes) -> int:
    """Where the contents of the first box of a kind begin, in an MP4 with its head at the end or not."""
    return data.index(kind, data.index(b"moov")) + 4


def with_number(data: bytes, place: int, number: int) -> bytes:
    return data[:place] + struct.pack(">I", number) + data[place + 4 :]


@pytest.mark.parametrize("kind", KINDS)
def test_tables_say_what_packets_say(kind: str, monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    expected = by_packets(made(kind), monkeypatch)
    assert same(indexed(made(kind)), expected)
    every, few = asked
    assert few == 8 < every
    assert expected[0].stream.proof == "times"


def test_what_is_longer_than_a_piece_that_is_read(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    expected = by_packets(made("av1"), monkeypatch)
    monkeypatch.setattr(tables, "_READ", 100)
    assert same(indexed(made("av1")), expected)
    assert asked[1] == 8


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("lengths", [[1] * 39, [4, 4, 4, 7, 7, 1, 1, 1], [39], [5, 5, 5]])
def test_packets_lie_in_chunks(
    lengths: list[int], wide: bool, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    data = in_chunks(made("av1"), lengths, wide=wide)
    asked.clear()
    expected = by_packets(data, monkeypatch)
    assert same(indexed(data), expected)
    assert asked[1] == 8
    assert expected[0].offset.tolist() == indexing.index(MemoryBlob(made("av1")))[0].offset.tolist()


def without_keys(data: bytes) -> bytes:
    """Without its table of key packets, so that every packet would be one."""
    place = box(data, b"stss")
    return data[: place - 4] + b"free" + data[place:]


def another_key(data: bytes) -> bytes:
    """The second key packet is said to be one later."""
    place = box(data, b"stss") + 12
    return with_number(data, place, int.from_bytes(data[place : place + 4], "big") + 1)


def cut_by_an_edit(data: bytes) -> bytes:
    """Half of it is shown."""
    place = box(data, b"elst") + 8
    return with_number(data, place, int.from_bytes(data[place : place + 4], "big") // 2)


def begun_later(data: bytes) -> bytes:
    """Shown from its fifth picture on."""
    place = box(data, b"elst") + 12
    return with_number(data, place, int.from_bytes(data[place : place + 4], "big") + 2048)


def larger_than_the_file(data: bytes) -> bytes:
    place = box(data, b"stsz") + 12 + 4 * 20
    return with_number(data, place, 1 << 30)


def of_no_bytes(data: bytes) -> bytes:
    return with_number(data, box(data, b"stsz") + 12 + 4 * 20, 0)


def with_box(data: bytes, kind: bytes, contents: bytes, *, name: bytes = b"") -> bytes:
    """With another table, in an MP4 whose head is behind its packets."""
    start = box(data, kind) - 8
    size = int.from_bytes(data[start : start + 4], "big")
    new = struct.pack(">I", 8 + len(contents)) + (name or kind) + contents
    for outer in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        place = box(data, outer) - 8
        data = with_number(data, place, int.from_bytes(data[place : place + 4], "big") + len(new) - size)
    return data[:start] + new + data[start + size :]


def in_chunks(data: bytes, lengths: list[int], *, wide: bool = False, swapped: bool = False) -> bytes:
    """The same packets in other chunks: these of so many, and the rest in one."""
    offset = indexing.index(MemoryBlob(data))[0].offset
    firsts = np.cumsum([0, *lengths])
    counts = [*lengths, len(offset) - sum(lengths)]
    rows = [(number, count, 1) for number, count in enumerate(counts, 1)]
    rows = [row for row, before in zip(rows, [None, *rows], strict=False) if before is None or row[1] != before[1]]
    parts = struct.pack(">II", 0, len(rows)) + b"".join(struct.pack(">III", *row) for row in rows)
    data = with_box(data, b"stsc", parts)
    places = offset[firsts]
    if swapped:
        places[[-2, -1]] = places[[-1, -2]]
    table = struct.pack(">II", 0, len(places)) + places.astype(">u8" if wide else ">u4").tobytes()
    return with_box(data, b"stco", table, name=b"co64" if wide else b"stco")


def chunks_swapped(data: bytes) -> bytes:
    """The last chunk is said to lie before the one before it."""
    return in_chunks(data, [20, 10], swapped=True)


SPOILED: dict[str, Callable[[bytes], bytes]] = {
    one.__name__: one
    for one in (
        without_keys, another_key, cut_by_an_edit, begun_later, larger_than_the_file, of_no_bytes,
        chunks_swapped,
    )
}  # fmt: skip


@pytest.mark.parametrize("way", SPOILED)
@pytest.mark.parametrize("kind", ["av1", "vp9"])
def test_where_tables_do_not_say_everything_packets_are_asked(
    kind: str, way: str, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    data = SPOILED[way](made(kind))
    asked.clear()
    expected = by_packets(data, monkeypatch)
    assert same(indexed(data), expected)
    assert asked[0] == asked[1] > 8


@pytest.mark.parametrize("kind", ["cut off", "fragmented", "several streams", "matroska", "open groups", "refreshed"])
def test_other_files_are_asked_for_packets(kind: str, monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    match kind:
        case "cut off":
            data = made("av1, two of a group")[:-500]
        case "fragmented":
            data = clips.encode("libsvtav1", preset="12", g="10", muxer={"movflags": "frag_keyframe+empty_moov"})
        case "several streams":
            data = clips.several()
        case "open groups":
            data = clips.encode(bf="2", g="10", **{"x264-params": "open-gop=1"})
        case "refreshed":
            data = clips.encode(**{"x264-params": "intra-refresh=1:keyint=10"})
        case _:
            data = clips.encode("libsvtav1", container="matroska", preset="12", g="10")
    expected = by_packets(data, monkeypatch)
    assert same(indexed(data), expected)
    assert asked[0] == asked[1] > 8


class _Far:
    """Bytes that are had by request alone."""

    def __init__(self, data: bytes) -> None:
        self._blob = MemoryBlob(data)
        self.location, self.size, self.token = self._blob.location, self._blob.size, self._blob.token
        self.requests = 0

    def view(self) -> None:
        return None

    def ranges(self, starts: Ints, stops: Ints) -> list[memoryview]:
        self.requests += 1
        return self._blob.ranges(starts, stops)


def test_a_file_in_fragments_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bytes, "_BLOCK", 512)
    muxer = {"movflags": "frag_keyframe+empty_moov"}
    blobs = [_Far(clips.encode("libsvtav1", preset="12", g="2", muxer=muxer)) for _ in range(2)]
    assert indexing.index(blobs[0])
    monkeypatch.setattr(tables, "listed", lambda *_: None)
    assert indexing.index(blobs[1])
    assert blobs[0].requests <= blobs[1].requests + 3  # for the head again


def test_no_more_packets_than_the_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQLAKE_MAX_PACKETS", "12")
    with pytest.raises(DecodeError, match=r"(?s)40.*SEQLAKE_MAX_PACKETS"):
        indexing.index(MemoryBlob(made("av1")))


@pytest.mark.sampled
@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize("kind", KINDS)
def test_changed_tables_say_what_packets_say(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(kind)
    draw = random.Random(kind)
    for seed in range(150 if SOAK else 50):
        one = bytearray(data)
        for _ in range(draw.choice([1, 1, 2])):
            table = draw.choice([table for table in TABLES if table in data])
            place = box(data, table)
            size = int.from_bytes(data[place - 8 : place - 4], "big") - 8
            at = place + draw.randrange(min(size, 200))
            one[at] = draw.choice([0, 1, 2, 255, one[at] ^ 1 << draw.randrange(8), (one[at] + 1) & 255])
        spoiled = bytes(one) if seed % 3 else changed(data, seed)
        assert same(indexed(spoiled), by_packets(spoiled, monkeypatch)), seed


def test_a_lost_picture_of_h264_is_noted(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> None:
    data = made("h264")
    packets = indexing.index(MemoryBlob(data))[0]
    one = bytearray(data)
    start = int(packets.offset[23])
    one[start + 4 : start + 9] = bytes([9, 240, 0, 0, 0])  # nothing but a delimiter
    asked.clear()
    expected = by_packets(bytes(one), monkeypatch)
    assert same(indexed(bytes(one)), expected)
    assert asked == [41, 41, 8, 41]  # all are asked once more, since it is decoded
    assert expected[0].flags[24] & DAMAGED


@pytest.mark.parametrize(("messages", "recovers"), [
    (bytes([1, 2, 9, 9]), False),
    (bytes([1, 2, 9, 9, 6, 1, 64]), True),
    (bytes([5, 155]) + bytes([7]) * 155 + bytes([6, 1, 64]), True),  # begins where no more is seen
    (bytes([5, 255, 60]) + bytes([7]) * 315, True),
    (bytes([5, 40, 1]), True),  # longer than its unit
])  # fmt: skip
def test_a_message_of_h264_may_be_a_recovery_point(messages: bytes, recovers: bool) -> None:
    units = [b"\x06" + messages + b"\x80", b"\x41\x9a\x00\x00"]
    packets = h264.Packets(b"\x01d\x00\x0a\xff\xe0\x00")
    packets.see(b"".join(struct.pack(">I", len(unit)) + unit for unit in units))
    assert packets.recovers == recovers
    packets.see(struct.pack(">I", 4) + units[1])
    assert not packets.recovers


@pytest.mark.sampled
@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize("kind", ["av1", "vp9", "h264", "h264, with messages"])
def test_changed_packets_are_key_packets_as_ffmpeg_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(kind)
    places = indexing.index(MemoryBlob(data))[0].offset.tolist()
    draw = random.Random(kind)
    for seed in range(150 if SOAK else 50):
        one = bytearray(data)
        at = draw.choice(places) + draw.choice([0, 0, 1, 1, 2, 3, 4, 5, 13, 14, 15, 16])
        one[at] = draw.choice([0, 1, 255, one[at] ^ 1 << draw.randrange(8), one[at] ^ 1 << draw.randrange(8)])
        spoiled = bytes(one)
        assert same(indexed(spoiled), by_packets(spoiled, monkeypatch)), seed
