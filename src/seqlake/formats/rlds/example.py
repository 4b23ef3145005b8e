"""`tf.train.Example` off the wire: which features a record has, and their values.

```text
Example  { features = 1: Features }
Features { feature  = 1: map<string, Feature> }          an entry is { key = 1, value = 2 }
Feature  { bytes_list = 1 | float_list = 2 | int64_list = 3 }, each { value = 1, repeated }
```

Parsing keeps positions only; what a caller does not ask for is never looked into.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from seqlake.formats.rlds.features import Feature

BYTES, FLOATS, INTS = 1, 2, 3
_NAMES = {0: "nothing", BYTES: "bytes", FLOATS: "floats", INTS: "integers"}
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class FeatureValues:
    """One feature of one record: its kind, and where its list lies in the record."""

    record: memoryview
    kind: int
    spans: tuple[tuple[int, int], ...]

    def bytes(self) -> list[memoryview]:
        """The elements of a bytes list."""
        self._expect(BYTES)
        return [self.record[a:b] for start, stop in self.spans for wire, a, b in _ones(self.record, start, stop, BYTES)]

    def floats(self) -> NDArray[np.float32]:
        """[n] the elements of a float list."""
        self._expect(FLOATS)
        return _joined([np.frombuffer(self.record[a:b], "<f4") for a, b in self._chunks(FLOATS, 4)], np.float32)

    def ints(self) -> NDArray[np.int64]:
        """[n] the elements of an int64 list."""
        self._expect(INTS)
        return _joined([varints(self.record[a:b]) for a, b in self._chunks(INTS, 1)], np.int64)

    def packed(self) -> tuple[int, int] | None:
        """Where the floats lie in one piece, counted from the start of the record; None if they do not."""
        if self.kind != FLOATS:
            return None
        chunks = list(self._chunks(FLOATS, 4))
        return (0, 0) if not chunks else chunks[0] if len(chunks) == 1 else None

    def count(self) -> int:
        """The number of elements, without decoding them."""
        if self.kind == BYTES:
            return len(self.bytes())
        if self.kind == FLOATS:
            return sum(b - a for a, b in self._chunks(FLOATS, 4)) // 4
        chunks = self._chunks(INTS, 1) if self.kind == INTS else ()
        return sum(int(np.count_nonzero(np.frombuffer(self.record[a:b], np.uint8) < 0x80)) for a, b in chunks)

    def _expect(self, kind: int) -> None:
        # A feature without values may be written as no list at all.
        if self.kind not in {0, kind}:
            raise CorruptFileError(f"{_NAMES[kind]} were expected, {_NAMES[self.kind]} are stored.")

    def _chunks(self, kind: int, width: int) -> Iterator[tuple[int, int]]:
        for start, stop in self.spans:
            for wire, a, b in _ones(self.record, start, stop, kind):
                if wire == _DELIMITED and (b - a) % width:
                    raise CorruptFileError(f"{b - a} bytes of floats are not a whole number of them.")
                if a != b:
                    yield a, b


NOTHING = FeatureValues(memoryview(b""), 0, ())


def parse(record: memoryview, /) -> dict[str, FeatureValues]:
    """The features of one serialized `tf.train.Example`.

    Raises:
        CorruptFileError: The bytes are not an Example.
    """
    features: dict[str, FeatureValues] = {}
    for number, wire, start, stop in _fields(record, 0, len(record)):
        if (number, wire) != (1, _DELIMITED):
            continue
        for inner, inner_wire, a, b in _fields(record, start, stop):
            if (inner, inner_wire) == (1, _DELIMITED):
                key, values = _entry(record, a, b)
                features[key] = values  # as protobuf maps do, the last of equal keys stays
    return features


def _entry(record: memoryview, start: int, stop: int) -> tuple[str, FeatureValues]:
    key, kind = "", 0
    spans: list[tuple[int, int]] = []
    for number, wire, a, b in _fields(record, start, stop):
        if (number, wire) == (1, _DELIMITED):
            try:
                key = str(record[a:b], "utf-8")
            except UnicodeDecodeError as error:
                raise CorruptFileError("The name of a feature is not UTF-8.") from error
        elif (number, wire) == (2, _DELIMITED):
            for list_kind, list_wire, c, d in _fields(record, a, b):
                if list_kind in _NAMES and list_wire == _DELIMITED:
                    if list_kind != kind:
                        kind, spans = list_kind, []  # one kind only: the last one counts
                    spans.append((c, d))
    return key, FeatureValues(record, kind, tuple(spans))


def _ones(record: memoryview, start: int, stop: int, kind: int) -> Iterator[tuple[int, int, int]]:
    """(wire type, start, stop) of the elements, or packed runs of elements, of a list."""
    scalar = {BYTES: _DELIMITED, FLOATS: _FIXED32, INTS: _VARINT}[kind]
    for number, wire, a, b in _fields(record, start, stop):
        if number == 1 and wire in {scalar, _DELIMITED}:
            yield wire, a, b


def _fields(record: memoryview, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, wire type, start, stop) of each field of one message."""
    while at < stop:
        tag, at = _varint(record, at, stop)
        wire, start = tag & 7, at
        if wire == _DELIMITED:
            length, start = _varint(record, at, stop)
            at = start + length
        elif wire == _VARINT:
            at = _varint(record, at, stop)[1]
        elif wire in {_FIXED32, _FIXED64}:
            at += 4 if wire == _FIXED32 else 8
        else:
            raise CorruptFileError(f"Byte {at} has wire type {wire}, which no tf.train.Example uses.")
        if at > stop:
            raise CorruptFileError(f"A field at byte {start} reaches {at - stop} bytes too far.")
        yield tag >> 3, wire, start, at


def _varint(record: memoryview, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 70:
        byte = record[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise CorruptFileError(f"A number at byte {at} has no end.")


def varints(data: memoryview, /) -> NDArray[np.int64]:
    """[n] packed varints, all at once.

    Raises:
        CorruptFileError: The last one has no end, or one is longer than ten bytes.
    """
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == raw.size:  # numbers below 128, as flags and small counts are
        return raw.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    lengths = ends - starts + 1
    if not ends.size or ends[-1] != raw.size - 1 or lengths.max() > 10:
        raise CorruptFileError("A packed integer has no end.")
    values = np.zeros(ends.size, np.uint64)
    for byte in range(int(lengths.max())):
        has = np.flatnonzero(lengths > byte)
        values[has] |= (raw[starts[has] + byte].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * byte)
    return values.view(np.int64)


def serialized(features: Mapping[str, tuple[int, Any]], /) -> bytes:
    """One `tf.train.Example`, its features in the order of their names.

    Args:
        features: Name -> kind and values: a list of bytes, or an array of floats or of integers.
    """
    entries = []
    for name in sorted(features):
        kind, values = features[name]
        if kind == BYTES:
            body = b"".join(_delimited(1, one) for one in values)
        elif kind == FLOATS:
            body = _delimited(1, np.ascontiguousarray(values, "<f4").tobytes()) if len(values) else b""
        else:
            body = _delimited(1, packed_varints(values)) if len(values) else b""
        entries.append(_delimited(1, _delimited(1, name.encode()) + _delimited(2, _delimited(kind, body))))
    return _delimited(1, b"".join(entries))


def _delimited(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | _DELIMITED]) + packed_varints(np.array([len(data)], np.int64)) + data


def packed_varints(values: NDArray[np.int64], /) -> bytes:
    r"""Integers as varints, one behind the other; negative ones take ten bytes.

    Example:
        >>> packed_varints(np.array([1, 300])).hex()
        '01ac02'
    """
    rest = np.ascontiguousarray(values, np.int64).view(np.uint64)
    if not rest.size or int(rest.max()) < 0x80:
        return rest.astype(np.uint8).tobytes()
    limits = np.array([1 << 7 * count for count in range(1, 10)], np.uint64)
    lengths = np.searchsorted(limits, rest, side="right") + 1
    starts = np.concatenate([[0], np.cumsum(lengths)])
    out = np.empty(int(starts[-1]), np.uint8)
    for byte in range(int(lengths.max())):
        has = np.flatnonzero(lengths > byte)
        more = np.where(lengths[has] > byte + 1, 0x80, 0).astype(np.uint64)
        out[starts[has] + byte] = (rest[has] >> np.uint64(7 * byte) & np.uint64(0x7F) | more).astype(np.uint8)
    return out.tobytes()


def stored(feature: Feature, values: NDArray[Any], /) -> tuple[int, Any]:
    """Numbers of a tensor feature as a record holds them: what `numbers` reads.

    Args:
        feature: Its dtype, shape and encoding.
        values: [n, ...] whole values of it.

    Raises:
        ValueError: Integers that the dtype does not hold.
    """
    dtype = np.dtype(feature.dtype)
    if dtype.kind in "iu" and values.size:
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > min(limits.max, np.iinfo(np.int64).max):
            raise ValueError(f"{feature.path!r} is {dtype}; found {values.min()} to {values.max()}")
    if feature.encoding != "none":
        rows = np.ascontiguousarray(values, dtype.newbyteorder("<")).reshape(-1, feature.size)
        cells = [row.tobytes() for row in rows]
        return BYTES, [zlib.compress(cell) for cell in cells] if feature.encoding == "zlib" else cells
    flat = np.ascontiguousarray(values).reshape(-1)
    return (FLOATS, flat.astype(np.float32)) if dtype.kind == "f" else (INTS, flat.astype(np.int64))


def _joined(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def steps_of(feature: Feature, values: FeatureValues, /) -> int:
    """The number of steps a step feature has, without decoding it.

    Raises:
        CorruptFileError: Its numbers do not make whole steps.
    """
    count = values.count()
    per_step = feature.size if feature.kind == "tensor" and feature.encoding == "none" else 1
    if count % per_step:
        raise CorruptFileError(f"{feature.path!r} has {count} numbers, which are not whole steps of {per_step}.")
    return count // per_step


def numbers(feature: Feature, values: FeatureValues, /) -> NDArray[Any]:
    """[n * size] the numbers of a tensor feature, in the dtype that `features.json` declares.

    tfds keeps every float as float32 and every integer as int64; the declared dtype is what tfds itself hands out.

    Raises:
        CorruptFileError: Values of another kind, outside the dtype, or not whole.
    """
    dtype = np.dtype(feature.dtype)
    if feature.encoding != "none":
        parts = [_decoded(feature, dtype, bytes(cell)) for cell in values.bytes()]
        return np.concatenate(parts) if parts else np.empty(0, dtype)
    if dtype.kind == "f":
        stored: NDArray[Any] = values.floats()
    elif dtype == np.uint64:
        stored = values.ints().view(np.uint64)  # stored by their bits, since records hold int64
    else:
        stored = values.ints()
        limits = np.iinfo(dtype)
        if stored.size and (stored.min() < limits.min or stored.max() > limits.max):
            raise CorruptFileError(f"{feature.path!r} is {dtype} but holds {stored.min()} to {stored.max()}.")
    if stored.size % feature.size:
        raise CorruptFileError(f"{feature.path!r} has {stored.size} numbers, not whole values of {feature.size}.")
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, as in tfds
        return stored.astype(dtype, copy=False)


def _decoded(feature: Feature, dtype: np.dtype[Any], cell: bytes) -> NDArray[Any]:
    expected = feature.size * dtype.itemsize
    if feature.encoding == "zlib":
        try:
            # A few bytes can claim to be gigabytes: never more than the shape needs.
            cell = zlib.decompressobj().decompress(cell, expected + 1)
        except zlib.error as error:
            raise CorruptFileError(f"{feature.path!r} is not zlib: {error}.") from error
    if len(cell) != expected:
        raise CorruptFileError(
            f"{feature.path!r} has a value of {len(cell)} bytes; {dtype} {list(feature.shape)} has {expected}."
        )
    return np.frombuffer(cell, dtype.newbyteorder("<")).astype(dtype, copy=False)
