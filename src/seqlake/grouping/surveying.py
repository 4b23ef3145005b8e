"""One pass over rows that are steps: whose each is, when it is, and which columns never change within a sequence."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.errors import SchemaMismatchError, ValidationError
from seqlake.spec.schema import ID, Column, is_number, is_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from seqlake.protocols import Ints, Readable

_UNSEEN, _VALUE, _NULL = 0, 1, 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StepSurvey:
    """What one pass over all rows says.

    Attributes:
        ids: [sequences], in the order in which they first occur.
        codes: [rows] the sequence of each.
        moments: [rows] what orders a sequence's rows.
        constant: Columns with one value throughout each sequence.
        nullable: Columns of numbers that lack some.
        firsts: Column -> [sequences] its value in the first row of each; of the columns asked for.
    """

    ids: list[str]
    codes: Ints
    moments: NDArray[Any]
    constant: set[str]
    nullable: set[str]
    firsts: dict[str, list[Any]]

    @property
    def has_steps(self) -> bool:
        """Whether any sequence has more than one row: else every column is constant, which says nothing."""
        return len(self.ids) < len(self.codes)


def id_column(source: Readable, name: str, /) -> Column:
    """The column that names sequences.

    Raises:
        SchemaMismatchError: No such column, or one of another kind than text or integers.
    """
    column = source.schema[name]
    if not (is_text(column.arrow) or pa.types.is_integer(column.arrow)):
        raise SchemaMismatchError(f"An id is a text or an integer; {name!r} is {column.arrow}.")
    if ID in source.schema and name != ID:
        raise SchemaMismatchError(f"The source has a column {ID!r} beside {name!r}.", hint="Select the others.")
    return column


def surveyed(
    source: Readable, /, *, key: str, steps: str | None, firsts: Collection[str] = (), ids_only: bool = False
) -> StepSurvey:
    """Pass over all rows once; what is kept of them are a few numbers a row and a value a sequence.

    Args:
        source: The rows.
        key: The column of ids.
        steps: The column that orders the rows of a sequence; None for the order of the source.
        firsts: Columns whose first values are wanted.
        ids_only: Look at no other columns.

    Raises:
        SchemaMismatchError: A column that cannot be what it should be.
        ValidationError: A row without an id or a step.
    """
    id_column(source, key)
    if steps is not None and not _is_moment(source.schema[steps].arrow):
        raise SchemaMismatchError(
            f"`steps` names a column of numbers or times; {steps!r} is {source.schema[steps].arrow}."
        )
    looked_at = {} if ids_only else {n: _Watch() for n in source.schema.names if n != key and _watched(source, n)}
    named = list(dict.fromkeys([key, *([] if steps is None else [steps]), *firsts]))
    ids: dict[str, int] = {}
    codes, moments, values = list[Any](), list[Any](), {name: list[Any]() for name in firsts}
    rows = 0
    for batch in _shard_by_shard(source, named, looked_at):
        here = _codes(batch.column(key), ids, key, rows)
        for name, held in values.items():
            _keep_firsts(held, here, batch.column(name), len(ids))
        if steps is not None:
            moments.append(_moments(batch.column(steps), steps))
        for name, watch in looked_at.items():
            if name in batch.schema.names:
                watch.look(here, batch.column(name), len(ids))
        codes.append(here)
        rows += batch.num_rows
    all_codes = np.concatenate([np.empty(0, np.int64), *codes])
    return StepSurvey(
        ids=list(ids),
        codes=all_codes,
        moments=np.arange(rows) if steps is None else np.concatenate(moments or [np.empty(0, np.int64)]),
        constant={name for name, watch in looked_at.items() if watch.constant},
        nullable={name for name, watch in looked_at.items() if watch.nulls},
        firsts=values,
    )


def _shard_by_shard(
    source: Readable, named: Sequence[str], looked_at: Mapping[str, _Watch]
) -> Iterator[pa.RecordBatch]:
    """All rows; of the columns that are looked at those of which more can be learned."""
    for shard in source.shards():
        open_ones = [
            name
            for name, watch in looked_at.items()
            if name not in named and (watch.constant or (source.schema[name].nullable and not watch.nulls))
        ]
        with closing(shard.open()) as reader:
            yield from reader.batches([*named, *open_ones])


def _is_moment(kind: pa.DataType) -> bool:
    return is_number(kind) or bool(pa.types.is_temporal(kind))


def _watched(source: Readable, name: str) -> bool:
    column = source.schema[name]
    kind = column.arrow
    return is_text(kind) or is_number(kind) or bool(pa.types.is_temporal(kind) or pa.types.is_decimal(kind))


def _codes(cells: pa.Array, ids: dict[str, int], key: str, before: int) -> Ints:
    """[rows] the sequence of each; new ones get the next numbers."""
    texts = cells.cast(pa.string())
    missing = np.asarray(pc.fill_null(pc.equal(texts, ""), fill_value=True).to_numpy(zero_copy_only=False))
    if missing.any():
        wrong = before + int(np.flatnonzero(missing)[0])
        raise ValidationError(f"{int(missing.sum())} samples have no {key!r}, the first is sample {wrong}.")
    encoded = texts.dictionary_encode()
    numbers = np.array([ids.setdefault(one, len(ids)) for one in encoded.dictionary.to_pylist()], np.int64)
    return numbers[np.asarray(encoded.indices)] if len(numbers) else np.empty(0, np.int64)


def _moments(cells: pa.Array, steps: str) -> NDArray[Any]:
    if cells.null_count:
        raise ValidationError(f"{cells.null_count} samples have no {steps!r}.")
    if pa.types.is_time(cells.type):
        cells = cells.cast(pa.int64() if pa.types.is_time64(cells.type) else pa.int32())
    values = np.asarray(cells.to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f" and bool(np.isnan(values).any()):
        raise ValidationError(f"{int(np.isnan(values).sum())} samples have NaN as {steps!r}.")
    return values


def _keep_firsts(held: list[Any], codes: Ints, cells: pa.Array, count: int) -> None:
    new, rows = np.unique(codes, return_index=True)
    fresh = new >= len(held)
    held.extend([None] * (count - len(held)))
    for code, row in zip(new[fresh].tolist(), rows[fresh].tolist(), strict=True):
        held[code] = cells[row].as_py()


@dataclass(slots=True)
class _Watch:
    """Whether a column is constant, batch by batch, in whatever order the rows come."""

    constant: bool = True
    nulls: bool = False
    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    state: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    texts: dict[str, int] = field(default_factory=dict)

    def look(self, codes: Ints, cells: pa.Array, count: int) -> None:
        self.nulls = self.nulls or cells.null_count > 0
        if not self.constant:
            return
        tokens, states = self._tokens(cells)
        grown = count - len(self.first)
        self.first = np.concatenate([self.first, np.zeros(grown, np.int64)])
        self.state = np.concatenate([self.state, np.zeros(grown, np.int8)])
        new, rows = np.unique(codes, return_index=True)
        fresh = self.state[new] == _UNSEEN
        self.first[new[fresh]], self.state[new[fresh]] = tokens[rows[fresh]], states[rows[fresh]]
        self.constant = bool((self.first[codes] == tokens).all() and (self.state[codes] == states).all())
        if not self.constant:
            self.first, self.state, self.texts = self.first[:0], self.state[:0], {}

    def _tokens(self, cells: pa.Array) -> tuple[Ints, NDArray[np.int8]]:
        """[rows] a number that is equal where cells are, and whether they are null."""
        valid = np.asarray(cells.is_valid().to_numpy(zero_copy_only=False))
        states = np.where(valid, np.int8(_VALUE), np.int8(_NULL))
        kind = cells.type
        if pa.types.is_floating(kind):
            numbers = np.asarray(pc.fill_null(cells.cast(pa.float64()), 0.0)) + 0.0  # -0 equals 0
            return np.where(np.isnan(numbers), np.nan, numbers).view(np.int64), states
        if pa.types.is_integer(kind):
            whole = np.asarray(pc.fill_null(cells, pa.scalar(0, kind)))
            return whole.astype(np.int64) if kind != pa.uint64() else whole.view(np.int64), states
        encoded = (cells if is_text(kind) else cells.cast(pa.string())).dictionary_encode()
        codes = [self.texts.setdefault(one, len(self.texts)) for one in encoded.dictionary.to_pylist()]
        indices = np.asarray(pc.fill_null(encoded.indices, 0)).astype(np.int64)
        return np.array([*codes, 0], np.int64)[indices], states
