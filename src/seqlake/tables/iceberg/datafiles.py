"""A shard that our writer made, as Iceberg's manifests describe it: so its layout and its offset index survive."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

from seqlake.errors import SchemaMismatchError
from seqlake.tables.iceberg.schemas import names_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema as IcebergSchema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

    from seqlake.tables._lakes.engine import Added

_LONGEST_BOUND = 16  # characters: what other clients keep of a text's bounds


def data_file(written: Added, location: str, metadata: TableMetadata, /) -> DataFile:
    """What the manifest will say of a shard; the shard itself is not opened.

    Args:
        written: The shard, with the values of its partition.
        location: Where it lies, absolute.
        metadata: Of the table that it is added to.
    """
    from pyiceberg.manifest import DataFile as Made
    from pyiceberg.manifest import DataFileContent, FileFormat

    schema, spec = metadata.schema(), metadata.spec()
    nulls, low, high = _statistics(written, schema)
    return Made.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition_record(written.partition, spec),
        record_count=written.rows,
        file_size_in_bytes=written.nbytes,
        column_sizes={},
        value_counts=dict.fromkeys(nulls, written.rows),
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=low,
        upper_bounds=high,
        split_offsets=None,
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def partition_record(partition: Mapping[str, object], spec: PartitionSpec, /) -> Record:
    """The values of a partition in the order of its fields.

    Raises:
        SchemaMismatchError: One is missing.
    """
    from pyiceberg.typedef import Record

    missing = [one.name for one in spec.fields if one.name not in partition]
    if missing:
        raise SchemaMismatchError(
            f"The table is partitioned by {', '.join(one.name for one in spec.fields)}; a shard gives no value for "
            f"{', '.join(missing)}.",
            hint="Split the rows by partition before they are written.",
        )
    return Record(*(_physical(partition[one.name]) for one in spec.fields))


def partitions(batch: pa.RecordBatch, schema: IcebergSchema, spec: PartitionSpec, /) -> Iterator[tuple[object, ...]]:
    """The partition of each row of a batch, hidden transforms applied."""
    columns = []
    for part in spec.fields:
        source = schema.find_field(part.source_id)
        apply: Any = part.transform.pyarrow_transform(source.field_type)
        columns.append([_physical(value) for value in apply(batch.column(source.name)).to_pylist()])
    return zip(*columns, strict=True)


def _physical(value: object) -> object:
    """A value as manifests hold it: days and microseconds for dates and times."""
    from pyiceberg.utils import datetime as convert

    if isinstance(value, datetime):
        return convert.datetime_to_micros(value)
    if isinstance(value, date):
        return convert.date_to_days(value)
    return convert.time_to_micros(value) if isinstance(value, time) else value


def _statistics(written: Added, schema: IcebergSchema) -> tuple[dict[int, int], dict[int, bytes], dict[int, bytes]]:
    nulls: dict[int, int] = {}
    low: dict[int, bytes] = {}
    high: dict[int, bytes] = {}
    columns = names_of(schema)
    for name, (least, greatest, missing) in written.statistics.items():
        if name not in columns:
            continue
        field = schema.find_field(name)
        nulls[field.field_id] = missing
        bounds = _bound(field.field_type, least, up=False), _bound(field.field_type, greatest, up=True)
        if bounds[0] is not None and bounds[1] is not None:
            low[field.field_id], high[field.field_id] = bounds[0], bounds[1]
    return nulls, low, high


def _bound(kind: Any, value: object, *, up: bool) -> bytes | None:
    """A bound as manifests hold it; long texts are cut so that they still bound. None: nothing is known."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.types import BinaryType, FixedType, StringType
    from pyiceberg.utils.truncate import truncate_upper_bound_text_string

    if value is None or isinstance(kind, BinaryType | FixedType):
        return None
    if isinstance(kind, StringType):
        text = str(value)
        if len(text) > _LONGEST_BOUND:
            cut = truncate_upper_bound_text_string(text, _LONGEST_BOUND) if up else text[:_LONGEST_BOUND]
            if cut is None:
                return None
            text = cut
        return text.encode()
    try:
        return bytes(to_bytes(kind, value))  # type: ignore[arg-type]  # a value of the column's own type
    except (TypeError, ValueError, AttributeError):
        return None
