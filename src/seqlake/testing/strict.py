"""Proxies that let through only what a protocol names, so that callers who ask a plug for more fail.

`strict_plugs` puts one around every plug that is loaded, and around what it makes: tables, versions, shards, readers.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from unittest import mock

from seqlake import abilities, plugins, protocols

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS = {
    "tables": protocols.TableFormat,
    "formats": protocols.Format,
    "media": protocols.Media,
    "stores": protocols.StoreFormat,
    "shard_formats": protocols.ShardFormat,
}
_PROXIED = {
    "Readable",
    "Snapshot",
    "Shard",
    "ShardReader",
    "ShardWriter",
    "StepReader",
    "Table",
    "Sink",
    "Decoder",
    "Store",
    "Blob",
}
"""Protocols whose objects are wrapped when a method is annotated to return them, alone or in a sequence."""


class Strict:
    """One plug, or something that one made, seen through its protocol; picklable if that is.

    Args:
        thing: What is wrapped.
        kind: Its protocol.

    Example:
        ```python
        table = Strict(delta.open("lake/arm"), protocols.Table)
        table.snapshot().shards()   # strict, too
        table.engine                # AttributeError
        ```
    """

    def __new__(cls, thing: Any, kind: type, /) -> Strict:  # noqa: PYI034 - of a class that has the protocol's names
        del cls, thing
        return object.__new__(_named_as(kind))

    def __init__(self, thing: Any, kind: type, /) -> None:
        self._thing = thing
        self._kind = kind

    def ability(self, kind: type, /) -> Any:
        """What the wrapped one can, strict too."""
        able = abilities.ability(self._thing, kind)
        return None if able is None else Strict(able, kind)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in {"_thing", "_kind"}:
            raise AttributeError(name)
        if name in _members(self._kind):  # which the wrapped one lacks
            return getattr(self._thing, name)
        raise AttributeError(
            f"{self._kind.__name__} has no {name!r}. Put it into the protocol, or ask for an ability that has it."
        )

    def _member(self, name: str, returned: str) -> Any:
        value = getattr(self._thing, name)
        if not callable(value):
            return _wrapped(value, returned)
        return lambda *args, **options: _wrapped(value(*map(bare, args), **options), returned)

    def __len__(self) -> int:
        return len(self._thing)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return bool(self._thing == bare(other))

    def __hash__(self) -> int:
        return hash(self._thing)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Strict, (self._thing, self._kind))

    def __repr__(self) -> str:
        return repr(self._thing)


def bare(thing: Any, /) -> Any:
    """What a proxy wraps; anything else as it is. A plug is handed back its own things."""
    return thing._thing if isinstance(thing, Strict) else thing  # noqa: SLF001 - of the class above


@contextmanager
def strict_plugs() -> Iterator[None]:
    """Tables, formats, media, stores and formats of shards that are loaded in this process from now on are proxies.

    Example:
        ```python
        with strict_plugs():
            sl.open("delta:lake/arm").append(rows)
        ```
    """
    load = plugins.load

    def loaded(group: str, name: str, /) -> Any:
        plug = load(group, name)
        return Strict(plug, _GROUPS[group]) if group in _GROUPS else plug

    with mock.patch.object(plugins, "load", loaded):
        yield


@cache
def _members(kind: type) -> dict[str, str]:
    """Names of a protocol -> what its annotation says is returned."""
    members: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in {protocols.__name__, abilities.__name__}:
            for name, value in vars(base).items():
                function = value.fget if isinstance(value, property) else value
                if callable(function) and not name.startswith("_"):
                    members[name] = str(getattr(function, "__annotations__", {}).get("return", ""))
            members.update(vars(base).get("__annotations__", {}))
    return members


@cache
def _named_as(kind: type) -> type[Strict]:
    """A class with the protocol's names: from Python 3.12 on `isinstance` looks for them there, not by `getattr`."""

    def seen(name: str, returned: str) -> property:
        return property(lambda self: self._member(name, returned))

    names = {name: seen(name, returned) for name, returned in _members(kind).items() if not hasattr(Strict, name)}
    return type(Strict.__name__, (Strict,), names)


def _wrapped(value: Any, returned: str) -> Any:
    kind = next((word for word in re.findall(r"\w+", returned) if word in _PROXIED), None)
    if kind is None or value is None or returned.startswith("tuple["):  # several things, not one or many
        return value
    if isinstance(value, list | tuple):
        return [_wrapped(one, kind) for one in value]
    return Strict(value, getattr(protocols, kind, None) or getattr(abilities, kind))
