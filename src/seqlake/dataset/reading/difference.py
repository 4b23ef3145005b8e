"""What differs between two versions of a dataset, or two datasets: rows by id, cells bit for bit, columns, types."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.reading.streaming import one_shard
from seqlake.errors import SchemaMismatchError
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.dataset.selection import Selection

_NAMED = 10  # ids that are printed


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
    have, with one type, is compared bit for bit. References to files are compared as text: a copied dataset has other
    ones for the same bytes.

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
        raise SchemaMismatchError("Rows are compared by their ids, and these are samples without one.")
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
    changed: dict[str, list[str]] = {}
    for name in columns:
        old = dict(_digests(first, name, both, shared))
        new = dict(_digests(second, name, both, shared))
        # A row of a shard that both have stands in neither, unless the other one has it elsewhere as well.
        for key in old.keys() & new.keys():
            if old[key] != new[key]:
                changed.setdefault(key, []).append(name)
    return changed


def _digests(selection: Selection, column: str, ids: set[str], shared: set[str]) -> Iterator[tuple[str, bytes]]:
    """(id, digest of the cell) of the rows of shards that only one of the two has."""
    key = str(selection.schema.id)
    for shard in selection.shards():
        if shard.key in shared:
            continue
        for batch in one_shard(shard, [key, column]):
            cells = batch.column(1)
            for row, name in enumerate(batch.column(0).to_pylist()):
                if name in ids:
                    yield name, _digest(cells.slice(row, 1))


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
    return hashlib.blake2b(b"|".join(parts), digest_size=16).digest()


def _nulls(cell: pa.Array) -> bytes:
    return np.packbits(np.asarray(cell.is_null())).tobytes() if cell.null_count else b""


def _some(sign: str, what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    lines = [f"{sign} {len(names)} sequences {what}"]
    lines += [f"    {name}" for name in names[:_NAMED]]
    return lines + ([f"    … and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])
