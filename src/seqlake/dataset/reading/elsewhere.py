"""Which buckets and web servers the references of a dataset name: what reading its files would ask."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from seqlake.dataset.writing.references import refers
from seqlake.files.locations import shown

if TYPE_CHECKING:
    from seqlake.dataset.selection import Selection

_PLACE = r"^(?P<place>[A-Za-z][A-Za-z0-9+.-]+://[^/?#\\]*)"


def elsewhere(selection: Selection, /) -> dict[str, int]:
    """How many references name each bucket or web server that is not the root's own, most first.

    Only the columns that hold references are read; nothing is asked of the places.

    Example:
        ```python
        elsewhere(ds)                       # {'s3://films': 1200, 'https://cams.lab.example': 3}
        ```
    """
    columns = [name for name in selection.schema if refers(selection.schema[name])]
    counts: Counter[str] = Counter()
    for batch in selection.batches(columns) if columns else ():
        for column in batch.columns:
            places = pc.struct_field(pc.extract_regex(_texts(column), _PLACE), "place")
            for one in pc.value_counts(places).to_pylist():
                if one["values"] is not None:
                    counts[shown(one["values"]).lower()] += one["counts"]
    home = pc.extract_regex(pa.scalar(selection.root), _PLACE).as_py()
    if home is not None:
        counts.pop(shown(home["place"]).lower(), None)
    counts.pop("file://", None)
    return dict(counts.most_common())


def _texts(column: pa.Array) -> pa.Array:
    """The references of a column's cells: text, a list of texts, or a struct with `url`."""
    kind = column.type
    if pa.types.is_struct(kind):
        place = kind.get_field_index("url")
        return pa.nulls(len(column), pa.string()) if place < 0 else pc.struct_field(column, place).cast(pa.string())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _texts(column.flatten())
    return column.cast(pa.string())
