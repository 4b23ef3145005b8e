"""Shards, and whole sources, whose pages are compared before they are handed out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from seqlake.abilities import ability
from seqlake.shards.columns import Beside, Columns
from seqlake.shards.files import ParquetShard, innermost
from seqlake.shards.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Ints, Readable, Shard
    from seqlake.spec.schema import Schema

Verify = Literal["first"]


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
    if not isinstance(shard, ParquetShard) or shard.verify:
        return shard
    return ParquetShard(
        blob=shard.blob, rows=shard.rows, nbytes=shard.nbytes, key=shard.key, index=shard.index, verify=True
    )


def is_verified(shard: Shard, /) -> bool:
    """Whether its pages are compared first."""
    found = innermost(shard)
    return isinstance(found, ParquetShard) and found.verify


class VerifiedSource:
    """A `Readable` whose shards are `verified`, with every ability of the one inside.

    Args:
        inner: Any readable.
    """

    def __init__(self, inner: Readable, /) -> None:
        self.inner = inner
        self._shards: list[Shard] | None = None

    def shards(self) -> Sequence[Shard]:
        """As `Readable.shards`."""
        if self._shards is None:
            self._shards = [verified(shard) for shard in self.inner.shards()]
        return self._shards

    @property
    def schema(self) -> Schema:
        """As `Readable.schema`."""
        return self.inner.schema

    @property
    def root(self) -> str:
        """As `Readable.root`."""
        return self.inner.root

    @property
    def fingerprint(self) -> str:
        """As `Readable.fingerprint`."""
        return self.inner.fingerprint

    def lengths(self, column: str, /) -> Ints:
        """As `Readable.lengths`."""
        return self.inner.lengths(column)

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source inside can."""
        return ability(self.inner, kind)

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
