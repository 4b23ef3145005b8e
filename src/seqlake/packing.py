"""Results of tasks as bytes: a line of JSON, then arrays and bytes as they are. Nothing that is read can run.

Folders of receipts may lie in a shared place, so they hold no pickles. A record is one of seqlake's own dataclasses: it
is put together from its fields, and its class runs nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from fractions import Fraction
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from seqlake.errors import SeqlakeError
from seqlake.receipts import date_of, is_date, parts_of_date

if TYPE_CHECKING:
    from collections.abc import Sequence

_TAG = "$"
_FORMAT = 1
_OURS = "seqlake."
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, ImportError, ArithmeticError, RecursionError)


def pack(value: object, /) -> bytes:
    """A value as bytes, which `unpack` reads.

    Args:
        value: Plain values, bytes, dates, fractions, tuples, lists, sets, dicts, NumPy arrays and numbers, and
            dataclasses of seqlake, of these.

    Raises:
        TypeError: Another kind of object.

    Example:
        >>> unpack(pack({"part": (1, b"x")}))
        {'part': (1, b'x')}
    """
    buffers: list[bytes] = []
    held = _packed(value, buffers)
    data = b"".join(buffers)
    head = {"format": _FORMAT, "value": held, "sizes": [len(one) for one in buffers]}
    text = json.dumps(head).encode()
    digest = hashlib.sha256(text + data).hexdigest().encode()
    return b"\n".join((digest, text, data))


def unpack(data: bytes, /, *, path: str = "") -> Any:
    """The value that `pack` packed.

    Args:
        data: All of it.
        path: Where it lies, for messages.

    Raises:
        SeqlakeError: It is none, or its bytes have changed.
    """
    try:
        digest, text, rest = data.split(b"\n", 2)
        head = json.loads(text)
        if why := _wrong(digest, text, rest, head):
            return _refuse(why, path)
        ends = np.cumsum([0, *head["sizes"]]).tolist()
        whole = memoryview(rest)
        return _unpacked(head["value"], [whole[a:b] for a, b in pairwise(ends)])
    except _BROKEN as error:
        return _refuse(str(error), path)


def _wrong(digest: bytes, text: bytes, rest: bytes, head: Any) -> str:
    """Why the bytes are not those that were packed; nothing where they are."""
    if hashlib.sha256(text + rest).hexdigest().encode() != digest:
        return "its bytes have changed since they were written"
    if head["format"] != _FORMAT:
        return f"it is of the format {head['format']!r:.20}"
    if min(head["sizes"], default=0) < 0 or sum(head["sizes"]) != len(rest):
        return f"it names {sum(head['sizes'])} bytes and has {len(rest)}"
    return ""


def _refuse(why: str, path: str) -> NoReturn:
    raise SeqlakeError(
        f"{path or 'A receipt'} is not what a task leaves: {why}.",
        path=path,
        hint="Delete it: its task is done again.",
    )


def _packed(value: object, buffers: list[bytes]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_packed(item, buffers) for item in value]
    return {_TAG: _name_of(value), "value": _parts(value, buffers)}


def _name_of(value: object) -> str:
    kind = type(value)
    if dataclasses.is_dataclass(value) and kind.__module__.startswith(_OURS):
        return f"{kind.__module__}:{kind.__qualname__}"
    return "number" if isinstance(value, np.generic) else "dtype" if isinstance(value, np.dtype) else kind.__name__


def _parts(value: object, buffers: list[bytes]) -> Any:
    """What a value is made of, as JSON."""
    if type(value) in (tuple, set, frozenset):
        items = sorted(value, key=repr) if not isinstance(value, tuple) else value  # type: ignore[call-overload]
        return [_packed(item, buffers) for item in items]
    if type(value) is dict:
        return [[_packed(key, buffers), _packed(item, buffers)] for key, item in value.items()]
    if isinstance(value, bytes | bytearray | memoryview):
        return _kept(bytes(value), buffers)
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _array(np.asarray(value), buffers)
    return _record(value, buffers)


def _record(value: object, buffers: list[bytes]) -> Any:
    if isinstance(value, np.dtype):
        return np.lib.format.dtype_to_descr(value)
    if isinstance(value, Fraction):
        return [value.numerator, value.denominator]
    if is_date(value):
        return parts_of_date(value)
    if dataclasses.is_dataclass(value) and type(value).__module__.startswith(_OURS):
        return {one.name: _packed(getattr(value, one.name), buffers) for one in dataclasses.fields(value)}
    raise TypeError(
        f"A receipt is made of plain values, bytes, dates, arrays and records of seqlake; found {type(value).__name__}."
    )


def _array(array: np.ndarray[Any, Any], buffers: list[bytes]) -> Any:
    if array.dtype.hasobject or array.dtype.names is not None:
        raise TypeError(f"A receipt holds arrays of numbers; found one of {array.dtype}.")
    return [array.dtype.str, list(array.shape), _kept(array.tobytes(), buffers)]


def _kept(data: bytes, buffers: list[bytes]) -> int:
    buffers.append(data)
    return len(buffers) - 1


def _unpacked(value: Any, buffers: Sequence[memoryview]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, buffers) for item in value]
    if not isinstance(value, dict):
        return value
    kind, held = str(value[_TAG]), value["value"]
    if kind in ("tuple", "set", "frozenset"):
        return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](_unpacked(item, buffers) for item in held)
    if kind == "dict":
        return {_unpacked(key, buffers): _unpacked(item, buffers) for key, item in held}
    if kind in ("bytes", "bytearray", "memoryview"):
        return bytes(buffers[held])
    if kind in ("ndarray", "number"):
        name, shape, number = held
        array = np.frombuffer(buffers[number], np.dtype(name)).reshape(shape).copy()
        return array[()] if kind == "number" else array
    if kind == "dtype":
        return np.lib.format.descr_to_dtype(held)
    if kind == "Fraction":
        return Fraction(*held)
    return _of_fields(kind, held, buffers) if ":" in kind else date_of(kind, held)


def _of_fields(kind: str, held: Any, buffers: Sequence[memoryview]) -> Any:
    """A record of ours from its fields, without a call of its class."""
    module, _, name = kind.partition(":")
    record = vars(import_module(module)).get(name) if module.startswith(_OURS) else None
    if not (isinstance(record, type) and dataclasses.is_dataclass(record) and record.__module__ == module):
        raise ValueError(f"there is no record {kind!r:.80}")
    names = [one.name for one in dataclasses.fields(record)]
    if {*held} != {*names}:
        raise ValueError(f"a {name} has the fields {', '.join(names)}")
    made_of: Any = object.__new__(record)
    for field in names:
        object.__setattr__(made_of, field, _unpacked(held[field], buffers))
    return made_of
