"""Labels from anywhere: columns that are there are changed by id, others are added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.errors import SchemaMismatchError

if TYPE_CHECKING:
    from seqlake.dataset.dataset import Dataset
    from seqlake.protocols import Version


def label(dataset: Dataset, labels: pa.Table, /) -> Version:
    """Put cells into columns by id: one commit for those that are there, and one for each that is added.

    Args:
        dataset: Changed in its newest version, which it then shows.
        labels: Ids and one or more columns of scalars or vectors.

    Raises:
        SequenceNotFoundError: An id is not in the dataset.
        SchemaMismatchError: No ids, nothing beside them, or cells of another type than the column's.
    """
    dataset.refresh()
    key = str(dataset.schema.id)
    columns = [name for name in labels.column_names if name != key]
    if key not in labels.column_names or not columns:
        raise SchemaMismatchError(
            f"Labels are a column {key!r} and others; found {', '.join(labels.column_names) or 'no columns'}."
        )
    there = [name for name in columns if name in dataset.schema]
    version = dataset.update(labels.select([key, *there])) if there else dataset.version
    ids = labels.column(key).to_pylist()
    for name in columns:
        if name not in there:
            kind = labels.schema.field(name).type
            kind = pa.string() if pa.types.is_null(kind) else kind
            values = dict(zip(ids, labels.column(name).to_pylist(), strict=True))
            version = dataset.add_column(name, kind, values=values)
    return version
