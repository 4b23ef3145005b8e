"""How a user wants the columns of a folder to be read; travels with every shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seqlake.formats._streaming.encodings import Encoding

if TYPE_CHECKING:
    import pyarrow as pa


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

    @staticmethod
    def of(encodings: object, allow_pickle: object, /) -> Options:
        """From what a user gave.

        Raises:
            ValueError: No dict of names or encodings; columns of pickles that are not named in a list.
        """
        found = {} if encodings is None else encodings
        if not isinstance(found, Mapping) or not all(isinstance(one, (str, Encoding)) for one in found.values()):
            raise ValueError(f"encodings: expected a dict as {{'label': 'uint8'}}, found {encodings!r}.")
        listed = isinstance(allow_pickle, Collection) and not isinstance(allow_pickle, (str, bytes))
        columns: Collection[Any] = allow_pickle if listed else (None,)  # type: ignore[assignment]  # it was looked at
        if not all(isinstance(one, str) for one in columns):
            raise ValueError(f"allow_pickle: expected a list of columns as ['meta'], found {allow_pickle!r}.")
        return Options(encodings=dict(found), allow_pickle=tuple(columns))

    def given(self, column: str, encoding: str, /) -> str | Encoding:
        """What reads a column: the user's encoding, or the name of the one to use."""
        found = self.encodings.get(column)
        return self.encodings.get(encoding, encoding) if found is None else found
