"""Some rows under the eyes of the rules, and what is remembered from one batch to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from seqlake.errors import SchemaMismatchError
from seqlake.spec.alignment import Clock
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

    from seqlake.spec.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows, as they are stored or as streams show them, and what is known of them."""

    rows: pa.RecordBatch
    schema: Schema
    location: str = ""
    """The shard, relative to the dataset's root."""

    start: int = 0
    """Number of the first of these rows in its shard."""

    clock: Clock = field(default_factory=lambda: Clock(rate=None, rule="not asked"))

    def held(self, name: str, /) -> Column:
        """A column as these rows hold it: its declared type over the Arrow type that is there."""
        return Column(name, self.rows.schema.field(name).type, self.schema[name].type)

    def columns(self, *categories: str) -> list[str]:
        """The columns of these categories that the rows have, in a form that can be judged cell by cell."""
        wanted = [n for n, c in self.schema.items() if c.category in categories and n in self.rows.schema.names]
        return [n for n in wanted if self.held(n).category == self.schema[n].category and _readable(self.held(n))]

    def steps(self, name: str, /) -> list[int]:
        """T of each cell of a list or raw column; -1 for null."""
        return steps_of(self.rows.column(name), self.held(name))

    def place(self, row: int, column: str = "", step: int | None = None) -> dict[str, Any]:
        """Where a finding is."""
        name = ""
        if self.schema.id is not None and self.schema.id in self.rows.schema.names:
            name = str(self.rows.column(self.schema.id)[row].as_py() or f"row {self.start + row}")
        return {"location": self.location, "sequence_id": name, "column": column, "step": step}


def _readable(column: Column) -> bool:
    """Whether raw bytes can be understood; where not, M111 has said so."""
    if not column.raw:
        return True
    try:
        return column.dim is not None and column.value_type is not None
    except SchemaMismatchError:
        return False


@dataclass(slots=True)
class Ids:
    """What is remembered from one batch to the next."""

    first: dict[str, str] = field(default_factory=dict)
    """The place of each id."""

    dims: dict[str, int] = field(default_factory=dict)
    """Numbers per step of each signal that does not declare them."""


def steps_of(cells: pa.Array, column: Column, /) -> list[int]:
    """T of each cell; -1 for null."""
    if column.raw:
        width = step_width(column)
        return [-1 if n is None else n // width for n in pc.binary_length(cells).to_pylist()]
    return [-1 if n is None else n for n in pc.list_value_length(cells).to_pylist()]


def step_width(column: Column) -> int:
    """Bytes of one step of a raw column."""
    assert column.value_type is not None
    assert column.dim is not None
    return column.dim * int(column.value_type.bit_width) // 8
