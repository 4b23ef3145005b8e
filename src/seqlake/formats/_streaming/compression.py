"""The compressions and hashes that an index may name; a compressed file is one unit, `code` or `code:level`."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seqlake import plugins
from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_LEVELS = {
    "br": (range(12), 11),
    "bz2": (range(1, 10), 9),
    "gz": (range(10), 9),
    "snappy": (range(0), 0),
    "zstd": (range(1, 23), 3),
}
_PIECE = 64 << 20
# The strongest first: one that matches is enough, and the first that is there is looked at.
ALGORITHMS = (
    *("blake2b", "sha3_512", "sha512", "sha3_384", "sha384", "blake2s", "sha3_256", "sha256", "sha3_224", "sha224"),
    *("sha1", "md5", "xxh3_128", "xxh128", "xxh3_64", "xxh64", "xxh32"),
)


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression and its level.

    Example:
        >>> Compression.of("zstd:7").extension
        'zstd'
    """

    code: str
    level: int

    @staticmethod
    def of(name: str, /) -> Compression:
        """Read its name.

        Raises:
            ValueError: Not one of `br`, `bz2`, `gz`, `snappy`, `zstd`, or a level that it does not have.
        """
        code, colon, level = name.partition(":")
        levels, default = _LEVELS.get(code, (range(0), None))
        if default is None:
            raise ValueError(f"No compression is called {name!r}; known are {', '.join(_LEVELS)}.")
        if colon and not (level.isdecimal() and int(level) in levels and str(int(level)) == level):
            allowed = f"a level of {levels[0]} to {levels[-1]}" if levels else "no level"
            raise ValueError(f"{code} takes {allowed}, found {name!r}.")
        return Compression(code, int(level) if colon else default)

    @property
    def extension(self) -> str:
        """What a file's name ends with; the level is never part of it."""
        return self.code

    def compress(self, data: bytes | memoryview, /) -> bytes:
        """One file; byte for byte what the official writers store (except `gz`, where they store the time too)."""
        compressed: bytes = _compressor(self)(data)
        return compressed

    def decompress(self, data: bytes | memoryview, size: int, /) -> bytes | memoryview:
        """A file of `size` bytes; what would become more is never made.

        Raises:
            CorruptFileError: Damaged, or another size.
        """
        try:
            unpacked = _decompress(self.code, data, size)
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # every package has errors of its own
            raise CorruptFileError(f"it is not {self.code}, or damaged ({error})") from error
        if len(unpacked) != size:
            more = "more" if len(unpacked) > size else str(len(unpacked))
            raise CorruptFileError(f"it should decompress to {size} bytes, but gives {more}")
        return unpacked


def _compressor(kind: Compression) -> Callable[[Any], Any]:
    if kind.code == "zstd":
        # Multi-threaded mode cuts the input into jobs and so gives other bytes than the plain mode.
        return plugins.require("zstandard", extra="mds").ZstdCompressor(level=kind.level, threads=1).compress  # type: ignore[no-any-return]  # an optional package
    if kind.code == "br":
        brotli = plugins.require("brotli", extra="mds")
        return lambda data: brotli.compress(bytes(data), quality=kind.level)
    if kind.code == "snappy":
        return plugins.require("snappy", extra="mds").compress  # type: ignore[no-any-return]  # an optional package
    if kind.code == "bz2":
        import bz2

        return lambda data: bz2.compress(data, kind.level)
    import gzip

    return lambda data: gzip.compress(data, kind.level, mtime=0)


def _decompress(code: str, data: bytes | memoryview, size: int) -> bytes | memoryview:
    if code == "zstd":
        zstandard = plugins.require("zstandard", extra="mds")
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            return _read(reader, size)
    if code == "br":
        return _brotli(data, size)
    if code == "snappy":
        snappy = plugins.require("snappy", extra="mds")
        claimed = _varint(data)
        # The block format begins with its size: nothing is unpacked that claims another.
        return bytes(snappy.uncompress(bytes(data))) if claimed == size else b"\0" * min(claimed, size + 1)
    if code == "bz2":
        import bz2

        with bz2.BZ2File(io.BytesIO(data)) as reader:
            return _read(reader, size)
    import gzip

    with gzip.GzipFile(fileobj=io.BytesIO(data)) as reader:
        return _read(reader, size)


def _read(reader: Any, size: int) -> bytes:
    """`size` bytes and one more, if there is one; a size that is a lie never becomes one large allocation."""
    pieces, left = [], size + 1
    while left:
        piece = reader.read(min(left, _PIECE))
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _brotli(data: bytes | memoryview, size: int) -> bytes:
    brotli = plugins.require("brotli", extra="mds")
    decoder = brotli.Decompressor()
    pieces, held, source = [], 0, bytes(data)
    while held <= size and not decoder.is_finished():
        piece = decoder.process(source, output_buffer_limit=min(_PIECE, size + 1 - held))
        source = b""
        if not piece and decoder.can_accept_more_data():
            break
        pieces.append(piece)
        held += len(piece)
    if held <= size and not decoder.is_finished():
        raise CorruptFileError("the end is missing")
    return b"".join(pieces)


def _varint(data: bytes | memoryview) -> int:
    value = 0
    for place, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value
    return -1


def digest(data: bytes | memoryview, algorithm: str, /) -> str:
    """The lower-case hex digest.

    Raises:
        MissingDependencyError: An `xxh` hash without the package xxhash.
    """
    if algorithm.startswith("xx"):
        hexdigest: str = getattr(plugins.require("xxhash", extra="mds"), algorithm)(data).hexdigest()
        return hexdigest
    return hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()


def strongest(hashes: Mapping[str, str], /) -> str | None:
    """The strongest algorithm that a file has a digest of; None where there is none that we know."""
    return next((name for name in ALGORITHMS if name in hashes), None)


def checked_hashes(names: Iterable[str], /) -> tuple[str, ...]:
    """Algorithms as an index lists them: sorted, each once.

    Raises:
        ValueError: One that is not known.
    """
    algorithms = tuple(sorted(set(names)))
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown:
        raise ValueError(f"No hash is called {unknown[0]!r}; known are {', '.join(sorted(ALGORITHMS))}.")
    return algorithms
