"""What differs between two versions of a dataset, or two datasets: rows by id, cells bit for bit, columns, types."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import KeepsFiles, ability
from seqlake.dataset.reading.excerpt import Excerpt
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.writing.references import mapped, refers
from seqlake.errors import SchemaMismatchError, UnsafeReferenceError
from seqlake.files.locations import join
from seqlake.spec.rules.references import paths_in
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.dataset.selection import Selection

_NAMED = 10  # ids that are printed
_DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What must change in one dataset to make it the other; false where nothing must.

    Attributes:
        added: Ids of rows that only the second has, in its order.
        removed: Ids of rows that only the first has.
        changed: Id -> the columns of both in which its cells differ.
        columns_added: Columns that only the second has.
        columns_removed: Columns that only the first has.
        types: Column -> its type in the first and in the second, where they differ.
        metadata: Whether the metadata of the datasets differ beyond the types of columns.

    Example:
        ```python
        difference = sl.diff(before, ds)
        difference.added, difference.changed          # ['ep_900'], {'ep_001': ['reward']}
        ```
    """

    added: Sequence[str]
    removed: Sequence[str]
    changed: Mapping[str, Sequence[str]]
    columns_added: Sequence[str]
    columns_removed: Sequence[str]
    types: Mapping[str, tuple[str, str]]
    metadata: bool = False

    def __bool__(self) -> bool:
        rows = self.added or self.removed or self.changed
        return bool(rows or self.columns_added or self.columns_removed or self.types or self.metadata)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": {name: list(columns) for name, columns in self.changed.items()},
            "columns_added": list(self.columns_added),
            "columns_removed": list(self.columns_removed),
            "types": {name: list(pair) for name, pair in self.types.items()},
            "metadata": self.metadata,
        }

    def __str__(self) -> str:
        if not self:
            return "no difference"
        lines = [f"+ column {name}" for name in self.columns_added]
        lines += [f"- column {name}" for name in self.columns_removed]
        lines += [f"~ column {name}: {old} -> {new}" for name, (old, new) in self.types.items()]
        lines += ["~ metadata"] if self.metadata else []
        lines += _some("+", "added", self.added)
        lines += _some("-", "removed", self.removed)
        lines += _some("~", "changed", [f"{name} ({', '.join(columns)})" for name, columns in self.changed.items()])
        return "\n".join(lines)


def diff(first: Selection, second: Selection, /) -> Difference:
    """What differs between two versions of a dataset, or two datasets.

    Rows are known by their ids. Shards that both have are not read; of all others every cell of the columns that both
    have, with one type, is compared bit for bit. References to files are compared by what they name: they are the same
    where they lead to one place, and where both were copied in with the same bytes (SHA-256), so that a dataset equals
    its copy. No file is opened: of two places whose bytes nobody has noted, nothing is known, and they differ.

    Args:
        first: The older one: a dataset, or some rows and columns of one.
        second: The newer one.

    Raises:
        SchemaMismatchError: One has no ids.

    Example:
        ```python
        print(sl.diff(sl.open("data/arm", version=1), sl.open("data/arm")))
        ```
    """
    one, two = first.schema, second.schema
    if one.id is None or two.id is None:
        raise SchemaMismatchError(
            "Rows are compared by their ids, and these are samples without one.",
            hint="sl.convert(..., sequence_id=COLUMN) makes sequences of them.",
        )
    common = [name for name in one.names if name in two and name != one.id]
    types = {name: (str(one[name]), str(two[name])) for name in common if str(one[name]) != str(two[name])}
    same = [name for name in common if one[name].logical == two[name].logical]
    before, after = _ids(first), _ids(second)
    there, here = set(before), set(after)
    changed = _changed(first, second, same, there & here)
    metadata = one.metadata.to_json() != two.metadata.to_json()
    apart = types or any(name not in one or name not in two for name in (*one.names, *two.names))
    return Difference(
        added=[name for name in after if name not in there],
        removed=[name for name in before if name not in here],
        changed={name: changed[name] for name in before if name in changed},
        columns_added=[name for name in two.names if name not in one],
        columns_removed=[name for name in one.names if name not in two],
        types=types,
        metadata=metadata and not apart,
    )


def _ids(selection: Selection) -> list[str]:
    ids: list[str] = selection.select(str(selection.schema.id)).to_arrow().column(0).to_pylist()
    return ids


def _changed(first: Selection, second: Selection, columns: Sequence[str], both: set[str]) -> dict[str, list[str]]:
    """Id -> columns whose cells differ."""
    if not columns or not both:
        return {}
    shared = {shard.key for shard in first.shards()} & {shard.key for shard in second.shards()}
    naming = {name for name in columns if refers(first.schema[name]) and refers(second.schema[name])}
    before = dict(_Cells(first, columns, naming).of(both, shared))
    changed: dict[str, list[str]] = {}
    for key, new in _Cells(second, columns, naming).of(both, shared):
        # A row of a shard that both have stands in neither, unless the other one has it elsewhere as well.
        old = before.get(key)
        if old is not None and old != new:
            changed[key] = [name for place, name in enumerate(columns) if not new.has(place, old)]
    return {key: names for key, names in changed.items() if names}


@dataclass(frozen=True, slots=True)
class _Row:
    """The cells of one row, as they are compared.

    Attributes:
        digests: 16 bytes for each column; of references only what stands beside them.
        named: Column -> the files it names, each by its location and the digest of its bytes, where that is known.
    """

    digests: bytes
    named: Mapping[int, Sequence[tuple[str, str]]]

    def has(self, place: int, other: _Row) -> bool:
        """Whether it has the same cell as another row: the same values, the same files."""
        part = slice(place * _DIGEST, (place + 1) * _DIGEST)
        mine, theirs = (one.named.get(place, ()) for one in (self, other))
        same = len(mine) == len(theirs) and all(
            here == there or (digest and digest == known)
            for (here, digest), (there, known) in zip(mine, theirs, strict=True)
        )
        return bool(same) and self.digests[part] == other.digests[part]


class _Cells:
    """Reads the cells of one side."""

    def __init__(self, selection: Selection, columns: Sequence[str], naming: set[str]) -> None:
        self._selection = selection
        self._columns = columns
        self._naming = naming
        shows = Excerpt.of(selection)
        known = ability(shows, KeepsFiles) if naming else None
        self._root = shows.root
        self._copied = {
            path: file.sha256
            for shard in (() if known is None else shows.source.shards())
            for path, file in (known.copied(shard.key) if known is not None else {}).items()
        }

    def of(self, ids: set[str], but: set[str]) -> Iterator[tuple[str, _Row]]:
        """(id, cells) of these rows in shards other than those of these keys; each shard is opened once."""
        key = str(self._selection.schema.id)
        for shard in self._selection.shards():
            if shard.key in but:
                continue
            for batch in one_shard(shard, [key, *self._columns]):
                for row, name in enumerate(batch.column(0).to_pylist()):
                    if name in ids:
                        yield name, self._row([cells.slice(row, 1) for cells in batch.columns[1:]])

    def _row(self, cells: Sequence[pa.Array]) -> _Row:
        named: dict[int, Sequence[tuple[str, str]]] = {}
        digests = []
        for place, (name, cell) in enumerate(zip(self._columns, cells, strict=True)):
            if name in self._naming:
                value = cell[0].as_py()
                named[place] = [self._file(path) for path, _ in paths_in(value)]
                digests.append(_hashed([repr(mapped(value, lambda _: "")).encode("utf-8", "surrogatepass")]))
            else:
                digests.append(_digest(cell))
        return _Row(b"".join(digests), named)

    def _file(self, reference: str) -> tuple[str, str]:
        with suppress(UnsafeReferenceError):  # then the text is all there is
            return join(self._root, reference), self._copied.get(reference, "")
        return reference, ""


def _digest(cell: pa.Array) -> bytes:
    """The bytes of one cell, or what they hash to: lengths of lists, which values are null, and the values."""
    parts: list[bytes] = []
    while is_list(cell.type):
        parts += [_nulls(cell), np.asarray(pc.list_value_length(cell).fill_null(0)).tobytes()]
        cell = cell.flatten()
    parts.append(_nulls(cell))
    if pa.types.is_integer(cell.type) or pa.types.is_floating(cell.type):
        parts.append(np.ascontiguousarray(cell.drop_null().to_numpy(zero_copy_only=False)).tobytes())
    else:
        parts.append(repr(cell.to_pylist()).encode("utf-8", "surrogatepass"))
    return _hashed(parts)


def _hashed(parts: Sequence[bytes]) -> bytes:
    return hashlib.blake2b(b"|".join(parts), digest_size=_DIGEST).digest()


def _nulls(cell: pa.Array) -> bytes:
    return np.packbits(np.asarray(cell.is_null())).tobytes() if cell.null_count else b""


def _some(sign: str, what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    lines = [f"{sign} {len(names)} sequences {what}"]
    lines += [f"    {name}" for name in names[:_NAMED]]
    return lines + ([f"    … and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])
