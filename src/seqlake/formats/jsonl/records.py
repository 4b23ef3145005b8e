"""One shard of JSON lines: an object a sample."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from seqlake.formats._streaming.cells import UnheldError
from seqlake.formats._streaming.records import SampleError, ranged
from seqlake.formats._streaming.split import ENCODINGS, SplitRecords, columns, learn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from seqlake.formats._streaming.encodings import Encoding
    from seqlake.protocols import Ints

__all__ = ["Records", "columns", "learn"]

_KINDS: dict[pa.DataType, tuple[Any, ...]] = {pa.string(): (str,), pa.int64(): (int,), pa.float64(): (float, int)}


class Records(SplitRecords):
    """The samples of one open shard."""

    def arrays(self, columns: Sequence[str], buffer: NDArray[np.uint8], starts: Ints, stops: Ints, /) -> list[pa.Array]:
        """See `Records`."""
        view = buffer.data
        objects = []
        for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            try:
                objects.append(self._object(view[start:stop]))
            except SampleError as error:
                error.row = row
                raise
        return [self._column(name, objects) for name in columns]

    def _column(self, name: str, objects: Sequence[dict[str, Any]]) -> pa.Array:
        kind, made = self._encodings[name], []
        texts = kind is ENCODINGS["str"] and dict(self._entry.config.columns)[name] != "str"
        for row, found in enumerate(objects):
            try:
                made.append(_value(kind, found.get(name), text=texts))
            except (ValueError, TypeError, LookupError, ArithmeticError) as error:
                unheld = isinstance(error, UnheldError)
                raise SampleError(str(error), row=row, column=name, unheld=unheld) from error
        return pa.array(made, kind.arrow)

    def _object(self, sample: memoryview) -> dict[str, Any]:
        try:
            found = json.loads(str(self._line(sample), "utf-8"))
        except (ValueError, RecursionError) as error:
            raise SampleError(f"it is no JSON ({error})") from error
        if not isinstance(found, dict):
            raise SampleError(f"expected a JSON object, found {type(found).__name__}")
        return found

    def value(self, sample: memoryview, /) -> dict[str, Any]:
        """See `Records`; whatever else the object holds is given too."""
        return self._object(sample)

    def cell(self, column: str, row: int, /) -> memoryview:
        """See `Records`: the value's JSON."""
        start, stop = self.bounds[row : row + 2].tolist()
        return _json(self._object(ranged(self.blob, start, stop)).get(column))


def _json(value: Any) -> memoryview:
    return memoryview(json.dumps(value).encode())


def _value(kind: Encoding, value: Any, *, text: bool) -> Any:
    """A value as its column has it; `text`: of a number that the user reads as text."""
    if value is None:
        return None
    if text and isinstance(value, (int, float)):
        return json.dumps(value)
    if kind not in ENCODINGS.values():
        return kind.decode(_json(value))
    kinds = _KINDS[kind.arrow]
    if not isinstance(value, kinds):
        raise UnheldError(f"expected {kinds[0].__name__}, found {type(value).__name__}")
    if kinds[0] is int and not -(1 << 63) <= value < 1 << 63:
        raise UnheldError(f'{str(value)[:80]} does not fit into 64 bits; encodings={{column: "str"}} gives the text')
    return kinds[0](value)
