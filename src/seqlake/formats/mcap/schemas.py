"""The decoders of all encodings by their names in the file: JSON, protobuf, ROS 1 and ROS 2."""

from __future__ import annotations

import base64
import binascii
import json
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError, InvalidMetadataError, in_line
from seqlake.formats.mcap import ros
from seqlake.formats.mcap.kinds import MOST_DEPTH, MOST_FIELDS, Group, Kind, Many, Moment, Number, Octets, Words
from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from seqlake.formats.mcap.kinds import MessageDecoder
    from seqlake.formats.mcap.logs import Topic

ENCODINGS = ("json", "protobuf", "ros1", "cdr")
_SECOND = 1_000_000_000
_TIMES = {"google.protobuf.Timestamp", "google.protobuf.Duration"}
_MOST_SCHEMA = 16 << 20  # bytes


def decoder_of(topic: Topic, first: memoryview | None, /) -> MessageDecoder:
    """The decoder of a topic's messages.

    Args:
        topic: Its encoding and schema.
        first: A message of it; JSON needs one, since schemas say less than messages.

    Raises:
        InvalidMetadataError: The encoding is not read, or the schema cannot be used.
    """
    if len(topic.schema) > _MOST_SCHEMA:
        raise InvalidMetadataError(f"the schema {topic.type!r} has {len(topic.schema):,} bytes")
    if topic.encoding == "json":
        return _json_decoder(topic, first)
    if topic.encoding == "protobuf":
        decoder = ProtobufDecoder(name=topic.type, files=topic.schema)
        _ = decoder.kind
        return decoder
    if topic.encoding in {"ros1", "cdr"}:
        try:
            text = topic.schema.decode()
        except UnicodeDecodeError:
            raise InvalidMetadataError(f"the definition of {topic.type!r} is no text") from None
        return ros.decoder_of(topic.type, text, topic.form, cdr=topic.encoding == "cdr")
    raise InvalidMetadataError(
        f"messages are encoded as {topic.encoding or 'nothing'!r}; {', '.join(ENCODINGS)} are read"
    )


# ---- JSON
@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """Messages that are JSON objects; picklable.

    Attributes:
        kind: What the schema and a message say of their fields.
    """

    kind: Group

    def decode(self, data: memoryview, /) -> dict[str, Any]:
        """One message; CorruptFileError where it is no JSON object, or not of these fields."""
        try:
            value = json.loads(bytes(data))
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"a message is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise CorruptFileError(f"a message is {type(value).__name__}, where a JSON object was expected")
        plain = _plain(value, self.kind)
        assert isinstance(plain, dict)
        return plain


def _json_decoder(topic: Topic, first: memoryview | None) -> JsonDecoder:
    schema: Any = {}
    if topic.schema:
        try:
            schema = json.loads(topic.schema)
        except (ValueError, RecursionError) as error:
            raise InvalidMetadataError(f"the schema {topic.type!r} is no JSON: {error}") from None
    sample: Any = {}
    if first is not None:
        try:
            sample = json.loads(bytes(first))
        except (ValueError, RecursionError):
            sample = {}  # who reads it meets the error
    kind = _json_kind(sample, schema if isinstance(schema, dict) else {}, 0, [0])
    fields = kind.fields if isinstance(kind, Group) else {}
    return JsonDecoder(kind=Group(topic.type, fields))


def _json_kind(sample: Any, schema: Mapping[str, Any], depth: int, counted: list[int]) -> Kind | None:
    """The kind of a value as its schema says, and where that is silent as a sample is."""
    counted[0] += 1
    if depth > MOST_DEPTH or counted[0] > MOST_FIELDS:
        return None
    declared = schema.get("type")
    declared = next((one for one in declared if one != "null"), None) if isinstance(declared, list) else declared
    if isinstance(sample, dict) or declared == "object":
        return _json_group(sample, schema, depth, counted)
    if isinstance(sample, list) or declared == "array":
        items = schema.get("items")
        first = sample[0] if isinstance(sample, list) and sample else None
        inner = _json_kind(first, items if isinstance(items, dict) else {}, depth + 1, counted)
        return None if inner is None else Many(inner)
    if declared == "string" or isinstance(sample, str):
        return Octets() if schema.get("contentEncoding") == "base64" else Words()
    if declared == "boolean" or isinstance(sample, bool):
        return Number("bool")
    if declared == "integer":
        return Number("int64")
    # JSON writes 1.0 as 1: what is no integer by its schema is a number.
    return Number("float64") if declared == "number" or isinstance(sample, int | float) else None


def _json_group(sample: Any, schema: Mapping[str, Any], depth: int, counted: list[int]) -> Kind | None:
    declared = schema.get("properties")
    declared = declared if isinstance(declared, dict) else {}
    values = sample if isinstance(sample, dict) else {}
    names = dict.fromkeys((*declared, *values))
    if set(names) == {"sec", "nsec"}:
        return Moment()
    fields: dict[str, Kind] = {}
    for name in names:
        inner = declared.get(name)
        kind = _json_kind(values.get(name), inner if isinstance(inner, dict) else {}, depth + 1, counted)
        if kind is not None:
            fields[str(name)] = kind
    return Group(str(schema.get("title", "")), fields)


def _plain(value: Any, kind: Kind) -> Any:
    """A value of JSON in the plain form of its kind; None where it is null or absent."""
    if value is None:
        return None
    try:
        if isinstance(kind, Group):
            return {name: _plain(value.get(name), inner) for name, inner in kind.fields.items()}
        if isinstance(kind, Many):
            return _plain_list(value, kind)
        if isinstance(kind, Moment):
            return int(value["sec"]) * _SECOND + int(value["nsec"])
        if isinstance(kind, Number):
            return _plain_number(value, kind)
        if isinstance(kind, Octets):
            return base64.b64decode(value, validate=True)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, binascii.Error) as error:
        raise CorruptFileError(f"a message has {value!r:.60}, where {_named(kind)} was expected: {error}") from None
    if not isinstance(value, str):
        raise CorruptFileError(f"a message has {value!r:.60}, where text was expected")
    return value


def _plain_list(value: Any, kind: Many) -> Any:
    if not isinstance(value, list):
        raise TypeError(type(value).__name__)
    if isinstance(kind.of, Number):
        return np.array([_plain_number(one, kind.of) for one in value], kind.of.dtype)
    return [_plain(one, kind.of) for one in value]


def _plain_number(value: Any, kind: Number) -> Any:
    if kind.dtype == "bool":
        if not isinstance(value, bool):
            raise TypeError("true or false")
        return value
    if value is None or value in ("NaN", "Infinity", "-Infinity"):  # as protobuf's JSON spells them
        return math.nan if value is None else float(value)
    if isinstance(value, bool | str | list | dict):
        raise TypeError(type(value).__name__)
    return int(value) if kind.dtype == "int64" and int(value) == value else float(value)


def _named(kind: Kind) -> str:
    names = {Group: "an object", Many: "a list", Moment: "a time", Number: "a number", Octets: "bytes in base64"}
    return names.get(type(kind), "text")


# ---- protobuf
@dataclass(frozen=True, kw_only=True)
class ProtobufDecoder:
    """Messages of protobuf; picklable.

    Attributes:
        name: The type, as `foxglove.RawImage`.
        files: A serialized `FileDescriptorSet` that defines it.
    """

    name: str
    files: bytes = field(repr=False)

    @cached_property
    def kind(self) -> Group:
        """What messages hold; a type inside itself, maps and groups are left out."""
        return _proto_group(message_class(self.name, self.files).DESCRIPTOR, (), [0])

    def decode(self, data: memoryview, /) -> dict[str, Any]:
        """One message; CorruptFileError where the bytes are none."""
        message = message_class(self.name, self.files)()
        errors = require("google.protobuf.message", extra="mcap")
        try:
            message.ParseFromString(bytes(data))
        except (errors.DecodeError, ValueError, RecursionError) as error:
            raise CorruptFileError(f"a message of {self.name} cannot be read: {error}") from None
        return _proto_values(message, 0)


@lru_cache(maxsize=256)
def message_class(name: str, files: bytes, /) -> Any:
    """The class of a message by its full name and a serialized `FileDescriptorSet`; InvalidMetadataError."""
    descriptors = require("google.protobuf.descriptor_pb2", extra="mcap")
    pools = require("google.protobuf.descriptor_pool", extra="mcap")
    factory = require("google.protobuf.message_factory", extra="mcap")
    try:
        held = descriptors.FileDescriptorSet.FromString(files)
        pool = pools.DescriptorPool()
        for one in _in_order(held.file):
            pool.Add(one)
        return factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except Exception as error:  # noqa: BLE001 - protobuf raises errors of many classes, its own and TypeError among them
        raise InvalidMetadataError(in_line(f"the protobuf schema {name!r} cannot be used: {error!s:.200}")) from None


def _in_order(files: Iterable[Any]) -> list[Any]:
    """Files after those that they import."""
    known = {one.name: one for one in files}
    ordered: dict[str, Any] = {}
    waiting = [(one, False) for one in reversed(known)]
    open_ones: set[str] = set()
    while waiting:
        name, done = waiting.pop()
        if name in ordered or name not in known:
            continue
        if done:
            ordered[name] = known[name]
        elif name not in open_ones:
            open_ones.add(name)
            waiting.append((name, True))
            waiting += [(one, False) for one in known[name].dependency]
    return list(ordered.values())


_PROTO = {1: "float64", 2: "float32", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 7: "uint32", 8: "bool"}
_PROTO |= {13: "uint32", 15: "int32", 16: "int64", 17: "int32", 18: "int64"}
_STRING, _GROUP, _MESSAGE, _BYTES, _ENUM = 9, 10, 11, 12, 14


def _proto_group(descriptor: Any, above: tuple[str, ...], counted: list[int]) -> Group:
    fields: dict[str, Kind] = {}
    for one in descriptor.fields:
        counted[0] += 1
        kind = _proto_kind(one, (*above, descriptor.full_name), counted)
        if kind is not None:
            fields[one.name] = Many(kind) if _repeated(one) else kind
    return Group(descriptor.full_name, fields)


def _repeated(one: Any) -> bool:
    try:
        return bool(one.is_repeated)
    except AttributeError:  # before protobuf 6.31
        return bool(one.label == 3)


def _proto_kind(one: Any, above: tuple[str, ...], counted: list[int]) -> Kind | None:
    if counted[0] > MOST_FIELDS or len(above) > MOST_DEPTH:
        return None
    if one.type == _MESSAGE:
        inner = one.message_type
        if inner.full_name in _TIMES:
            return Moment()
        if inner.full_name in above or inner.GetOptions().map_entry:
            return None
        return _proto_group(inner, above, counted)
    if one.type == _ENUM:
        return Number("int32", {value.number: value.name for value in one.enum_type.values})
    if one.type in {_STRING, _BYTES}:
        return Words() if one.type == _STRING else Octets()
    return Number(_PROTO[one.type]) if one.type in _PROTO else None


def _proto_values(message: Any, depth: int) -> dict[str, Any]:
    if depth > MOST_DEPTH:
        return {}
    values: dict[str, Any] = {}
    for one in message.DESCRIPTOR.fields:
        value = getattr(message, one.name)
        if one.type == _MESSAGE:
            if one.message_type.GetOptions().map_entry:
                continue
            values[one.name] = [_inner(item, depth) for item in value] if _repeated(one) else _inner(value, depth)
        elif not _repeated(one):
            values[one.name] = value
        elif one.type in {_STRING, _BYTES}:
            values[one.name] = list(value)
        else:
            values[one.name] = np.array(value, _PROTO.get(one.type, "int32"))
    return values


def _inner(message: Any, depth: int) -> Any:
    if message.DESCRIPTOR.full_name in _TIMES:
        return message.seconds * _SECOND + message.nanos
    return _proto_values(message, depth + 1)
