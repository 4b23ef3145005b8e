"""Parameter sets of H.264: two encodings share one track if each keeps its sets under numbers of its own."""

from __future__ import annotations

from seqlake.errors import DecodeError

_START = b"\0\0\0\1"
_SPS, _PPS = 7, 8
_MOST = 32  # numbers of sequence parameter sets


def delimited(extradata: bytes, /) -> bytes:
    """The parameter sets of a stream, each behind a start code, however its container keeps them.

    Raises:
        DecodeError: They are cut.
    """
    if extradata[:1] != b"\x01":
        return extradata
    return b"".join(_START + unit for unit in _units_of_record(extradata))


def length_bytes(extradata: bytes, /) -> int | None:
    """How many bytes hold the length of each unit in a packet; None where units stand behind start codes."""
    return (extradata[4] & 3) + 1 if extradata[:1] == b"\x01" else None


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
    record = extradata[:1] == b"\x01"
    units = _units_of_record(extradata) if record else _units_of_stream(extradata)
    taken = set()
    for unit in units:
        kind, body = unit[0] & 31, unit[1:16].replace(b"\0\0\3", b"\0\0")
        if kind in {_SPS, _PPS}:
            taken.add(_golomb(body[3:] if kind == _SPS else body))
    return [number for number in reversed(range(_MOST)) if number not in taken]


def _units_of_record(extradata: bytes) -> list[bytes]:
    units, place = [], 5
    try:
        for mask in (31, 255):
            count, place = extradata[place] & mask, place + 1
            for _ in range(count):
                size = int.from_bytes(extradata[place : place + 2], "big")
                units.append(extradata[place + 2 : place + 2 + size])
                place += 2 + size
    except IndexError as error:
        raise DecodeError("The stream's parameter sets are cut; encode the file anew.") from error
    return units


def _units_of_stream(extradata: bytes) -> list[bytes]:
    parts = extradata.replace(_START, _START[1:]).split(_START[1:])
    return [part for part in parts if part]


def _golomb(data: bytes) -> int:
    """The first number of a bit stream, in the code of its kind."""
    bits = int.from_bytes(data[:8].ljust(8, b"\0"), "big")
    zeros = 64 - bits.bit_length()
    return (bits >> (63 - 2 * zeros)) - 1
