"""Parameters of a request, checked; and values as JSON can hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import QueryError

if TYPE_CHECKING:
    from collections.abc import Callable

_EXACT = 1 << 53
_TEXT = 16_384


class Parameters:
    """The query of one request.

    Args:
        given: Names and texts.
    """

    def __init__(self, given: Mapping[str, str], /) -> None:
        self._given = given

    def text(self, name: str, default: str | None = None, /) -> str | None:
        """A text of at most 16 kB; the default where it is not given or empty."""
        value = self._given.get(name) or default
        if value is not None and (len(value) > _TEXT or "\0" in value):
            raise QueryError(f"{name}: expected a text of at most {_TEXT} characters, without zeros.")
        return value

    def needed(self, name: str, /) -> str:
        """A text that must be given."""
        value = self.text(name)
        if value is None:
            raise QueryError(f"The parameter {name!r} is missing.")
        return value

    def whole(self, name: str, default: int, /, *, low: int, high: int) -> int:
        """A whole number within bounds."""
        return int(self._number(name, default, int, low, high))

    def real(self, name: str, default: float, /, *, low: float, high: float) -> float:
        """A number within bounds."""
        return float(self._number(name, default, float, low, high))

    def _number(self, name: str, default: float, kind: Callable[[str], float], low: float, high: float) -> float:
        text = self._given.get(name)
        if not text:
            return default
        try:
            number = kind(text[:40])
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise QueryError(f"{name}: expected a number from {low} to {high}, found {text!r:.60}.")
        return number

    def wholes(self, name: str, /, *, most: int, high: int) -> list[int]:
        """Whole numbers with commas between them, each from 0 to below `high`."""
        parts = (self.text(name) or "").split(",")
        numbers = [
            int(part) if part.isascii() and part.isdecimal() and len(part) < 19 else -1 for part in parts if part
        ]
        if len(numbers) > most or any(not 0 <= one < high for one in numbers):
            raise QueryError(f"{name}: expected at most {most} whole numbers from 0 to {high - 1}.")
        return numbers


def plain(value: Any, /) -> Any:
    """A value as JSON can hold it: not finite is null, beyond 2**53 is text, times are ISO, bytes are counted."""
    if value is None or isinstance(value, (bool, str)):
        return value if not isinstance(value, str) else value.encode("utf-8", "replace").decode()
    if isinstance(value, (int, np.integer)):
        return int(value) if abs(int(value)) <= _EXACT else str(int(value))
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": len(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str[1:]}[{','.join(map(str, value.shape))}]"
    return str(value)


def finite(value: Any, /) -> Any:
    """The same value with null in the place of every number that is not finite, which JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, (list, tuple)) else value
