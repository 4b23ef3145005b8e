"""The columns of a Lance dataset by their numbers, which stay when names change; and its next schema.

Lance's package makes a schema out of an Arrow one with numbers of its own choice, so a changed schema is put together
out of the messages that a schema pickles to. Format: `Field` in Lance's `file.proto`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.tables._lakes.types import PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_NAME, _ID, _PARENT = 2, 3, 4  # numbers in `Field`
_MAX_FRAGMENT = 11  # in `Manifest`
_TOP = -1


def names_now(schema: Any, /) -> dict[int, str]:
    """Number of each column and of those inside it -> the name of the column; `schema`: a `LanceSchema`."""
    return {number: field.name() for field in schema.fields() for number in _inside(field)}


def _inside(field: Any) -> Iterator[int]:
    yield field.id()
    for child in field.children():
        yield from _inside(child)


def numbers_in(field: Any, /, *, whole: bool) -> list[int]:
    """The numbers that a file of this column has: of all inside it, or (since format 2.1) of the innermost only."""
    inside = [number for child in field.children() for number in numbers_in(child, whole=whole)]
    return [field.id(), *inside] if whole or not inside else inside


def evolved(
    before: Any, arrow: pa.Schema | None, mixtrain: str | None, renamed: Mapping[str, str], first: int, /
) -> Any:
    """The next schema of a dataset.

    Args:
        before: A `LanceSchema`.
        arrow: The new columns; None leaves them.
        mixtrain: The new property; None leaves it.
        renamed: Old name -> new one.
        first: The first number that no column ever had.

    Raises:
        SchemaMismatchError: A column that stays has another type.
    """
    again, (metadata, *fields) = before.__reduce__()
    if mixtrain is not None:
        metadata = json.dumps({**json.loads(metadata), PROPERTY: list(mixtrain.encode())})
    if arrow is not None:
        fields = _columns(before, fields, arrow, renamed, first)
    return again(metadata, *fields)


def _columns(
    before: Any, fields: Sequence[bytes], arrow: pa.Schema, renamed: Mapping[str, str], first: int
) -> list[bytes]:
    kept = {renamed.get(field.name(), field.name()): field for field in before.fields()}
    of = {_signed(_varint_of(field, _ID)): field for field in fields}
    held, messages = before.to_pyarrow(), []
    for field in arrow:
        column = kept.get(field.name)
        if column is None:
            new = list(type(before).from_pyarrow(pa.schema([field])).__reduce__()[1][1:])
            messages += [_shifted(one, first) for one in new]
            first += len(new)
            continue
        if held.field(column.name()).type != field.type:
            raise SchemaMismatchError(
                f"Column {field.name!r} is {held.field(column.name()).type} in the Lance dataset; it cannot become "
                f"{field.type}.",
                hint="Add a column of the new type, fill it, and drop the old one.",
            )
        numbers = list(_inside(column))
        messages += [_with(of[numbers[0]], {_NAME: field.name.encode()}), *(of[number] for number in numbers[1:])]
    return messages


def most_fragments(manifest: bytes, /) -> int:
    """The number of the last fragment that a dataset ever had; -1 for none."""
    return next((value for number, value, _ in _walk(manifest) if number == _MAX_FRAGMENT), -1)  # type: ignore[return-value]


def _shifted(message: bytes, by: int) -> bytes:
    parent = _signed(_varint_of(message, _PARENT))
    moved = {_ID: _signed(_varint_of(message, _ID)) + by, _PARENT: parent if parent == _TOP else parent + by}
    return _with(message, moved)


def _with(message: bytes, values: Mapping[int, int | bytes]) -> bytes:
    """A message with other values of some of its fields."""
    kept = [raw for number, _, raw in _walk(message) if number not in values]
    return b"".join([*kept, *(_encoded(number, value) for number, value in values.items())])


def _encoded(number: int, value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    return _varint(number << 3) + _varint(value & (1 << 64) - 1)


def _varint_of(message: bytes, wanted: int) -> int:
    return next((value for number, value, _ in _walk(message) if number == wanted and isinstance(value, int)), 0)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _walk(message: bytes) -> Iterator[tuple[int, int | bytes, bytes]]:
    """(number, value, all bytes) of each field of a protobuf message."""
    at = 0
    while at < len(message):
        start = at
        tag, at = _read_varint(message, at)
        kind, value = tag & 7, b""
        if kind == 0:
            number, at = _read_varint(message, at)
            yield tag >> 3, number, message[start:at]
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _read_varint(message, at)
        value, at = message[at : at + size], at + size
        yield tag >> 3, value, message[start:at]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])
