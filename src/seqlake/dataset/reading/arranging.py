"""Rows arranged as the user says: columns collected by a declared mapping, time steps put together into sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seqlake import grouping
from seqlake.dataset.reading.plain import declared
from seqlake.formats import wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seqlake.protocols import Readable

OPTIONS = (*grouping.OPTIONS, "map")
"""What `scan` takes for every source, unless its format does it itself."""


def taken_from(options: dict[str, Any], /) -> dict[str, Any]:
    """Those of the options of `scan` that arrange rows, taken out of them."""
    asked = {name: options.pop(name) for name in OPTIONS if name in options}
    if asked.get("sequence_id") and "column_types" in options:
        asked["column_types"] = options.pop("column_types")  # of the sequences that come of the rows
    return asked


def arranged(rows: Readable, asked: Mapping[str, Any], /) -> Readable:
    """The rows with their columns collected, and put together into sequences, where that is asked for.

    Args:
        rows: As their format shows them.
        asked: Options of `grouping.as_sequences`, `map`, and `column_types` of what comes of it.
    """
    if not asked:
        return rows  # whose columns nobody has asked for yet: what is wrong with them is a finding, too
    options = dict(asked)
    mapping, types = options.pop("map", None), dict(declared(options.pop("column_types", None)).column_types)
    if mapping is not None:
        sources = {name: (one.source, one.type) for name, one in wanted(mapping).items()}
        rows, said = grouping.collected(rows, sources)
        types = {**said, **types}
    return grouping.as_sequences(rows, types=types, **options)
