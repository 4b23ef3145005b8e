"""Rows of one transaction divided by the values that a lake partitions by: each value has shards of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.abilities import NumbersFields, Partitioned, ability
from seqlake.dataset.writing.references import may_name
from seqlake.spec.rules.references import paths_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from seqlake.dataset.writing.staging import Staging
    from seqlake.protocols import Copied, Table, Written
    from seqlake.spec.schema import Schema

_MOST_OPEN = 64  # shards that are written at once; each holds back up to a row group


class Divided:
    """The shards under way of one transaction, one for each combination of partition values.

    Args:
        schema: Of the rows.
        table: Says by which columns, and what its lake makes of their cells.
        made: Gives a `Staging` for one combination of values.
    """

    def __init__(
        self,
        schema: Schema,
        table: Partitioned,
        open_staging: Callable[[Mapping[str, object]], Staging],
        /,
    ) -> None:
        self._schema = schema
        self._by = tuple(table.partition_by)
        self._made = open_staging
        self._values = table.partition_values
        self._open: dict[tuple[object, ...], Staging] = {}
        self._claimed: set[str] = set()
        self._told: Sequence[Copied] = ()
        self._known: dict[str, Copied] = {}

    def write(self, batch: pa.RecordBatch, files: Sequence[Copied]) -> list[Written]:
        """Append rows; gives the shards that had to be finished to make room.

        Args:
            batch: Rows in logical types.
            files: Files that were copied in for rows since the last close.
        """
        if files is not self._told:
            self._told, self._known = files, {}
        self._known.update((file.path, file) for file in files[len(self._known) :])
        done: list[Written] = []
        for values, part in divided(batch, self._values(batch)):
            if values not in self._open:
                if len(self._open) >= _MOST_OPEN:
                    done += self._finished()
                self._open[values] = self._made(dict(zip(self._by, values, strict=True)))
            one = self._open[values]
            for piece in one.parts(part):
                mine = self._files_of(piece)
                self._claimed.update(file.path for file in mine)
                one.carry(mine)
                one.write(piece)
        return done

    def _files_of(self, piece: pa.RecordBatch) -> list[Copied]:
        known = self._known
        return [known[path] for path in dict.fromkeys(_named(piece, self._schema)) if path in known] if known else []

    def close(self, files: Sequence[Copied]) -> list[Written]:
        """Finish every shard; files that no row has named yet are listed with all of them."""
        left = [file for file in files if file.path not in self._claimed]
        for one in self._open.values():
            one.carry(left)
        self._claimed = set()
        return self._finished()

    def abort(self) -> None:
        """Give up the shards under way."""
        for one in self._open.values():
            one.abort_shard()
        self._open = {}

    def _finished(self) -> list[Written]:
        done = []
        for one in self._open.values():
            one.close_shard()
            done += one.written
        self._open = {}
        return done


def divided(
    batch: pa.RecordBatch, partitions: Iterable[tuple[object, ...]]
) -> Iterator[tuple[tuple[object, ...], pa.RecordBatch]]:
    """The rows of a batch by their partitions, in the order in which these come."""
    rows: dict[tuple[object, ...], list[int]] = {}
    for row, values in enumerate(partitions):
        rows.setdefault(values, []).append(row)
    for values, mine in rows.items():
        yield values, batch if len(rows) == 1 else batch.take(pa.array(mine, pa.int64()))


def partition_of(table: Table, /) -> Sequence[str]:
    """The columns that new shards of a table are partitioned by; none for standalone tables."""
    divided = ability(table, Partitioned)
    return () if divided is None else divided.partition_by


def field_ids_of(table: Table, schema: Schema, /) -> Mapping[str, int]:
    """What the table's lake calls the columns in its files, where it finds them by number; else nothing."""
    known = ability(table, NumbersFields)
    return {} if known is None else known.field_ids(schema)


def _named(batch: pa.RecordBatch, schema: Schema) -> Iterator[str]:
    for name in batch.schema.names:
        if may_name(schema[name]):
            for cell in batch.column(name).to_pylist():
                yield from (path for path, _ in paths_in(cell))
