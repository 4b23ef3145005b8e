"""How a user wants the columns of a folder to be read; travels with every shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from seqlake.formats._streaming.encodings import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was given to `scan`, and what was learned from the first samples.

    Attributes:
        encodings: Column or encoding -> another encoding, or the name of one; columns count first.
        allow_pickle: Columns of pickles that may be read.
        arrays: Column -> (dtype, dimensions) of arrays whose encoding does not say.
        pickles: Column -> Arrow type of unpickled values.
    """

    encodings: Mapping[str, str | Encoding] = field(default_factory=dict)
    allow_pickle: tuple[str, ...] = ()
    arrays: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    pickles: Mapping[str, pa.DataType] = field(default_factory=dict)

    def given(self, column: str, encoding: str, /) -> str | Encoding:
        """What reads a column: the user's encoding, or the name of the one to use."""
        found = self.encodings.get(column)
        return self.encodings.get(encoding, encoding) if found is None else found
