"""The protobuf schemas of exported messages: those of Foxglove for pictures and packets, one a column for signals."""

from __future__ import annotations

import keyword
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from seqlake.plugins import require

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE, VIDEO = "foxglove.CompressedImage", "foxglove.CompressedVideo"
STAMP = "timestamp"
VALUES = "values"
_PACKAGE = "seqlake"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPES = {"float64": 1, "float32": 2, "float16": 2, "int64": 3, "uint64": 4, "bool": 8, "text": 9}
_TYPES |= dict.fromkeys(("int8", "int16", "int32"), 5) | dict.fromkeys(("uint8", "uint16", "uint32"), 13)
_BYTES, _MESSAGE, _OPTIONAL, _REPEATED = 12, 11, 1, 3
_TIMESTAMP = "google/protobuf/timestamp.proto"


@lru_cache(maxsize=512)
def schema_of(name: str, fields: tuple[tuple[str, int, int, bool], ...], /) -> bytes:
    """A serialized `FileDescriptorSet` of one message with a timestamp.

    Args:
        name: The message's full name, as `foxglove.CompressedImage`.
        fields: (name, type, number, whether it is repeated) of each field besides `timestamp`, which is number 1.
    """
    descriptors = require("google.protobuf.descriptor_pb2", extra="mcap")
    package, _, short = name.rpartition(".")
    stamps = descriptors.FileDescriptorProto(name=_TIMESTAMP, package="google.protobuf", syntax="proto3")
    stamp = stamps.message_type.add(name="Timestamp")
    stamp.field.add(name="seconds", number=1, type=3, label=_OPTIONAL)
    stamp.field.add(name="nanos", number=2, type=5, label=_OPTIONAL)
    file = descriptors.FileDescriptorProto(
        name=f"{package}/{short}.proto", package=package, syntax="proto3", dependency=[_TIMESTAMP]
    )
    message = file.message_type.add(name=short)
    message.field.add(name=STAMP, number=1, type=_MESSAGE, type_name=".google.protobuf.Timestamp", label=_OPTIONAL)
    for label, kind, number, many in fields:
        message.field.add(name=label, number=number, type=kind, label=_REPEATED if many else _OPTIONAL)
    whole: bytes = descriptors.FileDescriptorSet(file=[stamps, file]).SerializeToString()
    return whole


def picture_schema(name: str, /) -> bytes:
    """The schema of Foxglove's messages of one encoded picture, or of the packet of one frame."""
    order = {IMAGE: {"data": 2, "format": 3, "frame_id": 4}, VIDEO: {"frame_id": 2, "data": 3, "format": 4}}[name]
    kinds = {"data": _BYTES, "format": 9, "frame_id": 9}
    return schema_of(name, tuple((label, kinds[label], number, False) for label, number in order.items()))


def signal_schema(column: str, dtype: str, names: Sequence[str] | None, /) -> tuple[str, bytes, tuple[str, ...]]:
    """(name, schema, fields) of the messages of a signal.

    Args:
        column: Its name.
        dtype: numpy's name of its numbers, or `text`.
        names: One field for each of these, where protobuf takes all of them as names; else one list of `values`.
    """
    short = re.sub(r"[^A-Za-z0-9_]", "_", column)
    full = f"{_PACKAGE}.{short if _NAME.fullmatch(short) else f'_{short}'}"
    kind = _TYPES[dtype]
    plain = names is not None and len(set(names)) == len(names) > 0 and all(map(_fits, names))
    if names is None or not plain:
        return full, schema_of(full, ((VALUES, kind, 2, True),)), (VALUES,)
    return full, schema_of(full, tuple((one, kind, place + 2, False) for place, one in enumerate(names))), tuple(names)


def _fits(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name != STAMP and not keyword.iskeyword(name) and len(name) < 200


def stamped(message: Any, nanoseconds: int, /) -> Any:
    """The message with its time."""
    message.timestamp.seconds, message.timestamp.nanos = divmod(nanoseconds, 1_000_000_000)
    return message
