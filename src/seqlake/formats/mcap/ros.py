"""Messages of ROS 1 and ROS 2: their definitions, which rosbags parses, and their bytes, which are read here.

Only lengths that fit in the bytes that are there are believed, and no code is made of a definition: a recording may be
anybody's.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError, InvalidMetadataError, in_line
from seqlake.formats.mcap.kinds import MOST_DEPTH, MOST_FIELDS, Group, Kind, Many, Moment, Number, Words
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBERS = {
    "bool": "bool",
    "byte": "uint8",
    "char": "uint8",
    **{name: name for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")},
    "float32": "float32",
    "float64": "float64",
}
_TIMES = {"builtin_interfaces/msg/Time": "II", "builtin_interfaces/msg/Duration": "ii"}  # ROS 1; "iI" in ROS 2
_EMPTY = "structure_needs_at_least_one_member"
_MOST_DEFINITION = 4 << 20  # characters
_LINES = re.compile(r"={40,}")
_HEADER = struct.Struct(">HH")
_PLAIN = {form: (">" if form % 2 == 0 else "<", 8 if form < 2 else 4) for form in (0x00, 0x01, 0x06, 0x07, 0x10, 0x11)}
"""Encapsulation -> byte order and the widest alignment: CDR, and plain CDR2 by its number of RTPS and of XTypes."""
_OTHERS = {
    **dict.fromkeys((0x02, 0x03), "PL_CDR, a list of parameters"),
    **dict.fromkeys((0x08, 0x09, 0x14, 0x15), "D_CDR2, delimited XCDR2"),
    **dict.fromkeys((0x0A, 0x0B, 0x12, 0x13), "PL_CDR2, XCDR2 with a header for each field"),
}
_PADDING = 3  # bytes behind a message at most
_DEFAULTS = {"ros1": "ROS1_NOETIC", "cdr": "LATEST"}


@dataclass(frozen=True, slots=True)
class _Base:
    name: str  # numpy's, or `string`


@dataclass(frozen=True, slots=True)
class _Named:
    name: str


@dataclass(frozen=True, slots=True)
class _List:
    of: _Base | _Named
    size: int | None


Fields = tuple[tuple[str, "_Base | _Named | _List"], ...]


@dataclass(frozen=True, kw_only=True)
class RosDecoder:
    """Messages of one type; picklable.

    Attributes:
        root: The type, as `sensor_msgs/msg/Imu`.
        types: The fields of all types that it consists of.
        cdr: Whether it is ROS 2's CDR; else ROS 1's own form.
    """

    root: str
    types: Mapping[str, Fields] = field(repr=False)
    cdr: bool

    @cached_property
    def kind(self) -> Group:
        """What messages hold; a type inside itself is left out."""
        return _group(self.root, self.types, (), [0])

    def decode(self, data: memoryview, /) -> dict[str, Any]:
        """One message.

        Raises:
            CorruptFileError: It is cut off, or says lengths that it has not.
        """
        order, start, widest = "<", 0, 1
        if self.cdr:
            if len(data) < 4:
                raise CorruptFileError(f"a message of {self.root} has {len(data)} bytes, CDR has 4 before anything")
            if why := not_read(data):
                raise CorruptFileError(f"a message of {self.root} is encoded as {why}")
            (order, widest), start = _PLAIN[_HEADER.unpack_from(data)[0]], 4
        reader = _Bytes(data, start, order, widest=widest, types=self.types)
        try:
            return reader.whole(self.root)
        except (struct.error, ValueError, UnicodeDecodeError) as error:
            raise CorruptFileError(f"a message of {self.root} cannot be read: {error}") from None


class _Bytes:
    """The values of one message, one after another."""

    def __init__(
        self, data: memoryview, start: int, order: str, /, *, widest: int, types: Mapping[str, Fields]
    ) -> None:
        self._data, self._at, self._start, self._order = data, start, start, order
        self._aligned, self._widest, self._types = widest > 1, widest, types
        self._second = widest == 4  # XCDR2, where lists of all but numbers say how many bytes they have
        self._left = MOST_FIELDS + len(data)  # groups without fields take no bytes in ROS 1

    def message(self, name: str, depth: int) -> dict[str, Any]:
        self._left -= 1
        if depth > MOST_DEPTH or self._left < 0:
            raise ValueError(f"{name} lies in itself, or messages in messages are more than their bytes")
        fields = self._types[name]
        if not self._aligned and len(fields) == 1 and fields[0][0] == _EMPTY:
            return {}
        return {label: self._value(one, depth) for label, one in fields}

    def whole(self, name: str) -> dict[str, Any]:
        """A message that takes all bytes, in XCDR2, whose types may have headers that their definitions do not show."""
        message = self.message(name, 0)
        left = len(self._data) - self._at
        if self._second and left > _PADDING:
            raise ValueError(f"{left} bytes are left behind its last field")
        return message

    def _value(self, kind: _Base | _Named | _List, depth: int) -> Any:
        if isinstance(kind, _Base):
            return self._text() if kind.name == "string" else self._number(kind.name)
        if isinstance(kind, _Named):
            return self._time(kind.name) if kind.name in _TIMES else self.message(kind.name, depth + 1)
        if isinstance(kind.of, _Base) and kind.of.name != "string":
            return self._numbers(kind.of.name, self._count() if kind.size is None else kind.size)
        if not self._second:
            return self._elements(kind, depth)
        length = self._count()
        begin = self._at
        elements = self._elements(kind, depth)
        if self._at != begin + length:
            raise ValueError(f"a list says that it has {length} bytes, its elements take {self._at - begin}")
        return elements

    def _elements(self, kind: _List, depth: int) -> list[Any]:
        count = self._count() if kind.size is None else kind.size
        # Any element of another kind has a byte at least, but for messages without fields, which nobody lists.
        if count > len(self._data) - self._at:
            raise ValueError(f"a list of {count} elements does not fit in the {len(self._data) - self._at} bytes left")
        return [self._value(kind.of, depth) for _ in range(count)]

    def _take(self, size: int, align: int) -> int:
        """Where the next `size` bytes begin, which lie in the message."""
        at = self._at
        at += -(at - self._start) % min(align, self._widest)
        if size > len(self._data) - at:
            raise ValueError(f"{size} bytes were expected at byte {at}, the message ends after {len(self._data)}")
        self._at = at + size
        return at

    def _count(self) -> int:
        return int(struct.unpack_from(self._order + "I", self._data, self._take(4, 4))[0])

    def _number(self, name: str) -> int | float | bool:
        dtype = np.dtype(name)
        at = self._take(dtype.itemsize, dtype.itemsize)
        value: int | float = struct.unpack_from(
            self._order + dtype.char.replace("l", "q").replace("L", "Q"), self._data, at
        )[0]
        return bool(value) if name == "bool" else value

    def _numbers(self, name: str, count: int) -> Any:
        dtype = np.dtype(self._order + np.dtype(name).str[1:])
        if not count:
            return np.empty(0, name)
        at = self._take(count * dtype.itemsize, dtype.itemsize)
        if name == "bool":
            return np.frombuffer(self._data, np.uint8, count, at) != 0
        return np.frombuffer(self._data, dtype, count, at).astype(name, copy=False)

    def _text(self) -> str:
        length = self._count()
        at = self._take(length, 1)
        return str(self._data[at : at + length], "utf-8").removesuffix("\0")

    def _time(self, name: str) -> int:
        at = self._take(8, 4)
        seconds, rest = struct.unpack_from(self._order + ("iI" if self._aligned else _TIMES[name]), self._data, at)
        return int(seconds) * 1_000_000_000 + int(rest)


def not_read(data: memoryview, /) -> str:
    """How a message of ROS 2 is encoded where that is not read; else nothing.

    Example:
        >>> not_read(memoryview(bytes([0, 9, 0, 0])))
        'D_CDR2, delimited XCDR2 (0x0009), which is not read; plain CDR and plain CDR2 are'
    """
    form = _HEADER.unpack_from(data)[0] if len(data) >= _HEADER.size else 0
    if form in _PLAIN:
        return ""
    return f"{_OTHERS.get(form, 'nothing known')} ({form:#06x}), which is not read; plain CDR and plain CDR2 are"


def _group(name: str, types: Mapping[str, Fields], above: tuple[str, ...], counted: list[int]) -> Group:
    fields: dict[str, Kind] = {}
    for label, one in types[name]:
        counted[0] += 1
        kind = _kind(one, types, (*above, name), counted)
        if kind is not None and label != _EMPTY:
            fields[label] = kind
    return Group(name, fields)


def _kind(
    one: _Base | _Named | _List, types: Mapping[str, Fields], above: tuple[str, ...], counted: list[int]
) -> Kind | None:
    if counted[0] > MOST_FIELDS or len(above) > MOST_DEPTH:
        return None
    if isinstance(one, _Base):
        return Words() if one.name == "string" else Number(one.name)
    if isinstance(one, _Named):
        if one.name in _TIMES:
            return Moment()
        return None if one.name in above else _group(one.name, types, above, counted)
    inner = _kind(one.of, types, above, counted)
    return None if inner is None else Many(inner, one.size)


def decoder_of(name: str, definition: str, form: str, /, *, cdr: bool) -> RosDecoder:
    """The decoder of a type.

    Args:
        name: The type, as `sensor_msgs/Imu` or `sensor_msgs/msg/Imu`.
        definition: Its definition with those of the types in it; empty: the one that ROS itself has.
        form: `ros2idl` for IDL, anything else for `.msg`.
        cdr: Whether messages are ROS 2's CDR.

    Raises:
        InvalidMetadataError: The definition cannot be used, or there is none.
    """
    if len(definition) > _MOST_DEFINITION:
        raise InvalidMetadataError(f"The definition of {name!r} has {len(definition):,} characters.")
    if form not in {"ros2idl", "omgidl"}:
        root, types = _parsed_msg(name, definition, "cdr" if cdr else "ros1")
    else:
        root, types = _parsed_idl(name, definition)
    return RosDecoder(root=root, types=_reached(root, types), cdr=cdr)


def _full(name: str) -> str:
    parts = name.split("/")
    return name if len(parts) != 2 else f"{parts[0]}/msg/{parts[1]}"


@lru_cache(maxsize=256)
def _parsed_msg(name: str, definition: str, form: str) -> tuple[str, dict[str, Fields]]:
    root = _full(name)
    known = _standard(form)
    if not definition.strip() and root in known:
        return root, known
    if not definition.strip() and name.rpartition("/")[2] != "Empty":
        raise InvalidMetadataError(f"The recording does not define {name!r}, and ROS itself has no such type.")
    parsers = require("rosbags.typesys", extra="mcap")
    types = dict(known)
    blocks = _LINES.split(definition.replace("\r\n", "\n"))
    texts = [(root, blocks[0])]
    for block in blocks[1:]:
        head, _, text = block.strip("\n").partition("\n")
        if head.startswith("MSG:"):
            texts.append((_full(head[4:].strip()), text))
    for one, text in texts:
        try:
            parsed = parsers.get_types_from_msg(text + "\n", one)
            types |= {key: _fields(fields) for key, (_, fields) in parsed.items()}
        except _errors() as error:
            raise InvalidMetadataError(in_line(f"The definition of {one!r} cannot be read: {error!s:.200}")) from None
    return root, types


@lru_cache(maxsize=256)
def _parsed_idl(name: str, definition: str) -> tuple[str, dict[str, Fields]]:
    parsers = require("rosbags.typesys", extra="mcap")
    types = dict(_standard("cdr"))
    blocks = _LINES.split(definition.replace("\r\n", "\n"))
    for block in blocks:
        head, _, rest = block.strip("\n").partition("\n")
        text = rest if head.startswith("IDL:") else block
        if not text.strip():
            continue
        try:
            types |= {key: _fields(fields) for key, (_, fields) in parsers.get_types_from_idl(text).items()}
        except _errors() as error:
            raise InvalidMetadataError(in_line(f"The IDL of {name!r} cannot be read: {error!s:.200}")) from None
    return _full(name), types


def _errors() -> tuple[type[Exception], ...]:
    """What rosbags raises where a definition is none."""
    base = require("rosbags.typesys.base", extra="mcap")
    plain = (InvalidMetadataError, RecursionError, ValueError, KeyError, AssertionError, TypeError, IndexError)
    return *plain, AttributeError, base.TypesysError


@lru_cache(maxsize=2)
def _standard(form: str) -> dict[str, Fields]:
    """The types that ROS itself has."""
    stores = require("rosbags.typesys", extra="mcap")
    store = stores.get_typestore(getattr(stores.Stores, _DEFAULTS[form]))
    types = {}
    for name, (_, fields) in store.fielddefs.items():
        try:
            types[name] = _fields(fields)
        except InvalidMetadataError:
            continue  # with a kind of field that is not read
    return types


def _fields(fields: Any) -> Fields:
    return tuple((str(label), _described(one)) for label, one in fields)


def _described(one: Any) -> _Base | _Named | _List:
    """A field as rosbags describes it: (1, (name, length)), (2, name), (3 or 4, (inner, length))."""
    code, value = int(one[0]), one[1]
    if code == 1:
        name = "string" if value[0] == "string" else _NUMBERS.get(value[0])
        if name is None:
            raise InvalidMetadataError(f"a field of type {value[0]!r}, which is not read")
        return _Base(name)
    if code == 2:
        return _Named(str(value))
    inner = _described(value[0])
    if isinstance(inner, _List):
        raise InvalidMetadataError("a list of lists, which is not read")
    return _List(inner, int(value[1]) if code == 3 else None)


def _reached(root: str, types: Mapping[str, Fields]) -> dict[str, Fields]:
    """The types that a type consists of; each is there."""
    reached: dict[str, Fields] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in reached or name in _TIMES:
            continue
        if name not in types:
            raise InvalidMetadataError(f"The definition of {root!r} names the type {name!r} and does not define it.")
        reached[name] = types[name] or ((_EMPTY, _Base("uint8")),)
        for _, one in types[name]:
            inner = one.of if isinstance(one, _List) else one
            if isinstance(inner, _Named):
                waiting.append(inner.name)
    return reached


def octets_of(value: Any, /) -> bytes:
    """Bytes, which ROS has as a list of numbers."""
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)
