"""What a shard can take at most when it is written anew: known from lengths, shapes and footers before it is read."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from seqlake.shards.parquet.footer import read_footer
from seqlake.spec.schema import is_list
from seqlake.training.shard_cache.layers import beneath, beneath_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from seqlake.protocols import Shard
    from seqlake.shards.parquet.footer import ColumnChunk, Footer
    from seqlake.spec.schema import Column, Schema

FRAME = 16 << 10  # bytes of a file of ours, and of each column in it, beside its values
_NARROW = 1 << 20  # bytes of a column chunk with a dictionary that are read to know what they say
_TEXT = 256  # bytes of a value of a column that no footer tells of
_EXPANDS = 16  # times as large as its file a shard is taken to be as long as nobody has looked


class Size(NamedTuple):
    """Bytes that a copy takes.

    Attributes:
        held: As long as it is there, at most.
        making: More of them while it is made.
        decodes: Whether what lies in it must be decoded beside it, as far as is known.
    """

    held: int
    making: int = 0
    decodes: bool = True


class StepsOf(NamedTuple):
    """What is known of a column's steps in a shard before they are decoded.

    Attributes:
        total: How many all rows have together; None where nobody says it.
        nbytes: Of memory that they take; 0 where that is not known.
    """

    total: int | None
    nbytes: int


def at_most(rows: int, columns: int, values: float, /) -> int:
    """Bytes that a file of ours can have.

    Args:
        rows: Its rows.
        columns: Its columns.
        values: What these take, with their levels: see `values_of`.
    """
    return FRAME * (1 + columns) + int(values * 1.02) + rows * (32 + 16 * columns)


def values_of(column: pa.Array, /) -> float:
    """Bytes of a column's values and levels in a file of ours, at most."""
    lists = 0
    while is_list(column.type):
        lists += len(column)
        column = column.flatten()
    if pa.types.is_primitive(column.type):
        return _numbers(len(column), int(column.type.bit_width), lists)
    return _others(len(column), int(column.nbytes), lists)


def _numbers(count: int, bits: int, lists: int) -> float:
    return count * max(4, bits // 8) + (count + lists) * 3 / 4  # at most 6 bits an entry, for two levels of lists


def _others(count: int, nbytes: int, lists: int) -> float:
    return 2 * nbytes + 8 * count + (count + lists) * 3 / 4


def written(shard: Shard, schema: Schema, steps: Mapping[str, int], /, *, look: bool) -> int:
    """Bytes that a shard can take, at most, when it is written anew.

    Texts behind large dictionaries, and those of other formats than Parquet, are estimated.

    Args:
        shard: The shard.
        schema: The columns that are written.
        steps: Of each column of steps, where that is known, how many all rows have together.
        look: At its footer, and into narrow columns of texts; else what it can hardly have.
    """
    values, unknown = 0.0, []
    for name, column in schema.items():
        known = _known(column, shard.rows, steps.get(name))
        values += known or 0.0
        if known is None:
            unknown.append(name)
    if unknown:
        values += _looked(shard, schema, unknown) if look else _EXPANDS * shard.nbytes + _TEXT * shard.rows
    return at_most(shard.rows, len(schema), values)


def _known(column: Column, rows: int, steps: int | None) -> float | None:
    """Of a column whose number of values is known."""
    kind, value = column.arrow, column.value_type
    if pa.types.is_primitive(kind):
        return _numbers(rows, int(kind.bit_width), 0)
    if value is None or not pa.types.is_primitive(value):
        return None
    if column.category == "vector":
        return None if column.dim is None else _numbers(rows * column.dim, int(value.bit_width), rows)
    if steps is None or column.shape is None:
        return None
    count = steps * prod(column.shape)
    if column.raw:
        return _others(rows, count * int(value.bit_width) // 8, 0)
    lists = rows + (steps * max(1, prod(column.shape[:-1])) * len(column.shape) if column.shape else 0)
    return _numbers(count, int(value.bit_width), lists)


def _looked(shard: Shard, schema: Schema, names: Sequence[str]) -> float:
    base = beneath(shard)
    if base is None or beneath_names(shard, list(names))[2]:
        images = any(schema[name].category == "frames" or schema[name].inline for name in names)
        return 2.0 * shard.nbytes if images else float(_TEXT * shard.rows * len(names))
    footer, values, read = read_footer(base.blob), 0.0, []
    for name in names:
        chunks = _chunks(footer, shard, name)
        count, nbytes = sum(chunk.values for chunk in chunks), sum(chunk.decoded for chunk in chunks)
        number = schema[name].value_type
        if number is not None and pa.types.is_primitive(number) and not schema[name].raw:
            values += _numbers(count, int(number.bit_width), shard.rows + count)
        elif not any(chunk.dictionary for chunk in chunks):
            values += _others(count, nbytes, count)
        elif nbytes <= _NARROW:
            read.append(name)  # a short dictionary may stand for long values
        else:
            values += 2 * _others(count, nbytes, count)
    return values + (_read(shard, read) if read else 0)


def _chunks(footer: Footer, shard: Shard, name: str) -> list[ColumnChunk]:
    physical, _, _ = beneath_names(shard, [name])
    return [group[leaf] for group in footer.chunks for one in physical for leaf in footer.leaves.get(one, range(0))]


def _read(shard: Shard, names: Sequence[str]) -> float:
    reader = shard.open()
    try:
        return sum(values_of(column) for batch in reader.batches(list(names)) for column in batch.columns)
    finally:
        reader.close()


def decoded(shard: Shard, column: Column, /) -> float:
    """Bytes of a column's steps in memory, at most, where only a footer tells them."""
    base = beneath(shard)
    if base is None or column.dtype is None:
        return float(shard.nbytes)
    footer = read_footer(base.blob)
    return float(sum(chunk.values for chunk in _chunks(footer, shard, column.name)) * column.dtype.itemsize)
