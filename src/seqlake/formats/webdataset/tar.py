"""Where the files of a tar archive lie: headers are read once, contents by range; nothing is ever extracted.

Read are the ustar format, long names of GNU and PAX, sizes in octal and in base 256. Links, devices and sparse files
have no bytes of their own to read and are passed over. Names are text and nothing else: no path is made of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from seqlake.errors import CorruptFileError
from seqlake.files.blobs import MemoryBlob
from seqlake.files.limits import refuse_more_than_memory
from seqlake.formats.rlds.tfrecord import BytesAhead

if TYPE_CHECKING:
    from collections.abc import Iterator

    from seqlake.protocols import Blob

BLOCK = 512
_MOST_NAME = 1 << 20  # bytes of a long name or of PAX records
_REGULAR = {b"0", b"\0", b"7"}
_NOT_READ = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a pipe"}
_FOLDER, _SPARSE = b"5", b"S"
_LONG_NAME, _LONG_LINK, _PAX, _PAX_ALL = b"L", b"K", b"x", b"g"
_GZIP = 31
_PIECE = 1 << 20
UNMARKED = "no block of zeros marks its end: it may be cut off"
GZIPPED = (".tar.gz", ".tgz")


@dataclass(frozen=True, slots=True, kw_only=True)
class TarMember:
    """One file of an archive.

    Attributes:
        name: As the archive says; no path that is safe to use.
        begin: Byte at which its headers begin.
        start: Byte at which its content begins.
        size: Bytes of it.
        why: Why it cannot be read, where it is none; empty for a file.
    """

    name: str
    begin: int
    start: int
    size: int
    why: str = ""


@dataclass(slots=True)
class _Said:
    """What headers before the next one said of it."""

    begin: int | None = None
    name: str | None = None
    size: int | None = None
    sparse: bool = False


@dataclass(slots=True)
class _Archive:
    """An archive while it is walked.

    Attributes:
        blob: Its bytes.
        ahead: The same, some fetched ahead.
        all: What PAX headers for all following files said.
    """

    blob: Blob
    ahead: BytesAhead
    all: dict[str, str] = field(default_factory=dict)


def members(blob: Blob, ahead: BytesAhead | None = None, /) -> Iterator[TarMember]:
    """The files of a tar archive in order, and what is none with the reason; folders are passed over.

    Args:
        blob: An archive that is not compressed.
        ahead: Its bytes, for a caller who looks into files on the way.

    Yields:
        Each; last, where the archive ends without a mark, an entry without a name that says so.

    Raises:
        CorruptFileError: A header does not have its checksum, or a file reaches behind the end; those before it were
            given out.
    """
    archive, at, said = _Archive(blob, ahead or BytesAhead(blob)), 0, _Said()
    while at < blob.size:
        if blob.size - at < BLOCK:
            raise _damaged(blob, at, f"{blob.size - at} bytes are no header of {BLOCK}")
        header = bytes(archive.ahead.read(at, at + BLOCK))
        if not any(header):
            return
        _check(blob, at, header)
        kind, size = header[156:157], _size(blob, at, header[124:136])
        said.begin = at if said.begin is None else said.begin
        plain = kind in _REGULAR or kind in {_FOLDER, _SPARSE} or kind in _NOT_READ
        size = said.size if said.size is not None and plain else size
        size = 0 if kind in _NOT_READ or kind == _FOLDER else size
        start = at + BLOCK
        if size > blob.size - start:
            raise _damaged(blob, at, f"a file of {size} bytes begins {blob.size - start} bytes before the end")
        if kind in {_LONG_NAME, _LONG_LINK, _PAX, _PAX_ALL}:
            _say(archive, kind, at, start, size, said)
        else:
            name = said.name if said.name is not None else archive.all.get("path") or _name(header)
            why = _refusal(kind, sparse=said.sparse)
            if kind != _FOLDER and not (kind == b"\0" and name.endswith("/")):
                yield TarMember(name=name, begin=said.begin, start=start, size=size, why=why)
            said = _Said()
        at = start + -(-size // BLOCK) * BLOCK
    if said.begin is not None or not blob.size:
        raise _damaged(blob, said.begin or 0, "a file that should follow is not there")
    yield TarMember(name="", begin=blob.size, start=blob.size, size=0, why=UNMARKED)


def _refusal(kind: bytes, *, sparse: bool) -> str:
    if sparse or kind == _SPARSE:
        return "a sparse file"
    if kind in _NOT_READ:
        return _NOT_READ[kind]
    return "" if kind in _REGULAR else f"an entry of the unknown type {kind!r}"


def _check(blob: Blob, at: int, header: bytes) -> None:
    without = header[:148] + b" " * 8 + header[156:]
    text = header[148:156].split(b"\0")[0].strip()
    signed = sum(without) - 256 * sum(one > 127 for one in without)
    if not text or not all(one in b"01234567" for one in text) or int(text, 8) not in {sum(without), signed}:
        raise _damaged(blob, at, "a header does not have its checksum")


def _size(blob: Blob, at: int, raw: bytes) -> int:
    if raw[0] & 0x80:
        size = int.from_bytes(bytes([raw[0] & 0x7F]) + raw[1:], "big")
        if raw[0] & 0x40:
            raise _damaged(blob, at, "a file has a size below 0")
        return size
    text = raw.split(b"\0")[0].strip()
    if not all(one in b"01234567" for one in text):
        raise _damaged(blob, at, f"{raw!r} is no size")
    return int(text or b"0", 8)


def _name(header: bytes) -> str:
    name, prefix = header[:100].split(b"\0")[0], header[345:500].split(b"\0")[0]
    ustar = header[257:263] == b"ustar\0"
    return _text(prefix + b"/" + name if ustar and prefix else name)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _say(archive: _Archive, kind: bytes, at: int, start: int, size: int, said: _Said) -> None:
    """Take in what a header says of those that follow."""
    if size > _MOST_NAME:
        raise _damaged(archive.blob, at, f"a name of {size} bytes is longer than any")
    content = bytes(archive.ahead.read(start, start + size))
    if kind == _LONG_NAME:
        said.name = _text(content.split(b"\0")[0])
    elif kind == _PAX:
        records = _records(archive.blob, at, content)
        said.name = records.get("GNU.sparse.name") or records.get("path", said.name)
        said.sparse = said.sparse or any(key.startswith("GNU.sparse.") for key in records)
        if "size" in records:
            if not records["size"].isdecimal():
                raise _damaged(archive.blob, at, f"{records['size']!r} is no size")
            said.size = int(records["size"])
    elif kind == _PAX_ALL:
        archive.all.update(_records(archive.blob, at, content))


def _records(blob: Blob, at: int, content: bytes) -> dict[str, str]:
    """`<length> <key>=<value>` and a line end, each length counting all of its record."""
    records: dict[str, str] = {}
    place = 0
    while place < len(content) and content[place] != 0:
        space = content.find(b" ", place, place + 20)
        digits = content[place:space] if space > 0 else b""
        length = int(digits) if digits.isdigit() else 0
        record = content[space + 1 : place + length]
        key, equals, value = record.partition(b"=")
        if length < 5 or place + length > len(content) or not equals or not value.endswith(b"\n"):
            raise _damaged(blob, at, "its PAX records contradict their lengths")
        records[_text(key)] = _text(value[:-1])
        place += length
    return records


def _damaged(blob: Blob, at: int, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"{blob.location}, byte {at}: {why}.", path=blob.location, hint="It is cut off or damaged: fetch it again."
    )


def unpacked(blob: Blob, /, *, most: int) -> MemoryBlob:
    """All of an archive that was compressed with gzip.

    Args:
        blob: As it is stored.
        most: Bytes that it may make.

    Raises:
        CorruptFileError: It is damaged, or makes more.
    """
    view = blob.view()
    if view is None:
        refuse_more_than_memory(blob.size, blob.location)
        [view] = blob.ranges(np.array([0], np.int64), np.array([blob.size], np.int64))
    out, at, decoder = bytearray(), 0, zlib.decompressobj(_GZIP)
    try:
        while at < len(view) or decoder.unconsumed_tail:
            taken = decoder.unconsumed_tail or bytes(view[at : at + _PIECE])
            at += 0 if decoder.unconsumed_tail else len(taken)
            out += decoder.decompress(taken, _PIECE)
            if len(out) > most:
                raise CorruptFileError(
                    f"{blob.location} makes more than {most} bytes.",
                    path=blob.location,
                    hint="If you trust it, raise the limit with shard_bytes=..., or unpack it to a plain tar.",
                )
            if decoder.eof:
                at -= len(decoder.unused_data)
                if not any(view[at : at + BLOCK]):
                    break  # padding behind the last member
                decoder = zlib.decompressobj(_GZIP)
    except zlib.error as error:
        raise CorruptFileError(f"{blob.location} is no gzip: {error}.", path=blob.location) from error
    if not decoder.eof:
        raise CorruptFileError(f"{blob.location} is cut off.", path=blob.location, hint="Fetch it again.")
    return MemoryBlob(bytes(out), location=blob.location, token=blob.token)
