"""A cell of any type as an outline: what is in it, as far as a person reads, however large it is.

It is taken from Arrow, part by part, so that of a list of a million structs only the first few become Python values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from seqlake.dataset.reading.cells import python_value
from seqlake.spec.schema import is_binary, is_list, is_number, is_text
from seqlake.viewer.asking import plain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from seqlake.dataset.reading.excerpt import Excerpt

_NODES = 400  # parts of one cell that are said
_ITEMS = 20  # of a list
_FIELDS = 60  # of a struct, or entries of a map
_DEEP = 10  # lists and structs in each other
_LETTERS = 2000  # of a text
_HEAD = 32  # bytes that are shown
_NUMBERS = 8  # so many numbers are a list, more are told by their range
_CURVE = 48  # points of the curve of numbers
_LINE = 400  # letters of a cell in one line


class Outline:
    """Makes the outline of one cell.

    Attributes:
        nodes: How many parts were said.
        cut: Whether anything was left out.
    """

    def __init__(self) -> None:
        self.nodes: int = 0
        self.cut: bool = False

    def of(self, scalar: pa.Scalar, depth: int = 0, /) -> dict[str, Any]:
        """One part: `{"kind": "null"|"value"|"text"|"bytes"|"struct"|"list"|"numbers"|"more", ...}`."""
        self.nodes += 1
        kind = scalar.type
        if isinstance(kind, pa.BaseExtensionType):
            return self.of(scalar.value, depth) if scalar.is_valid else {"kind": "null"}
        if pa.types.is_dictionary(kind):
            return self.of(scalar.value, depth) if scalar.is_valid else {"kind": "null"}
        if not scalar.is_valid:
            return {"kind": "null"}
        if is_text(kind):
            return self._text(str(scalar))
        if is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return self._bytes(scalar)
        if self.nodes > _NODES or depth > _DEEP:
            self.cut = True
            return {"kind": "more", "type": brief_type(kind)}
        if pa.types.is_struct(kind):
            return self._struct(scalar, depth)
        if pa.types.is_map(kind):
            return self._list(scalar.values, depth)
        if is_list(kind):
            return self._list(scalar.values, depth)
        return {"kind": "value", "value": plain(python_value(scalar))}

    def _text(self, text: str) -> dict[str, Any]:
        if len(text) <= _LETTERS:
            return {"kind": "text", "text": plain(text)}
        self.cut = True
        return {"kind": "text", "text": plain(text[:_LETTERS]), "letters": len(text)}

    def _bytes(self, scalar: pa.Scalar) -> dict[str, Any]:
        data = scalar.as_buffer() if is_binary(scalar.type) else pa.py_buffer(scalar.as_py())
        self.cut = True
        return {"kind": "bytes", "bytes": data.size, "head": memoryview(data)[:_HEAD].hex(" ")}

    def _struct(self, scalar: pa.StructScalar, depth: int) -> dict[str, Any]:
        count = scalar.type.num_fields
        more, names = max(0, count - _FIELDS), [plain(scalar.type.field(number).name) for number in range(count)]
        fields = [[name, self.of(scalar[number], depth + 1)] for number, name in enumerate(names[:_FIELDS])]
        self.cut |= more > 0
        return {"kind": "struct", "fields": fields, "more": more}

    def _list(self, values: pa.Array, depth: int) -> dict[str, Any]:
        count = len(values)
        if is_number(values.type) and count > _NUMBERS:
            self.cut = True
            return _numbers(values)
        items: list[dict[str, Any]] = []
        while len(items) < min(count, _ITEMS) and self.nodes <= _NODES:
            items.append(self.of(values[len(items)], depth + 1))
        self.cut |= len(items) < count
        return {
            "kind": "list",
            "count": count,
            "of": brief_type(values.type),
            "items": items,
            "more": count - len(items),
        }


def _numbers(values: pa.Array) -> dict[str, Any]:
    """Many numbers by their range, their mean and a curve."""
    wide = values.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
    finite = wide[np.isfinite(wide)]
    facts: dict[str, Any] = {
        "kind": "numbers",
        "count": len(values),
        "of": str(values.type),
        "missing": len(values) - len(finite),
        "first": [plain(python_value(one)) for one in values[:_NUMBERS]],
    }
    if finite.size:
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean(dtype=np.longdouble))
        facts |= {"low": plain(low), "high": plain(high), "mean": plain(mean), "curve": _curve(wide)}
    return facts


def _curve(wide: NDArray[np.float64]) -> list[list[Any]]:
    """[lowest, highest] of even spans; what is not finite is passed over."""
    points = min(_CURVE, len(wide))
    starts = np.arange(points, dtype=np.int64) * len(wide) // points
    clean = np.where(np.isfinite(wide), wide, np.nan)
    low, high = np.fmin.reduceat(clean, starts), np.fmax.reduceat(clean, starts)
    return [[plain(a), plain(b)] for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def brief_type(kind: pa.DataType, /) -> str:
    """An Arrow type in at most 60 letters."""
    text = str(kind)
    return text if len(text) <= 60 else f"{text[:57]}..."


def cell_of(shows: Excerpt, row: int, name: str, /) -> dict[str, Any]:
    """What a card says of a cell: its outline, one line of it, and its value where nothing was left out.

    Args:
        shows: What the row is of.
        row: Its number in the source.
        name: The column.
    """
    [batch] = [one for one in shows.cut(rows=np.array([row], np.int64)).batches([name]) if one.num_rows]
    outline = Outline()
    drawn = outline.of(batch.column(0)[0])
    facts: dict[str, Any] = {"outline": drawn, "text": one_line(drawn)[:_LINE]}
    if not outline.cut:
        facts["value"] = valued(drawn)
    return facts


def valued(node: dict[str, Any], /) -> Any:
    """The value that an outline is of, where nothing was left out."""
    match node["kind"]:
        case "struct":
            return {name: valued(one) for name, one in node["fields"]}
        case "list":
            return [valued(one) for one in node["items"]]
        case "text":
            return node["text"]
        case "value":
            return node["value"]
    return None


def one_line(node: dict[str, Any], /) -> str:
    """An outline as a short text."""
    match node["kind"]:
        case "struct":
            return "{" + ", ".join(f"{name}: {one_line(one)}" for name, one in node["fields"][:8]) + "}"
        case "list":
            more = [f"... {node['more']} more"] if node["more"] else []
            return "[" + ", ".join([*(one_line(one) for one in node["items"][:8]), *more]) + "]"
        case "text":
            return json.dumps(node["text"][:80], ensure_ascii=False)
        case "value":
            return str(node["value"])
        case "bytes":
            return f"{node['bytes']} bytes"
        case "numbers":
            return f"{node['of']}[{node['count']}]"
    return "null" if node["kind"] == "null" else "..."
