"""Shards taken over as they are: a new table of the same Parquet files, where their bytes already say what it says.

A shard is linked (on one disk) or copied byte by byte, never decoded. The new table has a name of its own for it, so
that no vacuum or expiry of one table can take it from the other.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from seqlake.abilities import KeepsFiles, OfALake, Partitioned, ability, storage_of
from seqlake.dataset.reading.streaming import one_shard
from seqlake.dataset.writing.carrying import Carrier
from seqlake.dataset.writing.copying import digest, linked, on_this_machine, put_file
from seqlake.dataset.writing.references import refers
from seqlake.dataset.writing.staging import field_ids_of, partition_of
from seqlake.errors import UnsafeReferenceError
from seqlake.files.checksums import refuse_another
from seqlake.files.locations import inside, is_local, join
from seqlake.protocols import Copied, Written
from seqlake.shards.columns import Columns, Constant, Stored
from seqlake.shards.files import ParquetShard
from seqlake.shards.ids import pack
from seqlake.shards.parquet.building import index_bytes
from seqlake.shards.parquet.footer import read_footer
from seqlake.shards.writing import ScalarBounds
from seqlake.spec.rules.references import is_relative, paths_in
from seqlake.spec.schema import comparable
from seqlake.versions.shard_formats import PARQUET
from seqlake.windows.sources import MediaFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.dataset.dataset import Dataset
    from seqlake.dataset.writing.carrying import FilesMode
    from seqlake.dataset.writing.staging import Staging
    from seqlake.protocols import Readable, Shard, Table, Transaction
    from seqlake.spec.schema import Schema


@dataclass(kw_only=True)
class Adopted:
    """What became of the shards of a source.

    Attributes:
        taken: Shards taken over as they are.
        rewritten: Shard -> why it was written anew.
    """

    taken: int = 0
    rewritten: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.taken} shards taken over as they are, {len(self.rewritten)} written anew"]
        reasons = sorted(set(self.rewritten.values()))
        return "\n".join([lines[0], *(f"  because {reason}" for reason in reasons)])


def adopt(source: Readable, target: Dataset, staging: Staging, /, *, files: FilesMode) -> Adopted:
    """Stage the shards of a source for a new table, in order; those that cannot stay as they are are written anew.

    Args:
        source: A dataset or selection.
        target: The new, empty table.
        staging: Where to; its transaction is the target's.
        files: What happens to files of rows that are written anew.
    """
    adopted = Adopted()
    place = MediaFiles.of(source)
    carrier = Carrier(
        target.schema,
        root=place.root,
        staging=staging,
        mode=files,
        storage=place.storage,
        known=ability(source, KeepsFiles),
    )
    for number, shard in enumerate(source.shards()):
        reason = why_not(shard, target.table, target.schema)
        parquet = _file_of(shard)
        named = {} if reason else _files(shard, source, staging, target.table)
        if named is None:
            reason = "its rows name files that lie where the new table's cleanup could remove them"
        if reason or parquet is None or named is None:
            adopted.rewritten[shard.key] = reason
            for batch in one_shard(shard, target.schema.names):
                staging.write(carrier.carry(batch))
            staging.close_shard()
            continue
        staged = _taken(parquet, shard, target, staging.transaction, n=f"adopted{number}", source=source)
        staging.written.append(replace(staged, files=tuple(_copied(named, source, target))))
        adopted.taken += 1
    return adopted


def why_not(shard: Shard, table: Table, schema: Schema, /) -> str:
    """Why a shard cannot stay as it is; empty if it can.

    Args:
        shard: Of the source.
        table: The new table.
        schema: Its columns.
    """
    parquet = _file_of(shard)
    if parquet is None:
        return "it is no whole Parquet file: rows were deleted, or it is of another format"
    held = read_footer(parquet.blob).schema
    places = shard.mapping if isinstance(shard, Columns) else {}
    moved = [n for n, place in places.items() if place != Stored(n) and not (_constant(place) and n in held.names)]
    if moved:
        return f"its columns {', '.join(moved)} were renamed or lie elsewhere"
    if _numbered_otherwise(held, table, schema):
        return "its columns have other field ids than the table's"
    if set(held.names) != set(schema.names):
        return "it lacks columns that were added later, or holds ones that were dropped"
    wanted = comparable(schema.stored())
    plain = comparable(held)
    for one in wanted:
        if plain.field(one.name).type != one.type:
            return f"its column {one.name} has the type {plain.field(one.name).type}, not {one.type}"
        if held.field(one.name).nullable and not one.nullable:
            return f"its column {one.name} may be null"
    lake = ability(table, OfALake)
    if lake is not None and (why := _why_not_in(lake, held)):
        return why
    if len(_partitions(shard, table, schema)) != 1:
        return f"its rows belong to several partitions by {', '.join(partition_of(table))}, or it has none"
    return ""


def _why_not_in(lake: OfALake, held: pa.Schema) -> str:
    if lake.shard_format != PARQUET:
        return f"the table has {lake.shard_format} files, and it is Parquet"
    if lake.plain_lists and any(_has_fixed_size(field.type) for field in held):
        return "its inner lists have a fixed size, which a lake's clients cannot read"
    return ""


def _numbered_otherwise(held: pa.Schema, table: Table, schema: Schema) -> bool:
    """Whether a lake that finds columns by number would take one for another."""
    ids = field_ids_of(table, schema)
    stored = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in held}
    return any(number is not None and int(number) != ids.get(name) for name, number in stored.items()) if ids else False


def _constant(place: object) -> bool:
    """Whether a column has one value in all rows: of a partition, which the file may hold as well."""
    return isinstance(place, Constant) and place.value is not None


def _has_fixed_size(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(kind):
        return True
    return bool(pa.types.is_list(kind) and _has_fixed_size(kind.value_type))


def _file_of(shard: Shard) -> ParquetShard | None:
    """The one file that a shard shows whole; None where it shows something else."""
    inner = shard.shard if isinstance(shard, Columns) else shard
    return inner if isinstance(inner, ParquetShard) else None


def _files(shard: Shard, source: Readable, staging: Staging, table: Table) -> dict[str, Copied] | None:
    """The files of the source that the rows name, by reference; None where their references cannot stay.

    MediaFiles that a lake copied in lie out of reach of every lake's cleanup, under the same names in all of them.
    """
    schema = source.schema
    names = [name for name in schema.names if refers(schema[name])]
    paths: set[str] = set()
    if names:
        for batch in one_shard(shard, names):
            for column in batch.columns:
                paths.update(path for cell in column.to_pylist() for path, _ in paths_in(cell) if is_relative(path))
    known = ability(source, KeepsFiles)
    copied = {} if known is None else known.copied(shard.key)
    paths |= copied.keys()  # those that plain texts name, too
    start = f"{table.files(staging.transaction)}/"
    if any(not path.startswith(start) or ".." in path.split("/") for path in paths):
        return None
    return {path: copied.get(path, Copied(path=path, size=-1, sha256="")) for path in sorted(paths)}


def _copied(named: Mapping[str, Copied], source: Readable, target: Dataset) -> list[Copied]:
    place, known = MediaFiles.of(source), ability(source, KeepsFiles)
    copies = []
    for path, file in named.items():
        location = join(source.root, path)
        if not inside(source.root, location):
            raise UnsafeReferenceError(
                f"{path!r} leaves the dataset's root {source.root}.",
                path=source.root,
                hint="Write an absolute reference in its place, or leave the column out.",
            )
        with on_this_machine(location, place.storage) as here:
            size, sha256 = digest(here)
            if known is not None and (was := known.copied_as(path)) is not None:
                refuse_another(location, size, sha256, was)
            put_file(target.table.store, path, here, link=True)
        packets = {} if known is None else dict(known.kept_packets(path))
        copies.append(replace(file, size=size, sha256=sha256, packets=packets))
    return copies


def _taken(
    parquet: ParquetShard,
    shard: Shard,
    target: Dataset,
    transaction: Transaction,
    *,
    n: str,
    source: Readable,
) -> Written:
    """The shard under a name of the new table's, staged."""
    table = target.table
    place = Path(table.place(transaction, {}, n=n))
    location = parquet.blob.location
    with on_this_machine(location, storage_of(source)) as here:
        # A file that lies elsewhere, or that a link leads to out of the source, is not shared but copied.
        may_link = not is_local(location) or inside(source.root, location)
        if not (may_link and linked(here, place)):
            shutil.copyfile(here, place)
    written = _described(parquet, shard, target.schema, str(place))
    (values,) = _partitions(shard, table, target.schema)
    partition = dict(zip(partition_of(table), values, strict=True))
    return table.stage(transaction, replace(written, partition=partition))


def _described(parquet: ParquetShard, shard: Shard, schema: Schema, place: str) -> Written:
    """What our own writer would have told of the file."""
    scalars = [name for name in schema.names if schema[name].category == "scalar"]
    statistics = ScalarBounds(scalars)
    ids: list[pa.Array] = []
    for batch in one_shard(shard, scalars):
        statistics.add(pa.Table.from_batches([batch]))
        if schema.id is not None:
            ids.append(batch.column(schema.id))
    return Written(
        location=place,
        rows=parquet.rows,
        nbytes=parquet.nbytes,
        partition={},
        statistics=statistics.result(),
        ids=pack(pa.chunked_array(ids, pa.string())) if ids else b"",
        index=index_bytes(parquet.blob, schema=schema),
    )


def _partitions(shard: Shard, table: Table, schema: Schema) -> set[tuple[object, ...]]:
    """The partitions that the rows of a shard belong to; one without values where the table has none."""
    divided = ability(table, Partitioned)
    if divided is None or not divided.partition_by:
        return {()}
    scalars = [name for name in schema.names if schema[name].category == "scalar"]
    return {values for batch in one_shard(shard, scalars) for values in divided.partition_values(batch)}
