"""Other people's datasets, in and out: each plug is one format."""

from seqlake.formats._mapping import wanted

__all__ = ["wanted"]
