"""Cells as they are typed on a command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from seqlake.spec.schema import Column


def cell_of(text: str, column: Column, /) -> Any:
    """A cell: `null`, `@FILE` for a file to take in, text as it is, all else as JSON or as Arrow reads it.

    Raises:
        UsageError: It is none of the column's type.
    """
    import pyarrow as pa

    from seqlake.dataset.writing.ingest import File
    from seqlake.spec.schema import is_text

    if text == "null":
        return None
    if column.category == "file" and text.startswith("@"):
        return File(text[1:])
    if is_text(column.arrow):
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return pa.scalar(text).cast(column.arrow).as_py()
    except (pa.ArrowException, ValueError):
        raise click.UsageError(f"Column {column.name!r} holds {column.arrow}; found {text!r}.") from None


def guessed(text: str, /) -> Any:
    """A value for a column that is not there yet: a number or a truth value where it reads as one, else text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
