"""Opens the file behind a reference and says what it shows of itself, without decoding more than a header."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import CorruptFileError, DecodeError, SeqlakeError, UnsafeReferenceError
from seqlake.files import locations, stores
from seqlake.media import PICTURES, BlobBytes, blob_of, format_of, hint
from seqlake.media.image import describe, handed_out, orientation
from seqlake.protocols import Source
from seqlake.spec.column_types import ColumnType
from seqlake.spec.rules.facts import CellFacts, FileFacts, Times
from seqlake.spec.rules.references import is_relative, leaves_root

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from seqlake.media.video import VideoDecoder
    from seqlake.protocols import Blob, Copied

HEAD = 1 << 16
"""Bytes that are enough for all but a JPEG with large notes before its picture."""

_SEGMENT = b"\x18\x53\x80\x67"


def is_cut(between: Callable[[int, int], bytes], size: int, /) -> bool:
    """Whether a container says that it is longer than it is: MP4, AVI, WAV and Matroska.

    Args:
        between: Gives the bytes from one place to another.
        size: Of the file.
    """
    head = between(0, 64)
    if head[4:8] in {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp"}:
        return _boxes_end(between, size) > size
    if head[:4] == b"RIFF":
        length = int.from_bytes(head[4:8], "little")
        return 0 < length < 0xFFFFFFFF and length + 8 > size  # a stream has neither length
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return _segment_end(head) > size
    return False


def _boxes_end(between: Callable[[int, int], bytes], size: int) -> int:
    """Where the last top-level box of an MP4 ends."""
    place = 0
    while place < size:
        head = between(place, place + 16)
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length == 0:  # it goes to the end, wherever that is
            return size
        place += max(length, 8)
    return place


def _segment_end(head: bytes) -> int:
    """Where the one large element of a Matroska file ends; 0 where it does not say."""
    at = head.find(_SEGMENT)
    if at < 0 or at + 5 > len(head) or not head[at + 4]:
        return 0
    first = head[at + 4]
    width = 9 - first.bit_length()
    length = int.from_bytes(bytes([first & ((1 << (8 - width)) - 1)]) + head[at + 5 : at + 4 + width], "big")
    unknown = (1 << (7 * width)) - 1
    return 0 if length == unknown else at + 4 + width + length


_PIECE = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """What references resolve against, and who may be asked about them.

    Attributes:
        root: Of the dataset.
        storage: Options of stores.
        allow_outside: Whether references that leave the root are opened.
        packets: Gives the packet indexes that a table keeps of a file.
        copied: What a table knows of copied-in files, by path.
        opened: Opens files that lie in a table of another format; None for any other.
        reported: Files that a finding was made about already.
        hashed: Whether the bytes of each copied-in file have changed, as far as it was found out.
    """

    root: str
    storage: Mapping[str, str] | None
    allow_outside: bool
    packets: Callable[[str], Mapping[int, bytes]]
    copied: Mapping[str, Copied]
    opened: Callable[[str], Blob | None] = lambda _: None
    reported: frozenset[str] = frozenset()
    hashed: dict[str, bool] = field(default_factory=dict)


def blob_at(reference: str, place: FileContext, /) -> Blob | FileFacts | None:
    """The bytes behind a reference, or why there are none; None where other rules have said so."""
    if not reference.strip() or reference in place.reported:
        return None
    try:
        location = locations.join(place.root, reference)
        own_scheme = locations.scheme(reference) != "file"
        if not place.allow_outside and not own_scheme and not locations.inside(place.root, location):
            if leaves_root(reference) or not is_relative(reference):
                return None  # not opened, and said from the reference alone
            why = f"a link leads to {location} outside the root; it is opened only with allow_outside=True"
            return FileFacts(name=repr(reference), trouble="outside", why=why)
        inside = place.opened(reference)
        blob: Blob = inside or stores.open_blob(location, storage=place.storage, named_by=place.root)
    except (FileNotFoundError, NotADirectoryError):
        return FileFacts(name=repr(reference), trouble="missing", why="no file is there")
    except UnsafeReferenceError as error:
        return FileFacts(name=repr(locations.redacted(reference)), trouble="unreadable", why=str(error))
    except (SeqlakeError, OSError, ValueError) as error:
        why = f"it could not be looked at: {error}"
        return FileFacts(name=repr(locations.redacted(reference)), trouble="unreachable", why=why)
    if blob.size == 0:
        return FileFacts(name=repr(reference), trouble="empty")
    return blob


def said(error: SeqlakeError, location: str, /) -> str:
    """An error's message without the place, which the finding names."""
    return error.message.removeprefix(location).lstrip(": ")


def source_of(reference: str, blob: Blob, column: ColumnType, place: FileContext, /) -> Source:
    """What a decoder opens."""
    return Source(blob=blob, column=column, index=place.packets(reference) or None)


def look(reference: str, blob: Blob, column: ColumnType, place: FileContext, /) -> FileFacts:
    """What the head of a file says of it, by the type of its column; not for videos.

    Raises:
        OSError: It cannot be read.
    """
    name = repr(locations.redacted(reference))
    facts = FileFacts(name=name, changed=is_changed(reference, blob, place))
    if column.type == "audio":
        return replace(facts, **_sound(blob, column))
    if column.type == "image":
        return replace(picture(_picture_head(blob), name, column), changed=facts.changed)
    kind = format_of(_head(blob, 64))
    return facts if kind in PICTURES else replace(facts, format=kind)


def is_changed(reference: str, blob: Blob, place: FileContext, /) -> bool:
    """Whether a copied-in file on this machine has other bytes than when it was copied.

    Not asked of files elsewhere, which would have to be fetched whole; their size is compared by the table.
    """
    record = place.copied.get(reference)
    if record is None or not record.sha256 or not locations.is_local(blob.location) or record.size != blob.size:
        return False
    if reference not in place.hashed:  # several rows may share it
        digest = hashlib.sha256()
        for start in range(0, blob.size, _PIECE):
            digest.update(_between(blob, start, start + _PIECE))
        place.hashed[reference] = digest.hexdigest() != record.sha256
    return place.hashed[reference]


def _picture_head(blob: Blob) -> bytes | memoryview:
    """Enough of a picture to know its size: all of a TIFF, whose directory may come last."""
    head = _head(blob, HEAD)
    return whole(blob) if blob.size > HEAD and (describe(head) is None or format_of(head) == "tiff") else head


def cloud(data: bytes, /) -> FileFacts:
    """What a cloud's own bytes, in the row, say."""
    kind = format_of(data[:64])
    return FileFacts(name="cloud", trouble="empty") if not data else FileFacts(name="cloud", format=kind)


def picture(head: bytes | memoryview, name: str, column: ColumnType, /) -> FileFacts:
    """What a picture's own bytes say."""
    kind = format_of(bytes(head[:64]))
    if kind not in PICTURES:
        why = f"expected a picture, found bytes that begin with {bytes(head[:8])!r}"
        return FileFacts(name=name, trouble="unreadable", why=why)
    said_there = describe(head)
    if said_there is None:
        return FileFacts(name=name, format=kind)
    turn, array = orientation(head), handed_out(said_there, column)
    choice = column.get("orientation")
    return FileFacts(
        name=name,
        format=kind,
        size=said_there.size[::-1] if choice == "apply" and turn > 4 else said_there.size,
        bits=said_there.bits,
        channels=array[1] if column.get("channels") in {1, 3} else None,
        array=array,
        turn=turn if choice is None else 1,
    )


def look_at_video(reference: str, source: Source, place: FileContext, /, *, part: tuple[int, int] | None) -> CellFacts:
    """What a video says of itself, from its packets: rate, codec, size, and the frames that it has.

    Args:
        reference: What the cell says.
        source: The file, or the part of it that is this row's.
        place: The dataset.
        part: The first frame and the number of frames that the cell declares.
    """
    from seqlake.media import video

    blob = source.blob
    assert not isinstance(blob, bytes)
    name = repr(locations.redacted(reference))
    facts = FileFacts(name=name, changed=is_changed(reference, blob, place), cut=_is_cut(blob))
    try:
        decoder = video.open(source)
    except DecodeError as error:
        return CellFacts(files=((None, _unopened(facts, source, error)),))
    stream = decoder.packets.stream
    facts = replace(facts, codec=stream.codec, size=decoder.size[::-1], times=_times(decoder))
    facts = replace(facts, pixels=stream.pix_fmt, bits=max(8, decoder.bits))
    held = None if part is None else len(decoder.packets.order) - part[0]
    return CellFacts(files=((None, facts),), count=len(decoder), part=part, held=held)


def _times(decoder: VideoDecoder) -> Times:
    return Times(ticks=decoder.pts, tick=decoder.time_base)


def _unopened(facts: FileFacts, source: Source, error: DecodeError) -> FileFacts:
    """Why a video could not be opened: its container, or the stream that was asked for."""
    from seqlake.media import video

    why = said(error, blob_of(source).location)
    if not isinstance(error, CorruptFileError) and source.column.stream is not None:
        fields = {key: value for key, value in source.column.to_json().items() if key != "stream"}
        try:
            video.open(replace(source, column=ColumnType.from_json(fields)))
        except DecodeError:
            return replace(facts, trouble="unreadable", why=why)
        return replace(facts, trouble="no stream", why=why)
    return replace(facts, trouble="unreadable", why=why, cut=False)


def _sound(blob: Blob, column: ColumnType) -> dict[str, Any]:
    """What the head of a sound file says."""
    from seqlake.media import open_container

    try:
        with open_container(BlobBytes(blob), blob.location) as container:
            streams, number = container.streams.audio, column.stream or 0
            if column.stream is not None and not 0 <= number < len(streams):
                return {"trouble": "no stream", "why": f"it has {len(streams)} streams of sound"}
            if not streams:
                return {"trouble": "unreadable", "why": "expected sound, found none in the file"}
            stream: Any = streams[number]
            if stream.codec_context is None:
                return {"trouble": "unreadable", "why": "its sound is of no codec that FFmpeg knows"}
            lasts = None if stream.duration is None else float(stream.duration * stream.time_base)
            if lasts is None and container.duration is not None:
                lasts = container.duration / 1_000_000
            return {
                "codec": stream.codec_context.codec.canonical_name,
                "sample_rate": stream.rate,
                "channels": stream.channels,
                "seconds": lasts,
                "cut": _is_cut(blob),
            }
    except DecodeError as error:
        return {"trouble": "unreadable", "why": said(error, blob.location)}


def kind(source: Source, /) -> str:
    """What a file is that its column's type does not decode, and how it is read; empty where nothing is known."""
    blob = blob_of(source)
    return hint(blob.location, blob, source.column)


def whole(blob: Blob, /) -> bytes | memoryview:
    """All bytes of a picture."""
    view = blob.view()
    return blob.ranges(np.array([0]), np.array([blob.size]))[0] if view is None else view


def _is_cut(blob: Blob) -> bool:
    return is_cut(lambda start, stop: _between(blob, start, stop), blob.size)


def _head(blob: Blob, size: int) -> bytes:
    return _between(blob, 0, size)


def _between(blob: Blob, start: int, stop: int) -> bytes:
    stop = min(stop, blob.size)
    view = blob.view()
    if view is not None:
        return bytes(view[start:stop])
    return bytes(blob.ranges(np.array([start]), np.array([stop]))[0])
