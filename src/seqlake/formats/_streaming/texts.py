"""Samples of texts, integers and floats, which is all that lines of text hold: how columns of a dataset become such."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.errors import SchemaMismatchError
from seqlake.formats._streaming.cells import CellError, absent
from seqlake.formats._streaming.exporting import Exported
from seqlake.spec.schema import is_binary, is_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from seqlake.spec.schema import Column, Schema

_KINDS: dict[str, type] = {"str": str, "int": int, "float": float}


def plan(schema: Schema, columns: Mapping[str, str], /) -> dict[str, Exported]:
    """How each column is written: numbers as they are, everything nested as JSON in a text."""
    return {name: _exported(schema[name], columns.get(name), _json) for name in schema.names}


def plan_commas(schema: Schema, columns: Mapping[str, str], /) -> dict[str, Exported]:
    """The same, where a text holds no comma: JSON's commas become semicolons, as `restored` knows."""
    return {name: _exported(schema[name], columns.get(name), _json_without_commas) for name in schema.names}


def dropped(schema: Schema, /) -> dict[str, str]:
    """Columns that text cannot hold, with the reason."""
    reason = "bytes are no text; export to MDS, or leave the images as files"
    return {name: reason for name in schema.names if _bytes_inside(schema[name].arrow)}


def _bytes_inside(kind: pa.DataType) -> bool:
    if is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    fields = [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return any(_bytes_inside(field.type) for field in fields)


def _exported(column: Column, chosen: str | None, nested: Callable[[pa.Array], list[Any]]) -> Exported:
    kind = column.logical
    if chosen is not None:
        return Exported(encoding=chosen, values=_python)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return Exported(encoding="int", values=lambda array: [None if v is None else int(v) for v in array.to_pylist()])
    if pa.types.is_duration(kind):
        return Exported(encoding="int", values=lambda array: list(array.cast(pa.int64()).to_pylist()))
    if pa.types.is_floating(kind):
        return Exported(encoding="float", values=_python)
    if is_text(kind):
        return Exported(encoding="str", values=_python)
    if pa.types.is_nested(kind):
        return Exported(encoding="str", values=nested)
    return Exported(encoding="str", values=lambda array: list(array.cast(pa.string()).to_pylist()))


def _python(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


def _json_without_commas(array: pa.Array) -> list[Any]:
    # A semicolon of its own can only stand inside a string, where JSON has another spelling for it.
    return [t if t is None else t.replace(";", r"\u003b").replace(",", ";") for t in _json(array)]


def _json(array: pa.Array) -> list[Any]:
    try:
        return [None if value is None else json.dumps(value) for value in array.to_pylist()]
    except TypeError as error:
        raise SchemaMismatchError(
            f"{array.type} cannot be JSON ({error}).", hint="Leave the column out with select()."
        ) from error


class Plain:
    """Columns whose values are texts, integers and floats.

    Args:
        columns: Pairs of (name, encoding).

    Raises:
        ValueError: Another encoding.
    """

    def __init__(self, columns: Iterable[tuple[str, str]], /) -> None:
        self._kinds: list[tuple[str, type]] = []
        for name, encoding in columns:
            if encoding not in _KINDS:
                raise ValueError(f"Column {name!r}: expected {', '.join(_KINDS)}, found {encoding!r}.")
            self._kinds.append((name, _KINDS[encoding]))

    def values(self, sample: Mapping[str, Any], /) -> Iterator[tuple[str, Any]]:
        """(name, value) of each column of a sample.

        Raises:
            CellError: A value of another type, or none at all; names the column.
        """
        for name, kind in self._kinds:
            if name not in sample:
                raise CellError(absent(name, sample))
            value = sample[name]
            if not isinstance(value, kind):
                raise CellError(f"column {name!r}: expected {kind.__name__}, found {type(value).__name__}")
            yield name, value
