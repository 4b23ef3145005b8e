"""Thrift's compact protocol, as much as Parquet's own metadata needs; every read is bounded.

`IndexError` means that the bytes ended, `ValueError` that they are something else.
"""

from __future__ import annotations

from typing import Any

_DEEPEST = 12  # structs and lists in each other: Parquet has six


def read_struct(data: bytes, /) -> tuple[dict[int, Any], int]:
    """Decode the struct at the start of `data`.

    Returns:
        Field number -> value (strings and doubles as None: nobody here needs them), and the struct's bytes.
    """
    return _struct(data, 0, 0)


def read_varint(data: bytes, at: int, /) -> tuple[int, int]:
    """The variable-length integer at `at`, and where the next byte is."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an integer too long")


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if depth > _DEEPEST:
        raise ValueError("structs too deep")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[at]
        at += 1
        if head == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            zigzag, at = read_varint(data, at)
            number = (zigzag >> 1) ^ -(zigzag & 1)
        kind = head & 0x0F
        if kind in {1, 2}:  # a boolean lies in the field's head
            fields[number] = kind == 1
        else:
            fields[number], at = _value(data, at, kind, depth)


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in {4, 5, 6}:  # i16, i32, i64
        zigzag, at = read_varint(data, at)
        return (zigzag >> 1) ^ -(zigzag & 1), at
    if kind == 12:
        return _struct(data, at, depth + 1)
    if kind in {1, 2, 3}:  # a byte, or a boolean inside a container
        return data[at], at + 1
    if kind in {7, 8}:  # double, binary: the bytes themselves are never needed
        length, at = (8, at) if kind == 7 else read_varint(data, at)
        if at + length > len(data):
            raise IndexError
        return None, at + length
    if kind in {9, 10}:
        return _elements(data, at, depth)
    raise ValueError(f"a field of type {kind}")


def _elements(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if depth > _DEEPEST:
        raise ValueError("lists too deep")
    head = data[at]
    at += 1
    size = head >> 4
    if size == 15:
        size, at = read_varint(data, at)
    found = []
    for _ in range(size):
        value, at = _value(data, at, head & 0x0F, depth + 1)
        found.append(value)
    return found, at
