"""The columns of an MDS shard: which encoding reads each, and what only its first sample says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.formats._streaming.cells import CellEncoding, CellError
from seqlake.formats._streaming.records import SampleError
from seqlake.formats.mds import encodings
from seqlake.formats.mds.arrays import ArrayEncoding, head
from seqlake.spec.schema import Column

if TYPE_CHECKING:
    from collections.abc import Iterable

    from seqlake.formats._streaming.cells import Options
    from seqlake.formats._streaming.index import Config
    from seqlake.formats._streaming.shard import SampleShard


def columns(config: Config, options: Options, /) -> dict[str, Column]:
    """The columns of shards of this kind."""
    result = {}
    for name, stored in config.columns:
        encoding = chosen(name, stored, options)
        result[name] = Column(name, encoding.arrow, encoding.type, nullable=False)
    return result


def chosen(name: str, stored: str, options: Options, /) -> CellEncoding:
    """What reads a column; arrays that nobody looked at yet are taken to be vectors of float32."""
    given = options.given(name, stored)
    if isinstance(given, CellEncoding):
        return given
    if given == encodings.PICKLE:
        allowed = name in options.allow_pickle
        return encodings.unpickled(options.pickles.get(name, pa.null())) if allowed else encodings.refused(name)
    kind = ArrayEncoding.of(given)
    if kind is not None and kind.shape is None:
        return encodings.of_array(kind.learned(*options.arrays.get(name, (kind.dtype or "float32", 1))))
    return encodings.encoding(given)


def arrays(config: Config, options: Options, /) -> dict[str, ArrayEncoding]:
    """The columns of arrays whose dtype is known, and of fixed shape only where that makes the bytes of a cell."""
    kinds = {}
    for (name, stored), size in zip(config.columns, config.sizes, strict=True):
        given = options.given(name, stored)
        kind = ArrayEncoding.of(given) if isinstance(given, str) else None
        if kind is not None and kind.shape is None and name in options.arrays:
            kind = kind.learned(*options.arrays[name])
        if kind is not None and kind.dtype is not None and kind.size == size:
            kinds[name] = kind
    return kinds


def learn(shards: Iterable[SampleShard], options: Options, /) -> Options:
    """Look at first samples for dtype and dimensions of arrays, and for the type of pickles.

    Raises:
        SchemaMismatchError: A pickle of something that Arrow cannot hold.
        CorruptFileError: The sample cannot be read.
    """
    arrays, pickles, looked = dict(options.arrays), dict(options.pickles), set[int]()
    for shard in shards:
        config = shard.entry.config
        if id(config) in looked or not shard.rows:
            continue
        looked.add(id(config))  # shards of one kind share it
        for name, stored in config.columns:
            given = options.given(name, stored)
            if not isinstance(given, str) or name in arrays or name in pickles:
                continue
            kind = ArrayEncoding.of(given)
            if kind is not None and kind.shape is None:
                arrays[name] = _array_of(shard, name, kind)
            elif given == encodings.PICKLE and name in options.allow_pickle:
                pickles[name] = _pickle_of(shard, name)
    return replace(options, arrays=arrays, pickles=pickles)


def _array_of(shard: SampleShard, name: str, kind: ArrayEncoding) -> tuple[str, int]:
    try:
        dtype, shape, _ = head(shard.open().cell(name), kind)
    except CellError as error:
        raise shard.damaged(SampleError(str(error), column=name), [0]) from error
    return dtype, len(shape)


def _pickle_of(shard: SampleShard, name: str) -> pa.DataType:
    try:
        value: Any = encodings.unpickled(pa.null()).decode(shard.open().cell(name))
    except CellError as error:
        raise shard.damaged(SampleError(str(error), column=name), [0]) from error
    try:
        return pa.array([value.tolist() if isinstance(value, np.ndarray) else value]).type
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatchError(
            f"Column {name!r} holds pickles of {type(value).__name__}, which Arrow cannot hold ({error}).",
            hint="Give a CellEncoding(arrow=..., decode=...) for it in encodings={...}.",
        ) from error
