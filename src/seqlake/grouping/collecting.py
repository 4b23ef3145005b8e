"""Columns of a table renamed, or several collected into one: `x_0..x_6` becomes one array of seven numbers a row."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.abilities import Checked, HasStorage, SaysMapping, ability
from seqlake.errors import SchemaMismatchError
from seqlake.protocols import Mapped
from seqlake.shards.scanned import ScannedDataset, ScannedReader, ScannedShard
from seqlake.spec.column_types import ColumnType, Embedding
from seqlake.spec.schema import Column, Schema, dtype_of, is_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from seqlake.abilities import Kind
    from seqlake.protocols import Flat, Ints, Readable, Shard

_RANGE = re.compile(r"(?P<stem>.*?)(?P<first>\d+)\s*\.\.\s*(?P<again>.*?)(?P<last>\d+)")
_MOST = 1 << 16  # columns of one signal


def parts_of(text: str, names: Sequence[str], /) -> list[str]:
    """The columns that a source names, in its order.

    Args:
        text: A column; several with commas between them, `pose.x, pose.y`; a range, `x_0..x_6`; or a pattern, `pose.*`,
            whose columns are sorted by the numbers in their names, else stay as they stand.
        names: The columns that there are.

    Raises:
        SchemaMismatchError: One that is not there, or twice.

    Example:
        >>> parts_of("x_8..x_10", ["x_8", "x_10", "x_9"])
        ['x_8', 'x_9', 'x_10']
    """
    if text in names:
        return [text]
    chosen: list[str] = []
    for part in (one.strip() for one in text.split(",")):
        if part in names:
            chosen.append(part)
        elif (match := _RANGE.fullmatch(part)) is not None:
            chosen += _numbered(match, part)
        elif any(mark in part for mark in "*?["):
            chosen += _matching(part, names)
        else:
            chosen.append(part)
    missing = next((name for name in chosen if name not in names), None)
    if missing is not None or not chosen:
        raise SchemaMismatchError(f"The mapping names {missing or text!r}, and there are {', '.join(names)}.")
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise SchemaMismatchError(f"The mapping's source {text!r} names {twice!r} twice.")
    return chosen


def _numbered(match: re.Match[str], part: str) -> list[str]:
    first, last = int(match["first"]), int(match["last"])
    if match["stem"] != match["again"] or last < first or last - first >= _MOST:
        raise SchemaMismatchError(f"Expected a range of columns as x_0..x_6, found {part!r}.")
    width = len(match["first"]) if match["first"].startswith("0") else 0
    return [f"{match['stem']}{number:0{width}d}" for number in range(first, last + 1)]


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    chosen = [name for name in names if fnmatchcase(name, pattern)]
    numbers = [re.findall(r"\d+", name) for name in chosen]
    if chosen and all(numbers) and len({len(one) for one in numbers}) == 1:
        chosen.sort(key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    if not chosen:
        raise SchemaMismatchError(f"No column matches {pattern!r}; there are {', '.join(names)}.")
    return chosen


def collected(
    source: Readable, declared: Mapping[str, tuple[str, ColumnType | None]], /
) -> tuple[Readable, dict[str, ColumnType]]:
    """The rows with some columns renamed or collected; those that the mapping does not use stay as they are.

    Args:
        source: The rows.
        declared: Column -> what it is made of, as `parts_of` reads it, and what it means.

    Returns:
        The rows, and the types of columns that are not collected.

    Raises:
        SchemaMismatchError: A column that is not there, that is no number where several are collected, or a name that
            another column has.
    """
    schema = source.schema
    sources = {name: parts_of(text, schema.names) for name, (text, _) in declared.items()}
    used = {part for parts in sources.values() for part in parts}
    if clash := next((name for name in sources if name in schema.names and name not in used), None):
        raise SchemaMismatchError(f"The mapping gives a column the name {clash!r}, which another column has.")
    columns = {name: _made(name, parts, declared[name][1], schema) for name, parts in sources.items()}
    places = {part: name for name, parts in sources.items() for part in parts[:1]}
    order = [places.get(name, name) for name in schema.names if name not in used or name in places]
    kept = {name: columns.get(name) or schema[name] for name in dict.fromkeys([*order, *columns])}
    key = schema.id if schema.id in kept and schema.id not in columns else None
    logical = Schema(kept, id=key, metadata=schema.metadata)
    digest = hashlib.sha256(repr([sorted(sources.items()), [str(one) for one in kept.values()]]).encode()).hexdigest()
    parts = [
        ScannedShard(
            key=f"{name}#{hashlib.sha256(f'{tail} {digest}'.encode()).hexdigest()[:16]}",
            rows=shard.rows,
            nbytes=shard.nbytes,
            reader=partial(CollectingReader, shard, logical.arrow, sources),
        )
        for shard in source.shards()
        for name, _, tail in [shard.key.rpartition("#")]
    ]
    types = {name: kind for name, (_, kind) in declared.items() if kind is not None and len(sources[name]) == 1}
    return CollectedRows(root=source.root, schema=logical, parts=parts, source=source, sources=sources), types


def _made(name: str, parts: Sequence[str], kind: ColumnType | None, schema: Schema) -> Column:
    if len(parts) == 1:
        held = schema[parts[0]]
        return Column(name, held.arrow, held.type, nullable=held.nullable)
    numbers = {part: schema[part].arrow for part in parts}
    wrong = next((part for part, one in numbers.items() if not is_number(one)), None)
    if wrong is not None:
        raise SchemaMismatchError(f"Column {name!r} is collected of numbers, and {wrong!r} is {numbers[wrong]}.")
    common = _common(list(numbers.values()))
    said = {} if kind is None else {key: one for key, one in kind.fields.items() if key not in {"dim", "dtype"}}
    facts = {"names": list(parts), **said}
    value = (
        pa.float64() if any(schema[part].nullable for part in parts) and not pa.types.is_floating(common) else common
    )
    vector = Embedding(dim=len(parts), **facts)
    return Column(name, pa.list_(value), vector)


def _common(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The narrowest type that holds the numbers of all."""
    if all(kind == kinds[0] for kind in kinds):
        return kinds[0] if not pa.types.is_boolean(kinds[0]) else pa.uint8()
    return pa.from_numpy_dtype(np.result_type(*(dtype_of(kind) for kind in kinds)))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CollectedRows(ScannedDataset):
    """Rows with some columns renamed or collected: a `Readable`.

    Attributes:
        source: The rows as they were.
        sources: Column -> the columns that it is made of.
    """

    source: Readable
    sources: Mapping[str, Sequence[str]]

    def ability(self, kind: type[Kind], /) -> Kind | None:
        """What the source's plug knows beyond the protocol: findings of its own, its storage options."""
        if isinstance(self, kind):
            return self
        return ability(self.source, kind) if kind in {Checked, HasStorage} else None

    def mapping(self) -> Sequence[Mapped]:
        """What became of each column, collected ones named together."""
        inner = ability(self.source, SaysMapping)
        before = [Mapped(source=n, column=n) for n in self.source.schema.names] if inner is None else inner.mapping()
        by_column = {one.column: one.source for one in before if one.column is not None}
        used = {part for parts in self.sources.values() for part in parts}
        stays = [one for one in before if one.column is None or one.column not in used]
        named = [
            Mapped(
                source=", ".join(by_column.get(part, part) for part in parts),
                column=name,
                how="" if len(parts) == 1 else f"{len(parts)} columns collected",
            )
            for name, parts in self.sources.items()
        ]
        return [*stays, *named]


class CollectingReader(ScannedReader):
    """Reads rows with columns renamed or collected.

    Args:
        shard: The rows as they were.
        types: The logical Arrow schema.
        sources: Column -> the columns that it is made of.
    """

    def __init__(self, shard: Shard, types: pa.Schema, sources: Mapping[str, Sequence[str]], /) -> None:
        super().__init__(types, shard.rows)
        self._sources = sources
        self._reader = shard.open()

    def batches(self, columns: Sequence[str], /, *, rows: Ints | None = None) -> Iterator[pa.RecordBatch]:
        """See `ShardReader.batches`: the columns asked for, in the source's own batches."""
        for name in columns:
            self.type_of(name)
        sources = {name: self._sources.get(name, [name]) for name in columns}
        asked = list(dict.fromkeys(part for parts in sources.values() for part in parts))
        for batch in self._reader.batches(asked, rows=rows):
            if not columns:
                yield batch
                continue
            arrays = [self._array(name, [batch.column(part) for part in parts]) for name, parts in sources.items()]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.types.field(name) for name in columns]))

    def _array(self, name: str, cells: list[pa.Array]) -> pa.Array:
        kind = self.types.field(name).type
        if len(self._sources.get(name, [name])) == 1:
            return cells[0]
        value, count = kind.value_type, len(cells[0])
        numbers = np.empty((count, len(cells)), dtype_of(value))
        for at, one in enumerate(cells):
            plain = one.cast(value, safe=False) if one.type != value else one
            numbers[:, at] = pc.fill_null(plain, float("nan")) if plain.null_count else plain
        offsets = np.arange(0, (count + 1) * len(cells), len(cells), dtype=np.int32)[: count + 1]
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers.reshape(-1), value), type=kind)

    def flat(self, column: str, /) -> Flat | None:
        """As the source's, of columns that are not collected."""
        self.type_of(column)
        parts = self._sources.get(column, [column])
        return self._reader.flat(parts[0]) if len(parts) == 1 else None

    def close(self) -> None:
        """Close the source's reader."""
        self._reader.close()
