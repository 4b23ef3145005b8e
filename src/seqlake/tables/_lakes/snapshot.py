"""A version of a lake table, with what only lakes know of it: partitions and bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqlake.tables._lakes import checking
from seqlake.versions.snapshot import TableSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from seqlake.protocols import Depth
    from seqlake.spec.findings import Finding
    from seqlake.tables._lakes.context import LakeContext
    from seqlake.versions.state import TableFile


class LakeSnapshot(TableSnapshot):
    """One version of a lake table: `HasBounds` and `Checked` besides."""

    context: LakeContext

    @property
    def partition_by(self) -> Sequence[str]:
        """The columns that the lake partitions by."""
        return self.state.partition_by

    @property
    def is_typed(self) -> bool:
        """Whether the table has the property that makes it a Mixtrain dataset."""
        return bool(self.state.mixtrain)

    def bounds(self, column: str, /) -> list[tuple[object, object] | None]:
        """[shards] the least and the most that a column has in each, as partition or by the lake's statistics.

        (None, None) where every cell is null; None where nothing is known.
        """
        return [_bounds(file, column) for file in self.state.files]

    def check(self, depth: Depth, /) -> Iterator[Finding]:
        """What only the table can know is wrong: missing, changed or torn shards, files that are gone."""
        return checking.check(self.context, self.state, depth)


def _bounds(file: TableFile, column: str) -> tuple[object, object] | None:
    if column in file.constants:
        return file.constants[column], file.constants[column]
    low, high, _ = file.statistics.get(column, (None, None, 0))
    return None if low is None or high is None else (low, high)
