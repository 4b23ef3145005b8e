"""Which format a shard has, by its name: Parquet, or one whose plug is called as the name ends.

A plug of the group `shard_formats` offers what `protocols.ShardFormat` says; tables need nothing else to serve it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from seqlake import plugins
from seqlake.abilities import Physical, Sealed, WritesShards, ability
from seqlake.errors import CorruptFileError
from seqlake.shards import parquet
from seqlake.shards.files import ParquetShard
from seqlake.shards.parquet.footer import read_footer
from seqlake.spec.findings import Finding
from seqlake.spec.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from seqlake.protocols import Blob, Shard, ShardFormat, ShardReader

GROUP = "shard_formats"
PARQUET = "parquet"
KEY = "storage_format"
"""Of the metadata: the format of new shards, if it is not Parquet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluggedShard:
    """A file of another format than Parquet, described; it shows physical names and types.

    Attributes:
        format: The name of its plug.
        blob: The file.
        rows: Its rows.
        nbytes: Its bytes.
        key: `<name>#<hash>`; other bytes, other key.
        verify: Whether bytes are compared before they are handed out, where the file has checksums.
    """

    format: str
    blob: Blob
    rows: int
    nbytes: int
    key: str
    verify: bool = False

    def open(self) -> ShardReader:
        """A reader of the plug's making."""
        reader = plug(self.format).open(self.blob)
        sealed = ability(reader, Sealed) if self.verify else None
        return reader if sealed is None else sealed.verified()

    # ---- Verifiable

    def verified(self) -> PluggedShard:
        """The same file, compared as it is read."""
        return replace(self, verify=True)

    # ---- Copyable

    @property
    def one_file(self) -> bool:
        """True: nothing else belongs to it."""
        return True

    @property
    def in_place(self) -> bool:
        """Whether it is a file of this machine."""
        return self.blob.view() is not None

    def packed(self) -> Blob:
        """The file, as it is stored."""
        return self.blob

    def unpacked(self, data: memoryview, /) -> memoryview:
        """The same bytes: it is read as it is stored."""
        return data

    def over(self, blob: Blob, /) -> PluggedShard:
        """The same shard, read from this copy."""
        return replace(self, blob=blob)


def plug(name: str, /) -> ShardFormat:
    """What reads and writes shards of a format.

    Raises:
        UnknownPluginError: None of this name is installed.
    """
    known: ShardFormat = parquet if name == PARQUET else plugins.load(GROUP, name)
    return known


def of_new(schema: Schema, /) -> str:
    """The format of new shards of a dataset: what its metadata say, if such can be written here; else Parquet."""
    named = schema.metadata.extra.get(KEY, PARQUET)
    return named if isinstance(named, str) and _is_writable(named) else PARQUET


def with_new(schema: Schema, shards: str | None, /, *, lake: bool = False) -> Schema:
    """The schema of a dataset whose new shards have a format; None leaves it as it is.

    Raises:
        ValueError: Such shards cannot be written there: a lake holds Parquet.
    """
    if lake and shards not in {None, PARQUET}:
        raise ValueError(f"The shards of a lake are Parquet files; found {shards!r}.")
    shards = PARQUET if lake else shards
    if shards is None:
        return schema
    if not _is_writable(shards):
        known = [PARQUET, *(name for name in plugins.names(GROUP) if _is_writable(name))]
        raise ValueError(f"Shards are {', '.join(map(repr, known))}; found {shards!r}.")
    extra = {key: value for key, value in schema.metadata.extra.items() if key != KEY}
    extra |= {} if shards == PARQUET else {KEY: shards}
    return Schema({name: schema[name] for name in schema}, metadata=replace(schema.metadata, extra=extra), id=schema.id)


def _is_writable(name: str) -> bool:
    """Whether shards are written in a format; whether its engine is installed shows then. Parquet loads no plug."""
    return name == PARQUET or (name in plugins.names(GROUP) and ability(plug(name), WritesShards) is not None)


def name_of(name: str, /) -> str:
    """The format of a shard of this name; Parquet where its ending is no plug's: side shards and lakes' files have any.

    Example:
        >>> name_of("part-0.parquet")
        'parquet'
    """
    ending = name.rpartition(".")[2]
    return ending if ending != PARQUET and "." in name and ending in plugins.names(GROUP) else PARQUET


def has_format(name: str, /) -> bool:
    """Whether a file of this name is a shard of a format that is installed here."""
    return name.endswith(f".{PARQUET}") or name_of(name) != PARQUET


def describe(name: str, blob: Blob, /, *, rows: int, nbytes: int, key: str, index: bytes | None = None) -> Shard:
    """A shard with the columns that its file has.

    Args:
        name: The shard's.
        blob: Its bytes.
        rows: Its rows.
        nbytes: Its size.
        key: `<name>#<hash>`.
        index: An offset index kept outside the file; of Parquet only.
    """
    known = name_of(name)
    if known != PARQUET:
        return PluggedShard(format=known, blob=blob, rows=rows, nbytes=nbytes, key=key)
    return ParquetShard(blob=blob, rows=rows, nbytes=nbytes, key=key, index=index)


def findings(shard: Shard, location: str, /) -> Iterator[Finding]:
    """P601, P604: a file of another format than Parquet is not what was written, or what it says of its rows is not so.

    Args:
        shard: The file.
        location: What findings call it.
    """
    with closing(shard.open()) as file:
        sealed = ability(file, Sealed)
        for code, look in () if sealed is None else (("P601", sealed.compare), ("P604", sealed.check)):
            try:
                look()
            except CorruptFileError as error:
                yield Finding(code=code, severity="error", message=error.message, location=location)
                return


def rows_and_schema(name: str, blob: Blob, /) -> tuple[int, pa.Schema]:
    """What a file says of itself.

    Raises:
        CorruptFileError: It is not of its format.
    """
    if name_of(name) == PARQUET:
        footer = read_footer(blob)
        return footer.rows, footer.schema
    reader = describe(name, blob, rows=-1, nbytes=blob.size, key="").open()
    try:
        physical = ability(reader, Physical)
        if physical is None:
            raise CorruptFileError(f"The format {name_of(name)!r} does not say which rows {blob.location} has.")
        return physical.rows, physical.schema
    finally:
        reader.close()
