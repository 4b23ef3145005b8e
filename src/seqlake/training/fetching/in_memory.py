"""Remote shards fetched into memory side by side, for loaders without a folder for copies."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from seqlake.files.memory import MemoryBlob
from seqlake.training.shard_cache import Source
from seqlake.training.shard_cache.layers import Known, beneath, is_remote, over

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from seqlake.protocols import Shard
    from seqlake.shards.files import ParquetShard
    from seqlake.spec.schema import Schema
    from seqlake.training.fetching.transfers import Transfers


class Coming(NamedTuple):
    """A shard on its way into memory, and the bytes of it that are fetched."""

    shard: Future[Shard]
    nbytes: int


@contextmanager
def fetched(
    shards: Mapping[int, Shard], schema: Schema, transfers: Transfers, *, room: int
) -> Iterator[dict[int, Coming]]:
    """Fetch what is wanted of remote Parquet files, all of them at the same time.

    Args:
        shards: By number; those that are no remote Parquet files are left out, and those that cannot be looked at:
            whoever opens them meets the error.
        schema: The columns wanted, with the types that the shards show.
        transfers: What reads remote files.
        room: Bytes that may be fetched; shards that do not fit are left out.

    Yields:
        By number, the same shards, held in memory and compared with their checksums.
    """
    bases = {number: base for number, shard in shards.items() if (base := _remote(shard)) is not None}
    coming: dict[int, Coming] = {}
    if not bases:
        yield coming
        return
    pool = ThreadPoolExecutor(min(len(bases), transfers.threads), thread_name_prefix="seqlake-memory")
    try:
        sources = {number: Source(shards[number], schema, transfers) for number in bases}
        plans = {number: pool.submit(sources[number].plan, base) for number, base in bases.items()}
        for number, base in bases.items():
            if plans[number].exception() is not None:
                continue
            nbytes = sum(stop - start for start, stop in plans[number].result()[0])
            if nbytes <= room:
                room -= nbytes
                coming[number] = Coming(pool.submit(_fetch, sources[number], base, transfers), nbytes)
        yield coming
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)  # what is under way ends by itself: its server may hang
        raise
    pool.shutdown()


def _remote(shard: Shard) -> ParquetShard | None:
    try:
        return beneath(shard) if is_remote(shard) else None
    except Exception:  # noqa: BLE001 - a file of this machine that is gone, or not what it was
        return None


def _fetch(source: Source, base: ParquetShard, transfers: Transfers) -> Shard:
    ranges, chunks = source.plan(base)

    def fetch() -> Shard:
        blob = MemoryBlob(transfers.parts(base.blob, ranges), location=base.blob.location)
        footer, _ = source.checked(blob, chunks)
        return over(source.shard, blob, kind=partial(Known, footer=footer))

    return source.patiently(base.blob, fetch, forget=lambda: None)
