"""Rows as others take them: an Arrow stream, a table in memory, a Polars or pandas frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import pyarrow as pa

from seqlake.dataset.reading import frames, streaming
from seqlake.shards.gathered import gathered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd
    import polars as pl

    from seqlake.dataset.selection import Selection
    from seqlake.spec.schema import Schema


class Tabular:
    """What a selection offers to other libraries, from its schema and its batches."""

    @property
    def schema(self) -> Schema:
        """The columns that are selected."""
        raise NotImplementedError

    def batches(self, columns: Sequence[str] | None = None, /) -> Iterator[pa.RecordBatch]:
        """The rows, in order."""
        raise NotImplementedError

    def _stream(self) -> streaming.Stream:
        return streaming.Stream(self.schema.arrow, self.batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._stream().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._stream().__arrow_c_schema__()

    def to_arrow(self) -> pa.Table:
        """All of it in memory, in logical types: temporal columns as `list<fixed_size_list<float>[D]>`."""
        return pa.Table.from_batches(gathered(self.batches(), "This selection"), schema=self.schema.arrow)

    def to_polars(self) -> pl.DataFrame:
        """All of it as a Polars frame: temporal columns as `List(Array(Float32, D))`.

        Raises:
            MissingDependencyError: Polars is not installed.
        """
        return frames.polars_frame(cast("Selection", self))

    def to_pandas(self, *, signals: Literal["numpy"] | None = None) -> pd.DataFrame:
        """All of it as a pandas frame.

        Args:
            signals: Temporal and frames columns are left out unless this is `"numpy"`: then a cell of a temporal
                column is a numpy array [T, D], and one of a frames column a list.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        return frames.pandas_frame(cast("Selection", self), signals=signals)
