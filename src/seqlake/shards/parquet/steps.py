"""What the writer learns of a column while it writes: lengths, whether steps are regular, where its pages lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seqlake.shards.cells import numpy_type_of
from seqlake.shards.parquet.flatness import entries_of, physical
from seqlake.shards.parquet.index import ColumnIndex
from seqlake.shards.parquet.pages import PLAIN, Page, values_start
from seqlake.spec.schema import is_list

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ColumnSteps:
    """The index entry of one column, grown row group by row group.

    Attributes:
        dim: Values of one step; None until a step was seen.
        regular: Whether every step so far has `dim` values and none is null.
    """

    def __init__(self, *, levels: int, stored: str, raw_width: int = 0, dim: int | None = None) -> None:
        self.levels = levels
        self.dim = 1 if levels == 1 else dim
        self.regular = bool(stored)
        self._stored = stored
        self._raw = raw_width
        self._steps: list[NDArray[np.int32]] = []
        self._page_start: list[int] = []
        self._page_row: list[int] = []
        self._new: list[NDArray[np.int32]] = []  # of the row group that is being written

    def add(self, cells: pa.Array) -> None:
        """Take over the lengths of these cells, as they are stored."""
        lengths = _filled(pc.binary_length(cells) if self._raw else pc.list_value_length(cells))
        self._new.append(lengths // np.int32(self._raw) if self._raw else lengths)  # -1 // n is -1
        if self._raw:
            return
        steps = cells.flatten()
        if self.levels == 2 and len(steps):
            sizes = pc.list_value_length(steps)
            bounds = pc.min_max(sizes).as_py()
            self.dim = self.dim if self.dim is not None else bounds["max"]
            same = bounds["min"] == bounds["max"] == self.dim and self.dim
            self.regular = bool(self.regular and same and not steps.null_count)
            steps = steps.flatten()
        self.regular = self.regular and not steps.null_count

    def place(self, data: memoryview, pages: list[Page], /, *, first_row: int, optional: bool, flat: bool) -> None:
        """Take over where the pages of one column chunk lie.

        Args:
            data: The file from its first byte on.
            pages: The chunk's pages.
            first_row: First row of the row group; the rows themselves were added before.
            optional: Whether the column has definition levels.
            flat: Whether the layout leaves values as they are.
        """
        part = np.concatenate(self._new)
        self._steps.append(part)
        self._new = []
        self.regular = self.regular and flat
        if not self.regular:
            return
        entry = ColumnIndex(
            stored=self._stored,
            dim=self.dim or 1,
            page_start=np.zeros(0, np.int64),
            page_row=np.zeros(0, np.int64),
            steps=part,
        )
        entries = np.cumsum(entries_of(entry, 0 if self._raw else self.levels))
        before = 0
        for page in pages:
            row = 0 if before == 0 else int(np.searchsorted(entries, before)) + 1
            begins = before == 0 or (row <= entries.size and entries[row - 1] == before)
            if not (page.is_data and page.encoding == PLAIN and begins):
                self.regular = False  # a page that does not begin with a row, or is not PLAIN
                return
            self._page_start.append(values_start(data, page, repeated=not self._raw, optional=optional))
            self._page_row.append(first_row + row)
            before += page.values

    def entry(self) -> ColumnIndex:
        """The column's entry in the index; without pages where it is not flat."""
        flat = self.regular
        return ColumnIndex(
            stored=self._stored,
            dim=self.dim or 0,
            page_start=np.array(self._page_start if flat else [], np.int64),
            page_row=np.array(self._page_row if flat else [], np.int64),
            steps=np.concatenate(self._steps) if self._steps else np.zeros(0, np.int32),
        )


def _filled(lengths: pa.Array) -> NDArray[np.int32]:
    return np.asarray(pc.fill_null(lengths, -1)).astype(np.int32)


def leaf_entries(array: pa.Array, /) -> list[int]:
    """Level entries that each Parquet column of an Arrow array takes: values, nulls and empty lists."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_entries(array.storage)
    if pa.types.is_struct(kind):
        return [count for child in array.flatten() for count in leaf_entries(child)]
    if pa.types.is_map(kind):
        inner = pa.struct([kind.key_field, kind.item_field])
        array, kind = array.cast(pa.list_(pa.field("entries", inner, nullable=False))), pa.list_(inner)
    if is_list(kind):
        sizes = pc.fill_null(pc.list_value_length(array), 0)
        hidden = len(array) - int(pc.sum(pc.not_equal(sizes, 0)).as_py() or 0)
        return [count + hidden for count in leaf_entries(array.flatten())]
    return [len(array)]


def stored_name(kind: pa.DataType, /) -> str:
    """Type of one number of a column as its bytes lie (`<f4`); empty for columns of other types."""
    dtype = numpy_type_of(kind)
    return "" if dtype is None else physical(dtype)[1].str
