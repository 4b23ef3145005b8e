"""One Parquet file as a shard, which opens itself in any process; and shards whose pages are compared first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from seqlake.abilities import KeepsFiles, Verifiable, ability
from seqlake.files.checksums import refuse_another
from seqlake.shards import parquet
from seqlake.shards.columns import Beside, Columns
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Blob, Copied, Ints, Readable, Shard
    from seqlake.shards.parquet.reader import ParquetReader
    from seqlake.spec.schema import Schema

Verify = Literal["first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetShard:
    """A Parquet file, described; it shows physical names and types.

    Attributes:
        blob: The file.
        rows: Its rows.
        nbytes: Its bytes.
        key: `<name>#<hash>`; other bytes, other key.
        index: An offset index kept outside the file, for a file that has none of its own.
        verify: Whether each page of a flat column is compared before it is first handed out.
    """

    blob: Blob
    rows: int
    nbytes: int
    key: str
    index: bytes | None = field(default=None, repr=False)
    verify: bool = False

    def open(self) -> ParquetReader:
        """A reader; the file is opened when it is first asked."""
        return parquet.open(self.blob, index=self.index, verify=self.verify)


def parquet_shard(blob: Blob, /, *, index: bytes | None = None, rows: int | None = None) -> ParquetShard:
    """Describe a Parquet file; reads its footer where its rows are not known.

    Args:
        blob: The file.
        index: An offset index kept outside the file.
        rows: As its footer says.

    Raises:
        CorruptFileError: It is not Parquet, or is damaged.

    Example:
        >>> parquet_shard(open_blob("part-0.parquet")).rows
        64
    """
    name = blob.location.replace("\\", "/").rpartition("/")[2]
    digest = blake2b(f"{blob.location}\0{blob.token}".encode(), digest_size=8).hexdigest()
    rows = read_footer(blob).rows if rows is None else rows
    return ParquetShard(blob=blob, rows=rows, nbytes=blob.size, key=f"{name}#{digest}", index=index)


def innermost(shard: Shard, /) -> Shard:
    """What rows and columns are taken of."""
    while isinstance(shard, (Rows, Columns)):
        shard = shard.shard
    return shard


def verified(shard: Shard, /) -> Shard:
    """The same shard, each page of its flat columns compared with checksum and levels when it is first touched.

    Columns that are decoded are compared as it is, and so are shards of other formats as far as their format can.

    Example:
        >>> verified(shard).key == shard.key
        True
    """
    if isinstance(shard, Rows):
        return replace(shard, shard=verified(shard.shard))
    if isinstance(shard, Columns):
        beside = {
            name: replace(source, shard=verified(source.shard))
            for name, source in (shard.mapping.items() if isinstance(shard.mapping, dict) else ())
            if isinstance(source, Beside)
        }  # a mapping of another kind, as Iceberg's, finds columns in the file itself, and stays what it is
        mapping = {**shard.mapping, **beside} if beside else shard.mapping
        return replace(shard, shard=verified(shard.shard), mapping=mapping)
    if not isinstance(shard, ParquetShard):
        other = ability(shard, Verifiable)
        return shard if other is None else other.verified()
    if shard.verify:
        return shard
    return ParquetShard(
        blob=shard.blob, rows=shard.rows, nbytes=shard.nbytes, key=shard.key, index=shard.index, verify=True
    )


def is_verified(shard: Shard, /) -> bool:
    """Whether its pages are compared first."""
    file = innermost(shard)
    return isinstance(file, ParquetShard) and file.verify


_PIECE = 8 << 20
_MOST_COMPARED = 1 << 16  # files that a process remembers
_COMPARED: set[tuple[str, str]] = set()


class ComparedFiles:
    """`KeepsFiles` whose copied-in files are compared with their SHA-256 when they are opened, once in each process.

    Args:
        inner: What a table knows of them.
    """

    def __init__(self, inner: KeepsFiles, /) -> None:
        self._inner = inner

    def kept_packets(self, reference: str, /) -> Mapping[int, bytes]:
        """Video stream -> packet index; empty where none is kept."""
        return self._inner.kept_packets(reference)

    def copied(self, key: str, /) -> Mapping[str, Copied]:
        """The files that the rows of a shard name, by path."""
        return self._inner.copied(key)

    def copied_as(self, reference: str, /) -> Copied | None:
        """What was committed of a file; None where no digest of it is known."""
        return self._inner.copied_as(reference)

    def copied_file(self, reference: str, /) -> Blob | None:
        """A file that was copied in, as it was then; None for any other reference.

        Raises:
            FileNotFoundError: It is not there.
            CorruptFileError: It has other bytes.
        """
        blob = self._inner.copied_file(reference)
        known = None if blob is None else self._inner.copied_as(reference)
        if blob is not None and known is not None:
            _compare(blob, known)
        return blob


def _compare(blob: Blob, known: Copied) -> None:
    """Read in pieces, so that a film of many gigabytes takes no more memory than a picture."""
    place = blob.location, blob.token
    if place in _COMPARED:
        return
    digest = sha256()
    for start in range(0, blob.size if blob.size == known.size else 0, _PIECE):
        stop = min(start + _PIECE, blob.size)
        digest.update(blob.ranges(np.array([start]), np.array([stop]))[0])
    refuse_another(blob.location, blob.size, digest.hexdigest(), known)
    if len(_COMPARED) >= _MOST_COMPARED:
        _COMPARED.clear()
    _COMPARED.add(place)


class VerifiedSource:
    """A `Readable` whose shards are `verified`, with every ability of the one inside.

    Args:
        inner: Any readable.
    """

    def __init__(self, inner: Readable, /) -> None:
        self.inner = inner
        self._shards: list[Shard] | None = None

    def shards(self) -> Sequence[Shard]:
        """The shards of the source inside, verified."""
        if self._shards is None:
            self._shards = [verified(shard) for shard in self.inner.shards()]
        return self._shards

    @property
    def schema(self) -> Schema:
        """The schema of the source inside."""
        return self.inner.schema

    @property
    def root(self) -> str:
        """The root of the source inside."""
        return self.inner.root

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the source inside."""
        return self.inner.fingerprint

    def lengths(self, column: str, /) -> Ints:
        """[all rows] T of a column, as the source inside says."""
        return self.inner.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """An ability of the source inside, or None; copied-in files are compared, too."""
        known = ability(self.inner, kind)
        return cast("Kind", ComparedFiles(known)) if kind is KeepsFiles and isinstance(known, KeepsFiles) else known

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "_shards": None}

    def __repr__(self) -> str:
        return repr(self.inner)


def verified_source(source: Any, verify: Verify | None, /) -> Any:
    """The source with its pages compared, where that is wanted.

    Raises:
        ValueError: `verify` is neither None nor "first".
    """
    if verify not in {None, "first"}:
        raise ValueError(f"verify is None or 'first': each page when it is first touched; found {verify!r}.")
    return source if verify is None or isinstance(source, VerifiedSource) else VerifiedSource(source)


def verified_alike(known: Any, source: Any, /) -> Any:
    """The source with its pages compared, where those of another one are."""
    return verified_source(source, "first" if isinstance(known, VerifiedSource) else None)
