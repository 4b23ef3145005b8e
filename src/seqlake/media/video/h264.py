"""H.264 streams: which packets let go of the past, where one is missing, and how two encodings share a track.

Sections are those of ITU-T H.264. FFmpeg conceals a missing picture in silence, with whatever was decoded last. Two
encodings share one track if each keeps its parameter sets under numbers of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from seqlake.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterator

_SLICE, _IDR, _SEI, _SPS, _PPS = 1, 5, 6, 7, 8
_RECOVERY = 6  # a kind of message in an SEI unit, D.1.8
_HEAD = 40  # bytes of a unit in which all that is asked for lies
_SEEN = 4 * _HEAD  # of a unit that are looked at
_CHROMA = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})  # of profiles, 7.3.2.1.1
_START = b"\0\0\0\1"
_ESCAPE, _ESCAPED = b"\0\0\3", b"\0\0"  # 7.4.1
_MOST = 32  # numbers of sequence parameter sets


class Packets:
    """Follows the packets of one stream in decoding order.

    Args:
        extradata: Parameter sets as the container holds them.

    Attributes:
        recovers: Whether the newest packet may say that pictures are right some time after it, so that FFmpeg takes it
            for a key packet.
    """

    def __init__(self, extradata: bytes, /) -> None:
        self.recovers: bool = False
        self._width = length_bytes(extradata)
        self._largest: dict[int, int] = {}  # parameter set -> modulus of frame numbers; 0: gaps are allowed
        self._sets: dict[int, int] = {}  # picture parameter set -> sequence parameter set
        self._last: int | None = None  # frame number of the newest reference picture
        with suppress(DecodeError):  # cut: what is there is known
            for unit in _parameter_sets(extradata):
                self._learn(unit)

    def see(self, data: bytes | memoryview, /) -> tuple[bool, bool]:
        """The next packet.

        Returns:
            Whether it lets go of everything before it (an IDR picture); a key packet that does not is a recovery
            point, and what follows one refers to the past in its reference marking, if not in its pixels. And whether
            a picture that it should refer to was lost.
        """
        self.recovers = False
        for unit in _delimited(bytes(data)) if self._width is None else _prefixed(data, self._width):
            kind = unit[0] & 31
            if kind in {_SLICE, _IDR}:
                return kind == _IDR, self._lost(unit, kind)
            if kind == _SEI:
                self.recovers |= _may_recover(unit)
            self._learn(unit)
        return False, False

    def _learn(self, unit: bytes) -> None:
        bits = _Bits(unit[1:])
        try:
            if unit[0] & 31 == _SPS:
                number, largest = _largest_number(bits)
                self._largest[number] = largest
            elif unit[0] & 31 == _PPS:
                number = bits.golomb()
                self._sets[number] = bits.golomb()
        except IndexError:
            return  # damaged: nothing is known

    def _lost(self, unit: bytes, kind: int) -> bool:
        """Whether the frame number of a slice does not follow, 7.4.3."""
        bits, refers = _Bits(unit[1:]), unit[0] & 96
        try:
            bits.golomb()  # first macroblock
            bits.golomb()  # type
            largest = self._largest.get(self._sets.get(bits.golomb(), -1), 0)
            if not largest:
                self._last = None
                return False
            number = bits.take((largest - 1).bit_length())
        except IndexError:
            return False
        before, self._last = self._last, number if refers or kind == _IDR else self._last
        # A memory management operation may set the number to 0 without an IDR picture.
        return kind != _IDR and before is not None and number not in {before, (before + 1) % largest, 0, 1}


def _largest_number(bits: _Bits) -> tuple[int, int]:
    """Number of a sequence parameter set, and what its frame numbers are counted modulo; 0 where gaps are allowed."""
    profile = bits.take(8)
    bits.take(16)
    number = bits.golomb()
    if profile in _CHROMA:
        if bits.golomb() == 3 and bits.take(1):  # each colour in a plane of its own: other slice heads
            return number, 0
        bits.golomb()
        bits.golomb()
        bits.take(1)
        if bits.take(1):  # scaling matrices, which nobody here wants to read through
            return number, 0
    largest = 1 << (bits.golomb() + 4)
    order = bits.golomb()
    if order == 0:
        bits.golomb()
    elif order == 1:
        return number, 0
    bits.golomb()
    return number, 0 if bits.take(1) else largest


def _may_recover(unit: bytes) -> bool:
    """Whether a recovery point is among the messages of an SEI unit, 7.3.2.3; also where they cannot all be seen."""
    if len(unit) == _SEEN:
        return True
    unit, place = unit.replace(_ESCAPE, _ESCAPED), 1
    while place + 2 < len(unit):
        kind = size = 0
        while place < len(unit) and unit[place] == 255:
            kind, place = kind + 255, place + 1
        kind, place = kind + (unit[place] if place < len(unit) else 0), place + 1
        while place < len(unit) and unit[place] == 255:
            size, place = size + 255, place + 1
        if kind == _RECOVERY or place >= len(unit):
            return True
        place += 1 + size + unit[place]
    return place >= len(unit)


class _Bits:
    """The head of a unit bit by bit."""

    def __init__(self, data: bytes, /) -> None:
        data = data[:_HEAD].replace(_ESCAPE, _ESCAPED)
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        if count > self._left:
            raise IndexError
        self._left -= count
        return (self._value >> self._left) & ((1 << count) - 1)

    def golomb(self) -> int:
        """An unsigned number of the code of 9.1."""
        zeros = self._left - (self._value & ((1 << self._left) - 1)).bit_length()
        if zeros > 31:
            raise IndexError
        return self.take(2 * zeros + 1) - 1


def _prefixed(data: bytes | memoryview, width: int) -> Iterator[bytes]:
    """The units of a packet, each behind its length."""
    place = 0
    while place + width < len(data):
        size = int.from_bytes(data[place : place + width], "big")
        yield bytes(data[place + width : place + width + min(max(size, 1), _SEEN)])
        place += width + size


def _delimited(data: bytes) -> Iterator[bytes]:
    """The units of a packet, each behind a start code."""
    place = data.find(b"\0\0\1")
    while 0 <= place < len(data) - 3:
        yield data[place + 3 : place + 3 + _SEEN]
        place = data.find(b"\0\0\1", place + 3)


def _parameter_sets(extradata: bytes) -> Iterator[bytes]:
    """The units of an `avcC` record, or those behind start codes; raises `DecodeError` at the end of a record cut."""
    if length_bytes(extradata) is None:
        yield from _delimited(extradata)
        return
    place = 5
    for mask in (31, 255):
        count, place = extradata[place] & mask if place < len(extradata) else 1, place + 1
        for _ in range(count):
            start = place + 2
            place = start + int.from_bytes(extradata[place:start], "big")
            if extradata[start:place]:
                yield extradata[start:place]
            if max(start, place) > len(extradata):
                raise DecodeError("The stream's parameter sets are cut; encode the file anew.")


def delimited(extradata: bytes, /) -> bytes:
    """The parameter sets of a stream, each behind a start code, however its container keeps them.

    Raises:
        DecodeError: They are cut.
    """
    if length_bytes(extradata) is None:
        return extradata
    return b"".join(_START + unit for unit in _parameter_sets(extradata))


def length_bytes(extradata: bytes, /) -> int | None:
    """How many bytes hold the length of each unit in a packet; None where units stand behind start codes."""
    return (extradata[4] & 3) + 1 if extradata[:1] == b"\x01" and len(extradata) > 4 else None


def with_start_codes(packet: bytes, width: int | None, /) -> bytes:
    """A packet with its units behind start codes.

    Args:
        packet: As the container holds it.
        width: As `length_bytes` says.
    """
    if width is None:
        return packet
    parts, place = [], 0
    while place + width <= len(packet):
        size = int.from_bytes(packet[place : place + width], "big")
        parts += [_START, packet[place + width : place + width + size]]
        place += width + size
    return b"".join(parts)


def free_numbers(extradata: bytes, /) -> list[int]:
    """Numbers that no parameter set of a stream has, the highest first.

    Raises:
        DecodeError: They are cut.
    """
    taken = set()
    for unit in _parameter_sets(extradata):
        kind, bits = unit[0] & 31, _Bits(unit[1:])
        try:
            if kind == _SPS:
                bits.take(24)  # the profile and its level
            if kind in {_SPS, _PPS}:
                taken.add(bits.golomb())
        except IndexError:
            raise DecodeError("The stream's parameter sets are cut; encode the file anew.") from None
    return [number for number in reversed(range(_MOST)) if number not in taken]
