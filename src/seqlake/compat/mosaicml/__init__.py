"""MosaicML Streaming's own sample orders, for runs that must see exactly the samples they would have seen there.

`StreamingOrder` is what to use; `shuffles`, `partitions`, `sampling` and `batching` are the pure functions it is made
of. New runs have no need of any of this: `Loader` has an order of its own.
"""

from seqlake.compat.mosaicml.order import StreamingBatches, StreamingOrder
from seqlake.compat.mosaicml.partitions import World
from seqlake.training.mixtures.shares import Stream

__all__ = ["Stream", "StreamingBatches", "StreamingOrder", "World"]
