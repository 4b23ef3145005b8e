"""Files of numbers without a header (`.bin`), as KITTI and nuScenes have them: one point after the other.

The column's type says which fields a point has: `fields`, names (float32, little-endian) or pairs of name and type; or
`format` names a known layout. Without either, the size decides where it allows one layout alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from seqlake.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from seqlake.spec.column_types import ColumnType

LAYOUTS = {"kitti": ("x", "y", "z", "intensity"), "nuscenes": ("x", "y", "z", "intensity", "ring")}
"""Known layouts: the fields of one point, all float32."""


def read(data: memoryview, column: ColumnType, hold: Callable[[int], None], /) -> NDArray[Any]:
    """[points] structured, as the column or the size says."""
    kind = layout(column, len(data))
    if len(data) % kind.itemsize:
        raise ValueError(
            f"expected points of {kind.itemsize} bytes ({', '.join(kind.names or ())}), found {len(data):,} bytes"
        )
    hold(len(data) // kind.itemsize)
    cloud: NDArray[Any] = np.frombuffer(data, kind).astype(kind.newbyteorder("="))
    return cloud


def declared(column: ColumnType, /) -> np.dtype[Any] | None:
    """The fields that the column's type says a point has; None where it says none.

    Raises:
        DecodeError: `fields` is no list of names, or of pairs of name and type.
    """
    fields = column.get("fields")
    if fields is None:
        return None
    try:
        pairs = [(one, "float32") if isinstance(one, str) else (str(one[0]), str(one[1])) for one in fields]
        kind = np.dtype([(name, np.dtype(number).newbyteorder("<")) for name, number in pairs])
    except (TypeError, ValueError, LookupError) as error:
        raise DecodeError(_wrong(fields)) from error
    if not pairs or any(kind[number].kind not in "fiub" for number in range(len(pairs))):
        raise DecodeError(_wrong(fields))
    return kind


def _wrong(fields: object) -> str:
    return (
        'fields: expected names, as ["x", "y", "z"], or pairs of name and type, as ["ring", "uint16"], found '
        f"{str(fields)[:200]}. Mend the column's type."
    )


def layout(column: ColumnType, size: int, /) -> np.dtype[Any]:
    """What a point of a file of so many bytes is.

    Raises:
        DecodeError: Nothing says it, and the size does not either.
    """
    kind = declared(column)
    if kind is not None:
        return kind
    named = str(column.get("format") or "").lower().lstrip(".")
    likely = [named] if named in LAYOUTS else [name for name, fields in LAYOUTS.items() if not size % (4 * len(fields))]
    if len(likely) != 1:
        known = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in LAYOUTS.items())
        raise DecodeError(
            f"its {size:,} bytes can be points of {'several layouts' if likely else 'no known layout'} ({known}), and "
            'nothing says which. Declare it on the column: format="kitti", or fields=["x", "y", "z", ...].'
        )
    return np.dtype([(name, "<f4") for name in LAYOUTS[likely[0]]])
