"""What is known of one copy: a small file beside it, written last, so that a copy is there whole or not at all."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake import media
from seqlake.abilities import KeepsFiles, ability
from seqlake.spec.alignment import ratio
from seqlake.versions import names
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from seqlake.protocols import Blob, Copied, Ints, Readable

_FAR = 1 << 62  # ticks
_EDGE = 1 << 16  # bytes of either end of a file that are compared where nobody knows its digest


def key_of(reference: str, /) -> str:
    """The name of a file's copy, by the reference to the file."""
    return names.copy_key(reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Which bytes a copy was made from.

    Attributes:
        nbytes: Size of the file.
        edges: CRC-32 of its first and last 64 KiB; 0 where the digest is known and nobody looked.
        sha256: Of the whole, where the dataset knows it; else empty.
    """

    nbytes: int
    edges: int = 0
    sha256: str = ""

    def agrees(self, other: Fingerprint, /) -> bool:
        """Whether both may be of the same bytes."""
        if self.nbytes != other.nbytes:
            return False
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        return self.edges == other.edges


@dataclass(frozen=True)
class Originals:
    """The files that a dataset's rows name, and which bytes they are; picklable as far as the dataset is.

    Attributes:
        files: How they are opened.
        table: Knows what was committed of them, where anything does.
    """

    files: MediaFiles
    table: KeepsFiles | None

    @classmethod
    def of(cls, source: Readable, /) -> Originals:
        """Those of a dataset."""
        return cls(MediaFiles.of(source), ability(source, KeepsFiles))

    def fingerprint(self, reference: str, /, *, whole: bool = False) -> Fingerprint:
        """Which bytes a file has; where the dataset knows their digest, the file is not touched.

        Args:
            reference: The file, as rows name it.
            whole: Look at its ends in any case.

        Raises:
            MissingFileError: It is not there.
        """
        known: Copied | None = None if self.table is None else self.table.copied_as(reference)
        if known is not None and not whole:
            return Fingerprint(nbytes=known.size, sha256=known.sha256)
        blob = self.files.blob(reference)
        sha256 = "" if known is None else known.sha256
        return Fingerprint(nbytes=blob.size, edges=_edges(blob), sha256=sha256)


def _edges(blob: Blob) -> int:
    size = blob.size
    starts = np.array([0, max(0, size - _EDGE)], np.int64)
    stops = np.array([min(size, _EDGE), size], np.int64)
    checksum = 0
    for part in blob.ranges(starts, stops) if size else ():
        checksum = zlib.crc32(part, checksum)
    return checksum


@dataclass(frozen=True, kw_only=True)
class CopyRecord:
    """One copy.

    Attributes:
        reference: The original, as rows name it.
        original: Its bytes.
        frames: Frames of the original.
        times: When each is shown, in ticks, as `packed` packs them.
        time_base: Seconds of a tick.
        every: Of how many frames one is kept.
        phases: Remainders, by `every`, of the numbers of those that are kept.
        nbytes: Of the copy.
        index: What makes it quick to open: packets of a film, sizes of pictures, where numbers begin.
        damage: Why the original cannot be decoded, where it cannot; then there is no copy.
    """

    reference: str
    original: Fingerprint
    frames: int = 0
    times: str = ""
    time_base: Fraction = Fraction(1)
    every: int = 1
    phases: tuple[int, ...] = (0,)
    nbytes: int = 0
    index: bytes = field(default=b"", repr=False)
    damage: str = ""

    @cached_property
    def pts(self) -> Ints:
        """[frames] when each frame of the original is shown."""
        return unpacked(self.times, self.frames) if self.frames else np.zeros(0, np.int64)

    @cached_property
    def kept(self) -> Ints | None:
        """Numbers of the frames that are there, ascending; None where all are."""
        return None if self.every == 1 else kept_of(self.frames, self.every, self.phases)

    @property
    def count(self) -> int:
        """Frames that are there."""
        return self.frames if self.kept is None else len(self.kept)

    def document(self) -> bytes:
        """As its file holds it, with a checksum."""
        fields = asdict(self)
        fields |= {"time_base": str(self.time_base), "index": base64.b64encode(self.index).decode()}
        body = json.dumps(fields, sort_keys=True)
        return json.dumps({"copy": body, "crc32": zlib.crc32(body.encode())}).encode()

    @classmethod
    def parse(cls, data: bytes, /) -> CopyRecord:
        """From its file.

        Raises:
            ValueError: It is no such file, or its bytes have changed.
        """
        try:
            document = json.loads(data)
            body = document["copy"]
            if zlib.crc32(body.encode()) != document["crc32"]:
                raise ValueError("its bytes have changed")
            fields: dict[str, Any] = json.loads(body)
            _expect_plain(fields)
            fields["original"] = Fingerprint(**fields["original"])
            fields["phases"] = tuple(fields["phases"])
            fields["time_base"] = ratio(fields["time_base"])
            fields["index"] = base64.b64decode(fields["index"])
            record = cls(**fields)
            if record.time_base <= 0 or record.pts.min(initial=0) < -_FAR or record.pts.max(initial=0) > _FAR:
                raise ValueError("it tells no times")  # or not as many as frames, as `pts` says
        except (TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(str(error)) from error
        return record


_KINDS = {
    **dict.fromkeys(("reference", "damage", "times", "time_base", "index"), str),
    **dict.fromkeys(("frames", "every", "nbytes"), int),
    "original": dict,
    "phases": list,
}


def _expect_plain(fields: dict[str, Any], /) -> None:
    """Refuse what no record has, before anything is computed with it: whoever sent the dataset wrote it."""
    for name, kind in _KINDS.items():
        if type(fields[name]) is not kind:
            raise ValueError(f"expected {name!r} to be {kind.__name__}, found {type(fields[name]).__name__}")
    frames, every, phases = fields["frames"], fields["every"], fields["phases"]
    if not 0 <= frames <= media.PACKETS.value:
        raise ValueError(f"expected 0 to {media.PACKETS.value:,} frames ({media.PACKETS.name}), found {frames}")
    if not frames and not fields["damage"]:
        raise ValueError("expected frames, found none and no damage")
    if not phases or not all(type(phase) is int and 0 <= phase < every for phase in phases):
        raise ValueError(f"expected remainders by {every}, found {str(phases)[:80]}")


def kept_of(frames: int, every: int, phases: tuple[int, ...], /) -> Ints:
    """Numbers of the frames that a copy at a lower rate keeps.

    Example:
        >>> kept_of(8, 3, (0, 1)).tolist()
        [0, 1, 3, 4, 6, 7]
    """
    numbers = np.arange(frames, dtype=np.int64)
    kept: Ints = numbers[np.isin(numbers % every, phases)]
    return kept


def packed(numbers: Ints, /) -> str:
    """Ascending numbers as text: equal steps take next to nothing.

    Example:
        >>> unpacked(packed(np.arange(0, 9, 2)), 5).tolist()
        [0, 2, 4, 6, 8]
    """
    steps = np.diff(numbers, prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(steps.tobytes())).decode()


def unpacked(text: str, count: int, /) -> Ints:
    """[count] the numbers that `packed` packed.

    Raises:
        ValueError: They are others, or not so many.
    """
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(base64.b64decode(text), 8 * count + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(data) != 8 * count:
        raise ValueError(f"expected {count} times")
    numbers: Ints = np.cumsum(np.frombuffer(data, "<i8"))
    return numbers
