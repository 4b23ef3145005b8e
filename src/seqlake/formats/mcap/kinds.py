"""What messages hold, whatever they are encoded in: numbers, texts, times, groups of fields and lists of these.

Every decoder gives the same plain values: dicts for groups, numpy arrays for lists of numbers, lists for other lists,
whole nanoseconds for times. So columns are planned and read once for all encodings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from seqlake.errors import CorruptFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_DEPTH = 24
"""Groups in groups; what lies deeper is left out, as a definition may contain itself."""

MOST_FIELDS = 4096
"""Of one message, in all its groups."""


MISFITS = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
"""What reading raises of a message that has the name of a known type, and other fields."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number: `dtype` is numpy's name, `labels` what the values of an enumeration are called."""

    dtype: str
    labels: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Words:
    """Text, which is UTF-8."""


@dataclass(frozen=True, slots=True)
class Octets:
    """Bytes of any length."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time or a duration, in whole nanoseconds."""


@dataclass(frozen=True, slots=True)
class Group:
    """Fields by name; `name` is the type's own, as `geometry_msgs/Twist`."""

    name: str
    fields: Mapping[str, Kind]


@dataclass(frozen=True, slots=True)
class Many:
    """A list; `size` where it is fixed."""

    of: Kind
    size: int | None = None


Kind: TypeAlias = Number | Words | Octets | Moment | Group | Many


class MessageDecoder(Protocol):
    """Messages of one schema; picklable."""

    @property
    def kind(self) -> Group:
        """What all of them hold."""

    def decode(self, data: memoryview, /) -> dict[str, Any]:
        """One message as plain values; CorruptFileError where it is none."""


def step_into(kind: Kind, path: str, /) -> Kind | None:
    """The kind of a field by its path, as `pose.position.x` or `transforms[0].child`; None where there is none.

    Example:
        >>> step_into(Group("a", {"b": Many(Number("float64"), 3)}), "b[1]")
        Number(dtype='float64', labels={})
    """
    here: Kind = kind
    for name, index in parts_of(path):
        if name:
            if not isinstance(here, Group) or name not in here.fields:
                return None
            here = here.fields[name]
        if index is not None:
            if not isinstance(here, Many):
                return None
            here = here.of
    return here


@lru_cache(maxsize=4096)
def parts_of(path: str, /) -> tuple[tuple[str, int | None], ...]:
    """The steps of a path: names, and the places in lists.

    Example:
        >>> parts_of("a.b[2]")
        (('a', None), ('b', None), ('', 2))
    """
    return tuple(_parts(path))


def _parts(path: str) -> Iterator[tuple[str, int | None]]:
    for part in path.split(".") if path else ():
        name, _, rest = part.partition("[")
        if name:
            yield name, None
        while rest:
            index, closed, rest = rest.partition("]")
            if not closed or not index.isdecimal() or len(index) > 9 or (rest and not rest.startswith("[")):
                yield part, None  # no field is called so
                return
            yield "", int(index)
            rest = rest[1:]


def value_at(message: Any, path: str, /) -> Any:
    """The value of a field by its path; None where a list is too short for it, or a field is absent.

    Raises:
        CorruptFileError: The message is not what its schema says.
    """
    here = message
    for name, index in parts_of(path):
        if here is None:
            return None
        if index is not None:
            here = here[index] if index < len(here) else None
        elif isinstance(here, Mapping):
            here = here.get(name)
        else:
            raise CorruptFileError(f"a message has {type(here).__name__} where the field {name!r} was expected")
    return here


def leaves(kind: Kind, prefix: str = "", /) -> Iterator[tuple[str, Kind]]:
    """All that is no group, with its path, in the order of the fields."""
    if isinstance(kind, Group):
        for name, inner in kind.fields.items():
            yield from leaves(inner, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix, kind


def base_name(group: Group, /) -> str:
    """The package and the name of a type without what encodings put between: `sensor_msgs/Imu`, `foxglove/RawImage`.

    Example:
        >>> base_name(Group("sensor_msgs/msg/Imu", {})), base_name(Group("foxglove.RawImage", {}))
        ('sensor_msgs/Imu', 'foxglove/RawImage')
    """
    return group.name.replace("/msg/", "/").replace(".", "/")
