"""Datasets made out of others: merged, split, cut in time, in other shards."""

from seqlake.dataset.reshaping.compacting import compact
from seqlake.dataset.reshaping.merging import merge, repack, split, subset
from seqlake.dataset.reshaping.resampling import resample
from seqlake.dataset.reshaping.splits import assign_splits, plan_splits
from seqlake.dataset.reshaping.trimming import segment, trim

__all__ = [
    "assign_splits",
    "compact",
    "merge",
    "plan_splits",
    "repack",
    "resample",
    "segment",
    "split",
    "subset",
    "trim",
]
